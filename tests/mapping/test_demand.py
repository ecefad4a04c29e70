"""Tensors of a step as bytes of a machine: views, precision, what is on chip, what a DMA engine compresses, what is logged."""

from __future__ import annotations

import pytest

from trainyard.ir import DTYPE_BYTES, Role, Step, TensorSpec
from trainyard.mapping.bands import Band
from trainyard.mapping.demand import NOTHING_KEPT, AccessLog, Move, OnChip, Policy, TensorBytes, tensor_sizes
from trainyard.masks.dma import moved_bytes

SPECS = (
    TensorSpec((4, 8)),  # 0: 128 bytes
    TensorSpec((4, 3), view_of=0),  # 1, 2: slices of it
    TensorSpec((4, 6), view_of=0),
    TensorSpec((8,), "fp16", role=Role.PARAMETER),  # 3: 16 bytes
    TensorSpec((4, 8), "fp16", role=Role.PARAMETER, view_of=3),  # 4: broadcast
    TensorSpec((5,), "int64", role=Role.INPUT),  # 5: 40 bytes
)
STEP = Step(name="tensors", batch=1, ops=(), tensors=SPECS)


def of(policy: Policy | None = None, **fields: object) -> TensorBytes:
    return TensorBytes(STEP, policy or Policy(), {}, **fields)  # type: ignore[arg-type]


def test_a_view_is_never_larger_than_the_memory_that_it_looks_into() -> None:
    assert tensor_sizes(STEP, None) == (128, 48, 96, 16, 16, 40)
    assert [of().elements(tensor) for tensor in range(6)] == [32, 12, 24, 8, 8, 5]


def test_a_precision_changes_the_bytes_of_floating_tensors() -> None:
    assert tensor_sizes(STEP, "fp64") == (256, 96, 192, 64, 64, 40)
    assert of(Policy(precision="fp64")).bytes(1) == 96
    assert [of().dtype(tensor) for tensor in (0, 3, 5, None)] == ["fp32", "fp16", "int64", "fp32"]


def test_views_of_one_memory_move_together_and_never_more_than_all_of_it() -> None:
    assert of().moves(0, (1, 3), "read") == {0: Move("activation", "read", 48, 48), 3: Move("parameter", "read", 16, 16)}
    assert of().moves(0, (1, 2, 1), "read") == {0: Move("activation", "read", 128, 128)}  # 48 and 96, of 128
    assert of().moves(0, (), "write") == {}


def test_what_is_on_chip_is_held_but_crosses_no_pins() -> None:
    sizes = of(on_chip=OnChip(read=frozenset({0}), unwritten=frozenset({3})))
    assert sizes.move(0, 1, "read", 48) == Move("activation", "read", 0, 48, on_chip=True)
    assert sizes.move(0, 1, "write", 48) == Move("activation", "write", 48, 48)
    assert sizes.move(0, 3, "write", 16) == Move("parameter", "write", 0, 16, on_chip=True)
    assert sizes.move(0, 3, "read", 16) == Move("parameter", "read", 16, 16)
    assert sizes.rows(0, 1, "row", "read", 8) == Move("row", "read", 0, 8, on_chip=True)
    assert sizes.rows(0, 1, "row", "write", 8) == Move("row", "write", 8, 8)
    assert sizes.rows(0, None, "row", "read", 8) == Move("row", "read", 8, 8)


def test_zeros_make_what_crosses_the_pins_smaller_but_not_what_is_held() -> None:
    sizes = TensorBytes(STEP, Policy(), {(7, 0, "read"): 0.25})
    fewer = moved_bytes(128, 4, 0.25)
    assert fewer < 128
    assert sizes.move(7, 0, "read", 128) == Move("activation", "read", fewer, 128)
    assert sizes.move(7, 0, "write", 128) == Move("activation", "write", 128, 128)
    assert sizes.move(6, 0, "read", 128) == Move("activation", "read", 128, 128)
    assert sizes.rows(7, 0, "row", "read", 128) == Move("row", "read", 128, 128), "rows of a table are not compressed"
    assert sizes.operand(7, 0, 128, unfolded=False) == (fewer, 128, None)


# fmt: off
OPERANDS = [
    # on chip                            DRAM bytes, those of tiles where they differ, all of it where it stays
    (NOTHING_KEPT,                       (128, None, None)),
    (OnChip(read=frozenset({0})),        (0, 0, None)),
    (OnChip(loaded=frozenset({0})),      (128, 0, 128)),
    (OnChip(loaded=frozenset({3})),      (128, None, None)),
]
# fmt: on


@pytest.mark.parametrize(("on_chip", "expected"), OPERANDS)
def test_an_operand_on_chip_is_read_once_or_not_at_all(on_chip: OnChip, expected: tuple[int, int | None, int | None]) -> None:
    assert of(on_chip=on_chip).operand(0, 0, 128, unfolded=False) == expected


def test_an_operand_without_a_tensor_crosses_the_pins() -> None:
    assert of(on_chip=OnChip(read=frozenset({0}))).operand(0, None, 64, unfolded=False) == (64, None, None)


def test_what_was_loaded_is_there_for_what_comes_behind() -> None:
    before = OnChip(read=frozenset({5}), loaded=frozenset({0, 3}), occupied_bytes=9)
    assert before.behind([0, 1]) == OnChip(read=frozenset({0, 5}), loaded=frozenset({3}), occupied_bytes=9)
    assert before.behind([1, 5]) is before
    sizes = of(on_chip=before)
    assert sizes.behind(2, None).on_chip == before.behind([0])
    assert [sizes.stays(tensor) for tensor in (1, 4, 5, None)] == [True, True, True, False]
    assert not of(on_chip=OnChip(loaded=frozenset({3}))).stays(0)


def test_a_log_has_the_most_bytes_of_each_memory_and_direction() -> None:
    log: AccessLog = {}
    sizes = of(log=log)
    sizes.moves(0, (1,), "read")
    sizes.moves(1, (2,), "read")
    sizes.moves(2, (1,), "read")
    sizes.move(3, 3, "write", 16)
    sizes.operand(4, 0, 512, unfolded=True)
    sizes.operand(4, None, 64, unfolded=True)
    sizes.note(5, "read", 0)
    assert log == {(0, "read"): 96, (3, "write"): 16, (0, "elsewhere"): 512}
    sizes.reads_only().move(5, 5, "write", 40)
    sizes.reads_only().move(5, 5, "read", 40)
    assert log == {(0, "read"): 96, (3, "write"): 16, (0, "elsewhere"): 512, (5, "read"): 40}


def test_a_band_has_its_rows_of_a_tensor_and_of_a_view_of_it() -> None:
    sizes = of(band=Band(rows=1, of=4, product_rows=1, tensors=((0, 2, 4),)))
    assert [sizes.elements(tensor) for tensor in (0, 1, 3)] == [16, 6, 8]
    assert [sizes.bytes(tensor) for tensor in (0, 1, 3)] == [64, 24, 16]
    assert (sizes.within(0, 20), sizes.within(0, 10), sizes.within(None, 20)) == (16, 10, 20)
    assert of().within(0, 200) == 200


def test_every_element_type_has_its_bytes() -> None:
    for dtype, size in DTYPE_BYTES.items():
        step = Step(name="one", batch=1, ops=(), tensors=(TensorSpec((3,), dtype),))
        assert tensor_sizes(step, None) == (3 * size,)
