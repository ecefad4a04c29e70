"""Beyond the paper: the three products of a training step of SIGMA's models, with the zeros of a real run of gradual pruning.

The paper takes GEMMs of the forward pass and of the two gradients alike and draws their zeros. Here every product of a step of
`transformer-324m`, `gnmt` and `resnet50` (at the zoo's batch) runs on both arrays with the densities that its own operands had
(`samples/sigma/densities.json`, one run of each on stand-in data). Only products count, as in the paper: no element-wise op, no
memory. Products run one after another; the TPU takes the better stationary operand, as SIGMA does.

Zeros count as independent, by expected counts. Where they are not (whole padded words, pruned columns) the shipped masks of a few
layers show the difference: `on_masks`. Gradients of an LSTM's gates were not recorded and count as dense, so do attention's own
products, which have no layer; first states of an LSTM count like the later ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from trainyard.arrays import Systolic
from trainyard.arrays.sigma.array import SigmaCost
from trainyard.errors import UnknownName
from trainyard.ir import DENSE, Dense, Density, MatMul, Op, Phase, Step
from trainyard.ir.step import letter_of
from trainyard.machines.presets.sigma import SIGMA
from trainyard.mapping.lowering import lower
from trainyard.papers.figures import Series, chart
from trainyard.papers.sigma.chip import SIGMA_ARRAY
from trainyard.report.colours import PHASES, SPARE
from trainyard.workloads import zoo

TPU_ARRAYS = tuple(Systolic(rows=128, columns=128, dataflow=flow) for flow in ("ws", "is"))
"""By the array's own cycles, since this is no figure of the paper: the better stationary operand counts."""

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.masks.recorded import Masks
    from trainyard.papers.figures import Figures

MODELS = ("transformer-324m", "gnmt", "resnet50")
PRODUCTS = (Phase.FORWARD, Phase.GRAD_INPUT, Phase.GRAD_WEIGHT)
RECURRENT = re.compile(r"weight_(ih|hh)(_l\d+)?(_reverse)?$")
SEQUENCES = {"ih": "A.input", "hh": "A.output"}
"""What a recurrent layer's matrix multiplies, as it is recorded: a state is an output of the step before."""
LAST = -1

Zeros = Dense | Density


@cache
def facts() -> Mapping[str, Any]:
    """The record of each training run, by zoo model."""
    file = resources.files("trainyard.papers").joinpath("samples", "sigma", "densities.json")
    return {run["model"]: run for run in json.loads(file.read_text(encoding="utf-8")).values()}


def run_of(model: str) -> Mapping[str, Any]:
    if model not in facts():
        raise UnknownName("pruned model", model, facts(), "SIGMA, Sec. II")
    run: Mapping[str, Any] = facts()[model]
    return run


@dataclass(frozen=True, eq=False)
class Recorded:
    """Densities of a step's operands at one recorded epoch of a run."""

    step: Step
    densities: Mapping[str, Mapping[str, list[float]]]
    epoch: int

    @classmethod
    def of(cls, model: str, epoch: int = LAST, batch: int | None = None) -> Recorded:
        return cls(zoo.load(model, batch=batch), run_of(model)["densities"], epoch)

    def operand(self, op: Op, side: int, sequences: Mapping[int, str]) -> Zeros:
        """Dense where nothing was recorded; a matrix that was not has the zeros of the others: all are pruned alike."""
        letter = letter_of(self.step, op, side)
        if not letter:
            return DENSE
        if letter == "W":
            letters = self.densities.get(f"{op.layer}/0", {})
            name = matrix_of(self.step, op.inputs[side]) if len(op.inputs) > side else ""
            recorded = letters.get("W", letters.get(f"W.{name}"))
            return Density(recorded[self.epoch] if recorded is not None else self._pruned())
        letters = self.densities.get(f"{op.layer}/{op.call}", {})
        name = letter if letter in letters else sequences.get(op.inputs[side], "") if letter == "A" and op.inputs else ""
        return Density(letters[name][self.epoch]) if name in letters else DENSE

    def _pruned(self) -> float:
        recorded = (values for letters in self.densities.values() for name, values in letters.items() if name[0] == "W")
        return median(values[self.epoch] for values in recorded)


