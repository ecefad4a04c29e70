"""The overlay by regions: right gradients whatever is chosen, nothing left where nothing moves, and plans that use memory well."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import cycle, pairwise, product
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
from trainyard.live.paging.regions import planning
from trainyard.live.paging.regions.contest import SHARES
from trainyard.live.paging.regions.finding import regions_of
from trainyard.live.paging.regions.optimizer_state import state_bytes
from trainyard.live.paging.regions.pages import RegionPages
from trainyard.live.paging.regions.planning import Cost, RegionPlan, Trial, plan_of, transients_of, worth_having
from trainyard.live.paging.regions.survey import Measures, Segment
from trainyard.mapping.overlay.policy import Choice, Problem, used_bytes, with_cost
from trainyard.mapping.overlay.search import as_needed

PASSES = 10  # the survey of three variants
SECONDS = {
    "checkpoint": 4.0,
    "selective": 5.0,
    "keep": 1.0,
    "compiled 0.0": 3.0,
    "compiled 0.2": 2.8,
    "compiled 0.5": 2.0,
    "compiled 1.0": 0.5,
}


@pytest.fixture(autouse=True)
def steady_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that do not depend on how busy this machine is."""
    costs_of = planning.costs_of

    def steady(*arguments: Any) -> dict[str, list[Cost]]:
        costs = costs_of(*arguments).items()
        return {region: [replace(cost, seconds=SECONDS.get(cost.variant, cost.seconds)) for cost in row] for region, row in costs}

    monkeypatch.setattr(planning, "costs_of", steady)


class Layer(nn.Module):
    """Residual layer with dropout; takes and returns more than one tensor."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, *, scale: Tensor, extra: tuple[Tensor, ...] = ()) -> tuple[Tensor, Tensor]:
        hidden = F.gelu(self.up(self.norm(x))) * scale
        return x + F.dropout(self.down(hidden), 0.2, self.training), hidden.detach().mean()


class Stack(nn.Module):
    """Layers in a list, the last one called twice; `skip` leaves one out."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.layers = nn.ModuleList(Layer() for _ in range(depth))
        self.last = nn.Linear(8, 2)
        self.skip = False
        self.fail = ""

    def forward(self, x: Tensor) -> Tensor:
        x, scale = self.embed(x), torch.full((8 * 4,), 1.5)
        for number, layer in enumerate([*self.layers, self.layers[-1]]):
            if not (self.skip and number == 1):
                x, _ = layer(x, scale=scale, extra=(x,))
        if self.fail == "forward":
            raise ValueError("stop")
        if self.fail == "backward":
            x.register_hook(self._stop)
        return self.last(x)

    def _stop(self, gradient: Tensor) -> None:
        raise ValueError("stop")


def in_turn(*decisions: str) -> Callable[[Problem, int], Choice]:
    def policy(problem: Problem, budget: int) -> Choice:
        turns = cycle(decisions)
        return with_cost(problem, [next(turns) for _ in problem.saved])  # type: ignore[arg-type]

    return policy


