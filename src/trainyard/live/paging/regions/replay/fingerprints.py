"""Whether a call computes the same in each pass, from its arguments and its own tensors alone: what a replay takes for granted.

A block may read a tensor that somebody else keeps, or multiply by a number that a schedule moves. Its recording would go on with
those of the recorded pass. So in two passes before anything is recorded its operators are watched. A tensor that is neither an
argument nor among what `conditions` look at nor computed in the call, conditions that do not hold in the second pass, or a sequence
of operators and numbers that differs between the two, keep the block from being recorded. Replays of a compiled model rest on two
calls of its own code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.live.paging.blocks import leaves
from trainyard.live.paging.compiled_code import uncompiled
from trainyard.live.paging.regions.finding import Region
from trainyard.live.paging.regions.replay.conditions import Conditions
from trainyard.live.paging.signature import tensors_of

Call = Callable[..., Any]
WATCHED = 2
"""Passes in which calls are watched."""
_MADE_FROM_NUMBERS = torch.ops.aten.lift_fresh.default
_SAME_TENSOR = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)
_SMALL = 64
"""Elements of a tensor made from numbers that are compared."""


class Fingerprints:
    """Of the calls of some regions."""

    def __init__(self) -> None:
        self._found: dict[str, list[_Watch]] = {}
        self._called: Counter[str] = Counter()

    def begin(self) -> None:
        """Before a pass."""
        self._called.clear()

    def around(self, region: Region, call: Call) -> Call:
        """The call, watched: the first one of each pass."""

        def run(*arguments: Any, **keywords: Any) -> Any:
            self._called[region.name] += 1
            if self._called[region.name] > 1 or torch._C._current_autograd_node() is not None or not torch.is_grad_enabled():
                return call(*arguments, **keywords)
            found = self._found.setdefault(region.name, [])
            watch = _Watch(region, (arguments, keywords), found[-1].conditions if found else None)
            with uncompiled(), watch:
                result = call(*arguments, **keywords)
            found.append(watch.ended(is_last=len(found) + 1 == WATCHED))
            return result

        return run

    def obstacle(self, name: str) -> str | None:
        """Why the calls of a region cannot be replayed."""
        found = self._found.get(name, [])
        if len(found) < WATCHED:
            return "was not called in each of the first passes"
        if any(watch.reads_elsewhere for watch in found):
            return "reads a tensor that it is neither called with nor keeps"
        if any(watch.has_changed for watch in found):
            return "reads something else in each pass"
        return None if len({watch.fingerprint for watch in found}) == 1 else "computes something else in each pass"


class _Watch(TorchDispatchMode):
    """The operators of one call."""

    def __init__(self, region: Region, arguments: Any, before: Conditions | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fingerprint = 0
        self.reads_elsewhere = False
        self.has_changed = before is not None and not any(before.hooks) and not before.hold()
        """Whether the block reads something else than in the pass before. Hooks are an obstacle of their own."""
        inputs = tensors_of(arguments)
        devices = {tensor.device for tensor in (*inputs, *region.module.parameters())}
        self.conditions: Conditions | None = Conditions(region.module)
        kept = self.conditions.storages
        # A number on another device is read by the host while operators are recorded, and not again in a replay.
        self.known = {_address(tensor) for tensor in inputs} | {address for address, device in kept.items() if device in devices}

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        keywords = keywords or {}
        result = function(*arguments, **keywords)
        given: list[Tensor] = []
        numbers: list[Any] = []
        for leaf in leaves((arguments, keywords)):
            if isinstance(leaf, Tensor):
                given.append(leaf)
                numbers.append((tuple(leaf.shape), leaf.dtype))
            else:
                numbers.append(repr(leaf) if not isinstance(leaf, torch.Generator) else "generator")
        from_numbers = function is _MADE_FROM_NUMBERS
        for tensor in given:
            if _is_number(tensor) and not self._is_known(tensor):
                numbers.append(tensor.item())
            elif from_numbers:
                numbers.append(tensor.tolist() if _is_small(tensor) else "large")
            else:
                self.reads_elsewhere |= not self._is_known(tensor)
        if function not in _SAME_TENSOR:
            self.fingerprint = hash((self.fingerprint, str(function), repr(numbers)))
        results = tensors_of(result)
        self.known.update(_address(tensor) for tensor in results)
        # A copy of the host's memory reads there again in each replay, whatever is there then.
        self.reads_elsewhere |= any(_is_in_host_memory(tensor) for tensor in given) and not all(map(_is_on_host, results))
        return result

    def _is_known(self, tensor: Tensor) -> bool:
        return tensor.numel() == 0 or _address(tensor) in self.known

    def ended(self, *, is_last: bool) -> _Watch:
        self.known.clear()
        if is_last:
            self.conditions = None
        return self


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else id(tensor)


def _is_number(tensor: Tensor) -> bool:
    """As operators of torch make one from a number of Python that they are given."""
    return _is_on_host(tensor) and tensor.dim() == 0


def _is_in_host_memory(tensor: Tensor) -> bool:
    return _is_on_host(tensor) and tensor.dim() > 0


def _is_on_host(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def _is_small(tensor: Tensor) -> bool:
    return _is_on_host(tensor) and tensor.numel() <= _SMALL
