"""What a hardware design is, and all of them by name.

A design is a frozen dataclass: its fields are the parameters of the generator, `build` makes the circuit, `stimulus` draws inputs
from a seed, and `expected` asks the simulator's own part what the outputs are in every cycle.

**Clock.** One domain, `sync`. The inputs of cycle t are there during cycle t; the outputs of cycle t are read in the same cycle,
before its closing clock edge. A combinational output of an input of cycle t is thus seen in cycle t, a registered one in cycle
t + 1. Cycle 0 begins with every register at its reset value.
"""

from __future__ import annotations

import importlib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from trainyard.checks import require_positive
from trainyard.errors import BadInput, MissingExtra, UnknownName

if TYPE_CHECKING:
    from amaranth.lib.wiring import Component

Inputs = Mapping[str, int]
"""The value of every input port in one cycle; a port that is not named is 0."""
Outputs = Mapping[str, int]
"""The value of output ports in one cycle; a port that is not named may hold anything (its valid bit is low, for example)."""
Value = int | str | bool

MODULES = (
    "trainyard.rtl.arithmetic.adder",
    "trainyard.rtl.arithmetic.multiplier",
    "trainyard.rtl.reduction.fan",
    "trainyard.rtl.reduction.art",
    "trainyard.rtl.reduction.chain",
    "trainyard.rtl.benes",
    "trainyard.rtl.controller",
    "trainyard.rtl.flex_dpe",
    "trainyard.rtl.systolic",
    "trainyard.rtl.tensordash.scheduler",
    "trainyard.rtl.tensordash.element",
    "trainyard.rtl.tensordash.tile",
    "trainyard.rtl.tensordash.baseline",
    "trainyard.rtl.agau.accumulation",
    "trainyard.rtl.agau.cache_traffic",
    "trainyard.rtl.dsc",
)
"""Modules that register designs, in the order in which they are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """One generator with its parameters; subclasses add the parameters as fields and are registered by `register`."""

    name: ClassVar[str]
    """What the command line calls it, such as `fan`."""
    word: ClassVar[str]
    """The paper's word and the paper, in one line."""

    def build(self) -> Component:
        """A circuit whose ports are plain unsigned signals; a fresh one at each call."""
        raise NotImplementedError

    def stimulus(self, cycles: int, seed: int) -> list[Inputs]:
        """Random inputs for so many cycles, the last of which suffice for all results to leave."""
        raise NotImplementedError

    def expected(self, stimulus: Sequence[Inputs]) -> list[Outputs]:
        """What the simulator's part says about every cycle of `stimulus`."""
        raise NotImplementedError

    @property
    def parameters(self) -> dict[str, Value]:
        """The parameters by name.

        >>> design_of("adder", {"stages": "2"}).parameters
        {'number': 'fp32', 'stages': 2}
        """
        return {each.name: getattr(self, each.name) for each in fields(self)}


def parameter(default: Value, meaning: str) -> Any:
    """A field of a design: its default, and what it means in one line (for the command line)."""
    return field(default=default, metadata={"meaning": meaning})


_REGISTERED: dict[str, type[Design]] = {}
Registered = TypeVar("Registered", bound=type[Design])


def register(design: Registered) -> Registered:
    """Enters a design under its name; two designs of one name are refused."""
    other = _REGISTERED.get(design.name)
    if other is not None and (other.__module__, other.__qualname__) != (design.__module__, design.__qualname__):
        raise BadInput(f"two designs are called '{design.name}': {other.__module__} and {design.__module__}; rename one")
    _REGISTERED[design.name] = design
    return design


def designs() -> Mapping[str, type[Design]]:
    """All designs by name, in the order of `MODULES`."""
    try:
        importlib.import_module("amaranth")
    except ImportError as error:
        raise MissingExtra("amaranth", "rtl", "a hardware design") from error
    for module in MODULES:
        importlib.import_module(module)
    place = {module: index for index, module in enumerate(MODULES)}
    return dict(sorted(_REGISTERED.items(), key=lambda entry: place.get(entry[1].__module__, len(place))))


def design_of(name: str, given: Mapping[str, Value] | None = None) -> Design:
    """A design by name; parameters may be text, as the command line gives them.

    >>> design_of("adder", {"stages": "9"})
    Traceback (most recent call last):
    trainyard.errors.BadInput: adder: stages must be a whole number from 0 (no register) to 3, got 9
    """
    known = designs()
    if name not in known:
        raise UnknownName("design", name, known)
    design = known[name]
    types = typing.get_type_hints(design)
    names = [each.name for each in fields(design)]
    values: dict[str, Value] = {}
    for key, value in (given or {}).items():
        if key not in names:
            raise UnknownName("parameter", key, names, where=name)
        values[key] = _parsed(name, key, value, types[key])
    return design(**values)


def _parsed(owner: str, key: str, value: Value, wanted: Any) -> Value:
    if not isinstance(value, str) or wanted not in (int, bool):
        return value
    if wanted is bool:
        if value.lower() not in ("true", "false"):
            raise BadInput(f"{owner}: {key} must be true or false, got '{value}'")
        return value.lower() == "true"
    try:
        return int(value)
    except ValueError:
        raise BadInput(f"{owner}: {key} must be a whole number, got '{value}'") from None


def parameter_rows(design: type[Design]) -> list[tuple[str, Value, str]]:
    """Name, default and meaning of every parameter, for a table."""
    return [(each.name, each.default, each.metadata.get("meaning", "")) for each in fields(design) if each.default is not MISSING]


def require_power_of_two(owner: str, **sizes: object) -> None:
    """Powers of two, at least 2.

    >>> require_power_of_two("fan", lanes=96)
    Traceback (most recent call last):
    trainyard.errors.BadInput: fan: lanes must be a power of two of at least 2, got 96: write 64 or 128
    """
    require_positive(owner, **sizes)
    for name, size in sizes.items():
        assert isinstance(size, int)
        if size < 2 or size & (size - 1):
            below = 1 << (size.bit_length() - 1)
            offer = f"{below} or {2 * below}" if size > 2 else "2"
            raise BadInput(f"{owner}: {name} must be a power of two of at least 2, got {size}: write {offer}")
