"""What the functions of a module look up outside: global variables, variables of closures, attributes of objects and classes.

A schedule that is a global variable may stay as it is for an epoch, so watching two passes does not show that it changes. Functions
that those of the module call are followed, also into other files: the code of each has the names of all that it looks up. What
torch, numpy and Python's own library look up is not followed.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from types import CellType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, NamedTuple

from torch import nn

OF_MODULES = (frozenset(vars(nn.Module())) - {"training"}) | {"forward", "_compiled_call_impl"}
"""Attributes in which every module keeps its parameters, submodules and hooks, and those in which an overlay puts its functions."""
_NOT_FOLLOWED = frozenset({"torch", "numpy", "trainyard"}) | sys.stdlib_module_names
_CALLED_UNNAMED = ("__call__", "__getitem__", "__getattr__", "forward", "backward", "setup_context")
"""Methods that are called without their names in the code: of objects, of modules, of functions of autograd."""
FOLLOWED = 512
"""Functions that are followed from one module; those that are nearest to it come first."""
DEPTH = 5
"""Of attributes of attributes."""


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

    def __contains__(self, name: str) -> bool:
        try:
            self[name]
        except KeyError:
            return False
        return True


Variables = Mapping[str, Any] | Closure


class LookUp(NamedTuple):
    """Variables, and the names that a function finds there."""

    variables: Variables
    names: list[str]


def lookups(block: nn.Module) -> Iterator[LookUp]:
    """What the functions of a block and of its submodules look up."""
    search = _Search()
    for module in block.modules():
        yield from search.of(module)


class _Function(NamedTuple):
    """A function that is to be read."""

    function: FunctionType
    owner: Any
    """The object whose method it is."""
    given: dict[str, Any]
    """Arguments that a `partial` gives it."""


class _Search:
    """Functions that are still to be read, and what was found already."""

    def __init__(self) -> None:
        self.waiting = deque[_Function]()
        self.seen: set[tuple[int, Any]] = set()
        self.alive: list[Any] = []
        """Objects whose numbers are in `seen`."""

    def of(self, module: nn.Module) -> Iterator[LookUp]:
        for kind in _own_classes(module):
            for name, member in vars(kind).items():
                if not name.startswith("__"):
                    self._follow(member, module)
        for name, value in vars(module).items():
            if name not in OF_MODULES:
                self._follow(value, module)
        for _ in range(FOLLOWED):
            if self.waiting:
                yield from self._read(*self.waiting.popleft())
        self.waiting.clear()

    def _read(self, function: FunctionType, owner: Any, given: dict[str, Any]) -> Iterator[LookUp]:
        names = _names(function.__code__)
        if _is_own(function.__globals__.get("__name__")):
            yield from self._look(function.__globals__, function.__globals__, names, names)
        if function.__closure__:
            free = function.__code__.co_freevars
            yield from self._look(function, Closure(free, function.__closure__), free, names)
        if owner is not None:
            yield from self._look_into(owner, names)
        if given:
            yield from self._look(given, given, given, names)

    def _look(
        self, holder: Any, variables: Variables, wanted: Iterable[str], names: tuple[str, ...], depth: int = DEPTH
    ) -> Iterator[LookUp]:
        """Looks for some names in the variables of a holder, then for all names of the code in what it finds."""
        found = [name for name in wanted if name in variables and self._is_new(holder, name)]
        if found:
            yield LookUp(variables, found)
        for name in found:
            value = variables[name]
            self._follow(value, None)
            if depth and _is_followed(value):
                yield from self._look_into(value, names, depth - 1)

    def _look_into(self, value: Any, names: tuple[str, ...], depth: int = DEPTH) -> Iterator[LookUp]:
        """Looks for the names of a code in an object, a class or a module of Python."""
        wanted = [name for name in names if name not in OF_MODULES] if isinstance(value, nn.Module) else names
        yield from self._look(value, attributes_of(value), wanted, names, depth)
        for kind in _own_classes(value):
            variables = vars(kind)
            for name in (*names, *_CALLED_UNNAMED):
                if name in variables:
                    self._follow(variables[name], value)
            yield from self._look(kind, variables, names, names, depth)

    def _follow(self, value: Any, owner: Any) -> None:
        """A function is to be read, as it is or inside of something that calls it."""
        given: dict[str, Any] = {}
        while not isinstance(value, FunctionType):
            if isinstance(value, partial):
                given |= {str(place): argument for place, argument in enumerate(value.args)} | value.keywords
                value = value.func
            elif isinstance(value, MethodType):
                value, owner = value.__func__, value.__self__
            elif isinstance(value, classmethod | staticmethod):
                value = value.__func__
            elif isinstance(value, property):
                value = value.fget
            else:
                return
        is_own = _is_own(value.__module__) or _is_own(value.__globals__.get("__name__"))
        if is_own and self._is_new(value, id(owner)):
            self.waiting.append(_Function(value, owner, given))
            self.alive.append(owner)

    def _is_new(self, value: Any, name: Any) -> bool:
        if (id(value), name) in self.seen:
            return False
        self.seen.add((id(value), name))
        self.alive.append(value)
        return True


def attributes_of(value: Any) -> Mapping[str, Any]:
    """Those that an object keeps itself; none where it does not say."""
    try:
        attributes = value.__dict__
    except Exception:  # a stand-in for something that is not there
        return {}
    return attributes if isinstance(attributes, dict | MappingProxyType) else {}


def _own_classes(value: Any) -> Iterator[type]:
    """Classes of a program or a library that an object is of, or that a class is derived from."""
    kind = value if isinstance(value, type) else type(value)
    return (base for base in reversed(kind.__mro__) if _is_own(base.__module__))


def _is_followed(value: Any) -> bool:
    """Whether attributes of a value are looked at: of a module of Python, a class, or an object."""
    if isinstance(value, ModuleType):
        return _is_own(value.__name__)
    return any(True for _ in _own_classes(value))


def _is_own(module: Any) -> bool:
    return isinstance(module, str) and module.partition(".")[0] not in _NOT_FOLLOWED


@cache
def _names(code: CodeType) -> tuple[str, ...]:
    """Names in the code of a function and of those inside it."""
    inside = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in _names(constant)]
    return tuple(dict.fromkeys((*code.co_names, *inside)))
