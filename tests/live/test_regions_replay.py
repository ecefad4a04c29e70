"""The overlay with replayed blocks: the gradients of plain training in every pass, and the way that is the fastest stays.

On the CPU the twin of CUDA graphs runs; on a GPU the same tests run with graphs.
"""

from __future__ import annotations

import gc
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trainyard as ty
from replayed_training import Stack, Trainer, stack
from trainyard.errors import BadInput
from trainyard.live.paging.regions.contest import PASSES, SHARES, WHOLE_REPLAYED, Contest, Rival
from trainyard.live.paging.regions.pages import CHECKED, PATIENCE, RegionPages
from trainyard.live.paging.regions.replay import session

pytestmark = pytest.mark.usefixtures("small_heap")

WAYS: tuple[Rival, ...] = ("blocks", "eager", "replayed", WHOLE_REPLAYED, *SHARES)


def fastest(monkeypatch: pytest.MonkeyPatch, *rivals: Rival) -> None:
    """Times in which these are the fastest, the first of them the most."""
    seconds: dict[Rival, float] = dict.fromkeys(WAYS, 3.0) | {rival: 1.0 + number for number, rival in enumerate(rivals)}
    monkeypatch.setattr(RegionPages, "step_s", property(lambda pages: [9.0, seconds[pages._rival]]))


def overlay(model: nn.Module, budget: str | float = "1 GB", **options: Any) -> RegionPages:
    pages = ty.live.overlay(model, budget, unit="blocks", replay=True, **options)
    assert isinstance(pages, RegionPages)
    return pages


def settle(trainer: Trainer, pages: RegionPages, limit: int = 100) -> None:
    for _ in range(limit):
        trainer.step()
        if pages.is_settled:
            return
    raise AssertionError("not settled")


