"""Recurrent layers of DeepBench. Baidu Research: DeepBench: Benchmarking Deep Learning Operations on Different Hardware. 2017.

The four of Y. Kwon, M. Rhu: Beyond the Memory Wall (MC-DLA). MICRO 2018, Table III, which prints their time steps only.

Decided here:
- Hidden sizes are the smallest of DeepBench's training set for the cell and step count (vanilla 1760 x 50, LSTM 512 x 25 and
  1024 x 25, GRU 1536 x 187), which has three or four for each; inputs are as wide as the hidden state.
- DeepBench measures with cuDNN's "skip input", that is without the product of the input; a layer that trains has it, so have ours.
- The loss is the mean square distance of all hidden states to a target, the least that gives every step a gradient.
- The inputs of a benchmark are data: no gradient flows to them.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.workloads.zoo.objective import adam
from trainyard.workloads.zoo.recipe import Recipe

CELLS: dict[str, type[nn.RNN | nn.LSTM | nn.GRU]] = {"vanilla": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


class RecurrentLayer(nn.Module):
    """One layer over a whole sequence; returns the hidden state of every step (batch, steps, hidden)."""

    def __init__(self, cell: str, hidden: int) -> None:
        super().__init__()
        self.rnn = CELLS[cell](hidden, hidden, batch_first=True)

    def forward(self, sequence: Tensor) -> Tensor:
        states: Tensor = self.rnn(sequence)[0]
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
lstm_2 = partial(recipe, "lstm", hidden=1024, steps=25)
gru = partial(recipe, "gru", hidden=1536, steps=187)
