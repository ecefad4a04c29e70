"""The order in which tiles of dX and dW are computed: IGO's streams of tile operations, Secs. 4.2, 4.3 and 5.

The forward product is Y(M,N) = X(M,K) W(K,N); dX(M,K) = dY W^T sums over n, dW(K,N) = X^T dY over m. Tiles are cut along the
forward product's M, N and K. Loops from outer to inner:

| order          | tile operations                                                                        |
|----------------|----------------------------------------------------------------------------------------|
| `sequential`   | all of dX (m, k, n), then all of dW (k, n, m)                                           |
| `interleaved`  | the same two streams, one tile operation of each in turn, dX first                      |
| `dx_major`     | m, k, n: dX, then dW, on the same three tiles: dY goes by in rows                       |
| `dw_major`     | n, k, m: dX, then dW, on the same three tiles: dY goes by in columns                    |
| `no_second_dy` | as sequential; the bound of Sec. 3.3: what dW reads of dY costs nothing                 |
| `dx_major_mnk` | m, n, k: as dx_major, but a tile of dY serves all k before the next one comes            |
| `dw_major_nmk` | n, m, k: as dw_major, in the same way                                                   |

Sec. 4.3 wants dY reused to the full at the expense of dX and dW, which is what k innermost does; Fig. 10 can be read both ways.

A partition cuts one axis into parts (Fig. 11): m shares the weights, n shares X, k shares dY. On one core the parts follow each
other. On several, part p is done by core p, all cores in step, out of one scratchpad.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from trainyard.checks import require_positive
from trainyard.errors import BadInput, UnknownName
from trainyard.ir import MatMul
from trainyard.ir.folds import AXES, Axis

Order = Literal["sequential", "interleaved", "dx_major", "dw_major", "no_second_dy", "dx_major_mnk", "dw_major_nmk"]
ORDERS: tuple[Order, ...] = get_args(Order)[:5]
K_INNER_ORDERS: tuple[Order, ...] = ("dx_major_mnk", "dw_major_nmk")
"""dXmajor and dWmajor with k innermost: no search tries them, a machine is told to."""
ALL_ORDERS: tuple[Order, ...] = (*ORDERS, *K_INNER_ORDERS)
FUSED_ORDERS: tuple[Order, ...] = ("interleaved", "dx_major", "dw_major")
"""Orders that fuse dX and dW and that a machine can run."""
# fmt: off
FUSED_LOOPS: Mapping[str, tuple[str, str]] = {  # loops of dX and of dW, outer to inner
    "interleaved":  ("mkn", "knm"),
    "dx_major":     ("mkn", "mkn"),
    "dw_major":     ("nkm", "nkm"),
    "dx_major_mnk": ("mnk", "mnk"),
    "dw_major_nmk": ("nmk", "nmk"),
}
# fmt: on
Gradient = Literal["dX", "dW"]
Size = tuple[int, int, int]


class TileOp(NamedTuple):
    """One product of tiles: which gradient, the numbers of its tiles along m, n and k, and the core that does it."""

    gradient: Gradient
    m: int
    n: int
    k: int
    core: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """An axis cut into `parts`, one after the other on one core, or each on a core of its own."""

    axis: Axis
    parts: int
    cores: bool = False

    def __post_init__(self) -> None:
        if self.axis not in AXES:
            raise UnknownName("axis", str(self.axis), AXES, where="Partition")
        require_positive("Partition", parts=self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """How a product is cut: sizes of the tiles along each axis, and which of them each part of the partitioned axis has."""

    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    axis: Axis | None = None
    parts: tuple[range, ...] = ()

    def sizes(self, axis: Axis) -> tuple[int, ...]:
        return {"m": self.m, "n": self.n, "k": self.k}[axis]


def grid(op: MatMul, tile: Size, partition: Partition | None = None) -> Grid:
    """Tiles of a forward product. Part p of an axis begins at extent * p // parts and has tiles of its own.

    >>> grid(MatMul(10, 4, 4), (4, 4, 2))
    Grid(m=(4, 4, 2), n=(4,), k=(2, 2), axis=None, parts=())
    >>> grid(MatMul(10, 4, 4), (4, 4, 2), Partition(axis="m", parts=2))
    Grid(m=(4, 1, 4, 1), n=(4,), k=(2, 2), axis='m', parts=(range(0, 2), range(2, 4)))
    """
    if not isinstance(tile, Sequence) or len(tile) != 3:
        raise BadInput(f"a tile has three sizes (m, n, k), got {tile!r}")
    require_positive("tile", **dict(zip(AXES, tile, strict=True)))
    sizes: dict[str, tuple[int, ...]] = {}
    parts: list[range] = []
    for axis, extent, size in zip(AXES, (op.M, op.N, op.K), tile, strict=True):
        if partition is None or axis != partition.axis:
            sizes[axis] = _cut(extent, size)
            continue
        count = min(partition.parts, extent)
        tiles: tuple[int, ...] = ()
        for part in range(count):
            piece = _cut(extent * (part + 1) // count - extent * part // count, size)
            parts.append(range(len(tiles), len(tiles) + len(piece)))
            tiles += piece
        sizes[axis] = tiles
    return Grid(m=sizes["m"], n=sizes["n"], k=sizes["k"], axis=partition.axis if partition else None, parts=tuple(parts))


def _cut(extent: int, size: int) -> tuple[int, ...]:
    full_tiles, rest = divmod(extent, size)
    return (size,) * full_tiles + ((rest,) if rest else ())


def stream(cut: Grid, order: Order, partition: Partition | None = None) -> Iterator[tuple[TileOp, ...]]:
    """Steps in order; each is what the cores do at the same time, at most one tile operation a core.

    >>> [ops[0][:4] for ops in stream(grid(MatMul(4, 2, 2), (2, 2, 2)), "dx_major")]
    [('dX', 0, 0, 0), ('dW', 0, 0, 0), ('dX', 1, 0, 0), ('dW', 1, 0, 0)]
    """
    require_order(order)
    parts = [_part(cut, order, number) for number in range(len(cut.parts) or 1)]
    if partition is None or not partition.cores:
        for ops in itertools.chain(*parts):
            yield (ops,)
        return
    for step in itertools.zip_longest(*parts):
        yield tuple(op._replace(core=core) for core, op in enumerate(step) if op is not None)


def require_order(order: str) -> None:
    if order not in ALL_ORDERS:
        raise UnknownName("order", str(order), ALL_ORDERS)


def _part(cut: Grid, order: Order, number: int) -> Iterator[TileOp]:
    """The stream of one part."""
    loops = {axis: range(len(cut.sizes(axis))) for axis in AXES}
    if cut.axis is not None:
        loops[cut.axis] = cut.parts[number]

    def nest(axes: str, gradient: Gradient) -> Iterator[TileOp]:
        for at in itertools.product(*(loops[axis] for axis in axes)):  # type: ignore[index]  # letters of AXES
            where = dict(zip(axes, at, strict=True))
            yield TileOp(gradient, where["m"], where["n"], where["k"])

    if order in ("sequential", "no_second_dy"):
        return itertools.chain(nest("mkn", "dX"), nest("knm", "dW"))
    axes_dx, axes_dw = FUSED_LOOPS[order]
    pairs = zip(nest(axes_dx, "dX"), nest(axes_dw, "dW"), strict=True)
    return itertools.chain.from_iterable(pairs)
