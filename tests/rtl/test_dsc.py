"""The token arbiter against the DSC's rules, and against the token service on the engine's clock."""

from __future__ import annotations

from random import Random
from typing import get_args

import pytest

pytest.importorskip("amaranth")

from trainyard.engine import Simulation, Wait
from trainyard.engine.commands import Script
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.dsc.token_arbiter import Order
from trainyard.hardware.dsc.token_service import TokenService
from trainyard.hardware.dsc.unit import Dsc
from trainyard.rtl.catalogue import design_of
from trainyard.rtl.dsc import ArbiterDesign, TokenArbiter
from trainyard.rtl.equality import amaranth_outputs, check_equality
from trainyard.rtl.verilator import compiled_outputs, missing_tools

ORDERS: tuple[Order, ...] = get_args(Order)
LONG = 10_000


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("clusters", "tokens", "fan_in"), [(8, 1, 4), (5, 2, 2), (3, 2, 4)])
def test_grants_are_those_of_the_rules_in_their_cycles(order: Order, clusters: int, tokens: int, fan_in: int) -> None:
    design = ArbiterDesign(order=order, ageing=2, clusters=clusters, tokens=tokens, fan_in=fan_in)
    comparison = check_equality(design, 120, seed=1)
    assert comparison.equal, comparison.difference


@pytest.mark.parametrize("clusters", [24, pytest.param(256, marks=pytest.mark.slow)])
def test_a_tree_of_many_clusters_is_built_and_equal(clusters: int) -> None:
    assert check_equality(ArbiterDesign(clusters=clusters, tokens=3, order="priority"), 30).equal


@pytest.mark.parametrize("order", ORDERS)
def test_grants_leave_when_the_token_service_sends_them(order: Order) -> None:
    clusters, hop, rng = 6, 5, Random(3)
    dsc = Dsc(clock_hz=1e9, levels=1, hop_cycles=hop, arbiter_fan_in=2, entries=clusters, tokens=2)
    simulation = Simulation()
    desk = TokenService(simulation, dsc, clusters, order)

    def cluster(number: int) -> Script:
        for _ in range(6):
            yield Wait(1_000 * rng.randrange(40))
            yield from desk.acquire(number)
            yield Wait(1_000 * rng.randrange(1, 12))
            yield from desk.release(number)

    for number in range(clusters):
        simulation.spawn(cluster(number))
    simulation.run()
    uses = [
        (use.cluster, use.requested_ps // 1_000 + hop, use.granted_ps // 1_000 - hop, use.released_ps // 1_000 + hop)
        for use in desk.log
    ]
    stimulus = [{"request": 0, "release": 0} for _ in range(max(use[3] for use in uses) + 1)]
    for number, requested, _, released in uses:
        stimulus[requested]["request"] |= 1 << number
        stimulus[released]["release"] |= 1 << number
    outputs = amaranth_outputs(ArbiterDesign(order=order, clusters=clusters, fan_in=2, tokens=2).build(), stimulus)
    grants = {(cycle, row["grant"]) for cycle, row in enumerate(outputs) if row["grant_valid"]}
    assert grants == {(granted, number) for number, _, granted, _ in uses}
    assert len(grants) == 36


def test_another_order_is_caught() -> None:
    for order, other in zip(ORDERS, (*ORDERS[1:], ORDERS[0]), strict=True):
        assert not check_equality(ArbiterDesign(order=order), 200, component=ArbiterDesign(order=other).build()).equal


def test_a_tree_with_a_register_less_is_caught() -> None:
    design = ArbiterDesign(clusters=8, fan_in=4)
    assert not check_equality(design, 60, component=TokenArbiter(design.rules, fan_in=8)).equal


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(bool(missing_tools()), reason="needs verilator and a C++ compiler")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("clusters", "tokens"), [(32, 1), (256, 3)])
def test_ten_thousand_cycles_are_equal(order: Order, clusters: int, tokens: int) -> None:
    design = ArbiterDesign(order=order, clusters=clusters, tokens=tokens)
    comparison = check_equality(design, LONG, seed=5, runner=compiled_outputs)
    assert comparison.equal, comparison.difference
    assert comparison.cycles == LONG


def test_an_unknown_order_offers_the_known() -> None:
    with pytest.raises(UnknownName, match="round_robin"):
        ArbiterDesign(order="round-robin")


@pytest.mark.parametrize(
    ("name", "value", "problem"), [("clusters", 0, "clusters"), ("fan_in", 1, "fan_in=2"), ("tokens", 0, "tokens")]
)
def test_a_bad_size_is_refused(name: str, value: int, problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        design_of("dsc-arbiter", {name: value})
