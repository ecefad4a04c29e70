"""What every ImageNet classifier of the zoo shares: 1000 classes, RGB images, cross entropy, SGD with momentum."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainyard.workloads.zoo.recipe import Recipe

CLASSES = 1000


def images(batch: int, height: int, width: int) -> Tensor:
    return torch.randn(batch, 3, height, width)


def labels(batch: int) -> Tensor:
    return torch.randint(0, CLASSES, (batch,))


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD with momentum 0.9; `foreach=False` so that each parameter tensor is one update."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, foreach=False)


def he_initialised(model: nn.Module) -> nn.Module:
    """Convolutions drawn as in K. He et al.: Delving Deep into Rectifiers. ICCV 2015; biases zero.

    Without it the gradients of a deep network without normalisation vanish at the first step.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model


def classifier(
    model: Callable[[], nn.Module], *, size: int = 224, loss: Callable[..., Tensor] = functional.cross_entropy
) -> Recipe:
    return Recipe(
        model=lambda: he_initialised(model()),
        inputs=lambda batch: (images(batch, size, size),),
        targets=lambda batch: (labels(batch),),
        loss=loss,
        optimizer=sgd,
    )
