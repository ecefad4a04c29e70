"""The linear chain as a circuit: a sum moves one lane a cycle, as in a column of a systolic array (SIGMA, HPCA 2020, Sec. IV-A2).

`ChainCells` is the chain itself, a register for each lane and an adder for each but the first; products have to come one cycle
later for each lane, and sums leave as staggered. `ChainNetwork` adds the registers around it that the simulator's `LinearChain`
presumes: products enter together, sums leave together after as many cycles as there are lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib.wiring import Component, In, Out

from trainyard.checks import require_positive
from trainyard.hardware.reduction.adder_trees import LinearChain
from trainyard.rtl.arithmetic.adder import FloatAdder
from trainyard.rtl.arithmetic.formats import FloatFormat, format_of
from trainyard.rtl.catalogue import parameter, register
from trainyard.rtl.reduction.network import Lanes, NetworkDesign, delayed, network_ports


class ChainCells(Component):
    """Lane by lane: `sum` of a lane is its product, or with `goes_on` that and the sum of the lane before."""

    def __init__(self, lanes: int, kind: FloatFormat) -> None:
        self._lanes, self._kind = lanes, kind
        ports = {"goes_on": In(lanes), **{f"product_{lane}": In(kind.width) for lane in range(lanes)}}
        super().__init__({**ports, **{f"sum_{lane}": Out(kind.width) for lane in range(lanes)}})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.sync += self.sum_0.eq(self.product_0)
        for lane in range(1, self._lanes):
            product = getattr(self, f"product_{lane}")
            m.submodules[f"adder_{lane}"] = unit = FloatAdder(self._kind)
            m.d.comb += [unit.a.eq(getattr(self, f"sum_{lane - 1}")), unit.b.eq(product)]
            m.d.sync += getattr(self, f"sum_{lane}").eq(Mux(self.goes_on[lane], unit.sum, product))
        return m


class ChainNetwork(Component):
    """The chain with its routing and the registers that stagger products and align sums."""

    def __init__(self, lanes: int, kind: FloatFormat) -> None:
        self._lanes, self._kind = lanes, kind
        super().__init__(network_ports(lanes, kind.width, {"sum": range(lanes)}))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        lanes = self._lanes
        m.submodules.cells = cells = ChainCells(lanes, self._kind)
        compare = Lanes(m, self, lanes)
        goes_on, outlet = Signal(lanes), Signal(lanes)
        with m.If(self.configure):
            m.d.sync += [
                goes_on.eq(Cat(*(Cat(compare.same(lane - 1, lane))[0] for lane in range(lanes)))),
                outlet.eq(Cat(*(self.busy[lane] & ~Cat(compare.same(lane, lane + 1))[0] for lane in range(lanes)))),
            ]
        m.d.comb += cells.goes_on.eq(goes_on)
        for lane in range(lanes):
            product, total = getattr(self, f"product_{lane}"), getattr(cells, f"sum_{lane}")
            m.d.comb += [
                getattr(cells, f"product_{lane}").eq(delayed(m, product, lane, f"product_{lane}_delayed")),
                getattr(self, f"sum_{lane}").eq(delayed(m, total, lanes - 1 - lane, f"sum_{lane}_delayed")),
            ]
        m.d.comb += self.finished_sum.eq(Mux(delayed(m, self.valid, lanes, "valid_delayed"), outlet, 0))
        return m


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ChainDesign(NetworkDesign):
    """The chain beside `hardware.reduction.adder_trees.LinearChain`."""

    name: ClassVar[str] = "chain"
    word: ClassVar[str] = "linear (spatio-temporal) reduction, lane to lane (SIGMA, HPCA 2020, Sec. IV-A2)"
    lanes: int = parameter(8, "products that enter in a cycle")

    def __post_init__(self) -> None:
        require_positive(self.name, lanes=self.lanes)
        format_of(self.number)

    @property
    def tree(self) -> LinearChain:
        return LinearChain(lanes=self.lanes)

    @property
    def outlets(self) -> Mapping[str, Sequence[int]]:
        return {"sum": range(self.lanes)}

    def build(self) -> Component:
        return ChainNetwork(self.lanes, format_of(self.number))
