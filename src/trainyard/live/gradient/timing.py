"""How long a call takes on the device when calls follow each other.

The device is held up by a long fill while the host issues the calls, so that the time between the two events is the device's alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor

Key = TypeVar("Key", bound=Hashable)
FILL_BYTES = 2**30  # assumed: 250 us on the fastest GPU, in which a host issues several calls


@lru_cache(maxsize=2)
def _fill(device: torch.device) -> Tensor:
    return torch.empty(FILL_BYTES // 4, dtype=torch.int32, device=device)


def device_seconds(work: Callable[[], Any], device: torch.device, repeats: int = 5, calls: int = 4) -> float:
    """Median over `repeats` of the time of one in `calls` calls that follow each other."""
    spans: list[float] = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for _ in range(2):
            _fill(device).zero_()
        start.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        spans.append(start.elapsed_time(end) * 1e-3 / calls)
    return statistics.median(spans)


def fastest(options: Mapping[Key, Callable[[], Any]], device: torch.device) -> tuple[Key, dict[Key, float]]:
    """The option with the shortest time on the device, and every option's time. One that cannot be launched is left out."""
    seconds: dict[Key, float] = {}
    failure: Exception | None = None
    for key, work in options.items():
        try:
            work()  # compiles
            seconds[key] = device_seconds(work, device)
        except Exception as error:  # too many registers or too much shared memory for this device: compilers have no common error
            failure = error
    _fill.cache_clear()
    if not seconds:
        raise failure or ValueError("no option to time")
    return min(seconds, key=lambda key: seconds[key]), seconds
