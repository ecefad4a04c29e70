from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trainyard.errors import BadInput, NotModelled, UnknownName
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
)
from trainyard.workloads.formats.backward import with_backward


def spec(*shape: int, role: Role = Role.ACTIVATION, name: str = "", slope: tuple[int, ...] = ()) -> TensorSpec:
    return TensorSpec(shape, "fp32", role, name, slope=slope)


def branching() -> Step:
    """relu(x W1) W2 + x W3 with a bias on the first: two readers of nothing but x, one sum."""
    weights = [spec(4, 4, role=Role.PARAMETER, name=f"w{i}") for i in (1, 2, 3)]
    bias = spec(4, role=Role.PARAMETER, name="b1")
    grow = (1, 0)
    tensors = (
        spec(2, 4, role=Role.INPUT, name="x", slope=grow), *weights, bias,
        *(spec(2, 4, name=name, slope=grow) for name in ("h", "r", "y", "s", "out")),
    )  # fmt: skip
    x, w1, w2, w3, b1, h, r, y, s, out = range(10)
    product, slope = MatMul(2, 4, 4), (1, 0, 0, 0)
    ops = (
        Op(body=product, name="fc1", layer="fc1", inputs=(x, w1, b1), outputs=(h,), letters=("A", "W"), slope=slope),
        Op(body=ElementWise("relu", 8), name="relu", layer="relu", inputs=(h,), outputs=(r,), slope=(4, 0)),
        Op(body=product, name="fc2", layer="fc2", inputs=(r, w2), outputs=(y,), letters=("A", "W"), slope=slope),
        Op(body=product, name="fc3", layer="fc3", inputs=(r, w3), outputs=(s,), letters=("A", "W"), slope=slope),
        Op(body=ElementWise("add", 8), name="add", layer="", inputs=(y, s), outputs=(out,), slope=(4, 0)),
    )
    return Step("branching", 2, ops, tensors)


def test_phases_and_letters() -> None:
    step = with_backward(branching())
    actual = {op.name: op for op in step.ops}
    assert "fc1.grad_input" not in actual
    assert actual["fc2.grad_input"].letters == ("G", "W")
    assert actual["fc2.grad_weight"].letters == ("A", "G")
    assert actual["fc2.grad_weight"].phase is Phase.GRAD_WEIGHT
    assert actual["fc1.sum"].body == Reduction("sum", 8, 4)
    assert actual["fc1.sum"].phase is Phase.GRAD_WEIGHT
    assert actual["relu.accumulate"].body == ElementWise("add", 8, 1)
    assert actual["relu.grad_input"].body == ElementWise("threshold_backward", 8)
    assert [op.name for op in step.ops if op.phase is Phase.UPDATE] == ["w1.update", "w2.update", "w3.update", "b1.update"]


def test_every_gradient_is_made_before_it_is_read() -> None:
    step = with_backward(branching(), optimizer="adam")
    seeds = {0, *(i for i, t in enumerate(step.tensors) if t.role in (Role.PARAMETER, Role.STATE))}
    made = {step.base(i) for i in seeds} | {step.base(i) for i, t in enumerate(step.tensors) if t.name == "out.grad"}
    for op in step.ops:
        assert {step.base(i) for i in op.inputs} <= made, op.name
        made |= {step.base(i) for i in op.outputs}


def test_the_derived_shapes_compute_the_true_gradients() -> None:
    """Runs the derived ops with numpy: shapes, operands and order are those of the chain rule."""
    step = with_backward(branching(), optimizer=None)
    random = np.random.default_rng(0)
    values: dict[int, np.ndarray] = {}
    for number, tensor in enumerate(step.tensors):
        if tensor.role in (Role.INPUT, Role.PARAMETER) or tensor.name == "out.grad":
            values.setdefault(number, random.standard_normal(tensor.shape))

    def operand(number: int) -> np.ndarray:
        return values[number] if number in values else values[step.base(number)].reshape(step.tensors[number].shape)

    for op in step.ops:
        inputs = [operand(i) for i in op.inputs]
        (out,) = op.outputs
        match op.name.rpartition(".")[2], op.body:
            case ("fc1", _):
                values[out] = inputs[0] @ inputs[1] + inputs[2]
            case (("fc2" | "fc3"), _):
                values[out] = inputs[0] @ inputs[1]
            case ("relu", _):
                values[out] = np.maximum(inputs[0], 0)
            case (("add" | "accumulate"), _):
                values[out] = sum(inputs)  # type: ignore[arg-type]
            case ("grad_input", ElementWise()):
                values[out] = inputs[0] * (inputs[1] > 0)
            case ("grad_input", MatMul(M=m, N=n)):
                values[out] = inputs[0] @ inputs[1].T
                assert values[out].shape == (m, n)
            case ("grad_weight", MatMul(M=m, N=n)):
                values[out] = inputs[0].T @ inputs[1]
                assert values[out].shape == (m, n)
            case ("sum", _):
                values[out] = inputs[0].sum(0)
    by_name = {tensor.name: values[number] for number, tensor in enumerate(step.tensors) if number in values}
    seed, x = by_name["out.grad"], by_name["x"]
    hidden = x @ by_name["w1"] + by_name["b1"]
    relu = np.maximum(hidden, 0)
    at_hidden = (seed @ by_name["w2"].T + seed @ by_name["w3"].T) * (hidden > 0)
    np.testing.assert_allclose(by_name["w2.grad"], relu.T @ seed)
    np.testing.assert_allclose(by_name["w3.grad"], relu.T @ seed)
    np.testing.assert_allclose(by_name["w1.grad"], x.T @ at_hidden)
    np.testing.assert_allclose(by_name["b1.grad"], at_hidden.sum(0))


