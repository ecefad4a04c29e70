"""SIGMA's page: its figures as tables, the effect of each assumption, the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean, geometric_mean

from paper_pages import Section, changes_section, ledger_section, table
from trainyard.arrays import Sigma
from trainyard.ir import MatMul, assumptions_of
from trainyard.machines.presets.sigma import SIGMA
from trainyard.papers.ledger import Row
from trainyard.papers.sigma import dataflows, every_model, examples, features, formats, rivals, training
from trainyard.papers.sigma.suite import (
    ALL_SHAPES,
    DENSE_CASES,
    K_ALONG_COLUMNS,
    K_ALONG_ROWS,
    PES,
    SPARSE_CASES,
    SPARSITIES,
    SQUARE,
    SUITE,
    Case,
    Counting,
    Shapes,
    cost,
    label,
    operands,
    tpu_cycles,
)
from trainyard.workloads import zoo

SHARES = ("utilisation", "compute_efficiency", "overall_efficiency")


def percent(value: float) -> str:
    return f"{100 * value:.1f}" if value < 0.9995 else "100"


def metadata() -> str:
    shown = {name: text for name, text in formats.NAMES.items() if name != "none"}
    rows = [(f"{100 * level:.0f}", *(formats.overhead(name, level) for name in shown)) for level in formats.LEVELS]
    return table(("zeros [%]", *shown.values()), rows)


def front_end() -> str:
    rows = [
        (f"{100 * level:.0f}", *(formats.front_end_cycles(name, level) for name in formats.NAMES))
        for level in formats.FRONT_END_LEVELS
    ]  # fmt: skip
    return table(("zeros [%]", *formats.NAMES.values()), rows)


def by_example() -> str:
    rows = [
        (gemm, array, bar.cycles, bar.folds, percent(bar.utilisation))
        for gemm in examples.GEMMS
        for array, bar in examples.results(gemm).items()
    ]
    return table(("GEMM", "array", "cycles", "folds", "utilisation [%]"), rows)


def by_dataflow() -> str:
    rows = []
    for op in SUITE:
        for flow, shown in dataflows.FLOWS.items():
            costs = dataflows.costs(op, flow)
            parts = [round(fmean(getattr(one, part) for one in costs)) for part in dataflows.PARTS]
            shares = [percent(fmean(getattr(one, share) for one in costs)) for share in SHARES]
            rows.append((label(op), shown, *parts, *shares))
    return table(("M-N-K", "dataflow", *dataflows.PARTS, "utilisation [%]", "compute eff. [%]", "overall eff. [%]"), rows)


def by_feature() -> str:
    rows = []
    for workload in features.WORKLOADS:
        for feature in features.FEATURES:
            bar = features.metrics(workload, feature)
            shares = [percent(getattr(bar, share)) for share in SHARES]
            rows.append((workload, feature, bar.loading, bar.streaming, bar.add, *shares))
    return table(
        ("GEMM", "array", "loading", "streaming", "add", "utilisation [%]", "compute eff. [%]", "overall eff. [%]"), rows
    )  # fmt: skip


def dense() -> str:
    shapes: tuple[Shapes, ...] = (SQUARE, K_ALONG_COLUMNS, K_ALONG_ROWS, ALL_SHAPES)
    rows: list[tuple[object, ...]] = []
    for op in SUITE:
        ours = cost(op)
        speedups = [tpu_cycles(op, which) / ours.cycles for which in shapes]
        shares = [op.macs / (PES * tpu_cycles(op, which)) for which in shapes]
        stays = {"a": "MK", "b": "KN"}[ours.stationary]
        rows.append((label(op), stays, ours.cycles, *speedups, percent(ours.overall_efficiency), *map(percent, shares)))
    for name, mean in (("geometric mean", geometric_mean), ("arithmetic mean", fmean)):
        over = [mean([tpu_cycles(op, which) / cost(op).cycles for op in SUITE]) for which in shapes]
        own = [percent(mean([cost(op).overall_efficiency for op in SUITE]))]
        own += [percent(mean([op.macs / (PES * tpu_cycles(op, which)) for op in SUITE])) for which in shapes]
        rows.append((name, "", "", *over, *own))
    others = ("K along columns", "K along rows", "all five")
    head = ("speedup over 128x128", *others, "efficiency [%]", "TPU 128x128", *others)
    return table(("M-N-K", "stays", "cycles", *head), rows)


def sparse(what: Callable[[MatMul, tuple[float, float]], float]) -> str:
    rows: list[tuple[object, ...]] = [
        (label(op), *(what(op, pair) for pair in SPARSITIES), fmean(what(op, pair) for pair in SPARSITIES)) for op in SUITE
    ]  # fmt: skip
    for name, mean in (("geometric mean", geometric_mean), ("arithmetic mean", fmean)):
        columns = [mean([what(op, pair) for op in SUITE]) for pair in SPARSITIES]
        rows.append((name, *columns, mean([what(op, pair) for op in SUITE for pair in SPARSITIES])))
    return table(("M-N-K", *(f"MK{100 * left:.0f} KN{100 * right:.0f}" for left, right in SPARSITIES), "mean"), rows)


def against_rivals() -> str:
    speedups = {name: rivals.speedups(name) for name in rivals.ARRAYS}
    rows: list[tuple[object, ...]] = [
        (label(op), rivals.sigma_cycles(op), *(values[label(op)] for values in speedups.values())) for op in SUITE
    ]  # fmt: skip
    for name, mean in (("geometric mean", geometric_mean), ("arithmetic mean", fmean)):
        rows.append((name, "", *(mean(list(values.values())) for values in speedups.values())))
    left = [geometric_mean(rivals.speedups(name, loading="left out").values()) for name in speedups]
    rows.append(("geometric mean, loading as their papers count", "", *left))
    return table(("M-N-K", "SIGMA's cycles", *speedups), rows)


def _variant(array: Sigma, cases: Sequence[Case]) -> tuple[float, float]:
    """Geometric mean of speedups over 128x128 and mean efficiency."""
    costs = []
    for op, pair in cases:
        a, b = operands(op, pair)
        costs.append((op, array.cost(op, a=a, b=b)))
    return geometric_mean(tpu_cycles(op) / one.cycles for op, one in costs), fmean(one.overall_efficiency for _, one in costs)


def assumption_table() -> str:
    """Speedup and efficiency with every alternative of an assumption, and against other baselines."""
    array = SIGMA.array
    assert isinstance(array, Sigma)
    arrays = {("as built", "with step ii, the default of the array"): array}
    for one in assumptions_of(array):
        base = replace(array, streaming="limited") if one.name == "drain" else array  # what else does it change
        arrays |= {(f"{one.name}={other}", one.meaning): replace(base, **{one.name: other}) for other in one.alternatives}
    for side, stays in (("a", "MK"), ("b", "KN")):
        arrays[f"stationary={side}", f"{stays} always stays"] = replace(array, stationary=side)  # type: ignore[arg-type]
    for words in (64, 256):
        arrays[f"bandwidth={words}", "elements per cycle while loading"] = replace(array, bandwidth=words)
    rows: list[tuple[object, ...]] = []
    for names, changed in arrays.items():
        (over, share), (sparse_over, sparse_share) = (_variant(changed, cases) for cases in (DENSE_CASES, SPARSE_CASES))
        rows.append((*names, over, percent(share), sparse_over, percent(sparse_share)))

    def add_row(name: tuple[str, str], cycles: Callable[[MatMul], int], ours: Callable[[MatMul, tuple[float, float]], int]) -> None:
        over = [geometric_mean(cycles(op) / ours(op, pair) for op, pair in cases) for cases in (DENSE_CASES, SPARSE_CASES)]
        rows.append((*name, over[0], "", over[1], ""))

    def own(op: MatMul, pair: tuple[float, float]) -> int:
        return cost(op, pair).cycles

    add_row(("without step ii", "stationary values stay though nothing meets them: judged, and in all rows below"), tpu_cycles, own)
    best = "best of 128x128, 256x64, 512x32"
    add_row(("TPU", f"{best}, K along the columns of the last two"), lambda op: tpu_cycles(op, K_ALONG_COLUMNS), own)
    add_row(("TPU", f"{best}, K along the rows of the last two"), lambda op: tpu_cycles(op, K_ALONG_ROWS), own)
    add_row(("TPU", "best of all five"), lambda op: tpu_cycles(op, ALL_SHAPES), own)
    add_row(("TPU", "KN always stays"), lambda op: tpu_cycles(op, flows=("ws",)), own)
    forms: dict[Counting, str] = {
        "no loading": "loading of a fold takes no time",
        "used rows": "a fold loads the rows in use alone",
        "own rows": "a fold loads and adds along the rows of its shape, 32 to 128",
        "SCALE-Sim 2018": "a fold by SCALE-Sim's form of 2018, over the rows and columns in use",
        "SCALE-Sim 2020": "a fold by SCALE-Sim's form of 2020, the default of our array",
    }
    for counting, meaning in forms.items():
        add_row(("TPU", meaning), lambda op, counting=counting: tpu_cycles(op, counting=counting), own)
    return table(("", "what it means", "dense speedup", "dense efficiency [%]", "sparse speedup", "sparse efficiency [%]"), rows)


def by_model() -> str:
    """All products of a training step with the zeros of a pruned run."""
    cells = []
    for model, phase, products in training.rows():
        stays = ", ".join(f"{letter} {100 * part:.0f} %" for letter, part in products.stays.items())
        cycles = [pair for name, pair in training.on_masks(model).items() if phase in ("all", name.value)]
        exact = sum(pair[0] for pair in cycles) / sum(pair[1] for pair in cycles) - 1
        shares = f"{100 * products.utilisation:.0f} %", f"{100 * products.efficiency:.0f} %", f"{100 * exact:+.1f} %"
        cells.append((model, phase, products.speedup, products.dense_speedup, stays, *shares))
    head = ("model", "products", "speedup over the TPU", "without zeros", "stays (share of MACs)", "utilisation", "efficiency")
    return table((*head, "on masks"), cells)


def every_zoo_model() -> str:
    cells = []
    for model in zoo.names():
        products = every_model.summary(model)
        by_phase = [part.speedup if part.products else None for part in map(products.of, training.PRODUCTS)]
        shares = f"{100 * products.utilisation:.0f} %", f"{100 * products.efficiency:.0f} %"
        cells.append((model, zoo.load(model).batch, *by_phase, products.speedup, products.dense_speedup, *shares))
    return table(("model", "batch", "forward", "dX", "dW", "all", "without zeros", "utilisation", "efficiency"), cells)


CONFLICTS = """Excluded by the paper's own figures:

