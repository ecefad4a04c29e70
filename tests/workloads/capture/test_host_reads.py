"""Where a program reads a value from the device, the host waits before it issues the next op."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import trainyard as ty
from trainyard.ir import Step
from trainyard.ir.routing import Routing, divided, joined
from trainyard.ir.serial import from_json, to_json

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


class Reader(nn.Module):
    """Two layers; between them the model looks at a mask of its input's positions, as `transformers` does for packed sequences."""

    def __init__(self, read: Any) -> None:
        super().__init__()
        self.first, self.second, self.read = nn.Linear(8, 8), nn.Linear(8, 4), read

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        self.read(torch.arange(8, device=x.device))
        return self.second(x).sum()


def waiting(step: Step) -> list[tuple[str, str]]:
    return [(op.layer, op.phase) for op in step.ops if op.host_waits]


READS: dict[str, tuple[Any, bool]] = {
    "a truth value": (lambda positions: bool((positions >= 0).all()), True),
    "a number": (lambda positions: int(positions.max()), True),
    "a list": (lambda positions: positions.tolist(), True),
    "the size of a selection": (lambda positions: positions[positions > 2], True),
    "a copy on the host": (lambda positions: positions.cpu(), True),
    "a copy that nothing waits for": (lambda positions: positions.to("cpu", non_blocking=True), False),
    "a tensor of the host": (lambda positions: bool(torch.rand([]) < 2), False),
    "a shape": (lambda positions: positions.shape[0] > 4, False),
}


@pytest.mark.parametrize("name", READS)
def test_the_op_after_a_read_of_the_device_waits(name: str) -> None:
    read, expected = READS[name]
    step = ty.capture(Reader(read), torch.randn(3, 8))
    waits = waiting(step)
    assert len(waits) == expected
    assert all(phase == "forward" and layer in ("", "second") for layer, phase in waits)


def test_a_loss_that_is_logged_at_the_end_holds_up_the_next_step() -> None:
    model, losses = nn.Linear(8, 4), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(batch: int, *, log: bool) -> None:
        loss = F.mse_loss(model(torch.randn(batch, 8)), torch.zeros(batch, 4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item() if log else loss)

    for log in (False, True):
        step = ty.capture(partial(train, log=log), model=model, batch=3)
        assert [number for number, op in enumerate(step.ops) if op.host_waits] == ([0] if log else [])


def test_a_value_of_the_optimizer_is_no_read() -> None:
    model = nn.Linear(8, 4)
    for options in ({}, {"capturable": False, "foreach": False}):
        optimizer = torch.optim.Adam(model.parameters(), **options)
        assert not waiting(ty.capture(model, torch.randn(3, 8), torch.zeros(3, 4), loss=F.mse_loss, optimizer=optimizer))


def test_reads_are_in_a_steps_file_and_files_without_them_are_read() -> None:
    step = ty.capture(Reader(lambda positions: bool(positions.all())), torch.randn(3, 8))
    assert from_json(to_json(step)) == step
    assert waiting(from_json(to_json(step))) == waiting(step)
    silent = replace(step, ops=tuple(replace(op, host_waits=False) for op in step.ops))
    assert from_json(to_json(silent)) == silent
    assert len(to_json(silent)) == len(to_json(step))


def test_of_a_grouped_product_the_first_part_waits() -> None:
    op = ty.ir.Op(
        body=ty.MatMul(8, 4, 4), inputs=(0, 1), outputs=(2,), letters=("A", "W"), routing=Routing("M", 8, 2, 0), host_waits=True
    )
    specs = (ty.ir.TensorSpec((8, 4)), ty.ir.TensorSpec((2, 4, 4)), ty.ir.TensorSpec((8, 4)))
    parts, more = divided([op], specs)
    assert [part.host_waits for part in parts] == [True, *[False] * (len(parts) - 1)]
    assert joined(parts, more)[0][0].host_waits


def test_a_gpu_drains_its_queue_where_a_value_is_read() -> None:
    """Small layers behind a large one are issued while it runs, unless the host has to wait for it."""

    class Model(nn.Module):
        def __init__(self, reads: bool) -> None:
            super().__init__()
            self.reads = reads
            self.large = nn.Linear(4096, 4096)
            self.small = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(1)), nn.Sequential(*[nn.ReLU()] * 20))

        def forward(self, x: Tensor) -> Tensor:
            y = self.large(x)
            if self.reads and bool((torch.arange(4, device=x.device) >= 0).all()):
                x = x[:16]
            return self.small(x[:16]).sum() + y.sum()

    plain, read = (ty.capture(Model(reads), torch.randn(16384, 4096)) for reads in (False, True))
    times = [ty.run(step, on="h200").time_s for step in (plain, read)]
    assert times[1] > times[0]
    graphs = [ty.run(step, on="h200(graphs=true)").time_s for step in (plain, read)]
    assert graphs[1] == pytest.approx(graphs[0], rel=0.01)
