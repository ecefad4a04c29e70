"""A step that does not fit its machine's memory says so where its time stands: run, compare, JSON, sums."""

from __future__ import annotations

import pytest

import trainyard as ty
from trainyard.results.memory import held, shortages

SENTENCE = "device memory: the step needs 164 kB of 100 kB and does not fit this machine"


def test_a_step_that_does_not_fit_is_warned_of_before_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    small = ty.run("linear", "npu(dram_capacity=100 kB)")
    assert small.shortages == (SENTENCE,)
    assert small.memory_share == pytest.approx(small.peak_memory_bytes["device memory"] / 100e3)
    assert small.as_dict()["memory_capacity_bytes"] == {"device memory": 100_000}
    assert (small + small).shortages == small.shortages
    small.table(ranged=False)
    out = capsys.readouterr().out
    assert out.count("does not fit") == 2  # the warning and the row; not again in the notes
    assert out.index(f"warning: {SENTENCE}") < out.index("time per step")
    assert "164 kB of 100 kB: does not fit" in out


def test_memory_is_a_row_of_a_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    ty.compare("linear", on=["npu", "npu(dram_capacity=1 GB)", "npu(dram_capacity=100 kB)"]).table()
    out = capsys.readouterr().out
    assert "164 kB of 1 GB" in out
    assert "164 kB of 100 kB: does not fit" in out
    assert f"warning: npu(dram_capacity=100 kB): {SENTENCE}" in " ".join(out.split())


def test_a_machine_that_states_no_capacity_counts_as_large_enough() -> None:
    result = ty.run("linear", "npu")
    assert (result.memory_share, result.shortages) == (None, ())


def test_memories_that_held_the_same_share_a_sentence() -> None:
    peaks, room = {"hbm 0": 5, "hbm 1": 5, "hbm 2": 1, "host": 9}, {"hbm 0": 4, "hbm 1": 4, "hbm 2": 4}
    assert [(pool.title, pool.fits) for pool in held(peaks, room)] == [("hbm (each of 2)", False), ("hbm", True), ("host", True)]
    assert list(shortages(peaks, room)) == ["hbm (each of 2): the step needs 5 B of 4 B and does not fit this machine"]
