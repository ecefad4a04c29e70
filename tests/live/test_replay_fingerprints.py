"""Blocks that compute something else in each pass, or read what nobody gave them, are not replayed: gradients stay right."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trainyard as ty
from replayed_training import Layer, Stack, Trainer, stack
from trainyard.live.paging.regions.contest import WHOLE_REPLAYED, Rival
from trainyard.live.paging.regions.finding import Region, kind_of
from trainyard.live.paging.regions.pages import RegionPages
from trainyard.live.paging.regions.replay.conditions import Conditions
from trainyard.live.paging.regions.replay.fingerprints import Fingerprints

CPU = torch.device("cpu")
ELSEWHERE, DIFFERS = "reads a tensor that it is neither called with nor keeps", "computes something else in each pass"
CHANGES = "reads something else in each pass"
Context = dict[str, Any]


class Scaled(Layer):
    """Multiplies by what a function returns."""

    def __init__(self, look: Callable[[], Any]) -> None:
        super().__init__()
        self.look = look

    def forward(self, x: Tensor, **keywords: Any) -> tuple[Tensor, Tensor]:
        result, mean = super().forward(x, **keywords)
        return result * self.look(), mean


class Keeping(Layer):
    """Multiplies by a tensor in a dictionary that the block keeps."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context

    def forward(self, x: Tensor, **keywords: Any) -> tuple[Tensor, Tensor]:
        result, mean = super().forward(x, **keywords)
        return result * self.context["scale"], mean


def look_up(context: Context, name: str) -> Callable[[], Any]:
    """A function that calls another one, whose closure has the context."""

    def inner() -> Any:
        return context[name]

    return lambda: inner()


class Schedule:
    """An object that computes a number from a global variable, by a property."""

    start = 1.0

    @property
    def present(self) -> float:
        return self.start * LATE


class OfAClass:
    """A class that is a schedule by itself."""

    value = 1.0

    @classmethod
    def present(cls) -> float:
        return cls.value


