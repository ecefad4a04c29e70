"""The parts of levels by hand: ports, kinds of tiles, menus, bounds, and what a product moves and keeps busy."""

from __future__ import annotations

import numpy as np
import pytest

from trainyard.arrays import Systolic
from trainyard.ir import ArrayCost, MatMul
from trainyard.ir.folds import Folds
from trainyard.mapping.levels.array import LeveledArray, OnChip, leveled
from trainyard.mapping.levels.level import Level
from trainyard.mapping.levels.stages import Wire, _kind_sizes, _weights, exact_forms, least_forms, menu

ARRAY = Systolic(rows=4, columns=4)
CROSSING = np.array([10.0, 20.0, 30.0, 99.0])
"""Elements of a, b and sums; the last are sums that are read, which cross no port between levels."""
# fmt: off
WIRES = [
    # read   write  operands that use it   cycles of 2, 2 and 4 bytes
    (None,   None,  (1, 1, 1),             0),
    (7.0,    None,  (1, 1, 1),             26),    # 20 + 40 + 120 = 180
    (7.0,    None,  (1, 0, 0),             3),
    (7.0,    None,  (0, 1, 1),             23),    # 160
    (7.0,    50.0,  (1, 1, 1),             9),     # 60 in, 120 out beside it
    (7.0,    10.0,  (1, 1, 1),             12),
    (7.0,    10.0,  (1, 1, 0),             9),
    (180.0,  None,  (1, 1, 1),             1),
    (179.0,  None,  (1, 1, 1),             2),
]
# fmt: on


@pytest.mark.parametrize(("read", "write", "wired", "cycles"), WIRES)
def test_a_port_takes_whole_cycles_for_both_ways_together_or_for_the_longer_of_two(
    read: float | None, write: float | None, wired: tuple[int, int, int], cycles: int
) -> None:
    assert Wire(read, write).cycles(CROSSING, (2, 2, 4), np.array(wired)) == cycles


def test_a_port_is_that_of_its_level() -> None:
    level = Level(name="near", size_bytes=64, width_bytes_per_cycle=8.0, write_width_bytes_per_cycle=4.0)
    assert Wire.of(level) == Wire(8.0, 4.0, "near")
    assert Wire().name == "scratchpad"


def test_kinds_of_tiles_are_full_or_clipped_along_each_axis_and_all_are_counted() -> None:
    assert dict(_weights((5, 4, 6), (2, 4, 4))) == {(2, 4, 4): 2, (2, 4, 2): 2, (1, 4, 4): 1, (1, 4, 2): 1}
    assert _weights((4, 4, 4), (4, 4, 4)) == [((4, 4, 4), 1)]
    assert dict(_weights((4, 4, 4), (2, 2, 2))) == {(2, 2, 2): 8}
    kinds = _kind_sizes((5, 4, 6), np.array([[2, 4, 4]]))
    assert kinds[0, 0, 0, 0].tolist() == [2, 4, 4]
    assert kinds[0, 1, 0, 0].tolist() == [1, 4, 4]
    assert kinds[0, 0, 0, 1].tolist() == [2, 4, 2]
    assert kinds[0, 1, 1, 1].tolist() == [1, 4, 2]


def test_menus_have_every_small_size_and_of_large_ones_parts_in_whole_granules() -> None:
    assert menu(16, 4) == tuple(range(1, 17))
    # parts 17, 9, 6, 5, 4, 3, 2, 1 rounded up to fours above four; and doublings of four
    assert menu(17, 4) == (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17)
    assert set(menu(100, 64)) >= {100, 50, 34, 25, 64}
    assert 128 not in menu(100, 64)


def test_one_closed_form_bounds_by_itself_and_several_by_all_their_units() -> None:
    """Two grids of four units: 4 x 1 and 1 x 4. A product in parts may take both."""

    class Shaped(Systolic):
        shapes: tuple[Folds, ...] = ()

        @property
        def folds(self) -> tuple[Folds, ...]:
            return self.shapes

    wide, tall = Folds(m=4, n=1, k=2, stream="k", fixed=3), Folds(m=1, n=4, k=2, stream="k", fixed=3)

    def array(*forms: Folds) -> Systolic:
        made = Shaped(rows=4, columns=4)
        type(made).shapes = forms
        return made

    assert least_forms(array(wide)) == exact_forms(array(wide)) == (wide,)
    assert least_forms(array(wide, tall)) == (Folds(m=1, n=1, k=2, stream="k", fixed=3, units=4),)
    assert least_forms(array(wide, Folds(m=1, n=4, k=2, stream="k", fixed=4))) == ()
    assert least_forms(array(wide, Folds(m=1, n=4, k=2, stream="m", fixed=3))) == ()
    assert least_forms(array(wide, Folds(m=2, n=4, k=5, stream="k", fixed=3, units=3)))[0] == Folds(
        m=1, n=1, k=5, stream="k", fixed=3, units=24
    )


