"""What the Works of small steps ask for, counted by hand: bytes of each tensor, operations, what stays on chip."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trainyard.errors import NotModelled
from trainyard.ir import (
    Collective,
    Convolution,
    Copy,
    ElementWise,
    Gather,
    MatMul,
    Op,
    Phase,
    Reduction,
    Role,
    Step,
    TensorSpec,
    Update,
    Work,
)
from trainyard.mapping.demand import (
    ChainDemand,
    FusedDemand,
    KeptDemand,
    Move,
    NoDemand,
    OnChip,
    PairDemand,
    Policy,
    ProductDemand,
    Residency,
    StreamDemand,
    TogetherDemand,
)
from trainyard.mapping.halo import halo_of
from trainyard.mapping.precision import MacRates
from trainyard.mapping.profile import demand, plain_demand, profile, works
from trainyard.masks.dma import moved_bytes

ACTIVATION, GRADIENT, WEIGHT, WEIGHT_GRADIENT = Role.ACTIVATION, Role.GRADIENT, Role.PARAMETER, Role.PARAMETER_GRADIENT


def step_of(ops: list[Op], tensors: list[TensorSpec]) -> Step:
    return Step(name="small", batch=1, ops=tuple(ops), tensors=tuple(tensors))


def demands(step: Step, **fields: Any) -> list[Any]:
    """What each Work of a step asks for, under a policy of these fields."""
    policy = Policy(**fields)
    return [demand(step, work, policy) for work in works(step, policy)]


def read(label: str, size: int) -> Move:
    return Move(label, "read", size, size)


def write(label: str, size: int) -> Move:
    return Move(label, "write", size, size)


# streams


def test_a_lookup_moves_the_rows_that_are_named_and_their_numbers_not_the_table() -> None:
    tensors = [TensorSpec((1000, 8), "fp16", role=WEIGHT), TensorSpec((5,), "int64", role=Role.INPUT), TensorSpec((5, 8), "fp16")]
    (stream,) = demands(step_of([Op(body=Gather(5, 8, 1000), inputs=(0, 1), outputs=(2,))], tensors))
    assert stream == StreamDemand(moves=(read("parameter", 80), write("activation", 80), read("input", 40)))


def test_a_scatter_reads_rows_adds_them_to_those_of_the_table_and_writes_these() -> None:
    tensors = [
        TensorSpec((5, 8), "fp16", role=GRADIENT),
        TensorSpec((5,), "int64", role=Role.INPUT),
        TensorSpec((1000, 8), "fp16", role=WEIGHT_GRADIENT),
    ]
    (stream,) = demands(step_of([Op(body=Gather(5, 8, 1000, scatter=True), inputs=(0, 1), outputs=(2,))], tensors))
    moves = (read("gradient", 80), read("parameter_gradient", 80), write("parameter_gradient", 80), read("input", 40))
    assert stream == StreamDemand(moves=moves, vector_operations=40)


# fmt: off
WITHOUT_TENSORS = [
    (Gather(5, 8, 1000),               (read("activation", 160), write("activation", 160)), 0),
    (Gather(5, 8, 1000, scatter=True), (read("gradient", 160), read("activation", 160), write("activation", 160)), 40),
    (ElementWise("add", 6, 3),         (read("activation", 24), write("activation", 24)), 18),
    (Update("adam", 6, 4),             (read("activation", 24), write("activation", 24)), 24),
    (Copy("clone", 6),                 (read("activation", 24), write("activation", 24)), 0),
    (Reduction("sum", 12, 3),          (read("activation", 48), write("activation", 12)), 12),
]
# fmt: on


@pytest.mark.parametrize(("body", "moves", "operations"), WITHOUT_TENSORS)
def test_an_op_without_tensors_moves_the_elements_of_its_body_as_fp32(body: Any, moves: tuple[Move, ...], operations: int) -> None:
    assert demands(step_of([Op(body=body)], [])) == [StreamDemand(moves=moves, vector_operations=operations)]


# fmt: off
PARTS = [
    ("softmax",         (6, 8),       6),    # one part for each row
    ("layer_norm",      (2, 3, 8),    6),
    ("batch_norm",      (2, 4, 6),    4),    # one for each channel
    ("sum",             (6, 8),       1),
    ("softmax",         (48,),        1),
]
# fmt: on


@pytest.mark.parametrize(("function", "shape", "parts"), PARTS)
def test_a_reduction_of_three_passes_reads_its_input_twice_again_unless_a_part_of_it_stays(
    function: str, shape: tuple[int, ...], parts: int
) -> None:
    tensors = [TensorSpec(shape), TensorSpec((4,), role=WEIGHT), TensorSpec(shape)]
    (stream,) = demands(step_of([Op(body=Reduction(function, 48, 48, 3), inputs=(0, 1), outputs=(2,))], tensors))
    assert stream == StreamDemand(
        moves=(read("activation", 192), read("parameter", 16), write("activation", 192)),
        vector_operations=3 * 48,
        again=read("activation", 2 * 192),
        row_bytes=192 // parts,
    )


def test_a_reduction_of_one_pass_and_one_whose_input_stays_on_chip_read_nothing_again() -> None:
    step = step_of([Op(body=Reduction("sum", 48, 6), inputs=(0,), outputs=(1,))], [TensorSpec((6, 8)), TensorSpec((6,))])
    (once,) = demands(step)
    assert once == StreamDemand(moves=(read("activation", 192), write("activation", 24)), vector_operations=48)
    twice = step_of([replace(step.ops[0], body=Reduction("sum", 48, 6, 2))], list(step.tensors))
    kept = plain_demand(twice, Work(ops=(0,)), Policy(), on_chip=OnChip(read=frozenset({0})))
    moves = (Move("activation", "read", 0, 192, on_chip=True), write("activation", 24))
    assert kept == StreamDemand(moves=moves, vector_operations=96)


def test_results_that_dram_does_not_get_and_sums_that_come_back_from_it() -> None:
    step = step_of([Op(body=ElementWise("add", 8), inputs=(0,), outputs=(1,))], [TensorSpec((8,)), TensorSpec((8,))])
    stays = plain_demand(step, Work(ops=(0,)), Policy(), on_chip=OnChip(results=frozenset({1}), unwritten=frozenset({1})))
    assert stays == StreamDemand(
        moves=(read("activation", 32), Move("activation", "write", 0, 32, on_chip=True)), vector_operations=8
    )
    added = plain_demand(step, Work(ops=(0,)), Policy(), on_chip=OnChip(added=frozenset({1})))
    assert added == StreamDemand(
        moves=(read("activation", 32), read("activation", 32), write("activation", 32)), vector_operations=8
    )


def test_a_work_with_tensors_on_chip_says_how_much_of_the_scratchpad_is_taken() -> None:
    step = step_of([Op(body=Copy("clone", 8), inputs=(0,), outputs=(1,))], [TensorSpec((8,)), TensorSpec((8,))])
    residency = Residency({(0,): OnChip(read=frozenset({0}), occupied_bytes=32)})
    moves = (Move("activation", "read", 0, 32, on_chip=True), write("activation", 32))
    assert demands(step, residency=residency) == [KeptDemand(inner=StreamDemand(moves=moves), occupied_bytes=32)]


# products


def linear(precision: str = "fp32") -> Step:
    """relu(x (4,8) w (8,6) + bias (6,))."""
    specs = [((4, 8), ACTIVATION), ((8, 6), WEIGHT), ((6,), WEIGHT), ((4, 6), ACTIVATION), ((4, 6), ACTIVATION)]
    ops = [
        Op(body=MatMul(4, 6, 8), layer="fc", inputs=(0, 1, 2), outputs=(3,), letters=("A", "W")),
        Op(body=ElementWise("relu", 24, 2), inputs=(3,), outputs=(4,)),
    ]
    return step_of(ops, [TensorSpec(shape, precision, role=role) for shape, role in specs])


def test_a_product_takes_its_bias_in_and_lets_the_result_of_its_epilogue_out() -> None:
    (asked,) = demands(linear())
    assert isinstance(asked, ProductDemand)
    assert asked.drained == ((read("parameter", 24),), (write("activation", 96),))
    problem = asked.problem
    assert (problem.op, problem.a_bytes, problem.b_bytes, problem.out_bytes) == (MatMul(4, 6, 8), 128, 192, 120)
    assert (problem.sum_bytes, problem.a_sram_bytes, problem.b_sram_bytes, problem.halo) == (96, None, None, None)
    assert (asked.labels, asked.element_bytes, asked.number) == (("X", "W", "Y"), (4, 4, 4), "fp32")
    assert (asked.vector_operations, asked.packed, asked.loaded_bytes) == (48, 1, (None, None))


def test_a_result_that_an_op_outside_of_the_epilogue_reads_leaves_as_well() -> None:
    step = linear()
    loss = Op(body=Reduction("sum", 24, 1), inputs=(3,), outputs=(5,))
    asked, _ = demands(step_of([*step.ops, loss], [*step.tensors, TensorSpec((1,))]))
    assert isinstance(asked, ProductDemand)
    assert asked.drained == ((read("parameter", 24), write("Y", 96)), (write("activation", 96),))
    assert asked.problem.out_bytes == 216


def test_zeros_make_operands_and_results_smaller_on_the_way_but_not_in_the_scratchpad() -> None:
    """A quarter of x, half of w and of the result are no zeros; these are known of the product, not of its epilogue."""
    step = linear()
    loss = Op(body=Reduction("sum", 24, 1), inputs=(3,), outputs=(5,))
    step = step_of([*step.ops, loss], [*step.tensors, TensorSpec((1,))])
    zeros = {(0, 0, "read"): 0.25, (0, 1, "read"): 0.5, (0, 3, "write"): 0.5, (1, 3, "write"): 0.1, (1, 4, "write"): 0.25}
    asked = plain_demand(step, Work(ops=(0, 1), grouping="chain"), Policy(), zeros)  # type: ignore[arg-type]
    assert isinstance(asked, ProductDemand)
    problem, left, last = asked.problem, moved_bytes(96, 4, 0.5), moved_bytes(96, 4, 0.25)
    assert (problem.a_bytes, problem.a_sram_bytes) == (moved_bytes(128, 4, 0.25), 128)
    assert (problem.b_bytes, problem.b_sram_bytes) == (moved_bytes(192, 4, 0.5), 192)
    assert asked.drained == ((read("parameter", 24), Move("Y", "write", left, 96)), (Move("activation", "write", last, 96),))
    assert problem.out_bytes == 24 + left + last


def test_without_fusion_the_result_leaves_and_comes_back() -> None:
    product, relu = demands(linear(), fusion="none")
    assert isinstance(product, ProductDemand)
    assert product.drained == ((read("parameter", 24), write("Y", 96)),)
    assert relu == StreamDemand(moves=(read("activation", 96), write("activation", 96)), vector_operations=48)


def test_where_only_products_count_other_ops_have_no_demand() -> None:
    product, relu = demands(linear(), scope="products")
    assert isinstance(product, ProductDemand)
    assert relu == NoDemand(ops=1, why="scope")


def test_sums_of_narrow_numbers_are_as_wide_as_the_accumulators() -> None:
    for step, wanted in ((linear("fp16"), 24 * 4), (linear("fp64"), 24 * 8)):
        (asked,) = demands(step)
        assert isinstance(asked, ProductDemand)
        assert asked.problem.sum_bytes == wanted
    (asked,) = demands(linear("fp16"), accumulator_bytes=1)
    assert isinstance(asked, ProductDemand)
    assert asked.problem.sum_bytes == 24 * 2


@pytest.mark.parametrize(("rate", "depth"), [(1, 8), (3, 3), (4, 2)])
def test_multipliers_that_take_several_narrow_products_see_a_shorter_sum_of_wider_elements(rate: int, depth: int) -> None:
    (asked,) = demands(linear("fp16"), rates=MacRates({"fp16": rate}))
    assert (asked.problem.op, asked.packed) == (MatMul(4, 6, depth), rate)
    assert asked.element_bytes == (2 * rate, 2 * rate, 2)
    assert asked.problem.element_bytes == (2 * rate, 2 * rate)
    assert (asked.problem.a_bytes, asked.problem.b_bytes) == (64, 96)


def test_operands_of_two_types_are_multiplied_as_the_wider_one() -> None:
    step = linear()
    tensors = [replace(step.tensors[0], dtype="fp16"), *step.tensors[1:]]
    (asked,) = demands(step_of(list(step.ops), tensors))
    assert isinstance(asked, ProductDemand)
    assert (asked.number, asked.element_bytes, asked.problem.a_bytes) == ("fp32", (2, 4, 4), 64)


def test_operands_on_chip_cross_no_pins_and_take_no_room_as_tiles() -> None:
    step, work = linear(), Work(ops=(0, 1), grouping="chain")
    asked = plain_demand(step, work, Policy(), on_chip=OnChip(read=frozenset({0}), loaded=frozenset({1}), results=frozenset({3})))
    assert isinstance(asked, ProductDemand)
    problem = asked.problem
    assert (problem.a_bytes, problem.a_sram_bytes, problem.b_bytes, problem.b_sram_bytes) == (0, 0, 192, 0)
    assert asked.loaded_bytes == (None, 192)
    assert problem.sum_bytes == 0, "sums stay where the result is kept"


def test_narrow_results_that_are_kept_have_no_room_for_wide_sums() -> None:
    step, work = linear("fp16"), Work(ops=(0, 1), grouping="chain")
    asked = plain_demand(step, work, Policy(), on_chip=OnChip(results=frozenset({3})))
    assert isinstance(asked, ProductDemand)
    assert asked.problem.sum_bytes == 96


def attention() -> Step:
    """Scores q k^T, softmax, probabilities times v, of two heads: one kernel. q, k and v are views of one projection."""
    part = TensorSpec((2, 4, 3), view_of=0)
    tensors = [TensorSpec((2, 4, 9)), part, part, part, TensorSpec((2, 4, 4)), TensorSpec((2, 4, 4)), TensorSpec((2, 4, 3))]
    ops = [
        Op(body=MatMul(4, 4, 3, 2), inputs=(1, 2), outputs=(4,), fused=1),
        Op(body=Reduction("softmax", 32, 32, 2), inputs=(4,), outputs=(5,), fused=1),
        Op(body=MatMul(4, 3, 4, 2), inputs=(5, 3), outputs=(6,), fused=1),
    ]
    return step_of(ops, tensors)


def test_a_fused_kernel_reads_the_projection_once_and_keys_and_values_again() -> None:
    (kernel,) = demands(attention())
    assert kernel == FusedDemand(
        products=(MatMul(4, 4, 3, 2), None, MatMul(4, 3, 4, 2)),
        moves=(read("activation", 288), write("activation", 96)),
        again=(read("activation", 192),),
        item_bytes=(288 + 96) // 2,
        vector_operations=(0, 64, 0),
        number="fp32",
    )
    (products,) = demands(attention(), scope="products")
    assert products == replace(kernel, vector_operations=(0, 0, 0))
    (packed,) = demands(attention(), rates=MacRates({"fp32": 2}))
    assert packed == replace(kernel, products=(MatMul(4, 4, 2, 2), None, MatMul(4, 3, 2, 2)), packed=2)


def test_a_fused_kernel_writes_inner_tensors_that_backward_reads() -> None:
    step = attention()
    later = Op(body=Copy("clone", 32), inputs=(5,), outputs=(7,))
    kernel, _ = demands(step_of([*step.ops, later], [*step.tensors, TensorSpec((2, 4, 4))]))
    assert isinstance(kernel, FusedDemand)
    assert kernel.moves == (read("activation", 288), write("activation", 128), write("activation", 96))
    assert kernel.item_bytes == (288 + 128 + 96) // 2


def test_a_fused_kernel_reads_the_rows_of_a_table_that_it_looks_up() -> None:
    """The bias of each score, as relative positions have it."""
    step = attention()
    lookup = Op(body=Gather(32, 1, 7), inputs=(7, 8), outputs=(9,), fused=1)
    add = Op(body=ElementWise("add", 32), inputs=(4, 9), outputs=(4,), fused=1)
    tensors = [*step.tensors, TensorSpec((7,), role=WEIGHT), TensorSpec((32,), "int32", role=Role.BUFFER), TensorSpec((32,))]
    (kernel,) = demands(step_of([step.ops[0], lookup, add, *step.ops[1:]], tensors))
    assert isinstance(kernel, FusedDemand)
    assert kernel.moves == (read("parameter", 128), read("buffer", 128), read("activation", 288), write("activation", 96))
    assert kernel.vector_operations == (0, 0, 32, 64, 0)


def test_keys_that_stay_on_chip_do_not_come_again() -> None:
    kernel = plain_demand(attention(), Work(ops=(0, 1, 2), grouping="chain"), Policy(), on_chip=OnChip(read=frozenset({0})))
    assert isinstance(kernel, FusedDemand)
    assert kernel.again == ()
    assert kernel.moves == (Move("activation", "read", 0, 288, on_chip=True), write("activation", 96))
    assert kernel.item_bytes == 96 // 2


# gradients


def two_layers() -> Step:
    """dX and dW of a layer (8,4)->(8,2), a ReLU's mask, dX and dW of the layer (8,3)->(8,4) below, and its bias gradient."""
    shapes = [
        ((8, 2), GRADIENT), ((2, 4), WEIGHT), ((8, 4), ACTIVATION), ((4, 3), WEIGHT), ((8, 3), ACTIVATION), ((8, 4), GRADIENT),
        ((8, 4), GRADIENT), ((2, 4), WEIGHT_GRADIENT), ((8, 3), GRADIENT), ((4, 3), WEIGHT_GRADIENT), ((4,), WEIGHT_GRADIENT),
    ]  # fmt: skip
    down, across = Phase.GRAD_INPUT, Phase.GRAD_WEIGHT
    ops = [
        Op(body=MatMul(8, 4, 2), layer="upper", phase=down, inputs=(0, 1), outputs=(5,), letters=("G", "W")),
        Op(body=MatMul(2, 4, 8), layer="upper", phase=across, inputs=(0, 2), outputs=(7,), letters=("G", "A")),
        Op(body=ElementWise("threshold_backward", 32), name="threshold_backward", phase=down, inputs=(5, 2), outputs=(6,)),
        Op(body=Reduction("sum", 32, 4), name="sum", layer="lower", phase=across, inputs=(6,), outputs=(10,)),
        Op(body=MatMul(8, 3, 4), layer="lower", phase=down, inputs=(6, 3), outputs=(8,), letters=("G", "W")),
        Op(body=MatMul(4, 3, 8), layer="lower", phase=across, inputs=(6, 4), outputs=(9,), letters=("G", "A")),
    ]
    return step_of(ops, [TensorSpec(shape, role=role) for shape, role in shapes])


