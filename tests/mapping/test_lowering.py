"""Lowering: the three products of a convolution, computed through their matrices, against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from oracles.lowering import execute_product, matrices, zero_macs
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


def random_tensors(body):
    random = np.random.default_rng(body.batch + sum(body.size))
    integers = lambda *shape: random.integers(-5, 6, shape).astype(np.float64)  # noqa: E731
    x = integers(body.batch, body.in_channels, *body.size)
    w = integers(body.out_channels, body.in_channels // body.groups, *body.kernel)
    dy = integers(body.batch, body.out_channels, *body.out_size)
    return x, w, dy


def by_torch(body, x, w, dy):
    x, w = torch.from_numpy(x).requires_grad_(), torch.from_numpy(w).requires_grad_()
    y = CONVOLVE[len(body.size)](x, w, None, body.stride, body.padding, body.dilation, body.groups)
    y.backward(torch.from_numpy(dy))
    return y.detach().numpy(), x.grad.numpy(), w.grad.numpy()


@pytest.mark.oracle
@given(body=convolutions())
def test_the_three_products_equal_those_of_torch(body):
    x, w, dy = random_tensors(body)
    y, dx, dw = by_torch(body, x, w, dy)
    assert (execute_product(body, x, w) == y).all()
    assert (execute_product(body.as_product("grad_weight"), x, dy) == dw).all()
    assert (execute_product(body.as_product("grad_input"), dy, w) == dx).all()
    assert (execute_product(body.as_product("grad_input"), dy, w, "dilated") == dx).all()


@given(body=convolutions())
def test_macs_and_zero_macs_are_those_of_the_matrices(body):
    x, w, dy = random_tensors(body)
    ones = [np.ones_like(t) for t in (x, w, dy)]
    for product, first, second in (("forward", 0, 1), ("grad_weight", 0, 2), ("grad_input", 2, 1)):
        own = body.as_product(product)
        assert lower(own).product.macs == body.macs
        a, b = matrices(own, ones[first], ones[second])
        if product != "grad_input":  # col2im drops the padding after the product
            assert zero_macs(own) == body.macs - np.matmul(a, b).sum()
    own = body.as_product("grad_input")
    dilated = lower(own, "dilated").product
    a, b = matrices(own, ones[2], ones[1], "dilated")
    assert a.shape == (dilated.count, dilated.M, dilated.K)
    assert b.shape == (dilated.count, dilated.K, dilated.N)
    assert zero_macs(own, "dilated") == dilated.macs - np.matmul(a, b).sum()


@given(body=convolutions())
def test_sides_count_the_distinct_elements_of_a_matrix(body):
    x, w, dy = random_tensors(body)
    numbered = np.arange(1, x.size + 1).reshape(x.shape)
    columns = matrices(body, numbered, w)[0]
    side = lower(body).a
    assert side.matrix == columns.size
    assert side.elements == len(np.unique(columns[columns > 0]))
    own = body.as_product("grad_input")
    side = lower(own, "dilated").a
    numbered = np.arange(1, dy.size + 1).reshape(dy.shape)
    rows = matrices(own, numbered, w, "dilated")[0]
    assert side.matrix == rows.size
    assert side.elements == len(np.unique(rows[rows > 0]))


def test_a_strided_pointwise_convolution_reads_only_the_visited_elements():
    body = Convolution(batch=2, in_channels=8, out_channels=4, size=(10, 10), kernel=(1, 1), stride=(2, 2))
    assert lower(body).a.elements == lower(body).a.matrix == 2 * 8 * 25
    assert lower(body.as_product("grad_input")).out.elements == body.input_elements


@given(m=st.integers(1, 5), n=st.integers(1, 5), k=st.integers(1, 5), count=st.integers(1, 3))
def test_a_matrix_product_is_lowered_to_itself(m, n, k, count):
    random = np.random.default_rng(m * 100 + n * 10 + k)
    a, b = random.random((count, m, k)), random.random((count, k, n))
    body = MatMul(m, n, k, count)
    assert lower(body).product == body
    assert np.array_equal(execute_product(body, a, b).reshape(count, m, n), np.matmul(a, b))
    assert zero_macs(body) == 0