def train(model: Stack, steps: int, pages: Any = None, micro: int = 1, autocast: bool = False) -> list[Tensor]:
    torch.manual_seed(1)
    optimizer, gradients = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), []
    with pages or nullcontext():
        for _ in range(steps):
            optimizer.zero_grad()
            for _ in range(micro):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    loss = model(torch.randn(5, 4)).float().square().mean()
                loss.backward()
            gradients += [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
            optimizer.step()
    return gradients


def stack(depth: int = 3) -> Stack:
    torch.manual_seed(0)
    return Stack(depth)


def blocks(model: nn.Module, budget: str | float = "1 GB", **options: Any) -> Any:
    return ty.live.overlay(model, budget, unit="blocks", **options)


@pytest.mark.parametrize("turns", [("keep",), ("recompute",), ("recompute", "keep")])
@pytest.mark.parametrize("options", [{}, {"micro": 2}, {"autocast": True}], ids=["plain", "accumulation", "autocast"])
def test_gradients_are_those_of_plain_training_whatever_is_chosen(turns: tuple[str, ...], options: dict[str, Any]) -> None:
    expected = train(stack(), PASSES + 3, **options)
    pages = blocks(stack(), policy=in_turn(*turns))
    actual = train(pages.model, PASSES + 3, pages, **options)
    assert len(actual) == len(expected)
    assert all(map(torch.equal, actual, expected))
    assert pages.passes["followed"] >= 3
    variants = {"keep" if turn == "keep" else "checkpoint" for turn in turns}
    assert set(pages.plan.variants.values()) == variants


def test_blocks_that_are_kept_run_their_own_code_and_saved_tensors_pass_no_hook() -> None:
    model, seen = stack(), []
    with blocks(model, policy=in_turn("keep")) as pages:
        for _ in range(PASSES + 25):  # beyond the passes that are timed
            model(torch.randn(5, 4)).sum().backward()
            seen.append(["forward" in layer.__dict__ for layer in model.layers])
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        assert not model._forward_hooks
    assert pages.passes == {"surveyed": PASSES, "followed": 25}
    assert all(all(row) for row in seen[:PASSES])
    assert not any(any(row) for row in seen[PASSES:])
    assert len(pages.step_s) == 20


def test_the_model_is_unchanged_afterwards_also_after_an_error() -> None:
    model = stack()
    before = {name: dict(module.__dict__) for name, module in model.named_modules()}
    for steps in (2, PASSES + 2):
        train(model, steps, blocks(model, policy=in_turn("recompute", "keep")))
        model.zero_grad()
        assert {name: dict(module.__dict__) for name, module in model.named_modules()} == before
    model.fail = "forward"
    with pytest.raises(ValueError, match="stop"):
        train(model, 1, blocks(model))
    assert "forward" not in model.layers[0].__dict__


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_error_in_forward_or_backward_repeats_that_survey_pass(where: str) -> None:
    model, plain = stack(), stack()
    with blocks(model, policy=in_turn("recompute")) as pages:
        for step in range(PASSES + 6):
            model.fail = where if step in (0, 3, PASSES + 4) else ""
            torch.manual_seed(step)
            if model.fail:
                with pytest.raises(ValueError, match="stop"):
                    model(torch.randn(5, 4)).sum().backward()
                continue
            for each in (model, plain):
                each.zero_grad()
                torch.manual_seed(step)
                each(torch.randn(5, 4)).sum().backward()
            assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
    assert pages.passes["surveyed"] == PASSES + 2


def test_another_branch_another_shape_and_evaluation_keep_gradients_right() -> None:
    model, plain = stack(), stack()
    with blocks(model, policy=in_turn("recompute", "keep")) as pages:
        for step in range(3 * PASSES):
            rows = 5 if step % 3 else 3
            for each in (model, plain):
                each.skip = step % 4 == 1
                each.zero_grad()
                torch.manual_seed(step)
                each(torch.randn(rows, 4)).sum().backward()
                with torch.no_grad():
                    each.eval()
                    each(torch.randn(2, 4))
                    each.train()
            grads = [(a.grad, b.grad) for a, b in zip(model.parameters(), plain.parameters(), strict=True)]
            assert all(a is b is None or torch.equal(a, b) for a, b in grads)
    assert pages.passes == {"surveyed": 2 * PASSES, "followed": PASSES}


@given(st.lists(st.booleans(), min_size=PASSES, max_size=PASSES + 4))
@settings(max_examples=12, deadline=None)
def test_blocks_that_are_dropped_at_random_keep_gradients_right(skips: list[bool]) -> None:
    model, plain = stack(), stack()
    with blocks(model, policy=in_turn("keep", "recompute")) as pages:
        for step, skip in enumerate([*skips, False, True]):
            for each in (model, plain):
                each.skip = skip
                each.zero_grad()
                torch.manual_seed(step)
                each(torch.randn(5, 4)).sum().backward()
            grads = [(a.grad, b.grad) for a, b in zip(model.parameters(), plain.parameters(), strict=True)]
            assert all(a is b is None or torch.equal(a, b) for a, b in grads)
    assert pages.passes["followed"] >= 2
    assert {"layers.0", "layers.2"} <= set(pages.plan.variants)


def test_another_budget_changes_the_plan_without_another_survey() -> None:
    model, seen = stack(), []
    with blocks(model) as pages:
        for budget in ("1 GB", 1, "1 GB"):
            with pytest.warns(UserWarning, match="is not kept") if budget == 1 else nullcontext():
                pages.rebudget(budget)
            for _ in range(PASSES + 1):
                model(torch.randn(5, 4)).sum().backward()
            seen.append(set(pages.plan.variants.values()))
    assert seen == [{"keep"}, {"checkpoint"}, {"keep"}]
    assert pages.passes["surveyed"] == PASSES


def test_a_model_that_was_moved_to_another_device_runs_plainly_with_a_warning() -> None:
    model = stack()
    with blocks(model, policy=in_turn("recompute")) as pages:
        for _ in range(PASSES + 1):
            model(torch.randn(5, 4)).sum().backward()
        assert "forward" in model.layers[0].__dict__
        model.to("meta")
        with pytest.warns(UserWarning, match="the model has left cpu"):
            pages._gate(model, (torch.empty(5, 4, device="meta"),), {})
        assert "forward" not in model.layers[0].__dict__


def test_backward_twice_over_a_retained_graph() -> None:
    model = stack()
    with blocks(model, policy=in_turn("recompute")):
        for _ in range(PASSES + 2):
            loss = model(torch.randn(5, 4)).sum()
            first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            second = torch.autograd.grad(loss, list(model.parameters()))
            assert all(map(torch.equal, first, second))


def test_a_second_overlay_over_the_same_model_and_a_model_without_blocks_are_refused() -> None:
    model = stack()
    with blocks(model), pytest.raises(BadInput, match="inside another overlay"), blocks(model):
        pass
    assert "overlaid" not in model.layers[0].__dict__
    with pytest.raises(BadInput, match="no stack of like blocks"):
        blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    with pytest.raises(BadInput, match="compile= is for unit='blocks'"):
        ty.live.overlay(stack(), "1 GB", unit="tensors", compile=True)


@pytest.mark.parametrize("outer", ["blocks", "tensors"])
@pytest.mark.parametrize("inner", ["blocks", "tensors"])
def test_nested_overlays_are_refused_or_give_right_gradients_and_leave_nothing_behind(outer: str, inner: str) -> None:
    model = stack().eval()
    x = torch.randn(5, 4)
    expected = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))

    def passes(count: int) -> None:
        for _ in range(count):
            actual = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
            assert all(map(torch.equal, actual, expected))

    with ty.live.overlay(model, "1 GB", unit=outer):  # type: ignore[arg-type]
        passes(2)
        if outer == inner == "blocks":
            with pytest.raises(BadInput, match="inside another overlay"):
                ty.live.overlay(model, "1 GB", unit="blocks").__enter__()
        else:
            with ty.live.overlay(model, "1 GB", unit=inner):  # type: ignore[arg-type]
                passes(PASSES + 1)
        passes(2)
    passes(1)
    assert not model._forward_pre_hooks
    assert not model._forward_hooks
    assert all(not {"forward", "overlaid"} & set(layer.__dict__) for layer in (model, *model.layers))


