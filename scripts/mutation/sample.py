"""Which mutants are tried: all of a room in an order drawn by a seed, at most one to a line.

A mutant's place in the order is a hash of the seed and of what it changes, so that an edit elsewhere moves no other: results stay
good while the code around them changes, and a longer run goes on where a shorter one ended.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mutation.operators import Mutant, mutants

ROOMS = ("engine", "hardware", "arrays", "mapping", "devices", "systems")
PACKAGE = Path("src") / "trainyard"


@dataclass(frozen=True, slots=True)
class Drawn:
    """A mutant with its name and a digest of the function that it changes."""

    name: str
    digest: str
    mutant: Mutant


def _hash(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def _function_digests(source: str) -> dict[int, str]:
    """First line of each function -> digest of its code, whatever its comments and lines."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {min([node.lineno, *(one.lineno for one in node.decorator_list)]): _hash(ast.dump(node))[:12] for node in nodes}


def _of_file(root: Path, path: Path) -> Iterator[Drawn]:
    source = path.read_text()
    digests = _function_digests(source)
    twins: Counter[tuple[str, ...]] = Counter()
    for mutant in mutants(path.relative_to(root).as_posix(), source):
        change = (mutant.path, mutant.function, mutant.operator, mutant.before, mutant.after)
        twins[change] += 1
        yield Drawn(_hash(*change, twins[change])[:10], digests[mutant.first_line], mutant)


def all_of_room(root: Path, room: str) -> list[Drawn]:
    return [drawn for path in sorted((root / PACKAGE / room).rglob("*.py")) for drawn in _of_file(root, path)]


def in_drawn_order(room_mutants: list[Drawn], seed: int) -> list[Drawn]:
    """At most one mutant of each line, in the order of the seed."""
    lines: set[tuple[str, int]] = set()
    order: list[Drawn] = []
    for drawn in sorted(room_mutants, key=lambda one: _hash(seed, one.name)):
        place = (drawn.mutant.path, drawn.mutant.line)
        if place not in lines:
            lines.add(place)
            order.append(drawn)
    return order
