"""Values of tensors on the meta device: constants, small inputs and buffers, and what follows from them alone.

A model that is captured on shapes still asks for numbers: how long a sequence is, whether a mask is all ones, which expert a token
goes to. Tensors that depend on no weight have a value beside their shape, kept by storage, so that views and in-place writes see
each other. A value may rest on an assumption (a balanced routing, a random number that was drawn once): whoever reads it is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from trainyard.workloads.capture.ops import tables
from trainyard.workloads.capture.ops.handlers import Rule

META, HOST = torch.device("meta"), torch.device("cpu")
undispatched = torch._C._DisableTorchDispatch
"""A context in which torch runs ops without asking the recorder."""

MOST_INTEGERS = 1 << 20  # elements of an integer or bool result that is computed: 8 MiB of indices
MOST_FLOATS = 1 << 16
MOST_RANDOM = 1 << 12

# fmt: off
QUANTIFIERS = frozenset(("any", "all", "_is_all_true", "_is_any_true", "amax", "amin"))
NOT_FINITE = {"isnan": False, "isinf": False, "isposinf": False, "isneginf": False, "isfinite": True}
FILLS: dict[str, float | None] = {
    "zeros": 0, "zero_": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1,
    "full": None, "fill_": None, "full_like": None, "new_full": None,
}
# fmt: on


@dataclass(slots=True)
class Value:
    """The contents of one storage: bytes in `storage`, or the same number everywhere. `shared` bytes are the user's own."""

    reference: StorageWeakRef
    storage: torch.UntypedStorage | None = None
    uniform: Any = None
    assumption: str = ""
    shared: bool = False


class Values:
    """The known values of one pass, by storage of the meta tensor."""

    def __init__(self) -> None:
        self._by_storage: dict[int, Value] = {}
        self._lost: dict[int, StorageWeakRef] = {}
        self._purge_at = 4096

    def clear(self) -> None:
        self._by_storage.clear()

    def known(self, tensor: Tensor) -> bool:
        storage = tensor.untyped_storage()._cdata
        return storage in self._by_storage if tensor.is_meta else storage not in self._lost

    def entry(self, tensor: Tensor) -> Value | None:
        return self._by_storage.get(tensor.untyped_storage()._cdata) if self._by_storage else None

    def get(self, tensor: Tensor) -> Tensor | None:
        """The value of a tensor as a host tensor that shares memory with the value of its storage; None if it is not known."""
        if not tensor.is_meta:
            return tensor if self.known(tensor) else None
        entry = self.entry(tensor)
        if entry is None:
            return None
        with undispatched():
            if entry.storage is None:
                return torch.full((), entry.uniform, dtype=tensor.dtype).expand(tensor.shape)
            return _view(entry.storage, tensor)

    def put(self, tensor: Tensor, value: Tensor, assumption: str = "", *, shared: bool = False) -> None:
        """Notes the value of a meta tensor that is alone in its storage. A `shared` value is copied before it is written."""
        storage = tensor.untyped_storage()
        if shared and value.stride() == tensor.stride() and not value.storage_offset():
            self._store(storage, Value(StorageWeakRef(storage), value.untyped_storage(), assumption=assumption, shared=True))
            return
        memory = torch.UntypedStorage(storage.nbytes())
        with undispatched(), torch.no_grad():
            _view(memory, tensor).copy_(value)
        self._store(storage, Value(StorageWeakRef(storage), memory, assumption=assumption))

    def put_uniform(self, tensor: Tensor, number: Any, assumption: str = "") -> None:
        storage = tensor.untyped_storage()
        self._store(storage, Value(StorageWeakRef(storage), uniform=number, assumption=assumption))

    def _store(self, storage: torch.UntypedStorage, value: Value) -> None:
        if len(self._by_storage) >= self._purge_at:
            self._by_storage = {key: entry for key, entry in self._by_storage.items() if not entry.reference.expired()}
            self._purge_at = max(4096, 2 * len(self._by_storage))
        self._by_storage[storage._cdata] = value

    def forget(self, tensor: Tensor) -> None:
        """A tensor that was written with what is not known; one of the host loses its values for good."""
        storage = tensor.untyped_storage()
        if tensor.is_meta:
            self._by_storage.pop(storage._cdata, None)
        else:
            self._lost[storage._cdata] = StorageWeakRef(storage)

    def own(self, tensor: Tensor) -> None:
        """Makes the value of a tensor one that may be written."""
        entry = self.entry(tensor)
        if entry is None:
            return
        if entry.storage is None:
            elements = tensor.untyped_storage().nbytes() // tensor.itemsize
            if elements > MOST_INTEGERS:  # of the whole storage, of which the tensor may be a small view
                self.forget(tensor)
                return
            entry.storage = torch.UntypedStorage(tensor.untyped_storage().nbytes())
            torch.empty(0, dtype=tensor.dtype).set_(entry.storage, 0, (elements,), (1,)).fill_(entry.uniform)
        elif entry.shared:
            entry.storage, entry.shared = entry.storage.clone(), False


