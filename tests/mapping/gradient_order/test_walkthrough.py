"""The told walk-through: what it marks is what was moved, and its table is the model's."""

from __future__ import annotations

import pytest

from trainyard.errors import BadInput
from trainyard.mapping.gradient_order.scratchpad import traffic
from trainyard.mapping.gradient_order.tile_streams import ORDERS
from trainyard.mapping.gradient_order.walkthrough import (
    EXAMPLE,
    ORDER_DESCRIPTIONS,
    SHOWN,
    example,
    execute_order,
    parse_example,
    walkthrough,
)

CASES = [EXAMPLE, example((2, 2, 3), room=3), example((1, 4, 2), room=7, seed=5)]


def strips(text, order):
    """Lines of an order by their name, its strips joined."""
    rows = {"step": [], "sum": [], "dY": [], "with": [], "out": []}
    inside = False
    for line in text.splitlines():
        words = line.split()
        if line and not line.startswith(" "):
            inside = line.startswith(order + ":")
        elif inside and words and words[0] in rows:
            rows[words[0]] += words[1:]
    return rows


@pytest.mark.parametrize("given", CASES)
@pytest.mark.parametrize("order", SHOWN)
def test_marks_are_what_was_moved(given, order):
    rows, ran = strips(walkthrough(given), order), execute_order(given, order)
    size = given.tile_bytes
    assert len(rows["step"]) == len(rows["sum"]) == len(ran.steps)
    assert sum(cell.endswith("*") for cell in rows["dY"]) * size == ran.bytes["dY", "read"]
    for tensor in ("W", "X"):
        assert sum(cell.startswith(tensor) and "*" in cell for cell in rows["with"]) * size == ran.bytes[tensor, "read"]
    for tensor in ("dX", "dW"):
        sums = [cell for cell in rows["sum"] if cell.startswith(tensor)]
        assert sum("!" in cell for cell in sums) * size == ran.bytes[tensor, "write"]
        back, out = sum("~" in cell for cell in sums), sum(cell.startswith(tensor) for cell in rows["out"])
        assert back == out
        assert (back + out) * size == ran.bytes.get((tensor, "spill"), 0)


@pytest.mark.parametrize("given", CASES)
def test_the_table_is_the_models(given):
    lines = walkthrough(given).split("\n\nbytes")[1].splitlines()
    rows = {line.split()[0]: [int(cell) for cell in line.split()[1:]] for line in lines[1:6]}
    assert tuple(rows) == ORDERS == tuple(ORDER_DESCRIPTIONS)
    for order, cells in rows.items():
        moved = traffic(given.op, tile=given.tile, capacity_bytes=given.capacity_bytes, element_bytes=4, order=order)
        assert cells[-1] == moved.total_bytes
        assert cells[:3] == [moved.bytes[name, "read"] for name in ("dY", "W", "X")]
    assert lines[-2].startswith("at least")
    assert int(lines[-2].split()[-1]) == sum(array.nbytes for array in (given.dy, given.w, given.x, given.x, given.w))
    assert lines[-1] == "all orders give dY W^T and X^T dY"


def test_t0_is_read_once_for_both_gradients_when_they_are_brought_together():
    """Fig. 9: sequential reads it for every use, dXmajor once for each pair of uses; interleaving keeps it for the first dW."""
    told = [line.strip() for line in walkthrough().splitlines() if "T0 is used" in line]
    assert told == [
        "T0 is used in steps 1, 4, 19, 28 and read in steps 1, 4, 19, 28",
        "T0 is used in steps 1, 2, 7, 20 and read in steps 1, 7, 20",
        "T0 is used in steps 1, 2, 7, 8 and read in steps 1, 7",
        "T0 is used in steps 1, 2, 7, 8 and read in steps 1, 7",
    ]


def test_fig_10_how_the_gradients_go_through_dy():
    """Rows for dX and columns for dW (a); rows for both (b); columns for both (c)."""
    lines = walkthrough().splitlines()
    at = [number for number, line in enumerate(lines) if "first meet" in line]
    grids = [[[int(word) for word in line.split()] for line in lines[number + 1 : number + 4]] for number in at]
    assert grids[1] == [[1, 3, 5, 2, 8, 14], [13, 15, 17, 4, 10, 16], [25, 27, 29, 6, 12, 18]]
    assert grids[2] == [[1, 3, 5, 2, 4, 6], [13, 15, 17, 14, 16, 18], [25, 27, 29, 26, 28, 30]]
    assert grids[3] == [[1, 13, 25, 2, 14, 26], [3, 15, 27, 4, 16, 28], [5, 17, 29, 6, 18, 30]]


def test_examples_by_name():
    assert parse_example("") is EXAMPLE
    assert parse_example("2x3x1").op == example((2, 3, 1)).op
    assert parse_example("2x3x1:4").capacity_bytes == 64
    assert "T0 is used in steps 1, 2 and read in step 1\n" in walkthrough(parse_example("1x1x1:3"))
    for wrong, said in (("7", "such as 3x3x2"), ("0x1x1", "positive"), ("9x9x9", "1458 operations"), ("2x2x2:2", "48 bytes")):
        with pytest.raises(BadInput, match=said):
            walkthrough(parse_example(wrong))


@pytest.mark.probe
def test_an_example_has_at_most_256_operations():
    assert example((8, 4, 4)).op.macs == 16 * 8 * 8
    with pytest.raises(BadInput, match=r"\(43, 3, 1\) tiles make 258 operations: give at most 256"):
        example((43, 3, 1))
