"""Which mask an operand of a product has: one of its own name, one of its letter, or a part of a recurrent layer's sequence."""

from __future__ import annotations

from trainyard.errors import UnknownName
from trainyard.ir import Masks, MaskSource, Op, Step, TensorKey
from trainyard.ir.protocols import KnowsDensity, ListsMasks
from trainyard.ir.step import letter_of, tensor_letter
from trainyard.masks import recurrent_masks
from trainyard.masks.views import unpacked


def share(step: Step, op: Op, masks: Masks, side: int) -> float:
    """The share of an operand's elements that are not zero; 1 where it has no mask."""
    letter = letter_of(step, op, side)
    mask = mask_of(step, op, side, letter, masks) if letter else None
    if mask is None:
        return 1.0
    source, key = mask
    return source.density(key) if isinstance(source, KnowsDensity) else float(unpacked(source, key).mean())


def mask_of(step: Step, op: Op, side: int, letter: str, masks: Masks) -> tuple[MaskSource, TensorKey] | None:
    """The source and key of an operand's mask, None where it has none."""
    names = (tensor_letter(step, op, side), letter)
    for name in names if isinstance(masks, ListsMasks) else names[::-1]:
        if name and recorded(masks, (op.layer, op.call, name)):
            return masks, (op.layer, op.call, name)
    return recurrent_masks.mask_of(step, op, side, letter, masks, lambda key: recorded(masks, key))


def recorded(masks: Masks, key: TensorKey) -> bool:
    """Whether a source has this mask: recording may be limited to some layers."""
    if not isinstance(masks, ListsMasks):
        try:
            unpacked(masks, key)
        except UnknownName:
            return False
        return True
    layer, call, letter = key
    if letter == "W":  # all calls of a layer have one weight
        return any((layer, earlier, letter) in masks.specs for earlier in range(call, -1, -1))
    return key in masks.specs
