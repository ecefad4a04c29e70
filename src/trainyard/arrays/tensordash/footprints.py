"""Bits that a tensor takes in memory: dense, zero-compressed, by index, and pre-scheduled; in one order of use, and in both.

Pre-scheduled storage goes beyond M. Mahmoud et al.: TensorDash. MICRO 2020, which names it (Sec. III, V: weights, by software). A
stream [steps, lanes] is run through the one-sided scheduler ahead of time: weights in software, activations by a second scheduler
behind the layer that makes them. The multiplexers then obey the stored MS, and no scheduler is needed at run time. A cycle is
stored as

    AS - 1, then of each lane MS and its value     `padded`: rows of one width; an idle lane has MS 0 and the value zero
    AS - 1, one bit a lane: has it a value? and
    MS and value of the lanes that have one        `gapless`: rows of unequal width

with ceil(log2(options)) bits of MS and ceil(log2(depth)) of AS (3 and 2 for the paper's element), so its bits follow from the
cycles and the non-zeros of a stream (`stored_bits`). The other forms, for a stream of n elements of v bits of which z are not zero:

    dense   n v
    bitmap  n + z v                       one bit an element (M. Rhu et al.: Compressing DMA Engine. HPCA 2018)
    csr     z (ceil(log2 n) + v)          the index of each value in its stream

Each compressed stream fills its last byte and has a start address, so that tiles can fetch streams in any order. A form may come
out larger than dense; a real store would then leave the stream dense.

During training each tensor is summed over in two orders (Sec. III: Table II), and promotion moves values along the stream only:

| tensor       | first use             | second use                |
|--------------|-----------------------|---------------------------|
| activations  | along channels (A*W)  | along positions (A*G)     |
| gradients    | along channels (W*G)  | along positions (A*G)     |
| weights      | along channels (A*W)  | along filters (W*G)       |

Rows scheduled along one order cannot be used along the other. Either both are stored (`TwoOrders.both`), or one, which is expanded
on load and transposed when the other is needed (`Expansion`), and scheduled at run time if at all. An activation is in several
windows of a convolution. It is stored once: the stream is the channels of one position, and a window is its positions one after the
other, so that no value is promoted from one tap into the next, unlike at run time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from trainyard.arrays.tensordash.scheduler import Bits, Integers, Scheduler, Words, pack
from trainyard.checks import require_positive
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.formats.bank_layout import Transposer

Form = Literal["padded", "gapless"]
FORMS: tuple[Form, ...] = get_args(Form)
POINTER_BYTES = 4
"""assumed: a group's start is a 32-bit byte address, as tiles fetch their groups in any order."""
Kind = Literal["dense", "bitmap", "csr", "padded", "gapless"]
KINDS: tuple[str, ...] = get_args(Kind)


def require_form(form: str) -> None:
    if form not in FORMS:
        raise UnknownName("form", str(form), FORMS, where="pre-scheduled storage")


def signal_bits(scheduler: Scheduler) -> tuple[int, int]:
    """Bits of one MS and of one AS (Sec. III-A: 3 and 2 for eight options, 4 deep).

    >>> signal_bits(Scheduler()), signal_bits(Scheduler(depth=2))
    ((3, 2), (2, 1))
    """
    return (len(scheduler.options) - 1).bit_length(), (scheduler.depth - 1).bit_length()


