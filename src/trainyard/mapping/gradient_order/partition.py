"""The axis along which a layer's pair of gradients is partitioned, chosen by a K-nearest-neighbours classifier.

J. Kim et al.: Improving Data Reuse in NPU On-chip Memory with Interleaved Gradient Order for DNN Training. MICRO 2023, Sec. 5.
Three schemes cut Y(M,N) = X(M,K) W(K,N): `m` shares the weights between parts and sums dW, `n` shares X and sums dX, `k` shares dY
and sums nothing. One core may also leave a layer whole (`none`). A K-nearest-neighbours classifier learns the cheapest scheme of
known layers from the dimensions of dX (M,K), dW (K,N) and dY (M,N) and chooses for others. Number of neighbours, distance, scale of
the features, and whether layers or whole networks are held out are not printed.

Accuracy alone says little where one scheme is nearly always the cheapest, so an `Evaluation` compares the classifier with the
scheme that is cheapest most often, and says what wrong choices cost. A choice is right if no scheme is cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput, MissingExtra, UnknownName
from trainyard.ir import MatMul, assumed

Scheme = Literal["none", "m", "n", "k"]
Unit = Literal["layers", "networks"]

SCHEMES: tuple[Scheme, ...] = ("m", "n", "k")
ONE_CORE_SCHEMES: tuple[Scheme, ...] = ("none", *SCHEMES)
NAMES: Mapping[Scheme, str] = {"none": "whole", "m": "weight-sharing", "n": "dY-sharing", "k": "ifmap-sharing"}  # Fig. 11
CACHED_SPLITS = 16
METRICS = ("euclidean", "manhattan", "chebyshev")
SCALES = ("raw", "log")
UNITS: tuple[Unit, ...] = ("layers", "networks")

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCosts:
    """A layer by the dimensions of its forward product, with the cycles of its gradients under each scheme, with or without `none`.

    `repeats` is the number of equal layers: they weigh in lost performance, not in accuracy.
    """

    op: MatMul
    cycles: Mapping[Scheme, float]
    network: str = ""
    repeats: int = 1

    def __post_init__(self) -> None:
        if set(self.cycles) not in (set(SCHEMES), set(ONE_CORE_SCHEMES)):
            raise BadInput(
                f"layer {self.op}: cycles of schemes {', '.join(SCHEMES)} are needed, got {', '.join(self.cycles) or 'none'}"
            )
        for scheme, cycles in self.cycles.items():
            if not (math.isfinite(cycles) and cycles > 0):
                raise BadInput(f"layer {self.op}: cycles of scheme {scheme!r} must be positive, got {cycles!r}")
        if self.repeats < 1:
            raise BadInput(f"layer {self.op}: repeats must be at least 1, got {self.repeats!r}")

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        return ONE_CORE_SCHEMES if "none" in self.cycles else SCHEMES


def ideal(cycles: Mapping[Scheme, float]) -> Scheme:
    """The cheapest scheme; of equals the first of `ONE_CORE_SCHEMES`.

    >>> ideal({"m": 7.0, "n": 5.0, "k": 5.0})
    'n'
    """
    return min((scheme for scheme in ONE_CORE_SCHEMES if scheme in cycles), key=cycles.__getitem__)


def features(op: MatMul) -> tuple[int, ...]:
    """Dimensions of dX, dW and dY.

    >>> features(MatMul(M=8, N=2, K=3))
    (8, 3, 3, 2, 8, 2)
    """
    return (op.M, op.K, op.K, op.N, op.M, op.N)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnnSelector:
    """The scheme that most of the nearest known layers have; of equally many the first of `ONE_CORE_SCHEMES`.

    Of two known layers at one distance the one that comes first in the table is the nearer. Where fewer layers than `neighbours`
    are known, all of them vote.
    """

    neighbours: int = assumed(5, "known layers that vote; scikit-learn's default is 5", 1, 3, 9)
    metric: Literal["euclidean", "manhattan", "chebyshev"] = assumed(
        "euclidean", "distance between the dimensions of two layers", "manhattan", "chebyshev"
    )
    scale: Literal["raw", "log"] = assumed("raw", "dimensions as they are, or their logarithms", "log")

    def __post_init__(self) -> None:
        if isinstance(self.neighbours, bool) or not isinstance(self.neighbours, int) or self.neighbours < 1:
            raise BadInput(f"KnnSelector: neighbours must be a positive whole number, got {self.neighbours!r}")
        if self.metric not in METRICS:
            raise UnknownName("metric", self.metric, METRICS, "KnnSelector")
        if self.scale not in SCALES:
            raise UnknownName("scale", self.scale, SCALES, "KnnSelector")

    def fit(self, layers: Sequence[LayerCosts]) -> FittedKnn:
        """Learns from the cheapest schemes of known layers."""
        if not layers:
            raise BadInput("KnnSelector: no layer to learn from")
        try:
            from sklearn.neighbors import KNeighborsClassifier
        except ModuleNotFoundError:
            raise MissingExtra("scikit-learn", "knn", "the nearest-neighbours selector") from None
        # Ranks stand for distances: scikit-learn takes any of several neighbours at one distance.
        voters = KNeighborsClassifier(n_neighbors=min(self.neighbours, len(layers)), metric="precomputed", algorithm="brute")
        voters.fit(np.zeros((len(layers), len(layers))), _cheapest(_costs(layers)))
        points = self.points([layer.op for layer in layers])
        return FittedKnn(selector=self, known=points, voters=voters, schemes=_schemes(layers))

    def points(self, ops: Sequence[MatMul]) -> Floats:
        """The features of layers, one row each."""
        dimensions = np.array([features(op) for op in ops], dtype=np.float64)
        return np.log2(dimensions) if self.scale == "log" else dimensions

    def order(self, points: Floats, known: Floats) -> Integers:
        """For each point the indices of the known points, nearest first."""
        differences = np.abs(points[:, None, :] - known[None, :, :])
        if self.metric == "euclidean":
            distances = (differences * differences).sum(axis=2)
        else:
            distances = differences.sum(axis=2) if self.metric == "manhattan" else differences.max(axis=2)
        return np.argsort(distances, axis=1, kind="stable")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedKnn:
    """A selector fitted to known layers."""

    selector: KnnSelector
    known: Floats
    voters: Any = field(repr=False)
    schemes: tuple[Scheme, ...] = SCHEMES

    def choose(self, op: MatMul) -> Scheme:
        return self.choices([op])[0]

    def choices(self, ops: Sequence[MatMul]) -> list[Scheme]:
        ranks = np.argsort(self.selector.order(self.selector.points(ops), self.known), axis=1)
        return [self.schemes[number] for number in self.voters.predict(ranks.astype(np.float64))]


def lost_performance(layers: Sequence[LayerCosts], choices: Sequence[Scheme]) -> float:
    """Cycles with the chosen schemes over cycles with the cheapest, less 1.

    >>> costs = LayerCosts(op=MatMul(8, 2, 3), cycles={"m": 12.0, "n": 10.0, "k": 20.0})
    >>> round(lost_performance([costs, costs], ["m", "n"]), 3)
    0.1
    """
    if len(layers) != len(choices):
        raise BadInput(f"{len(layers)} layers and {len(choices)} choices: one for each is needed")
    chosen = sum(layer.repeats * layer.cycles[scheme] for layer, scheme in zip(layers, choices, strict=True))
    return chosen / sum(layer.repeats * min(layer.cycles.values()) for layer in layers) - 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluation:
    """How well a classifier chooses for layers that were held out, one number per repetition.

    `majority_*` is the rival that always takes the scheme that is cheapest most often among the known layers. `by_scheme` is the
    share of right choices among held-out layers with that cheapest scheme, `share` how many of all layers have it.
    `expected_cycles` are those of each layer with the choices made for it, mean over the repetitions that held it out.
    """

    selector: KnnSelector
    unit: Unit
    split: float
    seed: int
    accuracies: Floats
    losses: Floats
    majority_accuracies: Floats
    majority_losses: Floats
    by_scheme: Mapping[Scheme, float]
    share: Mapping[Scheme, float]
    expected_cycles: tuple[float, ...]

    @property
    def accuracy(self) -> float:
        return float(self.accuracies.mean())

    @property
    def spread(self) -> float:
        """Standard deviation of the accuracy between repetitions."""
        return float(self.accuracies.std())

    @property
    def lost_performance(self) -> float:
        return float(self.losses.mean())

    @property
    def majority_accuracy(self) -> float:
        return float(self.majority_accuracies.mean())

    @property
    def majority_lost_performance(self) -> float:
        return float(self.majority_losses.mean())

    def __str__(self) -> str:
        kinds = ", ".join(f"{NAMES[s]} {100 * self.by_scheme[s]:.0f} % (of {100 * self.share[s]:.0f} %)" for s in self.by_scheme)
        return (
            f"accuracy {100 * self.accuracy:.1f} +- {100 * self.spread:.1f} %, {100 * self.lost_performance:.2f} % slower than "
            f"ideal; always the most frequent scheme: {100 * self.majority_accuracy:.1f} %, "
            f"{100 * self.majority_lost_performance:.2f} % slower; right by cheapest scheme: {kinds}"
        )


def evaluate(
    layers: Sequence[LayerCosts],
    selector: KnnSelector | None = None,
    *,
    repetitions: int = 1000,
    split: float = 0.8,
    seed: int = 0,
    unit: Unit = "layers",
) -> Evaluation:
    """Repeatedly learns from a random part of the layers (or of whole networks) and chooses for the rest (Sec. 5: 80 %, 1000)."""
    selector, schemes = selector or KnnSelector(), _schemes(layers)
    parts = splits(
        tuple(layer.op for layer in layers), tuple(layer.network for layer in layers), selector, repetitions=repetitions,
        split=split, seed=seed, unit=unit,
    )  # fmt: skip
    costs, weights = _costs(layers), np.array([layer.repeats for layer in layers])
    cheapest, least = _cheapest(costs), costs.min(axis=1)
    counts = np.bincount(cheapest, minlength=len(schemes))
    scores = np.zeros((4, repetitions))
    right, held_out, spent = np.zeros(len(layers)), np.zeros(len(layers)), np.zeros(len(layers))
    for repetition, (test, near) in enumerate(parts):
        majority = (counts - np.bincount(cheapest[test], minlength=len(schemes))).argmax()
        cycles = costs[test, _votes(near, cheapest, len(schemes)).argmax(axis=1)]
        for row, cycles_chosen in ((0, cycles), (2, costs[test, majority])):
            scores[row, repetition] = (cycles_chosen <= least[test]).mean()
            scores[row + 1, repetition] = (weights[test] * cycles_chosen).sum() / (weights[test] * least[test]).sum() - 1.0
        right[test] += cycles <= least[test]
        held_out[test] += 1
        spent[test] += cycles
    present = [number for number in range(len(schemes)) if held_out[cheapest == number].any()]
    return Evaluation(
        selector=selector,
        unit=unit,
        split=split,
        seed=seed,
        accuracies=scores[0],
        losses=scores[1],
        majority_accuracies=scores[2],
        majority_losses=scores[3],
        by_scheme={schemes[s]: float(right[cheapest == s].sum() / held_out[cheapest == s].sum()) for s in present},
        share={schemes[s]: float((cheapest == s).mean()) for s in present},
        expected_cycles=tuple(np.where(held_out > 0, spent / np.maximum(held_out, 1), least).tolist()),
    )


Splits = tuple[tuple[Integers, Integers], ...]
"""Of each repetition the layers that are held out, and of each of these the nearest known ones (-1 where fewer are known)."""


@lru_cache(maxsize=CACHED_SPLITS)
def splits(
    ops: tuple[MatMul, ...],
    networks: tuple[str, ...],
    selector: KnnSelector,
    *,
    repetitions: int = 1000,
    split: float = 0.8,
    seed: int = 0,
    unit: Unit = "layers",
) -> Splits:
    """The random parts of an evaluation: they depend on the layers' dimensions, not on what layers cost."""
    groups = _groups(networks, unit, repetitions, split)
    points = selector.points(ops)
    order = selector.order(points, points)
    generator, learned = np.random.default_rng(seed), _learned_groups(groups, split)
    parts = []
    for _ in range(repetitions):
        known = generator.permutation(int(groups.max()) + 1)[groups] < learned
        test = np.flatnonzero(~known)
        parts.append((test, _nearest(order[test], known, selector.neighbours)))
    return tuple(parts)


