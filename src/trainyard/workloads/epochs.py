"""Masks over epochs: one randomly chosen batch of each epoch is traced, as TensorDash did (MICRO 2020, Sec. IV-A).

The numbers go to `record_masks(steps=...)`; on the command line, `trainyard record --epochs 8 --steps-per-epoch 100`.
"""

from __future__ import annotations

import random

from trainyard.errors import BadInput


def random_batches(epochs: int, steps_per_epoch: int, seed: int = 0) -> list[int]:
    """The number of one training step of each epoch, drawn with `seed`.

    >>> [number // 100 for number in random_batches(epochs=4, steps_per_epoch=100, seed=7)]
    [0, 1, 2, 3]
    """
    for name, value in (("epochs", epochs), ("steps_per_epoch", steps_per_epoch)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadInput(f"{name} must be a whole number of at least 1, got {value!r}")
    draw = random.Random(seed)
    return [epoch * steps_per_epoch + draw.randrange(steps_per_epoch) for epoch in range(epochs)]