def test_gradients_of_a_layer_in_an_order_of_tiles_ask_for_two_products() -> None:
    upper, bias, lower = demands(two_layers(), paired=True)
    assert isinstance(upper, PairDemand)
    assert isinstance(lower, PairDemand)
    assert (upper.dx.labels, upper.dw.labels) == (("dY", "W", "dX"), ("dY", "X", "dW"))
    assert (upper.dx.problem.op, upper.dw.problem.op) == (MatMul(8, 4, 2), MatMul(2, 4, 8))
    assert upper.dx.drained == ((), (read("activation", 128), write("gradient", 128)))
    assert upper.dw.drained == ((write("dW", 32),),)
    assert bias == StreamDemand(moves=(read("gradient", 128), write("parameter_gradient", 16)), vector_operations=32)


def test_gradients_side_by_side_each_ask_for_what_they_would_alone() -> None:
    alone = demands(two_layers())
    upper, _, lower = demands(two_layers(), together="gradients")
    assert upper == TogetherDemand(products=(alone[0], alone[1]))
    assert lower == TogetherDemand(products=(alone[3], alone[4]))


def test_gradients_of_two_layers_in_one_go_leave_the_gradient_and_the_mask_between_them_on_chip() -> None:
    (asked,) = demands(two_layers(), paired=True, across=(0,))
    upper, bias, lower = demands(two_layers(), paired=True)
    assert asked == ChainDemand(
        upper=upper,
        lower=lower,
        beside=(bias,),
        between=((), ()),
        left=(StreamDemand(moves=(write("parameter_gradient", 16),), vector_operations=32),),
        masked=True,
    )


