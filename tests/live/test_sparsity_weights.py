"""Recipes of sparse weights: exact counts, the mechanism against plain references, state, training, recorded masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import trainyard as ty
from trainyard.errors import BadInput, UnknownName
from trainyard.live.sparsity import DropBack, DynamicReparameterisation, GradualPruning, SparseMomentum, SparseWeights
from trainyard.live.sparsity.choice import largest, random_places, share_out
from trainyard.live.sparsity.recipe import weight_layers

RECIPES: dict[str, Callable[..., SparseWeights]] = {
    "momentum": lambda model, optimizer: SparseMomentum(model, optimizer, 0.1, epochs=12),
    "reparameterisation": lambda model, optimizer: DynamicReparameterisation(model, optimizer, 0.1, every=7),
    "dropback": lambda model, optimizer: DropBack(model, optimizer, 0.1, decay=0.8),
    "gradual": lambda model, optimizer: GradualPruning(model, optimizer, 0.1, every=5, prunings=12),
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.norm1, self.norm2, self.norm3 = nn.BatchNorm2d(8), nn.BatchNorm2d(24), nn.BatchNorm1d(48)
        self.conv2 = nn.Conv2d(8, 24, 3, padding=1, stride=2)
        self.hidden = nn.Linear(24 * 16, 48)
        self.head = nn.Linear(48, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        values = torch.relu(self.norm1(self.conv1(images)))
        values = torch.relu(self.norm2(self.conv2(values))).flatten(1)
        return self.head(torch.relu(self.norm3(self.hidden(values))))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors: more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def task(samples: int = 256) -> tuple[torch.Tensor, torch.Tensor]:
    """Made up: the class is the quadrant of an image that is brightest, under noise."""
    generator = torch.Generator().manual_seed(7)
    labels = torch.randint(4, (samples,), generator=generator)
    images = torch.randn(samples, 1, 8, 8, generator=generator)
    for row, label in enumerate(labels.tolist()):
        images[row, 0, 4 * (label // 2) :, :][:4, 4 * (label % 2) :][:, :4] += 1.0
    return images, labels


def built(optimizer: str = "momentum", seed: int = 0) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Net()
    return model, OPTIMIZERS[optimizer](model.parameters())


def epoch(model: nn.Module, optimizer: torch.optim.Optimizer, recipe: SparseWeights, batches: int = 8, samples: int = 256) -> float:
    images, labels = task(samples)
    total = 0.0
    for part in torch.arange(len(images)).chunk(batches):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[part]), labels[part])
        loss.backward()
        optimizer.step()
        recipe.step()
        total += float(loss.detach()) / batches
    recipe.end_epoch()
    return total


# --- exact choices


@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=40).flatmap(lambda v: st.tuples(st.just(v), st.integers(0, len(v)))),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_the_largest_are_those_of_a_stable_sort(case: tuple[list[int], int], dtype: torch.dtype) -> None:
    values, count = case
    ranked = sorted(range(len(values)), key=lambda i: -values[i])[:count]
    actual = largest(torch.tensor(values, dtype=dtype), count)
    assert actual.nonzero().flatten().tolist() == sorted(ranked)


@given(
    st.integers(1, 6).flatmap(
        lambda n: st.tuples(
            st.lists(st.floats(0, 1e6, allow_nan=False), min_size=n, max_size=n),
            st.lists(st.integers(0, 50), min_size=n, max_size=n),
            st.floats(0, 1),
        )
    )
)
def test_share_out_is_exact_and_proportional(case: tuple[list[float], list[int], float]) -> None:
    shares, room, part = case
    total = int(part * sum(room))
    given_out = share_out(total, shares, room)
    assert sum(given_out) == total
    assert all(0 <= count <= places for count, places in zip(given_out, room, strict=True))
    free = [i for i in range(len(room)) if given_out[i] < room[i] and shares[i] > 0]
    if free:  # among those that are not full, nobody is more than one behind their proportion
        whole = sum(shares[i] for i in free)
        theirs = sum(given_out[i] for i in free)
        assert all(abs(given_out[i] - theirs * shares[i] / whole) < 1 + 1e-6 for i in free)


def test_impossible_counts_and_shares_raise() -> None:
    with pytest.raises(BadInput, match="choose 3 of 2"):
        largest(torch.zeros(2), 3)
    with pytest.raises(BadInput, match="diverged"):
        largest(torch.tensor([1.0, math.nan]), 1)
    with pytest.raises(BadInput, match="places for 2"):
        share_out(3, [1.0, 1.0], [1, 1])
    with pytest.raises(BadInput, match="diverged"):
        share_out(1, [math.nan, 1.0], [1, 1])


def test_random_places_are_free_ones() -> None:
    free = torch.rand(20, 30, generator=torch.Generator().manual_seed(1)) < 0.5
    actual = random_places(free, 50, torch.Generator().manual_seed(2))
    assert int(actual.sum()) == 50
    assert not bool((actual & ~free).any())
    assert torch.equal(actual, random_places(free, 50, torch.Generator().manual_seed(2)))


# --- which weights


def test_default_weights_leave_out_what_each_paper_leaves_dense() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.depthwise, self.point = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 16, 1)
            self.norm, self.words, self.head = nn.LayerNorm([4, 4]), nn.Embedding(50, 16), nn.Linear(16, 50)
            self.lstm, self.tied = nn.LSTM(16, 16), nn.Linear(16, 50, bias=False)
            self.tied.weight = self.words.weight
            self.position = nn.Parameter(torch.zeros(4, 16))

    model = Deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recurrent = {"lstm.weight_ih_l0", "lstm.weight_hh_l0"}
    assert set(weight_layers(model)) == {"stem", "depthwise", "point", "head", "lstm"}
    assert set(SparseMomentum(model, optimizer, 0.5).weights) == {"depthwise.weight", "point.weight", "head.weight", *recurrent}
    assert set(DynamicReparameterisation(model, optimizer, 0.5, dense=["head", "depthwise"]).weights) == {
        "point.weight",
        *recurrent,
    }
    assert set(GradualPruning(model, optimizer, 0.5).weights) == {"point.weight", "head.weight", *recurrent}
    assert "stem.weight" in DropBack(model, optimizer, 0.5).weights
    assert set(DropBack(model, optimizer, 0.5, weights=["lstm", model.head.weight, "position"]).weights) == {
        "position", "head.weight", *recurrent,
    }  # fmt: skip


def test_an_embedding_is_a_first_layer_and_frozen_layers_are_left_alone() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert set(SparseMomentum(model, optimizer, 0.5).weights) == {"1.weight", "2.weight"}
    frozen = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)).requires_grad_(False)
    frozen[2].requires_grad_(True)
    optimizer = torch.optim.SGD(frozen.parameters(), lr=0.1)
    assert set(SparseMomentum(frozen, optimizer, 0.5).weights) == {"2.weight"}
    assert set(SparseMomentum(frozen, optimizer, 0.5, weights="1").weights) == {"1.weight"}


@pytest.mark.parametrize("density", [0.0, -0.1, 1.1, math.nan])
def test_densities_outside_0_to_1_raise(density: float) -> None:
    model, optimizer = built()
    with pytest.raises(BadInput, match="density must lie above 0"):
        SparseMomentum(model, optimizer, density)


def test_weights_that_cannot_be_pruned_raise() -> None:
    model, optimizer = built()
    with pytest.raises(UnknownName, match="did you mean 'hidden'"):
        SparseMomentum(model, optimizer, 0.1, weights=["hiden"])
    with pytest.raises(BadInput, match="not one of Net"):
        SparseMomentum(model, optimizer, 0.1, weights=[nn.Parameter(torch.zeros(3, 3))])
    with pytest.raises(BadInput, match=r"does not update conv2.weight, hidden.weight, head.weight"):
        SparseMomentum(model, torch.optim.SGD(Net().parameters(), lr=0.1), 0.1)
    only = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    with pytest.raises(BadInput, match="no layer to prune: Sequential has 1 weight layers"):
        SparseMomentum(only, torch.optim.SGD(only.parameters(), lr=0.1), 0.1)
    with pytest.raises(BadInput, match="leaves 2 weights for 3 tensors"):
        SparseMomentum(model, optimizer, 1e-4)
    with pytest.raises(BadInput, match="rate"):
        SparseMomentum(model, optimizer, 0.1, rate=1.0)
    with pytest.raises(BadInput, match="decay must be 'cosine'"):
        SparseMomentum(model, optimizer, 0.1, decay="square")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="tolerance=2"):
        DynamicReparameterisation(model, optimizer, 0.1, tolerance=2)
    with pytest.raises(BadInput, match="decay must lie between 0"):
        DropBack(model, optimizer, 0.1, decay=1.5)
    with pytest.raises(BadInput, match=r"initial_density=0\.05"):
        GradualPruning(model, optimizer, 0.1, initial_density=0.05)


def test_no_tensor_starts_empty() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 400), nn.Linear(400, 2), nn.Linear(2, 1))
    recipe = SparseMomentum(model, torch.optim.SGD(model.parameters(), lr=0.1), 0.01)
    assert recipe.nonzeros == recipe.budget == round(0.01 * 1602)
    assert all(bool(mask.any()) for mask in recipe.masks.values())


# --- every recipe


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.parametrize("name", RECIPES)
def test_absent_weights_are_exactly_zero_after_each_step(name: str, optimizer_name: str) -> None:
    model, optimizer = built(optimizer_name)
    recipe = RECIPES[name](model, optimizer)
    images, labels = task(8)
    for _ in range(3):
        for _ in range(21):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
            recipe.step()
            if name != "dropback" or getattr(recipe, "scale", 1) == 0:
                for key, weight in recipe.weights.items():
                    assert not bool(weight[~recipe.masks[key]].count_nonzero())
        recipe.end_epoch()
    assert recipe.steps == 63
    assert abs(recipe.nonzeros - recipe.budget) <= (len(recipe.weights) if name == "gradual" else 0)
    nonzero = sum(int(weight.count_nonzero()) for weight in recipe.weights.values())
    assert 0.7 * recipe.budget < nonzero <= recipe.nonzeros
    assert bool(model.conv1.bias.all())  # what is not masked trains on


@pytest.mark.parametrize("name", RECIPES)
def test_the_loss_falls_under_every_recipe(name: str) -> None:
    model, optimizer = built()
    recipe = RECIPES[name](model, optimizer)
    losses = [epoch(model, optimizer, recipe) for _ in range(10)]
    assert losses[0] > 0.8
    assert losses[-1] < 0.1
    assert recipe.density == pytest.approx(0.1, abs=1e-3)


@pytest.mark.parametrize("name", RECIPES)
def test_the_same_seed_gives_the_same_run_and_a_state_continues_it(name: str, tmp_path: Path) -> None:
    def parts() -> tuple[Net, torch.optim.Optimizer, SparseWeights]:
        model, optimizer = built("sgd")
        return model, optimizer, RECIPES[name](model, optimizer)

    def run(model: Net, optimizer: torch.optim.Optimizer, recipe: SparseWeights, epochs: int) -> dict[str, torch.Tensor]:
        for _ in range(epochs):
            epoch(model, optimizer, recipe, samples=64)
        return {**model.state_dict(), **{f"mask {key}": mask for key, mask in recipe.masks.items()}}

    whole = run(*parts(), 4)
    model, optimizer, recipe = parts()
    run(model, optimizer, recipe, 2)
    states = [model.state_dict(), optimizer.state_dict(), recipe.state_dict()]
    torch.save(states, tmp_path / "run.pt")
    model, optimizer, recipe = parts()
    for part, state in zip((model, optimizer, recipe), torch.load(tmp_path / "run.pt", weights_only=True), strict=True):
        part.load_state_dict(state)
    continued = run(model, optimizer, recipe, 2)
    assert whole.keys() == continued.keys()
    assert all(torch.equal(whole[key], continued[key]) for key in whole)


def test_another_seed_gives_other_masks() -> None:
    model, optimizer = built()
    first, second = (SparseMomentum(model, optimizer, 0.1, seed=seed).masks for seed in (0, 1))
    assert not torch.equal(first["hidden.weight"], second["hidden.weight"])


def test_the_state_of_another_recipe_raises() -> None:
    model, optimizer = built()
    recipe = SparseMomentum(model, optimizer, 0.1)
    state = recipe.state_dict()
    with pytest.raises(BadInput, match="a state of 'SparseMomentum', not of DropBack"):
        DropBack(model, optimizer, 0.1).load_state_dict(state)
    with pytest.raises(BadInput, match="name the same weights"):
        SparseMomentum(model, optimizer, 0.1, dense=["head"]).load_state_dict(state)
    state["masks"]["head.weight"] = torch.ones(2, 2, dtype=torch.bool)
    with pytest.raises(BadInput, match=r"mask of 'head.weight' has shape \(2, 2\)"):
        recipe.load_state_dict(state)


@pytest.mark.parametrize("name", RECIPES)
def test_recorded_masks_show_the_density(name: str, tmp_path: Path) -> None:
    model, optimizer = built()
    recipe = RECIPES[name](model, optimizer)
    images, labels = task(8)

    def train_step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        recipe.step()

    masks = ty.record_masks(train_step, model, steps=[0, 70], path=tmp_path / "m.safetensors").at(70)
    count = sum(int(masks.bits((key.removesuffix(".weight"), 0, "W")).sum()) for key in recipe.weights)
    assert count <= recipe.nonzeros
    assert count / sum(weight.numel() for weight in recipe.weights.values()) == pytest.approx(0.1, abs=0.01)
    if name != "dropback":
        assert masks.density(("conv1", 0, "W")) == 1.0
        assert masks.density(("hidden", 0, "W")) < 0.2


# --- sparse momentum


def plain_sparse_momentum(
    weights: list[list[float]], masks: list[list[bool]], momentum: list[list[float]], rate: float
) -> tuple[list[list[float]], list[list[bool]]]:
    """The paper's epoch end in plain Python: prune by magnitude, redistribute by mean momentum, regrow by momentum."""
    new, removed, means = [], 0, []
    for w, mask, m in zip(weights, masks, momentum, strict=True):
        present = [i for i, on in enumerate(mask) if on]
        means.append(sum(abs(m[i]) for i in present) / len(present))
        gone = sorted(present, key=lambda i: (abs(w[i]), -i))[: int(rate * len(present))]
        removed += len(gone)
        new.append([on and i not in gone for i, on in enumerate(mask)])
    pruned = [[value if on else 0.0 for value, on in zip(w, mask, strict=True)] for w, mask in zip(weights, new, strict=True)]
    counts = share_out(removed, means, [mask.count(False) for mask in new])
    for mask, m, count in zip(new, momentum, counts, strict=True):
        absent = sorted((i for i, on in enumerate(mask) if not on), key=lambda i: (-abs(m[i]), i))
        for i in absent[:count]:
            mask[i] = True
    return pruned, new


