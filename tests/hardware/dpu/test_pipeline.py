"""The pipeline of a DPU: its compiled loop against the cycle-by-cycle twin, the rules at their edges, the published anchors."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.dpu_pipeline import plain, require_legal
from trainyard.errors import BadInput, NotModelled
from trainyard.hardware.dpu.instructions import ARITHMETIC, LOAD, LOOP, PUBLISHED, STORE, instructions_of
from trainyard.hardware.dpu.pipeline import Issue, Pipeline, Program, Segment

RUN = st.builds(Segment, st.just("run"), st.integers(0, 40))
MOVE = st.builds(Segment, st.sampled_from(["read", "write"]), st.integers(1, 64).map(lambda words: 8 * words))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Any work between barriers that all tasklets share."""
    tasklets, phases = draw(st.integers(1, 24)), draw(st.integers(1, 3))
    rows: list[list[Segment]] = [[] for _ in range(tasklets)]
    for phase in range(phases):
        for row in rows:
            row += draw(st.lists(RUN | MOVE, max_size=4))
            if phase:
                row.append(Segment("barrier"))
    return rows


@pytest.mark.oracle
@settings(max_examples=60, deadline=None)
@given(
    program=programs(),
    interval=st.sampled_from([1, 3, 11]),
    fixed=st.integers(0, 80),
    per_byte=st.sampled_from([0.0, 0.03125, 0.3, 0.5]),
)
def test_compiled_equals_plain_python_and_both_are_legal(program: Program, interval: int, fixed: int, per_byte: float) -> None:
    pipeline = Pipeline(interval=interval, read_fixed=fixed, write_fixed=fixed // 2, cycles_per_byte=per_byte)
    twin = plain(pipeline, program)
    assert pipeline.simulate(program, issues=10_000) == twin
    require_legal(pipeline, program, twin.issues)
    assert twin.instructions == sum(s.amount if s.kind == "run" else 1 for row in program for s in row)
    assert twin.cycles >= max(twin.instructions, twin.dma_busy)


@pytest.mark.probe
def test_an_issue_one_cycle_early_raises_and_on_time_passes() -> None:
    pipeline, program = Pipeline(), [[Segment("run", 2)], [Segment("run", 1)]]
    require_legal(pipeline, program, [Issue(0, 0), Issue(1, 1), Issue(11, 0)])
    with pytest.raises(BadInput, match="tasklet 0 issues in cycle 10, it may from cycle 11 on"):
        require_legal(pipeline, program, [Issue(0, 0), Issue(1, 1), Issue(10, 0)])
    with pytest.raises(BadInput, match="two instructions in cycle 0"):
        require_legal(pipeline, program, [Issue(0, 0), Issue(0, 1)])
    with pytest.raises(BadInput, match="its program is over"):
        require_legal(pipeline, program, [Issue(0, 1), Issue(11, 1)])


@pytest.mark.probe
def test_a_transfer_ends_on_time() -> None:
    """77 cycles and half a cycle a byte, from the cycle after the instruction: 1024 bytes free the tasklet in cycle 590."""
    pipeline, program = Pipeline(), [[Segment("read", 1024), Segment("run", 1)]]
    require_legal(pipeline, program, [Issue(0, 0), Issue(590, 0)])
    with pytest.raises(BadInput, match="it may from cycle 590 on"):
        require_legal(pipeline, program, [Issue(0, 0), Issue(589, 0)])
    assert pipeline.simulate(program, issues=2).issues == (Issue(0, 0), Issue(590, 0))


@pytest.mark.probe
def test_transfers_queue_at_one_engine() -> None:
    pipeline = Pipeline()
    ran = pipeline.simulate([[Segment("read", 1024)], [Segment("write", 1024)]])
    assert ran.dma_busy == 589 + 573
    assert ran.dma_wait == 588  # the second asks one cycle after the first
    assert ran.cycles == 1 + 589 + 573


@pytest.mark.probe
def test_a_barrier_releases_all_after_the_last_arrival() -> None:
    pipeline, program = Pipeline(), [[Segment("barrier"), Segment("run", 1)], [Segment("run", 3), Segment("barrier")]]
    ran = pipeline.simulate(program, issues=10)
    assert ran.issues[-2:] == (Issue(34, 1), Issue(45, 0))
    with pytest.raises(BadInput, match="waits at a barrier"):
        require_legal(pipeline, program, [*ran.issues[:-2], Issue(30, 0)])
    with pytest.raises(BadInput, match="may from cycle 45"):
        require_legal(pipeline, program, [*ran.issues[:-1], Issue(44, 0)])


def test_programs_that_cannot_run_are_refused() -> None:
    with pytest.raises(BadInput, match="all tasklets meet"):
        Pipeline().simulate([[Segment("barrier")], [Segment("run", 1)]])
    with pytest.raises(NotModelled, match="cut it into pieces"):
        Pipeline().simulate([[Segment("read", 4096)]])
    with pytest.raises(BadInput, match="at least one tasklet"):
        Pipeline().simulate([])
    with pytest.raises(BadInput, match="amount of at least 0"):
        Pipeline().simulate([[Segment("run", -1)]])


@pytest.mark.paper
@pytest.mark.parametrize(("tasklets", "share"), [(1, 1 / 11), (8, 8 / 11), (11, 1.0), (16, 1.0), (24, 1.0)])
def test_eleven_tasklets_fill_the_pipeline(tasklets: int, share: float) -> None:
    """PrIM: throughput grows to 11 tasklets and stays."""
    ran = Pipeline().simulate([[Segment("run", 10_000)]] * tasklets)
    assert ran.instructions / ran.cycles == pytest.approx(share, rel=0.002)


@pytest.mark.paper
@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row.number}-{row.operation}")
def test_the_published_rates_come_out_of_the_simulated_loop(row: object) -> None:
    assert hasattr(row, "mops")
    loop = LOAD + instructions_of(row.number, row.operation) + STORE + LOOP  # type: ignore[attr-defined]
    elements = 2000
    ran = Pipeline().simulate([[Segment("run", loop * elements // 16)]] * 16)
    assert elements / (ran.cycles / 350e6) / 1e6 == pytest.approx(row.mops, rel=0.01)


@pytest.mark.paper
def test_a_multiply_accumulate_in_software() -> None:
    """About 1.4 million a second in fp32."""
    assert 350 / ARITHMETIC["fp32"].mac == pytest.approx(1.4, rel=0.01)


@pytest.mark.paper
def test_bandwidth_grows_with_the_transfer() -> None:
    """PrIM: 628 MB/s read and 633 written at 2048 bytes; at 8 bytes a latency is nearly all of it."""

    def megabytes(size: int, kind: str) -> float:
        ran = Pipeline().simulate([[Segment(kind, size)] * 100] * 16)  # type: ignore[arg-type]
        return 1600 * size / (ran.cycles / 350e6) / 1e6

    assert megabytes(2048, "read") == pytest.approx(628, rel=0.05)
    assert megabytes(2048, "write") == pytest.approx(633, rel=0.05)
    assert megabytes(8, "read") < 0.06 * megabytes(2048, "read")
    rates = [megabytes(size, "read") for size in (8, 32, 128, 512, 2048)]
    assert rates == sorted(rates)
