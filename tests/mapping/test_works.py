"""Grouping of ops into Works: every op once, dependencies respected, epilogues only where they can run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.ir import Convolution, Copy, ElementWise, MatMul, Op, Phase, Reduction, Step, TensorSpec
from trainyard.mapping.works import group, separate_products


def step_of(ops, tensors):
    return Step(name="test", batch=1, ops=tuple(ops), tensors=tuple(tensors))


def chains(step, fusion="epilogue"):
    return [work.ops for work in group(step, fusion)]


SIZE = TensorSpec((4, 4))


def product(inputs, output, **more):
    return Op(body=MatMul(4, 4, 4), inputs=inputs, outputs=(output,), **more)


def element_wise(function, inputs, output, elements=16, **more):
    return Op(body=ElementWise(function, elements), inputs=inputs, outputs=(output,), **more)


def test_bias_relu_and_residual_are_the_epilogue_of_their_product():
    step = step_of(
        [product((0, 1), 2), element_wise("add", (2, 0), 3), element_wise("relu", (3,), 4), product((4, 1), 5)], [SIZE] * 6
    )
    assert chains(step) == [(0, 1, 2), (3,)]
    assert chains(step, "none") == [(0,), (1,), (2,), (3,)]


def test_a_reduction_ends_the_chain():
    norm = Op(body=Reduction("batch_norm", 16, 16, 2), inputs=(2,), outputs=(3,))
    step = step_of([product((0, 1), 2), norm, element_wise("relu", (3,), 4)], [SIZE] * 5)
    assert chains(step) == [(0,), (1,), (2,)]


def test_an_op_that_waits_for_a_later_op_is_no_epilogue():
    late = Op(body=Copy("fill", 16), outputs=(3,))
    step = step_of([product((0, 1), 2), late, element_wise("mul", (2, 3), 4)], [SIZE] * 5)
    assert chains(step) == [(0,), (1,), (2,)]


def test_an_op_of_another_size_or_of_the_update_is_no_epilogue():
    step = step_of([product((0, 1), 2), element_wise("sum", (2,), 3, elements=4)], [SIZE] * 3 + [TensorSpec((4,))])
    assert chains(step) == [(0,), (1,)]
    step = step_of([product((0, 1), 2), element_wise("sgd", (2,), 3, phase=Phase.UPDATE)], [SIZE] * 4)
    assert chains(step) == [(0,), (1,)]


def test_an_op_of_the_backward_pass_is_no_epilogue_of_a_forward_product():
    step = step_of([product((0, 1), 2), element_wise("threshold_backward", (2, 0), 3, phase=Phase.GRAD_INPUT)], [SIZE] * 4)
    assert chains(step) == [(0,), (1,)]


def test_an_op_in_place_is_no_epilogue_while_others_read_the_tensor():
    """ReLU in place on the product's output, which a copy read in between."""
    view = TensorSpec((4, 4), view_of=2)
    read = Op(body=Copy("clone", 16), inputs=(2,), outputs=(4,))
    step = step_of([product((0, 1), 2), read, element_wise("relu", (2,), 3)], [SIZE, SIZE, SIZE, view, SIZE])
    assert chains(step) == [(0,), (1,), (2,)]


def test_an_op_that_overwrites_another_tensor_is_no_epilogue_while_others_read_that():
    onto = TensorSpec((4, 4), view_of=0)
    read = Op(body=Copy("clone", 16), inputs=(0,), outputs=(4,))
    step = step_of([product((0, 1), 2), read, element_wise("relu", (2,), 3)], [SIZE, SIZE, SIZE, onto, SIZE])
    assert chains(step) == [(0,), (1,), (2,)]


def test_ops_of_one_fused_kernel_form_a_chain():
    ops = [
        product((0, 1), 2, fused=7),
        element_wise("softmax", (2,), 3, fused=7),
        product((3, 1), 4, fused=7),
        product((4, 1), 5, fused=8),
    ]
    assert chains(step_of(ops, [SIZE] * 6)) == [(0, 1, 2), (3,)]