def test_a_mask_of_its_own_comes_with_the_gradient_between_two_layers() -> None:
    """Dropout's mask of bytes, and dX as the product leaves it, which another op reads."""
    step = two_layers()
    mask, copied = len(step.tensors), len(step.tensors) + 1
    ops = list(step.ops)
    ops[2] = replace(ops[2], inputs=(5, mask))
    tensors = [*step.tensors, TensorSpec((8, 4), "bool"), TensorSpec((8, 4))]
    (asked,) = demands(step_of(ops, tensors), paired=True, across=(0,))
    assert isinstance(asked, ChainDemand)
    assert (asked.between, asked.masked) == (((), (read("activation", 32),)), False)
    ops.append(Op(body=Copy("clone", 32), phase=Phase.GRAD_INPUT, inputs=(5,), outputs=(copied,)))
    (work, *_) = works(step_of(ops[:-1], tensors), Policy(paired=True, across=(0,)))
    kept = demand(step_of(ops, tensors), work, Policy(paired=True, across=(0,)))
    assert isinstance(kept, ChainDemand)
    assert kept.between == ((write("dX", 128),), (read("activation", 32),))


# convolutions

IMAGE = Convolution(batch=2, in_channels=3, out_channels=5, size=(6, 6), kernel=(3, 3))


