"""Jobs and workers: bounds, cancelling, deadlines, deaths, memory, the cache. With a worker whose tasks misbehave on purpose."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import UnknownName
from trainyard.web.frames import json_bytes
from trainyard.web.jobs import Cache, Job, Jobs
from trainyard.web.processes import QueryWorker, TaskFailed, Worker
from trainyard.web.settings import Settings

STRANGE = str(Path(__file__).with_name("strange_worker.py"))
MB = 10**6


@pytest.fixture(autouse=True)
def strange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "PROGRAM", (STRANGE,))


def serving(folder: Path, work: Callable[[Jobs], Coroutine[Any, Any, None]], **limits: Any) -> None:
    """Runs `work` with jobs that are stopped after it; no process may be left."""

    async def main() -> None:
        settings = Settings(**{"workers": 1, "memory_bytes": 2000 * MB, **limits})
        query_worker = QueryWorker(Worker(folder, settings.memory_bytes), settings.desk_s, settings.desk_waiting)
        jobs = Jobs(settings, query_worker, folder)
        jobs.start()
        workers = [*jobs.workers, query_worker.worker]
        try:
            await work(jobs)
        finally:
            pids = [worker.pid for worker in workers if worker.pid]
            await jobs.stop()
            await query_worker.worker.kill()
        assert not any(alive(pid) for pid in pids)

    asyncio.run(main())


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as told:
            return told.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def gone(pid: int, within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return not alive(pid)


async def until(job: Job, said: bool = True) -> None:
    """Until a job has said something."""
    while not (job.message if said else job.state != "queued"):
        await asyncio.sleep(0.01)


def content(jobs: Jobs, job: Job) -> Any:
    packed = jobs.cache.get(job.key)
    assert packed is not None
    return json.loads(gzip.decompress(packed))


def test_a_job_runs_tells_its_progress_and_is_computed_once(tmp_path: Path) -> None:
    async def work(jobs: Jobs) -> None:
        job = await jobs.submit("sleep", {"seconds": 0.2})
        assert await jobs.submit("sleep", {"seconds": 0.2}) is job  # under way: not started twice
        await until(job)
        assert (job.state, job.done, job.total) == ("running", 1, 2)
        await job.ended.wait()
        assert (job.state, job.error) == ("done", "")
        first = content(jobs, job)
        again = await jobs.submit("sleep", {"seconds": 0.2})
        assert (again.id != job.id, again.state, again.key) == (True, "done", job.key)
        other = await jobs.submit("sleep", {"seconds": 0.0})
        await other.ended.wait()
        assert content(jobs, other)["pid"] == first["pid"]  # the same warm worker
        with pytest.raises(UnknownName):
            jobs.find("nothing")

    serving(tmp_path, work)


def test_cancelling_stops_a_running_job_at_once_and_a_queued_one_never_starts(tmp_path: Path) -> None:
    async def work(jobs: Jobs) -> None:
        running, queued = await jobs.submit("sleep", {"seconds": 60}), await jobs.submit("sleep", {"seconds": 0.0, "mark": 1})
        await until(running)
        pid = int(running.message.split()[1])
        begin = time.monotonic()
        assert jobs.cancel(queued.id).state == "cancelled"
        assert jobs.cancel(running.id).state == "cancelled"
        assert await gone(pid)
        assert time.monotonic() - begin < 2.0
        assert jobs.cancel(running.id).state == "cancelled"  # once more changes nothing
        after = await jobs.submit("sleep", {"seconds": 0.0, "mark": 2})
        await after.ended.wait()
        assert content(jobs, after)["pid"] != pid
        assert running.key not in jobs.cache
        assert queued.key not in jobs.cache

    serving(tmp_path, work)


def test_what_a_task_started_ends_with_it(tmp_path: Path) -> None:
    async def work(jobs: Jobs) -> None:
        job = await jobs.submit("child", {})
        await until(job)
        child = int(job.message)
        assert alive(child)
        jobs.cancel(job.id)
        assert await gone(child)

    serving(tmp_path, work)


@pytest.mark.probe
def test_the_time_limit_stops_what_is_over_it_and_nothing_else(tmp_path: Path) -> None:
    async def work(jobs: Jobs) -> None:
        await (await jobs.submit("sleep", {"seconds": 0.0})).ended.wait()  # warm
        late, soon = await jobs.submit("sleep", {"seconds": 30}), await jobs.submit("sleep", {"seconds": 0.05})
        await late.ended.wait()
        assert late.state == "failed"
        assert "longer than 0.7 s" in late.error
        await soon.ended.wait()
        assert soon.state == "done"

    serving(tmp_path, work, job_s=0.7)


def test_a_worker_that_dies_fails_its_job_alone(tmp_path: Path) -> None:
    async def work(jobs: Jobs) -> None:
        job = await jobs.submit("die", {})
        await job.ended.wait()
        assert (job.state, "died" in job.error) == ("failed", True)
        fault = await jobs.submit("nothing of that name", {})
        await fault.ended.wait()
        assert fault.state == "failed"
        after = await jobs.submit("sleep", {"seconds": 0.0})
        await after.ended.wait()
        assert after.state == "done"

    serving(tmp_path, work)


@pytest.mark.probe
def test_memory_over_the_limit_fails_the_job_and_below_it_does_not(tmp_path: Path) -> None:
    async def work(jobs: Jobs) -> None:
        fits, over = await jobs.submit("eat", {"size": 400 * MB}), await jobs.submit("eat", {"size": 2100 * MB})
        await asyncio.gather(fits.ended.wait(), over.ended.wait())
        assert fits.state == "done"
        assert over.state == "failed"
        assert "memory" in over.error
        after = await jobs.submit("sleep", {"seconds": 0.0})
        await after.ended.wait()
        assert after.state == "done"

    serving(tmp_path, work, memory_bytes=2000 * MB)


@pytest.mark.probe
def test_the_queue_takes_as_many_as_it_says(tmp_path: Path) -> None:
    async def work(jobs: Jobs) -> None:
        running = await jobs.submit("sleep", {"seconds": 60})
        await until(running)
        waiting = [await jobs.submit("sleep", {"seconds": 60, "mark": n}) for n in (1, 2)]
        with pytest.raises(TaskFailed, match="2 jobs are waiting") as refused:
            await jobs.submit("sleep", {"seconds": 60, "mark": 3})
        assert refused.value.status == 429
        jobs.cancel(waiting[0].id)
        assert (await jobs.submit("sleep", {"seconds": 60, "mark": 3})).state == "queued"

    serving(tmp_path, work, queued=2)


def test_ended_jobs_are_forgotten_in_their_order(tmp_path: Path) -> None:
    async def work(jobs: Jobs) -> None:
        made = []
        for mark in range(5):
            made.append(await jobs.submit("sleep", {"seconds": 0.0, "mark": mark}))
            await made[-1].ended.wait()
        await jobs.submit("sleep", {"seconds": 0.0, "mark": 9})
        assert [job.id for job in jobs][:3] == [job.id for job in made[-3:]]

    serving(tmp_path, work, jobs_kept=3)


def test_the_desk_answers_many_and_refuses_more_than_may_wait(tmp_path: Path) -> None:
    async def work(jobs: Jobs) -> None:
        answers = await asyncio.gather(*(jobs.query_worker.ask("sleep", seconds=0.05) for _ in range(5)), return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, TaskFailed)]
        assert [(problem.status, "waiting" in str(problem)) for problem in refused] in ([(503, True)] * 2, [(503, True)] * 3)
        big = json.loads(gzip.decompress(await jobs.query_worker.ask("large", size=50_000)))
        assert len(big) == 50_000

    serving(tmp_path, work, desk_waiting=3)


def test_workers_end_when_the_server_is_killed(tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
from pathlib import Path
from trainyard.web.processes import Worker
Worker.PROGRAM = ({STRANGE!r},)
async def main():
    worker = Worker(Path({str(tmp_path)!r}), 2000 * 10**6)
    await worker.start()
    print(worker.pid, flush=True)
    await worker.ask("child", {{}}, 60, lambda done, total, said: print(said, flush=True))
asyncio.run(main())
"""
    server = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    worker, child = (int(server.stdout.readline()) for _ in range(2))
    assert alive(worker)
    assert alive(child)
    server.kill()
    server.wait()
    server.stdout.close()
    assert asyncio.run(gone(worker))
    assert asyncio.run(gone(child))


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.binary(max_size=40), st.booleans()), max_size=60),
    st.integers(1, 100),
    st.integers(1, 6),
)
def test_the_cache_keeps_the_last_used_within_its_bounds(actions: list[tuple[str, bytes, bool]], most: int, results: int) -> None:
    cache, twin = Cache(most, results), list[tuple[str, bytes]]()
    for key, value, put in actions:
        if put:
            cache.put(key, value)
            twin = [*((k, v) for k, v in twin if k != key), (key, value)]
            while len(twin) > 1 and (sum(len(v) for _, v in twin) > most or len(twin) > results):
                twin.pop(0)
        else:
            known = dict(twin)
            assert cache.get(key) == known.get(key)
            if key in known:
                twin = [*((k, v) for k, v in twin if k != key), (key, known[key])]
        assert len(cache) == len(twin)
        assert cache.bytes == sum(len(v) for _, v in twin)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_answers_are_strict_json(value: Any) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    json.loads(json_bytes(value), parse_constant=refuse)
