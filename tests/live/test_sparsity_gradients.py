"""Zeros in A and G: PACT, meProp, the biggest losers, padding; each against a plain reference and in recorded masks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import trainyard as ty
from trainyard.errors import BadInput, UnknownName
from trainyard.live.sparsity import (
    BiggestLosers,
    Pact,
    SelectiveBackpropagation,
    gradient_of_real_tokens,
    pact,
    pact_parameter_groups,
    pad,
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors: more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def layers(relu: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    between = [nn.ReLU() if relu else nn.Tanh() for _ in range(2)]
    return nn.Sequential(nn.Linear(20, 40), between[0], nn.Linear(40, 30), between[1], nn.Linear(30, 3))


def task(samples: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    """Made up: the class is which of three random directions the input lies closest to."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(samples, 20, generator=generator)
    return inputs, (inputs @ torch.randn(20, 3, generator=generator)).argmax(1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 60) -> list[float]:
    inputs, labels = task()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def recorded(model: nn.Module, path: Path, inputs: torch.Tensor, labels: torch.Tensor) -> ty.Masks:
    def train_step() -> None:
        model.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()

    return ty.record_masks(train_step, model, path=path)


# --- PACT


@pytest.mark.oracle
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 8), st.floats(0.1, 8.0))
def test_pact_is_clip_then_round_with_a_straight_through_gradient(seed: int, bits: int, alpha: float) -> None:
    torch.manual_seed(seed)
    values = (3 * torch.randn(50, dtype=torch.float64)).requires_grad_()
    module = Pact(bits, alpha).double()
    actual = module(values)
    weight = torch.randn(50, dtype=torch.float64)
    (actual * weight).sum().backward()
    levels, clip = 2**bits - 1, float(module.alpha.detach())
    below = above = 0.0
    for x, y, w, g in zip(*(t.tolist() for t in (values, actual, weight, values.grad)), strict=True):
        clipped = min(max(x, 0.0), clip)
        assert y == pytest.approx(round(clipped * levels / clip) * clip / levels, abs=1e-9)
        assert g == (w if 0 < x < clip else 0.0)
        below += x > 0 and y == 0
        above += w if x >= clip else 0.0
    assert float(module.alpha.grad) == pytest.approx(above, rel=1e-5, abs=1e-5)
    assert len(actual.unique()) <= 2**bits
    if bits == 1 and alpha > 2:
        assert below > 0  # zeros that ReLU would not have made


def test_pact_replaces_each_relu_once_and_in_place() -> None:
    shared = nn.ReLU(inplace=True)
    model = nn.Sequential(nn.Linear(4, 4), shared, nn.Sequential(nn.Linear(4, 4), shared, nn.ReLU()), nn.ReLU())
    assert pact(model, bits=3, alpha=2.0, keep=["3"]) == 2
    assert isinstance(model[1], Pact)
    assert model[1] is model[2][1]
    assert model[2][2] is not model[1]
    assert type(model[3]) is nn.ReLU
    assert float(model[1].alpha.detach()) == 2.0
    assert "bits=3" in repr(model)


def test_pact_learns_and_its_clip_shrinks_with_weight_decay() -> None:
    model = layers()
    assert pact(model, bits=4, alpha=6.0) == 2
    groups = pact_parameter_groups(model, weight_decay=0.05)
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    losses = train(model, torch.optim.SGD(groups, lr=0.3, momentum=0.9))
    assert losses[-1] < 0.3 * losses[0]
    assert all(0 < float(clip.detach()) < 5.5 for clip in groups[1]["params"])


def test_activations_behind_pact_have_more_zeros_than_behind_relu(tmp_path: Path) -> None:
    inputs, labels = task()
    plain, quantised = layers(), layers()
    pact(quantised, bits=2, alpha=2.0)
    before = recorded(plain, tmp_path / "a", inputs, labels)
    after = recorded(quantised, tmp_path / "b", inputs, labels)
    assert after.density(("2", 0, "A")) < 0.6 * before.density(("2", 0, "A"))
    assert after.density(("0", 0, "A")) == before.density(("0", 0, "A")) == 1.0


