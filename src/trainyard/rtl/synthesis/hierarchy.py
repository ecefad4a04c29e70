"""Equal modules of a design, found in its RTLIL text, so that each is synthesised once.

Amaranth writes a module for every submodule: a network of 511 adders has 511 modules that differ in their names and in those of
their ports. Here the wires of a module are renamed in the order in which they stand, children first; modules whose text is then the
same become one. A synthesis tool would do the work 511 times and find the same gates each time.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trainyard.errors import BadInput

CELL = re.compile(r"^\s*cell (\S+) (\S+)$")
WIRE = re.compile(r"^\s*wire .*?(\S+)$")
WIDTH = re.compile(r"^\s*parameter \\(?:Y_WIDTH|WIDTH) (\d+)$")
NAME = re.compile(r"[\\$][^\s\[\]{}]+")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """The text with every distinct module once, and of each module: how many bits of operators it has and how often it occurs."""

    text: str
    top: str
    bits: Mapping[str, int]
    instances: Mapping[str, int]

    def repeated(self, least_bits: int) -> tuple[str, ...]:
        """Modules that occur more than once and are no small ones, which are worth a synthesis of their own."""
        return tuple(name for name, many in self.instances.items() if many > 1 and self.bits[name] >= least_bits)


def merge_equal_modules(rtlil: str, top: str = "top") -> Hierarchy:
    """Of text as Amaranth writes it: without sources in attributes, every module between `module` and `end`."""
    modules = dict(_modules(rtlil))
    if f"\\{top}" not in modules:
        raise BadInput(f"the RTLIL text has no module {top}: it has {', '.join(sorted(modules)) or 'none'}")
    merged: dict[str, tuple[str, dict[str, str]]] = {}  # of each module as written: the name it has now, and its wires' names
    texts: dict[str, str] = {}
    sizes: dict[str, int] = {}
    children: dict[str, Counter[str]] = {}
    for name in _children_first(modules, f"\\{top}"):
        is_top = name == f"\\{top}"
        body, wires, inside, size = _renamed(modules[name], merged, rename=not is_top)
        short = re.sub(r"\W|\d+$", "_", name.rpartition(".")[2].lstrip("\\")).strip("_")
        new = name if is_top else f"\\{short}_{hashlib.sha256(body.encode()).hexdigest()[:8]}"
        merged[name] = new, wires
        attributes = 'attribute \\generator "Amaranth"\n' + "attribute \\top 1\n" * is_top
        texts[new] = f"{attributes}module {new}\n{body}\nend\n"
        sizes[new] = size + sum(sizes[child] * many for child, many in inside.items())
        children[new] = inside
    counts = _occurrences(children, f"\\{top}")
    return Hierarchy(
        "\n".join(texts.values()), top, {_plain(n): s for n, s in sizes.items()}, {_plain(n): c for n, c in counts.items()}
    )


def _plain(name: str) -> str:
    return name.lstrip("\\")


def _modules(rtlil: str) -> Iterator[tuple[str, list[str]]]:
    name, lines, depth = "", list[str](), 0
    for line in rtlil.splitlines():
        words = line.split()
        if not words or (words[0] == "attribute" and (not name or words[1] == "\\src")):
            continue
        if not name:
            if words[0] == "module":
                name = words[1]
            continue
        if words[0] == "end":
            if depth == 0:
                yield name, lines
                name, lines = "", []
                continue
            depth -= 1
        elif words[0] in ("cell", "process", "switch"):
            depth += 1
        lines.append(line)


def _children_first(modules: Mapping[str, list[str]], top: str) -> Iterator[str]:
    seen: set[str] = set()
    pending = [(top, False)]
    while pending:
        name, done = pending.pop()
        if done:
            yield name
        elif name not in seen:
            seen.add(name)
            pending.append((name, True))
            pending += [(match[1], False) for line in modules[name] if (match := CELL.match(line)) and match[1] in modules]


def _renamed(
    lines: list[str], merged: Mapping[str, tuple[str, dict[str, str]]], *, rename: bool
) -> tuple[str, dict[str, str], Counter[str], int]:
    """The text with its children's new names, and with names of its own wires in the order of their declaration."""
    declared = [match[1] for line in lines if (match := WIRE.match(line))]
    wires = {name: f"\\w{place}" for place, name in enumerate(declared)} if rename else {}

    def new_name(match: re.Match[str]) -> str:
        return wires.get(match[0], match[0])

    result: list[str] = []
    inside: Counter[str] = Counter()
    ports: dict[str, str] = {}
    in_cell, cells, size = False, 0, 0
    for line in lines:
        words = line.split()
        if match := CELL.match(line):
            in_cell, kind = True, match[1]
            ports = {}
            if kind in merged:
                kind, ports = merged[kind]
                inside[kind] += 1
            result.append(f"cell {kind} {f'{chr(92)}c{cells}' if rename else match[2]}")
            cells += 1
        elif in_cell and words[0] == "connect":
            target = " ".join(words[2:])
            result.append(f"connect {ports.get(words[1], words[1])} {NAME.sub(new_name, target)}")
        elif in_cell and words[0] == "parameter":
            result.append(line)
            width = WIDTH.match(line)
            size += int(width[1]) if width else 0
        else:
            in_cell = in_cell and words[0] != "end"
            result.append(NAME.sub(new_name, line) if words[0] != "attribute" else line)
    return "\n".join(result), wires, inside, size


def _occurrences(children: Mapping[str, Counter[str]], top: str) -> dict[str, int]:
    counts: Counter[str] = Counter({top: 1})
    for name in reversed(list(children)):  # parents before their children
        for child, many in children[name].items():
            counts[child] += counts[name] * many
    return dict(counts)
