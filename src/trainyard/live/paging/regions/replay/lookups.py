"""What the functions of a module look up outside: global variables and variables of closures, by their names in the code.

A schedule that is a global variable may stay as it is for an epoch, so watching two passes does not show that it changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from torch import nn

_REPLACED = ("forward", "_compiled_call_impl")
"""Attributes in which an overlay puts functions of its own."""


class Closure:
    """The variables of a function's closure, by name.

    >>> scale = 2.0
    >>> Closure(("scale",), ((lambda: scale).__closure__ or (CellType(2.0),)))["scale"]
    2.0
    """

    __slots__ = ("cells",)

    def __init__(self, names: tuple[str, ...], cells: tuple[CellType, ...]) -> None:
        self.cells = dict(zip(names, cells, strict=True))

    def __getitem__(self, name: str) -> Any:
        try:
            return self.cells[name].cell_contents
        except ValueError:  # not assigned yet
            raise KeyError(name) from None

    def items(self) -> Iterator[tuple[str, Any]]:
        for name in self.cells:
            try:
                yield name, self[name]
            except KeyError:
                continue


def global_variables(module: nn.Module) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """The global variables that a module's functions name, and where they are."""
    for function in _functions(module):
        names = [name for name in _names(function.__code__) if name in function.__globals__]
        if names:
            yield function.__globals__, names


def closures(module: nn.Module) -> Iterator[Closure]:
    """The closures of a module's functions."""
    for function in _functions(module):
        if function.__closure__:
            yield Closure(function.__code__.co_freevars, function.__closure__)


def _functions(module: nn.Module) -> Iterator[FunctionType]:
    """Methods that the module's own classes define, and functions that it keeps."""
    yield from _methods(type(module))
    for name, value in vars(module).items():
        function = value.func if isinstance(value, partial) else value.__func__ if isinstance(value, MethodType) else value
        if isinstance(function, FunctionType) and name not in _REPLACED:
            yield function


def _methods(kind: type[nn.Module]) -> Iterator[FunctionType]:
    own = [base for base in kind.__mro__ if issubclass(base, nn.Module) and not base.__module__.startswith("torch.")]
    members = {name: member for base in reversed(own) for name, member in vars(base).items()}
    for name, member in members.items():
        if isinstance(member, FunctionType) and not name.startswith("__"):
            yield member


@cache
def _names(code: CodeType) -> tuple[str, ...]:
    """Names in the code of a function and of those inside it."""
    inside = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in _names(constant)]
    return tuple(dict.fromkeys((*code.co_names, *inside)))
