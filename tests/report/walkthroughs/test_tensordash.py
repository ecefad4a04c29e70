"""The drawn walk-through: it holds what the scheduler did, and says so in words."""

from __future__ import annotations

import numpy as np
import pytest

from trainyard.arrays.tensordash.scheduler import Scheduler
from trainyard.arrays.tensordash.walkthrough import EXAMPLE, cycles, example
from trainyard.report.walkthroughs.canvas import WAITS, WIDEST
from trainyard.report.walkthroughs.tensordash import figure


@pytest.mark.parametrize(("unit", "steps"), [(Scheduler(), 12), (Scheduler(depth=2), 5), (Scheduler(lanes=16, depth=3), 9)])
def test_every_pair_is_drawn_dense_scheduled_and_in_its_buffer(unit, steps):
    mask = example(5, steps=steps, lanes=unit.lanes)
    drawn = figure(mask, unit)
    pairs, issues = int(mask.sum()), len(cycles(mask, unit)) * unit.lanes
    filled = [shape for shape in drawn.layout.shapes if shape.type == "rect" and shape.fillcolor not in ("rgba(0,0,0,0)", WAITS)]
    assert len(filled) == 3 * pairs
    assert sum(shape.type == "line" for shape in drawn.layout.shapes) == pairs
    assert sum(shape.type == "circle" for shape in drawn.layout.shapes) == issues
    assert max(shape.x1 for shape in drawn.layout.shapes) <= WIDEST + 1


def test_a_long_stream_is_cut_and_says_so():
    drawn = figure(np.ones((40, 4)), Scheduler(), most=5)
    assert "the first 5 in detail" in drawn.layout.title.text
    assert sum(shape.type == "circle" for shape in drawn.layout.shapes) == 20


def test_it_can_be_read_without_being_seen():
    told = figure(EXAMPLE, Scheduler(depth=2)).layout.meta["description"]
    assert "7 of 16 pairs are effectual" in told
    assert "2.00 times as fast" in told
    assert "idle multiplier slots: 1." in told
