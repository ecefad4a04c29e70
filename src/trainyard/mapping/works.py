"""Grouping of a step's ops into Works.

With `fusion="epilogue"` a product is followed by its epilogue, the element-wise ops behind it (bias, ReLU, a residual, a mask of
the backward pass): each reads the result of the op before it, and its other inputs exist before the product begins. Ops of one
fused kernel (`Op.fused`) form a chain. Every other op is a Work of its own.

With `together="gradients"`, dX and dW of a layer, each with its epilogue, form one `concurrent` Work if one of them can be moved
next to the other: no Work in between writes memory that it touches or reads memory that it writes. With a gradient order
(`tile_streams`), dX and dW that read the same dY form a `gradient_pair`. They do not if one dW sums over many calls of a recurrent
layer, or if dX multiplies windows of dY ("dilated") and not just a stride lies between the positions of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Literal

from trainyard.caches import per_step
from trainyard.ir import Collective, Convolution, ElementWise, Grouping, MatMul, Op, Phase, Step, Work
from trainyard.ir.step import letter_of
from trainyard.mapping.lowering import GradInput, lower

Fusion = Literal["epilogue", "none"]
Together = Literal["none", "gradients"]
Accesses = tuple[set[int], set[int]]
"""(base tensors read, base tensors written)"""


@per_step
def readers(step: Step) -> dict[int, list[int]]:
    """For each base tensor, the ops that read it, in program order."""
    by_base: dict[int, list[int]] = {}
    for index, op in enumerate(step.ops):
        for base in dict.fromkeys(map(step.base, op.inputs)):
            by_base.setdefault(base, []).append(index)
    return by_base


@per_step
def group(step: Step, fusion: Fusion, together: Together = "none", paired: GradInput | None = None) -> tuple[Work, ...]:
    """Works that cover every op once, in an order that respects dependencies; `paired` makes gradient pairs, with that lowering."""
    works = _chains(step, fusion)
    if paired is not None:
        return tuple(_paired(step, works, "gradient_pair", lambda dx, dw: same_output_gradient(step, dx, dw, paired)))
    return tuple(_paired(step, works, "concurrent", lambda dx, dw: True) if together == "gradients" else works)


def same_output_gradient(step: Step, dx: Op, dw: Op, grad_input: GradInput) -> bool:
    """Whether dX and dW are those of one product Y(M,N) = X(M,K) W(K,N), and read dY as the same matrix, or windows of it."""
    assert isinstance(dx.body, MatMul | Convolution)
    assert isinstance(dw.body, MatMul | Convolution)
    first, second = lower(dx.body, grad_input).product, lower(dw.body, grad_input).product
    if isinstance(dx.body, Convolution) and dx.body.product == "grad_input" and grad_input == "dilated":
        whole = all(size == out * stride for size, out, stride in zip(dx.body.size, dx.body.out_size, dx.body.stride, strict=True))
        return whole and dx.body.as_product("grad_weight") == dw.body
    if second.K != first.M or second.count != first.count:
        return False
    letters = _letters(step, dx), _letters(step, dw)
    if all(letters[0]) and all(letters[1]):
        if letters[0] != ("G", "W") or letters[1] not in (("A", "G"), ("G", "A")):
            return False
        expected = (first.N, first.K) if letters[1] == ("A", "G") else (first.K, first.N)
        return expected == (second.M, second.N)
    return (second.M, second.N) in ((first.N, first.K), (first.K, first.N))


def _letters(step: Step, op: Op) -> tuple[str, str]:
    """Letters of operands a and b of the lowered product."""
    return letter_of(step, op, 0), letter_of(step, op, 1)


def _chains(step: Step, fusion: Fusion) -> list[Work]:
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
        works.append(_chain(chain))
    return works


def _chain(ops: Sequence[int]) -> Work:
    return Work(ops=tuple(ops), grouping="chain" if len(ops) > 1 else "single")


def separate_products(step: Step, work: Work) -> tuple[Work, ...]:
    """The products of a concurrent Work or gradient pair, each with its epilogue, as separate Works; any other Work as it is."""
    heads = [position for position, index in enumerate(work.ops) if not isinstance(step.ops[index].body, ElementWise)]
    if work.grouping not in ("concurrent", "gradient_pair") or not step.ops[work.ops[0]].is_product:
        return (work,)
    return tuple(_chain(work.ops[start:stop]) for start, stop in pairwise([*heads, len(work.ops)]))


def _paired(step: Step, works: list[Work], grouping: Grouping, fits: Callable[[Op, Op], bool]) -> Iterator[Work]:
    """The Works with each dX joined to a dW of its layer that fits it, in the position of one of the two."""
    accesses = [memory_accesses(step, work) for work in works]
    slots: list[Work | None] = list(works)
    unpaired: dict[tuple[str, int, Phase], list[int]] = {}
    for later, work in enumerate(works):
        op = step.ops[work.ops[0]]
        if not op.is_product or op.fused is not None or not op.phase.backward:
            continue
        other = Phase.GRAD_WEIGHT if op.phase is Phase.GRAD_INPUT else Phase.GRAD_INPUT
        for earlier in unpaired.get((op.layer, op.call, other), ()):
            pair = (works[earlier], work) if other is Phase.GRAD_INPUT else (work, works[earlier])
            if not (_share_operand(step, *pair) and fits(step.ops[pair[0].ops[0]], step.ops[pair[1].ops[0]])):
                continue
            slot = _common_slot(slots, accesses, earlier, later)
            if slot is None:
                continue
            joined = Work(ops=pair[0].ops + pair[1].ops, grouping=grouping)
            slots[earlier] = slots[later] = None
            slots[slot], accesses[slot] = joined, memory_accesses(step, joined)
            unpaired[op.layer, op.call, other].remove(earlier)
            break
        else:
            unpaired.setdefault((op.layer, op.call, op.phase), []).append(later)
    return (work for work in slots if work is not None)


def _share_operand(step: Step, dx: Work, dw: Work) -> bool:
    """Whether both products read one tensor (dY); assumed for a step without tensors."""
    first, second = (set(map(step.base, step.ops[work.ops[0]].inputs[:2])) for work in (dx, dw))
    return not first or not second or bool(first & second)


def _common_slot(slots: list[Work | None], accesses: list[Accesses], earlier: int, later: int) -> int | None:
    """The slot in which two Works can be joined: the earlier one's, else the later one's; None if neither can be moved."""
    between = [other for other in range(earlier + 1, later) if slots[other] is not None]
    if conflict(accesses[earlier], accesses[later]):
        return None
    for slot, moved in ((earlier, later), (later, earlier)):
        if not any(conflict(accesses[moved], accesses[other]) for other in between):
            return slot
    return None


def is_exchange(step: Step, work: Work) -> bool:
    """Whether a Work is an exchange with other devices, which read and write the DRAM."""
    return isinstance(step.ops[work.ops[0]].body, Collective)


def memory_accesses(step: Step, work: Work) -> Accesses:
    """Base tensors that a Work reads, and those that it writes."""
    ops = [step.ops[index] for index in work.ops]
    return {step.base(t) for op in ops for t in op.inputs}, {step.base(t) for op in ops for t in op.outputs}


def conflict(first: Accesses, second: Accesses) -> bool:
    """Whether the order of two Works matters: one writes what the other reads or writes."""
    return bool(first[1] & (second[0] | second[1]) or first[0] & second[1])


def _kernel(step: Step, first: int) -> Iterator[int]:
    """The ops from `first` on that have the same number in `fused`."""
    for index in range(first, len(step.ops)):
        if step.ops[index].fused != step.ops[first].fused:
            return
        yield index


def _epilogue(step: Step, head: int, taken: set[int]) -> list[int]:
    chain = [head]
    while True:
        tails = {step.base(t): step.tensors[t].elements for t in step.ops[chain[-1]].outputs[:1]}
        following = next(
            (
                reader
                for base, elements in tails.items()
                for reader in readers(step).get(base, ())
                if reader > chain[-1] and reader not in taken and _can_follow(step, chain, reader, elements)
            ),
            None,
        )
        if following is None:
            return chain
        chain.append(following)


def _can_follow(step: Step, chain: list[int], reader: int, elements: int) -> bool:
    """Whether an op can be applied to the sums of the chain's product as they leave the array."""
    op, head = step.ops[reader], chain[0]
    if not isinstance(op.body, ElementWise) or op.body.elements != elements or op.fused is not None:
        return False
    if op.phase is Phase.UPDATE or op.phase.backward != step.ops[head].phase.backward:
        return False
    if any(before > head and before not in chain for before in step.dependencies[reader]):
        return False
    # tensors that it overwrites must not be used between the product and it
    overwritten = {step.base(t) for t in op.outputs if step.base(t) != t}
    between = (step.ops[other] for other in range(head + 1, reader) if other not in chain) if overwritten else ()
    return not any(overwritten.intersection(map(step.base, (*other.inputs, *other.outputs))) for other in between)
