"""SIGMA's Benes network as a circuit: 2 log2 N + 1 levels of N switches, each output of a switch with its own select bit.

E. Qin et al.: SIGMA: A Sparse and Irregular GEMM Accelerator with Flexible Interconnects for DNN Training. HPCA 2020, Sec. IV-A1.
The wiring is that of `hardware.benes.network`: the vertical output of switch j leads to switch j of the next level, the diagonal
one to switch j ^ stride. `textbook` builds the network of N ports on N/2 switches, which blocks some multicasts.

| port            | meaning                                                                                                |
|-----------------|--------------------------------------------------------------------------------------------------------|
| `value_<port>`  | the values of this cycle's vector                                                                       |
| `select_<level>`| two bits for each switch: bit 2 j for the vertical output of switch j, bit 2 j + 1 for its diagonal one   |
| `enable`        | outputs that latch in this pass                                                                        |
| `start`         | first pass of a vector: outputs that do not latch become 0; in later passes they keep what they have     |
| `out_<port>`    | what was latched, `latency` cycles later                                                                |

All levels together take one cycle; a higher `latency` puts registers between them, and delays the select bits with the values.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib.wiring import Component, In, Out

from trainyard.checks import require_flag, require_positive
from trainyard.errors import BadInput
from trainyard.hardware.benes.network import Benes, Settings, TextbookBenes
from trainyard.rtl.catalogue import Design, Inputs, Outputs, parameter, register, require_power_of_two
from trainyard.rtl.reduction.network import delayed

MOST_BITS = 32
"""Bits of a value: the simulator's networks carry FP32."""


def stride(level: int, levels: int) -> int:
    """How far the diagonal outputs of a level lead: 1, 2, ..., N/2, N/2, ..., 2, 1; the last level has none.

    >>> [stride(level, 5) for level in range(5)]
    [1, 2, 2, 1, 0]
    """
    last = levels - 1
    if level == last:
        return 0
    return 1 << level if level < last // 2 else 1 << (last - 1 - level)


