"""The Pareto front: points that no other point beats in one objective without being worse in another.

>>> front([("a", {"t": 1, "e": 3}), ("b", {"t": 2, "e": 2}), ("c", {"t": 2, "e": 3})], {"t": "min", "e": "min"})
['a', 'b']
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping

from trainyard.errors import BadInput
from trainyard.sweep.records import Record

Row = tuple[str, Mapping[str, float]]


def front(rows: Iterable[Row | Record], objectives: Mapping[str, str]) -> list[str]:
    """Keys on the front, in the order of the records. Equal points are all on it, failed ones never."""
    if not objectives:
        raise BadInput("a front of what? give objectives such as {'time_s': 'min'}")
    named = [
        (number, key, point)
        for number, (key, values) in enumerate(_pairs(rows))
        if (point := _costs(values, objectives)) is not None
    ]
    costs = sorted({point for _, _, point in named})
    on_front = _front_of_two(costs) if len(objectives) <= 2 else _front_of_many(costs)
    return [key for _, key, point in named if point in on_front]


def best(rows: Iterable[Row | Record], objectives: Mapping[str, str]) -> dict[str, str]:
    """For each objective, the key of the best point that has it, the first of equals."""
    best_of: dict[str, tuple[float, str]] = {}
    for key, values in _pairs(rows):
        for name in objectives:
            cost = _costs(values, {name: objectives[name]})
            if cost is not None and (name not in best_of or cost[0] < best_of[name][0]):
                best_of[name] = (cost[0], key)
    return {name: key for name, (_, key) in best_of.items()}


def _pairs(rows: Iterable[Row | Record]) -> Iterable[Row]:
    for row in rows:
        if not isinstance(row, Record):
            yield row
        elif not row.failed:
            yield row.key, row.metrics


def _costs(values: Mapping[str, float], objectives: Mapping[str, str]) -> tuple[float, ...] | None:
    """What is to be small; None where a number is missing or is none."""
    costs = tuple(values.get(name, math.nan) * (1 if direction == "min" else -1) for name, direction in objectives.items())
    return None if any(math.isnan(cost) for cost in costs) else costs


def _front_of_two(costs: list[tuple[float, ...]]) -> set[tuple[float, ...]]:
    """Sorted by the first: a point stays if it is below all before it in the last. O(n log n) with the sort."""
    on_front: set[tuple[float, ...]] = set()
    lowest = math.inf
    for cost in costs:
        if cost[-1] < lowest or not on_front:
            on_front.add(cost)
            lowest = min(lowest, cost[-1])
    return on_front


def _front_of_many(costs: list[tuple[float, ...]]) -> set[tuple[float, ...]]:
    """Costs are sorted, so that only points already on the front can dominate a later one."""
    on_front: set[tuple[float, ...]] = set()
    by_second: list[tuple[tuple[float, ...], tuple[float, ...]]] = []
    for cost in costs:
        reach = bisect_right(by_second, (cost[1:], cost))
        if not any(all(a <= b for a, b in zip(other, cost, strict=True)) for _, other in by_second[:reach]):
            on_front.add(cost)
            insort(by_second, (cost[1:], cost))
    return on_front
