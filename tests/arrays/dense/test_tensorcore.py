"""Tiles of dot-product units: the closed form, the machine at work, the steps of a known layout."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.arrays import TensorCore
from trainyard.errors import BadInput
from trainyard.ir import Convolution, MaskView, MatMul
from trainyard.kernels.arrays.dealing import makespan

small = st.integers(1, 9)


@given(
    m=small, n=small, k=small, lanes=st.integers(1, 5), rows=st.integers(1, 4), columns=st.integers(1, 4), tiles=st.integers(1, 5)
)
def test_it_multiplies_in_the_cycles_of_the_closed_form(m, n, k, lanes, rows, columns, tiles):
    array = TensorCore(lanes=lanes, rows=rows, columns=columns, tiles=tiles)
    random = np.random.default_rng(m * 100 + n * 10 + k)
    a, b = random.standard_normal((m, k)), random.standard_normal((k, n))
    done = array.execute(a, b)
    np.testing.assert_allclose(done.product, a @ b, atol=1e-12)
    assert done.cycles == array.cost(MatMul(m, n, k)).cycles == array.tile_cycles(m, n, k)


@given(cycles=st.lists(st.integers(0, 50), min_size=1, max_size=30), repeats=st.integers(1, 5), units=st.integers(1, 9))
def test_blocks_are_dealt_to_whoever_is_free_first(cycles, repeats, units):
    free = [0] * units
    for length in cycles:
        for _ in range(repeats):
            heapq.heapreplace(free, free[0] + length)
    assert makespan(np.array(cycles), repeats, units) == max(free)


@given(
    cycles=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), min_size=1, max_size=30),
    repeats=st.integers(1, 3),
    units=st.integers(1, 9),
)
def test_shorter_blocks_never_end_later(cycles, repeats, units):
    short = np.array([first for first, _ in cycles])
    longer = np.array([first + more for first, more in cycles])
    assert makespan(short, repeats, units) <= makespan(longer, repeats, units)


class Bits:
    digest = "tensorcore"

    def bits(self, key):
        return np.ones({"A": (2, 3, 6, 6), "G": (2, 8, 6, 6)}[key[2]], dtype=bool)


def test_the_layout_of_a_known_tensor_counts_its_fragments():
    """Three channels on four lanes: a step for each tap, not 27 / 4; 36 positions of each sample, not 72 / 4."""
    body = Convolution(batch=2, in_channels=3, out_channels=8, size=(6, 6), kernel=(3, 3), padding=(1, 1))
    array = TensorCore(tiles=1)
    forward = MaskView(Bits(), ("layer", 0, "A"), body, place="A")
    assert array.cost(MatMul(72, 8, 27), a=forward).cycles == 18 * 2 * 9
    assert array.cost(MatMul(72, 8, 27)).cycles == 18 * 2 * 7
    gradient = MaskView(Bits(), ("layer", 0, "G"), body.as_product("grad_weight"), place="G")
    assert TensorCore(tiles=1, lanes=8).cost(MatMul(27, 8, 72), b=gradient).cycles == 7 * 2 * 2 * 5


def test_multicast_saves_reads_of_the_large_memories_and_nothing_else():
    shared, alone = (TensorCore(multicast=cast).cost(MatMul(512, 512, 64)).events for cast in (True, False))
    assert {name for name in shared if shared[name] != alone[name]} == {"scratchpad_read_a", "scratchpad_read_b"}
    assert alone["scratchpad_read_a"] == alone["local_write_a"] == 512 * 64 * 128
    assert shared["scratchpad_read_a"] == 512 * 64 * 8  # 16 of 128 columns of blocks at a time


def test_bad_sizes_are_refused():
    with pytest.raises(BadInput, match="lanes must be"):
        TensorCore(lanes=0)
    body = Convolution(batch=2, in_channels=3, out_channels=8, size=(6, 6), kernel=(3, 3), padding=(1, 1))
    with pytest.raises(BadInput, match="one by one"):
        TensorCore().cost(MatMul(72, 8, 27, count=2), a=MaskView(Bits(), ("layer", 0, "A"), body, place="A"))
