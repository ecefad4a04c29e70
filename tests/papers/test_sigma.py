"""SIGMA's experiments: the suite against a plain twin, the readings beside the judged ones, the features, rivals and formats."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.arrays import Sigma, Systolic
from trainyard.arrays.sigma.array import SigmaCost
from trainyard.errors import BadInput
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.hardware.formats.matrices import BITMAP, RLC2, RLC4
from trainyard.ir import MatMul
from trainyard.machines.presets import sigma as presets
from trainyard.papers import bench, ledger
from trainyard.papers.changes import moved
from trainyard.papers.provenance import literals_of
from trainyard.papers.sigma import (
    baseline,
    context,
    dataflows,
    examples,
    features,
    formats,
    performance,
    plots,
    rivals,
    suite,
)
from trainyard.papers.sigma.suite import (
    ALL_SHAPES,
    K_ALONG_COLUMNS,
    K_ALONG_ROWS,
    NARROW,
    SMALL,
    SPARSITIES,
    SQUARE,
    SUITE,
    TPU_SHAPES,
    label,
)

QUICK = (SMALL, MatMul(256, 256, 2048), MatMul(2048, 4096, 32))
P = 128 * 128


def written_out(
    op: MatMul, pair: suite.Pair, side: suite.Side, *, pruned: bool = True, limited: bool = False
) -> tuple[int, int, int]:
    """Loading, streaming and add on matrices of bool, by the words of Sec. IV-E and Table II."""
    a, b = (suite.mask(op, which, zeros).bits() for which, zeros in (("a", pair[0]), ("b", pair[1])))
    mine, other, vectors = (a, b.T, op.N) if side == "a" else (b.T, a, op.M)
    held = mine & other.any(axis=0) if pruned else mine
    count = int(held.sum())
    folds = -(-count // P)
    passes = folds
    if limited:
        passes = sum(-(-int(held[:, first : first + 128].sum()) // P) for first in range(0, op.K, 128))
    return -(-count // 128), passes * vectors, 14 * folds


def sigma_default(op: MatMul, pair: suite.Pair) -> SigmaCost:
    """The array with nothing changed: step ii is its default."""
    a, b = suite.operands(op, pair)
    return Sigma().cost(op, a=a, b=b)


# ---- the suite


@pytest.mark.oracle
@pytest.mark.parametrize("op", QUICK, ids=label)
@pytest.mark.parametrize("pair", SPARSITIES[2:5])
def test_the_suite_equals_its_rules_written_out(op: MatMul, pair: suite.Pair) -> None:
    for side in ("a", "b"):
        for streaming in ("wide", "limited"):
            for step_ii in (False, True):
                found = suite.stationary_cost(op, pair, side, streaming, step_ii=step_ii)
                expected = written_out(op, pair, side, pruned=step_ii, limited=streaming == "limited")
                assert (found.loading, found.streaming, found.add) == expected
    evaluated, pruned = (min(sum(written_out(op, pair, side, pruned=one)) for side in ("a", "b")) for one in (False, True))
    assert suite.cost(op, pair).cycles == evaluated
    assert suite.cost(op, pair, step_ii=True).cycles == pruned <= evaluated
    assert suite.cost(op, pair, step_ii=True) == sigma_default(op, pair)


@pytest.mark.oracle
def test_useful_products_are_those_of_two_non_zeros() -> None:
    op, pair = SMALL, (0.5, 0.8)
    a, b = (suite.mask(op, side, zeros).bits().astype(np.int64) for side, zeros in (("a", 0.5), ("b", 0.8)))
    useful = int((a @ b).sum())
    assert suite.cost(op, pair).useful == useful
    assert suite.tpu_efficiencies([(op, pair)]) == [pytest.approx(useful / (P * suite.tpu_cycles(op)))]


def test_masks_are_drawn_once_and_have_their_sparsity() -> None:
    for op in QUICK:
        for zeros in (0.1, 0.8):
            mask = suite.mask(op, "a", zeros)
            assert mask is suite.mask(op, "a", zeros)
            assert mask.shape == (op.M, op.K)
            assert 1 - mask.density == pytest.approx(zeros, abs=5 * (zeros * (1 - zeros) / (op.M * op.K)) ** 0.5)
    assert suite.mask(QUICK[1], "a", 0.8) != suite.mask(QUICK[1], "b", 0.8).transposed()


@pytest.mark.oracle
@pytest.mark.parametrize("op", SUITE, ids=label)
def test_the_tpu_takes_the_best_shape_and_operand(op: MatMul) -> None:
    """Table II: every fold loads for 128 cycles, streams, and adds for 128."""

    def total(rows: int, columns: int, loading: int) -> int:
        both = [(-(-op.N // columns), op.M), (-(-op.M // columns), op.N)]
        return min(-(-op.K // rows) * across * (128 * loading + vectors + 128) for across, vectors in both)

    for shapes in (SQUARE, K_ALONG_COLUMNS, K_ALONG_ROWS, ALL_SHAPES):
        assert suite.tpu_cycles(op, shapes) == min(total(r, c, 1) for r, c in shapes)
    assert suite.tpu_cycles(op, counting="no loading") == total(128, 128, 0)
    arrays = [Systolic(rows=128, columns=128, dataflow=flow) for flow in ("ws", "is")]
    assert suite.tpu_cycles(op, counting="SCALE-Sim 2020") == min(array.cost(op).cycles for array in arrays)
    assert suite.tpu_cycles(op, flows=("ws",), counting="SCALE-Sim 2020") == arrays[0].cost(op).cycles
    assert suite.tpu_cycles(op, counting="used rows") <= suite.tpu_cycles(op)


@pytest.mark.oracle
@given(st.builds(MatMul, st.integers(1, 300), st.integers(1, 300), st.integers(1, 300)), st.integers(1, 40), st.integers(1, 40))
def test_folds_at_the_edges_are_counted_by_what_they_use(op: MatMul, rows: int, columns: int) -> None:
    """SCALE-Sim's form of 2018 and the rows in use, with a loop over all folds."""

    def total(across: int, vectors: int, cycles: Callable[[int, int, int], int]) -> int:
        return sum(
            cycles(min(rows, op.K - top), min(columns, across - left), vectors)
            for top in range(0, op.K, rows)
            for left in range(0, across, columns)
        )

    forms: dict[suite.Counting, Callable[[int, int, int], int]] = {
        "SCALE-Sim 2018": lambda high, wide, vectors: 2 * high + wide + vectors,
        "used rows": lambda high, wide, vectors: high + vectors + math.isqrt(rows * columns),
        "own rows": lambda high, wide, vectors: 2 * rows + vectors,
    }
    for counting, cycles in forms.items():
        expected = min(total(op.N, op.M, cycles), total(op.M, op.N, cycles))
        assert suite.tpu_cycles(op, ((rows, columns),), counting=counting) == expected


