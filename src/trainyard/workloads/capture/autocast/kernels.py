"""The casts of autocast as kernels of torch's dispatcher, for tensors whose device torch does not autocast.

Every device that knows autocast has a dispatch key above autograd, whose kernels cast and call the op again. `Casts` registers such
kernels for a key that no build of torch uses, and includes the key while a region is open. So the casts happen wherever torch would
insert them: inside compound ops, in torch's own Python functions, in backward. They act on tensors without values (meta), and on
tensors of the CPU in place of a GPU's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trainyard.errors import CaptureError
from trainyard.workloads.capture.autocast.policies import POLICIES, RECURRENT

_KEYS = {
    "cuda": torch._C.DispatchKey.AutocastIPU,  # type: ignore[attr-defined]  # missing from the stubs
    "cpu": torch._C.DispatchKey.AutocastHPU,  # type: ignore[attr-defined]
}
_WITH_DTYPE = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}


class Casts:
    """The casts of one device's regions, which are active between `activate` and `deactivate`."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._key = _KEYS[device]
        self._keys = torch._C.DispatchKeySet(self._key)
        self._dtype = torch.float16
        self._libraries: list[torch.library.Library] = []
        self._cast_weights: dict[tuple[int, torch.dtype, bool], tuple[Tensor, Tensor]] = {}

    def activate(self, dtype: torch.dtype) -> None:
        """Casts as in a region of this element type."""
        self._dtype = dtype
        if not self._libraries:
            self._register()
        self._switch(True)

    def deactivate(self) -> None:
        """Lets ops run as they are."""
        if self._libraries:
            self._switch(False)

    def _switch(self, on: bool) -> None:
        torch._C._dispatch_tls_set_dispatch_key_included(self._key, on)
        torch._C._dispatch_tls_set_dispatch_key_excluded(self._key, not on)

    def clear(self) -> None:
        """Forgets the weights that were cast: torch keeps them as long as a region is open."""
        self._cast_weights.clear()

    def remove(self) -> None:
        """Takes all kernels back."""
        self.deactivate()
        self.clear()
        for library in self._libraries:
            library._destroy()
        self._libraries.clear()

    def _register(self) -> None:
        key = str(self._key).rpartition(".")[2]
        fallthrough = torch.library.Library("_", "IMPL")
        fallthrough.fallback(torch.library.fallthrough_kernel, key)
        library = torch.library.Library("aten", "IMPL", key)
        self._libraries += [library, fallthrough]
        for name in POLICIES[self._device]:
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
            if op is not None and self._is_autocast(name, packet):
                library.impl(op, self._kernel(name, op))

    def _is_autocast(self, name: str, packet: str) -> bool:
        """Whether this release of torch casts for the op; recurrent layers are cast inside cuDNN's own ops."""
        casts = torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", f"Autocast{self._device.upper()}")
        return bool(casts) or (self._device == "cuda" and packet in RECURRENT)

    def _kernel(self, name: str, op: Any) -> Callable[..., Any]:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(self._keys):
                return self._run(name, op, args, kwargs)

        return kernel

    def _run(self, name: str, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        policy = POLICIES[self._device][name]
        tensors = [t for value in (*args, *kwargs.values()) for t in self._eligible(value)]
        if not tensors:
            return op(*args, **kwargs)
        if policy == "refused":
            raise CaptureError(
                f"{name} is an error under autocast on {self._device}, where its fp16 input could overflow: "
                f"{name}_with_logits takes the values before the sigmoid and may be autocast"
            )
        if policy == "float32_result":
            if not (isinstance(args[0], Tensor) and any(args[0] is t for t in tensors)):
                return op(*args, **kwargs)
            if name in _WITH_DTYPE:
                return _norm(name, args, kwargs)
            position = next(i for i, argument in enumerate(op._schema.arguments) if argument.name == "dtype")
            if (args[position] if len(args) > position else kwargs.get("dtype")) is not None:
                return op(*args, **kwargs)
            return op(*args[:position], **{**kwargs, "dtype": torch.float32})
        dtype = torch.float32
        if policy == "lower" or (policy == "widest" and all(t.dtype == self._dtype for t in tensors)):
            dtype = self._dtype
        return op(*[self._cast(a, dtype) for a in args], **{key: self._cast(value, dtype) for key, value in kwargs.items()})

    def _eligible(self, value: Any) -> list[Tensor]:
        """Tensors of the region's own device are left to torch."""
        if isinstance(value, Tensor):
            floating = value.is_floating_point() and value.dtype != torch.float64
            return [value] if floating and value.device.type != self._device else []
        if isinstance(value, list | tuple):
            return [t for item in value for t in self._eligible(item)]
        return []

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, list | tuple):
            return type(value)([self._cast(item, dtype) for item in value])
        if not isinstance(value, Tensor) or value.dtype == dtype or not self._eligible(value):
            return value
        is_weight = value.is_leaf and value.requires_grad and not value._is_view()
        if not (is_weight and dtype == self._dtype and value.dtype == torch.float32 and torch.is_autocast_cache_enabled()):
            return torch.ops.aten.to.dtype(value, dtype)
        key = (id(value), dtype, torch.is_grad_enabled())
        if key not in self._cast_weights:
            self._cast_weights[key] = (value, torch.ops.aten.to.dtype(value, dtype))
        return self._cast_weights[key][1]


def _norm(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The overload of `norm` that takes an element type has no defaults for the arguments before it."""
    given = {"p": 2, "dim": [], "keepdim": False, **dict(zip(("self", "p", "dim", "keepdim"), args, strict=False)), **kwargs}
    names = ("self", "p") if name == "norm.Scalar" else ("self", "p", "dim", "keepdim")
    op = getattr(torch.ops.aten.norm, _WITH_DTYPE[name])
    result: Tensor = op(*[given[key] for key in names], dtype=torch.float32)
    return result
