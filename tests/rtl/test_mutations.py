"""Every design one cycle late, with a multiplexer's inputs swapped, with a register dropped: the equality check catches each.

The quick tier takes the late variant and one mutant of each kind; the slow tier takes all. Mutants that no input can tell from the
original are listed with the reason, and a SAT solver shows each of them equal. Arithmetic units inside another design are left as
they are: they have rows of their own.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, get_args

import pytest

pytest.importorskip("amaranth")

from amaranth.hdl import Fragment

from oracles.circuit_miter import Miter, OrderedSum, ReductionMiter, unclocked
from oracles.circuit_mutants import Kind, Mutant, is_caught, mutants
from trainyard.rtl import controller
from trainyard.rtl.arithmetic.adder import FloatAdder
from trainyard.rtl.arithmetic.multiplier import FloatMultiplier
from trainyard.rtl.benes import BenesNetwork
from trainyard.rtl.catalogue import Design, Inputs, Outputs, design_of, designs
from trainyard.rtl.equality import amaranth_outputs, compare, one_cycle_late
from trainyard.rtl.formal.solver import check
from trainyard.rtl.reduction import art
from trainyard.rtl.reduction.fan import FanNetwork

KINDS: tuple[Kind, ...] = get_args(Kind)
needs_yosys = pytest.mark.skipif(shutil.which("yosys") is None, reason="needs yosys")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A small size of a design, and inputs that reach all of it: random ones of every seed, with `directed` ones behind each."""

    design: str
    parameters: dict[str, Any]
    cycles: int
    seeds: tuple[int, ...] = (5,)
    directed: tuple[Sequence[Inputs], Sequence[Outputs]] = ((), ())
    without: tuple[type, ...] = (FloatAdder, FloatMultiplier)
    quick: dict[str, Any] = field(default_factory=dict)
    """Smaller parameters for the quick tier."""
    has_none: dict[Kind, str] = field(default_factory=dict)
    """Why there is no multiplexer or no register."""
    equivalent: dict[str, str] = field(default_factory=dict)
    """Mutants that nothing can catch, and why."""

    @property
    def built(self) -> Design:
        return design_of(self.design, self.parameters)


def swapped(places: str, reason: str) -> dict[str, str]:
    return {f"{place.replace(',', ', multiplexer ')}: inputs 0 and 1 swapped": reason for place in places.split()}


LEFTMOST = "nothing lies to the left of the leftmost node of a level: the bit is 0 from either input"
RIGHTMOST = "nothing lies to the right of the rightmost node of a level: the bit is 0 from either input"
ASKED = (
    "where the inputs differ, the part is open on its other side too and goes on either way, or its parent takes the sibling's bit"
)
ALONE = "an unfinished part of the rightmost child is open to its left, so it is added to the left child's and never passes alone"
ROOT = "no part is unfinished at the root: the register that sends up holds no sum that leaves"
LATER = "who comes later stands behind: a choice that looks a cycle later finds the same request in the first place"
FIRST = "someone stands in the first place: the last cluster, and the right half of the tree, need none to lose against it"
SUBNORMAL = "with subnormals a product of zero has the bits of zero without being told"
ART_EQUIVALENT = {
    **swapped(
        "routing.left_result_0_left_open,0 routing.right_result_0_left_open,0 routing.left_result_1_left_open,0 "
        "routing.right_result_1_left_open,0 routing.left_result_3_left_open,0 routing.right_result_3_left_open,0",
        LEFTMOST,
    ),
    **swapped(
        "routing.left_result_6_right_open,0 routing.right_result_6_right_open,0 routing.left_result_5_right_open,0 "
        "routing.right_result_5_right_open,0",
        RIGHTMOST,
    ),
    **swapped(
        "routing.up_0_right_open,0 routing.up_1_right_open,0 routing.up_4_right_open,0 routing.up_5_left_open,0 "
        "routing.up_5_right_open,0 routing.up_6_left_open,0 routing.up_6_right_open,0",
        ASKED,
    ),
    **swapped("tree.sum_5,2 tree.beside_5,2 tree.beside_3,2", ALONE),
    **swapped("tree.sum_3,0 tree.sum_3,2", ROOT),
    "tree.sum_3 is a wire": ROOT,
    "tree.sum_3 never loads (switch-value sum_from_right[3:4] (case 0 (switch-value  ...": ROOT,
}
FIRST_COME_EQUIVALENT = {
    **{f"$signal is a wire ({number})": LATER for number in range(2, 7)},
    "grant is a wire": LATER,
    "$signal never loads $signal (5)": FIRST,
    "place3 never loads (- place3_now (& choice1 (> place3_now $signal)))": FIRST,
}
FOUR_CLUSTERS = {"clusters": 4, "fan_in": 2, "ageing": 2, "levels": 2}
NO_GATES = "priority encoders made of single gates: test_scheduler swaps two options, and levels that do not see each other"
FULL_ROWS: list[Inputs] = [{"command": controller.FOLD}, *[{"command": controller.PLACE, "bits": 0b1111}] * 3]
EMPTY_FOLD: list[Inputs] = [{"command": controller.FOLD}, {"command": controller.STREAM, "bits": 0b1111}, {}]
FOLD_WITHOUT_ROWS = (
    [{"command": controller.GATHER, "bits": 0b1111}, *FULL_ROWS, *EMPTY_FOLD],
    [*[{}] * (len(FULL_ROWS) + 3), {"output_bits": 0, "listening": 0}],
)
"""Nothing is stationary, so no output bit is set and no multiplier listens."""

