"""The model compiled as a whole beside the plan by blocks: the fastest that fits runs, and gradients are right meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trainyard as ty
from trainyard.errors import BadInput
from trainyard.live.paging.regions import planning, variants
from trainyard.live.paging.regions.contest import PASSES, SHARES, Rival, Score
from trainyard.live.paging.regions.pages import CHECKED, RegionPages
from trainyard.live.paging.regions.whole import WholeModel

pytestmark = pytest.mark.filterwarnings("ignore:.*cannot be compiled.*")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    monkeypatch.setattr(variants, "SHARES", (0.5,))
    costs_of, seconds = planning.costs_of, {"checkpoint": 4.0, "selective": 5.0, "keep": 2.0, "compiled 0.5": 1.0}

    def steady(*arguments: Any) -> dict[str, list[planning.Cost]]:
        costs = costs_of(*arguments).items()
        return {region: [replace(cost, seconds=seconds[cost.variant]) for cost in row] for region, row in costs}

    monkeypatch.setattr(planning, "costs_of", steady)
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(4, 2))


def settle(model: nn.Module, pages: RegionPages, limit: int = 60) -> int:
    """Trains until nothing is compared any more, with gradients checked in every pass; the number of passes."""
    x = torch.randn(3, 4)
    parameters = list(model.parameters())
    expected = torch.autograd.grad(model(x).square().sum(), parameters)
    with pages:
        for number in range(limit):
            model.zero_grad()
            model(x).square().sum().backward()
            for parameter, gradient in zip(parameters, expected, strict=True):
                assert parameter.grad is not None
                torch.testing.assert_close(parameter.grad, gradient)
            if pages.is_settled:
                return number + 1
    raise AssertionError("not settled")


def seconds_by_rival(monkeypatch: pytest.MonkeyPatch, seconds: dict[Rival, float]) -> None:
    monkeypatch.setattr(RegionPages, "step_s", property(lambda pages: [9.0, seconds[pages._rival]]))


@pytest.mark.parametrize("fastest", ["blocks", "eager", SHARES[0]])
def test_the_fastest_stays(model: nn.Module, fastest: Rival, monkeypatch: pytest.MonkeyPatch) -> None:
    rivals: tuple[Rival, ...] = ("blocks", "eager", SHARES[0])
    seconds_by_rival(monkeypatch, {rival: 1.0 if rival == fastest else 2.0 for rival in rivals})
    pages = ty.live.overlay(model, "1 GB", unit="blocks", compile="aot_eager")
    assert isinstance(pages, RegionPages)
    settle(model, pages)
    assert pages._rival == fastest
    assert pages.whole_share == (None if isinstance(fastest, str) else fastest)
    assert pages.plan is not None
    assert set(pages.plan.variants.values()) == {"keep" if fastest == "eager" else "compiled 0.5"}
    checked = CHECKED[0] if isinstance(fastest, str) else 1
    assert pages.passes["followed"] == PASSES * len(rivals) + checked
    assert ("compiled as a whole" in str(pages.report())) is not isinstance(fastest, str)
    assert "forward" not in model.__dict__


def test_a_decision_that_a_hook_makes_holds_for_the_call_it_precedes(model: nn.Module) -> None:
    whole = WholeModel(model, "aot_eager")
    whole.open()
    whole.compiled[0.5] = lambda x: x
    x = torch.randn(3, 4)

    def decide(module: nn.Module, arguments: Any) -> None:
        if whole.active == whole.entry.call:
            whole.install(0.5, (), 0, lambda needs: None)
        else:
            whole.rest()

    handle = model.register_forward_pre_hook(decide)
    assert model(x) is x
    assert model(x).shape == (3, 2)
    handle.remove()
    whole.close()
    assert "forward" not in model.__dict__


def test_a_share_that_does_not_fit_is_not_run(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds_by_rival(monkeypatch, {"blocks": 1.0, "eager": 2.0})
    monkeypatch.setattr(variants, "_result_bytes", lambda module: 2 * 10**9)
    pages = ty.live.overlay(model, "1 GB", unit="blocks", compile="aot_eager")
    assert isinstance(pages, RegionPages)
    settle(model, pages)
    assert pages.whole_share is None
    contest = next(iter(pages._progress.values())).contest
    assert set(contest.needs) == set(SHARES)
    assert all(2e9 <= needs < 3e9 for needs in contest.needs.values())


def test_a_model_that_the_compiler_refuses_runs_by_blocks(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.backends import common

    def refuse(**options: Any) -> Any:
        raise NotImplementedError("not this one")

    monkeypatch.setattr(common, "aot_autograd", refuse)
    pages = ty.live.overlay(model, "1 GB", unit="blocks", compile="aot_eager")
    assert isinstance(pages, RegionPages)
    settle(model, pages)
    assert pages.whole_share is None


def test_nothing_is_said_of_the_budget_where_the_whole_model_keeps_it(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    pages = ty.live.overlay(model, "1 GB", unit="blocks", compile="aot_eager")
    assert isinstance(pages, RegionPages)
    seconds_by_rival(monkeypatch, dict.fromkeys(("blocks", "eager", *SHARES), 1.0))
    settle(model, pages, 100)
    progress = next(iter(pages._progress.values()))
    with pages:
        pages.rebudget(1)  # no plan by blocks fits
        assert progress.contest.queue[0] == "blocks"
        progress.contest.scores, progress.contest.queue = {0.2: Score(1.0, 1)}, []
        model(torch.randn(3, 4)).sum().backward()
        assert pages.whole_share == 0.2
        assert not [warning for warning in recwarn if "is not kept" in str(warning.message)]
        progress.contest.scores = {}
        pages._current = None
        with pytest.warns(UserWarning, match="is not kept"):
            model(torch.randn(3, 4)).sum().backward()


def test_blocks_with_running_statistics_are_compiled_too() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.norm = nn.Conv2d(2, 2, 1, bias=False), nn.BatchNorm2d(2)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.norm(self.convolution(x)).relu()

    torch.manual_seed(0)
    model, x = nn.Sequential(Normed(), Normed()), torch.randn(3, 2, 4, 4)
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    pages = ty.live.overlay(model, "1 GB", unit="blocks", compile="aot_eager")
    assert isinstance(pages, RegionPages)

    def step() -> None:
        model.zero_grad()
        model(x).square().sum().backward()
        for parameter, gradient in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-5)

    with pages:
        pages.precompile(step)


def test_the_whole_model_is_handed_out_when_it_is_compiled(model: nn.Module) -> None:
    pages = ty.live.overlay(model, "1 GB", unit="blocks", compile="aot_eager")
    assert isinstance(pages, RegionPages)
    with pytest.raises(BadInput, match="call precompile first"):
        pages.whole_model(0.5)
    x = torch.randn(3, 4)
    with pages:
        pages.precompile(lambda: model(x).sum().backward())
    torch.testing.assert_close(pages.whole_model(0.5)(x), model(x))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The shares of the graphs that are compiled of whole models."""
    found: list[float] = []
    backend_of = variants.backend_of

    def counted(share: float, *arguments: Any) -> Any:
        backend = backend_of(share, *arguments)

        def count(*graph: Any) -> Any:
            found.append(share)
            return backend(*graph)

        return count

    monkeypatch.setattr("trainyard.live.paging.regions.whole.backend_of", counted)
    return found


