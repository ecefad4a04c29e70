"""Pre-scheduled storage as a codec: the bytes whose number `arrays.tensordash.footprints` counts in closed form.

One operand's streams are stored as the rows that the scheduler would issue, without zeros, ready for the element.

Beyond M. Mahmoud et al.: TensorDash. MICRO 2020, which names pre-scheduling (Sec. III, V: weights, by software) and why training
resists it: each tensor is summed over in two orders, and a schedule serves one of them (`footprints` counts both).

A stream [steps, lanes] is run through the one-sided scheduler ahead of time: weights in software, activations by a second scheduler
behind the layer that makes them, which keeps up because it never needs more rows than there are steps. A cycle is stored as

    AS - 1, then of each lane MS and its value     `padded`: rows of one width; an idle lane holds MS 0 and the value zero
    AS - 1, one bit a lane: has it a value? and
    MS and value of those that have                `gapless`: rows of unequal width

with ceil(log2(options)) bits of MS and ceil(log2(depth)) of AS (3 and 2 for the paper's element). The advances say where the stream
ends, so it is not stored. On load a decompressor puts values back where they were (`decode`), or the rows go to the element as they
are (`places` says which values of the other operand they meet): the multiplexers obey the stored MS, no scheduler is needed.

Rows of a tile share the other operand's staging buffer, hence one AS. Three ways to give them stored streams:

- a row group scheduled together: one AS for all its rows, stored once; as fast as `lockstep` at run time, but the rows are wed;
- each stream by itself under `output`: needs a buffer on the other side for each row;
- each by itself behind one shared buffer (`prescheduled_tile`): a row waits while a step it reads is not there yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.arrays.tensordash.footprints import POINTER_BYTES, Form, require_form, signal_bits, stored_bits
from trainyard.arrays.tensordash.scheduler import Bits, Integers, Scheduler
from trainyard.checks import require_positive
from trainyard.errors import BadInput

Values = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scheduled:
    """A stream, or a row group in lockstep, as scheduled rows; `shape` is (steps, lanes) or (rows, steps, lanes) of what it holds.

    `values` and `select` (MS, -1: idle) are [cycles, rows, lanes], `advance` (AS) is [cycles].

    >>> stored = encode(np.array([[5, 0, 0, 7], [0, 6, 0, 0], [8, 0, 0, 0]], np.int16), Scheduler())
    >>> stored.values[:, 0].tolist(), stored.select[:, 0].tolist(), stored.advance.tolist()
    ([[5, 6, 8, 7]], [[0, 1, 6, 0]], [4])
    """

    scheduler: Scheduler
    shape: tuple[int, ...]
    values: Values
    select: Integers
    advance: Integers

    @property
    def cycles(self) -> int:
        return len(self.advance)

    @property
    def rows(self) -> int:
        return int(self.select.shape[1])

    @property
    def steps(self) -> int:
        return self.shape[-2]

    @property
    def nonzeros(self) -> int:
        return int((self.select >= 0).sum())

    @property
    def position(self) -> Integers:
        """[cycles]: the first step of the staging buffers in each cycle."""
        return np.cumsum(self.advance) - self.advance

    def places(self) -> tuple[Integers, Integers]:
        """Step and lane, in the dense order, of each stored value; of an idle lane, its own."""
        options = np.array(self.scheduler.options, dtype=np.int64)
        chosen = np.maximum(self.select, 0)
        step = self.position[:, None, None] + options[chosen, 0]
        lane = (np.arange(self.scheduler.lanes) + options[chosen, 1]) % self.scheduler.lanes
        return step, lane

    def decode(self) -> Values:
        """What was encoded, bit for bit: each value written back to its step and lane."""
        dense = np.zeros((self.rows, self.steps, self.scheduler.lanes), self.values.dtype)
        cycle, row, lane = np.nonzero(self.select >= 0)
        step, place = self.places()
        dense[row, step[cycle, row, lane], place[cycle, row, lane]] = self.values[cycle, row, lane]
        return dense.reshape(self.shape)

    def meet(self, other: Values) -> Values:
        """[cycles, rows, lanes]: the values of the other operand, [steps, lanes], that the stored MS select; zero at idle lanes."""
        if other.shape != self.shape[-2:]:
            raise BadInput(f"the other operand has shape {other.shape}: the stored streams meet one of shape {self.shape[-2:]}")
        step, lane = self.places()
        actual: Values = other[np.minimum(step, max(self.steps - 1, 0)), lane] if self.cycles else np.zeros(step.shape, other.dtype)
        actual[self.select < 0] = 0
        return actual

    def expansion_cycles(self, ports: int | None = None) -> int:
        """Cycles to decode it on load: a stored row in a cycle, while `ports` dense rows leave (default: `depth`, never waits)."""
        ports = self.scheduler.depth if ports is None else ports
        require_positive("decompressor", ports=ports)
        leaving = np.minimum(self.advance, self.steps - self.position)
        return int((-(-leaving // ports)).sum())

    def bits(self, form: Form = "gapless") -> int:
        """What it takes, in closed form; `to_bytes` fills the last byte up."""
        return int(
            stored_bits(
                np.array(self.cycles), np.array(self.nonzeros),
                scheduler=self.scheduler, value_bits=8 * self.values.dtype.itemsize, rows=self.rows, form=form,
            )
        )  # fmt: skip

    def to_bytes(self, form: Form = "gapless") -> bytes:
        """Its rows, packed bit behind bit, the lowest first."""
        require_form(form)
        select_bits, advance_bits = signal_bits(self.scheduler)
        valid = self.select >= 0
        wide = self.cycles, self.rows * self.scheduler.lanes
        octets = np.frombuffer(self.values.tobytes(), np.uint8).reshape(*wide, self.values.dtype.itemsize)
        signals = _bits_of(np.maximum(self.select, 0).reshape(wide), select_bits)
        lanes = np.concatenate([signals, np.unpackbits(octets, axis=2, bitorder="little")], axis=2)
        kept = np.repeat(valid.reshape(wide) | (form == "padded"), lanes.shape[2], axis=1)
        head = [_bits_of(self.advance - 1, advance_bits)] + ([valid.reshape(wide)] if form == "gapless" else [])
        headed = np.concatenate([*head, lanes.reshape(len(lanes), -1)], axis=1).astype(np.bool_)
        kept = np.concatenate([np.ones((self.cycles, headed.shape[1] - kept.shape[1]), np.bool_), kept], axis=1)
        return np.packbits(headed[kept], bitorder="little").tobytes()


def effectual(values: Values) -> Bits:
    """What must be stored: every value with a bit set. A negative zero is kept, so that everything comes back as it was."""
    if values.dtype.hasobject or values.dtype.itemsize == 0:
        raise BadInput(f"pre-scheduled storage: values of type {values.dtype} have no bits of their own: give numbers")
    octets = np.frombuffer(values.tobytes(), np.uint8).reshape(*values.shape, values.dtype.itemsize)
    return np.asarray(octets.any(axis=-1), dtype=np.bool_)


def encode(values: Values, scheduler: Scheduler, *, exact: bool = True) -> Scheduled:
    """Schedule a stream [steps, lanes] ahead, or a row group [rows, steps, lanes] in lockstep.

    `exact=False` drops negative zeros, as the element's comparators would; the rows are then those of the run-time scheduler.
    """
    values = np.asarray(values)
    _require_stream(values.shape, scheduler)
    dense = values.reshape(-1, *values.shape[-2:])
    trace = scheduler.trace(effectual(dense) if exact else effectual(dense) & (dense != 0))
    actual = Scheduled(
        scheduler=scheduler,
        shape=values.shape,
        values=np.zeros(trace.select.shape, values.dtype),
        select=trace.select,
        advance=trace.advance.min(axis=1),
    )
    cycle, row, lane = np.nonzero(trace.select >= 0)
    step, place = actual.places()
    actual.values[cycle, row, lane] = dense[row, step[cycle, row, lane], place[cycle, row, lane]]
    return actual


def from_bytes(
    data: bytes, *, shape: Sequence[int], dtype: npt.DTypeLike, scheduler: Scheduler, form: Form = "gapless"
) -> Scheduled:
    """Read packed rows; shape, type and scheduler are what a transfer's descriptor says. Damaged rows are refused."""
    require_form(form)
    kind = np.dtype(dtype)
    _require_stream(tuple(shape), scheduler)
    rows, steps = (1, *shape)[-3], shape[-2]
    select_bits, advance_bits = signal_bits(scheduler)
    lanes, lane_bits = rows * scheduler.lanes, select_bits + 8 * kind.itemsize
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").astype(np.bool_)
    at = position = 0
    valid: list[Bits] = []
    stored: list[Bits] = []
    advances: list[int] = []
    while position < steps:
        mask = np.ones(lanes, np.bool_)
        advances.append(int(_number(bits[at : at + advance_bits])) + 1)
        at += advance_bits
        if form == "gapless":
            mask = bits[at : at + lanes]
            at += lanes
        body = bits[at : at + int(mask.sum()) * lane_bits]
        at += int(mask.sum()) * lane_bits
        _require(at <= bits.size, f"{len(data)} bytes end in the middle of row {len(valid)}")
        valid.append(mask)
        stored.append(body.reshape(-1, lane_bits))
        position += advances[-1]
    _require(bits.size - at < 8 and not bits[at:].any(), f"{len(data)} bytes hold more than the {len(valid)} rows of the stream")
    kept, fields = np.array(valid), np.concatenate(stored)
    values = np.zeros((*kept.shape, kind.itemsize), np.uint8)
    values[kept] = np.packbits(fields[:, select_bits:], axis=1, bitorder="little")
    select = np.full(kept.shape, -1, np.int64)
    select[kept] = _number(fields[:, :select_bits])
    if form == "padded":
        select[~values.any(axis=-1)] = -1
    wide = len(kept), rows, scheduler.lanes
    actual = Scheduled(
        scheduler=scheduler,
        shape=tuple(shape),
        values=np.frombuffer(values.tobytes(), kind).reshape(wide),
        select=select.reshape(wide),
        advance=np.array(advances, np.int64),
    )
    _require_sound(actual)
    return actual


