"""Bodies of ops: checks of their sizes, their MACs, and `dimensions` with its inverse."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadInput
from trainyard.ir import Collective, Convolution, Copy, ElementWise, Gather, MatMul, Reduction, Update
from trainyard.ir.ops import dimensions, with_dimensions

sizes = st.integers(1, 20)


@st.composite
def convolutions(draw: st.DrawFn) -> Convolution:
    rank = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 3))
    per_axis = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(rank))  # noqa: E731
    kernel, dilation, padding = per_axis(1, 3), per_axis(1, 2), per_axis(0, 2)
    size = tuple(d * (k - 1) + 1 + draw(st.integers(0, 6)) for k, d in zip(kernel, dilation, strict=True))
    return Convolution(
        batch=draw(sizes),
        in_channels=groups * draw(st.integers(1, 4)),
        out_channels=groups * draw(st.integers(1, 4)),
        size=size,
        kernel=kernel,
        stride=per_axis(1, 3),
        padding=padding,
        dilation=dilation,
        groups=groups,
        product=draw(st.sampled_from(["forward", "grad_input", "grad_weight"])),
    )


bodies = st.one_of(
    st.builds(MatMul, sizes, sizes, sizes, sizes),
    convolutions(),
    st.builds(ElementWise, st.just("relu"), sizes, sizes),
    st.builds(Reduction, st.just("softmax"), sizes, sizes, sizes),
    st.builds(Gather, sizes, sizes, sizes, st.booleans()),
    st.builds(Copy, st.just("cat"), sizes),
    st.builds(Update, st.just("Adam"), sizes, sizes),
    st.builds(Collective, st.just("all_reduce"), sizes, sizes),
)


@given(bodies)
def test_with_dimensions_is_the_inverse_of_dimensions(body: object) -> None:
    numbers = dimensions(body)  # type: ignore[arg-type]
    assert with_dimensions(body, numbers) == body  # type: ignore[arg-type]
    grown = with_dimensions(body, tuple(n + 1 for n in numbers)) if not isinstance(body, Convolution) else body  # type: ignore[arg-type]
    if grown is not body:
        assert dimensions(grown) == tuple(n + 1 for n in numbers)


@pytest.mark.parametrize("bad", [0, -1, 1.5, math.nan, True, "4", None])
@pytest.mark.parametrize("position", range(3))
def test_a_product_with_a_size_that_is_no_positive_integer_is_refused(bad: object, position: int) -> None:
    size: list[object] = [4, 5, 6]
    size[position] = bad
    with pytest.raises(BadInput, match="positive whole number"):
        MatMul(*size)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": (2, 2)}, "does not fit the input"),
        ({"stride": (0, 1)}, "stride"),
        ({"padding": (-1, 0)}, "padding"),
        ({"groups": 2}, "groups=2"),
        ({"kernel": (3,)}, "kernel has 1 numbers for 2"),
        ({"batch": 0}, "batch must be"),
    ],
)
def test_a_convolution_with_inconsistent_geometry_is_refused(change: dict, message: str) -> None:
    good = {"batch": 1, "in_channels": 3, "out_channels": 4, "size": (8, 8), "kernel": (3, 3)}
    with pytest.raises(BadInput, match=message):
        Convolution(**{**good, **change})


@given(convolutions())
def test_macs_count_every_multiplication_of_the_loop_nest(conv: Convolution) -> None:
    loops = conv.batch * conv.out_channels * math.prod(conv.out_size) * (conv.in_channels // conv.groups) * math.prod(conv.kernel)
    assert conv.macs == loops
    assert conv.as_product("grad_weight").macs == loops


@given(convolutions())
def test_the_output_size_is_the_number_of_window_positions(conv: Convolution) -> None:
    for extent, kernel, stride, pad, dilation, out in zip(
        conv.size, conv.kernel, conv.stride, conv.padding, conv.dilation, conv.out_size, strict=True
    ):
        reach = dilation * (kernel - 1) + 1
        assert out == len(np.arange(0, extent + 2 * pad - reach + 1, stride))
