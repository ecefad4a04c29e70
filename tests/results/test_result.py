"""Results: exposed times sum exactly, results add and scale, groups partition the rows."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard import engine
from trainyard.errors import BadInput, TrainyardError
from trainyard.ir.assumptions import Assumption
from trainyard.ir.booking import Booking
from trainyard.ir.plan import Plan, TaskClass
from trainyard.results.booking import _divided, book_timeline, columns_of, split
from trainyard.results.result import Peaks, Result


def result_of(durations: list[int], shares: tuple[float, ...] = (0.3, 0.7), steps: int = 1) -> Result:
    plan, booking = Plan(), Booking()
    stream, link = plan.stream("device"), plan.link("dram", 1e9)
    last: list[int] = []
    for number, duration in enumerate(durations):
        rows = [
            booking.row(
                f"op{number}.{part}",
                layer=f"layer{number % 3}",
                phase="forward" if number % 2 else "grad_input",
                resource="device",
                bound="compute",
                macs=duration,
                energy={"mac": duration * 1e-12 * share},
                traffic={("dram", "X", "read"): duration},
            )
            for part, share in enumerate(shares)
        ]
        last = [plan.task(stream, duration, after=last, tag=booking.entry(rows, shares))]
    row = booking.row("copy", layer="", phase="copy", resource="dram", kind="copy")
    plan.transfer([([link], 1000)], after=last, kind=TaskClass.COPY, tag=booking.entry([row]))
    timeline = engine.run(plan)
    rows_, columns = book_timeline(timeline, booking)
    peaks = Peaks(macs_per_s=1e12, dram_bytes_per_s=1e9)
    return Result(
        workload="w", machine="m", batch=4, samples=4 * steps, steps=steps, rows=rows_, columns=columns, peaks=peaks,
        timeline=timeline,
        peak_memory_bytes={"hbm": sum(durations)},
    )  # fmt: skip


durations = st.lists(st.integers(1, 10**9), min_size=1, max_size=8)


@given(durations)
def test_exposed_times_sum_to_the_end_of_the_timeline(times: list[int]) -> None:
    result = result_of(times)
    assert result.timeline is not None
    assert result.time_ps == result.timeline.end_ps == sum(times) + 1_000_000
    for axes in (("layer",), ("phase",), ("kind",), ("layer", "phase"), ("op",)):
        groups = result.group(*axes)  # type: ignore[arg-type]
        assert sum(round(cost.time_s * 1e12) for cost in groups.values()) == result.time_ps
        assert sum(cost.macs for cost in groups.values()) == result.macs
        assert sum(cost.energy_j for cost in groups.values()) == pytest.approx(result.energy_j)
        assert sum(cost.traffic_bytes["dram"] for cost in groups.values()) == result.traffic_bytes["dram"]


@given(durations, durations)
def test_results_add_one_after_the_other(first: list[int], second: list[int]) -> None:
    a, b = result_of(first), result_of(second)
    both = a + b
    assert both.time_ps == a.time_ps + b.time_ps
    assert both.time_s == pytest.approx(a.time_s + b.time_s, rel=1e-12)
    assert both.energy_j == pytest.approx(a.energy_j + b.energy_j)
    assert both.traffic_bytes["dram"] == a.traffic_bytes["dram"] + b.traffic_bytes["dram"]
    assert both.peak_memory_bytes["hbm"] == max(sum(first), sum(second))
    assert both.samples == a.samples + b.samples
    assert (3 * a).time_ps == (a + a + a).time_ps
    assert (3 * a).energy_j == pytest.approx((a + a + a).energy_j)


@given(st.integers(0, 10**15), st.lists(st.floats(0.01, 1), min_size=1, max_size=6))
def test_parts_of_a_split_total_are_integers_that_sum_to_it(total: int, weights: list[float]) -> None:
    shares = np.array(weights) / sum(weights)
    parts = split(total, tuple(shares))
    assert sum(parts) == total
    assert all(part >= 0 for part in parts)
    assert all(abs(part - total * share) <= 2 + total * 1e-12 for part, share in zip(parts, shares, strict=True))


def test_time_and_energy_of_several_simulated_steps_are_per_step() -> None:
    one, four = result_of([100, 200]), result_of([100, 200], steps=4)
    assert four.time_s == one.time_s / 4
    assert four.energy_j == one.energy_j / 4
    assert four.samples_per_s == 4 * one.samples_per_s
    with pytest.raises(BadInput, match="do not add"):
        one + four


def test_cycles_of_the_array_add_and_scale_like_those_of_the_clock() -> None:
    one = replace(result_of([100, 200]), cycles=300, array_cycles=120)
    assert ((one + one).array_cycles, (one * 3).array_cycles) == (240, 360)
    assert (one + replace(one, array_cycles=None)).array_cycles is None
    assert one.as_dict()["array_cycles"] == 120


def test_a_table_without_its_range_reruns_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def rerun(changes: object) -> Result:
        raise AssertionError(f"run again with {changes}")

    fusion = Assumption(name="fusion", value="epilogue", meaning="what goes together", alternatives=("none",), path="fusion")
    result = replace(result_of([100, 200]), assumptions=(fusion,), rerun=rerun)
    result.table(ranged=False)
    assert "time per step" in capsys.readouterr().out
    with pytest.raises(AssertionError, match="run again with"):
        result.table()


def test_json_has_the_stable_keys_and_is_plain() -> None:
    document = json.loads(result_of([100, 200]).to_json())
    stable = {
        "time_s", "samples_per_s", "cycles", "energy_j", "traffic_bytes", "by_phase", "by_layer", "assumptions", "version",
    }  # fmt: skip
    assert stable <= set(document)
    assert sum(cost["time_s"] for cost in document["by_layer"].values()) == pytest.approx(document["time_s"])


@pytest.mark.parametrize("factor", [0, -1, 1.5, True])
def test_a_factor_that_is_no_positive_integer_is_refused(factor: object) -> None:
    with pytest.raises(BadInput, match="positive whole number"):
        result_of([1]) * factor  # type: ignore[operator]


def test_grouping_by_an_unknown_axis_is_refused() -> None:
    with pytest.raises(TrainyardError, match="unknown axis to group by 'colour'"):
        result_of([1]).group("colour")  # type: ignore[arg-type]


def test_sums_beyond_64_bits_are_exact() -> None:
    result = result_of([10**9, 3])
    many = 10**9 * (10**9 * result)
    assert many.time_ps == 10**18 * result.time_ps
    assert many.macs == 10**18 * result.macs
    assert many.traffic_bytes["dram"] == 10**18 * result.traffic_bytes["dram"]
    assert sum(cost.macs for cost in many.by_layer.values()) == many.macs
    half = 10**9 * (4 * 10**9 * result_of([1, 2]))
    assert (half + half + half).time_ps == 3 * half.time_ps > 2**63
    assert (half + result_of([5])).time_ps == half.time_ps + result_of([5]).time_ps
    json.loads(many.to_json())


def test_macs_and_bytes_of_one_row_beyond_64_bits_are_exact() -> None:
    plan, booking = Plan(), Booking()
    rows = [
        booking.row("mm", layer="a", phase="forward", resource="d", macs=10**19, traffic={("dram", "X", "read"): 10**19}),
        booking.row("mm", layer="b", phase="forward", resource="d", macs=7, traffic={("dram", "X", "read"): 7}),
    ]
    plan.task(plan.stream("d"), 10, tag=booking.entry(rows, (0.5, 0.5)))
    rows_, columns = book_timeline(engine.run(plan), booking)
    result = Result(
        workload="w",
        machine="m",
        batch=1,
        samples=1,
        rows=rows_,
        columns=columns,
        peaks=Peaks(macs_per_s=1.0, dram_bytes_per_s=1.0),
    )
    assert result.macs == result.traffic_bytes["dram"] == 10**19 + 7
    assert result.by_layer["a"].macs == 10**19


@given(
    totals=st.lists(st.integers(0, 2**57), min_size=1, max_size=6),
    entries=st.lists(st.dictionaries(st.integers(0, 4), st.integers(1, 1000), min_size=1), min_size=1, max_size=6),
)
def test_a_row_of_several_entries_gets_its_part_of_each(totals: list[int], entries: list[dict[int, int]]) -> None:
    booking = Booking()
    for number in range(5):
        booking.row(f"op{number}", layer="", phase="forward", resource="device")
    expected = [0] * 6
    for total, weights in zip(totals, entries, strict=False):
        shares = [weight / sum(weights.values()) for weight in weights.values()]
        booking.entry(list(weights), shares)
        for row, part in zip(weights, split(total, shares), strict=True):
            expected[row] += part
    assert _divided(columns_of(booking), np.array(totals[: len(entries)])).tolist() == expected


def test_shares_that_do_not_fit_the_rows_of_an_entry_are_refused() -> None:
    booking = Booking()
    rows = [booking.row(name, layer="", phase="forward", resource="device") for name in "ab"]
    booking.entry(rows)
    with pytest.raises(ValueError, match="zip"):
        columns_of(booking)


def test_results_compare_by_value() -> None:
    assert result_of([5, 6]) == result_of([5, 6])
    assert result_of([5, 6]) != result_of([5, 7])
    assert sum([result_of([5]), result_of([6])]).time_ps == (result_of([5]) + result_of([6])).time_ps
    assert len(repr(result_of([5] * 8))) < 100


def test_a_sum_over_two_machines_has_the_hash_of_neither() -> None:
    one, other = (replace(result_of([5]), config={"type": name}) for name in "ab")
    hashes = {r.config_hash for r in (one, other, one + other, one + one, one + other + one)}
    assert (one + one).config_hash == one.config_hash
    assert len(hashes) == 4
