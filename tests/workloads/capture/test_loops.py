"""Training steps that users write themselves."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from trainyard.ir import Copy, Phase, Role
from trainyard.workloads.capture import capture

DATA = torch.randn(64, 10)
LABELS = torch.arange(64) % 5


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))


def test_a_loop_equals_the_same_step_given_in_parts() -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())

    def train_step(batch: int) -> None:
        optimizer.zero_grad()
        F.cross_entropy(net(DATA[:batch]), LABELS[:batch]).backward()
        optimizer.step()

    loop = capture(train_step, model=net, batch=8)
    parts = capture(net, DATA[:8], LABELS[:8], loss=F.cross_entropy, optimizer=optimizer)
    assert [(op.body, op.layer, op.phase, op.letters) for op in loop] == [(op.body, op.layer, op.phase, op.letters) for op in parts]
    assert loop.batch == 8
    assert [op.body for op in loop.rebatch(32)] == [op.body for op in parts.rebatch(32)]


def test_without_a_batch_argument_the_step_is_fixed() -> None:
    net = model()

    def train_step() -> None:
        net(DATA[:6]).sum().backward()

    step = capture(train_step, model=net)
    assert step.batch == 6
    assert not step.rebatchable
    assert "takes no batch size" in step.source


def test_gradient_accumulation() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def train_step(batch: int) -> None:
        optimizer.zero_grad()
        for _ in range(2):
            F.cross_entropy(net(torch.randn(batch, 10)), torch.randint(0, 5, (batch,))).backward()
        optimizer.step()

    step = capture(train_step, model=net, batch=4)
    once = 4 * (200 + 100)
    assert step.only(Phase.FORWARD).macs == step.only(Phase.GRAD_WEIGHT).macs == 2 * once
    sums = [op for op in step if op.name == "add_" and op.phase is Phase.GRAD_WEIGHT]
    assert sorted((op.layer, op.body.elements) for op in sums) == [("0", 20), ("0", 200), ("2", 5), ("2", 100)]
    assert {op.call for op in step if op.layer == "0" and op.phase is Phase.FORWARD} == {0, 1}
    assert len(step.only(Phase.UPDATE)) == 4


def test_clipping_is_part_of_the_update() -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())

    def train_step(batch: int) -> None:
        net(torch.randn(batch, 10)).sum().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    step = capture(train_step, model=net, batch=4)
    clipping = [op for op in step.only(Phase.UPDATE) if op.name != "adamw"]
    norms = [op for op in clipping if op.name == "linalg_vector_norm" and op.body.elements > 5]
    assert {op.layer for op in norms} == {"0", "2"}
    assert sum(op.body.elements for op in clipping if op.name == "mul_") == 325
    assert len([op for op in step if op.name == "adamw"]) == 4


def test_two_optimizers_and_two_models() -> None:
    one, other = model(), nn.Linear(5, 1)
    optimizers = torch.optim.SGD(one.parameters(), 0.1), torch.optim.Adam(other.parameters())

    def train_step(batch: int) -> None:
        noise = torch.randn(batch, 10)
        other(one(noise).detach()).mean().backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
        other(one(noise)).mean().backward()
        optimizers[0].step()

    step = capture(train_step, model={"generator": one, "critic": other}, batch=4)
    assert step.rebatchable
    assert [op.name for op in step if op.phase is Phase.UPDATE] == ["adam"] * 2 + ["sgd"] * 4
    assert {op.layer for op in step if op.is_product} == {"generator.0", "generator.2", "critic"}
    pair = capture(one, DATA[:4], loss=lambda y: y.sum(), optimizer=[optimizers[0]])
    assert len(pair.only(Phase.UPDATE)) == 4


def test_manual_updates_and_averages_of_weights() -> None:
    net, average = model(), model()

    def train_step(batch: int) -> None:
        net(torch.randn(batch, 10)).sum().backward()
        with torch.no_grad():
            for parameter, mean in zip(net.parameters(), average.parameters(), strict=True):
                parameter -= 0.1 * parameter.grad
                mean.lerp_(parameter, 0.01)

    step = capture(train_step, model=[net, average], batch=4)
    assert [op.name for op in step.only(Phase.UPDATE)] == ["mul", "sub_", "lerp_"] * 4
    assert step.parameters == 650


def test_logging_the_loss_is_allowed_and_costs_nothing() -> None:
    net = model()
    seen = []

    def train_step(batch: int) -> float:
        loss = net(torch.randn(batch, 10)).mean()
        loss.backward()
        assert f"{loss.item():.3f}" == "nan"
        seen.append(loss.item())
        return loss.item() / 2 + 1

    step = capture(train_step, model=net, batch=4)
    assert step.rebatchable
    assert seen == []


def test_moving_a_batch_to_the_accelerator_is_a_copy() -> None:
    net = model()

    def train_step(batch: int) -> None:
        x, y = DATA[:batch].to("cuda", non_blocking=True), LABELS[:batch].cuda()
        F.cross_entropy(net(x), y).backward()

    step = capture(train_step, model=net, batch=8)
    copies = step.only(Phase.COPY).ops
    assert [(type(op.body), op.body.elements) for op in copies] == [(Copy, 80), (Copy, 8)]
    assert all(step.tensors[t].role is Role.INPUT for op in copies for t in op.inputs)
    first = next(op for op in step if op.is_product)
    assert step.base(first.inputs[0]) == copies[0].outputs[0]


def test_branches_on_host_integers_are_taken() -> None:
    """Labels keep their values until they meet the model."""
    net = model()

    def train_step() -> None:
        weight = 2.0 if int(LABELS.max()) == 4 else 1.0
        targets = F.one_hot(LABELS[:8]).float()
        (net(DATA[:8]) * weight - targets).pow(2).mean().backward()

    assert capture(train_step, model=net).macs == 8 * (200 + 100) * 3 - 8 * 200


def test_a_buffer_that_is_filled_slice_by_slice() -> None:
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out = nn.GRUCell(6, 8), nn.Linear(8, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            state = torch.zeros(x.shape[0], 8)
            outputs = torch.zeros(x.shape[0], 4, 6)
            for time in range(4):
                state = self.cell(x, state)
                outputs[:, time] = x = self.out(state)
            return outputs

    net = Decoder()
    step = capture(net, torch.randn(3, 6), loss=lambda y: y.sum(), optimizer=torch.optim.SGD(net.parameters(), 0.1))
    assert step.rebatchable
    writes = [op for op in step if op.name == "copy_" and op.phase is Phase.FORWARD]
    assert len({step.base(op.outputs[0]) for op in writes}) == 1
    assert len(writes) == 4


def test_the_optimizer_may_step_inside_backward() -> None:
    net = model()
    optimizers = {p: torch.optim.SGD([p], 0.1) for p in net.parameters()}

    def hook(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        parameter.grad = None

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(hook)
    step = capture(net, DATA[:4], loss=lambda y: y.sum())
    assert sorted((op.layer, op.body.elements) for op in step.only(Phase.UPDATE)) == [("0", 20), ("0", 200), ("2", 5), ("2", 100)]


def test_double_backward() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def penalty(batch: int) -> None:
        x = torch.randn(batch, 6, requires_grad=True)
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        (net(x).mean() + slope.pow(2).mean()).backward()

    step = capture(penalty, model=net, batch=4)
    assert not any(op.recompute for op in step)
    assert step.rebatchable


def test_schedules_and_scalers_are_left_as_they_were() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scaler, schedule = torch.amp.GradScaler("cpu"), torch.optim.lr_scheduler.StepLR(optimizer, 1)

    def train_step(batch: int) -> None:
        optimizer.zero_grad()
        scaler.scale(net(torch.randn(batch, 10)).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()

    for _ in range(2):
        train_step(2)
    before = scaler.state_dict(), schedule.state_dict(), optimizer.param_groups[0]["lr"]
    for real in (False, True):
        step = capture(train_step, model=net, batch=4, real=real)
        assert len([op for op in step if op.name == "sgd"]) == 4
        assert (scaler.state_dict(), schedule.state_dict(), optimizer.param_groups[0]["lr"]) == before
    train_step(2)


def test_an_optimizer_that_evaluates_the_loss_itself() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def evaluated(batch: int) -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(DATA[:batch]), LABELS[:batch])
            loss.backward()
            return loss

        optimizer.step(closure)

    def plain(batch: int) -> None:
        optimizer.zero_grad()
        F.cross_entropy(net(DATA[:batch]), LABELS[:batch]).backward()
        optimizer.step()

    first, second = capture(evaluated, model=net, batch=8), capture(plain, model=net, batch=8)
    assert [(op.name, op.phase, op.layer) for op in first] == [(op.name, op.phase, op.layer) for op in second]


def test_a_penalty_on_a_gradient_is_part_of_the_loss() -> None:
    net = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def train_step(batch: int) -> None:
        x = torch.randn(batch, 10).requires_grad_()
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        optimizer.zero_grad()
        (slope.norm(2, 1) - 1).square().mean().backward()
        optimizer.step()

    step = capture(train_step, model=net, batch=4)
    assert {op.name for op in step.only(Phase.UPDATE)} == {"sgd"}
    assert [op.name for op in step.only(Phase.LOSS)] == ["sum", "linalg_vector_norm", "sub", "pow", "mean"]
