"""The DSC's token arbiter: no more owners than tokens, and no cluster is passed over more often than the simulator's bound."""

from __future__ import annotations

from amaranth.hdl import Array, Module, Signal
from amaranth.lib.wiring import Component, In, Out

from trainyard.errors import BadInput
from trainyard.hardware.dsc.controller import Rules
from trainyard.rtl.dsc import TokenArbiter, ones


class _Clusters(Component):
    """The arbiter with all its inputs free: requests of who waits or holds already, and releases of who holds nothing, too."""

    def __init__(self, arbiter: TokenArbiter) -> None:
        self.arbiter = arbiter
        clusters = arbiter.rules.clusters
        ports = {"request": In(clusters), "priority": In(clusters * arbiter.priority_bits), "release": In(clusters)}
        super().__init__({**ports, "violated": Out(1)})

    def _connected(self) -> Module:
        m = Module()
        m.submodules.arbiter = arbiter = self.arbiter
        levels, bits = arbiter.rules.levels, arbiter.priority_bits
        for cluster in range(arbiter.rules.clusters):  # a priority that does not exist counts as the highest
            priority = self.priority.word_select(cluster, bits)
            with m.If(priority < levels):
                m.d.comb += arbiter.priority.word_select(cluster, bits).eq(priority)
            with m.Else():
                m.d.comb += arbiter.priority.word_select(cluster, bits).eq(levels - 1)
        m.d.comb += [arbiter.request.eq(self.request), arbiter.release.eq(self.release)]
        return m


class TokensAreKept(_Clusters):
    """Violated where there are more holders than tokens, a grant goes to a cluster that did not wait, or a free token stays free.

    With K levels of comparators a grant leaves K cycles after a token is free and a request is there; it is violated after more
    cycles without one. `tokens`: how many there should be.
    """

    def __init__(self, arbiter: TokenArbiter, tokens: int) -> None:
        self.tokens = tokens
        super().__init__(arbiter)

    def elaborate(self, platform: object) -> Module:
        m = self._connected()
        arbiter = self.arbiter
        waited = Signal(arbiter.rules.clusters)
        overdue = Signal(range(2 * arbiter.cycles + 2))
        too_many, unasked = ones(list(arbiter.held)) > self.tokens, arbiter.grant_valid & ~Array(waited)[arbiter.grant]
        m.d.sync += waited.eq(arbiter.waiting | arbiter.request)
        possible = arbiter.waiting.any() & (ones(list(arbiter.held)) < self.tokens)
        with m.If(arbiter.grant_valid | ~possible):
            m.d.sync += overdue.eq(0)
        with m.Elif(overdue <= arbiter.cycles):
            m.d.sync += overdue.eq(overdue + 1)
        m.d.comb += self.violated.eq(too_many | unasked | (overdue > arbiter.cycles))
        return m


class NoStarvation(_Clusters):
    """Violated where more grants pass a waiting cluster over than `Arbiter.most_passed_over` of `rules` says.

    A grant counts whose choice began when the request had arrived. Together with `TokensAreKept` this bounds the wait in cycles by
    the time for which others hold their tokens. `fewer` tightens the bound, to show that it is reached.
    """

    def __init__(self, arbiter: TokenArbiter, rules: Rules, fewer: int = 0) -> None:
        bounds = [rules.arbiter.most_passed_over(rules.clusters, priority) for priority in range(rules.levels)]
        if any(bound is None for bound in bounds):
            raise BadInput("NoStarvation: these rules have no bound: without ageing a cluster can starve")
        self.bounds = [bound - fewer for bound in bounds if bound is not None]
        super().__init__(arbiter)

    def elaborate(self, platform: object) -> Module:
        m = self._connected()
        arbiter, cycles = self.arbiter, self.arbiter.cycles
        violated = Signal(arbiter.rules.clusters)
        for cluster in range(arbiter.rules.clusters):
            waiting = arbiter.waiting[cluster]
            there = Signal(range(cycles + 1), name=f"there{cluster}")
            passed, bound = (Signal(range(max(self.bounds) + 3), name=f"{name}{cluster}") for name in ("passed", "bound"))
            with m.If(~waiting):  # what arrives in this cycle is there for one cycle in the next
                priority = arbiter.priority.word_select(cluster, arbiter.priority_bits)
                m.d.sync += [there.eq(1), passed.eq(0), bound.eq(Array(self.bounds)[priority])]
            with m.Else():
                with m.If(there < cycles):
                    m.d.sync += there.eq(there + 1)
                with m.If(arbiter.grant_valid & (there == cycles) & (passed <= bound)):
                    m.d.sync += passed.eq(passed + 1)
            m.d.comb += violated[cluster].eq(waiting & (passed > bound))
        m.d.comb += self.violated.eq(violated.any())
        return m
