"""The layout of a tensor in banked memories, which every product of training can read, and the transposers between them.

M. Mahmoud et al.: TensorDash: Exploiting Sparsity to Accelerate Deep Neural Network Training. MICRO 2020, Sec. III-A.

Values lie in groups of g x g (4 x 4): g blocks next to each other along X, each of g consecutive channels. Groups follow each other
in channel, Y, X order (read here as X running fastest), and each block lies in one bank, so that any g consecutive channels at one
position come with one access. A product that sums over X instead (or over filters, which take X's axis in a weight tensor) reads
a group's blocks into a transposer, which gives them back transposed: value j of each of them is its block j.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_positive
from trainyard.errors import BadInput
from trainyard.ir import Letter
from trainyard.ir.ops import ProductOf

Values = npt.NDArray[Any]

TRANSPOSED: Mapping[ProductOf, tuple[Letter, ...]] = {
    "forward": (),  # A and W lie along the channels that are summed over
    "grad_input": ("W",),  # sums over filters; G's channels are those filters
    "grad_weight": ("A", "G"),  # sums over positions, or over samples where there are none
}
"""The operands that pass the transposers, by product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A tensor (channels, height, width) in groups; edges are padded with zeros.

    >>> tensor = np.arange(4 * 2 * 8).reshape(4, 2, 8)
    >>> layout = Layout(channels=4, height=2, width=8)
    >>> layout.store(tensor)[layout.block(0, 1, 5) :][:4]  # one access: four channels at y = 1, x = 5
    array([13, 29, 45, 61])
    """

    channels: int
    height: int
    width: int
    group: int = 4

    def __post_init__(self) -> None:
        require_positive("Layout", channels=self.channels, height=self.height, width=self.width, group=self.group)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Groups along channels, Y and X."""
        return -(-self.channels // self.group), self.height, -(-self.width // self.group)

    @property
    def groups(self) -> int:
        return int(np.prod(self.grid))

    @property
    def elements(self) -> int:
        """Elements in memory, including the padding at the edges."""
        return self.groups * self.group**2

    @property
    def transposed(self) -> Layout:
        """The layout of the tensor with X and channels swapped."""
        return Layout(channels=self.width, height=self.height, width=self.channels, group=self.group)

    def block(self, channel: int, y: int, x: int) -> int:
        """Address of the block that holds g channels from `channel` on, at (y, x)."""
        deep, high, wide = self.grid
        if channel % self.group or not (0 <= channel < deep * self.group and 0 <= y < high and 0 <= x < wide * self.group):
            raise BadInput(
                f"no block starts at channel {channel}, y {y}, x {x} of {self}: channels in steps of {self.group}, "
                f"y below {high}, x below {wide * self.group}"
            )
        group_number = (channel // self.group * high + y) * wide + x // self.group
        return (group_number * self.group + x % self.group) * self.group

    def bank(self, channel: int, y: int, x: int, banks: int) -> int:
        """The bank of a block: consecutive blocks go to consecutive banks, so g banks or more serve a group without conflict."""
        return self.block(channel, y, x) // self.group % banks

    def store(self, tensor: Values) -> Values:
        """The tensor as a flat memory."""
        if tensor.shape != (self.channels, self.height, self.width):
            raise BadInput(f"a tensor of shape {tensor.shape} does not fit {self}")
        deep, high, wide = self.grid
        filled = np.zeros((deep * self.group, high, wide * self.group), tensor.dtype)
        filled[: self.channels, :, : self.width] = tensor
        return filled.reshape(deep, self.group, high, wide, self.group).transpose(0, 2, 3, 4, 1).reshape(-1)

    def load(self, memory: Values) -> Values:
        """The tensor from its memory, without the zeros at the edges."""
        if memory.shape != (self.elements,):
            raise BadInput(f"a memory of shape {memory.shape} does not hold {self}: {self.elements} elements")
        deep, high, wide = self.grid
        grouped = memory.reshape(deep, high, wide, self.group, self.group).transpose(0, 4, 1, 2, 3)
        return grouped.reshape(deep * self.group, high, wide * self.group)[: self.channels, :, : self.width]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transposer:
    """A g x g buffer between memory banks and tiles that takes a group block by block and gives it back transposed.

    assumed: one block in and one block out per cycle (the width of a bank's port), and a second buffer that fills meanwhile; the
    paper says neither. So n groups take g (n + 1) cycles.
    """

    group: int = 4

    def __post_init__(self) -> None:
        require_positive("Transposer", group=self.group)

    def cycles(self, groups: int) -> int:
        return self.group * (groups + 1) if groups else 0

    def run(self, blocks: Values) -> tuple[Values, int]:
        """Blocks as they come from the banks, (n g, g), cycle by cycle: those that leave, and the cycles until the last has.

        >>> Transposer(group=2).run(np.array([[1, 2], [3, 4]]))
        (array([[1, 3],
               [2, 4]]), 4)
        """
        size = self.group
        if blocks.ndim != 2 or blocks.shape[1] != size or len(blocks) % size:
            raise BadInput(f"a transposer takes whole groups of {size} blocks of {size} values, got shape {blocks.shape}")
        buffers = np.zeros((2, size, size), blocks.dtype)
        rows, left = [0, 0], [0, 0]  # how many blocks a buffer holds, how many of a full one have left
        leaving: list[Values] = []
        taken = cycles = filling = giving = 0
        while len(leaving) < len(blocks):
            cycles += 1
            if rows[giving] == size:
                leaving.append(buffers[giving, :, left[giving]].copy())
                left[giving] += 1
            if taken < len(blocks) and rows[filling] < size:
                buffers[filling, rows[filling]] = blocks[taken]
                rows[filling] += 1
                taken += 1
                if rows[filling] == size:
                    filling = 1 - filling
            if left[giving] == size:
                rows[giving] = left[giving] = 0
                giving = 1 - giving
        return np.array(leaving, blocks.dtype).reshape(-1, size), cycles

    def transpose(self, memory: Values, layout: Layout) -> tuple[Values, int]:
        """A whole stored tensor through one transposer: the memory of the transposed one (`layout.transposed`), and the cycles."""
        if layout.group != self.group:
            raise BadInput(f"a transposer of {self.group} x {self.group} does not fit groups of {layout.group}")
        deep, high, wide = layout.grid
        blocks, cycles = self.run(memory.reshape(-1, self.group))
        grouped = blocks.reshape(deep, high, wide, self.group, self.group)
        return grouped.transpose(2, 1, 0, 3, 4).reshape(-1), cycles


def transposers_needed(blocks: float, cycles: float) -> int:
    """Transposers that keep the tiles busy, which read so many transposed blocks in these cycles; each delivers one a cycle.

    >>> transposers_needed(blocks=6400, cycles=100), transposers_needed(6401, 100), transposers_needed(0, 100)
    (64, 65, 0)
    """
    if blocks < 0 or cycles <= 0:
        raise BadInput(f"transposers for {blocks} blocks in {cycles} cycles: give a count of at least 0 and cycles above 0")
    return int(-(-blocks // cycles))