def test_a_budget_below_the_least_is_refused_at_the_end_of_the_first_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    model = stack()
    optimizer = torch.optim.AdamW(model.parameters())
    state = 2 * sum(parameter.numel() * 4 for parameter in model.parameters())
    assert state_bytes(optimizer) == state
    monkeypatch.setattr(Measures, "peak_bytes", 9_500)  # as the allocator of a GPU would say
    with pytest.raises(BadInput, match=r"nothing fits 10 kB: .* checkpointed a pass takes .* of optimizer state"):
        train(model, 1, blocks(model, 10_000, optimizer=optimizer))
    train(model, 1, blocks(model, 10_000))
    assert "forward" not in model.layers[0].__dict__


def test_compiled_variants_give_the_gradients_of_plain_training_within_rounding() -> None:
    def step(model: nn.Module, x: Tensor) -> list[Tensor]:
        model.zero_grad()
        model(x).square().mean().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    model, x = stack(2).eval(), torch.randn(5, 4)
    expected = step(model, x)

    def policy(problem: Problem, budget: int) -> Choice:
        return in_turn("keep", "recompute")(problem, budget)

    with blocks(model, compile="aot_eager", policy=policy) as pages:
        while pages.passes["followed"] < 2:
            for actual, gradient in zip(step(model, x), expected, strict=True):
                torch.testing.assert_close(actual, gradient)
    assert pages.passes["surveyed"] == 1 + 3 * 3 + 4 * 4
    assert [cost.variant for cost in pages.plan.chains["layers.0"]][-1] == "compiled 1.0"
    assert "forward" not in model.layers[0].__dict__


def test_a_block_that_the_compiler_refuses_runs_its_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.backends import common

    def refuse(**options: Any) -> Any:
        raise NotImplementedError("not this one")

    monkeypatch.setattr(common, "aot_autograd", refuse)
    model = nn.Sequential(*(nn.TransformerEncoderLayer(12, 2, 24, dropout=0.0, batch_first=True) for _ in range(2)))
    x = torch.randn(2, 3, 12)
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))

    def train() -> None:
        with blocks(model, compile="aot_eager") as pages:
            while pages.passes["followed"] < 2:
                actual = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
                assert all(map(torch.equal, actual, expected))

    with pytest.warns(UserWarning, match="TransformerEncoderLayer cannot be compiled"):
        train()


