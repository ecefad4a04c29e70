"""Answers for a program that reads values while it runs on shapes.

What is known is answered as it is. What is not known is answered where any answer of a healthy step gives the same step (a check
for infinities, an assertion), stated by the user (`values=`), or assumed and noted (how many boxes a detector keeps). The rest is
an error that names the line that asks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from trainyard.errors import CaptureError
from trainyard.workloads.capture.execution import Executor, tensors_in
from trainyard.workloads.capture.locations import Location, current_location, guard_answer
from trainyard.workloads.capture.ops.handlers import Rule
from trainyard.workloads.capture.values import META, is_small


class NeedsValues(CaptureError):
    """The program looked at a value that shapes alone do not have."""


class NeedsExample(CaptureError):
    """A size depends on values that the network computes; the message says where."""


class Questions:
    """Answers the questions of one pass; `stated` are the user's answers, by layer or by line (`model.py:120`).

    With `sizes="all"`, a selection by values that are not known takes all there is.
    """

    def __init__(self, executor: Executor, stated: Mapping[str, Any], layer: Callable[[], str], sizes: str = "") -> None:
        self._executor, self._stated, self._layer, self._sizes = executor, stated, layer, sizes
        self.notes: dict[str, None] = {}
        self.used: set[str] = set()

    def where(self) -> str:
        layer = self._layer()
        return f"layer '{layer}'" if layer else "the training step"

    def scalar(self, tensor: Tensor, rule_name: str) -> Any:
        """The answer to `.item()`, `bool()`, `int()` and `float()`."""
        value = self._executor.value(tensor)
        if value is not None:
            self._note_assumption([tensor])
            return value.item()
        stated, known = self._stated_answer()
        if known:
            return torch.as_tensor(stated).reshape(-1)[0].to(tensor.dtype).item()
        if tensor.dtype is torch.bool:
            answer = self._guard()
            if answer is not None:
                return answer
        raise self.needs(f"a value of a {_described(tensor)} tensor ({rule_name}: .item(), bool(), int() or float())")

    def is_equal(self, first: Tensor, second: Tensor) -> bool:
        values = self._executor.value(first), self._executor.value(second)
        if first is second or first.shape != second.shape:
            return first is second
        if values[0] is not None and values[1] is not None:
            return torch.equal(values[0], values[1])
        stated, known = self._stated_answer()
        answer = bool(stated) if known else self._guard()
        if answer is None:
            raise self.needs(f"whether two {_described(first)} tensors are equal")
        return answer

    def sized(self, rule: Rule, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> Any:
        """The result of an op whose size depends on data (`nonzero`, `unique`, `masked_select`, non-maximum suppression)."""
        evaluator = self._executor.evaluator
        if all(self._executor.has_values(t) for t in tensors):
            self._note_assumption(tensors)
            outcome = func(*(evaluator.on_host(a) for a in args), **{k: evaluator.on_host(v) for k, v in kwargs.items()})
            return self._adopted(outcome, evaluator.assumption(tensors)) if any(t.is_meta for t in tensors) else outcome
        stated, known = self._stated_answer()
        if known and tensors:
            unknown = next(t for t in tensors if not self._executor.has_values(t))
            value = torch.as_tensor(stated).to(unknown.dtype).expand(unknown.shape)
            filled = [value if t is unknown else evaluator.on_host(t) for t in tensors]
            if all(f is not None for f in filled):
                exchange = {id(t): f for t, f in zip(tensors, filled, strict=True)}
                return self._adopted(func(*(_exchanged(a, exchange) for a in args), **kwargs), "")
        shapes = ", ".join(_described(t) for t in tensors)
        outcome = _everything(rule, args, kwargs)
        if outcome is None:
            raise self.needs(f"the size of {rule.overload} on {shapes}, which depends on data")
        return self._adopted(outcome, self._taken(f"selects by values that shapes do not have ({rule.overload})"))

    def selection(self, mask: Tensor) -> list[Tensor] | None:
        """The indices that a mask of truth values selects."""
        value = self._executor.value(mask)
        if value is not None:
            self._note_assumption([mask])
            return list(value.nonzero(as_tuple=True))
        stated, known = self._stated_answer()
        if known:
            return list(torch.as_tensor(stated).to(torch.bool).expand(mask.shape).nonzero(as_tuple=True))
        self._taken(f"indexes with a {tuple(mask.shape)} mask that shapes do not have")
        if not is_small(mask):
            return [torch.empty(mask.numel(), dtype=torch.int64, device=META) for _ in mask.shape]
        return list(torch.ones(mask.shape, dtype=torch.bool).nonzero(as_tuple=True))

    def _taken(self, text: str) -> str:
        where = f"{self.where()}{self._line()} {text}"
        if self._sizes != "all":
            raise NeedsExample(where)
        self.notes[f"{where}: all are taken"] = None
        return f"{where}: all are taken"

    def array(self, tensor: Tensor) -> Tensor:
        """The values that a program takes out of torch (`numpy()`, `tolist()`); floats that are not known are taken as zeros."""
        value = self._executor.value(tensor)
        if value is not None:
            self._note_assumption([tensor])
            return value.clone(memory_format=torch.contiguous_format)  # the program may write into what it gets
        stated, known = self._stated_answer()
        if known:
            return torch.as_tensor(stated).to(tensor.dtype).expand(tensor.shape).contiguous()
        if not tensor.is_floating_point():
            raise self.needs(f"the values of a {_described(tensor)} tensor (numpy() or tolist())")
        self.notes[f"{self.where()}{self._line()} takes a {_described(tensor)} tensor out of torch: zeros stand for its values"] = (
            None
        )
        return torch.zeros(tensor.shape, dtype=tensor.dtype)

    def comparison(self) -> bool:
        """A comparison with a number that was read from a tensor without values."""
        stated, known = self._stated_answer()
        answer = bool(stated) if known else self._guard()
        if answer is None:
            raise self.needs("a value that it read with .item() and decides by it")
        return answer

    def needs(self, what: str) -> NeedsValues:
        location = current_location()
        keys = [f"'{location.key}'"] if location is not None else []
        keys += [f"'{layer}'"] if (layer := self._layer()) and not keys else []
        stated = f", or capture(..., values={{{keys[0]}: ...}}) states the answer" if keys else ""
        return NeedsValues(
            f"{self.where()} reads {what}{_at(location)}, which shapes alone cannot answer: capture(..., real=True) runs the step "
            f"on the example inputs instead{stated}"
        )

    def _guard(self) -> bool | None:
        answer = guard_answer()
        if answer is not None:
            self.notes[f"{self.where()}{self._line()} checks values that shapes do not have: the check is taken as passed"] = None
        return answer

    def _stated_answer(self) -> tuple[Any, bool]:
        if not self._stated:
            return None, False
        location = current_location()
        for key in (location.key if location is not None else None, self._layer()):
            if key is not None and key in self._stated:
                self.used.add(key)
                return self._stated[key], True
        return None, False

    def _line(self) -> str:
        return _at(current_location())

    def _note_assumption(self, tensors: list[Tensor]) -> None:
        assumption = self._executor.evaluator.assumption(tensors)
        if assumption:
            self.notes[assumption] = None

    def _adopted(self, outcome: Any, assumption: str) -> Any:
        """Host results as meta tensors with values."""
        if isinstance(outcome, Tensor):
            if outcome.is_meta:
                return outcome
            result = torch.empty(outcome.shape, dtype=outcome.dtype, device=META)
            self._executor.evaluator.values.put(result, outcome, assumption)
            return result
        if isinstance(outcome, list | tuple):
            return type(outcome)(self._adopted(item, assumption) for item in outcome)
        return outcome


def _at(location: Location | None) -> str:
    return f" ({location})" if location is not None else ""


def _described(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _exchanged(value: Any, exchange: Mapping[int, Any]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_exchanged(item, exchange) for item in value)
    return exchange.get(id(value), value)


def _everything(rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result if every element is selected and all are different: the largest one there can be."""
    first: Tensor = tensors_in(args)[0]
    count = first.numel()
    if rule.name == "nonzero":
        if is_small(first):
            return torch.ones(first.shape, dtype=torch.bool).nonzero()
        return torch.empty((count, first.dim()), dtype=torch.int64, device=META)
    if rule.name == "masked_select":
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        return torch.empty(math.prod(shape), dtype=first.dtype, device=META)
    if rule.name in ("_unique2", "unique_consecutive", "_unique"):
        flat = torch.empty(count, dtype=first.dtype, device=META)
        return flat, torch.arange(count).reshape(first.shape), torch.ones(count, dtype=torch.int64)
    if rule.name in ("unique_dim", "unique_dim_consecutive"):
        extent = first.shape[args[1]]
        return torch.empty_like(first, device=META), torch.arange(extent), torch.ones(extent, dtype=torch.int64)
    if rule.name == "torchvision.nms":
        return torch.arange(first.shape[0])
    if rule.name == "bincount":
        length = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
        return torch.empty(length, dtype=torch.int64, device=META) if length else None
    if rule.name == "repeat_interleave":
        size = kwargs.get("output_size")
        return torch.empty(count if size is None else size, dtype=first.dtype, device=META)
    return None
