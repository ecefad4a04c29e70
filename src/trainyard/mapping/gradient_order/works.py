"""Works of two layers whose gradients are fused (`links` says which layers can be).

The gradient pair of the upper layer, that of the lower one (dW alone if it is the network's first), and the sums of dY that are the
lower layer's bias gradients become one `gradient_pair` of four (three) products: dX and its epilogue, dW, the same of the lower
layer, the sums. The joined Work takes the position of one of its members, if no dependency in between forbids that and no other op
reads what stays on chip.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trainyard.ir import Reduction, Step, Work
from trainyard.mapping.gradient_order.links import Link, gradient_links, is_bias, reads_gradient
from trainyard.mapping.works import conflict, memory_accesses, readers, separate_products

Members = tuple[Work, ...]
"""Upper layer, lower layer, bias gradients."""


def joinable_links(step: Step, works: Sequence[Work]) -> dict[Link, Members]:
    """The links that fuse and whose two layers can be one Work, each considered by itself, with their members."""
    heads = {work.ops[0]: work for work in works}
    holder = {index: work for work in works for index in work.ops}
    joinable = {}
    for link in gradient_links(step):
        members = _members(step, link, heads, holder) if link.fuses else None
        if members is not None and _meeting(step, list(works), members) is not None:
            joinable[link] = members
    return joinable


def join_works(step: Step, works: Sequence[Work], links: Iterable[Members]) -> tuple[Work, ...]:
    """The Works with each tuple of members joined into one; members that can no longer be joined stay as they are."""
    slots: list[Work | None] = list(works)
    for members in links:
        position = _meeting(step, slots, members)
        if position is None:
            continue
        for member in members:
            slots[slots.index(member)] = None
        slots[position] = joined_work(members)
    return tuple(work for work in slots if work is not None)


def joined_work(members: Members) -> Work:
    return Work(ops=tuple(index for member in members for index in member.ops), grouping="gradient_pair")


def is_chain(step: Step, work: Work) -> bool:
    """Whether a gradient pair is a joined one of two layers, the second of which reads the result of the first."""
    if work.grouping != "gradient_pair":
        return False
    products = [part for part in separate_products(step, work) if step.ops[part.ops[0]].is_product]
    if len(products) not in (3, 4):
        return False
    left = step.ops[products[0].ops[-1]].outputs[:1]
    return all(reads_gradient(step, step.ops[part.ops[0]], step.base(tensor)) for tensor in left for part in products[2:])


def split_layers(step: Step, work: Work) -> Members:
    """The members of a joined Work."""
    parts = separate_products(step, work)
    products = [part for part in parts if step.ops[part.ops[0]].is_product]
    below = products[2:]
    upper = Work(ops=products[0].ops + products[1].ops, grouping="gradient_pair")
    lower = Work(ops=below[0].ops + below[1].ops, grouping="gradient_pair") if len(below) == 2 else below[0]
    return (upper, lower, *parts[len(products) :])


def _members(step: Step, link: Link, heads: Mapping[int, Work], holder: Mapping[int, Work]) -> Members | None:
    upper = heads.get(link.head)
    if upper is None or upper.grouping != "gradient_pair":
        return None
    chain = separate_products(step, upper)[0].ops
    gradient = step.base(step.ops[chain[-1]].outputs[0])
    users = [index for index in readers(step).get(gradient, ()) if index > chain[-1]]
    biases = [index for index in users if is_bias(step.ops[index])]
    lower = {holder[index] for index in users if index not in biases}
    if len(lower) != 1 or any(len(holder[index].ops) > 1 or not _once(step, index) for index in biases):
        return None
    (below,) = lower
    paired = below.grouping == "gradient_pair" if link.lower_dx else step.ops[below.ops[0]].is_product
    first = step.ops[below.ops[0]]
    if not paired or (first.layer, first.call) != (link.lower, link.lower_call) or not set(users) <= {*below.ops, *biases}:
        return None
    return (upper, below, *(holder[index] for index in biases))


def _once(step: Step, index: int) -> bool:
    body = step.ops[index].body
    return isinstance(body, Reduction) and body.passes == 1


def _meeting(step: Step, slots: Sequence[Work | None], members: Members) -> int | None:
    """The position of a member to which all others can move, or None."""
    if not all(member in slots for member in members):
        return None
    seats = sorted(slots.index(member) for member in members)
    between = [at for at in range(seats[0], seats[-1]) if at not in seats and slots[at] is not None]
    memory = {at: memory_accesses(step, work) for at in (*seats, *between) if (work := slots[at]) is not None}
    order = [slots.index(member) for member in members]
    reordered = [(first, second) for number, first in enumerate(order) for second in order[number + 1 :] if second < first]
    if any(conflict(memory[first], memory[second]) for first, second in reordered):
        return None
    for seat_kept in reversed(seats):
        passed = [(seat, at) for seat in seats for at in between if seat < at < seat_kept or seat_kept < at < seat]
        if not any(conflict(memory[seat], memory[at]) for seat, at in passed):
            return seat_kept
    return None
