"""The form of attention, read from a step's ops."""

from __future__ import annotations

import pytest

from trainyard.ir import ElementWise, MatMul, Op, Phase, Reduction, Step, TensorSpec
from trainyard.ir.attention import attention_sentence, kernel_named
from trainyard.workloads import zoo


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("flash_attention.scores", ("flash", False)),
        ("causal_efficient_attention.grad_key", ("efficient", True)),
        ("math_attention.softmax", ("math", False)),
        ("_scaled_dot_product_flash_attention", None),
        ("flash_attention", None),
        ("addmm", None),
    ],
)
def test_ops_of_a_kernel_carry_its_name(name: str, kernel: tuple[str, bool] | None) -> None:
    assert kernel_named(name) == kernel


def written_out(letters: tuple[str, str], function: str = "softmax") -> Step:
    """scores = a b; softmax(scores / 2); result = shares c"""
    square = TensorSpec((4, 4))
    ops = (
        Op(body=MatMul(4, 4, 4), name="bmm", layer="a", inputs=(0, 1), outputs=(3,), letters=letters),  # type: ignore[arg-type]
        Op(body=ElementWise("mul", 16), name="mul", layer="a", inputs=(3,), outputs=(4,)),
        Op(body=Reduction(function, 16, 16, 3), name=f"_{function}", layer="a", inputs=(4,), outputs=(5,)),
        Op(body=MatMul(4, 4, 4), name="bmm", layer="a", inputs=(5, 2), outputs=(6,), letters=("", "")),
    )
    return Step("written out", 1, ops, (square,) * 7)


def test_a_softmax_between_two_products_of_activations_is_attention_written_out() -> None:
    assert written_out(("", "")).attention == {"a": "eager"}
    assert written_out(("A", "W")).attention == {}  # a router: its scores are a layer's
    assert written_out(("", ""), "log_softmax").attention == {}


def test_forms_of_the_zoo() -> None:
    forms = {name: set(zoo.load(name).attention.values()) for name in ("bert-tiny", "gpt2-small", "t5-small", "gnmt", "resnet18")}
    assert forms == {"bert-tiny": {"sdpa"}, "gpt2-small": {"efficient"}, "t5-small": {"eager"}, "gnmt": set(), "resnet18": set()}


def test_dependents_are_the_inverse_of_dependencies() -> None:
    step = zoo.load("bert-tiny").only(Phase.FORWARD)
    pairs = {(before, index) for index, found in enumerate(step.dependencies) for before in found}
    assert pairs == {(index, after) for index, found in enumerate(step.dependents) for after in found}


def test_the_sentence_counts_layers() -> None:
    assert attention_sentence({}) == ""
    assert attention_sentence({"a": "flash"}) == "attention: flash in 1 layer"
