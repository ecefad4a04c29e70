"""Whole products through switches, multipliers and adders: they equal numpy's, and take the cycles that the closed form says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.arrays import Sigma
from trainyard.arrays.sigma.execution import Fabric, Tally, arrivals, combine_partials, execute
from trainyard.arrays.sigma.partial_sums import Crossing, add_cycles, add_latency, crossings, waiting_partials
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.reduction.adder_trees import Fan
from trainyard.ir import MatMul
from trainyard.kernels.arrays.flex_dpe import sum_each
from trainyard.kernels.arrays.partial_sums import add_cycles as compiled_add

sizes = st.integers(1, 20)
densities = st.sampled_from([0.0, 0.1, 0.4, 0.8, 1.0])
arrays = st.builds(
    Sigma,
    dpes=st.integers(1, 5),
    multipliers=st.sampled_from([4, 8, 16]),
    bandwidth=st.integers(1, 24),
    streaming=st.sampled_from(["wide", "limited"]),
    drain=st.sampled_from(["fold", "pass"]),
    across=st.sampled_from(["tree", "chain", "buffer"]),
)


@st.composite
def operands(draw, whole=True):
    """Two matrices that multiply, of whole numbers (FP32 sums are exact in any order) or of any; rows and columns of zeros."""
    m, k, n = draw(sizes), draw(sizes), draw(sizes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    found = []
    for shape in ((m, k), (k, n)):
        values = rng.integers(-99, 100, shape) if whole else rng.standard_normal(shape)
        matrix = (values * (rng.random(shape) < draw(densities))).astype(np.float32)
        if draw(st.booleans()):
            matrix[draw(st.integers(0, shape[0] - 1))] = 0
            matrix[:, draw(st.integers(0, shape[1] - 1))] = 0
        found.append(matrix)
    return found


def op_of(a, b):
    return MatMul(len(a), b.shape[1], len(b))


@settings(max_examples=120)
@given(matrices=operands(), array=arrays, stationary=st.sampled_from(["a", "b", "none", "best"]))
def test_the_product_is_numpys_and_the_cycles_are_the_closed_forms(matrices, array, stationary):
    a, b = matrices
    done = execute(array, a, b, stationary)
    assert done.product.dtype == np.float32
    assert np.array_equal(done.product, a @ b)
    cost = array.cost(op_of(a, b), a=a, b=b, stationary=stationary)
    assert (done.loading, done.streaming, done.add, done.cycles) == (cost.loading, cost.streaming, cost.add, cost.cycles)
    assert (done.stationary, done.folds, done.multiplications) == (cost.stationary, cost.folds, cost.useful)
    assert done.multiplications == int(np.count_nonzero(a, axis=0) @ np.count_nonzero(b, axis=1))


@settings(max_examples=60)
@given(matrices=operands(whole=False), array=arrays, stationary=st.sampled_from(["a", "b", "none"]))
def test_any_floats_differ_by_the_rounding_of_another_order_only(matrices, array, stationary):
    a, b = matrices
    exact = a.astype(np.float64) @ b.astype(np.float64)
    most = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    error = np.abs(execute(array, a, b, stationary).product - exact)
    assert (error <= len(b) * np.finfo(np.float32).eps * most).all()  # Higham: n u of the sum of magnitudes, in any order


@settings(max_examples=60)
@given(matrices=operands(), array=arrays)
def test_sums_that_cross_are_timed_as_they_lie(matrices, array):
    """The adders' latency, from the places of stationary' rows alone."""
    a, b = matrices
    stationary = (a != 0) & (b != 0).any(axis=1)
    wide = array.bandwidth if array.streaming == "limited" else len(b)
    counts = np.stack([stationary[:, k : k + wide].sum(axis=1) for k in range(0, len(b), wide)])
    passes = crossings(counts, array.multipliers, array.dpes)
    drain = array.drain if array.streaming == "limited" else "fold"
    where = {"multipliers": array.multipliers, "dpes": array.dpes, "bandwidth": array.bandwidth, "vectors": b.shape[1]}
    assert execute(array, a, b, "a").add == add_cycles(array.across, passes, **where, drain=drain)


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (1, 64, 1), (64, 1, 1), (1, 1, 64), (5, 300, 3)])
@pytest.mark.parametrize("stationary", ["a", "b", "none"])
def test_thin_products(m, k, n, stationary):
    rng = np.random.default_rng(m + k + n)
    a, b = rng.integers(1, 9, (m, k)), rng.integers(1, 9, (k, n))
    done = execute(Sigma(dpes=3, multipliers=8, bandwidth=5), a, b, stationary)
    assert np.array_equal(done.product, a @ b)
    assert done.multiplications == m * k * n


@pytest.mark.parametrize("stationary", ["a", "b", "none", "best"])
def test_nothing_but_zeros_takes_nothing(stationary):
    done = execute(Sigma(dpes=2, multipliers=4), np.zeros((3, 4)), np.ones((4, 5)), stationary)
    assert not done.product.any()
    assert (done.cycles, done.folds, done.multiplications) == (0, 0, 0)


@pytest.mark.probe
def test_the_adders_run_empty_between_folds_and_not_before():
    """Eight values fill eight multipliers; a ninth costs a fold: its load, all vectors again, one more way through the adders."""
    array, b = Sigma(dpes=2, multipliers=4, bandwidth=4), np.ones((9, 7))
    full, over = (execute(array, np.ones((1, 9)) * (np.arange(9) < stationary), b, "a") for stationary in (8, 9))
    assert (full.loading, full.streaming, full.add, full.folds) == (2, 7, 3, 1)
    assert (over.loading, over.streaming, over.add, over.folds) == (3, 14, 6, 2)


@pytest.mark.probe
def test_a_chunk_waits_for_the_next_cycle_only_where_the_input_is_narrow():
    a, b = np.ones((1, 8)), np.ones((8, 5))
    for bandwidth, cycles in ((8, 5), (7, 10), (4, 10), (3, 15)):
        assert execute(Sigma(dpes=2, multipliers=4, bandwidth=bandwidth, streaming="limited"), a, b, "a").streaming == cycles
        assert execute(Sigma(dpes=2, multipliers=4, bandwidth=bandwidth), a, b, "a").streaming == 5


@pytest.mark.probe
@pytest.mark.oracle
@given(
    counts=st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=4),
    multipliers=st.sampled_from([1, 2, 4, 8]),
    dpes=st.integers(1, 5),
    bandwidth=st.integers(1, 6),
    vectors=st.integers(1, 9),
    across=st.sampled_from(["chain", "buffer"]),
    drain=st.sampled_from(["fold", "pass"]),
)
def test_the_compiled_add_latency_is_that_of_the_crossings(counts, multipliers, dpes, bandwidth, vectors, across, drain):
    values = np.array(counts, np.int64)
    where = {"multipliers": multipliers, "dpes": dpes, "bandwidth": bandwidth, "vectors": vectors}
    expected = add_cycles(across, crossings(values, multipliers, dpes), **where, drain=drain)
    inside = (multipliers - 1).bit_length()
    assert compiled_add(values, multipliers, dpes, bandwidth, vectors, inside, across == "chain", drain == "pass") == expected


@pytest.mark.parametrize(("across", "add"), [("tree", 2 + 2), ("chain", 2 + 3), ("buffer", 2 + 2)])
def test_a_row_over_four_flex_dpes_takes_its_way(across, add):
    """Three partial sums beyond the first: three hops, or two cycles of a buffer that takes two, or two levels of a tree."""
    array = Sigma(dpes=4, multipliers=4, bandwidth=2, across=across)
    a, b = np.arange(1, 17)[None], np.ones((16, 1))
    done = execute(array, a, b, "a")
    assert (done.add, done.partials, done.product.item()) == (add, 3, 136)
    one = execute(array, a * (a <= 4), b, "a")  # one Flex-DPE holds it: nothing crosses
    assert (one.add, one.partials) == ({"tree": 4, "chain": 2, "buffer": 2}[across], 0)


def test_a_full_buffer_makes_the_last_sums_wait():
    assert add_latency("buffer", 4, 9, spanned=9, partials=8, bandwidth=4) == 2 + 2
    assert waiting_partials(8, vectors=10, bandwidth=4) == 8 + 9 * 4  # four more come each cycle than it takes
    assert waiting_partials(4, vectors=10, bandwidth=4) == 4
    with pytest.raises(UnknownName, match="tree"):
        add_latency("trea", 4, 4, 1, 0, 4)


@given(
    counts=st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=4),
    multipliers=st.sampled_from([2, 4, 8]),
    dpes=st.integers(1, 3),
)
def test_crossings_against_a_walk_value_by_value(counts, multipliers, dpes):
    pool, number, found = multipliers * dpes, 0, []
    for chunk in counts:
        rows = [row for row, count in enumerate(chunk) for _ in range(count)]
        for first in range(0, len(rows), pool):
            units: dict[int, set[int]] = {}
            for row in rows[first : first + pool]:
                units.setdefault(row, set()).add(number // multipliers)
                number += 1
            spans = [len(where) for where in units.values()]
            found.append(Crossing(fold=(number - 1) // pool, spanned=max(spans), partials=sum(spans) - len(spans)))
    assert crossings(np.array(counts), multipliers, dpes) == tuple(found)


def test_partial_sums_meet_in_their_own_order():
    tiny = np.float32(2**-24)
    pieces = [(0, np.float32(1)), (1, tiny), (2, tiny), (3, np.float32(0))]
    assert combine_partials("chain", pieces) == 1  # each is rounded away
    assert combine_partials("tree", [(0, np.float32(1)), (2, tiny), (3, tiny)]) > 1  # the small ones first


@given(pairs=st.integers(0, 200), bandwidth=st.integers(1, 40), multipliers=st.integers(1, 30))
def test_pairs_come_as_their_elements_do(pairs, bandwidth, multipliers):
    cycles = list(arrivals(pairs, bandwidth, multipliers))
    assert [end for _, end in cycles[:-1]] == [first for first, _ in cycles[1:]]
    assert all(2 * end <= bandwidth * (number + 1) and end - first <= multipliers for number, (first, end) in enumerate(cycles))
    assert len(cycles) == max(-(-pairs // multipliers), -(-2 * pairs // bandwidth))


def test_the_tally_shares_the_last_cycle_of_a_load():
    """16 multipliers over an input of 3: what the sixth cycle has left brings the next fold's first values."""
    array, a = Sigma(dpes=2, multipliers=8, bandwidth=3), np.ones((1, 32))
    assert execute(array, a, np.ones((32, 1)), "a").loading == 11


