"""Values that a capture knows beside shapes: equal to torch's own; every question of a program has an answer or a clear error."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from trainyard.errors import BadInput, CaptureError
from trainyard.ir import Gather
from trainyard.workloads.capture import capture

# Each takes the constants made so far and makes one more, or writes into one of them through a view.
OPS: list[Callable[[list[Tensor], int, torch.device], Tensor]] = [
    lambda made, k, device: torch.arange(k + 2, device=device),
    lambda made, k, device: torch.tensor([k, 3, k * k], device=device),
    lambda made, k, device: torch.full((k + 1,), 7, device=device),
    lambda made, k, device: torch.zeros(k + 1, dtype=torch.bool, device=device),
    lambda made, k, device: torch.linspace(0, 1, k + 2, device=device),
    lambda made, k, device: made[-1] + k,
    lambda made, k, device: made[-1] * 2 if made[-1].dtype != torch.bool else ~made[-1],
    lambda made, k, device: made[-1].flip(0),
    lambda made, k, device: made[-1][::2],
    lambda made, k, device: made[-1].cumsum(0),
    lambda made, k, device: (made[-1] >= k).to(made[-1].device),
    lambda made, k, device: made[-1].reshape(-1, 1).expand(-1, 2).contiguous().view(-1),
    lambda made, k, device: made[-1].clone(),
    lambda made, k, device: made[-1].nonzero().flatten(),
    lambda made, k, device: made[-1][made[-1] > 0],
    lambda made, k, device: torch.cat([made[-1].float(), made[0].float()]),
    lambda made, k, device: F.one_hot(torch.arange(3, device=device), 4).sum(0) + k,
    lambda made, k, device: torch.where(made[-1] > k, 1, 0),
    lambda made, k, device: torch.zeros_like(made[-1]).fill_(k % 2),
    lambda made, k, device: made[-1].to("cpu", copy=True).to(device),  # on one device the first alone would be the same tensor
    lambda made, k, device: made[-1].new_tensor([k, 1]),
    lambda made, k, device: made[-1].sort(descending=True).indices,
    lambda made, k, device: made[-1][[-1, 0]],
    lambda made, k, device: made[-1][None, [0, -1]].flatten(),
]


def _write(made: list[Tensor], k: int) -> None:
    """In place, through a view of an earlier constant."""
    target = made[k % len(made)]
    if target.numel() and target.dtype is not torch.bool and not target._is_view():
        target[: 1 + k % 2].add_(k)


def chain(numbers: list[int], device: torch.device) -> list[Any]:
    made = [torch.arange(4, device=device)]
    for number in numbers:
        op, k = number % (len(OPS) + 1), number // (len(OPS) + 1) % 5
        if op == len(OPS):
            _write(made, k)
        else:
            made.append(OPS[op](made, k, device))
    answers: list[Any] = [tensor.tolist() for tensor in made]
    answers += [bool((tensor > 1).any()) for tensor in made] + [int(tensor.sum().item()) for tensor in made if tensor.numel()]
    return [*answers, made[-1].numpy().shape, len(made[-1])]


ANSWERS: list[Any] = []  # what belongs to a model or to its loss is as before after a capture


class Asks(nn.Module):
    def __init__(self, numbers: list[int]) -> None:
        super().__init__()
        self.numbers, self.layer = numbers, nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        ANSWERS[:] = [chain(self.numbers, x.device)]
        return self.layer(x)


@given(st.lists(st.integers(0, 10_000), max_size=12))
def test_constants_have_the_values_that_torch_gives_them(numbers: list[int]) -> None:
    try:
        expected = chain(numbers, torch.device("cpu"))
    except (RuntimeError, IndexError) as error:
        pytest.skip(f"torch refuses this program: {error}")
    capture(Asks(numbers), torch.randn(2, 3), loss=torch.sum)
    assert ANSWERS[0] == expected


class Reads(nn.Module):
    """Decides by its inputs, its buffers, a scalar parameter and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.tensor(3.0))
        self.register_buffer("calls", torch.tensor([2]))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for _ in range(int(self.calls) + int(mask.sum(1).max()) + int(self.scale.item())):
            x = self.layer(x)
        self.calls += 5
        if int(self.calls) != 7:
            raise RuntimeError("the buffer does not start with its own value")
        if torch.rand(()) < 2.0 and random.random() < 2.0 and np.random.rand() < 2.0:  # noqa: NPY002
            x = self.layer(x)
        return x


