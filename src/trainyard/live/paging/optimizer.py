"""An optimizer whose state lives in a second memory: each parameter's is fetched for its update and sent back after it.

AdamW holds two values for each parameter, which is more memory than the parameters themselves take. They are needed for one moment
of a step. Updates of parameters do not depend on each other, so here they run one after the other, in the same order in every step:
while one parameter is updated, the state of the next ones is on its way in and that of the last ones on its way out. With
`in_backward=True` a parameter is updated as soon as backward has completed its gradient, which is freed at once: then neither
state nor gradients are ever on the device as a whole.
"""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from trainyard.errors import BadInput
from trainyard.live.paging.stores import Store, StoreName, Ticket, open_store
from trainyard.units import parse

SMALLEST_BYTES = {"cuda": 1 << 20, "cpu": 1 << 8}
"""State tensors under this size stay on the device."""
DEPENDENT = ("LBFGS", "SparseAdam")
"""Optimizers whose updates are not element by element for each parameter."""


class _Paged:
    """One tensor of state: on the device, or in the store."""

    __slots__ = ("dtype", "is_arriving", "shape", "tensor", "ticket")

    def __init__(self, tensor: Tensor) -> None:
        self.shape, self.dtype = tensor.shape, tensor.dtype
        self.tensor: Tensor | None = tensor
        self.ticket: Ticket | None = None
        self.is_arriving = False

    def fetch(self) -> None:
        """Starts the copy in."""
        if self.tensor is None and self.ticket is not None:
            storage = self.ticket.fetch()
            self.tensor = torch.empty(0, dtype=self.dtype, device=storage.device).set_(storage).view(self.shape)
            self.is_arriving = True

    def present(self) -> Tensor:
        """The tensor, for use right now; its place in the store is free again."""
        self.fetch()
        if self.ticket is not None:
            self.ticket.wait_for_copy_in()
            self.ticket.release()
        self.ticket, self.is_arriving = None, False
        assert self.tensor is not None
        return self.tensor

    def send(self, store: Store) -> Tensor:
        """Starts the copy out; the memory stays until the tensor that is returned is dropped."""
        assert self.tensor is not None
        tensor, self.tensor = self.tensor, None
        self.ticket = store.put(tensor.untyped_storage())
        return tensor


