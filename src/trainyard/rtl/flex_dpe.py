"""One Flex-DPE of SIGMA as a circuit: a Benes network, multipliers with a stationary buffer each, and FAN.

E. Qin et al.: SIGMA: A Sparse and Irregular GEMM Accelerator with Flexible Interconnects for DNN Training. HPCA 2020, Sec. IV-A and
V: a cycle of distribution, a cycle of multiplication, a cycle for each level of reduction.

Stationary values come in through the Benes network too, straight down, in a cycle with `load`. A vector streams in with `valid` in
the last of its passes through the switches; multipliers that no value reached have the product +0, as in `arrays.sigma.execution`.
The cycles are those of Table II (loading, streaming, adding), and one more at the end: the table counts none for multiplication,
and distribution takes the cycle of streaming itself. The next fold's values may be loaded right behind the last vector of this one;
its grouping must come as FAN asks (`reduction.network`), a cycle behind its first vector.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from amaranth.hdl import Module, Mux, Signal
from amaranth.lib.wiring import Component, In

from trainyard.arrays.sigma.array import Sigma
from trainyard.arrays.sigma.controller import IDLE, Controller
from trainyard.arrays.sigma.execution import Fabric, Vectors, ports
from trainyard.errors import UnknownName
from trainyard.hardware.benes.network import Benes, Settings
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.hardware.reduction.adder_trees import Fan
from trainyard.rtl.arithmetic.formats import FORMATS, FP32, FloatFormat, format_of, to_bits, to_float
from trainyard.rtl.arithmetic.multiplier import FloatMultiplier
from trainyard.rtl.arithmetic.stimulus import finite_bits
from trainyard.rtl.benes import BenesNetwork, select_words
from trainyard.rtl.catalogue import Design, Inputs, Outputs, parameter, register, require_power_of_two
from trainyard.rtl.reduction.fan import FanNetwork, outlets_of
from trainyard.rtl.reduction.network import delayed, grouping_inputs, grouping_of, grouping_ports, network_ports, sums_leave

Reals = npt.NDArray[np.float32]
BEFORE_FAN = 2
"""Cycles from the input to the adders: distribution and multiplication."""


class FlexDpe(Component):
    """Ports of the Benes network and of FAN, with `load` for stationary values."""

    def __init__(self, multipliers: int, kind: FloatFormat) -> None:
        self._multipliers, self._kind = multipliers, kind
        network = network_ports(multipliers, FP32.width, outlets_of(multipliers))
        fan = {name: port for name, port in network.items() if not name.startswith("product_")}
        inputs = {f"value_{lane}": In(kind.width) for lane in range(multipliers)}
        inputs |= {f"select_{level}": In(2 * multipliers) for level in range(Benes(ports=multipliers).levels)}
        super().__init__({**inputs, "enable": In(multipliers), "start": In(1), "load": In(1), **fan})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        lanes = self._multipliers
        m.submodules.benes = benes = BenesNetwork(lanes, self._kind.width)
        m.submodules.fan = fan = FanNetwork(lanes, FP32)
        levels = Benes(ports=lanes).levels
        switch_ports = [*(f"value_{lane}" for lane in range(lanes)), *(f"select_{level}" for level in range(levels))]
        m.d.comb += [getattr(benes, name).eq(getattr(self, name)) for name in (*switch_ports, "enable", "start")]
        reached = Signal(lanes)  # outputs of the switches that this vector has latched
        m.d.sync += reached.eq(self.enable | Mux(self.start, 0, reached))
        loads = delayed(m, self.load, 1, "load_delayed")
        for lane in range(lanes):
            stationary = Signal(self._kind.width, name=f"stationary_{lane}")
            with m.If(loads & reached[lane]):
                m.d.sync += stationary.eq(getattr(benes, f"out_{lane}"))
            m.submodules[f"multiplier_{lane}"] = unit = FloatMultiplier(self._kind, FP32)
            product = Signal(FP32.width, name=f"product_{lane}")
            m.d.comb += [unit.a.eq(getattr(benes, f"out_{lane}")), unit.b.eq(stationary)]
            m.d.sync += product.eq(Mux(reached[lane], unit.product, 0))
            m.d.comb += getattr(fan, f"product_{lane}").eq(product)
        m.d.comb += [getattr(fan, name).eq(getattr(self, name)) for name in (*grouping_ports(lanes), "configure")]
        m.d.comb += fan.valid.eq(delayed(m, self.valid, BEFORE_FAN, "valid_delayed"))
        for name, adders in outlets_of(lanes).items():
            m.d.comb += getattr(self, f"finished_{name}").eq(getattr(fan, f"finished_{name}"))
            m.d.comb += [getattr(self, f"{name}_{adder}").eq(getattr(fan, f"{name}_{adder}")) for adder in adders]
        return m


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """A product a [M, K] times b [K, N] on one Flex-DPE: its cycles, and where each sum belongs.

    `rows` is, for each pass, (first streaming cycle, row of each vecID).
    """

    cycles: list[dict[str, int]]
    rows: list[tuple[int, list[int]]]


def product_cycles(multipliers: int, kind: FloatFormat, a: Reals, b: Reals) -> Work:
    """The inputs of every cycle of a product, in the order and at the pace of `arrays.sigma.execution` (A is stationary)."""
    benes, controller = Benes(ports=multipliers), Controller(multipliers=multipliers, dpes=1)
    gathered = controller.gather(Bitmap.of(a), Bitmap.of(b))
    placement = controller.place(controller.prune(gathered.stationary, controller.row_or(gathered.streaming)))
    vectors = Vectors.of(np.ascontiguousarray(b.T), None)
    cycles: list[dict[str, int]] = []
    rows: list[tuple[int, list[int]]] = []
    for pass_ in placement.passes:
        (unit,) = controller.flex_dpes(placement, pass_)
        held = [0.0 if k == IDLE else float(a[row, k]) for row, k in zip(unit.row.tolist(), unit.k.tolist(), strict=True)]
        busy = sum((k != IDLE) << lane for lane, k in enumerate(unit.k.tolist()))
        cycles.append({**_values(kind, held), "enable": busy, "start": 1, "load": 1})
        first = len(cycles)
        names = [row for row in dict.fromkeys(unit.vec_ids.tolist()) if row != IDLE]
        rows.append((first, names))
        sources, inputs, _ = ports(unit, pass_, vectors)
        settings = benes.route(sources)
        for vector, streamed in enumerate(inputs.tolist()):
            numbers = np.flatnonzero(settings.row == vector).tolist()
            for number in numbers:
                enable = sum(int(latches) << lane for lane, latches in enumerate(settings.enable[number].tolist()))
                flags = {"enable": enable, "start": int(number == numbers[0]), "valid": int(number == numbers[-1])}
                cycles.append({**_values(kind, streamed), **select_words(settings.bits[number]), **flags})
        cycles += [{} for _ in range(Fan(lanes=multipliers).fold_cycles(multipliers))]  # the adders drain
        vec_ids = [IDLE if row == IDLE else names.index(row) for row in unit.vec_ids.tolist()]
        cycles[first + BEFORE_FAN - 1] |= {"configure": 1, **grouping_inputs(vec_ids)}
    return Work(cycles=cycles, rows=rows)


def _values(kind: FloatFormat, values: Sequence[float]) -> dict[str, int]:
    return {f"value_{lane}": to_bits(kind, value) for lane, value in enumerate(values)}


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class FlexDpeDesign(Design):
    """The circuit beside `arrays.sigma.execution`: its switches, its multipliers and its FAN, in FP32."""

    name: ClassVar[str] = "flex-dpe"
    word: ClassVar[str] = "Flex-DPE: Benes network, multipliers and FAN (SIGMA, HPCA 2020, Sec. IV)"
    multipliers: int = parameter(4, "multipliers; a power of two")
    number: str = parameter("fp32", "format of the operands: fp32, fp16 or bf16; products and sums are fp32")

    def __post_init__(self) -> None:
        require_power_of_two(self.name, multipliers=self.multipliers)
        if self.number not in FORMATS:
            raise UnknownName("number", str(self.number), FORMATS, where=self.name)

    def build(self) -> Component:
        return FlexDpe(self.multipliers, format_of(self.number))

    def stimulus(self, cycles: int, seed: int) -> list[Inputs]:
        """Products of random sparse matrices, one after another."""
        chance, kind = random.Random(seed), format_of(self.number)
        rows: list[Inputs] = []
        while len(rows) < cycles:
            m, n, k = chance.randint(1, 6), chance.randint(1, 12), chance.randint(1, 2 * self.multipliers)
            a, b = (random_matrix(kind, shape, chance) for shape in ((m, k), (k, n)))
            rows += product_cycles(self.multipliers, kind, a, b).cycles
        return rows[:cycles]

    def expected(self, stimulus: Sequence[Inputs]) -> list[Outputs]:
        return Streams(self.multipliers, format_of(self.number)).outputs(stimulus)


def random_matrix(kind: FloatFormat, shape: tuple[int, int], chance: random.Random) -> Reals:
    """Numbers of moderate size with zeros between them."""
    nonzero = chance.choice((0.2, 0.5, 0.9))
    values = [to_float(kind, finite_bits(kind, chance)) if chance.random() < nonzero else 0.0 for _ in range(shape[0] * shape[1])]
    return np.array(values, np.float32).reshape(shape) + np.float32(0)


class Streams:
    """The simulator's switches, multipliers and adders on the inputs of every cycle."""

    def __init__(self, multipliers: int, kind: FloatFormat) -> None:
        self._lanes, self._kind = multipliers, kind
        self._fabric = Fabric(Sigma(dpes=1, multipliers=multipliers, bandwidth=multipliers))

    def outputs(self, stimulus: Sequence[Inputs]) -> list[Outputs]:
        lanes = self._lanes
        table: list[dict[str, int]] = [{f"finished_{name}": 0 for name in outlets_of(lanes)} for _ in stimulus]
        stationary, grouping = [0.0] * lanes, [IDLE] * lanes
        passes: list[Inputs] = []
        groupings: list[list[int]] = []  # the one in force in each cycle
        folds: dict[tuple[Any, ...], list[tuple[int, list[int], list[float]]]] = defaultdict(list)
        for row in stimulus:
            groupings.append(grouping)
            if row.get("configure", 0):
                grouping = grouping_of(row, lanes)
        for cycle, row in enumerate(stimulus):
            passes = [row] if row.get("start", 0) else [*passes, row]
            values = [to_float(self._kind, row.get(f"value_{lane}", 0)) for lane in range(lanes)]
            if row.get("load", 0):
                stationary = [values[s] if s != IDLE else old for s, old in zip(self._sources(passes), stationary, strict=True)]
            if row.get("valid", 0) and cycle + BEFORE_FAN < len(stimulus):
                key = (tuple(stationary), tuple(groupings[cycle + BEFORE_FAN]))
                folds[key].append((cycle + BEFORE_FAN, self._sources(passes), values))
        for (held, vec_ids), vectors in folds.items():
            sources, inputs = (np.array([vector[index] for vector in vectors]) for index in (1, 2))
            products, _ = self._fabric.run(np.array(held, np.float32), sources, inputs.astype(np.float32))
            bits = products.view(np.uint32).tolist()
            sums_leave(self._fabric.fan, FP32, list(vec_ids), [(v[0], row) for v, row in zip(vectors, bits, strict=True)], table)
        return list(table)

    def _sources(self, passes: Sequence[Inputs]) -> list[int]:
        """The input port that reaches each output: port numbers sent through the simulator's switches."""
        benes, lanes = self._fabric.benes, self._lanes
        bits = [
            [[row.get(f"select_{level}", 0) >> (2 * j) & 3 for j in range(lanes)] for level in range(benes.levels)]
            for row in passes
        ]
        enable = [[row.get("enable", 0) >> lane & 1 for lane in range(lanes)] for row in passes]
        settings = Settings(
            bits=np.array(bits, np.uint8), enable=np.array(enable, np.bool_), row=np.zeros(len(passes), np.int64), vectors=1
        )
        arrived = benes.deliver(settings, np.arange(1, lanes + 1, dtype=np.float32)[None])
        return [int(port) - 1 for port in arrived[0]]
