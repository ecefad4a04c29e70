"""PIM machines: DPUs that exchange through the host (PIM-Opt), and DPUs that send to each other (DIRECT).

P. P. Kulkarni: DIRECT: Enabling Scalable Processing-In-Memory via DPU-to-DPU Communication.
S. Rhyner et al.: PIM-Opt: Demystifying Distributed Optimization Algorithms on a Real-World Processing-In-Memory System. PACT 2024.

The parts that DIRECT adds can be removed one by one: with `agau=None` the DPUs add in software (`systems.pim.software_sums`), with
`dsc=None` exchanges between clusters pass the host, and under an algorithm other than `Direct` a cluster has no model of its own.

| algorithm        | every step            | every exchange on `DpuToDpu`                                                    |
|------------------|-----------------------|---------------------------------------------------------------------------------|
| Direct           | AGAUs reduce clusters | clusters enter by token, CrossbarReduce, broadcast to all DPUs                  |
| DecentralizedSgd |                       | every DPU sends its model to its two neighbours                                 |
| ElasticAveraging |                       | one DPU at a time: its model to the centre and the centre's back; no barrier    |
| any other        |                       | AGAUs reduce clusters, CrossbarReduce, broadcast to all DPUs, a barrier         |
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from trainyard.devices.dpu.memory import split_over
from trainyard.engine import Simulation
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.agau.unit import Agau
from trainyard.hardware.crossbar.hierarchy import Crossbar, Exchanged
from trainyard.hardware.dpu.host_link import HostExchange, Transfers
from trainyard.hardware.dsc.token_service import TokenService
from trainyard.hardware.dsc.unit import Dsc
from trainyard.hardware.formats.qsgd import Qsgd
from trainyard.ir import Masks, Step, assumed
from trainyard.mapping.algorithms import Algorithm, Direct, Rates
from trainyard.systems.pim import device_interface, software_sums
from trainyard.systems.pim.device_interface import software_sum
from trainyard.systems.pim.machine import RANK, Pim
from trainyard.systems.pim.rounds import TimedEvent, TokenSource
from trainyard.units import PICOSECONDS_PER_SECOND, show

if TYPE_CHECKING:
    from trainyard.hardware.crossbar.analytic import Analytic
    from trainyard.hardware.crossbar.exchanges import Simulated

WORD_BYTES = 4
COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all", "send", "barrier",
    "local_all_reduce",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMediated(Pim):
    """PIM-Opt: DPUs send their data to the host, which averages it and sends the mean back.

    >>> import trainyard as ty
    >>> machine = HostMediated(dpus=64)
    >>> machine.rates(ty.zoo.load("linear")).message_bytes
    16384
    """

    # fmt: off
    transfers: Literal["serial", "ranks_in_turn", "rank_parallel"] = assumed(
        "rank_parallel", "rank-parallel with a broadcast, as real systems; Eq. 1 has them rank after rank, or DPU after DPU",
        "ranks_in_turn", "serial")
    # fmt: on

    def __post_init__(self) -> None:
        Pim.__post_init__(self)
        if self.transfers not in get_args(Transfers):
            raise UnknownName("transfers", str(self.transfers), get_args(Transfers), where="HostMediated")
        if self.split:
            raise BadInput("HostMediated: only DPUs that talk to each other can share a model (split): take the machine 'direct'")
        if isinstance(self.algorithm, Direct):
            raise BadInput(
                "HostMediated: there are no clusters to train with Direct: take another algorithm, or the machine 'direct'"
            )

    @property
    def dpus_per_cluster(self) -> int:
        if self.cluster_size is None and (self.speeds or self.other is not None):
            return min(RANK, self.dpus)
        return self.dpus if self.cluster_size is None else self.cluster_size

    def unused_assumptions(self, step: Step) -> frozenset[str]:
        served = {"serial": "host.threads", "rank_parallel": "host.channels"}
        idle = {path for kind, path in served.items() if kind != self.transfers}
        return Pim.unused_assumptions(self, step) | {"cluster_size"} | ({"host", "transfers"} if self.dpus == 1 else idle)

    def exchange(self, size_bytes: int, participants: int | None = None) -> HostExchange:
        """The data of all DPUs to the host, and the mean (or a neighbour's data) back; with a centre, one DPU's data alone."""
        dpus = self.dpus if participants is None else participants
        between = self.algorithm.between
        return self.host.exchange(
            1 if between == "centre" else dpus, size_bytes, transfers=self.transfers, broadcast=between != "neighbours"
        )

    def collective(self, kind: str, size_bytes: int, clusters: int) -> tuple[float, float]:
        """Seconds and joules of a collective between `clusters` clusters: all data passes the host, DPU by DPU or rank by rank."""
        members = self.cluster_size or RANK
        dpus = members if kind.startswith("local_") else clusters * members
        event = self._host_event(kind, self.host.exchange(dpus, size_bytes, transfers=self.transfers))
        seconds = event.ps / PICOSECONDS_PER_SECOND
        return seconds, sum(event.energy.values()) + clusters * members * device_interface.static_w(self.dpu) * seconds

    def _exchange_event(self, step: Step) -> TimedEvent | None:
        if self.dpus == 1:
            return None
        return self._host_event("exchange", self.exchange(self.message_bytes(step)))

    def _rates(self, step: Step, masks: Masks | None) -> Rates:
        size = self.message_bytes(step)
        event = self._exchange_event(step)
        exchange_s = 0.0 if event is None else event.ps / PICOSECONDS_PER_SECOND
        return Rates(
            workers=self.dpus,
            cluster_size=1,
            step_s=self._worker_step_s(step, masks),
            reduce_s=0.0,
            exchange_s=exchange_s,
            update_s=exchange_s,
            token_s=0.0,
            message_bytes=size,
            exchange_bytes=0 if event is None else self._exchange_bytes(event),
            reduce_bytes=0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DpuToDpu(Pim):
    """DIRECT: clusters with an AGAU each, a DSC that grants tokens to them, and a hierarchy of crossbars that connects all DPUs.

    >>> machine = DpuToDpu(dpus=256)
    >>> machine.clusters, machine.dpus_per_cluster
    (4, 64)
    """

    algorithm: Algorithm = field(default_factory=Direct)
    crossbar: Crossbar = field(default_factory=Crossbar)
    agau: Agau | None = field(default_factory=Agau)
    dsc: Dsc | None = field(default_factory=Dsc)
    fidelity: Literal["message", "analytic"] = "message"

    def __post_init__(self) -> None:
        Pim.__post_init__(self)
        for name, value, kind in (("crossbar", self.crossbar, Crossbar), ("agau", self.agau, Agau), ("dsc", self.dsc, Dsc)):
            if not isinstance(value, kind) and (value is not None or name == "crossbar"):
                raise BadInput(f"DpuToDpu: {name} must be a {kind.__name__}, got {value!r}")
        if self.fidelity not in ("message", "analytic"):
            raise UnknownName("fidelity", str(self.fidelity), ("message", "analytic"), where="DpuToDpu")
        most = math.prod(level.fan_in for level in self.crossbar.levels)
        if self.dpus > most:
            raise BadInput(f"DpuToDpu: {self.dpus} DPUs, but the levels of the crossbar hold {most}: add one, or widen a fan_in")
        object.__setattr__(self, "crossbar", self.crossbar.for_units(self.dpus))
        if self.dsc is not None and self.clusters > self.dsc.entries:
            raise BadInput(
                f"DpuToDpu: {self.clusters} clusters do not fit the DSC's table of {self.dsc.entries}: "
                f"write dsc.entries={self.clusters}, or larger clusters"
            )

    @property
    def fabric_w(self) -> float:
        """Leakage of crossbars, AGAUs and the DSC."""
        parts = (self.clusters * self.agau.static_w if self.agau else 0.0, self.dsc.static_w if self.dsc else 0.0)
        return self.crossbar.static_w + sum(parts)

    def area(self) -> dict[str, float]:
        """Square metres of what is added to the DPUs, by component: crossbars, the AGAUs of all clusters, the DSC."""
        agaus = {} if self.agau is None else {name: self.clusters * m2 for name, m2 in self.agau.areas.items()}
        return {**self.crossbar.areas, **agaus, **(self.dsc.areas if self.dsc is not None else {})}

    def unused_assumptions(self, step: Step) -> frozenset[str]:
        unused = Pim.unused_assumptions(self, step)
        if self.dsc is not None:
            unused |= {"host"}
        return unused | {"crossbar.message_bytes"} if self.message_bytes(step) <= 4096 else unused

    # exchanges over the crossbars

    @property
    def fabric(self) -> Simulated | Analytic:
        """The crossbars' cost model: message by message or in closed form."""
        return self.crossbar.simulate if self.fidelity == "message" else self.crossbar.analytic

    def _exchanged(self, kind: Literal["local", "up", "all_reduce"], size_bytes: int) -> Exchanged:
        """One exchange of all clusters; equal ones are simulated once."""
        return self._cache.get((kind, size_bytes), lambda: self._simulated(kind, size_bytes))

    def _simulated(self, kind: Literal["local", "up", "all_reduce"], size_bytes: int) -> Exchanged:
        members = self.dpus_per_cluster
        if self.agau is None:
            sums = {"local": software_sums.local, "up": software_sums.scatter, "all_reduce": software_sums.across}[kind]
            return sums(self.crossbar, size_bytes, members, software_sum(self.dpu)[0], analytic=self.fidelity == "analytic")
        if kind == "all_reduce":
            return self.fabric.all_reduce(size_bytes, members, agau=self.agau, members=True)
        return self.fabric.local(size_bytes, members, agau=self.agau, back=kind == "local")

    def _energy(self, exchanged: Exchanged, sums: Mapping[str, float], dsc: Mapping[str, float]) -> dict[str, float]:
        """Dynamic joules of an exchange by component."""
        joules = {"crossbar": sum(count * self.crossbar.joules[event] for event, count in exchanged.events.items())}
        if self.agau is not None:
            joules["agau"] = sum(count * self.agau.joules[event] for event, count in sums.items())
        else:
            joules["dpu sum"] = software_sum(self.dpu)[1] * sums.get("software_byte", 0.0)
        if self.dsc is not None:
            joules["dsc"] = self._joules_of_dsc(dsc)
        return joules

    def _sums(self, contributions: int, elements: int, times: int) -> dict[str, float]:
        if contributions < 2:
            return {}
        if self.agau is None:
            return {"software_byte": 4.0 * (contributions - 1) * elements * times}
        return {event: count * times for event, count in self.agau.events(contributions, elements).items()}

    def _event(
        self, name: str, exchanged: Exchanged, sums: Mapping[str, float], dsc: Mapping[str, float], extra_s: float = 0.0
    ) -> TimedEvent:
        seconds = exchanged.time_s + extra_s
        moved = {
            (f"crossbar {level.name}", name, "write"): count
            for level, count in zip(self.crossbar.levels, exchanged.bytes_by_level, strict=True)
        }
        return TimedEvent(
            name=name,
            ps=round(seconds * PICOSECONDS_PER_SECOND),
            resource="crossbar",
            energy=self._energy(exchanged, sums, dsc),
            traffic={key: count for key, count in moved.items() if count},
        )

    def _sent_bytes(self, step: Step) -> int:
        """Bytes that a cluster sends to the others: its model, or its model packed by QSGD."""
        size = self.message_bytes(step)
        if isinstance(self.algorithm, Direct) and self.algorithm.compression_bits is not None:
            return self._coding.packed_bytes(size // WORD_BYTES)
        return size

    @property
    def _coding(self) -> Qsgd:
        assert isinstance(self.algorithm, Direct)
        return Qsgd(bits=self.algorithm.compression_bits or 4)

    def _reduce_event(self, step: Step) -> TimedEvent | None:
        """The reduction of gradients inside a cluster and the return of the new weights; all clusters at once, booked to each."""
        if self.dpus_per_cluster == 1 or not (isinstance(self.algorithm, Direct) or self.split):
            return None
        size = self.message_bytes(step)
        check_s = 0.0 if self.dsc is None else self.dsc.check_s + self.dsc.barrier_s(self.dpus_per_cluster, "local")
        sums = self._sums(self.dpus_per_cluster, size // WORD_BYTES, self.clusters)
        gather_s, gathered = self._backward_gather(step) if self.split else (0.0, 0)
        event = self._event("reduce", self._exchanged("local", size), sums, {"dsc_staleness": self.clusters}, check_s + gather_s)
        share, level = 1 / self.clusters, f"crossbar {self.crossbar.levels[0].name}"
        energy = {component: joules * share for component, joules in event.energy.items()}
        traffic = {key: round(count * share) for key, count in event.traffic.items()}
        if gathered:
            energy["crossbar"] += gathered * self.crossbar.joules["crossbar_level0_byte"]
            traffic[level, "shards", "write"] = gathered
        return replace(event, resource="AGAU", energy=energy, traffic=traffic)

    def _backward_gather(self, step: Step) -> tuple[float, int]:
        """Seconds and bytes of one cluster whose DPUs share its parameters, in addition to the reduction of its gradients.

        Gradients go up to the AGAU as without `split`; the parameters of the next forward pass come down. The second gather, for
        the backward pass, goes through every DPU's own port, the narrowest link that copies of a shard pass.
        """
        shared, port = split_over(step, self.dpus_per_cluster, device_interface.precision(self.dpu)), self.crossbar.levels[0]
        gathered = max(0, shared.gathered_bytes - self.message_bytes(step))
        return gathered / port.bytes_per_s, gathered * self.dpus_per_cluster

    def _exchange_event(self, step: Step) -> TimedEvent | None:
        if self.dpus == 1 or (self.clusters == 1 and isinstance(self.algorithm, Direct)):
            return None
        size, sent = self.message_bytes(step), self._sent_bytes(step)
        if self.algorithm.between in ("neighbours", "centre"):
            return self._event("exchange", self._point_to_point(size), {}, {})
        elements, sums, parts = size // WORD_BYTES, {}, []
        if not (isinstance(self.algorithm, Direct) or self.split) and self.dpus_per_cluster > 1:
            parts.append(self._exchanged("up" if self.clusters > 1 else "local", size))
            sums = self._sums(self.dpus_per_cluster, elements, self.clusters)
        if self.dsc is None and self.clusters > 1:
            return self._through_host(sent, parts, sums)
        if self.clusters > 1:
            parts.append(self._across(step, sent))
            sums = _added(sums, self._sums(self.clusters, elements, 1))
        if not parts:
            return None
        exchanged = sum(parts[1:], parts[0])
        if self.dsc is None:
            return self._event("exchange", exchanged, sums, {})
        if isinstance(self.algorithm, Direct):
            notice_s = 2 * self.dsc.hop_s  # the last token's return, and the DSC's notice to all that the round is complete
            return self._event("exchange", exchanged, sums, {"dsc_message": float(self.clusters)}, notice_s)
        return self._event("exchange", exchanged, sums, self.dsc.barrier_events(self.clusters), self.dsc.barrier_s(self.clusters))

    def _across(self, step: Step, sent_bytes: int) -> Exchanged:
        """CrossbarReduce and the broadcast; with QSGD the AGAUs decode packed data, add it as words and pack the sum.

        Under `literal` a packed gradient goes up and an unpacked model comes down: half of each exchange.
        """
        plain = self._exchanged("all_reduce", sent_bytes)
        size = self.message_bytes(step)
        if sent_bytes == size:
            return plain
        elements, packed = size // WORD_BYTES, sent_bytes // WORD_BYTES
        operations = self._coding.decode_ops(elements).total + self._coding.encode_ops(elements).total
        if self.agau is None:
            coding = (size - sent_bytes) / software_sum(self.dpu)[0] + operations * WORD_BYTES / software_sum(self.dpu)[0]
        else:
            sums = self.agau.seconds(self.clusters, elements) - self.agau.seconds(self.clusters, max(1, packed))
            coding = sums + operations / (self.agau.lanes * self.agau.clock_hz)
        moved = plain
        if isinstance(self.algorithm, Direct) and self.algorithm.update == "literal":
            words = self._exchanged("all_reduce", size)
            moved = Exchanged(
                time_s=(plain.time_s + words.time_s) / 2,
                bytes_by_level=tuple((a + b) // 2 for a, b in zip(plain.bytes_by_level, words.bytes_by_level, strict=True)),
                events={name: (plain.events[name] + words.events[name]) / 2 for name in plain.events},
            )
        return replace(moved, time_s=moved.time_s + coding)

    def _point_to_point(self, size_bytes: int) -> Exchanged:
        """Every DPU's model to its two neighbours; or one DPU's model to the centre (DPU 0) and the centre's model back."""

        def simulate() -> Exchanged:
            if self.algorithm.between == "neighbours":
                return self.fabric.neighbours(size_bytes, 1)
            last = self.dpus - 1
            return self.fabric.send(last, 0, size_bytes) + self.fabric.send(0, last, size_bytes)

        return self._cache.get((self.algorithm.between, size_bytes), simulate)

    def _through_host(self, size_bytes: int, inside: Sequence[Exchanged], sums: Mapping[str, float]) -> TimedEvent:
        """Without a DSC clusters exchange through the host: the data is spread over a cluster's DPUs for full-rank transfers.

        Each DPU receives its part of the mean, which the cluster then gathers.
        """
        group = self.dpus_per_cluster
        through = self.host.exchange(self.dpus, -(-size_bytes // group), transfers="rank_parallel", broadcast=False)
        spread = software_sums.gather(self.crossbar, size_bytes, group, analytic=self.fidelity == "analytic")
        event = self._host_event("exchange", through)
        for exchanged, own_sums in (*((local, sums) for local in inside), (spread, {})):
            more = self._event("exchange", exchanged, own_sums, {})
            event = replace(
                event, ps=event.ps + more.ps, energy=_added(event.energy, more.energy), traffic=_added(event.traffic, more.traffic)
            )
        return event

    def _tokens(self) -> dict[str, Any]:
        algorithm, dsc = self.algorithm, self.dsc
        if not isinstance(algorithm, Direct) or dsc is None or self.clusters == 1:
            return {}

        def token_source(simulation: Simulation) -> TokenSource:
            return TokenService(simulation, dsc, self.clusters, algorithm.order)

        events = dsc.token_events()
        token = TimedEvent(
            name="token",
            ps=0,
            resource="DSC",
            energy={"dsc": self._joules_of_dsc(events)},
            bound="token",
        )
        enter = 0 if algorithm.update == "literal" else round(dsc.enter_s * PICOSECONDS_PER_SECOND)
        return {"token": token, "token_source": token_source, "enter_ps": enter, "priorities": dsc.priority_levels}

    # collectives outside training

    def collective(self, kind: str, size_bytes: int, clusters: int) -> tuple[float, float]:
        """Seconds and joules of a collective between `clusters` clusters; `local_all_reduce` is inside all clusters at once.

        `size_bytes` is what one cluster sends, or receives from another. All-reduce is CrossbarReduce; gathers, scatters and sends
        go point to point from the first DPU of each cluster; broadcasts are copied by the switches.
        """
        if kind not in COLLECTIVES:
            raise UnknownName("collective", kind, COLLECTIVES, where="DpuToDpu")
        machine = self._with_clusters(clusters)
        event = machine._collective_event(kind, size_bytes)
        seconds = event.ps / PICOSECONDS_PER_SECOND
        return seconds, sum(event.energy.values()) + machine.idle_w * seconds

    def _with_clusters(self, clusters: int) -> DpuToDpu:
        """A machine with `clusters` clusters of the same DPUs."""
        if clusters == self.clusters:
            return self
        entries = None if self.dsc is None else replace(self.dsc, entries=max(self.dsc.entries, clusters))
        changed = replace(
            self,
            dpus=clusters * self.dpus_per_cluster,
            cluster_size=self.dpus_per_cluster,
            other=None,
            other_clusters=0,
            dsc=entries,
        )
        return self._cache.get(("clusters", clusters), lambda: changed)

    def _collective_event(self, kind: str, size_bytes: int) -> TimedEvent:
        elements, clusters = size_bytes // WORD_BYTES, self.clusters
        if kind == "local_all_reduce":
            return self._event(
                kind, self._exchanged("local", size_bytes), self._sums(self.dpus_per_cluster, elements, clusters), {}
            )
        wait_s = self.host.exchange(clusters, 0).time_s if self.dsc is None else self.dsc.overhead_s(clusters)
        events = {} if self.dsc is None else self.dsc.round_events(clusters)
        if kind == "barrier" or clusters == 1:
            return TimedEvent(
                name=kind, ps=round(wait_s * PICOSECONDS_PER_SECOND), resource="DSC", energy={"dsc": self._joules_of_dsc(events)}
            )
        sums = self._sums(clusters, elements, 1) if "reduce" in kind else {}
        return self._event(kind, self._pattern(kind, size_bytes), sums, events, wait_s)

    def _joules_of_dsc(self, events: Mapping[str, float]) -> float:
        return 0.0 if self.dsc is None else sum(count * self.dsc.joules[event] for event, count in events.items())

    def _pattern(self, kind: str, size_bytes: int) -> Exchanged:
        clusters, fabric = self.clusters, self.fabric
        if kind in ("all_reduce", "reduce"):
            return self._exchanged("all_reduce", size_bytes)
        if kind == "broadcast":
            return fabric.broadcast(size_bytes)
        heads = np.arange(clusters) * self.dpus_per_cluster
        pairs = {"gather": (heads, heads * 0), "scatter": (heads * 0, heads), "send": (heads[:1], heads[1:2])}
        sources, destinations = pairs.get(kind, (np.repeat(heads, clusters), np.tile(heads, clusters)))
        message = -(-size_bytes // clusters) if kind in ("reduce_scatter", "all_to_all") else size_bytes
        return fabric.traffic(sources, destinations, np.full(len(sources), message, np.int64))

    def _rates(self, step: Step, masks: Masks | None) -> Rates:
        reduce, exchange = self._reduce_event(step), self._exchange_event(step)
        exchange_s = 0.0 if exchange is None else exchange.ps / PICOSECONDS_PER_SECOND
        algorithm, dsc = self.algorithm, self.dsc
        token_s = 0.0
        if isinstance(algorithm, Direct) and dsc is not None and self.clusters > 1:
            token_s = dsc.handover_s + (dsc.enter_s if algorithm.update == "averaging" else 0.0)
        clustered = isinstance(algorithm, Direct)
        return Rates(
            workers=self.dpus,
            cluster_size=self.dpus_per_cluster,
            step_s=tuple(g.step_ps / PICOSECONDS_PER_SECOND for g in self.groups(step, masks))
            if clustered
            else self._worker_step_s(step, masks),
            reduce_s=0.0 if reduce is None else reduce.ps / PICOSECONDS_PER_SECOND,
            exchange_s=exchange_s,
            update_s=exchange_s,
            token_s=token_s,
            message_bytes=self.message_bytes(step),
            exchange_bytes=0 if exchange is None else self._exchange_bytes(exchange),
            reduce_bytes=0 if reduce is None else sum(reduce.traffic.values()) * self.clusters,
        )

    def _notes(self, step: Step, rates: Rates) -> list[str]:
        if not isinstance(self.algorithm, Direct) or self.clusters == 1:
            return []
        steps = sorted(set(rates.local_steps(self.algorithm)))
        steps_text = f"{steps[0]}" if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
        clusters = f"{self.clusters} clusters of {self.dpus_per_cluster} DPUs"
        note = f"{clusters} exchange after {steps_text} steps: {show(rates.exchange_s, 's')}"
        if self.dsc is None or self.algorithm.update == "literal":
            return [note]
        return [f"{note}, and {show(self.dsc.rounds_s(self.clusters), 's')} to enter it one after the other, by token"]


def _added(first: Mapping[Any, Any], second: Mapping[Any, Any]) -> dict[Any, Any]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}
