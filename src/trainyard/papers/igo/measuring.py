"""The nine networks on a machine: cycles of a step, and of each layer with weights its cycles and bytes.

Every Work of the step is costed by the machine itself (`Accelerator.cost`): `trainyard run MODEL --on MACHINE` gives the same time.
Runs are kept: experiments share them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Any, NamedTuple

from trainyard.devices import Accelerator
from trainyard.errors import BadInput
from trainyard.ir import DTYPE_BYTES, Phase, Step
from trainyard.mapping.gradient_order.bound import least_bytes
from trainyard.mapping.gradient_order.scratchpad import Pair
from trainyard.papers.igo.baselines import Case, Tile
from trainyard.papers.igo.networks import ABBREVIATIONS, Layer, distinct, layers_of, samples, step
from trainyard.papers.processes import workers

Key = tuple[str, int]
"""A layer by path and call."""
OPERANDS, GRADIENTS = ("X", "W", "dY"), ("dX", "dW")
FUSED = ("interleaved", "dx_major", "dw_major")


class Spent(NamedTuple):
    """Cycles of a layer's forward product and of its gradients, and the bytes of both.

    `compute` are the cycles of the array in the gradients, `moved` their bytes by tensor and direction.
    """

    forward: int
    backward: int
    compute: int
    forward_bytes: int
    moved: Mapping[tuple[str, str], int]

    @property
    def cycles(self) -> int:
        return self.forward + self.backward

    @property
    def backward_bytes(self) -> int:
        return sum(self.moved.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A step on a machine; products without weights (attention) count in `cycles` alone."""

    cycles: int
    clock_hz: float
    layers: Mapping[Key, Spent]

    @property
    def seconds(self) -> float:
        return self.cycles / self.clock_hz

    @property
    def moved(self) -> Counter[tuple[str, str]]:
        """Bytes of all layers' gradients."""
        found: Counter[tuple[str, str]] = Counter()
        for spent in self.layers.values():
            found.update(spent.moved)
        return found

    @property
    def backward_share(self) -> float:
        return sum(spent.backward for spent in self.layers.values()) / self.cycles


def on(given: Step, machine: Accelerator, layers: Iterable[Layer]) -> Ran:
    """One step; `layers` are those with weights."""
    wanted = {(layer.path, layer.call) for layer in layers}
    cycles = 0
    forward: dict[Key, tuple[int, int]] = {}
    backward: Counter[Key] = Counter()
    compute: Counter[Key] = Counter()
    moved: dict[Key, Counter[tuple[str, str]]] = {key: Counter() for key in wanted}
    for work in machine.works(given):
        head = given.ops[work.ops[0]]
        cost = machine.cost(given, work)
        cycles += cost.cycles
        key = (head.layer, head.call)
        if not head.is_product or key not in wanted:
            continue
        if head.phase is Phase.FORWARD:
            forward[key] = (cost.cycles, sum(cost.bytes.values()))
        else:
            backward[key] += cost.cycles
            compute[key] += cost.compute_cycles
            moved[key].update(cost.bytes)
    found = {key: Spent(forward[key][0], backward[key], compute[key], forward[key][1], moved[key]) for key in forward}
    return Ran(cycles=cycles, clock_hz=machine.clock_hz, layers=found)


class Job(NamedTuple):
    """A run that can be asked for."""

    case: Case
    network: str
    tile: Tile
    order: str
    partition: str


def job(case: Case, network: str, tile: Tile = "tall", *, order: str = "sequential", partition: str = "none") -> Job:
    return Job(case, network, tile, order, partition)


def ran(case: Case, network: str, tile: Tile = "tall", **order: Any) -> Ran:
    """One of the nine; `order` as `Case.machine` takes it."""
    asked = job(case, network, tile, **order)
    found = _kept().get(asked)
    return found or _kept().setdefault(asked, run(asked))


