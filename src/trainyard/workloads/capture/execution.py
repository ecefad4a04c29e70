"""Runs ops on shapes, or for real; what is known of values is computed beside the shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from trainyard.workloads.capture.attention.values import on_cpu
from trainyard.workloads.capture.ops.handlers import Rule
from trainyard.workloads.capture.ops.shape_rules import CONVOLUTIONS, SHAPE_RULES, in_memory_format
from trainyard.workloads.capture.values import HOST, META, MOST_INTEGERS, Evaluator, Values

MOST_TRIAL = 1 << 26  # elements of the operands of an op that runs once on the host to learn the shape of its result


class _NotCacheable(Exception):
    """Arguments that cannot be compared, or results that share memory with them."""


def shape_of(tensor: Tensor) -> Tensor:
    """The same tensor without its values."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)


class Executor:
    """Runs ops with values (`real=True`), or on shapes with a cache of earlier results."""

    def __init__(self, *, real: bool) -> None:
        self.real = real
        self.evaluator = Evaluator(Values())
        self.selection: Callable[[Tensor], list[Tensor] | None] = lambda mask: None
        self.on_trial: Callable[[str], None] = lambda name: None
        self._results_by_call: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def has_values(self, tensor: Tensor) -> bool:
        return self.real or self.evaluator.values.known(tensor)

    def value(self, tensor: Tensor) -> Tensor | None:
        """The value of a tensor as a host tensor, where it is known."""
        return self.evaluator.values.get(tensor)

    def run(self, rule: Rule, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> Any:
        if self.real:
            return on_cpu(rule.name, func, args, kwargs)
        if rule.selects and any(t.dtype in (torch.bool, torch.uint8) for t in tensors_in(args[1])):
            args = (args[0], self._as_integers(args[1]), *args[2:])
            tensors = [t for a in args for t in tensors_in(a)]
        try:
            result = self._shapes(rule, func, args, kwargs, tensors)
        except (NotImplementedError, RuntimeError) as error:
            result = self._trial(rule, func, args, kwargs, tensors, error)
        if not rule.collective:
            results = tensors_in(result)
            if any(t.is_meta for t in (*results, *tensors)):  # an op of the host has run with its values already
                self.evaluator.after(rule, func, args, kwargs, tensors, results)
        return result

    def _shapes(self, rule: Rule, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> Any:
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
        if on_host and (on_meta or not all(map(self.has_values, tensors))):
            return self._mixed(rule, func, args, kwargs, tensors)
        if not on_meta or rule.collective:
            return func(*args, **kwargs)
        if kwargs.get("generator") is not None:
            kwargs = {**kwargs, "generator": None}  # random numbers of shapes need none
        if "device" in kwargs:
            if rule.name == "_to_copy" and _is_host(kwargs["device"]):
                value = self.evaluator.values.get(tensors[0])
                if value is not None:
                    return func(value, *args[1:], **kwargs)
            kwargs = {**kwargs, "device": META}  # a tensor without values stays where it is
        return self._cached(rule, func, args, kwargs, tensors)

    def _as_integers(self, indices: Any) -> list[Any]:
        """Indices with each mask of truth values replaced by the positions that it selects."""
        converted: list[Any] = []
        for index in indices:
            if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8):
                converted += self.selection(index) or [index]
            else:
                converted.append(index)
        return converted

    def _trial(
        self, rule: Rule, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor], error: Exception
    ) -> Any:
        """The shapes of an op that has no rule for shapes: it runs once on the host, on zeros where values are not known."""
        if rule.collective or not any(t.is_meta for t in tensors) or sum(t.numel() for t in tensors) > MOST_TRIAL:
            raise error

        def filled(value: Any) -> Any:
            if isinstance(value, Tensor):  # a trial writes into copies
                known = self.evaluator.values.get(value)
                return torch.zeros(value.shape, dtype=value.dtype) if known is None else known.clone()
            if isinstance(value, list | tuple):
                return type(value)(filled(item) for item in value)
            return HOST if isinstance(value, torch.device) else value

        try:
            outcome = func(*(filled(a) for a in args), **{key: filled(value) for key, value in kwargs.items()})
        except Exception:
            raise error from None
        if rule.written:
            return args[rule.written[0]] if isinstance(rule.written[0], int) else kwargs[rule.written[0]]
        self.on_trial(rule.overload)
        return _as_shapes(outcome)

    def _mixed(self, rule: Rule, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> Any:
        """Host tensors become shapes."""
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
        if isinstance(result, Tensor):
            return originals.get(id(result), result)
        return result

    def _cached(self, rule: Rule, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> Any:
        try:
            key = (func, *[_form(a) for a in args], *[(k, _form(v)) for k, v in kwargs.items()])
            answer = self._results_by_call.get(key)
        except (_NotCacheable, TypeError):
            return func(*args, **kwargs)
        if answer is not None:
            return _rebuild(answer, tensors)
        result = func(*args, **kwargs)
        if rule.name in CONVOLUTIONS:
            result = in_memory_format(rule.name, args, result)
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


def dense_parts(tensors: Sequence[Any], rows_of: Sequence[Tensor] = ()) -> list[Any]:
    """Sparse tensors as what they have in memory: the values in place of the tensor, the indices after all others.

    Dense tensors of the shape of a sparse one in `rows_of` are as many rows as that has.
    """
    rows = {t.shape: t._nnz() for t in rows_of if t.layout is torch.sparse_coo and t.sparse_dim() == 1 and t._nnz() <= t.shape[0]}
    parts: list[Any] = []
    indices: list[Any] = []
    for tensor in tensors:
        layout = getattr(tensor, "layout", torch.strided)
        if layout is torch.sparse_coo:
            parts.append(tensor._values())
            indices.append(tensor._indices())
        elif layout is not torch.strided:
            parts.append(tensor.values())
            by_row = layout in (torch.sparse_csr, torch.sparse_bsr)
            pointers = (tensor.crow_indices(), tensor.col_indices()) if by_row else (tensor.ccol_indices(), tensor.row_indices())
            indices.extend(pointers)
        else:
            parts.append(tensor.narrow(0, 0, rows[tensor.shape]) if rows and tensor.shape in rows else tensor)
    return [*parts, *indices]


def _is_host(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cpu"


def _as_shapes(outcome: Any) -> Any:
    if isinstance(outcome, Tensor):
        return shape_of(outcome)
    if isinstance(outcome, list | tuple):
        return type(outcome)(_as_shapes(item) for item in outcome)
    return outcome


def _on_meta(rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments of a factory (`zeros`, `arange`): floats are made on meta; small integer tensors of the host stay there."""
    if torch.device(kwargs.get("device") or "cpu").type == "meta":
        return {key: None if key == "generator" else value for key, value in kwargs.items()}
    size = args[0] if rule.factory and args and isinstance(args[0], list | tuple) else ()
    if not size:
        return kwargs
    dtype = kwargs.get("dtype")
    if dtype is None:
        dtype = torch.int64 if rule.name == "full" and isinstance(args[1], int) else torch.get_default_dtype()
    if not (dtype.is_floating_point or dtype.is_complex) and math.prod(size) <= MOST_INTEGERS:
        return kwargs
    changed = {"pin_memory": False} if "pin_memory" in kwargs else {}
    return {**{key: None if key == "generator" else value for key, value in kwargs.items()}, "device": META, **changed}


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
