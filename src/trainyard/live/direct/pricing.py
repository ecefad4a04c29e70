"""The time and energy of a collective on the simulated machine: one process represents one cluster of its DPUs.

A machine is anything with `price(kind, size_bytes, world_size)`; a system of `trainyard.systems.pim.systems` is one through
`Priced`. `size_bytes` is what one cluster gives (all_reduce, reduce, all_gather, gather, reduce_scatter, all_to_all, send), or gets
(broadcast, scatter). Kinds that begin with `local_` stay inside a cluster. Nothing else of the room knows how a price is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from trainyard.errors import BadInput, UnknownName
from trainyard.ir import Step
from trainyard.systems.pim.machine import RANK

KINDS = (
    "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all", "send", "barrier",
    "local_all_reduce",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Price:
    """Simulated seconds and joules, of the whole group."""

    seconds: float
    joules: float


@runtime_checkable
class Machine(Protocol):
    """What prices a collective among `world_size` clusters."""

    def price(self, kind: str, size_bytes: int, world_size: int) -> Price: ...


@dataclass(frozen=True, slots=True)
class Priced:
    """A simulated system as a Machine. Its clusters keep their size; there are as many as the run has."""

    system: Any
    _scaled: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def price(self, kind: str, size_bytes: int, world_size: int) -> Price:
        return Price(*self.scaled(world_size).collective(kind, size_bytes, world_size))

    def price_step(self, step: Step) -> Price:
        """A cluster's local training step, its reduction inside the cluster not included: the hook prices that."""
        return Price(*self.system.local_step(step))

    def scaled(self, clusters: int) -> Any:
        if clusters not in self._scaled:
            members = self.system.cluster_size or min(RANK, self.system.dpus)
            self._scaled[clusters] = replace(self.system, dpus=clusters * members, cluster_size=members)
        return self._scaled[clusters]

    def describe(self, clusters: int) -> str:
        scaled = self.scaled(clusters)
        return f"{type(scaled).__name__}: {scaled.dpus} DPUs in clusters of {scaled.cluster_size}"


def machine(priced: Machine | Any) -> Machine:
    """A Machine from a Machine, a simulated system, or the name "direct" or "pim-opt"."""
    if isinstance(priced, str):
        from trainyard.systems.pim import systems as pim

        systems = {"direct": pim.DpuToDpu, "pim-opt": pim.HostMediated}
        if priced not in systems:
            raise UnknownName("machine", priced, systems, "the backend `direct`")
        priced = systems[priced]()
    if isinstance(priced, Machine):
        return priced
    if hasattr(priced, "collective"):
        return Priced(priced)
    raise BadInput(f"a machine of the backend `direct` has price(kind, size_bytes, world_size), which {priced!r} has not")
