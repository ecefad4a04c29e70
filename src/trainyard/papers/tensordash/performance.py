"""Figs. 1, 8, 9 and 12 to 14: potential, speedup, speedup over time, and sweeps over depth, rows, columns and width.

Masks are those of real training on stand-in data, so verdicts are `substitute`; the second column has the paper's printed inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from statistics import fmean, geometric_mean

from trainyard.arrays import TensorDash
from trainyard.papers.ledger import Experiments, Measured
from trainyard.papers.tensordash.chip import BATCH, CHANNEL_BITS, bytes_per_s, gain, mean_gain
from trainyard.papers.tensordash.models import NAMES, Operation, recorded, zeros
from trainyard.papers.tensordash.potential import potential
from trainyard.papers.tensordash.printed import INPUTS, printed
from trainyard.papers.tensordash.products import Source, alone, mean_speedup, slowest, speedup
from trainyard.papers.tensordash.sweeps import COLUMNS, DEPTHS, PAPER, ROWS, SEARCHED, WIDE, geometry

STAND_IN = "With the zeros of real training on stand-in data"


def listed(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in values.items())


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def each(source: Source, array: TensorDash = PAPER, wanted: Operation | None = None) -> dict[str, float]:
    """The speedup of every model."""
    return {name: speedup(source(name), array, wanted) for name in NAMES}


# ---- Fig. 1


def potentials(source: Source, wanted: Operation | None = None) -> dict[str, float]:
    return {name: potential(source(name), wanted) for name in NAMES}


def mean_potential() -> Measured:
    by_model, second = potentials(recorded), potentials(printed)
    computed = {name: second[name] for name in NAMES if name not in INPUTS}
    return Measured(
        fmean(by_model.values()),
        note=f"{STAND_IN}; nothing is computed from printed inputs, since Fig. 1 is an input of six models.",
        verdict="substitute",
        details=f"{listed(by_model)}. The shares that are printed of the other two give {listed(computed)}; with them the mean is "
        f"{fmean(second.values()):.2f}.",
    )


def model_potential(name: str, why: str) -> Measured:
    subject = recorded(name)
    shares = {letter: fmean(zeros(subject, letter).values()) for letter in "AG"}
    if name == "RsNt50_S":
        why += f" With G's zeros alone, as for the other models, it is {potential(subject, gradients_alone=True):.2f}."
    parts = {wanted: potential(subject, wanted) for wanted in ("A*W", "W*G", "A*G")}
    return Measured(
        potential(subject),
        note=f"{STAND_IN}, {shares['A']:.0f} % of A and {shares['G']:.0f} % of G are zero (mean over layers).",
        verdict="substitute",
        printed=None if name in INPUTS else potential(printed(name)),
        details=f"{sentence(subject.about)} {listed(parts)}. {why}".rstrip(),
    )


# ---- Fig. 8


def headline() -> Measured:
    by_model = each(recorded)
    tiled = fmean(gain(printed(name), waiting=False) for name in NAMES)
    clustered = mean_speedup(partial(printed, cluster="channel"), PAPER, costs=alone)
    return Measured(
        fmean(by_model.values()),
        note=f"Speedup of the array. {STAND_IN}, mean over eight models; the geometric mean is "
        f"{geometric_mean(by_model.values()):.2f}.",
        verdict="substitute",
        printed=mean_speedup(printed, PAPER),
        details=f"{listed(by_model)}. From printed inputs, cut into the chip's tiles, {tiled:.2f}; if zeros filled channels "
        f"{clustered:.2f}. {whole_chip()}",
    )


def whole_chip() -> str:
    """The speedup of the chip with either width of a channel, in a sentence."""
    widths = (CHANNEL_BITS.value, *CHANNEL_BITS.alternatives)
    figures = " and ".join(
        f"{mean_gain(printed, bits):.2f} with channels of {bits} bits ({bytes_per_s(bits) / 1e9:.1f} GB/s)" for bits in widths
    )
    return f"The chip, which waits for LPDDR4, gains {figures} at a batch of {BATCH}."


# ---- Fig. 12 to 14


def mean_with(array: TensorDash, what: str, details: str = "") -> Measured:
    ours, theirs = mean_speedup(recorded, array), mean_speedup(printed, array)
    return Measured(ours, note=f"{STAND_IN} and {what}.", verdict="substitute", printed=theirs, details=details)


def depth(steps: int) -> Measured:
    array = geometry(depth=steps)
    chosen = "Which promotions is not printed: these were best on random zeros, not on these masks (arrays/tensordash/patterns.py)."
    return mean_with(array, f"{len(array.promotions)} promotions", "" if steps in (2, 4) else chosen)


def rows(count: int) -> Measured:
    array = geometry(rows=count)
    why = "Zeros of training cluster in feature maps: a row with few waits longer for one with many than where they fall at random."
    return mean_with(array, f"{array.tiles} tiles of {count} x 4 elements", why)


def columns_drop() -> Measured:
    def worst(source: Source) -> tuple[float, str]:
        narrow, wide = (each(source, geometry(columns=columns)) for columns in (COLUMNS[0], COLUMNS[-1]))
        return max((100 * (1 - wide[name] / narrow[name]), name) for name in NAMES)

    drop, name = worst(recorded)
    tiles = geometry(columns=COLUMNS[-1]).tiles
    return Measured(
        drop, note=f"{STAND_IN}, the largest drop is {name}'s, on {tiles} tiles of 4 x 16 against 256 of 4 x 4.",
        verdict="substitute", printed=worst(printed)[0],
    )  # fmt: skip


def wide() -> Measured:
    searched, one_row = (
        mean_speedup(recorded, array, costs=alone) for array in (replace(WIDE, options=SEARCHED), geometry_of_one_row())
    )
    return mean_with(
        WIDE,
        "16 lanes, 3 deep, with 8 promotions chosen to schedule in 6 levels",
        f"With promotions that a search prefers on random streams {searched:.2f}, with tiles of one row {one_row:.2f}: that "
        "streams are four times as short and the limit is 3x costs more than either.",
    )


def geometry_of_one_row() -> TensorDash:
    """The wide array with tiles of one row, which waits for no other."""
    return replace(WIDE, rows=1, tiles=WIDE.tiles * WIDE.rows)


def wide_levels() -> Measured:
    return Measured(
        len(WIDE.scheduler.levels), note="The fewest levels in which no two lanes can pick the same pair, for the chosen table."
    )


def never_slower() -> Measured:
    """The smallest speedup of any operation of any layer, with recorded and printed zeros, for all readings of how rows wait."""
    value, layer, name, sync = min(
        (*slowest(source(name), replace(PAPER, sync=sync)), name, sync)
        for source in (recorded, printed)
        for name in NAMES
        for sync in ("lockstep", "output", "block")
    )
    return Measured(value, note=f"The least of all layers, operations, models and readings of `sync`: {name} {layer} ({sync}).")


@cache
def sweep(source: Source, axis: str) -> Mapping[int, dict[str, float]]:
    """Speedups of every model along one axis of a figure."""
    values: Sequence[int] = {"depth": DEPTHS, "rows": ROWS, "columns": COLUMNS}[axis]
    return {value: each(source, geometry(**{axis: value})) for value in values}


# fmt: off
WHY: Mapping[str, str] = {  # where a model's potential comes from, and why it differs from the paper's
    "snli":             "Fully connected layers alone; LSTM gates are 94 % of all MACs. The paper's G has more than 95 % zeros.",
    "ncf":              "Without W*G of the first layer, as the paper counts. The paper's G has 83 % zeros.",
    "squeezenet_above": "",
    "detectron2":       "Layers weigh as in pictures of 800 x 1344; G of the two kinds of layers that Sec. IV-A names gives 1.45.",
    "bert":             "60 % in G, as Sec. IV-A has it of most layers, gives 3 / (1 + 0.4 + 0.4) = 1.67; 2.0 needs 75 %.",
    "resnet50_pruned":  "W's zeros count in W*G.",
}
OF_CLAIM: Mapping[str, str] = {
    "snli": "SNLI", "ncf": "NCF", "squeezenet_above": "SQZNet", "detectron2": "Dtctron2", "bert": "BERT",
    "resnet50_pruned": "RsNt50_S",
}
# fmt: on

EXPERIMENTS: Experiments = {
    **{f"tensordash.potential.{claim}": partial(model_potential, name, WHY[claim]) for claim, name in OF_CLAIM.items()},
    "tensordash.potential": mean_potential,
    "tensordash.speedup": headline,
    "tensordash.depth.2": partial(depth, 2),
    "tensordash.depth.4": partial(depth, 4),
    "tensordash.depth.5": partial(depth, 5),
    "tensordash.rows.1": partial(rows, 1),
    "tensordash.rows.16": partial(rows, 16),
    "tensordash.columns.max_drop": columns_drop,
    "tensordash.wide16.speedup": wide,
    "tensordash.wide16.levels": wide_levels,
    "tensordash.never_slower": never_slower,
}
