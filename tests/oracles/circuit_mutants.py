"""Mutants of a circuit, each from a fresh one: a register is dropped, or two inputs of a multiplexer are swapped.

A dropped register is a wire where that makes no loop; and every assignment of a register is left out in turn, so that it never
loads. A multiplexer is a `Mux`, an `Array`, a `Switch`, or an `If`: of each, any two neighbouring inputs are swapped,
and an `If` without an `Else` holds when it should load. What no output depends on has no mutants; synthesis removes it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any, Literal

from amaranth.hdl import Fragment, Module
from amaranth.hdl._ast import Assign, Operator, Part, Slice, Statement, Switch, SwitchValue
from amaranth.hdl._mem import MemoryInstance
from amaranth.lib.wiring import Component

from trainyard.rtl.catalogue import Inputs, Outputs
from trainyard.rtl.equality import amaranth_cycles
from trainyard.rtl.verilog import ports_of

Kind = Literal["register", "multiplexer"]


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

    def is_caught(self, stimulus: Sequence[Inputs], expected: Sequence[Outputs]) -> bool:
        return is_caught(self, stimulus, expected)


def is_caught(component: Component, stimulus: Sequence[Inputs], expected: Sequence[Outputs]) -> bool:
    """Whether an output differs; the simulation ends with the first that does."""
    cycles = zip(amaranth_cycles(component, stimulus), expected, strict=False)
    return any(row[port] != value for row, wanted in cycles for port, value in wanted.items())


def mutants(
    build: Callable[[], Component], kind: Kind, *, without: tuple[type, ...] = (), only: Container[str] | None = None
) -> Iterator[Mutant]:
    """All of one kind, or only those of these descriptions; `without`: components inside that are left as they are."""
    number = 0
    while True:
        component = build()
        fragment = Fragment.get(component, None)
        place = next(islice(_numbered(_places(component, fragment, kind, without)), number, None), None)
        if place is None:
            return
        number += 1
        if only is None or place.what in only:
            place.mutate()
            yield Mutant(component, fragment, place.what)


@dataclass(frozen=True, slots=True)
class _Place:
    what: str
    targets: set[int]
    mutate: Callable[[], None]


def _places(component: Component, fragment: Any, kind: Kind, without: tuple[type, ...]) -> Iterator[_Place]:
    paths = _Paths(fragment)
    seen = paths.leading_to(getattr(component, name) for name in ports_of(component)[1])
    for part, path in _parts(fragment, without):
        for domain, statements in list(part.statements.items()):
            found: list[Iterator[_Place]] = []
            if kind == "multiplexer":
                found = [_swaps(statements, path)]
            elif domain != "comb":
                found = [_left_out(part, domain, path), _wires(part, domain, path, paths)]
            yield from (place for places in found for place in places if place.targets & seen)


def _numbered(places: Iterable[_Place]) -> Iterator[_Place]:
    """Places of one description are told apart by a number."""
    before = Counter[str]()
    for place in places:
        before[place.what] += 1
        again = before[place.what] > 1
        yield replace(place, what=f"{place.what} ({before[place.what]})") if again else place


def _parts(fragment: Any, without: tuple[type, ...], path: str = "") -> Iterator[tuple[Any, str]]:
    if any(isinstance(origin, without) for origin in fragment.origins or ()):
        return
    yield fragment, path
    for part, name, _ in fragment.subfragments:
        yield from _parts(part, without, f"{path}{name}.")


def _left_out(part: Any, domain: str, path: str) -> Iterator[_Place]:
    for holder, number in _assigns(part.statements[domain]):

        def drop(holder: Any = holder, number: int = number) -> None:
            del holder[number]
            if not part.statements[domain]:
                del part.statements[domain]

        yield _Place(f"{path}{_name(holder[number].lhs)} never loads {_name(holder[number].rhs)}", _targets(holder[number]), drop)


def _wires(part: Any, domain: str, path: str, paths: _Paths) -> Iterator[_Place]:
    """Registers that load in every cycle and have one assignment."""
    statements = part.statements[domain]
    for number, statement in enumerate(statements):
        if not isinstance(statement, Assign) or paths.is_loop(statement):
            continue
        target = statement._lhs_signals()
        if sum(bool(target & other._lhs_signals()) for each in part.statements.values() for other in each) > 1:
            continue

        def bypass(number: int = number, statement: Any = statement) -> None:
            del statements[number]
            part.add_statements("comb", statement)
            if not statements:
                del part.statements[domain]

        yield _Place(f"{path}{_name(statement.lhs)} is a wire", _targets(statement), bypass)


class _Paths:
    """What each signal depends on: through wires alone, and through registers and memories too."""

    def __init__(self, fragment: Any) -> None:
        self._wired: dict[int, set[int]] = defaultdict(set)
        self._behind: dict[int, set[int]] = defaultdict(set)
        for part, _ in _parts(fragment, ()):
            for domain, statements in part.statements.items():
                self._enter(statements, domain == "comb", set())
            if isinstance(part, MemoryInstance):
                written = {id(signal) for port in part._write_ports for signal in _port_signals(port)}
                for port in part._read_ports:
                    self._depend(port._data, written | {id(signal) for signal in _port_signals(port)}, port._domain == "comb")

    def _enter(self, statements: Any, wired: bool, conditions: set[int]) -> None:
        for statement in statements:
            if isinstance(statement, Switch):
                inside = conditions | {id(signal) for signal in statement.test._rhs_signals()}
                for case in statement.cases:
                    self._enter(case[1], wired, inside)
            elif isinstance(statement, Assign):
                self._depend(statement.lhs, conditions | {id(signal) for signal in statement.rhs._rhs_signals()}, wired)

    def _depend(self, value: Any, sources: set[int], wired: bool) -> None:
        for signal in value._lhs_signals():
            self._behind[id(signal)] |= sources
            if wired:
                self._wired[id(signal)] |= sources

    def is_loop(self, statement: Any) -> bool:
        """Whether an assignment that became a wire would close a loop."""
        sources = {id(signal) for signal in statement.rhs._rhs_signals()}
        return bool(_reached(self._wired, sources) & _targets(statement))

    def leading_to(self, outputs: Iterable[Any]) -> set[int]:
        """Every signal that some output depends on; the others are removed by synthesis."""
        return _reached(self._behind, {id(signal) for signal in outputs})


def _port_signals(port: Any) -> Iterable[Any]:
    return [*port._addr._rhs_signals(), *port._data._rhs_signals(), *port._en._rhs_signals()]


def _reached(edges: dict[int, set[int]], start: set[int]) -> set[int]:
    reached, waiting = set[int](), set(start)
    while waiting:
        signal = waiting.pop()
        reached.add(signal)
        waiting |= edges[signal] - reached
    return reached


def _targets(statement: Any) -> set[int]:
    return {id(signal) for signal in statement._lhs_signals()}


def _assigns(statements: Any) -> Iterator[tuple[Any, int]]:
    for number, statement in enumerate(statements):
        if isinstance(statement, Assign):
            yield statements, number
        elif isinstance(statement, Switch):
            for case in statement.cases:
                yield from _assigns(case[1])


def _swaps(statements: Any, path: str) -> Iterator[_Place]:
    for statement in statements:
        if isinstance(statement, Assign):
            for number, switch in enumerate([*_multiplexers(statement.rhs), *_multiplexers(statement.lhs)]):
                yield from _swapped_cases(switch, f"{path}{_name(statement.lhs)}, multiplexer {number}", _targets(statement))
        elif isinstance(statement, Switch):
            names, targets = " ".join(dict.fromkeys(signal.name for signal in statement._lhs_signals())), _targets(statement)
            for switch in _multiplexers(statement.test):
                yield from _swapped_cases(switch, f"{path}condition of {names}", targets)
            yield from _swapped_cases(statement, f"{path}{_name(statement.test)} chooses {names}", targets)
            for case in statement.cases:
                yield from _swaps(case[1], path)


def _swapped_cases(switch: Any, name: str, targets: set[int]) -> Iterator[_Place]:
    for first, second in pairwise(range(len(switch.cases))):
        if repr(switch.cases[first][1]) != repr(switch.cases[second][1]):

            def swap(first: int = first, second: int = second) -> None:
                cases = [list(case) for case in switch.cases]
                cases[first][1], cases[second][1] = cases[second][1], cases[first][1]
                switch._cases = tuple(map(tuple, cases))

            yield _Place(f"{name}: inputs {first} and {second} swapped", targets, swap)
    if isinstance(switch, Switch) and len(switch.cases) == 1 and switch.cases[0][0] is not None:

        def invert() -> None:
            patterns, body, place = switch.cases[0]
            switch._cases = ((patterns, Statement.cast([]), place), (None, body, place))

        yield _Place(f"{name}: loads when it should hold", targets, invert)


def _multiplexers(value: Any) -> Iterator[Any]:
    if isinstance(value, SwitchValue):
        yield value
        yield from _multiplexers(value.test)
        for _, inner in value.cases:
            yield from _multiplexers(inner)
    elif isinstance(value, Operator):
        for inner in value.operands:
            yield from _multiplexers(inner)
    elif isinstance(value, Slice | Part):
        yield from _multiplexers(value.value)
    elif hasattr(value, "parts"):
        for inner in value.parts:
            yield from _multiplexers(inner)


def _name(value: Any) -> str:
    """The signals of a value, with what is done to them where that is short."""
    text = re.sub(r"\(sig (\S+)\)", r"\1", repr(value))
    text = re.sub(r"\(slice (\S+) (\d+):(\d+)\)", r"\1[\2:\3]", text)
    return text if len(text) < 60 else text[:56] + " ..."
