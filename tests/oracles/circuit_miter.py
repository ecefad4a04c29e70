"""Two circuits side by side, for a SAT solver: are their outputs equal for every input?

`Miter` compares cycle by cycle from reset. `ReductionMiter` compares reduction networks without their registers, for every grouping
in which the lanes of a dot product follow each other: the networks are pipelines without loops, so a sum is a function of the
grouping and of the products of one cycle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amaranth.hdl import Cat, Fragment, Module, Mux, Value
from amaranth.lib.wiring import Component, In, Out

from trainyard.rtl.arithmetic.formats import FloatFormat
from trainyard.rtl.reduction.network import minus_zero
from trainyard.rtl.verilog import ports_of


class Miter(Component):  # type: ignore[misc]  # amaranth has no types
    """Violated where an output differs; `when` names outputs that count only while another one is set."""

    def __init__(self, original: Component, other: Component, when: Mapping[str, str]) -> None:
        self.original, self.other, self.when = original, other, when
        self._inputs, self._outputs = ports_of(original)
        super().__init__({**{name: In(width) for name, width in self._inputs.items()}, "violated": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.original, m.submodules.other = self.original, self.other
        for circuit in (self.original, self.other):
            m.d.comb += [getattr(circuit, name).eq(self._input(name)) for name in self._inputs]
        m.d.comb += self.violated.eq(self._is_legal() & Cat(*(self._differs(name) for name in self._outputs)).any())
        return m

    def _input(self, name: str) -> Any:
        return getattr(self, name)

    def _is_legal(self) -> Any:
        return 1

    def _counts(self, name: str) -> Any:
        return getattr(self.original, self.when[name]) if name in self.when else 1

    def _differs(self, name: str) -> Value:
        return self._counts(name) & (getattr(self.original, name) != getattr(self.other, name))


class ReductionMiter(Miter):
    """Of two `ArtNetwork` or `FanNetwork` without registers: a sum counts where its bit of `finished` is set."""

    def __init__(self, original: Component, other: Component, lanes: int) -> None:
        self._lanes = lanes
        super().__init__(original, other, {})

    def _input(self, name: str) -> Any:
        return 1 if name in ("configure", "valid") else super()._input(name)

    def _is_legal(self) -> Any:
        ids = [getattr(self, f"vec_id_{lane}") for lane in range(self._lanes)]

        def same(lane: int, other: int) -> Any:
            return self.busy[lane] & self.busy[other] & (ids[lane] == ids[other])

        gaps = [
            same(first, last) & ~same(first, last - 1) for first in range(self._lanes) for last in range(first + 2, self._lanes)
        ]
        return ~Cat(*gaps).any()

    def _counts(self, name: str) -> Any:
        kind, _, adder = name.partition("_")
        return 1 if kind == "finished" else getattr(self.original, f"finished_{kind}")[int(adder)]


class OrderedSum(Component):  # type: ignore[misc]  # amaranth has no types
    """Stands for an adder in a proof: keeps -0 neutral, but tells every order of additions from every other."""

    def __init__(self, kind: FloatFormat) -> None:
        self._nothing = minus_zero(kind)
        super().__init__({"a": In(kind.width), "b": In(kind.width), "sum": Out(kind.width)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        both = self.a.rotate_left(1) + 3 * self.b + 1
        m.d.comb += self.sum.eq(Mux(self.b == self._nothing, self.a, Mux(self.a == self._nothing, self.b, both)))
        return m


def unclocked(fragment: Any) -> Fragment:
    """The circuit with wires for all its registers."""
    for statement in fragment.statements.pop("sync", []):
        fragment.add_statements("comb", statement)
    for part, _, _ in fragment.subfragments:
        unclocked(part)
    return fragment
