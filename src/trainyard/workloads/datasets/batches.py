"""Batches of a source: each epoch has a new order of all samples, drawn from the seed; the step number determines the batch.

A training step that is passed its number (as `record_masks` does) can therefore be repeated with the same batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

Indices = npt.NDArray[np.int64]


@lru_cache(maxsize=4)  # every step of an epoch needs it
def _order(samples: int, seed: int, epoch: int) -> Indices:
    order: Indices = np.random.default_rng((seed, epoch)).permutation(samples)
    order.flags.writeable = False
    return order


class Source(Protocol):
    """Where samples come from. `stand_in` is True where they are generated in place of a published data set."""

    @property
    def name(self) -> str: ...
    @property
    def stand_in(self) -> bool: ...
    @property
    def samples(self) -> int: ...
    def take(self, indices: Indices) -> tuple[Any, ...]:
        """Arrays or tensors, inputs before targets, whose first dimension is the requested samples."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """`samples` of a source from number `first` on: what is trained on, and what is held out."""

    source: Source
    first: int
    samples: int

    def __post_init__(self) -> None:
        if self.first < 0 or self.samples < 1 or self.first + self.samples > self.source.samples:
            raise BadInput(
                f"{self.source.name} has samples 0 to {self.source.samples - 1}, not {self.samples} from number {self.first} on"
            )

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def stand_in(self) -> bool:
        return self.source.stand_in

    def take(self, indices: Indices) -> tuple[Any, ...]:
        return self.source.take(indices + self.first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Whole batches of a source on a device; what is left of an epoch is dropped.

    >>> class Squares:
    ...     name, stand_in, samples = "squares", True, 10
    ...     def take(self, indices): return (indices, indices**2)
    >>> batches = Batches(source=Squares(), batch=4, seed=1)
    >>> batches.steps_per_epoch
    2
    >>> sorted(int(x) for step in range(2) for x in batches.numbers(step)) == sorted(set(map(int, batches.epoch_order(0)[:8])))
    True
    """

    source: Source
    batch: int
    seed: int = 0
    device: str | None = None

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise BadInput(f"batch must be at least 1, got {self.batch}")
        if self.source.samples < self.batch:
            raise BadInput(f"{self.source.name} has {self.source.samples} samples, fewer than a batch of {self.batch}")

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def stand_in(self) -> bool:
        return self.source.stand_in

    @property
    def samples(self) -> int:
        return self.source.samples

    @property
    def steps_per_epoch(self) -> int:
        return self.source.samples // self.batch

    def epoch_order(self, epoch: int) -> Indices:
        return _order(self.source.samples, self.seed, epoch)

    def numbers(self, step: int) -> Indices:
        """Which samples training step `step` reads."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        return self.epoch_order(epoch)[batch * self.batch : (batch + 1) * self.batch]

    def at(self, step: int) -> tuple[Tensor, ...]:
        return self._tensors(self.source.take(self.numbers(step)))

    def epoch(self, number: int) -> Iterator[tuple[Tensor, ...]]:
        order = self.epoch_order(number)
        for batch in range(self.steps_per_epoch):
            yield self._tensors(self.source.take(order[batch * self.batch : (batch + 1) * self.batch]))

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return self.epoch(0)

    def _tensors(self, arrays: Sequence[Any]) -> tuple[Tensor, ...]:
        import torch

        return tuple(torch.as_tensor(array, device=self.device) for array in arrays)
