"""The optimizer's step: whatever it does to one parameter tensor becomes one Update.

torch calls the hooks below around every optimizer's `step`, so custom loops and several optimizers need no preparation. An
optimizer is primed once, unrecorded: a training step is one of many, so its states exist already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from trainyard.ir import Role, Update
from trainyard.workloads.capture.tensor_table import NO_OWNER

if TYPE_CHECKING:
    from trainyard.workloads.capture.recorder import Recorder


# Operations on each element in one kernel for all parameters; as many as the same optimizer has ops without it.
FUSED_OPERATIONS = {"_fused_adam_": 7, "_fused_adamw_": 8, "_fused_sgd_": 4, "_fused_adagrad_": 4}


@dataclass(slots=True)
class Touched:
    """What one optimizer step did to the tensors of one parameter."""

    operations: int = 0
    read: dict[int, Tensor] = field(default_factory=dict)
    written: dict[int, Tensor] = field(default_factory=dict)


class Updates:
    """Collects the ops of an optimizer's step by parameter."""

    def __init__(self, recorder: Recorder, prepare: Callable[[Optimizer], bool]) -> None:
        self._recorder = recorder
        self._prepare = prepare  # moves its states to the device of the capture; True the first time
        self._touched: dict[int, Touched] = {}
        self._temporaries: dict[int, tuple[int, StorageWeakRef]] = {}
        self._attributes: set[int] = set()
        self._optimizer: Optimizer | None = None
        self._graph = -1
        self.priming = False

    @property
    def active(self) -> bool:
        """Whether the optimizer itself runs, and not the closure that it calls to evaluate the loss."""
        if self._optimizer is None:
            return False
        evaluates = torch.is_grad_enabled() and not self._optimizer.defaults.get("differentiable")
        return not evaluates and torch._C._current_graph_task_id() == self._graph  # a step inside backward is one, too

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = register_optimizer_step_pre_hook(self._before)
        after = register_optimizer_step_post_hook(self._after)
        try:
            yield
        finally:
            before.remove()
            after.remove()
            self._optimizer = None

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.priming:
            return
        self._recorder.mark_parameter_gradients()
        with self._recorder.unrecorded():
            new = self._prepare(optimizer)
            if new and len(args) <= 1 and not kwargs:
                self._prime(optimizer)
        if self._recorder.paused:
            return
        self._optimizer, self._graph = optimizer, torch._C._current_graph_task_id()
        self._own(optimizer)

    def _prime(self, optimizer: Optimizer) -> None:
        """One unrecorded step creates the states."""
        self.priming = True
        try:
            type(optimizer).step(optimizer)
        finally:
            self.priming = False

    def _own(self, optimizer: Optimizer) -> None:
        """States belong to their parameter; those that are attributes (master weights) to the one that they are used with."""
        others = [value for name, value in vars(optimizer).items() if name not in ("state", "param_groups", "defaults")]
        self._attributes = {tensor.untyped_storage()._cdata for tensor in _tensors(others) if tensor.dim()}
        tensor_table, indices = self._recorder.tensor_table, self._recorder.parameter_index
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                index = indices.get(id(parameter), NO_OWNER)
                for state in _tensors(optimizer.state.get(parameter, {})):
                    if state.dim() and not tensor_table.contains(state):
                        name = self._recorder.parameter_names[index] if index != NO_OWNER else ""
                        tensor_table.enter(state, Role.STATE, name, "buffer", index)

    def record_lists(self, name: str, lists: list[Sequence[Tensor]], written: list[Sequence[Tensor]]) -> bool:
        """Takes an op on lists (`_foreach_add_`, `_fused_adamw_`) that have one tensor for each parameter."""
        length = max((len(tensors) for tensors in lists), default=0)
        operations = FUSED_OPERATIONS.get(name, 1)
        groups = [
            [[tensors[index] for tensors in part if len(tensors) == length] for part in (lists, written)] for index in range(length)
        ]
        taken = [self.record(inputs, outputs, operations) for inputs, outputs in groups]
        return bool(taken) and all(taken)

    def record(self, inputs: list[Tensor], outputs: list[Tensor], operations: int = 1, *, unread: Sequence[Tensor] = ()) -> bool:
        """Takes an op that works on one parameter; False if it does not. Inputs that are `unread` say which, and no more."""
        owners = {self.owner(t) for t in (*inputs, *outputs)}
        owners.discard(NO_OWNER)
        if len(owners) != 1:
            return False
        (owner,) = owners
        tensor_table = self._recorder.tensor_table
        touched = self._touched.setdefault(owner, Touched())
        touched.operations += operations
        for tensor in inputs:
            if any(tensor is other for other in unread):
                continue
            if tensor.untyped_storage()._cdata in self._attributes and not tensor_table.contains(tensor):
                tensor_table.enter(tensor, Role.STATE, self._recorder.parameter_names[owner], "buffer", owner)
            if tensor_table.contains(tensor):
                _keep_largest(touched.read, tensor_table.origin(tensor).base, tensor)
        for tensor in outputs:
            if tensor_table.contains(tensor):
                _keep_largest(touched.written, tensor_table.origin(tensor).base, tensor)
            else:
                storage = tensor.untyped_storage()
                self._temporaries[storage._cdata] = (owner, StorageWeakRef(storage))
        return True

    def adopt(self, tensors: list[Tensor]) -> None:
        """Enters what a product of the optimizer reads into the tensor table, temporaries included."""
        for tensor in tensors:
            if not self._recorder.tensor_table.contains(tensor):
                self._recorder.tensor_table.enter(tensor, Role.ACTIVATION, "", owner=self.owner(tensor))

    def owner(self, tensor: Tensor) -> int:
        """Index of the parameter that a tensor was made for."""
        storage = tensor.untyped_storage()._cdata
        if storage in self._temporaries:
            return self._temporaries[storage][0]
        origin = self._recorder.tensor_table.origins.get(storage)
        return NO_OWNER if origin is None else origin.owner

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.priming or self._optimizer is None:
            return
        recorder, tensor_table = self._recorder, self._recorder.tensor_table
        order = {Role.PARAMETER: 0, Role.PARAMETER_GRADIENT: 1, Role.STATE: 2}
        for owner, touched in self._touched.items():
            parameter = recorder.parameters[owner]
            read = list(touched.read.values())
            written = [t for base, t in touched.written.items() if tensor_table.tensors[base].role in (Role.PARAMETER, Role.STATE)]
            if not written:
                continue
            for tensors in (read, written):
                tensors.sort(key=lambda t: order.get(tensor_table.tensors[tensor_table.origin(t).base].role, len(order)))
            elements = min(getattr(parameter, "_local_tensor", parameter).numel(), max(t.numel() for t in written))
            if elements:  # a layer of width 0 has parameters without elements
                body = Update(type(optimizer).__name__, elements, touched.operations)
                recorder.append_update(body, owner, read, written)
        self._touched.clear()
        self._temporaries.clear()
        self._optimizer = None


def _keep_largest(touched: dict[int, Tensor], base: int, tensor: Tensor) -> None:
    """An optimizer that works on blocks of a tensor also has an op on all of it, or on its largest block."""
    if base not in touched or touched[base].numel() < tensor.numel():
        touched[base] = tensor


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        inner = getattr(value, "__tensor_flatten__", None)
        if inner is None:
            yield value
            return
        for name in inner()[0]:  # a sharded state, or one of few bits: its parts
            yield from _tensors(getattr(value, name))
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
