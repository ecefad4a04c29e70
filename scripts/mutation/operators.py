"""The changes: each makes one node of a function's syntax tree into another that a careless author might have written.

Only the bodies of functions are changed: what a module does when it is imported (tables, defaults of fields and arguments,
decorators) has no test of its own lines. Docstrings, type hints and the texts of errors are left alone too.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# fmt: off
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,  ast.LtE: ast.Lt,      ast.Gt: ast.GtE,    ast.GtE: ast.Gt,    ast.Eq: ast.NotEq,  ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,  ast.IsNot: ast.Is,  ast.In: ast.NotIn,  ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,   ast.Sub: ast.Add,        ast.Mult: ast.Div,       ast.Div: ast.Mult,      ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,  ast.Pow: ast.Mult,   ast.LShift: ast.RShift,  ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,  ast.BitOr: ast.BitAnd,  ast.BitXor: ast.BitAnd,
}
# fmt: on
PAIRS = (("min", "max"), ("any", "all"), ("ceil", "floor"), ("minimum", "maximum"), ("argmin", "argmax"))
OPPOSITES = dict(PAIRS) | {second: first for first, second in PAIRS}
NOT_SWAPPED = frozenset(
    """min max gcd lcm minimum maximum isclose hypot array_equal logical_and logical_or
    isinstance issubclass cast getattr zeros ones empty full array asarray fromiter ascontiguousarray reshape map filter""".split()
)
"""Calls whose first two arguments are not swapped: nothing changes (first line), or Python itself refuses at once (second)."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change to one function. `name` stays the same while the function around it is edited elsewhere."""

    path: str
    function: str
    first_line: int  # of the outermost function around it, with its decorators
    line: int
    end_line: int
    statement_lines: tuple[int, int]
    operator: str
    before: str
    after: str
    position: int  # of the change among all of its module


@dataclass(frozen=True, slots=True)
class Change:
    """A node and what takes its place."""

    operator: str
    node: ast.AST
    replacement: ast.AST


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_sequence(node: ast.AST) -> bool:
    return isinstance(node, ast.List | ast.Tuple | ast.ListComp | ast.Set | ast.Dict)


def _compare(node: ast.Compare) -> Iterator[Change]:
    for place, operator in enumerate(node.ops):
        replacement = copy.deepcopy(node)
        replacement.ops[place] = COMPARISONS[type(operator)]()
        yield Change("comparison", node, replacement)


def _arithmetic(node: ast.BinOp | ast.AugAssign) -> Iterator[Change]:
    sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
    if type(node.op) in ARITHMETIC and not any(_is_text(side) or _is_sequence(side) for side in sides):
        replacement = copy.deepcopy(node)
        replacement.op = ARITHMETIC[type(node.op)]()
        yield Change("arithmetic", node, replacement)


def _constant(node: ast.Constant) -> Iterator[Change]:
    if isinstance(node.value, bool):
        yield Change("constant", node, ast.Constant(not node.value))
    elif isinstance(node.value, int | float):
        yield Change("constant", node, ast.Constant(node.value + 1))
        yield Change("constant", node, ast.Constant(node.value - 1))


def _boolean(node: ast.BoolOp) -> Iterator[Change]:
    yield Change("boolean", node, ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values))


def _unary(node: ast.UnaryOp) -> Iterator[Change]:
    if isinstance(node.op, ast.Not):
        yield Change("removed not", node, node.operand)
    elif isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield Change("removed minus", node, node.operand)


def _call(node: ast.Call) -> Iterator[Change]:
    name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if name in OPPOSITES:
        replacement = copy.deepcopy(node)
        if isinstance(replacement.func, ast.Name):
            replacement.func.id = OPPOSITES[name]
        elif isinstance(replacement.func, ast.Attribute):
            replacement.func.attr = OPPOSITES[name]
        yield Change("opposite function", node, replacement)
    first_two = node.args[:2]
    if (
        len(first_two) == 2
        and name not in NOT_SWAPPED
        and not any(isinstance(one, ast.Starred) or _is_text(one) for one in first_two)
    ):
        yield Change("swapped arguments", node, ast.Call(node.func, [*reversed(first_two), *node.args[2:]], node.keywords))


def _dropped(node: ast.stmt) -> Iterator[Change]:
    """Statements whose absence Python itself would not notice."""
    called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Yield | ast.YieldFrom | ast.Await)
    stored = isinstance(node, ast.Assign) and all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    if called or stored or isinstance(node, ast.AugAssign | ast.Raise | ast.Continue | ast.Break | ast.Delete):
        yield Change("dropped statement", node, ast.Pass())


