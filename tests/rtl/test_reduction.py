"""FAN, ART and the chain as circuits: the simulator's sums, at the simulator's adder, in the simulator's cycle."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from trainyard.errors import BadInput
from trainyard.rtl.arithmetic.formats import format_of
from trainyard.rtl.arithmetic.stimulus import finite_bits
from trainyard.rtl.catalogue import Inputs, design_of
from trainyard.rtl.equality import amaranth_outputs, check_equality, compare
from trainyard.rtl.reduction import art
from trainyard.rtl.reduction.network import Lanes, grouping_inputs
from trainyard.rtl.verilator import compiled_outputs, missing_tools

NAMES = ("fan", "art", "chain")
compiled = pytest.mark.skipif(bool(missing_tools()), reason="needs verilator, g++ and make")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("lanes", "number", "cycles"), [(2, "fp32", 60), (4, "e3m2", 100), pytest.param(8, "e3m2", 60, marks=pytest.mark.slow)]
)
def test_random_folds_leave_the_simulators_sums_in_its_cycles(name: str, lanes: int, number: str, cycles: int) -> None:
    comparison = check_equality(design_of(name, {"lanes": lanes, "number": number}), cycles, seed=lanes)
    assert comparison.equal, comparison.difference
    assert comparison.values > cycles


def test_a_chain_may_have_any_number_of_lanes() -> None:
    for lanes in (1, 3):
        assert check_equality(design_of("chain", {"lanes": lanes, "number": "e3m2"}), 60).equal


@pytest.mark.slow
@compiled
@pytest.mark.parametrize(
    "parameters", [{"lanes": 32}, {"lanes": 16, "number": "bf16"}, {"lanes": 16, "number": "fp16-flush"}], ids=str
)
@pytest.mark.parametrize("name", NAMES)
def test_ten_thousand_cycles_of_random_folds_equal_the_simulator(name: str, parameters: dict[str, Any]) -> None:
    comparison = check_equality(design_of(name, parameters), 10_000, seed=1, runner=compiled_outputs)
    assert comparison.equal, comparison.difference
    assert comparison.cycles == 10_000


def groupings(lanes: int) -> Iterator[list[int]]:
    """Every way to put contiguous dot products, with idle lanes between or not, on so many lanes."""

    def extended(ids: list[int]) -> Iterator[list[int]]:
        if len(ids) == lanes:
            yield ids
            return
        yield from extended([*ids, max([-1, *ids]) + 1])
        yield from extended([*ids, -1])
        if ids and ids[-1] >= 0:
            yield from extended([*ids, ids[-1]])

    yield from extended([])


@pytest.mark.slow
@compiled
@pytest.mark.parametrize("name", NAMES)
def test_every_grouping_of_8_lanes_reduces_as_in_the_simulator(name: str) -> None:
    design = design_of(name, {"lanes": 8, "number": "e5m10"})
    chance, stimulus = random.Random(0), list[Inputs]()
    for vec_ids in [*groupings(8), *groupings(8)]:
        stimulus.append({"configure": 1, **grouping_inputs(vec_ids)})
        products = {f"product_{lane}": finite_bits(format_of("e5m10"), chance) for lane in range(8)}
        stimulus += [{**products, "valid": 1}, *[{}] * (2 if name != "chain" else 7)]
    assert len(stimulus) > 10_000
    comparison = compare(compiled_outputs(design.build(), stimulus), design.expected(stimulus))
    assert comparison.equal, comparison.difference


def test_a_fold_that_does_not_wait_for_the_last_sum_differs() -> None:
    """The next grouping comes `fold_cycles` behind the last vector; a cycle earlier, the circuit loses what is on its way."""
    design = design_of("fan", {"lanes": 4, "number": "e3m2"})
    products = {"product_0": 9, "product_1": 10, "product_2": 9, "product_3": 10, "valid": 1}
    one, two = ({"configure": 1, **grouping_inputs(ids)} for ids in ([0, 0, 0, 0], [0, 1, 2, 3]))
    for wait, equal in ((1, True), (0, False)):
        stimulus: list[Inputs] = [one, products, *[{}] * wait, two, {}, {}, {}]
        assert compare(amaranth_outputs(design.build(), stimulus), design.expected(stimulus)).equal == equal


def is_caught(name: str, lanes: int, cycles: int) -> bool:
    return not check_equality(design_of(name, {"lanes": lanes, "number": "e3m2"}), cycles, seed=3).equal


def test_a_comparator_of_fan_that_looks_at_the_wrong_lane_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    same = Lanes.same
    monkeypatch.setattr(Lanes, "same", lambda self, lane, other: same(self, lane, other - (other == lane + 2)))
    assert is_caught("fan", lanes=8, cycles=40)


def test_a_node_of_art_that_sends_the_wrong_child_to_its_sibling_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    children = art.ArtTree._children
    monkeypatch.setattr(art.ArtTree, "_children", lambda self, node: children(self, node)[:: -1 if node.level == 0 else 1])
    assert is_caught("art", lanes=4, cycles=60)


def test_gating_with_plus_zero_in_art_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(art, "minus_zero", lambda kind: 0)
    assert is_caught("art", lanes=4, cycles=200)


@pytest.mark.parametrize(("name", "lanes", "says"), [
    ("fan", 12, "fan: lanes must be a power of two of at least 2, got 12: write 8 or 16"),
    ("art", 1, "art: lanes must be a power of two of at least 2, got 1: write 2"),
    ("chain", 0, "chain: lanes must be a positive whole number, got 0"),
])  # fmt: skip
def test_lanes_that_cannot_be_built_are_refused(name: str, lanes: int, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        design_of(name, {"lanes": lanes})
    assert str(caught.value) == says
