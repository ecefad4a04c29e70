"""Mixtral: every token through its own two experts, on real numbers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from trainyard.workloads.zoo.language import mixtral

SMALL = mixtral.Size(layers=2, width=32, heads=4, key_heads=2, head_width=8, hidden=48, experts=8, chosen=2)


def test_sorted_rows_through_grouped_products_are_each_token_through_its_experts() -> None:
    torch.manual_seed(0)
    mixture = mixtral.Mixture(SMALL)
    hidden = torch.randn(3, 7, SMALL.width)
    scores, experts = mixture.gate(hidden).topk(2, dim=-1)
    weights, own = scores.softmax(-1), mixture.experts
    expected = torch.zeros_like(hidden)
    for place in torch.cartesian_prod(torch.arange(3), torch.arange(7)).tolist():
        token = hidden[*place]
        for weight, expert in zip(weights[*place], experts[*place].tolist(), strict=True):
            inner = F.silu(token @ own.w1[expert]) * (token @ own.w3[expert])
            expected[*place] += weight * (inner @ own.w2[expert])
    torch.testing.assert_close(mixture(hidden), expected)


def test_a_real_step_lowers_the_loss_and_gives_every_parameter_a_gradient() -> None:
    torch.manual_seed(0)
    recipe = mixtral.recipe(SMALL, vocabulary=61, sequence=9, dtype=torch.float32)
    model = recipe.model()
    inputs, targets = recipe.inputs(3), recipe.targets(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = recipe.loss(model(*inputs), *targets)
        loss.backward()
        assert [name for name, p in model.named_parameters() if p.grad is None] == []
        optimizer.step()
        losses.append(loss.item())
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0]


def test_no_word_sees_the_next_and_positions_matter() -> None:
    torch.manual_seed(0)
    recipe = mixtral.recipe(SMALL, vocabulary=61, sequence=9, dtype=torch.float32)
    model = recipe.model().eval()
    (tokens,) = recipe.inputs(2)
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 61
    with torch.no_grad():
        difference = (model(tokens) - model(changed)).abs().amax(dim=(0, 2))
        swapped = model(tokens[:, [1, 0, *range(2, 9)]])
        moved = (model(tokens)[:, -1] - swapped[:, -1]).abs().max()
    assert difference[:5].max() < 1e-5
    assert (difference[5:] > 1e-5).any()
    assert moved > 1e-6