def matrix_of(step: Step, tensor: int) -> str:
    """The name of a parameter in its layer."""
    return (step.tensors[step.base(tensor)].name or "").rpartition(".")[2]


def sequences_of(step: Step) -> Mapping[int, str]:
    """Tensors that a recurrent layer multiplies, by the recorded sequence that they are a step of."""
    sequences = {}
    for op in step.ops:
        if op.phase is Phase.FORWARD and op.letters[:2] == ("A", "W") and (name := RECURRENT.match(matrix_of(step, op.inputs[1]))):
            sequences[op.inputs[0]] = SEQUENCES[name[1]]
    return sequences


@cache
def sigma_cost(op: MatMul, a: Zeros, b: Zeros) -> SigmaCost:
    return SIGMA_ARRAY.cost(op, a=a, b=b)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One product on both arrays; `stays` is the letter of the operand that SIGMA keeps, `-` of one without a letter."""

    phase: Phase
    macs: int
    stays: str
    sigma: SigmaCost
    dense_cycles: int
    tpu_cycles: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Products added up."""

    products: tuple[Product, ...]

    @classmethod
    def of_step(cls, step: Step, zeros: Callable[[Op, int], Zeros]) -> Summary:
        """All products of a training step, with the zeros of each operand (`side` 0 or 1)."""
        ops = (op for op in step.ops if op.is_product and op.phase in PRODUCTS)
        return cls(tuple(product_of(step, op, zeros(op, 0), zeros(op, 1)) for op in ops))

    def of(self, phase: Phase) -> Summary:
        return Summary(tuple(product for product in self.products if product.phase is phase))

    @property
    def cycles(self) -> int:
        return sum(product.sigma.cycles for product in self.products)

    @property
    def speedup(self) -> float:
        """Over the TPU."""
        return sum(product.tpu_cycles for product in self.products) / self.cycles

    @property
    def dense_speedup(self) -> float:
        """Over the TPU if nothing were zero: by shapes and networks alone."""
        return sum(product.tpu_cycles for product in self.products) / sum(product.dense_cycles for product in self.products)

    @property
    def efficiency(self) -> float:
        """Useful MACs over those possible in the total time (Table II)."""
        return sum(product.sigma.useful for product in self.products) / (SIGMA_ARRAY.peak_macs_per_cycle * self.cycles)

    @property
    def utilisation(self) -> float:
        """Share of the multipliers that hold a non-zero, over all folds (Table II)."""
        offered = sum(product.sigma.offered_multipliers for product in self.products)
        return sum(product.sigma.mapped_elements for product in self.products) / offered

    @property
    def stays(self) -> Mapping[str, float]:
        """Letter of the stationary operand -> share of the dense MACs."""
        total = sum(product.macs for product in self.products)
        letters = sorted({product.stays for product in self.products})
        return {letter: sum(product.macs for product in self.products if product.stays == letter) / total for letter in letters}


@cache
def trained(model: str, epoch: int = LAST) -> Summary:
    """All products of a training step of a model, with the zeros of that recorded epoch."""
    recorded = Recorded.of(model, epoch)
    sequences = sequences_of(recorded.step)
    return Summary.of_step(recorded.step, lambda op, side: recorded.operand(op, side, sequences))


def product_of(step: Step, op: Op, a: Zeros, b: Zeros) -> Product:
    matmul = lower(op.body, SIGMA.grad_input).product
    cost = sigma_cost(matmul, a, b)
    return Product(
        phase=op.phase,
        macs=matmul.macs,
        stays=letter_of(step, op, 0 if cost.stationary == "a" else 1) or "-",
        sigma=cost,
        dense_cycles=sigma_cost(matmul, DENSE, DENSE).cycles,
        tpu_cycles=min(array.cost(matmul).cycles for array in TPU_ARRAYS),
    )


