"""The spatial array: its mapping against elements that really multiply."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.arrays import Spatial
from trainyard.errors import BadInput
from trainyard.ir import Array, MatMul

sizes = st.integers(1, 20)


@pytest.mark.oracle
@given(m=sizes, n=sizes, k=sizes, elements=st.sampled_from([1, 4, 6, 16]), width=st.integers(1, 5))
def test_execution_multiplies_in_the_cycles_of_the_closed_form(m, n, k, elements, width):
    array = Spatial(elements=elements, macs_per_element=width)
    random = np.random.default_rng(m * 400 + n * 20 + k)
    a, b = random.integers(-9, 9, (m, k)).astype(float), random.integers(-9, 9, (k, n)).astype(float)
    ran = array.execute(a, b)
    assert (ran.product == a @ b).all()
    assert ran.cycles == array.cost(MatMul(m, n, k)).cycles


@given(m=st.integers(1, 5000), n=st.integers(1, 5000), k=st.integers(1, 5000))
def test_no_grid_is_better_and_work_is_never_faster_than_peak(m, n, k):
    array = Spatial()
    cycles = array.tile_cycles(m, n, k)
    assert cycles == min(-(-m // p) * -(-n // (1024 // p)) * -(-k // 125) for p in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024))
    assert cycles * array.peak_macs_per_cycle >= m * n * k


def test_a_vector_times_a_matrix_fills_the_array():
    assert Spatial().grid(1, 4096) == (1, 1024)
    assert Spatial().utilisation(MatMul(1, 1024, 125)) == 1.0


def test_the_paper_device_has_128_000_macs_and_a_block_that_fits_half_a_buffer():
    array = Spatial()
    assert isinstance(array, Array)
    assert array.peak_macs_per_cycle == 128_000
    side = array.block
    assert (side**2 + 2 * side * 125) * 4 <= 16 * 1024 < ((side + 1) ** 2 + 2 * (side + 1) * 125) * 4


def test_a_larger_buffer_reads_operands_less_often():
    op = MatMul(4096, 4096, 1000)
    small, large = (Spatial(buffer_bytes=size).cost(op).events["scratchpad_read_a"] for size in (8192, 65536))
    assert small > large >= op.M * op.K


def test_a_buffer_too_small_for_one_output_is_refused():
    with pytest.raises(BadInput, match="does not hold one output"):
        Spatial(buffer_bytes=1000)
