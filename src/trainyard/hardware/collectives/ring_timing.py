"""How long a collective takes on one directed ring whose memory-nodes and switches only forward.

The devices of a ring pass chunks to one another in rounds: a device sends in a round what it received (and reduced) in the round
before. From one device to the next lie one or more wires; on them a chunk goes message by message, stored and forwarded, so that
another hop costs one message's time and the wire's latency, not the chunk's (Fig. 9 of Y. Kwon, M. Rhu: Beyond the Memory Wall.
MICRO 2018). No round waits for the whole ring: a device that has its chunk goes on.

`pipelined` says when a device goes on: with its whole chunk (False; the usual library, and what ASTRA-sim's analytical back end
counts) or message by message (True; then a ring is filled once and not once a round).

All times here are longest paths. A path through the rounds *enters* the next segment with every round it moves on, or *stays* on a
wire for another chunk; `enter` and `stay` are their costs. So the time is that of the costliest walk of `rounds` moves, and it
can only fall with more bandwidth, fewer hops or less to send. By chunks it is exact; message by message it is exact where all wires
of a ring are equally fast or all messages equally long, and else too long by less than one message on the slowest wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from trainyard.hardware.topology.graph import Arc

STREAMS = ("broadcast", "reduce")
"""Kinds that run through the ring once, from or to a root; the wires between the last device and the first carry nothing."""
LAPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""Rounds of the others: so many times one less than there are devices."""


