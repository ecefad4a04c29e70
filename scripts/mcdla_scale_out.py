"""MC-DLA on up to 1024 devices (Sec. VI, future work; Fig. 15): planes of switches, and message passing between nodes.

Weak scaling: every device keeps its batch, so that a step should take as long as on one device alone; efficiency is that one's time
over ours. The paper prints no figure for any of it: all numbers here are ours. `video_captions` is Sec. V-E's kind of network, on
devices of 16 GB: what fits as it is, and what fits where feature maps are sent into the pool or made again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from paper_pages import table

from trainyard.errors import BadInput
from trainyard.machines.presets.mcdla import DC_DLA, DEVICE, ETHERNET, INFINIBAND, INFINIBAND_HDR, MCDLA_B, PLANES
from trainyard.results.result import Result
from trainyard.runs import run
from trainyard.systems.node.systems import Node
from trainyard.systems.single import Single
from trainyard.units import parse
from trainyard.workloads import zoo

if TYPE_CHECKING:
    pass

# fmt: off
BATCHES = {"resnet50": 32, "vgg16": 32, "bert-large": 8}  # assumed: samples a device; what fits 16 GB without paging
SIZES = (8, 16, 64, 256, 1024)
FABRICS: Mapping[str, Node] = {
    "planes: halving and doubling":  replace(PLANES, recast="halving_doubling"),
    "planes: hierarchical":          replace(PLANES, recast="hierarchical"),
    "planes: trees":                 replace(PLANES, recast="tree"),
    "planes: torus":                 replace(PLANES, recast="torus"),
    "planes: ring":                  replace(PLANES, recast="ring"),
    "HDR InfiniBand, MC-DLA nodes":  INFINIBAND_HDR,
    "EDR InfiniBand, MC-DLA nodes":  INFINIBAND,
    "100 Gb Ethernet, MC-DLA nodes": ETHERNET,
    "EDR InfiniBand, DC-DLA nodes":  replace(INFINIBAND, design="device-centric"),
    "100 Gb Ethernet, DC-DLA nodes": replace(ETHERNET, design="device-centric"),
}
# fmt: on
TELLING = ("planes: halving and doubling", "EDR InfiniBand, MC-DLA nodes", "EDR InfiniBand, DC-DLA nodes")
"""The best fabric of planes, message passing between the same nodes, and between nodes that page over PCIe."""
Mode = Literal["off", "all"]
MODES: Mapping[Mode, str] = {"off": "nothing paged", "all": "all feature maps paged"}


# ---- weak scaling
class Scaled(NamedTuple):
    """A step on so many devices; `efficiency` is the time of one device that pages nothing over this one's."""

    network: str
    fabric: str
    devices: int
    overlay: Mode
    time_s: float
    efficiency: float
    synchronisation_s: float
    """Exposed."""


@cache
def alone_s(network: str) -> float:
    return run(zoo.load(network, batch=BATCHES[network]), Single(device=DEVICE)).time_s


@cache
def scaled(network: str, fabric: str, devices: int, overlay: Mode) -> Scaled:
    node = replace(FABRICS[fabric], devices=devices, overlay=overlay)
    result = run(zoo.load(network, batch=BATCHES[network] * devices), node)
    exposed = result.by_class.get("synchronisation")
    return Scaled(
        network, fabric, devices, overlay, result.time_s, alone_s(network) / result.time_s, exposed.time_s if exposed else 0.0
    )  # fmt: skip


def weak_scaling(
    networks: Sequence[str] = tuple(BATCHES), sizes: Sequence[int] = SIZES, fabrics: Sequence[str] = tuple(FABRICS)
) -> list[Scaled]:
    """Every network on every fabric, with and without paging."""
    return [
        scaled(network, fabric, devices, overlay)
        for network in networks for overlay in MODES for fabric in fabrics for devices in sizes
    ]  # fmt: skip


# ---- video captioning
VIDEO = "video-captioning"
CAPACITY_BYTES = 16 * 10**9  # Sec. III-B: Volta V100's
SMALL = replace(DEVICE, dram_capacity_bytes=CAPACITY_BYTES)


Paged = Literal["as_needed", "all"]
"""Sent out, or made again, whichever costs less and only what has to be; or every feature map sent out or made again."""


class Video(NamedTuple):
    """A step of so many videos a device. `before_bytes` and `peak_bytes` are a device's, without paging and with it."""

    system: str
    devices: int
    videos: int
    overlay: Paged
    time_s: float
    before_bytes: int
    peak_bytes: int
    paged_bytes: int
    """Of one device, one way."""
    again_bytes: int
    """Of one device, made again in the backward pass."""
    pool_bytes: int