def store(groups: Values, scheduler: Scheduler, form: Form = "gapless") -> bytes:
    """A tensor's streams [groups, steps, lanes] or row groups [groups, rows, steps, lanes]: where each starts, then all of them."""
    bodies = [encode(group, scheduler).to_bytes(form) for group in groups]
    starts = np.cumsum([0, *(len(body) for body in bodies)])
    if starts[-1] >= 1 << (8 * POINTER_BYTES):
        raise BadInput(
            f"pre-scheduled storage: {starts[-1]} bytes are too many for starts of {POINTER_BYTES} bytes: store it in parts"
        )
    return starts[:-1].astype(f"<u{POINTER_BYTES}").tobytes() + b"".join(bodies)


def load(data: bytes, *, shape: Sequence[int], dtype: npt.DTypeLike, scheduler: Scheduler, form: Form = "gapless") -> Values:
    """The tensor of `store`, expanded; `shape` is that of `groups`."""
    count = shape[0]
    _require(len(data) >= POINTER_BYTES * count, f"{len(data)} bytes do not even hold {count} starts")
    starts = [*np.frombuffer(data, f"<u{POINTER_BYTES}", count).tolist(), len(data) - POINTER_BYTES * count]
    body = data[POINTER_BYTES * count :]
    actual = np.zeros(shape, dtype)
    for number, (start, end) in enumerate(pairwise(starts)):
        _require(start <= end <= len(body), f"group {number} is said to lie from {start} to {end} of {len(body)} bytes")
        actual[number] = from_bytes(body[start:end], shape=shape[1:], dtype=dtype, scheduler=scheduler, form=form).decode()
    return actual


