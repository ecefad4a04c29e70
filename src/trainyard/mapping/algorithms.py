"""Training algorithms: what workers exchange, and when. A field of a system of workers; `ty.run(..., algorithm=)` overrides it.

| class             | after how many local steps | what goes round     | between whom              | source                     |
|-------------------|----------------------------|---------------------|---------------------------|----------------------------|
| Synchronous       | every one                  | gradients           | all                       | synchronous SGD            |
| GradientAveraging | `period`, accumulated      | gradients           | a server: in, mean, out   | PIM-Opt's GA-SGD           |
| ModelAveraging    | `period`                   | models              | a server: in, mean, out   | PIM-Opt's MA-SGD           |
| ADMM              | `period`, proximal         | models plus duals   | a server: in, mean, out   | PIM-Opt's ADMM             |
| ElasticAveraging  | `period`                   | models              | a worker and the centre   | Zhang et al., NeurIPS 2015 |
| DecentralizedSgd  | every one                  | models              | neighbours in a ring      | Lian et al., NeurIPS 2017  |
| Direct            | staleness above tau        | models or gradients | all clusters, by token    | DIRECT, Algorithm 1        |

A *worker* is a DPU or a GPU. Under Direct the workers of a *cluster* share one model: their gradients are reduced in every
step (AGAU), and clusters exchange among each other. Everything else gives every worker a model of its own, or all the same one.

`Rates` is what a machine says of itself to whoever runs an algorithm: the seconds of each of its acts.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal, get_args

from trainyard.checks import require_choice, require_flag, require_positive, require_quantity
from trainyard.errors import BadInput
from trainyard.ir import assumed
from trainyard.units import PICOSECONDS_PER_SECOND

TokenOrder = Literal["round_robin", "priority", "first_come"]
What = Literal["gradients", "models"]
Between = Literal["all", "server", "centre", "neighbours", "clusters"]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """What is common to all: local steps between two exchanges, and what an exchange moves."""

    @property
    def local_steps(self) -> int:
        """Optimizer steps from one exchange to the next, the one that ends in it included."""
        return 1

    @property
    def exchanges(self) -> What:
        return "models"

    @property
    def between(self) -> Between:
        return "server"


@dataclass(frozen=True, slots=True)
class Synchronous(Algorithm):
    """Gradients of all workers are averaged in every step; all models stay equal."""

    @property
    def exchanges(self) -> What:
        return "gradients"

    @property
    def between(self) -> Between:
        return "all"


@dataclass(frozen=True, slots=True)
class Periodic(Algorithm):
    """Something happens after every `period` local steps."""

    period: int = 1

    def __post_init__(self) -> None:
        require_positive(type(self).__name__, period=self.period)

    @property
    def local_steps(self) -> int:
        return self.period


@dataclass(frozen=True, slots=True)
class GradientAveraging(Periodic):
    """GA-SGD: gradients of `period` mini-batches are added up, averaged over all workers, and applied once."""

    @property
    def exchanges(self) -> What:
        return "gradients"


@dataclass(frozen=True, slots=True)
class ModelAveraging(Periodic):
    """MA-SGD: `period` steps of its own for every worker, then all models become their mean."""


@dataclass(frozen=True, slots=True)
class ADMM(Periodic):
    """Consensus ADMM: `period` proximal steps, then the consensus is the mean of models plus duals, and duals move."""

    _: KW_ONLY
    rho: float = 1e-2

    def __post_init__(self) -> None:
        Periodic.__post_init__(self)
        require_quantity("ADMM", rho=self.rho)


@dataclass(frozen=True, slots=True)
class ElasticAveraging(Periodic):
    """EASGD: after `period` steps a worker and the centre move towards each other, the worker by `elasticity` of their distance.

    The centre moves by `elasticity` of the sum over workers, which is stable while it times the workers stays below 1.
    """

    _: KW_ONLY
    elasticity: float | None = None  # 0.9 divided by the workers, the paper's beta

    def __post_init__(self) -> None:
        Periodic.__post_init__(self)
        if self.elasticity is not None:
            require_quantity("ElasticAveraging", elasticity=self.elasticity)
            if self.elasticity >= 1:
                raise BadInput(f"ElasticAveraging: elasticity is a share of the distance, below 1, got {self.elasticity!r}")

    @property
    def between(self) -> Between:
        return "centre"


@dataclass(frozen=True, slots=True)
class DecentralizedSgd(Algorithm):
    """D-PSGD: every step a model becomes the mean of its own and its two ring neighbours', and its own gradient is applied."""

    @property
    def between(self) -> Between:
        return "neighbours"


