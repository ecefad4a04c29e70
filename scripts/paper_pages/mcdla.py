"""MC-DLA's page and its drawings: figures as tables, the effect of each assumption, the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import mcdla_scale_out as scale

from paper_pages import Section, assumption_effects, changes_section, effects_table, ledger_section, table
from trainyard.hardware.topology.rings import rings
from trainyard.machines.presets.mcdla import DC_DLA, DESIGNS, HC_DLA, MCDLA_B, MCDLA_S
from trainyard.papers.ledger import Row, number, paper_figure
from trainyard.papers.mcdla import breakdown, generations, performance, power, printed, scaling, sensitivity, wiring
from trainyard.papers.mcdla.assumptions import METRIC
from trainyard.papers.mcdla.measuring import BATCH, CNNS, NETWORKS, PARALLEL, Networks, Parallel, mean_of_both, step_times
from trainyard.papers.mcdla.plots import NAMES
from trainyard.papers.mcdla.printed import harmonic, stated
from trainyard.papers.pages import summary
from trainyard.report.topology import draw
from trainyard.systems.node.systems import Node

DOCS = Path(__file__).parents[2] / "docs"
# fmt: off
DRAWN: Mapping[str, tuple[str, Node]] = {
    "mcdla-cube-mesh": ("Fig. 5, DC-DLA: a cube mesh, host memory behind PCIe switches", DC_DLA),
    "mcdla-host":      ("HC-DLA: half of the links to the sockets", HC_DLA),
    "mcdla-star":      ("Fig. 7a: memory-nodes as a star", wiring.STAR),
    "mcdla-folded":    ("Fig. 7b, MC-DLA(S): folded inward; wires are our reading", MCDLA_S),
    "mcdla-ring":      ("Figs. 7c and 8, MC-DLA(L) and (B): a memory-node between two devices in every ring", MCDLA_B),
}
# fmt: on
VIDEO = (
    "Video captioning, trained end to end: the presets as they are, with devices of 16 GB (`dram_capacity`). First the most videos "
    "a device that fit without paging or making feature maps again, then the most that fit with them, `as_needed` and with `all` "
    "maps away. DC-DLA fits the same videos: as needed, it makes feature maps again instead of sending them over PCIe, and takes "
    "little longer, so that the pool saves little time here; it saves much only where all of them have to leave."
)


def by_network(rows: Mapping[str, Networks], claims: Mapping[str, float] | None = None) -> str:
    """A row of each name, a column of each network, both means, and the paper's figure where there is one."""
    head = ["", *next(iter(rows.values())), "harmonic", "arithmetic", "most", *(["paper"] if claims is not None else [])]
    cells = []
    for name, values in rows.items():
        every = [*values.values()]
        means = [harmonic(every), sum(every) / len(every), max(every)]
        cells.append([name, *every, *means, *([] if claims is None else [f"{claims[name]:g}" if name in claims else ""])])
    return table(head, cells)


def drawings() -> str:
    lines = []
    for name, (told, node) in DRAWN.items():
        (DOCS / f"{name}.svg").write_text(draw(node.topology, rings(node.topology)), encoding="utf-8")
        lines.append(f"![{told}]({name}.svg)\n\n{told}.\n")
    return "\n".join(lines)


def wires() -> str:
    rows = [
        (NAMES[name], "/".join(map(str, wiring.hops(node))), f"{wiring.to_memory(node) / 1e9:g}" if node.overlay != "off" else "")
        for name, node in DESIGNS.items()
    ]
    rows.insert(2, ("star (Fig. 7a)", "/".join(map(str, wiring.hops(wiring.STAR))), f"{wiring.to_memory(wiring.STAR) / 1e9:g}"))
    return table(("design", "hops of the rings", "GB/s of a device to its memory"), rows)


def larger_rings() -> str:
    sizes = {"8 MB": 8_000_000, "1 MB": 1_000_000, "100 KB": 100_000}
    rows = [
        (kind.replace("_", "-"), reading, *(wiring.doubled(kind, reading, size) for size in sizes.values()))
        for kind in wiring.KINDS for reading in wiring.READINGS
    ]  # fmt: skip
    return table(("", "reading", *sizes), rows)


