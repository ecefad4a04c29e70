"""Supersteps on a PIM machine: all DPUs compute, then talk to each other, then meet (L. Valiant: CACM 33, 1990).

Nothing overlaps: a superstep takes the sum of its parts. A DPU is bound by its pipeline, its DMA engine or by its tasklets waiting
for their own transfers, whichever is longest, as in `devices.dpu.device`; the slowest DPU ends the computation. Who carries what
they say is `programs.carriers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from trainyard.errors import UnknownName
from trainyard.hardware.dpu.instructions import LOAD, LOOP, MEASURED_CLOCK_HZ, STORE
from trainyard.systems.pim.device_interface import as_dpu

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trainyard.devices.dpu.device import Dpu
    from trainyard.systems.pim.machine import Pim

    Whole = npt.NDArray[np.int64]
    Reals = npt.NDArray[np.float64]

ADDRESS = 5  # assumed: as devices.dpu_costs: instructions for the addresses and length of a transfer, and the transfer itself

# fmt: off
MEASURED_MOPS: Mapping[tuple[str, str], float] = {  # PrIM (J. Gomez-Luna et al., IEEE Access 2022), Fig. 4: one DPU, all tasklets
    ("int32", "add"): 58.56, ("int32", "multiply"): 10.27, ("int32", "divide"): 11.27,
    ("int64", "add"): 50.16, ("int64", "multiply"):  2.56, ("int64", "divide"):  1.40,
    ("fp32",  "add"):  4.91, ("fp32",  "multiply"):  1.91, ("fp32",  "divide"):  0.34,
    ("fp64",  "add"):  3.32, ("fp64",  "multiply"):  0.53, ("fp64",  "divide"):  0.16,
}
# fmt: on


def instructions(number: str, operation: str) -> int:
    """Of one operation, without its loads and stores and the loop around it (`hardware.dpu.instructions` has the rule).

    >>> instructions("int64", "add"), instructions("fp64", "add"), instructions("fp64", "divide")
    (2, 100, 2183)
    """
    if (number, operation) not in MEASURED_MOPS:
        raise UnknownName("operation", f"{number} {operation}", [" ".join(row) for row in MEASURED_MOPS])
    return round(MEASURED_CLOCK_HZ / (MEASURED_MOPS[number, operation] * 1e6)) - LOAD - STORE - LOOP


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stream:
    """Bytes that each DPU moves between MRAM and WRAM, in runs of consecutive bytes."""

    direction: Literal["read", "write"]
    size_bytes: Whole
    run_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Superstep:
    """What all DPUs do between two meetings; arrays have an entry for each DPU, or for each message.

    `items` are the equal pieces that a DPU's tasklets share. Of `sums` 64-bit numbers that every DPU has, all know the sum over all
    DPUs when they go on. `to_host` and `from_host` are what each DPU gives to a host and gets from it where that is more than to
    sort messages; where no host is on the way they say nothing.
    """

    name: str
    instructions: Whole
    items: Whole
    streams: Sequence[Stream] = ()
    sources: Whole
    destinations: Whole
    sizes_bytes: Whole
    sums: int = 0
    to_host: Whole | None = None
    from_host: Whole | None = None

    @property
    def dpus(self) -> int:
        return int(self.instructions.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds by part, bytes that left a DPU for another, bytes over each kind of link, joules by component.

    Costs add (one after the other) and multiply.
    """

    compute_s: float = 0.0
    communication_s: float = 0.0
    synchronisation_s: float = 0.0
    mean_compute_s: float = 0.0
    message_bytes: int = 0
    messages: int = 0
    link_bytes: Mapping[str, float] = field(default_factory=dict)
    energy_j: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.compute_s + self.communication_s + self.synchronisation_s

    @property
    def imbalance(self) -> float:
        """The slowest DPU's computation over that of a mean DPU."""
        return self.compute_s / self.mean_compute_s if self.mean_compute_s else 1.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            compute_s=self.compute_s + other.compute_s,
            communication_s=self.communication_s + other.communication_s,
            synchronisation_s=self.synchronisation_s + other.synchronisation_s,
            mean_compute_s=self.mean_compute_s + other.mean_compute_s,
            message_bytes=self.message_bytes + other.message_bytes,
            messages=self.messages + other.messages,
            link_bytes=added(self.link_bytes, other.link_bytes),
            energy_j=added(self.energy_j, other.energy_j),
        )

    def __mul__(self, times: int) -> Cost:
        return Cost(
            compute_s=self.compute_s * times,
            communication_s=self.communication_s * times,
            synchronisation_s=self.synchronisation_s * times,
            mean_compute_s=self.mean_compute_s * times,
            message_bytes=self.message_bytes * times,
            messages=self.messages * times,
            link_bytes={name: amount * times for name, amount in self.link_bytes.items()},
            energy_j={name: amount * times for name, amount in self.energy_j.items()},
        )


def added(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in dict.fromkeys([*one, *other])}


def computed(superstep: Superstep, machine: Pim) -> Cost:
    """The computation alone, each DPU as its cluster's device is."""
    import numpy as np

    seconds, energy = np.zeros(machine.dpus), dict[str, float]()
    clusters = np.arange(machine.dpus) // machine.dpus_per_cluster
    for device in dict.fromkeys(machine.devices):
        alike = np.array([one == device for one in machine.devices])[clusters]
        cycles, events = dpu_cycles(superstep, as_dpu(device), alike)
        seconds[alike] = cycles / device.clock_hz
        energy = added(energy, {part: joules for part, joules in device.energy(events).items() if joules})
    return Cost(compute_s=float(seconds.max()), mean_compute_s=float(seconds.mean()), energy_j=energy)


def dpu_cycles(superstep: Superstep, dpu: Dpu, which: npt.NDArray[np.bool_]) -> tuple[Reals, dict[str, float]]:
    """Cycles of each of some DPUs, and the events of all of them together."""
    import numpy as np

    busy = superstep.instructions[which].astype(np.float64)
    engine = np.zeros(busy.size)
    events = dict.fromkeys(("mram_read_byte", "mram_write_byte", "wram_read_byte", "wram_write_byte"), 0.0)
    for stream in superstep.streams:
        sizes, where = np.unique(stream.size_bytes[which], return_inverse=True)
        found = np.array([dpu.transfers(int(size), stream.run_bytes, stream.direction) for size in sizes])
        engine += found[where, 0]
        busy += found[where, 1] * ADDRESS
        moved = float(sizes[where].sum())
        events[f"mram_{stream.direction}_byte"] += moved
        events["wram_write_byte" if stream.direction == "read" else "wram_read_byte"] += moved
    items = np.maximum(superstep.items[which], 1)
    active = np.minimum(items, dpu.tasklets)
    busiest = busy / items * -(-items // active)
    pipeline = busiest * np.maximum(dpu.interval, active)
    tasklet = busiest * dpu.interval + engine / active
    barrier = dpu.barrier_instructions * max(dpu.interval, dpu.tasklets)
    cycles: Reals = np.ceil(np.maximum(np.maximum(pipeline, engine), tasklet) + barrier)
    return cycles, {**events, "instruction": float(busy.sum()) + busy.size * dpu.barrier_instructions * dpu.tasklets}
