"""Steps: rebatch, dependencies, splits, and their JSON form."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainyard as ty
from trainyard.errors import BadInput
from trainyard.ir import ElementWise, MatMul, Op, Phase, Role, Step, TensorSpec


def mlp(batch: int = 4, width: int = 8) -> Step:
    """Two linear layers with a ReLU, forward and the second layer's gradients, written by hand."""
    tensors = (
        TensorSpec((batch, 3), role=Role.INPUT, name="x", slope=(1, 0)),
        TensorSpec((3, width), role=Role.PARAMETER, name="a.weight", slope=(0, 0)),
        TensorSpec((batch, width), slope=(1, 0)),
        TensorSpec((batch, width), slope=(1, 0)),
        TensorSpec((width, 2), role=Role.PARAMETER, name="b.weight", slope=(0, 0)),
        TensorSpec((batch, 2), slope=(1, 0)),
        TensorSpec((width, batch), view_of=3, slope=(0, 1)),
        TensorSpec((width, 2), role=Role.PARAMETER_GRADIENT, name="b.weight", slope=(0, 0)),
    )
    ops = (
        Op(body=MatMul(batch, width, 3), layer="a", inputs=(0, 1), outputs=(2,), letters=("A", "W"), slope=(1, 0, 0, 0)),
        Op(body=ElementWise("relu", batch * width), layer="act", inputs=(2,), outputs=(3,), slope=(width, 0)),
        Op(body=MatMul(batch, 2, width), layer="b", inputs=(3, 4), outputs=(5,), letters=("A", "W"), slope=(1, 0, 0, 0)),
        Op(
            body=MatMul(width, 2, batch),
            layer="b",
            phase=Phase.GRAD_WEIGHT,
            inputs=(6, 5),
            outputs=(7,),
            letters=("A", "G"),
            slope=(0, 0, 1, 0),
        ),
    )
    return Step("mlp", batch, ops, tensors, source="by hand")


@given(st.integers(1, 50), st.integers(1, 50))
def test_rebatch_equals_building_it_at_that_batch(first: int, second: int) -> None:
    assert mlp(first).rebatch(second) == mlp(second)


def test_rebatching_again_finds_the_same_step_and_never_that_of_an_equal_one_changed() -> None:
    step = mlp(4)
    assert step.rebatch(9) is step.rebatch(9)
    assert step.rebatch(4) is step
    assert replace(step, name="other").rebatch(9).name == "other"
    assert [step.rebatch(batch).batch for batch in range(1, 50)] == list(range(1, 50))  # more than are kept
    assert step.rebatch(9) == mlp(9)


def test_dependencies_pass_through_views() -> None:
    assert mlp().dependencies == ((), (0,), (1,), (1, 2))


def test_macs_parameters_and_layers_of_a_small_mlp() -> None:
    step = mlp(batch=4, width=8)
    assert step.macs == 4 * 8 * 3 + 4 * 2 * 8 + 8 * 2 * 4
    assert step.parameters == 3 * 8 + 8 * 2
    assert step.layers == ("a", "act", "b")
    assert len(step.of("b")) == 2
    assert [op.phase for op in step.only(Phase.GRAD_WEIGHT)] == [Phase.GRAD_WEIGHT]


def test_a_step_read_from_json_is_equal_and_writes_equal_bytes() -> None:
    step = mlp()
    text = step.to_json()
    assert Step.from_json(text) == step
    assert Step.from_json(text).to_json() == text
    assert Step.from_json(text).digest == step.digest


def test_notes_of_a_step_are_kept_in_json_and_repeated_by_its_results() -> None:
    step = replace(mlp(), notes=("the routing is balanced",))
    assert Step.from_json(step.to_json()) == step
    assert "the routing is balanced" in ty.run(step, on="npu").notes
    assert mlp(batch=5).digest != step.digest


def test_json_of_another_version_or_format_is_refused_in_one_line() -> None:
    document = json.loads(mlp().to_json())
    for change, message in (
        ({"version": 99}, "version 99: this release reads version 1"),
        ({"format": "other"}, "not a step file"),
        ({"ops": [[0]]}, "damaged step file"),
        ({"batch": 0}, "batch must be a positive"),
        ({"bodies": [["MatMul", 0, 1, 1, 1]] * 3}, "M must be a positive"),
        ({"bodies": [["Exec", 1]]}, "damaged step file"),
    ):
        with pytest.raises(BadInput, match=message) as caught:
            Step.from_json(json.dumps({**document, **change}))
        assert "\n" not in str(caught.value)
    with pytest.raises(BadInput, match="not a step file"):
        Step.from_json("{")


@given(st.text(max_size=40))
def test_text_that_is_no_step_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        Step.from_json(text)


@given(st.integers(0, 3000), st.integers(0, 255))
def test_json_with_a_damaged_byte_is_a_step_or_refused(position: int, byte: int) -> None:
    text = bytearray(mlp().to_json().encode())
    text[position % len(text)] = byte
    with contextlib.suppress(BadInput):  # no other error may be raised
        Step.from_json(bytes(text))


@pytest.mark.parametrize("batch", [0, -3, 2.5, True, "8"])
def test_a_batch_that_is_no_positive_integer_is_refused(batch: object) -> None:
    with pytest.raises(BadInput, match="batch must be a positive whole number"):
        mlp().rebatch(batch)  # type: ignore[arg-type]


def test_rebatching_a_step_captured_at_one_batch_size_is_refused() -> None:
    step = Step("fixed", 4, mlp().ops, mlp().tensors, rebatchable=False)
    assert step.rebatch(4) is step
    with pytest.raises(BadInput, match="captured at one batch size only"):
        step.rebatch(8)


@given(st.integers(1, 100), st.integers(1, 100))
def test_pieces_of_a_split_op_have_all_its_macs(size: int, parts: int) -> None:
    op = Op(body=MatMul(3, size, 5))
    if parts > size:
        with pytest.raises(BadInput, match="cannot split"):
            op.split("N", parts)
        return
    pieces = op.split("N", parts)
    assert len(pieces) == parts
    assert sum(piece.macs for piece in pieces) == op.macs
    widths = [piece.body.N for piece in pieces]  # type: ignore[union-attr]
    assert max(widths) - min(widths) <= 1


def test_unknown_tensors_and_element_types_are_refused() -> None:
    with pytest.raises(BadInput, match="names a tensor outside"):
        Step("bad", 1, (Op(body=MatMul(1, 1, 1), inputs=(5,)),), ())
    with pytest.raises(BadInput, match="unknown element type"):
        TensorSpec((1,), dtype="float77")


def test_tensors_inside_a_fused_kernel_take_no_memory() -> None:
    step = mlp()
    assert [users for users, _ in step.transients] == [(0, 1), (1, 2, 3), (2, 3), (3,)]
    fused = Step("fused", 4, (*(replace(op, fused=0) for op in step.ops[:2]), *step.ops[2:]), step.tensors)
    assert [users for users, _ in fused.transients] == [(1, 2, 3), (2, 3), (3,)]
