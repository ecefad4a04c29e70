"""A case: a model at a size that trains in a second, and how its own documentation trains it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

FAMILIES = ("timm", "torchvision", "transformers", "decoders", "experts", "diffusers", "geometric", "training")


@dataclass
class Training:
    """A model with what its training step needs: the arguments of `trainyard.capture`."""

    model: nn.Module
    inputs: Any = None  # tuple | dict | tensor
    targets: Any = None
    loss: Callable[..., Any] | None = None
    optimizer: Optimizer | None = None
    step: Callable[..., Any] | None = None  # a training step of its own, captured as capture(step, model=model); then no inputs
    world_size: int | None = None
    keywords: dict[str, Any] = field(default_factory=dict)  # further keywords of capture


@dataclass(frozen=True)
class Case:
    """One model of one family; `build` imports its library and returns the same model at every call (seeded)."""

    family: str
    name: str  # unique in its family
    build: Callable[[], Training]


def cases_of(family: str) -> list[Case]:
    """The cases of one family, in the order of its file: a module of this folder, or one by its whole name."""
    listed: list[Case] = import_module(family if "." in family else f"coverage_cases.{family}").cases()
    return listed
