"""Stand-ins that replace a user's tensors while a step is captured.

The Python objects stay: every Parameter, buffer and optimizer keeps its identity while the tensor behind it is exchanged for one
without values (or, for `real=True`, for a copy). So closures, tied weights, RNN weight lists and optimizers all see the stand-in,
and giving the original back restores values, `.grad`, hooks and any autograd graph that the user still holds.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainyard.errors import CaptureError
from trainyard.workloads.capture.values import META


class StandIns:
    """Makes stand-ins; tensors that share memory get stand-ins that share memory."""

    def __init__(self, *, real: bool) -> None:
        self._real = real
        self._storages: dict[int, torch.UntypedStorage] = {}

    def stand_in(self, tensor: Tensor) -> Tensor:
        """The same shape, type and layout, on meta or as a copy; a host scalar keeps its value."""
        if tensor.is_sparse or tensor.is_quantized:
            raise CaptureError(
                f"a {tensor.layout} tensor of shape {tuple(tensor.shape)} cannot be captured: convert it to dense first"
            )
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages[storage._cdata] = storage.clone() if self._real else torch.UntypedStorage(storage.nbytes(), device=META)
        twin = torch.empty(0, dtype=tensor.dtype, device=tensor.device if self._real else META)
        with torch.no_grad():
            twin.set_(self._storages[storage._cdata], tensor.storage_offset(), tensor.shape, tensor.stride())
        return twin

    def stand_ins(self, value: Any) -> Any:
        """The same nest of lists and dictionaries with stand-ins for its tensors; single numbers keep their values."""
        if isinstance(value, Tensor):
            plain = type(value) is Tensor or type(value) is nn.Parameter
            return self.stand_in(value) if plain and value.dim() and not value.is_meta else value.detach().clone()
        if isinstance(value, dict):
            return {key: self.stand_ins(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.stand_ins(item) for item in value)
        return copy.copy(value)


def exchange(original: Tensor, stand_in: Tensor) -> None:
    """What torch.utils.swap_tensors does, without its poisoning of graphs that are still alive."""
    torch._C._swap_tensor_impl(original, stand_in)


@contextmanager
def swapped_tensors(tensors: Mapping[str, Tensor], stand_ins: StandIns) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Replaces each tensor by its stand-in while the block runs; tensor subclasses (sharded parameters) are copied and restored.

    Yields pairs of a tensor as the program sees it and one that holds its values.
    """
    swapped: list[tuple[Tensor, Tensor]] = []
    restored: list[tuple[Tensor, Tensor, Tensor | None]] = []
    try:
        for name, tensor in tensors.items():
            if type(tensor) not in (Tensor, nn.Parameter) and not isinstance(tensor, nn.Buffer):
                restored.append((tensor, tensor.detach().clone(), tensor.grad))
                tensor.grad = None
                continue
            twin = stand_ins.stand_in(tensor)
            stand_in = nn.Parameter(twin, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else twin
            stand_in.requires_grad_(tensor.requires_grad)
            try:
                exchange(tensor, stand_in)
            except RuntimeError as error:
                raise CaptureError(f"'{name}' cannot be set aside while the step is captured: {error}") from error
            swapped.append((tensor, stand_in))
            _carry_hooks(tensor)
        yield swapped
    finally:
        for tensor, stand_in in reversed(swapped):
            tensor.grad = None
            exchange(tensor, stand_in)
        with torch.no_grad():
            for tensor, value, gradient in restored:
                tensor.grad = None
                tensor.data.copy_(value)
                tensor.grad = gradient


def _carry_hooks(tensor: Tensor) -> None:
    """Hooks are attributes of the Python object; setting them once more registers them with the new tensor."""
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        hooks = getattr(tensor, name, None)
        if hooks:
            setattr(tensor, name, hooks)


@contextmanager
def restored_objects(objects: Iterable[Any]) -> Iterator[None]:
    """Attributes, the contents of lists, sets and dictionaries among them, and those of plain objects among them (configurations)
    are as before when the block ends. Only what has changed is written.
    """
    containers: list[Any] = []
    for instance in objects:
        values = list(instance.__dict__.values())
        containers += [instance.__dict__, *(value for value in values if isinstance(value, dict | list | set))]
        containers += [value.__dict__ for value in values if is_plain_object(value)]
    with restored_containers(containers):
        yield


@contextmanager
def restored_containers(containers: Iterable[Any]) -> Iterator[None]:
    """Dictionaries, lists and sets hold what they held when the block ends. Only what has changed is written."""
    saved: dict[int, tuple[Any, Any]] = {}
    for container in containers:
        _save(container, saved)
    try:
        yield
    finally:
        for container, before in saved.values():
            _restore(container, before)


def _save(container: Any, saved: dict[int, tuple[Any, Any]]) -> None:
    if id(container) not in saved:
        saved[id(container)] = (container, dict(container.items()) if isinstance(container, dict) else list(container))


def is_plain_object(value: Any) -> bool:
    """Whether the value is an object with attributes of its own, and neither torch's nor code."""
    if isinstance(value, Tensor | nn.Module | Optimizer | type | ModuleType) or callable(value):
        return False
    return type(getattr(value, "__dict__", None)) is dict


def _restore(container: Any, before: Any) -> None:
    """Writes the contents back with the methods of the builtin type: a subclass may refuse changes."""
    if isinstance(container, dict):
        now = list(container.items())
        if len(now) == len(before) and all(a is c and b is d for (a, b), (c, d) in zip(now, before.items(), strict=True)):
            return
        kind: Any = OrderedDict if isinstance(container, OrderedDict) else dict
        kind.clear(container)
        for key, value in before.items():
            kind.__setitem__(container, key, value)
    elif isinstance(container, list):
        if len(container) != len(before) or any(a is not b for a, b in zip(container, before, strict=True)):
            list.__setitem__(container, slice(None), before)
    elif len(container) != len(before) or any(item not in container for item in before):
        set.clear(container)
        set.update(container, before)


@contextmanager
def restored_stateful_objects(stateful_objects: Iterable[Any]) -> Iterator[None]:
    """Schedules and scalers of a loop work on copies of their tensors, and get the originals back when the block ends."""
    instances = list(stateful_objects)
    with restored_objects(instances):
        for instance in instances:
            for name, value in instance.__dict__.items():
                if isinstance(value, Tensor):
                    instance.__dict__[name] = value.detach().clone()
        yield


class SavedOptimizers:
    """The optimizers that a capture has run, with their attributes and states from before."""

    def __init__(self, stand_ins: StandIns) -> None:
        self._stand_ins = stand_ins
        self._saved: dict[int, tuple[Optimizer, dict[str, Any], list[dict[str, Any]]]] = {}

    def prepare(self, optimizer: Optimizer) -> bool:
        """Moves states to the capture's device, and turns `foreach` and `fused` off, so that each parameter has its own ops."""
        if id(optimizer) in self._saved:
            return False
        groups = [dict(group) for group in optimizer.param_groups]
        self._saved[id(optimizer)] = (optimizer, dict(optimizer.__dict__), groups)
        optimizer.state = defaultdict(dict, {key: self._stand_ins.stand_ins(value) for key, value in optimizer.state.items()})
        parameters = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for name, value in list(optimizer.__dict__.items()):
            if name not in ("state", "param_groups", "defaults"):
                optimizer.__dict__[name] = self._own_tensors(value, parameters)
        for group in optimizer.param_groups:
            for flag in ("foreach", "fused"):
                if flag in group:
                    group[flag] = False
        return True

    def _own_tensors(self, value: Any, parameters: set[int]) -> Any:
        """Stand-ins for tensors that an optimizer keeps as attributes, as master weights are; everything else as it is."""
        if isinstance(value, Tensor):
            own = type(value) is Tensor and value.dim() and not value.is_meta and id(value) not in parameters
            return self._stand_ins.stand_in(value) if own else value
        if type(value) is dict:
            return {key: self._own_tensors(item, parameters) for key, item in value.items()}
        return type(value)(self._own_tensors(v, parameters) for v in value) if type(value) in (list, tuple) else value

    def restore(self) -> None:
        for optimizer, attributes, groups in self._saved.values():
            optimizer.__dict__.clear()
            optimizer.__dict__.update(attributes)
            for group, before in zip(optimizer.param_groups, groups, strict=False):
                group.clear()
                group.update(before)
        self._saved.clear()
