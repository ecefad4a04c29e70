"""Halos: the closed form against the elements under the windows of every tile."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles.halos import elements_of_tiles, mean_spread
from trainyard.arrays import Systolic
from trainyard.errors import BadInput, NotModelled
from trainyard.ir import Convolution
from trainyard.kernels.mapping.tile_bounds import spread
from trainyard.mapping.halo import COLUMNS, halo_of
from trainyard.mapping.lowering import lower
from trainyard.mapping.tiling import ORDERS, Problem, Supply, Tiling, evaluate, needed_bytes, search
from trainyard.mapping.walk import walk

ARRAY = Systolic(rows=2, columns=2)


@st.composite
def convolutions(draw):
    """Small convolutions of one to three axes, whose windows overlap or do not."""
    rank = draw(st.integers(1, 3))
    sides = st.integers(2, {1: 24, 2: 9, 3: 5}[rank])

    def numbers(low, high):
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    kernel, dilation = numbers(1, 3), numbers(1, 2)
    size = tuple(draw(sides) + dilated * (taps - 1) for taps, dilated in zip(kernel, dilation, strict=True))
    return Convolution(
        batch=draw(st.integers(1, 3)),
        in_channels=2,
        out_channels=3,
        size=size,
        kernel=kernel,
        stride=numbers(1, 3),
        padding=numbers(0, 2),
        dilation=dilation,
        product=draw(st.sampled_from(["forward", "grad_input", "grad_weight"])),
    )


@given(convolutions(), st.sampled_from(["col2im", "dilated"]), st.integers(1, 4), st.floats(1.0, 4.0), st.data())
def test_the_compiled_spread_is_the_plain_one(body, grad_input, unit, weight, data):
    halo = halo_of(body, grad_input, unit)
    if halo is None:
        return
    halo = replace(halo, weight=weight)
    size = data.draw(st.integers(1, -(-halo.positions // halo.unit)))
    assert len(halo.row) == COLUMNS
    assert spread(size, np.array(halo.row)) == halo.spread(size) >= size


def test_without_a_halo_the_spread_is_the_size():
    assert spread(7, np.zeros(COLUMNS)) == 7.0


@given(convolutions())
def test_one_position_one_image_and_the_whole_are_exact(body):
    halo = halo_of(body, "dilated")
    if halo is None:
        return
    dilated = body.product == "grad_input"
    assert halo.spread(1) == pytest.approx(mean_spread(body, 1, dilated))
    image = halo.positions // body.batch
    for images in range(1, body.batch + 1):
        if body.batch % images == 0:
            assert halo.spread(images * image) == images * image == pytest.approx(mean_spread(body, images * image, dilated))


@given(convolutions())
def test_there_is_a_halo_exactly_where_two_windows_share_an_element(body):
    one_by_one = sum(elements_of_tiles(body, 1))
    at_once = elements_of_tiles(body, 10**6)[0]
    assert (halo_of(replace(body, product="forward")) is None) == (one_by_one == at_once)


def _random_convolution(seed):
    random_ = random.Random(seed)
    rank = random_.choice((1, 2, 2, 2, 3))
    kernel = tuple(random_.choice((1, 3, 3, 5, 7)) for _ in range(rank))
    side = random_.randint(*{1: (30, 90), 2: (9, 16), 3: (5, 7)}[rank])
    return Convolution(
        batch=random_.randint(1, 4),
        in_channels=1,
        out_channels=1,
        size=(side,) * rank,
        kernel=kernel,
        stride=tuple(random_.choice((1, 1, 2)) for _ in range(rank)),
        padding=tuple(taps // 2 for taps in kernel),
        product=random_.choice(("forward", "forward", "grad_input")),
    )


def test_bytes_of_all_tiles_are_those_under_their_windows_within_a_few_percent():
    ratios = []
    for seed in range(16):
        body = _random_convolution(seed)
        halo, dilated = halo_of(body, "dilated"), body.product == "grad_input"
        if halo is None:
            continue
        row = halo.axes[0].extent
        everything = elements_of_tiles(body, halo.positions, dilated)[0]
        for size in {row, 2 * row, 37, 64, halo.positions // 3}:
            if not 0 < size <= halo.positions:
                continue
            tiles = -(-halo.positions // size)
            counted = (tiles - 1) * halo.spread(size) + halo.spread(halo.positions - (tiles - 1) * size)
            needed = sum(elements_of_tiles(body, size, dilated)) * halo.positions / everything
            ratios.append(counted / needed)
    assert len(ratios) > 50
    assert min(ratios) > 0.85
    assert max(ratios) < 1.2
    assert np.quantile(np.abs(np.array(ratios) - 1), 0.9) < 0.05


def test_which_matrix_overlaps_and_along_what():
    body = Convolution(batch=2, in_channels=3, out_channels=4, size=(6, 6), kernel=(3, 3), padding=(1, 1), stride=(2, 2))
    products = {name: body.as_product(name) for name in ("forward", "grad_weight", "grad_input")}
    where = {name: (halo_of(one).operand, halo_of(one).axis) for name, one in products.items()}
    assert where == {"forward": ("a", "m"), "grad_weight": ("a", "k"), "grad_input": ("out", "m")}
    for name, grad_input in (("forward", "col2im"), ("grad_weight", "col2im"), ("grad_input", "col2im"), ("grad_input", "dilated")):
        product, halo = lower(products[name], grad_input).product, halo_of(products[name], grad_input)
        assert halo.positions == (product.M if halo.axis == "m" else product.K)
    dilated = halo_of(products["grad_input"], "dilated")
    assert (dilated.operand, dilated.axis, dilated.positions) == ("a", "m", 72)


def test_sums_of_windows_are_counted_by_all_elements_of_dx():
    """Windows at 0, 2, 4 over elements 0 to 8, two apart: the elements in between are in no window, but are written."""
    body = Convolution(
        batch=1, in_channels=1, out_channels=1, size=(9,), kernel=(3,), stride=(2,), dilation=(2,), product="grad_input"
    )
    halo = halo_of(body)
    needed, visits = elements_of_tiles(body, 9)[0], sum(elements_of_tiles(body, 1))
    assert (needed, visits, halo.positions) == (5, 9, 3)
    rows_of_three_tiles = 3 * (halo.spread(1) - 1)
    assert rows_of_three_tiles * 9 / 3 == pytest.approx(visits - needed)


def test_several_positions_in_one_place_are_counted_in_places():
    body = Convolution(batch=4, in_channels=1, out_channels=1, size=(9, 9), kernel=(3, 3), padding=(1, 1), product="grad_weight")
    halo, packed = halo_of(body), halo_of(body, unit=2)
    assert packed.spread(10) == pytest.approx(halo.spread(20) / 2)
    assert packed.spread(162) == 162.0


def test_no_halo_where_windows_do_not_overlap():
    assert halo_of(Convolution(batch=4, in_channels=8, out_channels=8, size=(8, 8), kernel=(1, 1), stride=(2, 2))) is None
    assert halo_of(Convolution(batch=4, in_channels=8, out_channels=8, size=(8, 8), kernel=(2, 2), stride=(2, 2))) is None


def test_more_than_three_spatial_axes_are_refused_by_name():
    body = Convolution(batch=1, in_channels=1, out_channels=1, size=(4,) * 4, kernel=(3,) * 4)
    with pytest.raises((NotModelled, BadInput), match="line_buffer"):
        halo_of(body)


def _problem(body, grad_input="col2im"):
    """Without a line buffer, elements of one byte and sums of four."""
    lowered, halo = lower(body, grad_input), halo_of(body, grad_input)
    sums = 4 * min(lowered.out.elements, lowered.out.matrix)
    if halo is not None and halo.operand == "out":
        halo = replace(halo, weight=2 * sums / lowered.out.elements)
    return Problem(
        op=lowered.product,
        a_bytes=lowered.a.elements,
        b_bytes=lowered.b.elements,
        out_bytes=lowered.out.elements,
        sum_bytes=sums,
        halo=halo,
    )


@given(convolutions(), st.sampled_from(["col2im", "dilated"]), st.sampled_from(ORDERS), st.data())
def test_a_product_with_halos_costs_the_same_in_closed_form_and_tile_by_tile(body, grad_input, order, data):
    problem, supply = _problem(body, grad_input), Supply(resident_bytes=1e9, bytes_per_cycle=1.5, latency_cycles=3)
    sizes = [data.draw(st.integers(max(1, extent // 6), extent)) for extent in (problem.op.M, problem.op.N, problem.op.K)]
    tiling = Tiling(m=sizes[0], n=sizes[1], k=sizes[2], order=order)
    closed = evaluate(problem, tiling, ARRAY, supply)
    walked = walk(problem, tiling, supply, lambda tile: ARRAY.tile_cycles(tile.op.M, tile.op.N, tile.op.K))
    assert closed.cycles == pytest.approx(walked.cycles, abs=2)  # whole cycles of bytes that are not whole
    for name in ("a_read", "b_read", "out_moved", "spill_write", "spill_read"):
        assert getattr(closed, name) == pytest.approx(getattr(walked, name), abs=2), name


@pytest.mark.parametrize("product", ["forward", "grad_weight", "grad_input"])
def test_the_search_knows_of_halos(product):
    """No tile of any size and order, with one step's tiles resident, is more than 1 % faster."""
    body = Convolution(batch=2, in_channels=1, out_channels=2, size=(5, 5), kernel=(3, 3), padding=(1, 1), product=product)
    problem = _problem(body)
    supply = Supply(resident_bytes=60, bytes_per_cycle=0.5)
    best = min(
        evaluate(problem, tiling, ARRAY, supply).cycles
        for m, n, k in itertools.product(*(range(1, extent + 1) for extent in (problem.op.M, problem.op.N, problem.op.K)))
        if needed_bytes(problem, Tiling(m=m, n=n, k=k)) <= supply.resident_bytes
        for tiling in (Tiling(m=m, n=n, k=k, order=order) for order in ("mnk", "nkm", "kmn"))
    )
    (chosen,) = search([problem], ARRAY, supply)
    assert needed_bytes(problem, chosen.tiling) <= supply.resident_bytes
    assert chosen.cycles <= 1.01 * best
