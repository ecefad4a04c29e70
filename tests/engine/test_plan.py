"""The task table: what it refuses, and that one call a task and columns in bulk make the same plan."""

from __future__ import annotations

import numpy as np
import pytest

from trainyard.errors import BadInput
from trainyard.ir import Plan, TaskClass
from trainyard.ir.plan import _BLOCK_MASK, Columns


def small_plan() -> Plan:
    plan = Plan()
    plan.stream("device")
    plan.link("bus", 1e12)
    plan.pool("hbm", 100)
    plan.task(0, 5)
    return plan


# fmt: off
REFUSALS = [
    (lambda p: p.task(0, -1),                              "duration_ps must be at least 0, got -1"),
    (lambda p: p.task(0, 1.5),                             "duration_ps must be a whole number, got 1.5"),
    (lambda p: p.task(0, 2**62),                           "below 2\\*\\*62"),
    (lambda p: p.task(1, 5),                               "stream 1 is not known \\(there are 1\\)"),
    (lambda p: p.task(-1, 5),                              "stream must be at least 0"),
    (lambda p: p.task(0, 5, after=[1]),                    "task 1 cannot wait for task 1"),
    (lambda p: p.task(0, 5, after=[-1]),                   "task 1 cannot wait for task -1"),
    (lambda p: p.task(0, 5, kind=3),                       "unknown class 3"),
    (lambda p: p.transfer([]),                             "at least one flow"),
    (lambda p: p.transfer([([], 5)]),                      "at least one link"),
    (lambda p: p.transfer([([1], 5)]),                     "link 1 is not known"),
    (lambda p: p.transfer([([0, 0], 5)]),                  "crosses a link twice"),
    (lambda p: p.transfer([([0], -5)]),                    "bytes must be at least 0"),
    (lambda p: p.transfer([([0], 5)], stream=2),           "stream 2 is not known"),
    (lambda p: p.transfer([([0], 5)], after=[9]),          "cannot wait for task 9"),
    (lambda p: p.link("bus", 0),                           "link 'bus': bytes_per_s"),
    (lambda p: p.link("bus", float("nan")),                "link 'bus': bytes_per_s"),
    (lambda p: p.link("bus", 1e16),                        "link 'bus': bytes_per_s"),
    (lambda p: p.link("bus", 1e9, -1e-9),                  "link 'bus': latency_s"),
    (lambda p: p.pool("hbm", -1),                          "pool 'hbm': capacity_bytes"),
    (lambda p: p.take(1, 0, 5),                            "task 1 is not known"),
    (lambda p: p.take(0, 1, 5),                            "pool 1 is not known"),
    (lambda p: p.give(0, 0, -5),                           "bytes given back must be at least 0"),
    (lambda p: p.tasks([0, 1], [5, 5]),                    "task 2 is refused: its stream"),
    (lambda p: p.tasks(0, [5, -5]),                        "task 2 is refused: its duration_ps"),
    (lambda p: p.tasks(0, [5, 5], kinds=[0, 3]),           "task 2 is refused: its class"),
    (lambda p: p.tasks(0, [5, 5], after=[0, 2]),           "task 2 is refused: it may wait only"),
    (lambda p: p.tasks(0, [5, 5], after=[-2, 0]),          "task 1 is refused: it may wait only"),
    (lambda p: p.tasks(0, [5.0, 5.0]),                     "durations_ps must hold whole numbers, got float64"),
    (lambda p: p.tasks([0, 0, 0], [5, 5]),                 "streams must hold one number or 2"),
]
# fmt: on


@pytest.mark.parametrize(("act", "message"), REFUSALS)
def test_an_invalid_call_raises_and_leaves_the_plan_unchanged(act, message):
    plan = small_plan()
    before = plan.columns()
    with pytest.raises(BadInput, match=message):
        act(plan)
    assert len(plan) == 1
    assert_same(plan.columns(), before)


def test_a_tag_that_is_no_integer_is_refused_when_the_columns_are_made():
    plan = small_plan()
    plan.task(0, 5, tag="layer1")
    with pytest.raises(BadInput, match="no 64-bit integer"):
        plan.columns()


def test_durations_beyond_the_clock_are_refused():
    plan = small_plan()
    for _ in range(2):
        plan.task(0, 2**61)
    with pytest.raises(BadInput, match="more than the clock can count"):
        plan.columns()


def test_bulk_tasks_equal_single_ones_across_blocks():
    count = _BLOCK_MASK + 50
    numbers = np.arange(count)
    after = np.stack([numbers - 1, np.where(numbers % 3 == 0, numbers - 7, -1)], axis=1).clip(-1)
    single, bulk = Plan(), Plan()
    for plan in (single, bulk):
        for stream in range(4):
            plan.stream(f"device {stream}")
    for number in range(count):
        waits = tuple(int(earlier) for earlier in after[number] if earlier >= 0)
        assert single.task(number % 4, number, after=waits, kind=TaskClass(number % 3), tag=-number) == number
    half = count // 2
    assert bulk.tasks(
        numbers[:half] % 4, numbers[:half], after=after[:half], kinds=numbers[:half] % 3, tags=-numbers[:half]
    ) == range(half)
    for number in range(half, half + 3):
        waits = after[number][after[number] >= 0]
        bulk.task(int(number % 4), numbers[number], after=waits, kind=TaskClass(number % 3), tag=-numbers[number])
    rest = numbers[half + 3 :]
    bulk.tasks(rest % 4, rest, after=after[half + 3 :], kinds=rest % 3, tags=-rest)
    assert len(single) == len(bulk) == count
    assert_same(single.columns(), bulk.columns())


def test_classes_have_the_names_of_the_report():
    assert [str(kind) for kind in TaskClass] == ["compute", "synchronisation", "copy"]


def assert_same(actual: Columns, expected: Columns) -> None:
    for name in Columns.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name), err_msg=name)
