"""ART, MAERI's augmented reduction tree, as a circuit.

H. Kwon et al.: MAERI: Enabling Flexible Dataflow Mapping over DNN Accelerators via Reconfigurable Interconnects. ASPLOS 2018, as
`hardware.reduction.adder_trees.Art` reads it: nodes of three inputs, links without a register between neighbours of a level that
have no common parent, and a second register where a finished sum leaves beside an unfinished one.

**Tree.** A node adds (left child + right child) + what its sibling sends, each gated; a gated input is -0, which leaves every
number as it is. What is not in this sum passes by. Outer nodes have no sibling and one adder, all others two.
**Routing.** MAERI's compiler sets the switches; here a circuit does, from the vecIDs, by the rule of the simulator. Each child
sends up at most one unfinished part, with two bits that say whether lanes of its dot product are missing to its left and to its
right; a part from which none is missing is a finished sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib.wiring import Component, In, Out

from trainyard.hardware.reduction.adder_trees import Art
from trainyard.rtl.arithmetic.adder import FloatAdder
from trainyard.rtl.arithmetic.formats import FloatFormat, format_of
from trainyard.rtl.catalogue import register
from trainyard.rtl.reduction.network import Lanes, NetworkDesign, delayed, grouping_ports, minus_zero, network_ports, vec_id_bits

SELECTS = ("gate_left", "gate_right", "gate_received", "sum_from_right", "beside_from_right")
"""Select bits of a node: which inputs its adders take, and whether a register holds the right child's result or the left one's."""


def outlets_of(lanes: int) -> dict[str, Sequence[int]]:
    return {"sum": range(lanes - 1), "beside": range(lanes - 1)}


@dataclass(frozen=True, slots=True)
class Node:
    """A node by its level and its position there; `adder` is its number, as in the simulator."""

    level: int
    position: int

    @property
    def adder(self) -> int:
        return ((2 * self.position + 1) << self.level) - 1

    def sibling(self, lanes: int) -> Node | None:
        """The neighbour of the same level with another parent: to the left of an even node, to the right of an odd one."""
        other = self.position - 1 if self.position % 2 == 0 else self.position + 1
        return Node(self.level, other) if 0 <= other < lanes >> (self.level + 1) else None

    @property
    def sends_left_child(self) -> bool:
        """To its left sibling a node can only send its left child's part, to its right one the right child's."""
        return self.position % 2 == 0


def nodes_of(lanes: int) -> list[Node]:
    """Level by level."""
    return [Node(level, position) for level in range(lanes.bit_length() - 1) for position in range(lanes >> (level + 1))]


class ArtTree(Component):
    """The nodes; the bits of select signals are by adder."""

    def __init__(self, lanes: int, kind: FloatFormat) -> None:
        self._lanes, self._kind = lanes, kind
        ports = {name: In(lanes - 1) for name in SELECTS}
        ports |= {f"product_{lane}": In(kind.width) for lane in range(lanes)}
        ports |= {f"{name}_{adder}": Out(kind.width) for name, adders in outlets_of(lanes).items() for adder in adders}
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        for node in nodes_of(self._lanes):
            adder = node.adder
            left, right = self._children(node)
            total = self._total(m, node, left, right)
            # the adders hold the right child's part only where the left child's is gated; the other part passes by
            of_left, of_right = Mux(self.gate_left[adder], total, left), Mux(self.gate_left[adder], right, total)
            m.d.sync += [
                getattr(self, f"sum_{adder}").eq(Mux(self.sum_from_right[adder], of_right, of_left)),
                getattr(self, f"beside_{adder}").eq(Mux(self.beside_from_right[adder], of_right, of_left)),
            ]
        return m

    def _children(self, node: Node) -> tuple[Any, Any]:
        numbers = (2 * node.position, 2 * node.position + 1)
        if node.level == 0:
            left, right = (getattr(self, f"product_{lane}") for lane in numbers)
        else:
            left, right = (getattr(self, f"sum_{Node(node.level - 1, number).adder}") for number in numbers)
        return left, right

    def _total(self, m: Module, node: Node, left: Any, right: Any) -> Any:
        """What the adders of a node give: one addition, or two where it has a sibling."""
        adder, nothing = node.adder, Const(minus_zero(self._kind), self._kind.width)
        m.submodules[f"adder_{adder}"] = unit = FloatAdder(self._kind)
        m.d.comb += [unit.a.eq(Mux(self.gate_left[adder], left, nothing)), unit.b.eq(Mux(self.gate_right[adder], right, nothing))]
        sibling = node.sibling(self._lanes)
        if sibling is None:
            return unit.sum
        received = self._children(sibling)[0 if sibling.sends_left_child else 1]
        m.submodules[f"third_{adder}"] = third = FloatAdder(self._kind)
        m.d.comb += [third.a.eq(unit.sum), third.b.eq(Mux(self.gate_received[adder], received, nothing))]
        return third.sum


@dataclass(frozen=True, slots=True)
class Part:
    """An unfinished part of a dot product on its way: whether there is one, its vecID, and where lanes are missing."""

    there: Any
    vec_id: Any
    left_open: Any
    right_open: Any

    def belongs_with(self, other: Part) -> Any:
        return self.there & other.there & (self.vec_id == other.vec_id)

    def named(self, m: Module, name: str) -> Part:
        """The same in signals of its own."""
        copies = []
        for field_name, value in zip(("there", "vec_id", "left_open", "right_open"), self.fields, strict=True):
            copy = Signal(len(value), name=f"{name}_{field_name}")
            m.d.comb += copy.eq(value)
            copies.append(copy)
        return Part(*copies)

    @property
    def fields(self) -> tuple[Any, ...]:
        return self.there, self.vec_id, self.left_open, self.right_open


def chosen_part(condition: Any, yes: Part, no: Part) -> Part:
    return Part(*(Mux(condition, one, other) for one, other in zip(yes.fields, no.fields, strict=True)))


class ArtRouting(Component):
    """Select bits and outlets from the vecIDs, without registers."""

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        ports = {**grouping_ports(lanes), **{name: Out(lanes - 1) for name in SELECTS}}
        super().__init__({**ports, "outlet_sum": Out(lanes - 1), "outlet_beside": Out(lanes - 1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        compare = Lanes(m, self, self._lanes)
        parts = []
        for lane in range(self._lanes):
            near = [Cat(compare.same(lane - 1, lane))[0], Cat(compare.same(lane, lane + 1))[0]]
            parts.append(Part(self.busy[lane], getattr(self, f"vec_id_{lane}"), *near).named(m, f"lane_{lane}"))
        for level in range(self._lanes.bit_length() - 1):
            nodes = [Node(level, position) for position in range(self._lanes >> (level + 1))]
            sent = self._sent(m, nodes, parts)
            parts = [self._node(m, node, parts[2 * node.position], parts[2 * node.position + 1], sent) for node in nodes]
        return m

    def _sent(self, m: Module, nodes: list[Node], parts: list[Part]) -> dict[Node, Part]:
        """What every node sends to its sibling."""
        sent: dict[Node, Part] = {}
        for node in reversed(nodes):  # an odd node keeps what its right neighbour sends to it
            if node.sibling(self._lanes) is None:
                continue
            left, right = parts[2 * node.position], parts[2 * node.position + 1]
            together = left.belongs_with(right)
            if node.sends_left_child:
                beyond, part = (node.position << (node.level + 1)) - 1, left
                goes = ~together & self._in_lane(beyond, left)
            else:
                beyond, part = (node.position + 1) << (node.level + 1), right
                goes = ~together & self._in_lane(beyond, right) & ~sent[Node(node.level, node.position + 1)].belongs_with(right)
            sent[node] = Part(part.there & goes, part.vec_id, part.left_open, part.right_open).named(m, f"sent_{node.adder}")
        return sent

    def _in_lane(self, lane: int, part: Part) -> Any:
        return self.busy[lane] & (getattr(self, f"vec_id_{lane}") == part.vec_id)

    def _node(self, m: Module, node: Node, left: Part, right: Part, sent: dict[Node, Part]) -> Part:
        """Sets one node and returns the unfinished part that it sends up."""
        adder = node.adder
        nothing = Part(Const(0, 1), Const(0, vec_id_bits(self._lanes)), Const(0, 1), Const(0, 1))
        sibling = node.sibling(self._lanes)
        received = nothing if sibling is None else sent[sibling]
        away = sent.get(node, nothing).there
        together = left.belongs_with(right)
        stays_left = left.there & ~(away & Const(node.sends_left_child, 1))
        stays_right = right.there & ~together & ~(away & Const(not node.sends_left_child, 1))
        joins_left, joins_right = stays_left & received.belongs_with(left), stays_right & received.belongs_with(right)
        both = Part(stays_left, left.vec_id, left.left_open, Mux(together, right.right_open, left.right_open))
        first = _joined(both, received, joins_left, node).named(m, f"left_result_{adder}")
        alone = Part(stays_right, right.vec_id, right.left_open, right.right_open)
        second = _joined(alone, received, joins_right, node).named(m, f"right_result_{adder}")
        first_done = first.there & ~first.left_open & ~first.right_open
        second_done = second.there & ~second.left_open & ~second.right_open
        left_goes_up = first.there & ~first_done
        m.d.comb += [
            self.gate_left[adder].eq(~joins_right),
            self.gate_right[adder].eq(together | joins_right),
            self.gate_received[adder].eq(joins_left | joins_right),
            self.sum_from_right[adder].eq(~left_goes_up),
            self.beside_from_right[adder].eq(~first_done),
            self.outlet_sum[adder].eq(first_done & second_done),
            self.outlet_beside[adder].eq(first_done | second_done),
        ]
        rest = Part(second.there & ~second_done, second.vec_id, second.left_open, second.right_open)
        return chosen_part(left_goes_up, first, rest).named(m, f"up_{adder}")


def _joined(part: Part, received: Part, joins: Any, node: Node) -> Part:
    """A part with what the sibling sends: from the left to an even node, from the right to an odd one."""
    if node.position % 2 == 0:
        return Part(part.there, part.vec_id, Mux(joins, received.left_open, part.left_open), part.right_open)
    return Part(part.there, part.vec_id, part.left_open, Mux(joins, received.right_open, part.right_open))


class ArtNetwork(Component):
    """ART with its routing: a grouping each fold, products each cycle."""

    def __init__(self, lanes: int, kind: FloatFormat) -> None:
        self._lanes, self._kind = lanes, kind
        super().__init__(network_ports(lanes, kind.width, outlets_of(lanes)))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.routing = routing = ArtRouting(self._lanes)
        m.submodules.tree = tree = ArtTree(self._lanes, self._kind)
        m.d.comb += [getattr(routing, port).eq(getattr(self, port)) for port in grouping_ports(self._lanes)]
        select = {name: Signal(self._lanes - 1, name=f"select_{name}") for name in SELECTS}
        outlet = {name: Signal(self._lanes - 1, name=f"outlet_{name}") for name in outlets_of(self._lanes)}
        m.d.comb += [getattr(tree, name).eq(chosen) for name, chosen in select.items()]
        with m.If(self.configure):
            m.d.sync += [chosen.eq(getattr(routing, name)) for name, chosen in select.items()]
            m.d.sync += [chosen.eq(getattr(routing, f"outlet_{name}")) for name, chosen in outlet.items()]
        m.d.comb += [getattr(tree, f"product_{lane}").eq(getattr(self, f"product_{lane}")) for lane in range(self._lanes)]
        levels = Art(lanes=self._lanes).adder_levels().tolist()
        there = [delayed(m, self.valid, level + 1, f"valid_for_{level}") for level in range(max(levels) + 1)]
        present = Cat(*(there[level] for level in levels))
        for name, adders in outlets_of(self._lanes).items():
            m.d.comb += getattr(self, f"finished_{name}").eq(outlet[name] & present)
            m.d.comb += [getattr(self, f"{name}_{adder}").eq(getattr(tree, f"{name}_{adder}")) for adder in adders]
        return m


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ArtDesign(NetworkDesign):
    """ART beside `hardware.reduction.adder_trees.Art`."""

    name: ClassVar[str] = "art"
    word: ClassVar[str] = "ART, the augmented reduction tree (MAERI, ASPLOS 2018), which SIGMA compares FAN with"

    @property
    def tree(self) -> Art:
        return Art(lanes=self.lanes)

    @property
    def outlets(self) -> Mapping[str, Sequence[int]]:
        return outlets_of(self.lanes)

    def build(self) -> Component:
        return ArtNetwork(self.lanes, format_of(self.number))
