"""Element types, autocast and memory formats."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trainyard.ir import Phase, Role, Step
from trainyard.workloads.capture import capture


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10))


def types(step: Step, phase: Phase) -> list[set[str]]:
    return [{step.tensors[t].dtype for t in op.inputs[:2]} for op in step if op.is_product and op.phase is phase]


@contextmanager
def autocast(device: str) -> Iterator[None]:
    """torch.autocast refuses a device that is not there; the switch behind it does not."""
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, torch.bfloat16)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, False)
        torch.clear_autocast_cache()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_autocast_puts_products_into_the_lower_precision(device: str) -> None:
    model = net()
    with autocast(device):
        step = capture(
            model,
            torch.randn(2, 3, 6, 6),
            torch.tensor([1, 2]),
            loss=F.cross_entropy,
            optimizer=torch.optim.Adam(model.parameters()),
        )
    for phase in (Phase.FORWARD, Phase.GRAD_INPUT, Phase.GRAD_WEIGHT):
        assert types(step, phase) == [{"bf16"}] * len(types(step, phase)) != []
    letters = [op.letters for op in step if op.is_product]
    assert letters == [("A", "W"), ("A", "W"), ("G", "W"), ("G", "A"), ("G", "A")]
    assert {t.dtype for t in step.tensors if t.role in (Role.PARAMETER, Role.PARAMETER_GRADIENT, Role.STATE)} == {"fp32"}
    losses = {op.name: step.tensors[op.inputs[0]].dtype for op in step if op.phase is Phase.LOSS}
    assert losses["nll_loss_forward"] == "fp32"
    # On a GPU cross_entropy runs its log_softmax in the type of its input, and the loss itself in fp32.
    assert losses["_log_softmax"] == ("fp32" if device == "cpu" else "bf16")
    weights = [op for op in step if op.name == "_to_copy" and op.phase is Phase.GRAD_WEIGHT]
    casts = [op for op in weights if step.tensors[op.outputs[0]].dtype == "fp32"]
    assert sum(op.body.elements for op in casts) == sum(p.numel() for p in model.parameters())


def test_autocast_on_shapes_equals_autocast_with_values() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4))

    def rows(real: bool) -> list[tuple[object, ...]]:
        with torch.autocast("cpu", torch.bfloat16):
            step = capture(model, torch.randn(3, 6), torch.randn(3, 4), loss=F.mse_loss, real=real)
        return [(op.body, op.phase, op.letters, *[step.tensors[t].dtype for t in op.inputs]) for op in step if op.is_product]

    assert rows(real=False) == rows(real=True)


def test_autocast_inside_a_loop_and_around_nothing_else() -> None:
    model = nn.Linear(6, 4)

    def train_step(batch: int) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            output = model(torch.randn(batch, 6))
        assert output.dtype == torch.bfloat16
        (output.float() @ model.weight).sum().backward()

    step = capture(train_step, model=model, batch=3)
    assert types(step, Phase.FORWARD) == [{"bf16"}]
    assert types(step, Phase.LOSS) == [{"fp32"}]


def test_models_of_half_and_double_precision() -> None:
    for dtype, name in ((torch.float16, "fp16"), (torch.float64, "fp64"), (torch.bfloat16, "bf16")):
        step = capture(net().to(dtype), torch.randn(2, 3, 6, 6, dtype=dtype), loss=lambda y: y.sum())
        assert {step.tensors[t].dtype for op in step for t in op.outputs} == {name}


def test_channels_last_changes_no_product() -> None:
    x = torch.randn(2, 3, 6, 6)
    plain = capture(net(), x, loss=lambda y: y.sum())
    other = capture(net().to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last), loss=lambda y: y.sum())
    assert other.rebatchable
    assert [(op.body, op.slope) for op in other if op.is_product] == [(op.body, op.slope) for op in plain if op.is_product]
