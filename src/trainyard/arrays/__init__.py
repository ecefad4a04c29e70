"""Compute fabrics: stateless, without a clock; a product in, cycles and events out.

Imports parts and the nouns of `ir` alone. A new array is one file with a frozen dataclass that follows `ir.Array`; one whose
cycles are a closed form also offers `folds`, which the tile search evaluates without calling it. One that looks at the zeros of its
operands says so: `operand_aware = True`.
"""

from trainyard.arrays.cambricon_x import CambriconX
from trainyard.arrays.eie import Eie
from trainyard.arrays.execution import Execution
from trainyard.arrays.eyeriss_v2 import EyerissV2
from trainyard.arrays.outerspace import OuterSpace
from trainyard.arrays.packed_systolic import PackedSystolic
from trainyard.arrays.scnn import Scnn
from trainyard.arrays.sigma import Sigma
from trainyard.arrays.spatial import Spatial
from trainyard.arrays.systolic import Dataflow, Systolic
from trainyard.arrays.tensorcore import TensorCore
from trainyard.arrays.tensordash import TensorDash

__all__ = [
    "CambriconX", "Dataflow", "Eie", "Execution", "EyerissV2", "OuterSpace", "PackedSystolic", "Scnn", "Sigma", "Spatial",
    "Systolic", "TensorCore", "TensorDash",
]  # fmt: skip