def test_inputs_of_another_shape_are_surveyed_in_the_models_own_code(
    model: nn.Module, compiled: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds_by_rival(monkeypatch, {"blocks": 3.0, "eager": 3.0, 1.0: 2.0})
    pages = ty.live.overlay(model, "1 GB", unit="blocks", compile="aot_eager")
    assert isinstance(pages, RegionPages)
    settle(model, pages)
    assert pages.whole_share == 1.0
    surveyed = pages.passes["surveyed"]
    with pages:
        for rows in (3, 5):
            x = torch.randn(rows, 4)
            expected = torch.autograd.grad(nn.Sequential(*model)(x).square().sum(), list(model.parameters()))
            model.zero_grad()
            model(x).square().sum().backward()
            for parameter, gradient in zip(model.parameters(), expected, strict=True):
                assert parameter.grad is not None
                torch.testing.assert_close(parameter.grad, gradient)
    assert pages.passes["surveyed"] == surveyed + 1
    assert compiled == [1.0]


def test_pages_opened_again_keep_their_compiled_code_and_measure_again_when_told(
    model: nn.Module, compiled: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds_by_rival(monkeypatch, {"blocks": 3.0, "eager": 3.0, 1.0: 2.0})
    pages = ty.live.overlay(model, "1 GB", unit="blocks", compile="aot_eager")
    assert isinstance(pages, RegionPages)
    passes = settle(model, pages)
    assert compiled == [1.0], "smaller shares are not compiled where the largest fits"
    assert settle(model, pages) == 1
    assert pages.whole_share == 1.0
    surveyed = pages.passes["surveyed"]
    pages.remeasure()
    assert settle(model, pages) == passes
    assert pages.passes["surveyed"] == 2 * surveyed
    assert compiled == [1.0]
    assert "forward" not in model.__dict__


def test_code_that_was_compiled_for_a_larger_budget_is_not_run_in_a_smaller_one(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds_by_rival(monkeypatch, {"blocks": 3.0, "eager": 3.0, 1.0: 1.0})
    monkeypatch.setattr(variants, "_result_bytes", lambda module: 500_000)
    pages = ty.live.overlay(model, "1 MB", unit="blocks", compile="aot_eager")
    assert isinstance(pages, RegionPages)
    settle(model, pages)
    assert pages.whole_share == 1.0
    pages.remeasure()
    pages.rebudget("400 kB")
    settle(model, pages)
    assert pages.whole_share is None
    contest = next(iter(pages._progress.values())).contest
    assert set(contest.needs.values()) == {500_000.0}
    pages.rebudget("1 MB")
    settle(model, pages)
    assert pages.whole_share == 1.0


def test_precompiled_passes_compile_nothing_more(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainyard.errors import BadInput

    seconds_by_rival(monkeypatch, {"blocks": 1.0, "eager": 2.0, **dict.fromkeys(SHARES, 2.0)})
    monkeypatch.setattr(Block, "forward", lambda self, x: x + self.down(torch.sin(self.up(x))))  # code that was not compiled before
    pages = ty.live.overlay(model, "1 GB", unit="blocks", compile="aot_eager")
    assert isinstance(pages, RegionPages)
    x = torch.randn(3, 4)
    with pytest.raises(BadInput, match="inside the with-block"):
        pages.precompile(lambda: None)
    with pages:
        pages.precompile(lambda: model(x).square().sum().backward())
        assert not pages.passes
        assert all("forward" not in block.__dict__ for block in model)
    from torch._dynamo.utils import counters

    before = counters["stats"]["unique_graphs"]
    settle(model, pages)
    assert counters["stats"]["unique_graphs"] == before > 0
