"""torch.autocast while a step is captured: regions of a device that is not there are open all the same.

On a computer without CUDA torch makes every `torch.autocast("cuda")` a disabled one, and on the meta device autocast does not act.
`Autocast` replaces the class's methods and torch's questions about its state for the time of a capture.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
from torch.amp import autocast_mode
from torch.utils import checkpoint

from trainyard.workloads.capture.autocast.kernels import Casts
from trainyard.workloads.capture.autocast.policies import POLICIES
from trainyard.workloads.capture.autocast.replacing import Attribute, replaced

HOST_DEVICES = ("cpu", "meta")  # where the tensors of a capture are, in place of the accelerator

MADE_BEFORE = (
    "an autocast region for cuda that was made before the capture counts as enabled: torch had disabled it, as it does on every "
    "computer without CUDA"
)


@lru_cache(maxsize=1)
def _transformers_modules(native: Any, count: int, last_name: str, last: ModuleType) -> tuple[ModuleType, ...]:
    """The modules of transformers that use its `maybe_autocast`, looked for again when a module has been imported since."""
    ours = [module for name, module in list(sys.modules.items()) if name.startswith("transformers.")]
    return tuple(module for module in ours if vars(module).get("maybe_autocast") is native)


class RegionDevice(str):
    """Stands for `enabled` in what a checkpoint keeps for its recomputation: the device of the open region, or empty."""


class Autocast:
    """The autocast regions of one capture."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.last_dtype = torch.bfloat16  # of the last region that was open: fp16 needs its gradients scaled
        self._casts = {device: Casts(device) for device in POLICIES}
        self._open: list[str] = []  # the device that is autocast, for each nested region; empty where it is switched off
        self._made_here: weakref.WeakSet[Any] = weakref.WeakSet()
        self._enabled_here: list[Any] = []
        self._native: dict[str, Callable[..., Any]] = {}
        self._inside = False  # of torch's own methods, which save and restore torch's own state

    @property
    def device(self) -> str:
        """The device of the open region, empty if there is none."""
        return self._open[-1] if self._open else ""

    def attributes(self) -> list[Attribute]:
        """What to replace so that autocast acts on the tensors of the capture."""
        native_enter, native_exit, native_init = (getattr(torch.autocast, name) for name in ("__enter__", "__exit__", "__init__"))
        names = ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype", "clear_autocast_cache")
        self._native = {name: getattr(torch, name) for name in names}
        return [
            (torch.autocast, "__init__", lambda region, *args, **kw: self._made(native_init, region, args, kw)),
            (torch.autocast, "__enter__", lambda region: self._entered(native_enter, region)),
            (torch.autocast, "__exit__", lambda region, *error: self._left(native_exit, region, error)),
            (torch, "is_autocast_enabled", self._is_enabled),
            (torch, "get_autocast_dtype", self._dtype),
            (torch, "set_autocast_enabled", self._set_enabled),
            (torch, "set_autocast_dtype", self._set_dtype),
            (torch, "clear_autocast_cache", self._clear),
            (torch.amp, "is_autocast_available", _is_available(torch.amp.is_autocast_available)),
            (autocast_mode, "is_autocast_available", _is_available(autocast_mode.is_autocast_available)),
            (autocast_mode, "_cast", _cast_anywhere(autocast_mode._cast)),
            (checkpoint, "_get_autocast_kwargs", self._checkpointed),
            *self._transformers(),
        ]

    def begin(self) -> None:
        """Acts from now on, as in the region that is open around the capture."""
        self._open.append(self._surrounding())
        self._activate()

    def _transformers(self) -> Iterator[Attribute]:
        """transformers opens no region for the meta device, not even one that switches autocast off."""
        native = getattr(sys.modules.get("transformers.utils.generic"), "maybe_autocast", None)
        if native is None:
            return

        def maybe_autocast(device_type: str, *args: Any, **kwargs: Any) -> Any:
            return native((self.device or "cuda") if device_type == "meta" else device_type, *args, **kwargs)

        last = next(reversed(sys.modules))  # what is imported next comes after it
        for module in _transformers_modules(native, len(sys.modules), last, sys.modules[last]):
            yield module, "maybe_autocast", maybe_autocast

    def _surrounding(self) -> str:
        """The device of a region that is open around the capture itself."""
        for device in ("cuda", "cpu"):
            if self._native["is_autocast_enabled"](device):
                return device
        torch.autocast_increment_nesting()
        if torch.autocast_decrement_nesting() and not torch.cuda.is_available():
            self.note(MADE_BEFORE)
            return "cuda"
        return ""

    def restore(self) -> None:
        """Takes the casts back and gives the user's regions their state back."""
        for casts in self._casts.values():
            casts.remove()
        for region in self._enabled_here:
            region._enabled = False
        self._enabled_here.clear()
        self._open.clear()

    def _made(self, native: Callable[..., None], region: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._made_here.add(region)
        device = args[0] if args else kwargs.pop("device_type")
        enabled = args[2] if len(args) > 2 else kwargs.get("enabled", True)
        if isinstance(enabled, RegionDevice):  # a checkpoint recomputes as its forward ran
            device, kwargs["enabled"] = enabled or "cuda", bool(enabled)
        if device == "meta":
            device = self.device or "cuda"
        with supported():
            self._natively(native, region, device, *args[1:], **kwargs)

    def _entered(self, native: Callable[[Any], Any], region: Any) -> Any:
        if region.device == "cuda" and not region._enabled and region not in self._made_here and not torch.cuda.is_available():
            region._enabled = True
            self._enabled_here.append(region)
            self.note(MADE_BEFORE)
        result = self._natively(native, region)
        if region._enabled:
            self._open.append(region.device)
            self.last_dtype = region.fast_dtype
        else:
            self._open.append("" if region.device in (self.device, *HOST_DEVICES) else self.device)
        self._activate()
        return result

    def _left(self, native: Callable[..., Any], region: Any, error: tuple[Any, ...]) -> Any:
        result = self._natively(native, region, *error)
        if len(self._open) > 1:
            self._open.pop()
        self._activate()
        return result

    def _natively(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._inside = True
        try:
            return method(*args, **kwargs)
        finally:
            self._inside = False

    def _activate(self) -> None:
        """Casts as in the innermost region; an accelerator other than CUDA is assumed to have CUDA's lists."""
        lists = self.device if self.device in POLICIES else "cuda"
        for device, casts in self._casts.items():
            if self.device and device == lists:
                casts.activate(self._native["get_autocast_dtype"](self.device))
            else:
                casts.deactivate()

    def note(self, text: str) -> None:
        """Keeps a remark for the captured step, once."""
        if text not in self.notes:
            self.notes.append(text)

    def _is_enabled(self, device: str = "cuda") -> bool:
        if self._inside or device not in ("cuda", *HOST_DEVICES):
            return bool(self._native["is_autocast_enabled"](device))
        return bool(self.device) if device in HOST_DEVICES else self.device == device

    def _dtype(self, device: str) -> torch.dtype:
        known = device
        if device in HOST_DEVICES and not self._inside:
            known = self.device or ("cuda" if device == "meta" else device)
        dtype: torch.dtype = self._native["get_autocast_dtype"](known)
        return dtype

    def _set_enabled(self, device: str, enabled: bool) -> None:
        self._native["set_autocast_enabled"](device, enabled)
        if not self._inside:
            self._open[-1] = device if enabled else "" if device == self.device else self.device
            self._activate()

    def _set_dtype(self, device: str, dtype: torch.dtype) -> None:
        self._native["set_autocast_dtype"](device, dtype)
        if not self._inside:
            self._activate()

    def _clear(self) -> None:
        self._native["clear_autocast_cache"]()
        for casts in self._casts.values():
            casts.clear()

    def _checkpointed(self, device_type: str = "cuda") -> tuple[dict[str, Any], dict[str, Any]]:
        """What a checkpoint keeps of the state around its forward: for its device, and for the CPU, the inner region."""
        dtype = self._dtype(self.device or "cuda")
        kept = {"enabled": RegionDevice(self.device), "dtype": dtype, "cache_enabled": torch.is_autocast_cache_enabled()}
        return kept, dict(kept)


@contextmanager
def supported() -> Iterator[None]:
    """torch makes regions as if a GPU were there."""
    available = (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    with replaced([available, (torch.cuda, "is_bf16_supported", lambda *_, **__: True)]):
        yield


def _is_available(native: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda device: device in POLICIES or device == "meta" or native(device)


def _cast_anywhere(native: Callable[..., Any]) -> Callable[..., Any]:
    """`custom_fwd` casts the tensors of its device, which are on the devices of the capture."""

    def cast(value: Any, device_type: str, dtype: torch.dtype) -> Any:
        for device in dict.fromkeys((device_type, *HOST_DEVICES)):
            value = native(value, device, dtype)
        return value

    return cast
