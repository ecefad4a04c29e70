"""Training steps that ask for the gradient of their data: adversarial examples, gradient penalties, inputs that are optimised."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainyard.workloads.capture import capture


class Net(nn.Module):
    """Makes its input require a gradient, as the speech encoders of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(56, 2))
        self.makes_leaf = False

    def forward(self, samples: Tensor) -> Tensor:
        hidden = samples[:, 0][:, None]
        if self.makes_leaf:
            hidden.requires_grad = True
        result: Tensor = self.layers(hidden)
        return result


class Program:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = Net()
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)
        self.x = torch.randn(2, 1, 16)
        self.optimised = torch.randn(2, 1, 16, requires_grad=True)

    def loss(self, samples: Tensor) -> Tensor:
        return torch.as_tensor(self.net(samples).square().mean())

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def by_name(self) -> None:
        self.net.makes_leaf = True
        self.net(samples=self.x).square().mean().backward()
        self.update()

    def fast_gradient_sign(self) -> None:
        attacked = self.x.clone().requires_grad_()
        self.loss(attacked).backward()
        assert attacked.grad is not None
        self.optimizer.zero_grad()
        self.loss(self.x + 0.1 * attacked.grad.sign()).backward()
        self.update()

    def projected_gradient(self) -> None:
        change = torch.zeros_like(self.x).requires_grad_()
        for _ in range(2):
            self.loss(self.x + change).backward()
            assert change.grad is not None
            change.data = (change + 0.01 * change.grad.sign()).clamp(-0.1, 0.1)
            change.grad.zero_()
        self.optimizer.zero_grad()
        self.loss(self.x + change.detach()).backward()
        self.update()

    def gradient_penalty(self) -> None:
        share = torch.rand(2, 1, 1)
        mixed = (share * self.x + (1 - share) * torch.randn(2, 1, 16)).requires_grad_()
        (gradient,) = torch.autograd.grad(self.net(mixed).sum(), mixed, create_graph=True)
        ((gradient.flatten(1).norm(2, dim=1) - 1) ** 2).mean().backward()
        self.update()

    def optimises_its_input(self) -> None:
        self.loss(self.optimised).backward()
        assert self.optimised.grad is not None
        with torch.no_grad():
            self.optimised.sub_(0.1 * self.optimised.grad)
        self.optimised.grad = None


STEPS: list[Callable[[Program], None]] = [
    Program.by_name, Program.fast_gradient_sign, Program.projected_gradient, Program.gradient_penalty, Program.optimises_its_input,
]  # fmt: skip


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_without_values_the_products_are_those_of_a_real_run(step: Callable[[Program], None]) -> None:
    products: list[Any] = []
    for real in (False, True):
        program = Program()
        before = program.optimised.detach().clone()
        captured = capture(partial(step, program), model=program.net, optimizer=program.optimizer, batch=2, real=real)
        products.append([(op.phase, op.layer, op.body) for op in captured if op.is_product])
        assert torch.equal(program.optimised, before)
        assert program.optimised.grad is None
        assert program.optimised.requires_grad
        assert not program.x.is_meta
    assert products[0] == products[1]
    assert len(products[0]) > 3


def test_the_batch_is_that_of_the_first_argument_by_name() -> None:
    program = Program()
    assert capture(program.by_name, model=program.net, optimizer=program.optimizer).batch == 2
