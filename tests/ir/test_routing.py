"""Grouped products in a step: rows over groups as evenly as whole numbers allow, at every batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadInput
from trainyard.ir import MatMul, Op, Phase, Role, Routing, Step, TensorSpec
from trainyard.ir.routing import divided, joined

SIZES = st.integers(1, 40)


def grouped_step(axis: str, per_sample: int, groups: int, batch: int = 1, width: int = 6, depth: int = 5) -> Step:
    """One grouped product whose rows grow with the batch."""
    rows = per_sample * batch
    body = {"M": MatMul(rows, width, depth), "N": MatMul(width, rows, depth), "K": MatMul(width, depth, rows)}[axis]
    shapes = {
        "M": ((rows, depth), (groups, depth, width), (rows, width)),
        "N": ((groups, width, depth), (depth, rows), (width, rows)),
        "K": ((width, rows), (rows, depth), (groups, width, depth)),
    }[axis]
    where = {"M": (0, None, 0), "N": (None, 1, 1), "K": (1, 0, None)}[axis]
    tensors = [
        TensorSpec(shape, role=Role.ACTIVATION, slope=tuple(per_sample if place == own else 0 for place in range(len(shape))))
        for shape, own in zip(shapes, where, strict=True)
    ]
    slope = tuple(per_sample if place == "MNK".index(axis) else 0 for place in range(4))
    op = Op(
        body=body,
        phase=Phase.FORWARD,
        inputs=(0, 1),
        outputs=(2,),
        slope=slope,
        routing=Routing(axis, rows, groups),  # type: ignore[arg-type]
    )
    ops, specs = divided([op], tensors)
    return Step("grouped", batch, ops, specs)


@given(rows=SIZES, groups=SIZES)
def test_rows_are_divided_as_evenly_as_whole_numbers_allow(rows: int, groups: int) -> None:
    parts = Routing("M", rows, groups).parts()
    assert sum(count * each for each, count in parts) == rows
    assert sum(count for _, count in parts) == min(rows, groups)
    assert max(each for each, _ in parts) - min(each for each, _ in parts) <= 1


@given(axis=st.sampled_from("MNK"), per_sample=st.integers(41, 90), groups=SIZES)
def test_the_products_of_the_groups_have_the_macs_of_all_rows_and_touch_every_element_once(axis, per_sample, groups) -> None:
    step = grouped_step(axis, per_sample, groups)
    assert step.macs == per_sample * 6 * 5
    for side in range(3):
        operands = [(*op.inputs, *op.outputs)[side] for op in step.ops]
        assert sum(step.tensors[t].elements for t in operands) == step.tensors[side].elements
        assert {step.base(t) for t in operands} == {side}
    for op in step.ops:
        assert isinstance(op.body, MatMul)
        sizes = {"M": op.body.count * op.body.M, "N": op.body.count * op.body.N, "K": op.body.count * op.body.K}
        assert op.routing is not None
        cut = {"M": 0, "N": 2, "K": 1}[axis]
        tensor = step.tensors[(*op.inputs, *op.outputs)[cut]]
        assert sizes[axis] in tensor.shape


@given(axis=st.sampled_from("MNK"), per_sample=st.integers(41, 90), groups=SIZES, batch=st.integers(1, 4), other=st.integers(1, 4))
def test_a_rebatched_step_is_the_step_of_that_batch(axis: str, per_sample: int, groups: int, batch: int, other: int) -> None:
    assert grouped_step(axis, per_sample, groups, batch).rebatch(other) == grouped_step(axis, per_sample, groups, other)


@given(axis=st.sampled_from("MNK"), per_sample=st.integers(41, 90), groups=SIZES)
def test_joined_ops_divide_into_the_same_again(axis: str, per_sample: int, groups: int) -> None:
    step = grouped_step(axis, per_sample, groups)
    whole, tensors = joined(step.ops, step.tensors)
    assert len(whole) == 1
    assert len(tensors) == 3
    assert divided(whole, tensors) == (step.ops, step.tensors)


def test_a_part_of_the_rows_waits_for_nothing_and_the_reader_for_both_parts() -> None:
    step = grouped_step("M", 42, 8)
    reader = Op(body=MatMul(42, 3, 6), inputs=(2, 2), outputs=(2,))
    more = Step("reader", 1, (*step.ops, reader), step.tensors)
    assert len(step.ops) == 2
    assert more.dependencies[-1] == (1,)
    assert more.dependencies[1] == (0,)  # the other part of the tensor that it completes


def test_a_step_with_routing_survives_json_and_one_without_has_the_old_form() -> None:
    step = grouped_step("K", 42, 8)
    assert Step.from_json(step.to_json()) == step
    plain = Step("plain", 1, (Op(body=MatMul(2, 3, 4)),), ())
    assert '"M"' not in plain.to_json()


def test_one_part_alone_is_not_rebatched_unless_it_divides_evenly() -> None:
    uneven, even = grouped_step("M", 42, 8).ops[0], grouped_step("M", 48, 8).ops[0]
    with pytest.raises(BadInput, match="rebatch the whole step"):
        uneven.rebatch(1)
    assert even.rebatch(1).body == MatMul(12, 6, 5, 8)
    with pytest.raises(BadInput, match="0 groups"):
        Routing("M", 3, 0)