def test_pact_with_bad_bits_alpha_or_model_raises() -> None:
    with pytest.raises(BadInput, match=r"holds no nn\.ReLU module"):
        pact(nn.Sequential(nn.Linear(2, 2), nn.GELU()))
    with pytest.raises(UnknownName, match="unknown ReLU 'relu'"):
        pact(layers(), keep=["relu"])
    with pytest.raises(BadInput, match="bits must lie between"):
        pact(layers(), bits=0)
    with pytest.raises(BadInput, match="alpha, the clip"):
        Pact(alpha=0.0)
    with pytest.raises(BadInput, match="call pact"):
        pact_parameter_groups(layers(), 1e-4)


def test_pact_with_a_negative_clip_has_finite_outputs() -> None:
    module = Pact(4)
    with torch.no_grad():
        module.alpha.fill_(-1.0)
    assert bool(module(torch.randn(100)).isfinite().all())


# --- meProp


@pytest.mark.oracle
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.sampled_from([(5,), (2, 3)]), st.booleans())
def test_selective_backpropagation_keeps_the_top_k_gradients_of_each_row(
    seed: int, keep: int, rows: tuple[int, ...], unified: bool
) -> None:
    torch.manual_seed(seed)
    layer, sparse = nn.Linear(4, 6), nn.Linear(4, 6)
    sparse.load_state_dict(layer.state_dict())
    inputs = torch.randn(*rows, 4)
    gradient = torch.randn(*rows, 6)
    flat = [row[:] for row in gradient.reshape(-1, 6).tolist()]
    total = [sum(abs(row[i]) for row in flat) for i in range(6)]
    for row in flat:
        ranking = total if unified else [abs(value) for value in row]
        kept = sorted(range(6), key=lambda i: -ranking[i])[:keep]
        row[:] = [value if i in kept else 0.0 for i, value in enumerate(row)]
    layer(inputs).backward(torch.tensor(flat).view_as(gradient))
    with SelectiveBackpropagation(sparse, keep, layers=[nn.Linear], unified=unified):
        sparse(inputs).backward(gradient)
    torch.testing.assert_close(sparse.weight.grad, layer.weight.grad)
    torch.testing.assert_close(sparse.bias.grad, layer.bias.grad)


def test_recorded_gradients_have_the_share_that_is_kept(tmp_path: Path) -> None:
    model = layers(relu=False)
    inputs, labels = task()
    recipe = SelectiveBackpropagation(model, 0.1)
    assert list(recipe.layers) == ["0", "2"]
    masks = recorded(model, tmp_path / "m", inputs, labels)
    assert masks.density(("0", 0, "G")) == 4 / 40
    assert masks.density(("2", 0, "G")) == 3 / 30
    assert masks.density(("4", 0, "G")) == 1.0
    assert (masks.bits(("0", 0, "G")).sum(1) == 4).all()
    recipe.remove()
    assert recorded(model, tmp_path / "n", inputs, labels).density(("0", 0, "G")) == 1.0


def test_convolutions_keep_their_share_of_each_sample(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Conv2d(4, 8, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(128, 3))
    inputs, labels = torch.randn(5, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1])
    with SelectiveBackpropagation(model, 20, layers=["0", nn.Conv2d]):
        masks = recorded(model, tmp_path / "m", inputs, labels)
    assert (masks.bits(("0", 0, "G")).reshape(5, -1).sum(1) == 20).all()
    assert (masks.bits(("2", 0, "G")).reshape(5, -1).sum(1) <= 20).all()  # the ReLU behind it may leave fewer
    assert masks.density(("2", 0, "G")) > 0.1


def test_training_with_a_tenth_of_the_gradients_trains() -> None:
    model = layers()
    with SelectiveBackpropagation(model, 0.1):
        losses = train(model, torch.optim.Adam(model.parameters(), lr=0.01))
    assert losses[-1] < 0.3 * losses[0]


