"""A mixture of experts as a training step, of any size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trainyard as ty
from trainyard.ir import Step

EXPERTS, WIDTH, HIDDEN, TOP, LENGTH = 8, 16, 24, 2, 12


@dataclass(frozen=True)
class Sizes:
    experts: int = EXPERTS
    width: int = WIDTH
    hidden: int = HIDDEN
    top: int = TOP
    length: int = LENGTH


USUAL = Sizes()


class Mixture(nn.Module):
    """A layer of gated experts between two dense ones; biases of experts are picked by row."""

    def __init__(self, sizes: Sizes, biased: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.sizes = sizes
        self.first, self.last = (nn.Linear(sizes.width, sizes.width, dtype=dtype) for _ in range(2))
        self.router = nn.Linear(sizes.width, sizes.experts, bias=False, dtype=dtype)
        self.up = nn.Parameter(torch.empty(sizes.experts, sizes.width, 2 * sizes.hidden, dtype=dtype))
        self.down = nn.Parameter(torch.empty(sizes.experts, sizes.hidden, sizes.width, dtype=dtype))
        self.up_bias = nn.Parameter(torch.empty(sizes.experts, 2 * sizes.hidden, dtype=dtype)) if biased else None
        self.down_bias = nn.Parameter(torch.empty(sizes.experts, sizes.width, dtype=dtype)) if biased else None

    def forward(self, x: Tensor) -> Tensor:
        top = self.sizes.top
        tokens = self.first(x).reshape(-1, self.sizes.width)
        weights, experts = self.router(tokens).softmax(-1).topk(top, dim=-1)
        sorted_experts, order = experts.reshape(-1).sort()
        counts = torch.histc(sorted_experts.float(), self.sizes.experts, 0, self.sizes.experts - 1)
        ends = counts.cumsum(0).to(torch.int32)
        rows = F.grouped_mm(tokens[order // top], self.up, offs=ends)
        if self.up_bias is not None:
            rows = rows + self.up_bias[sorted_experts]
        gate, up = rows.chunk(2, -1)
        rows = F.grouped_mm(F.silu(gate) * up, self.down, offs=ends)
        if self.down_bias is not None:
            rows.add_(self.down_bias[sorted_experts])
        rows = rows * weights.reshape(-1)[order, None]
        return self.last(torch.zeros_like(tokens).index_add(0, order // top, rows).reshape(x.shape))


def captured(batch: int = 8, sizes: Sizes = USUAL, *, biased: bool = False, dtype: torch.dtype = torch.float32) -> Step:
    """One step of it with AdamW."""
    model = Mixture(sizes, biased, dtype)
    inputs = torch.empty(batch, sizes.length, sizes.width, dtype=dtype)
    return ty.capture(model, inputs, loss=torch.sum, optimizer=torch.optim.AdamW(model.parameters()))
