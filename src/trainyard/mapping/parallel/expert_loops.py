"""A loop over experts as grouped products.

A mixture that is written as a loop runs the same ops for each expert on the rows that chose it, in modules `experts.0`, `experts.1`
and so on. `regrouped` makes one op of those that correspond, with all rows along one dimension and a routing (`ir.routing`), as if
rows had been sorted by expert. Rows of all experts are one memory, and those of an expert a slice of it; weights, gradients and
state of all experts are stacked. Ops outside of the experts stay as they are. The order is that of the step, except that a merged
op waits for what all experts read. Shared experts, which multiply every token, are no loop.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from trainyard.caches import per_step
from trainyard.ir import Copy, ElementWise, MatMul, Op, Phase, Reduction, Routing, Step, TensorSpec, Update
from trainyard.ir.ops import Body
from trainyard.ir.routing import Axis, divided

EXPERT = re.compile(r"^(?P<mixture>(?:.*\.)?[^.]*experts?)\.(?P<number>\d+)(?P<rest>\..+)?$")
"""A layer inside an expert: the list of experts, the number of the expert, what follows."""


class _Different(Exception):
    """Experts that do not run the same ops."""


@per_step
def regrouped(step: Step) -> Step:
    """The step with grouped products in place of loops over experts; the same step where there are none."""
    if any(op.routing for op in step.ops):
        return step
    loops = _loops(step)
    if not loops:
        return step
    try:
        return _Merger(step, loops).merged()
    except _Different:
        return step


def _loops(step: Step) -> list[list[int]]:
    """Ops that correspond, one of each expert in the order of their numbers."""
    sequences: dict[tuple[str, int], dict[tuple[object, ...], list[int]]] = {}
    for index, op in enumerate(step.ops):
        found = EXPERT.match(op.layer)
        if found and "shared" not in found["mixture"].rpartition(".")[2]:
            place = (found["rest"], op.call, op.phase, op.recompute, op.name)
            sequences.setdefault((found["mixture"], int(found["number"])), {}).setdefault(place, []).append(index)
    loops: list[list[int]] = []
    for mixture in dict.fromkeys(name for name, _ in sequences):
        numbers = sorted(number for name, number in sequences if name == mixture)
        experts = [sequences[mixture, number] for number in numbers]
        if len(experts) < 2 or any(expert.keys() != experts[0].keys() for expert in experts):
            return []
        for key, first in experts[0].items():
            if any(len(expert[key]) != len(first) for expert in experts):
                return []
            loops += [list(ops) for ops in zip(*(expert[key] for expert in experts), strict=True)]
    return loops


class _Merger:
    """Merged tensors come in front of the step's own, whose numbers are shifted by their count."""

    def __init__(self, step: Step, loops: list[list[int]]) -> None:
        self.step, self.loops = step, loops
        self.tuples: dict[tuple[int, ...], int] = {}
        self.specs: list[TensorSpec] = []
        self.slice_of: dict[int, int] = {}  # memory of one expert -> merged memory

    def merged(self) -> Step:
        merged_ops = [self._op([self.step.ops[index] for index in loop]) for loop in self.loops]
        shift = len(self.specs)
        own = [
            replace(spec, view_of=self.slice_of[number] if spec.view_of is None else spec.view_of + shift)
            if number in self.slice_of or spec.view_of is not None
            else spec
            for number, spec in enumerate(self.step.tensors)
        ]

        def shifted(op: Op) -> Op:
            return replace(op, inputs=tuple(t + shift for t in op.inputs), outputs=tuple(t + shift for t in op.outputs))

        def placed(op: Op) -> Op:
            """Merged tensors have negative numbers until their count is known."""
            return replace(
                op, inputs=tuple(_number(t, shift) for t in op.inputs), outputs=tuple(_number(t, shift) for t in op.outputs)
            )

        ops = [placed(merged_ops[loop]) if loop >= 0 else shifted(self.step.ops[index]) for index, loop in self._order()]
        parts, tensors = divided(ops, (*self.specs, *own))
        return replace(self.step, ops=parts, tensors=tensors)

    # -- ops --

    def _op(self, ops: list[Op]) -> Op:
        first = ops[0]
        if any(len(op.inputs) != len(first.inputs) or len(op.outputs) != len(first.outputs) for op in ops):
            raise _Different
        if len({(type(op.body), op.letters, op.fused is None) for op in ops}) > 1 or first.fused is not None:
            raise _Different
        inputs = tuple(self._tensor(tensors) for tensors in zip(*(op.inputs for op in ops), strict=True))
        outputs = tuple(self._tensor(tensors) for tensors in zip(*(op.outputs for op in ops), strict=True))
        body, slope, routing = _body(ops)
        layer = EXPERT.sub(lambda found: found["mixture"] + (found["rest"] or ""), first.layer)
        return replace(first, body=body, slope=slope, routing=routing, inputs=inputs, outputs=outputs, layer=layer)

    def _tensor(self, tensors: tuple[int, ...]) -> int:
        """The number of a tensor of all experts; -1 - n for the merged tensor n."""
        if len(set(tensors)) == 1:
            return tensors[0]
        if tensors not in self.tuples:
            bases = tuple(map(self.step.base, tensors))
            if len(set(bases)) != len(bases):
                raise _Different  # slices of one memory
            within = None if bases == tensors else -1 - self._tensor(bases)
            self.tuples[tensors] = len(self.specs)
            self.specs.append(replace(_joined([self.step.tensors[t] for t in tensors]), view_of=within))
            if within is None:
                for base in tensors:
                    if self.slice_of.setdefault(base, self.tuples[tensors]) != self.tuples[tensors]:
                        raise _Different
        return -1 - self.tuples[tensors]

    # -- the order --

    def _order(self) -> Iterator[tuple[int, int]]:
        """(index, loop or -1), each op once, after what it depends on, as early in the step's order as possible."""
        loop_of = {index: loop for loop, indices in enumerate(self.loops) for index in indices}
        node_of = [self.loops[loop_of[index]][0] if index in loop_of else index for index in range(len(self.step.ops))]
        waits: dict[int, set[int]] = {node: set() for node in node_of}
        for index, befores in enumerate(_hazards(self.step)):
            waits[node_of[index]] |= {node_of[before] for before in befores} - {node_of[index]}
        followers: dict[int, list[int]] = {node: [] for node in waits}
        for node, befores in waits.items():
            for before in befores:
                followers[before].append(node)
        left = {node: len(befores) for node, befores in waits.items()}
        ready = [node for node, count in left.items() if not count]
        heapq.heapify(ready)
        done = 0
        while ready:
            node = heapq.heappop(ready)
            done += 1
            yield node, loop_of.get(node, -1)
            for follower in followers[node]:
                left[follower] -= 1
                if not left[follower]:
                    heapq.heappush(ready, follower)
        if done != len(waits):
            raise _Different  # one expert waits for another


