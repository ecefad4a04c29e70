"""Blocks of layers that run slice by slice (`reuse="slices"`), beside tensors that stay between layers as a whole.

The blocks are chosen first, then the tensors that stay between the Works outside them, which share the scratchpad with blocks that
they pass. The whole is taken only where it is better than whole tensors alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from trainyard.devices.accelerator.between import WorkCosts
from trainyard.devices.accelerator.costs import Costing
from trainyard.errors import BadInput
from trainyard.ir import Step, Work
from trainyard.mapping.between_layers.accesses import Tensor, tensors_of
from trainyard.mapping.between_layers.block_search import BlockSearch
from trainyard.mapping.between_layers.search import Choice, Cost, choose, total
from trainyard.mapping.between_layers.slices import Block, Blocks, Part
from trainyard.mapping.demand import OnChip, Policy, Residency, Slices
from trainyard.mapping.profile import works

NOTHING = OnChip()


class SlicedCosts:
    """Costs of Works for whole batches and for slices of them; `parts` has the Works of the blocks that are chosen."""

    def __init__(self, step: Step, ordered: Sequence[Work], policy: Policy, costing: Costing) -> None:
        self.whole = WorkCosts(step, ordered, policy, costing)
        self.step, self.works, self.policy, self.costing = step, ordered, policy, costing
        self.by_slices: dict[int, WorkCosts] = {}
        self.parts: dict[int, tuple[int, tuple[Part, ...]]] = {}

    def of(self, slices: int) -> WorkCosts:
        if slices not in self.by_slices:
            step = self.step.rebatch(self.step.batch // slices)
            self.by_slices[slices] = WorkCosts(step, self.works, self.policy, self.costing)
        return self.by_slices[slices]

    def slice_cost(self, slices: int, work: int, on_chip: OnChip) -> Cost | None:
        return self.of(slices).cost(work, on_chip)

    def name(self, work: int) -> Hashable:
        return self.whole.demand(work, NOTHING)

    def cost(self, work: int, state: OnChip) -> Cost | None:
        if work not in self.parts:
            return self.whole.cost(work, state)
        slices, parts = self.parts[work]
        costs = [self.of(slices).cost(work, _beside(part, state)) for part in parts]
        feasible = [cost for cost in costs if cost is not None]
        if len(feasible) < len(costs):
            return None
        return total(Cost(part.times * cost.cycles, part.times * cost.bytes) for part, cost in zip(parts, feasible, strict=True))

    def same(self, work: int, state: OnChip) -> tuple[int, int]:
        if work not in self.parts:
            return self.whole.same(work, state)
        slices, parts = self.parts[work]
        ranges = [(*self.of(slices).same(work, _beside(part, state)), part.on_chip.occupied_bytes) for part in parts]
        return max(0, *(low - own for low, _, own in ranges)), min(high - own for _, high, own in ranges)


def _beside(part: Part, state: OnChip) -> OnChip:
    """A part of a block, with what others keep on chip while it runs."""
    return part.on_chip._replace(occupied_bytes=part.on_chip.occupied_bytes + state.occupied_bytes)


def sliced_between(
    step: Step, policy: Policy, costing: Costing, scratchpad_bytes: int, whole: Choice
) -> tuple[Policy, Sequence[Block]] | None:
    """The policy with blocks of layers that run slice by slice, and these; None where whole tensors (`whole`) are not slower."""
    ordered = works(step, policy)
    if not step.rebatchable or step.batch < 2 or not _keeps_numbers(step):
        return None
    tensors, costs = tensors_of(step, ordered, policy), SlicedCosts(step, ordered, policy, costing)
    blocks = Blocks(step, ordered, tensors)
    search = BlockSearch(blocks, costs, step.batch, whole.costs, scratchpad_bytes)
    chosen = search.best()
    for block in chosen:
        for work, parts in blocks.parts(block, blocks.uses(block.first, block.last) or []).items():
            costs.parts[work] = block.slices, parts
    if not chosen:
        return None
    choice = choose([_outside(tensor, costs.parts) for tensor in tensors], len(ordered), costs, scratchpad_bytes)
    if not choice.after < whole.after:
        return None
    by_work: dict[tuple[int, ...], OnChip | Slices] = {ordered[work].ops: state for work, state in choice.states.items()}
    for work, (slices, parts) in costs.parts.items():
        state = choice.states.get(work, NOTHING)
        by_work[ordered[work].ops] = Slices(costs.of(slices).step, tuple((part.times, _beside(part, state)) for part in parts))
    return replace(policy, residency=Residency(by_work)), chosen


def _keeps_numbers(step: Step) -> bool:
    """Whether a smaller batch has the same ops and tensors."""
    try:
        small = step.rebatch(1)
    except BadInput:
        return False
    return len(small.ops) == len(step.ops) and len(small.tensors) == len(step.tensors)


def _outside(tensor: Tensor, parts: Mapping[int, object]) -> Tensor:
    """A tensor whose accesses inside blocks are those of DRAM."""
    accesses = tuple(replace(access, in_dram=access.in_dram or access.work in parts) for access in tensor.accesses)
    return replace(tensor, accesses=accesses)
