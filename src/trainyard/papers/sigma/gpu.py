"""Figs. 2 and 3: the models and the suite on a GPU: a V100 by prediction, an H200 by measurement.

The paper measured a V100. Dense products and whole steps on it are predicted by `devices.Gpu`, whose fractions of the peaks were
measured on an H200. Sparse products are not predicted: a GPU computes zeros like other numbers, and what cuSPARSE makes of them was
measured on an H200 (`scripts/measure_products.py`, one run, shipped as `samples/sigma/gpu.json`).

Efficiency is multiplications of two non-zeros over those that the board could do in the time, at its boost clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib import resources
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, Any, Literal

from trainyard.devices.gpu.device import Gpu
from trainyard.errors import BadInput, UnknownName
from trainyard.ir import MatMul, Op, Step, TensorSpec, Update
from trainyard.machines.presets.gpus import H200, V100
from trainyard.papers.figures import Series, chart, paper, series_of
from trainyard.papers.ledger import Experiments, Measured
from trainyard.papers.sigma.suite import SUITE, label, stated
from trainyard.report.colours import PHASES, SPARE
from trainyard.workloads import zoo

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.papers.figures import Figures

Precision = Literal["fp32", "fp16"]
REGULAR = MatMul(2048, 2048, 2048)  # Sec. III-A
SMALLEST = MatMul(2048, 1, 128)  # of the suite; a kernel's start is most of its time
SPARSITIES = (0.5, 0.8)  # Sec. III-A
# Batches of the zoo, whose shapes are in the paper's suite: 84 words of one sentence, 1632 = 32 x 51 words; and larger ones.
SMALL: tuple[tuple[str, int], ...] = (("transformer-324m", 1), ("gnmt", 32))
LARGE: tuple[tuple[str, int], ...] = (("transformer-324m", 32), ("gnmt", 128))
# What torch's Adam runs over lists of parameters: measured times have the names of ops.
ADAM = frozenset({"addcdiv_", "lerp_", "mul_", "addcmul_", "sqrt", "div", "add_"})
KINDS = ("products", "optimizer", "all else")


@cache
def measured() -> Mapping[str, Any]:
    """The shipped measurement."""
    file = resources.files("trainyard.papers").joinpath("samples", "sigma", "gpu.json")
    measurement: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if measurement["multiprocessors"] != H200.sms:
        raise BadInput(
            f"gpu.json is of {measurement['device']} with {measurement['multiprocessors']} multiprocessors, not of an H200"
        )
    return measurement


def peak(gpu: Gpu, precision: Precision) -> float:
    """MACs a second of the vector lanes in fp32, of the tensor cores in fp16.

    >>> round(2 * peak(V100, "fp16") / 1e12), round(2 * peak(H200, "fp32") / 1e12)
    (125, 67)
    """
    return gpu.sms * gpu.clock_hz * {"fp32": gpu.fp32_macs, "fp16": gpu.half_macs}[precision]


def predicted(gpu: Gpu, op: MatMul, precision: Precision) -> float:
    """Efficiency of a product in a queue of equal ones, as in the measurement: the host is ahead, the L2 is warm."""
    tensors = tuple(TensorSpec(shape) for shape in ((op.M, op.K), (op.K, op.N), (op.M, op.N)))
    step = Step(f"two of {label(op)}", 1, (Op(body=op, inputs=(0, 1), outputs=(2,)),) * 2, tensors)
    board = replace(gpu, precision=precision, graphs=True)
    cost = board.cost(step, board.works(step)[-1])
    return op.macs / (cost.cycles / board.clock_hz) / peak(gpu, precision)


def timed(op: MatMul, precision: Precision = "fp32", sparsity: float = 0.0) -> Mapping[str, Any]:
    """The measured row of a product."""
    wanted = (op.M, op.N, op.K, precision, sparsity)
    for row in measured()["products"]:
        if (row["M"], row["N"], row["K"], row["precision"], row["sparsity"]) == wanted:
            product: Mapping[str, Any] = row
            return product
    known = [label(MatMul(row["M"], row["N"], row["K"])) for row in measured()["products"]]
    raise UnknownName("measured product", f"{label(op)} {precision} {sparsity:.0%}", known, "gpu.json")


def efficiency(op: MatMul, precision: Precision = "fp32", sparsity: float = 0.0) -> float:
    """On the H200, useful MACs counted."""
    row = timed(op, precision, sparsity)
    return float(op.macs * row["nonzero"] / row["seconds"] / peak(H200, precision))


def loss(op: MatMul, sparsity: float, *, useful: bool = True) -> float:
    """How much lower the efficiency of a sparse product is than the dense one's; or how much longer it takes (`useful=False`)."""
    longer = timed(op, "fp32", sparsity)["seconds"] / timed(op)["seconds"]
    return float(longer / timed(op, "fp32", sparsity)["nonzero"] if useful else longer)