def by_generation() -> str:
    rows = []
    for one in generations.GENERATIONS:
        spent = [1e3 * generations.times(network, paged=False)[one.name] for network in CNNS]
        more = [f"{generations.overheads(network)[one.name]:.0f} %" for network in CNNS]
        rows.append((f"{one.name} ({one.year})", f"{one.flops / 1e12:g}", f"{one.dram_bytes_per_s / 1e9:g}", *spent, *more))
    return table(("device", "TFLOPS", "GB/s", *(f"{name} [ms]" for name in CNNS), *(f"{name}, paging" for name in CNNS)), rows)


def latencies(parallel: Parallel) -> str:
    rows = []
    for network in NETWORKS:
        for design, node in DESIGNS.items():
            one = step_times(node, network, parallel)
            parts = [1e3 * one.alone_s.get(name, 0.0) for name in breakdown.CLASSES]
            rows.append((network, NAMES[design], *parts, 1e3 * one.time_s))
    return table(("network", "design", "compute [ms]", "synchronisation", "paging", "step"), rows)


def cpu_memory() -> str:
    parts = {"DC-DLA": DC_DLA, "HC-DLA": HC_DLA, "MC-DLA(B)": MCDLA_B}
    rows = []
    for name, node in parts.items():
        mean, most = breakdown.usage(node), breakdown.peaks(node)
        rows.append((name, f"{min(mean.values()):.0f}", f"{sum(mean.values()) / len(mean):.0f}", f"{max(mean.values()):.0f}",
                     f"{max(most.values()):.0f}"))  # fmt: skip
    return table(("design", "least mean [%]", "mean", "largest mean", "largest at any time"), rows)


def speedups(parallel: Parallel) -> str:
    found = {NAMES[name]: values for name, values in performance.table(parallel).items()}
    return by_network(found, {"HC-DLA": 1 + stated(f"hc.{parallel}") / 100, "MC-DLA(B)": stated(f"speedup.{parallel}")})


def batches() -> str:
    found = sensitivity.by_batch()
    return by_network({f"{batch}, {parallel}": one for batch, both in found.items() for parallel, one in both.items()})


def others() -> str:
    """Sec. V-B."""
    # fmt: off
    found = {
        "PCIe gen4":       (sensitivity.gaps(MCDLA_B, sensitivity.GEN4),                    "pcie4.gap"),
        "TPUv2-like":      (sensitivity.gaps(*sensitivity.with_device(sensitivity.TPU_V2)), "tpuv2.gap"),
        "DGX-2-like":      (sensitivity.gaps(*sensitivity.switched()),                      "dgx2.gap"),
        "cDMA, CNNs only": (sensitivity.gaps(MCDLA_B, sensitivity.COMPRESSED, CNNS),        "cdma.cnn_gap"),
    }
    # fmt: on
    rows = []
    for name, (gaps, claim) in found.items():
        each = [harmonic(one.values()) for one in gaps.values()]
        every = harmonic(value for one in gaps.values() for value in one.values())
        rows.append((name, *each, mean_of_both(gaps), every, f"{stated(claim):g}"))
    return table(("MC-DLA(B) over DC-DLA", *PARALLEL, "half of the sum", "harmonic mean of all", "paper"), rows)


def devices() -> str:
    ways = {f"{scaling.EACH} samples a device": scaling.scaled, f"{BATCH} samples in all": scaling.strong}
    rows = [
        (f"{NAMES[design] if design != 'dc-dla-oracle' else 'DC-DLA without paging'}, {name}",
         *(harmonic(way(design, count).values()) for count in scaling.DEVICES))
        for name, way in ways.items()
        for design in scaling.DESIGNS
    ]  # fmt: skip
    rows.append(("paper, DC-DLA", "", f"{stated('scaling.dc.4'):g}", f"{stated('scaling.dc.8'):g}"))
    return table(("", *(f"{count} device{'s' * (count > 1)}" for count in scaling.DEVICES)), rows)


def hosts() -> str:
    """HC-DLA's variants over DC-DLA."""
    rows = []
    for name, node in sensitivity.host_designs().items():
        found = sensitivity.gaps(node, DC_DLA)
        rows.append((name, *(harmonic(found[parallel].values()) for parallel in PARALLEL)))
    return table(("HC-DLA over DC-DLA", *PARALLEL), rows)


