"""Costs put together from an array's cycles: kernels on chip, on one core and on several."""

from __future__ import annotations

from typing import Any

import pytest

from trainyard.arrays import Eie
from trainyard.devices import Accelerator
from trainyard.ir import DeviceCost, MatMul, Op, Step, TensorSpec

ARRAY = Eie(elements=4, loading="left out")
"""Two closed forms: rows of A or columns of B are dealt out to four elements, which take an element of the other in a cycle."""


def fused(M: int, N: int, K: int, count: int, **fields: Any) -> DeviceCost:
    """A kernel of one op, whose operands are on chip."""
    device = Accelerator(array=ARRAY, scratchpad="1 MiB", dram="1 TB/s", clock="1 GHz", dram_latency="0 s", **fields)
    tensors = tuple(map(TensorSpec, ((count, M, K), (count, K, N), (count, M, N))))
    step = Step("kernel", 1, (Op(body=MatMul(M, N, K, count), inputs=(0, 1), outputs=(2,), fused=1),), tensors)
    (work,) = device.works(step)
    return device.cost(step, work)


@pytest.mark.parametrize(
    ("shape", "cycles"),
    [((8, 1, 5, 1), 2 * 1 * 5), ((1, 8, 5, 1), 2 * 1 * 5), ((8, 8, 5, 1), 2 * 8 * 5), ((8, 1, 5, 3), 3 * 10)],
)
def test_a_kernel_on_chip_takes_the_faster_of_the_arrays_closed_forms(shape: tuple[int, int, int, int], cycles: int) -> None:
    assert fused(*shape).compute_cycles == cycles


@pytest.mark.parametrize(
    ("shape", "cores", "cycles"),
    [
        ((8, 1, 5, 4), 2, 2 * 10),  # two products on each core
        ((8, 1, 5, 3), 2, 2 * 10),
        ((8, 1, 5, 1), 2, 1 * 5),  # four rows on each core
        ((9, 1, 5, 1), 2, 2 * 5),
        ((2, 8, 5, 1), 4, 2 * 5),  # a row each, two cores have none
    ],
)
def test_cores_share_equal_products_or_the_rows_of_one(shape: tuple[int, int, int, int], cores: int, cycles: int) -> None:
    assert fused(*shape, cores=cores, reuse="lru").compute_cycles == cycles
