"""What a visitor may write as a machine: names, fields and quantities, never a file and never a class of some module.

On the command line a machine text may name a file (`my.toml`) and a table may name a class (`module:Class`). A page must offer
neither, or any site that reaches it could read files: so those two spellings are refused wherever a text may be read as a machine,
inside quotes and tables too. An uploaded machine file is named by its id; its content has been through the same sieve.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.errors import BadInput

LONGEST = 4000
"""Signs of a machine text or a value."""
DEEPEST = 24
"""Brackets in brackets: the grammar is read by recursion."""
UPLOAD = re.compile(r"upload-[0-9a-f]{16}")
_FILE = re.compile(r"\.(toml|cfg)", re.IGNORECASE)


def require_plain(value: Any, where: str, depth: int = 0) -> None:
    """Refuses what could be read as a file or a class.

    >>> require_plain("npu(dram=75 GB/s)", "machine")
    >>> require_plain("npu(array='/etc/secret.toml')", "machine")
    Traceback (most recent call last):
    trainyard.errors.BadInput: machine: '.toml' names a file: upload it, and name the machine by the upload's id
    """
    if isinstance(value, str):
        _require_text(value, where)
    elif isinstance(value, Mapping):
        _require_shallow(depth, where)
        for key, item in value.items():
            require_plain(str(key), where, depth + 1)
            require_plain(item, where, depth + 1)
    elif isinstance(value, Sequence):
        _require_shallow(depth, where)
        for item in value:
            require_plain(item, where, depth + 1)


def _require_shallow(depth: int, where: str) -> None:
    if depth > DEEPEST:
        raise BadInput(f"{where}: tables in tables deeper than {DEEPEST}")


def _require_text(text: str, where: str) -> None:
    if len(text) > LONGEST:
        raise BadInput(f"{where}: {len(text)} signs, at most {LONGEST} are read")
    if match := _FILE.search(text):
        raise BadInput(f"{where}: '{match.group()}' names a file: upload it, and name the machine by the upload's id")
    if ":" in text:
        raise BadInput(f"{where}: ':' names a class of a module: only registered parts can be chosen here (see /api/machines)")
    if any(sign in text for sign in "\0\\"):
        raise BadInput(f"{where}: a sign that no machine text has")
    opened = deepest = 0
    for sign in text:
        opened += (sign == "(") - (sign == ")")
        deepest = max(deepest, opened)
    if deepest > DEEPEST:
        raise BadInput(f"{where}: brackets in brackets deeper than {DEEPEST}")
