"""Joules of a step by component and row in one compiled call, where all products are of one format. The same loops one by one:
`devices.accelerator.batch_costs.BatchCosts` and `systems.step_columns`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from trainyard.kernels.mapping.event_counts import product_events, stream_events
from trainyard.kernels.mapping.product_costs import cell_edges, chain_shares, energy_rows, joules

Ints = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@njit(cache=True, error_model="numpy")
def step_energy(
    counted: Real, place: Ints, which: Ints, rows: Ints, source: Ints, target: Ints, size: Real, formats: Flags, mac: int,
    products: Real, moves: Real, product_rows: Ints, waiting: Real, chains: Ints, drained: Real, lengths: Ints,
    streams: Real, reads: Real, stream_rows: Ints, event: Ints, component: Ints, each: Real, stream_event: Ints,
    stream_component: Ints, stream_each: Real, components: int, cycles: Ints, first_cell: Ints, cell: Ints, cell_demand: Ints,
) -> Any:  # fmt: skip
    """Energy by [component, row], and the largest count of an event. Arguments are those of the loops that are called here; of
    `joules` those of products, then those of streams."""
    total = np.zeros((components, cycles.shape[0]))
    counts, largest = product_events(counted, place, which, source, target, size, formats, mac, products, moves)
    joules(counts, event, component, each, rows, total)
    if stream_rows.shape[0]:
        streamed, most = stream_events(streams, reads)
        joules(streamed, stream_event, stream_component, stream_each, stream_rows, total)
        largest = max(largest, most)
    shares = chain_shares(cycles, product_rows, waiting, chains, drained, lengths)
    _, _, share = cell_edges(shares, product_rows[chains], first_cell)
    return energy_rows(total, cell, cell_demand, share), largest
