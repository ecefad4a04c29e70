"""Elements that obey stored rows: a tile fed with pre-scheduled streams multiplies without a scheduler.

The rows of `prescheduled` carry the values of one operand, MS and AS. The other operand comes through its staging buffers as ever;
the stored MS steer its multiplexers, the stored AS its refilling. Rows of a tile share those buffers, one per column. So a tile
takes a row group that was scheduled in lockstep, at the very cycles of the run-time scheduler; or streams that were each scheduled
alone, where a row waits while a step that it reads is not in the buffer, which holds `buffer_depth` steps from that of the row
furthest behind. As deep as the streams are long (or one buffer for each row) that is the `output` rule, and nobody waits.
What cannot be: streams scheduled alone that advance in lockstep, for the AS of a stored row is the row's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from oracles.prescheduled import Scheduled, Values, encode
from trainyard.arrays.tensordash.element import StagingBuffer, adder_tree, operand
from trainyard.arrays.tensordash.scheduler import Bits, Scheduler
from trainyard.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadyExecution:
    """Outputs [rows, columns], the cycles they took, and the cycles in which a stream waited for the buffer, of all streams."""

    product: Values
    cycles: int
    waits: int


def shared_buffer_cycles(streams: Sequence[Scheduled], buffer_depth: int | None = None) -> int:
    """Cycles of a tile that obeys these streams behind one buffer per column (default: as deep as the scheduler's).

    >>> sparse = [encode(np.eye(8, dtype=np.int8)[:, first : first + 4], Scheduler()) for first in (0, 4)]
    >>> [stream.cycles for stream in sparse], shared_buffer_cycles(sparse), shared_buffer_cycles(sparse, buffer_depth=8)
    ([2, 2], 2, 2)
    """
    return sum(1 for _ in issues(streams, buffer_depth))


def issues(streams: Sequence[Scheduled], buffer_depth: int | None = None) -> Iterator[tuple[int, list[int]]]:
    """Of each cycle, the first step of the buffer and the streams that issue their next stored row; the others wait or are done."""
    if not streams or len({stream.shape[-2:] for stream in streams}) != 1:
        raise BadInput(f"a tile obeys streams of one length, got shapes {[stream.shape for stream in streams]}")
    depth, steps = max(stream.scheduler.depth for stream in streams), streams[0].steps
    reach = depth if buffer_depth is None else buffer_depth
    if reach < depth:
        raise BadInput(f"a buffer of {reach} steps cannot feed rows that were scheduled {depth} deep: give {depth} or more")
    starts = [[*stream.position.tolist(), steps] for stream in streams]
    furthest = [np.where(stream.select >= 0, stream.places()[0], 0).max(axis=(1, 2)).tolist() for stream in streams]
    done = [0] * len(streams)
    while (first := min(start[count] for start, count in zip(starts, done, strict=True))) < steps:
        going = [
            number
            for number, count in enumerate(done)
            if count < streams[number].cycles and furthest[number][count] < first + reach
        ]
        for number in going:
            done[number] += 1
        yield first, going


def multiply(
    streams: Sequence[Scheduled], others: npt.ArrayLike, number: str = "fp16", *, buffer_depth: int | None = None
) -> ReadyExecution:
    """Outputs of one tile: stored streams on its rows, `others` [columns, steps, lanes] on its columns.

    Numbers are those of `element.operand`; bfloat16 may be stored in its own 16 bits, as uint16.

    >>> stored = encode(np.array([[5, 0], [0, 6]], np.int16), Scheduler(lanes=2, depth=2))
    >>> multiply([stored], np.array([[[1, 2], [3, 4]]]), "fixed").product
    array([[29]])
    """
    order = list(issues(streams, buffer_depth))
    right = operand(others, number)
    steps, lanes = streams[0].shape[-2:]
    if right.ndim != 3 or right.shape[1:] != (steps, lanes):
        raise BadInput(f"the other operand has shape {right.shape}: these streams meet [columns, {steps}, {lanes}]")
    reach = max(stream.scheduler.depth for stream in streams) if buffer_depth is None else buffer_depth
    buffers = [StagingBuffer(reach) for _ in right]
    values = [_numbers(stream.values, number) for stream in streams]
    places = [stream.places() for stream in streams]
    rows = np.cumsum([0, *(stream.rows for stream in streams)])
    sums = np.zeros((int(rows[-1]), len(right)), dtype=np.result_type(right, *values))
    done, fetched, waits = [0] * len(streams), 0, 0
    for first, going in order:
        waits += sum(count < stream.cycles for count, stream in zip(done, streams, strict=True)) - len(going)
        for buffer, column in zip(buffers, right, strict=True):
            buffer.drain(min(first, fetched))
            for step in range(fetched, min(first + reach, steps)):
                buffer.write(column[step])
        fetched = max(fetched, min(first + reach, steps))
        with np.errstate(all="ignore"):
            for stream in going:
                cycle = done[stream]
                step, lane = places[stream][0][cycle], places[stream][1][cycle]
                products = _products(streams[stream].select[cycle], step, lane, values[stream][cycle], buffers, sums.dtype)
                sums[rows[stream] : rows[stream + 1]] += adder_tree(products)
                done[stream] += 1
    return ReadyExecution(product=sums, cycles=len(order), waits=waits)


def _products(
    select: Values, step: Values, lane: Values, values: Values, buffers: list[StagingBuffer], kind: np.dtype[np.generic]
) -> Values:
    """[rows, columns, lanes] of one stored row: each value meets what its MS reads from the column's buffer."""
    actual = np.zeros((len(select), len(buffers), select.shape[1]), dtype=kind)
    for row, own in np.argwhere(select >= 0):
        for column, buffer in enumerate(buffers):
            actual[row, column, own] = buffer.read(int(step[row, own]), int(lane[row, own])) * values[row, own]
    return actual


def _numbers(values: Values, number: str) -> Values:
    if number == "bf16" and values.dtype == np.uint16:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return operand(values, number)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneSideAhead:
    """A dot product of two sparse streams, one of them (`ahead`) pre-scheduled: cycles of the ways to use the other's zeros too.

    `ahead` obeys the stored rows: of the `issued` pairs, `effectual` ones have no zero, the others can only be gated. `expanded`
    decodes on load and looks at both operands at run time. `rescheduled` takes the stored rows for a stream of their own and skips
    what is empty there, for the other operand's zeros or their own: up to depth x depth. For that `span` steps of the other operand
    must be in reach and `depth` stored rows matched with it in a cycle: depth x lanes multiplexers before the second buffer.
    """

    dense: int
    ahead: int
    expanded: int
    rescheduled: int
    issued: int
    effectual: int
    span: int


def one_side_ahead(ahead: npt.ArrayLike, other: npt.ArrayLike, scheduler: Scheduler) -> OneSideAhead:
    """Count it for two masks [steps, lanes].

    >>> one_side_ahead(np.eye(16)[:, :4], np.ones((16, 4)), Scheduler())
    OneSideAhead(dense=16, ahead=4, expanded=4, rescheduled=1, issued=4, effectual=4, span=16)
    """
    mine, theirs = np.asarray(ahead) != 0, np.asarray(other) != 0
    stored = encode(mine, scheduler)
    pairs: Bits = stored.meet(theirs) & (stored.select >= 0)
    first = stored.position
    last = np.minimum(np.arange(stored.cycles) + scheduler.depth, stored.cycles) - 1
    reach = np.minimum(first[last] + scheduler.depth, stored.steps) - first
    return OneSideAhead(
        dense=stored.steps,
        ahead=stored.cycles,
        expanded=scheduler.trace((mine & theirs)[None]).cycles,
        rescheduled=scheduler.trace(pairs.transpose(1, 0, 2)).cycles,
        issued=stored.nonzeros,
        effectual=int(pairs.sum()),
        span=int(reach.max()),
    )
