"""Events of many dense tiles at once, as columns. The plain twin is `Sigma.cost` of each tile, one product at a time.

Every count follows from the stationary operand's elements and the vectors streamed past them, so that a column of tiles takes a few
array operations. Where both operands may be stationary, each tile has the events of the faster choice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trainyard.ir.folds import Tiles

if TYPE_CHECKING:
    from trainyard.arrays.sigma.array import Side, Sigma


def dense_tile_events(array: Sigma, tiles: Tiles) -> dict[str, Any]:
    """The events of each tile, `count` times over."""
    first, *others = (_with_stationary(array, tiles, side) for side in array.stationary_sides)
    cycles, events = first
    for other_cycles, other_events in others:
        is_faster = other_cycles < cycles
        events = {name: np.where(is_faster, other_events[name], values) for name, values in events.items()}
    return {name: values * tiles.count for name, values in events.items()}


def _with_stationary(array: Sigma, tiles: Tiles, side: Side) -> tuple[Any, dict[str, Any]]:
    """Cycles and events of one product with this operand stationary."""
    across, vectors = (tiles.M, tiles.N) if side == "a" else (tiles.N, tiles.M)
    pool, stationary, streaming = array.peak_macs_per_cycle, across * tiles.K, vectors * tiles.K
    folds = -(-stationary // pool)
    if array.streaming == "wide":
        rest = stationary - (folds - 1) * pool
        passes, streamed = folds, streaming * ((folds - 1) * np.minimum(1.0, pool / tiles.K) + np.minimum(1.0, rest / tiles.K))
        spilled_sums = vectors * np.maximum(0.0, passes - 1)
    else:
        chunks, tail = tiles.K // array.bandwidth, tiles.K % array.bandwidth
        in_chunk, in_tail = -(-across * array.bandwidth // pool), -(-across * tail // pool)
        passes, streamed = chunks * in_chunk + in_tail, vectors * (array.bandwidth * chunks * in_chunk + tail * in_tail)
        spilled_sums = vectors * np.maximum(0.0, passes - 1) * across
    drains = passes if array.streaming == "limited" and array.drain == "pass" else folds
    useful = tiles.M * tiles.N * tiles.K
    events = {
        "mac": useful,
        "multiplication": useful,
        "addition": useful,
        "multiplier_slot": passes * vectors * pool,
        "scratchpad_write_out": tiles.M * tiles.N + spilled_sums,
        "scratchpad_read_a": stationary if side == "a" else streamed,
        "scratchpad_read_b": streamed if side == "a" else stationary,
        "scratchpad_read_out": spilled_sums,
        "stationary_load": stationary,
        "broadcast": stationary + streamed,
        "distribution": stationary + useful,
    }
    return -(-stationary // array.bandwidth) + passes * vectors + array.add_cycles * drains, events
