"""PIM machines: DPUs that exchange through the host (PIM-Opt), and DPUs that talk to each other (DIRECT).

P. P. Kulkarni: DIRECT: Enabling Scalable Processing-In-Memory via DPU-to-DPU Communication.
S. Rhyner et al.: PIM-Opt: Demystifying Distributed Optimization Algorithms on a Real-World Processing-In-Memory System. PACT 2024.

What DIRECT adds can be taken away one by one: `agau=None` leaves sums to the DPUs (`systems.pim.software_sums`), `dsc=None` sends
what goes between clusters through the host, and an algorithm other than `Direct` has no clusters' models.

| algorithm        | every step            | every exchange on `DpuToDpu`                                                    |
|------------------|-----------------------|---------------------------------------------------------------------------------|
| Direct           | AGAUs reduce clusters | clusters enter by token, CrossbarReduce, broadcast to all DPUs                  |
| DecentralizedSgd |                       | every DPU sends its model to its two neighbours                                 |
| ElasticAveraging |                       | DPU after DPU: its model to the centre, and the centre's back; nobody waits     |
| any other        |                       | AGAUs reduce clusters, CrossbarReduce, broadcast to all DPUs, a barrier         |
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from trainyard.devices.dpu.memory import split_over
from trainyard.engine import Simulation
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.agau.unit import Agau
from trainyard.hardware.crossbar.hierarchy import Crossbar, Exchanged
from trainyard.hardware.dpu.host_link import HostExchange, Transfers
from trainyard.hardware.dsc.token_desk import TokenDesk
from trainyard.hardware.dsc.unit import Dsc
from trainyard.hardware.formats.qsgd import Qsgd
from trainyard.ir import Masks, Step, assumed
from trainyard.mapping.algorithms import Algorithm, Direct, Rates
from trainyard.systems.pim import device_interface as places
from trainyard.systems.pim import software_sums
from trainyard.systems.pim.device_interface import software_sum
from trainyard.systems.pim.machine import RANK, Pim
from trainyard.systems.pim.rounds import Act, Desk
from trainyard.units import PICOSECONDS_PER_SECOND, show

WORD_BYTES = 4
COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all", "send", "barrier",
    "local_all_reduce",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMediated(Pim):
    """PIM-Opt: what DPUs exchange goes to the host, is averaged there, and comes back.

    >>> import trainyard as ty
    >>> machine = HostMediated(dpus=64)
    >>> machine.rates(ty.zoo.load("linear")).message_bytes
    16384
    """

    # fmt: off
    transfers: Literal["serial", "rank_parallel"] = assumed(
        "rank_parallel", "DPU after DPU, as Eq. 1 counts them, or rank-parallel, as real systems transfer", "serial")
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
        served = "host.threads" if self.transfers == "rank_parallel" else "host.channels"
        return Pim.unused_assumptions(self, step) | {"cluster_size"} | ({"host", "transfers"} if self.dpus == 1 else {served})

    def exchange(self, size_bytes: int, participants: int | None = None) -> HostExchange:
        """Everybody's data to the host, and back: the mean to all, or a neighbour's to each; with a centre one DPU's alone."""
        several = self.dpus if participants is None else participants
        way = self.algorithm.between
        return self.host.exchange(
            1 if way == "centre" else several, size_bytes, transfers=self.transfers, broadcast=way != "neighbours"
        )

    def collective(self, kind: str, size_bytes: int, clusters: int) -> tuple[float, float]:
        """Seconds and joules of a collective between so many clusters: all of it goes to the host, DPU by DPU or rank by rank."""
        members = self.cluster_size or RANK
        several = members if kind.startswith("local_") else clusters * members
        act = self._host_act(kind, self.host.exchange(several, size_bytes, transfers=self.transfers))
        seconds = act.ps / PICOSECONDS_PER_SECOND
        return seconds, sum(act.energy.values()) + clusters * members * places.static_w(self.dpu) * seconds

    def _exchange_act(self, step: Step) -> Act | None:
        if self.dpus == 1:
            return None
        return self._host_act("exchange", self.exchange(self.message_bytes(step)))

    def _rates(self, step: Step, masks: Masks | None) -> Rates:
        size = self.message_bytes(step)
        act = self._exchange_act(step)
        exchange_s = 0.0 if act is None else act.ps / PICOSECONDS_PER_SECOND
        return Rates(
            workers=self.dpus,
            cluster_size=1,
            step_s=self._steps_of_workers(step, masks),
            reduce_s=0.0,
            exchange_s=exchange_s,
            update_s=exchange_s,
            token_s=0.0,
            message_bytes=size,
            exchange_bytes=0 if act is None else self._all_bytes(act),
            reduce_bytes=0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DpuToDpu(Pim):
    """DIRECT: clusters with an AGAU each, a DSC that hands tokens to them, and a hierarchy of crossbars between all.

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
        """Leakage of crossbars, AGAUs and the DSC, at all times."""
        parts = (self.clusters * self.agau.static_w if self.agau else 0.0, self.dsc.static_w if self.dsc else 0.0)
        return self.crossbar.static_w + sum(parts)

    def unused_assumptions(self, step: Step) -> frozenset[str]:
        unused = Pim.unused_assumptions(self, step)
        if self.dsc is not None:
            unused |= {"host"}
        return unused | {"crossbar.message_bytes"} if self.message_bytes(step) <= 4096 else unused

    # what goes over the crossbars

    @property
    def fabric(self) -> Any:
        """Exchanges of this machine's crossbars, message by message or in closed form."""
        return self.crossbar.simulate if self.fidelity == "message" else self.crossbar.analytic

    def _exchanged(self, kind: Literal["local", "up", "all_reduce"], size_bytes: int) -> Exchanged:
        """One exchange of all clusters; equal ones are simulated once."""
        key = (kind, size_bytes)
        if key not in self._known:
            group, crossbar = self.dpus_per_cluster, self.crossbar
            if self.agau is None:
                way = {"local": software_sums.local, "up": software_sums.scatter, "all_reduce": software_sums.across}[kind]
                found = way(crossbar, size_bytes, group, software_sum(self.dpu)[0], analytic=self.fidelity == "analytic")
            elif kind != "all_reduce":
                found = self.fabric.local(size_bytes, group, agau=self.agau, back=kind == "local")
            else:
                found = self.fabric.all_reduce(size_bytes, group, agau=self.agau, members=True)
            self._known[key] = found
        return self._known[key]  # type: ignore[no-any-return]  # what was kept above

    def _energy(self, exchanged: Exchanged, sums: Mapping[str, float], dsc: Mapping[str, float]) -> dict[str, float]:
        """Joules of an exchange by component, without what is drawn at all times."""
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

    def _act(
        self, name: str, exchanged: Exchanged, sums: Mapping[str, float], dsc: Mapping[str, float], extra_s: float = 0.0
    ) -> Act:
        seconds = exchanged.time_s + extra_s
        moved = {
            (f"crossbar {level.name}", name, "write"): count
            for level, count in zip(self.crossbar.levels, exchanged.bytes_by_level, strict=True)
        }
        return Act(
            name=name,
            ps=round(seconds * PICOSECONDS_PER_SECOND),
            resource="crossbar",
            energy=self._energy(exchanged, sums, dsc),
            traffic={key: count for key, count in moved.items() if count},
        )

    def _sent_bytes(self, step: Step) -> int:
        """What a cluster sends to the others: its model, or what QSGD makes of it."""
        size = self.message_bytes(step)
        if isinstance(self.algorithm, Direct) and self.algorithm.compression_bits is not None:
            return self._coding.packed_bytes(size // WORD_BYTES)
        return size

    @property
    def _coding(self) -> Qsgd:
        assert isinstance(self.algorithm, Direct)
        return Qsgd(bits=self.algorithm.compression_bits or 4)

    def _reduce_act(self, step: Step) -> Act | None:
        """A cluster's gradients become one, and its DPUs have the new weights; all clusters at once, booked to each."""
        if self.dpus_per_cluster == 1 or not (isinstance(self.algorithm, Direct) or self.split):
            return None
        size = self.message_bytes(step)
        check_s = 0.0 if self.dsc is None else self.dsc.check_s + self.dsc.barrier_s(self.dpus_per_cluster, "local")
        sums = self._sums(self.dpus_per_cluster, size // WORD_BYTES, self.clusters)
        again_s, again = self._gathered_again(step) if self.split else (0.0, 0)
        whole = self._act("reduce", self._exchanged("local", size), sums, {"dsc_staleness": self.clusters}, check_s + again_s)
        share, chip = 1 / self.clusters, f"crossbar {self.crossbar.levels[0].name}"
        joules = {part: joules * share for part, joules in whole.energy.items()}
        moved = {key: round(count * share) for key, count in whole.traffic.items()}
        if again:
            joules["crossbar"] += again * self.crossbar.joules["crossbar_level0_byte"]
            moved[chip, "shards", "write"] = again
        return replace(whole, resource="AGAU", energy=joules, traffic=moved)

    def _gathered_again(self, step: Step) -> tuple[float, int]:
        """Seconds and bytes of one cluster whose DPUs share its parameters, beside the reduction of its gradients.

        Gradients go up to the AGAU as ever; what comes down are the parameters of the next forward pass. All that is gathered once
        more for the backward pass goes through every DPU's own port, the narrowest that copies of a shard pass.
        """
        shared, port = split_over(step, self.dpus_per_cluster, places.precision(self.dpu)), self.crossbar.levels[0]
        again = max(0, shared.gathered_bytes - self.message_bytes(step))
        return again / port.bytes_per_s, again * self.dpus_per_cluster

    def _exchange_act(self, step: Step) -> Act | None:
        if self.dpus == 1 or (self.clusters == 1 and isinstance(self.algorithm, Direct)):
            return None
        size, sent = self.message_bytes(step), self._sent_bytes(step)
        if self.algorithm.between in ("neighbours", "centre"):
            return self._act("exchange", self._each_for_itself(size), {}, {})
        elements, sums, parts = size // WORD_BYTES, {}, []
        if not (isinstance(self.algorithm, Direct) or self.split) and self.dpus_per_cluster > 1:
            parts.append(self._exchanged("up" if self.clusters > 1 else "local", size))
            sums = self._sums(self.dpus_per_cluster, elements, self.clusters)
        if self.dsc is None and self.clusters > 1:
            return self._through_host(sent, parts, sums)
        if self.clusters > 1:
            parts.append(self._across(step, sent))
            sums = _added(sums, self._sums(self.clusters, elements, 1))
        whole = sum(parts[1:], parts[0]) if parts else None
        if whole is None:
            return None
        if self.dsc is None:
            return self._act("exchange", whole, sums, {})
        if isinstance(self.algorithm, Direct):
            told = 2 * self.dsc.hop_s  # the last token's way back, and the DSC's word to all that the round is complete
            return self._act("exchange", whole, sums, {"dsc_message": float(self.clusters)}, told)
        return self._act("exchange", whole, sums, self.dsc.barrier_events(self.clusters), self.dsc.barrier_s(self.clusters))

    def _across(self, step: Step, sent_bytes: int) -> Exchanged:
        """CrossbarReduce and the broadcast; what QSGD has packed is decoded, summed as words and packed again by the AGAUs.

        Under `literal` a packed gradient goes up and a model of words comes down: half of one exchange, half of the other.
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

    def _each_for_itself(self, size_bytes: int) -> Exchanged:
        """Every DPU's model to its two neighbours; or one DPU's to the centre, the first of the machine, and the answer back."""
        key = (self.algorithm.between, size_bytes)
        if key not in self._known:
            if self.algorithm.between == "neighbours":
                self._known[key] = self.fabric.neighbours(size_bytes, 1)
            else:
                far = self.dpus - 1
                self._known[key] = self.fabric.send(far, 0, size_bytes) + self.fabric.send(0, far, size_bytes)
        return self._known[key]  # type: ignore[no-any-return]  # what was kept above

    def _through_host(self, size_bytes: int, inside: Sequence[Exchanged], sums: Mapping[str, float]) -> Act:
        """Without a DSC what clusters have goes through the host: spread over a cluster's DPUs, so that ranks transfer as wholes.

        Each DPU gets its part of the mean, which the cluster then gathers.
        """
        group = self.dpus_per_cluster
        through = self.host.exchange(self.dpus, -(-size_bytes // group), transfers="rank_parallel", broadcast=False)
        spread = software_sums.gather(self.crossbar, size_bytes, group, analytic=self.fidelity == "analytic")
        act = self._host_act("exchange", through)
        for moved, done in (*((one, sums) for one in inside), (spread, {})):
            more = self._act("exchange", moved, done, {})
            act = replace(
                act, ps=act.ps + more.ps, energy=_added(act.energy, more.energy), traffic=_added(act.traffic, more.traffic)
            )
        return act

    def _tokens(self) -> dict[str, Any]:
        algorithm, dsc = self.algorithm, self.dsc
        if not isinstance(algorithm, Direct) or dsc is None or self.clusters == 1:
            return {}

        def desk(simulation: Simulation) -> Desk:
            return TokenDesk(simulation, dsc, self.clusters, algorithm.order)

        events = dsc.token_events()
        token = Act(
            name="token",
            ps=0,
            resource="DSC",
            energy={"dsc": self._joules_of_dsc(events)},
            bound="token",
        )
        enter = 0 if algorithm.update == "literal" else round(dsc.enter_s * PICOSECONDS_PER_SECOND)
        return {"token": token, "desk": desk, "enter_ps": enter, "priorities": dsc.priority_levels}

    # what others ask

    def collective(self, kind: str, size_bytes: int, clusters: int) -> tuple[float, float]:
        """Seconds and joules of a collective between so many clusters; `local_all_reduce` inside all of them at once.

        `size_bytes` is what a cluster gives, or gets from one. Sums of all are CrossbarReduce; what is gathered, scattered or sent
        goes point to point from the first DPU of a cluster; broadcasts are copied by the switches.
        """
        if kind not in COLLECTIVES:
            raise UnknownName("collective", kind, COLLECTIVES, where="DpuToDpu")
        machine = self._with_clusters(clusters)
        act = machine._collective_act(kind, size_bytes)
        seconds = act.ps / PICOSECONDS_PER_SECOND
        return seconds, sum(act.energy.values()) + machine.idle_w * seconds

    def _with_clusters(self, clusters: int) -> DpuToDpu:
        """A machine of so many of these clusters."""
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
        return self._known.setdefault(("clusters", clusters), changed)  # type: ignore[no-any-return]  # a machine

    def _collective_act(self, kind: str, size_bytes: int) -> Act:
        elements, clusters = size_bytes // WORD_BYTES, self.clusters
        if kind == "local_all_reduce":
            return self._act(kind, self._exchanged("local", size_bytes), self._sums(self.dpus_per_cluster, elements, clusters), {})
        waiting = self.host.exchange(clusters, 0).time_s if self.dsc is None else self.dsc.overhead_s(clusters)
        events = {} if self.dsc is None else self.dsc.round_events(clusters)
        if kind == "barrier" or clusters == 1:
            return Act(
                name=kind, ps=round(waiting * PICOSECONDS_PER_SECOND), resource="DSC", energy={"dsc": self._joules_of_dsc(events)}
            )
        sums = self._sums(clusters, elements, 1) if "reduce" in kind else {}
        return self._act(kind, self._pattern(kind, size_bytes), sums, events, waiting)

    def _joules_of_dsc(self, events: Mapping[str, float]) -> float:
        return 0.0 if self.dsc is None else sum(count * self.dsc.joules[event] for event, count in events.items())

    def _pattern(self, kind: str, size_bytes: int) -> Exchanged:
        clusters, fabric = self.clusters, self.fabric
        if kind in ("all_reduce", "reduce"):
            return self._exchanged("all_reduce", size_bytes)
        if kind == "broadcast":
            return fabric.broadcast(size_bytes)  # type: ignore[no-any-return]  # an Exchanged
        heads = np.arange(clusters) * self.dpus_per_cluster
        apart = {"gather": (heads, heads * 0), "scatter": (heads * 0, heads), "send": (heads[:1], heads[1:2])}
        sources, destinations = apart.get(kind, (np.repeat(heads, clusters), np.tile(heads, clusters)))
        each = -(-size_bytes // clusters) if kind in ("reduce_scatter", "all_to_all") else size_bytes
        return fabric.traffic(sources, destinations, np.full(len(sources), each, np.int64))  # type: ignore[no-any-return]  # an Exchanged

    def _rates(self, step: Step, masks: Masks | None) -> Rates:
        reduce, exchange = self._reduce_act(step), self._exchange_act(step)
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
            else self._steps_of_workers(step, masks),
            reduce_s=0.0 if reduce is None else reduce.ps / PICOSECONDS_PER_SECOND,
            exchange_s=exchange_s,
            update_s=exchange_s,
            token_s=token_s,
            message_bytes=self.message_bytes(step),
            exchange_bytes=0 if exchange is None else self._all_bytes(exchange),
            reduce_bytes=0 if reduce is None else sum(reduce.traffic.values()) * self.clusters,
        )

    def _remarks(self, step: Step, rates: Rates) -> list[str]:
        if not isinstance(self.algorithm, Direct) or self.clusters == 1:
            return []
        steps = sorted(set(rates.local_steps(self.algorithm)))
        often = f"{steps[0]}" if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
        said = (
            f"{self.clusters} clusters of {self.dpus_per_cluster} DPUs exchange after {often} steps: {show(rates.exchange_s, 's')}"
        )
        if self.dsc is None or self.algorithm.update == "literal":
            return [said]
        return [f"{said}, and {show(self.dsc.rounds_s(self.clusters), 's')} to enter it one after the other, by token"]


def _added(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> dict[Any, Any]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
