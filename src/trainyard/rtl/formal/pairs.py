"""TensorDash: each effectual pair is issued exactly once, and none is lost."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.wiring import Component, In, Out

from trainyard.arrays.tensordash.scheduler import Scheduler
from trainyard.rtl.tensordash.row_scheduler import RowScheduler
from trainyard.rtl.tensordash.scheduler import PromotionScheduler
from trainyard.rtl.tensordash.staging_buffer import WindowControl


def issuers(scheduler: Scheduler, ms: Value) -> dict[int, list[Value]]:
    """The bits of MS that issue each place (step x lanes + lane) of the staging buffer."""
    lanes, options = scheduler.lanes, scheduler.options
    readers: dict[int, list[Value]] = {place: [] for place in range(lanes * scheduler.depth)}
    for lane in range(lanes):
        for number, (step, offset) in enumerate(options):
            readers[step * lanes + (lane + offset) % lanes].append(ms[lane * len(options) + number])
    return readers


def several(bits: list[Value]) -> Value:
    """Whether two or more bits are set."""
    result: Value = Const(0, 1)
    any_before: Value = Const(0, 1)
    for bit in bits:
        result = result | (any_before & bit)
        any_before = any_before | bit
    return result


class IssuedOnce(Component):
    """One cycle of a scheduler, for every Z and every number of steps in the buffer.

    Violated where two lanes issue one pair, a lane issues two, a pair with a zero is issued, Z afterwards is anything but Z with
    what was issued, the current step does not drain, or AS is not the number of leading empty steps.
    """

    def __init__(self, scheduler: PromotionScheduler) -> None:
        self.design = scheduler
        sizes = scheduler.scheduler
        super().__init__({"z": In(sizes.lanes * sizes.depth), "held": In(range(sizes.depth + 1)), "violated": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        sizes = self.design.scheduler
        lanes, depth, options = sizes.lanes, sizes.depth, len(sizes.options)
        m.submodules.design = design = self.design
        present = Cat(step < self.held for step in range(depth))
        absent = Cat(bit.replicate(lanes) for bit in ~present)
        m.d.comb += [design.z.eq(self.z | absent), design.present.eq(present)]
        issued, twice = Signal(lanes * depth), Signal(lanes * depth)
        for place, bits in issuers(sizes, design.ms).items():
            m.d.comb += [issued[place].eq(Cat(*bits).any()), twice[place].eq(several(bits))]
        lane_twice = Cat(several(list(design.ms.word_select(lane, options))) for lane in range(lanes))
        empty = Cat(design.remaining.word_select(step, lanes).all() & present[step] for step in range(depth))
        m.d.comb += self.violated.eq(
            (self.held != 0)
            & (self.held <= depth)
            & (
                twice.any()
                | lane_twice.any()
                | (issued & design.z).any()
                | (design.remaining != design.z | issued)
                | ~empty[0]
                | (design.advance != leading(empty))
            )
        )
        return m


def leading(bits: Value) -> Value:
    """How many bits are set before the first that is not."""
    count: Value = Const(0, len(bits).bit_length())
    for number in reversed(range(len(bits))):
        count = Mux(bits[number], count + 1, 0)
    return count


class NoneLost(Component):
    """A row of the tile with its staging control over time; one pair, any one, is followed from its arrival until its step leaves.

    `follow` chooses it among the rows that are fetched in a cycle. Violated where it is issued twice, issued though it has a zero,
    or leaves without having been issued though it has none. `others` is AS of the other rows of the tile, which may be smaller.
    """

    def __init__(self, row: RowScheduler) -> None:
        self.row = row
        self.control = WindowControl(depth=row.scheduler.depth, banks=row.banks)
        lanes, depth, banks = row.scheduler.lanes, row.scheduler.depth, row.banks
        super().__init__(
            {
                "enable": In(1),
                "available": In(range(banks + 1)),
                "marks": In(banks),
                "zeros": In(banks * lanes),
                "others": In(range(depth + 1)),
                "follow": In(1),
                "follow_row": In(range(max(2, banks))),
                "follow_lane": In(range(max(2, lanes))),
                "violated": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.row, m.submodules.control = row, control = self.row, self.control
        available = Mux(self.available > row.banks, row.banks, self.available)
        m.d.comb += [
            control.enable.eq(self.enable),
            control.available.eq(available),
            control.marks.eq(self.marks),
            control.advance.eq(Mux((self.others != 0) & (self.others < row.advance), self.others, row.advance)),
            row.zeros.eq(self.zeros),
            row.present.eq(control.present),
            row.working.eq(control.working),
            row.shift.eq(control.shift),
            row.kept.eq(control.kept),
        ]
        self._follow(m)
        return m

    def _follow(self, m: Module) -> None:
        row, control, sizes = self.row, self.control, self.row.scheduler
        following, effectual, issued = Signal(), Signal(), Signal()
        step, lane = Signal(range(max(2, sizes.depth))), Signal(range(max(2, sizes.lanes)))
        hits = [bits for _, bits in sorted(issuers(sizes, row.ms).items())]
        hit = Array(Cat(*bits).any() for bits in hits)[step * sizes.lanes + lane]
        twice = Array(several(bits) for bits in hits)[step * sizes.lanes + lane]
        leaves = control.shift > step
        m.d.comb += self.violated.eq(following & (twice | (hit & (issued | ~effectual)) | (leaves & effectual & ~issued & ~hit)))
        with m.If(following):
            m.d.sync += [issued.eq(issued | hit), step.eq(step - control.shift), following.eq(~leaves)]
        with m.Elif(self.follow & (self.follow_row < control.take) & (self.follow_lane < sizes.lanes)):
            zeros = Array(self.zeros[place] for place in range(row.banks * sizes.lanes))
            m.d.sync += [
                following.eq(1),
                issued.eq(0),
                step.eq(control.kept + self.follow_row),
                lane.eq(self.follow_lane),
                effectual.eq(~zeros[self.follow_row * sizes.lanes + self.follow_lane]),
            ]
