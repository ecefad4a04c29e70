"""AGAU, the atomic gradient accumulation unit of a cluster: it sums what the DPUs of its cluster send, and averages it.

P. Kulkarni: DIRECT: Enabling Scalable Processing-In-Memory via DPU-to-DPU Communication, Sec. III-A: 256-bit SIMD units, a hardware
reduction tree of O(log n), a parameter cache with a coherence directory (`hardware.agau.parameter_cache`), atomic updates. The
paper gives neither clock nor size of the tree.

A *beat* is one SIMD word of 8 elements from every contribution of a round. It goes through ceil(log2(inputs)) levels of pipelined
adders; at each level neighbours are added, and one without a neighbour passes by. More contributions than inputs take *rounds*: the
partial sums of a round wait in a buffer and come back as leaf 0 of the next, beside inputs - 1 new contributions. The buffer bounds
how many elements make a round (a *pass*); all rounds of a pass are done before the next pass. Averaging multiplies by 1/n behind
the tree.

With beats B of a pass, D cycles through the tree, F new contributions of a round over `ports`, interval I = ceil(F / ports):

    cycles = sum over passes of [B I of the first round + sum over later rounds of max(B I, D)] + D (+ the multiplier)

since a later round may not read a partial sum before it has left the tree. `oracles.agau_pipeline` is the twin that clocks
registers.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainyard.checks import require_flag, require_positive
from trainyard.construction import part
from trainyard.errors import BadInput
from trainyard.hardware.agau.parameter_cache import ParameterCache
from trainyard.hardware.tables.area import ADDER, MULTIPLIER, Unit, sram_m2
from trainyard.hardware.tables.cells import FLIP_FLOP_UM2, LEAKAGE_W_PER_M2, MUX_UM2, cells_joules, cells_m2
from trainyard.hardware.tables.energy import add_joules, multiply_joules, ram_joules_per_byte
from trainyard.ir import assumed

Number = Literal["fp32", "int32"]
Words = NDArray[Any]

# fmt: off
WORD_BYTES       = 4       # fp32 and int32
BITS             = 32
COLUMNS          = 1 << 15 # elements that `reduce` holds at once: a tree of them stays in a processor's cache
# fmt: on


@part
class Agau:
    """A SIMD reduction tree with a buffer for partial sums, an averaging stage and a parameter cache.

    >>> agau = Agau(inputs=8, adder_cycles=3, buffer_bytes=4096)
    >>> agau.lanes, agau.depth, agau.tree_cycles
    (8, 3, 9)
    >>> agau.cycles(8, 4096)  # one round: 512 beats, and 9 cycles of pipeline
    521
    >>> agau.rounds(64), agau.cycles(64, 4096)  # 8, then seven new ones beside the partial sum in each of 8 rounds
    (9, 4617)
    """

    # fmt: off
    width_bits: int = 256                                                # Sec. III-A
    number: Number = "fp32"
    clock_hz: float = assumed(350e6, "clock of the AGAU: as of the DPUs around it (UPMEM's); none is printed", 500e6, 1e9)
    inputs: int = assumed(8, "leaves of the reduction tree: the DPUs of a chip; more contributions take rounds", 4, 16, 64)
    ports: int | None = assumed(None, "contributions that can hand in a beat in one cycle; none said: all inputs can", 1, 4)
    adder_cycles: int = assumed(3, "pipeline stages of an adder: as usual for fp32 at a few hundred MHz", 1, 5)
    multiplier_cycles: int = assumed(3, "pipeline stages of the averaging multiplier, as of the adder", 1, 5)
    buffer_bytes: int = assumed(4096, "partial sums between two rounds: 128 beats, more than the pipeline has stages", 1024, 16384)
    cache_bytes: int = assumed(32 * 1024, "parameter cache: twice the 16 KiB of a linear model of 4096 features", 16384, 65536)
    line_bytes: int = assumed(64, "line of the parameter cache: two beats", 32, 128)
    clusters: int = 32                                                   # caches that a directory entry tells apart: 2048 / 64
    technology_nm: float = 28                                            # Sec. VI-A: 28 nm process
    # fmt: on

    def __post_init__(self) -> None:
        if self.inputs < 2:
            raise BadInput("Agau: a tree of 1 input adds nothing: give inputs=2 or more")
        if self.width_bits % BITS:
            raise BadInput(f"Agau: width_bits={self.width_bits} must hold whole words of {BITS} bits")
        if self.buffer_bytes % (self.width_bits // 8):
            raise BadInput(f"Agau: buffer_bytes={self.buffer_bytes} must hold whole beats of {self.width_bits // 8} bytes")
        _ = self.parameter_cache  # refuses what it cannot be built from

    @property
    def lanes(self) -> int:
        return self.width_bits // BITS

    @property
    def depth(self) -> int:
        """Levels of adders."""
        return (self.inputs - 1).bit_length()

    @property
    def tree_cycles(self) -> int:
        return self.depth * self.adder_cycles

    @property
    def bytes_per_s(self) -> float:
        """The rate of one input at one beat a cycle."""
        return self.width_bits / 8 * self.clock_hz

    @property
    def adders(self) -> int:
        return (self.inputs - 1) * self.lanes

    @property
    def parameter_cache(self) -> ParameterCache:
        return ParameterCache(
            cache_bytes=self.cache_bytes,
            line_bytes=self.line_bytes,
            caches=self.clusters,
            port_bytes=self.width_bits // 8,
            clock_hz=self.clock_hz,
            number=self.number,
            technology_nm=self.technology_nm,
        )

    def rounds(self, contributions: int) -> int:
        return len(self.shares(contributions))

    def shares(self, contributions: int) -> tuple[int, ...]:
        """New contributions of each round; from the second on one leaf is the partial sum's.

        >>> Agau(inputs=4).shares(9)
        (4, 3, 2)
        """
        require_positive("Agau", contributions=contributions)
        left = max(0, contributions - self.inputs)
        new = self.inputs - 1
        last = (left % new,) if left % new else ()
        return (min(contributions, self.inputs), *(new,) * (left // new), *last)

    def passes(self, contributions: int, elements: int) -> tuple[tuple[int, int], ...]:
        """(elements of a pass, number of such passes): as many elements as the buffer holds, or all where one round is enough."""
        require_positive("Agau", elements=elements)
        most = self.buffer_bytes // WORD_BYTES if self.rounds(contributions) > 1 else elements
        return tuple((size, times) for size, times in ((most, elements // most), (elements % most, 1)) if size and times)

    def interval(self, share: int) -> int:
        """Cycles from one beat to the next in a round of so many new contributions."""
        return -(-share // (self.ports or self.inputs))

    def cycles(self, contributions: int, elements: int, *, average: bool = False) -> int:
        """Cycles from the first word at an input to the last sum."""
        require_flag("Agau", average=average)
        first, *later = (self.interval(share) for share in self.shares(contributions))
        issue = 0
        for size, times in self.passes(contributions, elements):
            beats = -(-size // self.lanes)
            issue += times * (beats * first + sum(max(beats * interval, self.tree_cycles) for interval in later))
        return issue + self.tree_cycles + (self.multiplier_cycles if average else 0)

    def seconds(self, contributions: int, elements: int, *, average: bool = False) -> float:
        return self.cycles(contributions, elements, average=average) / self.clock_hz

    def reduce(self, array: Words, *, average: bool = False) -> Words:
        """The sum over rows of [contributions, elements], added in the order of the tree; bit for bit what the pipeline gives.

        int32 wraps around, as 32-bit adders do; its mean is the sum times round(2^32 / n), rounded at bit 32.

        >>> Agau(number="int32", inputs=2).reduce(np.arange(12, dtype=np.int32).reshape(4, 3))
        array([18, 22, 26], dtype=int32)
        """
        array = self._checked(array)
        contributions, elements = array.shape
        result = np.empty(elements, array.dtype)
        sums = np.empty((-(-self.inputs // 2), min(elements, COLUMNS)), array.dtype)
        for start in range(0, elements, COLUMNS):
            columns = slice(start, min(elements, start + COLUMNS))
            result[columns] = self._sum(array[:, columns], sums[:, : columns.stop - start])
        return scale(result, contributions) if average else result

    def _sum(self, block: Words, sums: Words) -> Words:
        """Each level overwrites the one below in `sums`: pair i is read before row i is written."""
        rows, partial = iter(block), list[Words]()
        for share in self.shares(len(block)):
            operands = [*partial, *itertools.islice(rows, share)]
            while len(operands) > 1:
                pairs = [np.add(operands[at], operands[at + 1], out=sums[at // 2]) for at in range(0, len(operands) - 1, 2)]
                operands = pairs + operands[2 * len(pairs) :]
            partial = operands
        return partial[0]

    def _checked(self, array: Words) -> Words:
        wanted = np.float32 if self.number == "fp32" else np.int32
        if not isinstance(array, np.ndarray) or array.ndim != 2 or not array.size:
            received = getattr(array, "shape", type(array).__name__)
            raise BadInput(f"Agau.reduce takes an array [contributions, elements] that is not empty, got {received}")
        if array.dtype != wanted:
            cast = f".astype('{np.dtype(wanted)}')"
            raise BadInput(f"Agau.reduce: this one adds {self.number}, the array is {array.dtype}: write {cast}")
        return array

    def events(self, contributions: int, elements: int, *, average: bool = False) -> dict[str, float]:
        """Additions, words latched in the tree, bytes to and from the buffer, multiplications."""
        latched = back = 0
        for number, share in enumerate(self.shares(contributions)):
            filled = share + (1 if number else 0)
            back += 2 * WORD_BYTES if number else 0  # written by the round before, read by this one
            latched += filled
            for _ in range(self.depth):
                filled = -(-filled // 2)
                latched += filled * self.adder_cycles
        multiplied = elements if average else 0
        return {
            "agau_add": float((contributions - 1) * elements),
            "agau_register": float(latched * elements + multiplied * self.multiplier_cycles),
            "agau_buffer_byte": float(back * elements),
            "agau_multiply": float(multiplied),
        }

    @property
    def joules(self) -> dict[str, float]:
        """Joules of one event of this unit or of its parameter cache; of the buffer as much is read as written."""
        nm = self.technology_nm
        own = {
            "agau_add": add_joules(self.number, nm),
            "agau_register": cells_joules(BITS * FLIP_FLOP_UM2, nm),
            "agau_buffer_byte": sum(ram_joules_per_byte(access, self.buffer_bytes, nm) for access in ("read", "write")) / 2,
            "agau_multiply": multiply_joules(self.number, nm),
        }
        return own | self.parameter_cache.joules

    @property
    def areas(self) -> dict[str, float]:
        """Square metres by component."""
        cell = cells_m2(1.0, self.technology_nm)
        latches = self.inputs + (self.inputs - 1) * self.adder_cycles + self.multiplier_cycles
        own = {
            "agau_adder": self.adders * _um2(ADDER, self.number) * cell,
            "agau_multiplier": self.lanes * _um2(MULTIPLIER, self.number) * cell,
            "agau_register": latches * self.lanes * BITS * FLIP_FLOP_UM2 * cell,
            "agau_bypass": (self.inputs - 1) * self.lanes * BITS * MUX_UM2 * cell,
            "agau_buffer": sram_m2(self.buffer_bytes, self.technology_nm),
        }
        return own | self.parameter_cache.areas

    @property
    def static_w(self) -> float:
        """Leakage of all components."""
        return sum(self.areas.values()) * LEAKAGE_W_PER_M2

    @property
    def busy_w(self) -> Mapping[str, float]:
        """Power by event at full load: every cycle a beat of a second round on all inputs, and one hit in the cache."""
        per_beat = self.events(2 * self.inputs - 1, self.lanes)
        first = self.events(self.inputs, self.lanes)
        beat = {event: (count - first[event]) for event, count in per_beat.items()}
        beat["agau_multiply"] = float(self.lanes)
        beat["agau_cache_byte"] = float(self.width_bits // 8)
        return {event: count * self.joules[event] * self.clock_hz for event, count in beat.items()}


def scale(total: Words, contributions: int) -> Words:
    """The averaging stage: a multiplication by the reciprocal.

    >>> scale(np.array([7, -7], np.int32), 2)
    array([ 4, -3], dtype=int32)
    """
    if total.dtype == np.float32:
        return total * np.float32(1 / contributions)
    if contributions == 1:
        return total
    reciprocal = (2 * (1 << BITS) + contributions) // (2 * contributions)  # 2^32 / n to the nearest; 32 bits from n = 2 on
    return ((total.astype(np.int64) * reciprocal + (1 << (BITS - 1))) >> BITS).astype(np.int32)


def _um2(table: tuple[Unit, ...], name: str) -> float:
    return next(row.um2 for row in table if row.name == name)
