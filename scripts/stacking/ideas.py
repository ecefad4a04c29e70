"""The machines of the study: one device, one node, four places for an idea; and the check that nothing else differs.

The device is IGO's large NPU (Table 3), whose 128 x 128 MACs are also SIGMA's and TensorDash's size (128 x 128 multipliers; 256
tiles of 4 x 4 x 4), with each array in its place; the node is MC-DLA's (Table II: eight devices, six links of 25 GB/s, PCIe gen3 to
the host). MACs, clock, scratchpad, DRAM, precision, technology, links and policies are those of one object, changed in one place at
a time. What an array brings along (TensorDash's schedulers, SIGMA's networks) stays its own, in cycles and in joules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Literal

from trainyard.arrays.dense.systolic import Systolic
from trainyard.arrays.sigma import Sigma
from trainyard.arrays.tensordash import TensorDash
from trainyard.devices import Accelerator
from trainyard.errors import BadInput, UnknownName
from trainyard.ir import Array
from trainyard.machines.presets.igo import NPU
from trainyard.machines.presets.mcdla import DC_DLA, MCDLA_B
from trainyard.mapping.algorithms import Direct, Synchronous
from trainyard.systems.node.systems import Node

ArrayName = Literal["systolic", "tensordash", "sigma"]
# fmt: off
ARRAYS: Mapping[str, Array] = {
    "systolic":   Systolic(rows=128, columns=128, dataflow="ws"),                # IGO, Table 3; SIGMA's TPU
    "tensordash": TensorDash(lanes=4, depth=4, rows=4, columns=4, tiles=256),    # TensorDash, Table II
    "sigma":      Sigma(dpes=128, multipliers=128, bandwidth=128),               # SIGMA, Sec. V
}
# fmt: on
ORDER = "cost"
"""IGO's orders, and the sequential one where none of them is faster: the idea as it would be used, never a loss."""
TAU = 31
"""DIRECT's staleness threshold; not printed, the preset's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """Which array there is, and which of the other ideas."""

    array: ArrayName = "systolic"
    order: bool = False
    memory: bool = False
    exchange: bool = False

    def __post_init__(self) -> None:
        if self.array not in ARRAYS:
            raise UnknownName("array of the study", str(self.array), ARRAYS)

    @property
    def ideas(self) -> frozenset[str]:
        found = {name for name in ("order", "memory", "exchange") if getattr(self, name)}
        return frozenset(found | ({"array"} if self.array != "systolic" else set()))

    @property
    def text(self) -> str:
        """As machines are written."""
        device = f"npu(array={self.array},order={ORDER if self.order else 'sequential'},reuse=lru)"
        algorithm = f",algorithm=locality-aware(tau={TAU})" if self.exchange else ""
        return f"{'mcdla-b' if self.memory else 'dc-dla'}(device={device}{algorithm})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all machines share and may be asked for otherwise: times the device's DRAM, times the links, how maps are paged."""

    dram: float = 1.0
    links: float = 1.0
    overlay: Literal["all", "as_needed", "off"] = "all"


BASE = Setting()


def combinations() -> tuple[Combination, ...]:
    """All 24, arrays last."""
    flags = (False, True)
    return tuple(
        Combination(array=array, order=order, memory=memory, exchange=exchange)  # type: ignore[arg-type]  # a name of ARRAYS
        for array in ARRAYS
        for order in flags
        for memory in flags
        for exchange in flags
    )


@cache
def device(array: str, order: bool, setting: Setting = BASE) -> Accelerator:
    """One object for equal ones, which remembers what its products cost.

    `reuse="lru"` in both orders: a fused order keeps tiles, and what keeping them is worth is not the order's merit.
    """
    dram = NPU.dram_bytes_per_s * setting.dram
    return replace(NPU, array=ARRAYS[array], order=ORDER if order else "sequential", reuse="lru", dram_bytes_per_s=dram)


def machine(chosen: Combination, setting: Setting = BASE, capacity_bytes: int | None = None) -> Node:
    """One of the 24."""
    plain: Node = MCDLA_B if chosen.memory else DC_DLA
    changes: dict[str, Any] = {
        "device": device(chosen.array, chosen.order, setting),
        "link_bytes_per_s": plain.link_bytes_per_s * setting.links,
        "overlay": setting.overlay,
        "capacity_bytes": capacity_bytes,
        "algorithm": Direct(TAU) if chosen.exchange else Synchronous(),
    }
    if not chosen.memory:
        changes["pcie_bytes_per_s"] = DC_DLA.pcie_bytes_per_s * setting.links
    return replace(plain, **changes)


IDEAS_OF_DEVICES, IDEAS_OF_NODES = {"array", "order"}, {"device", "algorithm"}
SHARED_BY_DEVICES = (
    *(one.name for one in fields(Accelerator) if one.init and one.name not in IDEAS_OF_DEVICES),
    "peak_macs_per_cycle",
)
SHARED_BY_NODES = tuple(one.name for one in fields(Node) if one.init and one.name not in IDEAS_OF_NODES)
"""Whatever the memory: what a design has beside these is the idea's."""


def require_equal(machines: Iterable[Node]) -> None:
    """Refuses machines that differ in anything but the four places."""
    first, *others = machines
    for other in others:
        for names, here, there in ((SHARED_BY_NODES, first, other), (SHARED_BY_DEVICES, first.device, other.device)):
            for name in names:
                one, two = getattr(here, name), getattr(there, name)
                if one != two:
                    raise BadInput(f"machines of a comparison must be equal but for the ideas: {name} is {one!r} and {two!r}")
        if first.peaks != other.peaks:
            raise BadInput(f"machines of a comparison must have equal peaks: {first.peaks} and {other.peaks}")
