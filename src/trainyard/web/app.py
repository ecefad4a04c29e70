"""The HTTP interface: everything under /api is JSON, every error {"error": one line}; the rest is the page and its files."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from trainyard._version import VERSION
from trainyard.errors import TrainyardError, UnknownName
from trainyard.web import frames, requests, views
from trainyard.web.assets import Assets
from trainyard.web.connections import within
from trainyard.web.folders import private_folder
from trainyard.web.jobs import Jobs
from trainyard.web.processes import QueryWorker, TaskFailed, Worker
from trainyard.web.security import Security
from trainyard.web.settings import Settings
from trainyard.web.uploads import Uploads
from trainyard.web.worker import reason

LONGEST_WAIT_S = 30.0
WORTH_PACKING = 1024
TOO_SLOW = 408
"""The status of a request whose end did not come: its connection is of no more use."""
_NONE: list[str] = []


class Server:
    """What one server holds: its workers, jobs, uploads and files. Made when it starts, gone when it ends."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.query_worker = QueryWorker(Worker(folder, settings.memory_bytes), settings.desk_s, settings.desk_waiting)
        self.uploads = Uploads(settings, self.query_worker, folder)
        self.jobs = Jobs(settings, self.query_worker, folder)
        self.assets = Assets()
        self.stores = str((settings.stores or Path()).resolve())

    async def stop(self) -> None:
        await self.jobs.stop()
        await self.query_worker.worker.kill()


def create_app(settings: Settings | None = None) -> FastAPI:
    """The server as an ASGI application; its workers live from startup to shutdown."""
    chosen = settings or Settings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with private_folder() as folder:
            app.state.server = server = Server(chosen, folder)
            server.assets.start()
            server.jobs.start()
            try:
                yield
            finally:
                await server.stop()

    app = FastAPI(
        title="Trainyard", version=VERSION, lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url="/api/openapi.json"
    )
    app.add_middleware(Security, host=chosen.host)
    _add_errors(app)
    _add_lists(app)
    _add_jobs(app)
    _add_uploads(app)
    _add_page(app)
    return app


def _server(request: Request) -> Server:
    server: Server = request.app.state.server
    return server