@pytest.mark.parametrize("winner", ["replayed", "blocks"])
def test_every_pass_has_the_gradients_of_plain_training(
    winner: Rival, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    fastest(monkeypatch, winner)
    trainer = Trainer(stack(device), device)
    with overlay(trainer.model) as pages:
        settle(trainer, pages)
        trainer.steps(3)
        assert pages._rival == winner
        assert bool(pages.replayed_calls) is (winner == "replayed")
        assert ("replayed" in str(pages.report())) is (winner == "replayed")
    steps = sum(pages.passes.values())
    actual = trainer.finish()
    plain = Trainer(stack(device), device)
    plain.steps(steps)
    expected = plain.finish()
    assert len(actual) == len(expected)
    assert all(map(torch.equal, actual, expected))
    assert "forward" not in trainer.model.layers[0].__dict__  # type: ignore[index,union-attr]


def test_a_replayed_plan_that_is_hardly_faster_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    contest = Contest()
    contest.begin(100, with_eager=False, with_replayed=True, with_whole=False)
    assert contest.queue == ["blocks", "replayed"]
    while contest.queue:
        assert contest.passes == PASSES + (contest.rival == "replayed" and not contest._round)
        contest.score(1.0 if contest.rival == "blocks" else 0.995, 90)
    assert contest.winner == "blocks"


def test_the_whole_model_that_fits_is_replayed_too() -> None:
    contest = Contest()
    contest.begin(100, with_eager=False, with_replayed=True, replays_whole=True)
    assert contest.queue == ["blocks", "replayed", *SHARES]
    for seconds, size in ((3.0, 90), (2.0, 90), (1.0, 120), (1.5, 80)):  # the share of 1.0 does not fit
        contest.score(seconds, size)
    assert contest.queue == [WHOLE_REPLAYED]
    assert contest.replayed_share == 0.5
    contest.score(1.2, 101)
    assert contest.winner == 0.5
    contest.begin(102, with_eager=False, with_replayed=True, replays_whole=True)
    while contest.queue:
        contest.score({"blocks": 3.0, "replayed": 2.0, 0.5: 1.5, WHOLE_REPLAYED: 1.2}.get(contest.rival, 2.0), 101)
    assert contest.winner == WHOLE_REPLAYED
    assert contest.winner_without_replay == 0.5
    contest.withdraw(WHOLE_REPLAYED)
    assert contest.winner == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("winner", ["replayed", WHOLE_REPLAYED])
def test_compiled_blocks_and_models_are_replayed(winner: Rival, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.down(torch.tanh(self.up(x)))

    fastest(monkeypatch, winner)
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(), nn.Linear(4, 2)).to(device)
    x = torch.randn(3, 4, device=device)
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    with overlay(model, compile="aot_eager") as pages:
        for _ in range(120):
            model.zero_grad()
            model(x).square().sum().backward()
            for parameter, gradient in zip(model.parameters(), expected, strict=True):
                torch.testing.assert_close(parameter.grad, gradient)
        assert pages.is_settled
        assert pages._rival == winner
        assert pages.whole_share == (1.0 if winner == WHOLE_REPLAYED else None)
        assert pages.replayed_calls == (1 if winner == WHOLE_REPLAYED else 2)
    assert "forward" not in model.__dict__


@pytest.mark.parametrize("holds_views", [False, True])
def test_a_loop_that_holds_results_has_them_replayed(holds_views: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block's result is the model's, and all of them are kept."""
    fastest(monkeypatch, "replayed")
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0) for _ in range(3)))
    x, kept, counts = torch.randn(2, 3, 8), list[Tensor](), list[int]()
    expected = model(x)
    with overlay(model) as pages:
        for _ in range(60):
            model.zero_grad()
            result = model(x)
            result.square().mean().backward()
            kept.append(result[:, 0].detach() if holds_views else result)
            if pages.is_settled and pages._replays.passes is not None:
                counts.append(pages._replays.passes.counts["replayed"])
    assert all(torch.equal(one, expected[:, 0] if holds_views else expected) for one in kept)  # the weights stay what they are
    assert len(counts) > 20
    assert [later - one for one, later in pairwise(counts[4:])] == [3] * (len(counts) - 5)


def test_signatures_in_turn_are_not_recorded_until_one_stays(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    fastest(monkeypatch, "replayed")
    trainer = Trainer(stack(device), device)
    with overlay(trainer.model) as pages:
        settle(trainer, pages)
        for _ in range(60):
            trainer.step(trainer.batch((7, 4)))
        assert len(pages._progress) == 2
        for _ in range(4):
            trainer.step()
            trainer.step(trainer.batch((7, 4)))
            assert not pages._replays.passes
        trainer.steps(PATIENCE + 4)
        assert pages.replayed_calls


def test_recordings_end_with_the_block_and_begin_again_with_it(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    fastest(monkeypatch, "replayed")
    trainer = Trainer(stack(device), device)
    pages = overlay(trainer.model)
    with pages:
        settle(trainer, pages)
        trainer.steps(3)
        loss = trainer.loss()
    assert not pages.replayed_calls
    trainer.optimizer.zero_grad()
    loss.backward()  # of a forward inside
    actual = [parameter.grad.clone() for parameter in trainer.model.parameters() if parameter.grad is not None]
    assert actual
    assert all(bool(gradient.isfinite().all()) for gradient in actual)
    del loss
    gc.collect()
    with pages:
        trainer.steps(2)
        assert pages.replayed_calls == 4


def test_a_model_with_nothing_to_replay_is_surveyed_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.calls = nn.Linear(4, 4), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x + self.mix(x)

    model, x = nn.Sequential(Counting(), Counting()), torch.randn(3, 4)
    with overlay(model) as pages:
        for _ in range(40):
            model(x).sum().backward()
        assert pages.is_settled
        assert pages.plan is not None
        assert pages.plan.replayed is None
        assert pages._rival == "blocks"


def test_recordings_that_take_more_than_the_budget_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    fastest(monkeypatch, "replayed")
    device = torch.device("cpu")
    trainer = Trainer(stack(device), device)
    with overlay(trainer.model) as pages:
        settle(trainer, pages)
        assert pages._rival == "replayed"
        monkeypatch.setattr(RegionPages, "_note_peak", lambda pages: 2 * 10**9 if pages._rival == "replayed" else 10**6)
        pages._current = None
        trainer.steps(CHECKED[1] + 20)
        assert pages._rival == "blocks"
        assert pages._replays.passes is None


def test_replays_are_for_blocks_alone() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(BadInput, match="replay= is for unit='blocks'"):
        ty.live.overlay(model, "1 GB", replay=True)
    with pytest.raises(BadInput, match="replay= is for unit='blocks'"):
        ty.live.overlay(stack(torch.device("cpu")), "1 GB", unit="tensors", replay=True)


def test_models_of_several_processes_are_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard.live.paging.regions.pages.is_in_one_process", lambda model: False)
    assert not overlay(Stack())._replays.is_allowed
    assert session.Replays(Stack(), torch.device("cpu"), is_allowed=True).hidden_bytes == 0
