"""Exchanges with real data, along the very messages that were simulated, in the order in which they were delivered.

Every message is a slice of an array that is carried link by link (`carried_bytes` counts them); a reducer adds when all it waits
for is there. The order of a sum does not depend on time: what the reducer has itself comes first, then the senders in the order
of their numbers, from left to right, or, given an AGAU with `reduce`, in the order of its tree. `plain_sum` is that order without
any network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput
from trainyard.hardware.crossbar.collectives import Pattern, all_reduce, local, summer_of
from trainyard.hardware.crossbar.hierarchy import Crossbar, Exchanged, Summer, counted
from trainyard.hardware.crossbar.messages import PICOSECONDS_PER_SECOND, Integers64, run

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Executed:
    """What each unit and reducer holds in the end (by endpoint), the bytes on each link, and the simulated exchange."""

    values: dict[int, Array]
    carried_bytes: Integers64
    exchanged: Exchanged


def added(contributions: list[Array], summer: Any) -> Array:
    """In the stated order."""
    if hasattr(summer, "reduce"):
        return np.asarray(summer.reduce(np.stack(contributions)))
    total = contributions[0].copy()
    for more in contributions[1:]:
        total += more
    return total


def plain_sum(pattern: Pattern, brought: dict[int, Array], summer: Any) -> dict[int, Array]:
    """The sum of every reducer, without messages: what `execute` must give, bit for bit."""
    totals: list[Array] = []
    for each in pattern.sums:
        parts = [brought[each.reducer]] if each.brings else [totals[each.own]] if each.own is not None else []
        for number in each.flows:
            flow = pattern.flows[number]
            parts.append(brought[flow.source] if flow.after is None else totals[flow.after])
        totals.append(added(parts, summer))
    return dict(enumerate(totals))


def execute_local(
    crossbar: Crossbar, arrays: Array, group: int, *, agau: Summer | None = None, sum_bytes_per_s: float | None = None
) -> Executed:
    """`arrays` [units, elements]: every unit ends with the sum of its group."""
    _require_rows(arrays, crossbar.units, "units")
    summer = summer_of(agau, sum_bytes_per_s) if group > 1 else None
    pattern = local(crossbar, group, agau is not None)
    return _executed(crossbar, pattern, {unit: arrays[unit] for unit in range(crossbar.units)}, summer, arrays)


def execute_all_reduce(
    crossbar: Crossbar,
    arrays: Array,
    group: int,
    *,
    agau: Summer | None = None,
    sum_bytes_per_s: float | None = None,
    members: bool = False,
) -> Executed:
    """`arrays` [groups, elements]: what each group has; all of them (with `members` all units) end with the sum."""
    pattern = all_reduce(crossbar, group, agau is not None, members)
    groups = crossbar.units // group
    _require_rows(arrays, groups, "groups")
    summer = summer_of(agau, sum_bytes_per_s) if groups > 1 else None
    ends = [crossbar.units + number if agau is not None else number * group for number in range(groups)]
    return _executed(crossbar, pattern, {end: arrays[number] for number, end in enumerate(ends)}, summer, arrays)


def _executed(crossbar: Crossbar, pattern: Pattern, brought: dict[int, Array], summer: Summer | None, arrays: Array) -> Executed:
    tree, item, elements = pattern.tree, arrays.itemsize, arrays.shape[1]
    if crossbar.message_bytes % item:
        raise BadInput(
            f"Crossbar: messages of {crossbar.message_bytes} bytes cut elements of {item} bytes: write a multiple of {item}"
        )
    pieces = crossbar.pieces(elements * item)
    values = {endpoint: array.copy() for endpoint, array in brought.items()}
    carried = np.zeros(tree.link_count, np.int64)
    if not pieces or not pattern.flows:
        return Executed(values, carried, counted(crossbar, tree, carried, 0.0))
    traffic = pattern.traffic(pieces, summer)
    ran = run(tree, traffic, crossbar.switching, crossbar.arbitration)
    exchanged = counted(crossbar, tree, ran.carried_bytes, ran.end_ps / PICOSECONDS_PER_SECOND, traffic.messages, ran.events)
    length, flows, sums = crossbar.message_bytes // item, len(pattern.flows), len(pattern.sums)
    came: dict[int, Array] = {}
    totals: dict[int, Array] = {}
    happens = [(time, 0, message) for message, time in enumerate(ran.delivered_ps.tolist())]
    happens += [(time, 1, number) for number, time in enumerate(ran.summed_ps.tolist())]
    for _, is_sum, number in sorted(happens):
        if is_sum:
            piece, at = divmod(number, sums)
            cut, each = slice(piece * length, (piece + 1) * length), pattern.sums[at]
            own = [brought[each.reducer][cut]] if each.brings else [totals[piece * sums + each.own]] if each.own is not None else []
            totals[number] = added([*own, *(came.pop(piece * flows + flow) for flow in each.flows)], summer)
            values.setdefault(each.reducer, np.zeros(elements, arrays.dtype))[cut] = totals[number]
            continue
        piece, at = divmod(number, flows)
        cut, flow = slice(piece * length, (piece + 1) * length), pattern.flows[at]
        sent = brought[flow.source][cut] if flow.after is None else totals[piece * sums + flow.after]
        for destination, data in _carried(pattern, at, sent, carried):
            if flow.feeds is None:
                values.setdefault(destination, np.zeros(elements, arrays.dtype))[cut] = data
            else:
                came[number] = data
    return Executed(values, carried, exchanged)


def _carried(pattern: Pattern, at: int, sent: Array, carried: Integers64) -> list[tuple[int, Array]]:
    """A message to its ends, link by link, a copy at each fork."""
    flow, tree = pattern.flows[at], pattern.tree
    arriving = []
    under_way = [(int(tree.out_links[flow.source]), list(flow.destinations), sent)]
    while under_way:
        link, ends, data = under_way.pop()
        carried[link] += data.nbytes
        ways: dict[int, list[int]] = {}
        for end in ends:
            ways.setdefault(tree.step(link, end), []).append(end)
        for way, reached in ways.items():
            if way < 0:
                arriving.append((reached[0], data))
            else:
                under_way.append((way, reached, data.copy()))
    return arriving


def _require_rows(arrays: Array, rows: int, of: str) -> None:
    if arrays.ndim != 2 or len(arrays) != rows:
        raise BadInput(f"Crossbar: expected one row of elements for each of {rows} {of}, got an array {list(arrays.shape)}")