def _number(tensor: int, shift: int) -> int:
    """Merged tensors have negative numbers until their count is known."""
    return -1 - tensor if tensor < 0 else tensor + shift


def _hazards(step: Step) -> Iterator[set[int]]:
    """For each op the earlier ones that it must follow: what it depends on, and readers and writers of what it overwrites."""
    readers: dict[int, list[int]] = {}
    writer: dict[int, int] = {}
    for index, op in enumerate(step.ops):
        befores = set(step.dependencies[index])
        for base in map(step.base, op.outputs):
            befores |= set(readers.pop(base, ())) | ({writer[base]} if base in writer else set())
            writer[base] = index
        for base in map(step.base, op.inputs):
            readers.setdefault(base, []).append(index)
        yield befores - {index}


def _joined(specs: Sequence[TensorSpec]) -> TensorSpec:
    """Rows of all experts behind one another where they grow with the batch, else one matrix for each expert."""
    first = specs[0]
    if len({(spec.dtype, spec.role, len(spec.shape)) for spec in specs}) > 1:
        raise _Different
    name = EXPERT.sub(lambda found: f"{found['mixture']}{found['rest'] or ''}", first.name)
    growing = {place for spec in specs for place, slope in enumerate(spec.slope) if slope}
    if not growing:
        if len({spec.shape for spec in specs}) > 1:
            raise _Different
        return replace(first, shape=(len(specs), *first.shape), name=name, slope=())
    if len(growing) > 1 or any(not spec.slope for spec in specs):
        raise _Different
    (place,) = growing
    if len({(*spec.shape[:place], *spec.shape[place + 1 :]) for spec in specs}) > 1:
        raise _Different
    shape, slope = list(first.shape), list(first.slope)
    shape[place], slope[place] = sum(spec.shape[place] for spec in specs), sum(spec.slope[place] for spec in specs)
    return replace(first, shape=tuple(shape), name=name, slope=tuple(slope))


def _body(ops: Sequence[Op]) -> tuple[Body, tuple[int, ...], Routing | None]:
    """The body of all experts, its slope, and the routing of a product."""
    bodies = [op.body for op in ops]
    first = bodies[0]
    slopes = [op.slope or (0,) * 4 for op in ops]
    if isinstance(first, MatMul):
        axis: Axis = "K" if ops[0].phase is Phase.GRAD_WEIGHT else "N" if ops[0].letters[:1] == ("W",) else "M"
        place = "MNK".index(axis)
        others = {tuple(getattr(body, name) for name in ("M", "N", "K", "count") if name != axis) for body in bodies}
        if len(others) > 1 or ("W" not in ops[0].letters and axis != "K") or first.count > 1:
            raise _Different
        rows, slope = sum(getattr(body, axis) for body in bodies), [0, 0, 0, 0]
        slope[place] = sum(own[place] for own in slopes)
        return replace(first, **{axis: rows}), tuple(slope), Routing(axis, rows, len(ops), slope[place])
    if not isinstance(first, ElementWise | Copy | Update | Reduction):
        raise _Different
    fields = ("elements", "results") if isinstance(first, Reduction) else ("elements",)
    sums = {name: sum(getattr(body, name) for body in bodies) for name in fields}
    slope_sums = tuple(map(sum, zip(*slopes, strict=True)))[: len(ops[0].slope)] if ops[0].slope else ()
    return replace(first, **sums), slope_sums, None
