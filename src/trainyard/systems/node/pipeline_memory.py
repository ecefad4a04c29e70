"""The memory of each device of a pipeline: parameters and state of its layers, accumulated gradients, maps in flight.

A chunk has a copy of a tensor from its production, or from the start of the message that brings it, until its last use there or
until it has been forwarded. Accumulated gradients exist from the first microbatch's backward pass until the update.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainyard.ir import Role
from trainyard.systems.single import MEMORY
from trainyard.systems.work_rows import capacity_of

if TYPE_CHECKING:
    from trainyard.systems.node.pipeline import PipelinePlanner

Lifetime = tuple[int, int, int]
"""First task, last task, tensor."""


def book_memory(planner: PipelinePlanner) -> None:
    capacity = capacity_of(planner.node.device)
    capacity = planner.node.capacity_bytes or capacity
    resident = _resident(planner)
    lifetimes: dict[int, list[Lifetime]] = defaultdict(list)
    for rank, lifetime in (*_in_flight(planner), *_accumulated(planner)):
        lifetimes[rank].append(lifetime)
    for rank in range(planner.count):
        pool = planner.built.pool(f"{MEMORY} {rank}", capacity, resident_bytes=resident[rank])
        if lifetimes[rank]:
            first, last, bases = zip(*lifetimes[rank], strict=True)
            planner.built.allocate(first, last, pool, [planner.held.tensors[base].bytes for base in bases])


def _resident(planner: PipelinePlanner) -> dict[int, int]:
    """Bytes per device: parameters, state and buffers of its layers, and all microbatches' inputs that it reads."""
    resident: dict[int, int] = defaultdict(int)
    for base, ranks in planner.users.items():
        spec = planner.held.tensors[base]
        if spec.role.resident:
            times = planner.pipeline.microbatches if spec.role in (Role.INPUT, Role.TARGET) else 1
            for rank in ranks:
                resident[rank] += spec.bytes * times
    return resident


def _in_flight(planner: PipelinePlanner) -> Iterator[tuple[int, Lifetime]]:
    """Lifetimes of feature maps and their gradients, for every microbatch."""
    stages, step = planner.stages, planner.step
    producer_of: dict[int, int] = {}
    users: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))  # tensor, chunk: Works
    kernels: dict[int, set[int | None]] = defaultdict(set)
    for number, work in enumerate(planner.works):
        if stages.done[number] == "once":
            continue
        for base in planner.inputs[number] | planner.outputs[number]:
            if step.tensors[base].role.resident or base in stages.accumulated:
                continue
            if base not in producer_of and base in planner.outputs[number]:
                producer_of[base] = number
            if base in producer_of:
                users[base][stages.chunk[number]].append(number)
                kernels[base].add(step.ops[work.ops[0]].fused)
    forwarded = [(frozenset(stages.forward[cut]), frozenset(stages.backward[cut])) for cut in range(stages.chunks - 1)]
    for base, producer in producer_of.items():
        home = stages.chunk[producer]
        if len(kernels[base]) == 1 and None not in kernels[base] and len(planner.works[producer].ops) > 1:
            continue  # inside one fused kernel: it never leaves the chip
        for chunk in range(stages.chunks):
            up = chunk < stages.chunks - 1 and base in forwarded[chunk][0]
            down = chunk > 0 and base in forwarded[chunk - 1][1]
            if not (users[base].get(chunk) or up or down):
                continue
            for microbatch in range(planner.pipeline.microbatches):
                last = [planner.tasks[microbatch, number] for number in users[base].get(chunk, ())]
                last += [planner.arrived[False, microbatch, chunk][1]] if up else []
                last += [planner.arrived[True, microbatch, chunk - 1][1]] if down else []
                if chunk == home:
                    first = planner.tasks[microbatch, producer]
                else:
                    first = planner.arrived[home > chunk, microbatch, chunk if home > chunk else chunk - 1][0]
                yield planner.device(chunk), (first, max(last), base)


def _accumulated(planner: PipelinePlanner) -> Iterator[tuple[int, Lifetime]]:
    """Lifetimes of accumulated gradients where they are produced and read, and of tensors produced after the last microbatch."""
    stages, step = planner.stages, planner.step
    producers: dict[int, int] = {}
    for number, bases in enumerate(planner.outputs):
        producers.update({base: number for base in bases if base not in producers})
    for base, producer in producers.items():
        if step.tensors[base].role.resident or not (base in stages.accumulated or stages.done[producer] == "once"):
            continue
        readers = [number for number, read in enumerate(planner.inputs) if base in read and stages.done[number] == "once"]
        here = planner.device(stages.chunk[producer])
        first = min(task for (_, number), task in planner.tasks.items() if number == producer)
        mine = [planner.tasks[0, number] for number in readers if planner.device(stages.chunk[number]) == here]
        sent = {rank: tasks for (tensor, rank), tasks in planner.sent_once.items() if tensor == base}
        last = [planner.last(producer), *mine, *(tasks[1] for tasks in sent.values())]
        last += [planner.summed[base]] if base in planner.summed else []
        yield here, (first, max(last), base)
        for rank, (begun, arrived) in sent.items():
            used = [planner.tasks[0, number] for number in readers if planner.device(stages.chunk[number]) == rank]
            yield rank, (begun, max([arrived, *used]), base)
