"""Sweep stores for the page: those in one folder, and those that were uploaded. Runs in a worker.

A store is found by looking its name up among the folder's entries; no path is made of a name, and a link that leads out of the
folder is no entry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.errors import BadInput, TrainyardError, UnknownName

if TYPE_CHECKING:
    from trainyard.sweep.store import Store

MOST = 200
"""Stores that are listed."""
KEPT = 16
"""Stores whose records stay in memory."""
OBJECTIVES = {"time_s": "min"}

Uploads = Mapping[str, Mapping[str, str]]


def listed(folder: str, uploads: Uploads) -> list[dict[str, Any]]:
    found = []
    for name, path in _places(folder, uploads).items():
        try:
            store = _opened(path)
        except TrainyardError as error:
            found.append({"name": name, "points": 0, "failed": 0, "about": "", "error": str(error).replace(str(path), name)})
            continue
        failed = sum(record.failed for record in store.records())
        about = uploads[name]["name"] if name in uploads else str(store.manifest.get("name") or "")
        found.append({"name": name, "points": len(store), "failed": failed, "about": about, "error": ""})
    return found


def opened(folder: str, uploads: Uploads, name: str, offset: int, limit: int) -> dict[str, Any]:
    """Rows of a store from `offset` on, and its Pareto front over all rows."""
    from trainyard.sweep.pareto import front

    places = _places(folder, uploads)
    if name not in places:
        raise UnknownName("store", name[:100], places)
    store = _opened(places[name])
    records = store.records()
    study = store.manifest.get("study") or {}
    metrics = sorted({metric for record in records for metric in record.metrics})
    objectives = {metric: way for metric, way in _objectives(study).items() if metric in metrics}
    values: dict[str, set[str]] = {}
    for record in records:
        for path, value in record.settings.items():
            values.setdefault(path, set()).add(json.dumps(value, sort_keys=True))
    return {
        "name": name,
        "points": len(records),
        "offset": offset,
        "axes": [path for path, seen in values.items() if len(seen) > 1],
        "metrics": metrics,
        "objectives": objectives,
        "rows": [record.as_dict() for record in records[offset : offset + limit]],
        "front": front(records, objectives) if objectives else [],
        "study": study,
        "notes": [note.replace(str(places[name]), name) for note in store.notes],
    }


def _objectives(study: Any) -> dict[str, str]:
    given = study.get("objectives") if isinstance(study, Mapping) else None
    if isinstance(given, Mapping) and given and all(way in ("min", "max") for way in given.values()):
        return dict(given)
    return OBJECTIVES


def _places(folder: str, uploads: Uploads) -> dict[str, Path]:
    from trainyard.sweep.store import MANIFEST

    root = Path(folder).resolve()
    try:
        entries = sorted(entry for entry in root.iterdir() if (entry / MANIFEST).is_file() and entry.resolve().parent == root)
    except OSError as error:
        raise BadInput(f"the folder of stores cannot be read: {error.strerror or error}") from None
    own = {entry.name: entry for entry in entries[:MOST]}
    return own | {name: Path(upload["path"]) for name, upload in uploads.items()}


def _opened(path: Path) -> Store:
    return _read(path, tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in _files(path)))


@lru_cache(maxsize=KEPT)
def _read(path: Path, state: object) -> Store:
    from trainyard.sweep.store import Store

    return Store(path)


def _files(path: Path) -> list[Path]:
    from trainyard.sweep.store import MANIFEST, POINTS, SEGMENTS

    segments = path / SEGMENTS
    found = [path / MANIFEST, path / POINTS, *(segments.iterdir() if segments.is_dir() else ())]
    return sorted(file for file in found if file.is_file())
