"""The plan of a pipeline on a node: a stream per stage, sends between neighbours, accumulated gradients, memory by microbatch.

Stages are placed in the order of the node's first ring, so that neighbours in the pipeline are neighbours there. With fewer stages
than devices there are replicas: all do the same at the same time, so one is planned and its messages use all replicas' wires;
gradients are summed over replicas by a ring between the devices of one stage, in both directions if the node's rings are. Feature
maps stay on their devices: nothing is paged.

A product accumulates a microbatch's gradient as it writes it, at no extra cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from trainyard.caches import per_step
from trainyard.errors import BadInput, NotModelled
from trainyard.ir import DeviceCost, Masks, Role, Step
from trainyard.ir.plan import Plan, picoseconds
from trainyard.ir.protocols import KeepsTensors
from trainyard.mapping.algorithms import Synchronous
from trainyard.mapping.pipeline.schedule import Turn, issued, turns
from trainyard.mapping.pipeline.stages import Pass, Stages, stages_of, sums_apart
from trainyard.mapping.works import memory_accesses
from trainyard.masks.shards import notes_of, shards
from trainyard.progress import counted
from trainyard.systems.node.pipeline_memory import book_memory
from trainyard.systems.node.sends import Pair, Sends
from trainyard.systems.work_rows import book_work, in_device_precision, traffic_of

if TYPE_CHECKING:
    from trainyard.systems.node.systems import Node

PASSES: tuple[Pass, Pass] = ("forward", "backward")


def pipeline_plan(node: Node, step: Step, masks: Masks | None) -> Plan:
    stages = node.pipeline.stages or node.devices
    if not isinstance(node.algorithm, Synchronous):
        raise NotModelled("a pipeline updates its weights once a batch: write algorithm=synchronous(), or parallel='data'")
    micro = microbatch(node, step)
    own_masks = shards(masks, step, micro)
    planner = PipelinePlanner(node, micro, own_masks, stages)
    built = planner.plan()
    built.booking.samples = step.batch
    built.booking.notes.extend((*notes_of(own_masks), *planner.notes()))
    return built


def microbatch(node: Node, step: Step) -> Step:
    """The step of one microbatch."""
    stages = node.pipeline.stages or node.devices
    if node.devices % stages:
        raise BadInput(f"pipeline: {node.devices} devices do not divide into pipelines of {stages} stages")
    pieces = node.devices // stages * node.pipeline.microbatches
    if step.batch % pieces:
        raise BadInput(
            f"pipeline: a batch of {step.batch} does not divide into {node.pipeline.microbatches} microbatches of "
            f"{node.devices // stages} pipelines: choose a multiple of {pieces}, or pipeline.microbatches"
        )
    return _micro(step, step.batch // pieces)


@per_step
def _micro(step: Step, batch: int) -> Step:
    return step.rebatch(batch)


class PipelinePlanner:
    """Builds the plan; `step` is that of one microbatch. `tasks` are indexed by (microbatch, Work)."""

    def __init__(self, node: Node, step: Step, masks: Masks | None, stages: int) -> None:
        if isinstance(node.device, KeepsTensors) and node.device.between_layers:
            raise NotModelled(
                "reuse between layers keeps tensors on chip until they are used; a pipeline runs other microbatches in between: "
                "write reuse='step' for the device"
            )
        self.node, self.step, self.masks, self.count = node, step, masks, stages
        self.held = in_device_precision(step, node.device)
        self.pipeline, self.replicas = node.pipeline, node.devices // stages
        self.works = sums_apart(step, node.device.works(step))
        self.costs = [node.device.cost(step, work, masks) for work in counted(self.works, "layers and phases")]
        self.chunks = stages * self.pipeline.chunks_each
        self.stages: Stages = stages_of(step, self.works, [cost.cycles for cost in self.costs], self.chunks)
        self.built = Plan()
        self.sends = Sends(node, self.built)
        self.streams = [self.built.stream(f"device {rank}") for rank in range(stages)]
        self.channels: dict[tuple[int, int], int] = {}  # (source, target); all-reduces of a stage are (stage, stage)
        self.rows: dict[tuple[str, int], int] = {}
        self.passes = {(c, done): self.stages.of(c, done) for c in range(self.chunks) for done in PASSES}
        self.producer = {op: number for number, work in enumerate(self.works) for op in work.ops}
        self.inputs, self.outputs = zip(*(memory_accesses(step, work) for work in self.works), strict=True)
        self.users: dict[int, set[int]] = defaultdict(set)  # devices that use a tensor
        for number, (read, written) in enumerate(zip(self.inputs, self.outputs, strict=True)):
            for base in read | written:
                self.users[base].add(self.device(self.stages.chunk[number]))
        self.tags = [self._enter(number) for number in range(len(self.works))]
        self.tasks: dict[tuple[int, int], int] = {}
        self.arrived: dict[tuple[bool, int, int], tuple[int, int]] = {}  # (back, microbatch, cut): first and last task
        self.sent_once: dict[tuple[int, int], tuple[int, int]] = {}  # (memory, device)
        self.summed: dict[int, int] = {}
        ring = node.rings[0].devices if node.rings else ()
        ring = ring if len(ring) == node.devices else node.topology.devices  # a cluster's rings are those of one node
        self.replica_devices = [[ring[replica * stages + rank] for rank in range(stages)] for replica in range(self.replicas)]

    def plan(self) -> Plan:
        for device, turn in issued(turns(self.pipeline, self.count), self.chunks):
            for number in self.passes[turn.chunk, PASSES[turn.backward]]:
                self._work(device, turn, number)
            self._send(turn)
        if self.replicas > 1:
            self._sum_over_replicas()
        for number, done in enumerate(self.stages.done):
            if done == "once":
                self._once(number)
        self._share_parameters()
        book_memory(self)
        return self.built

    def device(self, chunk: int) -> int:
        return chunk % self.count

    def notes(self) -> Iterable[str]:
        busy = [0] * self.count
        for number, chunk in enumerate(self.stages.chunk):
            times = 1 if self.stages.done[number] == "once" else self.pipeline.microbatches
            busy[self.device(chunk)] += self.costs[number].cycles * times
        yield (
            f"pipeline ({self.pipeline.schedule}): {self.pipeline.microbatches} microbatches of {self.step.batch} through "
            f"{self.count} stages{f' of {self.pipeline.chunks} chunks' if self.chunks > self.count else ''}"
            f"{f', {self.replicas} replicas' if self.replicas > 1 else ''}; the busiest stage has "
            f"{max(busy) / (sum(busy) / len(busy)):.3f} times the mean; equal stages with free sends would wait "
            f"{self.pipeline.bubble(self.count):.1%} of the time"
        )
        if self.node.overlay != "off":
            yield "pipeline: feature maps stay on their devices, the node's overlay pages nothing"

    # -- compute --

    def _enter(self, number: int) -> int:
        """Books a Work: one row for all microbatches of all replicas."""
        cost: DeviceCost = self.costs[number]
        once = self.stages.done[number] == "once"
        times = self.replicas * (1 if once else self.pipeline.microbatches)
        joules = {part: amount * times for part, amount in self.node.device.energy(cost.events).items()}
        traffic = {key: amount * times for key, amount in traffic_of(cost).items()}
        resource = f"device {self.device(self.stages.chunk[number])}"
        return book_work(self.built.booking, self.step, self.works[number], cost, joules, traffic, resource, times)

    def _task(self, microbatch: int, number: int, after: Iterable[int]) -> int:
        duration = picoseconds(self.costs[number].cycles, self.node.device.clock_hz)
        stream = self.streams[self.device(self.stages.chunk[number])]
        task = self.built.task(stream, duration, after=sorted(set(after)), tag=self.tags[number])
        self.tasks[microbatch, number] = task
        return task

    def _producers(self, number: int) -> list[int]:
        producers = {self.producer[before] for op in self.works[number].ops for before in self.step.dependencies[op]}
        return sorted(producers - {number})

    def _work(self, device: int, turn: Turn, number: int) -> None:
        waits = []
        for other in self._producers(number):
            chunk = self.stages.chunk[other]
            if chunk == turn.chunk:
                waits.append(self.tasks[turn.microbatch, other])
            elif chunk < turn.chunk:
                waits.append(self.arrived[False, turn.microbatch, turn.chunk - 1][1])
            else:
                waits.append(self.arrived[True, turn.microbatch, turn.chunk][1])
        self._task(turn.microbatch, number, waits)

    # -- between chunks --

    def _send(self, turn: Turn) -> None:
        """Sends what this pass produces for the next chunk, and what it only forwards."""
        cut = turn.chunk - 1 if turn.backward else turn.chunk
        if not 0 <= cut < self.chunks - 1:
            return
        moved = self.stages.backward[cut] if turn.backward else self.stages.forward[cut]
        mine = self.passes[turn.chunk, PASSES[turn.backward]]
        after = [self.tasks[turn.microbatch, number] for number in mine[-1:]]
        before = (turn.backward, turn.microbatch, cut + 1 if turn.backward else cut - 1)
        after += [self.arrived[before][1]] if before in self.arrived else []
        source, target = self.device(turn.chunk), self.device(turn.chunk + (-1 if turn.backward else 1))
        size = sum(self.held.tensors[base].bytes for base in moved)
        if source == target or not size:
            stays = self.built.task(self.streams[source], 0, after=sorted(set(after)))
            self.arrived[turn.backward, turn.microbatch, cut] = stays, stays
            return
        key = ("send gradients" if turn.backward else "send activations", cut)
        pairs = self._pairs(source, target)
        if key not in self.rows:
            carried = self.sends.carried(pairs, size) * self.pipeline.microbatches
            layer = self.step.ops[self.works[mine[-1]].ops[-1]].layer if mine else ""
            self.rows[key] = self.sends.row(key[0], layer, "grad_input" if turn.backward else "forward", carried)
        sent = self.sends.send(pairs, size, stream=self._channel(source, target), after=after, tag=self.rows[key])
        self.arrived[turn.backward, turn.microbatch, cut] = sent

    def _pairs(self, source: int, target: int) -> list[Pair]:
        return [(devices[source], devices[target]) for devices in self.replica_devices]

    def _channel(self, source: int, target: int) -> int:
        """The stream of messages between two devices, which keep their order."""
        if (source, target) not in self.channels:
            self.channels[source, target] = self.built.stream(f"send {source} to {target}")
        return self.channels[source, target]

    # -- after the last microbatch --

    def _sum_over_replicas(self) -> None:
        """All-reduces every gradient after its last microbatch, alone or in buckets, by a ring between the devices of a stage."""
        producer = {
            base: number for number, bases in enumerate(self.outputs) for base in bases if self.stages.done[number] != "once"
        }
        ready = sorted((self.last(producer[base]), base) for base in self.stages.accumulated if base in producer)
        buckets: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for task, base in ready:
            rank = self.device(self.stages.chunk[producer[base]])
            buckets[rank].append((task, base))
            if sum(self.held.tensors[tensor].bytes for _, tensor in buckets[rank]) >= self.node.bucket_bytes:
                self._all_reduce(rank, buckets.pop(rank), self.step.ops[self.works[producer[base]].ops[0]].layer)
        for rank, left in buckets.items():
            self._all_reduce(rank, left, self.step.ops[self.works[producer[left[-1][1]]].ops[0]].layer)

    def _all_reduce(self, rank: int, bucket: list[tuple[int, int]], layer: str) -> None:
        count = self.replicas
        size = sum(self.held.tensors[base].bytes for _, base in bucket)
        ring = [(self.replica_devices[r][rank], self.replica_devices[(r + 1) % count][rank]) for r in range(count)]
        if count > 2 and self.node.directions == "both":  # half of the data in each direction; two devices use both anyway
            ring += [(there, here) for here, there in ring]
        moved = 2 * (count - 1) * -(-size // len(ring))
        tag = self.sends.row("all_reduce", layer, "grad_weight", self.sends.carried(ring, moved))
        after, stream = [task for task, _ in bucket], self._channel(rank, rank)
        _, done = self.sends.send(ring, moved, stream=stream, after=after, tag=tag, rounds=2 * (count - 1))
        self.summed.update({base: done for _, base in bucket})

    def last(self, number: int) -> int:
        """The task of a Work for the last microbatch."""
        if self.stages.done[number] == "once":
            return self.tasks[0, number]
        return max(self.tasks[microbatch, number] for microbatch in range(self.pipeline.microbatches))

    def _once(self, number: int) -> None:
        here = self.device(self.stages.chunk[number])
        waits = []
        for other in self._producers(number):
            there = self.device(self.stages.chunk[other])
            for base in sorted(self.outputs[other] & self.inputs[number]):
                last = self.last(other)
                ready = last if self.stages.done[other] == "once" else self.summed.get(base, last)
                waits.append(ready if there == here else self._hand_over(base, there, here, ready, "sum shared gradients"))
        self._task(0, number, waits)

    def _hand_over(self, base: int, source: int, target: int, ready: int, name: str) -> int:
        """Sends a tensor to another device, once."""
        if (base, target) not in self.sent_once:
            pairs, size = self._pairs(source, target), self.held.tensors[base].bytes
            layer = self.held.tensors[base].name.rpartition(".")[0]
            tag = self.sends.row(name, layer, "update", self.sends.carried(pairs, size))
            self.sent_once[base, target] = self.sends.send(
                pairs, size, stream=self._channel(source, target), after=[ready], tag=tag
            )
        return self.sent_once[base, target][1]

    def _share_parameters(self) -> None:
        """Sends updated parameters to the other devices that use them."""
        for number, done in enumerate(self.stages.done):
            if done != "once":
                continue
            here = self.device(self.stages.chunk[number])
            for base in sorted(self.outputs[number]):
                if self.step.tensors[base].role is Role.PARAMETER:
                    for there in sorted(self.users[base] - {here}):
                        self._hand_over(base, here, there, self.tasks[0, number], "share parameters")
