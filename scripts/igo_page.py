"""Writes docs/igo.md: IGO's figures as tables with both baselines, what each assumption is worth, the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from paper_figures import illustrated

from trainyard.papers import bench
from trainyard.papers.igo import beyond, gpu, longest, performance, sweeps
from trainyard.papers.igo.assumptions import METRIC, assumption_effects
from trainyard.papers.igo.baselines import CASES, LARGE, TILES, Case, text
from trainyard.papers.igo.measuring import Networks, each, faster, limits, mean, ran, reductions
from trainyard.papers.igo.networks import ABBREVIATIONS, NETWORKS, Npu
from trainyard.papers.igo.partitioning import TWO_CORES, by_cost, by_ideal, by_knn, evaluation
from trainyard.papers.igo.performance import JOINT, said
from trainyard.papers.ledger import Row
from trainyard.papers.pages import number, page_of, paper_figure, summary

PAGE = Path(__file__).parents[1] / "docs" / "igo.md"
HEAD = """# Interleaved gradient order

J. Kim, S. Na, S. Lee, S. Lee, J. Huh: Improving Data Reuse in NPU On-chip Memory with Interleaved Gradient Order for DNN Training.
MICRO 2023.

## What it is

A layer's backward pass is two products, dX = dY W^T and dW = X^T dY, and both read dY. One after the other, they bring dY from
DRAM twice. The interleaved gradient order computes them in turn, tile by tile, so that a tile of dY in the scratchpad serves
both. Two further steps follow: the loops are rearranged so that more of what is needed again stays on the chip (dXmajor,
dWmajor), and a layer is divided along one dimension so that its parts fit. It is an order of work: the hardware stays as it is.

Written by `make pages`; every number below is measured by `scripts/igo_page.py`.

    trainyard reproduce igo                    the ledger; --html page.html draws the figures, --figure 12 takes some of it
    trainyard explain igo                      every tile operation of a small layer in each order; explain igo 4x2x2:5 is another
    trainyard whatif igo                       what each assumption is worth
    trainyard run resnet50 --batch 8 --on 'npu(order=cost)'
    trainyard compare resnet50 --on 'npu,npu(order=interleaved),npu(order=cost,partition=cost)'

## What is modelled

- The orders (`mapping/gradient_order/tile_streams.py`, `gradient_order.py`): sequential, interleaved, dXmajor, dWmajor, and the
bound of Sec. 3.3,
  as streams of tile operations through a scratchpad of which half holds tiles and half fills: misses, results and unfinished sums
  that leave and come back, byte for byte, the least recent tile or the one needed last leaving; compute and DRAM overlapped step by
  step. `gradient_execution.py` computes dX and dW in each order and equals torch.
- Algorithm 1 as printed (`order=paper`), and the fastest order by cost (`order=cost`).
- Partitions along M, N and K (`partition=`), over time on one core, or on up to eight that share scratchpad and DRAM, duplicated
  operands and added partial sums counted; chosen by nearest neighbours (`mapping/gradient_order/partition.py`), by cost, or given.
- It is a mapping: any array behind a scratchpad can have it, `npu(array=tensordash,order=interleaved)`.

## Two baselines

What fusing dX and dW wins depends on what it is held against before all else, and the paper does not print its tiles. So there are
always two: a *fixed tall tile*, one array wide and deep and as high as the five tiles of a fused step allow, which is judged
against the paper; and tiles *searched* for each product, which is what a compiler would do. Means are arithmetic; the paper names
none.