def proof(name: str, *arguments: int) -> str:
    """A proof of the ledger and its details."""
    return " ".join(getattr(printed, f"{part}_of_{name}")(*arguments) for part in ("proof", "details"))


def contradictions() -> str:
    gain = [harmonic(one.values()) for one in sensitivity.gains().values()]
    hc = harmonic(performance.over_dc(HC_DLA, "data").values())
    cut = f"{sum(breakdown.cuts().values()) / len(breakdown.cuts()):.0f} %"
    scaled = {count: harmonic(scaling.scaled("dc-dla", count).values()) for count in (4, 8)}
    # fmt: off
    rows = [
        ("2.8x beside harmonic means", printed.proof_of_mean(), f"{performance.speedup():.2f}x as half of the sum"),
        ("(S) loses at most 24 %", printed.proof_of_star(), f"{max(performance.losses().values()):.0f} %"),
        ("HC +32 %, data-parallel", proof("hc"), f"+{100 * (hc - 1):.0f} %"),
        ("PCIe gen4 +38 %", proof("gen4"), " and ".join(f"+{100 * (one - 1):.0f} %" for one in gain) + " (data, model)"),
        ("88 % cut beside 1.3x on 4 devices", proof("scaling", 4), f"{cut}, {scaled[4]:.2f}x"),
        ("88 % cut beside 2.7x on 8 devices", proof("scaling", 8), f"{cut}, {scaled[8]:.2f}x"),
        ("31 % more power", "8 x 127 = 1016 W of 3200 are 31.75 %", f"{power.increase(MCDLA_B.memory_node):.2f} %"),
        ("256 GB/s beside Table IV", "its power is of DDR4-2400, PC4-19200: ten modules give 192 GB/s; 256 need PC4-25600", ""),
    ]
    # fmt: on
    return table(("the paper prints", "what excludes it", "ours"), rows)


def outcome(rows: Sequence[Row]) -> str:
    """The page in two sentences."""
    ours = " and ".join(
        f"{harmonic(performance.over_dc(MCDLA_B, one).values()):.2f}x {one}-parallel (paper {stated(f'speedup.{one}'):g})"
        for one in PARALLEL
    )
    return (
        f"What comes out: {summary(rows)}. MC-DLA(B) is faster than DC-DLA by {ours}, and reaches "
        f"{100 * performance.mean(MCDLA_B, performance.FREE_COPIES):.0f} % of an oracle whose copies take no time (paper "
        f"{stated('of_oracle'):g}; {100 * performance.mean(MCDLA_B, DESIGNS['dc-dla-oracle']):.0f} % of one that also computes "
        "nothing again). Two parameters, PCIe's rate and the latency of links, and the choice of the oracle were picked with "
        "printed figures in sight; they are listed below with what got worse by them: HC-DLA's data-parallel speedup, which the "
        "paper excludes itself, and the mean over batches."
    )


# fmt: off
CHANGED = (
    ("PCIe uplinks of the node like DGX-2", "2 devices share one", "4 do",   "two Xeons have no lanes for eight x16 uplinks"),
    ("`depth`",          "1",               "2",
     "footnote 4 makes poolings again; GoogLeNet's read a concatenation that is itself made again, so that a depth of 1 sent them"),
    ("`pcie_latency_s`", "0 s",             "500 ns",                        "links had a latency, PCIe had none"),
    ("a memory's bandwidth", "for either direction", "shared by copies out and back", "a socket of 300 GB/s had delivered 600"),
    ("a map that the very next work needs", "left and came back", "stays",
     "it would come back before it had gone. With the others changed and this not: speedup.data 2.53, speedup 2.52, star_loss "
     "19.9, tpuv2.gap 2.85 and dgx2.gap 2.51, both near"),
)
SEEN_BEFORE = {  # by this page, before the change
    "dgx2.gap": 1.75, "speedup.data": 2.54, "speedup.model": 2.73, "speedup": 2.63, "star_loss": 23.1, "local_of_bwaware": 89.2,
    "batch_sweep": 2.55, "of_oracle.min": 70.9, "cdma.cnn_gap": 2.06, "perf_per_watt.low": 1.995, "hc.cpu_bandwidth.max": 200.0,
}
# fmt: on


