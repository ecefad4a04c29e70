"""Lines of the user's code: where a question is asked, where a step fails, and which questions only guard against bad values."""

from __future__ import annotations

import ast
import linecache
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from textwrap import shorten
from types import FrameType, TracebackType
from typing import Any, TypeGuard

import torch
from torch import Tensor

_INNER = (f"{Path(__file__).parents[2]}/", "<frozen", "<eval_with_key", "<string>")
_TORCH = f"{Path(torch.__file__).parent}/"
_LIBRARY = f"{sysconfig.get_paths()['stdlib']}/"
_CALLING = (
    *_INNER, *(f"{_TORCH}{name}" for name in ("_", "utils/", "overrides.py", "autograd/", "library.py"))
)  # fmt: skip
_READING = frozenset("""
    item tolist float int str bool format print warn warning info debug error log exception critical warn_once warning_once
""".split())  # fmt: skip
"""Calls that read tensors and compute with none."""

_BOOKKEEPING = frozenset("append round min max len time zero_grad state_dict deepcopy save".split())
"""Calls that leave a healthy step as it is, unless they are given tensors."""


@dataclass(frozen=True, slots=True)
class Location:
    """A line of a program that is neither torch nor Trainyard."""

    file: str
    line: int
    positions: tuple[int, int, int, int] | None = None

    @property
    def key(self) -> str:
        """How `values=` names the line: the file without its folder, and the number."""
        return f"{Path(self.file).name}:{self.line}"

    def __str__(self) -> str:
        source = linecache.getline(self.file, self.line).strip()
        return f"{self.key}: `{shorten(source, 100, placeholder=' ...')}`" if source else self.key


def _is_inner(file: str) -> bool:
    return file.startswith((*_INNER, _TORCH)) or (file.startswith(_LIBRARY) and "site-packages" not in file)


def current_location() -> Location | None:
    """The innermost running line of the user's code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not _is_inner(frame.f_code.co_filename):
            return Location(frame.f_code.co_filename, frame.f_lineno, _positions(frame))
        frame = frame.f_back
    return None


def failed_location(error: BaseException) -> Location | None:
    """The innermost line of the user's code among those that an exception passed through."""
    innermost = None
    for traceback in _tracebacks(error.__traceback__):
        if not _is_inner(traceback.tb_frame.f_code.co_filename):
            innermost = Location(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
    return innermost


def _tracebacks(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _positions(frame: FrameType) -> tuple[int, int, int, int] | None:
    for index, position in enumerate(frame.f_code.co_positions()):
        if index == frame.f_lasti // 2:
            line, end_line, column, end_column = position
            if line is None or end_line is None or column is None or end_column is None:
                return None
            return line, end_line, column, end_column
    return None


def _asking_frame() -> FrameType | None:
    """The innermost running frame that is neither Trainyard's nor part of how torch calls it: it may be a check inside of torch."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_CALLING) and not (file.startswith(_LIBRARY) and "site-packages" not in file):
            return frame
        frame = frame.f_back
    return None


def guard_answer() -> bool | None:
    """What lets a healthy step pass, where an assertion asks for a truth value, or an `if` that changes nothing of the step: it
    raises, warns, or remembers a number.
    """
    frame = _asking_frame()
    positions = None if frame is None else _positions(frame)
    tree = None if frame is None or positions is None else _syntax_tree(frame.f_code.co_filename)
    if frame is None or positions is None or tree is None:
        return None
    statements = [node for node in ast.walk(tree) if _asks(node, positions)]
    if not statements:
        return None
    statement = statements[-1]
    if isinstance(statement, ast.If) and not (_is_harmless(statement.body, frame) and _is_harmless(statement.orelse, frame)):
        return None
    wanted = isinstance(statement, ast.Assert)
    node: ast.expr = statement.test
    while True:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            wanted, node = not wanted, node.operand
        elif isinstance(node, ast.BoolOp):
            inner = [value for value in node.values if _contains(value, positions)]
            if not inner:
                return wanted
            node = inner[0]
        else:
            return wanted


def _asks(node: ast.AST, positions: tuple[int, int, int, int]) -> TypeGuard[ast.Assert | ast.If]:
    """Whether a statement tests what stands at a position; the jump of `if not x` has the position of the whole statement."""
    if not isinstance(node, ast.Assert | ast.If):
        return False
    is_whole = (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset) == positions
    return is_whole or _contains(node if isinstance(node, ast.Assert) else node.test, positions)


def _is_harmless(body: list[ast.stmt], frame: FrameType) -> bool:
    """Whether statements only raise, skip a bad step, log, or note numbers: none of them computes with tensors or keeps one."""
    if body and isinstance(body[-1], ast.Raise):
        return True
    kinds = ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Pass | ast.Continue
    return all(isinstance(statement, kinds) and not _uses_tensors(statement, frame) for statement in body)


def _uses_tensors(node: ast.AST, frame: FrameType) -> bool:
    """Whether a statement names a tensor other than to read its value, or calls what may compute with one."""
    if isinstance(node, ast.Call):
        name = _called_name(node)
        if name in _READING:
            return False
        if name not in _BOOKKEEPING:
            return True
        return any(_uses_tensors(argument, frame) for argument in (*node.args, *node.keywords))
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(_bound(node, frame), Tensor):
        return True
    return any(_uses_tensors(child, frame) for child in ast.iter_child_nodes(node))


def _bound(node: ast.AST, frame: FrameType) -> Any:
    """What a name, or an attribute of a name, stands for in a frame; None if that cannot be told."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    return getattr(_bound(node.value, frame), node.attr, None) if isinstance(node, ast.Attribute) else None


def _called_name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _contains(node: ast.expr | ast.stmt, positions: tuple[int, int, int, int]) -> bool:
    line, end_line, column, end_column = positions
    start, end = (node.lineno, node.col_offset), (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
    return start <= (line, column) and (end_line, end_column) <= end


@lru_cache(maxsize=64)
def _syntax_tree(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None
