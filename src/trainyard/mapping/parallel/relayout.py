"""Where the tensors of a step lie on one device of several, and the exchanges that bring them where an op reads them.

A memory has a layout (`shards`), that of what its readers work on. It may hold more: an all-reduced dX is whole on every device,
its readers take their piece of it. A tensor that is read in another layout is gathered, once for each contents, and cut again; a
part of a sum is summed over devices. Tensors keep their numbers; those that exchanges make, and views into them, come behind.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from trainyard.ir import Collective, Op, Role, Step, TensorSpec
from trainyard.ir.ops import CollectiveKind
from trainyard.mapping.parallel.shards import BATCH, WHOLE, Layout, cut_shape

Summed = Literal["all_reduce", "reduce_scatter"]
Stored = Literal["shard", "whole"]


@dataclass(slots=True, kw_only=True)
class Relayout:
    """The state of one transform between two ops."""

    step: Step
    devices: int
    stored: Stored
    batch: int = 0  # samples of one device, where a layer works on its samples

    ops: list[Op] = field(default_factory=list)
    base: list[int] = field(default_factory=list)
    elements: list[int] = field(default_factory=list)
    added: list[TensorSpec] = field(default_factory=list)
    layout: dict[int, Layout] = field(default_factory=dict)
    contents: dict[int, tuple[int, Layout]] = field(default_factory=dict)  # after an exchange: where, and how much of it
    before: dict[int, Layout] = field(default_factory=dict)  # that exchange
    writes: dict[int, int] = field(default_factory=dict)
    gathered: dict[tuple[int, int, bool], int] = field(default_factory=dict)
    views: dict[tuple[int, int, tuple[int, ...]], int] = field(default_factory=dict)
    left_open: list[int] = field(default_factory=list)  # ops that every device can do for itself, as their readers will want it
    wanted: dict[int, dict[Layout, None]] = field(default_factory=dict)  # of what those make, and of inputs
    place: int | None = None  # where exchanges go, if not at the end

    def __post_init__(self) -> None:
        for number, spec in enumerate(self.step.tensors):
            self.base.append(number if spec.view_of is None else self.base[spec.view_of])
            self.elements.append(spec.elements)

    # -- layouts --

    def of(self, tensor: int) -> Layout | None:
        """None where nothing has decided yet: parameters, inputs, and what can be made on any device."""
        return self.layout.get(self.base[tensor])

    def given(self, tensor: int) -> bool:
        return self.step.tensors[self.base[tensor]].role in (Role.INPUT, Role.TARGET)

    def by_sample(self, tensor: int) -> bool:
        return bool(self.step.tensors[tensor].slope)

    def decide(self, tensor: int, wanted: Layout) -> None:
        spec = self.step.tensors[self.base[tensor]]
        if (wanted.kind == "batch" and not spec.slope) or (wanted.cut and spec.elements == 1):
            wanted = WHOLE
        self.layout[self.base[tensor]] = wanted

    def shape(self, tensor: int, layout: Layout) -> tuple[int, ...]:
        """Of what a device has of a tensor."""
        spec = self.step.tensors[tensor]
        if layout.kind == "batch" and spec.slope:
            change = self.batch - self.step.batch
            return tuple(extent + slope * change for extent, slope in zip(spec.shape, spec.slope, strict=True))
        return cut_shape(spec.shape, layout)

    # -- reading and writing --

    def read(self, tensor: int, wanted: Layout, op: Op, *, carries: bool = True) -> int:
        """The number under which an op finds a tensor laid out as it wants it, after the exchange that this takes.

        `carries` says that the tensor has the axis that is cut: a mask for all heads alike does not.
        """
        sliced = (wanted.cut and carries) or (wanted.kind == "batch" and self.by_sample(tensor))
        memory, layout = self.base[tensor], self.of(tensor)
        if layout is None and (self.given(tensor) or memory in self.wanted):
            self.wanted.setdefault(memory, {})[wanted if sliced else WHOLE] = None
            return self._seen(tensor, memory, wanted) if sliced else tensor
        if layout is None:
            self.decide(tensor, wanted if sliced else WHOLE)
            layout = self.layout[memory]
        if layout.kind == "partial":
            if wanted.by_sample or self.step.tensors[memory].role is Role.PARAMETER_GRADIENT:
                return tensor
            self.reduce(memory, WHOLE, op)
            layout = WHOLE
        home, held_layout = self.contents.get(memory, (memory, layout))
        if layout == wanted or (layout.cut and layout.like(wanted)):
            gathered = self.gathered.get((memory, self.writes.get(memory, 0), False))
            if gathered is not None and self.stored == "whole" and late(op) and layout.cut:
                return self._seen(tensor, gathered, layout)  # nothing but the whole is kept for backward
            return tensor if home == memory and held_layout == layout else self._seen(tensor, home, layout)
        if held_layout != WHOLE:
            home = self._gather(tensor, op)
        if home == memory and not sliced:
            return tensor
        return self._seen(tensor, home, wanted if sliced else WHOLE)

    def write(self, tensor: int, layout: Layout) -> int:
        """The number under which an op leaves a result; what it writes a part of keeps its layout."""
        memory, there = self.base[tensor], self.of(tensor)
        if there is None and WHOLE not in self.wanted.get(memory, ()):
            self.decide(tensor, layout)
            return tensor
        if there is None:
            self.layout[memory] = there = WHOLE
        home, much = self.contents.get(memory, (memory, there))
        if home == memory and (much == there or not layout.cut) and (there == layout or there != WHOLE):
            return tensor
        return self._seen(tensor, home, layout)

    def _seen(self, tensor: int, home: int, layout: Layout) -> int:
        """What a device has of a tensor, seen within some memory."""
        shape = self.shape(tensor, layout)
        key = (tensor, home, shape)
        if key not in self.views:
            own = home - len(self.step.tensors)
            same = own >= 0 and self.added[own].shape == shape
            self.views[key] = home if same else self.add(tensor, shape, home)
        return self.views[key]

    def add(self, tensor: int, shape: tuple[int, ...], within: int | None = None) -> int:
        """A tensor of the kind of another."""
        spec = self.step.tensors[tensor]
        self.added.append(TensorSpec(shape, spec.dtype, spec.role, spec.name, within, channels_last=spec.channels_last))
        return len(self.step.tensors) + len(self.added) - 1

    # -- exchanges --

    def _gather(self, tensor: int, op: Op) -> int:
        """All of a tensor's memory (of a slice, that slice), once; once more in backward where only pieces are stored."""
        memory = self.base[tensor]
        full = self.elements[tensor] == self.elements[memory]
        what = memory if full else tensor
        key = (what, self.writes.get(memory, 0), late(op) and self.stored == "shard")
        if key not in self.gathered or self.place is not None:
            there = self.layout[memory]
            home, _ = self.contents.get(memory, (memory, there))
            own = what if home == memory else self._seen(what, home, there)
            self.gathered[key] = self.add(what, self.step.tensors[what].shape)
            self.exchange("all_gather", self.elements[what], own, self.gathered[key], op)
        return self.gathered[key]

    def reduce(self, memory: int, after: Layout, op: Op, kind: Summed = "all_reduce") -> None:
        """Every device's part of a sum becomes the sum: whole and in place, or the device's piece of it."""
        if kind == "reduce_scatter":
            summed = self.add(memory, self.shape(memory, after))
        else:
            summed = self.add(memory, self.step.tensors[memory].shape, memory)
        self.exchange(kind, self.elements[memory], memory, summed, op)
        self.contents[memory] = (summed, after if kind == "reduce_scatter" else WHOLE)
        self.before[memory], self.layout[memory] = WHOLE, after

    def spread(self, memory: int, after: Layout, op: Op) -> None:
        """Every device's samples become everything on all of them, of which they read a piece of the features."""
        whole = self._gather(memory, op)
        self.contents[memory] = (whole, WHOLE)
        self.before[memory], self.layout[memory] = BATCH, after

    def exchange(self, kind: CollectiveKind, elements: int, source: int, result: int, op: Op) -> None:
        """Stands with an op, in its layer and phase; never inside a kernel, which is one op to the device."""
        start = len(self.ops) if self.place is None else self.place
        while (
            op.fused is not None and start and self.ops[start - 1].fused == op.fused and source not in self.ops[start - 1].outputs
        ):
            start -= 1
        if self.place is not None:
            self.place += 1
        elif start < len(self.ops):
            self.left_open = [place + (place >= start) for place in self.left_open]
        body = Collective(kind, elements, self.devices)
        where = {"layer": op.layer, "call": op.call, "phase": op.phase, "recompute": op.recompute}
        self.ops.insert(start, Op(body=body, name=kind, inputs=(source,), outputs=(result,), **where))  # type: ignore[arg-type]

    # -- the end --

    def tensors(self) -> tuple[TensorSpec, ...]:
        """All of them, as large as on one device."""
        specs = []
        for number, spec in enumerate(self.step.tensors):
            memory = self.base[number]
            layout = self.before.get(memory) or self.layout.get(memory, WHOLE)
            if self.given(number):
                layout = BATCH if self.batch and set(self.wanted.get(memory, ())) <= {BATCH} else WHOLE
            shape = self.shape(number, layout)
            same = shape == spec.shape and not spec.slope
            specs.append(spec if same else replace(spec, shape=shape, slope=()))
        return (*specs, *self.added)


def late(op: Op) -> bool:
    """In backward, or forward again in backward."""
    return op.phase.backward or op.recompute