def test_inputs_buffers_and_scalars_steer_a_capture_and_stay_as_they_were() -> None:
    model, x, mask = Reads(), torch.randn(2, 4), torch.tensor([[1, 1, 0], [1, 1, 1]])
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    step = capture(model, (x, mask), loss=torch.sum)
    assert len([op for op in step if op.letters == ("A", "W")]) == 2 + 3 + 3 + 1
    assert model.calls.item() == 2
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002
    assert step.rebatchable


class Frozen(OrderedDict[str, int]):
    def update(self, *_: Any, **__: Any) -> None:
        raise AttributeError("cannot be updated")

    def __setitem__(self, key: str, value: int) -> None:
        if key in self or len(self) > 1:
            raise AttributeError("cannot be changed")
        super().__setitem__(key, value)


class Config:
    def __init__(self) -> None:
        self.width, self.seen = 4, {"a": 1}


class Configured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.config, self.frozen = nn.Linear(4, 4), Config(), Frozen([("a", 1), ("b", 2)])

    def forward(self, x: Tensor) -> Tensor:
        self.config.width += 1
        self.last = x
        return self.layer(x)


def test_configurations_are_never_damaged() -> None:
    model = Configured()
    capture(model, torch.randn(2, 4), loss=torch.sum)
    assert (model.config.width, model.config.seen, list(model.frozen.items())) == (4, {"a": 1}, [("a", 1), ("b", 2)])
    assert not hasattr(model, "last")


