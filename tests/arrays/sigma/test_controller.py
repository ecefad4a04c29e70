"""The controller's steps i to v and vii against the matrices themselves, in plain Python; and the examples of Fig. 4 and Fig. 5."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.arrays import Sigma, Systolic
from trainyard.arrays.sigma.controller import IDLE, Controller, Table
from trainyard.arrays.sigma.walkthrough import EXAMPLE
from trainyard.errors import BadInput
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.ir import MatMul
from trainyard.papers.ledger import claims

sizes = st.integers(1, 9)


@st.composite
def cases(draw):
    """Two bit matrices that multiply, with whole rows and columns of zeros among them, and a controller."""
    m, k, n = draw(sizes), draw(sizes), draw(sizes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    a, b = (rng.random(shape) < draw(st.sampled_from([0.0, 0.3, 0.7, 1.0])) for shape in ((m, k), (k, n)))
    if draw(st.booleans()):
        a[draw(st.integers(0, m - 1))] = False
        b[draw(st.integers(0, k - 1))] = False
    unit = Controller(
        multipliers=draw(st.sampled_from([2, 4, 8])), dpes=draw(st.integers(1, 3)), chunk=draw(st.none() | st.integers(1, 6))
    )  # fmt: skip
    return a, b, unit


def prime(a, b):
    """stationary', by its meaning: a non-zero of a that meets at least one of b."""
    return [[bool(a[m, k]) and any(b[k]) for k in range(len(b))] for m in range(len(a))]


