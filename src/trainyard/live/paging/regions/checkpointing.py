"""A checkpointed call with little work for the host: only its inputs are saved, and backward calls it once more.

It does what `torch.utils.checkpoint.checkpoint(use_reentrant=False)` does, and runs the same kernels: the second call ends as soon
as it has produced the last tensor that backward needs, with the random state and the autocast mode of the first. What differs is
the Python around them. A checkpointed ViT or ConvNeXt waits for the host on an H200, so that is what its step time consists of.
Autograd keeps a number for each saved tensor; the first number it asks for fills a list with all of them.

`selective` saves the results of products and of attention without dropout as well, and computes the rest again. It passes every op
through Python, twice, which pays where the device is slower than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.live.paging.blocks import changed_in_place, mapped
from trainyard.live.paging.compiled_code import uncompiled
from trainyard.live.paging.regions.call_state import ModuleState, copied, put_back, set_statistics_aside, without_empty_caches
from trainyard.live.paging.regions.replay.random_numbers import is_recording, recorded_random
from trainyard.live.paging.signature import autocast_modes, tensors_of

Call = Callable[..., Any]
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution")
_ATTENTION = {"flash_attention": 3, "efficient_attention": 5, "cudnn_attention": 5, "flash_attention_for_cpu": 3}
_DROPOUT = {getattr(torch.ops.aten, f"_scaled_dot_product_{name}").default: place for name, place in _ATTENTION.items()}
"""Operators of attention, and which argument is the share that is dropped."""
PRODUCTS = frozenset((*(getattr(torch.ops.aten, name).default for name in _PRODUCTS), *_DROPOUT))
"""Operators whose results a selective checkpoint saves: they take the most time for their bytes."""


def checkpoint(call: Call, *arguments: Any, **keywords: Any) -> Any:
    """The result of a call whose intermediate tensors are dropped, and computed again in backward.

    >>> weight = torch.ones(3, requires_grad=True)
    >>> checkpoint(lambda x: (x * weight).exp().sum(), torch.tensor([0.0, 1.0, 2.0])).backward()
    >>> weight.grad
    tensor([ 0.0000,  2.7183, 14.7781])
    """
    if not torch.is_grad_enabled():
        return call(*arguments, **keywords)
    arguments, keywords = without_empty_caches(getattr(call, "__self__", None), arguments, keywords)
    frame = _Frame(call, arguments, keywords)
    with saved_tensors_hooks(frame.pack, frame.unpack):
        result = call(*arguments, **keywords)
    frame.state.keep_written()
    return result


def selective(call: Call, *arguments: Any, **keywords: Any) -> Any:
    """The same, but the results of products are kept from forward, and the second call finds them there."""
    if not torch.is_grad_enabled():
        return call(*arguments, **keywords)
    arguments, keywords = without_empty_caches(getattr(call, "__self__", None), arguments, keywords)
    frame = _Frame(call, arguments, keywords)
    frame.products = []
    with uncompiled(), saved_tensors_hooks(frame.pack, frame.unpack), _Saving(frame.products):
        result = call(*arguments, **keywords)
    frame.state.keep_written()
    return result


def is_saved(function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Whether a selective checkpoint keeps what an operator returns.

    Attention that drops values at random is computed again: it moves the generator on, and all later dropouts depend on that.
    """
    place = _DROPOUT.get(function)
    if place is None:
        return function in PRODUCTS
    return not (arguments[place] if len(arguments) > place else keywords.get("dropout_p", 0.0))


class _Product(NamedTuple):
    """One call of a product, and what it returned."""

    function: Any
    shapes: list[torch.Size]
    result: Any
    aliases: list[tuple[Tensor, int]]
    """Tensors that hold the returned content, each with its own counter of changes in place and what that counted at first."""

    def watch(self, result: Any) -> None:
        self.aliases.extend((tensor, tensor._version) for tensor in tensors_of(result))

    @property
    def is_unchanged(self) -> bool:
        return all(tensor._version == version for tensor, version in self.aliases)