class Selects(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return self.layer(y[y[:, 0] > 1e9]).sum() + self.layer(y[torch.nonzero(y[:, 0] < 1e9)[:, 0]]).sum()


def test_sizes_that_depend_on_data_come_from_the_example_or_are_the_largest() -> None:
    model = Selects()
    step = capture(model, torch.randn(5, 4), loss=torch.sum)
    assert [op.body.M for op in step if op.letters == ("A", "W")] == [5, 5]  # no row is large
    assert any("ran on the example inputs" in note for note in step.notes)
    assert not step.rebatchable
    with torch.device("meta"):
        without_values = Selects()
    step = capture(without_values, torch.randn(5, 4, device="meta"), loss=torch.sum)
    assert [op.body.M for op in step if op.letters == ("A", "W")] == [5, 5, 5]
    assert any("all are taken" in note for note in step.notes)


class Experts(nn.Module):
    """A mixture of experts as a loop over experts, as many models write it."""

    def __init__(self, experts: int, picked: int) -> None:
        super().__init__()
        self.router, self.picked = nn.Linear(8, experts), picked
        self.experts = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        weights, indices = self.router(x).softmax(-1).topk(self.picked, dim=-1)
        out = torch.zeros_like(x)
        chosen = F.one_hot(indices, len(self.experts)).permute(2, 1, 0)
        for number in (chosen.sum((1, 2)) > 0).nonzero().flatten().tolist():
            place, rows = torch.where(chosen[number])
            out.index_add_(0, rows, self.experts[number](x[rows]) * weights[rows, place, None])
        return out


@pytest.mark.parametrize(("experts", "picked"), [(4, 2), (8, 1), (3, 2)])
def test_a_loop_over_experts_gets_a_balanced_routing(experts: int, picked: int) -> None:
    step = capture(Experts(experts, picked), torch.randn(24, 8), loss=torch.sum)
    rows = [op.body.M for op in step if op.layer.startswith("experts") and op.letters == ("A", "W")]
    assert len(rows) == experts
    assert sum(rows) == 24 * picked
    assert max(rows) - min(rows) <= 1
    assert any("balanced" in note for note in step.notes)


def test_lists_of_samples_are_a_batch() -> None:
    class Images(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(3, 2, 1)

        def forward(self, images: list[Tensor], targets: list[dict[str, Tensor]]) -> Tensor:
            return self.layer(torch.stack(images)).sum() + sum(t["boxes"].sum() for t in targets)

    example = [torch.rand(3, 4, 4) for _ in range(2)], [{"boxes": torch.rand(5, 4)} for _ in range(2)]
    model = Images()
    assert capture(model, example).batch == 2
    assert capture(model, example, batch=6).macs == 3 * capture(model, example).macs


def test_masks_that_are_written_through_cost_rows() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            y = self.layer(x)
            picked = torch.zeros_like(y)
            picked[mask, mask.long()[mask]] = 1.0
            return (y * picked)[mask].sum()

    step = capture(Writes(), (torch.randn(6, 4), torch.tensor([True, False, True, True, False, False])))
    assert [op.body.rows for op in step if isinstance(op.body, Gather) and not op.body.scatter][-1] == 3


@torch.library.custom_op("trainyard_tests::halve", mutates_args=())
def halve(x: Tensor) -> Tensor:
    return x / 2


halve.register_autograd(lambda ctx, g: g / 2)


def test_an_op_without_a_shape_rule_is_tried_on_zeros_and_costs_its_bytes() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return halve(self.layer(x))

    step = capture(Halves(), torch.randn(2, 4), loss=torch.sum)
    assert [op.body.elements for op in step if op.name == "trainyard_tests.halve"] == [8]
    assert any("no rule for shapes" in note for note in step.notes)
    assert any("costs the bytes" in note and "register" in note for note in step.notes)


def test_a_value_that_cannot_be_had_is_named_with_layer_line_and_ways_out() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.layer(x)
            for _ in range(int((x > 0).sum())):
                x = self.layer(x)
            return x

    model = nn.Sequential(Inner())
    with pytest.raises(CaptureError) as caught:
        capture(model, torch.randn(2, 4), loss=torch.sum)
    message = str(caught.value)
    for part in ("layer '0'", "test_values.py:", "for _ in range(int((x > 0).sum())):", "real=True", "values={'test_values.py:"):
        assert part in message
    step = capture(model, torch.randn(2, 4), loss=torch.sum, values={"0": 3, "modle.py:1": True})
    assert len([op for op in step if op.letters == ("A", "W")]) == 1 + 3
    assert step.notes == ("values: 'modle.py:1' answers no question of this step",)
    with pytest.raises(BadInput, match="values must map"):
        capture(model, torch.randn(2, 4), loss=torch.sum, values=[3])  # type: ignore[arg-type]


class Checks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        if torch.isnan(x).any() or not torch.isfinite(x).all():
            x = self.layer(torch.nan_to_num(x))
        return x


@pytest.mark.parametrize("rows", [2, 1 << 19])
def test_a_check_for_infinities_is_answered_with_a_note(rows: int) -> None:
    step = capture(Checks(), torch.empty(rows, 4, device="meta"), loss=torch.sum)
    assert len([op for op in step if op.letters == ("A", "W")]) == 1
    assert step.notes == ("the model checks for infinities and NaN: all numbers are taken as finite",)


def test_arrays_that_a_program_writes_are_not_the_users() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            mask.numpy()[:] = 7
            return self.layer(x)

    mask = torch.tensor([1, 2, 3])
    capture(Writes(), (torch.randn(3, 4), mask), loss=torch.sum)
    assert mask.tolist() == [1, 2, 3]


def test_a_small_write_into_a_large_constant_takes_no_memory() -> None:
    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            zeros = torch.zeros(1 << 40, device=x.device)
            zeros[:4] = 1
            return self.layer(x) * zeros[:4]

    assert capture(Large(), torch.randn(3, 4), loss=torch.sum).macs == 2 * 3 * 4 * 4
