"""`trainyard serve` under random requests: memory flat, no zombie, nothing left behind.

A minute in the slow tier; `TRAINYARD_SOAK_S=3600` makes it an hour.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

from soak import Sample, Soak, soak

SECONDS = float(os.environ.get("TRAINYARD_SOAK_S", "60"))


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 1200)
def test_random_requests_leave_memory_processes_and_files_as_they_were(tmp_path: Path) -> None:
    figures = soak(SECONDS, tmp_path)
    assert figures.requests > 20
    assert not figures.problems()


def sampled(server_bytes: list[int], **last: int) -> Soak:
    """A soak with these samples of the server's memory; the last sample differs as said."""
    rest = {"worker_bytes": 0, "processes": 2, "zombies": 0, "handles": 10, "temporary_files": 2, "kept_results": 3}
    samples = [Sample(at_s=float(number), server_bytes=size, **rest) for number, size in enumerate(server_bytes)]
    samples.append(Sample(at_s=1e3, server_bytes=server_bytes[-1], **{**rest, **last}))
    return Soak(samples=samples, exit_code=0)


def test_a_flat_soak_has_no_problems_and_what_grows_or_stays_behind_is_one() -> None:
    flat = [70 * 10**6] * 40
    assert not sampled(flat).problems()
    assert "server_bytes grew" in sampled([70 * 10**6 + number * 10**6 for number in range(40)]).problems()[0]
    for name, number in {"zombies": 1, "processes": 3, "handles": 11, "temporary_files": 3, "kept_results": 49}.items():
        (problem,) = sampled(flat, **{name: number}).problems()
        assert str(number) in problem
    for what in ({"exit_code": 1}, {"left_processes": 1}, {"left_files": ["x"]}, {"faults": ["500"]}):
        soaked = sampled(flat)
        for name, value in what.items():
            setattr(soaked, name, value)
        assert len(soaked.problems()) == 1
