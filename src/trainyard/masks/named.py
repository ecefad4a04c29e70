"""Masks from a text of the command line: the file of a recorded run, or `sparsity(...)` for generated ones."""

from __future__ import annotations

import os

from trainyard.errors import BadInput
from trainyard.ir import Step
from trainyard.masks.generated import GeneratedMasks, parse
from trainyard.masks.recorded import Masks


def load(text: str | None, step: Step, at: int | None = None, seed: int | None = None) -> Masks | GeneratedMasks | None:
    """Masks for a step; `at` chooses a recorded training step (the first by default), `seed` seeds generated masks without one."""
    if at is not None and (text is None or _is_generated(text)):
        raise BadInput(f"--at {at} chooses a training step of a masks file: give one with --masks run.safetensors")
    if text is None:
        return None
    if _is_generated(text):
        return parse(text, step, seed)
    if seed is not None:
        raise BadInput(f"seed={seed}: the masks of {text} are recorded, not drawn at random")
    masks = Masks.open(text)
    return masks if at is None else masks.at(at)


def _is_generated(text: str) -> bool:
    """Whether a text is a call and no file; the parser explains a mistake in it."""
    return ("(" in text or text.startswith("sparsity")) and not os.path.exists(text)
