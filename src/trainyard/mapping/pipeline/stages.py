"""Which chunk of a pipeline does which Work of a step, and what crosses each cut.

Chunks are groups of neighbours in the order of the forward pass, as equal as can be in what the device takes for them forward and
back (`pipeline.balanced`). A call of a layer is not cut; what contains layers (a block with additions of its own) is cut only where
it takes more than its fair share of the step. The backward pass of a layer is where its forward pass is, its update too.

A tensor crosses every cut between its maker and its farthest reader, a skip connection as well, which the chunks between hand on.
Gradients of parameters add up where they are made; of a parameter that two chunks share, the sums are added once, after the last
microbatch, and the new values go to the other chunk. Inputs and targets are loaded where they are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from trainyard.errors import BadInput
from trainyard.ir import Collective, ElementWise, Op, Phase, Role, Step, Work
from trainyard.mapping.pipeline.schedule import balanced

Pass = Literal["forward", "backward", "once"]
"""`once`: after the last microbatch, as updates are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """`chunk` and `done` of each Work; the memories that cross the cut behind each chunk, forward and back; what adds up."""

    works: tuple[Work, ...]
    chunk: tuple[int, ...]
    done: tuple[Pass, ...]
    forward: tuple[tuple[int, ...], ...]
    backward: tuple[tuple[int, ...], ...]
    accumulated: frozenset[int]
    chunks: int

    def of(self, chunk: int, done: Pass) -> list[int]:
        """Works of a chunk's pass, in order."""
        return [number for number, where in enumerate(self.chunk) if where == chunk and self.done[number] == done]


def stages_of(step: Step, works: Sequence[Work], seconds: Sequence[float], chunks: int) -> Stages:
    """The step of one microbatch, cut into `chunks`; `seconds` are the device's for each Work."""
    if any(isinstance(op.body, Collective) for op in step.ops):
        raise BadInput(f"step {step.name!r} was captured with exchanges of its own: capture it without them for a pipeline")
    return _Cutting(step, works, seconds, chunks).cut()


def sums_apart(step: Step, works: Sequence[Work]) -> tuple[Work, ...]:
    """The Works, but sums of what two layers add to a shared parameter's gradient stand alone: they may be in different chunks."""
    maker: dict[int, str] = {}
    separated: list[Work] = []
    for work in works:
        ops = list(work.ops)
        last = step.ops[ops[-1]]
        added = {maker.get(base, last.layer) for base in map(step.base, last.inputs)} | {step.ops[ops[0]].layer}
        if len(ops) > 1 and last.phase is Phase.GRAD_WEIGHT and len(added) > 1 and _sums_gradients(step, last):
            separated += [replace(work, ops=tuple(ops[:-1]), grouping="chain" if len(ops) > 2 else "single"), Work(ops=(ops[-1],))]
        else:
            separated.append(work)
        maker.update({base: step.ops[op].layer for op in ops for base in map(step.base, step.ops[op].outputs)})
    return tuple(separated)


def _sums_gradients(step: Step, op: Op) -> bool:
    if not isinstance(op.body, ElementWise) or op.body.function != "add":
        return False
    return step.tensors[step.base(op.outputs[0])].role is Role.PARAMETER_GRADIENT


