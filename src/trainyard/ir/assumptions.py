"""What a paper or a user left open: a named value, its alternatives, and the field of the machine that holds it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """`value` stands where something is not known; `path` is the machine's field that holds it (`array.pipelined`).

    `alternatives` are the values that were as good a guess; an assumption with a path and alternatives is *open*, and a headline
    shows its range over the open ones. `settles` names the claims that it was chosen on, if any: then it is calibrated.
    """

    name: str
    value: Any
    meaning: str
    alternatives: tuple[Any, ...] = ()
    path: str = ""
    settles: str = ""
    choice: bool = False

    @property
    def open(self) -> bool:
        return bool(self.path and self.alternatives)


def assumed(default: Any, meaning: str, *alternatives: Any, choice: bool = False) -> Any:
    """A dataclass field whose value is an assumption: it says what it means and what else it could be.

    A `choice` is the user's to make, not a thing unknown (what to simulate at all): it has a worth, but widens no range.
    """
    return field(default=default, metadata={"meaning": meaning, "alternatives": alternatives, "choice": choice})


def assumptions_of(machine: Any, prefix: str = "") -> tuple[Assumption, ...]:
    """Every assumption in a machine's tree of parts, with the path that overrides it."""
    found: list[Assumption] = []
    if not is_dataclass(machine):
        return ()
    for part in fields(machine):
        value = getattr(machine, part.name)
        path = f"{prefix}{part.name}"
        if "meaning" in part.metadata:
            others = tuple(a for a in (*part.metadata["alternatives"], part.default) if a != value)
            found.append(
                Assumption(
                    name=path,
                    value=value,
                    meaning=part.metadata["meaning"],
                    alternatives=others,
                    path=path,
                    choice=part.metadata["choice"],
                )
            )
        elif is_dataclass(value) and not isinstance(value, type):
            found.extend(assumptions_of(value, f"{path}."))
    return tuple(found)
