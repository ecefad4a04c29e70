"""Training under a memory budget gives the very gradients, statistics and parameters of plain training, whatever is decided."""

from __future__ import annotations

import copy
import gc
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import trainyard as ty
from trainyard.errors import BadInput, UnknownName
from trainyard.live.paging.measures import measure_link
from trainyard.mapping.overlay.policy import Choice, Decision, Problem, with_cost

pytestmark = pytest.mark.usefixtures("small_heap")


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.again = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(F.relu(self.norm(self.first(x)), inplace=True), 0.4, self.training)
        y = self.again(self.second(x))
        y += x  # in place on the result of a norm, then once more
        return self.last(F.relu_(y).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(6, 8, num_layers=2, batch_first=True, dropout=0.2)
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cells(x)[0][:, -1])


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True) for _ in range(2)))
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(x).mean(1))


class Awkward(nn.Module):
    """Views, transposes, slices, a tensor saved twice by one node, masks, complex numbers, changes in place, nothing at all."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.last = nn.Linear(8, 24), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self.wide(x).chunk(3, -1)
        square = first * first
        turned = torch.sigmoid(second.t()).t() * square
        spectrum = torch.fft.fft(third, dim=-1)
        real = (spectrum * spectrum.conj()).real
        picked = torch.where(turned > 0, turned, real).masked_fill(square < 0.01, 0.5)
        changed = torch.tanh(picked)
        changed = changed.clone()
        changed[:, ::2].mul_(2.0)
        changed[:, 1::2].exp_()
        nothing = torch.tanh(changed[:0])
        return self.last(torch.cat((torch.softmax(changed, -1) * changed.abs().sqrt(), nothing)))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 8)) for _ in range(3))
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        for number, part in enumerate(self.parts):
            if number:
                x = x + torch.utils.checkpoint.checkpoint(part, x, use_reentrant=number == 2)
            else:
                x = x + part(x)
        return self.last(x)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.body(x).float()


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (perceptron, (32, 8)),
    "convolutional": (Convolutional, (8, 3, 6, 6)),
    "recurrent": (Recurrent, (8, 5, 6)),
    "encoder": (Encoder, (4, 6, 16)),
    "awkward": (Awkward, (16, 8)),
    "checkpointed": (Checkpointed, (16, 8)),
    "mixed": (Mixed, (16, 8)),
}


def always(decision: Decision) -> Callable[[Problem, int], Choice]:
    """A policy that decides alike for all, as far as it goes."""

    def policy(problem: Problem, budget: int) -> Choice:
        decisions = [decision if decision != "recompute" or one.recompute_s is not None else "send" for one in problem.saved]
        return with_cost(problem, decisions)

    return policy


def in_turn(*decisions: Decision) -> Callable[[Problem, int], Choice]:
    def policy(problem: Problem, budget: int) -> Choice:
        turns = zip(problem.saved, cycle(decisions), strict=False)
        return with_cost(problem, ["send" if what == "recompute" and one.recompute_s is None else what for one, what in turns])

    return policy


def train(
    name: str, *, steps: int = 4, micro: int = 1, batches: tuple[int, ...] = (), overlay: dict[str, Any] | None = None
) -> tuple[list[Tensor], Any]:
    """Losses, gradients, buffers and parameters of a few steps, with the pages if there was an overlay."""
    build, shape = MODELS[name]
    torch.manual_seed(1)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    actual: list[Tensor] = []

    def step(number: int) -> None:
        optimizer.zero_grad()
        for _ in range(micro):
            size = batches[number % len(batches)] if batches else shape[0]
            x, y = torch.randn(size, *shape[1:]), torch.randint(0, 4, (size,))
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            actual.append(loss.detach().clone())
        actual.extend(parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None)
        optimizer.step()

    pages = None
    if overlay is None:
        for number in range(steps):
            step(number)
    else:
        with ty.live.overlay(model, **{"budget": "1 GB", "store": "host", "smallest": 0, **overlay}) as pages:
            for number in range(steps):
                step(number)
    return [*actual, *(buffer.clone() for buffer in model.buffers()), *(one.detach().clone() for one in model.parameters())], pages


def assert_equal(actual: list[Tensor], expected: list[Tensor]) -> None:
    assert len(actual) == len(expected)
    for mine, theirs in zip(actual, expected, strict=True):
        assert torch.equal(mine, theirs)


@pytest.fixture(autouse=True)
def link_measured_with_small_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of 256 KiB: no test here depends on the bandwidth. `test_every_store_gives_back_what_it_got` has the large ones."""
    monkeypatch.setattr("trainyard.live.paging.pages.measure_link", partial(measure_link, size=256 << 10))


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else set()
    yield
    gc.collect()
    gc.freeze()  # what is alive now stays: the next collection has only its own test to look at
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("trainyard")]
    after = set(os.listdir("/proc/self/fd")) if before else set()
    assert len(after) <= len(before) + 1