@st.composite
def programs(draw):
    """Random programs over tensors of one size; some products have letters."""
    ops, tensors = [], [SIZE, SIZE]
    letters = st.sampled_from([(), ("G", "W"), ("A", "G"), ("G", "A")])
    for _ in range(draw(st.integers(1, 12))):
        earlier = st.integers(0, len(tensors) - 1)
        reads = (draw(earlier), draw(earlier))
        view_of = draw(st.none() | earlier)
        tensors.append(TensorSpec((4, 4), view_of=view_of))
        kind = draw(st.sampled_from(["product", "point", "reduction"]))
        body = {"product": MatMul(4, 4, 4), "point": ElementWise("add", 16), "reduction": Reduction("sum", 16, 16)}[kind]
        phase = draw(st.sampled_from([Phase.FORWARD, Phase.GRAD_INPUT, Phase.GRAD_WEIGHT]))
        named = {"letters": draw(letters)} if kind == "product" else {}
        ops.append(Op(body=body, inputs=reads, outputs=(len(tensors) - 1,), phase=phase, layer="one", **named))
    return step_of(ops, tensors)


groupings = st.sampled_from([(), ("gradients",), ("none", "col2im"), ("none", "dilated")])
"""Arguments of `group`: separate Works, concurrent gradients, gradient pairs."""


@given(step=programs(), fusion=st.sampled_from(["epilogue", "none"]), grouping=groupings)
def test_works_have_every_op_once_and_after_its_dependencies(step, fusion, grouping):
    works = group(step, fusion, *grouping)
    order = [op for work in works for op in work.ops]
    assert sorted(order) == list(range(len(step.ops)))
    position = {op: number for number, op in enumerate(order)}
    for op, before in enumerate(step.dependencies):
        assert all(position[other] < position[op] for other in before)


@given(step=programs(), grouping=groupings)
def test_a_tensor_is_not_overwritten_before_its_readers_ran(step, grouping):
    position = {op: number for number, op in enumerate(op for work in group(step, "epilogue", *grouping) for op in work.ops)}
    for writer, op in enumerate(step.ops):
        for base in map(step.base, op.outputs):
            earlier = (i for i in range(writer) if base in map(step.base, step.ops[i].inputs))
            assert all(position[reader] < position[writer] for reader in earlier)


@given(step=programs(), grouping=groupings)
def test_the_gradients_of_one_work_are_independent(step, grouping):
    """Its parts can run in either order: none writes what the other reads or writes; each is a chain of the plain grouping."""
    chains_alone = set(group(step, "epilogue"))
    for work in group(step, "epilogue", *grouping):
        if work.grouping not in ("concurrent", "gradient_pair"):
            assert work in chains_alone
            continue
        first, second = separate_products(step, work)
        assert {first, second} <= chains_alone
        phases = [step.ops[part.ops[0]].phase for part in (first, second)]
        assert phases == [Phase.GRAD_INPUT, Phase.GRAD_WEIGHT]
        for part, other in ((first, second), (second, first)):
            written = {step.base(t) for op in part.ops for t in step.ops[op].outputs}
            touched = {step.base(t) for op in other.ops for t in (*step.ops[op].inputs, *step.ops[op].outputs)}
            assert not written & touched


BACKWARD = {"phase": Phase.GRAD_INPUT, "layer": "linear"}
WEIGHT = {"phase": Phase.GRAD_WEIGHT, "layer": "linear"}


def test_dx_and_dw_of_a_layer_become_one_concurrent_work_with_their_epilogues():
    step = step_of(
        [product((0, 1), 2, **WEIGHT), product((0, 3), 4, **BACKWARD), element_wise("threshold_backward", (4, 5), 6, **BACKWARD)],
        [SIZE] * 7,
    )
    assert [(work.ops, work.grouping) for work in group(step, "epilogue")] == [((0,), "single"), ((1, 2), "chain")]
    (pair,) = group(step, "epilogue", "gradients")
    assert (pair.ops, pair.grouping) == ((1, 2, 0), "concurrent")
    assert [part.ops for part in separate_products(step, pair)] == [(1, 2), (0,)]
    assert [work.grouping for work in group(step, "none", "gradients")] == ["concurrent", "single"]


