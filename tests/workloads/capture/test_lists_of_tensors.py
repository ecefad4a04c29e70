"""`torch.tensor` of a list of tensors: their values where they are known, the shape alone where they are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainyard import capture

answers: list[Any] = []


class Listed(nn.Module):
    """Makes a tensor of the sums of the rows of its ids, or of its hidden values."""

    def __init__(self, known: bool) -> None:
        super().__init__()
        self.words, self.known = nn.Embedding(50, 8), known

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.words(ids)
        rows = [ids[0].sum(), ids[1].sum()] if self.known else [hidden[0].sum(), hidden[1].sum()]
        made = torch.tensor([rows, rows], device=ids.device)
        answers.append((tuple(made.shape), made.dtype, made.tolist() if self.known else None))
        return hidden.sum() + made.sum()


@pytest.mark.parametrize("known", [True, False])
def test_a_tensor_of_a_list_of_tensors_is_as_in_torch(known: bool) -> None:
    ids = torch.tensor([[1, 2, 3], [7, 8, 9]])
    model = Listed(known)
    answers.clear()
    model(ids)
    expected = answers.pop()
    step = capture(model, ids, loss=lambda output: output)
    assert answers[0] == expected
    assert step.parameters == 400
