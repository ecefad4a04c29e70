"""Tensor identity: which memory a tensor looks into, what that memory holds, and its number in the Step.

Identity is the storage, not the Python object: a transpose, a slice and an in-place result of a parameter are all that parameter.
Weak references keep the addresses of storages from being reused while the table lives, without keeping their data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from trainyard.errors import CaptureError
from trainyard.ir import Role
from trainyard.progress import report
from trainyard.workloads.capture.ops.registry import OnChip
from trainyard.workloads.capture.ops.shape_rules import is_channels_last

Kind = Literal["activation", "weight", "gradient", "buffer"]
REPORTED_EVERY = 64
"""Tensors between two reports of a capture's progress."""
NO_OWNER = -1

# fmt: off
DTYPES: dict[torch.dtype, str] = {
    torch.float64: "fp64",  torch.float32: "fp32",  torch.bfloat16: "bf16", torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "fp8", torch.float8_e4m3fnuz: "fp8", torch.float8_e5m2fnuz: "fp8",
    torch.int64: "int64",   torch.int32: "int32",   torch.int16: "int16",   torch.int8: "int8",
    torch.uint64: "int64",  torch.uint32: "int32",  torch.uint16: "int16",  torch.uint8: "uint8",
    # Scales that are powers of two, and types of fewer bits, one byte for each number or for a pack of them.
    **{getattr(torch, name): kind for name, kind in (
        ("float8_e8m0fnu", "fp8"), ("float4_e2m1fn_x2", "uint8"), *[(f"int{n}", "int8") for n in range(1, 8)],
        *[(f"uint{n}", "uint8") for n in range(1, 8)],
    ) if hasattr(torch, name)},
    torch.bool: "bool",     torch.complex32: "complex32", torch.complex64: "complex64", torch.complex128: "complex128",
}
# fmt: on


@dataclass(slots=True)
class RawTensor:
    """A TensorSpec in the making; the role of a view is its base's, known only at the end."""

    shape: tuple[int, ...]
    dtype: str
    role: Role
    name: str
    view_of: int | None
    channels_last: bool = False


@dataclass(slots=True)
class Origin:
    """What one storage holds. `owner` is the parameter (by index) it belongs to: the parameter, its gradient, its states."""

    base: int
    kind: Kind
    owner: int = NO_OWNER


def dtype_name(dtype: torch.dtype) -> str:
    try:
        return DTYPES[dtype]
    except KeyError:
        raise CaptureError(f"tensors of {dtype} cannot be captured (known: {', '.join(map(str, DTYPES))})") from None


class TensorTable:
    """Numbers tensors in the order in which ops name them."""

    def __init__(self, external: Role) -> None:
        self.tensors: list[RawTensor] = []
        self.origins: dict[int, Origin] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._on_chip: dict[OnChip, int] = {}
        self._storages: list[StorageWeakRef] = []
        self._external = external

    def origin(self, tensor: Tensor) -> Origin:
        """What the tensor's memory holds; memory that no op has written is entered as an input from outside."""
        storage = tensor.untyped_storage()
        origin = self.origins.get(storage._cdata)
        return origin if origin is not None else self.enter(tensor, self._external, "")

    def contains(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self.origins

    def enter(self, tensor: Tensor, role: Role, name: str, kind: Kind = "activation", owner: int = NO_OWNER) -> Origin:
        """Adds a tensor that exists before the first op, or that an op has just made."""
        storage = tensor.untyped_storage()
        number = self._append(tensor, role, name, None)
        origin = self.origins[storage._cdata] = Origin(number, kind, owner)
        self._storages.append(StorageWeakRef(storage))
        self._numbers[self._key(tensor, storage)] = number
        return origin

    def alias(self, tensor: Tensor, original: Tensor) -> None:
        """The same tensor on another device: where a model's inputs are does not matter to its step."""
        number = self.read(original)
        storage = tensor.untyped_storage()
        self.origins[storage._cdata] = self.origin(original)
        self._numbers[self._key(tensor, storage)] = number
        self._storages.append(StorageWeakRef(storage))

    def read(self, tensor: Tensor | OnChip) -> int:
        """The number of a tensor that an op reads; a new view gets a new number."""
        if isinstance(tensor, OnChip):
            return self._on_chip[tensor]
        storage = tensor.untyped_storage()
        key = self._key(tensor, storage)
        number = self._numbers.get(key)
        if number is None:
            origin = self.origin(tensor)
            number = self._numbers.get(key)
            if number is None:
                base = self.tensors[origin.base]
                number = self._numbers[key] = self._append(tensor, base.role, base.name, origin.base)
        return number

    def write(self, tensor: Tensor | OnChip, role: Role, kind: Kind, owner: int = NO_OWNER) -> int:
        """The number of a tensor that an op has written: new memory, or a new version of memory that is known."""
        if isinstance(tensor, OnChip):
            number = self._on_chip[tensor] = len(self.tensors)
            self.tensors.append(RawTensor(tensor.shape, dtype_name(tensor.dtype), role, "", None))
            return number
        storage = tensor.untyped_storage()
        origin = self.origins.get(storage._cdata)
        if origin is None:
            return self.enter(tensor, role, "", kind, owner).base
        base = self.tensors[origin.base]
        if origin.kind == "activation":
            origin.kind = kind
            if base.role is Role.ACTIVATION:
                base.role = role
        number = self._numbers[self._key(tensor, storage)] = self._append(tensor, base.role, base.name, origin.base)
        return number

    def renew(self, tensor: Tensor) -> None:
        """Forgets a tensor whose memory was freed and allocated again: the next write is a new tensor, not a new version."""
        storage = tensor.untyped_storage()._cdata
        self.origins.pop(storage, None)
        for key in [key for key in self._numbers if key[0] == storage]:
            del self._numbers[key]

    def allocate(self, tensor: Tensor) -> None:
        """Enters memory without contents (`empty`); its role follows from the first write."""
        if not self.contains(tensor):
            self.enter(tensor, Role.ACTIVATION, "")

    def with_view_roles(self) -> list[RawTensor]:
        """The tensors with the roles of views taken from their bases."""
        for tensor in self.tensors:
            if tensor.view_of is not None:
                base = self.tensors[tensor.view_of]
                tensor.role, tensor.name = base.role, base.name
        return self.tensors

    def _append(self, tensor: Tensor, role: Role, name: str, view_of: int | None) -> int:
        self.tensors.append(RawTensor(tuple(tensor.shape), dtype_name(tensor.dtype), role, name, view_of, is_channels_last(tensor)))
        if len(self.tensors) % REPORTED_EVERY == 0:
            report(len(self.tensors), "tensors captured")
        return len(self.tensors) - 1

    @staticmethod
    def _key(tensor: Tensor, storage: torch.UntypedStorage) -> tuple[Any, ...]:
        return (storage._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
