"""IGO's page: its figures as tables with both baselines, the effect of each assumption, the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import paper_pages
from paper_pages import Section, assumption_effects, ledger_section
from trainyard.papers.igo import beyond, gpu, longest, performance, sweeps
from trainyard.papers.igo.assumptions import METRIC
from trainyard.papers.igo.baselines import CASES, LARGE, TILES, Case, stated, text
from trainyard.papers.igo.measuring import Networks, by_network, faster, limits, mean, reductions, step_cost
from trainyard.papers.igo.networks import ABBREVIATIONS, NETWORKS, Npu
from trainyard.papers.igo.partitioning import TWO_CORES, by_cost, by_ideal, by_knn, evaluation
from trainyard.papers.igo.performance import JOINT
from trainyard.papers.igo.reading_page import described
from trainyard.papers.igo.reading_search import stored as stored_search
from trainyard.papers.ledger import Row
from trainyard.papers.pages import summary

table = partial(paper_pages.table, digits=1)


def network_table(rows: Mapping[str, Networks], printed: Mapping[str, float] | None = None, digits: int = 1) -> str:
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
    printed = dict(zip(rows, (stated(f"{npu}.{name}") for name in names), strict=False))
    return network_table(rows, printed)


def shares() -> str:
    rows = {
        f"{'reads' if reads else 'all traffic'}, {tile}": performance.shares(LARGE, tile, reads)
        for reads in (False, True)
        for tile in TILES
    }
    return network_table(rows, {"all traffic, tall": stated("dy_share.all_traffic"), "reads, tall": stated("dy_share.reads")})


def potential() -> str:
    rows: dict[str, Networks] = {}
    for npu, case in CASES.items():
        rows[f"{npu}, tall"] = by_network(partial(performance.potential, case))
        rows[f"{npu}, tall: at most"] = by_network(partial(performance.bound, case))
        rows[f"{npu}, searched"] = by_network(partial(performance.potential, case, tile="searched"))
    return network_table(rows, {f"{npu}, tall": stated(f"potential.{npu}") for npu in CASES}, 2)


def sweep(cases: Mapping[str, Case], claims: Mapping[str, str]) -> str:
    rows: dict[str, Networks] = {}
    for name, case in cases.items():
        rows[f"{name}, neighbours"] = by_knn(case)
        rows[f"{name}, cheapest"] = by_ideal(case)
        rows[f"{name}, searched"] = sweeps.searched(case)
    return network_table(rows, {f"{name}, neighbours": stated(claim) for name, claim in claims.items()})


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
        sequential, joint = (step_cost(CASES[npu], network, "searched", **order).cycles for order in ({}, JOINT))
        row = (
            network,
            100 * (1 - joint / sequential),
            f"{before / least:.2f}",
            f"{after / least:.2f}",
            f"{farthest.layer.name} {farthest.times:.2f}",
            kinds,
        )
        rows.append(row)
    return table(
        ("network", "step shorter [%]", "baseline over least bytes", "together over least", "farthest layer", "what stays"), rows
    )


def outcomes(npu: Npu) -> str:
    """IGO's rules, the joint search and the bound, all against the searched baseline."""
    found = beyond.outcomes(npu)
    rows = [(name, f"{one.milliseconds:.3g}", one.rules, one.joint, one.bound) for name, one in found.items()]
    means = [mean({name: getattr(one, field) for name, one in found.items()}) for field in ("rules", "joint", "bound")]
    head = ("network", "searched baseline [ms]", "IGO's rules [%]", "searched together [%]", "no order can pass [%]")
    return table(head, [*rows, ("mean", "", *means)])


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
        for one in assumption_effects("igo")
    )
    return table(("assumption", "value", "alternative", "before", "after", "points"), rows)


def on_gpu() -> str:
    rows = {variant: gpu.reductions(variant) for variant in gpu.VARIANTS.values()}
    rows |= {f"{variant}, against the library": gpu.reductions(variant, gpu.LIBRARY) for variant in rows}
    rows["ours, against the library"] = gpu.reductions(gpu.OURS, gpu.LIBRARY)
    head = ("", *next(iter(rows.values())), "mean", "paper")
    printed = {variant: f"{stated(f'gpu.{claim}'):g}" for claim, variant in gpu.VARIANTS.items()}
    return table(head, ([name, *values.values(), mean(values), printed.get(name, "")] for name, values in rows.items()))


def search() -> str:
    """What the search over readings found, in three sentences."""
    result = stored_search()
    every = sum(map(len, result["claims"].values()))
    best, nearest, ours = result["best"][0], result["nearest_defensible"][0], result["ours"]
    return (
        f"{result['readings']:,} readings of what the paper leaves open were searched jointly: [igo_readings.md](igo_readings.md). "
        f"The best reaches {best['reached']} of {every} claims ({described(best)}), the best that contradicts no sentence and no "
        f"bar of Fig. 5 reaches {nearest['reached']} ({described(nearest)}), the ledger's own {ours['reached']}. Misses that the "
        "search was held against are `open` in the ledger."
    )