def run(asked: Job) -> Ran:
    case, network = asked.case, asked.network
    given = step(network, case.npu, batch(case), case.recommender_batch)
    machine = case.machine(asked.tile, order=asked.order, partition=asked.partition)
    return on(given, machine, layers_of(network, case.npu, batch(case), case.recommender_batch))


@cache
def _kept() -> dict[Job, Ran]:
    return {}


def ahead(case: Case, tile: Tile, *orders: Mapping[str, Any]) -> None:
    """Runs of all nine networks on several cores at once, so that `ran` finds them. Without it they are run one by one."""
    asked = [job(case, network, tile, **order) for network in ABBREVIATIONS for order in orders]
    missing = [one for one in dict.fromkeys(asked) if one not in _kept()]
    pool = workers() if len(missing) >= len(ABBREVIATIONS) else None
    if pool is None:
        return
    try:
        for one, found in zip(missing, pool.map(run, missing), strict=True):
            _kept()[one] = found
    except BrokenProcessPool:  # one was killed: each run is then made where it is asked for
        return


def batch(case: Case) -> int:
    """Samples of all cores, as the paper counts them."""
    return (case.batch or samples("res", case.npu)) * case.cores


def layers(case: Case, network: str) -> tuple[Layer, ...]:
    """Distinct ones."""
    return distinct(layers_of(network, case.npu, batch(case), case.recommender_batch))


Networks = Mapping[str, float]
"""A figure of each network."""


def each(what: Callable[[str], float], networks: Iterable[str] = ABBREVIATIONS) -> Networks:
    return {network: what(network) for network in networks}


def mean(values: Networks) -> float:
    """Arithmetic: the paper names none."""
    return fmean(values.values())


def reduction(before: float, after: float) -> float:
    """Per cent.

    >>> reduction(200, 150)
    25.0
    """
    return 100 * (1 - after / before)


def reductions(case: Case, tile: Tile = "tall", **order: Any) -> Networks:
    """By how much a step gets shorter, held against the sequential order with the same kind of tile."""
    ahead(case, tile, {}, order)
    return each(lambda network: reduction(ran(case, network, tile).cycles, ran(case, network, tile, **order).cycles))


def ideal_cycles(case: Case, network: str, tile: Tile = "tall") -> int:
    """The best of the three fused orders for each layer (Sec. 4.3)."""
    return _least([ran(case, network, tile, order=order) for order in FUSED])


def _least(runs: list[Ran]) -> int:
    """Of each layer its fastest run; all else is the same in all."""
    first = runs[0]
    rest = first.cycles - sum(spent.backward for spent in first.layers.values())
    return rest + sum(min(one.layers[key].backward for one in runs) for key in first.layers)


def limits(case: Case) -> Networks:
    """The most that any order can bring with the tall tile on one core: the array's time, or the bytes that must move.

    Each layer's gradients take at least their time in the array and the transfer of the least bytes
    (`mapping.gradient_order.bound`); a partition only adds edges to the tiles. The forward pass and layers without dX stay as they
    are.
    """
    return each(lambda network: reduction(ran(case, network).cycles, _least_cycles(case, network)))


def _least_cycles(case: Case, network: str) -> float:
    machine, found = case.machine(), ran(case, network)
    if case.cores > 1 or machine.im2col != "materialised":
        raise BadInput(f"limits of {case}: known for one core and matrices that are written out")
    saved = 0.0
    for layer in layers(case, network):
        if layer.paired:
            spent = found.layers[layer.path, layer.call]
            pair = Pair.dense(layer.op, DTYPE_BYTES[str(machine.precision)])
            least = least_bytes(pair, machine.supply.resident_bytes).total / machine.supply.bytes_per_cycle
            saved += layer.repeats * (spent.backward - max(spent.compute, least))
    return found.cycles - saved


def listed(values: Networks, digits: int = 1) -> str:
    return ", ".join(f"{network} {value:.{digits}f}" for network, value in values.items())


def faster(case: Case) -> Networks:
    """How many times shorter a step is with searched tiles, in the sequential order."""
    return each(lambda network: ran(case, network).cycles / ran(case, network, "searched").cycles)
