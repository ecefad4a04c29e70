"""Mutants of a circuit: one register dropped, or two inputs of one multiplexer swapped. An equality test has to catch them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from amaranth.hdl import Fragment, Module
from amaranth.hdl._ast import Assign, Operator, Slice, Switch, SwitchValue
from amaranth.lib.wiring import Component

from trainyard.rtl.verilog import ports_of


class Mutant(Component):  # type: ignore[misc]  # amaranth has no types
    """The circuit of `fragment` behind the ports of `component`."""

    def __init__(self, component: Component, fragment: Fragment, what: str) -> None:
        self.component, self.fragment, self.what = component, fragment, what
        super().__init__(component.signature)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.mutant = self.fragment
        inputs, outputs = ports_of(self.component)
        m.d.comb += [getattr(self.component, name).eq(getattr(self, name)) for name in inputs]
        m.d.comb += [getattr(self, name).eq(getattr(self.component, name)) for name in outputs]
        return m


def mutants(build: Callable[[], Component]) -> Iterator[Mutant]:
    """All of them, each from a fresh circuit."""
    number = 0
    while True:
        component = build()
        fragment = Fragment.get(component, None)
        places = list(_places(fragment))
        if number == len(places):
            return
        what, mutate = places[number]
        mutate()
        yield Mutant(component, fragment, what)
        number += 1


def _places(fragment: Any, path: str = "") -> Iterator[tuple[str, Callable[[], None]]]:
    for domain, statements in fragment.statements.items():
        for holder, number in _assigns(statements):
            assign = holder[number]
            if domain != "comb":
                yield f"{path}: register {assign.lhs!r} dropped", _dropper(fragment, domain, holder, number)
            for switch in _multiplexers(assign.rhs):
                if len(switch.cases) > 1 and not _same(switch.cases[0][1], switch.cases[1][1]):
                    yield f"{path}: inputs of {switch!r} swapped", _swapper(switch)
    for part, name, _ in fragment.subfragments:
        yield from _places(part, f"{path}/{name}")


def _assigns(statements: Any) -> Iterator[tuple[Any, int]]:
    for number, statement in enumerate(statements):
        if isinstance(statement, Assign):
            yield statements, number
        elif isinstance(statement, Switch):
            for case in statement.cases:
                yield from _assigns(case[1])


def _multiplexers(value: Any) -> Iterator[Any]:
    if isinstance(value, SwitchValue):
        yield value
        for _, inner in value.cases:
            yield from _multiplexers(inner)
    elif isinstance(value, Operator):
        for inner in value.operands:
            yield from _multiplexers(inner)
    elif isinstance(value, Slice):
        yield from _multiplexers(value.value)
    elif hasattr(value, "parts"):
        for inner in value.parts:
            yield from _multiplexers(inner)


def _same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)


def _dropper(fragment: Any, domain: str, holder: Any, number: int) -> Callable[[], None]:
    def drop() -> None:
        del holder[number]
        if not fragment.statements[domain]:
            del fragment.statements[domain]

    return drop


def _swapper(switch: Any) -> Callable[[], None]:
    def swap() -> None:
        cases = list(copy.copy(switch._cases))
        (first, one), (second, other) = cases[0], cases[1]
        cases[0], cases[1] = (first, other), (second, one)
        switch._cases = tuple(cases)

    return swap
