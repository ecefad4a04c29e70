"""What a paper or a user left open: a named value, its alternatives, and the field of the machine that holds it."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainyard.ir.step import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """`value` stands where something is not known; `path` is the machine's field that holds it (`array.pipelined`).

    `alternatives` are the values that were as good a guess; an assumption with a path and alternatives is *open*, and a headline
    shows its range over the open ones. `settles` names the claims that it was chosen on, if any: then it is calibrated.
    `only` is the metric that it can change where that is one alone; an `idle` one changes nothing in the step that was run.
    """

    name: str
    value: Any
    meaning: str
    alternatives: tuple[Any, ...] = ()
    path: str = ""
    settles: str = ""
    choice: bool = False
    only: str = ""
    idle: bool = field(default=False, compare=False)

    @property
    def open(self) -> bool:
        return bool(self.path and self.alternatives)

    def changes(self, metric: str) -> bool:
        """Whether an alternative may change a metric at all; where not, nothing needs to be run to know what it is worth."""
        return not self.idle and self.only in ("", metric)


def trials(assumptions: Iterable[Assumption], metric: str) -> list[tuple[str, Any]]:
    """What a range of a metric is over: (path, alternative) of all that is unknown and may change it."""
    return [
        (unknown.path, alternative)
        for unknown in assumptions
        if unknown.open and not unknown.choice and unknown.changes(metric)
        for alternative in unknown.alternatives
    ]


def assumed(default: Any, meaning: str, *alternatives: Any, choice: bool = False, only: str = "") -> Any:
    """A dataclass field whose value is an assumption: it says what it means and what else it could be.

    A `choice` is the user's to make, not a thing unknown (what to simulate at all): it has a worth, but widens no range. `only`
    names the metric of a result that it can change where that is one alone (`energy_j`).
    """
    return field(default=default, metadata={"meaning": meaning, "alternatives": alternatives, "choice": choice, "only": only})


def assumptions_of(
    machine: Any, step: Step | None = None, prefix: str = "", unused: Set[str] = frozenset()
) -> tuple[Assumption, ...]:
    """Every assumption in a machine's tree of parts, with the path that overrides it.

    A part may say what cannot change anything: `idle`, a set of names of its fields, of parts that it does not use, or of fields
    inside them (`host.threads`), or what gives it for a step. `unused` is what the part around it has said of this one.
    """
    found: list[Assumption] = []
    if not is_dataclass(machine):
        return ()
    idle = _idle(machine, step) | unused
    kind: type = type(machine)
    for part in _fields(kind):
        value = getattr(machine, part.name)
        if "meaning" in part.metadata:
            found.append(_said(part, value, f"{prefix}{part.name}", part.name in idle))
        elif hasattr(type(value), "__dataclass_fields__"):  # `is_dataclass`, of values alone
            inner = {name.removeprefix(f"{part.name}.") for name in idle if name.startswith(f"{part.name}.")}
            everything = {one.name for one in fields(value)} if part.name in idle else set()
            found.extend(assumptions_of(value, step, f"{prefix}{part.name}.", inner | everything))
    return tuple(found)


@cache
def _fields(part: type) -> tuple[Field[Any], ...]:
    return fields(part)


def _said(part: Field[Any], value: Any, path: str, idle: bool) -> Assumption:
    """What a field of a part says of its value."""
    said = part.metadata
    return Assumption(
        name=path,
        value=value,
        meaning=said["meaning"],
        alternatives=tuple(other for other in (*said["alternatives"], part.default) if other != value),
        path=path,
        choice=said["choice"],
        only=said["only"],
        idle=idle,
    )


def _idle(part: Any, step: Step | None) -> Set[str]:
    """An array knows no steps and says it as it stands; a device says it of a step."""
    said: Any = getattr(part, "unused_assumptions", None)
    if callable(said) and step is not None:
        said = said(step)
    return said if isinstance(said, Set) else frozenset()