@cache
def breakdown(model: str, batch: int, board: Gpu) -> Mapping[str, float]:
    """Seconds of a training step by kind of op, predicted; a product that waits for the host is counted with its wait."""
    step = zoo.load(model, batch=batch)
    spent = dict.fromkeys(KINDS, 0.0)
    for work in board.works(step):
        ops = [step.ops[index] for index in work.ops]
        products, update = any(op.is_product for op in ops), isinstance(ops[0].body, Update)
        spent[KINDS[0] if products else KINDS[1] if update else KINDS[2]] += board.cost(step, work).cycles / board.clock_hz
    return spent


def breakdown_measured(model: str, batch: int, precision: Precision) -> Mapping[str, float]:
    """Seconds of kernels of a training step on the H200 by kind of op; the device's pauses are not in it."""
    for row in measured()["breakdowns"]:
        if (row["model"], row["batch"], row["precision"]) == (model, batch, precision):
            spent = dict.fromkeys(KINDS, 0.0)
            for name, seconds in row["device_s"].items():
                spent[KINDS[0] if name == "product" else KINDS[1] if name in ADAM else KINDS[2]] += seconds
            return spent
    raise UnknownName("measured step", f"{model} of {batch}, {precision}", [row["model"] for row in measured()["breakdowns"]])


def share(spent: Mapping[str, float]) -> float:
    """Per cent of the time that products take."""
    return 100 * spent[KINDS[0]] / sum(spent.values())


def board(precision: Precision = "fp32", **fields: Any) -> Gpu:
    return replace(V100, precision=precision, **fields)


def _shares(cases: Sequence[tuple[str, int]], on: Gpu) -> str:
    return " and ".join(f"{share(breakdown(model, batch, on)):.0f}" for model, batch in cases)


def _matmul_share() -> Measured:
    """Both panels of Fig. 2 are of about 70 %: the model that is farther from it is judged."""
    shares = {f"{model} of batch {batch}": share(breakdown(model, batch, board("fp16"))) for model, batch in LARGE}
    steps = [(row["model"], row["batch"], row["precision"]) for row in measured()["breakdowns"]]
    there = ", ".join(f"{step[0]} of {step[1]} {step[2]} {share(breakdown_measured(*step)):.0f}" for step in steps)
    return Measured(
        max(shares.values(), key=lambda value: abs(value - stated("gpu.matmul_share"))),
        note="Predicted for a V100, element type and batch assumed (fp16): "
        f"{' and '.join(f'{value:.1f} % ({name})' for name, value in shares.items())}.",
        details="Batch, element type and optimizer are not printed and decide. Sec. III-A uses the tensor cores in fp16; "
        "128-2048-4096 of the suite is an LSTM layer of batch 128, and 32 sentences are a usual batch of Tensor2Tensor. "
        "Against it: shapes of the suite with 84 words (one sentence) and 1632 = 32 x 51 words. With these small batches (1 and "
        f"32) in fp32 {_shares(SMALL, board())} %, in fp16 {_shares(SMALL, board('fp16'))} %; the judged batches in fp32 "
        f"{_shares(LARGE, board())} %; with Adam in one kernel instead of torch's lists, fp16, "
        f"{_shares(LARGE, board('fp16', optimizer='fused'))} %. Measured on an H200, of the kernels' time: {there} %.",
    )


def _regular_efficiency() -> Measured:
    tiles = 100 * predicted(replace(V100, tensor_fraction=1.0), REGULAR, "fp16")
    return Measured(
        100 * predicted(V100, REGULAR, "fp16"),
        verdict="substitute",
        note=f"Predicted for a V100, whose tensor cores are taken to sustain {V100.tensor_fraction:g} of their peak, as measured "
        "on an H200.",
        details=f"So this can be no more than {100 * V100.tensor_fraction:.0f} %; tiles and waves alone give {tiles:.0f} %. "
        f"Measured on an H200: {100 * efficiency(REGULAR, 'fp16'):.1f} % of its peak at 1.98 GHz (its data sheet counts at 1.83); "
        f"predicted for it: {100 * predicted(H200, REGULAR, 'fp16'):.1f} %.",
    )


def _means(values: Sequence[float]) -> str:
    return f"{geometric_mean(values):.1f} geometric, {fmean(values):.1f} arithmetic"


def losses(ops: Sequence[MatMul] = SUITE, *, useful: bool = True) -> list[float]:
    return [loss(op, sparsity, useful=useful) for op in ops for sparsity in SPARSITIES]


def _sparse_loss() -> Measured:
    others = [op for op in SUITE if op != SMALLEST]
    dense, sparse = (fmean(efficiency(op, "fp32", zeros) for op in SUITE for zeros in levels) for levels in ((0.0,), SPARSITIES))
    return Measured(
        geometric_mean(losses()),
        verdict="substitute",
        note="An H200 with the CSR product of cuSPARSE stands in for a V100 and the library of its time.",
        details=f"One run of the suite with MK 50 and 80 % sparse, torch {measured()['torch']}. Useful MACs over time: "
        f"{_means(losses())}; without {label(SMALLEST)}, which the start of a kernel bounds, {_means(losses(others))}; mean "
        f"efficiency {100 * dense:.1f} % over {100 * sparse:.1f} % is {dense / sparse:.1f}. If zeros count as work (how much "
        f"longer it takes): {_means(losses(useful=False))}, without it {_means(losses(others, useful=False))}. The paper does not "
        "say which is meant.",
    )


