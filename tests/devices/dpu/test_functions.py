"""Operations of ops that are no products: counted for each body, in software and on lanes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainyard.devices.dpu.functions import operations, software
from trainyard.hardware.dpu.instructions import Arithmetic
from trainyard.ir import Body, Collective, Copy, ElementWise, Gather, MatMul, Reduction, Update

UNIT = Arithmetic(add=2, multiply=10, divide=40, compare=1, rescale=3)  # a multiplication and its rescaling are 13, with a sum 15


@pytest.mark.parametrize(
    ("body", "instructions"),
    [
        (ElementWise("relu", 7), 7 * 1),
        (ElementWise("add", 7), 7 * 2),
        (ElementWise("mul", 7), 7 * 13),
        (ElementWise("div", 7), 7 * 40),
        (ElementWise("lerp", 7, 3), 7 * 3 * 15),  # not listed
        (ElementWise("sigmoid", 7, 4), 7 * (4 * 15 + 40)),  # four steps of a series and a division
        (Reduction("sum", 12, 3), 12 * 2),
        (Reduction("native_layer_norm", 12, 12, 2), 2 * 12 * 15),
        (Reduction("softmax", 12, 12, 3), 12 * (4 * 15 + 40 + 2 * 2)),  # exponentials in one pass, sums in the two others
        (Update("SGD", 5, 4), 5 * 4 * 15),
        (Gather(8, 16, 100), 0),
        (Gather(8, 16, 100, scatter=True), 8 * 16 * 2),
        (Copy("cat", 9), 0),
    ],
    ids=str,
)
def test_instructions_are_those_of_the_arithmetic_of_each_operation(body: Body, instructions: int) -> None:
    assert software(body, UNIT) == instructions


def test_a_function_that_is_read_from_a_table_takes_one_lookup() -> None:
    table = replace(UNIT, lookup=8)
    assert software(ElementWise("sigmoid", 7, 4), table) == 7 * 8
    assert software(Reduction("softmax", 12, 12, 3), table) == 12 * (8 + 2 * 2)


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (ElementWise("gelu", 7, 9), 63),
        (Update("SGD", 5, 4), 20),
        (Reduction("softmax", 12, 12, 3), 36),
        (Gather(8, 16, 100), 0),
        (Gather(8, 16, 100, scatter=True), 128),
        (Copy("cat", 9), 0),
        (Collective("all_reduce", 64, 1), 0),
        (MatMul(2, 3, 5, 7), 210),
    ],
    ids=str,
)
def test_a_lane_does_one_operation_in_a_cycle(body: Body, count: int) -> None:
    assert operations(body) == count
