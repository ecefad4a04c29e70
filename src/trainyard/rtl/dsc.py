"""The DSC's token arbiter in registers and gates: requests and releases in, one grant every few cycles out.

P. Kulkarni: DIRECT: Enabling Scalable Processing-In-Memory via DPU-to-DPU Communication, Sec. III-B. The simulator's parts are
`hardware.dsc.token_arbiter.Arbiter` (who is next), `hardware.dsc.controller.Rules` (what a message does) and
`hardware.dsc.token_service` (when): a choice is made among all requests that have arrived when it begins, takes as many cycles as
the tree of comparators has levels, and the next one begins in the cycle of the grant.

A node of the tree compares `fan_in` candidates and has a register. What a candidate brings depends on the order: whether it stands
at or behind the turn (`round_robin`), its place in the queue (`first_come`), its rank and its place (`priority`). A place is the
number of older requests; it moves up when one of these is granted. So no order needs a queue that is searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, NamedTuple, cast

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.wiring import Component, In, Out

from trainyard.errors import BadInput
from trainyard.hardware.dsc.barriers import tree_depth
from trainyard.hardware.dsc.controller import Rules
from trainyard.hardware.dsc.token_arbiter import Order
from trainyard.rtl.catalogue import Design, Inputs, Outputs, parameter, register


class Candidate(NamedTuple):
    """A request in the tree: whether there is one, what it is chosen by, and whose it is."""

    valid: Value
    rank: Value
    place: Value
    cluster: Value


class Stored(NamedTuple):
    """A number of a request: as it is kept, and with what arrives in this cycle."""

    register: Signal
    now: Value

    @classmethod
    def named(cls, name: str, bits: int) -> Stored:
        return cls(Signal(bits, name=name), Signal(bits, name=f"{name}_now"))


def ones(bits: Sequence[Value]) -> Value:
    """How many of the bits are set, by a tree of adders."""
    level = list(bits)
    while len(level) > 1:
        pairs = [level[place] + level[place + 1] for place in range(0, len(level) - 1, 2)]
        level = pairs + level[2 * len(pairs) :]
    return level[0]


def ones_before(m: Module, bits: Sequence[Value], width: int) -> list[Value]:
    """For each bit, how many before it are set: sums over 1, 2, 4, ... neighbours, each made of two of the step before."""
    counts, reach = list(bits), 1
    while reach < len(counts):
        wider = list[Value]()
        for place, count in enumerate(counts):
            total = Signal(width, name=f"before{reach}_{place}")
            m.d.comb += total.eq(count + counts[place - reach] if place >= reach else count)
            wider.append(total)
        counts, reach = wider, 2 * reach
    return [Const(0, 1), *counts[:-1]]


class TokenArbiter(Component):
    """Tokens of a DSC for the clusters of `rules`.

    | port            | bits                     | meaning                                                          |
    |-----------------|--------------------------|------------------------------------------------------------------|
    | `request`       | clusters                 | a cluster's request arrives, behind its release if both come at  |
    |                 |                          | once; ignored while it waits or holds a token                    |
    | `priority`      | clusters x priority bits | of these requests                                                |
    | `release`       | clusters                 | a cluster's token comes back; ignored where it holds none        |
    | `grant_valid`   | 1                        | a token is given to `grant`                                      |
    | `held`          | clusters                 | holders, from their grant on                                     |
    | `waiting`       | clusters                 | requests that have arrived and are not granted                   |
    """

    def __init__(self, rules: Rules, *, fan_in: int = 4) -> None:
        self.rules, self.fan_in, clusters = rules, fan_in, rules.clusters
        self.cycles = tree_depth(clusters, fan_in)
        self.index_bits, self.priority_bits = _bits(clusters - 1), _bits(rules.levels - 1)
        super().__init__(
            {
                "request": In(clusters),
                "priority": In(clusters * self.priority_bits),
                "release": In(clusters),
                "grant_valid": Out(1),
                "grant": Out(self.index_bits),
                "held": Out(clusters),
                "waiting": Out(clusters),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        clusters = self.rules.clusters
        new, arrived, held, won = Signal(clusters), Signal(clusters), Signal(clusters), Signal(clusters)
        m.d.comb += [
            held.eq(self.held & ~self.release),
            new.eq(self.request & ~self.waiting & ~held),
            arrived.eq(self.waiting | new),
        ]
        begin, finish = self._in_flight(m, arrived.any() & (ones(list(held)) < self.rules.tokens))
        turn, ranks, places = Signal(self.index_bits), self._ranks(m, new), self._places(m, new)
        if self.rules.order == "round_robin":
            ranks = [Stored(turn, cluster >= turn) for cluster in range(clusters)]
        winner = self._tree(m, arrived, [rank.now for rank in ranks], [place.now for place in places])
        m.d.comb += won.eq(Cat(finish & (winner.cluster == cluster) for cluster in range(clusters)))
        m.d.sync += [
            self.grant_valid.eq(finish),
            self.grant.eq(winner.cluster),
            self.waiting.eq(arrived & ~won),
            self.held.eq(held | won),
        ]
        if self.rules.order == "round_robin":
            with m.If(finish):
                m.d.sync += turn.eq(Mux(winner.cluster == clusters - 1, 0, winner.cluster + 1))
        else:
            m.d.sync += [place.register.eq(place.now - (finish & (place.now > winner.place))) for place in places]
        if self.rules.order == "priority":
            self._keep_ranks(m, ranks, arrived, begin, finish)
        return m

    def _in_flight(self, m: Module, possible: Value) -> tuple[Signal, Value]:
        """The first and the last cycle of a choice; one at a time."""
        begin = Signal()
        stages = [Signal(name=f"choice{stage}") for stage in range(1, self.cycles)]
        m.d.comb += begin.eq(possible & ~Cat(*stages).any() if stages else possible)
        for stage, before in zip(stages, [begin, *stages], strict=False):
            m.d.sync += stage.eq(before)
        return begin, stages[-1] if stages else begin

    def _places(self, m: Module, new: Signal) -> list[Stored]:
        """New requests are queued behind the others in the order of their clusters; round robin has no queue."""
        if self.rules.order == "round_robin":
            return [Stored(Signal(), Const(0, 1))] * self.rules.clusters
        count = Signal(range(self.rules.clusters + 1))
        m.d.comb += count.eq(ones(list(self.waiting)))
        places = [Stored.named(f"place{cluster}", self.index_bits) for cluster in range(self.rules.clusters)]
        before = ones_before(m, list(new), self.index_bits)
        for cluster, place in enumerate(places):
            m.d.comb += place.now.eq(Mux(new[cluster], count + before[cluster], place.register))
        return places

    def _ranks(self, m: Module, new: Signal) -> list[Stored]:
        """A new request has the rank of its priority; without priorities all are equal."""
        if self.rules.order != "priority":
            return [Stored(Signal(), Const(0, 1))] * self.rules.clusters
        ranks = [Stored.named(f"rank{cluster}", _bits(self.rules.arbiter.top)) for cluster in range(self.rules.clusters)]
        initial = Array(self.rules.arbiter.rank(priority) for priority in range(self.rules.levels))
        for cluster, rank in enumerate(ranks):
            priority = self.priority.word_select(cluster, self.priority_bits)
            m.d.comb += rank.now.eq(Mux(new[cluster], initial[priority], rank.register))
        return ranks

    def _keep_ranks(self, m: Module, ranks: Sequence[Stored], arrived: Signal, begin: Value, finish: Value) -> None:
        """A grant raises the ranks of all that were there when its choice began."""
        there: Value = arrived
        if self.cycles > 1:
            there = Signal(self.rules.clusters, name="there")
            with m.If(begin):
                m.d.sync += there.eq(arrived)
        for cluster, rank in enumerate(ranks):
            m.d.sync += rank.register.eq(rank.now)
            if self.rules.ageing is not None:
                with m.If(finish & there[cluster] & (rank.now < self.rules.arbiter.top)):
                    m.d.sync += rank.register.eq(rank.now + 1)

    def _tree(self, m: Module, arrived: Signal, ranks: Sequence[Value], places: Sequence[Value]) -> Candidate:
        """The best candidate, with a register behind every level but the last, which the grant's own register follows."""
        level = [
            Candidate(arrived[cluster], ranks[cluster], places[cluster], Const(cluster, self.index_bits))
            for cluster in range(self.rules.clusters)
        ]
        for number in range(self.cycles):
            if number:
                level = [_copied(m, m.d.sync, candidate) for candidate in level]
            level = [self._best(m, level[first : first + self.fan_in]) for first in range(0, len(level), self.fan_in)]
        return level[0]

    def _best(self, m: Module, candidates: Sequence[Candidate]) -> Candidate:
        best = candidates[0]
        for other in candidates[1:]:
            better = (other.rank > best.rank) | ((other.rank == best.rank) & (other.place < best.place))
            take = other.valid & (~best.valid | better)
            fields = (ours if theirs is ours else Mux(take, theirs, ours) for theirs, ours in zip(other[1:], best[1:], strict=True))
            best = _copied(m, m.d.comb, Candidate(best.valid | other.valid, *fields))
        return best