def test_layers_that_cannot_be_hooked_are_refused() -> None:
    with pytest.raises(BadInput, match="has 1 linear layers"):
        SelectiveBackpropagation(nn.Sequential(nn.Linear(2, 2)), 1)
    with pytest.raises(UnknownName, match="unknown layer '9'"):
        SelectiveBackpropagation(layers(), 1, layers=["9"])
    with pytest.raises(BadInput, match="no layer of"):
        SelectiveBackpropagation(layers(), 1, layers=[nn.Conv2d])
    for keep in (0, -1, 0.0, 1.5, True):
        with pytest.raises(BadInput, match="keep must be"):
            SelectiveBackpropagation(layers(), keep)
    model = nn.LSTM(2, 2)
    with SelectiveBackpropagation(model, 1, layers=[nn.LSTM]), pytest.raises(BadInput, match="puts out tuple"):
        model(torch.randn(3, 1, 2))


# --- the biggest losers


def test_biggest_losers_skips_backward_of_unselected_samples(tmp_path: Path) -> None:
    model = layers(relu=False)
    inputs, labels = task()
    losers = BiggestLosers(beta=2.0, seed=4)
    chosen: list[torch.Tensor] = []

    def train_step() -> None:
        losses = F.cross_entropy(model(inputs), labels, reduction="none")
        chosen.append(losers.select(losses))
        losses[chosen[0]].mean().backward()

    masks = ty.record_masks(train_step, model, path=tmp_path / "m")
    share = float(chosen[0].double().mean())
    assert 0.2 < share < 0.5  # 1 / (1 + beta) on average
    for layer in ("0", "2", "4"):
        rows = masks.bits((layer, 0, "G")).any(1)
        assert rows.tolist() == chosen[0].tolist()
        assert masks.density((layer, 0, "G")) == pytest.approx(share)


