"""DPUs in clusters: what all PIM machines have in common, whatever the interconnect.

The batch of a step is that of one DPU. Whatever the algorithm, a run is local steps followed by an exchange of gradients or models
(`systems.pim.rounds`), every step or every few steps. `rates` gives the same durations to `training`, which executes the algorithm
on real numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from trainyard.caches import BoundedCache, ByIdentity
from trainyard.checks import require_flag, require_positive, require_quantity
from trainyard.devices.dpu.memory import split_over
from trainyard.devices.dpu.presets import UPMEM
from trainyard.errors import BadInput, NotModelled
from trainyard.hardware.dpu.host_link import HostExchange, HostLink
from trainyard.ir import Collective, Device, Masks, Role, Step, assumed
from trainyard.ir.plan import Plan, checked_integer, picoseconds
from trainyard.ir.protocols import ExplainsMasks
from trainyard.mapping.algorithms import Algorithm, Direct, ModelAveraging, Rates
from trainyard.progress import counted
from trainyard.results.result import Peaks
from trainyard.systems.pim import device_interface
from trainyard.systems.pim.rounds import Rounds, TimedEvent, WorkerGroup
from trainyard.systems.work_rows import capacity_of, in_device_precision
from trainyard.units import PICOSECONDS_PER_SECOND, show

T = TypeVar("T")
RANK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Pim:
    """DPUs, equal or of two kinds, and the algorithm that trains on them.

    `speeds` are relative clocks, repeated over the clusters: (1, 0.5) halves the clock in every second cluster. The DPUs of the
    last `other_clusters` clusters are `other`. A step that does not fit the MRAM is refused; with `split` the DPUs of a cluster
    share its parameters (ZeRO stage 3): in every step each gathers the parameters it needs and scatters gradients over its own
    port. Any device may take a DPU's place (`systems.pim.device_interface`): `dpu=npu(array=tensordash)`.
    """

    dpu: Device = UPMEM
    dpus: int = 2048
    cluster_size: int | None = assumed(
        None, "DPUs of a cluster, with one AGAU; none: a rank of 64, or all DPUs where they are fewer", 8, 128, choice=True
    )
    algorithm: Algorithm = field(default_factory=ModelAveraging)
    speeds: tuple[float, ...] = ()
    other: Device | None = None
    other_clusters: int = 0
    samples_per_dpu: int = 0
    split: bool = False
    host: HostLink = field(default_factory=HostLink)
    _cache: BoundedCache = field(default_factory=lambda: BoundedCache(entries=4096), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        owner = type(self).__name__
        require_positive(owner, dpus=self.dpus)
        device_interface.require_device(owner, "dpu", self.dpu)
        device_interface.require_device(owner, "other", self.dpu if self.other is None else self.other)
        if not isinstance(self.host, HostLink):
            raise BadInput(f"{owner}: host must be a HostLink, got {self.host!r}")
        for name in ("samples_per_dpu", "other_clusters"):
            checked_integer(getattr(self, name), f"{owner}: {name}")
        require_flag(owner, split=self.split)
        object.__setattr__(self, "speeds", tuple(self.speeds))  # a list would not hash
        if not isinstance(self.algorithm, Algorithm):
            raise BadInput(f"{owner}: algorithm must be one of trainyard.mapping.algorithms, got {self.algorithm!r}")
        size = self.dpus_per_cluster
        require_positive(owner, cluster_size=size)
        if self.dpus % size:
            raise BadInput(
                f"{owner}: {self.dpus} DPUs do not divide into clusters of {size}: "
                f"give a multiple of {size}, or another cluster_size"
            )
        for speed in self.speeds:
            require_quantity(owner, speeds=speed)
        if (self.other is None) != (self.other_clusters == 0):
            raise BadInput(f"{owner}: other and other_clusters go together: what the DPUs are, and in how many clusters")
        if not 0 <= self.other_clusters <= self.clusters:
            raise BadInput(f"{owner}: other_clusters={self.other_clusters}, but there are {self.clusters} clusters")

    @property
    def masks_note(self) -> str:
        """The note that a run with masks must carry."""
        return self.dpu.masks_note if isinstance(self.dpu, ExplainsMasks) else ""

    @property
    def dpus_per_cluster(self) -> int:
        """`cluster_size`; by default a rank, or all DPUs where they are fewer."""
        return min(RANK, self.dpus) if self.cluster_size is None else self.cluster_size

    @property
    def clusters(self) -> int:
        return self.dpus // self.dpus_per_cluster

    @property
    def devices(self) -> tuple[Device, ...]:
        """The device of each cluster's DPUs."""
        return self._cache.get("devices", lambda: tuple(self._device(number) for number in range(self.clusters)))

    def _device(self, cluster: int) -> Device:
        plain = self.other if self.other is not None and cluster >= self.clusters - self.other_clusters else self.dpu
        speed = self.speeds[cluster % len(self.speeds)] if self.speeds else 1.0
        return plain if speed == 1.0 else device_interface.at_speed(plain, speed)

    @property
    def peaks(self) -> Peaks:
        peaks: list[Peaks] = [device.peaks for device in self.devices]  # type: ignore[attr-defined]  # every device of ours says them
        return Peaks(
            macs_per_s=sum(peak.macs_per_s for peak in peaks) * self.dpus_per_cluster,
            dram_bytes_per_s=sum(peak.dram_bytes_per_s for peak in peaks) * self.dpus_per_cluster,
            technology=peaks[0].technology,
            devices=self.dpus,
        )

    def plan(self, step: Step, masks: Masks | None = None) -> Plan:
        if any(isinstance(op.body, Collective) for op in step.ops):
            raise NotModelled(
                f"step {step.name!r} was captured with exchanges of its own: a PIM machine's algorithm says what goes round"
            )
        for device in dict.fromkeys(self.devices):
            self._require_memory(step, device)
        trains = any(op.phase.backward for op in step.ops)  # a forward pass alone has nothing to exchange
        rates, groups = self.rates(step, masks), self.groups(step, masks)
        rounds = Rounds(
            step,
            groups,
            algorithm=self.algorithm,
            local_steps=self._local_steps(rates, len(groups)) if trains else (1,) * len(groups),
            reduce=self._reduce_event(step) if trains else None,
            exchange=self._exchange_event(step) if trains else None,
            static_w=self.dpus_w,
            component_w={"fabric static": self.fabric_w} if self.fabric_w else {},
            **(self._tokens() if trains else {}),
        )
        built = rounds.plan()
        resident, peak = self._memory(step, self.devices[0])
        device = self.devices[0]
        pool = built.pool(device_interface.memory_name(device), capacity_of(device), resident_bytes=resident)
        built.allocate(rounds.first_step[:1], rounds.first_step[-1:], pool, [peak - resident])
        built.booking.notes.extend(self._notes(step, rates) if trains else ())
        return built

    def _local_steps(self, rates: Rates, groups: int) -> tuple[int, ...]:
        """Local steps of each group of the plan; rates may list every worker."""
        steps = rates.local_steps(self.algorithm)
        return steps[:: len(steps) // groups]

    def _data_bytes(self, step: Step) -> int:
        """Bytes of the training samples in each MRAM."""
        sample = sum(t.bytes for t in step.tensors if t.role in (Role.INPUT, Role.TARGET) and t.view_of is None) // step.batch
        return self.samples_per_dpu * sample

    def _require_memory(self, step: Step, device: Device) -> None:
        if not self.split:
            device_interface.require_room(device, step, self._data_bytes(step))
            return
        needed, capacity = self._memory(step, device)[1], capacity_of(device)
        if capacity is not None and needed > capacity:
            name = device_interface.name_of(device)
            raise BadInput(
                f"step {step.name!r} at batch {step.batch}, its parameters split over {self.dpus_per_cluster} DPUs, still needs "
                f"{show(needed, 'B')} of MRAM, {name} has {show(capacity, 'B')}: give a DPU with more memory"
                f"{'' if name == 'mac-dpu' else ' (dpu=mac-dpu)'}, a smaller batch or larger clusters"
            )

    def _memory(self, step: Step, device: Device) -> tuple[int, int]:
        """Resident and peak bytes of a DPU's MRAM."""
        data = self._data_bytes(step)
        if not self.split:
            room = device_interface.memory_use(device, step, data)
            return room.resident_bytes + data, room.bytes
        shared = split_over(step, self.dpus_per_cluster, device_interface.precision(device))
        return shared.resident_bytes + data, shared.peak_bytes + data

    def groups(self, step: Step, masks: Masks | None = None) -> list[WorkerGroup]:
        """Clusters, or single DPUs where each exchanges for itself; groups with equal devices share their costs."""
        return self._cache.get(
            ("groups", self.algorithm.between == "centre", ByIdentity(step), ByIdentity(masks)), lambda: self._groups(step, masks)
        )

    def _groups(self, step: Step, masks: Masks | None) -> list[WorkerGroup]:
        single = self.algorithm.between == "centre"
        size = 1 if single else self.dpus_per_cluster
        by_device: dict[Device, WorkerGroup] = {}
        groups = []
        for number in range(self.dpus // size):
            device = self.devices[number * size // self.dpus_per_cluster]
            if device not in by_device:
                by_device[device] = _group(step, device, size, len(by_device), masks)
            groups.append(replace(by_device[device], name=f"{'DPU' if single else 'cluster'} {number}"))
        return groups

    def _worker_step_s(self, step: Step, masks: Masks | None) -> tuple[float, ...]:
        """Seconds of every DPU's local step."""
        return tuple(group.step_ps / PICOSECONDS_PER_SECOND for group in self.groups(step, masks) for _ in range(group.workers))

    @property
    def fabric_w(self) -> float:
        """Static watts of everything but the DPUs."""
        return 0.0

    @property
    def idle_w(self) -> float:
        """Watts while all DPUs wait."""
        return self.dpus_w + self.fabric_w

    @property
    def dpus_w(self) -> float:
        """Static watts of all DPUs."""
        return sum(map(device_interface.static_w, self.devices)) * self.dpus_per_cluster

    def message_bytes(self, step: Step) -> int:
        """Bytes of one model, or of its gradient, in the DPUs' precision."""
        held = in_device_precision(step, self.dpu)
        return sum(tensor.bytes for tensor in held.tensors if tensor.role is Role.PARAMETER and tensor.view_of is None)

    def unused_assumptions(self, step: Step) -> frozenset[str]:
        """Assumptions that do not change the cost of a step."""
        unused = {"algorithm.adaptive"}  # only `training` adapts: a step alone has no gradients to adapt to
        if isinstance(self.algorithm, Direct) and self.algorithm.update == "averaging":
            unused |= {"algorithm.recheck"} | ({"algorithm.order"} if len(set(self.devices)) == 1 else set())
        return frozenset(unused)

    def rates(self, step: Step, masks: Masks | None = None) -> Rates:
        """Durations of local steps, reductions and exchanges on this machine."""
        return self._cache.get(("rates", ByIdentity(step), ByIdentity(masks)), lambda: self._rates(step, masks))

    def _rates(self, step: Step, masks: Masks | None) -> Rates:
        raise NotImplementedError

    def _reduce_event(self, step: Step) -> TimedEvent | None:
        return None

    def _exchange_event(self, step: Step) -> TimedEvent | None:
        raise NotImplementedError

    def _tokens(self) -> dict[str, Any]:
        return {}

    def _notes(self, step: Step, rates: Rates) -> list[str]:
        return []

    def _exchange_bytes(self, exchange: TimedEvent) -> int:
        """Bytes of one exchange of every DPU."""
        return sum(exchange.traffic.values()) * (self.dpus if self.algorithm.between == "centre" else 1)

    def local_step(self, step: Step) -> tuple[float, float]:
        """Seconds and joules of one local step of a cluster, without any exchange."""
        group = self.groups(step)[0]
        return group.step_ps / PICOSECONDS_PER_SECOND, group.workers * sum(sum(energy.values()) for energy in group.energies)

    def _host_event(self, name: str, exchanged: HostExchange) -> TimedEvent:
        joules = {event: count * self.host.joules[event] for event, count in exchanged.events.items()}
        host_joules = joules.pop("host_s", 0.0)
        return TimedEvent(
            name=name,
            ps=round(exchanged.time_s * PICOSECONDS_PER_SECOND),
            resource="host",
            energy={"host link": sum(joules.values()), "host": host_joules},
            traffic={("host link", name, "write"): exchanged.bytes},
        )


def _group(step: Step, device: Device, workers: int, template: int, masks: Masks | None) -> WorkerGroup:
    works = device.works(step)
    costs = [device.cost(step, work, masks) for work in counted(works, "layers and phases")]
    return WorkerGroup(
        name="",
        workers=workers,
        works=works,
        costs=costs,
        durations_ps=[picoseconds(cost.cycles, device.clock_hz) for cost in costs],
        energies=[device.energy(cost.events) for cost in costs],
        template=template,
    )
