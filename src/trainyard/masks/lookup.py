"""Which mask an operand of a product has: under its own name, under its letter, or as a part of a recurrent layer's."""

from __future__ import annotations

from collections.abc import Callable

from trainyard.errors import UnknownName
from trainyard.ir import Masks, MaskSource, Op, Step, TensorKey
from trainyard.ir.letters import letter_of, own_name
from trainyard.masks import recurrent_masks
from trainyard.masks.views import unpacked


def share(step: Step, op: Op, masks: Masks, side: int) -> float:
    """Of an operand's elements, those that are not zero; 1 where no mask is known."""
    letter = letter_of(step, op, side)
    found = mask_of(step, op, side, letter, masks) if letter else None
    if found is None:
        return 1.0
    source, key = found
    counted: Callable[[TensorKey], float] | None = getattr(source, "density", None)
    return float(unpacked(source, key).mean()) if counted is None else counted(key)


def mask_of(step: Step, op: Op, side: int, letter: str, masks: Masks) -> tuple[MaskSource, TensorKey] | None:
    """Where an operand's zeros are: under its own name, under its letter, or as a part of what a recurrent layer left."""
    names = (own_name(step, op, side), letter)
    for name in names if hasattr(masks, "specs") else names[::-1]:
        if name and recorded(masks, (op.layer, op.call, name)):
            return masks, (op.layer, op.call, name)
    return recurrent_masks.mask_of(step, op, side, letter, masks, lambda key: recorded(masks, key))


def recorded(masks: Masks, key: TensorKey) -> bool:
    """Recording may be limited to some layers. Asked of the list of masks where there is one: missing ones are many."""
    listed = getattr(masks, "specs", None)
    if listed is None:
        try:
            unpacked(masks, key)
        except UnknownName:
            return False
        return True
    layer, call, letter = key
    if letter == "W":  # one weight for all calls of a layer
        return any((layer, earlier, letter) in listed for earlier in range(call, -1, -1))
    return key in listed
