"""The zoo's recommenders and its linear model: sizes, a step on meta and on real numbers, the papers' products."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.workloads.zoo.catalogue import RECOMMENDATION, Entry
from trainyard.workloads.zoo.recipe import Recipe
from trainyard.workloads.zoo.recommendation import dlrm, linear, ncf

SMALL: dict[str, Callable[[], Recipe]] = {
    "ncf": lambda: ncf.recipe(ncf.Size(factors=4, layers=(16, 8, 4), users=50, items=40)),
    "dlrm": lambda: dlrm.dlrm(rows=(11, 7, 5)),
    "linear": lambda: linear.linear(features=32),
}


class Products(TorchDispatchMode):
    """(M, N, K) of every plain product."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[int, int, int]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            left, right = args[-2:]
            self.seen.add((left.shape[0], right.shape[1], left.shape[1]))
        return func(*args, **(kwargs or {}))


def build(name: str) -> Recipe:
    entry = next(entry for entry in RECOMMENDATION if entry.name == name)
    recipe: Recipe = getattr(importlib.import_module(f"trainyard.workloads.zoo.{entry.module}"), entry.function)()
    return recipe


def without_gradient(model: nn.Module) -> list[str]:
    return [name for name, p in model.named_parameters() if p.grad is None]


@pytest.mark.parametrize("entry", RECOMMENDATION, ids=lambda entry: entry.name)
def test_size_and_step_on_meta(entry: Entry) -> None:
    recipe = build(entry.name)
    with torch.device("meta"):
        model = recipe.model()
        assert sum(p.numel() for p in model.parameters()) == entry.parameters
        for batch in (2, 3):
            model.zero_grad()
            output = model(*recipe.inputs(batch))
            assert output.shape == (batch,)
            recipe.loss(output, *recipe.targets(batch)).backward()
            assert without_gradient(model) == []
        assert all(t.shape[0] == 5 for t in (*recipe.inputs(5), *recipe.targets(5)))
    recipe.optimizer(model.parameters()).step()
    if entry.published is not None:
        assert entry.parameters == pytest.approx(entry.published, rel=entry.within)


@pytest.mark.parametrize("name", SMALL)
def test_real_steps_lower_the_loss(name: str) -> None:
    torch.manual_seed(0)
    recipe = SMALL[name]()
    model = recipe.model()
    inputs, targets = recipe.inputs(16), recipe.targets(16)
    optimizer = recipe.optimizer(model.parameters())
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = recipe.loss(model(*inputs), *targets)
        loss.backward()
        assert without_gradient(model) == []
        optimizer.step()
        losses.append(loss.item())
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0]


def test_products_of_sigmas_suite_appear_in_the_step() -> None:
    recipe = build("ncf-sigma")
    with torch.device("meta"), Products() as products:
        model = recipe.model()
        recipe.loss(model(*recipe.inputs(2048)), *recipe.targets(2048)).backward()
    assert {(2048, 1, 128), (256, 256, 2048)} <= products.seen


def test_small_ncf_has_four_fully_connected_layers_the_first_the_largest() -> None:
    with torch.device("meta"):
        model = build("ncf").model()
    sizes = [module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear)]
    assert len(sizes) == 4
    assert sizes[0] == max(sizes)


def test_dlrm_interaction_is_each_pair_of_vectors_once() -> None:
    torch.manual_seed(0)
    model = SMALL["dlrm"]().model()
    assert isinstance(model, dlrm.Dlrm)
    seen: list[torch.Tensor] = []
    model.top_l.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    dense, indices = torch.randn(4, 13), torch.tensor([[1, 2, 3], [0, 6, 4], [10, 0, 0], [5, 5, 1]])
    with torch.no_grad():
        model(dense, indices)
        vectors = [model.bot_l(dense)] + [model.emb_l[i].weight[indices[:, i]] for i in range(3)]
    pairs = [(vectors[i] * vectors[j]).sum(-1) for i in range(4) for j in range(i)]
    assert torch.allclose(seen[0], torch.cat([vectors[0], torch.stack(pairs, dim=1)], dim=1), atol=1e-4)


def test_dlrm_top_reads_479_features_as_mlperf_prints() -> None:
    with torch.device("meta"):
        model = build("dlrm").model()
    assert model.get_submodule("top_l.0").in_features == 479


def test_linear_message_is_16_kib() -> None:
    with torch.device("meta"):
        model = build("linear").model()
    assert sum(p.numel() * p.element_size() for p in model.parameters()) == 16 * 1024