Three things were known to bring an earlier model near the paper when they were chosen: that the fixed tile is tall, that elements
have 4 bytes (torch's default), that recommenders take thousands of samples (Fig. 5's share of dlrm). The rest follows from a rule
or a sentence and not from results: the tile's height (the rule above), im2col written out (Sec. 6.1), two parts, the classifier's
settings (scikit-learn's defaults). What other choices give is below.

"""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def cell(value: object) -> str:
    shown = f"{value:.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
    return shown.replace("|", "\\|")


def by_network(rows: Mapping[str, Networks], printed: Mapping[str, float] | None = None, digits: int = 1) -> str:
    """A row of each name, a column of each network, the mean, and the paper's mean where there is one."""
    head = ["", *ABBREVIATIONS, "mean", *(["paper"] if printed is not None else [])]
    return table(
        head,
        (
            [name, *(f"{value:.{digits}f}" for value in values.values()), f"{mean(values):.{digits}f}"]
            + ([] if printed is None else [f"{printed[name]:g}" if name in printed else ""])
            for name, values in rows.items()
        ),
    )


def machines() -> str:
    return table(
        ("NPU", "baseline", "machine"),
        ((npu, tile, f"`{text(case.machine(tile))}`") for npu, case in CASES.items() for tile in TILES),
    )


def networks() -> str:
    return table(("", *ABBREVIATIONS), ([npu, *(NETWORKS[name][npu] for name in ABBREVIATIONS)] for npu in CASES))


def fusing(npu: Npu) -> str:
    case = CASES[npu]
    rows = {
        "Interleaving": reductions(case, order="interleaved"),
        "+Rearrangement, Algorithm 1": reductions(case, order="paper"),
        "+Rearrangement, best of three": performance.ideal(case),
        "+DataPartitioning, neighbours": by_knn(case),
        "+DataPartitioning, cheapest": by_ideal(case),
        "fastest order and partition": by_cost(case),
        "no order can pass": limits(case),
        "searched: Interleaving": reductions(case, "searched", order="interleaved"),
        "searched: Algorithm 1": reductions(case, "searched", order="paper"),
        "searched: fastest order": reductions(case, "searched", order="cost"),
        "searched: order, tile, partition": reductions(case, "searched", **JOINT),
    }
    names = ("interleaving", "rearrangement", "rearrangement_ideal", "all")
    printed = dict(zip(rows, (said(f"{npu}.{name}") for name in names), strict=False))
    return by_network(rows, printed)


def shares() -> str:
    rows = {
        f"{'reads' if reads else 'all traffic'}, {tile}": performance.shares(LARGE, tile, reads)
        for reads in (False, True)
        for tile in TILES
    }
    return by_network(rows, {"all traffic, tall": said("dy_share.all_traffic"), "reads, tall": said("dy_share.reads")})


def potential() -> str:
    rows: dict[str, Networks] = {}
    for npu, case in CASES.items():
        rows[f"{npu}, tall"] = each(partial(performance.potential, case))
        rows[f"{npu}, tall: at most"] = each(partial(performance.bound, case))
        rows[f"{npu}, searched"] = each(partial(performance.potential, case, tile="searched"))
    return by_network(rows, {f"{npu}, tall": said(f"potential.{npu}") for npu in CASES}, 2)


def sweep(cases: Mapping[str, Case], claims: Mapping[str, str]) -> str:
    rows: dict[str, Networks] = {}
    for name, case in cases.items():
        rows[f"{name}, neighbours"] = by_knn(case)
        rows[f"{name}, cheapest"] = by_ideal(case)
        rows[f"{name}, searched"] = sweeps.searched(case)
    return by_network(rows, {f"{name}, neighbours": said(claim) for name, claim in claims.items()})


def by_layer() -> str:
    found = {tile: {bar.layer.name: bar for bar in longest.bars(tile)} for tile in TILES}
    rows = []
    for name, bar in sorted(found["tall"].items(), key=lambda one: one[1].shallow):
        op, other = bar.layer.op, found["searched"][name]
        size = f"{op.M}, {op.N}, {op.K}" + (f" x {op.count}" if op.count > 1 else "")
        kind = "shallow" if bar.shallow else "deep"
        rows.append((name, size, kind, *(f"{value:.2f}" for one in (bar, other) for value in (one.traffic, one.time))))
    return table(("layer", "M, N, K", "", "traffic", "time", "searched: traffic", "searched: time"), rows)


def distances(npu: Npu) -> str:
    rows = []
    for network in ABBREVIATIONS:
        before, after, least = beyond.totals(npu, network)
        found = beyond.distances(npu, network)
        farthest = max(found, key=lambda one: one.times)
        kinds = ", ".join(f"{kind} {count}" for kind, count in beyond.regimes(npu, network).items())
        shorter = 100 * (1 - ran(CASES[npu], network, "searched", **JOINT).cycles / ran(CASES[npu], network, "searched").cycles)
        row = (
            network,
            shorter,
            f"{before / least:.2f}",
            f"{after / least:.2f}",
            f"{farthest.layer.name} {farthest.times:.2f}",
            kinds,
        )
        rows.append(row)
    return table(
        ("network", "step shorter [%]", "baseline over least bytes", "together over least", "farthest layer", "what stays"), rows
    )


def every_distance(npu: Npu) -> str:
    rows = [
        (
            one.layer.name, f"{one.layer.op.M}, {one.layer.op.N}, {one.layer.op.K}", one.layer.op.count, one.layer.repeats,
            one.regime, f"{one.baseline / one.least:.2f}", f"{one.times:.2f}",
        )
        for network in ABBREVIATIONS
        for one in beyond.distances(npu, network)
    ]  # fmt: skip
    return table(("layer", "M, N, K", "count", "repeats", "what stays", "baseline over least", "together over least"), rows)


def links(npu: Npu) -> str:
    rows = []
    for network in ABBREVIATIONS:
        found = beyond.links(npu, network)
        reasons = "; ".join(f"{why} ({count})" for why, count in [*found.reasons.items()][:4])
        rows.append((network, found.every, found.fusing, found.chosen, f"{found.saved_bytes / 1e6:.1f}", reasons))
    return table(("network", "links", "can be joined", "joined", "MB saved", "what keeps others apart, most often"), rows)


def assumptions() -> str:
    rows = (
        (one.name, one.value, one.alternative, one.before, one.after if not one.error else one.error, one.after - one.before)
        for one in assumption_effects()
    )
    return table(("assumption", "value", "alternative", "before", "after", "points"), rows)


def on_gpu() -> str:
    rows = {variant: gpu.reductions(variant) for variant in gpu.VARIANTS.values()}
    rows |= {f"{variant}, against the library": gpu.reductions(variant, gpu.LIBRARY) for variant in rows}
    rows["ours, against the library"] = gpu.reductions(gpu.OURS, gpu.LIBRARY)
    head = ("", *next(iter(rows.values())), "mean", "paper")
    printed = {variant: f"{said(f'gpu.{claim}'):g}" for claim, variant in gpu.VARIANTS.items()}
    return table(head, ([name, *values.values(), mean(values), printed.get(name, "")] for name, values in rows.items()))


def the_ledger(rows: Sequence[Row]) -> str:
    cells = [
        (row.id.partition(".")[2], paper_figure(row), number(row.ours), row.verdict, row.claim.unit, row.note) for row in rows
    ]  # fmt: skip
    return table(("claim", "paper", "ours", "verdict", "unit", "note"), cells)


def outcome(rows: Sequence[Row]) -> str:
    """The page in two sentences."""
    tall = " and ".join(f"{mean(by_knn(case)):.1f} % ({npu} NPU; paper {said(f'{npu}.all'):g})" for npu, case in CASES.items())
    searched = " and ".join(f"{mean(reductions(case, 'searched', **JOINT)):.1f} %" for case in CASES.values())
    return (
        f"What comes out: {summary(rows)}. The paper's three steps shorten a training step by {tall} on the tall tile; order, tile "
        f"and partition searched together, by {searched} on searched tiles."
    )


def sections(rows: Sequence[Row]) -> Iterator[tuple[str, str, str]]:
    """Title, text, table."""
    fast = ", ".join(f"{mean(faster(case)):.2f} times on the {npu} NPU" for npu, case in CASES.items())
    yield "", outcome(rows), ""
    yield "", f"The searched baseline is faster than the tall one: {fast}.", machines()
    yield (
        "Networks (Table 4)",
        "Models of the zoo by the paper's abbreviations; batch 4 and 8, recommenders 256 times that.",
        networks(),
    )
    yield "What dY is of the traffic (Fig. 5)", "Per cent, gradients of layers with weights, large NPU, sequential.", shares()
    yield (
        "dY for nothing the second time (Fig. 6)",
        "Speedup of a step. At most: by the bytes of the second reading and the share of the backward pass, 1 / (1 - b s).",
        potential(),
    )
    for npu in CASES:
        yield (
            f"Three steps on the {npu} NPU (Fig. 12, Sec. 4.3)",
            "Per cent that a training step is shorter, against the baseline with the same kind of tile.",
            fusing(npu),
        )
    yield (
        "The longest layers (Fig. 13)",
        f"Large NPU: +Rearrangement over the baseline; searched together over the searched baseline. Mean: {longest.told()}.",
        by_layer(),
    )
    yield (
        "Partition by neighbours (Sec. 5)",
        f"Two cores of the large NPU: {evaluation(TWO_CORES)}. Paper: accuracy {said('knn.accuracy'):g} %.",
        "",
    )
    yield (
        "Cores (Fig. 14)", "", sweep({sweeps.counted(n): sweeps.with_cores(n) for n in sweeps.CORES},
                                     {sweeps.counted(n): f"cores.{n}" for n in sweeps.CORES}),
    )  # fmt: skip
    yield (
        "Bandwidth (Fig. 15)", "", sweep({name: sweeps.with_bandwidth(share) for name, share in sweeps.BANDWIDTHS.items()},
                                         {name: f"bandwidth.{name}" for name in sweeps.BANDWIDTHS}),
    )  # fmt: skip
    yield (
        "Batch (Fig. 16)", "", sweep({f"batch {n}": sweeps.with_batch(n) for n in sweeps.BATCHES},
                                     {f"batch {n}": f"batch.{n}" for n in sweeps.BATCHES}),
    )  # fmt: skip
    if gpu.seconds():
        yield (
            "GPU (Fig. 17)",
            f"Per cent that the backward pass is shorter, measured on {gpu.device()}; the paper has an RTX 3090. Without more "
            "words: against the better of two kernels of the same make and one that does dX, then dW (the paper's reference). "
            f"Library: the better of the cuBLAS pair and that one kernel. {gpu.told_of_ours()}. Single layers: [gpu.md](gpu.md).",
            on_gpu(),
        )
    yield "What is assumed, and what it is worth", f"In {METRIC}.", assumptions()
    for npu in CASES:
        yield (
            f"Beyond the paper: searched together, {npu} NPU",
            "Order, tile and partition of each layer's gradients searched together, against a sequential baseline with searched "
            "tiles; bytes over the least that any order can move (`mapping/gradient_order/bound.py`), and what of the "
            "layers can stay in "
            "the scratchpad: where nothing stays, fusing wins nothing to first order.",
            distances(npu),
        )
    for npu in CASES:
        yield (
            f"Beyond the paper: across layers, {npu} NPU",
            "dX of a layer goes on into the gradients of the layer below without leaving the scratchpad, where only ops on single "
            "elements stand between (`mapping/gradient_order/links.py`, `gradient_chain.py`).",
            links(npu),
        )
    yield "Ledger", summary(rows) + ".", the_ledger(rows)
    for npu in CASES:
        yield f"Every layer, {npu} NPU", "Bytes of the gradients over the least possible.", every_distance(npu)


def main() -> None:
    rows = bench.walk("igo")
    PAGE.write_text(illustrated("igo", page_of(HEAD, sections(rows))), encoding="utf-8")
    print(f"wrote {PAGE.name}: {len(rows)} claims, {summary(rows)}")


if __name__ == "__main__":
    main()
