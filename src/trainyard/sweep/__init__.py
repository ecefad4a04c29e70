"""Many points of a design: study files, content-addressed points, a store that survives anything, executors.

May import everything but the web and the command line. A study is `study.py`, its axes `axes.py`; a point and its key `points.py`;
the folder of results `store.py`; who runs points `executors.py`; the loop `running.py`. A new executor is one class with `map`.

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