# fmt: off
SEPARATE = {
    "another layer":     [product((0, 1), 2, **WEIGHT), product((0, 3), 4, **BACKWARD | {"layer": "other"})],
    "another call":      [product((0, 1), 2, **WEIGHT), product((0, 3), 4, **BACKWARD, call=1)],
    "another gradient":  [product((0, 1), 2, **WEIGHT), product((5, 3), 4, **BACKWARD)],
    "dW reads dX":      [product((0, 3), 4, **BACKWARD), product((0, 4), 2, **WEIGHT)],
    "a Work between"   : [product((0, 3), 4, **BACKWARD), Op(body=Reduction("norm", 16, 16, 2), inputs=(4,), outputs=(5,)),
                          product((0, 5), 2, **WEIGHT)],
    "one kernel":        [product((0, 3), 4, **BACKWARD, fused=1), product((0, 1), 2, **WEIGHT, fused=1)],
}
# fmt: on


@pytest.mark.parametrize("why", SEPARATE)
def test_gradients_that_are_not_joined(why):
    step = step_of(SEPARATE[why], [SIZE] * 7)
    assert group(step, "epilogue", "gradients") == group(step, "epilogue")
    assert group(step, "epilogue", "none", "col2im") == group(step, "epilogue")


@pytest.mark.parametrize("reads", [(2,), (9,)])
def test_the_later_gradient_moves_up_past_works_without_conflict(reads):
    between = Op(body=Reduction("norm", 16, 16, 2), inputs=reads, outputs=(7,))
    step = step_of([product((0, 1), 2, **WEIGHT), between, product((0, 3), 4, **BACKWARD)], [SIZE] * 10)
    assert [work.ops for work in group(step, "epilogue", "gradients")] == [(2, 0), (1,)]


def test_the_earlier_gradient_moves_down_if_the_later_one_waits_for_a_work_between():
    between = Op(body=Reduction("norm", 16, 16, 2), inputs=(9,), outputs=(3,))
    step = step_of([product((0, 1), 2, **WEIGHT), between, product((0, 3), 4, **BACKWARD)], [SIZE] * 10)
    assert [work.ops for work in group(step, "epilogue", "gradients")] == [(1,), (2, 0)]


# gradient pairs


def pairs(step, grad_input="col2im"):
    return [work.ops for work in group(step, "epilogue", "none", grad_input) if work.grouping == "gradient_pair"]


@given(step=programs())
def test_both_products_of_a_gradient_pair_read_the_same_dy(step):
    for work in group(step, "epilogue", "none", "col2im"):
        if work.grouping == "gradient_pair":
            dx, dw = (step.ops[part.ops[0]] for part in separate_products(step, work))
            if dx.letters and dw.letters:
                assert (dx.letters, "G" in dw.letters) == (("G", "W"), True)
            assert set(map(step.base, dx.inputs)) & set(map(step.base, dw.inputs))


def linear(M, N, K, dw, letters, call=0, rows=None):
    """dX(M,K) and a product that may be its dW."""
    tensors = [TensorSpec((M, N)), TensorSpec((K, N)), TensorSpec((M, K)), TensorSpec((rows or M, K)), TensorSpec(dw[:2])]
    ops = [
        Op(body=MatMul(M, K, N), inputs=(0, 1), outputs=(2,), letters=("G", "W"), **BACKWARD),
        Op(
            body=MatMul(*dw), inputs=(3, 0) if letters == ("A", "G") else (0, 3), outputs=(4,), letters=letters, call=call, **WEIGHT
        ),
    ]
    return step_of(ops, tensors)


# fmt: off
LINEAR = [
    ((8, 4, 6), (6, 4, 8),  ("A", "G"), True),
    ((8, 4, 6), (4, 6, 8),  ("G", "A"), True),
    ((8, 4, 6), (4, 6, 8),  ("A", "G"), False),   # letters mean k by n, the shape is n by k
    ((8, 4, 6), (6, 4, 16), ("A", "G"), False),   # one dW over two calls of a recurrent layer
    ((8, 4, 6), (5, 4, 8),  ("A", "G"), False),
    ((8, 4, 6), (6, 4, 8),  ("A", "W"), False),   # no operand is dY
]
# fmt: on


