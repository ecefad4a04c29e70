"""Recurrent layers of DeepBench. Baidu Research: DeepBench: Benchmarking Deep Learning Operations on Different Hardware. 2017.

The four of Y. Kwon, M. Rhu: Beyond the Memory Wall (MC-DLA). MICRO 2018, Table III, which prints their kinds, applications and time
steps only, and `lstm_1024`, a layer of torch with the product of its input, which was measured on a GPU.

Decided here:
- Hidden sizes are those of DeepBench's training set: vanilla 1760 x 50, GRU 1536 x 187 and, of three LSTMs for machine translation,
  512 x 25 are the smallest for the cell and step count; 4096 x 25 is its only LSTM for language modelling. Inputs are as wide as
  the hidden state.
- DeepBench measures with cuDNN's "skip input": the product of the input is left out, and x_t is added to every gate as it is. The
  four cells do the same, with one bias.
- The loss is the mean square distance of all hidden states to a target, the least that gives every step a gradient.
- The inputs of a benchmark are data: no gradient flows to them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.workloads.zoo.objective import adam
from trainyard.workloads.zoo.recipe import Recipe


class SkipInput(nn.Module):
    """A recurrent cell over a whole sequence (batch, steps, hidden), without a product of the input; returns all hidden states."""

    gates: int

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(self.gates * hidden, hidden))
        self.bias = nn.Parameter(torch.empty(self.gates * hidden))
        for parameter in (self.weight, self.bias):
            nn.init.uniform_(parameter, -1 / math.sqrt(hidden), 1 / math.sqrt(hidden))

    def forward(self, sequence: Tensor) -> Tensor:
        state = torch.zeros_like(sequence[:, 0])
        memory = torch.zeros_like(state)
        states = []
        for now in sequence.unbind(1):
            state, memory = self.cell(now, F.linear(state, self.weight, self.bias), state, memory)
            states.append(state)
        return torch.stack(states, 1)

    @abstractmethod
    def cell(self, now: Tensor, product: Tensor, state: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """One time step: the next hidden state and the next memory, from the input and the product of the state."""


class Vanilla(SkipInput):
    """h = tanh(x + W h + b)."""

    gates = 1

    def cell(self, now: Tensor, product: Tensor, state: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(product + now), memory


class Lstm(SkipInput):
    """Gates i, f, g, o of x + W h + b; c = f c + i g, h = o tanh(c)."""

    gates = 4

    def cell(self, now: Tensor, product: Tensor, state: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        enter, forget, new, leave = (gate + now for gate in product.chunk(self.gates, 1))
        memory = torch.sigmoid(forget) * memory + torch.sigmoid(enter) * torch.tanh(new)
        return torch.sigmoid(leave) * torch.tanh(memory), memory


class Gru(SkipInput):
    """Gates r, z of x + W h + b; n = tanh(x + r (W h + b)), h = n + z (h - n)."""

    gates = 3

    def cell(self, now: Tensor, product: Tensor, state: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        reset, update, new = product.chunk(self.gates, 1)
        new = torch.tanh(torch.sigmoid(reset + now) * new + now)
        return new + torch.sigmoid(update + now) * (state - new), memory


class Torch(nn.LSTM):
    """torch's own layer, with the product of its input; returns all hidden states."""

    def forward(self, sequence: Tensor) -> Tensor:  # type: ignore[override]
        states: Tensor = super().forward(sequence)[0]
        return states


CELLS: dict[str, Callable[[int], nn.Module]] = {
    "vanilla": Vanilla,
    "lstm": Lstm,
    "gru": Gru,
    "lstm of torch": lambda hidden: Torch(hidden, hidden, batch_first=True),
}


class RecurrentLayer(nn.Module):
    """One layer over a whole sequence; returns the hidden state of every step (batch, steps, hidden)."""

    def __init__(self, cell: str, hidden: int) -> None:
        super().__init__()
        self.rnn = CELLS[cell](hidden)

    def forward(self, sequence: Tensor) -> Tensor:
        states: Tensor = self.rnn(sequence)
        return states


def recipe(cell: str, *, hidden: int, steps: int) -> Recipe:
    return Recipe(
        model=lambda: RecurrentLayer(cell, hidden),
        inputs=lambda batch: (torch.randn(batch, steps, hidden),),
        targets=lambda batch: (torch.randn(batch, steps, hidden),),
        loss=F.mse_loss,
        optimizer=adam,
    )


# Steps: MC-DLA, Table III. Hidden sizes: DeepBench's training set, see above.
rnn_gemv = partial(recipe, "vanilla", hidden=1760, steps=50)
lstm_1 = partial(recipe, "lstm", hidden=512, steps=25)
lstm_2 = partial(recipe, "lstm", hidden=4096, steps=25)
gru = partial(recipe, "gru", hidden=1536, steps=187)
lstm_1024 = partial(recipe, "lstm of torch", hidden=1024, steps=25)
