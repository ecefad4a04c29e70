"""State that an optimizer of torch will make in its first step, so that a plan leaves room for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of state that an optimizer of torch has not made yet, by the tensors that it holds for each parameter."""
    missing = 0
    for group in optimizer.param_groups:
        tensors = _state_tensors(optimizer, group)
        missing += sum(
            tensors * parameter.numel() * parameter.element_size()
            for parameter in group["params"]
            if parameter.requires_grad and isinstance(parameter, Tensor) and not optimizer.state.get(parameter)
        )
    return missing


def _state_tensors(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> int:
    name = type(optimizer).__name__
    if name in ("SGD", "RMSprop"):
        return (1 if group.get("momentum") else 0) + (name == "RMSprop") + bool(group.get("centered"))
    return {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adagrad": 1, "Adadelta": 2}.get(name, 0) + bool(
        group.get("amsgrad")
    )