- 5x performance per area with 37.7 % more area needs 6.9x performance; 5.7 and about 6 are printed.
- FAN's EDP 34 % below ART's: both take log2 N cycles, so their EDPs differ as their powers, 1.31 and 1.86 of the chain's, which is
  29.6 %. Both printed EDPs (45 and 34 %) would follow from 23 % more power than the chain's, where 31 % is printed.

What does not fit together, but depends on what is not printed or is rounded, and is judged like everything else:

- 3.2x TFLOPS per watt follows from the speedups of Sec. VI-C (Sec. V). 5.7 to 6 at twice the power make 2.85 to 3.0; it would need
  1.8 to 1.9 times the power.
- 10.8 TFLOPS are 66 % of the 16.4 that 16384 multipliers have at 500 MHz; the average efficiencies printed are 82 and 40 %. No
  clock is printed: at about 400 MHz they would be 82 %.
- A K of 32 fits the columns of the 512x32 TPU; its 512 rows read an element each in every cycle (both Sec. VI-C). In an array that
  keeps one operand K lies along the side that reads the other, which would be the rows. The first is followed here: the gain that
  the text sees on 2048-4096-32 is there with it alone.
- The sparse speedup is 5.7 in the abstract and the conclusion, about 6 in Sec. VI-C.
- 82 % over 59 % average efficiency is 1.39x; the average speedup printed beside it is 2x. Both can be of the same GEMMs, if the TPU
  is far slower on a few of them, as it is on 1024-16-500000 here.
