"""A step as columns: which of its demands are costed at once."""

from __future__ import annotations

from typing import Any

import pytest

from trainyard.devices.accelerator.step_shape import step_shape
from trainyard.ir import ElementWise, MatMul, Op, Step, TensorSpec
from trainyard.machines import machine

TENSORS = tuple(map(TensorSpec, ((8, 6), (6, 4), (8, 4), (3, 8, 6), (3, 6, 4), (3, 8, 4), (32,), (32,))))
STEP = Step(
    "three",
    1,
    (
        Op(body=MatMul(8, 4, 6), inputs=(0, 1), outputs=(2,), name="one"),
        Op(body=MatMul(8, 4, 6, 3), inputs=(3, 4), outputs=(5,), name="heads"),
        Op(body=ElementWise("exp", 32, 2), inputs=(6,), outputs=(7,), name="exp"),
    ),
    TENSORS,
)


@pytest.mark.parametrize(
    ("which", "products", "others"), [("all", [0, 1], ()), ("single", [0], (1,)), ("none", [], (0, 1)), ("masked", [], (0, 1))]
)
def test_products_are_columns_by_what_the_array_can_do_and_streams_always_are(
    which: Any, products: list[int], others: tuple[int, ...]
) -> None:
    shape = step_shape(STEP, machine("npu").policy, which)
    assert shape is not None
    assert shape.products.rows.tolist() == products
    assert shape.others == others
    assert shape.streams.rows.tolist() == [2]
    assert shape.streams.table.tolist() == [[128, 128, 64, 0, -1]]  # bytes in and out, operations; nothing comes again


def test_a_row_has_the_bytes_of_each_operand_the_result_and_the_sums() -> None:
    shape = step_shape(STEP, machine("npu").policy, "all")
    assert shape is not None
    one = [8 * 6 * 4, 6 * 4 * 4, 8 * 4 * 4, 8 * 4 * 4, 0, 8 * 4 * 4, 0]
    assert shape.products.table.tolist() == [one, [3 * size for size in one]]
    assert shape.products.shapes.dims.tolist() == [[8, 4, 6, 1], [8, 4, 6, 3]]


def test_a_step_of_more_bytes_than_are_counted_exactly_has_no_columns() -> None:
    most = 2**50  # four bytes an element, in and out
    for elements, counted in ((most - 1, True), (most, False)):
        op = Op(body=ElementWise("exp", elements), inputs=(0,), outputs=(1,))
        step = Step("large", 1, (op,), (TensorSpec((elements,)), TensorSpec((elements,))))
        assert (step_shape(step, machine("npu").policy, "all") is not None) is counted
