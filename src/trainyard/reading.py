"""What a reader of a user's input promises: a value, or one line that says which file, where in it and what was expected.

- `reader` marks each function that reads a file or a text of a user. Whatever goes wrong inside becomes a TrainyardError in this
  one place: numbers of thousands of digits, brackets nested too deep, half characters, damaged archives, missing keys.
- `LIMITS` bounds what is read, before it is parsed: files are read in blocks, and counted while they come. `$TRAINYARD_LIMITS`
  changes a bound.
- `read_text`, `read_json`, `parse_toml` and `blocks` are the only doors to files: they refuse folders, pipes and devices.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from typing import Any, BinaryIO, NamedTuple, ParamSpec, TypeVar, cast

from trainyard.errors import BadInput, TooLarge, TrainyardError, UnknownName
from trainyard.units import parse, show

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")
Path = str | os.PathLike[str]
VARIABLE = "TRAINYARD_LIMITS"
BLOCK_BYTES = 2**20
LONGEST_MESSAGE = 1000
LONGEST_TEXT = 120
"""Characters of a text that an error repeats."""


class Limit(NamedTuple):
    """The most of something that is read: bytes, or a plain count."""

    default: int
    unit: str
    meaning: str


# fmt: off
LIMITS: Mapping[str, Limit] = {
    "step_bytes":         Limit(2**28,       "B", "of a step file, unpacked; the largest of the zoo has 1.7 MB"),
    "result_bytes":       Limit(2**28,       "B", "of the JSON of results that `diff` reads"),
    "topology_bytes":     Limit(2**24,       "B", "of a SCALE-Sim topology"),
    "topology_rows":      Limit(10_000,      "",  "lines of a SCALE-Sim topology"),
    "machine_bytes":      Limit(2**18,       "B", "of a machine file (.toml, .cfg) or a mapping file"),
    "machine_line":       Limit(1000,        "",  "characters of a line of a machine file"),
    "study_bytes":        Limit(2**20,       "B", "of a study file"),
    "text_length":        Limit(20_000,      "",  "characters of a machine text"),
    "text_depth":         Limit(32,          "",  "brackets in brackets of a machine text"),
    "trace_bytes":        Limit(2**28,       "B", "of a Chakra trace"),
    "problem_bytes":      Limit(2**16,       "B", "of a Timeloop problem"),
    "onnx_nodes":         Limit(200_000,     "",  "nodes of an ONNX model; its size does not matter, weights are skipped"),
    "masks_bytes":        Limit(2**30,       "B", "of masks in a .xz file, unpacked: they are held in memory"),
    "masks_header_bytes": Limit(100_000_000, "B", "of the header of a masks file; the most that safetensors allows"),
    "store_bytes":        Limit(2**32,       "B", "of one file of a sweep's store"),
    "store_rows":         Limit(10_000_000,  "",  "points in one file of a sweep's store"),
    "values":             Limit(10_000_000,  "",  "lists, objects and commas of a JSON file; a step of the zoo has 0.5 million"),
    "depth":              Limit(64,          "",  "lists in lists, tables in tables and parts of a dotted key"),
    "expansion":          Limit(200,         "",  "times the size of an archive that has more than 32 MiB; a step grows tenfold"),
}
# fmt: on
FREE_EXPANSION_BYTES = 2**25
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_DOTTED = re.compile(r"[^\s.=,\[\]{}#]++(?:[ \t]*+\.[ \t]*+[^\s.=,\[\]{}#]++)*+")
"""Words, with dots between them as a TOML key has. Nothing is tried twice: a long text takes no longer for its length."""
READERS: dict[str, str] = {}
"""What each function that reads users' input reads, by module and name: one test feeds all of them damaged and made-up input."""


def limit(name: str) -> int:
    """A bound of `LIMITS`, or what `$TRAINYARD_LIMITS` says: `TRAINYARD_LIMITS="step_bytes=1 GiB, values=5e7"`."""
    return _chosen(os.environ.get(VARIABLE, "")).get(name, LIMITS[name].default)


def _chosen(text: str) -> dict[str, int]:
    """
    >>> _chosen("step_bytes=1 GiB, values=5e7")
    {'step_bytes': 1073741824, 'values': 50000000}
    """
    chosen: dict[str, int] = {}
    for setting in filter(str.strip, text.split(",")):
        name, equals, amount = (part.strip() for part in setting.partition("="))
        if name not in LIMITS:
            raise UnknownName("limit", name, LIMITS, VARIABLE)
        if not equals:
            raise BadInput(f"{VARIABLE}: write {name}=..., such as {name}={LIMITS[name].default}")
        number = parse(amount, LIMITS[name].unit, f"{VARIABLE}: {name}")
        if number < 1 or number > 2**62:
            raise BadInput(f"{VARIABLE}: {name} must be at least 1, and at most 2**62, got {amount[:LONGEST_TEXT]}")
        chosen[name] = int(number)
    return chosen


