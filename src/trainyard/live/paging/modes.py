"""The three modes of a pass: record it (everything is sent at once), follow a plan, or send everything."""

from __future__ import annotations

import sys
import weakref
from typing import Any, Protocol

import torch
from torch import Tensor

from trainyard.live.paging.blocks import (
    Block,
    BlockArgument,
    External,
    Geometry,
    Handle,
    InPlaceTarget,
    RecipeOp,
    ResidentBytes,
    SavedTensor,
    leaves,
    mapped,
)
from trainyard.live.paging.measures import WAITING, Laps, Meter, clock_of
from trainyard.live.paging.operators import generator_of, preserved_arguments, uses_random_numbers
from trainyard.live.paging.planning import Plan
from trainyard.live.paging.stores import Store
from trainyard.live.paging.trace import OUTSIDE, Recorder, Save

NOTHING = sys.maxsize


class PassMode(Protocol):
    """What is done at the ops of one pass, when autograd saves a tensor (`pack`) and when it needs one back (`unpack`)."""

    def op(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any: ...

    def pack(self, tensor: Tensor) -> Handle | SavedTensor: ...

    def unpack(self, handle: Handle | SavedTensor, node: Any) -> Tensor: ...

    def forward_done(self) -> None:
        """Forward is over."""

    def backward_done(self) -> None:
        """Backward is over."""


class Diverged(Exception):
    """A pass that is not the one the plan was made for."""


class SharedState:
    """What all modes share: the device, the store, the resident bytes, the layer of each parameter's storage."""

    def __init__(self, device: torch.device, store: Store, smallest: int) -> None:
        self.device, self.store, self.smallest = device, store, smallest
        self.resident = ResidentBytes()
        self.layers: dict[int, str] = {}


class Sending:
    """Every saved tensor is sent out at once and fetched on demand: slow, but with the least memory and without a plan."""

    def __init__(self, shared: SharedState) -> None:
        self.shared = shared
        self.blocks: dict[int, Block] = {}

    def op(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        return function(*arguments, **keywords)

    def pack(self, tensor: Tensor) -> Handle | SavedTensor:
        if tensor.untyped_storage().nbytes() < self.shared.smallest:
            return SavedTensor(tensor)
        return Handle(self._sent(tensor, None), tensor, -1)

    def _sent(self, tensor: Tensor, number: int | None) -> Block:
        storage = tensor.untyped_storage()
        block = self.blocks.get(storage._cdata)
        if block is None or block.version != tensor._version:
            block = self.blocks[storage._cdata] = Block(storage, number, self.shared.resident)
            block.hold(tensor)
            block.send(self.shared.store)
            block.leave()
        return block

    def unpack(self, handle: Handle | SavedTensor, node: Any) -> Tensor:
        return handle.tensor()

    def forward_done(self) -> None:
        self.blocks.clear()

    def backward_done(self) -> None:
        pass


class Watching(Sending):
    """Sends everything, and records ops, storages, times and memory."""

    def __init__(self, shared: SharedState) -> None:
        super().__init__(shared)
        self.recorder = Recorder(shared.layers, shared.smallest)
        self.laps, self.meter = Laps(clock_of(shared.device)), Meter(shared.device)
        self.laps.mark(0)
        self.ended = False

    def op(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        recorder = self.recorder
        recorder.note_freed()
        position = recorder.position + 1
        self.meter.enter(position)
        self.laps.mark(position)
        result = function(*arguments, **keywords)
        recorder.op(function, arguments, keywords, result)
        return result

    def pack(self, tensor: Tensor) -> Handle | SavedTensor:
        recorder = self.recorder
        if tensor.untyped_storage().nbytes() < self.shared.smallest:
            return SavedTensor(tensor, recorder.save(OUTSIDE, tensor))
        number = recorder.saved(tensor)
        save = recorder.save(number, tensor)
        self.laps.mark(WAITING)
        block = self._sent(tensor, number)
        self.laps.mark(recorder.position)
        return Handle(block, tensor, save)

    def unpack(self, handle: Handle | SavedTensor, node: Any) -> Tensor:
        self.laps.mark(WAITING)
        position = self.recorder.unpack(handle.number, node)
        self.meter.enter(position)
        tensor = handle.tensor()
        self.laps.mark(position)
        return tensor

    def forward_done(self) -> None:
        self.recorder.note_freed()
        super().forward_done()

    def backward_done(self) -> None:
        self.laps.mark(WAITING)
        self.meter.enter(0)
        self.recorder.check_inputs_unchanged()
        self.ended = True


class Following:
    """Follows a plan as long as autograd saves the tensors that the plan expects."""

    def __init__(self, shared: SharedState, plan: Plan, *, metered: bool = False, timed: bool = False) -> None:
        self.shared, self.plan = shared, plan
        self.meter = Meter(shared.device) if metered else None
        self.laps = Laps(clock_of(shared.device)) if timed else None
        self.blocks: dict[int, Block] = {}
        self.numbered: dict[int, weakref.ref[Block]] = {}
        self.saves = self.ops = self.row = self.position = 0
        self.due = plan.agenda[0][0] if plan.agenda else NOTHING
        self.ended = False

    # -- forward

    def op(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        planned_op = self.plan.steps.get(self.ops)
        self.ops += 1
        if self.meter is not None:
            self.meter.enter(self.ops)
        if self.laps is not None:
            self.laps.mark(WAITING)
        if self.ops >= self.due:
            self.run(self.ops)
        if self.laps is not None:
            self.laps.mark(self.ops)
        if planned_op is None or planned_op.op.function is not function:
            return function(*arguments, **keywords)
        planned = planned_op.op
        step = self._step(function, arguments, keywords, planned.wrote) if planned_op.is_recomputed else None
        result = function(*arguments, **keywords)
        results = [leaf for leaf in leaves(result) if isinstance(leaf, Tensor)]
        for position, number in planned.created:
            if position < len(results):
                block = self._block(results[position], number)
                if step is not None and (number in self.plan.temporary or self.plan.decisions.get(number) == "recompute"):
                    block.recipe, block.temporary = [step], number in self.plan.temporary
                    step.results.append((position, weakref.ref(block)))
        if step is not None:
            for number in planned.wrote:
                target = self.numbered.get(number, lambda: None)()
                if target is not None and target.recipe:
                    target.recipe.append(step)
                    target.version += 1
        return result

    def _block(self, tensor: Tensor, number: int) -> Block:
        storage = tensor.untyped_storage()
        block = self.blocks.get(storage._cdata)
        if block is None:
            block = self.blocks[storage._cdata] = Block(storage, number, self.shared.resident)
            self.numbered[number] = weakref.ref(block)
        return block

    def _step(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], wrote: list[int]) -> RecipeOp:
        snapshots = preserved_arguments(function)

        def leaf(item: Any) -> Any:
            if not isinstance(item, Tensor):
                return item
            block = self.blocks.get(item.untyped_storage()._cdata) if item.layout is torch.strided else None
            if block is not None and block.number in wrote:
                return InPlaceTarget(Geometry.of(item))
            if block is not None:
                return BlockArgument(block, Geometry.of(item), item._version)
            return External(item, -1 if item.is_inference() else item._version)

        changed = [
            External(item.clone(), -1) if position in snapshots and isinstance(item, Tensor) else mapped(leaf, item)
            for position, item in enumerate(arguments)
        ]
        step = RecipeOp(function, changed, {name: mapped(leaf, item) for name, item in keywords.items()})
        if uses_random_numbers(function):
            generator = generator_of(self.shared.device)
            step.random = generator, generator.get_state()
        return step

    def pack(self, tensor: Tensor) -> Handle | SavedTensor:
        plan, number = self.plan, self.saves
        if number == len(plan.trace.saves):
            raise Diverged
        save = plan.trace.saves[number]
        if save.size != tensor.size() or save.dtype != tensor.dtype:
            raise Diverged
        decision = plan.decisions.get(save.block)
        if decision is None:
            self._next(save)
            return SavedTensor(tensor, number)
        expected = self.numbered.get(save.block, lambda: None)()
        block = self.blocks.get(tensor.untyped_storage()._cdata)
        if block is not expected or tensor.untyped_storage().nbytes() != plan.trace.blocks[save.block].size:
            raise Diverged
        if block is None:
            block = self._block(tensor, save.block)
        handle = Handle(block, tensor, number)
        if decision != "recompute":
            block.hold(tensor)
        elif not block.is_available and not self._can_be_made(block, tensor):
            block.recipe = []
            block.hold(tensor)
            block.send(self.shared.store)
            block.leave()
        self._next(save)
        return handle

    def _can_be_made(self, block: Block, tensor: Tensor) -> bool:
        return len(block.recipe) == self.plan.expected_chain(block.number or 0) and block.version == tensor._version

    def _next(self, save: Save) -> None:
        self.saves += 1
        self.ops = save.ops  # ops that come or go between two saved tensors move nothing behind the second

    # -- both

    def run(self, position: int) -> None:
        """Does all actions of the agenda up to a position."""
        agenda = self.plan.agenda
        while self.row < len(agenda) and agenda[self.row][0] <= position:
            _, action, number = agenda[self.row]
            self.row += 1
            block = self.numbered.get(number, lambda: None)()
            if block is None:
                continue
            if action == "send":
                block.send(self.shared.store)
            elif action == "leave":
                block.leave()
            else:
                block.fetch()
        self.due = agenda[self.row][0] if self.row < len(agenda) else NOTHING

    # -- backward

    def unpack(self, handle: Handle | SavedTensor, node: Any) -> Tensor:
        position = self.plan.trace.unpacked_at[handle.number] if 0 <= handle.number < len(self.plan.trace.unpacked_at) else 0
        self.position = position or self.position
        if self.meter is not None:
            self.meter.enter(self.position)
        if self.laps is None:
            self.run(position)
            return handle.tensor()
        self.laps.mark(WAITING)
        self.run(position)
        tensor = handle.tensor()
        self.laps.mark(self.position)
        return tensor

    def forward_done(self) -> None:
        self.blocks.clear()

    def backward_done(self) -> None:
        if self.laps is not None:
            self.laps.mark(WAITING)
        if self.meter is not None:
            self.meter.enter(0)
        self.ended = True