@given(seed=st.integers(0, 2**32), lanes=st.sampled_from([2, 8, 32]), rows=st.integers(1, 6))
def test_adders_set_anew_for_every_row_are_fans(seed, lanes, rows):
    rng = np.random.default_rng(seed)
    ids = np.cumsum(rng.random((rows, lanes)) < 0.3, axis=1)
    ids[rng.random(rows) < 0.5, rng.integers(0, lanes) :] = -1
    products = rng.standard_normal((rows, lanes)).astype(np.float32)
    where, names, sums = sum_each(products, ids)
    for row in range(rows):
        found = Fan(lanes=lanes).reduce(products[row : row + 1], ids[row])
        assert names[where == row].tolist() == found.ids.tolist()
        assert sums[where == row].tolist() == found.sums[0].tolist()


def test_a_multiplier_that_hears_nothing_has_the_product_zero():
    fabric = Fabric(Sigma(dpes=1, multipliers=4))
    stationary, inputs = np.array([-2, 3, -4, 0], np.float32), np.array([[5, 6, 0, 0], [7, 0, 0, 0]], np.float32)
    sources = np.array([[1, 0, -1, 0], [-1, 0, 0, -1]])
    products, passes = fabric.run(stationary, sources, inputs)
    assert products.tolist() == [[-12, 15, 0, 0], [0, 21, -28, 0]]
    assert not np.signbit(products[sources < 0]).any()
    routed_products, routed = fabric.products(stationary, sources, inputs)
    assert np.array_equal(routed_products, products)
    assert passes.tolist() == routed.passes.tolist() == [1, 1]


def test_a_vector_that_the_switches_cannot_connect_at_once_takes_another_cycle():
    tally = Tally(Sigma(dpes=2, multipliers=4), vectors=5)
    tally.stream(spanned=2, partials=1, repeats=2)
    tally.drain()
    assert (tally.streaming, tally.add) == (7, 3)


def test_what_cannot_be_multiplied_is_refused():
    array = Sigma(dpes=1, multipliers=4)
    with pytest.raises(BadInput, match="do not multiply"):
        execute(array, np.ones((2, 3)), np.ones((2, 3)))
    with pytest.raises(BadInput, match="not finite"):
        execute(array, [[np.inf]], [[0.0]])
    with pytest.raises(UnknownName, match="stationary"):
        execute(array, [[1.0]], [[1.0]], "c")
