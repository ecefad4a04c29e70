"""Calls of torch.cuda that a training loop makes beside its work, on a computer without CUDA: waiting, memory statistics, streams.

They change nothing about the step, so while it is captured they do nothing; `torch.cuda.is_available()` keeps its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from trainyard.workloads.capture.autocast.replacing import Attribute

# fmt: off
_WITHOUT_EFFECT = """
    synchronize empty_cache ipc_collect reset_peak_memory_stats reset_max_memory_allocated reset_max_memory_cached
    reset_accumulated_memory_stats reset_peak_host_memory_stats manual_seed manual_seed_all seed seed_all set_device set_stream
    set_per_process_memory_fraction set_sync_debug_mode init
"""
_NUMBERS = """
    memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached max_memory_cached current_device
    utilization host_memory_usage
"""
_ACCELERATOR = """
    synchronize empty_cache reset_peak_memory_stats reset_accumulated_memory_stats memory_allocated max_memory_allocated
    memory_reserved max_memory_reserved memory_stats set_stream
"""
# fmt: on


class IdleStream:
    """A stream, or an event on it, of a GPU that is not there: everything on it is done."""

    cuda_stream = device_index = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cuda", 0)

    def __enter__(self) -> IdleStream:
        return self

    def __exit__(self, *error: object) -> None: ...

    def synchronize(self, *args: Any, **kwargs: Any) -> None: ...

    wait = wait_stream = wait_event = record = synchronize

    def record_event(self, event: IdleStream | None = None) -> IdleStream:
        return event or IdleStream()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: IdleStream) -> float:
        return 0.0


def _answer(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def calls_without_effect() -> list[Attribute]:
    """What to replace so that such calls return at once; nothing on a computer with CUDA."""
    if torch.cuda.is_available():
        return []
    answers: dict[str, Any] = {
        **{name: _answer(None) for name in _WITHOUT_EFFECT.split()},
        **{name: _answer(0) for name in _NUMBERS.split()},
        "memory_stats": lambda *_, **__: {},
        "memory_summary": _answer(""),
        "mem_get_info": _answer((0, 0)),
        "get_device_name": _answer("cuda"),
        "get_device_capability": _answer((9, 0)),
        "is_bf16_supported": _answer(True),
        "stream": lambda *_, **__: nullcontext(),
        "Stream": IdleStream,
        "Event": IdleStream,
        "current_stream": IdleStream,
        "default_stream": IdleStream,
    }
    owners = [(torch.cuda, answers)]
    owners.append((torch.cuda.nvtx, {name: _answer(0) for name in ("range_push", "range_pop", "range_start", "range_end", "mark")}))
    if hasattr(torch, "accelerator"):
        owners.append((torch.accelerator, {name: answers[name] for name in _ACCELERATOR.split()}))
    return [(owner, name, value) for owner, values in owners for name, value in values.items() if hasattr(owner, name)]
