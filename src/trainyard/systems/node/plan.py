"""The plan of a node: compute, exchanges and copies of one step, each on a stream of its own, on every device.

The step is first transformed to that of one device (`mapping.parallel.transform`). Its exchanges use the node's rings, its paged
tensors the lanes to the backing memories (`mapping.overlay.policy` decides which tensors, from when and until when). Equal devices
do the same at the same time: with `fold` one of them is planned and its costs are counted for all. Where no wire is shared, every
duration is fixed; with `contention`, and where devices differ, transfers are flows over links (`systems.node.wires`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from trainyard.caches import per_step
from trainyard.errors import BadInput, NotModelled
from trainyard.hardware.collectives.on_graph import Timing
from trainyard.ir import DTYPE_BYTES, Collective, DeviceCost, Masks, Phase, Role, Step, Work
from trainyard.ir.booking import Booking, Traffic
from trainyard.ir.plan import Plan, picoseconds
from trainyard.mapping.algorithms import Synchronous
from trainyard.mapping.parallel import experts, zero
from trainyard.mapping.parallel import transform as parallel
from trainyard.mapping.parallel.data import Reduce
from trainyard.mapping.parallel.relayout import Stored, Summed
from trainyard.masks.shards import notes_of, shards
from trainyard.systems.node import captured
from trainyard.systems.node import rounds as node_rounds
from trainyard.systems.node.paging import Paging, paging
from trainyard.systems.node.pipeline import microbatch, pipeline_plan
from trainyard.systems.node.wires import Wires
from trainyard.systems.work_rows import book_work, in_device_precision, traffic_of

if TYPE_CHECKING:
    from trainyard.systems.node.systems import Node


def plan(node: Node, step: Step, masks: Masks | None) -> Plan:
    if captured.is_captured(step):
        built = planned(node, step, captured.one_rank(step, node), masks)
        captured.enter_samples(built.booking, step)
        return built
    if node.zero and node.parallel != "data":
        raise BadInput(f"zero={node.zero} shares out what data parallelism keeps everywhere: write parallel='data' or zero=0")
    if node.zero and not isinstance(node.algorithm, Synchronous):
        raise NotModelled(f"zero={node.zero} sums gradients in every step: write algorithm=synchronous(), or zero=0")
    if node.parallel == "pipeline":
        return pipeline_plan(node, step, masks)
    if not isinstance(node.algorithm, Synchronous):
        return node_rounds.plan(node, step, lambda local: planned(node, step, local, masks))
    built = planned(node, step, one_device(node, step), masks)
    built.booking.samples = step.batch
    if node.parallel == "expert":
        _book_experts(built.booking, node, step, masks)
    return built


def _book_experts(booking: Booking, node: Node, step: Step, masks: Masks | None) -> None:
    """Counts MACs, energy and bytes of devices with the mean of rows; time and memory stay those of the busiest."""
    ranks = experts.ranks_of(step, node.devices, node.experts)
    if 1 < ranks < node.devices:
        booking.notes.append(f"{ranks} devices share the experts; {node.devices // ranks} such groups hold replicas of them")
    if ranks == 1 or node.experts.load == 1:
        return
    mean_step = _expert(step, node.devices, node.experts, node.bucket_bytes, node.reduce, "mean")
    mean = planned(node, step, mean_step, masks).booking
    if (mean.op, mean.layer, mean.phase, mean.kind) == (booking.op, booking.layer, booking.phase, booking.kind):
        booking.macs, booking.energy, booking.traffic = mean.macs, mean.energy, mean.traffic
    else:
        booking.notes.append("MACs, energy and bytes are counted as if every device had the rows of the busiest")
    dropped = 1 - node.experts.mean_load(ranks)
    if dropped > 0:
        booking.notes.append(f"{dropped:.1%} of the experts' rows exceed the capacity_factor and are dropped")


def planned(node: Node, step: Step, own_step: Step, masks: Masks | None) -> Plan:
    """The plan of one device's part of a step, with the exchanges among its ops."""
    own_masks = shards(masks, step, own_step)
    built = Planner(node, own_step, own_masks).plan()
    built.booking.notes.extend(notes_of(own_masks))
    return built