class Down(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))


def test_regions_are_the_outer_members_of_long_stacks_and_the_inner_ones_of_short() -> None:
    short = nn.ModuleDict({"down": nn.ModuleList(Down() for _ in range(3)), "head": nn.Linear(2, 2)})
    assert [region.name for region in regions_of(short)] == [f"down.{i}.layers.{j}" for i in range(3) for j in range(2)]
    long = nn.ModuleDict({"down": nn.ModuleList(Down() for _ in range(8))})
    assert [region.name for region in regions_of(long)] == [f"down.{i}" for i in range(8)]
    assert len({region.kind for region in regions_of(long)}) == 1
    assert regions_of(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []


class Step(nn.Module):
    """Two convolutions of a U-shaped network."""

    def __init__(self, channels: int, results: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(nn.Conv2d(channels, results, 3, padding=1), nn.Conv2d(results, results, 3, padding=1))

    def forward(self, x: Tensor, skipped: Tensor | None = None) -> Tensor:
        return self.convolutions(x if skipped is None else torch.cat([x, skipped], 1)).relu()


class NamedSteps(nn.Module):
    """Has a name for each of its blocks, and no stack."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.up1, self.last = Step(2, 4), Step(4, 4), Step(8, 4), nn.Conv2d(4, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(first)
        return self.last(self.up1(second, first))


class DenseLayer(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(channels, 2, 3, padding=1), nn.BatchNorm2d(2)

    def forward(self, features: list[Tensor]) -> Tensor:
        return self.norm(self.convolution(torch.cat(features, 1))).relu()


class DenseBlock(nn.ModuleDict):
    """As torchvision's DenseNet has it: a dictionary of layers with a forward of its own, which hands a growing list on."""

    def __init__(self) -> None:
        super().__init__({f"layer{number}": DenseLayer(2 + 2 * number) for number in range(3)})

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.values():
            features.append(layer(features))
        return torch.cat(features, 1)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (NamedSteps, ["down1", "down2", "up1"]),
        (lambda: nn.Sequential(DenseBlock(), nn.Conv2d(8, 1, 1)), ["0.layer0", "0.layer1", "0.layer2"]),
    ],
)
def test_blocks_with_names_of_their_own_and_members_of_dictionaries_are_regions(
    make: Callable[[], nn.Module], names: list[str]
) -> None:
    torch.manual_seed(0)
    model, x = make(), torch.randn(2, 2, 4, 4)
    assert [region.name for region in regions_of(model)] == names

    def gradients() -> list[Tensor]:
        model.zero_grad()
        model(x).square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    expected = gradients()
    with blocks(model, policy=in_turn("recompute", "keep")) as pages:
        for _ in range(PASSES + 2):
            assert all(torch.equal(*pair) for pair in zip(gradients(), expected, strict=True))
        assert "checkpoint" in pages.plan.variants.values()


# -- the planner

Draw = tuple[list[list[tuple[int, int]]], list[int]]


@st.composite
def measured(draw: st.DrawFn) -> Draw:
    """For each of a few regions the (bytes, time) of further variants, and the memory of everything else."""
    kinds = draw(
        st.lists(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=2), min_size=1, max_size=4)
    )
    return kinds, draw(st.lists(st.integers(50, 90), min_size=3 * len(kinds) + 1, max_size=3 * len(kinds) + 1))


