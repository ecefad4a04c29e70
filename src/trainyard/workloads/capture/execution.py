"""Runs a dispatched op on shapes alone, and caches the result for the next layer of the same shape.

Parameters and inputs live on the meta device. Small integer tensors of the host keep their values, so that a program may branch on
them; a host tensor in one op with a meta tensor is replaced by its shape.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from trainyard.workloads.capture.handlers import Rule
from trainyard.workloads.capture.shape_rules import SHAPE_RULES

META = torch.device("meta")
SMALL = 1 << 20  # elements of a host constant that keeps its values: 8 MiB of indices


class _NotCacheable(Exception):
    """Arguments that cannot be compared, or results that share memory with them."""


def shape_of(tensor: Tensor) -> Tensor:
    """The same tensor without its values."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)


class Executor:
    """Runs ops with values (`real=True`), or on shapes with a cache of earlier results."""

    def __init__(self, *, real: bool) -> None:
        self.real = real
        self._results_by_call: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._without_values: set[int] = set()

    def has_values(self, tensor: Tensor) -> bool:
        return self.real or not (tensor.is_meta or tensor.untyped_storage()._cdata in self._without_values)

    def run(self, rule: Rule, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> Any:
        if self.real:
            return func(*args, **kwargs)
        if not tensors:
            return func(*args, **_on_meta(rule, args, kwargs))
        on_meta = on_host = False
        for tensor in tensors:
            if tensor.is_meta:
                on_meta = True
            elif tensor.dim() or tensor.is_sparse:
                on_host = True
        if on_meta and rule.name in SHAPE_RULES:
            return SHAPE_RULES[rule.name](args, kwargs)
        if on_host and (on_meta or (self._without_values and not all(map(self.has_values, tensors)))):
            return self._mixed(rule, func, args, kwargs, tensors)
        if not on_meta or rule.collective:
            return func(*args, **kwargs)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": META}  # nothing leaves for the host: there are no values to take along
        return self._cached(func, args, kwargs, tensors)

    def _mixed(self, rule: Rule, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> Any:
        """Host tensors become shapes; one that is written loses its values for good."""
        stand_ins: dict[int, Tensor] = {}
        originals: dict[int, Tensor] = {}

        def convert(value: Any) -> Any:
            if isinstance(value, Tensor):
                if value.is_meta or not value.dim():
                    return value
                stand_in = stand_ins.setdefault(id(value), shape_of(value))
                originals[id(stand_in)] = value
                return stand_in
            if isinstance(value, list | tuple):
                return type(value)(convert(v) for v in value)
            return META if isinstance(value, torch.device) else value

        result = func(*(convert(a) for a in args), **{k: convert(v) for k, v in kwargs.items()})
        for key in rule.written:
            target = kwargs.get(key) if isinstance(key, str) else args[key] if key < len(args) else None
            for tensor in tensors_in(target):
                self._without_values.add(tensor.untyped_storage()._cdata)
        if isinstance(result, Tensor):
            return originals.get(id(result), result)
        return result

    def _cached(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> Any:
        try:
            key = (func, *[_form(a) for a in args], *[(k, _form(v)) for k, v in kwargs.items()])
            answer = self._results_by_call.get(key)
        except (_NotCacheable, TypeError):
            return func(*args, **kwargs)
        if answer is not None:
            return _rebuild(answer, tensors)
        result = func(*args, **kwargs)
        with suppress(_NotCacheable):
            self._results_by_call[key] = _describe(result, tensors)
        return result


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of an argument or a result: one, a list, or a list of lists."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [t for item in value for t in tensors_in(item)]
    return []


def _on_meta(rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments of a factory (`zeros`, `arange`): floats are made on meta; small integer tensors keep their values."""
    size = args[0] if rule.factory and args and isinstance(args[0], list | tuple) else ()
    if not size or torch.device(kwargs.get("device") or "cpu").type == "meta":
        return kwargs
    dtype = kwargs.get("dtype")
    if dtype is None:
        dtype = torch.int64 if rule.name == "full" and isinstance(args[1], int) else torch.get_default_dtype()
    if not (dtype.is_floating_point or dtype.is_complex) and math.prod(size) <= SMALL:
        return kwargs
    pinned = {"pin_memory": False} if "pin_memory" in kwargs else {}
    return {**kwargs, "device": META, **pinned}


def _form(value: Any) -> Any:
    if isinstance(value, Tensor):
        return (value.shape, value.stride(), value.dtype, value.is_meta)
    if isinstance(value, list | tuple):
        return tuple([_form(v) for v in value])
    if isinstance(value, torch.Generator):
        raise _NotCacheable
    return (type(value), value)


def _describe(result: Any, tensors: list[Tensor]) -> tuple[Any, ...]:
    """A recipe to build this result once more: new tensors by shape, stride and type, returned arguments by their position."""
    if isinstance(result, Tensor):
        for position, tensor in enumerate(tensors):
            if tensor is result:
                return ("argument", position)
        if (
            result.is_sparse
            or not result.is_meta
            or result.untyped_storage()._cdata in {t.untyped_storage()._cdata for t in tensors}
        ):
            raise _NotCacheable
        return ("new", result.shape, result.stride(), result.dtype)
    if isinstance(result, list | tuple):
        return (type(result), [_describe(item, tensors) for item in result])
    if result is None:
        return ("none",)
    raise _NotCacheable


def _rebuild(answer: tuple[Any, ...], tensors: list[Tensor]) -> Any:
    tag = answer[0]
    if tag == "new":
        return torch.empty_strided(answer[1], answer[2], dtype=answer[3], device=META)
    if tag == "argument":
        return tensors[answer[1]]
    if tag == "none":
        return None
    return tag([_rebuild(item, tensors) for item in answer[1]])
