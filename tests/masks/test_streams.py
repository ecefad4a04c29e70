"""Packed streams of masks, held against the views' matrices put in order by hand, and against the products themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oracles.lowering import matrices
from trainyard.errors import BadInput, MaskError
from trainyard.ir import Convolution, MaskView
from trainyard.ir.step import CONVOLUTION_LETTERS
from trainyard.mapping.lowering import lower
from trainyard.masks.streams import dense_layout, layout, order, plain, streams
from trainyard.masks.views import matrix

FORMS = (("forward", "col2im"), ("grad_input", "col2im"), ("grad_input", "dilated"), ("grad_weight", "col2im"))


@dataclass(frozen=True)
class Bits:
    tensors: dict[str, np.ndarray]
    digest: str = "bits"

    def bits(self, key):
        return self.tensors[key[2]]


@st.composite
def convolutions(draw):
    rank = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    tuples = lambda low, high: st.tuples(*[st.integers(low, high)] * rank)  # noqa: E731
    try:
        return Convolution(
            batch=draw(st.integers(1, 4)),
            in_channels=groups * draw(st.integers(1, 9)),
            out_channels=groups * draw(st.integers(1, 9)),
            size=draw(tuples(2, 9 if rank < 3 else 5)),
            kernel=draw(tuples(1, 3)),
            stride=draw(tuples(1, 3)),
            padding=draw(tuples(0, 3)),
            dilation=draw(tuples(1, 2)),
            groups=groups,
        )
    except BadInput:
        assume(False)


def tensors(body, random, recorded=None, share=0.5):
    recorded = recorded or body.batch
    draw = lambda *shape: (random.random(shape) < share) * random.integers(1, 6, shape)  # noqa: E731
    return {
        "A": draw(recorded, body.in_channels, *body.size),
        "W": draw(body.out_channels, body.in_channels // body.groups, *body.kernel),
        "G": draw(recorded, body.out_channels, *body.out_size),
    }


def view_of(body, form, side, source, group=0):
    """One operand of one group's product, as a device hands it to an array."""
    place = CONVOLUTION_LETTERS[body.product]["ab".index(side)]
    product = lower(body, form).product
    extent = (product.M, product.K) if side == "a" else (product.K, product.N)
    turned = (body.product, side) in (("forward", "b"), ("grad_weight", "a"))
    rows, columns = (0, extent[0]), (0, extent[1])
    if turned:
        columns = (group * extent[1], (group + 1) * extent[1])
    else:
        rows = (group * extent[0], (group + 1) * extent[0])
    dilated = (body.product, form) == ("grad_input", "dilated")
    return MaskView(source, ("layer", 0, place), body, turned, rows, columns, place, dilated)


def cut_of(view, side, along, deep):
    """A tile: fractions of the two dimensions, in the view's own."""
    starts = [(view.rows, deep if side == "b" else along), (view.columns, along if side == "b" else deep)]
    cuts = []
    for (first, last), (low, high) in starts:
        start = first + int(low * (last - first))
        cuts.append((start, min(last, start + 1 + int(high * (last - start)))))
    return replace(view, rows=cuts[0], columns=cuts[1])


