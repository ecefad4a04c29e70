"""What a model is called with: passes of equal signature may share a plan."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trainyard.live.paging.blocks import leaves

Signature = tuple[Any, ...]


def tensors_of(item: Any) -> list[Tensor]:
    """The tensors in arguments or results; data classes as transformers returns them are read as dictionaries."""
    return [leaf for leaf in leaves(item) if isinstance(leaf, Tensor)]


def autocast_modes() -> list[tuple[str, bool, torch.dtype]]:
    """Of each type of device: whether operands are cast, and to what."""
    return [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in ("cuda", "cpu")]


def signature_of(model: nn.Module, device: torch.device, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Signature:
    """Mode, autocast, and the shapes and types of the tensors in a call's arguments."""
    inputs = tensors_of((arguments, keywords))
    return (model.training, torch.is_autocast_enabled(device.type), *((tensor.shape, tensor.dtype) for tensor in inputs))