def device_step(node: Node, step: Step) -> Step:
    """The step that each device computes: of a pipeline all stages of one microbatch, under an algorithm a local step."""
    if captured.is_captured(step):
        return captured.one_rank(step, node)
    if node.parallel == "pipeline":
        return microbatch(node, step)
    if not isinstance(node.algorithm, Synchronous):
        return step.rebatch(parallel.share(step, node.devices))
    return one_device(node, step)


def one_device(node: Node, step: Step) -> Step:
    """The step of one device, with its exchanges among its ops."""
    if node.zero:
        return _zero(step, node.devices, node.zero, node.bucket_bytes, node.prefetch)
    if node.parallel == "data":
        return node_rounds.synchronous_step(step, node.devices, node.bucket_bytes, node.reduce)
    if node.parallel == "expert":
        return _expert(step, node.devices, node.experts, node.bucket_bytes, node.reduce, "busiest")
    if node.parallel == "model":
        return _model(step, node.devices, node.stored, node.exchange)
    return _mixed(step, node.devices, node.stored, node.exchange, node.bucket_bytes, node.reduce)


@per_step
def _zero(step: Step, devices: int, stage: int, bucket_bytes: int, prefetch: int) -> Step:
    return zero.sharded(step, devices, stage, bucket_bytes=bucket_bytes, prefetch=prefetch)


@per_step
def _model(step: Step, devices: int, stored: Stored, exchange: Summed) -> Step:
    return parallel.model(step, devices, stored=stored, exchange=exchange)


@per_step
def _expert(
    step: Step, devices: int, plan: experts.ExpertParallel, bucket_bytes: int, reduce: Reduce, device: Literal["busiest", "mean"]
) -> Step:
    return experts.spread(step, devices, plan, bucket_bytes=bucket_bytes, reduce=reduce, device=device)


@per_step
def _mixed(step: Step, devices: int, stored: Stored, exchange: Summed, bucket_bytes: int, reduce: Reduce) -> Step:
    return parallel.mixed(step, devices, stored=stored, exchange=exchange, bucket_bytes=bucket_bytes, reduce=reduce)


