"""Writes docs/tensordash.md: TensorDash's figures as tables of what comes out here, and why it differs where it does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from paper_figures import illustrated

from trainyard.arrays import TensorDash
from trainyard.ir import MatMul
from trainyard.ir.ops import ProductOf
from trainyard.machines.presets.tensordash import TENSORDASH
from trainyard.papers import bench
from trainyard.papers.ledger import Row
from trainyard.papers.pages import number, paper_figure, summary
from trainyard.papers.tensordash import beyond, connectivity, energies, over_time, overheads, performance, random_tensors
from trainyard.papers.tensordash.models import GCN, MODELS, NAMES, OPERATIONS, facts, recorded
from trainyard.papers.tensordash.potential import potential
from trainyard.papers.tensordash.printed import printed
from trainyard.papers.tensordash.sweeps import COLUMNS, DEPTHS, PAPER, ROWS, WIDE

PAGE = Path(__file__).parents[1] / "docs" / "tensordash.md"
WORTHS = """<!-- output: trainyard whatif tensordash --only assumptions --pairs 0 -->
<!-- end -->
"""
"""Filled by scripts/manual_pages.py."""
HEAD = """# TensorDash

M. Mahmoud, I. Edo, A. H. Zadeh, O. M. Awad, G. Pekhimenko, J. Albericio, A. Moshovos: TensorDash: Exploiting Sparsity to Accelerate
Deep Neural Network Training. MICRO 2020.

## What it is

Many activations and gradients are zero while a network is trained. TensorDash keeps an ordinary dense accelerator and puts a
small multiplexer before each multiplier: where a value is zero, the lane takes one from a few steps ahead (lookahead) or from a
lane beside it (lookaside). A staging buffer holds the next steps, and a scheduler chooses anew in every cycle. It skips the zeros
of one operand, whichever that is, in all three products of a layer, and needs neither pruning nor preparation.

Written by `make pages`; every number below is measured by `scripts/tensordash_page.py`. `trainyard reproduce tensordash` prints the
ledger, with `--html page.html` it draws the figures, with `--figure 12` one of them.

## What is modelled

- The processing element: staging buffers, promotion options in priority order, hierarchical selection, MS and AS. It multiplies,
  and its sums are those of the dense order re-arranged (`arrays/tensordash/element.py`); compiled schedulers equal a plain twin.
- The tile: rows share the scheduled operand, columns the other one. Rows advance together by the smallest AS of all
  (`sync="lockstep"`), which is one of three readings of one sentence; the other two are below.
- The three operations of each layer with their own reductions: A\\*W along channels and taps, W\\*G along filters and taps
  of gradients dilated by the stride, A\\*G along the positions of one sample. Nothing is promoted across the end of an output.
- Whose zeros: A's in A\\*W, the sparser of A and G in A\\*G, the sparser of G and W in W\\*G.
- The chip: 256 tensor cores, 24 MiB in 192 banks, LPDDR4-3200, zero-compressed off-chip, 65 nm, 500 MHz. Baseline and TensorDash
  are the same chip but for the array. No parameter is calibrated.
- Speedups are of the array on whole products, every output looked at. The chip adds tiles and waiting for DRAM.

## Where the zeros come from

