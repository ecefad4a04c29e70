"""Interleaved gradient order: dX and dW of a layer, tile by tile, so that dY is read once (IGO, MICRO 2023).

In reading order: `tile_streams` is the order of tile operations, `scratchpad` what it moves and how long it takes, `execution` the
same with real numbers; `partition` cuts a layer, `search` finds order, tiles and partition, `bound` the least that must move;
`chain`, `chain_search`, `links` and `works` go on into the next layer; `walkthrough` shows a small case as text.
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
