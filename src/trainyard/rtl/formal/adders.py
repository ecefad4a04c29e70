"""FAN: no adder is claimed by two dot products, whatever the grouping of the lanes.

Instead of numbers, sets of lanes go through the links: a lane's product is the set of this lane, an adder's sum the union of its
operands. The routing's select signals decide which links are taken; the links are `hardware.reduction.adder_trees.Fan`'s.
"""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.wiring import Component, In, Out

from trainyard.hardware.reduction.adder_trees import Fan
from trainyard.rtl.dsc import ones


class AddersUnclaimed(Component):
    """Violated where an adder's operands overlap or belong to another dot product, or where a sum does not leave as a whole.

    That is, where the sums that leave are not one for each dot product, each of exactly its lanes. Assumed: the lanes of one dot
    product follow each other. `routing` has the ports of `reduction.fan.FanRouting`.
    """

    def __init__(self, routing: Component, lanes: int) -> None:
        self.routing, self.lanes = routing, lanes
        bits = max(1, (lanes - 1).bit_length())
        super().__init__({"busy": In(lanes), **{f"vec_id_{lane}": In(bits) for lane in range(lanes)}, "violated": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        lanes = self.lanes
        m.submodules.routing = routing = self.routing
        for port in ("busy", *(f"vec_id_{lane}" for lane in range(lanes))):
            m.d.comb += getattr(routing, port).eq(getattr(self, port))
        members, legal = self._groups(m)
        sums, bypasses = dict[int, Value](), dict[int, Value]()
        wrong = Signal(lanes - 1)
        for adder, level in sorted(enumerate(Fan(lanes=lanes).adder_levels().tolist()), key=lambda pair: pair[1]):
            left, right = self._operands(m, adder, level, sums, bypasses)
            total = Signal(lanes, name=f"sum{adder}")
            adds = routing.add[adder]
            m.d.comb += total.eq(Mux(adds, left | right, left) if level == 0 else left | right)
            both = Mux(adds, (left & right).any() | ((left | right) & ~members[adder]).any() | ~self.busy[adder], 0)
            m.d.comb += wrong[adder].eq(both)
            sums[adder] = total
            if level == 0:
                bypasses[adder] = right
        outlets = self._outlets(routing, sums, bypasses)
        m.d.comb += self.violated.eq(legal & (wrong.any() | self._lost(m, members, outlets)))
        return m

    def _groups(self, m: Module) -> tuple[list[Signal], Signal]:
        """The lanes of each lane's dot product, and whether all of them follow each other."""
        lanes, members, legal = self.lanes, list[Signal](), Signal()
        ids = [getattr(self, f"vec_id_{lane}") for lane in range(lanes)]
        for lane in range(lanes):
            same = Signal(lanes, name=f"members{lane}")
            m.d.comb += same.eq(Cat(self.busy[lane] & self.busy[other] & (ids[lane] == ids[other]) for other in range(lanes)))
            members.append(same)
        gaps = [members[first][last] & ~members[first][last - 1] for first in range(lanes) for last in range(first + 2, lanes)]
        m.d.comb += legal.eq(~Cat(*gaps).any() if gaps else 1)
        return members, legal

    def _operands(
        self, m: Module, adder: int, level: int, sums: dict[int, Value], bypasses: dict[int, Value]
    ) -> tuple[Value, Value]:
        if level == 0:
            return Const(1 << adder, self.lanes), Const(1 << (adder + 1), self.lanes)
        sides = []
        for side in ("left", "right"):
            links = [
                link for link in Fan(lanes=self.lanes).links if link.target == adder and (link.source < adder) == (side == "left")
            ]
            values: list[Value] = []
            for link in links:
                value = sums[link.source]
                if link.source in bypasses and side == "left":
                    value = Mux(self.routing.add[link.source], value, bypasses[link.source])
                values.append(value)
            sides.append(values[0] if len(values) == 1 else Array(values)[getattr(self.routing, f"{side}_{adder}")])
        return sides[0], sides[1]

    def _outlets(self, routing: Component, sums: dict[int, Value], bypasses: dict[int, Value]) -> list[tuple[Value, Value]]:
        """The places at which a sum may leave: whether it does, and its lanes."""
        places = [(routing.outlet_sum[adder], lanes) for adder, lanes in sums.items()]
        return places + [(routing.outlet_bypass[adder], lanes) for adder, lanes in bypasses.items()]

    def _lost(self, m: Module, members: list[Signal], outlets: list[tuple[Value, Value]]) -> Value:
        """Whether some lane's dot product does not leave exactly once, with all its lanes, or anything else leaves."""
        lost = list[Value]()
        for lane in range(self.lanes):
            leaving = [leaves & lanes[lane] for leaves, lanes in outlets]
            whole = [leaves & (lanes == members[lane]) for leaves, lanes in outlets]
            once = (ones(leaving) == 1) & (ones(whole) == 1)
            lost.append(Mux(self.busy[lane], ~once, Cat(*leaving).any()))
        return Cat(*lost).any()
