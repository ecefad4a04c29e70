"""The scheduler's gates against the simulator's `select` and `advance`, on all inputs where they are few."""

from __future__ import annotations

from random import Random

import pytest

pytest.importorskip("amaranth")

from amaranth.hdl import Module

from trainyard.arrays.tensordash.scheduler import Scheduler, advance, select
from trainyard.errors import BadInput, UnknownName
from trainyard.rtl.catalogue import Inputs, design_of
from trainyard.rtl.equality import amaranth_outputs, check_equality, compare
from trainyard.rtl.tensordash import scheduler as module
from trainyard.rtl.tensordash.parameters import scheduler_of
from trainyard.rtl.tensordash.scheduler import PromotionScheduler, SchedulerDesign

FOUR_DEEP = SchedulerDesign()


def every_input(lanes: int, depth: int) -> list[Inputs]:
    return [{"z": z, "present": (1 << depth) - 1} for z in range(1 << lanes * depth)]


@pytest.mark.parametrize("design", [SchedulerDesign(depth=2), SchedulerDesign(lanes=2, depth=4), SchedulerDesign(lanes=3, depth=3)])
def test_every_input_of_a_small_scheduler_gives_the_simulators_outputs(design: SchedulerDesign) -> None:
    inputs = every_input(design.lanes, design.depth)
    assert compare(amaranth_outputs(design.build(), inputs), design.expected(inputs)).equal


@pytest.mark.slow
@pytest.mark.parametrize("design", [SchedulerDesign(depth=3), SchedulerDesign(depth=3, levels="grouped"), SchedulerDesign(depth=4)])
def test_every_input_of_four_lanes_gives_the_simulators_outputs(design: SchedulerDesign) -> None:
    inputs = every_input(design.lanes, design.depth)
    assert compare(amaranth_outputs(design.build(), inputs), design.expected(inputs)).equal


@pytest.mark.parametrize(
    ("design", "cycles"),
    [
        (FOUR_DEEP, 300),
        (SchedulerDesign(lanes=5, depth=5), 150),
        (SchedulerDesign(lanes=16, depth=3, levels="grouped"), 60),
        (SchedulerDesign(lanes=16, depth=3), 60),
    ],
    ids=str,
)
def test_random_buffers_give_the_simulators_outputs(design: SchedulerDesign, cycles: int) -> None:
    comparison = check_equality(design, cycles, seed=1)
    assert comparison.equal, comparison.difference
    assert comparison.values == 3 * cycles


def drawn_pattern(rng: Random) -> SchedulerDesign:
    lanes, depth = rng.randint(4, 16), rng.randint(2, 4)
    others = {(rng.randrange(depth), rng.randint(-lanes, lanes)) for _ in range(rng.randint(0, 8))} - {(0, 0)}
    options = ["0:0", *(f"{step}:{offset}" for step, offset in rng.sample(sorted(others), len(others)))]
    return SchedulerDesign(lanes=lanes, depth=depth, options=" ".join(options), levels=rng.choice(("one", "grouped")))


@pytest.mark.parametrize("seed", range(6))
def test_a_random_pattern_gives_the_simulators_outputs(seed: int) -> None:
    design = drawn_pattern(Random(seed))
    comparison = check_equality(design, 40, seed)
    assert comparison.equal, (design, comparison.difference)


@pytest.mark.slow
def test_two_hundred_random_patterns_give_the_simulators_outputs() -> None:
    for seed in range(100, 300):
        design = drawn_pattern(Random(seed))
        assert check_equality(design, 100, seed).equal, design


def test_a_swapped_option_is_caught() -> None:
    swapped = PromotionScheduler(Scheduler(lanes=4, depth=4, options=((0, 0), (2, 0), (1, 0), *FOUR_DEEP.scheduler.options[3:])))
    assert not check_equality(FOUR_DEEP, 100, component=swapped).equal


def test_levels_that_do_not_see_each_other_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(self: PromotionScheduler, m: Module, number: int, level: object, z: list[object], picks: object) -> list[object]:
        level_before(self, m, number, level, z, picks)  # type: ignore[arg-type]
        return z

    level_before = PromotionScheduler._level
    monkeypatch.setattr(module.PromotionScheduler, "_level", blind)
    assert not check_equality(FOUR_DEEP, 100).equal


@pytest.mark.parametrize(("lanes", "depth", "same"), [(4, 2, True), (4, 4, True), (4, 3, False), (16, 3, False)])
def test_fewest_levels_are_lane_order_for_the_printed_patterns_of_four_lanes_alone(lanes: int, depth: int, same: bool) -> None:
    one, grouped = (scheduler_of("", lanes=lanes, depth=depth, options="", levels=levels) for levels in ("one", "grouped"))
    rng, differ = Random(0), 0
    for _ in range(200):
        z = [[rng.random() < 0.6 for _ in range(lanes)] for _ in range(depth)]
        outcomes = []
        for scheduler in (one, grouped):
            buffer = [list(step) for step in z]
            outcomes.append((select(buffer, scheduler.options, scheduler.levels), advance(buffer)))
        differ += outcomes[0] != outcomes[1]
    assert (differ == 0) is same
    assert (len(grouped.levels) < lanes) is not same


def test_an_option_that_is_no_pair_names_it() -> None:
    with pytest.raises(BadInput, match="option '1' must be step:offset"):
        design_of("tensordash-scheduler", {"options": "0:0 1"})


def test_an_option_outside_the_buffer_names_the_step() -> None:
    with pytest.raises(BadInput, match="step 4 is not in a 4-deep"):
        SchedulerDesign(options="0:0 4:0")


def test_unknown_levels_offer_the_known() -> None:
    with pytest.raises(UnknownName, match="grouped"):
        SchedulerDesign(levels="groups")


def test_a_width_of_zero_is_refused() -> None:
    with pytest.raises(BadInput, match="lanes"):
        SchedulerDesign(lanes=0)
