"""Choosing how a layer is cut: against scikit-learn, against a plain twin, and by what must always hold."""

from __future__ import annotations

import builtins
import math
import random
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trainyard.errors import BadInput, MissingExtra, UnknownName
from trainyard.ir import MatMul, assumptions_of
from trainyard.mapping.gradient_order.partition import (
    METRICS,
    SCALES,
    SCHEMES,
    KnnSelector,
    LayerCosts,
    _nearest,
    evaluate,
    features,
    ideal,
    lost_performance,
    splits,
)

if find_spec("sklearn") is None:
    pytest.skip("the extra knn is not installed", allow_module_level=True)

sizes = st.integers(1, 12)  # few values: many layers at one distance
cycles = st.tuples(*[st.integers(1, 6)] * 3).map(lambda each: dict(zip(SCHEMES, map(float, each), strict=True)))
layer = st.builds(
    lambda op, cost, network, repeats: LayerCosts(op=op, cycles=cost, network=network, repeats=repeats),
    st.builds(MatMul, sizes, sizes, sizes), cycles, st.sampled_from("abc"), st.integers(1, 3),
)  # fmt: skip
selector = st.builds(
    lambda neighbours, metric, scale: KnnSelector(neighbours=neighbours, metric=metric, scale=scale),
    st.integers(1, 7), st.sampled_from(METRICS), st.sampled_from(SCALES),
)  # fmt: skip


def table(count: int = 120, seed: int = 3, largest: int = 5000) -> list[LayerCosts]:
    """Layers whose cheapest scheme follows from their dimensions, but for a few."""
    draw = random.Random(seed)
    made = []
    for number in range(count):
        op = MatMul(*(draw.randint(1, largest) for _ in SCHEMES))
        longest = max(op.M, op.N, op.K)
        cost = {
            scheme: 1.0 + longest / size * draw.uniform(1.0, 1.2) for scheme, size in zip(SCHEMES, (op.M, op.N, op.K), strict=True)
        }
        made.append(LayerCosts(op=op, cycles=cost, network=f"network {number % 9}", repeats=1 + number % 4))
    return made


def twin(known: Sequence[LayerCosts], op: MatMul, chosen: KnnSelector) -> str:
    """Plain Python: sort by distance, count votes."""

    def point(product: MatMul) -> list[float]:
        wide = [product.M, product.K, product.K, product.N, product.M, product.N]
        return [math.log2(size) if chosen.scale == "log" else float(size) for size in wide]

    def distance(other: MatMul) -> float:
        apart = [abs(a - b) for a, b in zip(point(op), point(other), strict=True)]
        if chosen.metric == "euclidean":
            return float(np.sum(np.square(apart)))  # rounded as the vectors are
        return float(np.sum(apart)) if chosen.metric == "manhattan" else max(apart)

    near = sorted(range(len(known)), key=lambda index: (distance(known[index].op), index))[: chosen.neighbours]
    votes = [ideal(known[index].cycles) for index in near]
    return max(SCHEMES, key=votes.count)


@pytest.mark.oracle
@settings(max_examples=60, deadline=None)
@given(known=st.lists(layer, min_size=1, max_size=12), asked=st.builds(MatMul, sizes, sizes, sizes), chosen=selector)
def test_choices_are_those_of_the_plain_twin_whatever_the_ties(known: list[LayerCosts], asked: MatMul, chosen: KnnSelector) -> None:
    assert chosen.fit(known).choose(asked) == twin(known, asked, chosen)


@pytest.mark.oracle
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), chosen=selector)
def test_choices_are_scikit_learns_own_where_no_two_layers_are_equally_near(seed: int, chosen: KnnSelector) -> None:
    from sklearn.neighbors import KNeighborsClassifier

    made = table(30, seed=seed, largest=10**6)
    known, asked = made[:24], made[24:]
    points, probes = (chosen.points([one.op for one in each]) for each in (known, asked))
    for row, probe in zip(chosen.order(probes, points), probes, strict=True):
        apart = np.sort(
            np.linalg.norm(points[row] - probe, ord={"euclidean": 2, "manhattan": 1, "chebyshev": np.inf}[chosen.metric], axis=1)
        )
        assume(np.diff(apart).min() > 1e-9 * apart[-1])
    plain = KNeighborsClassifier(n_neighbors=chosen.neighbours, metric=chosen.metric)
    plain.fit(points, [SCHEMES.index(ideal(one.cycles)) for one in known])
    expected = [SCHEMES[number] for number in plain.predict(probes)]
    assert chosen.fit(known).choices([one.op for one in asked]) == expected