class PagedOptimizer:
    """The context manager that `trainyard.live.paged_optimizer` returns: see there."""

    def __init__(self, optimizer: Optimizer, *, store: StoreName, in_backward: bool, window: int) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        devices = {parameter.device for parameter in parameters}
        if len(devices) != 1:
            raise BadInput(f"a paged optimizer needs parameters on one device, got {', '.join(sorted(map(str, devices)))}")
        if type(optimizer).__name__ in DEPENDENT:
            raise BadInput(f"{type(optimizer).__name__} does not update each parameter by itself: its state cannot be paged")
        self.optimizer, self.store_name, self.in_backward, self.window = optimizer, store, in_backward, window
        self.device = devices.pop()
        self.smallest = SMALLEST_BYTES[self.device.type]
        self.updates = 0
        self._stack: ExitStack | None = None
        self._order: list[Tensor] = []
        """Parameters in the order of their updates in the last step."""
        self._done: list[Tensor] = []
        self._leaving: deque[tuple[Ticket, Tensor]] = deque()
        self._leaving_bytes = 0

    def __enter__(self) -> PagedOptimizer:
        if self._stack is not None or "paged" in self.optimizer.__dict__:
            raise BadInput("this optimizer is already paged: end that with-block first")
        with ExitStack() as stack:
            self._store = open_store(self.store_name, self.device, None)
            stack.callback(self._store.close)
            self._state: dict[Tensor, dict[str, _Paged]] = {}
            self._groups: dict[Tensor, dict[str, Any]] = {}
            self._single: dict[Tensor, Optimizer] = {}
            stack.callback(self._bring_back)
            for group in self.optimizer.param_groups:
                for parameter in group["params"]:
                    self._take_over(parameter, group)
                    if self.in_backward and parameter.requires_grad:
                        stack.callback(parameter.register_post_accumulate_grad_hook(self._update_and_free).remove)
            self.optimizer.__dict__["paged"] = True
            stack.callback(self.optimizer.__dict__.pop, "paged")
            previous = self.optimizer.__dict__.get("step")
            self.optimizer.step = self._step  # type: ignore[method-assign]
            stack.callback(self._restore_step, previous)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._stack is not None
        stack, self._stack = self._stack, None
        stack.close()

    def _restore_step(self, previous: Any) -> None:
        if previous is None:
            del self.optimizer.__dict__["step"]
        else:
            self.optimizer.__dict__["step"] = previous

    def _take_over(self, parameter: Tensor, group: dict[str, Any]) -> None:
        """An optimizer of the same class for one parameter alone, with the state it has so far."""
        options = {name: value for name, value in group.items() if name != "params"}
        single = type(self.optimizer)([parameter], **self._accepted(options))
        single.param_groups[0].update(options)
        self._groups[parameter], self._single[parameter] = group, single
        if parameter in self.optimizer.state:
            single.state[parameter] = self.optimizer.state.pop(parameter)
            self._send(parameter)

    def _accepted(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options that the optimizer's constructor takes: a group has others too."""
        accepted = signature(type(self.optimizer)).parameters
        return {name: value for name, value in options.items() if name in accepted}

    # -- updates

    def _step(self, closure: Any = None) -> Any:
        """What `optimizer.step()` does meanwhile."""
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        if not self.in_backward:
            for parameter in self._single:
                if parameter.grad is not None:
                    self._update(parameter)
        self._order, self._done = self._done, []
        return result

    def _update_and_free(self, parameter: Tensor) -> None:
        self._update(parameter)
        parameter.grad = None

    @torch.no_grad()
    def _update(self, parameter: Tensor) -> None:
        single = self._single[parameter]
        options = self._groups[parameter]
        single.param_groups[0].update({name: value for name, value in options.items() if name != "params"})  # schedulers
        self._done.append(parameter)
        self._prefetch(len(self._done) - 1)
        state = single.state[parameter]
        for name, paged in self._state.pop(parameter, {}).items():
            state[name] = paged.present()
        single.step()
        self._send(parameter)
        self.updates += 1

    def _prefetch(self, place: int) -> None:
        """Starts the copies of the next parameters' state, if the order is still that of the last step."""
        if place >= len(self._order) or self._order[place] is not self._done[place]:
            return
        room = self.window
        for parameter in self._order[place:]:
            for paged in self._state.get(parameter, {}).values():
                room -= paged.shape.numel() * paged.dtype.itemsize
                if room < 0 and parameter is not self._done[place]:
                    return
                paged.fetch()

    def _send(self, parameter: Tensor) -> None:
        state = self._single[parameter].state[parameter]
        for name, tensor in list(state.items()):
            if isinstance(tensor, Tensor) and tensor.device == self.device and tensor.nbytes >= self.smallest:
                paged = self._state.setdefault(parameter, {})[name] = _Paged(tensor.contiguous())
                del state[name], tensor
                leaving = paged.send(self._store)
                assert paged.ticket is not None
                self._leaving.append((paged.ticket, leaving))
                self._leaving_bytes += leaving.nbytes
        self._free(self.window)

    def _free(self, allowed_bytes: int) -> None:
        """Drops device memory whose copy out the compute stream has waited for, the oldest first."""
        while self._leaving_bytes > allowed_bytes:
            ticket, tensor = self._leaving.popleft()
            ticket.wait_for_copy_out()
            self._leaving_bytes -= tensor.nbytes

    # -- the end

    def _bring_back(self) -> None:
        """All state is on the device again, in the user's optimizer."""
        self._free(0)
        for parameter, single in self._single.items():
            for name, paged in self._state.pop(parameter, {}).items():
                single.state[parameter][name] = paged.present()
            if single.state.get(parameter):
                self.optimizer.state[parameter] = single.state[parameter]

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's `state_dict()` with all state, copied to host memory: for saving in the middle of training."""
        for parameter, single in self._single.items():
            state = dict(single.state.get(parameter, {}))
            state |= {name: paged.present().cpu() for name, paged in self._state.pop(parameter, {}).items()}
            self.optimizer.state[parameter] = state
            restored = {
                name: value.to(self.device) if name not in single.state[parameter] else value for name, value in state.items()
            }
            single.state[parameter] = restored
            self._send(parameter)
        document = self.optimizer.state_dict()
        self.optimizer.state.clear()
        return document


def paged_optimizer(
    optimizer: Optimizer, store: StoreName = "pinned", *, in_backward: bool = False, window: str | float = "512 MiB"
) -> PagedOptimizer:
    """`with paged_optimizer(AdamW(...)) as paged:` trains with the optimizer's state in a second memory.

    The loop stays as it is: `optimizer.step()` updates the parameters one after the other, while state moves in and out, at most
    `window` bytes in each direction ahead of and behind the update. Updates are those of the optimizer's own class, bit for bit.

    With `in_backward=True` each parameter is updated as soon as its gradient is complete, and the gradient is freed; `step()` then
    ends the step without further work. One backward is one step, so gradients cannot be accumulated or clipped by their total norm.

    `store` is as for `overlay`. Until the with-block ends, when all state returns to the device and to the optimizer,
    `paged.state_dict()` is what to save.

    >>> weight = torch.nn.Parameter(torch.ones(100))
    >>> optimizer = torch.optim.AdamW([weight], lr=0.1)
    >>> with paged_optimizer(optimizer, "host", in_backward=True) as paged:
    ...     weight.square().sum().backward()
    ...     optimizer.step()
    >>> paged.updates, weight.grad, len(optimizer.state[weight])
    (1, None, 3)
    """
    return PagedOptimizer(optimizer, store=store, in_backward=in_backward, window=int(parse(window, "B", "window")))
