"""The arrays that are compared: the paper's, and those of its sweeps.

All keep the chip's 16,384 multipliers: a tile of more elements means fewer tiles. Each has a baseline of its own geometry.
"""

from __future__ import annotations

from dataclasses import replace

from trainyard.arrays import TensorDash
from trainyard.machines.presets.tensordash import TENSORDASH

PAPER: TensorDash = TENSORDASH.array  # type: ignore[assignment]  # a device may hold any array
# fmt: off
DEPTHS  = (2, 3, 4, 5)      # Fig. 12
ROWS    = (1, 2, 4, 8, 16)  # Fig. 13
COLUMNS = (4, 8, 16)        # Sec. IV-D
# fmt: on


def geometry(**changes: int) -> TensorDash:
    """The paper's array with other rows, columns, lanes or depth, and as many tiles as keep its multipliers.

    >>> geometry(rows=16).tiles, geometry(lanes=16, depth=3).tiles
    (64, 64)
    """
    changed = replace(PAPER, **changes)  # type: ignore[arg-type]  # all of these are whole numbers
    return replace(changed, tiles=PAPER.peak_macs_per_cycle // (changed.rows * changed.columns * changed.lanes))


WIDE = replace(geometry(lanes=16, depth=3), levels="grouped")
"""Sec. IV-D, Fig. 14: 16 MACs, 3 deep, eight promotions in 6 levels; which eight is not printed."""

SEARCHED = ((0, 0), (1, -5), (1, 6), (1, 1), (1, 4), (2, -5), (2, -4), (2, -7))
"""Found by `search(16, 3, 8, random_streams(16, steps=128, groups=16), most_levels=6, grouped=True)`; schedules in 4 levels."""

TOGETHER = tuple(
    dict.fromkeys(
        (
            PAPER,
            *(geometry(depth=steps) for steps in DEPTHS),
            *(geometry(rows=count) for count in ROWS),
            *(geometry(columns=count) for count in COLUMNS),
            WIDE,
            replace(PAPER, sync="output"),
            replace(PAPER, sync="block"),
        )
    )
)
"""Arrays that are run side by side, product by product: reading the zeros of a tensor takes longer than scheduling some of them."""
