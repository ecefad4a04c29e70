"""Finished results on disk, so that a server that was killed has them when it starts again. Bounded in number and bytes.

    results/<source>-<key>.json.gz    <source>: the digest of the program that computed it; <key>: the job's

A file appears whole or not at all, and its gzip checksum is verified when it is read: what is damaged is removed and computed
again. A result of another state of the program is never read, but counts towards the bounds until it is the least recently used.
A folder that cannot be written keeps nothing, and the server works from memory.
"""

from __future__ import annotations

import gzip
import os
import re
import secrets
import zlib
from contextlib import suppress
from pathlib import Path

SUFFIX = ".json.gz"
KEY = re.compile(r"[0-9a-f]{64}")
"""A path is made of nothing else that a visitor writes."""


class KeptResults:
    """Compressed results by key in a folder; the least recently used are removed first."""

    def __init__(self, folder: Path, source: str, most_bytes: int, most_results: int) -> None:
        self.folder, self.source, self.most_bytes, self.most_results = folder, source[:16], most_bytes, most_results

    def _path(self, key: str) -> Path | None:
        return self.folder / f"{self.source}-{key}{SUFFIX}" if KEY.fullmatch(key) else None

    def __contains__(self, key: str) -> bool:
        path = self._path(key)
        return path is not None and path.is_file()

    def get(self, key: str) -> bytes | None:
        path = self._path(key)
        if path is None:
            return None
        try:
            content = path.read_bytes()
            gzip.decompress(content)
        except FileNotFoundError:
            return None
        except (OSError, EOFError, zlib.error):  # damaged, or not to be read
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)
        return content

    def put(self, key: str, content: bytes) -> None:
        """Stores a result; one that is larger than the folder may be is not."""
        path = self._path(key)
        if path is None or len(content) > self.most_bytes:
            return
        part = self.folder / f".{secrets.token_hex(8)}.part"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            part.write_bytes(content)
            part.replace(path)
            self._bound()
        except OSError:  # a full disk, a folder that is not ours: memory has it
            with suppress(OSError):
                part.unlink()

    def _bound(self) -> None:
        """Removes the least recently used until the rest is within bounds, and parts that a kill left."""
        files = []
        for entry in os.scandir(self.folder):
            with suppress(OSError):  # another server has removed it
                if entry.name.endswith((SUFFIX, ".part")):
                    about = entry.stat()
                    files.append((about.st_mtime_ns, about.st_size, entry.path))
        size, number = sum(size for _, size, _ in files), len(files)
        for _, file_bytes, path in sorted(files):
            if size <= self.most_bytes and number <= self.most_results:
                return
            with suppress(OSError):
                os.unlink(path)
            size, number = size - file_bytes, number - 1
