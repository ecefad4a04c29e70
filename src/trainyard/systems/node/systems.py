"""Nodes of several devices: a link graph, rings derived from it, a memory behind the links, and a policy that pages into it.

Y. Kwon, M. Rhu: Beyond the Memory Wall: A Case for Memory-centric HPC System for Deep Learning. MICRO 2018.

Where that memory sits makes the three designs of the paper: behind PCIe (`DeviceCentric`), behind some of the devices' own links
at the host (`HostCentric`), or in memory-nodes inside the devices' rings (`MemoryCentric`). `Wired` takes any graph. A device is
whatever costs Works: an Accelerator with any array, a GPU. `parallel`, `overlay`, `placement` and `algorithm` are the node's
policies; `collectives` says how its exchanges are done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from functools import lru_cache
from typing import Any, Literal

from trainyard.caches import BoundedCache
from trainyard.construction import NonNegativeInt, part, require_parts
from trainyard.errors import BadInput
from trainyard.hardware.collectives.on_graph import Timing, timing
from trainyard.hardware.memory_node.board import MemoryNode
from trainyard.hardware.topology import builders as topologies
from trainyard.hardware.topology.graph import Topology
from trainyard.hardware.topology.rings import Ring, rings
from trainyard.ir import Device, Masks, Step, assumed
from trainyard.ir.plan import Plan
from trainyard.ir.protocols import ExplainsMasks
from trainyard.mapping.algorithms import Algorithm, Direct, Synchronous
from trainyard.mapping.parallel.experts import ExpertParallel
from trainyard.mapping.pipeline.schedule import Pipeline
from trainyard.results.result import Peaks
from trainyard.units import show


def total_peaks(device: Device, count: int) -> Peaks:
    """Peak rates of `count` equal devices."""
    peaks: Peaks = device.peaks  # type: ignore[attr-defined]  # `ty.run` refuses a device without peaks
    return replace(peaks, macs_per_s=peaks.macs_per_s * count, dram_bytes_per_s=peaks.dram_bytes_per_s * count, devices=count)


@part
class Node:
    """What all designs have in common. The batch of a step is the batch of all devices together.

    `overlay` selects the feature maps that leave the devices between their forward and their backward use: `all`, those that do not
    fit `capacity_bytes` (`as_needed`; by default the device's own memory), or none (`off`). `moved` adds weights, or weights and
    optimizer state. `algorithm` is what devices exchange and when (`systems.node.rounds`), `cluster_size` its clusters.
    Quantities are numbers or have a unit: `link_bytes_per_s=50e9`, `link="50 GB/s"`.
    """

    device: Device
    devices: int = 8
    links: int = 6
    link_bytes_per_s: float = 25e9
    parallel: Literal["data", "model", "mixed", "pipeline", "expert"] = "data"
    pipeline: Pipeline = field(default_factory=Pipeline)
    experts: ExpertParallel = field(default_factory=ExpertParallel)
    zero: Literal[0, 1, 2, 3] = 0
    overlay: Literal["all", "as_needed", "off"] = "all"
    placement: Literal["bw_aware", "local"] = "bw_aware"
    capacity_bytes: int | None = None
    moved: Literal["maps", "weights", "state", "all"] = "maps"
    compression: float | Literal["masks"] = 1.0
    collectives: Literal["ring", "tree", "halving_doubling", "auto"] = "ring"
    algorithm: Algorithm = field(default_factory=Synchronous)
    cluster_size: int | None = None
    fold: bool = True
    # fmt: off
    link_latency_s: float = assumed(500e-9, "of one link, the protocol's included", 100e-9, 2e-6)
    directions: Literal["both", "one"] = assumed("both", "a ring of full-duplex links is used both ways, or one way", "one")
    split: Literal["equal", "balanced"] = assumed(
        "equal", "rings of different length get equal parts of a message, or such that they end together", "balanced")
    contention: bool = assumed(False, "copies and collectives share the wires that both need", True)
    message_bytes: int = assumed(4096, "links forward messages of this size (Fig. 9)", 65536)
    page_bytes: int = assumed(65536, "of the device's page tables: what BW_AWARE deals out", 2**21)
    window: int | None = assumed(2, "feature maps fetched ahead of the one in use; none: without a limit", 1, None)
    recompute: Literal["cheap", "none"] = assumed(
        "cheap", "layers without products are computed again, not copied (Sec. IV)", "none")
    depth: int = assumed(2, "so many ops in a row are computed again, one from the other: a pooling from a concatenation", 1, 3)
    prefetch: NonNegativeInt = assumed(1, "zero=3: parameters are gathered so many uses ahead", 0, 2)
    bucket_bytes: NonNegativeInt = assumed(0, "gradients are reduced as they come (0), or in buckets of this size", 25_000_000)
    reduce: Literal["once", "every_call"] = assumed(
        "once", "dW of a recurrent layer is reduced once, or at every time step", "every_call")
    stored: Literal["shard", "whole"] = assumed(
        "shard", "model-parallel: a device keeps its own part of a feature map, or all of it", "whole")
    exchange: Literal["all_reduce", "reduce_scatter"] = assumed(
        "all_reduce", "model-parallel: every device gets all of dX (Fig. 4), or the part that it goes on with", "reduce_scatter")
    # fmt: on
    _cache: BoundedCache = field(default_factory=lambda: BoundedCache(entries=4096), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        owner = type(self).__name__
        if isinstance(self.algorithm, str):
            raise BadInput(
                f"{owner}: algorithm={self.algorithm!r}: how exchanges are done is called collectives (collectives='tree')"
            )
        if isinstance(self.device, type) or not isinstance(self.device, Device):
            raise BadInput(f"{owner}: device must be a device such as an Accelerator, got {self.device!r}")
        require_parts(self)
        ratio: Any = self.compression
        if ratio != "masks" and (isinstance(ratio, bool) or not isinstance(ratio, int | float) or not ratio >= 1):
            raise BadInput(f"{owner}: compression must be a ratio of at least 1, or 'masks', got {self.compression!r}")

    @property
    def masks_note(self) -> str:
        """The device's note on masks, unless the overlay's copies leave zeros out."""
        if self.compression == "masks" or not isinstance(self.device, ExplainsMasks):
            return ""
        return self.device.masks_note

    @property
    def topology(self) -> Topology:
        raise NotImplementedError(f"{type(self).__name__} has no graph of its own")

    @property
    def crossing_ratio(self) -> float:
        """Compression of paged tensors by a unit in the memory: bytes of a tensor over bytes on the wires."""
        return 1.0

    @property
    def rings(self) -> tuple[Ring, ...]:
        """The rings that the node's links form, each in the directions used."""
        return self._cache.get("rings", lambda: rings(self.topology, directions=self.directions))

    def collective(self, kind: str, size_bytes: int) -> Timing:
        """An exchange between all devices; equal ones are timed once."""
        return self._cache.get((kind, size_bytes), lambda: self._timing(kind, size_bytes))

    def _timing(self, kind: str, size_bytes: int) -> Timing:
        return timing(
            kind,
            size_bytes,
            self.topology,
            self.rings if self.collectives in ("ring", "auto") else (),
            algorithm=self.collectives,
            message_bytes=self.message_bytes,
            split=self.split,
        )

    @property
    def default_cluster_size(self) -> int:
        return 1

    @property
    def devices_per_cluster(self) -> int:
        """Devices that share a model under Direct: `cluster_size`, or by default the devices of a system node; 1 otherwise."""
        if not isinstance(self.algorithm, Direct):
            return 1
        size = self.cluster_size or self.default_cluster_size
        if self.devices % size:
            raise BadInput(
                f"{type(self).__name__}: {self.devices} devices do not divide into clusters of {size}: give another cluster_size"
            )
        return size

    def cluster_collective(self, kind: str, size_bytes: int, cluster: int) -> Timing:
        """An exchange inside every cluster of `cluster` neighbours, all clusters at the same time."""
        if cluster == self.devices:
            return self.collective(kind, size_bytes)
        return self._cache.get(("cluster", kind, size_bytes, cluster), lambda: self._cluster_collective(kind, size_bytes, cluster))

    def _cluster_collective(self, kind: str, size_bytes: int, cluster: int) -> Timing:
        from trainyard.systems.node.neighbours import inside

        return inside(self, kind, size_bytes, cluster)

    @property
    def peaks(self) -> Peaks:
        return total_peaks(self.device, self.devices)

    def unused_assumptions(self, step: Step) -> frozenset[str]:
        """Assumptions without effect here: those of another parallelism, and of the overlay if nothing is paged."""
        unused = {"parallel", "algorithm.order", "algorithm.recheck", "algorithm.adaptive"}
        if self.parallel in ("data", "expert"):
            unused |= {"stored", "exchange"}
        if self.parallel != "expert" or (self.experts.ranks or self.devices) == 1:
            unused |= {"experts"}
        if self.zero != 3:
            unused |= {"prefetch"}
        if self.parallel == "model":
            unused |= {"reduce", "bucket_bytes"}
        if self.parallel == "pipeline":
            unused |= {"stored", "exchange", "reduce", "window", "depth", "recompute", "page_bytes", "contention", "split"}
            if self.devices // (self.pipeline.stages or self.devices) < 3:  # a ring of two replicas uses both directions anyway
                unused |= {"directions"}
        if self.overlay != "all":
            unused |= {"window", "depth"}
        if self.overlay == "off":
            unused |= {"recompute", "page_bytes", "contention"}
        if self.devices == 1:
            unused |= {"directions", "split", "contention", "message_bytes", "bucket_bytes", "reduce", "stored", "exchange"}
        return frozenset(unused)

    def plan(self, step: Step, masks: Masks | None = None) -> Plan:
        from trainyard.systems.node.plan import plan

        return plan(self, step, masks)

    def device_step(self, step: Step, masks: Masks | None = None) -> tuple[Step, Masks | None]:
        from trainyard.masks.shards import shards
        from trainyard.systems.node.plan import device_step

        own_step = device_step(self, step)
        return own_step, shards(masks, step, own_step)


@part
class DeviceCentric(Node):
    """DC-DLA: all links between the devices (a cube mesh of eight, as DGX-1V's); host memory behind PCIe.

    >>> from trainyard.machines.presets.mcdla import DEVICE
    >>> [ring.hops for ring in DeviceCentric(device=DEVICE).rings]
    [8, 8, 8, 8, 8, 8]
    """

    socket_bytes_per_s: float = 80e9
    # fmt: off
    pcie_bytes_per_s: float = assumed(12e9, "what copies get of PCIe gen3 x16, each way", 10.6e9, 16e9)
    devices_per_switch: int = assumed(2, "devices that share a PCIe switch's uplink (DGX-1: two)", 1, 4)
    pcie_latency_s: float = assumed(500e-9, "of one PCIe link; a switch stands between two", 0.0, 2e-6)
    # fmt: on

    @property
    def topology(self) -> Topology:
        return _built(
            "cube_mesh",
            devices=self.devices,
            links=self.links,
            link_bytes_per_s=self.link_bytes_per_s,
            link_latency_s=self.link_latency_s,
            pcie_bytes_per_s=self.pcie_bytes_per_s,
            pcie_latency_s=self.pcie_latency_s,
            devices_per_switch=self.devices_per_switch,
            memory_bytes_per_s=self.socket_bytes_per_s,
        )


@part
class HostCentric(Node):
    """HC-DLA: `host_links` of each device's links go to its socket, the others to the devices (Sec. IV: half of them)."""

    host_links: int = 3
    socket_bytes_per_s: float = 300e9
    devices_per_socket: int = 4

    @property
    def topology(self) -> Topology:
        return _built(
            "host_centric",
            devices=self.devices,
            links=self.links,
            host_links=self.host_links,
            link_bytes_per_s=self.link_bytes_per_s,
            link_latency_s=self.link_latency_s,
            devices_per_socket=self.devices_per_socket,
            memory_bytes_per_s=self.socket_bytes_per_s,
        )


SHAPES = {"ring": "memory_ring", "star": "star", "folded": "folded_star"}


@part
class MemoryCentric(Node):
    """MC-DLA: memory-nodes among the devices: in every ring next to each device (Fig. 7c, 8), or as a star (Fig. 7a, folded: 7b).

    >>> from trainyard.machines.presets.mcdla import DEVICE
    >>> sorted({ring.hops for ring in MemoryCentric(device=DEVICE, shape="folded").rings})
    [8, 12, 20]
    """

    shape: Literal["ring", "star", "folded"] = "ring"
    memory_node: MemoryNode = field(default_factory=MemoryNode)

    def __post_init__(self) -> None:
        Node.__post_init__(self)  # the node's wires are its memory-nodes' links
        object.__setattr__(self, "memory_node", replace(self.memory_node, link_bytes_per_s=self.link_bytes_per_s))

    @property
    def crossing_ratio(self) -> float:
        return self.memory_node.crossing_ratio

    @property
    def topology(self) -> Topology:
        return _built(
            SHAPES[self.shape],
            devices=self.devices,
            links=self.links,
            link_bytes_per_s=self.link_bytes_per_s,
            link_latency_s=self.link_latency_s,
            **self.memory_node.as_store(),
        )


@part
class Wired(Node):
    """Any graph of devices, memories, sockets and switches.

    The graph defines the devices, links and rates: a field that contradicts it is refused, one that agrees is not stored.

    >>> from trainyard.machines.presets.mcdla import DEVICE
    >>> Wired(device=DEVICE, graph=topologies.one_device(link_bytes_per_s=12e9), link_bytes_per_s=25e9)
    Traceback (most recent call last):
    trainyard.errors.BadInput: Wired: link=25 GB/s, but the graph has its own (12 GB/s): change bytes_per_s in graph.wires
    """

    graph: Topology
    devices: int = 0
    links: int | None = None  # type: ignore[assignment]  # only builders of graphs need the field
    link_bytes_per_s: float | None = None  # type: ignore[assignment]  # as above
    link_latency_s: float | None = None  # type: ignore[assignment]  # as above

    def __post_init__(self) -> None:
        require_parts(self)
        count = len(self.graph.devices)
        object.__setattr__(self, "devices", self.devices or count)
        Node.__post_init__(self)
        wires = self.graph.wires
        self._agree("devices", {count}, "", "places of kind 'device' in graph.places")
        self._agree("links", {len(self.graph.wires_at(name)) for name in self.graph.devices}, "", "graph.wires")
        self._agree("link_bytes_per_s", {wire.bytes_per_s for wire in wires}, "B/s", "bytes_per_s in graph.wires")
        self._agree("link_latency_s", {wire.latency_s for wire in wires}, "s", "latency_s in graph.wires")

    def _agree(self, name: str, graph_values: set[float], unit: str, where: str) -> None:
        """Refuses a field that contradicts the graph; one that agrees is cleared, so that the graph can be replaced."""
        value: float | None = getattr(self, name)
        if value is not None and graph_values != {value}:
            own = ", ".join(show(number, unit) for number in sorted(graph_values)) or "none"
            key = name.removesuffix("_bytes_per_s").removesuffix("_s")
            raise BadInput(f"Wired: {key}={show(value, unit)}, but the graph has its own ({own}): change {where}")
        if name != "devices":
            object.__setattr__(self, name, None)

    @property
    def topology(self) -> Topology:
        return self.graph


@lru_cache(maxsize=256)
def _built(builder: str, **numbers: Any) -> Topology:
    """One object for equal numbers: results derived from a graph are cached by its identity."""
    if builder == "folded_star":
        return topologies.star(folded=True, **numbers)
    build: Callable[..., Topology] = getattr(topologies, builder)
    return build(**numbers)
