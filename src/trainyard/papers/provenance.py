"""Where a preset's numbers come from: the comment at the end of each number's line, read from the preset's own source.

So a preset reads like the table it came from, and the tool can still show the source of every number at run time.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainyard.errors import BadInput, UnknownName
from trainyard.ir import assumptions_of
from trainyard.machines import describe
from trainyard.machines.grammar import parse
from trainyard.machines.registry import MACHINES, preset


@dataclass(frozen=True, slots=True)
class Literal:
    """One number, quantity or choice of a preset: the field it sets, its line, and what the line says of its source."""

    path: str
    line: int
    numeric: bool
    source: str


@cache
def provenance(machine: str) -> Mapping[str, str]:
    """The source of each field that a preset states, by path.

    >>> provenance("npu")["dram_bytes_per_s"]
    'Table 3: 150 GB/s per core'
    """
    return {literal.path: literal.source for literal in literals(machine) if literal.source}


def remarks(text: str, machine: Any) -> dict[str, str]:
    """What stands behind each field of a machine: a preset's source where its number is still there, else what else it may be."""
    found = {}
    for assumption in assumptions_of(machine):
        others = ", ".join(map(str, assumption.alternatives))
        found[assumption.path] = f"{assumption.meaning}; or: {others}" if others else assumption.meaning
    name = parse(text).name
    if name in MACHINES:
        now, before = (dict(_flat(describe(made))) for made in (machine, preset(name)))
        found |= {path: source for path, source in provenance(name).items() if path in now and now[path] == before.get(path)}
    return found


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def unsourced(machine: str) -> list[str]:
    """Numbers of a preset whose line names no source; a test keeps this empty."""
    return [
        f"{machine}: {literal.path} (line {literal.line})"
        for literal in literals(machine)
        if literal.numeric and not literal.source
    ]


def literals(machine: str) -> list[Literal]:
    if machine not in MACHINES:
        raise UnknownName("machine", machine, MACHINES)
    module, _, name = MACHINES[machine].path.partition(":")
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise BadInput(f"the source of {module} cannot be read")
    return list(literals_of(Path(spec.origin).read_text(encoding="utf-8"), name))


def literals_of(source: str, name: str) -> Iterator[Literal]:
    """The literals of the module-level value `name`, other module-level names followed."""
    values = {
        target.id: node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    if name not in values:
        raise BadInput(f"no module-level value '{name}'")
    yield from _Walk(values, _comments(source)).visit(values[name], "")


def _comments(source: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: token.string.lstrip("# ").strip() for token in tokens if token.type == tokenize.COMMENT}


class _Walk:
    """Goes through the expression of a preset; later keywords of a `replace` overrule what its base says."""

    def __init__(self, values: Mapping[str, ast.expr], comments: Mapping[int, str]) -> None:
        self.values, self.comments = values, comments

    def visit(self, node: ast.expr, path: str) -> Iterator[Literal]:
        if isinstance(node, ast.Call):
            for position, argument in enumerate(node.args):
                yield from self.visit(argument, path if isinstance(argument, ast.Name) else f"{path}[{position}]")
            for keyword in node.keywords:
                yield from self.visit(keyword.value, ".".join(filter(None, (path, keyword.arg))))
        elif isinstance(node, ast.Name) and node.id in self.values:
            yield from self.visit(self.values[node.id], path)
        elif any(isinstance(part, ast.Call | ast.Name) for part in ast.iter_child_nodes(node)):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    yield from self.visit(child, path)
        elif any(isinstance(part, ast.Constant) for part in ast.walk(node)):
            numeric = any(_is_number(part) for part in ast.walk(node))
            source = self.comments.get(node.end_lineno or node.lineno, "") or self.comments.get(node.lineno, "")
            yield Literal(path, node.lineno, numeric, source)


def _is_number(node: ast.AST) -> bool:
    """A number, or a quantity such as "8 MiB"."""
    if not isinstance(node, ast.Constant) or isinstance(node.value, bool):
        return False
    return isinstance(node.value, int | float) or (isinstance(node.value, str) and node.value[:1].isdigit())