Real training on stand-in data (the paper's data sets cannot be shipped), one random batch of each epoch recorded; the tables show
the last one. Recorded masks, the densities of every layer at every epoch, and what was trained are in `papers/samples/tensordash`.
Beside them, "printed": masks made from the shares of zeros that the paper prints; what it does not print is dense, and where it
prints none (SQZNet, VGG16, RsNt50_S, img2txt) one share that makes the potential of Fig. 1.
"""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(map(cell, head))} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(cell(value) for value in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def cell(value: object) -> str:
    text = f"{value:.2f}" if isinstance(value, float) else "" if value is None else str(value)
    return text.replace("|", "\\|").replace("*", "\\*")


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
        chip = f"{100 * (overheads.overhead(array, what, form, chip=True) - 1):.1f} %" if what is overheads.areas else ""
        core = f"{100 * (overheads.overhead(array, what, form) - 1):.1f} %"
        rows.append((label, *(found[part] for part in overheads.COMPUTE), core, chip))
    return table(("", *overheads.COMPUTE, "compute logic grows by", "chip grows by"), rows)


def transposers() -> str:
    chip, op = TENSORDASH.array, MatMul(4096, 4096, 4096)
    assert isinstance(chip, TensorDash)
    products: tuple[ProductOf, ...] = ("forward", "grad_input", "grad_weight")
    return table(
        ("operation", "dense", f"at {chip.depth} times that"),
        [
            (name, *(chip.baseline.transposers_needed(op, product, times) for times in (1, chip.depth)))
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


def sections(rows: Sequence[Row]) -> Iterator[tuple[str, str, str]]:
    """Title, text, table."""
    pattern = connectivity.pattern_spread()
    low, high = energies.IMPLIED_CORE_SHARE
    yield "", "", trained()
    yield (
        "Potential and speedup (Fig. 1, Fig. 8)",
        "Potential: all MACs over those whose targeted operand is not zero.",
        by_operation(),
    )
    yield "Over time (Fig. 9)", "", over_epochs()
    yield (
        "Energy (Fig. 10, Fig. 11)",
        "Compute logic by the rows of Table IV, memories by our own SRAM and LPDDR4 tables. The paper prints no memory energies; "
        f"its efficiencies together imply a core of {100 * low:.0f} to {100 * high:.0f} % of the baseline's energy, here it is "
        f"{100 * energies.mean_of('share', recorded, PAPER):.0f} %. That one share is why whole-chip efficiencies come out lower.",
        energy(),
    )
    yield "What it adds (Table IV)", "bfloat16 and 16 lanes are predicted from the rows.", parts()
    yield (
        "Transposers",
        "How many keep the tiles busy on a large product, each giving a block of four values a cycle, with reads shared by the "
        "tiles that work on the same rows or columns. The paper chooses such a count and prints only what they take together.",
        transposers(),
    )
    yield "Depth of the staging buffers (Fig. 12)", "", sweep("depth", DEPTHS)
    yield "Rows and columns of a tile (Fig. 13)", "4 columns; the number of tiles keeps 16,384 multipliers.", sweep("rows", ROWS)
    yield "", "4 rows:", sweep("columns", COLUMNS)
    yield "Wider processing elements (Fig. 14)", "Each over a baseline of its own width.", wide()
    yield (
        "Random tensors (Fig. 15)",
        f"fire2 expand3x3 of SqueezeNet, {random_tensors.SAMPLES} tensors at each level. The layer that is third in order, as the "
        "paper has it, is a 1x1 with streams of 4 steps, which cannot reach what the paper prints.",
        random(),
    )
    yield "Connectivity patterns", pattern.note[0].upper() + pattern.note[1:] + ".", ""
    yield (
        "Beyond: both sides, and other readings",
        "Both sides: a scheduler and two staging buffers in each element, zeros of either operand skipped. Three banks, as many as "
        "the lookahead, refill three steps a cycle. Filters on the rows, as Sec. III has it, schedules weights.",
        readings(),
    )
    yield (
        "Beyond: storage scheduled ahead",
        "How many times smaller than dense, FP16, with selects and start addresses. During training each tensor is summed over in "
        "two orders; both stored is the last column.",
        footprints(),
    )
    yield (
        "What is assumed, and what it is worth",
        "One model of the paper on its chip, with memory fast enough that the array is what counts.",
        WORTHS,
    )
    yield (
        "Misses, stand-ins and their causes",
        f"{summary(rows)}. Every row is in [the ledger](reproduction.md#tensordash).",
        misses(rows),
    )


def main() -> None:
    rows = bench.walk("tensordash")
    text = HEAD
    for title, told, shown in sections(rows):
        text += "".join(
            part for part in (f"\n## {title}\n" if title else "", f"\n{told}\n" if told else "", f"\n{shown}" if shown else "")
        )
    PAGE.write_text(illustrated("tensordash", text), encoding="utf-8")
    print(f"wrote {PAGE.name}: {len(NAMES)} models, {len(rows)} claims")


if __name__ == "__main__":
    main()
