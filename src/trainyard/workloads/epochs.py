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


def recorded_steps(steps: str | None, epochs: int | None, steps_per_epoch: int | None, seed: int) -> list[int]:
    """Step numbers from a command line: those that were typed, or one of each epoch."""
    if epochs is None and steps_per_epoch is None:
        return step_numbers("0" if steps is None else steps)
    if steps is not None:
        raise BadInput(f"--steps {steps} names the steps; --epochs and --steps-per-epoch draw them: give one or the other")
    if epochs is None or steps_per_epoch is None:
        raise BadInput("--epochs and --steps-per-epoch go together, as in --epochs 8 --steps-per-epoch 1000")
    return random_batches(epochs, steps_per_epoch, seed)


def step_numbers(text: str) -> list[int]:
    """Step numbers as typed.

    >>> step_numbers("0,100"), step_numbers("0:300:100")
    ([0, 100], [0, 100, 200])
    """
    numbers: list[int] = []
    for piece in text.split(","):
        bounds = piece.strip().split(":")
        if not all(bound.isdigit() for bound in bounds) or len(bounds) > 3:
            raise BadInput(f"--steps {text}: write step numbers like 0,100,200 or 0:1000:100")
        numbers.extend([int(bounds[0])] if len(bounds) == 1 else range(*map(int, bounds)))
    if not numbers:
        raise BadInput(f"--steps {text} names no step")
    return numbers
