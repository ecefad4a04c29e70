"""Trainyard: run one training step of your PyTorch model on an accelerator that does not exist yet.

Names are resolved when first used (PEP 562), so that `import trainyard` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trainyard._version import VERSION as __version__

if TYPE_CHECKING:
    from trainyard import arrays, devices, engine, ir, live, mapping, papers, systems, training, units
    from trainyard import hardware as parts
    from trainyard.devices import Accelerator, Gpu
    from trainyard.errors import TrainyardError
    from trainyard.ir import DENSE, Convolution, Density, MatMul, Op, Phase, Step, TensorSpec
    from trainyard.live.measurement.measure import measure
    from trainyard.machines import machine
    from trainyard.mapping import algorithms
    from trainyard.masks.generated import generated_masks
    from trainyard.masks.recorded import Masks
    from trainyard.results import result as results
    from trainyard.results.result import Result
    from trainyard.runs import compare, run
    from trainyard.sensitivity import whatif
    from trainyard.sweep.running import sweep
    from trainyard.workloads import zoo
    from trainyard.workloads.capture import capture
    from trainyard.workloads.recording import record_masks

# fmt: off
_HOME = {
    "capture": "trainyard.workloads.capture", "record_masks": "trainyard.workloads.recording", "Masks": "trainyard.masks.recorded",
    "generated_masks": "trainyard.masks.generated",
    "run": "trainyard.runs", "compare": "trainyard.runs", "whatif": "trainyard.sensitivity",
    "measure": "trainyard.live.measurement.measure", "machine": "trainyard.machines",
    "Accelerator": "trainyard.devices", "Gpu": "trainyard.devices",
    "Result": "trainyard.results.result", "TrainyardError": "trainyard.errors",
    **dict.fromkeys(("DENSE", "Convolution", "Density", "MatMul", "Op", "Phase", "Step", "TensorSpec"), "trainyard.ir"),
}
_ROOMS = (
    "arrays", "devices", "engine", "hardware", "ir", "live", "mapping", "masks", "papers", "results", "sweep",
    "systems", "training", "units",
)
_FAR = {
    "zoo": "trainyard.workloads.zoo", "algorithms": "trainyard.mapping.algorithms",
    "parts": "trainyard.hardware",  # its name until 0.2
}
# fmt: on

__all__ = [
    "DENSE", "Accelerator", "Convolution", "Density", "Gpu", "Masks", "MatMul", "Op", "Phase", "Result", "Step", "TensorSpec",
    "TrainyardError", "__version__", "algorithms", "arrays", "capture", "compare", "devices", "engine",
    "generated_masks", "hardware", "ir",
    "live", "machine", "mapping", "masks", "measure", "papers", "parts", "record_masks", "results", "run", "sweep", "systems",
    "training", "units", "whatif", "zoo",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(_imported(_HOME[name], name), name)
    elif name in _FAR:
        value = import_module(_FAR[name])
    elif name in _ROOMS:
        value = _imported(f"trainyard.{name}", name)
    else:
        raise AttributeError(f"module 'trainyard' has no attribute {name!r}")
    globals()[name] = value
    return value


def _imported(module: str, name: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from trainyard.errors import MissingExtra

        raise MissingExtra("torch", "torch", f"trainyard.{name}") from None


def __dir__() -> list[str]:
    return __all__