class Doubled(torch.autograd.Function):
    """A function of autograd that reads a global variable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * LATE

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * LATE


class Tempered(Layer):
    """Multiplies by a number that its class has."""

    temperature = 1.0

    def forward(self, x: Tensor, **keywords: Any) -> tuple[Tensor, Tensor]:
        result, mean = super().forward(x, **keywords)
        return result * self.temperature, mean


class WithDoubled(Layer):
    def forward(self, x: Tensor, **keywords: Any) -> tuple[Tensor, Tensor]:
        result, mean = super().forward(x, **keywords)
        return Doubled.apply(result), mean  # type: ignore[no-untyped-call]


SCHEDULE, OTHER_FILE = Schedule(), ModuleType("schedules_of_this_run")
exec("value = 1.0\ndef present():\n    return value\ndef twice_removed():\n    return present()", vars(OTHER_FILE))
READERS: dict[str, tuple[Callable[[Context], nn.Module], str | None]] = {
    "a tensor out of sight": (lambda context: Scaled(partial(context.__getitem__, "scale")), ELSEWHERE),
    "a number out of sight": (lambda context: Scaled(partial(context.__getitem__, "number")), DIFFERS),
    "a tensor that a function returns": (lambda context: Scaled(look_up(context, "scale")), CHANGES),
    "a tensor made from a number": (lambda context: Scaled(lambda: torch.tensor(context["number"])), CHANGES),
    "a tensor in a closure": (lambda context: Scaled(lambda: context["scale"]), CHANGES),
    "a tensor in its dictionary": (Keeping, CHANGES),
    "a number in a closure": (lambda context: Scaled(partial(lambda run: run["late"], context["run"])), None),
    "a number that a function returns": (lambda context: Scaled(look_up(context["run"], "late")), None),
    "a global variable": (lambda context: Scaled(lambda: LATE), None),
    "a global variable of another file": (lambda context: Scaled(lambda: OTHER_FILE.value), None),
    "a function of another file": (lambda context: Scaled(lambda: OTHER_FILE.twice_removed()), None),
    "a property of a global object": (lambda context: Scaled(lambda: SCHEDULE.present), None),
    "a method of an object in a closure": (lambda context: Scaled(partial(lambda it: it.present, Schedule())), None),
    "a function of a class": (lambda context: Scaled(lambda: OfAClass.present()), None),
    "an attribute of its own class": (lambda context: Tempered(), None),
    "a function of autograd": (lambda context: WithDoubled(), None),
}
"""What a block reads, and why it is not recorded. Where it is, the number changes after the first replays."""
LATE = 1.0


def fastest(monkeypatch: pytest.MonkeyPatch, winner: Rival) -> None:
    monkeypatch.setattr(RegionPages, "step_s", property(lambda pages: [9.0, 1.0 if pages._rival == winner else 2.0]))


def overlay(model: nn.Module, **options: Any) -> RegionPages:
    pages = ty.live.overlay(model, "1 GB", unit="blocks", replay=True, **options)
    assert isinstance(pages, RegionPages)
    return pages


def fingerprints(pages: RegionPages) -> Fingerprints:
    return next(iter(pages._progress.values())).fingerprints


def change(context: Context, number: int) -> None:
    """Before a pass. The plan is replayed from the thirtieth on."""
    global LATE
    context["scale"], context["number"] = torch.full((1,), 1.0 - 0.01 * number), 1.0 - 0.01 * number
    LATE = Tempered.temperature = OfAClass.value = OTHER_FILE.value = 1.0 if number < 34 else 0.5
    context.setdefault("run", {})["late"] = LATE


def model_with(make_layer: Callable[[Context], nn.Module], context: Context) -> Stack:
    model = stack(CPU, 4)
    for number in (0, 1):
        torch.manual_seed(number)
        model.layers[number] = make_layer(context)
    model.order = [0, 1, 2, 3]
    return model


def train(trainer: Trainer, context: Context, steps: int) -> list[Tensor]:
    for number in range(steps):
        change(context, number)
        trainer.step()
    return trainer.finish()


@pytest.mark.parametrize("name", READERS)
def test_blocks_that_read_what_changes_have_the_gradients_of_plain_training(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_layer, obstacle = READERS[name]
    fastest(monkeypatch, "replayed")
    context: Context = {"run": {}}
    expected = train(Trainer(model_with(make_layer, context), CPU), context, 38)
    trainer = Trainer(model_with(make_layer, context), CPU)
    with overlay(trainer.model) as pages:
        actual = train(trainer, context, 38)
        assert pages._rival == "replayed"
        assert pages.replayed_calls == (4 if obstacle is None else 2)
        assert fingerprints(pages).obstacle("layers.0") == obstacle
        assert fingerprints(pages).obstacle("layers.2") is None
    assert len(actual) == len(expected)
    assert all(map(torch.equal, actual, expected))


@pytest.mark.slow
@pytest.mark.parametrize("reads", ["scale", "number"])
def test_whole_models_that_read_what_changes_are_not_replayed(reads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's own code reads it, between blocks: blocks are replayed all the same."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x) * context[reads]
            return x

    fastest(monkeypatch, WHOLE_REPLAYED)
    context: Context = {}
    torch.manual_seed(0)
    model, x = Model().double(), torch.randn(2, 3, 8, dtype=torch.float64)
    with overlay(model, compile="aot_eager") as pages:
        for number in range(60):
            change(context, number)
            expected = torch.autograd.grad(Model.forward(model, x).square().sum(), list(model.parameters())) if number > 55 else ()
            model.zero_grad()
            model(x).square().sum().backward()
            for parameter, gradient in zip(model.parameters(), expected, strict=False):
                assert parameter.grad is not None
                torch.testing.assert_close(parameter.grad, gradient)
        assert fingerprints(pages).obstacle("") == CHANGES
        assert fingerprints(pages).obstacle("blocks.0") is None
        assert pages.replayed_calls in (0, 2)


def test_layers_that_are_called_in_one_of_the_first_passes_only_are_not_replayed() -> None:
    model = stack(CPU)
    model.order = [0, 1, 2]
    trainer = Trainer(model, CPU)
    with overlay(model) as pages:
        for skipped in (set[int](), {1}, set[int]()):  # the first pass is not watched
            model.skipped = skipped
            trainer.step()
        found = fingerprints(pages)
        obstacles = [found.obstacle(f"layers.{number}") for number in range(3)]
        assert obstacles == [None, "was not called in each of the first passes", None]


def watched(block: nn.Module, calls: int = 2) -> Fingerprints:
    found = Fingerprints()
    call = found.around(Region("block", block, kind_of(block)), block.forward)
    for _ in range(calls):
        found.begin()
        call(torch.ones(2, 3, requires_grad=True))
    return found


def test_functions_that_the_program_compiled_without_breaks_are_watched_in_their_own_code() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.compiled = torch.compile(torch.nn.functional.gelu, backend="aot_eager", fullgraph=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.compiled(self.linear(x))

    assert watched(Block()).obstacle("block") is None


@pytest.mark.parametrize("enabled", [True, False])
def test_weights_that_autocast_has_cast_for_somebody_else(enabled: bool) -> None:
    """Plain training adds up the gradients of the one cast."""
    block = nn.Sequential(nn.Linear(3, 3), nn.GELU())
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        block(torch.ones(2, 3))
        assert watched(block).obstacle("block") == ("reads a tensor that it is neither called with nor keeps" if enabled else None)


def test_what_a_block_draws_at_random_is_no_difference() -> None:
    assert watched(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))).obstacle("block") is None


KEPT: dict[str, tuple[Any, Callable[[nn.Module], None]]] = {
    "a list of numbers": ([1.0, 2.0], lambda block: block.kept.__setitem__(1, 3.0)),  # type: ignore[operator,union-attr]
    "a list of tensors": ([torch.ones(2)], lambda block: block.kept.__setitem__(0, torch.ones(2))),  # type: ignore[operator,union-attr]
    "a longer list": ([torch.ones(2)], lambda block: block.kept.append(1)),  # type: ignore[operator,union-attr]
    "a list in an object": (SimpleNamespace(scales=[1, torch.ones(1)]), lambda block: block.kept.scales.append(2)),  # type: ignore[union-attr]
    "another object": (SimpleNamespace(scale=1.0), lambda block: setattr(block, "kept", SimpleNamespace(scale=2.0))),
    "a missing key": ({"up": torch.ones(1)}, lambda block: block.kept.clear()),  # type: ignore[operator,union-attr]
    "a tensor in place of a number": (1.0, lambda block: setattr(block, "kept", torch.ones(3))),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_what_a_block_keeps_is_looked_at_again(name: str) -> None:
    kept, change_it = KEPT[name]
    block = nn.Sequential(nn.Linear(2, 2))
    block.kept = kept
    conditions = Conditions(block)
    assert conditions.hold()
    change_it(block)
    assert not conditions.hold()


def test_an_object_that_refers_to_itself_ends() -> None:
    block = nn.Sequential(nn.Linear(2, 2))
    block.kept = SimpleNamespace(name="loop", others=[torch.ones(1)])
    block.kept.itself = block.kept
    block.kept.others.append(block.kept.others)
    assert Conditions(block).hold()


class Link:
    """An object in a chain; what it does not have, it looks for in the next one."""

    def __init__(self, following: Link | None) -> None:
        self.following = following


class Stubborn:
    """An object that has no attributes to look at."""

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        raise RuntimeError("not yet")


def test_long_chains_and_objects_without_attributes_do_not_stop_a_look() -> None:
    chain: Link | None = None
    for _ in range(5_000):
        chain = Link(chain)
    stubborn = Stubborn()
    block = nn.Sequential(nn.Linear(2, 2))
    block.kept = stubborn
    block.look = lambda: (chain.following, stubborn.following)  # type: ignore[union-attr,attr-defined]
    assert Conditions(block).hold()


class Wrapper(Tensor):
    """A tensor that wraps another one, and has no memory of its own."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        wrapper: Wrapper = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        raise AssertionError("nothing is computed with it")


def test_tensors_without_memory_are_told_apart() -> None:
    block = nn.Sequential(nn.Linear(2, 2))
    block.kept = Wrapper(torch.ones(2))
    conditions = Conditions(block)
    assert conditions.hold()
    block.kept = Wrapper(torch.ones(2))
    assert not conditions.hold()