class Planner:
    """Builds the plan of one step; `tasks` are the last tasks of each op on each simulated device."""

    wires_class: type[Wires] = Wires

    def __init__(self, node: Node, step: Step, masks: Masks | None) -> None:
        self.node, self.step, self.masks = node, step, masks
        self.held = in_device_precision(step, node.device)
        self.works = node.device.works(step)
        self.built = Plan()
        self.wires = self.wires_class(node, self.built)
        self.simulated = 1 if self.wires.folded else node.devices
        self.counted = node.devices if self.wires.folded else 1
        self.streams = [self.built.stream(f"device {i}") for i in range(self.simulated)]
        self.exchanges = self.built.stream("exchange")
        self.tasks: list[dict[int, int]] = [{} for _ in range(self.simulated)]
        self.begun: dict[int, int] = {}  # the first task of an exchange; other ops have one
        self.spent: dict[int, tuple[DeviceCost, Mapping[str, float], Traffic]] = {}

    def plan(self) -> Plan:
        costs = [None if self._exchange(work) else self.cost(work) for work in self.works]
        self.paging: Paging = paging(self, costs)
        for position, (work, cost) in enumerate(zip(self.works, costs, strict=True)):
            self.paging.before(position)
            if cost is None:
                self._collective(position, work)
            else:
                self._compute(position, work, cost)
            self.paging.after(position)
        self._book_memory()
        return self.built

    def _book_memory(self) -> None:
        self.paging.close()

    def _exchange(self, work: Work) -> bool:
        return isinstance(self.step.ops[work.ops[0]].body, Collective)

    def blocks(self, work: Work) -> bool:
        """Whether an exchange blocks compute: with `as_needed`, those of feature maps and their gradients do.

        Memory is counted by position in the order of Works: what such an exchange allocates and frees must happen at its position;
        the same holds for gradients of which a part remains (zero=2 and 3).
        """
        if self.node.overlay != "as_needed" or not self._exchange(work):
            return False
        op = self.step.ops[work.ops[0]]
        read = set(map(self.step.base, op.inputs))
        roles = {self.step.tensors[base].role for base in read}
        if not roles <= {Role.PARAMETER_GRADIENT, Role.PARAMETER}:
            return True
        return Role.PARAMETER not in roles and not read >= set(map(self.step.base, op.outputs))

    def sent(self, work: Work) -> Timing:
        """The timing of a Work that is an exchange."""
        op = self.step.ops[work.ops[0]]
        assert isinstance(op.body, Collective)
        size = op.body.elements * DTYPE_BYTES[self.held.tensors[op.inputs[0]].dtype]
        return self.wires.timing(op.body, size, captured=self.step.world > 1)

    def cost(self, work: Work) -> DeviceCost:
        return self.node.device.cost(self.step, work, self.masks)

    def recompute_s(self, ops: tuple[int, ...]) -> float:
        """Seconds of the device to compute ops again, each by itself."""
        return sum(self.cost(Work(ops=(op,))).cycles for op in ops) / self.node.device.clock_hz

    def book_work(self, work: Work, cost: DeviceCost, copy: int) -> int:
        joules, traffic = self._priced(cost)
        return book_work(self.built.booking, self.step, work, cost, joules, traffic, f"device {copy}", self.counted)

    def _priced(self, cost: DeviceCost) -> tuple[Mapping[str, float], Traffic]:
        """Joules and bytes of all devices that one simulated device counts for; equal Works share a cost."""
        if id(cost) not in self.spent:
            joules = {part: amount * self.counted for part, amount in self.node.device.energy(cost.events).items()}
            traffic = {key: count * self.counted for key, count in traffic_of(cost).items()}
            self.spent[id(cost)] = cost, joules, traffic  # with the cost itself, so that its id stays unique
        return self.spent[id(cost)][1:]

    def _compute(self, position: int, work: Work, cost: DeviceCost) -> None:
        duration = picoseconds(cost.cycles, self.node.device.clock_hz)
        for copy, tasks in enumerate(self.tasks):
            tag = self.book_work(work, cost, copy)
            task = self.built.task(self.streams[copy], duration, after=sorted(self._waits(position, work, copy)), tag=tag)
            tasks.update(dict.fromkeys(work.ops, task))

    def _waits(self, position: int, work: Work, copy: int) -> set[int]:
        """Tasks that a Work of one device waits for: its dependencies, and copies of paged tensors."""
        tasks = self.tasks[copy]
        dependencies = {tasks[before] for op in work.ops for before in self.step.dependencies[op] if before in tasks}
        return dependencies | set(self.paging.awaited(position, copy))

    def _collective(self, position: int, work: Work) -> None:
        """Adds an exchange, which starts when the last device is ready."""
        (index,) = work.ops
        op = self.step.ops[index]
        assert isinstance(op.body, Collective)
        sent = self.sent(work)
        tag = self._exchange_tag(op.body.kind, sent, op.layer, op.phase)
        waits = {tasks[before] for tasks in self.tasks for before in self.step.dependencies[index] if before in tasks}
        waits.update(task for copy in range(self.simulated) for task in self.paging.awaited(position, copy))
        if blocks := self.blocks(work):
            waits.update(self.built.task(stream, 0) for stream in self.streams)
        self.begun[index], done = self.wires.exchange(sent, self.exchanges, sorted(waits), tag)
        for tasks in self.tasks:
            tasks[index] = done
        if blocks:
            for stream in self.streams:
                self.built.task(stream, 0, after=[done])

    def _exchange_tag(self, kind: str, sent: Timing, layer: str, phase: Phase) -> int:
        """Books an exchange: its row, as a tag of its tasks."""
        carried, wires = sum(count * len(path) for path, count in sent.flows), self.wires
        row = self.built.booking.row(
            kind,
            layer=layer,
            phase=phase.value,
            resource=wires.resource,
            kind="synchronisation",
            bound="link",
            energy={"link": carried * wires.joules_per_byte} if wires.joules_per_byte else {},
            traffic={("link", kind, "write"): carried},
        )
        return self.built.booking.entry([row])
