"""Time to train: what a result costs over all steps of a training run.

Every step is taken to cost what the simulated one does; the last batch of an epoch, which may not be full, counts as a whole step.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trainyard.checks import require_positive
from trainyard.units import show

if TYPE_CHECKING:
    from trainyard.results.result import Result

LONG_UNITS = (("days", 86400.0), ("h", 3600.0), ("min", 60.0))
KILOWATT_HOUR = 3.6e6


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCost:
    """A training run of `epochs` over `samples`: its optimizer steps, their time (with the range of the step's) and energy."""

    samples: int
    epochs: int
    steps: int
    time_s: float
    time_range_s: tuple[float, float] | None
    energy_j: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def duration(self) -> str:
        """The time with its range: `3.2 days (3.0-3.9)`."""
        unit, size = next(((unit, size) for unit, size in LONG_UNITS if self.time_s >= 2 * size), ("s", 1.0))
        if unit == "s" and self.time_s < 1:
            return show(self.time_s, "s")
        time, low, high = (f"{seconds / size:.3g}" for seconds in (self.time_s, *(self.time_range_s or (0.0, 0.0))))
        return f"{time} {unit}" if low == high else f"{time} {unit} ({low}-{high})"

    @property
    def energy(self) -> str:
        """Joules, in kilowatt hours where they are many."""
        return f"{self.energy_j / KILOWATT_HOUR:.3g} kWh" if self.energy_j >= KILOWATT_HOUR else show(self.energy_j, "J")

    def __str__(self) -> str:
        run = f"{self.epochs:,} epochs of {self.samples:,} samples" if self.epochs > 1 else f"{self.samples:,} samples"
        return f"{run}: {self.steps:,} steps, {self.duration}" + (f", {self.energy}" if self.energy_j else "")


def training_cost(result: Result, samples: int, epochs: int) -> TrainingCost:
    """The steps of all epochs at the cost of one."""
    require_positive("time to train", samples=samples, epochs=epochs)
    steps = epochs * math.ceil(samples * result.steps / result.samples)
    low_high = None if result.range_s is None else (steps * result.range_s[0], steps * result.range_s[1])
    return TrainingCost(
        samples=samples,
        epochs=epochs,
        steps=steps,
        time_s=steps * result.time_s,
        time_range_s=low_high,
        energy_j=steps * result.energy_j,
    )
