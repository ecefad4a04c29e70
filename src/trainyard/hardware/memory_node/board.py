"""A memory-node: DIMMs on a board with high-bandwidth links, a backing store inside the device-side interconnect.

Y. Kwon, M. Rhu: Beyond the Memory Wall: A Case for Memory-centric HPC System for Deep Learning. MICRO 2018, Sec. III-A, Fig. 6.

N links stand in M groups. A group, N / M links with 1 / M of the memory's capacity and bandwidth and a DMA engine of its own,
belongs to one device-node (Sec. III-B). A copy is cut into requests; each passes the protocol engine, the links, a unit where there
is one, and the memory controller, one behind the other as in a pipeline. With n requests, w of them under way at once, latency L
and time t of a request at the bottleneck, and n - 1 = q w + j (0 <= j < w), the last one ends at

    setup + q max(L + t, w t) + L + j t + t_last:

requests flow without a gap where w t >= L + t, else w of them wait for one latency together.

A *compression* unit is in the node, or at the device as in the compressing DMA engine (Rhu, HPCA 2018). In the node it reduces
what the DIMMs store and move, but every byte crosses the links; at the device it reduces both. *Encryption* reduces nothing. The
driver counts uncompressed pages either way: a ratio that is known only with the data does not enlarge the address space at boot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from trainyard.construction import Positive, part
from trainyard.errors import BadInput
from trainyard.hardware.formats.zero_compression import compressed_bytes
from trainyard.hardware.memory_node.dimms import BYTES_PER_S, MODULES, Module, Speed
from trainyard.ir import assumed

PLACES = ("device", "node")


@part
class Unit:
    """A unit that compresses or encrypts: latency per request, input bytes per second, and input bytes over output bytes.

    >>> import numpy as np
    >>> cdma = Unit(kind="compression", where="device", latency_s=0.0, bytes_per_s=200e9)
    >>> cdma.measured(np.array([True, False, False, False] * 8), element_bytes=4).ratio  # 128 bytes: 4 of mask and 8 elements
    3.5555555555555554
    """

    kind: Literal["compression", "encryption"]
    latency_s: float
    bytes_per_s: Positive
    ratio: Positive = 1.0
    where: Literal["node", "device"] = "node"

    def __post_init__(self) -> None:
        if self.ratio < 1:
            raise BadInput(f"Unit {self.kind}: ratio is bytes in over bytes out, at least 1, got {self.ratio!r}")
        if self.kind == "encryption" and self.ratio != 1:
            raise BadInput(f"Unit encryption: ratio must be 1, got {self.ratio!r}: what is encrypted keeps its size")

    def measured(self, nonzero: npt.NDArray[np.bool_], element_bytes: int) -> Unit:
        """The same unit with the ratio that zero compression has on a tensor with this mask."""
        stored = compressed_bytes(nonzero.size, int(np.count_nonzero(nonzero)), element_bytes)
        return replace(self, ratio=nonzero.size * element_bytes / stored if stored else 1.0)


@part
class MemoryNode:
    """Fig. 6 with Table II's numbers; power is the DIMMs', as in Table IV.

    `units` are in the order in which data that leaves a device passes them. Bytes and rates are those of the device's data, before
    any compression. The DIMMs of a group share their rate between reads and writes, the links carry both at once.

    >>> node = MemoryNode()
    >>> node.memory_bytes_per_s / 1e9, node.capacity_bytes / 1e12, node.power_w
    (256.0, 1.28, 127.0)
    >>> node.link_group_bytes_per_s / 1e9, node.memory_group_bytes_per_s / 1e9, node.bound
    (75.0, 128.0, 'links')
    >>> f"{node.transfer_s(750_000_000):.7f}"
    '0.0100001'
    """

    # fmt: off
    links: int = 6                        # Table II
    groups: int = 2                       # Sec. III-B: a node is partitioned into two groups
    link_bytes_per_s: float = 25e9        # Table II: each way
    dimms: int = 10                       # Sec. III-A: as many as fit a board of 14 cm x 8 cm
    dimm: Literal["8 GB RDIMM", "16 GB RDIMM", "32 GB LRDIMM", "64 GB LRDIMM", "128 GB LRDIMM"] = assumed(
        "128 GB LRDIMM", "row of Table IV: capacity and power of a module", "8 GB RDIMM", "16 GB RDIMM", "32 GB LRDIMM",
        "64 GB LRDIMM", choice=True)      # the paper does not say which row its runs had, and none was filled
    speed: Speed = "PC4-25600"            # Sec. III-A, Table II: 256 GB/s
    memory_latency_s: float = 100e-9      # Table II: 100 cycles of 1 GHz
    protocol_latency_s: float = assumed(  # no figure in the paper
        0.0, "latency of a request in the protocol engine, beside the links' own", 500e-9)
    dma_setup_s: float = assumed(0.0, "from the driver's call to the DMA engine's first request", 1e-6)
    dma_request_bytes: int = assumed(2 * 2**20, "largest request of the DMA engine", 4096, 64 * 2**10)
    dma_outstanding: int = assumed(2, "requests that a group's DMA engine has under way at once", 1, 16)
    units: tuple[Unit, ...] = ()
    # fmt: on

    def __post_init__(self) -> None:
        if self.links % self.groups:
            whole = ", ".join(str(count) for count in range(1, self.links + 1) if self.links % count == 0)
            raise BadInput(f"MemoryNode: {self.links} links cannot stand in {self.groups} equal groups: write one of {whole}")
        _require_order(self.units)

    @property
    def module(self) -> Module:
        return MODULES[self.dimm]

    @property
    def memory_bytes_per_s(self) -> float:
        return self.dimms * BYTES_PER_S[self.speed]

    @property
    def capacity_bytes(self) -> int:
        return self.dimms * self.module.capacity_bytes

    @property
    def power_w(self) -> float:
        return self.dimms * self.module.tdp_w

    @property
    def gb_per_w(self) -> float:
        return self.capacity_bytes / 1e9 / self.power_w

    @property
    def link_group_bytes_per_s(self) -> float:
        """(N / M) x B, each way (Sec. III-A)."""
        return self.links // self.groups * self.link_bytes_per_s

    @property
    def memory_group_bytes_per_s(self) -> float:
        """One device's share of the DIMMs' rate, reads and writes together."""
        return self.memory_bytes_per_s / self.groups

    @property
    def group_capacity_bytes(self) -> int:
        return self.capacity_bytes // self.groups

    @property
    def request_latency_s(self) -> float:
        """Latency of one request through the protocol engine, the units and the memory."""
        return self.protocol_latency_s + self.memory_latency_s + sum(unit.latency_s for unit in self.units)

    def rates(self, ratio: float | None = None) -> Mapping[str, float]:
        """Rate of a device's data through each stage: units, links, memory; `ratio` replaces the compression's own.

        >>> squeeze = Unit(kind="compression", latency_s=0.0, bytes_per_s=1e12, ratio=2.0)
        >>> dict(MemoryNode(units=(squeeze,)).rates())
        {'links': 75000000000.0, 'compression': 1000000000000.0, 'memory': 256000000000.0}
        """
        rates_by_stage: dict[str, float] = {}
        shrunk = 1.0  # the device's bytes over their compressed size so far
        for place in PLACES:
            for unit in (unit for unit in self.units if unit.where == place):
                rates_by_stage[unit.kind] = unit.bytes_per_s * shrunk
                shrunk *= self._ratio(ratio) if unit.kind == "compression" else 1.0
            if place == "device":
                rates_by_stage["links"] = self.link_group_bytes_per_s * shrunk
        rates_by_stage["memory"] = self.memory_group_bytes_per_s * self._ratio(ratio)
        return rates_by_stage

    def _ratio(self, ratio: float | None = None) -> float:
        unit = next((unit for unit in self.units if unit.kind == "compression"), None)
        if unit is None and ratio is not None:
            raise BadInput(f"MemoryNode: a ratio of {ratio!r} needs a compression unit: give one in units")
        return 1.0 if unit is None else replace(unit, ratio=unit.ratio if ratio is None else ratio).ratio

    @property
    def bound(self) -> str:
        """The bottleneck: links, memory, compression or encryption."""
        rates = self.rates()
        return min(rates, key=lambda name: rates[name])

    @property
    def group_bytes_per_s(self) -> float:
        return min(self.rates().values())

    @property
    def crossing_ratio(self) -> float:
        """A device's bytes over those that cross the links: a compression unit at the device makes them fewer."""
        return self._ratio() if any(unit.kind == "compression" and unit.where == "device" for unit in self.units) else 1.0

    @property
    def supply_bytes_per_s(self) -> float:
        """The node's rate to and from all its links, in bytes as they cross them: the least of DIMMs, units and requests in flight.

        With w requests of r bytes under way, each of which takes the latency L and its time t on the links, at most w r / (L + t).
        """
        rates = self.rates()
        in_flight = self.dma_outstanding * self.dma_request_bytes
        pace = in_flight / (self.request_latency_s + self.dma_request_bytes / self.link_group_bytes_per_s)
        narrowest = min(rate for name, rate in rates.items() if name != "links") / self.crossing_ratio
        return self.groups * min(narrowest, pace)

    def as_store(self) -> dict[str, float | int]:
        """The node's memory as keyword arguments of topology builders."""
        return {
            "memory_bytes_per_s": self.supply_bytes_per_s,
            "memory_latency_s": self.request_latency_s + self.dma_setup_s,
            "capacity_bytes": self.capacity_bytes,
        }

    def link_bytes(self, size_bytes: int, ratio: float | None = None) -> int:
        """Bytes of a copy that cross the links: compressed only if the unit is at the device."""
        stored = self.stored_bytes(size_bytes, ratio)
        return stored if any(unit.kind == "compression" and unit.where == "device" for unit in self.units) else size_bytes

    def stored_bytes(self, size_bytes: int, ratio: float | None = None) -> int:
        """Bytes of a copy that the DIMMs move and store: compressed by a unit at either end."""
        return max(round(size_bytes / self._ratio(ratio)), min(size_bytes, 1))

    def transfer_s(self, size_bytes: int, ratio: float | None = None) -> float:
        """Seconds of one copy between a device and its group, in either direction, without other traffic."""
        if isinstance(size_bytes, bool) or not isinstance(size_bytes, int) or size_bytes < 0:
            raise BadInput(f"MemoryNode: a copy has a whole number of bytes, got {size_bytes!r}")
        rate = min(self.rates(ratio).values())
        if size_bytes == 0:
            return 0.0
        full, latency = self.dma_request_bytes / rate, self.request_latency_s
        before = -(-size_bytes // self.dma_request_bytes) - 1
        rounds, others = divmod(before, self.dma_outstanding)
        last = (size_bytes - before * self.dma_request_bytes) / rate
        return self.dma_setup_s + rounds * max(latency + full, self.dma_outstanding * full) + latency + others * full + last


def _require_order(units: tuple[Unit, ...]) -> None:
    """Raises unless there is at most one unit of each kind, in order from device to node, compression before encryption."""
    kinds, places = [unit.kind for unit in units], [unit.where for unit in units]
    if len(set(kinds)) < len(kinds):
        raise BadInput(f"MemoryNode: units {', '.join(kinds)}: at most one of each kind")
    if kinds == ["encryption", "compression"]:
        raise BadInput("MemoryNode: what is encrypted does not compress: put compression in front of encryption")
    if places != sorted(places):
        raise BadInput(f"MemoryNode: units stand from the device to the node, got {', '.join(places)}: put the device's first")
