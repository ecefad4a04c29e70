"""The drawn walk-through: every bit, value, link and sum of the story is in the picture, and it says so in words."""

from __future__ import annotations

import numpy as np
import pytest

from trainyard.arrays.sigma.controller import IDLE
from trainyard.arrays.sigma.walkthrough import EXAMPLE, example, links, trace_product
from trainyard.errors import BadInput
from trainyard.hardware.reduction.adder_trees import ADD, BYPASS, Fan
from trainyard.report.walkthroughs.sigma import LINK, colour_of, figure


def segments(drawn, width):
    """Lines of one width, by colour."""
    found = {}
    for shape in drawn.layout.shapes:
        if shape.type == "path" and shape.line.width == width:
            found[shape.line.color] = shape.path.count("M")
    return found


@pytest.mark.parametrize(("given", "vector"), [(EXAMPLE, 0), (EXAMPLE, 2), (example(1), 1), (example(7), 3)])
def test_links_and_adders_are_drawn_once_each(given, vector):
    trace, drawn = trace_product(given), figure(given, vector=vector)
    switched = sum(len(links(unit, vector)) for unit in trace.units)
    added = 0
    for unit in trace.units:
        fan, ids = Fan(lanes=given.array.multipliers), unit.flex_dpe.vec_ids
        mode = fan.route(ids).mode
        added += 2 * int((mode == ADD).sum())
        added += sum(int(ids[lane] != IDLE) for one in np.flatnonzero(mode == BYPASS) for lane in (one, one + 1))
    assert sum(segments(drawn, LINK).values()) == switched + added
    circles = [shape for shape in drawn.layout.shapes if shape.type == "circle"]
    assert len(circles) == len(trace.units) * given.array.multipliers
    assert sum(shape.fillcolor != "rgba(0,0,0,0)" for shape in circles) == trace.allocation.useful


def test_a_dot_product_keeps_its_colour():
    drawn = figure(EXAMPLE)
    circles = [shape.fillcolor for shape in drawn.layout.shapes if shape.type == "circle"]
    assert circles == [colour_of(row) for row in (0, 0, 1, 1, 1, 2, 3, 3)]
    assert len({colour_of(row) for row in range(8)}) == 8


def test_a_row_in_two_flex_dpes_is_marked():
    texts = [text for trace in figure(EXAMPLE).data if trace.mode == "text" for text in trace.text]
    assert texts.count("row 1*") == 2
    assert {"row 0", "row 2", "row 3"} <= set(texts)


def test_it_can_be_read_without_being_seen():
    description = figure(EXAMPLE, vector=1).layout.meta["description"]
    assert "8 stationary values on 2 Flex-DPEs in 1 fold; 2 meet nothing" in description
    assert "Loading 2, streaming 3, add 3: 8 cycles" in description
    assert "row 0 gives 15, row 1 gives 50, row 2 gives 28, row 3 gives 46" in description


def test_a_vector_that_is_not_there_is_refused():
    with pytest.raises(BadInput, match="vector 3 of 3"):
        figure(EXAMPLE, vector=3)
