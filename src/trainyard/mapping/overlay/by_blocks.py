"""A step's repeated blocks, kept or checkpointed as a whole: time and memory for any number of checkpointed blocks.

A block is the deepest part of the model whose path ends in a number, that holds at least two layers, and whose inner layers
occur under another number too (`encoder.layer.3`, `features.5.2`), or are some of those of a block beside it. To checkpoint it
means to drop, after forward, what it saved except its results, to hold its inputs instead, and to compute its forward once more
right before its backward begins. Blocks that give the most bytes for a second are checkpointed first; of equal ones the
earlier, whose memory would be held the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainyard.ir import Step, Work
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
    forward_end: int
    backward: int
    """The last position of its forward, and the first of its backward."""


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
    forward_end: dict[str, int] = {}
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
            forward_end[block] = position
    inputs = _inputs(step, names)
    outside = {base for read in inputs.values() for base in read}
    held = {base for bases in paged.tensor_groups for base in bases}
    saved: dict[str, list[int]] = {}
    for index, (tensor, layer, bases) in enumerate(zip(problem.saved, paged.layers, paged.tensor_groups, strict=True)):
        block = names.get(layer)
        is_inner = block is not None and outside.isdisjoint(bases) and not paged.resident[index]
        if block in backward and is_inner and tensor.last_forward < backward[block] <= tensor.first_backward:
            saved.setdefault(block, []).append(index)
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
                forward_end=forward_end[name],
                backward=backward[name],
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


def block_choices(problem: Problem, blocks: Sequence[Block]) -> list[BlockChoice]:
    """No block checkpointed, then one more each time, until all are."""
    order = sorted(blocks, key=lambda block: (block.forward_s / max(block.bytes, 1), -block.backward))
    choices = []
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
        choices.append(
            BlockChoice(
                checkpointed=tuple(block.name for block in chosen),
                choice=with_cost(replace(problem, saved=tuple(saved), other_bytes=tuple(other_bytes)), choice),
                recomputed_bytes=sum(block.bytes for block in chosen),
            )
        )
    return choices
