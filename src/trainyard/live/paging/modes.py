"""Three ways through a pass: watching it (all is sent at once), following a plan, and, when it turns out another, sending on."""

from __future__ import annotations

import sys
import weakref
from typing import Any, Protocol

import torch
from torch import Tensor

from trainyard.live.paging.blocks import Block, Geometry, Given, Handle, Held, Kept, Own, Read, Step, leaves, mapped
from trainyard.live.paging.measures import WAITING, Laps, Meter, clock_of
from trainyard.live.paging.operators import draws, generator_of, spared
from trainyard.live.paging.planning import Plan
from trainyard.live.paging.stores import Store
from trainyard.live.paging.trace import OUTSIDE, Recorder, Save

NOTHING = sys.maxsize


class Way(Protocol):
    """How the ops, saved tensors and requests of one pass are treated."""

    def op(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any: ...

    def pack(self, tensor: Tensor) -> Handle | Kept: ...

    def ask(self, handle: Handle | Kept, node: Any) -> Tensor: ...

    def turn(self) -> None:
        """Forward is over."""

    def end(self) -> None:
        """Backward is over."""


class Diverged(Exception):
    """A pass that is not the one the plan was made for."""


class Surroundings:
    """What the ways share: the device, the store, what is held, which storages belong to the model."""

    def __init__(self, device: torch.device, store: Store, smallest: int) -> None:
        self.device, self.store, self.smallest = device, store, smallest
        self.held = Held()
        self.layers: dict[int, str] = {}


class Sending:
    """Everything goes out at once and comes back when asked for: slow, but it needs the least memory and no knowledge."""

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.blocks: dict[int, Block] = {}

    def op(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        return function(*arguments, **keywords)

    def pack(self, tensor: Tensor) -> Handle | Kept:
        if tensor.untyped_storage().nbytes() < self.around.smallest:
            return Kept(tensor)
        return Handle(self._sent(tensor, None), tensor, -1)

    def _sent(self, tensor: Tensor, number: int | None) -> Block:
        storage = tensor.untyped_storage()
        block = self.blocks.get(storage._cdata)
        if block is None or block.version != tensor._version:
            block = self.blocks[storage._cdata] = Block(storage, number, self.around.held)
            block.hold(tensor)
            block.send(self.around.store)
            block.leave()
        return block

    def ask(self, handle: Handle | Kept, node: Any) -> Tensor:
        return handle.tensor()

    def turn(self) -> None:
        self.blocks.clear()

    def end(self) -> None:
        pass


class Watching(Sending):
    """Sends everything, and notes ops, storages, times and memory."""

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self.recorder = Recorder(around.layers, around.smallest)
        self.laps, self.meter = Laps(clock_of(around.device)), Meter(around.device)
        self.laps.mark(0)
        self.ended = False

    def op(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        recorder = self.recorder
        recorder.bury()
        position = recorder.position + 1
        self.meter.enter(position)
        self.laps.mark(position)
        result = function(*arguments, **keywords)
        recorder.op(function, arguments, keywords, result)
        return result

    def pack(self, tensor: Tensor) -> Handle | Kept:
        recorder = self.recorder
        if tensor.untyped_storage().nbytes() < self.around.smallest:
            return Kept(tensor, recorder.save(OUTSIDE, tensor))
        number = recorder.saved(tensor)
        save = recorder.save(number, tensor)
        self.laps.mark(WAITING)
        block = self._sent(tensor, number)
        self.laps.mark(recorder.position)
        return Handle(block, tensor, save)

    def ask(self, handle: Handle | Kept, node: Any) -> Tensor:
        self.laps.mark(WAITING)
        position = self.recorder.ask(handle.number, node)
        self.meter.enter(position)
        found = handle.tensor()
        self.laps.mark(position)
        return found

    def turn(self) -> None:
        self.recorder.bury()
        super().turn()

    def end(self) -> None:
        self.laps.mark(WAITING)
        self.meter.enter(0)
        self.recorder.look_back()
        self.ended = True


class Following:
    """Does what a plan says, as long as what is saved is what the plan expects."""

    def __init__(self, around: Surroundings, plan: Plan, *, metered: bool = False, timed: bool = False) -> None:
        self.around, self.plan = around, plan
        self.meter = Meter(around.device) if metered else None
        self.laps = Laps(clock_of(around.device)) if timed else None
        self.blocks: dict[int, Block] = {}
        self.numbered: dict[int, weakref.ref[Block]] = {}
        self.saves = self.ops = self.row = self.position = 0
        self.due = plan.agenda[0][0] if plan.agenda else NOTHING
        self.ended = False

    # -- forward

    def op(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        found = self.plan.steps.get(self.ops)
        self.ops += 1
        if self.meter is not None:
            self.meter.enter(self.ops)
        if self.laps is not None:
            self.laps.mark(WAITING)
        if self.ops >= self.due:
            self.run(self.ops)
        if self.laps is not None:
            self.laps.mark(self.ops)
        if found is None or found.op.function is not function:
            return function(*arguments, **keywords)
        planned = found.op
        step = self._step(function, arguments, keywords, planned.wrote) if found.again else None
        result = function(*arguments, **keywords)
        results = [leaf for leaf in leaves(result) if isinstance(leaf, Tensor)]
        for place, number in planned.made:
            if place < len(results):
                block = self._block(results[place], number)
                if step is not None and (number in self.plan.passing or self.plan.decisions.get(number) == "recompute"):
                    block.recipe, block.passing = [step], number in self.plan.passing
                    step.made.append((place, weakref.ref(block)))
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
            block = self.blocks[storage._cdata] = Block(storage, number, self.around.held)
            self.numbered[number] = weakref.ref(block)
        return block

    def _step(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], wrote: list[int]) -> Step:
        snapshots = spared(function)

        def leaf(item: Any) -> Any:
            if not isinstance(item, Tensor):
                return item
            block = self.blocks.get(item.untyped_storage()._cdata) if item.layout is torch.strided else None
            if block is not None and block.number in wrote:
                return Own(Geometry.of(item))
            if block is not None:
                return Read(block, Geometry.of(item), item._version)
            return Given(item, -1 if item.is_inference() else item._version)

        changed = [
            Given(item.clone(), -1) if place in snapshots and isinstance(item, Tensor) else mapped(leaf, item)
            for place, item in enumerate(arguments)
        ]
        step = Step(function, changed, {name: mapped(leaf, item) for name, item in keywords.items()})
        if draws(function):
            generator = generator_of(self.around.device)
            step.random = generator, generator.get_state()
        return step

    def pack(self, tensor: Tensor) -> Handle | Kept:
        plan, number = self.plan, self.saves
        if number == len(plan.trace.saves):
            raise Diverged
        save = plan.trace.saves[number]
        if save.size != tensor.size() or save.dtype != tensor.dtype:
            raise Diverged
        decision = plan.decisions.get(save.block)
        if decision is None:
            self._next(save)
            return Kept(tensor, number)
        known = self.numbered.get(save.block, lambda: None)()
        block = self.blocks.get(tensor.untyped_storage()._cdata)
        if block is not known or tensor.untyped_storage().nbytes() != plan.trace.blocks[save.block].size:
            raise Diverged
        if block is None:
            block = self._block(tensor, save.block)
        handle = Handle(block, tensor, number)
        if decision != "recompute":
            block.hold(tensor)
        elif not block.there and not self._can_be_made(block, tensor):
            block.recipe = []
            block.hold(tensor)
            block.send(self.around.store)
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
        """Everything of the agenda up to a position."""
        agenda = self.plan.agenda
        while self.row < len(agenda) and agenda[self.row][0] <= position:
            _, what, number = agenda[self.row]
            self.row += 1
            block = self.numbered.get(number, lambda: None)()
            if block is None:
                continue
            if what == "send":
                block.send(self.around.store)
            elif what == "leave":
                block.leave()
            else:
                block.fetch()
        self.due = agenda[self.row][0] if self.row < len(agenda) else NOTHING

    # -- backward

    def ask(self, handle: Handle | Kept, node: Any) -> Tensor:
        position = self.plan.trace.asked[handle.number] if 0 <= handle.number < len(self.plan.trace.asked) else 0
        self.position = position or self.position
        if self.meter is not None:
            self.meter.enter(self.position)
        if self.laps is None:
            self.run(position)
            return handle.tensor()
        self.laps.mark(WAITING)
        self.run(position)
        found = handle.tensor()
        self.laps.mark(self.position)
        return found

    def turn(self) -> None:
        self.blocks.clear()

    def end(self) -> None:
        if self.laps is not None:
            self.laps.mark(WAITING)
        if self.meter is not None:
            self.meter.enter(0)
        self.ended = True
