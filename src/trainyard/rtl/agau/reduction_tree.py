"""The AGAU's reduction tree: SIMD words of all inputs are added level by level, a beat a cycle.

P. Kulkarni: DIRECT: Enabling Scalable Processing-In-Memory via DPU-to-DPU Communication, Sec. III-A. The simulator's part is
`hardware.agau.unit.Agau`: neighbours are added at each level, one without a neighbour passes by.

Passing by needs no multiplexer and no registers beside the adder: a missing neighbour is replaced by the neutral element, 0 for
integers and -0 for floating point (x + -0 = x for every x, while -0 + 0 would lose the sign).
"""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.wiring import Component, In, Out

from trainyard.hardware.agau.unit import BITS, Agau
from trainyard.rtl.arithmetic.adder import FloatAdder
from trainyard.rtl.arithmetic.formats import FP32
from trainyard.rtl.arithmetic.multiplier import FloatMultiplier

NEUTRAL = {"fp32": 1 << (BITS - 1), "int32": 0}
RECIPROCAL_BITS = BITS + 1
"""2^32 / n for integers; of floating point the lower 32 bits hold 1 / n."""


def delayed(m: Module, name: str, value: Value, cycles: int) -> Value:
    """The value so many cycles later."""
    for stage in range(cycles):
        register = Signal(len(value), name=f"{name}_delay{stage}")
        m.d.sync += register.eq(value)
        value = register
    return value


class ReductionTree(Component):
    """`inputs` SIMD words in, their sum out after `Agau.tree_cycles`; the leaves that count are the first ones.

    | port     | bits           | meaning                                                     |
    |----------|----------------|-------------------------------------------------------------|
    | `leaves` | inputs x width | SIMD words, leaf 0 in the lowest bits                       |
    | `filled` | inputs         | leaves that count; a leaf's neighbour below always counts   |
    | `total`  | width          | the sum                                                     |
    """

    def __init__(self, agau: Agau) -> None:
        self.agau = agau
        super().__init__({"leaves": In(agau.inputs * agau.width_bits), "filled": In(agau.inputs), "total": Out(agau.width_bits)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        width = self.agau.width_bits
        words: list[Value] = [self.leaves.word_select(leaf, width) for leaf in range(self.agau.inputs)]
        filled: list[Value] = list(self.filled)
        for level in range(self.agau.depth):
            words, filled = self._level(m, level, words, filled)
        m.d.comb += self.total.eq(words[0])
        return m

    def _level(self, m: Module, level: int, words: list[Value], filled: list[Value]) -> tuple[list[Value], list[Value]]:
        cycles, sums, counts = self.agau.adder_cycles, list[Value](), list[Value]()
        for place in range(0, len(words), 2):
            name = f"level{level}_{place // 2}"
            if place + 1 < len(words):
                sums.append(self._added(m, name, words[place], words[place + 1], filled[place + 1]))
            else:
                sums.append(delayed(m, name, words[place], cycles))
            # the first word is on the right of no adder, and nobody asks whether it counts
            counts.append(delayed(m, f"{name}_filled", filled[place], cycles) if place else Const(1, 1))
        return sums, counts

    def _added(self, m: Module, name: str, left: Value, right: Value, counts: Value) -> Value:
        """A SIMD adder; the right word is the neutral element where it does not count."""
        lanes = []
        for lane in range(self.agau.lanes):
            neighbour = Mux(counts, right.word_select(lane, BITS), Const(NEUTRAL[self.agau.number], BITS))
            lanes.append(self._adder(m, f"{name}_{lane}", left.word_select(lane, BITS), neighbour))
        return Cat(*lanes)

    def _adder(self, m: Module, name: str, a: Value, b: Value) -> Value:
        if self.agau.number == "int32":
            return delayed(m, name, (a + b)[:BITS], self.agau.adder_cycles)
        m.submodules[name] = adder = FloatAdder(FP32, stages=self.agau.adder_cycles)
        m.d.comb += [adder.a.eq(a), adder.b.eq(b)]
        return adder.sum


class AveragingStage(Component):
    """`mean` = `total` times `reciprocal`, after `Agau.multiplier_cycles`; integers round at bit 32."""

    def __init__(self, agau: Agau) -> None:
        self.agau = agau
        super().__init__({"total": In(agau.width_bits), "reciprocal": In(RECIPROCAL_BITS), "mean": Out(agau.width_bits)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        means: Sequence[Value] = [
            self._multiplied(m, f"lane{lane}", self.total.word_select(lane, BITS)) for lane in range(self.agau.lanes)
        ]
        m.d.comb += self.mean.eq(Cat(*means))
        return m

    def _multiplied(self, m: Module, name: str, word: Value) -> Value:
        if self.agau.number == "int32":
            product = word.as_signed() * self.reciprocal + (1 << (BITS - 1))
            return delayed(m, name, product[BITS : 2 * BITS], self.agau.multiplier_cycles)
        m.submodules[name] = multiplier = FloatMultiplier(FP32, stages=self.agau.multiplier_cycles)
        m.d.comb += [multiplier.a.eq(word), multiplier.b.eq(self.reciprocal[:BITS])]
        return multiplier.product
