"""Fig. 15: one layer with zeros at random, ten tensors for each level of sparsity, all three operations.

The paper takes "the third convolution layer" of SqueezeNet. The third in order, fire2's 1x1 expansion, has 16 channels: streams of
4 steps, of which no schedule makes 1.23x at 20 %. The fourth, fire2's 3x3 expansion, has 36, 144 and 729 steps (of 54 x 54 maps)
and is the only one nearby that can. It is used here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import fmean

from trainyard.ir import Step
from trainyard.masks.generated import GeneratedMasks, generated_masks
from trainyard.papers.ledger import Experiments, Measured
from trainyard.papers.tensordash.energies import chip_efficiency, core_efficiency, core_share
from trainyard.papers.tensordash.models import OPERATIONS, Subject
from trainyard.papers.tensordash.potential import potential
from trainyard.papers.tensordash.products import speedup
from trainyard.papers.tensordash.sweeps import PAPER
from trainyard.workloads import zoo

LAYER = "features.3.expand3x3"
THIRD = "features.3.expand1x1"
LEVELS = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 99.0, 99.99)
"""Per cent of zeros. Sec. IV-D: from 10 to 99.99 %; assumed: steps of ten, and the 99 % of the text."""
SAMPLES = 10  # Sec. IV-D: 10 tensor samples for each level


@cache
def _layers() -> tuple[Step, GeneratedMasks]:
    step = zoo.load("squeezenet", batch=1)
    return step, generated_masks(step, {})


@cache
def tensors(level: float, seed: int, layer: str = LAYER) -> Subject:
    """One sample: A and G of the layer, each with that share of zeros."""
    step, dense = _layers()
    masks = replace(dense, sparsity={"A": level / 100, "G": level / 100}, seed=seed)
    return Subject("SQZNet", step, masks, f"{level:g} % zeros at random", only=frozenset({layer}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One point of the figure, the mean of its samples."""

    sparsity: float
    ideal: float
    speedup: float
    deviation: float
    by_operation: Mapping[str, float]
    core: float
    chip: float
    share: float


@cache
def level(sparsity: float) -> Level:
    """Energies are those of the first sample: they differ between samples no more than speedups do."""
    subjects = [tensors(sparsity, seed) for seed in range(SAMPLES)]
    each = [speedup(subject, PAPER) for subject in subjects]
    mean = fmean(each)
    return Level(
        sparsity=sparsity,
        ideal=fmean(potential(subject) for subject in subjects),
        speedup=mean,
        deviation=max(abs(one / mean - 1) for one in each),
        by_operation={wanted: fmean(speedup(subject, PAPER, wanted) for subject in subjects) for wanted in OPERATIONS.values()},
        core=core_efficiency(subjects[0], PAPER),
        chip=chip_efficiency(subjects[0], PAPER),
        share=core_share(subjects[0], PAPER),
    )


def at(sparsity: float) -> Measured:
    point = level(sparsity)
    details = ", ".join(f"{name} {value:.2f}" for name, value in point.by_operation.items()) + "."
    if sparsity == 20:
        third = fmean(speedup(tensors(sparsity, seed, THIRD), PAPER) for seed in range(SAMPLES))
        details += f" The layer that is third in order, a 1x1, gives {third:.2f}."
    return Measured(point.speedup, note=f"Layer fire2 expand3x3, mean of {SAMPLES} tensors.", details=details)


def ideal_20() -> Measured:
    return Measured(level(20.0).ideal, note="All MACs over those whose targeted operand is not zero, padding included.")


def max_deviation() -> Measured:
    worst = max((level(sparsity) for sparsity in LEVELS), key=lambda point: point.deviation)
    note = f"The largest of {SAMPLES} samples at each of {len(LEVELS)} levels, at {worst.sparsity:g} % zeros."
    return Measured(100 * worst.deviation, note=note)


def core_energy_limit() -> Measured:
    point = level(99.99)
    return Measured(point.core, note=f"Speedup {point.speedup:.3f} at 99.99 % zeros, core power from the rows of Table IV.")


def chip_energy_limit() -> Measured:
    point = level(99.99)
    return Measured(
        point.chip,
        note=f"The core is {100 * point.share:.0f} % of the baseline's energy for this layer; 2.1x would need 72 %.",
        details=f"The core alone gains {point.core:.2f}x; memories are those of our RAM and LPDDR4 tables.",
    )


# fmt: off
EXPERIMENTS: Experiments = {
    "tensordash.random.20":                partial(at, 20.0),
    "tensordash.random.90":                partial(at, 90.0),
    "tensordash.random.99":                partial(at, 99.0),
    "tensordash.random.ideal_20":          ideal_20,
    "tensordash.random.max_deviation":     max_deviation,
    "tensordash.random.core_energy_limit": core_energy_limit,
    "tensordash.random.chip_energy_limit": chip_energy_limit,
}
# fmt: on