SYSTEMS: Mapping[str, tuple[Node, Sequence[int]]] = {
    "MC-DLA(B)": (MCDLA_B, (8,)),
    "DC-DLA, PCIe": (DC_DLA, (8,)),
    "planes": (PLANES, (64, 1024)),
    "EDR InfiniBand, DC-DLA nodes": (FABRICS["EDR InfiniBand, DC-DLA nodes"], (64, 1024)),
}


@cache
def unpaged(videos: int) -> Result:
    """One device as large as it takes."""
    return run(zoo.load(VIDEO, batch=videos), Single(device=DEVICE))


def most(fits: Callable[[int], bool], limit: int = 64) -> int:
    """The largest number up to a limit that fits, where all smaller ones do; 0: not even one.

    >>> most(lambda videos: videos <= 5)
    5
    """
    return next((count - 1 for count in range(1, limit + 1) if not fits(count)), limit)


def _peak(result: Result) -> int:
    return max((size for name, size in result.peak_memory_bytes.items() if name.startswith("device")), default=0)


def fits_alone(videos: int) -> bool:
    return _peak(unpaged(videos)) <= CAPACITY_BYTES


def made_again(notes: Sequence[str]) -> int:
    """Bytes of one device, as the run tells of its paging.

    >>> made_again(["paging, per device: 3.9 GB sent and fetched, 200 MB made again, 1 GB kept"])
    200000000
    """
    found = re.search(r"fetched, (\S+ \S+) made again", "\n".join(notes))
    return int(parse(found[1], "B")) if found else 0


@cache
def captioned(system: str, devices: int, videos: int, overlay: Paged = "as_needed") -> Video | None:
    """None where even with everything away a layer does not fit."""
    node = replace(SYSTEMS[system][0], device=SMALL, devices=devices, overlay=overlay)
    try:
        result = run(zoo.load(VIDEO, batch=videos * devices), node)
    except BadInput as error:
        if "nothing fits" not in str(error):
            raise
        return None
    away = [level for level in ("remote memory", "host memory") if level in result.traffic_bytes]
    return Video(
        system=system,
        devices=devices,
        videos=videos,
        overlay=overlay,
        time_s=result.time_s,
        before_bytes=_peak(unpaged(videos)),
        peak_bytes=_peak(result),
        paged_bytes=sum(result.traffic_bytes[level] for level in away) // 2 // devices,
        again_bytes=made_again(result.notes),
        pool_bytes=sum(result.peak_memory_bytes.get(level, 0) for level in away),
    )


def video_captions() -> list[Video]:
    """On each system: the most videos a device that fit as they are, and the most that fit with the pool, paged both ways."""
    plain = most(fits_alone)
    paged = most(partial(_fits_pool, "MC-DLA(B)", 8))
    wanted: list[tuple[int, Paged]] = [(plain, "as_needed"), (paged, "as_needed"), (paged, "all")]
    rows = [
        captioned(system, devices, videos, overlay)
        for system, (_, sizes) in SYSTEMS.items() for devices in sizes for videos, overlay in wanted
    ]  # fmt: skip
    return [row for row in rows if row is not None]


def _fits_pool(system: str, devices: int, videos: int) -> bool:
    return captioned(system, devices, videos) is not None


# ---- tables
def scaling_table(rows: Sequence[Scaled]) -> str:
    """Efficiency by fabric and size."""
    sizes = sorted({row.devices for row in rows})
    efficiencies: dict[tuple[str, str, str], dict[int, float]] = {}
    for row in rows:
        efficiencies.setdefault((row.network, MODES[row.overlay], row.fabric), {})[row.devices] = row.efficiency
    cells = ((*names, *(by_size[size] for size in sizes)) for names, by_size in efficiencies.items())
    return table(("network", "paging", "fabric", *map(str, sizes)), cells, digits=3)


def video_table(rows: Sequence[Video]) -> str:
    """Sizes in GB of one device."""
    head = ("system", "devices", "videos a device", "paging", "ms a step", "GB as it is", "GB peak", "GB paged", "GB made again")
    cells = []
    for row in rows:
        sizes = (size / 1e9 for size in (row.before_bytes, row.peak_bytes, row.paged_bytes, row.again_bytes))
        cells.append((row.system, str(row.devices), row.videos, row.overlay, 1e3 * row.time_s, *sizes))
    return table(head, cells, digits=1)
