"""Blocks that cannot be recorded are called, and the others replayed."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from replayed_training import Layer, Stack, Trainer, compare, obstacles, replayed, stack
from trainyard.live.paging.regions.replay import passes as passes_module
from trainyard.live.paging.regions.replay.obstacles import Rehearsal
from trainyard.live.paging.regions.replay.parts import Leaf
from trainyard.live.paging.regions.replay.passes import ATTEMPTS


class Counting(Layer):
    """Counts its calls, and computes with the count."""

    calls = 0

    def forward(self, x: Tensor, **keywords: Any) -> tuple[Tensor, Tensor]:
        self.calls += 1
        result, mean = super().forward(x, **keywords)
        return result * self.calls, mean


class DrawingOnTheHost(Layer):
    def forward(self, x: Tensor, **keywords: Any) -> tuple[Tensor, Tensor]:
        result, mean = super().forward(x, **keywords)
        return (result if random.random() < 0.5 else 2 * result), mean


class Viewing(Layer):
    def forward(self, x: Tensor, **keywords: Any) -> tuple[Tensor, Tensor]:
        return x.view_as(x), super().forward(x, **keywords)[0].mean()


class Writing(Layer):
    def forward(self, x: Tensor, **keywords: Any) -> tuple[Tensor, Tensor]:
        x.mul_(2.0)
        return super().forward(x, **keywords)


class Borrowing(Layer):
    """Uses a parameter that is nowhere among its own."""

    def __init__(self, owner: list[nn.Parameter]) -> None:
        super().__init__()
        self.owner = owner

    def forward(self, x: Tensor, **keywords: Any) -> tuple[Tensor, Tensor]:
        result, mean = super().forward(x, **keywords)
        return result * self.owner[0].mean(), mean


class Collecting(Layer):
    """Is given a list, and appends to it."""

    def forward(self, x: Tensor, **keywords: Any) -> tuple[Tensor, Any]:
        result, mean = super().forward(x, **keywords)
        return result, {"seen": {1, 2}, "mean": mean}


class Doubled(Layer):
    """Has a hook that changes what a module returns."""

    def __init__(self) -> None:
        super().__init__()
        self.up.register_forward_hook(lambda module, arguments, result: 2 * result)


class Prepared(Layer):
    """Has a hook that changes what a module is given."""

    def __init__(self) -> None:
        super().__init__()
        self.up.register_forward_pre_hook(lambda module, arguments: (2 * arguments[0],))


class Overwriting(Layer):
    """Changes in place what a hook has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.norm.register_forward_hook(lambda module, arguments, result: None)

    def forward(self, x: Tensor, **keywords: Any) -> tuple[Tensor, Tensor]:
        y = self.norm(x)
        return x + self.down(F.gelu(self.up(y.mul_(2.0)))), y.detach().mean()


class Showing(Layer):
    """Shows a hook what no recording can keep."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Collecting()
        self.inner.register_forward_hook(lambda module, arguments, result: None)

    def forward(self, x: Tensor, **keywords: Any) -> tuple[Tensor, Tensor]:
        result, more = self.inner(x, **keywords)
        return result, more["mean"]


class Listing(Layer):
    """Keeps its weights in a second list, and computes with that."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = [self.up.weight]

    def forward(self, x: Tensor, **keywords: Any) -> tuple[Tensor, Tensor]:
        result, mean = super().forward(x, **keywords)
        return result * self.weights[0].mean(), mean


class Checkpointing(Layer):
    def forward(self, x: Tensor, **keywords: Any) -> tuple[Tensor, Tensor]:
        from torch.utils.checkpoint import checkpoint

        result, mean = super().forward(x, **keywords)
        return checkpoint(F.gelu, result, use_reentrant=True), mean


OBSTACLES: dict[str, tuple[Callable[[Stack], nn.Module], str]] = {
    "a counter": (lambda model: Counting(), "keeps a state of its own"),
    "the host's random numbers": (lambda model: DrawingOnTheHost(), "draws random numbers on the host"),
    "a view of its input": (lambda model: Viewing(), "returns a view of what it was given"),
    "a change of its input": (lambda model: Writing(), "changes its input in place"),
    "a parameter of others": (lambda model: Borrowing([model.last.weight]), "uses a parameter that is not its own"),
    "a set as a result": (lambda model: Collecting(), "returns a set"),
    "a hook that returns": (lambda model: Doubled(), "has a hook inside that changes what a module returns"),
    "a hook before": (lambda model: Prepared(), "has hooks inside that run before a module or in its backward"),
    "a change of what a hook saw": (lambda model: Overwriting(), "changes in place what a hook inside has seen"),
    "a set for a hook": (lambda model: Showing(), "shows a hook inside a set"),
    "a checkpoint": (lambda model: Checkpointing(), "has a checkpoint inside"),
    "a list of weights": (lambda model: Listing(), "cannot be recorded: a gradient of something that it keeps elsewhere"),
}


