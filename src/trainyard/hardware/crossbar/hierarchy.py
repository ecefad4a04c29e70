"""A hierarchy of crossbars that connects DPUs without a host: DIRECT's network, in the packaging of UPMEM's DIMMs.

P. P. Kulkarni: DIRECT: Enabling Scalable Processing-In-Memory via DPU-to-DPU Communication, Sec. III-C, Table I (four levels).

The paper prints the number of levels and nothing else, so a level's ports are as wide and as fast as the pins of the package that
they cross. `simulate` simulates every message (`messages` has the rules), `analytic` is Eq. 2 extended to pipelines of messages:

    T = L + M / B,    L the latencies on the path, B the narrowest port,

which holds exactly for a single message of a cut-through network. `O_dsc` is the controller's (`hardware.dsc.unit`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_flag, require_positive, require_quantity
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.crossbar.messages import ARBITRATIONS, SWITCHING, Port, Tree, in_ps
from trainyard.ir import assumed
from trainyard.units import show

if TYPE_CHECKING:
    from trainyard.hardware.crossbar.analytic import Analytic
    from trainyard.hardware.crossbar.exchanges import Simulated

ELEMENT_BYTES = 4  # of a word that is summed: fp32 or 32-bit fixed point
Integers = npt.NDArray[np.integer[Any]]


class Summer(Protocol):
    """The part of an AGAU that exchanges use: its time for a sum of contributions of so many elements."""

    def seconds(self, contributions: int, elements: int) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Level:
    """One level of crossbars: the nodes below a switch, and the port of each, equal in both directions.

    `buffer_messages` is the buffer at the far end of each link. A port's line is on a die, `line_m` long, or goes through the
    `pins` of packages.

    >>> rank = Level(name="rank", fan_in=8, width_bits=8, clock_hz=2.4e9, latency_s=20e-9, buffer_messages=2)
    >>> rank.bytes_per_s, rank
    (2400000000.0, rank: 8 ports of 2.4 GB/s, 20 ns)
    """

    name: str
    fan_in: int
    width_bits: int
    clock_hz: float
    latency_s: float
    buffer_messages: int = 2
    pins: bool = True
    line_m: float = 0.0

    def __post_init__(self) -> None:
        owner = f"Level {self.name}"
        require_positive(owner, fan_in=self.fan_in, width_bits=self.width_bits, buffer_messages=self.buffer_messages)
        require_quantity(owner, clock_hz=self.clock_hz)
        require_quantity(owner, zero=True, latency_s=self.latency_s, line_m=self.line_m)
        require_flag(owner, pins=self.pins)
        if self.bytes_per_s < 1:
            raise BadInput(f"{owner}: a port of {self.bytes_per_s:g} bytes/s is too slow for the clock: give it at least 1 byte/s")

    def __repr__(self) -> str:
        """Short, as tables of assumptions print it."""
        return f"{self.name}: {self.fan_in} ports of {show(self.bytes_per_s, 'B/s')}, {show(self.latency_s, 's')}"

    @property
    def bytes_per_s(self) -> float:
        """The rate of one port in each direction."""
        return self.width_bits * self.clock_hz / 8


# fmt: off
UPMEM_LEVELS = (
    # 8 DPUs on a die (UPMEM's data sheet). assumed: 2 bytes a cycle of the DPU's 350 MHz, what its MRAM DMA moves (0.5 cycles a
    # byte, measured 628 MB/s); latency of 3 cycles; 4 mm of line, half of a DRAM die's side
    Level(name="chip",    fan_in=8,  width_bits=16, clock_hz=350e6, latency_s=9e-9, pins=False, line_m=4e-3),
    # 8 chips on a rank. assumed: the 8 data pins of an x8 DDR4-2400 chip (JESD79-4); CAS latency of 2400: 16 cycles of 1.2 GHz
    Level(name="rank",    fan_in=8,  width_bits=8,  clock_hz=2.4e9, latency_s=13.3e-9),
    # 2 ranks on a DIMM. assumed: a rank's 64 data pins at 2400 MT/s (JESD79-4); a data buffer as an LRDIMM's, 2 cycles more
    Level(name="dimm",    fan_in=2,  width_bits=64, clock_hz=2.4e9, latency_s=15e-9),
    # 16 DIMMs. assumed: the 64 data pins of a slot, 19.2 GB/s (JESD79-4); 100 ns through a switch chip, as PCIe's and CXL's take
    Level(name="machine", fan_in=16, width_bits=64, clock_hz=2.4e9, latency_s=100e-9),
)
# fmt: on
HALF_RATE = tuple(replace(level, width_bits=level.width_bits // 2) for level in UPMEM_LEVELS)
DOUBLE_RATE = tuple(replace(level, width_bits=level.width_bits * 2) for level in UPMEM_LEVELS)
TENFOLD_LATENCY = tuple(replace(level, latency_s=level.latency_s * 10) for level in UPMEM_LEVELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """The result of an exchange: seconds, and bytes over the ports of each level (both directions).

    `events` are the same bytes by the names of `Crossbar.joules`; `messages` and `happened` (events of the clock) are 0 where
    nothing was simulated.
    """

    time_s: float
    bytes_by_level: tuple[int, ...]
    events: Mapping[str, float]
    messages: int = 0
    happened: int = 0

    def __add__(self, other: Exchanged) -> Exchanged:
        """Two exchanges in sequence."""
        names = dict.fromkeys([*self.events, *other.events])
        return Exchanged(
            time_s=self.time_s + other.time_s,
            bytes_by_level=tuple(a + b for a, b in zip(self.bytes_by_level, other.bytes_by_level, strict=True)),
            events={name: self.events.get(name, 0.0) + other.events.get(name, 0.0) for name in names},
            messages=self.messages + other.messages,
            happened=self.happened + other.happened,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossbar:
    """The network of `units` units; fewer than the levels can hold fill them from the bottom.

    >>> crossbar = Crossbar(units=32)
    >>> crossbar.counts  # 32 units on 4 chips of one rank
    (32, 4, 1)
    >>> one = crossbar.traffic(np.array([0]), np.array([8]), np.array([1000]))
    >>> round(one.time_s * 1e9, 1)  # up and down two levels at 0.7 GB/s: Eq. 2
    1473.2
    """

    # fmt: off
    levels: tuple[Level, ...] = assumed(
        UPMEM_LEVELS, "fan-out, width, clock and latency of the four levels (Table I names their number alone)",
        HALF_RATE, DOUBLE_RATE, TENFOLD_LATENCY)
    units: int = 0                                               # 0: all that the levels hold; Table I: up to 2048
    message_bytes: int = assumed(65536, "data travels in messages of at most so many bytes", 4096, 16384, choice=True)
    switching: Literal["cut_through", "store_and_forward"] = assumed(
        "cut_through", "whether a switch passes a message on before all of it has come (Eq. 2 has one M / B)", "store_and_forward")
    arbitration: Literal["round_robin", "oldest", "priority"] = assumed(
        "round_robin", "which input an output serves next", "oldest", "priority")
    agau_bytes_per_s: float = assumed(
        38.4e9, "port between a switch and its AGAU, each way: 256 bits (Sec. III-A) at DDR4-2400's 1.2 GHz", 19.2e9, 153.6e9)
    reducer: Literal["agau", "switch"] = assumed(
        "agau", "who sums above the cluster: the AGAU of the first cluster below a switch, or one in the switch itself", "switch")
    technology_nm: float = 28                                    # Sec. VI-A: the overhead is given in 28 nm
    # fmt: on

    def __post_init__(self) -> None:
        if not self.levels or not all(isinstance(level, Level) for level in self.levels):
            raise BadInput("Crossbar: levels must be one or more of Level, from the units to the top")
        most = math.prod(level.fan_in for level in self.levels)
        if type(self.units) is int and self.units == 0:
            object.__setattr__(self, "units", most)
        require_positive("Crossbar", units=self.units, message_bytes=self.message_bytes)
        require_quantity("Crossbar", agau_bytes_per_s=self.agau_bytes_per_s)
        for kind, name, known in (
            ("switching", self.switching, SWITCHING),
            ("arbitration", self.arbitration, ARBITRATIONS),
            ("reducer", self.reducer, ("agau", "switch")),
        ):
            if name not in known:
                raise UnknownName(kind, str(name), known, where="Crossbar")
        if self.units > most:
            raise BadInput(f"Crossbar: {self.units} units on levels that hold {most}: add a level or widen fan_in")

    def for_units(self, units: int) -> Crossbar:
        return replace(self, units=units)

    @property
    def counts(self) -> tuple[int, ...]:
        """Units, and switches of each level in use."""
        counts = [self.units]
        for level in self.levels:
            if counts[-1] == 1 and len(counts) > 1:
                break
            counts.append(-(-counts[-1] // level.fan_in))
        return tuple(counts)

    @property
    def depth(self) -> int:
        """Levels in use; a single unit still has its chip's."""
        return len(self.counts) - 1

    @property
    def joules(self) -> Mapping[str, float]:
        """Joules of each event of an exchange: a byte over a port of a level, or of an AGAU."""
        from trainyard.hardware.crossbar.costs import joules

        return joules(self)

    @property
    def areas(self) -> Mapping[str, float]:
        """Square metres of all switches, by component."""
        from trainyard.hardware.crossbar.costs import areas

        return areas(self)

    @property
    def static_w(self) -> float:
        from trainyard.hardware.crossbar.costs import static_w

        return static_w(self)

    @property
    def simulate(self) -> Simulated:
        """Exchanges message by message."""
        from trainyard.hardware.crossbar.exchanges import Simulated

        return Simulated(self)

    @property
    def analytic(self) -> Analytic:
        """The same exchanges in closed form."""
        from trainyard.hardware.crossbar.analytic import Analytic

        return Analytic(self)

    def tree(self, reducers: tuple[tuple[int, int], ...] = ()) -> Tree:
        """Switches and links, with reducers attached to the switches (level, number)."""
        ports = [
            Port(bytes_per_s=round(level.bytes_per_s), latency_ps=in_ps(level.latency_s), room=level.buffer_messages)
            for level in self.levels[: self.depth]
        ]
        agau = Port(bytes_per_s=round(self.agau_bytes_per_s), latency_ps=1, room=1)  # latency and room are the level's
        return Tree(self.units, [level.fan_in for level in self.levels[: self.depth]], [*ports, agau], reducers)

    def pieces(self, size_bytes: int) -> list[int]:
        """Bytes of each message of `size_bytes` of data.

        >>> Crossbar(message_bytes=100).pieces(250)
        [100, 100, 50]
        """
        if isinstance(size_bytes, bool) or not isinstance(size_bytes, int) or size_bytes < 0:
            raise BadInput(f"Crossbar: size_bytes must be a whole number of at least 0, got {size_bytes!r}")
        full, rest = divmod(size_bytes, self.message_bytes)
        return [self.message_bytes] * full + [rest] * (rest > 0)

    def traffic(
        self,
        sources: Integers,
        destinations: Integers,
        sizes_bytes: Integers,
        *,
        ready_s: npt.NDArray[np.float64] | None = None,
        priorities: Integers | None = None,
    ) -> Exchanged:
        """Point-to-point data between units, simulated: the i-th goes from unit to unit when `ready_s` (0) has come.

        Data to oneself and of no bytes costs nothing. A unit sends by (time ready, number), one message after another.
        """
        return self.simulate.traffic(sources, destinations, sizes_bytes, ready_s=ready_s, priorities=priorities)


def counted(
    crossbar: Crossbar, tree: Tree, carried_bytes: npt.NDArray[np.int64], time_s: float, messages: int = 0, happened: int = 0
) -> Exchanged:
    bytes_by_port = np.zeros(tree.depth + 1, np.int64)
    np.add.at(bytes_by_port, tree.tables[0][:, 0], carried_bytes)
    return exchange_of(
        crossbar, [int(carried) for carried in bytes_by_port[:-1]], int(bytes_by_port[-1]), time_s, messages, happened
    )


def exchange_of(
    crossbar: Crossbar, by_level: list[int], agau_bytes: int, time_s: float, messages: int = 0, happened: int = 0
) -> Exchanged:
    """An exchange from its bytes at the levels in use and at the AGAUs' ports."""
    bytes_by_level = tuple(by_level) + (0,) * (len(crossbar.levels) - len(by_level))
    events = {f"crossbar_level{level}_byte": float(carried) for level, carried in enumerate(bytes_by_level)}
    events["crossbar_agau_byte"] = float(agau_bytes)
    return Exchanged(time_s=time_s, bytes_by_level=bytes_by_level, events=events, messages=messages, happened=happened)