def test_selection_probability_is_the_rank_among_recent_losses() -> None:
    losers = BiggestLosers(beta=1.0, history=4)
    counts = torch.zeros(4)
    for _ in range(2000):
        counts += losers.select(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert counts.tolist() == pytest.approx([500, 1000, 1500, 2000], abs=90)
    strict = BiggestLosers(beta=1e9)
    assert strict.select(torch.tensor([1.0, 5.0, 2.0])).tolist() == [False, True, False]
    assert strict.select(torch.tensor([1.0, 4.0])).tolist() == [False, True]  # nobody's turn, so the largest goes
    assert bool(BiggestLosers(beta=0).select(torch.rand(50)).all())


def test_biggest_losers_is_deterministic_and_resumes_from_a_state() -> None:
    losses = [torch.rand(16, generator=torch.Generator().manual_seed(i)) for i in range(6)]
    first, second = BiggestLosers(history=20), BiggestLosers(history=20)
    whole = [first.select(values) for values in losses]
    for values in losses[:3]:
        second.select(values)
    third = BiggestLosers(history=20, seed=9)
    third.load_state_dict(second.state_dict())
    assert all(torch.equal(third.select(values), expected) for values, expected in zip(losses[3:], whole[3:], strict=True))
    assert float(BiggestLosers()(torch.tensor([2.0]))) == 2.0
    with pytest.raises(BadInput, match="reduction='none'"):
        first(torch.tensor(1.0))
    with pytest.raises(BadInput, match="beta=-1"):
        BiggestLosers(beta=-1)


# --- padding


class Tagger(nn.Module):
    """Words in, a tag for each out; attention may or may not be told what is padding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(50, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.wide, self.narrow = nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, tokens: torch.Tensor, absent: torch.Tensor | None) -> torch.Tensor:
        hidden = self.words(tokens)
        hidden = self.norm(hidden + self.attention(hidden, hidden, hidden, key_padding_mask=absent, need_weights=False)[0])
        return self.head(hidden + self.narrow(torch.tanh(self.wide(hidden))))


@pytest.mark.parametrize("length", [None, 20])
def test_padded_rows_have_zero_gradient_in_every_layer(length: int | None, tmp_path: Path) -> None:
    model = Tagger()
    generator = torch.Generator().manual_seed(1)
    words = [torch.randint(1, 50, (n,), generator=generator) for n in (9, 4, 12, 7)]
    tags = [torch.randint(5, (len(w),), generator=generator) for w in words]
    batch = pad(words, length=length)
    size = length or 12
    assert batch.tokens.shape == (4, size)
    assert batch.padded_share == 1 - 32 / (4 * size)

    def train_step() -> None:
        losses = F.cross_entropy(model(batch.tokens, batch.absent).transpose(1, 2), batch.fill(tags), reduction="none")
        batch.mean(losses).backward()

    masks = ty.record_masks(train_step, model, path=tmp_path / "m")
    for layer in ("wide", "narrow", "head"):
        bits = masks.bits((layer, 0, "G"))
        assert bits.reshape(4 * size, -1).any(1).tolist() == batch.real.flatten().tolist()
        assert 1 - masks.density((layer, 0, "G")) == pytest.approx(batch.padded_share)


def test_the_masked_loss_is_that_of_each_sentence_alone() -> None:
    model = Tagger()
    words, tags = [torch.tensor([3, 4, 5]), torch.tensor([6])], [torch.tensor([0, 1, 2]), torch.tensor([3])]
    batch = pad(words, length=6)
    together = batch.mean(
        F.cross_entropy(model(batch.tokens, batch.absent).transpose(1, 2), batch.fill(tags, -100), reduction="none")
    )
    alone = [F.cross_entropy(model(w[None], None)[0], t, reduction="sum") for w, t in zip(words, tags, strict=True)]
    torch.testing.assert_close(together, (alone[0] + alone[1]) / 4)


def test_a_model_that_attends_to_padding_can_be_stopped_at_one_place() -> None:
    batch = pad([torch.randn(5, 16), torch.randn(2, 16)])
    layer = nn.Linear(16, 16)
    below = layer(batch.tokens)
    below.retain_grad()
    hidden = gradient_of_real_tokens(below, batch.real)
    assert torch.equal(hidden, below)
    (hidden.sum(1, keepdim=True) * hidden).sum().backward()  # every token meets every other one
    assert (below.grad != 0).any(2).tolist() == batch.real.tolist()
    assert batch.attention_mask.tolist() == [[1] * 5, [1, 1, 0, 0, 0]]


def test_sequences_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadInput, match="at least one sequence"):
        pad([])
    with pytest.raises(BadInput, match="3 tokens does not fit length=2"):
        pad([torch.tensor([1, 2, 3])], length=2)
    with pytest.raises(BadInput, match="must agree"):
        pad([torch.zeros(2, 3), torch.zeros(2, 4)])
    batch = pad([torch.tensor([1, 2, 3]), torch.tensor([1])])
    with pytest.raises(BadInput, match="as many entries"):
        batch.fill([torch.tensor([1, 2, 3]), torch.tensor([1, 1])])
    with pytest.raises(BadInput, match=r"losses of shape \(2,\)"):
        batch.mean(torch.zeros(2))
    with pytest.raises(BadInput, match="hidden of shape"):
        gradient_of_real_tokens(torch.zeros(3, 3, 4), batch.real)


# --- together


def captured(model: nn.Module) -> ty.Step:
    inputs, labels = task(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return ty.capture(model, inputs, labels, loss=F.cross_entropy, optimizer=optimizer)


def test_models_under_these_recipes_can_be_captured() -> None:
    plain, clipped, selective = layers(), layers(), layers()
    pact(clipped)
    with SelectiveBackpropagation(selective, 0.1):
        actual = captured(selective)
    assert captured(plain).macs == captured(clipped).macs == actual.macs > 0
