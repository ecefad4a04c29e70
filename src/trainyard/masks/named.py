"""Zeros by name, as the command line takes them: a file of a recorded run, or `sparsity(...)` for generated ones."""

from __future__ import annotations

import os

from trainyard.errors import BadInput
from trainyard.ir import Step
from trainyard.masks.generated import GeneratedMasks, parse
from trainyard.masks.recorded import Masks


def load(text: str | None, step: Step, at: int | None = None) -> Masks | GeneratedMasks | None:
    """Masks for a step; `at` is the recorded training step that is looked at, the first by default."""
    if at is not None and (text is None or _generated(text)):
        raise BadInput(f"--at {at} chooses a training step of a masks file: give one with --masks run.safetensors")
    if text is None:
        return None
    if _generated(text):
        return parse(text, step)
    masks = Masks.open(text)
    return masks if at is None else masks.at(at)


def _generated(text: str) -> bool:
    """No file, but a call: a slip in it is left to the parser to explain."""
    return ("(" in text or text.startswith("sparsity")) and not os.path.exists(text)
