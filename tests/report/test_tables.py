"""Terminal tables: columns sum, names survive, machines are compared fairly."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from trainyard.errors import BadInput, TrainyardError
from trainyard.ir import Assumption
from trainyard.report import lines, tables
from trainyard.report.terminal import show_sensitivity
from trainyard.results.result import Peaks, Result
from trainyard.sensitivity import ChangeEffect, SensitivityResult

Make = Callable[..., Result]


def printed(function: Callable[..., None], *arguments: object, width: int = 120, **options: object) -> str:
    stream = io.StringIO()
    function(*arguments, console=Console(file=stream, width=width), **options)
    return stream.getvalue()


@pytest.mark.parametrize("by", ["layer", "phase", "resource", "kind", "op", "bound"])
@given(top=st.integers(0, 12))
def test_lines_and_rest_sum_to_the_total_and_the_result(result: Result, by: str, top: int) -> None:
    found = lines.breakdown(result, by, top)
    costs = [line.cost for line in found.all]
    assert sum(cost.macs for cost in costs) == found.total.cost.macs == result.macs
    for level, count in result.traffic_bytes.items():
        assert sum(cost.traffic_bytes.get(level, 0) for cost in costs) == found.total.cost.traffic_bytes[level] == count
    assert sum(cost.time_s for cost in costs) == pytest.approx(result.time_s, rel=1e-12)
    assert sum(cost.energy_j for cost in costs) == pytest.approx(result.energy_j, rel=1e-12)
    assert sum(line.share for line in found.all) == pytest.approx(1)
    assert len(found.lines) == (top if found.rest else found.total.groups)
    assert (found.rest is None) == (found.total.groups <= top + 1)
    assert sum(line.groups for line in found.all) == found.total.groups


def test_lines_come_by_time_and_idle_time_is_reported_apart(make_result: Make) -> None:
    result = make_result(layers=3)
    waiting = replace(result.columns, time_ps=result.columns.time_ps.copy())
    waiting.time_ps[-1] = 10**9  # the closing row is idle time
    found = lines.breakdown(replace(result, columns=waiting), "layer")
    times = [line.cost.time_s for line in found.lines]
    assert times == sorted(times, reverse=True)
    assert found.lines[0].label == "(idle)"
    assert "(outside any layer)" in {line.label for line in found.lines}
    assert "(idle)" not in {line.label for line in lines.breakdown(result, "layer").lines}


def test_bound_names_its_share_only_where_it_is_not_nearly_all(result: Result) -> None:
    bounds = {line.label: line.bound for line in lines.breakdown(result, "phase").lines}
    assert bounds["grad_input"] == "compute"
    assert bounds["update"] == "dram"
    forward = {bound: cost.time_s for (phase, bound), cost in result.group("phase", "bound").items() if phase == "forward"}
    share = forward["compute"] / (forward["compute"] + forward["dram"])
    assert bounds["forward"] == f"compute {share * 100:.0f} %"


def test_show_prints_every_fact_with_its_unit(result: Result) -> None:
    text = printed(tables.show, replace(result, range_s=(result.time_s * 0.9, result.time_s * 1.2)))
    for words in ("toy, batch 8, on npu", "samples/s", "µJ", "MiB", "TMAC/s", "dram", "fusion = epilogue", "alternatives: none",
                  "a note with <markup> & an ampersand", result.config_hash, f"trainyard {result.version}"):  # fmt: skip
        assert words in text
    low, high = result.time_s * 0.9e6, result.time_s * 1.2e6
    assert f"{result.time_s * 1e6:.0f} µs ({low:.0f}-{high:.0f})" in text
    used = result.macs / (result.time_s * result.peaks.macs_per_s)
    assert f"utilisation            {lines.percent(used)}" in text


def test_show_names_the_rest_and_repeats_the_total(make_result: Make) -> None:
    text = printed(tables.show, make_result(layers=30), top=5)
    assert "rest: 26 more" in text  # 30 layers and what is outside any, less five
    assert text.count(" total ") == 2


@pytest.mark.parametrize("width", [48, 60, 80, 100, 160])
def test_a_table_fits_its_terminal_and_keeps_the_ends_of_names(make_result: Make, width: int) -> None:
    text = printed(tables.show, make_result(layers=12), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "layer11.conv" in text
    assert all("…" not in line[2:] for line in text.splitlines())  # names lose their beginning, numbers nothing


def test_a_narrow_terminal_says_what_it_leaves_out(make_result: Make) -> None:
    result = make_result(layers=12)
    wide, narrow = (printed(tables.show, result, width=width) for width in (120, 60))
    assert "no room" not in wide
    assert "busy counts every resource" in wide
    assert "no room for busy" in narrow
    for found in (lines.breakdown(result, "layer"), lines.breakdown(result, "phase")):
        assert tables.fitting(found, 200) == tables.COLUMNS
        assert tables.fitting(found, 10) == ("time", "share")


def test_long_sentences_hang(make_result: Make) -> None:
    long = Assumption(name="pcie", value=1, meaning=" ".join(["word"] * 40), alternatives=(2,), path="pcie")
    text = printed(tables.show, replace(make_result(layers=2), assumptions=(long,)), width=80)
    first = next(number for number, line in enumerate(text.splitlines()) if line.startswith("  pcie = 1"))
    assert text.splitlines()[first + 1].startswith("    word")


def test_markup_in_names_is_printed_as_it_is(make_result: Make) -> None:
    result = make_result(layers=2)
    odd = replace(result, workload="[bold]net[/bold]", machine="npu(array=[red])")
    assert "[bold]net[/bold], batch 8, on npu(array=[red])" in printed(tables.show, odd)


def test_nothing_modelled_is_said_not_zero(make_result: Make) -> None:
    result = make_result(layers=2)
    without = replace(result, columns=replace(result.columns, energy={}))
    assert "not modelled" in printed(tables.show, without)


@pytest.mark.parametrize("width", [70, 160])
def test_compare_measures_against_the_first_and_warns(make_result: Make, width: int) -> None:
    slow = make_result(machine="npu")
    fast = make_result(machine="tpu", peaks=Peaks(macs_per_s=16.4e12, dram_bytes_per_s=150e9, technology="7 nm"))
    fast = replace(fast, columns=replace(fast.columns, time_ps=fast.columns.time_ps // 2))
    text = printed(tables.compare, [slow, fast], width=width)
    assert f"{slow.time_ps / fast.time_ps:.2f} x" in text
    assert "1.00 x" in text
    assert "16.4 TMAC/s" in text
    flat = " ".join(text.split())
    assert "warning: machines differ in peak MACs: 8.6 TMAC/s (npu) vs 16.4 TMAC/s (tpu)" in flat
    assert "machines differ in technology: 28 nm (npu) vs 7 nm (tpu)" in flat
    assert "bandwidth:" not in flat
    assert max(map(len, text.splitlines())) <= width


def test_compare_tells_the_array_from_the_step(make_result: Make) -> None:
    slow = make_result(machine="tensorcore", clock_hz=1e9, cycles=9000, array_cycles=4000)
    fast = replace(slow, machine="tensordash", array_cycles=2000)
    double = replace(fast, samples=2 * slow.samples)
    assert [lines.array_text(one, slow) for one in (slow, fast, double)] == ["4 µs (1.00 x)", "2 µs (2.00 x)", "2 µs (4.00 x)"]
    assert lines.array_text(make_result(), slow) == "-"
    assert lines.array_text(fast, make_result()) == "2 µs"
    assert ("array busy", "2,000 cycles, 22.2 % of them") in lines.facts(fast)
    assert "2 µs (2.00 x)" in printed(tables.compare, [slow, fast], width=160)


def test_equal_machines_bring_no_warning_and_other_work_does(make_result: Make) -> None:
    result = make_result()
    assert lines.differences([result, result]) == []
    assert lines.differences([result, replace(result, workload="other")]) == [
        "results differ in workload: toy (npu) vs other (npu)"
    ]
    assert lines.speedup(replace(result, samples=16), result) == pytest.approx(2.0)


def test_compare_of_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match="no results"):
        tables.compare([])


def test_top_must_be_a_count(result: Result) -> None:
    with pytest.raises(BadInput, match="top must be"):
        lines.breakdown(result, "layer", -1)
    with pytest.raises(TrainyardError, match="unknown axis to group by 'colour'"):
        lines.breakdown(result, "colour", 3)  # type: ignore[arg-type]


def test_an_assumption_speaks_in_its_fields_unit() -> None:
    open_one = Assumption(
        name="pcie", value=6e9, meaning="per device", alternatives=(8e9,), path="host.link_bytes_per_s", settles="a.b"
    )
    assert lines.assumption_text(open_one) == "pcie = 6 GB/s: per device; alternatives: 8 GB/s; chosen on a.b"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("message_bytes", 4096, "4 KiB"),
        ("page_bytes", 2**21, "2 MiB"),
        ("bucket_bytes", 25_000_000, "25 MB"),
        ("bucket_bytes", 0, "0 B"),
        ("capacity_bytes", 16_000_000_000, "16 GB"),
        ("memory_node.memory_latency_s", 1e-7, "100 ns"),
        ("window", None, "none"),
        ("depth", 2, "2"),
        ("contention", True, "true"),
    ],
)
def test_values_are_reported_with_their_units(name: str, value: object, text: str) -> None:
    assert lines.value_text(name, value) == text


def test_what_if_tells_values_with_their_units(capsys: pytest.CaptureFixture[str]) -> None:
    effect = ChangeEffect(name="link_latency_s", meaning="of one link", value=5e-7, alternative=2e-6, before=1e-3, after=2e-3)
    show_sensitivity(SensitivityResult("bert-tiny on mcdla-b", "time_s", (effect,)))
    assert ["link_latency_s", "500", "ns", "2", "µs", "1", "ms", "2", "ms", "+100.0", "%"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]


def test_the_result_prints_itself(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    result.table(by="phase")
    text = capsys.readouterr().out
    assert text.count("by phase") == 1
    assert "by layer" not in text


# fmt: off
HEADLINES = [
    (9_100_000_000,   (7.8e-3, 11.2e-3),   "9.1 ms (7.8-11.2)"),
    (9_140_000_000,   (9.14e-3, 9.141e-3), "9.1 ms"),             # a range that rounds away is none
    (115_000_000,     (98e-6, 1500e-6),    "115 µs (98-1500)"),
    (12_340_000_000,  None,                "12.3 ms"),
    (999_960_000_000, None,                "1.0 s"),
]
# fmt: on


@pytest.mark.parametrize(("time_ps", "range_s", "headline"), HEADLINES)
def test_the_headline_carries_its_range(
    make_result: Make, time_ps: int, range_s: tuple[float, float] | None, headline: str
) -> None:
    result = make_result(layers=2, range_s=range_s)
    times = result.columns.time_ps * 0
    times[0] = time_ps
    assert replace(result, columns=replace(result.columns, time_ps=times)).headline == headline


def test_a_slower_machine_says_why(result: Result) -> None:
    assert lines.slower([result, result]) == []
    half = Peaks(macs_per_s=result.peaks.macs_per_s, dram_bytes_per_s=result.peaks.dram_bytes_per_s / 2)
    longer = replace(result.columns, time_ps=result.columns.time_ps * 4, busy_ps=result.columns.busy_ps * 4)
    slow = replace(result, machine="small", peaks=half, columns=longer)
    assert slow.samples_per_s == pytest.approx(result.samples_per_s / 4)
    (said,) = lines.slower([result, slow])
    assert said.startswith(f"small does 0.25 x the samples/s of {result.machine}: it is bound by ")
    assert "0.5 x the DRAM bandwidth" in said
    assert "peak MACs" not in said
    (said,) = lines.slower([result, replace(slow, peaks=result.peaks)])
    assert "DRAM bandwidth" not in said
    assert lines.slower([slow, result]) == []  # the faster one needs no reason
