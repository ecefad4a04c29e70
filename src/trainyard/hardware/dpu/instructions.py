"""Instructions of an operation on a DPU without multipliers: software arithmetic, derived from measured rates.

J. Gomez-Luna et al.: Benchmarking a New Paradigm: Experimental Analysis and Characterization of a Real Processing-in-Memory System
(PrIM). IEEE Access 10, 2022. Its loop loads an element, operates, stores it, and spends three instructions on index, address and
branch; a full pipeline ends one instruction in a cycle, so that an operation takes

    instructions = clock / measured rate - (load + store + loop)

which is 1 for an addition of 32-bit integers, and tens to hundreds for the library routines of multiplication and floating point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainyard.errors import UnknownName

LOAD, STORE, LOOP = 1, 1, 3  # PrIM: six instructions for one element of the addition loop, the addition among them
MEASURED_CLOCK_HZ = 350e6  # PrIM: the system of 2556 DPUs


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured rate of one operation on one DPU, all tasklets together, in millions per second."""

    number: str
    operation: str
    mops: float
    source: str


PRIM = "Gomez-Luna et al., IEEE Access 2022: arithmetic throughput of one DPU"
QUOTED = "assumed: as quoted from Gomez-Luna et al., IEEE Access 2022; the paper was not at hand"
# fmt: off
PUBLISHED: tuple[Measured, ...] = (
    Measured("int32", "add",      58.6,  PRIM),
    Measured("int32", "multiply", 10.3,  PRIM + ": by steps of a shift and an addition"),
    Measured("int32", "divide",   11.27, QUOTED),
    Measured("fp32",  "add",       4.91, PRIM + ": library routine"),
    Measured("fp32",  "multiply",  1.91, PRIM + ": library routine"),
    Measured("fp32",  "divide",    0.34, QUOTED),
)
# fmt: on


def instructions_of(number: str, operation: str) -> int:
    """Instructions of one operation, from its published rate.

    >>> [instructions_of(*row) for row in (("int32", "add"), ("int32", "multiply"), ("fp32", "add"), ("fp32", "multiply"))]
    [1, 29, 66, 178]
    """
    for row in PUBLISHED:
        if (row.number, row.operation) == (number, operation):
            return round(MEASURED_CLOCK_HZ / (row.mops * 1e6)) - LOAD - STORE - LOOP
    raise UnknownName("operation", f"{number} {operation}", [f"{row.number} {row.operation}" for row in PUBLISHED])


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """Instructions of each operation in one number format. `rescale` brings a fixed-point product back to its format.

    `lookup` is a function read from a table (0: there is no table, the function is computed).
    """

    add: int
    multiply: int
    divide: int
    compare: int
    rescale: int = 0
    lookup: int = 0

    @property
    def mac(self) -> int:
        """A multiply-accumulate of a loop: two loads, a multiplication, an addition to a register, and the loop."""
        return 2 * LOAD + self.multiply_add + LOOP

    @property
    def multiply_add(self) -> int:
        return self.multiply + self.rescale + self.add

    def function(self, operations: int) -> int:
        """A function such as the sigmoid, read from a table or as a series of `operations` steps (Horner) and a division."""
        return self.lookup or operations * self.multiply_add + self.divide


# fmt: off
ARITHMETIC: Mapping[str, Arithmetic] = {
    "fp32": Arithmetic(
        add      = instructions_of("fp32", "add"),
        multiply = instructions_of("fp32", "multiply"),
        divide   = instructions_of("fp32", "divide"),
        compare  = 4,   # assumed: signs apart, then as integers
    ),
    "fixed32": Arithmetic(
        add      = instructions_of("int32", "add"),
        multiply = instructions_of("int32", "multiply"),  # operands are scaled so that their product fits 32 bits
        divide   = instructions_of("int32", "divide"),
        compare  = 1,   # one instruction of the integer unit
        rescale  = 1,   # one arithmetic shift
        lookup   = 8,   # assumed: sign, range, index, load, mirror (PIM-Opt reads its sigmoid from a table as well)
    ),
}
# fmt: on


def arithmetic(number: str) -> Arithmetic:
    """
    >>> round(MEASURED_CLOCK_HZ / arithmetic("fp32").mac / 1e6, 2), round(MEASURED_CLOCK_HZ / arithmetic("fixed32").mac / 1e6, 2)
    (1.41, 9.72)
    """
    if number not in ARITHMETIC:
        raise UnknownName("number format", str(number), ARITHMETIC, where="the software arithmetic of a DPU")
    return ARITHMETIC[number]
