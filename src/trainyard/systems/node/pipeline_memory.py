"""What each device of a pipeline holds: parameters and state of its layers, sums of gradients, maps of microbatches on the way.

A chunk has a copy of a tensor from its making, or from the start of the message that brings it, until its last use there or until
it has been handed on. Sums of gradients are there from the first microbatch's backward pass until the update.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainyard.ir import Role
from trainyard.systems.single import MEMORY, capacity_of

if TYPE_CHECKING:
    from trainyard.systems.node.pipeline import PipelinePlanner

Stay = tuple[int, int, int]
"""First task, last task, memory."""


def book_memory(planner: PipelinePlanner) -> None:
    capacity = capacity_of(planner.node.device)
    capacity = planner.node.capacity_bytes or capacity
    resident = _resident(planner)
    stays: dict[int, list[Stay]] = defaultdict(list)
    for rank, stay in (*_on_the_way(planner), *_sums(planner)):
        stays[rank].append(stay)
    for rank in range(planner.count):
        pool = planner.built.pool(f"{MEMORY} {rank}", capacity, resident_bytes=resident[rank])
        if stays[rank]:
            first, last, bases = zip(*stays[rank], strict=True)
            planner.built.allocate(first, last, pool, [planner.held.tensors[base].bytes for base in bases])


def _resident(planner: PipelinePlanner) -> dict[int, int]:
    """Parameters, state and buffers of a device's layers, and all microbatches' inputs that it reads."""
    found: dict[int, int] = defaultdict(int)
    for base, ranks in planner.users.items():
        spec = planner.held.tensors[base]
        if spec.role.resident:
            times = planner.pipeline.microbatches if spec.role in (Role.INPUT, Role.TARGET) else 1
            for rank in ranks:
                found[rank] += spec.bytes * times
    return found


def _on_the_way(planner: PipelinePlanner) -> Iterator[tuple[int, Stay]]:
    """Feature maps and their gradients, for every microbatch."""
    stages, step = planner.stages, planner.step
    made: dict[int, int] = {}
    users: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))  # memory, chunk: Works
    kernels: dict[int, set[int | None]] = defaultdict(set)
    for number, work in enumerate(planner.works):
        if stages.done[number] == "once":
            continue
        for base in planner.inputs[number] | planner.outputs[number]:
            if step.tensors[base].role.resident or base in stages.accumulated:
                continue
            if base not in made and base in planner.outputs[number]:
                made[base] = number
            if base in made:
                users[base][stages.chunk[number]].append(number)
                kernels[base].add(step.ops[work.ops[0]].fused)
    handed = [(frozenset(stages.forward[cut]), frozenset(stages.backward[cut])) for cut in range(stages.chunks - 1)]
    for base, maker in made.items():
        home = stages.chunk[maker]
        if len(kernels[base]) == 1 and None not in kernels[base] and len(planner.works[maker].ops) > 1:
            continue  # one fused kernel's own: it never leaves the chip
        for chunk in range(stages.chunks):
            up = chunk < stages.chunks - 1 and base in handed[chunk][0]
            down = chunk > 0 and base in handed[chunk - 1][1]
            if not (users[base].get(chunk) or up or down):
                continue
            for microbatch in range(planner.pipeline.microbatches):
                last = [planner.tasks[microbatch, number] for number in users[base].get(chunk, ())]
                last += [planner.arrived[False, microbatch, chunk][1]] if up else []
                last += [planner.arrived[True, microbatch, chunk - 1][1]] if down else []
                if chunk == home:
                    first = planner.tasks[microbatch, maker]
                else:
                    first = planner.arrived[home > chunk, microbatch, chunk if home > chunk else chunk - 1][0]
                yield planner.device(chunk), (first, max(last), base)


def _sums(planner: PipelinePlanner) -> Iterator[tuple[int, Stay]]:
    """Sums of gradients where they are made and where they are read, and what is made after the last microbatch."""
    stages, step = planner.stages, planner.step
    makers: dict[int, int] = {}
    for number, bases in enumerate(planner.outputs):
        makers.update({base: number for base in bases if base not in makers})
    for base, maker in makers.items():
        if step.tensors[base].role.resident or not (base in stages.accumulated or stages.done[maker] == "once"):
            continue
        readers = [number for number, read in enumerate(planner.inputs) if base in read and stages.done[number] == "once"]
        here = planner.device(stages.chunk[maker])
        first = min(task for (_, number), task in planner.tasks.items() if number == maker)
        mine = [planner.tasks[0, number] for number in readers if planner.device(stages.chunk[number]) == here]
        sent = {rank: tasks for (one, rank), tasks in planner.sent_once.items() if one == base}
        last = [planner.last(maker), *mine, *(tasks[1] for tasks in sent.values())]
        last += [planner.summed[base]] if base in planner.summed else []
        yield here, (first, max(last), base)
        for rank, (begun, arrived) in sent.items():
            used = [planner.tasks[0, number] for number in readers if planner.device(stages.chunk[number]) == rank]
            yield rank, (begun, max([arrived, *used]), base)