class _Saving(TorchDispatchMode):
    """Keeps the results of products.

    `torch.matmul` hands out the result of `bmm` in another shape as if it were a copy (`_unsafe_view`): it counts its changes in
    place by itself, and so it is watched as well.
    """

    def __init__(self, products: list[_Product]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products = products
        self.by_storage: dict[int, _Product] = {}

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        result = function(*arguments, **(keywords or {}))
        if is_saved(function, arguments, keywords or {}):
            alias = _detached(result)  # autograd gives the result itself a history, which would hold this list
            product = _Product(function, [tensor.shape for tensor in tensors_of(arguments)], alias, [])
            product.watch(alias)
            self.products.append(product)
            for tensor in tensors_of(alias):
                self.by_storage[tensor.untyped_storage()._cdata] = product
        elif function is torch.ops.aten._unsafe_view.default:
            source = self.by_storage.get(result.untyped_storage()._cdata)
            if source is not None:
                source.watch(_detached(result))
        return result


class _Replaying(TorchDispatchMode):
    """Returns the results of products that were kept, in order. One that was changed in place or is not found is computed."""

    def __init__(self, products: list[_Product]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products = products
        self.place = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if self.place < len(self.products) and is_saved(function, arguments, keywords or {}):
            product = self.products[self.place]
            self.place += 1
            shapes = [tensor.shape for tensor in tensors_of(arguments)]
            if product.function is function and product.shapes == shapes and product.is_unchanged:
                return _detached(product.result)
        return function(*arguments, **(keywords or {}))


def _detached(result: Any) -> Any:
    """Aliases without a history that count versions with the result: a mode runs below the layer that does so by itself."""
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        return mapped(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, result)


class _LastTensor(Exception):
    """All tensors that backward needs have been computed."""


class _Frame:
    """One checkpointed call: what to repeat, and the tensors of the repetition that backward has not used yet."""

    __slots__ = (
        "arguments", "autocast", "call", "keywords", "products", "random", "recorded_random", "shapes", "state", "values",
        "versions",
    )  # fmt: skip

    def __init__(self, call: Call, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self.call, self.arguments, self.keywords = call, copied(arguments), copied(keywords)
        inputs = tensors_of((arguments, keywords))
        self.versions = [(tensor, tensor._version) for tensor in inputs if not tensor.is_inference()]
        # States of generators cannot be read while CUDA records: there the recording has its own.
        generators = [] if is_recording() else _generators(inputs)
        self.random = [(generator, generator.get_state()) for generator in generators]
        self.recorded_random = recorded_random()
        self.autocast = autocast_modes()
        self.state = ModuleState(call)
        self.shapes: list[torch.Size] = []
        self.values: list[Tensor | None] = []
        self.products: list[_Product] | None = None

    def pack(self, tensor: Tensor) -> int:
        self.shapes.append(tensor.shape)
        return len(self.shapes) - 1

    def unpack(self, number: int) -> Tensor:
        value = self.values[number] if self.values else None
        if value is None:  # the first that backward asks for, or one of a graph that was retained
            self._repeat()
            value = self.values[number]
            assert value is not None
        self.values[number] = None
        return value

    def _repeat(self) -> None:
        for tensor, version in self.versions:
            if tensor._version != version:
                subject = f"an input of shape {tuple(tensor.shape)} of a checkpointed block"
                raise changed_in_place(subject, tensor._version, version)
        values: list[Tensor | None] = []
        last = len(self.shapes)

        def keep(tensor: Tensor) -> None:
            values.append(tensor.detach())
            if len(values) == last:
                raise _LastTensor

        try:
            with self._circumstances(), saved_tensors_hooks(keep, _never_unpacked):
                self.call(*copied(self.arguments), **copied(self.keywords))
        except _LastTensor:
            pass
        if [value.shape for value in values if value is not None] != self.shapes:
            raise RuntimeError(
                f"a checkpointed block saved {last} tensors in forward, and {len(values)} or others when it was called again for "
                "backward: it must compute the same for the same inputs"
            )
        self.values = values

    @contextmanager
    def _circumstances(self) -> Iterator[None]:
        """Gradients enabled, with the random state, the autocast mode and the modules' own state of forward; all are put back."""
        states = [(generator, generator.get_state()) for generator, _ in self.random]
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            if self.products is not None:
                stack.enter_context(uncompiled())
                stack.enter_context(_Replaying(self.products))
            if self.recorded_random is not None:
                stack.enter_context(self.recorded_random.as_recorded())
            if self.autocast != autocast_modes():
                for device, enabled, dtype in self.autocast:
                    stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
            stack.enter_context(self.state.as_before())
            for generator, state in self.random:
                generator.set_state(state)
            aside = set_statistics_aside(self.call)
            try:
                yield
            finally:
                put_back(aside)
                for generator, state in states:
                    generator.set_state(state)


def _never_unpacked(nothing: None) -> Tensor:
    raise AssertionError("the graph of a repeated call is not used")


def _generators(inputs: list[Tensor]) -> list[torch.Generator]:
    """The default generators of the host and of the devices that the inputs are on."""
    devices = {tensor.device.index for tensor in inputs if tensor.device.type == "cuda"}
    return [torch.default_generator, *(torch.cuda.default_generators[index] for index in devices)]
