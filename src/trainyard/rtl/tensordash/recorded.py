"""Zeros of the shipped training runs as inputs of TensorDash's designs: blocks of streams that a tile of the simulator reads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from trainyard.devices.accelerator.masked_tiles import viewer
from trainyard.ir import MaskView
from trainyard.ir.ops import Convolution, MatMul
from trainyard.mapping.lowering import lower
from trainyard.masks.streams import layout, streams
from trainyard.papers.tensordash.models import recorded

Blocks = Iterator[npt.NDArray[np.bool_]]


def recorded_blocks(model: str, *, lanes: int, rows: int, most_steps: int, seed: int = 0) -> Blocks:
    """Without end: `rows` neighbouring streams of a random product of the model, [rows, steps, lanes], true where not zero.

    `model` is the paper's abbreviation, such as SQZNet. The operand is A for A*W, G for W*G, A for A*G. Longer streams are cut to
    `most_steps` at a random place.
    """
    subject, draw = recorded(model), np.random.default_rng(seed)
    products = sorted(subject.products)
    while True:
        op = subject.step.ops[products[draw.integers(len(products))]]
        assert isinstance(op.body, MatMul | Convolution)
        body = lower(op.body, "col2im").product if isinstance(op.body, Convolution) else op.body
        view = viewer(subject.step, op, "col2im", subject.masks, 0)(0, (0, body.M), (0, body.K))
        if not isinstance(view, MaskView):
            continue
        shape = layout(view, "a", lanes)
        first = int(draw.integers(max(1, shape.rows - rows + 1)))
        words = streams(view, "a", lanes, (first, min(first + rows, shape.rows)))
        segment = int(draw.integers(len(words)))
        steps = shape.steps[segment]
        bits = np.unpackbits(np.ascontiguousarray(words[segment]).view(np.uint8), axis=1, bitorder="little")
        block = np.zeros((rows, steps, lanes), np.bool_)
        block[: len(bits)] = bits[:, : steps * lanes].reshape(len(bits), steps, lanes)
        start = int(draw.integers(max(1, steps - most_steps + 1)))
        yield block[:, start : start + most_steps]
