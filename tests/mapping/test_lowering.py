"""Lowering: the three products of a convolution, really computed, against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from trainyard.errors import BadInput
from trainyard.ir import Convolution, MatMul
from trainyard.mapping.lowering import lower

CONVOLVE = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}


@st.composite
def convolutions(draw):
    rank = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    tuples = lambda low, high: st.tuples(*[st.integers(low, high)] * rank)  # noqa: E731
    try:
        return Convolution(
            batch=draw(st.integers(1, 2)),
            in_channels=groups * draw(st.integers(1, 2)),
            out_channels=groups * draw(st.integers(1, 3)),
            size=draw(tuples(2, 6)),
            kernel=draw(tuples(1, 3)),
            stride=draw(tuples(1, 3)),
            padding=draw(tuples(0, 2)),
            dilation=draw(tuples(1, 2)),
            groups=groups,
        )
    except BadInput:
        assume(False)


def tensors(body):
    random = np.random.default_rng(body.batch + sum(body.size))
    whole = lambda *shape: random.integers(-5, 6, shape).astype(np.float64)  # noqa: E731
    x = whole(body.batch, body.in_channels, *body.size)
    w = whole(body.out_channels, body.in_channels // body.groups, *body.kernel)
    dy = whole(body.batch, body.out_channels, *body.out_size)
    return x, w, dy


def by_torch(body, x, w, dy):
    x, w = torch.from_numpy(x).requires_grad_(), torch.from_numpy(w).requires_grad_()
    y = CONVOLVE[len(body.size)](x, w, None, body.stride, body.padding, body.dilation, body.groups)
    y.backward(torch.from_numpy(dy))
    return y.detach().numpy(), x.grad.numpy(), w.grad.numpy()


@pytest.mark.oracle
@given(body=convolutions())
def test_all_products_equal_torch(body):
    x, w, dy = tensors(body)
    y, dx, dw = by_torch(body, x, w, dy)
    assert (lower(body).execute(x, w) == y).all()
    assert (lower(body.as_product("grad_weight")).execute(x, dy) == dw).all()
    assert (lower(body.as_product("grad_input")).execute(dy, w) == dx).all()
    assert (lower(body.as_product("grad_input"), "dilated").execute(dy, w) == dx).all()


@given(body=convolutions())
def test_macs_are_exact_and_zeros_are_counted(body):
    x, w, dy = tensors(body)
    ones = [np.ones_like(t) for t in (x, w, dy)]
    for product, first, second in (("forward", 0, 1), ("grad_weight", 0, 2), ("grad_input", 2, 1)):
        lowered = lower(body.as_product(product))
        assert lowered.product.macs == body.macs
        assert lowered.extra_macs == 0
        a, b = lowered.matrices(ones[first], ones[second])
        if product != "grad_input":  # col2im drops the padding after the product
            assert lowered.zero_macs == (lowered.product.macs - np.matmul(a, b).sum())
    dilated = lower(body.as_product("grad_input"), "dilated")
    a, b = dilated.matrices(ones[2], ones[1])
    assert a.shape == (dilated.product.count, dilated.product.M, dilated.product.K)
    assert dilated.zero_macs == dilated.product.macs - np.matmul(a, b).sum()
    assert dilated.extra_macs == dilated.product.macs - body.macs


@given(body=convolutions())
def test_sides_count_distinct_elements(body):
    x, _, dy = tensors(body)
    numbered = np.arange(1, x.size + 1).reshape(x.shape)
    columns = lower(body).matrices(numbered, np.ones((body.out_channels, body.in_channels // body.groups, *body.kernel)))[0]
    side = lower(body).a
    assert side.matrix == columns.size
    assert side.elements == len(np.unique(columns[columns > 0]))
    spread = lower(body.as_product("grad_input"), "dilated")
    numbered = np.arange(1, dy.size + 1).reshape(dy.shape)
    rows = spread.matrices(numbered, np.ones((body.out_channels, body.in_channels // body.groups, *body.kernel)))[0]
    assert spread.a.matrix == rows.size
    assert spread.a.elements == len(np.unique(rows[rows > 0]))


def test_strided_pointwise_reads_only_what_it_sees():
    body = Convolution(batch=2, in_channels=8, out_channels=4, size=(10, 10), kernel=(1, 1), stride=(2, 2))
    assert lower(body).a.elements == lower(body).a.matrix == 2 * 8 * 25
    assert lower(body.as_product("grad_input")).out.elements == body.input_elements


@given(m=st.integers(1, 5), n=st.integers(1, 5), k=st.integers(1, 5), count=st.integers(1, 3))
def test_a_matrix_product_is_its_own(m, n, k, count):
    random = np.random.default_rng(m * 100 + n * 10 + k)
    a, b = random.random((count, m, k)), random.random((count, k, n))
    lowered = lower(MatMul(m, n, k, count))
    assert np.array_equal(lowered.execute(a, b).reshape(count, m, n), np.matmul(a, b))
    assert (lowered.zero_macs, lowered.extra_macs) == (0, 0)
