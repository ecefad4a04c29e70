"""Jobs: a bounded queue in front of worker processes, and a bounded cache of their results by content.

A job's key is a hash of the step, the machine in every field, the zeros, the options and the version: what has been computed
answers at once, and what is under way is not started twice.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import secrets
from collections import OrderedDict, deque
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trainyard.errors import UnknownName
from trainyard.files import source_digest
from trainyard.web.kept_results import KeptResults
from trainyard.web.processes import QueryWorker, TaskFailed, Worker
from trainyard.web.settings import Settings

State = Literal["queued", "running", "done", "failed", "cancelled"]
ENDED = ("done", "failed", "cancelled")
MOST_KEYS = 4096
"""Requests whose key is known without asking the query worker again."""


@dataclass(slots=True)
class Job:
    """One thing to compute; `done` of `total` parts are, `message` says what is under way."""

    id: str
    key: str
    title: str
    task: str
    arguments: dict[str, Any]
    state: State = "queued"
    done: int = 0
    total: int = 0
    message: str = ""
    error: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    asking: asyncio.Task[bytes] | None = None

    def on_progress(self, done: int, total: int, message: str = "", /) -> None:
        self.done, self.total, self.message = done, total, message or self.message

    def end(self, state: State, error: str = "") -> None:
        self.state, self.error, self.asking = state, error, None
        self.ended.set()

    def as_dict(self) -> dict[str, Any]:
        names = ("id", "key", "title", "task", "state", "done", "total", "error")
        return {**{name: getattr(self, name) for name in names}, "said": self.message}


class Cache:
    """Compressed results, the least recently read thrown away first; `kept` has those on disk, of earlier servers too."""

    def __init__(self, most_bytes: int, most_results: int, kept: KeptResults | None = None) -> None:
        self.most_bytes, self.most_results, self.bytes, self.kept = most_bytes, most_results, 0, kept
        self._entries: OrderedDict[str, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries or (self.kept is not None and key in self.kept)

    def get(self, key: str) -> bytes | None:
        if key in self._entries:
            self._entries.move_to_end(key)
        elif self.kept is not None and (content := self.kept.get(key)) is not None:
            self._remember(key, content)
        return self._entries.get(key)

    def put(self, key: str, content: bytes) -> None:
        """Stores a result; the newest stays even where it alone is over the limit, since a client waits for it."""
        if self.kept is not None:
            self.kept.put(key, content)
        self._remember(key, content)

    def _remember(self, key: str, content: bytes) -> None:
        self.bytes += len(content) - len(self._entries.pop(key, b""))
        self._entries[key] = content
        while len(self._entries) > 1 and (self.bytes > self.most_bytes or len(self._entries) > self.most_results):
            self.bytes -= len(self._entries.popitem(last=False)[1])


def _kept_results(settings: Settings) -> KeptResults | None:
    if settings.results is None:
        return None
    return KeptResults(settings.results, source_digest(), settings.results_bytes, settings.results_kept)


class Jobs:
    """The queue, the workers and the cache of one server."""

    def __init__(self, settings: Settings, query_worker: QueryWorker, folder: Path) -> None:
        self.settings, self.query_worker = settings, query_worker
        self.cache = Cache(settings.cache_bytes, settings.cache_results, _kept_results(settings))
        self.workers = [Worker(folder, settings.memory_bytes) for _ in range(settings.job_workers)]
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._waiting: deque[Job] = deque()
        self._idle = list(self.workers)
        self._keys: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """One worker for jobs and the query worker are made warm now, the others when they are first needed."""
        if not self.settings.warm:
            return
        self._spawn(self._warm(self._idle.pop()))
        self._spawn(self._warm_query_worker())

    async def stop(self) -> None:
        tasks = [*self._tasks, *(job.asking for job in self._jobs.values() if job.asking is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for worker in self.workers:
            await worker.kill()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _warm(self, worker: Worker) -> None:
        """A visitor's first run should not wait for imports."""
        with suppress(TaskFailed):
            await worker.ask("warm", {}, self.settings.job_s)
        self._free(worker)

    async def _warm_query_worker(self) -> None:
        with suppress(TaskFailed):
            await self.query_worker.ask("look")

    def _free(self, worker: Worker) -> None:
        self._idle.append(worker)
        self._dispatch()

    def _dispatch(self) -> None:
        """Waiting jobs to idle workers, the one that was freed last first: it is warm."""
        while self._waiting and self._idle:
            job = self._waiting.popleft()
            if job.state == "queued":
                job.state = "running"
                self._spawn(self._run(job, self._idle.pop()))

    async def submit(self, task: str, arguments: dict[str, Any]) -> Job:
        """A job for this request: a new one, the one under way, or one that is done because the result is there."""
        key, title = await self._key(task, arguments)
        for job in self._jobs.values():
            if job.key == key and job.state in ("queued", "running"):
                return job
        job = Job(secrets.token_hex(8), key, title, task, arguments)
        if self.cache.get(key) is not None:  # read now: what is damaged on disk is computed again
            job.done = job.total = 1
            job.end("done")
        else:
            waiting = sum(other.state == "queued" for other in self._jobs.values())
            if waiting >= self.settings.queued:
                raise TaskFailed(429, f"{waiting} jobs are waiting, the most this server takes: cancel some or wait")
            self._waiting.append(job)
        self._jobs[job.id] = job
        self._forget()
        self._dispatch()
        return job

    async def _key(self, task: str, arguments: dict[str, Any]) -> tuple[str, str]:
        digest = hashlib.sha256(json.dumps([task, arguments], sort_keys=True).encode()).hexdigest()
        if digest not in self._keys:
            answer = json.loads(gzip.decompress(await self.query_worker.ask("prepare", job=task, arguments=arguments)))
            self._keys[digest] = answer["key"], answer["title"]
            while len(self._keys) > MOST_KEYS:
                self._keys.popitem(last=False)
        return self._keys[digest]

    def _forget(self) -> None:
        ended = [job.id for job in self._jobs.values() if job.state in ENDED]
        for name in ended[: max(0, len(ended) - self.settings.jobs_kept)]:
            del self._jobs[name]

    def find(self, name: str) -> Job:
        if name not in self._jobs:
            raise UnknownName("job", name[:64], ())
        return self._jobs[name]

    def cached_result(self, task: str, arguments: dict[str, Any]) -> bytes | None:
        """The result of the last job with this task and these arguments, if it is still cached."""
        alike = (job for job in reversed(self._jobs.values()) if (job.task, job.arguments) == (task, arguments))
        return next((self.cache.get(job.key) for job in alike if job.key in self.cache), None)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def cancel(self, name: str) -> Job:
        """A queued job never starts; a running one's worker is killed."""
        job = self.find(name)
        if job.state not in ENDED:
            asking = job.asking
            job.end("cancelled")
            if asking is not None:
                asking.cancel()
        return job

    async def _run(self, job: Job, worker: Worker) -> None:
        if job.ended.is_set():  # cancelled before it began
            self._free(worker)
            return
        job.asking = asyncio.create_task(worker.ask(job.task, job.arguments, self.settings.job_s, job.on_progress))
        try:
            content = await job.asking
        except asyncio.CancelledError:
            if not job.ended.is_set():
                raise  # the server stops
        except TaskFailed as problem:
            job.end("failed", str(problem))
        else:
            if not job.ended.is_set():
                self.cache.put(job.key, content)
                job.done = job.total = max(1, job.total)
                job.end("done")
        if worker.pid is None and self.settings.warm:  # it was killed: a new one is made warm before it is needed
            await self._warm(worker)
        else:
            self._free(worker)