@cache
def masks_of(model: str) -> Masks:
    """The shipped masks."""
    from trainyard.masks.recorded import Masks

    name = next(name for name in _names() if name.startswith(model))
    with resources.as_file(resources.files("trainyard.papers").joinpath("samples", "sigma", name)) as path:
        return Masks.open(Path(path))


def _names() -> list[str]:
    folder = resources.files("trainyard.papers").joinpath("samples", "sigma")
    return [file.name for file in folder.iterdir() if file.name.endswith(".safetensors.xz")]


@cache
def on_masks(model: str) -> Mapping[Phase, tuple[int, int]]:
    """Cycles with the shipped masks, and by densities, of the layers whose W and G are shipped, for the samples kept."""
    from trainyard.devices.accelerator.masked_tiles import viewer

    masks = masks_of(model)
    batch = next(len(spec.samples) for spec in masks.specs.values() if spec.samples)
    recorded = Recorded.of(model, batch=batch)
    sequences = sequences_of(recorded.step)
    weights, gradients = ({layer for layer, _, name in masks.specs if name.startswith(letter)} for letter in "WG")
    layers = weights & gradients
    cycles = {phase: [0, 0] for phase in PRODUCTS}
    for op in recorded.step.ops:
        if op.layer in layers and op.is_product and op.phase in PRODUCTS:
            matmul = lower(op.body, SIGMA.grad_input).product
            sides = (((0, matmul.M), (0, matmul.K)), ((0, matmul.K), (0, matmul.N)))
            a, b = (viewer(recorded.step, op, SIGMA.grad_input, masks, side)(0, *sides[side]) for side in (0, 1))
            cycles[op.phase][0] += SIGMA_ARRAY.cost(matmul, a=a, b=b).cycles
            cycles[op.phase][1] += sigma_cost(matmul, *(recorded.operand(op, side, sequences) for side in (0, 1))).cycles
    return {phase: (exact, expected) for phase, (exact, expected) in cycles.items()}


def rows() -> Iterable[tuple[str, str, Summary]]:
    """Model, phase or `all`, and the products of that phase."""
    for model in MODELS:
        whole = trained(model)
        yield from ((model, phase.value, whole.of(phase)) for phase in PRODUCTS)
        yield model, "all", whole


NAMES = {Phase.FORWARD: "forward", Phase.GRAD_INPUT: "gradient of the input", Phase.GRAD_WEIGHT: "gradient of the weights"}


def figure_training() -> go.Figure:
    summaries = {model: trained(model) for model in MODELS}
    batches = ", ".join(f"{model} {zoo.load(model).batch}" for model in MODELS)
    return chart(
        [
            *(
                Series(
                    name=NAMES[phase], colour=PHASES[phase.value],
                    values={model: summary.of(phase).speedup for model, summary in summaries.items()},
                )
                for phase in PRODUCTS
            ),
            Series(name="all three", colour=SPARE[0], values={model: summary.speedup for model, summary in summaries.items()}),
            Series(
                name="all three, without zeros", colour=SPARE[-1],
                values={model: summary.dense_speedup for model, summary in summaries.items()},
            ),
        ],
        "Beyond: the three products of a training step",
        f"Weights pruned to 80, 90 and 70 %; zeros of real training on stand-in data. Products alone; batches: {batches}.",
        y="speedup over TPU 128 x 128", unity=True,
    )  # fmt: skip


def figure_pruning() -> go.Figure:
    lines = []
    for model, colour in zip(MODELS, (PHASES["forward"], PHASES["grad_input"], PHASES["update"]), strict=True):
        run = run_of(model)
        total = run["epochs"] * run["steps_per_epoch"]
        values = {100 * at / total: trained(model, epoch).speedup for epoch, at in enumerate(run["recorded_steps"])}
        lines.append(Series(name=model, values=values, colour=colour, kind="line"))
    return chart(
        lines, "Beyond: as weights are pruned",
        "All three products; densities of one random batch of every epoch. Pruning begins at 10 % of the run and ends at 70 %.",
        x="training done [%]", y="speedup over TPU 128 x 128", unity=True, numbers=True,
    )  # fmt: skip


FIGURES: Figures = {"Training": figure_training, "Training as weights are pruned": figure_pruning}
