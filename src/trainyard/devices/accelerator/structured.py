"""A weight of n:m structure on an array that has multipliers for it: fewer steps, and bytes of values and places alone.

Along the reduction of the forward product a mask is so by its making; dX reduces along the other axis and gains only where the mask
is transposable as well. dW does not read the weight.
"""

from __future__ import annotations

from dataclasses import replace

from trainyard.devices.accelerator.masked_tiles import TileCosts, Viewer, viewer
from trainyard.hardware.formats.structured import stored_bytes
from trainyard.ir import Array, Masks, Op, Step, Structured
from trainyard.ir.protocols import KnowsStructure, SaysStructured
from trainyard.ir.step import letter_of
from trainyard.mapping.demand import ProductDemand
from trainyard.mapping.lowering import GradInput
from trainyard.masks.lookup import mask_of


def pattern_of(step: Step, op: Op, side: int, masks: Masks) -> Structured | None:
    """The structure of an operand along the reduction of its product, where its masks know of one."""
    letter = letter_of(step, op, side)
    mask = mask_of(step, op, side, letter, masks) if letter == "W" else None
    if mask is None:
        return None
    source, key = mask
    return source.structure(key, op.phase) if isinstance(source, KnowsStructure) else None


def patterns(array: Array, step: Step, op: Op, masks: Masks) -> tuple[Structured | None, Structured | None]:
    """Of both operands; none on an array without such multipliers, and one operand at most has one."""
    if not (isinstance(array, SaysStructured) and array.structured):
        return None, None
    left = pattern_of(step, op, 0, masks)
    return (left, None) if left is not None else (None, pattern_of(step, op, 1, masks))


def tile_cost(array: Array, step: Step, op: Op, grad_input: GradInput, masks: Masks, events: dict[str, float]) -> TileCosts:
    """What the tiles of one op cost; their events are added up in `events`."""
    structures = patterns(array, step, op, masks)
    left, right = (_shown(structures[side]) or viewer(step, op, grad_input, masks, side) for side in (0, 1))
    return TileCosts(array, left, right, events)


def _shown(pattern: Structured | None) -> Viewer | None:
    return None if pattern is None else lambda item, rows, columns: pattern


def stored(array: Array, step: Step, op: Op, demand: ProductDemand, masks: Masks) -> ProductDemand:
    """The demand with a structured operand's bytes: in DRAM and on chip its values and places."""
    left, right = patterns(array, step, op, masks)
    problem, (a, b, _) = demand.problem, demand.element_bytes
    if left is not None:
        problem = replace(problem, a_bytes=stored_bytes(problem.a_bytes // a, a, left), a_sram_bytes=None)
    if right is not None:
        problem = replace(problem, b_bytes=stored_bytes(problem.b_bytes // b, b, right), b_sram_bytes=None)
    return replace(demand, problem=problem)