def figure_2() -> go.Figure:
    bars: dict[str, dict[tuple[str, str], float]] = {kind: {} for kind in KINDS}
    for model, batch in (*SMALL, *LARGE):
        for precision in ("fp32", "fp16"):
            _stack(bars, "V100, predicted", model, batch, precision, breakdown(model, batch, board(precision)))
    for row in measured()["breakdowns"]:
        spent = breakdown_measured(row["model"], row["batch"], row["precision"])
        _stack(bars, "H200, measured", row["model"], row["batch"], row["precision"], spent)
    colours = dict(zip(KINDS, (PHASES["forward"], PHASES["update"], SPARE[-1]), strict=True))
    theirs = {where: stated("gpu.matmul_share") for where in bars[KINDS[0]] if where[0].startswith("V100")}
    return chart(
        [
            *series_of(bars, colours),
            paper(theirs, "paper, products on a V100"),
        ],
        "Fig. 2: where the time of a training step goes",
        "Per cent of a step's time. V100 by prediction, H200 by measurement of its kernels; the number is the batch. The paper "
        "prints neither batch nor element type.",
        y="% of time", stacked=True, digits=1, height=460,
    )  # fmt: skip


def _stack(
    bars: Mapping[str, dict[tuple[str, str], float]], where: str, model: str, batch: int, precision: str, spent: Mapping[str, float]
) -> None:
    short = model.partition("-")[0]
    for kind, seconds in spent.items():
        bars[kind][where, f"{short} {batch} {precision}"] = 100 * seconds / sum(spent.values())


def figure_3a() -> go.Figure:
    def of(what: Callable[[MatMul, Precision], float], precision: Precision) -> dict[str, float]:
        percent = {label(op): 100 * what(op, precision) for op in (REGULAR, *SUITE)}
        return {**percent, "mean of the suite": fmean(percent[label(op)] for op in SUITE)}

    v100 = partial(predicted, V100)
    fp16 = of(v100, "fp16")
    return chart(
        [
            Series(name="V100 fp32, predicted", values=of(v100, "fp32"), colour=PHASES["forward"]),
            Series(name="V100 fp16, predicted", values=fp16, colour=PHASES["grad_input"]),
            Series(name="H200 fp32, measured", values=of(efficiency, "fp32"), colour=PHASES["update"]),
            Series(name="H200 fp16, measured", values=of(efficiency, "fp16"), colour=SPARE[0]),
            paper({label(REGULAR): stated("gpu.fp16_efficiency_2k")}, "paper, V100 fp16, up to"),
        ],
        "Fig. 3a: dense products on a GPU",
        f"Share of the peak. Square: V100 in fp16 {fp16[label(REGULAR)]:.0f} %, paper up to {stated('gpu.fp16_efficiency_2k'):g} "
        f"%; the suite's irregular ones {fp16['mean of the suite']:.0f} % on average.",
        x="M-N-K", y="% of peak", digits=1,
    )  # fmt: skip


def figure_3b() -> go.Figure:
    mean = "mean of the suite"
    values: dict[float, dict[str, float]] = {}
    for sparsity in (0.0, *SPARSITIES):
        values[sparsity] = {label(op): 100 * efficiency(op, "fp32", sparsity) for op in SUITE}
        values[sparsity][mean] = fmean(values[sparsity].values())
    shades = (PHASES["forward"], PHASES["grad_input"], PHASES["update"])
    return chart(
        [
            Series(name=f"CSR, {sparsity:.0%} zeros" if sparsity else "dense", values=values[sparsity], colour=shade)
            for sparsity, shade in zip(values, shades, strict=True)
        ]
        + [paper({mean: values[0.0][mean] / stated("gpu.sparse_efficiency_loss")}, "paper, V100: a quarter of dense")],
        "Fig. 3b: sparse products on a GPU",
        f"fp32, MK sparse, measured on an H200; multiplications of non-zeros over the peak. {geometric_mean(losses()):.1f}x lower "
        f"than dense (geometric mean), paper {stated('gpu.sparse_efficiency_loss'):g}x on a V100.",
        x="M-N-K", y="% of peak", digits=1,
    )  # fmt: skip


# fmt: off
EXPERIMENTS: Experiments = {
    "sigma.gpu.matmul_share":           _matmul_share,
    "sigma.gpu.fp16_efficiency_2k":     _regular_efficiency,
    "sigma.gpu.sparse_efficiency_loss": _sparse_loss,
}
FIGURES: Figures = {"Fig. 2": figure_2, "Fig. 3a": figure_3a, "Fig. 3b": figure_3b}
# fmt: on