def require_within(name: str, amount: int, subject: str) -> None:
    """Refuses more of something than the limit of that name.

    >>> require_within("topology_rows", 20_000, "topology net.csv")
    Traceback (most recent call last):
    trainyard.errors.BadInput: topology net.csv: more than 10000 lines of a SCALE-Sim topology are not read; \
if it is meant: TRAINYARD_LIMITS="topology_rows=20000"
    """
    most = limit(name)
    if amount > most:
        raise over_limit(name, subject, amount)


def over_limit(name: str, subject: str, amount: int = 0) -> BadInput:
    """The error of something that has more than the limit of that name; `amount` is what would be enough, where it is known."""
    most, bound = limit(name), LIMITS[name]
    meaning = bound.meaning.partition(";")[0].partition(":")[0]
    shown = show(most, bound.unit, binary=True) if bound.unit else str(most)
    return BadInput(
        f'{subject}: more than {shown} {meaning} are not read; if it is meant: {VARIABLE}="{name}={max(amount, 2 * most)}"'
    )


def reader(
    what: str, *, source: str = "path", error: type[TrainyardError] = BadInput
) -> Callable[[Callable[Arguments, Returned]], Callable[Arguments, Returned]]:
    """Marks a function that reads `what` from the file or text in its parameter `source`.

    Errors of ours pass, with the file named; any other exception becomes `error`, with what it means for a user.

    >>> @reader("port", source="text")
    ... def port(text: str) -> int:
    ...     return int(text)
    >>> port("8" * 5000)
    Traceback (most recent call last):
    trainyard.errors.BadInput: port 888888888888888888888888888888...: a number of more than 4300 digits
    """

    def marked(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
        position = list(signature(function).parameters).index(source)

        @wraps(function)
        def read(*values: Arguments.args, **named: Arguments.kwargs) -> Returned:
            try:
                return function(*values, **named)
            except TrainyardError as problem:
                given = named.get(source, values[position] if position < len(values) else "")
                _name_source(problem, given if source in ("path", "name") else "")
                raise
            except Exception as problem:
                given = named.get(source, values[position] if position < len(values) else "")
                raise error(f"{what} {_repeated(given)}: {reason(problem)}") from problem

        READERS[f"{function.__module__}.{function.__qualname__}"] = what
        return read

    return marked


def _name_source(problem: TrainyardError, path: object) -> None:
    """Puts the file's name before an error that does not have it, and cuts what a file made too long."""
    message = str(problem)
    shown = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    if shown and str(shown) not in message:
        message = f"{shown}: {message}"
    if len(message) > LONGEST_MESSAGE:
        message = f"{message[: LONGEST_MESSAGE // 2]} ... {message[-LONGEST_MESSAGE // 3 :]}"
    problem.args = (message,)


def _repeated(given: object) -> str:
    if isinstance(given, os.PathLike):
        return str(given)
    if isinstance(given, Mapping):
        return ", ".join(map(str, given))[:LONGEST_TEXT]
    if not isinstance(given, str):
        return f"of {len(given)} bytes" if isinstance(given, bytes) else f"of type {type(given).__name__}"
    is_name = len(given) <= LONGEST_TEXT or os.sep in given
    return given if is_name else f"{given[: LONGEST_TEXT // 4]}..."


def reason(problem: BaseException) -> str:
    """What an exception of Python or of a library means for a user, in a few words.

    >>> reason(KeyError("digest")), reason(RecursionError("maximum recursion depth exceeded"))
    ("'digest' is missing", 'nested too deep')
    """
    message = " ".join(str(problem).split())
    if isinstance(problem, RecursionError):
        return "nested too deep"
    if isinstance(problem, MemoryError):
        return "it does not fit into memory"
    if isinstance(problem, UnicodeDecodeError):
        return f"byte {problem.start} is no UTF-8 text"
    if isinstance(problem, UnicodeEncodeError):
        return f"character {problem.start + 1} is half of a surrogate pair, no text"
    if isinstance(problem, ArithmeticError):
        return "a number is too large or too small to count with"
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    if isinstance(problem, EOFError):
        return "it ends too early"
    if isinstance(problem, KeyError):
        return f"{message[:LONGEST_TEXT]} is missing"
    if "Symlink loop" in message:
        return "too many levels of symbolic links"
    if "null byte" in message or "null character" in message:
        return "a name cannot have a NUL character"
    if "integer string conversion" in message:
        return "a number of more than 4300 digits"
    return f"{type(problem).__name__}: {message[:200]}"


def within_counters(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """The function, which answers sizes that whole numbers of 64 bits cannot count with one line of ours."""

    @wraps(function)
    def counted(*values: Arguments.args, **named: Arguments.kwargs) -> Returned:
        try:
            return function(*values, **named)
        except OverflowError as error:
            raise TooLarge(f"a size of the workload or the machine is too large to count with ({error})") from error

    return counted


@contextmanager
def regular_file(path: Path, what: str) -> Iterator[BinaryIO]:
    """A file that is open for reading; folders, pipes and devices are refused before they are opened: some have no end."""
    try:
        _require_regular(os.stat(path).st_mode, path, what)
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as problem:
        if isinstance(problem, TrainyardError):
            raise
        raise BadInput(f"cannot read {what} {os.fspath(path)}: {reason(problem)}") from None
    with os.fdopen(handle, "rb") as stream:
        _require_regular(os.fstat(handle).st_mode, path, what)  # what was opened, not what had the name before
        try:
            yield stream
        except OSError as problem:
            raise BadInput(f"cannot read {what} {os.fspath(path)}: {reason(problem)}") from None


def _require_regular(mode: int, path: Path, what: str) -> None:
    if stat.S_ISREG(mode):
        return
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    kind = kinds.get(stat.S_IFMT(mode), "a device")
    instead = "name a file in it" if stat.S_ISDIR(mode) else "write its content to a file, and name that"
    raise BadInput(f"cannot read {what} {os.fspath(path)}: it is {kind}; {instead}")


def blocks(path: Path, what: str, most: str) -> Iterator[bytes]:
    """The content of a file in blocks, unpacked if it is named .gz or .xz; stops where it exceeds the limit `most`."""
    name = os.fspath(path)
    with regular_file(path, what) as raw:
        packed_bytes = os.fstat(raw.fileno()).st_size
        packed = name.endswith((".gz", ".xz"))
        if not packed and packed_bytes > limit(most):
            raise over_limit(most, f"{what} {name}", packed_bytes)
        stream = _unpacking(raw, name)
        bound, size = limit(most), 0
        growth = limit("expansion")
        while block := stream.read(BLOCK_BYTES):
            size += len(block)
            if size > bound:
                raise over_limit(most, f"{what} {name}")
            if packed and size > FREE_EXPANSION_BYTES and size > growth * max(raw.tell(), 1):
                raise over_limit("expansion", f"{what} {name}")
            yield block


def _unpacking(raw: BinaryIO, name: str) -> BinaryIO:
    if name.endswith(".gz"):
        import gzip

        return cast(BinaryIO, gzip.GzipFile(fileobj=raw, mode="rb"))
    if name.endswith(".xz"):
        import lzma

        return cast(BinaryIO, lzma.LZMAFile(raw))
    return raw


def read_text(path: Path, what: str = "file", most: str = "machine_bytes") -> str:
    """A text file of at most the limit `most`."""
    content = b"".join(blocks(path, what, most))
    try:
        return content.decode()
    except UnicodeDecodeError as problem:
        raise BadInput(f"{what} {os.fspath(path)} is not text: {reason(problem)}") from None


def read_json(path: Path, what: str, most: str) -> Any:
    """The value of a JSON file, whose lists and objects are counted before they are made."""
    content, brackets = [], Brackets(f"{what} {os.fspath(path)}")
    for block in blocks(path, what, most):
        brackets.count(block)
        content.append(block)
    return parse_json(b"".join(content))


def parse_json(content: str | bytes) -> Any:
    """The value of a JSON text; numbers that are none (NaN, Infinity) and halves of characters are refused."""
    import json

    def refused(name: str) -> None:
        raise BadInput(f"{name} is no number of JSON")

    try:
        text = content if isinstance(content, str) else content.decode()
        value = json.loads(text, parse_constant=refused)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()  # an escape may stand for half of a character
    except json.JSONDecodeError as problem:
        raise BadInput(f"not JSON: {problem.msg} at line {problem.lineno}, column {problem.colno}") from None
    except UnicodeDecodeError as problem:
        raise BadInput(f"not JSON: {reason(problem)}") from None
    return value


class Brackets:
    """Counts the values of a JSON text block by block, and how deep they nest, without parsing it.

    Pairs of brackets are taken away from the inside; what is left after as many rounds as may nest is too deep.
    """

    OTHERS = bytes(set(range(256)) - set(b"[]{}"))

    def __init__(self, subject: str) -> None:
        self.subject, self.values, self._open = subject, 0, b""
        self._most_values, self._most_depth = limit("values"), limit("depth")

    def count(self, block: bytes) -> None:
        self.values += block.count(b",") + block.count(b"[") + block.count(b"{")
        if self.values > self._most_values:
            raise over_limit("values", self.subject)
        left = self._open + block.translate(None, self.OTHERS)
        for _ in range(self._most_depth):
            inner = left.replace(b"[]", b"").replace(b"{}", b"")
            if len(inner) == len(left):
                break
            left = inner
        if b"[]" in left or b"{}" in left or left.count(b"[") + left.count(b"{") > self._most_depth:
            raise over_limit("depth", self.subject)
        self._open = left[-2 * self._most_depth :]


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """The table of a TOML text; keys of many parts and deep lists, for which its parser needs memory without end, are refused."""
    import tomllib

    Brackets(where).count(text.encode())
    deepest = limit("depth")
    for key in _DOTTED.finditer(text):
        if (parts := key.group().count(".")) > deepest:
            raise over_limit("depth", where, parts)
    return tomllib.loads(text)
