"""Places in memory where graphs read and write, and the tensors that are handed out for them.

Memory of graphs belongs to their pool. Between two replays it holds nothing, and a graph that is replayed later may use it for
something else. So a place does not own memory. Each time a tensor is handed out for it, the storage behind that tensor is new, and
whether somebody still holds it is known from its references. A loop that names what its model returns holds that until the next
pass has returned: such a tensor is given other memory before. Where that cannot be done, as for a view of it, a pass is not
replayed, and from then on a copy is handed out.
"""

from __future__ import annotations

from math import inf
from weakref import ReferenceType, ref

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

    __slots__ = (
        "_handed_out", "_holder", "_owns", "address", "device", "dtype", "event_of_death", "gives_copies", "shape", "size_bytes",
        "stride",
    )  # fmt: skip

    def __init__(self, tensor: Tensor, gives_copies: bool = False) -> None:
        self.address, self.device, self.dtype = tensor.data_ptr(), tensor.device, tensor.dtype
        self.shape, self.stride = tensor.shape, tensor.stride()
        self.size_bytes = span(tensor) * tensor.element_size()
        self.event_of_death: float = inf
        """When a pass was recorded: the event before which the last tensor in this place was gone. Later ones may write here."""
        self.gives_copies = gives_copies or tensor.numel() == 1
        """Whether a copy is handed out. Loops hold a loss in one form or another, `loss.detach()` for example."""
        self._handed_out: StorageWeakRef | None = None
        self._holder: ReferenceType[Tensor] | None = None
        self._owns = False
        """Whether what was handed out last keeps the memory from being given back."""

    def first_alias(self, tensor: Tensor) -> Tensor:
        """What is handed out for the result that the place was made for: its memory is free when nobody holds it any more."""
        self._handed_out, self._owns = StorageWeakRef(tensor.untyped_storage()), True
        return tensor.detach()

    def alias(self) -> Tensor:
        """A tensor that lies here, and is watched. It does not keep the memory from being given back."""
        storage = torch._C._construct_storage_from_data_pointer(self.address, self.device, self.size_bytes)
        tensor: Tensor = torch.empty(0, dtype=self.dtype, device=self.device)
        tensor.set_(storage, 0, self.shape, self.stride)
        self._handed_out, self._owns = StorageWeakRef(storage), False
        return tensor

    @property
    def is_held(self) -> bool:
        """Whether a tensor that was handed out, or a view of it, still exists."""
        return self._handed_out is not None and not self._handed_out.expired()

    @property
    def is_borrowed(self) -> bool:
        """Whether a tensor that still exists would lose its memory with the recordings."""
        return not self._owns and self.is_held

    def given_to_program(self, tensor: Tensor) -> None:
        """Notes that a program has this tensor, the one that was handed out last."""
        self._holder = ref(tensor)

    def vacate(self) -> None:
        """Gives the program's tensor other memory, if it alone holds the place; if not, copies are handed out from now on.

        >>> place = Place(owner := torch.zeros(2, 3))
        >>> place.given_to_program(result := place.alias())
        >>> place.vacate()
        >>> place.is_held, place.gives_copies, result.data_ptr() == owner.data_ptr()
        (False, False, False)
        >>> view = place.alias()[:, 1]  # nobody knows the tensors under which the program has it
        >>> place.vacate()
        >>> place.is_held, place.gives_copies
        (True, True)
        """
        if not self.is_held:
            return
        tensor = None if self._holder is None else self._holder()
        if tensor is not None and self.is_under(tensor) and _references(tensor) == 1:
            tensor.data = copy_of(tensor.detach())
        else:
            self.gives_copies = True

    def is_under(self, tensor: Tensor) -> bool:
        """Whether a tensor is the one that was handed out last, or a view of it."""
        return self.is_held and self._handed_out == StorageWeakRef(tensor.untyped_storage())

    def is_like(self, tensor: Tensor) -> bool:
        """Whether a tensor can be copied here as it is. One of another layout would be computed with in another order."""
        same = tensor.shape == self.shape and tensor.stride() == self.stride
        return same and tensor.dtype is self.dtype and tensor.device == self.device

    def is_at(self, tensor: Tensor) -> bool:
        return tensor.data_ptr() == self.address and tensor.stride() == self.stride and tensor.shape == self.shape


def _references(tensor: Tensor) -> int:
    """How many tensors lie in the memory of this one, itself included."""
    storage = tensor.untyped_storage()
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1


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


def copy_of(tensor: Tensor) -> Tensor:
    """The same content in new memory of the same geometry.

    >>> copy_of(torch.ones(3, 1).expand(3, 2)).stride()
    (1, 0)
    """
    copy = empty_twin(tensor)
    copy_content(copy, tensor)
    return copy


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
