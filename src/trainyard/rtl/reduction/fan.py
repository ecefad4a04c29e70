"""FAN, SIGMA's forwarding adder network, as a circuit.

E. Qin et al.: SIGMA: A Sparse and Irregular GEMM Accelerator with Flexible Interconnects for DNN Training. HPCA 2020, Sec. IV-A2,
Fig. 6. The links are those of `hardware.reduction.adder_trees.Fan`: adder i between lanes i and i + 1 takes, on either side, the
nearest adder of every lower level, through as many flip-flops as the link crosses levels.

**Tree.** Each adder has a register. From level 2 on a multiplexer on either side chooses a link. An adder of level 0 adds its two
lanes or bypasses them into two registers; what goes from it to the right is then the second one.
**Routing** (Fig. 6c). Comparators of vecIDs: an adder adds where its two lanes belong together; it takes the longest link on either
side that stays in its own dot product; and a sum leaves where the next higher adder on neither side belongs to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib.wiring import Component, In, Out

from trainyard.hardware.reduction.adder_trees import Fan
from trainyard.rtl.arithmetic.adder import FloatAdder
from trainyard.rtl.arithmetic.formats import FloatFormat, format_of
from trainyard.rtl.catalogue import register
from trainyard.rtl.reduction.network import Lanes, NetworkDesign, delayed, grouping_ports, network_ports


def outlets_of(lanes: int) -> dict[str, Sequence[int]]:
    """Adders with a register, and those of level 0, which have a second one."""
    return {"sum": range(lanes - 1), "bypass": range(0, lanes - 1, 2)}


def select_ports(lanes: int) -> dict[str, int]:
    """Width of the select signals: `add` of every adder, and the link that a multiplexer takes (0: the shortest)."""
    selects = {"add": lanes - 1}
    for adder, level in enumerate(Fan(lanes=lanes).adder_levels().tolist()):
        if level > 1:
            selects |= {f"left_{adder}": (level - 1).bit_length(), f"right_{adder}": (level - 1).bit_length()}
    return selects


class FanTree(Component):
    """The adders with their links; select signals are inputs."""

    def __init__(self, lanes: int, kind: FloatFormat) -> None:
        self._lanes, self._kind = lanes, kind
        ports = {name: In(width) for name, width in select_ports(lanes).items()}
        ports |= {f"product_{lane}": In(kind.width) for lane in range(lanes)}
        ports |= {f"{name}_{adder}": Out(kind.width) for name, adders in outlets_of(lanes).items() for adder in adders}
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        for adder, level in enumerate(Fan(lanes=self._lanes).adder_levels().tolist()):
            unit = FloatAdder(self._kind)
            m.submodules[f"adder_{adder}"] = unit
            total = getattr(self, f"sum_{adder}")
            if level == 0:
                left, right = getattr(self, f"product_{adder}"), getattr(self, f"product_{adder + 1}")
                m.d.comb += [unit.a.eq(left), unit.b.eq(right)]
                m.d.sync += [total.eq(Mux(self.add[adder], unit.sum, left)), getattr(self, f"bypass_{adder}").eq(right)]
            else:
                m.d.comb += [unit.a.eq(self._linked(m, adder, "left")), unit.b.eq(self._linked(m, adder, "right"))]
                m.d.sync += total.eq(unit.sum)
        return m

    def _linked(self, m: Module, adder: int, side: str) -> Any:
        """What the multiplexer on one side of an adder hands to it."""
        links = [
            link for link in Fan(lanes=self._lanes).links if link.target == adder and (link.source < adder) == (side == "left")
        ]
        inputs = []
        for link in links:  # from the shortest on
            value = getattr(self, f"sum_{link.source}")
            if (
                link.source % 2 == 0 and side == "left"
            ):  # an adder of level 0 to our left: where it bypasses, its right lane is ours
                value = Signal.like(value, name=f"from_{link.source}_to_{adder}")
                m.d.comb += value.eq(
                    Mux(self.add[link.source], getattr(self, f"sum_{link.source}"), getattr(self, f"bypass_{link.source}"))
                )
            inputs.append(delayed(m, value, link.flip_flops, f"from_{link.source}_to_{adder}_delayed"))
        if len(inputs) == 1:
            return inputs[0]
        return Array(inputs)[getattr(self, f"{side}_{adder}")]


class FanRouting(Component):
    """Select signals and outlets from the vecIDs, without registers."""

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        ports = {**grouping_ports(lanes), **{name: Out(width) for name, width in select_ports(lanes).items()}}
        super().__init__({**ports, "outlet_sum": Out(lanes - 1), "outlet_bypass": Out(lanes - 1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        compare = Lanes(m, self, self._lanes)
        for adder, level in enumerate(Fan(lanes=self._lanes).adder_levels().tolist()):
            adds = compare.same(adder, adder + 1)
            ends = ~(compare.same(adder - (1 << level), adder) | compare.same(adder + 1, adder + 1 + (1 << level)))
            m.d.comb += self.add[adder].eq(adds)
            if level == 0:
                single = [self._single(compare, lane) for lane in (adder, adder + 1)]
                m.d.comb += [self.outlet_sum[adder].eq((adds & ends) | single[0]), self.outlet_bypass[adder].eq(single[1])]
            else:
                m.d.comb += self.outlet_sum[adder].eq(adds & ends)
            if level > 1:
                # the k-th longer link reaches adder - 2^k; where that one is ours, all shorter links are too
                left = [compare.same(adder - (1 << longer), adder) for longer in range(1, level)]
                right = [compare.same(adder + 1, adder + 1 + (1 << longer)) for longer in range(1, level)]
                m.d.comb += [
                    getattr(self, f"left_{adder}").eq(_highest(left)),
                    getattr(self, f"right_{adder}").eq(_highest(right)),
                ]
        return m

    def _single(self, compare: Lanes, lane: int) -> Any:
        return self.busy[lane] & ~(compare.same(lane - 1, lane) | compare.same(lane, lane + 1))


def _highest(reached: list[Any]) -> Any:
    """How many of the links are ours, which is the number of the longest; they are ours from the shortest on."""
    number: Any = 0
    for count, ours in enumerate(reached, start=1):
        number = Mux(ours, count, number)
    return number


class FanNetwork(Component):
    """FAN with its routing: a grouping each fold, products each cycle."""

    def __init__(self, lanes: int, kind: FloatFormat) -> None:
        self._lanes, self._kind = lanes, kind
        super().__init__(network_ports(lanes, kind.width, outlets_of(lanes)))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.routing = routing = FanRouting(self._lanes)
        m.submodules.tree = tree = FanTree(self._lanes, self._kind)
        for port in grouping_ports(self._lanes):
            m.d.comb += getattr(routing, port).eq(getattr(self, port))
        outlet = {"sum": Signal(self._lanes - 1), "bypass": Signal(self._lanes - 1)}
        select = {name: Signal(width, name=f"select_{name}") for name, width in select_ports(self._lanes).items()}
        m.d.comb += [getattr(tree, name).eq(chosen) for name, chosen in select.items()]
        with m.If(self.configure):
            m.d.sync += [outlet[name].eq(getattr(routing, f"outlet_{name}")) for name in outlet]
            m.d.sync += [chosen.eq(getattr(routing, name)) for name, chosen in select.items()]
        m.d.comb += [getattr(tree, f"product_{lane}").eq(getattr(self, f"product_{lane}")) for lane in range(self._lanes)]
        levels = Fan(lanes=self._lanes).adder_levels().tolist()
        there = [delayed(m, self.valid, level + 1, f"valid_for_{level}") for level in range(max(levels) + 1)]
        present = Cat(*(there[level] for level in levels))
        m.d.comb += [self.finished_sum.eq(outlet["sum"] & present), self.finished_bypass.eq(outlet["bypass"] & present)]
        for name, adders in outlets_of(self._lanes).items():
            m.d.comb += [getattr(self, f"{name}_{adder}").eq(getattr(tree, f"{name}_{adder}")) for adder in adders]
        return m


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class FanDesign(NetworkDesign):
    """FAN beside `hardware.reduction.adder_trees.Fan`."""

    name: ClassVar[str] = "fan"
    word: ClassVar[str] = "FAN, the forwarding adder network (SIGMA, HPCA 2020, Sec. IV-A2)"

    @property
    def tree(self) -> Fan:
        return Fan(lanes=self.lanes)

    @property
    def outlets(self) -> Mapping[str, Sequence[int]]:
        return outlets_of(self.lanes)

    def build(self) -> Component:
        return FanNetwork(self.lanes, format_of(self.number))
