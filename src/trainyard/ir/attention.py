"""The form of each attention of a step, read from its ops.

The ops of a fused kernel are named after it (`flash_attention.scores`; `causal_flash_attention.scores` where half of the scores is
masked). Separate products are `math` where torch takes its unfused path, `eager` where the model writes them out itself, and `sdpa`
where the step leaves the kernel open: a GPU fuses them, every other device computes them one by one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainyard.ir.ops import Copy, ElementWise, Reduction

if TYPE_CHECKING:
    from trainyard.ir.step import Op, Step

MATH_SOFTMAX = "math_attention.softmax"
OPEN_SOFTMAX = "_safe_softmax"  # torch's name; no model calls it, only its scaled_dot_product_attention does
DEPTH = 8  # ops between a product and the softmax of its scores: scale, mask, casts, dropout

_NAMED = re.compile(r"(causal_)?(\w+)_attention\.\w+")


def kernel_of(op: Op) -> tuple[str, bool] | None:
    """The form of the attention that an op belongs to by its name, and whether it is causal.

    >>> from trainyard.ir import MatMul, Op
    >>> kernel_of(Op(body=MatMul(8, 8, 4), name="causal_flash_attention.scores"))
    ('flash', True)
    """
    return kernel_named(op.name)


def kernel_named(name: str) -> tuple[str, bool] | None:
    """The form of an attention by the name of one of its ops, and whether it is causal."""
    named = _NAMED.fullmatch(name)
    return None if named is None else (named[2], named[1] is not None)


def attention_forms(step: Step) -> dict[str, str]:
    """For each layer with an attention its form: flash, efficient, cudnn, flex, math, sdpa or eager."""
    forms: dict[str, dict[str, None]] = {}
    for index, op in enumerate(step.ops):
        if not op.phase.backward and (form := _form(step, index, op)):
            forms.setdefault(op.layer, {})[form] = None
    return {layer: " and ".join(own) for layer, own in forms.items()}


def attention_sentence(forms: Mapping[str, str]) -> str:
    """How many layers have which form; '' without attention.

    >>> attention_sentence({"0": "flash", "1": "flash", "2": "math"})
    'attention: flash in 2 layers, math in 1 layer'
    """
    counts = Counter(forms.values())
    parts = (f"{form} in {count} layer{'s' if count > 1 else ''}" for form, count in counts.items())
    return f"attention: {', '.join(parts)}" if counts else ""


def _form(step: Step, index: int, op: Op) -> str:
    if op.name == OPEN_SOFTMAX:
        return "sdpa"
    named = kernel_of(op)
    if named is not None:
        return named[0]
    is_softmax = isinstance(op.body, Reduction) and op.body.function == "softmax"
    return "eager" if is_softmax and _of_products(step, index, back=True) and _of_products(step, index, back=False) else ""


def _of_products(step: Step, start: int, *, back: bool) -> bool:
    """Whether a product of two activations is reached from a softmax over element-wise ops and copies."""
    reached, frontier = {start}, [start]
    for _ in range(DEPTH):
        following: list[int] = []
        for index in frontier:
            for other in step.dependencies[index] if back else step.dependents[index]:
                op = step.ops[other]
                if op.is_product and not any(op.letters):
                    return True
                if other not in reached and isinstance(op.body, ElementWise | Copy):
                    reached.add(other)
                    following.append(other)
        frontier = following
    return False