@given(case=cases())
def test_stationary_prime_keeps_what_meets_anything(case):
    a, b, unit = case
    met = unit.gather(Bitmap.of(a), Bitmap.of(b))
    held = unit.prune(met.stationary, unit.row_or(met.streaming))
    assert held.bits().tolist() == prime(a, b)
    found, ones = unit.allocate(held), np.sum(prime(a, b))
    assert (found.useful, found.flex_dpes, found.folds) == (ones, -(-ones // unit.multipliers), -(-ones // unit.pool))


@given(case=cases())
def test_every_useful_value_lies_once_and_its_dot_product_together(case):
    a, b, unit = case
    met = unit.gather(Bitmap.of(a), Bitmap.of(b))
    held = unit.prune(met.stationary, unit.row_or(met.streaming))
    placement = unit.place(held)
    seen = []
    for which in placement.passes:
        assert 0 < which.end - which.first <= unit.pool
        units = list(unit.flex_dpes(placement, which))
        assert len({one.number for one in units}) == len(units)
        for one in units:
            for lane, value in enumerate(one.value):
                if value == IDLE:
                    assert one.row[lane] == one.k[lane] == IDLE
                    assert one.vec_ids[lane] < 0 or one.vec_ids[lane] in one.vec_ids[one.value != IDLE]
                    continue
                assert value % unit.pool == one.number * unit.multipliers + lane
                assert which.k_first <= one.k[lane] < which.k_end
                assert one.vec_ids[lane] % len(a) == one.row[lane]
                seen.append((int(value), int(one.row[lane]), int(one.k[lane])))
            ids = [number for number in one.vec_ids if number != IDLE]
            assert len(set(ids)) == len([number for number, _ in groupby(ids)])
    assert [value for value, _, _ in sorted(seen)] == list(range(held.nonzeros))
    wide = unit.chunk or len(b)
    wanted = sorted(zip(*np.nonzero(prime(a, b)), strict=True), key=lambda place: (place[1] // wide, *place))
    assert [(row, k) for _, row, k in sorted(seen)] == wanted
    assert sum(which.fold != before for before, which in pairwise_folds(placement)) == unit.allocate(held).folds


def pairwise_folds(placement):
    return zip([-1, *(which.fold for which in placement.passes)], placement.passes, strict=False)


@given(case=cases())
def test_counters_run_as_the_paper_counts(case):
    a, b, unit = case
    met = unit.gather(Bitmap.of(a), Bitmap.of(b))
    held = unit.prune(met.stationary, unit.row_or(met.streaming))
    counters, wide, running = unit.stationary_counters(held), unit.chunk or len(b), 0
    for begin in range(0, len(b), wide):
        for m in range(len(a)):
            for k in range(begin, min(begin + wide, len(b))):
                if prime(a, b)[m][k]:
                    assert counters[m, k] == running % unit.multipliers
                    running += 1
                else:
                    assert counters[m, k] == IDLE
    streaming = unit.streaming_counters(met.streaming)
    for n in range(b.shape[1]):
        for k in range(len(b)):
            before = sum(b[k // wide * wide : k, n])
            assert streaming[k, n] == (before if b[k, n] else IDLE)


@given(case=cases())
def test_tables_and_ports_connect_every_pair_and_no_other(case):
    a, b, unit = case
    met = unit.gather(Bitmap.of(a), Bitmap.of(b))
    placement = unit.place(unit.prune(met.stationary, unit.row_or(met.streaming)))
    counters, products = unit.streaming_counters(met.streaming), set()
    for which in placement.passes:
        for one in unit.flex_dpes(placement, which):
            ports = ports_of(one, which, b, unit)
            for table in unit.tables(one, met.streaming):
                wanted = [lane for lane, k in enumerate(one.k) if k != IDLE and b[k, table.vector]]
                assert [lane for _, lane in table.pairs] == wanted
                assert [source for source, _ in table.pairs] == [counters[one.k[lane], table.vector] for lane in wanted]
                products |= {(int(one.row[lane]), table.vector, int(one.k[lane])) for lane in wanted}
                sources, inputs = ports[0][table.vector], ports[1][table.vector]
                assert [lane for lane, port in enumerate(sources) if port >= 0] == wanted
                assert all(inputs[sources[lane]] == one.k[lane] + 1 for lane in wanted)
                if b[which.k_first : which.k_end, table.vector].sum() <= unit.multipliers:
                    assert [sources[lane] for lane in wanted] == [source for source, _ in table.pairs]
                else:
                    needed = sorted({int(one.k[lane]) for lane in wanted})
                    assert [sources[lane] for lane in wanted] == [needed.index(one.k[lane]) for lane in wanted]
    assert products == {(m, n, k) for m, k in np.argwhere(a) for n in range(b.shape[1]) if b[k, n]}
    assert unit.output_bitmap(met).bits().tolist() == [
        [bool((a[m] & b[:, n]).any()) for n in range(b.shape[1])] for m in range(len(a))
    ]
    assert [tuple(pair) for pair in unit.pairs(Bitmap.of(a), Bitmap.of(b))] == sorted(products)


def ports_of(one, which, b, unit):
    """What the compiled loop connects, for streaming values that tell their k."""
    from trainyard.arrays.sigma.execution import Vectors, ports

    marked = np.where(b, np.arange(1, len(b) + 1)[:, None], 0).T
    sources, inputs, listening = ports(one, which, Vectors.of(np.ascontiguousarray(marked, np.float32), unit.chunk))
    assert listening == (sources >= 0).sum()
    return sources, inputs


@given(case=cases())
def test_the_other_operand_stationary_is_the_transposed_product(case):
    a, b, unit = case
    turned = unit.gather(Bitmap.of(a), Bitmap.of(b), "b")
    plain = unit.gather(Bitmap.of(b.T), Bitmap.of(a.T), "a")
    assert (turned.stationary, turned.streaming) == (plain.stationary, plain.streaming)
    assert unit.output_bitmap(turned) == unit.output_bitmap(plain).transposed()


@pytest.mark.paper
def test_the_walk_through_has_the_counts_of_figure_5():
    claimed = next(claim.value for claim in claims() if claim.id == "sigma.walkthrough")
    array, a, b = EXAMPLE.array, EXAMPLE.a, EXAMPLE.b
    unit = Controller.of(array)
    met = unit.gather(Bitmap.of(a), Bitmap.of(b))
    held = unit.prune(met.stationary, unit.row_or(met.streaming))
    found = unit.allocate(held)
    assert [unit.multipliers, found.useful, found.flex_dpes, array.bandwidth] == list(claimed)
    assert held.nonzeros < met.stationary.nonzeros  # step ii has something to do
    assert array.cost(MatMul(*(len(a), b.shape[1], len(b))), a=a, b=b, stationary="a").loading == 2  # one Flex-DPE each cycle


def test_naive_routing_is_source_minus_destination():
    assert Table(flex_dpe=0, vector=0, pairs=((0, 0), (0, 2), (3, 1))).naive_routing() == (0, -2, 2)


def test_what_does_not_multiply_is_refused():
    unit = Controller(multipliers=4, dpes=1)
    with pytest.raises(BadInput, match="do not multiply"):
        unit.gather(Bitmap.of(np.ones((2, 3))), Bitmap.of(np.ones((2, 3))))
    with pytest.raises(BadInput, match="chunk must be a positive"):
        Controller(multipliers=4, dpes=1, chunk=0)


class TestFigure4:
    """A 4 x 4 systolic array beside a Flex-DPE of 16 multipliers; values are ours, sizes and statements are Sec. III-C's."""

    systolic = Systolic(rows=4, columns=4, dataflow="ws")
    sigma = Sigma(dpes=1, multipliers=16, bandwidth=4)

    def test_dense_regular_fills_both_and_sigma_needs_no_skew(self):
        op = MatMul(4, 4, 4)
        rigid, flexible = self.systolic.cost(op), self.sigma.cost(op, stationary="b")
        assert (rigid.events["array_pass"], flexible.folds, flexible.utilisation) == (1, 1, 1.0)
        # loading is the same 4 cycles (4 elements each); then sqrt(N) against O(1) distribution and O(log N) reduction
        assert flexible.loading == self.systolic.rows
        assert flexible.streaming + flexible.add < rigid.cycles - flexible.loading + 1

    def test_dense_irregular_halves_the_systolic_array_only(self):
        op = MatMul(4, 8, 2)  # a.A + b.I: two k's; A to H and I to P: eight columns
        rigid, flexible = self.systolic.cost(op), self.sigma.cost(op, stationary="b")
        assert op.K * op.N == self.systolic.peak_macs_per_cycle == 16
        assert (rigid.events["array_pass"], flexible.folds, flexible.utilisation) == (2, 1, 1.0)
        assert rigid.cycles > 2 * self.systolic.cost(MatMul(4, 4, 2)).cycles  # "more than doubling"
        assert (rigid.events["scratchpad_read_a"], flexible.events["scratchpad_read_a"]) == (16, 8)  # MK is streamed once

    def test_sparse_irregular_holds_only_non_zeros_but_streams_zeros(self):
        rng = np.random.default_rng(4)
        b = rng.permutation(np.arange(32) < 16).reshape(4, 8)  # 16 non-zeros of 32
        a = np.array([[1, 0, 1, 0], [0, 1, 1, 0], [1, 1, 0, 0], [0, 0, 1, 1]])
        op = MatMul(4, 8, 4)
        rigid, held = self.systolic.cost(op, a=a, b=b), self.sigma.cost(op, a=a, b=b, stationary="b")
        assert (rigid.events["array_pass"], held.folds, held.utilisation) == (2, 1, 1.0)
        assert held.compute_efficiency < 1  # some multipliers hear a zero
        pairs = self.sigma.cost(op, a=a, b=b, stationary="none")
        assert pairs.useful == held.useful == int((a @ b).sum())
        fast = Sigma(dpes=1, multipliers=16, bandwidth=32).cost(op, a=a, b=b, stationary="none")
        assert fast.streaming == -(-pairs.useful // 16) < held.streaming  # only necessary pairs, given the bandwidth
        assert pairs.streaming == -(-2 * pairs.useful // 4) > held.streaming  # which they need more of