@pytest.mark.oracle
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.1, 0.5, 0.9]), st.floats(0, 0.9), st.booleans())
def test_sparse_momentum_equals_a_plain_python_version(seed: int, density: float, rate: float, adam: bool) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(4, 7), nn.Linear(7, 2))
    parameters = list(model.parameters())
    optimizer: torch.optim.Optimizer = torch.optim.Adam(parameters) if adam else torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    recipe = SparseMomentum(model, optimizer, density, rate=rate, seed=seed)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(6, 3)).square().sum().backward()
        optimizer.step()
        recipe.step()
    key = "exp_avg" if adam else "momentum_buffer"
    names = list(recipe.weights)

    def lists(tensors: Any) -> Any:
        return [tensor.detach().double().flatten().tolist() for tensor in tensors]

    momentum = lists(optimizer.state[recipe.weights[name]][key] for name in names)
    masks = [recipe.masks[name].flatten().tolist() for name in names]
    weights, expected = plain_sparse_momentum(lists(recipe.weights.values()), masks, momentum, rate)
    total = recipe.nonzeros
    recipe.end_epoch()
    assert [recipe.masks[name].flatten().tolist() for name in names] == expected
    assert lists(recipe.weights.values()) == weights
    assert recipe.nonzeros == total == recipe.budget
    assert lists(optimizer.state[recipe.weights[name]][key] for name in names) == momentum  # it ranks absent weights: never cleared