def by_hand(view, side, lanes, kind):
    """Segments of bool rows, in the order that the docstring of the module prints."""
    bits = matrix(view) if side == "a" else matrix(view).T
    first, last = view.columns if side == "a" else view.rows
    if kind[0] == "flat":
        groups = [[range(first, last)]]
    elif kind[0] == "taps":
        groups = [[[k for k in range(first, last) if k % kind[1] == tap] for tap in range(kind[1])]]
    else:
        groups = [[[k for k in range(first, last) if k // kind[1] == item]] for item in range(first // kind[1], last)]
    segments = []
    for group in groups:
        places = [place for run in group for place in (*run, *([None] * (-len(run) % lanes)))]
        if places:
            segments.append(np.stack([bits[:, k - first] if k is not None else np.zeros(len(bits), bool) for k in places], axis=1))
    return segments


def kind_of(body, form):
    taps = math.prod(body.kernel)
    if body.product == "grad_weight":
        return ("positions", math.prod(body.out_size))
    if body.product == "grad_input" and form == "col2im":
        return ("flat", 0)
    return ("taps", taps)


def unpack(words, steps, lanes):
    bits = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little").astype(bool)
    assert not bits[..., steps * lanes :].any()
    return bits[..., : steps * lanes]


def check(view, side, lanes, kind, rows=None):
    expected = by_hand(view, side, lanes, kind)
    shape = layout(view, side, lanes)
    assert [step * lanes for step in shape.steps] == [segment.shape[1] for segment in expected]
    assert shape.rows == len(expected[0])
    rows = rows or (0, shape.rows)
    actual = streams(view, side, lanes, rows)
    assert actual.shape == (shape.distinct_segments, rows[1] - rows[0], (max(shape.steps) * lanes + 63) // 64 + 1)
    for number, (segment, steps) in enumerate(zip(expected, shape.steps, strict=True)):
        of = number % shape.distinct_segments
        assert np.array_equal(unpack(actual[of], steps, lanes), segment[rows[0] : rows[1]])
        repeated = np.arange(shape.rows) % shape.distinct_rows
        assert np.array_equal(segment, segment[repeated])
    assert np.array_equal(actual, plain(view, side, lanes, rows))
    return shape


shares = st.tuples(st.floats(0, 0.99), st.floats(0, 1))


@pytest.mark.oracle
@settings(max_examples=150, deadline=None)
@given(
    body=convolutions(),
    form=st.sampled_from(FORMS),
    side=st.sampled_from("ab"),
    lanes=st.integers(1, 20),
    recorded=st.integers(1, 4),
    along=shares,
    deep=shares,
    whole=st.booleans(),
    data=st.data(),
)
def test_streams_are_the_matrix_in_order(body, form, side, lanes, recorded, along, deep, whole, data):
    body = body.as_product(form[0])
    source = Bits({name: t != 0 for name, t in tensors(body, np.random.default_rng(lanes), min(recorded, body.batch)).items()})
    view = view_of(body, form[1], side, source, group=data.draw(st.integers(0, body.groups - 1)))
    if not whole:
        view = cut_of(view, side, along, deep)
    first = data.draw(st.integers(0, layout(view, side, lanes).rows - 1))
    last = data.draw(st.integers(first + 1, layout(view, side, lanes).rows))
    check(view, side, lanes, kind_of(body, form[1]), (first, last))


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple),
    repeats=st.integers(1, 4),
    turned=st.booleans(),
    side=st.sampled_from("ab"),
    lanes=st.integers(1, 20),
    along=shares,
    deep=shares,
)
def test_streams_of_matrices_are_flat(shape, repeats, turned, side, lanes, along, deep):
    source = Bits({"A": np.random.default_rng(sum(shape)).random(shape) < 0.5})
    height = repeats * math.prod(shape[:-1])
    rows, columns = ((0, shape[-1]), (0, height)) if turned else ((0, height), (0, shape[-1]))
    view = MaskView(source, ("layer", 0, "A"), None, turned, rows, columns, height=height)
    check(view, side, lanes, ("flat", 0))
    check(cut_of(view, side, along, deep), side, lanes, ("flat", 0))
    assert layout(replace(view, rows=None, columns=None), side, lanes) == layout(view, side, lanes)


@pytest.mark.oracle
@settings(max_examples=40, deadline=None)
@given(body=convolutions(), form=st.sampled_from(FORMS), lanes=st.integers(1, 20))
def test_streams_of_both_operands_multiply_to_the_product(body, form, lanes):
    """Multiplied position by position, segment by segment, the streams of values give the lowered product."""
    body = body.as_product(form[0])
    numbers = tensors(body, np.random.default_rng(lanes))
    lowered = lower(body, form[1])
    source = Bits({name: tensor != 0 for name, tensor in numbers.items()})
    first, second = CONVOLUTION_LETTERS[body.product]
    a, b = matrices(body, numbers[first], numbers[second], form[1])
    for group in range(body.groups):
        views = {side: view_of(body, form[1], side, source, group) for side in "ab"}
        orders = {side: order(views[side], side, lanes) for side in "ab"}
        sums = np.zeros((lowered.product.M, lowered.product.N), dtype=np.int64)
        for segment, (left, right) in enumerate(zip(orders["a"], orders["b"], strict=True)):
            assert np.array_equal(left, right)
            values = {"a": a[group][:, left] * (left >= 0), "b": (b[group][right] * (right >= 0)[:, None]).T}
            for side, rows in values.items():
                shape = layout(views[side], side, lanes)
                actual = streams(views[side], side, lanes, (0, shape.rows))
                assert np.array_equal(unpack(actual[segment], len(left) // lanes, lanes), rows != 0)
            sums += values["a"] @ values["b"].T
        assert np.array_equal(sums, a[group] @ b[group])


@pytest.mark.parametrize("product", ["forward", "grad_input", "grad_weight"])
@pytest.mark.parametrize("dilated", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("place", "AWG")
def test_streams_of_views_that_no_product_uses_equal_the_matrix(product, dilated, turned, place):
    """Both sides of every view, all groups in one: the compiled loops and their twin agree."""
    body = Convolution(batch=2, in_channels=4, out_channels=6, size=(5, 4), kernel=(3, 2), stride=(2, 3), groups=2, product=product)
    source = Bits({name: t != 0 for name, t in tensors(body, np.random.default_rng(1), recorded=1).items()})
    view = MaskView(source, ("layer", 0, place), body, turned, place=place, dilated=dilated)
    for side in "ab":
        shape = layout(view, side, 3)
        assert np.array_equal(streams(view, side, 3, (0, shape.rows)), plain(view, side, 3, (0, shape.rows)))


def test_runs_longer_than_a_word_are_packed_right():
    """More channels than a word has bits, at offsets that are no multiple of it."""
    body = Convolution(batch=2, in_channels=150, out_channels=131, size=(7, 70), kernel=(3, 3), stride=(2, 2), padding=(1, 1))
    source = Bits({name: t != 0 for name, t in tensors(body, np.random.default_rng(2)).items()})
    for product, form in FORMS:
        for side in "ab":
            view = view_of(body.as_product(product), form, side, source)
            rows = layout(view, side, 16).rows
            check(view, side, 16, kind_of(body.as_product(product), form), (rows // 3, min(rows, rows // 3 + 40)))


def test_steps_of_the_layer_that_the_sparsity_study_uses():
    """SqueezeNet's fire2 expand3x3 on 55 x 55 maps: 36, 144 and 757 steps of 4 lanes; 3 channels on 4 lanes take a step a tap."""
    body = Convolution(batch=64, in_channels=16, out_channels=64, size=(55, 55), kernel=(3, 3), padding=(1, 1))
    forms = [("forward", "col2im"), ("grad_input", "dilated"), ("grad_weight", "col2im")]
    for side in "ab":
        actual = [dense_layout(body.as_product(product), side, 4, form) for product, form in forms]
        assert [shape.steps[0] for shape in actual] == [36, 144, 757]
        assert [len(shape.steps) for shape in actual] == [1, 1, 64]
    assert dense_layout(body, "a", 4).rows == 64 * 55 * 55
    first = Convolution(batch=1, in_channels=3, out_channels=8, size=(9, 9), kernel=(3, 3))
    assert dense_layout(first, "a", 4).steps == (9,)
    assert dense_layout(first, "a", 4, columns=(0, 9)).steps == (9,)  # one channel under each of nine taps
    assert dense_layout(first, "a", 4, columns=(7, 11)).steps == (4,)  # channel 0 of taps 7 and 8, channel 1 of taps 0 and 1


def test_fewer_recorded_samples_are_gathered_once():
    body = Convolution(batch=6, in_channels=4, out_channels=5, size=(4, 4), kernel=(3, 3), padding=(1, 1))
    source = Bits({name: t != 0 for name, t in tensors(body, np.random.default_rng(3), recorded=2).items()})
    rows = layout(view_of(body, "col2im", "a", source), "a", 4)
    assert (rows.rows, rows.distinct_rows) == (6 * 16, 2 * 16)
    for side in "ab":
        view = view_of(body.as_product("grad_weight"), "col2im", side, source)
        deep = layout(view, side, 4)
        assert (len(deep.steps), deep.distinct_segments) == (6, 2)
        assert len(streams(view, side, 4, (0, 1))) == 2


def test_samples_that_a_tile_cuts_are_all_gathered():
    """A part of a sample equals no other segment, so nothing is repeated."""
    body = Convolution(batch=4, in_channels=3, out_channels=2, size=(4, 4), kernel=(3, 3), padding=(1, 1), product="grad_weight")
    source = Bits({name: t != 0 for name, t in tensors(body, np.random.default_rng(4), recorded=1).items()})
    for cut, segments, distinct in (((0, 64), 4, 1), ((16, 48), 2, 1), ((3, 40), 3, 3), ((0, 40), 3, 3), ((5, 48), 3, 3)):
        a = replace(view_of(body, "col2im", "a", source), columns=cut)
        b = replace(view_of(body, "col2im", "b", source), rows=cut)
        for view, side in ((a, "a"), (b, "b")):
            shape = check(view, side, 4, ("positions", 16))
            assert (len(shape.steps), shape.distinct_segments) == (segments, distinct)


def test_a_layout_reads_no_bits():
    class Blind(Bits):
        def bits(self, key):
            raise AssertionError("bits were read")

        def spec(self, key):
            return self.tensors[key[2]]

    body = Convolution(batch=4, in_channels=4, out_channels=5, size=(4, 4), kernel=(3, 3))
    source = Blind({"A": np.ones((2, 4, 4, 4), bool)})
    assert layout(MaskView(source, ("layer", 0, "A"), body), "a", 4).distinct_rows == 8


def test_a_tensor_is_packed_once_for_all_its_tiles():
    class Counted(Bits):
        asked = 0

        def bits(self, key):
            type(self).asked += 1
            return self.tensors[key[2]]

    body = Convolution(batch=1, in_channels=64, out_channels=8, size=(32, 32), kernel=(3, 3))
    source = Counted({"A": np.ones((1, 64, 32, 32), bool)})
    for row in range(30):
        view = MaskView(source, ("layer", 0, "A"), body, rows=(30 * row, 30 * row + 30), columns=(0, 576))
        assert np.bitwise_count(streams(view, "a", 4, (0, 30))).sum() == 30 * 576
    assert source.asked == 1


def test_rows_outside_the_view_raise():
    body = Convolution(batch=1, in_channels=2, out_channels=2, size=(4,), kernel=(3,))
    source = Bits({"A": np.ones((1, 2, 4), bool)})
    view = MaskView(source, ("conv1", 0, "A"), body)
    with pytest.raises(BadInput, match=r"'conv1': streams \(0, 3\) lie outside the view's 2"):
        streams(view, "a", 4, (0, 3))
    with pytest.raises(MaskError, match=r"columns .* lie outside"):
        layout(replace(view, columns=(0, 9)), "a", 4)
