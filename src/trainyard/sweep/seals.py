"""A seal in a file: the hash of all its other bytes, so that one that was altered anywhere, by one bit, is known before it is read.

The seal stands in the file itself as `trainyard-seal:sha256:` and 64 digits. It is computed while the digits are all zero, and
checked in the same way. A parser never sees bytes whose seal is broken. A file without a seal is of an earlier release, or its seal
was hit: `sealed` says which files have one, and who reads them says which must.
"""

from __future__ import annotations

import hashlib

MARK = b"trainyard-seal:sha256:"
DIGITS = 64
OPEN = (MARK + b"0" * DIGITS).decode()
"""What a writer puts into a file, once, before it is sealed."""


def seal(content: bytes) -> bytes:
    """The file with its seal, of one that holds `OPEN`.

    >>> check(seal(f"{{'seal': '{OPEN}'}}".encode()))
    True
    """
    head, mark, tail = content.rpartition(OPEN.encode())
    assert mark, "the file holds no open seal"
    return b"".join((head, MARK, hashlib.sha256(content).hexdigest().encode(), tail))


def is_sealed(content: bytes) -> bool:
    return MARK in content


def check(content: bytes) -> bool:
    """Whether the seal of a file is whole.

    >>> whole = seal(f"points {OPEN} more".encode())
    >>> check(whole), check(whole.replace(b"points", b"qoints")), check(whole[:-1])
    (True, False, False)
    """
    head, mark, rest = content.rpartition(MARK)
    opened = b"".join((head, mark, b"0" * DIGITS, rest[DIGITS:]))
    return bool(mark) and rest[:DIGITS] == hashlib.sha256(opened).hexdigest().encode()