def _reply(request: Request, packed: bytes, status: int = 200) -> Response:
    """JSON that is already compressed; unpacked for clients that do not accept gzip."""
    headers = {"Vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(gzip.decompress(packed), status, headers, "application/json")
    return Response(packed, status, {**headers, "Content-Encoding": "gzip"}, "application/json")


def _json(request: Request, value: Any, status: int = 200) -> Response:
    body = frames.json_bytes(value)
    if len(body) < WORTH_PACKING:
        return Response(body, status, media_type="application/json")
    return _reply(request, gzip.compress(body, frames.LEVEL, mtime=0), status)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(TrainyardError)
    async def refused(request: Request, error: TrainyardError) -> Response:
        status, line = (error.status, str(error)) if isinstance(error, TaskFailed) else reason(error)
        return JSONResponse({"error": line}, status, {"Connection": "close"} if status == TOO_SLOW else None)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        return JSONResponse({"error": f"{error.detail}: {request.method} {request.url.path[:200]}"}, error.status_code)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return JSONResponse({"error": f"{'.'.join(map(str, first['loc']))[:100]}: {first['msg']}"}, 400)

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return JSONResponse({"error": "the client went away"}, 400)

    @app.exception_handler(Exception)
    async def fault(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": f"a fault of trainyard: {type(error).__name__}"}, 500)


def _add_lists(app: FastAPI) -> None:
    @app.get("/api/version")
    async def version() -> dict[str, str]:
        """The version of the package."""
        return {"version": VERSION}

    @app.get("/api/workloads")
    async def workloads(request: Request) -> Response:
        """The models of the zoo."""
        return _json(request, views.workloads())

    @app.get("/api/machines")
    async def machines(request: Request) -> Response:
        """The machines by name, in groups."""
        return _json(request, views.machines())

    @app.get("/api/machine")
    async def machine(
        request: Request, text: str, changed: Annotated[list[str], Query(alias="set", max_length=requests.MOST_SETTINGS)] = _NONE
    ) -> Response:
        """Every field of a machine, with its unit, source, meaning and alternatives; `set=path=value` changes one first."""
        server = _server(request)
        settings, uploads = requests.settings_of(changed), server.uploads.named_in([text])
        return _reply(request, await server.query_worker.ask("machine", text=text, settings=settings, uploads=uploads))

    @app.get("/api/papers")
    async def papers(request: Request) -> Response:
        """The papers, with the verdicts on their claims where the ledger is cached."""
        server = _server(request)
        rows = json.loads(gzip.decompress(await server.query_worker.ask("papers")))
        for row in rows:  # what this server computed counts even where it could not be cached on disk
            if not row["complete"] and (computed := server.jobs.cached_result("paper", {"paper": row["name"]})):
                row |= {"complete": True, "verdicts": json.loads(gzip.decompress(computed))["counts"]}
        return _json(request, rows)

    @app.get("/api/papers/{name}")
    async def paper(request: Request, name: str) -> Response:
        """The ledger of a paper; `complete` is false where only the paper's own figures are known."""
        server = _server(request)
        computed = server.jobs.cached_result("paper", {"paper": name})
        return _reply(request, computed or await server.query_worker.ask("ledger", paper=name[:100]))

    @app.get("/api/stores")
    async def stores(request: Request) -> Response:
        """The sweep stores of the folder that is served, and those that were uploaded."""
        server = _server(request)
        return _reply(request, await server.query_worker.ask("stores", folder=server.stores, uploads=server.uploads.stores()))

    @app.get("/api/stores/{name:path}")
    async def store(
        request: Request, name: str, offset: Annotated[int, Query(ge=0)] = 0, limit: Annotated[int, Query(ge=0)] = 2**31
    ) -> Response:
        """Points of a sweep and its Pareto front; `points` says how many there are, rows come in pages."""
        server = _server(request)
        chosen = {"name": name, "offset": offset, "limit": min(limit, server.settings.rows)}
        return _reply(
            request, await server.query_worker.ask("store", folder=server.stores, uploads=server.uploads.stores(), **chosen)
        )


def _add_jobs(app: FastAPI) -> None:
    @app.post("/api/jobs", openapi_extra=_documented(requests.RunRequest))
    async def start(request: Request) -> Response:
        """Starts a job, or finds the one that is done or under way."""
        server = _server(request)
        job_request = requests.read(await _body(request, server.settings))
        uploads = server.uploads.named_in(job_request.texts())
        arguments = {**job_request.arguments(), **({"uploads": uploads} if uploads else {})}
        job = await server.jobs.submit(job_request.task, arguments)
        return _json(request, job.as_dict())

    @app.get("/api/jobs")
    async def jobs(request: Request) -> Response:
        """All jobs that are waiting, running or still remembered."""
        return _json(request, [job.as_dict() for job in _server(request).jobs])

    @app.get("/api/jobs/{name}")
    async def job(request: Request, name: str, wait: float = 0.0) -> Response:
        """One job; with `wait`, answers when it has ended or after so many seconds."""
        current = _server(request).jobs.find(name)
        if wait > 0 and math.isfinite(wait) and not current.ended.is_set():
            try:
                async with asyncio.timeout(min(wait, LONGEST_WAIT_S)):
                    await current.ended.wait()
            except TimeoutError:
                pass
        return _json(request, current.as_dict())

    @app.delete("/api/jobs/{name}")
    async def cancel(request: Request, name: str) -> Response:
        """Stops a job at once."""
        return _json(request, _server(request).jobs.cancel(name).as_dict())

    @app.get("/api/results/{key}")
    async def result(request: Request, key: str) -> Response:
        """The result of a job: the object of `trainyard run --json`, its title and its figures."""
        content = _server(request).jobs.cache.get(key)
        if content is None:
            raise UnknownName("result", key[:64], ())
        return _reply(request, content)


def _add_uploads(app: FastAPI) -> None:
    @app.post("/api/uploads")
    async def upload(request: Request, name: str = "upload") -> Response:
        """Takes a raw body: a Step, a topology, a model, masks or a machine file."""
        uploads = _server(request).uploads
        stated = request.headers.get("content-length", "")
        if stated.isdigit() and int(stated[:20]) > uploads.settings.upload_bytes:
            raise uploads.too_large()
        return _json(request, (await uploads.receive(name, request.stream())).as_dict())

    @app.get("/api/uploads")
    async def listed(request: Request) -> Response:
        """All uploads of this server."""
        return _json(request, [upload.as_dict() for upload in _server(request).uploads])

    @app.delete("/api/uploads/{name}")
    async def remove(request: Request, name: str) -> Response:
        """Forgets an upload."""
        return _json(request, _server(request).uploads.remove(name).as_dict())


def _add_page(app: FastAPI) -> None:
    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def index(request: Request) -> Response:
        return await _asset(request, "index.html")

    @app.api_route("/static/{name}", methods=["GET", "HEAD"], include_in_schema=False)
    async def static(request: Request, name: str) -> Response:
        return await _asset(request, name)


async def _asset(request: Request, name: str) -> Response:
    asset = await _server(request).assets.find(name)
    if asset is None:
        raise HTTPException(404, "no such file")
    return asset.response(request)


async def _body(request: Request, limits: Settings) -> bytes:
    """A body of bounded size that comes in bounded time."""
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_s):
            async for block in within(request.stream(), limits.idle_s):
                body += block
                if len(body) > limits.body_bytes:
                    raise TaskFailed(413, f"a request may have {limits.body_bytes} bytes")
    except TimeoutError:
        raise TaskFailed(TOO_SLOW, "the rest of the request did not come in time") from None
    return bytes(body)


def _documented(model: Any) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": model.model_json_schema()}}}}
