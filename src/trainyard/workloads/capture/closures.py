"""What a user's training step holds on to: the names that its function uses, restored after a capture.

A loop appends to a list of losses, counts its steps, or updates a running average that a class of its own keeps. The step runs
several times while it is captured, so all of that is set back: rebound names, lists and dictionaries, the attributes of objects,
and tensors that were written.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainyard.workloads.capture.swap import restored_containers

LARGEST_COPY = 1 << 26
"""Bytes of a tensor that is copied before the capture; larger ones are data, which a step does not write."""


def held_values(function: Any) -> list[Any]:
    """The values of the names that a function uses (also of functions of its own file that it calls), of the object that a method
    belongs to, and of the attributes of plain objects among them.
    """
    values: list[Any] = []
    for value in _named_values(function, set()):
        values.append(value)
        if _has_attributes(value):
            values += list(vars(value).values())
    return values


@contextmanager
def restored_closures(callables: Iterable[Callable[..., Any]]) -> Iterator[None]:
    """Everything that the functions hold is as before when the block ends."""
    callables = list(callables)
    values = [value for function in callables for value in held_values(function)]
    with ExitStack() as stack:
        stack.enter_context(restored_containers(_containers(values)))
        stack.callback(_write_back, _tensor_copies(values))
        for function in callables:
            for part in _functions(function, set()):
                stack.callback(_rebind, part, *_bindings(part))
        yield


def _has_attributes(value: Any) -> bool:
    """Whether the value is an object of a class with attributes of its own: neither code nor what has stand-ins."""
    code = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType, functools.partial)
    return not isinstance(value, (Tensor, nn.Module, Optimizer, *code)) and type(getattr(value, "__dict__", None)) is dict


def _method(function: Any) -> Any:
    """The method that a call of an object runs; functions and methods as they are."""
    return function.__call__ if _has_attributes(function) and callable(function) else function


def _functions(function: Any, seen: set[int]) -> Iterator[FunctionType]:
    """The Python functions inside a callable: behind a method or a partial call, and those of its own file that it uses."""
    if isinstance(function, functools.partial):
        function = function.func
    function = _method(function)
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    yield function
    for value in _used(function):
        if isinstance(value, FunctionType) and value.__globals__ is function.__globals__:
            yield from _functions(value, seen)


def _used(function: FunctionType) -> list[Any]:
    used = inspect.getclosurevars(function)
    return [*used.nonlocals.values(), *used.globals.values()]


def _named_values(function: Any, seen: set[int]) -> Iterator[Any]:
    if isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        function = function.func
    method = _method(function)
    if isinstance(method, MethodType):
        yield method.__self__
    for part in _functions(function, seen):
        yield from _used(part)


def _containers(values: Iterable[Any]) -> list[Any]:
    """The lists, sets, dictionaries and attribute dictionaries that are restored; two levels of plain objects."""
    containers: list[Any] = []
    for value in values:
        if isinstance(value, dict | list | set):
            containers.append(value)
        elif _has_attributes(value):
            inner = list(vars(value).values())
            containers += [vars(value), *(item for item in inner if isinstance(item, dict | list | set))]
            containers += [vars(item) for item in inner if _has_attributes(item)]
    return containers


def _tensor_copies(values: Iterable[Any]) -> list[tuple[Tensor, int, Tensor, Tensor | None]]:
    """Tensors, their versions, copies and gradients; parameters have stand-ins while the step is captured."""
    copies: dict[int, tuple[Tensor, int, Tensor, Tensor | None]] = {}
    for tensor in _tensors(values):
        is_plain = type(tensor) is Tensor and not (tensor.is_meta or tensor.is_sparse or tensor.is_inference())
        if is_plain and id(tensor) not in copies and tensor.numel() * tensor.element_size() <= LARGEST_COPY:
            copies[id(tensor)] = (tensor, tensor._version, tensor.detach().clone(), tensor.grad if tensor.is_leaf else None)
    return list(copies.values())


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, dict):
            yield from (item for item in value.values() if isinstance(item, Tensor))
        elif isinstance(value, list | tuple | set):
            yield from (item for item in value if isinstance(item, Tensor))


def _write_back(copies: list[tuple[Tensor, int, Tensor, Tensor | None]]) -> None:
    with torch.no_grad():
        for tensor, version, copy, gradient in copies:
            if tensor._version != version and not isinstance(tensor, nn.Parameter):
                tensor.copy_(copy)
            if tensor.is_leaf and tensor.grad is not gradient:
                tensor.grad = gradient


def _bindings(function: FunctionType) -> tuple[list[tuple[CellType, Any]], dict[str, Any]]:
    """The cells of the enclosing functions' names with what is in them, and the global names that the function writes or reads."""
    cells = [(cell, cell.cell_contents) for cell in function.__closure__ or () if _is_filled(cell)]
    names = inspect.getclosurevars(function).globals
    return cells, {name: function.__globals__[name] for name in names if name in function.__globals__}


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _rebind(function: FunctionType, cells: list[tuple[CellType, Any]], names: dict[str, Any]) -> None:
    for cell, value in cells:
        if not _is_filled(cell) or cell.cell_contents is not value:
            cell.cell_contents = value
    for name, value in names.items():
        if function.__globals__.get(name, cells) is not value:
            function.__globals__[name] = value
