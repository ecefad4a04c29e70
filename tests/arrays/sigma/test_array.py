"""SIGMA's cost against a count that looks at every element, and what must hold whatever the zeros are."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainyard as ty
from trainyard.arrays import Sigma, Systolic
from trainyard.errors import BadInput, MaskError, UnknownName
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.ir import Density, MatMul, Product

Bits = np.ndarray[Any, np.dtype[np.bool_]]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Sigma, MatMul, Bits, Bits]:
    array = Sigma(
        dpes=draw(st.integers(1, 5)),
        multipliers=draw(st.sampled_from([1, 2, 4, 8])),
        bandwidth=draw(st.integers(1, 9)),
        streaming=draw(st.sampled_from(["wide", "limited"])),
        drain=draw(st.sampled_from(["fold", "pass"])),
    )
    op = MatMul(draw(st.integers(1, 12)), draw(st.integers(1, 12)), draw(st.integers(1, 20)))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    a, b = (random.random(shape) < draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0])) for shape in ((op.M, op.K), (op.K, op.N)))
    return array, op, a, b


def counted(array: Sigma, op: MatMul, a: Bits, b: Bits, side: str) -> tuple[int, int, int, int]:
    """Loading, streaming, add and useful products, element by element."""
    held = [[] for _ in range(op.K)]  # type: list[list[int]]
    useful = 0
    for k in range(op.K):
        rows, columns = [m for m in range(op.M) if a[m, k]], [n for n in range(op.N) if b[k, n]]
        useful += sum(1 for _ in rows for _ in columns)
        mine, other = (rows, columns) if side == "a" else (columns, rows)
        if other:
            held[k] = mine
    number, pool, vectors = sum(map(len, held)), array.dpes * array.multipliers, op.N if side == "a" else op.M
    folds = math.ceil(number / pool)
    passes = folds
    if array.streaming == "limited":
        chunks = [sum(map(len, held[start : start + array.bandwidth])) for start in range(0, op.K, array.bandwidth)]
        passes = sum(math.ceil(count / pool) for count in chunks)
    drains = passes if array.streaming == "limited" and array.drain == "pass" else folds
    return math.ceil(number / array.bandwidth), passes * vectors, drains * math.ceil(math.log2(pool)), useful


@pytest.mark.oracle
@given(cases())
def test_every_metric_equals_a_count_element_by_element(case: tuple[Sigma, MatMul, Bits, Bits]) -> None:
    array, op, a, b = case
    for side in ("a", "b"):
        cost = array.cost(op, a=a, b=b, stationary=side)  # type: ignore[arg-type]
        loading, streaming, add, useful = counted(array, op, a, b, side)
        assert (cost.loading, cost.streaming, cost.add, cost.useful) == (loading, streaming, add, useful)
        assert cost.cycles == loading + streaming + add
        if cost.cycles:
            peak = array.peak_macs_per_cycle
            assert cost.folds == math.ceil(cost.mapped_elements / peak)
            assert cost.utilisation == pytest.approx(cost.mapped_elements / (math.ceil(cost.mapped_elements / peak) * peak))
            assert cost.overall_efficiency == pytest.approx(useful / (peak * cost.cycles))
            assert cost.compute_efficiency == pytest.approx(useful / (peak * streaming))
    best = array.cost(op, a=a, b=b)
    assert best.cycles == min(array.cost(op, a=a, b=b, stationary=side).cycles for side in ("a", "b"))  # type: ignore[arg-type]


@pytest.mark.unit
@given(cases())
def test_fewer_nonzeros_never_cost_time(case: tuple[Sigma, MatMul, Bits, Bits]) -> None:
    array, op, a, b = case
    less = a.copy()
    less[: (op.M + 1) // 2] = False
    for side in ("a", "b", "none", "best"):
        whole, part = (array.cost(op, a=mask, b=b, stationary=side).cycles for mask in (a, less))  # type: ignore[arg-type]
        assert part <= whole


@pytest.mark.unit
@given(cases())
def test_useful_products_fit_into_the_cycles_of_streaming(case: tuple[Sigma, MatMul, Bits, Bits]) -> None:
    array, op, a, b = case
    for side in ("a", "b", "none"):
        cost = array.cost(op, a=a, b=b, stationary=side)  # type: ignore[arg-type]
        assert cost.useful <= cost.streaming * array.peak_macs_per_cycle
        assert 0 <= cost.overall_efficiency <= cost.compute_efficiency <= 1
        assert 0 <= cost.utilisation <= 1
        assert cost.useful == int((a.astype(int) @ b.astype(int)).sum())


@pytest.mark.unit
@given(cases())
def test_masks_may_come_in_any_form(case: tuple[Sigma, MatMul, Bits, Bits]) -> None:
    array, op, a, b = case
    plain = array.cost(op, a=a, b=b)
    packed = array.cost(op, a=np.packbits(a, axis=1), b=np.packbits(b, axis=1))
    words = array.cost(op, a=Bitmap.of(a), b=Bitmap.of(b))
    values = array.cost(op, a=a * -1.5, b=b.astype(np.int8))
    assert plain == packed == words == values


@pytest.mark.oracle
@given(cases())
def test_the_mirrored_product_is_the_same(case: tuple[Sigma, MatMul, Bits, Bits]) -> None:
    array, op, a, b = case
    turned = MatMul(op.N, op.M, op.K)
    cost, mirrored = array.cost(op, a=a, b=b, stationary="a"), array.cost(turned, a=b.T, b=a.T, stationary="b")
    assert (cost.cycles, cost.useful, cost.folds) == (mirrored.cycles, mirrored.useful, mirrored.folds)


@pytest.mark.probe
def test_one_element_more_is_one_fold_more() -> None:
    array = Sigma(dpes=2, multipliers=4, bandwidth=4)
    full = np.ones((2, 4), dtype=bool)
    more = np.zeros((3, 4), dtype=bool)
    more[:2], more[2, 0] = True, True
    b = np.ones((4, 10), dtype=bool)
    assert array.cost(MatMul(2, 10, 4), a=full, b=b, stationary="a").cycles == 2 + 10 + 3
    assert array.cost(MatMul(3, 10, 4), a=more, b=b, stationary="a").cycles == 3 + 20 + 6


@pytest.mark.probe
def test_a_column_that_meets_nothing_is_not_mapped() -> None:
    array = Sigma(dpes=1, multipliers=4, bandwidth=1)
    a = np.ones((2, 3), dtype=bool)
    b = np.array([[1, 0], [0, 0], [0, 1]], dtype=bool)
    cost = array.cost(MatMul(2, 2, 3), a=a, b=b, stationary="a")
    assert (cost.mapped_elements, cost.loading, cost.folds, cost.useful) == (4, 4, 1, 4)


@pytest.mark.paper
def test_dense_efficiency_of_the_suite() -> None:
    from trainyard.papers.sigma.suite import SUITE

    costs = [Sigma().cost(op) for op in SUITE]
    assert 100 * sum(cost.overall_efficiency for cost in costs) / len(costs) == pytest.approx(80.3, abs=0.1)
    assert all(cost.useful == op.macs for cost, op in zip(costs, SUITE, strict=True))


@pytest.mark.unit
def test_density_agrees_with_masks_of_that_density() -> None:
    op, array = MatMul(300, 400, 500), Sigma(dpes=16, multipliers=16)
    a, b = (Bitmap.random(*shape, nonzero=p, seed=7) for shape, p in (((300, 500), 0.2), ((500, 400), 0.7)))
    for side in ("a", "b", "none"):
        exact = array.cost(op, a=a, b=b, stationary=side)  # type: ignore[arg-type]
        expected = array.cost(op, a=Density(0.2), b=Density(0.7), stationary=side)  # type: ignore[arg-type]
        assert expected.cycles == pytest.approx(exact.cycles, rel=0.02)
        assert expected.useful == pytest.approx(exact.useful, rel=0.02)


@pytest.mark.unit
@pytest.mark.parametrize(("cluster", "held"), [("channel", 0.25 * 64 * 40), ("row", 0.25 * 64 * 40)])
def test_clustered_zeros(cluster: str, held: float) -> None:
    cost = Sigma().cost(MatMul(40, 30, 64), a=Density(0.25, cluster), stationary="a")  # type: ignore[arg-type]
    assert cost.mapped_elements == held
    other = Sigma().cost(MatMul(40, 30, 64), a=Density(0.25, cluster), stationary="b")  # type: ignore[arg-type]
    assert other.mapped_elements == (
        0.25 * 64 * 30 if cluster == "channel" else 64 * 30
    )  # whole channels away: their weights meet nothing


@pytest.mark.unit
def test_closed_forms_are_the_dense_cost() -> None:
    for streaming in ("wide", "limited"):
        for drain in ("fold", "pass"):
            array = Sigma(dpes=4, multipliers=8, bandwidth=5, streaming=streaming, drain=drain)  # type: ignore[arg-type]
            for m, n, k in ((1, 1, 1), (7, 9, 11), (32, 5, 64), (3, 100, 10)):
                for form, side in zip(array.folds, ("a", "b"), strict=True):
                    assert form.cycles(m, n, k) == array.cost(MatMul(m, n, k), stationary=side).cycles  # type: ignore[arg-type]


@pytest.mark.unit
def test_a_density_that_leaves_chunks_nearly_empty_still_streams_them() -> None:
    array, op = Sigma(streaming="limited"), MatMul(4, 2048, 65536)
    expected = array.cost(op, a=Density(0.0009), stationary="a")
    exact = array.cost(op, a=Bitmap.random(4, 65536, nonzero=0.0009, seed=5), stationary="a")
    assert exact.streaming <= expected.streaming <= 3 * exact.streaming
    full = MatMul(256, 300, 1000)
    for p in (0.05, 0.3, 0.9):
        drawn = array.cost(full, a=Bitmap.random(256, 1000, nonzero=p, seed=6), stationary="a")
        assert array.cost(full, a=Density(p), stationary="a").cycles == pytest.approx(drawn.cycles, rel=0.02)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Sigma, MatMul, Density]:
    array = Sigma(
        dpes=draw(st.integers(1, 40)),
        multipliers=draw(st.sampled_from([1, 2, 8, 128])),
        bandwidth=draw(st.integers(1, 40)),
        streaming=draw(st.sampled_from(["wide", "limited"])),
        stationary=draw(st.sampled_from(["best", "a", "b"])),
        across=draw(st.sampled_from(["tree", "chain", "buffer"])),
    )
    size = st.integers(1, 40)
    op = MatMul(draw(size), draw(size), draw(size), draw(st.integers(2, 20)))
    return array, op, Density(draw(st.sampled_from([0.2, 0.7, 1.0])))


@pytest.mark.unit
@given(batches())
def test_metrics_of_several_products_at_once_can_be(case: tuple[Sigma, MatMul, Density]) -> None:
    array, op, a = case
    cost, one = array.cost(op, a=a), array.cost(replace(op, count=1), a=a)
    assert cost.cycles <= op.count * one.cycles
    assert cost.loading + cost.streaming + cost.add == cost.cycles
    assert min(cost.loading, cost.streaming, cost.add) >= 0
    assert cost.useful == op.count * one.useful
    assert 0 <= cost.utilisation <= 1 + 1e-9
    assert 0 <= cost.overall_efficiency <= 1 + 1e-9
    assert 0 <= cost.compute_efficiency <= 1 + 1e-2  # expectations are rounded
    assert cost.streaming_slots >= cost.useful * 0.99
    assert cost.events["multiplier_slot"] == cost.streaming_slots
    assert cost.events["stationary_load"] == cost.mapped_elements
    other = f"scratchpad_read_{'b' if cost.stationary == 'a' else 'a'}"
    if array.stationary != "best":  # a smaller Flex-DPU takes more folds, each of which reads the streaming operand
        assert cost.mapped_elements == op.count * one.mapped_elements
        assert cost.events[other] >= op.count * one.events[other] * (1 - 1e-9)


@pytest.mark.unit
@given(st.lists(batches().map(lambda case: case[1:]), min_size=1, max_size=3), batches().map(lambda case: case[0]))
def test_concurrent_is_never_slower_than_one_after_another(given: list[tuple[MatMul, Density]], array: Sigma) -> None:
    products = [Product(op=op, a=a) for op, a in given]
    together = array.concurrent(products)
    assert together.cycles <= sum(array.cost(product.op, a=product.a).cycles for product in products)
    assert max(together.finish) == together.cycles
    assert all(0 < end <= together.cycles for end in together.finish)


@pytest.mark.unit
@given(cases())
def test_events_are_what_goes_through_the_fabric(case: tuple[Sigma, MatMul, Bits, Bits]) -> None:
    array, op, a, b = case
    for side in ("a", "b"):
        cost = array.cost(op, a=a, b=b, stationary=side)  # type: ignore[arg-type]
        events, vectors, passes = cost.events, op.N if side == "a" else op.M, cost.streaming // (op.N if side == "a" else op.M)
        assert events["mac"] == events["multiplication"] == events["addition"] == cost.useful
        assert events["stationary_load"] == events[f"scratchpad_read_{side}"] == cost.mapped_elements
        assert events["distribution"] == cost.mapped_elements + cost.useful
        assert events["multiplier_slot"] == cost.streaming * array.peak_macs_per_cycle
        other = events[f"scratchpad_read_{'b' if side == 'a' else 'a'}"]
        assert events["broadcast"] == cost.mapped_elements + other
        still = int((b if side == "a" else a)[(a.any(0), slice(None)) if side == "a" else (slice(None), b.any(1))].sum())
        assert (
            still <= other + 1e-9
            if cost.mapped_elements > 0 and array.streaming == "limited"
            else other <= still * max(1, cost.folds)
        )
        split = vectors * max(0, passes - 1)
        assert events["scratchpad_read_out"] in (split, split * (op.M if side == "a" else op.N))
        assert events["scratchpad_write_out"] == op.M * op.N + events["scratchpad_read_out"]
    pairs = array.cost(op, a=a, b=b, stationary="none")
    assert pairs.events["broadcast"] == pairs.events["distribution"] == 2 * pairs.useful


@pytest.mark.unit
def test_heads_side_by_side_are_never_slower_than_one_after_another() -> None:
    array = Sigma()
    head = array.cost(MatMul(128, 128, 64)).cycles
    for count in (1, 2, 3, 12, 96):
        heads = array.cost(MatMul(128, 128, 64, count))
        assert heads.cycles <= count * head
        assert heads.loading + heads.streaming + heads.add == heads.cycles
        assert heads.useful == count * 128 * 128 * 64
        assert array.cost(MatMul(128, 128, 64, count)).events["mac"] == heads.useful
    assert array.cost(MatMul(128, 128, 64, 12)).cycles < 12 * head


@pytest.mark.unit
def test_concurrent_products_finish_when_all_do() -> None:
    array = Sigma()
    products = [Product(op=MatMul(64, 256, 128)), Product(op=MatMul(256, 128, 64), a=Density(0.3)), Product(op=MatMul(16, 16, 16))]
    together = array.concurrent(products)
    apart = [array.cost(product.op, a=product.a, b=product.b) for product in products]
    assert max(together.finish) == together.cycles <= sum(cost.cycles for cost in apart)
    assert len(together.finish) == 3
    assert together.events["mac"] == sum(cost.events["mac"] for cost in apart)


@pytest.mark.unit
def test_where_sums_meet_changes_the_add_alone() -> None:
    op = MatMul(64, 100, 300)
    tree = Sigma(dpes=8, multipliers=16).cost(op, stationary="a")
    for across in ("chain", "buffer"):
        other = replace(Sigma(dpes=8, multipliers=16), across=across).cost(op, stationary="a")  # type: ignore[arg-type]
        assert (other.loading, other.streaming) == (tree.loading, tree.streaming)
        assert other.cycles == other.loading + other.streaming + other.add
        assert other.add > 0


@pytest.mark.unit
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"multipliers": 12}, "power of two"),
        ({"bandwidth": 0}, "bandwidth"),
        ({"dpes": -1}, "dpes"),
    ],
)
def test_bad_sizes_are_said(fields: dict[str, int], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Sigma(**fields)  # type: ignore[arg-type]


@pytest.mark.unit
def test_bad_choices_and_masks_are_said() -> None:
    with pytest.raises(UnknownName, match="wide"):
        Sigma(streaming="wid")  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="stationary"):
        Sigma().cost(MatMul(2, 2, 2), stationary="c")  # type: ignore[arg-type]
    with pytest.raises(MaskError, match="3"):
        Sigma().cost(MatMul(2, 2, 3), a=np.ones((3, 2)), b=np.ones((3, 2)))
    with pytest.raises(MaskError, match="one by one"):
        Sigma().cost(MatMul(2, 2, 2, 4), a=np.ones((2, 2)))
    with pytest.raises(BadInput, match="divided"):
        Sigma(dpes=4).divided([3, 2])


@pytest.mark.unit
def test_nothing_to_do_takes_no_time() -> None:
    cost = Sigma().cost(MatMul(4, 4, 4), a=np.zeros((4, 4)), b=np.ones((4, 4)))
    assert (cost.cycles, cost.useful, cost.utilisation, cost.overall_efficiency) == (0, 0, 0.0, 0.0)


@pytest.mark.unit
def test_the_array_is_offered_under_its_name() -> None:
    assert ty.arrays.Sigma is Sigma
    assert Sigma().peak_macs_per_cycle == Systolic(rows=128, columns=128).peak_macs_per_cycle == 16384
    assert ty.machine("sigma").array == Sigma()
