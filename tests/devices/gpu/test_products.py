"""One product in tiles on a GPU of round numbers: waves, loads, the L2, repeated reads and a split reduction, counted by hand."""

from __future__ import annotations

import pytest

from trainyard.devices.gpu.composites import matmul_matrices
from trainyard.devices.gpu.products import Limits, Matrices, Tiled, _reads, _splits, _tiled, _tiles, product_seconds
from trainyard.ir import MatMul, Phase

LIMITS = Limits(
    sms=4, macs_per_sm=1000.0, loads_per_sm=10.0, l2_per_sm=100.0, l2=300.0, dram=50.0, l2_room=64.0, tiles=((8, 4, 2),),
    fill_s=0.5, ramp_s=2.0,
)  # fmt: skip
PRODUCT = Matrices(M=20, N=10, K=6, batch=2, a_bytes=240, b_bytes=120, out_bytes=400, element_bytes=2)


def test_tiles_of_a_product_run_in_waves_over_the_multiprocessors() -> None:
    """3 x 3 tiles of 8 x 4 in each of two products: 18 on four multiprocessors are five waves of 8 * 4 * 6 MACs."""
    tiled = _tiled(PRODUCT, LIMITS, (8, 4, 2), 1)
    assert (tiled.tile, tiled.split, tiled.waves, tiled.partial_bytes, tiled.kernels) == ((8, 4, 2), 1, 5, 0, 1)
    assert tiled.compute_s == pytest.approx(5 * (8 * 4 * 6 / 1000 + 0.5))
    operands = (8 + 4) * 6 * 2
    assert tiled.l2_s == pytest.approx(max(18 * operands / 300, 5 * operands / 100))


def test_a_split_reduction_has_more_and_shorter_tiles_and_partial_sums() -> None:
    """Two pieces of three, padded to four: 36 tiles, nine waves; 2 * 20 * 10 * 2 sums of four bytes."""
    tiled = _tiled(PRODUCT, LIMITS, (8, 4, 2), 2)
    assert (tiled.waves, tiled.partial_bytes, tiled.kernels) == (9, 2 * 20 * 10 * 2 * 4, 2)
    assert tiled.compute_s == pytest.approx(9 * (8 * 4 * 4 / 1000 + 0.5))


@pytest.mark.parametrize(
    ("change", "loads"),
    [
        ({"row": 2}, 12 / 2),
        ({"a_strided": True}, 0.5 * 8),
        ({"b_strided": True}, 0.5 * 4),
        ({"a_strided": True, "b_strided": True}, 6.0),
    ],
)
def test_operands_that_no_bulk_copy_feeds_are_loaded_row_by_row(change: dict[str, int], loads: float) -> None:
    product = PRODUCT._replace(**change)  # type: ignore[arg-type]
    assert product.loads(8, 4) == loads
    assert _tiled(product, LIMITS, (8, 4, 2), 1).compute_s == pytest.approx(5 * (loads * 6 / 10 + 0.5))
    assert PRODUCT.loads(8, 4) == 0


def test_operands_are_read_again_for_each_block_of_a_wave_where_neither_stays_in_the_l2() -> None:
    """Four multiprocessors, tiles of 8 x 4: a wave is one tile high (the root of 4 * 4 / 8, rounded) and four wide."""
    assert _reads(PRODUCT, LIMITS, (8, 4, 2), 3, 3) == (1.0, 1.0)  # 120 bytes of B in 2 x 64
    larger = PRODUCT._replace(b_bytes=129)
    assert _reads(larger, LIMITS, (8, 4, 2), 3, 9) == (3.0, 3.0)
    assert _reads(larger, LIMITS, (4, 8, 2), 3, 9) == (9.0, 1.0)  # three high, one wide
    assert _reads(larger, LIMITS._replace(sms=64), (4, 4, 2), 30, 20) == (3.0, 4.0)  # eight by eight


def test_the_time_is_the_longest_of_three_and_that_of_partial_sums() -> None:
    tiled = Tiled((8, 4, 2), 1, 5, 3.0, 4.0, 2.0, 3.0, 0)
    moved = (2 * 240 + 3 * 120 + 400) / 50
    assert product_seconds(tiled, PRODUCT, LIMITS) == pytest.approx(moved)
    assert product_seconds(tiled._replace(compute_s=100.0), PRODUCT, LIMITS) == 100.0
    assert product_seconds(tiled._replace(l2_s=200.0), PRODUCT, LIMITS) == 200.0
    assert product_seconds(tiled._replace(split=2, partial_bytes=600), PRODUCT, LIMITS) == pytest.approx(
        moved + 2 * 600 / 300 + 2.0
    )


def test_tiles_are_tried_in_both_orientations_and_reductions_are_split_into_pieces_of_four_steps() -> None:
    assert _tiles(LIMITS._replace(tiles=((8, 4, 2), (4, 4, 2)))) == ((8, 4, 2), (4, 8, 2), (4, 4, 2))
    assert _splits(PRODUCT._replace(K=31), LIMITS, (8, 4, 2)) == (1, 2, 3)
    assert _splits(PRODUCT._replace(K=32), LIMITS, (8, 4, 2)) == (1, 2, 3, 4)
    assert _splits(PRODUCT, LIMITS, (8, 4, 2)) == (1,)


@pytest.mark.parametrize(
    ("kind", "phase", "row", "strided"),
    [
        ("half", Phase.FORWARD, 2, (False, False)),  # rows of 10 numbers of 2 bytes: a word at a time
        ("half", Phase.GRAD_WEIGHT, 0, (False, False)),  # rows of 24 and 16 numbers are aligned
        ("fp32", Phase.GRAD_INPUT, 0, (False, False)),
        ("tf32", Phase.FORWARD, 2, (False, False)),
        ("tf32", Phase.GRAD_INPUT, 2, (False, True)),
        ("tf32", Phase.GRAD_WEIGHT, 2, (True, True)),
    ],
)
def test_phases_decide_which_rows_are_read_and_which_operands_are_strided(
    kind: str, phase: Phase, row: int, strided: tuple[bool, bool]
) -> None:
    body = MatMul(24, 16, 8, 3) if row == 0 else MatMul(24, 10, 8, 3)
    found = matmul_matrices(body, 2, kind, phase)  # type: ignore[arg-type]
    assert (found.M, found.N, found.K, found.batch, found.element_bytes) == (24, body.N, 8, 3, 2)
    assert (found.a_bytes, found.b_bytes, found.out_bytes) == (3 * 24 * 8 * 2, 3 * 8 * body.N * 2, 3 * 24 * body.N * 2)
    assert (found.row, (found.a_strided, found.b_strided)) == (row, strided)


def test_only_a_weight_gradient_reads_along_m() -> None:
    """M = 9 is odd, N and K are aligned: dW alone is loaded number by number."""
    rows = [
        matmul_matrices(MatMul(9, 16, 8), 2, "half", phase).row for phase in (Phase.FORWARD, Phase.GRAD_INPUT, Phase.GRAD_WEIGHT)
    ]
    assert rows == [0, 0, 1]
