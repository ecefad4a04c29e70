"""Ten thousand points on a cluster whose nodes and head are killed: the bytes that one process gives."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ray")

from distributed import head_killed, node_killed, one_process, table

from trainyard.sweep.study import Study

POINTS = 10_000


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_killed_node_and_a_killed_head_leave_the_bytes_of_one_process(tmp_path: Path) -> None:
    study = Study.from_table(table(POINTS))
    expected = one_process(study, tmp_path)
    assert (expected["computed"], expected["failed"]) == (POINTS, 0)
    node = node_killed(study, tmp_path)
    assert [event["event"] for event in node["events"]] == ["a node is killed", "a node joins"]
    assert (node["computed"], node["failed"], node["digest"]) == (POINTS, 0, expected["digest"])
    head = head_killed(table(POINTS), tmp_path)
    assert 0 < head["safe_after_the_kill"] < POINTS
    assert head["driver_ended_after_s"] is not None
    assert (head["second_exit"], head["points"], head["digest"]) == (0, POINTS, expected["digest"])
