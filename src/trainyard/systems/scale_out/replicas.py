"""Replicas: n copies of a device on a ring, each with its share of the batch.

Gradients are summed by ring all-reduce, in buckets, while backward goes on; an update waits for the bucket of its parameter. A step
captured with collectives of its own (DDP, FSDP) keeps those; it is the step of one rank, with that rank's batch and shards. All
copies do the same at the same time, so that with `fold` one of them is simulated and its costs counted n times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trainyard.checks import require_positive, require_quantity
from trainyard.errors import BadInput, NotModelled
from trainyard.ir import DTYPE_BYTES, Collective, Device, DeviceCost, Masks, Op, Role, Step, Update, Work, assumed
from trainyard.ir.plan import Plan, TaskClass
from trainyard.mapping.algorithms import Algorithm, Synchronous
from trainyard.mapping.parallel.data import Reduce
from trainyard.masks.shards import notes_of, shards
from trainyard.results.result import Peaks
from trainyard.systems.node import rounds as node_rounds
from trainyard.systems.node.captured import around, enter_samples, is_captured, one_rank
from trainyard.systems.single import MEMORY, as_held, book_memory, enter, off_chip, picoseconds
from trainyard.units import parse, require_likely

OWNER = "Replicas"


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Replicas:
    """Data parallelism at its plainest; the batch of a step is the batch of all copies together.

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

    def __init__(
        self,
        *,
        device: Device,
        devices: int,
        link: str | float | None = None,
        link_latency: str | float | None = None,
        link_bytes_per_s: float | None = None,
        link_latency_s: float | None = None,
        parallel: str = "data",
        algorithm: Algorithm | None = None,
        fold: bool = True,
        bucket_bytes: int = 25_000_000,
    ) -> None:
        if isinstance(device, type) or not isinstance(device, Device):
            raise BadInput(f"{OWNER}: device must be a device such as an Accelerator, got {device!r}")
        if parallel != "data":
            raise NotModelled(f"{OWNER}: parallel={parallel!r} is not modelled: replicas share the batch (parallel='data')")
        if algorithm is not None and not isinstance(algorithm, Algorithm):
            raise BadInput(f"{OWNER}: algorithm must be one of trainyard.mapping.algorithms, got {algorithm!r}")
        bandwidth = link if link_bytes_per_s is None else link_bytes_per_s
        latency = link_latency if link_latency_s is None else link_latency_s
        if bandwidth is None:
            raise BadInput(f"{OWNER} needs link (such as link='50 GB/s') or link_bytes_per_s")
        if link_bytes_per_s is None and not isinstance(bandwidth, str):
            require_likely(bandwidth, "B/s", "link", "link_bytes_per_s")
        require_positive(OWNER, devices=devices, bucket_bytes=bucket_bytes)
        values = {
            "device": device,
            "devices": devices,
            "link_bytes_per_s": parse(bandwidth, "B/s", f"{OWNER}: link"),
            "link_latency_s": 1e-6 if latency is None else parse(latency, "s", f"{OWNER}: link_latency"),
            "parallel": parallel,
            "algorithm": Synchronous() if algorithm is None else algorithm,
            "fold": fold,
            "bucket_bytes": bucket_bytes,
        }
        require_quantity(OWNER, link=values["link_bytes_per_s"])
        require_quantity(OWNER, zero=True, link_latency=values["link_latency_s"])
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def peaks(self) -> Peaks:
        one: Peaks = self.device.peaks  # type: ignore[attr-defined]  # every device of ours says its peaks; runs checks it
        return Peaks(
            macs_per_s=one.macs_per_s * self.devices,
            dram_bytes_per_s=one.dram_bytes_per_s * self.devices,
            technology=one.technology,
            devices=self.devices,
        )

    @property
    def devices_per_cluster(self) -> int:
        """Each has its own model where models differ at all."""
        return 1

    @property
    def reduce(self) -> Reduce:
        return "once"

    def _planned(self, step: Step, mine: Step, masks: Masks | None) -> Plan:
        """One copy's step with the exchanges that are among its ops."""
        seen = shards(masks, step, mine)
        found = _Planner(self, mine, seen, exchanges=False).plan()
        found.booking.notes.extend(notes_of(seen))
        return found

    def plan(self, step: Step, masks: Masks | None = None) -> Plan:
        if is_captured(step):
            found = _Planner(self, one_rank(step, self), masks).plan()
            enter_samples(found.booking, step)
            return found
        if not isinstance(self.algorithm, Synchronous):
            return node_rounds.plan(self, step, lambda mine: self._planned(step, mine, masks))
        if step.batch % self.devices:
            raise BadInput(
                f"a batch of {step.batch} does not divide over {self.devices} devices: choose a multiple of {self.devices}"
            )
        mine = step.rebatch(step.batch // self.devices)
        seen = shards(masks, step, mine)
        planned = _Planner(self, mine, seen).plan()
        planned.booking.notes.extend(notes_of(seen))
        return planned


class _Planner:
    """One plan in the making."""

    def __init__(self, system: Replicas, step: Step, masks: Masks | None, exchanges: bool = True) -> None:
        self.system, self.step, self.masks = system, step, masks
        self.held = as_held(step, system.device)
        self.built = Plan()
        self.simulated = 1 if system.fold else system.devices
        self.counted = system.devices if system.fold else 1
        self.compute = [self.built.stream(f"device {i}") for i in range(self.simulated)]
        self.exchange = [self.built.stream(f"exchange {i}") for i in range(self.simulated)]
        self.links = [self.built.link(f"link {i}", system.link_bytes_per_s) for i in range(self.simulated)]
        self.tasks: list[dict[int, list[int]]] = [{} for _ in range(self.simulated)]
        self.arrived: dict[str, int] = {}
        self.bucket: dict[int, int] = {}  # gradient -> the op that made it
        self.own_collectives = not exchanges or any(isinstance(op.body, Collective) for op in step.ops)
        self.built.booking.samples = step.batch * system.devices

    def plan(self) -> Plan:
        for work in self.system.device.works(self.step):
            first = self.step.ops[work.ops[0]]
            if isinstance(first.body, Collective):
                size = first.body.elements * DTYPE_BYTES[self.held.tensors[first.inputs[0]].dtype]
                self._collective(first.body.kind, size, list(work.ops), first)
                continue
            if isinstance(first.body, Update):
                self._flush()
            self._compute(work)
            self._collect(work.ops)
        self._flush()
        for copy in range(self.simulated):
            name = MEMORY if self.simulated == 1 else f"{MEMORY} {copy}"
            capacity = getattr(self.system.device, "dram_capacity_bytes", None)
            pool = self.built.pool(name, capacity, resident_bytes=self.held.resident_bytes)
            book_memory(self.built, pool, self.held, {op: tasks[-1] for op, tasks in self.tasks[copy].items()})
        return self.built

    def _compute(self, work: Work) -> None:
        device = self.system.device
        cost: DeviceCost = device.cost(self.step, work, self.masks)
        energy = _times(device.energy(cost.events), self.counted)
        traffic = {key: count * self.counted for key, count in off_chip(cost).items()}
        for copy in range(self.simulated):
            tag = enter(self.built.booking, self.step, work, cost, energy, traffic, f"device {copy}", self.counted)
            waits = {task for op in work.ops for before in self.step.dependencies[op] for task in self.tasks[copy].get(before, ())}
            waits |= {self.arrived[name] for op in work.ops for name in self._updated(op) if name in self.arrived}
            duration = picoseconds(cost.cycles, device.clock_hz)
            task = self.built.task(self.compute[copy], duration, after=sorted(waits), tag=tag)
            self.tasks[copy].update({op: [task] for op in work.ops})

    def _updated(self, index: int) -> tuple[str, ...]:
        op = self.step.ops[index]
        return tuple(self.step.tensors[t].name for t in op.inputs) if isinstance(op.body, Update) else ()

    def _collect(self, ops: Sequence[int]) -> None:
        """Gradients of parameters go into the bucket; a full one is sent while backward goes on."""
        if self.own_collectives or self.system.devices == 1:
            return
        for index in ops:
            op = self.step.ops[index]
            for tensor in map(self.step.base, op.outputs):
                if self.step.tensors[tensor].role is Role.PARAMETER_GRADIENT and not isinstance(op.body, Update):
                    self.bucket[tensor] = index
        if self._bucket_bytes() >= self.system.bucket_bytes:
            self._flush()

    def _bucket_bytes(self) -> int:
        return sum(self.held.tensors[tensor].bytes for tensor in self.bucket)

    def _flush(self) -> None:
        if self.bucket:
            done = self._collective("all_reduce", self._bucket_bytes(), sorted(set(self.bucket.values())), None)
            self.arrived.update({self.step.tensors[tensor].name: done for tensor in self.bucket})
            self.bucket = {}

    def _collective(self, kind: str, size: int, ops: list[int], op: Op | None) -> int:
        """One flow a link, all at once, behind the latency of its rounds and those in which a link waits for its first chunk."""
        devices = self.system.devices
        body = op.body if op is not None and isinstance(op.body, Collective) else Collective("all_reduce", size, devices)
        sent, hops = around(body, size, devices)
        booking, label = self.built.booking, op.layer if op else ""
        row = booking.row(
            kind,
            layer=label,
            phase=op.phase.value if op else "grad_weight",
            resource="ring",
            kind="synchronisation",
            bound="link",
            traffic={("link", kind, "write"): sent.elements * sent.links},
        )
        tag = booking.entry([row])
        waits = {
            task
            for tasks in self.tasks
            for index in ops
            for before in ((index,) if op is None else self.step.dependencies[index])
            for task in tasks.get(before, ())
        }
        waited_s = hops * self.system.link_latency_s + sent.idle * sent.chunk / self.system.link_bytes_per_s
        delay = round(waited_s * 10**12)
        ready = [
            self.built.task(stream, delay, after=sorted(waits), kind=TaskClass.SYNCHRONISATION, tag=tag) for stream in self.exchange
        ]
        done = self.built.transfer(
            [([link], sent.elements) for link in self.links],
            after=ready,
            stream=self.exchange[0],
            kind=TaskClass.SYNCHRONISATION,
            tag=tag,
        )
        if op is not None:
            for tasks in self.tasks:
                tasks.update({index: [done] for index in ops})
        return done


def _times(energy: Mapping[str, float], count: int) -> dict[str, float]:
    return {part: joules * count for part, joules in energy.items()}
