"""Pipeline parallelism: stages of layers on devices in a row, and the order of microbatches on each device.

A batch is cut into m microbatches that pass p stages forward and back; gradients of weights add up over them, and the weights
change once, after the last. Three schedules:

- `gpipe`: all forward passes, then all backward passes (Y. Huang et al.: GPipe. NeurIPS 2019). A stage holds what all m left.
- `1f1b`: after a warm-up one forward and one backward pass in turn (A. Harlap, D. Narayanan et al.: PipeDream. SOSP 2019; with one
  update a batch: Megatron-LM, SC 2021). Stage s of p holds those of at most p - s microbatches.
- `interleaved`: each device has v `chunks` of layers, and a microbatch passes the row of devices v times (D. Narayanan et al.:
  Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM. SC 2021, Sec. 2.2.2).

With equal stages of f forward and b backward, and free sends, the first two take (m + p - 1)(f + b), the last
(m + (p - 1)/v)(f + b).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from trainyard.checks import require_positive
from trainyard.errors import BadInput, UnknownName

Scheme = Literal["gpipe", "1f1b", "interleaved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """How a node runs a pipeline. `stages` devices make one (all, where none is given); the others hold replicas of it.

    >>> Pipeline(microbatches=4).bubble(stages=4)
    0.42857142857142855
    """

    stages: int | None = None
    microbatches: int = 8
    schedule: Scheme = "1f1b"
    chunks: int = 2

    def __post_init__(self) -> None:
        if self.schedule not in get_args(Scheme):
            raise UnknownName("schedule", str(self.schedule), get_args(Scheme), where="Pipeline")
        require_positive("Pipeline", microbatches=self.microbatches, chunks=self.chunks)
        if self.stages is not None:
            require_positive("Pipeline", stages=self.stages)

    @property
    def chunks_each(self) -> int:
        """Groups of layers on each device."""
        return self.chunks if self.schedule == "interleaved" else 1

    def bubble(self, stages: int) -> float:
        """The share of its time that a device of equal stages waits, if sends are free."""
        waiting = (stages - 1) / self.chunks_each
        return waiting / (self.microbatches + waiting)


class Turn(NamedTuple):
    """One pass of one microbatch through one chunk."""

    backward: bool
    microbatch: int
    chunk: int
    """Of all chunks, in the order of the layers; chunk c lies on device c modulo the devices."""


def turns(pipeline: Pipeline, stages: int) -> list[list[Turn]]:
    """What each device does, in its order.

    >>> [f"{'B' if turn.backward else 'F'}{turn.microbatch}" for turn in turns(Pipeline(microbatches=4), stages=2)[0]]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'F3', 'B2', 'B3']
    """
    count, deep = pipeline.microbatches, pipeline.chunks_each
    if pipeline.schedule == "interleaved" and count % stages:
        raise BadInput(
            f"pipeline: an interleaved schedule takes microbatches in groups of {stages}: {count} is no multiple of {stages}"
        )
    return [list(_turns(pipeline, stages, rank, count * deep)) for rank in range(stages)]


def _turns(pipeline: Pipeline, stages: int, rank: int, total: int) -> Iterator[Turn]:
    deep, count = pipeline.chunks_each, pipeline.microbatches

    def turn(backward: bool, number: int) -> Turn:
        """In groups of one microbatch for each stage, chunk after chunk; backward the last chunk comes first."""
        group, place = divmod(number, stages * deep)
        chunk, within = divmod(place, stages) if deep > 1 else (0, place)
        chunk = deep - 1 - chunk if backward else chunk
        return Turn(backward, group * stages + within, chunk * stages + rank)

    if pipeline.schedule == "gpipe":
        warm = total
    elif pipeline.schedule == "1f1b":
        warm = min(total, stages - rank - 1)
    else:  # Megatron-LM: with as many microbatches as stages nothing can take turns
        warm = total if count == stages else min(total, 2 * (stages - rank - 1) + (deep - 1) * stages)
    for number in range(warm):
        yield turn(False, number)
    for number in range(total - warm):
        yield turn(False, number + warm)
        yield turn(True, number)
    for number in range(total - warm, total):
        yield turn(True, number)


def in_flight(order: Sequence[Turn]) -> int:
    """The most microbatches whose activations a device holds at once: forward passes without their backward pass."""
    most = in_memory = 0
    for turn in order:
        in_memory += -1 if turn.backward else 1
        most = max(most, in_memory)
    return most


def issued(orders: Sequence[Sequence[Turn]], chunks: int) -> Iterator[tuple[int, Turn]]:
    """All turns in an order in which nothing waits for what comes later: (device, turn), each device's own order kept."""
    place, done = [0] * len(orders), set[Turn]()
    left = sum(map(len, orders))
    while left:
        before = left
        for device, order in enumerate(orders):
            while place[device] < len(order) and _ready(order[place[device]], chunks, done):
                turn = order[place[device]]
                done.add(turn)
                place[device] += 1
                left -= 1
                yield device, turn
        if before == left:
            raise BadInput("pipeline: the devices' orders wait for each other")


def _ready(turn: Turn, chunks: int, done: set[Turn]) -> bool:
    """A forward pass follows that of the chunk before, a backward pass that of the chunk behind and its own forward pass."""
    if not turn.backward:
        return turn.chunk == 0 or turn._replace(chunk=turn.chunk - 1) in done
    own = turn._replace(backward=False) in done
    return own and (turn.chunk == chunks - 1 or turn._replace(chunk=turn.chunk + 1) in done)


def balanced(costs: Sequence[float], parts: int) -> list[int]:
    """Where each of `parts` groups of neighbours begins, so that the costliest group is as cheap as can be.

    By dynamic programming over (items, groups); of equal ones the earliest cuts.

    >>> balanced([4, 1, 1, 1, 3], 3)
    [0, 1, 3]
    """
    if len(costs) < parts:
        raise BadInput(f"pipeline: {len(costs)} groups of layers cannot make {parts} stages: ask for fewer stages or chunks")
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    best = list(sums)  # of the first `end` items in one group
    begins: list[list[int]] = []
    for part in range(1, parts):
        new, chosen = [float("inf")] * len(sums), [0] * len(sums)
        for end in range(part + 1, len(sums)):
            begin = _meeting(best, sums, part, end)
            new[end], chosen[end] = max(best[begin], sums[end] - sums[begin]), begin
        best, begins = new, [*begins, chosen]
    firsts, end = [0], len(costs)
    for chosen in reversed(begins):
        end = chosen[end]
        firsts.insert(1, end)
    return firsts


def _meeting(best: Sequence[float], sums: Sequence[float], low: int, end: int) -> int:
    """Where the last group of the first `end` items begins: what is before it costs more the later, the group itself less."""

    def costliest(begin: int) -> float:
        return max(best[begin], sums[end] - sums[begin])

    first, high = low, end - 1
    while low < high:
        middle = (low + high) // 2
        if best[middle] >= sums[end] - sums[middle]:
            high = middle
        else:
            low = middle + 1
    return min(max(first, low - 1), low, key=costliest)
