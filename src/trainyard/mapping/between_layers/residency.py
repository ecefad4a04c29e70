"""What kept gaps save each Work, and how much of the scratchpad they take while it runs.

A tensor that is kept takes all of its bytes from the Work at the begin of its gap to the Work at its end, both included. A chain of
gaps that no DRAM access interrupts also saves the write, if DRAM is never read before the tensor is written over or dead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from trainyard.mapping.between_layers.accesses import ALONE, Gap, Tensor, may_begin, unwritten
from trainyard.mapping.demand import OnChip

NONE: frozenset[int] = frozenset()


@dataclass(slots=True)
class Ledger:
    """The gaps that are kept so far, as what each Work finds on chip."""

    tensors: Sequence[Tensor]
    works: int
    kept: dict[int, frozenset[int]] = field(default_factory=dict)
    """Tensor -> numbers of its kept gaps."""
    at: list[list[tuple[int, int]]] = field(init=False)
    """Work -> its accesses, as (tensor, number of the access)."""
    occupied: npt.NDArray[np.int64] = field(init=False)
    """Work -> bytes of all tensors that are kept while it runs."""

    def __post_init__(self) -> None:
        self.at = [[] for _ in range(self.works)]
        for number, tensor in enumerate(self.tensors):
            for position, access in enumerate(tensor.accesses):
                self.at[access.work].append((number, position))
        self.occupied = np.zeros(self.works, np.int64)

    def change(self, tensor: int, gaps: frozenset[int]) -> bool:
        """Keeps exactly these gaps of a tensor; False, and no change, where the tensor is not on chip at the begin of one."""
        own = self.tensors[tensor]
        if not all(may_begin(own, number, gaps) for number in gaps):
            return False
        for first, last in stays(own, self.kept.get(tensor, NONE)):
            self.occupied[first : last + 1] -= own.bytes
        for first, last in stays(own, gaps):
            self.occupied[first : last + 1] += own.bytes
        self.kept[tensor] = gaps
        return True

    def state(self, work: int) -> OnChip:
        """What a Work finds on chip."""
        read, loaded, results, free = list[int](), list[int](), list[int](), list[int]()
        for number, position in self.at[work]:
            gaps = self.kept.get(number)
            if not gaps:
                continue
            tensor = self.tensors[number]
            access, stays = tensor.accesses[position], position in gaps or position + ALONE in gaps
            if access.read_bytes and position - 1 in gaps:
                read.append(tensor.base)
            elif access.read_bytes and stays:
                loaded.append(tensor.base)
            if access.write_bytes and stays:
                results.append(tensor.base)
            if access.write_bytes and unwritten(tensor, position, gaps):
                free.append(tensor.base)
        return OnChip(frozenset(read), frozenset(loaded), frozenset(results), frozenset(free), int(self.occupied[work]))

    def states(self) -> dict[int, OnChip]:
        """Works that find anything on chip, or less room."""
        found = {work: self.state(work) for work in range(self.works)}
        return {work: state for work, state in found.items() if any(state)}


def stays(tensor: Tensor, gaps: frozenset[int]) -> Iterator[tuple[int, int]]:
    """First and last Work of each stay on chip; gaps in a row are one stay."""
    for gap in gaps:
        if gap >= ALONE:
            access = gap - ALONE
            if access not in gaps and access - 1 not in gaps:
                yield tensor.accesses[access].work, tensor.accesses[access].work
        elif gap - 1 not in gaps:
            last = gap
            while last + 1 in gaps:
                last += 1
            yield tensor.accesses[gap].work, tensor.accesses[last + 1].work


def by_tensor(gaps: Iterable[Gap]) -> dict[int, tuple[int, ...]]:
    """Tensor -> the numbers of its gaps."""
    numbers: dict[int, tuple[int, ...]] = {}
    for gap in gaps:
        numbers[gap.tensor] = (*numbers.get(gap.tensor, ()), gap.number)
    return numbers
