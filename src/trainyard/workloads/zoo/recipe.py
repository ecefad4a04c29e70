"""What a zoo model's function returns: how to build the model, a batch for it, its loss and its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    Tensors = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One trainable workload. Everything is built on torch's current default device, so that `meta` costs no memory.

    `loss(output, *targets)` returns a scalar; `model(*inputs)` returns `output`. `attention` is how its
    `F.scaled_dot_product_attention` is captured: `open` as separate products, which is how the papers of the accelerators (2018 to
    2023) describe it and which a GPU fuses, or `sdpa` as the kernel that torch takes on CUDA.
    """

    model: Callable[[], nn.Module]
    inputs: Callable[[int], Tensors]
    targets: Callable[[int], Tensors]
    loss: Callable[..., Tensor]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    attention: Literal["open", "sdpa"] = "open"