@pytest.mark.paper
def test_a_short_k_fits_the_columns_of_the_tall_tpu() -> None:
    """Sec. VI-C: a K of 32 underuses 128x128 and 256x64 and makes 512x32 far faster; turned, the shapes would be slower."""
    op = MatMul(2048, 4096, 32)
    gain = {name: suite.tpu_cycles(op) / suite.tpu_cycles(op, (shape,)) for name, shape in TPU_SHAPES.items()}
    assert gain["512x32"] > 1.9 * gain["256x64"] > 3.6 * gain["128x128"] > 3.5
    assert max(suite.tpu_cycles(op) / suite.tpu_cycles(op, (shape,)) for shape in K_ALONG_ROWS) == 1
    form = {counting: suite.tpu_cycles(NARROW, counting=counting) for counting in ("table II", "SCALE-Sim 2018", "SCALE-Sim 2020")}
    assert form["table II"] < form["SCALE-Sim 2018"] < form["SCALE-Sim 2020"]
    assert {rows * columns for rows, columns in ALL_SHAPES} == {P}
    assert len(ALL_SHAPES) == 5


# ---- Fig. 12


@pytest.mark.paper
def test_efficiency_of_the_tpu_by_every_reading() -> None:
    found = baseline.EXPERIMENTS["sigma.dense.efficiency.tpu"]()
    each = [100 * fmean(max(op.macs / P / suite.tpu_cycles(op, (shape,)) for shape in shapes) for op in SUITE)
            for shapes in (SQUARE, K_ALONG_COLUMNS, K_ALONG_ROWS, ALL_SHAPES)]  # fmt: skip
    assert found.value == pytest.approx(each[1])
    assert each[0] < each[2] < each[1] < each[3]
    for value in each:
        assert f"{value:.1f} %" in found.note + found.details