def with_layers(layers: dict[int, Callable[[Stack], nn.Module]], depth: int = 4) -> Callable[[torch.device], nn.Module]:
    """Makes a stack of layers, some of them others."""

    def make(device: torch.device) -> nn.Module:
        model = stack(device, depth)
        for number, make_layer in layers.items():
            torch.manual_seed(number)
            model.layers[number] = make_layer(model).to(device)
        model.order = [*range(depth)]
        return model

    return make


@pytest.mark.parametrize("name", OBSTACLES)
def test_blocks_that_cannot_be_recorded_are_called_and_the_others_replayed(name: str, device: torch.device) -> None:
    make_layer, expected = OBSTACLES[name]

    def loop(trainer: Trainer) -> None:
        random.seed(0)
        trainer.steps(6)

    passes = compare(loop, device, "keep", with_layers({0: make_layer, 1: make_layer}))
    assert obstacles(passes) == {expected}
    was_recorded_twice = expected.startswith("cannot be recorded")
    assert passes.counts["replayed"] == 2 * (3 if was_recorded_twice else 4)


def test_layers_inside_a_checkpoint_of_the_program_are_called(device: torch.device, variant: str) -> None:
    """As transformers does with `gradient_checkpointing_enable`: each layer's call, hooks and all, in a checkpoint."""
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Layer):
        def __call__(self, *arguments: Any, **keywords: Any) -> Any:
            return checkpoint(super().__call__, *arguments, use_reentrant=False, **keywords)

    make = with_layers({0: lambda model: Checkpointed(), 1: lambda model: Checkpointed()})
    passes = compare(lambda trainer: trainer.steps(6), device, variant, make)
    assert obstacles(passes) == {"is called inside a checkpoint of the program's own"}
    assert passes.counts["replayed"] == 2 * 4


def blind(block: nn.Module, call: Callable[[], Any], *_: Any, **__: Any) -> tuple[Any, Rehearsal, list[Leaf]]:
    """A rehearsal that finds nothing."""
    return call(), Rehearsal(None, draws_random_numbers=True), []


class Waiting(Layer):
    """Looks at a result to decide what to do."""

    def forward(self, x: Tensor, **keywords: Any) -> tuple[Tensor, Tensor]:
        result, mean = super().forward(x, **keywords)
        return (result if float(mean) < 1e9 else 2 * result), mean


@pytest.mark.parametrize("is_known", [True, False])
def test_a_block_that_waits_for_the_device_is_called(is_known: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if that is found out while it is recorded: what recording has begun is undone, random numbers included.

    On a CPU there is nothing to wait for, and a rehearsal finds nothing.
    """
    is_known = is_known and device.type == "cuda"
    if not is_known:
        monkeypatch.setattr(passes_module, "rehearse", blind)
    make = with_layers({1: lambda model: Waiting(), 3: lambda model: Waiting()})
    passes = compare(lambda trainer: trainer.steps(6), device, "keep", make)
    (obstacle,) = obstacles(passes)
    assert obstacle.startswith("waits for the device" if is_known else "cannot be recorded: ")
    assert passes.counts["replayed"] == 2 * (4 if is_known else 3)


def test_each_kind_of_block_whose_recording_fails_costs_a_pass(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """More kinds than there are attempts; what fails after the first of them in a pass says nothing about the others."""

    class First(Waiting): ...

    class Second(Waiting): ...

    class Third(Waiting): ...

    monkeypatch.setattr(passes_module, "rehearse", blind)
    failing = [First, Second, Third, Waiting]
    assert len(failing) > ATTEMPTS
    kinds: list[Callable[[], nn.Module]] = [*failing, Layer, *failing, Layer]
    make = with_layers({number: lambda model, kind=kind: kind() for number, kind in enumerate(kinds)}, len(kinds))  # type: ignore[misc]
    passes = compare(lambda trainer: trainer.steps(10), device, "keep", make)
    assert {name for (name, _), rehearsal in passes.rehearsals.items() if rehearsal.obstacle is None} == {"layers.4", "layers.9"}
    rehearsed = recorded = 1
    assert passes.counts["replayed"] == 2 * (10 - rehearsed - len(failing) - recorded)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_the_memory_of_a_recording_that_failed_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks before the one that fails have taken memory for the recording."""

    class Wide(nn.Module):
        def __init__(self, waits: bool) -> None:
            super().__init__()
            self.up, self.down, self.waits = nn.Linear(512, 4096), nn.Linear(4096, 512), waits

        def forward(self, x: Tensor) -> Tensor:
            result = x + self.down(torch.relu(self.up(x)))
            return 2 * result if self.waits and float(result.sum()) > 1e9 else result

    monkeypatch.setattr(passes_module, "rehearse", blind)
    device = torch.device("cuda", 0)
    model = nn.Sequential(*(Wide(number == 3) for number in range(4)), nn.Linear(512, 8)).to(device)
    x = torch.randn(1 << 14, 512, device=device)

    def reserved() -> int:
        model.zero_grad()
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    model(x).square().mean().backward()
    before = reserved()
    with replayed(model, device) as passes:
        for _ in range(3):
            model(x).square().mean().backward()
        assert all(rehearsal.obstacle for rehearsal in passes.rehearsals.values())
    assert reserved() <= before + (1 << 26)
