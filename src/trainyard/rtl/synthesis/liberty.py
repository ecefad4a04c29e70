"""The liberty file of a standard-cell library: cells with their functions, capacitances, delays and energies.

Read are combinational cells of one output and flip-flops on the rising edge of a clock, each with the non-linear delay tables of
its arcs: delay and transition time by load and input transition. Cells of two outputs, latches and three-state drivers are left
out, as the mapper leaves them out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput

Floats = npt.NDArray[np.float64]
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[A-Za-z0-9_.+\-!*\[\]]+|[(){};:,]')


@dataclass(frozen=True, slots=True)
class Group:
    """`name(argument) { attributes, groups }`, as the file has it."""

    name: str
    argument: str
    attributes: Mapping[str, str]
    groups: tuple[Group, ...]

    def all(self, name: str) -> Iterator[Group]:
        return (group for group in self.groups if group.name == name)

    def first(self, name: str) -> Group | None:
        return next(self.all(name), None)


@dataclass(frozen=True, slots=True)
class Table:
    """Values by load [pF] (rows) and input transition [ns] (columns); one row where the load does not count."""

    loads: Floats
    transitions: Floats
    values: Floats

    def at(self, load: float, transition: float) -> float:
        """Bilinear between the points, the outer cells prolonged."""
        row, down = _position(self.loads, load)
        column, right = _position(self.transitions, transition)
        low, high = self.values[row], self.values[min(row + 1, len(self.values) - 1)]
        next_column = min(column + 1, len(self.transitions) - 1)
        first = low[column] + (low[next_column] - low[column]) * right
        second = high[column] + (high[next_column] - high[column]) * right
        return float(first + (second - first) * down)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arc:
    """From an input to the output: delay [ns], transition [ns] and internal energy [pJ] when the output rises and when it falls.

    `sense` is 1 where a rising input makes the output rise, -1 where it makes it fall, 0 where it may do both.
    """

    sense: int
    delay: tuple[Table, Table]
    transition: tuple[Table, Table]
    energy: tuple[Table, Table]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A gate of one output, or a flip-flop (`inputs` is D alone then, and `clock` is not empty).

    `truth` has bit i set where the inputs, the first the lowest bit of i, make the output 1.
    """

    name: str
    area_um2: float
    leakage_nw: float
    inputs: tuple[str, ...]
    output: str
    truth: int
    capacitance_pf: Mapping[str, float]
    arcs: Mapping[str, Arc]
    clock: str = ""
    setup: tuple[Table, Table] | None = None
    pin_energy: Mapping[str, tuple[Table, Table]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """The cells that a mapped design is made of; times in ns, capacitances in pF, energies in pJ."""

    name: str
    path: Path
    supply_v: float
    cells: Mapping[str, Cell]

    @property
    def flip_flops(self) -> frozenset[str]:
        return frozenset(name for name, cell in self.cells.items() if cell.clock)


def file_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is no text'}") from None


def read_library(path: Path) -> Library:
    """The library of a liberty file.

    Units must be ns, V, pF and nW: those of the library that the project uses, and of most.
    """
    text = re.sub(r"/\*.*?\*/|\\\n", " ", file_text(path), flags=re.DOTALL)
    tokens = iter(TOKEN.findall(text))
    top = _group(next(tokens, ""), tokens)
    if top.name != "library":
        raise BadInput(f"{path} is no liberty file: it begins with {top.name!r}, not with library(...)")
    units = {"time_unit": "1ns", "voltage_unit": "1V", "leakage_power_unit": "1nW", "capacitive_load_unit": "1pf"}
    for unit, wanted in units.items():
        if (given := top.attributes.get(unit, wanted)).lower() != wanted.lower():
            raise BadInput(f"{path}: {unit} is {given}; only {wanted} is read")
    cells = {cell.name: cell for group in top.all("cell") if (cell := _cell(group)) is not None}
    if not any(cell.clock for cell in cells.values()):
        raise BadInput(f"{path}: no cell is a flip-flop on the rising edge of a clock")
    return Library(name=top.argument, path=path, supply_v=float(top.attributes.get("nom_voltage", "1.8")), cells=cells)


def truth_table(function: str, inputs: tuple[str, ...]) -> int:
    """A liberty function as a number: bit i is its value where input k has bit k of i.

    >>> bin(truth_table("(!((S A) + (!S B)))", ("A", "B", "S")))
    '0b1010011'
    """
    words = re.findall(r"[A-Za-z_]\w*|[!'*&+|^()01]", function)
    table = 0
    for place, bits in enumerate(product((0, 1), repeat=len(inputs))):
        values = dict(zip(reversed(inputs), bits, strict=True))
        table |= _Expression(words, values).value() << place
    return table


class _Expression:
    """A boolean of the liberty grammar: ! and ' bind most, then ^, then and (a blank, * or &), then or (+ or |)."""

    def __init__(self, words: list[str], values: Mapping[str, int]) -> None:
        self.words, self.values, self.place = words, values, 0

    def value(self) -> int:
        result = self._either()
        if self.place != len(self.words):
            raise BadInput(f"liberty function {' '.join(self.words)!r} ends early at {self.words[self.place]!r}")
        return result

    def _next(self) -> str:
        return self.words[self.place] if self.place < len(self.words) else ""

    def _either(self) -> int:
        result = self._both()
        while self._next() in ("+", "|") and self._next():
            self.place += 1
            result |= self._both()
        return result

    def _both(self) -> int:
        result = self._differ()
        while self._next() and self._next() not in ("+", "|", ")"):
            if self._next() in ("*", "&"):
                self.place += 1
            result &= self._differ()
        return result

    def _differ(self) -> int:
        result = self._one()
        while self._next() == "^":
            self.place += 1
            result ^= self._one()
        return result

    def _one(self) -> int:
        word = self._next()
        self.place += 1
        if word == "!":
            return 1 - self._one()
        if word == "(":
            result = self._either()
            self.place += 1
        elif word in ("0", "1"):
            result = int(word)
        elif word in self.values:
            result = self.values[word]
        else:
            raise BadInput(f"liberty function {' '.join(self.words)!r}: {word!r} is no input of the cell")
        while self._next() == "'":
            self.place += 1
            result = 1 - result
        return result


def _group(name: str, tokens: Iterator[str]) -> Group:
    """A group whose name has been read."""
    argument, _ = _arguments(tokens)
    return _body(name, argument, tokens)


def _arguments(tokens: Iterator[str]) -> tuple[str, str]:
    """What stands in the brackets, joined, and the token behind them."""
    words: list[str] = []
    token = next(tokens, "")
    if token != "(":
        raise BadInput(f"liberty file: '(' expected, {token!r} found")
    for token in tokens:
        if token == ")":
            return ", ".join(words), next(tokens, "")
        if token != ",":
            words.append(token.strip('"'))
    raise BadInput("liberty file: it ends inside brackets")


def _body(name: str, argument: str, tokens: Iterator[str]) -> Group:
    attributes: dict[str, str] = {}
    groups: list[Group] = []
    carried = ""
    while token := carried or next(tokens, ""):
        carried = ""
        if token == "}":
            return Group(name, argument, attributes, tuple(groups))
        if token == ";":
            continue
        sign = next(tokens, "")
        if sign == ":":
            attributes[token] = next(tokens, "").strip('"')
            continue
        words: list[str] = []
        for word in tokens:
            if word == ")":
                break
            if word != ",":
                words.append(word.strip('"'))
        behind = next(tokens, "")
        if behind == "{":
            groups.append(_body(token, "".join(words), tokens))
        else:
            attributes[token] = "".join(words) if token == "capacitive_load_unit" else "; ".join(words)
            carried = "" if behind == ";" else behind
    raise BadInput(f"liberty file: it ends inside {name}({argument})")


def _position(points: Floats, at: float) -> tuple[int, float]:
    """The cell of a grid, and how far into it; outside, the outer cell and a share below 0 or above 1."""
    if len(points) == 1:
        return 0, 0.0
    place = min(max(int(np.searchsorted(points, at)) - 1, 0), len(points) - 2)
    return place, float((at - points[place]) / (points[place + 1] - points[place]))


def _numbers(text: str) -> list[float]:
    return [float(word) for word in re.split(r"[,;\s]+", text) if word]


def _table(group: Group, name: str) -> Table:
    table = group.first(name)
    if table is None:
        raise BadInput(f"liberty file: a {group.name} group has no {name}")
    first, second = (_numbers(table.attributes.get(axis, "")) for axis in ("index_1", "index_2"))
    values = np.array(_numbers(table.attributes["values"]))
    if not second:  # by transition alone
        return Table(np.zeros(1), np.array(first), values.reshape(1, -1))
    return Table(np.array(first), np.array(second), values.reshape(len(first), len(second)))


def _pair(group: Group, rising: str, falling: str) -> tuple[Table, Table]:
    return _table(group, rising), _table(group, falling)


SENSES = {"positive_unate": 1, "negative_unate": -1, "non_unate": 0}


def _arc(output: Group, pin: str) -> Arc | None:
    timing = next(
        (one for one in output.all("timing") if one.attributes.get("related_pin") == pin and one.first("cell_rise")), None
    )
    energy = next((one for one in output.all("internal_power") if one.attributes.get("related_pin") == pin), None)
    if timing is None or energy is None:
        return None
    return Arc(
        sense=SENSES[timing.attributes.get("timing_sense", "non_unate")],
        delay=_pair(timing, "cell_rise", "cell_fall"),
        transition=_pair(timing, "rise_transition", "fall_transition"),
        energy=_pair(energy, "rise_power", "fall_power"),
    )


def _cell(group: Group) -> Cell | None:
    """None for cells that no mapped design has: of several outputs, with asynchronous pins, on a falling edge, latches."""
    pins = {pin.argument: pin for pin in group.all("pin")}
    outputs = [name for name, pin in pins.items() if pin.attributes.get("direction") == "output"]
    state = group.first("ff")
    if len(outputs) != 1 or group.first("latch") or "three_state" in pins[outputs[0]].attributes:
        return None
    if state is not None and (state.attributes["next_state"] != "D" or {"clear", "preset"} & set(state.attributes)):
        return None
    if state is not None and state.attributes["clocked_on"] not in pins:
        return None
    clock = "" if state is None else state.attributes["clocked_on"]
    inputs = tuple(name for name in pins if name not in (*outputs, clock))
    output = pins[outputs[0]]
    arcs = {pin: arc for pin in (*inputs, clock) if pin and (arc := _arc(output, pin)) is not None}
    if any(pin not in arcs for pin in ((clock,) if clock else inputs)):
        return None
    energies = {name: pin.first("internal_power") for name, pin in pins.items() if name != output.argument}
    return Cell(
        name=group.argument,
        area_um2=float(group.attributes["area"]),
        leakage_nw=float(group.attributes.get("cell_leakage_power", "0")),
        inputs=inputs,
        output=output.argument,
        truth=0 if clock else truth_table(output.attributes["function"], inputs),
        capacitance_pf={name: float(pin.attributes.get("capacitance", "0")) for name, pin in pins.items()},
        arcs=arcs,
        clock=clock,
        setup=_setup(pins["D"]) if clock else None,
        pin_energy={name: _pair(energy, "rise_power", "fall_power") for name, energy in energies.items() if energy is not None},
    )


def _setup(pin: Group) -> tuple[Table, Table] | None:
    """By the transition of the clock (rows) and of the data (columns)."""
    timing = next((one for one in pin.all("timing") if one.attributes.get("timing_type") == "setup_rising"), None)
    return None if timing is None else _pair(timing, "rise_constraint", "fall_constraint")
