"""Assumptions: named values that a paper or a user left open, with alternatives and the field of the machine that has them."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainyard.ir.step import Step


ENERGY = "energy_j"
OF_ENERGY = (
    "power_w", "energy_per_sample_j", "energy_delay_js", "static_energy_j", "total_energy_j", "area_m2", "samples_per_s_m2",
)  # fmt: skip
"""Metrics that follow from energy, or as it does from the technology: what changes energy alone may change these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A value that no source states; `path` is the field of the machine that has it (`array.pipelined`).

    `alternatives` are other plausible values; an assumption with a path and alternatives is *open*, and a headline shows the range
    of its metric over the open ones. `settles` names the claims that it was calibrated on, if any. `only` names the metric that it
    can change if there is just one. An `unused` assumption changes nothing in the simulated step.
    """

    name: str
    value: Any
    meaning: str
    alternatives: tuple[Any, ...] = ()
    path: str = ""
    settles: str = ""
    choice: bool = False
    only: str = ""
    unused: bool = field(default=False, compare=False)

    @property
    def open(self) -> bool:
        return bool(self.path and self.alternatives)

    def changes(self, metric: str) -> bool:
        """Whether an alternative may change a metric; if not, no run is needed to know its effect."""
        return not self.unused and (self.only in ("", metric) or (self.only == ENERGY and metric in OF_ENERGY))


def trials(assumptions: Iterable[Assumption], metric: str) -> list[tuple[str, Any]]:
    """(path, alternative) of all open assumptions that may change a metric: its range is over runs with these."""
    return [
        (assumption.path, alternative)
        for assumption in assumptions
        if assumption.open and not assumption.choice and assumption.changes(metric)
        for alternative in assumption.alternatives
    ]


def assumed(default: Any, meaning: str, *alternatives: Any, choice: bool = False, only: str = "") -> Any:
    """A dataclass field whose value is an assumption, with its meaning and alternatives.

    A `choice` is made by the user (what to simulate) and is not an unknown: its effect is reported, but it widens no range. `only`
    names the metric that it can change if there is just one (`energy_j`).
    """
    return field(default=default, metadata={"meaning": meaning, "alternatives": alternatives, "choice": choice, "only": only})


def assumptions_of(
    machine: Any, step: Step | None = None, prefix: str = "", unused: Set[str] = frozenset()
) -> tuple[Assumption, ...]:
    """Every assumption in a machine's tree of parts, with the path that overrides it.

    A part may name what has no effect in `unused_assumptions`: its own fields, parts that it does not use, or fields inside them
    (`host.threads`), as a set or as a function of the step. `unused` are the names that the enclosing part gave for this one.
    """
    assumptions: list[Assumption] = []
    if not is_dataclass(machine):
        return ()
    unused = unused | _unused(machine, step)
    kind: type = type(machine)
    for part in _fields(kind):
        value = getattr(machine, part.name)
        if "meaning" in part.metadata:
            assumptions.append(_assumption(part, value, f"{prefix}{part.name}", part.name in unused))
        elif hasattr(type(value), "__dataclass_fields__"):  # `is_dataclass`, of values alone
            inner = {name.removeprefix(f"{part.name}.") for name in unused if name.startswith(f"{part.name}.")}
            if part.name in unused:
                inner |= {own.name for own in fields(value)}
            assumptions.extend(assumptions_of(value, step, f"{prefix}{part.name}.", inner))
    return tuple(assumptions)


@cache
def _fields(part: type) -> tuple[Field[Any], ...]:
    return fields(part)


def _assumption(part: Field[Any], value: Any, path: str, unused: bool) -> Assumption:
    metadata = part.metadata
    return Assumption(
        name=path,
        value=value,
        meaning=metadata["meaning"],
        alternatives=tuple(other for other in (*metadata["alternatives"], part.default) if other != value),
        path=path,
        choice=metadata["choice"],
        only=metadata["only"],
        unused=unused,
    )


def _unused(part: Any, step: Step | None) -> Set[str]:
    """The names that a part gives as unused: an array as a set, a device as a function of the step."""
    names: Any = getattr(part, "unused_assumptions", None)
    if callable(names) and step is not None:
        names = names(step)
    return names if isinstance(names, Set) else frozenset()