- Fig. 7 calls 36548 K; in the suite's 1632-36548-1024 (M-N-K) it is N.
"""


def sections(rows: Sequence[Row]) -> Iterator[Section]:
    yield Section("Where the paper contradicts itself", "", CONFLICTS)
    yield Section(
        "What is assumed, and what it is worth",
        "Geometric means of speedups over TPU 128x128 (the better stationary operand, by Table II), arithmetic means of overall "
        "efficiency. "
        "The paper allows SIGMA more than 128 words per cycle while it streams, not how much: `wide` is a whole vector.",
        assumption_table(),
    )
    yield Section(
        "Examples (Fig. 4)",
        "A systolic array of 4x4 and a Flex-DPE of 16, both with KN stationary and 4 words per cycle. Where the zeros of the "
        "sparse one lie is assumed.",
        by_example(),
    )
    yield Section("Metadata (Fig. 7)", "Bits for each element of a 1632 x 36548 matrix, counted on masks.", metadata())
    yield Section(
        "",
        f"Front end: cycles to turn the same matrix into the controller's bitmap with {formats.LANES} lanes "
        f"(`hardware/formats/matrices.py`; "
        "not in the paper). An `Accelerator` charges the traffic of a format and not these cycles, since the front end works while "
        "the DMA engine does.",
        front_end(),
    )
    yield Section("Dataflows (Fig. 10)", "Cycles and shares, mean of the six pairs of sparsity.", by_dataflow())
    yield Section(
        "Features (Fig. 11)",
        "Dense regular is 2048-2048-2048 (Sec. III-A; the figure prints no shape), the others 1024-16-500000; sparse: MK 80 %, "
        "KN 30 %.",
        by_feature(),
    )
    yield Section(
        "Dense (Fig. 12a)",
        "Speedups of SIGMA over TPU 128x128, and over the best of 128x128, 256x64 and 512x32; then efficiencies.",
        dense(),
    )
    yield Section(
        "Sparse (Fig. 12b)",
        "Speedup over TPU 128x128:",
        sparse(lambda op, pair: tpu_cycles(op) / cost(op, pair).cycles),
    )
    yield Section("", "Overall efficiency [%]:", sparse(lambda op, pair: 100 * cost(op, pair).overall_efficiency))
    yield Section(
        "Against other sparse accelerators (Fig. 14)",
        "Speedup of SIGMA; below 1 the other is faster. One operand 80 % sparse, one 30 %, the best of four for each design. What "
        "a design keeps in its elements is loaded over 128 words per cycle first, as Table II counts it.",
        against_rivals(),
    )
    yield Section(
        "Training steps, beyond the paper",
        "All products of a step with the zeros of a real run of gradual pruning on stand-in data; the last column is what exact "
        "masks of a few layers change.",
        by_model(),
    )
    yield Section(
        "Every model of the zoo, beyond the paper",
        "The same with 80 % of the weights and 30 % of the activations zero (Sec. VI-A: 10 to 50 %, of which this is the middle), "
        "gradients dense: speedup over the TPU by product, and of all with and without zeros.",
        every_zoo_model(),
    )
    yield from ledger_section(rows)
    yield from changes_section("sigma", rows)
