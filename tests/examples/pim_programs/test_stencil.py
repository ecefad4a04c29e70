"""The heat equation on blocks: bit for bit numpy's on the whole grid, whatever the cut, the halo and the borders."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pim_programs.grid import Blocks, Borders, Cut, Points, require_grid, step_sizes
from pim_programs.stencil import cell_instructions, heat
from trainyard.devices.dpu.presets import MAC_DPU, UPMEM
from trainyard.errors import BadInput
from trainyard.systems.pim.systems import DpuToDpu, HostMediated


def whole_grid(grid: npt.NDArray, steps: int, points: Points, alpha: float, borders: Borders) -> npt.NDArray:
    """Numpy on all cells at once, in the order of operations that the module states."""
    grid = grid.copy()
    for _ in range(steps):
        held = np.pad(grid, 1, mode="wrap")
        at = {
            (y, x): held[1 + y : held.shape[0] - 1 + y, 1 + x : held.shape[1] - 1 + x]
            for y, x in itertools.product((-1, 0, 1), repeat=2)
        }
        c = grid
        near = at[-1, 0] + at[1, 0] + at[0, -1] + at[0, 1]
        corners = at[-1, -1] + at[-1, 1] + at[1, -1] + at[1, 1]
        if grid.dtype == np.int32:
            shift = round(-np.log2(alpha))
            new = c + ((near - 4 * c) >> shift if points == 5 else (2 * near + corners - 12 * c) >> (shift + 2))
        else:
            four = np.float32(4)
            sum_of = near - four * c if points == 5 else near + near + corners - np.float32(12) * c
            new = c + (np.float32(alpha) if points == 5 else np.float32(alpha) / four) * sum_of
        assert new.dtype == grid.dtype
        if borders == "fixed":
            new[[0, -1], :], new[:, [0, -1]] = grid[[0, -1], :], grid[:, [0, -1]]
        grid = new
    return grid


def on_blocks(grid: npt.NDArray, steps: int, cut: Cut, alpha: float) -> npt.NDArray:
    blocks = Blocks(grid, cut, alpha)
    for size in step_sizes(steps, cut.halo):
        blocks.exchange()
        blocks.advance(size)
    return blocks.gathered()


@st.composite
def cases(draw: st.DrawFn) -> tuple[Cut, int]:
    rows, columns, halo = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    height, width = (draw(st.integers(parts * halo, parts * halo + 9)) for parts in (rows, columns))
    borders, points = draw(st.sampled_from(("fixed", "periodic"))), draw(st.sampled_from((5, 9)))
    cut = Cut(height=height, width=width, rows=rows, columns=columns, halo=halo, borders=borders, points=points)
    return cut, draw(st.integers(1, 7))


@pytest.mark.oracle
@given(cases(), st.sampled_from(("float32", "int32")), st.sampled_from((0.25, 0.125, 0.0625)), st.integers(0, 99))
def test_blocks_give_the_bits_of_the_whole_grid(case: tuple[Cut, int], dtype: str, alpha: float, seed: int) -> None:
    cut, steps = case
    draw = np.random.default_rng(seed)
    grid = draw.integers(-1000, 1000, (cut.height, cut.width)).astype(np.int32)
    if dtype == "float32":
        grid = draw.standard_normal((cut.height, cut.width)).astype(np.float32)
    assert on_blocks(grid, steps, cut, alpha).tobytes() == whole_grid(grid, steps, cut.points, alpha, cut.borders).tobytes()


def test_an_alpha_that_is_no_power_of_two_gives_the_same_bits() -> None:
    grid = np.random.default_rng(0).standard_normal((40, 56)).astype(np.float32)
    for points, borders in itertools.product((5, 9), ("fixed", "periodic")):
        cut = Cut(height=40, width=56, rows=4, columns=8, halo=3, borders=borders, points=points)
        assert on_blocks(grid, 11, cut, 0.2).tobytes() == whole_grid(grid, 11, points, 0.2, borders).tobytes()


@pytest.mark.probe
def test_a_halo_one_cell_short_is_seen() -> None:
    """Two steps after one exchange need a halo of two; with what a halo of one would have brought they go wrong."""
    grid = np.random.default_rng(1).standard_normal((16, 16)).astype(np.float32)
    cut = Cut(height=16, width=16, rows=2, columns=2, halo=2, borders="periodic")
    expected = whole_grid(grid, 2, 5, 0.2, "periodic")
    assert on_blocks(grid, 2, cut, 0.2).tobytes() == expected.tobytes()
    blocks = Blocks(grid, cut, 0.2)
    blocks.exchange()
    for held in blocks.old:
        held[[0, -1], :] = 0
        held[:, [0, -1]] = 0
    blocks.advance(2)
    assert blocks.gathered().tobytes() != expected.tobytes()


@pytest.mark.oracle
@given(cases())
def test_messages_are_what_a_step_reads_outside_its_block(case: tuple[Cut, int]) -> None:
    """The cells that a DPU needs, by flood over the stencil's reach, lie in the strips; no strip has a cell that is nobody's."""
    cut, _ = case
    sides = [(y, x) for y, x in itertools.product((-1, 0, 1), repeat=2) if (y, x) != (0, 0) and (cut.points == 9 or y * x == 0)]
    owner = {
        (y, x): dpu for dpu in range(cut.dpus) for y, x in itertools.product(range(*cut.block(dpu)[:2]), range(*cut.block(dpu)[2:]))
    }
    assert len(owner) == cut.height * cut.width
    for dpu in range(cut.dpus):
        top, bottom, left, right = cut.block(dpu)
        need = set(itertools.product(range(top, bottom), range(left, right)))
        for _ in range(cut.halo):
            need |= {(y + dy, x + dx) for (y, x) in need for dy, dx in sides}
        halo = {cell for cell in need if not (top <= cell[0] < bottom and left <= cell[1] < right)}
        if cut.borders == "fixed":
            halo = {(y, x) for y, x in halo if 0 <= y < cut.height and 0 <= x < cut.width}
        sent = {}
        for source, destination, cells, side in cut.messages():
            if destination == dpu:
                sent[side] = (source, cells)
        for y, x in halo:
            side = ((y >= bottom) - (y < top), (x >= right) - (x < left))
            source = owner[y % cut.height, x % cut.width]
            assert source == dpu or sent[side][0] == source
        full = {side: cut.halo * cut.halo if 0 not in side else cut.strip(dpu, side) for side in sent}
        assert {side: cells for side, (_, cells) in sent.items()} == full


def test_the_cut_has_the_shortest_borders_and_blocks_differ_by_one() -> None:
    cut = Cut.of(1000, 1000, dpus=64, borders="fixed", points=5, halo=1)
    assert (cut.rows, cut.columns) == (8, 8)
    wide = Cut.of(10, 1003, dpus=32, borders="fixed", points=5, halo=1)
    assert (wide.rows, wide.columns) == (1, 32)
    widths = {right - left for *_, left, right in map(wide.block, range(32))}
    assert widths == {31, 32}


def test_computed_cells_count_what_is_done_twice() -> None:
    cut = Cut(height=32, width=32, rows=4, columns=4, halo=3, borders="periodic")
    assert cut.computed(0).tolist() == [64] * 16
    assert cut.computed(2).tolist() == [144] * 16
    fixed = Cut(height=32, width=32, rows=4, columns=4, halo=3, borders="fixed")
    assert fixed.computed(0).sum() == 30 * 30
    assert fixed.computed(2)[0] == 9 * 9  # rows 1 to 9


def test_malformed_grids_are_refused() -> None:
    grid = np.zeros((8, 8), np.float32)

    def check(grid: object = grid, points: int = 5, alpha: float = 0.25, borders: str = "fixed", steps: int = 1) -> None:
        require_grid(grid, points, alpha, borders, steps)

    check()
    with pytest.raises(BadInput, match="got float64 of shape"):
        check(np.zeros((8, 8)))
    with pytest.raises(BadInput, match="got list"):
        check([[1.0]])
    with pytest.raises(BadInput, match="points must be 5 or 9, got 7"):
        check(points=7)
    with pytest.raises(BadInput, match=r"alpha=0\.26 is not stable: at most 0\.25"):
        check(alpha=0.26)
    with pytest.raises(BadInput, match="borders must be 'fixed' or 'periodic', got 'open'"):
        check(borders="open")
    with pytest.raises(BadInput, match="steps must be a positive whole number"):
        check(steps=0)
    with pytest.raises(BadInput, match=r"alpha=0\.2 of a grid of int32 must be 1/4, 1/8"):
        check(np.zeros((8, 8), np.int32), alpha=0.2)
    with pytest.raises(BadInput, match="no sum leaves 32 bits"):
        check(np.full((8, 8), 2**28, np.int32))
    with pytest.raises(BadInput, match="not finite"):
        check(np.full((8, 8), np.inf, np.float32))
    with pytest.raises(BadInput, match="8 x 8 cells cannot be cut into 128 blocks: give fewer DPUs"):
        Cut.of(8, 8, dpus=128, borders="fixed", points=5, halo=1)
    with pytest.raises(BadInput, match="cut into 16 blocks with at least 3 x 3 cells each for a halo of 3"):
        Cut.of(8, 8, dpus=16, borders="fixed", points=5, halo=3)
    with pytest.raises(BadInput, match="dpus must be a positive whole number, got 0"):
        Cut.of(8, 8, dpus=0, borders="fixed", points=5, halo=1)
    Cut.of(8, 8, dpus=64, borders="fixed", points=5, halo=1)


def test_the_largest_values_of_words_stay_in_32_bits() -> None:
    limit = (2**31 - 1) // 24
    grid = np.where(np.indices((12, 12)).sum(0) % 2, limit, -limit).astype(np.int32)
    for points in (5, 9):
        cut = Cut(height=12, width=12, rows=2, columns=3, borders="periodic", points=points)
        after = on_blocks(grid, 5, cut, 0.25)
        assert np.abs(after.astype(np.int64)).max() <= limit
        assert after.tobytes() == whole_grid(grid, 5, points, 0.25, "periodic").tobytes()


@pytest.mark.parametrize("machine", [DpuToDpu(dpus=64, cluster_size=16), HostMediated(dpus=64)])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_heat_on_a_machine_gives_the_bits_of_the_whole_grid(machine: DpuToDpu | HostMediated, dtype: type) -> None:
    grid = (np.random.default_rng(3).standard_normal((96, 128)) * 1000).astype(dtype)
    for points, borders, halo in itertools.product((5, 9), ("fixed", "periodic"), (1, 3)):
        run = heat(grid, 7, machine, points=points, borders=borders, halo=halo)
        assert run.values.tobytes() == whole_grid(grid, 7, points, 0.125, borders).tobytes()
        assert run.work == 7 * (96 * 128 if borders == "periodic" else 94 * 126)
        assert sum(run.by_part.values()) == pytest.approx(run.seconds)


def test_the_grid_given_is_left_as_it_was() -> None:
    grid = np.ones((16, 16), np.float32)
    grid[4, 4] = 100
    before = grid.copy()
    heat(grid, 3, HostMediated(dpus=4))
    assert (grid == before).all()


def test_a_wider_halo_exchanges_less_often_and_computes_more() -> None:
    grid = np.zeros((256, 256), np.int32)
    for machine in (DpuToDpu(dpus=64), HostMediated(dpus=64)):
        narrow, wide = (heat(grid, 8, machine, halo=halo).cost for halo in (1, 4))
        assert wide.compute_s > narrow.compute_s
        assert wide.synchronisation_s == pytest.approx(narrow.synchronisation_s / 4)
        assert wide.messages < narrow.messages
    assert wide.communication_s < narrow.communication_s  # through the host, where a transfer has a latency


def test_messages_of_a_run_are_the_borders_of_blocks() -> None:
    grid = np.zeros((64, 64), np.float32)
    run = heat(grid, 3, DpuToDpu(dpus=16), borders="periodic")
    assert run.bytes == 3 * 16 * 4 * 16 * 4  # steps, DPUs, sides, cells, bytes
    assert run.cost.messages == 3 * 16 * 4
    fixed = heat(grid, 3, DpuToDpu(dpus=16), borders="fixed")
    assert fixed.cost.messages == 3 * 2 * (3 * 4 + 4 * 3)  # each border inside, both ways


def test_more_dpus_are_faster_while_blocks_are_large() -> None:
    grid = np.zeros((1024, 1024), np.int32)
    times = [heat(grid, 2, DpuToDpu(dpus=dpus)).seconds for dpus in (16, 64, 256)]
    assert times[0] > 3 * times[1] > 9 * times[2]


def test_fp32_without_a_floating_point_unit_costs_its_instructions() -> None:
    assert cell_instructions(5, "int32", UPMEM) == 3 + 8 + 1 + 3
    assert cell_instructions(5, "float32", UPMEM) == 3 + 7 * 66 + 178 + 1 + 3
    assert cell_instructions(9, "float32", UPMEM) == 3 + 14 * 66 + 178 + 1 + 3
    assert cell_instructions(9, "float32", MAC_DPU) == 3 + 15 + 1 + 3


@pytest.mark.probe
def test_a_block_one_byte_larger_than_mram_is_refused() -> None:
    grid = np.zeros((64, 64), np.float32)
    needed = 4 * (2 * 34 * 34 + 2 * 2 * 32)  # blocks of 32 x 32 with a halo, twice; two borders out, two in
    heat(grid, 1, HostMediated(dpus=4, dpu=replace(UPMEM, mram_bytes=needed)))
    with pytest.raises(BadInput, match=r"heat: the part of DPU 0 takes .*: give more DPUs or a smaller halo"):
        heat(grid, 1, HostMediated(dpus=4, dpu=replace(UPMEM, mram_bytes=needed - 1)))
    with pytest.raises(BadInput, match="cannot be cut into 8192 blocks"):
        heat(grid, 1, HostMediated(dpus=8192))
