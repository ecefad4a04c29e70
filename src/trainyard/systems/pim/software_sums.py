"""Reductions by DPUs that have crossbars but no AGAU: they share the additions, in software.

Reduce-scatter and all-gather (R. Thakur, R. Rabenseifner, W. Gropp: Optimization of Collective Communication Operations in MPICH.
2005). In a group of g, DPU i receives the i-th part of every member's data, adds g - 1 parts of size / g, and sends the sum to all.
Between C groups DPU i does the same on its part with the DPUs i of all other groups, then its own group gathers. Messages are point
to point: in round k every DPU sends to the k-th DPU after it; DPUs add at the rate of their pipelines.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainyard.hardware.crossbar.hierarchy import Crossbar, Exchanged

MOST_FLOWS = 200_000
"""Above it the closed form replaces the simulation of messages."""


def local(crossbar: Crossbar, size_bytes: int, group: int, bytes_per_s: float, *, analytic: bool = False) -> Exchanged:
    """All-reduce inside every group.

    >>> four = local(Crossbar(units=4), 4000, 4, 1e9)
    >>> round(four.bytes_by_level[0] / 4000)  # there and back three quarters of everybody's data, up and down a port
    12
    """
    gathered = gather(crossbar, size_bytes, group, analytic=analytic)
    return scatter(crossbar, size_bytes, group, bytes_per_s, analytic=analytic) + gathered


def scatter(crossbar: Crossbar, size_bytes: int, group: int, bytes_per_s: float, *, analytic: bool = False) -> Exchanged:
    """Reduce-scatter inside every group: every member has the sum of its part."""
    exchanged = gather(crossbar, size_bytes, group, analytic=analytic)
    return replace(exchanged, time_s=exchanged.time_s + (group - 1) * -(-size_bytes // group) / bytes_per_s)


def across(crossbar: Crossbar, size_bytes: int, group: int, bytes_per_s: float, *, analytic: bool = False) -> Exchanged:
    """All-reduce over all groups of data that every member of a group has; every unit receives the sum."""
    groups = crossbar.units // group
    part = -(-size_bytes // crossbar.units)
    pairs = _all_pairs(crossbar, np.arange(crossbar.units).reshape(groups, group), part, analytic)
    gathered = gather(crossbar, size_bytes, group, analytic=analytic)
    exchanged = pairs + pairs + gathered
    return replace(exchanged, time_s=exchanged.time_s + (groups - 1) * part / bytes_per_s)


def gather(crossbar: Crossbar, size_bytes: int, group: int, *, analytic: bool = False) -> Exchanged:
    """All-gather inside every group."""
    return _in_all_groups(
        crossbar, _all_pairs(crossbar.for_units(group), np.arange(group), -(-size_bytes // group), analytic), group
    )


def _in_all_groups(crossbar: Crossbar, exchanged: Exchanged, group: int) -> Exchanged:
    """The time of one group with the bytes and events of all groups."""
    groups = crossbar.units // group
    return replace(
        exchanged,
        bytes_by_level=tuple(groups * carried for carried in exchanged.bytes_by_level),
        events={name: groups * count for name, count in exchanged.events.items()},
    )


def _all_pairs(crossbar: Crossbar, units: np.ndarray, size_bytes: int, analytic: bool) -> Exchanged:
    """Along the first axis of `units`, every unit sends `size_bytes` to every other unit."""
    count = len(units)
    sources = np.concatenate([units.ravel() for _ in range(1, count)] or [np.empty(0, np.int64)])
    destinations = np.concatenate(
        [np.roll(units, -distance, axis=0).ravel() for distance in range(1, count)] or [np.empty(0, np.int64)]
    )
    model = crossbar.analytic if analytic or len(sources) > MOST_FLOWS else crossbar.simulate
    return model.traffic(sources, destinations, np.full(len(sources), size_bytes, np.int64))
