"""Logistic regression over 4096 dense features, the linear model of the PIM machines.

S. Rhyner et al.: PIM-Opt: Demystifying Distributed Optimization Algorithms on a Real-World Processing-In-Memory System. PACT 2024;
the linear model of DIRECT (YFCC100M-HNfc6).

Decided here:
- No bias: PIM-Opt's message of 16 KiB is exactly 4096 parameters of 4 bytes.
- Mini-batch SGD without momentum, as the DPUs run it; batch 8 per DPU.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.workloads.zoo.objective import plain_sgd
from trainyard.workloads.zoo.recipe import Recipe

FEATURES = 4096  # PIM-Opt: YFCC100M-HNfc6


class LogisticRegression(nn.Module):
    """Returns one logit per sample (batch,)."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.fc = nn.Linear(features, 1, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.fc(features)
        return logits.squeeze(-1)


def linear(*, features: int = FEATURES) -> Recipe:
    return Recipe(
        model=lambda: LogisticRegression(features),
        inputs=lambda batch: (torch.randn(batch, features),),
        targets=lambda batch: (torch.randint(2, (batch,)).float(),),
        loss=F.binary_cross_entropy_with_logits,
        optimizer=plain_sgd,
    )