@pytest.mark.parametrize(("forward", "dw", "letters", "fits"), LINEAR)
def test_dx_and_dw_pair_only_if_shapes_and_letters_fit(forward, dw, letters, fits):
    assert bool(pairs(linear(*forward, dw, letters))) is fits
    assert not pairs(linear(*forward, dw, letters, call=1))


def convolution(**geometry):
    body = Convolution(**{"batch": 2, "in_channels": 4, "out_channels": 4, "size": (6, 6), "kernel": (3, 3)} | geometry)
    large, small = (2, body.in_channels, *body.size), (2, body.out_channels, *body.out_size)
    weight = (body.out_channels, body.in_channels // body.groups, *body.kernel)
    tensors = [TensorSpec(small), TensorSpec(weight), TensorSpec(large), TensorSpec(large), TensorSpec(weight)]
    ops = [
        Op(body=body.as_product("grad_input"), inputs=(0, 1), outputs=(2,), letters=("G", "W"), **BACKWARD),
        Op(body=body.as_product("grad_weight"), inputs=(0, 3), outputs=(4,), letters=("G", "A"), **WEIGHT),
    ]
    return step_of(ops, tensors)


# fmt: off
GEOMETRIES = [
    {"padding": (1, 1)},                      # as many rows of dX as of dY, and as many channels
    {"stride": (2, 2)},
    {"groups": 4},
    {"groups": 2, "stride": (2, 2), "padding": (1, 1)},
    {"kernel": (1, 1), "stride": (2, 2)},
    {"kernel": (1, 1)},
]
TOGETHER = [GEOMETRIES[0], *GEOMETRIES[3:]]   # of which dX has as many rows as dY, or as many more as the stride makes
# fmt: on


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_gradients_of_a_convolution_pair_also_dilated_where_rows_belong_together(geometry):
    step = convolution(**geometry)
    together = [(0, 1)] if geometry in TOGETHER else []
    bare = step_of([Op(body=op.body, phase=op.phase, layer=op.layer) for op in step.ops], [])
    for named in (step, bare):
        assert pairs(named) == [(0, 1)]
        assert pairs(named, "dilated") == together


def test_gradients_of_a_transposed_convolution_pair():
    """dX is the forward product of the geometry: both gradients read im2col(dY)."""
    body = Convolution(batch=2, in_channels=2, out_channels=3, size=(6, 6), kernel=(2, 2), stride=(2, 2))
    large, small, weight = (2, 2, 6, 6), (2, 3, 3, 3), (3, 2, 2, 2)
    tensors = [TensorSpec(large), TensorSpec(weight), TensorSpec(small), TensorSpec(small), TensorSpec(weight)]
    ops = [
        Op(body=body, inputs=(0, 1), outputs=(2,), letters=("G", "W"), **BACKWARD),
        Op(body=body.as_product("grad_weight"), inputs=(3, 0), outputs=(4,), letters=("A", "G"), **WEIGHT),
    ]
    assert pairs(step_of(ops, tensors)) == [(0, 1)]


def test_dw_of_a_layer_without_dx_is_a_work_of_its_own():
    step = step_of([product((0, 1), 2, **WEIGHT), element_wise("sgd", (2,), 3, phase=Phase.UPDATE)], [SIZE] * 4)
    assert [work.ops for work in group(step, "epilogue", "none", "col2im")] == [(0,), (1,)]


def test_gradients_of_a_recurrent_layer_pair_within_each_call():
    ops, tensors = [], [SIZE] * 12
    for call in (0, 1):
        ops.append(product((call, 2), 4 + call, **BACKWARD, call=call, letters=("G", "W")))
    for call in (1, 0):
        ops.append(product((call, 3), 6 + call, **WEIGHT, call=call, letters=("G", "A")))
    assert sorted(pairs(step_of(ops, tensors))) == [(0, 3), (1, 2)]