class Plain:
    """An array without closed forms: a cycle for each multiplication; every operand crosses its port once, sums twice."""

    peak_macs_per_cycle = 1

    def granule(self) -> tuple[int, int, int]:
        return 1, 1, 1

    def cost(self, op: MatMul, **operands: object) -> ArrayCost:
        sums = op.M * op.N * op.count
        events = {
            "mac": op.macs, "scratchpad_read_a": op.count * op.M * op.K, "scratchpad_read_b": op.count * op.K * op.N,
            "scratchpad_write_out": sums, "scratchpad_read_out": sums,
        }  # fmt: skip
        return ArrayCost(cycles=op.macs, events=events)

    def concurrent(self, products: object) -> ArrayCost:
        raise NotImplementedError


def test_a_level_that_holds_everything_is_filled_once_and_read_for_each_tile() -> None:
    """Its operands come in once, its sums leave once; sums are read to be added to, and as they leave."""
    level = Level(name="local", size_bytes=1000, width_bytes_per_cycle=1000.0, bypass="never")
    array = LeveledArray(Plain(), (level,), Wire(), (2, 2, 4))
    a, b, out = 2 * 4, 4 * 3, 2 * 3
    events = array.cost(MatMul(2, 3, 4, 5)).events
    assert events["mac"] == 5 * 24
    assert (events["scratchpad_read_a"], events["scratchpad_read_b"], events["scratchpad_write_out"]) == (5 * a, 5 * b, 5 * out)
    ((owner, choice),) = array.choices(2, 3, 4)
    m, n, k = (-(-extent // size) for extent, size in zip((2, 3, 4), choice.tile, strict=True))
    assert (owner, choice.held) == (level, (1, 1, 1))
    assert events["level:local_write"] == 5 * (2 * a + 2 * b + 4 * out * k)
    begun = out * (k - 1)  # by an earlier tile
    assert events["level:local_read"] == 5 * (2 * a * n + 2 * b * m + 4 * (out * k + begun + out))


def test_what_is_busy_longest_bounds_a_product() -> None:
    """24 multiplications; 40 bytes in and 24 out."""
    for width, inner, bound in (
        (64.0, 64.0, "compute"),
        (1.0, 64.0, "scratchpad"),
        (64.0, 1.0, "local"),
        (64 / 24, 64.0, "compute"),
    ):
        level = Level(name="local", size_bytes=1000, width_bytes_per_cycle=inner, bypass="never")
        array = LeveledArray(Plain(), (level,), Wire(width), (2, 2, 4))
        assert array.bound(MatMul(2, 3, 4)) == bound


def test_tiles_take_at_least_what_the_array_and_the_port_of_the_scratchpad_take() -> None:
    sizes = np.array([[4, 4, 4], [8, 4, 4]])
    slow = LeveledArray(ARRAY, (), Wire(1.0), (2, 2, 4))
    assert slow.least_cycles(sizes).tolist() == [2 * 16 + 2 * 16 + 4 * 16, 2 * 32 + 2 * 16 + 4 * 32]
    fast = LeveledArray(ARRAY, (), Wire(), (2, 2, 4))
    assert fast.least_cycles(sizes).tolist() == [ARRAY.tile_cycles(4, 4, 4), ARRAY.tile_cycles(8, 4, 4)]
    assert LeveledArray(Plain(), (), Wire(), (2, 2, 4)).least_cycles(sizes).tolist() == [0.0, 0.0]


def test_sums_on_chip_are_accumulators_or_results_whichever_is_wider() -> None:
    memory = OnChip(levels=(), outside=Wire(8.0))
    assert memory.around(ARRAY, (2, 1, 2)).element_bytes == (2, 1, 4)
    assert memory.around(ARRAY, (8, 8, 8)).element_bytes == (8, 8, 8)
    assert memory.around(ARRAY, (2, 1, 2)) is leveled(ARRAY, (), Wire(8.0), (2, 1, 4)), "tiles are searched once"
    assert memory.around(ARRAY, (2, 1, 2)).peak_macs_per_cycle == 16