@pytest.mark.paper
def test_dense_speedup_with_its_other_readings() -> None:
    found = performance.EXPERIMENTS["sigma.dense.speedup_over_tpu"]()
    ratios = [suite.tpu_cycles(op) / Sigma().cost(op).cycles for op in SUITE]
    assert found.value == pytest.approx(geometric_mean(ratios))
    for text in (
        f"arithmetic {fmean(ratios):.2f}",
        "2018, the tool that the paper cites 1.94 / 2.56",
        "of 2020, the default of our array 1.99 / 2.67",
    ):
        assert text in found.note + found.details


@pytest.mark.paper
def test_sparse_speedup_is_of_all_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = tuple((op, pair) for op in QUICK for pair in SPARSITIES)
    monkeypatch.setattr(performance, "SPARSE_CASES", cases)
    found = performance.sparse_speedup()
    ratios = [suite.tpu_cycles(op) / suite.cost(op, pair).cycles for op, pair in cases]
    assert found.value == pytest.approx(geometric_mean(ratios))
    assert f"arithmetic {fmean(ratios):.2f}" in found.note + found.details
    whole = performance.EXPERIMENTS["sigma.sparse.efficiency.sigma"]()
    assert whole.value == pytest.approx(100 * fmean(suite.cost(op, pair).overall_efficiency for op, pair in cases))


@pytest.mark.paper
def test_near_full_leaves_out_only_the_gemm_that_is_named() -> None:
    found = performance.EXPERIMENTS["sigma.dense.efficiency.near_full"]()
    assert found.value == pytest.approx(100 * fmean(Sigma().cost(op).overall_efficiency for op in SUITE if op != SMALL))
    assert "2048-1-128 (0.8 %)" in found.note + found.details
    assert "the 8 that keep" in found.note + found.details


@pytest.mark.paper
def test_the_reading_decides_how_common_low_utilisation_is() -> None:
    found = baseline.EXPERIMENTS["sigma.tpu.utilisation_irregular_below"]()
    assert len(baseline.IRREGULAR) == 6
    # cells of 128 that a row or a column fills: 32 of K; 16 of N; 35 of M; 84 of K; 84 of M; 1 of N
    shares = sorted(100 * side / 128 for side in (32, 16, 35, 84, 84, 1))
    assert found.value == pytest.approx((shares[2] + shares[3]) / 2, rel=0.01)
    for text in ("Of all ten 4", "mean 58 %", "by overall efficiency 4, mean 49 %"):
        assert text in found.note + found.details


# ---- Figs. 10 and 11


