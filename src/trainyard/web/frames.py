"""What passes between the server and a worker: a kind, a length, a body. Bodies are JSON, those of results compressed.

Nothing is pickled, so a worker that has been led astray by a file cannot lead the server astray.
"""

from __future__ import annotations

import gzip
import json
import math
import struct
from typing import Any

HEAD = struct.Struct(">cI")
ASK, PROGRESS, DONE, FAILED, READY = b"A", b"P", b"D", b"F", b"R"
SPENT = b"S"
"""Comes before the last answer of a worker that has grown large and wants to be replaced."""
LEVEL = 5
"""Of gzip: results shrink tenfold in milliseconds."""


def packed(kind: bytes, body: bytes) -> bytes:
    return HEAD.pack(kind, len(body)) + body


def json_bytes(value: Any) -> bytes:
    """Strict JSON: what is not finite is null, what JSON does not know is text.

    >>> json_bytes({"a": float("inf"), "b": (1, 2)})
    b'{"a":null,"b":[1,2]}'
    """
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False, default=str)
    except ValueError:
        text = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False, default=str)
    return text.encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def compressed(value: Any) -> bytes:
    """The same value, the same bytes."""
    return gzip.compress(json_bytes(value), LEVEL, mtime=0)
