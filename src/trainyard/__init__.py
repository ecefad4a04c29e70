"""Trainyard: run one training step of your PyTorch model on an accelerator that does not exist yet.

Names are resolved when first used (PEP 562), so that `import trainyard` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainyard._version import VERSION as __version__
from trainyard.lazy import exports

if TYPE_CHECKING:
    from trainyard import arrays, devices, engine, ir, live, mapping, papers, systems, training, units
    from trainyard import hardware as parts
    from trainyard.devices import Accelerator, Gpu
    from trainyard.errors import TrainyardError
    from trainyard.ir import DENSE, Convolution, Density, MatMul, Op, Phase, Step, TensorSpec
    from trainyard.live.measurement.measure import measure
    from trainyard.machines import machine
    from trainyard.mapping import algorithms
    from trainyard.mapping.levels.level import Level
    from trainyard.masks.generated import generated_masks
    from trainyard.masks.recorded import Masks
    from trainyard.memory_plans import plan_memory
    from trainyard.results import result as results
    from trainyard.results.result import Result
    from trainyard.runs import compare, diff, run, summary
    from trainyard.sensitivity import whatif
    from trainyard.sweep.running import sweep
    from trainyard.workloads import zoo
    from trainyard.workloads.capture import capture
    from trainyard.workloads.recording import record_masks

__all__ = [
    "DENSE", "Accelerator", "Convolution", "Density", "Gpu", "Level", "Masks", "MatMul", "Op", "Phase", "Result", "Step",
    "TensorSpec", "TrainyardError", "__version__", "algorithms", "arrays", "capture", "compare", "devices", "diff", "engine",
    "generated_masks", "hardware", "ir", "live", "machine", "mapping", "masks", "measure", "papers", "parts", "plan_memory",
    "record_masks", "results", "run", "summary", "sweep", "systems", "training", "units", "whatif", "zoo",
]  # fmt: skip

# fmt: off
_HOMES = {
    "capture": "workloads.capture", "record_masks": "workloads.recording", "Masks": "masks.recorded",
    "generated_masks": "masks.generated",
    "run": "runs", "compare": "runs", "summary": "runs", "diff": "runs", "whatif": "sensitivity", "plan_memory": "memory_plans",
    "measure": "live.measurement.measure", "machine": "machines",
    "Accelerator": "devices", "Gpu": "devices", "Level": "mapping.levels.level",
    "Result": "results.result", "TrainyardError": "errors",
    **dict.fromkeys(("DENSE", "Convolution", "Density", "MatMul", "Op", "Phase", "Step", "TensorSpec"), "ir"),
}
_MODULES = {
    "zoo": "workloads.zoo", "algorithms": "mapping.algorithms",
    "parts": "hardware",  # its name until 0.2
}
# fmt: on
__getattr__ = exports(__name__, _HOMES, _MODULES)


def __dir__() -> list[str]:
    return __all__
