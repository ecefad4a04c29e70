"""TensorDash's hardware scheduler as gates: Z of a staging buffer in, the selects MS and the advance AS out, in the same cycle.

M. Mahmoud et al.: TensorDash: Exploiting Sparsity to Accelerate Deep Neural Network Training. MICRO 2020. Sec. III-A, Fig. 5 and 6.
The simulator's part is `arrays.tensordash.scheduler`; its `Scheduler` is the parameter here.

Each lane has a priority encoder over its options. The encoders stand in levels: a level sees Z as the levels before it left it,
and lanes of one level have no value in common, so they decide at once. The delay grows with the levels, not with the lanes.

Which levels. The simulator's default is one lane a level, in the order 0, 1, 2, ...; `patterns.levels` finds the fewest. For 4
lanes and the paper's 2-deep and 4-deep patterns both are the same, one lane a level. For 16 lanes, 3 deep, there are 6 levels as in
the paper (lanes 0, 5, 10, then 1, 6, 11, ...), and that is another machine than 16 levels: lane 5 chooses before lane 1. At 60 %
zeros MS differs in 45 % of random buffers and AS in 6 %. Both are generated from `Scheduler.levels`, each equal to the simulator's
with the same levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from amaranth.hdl import Cat, Const, Module, Signal, Value
from amaranth.lib.wiring import Component, In, Out

from trainyard.arrays.tensordash.scheduler import Scheduler, Selects, Zeros, advance, select
from trainyard.rtl.catalogue import Inputs, Outputs, register
from trainyard.rtl.tensordash.parameters import SchedulingDesign


class PromotionScheduler(Component):
    """The priority encoders of all lanes and the leading-empty-steps counter; no registers.

    | port        | bits             | meaning                                                                          |
    |-------------|------------------|----------------------------------------------------------------------------------|
    | `z`         | depth x lanes    | bit step x lanes + lane: this pair has a zero, or was multiplied already         |
    | `present`   | depth            | the step is in the buffer; its Z bits are set where it is not                    |
    | `ms`        | lanes x options  | one-hot: bit lane x options + number, no bit where a lane has nothing to do      |
    | `remaining` | depth x lanes    | Z after this cycle                                                               |
    | `advance`   | 0 to depth       | AS: the leading steps that are present and have nothing left to multiply         |
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        bits = scheduler.depth * scheduler.lanes
        super().__init__(
            {
                "z": In(bits),
                "present": In(scheduler.depth),
                "ms": Out(scheduler.lanes * len(scheduler.options)),
                "remaining": Out(bits),
                "advance": Out(range(scheduler.depth + 1)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        z, picks = list(self.z), dict[int, list[Value]]()
        for number, level in enumerate(self.scheduler.levels):
            z = self._level(m, number, level, z, picks)
        m.d.comb += self.ms.eq(Cat(*(picks[lane] for lane in range(self.scheduler.lanes))))
        m.d.comb += self.remaining.eq(Cat(*z))
        m.d.comb += self.advance.eq(self._advance(m, z))
        return m

    def _level(self, m: Module, number: int, level: tuple[int, ...], z: list[Value], picks: dict[int, list[Value]]) -> list[Value]:
        """The encoders of one level; returns Z with their picks removed."""
        lanes = self.scheduler.lanes
        takers: dict[int, list[Value]] = {}
        for lane in level:
            places = [step * lanes + (lane + offset) % lanes for step, offset in self.scheduler.options]
            picks[lane] = first_of(m, f"lane{lane}", [~z[place] for place in places])
            for place, pick in zip(places, picks[lane], strict=True):
                takers.setdefault(place, []).append(pick)
        after = list(z)
        for place, chosen in takers.items():
            after[place] = Signal(name=f"level{number}_z{place}")
            m.d.comb += after[place].eq(z[place] | Cat(*chosen).any())
        return after

    def _advance(self, m: Module, z: list[Value]) -> Value:
        lanes = self.scheduler.lanes
        so_far: Value = Const(1, 1)
        count: Value = Const(0, 1)
        for step in range(self.scheduler.depth):
            empty = Signal(name=f"empty{step}")
            m.d.comb += empty.eq(so_far & self.present[step] & Cat(*z[step * lanes : (step + 1) * lanes]).all())
            so_far = empty
            count = count + empty
        return count


def first_of(m: Module, name: str, wanted: list[Value]) -> list[Value]:
    """A priority encoder: one-hot, the first of the wanted ones."""
    picks: list[Value] = []
    earlier: Value = Const(0, 1)
    for number, value in enumerate(wanted):
        pick = Signal(name=f"{name}_pick{number}")
        m.d.comb += pick.eq(value & ~earlier)
        picks.append(pick)
        before, earlier = earlier, Signal(name=f"{name}_any{number}")
        m.d.comb += earlier.eq(before | value)
    return picks


def one_hot(ms: Selects, options: int) -> int:
    """MS of all lanes as the port's bits.

    >>> bin(one_hot([1, None, 0], options=4))
    '0b100000010'
    """
    return sum(1 << (lane * options + number) for lane, number in enumerate(ms) if number is not None)


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerDesign(SchedulingDesign):
    """The scheduler alone; random Z of all densities, and buffers that are not full."""

    name: ClassVar[str] = "tensordash-scheduler"
    word: ClassVar[str] = "the hardware scheduler of a row of elements (TensorDash, MICRO 2020, Sec. III-A, Fig. 6)"

    def build(self) -> PromotionScheduler:
        return PromotionScheduler(self.scheduler)

    def stimulus(self, cycles: int, seed: int) -> list[Inputs]:
        rng, rows = Random(seed), list[Inputs]()
        for _ in range(cycles):
            held = self.depth if rng.random() < 0.8 else rng.randint(1, self.depth)
            density, bits = rng.random(), self.depth * self.lanes
            z = sum((place >= held * self.lanes or rng.random() < density) << place for place in range(bits))
            rows.append({"z": z, "present": (1 << held) - 1})
        return rows

    def expected(self, stimulus: Sequence[Inputs]) -> list[Outputs]:
        """By the simulator's `select` and `advance`."""
        lanes, options, outputs = self.lanes, len(self.scheduler.options), list[Outputs]()
        for row in stimulus:
            held = row["present"].bit_length()
            z: Zeros = [[bool(row["z"] >> (step * lanes + lane) & 1) for lane in range(lanes)] for step in range(held)]
            ms = select(z, self.scheduler.options, self.scheduler.levels)
            left = sum(zero << (step * lanes + lane) for step, zeros in enumerate(z) for lane, zero in enumerate(zeros))
            absent = (1 << self.depth * lanes) - (1 << held * lanes)
            outputs.append({"ms": one_hot(ms, options), "remaining": left | absent, "advance": advance(z)})
        return outputs
