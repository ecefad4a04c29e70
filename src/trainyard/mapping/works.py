"""Which ops a device does together.

A product takes the element-wise ops behind it along (`fusion="epilogue"`): bias, ReLU, a residual, a mask of the backward pass, as
long as each reads what the one before it produced and all else it reads was there before the product began. Ops that one kernel
computes without leaving the chip (`Op.fused`) form a chain of their own. Everything else stands alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Literal, TypeVar, TypeVarTuple

from trainyard.errors import NotModelled, UnknownName
from trainyard.ir import ElementWise, Phase, Step, Work

Fusion = Literal["epilogue", "none"]
Rest = TypeVarTuple("Rest")
T = TypeVar("T")

ORDERS = ("sequential",)
"""Orders of dX and dW that are modelled."""
FUSED_ORDERS = ("interleaved", "dx_major", "dw_major")
"""Orders that pair dX with dW of a layer (`Work.grouping` is `gradient_pair`)."""


def require_order(order: str) -> None:
    if order in ORDERS:
        return
    if order in FUSED_ORDERS:
        raise NotModelled(f"order {order!r} of dX and dW is not modelled yet (known: {', '.join(ORDERS)})")
    raise UnknownName("order", str(order), (*ORDERS, *FUSED_ORDERS))


class Same:
    """A step as a key: hashing 10,000 ops each time is slow, and steps never change."""

    __slots__ = ("step",)

    def __init__(self, step: Step) -> None:
        self.step = step

    def __hash__(self) -> int:
        return id(self.step)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.step is self.step


def per_step(make: Callable[[Step, *Rest], T]) -> Callable[[Step, *Rest], T]:
    """Remembers what a function of (step, ...) made of the last few steps."""

    @lru_cache(maxsize=32)
    def remembered(same: Same, *rest: Any) -> T:
        return make(same.step, *rest)

    return lambda step, *rest: remembered(Same(step), *rest)


@per_step
def readers(step: Step) -> dict[int, list[int]]:
    """For each memory, the ops that read it, in program order."""
    found: dict[int, list[int]] = {}
    for index, op in enumerate(step.ops):
        for base in dict.fromkeys(map(step.base, op.inputs)):
            found.setdefault(base, []).append(index)
    return found


@per_step
def group(step: Step, fusion: Fusion) -> tuple[Work, ...]:
    """Every op once, in an order that respects dependencies."""
    taken: set[int] = set()
    works: list[Work] = []
    for index, op in enumerate(step.ops):
        if index in taken:
            continue
        chain = [index]
        if op.fused is not None:
            chain = list(_kernel(step, index))
        elif op.is_product and fusion == "epilogue":
            chain = _epilogue(step, index, taken)
        taken.update(chain)
        works.append(Work(ops=tuple(chain), grouping="chain" if len(chain) > 1 else "single"))
    return tuple(works)


def _kernel(step: Step, first: int) -> Iterator[int]:
    """Neighbours that share a number in `fused`."""
    for index in range(first, len(step.ops)):
        if step.ops[index].fused != step.ops[first].fused:
            return
        yield index


def _epilogue(step: Step, head: int, taken: set[int]) -> list[int]:
    chain = [head]
    while True:
        tails = {step.base(t): step.tensors[t].elements for t in step.ops[chain[-1]].outputs[:1]}
        found = next(
            (
                reader
                for base, elements in tails.items()
                for reader in readers(step).get(base, ())
                if reader > chain[-1] and reader not in taken and _joins(step, chain, reader, elements)
            ),
            None,
        )
        if found is None:
            return chain
        chain.append(found)


def _joins(step: Step, chain: list[int], reader: int, elements: int) -> bool:
    """Whether an op can be done as the sums of the chain's product leave the array."""
    op, head = step.ops[reader], chain[0]
    if not isinstance(op.body, ElementWise) or op.body.elements != elements or op.fused is not None:
        return False
    if op.phase is Phase.UPDATE or op.phase.backward != step.ops[head].phase.backward:
        return False
    if any(before > head and before not in chain for before in step.dependencies[reader]):
        return False
    # what it overwrites must not be used between the product and it
    overwritten = {step.base(t) for t in op.outputs if step.base(t) != t}
    between = (step.ops[other] for other in range(head + 1, reader) if other not in chain) if overwritten else ()
    return not any(overwritten.intersection(map(step.base, (*other.inputs, *other.outputs))) for other in between)
