"""Times of the first passes of a plan, from the model's call to the end of backward."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from trainyard.live.paging.measures import clock_of
from trainyard.live.paging.signature import tensors_of

TIMED = 20
"""Passes of a plan whose time is measured."""


class PassTimes:
    """Times of a model's passes, until `TIMED` of them are known; nothing is hooked before `restart` and after `stop`."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model, self._clock = model, clock_of(device)
        self._spans: deque[tuple[Any, Any]] = deque(maxlen=TIMED)
        self._hook: RemovableHandle | None = None
        self._start: Any = None

    def restart(self) -> None:
        self.stop()
        self._spans.clear()
        self._hook = self._model.register_forward_hook(self._after_forward)

    def stop(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def begin(self) -> None:
        """Before a pass."""
        if self._hook is not None:
            self._start = self._clock.moment()

    def seconds(self) -> list[float]:
        self._clock.finish()
        return [self._clock.seconds(start, end) for start, end in self._spans]

    def _after_forward(self, module: nn.Module, arguments: tuple[Any, ...], result: Any) -> None:
        output = next((tensor for tensor in tensors_of(result) if tensor.requires_grad), None)
        if output is None or torch._C._current_autograd_node() is not None:
            return
        start, is_first = self._start, [True]

        def backward_done() -> None:
            self._spans.append((start, self._clock.moment()))
            if len(self._spans) == TIMED:
                self.stop()

        def backward_begins(gradient: Tensor) -> None:
            if is_first and is_first.pop():
                torch.autograd.Variable._execution_engine.queue_callback(backward_done)

        output.register_hook(backward_begins)
