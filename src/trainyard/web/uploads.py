"""Uploads: bodies counted while they stream, stored by content hash in a private folder that is deleted with the server.

A name is for showing alone; no path is ever made of it.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.errors import UnknownName
from trainyard.units import show
from trainyard.web import guard
from trainyard.web.connections import within
from trainyard.web.processes import QueryWorker, TaskFailed
from trainyard.web.recognition import remove
from trainyard.web.settings import Settings

LONGEST_NAME = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """One file of a visitor."""

    id: str
    name: str
    kind: str
    about: str
    path: str
    bytes: int

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("id", "name", "kind", "about", "bytes")}

    def for_worker(self) -> dict[str, str]:
        return {"path": self.path, "kind": self.kind, "name": self.name}


def shown_name(name: str) -> str:
    """The last part of a name, without signs that steer a terminal or a page.

    >>> shown_name("../../etc/my net.json"), shown_name("C:\\\\x\\\\a.csv"), shown_name("\\x1b[2J")
    ('my net.json', 'a.csv', '[2J')
    """
    last = name.replace("\\", "/").rpartition("/")[2]
    printable = "".join(sign for sign in last if sign.isprintable() and sign not in "<>&\"'`")
    return printable[:LONGEST_NAME].strip(". ") or "upload"


class Uploads:
    """The stored uploads, within limits of size, number and sum."""

    def __init__(self, settings: Settings, query_worker: QueryWorker, folder: Path) -> None:
        self.settings, self.query_worker, self.folder = settings, query_worker, folder
        self._kept: dict[str, Upload] = {}
        self._turn = asyncio.Semaphore(settings.receiving)

    def __iter__(self) -> Iterator[Upload]:
        return iter(self._kept.values())

    async def receive(self, name: str, body: AsyncIterator[bytes]) -> Upload:
        part = self.folder / f"{secrets.token_hex(8)}.part"
        try:
            async with self._turn:
                async with asyncio.timeout(self.settings.receiving_s):
                    digest = await self._written(part, body)
                return await self._keep(f"upload-{digest[:16]}", shown_name(name), part)
        except TimeoutError:
            limits = f"{self.settings.receiving_s:g} s, or sent nothing for {self.settings.idle_s:g} s"
            raise TaskFailed(408, f"the upload took longer than {limits}") from None
        except OSError as error:
            raise TaskFailed(507, f"the upload cannot be kept: {error.strerror or error}") from None
        finally:
            part.unlink(missing_ok=True)

    async def _written(self, part: Path, body: AsyncIterator[bytes]) -> str:
        """The hash of what came, no byte of it over the limit."""
        digest, size = hashlib.sha256(), 0
        with part.open("xb") as stream:
            async for block in within(body, self.settings.idle_s):
                size += len(block)
                if size > self.settings.upload_bytes:
                    raise self.too_large()
                digest.update(block)
                stream.write(block)
        if not size:
            raise TaskFailed(400, "an empty upload")
        return digest.hexdigest()

    def too_large(self) -> TaskFailed:
        return TaskFailed(413, f"an upload may have {show(self.settings.upload_bytes, 'B')} (trainyard serve --max-upload)")

    async def _keep(self, name: str, shown: str, part: Path) -> Upload:
        if name in self._kept:
            return self._kept[name]
        if len(self._kept) >= self.settings.uploads:
            raise TaskFailed(507, f"{len(self._kept)} uploads are kept, the most this server does: delete one first")
        answer = await self.query_worker.ask(
            "upload", path=str(part), target=str(self.folder / name), name=shown, unpacked_bytes=self.settings.unpacked_bytes
        )
        upload = Upload(id=name, name=shown, **json.loads(gzip.decompress(answer)))
        if name in self._kept:  # the same content came twice at once
            return self._kept[name]
        kept_bytes = sum(other.bytes for other in self)
        if kept_bytes + upload.bytes > self.settings.uploads_bytes or len(self._kept) >= self.settings.uploads:
            remove(Path(upload.path))
            raise TaskFailed(507, f"uploads of {show(kept_bytes, 'B')} are kept, this one is too much: delete one first")
        self._kept[name] = upload
        return upload

    def find(self, name: str) -> Upload:
        if name not in self._kept:
            raise UnknownName("upload", name[:64], self._kept)
        return self._kept[name]

    def remove(self, name: str) -> Upload:
        upload = self.find(name)
        del self._kept[name]
        remove(Path(upload.path))
        return upload

    def stores(self) -> dict[str, dict[str, str]]:
        return {upload.id: upload.for_worker() for upload in self if upload.kind == "store"}

    def named_in(self, texts: Iterable[str]) -> dict[str, dict[str, str]]:
        """The uploads that texts name, for a worker."""
        return {name: self.find(name).for_worker() for text in texts for name in guard.UPLOAD.findall(text)}
