"""The drawn orders: every operation once, what came from the DRAM filled, and the same in words."""

from __future__ import annotations

import pytest

from trainyard.mapping.gradient_order.walkthrough import EXAMPLE, SHOWN, T0, example, execute_order, touched
from trainyard.report.colours import DIRECTIONS
from trainyard.report.walkthroughs.igo import GRADIENTS, figure

CASES = [EXAMPLE, example((2, 2, 3), room=3), example((4, 4, 2), room=5)]


@pytest.mark.parametrize("given", CASES)
def test_cells_are_what_was_done(given):
    ran, fills = [execute_order(given, order) for order in SHOWN], [shape.fillcolor for shape in figure(given).layout.shapes]
    steps = [step for one in ran for step in one.steps]
    for gradient, colour in GRADIENTS.items():
        assert fills.count(colour) == sum(step.ops[0].gradient == gradient for step in steps)
    assert fills.count(DIRECTIONS["read"]) == sum(moved.direction == "read" for step in steps for moved in step.loaded)
    still_there = 2 * len(steps) - fills.count(DIRECTIONS["read"])
    assert fills.count("rgba(0,0,0,0)") == still_there
    moving = sum(bool(step.spilled) or any(moved.direction == "spill" for moved in step.loaded) for step in steps)
    assert fills.count(DIRECTIONS["spill"]) == moving
    texts = [text for trace in figure(given).data if trace.mode == "text" for text in trace.text]
    arrows = "".join(text for text in texts if set(text) <= {"↑", "↓"})
    assert arrows.count("↑") == arrows.count("↓") == sum(len(step.spilled) for step in steps)


def test_t0_is_round():
    circles = [shape for shape in figure().layout.shapes if shape.type == "circle"]
    uses = sum(T0 in touched(step) for order in SHOWN for step in execute_order(EXAMPLE, order).steps)
    assert len(circles) == uses == 16
    assert sum(shape.fillcolor == DIRECTIONS["read"] for shape in circles) == 4 + 3 + 2 + 2


def test_it_can_be_read_without_being_seen():
    told = figure().layout.meta["description"]
    assert "sequential: 36 tiles of dY read for 36 operations, 1344 bytes in all" in told
    assert "dx_major: 18 tiles of dY read for 36 operations, 12 sums out and back, 1248 bytes in all" in told


def test_a_long_order_goes_on_below():
    long, short = figure(example((4, 4, 2), room=5)), figure()
    assert long.layout.height > short.layout.height
    assert long.layout.width <= 41 * 30 + 2 * 30 + 24
