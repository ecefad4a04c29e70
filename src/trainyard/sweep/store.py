"""A folder of records that survives a kill at any moment.

    manifest.json            format, version, the study
    segments/000001.parquet  records in the order they came; a segment is never changed
    points.parquet           all of them, sorted by key, one column per setting and metric: what `compact` leaves behind
    lock                     held (flock) by the one sweep that writes

A file appears whole or not at all: written under another name, synchronised, renamed, and the folder synchronised. `append` returns
when its segment is safe; so what was acknowledged is never lost. `compact` removes segments after `points.parquet` is safe; a kill
in between leaves records twice on disk and once in the store, which goes by key. The bytes of `points.parquet` depend on the
records alone (and the release of pyarrow), not on who computed them, in which order or after how many interruptions.
Every file is sealed (`seals`): one in which a bit has changed, anywhere, "is damaged", and is not parsed.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard._version import VERSION
from trainyard.errors import BadInput, MissingExtra
from trainyard.reading import blocks, parse_json, reader, require_within
from trainyard.sweep import seals
from trainyard.sweep.records import Record, better, by_key, settings_text

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "trainyard.sweep"
FORMAT_VERSION = 2
UNSEALED_VERSION = 1
"""The version of files that have no seal; they are read as they are."""
MANIFEST, POINTS, SEGMENTS, LOCK = "manifest.json", "points.parquet", "segments", "lock"
PART = ".part"
OWN = ("key", "workload", "machine", "settings", "error")
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, MemoryError)
"""What a reader of a damaged file may raise."""
SEGMENT_NAME = re.compile(r"(\d{6,})\.parquet")


class Disk:
    """The steps by which a file appears. A test puts another in its place, to stop or fail at each of them."""

    def write(self, path: Path, content: bytes) -> None:
        with path.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())

    def rename(self, path: Path, target: Path) -> None:
        path.replace(target)

    def synchronise(self, folder: Path) -> None:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def remove(self, path: Path) -> None:
        path.unlink()

    def write_whole(self, path: Path, content: bytes) -> None:
        part = path.with_name(f".{path.name}{PART}")
        try:
            self.write(part, content)
            self.rename(part, path)
            self.synchronise(path.parent)
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            raise BadInput(f"cannot write {path}: {error.strerror or error}") from None


def _parquet() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("pyarrow", "sweep", "the store of a sweep") from None
    return pyarrow, pyarrow.parquet


class Store:
    """Records by key, in a folder. Reading needs no lock; writing happens inside `writing()`."""

    def __init__(self, path: str | os.PathLike[str], *, disk: Disk | None = None) -> None:
        self.path = Path(path)
        self.disk = disk or Disk()
        self.notes: list[str] = []
        self.manifest = _manifest(self.path)
        self._merged: list[Path] = []
        self._last = 0
        self._known: dict[str, Record] | None = None

    @classmethod
    def begin(
        cls, path: str | os.PathLike[str], study: Mapping[str, Any], *, points: int | None = None, disk: Disk | None = None
    ) -> Store:
        """The store of a study, made if there is none; a folder of something else, or of another study, is refused.

        `points` is how many the study has where that is known: a store with fewer is of an unfinished sweep.
        """
        folder, disk = Path(path), disk or Disk()
        _parquet()
        about = {"format": FORMAT, "version": FORMAT_VERSION, "name": study.get("name"), "trainyard": VERSION, "study": study}
        about |= {} if points is None else {"points": points}
        content = manifest_bytes(about)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            strange = [
                entry.name for entry in folder.iterdir() if entry.name not in (LOCK, SEGMENTS, POINTS) and not _unfinished(entry)
            ]
        except OSError as error:
            raise BadInput(f"cannot make the store {folder}: {error.strerror or error}") from None
        if MANIFEST in strange:
            other = _manifest(folder).get("name")
            if other != study.get("name"):
                raise BadInput(f"{folder} holds study {other!r}, not {study.get('name')!r}: give another folder with --store")
        elif strange:
            raise BadInput(f"{folder} is no store, and not empty ({strange[0]}): give another folder with --store")
        if not (folder / MANIFEST).exists() or (folder / MANIFEST).read_bytes() != content:
            with _locked(folder):
                disk.write_whole(folder / MANIFEST, content)
        return cls(folder, disk=disk)

    @property
    def _records(self) -> dict[str, Record]:
        if self._known is None:
            self._merged, self._last = [], 0
            self._known = by_key(self._read())
        return self._known

    def __len__(self) -> int:
        return len(self._records)

    def keys(self) -> set[str]:
        return set(self._records)

    def get(self, key: str) -> Record | None:
        return self._records.get(key)

    def records(self) -> list[Record]:
        """Sorted by key."""
        return [self._records[key] for key in sorted(self._records)]

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keeps other sweeps out, sees what they have left behind, and clears away what a kill left unfinished."""
        with _locked(self.path):
            for folder in (self.path, self.path / SEGMENTS):
                for entry in folder.iterdir() if folder.is_dir() else ():
                    if _unfinished(entry):
                        with suppress(OSError):
                            self.disk.remove(entry)
            self._known = None
            yield

    def append(self, records: Iterable[Record]) -> None:
        """One segment; when this returns, the records are safe."""
        rows, existing = list(records), self._records
        if not rows:
            return
        folder = self.path / SEGMENTS
        try:
            if not folder.is_dir():
                folder.mkdir()
                self.disk.synchronise(self.path)
        except OSError as error:
            raise BadInput(f"cannot write {folder}: {error.strerror or error}") from None
        target = folder / f"{self._last + 1:06d}.parquet"
        self.disk.write_whole(target, _segment(rows))
        self._last += 1
        self._merged.append(target)
        for record in rows:
            existing[record.key] = better(existing.get(record.key), record)

    def compact(self) -> Path:
        """All records in one file, in the order of their keys; the segments that it replaces are removed."""
        target, content = self.path / POINTS, _points(self.records())
        if not target.exists() or target.read_bytes() != content:
            self.disk.write_whole(target, content)
        try:
            for segment in self._merged:
                self.disk.remove(segment)
            folder = self.path / SEGMENTS
            if folder.is_dir():
                self.disk.synchronise(folder)
                with suppress(OSError):  # not empty: something of others is in it
                    folder.rmdir()
        except OSError as error:
            raise BadInput(f"cannot tidy {self.path / SEGMENTS}: {error.strerror or error}") from None
        self._merged, self._last = [], 0 if not (self.path / SEGMENTS).is_dir() else self._last
        return target

    def frame(self) -> pd.DataFrame:
        """One line a point: settings, metrics, error."""
        try:
            import pandas  # noqa: F401
        except ImportError:
            raise MissingExtra("pandas", "sweep", "a data frame of a store") from None
        return _table(self.records()).to_pandas()

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        write_csv(self.records(), path)

    def _read(self) -> Iterator[Record]:
        """What is on disk: the compacted file, then segments in their order. A damaged segment is reported and not counted."""
        points = self.path / POINTS
        if points.exists():
            try:
                yield from _records_of(points, wide=True)
            except DAMAGE as error:
                raise BadInput(
                    f"{points} is damaged ({_short(error)}): put back a copy, or remove it and its points are computed again"
                ) from None
        folder = self.path / SEGMENTS
        for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
            name = SEGMENT_NAME.fullmatch(entry.name)
            if name is None:
                if not _unfinished(entry):
                    self._note(f"{entry} is no segment of this store and is not counted")
                continue
            self._last = max(self._last, int(name.group(1)))
            try:
                records = _records_of(entry, wide=False)
            except DAMAGE as error:
                self._note(f"{entry} is damaged and is not counted: its points are computed again ({_short(error)})")
                continue
            self._merged.append(entry)
            yield from records

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