@pytest.mark.oracle
@pytest.mark.parametrize("workload", ["dense regular", "dense irregular"])
def test_features_add_up_and_none_hurts(workload: str) -> None:
    case = features.WORKLOADS[workload]
    found = [features.metrics(workload, feature) for feature in features.FEATURES]
    flow: Literal["ws", "is"] = "ws" if case.stationary == "b" else "is"
    assert found[0].cycles == suite.tpu_cycles(case.op, flows=(flow,))
    assert found[0].loading == found[0].add == 128 * -(-case.op.K // 128) * -(-case.op.N // 128)
    assert found[1].cycles == suite.tpu_cycles(case.op, ALL_SHAPES, flows=(flow,))
    assert found[3] == found[2]  # nothing is zero
    assert found[0].cycles >= found[1].cycles >= found[2].cycles
    assert found[2].add == 14 * -(-case.op.K * case.op.N // P)


@pytest.mark.paper
def test_sparse_features_say_what_the_paper_says_of_them() -> None:
    """Sec. VI-B."""
    streaming, loading = (features.metrics(f"sparse irregular {flow}", "Fl+Sc+Sp") for flow in ("M-str,N-sta", "M-sta,N-str"))
    assert streaming.streaming > streaming.cycles / 2
    assert loading.loading > loading.cycles / 2
    assert loading.compute_efficiency > 2 * streaming.compute_efficiency
    for flow, stays in (("M-str,N-sta", 0.7), ("M-sta,N-str", 0.2)):
        each = [features.metrics(f"sparse irregular {flow}", feature) for feature in features.FEATURES]
        assert [one.cycles for one in each] == sorted((one.cycles for one in each), reverse=True)
        assert len({one.useful for one in each}) == 1
        assert each[2].utilisation == pytest.approx(stays, rel=0.01)  # zeros are held
        assert each[3].utilisation > 0.999
    assert features.EXPERIMENTS["sigma.sparse.stationary_utilisation"]().value > 99.9  # type: ignore[operator]


@pytest.mark.paper
def test_without_reuse_every_multiplier_is_used_and_time_is_lost() -> None:
    for op in QUICK[1:]:
        best = [suite.cost(op, pair).cycles for pair in SPARSITIES]
        for one, least in zip(dataflows.costs(op, "none"), best, strict=True):
            assert one.utilisation > 0.99
            assert one.cycles > least
            assert one.streaming == -(-2 * one.useful // 128)
        parts = {flow: sum(dataflows.breakdown(op, flow).values()) for flow in ("a", "b", "none")}
        assert min(parts["a"], parts["b"]) >= 1
        assert parts["none"] > max(parts["a"], parts["b"])


# ---- Fig. 14


@pytest.mark.oracle
@pytest.mark.parametrize("name", rivals.ARRAYS)
def test_a_rival_has_the_best_of_four(name: str) -> None:
    op = QUICK[1]
    masks = [{"a": suite.mask(op, "a", pair[0]), "b": suite.mask(op, "b", pair[1])} for pair in rivals.PAIRS]
    assert rivals.cycles(name, op) == min(rivals.ARRAYS[name].cost(op, **zeros).cycles for zeros in masks)
    added = rivals.cycles(name, op) - rivals.cycles(name, op, loading="left out")
    if name not in rivals.LOADED:
        assert added == 0
    else:
        kept = sorted(-(-zeros[side].nonzeros // 128) for zeros in masks for side in ("a", "b"))
        assert kept[0] <= added <= kept[-1]


def test_all_designs_have_as_many_multipliers() -> None:
    assert {array.peak_macs_per_cycle for array in rivals.ARRAYS.values()} == {P}
    assert context.EXPERIMENTS["sigma.pes"]().value == P


# ---- Figs. 4 and 7


@pytest.mark.paper
def test_small_examples_say_what_the_paper_says_of_them() -> None:
    """Sec. III-C: all of a regular KN lies in both; half of the others fits the systolic array, which takes twice as long."""
    bars = [examples.results(gemm) for gemm in examples.GEMMS]
    assert [bar[examples.RIGID].folds for bar in bars] == [1, 2, 2]
    assert [bar[examples.RIGID].utilisation for bar in bars] == [1, 0.5, 0.5]
    assert [(bar[examples.FLEXIBLE].folds, bar[examples.FLEXIBLE].utilisation) for bar in bars] == [(1, 1.0)] * 3
    assert bars[0][examples.RIGID].cycles > bars[0][examples.FLEXIBLE].cycles
    assert all(bar[examples.RIGID].cycles > 2 * bar[examples.FLEXIBLE].cycles for bar in bars[1:])
    figure = examples.figure_4()
    assert [list(trace.y) for trace in figure.data if trace.name == examples.RIGID] == [[13, 27, 27], [1, 2, 2], [100, 50, 50]]
    assert [trace.showlegend for trace in figure.data].count(True) == len(examples.COLOURS)


@pytest.mark.oracle
def test_front_ends_take_as_many_cycles_as_what_they_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane takes one element, one non-zero or 16 bits of a bitmap in a cycle."""
    monkeypatch.setattr(formats, "ROWS", 100)
    monkeypatch.setattr(formats, "COLUMNS", 1000)
    cached = (formats._mask, formats.footprint, formats.front_end_cycles)
    for one in cached:
        one.cache_clear()
    try:
        for level in (0.0, 0.8):
            kept = formats._mask(level).nonzeros
            assert formats.front_end_cycles("none", level) == -(-100_000 // 128)
            assert formats.front_end_cycles("coo", level) == -(-kept // 128)
            assert formats.front_end_cycles("bitmap", level) == -(-100_000 // (16 * 128))
            assert formats.front_end_cycles("rlc2", level) >= formats.front_end_cycles("rlc4", level) >= -(-kept // 128)
        figure = plots.figure_7()
        assert "cut at 8" in figure.layout.annotations[0].text
        assert sum(trace.name == "COO" for trace in figure.data) == 2
    finally:
        for one in cached:
            one.cache_clear()


@pytest.mark.probe
def test_crossings_of_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step before the crossing the bitmap is smaller, a step after it the code."""
    monkeypatch.setattr(formats, "ROWS", 200)
    monkeypatch.setattr(formats, "COLUMNS", 4000)
    for cached in (formats._mask, formats.footprint):
        cached.cache_clear()
    try:
        for one, expected in ((RLC2, 0.544), (RLC4, 0.753)):
            at = formats.crossing(one)
            assert at == pytest.approx(expected, abs=0.01)
            for step, smaller in ((-0.02, BITMAP.name), (0.02, one.name)):
                level = round(at + step, 4)
                sizes = {name: formats.overhead(name, level) for name in (BITMAP.name, one.name)}
                assert min(sizes, key=sizes.__getitem__) == smaller
        assert formats.EXPERIMENTS["sigma.format.bitmap_metadata"]().value == 1
    finally:
        for cached in (formats._mask, formats.footprint):
            cached.cache_clear()


# ---- presets, walk-through, figures


@pytest.mark.parametrize("preset", ["EIE", "SCNN", "OUTERSPACE", "EYERISS_V2", "PACKED_SYSTOLIC", "CAMBRICON_X"])
def test_every_number_of_a_rival_names_its_source(preset: str) -> None:
    source = Path(presets.__file__).read_text(encoding="utf-8")
    found = [literal for literal in literals_of(source, preset) if literal.numeric]
    assert found
    assert [literal.path for literal in found if not literal.source] == []
    assert getattr(presets, preset).clock_hz == presets.TPU.clock_hz


def test_every_claim_has_an_experiment() -> None:
    answered = set(bench.experiments("sigma"))
    assert {claim.id for claim in ledger.select("sigma") if claim.use != "context"} <= answered
    assert answered <= {claim.id for claim in ledger.select("sigma")}


def test_the_walkthrough_has_the_counts_of_the_paper() -> None:
    text, _ = bench.walkthrough("sigma")
    assert "N_stat = 8, N_mult = 4: 2 Flex-DPEs" in text
    assert bench.walkthrough("sigma", "7")[0] != text
    with pytest.raises(BadInput, match="a seed such as 7"):
        bench.walkthrough("sigma", "seven")


def test_every_figure_that_a_claim_names_is_drawn() -> None:
    named = {found for claim in ledger.select("sigma") for found in re.findall(r"Fig\. (\d+)", claim.where)}
    numbers = [re.findall(r"Fig\. (\d+)", name) for name in bench.figures("sigma")]
    assert named <= {number for found in numbers for number in found}
    order = [int(found[0]) for found in numbers if found]
    assert order == sorted(order)


def test_figures_show_what_was_measured_and_what_is_printed() -> None:
    figure = plots.figure_12a()
    by_name = {trace.name: trace for trace in figure.data}
    ours = dict(zip(by_name["SIGMA"].x, by_name["SIGMA"].y, strict=True))
    assert ours["mean"] == pytest.approx(geometric_mean(suite.speedups(suite.DENSE_CASES)))
    assert list(by_name["paper, SIGMA"].y) == [2.0]
    assert len(ours) == len(SUITE) + 1
    shapes = plots.figure_1b()
    assert dict(zip(shapes.data[2].x, shapes.data[2].y, strict=True))[label(NARROW)] == 500000


def test_the_case_to_weigh_names_a_machine() -> None:
    workload, machine, zeros = bench.case("sigma")
    assert (workload, machine.partition("(")[0]) == ("transformer-324m", "sigma")
    assert zeros


@pytest.mark.slow
@pytest.mark.paper
def test_the_whole_ledger() -> None:
    rows = {row.id: row for row in bench.walk("sigma")}
    assert not [row.id for row in rows.values() if row.failed]
    assert not [row.id for row in rows.values() if row.verdict == "not yet"]
    assert rows["sigma.sparse.speedup_over_tpu"].ours == pytest.approx(6.37, abs=0.1)
    assert "6.61 (its form of 2018)" in rows["sigma.sparse.speedup_over_tpu"].note  # what speaks against the reading
    assert rows["sigma.sparse.efficiency.sigma"].ours == pytest.approx(42.3, abs=0.5)
    assert rows["sigma.sparse_accelerators.speedup"].ours == pytest.approx(3.10, abs=0.1)
    assert [row.id for row in rows.values() if row.verdict == "off"] == []
    opened = {row.id for row in rows.values() if row.verdict == "open"}
    assert opened == {"sigma.sparse_accelerators.slower_on", "sigma.fan.edp_wins_from", "sigma.dpe.most_energy_efficient"}
    for change in bench.changes("sigma"):
        assert len(moved(change, list(rows.values()))) == len(change.before)
    assert isinstance(suite.mask(NARROW, "a", 0.8), Bitmap)