@pytest.mark.parametrize(
    ("decay", "rates"), [("cosine", [0.4, 0.2, 0.0, 0.0]), ("linear", [0.4, 0.2, 0.0, 0.0]), ("constant", [0.4] * 4)]
)
def test_the_prune_rate_follows_its_schedule(decay: Any, rates: list[float]) -> None:
    model, optimizer = built()
    recipe = SparseMomentum(model, optimizer, 0.5, rate=0.4, decay=decay, epochs=2)
    seen = []
    for _ in rates:
        seen.append(recipe.rate)
        epoch(model, optimizer, recipe, batches=1)
    assert seen == pytest.approx(rates)


def test_sparse_momentum_tracks_momentum_if_the_optimizer_does_not() -> None:
    model, optimizer = built("sgd")
    recipe = SparseMomentum(model, optimizer, 0.1)
    with pytest.raises(BadInput, match=r"'conv2\.weight' has no momentum yet"):
        recipe.end_epoch()
    mean = torch.zeros_like(model.hidden.weight)
    images, labels = task(16)
    for _ in range(4):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        mean = 0.9 * mean + 0.1 * model.hidden.weight.grad
        optimizer.step()
        recipe.step()
    torch.testing.assert_close(recipe.momentum("hidden.weight"), mean)


def test_weights_go_to_the_layer_with_the_larger_momentum() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(20, 20), nn.Linear(20, 20))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    recipe = SparseMomentum(model, optimizer, 0.1, rate=0.5)
    for layer, size in ((model[1], 3.0), (model[2], 1.0)):
        optimizer.state[layer.weight]["momentum_buffer"] = torch.full((20, 20), size)
    recipe.end_epoch()
    assert recipe.densities() == {"1.weight": (20 + 30) / 400, "2.weight": (20 + 10) / 400}


