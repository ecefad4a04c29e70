"""Accesses of Works to tensors, and the gaps between them in which a tensor may stay on chip.

A base tensor (the owner of a piece of memory) is read and written by some Works, in their order. A *gap* lies between two accesses
in a row. A tensor that is kept during a gap needs not be read again at its end. It must be complete on chip at its begin: all of it
was just read or written, or it is new in this step and what has been written of it was kept. A tensor may also stay for one access
alone: an operand is then read once, however often its tiles are used, and sums need no tiles of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainyard.ir import Step, Work
from trainyard.mapping.demand import AccessLog, NoDemand, Policy, StreamDemand, TensorBytes
from trainyard.mapping.profile import plain_demand
from trainyard.mapping.works import is_exchange, memory_accesses

ALONE = 1 << 40
"""Added to the number of an access for which a tensor stays alone; no tensor has so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One Work at one tensor, in scratchpad bytes; `whole`: all of the tensor is read or written.

    `in_dram`: the access needs the tensor in DRAM, or leaves it there: an exchange with other devices, an op that is not simulated,
    or a matrix that is unfolded in DRAM. `in_tiles`: the Work may read it more than once.
    """

    work: int
    read_bytes: int = 0
    write_bytes: int = 0
    whole_read: bool = False
    whole_write: bool = False
    in_dram: bool = False
    in_tiles: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A base tensor, its scratchpad bytes and all accesses to it. `lasts`: it is in memory before the step or after it."""

    base: int
    bytes: int
    accesses: tuple[Access, ...]
    lasts: bool


@dataclass(frozen=True, slots=True)
class Gap:
    """Between access `number` of a tensor and the next one; `first` and `last` are the Works at its ends.

    A number n + ALONE stands for access n alone.
    """

    tensor: int
    number: int
    first: int
    last: int


def tensors_of(step: Step, works: Sequence[Work], policy: Policy) -> tuple[Tensor, ...]:
    """Every tensor that Works move between DRAM and scratchpad, in the order of the first access."""
    sizes_of = TensorBytes(step, policy, {})
    accesses: dict[int, list[Access]] = {}
    for position, work in enumerate(works):
        log: AccessLog = {}
        demand = None if is_exchange(step, work) else plain_demand(step, work, policy, log=log)
        outside = demand is None or isinstance(demand, NoDemand)
        once = isinstance(demand, StreamDemand) and demand.again is None
        reads, writes = memory_accesses(step, work)
        touched = dict.fromkeys(base for base, _ in log) if not outside else dict.fromkeys((*reads, *writes))
        for base in touched:
            size, read, written = sizes_of.bytes(base), log.get((base, "read"), 0), log.get((base, "write"), 0)
            accesses.setdefault(base, []).append(
                Access(
                    work=position,
                    read_bytes=read,
                    write_bytes=written,
                    whole_read=read >= size,
                    whole_write=written >= size,
                    in_dram=outside or (base, "elsewhere") in log,
                    in_tiles=not once,
                )
            )
    return tuple(
        Tensor(base=base, bytes=sizes_of.bytes(base), accesses=tuple(listed), lasts=step.tensors[base].role.resident)
        for base, listed in accesses.items()
    )


def gaps_of(tensors: Sequence[Tensor]) -> tuple[Gap, ...]:
    """All gaps in which keeping a tensor saves something, by itself or with others of the same tensor."""
    found = []
    for number, tensor in enumerate(tensors):
        for position in range(len(tensor.accesses) - 1):
            before, after = tensor.accesses[position], tensor.accesses[position + 1]
            if before.in_dram or after.in_dram:
                continue
            if after.whole_write and not after.read_bytes:  # written over without a look
                continue
            found.append(Gap(number, position, before.work, after.work))
        for position, access in enumerate(tensor.accesses):
            if access.in_tiles and not access.in_dram:
                found.append(Gap(number, position + ALONE, access.work, access.work))
    return tuple(found)


def may_begin(tensor: Tensor, number: int, kept: frozenset[int]) -> bool:
    """Whether the tensor is complete on chip behind an access, where the gaps in front of it that are `kept` are known."""
    access = tensor.accesses[number % ALONE]
    if access.whole_read or access.whole_write or number - 1 in kept:
        return True
    if number >= ALONE:
        return False
    return number == 0 and not tensor.lasts and not access.read_bytes


def unwritten(tensor: Tensor, number: int, kept: frozenset[int]) -> bool:
    """Whether what an access writes never needs DRAM: all readers find it on chip, until it is written over or no longer used."""
    if not tensor.accesses[number].write_bytes or tensor.accesses[number].in_dram or number + 1 == len(tensor.accesses):
        return False
    for later in range(number + 1, len(tensor.accesses)):
        access = tensor.accesses[later]
        if access.in_dram:
            return False
        if access.whole_write and not access.read_bytes:
            return True
        if later - 1 not in kept:
            return False
        if access.whole_write:
            return True
    return not tensor.lasts
