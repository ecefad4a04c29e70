"""Masks as the streams that a dot-product tile reads: one row for each output along one side, `lanes` bits a step.

Of a product (M,K) x (K,N), side "a" has the M rows as streams, side "b" the N columns. The reduction K is laid out as the operands
lie in memory, channel innermost (TensorDash, Sec. III: channel, Y, X), so that a step holds consecutive channels of one tap:

| product               | K                | in the stream                                                         |
|-----------------------|------------------|-----------------------------------------------------------------------|
| forward               | channel * kernel | tap by tap, the channels of each padded to whole steps                |
| grad_input, "dilated" | out * kernel     | the same; the zeros of padding and stride dilation stand in it        |
| grad_input, "col2im"  | out              | flat                                                                  |
| grad_weight           | batch * position | one segment for each sample, positions in raster order, padded        |
| of matrices           | K                | flat                                                                  |

Nothing is promoted across the end of a segment. A tile that cuts K keeps its own elements, in this order.
Words are of 64 bits, the lowest first: bit step * lanes + lane of a row, with one empty word behind it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput
from trainyard.ir import MaskView
from trainyard.masks.gather import gathered
from trainyard.masks.stream_geometry import Layout, Side, dense_layout, layout, layout_of, order, reading, words
from trainyard.masks.views import Bits, Cut, matrix, place_of

Words = npt.NDArray[np.uint64]
__all__ = ["Layout", "Side", "dense_layout", "layout", "order", "plain", "streams", "words"]


def plain(view: MaskView, side: Side, lanes: int, rows: Cut) -> Words:
    """The same streams by way of the whole matrix: the twin of the compiled loops."""
    shape = layout(view, side, lanes)
    bits = matrix(view)
    bits = (bits if side == "a" else bits.T)[rows[0] : rows[1]]
    found: Bits = np.zeros((shape.distinct_segments, rows[1] - rows[0], shape.words * 64), dtype=np.bool_)
    for segment, places in enumerate(order(view, side, lanes)[: shape.distinct_segments]):
        found[segment, :, : len(places)] = bits[:, places] & (places >= 0)
    return np.packbits(found, axis=-1, bitorder="little").view(np.uint64)


def streams(view: MaskView, side: Side, lanes: int, rows: Cut) -> Words:
    """[distinct segments, rows, words]: the packed streams of some rows, counted from the view's cut.

    Memory is the result's, and the packed bits of the tensors asked for last.
    """
    found = reading(view, side)
    shape = layout_of(view, found, lanes)
    if not 0 <= rows[0] < rows[1] <= shape.rows:
        raise BadInput(f"layer {view.key[0]!r}: streams {rows} lie outside the view's {shape.rows}")
    if place_of(view) == "G" and view.dilated and found.positions:
        return plain(view, side, lanes, rows)  # no product reduces over the positions of dilated gradients
    return gathered(view, found, shape, rows)
