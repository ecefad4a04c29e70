"""Sums of DPUs that have crossbars but no AGAU: they share the work, in software.

Reduce-scatter and all-gather (R. Thakur, R. Rabenseifner, W. Gropp: Optimization of Collective Communication Operations in MPICH.
2005). In a group of g, DPU i takes the i-th part of everybody's data, adds up g - 1 parts of size / g, and gives the sum to all.
Between C groups DPU i does the same with the DPUs i of all others on its part, and its own group gathers after that. Point to
point, every DPU to the one k places on at the k-th turn; a machine's DPUs add up at the rate of their pipelines.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainyard.hardware.crossbar.hierarchy import Crossbar, Exchanged

MOST_FLOWS = 200_000
"""Above it the closed form stands in for messages."""


def local(crossbar: Crossbar, size_bytes: int, group: int, bytes_per_s: float, *, analytic: bool = False) -> Exchanged:
    """In every group: all members' data summed, and the sum to all of them.

    >>> four = local(Crossbar(units=4), 4000, 4, 1e9)
    >>> round(four.bytes_by_level[0] / 4000)  # there and back three quarters of everybody's data, up and down a port
    12
    """
    back = gather(crossbar, size_bytes, group, analytic=analytic)
    return scatter(crossbar, size_bytes, group, bytes_per_s, analytic=analytic) + back


def scatter(crossbar: Crossbar, size_bytes: int, group: int, bytes_per_s: float, *, analytic: bool = False) -> Exchanged:
    """The first half of it: every member has the sum of its part."""
    there = gather(crossbar, size_bytes, group, analytic=analytic)
    return replace(there, time_s=there.time_s + (group - 1) * -(-size_bytes // group) / bytes_per_s)


def across(crossbar: Crossbar, size_bytes: int, group: int, bytes_per_s: float, *, analytic: bool = False) -> Exchanged:
    """Data that every member of a group has, summed over all groups; the sum to all units."""
    groups = crossbar.units // group
    part = -(-size_bytes // crossbar.units)
    there = _all_pairs(crossbar, np.arange(crossbar.units).reshape(groups, group), part, analytic)
    spread = gather(crossbar, size_bytes, group, analytic=analytic)
    both = there + there + spread
    return replace(both, time_s=both.time_s + (groups - 1) * part / bytes_per_s)


def gather(crossbar: Crossbar, size_bytes: int, group: int, *, analytic: bool = False) -> Exchanged:
    """In every group: each member's part to all of them."""
    return _in_all_groups(
        crossbar, _all_pairs(crossbar.for_units(group), np.arange(group), -(-size_bytes // group), analytic), group
    )


def _in_all_groups(crossbar: Crossbar, one: Exchanged, group: int) -> Exchanged:
    groups = crossbar.units // group
    return replace(
        one,
        bytes_by_level=tuple(groups * carried for carried in one.bytes_by_level),
        events={name: groups * count for name, count in one.events.items()},
    )


def _all_pairs(crossbar: Crossbar, units: np.ndarray, size_bytes: int, analytic: bool) -> Exchanged:
    """Along the first axis of `units` everybody sends so many bytes to everybody else."""
    several = len(units)
    sources = np.concatenate([units.ravel() for _ in range(1, several)] or [np.empty(0, np.int64)])
    destinations = np.concatenate([np.roll(units, -turn, axis=0).ravel() for turn in range(1, several)] or [np.empty(0, np.int64)])
    way = crossbar.analytic if analytic or len(sources) > MOST_FLOWS else crossbar.simulate
    return way.traffic(sources, destinations, np.full(len(sources), size_bytes, np.int64))