def _copied(m: Module, domain: Any, candidate: Candidate) -> Candidate:
    """The candidate in signals of its own: wires (comb) or registers (sync)."""
    copy = Candidate(*(value if isinstance(value, Const) else Signal(len(value)) for value in candidate))
    domain += [signal.eq(value) for signal, value in zip(copy, candidate, strict=True) if signal is not value]
    return copy


def _bits(largest: int) -> int:
    return max(1, largest.bit_length())


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ArbiterDesign(Design):
    """The token arbiter; clusters request, hold and release tokens at random."""

    name: ClassVar[str] = "dsc-arbiter"
    word: ClassVar[str] = "the token arbiter of the Distributed Synchronization Controller (DIRECT, Sec. III-B)"

    # fmt: off
    clusters: int = parameter(8, "clusters that may hold a token")
    tokens: int   = parameter(1, "tokens in the machine")
    order: str    = parameter("round_robin", "who is next: round_robin, first_come or priority")
    levels: int   = parameter(4, "priorities of a request")
    ageing: int   = parameter(1, "grants to others that are worth a level of priority; 0: none")
    fan_in: int   = parameter(4, "requests that a node of the tree compares")
    # fmt: on

    def __post_init__(self) -> None:
        if self.fan_in < 2:
            raise BadInput(f"{self.name}: a node that compares {self.fan_in} requests chooses nothing: give fan_in=2 or more")
        _ = self.rules

    @property
    def rules(self) -> Rules:
        return Rules(
            clusters=self.clusters,
            tokens=self.tokens,
            order=cast(Order, self.order),
            levels=self.levels,
            ageing=self.ageing or None,
        )

    def build(self) -> TokenArbiter:
        return TokenArbiter(self.rules, fan_in=self.fan_in)

    def stimulus(self, cycles: int, seed: int) -> list[Inputs]:
        """Legal messages: a cluster asks when it neither waits nor holds, and releases after its grant; both may come at once."""
        rng, table = Random(seed), list[Inputs]()
        model, bits, demand = _Model(self), _bits(self.levels - 1), 0.2
        for _ in range(cycles):
            if rng.random() < 0.02:
                demand = rng.choice((0.02, 0.2, 0.9))
            released = [cluster for cluster in model.granted if rng.random() < 0.4]
            request = sum((rng.random() < demand) << cluster for cluster in (*model.idle, *released))
            release = sum(1 << cluster for cluster in released)
            priority = sum(rng.randrange(self.levels) << (cluster * bits) for cluster in range(self.clusters))
            table.append({"request": request, "priority": priority, "release": release})
            model.cycle(table[-1])
        return table

    def expected(self, stimulus: Sequence[Inputs]) -> list[Outputs]:
        """By `Rules`: the messages of a cycle, then a choice if none is in flight."""
        model = _Model(self)
        return [model.cycle(row) for row in stimulus]