def surveyed(kinds: list[list[tuple[int, int]]], peaks: list[int], more: list[int] | None = None) -> RegionPlan:
    """The plan of regions that take 4 s when checkpointed; in other variants, `more` bytes inside forward and backward of each."""
    names = [f"layer {number}" for number in range(len(kinds))]
    numbers = range(len(names))
    segments = [Segment(part, call) for call in numbers for part in ("outside", "forward")] + [Segment("outside", len(names))]
    segments += [Segment("backward", call) for call in reversed(numbers)]

    def measures(times: list[int], held: list[int]) -> Measures:
        seconds = {Segment("forward", call): float(times[call]) for call in numbers}
        memory = dict(zip(segments, peaks, strict=True))
        calls = {"regions": names, "inputs": [()] * len(names), "order": list(reversed(numbers))}
        return Measures(**calls, seconds=seconds, peaks=memory, held=dict(enumerate(held)))  # type: ignore[arg-type]

    nothing = measures([4] * len(names), [0] * len(names))
    everything = frozenset(names)
    trials = {"checkpoint": Trial(nothing, [nothing], everything, everything)}
    for variant in range(max(map(len, kinds))):
        rows = [kind[min(variant, len(kind) - 1)] for kind in kinds]
        one = measures([seconds for _, seconds in rows], [size for size, _ in rows])
        for call in numbers if more is not None else ():
            held = sum(size for size, _ in rows[:call])  # by the regions before, from their forward to their backward
            one.peaks[Segment("forward", call)] += held + more[2 * call]
            one.peaks[Segment("backward", call)] += held + more[2 * call + 1]
        trials[f"variant {variant}"] = Trial(one, [one], everything, everything)
    return plan_of(trials, {name: (name,) for name in names})


@given(st.lists(st.tuples(st.floats(1.0, 9.0), st.floats(1.0, 9.0), st.floats(1.0, 9.0)), min_size=1, max_size=4))
def test_where_everything_fits_the_plan_is_plain_training_whatever_the_host_did_to_the_survey(
    times: list[tuple[float, float, float]],
) -> None:
    names = [f"layer {number}" for number in range(len(times))]

    def trial(variant: int, held: int) -> Trial:
        numbers = range(len(names))
        seconds = {Segment("forward", call): times[call][variant] for call in numbers}
        one = Measures(names, [()] * len(names), list(reversed(numbers)), seconds, {}, {}, dict.fromkeys(numbers, held))
        return Trial(one, [one], frozenset(names), frozenset(names))

    trials = {"checkpoint": trial(0, 0), "keep": trial(1, 9), "selective": trial(2, 4)}
    plan = plan_of(trials, {name: (name,) for name in names})
    plan.choose(as_needed, 10**6)
    assert set(plan.variants.values()) == {"keep"}


@given(measured())
@settings(max_examples=40, deadline=None)
def test_plans_fit_their_budget_and_more_memory_is_never_slower(drawn: Draw) -> None:
    plan, before = surveyed(*drawn), float("inf")
    plan.choose_least()
    least, checkpointed_s = plan.choice.peak_bytes, plan.choice.time_s
    for budget in range(least, least + 160, 8):
        plan.choose(as_needed, budget)
        assert plan.choice.peak_bytes <= budget
        assert plan.choice.time_s <= min(before, checkpointed_s)
        before = plan.choice.time_s
    assert set(plan.variants.values()) == {chain[-1].variant for chain in plan.chains.values()}
    with pytest.raises(BadInput, match="a larger budget"):
        plan.choose(as_needed, least - 1)


@given(measured(), st.lists(st.integers(0, 30), min_size=8, max_size=8))
@settings(max_examples=40, deadline=None)
def test_what_blocks_take_while_they_run_fits_the_budget_too(drawn: Draw, more: list[int]) -> None:
    plan = surveyed(*drawn, more)
    names = list(plan.chains)
    expected = {name: (more[2 * call], more[2 * call + 1]) for call, name in enumerate(names)}
    variants = [f"variant {number}" for number in range(max(map(len, drawn[0])))]
    assert plan.transients == {(name, variant): expected[name] for variant in variants for name in names if any(expected[name])}
    plan.choose_least()
    least = plan.choice.peak_bytes
    for budget in range(least, least + 200, 16):
        plan.choose(as_needed, budget)
        used, peak = used_bytes(plan.problem, plan.choice), plan.choice.peak_bytes
        assert max(used) <= peak <= budget
        for region, variant in plan.variants.items():
            forward, backward = expected[region] if variant != "checkpoint" else (0, 0)
            assert all(used[position] + forward <= peak for position in plan.places[region].forward)
            assert all(used[position] + backward <= peak for position in plan.places[region].backward)
    assert set(plan.variants.values()) == {chain[-1].variant for chain in plan.chains.values()}
    with pytest.raises(BadInput, match="a larger budget"):
        plan.choose(as_needed, least - 1)


