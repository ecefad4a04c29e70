"""The zoo's language models: sizes as published, a step on meta and on real numbers, the papers' products, no look-ahead."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.workloads.zoo.catalogue import LANGUAGE, Entry
from trainyard.workloads.zoo.language import bert, deepbench, gcn, gnmt, gpt, snli, t5, transformer_lm
from trainyard.workloads.zoo.recipe import Recipe

SMALL: dict[str, Callable[[], Recipe]] = {
    "bert": lambda: bert.recipe(bert.TINY, sequence=16),
    "t5": lambda: t5.recipe(t5.Size(layers=2, width=32, heads=2, feed_forward=64), encoder_tokens=12, decoder_tokens=7),
    "gpt": lambda: gpt.recipe(gpt.Size(layers=2, width=32, heads=2), vocabulary=61, sequence=9),
    "transformer": lambda: transformer_lm.transformer_324m(vocabulary=61, layers=1, sequence=9),
    "gnmt": lambda: gnmt.gnmt(vocabulary=61, width=16, source_tokens=5, target_tokens=4),
    "snli": lambda: snli.snli(premise_words=4, hypothesis_words=3),
    "gcn": lambda: gcn.gcn(vocabulary=61, layers=((24, 3), (24, 1), (32, 4)), sequence=9),
    "vanilla": lambda: deepbench.recipe("vanilla", hidden=8, steps=5),
    "lstm": lambda: deepbench.recipe("lstm", hidden=8, steps=5),
    "gru": lambda: deepbench.recipe("gru", hidden=8, steps=5),
}


class Trace(TorchDispatchMode):
    """Name and output shapes of every op; (M, N, K) of every plain product."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[tuple[str, tuple[tuple[int, ...], ...]]] = []
        self.products: set[tuple[int, int, int]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        results = out if isinstance(out, (tuple, list)) else (out,)
        self.ops.append((str(func), tuple(tuple(t.shape) for t in results if isinstance(t, torch.Tensor))))
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            left, right = args[-2:]
            self.products.add((left.shape[0], right.shape[1], left.shape[1]))
        return out


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small products are slowed by many threads, the more so beside other tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def build(entry: Entry) -> Recipe:
    recipe: Recipe = getattr(importlib.import_module(f"trainyard.workloads.zoo.{entry.module}"), entry.function)()
    return recipe


def backward(recipe: Recipe, model: nn.Module, batch: int) -> torch.Tensor:
    loss: torch.Tensor = recipe.loss(model(*recipe.inputs(batch)), *recipe.targets(batch))
    loss.backward()
    return loss


def without_gradient(model: nn.Module) -> list[str]:
    return [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


def traced(recipe: Recipe, batch: int) -> Trace:
    with torch.device("meta"):
        model = recipe.model()
        with Trace() as trace:
            backward(recipe, model, batch)
    return trace


LARGE = ("gnmt", "t5-large", "mixtral-8x7b", "gpt-26b", "bert-large")  # smaller ones of their kind hold the line in every run


@pytest.mark.parametrize(
    "entry",
    [pytest.param(entry, id=entry.name, marks=pytest.mark.slow if entry.name in (*LARGE, "gru") else ()) for entry in LANGUAGE],
)
def test_size_and_step_on_meta(entry: Entry) -> None:
    recipe = build(entry)
    with torch.device("meta"):
        model = recipe.model()
        assert sum(p.numel() for p in model.parameters()) == entry.parameters
        assert backward(recipe, model, 3).shape == ()
        assert without_gradient(model) == []
        assert all(t.shape[0] == 5 for t in (*recipe.inputs(5), *recipe.targets(5)))
    recipe.optimizer(model.parameters()).step()
    if entry.published is not None:
        assert entry.parameters == pytest.approx(entry.published, rel=entry.within)


@pytest.mark.parametrize("name", SMALL)
def test_a_real_step_lowers_the_loss_and_moves_every_parameter(name: str) -> None:
    torch.manual_seed(0)
    recipe = SMALL[name]()
    model = recipe.model()
    inputs, targets = recipe.inputs(3), recipe.targets(3)
    optimizer = recipe.optimizer(model.parameters())
    before = {key: p.detach().clone() for key, p in model.named_parameters()}
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = recipe.loss(model(*inputs), *targets)
        loss.backward()
        assert without_gradient(model) == []
        optimizer.step()
        losses.append(loss.item())
    assert all(map(math.isfinite, losses))
    assert sum(losses[-3:]) < sum(losses[:3])
    still = {key for key, p in model.named_parameters() if torch.equal(p, before[key])}
    assert still == {key for key, p in model.named_parameters() if not p.requires_grad}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name == "gnmt" else ()) for name in SMALL])
def test_every_dimension_is_affine_in_the_batch(name: str) -> None:
    two, three, five = (traced(SMALL[name](), batch).ops for batch in (2, 3, 5))
    assert [op for op, _ in two] == [op for op, _ in three] == [op for op, _ in five]
    for (op, at_two), (_, at_three), (_, at_five) in zip(two, three, five, strict=True):
        for a, b, c in zip(at_two, at_three, at_five, strict=True):
            assert c == tuple(y + 2 * (y - x) for x, y in zip(a, b, strict=True)), op