def by_scikit_learn(
    layers: Sequence[LayerCosts], chosen: KnnSelector, unit: str, seed: int, repetitions: int
) -> list[tuple[float, float]]:
    """Accuracy and lost performance of each repetition, every one learned and predicted by scikit-learn anew."""
    names = list(range(len(layers))) if unit == "layers" else [one.network for one in layers]
    groups = list(dict.fromkeys(names))
    kept = min(max(round(0.8 * len(groups)), 1), len(groups) - 1)
    generator, found = np.random.default_rng(seed), []
    for _ in range(repetitions):
        place = dict(zip(groups, generator.permutation(len(groups)), strict=True))
        known = [one for one, name in zip(layers, names, strict=True) if place[name] < kept]
        test = [one for one, name in zip(layers, names, strict=True) if place[name] >= kept]
        choices = chosen.fit(known).choices([one.op for one in test])
        right = [one.cycles[choice] == min(one.cycles.values()) for one, choice in zip(test, choices, strict=True)]
        found.append((sum(right) / len(right), lost_performance(test, choices)))
    return found


@pytest.mark.oracle
@settings(max_examples=40, deadline=None)
@given(
    layers=st.lists(layer, min_size=2, max_size=25).filter(lambda made: len({one.network for one in made}) > 1),
    chosen=selector, unit=st.sampled_from(("layers", "networks")), seed=st.integers(0, 99),
)  # fmt: skip
def test_an_evaluation_is_scikit_learns_repetition_by_repetition(
    layers: list[LayerCosts], chosen: KnnSelector, unit: Any, seed: int
) -> None:
    found = evaluate(layers, chosen, repetitions=4, seed=seed, unit=unit)
    expected = by_scikit_learn(layers, chosen, unit, seed, 4)
    assert found.accuracies.tolist() == pytest.approx([accuracy for accuracy, _ in expected])
    assert found.losses.tolist() == pytest.approx([loss for _, loss in expected])
    assert (found.losses >= 0).all()
    assert (found.majority_losses >= 0).all()
    assert all(0 <= value <= 1 for value in (*found.accuracies, *found.majority_accuracies, *found.by_scheme.values()))
    assert sum(found.share.values()) <= 1 + 1e-12


@given(st.lists(layer, min_size=1, max_size=20), st.data())
def test_the_ideal_is_never_slower(layers: list[LayerCosts], data: st.DataObject) -> None:
    choices = data.draw(st.lists(st.sampled_from(SCHEMES), min_size=len(layers), max_size=len(layers)))
    assert lost_performance(layers, [ideal(one.cycles) for one in layers]) == 0
    assert lost_performance(layers, choices) >= 0


def test_one_neighbour_knows_what_it_has_seen() -> None:
    made = table()
    assert len({one.op for one in made}) == len(made)
    assert KnnSelector(neighbours=1).fit(made).choices([one.op for one in made]) == [ideal(one.cycles) for one in made]


def test_neighbours_beyond_the_known_ones_are_all_of_them() -> None:
    made = table(9)
    votes = [ideal(one.cycles) for one in made]
    usual = max(SCHEMES, key=votes.count)
    assert {KnnSelector(neighbours=50).fit(made).choose(one.op) for one in table(20, seed=8)} == {usual}
    many = evaluate(made, KnnSelector(neighbours=50), repetitions=50)
    assert many.accuracies.tolist() == many.majority_accuracies.tolist()
    assert many.losses.tolist() == many.majority_losses.tolist()


@pytest.mark.probe
def test_a_vote_turns_with_one_neighbour_more() -> None:
    """Seen from 10: one layer of `n` at 11, two of `k` at 13 and 14."""

    def at(size: int, scheme: str) -> LayerCosts:
        return LayerCosts(op=MatMul(size, size, size), cycles={each: 1.0 if each == scheme else 2.0 for each in SCHEMES})  # type: ignore[misc]

    known = [at(14, "k"), at(13, "k"), at(11, "n")]
    asked = MatMul(10, 10, 10)
    assert [KnnSelector(neighbours=count).fit(known).choose(asked) for count in (1, 2, 3)] == ["n", "n", "k"]
    tied = [at(11, "k"), at(9, "m")]  # at one distance: the first of the table
    assert KnnSelector(neighbours=1).fit(tied).choose(asked) == "k"
    assert KnnSelector(neighbours=1).fit(tied[::-1]).choose(asked) == "m"