# --- dynamic reparameterisation


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-3, 1.0))
def test_reparameterisation_prunes_below_the_threshold_and_regrows_by_survivors(seed: int, threshold: float) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 12), nn.Linear(12, 9), nn.Linear(9, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    recipe = DynamicReparameterisation(model, optimizer, 0.4, threshold=threshold, share=0.2, every=1, seed=seed)
    before = {name: weight.detach().clone() for name, weight in recipe.weights.items()}
    old = {name: mask.clone() for name, mask in recipe.masks.items()}
    recipe.step()
    survivors, room, removed = [], [], 0
    for name, weight in before.items():
        stays = [i for i, on in enumerate(old[name].flatten().tolist()) if on and abs(float(weight.flatten()[i])) >= threshold]
        if not stays:
            stays = [int(weight.abs().flatten().argmax())]
        removed += int(old[name].sum()) - len(stays)
        survivors.append(len(stays))
        room.append(weight.numel() - len(stays))
        assert bool(recipe.masks[name].flatten()[stays].all())
        kept = torch.zeros(weight.numel(), dtype=torch.bool)
        kept[stays] = True
        assert torch.equal(recipe.weights[name], torch.where(kept.view_as(weight), weight, 0.0))  # what came back is zero
    grown = share_out(removed, survivors, room)
    assert [int(mask.sum()) for mask in recipe.masks.values()] == [a + b for a, b in zip(survivors, grown, strict=True)]
    assert recipe.nonzeros == recipe.budget
    wanted = 0.2 * recipe.budget
    expected = threshold * 2 if removed < 0.9 * wanted else threshold / 2 if removed > 1.1 * wanted else threshold
    assert recipe.threshold == expected


def test_the_threshold_adapts_to_the_target_number_of_removals() -> None:
    model, optimizer = built()
    recipe = DynamicReparameterisation(model, optimizer, 0.1, every=4, share=0.1, threshold=1e-6)
    for _ in range(16):
        epoch(model, optimizer, recipe, samples=64)
    below = sum(int((w[recipe.masks[n]].abs() < recipe.threshold).sum()) for n, w in recipe.weights.items())
    assert 0.02 < below / recipe.nonzeros < 0.4
    assert 1e-5 < recipe.threshold < 1


def test_nothing_moves_after_until_and_momentum_of_absent_weights_is_cleared() -> None:
    model, optimizer = built("adam")
    recipe = DynamicReparameterisation(model, optimizer, 0.1, every=4, until=8, threshold=0.01)
    epoch(model, optimizer, recipe)
    masks = {name: mask.clone() for name, mask in recipe.masks.items()}
    epoch(model, optimizer, recipe)
    assert all(torch.equal(mask, recipe.masks[name]) for name, mask in masks.items())
    for name, weight in recipe.weights.items():
        for key in ("exp_avg", "exp_avg_sq"):
            assert not bool(optimizer.state[weight][key][~recipe.masks[name]].count_nonzero())
            assert bool(optimizer.state[weight][key][recipe.masks[name]].count_nonzero())


# --- DropBack


def plain_dropback(start: list[float], gradients: list[list[float]], rate: float, k: int, decay: float) -> list[float]:
    """The paper's loop on one flat list: accumulated gradients of k tracked weights, all others at their (decayed) start."""
    total = [0.0] * len(start)
    for gradient in gradients:
        total = [a - rate * g for a, g in zip(total, gradient, strict=True)]
        tracked = sorted(range(len(start)), key=lambda i: (-abs(total[i]), i))[:k]
        total = [a if i in tracked else 0.0 for i, a in enumerate(total)]
    scale = decay ** len(gradients)
    return [w * scale + a for w, a in zip(start, total, strict=True)]


@pytest.mark.oracle
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1.0, 0.7, 0.0]), st.floats(0.1, 1.0))
def test_dropback_equals_a_plain_python_version(seed: int, decay: float, density: float) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 2, bias=False)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    start = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    recipe = DropBack(model, optimizer, density, decay=decay)
    gradients = torch.randn(8, 20, dtype=torch.float64)
    for gradient in gradients:
        for parameter, part in zip(model.parameters(), gradient.split([12, 8]), strict=True):
            parameter.grad = part.view_as(parameter).clone()
        optimizer.step()
        recipe.step()
    expected = plain_dropback(start, gradients.tolist(), 0.1, recipe.budget, decay)
    actual = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)
    assert recipe.nonzeros == recipe.budget


