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
from trainyard.mapping.between_layers.row_blocks import RowBlocks
from trainyard.mapping.between_layers.search import Choice, Cost, choose, total
from trainyard.mapping.between_layers.slices import Block, Blocks, Cutter, Part
from trainyard.mapping.demand import OnChip, Policy, Residency, Slices
from trainyard.mapping.profile import works

NOTHING = OnChip()


class SlicedCosts:
    """Costs of Works for whole batches and for slices of them; `parts` has the Works of the blocks that are chosen."""

    def __init__(self, step: Step, ordered: Sequence[Work], policy: Policy, costing: Costing) -> None:
        self.whole = WorkCosts(step, ordered, policy, costing)
        self.step, self.works, self.policy, self.costing = step, ordered, policy, costing
        self.by_slice: dict[Hashable, WorkCosts] = {}
        self.parts: dict[int, tuple[Part, ...]] = {}

    def of(self, part: Part) -> WorkCosts:
        """The costs of a part's samples and rows; equal demands share them."""
        key = part.samples, part.band
        if key not in self.by_slice:
            step = self.step.rebatch(part.samples)
            self.by_slice[key] = WorkCosts(step, self.works, self.policy, self.costing, part.band, self.whole.rooms)
        return self.by_slice[key]

    def part_cost(self, work: int, part: Part) -> Cost | None:
        return self.of(part).cost(work, part.on_chip)

    def name(self, work: int) -> Hashable:
        return self.whole.demand(work, NOTHING)

    def cost(self, work: int, state: OnChip) -> Cost | None:
        if work not in self.parts:
            return self.whole.cost(work, state)
        costs = []
        for part in self.parts[work]:
            cost = self.of(part).cost(work, _beside(part, state))
            if cost is None:
                return None
            costs.append(Cost(part.times * cost.cycles, part.times * cost.bytes))
        return total(costs)

    def same(self, work: int, state: OnChip) -> tuple[int, int]:
        if work not in self.parts:
            return self.whole.same(work, state)
        ranges = [(*self.of(part).same(work, _beside(part, state)), part.on_chip.occupied_bytes) for part in self.parts[work]]
        return max(0, *(low - own for low, _, own in ranges)), min(high - own for _, high, own in ranges)


def _beside(part: Part, state: OnChip) -> OnChip:
    """A part of a block, with what others keep on chip while it runs."""
    return part.on_chip._replace(occupied_bytes=part.on_chip.occupied_bytes + state.occupied_bytes)


def sliced_between(
    step: Step,
    policy: Policy,
    costing: Costing,
    scratchpad_bytes: int,
    whole: Choice,
) -> tuple[Policy, Sequence[Block]] | None:
    """The policy with blocks of layers that run slice by slice, and these; None where whole tensors (`whole`) are not slower."""
    ordered = works(step, policy)
    tensors, costs = tensors_of(step, ordered, policy), SlicedCosts(step, ordered, policy, costing)
    sample = step.rebatch(1) if step.rebatchable and _keeps_numbers(step) else step
    cutters: list[Cutter] = [RowBlocks(step, ordered, tensors, policy, sample)]
    if sample.batch < step.batch:
        cutters.insert(0, Blocks(step, ordered, tensors))
    search = BlockSearch(cutters, costs, whole.costs, scratchpad_bytes, costing.goal.effort)
    chosen = search.best()
    texts: dict[int, tuple[str, str]] = {}
    for block, cutter in chosen:
        text = cut_text(step.batch, block), layers_text(step, ordered, block)
        for work, parts in cutter.parts(block, cutter.uses(block.first, block.last) or []).items():
            costs.parts[work], texts[work] = parts, text
    ended = _whole_tensors(policy, ordered, whole) if search.ended else None
    if not chosen:
        return ended
    outside = [_outside(tensor, costs.parts) for tensor in tensors]
    choice = choose(outside, len(ordered), costs, scratchpad_bytes, costing.goal.effort)
    if not choice.after < whole.after:
        return ended
    by_work: dict[tuple[int, ...], OnChip | Slices] = {ordered[work].ops: state for work, state in choice.states.items()}
    for work, parts in costs.parts.items():
        state = choice.states.get(work, NOTHING)
        beside = tuple((part.times, _beside(part, state), part.band) for part in parts)
        by_work[ordered[work].ops] = Slices(costs.of(parts[0]).step, beside, *texts[work])
    return replace(policy, residency=Residency(by_work, search.ended or choice.ended)), [block for block, _ in chosen]


def _whole_tensors(policy: Policy, ordered: Sequence[Work], whole: Choice) -> tuple[Policy, Sequence[Block]]:
    """Whole tensors alone, where a search that was ended by its effort found nothing better."""
    by_work = {ordered[work].ops: state for work, state in whole.states.items()}
    return replace(policy, residency=Residency(by_work, ended=True)), []


def cut_text(batch: int, block: Block) -> str:
    """The slices of a block in words.

    >>> cut_text(8, Block(first=0, last=1, slices=4, weights=True, sums=False))
    '4 slices of 2 samples'
    >>> cut_text(8, Block(first=0, last=1, slices=56, weights=True, sums=False, bands=7))
    '7 bands of rows of each sample'
    """
    if block.bands:
        return f"{block.bands} bands of rows" + (" of each sample" if block.slices > block.bands else "")
    samples = batch // block.slices
    return f"{block.slices} slices of {samples} sample{'s' if samples > 1 else ''}"


def layers_text(step: Step, ordered: Sequence[Work], block: Block) -> str:
    """The first and the last layer of a block."""
    ends = (step.ops[ordered[work].ops[0]] for work in (block.first, block.last))
    return " to ".join(dict.fromkeys(op.layer or op.name for op in ends))


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
