"""Bands of rows against windows that are looked at one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.ir import Convolution, Copy, ElementWise, MatMul, Op, Reduction
from trainyard.ir.ops import backward_table, forward_table
from trainyard.mapping.bands import Band, Window, banded


@st.composite
def lines(draw: st.DrawFn) -> Convolution:
    """A convolution along one axis."""
    kernel, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    padding = draw(st.integers(0, kernel - 1))
    size = draw(st.integers(max(1, dilation * (kernel - 1) + 1 - 2 * padding), 14))
    stride = draw(st.integers(1, 3))
    return Convolution(
        batch=1, in_channels=1, out_channels=1, size=(size,), kernel=(kernel,), stride=(stride,), padding=(padding,),
        dilation=(dilation,),
    )  # fmt: skip


def window_of(body: Convolution, backward: bool = False) -> Window:
    padding = (body.padding[0], body.padding[0])
    return Window("backward" if backward else "forward", body.kernel[0], body.stride[0], body.dilation[0], padding)


@given(body=lines(), data=st.data())
def test_a_band_of_results_needs_all_rows_under_its_windows(body: Convolution, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, body.out_size[0] - 1))
    last = data.draw(st.integers(first + 1, body.out_size[0]))
    under = forward_table(body, 0)[first:last]
    begin, end = window_of(body).needed(first, last, body.size[0])
    assert 0 <= begin <= end <= body.size[0]
    seen = under[under >= 0]
    if len(seen):
        assert begin <= seen.min()
        assert seen.max() < end
    if body.dilation[0] == 1 and len(seen):
        assert (begin, end) == (seen.min(), seen.max() + 1)


@given(body=lines(), data=st.data())
def test_a_band_of_input_gradients_needs_all_gradients_whose_windows_reach_it(body: Convolution, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, body.size[0] - 1))
    last = data.draw(st.integers(first + 1, body.size[0]))
    reaching = backward_table(body, 0)[first:last]
    begin, end = window_of(body, backward=True).needed(first, last, body.out_size[0])
    seen = reaching[reaching >= 0]
    if len(seen):
        assert begin <= seen.min()
        assert seen.max() < end
    if body.dilation[0] == 1 and body.stride[0] == 1:
        assert (begin, end) == (seen.min(), seen.max() + 1)


@given(body=lines(), data=st.data())
def test_gradients_up_to_a_row_add_something_up_to_the_last_row_under_its_window(body: Convolution, data: st.DataObject) -> None:
    last = data.draw(st.integers(1, body.out_size[0]))
    under = forward_table(body, 0)[:last]
    reached = window_of(body, backward=True).reached(last, body.size[0])
    assert reached > under.max()
    if body.padding[0] == 0:
        assert reached == under.max() + 1


def test_many_bands_at_once_are_those_one_by_one() -> None:
    for window in (Window(kernel=3, stride=2, padding=(0, 1)), Window("backward", 3, 2, 1, (0, 1))):
        firsts, lasts = np.arange(0, 12, 3), np.arange(3, 15, 3)
        begins, ends = window.needed(firsts, lasts, 20)
        one_by_one = [window.needed(int(first), int(last), 20) for first, last in zip(firsts, lasts, strict=True)]
        assert list(zip(begins.tolist(), ends.tolist(), strict=True)) == one_by_one
        assert window.reached(lasts, 20).tolist() == [window.reached(int(last), 20) for last in lasts]


def test_a_padding_that_is_not_known_needs_the_rows_of_every_padding() -> None:
    for first, last in ((0, 2), (3, 5), (8, 10)):
        every = [Window(kernel=3, stride=2, padding=(pad, pad)).needed(first, last, 20) for pad in (0, 1)]
        begin, end = Window(kernel=3, stride=2, padding=(0, 1)).needed(first, last, 20)
        assert (begin, end) == (min(one for one, _ in every), max(one for _, one in every))


BAND = Band(rows=3, of=12, product_rows=5, tensors=((7, 4, 16), (8, 2, 12)))


def test_a_band_moves_its_rows_of_tensors_with_rows_and_all_of_others() -> None:
    assert (BAND.elements(7, 160), BAND.elements(8, 24), BAND.elements(9, 50)) == (40, 4, 50)


# fmt: off
BODIES = [
    (ElementWise("add", 240, 2),        ElementWise("add", 60, 2)),
    (Copy("cat", 240),                  Copy("cat", 60)),
    (Reduction("max_pool", 240, 48),    Reduction("max_pool", 60, 12)),
    (Reduction("sum", 240, 48),         Reduction("sum", 60, 48)),          # bands add up to one sum
    (Reduction("max_pool", 240, 5),     Reduction("max_pool", 60, 5)),      # no result for each row
]
# fmt: on


@pytest.mark.parametrize(("whole", "part"), BODIES)
def test_an_op_on_a_band_has_its_share_of_the_elements(whole: ElementWise, part: ElementWise) -> None:
    op = Op(body=whole, name="op", slope=())
    assert BAND.op(op, "col2im") == replace(op, body=part)


def test_a_product_of_matrices_has_no_rows_of_images() -> None:
    with pytest.raises(AssertionError, match="linear has no rows"):
        BAND.op(Op(body=MatMul(4, 4, 4), name="linear"), "col2im")


@given(body=lines(), rows=st.integers(1, 6))
def test_a_convolution_on_a_band_has_the_rows_of_the_band_and_no_padding_along_them(body: Convolution, rows: int) -> None:
    assert banded(body, rows, "col2im").out_size == (rows,)
    assert banded(body, rows, "col2im").padding == (0,)
    assert banded(body.as_product("grad_input"), rows, "col2im").out_size == (rows,)


def test_a_band_of_dilated_gradients_has_rows_of_dx_and_windows_over_its_edges() -> None:
    image = Convolution(batch=2, in_channels=3, out_channels=5, size=(8, 9), kernel=(3, 3), padding=(1, 1), dilation=(2, 1))
    body = banded(image.as_product("grad_input"), 4, "dilated")
    assert (body.size, body.padding) == ((4, 9), (4, 1))
    assert banded(image, 4, "dilated").size == (8, 9)
    assert BAND.op(Op(body=image, name="conv"), "col2im").body == banded(image, 5, "col2im")