def arc_rounds(kind: str, devices: int) -> int:
    """Chunks that each wire of the ring carries; a chunk is one part in `devices` of the ring's data.

    >>> arc_rounds("all_reduce", 8), arc_rounds("all_gather", 8), arc_rounds("broadcast", 8)
    (14, 7, 8)
    """
    return devices if kind in STREAMS else LAPS[kind] * (devices - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The wires from one device of a ring to the next."""

    arcs: tuple[Arc, ...]
    seconds_per_byte: tuple[float, ...]
    latency_s: float

    @property
    def slowest(self) -> float:
        return max(self.seconds_per_byte)

    def message_s(self, size: int) -> float:
        """One message from device to device."""
        return sum(self.seconds_per_byte) * size + self.latency_s

    def chunk_s(self, chunk: int, message: int) -> float:
        """A chunk from device to device in messages, the last of which may be shorter.

        Of the paths through wires and messages, the longest stays on the slowest wire and is overtaken by the last message on one
        of the wires from there on.

        >>> Segment(arcs=((0, 0), (1, 0)), seconds_per_byte=(1.0, 2.0), latency_s=10.0).chunk_s(5, message=2)
        22.0
        """
        full = min(message, chunk)
        count = -(-chunk // full)
        if count == 1:
            return self.message_s(chunk)
        last = chunk - (count - 1) * full
        before = accumulate(self.seconds_per_byte)
        ends = max((full - last) * passed + last * wire for passed, wire in zip(before, self.seconds_per_byte, strict=True))
        return self.latency_s + last * sum(self.seconds_per_byte) + ends + (count - 2) * full * self.slowest


class Lane:
    """One directed ring, ready to be timed: `ranks` are its devices in order, `segments[i]` leads from the i-th to the next.

    Rings with the same number `form_number` have segments of the same speeds and latencies.
    """

    __slots__ = (
        "_paths",
        "_steps",
        "_windows",
        "arcs",
        "form_number",
        "hops",
        "latency_s",
        "ranks",
        "segments",
        "slowest",
        "uniform",
    )

    def __init__(self, ranks: Sequence[int], segments: Sequence[Segment], form_number: int = 0) -> None:
        self.ranks, self.segments, self.form_number = tuple(ranks), tuple(segments), form_number
        self.arcs = tuple(arc for segment in segments for arc in segment.arcs)
        self.hops = len(self.arcs)
        self.latency_s = sum(segment.latency_s for segment in segments)
        self.slowest = max(segment.slowest for segment in segments)
        self.uniform = all(wire == self.slowest for segment in segments for wire in segment.seconds_per_byte)
        self._steps = _pareto([(len(segment.arcs), segment.latency_s) for segment in segments], least=True)
        self._paths: dict[int, tuple[tuple[Arc, ...], float]] = {}
        self._windows: dict[int, list[tuple[int, float]]] = {}

    def path(self, kind: str, root: int) -> tuple[tuple[Arc, ...], float]:
        """The arcs that carry something, for a root at rank `root`, and the bytes per second of the slowest."""
        idle = self._idle(kind, root) if kind in STREAMS else -1
        if idle not in self._paths:
            used = [segment for number, segment in enumerate(self.segments) if number != idle]
            arcs = tuple(arc for segment in used for arc in segment.arcs)
            self._paths[idle] = arcs, 1 / max(segment.slowest for segment in used)
        return self._paths[idle]

    def form(self, kind: str, root: int) -> tuple[int, int]:
        """Lanes of one form take the same time for the same chunk."""
        return self.form_number, self._idle(kind, root) if kind in STREAMS else -1

    def time_s(self, kind: str, chunk: int, message: int, *, pipelined: bool, root: int) -> float:
        """Seconds until every device has its result; `chunk` bytes of each n-th of the ring's data."""
        if not chunk:
            return 0.0
        if kind in STREAMS:
            return self._stream_s(self._idle(kind, root), chunk, message, pipelined)
        rounds = arc_rounds(kind, len(self.ranks))
        first, slow = min(message, chunk), self.slowest
        if self.uniform and not pipelined:
            extra = max((hops - rounds) * first * slow + latency for hops, latency in self._around(rounds))
            return rounds * chunk * slow + extra
        if self.uniform:
            enters = [hops * first * slow + latency for hops, latency in self._steps]
            if max(enters) <= chunk * slow:
                return max(enters) + (rounds * chunk - first) * slow
            if min(enters) >= chunk * slow:
                return max(hops * first * slow + latency for hops, latency in self._around(rounds)) + (chunk - first) * slow
        return self._longest_s(rounds, chunk, message, pipelined)

    def _stream_s(self, idle: int, chunk: int, message: int, pipelined: bool) -> float:
        """Chunk after chunk, or message after message, over all segments but one; the slowest wire limits the rate."""
        count, first = len(self.ranks), min(message, chunk)
        used = [segment for number, segment in enumerate(self.segments) if number != idle] if not self.uniform else []
        slow = max((segment.slowest for segment in used), default=self.slowest)
        unused = self.segments[idle]
        hops, latency = self.hops - len(unused.arcs), self.latency_s - unused.latency_s
        if pipelined:
            through = sum(segment.message_s(first) for segment in used) if used else hops * first * slow + latency
            return through + (count * chunk - first) * slow
        extra = (hops - (count - 1)) * first * slow + latency
        through = sum(segment.chunk_s(chunk, message) for segment in used) if used else (count - 1) * chunk * slow + extra
        return through + (count - 1) * chunk * slow

    def _idle(self, kind: str, root: int) -> int:
        """The segment that carries nothing: the one into the root of a broadcast, out of the root of a reduction."""
        position = self.ranks.index(root)
        return position if kind == "reduce" else position - 1 if position else len(self.ranks) - 1

    def _around(self, rounds: int) -> list[tuple[int, float]]:
        """(hops, latency) of `rounds` consecutive segments, from every start; only those that can be the costliest."""
        if rounds not in self._windows:
            laps, more = divmod(rounds, len(self.segments))
            twice = (*self.segments, *self.segments)
            hops = list(accumulate((len(segment.arcs) for segment in twice), initial=0))
            latency = list(accumulate((segment.latency_s for segment in twice), initial=0.0))
            starts = range(len(self.segments))
            self._windows[rounds] = _pareto(
                [
                    (laps * self.hops + hops[at + more] - hops[at], laps * self.latency_s + latency[at + more] - latency[at])
                    for at in starts
                ]
            )
        return self._windows[rounds]

    def _longest_s(self, rounds: int, chunk: int, message: int, pipelined: bool) -> float:
        """The costliest walk of `rounds` moves, move by move; `once` is the time of a chunk after its first message."""
        first = min(message, chunk)
        stay = np.array([segment.slowest * chunk for segment in self.segments])
        if pipelined:
            enter = np.array([segment.message_s(first) for segment in self.segments])
            once = np.array([segment.slowest * (chunk - first) for segment in self.segments])
        else:
            enter = np.array([segment.chunk_s(chunk, message) for segment in self.segments])
            once = np.zeros(len(self.segments))
        ahead, behind = enter, enter + once
        for _ in range(rounds - 1):
            ahead = np.maximum(np.roll(ahead, 1) + enter, ahead + stay)
            behind = np.maximum(np.roll(behind, 1) + enter, np.maximum(behind + stay, ahead + once))
        return float(behind.max())


def _pareto(pairs: Sequence[tuple[int, float]], *, least: bool = False) -> list[tuple[int, float]]:
    """Pairs that no other exceeds in both; with `least` also those that exceed no other: one of them has the smallest sum."""
    distinct = sorted(set(pairs), reverse=True)
    front, most = [], -1.0
    for pair in distinct:
        if pair[1] > most:
            front.append(pair)
            most = pair[1]
    for pair in reversed(distinct if least else []):
        if pair[1] < most or pair == distinct[-1]:
            front.append(pair)
            most = pair[1]
    return list(dict.fromkeys(front))
