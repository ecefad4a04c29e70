"""Compute fabrics: stateless, without a clock; a product in, cycles and events out.

Imports parts and the nouns of `ir` alone. A new array is one file with a frozen dataclass that follows `ir.Array`; one whose
cycles are a closed form also offers `folds`, which the tile search evaluates without calling it. One that looks at the zeros of its
operands says so: `operand_aware = True`.
"""

from trainyard.arrays.execution import Execution
from trainyard.arrays.spatial import Spatial
from trainyard.arrays.systolic import Dataflow, Systolic
from trainyard.arrays.tensorcore import TensorCore
from trainyard.arrays.tensordash import TensorDash

__all__ = ["Dataflow", "Execution", "Spatial", "Systolic", "TensorCore", "TensorDash"]
