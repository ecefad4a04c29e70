"""Sweep stores for the page: those in one folder, and those that were uploaded. Runs in a worker.

`trainyard sweep` leaves a store beside its study, so folders in the folder are looked into as well, a few deep. A store is found by
looking its name up among those; no path is made of a name, and no link is followed. One that cannot be read is listed with the
reason, and keeps no other from being seen.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.errors import BadInput, TrainyardError, UnknownName
from trainyard.web import guard

if TYPE_CHECKING:
    from trainyard.sweep.records import Record
    from trainyard.sweep.store import Store

MOST = 200
"""Stores that are listed."""
DEEPEST = 3
"""Folders in folders that are looked into."""
LOOKED_INTO = 2000
"""Folders, at most: a server that was started in a large tree still answers."""
CACHED_STORES = 16
"""Stores whose records stay in memory."""
OBJECTIVES = {"time_s": "min"}

Uploads = Mapping[str, Mapping[str, str]]


def listed(folder: str, uploads: Uploads) -> list[dict[str, Any]]:
    stores = []
    for name, path in _places(folder, uploads).items():
        row = {"name": name, "points": 0, "planned": 0, "failed": 0, "about": "", "error": ""}
        try:
            store = _opened(path)
            row["points"], row["failed"] = len(store), sum(record.failed for record in store.records())
            row["planned"] = _planned(store)
            row["about"] = uploads[name]["name"] if name in uploads else str(store.manifest.get("name") or "")
        except TrainyardError as error:
            row["error"] = str(error).replace(str(path), name)
        except Exception as error:  # whatever a foreign folder makes a reader do
            row["error"] = f"{name} cannot be read: {type(error).__name__}"
        stores.append(row)
    return stores


def opened(folder: str, uploads: Uploads, name: str, offset: int, limit: int) -> dict[str, Any]:
    """Rows of a store from `offset` on, and its Pareto front over all rows."""
    from trainyard.sweep.pareto import front
    from trainyard.sweep.records import ranked

    places = _places(folder, uploads)
    if name not in places:
        raise UnknownName("store", name[:100], places)
    try:
        store = _opened(places[name])
        records = store.records()
    except TrainyardError as error:
        raise BadInput(str(error).replace(str(places[name]), name)) from None
    except OSError as error:
        raise BadInput(f"{name} cannot be read: {error.strerror or type(error).__name__}") from None
    study, shown = store.manifest.get("study") or {}, records[offset : offset + limit]
    metrics = sorted({metric for record in records for metric in record.metrics})
    objectives = {metric: direction for metric, direction in _objectives(study).items() if metric in metrics}
    values: dict[str, set[str]] = {}
    for record in records:
        for path, value in record.settings.items():
            values.setdefault(path, set()).add(json.dumps(value, sort_keys=True))
    return {
        "name": name,
        "points": len(records),
        "planned": _planned(store),
        "offset": offset,
        "axes": [path for path, seen in values.items() if len(seen) > 1],
        "metrics": metrics,
        "objectives": objectives,
        "rows": [record.as_dict() for record in shown],
        "closed": _closed(shown),
        "front": front(ranked(records, any_memory=study.get("any_memory") is True), objectives) if objectives else [],
        "study": study,
        "notes": [note.replace(str(places[name]), name) for note in store.notes],
    }


def _planned(store: Store) -> int:
    """How many points the study has; 0 where the store does not say, as that of a search."""
    points = store.manifest.get("points")
    return points if isinstance(points, int) and not isinstance(points, bool) and points > 0 else 0


def _closed(records: Sequence[Record]) -> dict[str, str]:
    """By key, why a point cannot be run again from the page: files of the study are not the page's to open."""
    from trainyard.workloads import zoo

    names = frozenset(zoo.names())

    @lru_cache(maxsize=4096)
    def plain(text: str) -> str:
        try:
            guard.require_plain(text, "machine")
        except BadInput as error:
            return str(error)
        return ""

    closed = {}
    for record in records:
        masks = str(record.settings.get("masks") or "sparsity(")
        fields = [record.machine, *(value for path, value in record.settings.items() if path != "masks")]
        if record.workload not in names:
            closed[record.key] = f"{record.workload} is a file of the study: upload it in Run & compare"
        elif not masks.startswith("sparsity("):
            closed[record.key] = f"its masks are {masks}, a file of the study: upload it in Run & compare"
        elif record.machine.startswith("{") or any("{" in str(value) for value in fields):
            closed[record.key] = "its machine is a table of the study, which a link cannot hold"
        elif reason := next(filter(None, map(plain, map(str, fields))), ""):
            closed[record.key] = reason
    return closed


def _objectives(study: Any) -> dict[str, str]:
    objectives = study.get("objectives") if isinstance(study, Mapping) else None
    if isinstance(objectives, Mapping) and objectives and all(direction in ("min", "max") for direction in objectives.values()):
        return dict(objectives)
    return OBJECTIVES


def _places(folder: str, uploads: Uploads) -> dict[str, Path]:
    root = Path(folder).resolve()
    if not os.access(root, os.R_OK | os.X_OK):
        raise BadInput("the folder of stores cannot be read")
    own = {path.relative_to(root).as_posix(): path for path in _store_folders(root)}
    return own | {name: Path(upload["path"]) for name, upload in uploads.items()}


def _store_folders(root: Path) -> Iterator[Path]:
    """Folders of a sweep's name, and those in `root` itself that have a manifest: the nearest first, by name."""
    from trainyard.sweep.running import SUFFIX
    from trainyard.sweep.store import MANIFEST

    level, looked, count = [root], 0, 0
    for depth in range(DEEPEST):
        below: list[Path] = []
        for folder in level:
            looked += 1
            if looked > LOOKED_INTO:
                return
            for entry in _folders(folder):
                if entry.name.endswith(SUFFIX) or (depth == 0 and os.path.isfile(entry / MANIFEST)):
                    yield entry
                    count += 1
                    if count == MOST:
                        return
                elif not entry.name.startswith("."):
                    below.append(entry)
        level = below


def _folders(folder: Path) -> list[Path]:
    """Sorted, without links; none where it may not be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _opened(path: Path) -> Store:
    return _read(path, tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in _files(path)))


@lru_cache(maxsize=CACHED_STORES)
def _read(path: Path, state: object) -> Store:
    from trainyard.sweep.store import Store

    return Store(path)


def _files(path: Path) -> list[Path]:
    from trainyard.sweep.store import MANIFEST, POINTS, SEGMENTS

    segments = path / SEGMENTS
    found = [path / MANIFEST, path / POINTS, *(segments.iterdir() if segments.is_dir() else ())]
    return sorted(file for file in found if file.is_file())
