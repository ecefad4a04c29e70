"""The one cache of the project: values by key, within a bound, never pickled with the part that owns it.

`BoundedCache` holds values that belong to an object (a machine's costs, a mask source's bits); `per_step` is for functions of a
step, `per_part` for functions of a part. Keys that must be compared by identity, because hashing them would cost more than the
value, are wrapped in `ByIdentity`. `DiskCache` outlives the process, for commands that ask for it (`on_disk`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, cached_property, lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trainyard.ir.step import Step

T = TypeVar("T")
Rest = TypeVarTuple("Rest")
ALWAYS_KEPT = 4
"""Entries that stay whatever their bytes: two operands of the product at hand, and those of the one before it."""
ENTRY_BYTES = 1024
"""assumed: bytes that a key and the objects around an array take; tiles of many small products have small arrays."""
DIGEST = 16
"""Bytes of the checksum in front of a stored table: a file that was damaged does not carry the checksum of its content."""


_MISSING: Any = object()


class ByIdentity(Generic[T]):
    """An object as a key: equal to itself alone. The cache keeps the object alive, so that its identity stays its own."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and other.value is self.value


class BoundedCache:
    """The values used last, at most `entries` of them and `max_bytes` of their arrays (`nbytes`).

    Threads may share it. It is copied and pickled empty: a machine that is sent to another process does not carry its costs.

    >>> squares = BoundedCache(entries=2)
    >>> [squares.get(n, lambda: n * n) for n in (2, 3, 4)], len(squares)
    ([4, 9, 16], 2)
    """

    __slots__ = ("_bytes", "_entries", "_lock", "_max_bytes", "_values")

    def __init__(self, entries: float = math.inf, max_bytes: float = math.inf) -> None:
        self._entries, self._max_bytes = entries, max_bytes
        self._values: dict[Hashable, Any] = {}
        self._bytes = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._values)

    def __reduce__(self) -> tuple[type[BoundedCache], tuple[float, float]]:
        return type(self), (self._entries, self._max_bytes)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of `key`, made if it is not there. `make` runs outside the lock, so it may use the cache itself."""
        with self._lock:
            known: T = self._values.get(key, _MISSING)
            if known is not _MISSING:
                if next(reversed(self._values)) != key:  # a comparison takes less than hashing a long key again
                    del self._values[key]
                    self._values[key] = known  # now the most recent
                return known
        value = make()
        with self._lock:
            if key in self._values:  # another thread was faster
                first: T = self._values[key]
                return first
        return self.put(key, value)

    def put(self, key: Hashable, value: T) -> T:
        """Stores a value in place of any other under its key."""
        with self._lock:
            if key in self._values:
                self._bytes -= _size(self._values.pop(key))
            self._values[key] = value
            self._bytes += _size(value)
            while len(self._values) > self._entries or (self._bytes > self._max_bytes and len(self._values) > ALWAYS_KEPT):
                self._bytes -= _size(self._values.pop(next(iter(self._values))))
        return value

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
            self._bytes = 0


class DiskCache:
    """Tables of whole numbers by key, each in a file of its own: the `entries` files that were used last.

    The key of a file also covers the sources that its content was computed by, all modules of the packages `sources`: another state
    of the program finds nothing. Processes may share a folder: a file is there whole or not at all, and one that is damaged counts
    as missing. A folder that cannot be written to costs time alone.
    """

    def __init__(self, folder: Path, entries: int, sources: Iterable[str]) -> None:
        self.folder, self._entries, self._sources = folder, entries, tuple(sources)

    @cached_property
    def _state(self) -> bytes:
        import platform
        from hashlib import blake2b
        from importlib.metadata import version

        root = Path(__file__).parent
        digest = blake2b(f"{platform.python_version()} {version('numba')} {version('numpy')}".encode())
        for source in self._sources:
            for path in sorted((root / source).glob("*.py")):
                digest.update(f"{source}/{path.name} {path.stat().st_size}".encode() + path.read_bytes())
        return digest.digest()

    def get(self, key: tuple[object, ...], make: Callable[[], npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
        """The table of `key`, made if it is not there; read-only. Equal keys must have equal `repr`."""
        from hashlib import blake2b

        path = self.folder / blake2b(self._state + repr(key).encode(), digest_size=20).hexdigest()
        known = _stored_table(path)
        if known is None:
            known = make()
            self._store(path, known)
        return known

    def _store(self, path: Path, table: npt.NDArray[np.int64]) -> None:
        from hashlib import blake2b

        from trainyard.errors import BadInput
        from trainyard.files import write_bytes

        content = b"".join(size.to_bytes(8, "little") for size in table.shape) + table.tobytes()
        with suppress(OSError, BadInput):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_bytes(path, blake2b(content, digest_size=DIGEST).digest() + content)
            files = list(self.folder.iterdir())
            if len(files) > self._entries:
                for file in sorted(files, key=lambda file: file.stat().st_mtime)[: len(files) - self._entries]:
                    file.unlink()


def _stored_table(path: Path) -> npt.NDArray[np.int64] | None:
    """The table in a file, which is now the one used last; None where there is none."""
    import os
    from hashlib import blake2b

    import numpy as np

    try:
        stored = path.read_bytes()
    except OSError:
        return None
    content = stored[DIGEST:]
    if blake2b(content, digest_size=DIGEST).digest() != stored[:DIGEST]:
        return None
    with suppress(OSError):
        os.utime(path)
    rows, columns = np.frombuffer(content[:16], np.int64).tolist()
    table = np.frombuffer(content[16:], np.int64).reshape(rows, columns).copy()
    table.flags.writeable = False
    return table


_ON_DISK: ContextVar[DiskCache | None] = ContextVar("on disk", default=None)


@contextmanager
def on_disk(cache: DiskCache | None) -> Iterator[None]:
    """What is found here is kept for other processes."""
    before = _ON_DISK.set(cache)
    try:
        yield
    finally:
        _ON_DISK.reset(before)


def kept_on_disk() -> DiskCache | None:
    """Where results are kept at present; None where they are not."""
    return _ON_DISK.get()


def _size(value: Any) -> int:
    return int(getattr(value, "nbytes", 0)) + ENTRY_BYTES


def per_step(function: Callable[[Step, *Rest], T]) -> Callable[[Step, *Rest], T]:
    """Caches a function of (step, ...) for the last 32 arguments; steps by identity, since they never change."""

    @lru_cache(maxsize=32)
    def cached(step: ByIdentity[Step], *rest: Any) -> T:
        return function(step.value, *rest)

    return lambda step, *rest: cached(ByIdentity(step), *rest)


def is_frozen(part: object) -> bool:
    """Whether equal parts stay equal, so that what is known of one is known of the other."""
    parameters = getattr(type(part), "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


def per_part(function: Callable[[Any], T]) -> Callable[[Any], T]:
    """Caches a function of a part by the part's value, for the last 64; of parts that may change it is called each time."""
    cached = lru_cache(maxsize=64)(function)
    return lambda part: cached(part) if is_frozen(part) else function(part)


class _CachedMembers(type(Protocol)):  # type: ignore[misc]  # the metaclass of protocols has no public name
    """The metaclass of a protocol whose member names are looked up once, not at every `isinstance`."""

    def __instancecheck__(cls, instance: object) -> bool:
        for name in _members(cls):  # noqa: SIM110  # a generator would take twice as long
            if not hasattr(instance, name):
                return False
        return True


@cache
def _members(protocol: type) -> tuple[str, ...]:
    bases = (base for base in protocol.__mro__ if getattr(base, "_is_protocol", False) and base is not Protocol)
    return tuple({name for base in bases for name in vars(base) if not name.startswith("_")})


def cache_members(protocols: Iterable[type]) -> None:
    """Makes `isinstance` with these runtime-checkable protocols fast: a run asks for some twenty capabilities."""
    for protocol in protocols:
        protocol.__class__ = _CachedMembers