# fmt: off
CASES = {
    "adder": Case(design="adder", parameters={"number": "e3m2", "stages": 3}, cycles=2000, without=()),
    "adder, flush": Case(design="adder", parameters={"number": "e3m2-flush", "stages": 3}, cycles=300, without=()),
    "multiplier": Case(design="multiplier", parameters={"number": "e3m2", "stages": 3}, cycles=300, without=(), equivalent={
        "zero_early never loads zero": SUBNORMAL, "zero_middle never loads zero_early": SUBNORMAL}),
    "multiplier, flush": Case(design="multiplier", parameters={"number": "e3m2-flush", "stages": 3}, cycles=300, without=()),
    "fan": Case(design="fan", parameters={"lanes": 8, "number": "e3m2"}, cycles=200, quick={"lanes": 4}),
    "art": Case(design="art", parameters={"lanes": 8, "number": "e3m2"}, cycles=300, quick={"lanes": 4},
                equivalent=ART_EQUIVALENT),
    "chain": Case(design="chain", parameters={"lanes": 4, "number": "e3m2"}, cycles=150),
    "benes": Case(design="benes", parameters={"ports": 4, "width": 4, "latency": 2}, cycles=100),
    "controller": Case(design="controller", parameters={"rows": 3, "depth": 4, "multipliers": 2, "dpes": 2}, cycles=300,
                       directed=FOLD_WITHOUT_ROWS),
    "flex-dpe": Case(design="flex-dpe", parameters={"multipliers": 2, "number": "bf16"}, cycles=150,
                     without=(FloatAdder, FloatMultiplier, BenesNetwork, FanNetwork)),
    "systolic": Case(design="systolic", parameters={"number": "bf16"}, cycles=100, quick={"rows": 1}),
    "systolic, pipelined": Case(design="systolic", parameters={"number": "bf16", "pipelined": True}, cycles=80),
    "tensordash-scheduler": Case(design="tensordash-scheduler", parameters={"lanes": 3, "depth": 3}, cycles=50,
                                 has_none=dict.fromkeys(KINDS, NO_GATES)),
    "tensordash-element": Case(design="tensordash-element", parameters={"lanes": 3, "depth": 3, "pipeline": 1, "banks": 2},
                               cycles=150),
    "tensordash-tile": Case(design="tensordash-tile", parameters={"lanes": 2, "depth": 3, "rows": 2, "columns": 2, "banks": 2},
                            cycles=200, quick={"depth": 2, "columns": 1}),
    "tensordash-baseline": Case(design="tensordash-baseline", parameters={"lanes": 3, "rows": 2, "columns": 2, "pipeline": 3},
                                cycles=150),
    "agau": Case(design="agau", parameters={"inputs": 3, "width_bits": 32, "buffer_bytes": 16, "ports": 2, "adder_cycles": 1,
                                            "multiplier_cycles": 1}, cycles=300),
    "agau-cache": Case(design="agau-cache", parameters={"cache_bytes": 32, "line_bytes": 8, "ways": 2, "number": "int32",
                                                        "line_bits": 4, "writebacks": 2}, cycles=2500),
    "dsc-arbiter": Case(design="dsc-arbiter", parameters={**FOUR_CLUSTERS, "order": "round_robin"}, cycles=3000, seeds=(2, 1)),
    "dsc-arbiter, first come": Case(design="dsc-arbiter", parameters={**FOUR_CLUSTERS, "order": "first_come"}, cycles=2000,
                                    equivalent=FIRST_COME_EQUIVALENT),
    "dsc-arbiter, priority": Case(design="dsc-arbiter", parameters={**FOUR_CLUSTERS, "order": "priority"}, cycles=3000, seeds=(2,)),
}
# fmt: on
QUICK_CYCLES = 150


