"""Masks as the streams that a dot-product tile reads: one row per output along one side, `lanes` bits per step.

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
from trainyard.masks.gather import gather_streams
from trainyard.masks.stream_geometry import Layout, Side, dense_layout, layout, layout_of, order, stream_access, words
from trainyard.masks.views import Bits, Range, geometry_letter, matrix

Words = npt.NDArray[np.uint64]
__all__ = ["Layout", "Side", "dense_layout", "layout", "order", "plain", "streams", "words"]


def plain(view: MaskView, side: Side, lanes: int, rows: Range) -> Words:
    """The same streams by reordering the whole matrix: the reference that the compiled loops are tested against."""
    shape = layout(view, side, lanes)
    bits = matrix(view)
    bits = (bits if side == "a" else bits.T)[rows[0] : rows[1]]
    bits_in_order: Bits = np.zeros((shape.distinct_segments, rows[1] - rows[0], shape.words * 64), dtype=np.bool_)
    for segment, elements in enumerate(order(view, side, lanes)[: shape.distinct_segments]):
        bits_in_order[segment, :, : len(elements)] = bits[:, elements] & (elements >= 0)
    return np.packbits(bits_in_order, axis=-1, bitorder="little").view(np.uint64)


def streams(view: MaskView, side: Side, lanes: int, rows: Range) -> Words:
    """The packed streams of some rows, counted from the view's cut: [distinct segments, rows, words]."""
    access = stream_access(view, side)
    stream_layout = layout_of(view, access, lanes)
    if not 0 <= rows[0] < rows[1] <= stream_layout.rows:
        raise BadInput(f"layer {view.key[0]!r}: streams {rows} lie outside the view's {stream_layout.rows}")
    if geometry_letter(view) == "G" and view.dilated and access.positions:
        return plain(view, side, lanes, rows)  # no product reduces over the positions of dilated gradients
    return gather_streams(view, access, stream_layout, rows)
