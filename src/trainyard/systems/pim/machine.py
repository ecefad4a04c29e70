"""DPUs in clusters: what every PIM machine has, whoever carries what they exchange.

The batch of a step is one DPU's. Whatever the algorithm, a run is local steps and then an exchange (`systems.pim.rounds`): of
gradients or models, every step or every so many. `rates` tells the same seconds to `training`, which executes the algorithm on real
numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from trainyard.checks import require_flag, require_positive, require_quantity
from trainyard.devices.dpu.memory import split_over
from trainyard.devices.dpu.presets import UPMEM
from trainyard.errors import BadInput, NotModelled
from trainyard.hardware.dpu.host_link import HostExchange, HostLink
from trainyard.ir import Collective, Device, Masks, Role, Step, assumed
from trainyard.ir.plan import Plan, whole
from trainyard.mapping.algorithms import Algorithm, Direct, ModelAveraging, Rates
from trainyard.results.result import Peaks
from trainyard.systems.pim import device_interface as places
from trainyard.systems.pim.rounds import Act, Group, Rounds
from trainyard.systems.single import as_held, picoseconds
from trainyard.units import PICOSECONDS_PER_SECOND, show

RANK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Pim:
    """DPUs, alike or not, and the algorithm that trains on them.

    `speeds` are relative clocks, repeated over the clusters: (1, 0.5) makes the DPUs of every second one half as fast. The DPUs of
    the last `other_clusters` clusters are `other`. A step that does not fit the MRAM is refused; with `split` the DPUs of a cluster
    share its parameters (ZeRO stage 3): each gathers what it needs and scatters gradients over its own port, in every step. Any
    device may stand at a DPU's place (`systems.pim.device_interface`): `dpu=npu(array=tensordash)`.
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
    _known: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        owner = type(self).__name__
        require_positive(owner, dpus=self.dpus)
        places.require_device(owner, "dpu", self.dpu)
        places.require_device(owner, "other", self.dpu if self.other is None else self.other)
        if not isinstance(self.host, HostLink):
            raise BadInput(f"{owner}: host must be a HostLink, got {self.host!r}")
        for name in ("samples_per_dpu", "other_clusters"):
            whole(getattr(self, name), f"{owner}: {name}")
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
        """What a run with masks must say."""
        return getattr(self.dpu, "masks_note", "")

    @property
    def dpus_per_cluster(self) -> int:
        """A rank, or all DPUs where they are fewer."""
        return min(RANK, self.dpus) if self.cluster_size is None else self.cluster_size

    @property
    def clusters(self) -> int:
        return self.dpus // self.dpus_per_cluster

    @property
    def devices(self) -> tuple[Device, ...]:
        """What the DPUs of each cluster are."""
        if "devices" not in self._known:
            self._known["devices"] = tuple(self._device(number) for number in range(self.clusters))
        return self._known["devices"]  # type: ignore[no-any-return]  # what was kept above

    def _device(self, cluster: int) -> Device:
        plain = self.other if self.other is not None and cluster >= self.clusters - self.other_clusters else self.dpu
        speed = self.speeds[cluster % len(self.speeds)] if self.speeds else 1.0
        return plain if speed == 1.0 else places.at_speed(plain, speed)

    @property
    def peaks(self) -> Peaks:
        each: list[Peaks] = [device.peaks for device in self.devices]  # type: ignore[attr-defined]  # every device of ours says them
        return Peaks(
            macs_per_s=sum(one.macs_per_s for one in each) * self.dpus_per_cluster,
            dram_bytes_per_s=sum(one.dram_bytes_per_s for one in each) * self.dpus_per_cluster,
            technology=each[0].technology,
            devices=self.dpus,
        )

    def plan(self, step: Step, masks: Masks | None = None) -> Plan:
        if any(isinstance(op.body, Collective) for op in step.ops):
            raise NotModelled(
                f"step {step.name!r} was captured with exchanges of its own: a PIM machine's algorithm says what goes round"
            )
        for device in dict.fromkeys(self.devices):
            self._room(step, device)
        trains = any(op.phase.backward for op in step.ops)  # nobody exchanges what a forward pass makes
        rates, groups = self.rates(step, masks), self.groups(step, masks)
        rounds = Rounds(
            step,
            groups,
            algorithm=self.algorithm,
            local_steps=self._local_steps(rates, len(groups)) if trains else (1,) * len(groups),
            reduce=self._reduce_act(step) if trains else None,
            exchange=self._exchange_act(step) if trains else None,
            static_w=self.dpus_w,
            beside={"fabric static": self.fabric_w} if self.fabric_w else {},
            **(self._tokens() if trains else {}),
        )
        built = rounds.plan()
        resident, peak = self._memory(step, self.devices[0])
        device = self.devices[0]
        pool = built.pool(places.memory(device), places.capacity_bytes(device), resident_bytes=resident)
        built.hold(rounds.first_step[:1], rounds.first_step[-1:], pool, [peak - resident])
        built.booking.notes.extend(self._remarks(step, rates) if trains else ())
        return built

    def _local_steps(self, rates: Rates, groups: int) -> tuple[int, ...]:
        """Of each group of the plan."""
        found = rates.local_steps(self.algorithm)
        return found[:: len(found) // groups]

    def _data_bytes(self, step: Step) -> int:
        """What the training samples in each MRAM take."""
        sample = sum(t.bytes for t in step.tensors if t.role in (Role.INPUT, Role.TARGET) and t.view_of is None) // step.batch
        return self.samples_per_dpu * sample

    def _room(self, step: Step, device: Device) -> None:
        data = self._data_bytes(step)
        if not self.split:
            places.require_room(device, step, data)
            return
        needed, there = self._memory(step, device)[1], places.capacity_bytes(device)
        if there is not None and needed > there:
            name = places.called(device)
            raise BadInput(
                f"step {step.name!r} at batch {step.batch}, its parameters split over {self.dpus_per_cluster} DPUs, still needs "
                f"{show(needed, 'B')} of MRAM, {name} has {show(there, 'B')}: give a DPU with more memory"
                f"{'' if name == 'mac-dpu' else ' (dpu=mac-dpu)'}, a smaller batch or larger clusters"
            )

    def _memory(self, step: Step, device: Device) -> tuple[int, int]:
        """Bytes of a DPU's MRAM that stay, and the most there are."""
        data = self._data_bytes(step)
        if not self.split:
            room = places.taken(device, step, data)
            return room.resident_bytes + data, room.bytes
        shared = split_over(step, self.dpus_per_cluster, places.precision(device))
        return shared.resident_bytes + data, shared.peak_bytes + data

    def groups(self, step: Step, masks: Masks | None = None) -> list[Group]:
        """Clusters as they step, or single DPUs where each exchanges for itself; alike ones share their costs."""
        key = ("groups", self.algorithm.between == "centre")
        before, told, found = self._known.get(key, (None, None, None))
        if before is not step or told is not masks:
            found = self._groups(step, masks)
            self._known[key] = (step, masks, found)
        return found  # type: ignore[no-any-return]  # what was kept above

    def _groups(self, step: Step, masks: Masks | None) -> list[Group]:
        alone = self.algorithm.between == "centre"
        size = 1 if alone else self.dpus_per_cluster
        kinds: dict[Device, Group] = {}
        groups = []
        for number in range(self.dpus // size):
            device = self.devices[number * size // self.dpus_per_cluster]
            if device not in kinds:
                kinds[device] = _group(step, device, size, len(kinds), masks)
            groups.append(replace(kinds[device], name=f"{'DPU' if alone else 'cluster'} {number}"))
        return groups

    def _steps_of_workers(self, step: Step, masks: Masks | None) -> tuple[float, ...]:
        """Seconds of every DPU's own step."""
        return tuple(group.step_ps / PICOSECONDS_PER_SECOND for group in self.groups(step, masks) for _ in range(group.workers))

    @property
    def fabric_w(self) -> float:
        """What is drawn at all times beside the DPUs."""
        return 0.0

    @property
    def idle_w(self) -> float:
        """What is drawn while all wait."""
        return self.dpus_w + self.fabric_w

    @property
    def dpus_w(self) -> float:
        """What all DPUs draw, at work or not."""
        return sum(map(places.static_w, self.devices)) * self.dpus_per_cluster

    def message_bytes(self, step: Step) -> int:
        """One model, or its gradient, in the numbers of the DPUs."""
        held = as_held(step, self.dpu)
        return sum(tensor.bytes for tensor in held.tensors if tensor.role is Role.PARAMETER and tensor.view_of is None)

    def unused_assumptions(self, step: Step) -> frozenset[str]:
        """Assumptions that change nothing in a step."""
        unused = {"algorithm.adaptive"}  # `training` adapts: a step has no gradients to adapt to
        if isinstance(self.algorithm, Direct) and self.algorithm.update == "averaging":
            unused |= {"algorithm.recheck"} | ({"algorithm.order"} if len(set(self.devices)) == 1 else set())
        return frozenset(unused)

    def rates(self, step: Step, masks: Masks | None = None) -> Rates:
        """Seconds of what algorithms do on this machine."""
        before, told, found = self._known.get("rates", (None, None, None))
        if before is not step or told is not masks:
            found = self._rates(step, masks)
            self._known["rates"] = (step, masks, found)
        return found  # type: ignore[no-any-return]  # what was kept above

    def _rates(self, step: Step, masks: Masks | None) -> Rates:
        raise NotImplementedError

    def _reduce_act(self, step: Step) -> Act | None:
        return None

    def _exchange_act(self, step: Step) -> Act | None:
        raise NotImplementedError

    def _tokens(self) -> dict[str, Any]:
        return {}

    def _remarks(self, step: Step, rates: Rates) -> list[str]:
        return []

    def _all_bytes(self, exchange: Act) -> int:
        """Of everybody's exchange once."""
        return sum(exchange.traffic.values()) * (self.dpus if self.algorithm.between == "centre" else 1)

    def local_step(self, step: Step) -> tuple[float, float]:
        """Seconds and joules of one step of a cluster, without any exchange."""
        group = self.groups(step)[0]
        return group.step_ps / PICOSECONDS_PER_SECOND, group.workers * sum(sum(energy.values()) for energy in group.energies)

    def _host_act(self, name: str, exchanged: HostExchange) -> Act:
        joules = {event: count * self.host.joules[event] for event, count in exchanged.events.items()}
        own = joules.pop("host_s", 0.0)
        return Act(
            name=name,
            ps=round(exchanged.time_s * PICOSECONDS_PER_SECOND),
            resource="host",
            energy={"host link": sum(joules.values()), "host": own},
            traffic={("host link", name, "write"): exchanged.bytes},
        )


def _group(step: Step, device: Device, workers: int, kind: int, masks: Masks | None) -> Group:
    works = device.works(step)
    costs = [device.cost(step, work, masks) for work in works]
    return Group(
        name="",
        workers=workers,
        works=works,
        costs=costs,
        durations_ps=[picoseconds(cost.cycles, device.clock_hz) for cost in costs],
        energies=[device.energy(cost.events) for cost in costs],
        kind=kind,
    )
