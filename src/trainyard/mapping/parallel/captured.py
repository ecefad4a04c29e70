"""The order in which a captured script's exchanges start.

FSDP2 (`fully_shard` of torch.distributed.fsdp) gathers the parameters of a module on a stream of their own. In forward the host,
which runs ahead of the device, issues the next module's gather while the present one computes; the gather may start once the
present module's parameters have been copied out of the buffer that both use. In a capture, which runs op by op, that gather stands
behind the present module's ops. `ahead` puts it where it can start. In backward FSDP2 issues it there itself.
"""

from __future__ import annotations

from dataclasses import replace

from trainyard.caches import per_step
from trainyard.ir import Collective, Phase, Step

COPY_IN, COPY_OUT = "fsdp.all_gather_copy_in", "fsdp.split_with_sizes_copy"


@per_step
def ahead(step: Step) -> Step:
    """The same step with each gather of forward right behind the copy-out of the gather before it."""
    order: list[int] = []
    place: int | None = None  # in `order`, behind the last copy-out
    moved: set[int] = set()
    for index, op in enumerate(step.ops):
        if index in moved:
            continue
        if place is not None and op.phase is Phase.FORWARD and not op.recompute:
            early = _gather(step, index)
            if early and _free(step, order[place:], early):
                order[place:place] = early
                place = None  # the next one waits for this one's copy-out
                moved.update(early)
                continue
        order.append(index)
        if op.name == COPY_OUT:
            place = len(order)
    return replace(step, ops=tuple(step.ops[index] for index in order)) if moved else step


def _gather(step: Step, first: int) -> list[int]:
    """If an all-gather of parameters begins here: its casts, its copy-in and itself, one behind the other."""
    gather: list[int] = []
    gathered_ops: set[int] = set()
    for index in range(first, len(step.ops)):
        op = step.ops[index]
        if any(before not in gathered_ops for before in step.dependencies[index]):
            return []
        if isinstance(op.body, Collective):
            return [*gather, index] if gather and step.ops[gather[-1]].name == COPY_IN else []
        if gather and step.ops[gather[-1]].name == COPY_IN:
            return []
        if op.name != COPY_IN and not all(step.tensors[step.base(tensor)].role.resident for tensor in op.inputs):
            return []
        gather.append(index)
        gathered_ops.add(index)
    return []


def _free(step: Step, between: list[int], early: list[int]) -> bool:
    """Whether nothing in between works on what they read or write."""
    read = {step.base(tensor) for index in early for tensor in step.ops[index].inputs}
    written = {step.base(tensor) for index in early for tensor in step.ops[index].outputs}
    for index in between:
        op = step.ops[index]
        outputs = set(map(step.base, op.outputs))
        if outputs & (read | written) or written & set(map(step.base, op.inputs)):
            return False
    return True