@cache
def tables(name: str, cycles: int, seed: int) -> tuple[Sequence[Inputs], Sequence[Outputs]]:
    case = CASES[name]
    inputs, outputs = case.directed
    stimulus = case.built.stimulus(cycles, seed)
    return [*stimulus, *inputs], [*case.built.expected(stimulus), *outputs]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_design_that_is_one_cycle_late_is_caught(name: str) -> None:
    stimulus, expected = tables(name, QUICK_CYCLES, 5)
    assert is_caught(one_cycle_late(CASES[name].built.build()), stimulus, expected)


@pytest.mark.parametrize("name", designs())
def test_a_late_design_a_swapped_multiplexer_and_a_dropped_register_are_caught(name: str) -> None:
    case = CASES[name]
    design = design_of(name, {**case.parameters, **case.quick})
    stimulus = design.stimulus(QUICK_CYCLES, 5)
    expected = design.expected(stimulus)
    assert is_caught(one_cycle_late(design.build()), stimulus, expected)
    for kind in KINDS:
        first = next(mutants(design.build, kind, without=case.without), None)
        assert (first is None) == (kind in case.has_none)
        assert first is None or first.is_caught(stimulus, expected), first.what


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_each_swapped_multiplexer_and_each_dropped_register_is_caught(name: str, kind: Kind) -> None:
    case, survivors = CASES[name], None
    for seed in case.seeds:
        stimulus, expected = tables(name, case.cycles, seed)
        assert compare(amaranth_outputs(case.built.build(), stimulus), expected).equal
        found = mutants(case.built.build, kind, without=case.without, only=survivors)
        survivors = {mutant.what for mutant in found if not mutant.is_caught(stimulus, expected)}
    swaps = {what for what in case.equivalent if "swapped" in what}
    assert survivors == (swaps if kind == "multiplexer" else set(case.equivalent) - swaps)


def original(case: Case) -> Mutant:
    component = case.built.build()
    return Mutant(component, Fragment.get(component, None), "the original")


EQUIVALENT = [(name, what) for name, case in CASES.items() for what in case.equivalent]


@needs_yosys
@pytest.mark.slow
@pytest.mark.parametrize(("name", "what"), [(name, what) for name, what in EQUIVALENT if name != "art"])
def test_a_solver_shows_that_a_listed_mutant_is_equal(name: str, what: str) -> None:
    case = CASES[name]
    (mutant,) = (each for kind in KINDS for each in mutants(case.built.build, kind, without=case.without, only={what}))
    when = {"grant": "grant_valid"} if case.design == "dsc-arbiter" else {}
    verdict = check(Miter(original(case), mutant, when), cycles=8)
    assert verdict.holds, verdict.counterexample


@needs_yosys
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_a_solver_finds_exactly_the_listed_mutants_of_art_equal(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without registers, so a register that is a wire is the original; what never loads and is not seen may be a wire as well."""
    monkeypatch.setattr(art, "FloatAdder", OrderedSum)
    lanes, equal = 8, set()
    case = Case(design="art", parameters={"lanes": lanes, "number": "e2m1"}, cycles=0, without=(OrderedSum,))
    for mutant in mutants(case.built.build, kind, without=case.without):
        if mutant.what.endswith("is a wire"):
            continue
        unchanged = original(case)
        for each in (unchanged, mutant):
            unclocked(each.fragment)
        if check(ReductionMiter(unchanged, mutant, lanes)).holds:
            equal.add(mutant.what)
    listed = {what for what in ART_EQUIVALENT if ("swapped" in what) == (kind == "multiplexer")}
    assert equal == listed - {"tree.sum_3 is a wire"}