def test_dropback_as_published_keeps_initial_values_and_the_variant_makes_zeros() -> None:
    for decay in (1.0, 0.9):
        model, optimizer = built("sgd")
        start = {name: value.detach().clone() for name, value in model.named_parameters()}
        recipe = DropBack(model, optimizer, 0.1, decay=decay)
        for _ in range(17):  # 136 steps: 0.9 to the power of 132 is a millionth
            epoch(model, optimizer, recipe, samples=64)
        for name, weight in recipe.weights.items():
            absent = ~recipe.masks[name]
            expected = start[name][absent] if decay == 1 else torch.zeros(int(absent.sum()))
            assert torch.equal(weight.detach()[absent], expected)


def test_dropback_freezes_its_tracked_set() -> None:
    model, optimizer = built("sgd")
    recipe = DropBack(model, optimizer, 0.1, freeze_after=2)
    masks = []
    for _ in range(4):
        epoch(model, optimizer, recipe)
        masks.append(recipe.masks["hidden.weight"].clone())
    assert not torch.equal(masks[0], masks[1])
    assert torch.equal(masks[1], masks[3])


# --- gradual pruning


def test_the_density_follows_the_cubic() -> None:
    model, optimizer = built()
    recipe = GradualPruning(model, optimizer, 0.2, begin=3, every=2, prunings=4)
    images, labels = task(16)
    smallest_kept: list[float] = []
    for step in range(1, 16):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        before = {name: (w.detach().clone(), recipe.masks[name].clone()) for name, w in recipe.weights.items()}
        recipe.step()
        at = min(8, (step - 3) // 2 * 2) if step >= 3 else None  # the last pruning so far, counted from begin
        expected = 1.0 if at is None else 0.2 + 0.8 * (1 - at / 8) ** 3
        for name, mask in recipe.masks.items():
            assert int(mask.sum()) == round(expected * mask.numel())
            weight, old = before[name]
            assert not bool((mask & ~old).any())  # what is gone stays gone
            if bool((old & ~mask).any()):
                smallest_kept.append(float(weight[mask].abs().min()))
                assert float(weight[old & ~mask].abs().max()) <= smallest_kept[-1]
    assert len(smallest_kept) == 4 * len(recipe.weights)
    assert recipe.density_at(0) == 1.0
    assert recipe.density_at(10**6) == pytest.approx(0.2)


def test_an_initial_density_holds_from_the_start() -> None:
    model, optimizer = built()
    recipe = GradualPruning(model, optimizer, 0.1, initial_density=0.5)
    assert set(recipe.densities().values()) == {0.5}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("name", RECIPES)
def test_recipes_run_on_a_gpu_and_draw_the_same_masks(name: str) -> None:
    model, optimizer = built()
    expected = {key: mask.clone() for key, mask in RECIPES[name](model, optimizer).masks.items()}
    model.cuda()
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    recipe = RECIPES[name](model, optimizer)
    assert all(torch.equal(expected[key], mask.cpu()) for key, mask in recipe.masks.items())
    images, labels = (tensor.cuda() for tensor in task(64))
    for _ in range(3):
        for _ in range(30):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
            recipe.step()
        recipe.end_epoch()
    for key, weight in recipe.weights.items():
        assert weight.is_cuda
        assert not bool(weight[~recipe.masks[key]].count_nonzero())
