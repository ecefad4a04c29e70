"""Interleaved gradient order: dX and dW of a layer, tile by tile, so that dY is read once (IGO, MICRO 2023).

In reading order: `tile_streams` is the order of tile operations, `scratchpad` its traffic and cycles, `execution` the same with
real numbers; `partition` chooses the axis along which a layer is cut, `search` finds order, tiles and partition together, `bound`
is the least traffic of any order. Across layers: `links` finds layers whose gradients can be fused, `chain` is the traffic and
cycles of two fused layers, `chain_search` their tiles, `works` makes them one Work. `walkthrough` prints a small example.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainyard.lazy import exports

if TYPE_CHECKING:
    from trainyard.mapping.gradient_order.scratchpad import traffic

__all__ = [
    "traffic",
]  # fmt: skip

__getattr__ = exports(
    __name__,
    {
        "traffic": "scratchpad",
    },
)
