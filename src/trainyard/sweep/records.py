"""Record: what one point came to. No times and no hosts in it: the same point gives the same record anywhere.

One that a time limit stopped is the exception: it says the limit, and another computer may be fast enough.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

TOO_LONG = "took longer than"
"""How the error of a point begins that a time limit stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A point's key, how it was set, and its numbers; or the error that it ended in."""

    key: str
    workload: str
    machine: str
    settings: Mapping[str, Any]
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.error)

    @property
    def timed_out(self) -> bool:
        return self.error.startswith(TOO_LONG)

    @property
    def fits(self) -> bool:
        """Whether the step fits every memory of its machine that states a capacity."""
        return self.metrics.get("memory_share", 0.0) <= 1.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "workload": self.workload,
            "machine": self.machine,
            "settings": dict(self.settings),
            "metrics": dict(self.metrics),
            "error": self.error,
        }


def ranked(records: Iterable[Record], *, any_memory: bool) -> list[Record]:
    """The records that a front or a best one is chosen from: what failed is not, nor, unless `any_memory`, what does not fit."""
    return [record for record in records if not record.failed and (any_memory or record.fits)]


def settings_text(settings: Mapping[str, Any]) -> str:
    """Settings as JSON, the same text for the same settings."""
    return json.dumps(settings, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def better(old: Record | None, new: Record) -> Record:
    """Which of two records of one key counts: a result before an error, else the later."""
    return old if old is not None and new.failed and not old.failed else new


def by_key(records: Iterable[Record]) -> dict[str, Record]:
    records_by_key: dict[str, Record] = {}
    for record in records:
        records_by_key[record.key] = better(records_by_key.get(record.key), record)
    return records_by_key
