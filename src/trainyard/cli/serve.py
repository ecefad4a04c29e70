"""`serve`: the page in the browser."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from trainyard.errors import BadInput, MissingExtra
from trainyard.report.terminal import say, write
from trainyard.units import parse

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on; others than your own reach it only if you say so here.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes any that is free.")] = 8080,
    stores: Annotated[str | None, typer.Option(help="Folder of sweep stores; the working folder by default.")] = None,
    opened: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in your browser.")] = True,
    max_upload: Annotated[str, typer.Option(help="Size of the largest upload.")] = "64 MB",
    jobs: Annotated[int, typer.Option(min=0, help="Jobs that run at a time; 0: one a core, two at most.")] = 0,
    keep: Annotated[
        bool, typer.Option("--keep/--no-keep", help="Keep finished results on disk: a server started again has them.")
    ] = True,
) -> None:
    """Open the page in your browser.

    Runs, comparisons, ledgers and sweeps on http://127.0.0.1:8080; nothing leaves this computer. Ctrl-C ends it.
    """
    folder = None if stores is None else Path(stores)
    if folder is not None and not folder.is_dir():
        raise BadInput(f"--stores {stores}: there is no such folder")
    upload_bytes = int(parse(max_upload, "B", "--max-upload"))
    if upload_bytes < 1:
        raise BadInput(f"--max-upload {max_upload}: at least one byte")
    listening = _listening(host, port)
    try:
        import uvicorn

        from trainyard.web.app import create_app
        from trainyard.web.connections import TimedConnection
        from trainyard.web.settings import Settings
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("trainyard"):
            raise
        raise MissingExtra(missing.name or "fastapi", "web", "trainyard serve") from missing

    settings = Settings(host=host, stores=folder, upload_bytes=upload_bytes, workers=jobs, results=_results_folder(keep))
    address = _address(host, listening.getsockname()[1])
    if host not in LOOPBACK:
        say(f"warning: {host} can be reached by other computers, and the page asks for no password")
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        http=TimedConnection,
        log_level="warning",
        access_log=False,
        lifespan="on",
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=2,
        limit_concurrency=256,
        h11_max_incomplete_event_size=64 * 1024,
    )
    write(f"trainyard serves {address} (Ctrl-C ends it)")
    if opened:
        _open(address)
    server = uvicorn.Server(config)
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:  # uvicorn has shut down in order and hands the signal on
        pass
    finally:
        listening.close()


def _results_folder(keep: bool) -> Path | None:
    from trainyard.files import cache_folder

    return cache_folder() / "results" if keep else None


def _listening(host: str, port: int) -> socket.socket:
    """A socket that is bound: whether the port is free is known before anything starts."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise BadInput(f"--host {host}: {error}") from None
    listening = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise BadInput(f"port {port} of {host} is taken: write --port {port + 1 if port < 65535 else 0}, or --port 0") from None
        raise BadInput(f"cannot listen on {host}, port {port}: {error.strerror or error}") from None
    listening.set_inheritable(False)
    return listening


def _address(host: str, port: int) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}/"


def _open(address: str) -> None:
    """Shortly after the server has started to listen; a machine without a browser is not an error."""
    import threading
    import webbrowser

    opener = threading.Timer(0.3, lambda: webbrowser.open(address))
    opener.daemon = True
    opener.start()
