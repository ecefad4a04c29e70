"""The grouped layout and its transposers: every value found, one access for a block, and numpy's own transposes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadInput
from trainyard.hardware.formats.bank_layout import TRANSPOSED, Layout, Transposer, transposers_needed

sizes = st.integers(1, 11)
groups = st.sampled_from([1, 2, 3, 4, 5])


@st.composite
def tensors(draw):
    shape = draw(sizes), draw(sizes), draw(sizes)
    tensor = np.random.default_rng(sum(shape)).integers(1, 10**6, shape)
    return tensor, Layout(channels=shape[0], height=shape[1], width=shape[2], group=draw(groups))


@pytest.mark.oracle
@given(built=tensors())
def test_every_block_is_g_consecutive_channels_and_loading_gives_the_tensor_back(built):
    tensor, layout = built
    memory, size = layout.store(tensor), layout.group
    assert memory.shape == (layout.elements,)
    assert (layout.load(memory) == tensor).all()
    expected = np.zeros((layout.channels + size, layout.height, layout.width + size), int)
    expected[: layout.channels, :, : layout.width] = tensor
    seen = set()
    for channel in range(0, layout.grid[0] * size, size):
        for y in range(layout.height):
            for x in range(layout.grid[2] * size):
                at = layout.block(channel, y, x)
                seen.add(at)
                assert (memory[at : at + size] == expected[channel : channel + size, y, x]).all()
    assert seen == set(range(0, layout.elements, size))  # every block once


def test_groups_are_aligned_and_in_channel_y_x_order():
    layout = Layout(channels=8, height=3, width=8)
    places = [(c, y, x) for c in (0, 4) for y in range(3) for x in (0, 4)]
    assert [layout.block(*place) for place in places] == [16 * number for number in range(len(places))]
    assert layout.block(0, 0, 1) - layout.block(0, 0, 0) == 4  # blocks of a group are neighbours along X


@given(built=tensors(), more=st.integers(0, 60))
def test_the_blocks_of_a_group_lie_in_different_banks(built, more):
    _, layout = built
    size, banks = layout.group, layout.group + more
    for x in range(0, layout.grid[2] * size, size):
        assert len({layout.bank(0, layout.height - 1, x + at, banks) for at in range(size)}) == size


@pytest.mark.oracle
@given(built=tensors())
def test_a_transposer_swaps_channels_and_x(built):
    tensor, layout = built
    memory, cycles = Transposer(group=layout.group).transpose(layout.store(tensor), layout)
    assert (memory == layout.transposed.store(tensor.transpose(2, 1, 0))).all()
    assert (layout.transposed.load(memory) == tensor.transpose(2, 1, 0)).all()
    assert cycles == Transposer(group=layout.group).cycles(layout.groups)


def test_a_weight_is_transposed_from_channels_to_filters():
    """Filters stand where X does: a transposed block is one channel of g filters, what grad_input sums over."""
    weight = np.random.default_rng(0).integers(1, 99, (8, 6, 3, 3))  # filters, channels, kernel
    tensor = weight.reshape(8, 6, 9).transpose(1, 2, 0)
    layout = Layout(channels=6, height=9, width=8)
    memory, _ = Transposer().transpose(layout.store(tensor), layout)
    at = layout.transposed.block(4, 5, 2)
    assert memory[at : at + 4].tolist() == weight[4:8, 2, 5 // 3, 5 % 3].tolist()


@pytest.mark.probe
def test_the_first_transposed_block_leaves_when_its_group_is_complete():
    """Four blocks in, then one out in each cycle while the next group fills: 1 group in 8 cycles, 10 in 44."""
    one = Transposer()
    for count in (1, 2, 10):
        blocks = np.arange(16 * count).reshape(-1, 4)
        assert one.run(blocks)[1] == 4 * (count + 1) == one.cycles(count)
    assert one.cycles(0) == one.run(np.zeros((0, 4)))[1] == 0


@given(blocks=st.integers(0, 10**6), cycles=st.integers(1, 10**5))
def test_transposers_needed_keep_up_and_one_less_does_not(blocks, cycles):
    count = transposers_needed(blocks, cycles)
    assert count * cycles >= blocks
    assert count == 0 or (count - 1) * cycles < blocks


def test_forward_needs_no_transposing_and_a_weight_gradient_both():
    assert TRANSPOSED == {"forward": (), "grad_input": ("W",), "grad_weight": ("A", "G")}


def test_arguments_of_a_wrong_shape_raise():
    layout = Layout(channels=6, height=2, width=5)
    with pytest.raises(BadInput, match="does not fit"):
        layout.store(np.zeros((5, 2, 6)))
    with pytest.raises(BadInput, match="does not hold"):
        layout.load(np.zeros(60))
    for place in ((1, 0, 0), (8, 0, 0), (0, 2, 0), (0, 0, 8), (-4, 0, 0)):
        with pytest.raises(BadInput, match="no block starts at"):
            layout.block(*place)
    with pytest.raises(BadInput, match="whole groups of 4 blocks"):
        Transposer().run(np.zeros((6, 4)))
    with pytest.raises(BadInput, match="does not fit groups of 4"):
        Transposer(group=2).transpose(layout.store(np.zeros((6, 2, 5))), layout)
    with pytest.raises(BadInput, match="cycles above 0"):
        transposers_needed(4, 0)
    with pytest.raises(BadInput, match="group must be a positive"):
        Layout(channels=1, height=1, width=1, group=0)
