"""Many points of a design: study files, content-addressed points, a store that survives a kill, executors.

A `study` file names workloads, a machine and `axes`; `binding` resolves them to fields. `points` has what a point is made of and
its key, `metrics` and `records` what it comes to, `store` the folder of records, `seals` what tells that a file was altered.
`running` is the loop, over `executors` or `on_ray`; `search` asks optuna in place of the grid, `pareto` finds the front, `page`
draws it. May import every room but `web` and `cli`. A new executor is a class with `map`.

The room is also the function: `trainyard.sweep("study.toml", workers=2)` is `trainyard.sweep.running.sweep`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """A module that can be called: the room and the verb have one name."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from trainyard.sweep.running import sweep

        return sweep(*arguments, **options)


sys.modules[__name__].__class__ = _Room