def _nearest(order: Integers, known: npt.NDArray[np.bool_], neighbours: int) -> Integers:
    """The first known ones of each row, as many as vote; rows are looked at as far as it takes."""
    width = 4 * neighbours
    while True:
        is_known = known[order[:, :width]]
        if width >= order.shape[1] or (is_known.sum(axis=1) >= neighbours).all():
            break
        width *= 2
    first = np.argsort(~is_known, axis=1, kind="stable")[:, :neighbours]
    nearest: Integers = np.where(np.take_along_axis(is_known, first, axis=1), np.take_along_axis(order, first, axis=1), -1)
    return nearest


def _votes(near: Integers, cheapest: Integers, schemes: int) -> Integers:
    """How many of the nearest known layers have each scheme as their cheapest."""
    votes = np.where(near >= 0, cheapest[near], -1)
    return np.stack([(votes == number).sum(axis=1) for number in range(schemes)], axis=1)


def _groups(networks: Sequence[str], unit: str, repetitions: int, split: float) -> Integers:
    """For each layer the number of its group, which is held out together: the layer itself, or its network."""
    if unit not in UNITS:
        raise UnknownName("unit", unit, UNITS, "evaluate")
    if repetitions < 1:
        raise BadInput(f"evaluate: repetitions must be at least 1, got {repetitions!r}")
    if not 0.0 < split < 1.0:
        raise BadInput(f"evaluate: split is the share of {unit} to learn from, between 0 and 1, got {split!r}")
    names = range(len(networks)) if unit == "layers" else networks
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    if len(numbers) < 2:
        raise BadInput(f"evaluate: {len(numbers)} of {unit}: at least two are needed, one to learn from and one to hold out")
    return np.array([numbers[name] for name in names], dtype=np.int64)


def _learned_groups(groups: Integers, split: float) -> int:
    """Number of groups to learn from: at least one, at most all but one."""
    count = int(groups.max()) + 1
    return min(max(round(split * count), 1), count - 1)


def _costs(layers: Sequence[LayerCosts]) -> Floats:
    schemes = _schemes(layers)
    return np.array([[layer.cycles[scheme] for scheme in schemes] for layer in layers], dtype=np.float64)


def _schemes(layers: Sequence[LayerCosts]) -> tuple[Scheme, ...]:
    """The schemes that all layers have."""
    if len({layer.schemes for layer in layers}) > 1:
        raise BadInput("some layers have the cycles of a whole layer (none), others have not: give them for all or for no layer")
    return layers[0].schemes if layers else SCHEMES


def _cheapest(costs: Floats) -> Integers:
    schemes: Integers = costs.argmin(axis=1)
    return schemes