@dataclass(frozen=True, slots=True)
class Direct(Algorithm):
    """DIRECT's Algorithm 1: local steps in a cluster; a global exchange by token when staleness exceeds `tau`.

    Staleness is the age of a cluster's last global update, in its own local steps or in seconds (`unit`). With `unit="steps"` the
    step that finds staleness above tau ends in the exchange: tau + 1 steps from one to the next.

    >>> Direct(tau=31).local_steps
    32
    """

    # fmt: off
    tau: float = assumed(31, "staleness threshold; neither its value nor its unit is printed", 0, 7, 127, choice=True)
    _: KW_ONLY
    unit: Literal["steps", "s"] = "steps"
    update: Literal["averaging", "literal"] = assumed(
        "averaging", "clusters average their models, or as printed: the last gradients of all are applied to the token holder's "
        "model, which then overwrites all others", "literal", choice=True)
    order: Literal["round_robin", "priority", "first_come"] = assumed(
        "round_robin", "who gets the token next", "priority", "first_come")
    recheck: bool = assumed(
        False, "literal: whoever gets the token looks at its staleness again, and goes on without exchange if it was served", True)
    adaptive: bool = assumed(False, "the interval adapts to how far clusters drift apart (DSC); else it is tau", True, choice=True)
    compression_bits: int | None = None   # QSGD: bits of a word, sign and level, on the global exchange; None sends words of 32
    # fmt: on

    def __post_init__(self) -> None:
        require_quantity("Direct", zero=True, tau=self.tau)
        require_choice(
            "Direct",
            unit=(self.unit, ("steps", "s")),
            update=(self.update, ("averaging", "literal")),
            order=(self.order, get_args(TokenOrder)),
        )
        require_flag("Direct", recheck=self.recheck, adaptive=self.adaptive)
        if self.unit == "steps" and self.tau != int(self.tau):
            raise BadInput(f"Direct: tau={self.tau!r} steps must be a whole number; unit='s' takes seconds")
        if self.compression_bits is not None:
            require_positive("Direct", compression_bits=self.compression_bits)
            if not 2 <= self.compression_bits <= 16:
                raise BadInput(f"Direct: compression_bits must be 2 (a sign and a level) to 16, got {self.compression_bits}")

    @property
    def local_steps(self) -> int:
        if self.unit != "steps":
            raise BadInput("Direct: with unit='s' the number of local steps is the machine's: Rates.local_steps(algorithm)")
        return int(self.tau) + 1

    @property
    def exchanges(self) -> What:
        return "gradients" if self.update == "literal" else "models"

    @property
    def between(self) -> Between:
        return "clusters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Seconds of an algorithm's acts on a machine, and bytes; one training run's clock.

    `step_s` has one entry for each group that steps as one: a cluster under Direct on a machine that has clusters, else a
    worker. It is the time until its slowest worker has its gradient and the update is done.
    """

    workers: int
    cluster_size: int
    step_s: tuple[float, ...]
    reduce_s: float
    """A cluster's gradients become one and every member has the new weights."""
    exchange_s: float
    """What all groups have becomes one and goes to all of them; with tokens, from when all may take part."""
    update_s: float
    """One worker's exchange with the centre (ElasticAveraging), or all workers' with their two neighbours (DecentralizedSgd)."""
    token_s: float
    """What a token adds from one holder to the next, entering a round included; nothing else is done while it is held."""
    message_bytes: int
    """Of one model or gradient."""
    exchange_bytes: int
    """Over links between groups in one exchange of all."""
    reduce_bytes: int
    """Inside all clusters in one step."""

    @property
    def groups(self) -> int:
        return len(self.step_s)

    def local_steps(self, algorithm: Algorithm) -> tuple[int, ...]:
        """Steps from one exchange to the next, for each group.

        With tau in seconds a group steps until its age exceeds tau; the step that finds it so is the last.
        """
        if isinstance(algorithm, Direct) and algorithm.unit == "s":
            limit = round(algorithm.tau * PICOSECONDS_PER_SECOND)
            return tuple(limit // round((step + self.reduce_s) * PICOSECONDS_PER_SECOND) + 1 for step in self.step_s)
        return (algorithm.local_steps,) * self.groups
