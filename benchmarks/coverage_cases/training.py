"""Ways to write a training step, from a plain loop to frameworks and process groups.

- training_loops: loops, guards, precision, devices; training_optimizers: optimizers and schedules
- training_losses: what is minimised and how gradients are taken; training_models: models that draw, mask, or change gradients
- training_frameworks: transformers, accelerate, Lightning, peft; training_parallel: replicated, sharded and tensor parallel models
"""

from __future__ import annotations

from coverage_cases.case import Case
from coverage_cases.training_frameworks import FRAMEWORKS
from coverage_cases.training_loops import LOOPS
from coverage_cases.training_losses import LOSSES
from coverage_cases.training_models import MODELS
from coverage_cases.training_optimizers import OPTIMIZERS
from coverage_cases.training_parallel import PARALLEL


def cases() -> list[Case]:
    # Models on a process group come last: the group stays.
    table = {**LOOPS, **OPTIMIZERS, **LOSSES, **MODELS, **FRAMEWORKS, **PARALLEL}
    return [Case("training", name, build) for name, build in table.items()]