def _view(storage: torch.UntypedStorage, like: Tensor) -> Tensor:
    view = torch.empty(0, dtype=like.dtype)
    return view.set_(storage, like.storage_offset(), like.shape, like.stride())


def is_small(tensor: Tensor) -> bool:
    most = MOST_FLOATS if tensor.is_floating_point() or tensor.is_complex() else MOST_INTEGERS
    return tensor.numel() <= most


def covers_storage(tensor: Tensor) -> bool:
    return tensor.numel() * tensor.itemsize == tensor.untyped_storage().nbytes()


class Evaluator:
    """Computes the values of an op's results beside their shapes."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.where: Callable[[], str] = lambda: "the model"

    def assumption(self, tensors: list[Tensor]) -> str:
        """What the values of these tensors rest on, if on anything but the program."""
        for tensor in tensors:
            entry = self.values.entry(tensor) if tensor.is_meta else None
            if entry is not None and entry.assumption:
                return entry.assumption
        return ""

    def on_host(self, value: Any) -> Any:
        """An argument with values in place of shapes and the host in place of the meta device."""
        if isinstance(value, Tensor):
            return self.values.get(value)
        if isinstance(value, list | tuple):
            return type(value)(self.on_host(item) for item in value)
        return HOST if isinstance(value, torch.device) else value

    def after(
        self, rule: Rule, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor], results: list[Tensor]
    ) -> None:
        """Notes the values of the meta tensors that an op has made or written, and forgets those that are not known any more."""
        known = [self.values.known(t) for t in tensors]
        if tensors and not rule.has_own_values and not any(known):
            return
        written = _written(rule, args, kwargs) if rule.written else []
        fresh = [t for t in results if t.is_meta and not any(t is s for s in tensors)]
        if not fresh and not written:
            return
        sources = [t for t in tensors if not any(t is w for w in written)] if rule.overwrites else tensors
        with suppress(Exception):  # an op that the host cannot run has no value
            if (all(known) or all(map(self.values.known, sources))) and self._evaluated(
                rule, func, args, kwargs, tensors, written, results, fresh
            ):
                return
        if self._healthy(rule, args, fresh):
            return
        with suppress(Exception):
            if self._assumed(rule, args, kwargs, tensors, fresh):
                return
        if rule.name not in tables.KEEPS_VALUES:
            for tensor in written:
                self.values.forget(tensor)

    def _evaluated(
        self, rule: Rule, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor], written: list[Tensor],
        results: list[Tensor], fresh: list[Tensor],
    ) -> bool:  # fmt: skip
        """The op once more, on values."""
        if rule.allocates:
            return False
        random = rule.name in tables.RANDOM
        if random and any(t.numel() > MOST_RANDOM for t in (*written, *fresh)):
            return False
        if self._filled(rule, args, kwargs, written, fresh):
            return True
        if not all(map(is_small, (*tensors, *fresh))):
            return False
        for tensor in written:
            if tensor.is_meta:
                if self.values.entry(tensor) is None:
                    if not (rule.overwrites and covers_storage(tensor)):
                        return False
                    self.values.put_uniform(tensor, 0)
                self.values.own(tensor)
        assumption = self.assumption(tensors)
        if random and not assumption:
            assumption = f"{rule.name.strip('_')} of {self.where()} gives the value that was drawn for this capture"
        keywords = {key: self.on_host(value) for key, value in kwargs.items()}
        if "device" in keywords:
            keywords["device"] = HOST
        outcome = func(*(self.on_host(a) for a in args), **keywords)
        for tensor, value in zip(results, _flat(outcome), strict=True):
            if any(tensor is made for made in fresh):
                self.values.put(tensor, value, assumption)
        for tensor in written:
            entry = self.values.entry(tensor) if tensor.is_meta else None
            if entry is not None and assumption:
                entry.assumption = assumption
        return True

    def _filled(
        self, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any], written: list[Tensor], fresh: list[Tensor]
    ) -> bool:
        """Whole tensors of one number, however large, and what point-wise ops make of them."""
        target = fresh[0] if len(fresh) == 1 and not written else written[0] if len(written) == 1 and not fresh else None
        if target is None or not target.is_meta or not covers_storage(target):
            return False
        if rule.name in FILLS:
            number = FILLS[rule.name]
            if number is None:
                number = args[2] if rule.name == "new_full" else args[1]
            if isinstance(number, Tensor):
                return False
            self.values.put_uniform(target, number)
            return True
        if written or is_small(target):
            return False
        uniform = [self._uniform(t) for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
        if not uniform or any(value is None for value in uniform):
            return False
        if rule.pointwise:
            numbers = [self._uniform(a) if isinstance(a, Tensor) else a for a in args]
            outcome = rule.func(*numbers, **kwargs)
            self.values.put_uniform(target, outcome.item(), self.assumption(_flat(args)))
            return True
        return False

    def _uniform(self, tensor: Tensor) -> Tensor | None:
        entry = self.values.entry(tensor) if tensor.is_meta else None
        if entry is not None and entry.storage is None:
            return torch.full((), entry.uniform, dtype=tensor.dtype)
        value = self.values.get(tensor)
        return value.reshape(()) if value is not None and value.numel() == 1 else None

    def _healthy(self, rule: Rule, args: tuple[Any, ...], fresh: list[Tensor]) -> bool:
        """Questions whose answer in a healthy step is known: no number is infinite or not a number."""
        answer: Any = NOT_FINITE.get(rule.name)
        text = f"{self.where()} checks for infinities and NaN: all numbers are taken as finite"
        assumption = self.assumption(_flat(args)) or text
        if rule.name in ("eq", "ne") and len(args) > 1:
            other = args[1]
            infinite = isinstance(other, float) and math.isinf(other)
            if infinite or (isinstance(other, Tensor) and other is args[0]):
                answer = (rule.name == "eq") != infinite
        elif rule.name in QUANTIFIERS and isinstance(args[0], Tensor) and args[0].is_meta:
            entry = self.values.entry(args[0])
            answer = entry.uniform if entry is not None and entry.storage is None else None
        elif rule.name in ("sum", "count_nonzero") and isinstance(args[0], Tensor) and args[0].is_meta:
            entry = self.values.entry(args[0])
            answer = 0 if entry is not None and entry.storage is None and not entry.uniform else None
        if answer is None or not fresh:
            return False
        self.values.put_uniform(fresh[0], answer, assumption)
        return True

    def _assumed(
        self, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor], fresh: list[Tensor]
    ) -> bool:
        """Which entries are the largest is not known: they are taken evenly, as a balanced router picks its experts."""
        if rule.name == "topk" and len(fresh) == 2:
            count, axis = args[1], args[2] if len(args) > 2 else kwargs.get("dim", -1)
        elif rule.name in ("argmax", "argmin") and len(fresh) == 1:
            count, axis = 1, args[1] if len(args) > 1 else kwargs.get("dim")
        elif rule.name in ("sort", "argsort") and fresh:
            axis = next((a for a in (*args[1:], kwargs.get("dim")) if isinstance(a, int) and not isinstance(a, bool)), -1)
            count = args[0].shape[axis] if args[0].dim() else 1
        elif rule.name in ("max", "min") and len(fresh) == 2:
            count, axis = 1, args[1]
        else:
            return False
        indices, source = fresh[-1], args[0]
        if axis is None or not source.dim() or not is_small(indices):
            return False
        size = max(1, source.shape[axis])
        others = source.movedim(axis, -1).shape[:-1]
        rows = torch.arange(math.prod(others)).reshape(*others, 1)
        picked = (rows * count + torch.arange(count)) % size if count < size else torch.arange(count).expand(*others, count)
        picked = picked.movedim(-1, axis)
        text = f"{rule.name} of {self.where()} picks its entries evenly, as a balanced router does"
        self.values.put(indices, picked.reshape(indices.shape), text)
        return True


def _written(rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    written: list[Tensor] = []
    for key in rule.written:
        target = kwargs.get(key) if isinstance(key, str) else args[key] if key < len(args) else None
        written += _flat(target)
    return written


def _flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [t for item in value for t in _flat(item)]
    return []