def test_rebatching_before_and_after_is_the_same() -> None:
    assert with_backward(branching()).rebatch(7) == with_backward(branching().rebatch(7))


def test_attention_products_have_two_activation_gradients() -> None:
    tensors = (spec(8, 16, role=Role.INPUT), spec(16, 32, role=Role.PARAMETER, name="w"), spec(8, 32), spec(8, 8))
    ops = (
        Op(body=MatMul(8, 32, 16), name="qk", inputs=(0, 1), outputs=(2,), letters=("A", "W")),
        Op(body=MatMul(8, 8, 32), name="scores", inputs=(2, 2), outputs=(3,)),
    )
    step = with_backward(Step("attention", 1, ops, tensors), optimizer=None)
    scores = [op for op in step.ops if op.name.startswith("scores.")]
    assert [(op.body, op.phase) for op in scores] == [
        (MatMul(8, 32, 8), Phase.GRAD_INPUT),
        (MatMul(32, 8, 8), Phase.GRAD_INPUT),
    ]
    assert [op.letters for op in scores] == [(), ()]


def test_shared_weights_add_their_gradients() -> None:
    tensors = (spec(2, 4, role=Role.INPUT), spec(4, 4, role=Role.PARAMETER, name="w"), spec(2, 4), spec(2, 4))
    ops = tuple(Op(body=MatMul(2, 4, 4), name=f"call{i}", inputs=(2 * i, 1), outputs=(2 + i,), letters=("A", "W")) for i in (0, 1))
    ops = (ops[0], replace(ops[1], inputs=(2, 1)))
    step = with_backward(Step("shared", 1, ops, tensors))
    last = step.ops[-2:]
    assert last[0].body == ElementWise("add", 16, 1)
    assert last[0].phase is Phase.GRAD_WEIGHT
    assert last[1].phase is Phase.UPDATE


def test_convolutions_embeddings_and_layouts() -> None:
    body = Convolution(batch=2, in_channels=3, out_channels=4, size=(8, 8), kernel=(3, 3))
    tensors = (
        spec(5, role=Role.INPUT, name="ids"), spec(10, 6, role=Role.PARAMETER, name="table"), spec(5, 6), spec(2, 3, 8, 8),
        spec(4, 3, 3, 3, role=Role.PARAMETER, name="w"), spec(2, 4, 6, 6),
    )  # fmt: skip
    ops = (
        Op(body=Gather(5, 6, 10), name="embedding", inputs=(0, 1), outputs=(2,)),
        Op(body=Copy("reshape", 384), name="reshape", inputs=(2,), outputs=(3,)),
        Op(body=body, name="conv", inputs=(3, 4), outputs=(5,), letters=("A", "W")),
    )
    actual = {op.name: op.body for op in with_backward(Step("mixed", 2, ops, tensors), optimizer=None).ops}
    assert actual["conv.grad_input"] == body.as_product("grad_input")
    assert actual["conv.grad_weight"] == body.as_product("grad_weight")
    assert actual["reshape.grad_input"] == Copy("reshape_backward", 30)  # the size of what it read
    assert actual["embedding.grad_weight"] == Gather(5, 6, 10, scatter=True)


def test_steps_whose_backward_cannot_be_derived_raise() -> None:
    step = branching()
    with pytest.raises(UnknownName, match="did you mean 'adam'"):
        with_backward(step, optimizer="adamm")
    with pytest.raises(BadInput, match="more than a forward pass"):
        with_backward(with_backward(step))
    collective = Op(body=Collective("all_reduce", 4, 2), name="sync", inputs=(1,), outputs=(5,))
    with pytest.raises(NotModelled, match="Collective"):
        with_backward(replace(step, ops=(*step.ops, collective)))
    lone = Op(body=MatMul(2, 4, 4), inputs=(9,), outputs=(10,))
    with pytest.raises(BadInput, match="two operands"):
        with_backward(replace(step, ops=(*step.ops, lone), tensors=(*step.tensors, spec(2, 4))))
