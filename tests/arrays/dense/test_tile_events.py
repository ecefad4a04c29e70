"""Events of many tiles at once against those of each tile as a product of its own."""

from __future__ import annotations

import numpy as np
import pytest

from trainyard.arrays import Spatial, Systolic, TensorCore
from trainyard.ir import MatMul
from trainyard.ir.folds import Tiles

SIZES = [(1, 1, 1), (7, 5, 3), (8, 8, 8), (9, 16, 17), (64, 1, 130), (3, 200, 64), (33, 65, 129), (100, 100, 1)]
ARRAYS = [
    Systolic(rows=4, columns=8, dataflow="ws"),
    Systolic(rows=8, columns=4, dataflow="os"),
    Systolic(rows=4, columns=4, dataflow="is"),
    Spatial(elements=16, macs_per_element=4),
    Spatial(elements=6, macs_per_element=3, buffer_bytes=256),
    TensorCore(tiles=3, rows=2, columns=4, lanes=4),
    TensorCore(tiles=16, rows=4, columns=4, lanes=4, multicast=False),
]


@pytest.mark.oracle
@pytest.mark.parametrize("array", ARRAYS, ids=str)
@pytest.mark.parametrize("count", [1, 3])
def test_events_of_a_column_of_tiles_are_those_of_each_tile_alone(array, count):
    m, n, k = (np.array(side, np.float64) for side in zip(*SIZES, strict=True))
    found = array.tile_events(Tiles(m, n, k, np.full(len(SIZES), float(count))))
    for number, size in enumerate(SIZES):
        expected = array.cost(MatMul(*size, count=count)).events
        assert expected["scratchpad_write_out"] - expected["scratchpad_read_out"] == size[0] * size[1] * count
        assert {name: float(np.broadcast_to(column, len(SIZES))[number]) for name, column in found.items()} == expected