def changed(rows: Sequence[Row]) -> str:
    now = {row.id.partition(".")[2]: row for row in rows}
    seen = (
        (name, paper_figure(now[name]), number(before), number(now[name].ours), now[name].verdict)
        for name, before in SEEN_BEFORE.items()
    )  # fmt: skip
    return (
        table(("what", "was", "is", "why"), CHANGED) + "\n" + table(("claim", "paper", "before", "now", "verdict now"), seen)
    )  # fmt: skip


def sections(rows: Sequence[Row]) -> Iterator[Section]:
    yield Section("", outcome(rows), "")
    yield Section(
        "The designs (Figs. 5, 7, 8)",
        "Hop counts and rates are derived from the wires. HC-DLA's three links between devices are drawn as six wires of half "
        "rate: three links of each of eight devices cannot be directed rings without a common arc (the parity argument is in "
        "`hardware/topology/builders.py`, `_shared_wires`), and at half rate they carry what three links carry.",
        wires() + "\n" + drawings(),
    )
    yield Section(
        "Rings of twice as many nodes (Fig. 9)",
        "Latency on 16 nodes over that on 8 devices, messages of 4 KB, 25 GB/s each way, "
        f"{1e9 * wiring.LATENCY_S:g} ns a link. Whether all 16 take part or half of them forward is not said.",
        larger_rings(),
    )
    for parallel in PARALLEL:
        yield Section(
            f"Speedups, {parallel}-parallel (Fig. 13)",
            "Performance over DC-DLA's, batch 512; the paper's figures are harmonic means.",
            speedups(parallel),
        )
    yield Section("CPU memory (Fig. 12)", "Per cent of the sockets' bandwidth: 80 GB/s (DC-DLA), 300 GB/s (HC-DLA).", cpu_memory())
    yield Section("Batch (Fig. 14)", f"MC-DLA(B) over DC-DLA; the batches are assumed. Paper {stated('batch_sweep'):g}.", batches())
    yield Section(
        "Other links, devices, nodes (Sec. V-B)",
        "Harmonic means inside a parallelism; across the two half of their sum, as the paper takes 2.8 of 3.5 and 2.1, and beside "
        "it the harmonic mean of all sixteen.",
        others(),
    )
    yield Section(
        "HC-DLA's sockets and splits (Secs. II-C, IV)",
        "Harmonic means. The paper's HC-DLA has sockets of 300 GB/s and half of the links; it left the others out.",
        hosts(),
    )
    yield Section("Devices (Sec. V-D)", "Four CNNs: how many times sooner as many samples are done than on one device.", devices())
    yield Section(
        "Generations (Fig. 2)",
        f"One device, {generations.BATCH} samples. The paper names no device: these are assumed, data sheets' peaks on Table II's "
        "array.",
        by_generation(),
    )
    yield Section(
        "Where the paper excludes itself",
        "Bounds use printed figures alone; their derivations are in `papers/mcdla/printed.py`. Of two that exclude each other "
        "the ledger judges the one that comes out here and calls the other contradicted: that choice was made after seeing it, and "
        "it excuses no miss of ours.",
        contradictions(),
    )
    yield Section(
        "To 1024 devices (Sec. VI)",
        "Weak scaling, data-parallel: time on one device without paging over time of a step. Planes of switches are recast into "
        "the logical network named; clusters pass messages between nodes of eight. The paper prints no figure of this; choices and "
        "sources are in `scripts/mcdla_scale_out.py`, and its `weak_scaling()` gives all ten fabrics and five sizes.",
        scale.scaling_table(scale.weak_scaling(sizes=(8, 64, 1024), fabrics=scale.TELLING)),
    )
    yield Section(
        "A network that does not fit as it is (Sec. V-E)",
        VIDEO,
        scale.video_table(scale.video_captions()),
    )
    yield from changes_section("mcdla", rows)
    yield Section(
        "Changed before that",
        "On other grounds than the claims; *now* has all later changes in it.",
        changed(rows),
    )
    effects = effects_table(assumption_effects("mcdla"))
    yield Section("What is assumed, and what it is worth", f"In {METRIC}; one at a time, in both designs.", effects)
    yield from ledger_section(rows)
    for parallel in PARALLEL:
        yield Section(
            f"Every step, {parallel}-parallel (Fig. 11)", "What each part would take alone, and the step.", latencies(parallel)
        )