@pytest.mark.parametrize("decision", ["keep", "send", "recompute"])
@pytest.mark.parametrize("name", list(MODELS))
def test_gradients_are_those_of_plain_training(name: str, decision: Decision) -> None:
    expected, _ = train(name)
    actual, pages = train(name, overlay={"policy": always(decision)})
    assert_equal(actual, expected)
    assert pages.passes["followed"] >= 1
    assert decision in pages.plan.choice.decisions
    assert pages._shared.resident.now == 0


@pytest.mark.parametrize("store", ["pinned", "host", "disk"])
@pytest.mark.parametrize("name", ["convolutional", "awkward", "encoder"])
def test_every_store_returns_the_bytes_it_was_given(name: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "awkward":
        monkeypatch.setattr("trainyard.live.paging.pages.measure_link", measure_link)
    expected, _ = train(name)
    directory = {"directory": tmp_path} if store == "disk" else {}
    actual, _ = train(name, overlay={"policy": in_turn("send", "recompute", "keep", "send"), "store": store, **directory})
    assert_equal(actual, expected)
    assert not list(tmp_path.iterdir())


@given(name=st.sampled_from(list(MODELS)), turns=st.lists(st.sampled_from(["keep", "send", "recompute"]), min_size=1, max_size=7))
@settings(max_examples=8)
def test_any_mixture_of_keep_send_and_recompute_gives_the_same_gradients(name: str, turns: list[Decision]) -> None:
    expected, _ = train(name, steps=3)
    actual, _ = train(name, steps=3, overlay={"policy": in_turn(*turns)})
    assert_equal(actual, expected)


@given(name=st.sampled_from(["perceptron", "convolutional"]), share=st.floats(0.0, 1.0))
@settings(max_examples=4)
def test_the_peak_stays_within_the_budget(name: str, share: float) -> None:
    _, pages = train(name, steps=3, overlay={"policy": always("send")})
    least = pages.plan.choice.peak_bytes
    _, pages = train(name, steps=3, overlay={"policy": always("keep")})
    most = pages.plan.choice.peak_bytes
    budget = int(least + share * (most - least))
    expected, _ = train(name)
    actual, pages = train(name, overlay={"budget": budget})
    assert_equal(actual, expected)
    assert pages.peak_bytes <= budget
    assert pages.plan.choice.peak_bytes <= budget


def test_a_budget_that_nothing_fits_is_refused_before_the_optimizers_first_step() -> None:
    with pytest.raises(BadInput, match=r"nothing fits 100 B: .* alone needs"):
        train("perceptron", overlay={"budget": 100})
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        model(torch.ones(256, 64)).sum().backward()
        optimizer.step()

    with pytest.raises(BadInput, match="give a larger budget or a smaller batch"), ty.live.overlay(model, 100):
        step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model._forward_pre_hooks
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    step()  # plainly


def test_a_later_pass_that_needs_more_than_the_budget_goes_on_with_a_warning() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    with ty.live.overlay(model, "100 kB", smallest=0) as pages:
        for _ in range(3):
            model(torch.ones(64, 64)).sum().backward()
        model(torch.ones(1024, 64)).sum().backward()
        with pytest.warns(UserWarning, match=r"the budget of 100 kB is not kept"):
            model(torch.ones(1024, 64)).sum().backward()
        model(torch.ones(1024, 64)).sum().backward()
    assert pages.passes["followed"] >= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0}, "budget must be some bytes"),
        ({"budget": "4 GB/s"}, "is not a quantity in B"),
        ({"directory": "x"}, "store='disk'"),
    ],
)
def test_bad_budget_store_or_model_raises(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        train("perceptron", overlay=options)
    with pytest.raises(UnknownName, match="did you mean 'disk'"):
        train("perceptron", overlay={"store": "dusk"})
    with pytest.raises(BadInput, match="a model on one device"):
        ty.live.overlay(nn.Flatten(), "1 GB")


@pytest.mark.parametrize("turns", [("send",), ("recompute",), ("recompute", "keep", "send")])
def test_a_new_input_shape_is_recorded_and_planned(turns: tuple[Decision, ...]) -> None:
    options = {"policy": in_turn(*turns)}
    expected, _ = train("perceptron", steps=10, micro=2, batches=(32, 24))
    actual, pages = train("perceptron", steps=10, micro=2, batches=(32, 24), overlay=options)
    assert_equal(actual, expected)
    assert pages.passes == {"watched": 3, "followed": 16}  # one to warm up, one of each; the last is not over when the block ends


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.deep = False

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        if self.deep:
            x = torch.sigmoid(self.second(x)) * x
        return self.last(torch.sigmoid(x))


@pytest.mark.parametrize("decision", ["send", "recompute"])
def test_a_pass_through_another_branch_leaves_the_plan_with_right_gradients(decision: Decision) -> None:
    def run(context: Any) -> tuple[list[Tensor], Any]:
        torch.manual_seed(3)
        model, actual = Branching(), []
        with context(model) as pages:
            for number in range(16):
                model.deep = number % 5 == 3 or number > 9
                model.zero_grad()
                model(torch.randn(12, 8)).square().sum().backward()
                actual += [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        return actual, pages

    from contextlib import nullcontext

    expected, _ = run(lambda model: nullcontext())
    actual, pages = run(lambda model: ty.live.overlay(model, "1 GB", "host", smallest=0, policy=always(decision)))
    assert_equal(actual, expected)
    assert pages.passes["sent"] >= 1
    assert pages.passes["followed"] >= 4


@pytest.mark.parametrize("decision", ["keep", "send", "recompute"])
def test_backward_twice_with_retain_graph_gives_the_same_gradients(decision: Decision) -> None:
    torch.manual_seed(0)
    model = Convolutional()
    x = torch.randn(8, 3, 6, 6)
    with ty.live.overlay(model, "1 GB", "host", smallest=0, policy=always(decision)) as pages:
        for _ in range(4):
            loss = model(x).square().sum()
            first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            resident = pages._shared.resident.now
            second = torch.autograd.grad(loss, list(model.parameters()))
            assert_equal(list(first), list(second))
            del loss
    assert pages._shared.resident.now == 0
    assert decision == "keep" or resident < pages.plan.choice.peak_bytes


def test_evaluation_inside_the_block_is_left_alone() -> None:
    torch.manual_seed(0)
    model = Convolutional()
    x = torch.randn(8, 3, 6, 6)
    with ty.live.overlay(model, "1 GB", "host", smallest=0, policy=always("recompute")) as pages:
        for _ in range(6):
            loss = model(x).square().sum()
            loss.item()
            loss.backward()
            loss.item()
            with torch.no_grad():
                model.eval()
                model(x)
                model.train()
    assert pages.passes == {"watched": 2, "followed": 3}


@pytest.mark.parametrize("turns", [("send",), ("recompute",), ("keep",)])
def test_a_tensor_changed_in_place_after_it_was_saved_is_an_error_or_right(turns: tuple[Decision, ...]) -> None:
    layer = nn.Linear(8, 8)

    def spoilt() -> None:
        y = torch.sigmoid(layer(torch.ones(4, 8)))
        y.mul_(2)  # sigmoid saved its result
        y.sum().backward()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        spoilt()
    with ty.live.overlay(layer, "1 GB", "host", smallest=0, policy=in_turn(*turns)):
        for _ in range(3):
            torch.sigmoid(layer(torch.ones(4, 8))).sum().backward()
        layer.weight.grad = None
        torch.sigmoid(layer(torch.ones(4, 8))).sum().backward()
        right = layer.weight.grad.clone()
        layer.weight.grad = None
        message = ""
        try:
            spoilt()
        except RuntimeError as error:
            message = str(error)
        assert "modified by an inplace operation" in message or torch.equal(layer.weight.grad, 2 * right)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("store", ["host", "disk"])
def test_errors_and_interrupts_release_everything(error: type[BaseException], where: str, store: str, tmp_path: Path) -> None:
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Tensor) -> Tensor:
            if broken and where == "forward":
                raise error("stop")
            return x.clone()

        @staticmethod
        def backward(context: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            if broken and where == "backward":
                raise error("stop")
            return grad

    torch.manual_seed(0)
    first, last = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16)), nn.Sequential(nn.GELU(), nn.Linear(16, 4))
    model = nn.ModuleList((first, last))
    x = torch.randn(16, 8)

    def gradients() -> list[Tensor]:
        model.zero_grad()
        last(Failing.apply(first(x))).square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    broken = False
    expected = gradients()
    options: dict[str, Any] = {"directory": tmp_path} if store == "disk" else {}
    with ty.live.overlay(model, "1 GB", store, smallest=0, policy=in_turn("send", "recompute"), **options) as pages:
        for number in range(12):
            broken = number in (1, 4)
            if broken:
                with pytest.raises(error):
                    gradients()
            else:
                assert_equal(gradients(), expected)
    assert pages.passes["followed"] >= 2
    gc.collect()
    assert pages._shared.resident.now == 0
    broken = True
    with pytest.raises(error), ty.live.overlay(model, "1 GB", store, smallest=0, **options):
        gradients()
    broken = False
    assert_equal(gradients(), expected)
    assert not list(tmp_path.iterdir())


