"""Benes networks with multicast: SIGMA's, two control bits to a switch, and the textbook one that blocks.

E. Qin et al.: SIGMA: A Sparse and Irregular GEMM Accelerator with Flexible Interconnects for DNN Training. HPCA 2020, Sec. IV-A1:
N inputs and outputs, 2 log2 N + 1 levels of N 2x2 switches; each output of a switch (the vertical one and the diagonal one) takes
either input by its own bit, so that a switch can copy. Assumed, for the paper draws four ports only: switch j of a level meets
switch j and switch j ^ stride of the next, strides 1, 2, ..., N/2, N/2, ..., 2, 1. That is a Benes network of 2N ports with one
port of each outer switch in use. The textbook network has N ports on N/2 switches, 2 log2 N - 1 levels.

**The law.** A path is named by the switch it passes at the middle level. Two outputs d, e with different sources s, t may take two
middles whose common low bits number at most 1 + min(top(s ^ t), top(d ^ e)), where top(x) is the highest bit set (textbook: one
less); with more they share a link. What one source feeds may share everything. It follows:

- A monotone map is routed by taking the rank of the source as the middle, for ranks lie no further apart than sources and outputs.
- **The network is not rearrangeable for all N.** Four sources of an aligned block own disjoint sets of the 8 classes that 3 bits of
  the middle make, so one of them owns at most 2. Of 57 such sources, one per block, three lie in the same pair of classes (there
  are 28 pairs); an aligned block of 4 outputs that wants these three finds 2 classes for 3 sources. A map that asks for each of the
  64 * C(57, 3) triples somewhere is blocked whatever is set. It needs N = 2**23; no blocked map of a width that is built is known.

So routing is a search, but for monotone maps. `route` runs the looping algorithm bit by bit (two-colouring where sources share a
switch, the rest steered apart), which never fails on a permutation: there all loops are even. Odd loops leave clashes, which are
negotiated: connections that clash are lifted and laid again where it is cheapest, and every clash leaves its link dearer, for at
most `ROUNDS` rounds.
Negotiation may give up on a map that has a routing; what it could not lay goes in a further pass, and is counted.

One-off runs: all 8**8 maps of 8 ports in one pass; the textbook network blocks 1 761 408 of them, 10.5 %. Ascending runs of compact
sources, which SIGMA's counters produce (the sources of each row of the stationary matrix ascend), are the hard ones: all of 6000 in
one pass at 128 ports, all of 200 at 256; at 512 about 1 in 4 falls back to a second pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_positive
from trainyard.errors import BadInput

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]

ROUNDS = 500
"""Rounds of negotiation before connections are left to a second pass; of 3000 hard maps of 128 ports 2 % needed more than 40, none
more than 160."""


def require_ports(owner: str, ports: object) -> None:
    """A power of two, at least 2.

    >>> require_ports("Benes", 96)
    Traceback (most recent call last):
    trainyard.errors.BadInput: Benes: ports must be a power of two of at least 2, got 96: write 64 or 128
    """
    require_positive(owner, ports=ports)
    assert isinstance(ports, int)
    if ports < 2 or ports & (ports - 1):
        below = max(2, 1 << (ports.bit_length() - 1))
        offer = f"{below} or {2 * below}" if ports > 2 else "2"
        raise BadInput(f"{owner}: ports must be a power of two of at least 2, got {ports}: write {offer}")


def checked_sources(owner: str, ports: int, sources: npt.ArrayLike) -> Integers:
    """[vectors, ports] whole numbers from -1 (idle) to ports - 1; a single vector is one row."""
    ports_of_outputs = np.asarray(sources)
    if ports_of_outputs.ndim == 1:
        ports_of_outputs = ports_of_outputs[None]
    if ports_of_outputs.ndim != 2 or ports_of_outputs.shape[1] != ports:
        shape = np.shape(sources)
        raise BadInput(f"{owner}: sources must have shape [vectors, {ports}], one input port (or -1) per output, got shape {shape}")
    if ports_of_outputs.dtype.kind not in "iu":
        raise BadInput(f"{owner}: sources must be whole numbers, got {ports_of_outputs.dtype}")
    if ports_of_outputs.size and (ports_of_outputs.min() < -1 or ports_of_outputs.max() >= ports):
        vector, output = (int(i) for i in np.argwhere((ports_of_outputs < -1) | (ports_of_outputs >= ports))[0])
        number = int(ports_of_outputs[vector, output])
        raise BadInput(f"{owner}: sources[{vector}, {output}] is {number}: an input port 0..{ports - 1}, or -1 for an idle output")
    return np.ascontiguousarray(ports_of_outputs, dtype=np.int64)


def checked_values(owner: str, ports: int, vectors: int, values: npt.ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float32)
    if array.ndim == 1:
        array = array[None]
    if array.shape != (vectors, ports):
        raise BadInput(
            f"{owner}: values must have shape [{vectors}, {ports}], as the settings were made for, got {np.shape(values)}"
        )
    return np.ascontiguousarray(array)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Settings:
    """Control bits of every pass. Bit 0 of a switch selects the input of its vertical output, bit 1 that of its diagonal output:
    0 the vertical input, 1 the diagonal one (first and second port of an outer switch). An idle output latches nothing.
    """

    bits: npt.NDArray[np.uint8]  # [passes, levels, switches of a level]
    enable: Flags  # [passes, ports]: outputs that latch in this pass, from the SRC-DEST table
    row: Integers  # [passes]: the vector a pass belongs to
    vectors: int

    @property
    def passes(self) -> Integers:
        """Passes of each vector; more than 1 where the router could not place all connections in one."""
        return np.bincount(self.row, minlength=self.vectors).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Multistage:
    """What both networks share; `_outer` is 1 where each outer switch has one used port."""

    ports: int
    latency: int = 1  # cycles; latch-free levels take one together (Sec. IV-A1), more where levels are latched for timing closure

    def __post_init__(self) -> None:
        require_ports(type(self).__name__, self.ports)
        require_positive(type(self).__name__, latency=self.latency)

    @property
    def _outer(self) -> int:
        raise NotImplementedError

    @property
    def _bits(self) -> int:
        return self.ports.bit_length() - 2 + self._outer

    @property
    def levels(self) -> int:
        return 2 * self._bits + 1

    @property
    def switches(self) -> int:
        return self.levels << self._bits

    @property
    def control_bits(self) -> int:
        return 2 * self.switches

    @property
    def wires(self) -> int:
        """Links between the levels, two from every switch but those of the last level."""
        return (self.levels - 1) << (self._bits + 1)

    def route(self, sources: npt.ArrayLike) -> Settings:
        """Settings for sources[vectors, ports] (source port of every output, -1: idle), in one pass where the router finds it."""
        from trainyard.kernels.networks.benes import route

        left = checked_sources(type(self).__name__, self.ports, sources)
        vectors, row = len(left), np.arange(len(left))
        parts: list[Settings] = []
        while True:
            middles = np.empty_like(left)
            route(left, self._outer, ROUNDS, 0, middles)
            parts.append(self._set(left, middles, row, vectors))
            left = np.where(middles >= 0, -1, left)
            more = (left >= 0).any(axis=1)
            if not more.any():
                return _joined(parts)
            left, row = left[more], row[more]

    def _set(self, sources: Integers, middles: Integers, row: Integers, vectors: int, ends: Integers | None = None) -> Settings:
        from trainyard.kernels.networks.benes_switches import set_switches

        bits = np.zeros((len(sources), self.levels, 1 << self._bits), dtype=np.uint8)
        ends = np.broadcast_to(np.arange(self.ports), sources.shape) if ends is None else ends
        set_switches(sources, middles, ends, self._outer, self._bits, bits)
        return Settings(bits=bits, enable=middles >= 0, row=row, vectors=vectors)

    def deliver(self, settings: Settings, values: npt.ArrayLike) -> Floats:
        """The values at the outputs: values[vectors, ports] pushed through every switch of every level, 0 where idle."""
        from trainyard.kernels.networks.benes_switches import push

        if settings.bits.shape[1:] != (self.levels, 1 << self._bits):
            shape = f"[passes, {self.levels}, {1 << self._bits}]"
            raise BadInput(
                f"{type(self).__name__}: settings must hold bits {shape}, got {settings.bits.shape}: route them on this network"
            )
        inputs = checked_values(type(self).__name__, self.ports, settings.vectors, values)
        results, short = np.zeros_like(inputs), max(0, 8 - (1 << self._bits))
        bits = np.pad(settings.bits, ((0, 0), (0, 0), (0, short))) if short else np.ascontiguousarray(settings.bits)
        push(bits.view(np.uint64), self._outer, self._bits, settings.row, settings.enable, inputs, results)
        return results

    def cycles(self, sources: npt.ArrayLike) -> Integers:
        """Cycles until a vector is delivered: one pass enters per cycle."""
        return self.latency + self.route(sources).passes - 1

    def blocks(self, sources: npt.ArrayLike) -> Flags:
        """Vectors that this router needs more than one pass for."""
        return np.asarray(self.route(sources).passes > 1)


def _joined(parts: list[Settings]) -> Settings:
    if len(parts) == 1:
        return parts[0]
    bits, enable, row = (np.concatenate(rows) for rows in zip(*((s.bits, s.enable, s.row) for s in parts), strict=True))
    return Settings(bits=bits, enable=enable, row=row, vectors=parts[0].vectors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Benes(_Multistage):
    """SIGMA's distribution network (Sec. IV-A1): 2 log2 N + 1 levels of N switches.

    >>> network = Benes(ports=4)
    >>> network.levels, network.switches, network.control_bits
    (5, 20, 40)
    >>> settings = network.route([[2, 0, 2, -1]])
    >>> network.deliver(settings, [[1.0, 2.0, 3.0, 4.0]])
    array([[3., 1., 3., 0.]], dtype=float32)
    """

    @property
    def _outer(self) -> int:
        return 1

    def carry(self, sources: npt.ArrayLike, values: npt.ArrayLike) -> tuple[Floats, Integers]:
        """`route` and `deliver` in one, without storing the settings: the outputs, and the passes of each vector.

        >>> Benes(ports=4).carry([[2, 0, 2, -1]], [[1.0, 2.0, 3.0, 4.0]])
        (array([[3., 1., 3., 0.]], dtype=float32), array([1]))
        """
        from trainyard.kernels.networks.benes import route
        from trainyard.kernels.networks.benes_switches import carry

        left = checked_sources("Benes", self.ports, sources)
        inputs = checked_values("Benes", self.ports, len(left), values)
        results, passes, row = np.zeros_like(inputs), np.ones(len(left), np.int64), np.arange(len(left))
        while True:
            middles = np.empty_like(left)
            more = route(left, self._outer, ROUNDS, 0, middles) != 1
            carry(left, middles, self._outer, self._bits, row, inputs, results)
            if not more.any():
                return results, passes
            left, row = np.where(middles >= 0, -1, left)[more], row[more]
            passes[row] += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TextbookBenes(_Multistage):
    """The N-port Benes network, 2 log2 N - 1 levels of N/2 switches: every permutation, not every multicast.

    >>> network = TextbookBenes(ports=8)
    >>> network.levels, network.switches
    (5, 20)
    >>> network.blocks([[7, 6, 5, 4, 3, 2, 1, 0], [0, 0, 0, 0, 1, 2, 1, 3]])  # 1 parts from 2 and from 3, which have to part too
    array([False,  True])
    """

    @property
    def _outer(self) -> int:
        return 0

    def route(self, sources: npt.ArrayLike) -> Settings:
        """One pass where the router finds it. Two copies of this network side by side are `Benes`: what blocks goes in two passes,
        one per copy, wherever `Benes` routes it.
        """
        from trainyard.kernels.networks.benes import route

        wanted = checked_sources("TextbookBenes", self.ports, sources)
        middles, row = np.empty_like(wanted), np.arange(len(wanted))
        routed = route(wanted, 0, ROUNDS, 0, middles) == 1
        parts = [self._set(wanted[routed], middles[routed], row[routed], len(wanted))]
        left, row = wanted[~routed], row[~routed]
        while len(left):
            middles = np.empty_like(left)
            route(left, 1, ROUNDS, 0, middles)
            for copy in (0, 1):
                here = np.where((middles >= 0) & (middles & 1 == copy), middles >> 1, -1)
                used = (here >= 0).any(axis=1)
                parts.append(self._set(left[used], here[used], row[used], len(wanted)))
            left = np.where(middles >= 0, -1, left)
            more = (left >= 0).any(axis=1)
            left, row = left[more], row[more]
        return _joined(parts)

    def passes(self, sources: npt.ArrayLike) -> Integers:
        """Passes that the router takes: an upper bound on those needed."""
        return self.route(sources).passes
