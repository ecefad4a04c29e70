"""When copies leave and come, for given decisions and a budget that holds by position: the plain twin of
`kernels.mapping.overlay`."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.mapping.overlay.policy import Choice, Decision, Problem, clean, completed, needs, orders, used_bytes, with_cost
from trainyard.units import PICOSECONDS_PER_SECOND


def placed(problem: Problem, decisions: Sequence[Decision], budget_bytes: int, *, early: bool = True) -> Choice | None:
    """When copies leave and come so that the budget holds by position; None where the decisions do not fit it.

    A copy out is waited for when it has ended anyway, or as late as its bytes find room. Then each fetch, the nearest need first,
    starts as early as its bytes find room (unless `early`: no earlier than hides it). With `early` copies out may take longer at
    last, where room is left.
    """
    least = completed(problem, decisions)
    used = list(used_bytes(problem, least))
    if max(used) > budget_bytes:
        return None
    out, back, again = orders(problem, least)
    first, end, saved = needs(problem, decisions).first, len(used), problem.saved
    leave_by, fetch_at = list(least.leave_by), list(least.fetch_at)
    now = free = 0
    gates: list[int] = []
    under_way: list[tuple[int, int]] = []  # (end, number), first in, first out
    for position in range(end):
        gate = now
        due = [index for index in back if first[index] == position and not saved[index].wraps]
        while under_way:
            ended, index = under_way[0]
            full = used[position] + sum(saved[other].bytes for _, other in under_way) > budget_bytes
            if not (full or ended <= gate or any(other in due for _, other in under_way)):
                break
            gate, leave_by[index] = max(gate, ended), position
            del under_way[0]
        used[position] += sum(saved[other].bytes for _, other in under_way)
        gates.append(gate)
        remade = sum(
            round((saved[index].recompute_s or 0.0) * PICOSECONDS_PER_SECOND)
            for index in again
            if least.recompute_at[index] == position
        )
        now = gate + remade + round(problem.durations_s[position] * PICOSECONDS_PER_SECOND)
        for index in (index for index in out if saved[index].last_forward == position):
            free = max(free, now) + problem.copy_ps(saved[index].bytes, problem.out_bytes_per_s)
            under_way.append((free, index))
    for _, index in under_way:
        leave_by[index] = end
    starts: list[int] = []
    for index in reversed(back):
        starts.append(min([gates[first[index]], *starts[-1:]]) - problem.copy_ps(saved[index].bytes, problem.in_bytes_per_s))
    before = 0
    for index, start in zip(back, reversed(starts), strict=True):
        hides = 0 if early else max((position for position, gate in enumerate(gates) if gate <= start), default=0)
        lowest = max(before, hides, 0 if saved[index].wraps else leave_by[index] or 0)
        at = first[index]
        while at > lowest and used[at - 1] + saved[index].bytes <= budget_bytes:
            at -= 1
            used[at] += saved[index].bytes
        fetch_at[index] = before = at
    for index in back if early else ():
        latest, leave = end if saved[index].wraps else fetch_at[index] or 0, leave_by[index] or 0
        while not clean(problem, decisions, index) and leave < latest and used[leave] + saved[index].bytes <= budget_bytes:
            used[leave] += saved[index].bytes
            leave += 1
        leave_by[index] = leave
    return with_cost(
        problem,
        Choice(decisions=least.decisions, leave_by=tuple(leave_by), fetch_at=tuple(fetch_at), recompute_at=least.recompute_at),
    )
