"""Memory levels: cycles and bytes equal the plain walk of all loops, and the search finds what brute force finds."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles.level_walk import ORDERS, Mask, Moved, Size, level_walk

from trainyard.arrays import Spatial, Systolic, TensorCore
from trainyard.errors import BadInput
from trainyard.ir import Array, MatMul
from trainyard.ir.protocols import HasTileCycles
from trainyard.kernels.mapping import level_tiles
from trainyard.mapping.levels.array import LeveledArray
from trainyard.mapping.levels.level import OPERANDS, Level
from trainyard.mapping.levels.stages import PORTS, TOLERANCE, LevelStage, PortStage, Wire, menu
from trainyard.mapping.tile_descent import CountedTiles
from trainyard.mapping.tiling import TENSORS, Problem, Supply, Tiling, evaluate, needed_bytes, search

ARRAYS = [
    Systolic(rows=4, columns=4),
    Systolic(rows=2, columns=3, dataflow="os"),
    Systolic(rows=3, columns=2, dataflow="is", pipelined=True),
    Spatial(elements=4, macs_per_element=2, buffer_bytes=256),
    TensorCore(tiles=2, rows=2, columns=2, lanes=2),
]
widths = st.sampled_from([None, 1.0, 2.5, 8.0, 64.0])
sides = st.integers(1, 9)


@st.composite
def level_lists(draw: Any, most: int = 2) -> tuple[Level, ...]:
    levels = []
    for name in ("shared", "registers")[: draw(st.integers(0, most))]:
        width = draw(widths)
        levels.append(
            Level(
                name=name,
                size_bytes=draw(st.sampled_from([24, 60, 200, 2000])),
                width_bytes_per_cycle=width,
                write_width_bytes_per_cycle=None if width is None else draw(st.sampled_from([None, 1.5, 16.0])),
                holds=tuple(draw(st.sets(st.sampled_from(OPERANDS)))),
                bypass=draw(st.sampled_from(["search", "never"])),
                double_buffered=draw(st.booleans()),
            )
        )
    return tuple(levels)


def stage_at(leveled: LeveledArray, depth: int) -> LevelStage:
    stage: Any = leveled.stage
    for _ in range(depth):
        stage = stage.inside
    assert isinstance(stage, LevelStage)
    return stage


def walked(leveled: LeveledArray, size: Size) -> tuple[int, Moved]:
    """The plain walk of the tiles that the search chose."""

    def mapping(depth: int, product: Size, wired: Mask) -> tuple[Size, str, Mask]:
        choice = stage_at(leveled, depth).choice(product, wired)
        return choice.tile, ORDERS[choice.order], choice.held

    return level_walk(leveled.array, leveled.levels, leveled.outside, leveled.element_bytes, size, mapping)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(ARRAYS), level_lists(), widths, st.tuples(sides, sides, sides), st.sampled_from([(2, 2, 4), (4, 1, 4)]))
def test_cycles_and_bytes_of_every_level_equal_the_walk(
    array: Array, levels: tuple[Level, ...], width: float | None, size: Size, element_bytes: tuple[float, float, float]
) -> None:
    leveled = LeveledArray(array, levels, Wire(width), element_bytes)
    cycles, moved = walked(leveled, size)
    assert leveled.tile_cycles(*size) == cycles
    events = leveled.cost(MatMul(*size)).events
    assert [events[port] for port in PORTS] == pytest.approx(moved.crossing)
    for level in levels:
        assert events[f"level:{level.name}_read"] == pytest.approx(moved.read.get(level.name, 0.0))
        assert events[f"level:{level.name}_write"] == pytest.approx(moved.written.get(level.name, 0.0))
    plain = array.cost(MatMul(*size)).events
    assert events["mac"] == plain["mac"]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(ARRAYS), st.tuples(sides, sides, sides), st.tuples(sides, sides, sides), st.sampled_from(ORDERS),
    st.tuples(*[st.integers(0, 1)] * 3), st.tuples(*[st.integers(0, 1)] * 3), st.booleans(), widths, widths,
)  # fmt: skip
def test_every_tile_and_order_has_the_cycles_of_the_walk(
    array: Array, size: Size, tile: Size, order: str, held: Mask, wired: Mask, double: bool, width: float | None, port: float | None
) -> None:
    """The kernel on tiles that no search would choose."""
    tile = tuple(min(one, extent) for one, extent in zip(tile, size, strict=True))  # type: ignore[assignment]
    level = Level(name="local", size=10**6, width_bytes_per_cycle=port, double_buffered=double)
    stage = LevelStage(level, Wire(width), PortStage(array, Wire(port), (2, 2, 4)), array, (2, 2, 4))
    kinds, crossed = stage._kinds(size, np.array([tile]), np.array([held]))
    sides_of = [(one, -(-extent // one), extent - (-(-extent // one) - 1) * one) for one, extent in zip(tile, size, strict=True)]
    streams = np.zeros((2, 2, 2, 2))
    for kind in itertools.product((0, 1), repeat=3):
        past = crossed[(0, *kind)][:3] * (2, 2, 4) * (1 - np.array(held)) * wired
        streams[kind] = past[0] + past[1], past[2]
    rates = np.array([2.0, 2.0, 4.0]) * held * wired
    loops = np.array(["mnk".index(axis) for axis in order])
    loops.setflags(write=False)  # as the search passes them: no second copy is compiled
    cycles = level_tiles.step_cycles(
        np.array(sides_of), loops, rates, Wire(width).speeds, double, kinds[0], streams, np.inf, np.empty((3, 3), np.int64)
    )
    expected, _ = level_walk(array, (level,), (width, None), (2, 2, 4), size, lambda *_: (tile, order, held), wired)
    assert cycles == expected


def brute_force(leveled: LeveledArray, size: Size) -> int:
    """Least cycles through one level over all tile sizes, loop orders and sets of operands that it holds."""
    (level,) = leveled.levels
    stage = stage_at(leveled, 0)
    best = None
    for held in stage.subsets:
        for tile in itertools.product(*(range(1, extent + 1) for extent in size)):
            m, n, k = tile
            sizes = (m * k, k * n, m * n)
            if sum(one * byte * on for one, byte, on in zip(sizes, leveled.element_bytes, held, strict=True)) > level.room_bytes:
                continue
            for order in ORDERS:
                cycles, _ = level_walk(
                    leveled.array, leveled.levels, leveled.outside, leveled.element_bytes, size,
                    lambda *_, chosen=(tile, order, held): chosen,
                )  # fmt: skip
                best = cycles if best is None else min(best, cycles)
    assert best is not None
    return best


@pytest.mark.parametrize("seed", range(12))
def test_the_search_is_within_its_tolerance_of_brute_force(seed: int) -> None:
    random = np.random.default_rng(seed)
    size = tuple(int(side) for side in random.integers(1, 6, 3))
    level = Level(
        name="local", size_bytes=int(random.choice([24, 60, 120])), width_bytes_per_cycle=random.choice([2.0, 16.0]),
        double_buffered=bool(random.integers(2)), bypass=str(random.choice(["search", "never"])),
    )  # fmt: skip
    leveled = LeveledArray(ARRAYS[seed % len(ARRAYS)], (level,), Wire(float(random.choice([1.0, 4.0, 20.0]))), (2, 2, 4))
    best, found = brute_force(leveled, size), leveled.tile_cycles(*size)  # type: ignore[arg-type]
    assert best <= found <= best * (1 + TOLERANCE)


@pytest.mark.parametrize("seed", range(4))
def test_tiles_of_scratchpad_and_level_are_within_a_percent_of_brute_force_over_both(seed: int) -> None:
    random = np.random.default_rng(100 + seed)
    size = tuple(int(side) for side in random.integers(2, 5, 3))
    level = Level(name="local", size_bytes=int(random.choice([24, 40])), width_bytes_per_cycle=8.0, bypass="never")
    leveled = LeveledArray(ARRAYS[seed % len(ARRAYS)], (level,), Wire(float(random.choice([2.0, 6.0]))), (2, 2, 4))
    problem = Problem.dense(MatMul(*size), element_bytes=2)
    supply = Supply(
        resident_bytes=int(random.choice([40, 80, 200])), bytes_per_cycle=1.0, latency_cycles=int(random.integers(0, 5))
    )
    counted = CountedTiles(leveled, lambda m, n, k: brute_force(leveled, (m, n, k)))
    best = None
    for tile in itertools.product(*(range(1, extent + 1) for extent in size)):
        for order, keep in itertools.product(ORDERS, itertools.chain(*(itertools.combinations(TENSORS, r) for r in range(3)))):
            tiling = Tiling(m=tile[0], n=tile[1], k=tile[2], order=order, keep=keep)
            if needed_bytes(problem, tiling) <= supply.resident_bytes:
                cycles = evaluate(problem, tiling, counted, supply).cycles
                best = cycles if best is None else min(best, cycles)
    (found,) = search([problem], leveled, supply)
    assert best is not None
    assert best <= found.cycles <= best * 1.01 * (1 + TOLERANCE)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(ARRAYS), st.tuples(*[st.integers(1, 40)] * 3), st.sampled_from([16, 100, 4096]), st.booleans())
def test_a_level_of_any_size_behind_an_endless_port_changes_no_cycles(array: Array, size: Size, room: int, double: bool) -> None:
    leveled = LeveledArray(array, (Level(name="local", size_bytes=room, double_buffered=double),), Wire(), (2, 2, 4))
    assert isinstance(array, HasTileCycles)
    alone = array.tile_cycles(*size)
    assert min(form.cycles(*size) for form in leveled.lower_bounds) <= leveled.tile_cycles(*size) <= alone * (1 + TOLERANCE)


@settings(max_examples=settings.default.max_examples // 3, deadline=None)
@given(
    st.sampled_from(ARRAYS), st.tuples(*[st.integers(1, 40)] * 3), st.sampled_from([64, 300, 1000]),
    st.sampled_from([1.0, 4.0, 20.0]), st.booleans(),
)  # fmt: skip
def test_a_wider_or_larger_level_is_never_slower(array: Array, size: Size, room: int, width: float, double: bool) -> None:
    def cycles(factor: int, outer: int, inner: int) -> int:
        level = Level(name="local", size_bytes=room * factor, width_bytes_per_cycle=width * 2 * inner, double_buffered=double)
        return LeveledArray(array, (level,), Wire(width * outer), (2, 2, 4)).tile_cycles(*size)

    plain = cycles(1, 1, 1)
    for changed in ((2, 1, 1), (1, 2, 1), (1, 1, 2), (3, 1, 1)):
        assert cycles(*changed) <= plain * 1.01


def test_levels_that_hold_nothing_leave_cycles_and_events_as_they_are() -> None:
    for array in ARRAYS:
        leveled = LeveledArray(array, (Level(name="none", size_bytes=64, holds=()),), Wire(), (2, 2, 4))
        op = MatMul(7, 5, 11, 3)
        events = {name: count for name, count in leveled.cost(op).events.items() if not name.startswith("level:")}
        assert events == array.cost(op).events
        assert isinstance(array, HasTileCycles)
        assert leveled.tile_cycles(7, 5, 11) == array.tile_cycles(7, 5, 11)


def test_a_port_is_waited_for_from_the_first_byte_too_many() -> None:
    """A 4 x 4 array takes 4 x 4 x 4 in 14 cycles, with 32 bytes of each operand and 64 of sums over its port."""
    array = Systolic(rows=4, columns=4)
    for width, cycles in ((128 / 14, 14), (128 / 14 - 0.001, 15), (64.0, 14), (1.0, 128)):
        assert LeveledArray(array, (), Wire(width), (2, 2, 4)).tile_cycles(4, 4, 4) == cycles
    assert LeveledArray(array, (), Wire(4.5, 4.5), (2, 2, 4)).tile_cycles(4, 4, 4) == 15  # 64 bytes each way, side by side


def test_a_level_too_small_for_one_element_says_the_least_that_works() -> None:
    level = Level(name="local", size_bytes=15, bypass="never")
    with pytest.raises(BadInput, match=r"local: 15 bytes do not hold one element of a, b, out twice.*at least 16 B"):
        LeveledArray(ARRAYS[0], (level,), Wire(), (2, 2, 4)).tile_cycles(2, 2, 2)
    LeveledArray(ARRAYS[0], (Level(name="local", size_bytes=16, bypass="never"),), Wire(), (2, 2, 4)).tile_cycles(2, 2, 2)


def test_three_levels_are_one_rule_applied_again() -> None:
    levels = (
        Level(name="shared", size_bytes=2000, width_bytes_per_cycle=16.0),
        Level(name="local", size_bytes=300, width_bytes_per_cycle=32.0, holds=("a", "b"), double_buffered=False),
        Level(name="registers", size_bytes=64, width_bytes_per_cycle=64.0, holds=("b",)),
    )
    leveled = LeveledArray(ARRAYS[0], levels, Wire(8.0), (2, 2, 4))
    cycles, moved = walked(leveled, (12, 9, 10))
    assert leveled.tile_cycles(12, 9, 10) == cycles
    assert set(moved.read) <= {"shared", "local", "registers"}


def test_the_menu_has_whole_dimensions_and_no_size_twice() -> None:
    for extent, granule in itertools.product((1, 5, 16, 17, 100, 4097), (1, 4, 128)):
        sizes = menu(extent, granule)
        assert sizes[-1] == extent
        assert sizes == tuple(sorted(set(sizes)))
        assert sizes[0] >= 1