def test_the_memory_of_a_pass_that_compiles_or_calls_other_regions_says_nothing_of_blocks_that_run() -> None:
    base = Measures(["a"], [()], [0], peaks={Segment("forward", 0): 5, Segment("backward", 0): 7}, held={0: 0})
    larger = Measures(["a"], [()], [0], peaks={Segment("forward", 0): 9, Segment("backward", 0): 7}, held={0: 2})
    sampled, kinds = frozenset(["a"]), {"a": ("kind",)}
    assert transients_of(base, Trial(larger, sampled=sampled), kinds) == {"a": (4, 0)}
    assert transients_of(base, Trial(larger, sampled=sampled, compiles=True), kinds) == {}
    assert transients_of(base, Trial(replace(larger, regions=["a", "a"]), sampled=sampled), kinds) == {}


@given(measured(), st.integers(0, 60))
@settings(max_examples=40, deadline=None)
def test_plans_are_as_fast_as_the_best_of_all_choices_of_one_step_each(drawn: Draw, room: int) -> None:
    kinds, peaks = drawn
    plan = surveyed([kind[:1] for kind in kinds], peaks)
    plan.choose_least()
    budget = plan.choice.peak_bytes + room
    plan.choose(as_needed, budget)
    choices = (with_cost(plan.problem, decisions) for decisions in product(("keep", "recompute"), repeat=len(plan.steps)))
    best = min(choice.time_s for choice in choices if choice.peak_bytes <= budget)
    assert plan.choice.time_s == pytest.approx(best)


@given(st.lists(st.builds(Cost, st.integers(0, 9), st.integers(0, 9).map(float), st.just("x")), min_size=1, max_size=8))
def test_the_chain_of_variants_is_the_lower_convex_hull(costs: list[Cost]) -> None:
    chain = worth_having(costs)
    assert chain[0].held_bytes == min(cost.held_bytes for cost in costs)
    assert chain[-1].seconds == min(cost.seconds for cost in costs)
    for cost in costs:  # nothing lies below a line between neighbours
        for less, more in pairwise(chain):
            slope = (more.seconds - less.seconds) / (more.held_bytes - less.held_bytes)
            assert slope < 0
            assert cost.seconds >= less.seconds + slope * (cost.held_bytes - less.held_bytes) - 1e-9


def test_a_variant_that_keeps_the_host_busy_for_longer_than_the_device_costs_the_hosts_time() -> None:
    segments = [Segment("forward", 0), Segment("backward", 0), Segment("forward", 1), Segment("backward", 1)]
    measures = Measures(
        regions=["a", "b"],
        order=[1, 0],
        seconds=dict(zip(segments, (1.0, 2.0, 1.0, 2.0), strict=True)),
        host_seconds=dict(zip(segments, (0.5, 3.0, 0.5, 5.0), strict=True)),
    )
    assert planning.mean_seconds([measures], ["a", "b"]) == 4.5
    assert planning.mean_seconds([replace(measures, host_seconds={})], ["a", "b"]) == 3.0
    assert planning.mean_seconds([measures], ["c"]) is None


def test_names_of_units_and_compilers_are_checked_and_options_of_tensors_are_refused_for_blocks(tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.TransformerEncoderLayer(8, 2, 16) for _ in range(2)))
    with pytest.raises(UnknownName, match=r"unknown unit 'block': did you mean 'blocks'\?"):
        ty.live.overlay(model, "1 GB", unit="block")  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match=r"unknown compiler 'inductr': did you mean 'inductor'\?"):
        ty.live.overlay(model, "1 GB", unit="blocks", compile="inductr")  # type: ignore[arg-type]
    for options in ({"store": "disk"}, {"directory": tmp_path}, {"smallest": "1 MB"}):
        with pytest.raises(BadInput, match="are for unit='tensors'"):
            ty.live.overlay(model, "1 GB", unit="blocks", **options)  # type: ignore[arg-type]


@pytest.mark.slow  # a C++ compiler is busy for half a minute
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_calls_written_in_cpp_give_the_gradients_of_plain_training(recwarn: pytest.WarningsRecorder) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(2)))
    x = torch.randn(4, 3, 8)
    model(x).square().sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    pages = ty.live.overlay(model, "1 GB", unit="blocks", compile="inductor_cpp")
    assert isinstance(pages, RegionPages)
    with pages:
        for step in range(60):
            model.zero_grad()
            model(x).square().sum().backward()
            for parameter, gradient in zip(model.parameters(), expected, strict=True):
                torch.testing.assert_close(parameter.grad, gradient, msg=f"step {step}")
            if pages.is_settled:
                break
        assert {"blocks", f"whole {SHARES[0]}"} <= set(pages.rivals)
    assert not [note for note in recwarn if "cannot be compiled" in str(note.message)]
