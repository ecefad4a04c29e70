"""The twin of CUDA graphs on the CPU: the operators that a function called, with the tensors that they were given.

As a graph of CUDA, it knows memory and nothing else. What Python looked at, decided or computed by itself while the function was
recorded stays as it was then: a replay that must not come after a change of that is as wrong here as it would be there. And memory
that was free when a function was recorded is overwritten before each of its replays, as a graph of CUDA may do.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from trainyard.live.paging.blocks import mapped
from trainyard.live.paging.compiled_code import uncompiled
from trainyard.live.paging.regions.replay.arguments import NotPlain
from trainyard.live.paging.regions.replay.places import Place, copy_content
from trainyard.live.paging.regions.replay.random_numbers import CallRandom
from trainyard.live.paging.signature import tensors_of

Function = Callable[[], Sequence[Tensor | None]]
_LOOKS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
"""Operators whose result Python must look at before it goes on."""
_INDEXING = torch.ops.aten.index.Tensor
_ALLOCATIONS = ("aten::empty", "aten::new_empty")


_Given = tuple[Tensor, StorageWeakRef]
"""An owner of memory, and what a program was given instead."""
_LEFT: list[_Given] = []
"""Of recorders that are closed."""


def _used(pairs: list[_Given]) -> list[_Given]:
    return [(owner, given) for owner, given in pairs if not given.expired()]


class _Memory:
    """Memory that recorded operators allocated. All of it stays until the recorder is closed.

    The tensors that a program is given do not hold it, so it is known which memory a graph of CUDA would use again.
    """

    def __init__(self) -> None:
        self.owners: list[Tensor] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self._in_use: list[_Given] = []

    def add(self, owner: Tensor) -> Tensor:
        """The tensor that a program is given instead of its owner."""
        storage = owner.untyped_storage()
        place = bisect(self.starts, storage.data_ptr())
        self.owners.append(owner)
        self.starts.insert(place, storage.data_ptr())
        self.ends.insert(place, storage.data_ptr() + storage.nbytes())
        given = Place(owner).alias()
        self._in_use.append((owner, StorageWeakRef(given.untyped_storage())))
        return given

    def reference(self, value: Any) -> Any:
        """A tensor in the same memory, without a history."""
        if not isinstance(value, Tensor):
            return value
        place = bisect(self.starts, value.data_ptr()) - 1
        is_owned = place >= 0 and value.data_ptr() < self.ends[place]
        if not is_owned or not value.numel():
            return value.detach()
        alias = Place(value).alias()
        alias = alias.conj() if value.is_conj() else alias
        return torch._neg_view(alias) if value.is_neg() else alias

    def freed(self) -> list[Tensor]:
        """Memory that nobody has used since this was last asked."""
        free = [owner for owner, given in self._in_use if given.expired()]
        self._in_use = _used(self._in_use)
        return free

    def leave(self) -> None:
        """What is still used stays when all else goes."""
        _LEFT[:] = _used([*_LEFT, *self._in_use])


class _Operator(NamedTuple):
    function: Any
    arguments: Any
    keywords: dict[str, Any]
    results: list[tuple[int, Tensor]]
    """Those in memory of their own, by their place among all that the operator returned."""

    def run(self) -> None:
        computed = tensors_of(self.function(*self.arguments, **self.keywords))
        for place, result in self.results:
            copy_content(result, computed[place])


class _Recording(TorchDispatchMode):
    """Keeps every operator that computes something; views are in the memory of what they are views of."""

    def __init__(self, memory: _Memory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memory = memory
        self.operators: list[_Operator] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if _waits(function, arguments):
            raise RuntimeError(f"{function} waits for its result, which is not there while operators are recorded")
        arguments, keywords = tuple(arguments), keywords or {}
        given = mapped(self.memory.reference, arguments)
        named = {name: mapped(self.memory.reference, value) for name, value in keywords.items()}
        before = {tensor.untyped_storage().data_ptr() for tensor in tensors_of((arguments, keywords))}
        result = function(*arguments, **keywords)
        results = [*enumerate(tensors_of(result))]
        own = [(place, one) for place, one in results if one.numel() and one.untyped_storage().data_ptr() not in before]
        handed_out = {id(one): self.memory.add(one) for _, one in own}
        is_allocation = function._schema.name.startswith(_ALLOCATIONS)
        if function._schema.is_mutable or (own and not is_allocation):
            self.operators.append(_Operator(function, given, named, own))
        return mapped(lambda leaf: handed_out.get(id(leaf), leaf), result)


def _waits(function: Any, arguments: Any) -> bool:
    """Whether an operator looks at its result; indices that are numbers say how large that is."""
    if function is _INDEXING:
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in arguments[1])
    return any(tag in function.tags for tag in _LOOKS)


class OperatorGraph:
    """A function that was recorded. It ran while it was: so the first replay does nothing."""

    def __init__(self, function: Function, random: CallRandom | None, memory: _Memory) -> None:
        self.is_fresh, self.random, self.free = True, random, memory.freed()
        with uncompiled(), _Recording(memory) as recording:
            self.results: list[Tensor | None] = [*function()]
        self.operators = recording.operators

    def replay(self) -> None:
        if self.is_fresh:
            self.is_fresh = False
            return
        with torch.no_grad(), self.random.as_noted() if self.random is not None else nullcontext():
            for tensor in self.free:
                tensor.fill_(float("nan") if tensor.dtype.is_floating_point else 0)
            for operator in self.operators:
                operator.run()


class OperatorRecorder:
    """Records operators in place of graphs of CUDA (see `recorders.Recorder`)."""

    hidden_bytes = total_peak_bytes = 0

    def __init__(self, device: torch.device) -> None:
        self.device, self.memory = device, _Memory()
        self._is_broken = False

    def record(self, function: Function, random: CallRandom | None = None) -> OperatorGraph:
        if self._is_broken:
            raise RuntimeError("an earlier recording failed, and its pool is still recorded to")
        before = torch.get_rng_state()
        try:
            return OperatorGraph(function, random, self.memory)
        except BaseException as error:
            torch.set_rng_state(before)  # a graph that is not finished draws no random numbers either
            self._is_broken = not isinstance(error, NotPlain)
            raise

    def own(self, tensor: Tensor, source: Tensor) -> None:
        """Copied at once, since the function runs while it is recorded; before a replay, whoever fills the place copies."""
        with torch.no_grad(), _disable_current_modes():
            copy_content(tensor, source)

    def finish(self) -> None:
        pass

    def close(self) -> None:
        self.memory.leave()