def gradient_of_inputs() -> Step:
    body = IMAGE.as_product("grad_input")
    tensors = [
        TensorSpec((2, 5, 4, 4), role=GRADIENT),
        TensorSpec((5, 3, 3, 3), role=WEIGHT),
        TensorSpec((2, 3, 6, 6), role=GRADIENT),
    ]
    ops = [Op(body=body, layer="conv", phase=Phase.GRAD_INPUT, inputs=(0, 1), outputs=(2,), letters=("G", "W"))]
    return step_of(ops, tensors)


def test_an_image_is_read_as_it_is_or_as_the_matrix_of_its_windows() -> None:
    tensors = [TensorSpec((2, 3, 6, 6)), TensorSpec((5, 3, 3, 3), role=WEIGHT), TensorSpec((2, 5, 4, 4))]
    step = step_of([Op(body=IMAGE, layer="conv", inputs=(0, 1), outputs=(2,), letters=("A", "W"))], tensors)
    for im2col, a_bytes in (("raw", 4 * 2 * 3 * 36), ("materialised", 4 * 2 * 16 * 27)):
        (asked,) = demands(step, im2col=im2col)
        assert isinstance(asked, ProductDemand)
        assert (asked.problem.a_bytes, asked.problem.b_bytes, asked.problem.out_bytes) == (a_bytes, 4 * 135, 4 * 160)