def test_the_same_seed_gives_the_same_evaluation_and_another_one_another() -> None:
    first, again, other = (evaluate(table(), repetitions=40, seed=seed) for seed in (7, 7, 8))
    assert first.accuracies.tolist() == again.accuracies.tolist()
    assert first.expected_cycles == again.expected_cycles
    assert first.accuracies.tolist() != other.accuracies.tolist()


def test_dimensions_tell_more_than_the_most_frequent_scheme() -> None:
    found = evaluate(table(), KnnSelector(scale="log"), repetitions=100)
    assert found.accuracy > found.majority_accuracy + 0.2
    assert found.lost_performance < found.majority_lost_performance
    assert found.spread > 0
    assert f"accuracy {100 * found.accuracy:.1f} +- " in str(found)
    assert set(found.by_scheme) == set(SCHEMES)


def test_a_table_of_one_scheme_is_always_right_and_shows_that_it_says_nothing() -> None:
    made = [LayerCosts(op=one.op, cycles={"m": 1.0, "n": 2.0, "k": 2.0}, network=one.network) for one in table()]
    found = evaluate(made, repetitions=20)
    assert found.accuracy == found.majority_accuracy == 1
    assert found.lost_performance == found.spread == 0
    assert found.by_scheme == {"m": 1.0}
    assert found.share == {"m": 1.0}


def test_expected_cycles_lie_between_the_cheapest_and_the_dearest() -> None:
    made = table()
    found = evaluate(made, repetitions=200)
    for one, cycles_ in zip(made, found.expected_cycles, strict=True):
        assert min(one.cycles.values()) * (1 - 1e-12) <= cycles_ <= max(one.cycles.values()) * (1 + 1e-12)
    never = evaluate(made[:2], repetitions=1)  # one is known, one held out
    assert sum(cycles_ == min(one.cycles.values()) for one, cycles_ in zip(made, never.expected_cycles, strict=False)) >= 1


def test_expected_cycles_are_those_of_the_choice_made_where_a_layer_was_held_out_once() -> None:
    """Of two layers one is known; its cheapest scheme, the dearest of the other, is chosen for that."""
    made = [
        LayerCosts(op=MatMul(8, 8, 8), cycles={"m": 1.0, "n": 5.0, "k": 9.0}),
        LayerCosts(op=MatMul(9, 9, 9), cycles={"m": 8.0, "n": 6.0, "k": 2.0}),
    ]
    for seed in range(4):
        found = evaluate(made, repetitions=1, seed=seed)
        assert found.expected_cycles in ((1.0, 8.0), (9.0, 2.0))
        assert found.accuracy == 0.0


def test_whole_networks_are_held_out_together() -> None:
    """Layers of a network are alike and unlike those of others: nothing is learned of one that was held out."""
    made = [
        LayerCosts(op=MatMul(size + step, size, size), cycles={"m": 2.0, "n": 2.0, "k": 2.0, scheme: 1.0}, network=scheme)
        for size, scheme in ((10, "m"), (1000, "n")) for step in range(10)
    ]  # fmt: skip
    assert evaluate(made, repetitions=50).accuracy == 1
    assert evaluate(made, repetitions=50, unit="networks").accuracy == 0


def test_features_are_the_shapes_of_the_three_gradients() -> None:
    assert features(MatMul(M=2, N=3, K=5)) == (2, 5, 5, 3, 2, 3)


def test_what_is_not_printed_is_an_assumption_with_alternatives() -> None:
    assert {one.name for one in assumptions_of(KnnSelector()) if one.open} == {"neighbours", "metric", "scale"}


def test_a_thousand_repetitions_take_seconds() -> None:
    begun = time.perf_counter()
    evaluate(table(400))
    assert time.perf_counter() - begun < 8


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"repetitions": 0}, "repetitions must be at least 1"),
        ({"split": 1.0}, "between 0 and 1"),
        ({"split": 0.0}, "between 0 and 1"),
        ({"unit": "models"}, "unknown unit 'models'"),
    ],
)
def test_evaluations_that_cannot_be_meant(change: dict[str, Any], said: str) -> None:
    with pytest.raises((BadInput, UnknownName), match=said):
        evaluate(table(10), **change)