def outcome(rows: Sequence[Row]) -> str:
    """The page in two sentences."""
    tall = " and ".join(f"{mean(by_knn(case)):.1f} % ({npu} NPU; paper {stated(f'{npu}.all'):g})" for npu, case in CASES.items())
    searched = " and ".join(f"{mean(reductions(case, 'searched', **JOINT)):.1f} %" for case in CASES.values())
    return (
        f"What comes out: {summary(rows)}. The paper's three steps shorten a training step by {tall} on the tall tile; order, tile "
        f"and partition searched together, by {searched} on searched tiles."
    )


def sections(rows: Sequence[Row]) -> Iterator[Section]:
    fast = ", ".join(f"{mean(faster(case)):.2f} times on the {npu} NPU" for npu, case in CASES.items())
    yield Section("", outcome(rows), "")
    yield Section("", f"The searched baseline is faster than the tall one: {fast}.", machines())
    yield Section(
        "Networks (Table 4)",
        "Models of the zoo by the paper's abbreviations; batch 4 and 8, recommenders 256 times that.",
        networks(),
    )
    yield Section(
        "What dY is of the traffic (Fig. 5)", "Per cent, gradients of layers with weights, large NPU, sequential.", shares()
    )
    yield Section(
        "dY for nothing the second time (Fig. 6)",
        "Speedup of a step. At most: by the bytes of the second reading and the share of the backward pass, 1 / (1 - b s).",
        potential(),
    )
    for npu in CASES:
        yield Section(
            f"Three steps on the {npu} NPU (Fig. 12, Sec. 4.3)",
            "Per cent that a training step is shorter, against the baseline with the same kind of tile.",
            fusing(npu),
        )
    yield Section(
        "The longest layers (Fig. 13)",
        f"Large NPU: +Rearrangement over the baseline; searched together over the searched baseline. Mean: {longest.means_text()}.",
        by_layer(),
    )
    yield Section(
        "Partition by neighbours (Sec. 5)",
        f"Two cores of the large NPU: {evaluation(TWO_CORES)}. Paper: accuracy {stated('knn.accuracy'):g} %.",
        "",
    )
    yield Section(
        "Cores (Fig. 14)",
        "",
        sweep(
            {sweeps.counted(n): sweeps.with_cores(n) for n in sweeps.CORES}, {sweeps.counted(n): f"cores.{n}" for n in sweeps.CORES}
        ),
    )
    yield Section(
        "Bandwidth (Fig. 15)",
        "",
        sweep(
            {name: sweeps.with_bandwidth(share) for name, share in sweeps.BANDWIDTHS.items()},
            {name: f"bandwidth.{name}" for name in sweeps.BANDWIDTHS},
        ),
    )
    yield Section(
        "Batch (Fig. 16)",
        "",
        sweep({f"batch {n}": sweeps.with_batch(n) for n in sweeps.BATCHES}, {f"batch {n}": f"batch.{n}" for n in sweeps.BATCHES}),
    )
    if gpu.seconds():
        yield Section(
            "GPU (Fig. 17)",
            f"Per cent that the backward pass is shorter, measured on {gpu.device()}; the paper has an RTX 3090. Without more "
            "words: against the better of two kernels of the same make and one that does dX, then dW (the paper's reference). "
            f"Library: the better of the cuBLAS pair and that one kernel. {gpu.interleave_rule()} Single layers: [gpu.md](gpu.md).",
            on_gpu(),
        )
    yield Section("Readings, searched jointly", search(), "")
    yield Section("What is assumed, and what it is worth", f"In {METRIC}.", assumptions())
    for npu in CASES:
        yield Section(
            f"Beyond the paper: against the bound, {npu} NPU",
            "Per cent that a training step is shorter than with sequential gradients on searched tiles. IGO's rules: Algorithm 1 "
            "and nearest neighbours, with searched tiles. Searched together: order, tile and partition of each layer, or chains of "
            "two layers, whichever is shorter; dX and dW may also stay apart, each with tiles of its own, so that it never loses. "
            "No order can pass: the array without tiles, or the least bytes of each layer (`mapping/gradient_order/bound.py`).",
            outcomes(npu),
        )
    for npu in CASES:
        yield Section(
            f"Beyond the paper: searched together, {npu} NPU",
            "Order, tile and partition of each layer's gradients searched together, against a sequential baseline with searched "
            "tiles; bytes over the least that any order can move (`mapping/gradient_order/bound.py`), and what of the "
            "layers can stay in "
            "the scratchpad: where nothing stays, fusing wins nothing to first order.",
            distances(npu),
        )
    for npu in CASES:
        yield Section(
            f"Beyond the paper: across layers, {npu} NPU",
            "dX of a layer goes on into the gradients of the layer below without leaving the scratchpad, where only ops on single "
            "elements stand between (`mapping/gradient_order/links.py`, `chain.py`).",
            links(npu),
        )
    yield from ledger_section(rows)
    for npu in CASES:
        yield Section(f"Every layer, {npu} NPU", "Bytes of the gradients over the least possible.", every_distance(npu))
