"""Why a block cannot be recorded, found out in an ordinary call of it, the *rehearsal*.

A graph repeats what the device was given, not what Python did. So a block must not wait for results of the device to decide what to
do next, draw random numbers on the host, or keep a state of its own in Python. It must take and return tensors and constants, and
use no parameters but its own, since nobody would get the gradients of others.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainyard.live.paging.regions.call_state import writes_state
from trainyard.live.paging.regions.replay.arguments import NotPlain, take_apart
from trainyard.live.paging.regions.replay.conditions import Conditions
from trainyard.live.paging.regions.replay.forward_hooks import ForwardHooks
from trainyard.live.paging.regions.replay.parts import Leaf, edge_of, leaves_in_parts
from trainyard.live.paging.regions.replay.stand_ins import trained

_SYNCHRONIZES = "called a synchronizing CUDA operation"
_OTHER_GRAPHS = ("CheckpointFunctionBackward",)
"""Nodes of autograd behind which there is a graph that cannot be seen."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What was found out about a block in one variant."""

    obstacle: str | None = None
    draws_random_numbers: bool = False
    """Of the device's generator."""
    in_parts: frozenset[int] = frozenset()
    """Inputs, and parameters after them, whose gradients are returned part by part (see `parts`)."""
    copied: frozenset[int] = frozenset()
    """Results, and gradients after them, that programs hold for longer than a pass: copies of them are handed out."""


def rehearse(
    block: nn.Module, call: Callable[[], Any], arguments: Any, device: torch.device, *, compiles: bool = False
) -> tuple[Any, Rehearsal, list[Leaf]]:
    """The result of a call, what is known of the block after it, and leaves whose gradients have several parts inside.

    `compiles`: the call is of compiled code.
    """
    hooks = ForwardHooks(block)
    if hooks.modules and (compiles or any(module._compiled_call_impl is not None for module in block.modules())):
        return call(), Rehearsal("is compiled with hooks on modules inside"), []
    before, conditions = _RandomStates(device), Conditions(block)
    number = _sequence_number()
    versions = _versions(arguments)
    with _waiting_for_device(device) as waits, hooks.watched(put_off=False) as seen:
        result = call()
    host, on_device = before.changes()
    shown = [one.values for one in seen]
    obstacle = (
        _of_values(arguments, "is called with", device)
        or _of_values(result, "returns", device)
        or _of_values(shown, "shows a hook inside", device)
        or ("has a hook inside that changes what a module returns" if any(one.is_changed for one in seen) else None)
        or ("changes in place what a hook inside has seen" if any(one.is_overwritten for one in seen) else None)
        or _of_module(block, conditions)
        or ("waits for the device" if waits else None)
        or ("draws random numbers on the host" if host else None)
        or ("changes its input in place" if versions != _versions(arguments) else None)
        or _of_graph(block, arguments, result, shown, number)
    )
    return result, Rehearsal(obstacle, on_device), [] if obstacle else _in_several_parts(block, arguments, result, shown)


def _in_several_parts(block: nn.Module, arguments: Any, result: Any, shown: Any) -> list[Leaf]:
    inputs, outputs = _inputs_and_outputs(block, arguments, result, shown)
    return leaves_in_parts(inputs, trained(block), outputs, _sequence_number())


def _inputs_and_outputs(block: nn.Module, arguments: Any, result: Any, shown: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Of a call. What it returns or shows to hooks is an output, unless it was given that or has it."""
    _, inputs = take_apart(arguments)
    others = {id(tensor) for tensor in (*inputs, *block.parameters(), *block.buffers())}
    return inputs, [tensor for tensor in take_apart((result, shown))[1] if id(tensor) not in others]


def _of_values(values: Any, verb: str, device: torch.device) -> str | None:
    try:
        _, tensors = take_apart(values)
    except NotPlain as error:
        return f"{verb} {error}"
    elsewhere = next((tensor for tensor in tensors if tensor.device != device), None)
    return None if elsewhere is None else f"{verb} a tensor on {elsewhere.device}"


def _of_module(block: nn.Module, conditions: Conditions) -> str | None:
    """`conditions` are from before the call."""
    if any(conditions.hooks):
        return "has hooks inside that run before a module or in its backward"
    if writes_state(block) or not conditions.hold() or len(Conditions(block).settings) > len(conditions.settings):
        return "keeps a state of its own"
    for parameter in block.parameters():
        if type(parameter) is not nn.Parameter:
            return f"has a {type(parameter).__name__} as a parameter"
    return None


def _of_graph(block: nn.Module, arguments: Any, result: Any, shown: Any, number: int) -> str | None:
    """What the nodes of autograd say that a call made, those after `number`."""
    inputs, outputs = _inputs_and_outputs(block, arguments, result, shown)
    storages = {tensor.untyped_storage()._cdata for tensor in (*inputs, *block.parameters(), *block.buffers())}
    if any(output.untyped_storage()._cdata in storages for output in outputs):
        return "returns a view of what it was given"
    own = {id(parameter) for parameter in block.parameters()}
    ends = {edge_of(tensor) for tensor in inputs if tensor.requires_grad}
    differentiable = [output for output in outputs if output.requires_grad]
    if not differentiable:
        return "returns nothing that has a gradient"
    stack, seen = [edge_of(output) for output in differentiable], set[Any]()
    while stack:
        edge = stack.pop()
        node, _ = edge
        if edge in seen or edge in ends:
            continue
        seen.add(edge)
        if hasattr(node, "variable"):
            if id(node.variable) not in own:
                return "uses a parameter that is not its own"
        elif node.name() in _OTHER_GRAPHS:
            return "has a checkpoint inside"
        elif node._sequence_nr() <= number:
            return "uses a tensor that it is not called with"
        stack.extend(edge for edge in node.next_functions if edge[0] is not None)
    return None


def _sequence_number() -> int:
    """Nodes that autograd makes from now on have larger ones."""
    with torch.enable_grad():
        node = torch.zeros((), requires_grad=True).exp().grad_fn
    assert node is not None
    return int(node._sequence_nr())


def _versions(arguments: Any) -> list[int]:
    try:
        return [tensor._version for tensor in take_apart(arguments)[1]]
    except (NotPlain, RuntimeError):  # tensors of inference count no versions
        return []


class _RandomStates:
    """Of the generators of the host and of the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.host, self.on_device = self._host(), self._of_device()

    def changes(self) -> tuple[bool, bool]:
        """Whether numbers were drawn since, on the host and on the device."""
        same = all(_equal(one, other) for one, other in zip(self.host, self._host(), strict=True))
        return not same, not _equal(self.on_device, self._of_device())

    def _host(self) -> Sequence[Any]:
        numpy = sys.modules.get("numpy")
        of_numpy = () if numpy is None else numpy.random.get_state()[1:3]
        of_torch = torch.get_rng_state() if self.device.type != "cpu" else None
        return random.getstate(), of_torch, *(str(part.tobytes() if hasattr(part, "tobytes") else part) for part in of_numpy)

    def _of_device(self) -> Tensor:
        return torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else torch.get_rng_state()


def _equal(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)


@contextmanager
def _waiting_for_device(device: torch.device) -> Iterator[list[str]]:
    """A list that is not empty afterwards if the host waited for the device inside."""
    waits: list[str] = []
    if device.type != "cuda":
        yield waits
        return
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield waits
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    for note in notes:
        text = str(note.message)
        if _SYNCHRONIZES in text:
            waits.append(text)
        elif not text.startswith("Synchronization debug mode is a prototype"):
            warnings.warn_explicit(note.message, note.category, note.filename, note.lineno)
