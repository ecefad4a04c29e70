"""What really runs in PyTorch: measured training steps, and the papers' mechanisms on real tensors.

- measurement/: a training step on a real device, timed per layer and phase (`ty.measure`)
- gradient/: dX and dW in one pass over dY (IGO): `interleave`, `restore`
- paging/: training within a budget of device memory (MC-DLA's overlay): `overlay`, `paged_optimizer`
- direct/: a `torch.distributed` backend that prices every collective (DIRECT)
- sparsity/: recipes that make zeros in weights, activations and gradients (TensorDash's, SIGMA's workloads)

torch is imported at the top of these files, so other packages import them only when they need them; the names below are resolved
when first used. A new live mechanism is a folder here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainyard.live import direct, gradient, sparsity
    from trainyard.live.gradient import interleave, restore
    from trainyard.live.paging import overlay, paged_optimizer

_HOME = {
    "direct": "direct",
    "gradient": "gradient",
    "interleave": "gradient",
    "restore": "gradient",
    "overlay": "paging",
    "paged_optimizer": "paging",
    "sparsity": "sparsity",
}

__all__ = ["direct", "gradient", "interleave", "overlay", "paged_optimizer", "restore", "sparsity"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'trainyard.live' has no attribute {name!r}")
    from trainyard.lazy import require_torch

    require_torch(f"trainyard.live.{name}")
    module = import_module(f"trainyard.live.{_HOME[name]}")
    value = module if name == _HOME[name] else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