def _short(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:120]


def _unfinished(entry: Path) -> bool:
    return entry.name.startswith(".") and entry.name.endswith(PART)


def manifest_bytes(about: Mapping[str, Any]) -> bytes:
    """JSON with its seal at the end, after all that a study may say."""
    text = json.dumps(about, indent=2, sort_keys=True, ensure_ascii=False, default=str)
    return seals.seal(f'{text.removesuffix("}").rstrip()},\n  "seal": "{seals.OPEN}"\n}}\n'.encode())


@reader("store", source="folder")
def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not os.path.lexists(path):
        raise BadInput(f"{folder} is no store of a sweep: it has no {MANIFEST}")
    content = b"".join(blocks(path, "store", "result_bytes"))
    damaged = f"{path} is damaged: put back a copy, or remove it and run the sweep again, which writes it anew and keeps the points"
    if seals.is_sealed(content) and not seals.check(content):
        raise BadInput(damaged)
    try:
        manifest = parse_json(content)
    except (ValueError, RecursionError):
        raise BadInput(damaged) from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BadInput(f"{path}: its 'format' is not '{FORMAT}'")
    if manifest.get("version") not in (FORMAT_VERSION, UNSEALED_VERSION):
        raise BadInput(f"{path}: a store of version {manifest.get('version')!r}, this release reads version {FORMAT_VERSION}")
    if manifest["version"] != UNSEALED_VERSION and not seals.is_sealed(content):
        raise BadInput(damaged)
    manifest.pop("seal", None)
    return manifest


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The operating system gives the lock back when its holder ends, however it ends."""
    path = folder / LOCK
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror or error}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(f"another sweep is writing to {folder}: wait for it, or give another folder with --store") from None
        yield
    finally:
        os.close(handle)


def _segment(records: list[Record]) -> bytes:
    pa, _ = _parquet()
    schema = pa.schema([*((name, pa.string()) for name in OWN), ("metrics", pa.map_(pa.string(), pa.float64()))])
    columns = {
        **{name: [getattr(record, name) for record in records] for name in OWN if name != "settings"},
        "settings": [settings_text(record.settings) for record in records],
        "metrics": [sorted(record.metrics.items()) for record in records],
    }
    about = {"format": FORMAT, "version": str(FORMAT_VERSION), "digest": _digest(records)}
    return _bytes(pa.table(columns, schema=schema).replace_schema_metadata(about))


def _points(records: list[Record]) -> bytes:
    return _bytes(_table(records))


def _bytes(table: Any) -> bytes:
    """Nothing that varies: no times, one compression, row groups of one size; sealed in the file's metadata."""
    _, parquet = _parquet()
    stream = io.BytesIO()
    with parquet.ParquetWriter(stream, table.schema, compression="zstd") as writer:
        writer.write_table(table, row_group_size=1 << 20)
        writer.add_key_value_metadata({"seal": seals.OPEN})
    return seals.seal(stream.getvalue())


