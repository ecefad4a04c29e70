"""Who carries what DPUs say to each other after a superstep: the crossbars of DIRECT, or the host.

| part            | between DPUs (DIRECT)                                       | through the host                                 |
|-----------------|-------------------------------------------------------------|--------------------------------------------------|
| communication   | messages through the crossbars, one by one, with contention | outboxes to the host, sorted there, inboxes back |
| synchronisation | barriers of the DSC, or sums by AGAUs, which are barriers   | ranks are started and waited for                 |

A rank's transfer takes as much from each of its DPUs (UPMEM's library): the fullest outbox of a rank says how much. What all DPUs
must know the sum of goes to the host with the rest.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from pim_programs.supersteps import Cost, Superstep, added, computed, instructions
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.dpu.instructions import LOAD, LOOP, STORE
from trainyard.hardware.tables.technology import between
from trainyard.systems.pim.device_interface import as_dpu
from trainyard.systems.pim.systems import DpuToDpu

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trainyard.hardware.crossbar.hierarchy import Exchanged
    from trainyard.hardware.dpu.host_link import HostLink
    from trainyard.systems.pim.machine import Pim

    Whole = npt.NDArray[np.int64]

Sending = Literal["staggered", "in_order"]
WORD_BYTES = 4
TRANSFER_BYTES = 8  # UPMEM SDK: transfers are multiples of 8 bytes
SUM_BYTES = 8
LIMBS, LIMB_BITS = 6, 11  # an AGAU adds fp32: pieces of 11 bits stay exact in sums of up to 2^13 DPUs
HEADER_BYTES = 8  # assumed: sender and length, 32 bits each, in front of what a DPU sends to another


def price(superstep: Superstep, machine: Pim, sending: Sending = "staggered") -> Cost:
    """What a superstep takes on a machine, and what each part of it draws."""
    if superstep.dpus != machine.dpus:
        raise BadInput(f"superstep {superstep.name!r} is for {superstep.dpus} DPUs, the machine has {machine.dpus}")
    if sending not in get_args(Sending):
        raise UnknownName("order of sending", str(sending), get_args(Sending))
    cost = computed(superstep, machine)
    if machine.dpus > 1:
        if isinstance(machine, DpuToDpu):
            cost += _between_dpus(superstep, machine, sending)
        else:
            cost += _through_host(superstep, machine)
    return cost + Cost(energy_j={"static": machine.idle_w * cost.seconds})


def staggered(superstep: Superstep) -> Whole:
    """Messages in an order in which no two DPUs send to the same one at the same time: each begins with the DPU after itself."""
    import numpy as np

    return np.lexsort(((superstep.destinations - superstep.sources) % superstep.dpus, superstep.sources))


def _between_dpus(superstep: Superstep, machine: DpuToDpu, sending: Sending) -> Cost:
    import numpy as np

    order = staggered(superstep) if sending == "staggered" else np.lexsort((superstep.destinations, superstep.sources))
    sizes = superstep.sizes_bytes[order]
    sent = machine.fabric.traffic(superstep.sources[order], superstep.destinations[order], sizes + HEADER_BYTES * (sizes > 0))
    meeting = _met(superstep.sums, machine)
    return meeting + Cost(
        communication_s=sent.time_s,
        message_bytes=int(sizes.sum()),
        messages=int((sizes > 0).sum()),
        link_bytes=_by_level(sent, machine),
        energy_j={"crossbar": _joules(sent.events, machine.crossbar.joules)},
    )


def _met(sums: int, machine: DpuToDpu) -> Cost:
    """A barrier in every cluster and one of all clusters; or sums over all DPUs, which nobody has before all came."""
    size, clusters, dsc = machine.dpus_per_cluster, machine.clusters, machine.dsc
    if sums:
        return _reduced(sums, machine)
    if dsc is None:
        waited = machine.host.exchange(clusters, 0).time_s
        return Cost(synchronisation_s=waited, energy_j={"host": machine.host.host_w * waited})
    events = added(dsc.barrier_events(machine.dpus), dsc.barrier_events(clusters) if clusters > 1 else {})
    seconds = dsc.barrier_s(size, "local") + (dsc.barrier_s(clusters) if clusters > 1 else 0.0)
    return Cost(synchronisation_s=seconds, energy_j={"dsc": _joules(events, dsc.joules)})


def _reduced(sums: int, machine: DpuToDpu) -> Cost:
    """In every cluster, then between clusters and back to all: by AGAUs in pieces, or by DPUs, which add 64-bit integers."""
    size, dpu, agau = machine.dpus_per_cluster, as_dpu(machine.dpu), machine.agau
    each = 2 * LOAD + instructions("int64", "add") + STORE + LOOP
    given: dict[str, Any] = {"agau": agau} if agau is not None else {"sum_bytes_per_s": SUM_BYTES * dpu.clock_hz / each}
    moved = sums * (LIMBS * WORD_BYTES if agau is not None else SUM_BYTES)
    done = machine.fabric.local(moved, size, **given) + machine.fabric.all_reduce(moved, size, members=True, **given)
    energy = {"crossbar": _joules(done.events, machine.crossbar.joules)}
    for contributions, times in ((size, machine.clusters), (machine.clusters, 1)):
        if contributions > 1 and agau is not None:
            by_agau = times * _joules(agau.events(contributions, sums * LIMBS), agau.joules)
            energy = added(energy, {"agau": by_agau})
        elif contributions > 1:
            energy = added(energy, {"instruction": times * (contributions - 1) * sums * each * dpu.joules["instruction"]})
    return Cost(synchronisation_s=done.time_s, link_bytes=_by_level(done, machine), energy_j=energy)


def _through_host(superstep: Superstep, machine: Pim) -> Cost:
    """The host knows who sends what to whom: no headers. Sorting or adding up is a read and a write of its memory."""
    import numpy as np

    host, n = machine.host, machine.dpus
    told = SUM_BYTES * superstep.sums
    there, back = superstep.to_host, superstep.from_host
    if there is None or back is None:
        there, back = (
            np.bincount(ends, superstep.sizes_bytes, n).astype(np.int64) for ends in (superstep.sources, superstep.destinations)
        )
    transfers = getattr(machine, "transfers", "rank_parallel")
    moved = [_host_transfer(host, box + told, way, transfers) for way, box in (("gather", there), ("scatter", back))]
    handled = float(there.sum() + back.sum()) + n * told
    waited = host.sync_s * len(host.ranks(n))
    talked = sum(seconds for seconds, _ in moved) + handled / host.memory_bytes_per_s
    carried = sum(padded for _, padded in moved)
    joules = {
        "host link": carried * host.joules["host_link_byte"],
        "host memory": (carried + handled) * host.joules["host_memory_byte"],
        "host": (talked + waited) * host.joules["host_s"],
    }
    return Cost(
        communication_s=talked,
        synchronisation_s=waited,
        message_bytes=int(there.sum()),
        messages=int((there > 0).sum()),
        link_bytes={"host link": carried},
        energy_j=joules,
    )


def _host_transfer(host: HostLink, box_bytes: Whole, way: str, transfers: str) -> tuple[float, float]:
    """Seconds and bytes of boxes of different sizes: DPU after DPU, or a rank at a time with all of its boxes as its fullest."""
    import numpy as np

    full, one = (
        (host.rank_out_bytes_per_s, host.dpu_out_bytes_per_s)
        if way == "gather"
        else (host.rank_in_bytes_per_s, host.dpu_in_bytes_per_s)
    )
    groups = (1,) * box_bytes.size if transfers == "serial" else host.ranks(box_bytes.size)
    servers = {"serial": host.threads, "ranks_in_turn": 1, "rank_parallel": host.channels}[transfers]
    first = np.cumsum([0, *groups[:-1]])
    padded = -(-np.maximum.reduceat(box_bytes, first) // TRANSFER_BYTES) * TRANSFER_BYTES * np.array(groups)
    served = [(int(size), group) for size, group in zip(padded, groups, strict=True) if size]
    share = host.memory_bytes_per_s / max(1, min(servers, len(served)))
    rates = {group: min(share, between([(1, one), (host.rank_dpus, full)], group) if group > 1 else one) for group in set(groups)}
    free = [0.0] * servers
    for size, group in served:
        heapq.heappush(free, heapq.heappop(free) + host.latency_s + size / rates[group])
    return max(free), float(padded.sum())


def _by_level(exchanged: Exchanged, machine: DpuToDpu) -> dict[str, float]:
    levels = zip(machine.crossbar.levels, exchanged.bytes_by_level, strict=True)
    return {f"crossbar {level.name}": float(carried) for level, carried in levels if carried}


def _joules(events: Mapping[str, float], each: Mapping[str, float]) -> float:
    return sum(count * each[event] for event, count in events.items())


def summed(parts: Whole, machine: Pim) -> tuple[int, ...]:
    """The sums over DPUs of [dpus, sums] numbers from 0 to 2^62, as the machine makes them: by AGAUs, or by who adds integers.

    An AGAU adds fp32 words. A number is cut into pieces of 11 bits, whose sums are exact, and put together again.

    >>> import numpy as np
    >>> summed(np.array([[2**55 + 1, 3]] * 128), DpuToDpu(dpus=128)) == (2**62 + 128, 384)
    True
    """
    import numpy as np

    agau = getattr(machine, "agau", None)
    if agau is None or agau.number != "fp32" or machine.dpus > 1 << (24 - LIMB_BITS):
        return tuple(int(total) for total in parts.sum(0))
    shifts = LIMB_BITS * np.arange(LIMBS)
    pieces = ((parts[:, :, None] >> shifts) & ((1 << LIMB_BITS) - 1)).astype(np.float32)
    clusters = pieces.reshape(machine.clusters, machine.dpus_per_cluster, -1)
    total = agau.reduce(np.stack([agau.reduce(cluster) for cluster in clusters])).reshape(-1, LIMBS)
    return tuple(sum(int(piece) << int(shift) for piece, shift in zip(row, shifts, strict=True)) for row in total)
