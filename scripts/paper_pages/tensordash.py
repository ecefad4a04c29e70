"""TensorDash's page: its figures as tables, and why results differ where they do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

from paper_pages import Section, changes_section, details_section, table
from trainyard.arrays import TensorDash
from trainyard.ir import MatMul
from trainyard.ir.ops import ProductOf
from trainyard.machines.presets.tensordash import TENSORDASH
from trainyard.papers.ledger import Row, number, paper_figure
from trainyard.papers.pages import summary
from trainyard.papers.tensordash import beyond, chip, connectivity, energies, over_time, overheads, performance, random_tensors
from trainyard.papers.tensordash.models import GCN, MODELS, NAMES, OPERATIONS, facts, recorded
from trainyard.papers.tensordash.potential import potential
from trainyard.papers.tensordash.printed import printed
from trainyard.papers.tensordash.products import alone, mean_speedup
from trainyard.papers.tensordash.sweeps import COLUMNS, DEPTHS, PAPER, ROWS, WIDE

ASSUMPTIONS = """<!-- output: trainyard whatif tensordash --only assumptions --pairs 0 -->
<!-- end -->
"""
"""Filled by scripts/manual_pages.py."""


def with_mean(values: Mapping[str, float]) -> list[float]:
    return [*values.values(), fmean(values.values())]


def trained() -> str:
    rows = []
    for one in (*MODELS, GCN):
        run = facts()[one.sample]
        end = f"loss {run['start']['loss']:.2f} to {run['end']['loss']:.2f}"
        rows.append(
            (
                one.name,
                one.zoo,
                run["data"],
                f"{run['epochs']} x {run['steps_per_epoch']} of {run['batch']}",
                end,
                run.get("sparsity"),
            )
        )
    return table(("model", "zoo", "data", "epochs x steps of batch", "held-out", "pruning"), rows)


def headlines(rows: Sequence[Row]) -> str:
    """The claims of the abstract and of the figures that carry them, with both results."""
    shown = [row for row in rows if row.claim.use == "headline"]
    cells = [(row.id.partition(".")[2], paper_figure(row), number(row.ours), number(row.printed), row.verdict) for row in shown]
    return table(("claim", "paper", "ours", "from printed inputs", "verdict"), cells)


def hinges() -> str:
    """What the headline of 1.95x depends on most, with its value under each alternative."""
    syncs: dict[str, TensorDash] = {name: replace(PAPER, sync=name) for name in ("output", "block")}  # type: ignore[arg-type]
    lockstep, output, block = (mean_speedup(printed, array) for array in (PAPER, *syncs.values()))
    clustered = mean_speedup(partial(printed, cluster="channel"), PAPER, costs=alone)
    narrow, wide = (chip.mean_gain(printed, bits) for bits in (16, 64))
    lines = (
        "1. **How rows of a tile wait for each other.** They advance together in every cycle here, which gives "
        f"{lockstep:.2f} from printed inputs. If they waited at the end of an output it would be {output:.2f}, at the end of each "
        f"full buffer {block:.2f}; Sec. III can be read in all three ways.",
        "2. **Where the zeros are.** The paper prints shares and says that zeros cluster in feature maps. Printed shares fall "
        f"at random here; if they filled whole channels, the speedup would be {clustered:.2f}. Zeros recorded in training on "
        f"stand-in data give {mean_speedup(recorded, PAPER):.2f}.",
        "3. **What is sped up.** The figure is that of the array. A chip with four channels of LPDDR4-3200 waits for memory in "
        f"most products: it gains {narrow:.2f} if a channel has JEDEC's 16 bits, and {wide:.2f} if it has the 64 of the "
        "authors' simulator.",
    )
    return "\n".join(lines) + "\n"


def whole_chip() -> str:
    rows = []
    for name in NAMES:
        gains = [chip.gain(source(name), bits) for source in (recorded, printed) for bits in (16, 64)]
        rows.append((name, chip.moved_bytes(printed(name)) / 1e6, *gains, performance.speedup(printed(name), PAPER)))
    rows.append(("mean", "", *(fmean(row[column] for row in rows) for column in range(2, len(rows[0])))))  # type: ignore[misc]
    head = ("model", "MB a sample", *(f"{kind}, {bits} bits" for kind in ("recorded", "printed") for bits in (16, 64)))
    return table((*head, "array, printed"), rows)


def by_operation() -> str:
    rows = []
    for name in NAMES:
        subject, second = recorded(name), printed(name)
        gained = [performance.speedup(subject, PAPER, wanted) for wanted in (*OPERATIONS.values(), None)]
        possible = [potential(subject, wanted) for wanted in (*OPERATIONS.values(), None)]
        rows.append((name, *possible, potential(second), *gained, performance.speedup(second, PAPER)))
    rows.append(("mean", *(fmean(row[column] for row in rows) for column in range(1, len(rows[0])))))
    operations = list(OPERATIONS.values())
    head = ("model", *(f"potential {wanted}" for wanted in operations), "all", "printed")
    return table((*head, *(f"speedup {wanted}" for wanted in operations), "all", "printed"), rows)


def over_epochs() -> str:
    rows = []
    for name in over_time.names():
        whole, kept = (list(over_time.curve(name, whole=which).values()) for which in (True, False))
        rows.append((name, " ".join(f"{value:.2f}" for value in whole), " ".join(f"{value:.2f}" for value in kept)))
    return table(("model", "whole model, by epoch, recorded shares at random", "layers whose masks were kept"), rows)


def energy() -> str:
    rows = []
    for name in NAMES:
        before, after = (energies.joules(recorded(name), which) for which in (PAPER.baseline, PAPER))
        shares = [f"{100 * before[part] / sum(before.values()):.0f} %" for part in energies.PARTS]
        rows.append((name, before["core"] / after["core"], sum(before.values()) / sum(after.values()), *shares))
    means = [energies.mean_of(what, recorded, PAPER) for what in ("core", "chip")]
    return table(
        ("model", "compute logic", "whole chip", *(f"{part} of baseline" for part in energies.PARTS)),
        [*rows, ("mean", *means, "", "", "")],
    )


def sweep(axis: str, values: Sequence[int]) -> str:
    found = {source.__name__: performance.sweep(source, axis) for source in (recorded, printed)}
    rows = [(label, *(fmean(each[value].values()) for value in values)) for label, each in found.items()]
    rows += [(name, *(found["recorded"][value][name] for value in values)) for name in NAMES]
    return table((axis, *map(str, values)), rows)


def wide() -> str:
    narrow, broad, second = performance.each(recorded), performance.each(recorded, WIDE), performance.each(printed, WIDE)
    rows = [(name, narrow[name], broad[name], second[name]) for name in NAMES]
    rows.append(("mean", *(fmean(values.values()) for values in (narrow, broad, second))))
    return table(("model", "4 lanes, 4 deep", "16 lanes, 3 deep", "16 lanes, printed"), rows)


def random() -> str:
    rows = [
        (
            f"{one.sparsity:g}",
            one.ideal,
            one.speedup,
            *one.by_operation.values(),
            f"{100 * one.deviation:.1f} %",
            one.core,
            one.chip,
        )
        for one in map(random_tensors.level, random_tensors.LEVELS)
    ]
    return table(
        ("zeros [%]", "ideal", "speedup", *OPERATIONS.values(), "largest deviation", "compute energy", "chip energy"), rows
    )


def parts() -> str:
    rows = []
    for label, array, what, form in (
        ("area [mm2]", PAPER, overheads.areas, "fp16"), ("area, bfloat16", PAPER, overheads.areas, "bf16"),
        ("area, 16 lanes", WIDE, overheads.areas, "fp16"), ("power [mW]", PAPER, overheads.powers, "fp16"),
        ("power, bfloat16", PAPER, overheads.powers, "bf16"),
    ):  # fmt: skip
        found = what(array, form)
        whole = f"{100 * (overheads.overhead(array, what, form, chip=True) - 1):.1f} %" if what is overheads.areas else ""
        core = f"{100 * (overheads.overhead(array, what, form) - 1):.1f} %"
        rows.append((label, *(found[part] for part in overheads.COMPUTE), core, whole))
    return table(("", *overheads.COMPUTE, "compute logic grows by", "chip grows by"), rows)


def transposers() -> str:
    array, op = TENSORDASH.array, MatMul(4096, 4096, 4096)
    assert isinstance(array, TensorDash)
    products: tuple[ProductOf, ...] = ("forward", "grad_input", "grad_weight")
    return table(
        ("operation", "dense", f"at {array.depth} times that"),
        [
            (name, *(array.baseline.transposers_needed(op, product, times) for times in (1, array.depth)))
            for name, product in zip(("A*W", "W*G", "A*G"), products, strict=True)
        ],
    )


def readings() -> str:
    found = {name: beyond.reading(name) for name in beyond.READINGS}
    return table(("", *NAMES, "mean"), [(name, *with_mean(values)) for name, values in found.items()])


def footprints() -> str:
    rows = []
    for name in beyond.STORED:
        for letter, (one, both) in beyond.footprints(name).items():
            zeros = f"{100 * one.sparsity:.0f} %"
            rows.append(
                (
                    name,
                    letter,
                    zeros,
                    one.ratio("bitmap"),
                    one.ratio("gapless"),
                    one.ratio("padded"),
                    both["dense"] / both["gapless"],
                )
            )
    return table(("model", "tensor", "zeros", "zero-compressed", "gapless", "padded", "gapless, both orders"), rows)


def misses(rows: Sequence[Row]) -> str:
    shown = [row for row in rows if row.verdict not in ("met", "derived", "context")]
    cells = [
        (row.id.partition(".")[2], paper_figure(row), number(row.ours), number(row.printed), row.verdict, row.note) for row in shown
    ]
    return table(("claim", "paper", "ours", "printed", "verdict", "what stands in, and why it differs"), cells)


def sections(rows: Sequence[Row]) -> Iterator[Section]:
    pattern = connectivity.pattern_spread()
    low, high = energies.IMPLIED_CORE_SHARE
    yield Section("", "", trained())
    yield Section(
        "The headline, and what it hinges on",
        "Zeros of real training on stand-in data are our column, the zeros that the paper prints the one beside it. From printed "
        "inputs the mechanism gives the printed speedups; what a stand-in data set cannot supply is marked `substitute`.",
        headlines(rows),
    )
    yield Section("", "Three assumptions decide the 1.95x:", hinges())
    yield Section(
        "Potential and speedup (Fig. 1, Fig. 8)",
        "Potential: all MACs over those whose targeted operand is not zero.",
        by_operation(),
    )
    yield Section("Over time (Fig. 9)", "", over_epochs())
    yield Section(
        "The whole chip",
        f"Speedup with waiting for LPDDR4 at a batch of {chip.BATCH}, for channels of 16 bits (25.6 GB/s) and of 64 (102.4 GB/s); "
        "recorded shares of zeros fall at random here. Bytes are those of the dense chip, which compresses zeros as well. W*G and "
        "A*G of a layer take turns, tile by tile, where they move fewer bytes that way, so that G is read once (Sec. III).",
        whole_chip(),
    )
    yield Section(
        "Energy (Fig. 10, Fig. 11)",
        "Compute logic takes the energies of Table IV's rows, memories those of our tables of on-chip RAMs and of LPDDR4. The "
        f"paper prints no memory energies; its efficiencies together imply a core of {100 * low:.0f} to {100 * high:.0f} % of the "
        f"baseline's energy, here it is {100 * energies.mean_of('share', recorded, PAPER):.0f} %. From printed inputs the chip is "
        f"{energies.mean_of('chip', printed, PAPER):.2f} times as efficient.",
        energy(),
    )
    yield Section("What it adds (Table IV)", "bfloat16 and 16 lanes are predicted from the rows.", parts())
    yield Section(
        "Transposers",
        "How many keep the tiles busy on a large product, each giving a block of four values a cycle, with reads shared by the "
        "tiles that work on the same rows or columns. The paper chooses such a count and prints only what they take together.",
        transposers(),
    )
    yield Section("Depth of the staging buffers (Fig. 12)", "", sweep("depth", DEPTHS))
    yield Section(
        "Rows and columns of a tile (Fig. 13)", "4 columns; the number of tiles keeps 16,384 multipliers.", sweep("rows", ROWS)
    )
    yield Section("", "4 rows:", sweep("columns", COLUMNS))
    yield Section("Wider processing elements (Fig. 14)", "Each over a baseline of its own width.", wide())
    yield Section(
        "Random tensors (Fig. 15)",
        f"fire2 expand3x3 of SqueezeNet, {random_tensors.SAMPLES} tensors at each level. The layer that is third in order, as the "
        "paper has it, is a 1x1 with streams of 4 steps, which cannot reach what the paper prints.",
        random(),
    )
    yield Section("Connectivity patterns", f"{pattern.note} {pattern.details}", "")
    yield Section(
        "Beyond: both sides, and other readings",
        "Both sides: a scheduler and two staging buffers in each element, zeros of either operand skipped. Three banks, as many as "
        "the lookahead, refill three steps a cycle. Filters on the rows, as Sec. III has it, schedules weights.",
        readings(),
    )
    yield Section(
        "Beyond: storage scheduled ahead",
        "How many times smaller than dense, FP16, with selects and start addresses. During training each tensor is summed over in "
        "two orders; both stored is the last column.",
        footprints(),
    )
    yield Section(
        "What is assumed, and what it is worth",
        "One model of the paper on its chip, with memory fast enough that the array is what counts.",
        ASSUMPTIONS,
    )
    yield Section(
        "Misses, stand-ins and their causes",
        f"{summary(rows)}. Every row is in [the ledger](reproduction.md#tensordash).",
        misses(rows),
    )
    yield from changes_section("tensordash", rows)
    yield from details_section(rows)