def test_sums_of_windows_that_two_tiles_share_cost_a_write_and_a_read_where_no_line_buffer_keeps_them() -> None:
    """216 elements of dX leave; a further visit writes and reads an accumulator of 4 bytes for each element of 4."""
    (asked,) = demands(gradient_of_inputs(), line_buffer=False)
    assert isinstance(asked, ProductDemand)
    whole = halo_of(IMAGE.as_product("grad_input"))
    assert whole is not None
    assert asked.problem.halo == replace(whole, weight=2.0)
    assert (asked.problem.out_bytes, asked.problem.sum_bytes) == (864, 864)
    (kept,) = demands(gradient_of_inputs())
    assert isinstance(kept, ProductDemand)
    assert kept.problem.halo is None
    (dilated,) = demands(gradient_of_inputs(), line_buffer=False, grad_input="dilated")
    assert isinstance(dilated, ProductDemand)
    assert dilated.problem.halo == halo_of(IMAGE.as_product("grad_input"), "dilated")
    (matrix,) = demands(gradient_of_inputs(), line_buffer=False, im2col="materialised")
    assert isinstance(matrix, ProductDemand)
    assert matrix.problem.halo is None


# whole steps


def test_equal_layers_are_one_demand_unless_each_work_is_to_have_its_own() -> None:
    tensors = [TensorSpec((4, 4)) for _ in range(4)] + [TensorSpec((4, 4), role=WEIGHT)]
    ops = [Op(body=MatMul(4, 4, 4), layer=f"layer{n}", inputs=(n, 4), outputs=(n + 1,), letters=("A", "W")) for n in range(3)]
    ops.append(Op(body=Collective("all_reduce", 16, 2), inputs=(3,), outputs=(3,)))
    step = step_of(ops, tensors)
    whole = profile(step, Policy())
    assert (len(whole.demands), whole.number) == (1, {(0,): 0, (1,): 0, (2,): 0})
    apart = profile(step, Policy(), by_work=True)
    assert apart.number == {(0,): 0, (1,): 1, (2,): 2}
    assert set(apart.demands) == set(whole.demands)