def test_bert_sizes_without_the_heads_are_those_of_the_released_checkpoints() -> None:
    with torch.device("meta"):
        counts = [sum(p.numel() for p in bert.Bert(size).parameters()) for size in (bert.TINY, bert.BASE, bert.LARGE)]
    assert counts == [4_385_920, 109_482_240, 335_141_888]


def test_t5_large_is_770_million_when_the_shared_matrix_counts_twice() -> None:
    entry = next(entry for entry in LANGUAGE if entry.name == "t5-large")
    assert entry.parameters + t5.VOCABULARY * t5.LARGE.width == pytest.approx(770e6, rel=0.001)


@pytest.mark.parametrize(
    ("name", "recipe", "expected"),
    [
        ("transformer-324m", transformer_lm.transformer_324m(layers=1), {(31_999, 1024, 84), (84, 1024, 4096)}),
        ("gnmt", gnmt.gnmt(layers=2, source_tokens=2), {(1632, 36_548, 1024)}),
    ],
)
def test_products_of_sigmas_suite_appear_in_the_step(name: str, recipe: Recipe, expected: set[tuple[int, int, int]]) -> None:
    entry = next(entry for entry in LANGUAGE if entry.name == name)
    assert expected <= traced(recipe, entry.batch).products


@pytest.mark.parametrize(("name", "steps"), [("rnn-gemv", 50), ("lstm-1", 25), ("lstm-2", 25), ("gru", 187), ("lstm-1024", 25)])
def test_recurrent_layers_unroll_into_their_time_steps(name: str, steps: int) -> None:
    entry = next(entry for entry in LANGUAGE if entry.name == name)
    recipe = build(entry)
    with torch.device("meta"):
        (sequence,) = recipe.inputs(2)
        model = recipe.model()
        with Trace() as trace:
            model(sequence)
    assert sequence.shape[1] == steps
    products = sum(op == "aten.addmm.default" for op, _ in trace.ops)
    assert products == steps * (2 if name == "lstm-1024" else 1)  # the product with the state, and torch's with the input


@pytest.mark.parametrize("name", ["gpt", "transformer", "gcn"])
def test_no_word_sees_the_next(name: str) -> None:
    torch.manual_seed(0)
    recipe = SMALL[name]()
    model = recipe.model().eval()
    (tokens,) = recipe.inputs(2)
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 61
    with torch.no_grad():
        difference = (model(tokens) - model(changed)).abs().amax(dim=(0, 2))
    assert difference[:5].max() < 1e-5
    assert (difference[5:] > 1e-5).any()


def test_t5_decoder_is_causal_and_its_encoder_is_not() -> None:
    torch.manual_seed(0)
    recipe = SMALL["t5"]()
    model = recipe.model().eval()
    source, target = recipe.inputs(2)
    later, last = target.clone(), source.clone()
    later[:, 4] = (later[:, 4] + 1) % t5.VOCABULARY
    last[:, -1] = (last[:, -1] + 1) % t5.VOCABULARY
    with torch.no_grad():
        logits = model(source, target)
        by_target = (logits - model(source, later)).abs().amax(dim=(0, 2))
        by_source = (logits - model(last, target)).abs().amax(dim=(0, 2))
    assert by_target[:4].max() < 1e-5 < by_target[4]
    assert by_source[0] > 1e-5


def test_t5_buckets_are_exact_near_by_and_logarithmic_far_off() -> None:
    both, causal = t5.buckets(200, bidirectional=True), t5.buckets(200, bidirectional=False)
    assert both[100, 93:108].tolist() == [7, 6, 5, 4, 3, 2, 1, 0, 17, 18, 19, 20, 21, 22, 23]
    assert both[0, 199] == 31
    assert both[199, 0] == 15
    assert causal[100, 85:101].tolist() == list(range(15, -1, -1))
    assert causal[100, 101:].max() == 0
    assert causal[199, 0] == 31
    assert (causal[:, 0].diff() >= 0).all()


def test_bert_ignores_padded_tokens() -> None:
    torch.manual_seed(0)
    recipe = SMALL["bert"]()
    model = recipe.model().eval()
    tokens, segments, _ = recipe.inputs(2)
    masked = torch.zeros(2, 3, dtype=torch.long)
    real = torch.arange(tokens.shape[1]).expand_as(tokens) < 10
    padded_otherwise = torch.where(real, tokens, (tokens + 1) % bert.VOCABULARY)
    with torch.no_grad():
        words, _ = model(tokens, segments, masked, real)
        assert torch.allclose(words, model(padded_otherwise, segments, masked, real)[0], atol=1e-5)
        assert not torch.allclose(words, model(padded_otherwise, segments, masked)[0], atol=1e-5)


def test_layer_paths_are_those_that_users_know() -> None:
    with torch.device("meta"):
        names = {
            "bert": dict(bert.BertForPreTraining(bert.TINY).named_modules()),
            "gpt": dict(gpt.Gpt(gpt.SMALL).named_modules()),
            "t5": dict(t5.T5(t5.SMALL, 8, 8).named_modules()),
        }
    assert {"bert.encoder.layer.1.attention.self.query", "cls.predictions.decoder"} <= names["bert"].keys()
    assert {"transformer.h.11.attn.c_attn", "transformer.h.0.mlp.c_proj", "lm_head"} <= names["gpt"].keys()
    assert {"encoder.block.5.layer.1.DenseReluDense.wi", "decoder.block.0.layer.1.EncDecAttention.q"} <= names["t5"].keys()
