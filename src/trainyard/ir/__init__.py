"""The values that all packages share, and the protocols of arrays, devices and systems.

In reading order: `ops` (what an op computes), `routing` (grouped products), `step` (ops over tensors), `serial` (steps as JSON),
`attention` (the form of each attention); `operands` (what is known of zeros), `letters` (the tensor of each operand), `windows`
(geometry of a convolution), `folds` (closed forms of array cycles); `protocols` (Array, Device, System and their optional
capabilities), `assumptions`; `plan` (tasks on streams and links), `booking` (the rows that a plan's time belongs to). Frozen
values; imports only errors and units. A new kind of op is a body in `ops`.
"""

from trainyard.ir.assumptions import Assumption, assumed, assumptions_of
from trainyard.ir.operands import DENSE, TWO_FOUR, Dense, Density, Letter, MaskSource, MaskView, Operand, Structured, TensorKey
from trainyard.ir.ops import (
    Body,
    Collective,
    Convolution,
    Copy,
    ElementWise,
    Gather,
    MatMul,
    ProductBody,
    Reduction,
    Update,
)
from trainyard.ir.plan import Plan, TaskClass
from trainyard.ir.protocols import (
    Array,
    ArrayCost,
    Device,
    DeviceCost,
    Direction,
    Grouping,
    Masks,
    Product,
    System,
    Work,
    one_after_another,
)
from trainyard.ir.routing import Routing
from trainyard.ir.step import DTYPE_BYTES, Layout, Op, Phase, Role, Step, TensorSpec

__all__ = [
    "DENSE", "DTYPE_BYTES", "TWO_FOUR", "Array", "ArrayCost", "Assumption", "Body", "Collective", "Convolution", "Copy",
    "Dense", "Density", "Device", "DeviceCost", "Direction", "ElementWise", "Gather", "Grouping", "Layout", "Letter",
    "MaskSource", "MaskView", "Masks", "MatMul", "Op", "Operand", "Phase", "Plan", "Product", "ProductBody", "Reduction",
    "Role", "Routing", "Step", "Structured", "System", "TaskClass", "TensorKey", "TensorSpec", "Update", "Work", "assumed",
    "assumptions_of", "one_after_another",
]  # fmt: skip
