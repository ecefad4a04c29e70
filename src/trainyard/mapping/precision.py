"""Element types of a machine: one for all floating-point tensors, or one for each role."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from trainyard.caches import per_step
from trainyard.errors import BadInput, UnknownName
from trainyard.ir import DTYPE_BYTES, Role, Step, TensorSpec

FLOATING = frozenset({"fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp8_e4m3", "fp8_e5m2"})
Value = TypeVar("Value")


class FrozenMapping(Mapping[str, Value]):
    """An immutable, hashable mapping; equal to any mapping with the same pairs."""

    __slots__ = ("_pairs",)

    _pairs: tuple[tuple[str, Value], ...]

    def __getitem__(self, key: str) -> Value:
        return dict(self._pairs)[key]

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __hash__(self) -> int:
        return hash(self._pairs)

    def __eq__(self, other: object) -> bool:
        return dict(self._pairs) == dict(other) if isinstance(other, Mapping) else NotImplemented

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self._pairs)})"


class Precision(FrozenMapping[str]):
    """Role -> element type, hashable; tensors of other roles keep the type of the step.

    >>> Precision({"parameter": "bf16"})["parameter"]
    'bf16'
    """

    __slots__ = ()

    def __init__(self, roles: Mapping[str, str]) -> None:
        for role, dtype in roles.items():
            if role not in tuple(Role):
                raise UnknownName("role", str(role), map(str, Role), where="precision")
            _require_dtype(dtype)
        self._pairs = tuple(sorted((str(role), dtype) for role, dtype in roles.items()))


class MacRates(FrozenMapping[int]):
    """Element type -> products per multiplier and cycle, 1 by default. Hashable.

    Narrow elements are packed along the reduction: a product takes the time of one with K / rate. Operands of two types have the
    lower of their rates.

    >>> rates = MacRates({"bf16": 2, "fp8": 4})
    >>> rates.of("fp8", "fp8"), rates.of("fp8_e4m3", "bf16"), rates.of("fp32", "fp8")
    (4, 2, 1)
    """

    __slots__ = ()

    def __init__(self, rates: Mapping[str, int]) -> None:
        for dtype, rate in rates.items():
            _require_dtype(dtype, "rates")
            if isinstance(rate, bool) or not isinstance(rate, int) or rate < 1:
                raise BadInput(f"rates: {dtype} must be a whole number of products a cycle, got {rate!r}")
        self._pairs = tuple(sorted(rates.items()))

    def of(self, *dtypes: str) -> int:
        return min(self.get(dtype, self.get("fp8", 1) if dtype.startswith("fp8") else 1) for dtype in dtypes)


UNIT_RATES = MacRates({})
"""One product per multiplier and cycle for every element type."""


def checked_rates(rates: object) -> MacRates:
    if isinstance(rates, MacRates):
        return rates
    if not isinstance(rates, Mapping):
        raise BadInput(f"rates: expected products a cycle by element type, such as {{'fp8': 2}}, got {rates!r}")
    return MacRates(rates)


def _require_dtype(dtype: object, where: str = "precision") -> None:
    if dtype not in DTYPE_BYTES:
        raise UnknownName("element type", str(dtype), DTYPE_BYTES, where=where)


def checked_precision(precision: str | Mapping[str, str] | None) -> str | Precision | None:
    if precision is None:
        return None
    if isinstance(precision, str):
        _require_dtype(precision)
        return precision
    if isinstance(precision, Mapping):
        return precision if isinstance(precision, Precision) else Precision(precision)
    raise BadInput(f"precision: expected an element type such as 'bf16', a table of them by role, or none, got {precision!r}")


@per_step
def with_precision(step: Step, precision: str | Precision | None) -> Step:
    """The step with the element types of a machine."""
    if precision is None:
        return step
    return replace(step, tensors=tuple(replace(spec, dtype=dtype_of(spec, precision)) for spec in step.tensors))


def dtype_of(spec: TensorSpec, precision: str | Precision | None) -> str:
    """The element type of a tensor on a machine; integer and boolean tensors keep theirs.

    >>> dtype_of(TensorSpec((4,), "fp32"), "bf16"), dtype_of(TensorSpec((4,), "int64"), "bf16")
    ('bf16', 'int64')
    """
    if precision is None or spec.dtype not in FLOATING:
        return spec.dtype
    return precision if isinstance(precision, str) else precision.get(str(spec.role), spec.dtype)
