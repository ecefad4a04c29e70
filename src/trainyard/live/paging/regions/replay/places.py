"""Places in memory where graphs read and write, and the tensors that are handed out for them.

Memory of graphs belongs to their pool. Between two replays it holds nothing, and a graph that is replayed later may use it for
something else. So a place does not own memory. Each time a tensor is handed out for it, the storage behind that tensor is new, and
whether somebody still holds it is known from its references.
"""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


class Place:
    """Address and geometry of a tensor.

    >>> owner = torch.zeros(2, 3)
    >>> place = Place(owner)
    >>> alias = place.alias().fill_(1.0)
    >>> float(owner.sum()), place.is_at(alias), place.is_held
    (6.0, True, True)
    >>> del alias
    >>> place.is_held
    False
    """

    __slots__ = ("_handed_out", "address", "device", "dtype", "event_of_death", "shape", "size_bytes", "stride")

    def __init__(self, tensor: Tensor) -> None:
        self.address, self.device, self.dtype = tensor.data_ptr(), tensor.device, tensor.dtype
        self.shape, self.stride = tensor.shape, tensor.stride()
        self.size_bytes = span(tensor) * tensor.element_size()
        self.event_of_death: float = inf
        """When a pass was recorded: the event before which the last tensor in this place was gone. Later ones may write here."""
        self._handed_out: StorageWeakRef | None = None

    def first_alias(self, tensor: Tensor) -> Tensor:
        """What is handed out for the result that the place was made for: its memory is free when nobody holds it any more."""
        self._handed_out = StorageWeakRef(tensor.untyped_storage())
        return tensor.detach()

    def alias(self) -> Tensor:
        """A tensor that lies here, and is watched. It does not keep the memory from being given back."""
        storage = torch._C._construct_storage_from_data_pointer(self.address, self.device, self.size_bytes)
        tensor: Tensor = torch.empty(0, dtype=self.dtype, device=self.device)
        tensor.set_(storage, 0, self.shape, self.stride)
        self._handed_out = StorageWeakRef(storage)
        return tensor

    @property
    def is_held(self) -> bool:
        """Whether a tensor that was handed out, or a view of it, still exists."""
        return self._handed_out is not None and not self._handed_out.expired()

    def is_under(self, tensor: Tensor) -> bool:
        """Whether a tensor is the one that was handed out last, or a view of it."""
        return self.is_held and self._handed_out == StorageWeakRef(tensor.untyped_storage())

    def is_like(self, tensor: Tensor) -> bool:
        """Whether a tensor can be copied here as it is. One of another layout would be computed with in another order."""
        same = tensor.shape == self.shape and tensor.stride() == self.stride
        return same and tensor.dtype is self.dtype and tensor.device == self.device

    def is_at(self, tensor: Tensor) -> bool:
        return tensor.data_ptr() == self.address and tensor.stride() == self.stride and tensor.shape == self.shape


def span(tensor: Tensor) -> int:
    """Elements from the first to the last one in memory.

    >>> span(torch.zeros(4, 1).expand(4, 100)), span(torch.zeros(10, 10)[:2, :3])
    (4, 13)
    """
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def empty_twin(tensor: Tensor) -> Tensor:
    """New memory of the same geometry."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def copy_content(target: Tensor, source: Tensor) -> None:
    """Copies between tensors of the same geometry, also where their elements overlap, as those of an expanded tensor."""
    if _is_dense(source):
        target.copy_(source)
    else:
        size = span(source)
        target.as_strided((size,), (1,)).copy_(source.as_strided((size,), (1,)))


def _is_dense(tensor: Tensor) -> bool:
    """Whether each element has memory of its own, without gaps."""
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True
