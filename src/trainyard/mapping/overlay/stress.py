"""The paper's stress test of a memory overlay: every tensor that can leave the device does (`overlay="all"`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from trainyard.errors import BadInput
from trainyard.mapping.overlay.policy import NEVER, Choice, Decision, Problem, completed, needs, orders, with_cost


def offload_all(
    problem: Problem,
    *,
    recompute: Literal["cheap", "none"] = "cheap",
    window: int | None = None,
    behind: int | None = None,
    depth: int | None = 1,
    keep: Iterable[int] = (),
) -> Choice:
    """The paper's stress test (Sec. IV): all is offloaded after its last use in forward, what is cheap is recomputed (footnote 4).

    `window`: at most so many tensors may be back before their first use: a fetch starts no earlier than the first use of the tensor
    `window` positions before it in the order of need. `behind`: at most so many copies out may be pending: the work that produces
    the tensor `behind` positions after it waits for a copy out (1 is vDNN's layer by layer). `depth`: at most so many tensors are
    recomputed one from another; along a residual or recurrent path without end all would come back at once. None: no limit.
    `keep` are the indices of tensors that stay.
    """
    if any(limit is not None and limit < 1 for limit in (window, behind, depth)):
        raise BadInput(f"window, behind and depth count tensors: at least 1 or None, got {window!r}, {behind!r} and {depth!r}")
    kept, saved = set(keep), problem.saved
    decisions: list[Decision] = []
    chain_length: list[int] = []  # recomputations one from another, this one included
    for index, tensor in enumerate(saved):
        longest = max((chain_length[source] for source in tensor.sources), default=0)
        between = tensor.first_backward == NEVER
        recomputes = tensor.recompute_s is not None and (
            between or not tensor.sendable or (recompute == "cheap" and (depth is None or longest < depth))
        )
        decisions.append("keep" if index in kept else "recompute" if recomputes else "send" if tensor.sendable else "keep")
        chain_length.append(longest + (not between) if decisions[-1] == "recompute" else 0)
    choice = completed(problem, decisions)
    first = needs(problem, decisions).first
    out, back, _ = orders(problem, choice)
    leave_by, fetch_at = list(choice.leave_by), list(choice.fetch_at)
    for place, index in enumerate(out):
        latest = len(problem.durations_s) if saved[index].wraps else first[index]
        if behind is not None and place + behind < len(out):
            latest = min(latest, saved[out[place + behind]].produced)
        leave_by[index] = max(latest, saved[index].last_forward + 1)
    for place, index in enumerate(back):
        earliest = 0 if saved[index].wraps else saved[index].last_forward + 1
        if window is not None and place >= window:
            earliest = max(earliest, first[back[place - window]])
        fetch_at[index] = earliest
    return with_cost(problem, replace(choice, leave_by=tuple(leave_by), fetch_at=tuple(fetch_at)))
