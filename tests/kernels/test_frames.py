"""Room for the frames of deep calls: the same answers, and no memory asked for at every call."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any

import pytest

from trainyard.kernels.compilation import call_with_room


def leaf(first: int, second: int) -> int:
    third, fourth = first + 1, second + 1
    return third + fourth


def calls_at_depth(depth: int) -> int:
    """Two hundred calls, made at so many calls below this one."""
    if depth:
        return calls_at_depth(depth - 1)
    return sum(leaf(number, number) for number in range(200))


def page_faults(call: Callable[[], Any]) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    call()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def at_every_depth() -> list[int]:
    return [calls_at_depth(depth) for depth in range(300)]


def test_results_and_errors_are_those_of_the_function() -> None:
    assert call_with_room(divmod, 7, 2) == (3, 1)
    assert call_with_room(at_every_depth) == at_every_depth()
    with pytest.raises(ZeroDivisionError):
        call_with_room(divmod, 7, 0)


def test_calls_at_any_depth_ask_for_no_memory() -> None:
    call_with_room(at_every_depth)
    assert page_faults(lambda: call_with_room(at_every_depth)) < 200  # of 60,000 calls