def test_a_stream_has_one_demand_even_where_products_have_their_own() -> None:
    ops = [Op(body=ElementWise("relu", 16), inputs=(n,), outputs=(n + 1,)) for n in range(3)]
    apart = profile(step_of(ops, [TensorSpec((4, 4)) for _ in range(4)]), Policy(), by_work=True)
    assert apart.number == {(0,): 0, (1,): 0, (2,): 0}


def test_an_exchange_with_nobody_asks_for_nothing_and_one_with_others_needs_a_system() -> None:
    for ranks in (1, 2):
        step = step_of([Op(body=Collective("all_reduce", 16, ranks), name="sum", inputs=(0,), outputs=(0,))], [TensorSpec((16,))])
        if ranks == 1:
            assert plain_demand(step, Work(ops=(0,)), Policy()) == NoDemand(ops=1, why="alone")
        else:
            with pytest.raises(NotModelled, match="op 'sum' does all_reduce between 2 ranks"):
                plain_demand(step, Work(ops=(0,)), Policy())


def test_only_products_are_done_together_and_only_dx_with_its_own_dw() -> None:
    step = two_layers()
    with pytest.raises(NotModelled, match="only products are done together"):
        plain_demand(step, Work(ops=(0, 2, 3), grouping="concurrent"), Policy())
    with pytest.raises(NotModelled, match="dX with its own dW"):
        plain_demand(step, Work(ops=(0, 2, 5), grouping="gradient_pair"), Policy())
    with pytest.raises(NotModelled, match="works one by one"):
        plain_demand(step, Work(ops=(3, 0), grouping="concurrent"), Policy())
