"""TensorDash's staging buffers as registers: the next `depth` rows of an operand, shifted by AS and refilled in the same cycle.

M. Mahmoud et al.: TensorDash: Exploiting Sparsity to Accelerate Deep Neural Network Training. MICRO 2020. Sec. III-A, Fig. 4.
The simulator's part is `arrays.tensordash.element.StagingBuffer`.

    held rows        r0  r1  r2  r3        the buffer, r0 is the current step
    shift = 2        r2  r3  n0  n1        kept = held - shift rows move up, rows of the scratchpad follow

Streams of several outputs lie one behind the other in the scratchpad, and the last row of each carries a mark. Rows behind the
mark are in the buffer but not yet *present*: nothing crosses the end of a stream. So an output begins in the cycle after the one
before it has ended, with a full buffer, as the simulator counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.wiring import Component, In, Out

from trainyard.arrays.tensordash.patterns import Options
from trainyard.checks import require_positive
from trainyard.errors import BadInput


def require_banks(where: str, depth: int, banks: int) -> int:
    """At most `depth` rows can arrive in a cycle."""
    require_positive(where, depth=depth, banks=banks)
    if banks > depth:
        raise BadInput(
            f"{where}: banks={banks} bring more rows in a cycle than the {depth} of the staging buffer: give at most {depth}"
        )
    return banks


def refilled(rows: Sequence[Value], incoming: Sequence[Value], shift: Value, kept: Value) -> list[Value]:
    """The rows of the next cycle: row i is row i + shift, or from `kept` on the next one of `incoming`.

    With depth rows there are depth + 1 candidates for each: what R is shifted by selects one of those at hand, what is kept one of
    those that arrive.
    """
    depth, refill = len(rows), list[Value]()
    for place in range(depth):
        moved = _one_of([(shift == ahead, rows[place + ahead]) for ahead in range(depth - place)])
        arriving = [(kept == stay, incoming[place - stay]) for stay in range(place + 1) if place - stay < len(incoming)]
        refill.append(Mux(kept > place, moved, _one_of(arriving)))
    return refill


def _one_of(candidates: Sequence[tuple[Value, Value]]) -> Value:
    """An AND-OR multiplexer with one-hot selects; 0 where none is selected."""
    result: Value = Const(0, len(candidates[0][1]))
    for chosen, value in candidates:
        result = result | (value & chosen.replicate(len(value)))
    return result


class WindowControl(Component):
    """How many rows are in the staging buffers of a tile, which of them belong to the current output, and how many to fetch.

    | port        | bits       | meaning                                                                                     |
    |-------------|------------|---------------------------------------------------------------------------------------------|
    | `enable`    | 1          | off: the schedulers wait while the buffers fill                                             |
    | `available` | 0 to banks | rows that the scratchpads offer in this cycle                                               |
    | `marks`     | banks      | of these, the last rows of an output                                                        |
    | `advance`   | 0 to depth | AS, the smallest of all schedulers                                                          |
    | `present`   | depth      | rows of the current output                                                                  |
    | `shift`     | 0 to depth | rows that leave                                                                             |
    | `kept`      | 0 to depth | rows that stay: what is fetched goes behind them                                            |
    | `take`      | 0 to banks | rows that are fetched                                                                       |
    | `working`   | 1          | the schedulers do a cycle                                                                   |
    | `ends`      | 1          | this cycle is the output's last                                                             |
    """

    def __init__(self, *, depth: int, banks: int) -> None:
        self.depth, self.banks = depth, require_banks("WindowControl", depth, banks)
        super().__init__(
            {
                "enable": In(1),
                "available": In(range(banks + 1)),
                "marks": In(banks),
                "advance": In(range(depth + 1)),
                "present": Out(depth),
                "shift": Out(range(depth + 1)),
                "kept": Out(range(depth + 1)),
                "take": Out(range(banks + 1)),
                "working": Out(1),
                "ends": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        held, marks = Signal(range(self.depth + 1)), Signal(self.depth)
        room = Signal(range(self.depth + 1))
        inside: Value = Const(1, 1)
        for step in range(self.depth):
            m.d.comb += self.present[step].eq((held > step) & inside)
            inside = inside & ~marks[step]
        drained = Cat(self.shift > step for step in range(self.depth))
        m.d.comb += [
            self.working.eq(self.enable & (held != 0)),
            self.shift.eq(Mux(self.working, self.advance, 0)),
            self.kept.eq(held - self.shift),
            room.eq(self.depth - self.kept),
            self.take.eq(Mux(self.available < room, self.available, room)),
            self.ends.eq((drained & self.present & marks).any()),
        ]
        m.d.sync += held.eq(self.kept + self.take)
        m.d.sync += marks.eq(Cat(*refilled(list(marks), list(self.marks), self.shift, self.kept)))
        return m


class StagingBuffer(Component):
    """The rows of one operand; `incoming` are the next ones of its scratchpad, the first in the lowest bits."""

    def __init__(self, *, row_bits: int, depth: int, banks: int) -> None:
        require_positive("StagingBuffer", row_bits=row_bits)
        self.row_bits, self.depth, self.banks = row_bits, depth, require_banks("StagingBuffer", depth, banks)
        super().__init__(
            {
                "incoming": In(banks * row_bits),
                "shift": In(range(depth + 1)),
                "kept": In(range(depth + 1)),
                "rows": Out(depth * row_bits),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        rows = [Signal(self.row_bits, name=f"row{step}") for step in range(self.depth)]
        incoming = [self.incoming.word_select(number, self.row_bits) for number in range(self.banks)]
        for row, value in zip(rows, refilled(rows, incoming, self.shift, self.kept), strict=True):
            m.d.sync += row.eq(value)
        m.d.comb += self.rows.eq(Cat(*rows))
        return m


class PromotionMultiplexers(Component):
    """The multiplexers of one side of an element: each lane's value by its select MS, 0 where it has none (Fig. 4, 5).

    Two options of a lane that name the same value, on a short ring of lanes, share an input.
    """

    def __init__(self, *, bits: int, lanes: int, depth: int, options: Options) -> None:
        require_positive("PromotionMultiplexers", bits=bits, lanes=lanes, depth=depth)
        self.bits, self.lanes, self.depth, self.options = bits, lanes, depth, options
        super().__init__(
            {
                "rows": In(depth * lanes * bits),
                "ms": In(lanes * len(options)),
                "values": Out(lanes * bits),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        for lane in range(self.lanes):
            inputs: dict[int, Value] = {}
            for number, (step, offset) in enumerate(self.options):
                place = step * self.lanes + (lane + offset) % self.lanes
                inputs[place] = inputs.get(place, Const(0, 1)) | self.ms[lane * len(self.options) + number]
            candidates = [(chosen, self.rows.word_select(place, self.bits)) for place, chosen in inputs.items()]
            m.d.comb += self.values.word_select(lane, self.bits).eq(_one_of(candidates))
        return m
