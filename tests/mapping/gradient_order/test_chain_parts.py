"""The parts of a chain of two layers by hand: bytes that it needs and moves at least, and the candidates of its search."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainyard.errors import BadInput
from trainyard.ir import MatMul
from trainyard.mapping.gradient_order.chain import (
    Chain,
    ChainChoice,
    ChainTraffic,
    _candidates,
    _least_bytes_apart,
    _op_elements,
    _operations,
    _weight_gradient_least,
    _with_few_operations,
    chain_traffic,
    edges,
)
from trainyard.mapping.gradient_order.scratchpad import Pair, Traffic

UPPER, LOWER = MatMul(8, 2, 4, 2), MatMul(8, 4, 3, 2)


def pair(op: MatMul, rates: tuple[int, int, int, int, int], moved: int = 1) -> Pair:
    """Bytes of an element of dY, W, X, dX and dW in the scratchpad; `moved` times as many move."""
    elements = (op.M * op.N, op.K * op.N, op.M * op.K, op.M * op.K, op.K * op.N)
    y, w, x, d, g = (op.count * rate * size for rate, size in zip(rates, elements, strict=True))
    return Pair(op=op, moved=(moved * y, moved * w, moved * x, moved * d, moved * g), resident=(y, w, x, d, g), sums=(d, g))


CHAIN = Chain(upper=pair(UPPER, (1, 2, 3, 4, 5), 10), lower=pair(LOWER, (7, 6, 2, 8, 9), 10), passing_bytes=128)


def test_rates_are_those_of_both_layers_and_of_the_gradient_between_them() -> None:
    """dX of the upper layer moves only what passes: 128 bytes over 2 x 8 x 4 elements. As dY below it takes the smaller room."""
    rates = CHAIN.rates
    assert rates[:, 0].tolist() == [1, 2, 3, 4, 5, 6, 2, 8, 9]
    assert rates[:, 1].tolist() == [10, 20, 30, 2, 50, 60, 20, 80, 90]
    assert rates[3, 3:].tolist() == [4, 70]
    narrow = replace(CHAIN, lower=pair(LOWER, (3, 6, 2, 8, 9), 10))
    assert narrow.rates[3, 3:].tolist() == [3, 30]


# fmt: off
NEEDED = [
    # tile (m, n, k) and j    masked  lower dX   the largest of three operations
    ((2, 2, 2), 3,            True,   True,      max(4 + 8 + 16 + 12, 12 + 4 + 20, max(12 + 54, 36 + 48) + 16)),
    ((2, 2, 2), 3,            True,   False,     12 + 54 + 16),
    ((8, 2, 4), 1,            True,   True,      16 + 16 + 128 + 96),       # with the mask
    ((8, 2, 4), 1,            False,  True,      max(16 + 16 + 128, 96 + 16 + 40, max(16 + 36, 24 + 64) + 128)),
    ((99, 99, 99), 99,        True,   True,      max(16 + 16 + 128 + 96, max(48 + 108, 72 + 192) + 128)),
]
# fmt: on


@pytest.mark.parametrize(("tile", "j", "masked", "lower_dx", "expected"), NEEDED)
def test_an_operation_needs_its_tiles_and_the_mask(
    tile: tuple[int, int, int], j: int, masked: bool, lower_dx: bool, expected: int
) -> None:
    chain = replace(CHAIN, masked=masked, lower_dx=lower_dx)
    assert chain.needed(tile, (tile[0], tile[2], j)) == expected


def test_all_moves_once_but_the_gradient_between() -> None:
    upper, lower = CHAIN.upper.moved, CHAIN.lower.moved
    assert CHAIN.compulsory_bytes == upper[0] + upper[1] + upper[2] + upper[4] + sum(lower[1:]) + 128
    assert replace(CHAIN, lower_dx=False).compulsory_bytes == sum(upper) - upper[3] + lower[2] + lower[4] + 128


@pytest.mark.parametrize("lower", [MatMul(7, 4, 3, 2), MatMul(8, 5, 3, 2), MatMul(8, 4, 3, 1)])
def test_layers_that_do_not_stand_on_one_another_are_refused(lower: MatMul) -> None:
    with pytest.raises(BadInput, match="does not stand on"):
        Chain(upper=Pair.dense(UPPER, 1), lower=Pair.dense(lower, 1))


def test_tiles_are_whole_positive_numbers() -> None:
    sizes = {"tile_upper": (2, 2, 2), "tile_lower": (2, 2, 2), "capacity_bytes": 64, "element_bytes": 1}
    for change in ({"tile_upper": (2, 0, 2)}, {"element_bytes": 0}, {"tile_lower": (2, 2, 1.5)}, {"element_bytes": True}):
        with pytest.raises(BadInput):
            chain_traffic(MatMul(8, 2, 4), MatMul(8, 4, 2), **sizes | change)  # type: ignore[arg-type]


def test_a_choice_pays_where_it_moves_fewer_bytes() -> None:
    moved = ChainTraffic(upper=Traffic(bytes={("W", "read"): 60, ("dX", "spill"): 7}), lower=Traffic(bytes={("W", "read"): 33}))
    assert (moved.total_bytes, moved.between_bytes) == (100, 7)
    for apart, least, pays, beats, saved in ((101, 100, True, False, 1), (100, 101, False, True, 0), (90, 0, False, False, 0)):
        choice = ChainChoice(
            upper=UPPER, lower=LOWER, tile_upper=(1, 1, 1), tile_lower=(1, 1, 1), join="block", traffic=moved, apart_bytes=apart,
            apart_least_bytes=least,
        )  # fmt: skip
        assert (choice.pays, choice.beats_any_apart, choice.saved_bytes) == (pays, beats, saved)


def test_edges_are_halved_down_to_the_granule() -> None:
    assert edges(64, 32) == [64, 32]
    assert edges(65, 32) == [65, 33]
    assert edges(128, 32) == [128, 64, 32]
    assert edges(32, 32) == [32]
    assert edges(3, 32) == [3]


def test_operations_and_elements_of_a_tile() -> None:
    assert _operations(MatMul(8, 2, 5), (4, 2, 2)) == 2 * 2 * 1 * 3
    assert _op_elements(MatMul(8, 2, 5), (4, 9, 2), masked=False) == 4 * 2 + 2 * 2 + 4 * 2
    assert _op_elements(MatMul(8, 2, 5), (4, 9, 2), masked=True) == 4 * 2 + 2 * 2 + 2 * 4 * 2


def test_many_operations_are_tried_only_where_all_have_many() -> None:
    assert _with_few_operations([(8000, "a"), (8001, "b"), (10, "c")]) == ["a", "c"]
    assert _with_few_operations([(9001, "a"), (9000, "b"), (9002, "c")]) == ["b"]
    assert _with_few_operations([]) == []


def test_candidates_fit_both_layers_and_share_the_tile_between_them() -> None:
    """64 x 64 x 64 over 64 x 64 x 64: a tile of 64 needs four matrices with the mask, three without."""
    upper = lower = MatMul(64, 64, 64)
    assert ((64, 64, 64), (64, 64, 64)) in _candidates(upper, lower, 4 * 64 * 64, "relu", 32)
    assert ((64, 64, 64), (64, 64, 64)) not in _candidates(upper, lower, 4 * 64 * 64 - 1, "relu", 32)
    assert ((64, 64, 64), (64, 64, 64)) in _candidates(upper, lower, 3 * 64 * 64, "none", 32)
    found = _candidates(upper, lower, 10**9, "relu", 32)
    assert len(found) == 2**4
    assert all((m, k) == (below_m, below_n) for (m, _, k), (below_m, below_n, _) in found)
    assert _candidates(upper, lower, 4 * 32 * 32 - 1, "relu", 32) == []


def test_a_layer_apart_moves_all_once_where_it_fits() -> None:
    op = MatMul(64, 32, 48, 3)
    once = 2 * 3 * (64 * 32 + 2 * 48 * 32 + 2 * 64 * 48)
    assert _least_bytes_apart(op, 10**6, 2, "lru", 32) == once
    assert _weight_gradient_least(op, 10**9, 2) == 2 * 3 * (48 * 64 + 64 * 32 + 48 * 32)


def test_candidates_with_more_than_8000_operations_of_both_layers_are_left_out() -> None:
    """In sixteenths along m and k, eighths along n and j: 4096 operations of each layer."""
    upper = lower = MatMul(64, 64, 64)
    found = _candidates(upper, lower, 10**9, "relu", 4)
    assert ((4, 8, 4), (4, 4, 8)) not in found
    assert ((8, 8, 4), (8, 4, 8)) in found