def test_errors_say_what_to_write() -> None:
    op = MatMul(1, 2, 3)
    with pytest.raises(BadInput, match="at least two are needed"):
        evaluate(table(1))
    with pytest.raises(BadInput, match="1 of networks"):
        evaluate([LayerCosts(op=one.op, cycles=one.cycles) for one in table(5)], unit="networks")
    with pytest.raises(BadInput, match="no layer to learn from"):
        KnnSelector().fit([])
    with pytest.raises(BadInput, match="schemes m, n, k are needed, got m"):
        LayerCosts(op=op, cycles={"m": 1.0})
    with pytest.raises(BadInput, match="must be positive"):
        LayerCosts(op=op, cycles={"m": 1.0, "n": 0.0, "k": 1.0})
    with pytest.raises(BadInput, match="repeats"):
        LayerCosts(op=op, cycles={"m": 1.0, "n": 1.0, "k": 1.0}, repeats=0)
    with pytest.raises(BadInput, match="2 layers and 1 choices"):
        lost_performance(table(2), ["m"])
    with pytest.raises(BadInput, match="neighbours"):
        KnnSelector(neighbours=0)
    with pytest.raises(UnknownName, match="did you mean 'euclidean'"):
        KnnSelector(metric="euclid")  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="unknown scale"):
        KnnSelector(scale="square")  # type: ignore[arg-type]


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("sklearn"):
            raise ModuleNotFoundError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"trainyard\[knn\]"):
        KnnSelector().fit(table(3))
    assert evaluate(table(20), repetitions=3).accuracies.shape == (3,), "an evaluation needs numpy alone"


def test_one_core_may_leave_a_layer_whole() -> None:
    cut, whole = {"m": 7.0, "n": 6.0, "k": 9.0}, {"none": 5.0, "m": 7.0, "n": 6.0, "k": 9.0}
    rows = [LayerCosts(op=MatMul(8 + number, 8, 8), cycles=whole) for number in range(6)]
    assert ideal(whole) == "none"
    assert ideal(cut) == "n"
    assert rows[0].schemes == ("none", "m", "n", "k")
    found = evaluate(rows, repetitions=3)
    assert found.accuracy == 1.0
    assert set(found.expected_cycles) == {5.0}
    assert "whole 100 %" in str(found)
    assert KnnSelector().fit(rows).choose(MatMul(8, 8, 8)) == "none"
    with pytest.raises(BadInput, match="for all or for no layer"):
        evaluate([*rows, LayerCosts(op=MatMul(9, 9, 9), cycles=cut)], repetitions=3)


@given(st.lists(st.tuples(*[st.integers(1, 4)] * 3), min_size=3, max_size=30), st.integers(1, 5))
def test_the_nearest_known_layers_are_those_of_a_plain_search(dims: list[tuple[int, int, int]], neighbours: int) -> None:
    """All known layers by distance, then by place; rows are looked at only as far as it takes."""
    ops = tuple(MatMul(*sides) for sides in dims)
    for held_out, nearest in splits(ops, ("",) * len(ops), KnnSelector(neighbours=neighbours), repetitions=5):
        known = [place for place in range(len(ops)) if place not in held_out]
        for place, chosen in zip(held_out, nearest, strict=True):
            here = features(ops[place])
            far = {other: sum((a - b) ** 2 for a, b in zip(here, features(ops[other]), strict=True)) for other in known}
            expected = sorted(known, key=lambda other: (far[other], other))[:neighbours]
            assert [one for one in chosen.tolist() if one >= 0] == expected


def test_neighbours_are_looked_for_as_far_as_it_takes_for_every_layer() -> None:
    """One of ten points is known: it is the first of one row and the ninth of another."""
    known = np.array([number == 3 for number in range(10)])
    order = np.array([[3, 0, 1, 2, 4, 5, 6, 7, 8, 9], [9, 8, 7, 6, 5, 4, 2, 1, 3, 0]])
    assert _nearest(order, known, 1).tolist() == [[3], [3]]
    assert _nearest(order, known, 2).tolist() == [[3, -1], [3, -1]]
