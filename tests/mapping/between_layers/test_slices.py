"""Slices of a batch and bands of rows: what can be cut, what each slice finds on chip; by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trainyard.ir import Body, Convolution, Copy, ElementWise, Gather, MatMul, Op, Reduction, Step, TensorSpec, Update, Work
from trainyard.mapping.bands import Window
from trainyard.mapping.between_layers.accesses import Access, Tensor, tensors_of
from trainyard.mapping.between_layers.row_bands import TensorBands, bands_of, writes_nothing_over
from trainyard.mapping.between_layers.row_blocks import RowBlocks, numbers_of_bands
from trainyard.mapping.between_layers.rows import RowCuttable, RowRead, RowWork, pool_window
from trainyard.mapping.between_layers.slices import Block, Blocks, Cuttable, Part, Use, divisors, what_stays
from trainyard.mapping.demand import OnChip, Policy

SAMPLES, SHARED = TensorSpec((4, 6), slope=(1, 0)), TensorSpec((6,))
OTHER = TensorSpec((5, 6), slope=(1, 0))
"""Five rows of four samples."""
TENSORS = (SAMPLES, SHARED, OTHER, SAMPLES, SHARED, TensorSpec((6, 4), slope=(0, 1), view_of=0), TensorSpec((6,), view_of=0))


def step_of(*ops: Op) -> Step:
    return Step(name="cut", batch=4, ops=ops, tensors=TENSORS)


def test_a_tensor_has_samples_where_one_extent_is_as_many_times_the_batch() -> None:
    cuttable = Cuttable(step_of())
    assert [cuttable.kind(tensor) for tensor in range(7)] == ["samples", "shared", "other", "samples", "shared", "samples", "other"]


# fmt: off
OPS: list[tuple[Body, tuple[int, ...], tuple[int, ...], tuple[int, ...], bool]] = [
    # body                            inputs  outputs  slope           can be cut
    (ElementWise("relu", 24),         (0,),   (3,),    (6, 0),         True),
    (ElementWise("relu", 24),         (0,),   (3,),    (),             False),   # does not grow with the batch
    (ElementWise("sum", 24),          (0,),   (1,),    (6, 0),         False),
    (ElementWise("relu", 6),          (1,),   (4,),    (),             False),   # no samples at all
    (ElementWise("relu", 24),         (2,),   (3,),    (6, 0),         False),
    (ElementWise("relu", 24),         (0,),   (),      (6, 0),         False),
    (Copy("clone", 24),               (0,),   (3,),    (6,),           True),
    (MatMul(4, 6, 6),                 (0, 1), (3,),    (1, 0, 0, 0),   True),
    (MatMul(6, 6, 4),                 (0, 3), (1,),    (0, 0, 1, 0),   True),    # dW
    (MatMul(6, 6, 4),                 (0, 3), (1,),    (),             False),
    (Reduction("sum", 24, 6),         (0,),   (1,),    (),             True),
    (Reduction("softmax", 24, 24),    (0,),   (3,),    (),             True),
    (Reduction("batch_norm", 24, 24), (0,),   (3,),    (),             False),
    (Reduction("cumsum", 24, 24),     (0,),   (3,),    (),             False),
    (Reduction("topk", 24, 24),       (0,),   (3,),    (),             False),
    (Gather(4, 6, 9),                 (1, 0), (3,),    (),             True),
    (Gather(4, 6, 9),                 (1, 0), (4,),    (),             False),
    (Gather(4, 6, 9, scatter=True),   (0,),   (3,),    (),             False),
    (Update("sgd", 24),               (0,),   (3,),    (),             False),
]
# fmt: on


@pytest.mark.parametrize(("body", "inputs", "outputs", "slope", "cut"), OPS)
def test_an_op_can_be_cut_whose_results_of_a_sample_need_no_other(
    body: Body, inputs: tuple[int, ...], outputs: tuple[int, ...], slope: tuple[int, ...], cut: bool
) -> None:
    step = step_of(Op(body=body, inputs=inputs, outputs=outputs, slope=slope))
    assert Cuttable(step).work(Work(ops=(0,))) is cut
    assert not Cuttable(step).work(Work(ops=(0,), grouping="concurrent"))


def test_slices_are_equal_and_what_is_shared_stays_or_does_not() -> None:
    assert divisors(8) == [2, 4, 8]
    assert divisors(1) == []
    one = Tensor(base=0, bytes=9, accesses=(), lasts=False)

    def use(kind: Any, written: bool) -> Use:
        return Use(one, kind, (0,), False, True, written)

    assert what_stays([use("samples", True)]) == [(False, False)]
    assert what_stays([use("shared", False)]) == [(True, False), (False, False)]
    assert what_stays([use("shared", True)]) == [(False, True), (False, False)]
    assert what_stays([use("shared", True), use("shared", False)]) == [(True, True), (True, False), (False, True), (False, False)]


def chain() -> Blocks:
    """x -> product with w -> y -> element-wise -> z, and a sum over samples of z: three Works of tensors 0, 1, 3 and 4."""
    grows = {"slope": (1, 0, 0, 0)}
    ops = (
        Op(body=MatMul(4, 6, 6), inputs=(0, 1), outputs=(3,), **grows),  # type: ignore[arg-type]
        Op(body=ElementWise("relu", 24), inputs=(3,), outputs=(7,), slope=(6, 0)),
        Op(body=Reduction("sum", 24, 6), inputs=(7,), outputs=(4,)),
    )
    step = Step(name="chain", batch=4, ops=ops, tensors=(*TENSORS, SAMPLES))

    def reads(work: int, size: int = 96) -> Access:
        return Access(work=work, read_bytes=size, whole_read=True, in_tiles=work == 0)

    def writes(work: int, size: int = 96) -> Access:
        return Access(work=work, write_bytes=size, whole_write=True)

    tensors = (
        Tensor(base=0, bytes=96, accesses=(reads(0),), lasts=True),
        Tensor(base=1, bytes=24, accesses=(reads(0, 24),), lasts=True),
        Tensor(base=3, bytes=96, accesses=(writes(0), reads(1)), lasts=False),
        Tensor(base=7, bytes=98, accesses=(writes(1), reads(2)), lasts=True),
        Tensor(base=4, bytes=24, accesses=(writes(2, 24),), lasts=False),
    )
    return Blocks(step, [Work(ops=(n,)) for n in range(3)], tensors)


def test_a_block_keeps_slices_between_its_works_and_what_all_slices_share() -> None:
    blocks = chain()
    assert blocks.can == [True, True, True]
    uses = blocks.uses(0, 2)
    assert uses is not None
    assert [(use.kind, use.works, use.needed_after, use.whole, use.written) for use in uses] == [
        ("samples", (0,), True, True, False),
        ("shared", (0,), True, True, False),
        ("samples", (0, 1), False, True, True),
        ("samples", (1, 2), True, True, True),
        ("shared", (2,), True, True, True),
    ]
    block = Block(first=0, last=2, slices=4, weights=True, sums=True)
    assert [blocks.occupied(block, uses, work) for work in range(3)] == [24 + 24 + 24, 24 + 25 + 48, 25 + 48]
    assert blocks.most_occupied(block, uses) == 97
    bare = Block(first=0, last=2, slices=2, weights=False, sums=False)
    assert [blocks.occupied(bare, uses, work) for work in range(3)] == [48, 97, 49]


def test_each_slice_finds_what_the_one_before_left() -> None:
    """Weights are loaded by the first slice; the sum stays until the last; y is never written, z is, as it outlives the block."""
    blocks = chain()
    uses = blocks.uses(0, 2)
    assert uses is not None
    one, many = frozenset[int]((1,)), Block(first=0, last=2, slices=4, weights=True, sums=True)
    y, z, total = frozenset({3}), frozenset({7}), frozenset({4})
    assert blocks.parts(many, uses) == {
        0: (
            Part(1, OnChip(loaded=one, results=y, unwritten=y, occupied_bytes=72), 1),
            Part(3, OnChip(read=one, results=y, unwritten=y, occupied_bytes=72), 1),
        ),
        1: (Part(4, OnChip(read=y, results=z, occupied_bytes=97), 1),),
        2: (
            Part(3, OnChip(read=z, results=total, unwritten=total, occupied_bytes=73), 1),
            Part(1, OnChip(read=z, results=total, occupied_bytes=73), 1),
        ),
    }
    two = Block(first=0, last=2, slices=2, weights=False, sums=False)
    assert blocks.parts(two, uses)[2] == (
        Part(1, OnChip(read=z, occupied_bytes=49), 2),
        Part(1, OnChip(read=z, added=total, occupied_bytes=49), 2),
    )


def test_cuts_leave_room_for_what_they_keep() -> None:
    blocks = chain()
    uses = blocks.uses(0, 2)
    assert uses is not None
    found = list(blocks.cuts(0, 2, uses, 97))
    assert [(block.slices, block.weights, block.sums) for block in found] == [
        (2, False, False), (4, True, True), (4, True, False), (4, False, True), (4, False, False),
    ]  # fmt: skip
    assert list(blocks.cuts(0, 2, uses, 48)) == []


def test_a_block_reads_what_an_earlier_work_of_it_wrote() -> None:
    blocks = chain()
    assert [blocks.linked(0, 1), blocks.linked(0, 2), blocks.linked(1, 2), blocks.linked(2, 2)] == [True, True, True, False]


# rows


def images(body: Body, *shapes: tuple[int, ...], inputs: tuple[int, ...] = (0,), **fields: Any) -> RowWork | None:
    """The Work of one op whose last tensor is its result."""
    op = Op(body=body, inputs=inputs, outputs=(len(shapes) - 1,), **fields)
    step = Step(name="image", batch=2, ops=(op,), tensors=tuple(map(TensorSpec, shapes)))
    return RowCuttable(step, (Work(ops=(0,)),)).works[0]


IMAGE = Convolution(batch=2, in_channels=3, out_channels=5, size=(8, 9), kernel=(3, 2), stride=(2, 1), padding=(1, 0))
LARGE, SMALL, WEIGHT = (2, 3, 8, 9), (2, 5, 4, 8), (5, 3, 3, 2)
WINDOW = (3, 2, 1, (1, 1))


def test_a_convolution_needs_the_rows_under_its_windows_in_all_three_products() -> None:
    forward = images(IMAGE, LARGE, WEIGHT, (5,), SMALL, inputs=(0, 1, 2), letters=("A", "W"))
    assert forward == RowWork(4, (RowRead(0, 8, Window("forward", *WINDOW)),), (3,), (1, 2))
    read = RowRead(0, 4, Window("backward", *WINDOW))
    back = images(IMAGE.as_product("grad_input"), SMALL, WEIGHT, LARGE, inputs=(0, 1), letters=("G", "W"))
    assert back == RowWork(8, (read,), (2,), (1,), gradient=read)
    weights = images(IMAGE.as_product("grad_weight"), SMALL, LARGE, WEIGHT, inputs=(0, 1), letters=("G", "A"))
    assert weights == RowWork(4, (RowRead(1, 8, Window("forward", *WINDOW)), RowRead(0, 4, Window())), (), (2,), sum=True)
    assert images(IMAGE, (2, 3, 7, 9), WEIGHT, SMALL, inputs=(0, 1), letters=("A", "W")) is None, "other rows than its body has"
    assert images(IMAGE, LARGE, SMALL, letters=("A",)) is None


def test_images_of_the_same_rows_and_vectors_stand_side_by_side() -> None:
    body = ElementWise("add", 2 * 3 * 8 * 9)
    assert images(body, LARGE, LARGE, (3,), LARGE, inputs=(0, 1, 2)) == RowWork(
        8, (RowRead(0, 8, Window()), RowRead(1, 8, Window())), (3,), (2,)
    )
    assert images(body, SMALL, LARGE) is None
    assert images(ElementWise("add", 431), LARGE, LARGE) is None, "no whole rows"
    assert images(ElementWise("add", 6), (2, 3), (2, 3)) is None
    assert images(Copy("cat", 432), LARGE, LARGE) == RowWork(8, (RowRead(0, 8, Window()),), (1,), ())
    assert images(Copy("clone", 432), LARGE, LARGE) is None


def test_a_sum_over_rows_is_shared_by_all_bands() -> None:
    assert images(Reduction("sum", 432, 3), LARGE, (3,)) == RowWork(8, (RowRead(0, 8, Window()),), (), (1,), sum=True)
    assert images(Reduction("sum", 432, 6), LARGE, (2, 3)) is None
    assert images(Reduction("sum", 432, 3, 2), LARGE, (3,)) is None
    assert images(Reduction("batch_norm", 432, 432), LARGE, LARGE) is None


# fmt: off
POOLS = [
    # area, image, result                          kernel, stride, largest padding
    (9,  (1, 1, 16, 16), (1, 1, 8, 8),             (3, 2, 1)),
    (4,  (1, 1, 16, 16), (1, 1, 8, 8),             (2, 2, 1)),
    (9,  (1, 1, 16, 16), (1, 1, 16, 16),           (3, 1, 1)),
    (4,  (1, 1, 16, 12), (1, 1, 8, 12),            None),      # two strides
    (6,  (1, 1, 16, 16), (1, 1, 8, 8),             None),      # not square
    (4,  (1, 1, 4, 4),   (1, 1, 1, 1),             None),      # no stride within the window fits
    (9,  (1, 1, 3, 3),   (1, 1, 1, 1),             None),      # any stride does
    (3,  (1, 1, 9),      (1, 1, 3),                (3, 3, 1)),
]
# fmt: on


@pytest.mark.parametrize(("area", "large", "small", "expected"), POOLS)
def test_a_pooling_has_a_square_window_of_one_stride(
    area: int, large: tuple[int, ...], small: tuple[int, ...], expected: tuple[int, int, int] | None
) -> None:
    results = 1
    for extent in small:
        results *= extent
    window = pool_window(Reduction("max_pool", area * results, results), large, small)
    assert window == (None if expected is None else Window("forward", expected[0], expected[1], 1, (0, expected[2])))
    assert pool_window(Reduction("adaptive_max_pool", area * results, results), large, small) is None
    assert pool_window(Reduction("max_pool", area * results + 1, results), large, small) is None


def test_numbers_of_bands_are_doublings_and_half_way_between_or_near_divisors() -> None:
    assert numbers_of_bands(1) == []
    assert numbers_of_bands(2) == [2]
    assert numbers_of_bands(12) == [2, 3, 4, 6, 8, 12]
    assert numbers_of_bands(7) == [2, 3, 4, 7]
    assert numbers_of_bands(13) == [2, 3, 4, 6, 8, 13]


def test_a_pooling_and_its_gradient_need_rows_under_windows_and_all_results_have_the_same_rows() -> None:
    """Of 3 x 3 and stride 2: a map of 16 rows, and of 8 the maxima and where they were."""
    large, small = TensorSpec((1, 4, 16, 16)), TensorSpec((1, 4, 8, 8))
    pool, back = Reduction("max_pool", 9 * 256, 256), Reduction("max_pool_backward", 9 * 256, 1024)

    def works(*specs: TensorSpec) -> list[RowWork | None]:
        """Forward from 0 into 1 and 2; backward from 3 and 2 into 4."""
        ops = (Op(body=pool, layer="pool", inputs=(0,), outputs=(1, 2)), Op(body=back, layer="pool", inputs=(3, 2), outputs=(4,)))
        step = Step(name="pool", batch=1, ops=ops, tensors=specs)
        return RowCuttable(step, (Work(ops=(0,)), Work(ops=(1,)))).works

    window = (3, 2, 1, (0, 1))
    forward, backward = works(large, small, small, small, large)
    assert forward == RowWork(8, (RowRead(0, 16, Window("forward", *window)),), (1, 2), ())
    reads = tuple(RowRead(base, 8, Window("backward", *window)) for base in (3, 2))
    assert backward == RowWork(16, reads, (4,), ())
    assert works(large, small, TensorSpec((1, 4, 4, 16)), small, large)[0] is None, "indices of other rows"


# bands of rows


def convolutions(count: int) -> tuple[Step, dict[int, RowWork]]:
    """3 x 3 with a padding of 1, on 8 rows: images 0, 1, 2, ..., then weights."""
    body = Convolution(batch=1, in_channels=4, out_channels=4, size=(8, 8), kernel=(3, 3), padding=(1, 1))
    tensors = [TensorSpec((1, 4, 8, 8)) for _ in range(count + 1)] + [TensorSpec((4, 4, 3, 3)) for _ in range(count)]
    ops = [Op(body=body, inputs=(n, count + 1 + n), outputs=(n + 1,), letters=("A", "W")) for n in range(count)]
    step = Step(name="convolutions", batch=1, ops=tuple(ops), tensors=tuple(tensors))
    works = RowCuttable(step, tuple(Work(ops=(n,)) for n in range(count))).works
    return step, {n: work for n, work in enumerate(works) if work is not None}


def ranges(bands: TensorBands) -> tuple[list[int], list[int], list[int], int, int]:
    return bands.begin.tolist(), bands.end.tolist(), bands.lowest.tolist(), bands.window, bands.overlap


def test_two_bands_of_two_convolutions_need_a_row_more_at_each() -> None:
    """Rows 0-4 of the last result need 0-5 of the map between and 0-6 of the image. Kept, two rows of each stay for the next."""
    _, works = convolutions(2)
    kept = bands_of(works, 2, keeps_overlap=True, grad_input="col2im")
    assert kept is not None
    assert ranges(kept.tensors[2]) == ([0, 4], [4, 8], [0, 4], 4, 0)
    assert ranges(kept.tensors[1]) == ([0, 5], [5, 8], [0, 3], 5, 2)
    assert ranges(kept.tensors[0]) == ([0, 6], [6, 8], [0, 4], 6, 2)
    assert [kept.product_rows[work].tolist() for work in (0, 1)] == [[5, 3], [4, 4]]
    again = bands_of(works, 2, keeps_overlap=False, grad_input="col2im")
    assert again is not None
    assert ranges(again.tensors[1]) == ([0, 3], [5, 8], [0, 3], 5, 0)
    assert ranges(again.tensors[0]) == ([0, 2], [6, 8], [0, 2], 6, 0)
    assert again.tensors[0].new.tolist() == [6, 6]
    assert bands_of(works, 9, keeps_overlap=True, grad_input="col2im") is None, "more bands than rows"


def gradient(dtype: str = "fp32") -> tuple[Step, RowWork]:
    body = Convolution(batch=1, in_channels=4, out_channels=2, size=(8, 8), kernel=(3, 3), padding=(1, 1), product="grad_input")
    tensors = (TensorSpec((1, 2, 8, 8)), TensorSpec((2, 4, 3, 3)), TensorSpec((1, 4, 8, 8), dtype))
    step = Step(name="dX", batch=1, ops=(Op(body=body, inputs=(0, 1), outputs=(2,), letters=("G", "W")),), tensors=tensors)
    (work,) = RowCuttable(step, (Work(ops=(0,)),)).works
    assert work is not None
    return step, work


def test_sums_of_two_rows_of_dx_wait_for_the_next_band() -> None:
    """Rows 0-5 of dY add to rows 0-6 of dX, of which 0-4 are done."""
    _, work = gradient()
    kept = bands_of({0: work}, 2, keeps_overlap=True, grad_input="col2im")
    assert kept is not None
    assert (kept.product_rows[0].tolist(), kept.unfinished) == ([5, 3], {0: 2})
    assert ranges(kept.tensors[0])[:2] == ([0, 5], [5, 8])
    inserted = bands_of({0: work}, 2, keeps_overlap=True, grad_input="dilated")
    assert inserted is not None
    assert (inserted.product_rows[0].tolist(), inserted.unfinished) == ([4, 4], {})
    again = bands_of({0: work}, 2, keeps_overlap=False, grad_input="col2im")
    assert again is not None
    assert (again.product_rows[0].tolist(), again.unfinished) == ([5, 5], {})


@pytest.mark.parametrize(("dtype", "sum_bytes"), [("fp16", 4), ("fp32", 4), ("fp64", 8)])
def test_unfinished_rows_take_the_room_of_accumulators_or_of_wider_results(dtype: str, sum_bytes: int) -> None:
    """Two rows of 4 channels of 8 columns, beside what a block keeps in any case."""
    step, work = gradient(dtype)
    works = [Work(ops=(0,))]
    blocks = RowBlocks(step, works, tensors_of(step, works, Policy()), Policy(), step)
    block = Block(first=0, last=0, slices=2, weights=False, sums=False, bands=2)
    assert blocks.occupied(block, [], 0) == 2 * (4 * 8) * sum_bytes
    assert blocks._sum_bytes(work) == 4 * 8 * sum_bytes


def test_samples_that_stay_together_are_one_group() -> None:
    step, _ = convolutions(2)
    works = [Work(ops=(n,)) for n in range(2)]
    grown = [TensorSpec((3, *spec.shape[1:]), slope=(1, 0, 0, 0)) if spec.shape[0] == 1 else spec for spec in step.tensors]
    ops = [Op(body=Convolution(batch=3, in_channels=4, out_channels=4, size=(8, 8), kernel=(3, 3), padding=(1, 1)),
              inputs=op.inputs, outputs=op.outputs, letters=op.letters, slope=(1,) + (0,) * 13) for op in step.ops]  # fmt: skip
    three = Step(name="three", batch=3, ops=tuple(ops), tensors=tuple(grown))
    tensors = tensors_of(three, works, Policy())
    for sample, groups in ((step, 3), (three, 1)):
        blocks = RowBlocks(three, works, tensors, Policy(), sample)
        assert blocks.groups == groups
        uses = blocks.uses(0, 1)
        assert uses is not None
        block = next(blocks.cuts(0, 1, uses, 10**9))
        assert (block.bands, block.slices) == (2, 2 * groups)
        for parts in blocks.parts(block, uses).values():
            assert sum(part.times for part in parts) == block.slices
            assert {part.samples for part in parts} == {sample.batch}
            assert sum(part.times * part.band.rows for part in parts if part.band) == groups * 8


def test_rows_that_stay_are_counted_from_the_lowest_that_is_needed() -> None:
    rows = np.array
    apart = TensorBands(8, begin=rows([0, 4]), end=rows([4, 8]), lowest=rows([0, 6]))
    assert (apart.new.tolist(), apart.window, apart.overlap) == ([4, 4], 4, 0)
    reaching = TensorBands(8, begin=rows([0, 4]), end=rows([4, 8]), lowest=rows([0, 1]))
    assert (reaching.window, reaching.overlap) == (7, 3)


def test_a_tensor_under_windows_may_not_be_written_over() -> None:
    read = RowRead(0, 8, Window(kernel=3))
    assert writes_nothing_over([RowWork(8, (read,), (1,), ())])
    assert not writes_nothing_over([RowWork(8, (read,), (1,), ()), RowWork(8, (), (0,), ())])
    assert writes_nothing_over([RowWork(8, (RowRead(0, 8, Window()),), (1,), ()), RowWork(8, (), (0,), ())])


def test_a_block_with_a_work_that_needs_all_samples_is_none() -> None:
    blocks = chain()
    blocks.can[1] = False
    assert blocks.uses(0, 2) is None
    assert blocks.uses(1, 1) is None
    assert blocks.uses(0, 0) is not None


def test_ops_of_a_kernel_and_works_side_by_side_have_no_bands() -> None:
    body = ElementWise("add", 2 * 3 * 8 * 9)
    assert images(body, LARGE, LARGE) is not None
    assert images(body, LARGE, LARGE, fused=1) is None
    op = Op(body=body, inputs=(0,), outputs=(1,))
    step = Step(name="image", batch=2, ops=(op,), tensors=(TensorSpec(LARGE), TensorSpec(LARGE)))
    assert RowCuttable(step, (Work(ops=(0,), grouping="concurrent"),)).works == [None]
