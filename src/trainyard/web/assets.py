"""The page's own files and plotly's script, read and compressed once, with strong ETags.

A name is looked up in a table made at the start: no path is ever built from a request. The page's own references get `?v=` with
the file's hash, and what is asked for by its hash may be cached for ever; all else is asked for again, and answered with 304.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

PLOTLY = "plotly.min.js"
SHARED = ("fitting.js", "shared.css")
"""Files that reports have too, in `report/`."""
# fmt: off
TYPES = {
    "html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml", "png": "image/png", "ico": "image/x-icon", "woff2": "font/woff2", "json": "application/json",
}
# fmt: on
WORTH_PACKING = 512
FOREVER = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"


@dataclass(frozen=True, slots=True)
class Asset:
    """One file."""

    content: bytes
    packed: bytes | None
    media: str
    tag: str

    @classmethod
    def of(cls, name: str, content: bytes) -> Asset:
        media = TYPES.get(name.rpartition(".")[2], "application/octet-stream")
        packed = gzip.compress(content, 6, mtime=0) if len(content) >= WORTH_PACKING else None
        return cls(content, packed, media, hashlib.sha256(content).hexdigest()[:20])

    def response(self, request: Request) -> Response:
        forever = request.query_params.get("v") == self.tag
        packs = self.packed is not None and "gzip" in request.headers.get("accept-encoding", "")
        tag = f'"{self.tag}{"-gz" if packs else ""}"'
        headers = {"ETag": tag, "Cache-Control": FOREVER if forever else ASK_AGAIN, "Vary": "Accept-Encoding"}
        known_tags = {word.strip().removeprefix("W/") for word in request.headers.get("if-none-match", "").split(",")}
        if tag in known_tags or "*" in known_tags:
            return Response(status_code=304, headers=headers)
        if packs:
            headers["Content-Encoding"] = "gzip"
        return Response(self.packed if packs else self.content, headers=headers, media_type=self.media)


class Assets:
    """All files by name; plotly's is packed in a thread while the page is already served."""

    def __init__(self) -> None:
        folder = files("trainyard.web").joinpath("static")
        raw = {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.is_file()} if folder.is_dir() else {}
        raw |= {name: files("trainyard.report").joinpath(name).read_bytes() for name in SHARED}
        self.files = {name: Asset.of(name, content) for name, content in raw.items()}
        if "index.html" in raw:
            self.files["index.html"] = Asset.of("index.html", versioned(raw["index.html"], self.files))
        self._plotly: asyncio.Task[Asset] | None = None

    def start(self) -> None:
        self._plotly = asyncio.create_task(asyncio.to_thread(_plotly))

    async def find(self, name: str) -> Asset | None:
        if name == PLOTLY and self._plotly is not None:
            return await asyncio.shield(self._plotly)
        return self.files.get(name)


def _plotly() -> Asset:
    from plotly.offline import get_plotlyjs

    return Asset.of(PLOTLY, get_plotlyjs().encode())


def versioned(page: bytes, assets: Mapping[str, Asset]) -> bytes:
    """The page with each of our files named by its hash."""

    def named(match: re.Match[bytes]) -> bytes:
        asset = assets.get(match.group(1).decode())
        return match.group() if asset is None else b"%s?v=%s" % (match.group(), asset.tag.encode())

    return re.sub(rb"/static/([A-Za-z0-9._-]+)(?=[\"'])", named, page)