def _returned(node: ast.Return, function: Function) -> Iterator[Change]:
    if node.value is None or isinstance(node.value, ast.Constant):
        return
    hint = ast.unparse(function.returns) if function.returns else ""
    if hint == "bool":
        yield Change("return value", node, ast.Return(ast.UnaryOp(ast.Not(), node.value)))
    elif hint in ("int", "float"):
        yield Change("return value", node, ast.Return(ast.BinOp(node.value, ast.Add(), ast.Constant(1))))
    elif hint.endswith("| None"):
        yield Change("return value", node, ast.Return(ast.Constant(None)))


VISITORS: dict[type[ast.AST], Callable[..., Iterator[Change]]] = {
    ast.Compare: _compare,
    ast.BinOp: _arithmetic,
    ast.AugAssign: _arithmetic,
    ast.Constant: _constant,
    ast.BoolOp: _boolean,
    ast.UnaryOp: _unary,
    ast.Call: _call,
}


def _inner(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that run when it does: no type hints, no texts of errors, no defaults of inner functions."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, Function):
        yield from node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    elif isinstance(node, ast.ClassDef):
        yield from (one for one in node.body if isinstance(one, Function))
    elif isinstance(node, ast.AnnAssign):
        if node.value is not None:
            yield node.value
    elif isinstance(node, ast.Subscript) and _is_text(node.slice):
        yield node.value
    else:
        yield from ast.iter_child_nodes(node)


def _changes(function: Function) -> Iterator[tuple[Change, ast.stmt]]:
    """All changes inside a function and the statement that each is in."""

    def visit(node: ast.AST, statement: ast.stmt) -> Iterator[tuple[Change, ast.stmt]]:
        if isinstance(node, ast.stmt):
            statement = node
            yield from ((change, statement) for change in _dropped(node))
        if isinstance(node, ast.Return):
            yield from ((change, statement) for change in _returned(node, function))
        if visitor := VISITORS.get(type(node)):
            yield from ((change, statement) for change in visitor(node))
        for part in _inner(node):
            yield from visit(part, statement)

    for part in _inner(function):
        yield from visit(part, function)


def _outermost_functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            if not any("overload" in ast.unparse(decorator) for decorator in node.decorator_list):
                yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _outermost_functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With) and "TYPE_CHECKING" not in ast.unparse(node)[:30]:
            yield from _outermost_functions(node, prefix)


def _all_changes(tree: ast.Module) -> Iterator[tuple[str, Function, Change, ast.stmt]]:
    for name, function in _outermost_functions(tree):
        yield from ((name, function, change, statement) for change, statement in _changes(function))


def _lines(statement: ast.stmt) -> tuple[int, int]:
    """First and last line of a statement, of its head alone where it has a body."""
    body = getattr(statement, "body", None)
    end = statement.end_lineno or statement.lineno
    return statement.lineno, max(statement.lineno, body[0].lineno - 1) if isinstance(body, list) and body else end


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(ast.fix_missing_locations(node)).split())


def mutants(path: str, source: str) -> list[Mutant]:
    """Every change of a module, in the order of its lines.

    >>> [f"{one.before} -> {one.after}" for one in mutants("m.py", "def f(x: int) -> int:\\n    return min(x, 2)\\n")]
    ['return min(x, 2) -> return min(x, 2) + 1', 'min(x, 2) -> max(x, 2)', '2 -> 3', '2 -> 1']
    """
    return [
        Mutant(
            path=path,
            function=name,
            first_line=min([function.lineno, *(one.lineno for one in function.decorator_list)]),
            line=getattr(change.node, "lineno", statement.lineno),
            end_line=getattr(change.node, "end_lineno", statement.lineno),
            statement_lines=_lines(statement),
            operator=change.operator,
            before=_text(change.node),
            after=_text(change.replacement),
            position=position,
        )
        for position, (name, function, change, statement) in enumerate(_all_changes(ast.parse(source)))
    ]


class _Replace(ast.NodeTransformer):
    def __init__(self, node: ast.AST, replacement: ast.AST) -> None:
        self.node, self.replacement = node, replacement

    def visit(self, node: ast.AST) -> ast.AST:
        if node is self.node:
            return ast.copy_location(self.replacement, node)
        return self.generic_visit(node)


def mutated_tree(source: str, position: int) -> ast.Module:
    """The module with the change at `position` of `mutants`."""
    tree = ast.parse(source)
    changes = list(_all_changes(tree))
    change = changes[position][2]
    _Replace(change.node, change.replacement).visit(tree)
    return ast.fix_missing_locations(tree)
