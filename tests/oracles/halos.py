"""The elements under the windows of every tile of a convolution, counted one by one."""

from __future__ import annotations

import itertools
import math

from trainyard.ir import Convolution


def elements_of_tiles(body: Convolution, size: int, dilated: bool = False) -> list[int]:
    """Distinct elements of one channel that each tile of `size` consecutive positions needs: of X, or of dY where dilated."""
    positions = list(itertools.product(range(body.batch), *map(range, body.size if dilated else body.out_size)))
    tiles = [positions[start : start + size] for start in range(0, len(positions), size)]
    return [len(set().union(*(_window(body, position, dilated) for position in tile))) for tile in tiles]


def _window(body: Convolution, position: tuple[int, ...], dilated: bool) -> set[tuple[int, ...]]:
    image, *where = position
    elements = set()
    for taps in itertools.product(*map(range, body.kernel)):
        if dilated:
            parts = [
                divmod(at + body.padding[axis] - tap * body.dilation[axis], body.stride[axis])
                for axis, (at, tap) in enumerate(zip(where, taps, strict=True))
            ]
            spot = tuple(out for out, _ in parts)
            inside = all(rest == 0 and 0 <= out < body.out_size[axis] for axis, (out, rest) in enumerate(parts))
        else:
            spot = tuple(
                at * body.stride[axis] + tap * body.dilation[axis] - body.padding[axis]
                for axis, (at, tap) in enumerate(zip(where, taps, strict=True))
            )
            inside = all(0 <= at < extent for at, extent in zip(spot, body.size, strict=True))
        if inside:
            elements.add((image, *spot))
    return elements


def mean_spread(body: Convolution, size: int, dilated: bool = False) -> float:
    """Mean elements of a tile, in rows of the matrix: all elements that any window needs are all rows."""
    counts = elements_of_tiles(body, size, dilated)
    positions = body.batch * math.prod(body.size if dilated else body.out_size)
    needed = elements_of_tiles(body, positions, dilated)[0]
    return sum(counts) / len(counts) * positions / needed