def _bits_of(numbers: Integers, count: int) -> Bits:
    """[..., count]: the lowest bit first."""
    return np.asarray((numbers[..., None] >> np.arange(count)) & 1, dtype=np.bool_)


def _number(bits: Bits) -> Integers:
    return bits @ (1 << np.arange(bits.shape[-1], dtype=np.int64))


def _require_stream(shape: tuple[int, ...], scheduler: Scheduler) -> None:
    if len(shape) not in (2, 3) or shape[-1] != scheduler.lanes or min(shape) < 1:
        raise BadInput(
            f"pre-scheduled storage: values of shape {shape} are no stream: give [steps, {scheduler.lanes}] "
            f"or [rows, steps, {scheduler.lanes}]"
        )


def _require(fits: bool, what: str) -> None:
    if not fits:
        raise BadInput(f"pre-scheduled storage: {what}: these are not the rows of this shape, type and scheduler")


def _require_sound(actual: Scheduled) -> None:
    """MS that exist, inside the stream, and no two values at one place."""
    _require(bool((actual.select < len(actual.scheduler.options)).all()), f"an MS beyond {len(actual.scheduler.options)} options")
    cycle, row, lane = np.nonzero(actual.select >= 0)
    step, place = (part[cycle, row, lane] for part in actual.places())
    _require(bool((step < actual.steps).all()), f"a value past the {actual.steps} steps of the stream")
    taken = (row * actual.steps + step) * actual.scheduler.lanes + place
    _require(len(np.unique(taken)) == len(taken), "two values at one place")
