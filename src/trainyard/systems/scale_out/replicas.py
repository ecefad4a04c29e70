"""Replicas: n copies of a device on a ring, each with its share of the batch, planned as a Node without a second memory.

Gradients are summed by ring all-reduce, in buckets, while backward goes on; an update waits for the bucket of its parameter. A step
captured with collectives of its own (DDP, FSDP) keeps those; it is the step of one rank, with that rank's batch and shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from trainyard.construction import part
from trainyard.errors import BadInput
from trainyard.hardware.collectives.fabric import Flow, Timing
from trainyard.hardware.topology.graph import Place, Topology, Wire
from trainyard.ir import Collective, Device, DeviceCost, Masks, Phase, Role, Step, Update, Work, assumed
from trainyard.ir.plan import Plan, TaskClass
from trainyard.mapping.algorithms import Algorithm, Synchronous
from trainyard.mapping.parallel.data import Reduce
from trainyard.mapping.parallel.transform import share
from trainyard.masks.shards import notes_of, shards
from trainyard.results.result import Peaks
from trainyard.systems.node import rounds as node_rounds
from trainyard.systems.node.captured import enter_samples, is_captured, one_rank, ring_exchange
from trainyard.systems.node.plan import Planner
from trainyard.systems.node.systems import Node, Wired, total_peaks
from trainyard.systems.node.wires import Wires
from trainyard.systems.single import MEMORY
from trainyard.systems.work_rows import book_memory, capacity_of
from trainyard.units import PICOSECONDS_PER_SECOND

OWNER = "Replicas"


@part
class Replicas:
    """Plain data parallelism; the batch of a step is the batch of all copies together.

    >>> from trainyard.machines.presets.gpus import H200
    >>> Replicas(device=H200, devices=8, link="450 GB/s").link_bytes_per_s
    450000000000.0
    """

    device: Device
    devices: int
    link_bytes_per_s: float
    link_latency_s: float = 1e-6
    parallel: Literal["data"] = "data"
    algorithm: Algorithm = field(default_factory=Synchronous)
    fold: bool = True
    bucket_bytes: int = assumed(25_000_000, "gradients are reduced in buckets of this size (DDP's default)", 1_000_000)

    if TYPE_CHECKING:  # `part` makes it: every field, and quantities also under their names without units

        def __init__(self, **fields: Any) -> None: ...

    def __post_init__(self) -> None:
        if isinstance(self.device, type) or not isinstance(self.device, Device):
            raise BadInput(f"{OWNER}: device must be a device such as an Accelerator, got {self.device!r}")
        if not isinstance(self.algorithm, Algorithm):
            raise BadInput(f"{OWNER}: algorithm must be one of trainyard.mapping.algorithms, got {self.algorithm!r}")

    @property
    def peaks(self) -> Peaks:
        return total_peaks(self.device, self.devices)

    @property
    def devices_per_cluster(self) -> int:
        """Every copy has a model of its own."""
        return 1

    @property
    def reduce(self) -> Reduce:
        return "once"

    def plan(self, step: Step, masks: Masks | None = None) -> Plan:
        if is_captured(step):
            plan = _RingPlanner(self, one_rank(step, self), masks, reduces_gradients=False).plan()
            enter_samples(plan.booking, step)
            return plan
        if not isinstance(self.algorithm, Synchronous):
            return node_rounds.plan(self, step, lambda local: self._planned(step, local, masks, reduces_gradients=False))
        own_step = step.rebatch(share(step, self.devices))
        plan = self._planned(step, own_step, masks, reduces_gradients=not any(isinstance(op.body, Collective) for op in step.ops))
        plan.booking.samples = step.batch
        return plan

    def device_step(self, step: Step, masks: Masks | None = None) -> tuple[Step, Masks | None]:
        own_step = one_rank(step, self) if is_captured(step) else step.rebatch(share(step, self.devices))
        return own_step, shards(masks, step, own_step)

    def _planned(self, step: Step, own_step: Step, masks: Masks | None, *, reduces_gradients: bool) -> Plan:
        own_masks = shards(masks, step, own_step)
        plan = _RingPlanner(self, own_step, own_masks, reduces_gradients=reduces_gradients).plan()
        plan.booking.notes.extend(notes_of(own_masks))
        return plan

    @property
    def node(self) -> Wired:
        """The same devices and links as a Node without a second memory."""
        wires = {"bytes_per_s": self.link_bytes_per_s, "latency_s": self.link_latency_s}
        return Wired(device=self.device, graph=_ring(self.devices, **wires), overlay="off", fold=self.fold)


@lru_cache(maxsize=64)
def _ring(devices: int, bytes_per_s: float, latency_s: float) -> Topology:
    names = [f"D{number}" for number in range(devices)]
    wires = [Wire(a=a, b=b, bytes_per_s=bytes_per_s, latency_s=latency_s) for a, b in pairwise([*names, names[0]]) if a != b]
    return Topology(places=tuple(Place(name=name, kind="device") for name in names), wires=tuple(wires), name="ring")


class _RingWires(Wires):
    """One ring of links: one flow per link, after the latency of the rounds in which a link waits for its first chunk.

    No energy is booked: a link's energy is not among the fields of Replicas.
    """

    resource = "ring"
    joules_per_byte = 0.0

    def __init__(self, node: Node, plan: Plan) -> None:
        super().__init__(node, plan)
        self.other_streams: list[int] = []  # of the devices that are simulated besides the first

    def timing(self, body: Collective, size_bytes: int, *, captured: bool) -> Timing:
        node = self.node
        sent, hops = ring_exchange(body, size_bytes, node.devices)
        wire = self.topology.wires[0] if self.topology.wires else Wire(a="", b="", bytes_per_s=1.0)
        delay_s = hops * wire.latency_s + sent.idle * sent.chunk / wire.bytes_per_s
        flows: tuple[Flow, ...] = tuple((((number, 0),), sent.elements) for number in range(sent.links))
        return Timing(delay_s, flows, delay_s + sent.elements / wire.bytes_per_s)

    def exchange(self, sent: Timing, stream: int, after: Sequence[int], tag: int) -> tuple[int, int]:
        kind, delay = TaskClass.SYNCHRONISATION, round(sent.delay_s * PICOSECONDS_PER_SECOND)
        if not self.folded and not self.other_streams:
            self.other_streams = [self.plan.stream(f"exchange {copy}") for copy in range(1, self.node.devices)]
        ready = [self.plan.task(own, delay, after=after, kind=kind, tag=tag) for own in (stream, *self.other_streams)]
        flows = [([self._link("exchange", arc) for arc in path], size) for path, size in sent.flows]
        return ready[0], self.plan.transfer(flows[:1] if self.folded else flows, after=ready, stream=stream, kind=kind, tag=tag)


class _RingPlanner(Planner):
    """A Node's planner that sums gradients of parameters in buckets: a full bucket is sent while backward goes on.

    The step has no exchanges among its ops (docs/machines.md, "Replicas are planned as a Node"): a gradient enters the bucket with
    the Work that writes it, and an update waits for the buckets of its parameters.
    """

    wires_class = _RingWires

    def __init__(self, system: Replicas, step: Step, masks: Masks | None, *, reduces_gradients: bool) -> None:
        super().__init__(system.node, step, masks)
        self.reduces_gradients = reduces_gradients and system.devices > 1
        self.bucket_bytes = system.bucket_bytes
        self.bucket: dict[int, int] = {}  # gradient -> the op that wrote it
        self.reduced: dict[str, int] = {}  # parameter -> the exchange of its gradient

    def _book_memory(self) -> None:
        self._send_bucket()
        for copy, tasks in enumerate(self.tasks):
            name = MEMORY if self.simulated == 1 else f"{MEMORY} {copy}"
            pool = self.built.pool(name, capacity_of(self.node.device), resident_bytes=self.held.resident_bytes)
            book_memory(self.built, pool, self.held, tasks)

    def _compute(self, position: int, work: Work, cost: DeviceCost) -> None:
        if isinstance(self.step.ops[work.ops[0]].body, Update):
            self._send_bucket()
        super()._compute(position, work, cost)
        if self.reduces_gradients:
            self._collect(work.ops)

    def _waits(self, position: int, work: Work, copy: int) -> set[int]:
        updates = [self.step.ops[op] for op in work.ops if isinstance(self.step.ops[op].body, Update)]
        parameters = {self.step.tensors[tensor].name for op in updates for tensor in op.inputs}
        return super()._waits(position, work, copy) | {self.reduced[name] for name in parameters if name in self.reduced}

    def _collect(self, ops: Sequence[int]) -> None:
        for index in ops:
            op = self.step.ops[index]
            for tensor in map(self.step.base, op.outputs):
                if self.step.tensors[tensor].role is Role.PARAMETER_GRADIENT and not isinstance(op.body, Update):
                    self.bucket[tensor] = index
        if self._bucket_size() >= self.bucket_bytes:
            self._send_bucket()

    def _bucket_size(self) -> int:
        return sum(self.held.tensors[tensor].bytes for tensor in self.bucket)

    def _send_bucket(self) -> None:
        if not self.bucket:
            return
        size, devices = self._bucket_size(), self.node.devices
        waits = {tasks[op] for tasks in self.tasks for op in self.bucket.values()}
        sent = self.wires.timing(Collective("all_reduce", size, devices), size, captured=False)
        tag = self._exchange_tag("all_reduce", sent, layer="", phase=Phase.GRAD_WEIGHT)
        _, done = self.wires.exchange(sent, self.exchanges, sorted(waits), tag)
        self.reduced.update({self.step.tensors[tensor].name: done for tensor in self.bucket})
        self.bucket = {}