class _Cutting:
    def __init__(self, step: Step, works: Sequence[Work], seconds: Sequence[float], chunks: int) -> None:
        self.step, self.works, self.seconds, self.chunks = step, works, seconds, chunks
        self.done: list[Pass] = [self._pass(work) for work in works]
        self.maker = {op: number for number, work in enumerate(works) for op in work.ops}
        self.chunk = [-1] * len(works)

    def _pass(self, work: Work) -> Pass:
        op = self.step.ops[work.ops[0]]
        if op.phase is Phase.UPDATE:
            return "once"
        return "backward" if op.phase.backward or op.recompute else "forward"

    def cut(self) -> Stages:
        homes = self._forward()
        for number, done in enumerate(self.done):
            if done == "backward":
                self._backward(number, homes)
        for number, done in enumerate(self.done):
            if done == "once" and self.chunk[number] < 0:
                self._once(number, homes)
        accumulated = frozenset(
            base
            for number, done in enumerate(self.done)
            if done == "once"
            for op in self.works[number].ops
            for base in map(self.step.base, self.step.ops[op].inputs)
            if not self.step.tensors[base].role.resident
        )
        forward, backward = self._crossings(accumulated)
        return Stages(
            works=tuple(self.works),
            chunk=tuple(self.chunk),
            done=tuple(self.done),
            forward=forward,
            backward=backward,
            accumulated=accumulated,
            chunks=self.chunks,
        )

    def _forward(self) -> dict[tuple[str, int], set[int]]:
        """Chunks of the forward Works; for each call of a layer the chunks that it is in."""
        there = [number for number, done in enumerate(self.done) if done == "forward"]
        keys = [{(op.layer, op.call) for op in map(self.step.ops.__getitem__, self.works[number].ops)} for number in there]
        spans: dict[tuple[str, int], tuple[int, int]] = {}
        for place, names in enumerate(keys):
            for key in names:
                spans[key] = spans.get(key, (place, place))[0], place
        costs = [self.seconds[number] for number in there]
        for number, done in enumerate(self.done):
            if done == "backward":
                head = self.step.ops[self.works[number].ops[0]]
                costs[spans.get((head.layer, head.call), (len(costs) - 1, 0))[0]] += self.seconds[number]
        share = sum(costs) / self.chunks
        layers = {layer for layer, _ in spans}
        closed = set[int]()
        for (layer, _), (first, last) in spans.items():
            contains = not layer or any(other.startswith(f"{layer}.") for other in layers)
            if not contains or sum(costs[first : last + 1]) <= share:
                closed.update(range(first + 1, last + 1))
        begins = [place for place in range(len(there)) if place not in closed]
        units = [sum(costs[begin:end]) for begin, end in zip(begins, [*begins[1:], len(there)], strict=True)]
        firsts = [begins[unit] for unit in balanced(units, self.chunks)]
        homes: dict[tuple[str, int], set[int]] = {}
        for place, number in enumerate(there):
            self.chunk[number] = sum(first <= place for first in firsts) - 1
            for key in keys[place]:
                homes.setdefault(key, set()).add(self.chunk[number])
        return homes

    def _before(self, number: int, done: Pass) -> list[int]:
        """Chunks of the Works of a pass that a Work waits for."""
        makers = {self.maker[before] for op in self.works[number].ops for before in self.step.dependencies[op]} - {number}
        return sorted(self.chunk[other] for other in makers if self.done[other] == done)

    def _backward(self, number: int, homes: Mapping[tuple[str, int], set[int]]) -> None:
        """Where its layer is; of a layer that was cut, where what it reads was made; never above a gradient that it reads."""
        work = self.works[number]
        head = self.step.ops[work.ops[0]]
        gradients, saved = self._before(number, "backward"), self._before(number, "forward")
        if len(set(gradients)) > 1 and all(_sums_gradients(self.step, self.step.ops[op]) for op in work.ops):
            self.done[number], self.chunk[number] = "once", gradients[0]
            return
        home = homes.get((head.layer, head.call), set())
        where = max(saved or gradients or [self.chunks - 1]) if len(home) != 1 else next(iter(home))
        self.chunk[number] = min([where, *gradients])

    def _once(self, number: int, homes: Mapping[tuple[str, int], set[int]]) -> None:
        """Where most of what it reads is: a gradient that is clipped stays, the norm of all comes to it."""
        step, ops = self.step, self.works[number].ops
        read = {base for op in ops for base in map(step.base, step.ops[op].inputs)}
        chunk_bytes = Counter[int]()
        for before in {before for op in ops for before in step.dependencies[op]} - set(ops):
            if self.done[self.maker[before]] != "forward":
                made = read.intersection(map(step.base, step.ops[before].outputs))
                chunk_bytes[self.chunk[self.maker[before]]] += sum(step.tensors[base].bytes for base in made)
        head = step.ops[ops[0]]
        self.chunk[number] = min(
            chunk_bytes or homes.get((head.layer, head.call), {0}), key=lambda chunk: (-chunk_bytes[chunk], chunk)
        )

    def _crossings(self, accumulated: Iterable[int]) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        """Memories over each cut, in order of their making."""
        step, made = self.step, dict[int, int]()
        up, down = dict[int, int](), dict[int, int]()  # the farthest chunk above and below that reads it
        for number, work in enumerate(self.works):
            for index in work.ops if self.done[number] != "once" else ():
                op = step.ops[index]
                for base in map(step.base, op.inputs):
                    if base in made:
                        up[base] = max(up.get(base, -1), self.chunk[number])
                        down[base] = min(down.get(base, self.chunks), self.chunk[number])
                for base in map(step.base, op.outputs):
                    if not step.tensors[base].role.resident:
                        made.setdefault(base, self.chunk[number])
        kept = set(accumulated)
        forward = tuple(
            tuple(b for b, where in made.items() if where <= cut < up.get(b, -1) and b not in kept)
            for cut in range(self.chunks - 1)
        )
        backward = tuple(
            tuple(b for b, where in made.items() if down.get(b, self.chunks) <= cut < where and b not in kept)
            for cut in range(self.chunks - 1)
        )
        return forward, backward
