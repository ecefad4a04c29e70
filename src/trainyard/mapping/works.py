"""Which ops a device does together.

A product takes the element-wise ops behind it along (`fusion="epilogue"`): bias, ReLU, a residual, a mask of the backward pass, as
long as each reads what the one before it produced and all else it reads was there before the product began. Ops that one kernel
computes without leaving the chip (`Op.fused`) form a chain of their own. Everything else stands alone.

With `together="gradients"`, dX and dW of a layer, each with its epilogue, form one `concurrent` Work where nothing between them
keeps them apart: the one that is moved next to the other touches no memory that a Work on its way writes, and writes none that one
reads. An order that brings dX and dW of one product together (`tile_streams`) makes a `gradient_pair` of them, where the two read
the same matrix dY: not where dX multiplies inserted zeros ("dilated"), nor where one dW sums over many calls of a recurrent layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Literal

from trainyard.caches import per_step
from trainyard.ir import Convolution, ElementWise, Grouping, MatMul, Op, Phase, Step, Work
from trainyard.ir.letters import letter_of
from trainyard.mapping.lowering import GradInput, lower

Fusion = Literal["epilogue", "none"]
Together = Literal["none", "gradients"]


@per_step
def readers(step: Step) -> dict[int, list[int]]:
    """For each memory, the ops that read it, in program order."""
    found: dict[int, list[int]] = {}
    for index, op in enumerate(step.ops):
        for base in dict.fromkeys(map(step.base, op.inputs)):
            found.setdefault(base, []).append(index)
    return found


@per_step
def group(step: Step, fusion: Fusion, together: Together = "none", paired: GradInput | None = None) -> tuple[Work, ...]:
    """Every op once, in an order that respects dependencies; `paired` makes gradient pairs of products lowered that way."""
    works = _chains(step, fusion)
    if paired is not None:
        return tuple(_paired(step, works, "gradient_pair", lambda dx, dw: same_output_gradient(step, dx, dw, paired)))
    return tuple(_paired(step, works, "concurrent", lambda dx, dw: True) if together == "gradients" else works)


def same_output_gradient(step: Step, dx: Op, dw: Op, grad_input: GradInput) -> bool:
    """Whether dX and dW are those of one product Y(M,N) = X(M,K) W(K,N), and read dY as the same matrix."""
    assert isinstance(dx.body, MatMul | Convolution)
    assert isinstance(dw.body, MatMul | Convolution)
    first, second = lower(dx.body, grad_input).product, lower(dw.body, grad_input).product
    if second.K != first.M or second.count != first.count:
        return False
    letters = _letters(step, dx), _letters(step, dw)
    if all(letters[0]) and all(letters[1]):
        if letters[0] != ("G", "W") or letters[1] not in (("A", "G"), ("G", "A")):
            return False
        want = (first.N, first.K) if letters[1] == ("A", "G") else (first.K, first.N)
        return want == (second.M, second.N)
    return (second.M, second.N) in ((first.N, first.K), (first.K, first.N))


def _letters(step: Step, op: Op) -> tuple[str, str]:
    """Of A and B as they are lowered."""
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
    """The products of a Work that brings several together, each with its epilogue, and all else, as Works of their own."""
    heads = [position for position, index in enumerate(work.ops) if not isinstance(step.ops[index].body, ElementWise)]
    if work.grouping not in ("concurrent", "gradient_pair") or not step.ops[work.ops[0]].is_product:
        return (work,)
    return tuple(_chain(work.ops[start:stop]) for start, stop in pairwise([*heads, len(work.ops)]))


def _paired(step: Step, works: list[Work], grouping: Grouping, fits: Callable[[Op, Op], bool]) -> Iterator[Work]:
    """Each dX with a dW of its layer that fits it, at the place of one of them."""
    touched = [memory_accesses(step, work) for work in works]
    places: list[Work | None] = list(works)
    waiting: dict[tuple[str, int, Phase], list[int]] = {}
    for later, work in enumerate(works):
        op = step.ops[work.ops[0]]
        if not op.is_product or op.fused is not None or not op.phase.backward:
            continue
        other = Phase.GRAD_WEIGHT if op.phase is Phase.GRAD_INPUT else Phase.GRAD_INPUT
        for earlier in waiting.get((op.layer, op.call, other), ()):
            pair = (works[earlier], work) if other is Phase.GRAD_INPUT else (work, works[earlier])
            alike = _alike(step, *pair) and fits(step.ops[pair[0].ops[0]], step.ops[pair[1].ops[0]])
            kept = _meeting(places, touched, earlier, later) if alike else None
            if kept is None:
                continue
            places[earlier] = places[later] = None
            places[kept] = Work(ops=pair[0].ops + pair[1].ops, grouping=grouping)
            touched[kept] = memory_accesses(step, places[kept])  # type: ignore[arg-type]  # just made
            waiting[op.layer, op.call, other].remove(earlier)
            break
        else:
            waiting.setdefault((op.layer, op.call, op.phase), []).append(later)
    return (work for work in places if work is not None)


def _alike(step: Step, first: Work, second: Work) -> bool:
    """Two gradients of one product read the same dY; a step without tensors does not tell."""
    mine, other = (set(map(step.base, step.ops[work.ops[0]].inputs[:2])) for work in (first, second))
    return not mine or not other or bool(mine & other)


def _meeting(places: list[Work | None], touched: list[tuple[set[int], set[int]]], earlier: int, later: int) -> int | None:
    """Where two Works can be one: at the earlier's place, else at the later's; None where neither can go to the other."""
    between = [place for place in range(earlier + 1, later) if places[place] is not None]
    if conflict(touched[earlier], touched[later]):
        return None
    for kept, moved in ((earlier, later), (later, earlier)):
        if not any(conflict(touched[moved], touched[place]) for place in between):
            return kept
    return None


def memory_accesses(step: Step, work: Work) -> tuple[set[int], set[int]]:
    """Memories read and written."""
    ops = [step.ops[index] for index in work.ops]
    return {step.base(t) for op in ops for t in op.inputs}, {step.base(t) for op in ops for t in op.outputs}


def conflict(first: tuple[set[int], set[int]], second: tuple[set[int], set[int]]) -> bool:
    """Whether their order matters: one writes what the other touches."""
    return bool(first[1] & (second[0] | second[1]) or first[0] & second[1])


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
