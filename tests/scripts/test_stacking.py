"""Stacking: terms add up to the whole, machines differ in nothing but the ideas, every idea is really in its machine."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stacking import IDEAS, Combination, Setting, Study, combinations, decomposed, machine, require_equal
from stacking.effects import subsets
from stacking.networks import NETWORKS, densities
from stacking.study import SKIPPING, sensitivity, study
from typer.testing import CliRunner

import trainyard as ty
from trainyard.arrays import Systolic
from trainyard.errors import BadInput, UnknownName
from trainyard.mapping.algorithms import Direct, Synchronous

costs = st.floats(1e-6, 1e6)


@given(st.lists(costs, min_size=16, max_size=16))
def test_terms_add_up_to_every_machine_of_the_factorial(drawn: list[float]) -> None:
    cost = dict(zip(subsets(IDEAS), drawn, strict=True))
    found = decomposed(cost)
    for some in subsets(IDEAS):
        inside = math.fsum(term for part, term in found.terms.items() if part <= some)
        assert inside == pytest.approx(math.log(cost[frozenset()] / cost[some]), abs=1e-9)
    assert sum(found.shapley.values()) == pytest.approx(found.total, abs=1e-9)
    for idea in IDEAS:
        assert found.with_all(idea) == pytest.approx(cost[frozenset(IDEAS) - {idea}] / cost[frozenset(IDEAS)])


@given(st.lists(costs, min_size=8, max_size=8))
def test_shapley_is_the_mean_over_all_orders_of_putting_ideas_in(drawn: list[float]) -> None:
    """The definition, by brute force."""
    ideas = ("a", "b", "c")
    cost = dict(zip(subsets(ideas), drawn, strict=True))
    found = decomposed(cost, ideas).shapley
    for idea in ideas:
        gains = []
        for order in permutations(ideas):
            before = frozenset(order[: order.index(idea)])
            gains.append(math.log(cost[before] / cost[before | {idea}]))
        assert found[idea] == pytest.approx(sum(gains) / len(gains), abs=1e-9)


def test_independent_ideas_have_no_interaction_and_shared_gains_a_negative_one() -> None:
    apart = decomposed({some: 8.0 / 2 ** len(some) for some in subsets("ab")}, "ab")
    assert apart.interaction == pytest.approx(1.0)
    shared = decomposed({frozenset(): 8.0, frozenset("a"): 4.0, frozenset("b"): 4.0, frozenset("ab"): 4.0}, "ab")
    assert shared.interaction == pytest.approx(0.5)
    with pytest.raises(BadInput, match="every set"):
        decomposed({frozenset(): 1.0}, "ab")


def test_all_24_machines_are_equal_but_for_the_ideas() -> None:
    every = [machine(which) for which in combinations()]
    assert len(set(every)) == 24
    require_equal(every)
    assert {one.peaks for one in every} == {every[0].peaks}


@pytest.mark.parametrize("change", [
    {"array": Systolic(rows=64, columns=128)}, {"dram_bytes_per_s": 151e9}, {"scratchpad_bytes": 2**20}, {"clock_hz": 2e9},
    {"precision": "bf16"}, {"technology_nm": 7}, {"vector_lanes": 128}, {"dram_kind": "ddr4"}, {"reuse": "farthest"}, {"parts": 3},
])  # fmt: skip
def test_a_device_that_differs_is_refused(change: dict[str, Any]) -> None:
    plain = machine(Combination())
    other = replace(plain, device=replace(plain.device, **change))  # type: ignore[type-var]  # an Accelerator
    with pytest.raises(BadInput, match="must be equal"):
        require_equal([plain, other])


@pytest.mark.parametrize(
    "change", [{"devices": 4}, {"link_bytes_per_s": 50e9}, {"overlay": "off"}, {"bucket_bytes": 1}, {"zero": 1}]
)
def test_a_node_that_differs_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=f"equal but for the ideas: {next(iter(change))}"):
        require_equal([machine(Combination()), replace(machine(Combination()), **change)])


def test_each_idea_is_in_its_machine_and_nowhere_else() -> None:
    for which in combinations():
        node, device = machine(which), machine(which).device
        assert type(device.array).__name__.lower() == which.array  # type: ignore[attr-defined]  # an Accelerator
        assert device.order == ("cost" if which.order else "sequential")  # type: ignore[attr-defined]  # as above
        assert type(node).__name__ == ("MemoryCentric" if which.memory else "DeviceCentric")
        assert node.algorithm == (Direct(31) if which.exchange else Synchronous())
        assert ty.machine(which.text) == node


def test_settings_change_what_they_say() -> None:
    plain, other = machine(Combination()), machine(Combination(), Setting(dram=2.0, links=2.0, overlay="as_needed"), 10**9)
    assert other.device.dram_bytes_per_s == 2 * plain.device.dram_bytes_per_s  # type: ignore[attr-defined]  # an Accelerator
    assert other.link_bytes_per_s == 2 * plain.link_bytes_per_s
    assert other.pcie_bytes_per_s == 2 * plain.pcie_bytes_per_s  # type: ignore[attr-defined]  # a DeviceCentric
    assert (other.overlay, other.capacity_bytes) == ("as_needed", 10**9)


@pytest.fixture(scope="module")
def ncf() -> Study:
    return study("ncf")


def test_a_small_network_end_to_end(ncf: Study) -> None:
    found = ncf
    assert len(found.rows) == 24
    for array in SKIPPING:
        effects = found.effects(array)
        assert effects.speedup == pytest.approx(found.base.time_s / found.best(array).time_s)
        assert found.energy_effects(array).speedup == pytest.approx(found.base.energy_j / found.best(array).energy_j)
        fabric, zeros = found.fabric(array, alone=True)
        assert fabric * zeros == pytest.approx(effects.alone("array"))
        assert effects.alone("memory") > 1
        assert effects.alone("exchange") > 1
        assert effects.with_all("array") >= effects.alone("array") * (1 - 1e-9)  # nothing is hidden behind copies any more
    for row in found.rows:
        assert sum(row.classes.values()) == pytest.approx(row.time_s)
        assert sum(row.bounds.values()) == pytest.approx(row.time_s)
    without = found.by_combination[Combination()]
    assert found.base is without


def test_sensitivity_is_the_factorial_in_fewer_machines(ncf: Study) -> None:
    found, whole = sensitivity("ncf", Setting(), "sigma"), ncf.effects("sigma")
    for idea in IDEAS:
        assert found.alone[idea] == pytest.approx(whole.alone(idea))
        assert found.with_all[idea] == pytest.approx(whole.with_all(idea))
    assert found.total == pytest.approx(whole.speedup)
    assert found.zeros == pytest.approx(ncf.fabric("sigma", alone=False)[1])


def test_zeros_are_those_that_were_recorded() -> None:
    found = densities("resnet50")
    assert 0.5 < found.density(("layer1.0.conv1", 0, "A")) < 0.6
    assert found.density(("layer1.0.conv1", 0, "G")) == 1.0
    for one in NETWORKS.values():
        layers = {op.layer for op in one.step().ops if op.is_product and "W" in op.letters}
        assert layers <= {layer for layer, _, _ in one.zeros().shares}
    with pytest.raises(UnknownName, match="resnet50"):
        study("resnet5")


@pytest.mark.slow
def test_compare_three_deep_from_the_command_line() -> None:
    from trainyard.cli import app

    told = "mcdla-b(device=npu(array=tensordash,order=interleaved))"
    found = CliRunner().invoke(app, ["compare", "resnet50", "--batch", "64", "--on", f"mcdla-b(device=npu),{told}", "--json", "-"])
    assert found.exit_code == 0, found.output
    rows = json.loads(found.stdout)
    assert len(rows) == 2
    assert rows[1]["samples_per_s"] > rows[0]["samples_per_s"]
