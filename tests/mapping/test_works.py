"""Grouping of ops: every op once, dependencies kept, epilogues only where they can run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import NotModelled, UnknownName
from trainyard.ir import Copy, ElementWise, MatMul, Op, Phase, Reduction, Step, TensorSpec
from trainyard.mapping.works import group, require_order


def step_of(ops, tensors):
    return Step(name="made", batch=1, ops=tuple(ops), tensors=tuple(tensors))


def chains(step, fusion="epilogue"):
    return [work.ops for work in group(step, fusion)]


SIZE = TensorSpec((4, 4))


def product(inputs, output, **more):
    return Op(body=MatMul(4, 4, 4), inputs=inputs, outputs=(output,), **more)


def point(function, inputs, output, elements=16, **more):
    return Op(body=ElementWise(function, elements), inputs=inputs, outputs=(output,), **more)


def test_bias_relu_and_residual_go_with_their_product():
    step = step_of([product((0, 1), 2), point("add", (2, 0), 3), point("relu", (3,), 4), product((4, 1), 5)], [SIZE] * 6)
    assert chains(step) == [(0, 1, 2), (3,)]
    assert chains(step, "none") == [(0,), (1,), (2,), (3,)]


def test_a_reduction_ends_the_chain():
    norm = Op(body=Reduction("batch_norm", 16, 16, 2), inputs=(2,), outputs=(3,))
    step = step_of([product((0, 1), 2), norm, point("relu", (3,), 4)], [SIZE] * 5)
    assert chains(step) == [(0,), (1,), (2,)]


def test_what_comes_after_the_product_began_cannot_join():
    late = Op(body=Copy("fill", 16), outputs=(3,))
    step = step_of([product((0, 1), 2), late, point("mul", (2, 3), 4)], [SIZE] * 5)
    assert chains(step) == [(0,), (1,), (2,)]


def test_an_op_of_another_size_or_of_the_update_stands_alone():
    step = step_of([product((0, 1), 2), point("sum", (2,), 3, elements=4)], [SIZE] * 3 + [TensorSpec((4,))])
    assert chains(step) == [(0,), (1,)]
    step = step_of([product((0, 1), 2), point("sgd", (2,), 3, phase=Phase.UPDATE)], [SIZE] * 4)
    assert chains(step) == [(0,), (1,)]


def test_the_backward_pass_does_not_join_a_forward_product():
    step = step_of([product((0, 1), 2), point("threshold_backward", (2, 0), 3, phase=Phase.GRAD_INPUT)], [SIZE] * 4)
    assert chains(step) == [(0,), (1,)]


def test_an_overwrite_waits_for_other_readers():
    """ReLU in place on the product's output, which a copy read in between."""
    view = TensorSpec((4, 4), view_of=2)
    read = Op(body=Copy("clone", 16), inputs=(2,), outputs=(4,))
    step = step_of([product((0, 1), 2), read, point("relu", (2,), 3)], [SIZE, SIZE, SIZE, view, SIZE])
    assert chains(step) == [(0,), (1,), (2,)]


def test_an_overwrite_of_another_memory_waits_too():
    onto = TensorSpec((4, 4), view_of=0)
    read = Op(body=Copy("clone", 16), inputs=(0,), outputs=(4,))
    step = step_of([product((0, 1), 2), read, point("relu", (2,), 3)], [SIZE, SIZE, SIZE, onto, SIZE])
    assert chains(step) == [(0,), (1,), (2,)]


def test_neighbours_of_one_kernel_form_a_chain():
    ops = [
        product((0, 1), 2, fused=7),
        point("softmax", (2,), 3, fused=7),
        product((3, 1), 4, fused=7),
        product((4, 1), 5, fused=8),
    ]
    assert chains(step_of(ops, [SIZE] * 6)) == [(0, 1, 2), (3,)]


@st.composite
def programs(draw):
    """Random programs over tensors of one size."""
    ops, tensors = [], [SIZE, SIZE]
    for _ in range(draw(st.integers(1, 12))):
        known = st.integers(0, len(tensors) - 1)
        reads = (draw(known), draw(known))
        view_of = draw(st.none() | known)
        tensors.append(TensorSpec((4, 4), view_of=view_of))
        kind = draw(st.sampled_from(["product", "point", "reduction"]))
        body = {"product": MatMul(4, 4, 4), "point": ElementWise("add", 16), "reduction": Reduction("sum", 16, 16)}[kind]
        ops.append(Op(body=body, inputs=reads, outputs=(len(tensors) - 1,)))
    return step_of(ops, tensors)


@given(step=programs(), fusion=st.sampled_from(["epilogue", "none"]))
def test_every_op_once_and_after_what_it_waits_for(step, fusion):
    works = group(step, fusion)
    order = [op for work in works for op in work.ops]
    assert sorted(order) == list(range(len(step.ops)))
    place = {op: position for position, op in enumerate(order)}
    for op, before in enumerate(step.dependencies):
        assert all(place[other] < place[op] for other in before)


@given(step=programs())
def test_a_memory_is_not_overwritten_before_its_readers_are_done(step):
    place = {op: position for position, op in enumerate(op for work in group(step, "epilogue") for op in work.ops)}
    for writer, op in enumerate(step.ops):
        for base in map(step.base, op.outputs):
            earlier = (i for i in range(writer) if base in map(step.base, step.ops[i].inputs))
            assert all(place[reader] < place[writer] for reader in earlier)


def test_orders_that_pair_gradients_are_not_modelled_yet():
    require_order("sequential")
    with pytest.raises(NotModelled, match="known: sequential"):
        require_order("interleaved")
    with pytest.raises(UnknownName, match="did you mean 'interleaved'"):
        require_order("interleave")
