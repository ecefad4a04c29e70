"""What a capture must leave as it was: model, optimizer, configuration, random numbers, environment, torch's settings."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coverage_cases.case import Training

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


class Same:
    """An object of which only the identity is compared; kept, so that no other takes its address."""

    def __init__(self, value: Any) -> None:
        self.value = value


def snapshot(training: Training) -> dict[str, Any]:
    """A copy of everything that a training step could change, as nested dictionaries and lists."""
    model = training.model
    picture: dict[str, Any] = {
        "state": {name: tensor.detach().clone() for name, tensor in _tensors(model)},
        "identity": {name: Same(tensor) for name, tensor in _tensors(model)},
        "grad": {name: _picture(parameter.grad) for name, parameter in model.named_parameters()},
        "requires_grad": {name: parameter.requires_grad for name, parameter in model.named_parameters()},
        "attributes": {path: _attributes(module) for path, module in model.named_modules()},
        "inputs": _picture((training.inputs, training.targets)),
        "random": (torch.get_rng_state().clone(), random.getstate(), _picture(np.random.get_state())),  # noqa: NPY002
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "torch": _torch_settings(),
    }
    if training.optimizer is not None:
        picture["optimizer"] = _picture(training.optimizer.state_dict())
    return picture


def _tensors(model: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _attributes(module: torch.nn.Module) -> dict[str, Any]:
    held = {name: value for name, value in vars(module).items() if name not in ("_parameters", "_buffers", "_modules")}
    config = held.get("config")
    if config is not None:
        as_dict = config.to_dict() if hasattr(config, "to_dict") else config
        held["config_values"] = dict(as_dict) if isinstance(as_dict, Mapping) else Same(as_dict)
    return {name: _picture(value) for name, value in held.items()}


def _torch_settings() -> dict[str, Any]:
    return {
        "default dtype": torch.get_default_dtype(),
        "default device": str(torch.get_default_device()),
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "onednn": torch._C._get_mkldnn_enabled(),
        "autocast": [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")],
        "flash attention": torch.backends.cuda.flash_sdp_enabled(),
        "process group": torch.distributed.is_available() and torch.distributed.is_initialized(),
        "dispatch modes": len(torch.utils._python_dispatch._get_current_dispatch_mode_stack()),
    }


def _picture(value: Any, depth: int = 0) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, PLAIN):
        return value
    if depth > 6:
        return Same(value)
    if isinstance(value, Mapping):
        return {key: _picture(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_picture(item, depth + 1) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    return Same(value)


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """The paths at which two snapshots differ."""
    if isinstance(before, Same) and isinstance(after, Same):
        if before.value is not after.value:
            yield path
    elif type(before) is not type(after):
        yield path
    elif isinstance(before, Tensor):
        if before.shape != after.shape or before.dtype != after.dtype or not _equal(before, after):
            yield path
    elif isinstance(before, np.ndarray):
        if not np.array_equal(before, after):
            yield path
    elif isinstance(before, dict):
        for key in {**before, **after}:
            if key in before and key in after:
                yield from differences(before[key], after[key], f"{path}/{key}")
            else:
                yield f"{path}/{key}"
    elif isinstance(before, list | tuple):
        if len(before) != len(after):
            yield path
        else:
            for index, (one, other) in enumerate(zip(before, after, strict=True)):
                yield from differences(one, other, f"{path}/{index}")
    elif before != after and not (before != before and after != after):
        yield path


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.is_meta or other.is_meta:
        return one.is_meta and other.is_meta
    return bool(((one == other) | ((one != one) & (other != other))).all())