def test_backward_after_the_block_raises() -> None:
    model = perceptron()
    with ty.live.overlay(model, "1 GB", "host", smallest=0):
        loss = model(torch.ones(32, 8)).sum()
    with pytest.raises(BadInput, match="inside the with-block"):
        loss.backward()


def test_the_report_has_a_row_for_each_layer_and_both_predictions() -> None:
    _, pages = train("perceptron", steps=5, overlay={"policy": in_turn("send", "keep", "recompute")})
    report = pages.report()
    saved = sum(one.bytes for one in pages.plan.problem.saved)
    assert sum(row.kept_bytes + row.sent_bytes + row.recomputed_bytes for row in report.rows) == saved
    assert report.predicted_s > 0
    assert report.measured_s > 0
    assert "predicted" in str(report)
    assert "2" in {row.layer for row in report.rows}


def test_where_everything_is_kept_later_passes_are_plain_training_until_a_shape_changes() -> None:
    model, seen = perceptron(), []

    def hooks_are_on() -> bool:
        return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None

    def step(rows: int) -> None:
        loss = model(torch.randn(rows, 8)).square().sum()
        seen.append(hooks_are_on())
        loss.backward()

    with ty.live.overlay(model, "1 GB", "host", smallest=0, policy=always("keep")) as pages:
        for rows in (*(32,) * 9, *(16,) * 2, 32):
            step(rows)
    assert seen == [True] * 7 + [False] * 2 + [True] * 2 + [False]
    assert not hooks_are_on()
    assert pages.passes["followed"] >= 5


