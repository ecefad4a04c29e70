"""Compute fabrics: stateless, without a clock; a matrix product in, cycles and events out.

In reading order: `dense` multiplies every pair (systolic, spatial, Tensor Cores); `sigma` and `tensordash` are the two papers'
sparse arrays; `rivals` are the sparse accelerators that SIGMA is compared with; `execution` is what their `execute` methods share.
Imports hardware, masks and the nouns of `ir` alone. A new array is one file with a frozen dataclass that follows `ir.Array`; its
optional capabilities are declared in `ir.protocols`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainyard.lazy import exports

if TYPE_CHECKING:
    from trainyard.arrays.dense.spatial import Spatial
    from trainyard.arrays.dense.systolic import Dataflow, Systolic
    from trainyard.arrays.dense.systolic_units import SystolicUnits
    from trainyard.arrays.dense.tensorcore import TensorCore
    from trainyard.arrays.execution import Execution
    from trainyard.arrays.rivals.cambricon_x import CambriconX
    from trainyard.arrays.rivals.eie import Eie
    from trainyard.arrays.rivals.eyeriss_v2 import EyerissV2
    from trainyard.arrays.rivals.outerspace import OuterSpace
    from trainyard.arrays.rivals.packed_systolic import PackedSystolic
    from trainyard.arrays.rivals.scnn import Scnn
    from trainyard.arrays.sigma.array import Sigma
    from trainyard.arrays.tensordash.array import TensorDash

__all__ = [
    "CambriconX", "Dataflow", "Eie", "Execution", "EyerissV2", "OuterSpace", "PackedSystolic", "Scnn", "Sigma",
    "Spatial", "Systolic", "SystolicUnits", "TensorCore", "TensorDash",
]  # fmt: skip

__getattr__ = exports(
    __name__,
    {
        "CambriconX": "rivals.cambricon_x",
        "Dataflow": "dense.systolic",
        "Eie": "rivals.eie",
        "Execution": "execution",
        "EyerissV2": "rivals.eyeriss_v2",
        "OuterSpace": "rivals.outerspace",
        "PackedSystolic": "rivals.packed_systolic",
        "Scnn": "rivals.scnn",
        "Sigma": "sigma.array",
        "Spatial": "dense.spatial",
        "Systolic": "dense.systolic",
        "SystolicUnits": "dense.systolic_units",
        "TensorCore": "dense.tensorcore",
        "TensorDash": "tensordash.array",
    },
)
