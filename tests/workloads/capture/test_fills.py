"""Fills read nothing: not the tensor whose shape they take, not what they overwrite, and not in recomputation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import trainyard as ty
from trainyard import capture
from trainyard.arrays import Systolic
from trainyard.devices import Accelerator
from trainyard.ir import Copy, Op, Role, Step

BATCH, WIDTH = 4, 8
# fmt: off
FILLS: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros":        lambda x: torch.zeros(x.shape, device=x.device),
    "ones":         lambda x: torch.ones(x.shape, device=x.device),
    "full":         lambda x: torch.full(x.shape, 3.0, device=x.device),
    "eye":          lambda x: torch.eye(x.shape[0], WIDTH, device=x.device),
    "arange":       lambda x: torch.arange(WIDTH, device=x.device),
    "linspace":     lambda x: torch.linspace(0.0, 1.0, WIDTH, device=x.device),
    "zeros_like":   torch.zeros_like,
    "ones_like":    torch.ones_like,
    "full_like":    lambda x: torch.full_like(x, 3.0),
    "new_zeros":    lambda x: x.new_zeros(x.shape),
    "new_ones":     lambda x: x.new_ones(x.shape),
    "new_full":     lambda x: x.new_full((x.shape[0], WIDTH), 3.0),
    "zero_":        lambda x: torch.empty_like(x).zero_(),
    "fill_":        lambda x: torch.empty_like(x).fill_(2.0),
    "fill":         lambda x: torch.fill(x, 2.0),
    "rand_like":    torch.rand_like,
    "randn_like":   torch.randn_like,
    "randint_like": lambda x: torch.randint_like(x, 5),
    "uniform_":     lambda x: torch.empty_like(x).uniform_(),
    "normal_":      lambda x: x.new_empty(x.shape).normal_(),
    "bernoulli_":   lambda x: torch.empty_like(x).bernoulli_(0.5),
}
# fmt: on


class Filled(nn.Module):
    """Adds a filled tensor to a linear layer's output."""

    def __init__(self, fill: Callable[[Tensor], Tensor], *, again: bool = False) -> None:
        super().__init__()
        self.layer, self.fill, self.again = nn.Linear(WIDTH, WIDTH), fill, again

    def _add(self, y: Tensor) -> Tensor:
        return torch.relu(y + self.fill(y.detach()))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return checkpoint(self._add, y, use_reentrant=False) if self.again else self._add(y)


def captured(fill: Callable[[Tensor], Tensor], **kwargs: bool) -> Step:
    return capture(Filled(fill, **kwargs), torch.ones(BATCH, WIDTH), loss=lambda y: y.sum())


def fills_of(step: Step, name: str) -> list[Op]:
    return [op for op in step.ops if op.name == name]


@pytest.mark.parametrize("name", FILLS)
def test_a_fill_has_no_inputs(name: str) -> None:
    (fill,) = fills_of(captured(FILLS[name]), name)
    assert fill.inputs == ()
    assert len(fill.outputs) == 1


@pytest.mark.parametrize("name", ["zeros_like", "new_zeros", "full", "rand_like", "fill_"])
def test_a_recomputed_fill_has_no_inputs_either(name: str) -> None:
    step = captured(FILLS[name], again=True)
    first, again = fills_of(step, name)
    assert (first.recompute, again.recompute) == (False, True)
    assert first.inputs == again.inputs == ()


@pytest.mark.parametrize("name", ["zeros_like", "new_full", "randn_like"])
def test_a_fill_moves_the_bytes_of_its_result_alone(name: str) -> None:
    step = captured(FILLS[name])
    chip = Accelerator(array=Systolic(rows=8, columns=8), scratchpad="64 KiB", dram="1 GB/s", fusion="none")
    (work,) = [work for work in chip.works(step) if step.ops[work.ops[0]].name == name]
    assert sum(chip.cost(step, work).bytes.values()) == step.tensors[step.ops[work.ops[0]].outputs[0]].bytes


def test_a_value_or_a_probability_in_a_tensor_is_read() -> None:
    """`fill_` of a tensor's value and `bernoulli` of a tensor's probabilities are no plain fills."""
    (fill,) = fills_of(captured(lambda y: torch.empty_like(y).fill_(y.sum())), "fill_")
    assert len(fill.inputs) == 1
    (drawn,) = fills_of(captured(lambda y: torch.bernoulli(y.sigmoid())), "bernoulli")
    assert len(drawn.inputs) == 1


def test_zeros_shaped_like_a_gradient_are_a_gradient() -> None:
    """Slicing puts a gradient into zeros of the whole tensor's shape."""

    class Sliced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.layer(x)[torch.tensor([0, 2])])

    step = capture(Sliced(), torch.ones(BATCH, WIDTH), loss=lambda y: y.sum())
    (zeros,) = [op for op in step.ops if isinstance(op.body, Copy) and op.body.function == "fill" and op.phase.backward]
    assert zeros.inputs == ()
    assert step.tensors[step.base(zeros.outputs[0])].role is Role.GRADIENT


def test_filled_states_of_an_optimizer_do_not_read_the_parameter() -> None:
    class Filling(torch.optim.SGD):
        def step(self, closure=None):  # type: ignore[no-untyped-def]  # torch's own signature
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter]["scratch"] = torch.zeros_like(parameter)

    model = nn.Linear(WIDTH, WIDTH)
    step = capture(model, torch.ones(BATCH, WIDTH), loss=lambda y: y.sum(), optimizer=Filling(model.parameters(), lr=0.1))
    written = [op for op in step.ops if op.phase.value == "update"]
    assert all(not op.inputs for op in written)


def test_zoo_steps_have_no_fill_that_reads() -> None:
    """Scalars apart: a fill may take its value from a tensor of one element."""
    for name in ("bert-tiny", "dlrm", "gnmt", "mask-rcnn"):
        step = ty.zoo.load(name)
        for op in step.ops:
            if isinstance(op.body, Copy) and op.body.function == "fill":
                assert all(step.tensors[tensor].elements == 1 for tensor in op.inputs), (name, op.name)
