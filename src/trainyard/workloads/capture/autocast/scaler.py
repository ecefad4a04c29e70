"""GradScaler while a step is captured: its scaling, the check for infinities and the update of its scale are part of the step.

torch makes a scaler for cuda a disabled one on a computer without CUDA. A captured step is a healthy one: its gradients are finite.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler

from trainyard.workloads.capture.autocast.regions import Autocast, supported
from trainyard.workloads.capture.autocast.replacing import Attribute, replaced

MADE_BEFORE = (
    "a GradScaler for cuda that was made before the capture counts as enabled, because the step runs in fp16: torch had disabled "
    "it, as it does on every computer without CUDA"
)
_METHODS = ("scale", "unscale_", "step", "update", "is_enabled", "get_scale", "state_dict")


class Scalers:
    """The gradient scalers of one capture, and what they were before."""

    def __init__(self, autocast: Autocast) -> None:
        self._autocast = autocast
        self._before: dict[int, tuple[GradScaler, dict[str, Any]]] = {}
        self._made_here: weakref.WeakSet[GradScaler] = weakref.WeakSet()
        self._native: dict[str, Callable[..., Any]] = {}

    def attributes(self) -> list[Attribute]:
        """What to replace so that scalers work as on a GPU."""
        self._native = {name: getattr(GradScaler, name) for name in ("__init__", *_METHODS)}
        methods = [(GradScaler, name, self._method(name)) for name in _METHODS]
        return [*methods, (GradScaler, "__init__", self._init()), (GradScaler, "_maybe_opt_step", _healthy_step)]

    def restore(self) -> None:
        """Gives each scaler its attributes back."""
        for scaler, attributes_before in self._before.values():
            scaler.__dict__.clear()
            scaler.__dict__.update(attributes_before)
        self._before.clear()

    def _init(self) -> Callable[..., None]:
        def init(scaler: GradScaler, *args: Any, **kwargs: Any) -> None:
            with supported():
                self._native["__init__"](scaler, *args, **kwargs)
            self._made_here.add(scaler)

        return init

    def _method(self, name: str) -> Callable[..., Any]:
        def method(scaler: GradScaler, *args: Any, **kwargs: Any) -> Any:
            self._prepare(scaler, args)
            call = partial(self._native[name], scaler)
            if name == "step" and args and getattr(args[0], "_step_supports_amp_scaling", False):
                # A fused optimizer divides by the scale itself; the check for infinities reads and writes what unscaling does.
                with replaced([(args[0], "_step_supports_amp_scaling", False)]):
                    return call(*args, **kwargs)
            return call(*args, **kwargs)

        return method

    def _prepare(self, scaler: GradScaler, args: tuple[Any, ...]) -> None:
        if scaler in self._made_here:
            return
        if id(scaler) not in self._before:
            self._before[id(scaler)] = (scaler, dict(scaler.__dict__))
            states = {name: value for name, value in scaler.__dict__.items() if isinstance(value, Tensor)}
            without_values = any(isinstance(value, Tensor) and value.is_meta for value in args)
            scaler.__dict__.update({name: _copy(value, without_values) for name, value in states.items()})
        disabled = not scaler._enabled and scaler._device == "cuda" and not torch.cuda.is_available()
        if disabled and self._autocast.last_dtype == torch.float16:
            with supported():
                self._native["__init__"](scaler, "cuda")
            self._autocast.note(MADE_BEFORE)


def _copy(state: Tensor, without_values: bool) -> Tensor:
    return torch.empty_like(state, device="meta") if without_values else state.detach().clone()


def _healthy_step(scaler: GradScaler, optimizer: Any, optimizer_state: Any, *args: Any, **kwargs: Any) -> Any:
    return optimizer.step(*args, **kwargs)