class BenesNetwork(Component):
    """Values through the switches of every level, latched at the outputs."""

    def __init__(self, ports: int, width: int, latency: int = 1, textbook: bool = False) -> None:
        network = (TextbookBenes if textbook else Benes)(ports=ports)
        self._ports, self._width, self._latency, self._textbook = ports, width, latency, textbook
        self._levels, self._switches = network.levels, network.switches // network.levels
        if latency > self._levels:
            raise BadInput(f"benes: {self._levels} levels have room for a latency of {self._levels} cycles at most, got {latency}")
        signature: dict[str, Any] = {f"value_{port}": In(width) for port in range(ports)}
        signature |= {f"select_{level}": In(2 * self._switches) for level in range(self._levels)}
        signature |= {"enable": In(ports), "start": In(1)}
        super().__init__({**signature, **{f"out_{port}": Out(width) for port in range(ports)}})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        values = [getattr(self, f"value_{port}") for port in range(self._ports)]
        if self._textbook:
            straight, across = values[0::2], values[1::2]
        else:
            straight, across = values, [Const(0, self._width)] * self._ports
        passed = 0  # registers between the levels so far
        for level in range(self._levels):
            select = delayed(m, getattr(self, f"select_{level}"), passed, f"select_{level}_delayed")
            straight, across = self._level(m, level, select, straight, across)
            if passed < self._registers_before(level + 1):
                straight = [delayed(m, value, 1, f"straight_{level}_{j}") for j, value in enumerate(straight)]
                across = [delayed(m, value, 1, f"across_{level}_{j}") for j, value in enumerate(across)]
                passed += 1
        arrived = [value for pair in zip(straight, across, strict=True) for value in pair] if self._textbook else straight
        enable, start = delayed(m, self.enable, passed, "enable_delayed"), delayed(m, self.start, passed, "start_delayed")
        for port in range(self._ports):
            with m.If(enable[port]):
                m.d.sync += getattr(self, f"out_{port}").eq(arrived[port])
            with m.Elif(start):
                m.d.sync += getattr(self, f"out_{port}").eq(0)
        return m

    def _registers_before(self, level: int) -> int:
        """Registers between the levels before this one; the last of the latency is at the outputs."""
        return min(level * self._latency // self._levels, self._latency - 1)

    def _level(self, m: Module, level: int, select: Any, straight: list[Any], across: list[Any]) -> tuple[list[Any], list[Any]]:
        """What leaves the switches of a level, by the switch of the next level where it arrives."""
        far = stride(level, self._levels)
        ends_unused = far == 0 and not self._textbook  # the diagonals of the last level lead nowhere
        down, slant = [], []
        for j in range(self._switches):
            outputs = [Signal(self._width, name=f"{name}_{level}_{j}") for name in ("down", "slant")]
            for bit, out in enumerate(outputs[:1] if ends_unused else outputs):
                m.d.comb += out.eq(Mux(select[2 * j + bit], across[j], straight[j]))
            down.append(outputs[0])
            slant.append(outputs[1])
        return down, [slant[j ^ far] for j in range(self._switches)]


def select_words(bits: Any) -> dict[str, int]:
    """The select ports of one pass from the simulator's bits [levels, switches]."""
    return {f"select_{level}": sum(int(cell) << (2 * j) for j, cell in enumerate(row)) for level, row in enumerate(bits)}


def random_sources(ports: int, chance: random.Random) -> list[int]:
    """A source for each output: a permutation, any multicast, or ascending runs as SIGMA's controller makes them; some idle."""
    way = chance.random()
    if way < 0.3:
        sources = chance.sample(range(ports), ports)
    elif way < 0.6:
        few = chance.choice((1, 2, ports))
        sources = [chance.choice(chance.sample(range(ports), few)) for _ in range(ports)]
    else:
        sources = []
        while len(sources) < ports:
            sources += sorted(chance.sample(range(ports), chance.randint(1, ports)))
    idle = chance.choice((0.0, 0.2, 0.6))
    return [-1 if chance.random() < idle else source for source in sources[:ports]]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class BenesDesign(Design):
    """The network beside `hardware.benes.network`, with the settings of its own router."""

    name: ClassVar[str] = "benes"
    word: ClassVar[str] = "Benes distribution network with multicast (SIGMA, HPCA 2020, Sec. IV-A1)"
    ports: int = parameter(8, "inputs and outputs; a power of two")
    width: int = parameter(32, "bits of a value")
    latency: int = parameter(1, "cycles from input to output; registers lie between the levels where it is more than 1")
    textbook: bool = parameter(False, "the network of half as many switches, which blocks some multicasts")

    def __post_init__(self) -> None:
        require_power_of_two(self.name, ports=self.ports)
        require_positive(self.name, width=self.width, latency=self.latency)
        require_flag(self.name, textbook=self.textbook)
        if self.width > MOST_BITS:
            raise BadInput(f"{self.name}: width must be at most {MOST_BITS} bits, got {self.width}")
        if self.latency > self._network.levels:
            levels = self._network.levels
            raise BadInput(f"{self.name}: latency must be at most the {levels} levels of the network, got {self.latency}")

    @property
    def _network(self) -> Benes | TextbookBenes:
        return TextbookBenes(ports=self.ports) if self.textbook else Benes(ports=self.ports)

    def build(self) -> Component:
        return BenesNetwork(self.ports, self.width, self.latency, self.textbook)

    def stimulus(self, cycles: int, seed: int) -> list[Inputs]:
        chance = random.Random(seed)
        vectors = [random_sources(self.ports, chance) for _ in range(cycles)]
        settings = self._network.route(np.array(vectors))
        rows: list[Inputs] = []
        for vector in range(cycles):
            values = {f"value_{port}": chance.getrandbits(self.width) for port in range(self.ports)}
            for count, number in enumerate(np.flatnonzero(settings.row == vector).tolist()):
                enable = sum(int(latches) << port for port, latches in enumerate(settings.enable[number]))
                rows.append({**values, **select_words(settings.bits[number]), "enable": enable, "start": int(count == 0)})
            if chance.random() < 0.1:
                rows.append({})
        return rows[:cycles]

    def expected(self, stimulus: Sequence[Inputs]) -> list[Outputs]:
        """After each pass: what the simulator delivers of the vector's passes so far."""
        network = self._network
        switches = network.switches // network.levels
        bits, enable, row, values, vector_of_cycle = list[Any](), list[Any](), list[int](), list[Any](), list[int]()
        passes: list[int] = []
        for cycle, inputs in enumerate(stimulus):
            starts, latches = inputs.get("start", 0), inputs.get("enable", 0)
            if starts:
                passes = []
            if starts or latches:
                passes = [*passes, cycle]
                for number in passes:
                    words = [stimulus[number].get(f"select_{level}", 0) for level in range(network.levels)]
                    bits.append([[word >> (2 * j) & 3 for j in range(switches)] for word in words])
                    enable.append([stimulus[number].get("enable", 0) >> port & 1 for port in range(self.ports)])
                    row.append(len(values))
                values.append([inputs.get(f"value_{port}", 0) for port in range(self.ports)])
            vector_of_cycle.append(len(values) - 1)
        settings = Settings(
            bits=np.array(bits, np.uint8), enable=np.array(enable, np.bool_), row=np.array(row, np.int64), vectors=len(values)
        )
        delivered = network.deliver(settings, np.array(values, np.uint32).view(np.float32)).view(np.uint32).tolist()
        nothing = dict.fromkeys((f"out_{port}" for port in range(self.ports)), 0)
        outputs: list[Outputs] = [nothing] * self.latency
        for vector in vector_of_cycle:
            outputs.append(nothing if vector < 0 else {f"out_{port}": value for port, value in enumerate(delivered[vector])})
        return outputs[: len(stimulus)]