def _table(records: list[Record]) -> Any:
    """One column per setting and per metric, names sorted; `metrics` in the schema's metadata says which are which."""
    pa, _ = _parquet()
    metrics = sorted({name for record in records for name in record.metrics})
    settings = sorted({path for record in records for path in record.settings})
    columns: dict[str, Any] = {
        "key": pa.array([record.key for record in records], pa.string()),
        "workload": pa.array([record.workload for record in records], pa.string()),
        "machine": pa.array([record.machine for record in records], pa.string()),
    }
    for path in settings:
        name = f"machine.{path}" if path in (*OWN, *metrics) else path
        columns[name] = _column([record.settings.get(path) for record in records])
    for name in metrics:
        columns[name] = pa.array([record.metrics.get(name) for record in records], pa.float64())
    columns["error"] = pa.array([record.error for record in records], pa.string())
    columns["settings"] = pa.array([settings_text(record.settings) for record in records], pa.string())
    about = {
        "format": FORMAT,
        "version": str(FORMAT_VERSION),
        "metrics": json.dumps(metrics),
        "digest": _digest(records),
    }
    return pa.table(columns).replace_schema_metadata(about)


def _column(values: list[Any]) -> Any:
    """Flags, whole numbers, numbers or text: the narrowest that holds all."""
    pa, _ = _parquet()
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {bool} and kinds:
        return pa.array(values, pa.bool_())
    if kinds <= {int} and kinds and all(value is None or abs(value) < 2**63 for value in values):
        return pa.array(values, pa.int64())
    if kinds <= {int, float} and kinds:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    text = [value if value is None or isinstance(value, str) else json.dumps(value, sort_keys=True) for value in values]
    return pa.array(text, pa.string())


def _records_of(path: Path, *, wide: bool) -> list[Record]:
    """The records of a file, or an error if it is not what was written."""
    pa, parquet = _parquet()
    content = b"".join(blocks(path, "points", "store_bytes"))
    if seals.is_sealed(content) and not seals.check(content):
        raise ValueError("its content is not what was written")
    require_within("store_rows", parquet.read_metadata(pa.BufferReader(content)).num_rows, str(path))
    table = parquet.read_table(pa.BufferReader(content), partitioning=None)
    about = table.schema.metadata or {}
    if about[b"version"] != str(UNSEALED_VERSION).encode() and not seals.is_sealed(content):
        raise ValueError("it has lost its seal")
    own = {name: table[name].to_pylist() for name in OWN}
    if wide:
        names = json.loads(about[b"metrics"])
        columns = [table[name].to_pylist() for name in names]
        metrics = [{n: v for n, v in zip(names, row, strict=True) if v is not None} for row in zip(*columns, strict=True)]
        metrics = metrics if names else [{} for _ in own["key"]]
    else:
        metrics = [dict(pairs) for pairs in table["metrics"].to_pylist()]
    records = [
        Record(key=key, workload=workload, machine=machine, settings=json.loads(settings), metrics=numbers, error=error)
        for key, workload, machine, settings, error, numbers in zip(*(own[name] for name in OWN), metrics, strict=True)
    ]
    if _digest(records).encode() != about[b"digest"]:
        raise ValueError("its content is not what was written")
    return records


def _digest(records: list[Record]) -> str:
    """Of all that records say: a file that was cut, mixed up or altered does not have it."""
    digest = hashlib.sha256()
    for record in records:
        content = [record.key, record.workload, record.machine, record.settings, record.metrics, record.error]
        digest.update(json.dumps(content, sort_keys=True).encode())
    return digest.hexdigest()


def write_csv(records: Iterable[Record], path: str | os.PathLike[str]) -> None:
    import csv

    from trainyard.files import whole_file

    table = _table(list(records)).drop_columns(["settings"])
    with whole_file(path) as part, part.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(table.column_names)
        writer.writerows(zip(*(column.to_pylist() for column in table.columns), strict=True))