def stored_bits(
    cycles: Integers, nonzeros: Integers, *, scheduler: Scheduler, value_bits: int, rows: int = 1, form: Form
) -> Integers:
    """Bits of pre-scheduled groups of `rows` streams, from their cycles and non-zeros.

    >>> stored_bits(np.array([3]), np.array([7]), scheduler=Scheduler(), value_bits=16, form="padded")  # 3 (2 + 4 (3 + 16))
    array([234])
    """
    require_form(form)
    select_bits, advance_bits = signal_bits(scheduler)
    if form == "padded":
        return cycles * (advance_bits + rows * scheduler.lanes * (select_bits + value_bits))
    return cycles * (advance_bits + rows * scheduler.lanes) + nonzeros * (select_bits + value_bits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bits of some streams in each form; footprints add.

    `steps` are the dense steps of all streams together, `cycles` the scheduled rows (of groups, where rows are scheduled together).
    """

    streams: int
    steps: int
    elements: int
    nonzeros: int
    cycles: int
    bits: Mapping[str, int]

    def ratio(self, kind: str = "gapless", against: str = "dense") -> float:
        """How many times smaller than `against`; below 1 it is larger."""
        for name in (kind, against):
            if name not in KINDS:
                raise UnknownName("form of storage", name, KINDS)
        return self.bits[against] / self.bits[kind]

    @property
    def smallest(self) -> str:
        return min(KINDS, key=lambda kind: self.bits[kind])

    @property
    def sparsity(self) -> float:
        return 1 - self.nonzeros / self.elements

    def __add__(self, other: Footprint) -> Footprint:
        return Footprint(
            streams=self.streams + other.streams,
            steps=self.steps + other.steps,
            elements=self.elements + other.elements,
            nonzeros=self.nonzeros + other.nonzeros,
            cycles=self.cycles + other.cycles,
            bits={kind: self.bits[kind] + other.bits[kind] for kind in KINDS},
        )


def footprint(
    words: Words,
    steps: int,
    scheduler: Scheduler,
    *,
    value_bits: int = 16,
    rows: int = 1,
    elements: int | None = None,
    pointer_bits: int = 8 * POINTER_BYTES,
) -> Footprint:
    """The footprint of packed streams [streams, words] (`scheduler.pack`) of `steps` steps, `rows` streams scheduled together.

    `elements` are those of one stream without the padding of its last step; the forms without lanes store only them.

    >>> sizes = footprint(pack(np.eye(8).reshape(1, 16, 4)), 16, Scheduler())
    >>> sizes.cycles, dict(sizes.bits)  # padded: 4 rows of 2 + 4 * 19 bits; gapless: 4 of 2 + 4, and 8 values of 19; with starts
    (4, {'dense': 1024, 'bitmap': 224, 'csr': 208, 'padded': 344, 'gapless': 208})
    """
    require_positive("footprint", steps=steps, value_bits=value_bits, rows=rows)
    elements = steps * scheduler.lanes if elements is None else elements
    cycles = scheduler.cycles(words, steps, rows)
    nonzeros = np.bitwise_count(words).sum(axis=1, dtype=np.int64)
    if not 0 < elements <= steps * scheduler.lanes or (len(nonzeros) and int(nonzeros.max()) > elements):
        raise BadInput(f"footprint: streams of {steps} steps of {scheduler.lanes} lanes cannot have {elements} elements each")
    grouped = np.add.reduceat(nonzeros, np.arange(0, len(nonzeros), rows)) if len(nonzeros) else nonzeros
    index_bits = (elements - 1).bit_length()

    def with_padding_and_start(bits: Integers) -> int:
        return int((-(-bits // 8) * 8 + pointer_bits).sum())

    bits = {
        "dense": len(words) * elements * value_bits,
        "bitmap": with_padding_and_start(elements + nonzeros * value_bits),
        "csr": with_padding_and_start(nonzeros * (index_bits + value_bits)),
    }
    for form in FORMS:
        stored = stored_bits(cycles, grouped, scheduler=scheduler, value_bits=value_bits, rows=rows, form=form)
        bits[form] = with_padding_and_start(stored)
    return Footprint(
        streams=len(words),
        steps=len(words) * steps,
        elements=len(words) * elements,
        nonzeros=int(nonzeros.sum()),
        cycles=int(cycles.sum()),
        bits=bits,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """The work of using a tensor in the order that was not stored.

    Decompressors read `rows_read` stored rows and write `rows_written` dense ones: one dense row in a cycle or, with as many write
    ports as the buffer is deep, all that a stored row drains. Then `groups` of lanes x lanes values pass the transposers.
    """

    rows_read: int
    rows_written: int
    groups: int
    transpose_cycles: int

    def decompress_cycles(self, *, ports: Literal["one", "depth"] = "depth") -> int:
        """Cycles of one decompressor with one write port, or with as many as the buffer is deep."""
        return self.rows_read if ports == "depth" else self.rows_written


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoOrders:
    """A tensor in both its orders of use."""

    first: Footprint
    second: Footprint
    groups: int
    lanes: int

    @property
    def both(self) -> Mapping[str, int]:
        """Bits if the tensor is stored in both orders; forms without an order are stored once."""
        return {kind: self.first.bits[kind] + (self.second.bits[kind] if kind in FORMS else 0) for kind in KINDS}

    def expansion(self, stored: Literal["first", "second"] = "first") -> Expansion:
        """The work of storing one order and using the other."""
        footprint = self.first if stored == "first" else self.second
        return Expansion(
            rows_read=footprint.cycles,
            rows_written=footprint.steps,
            groups=self.groups,
            transpose_cycles=Transposer(group=self.lanes).cycles(self.groups),
        )


def activation_orders(nonzero: npt.ArrayLike, scheduler: Scheduler, *, value_bits: int = 16) -> TwoOrders:
    """Activations or gradients [samples, channels, positions]: along the channels, and along the positions of a sample.

    >>> orders = activation_orders(np.ones((2, 8, 49)), Scheduler())
    >>> orders.first.cycles, orders.second.cycles, orders.groups  # 98 positions of 2 steps, 16 channels of 13 steps
    (196, 208, 52)
    """
    bits = _three_axes(nonzero, "activations [samples, channels, positions]")
    samples, channels, positions = bits.shape
    return TwoOrders(
        first=_along(bits.transpose(0, 2, 1).reshape(-1, channels), scheduler, value_bits),
        second=_along(bits.reshape(-1, positions), scheduler, value_bits),
        groups=samples * -(-channels // scheduler.lanes) * -(-positions // scheduler.lanes),
        lanes=scheduler.lanes,
    )


def weight_orders(nonzero: npt.ArrayLike, scheduler: Scheduler, *, value_bits: int = 16) -> TwoOrders:
    """Weights [filters, channels, taps]: a filter tap by tap along its channels, and a channel tap by tap along the filters.

    A tap begins with a new step; the stream, and promotion, continue across taps.
    """
    bits = _three_axes(nonzero, "weights [filters, channels, taps]")
    filters, channels, taps = bits.shape
    return TwoOrders(
        first=_along(bits.transpose(0, 2, 1), scheduler, value_bits),
        second=_along(bits.transpose(1, 2, 0), scheduler, value_bits),
        groups=taps * -(-channels // scheduler.lanes) * -(-filters // scheduler.lanes),
        lanes=scheduler.lanes,
    )


def _along(bits: Bits, scheduler: Scheduler, value_bits: int) -> Footprint:
    """Footprint of streams along the last axis, [streams, elements] or [streams, taps, elements], padded to whole steps."""
    count, size = len(bits), bits.shape[-1]
    steps = -(-size // scheduler.lanes)
    filled = np.zeros((*bits.shape[:-1], steps * scheduler.lanes), np.bool_)
    filled[..., :size] = bits
    streams = filled.reshape(count, -1, scheduler.lanes)
    return footprint(pack(streams), streams.shape[1], scheduler, value_bits=value_bits, elements=bits[0].size)


def _three_axes(nonzero: npt.ArrayLike, what: str) -> Bits:
    bits: Bits = np.asarray(np.asarray(nonzero) != 0)
    if bits.ndim != 3 or not bits.size:
        raise BadInput(f"footprint: a mask of shape {bits.shape}: give {what}")
    return bits
