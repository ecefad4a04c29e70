"""Which mask an operand of a product has: under its own name, under its letter, or as a part of a recurrent layer's."""

from __future__ import annotations

from trainyard.errors import UnknownName
from trainyard.ir import Masks, MaskSource, Op, Step, TensorKey
from trainyard.ir.letters import letter_of, own_name
from trainyard.ir.protocols import KnowsDensity, ListsMasks
from trainyard.masks import recurrent_masks
from trainyard.masks.views import unpacked


def share(step: Step, op: Op, masks: Masks, side: int) -> float:
    """Of an operand's elements, those that are not zero; 1 where no mask is known."""
    letter = letter_of(step, op, side)
    found = mask_of(step, op, side, letter, masks) if letter else None
    if found is None:
        return 1.0
    source, key = found
    return source.density(key) if isinstance(source, KnowsDensity) else float(unpacked(source, key).mean())


def mask_of(step: Step, op: Op, side: int, letter: str, masks: Masks) -> tuple[MaskSource, TensorKey] | None:
    """Where an operand's zeros are: under its own name, under its letter, or as a part of what a recurrent layer left."""
    names = (own_name(step, op, side), letter)
    for name in names if isinstance(masks, ListsMasks) else names[::-1]:
        if name and recorded(masks, (op.layer, op.call, name)):
            return masks, (op.layer, op.call, name)
    return recurrent_masks.mask_of(step, op, side, letter, masks, lambda key: recorded(masks, key))


def recorded(masks: Masks, key: TensorKey) -> bool:
    """Recording may be limited to some layers. Asked of the list of masks where there is one: missing ones are many."""
    if not isinstance(masks, ListsMasks):
        try:
            unpacked(masks, key)
        except UnknownName:
            return False
        return True
    layer, call, letter = key
    if letter == "W":  # one weight for all calls of a layer
        return any((layer, earlier, letter) in masks.specs for earlier in range(call, -1, -1))
    return key in masks.specs