def test_a_plan_that_moves_something_keeps_its_hooks() -> None:
    model = perceptron()
    with ty.live.overlay(model, "1 GB", "host", smallest=0, policy=always("recompute")):
        for _ in range(10):
            model(torch.randn(32, 8)).sum().backward()
            assert torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def test_the_model_and_global_torch_state_are_unchanged_afterwards() -> None:
    model = perceptron()
    before = {name: dict(module.__dict__) for name, module in model.named_modules()}
    with ty.live.overlay(model, "1 GB", "host", smallest=0):
        model(torch.ones(32, 8)).sum().backward()
    assert {name: dict(module.__dict__) for name, module in model.named_modules()} == before
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_modules_compiled_in_place_run_their_own_code_inside_and_are_compiled_again_afterwards() -> None:
    block = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    model, x = nn.Sequential(block, nn.Linear(8, 1)), torch.randn(32, 8)
    expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    block.compile(backend="aot_eager")
    compiled = block._compiled_call_impl
    pages = ty.live.overlay(model, "1 GB", "host", smallest=0, policy=always("recompute"))
    with pytest.warns(UserWarning, match=r"compiled in place \(1\) run uncompiled"):
        pages.__enter__()
    for _ in range(6):
        model.zero_grad()
        model(x).sum().backward()
        assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), expected, strict=True) if p.grad is not None)
    pages.__exit__()
    assert block._compiled_call_impl is compiled
