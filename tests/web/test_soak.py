"""A soak: everything of the interface again and again over loopback, and memory, files and processes stay flat.

After a warm-up the memory of the server (and of its workers, where none is killed on the way) may grow by no more than
`GROWTH_BYTES`: allocators round up, and the list of jobs fills to its bound (256 entries of 1 kB). 6,000 requests have been seen to
take 0.6 MB. A leak of a round's answers, some 5 MB unpacked, is over the bound in two rounds.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

GROWTH_BYTES = 8 * 10**6
CANCEL_EVERY = 20
STEP = '{"format": "nothing"}'


def once(client: Any, round_: int, cancels: bool) -> int:
    """One visit to everything, errors included; how many requests that was. What is cancelled kills a worker."""
    answers = [
        client.get("/"),
        client.get("/static/plotly.min.js"),
        client.get("/static/../app.py"),
        client.get("/api/workloads"),
        client.get("/api/machines"),
        client.get("/api/machine", params={"text": f"npu(dram={50 + round_ % 3} GB/s)"}),
        client.get("/api/machine", params={"text": "nppu("}),
        client.get("/api/papers/igo"),
        client.get("/api/stores"),
        client.post("/api/uploads", params={"name": "a.csv"}, content=f"Layer, M, N, K,\na, {8 + round_ % 3}, 8, 8,\n".encode()),
        client.post("/api/uploads", params={"name": "b"}, content=STEP.encode()),
        client.post("/api/jobs", content=b"{"),
        client.post("/api/jobs", json={"workload": "linear", "machine": f"npu(dram={50 + round_ % 3} GB/s)"}),
        client.post("/api/jobs", json={"workload": "linear", "machine": "mcdla-b", "settings": {"devices": 4}}),
        client.get("/api/jobs"),
        client.get("/api/nothing"),
    ]
    assert not [answer.text for answer in answers if answer.status_code >= 500]
    bodies = [answer.json() for answer in answers if answer.headers.get("content-type") == "application/json"]
    for job in (body for body in bodies if isinstance(body, dict) and {"id", "state", "key"} <= body.keys()):
        ended = client.get(f"/api/jobs/{job['id']}", params={"wait": 20}).json()
        assert ended["state"] in ("done", "cancelled"), ended
        answers.append(client.get(f"/api/results/{ended['key']}"))
    answers.append(client.delete(f"/api/uploads/{answers[9].json()['id']}"))
    if cancels and round_ % CANCEL_EVERY == 0:
        asked = client.post("/api/jobs", json={"workload": "linear", "machine": "npu", "batch": 100 + round_, "whatif": True})
        answers += [asked, client.delete(f"/api/jobs/{asked.json()['id']}")]
    return len(answers)


def soaked(served: Any, seconds: float, warm_up: int, *, cancels: bool) -> tuple[int, int]:
    """Requests, and bytes that the server has grown by after a warm-up; processes and handles must not have grown."""
    requests, rounds = 0, warm_up
    with served.client() as client:
        for round_ in range(warm_up):
            once(client, round_, cancels)
        settled(client)
        pids = [served.process.pid, *([] if cancels else served.workers)]
        before, processes, opened = served.resident_bytes(pids), len(served.workers), served.handles
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            requests += once(client, rounds := rounds + 1, cancels)
        settled(client)
        assert len(served.workers) == processes
        assert served.handles <= opened
        return requests, served.resident_bytes(pids) - before


def settled(client: Any) -> None:
    """Until nothing runs and the workers that were killed have been replaced."""
    deadline = time.monotonic() + 20
    while any(job["state"] in ("queued", "running") for job in client.get("/api/jobs").json()) and time.monotonic() < deadline:
        time.sleep(0.05)
    batch = 1000 + time.monotonic_ns() % 10**6  # not run before
    job = client.post("/api/jobs", json={"workload": "linear", "machine": "npu", "batch": batch}).json()
    assert client.get(f"/api/jobs/{job['id']}", params={"wait": 20}).json()["state"] == "done"


@pytest.mark.slow
def test_a_soak_leaves_everything_flat(served: Any) -> None:
    requests, grown = soaked(served, seconds=2.0, warm_up=3, cancels=False)
    assert requests > 50
    assert grown < GROWTH_BYTES


@pytest.mark.slow
def test_a_long_soak_leaves_everything_flat(served: Any) -> None:
    requests, grown = soaked(served, seconds=120.0, warm_up=20, cancels=True)
    assert requests > 2000
    assert grown < GROWTH_BYTES