class _Model:
    """The simulator's rules, with the cycles of a choice."""

    def __init__(self, design: ArbiterDesign) -> None:
        self.rules = design.rules
        self.state = self.rules.start()
        self.cycles, self.priority_bits = tree_depth(design.clusters, design.fan_in), _bits(design.levels - 1)
        self.in_flight = 0
        self.chosen: int | None = None
        self.granted: list[int] = []

    @property
    def idle(self) -> list[int]:
        busy = {*self.state.holders, *(request.cluster for request in self.state.waiting)}
        return [cluster for cluster in range(self.rules.clusters) if cluster not in busy]

    def cycle(self, row: Inputs) -> Outputs:
        outputs = {"grant_valid": 0}
        if self.in_flight == 1 and self.chosen is not None:
            outputs = {"grant_valid": 1, "grant": self.chosen}
            self.granted.append(self.chosen)
            self.chosen = None
        self.in_flight = max(0, self.in_flight - 1)
        outputs["held"] = sum(1 << cluster for cluster in self.granted)
        pending = () if self.chosen is None else (self.chosen,)
        outputs["waiting"] = sum(1 << cluster for cluster in (*pending, *(request.cluster for request in self.state.waiting)))
        for cluster in range(self.rules.clusters):
            if row.get("release", 0) >> cluster & 1:
                self.state = self.rules.release(self.state, cluster)
                self.granted.remove(cluster)
        for cluster in range(self.rules.clusters):
            if row.get("request", 0) >> cluster & 1:
                priority = row["priority"] >> (cluster * self.priority_bits) & ((1 << self.priority_bits) - 1)
                self.state = self.rules.request(self.state, cluster, priority)
        if not self.in_flight and self.rules.can_grant(self.state):
            self.state = self.rules.grant(self.state)
            self.chosen, self.in_flight = self.state.holders[-1], self.cycles
        return outputs
