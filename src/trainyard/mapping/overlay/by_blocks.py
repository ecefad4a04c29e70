"""A step's repeated blocks, kept or checkpointed as a whole: time and memory for any number of checkpointed blocks.

A block is the deepest part of the model whose path ends in a number, that holds at least two layers, and whose inner layers
occur under another number too (`encoder.layer.3`, `features.5.2`), or are some of those of a block beside it. To checkpoint it
means to drop, after forward, what it saved except its results, to hold its inputs instead, and to compute its forward once more
right before its backward begins. Blocks that give the most bytes for a second are checkpointed first; of equal ones the
earlier, whose memory would be held the longest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from trainyard.ir import Step, Work
from trainyard.ir.protocols import IssuedWork
from trainyard.mapping.overlay.policy import Choice, Decision, Problem, with_cost
from trainyard.mapping.overlay.problem import PagedStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block: what it saves (indices in `Problem.saved`), and the seconds of its forward."""

    name: str
    saved: tuple[int, ...]
    forward_s: float
    bytes: int
    input_bytes: int
    """Of inputs that nothing holds until backward, unless the block is checkpointed."""
    forward: tuple[int, ...]
    backward: int
    """Positions of its forward, and the first of its backward."""
    saved_tensors: int
    """Tensors that autograd saves in its forward, each as often as a call of backward reads it; parameters count."""

    @property
    def forward_end(self) -> int:
        return self.forward[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockChoice:
    """The names of the checkpointed blocks, with time and memory of the step."""

    checkpointed: tuple[str, ...]
    choice: Choice
    recomputed_bytes: int


def block_names(layers: Sequence[str]) -> dict[str, str]:
    """The block of each layer that is in one.

    >>> paths = ["embed", "layer.0.up", "layer.0.down", "layer.1.up", "layer.1.down", "head.0", "head.1"]
    >>> block_names(paths)
    {'layer.0.up': 'layer.0', 'layer.0.down': 'layer.0', 'layer.1.up': 'layer.1', 'layer.1.down': 'layer.1'}
    """
    inner: dict[str, set[str]] = {}
    for layer in layers:
        parts = layer.split(".")
        for depth in range(1, len(parts) + 1):
            if parts[depth - 1].isdigit():
                inner.setdefault(".".join(parts[:depth]), set()).update([".".join(parts[depth:])] if depth < len(parts) else ())
    alike: dict[frozenset[str], list[str]] = {}
    for prefix, names in inner.items():
        alike.setdefault(frozenset(names), []).append(prefix)
    repeated = {prefix for names, prefixes in alike.items() if len(names) > 1 and len(prefixes) > 1 for prefix in prefixes}
    beside: dict[str, list[str]] = {}
    for prefix in repeated:
        beside.setdefault(prefix.rpartition(".")[0], []).append(prefix)
    repeated |= {  # the first block of a stack may do without a layer that the others have
        prefix
        for prefix, names in inner.items()
        if len(names) > 1 and any(names < inner[other] for other in beside.get(prefix.rpartition(".")[0], ()))
    }
    blocks: dict[str, str] = {}
    for layer in layers:
        parts = layer.split(".")
        prefixes = (".".join(parts[:depth]) for depth in range(len(parts), 0, -1))
        block = next((prefix for prefix in prefixes if prefix in repeated), None)
        if block is not None:
            blocks[layer] = block
    return blocks


def blocks_of(step: Step, works: Sequence[Work], paged: PagedStep) -> list[Block]:
    """The blocks of a step that save something besides their results, in the order of forward."""
    names = block_names(sorted({op.layer for op in step.ops if op.layer}))
    problem, forward_s = paged.problem, dict.fromkeys(names.values(), 0.0)
    forward: dict[str, list[int]] = {}
    backward: dict[str, int] = {}
    for position, work in enumerate(works):
        first = step.ops[work.ops[0]]
        block = names.get(first.layer)
        if block is None:
            continue
        if first.phase.backward:
            backward.setdefault(block, position)
        elif block not in backward:
            forward_s[block] += problem.durations_s[position]
            forward.setdefault(block, []).append(position)
    inputs = _inputs(step, names)
    outside = {base for read in inputs.values() for base in read}
    held = {base for bases in paged.tensor_groups for base in bases}
    saved: dict[str, list[int]] = {}
    for index, (tensor, layer, bases) in enumerate(zip(problem.saved, paged.layers, paged.tensor_groups, strict=True)):
        block = names.get(layer)
        is_inner = block is not None and outside.isdisjoint(bases) and not paged.resident[index]
        if block in backward and is_inner and tensor.last_forward < backward[block] <= tensor.first_backward:
            saved.setdefault(block, []).append(index)
    counts = saved_tensors(step, works, names)
    blocks = []
    for name, indices in saved.items():
        block_inputs = {base for base in inputs.get(name, ()) if base not in held and not step.tensors[base].role.resident}
        held |= block_inputs  # the first block that reads a tensor needs it the longest
        blocks.append(
            Block(
                name=name,
                saved=tuple(indices),
                forward_s=forward_s[name],
                bytes=sum(problem.saved[index].bytes for index in indices),
                input_bytes=sum(step.tensors[base].bytes for base in block_inputs),
                forward=tuple(forward[name]),
                backward=backward[name],
                saved_tensors=counts[name],
            )
        )
    return blocks


def _inputs(step: Step, names: dict[str, str]) -> dict[str, set[int]]:
    """The tensors that each block's forward reads and another part of the model's forward wrote; "" is what is in no block."""
    written: dict[int, str] = {}
    inputs: dict[str, set[int]] = {}
    for op in step.ops:
        if op.phase.backward:
            continue
        block = names.get(op.layer, "")
        inputs.setdefault(block, set()).update(base for base in map(step.base, op.inputs) if written.get(base, block) != block)
        written.update((step.base(output), block) for output in op.outputs)
    return inputs


def saved_tensors(step: Step, works: Sequence[Work], names: dict[str, str]) -> dict[str, int]:
    """How often the backward of each block reads a parameter or a tensor that a forward wrote; `names` has the blocks of layers."""
    written = {step.base(output) for op in step.ops if not op.phase.backward for output in op.outputs}
    counts = dict.fromkeys(names.values(), 0)
    for work in works:
        block = names.get(step.ops[work.ops[0]].layer)
        if block is not None and step.ops[work.ops[0]].phase.backward:
            read = {step.base(tensor) for op in work.ops for tensor in step.ops[op].inputs}
            counts[block] += sum(base in written or step.tensors[base].role.resident for base in read)
    return counts


def issued_works(works: Sequence[Work], checkpointed: Sequence[Block]) -> list[IssuedWork]:
    """A step's Works as they are issued: a checkpointed block's forward once more, right before its backward begins."""
    packed: dict[int, float] = {}
    repeated: dict[int, list[IssuedWork]] = {}
    for block in checkpointed:
        share = block.saved_tensors / len(block.forward)
        packed |= dict.fromkeys(block.forward, share)
        repeated.setdefault(block.backward, []).extend(IssuedWork(works[position], unpacked=share) for position in block.forward)
    issued: list[IssuedWork] = []
    for position, work in enumerate(works):
        issued += [*repeated.get(position, ()), IssuedWork(work, packed=packed.get(position, 0.0))]
    return issued


def block_choices(
    problem: Problem, blocks: Sequence[Block], seconds_of: Callable[[Sequence[Block]], float] | None = None
) -> list[BlockChoice]:
    """No block checkpointed, then one more each time, until all are.

    `seconds_of` has the time of a step with these blocks checkpointed, where that is more than the sum of its parts because a host
    issues them. Then the blocks are also taken in the order of their calls and saved tensors for each byte.
    """
    by_device = sorted(blocks, key=lambda block: (block.forward_s / max(block.bytes, 1), -block.backward))
    if seconds_of is None:
        return _in_order(problem, by_device, None)
    by_host = sorted(blocks, key=lambda block: ((len(block.forward) + block.saved_tensors) / max(block.bytes, 1), -block.backward))
    choices = _in_order(problem, by_device, seconds_of)
    return choices if by_host == by_device else [*choices, *_in_order(problem, by_host, seconds_of)[1:]]


def _in_order(problem: Problem, order: Sequence[Block], seconds_of: Callable[[Sequence[Block]], float] | None) -> list[BlockChoice]:
    plain_s = 0.0 if seconds_of is None else seconds_of(())
    choices: list[BlockChoice] = []
    for count in range(len(order) + 1):
        chosen = order[:count]
        saved, other_bytes = list(problem.saved), list(problem.other_bytes)
        decisions: list[Decision] = ["keep"] * len(saved)
        recompute_at: list[int | None] = [None] * len(saved)
        for block in chosen:
            for position in range(block.forward_end + 1, block.backward + 1):
                other_bytes[position] += block.input_bytes
            for number, index in enumerate(block.saved):
                again_s = 0.0 if number else block.forward_s  # the whole block is one call
                saved[index] = replace(saved[index], recompute_s=again_s, sources=())
                decisions[index], recompute_at[index] = "recompute", block.backward
        nothing = (None,) * len(saved)
        choice = Choice(decisions=tuple(decisions), leave_by=nothing, fetch_at=nothing, recompute_at=tuple(recompute_at))
        choice = with_cost(replace(problem, saved=tuple(saved), other_bytes=tuple(other_bytes)), choice)
        if seconds_of is not None and chosen:
            choice = replace(choice, time_s=choices[0].choice.time_s + seconds_of(chosen) - plain_s)
        choices.append(
            BlockChoice(
                checkpointed=tuple(block.name for block in chosen),
                choice=choice,
                recomputed_bytes=sum(block.bytes for block in chosen),
            )
        )
    return choices
