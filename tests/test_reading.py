"""Limits before parsing, one place that decides, and names that steer no terminal."""

from __future__ import annotations

import ast
import gzip
import json
import lzma
import os
import re
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import trainyard
from readers import NOT_FUZZED, RESULT, STEP, TABLE, masks_file
from trainyard.errors import BadInput, MaskError, TooLarge, TrainyardError
from trainyard.files import require_folder, require_writable, whole_file, write_text
from trainyard.machines import machine, with_overrides
from trainyard.machines.files import load_toml
from trainyard.machines.scalesim import read_cfg
from trainyard.masks.recorded import Masks
from trainyard.reading import LIMITS, READERS, limit, parse_json, read_json, read_text, reader, reason, regular_file
from trainyard.report.summaries.differences import read_results
from trainyard.sweep.study import Study
from trainyard.workloads.formats import read_topology
from trainyard.workloads.formats.chakra import read_trace
from trainyard.workloads.formats.onnx.model import read_onnx
from trainyard.workloads.formats.timeloop import read_timeloop
from trainyard.workloads.named import load, read_step

SOURCE = Path(trainyard.__file__).parent
MEMORY = 60e6
"""Bytes that a refusal may take."""


# one table


def _marked(tree: ast.AST, place: str) -> Iterator[str]:
    """The functions that are marked as readers, by module and name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _marked(node, f"{place}.{node.name}")
        elif isinstance(node, ast.FunctionDef):
            marks = (mark.func for mark in node.decorator_list if isinstance(mark, ast.Call))
            if any(isinstance(mark, ast.Name) and mark.id == "reader" for mark in marks):
                yield f"{place}.{node.name}"


def test_every_reader_is_fuzzed() -> None:
    marked = set()
    for file in SOURCE.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if "@reader(" in text and file.name != "reading.py":
            marked |= {*_marked(ast.parse(text), file.relative_to(SOURCE).with_suffix("").as_posix().replace("/", "."))}
    assert marked == {name.partition(" ")[0] for name in TABLE} | NOT_FUZZED.keys()
    elsewhere = {name.removeprefix("trainyard.") for name in READERS if name.startswith("trainyard.")}
    assert {name for name in elsewhere if not name.startswith("reading.")} <= marked  # its doctest marks one


# fmt: off
NOT_USERS = {  # who else opens or parses: not a user's input, or a door of its own
    "reading.py":                      "the doors themselves",
    "files.py":                        "sources of the package, for its digest",
    "caches.py":                       "its own cache, checked by a digest",
    "kernels/cache.py":                "sources of the package, for its digest",
    "sweep/points.py":                 "sources of the package, for its digest",
    "sweep/store.py":                  "what was sealed and checked before",
    "web/recognition.py":              "an upload of bounded size, behind a reader of its own",
    "web/assets.py":                   "files of the package",
    "web/app.py":                      "answers of its own workers",
    "web/jobs.py":                     "answers of its own workers",
    "web/uploads.py":                  "answers of its own workers",
    "web/worker.py":                   "requests of its own server",
    "web/processes.py":                "answers of its own workers",
    "web/views.py":                    "plotly's own text",
    "report/page.py":                  "files of the package, plotly's own text",
    "report/summaries/differences.py": "a result in memory, written and read",
    "machines/scalesim.py":            "configparser, behind read_text and a reader",
    "workloads/formats/timeloop.py":   "YAML, behind read_text and a reader",
    "masks/recorded.py":               "writes .xz; reads by blocks",
    "report/traces/memory_trace.py":   "writes .gz",
    "report/traces/perfetto.py":       "writes .gz",
    "sweep/executors.py":              "messages of its own processes",
    "sweep/on_ray.py":                 "messages of its own processes",
    "web/kept_results.py":             "its own results",
    "workloads/zoo/__init__.py":       "steps of the package",
    "live/direct/group.py":            "messages of its own processes",
    "live/direct/heartbeat.py":        "messages of its own processes",
    "live/direct/checkpoint.py":       "files of its own processes",
    "live/gradient/choice.py":         "keys of its own file",
    "live/measurement/stopwatch.py":   "torch's own trace",
}
# fmt: on
ROOMS_OF_THEIR_OWN = ("papers/", "rtl/", "sweep/search")
"""Samples and caches of the package; circuits."""
PARSES = re.compile(r"^(json\.loads?|tomllib\.loads?|gzip\.(open|decompress|GzipFile)|lzma\.(open|decompress|LZMAFile)|pickle\.\w+|"
                    r"np\.(fromfile|load)|yaml\.\w*load|zlib\.decompress\w*|.*\.read_(text|bytes|string))$")  # fmt: skip

SUSPECT = re.compile(r"json\.load|tomllib\.|gzip\.|lzma\.|pickle\.|fromfile|np\.load|yaml\.|zlib\.|\.read_(text|bytes|string)")


def test_nobody_opens_or_parses_a_file_of_a_user_past_the_doors() -> None:
    strangers = set()
    for file in SOURCE.rglob("*.py"):
        place, text = file.relative_to(SOURCE).as_posix(), file.read_text(encoding="utf-8")
        if not SUSPECT.search(text):
            continue
        calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
        if any(PARSES.match(ast.unparse(call.func)) for call in calls):
            strangers.add(place)
    unknown = {place for place in strangers - NOT_USERS.keys() if not place.startswith(ROOMS_OF_THEIR_OWN)}
    assert not unknown, "read through trainyard.reading, or say in NOT_USERS why not"


# errors that are not ours


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("npu(dram=1e99999999 GB/s)", "not a finite number"),
        ("npu(dram=1e999999999999999999999999 GB/s)", "not a finite number"),
        ("npu(dram=1e-999999999999999999999999 GB/s)", "above 0"),
        ("npu(array=" * 2000, "more than 32 brackets in brackets"),
        ("npu(array=" + "(" * 5000, "more than 32 brackets in brackets"),
        ("npu(" + "a" * 30_000, "more than 20000 characters"),
        (f"npu(array=systolic(rows={'9' * 5000},columns=1))", "not a finite number"),
        (f"npu(array=systolic(rows=8,columns={2**63}))", r"columns must be at most 2\*\*53"),
        ("npu(clock=1.9e28 Hz)", r"between 1 mHz and 1e\+15 Hz"),
        ("npu(clock_hz=1e-300)", "between 1 mHz"),
        ("npu(dram_bytes_per_s=1)", "less than a byte in"),
        ("npu(dram_latency=1e8 s)", "shorter latency"),
        ("npu(scratchpad_bytes=1e200)", "between 0 B"),
        ("a\0b.toml", "NUL"),
        ("a\0b.cfg", "NUL"),
        ("a\ud800b.toml", "surrogate"),
        (f"{'a' * 300}.toml", "too long"),
        (f"{'a' * 300}.cfg", "too long"),
    ],
)
def test_a_machine_text_that_cannot_be_meant_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(TrainyardError, match=says) as caught:
        machine(text)
    assert len(str(caught.value)) < 1200


def test_changes_of_a_machine_that_cannot_be_meant_are_refused() -> None:
    for path, value in (("array.rows", "9" * 5000), ("dram", 10**400), ("array.rows", 10**5000), ("array.dataflow", 10**5000)):
        with pytest.raises(TrainyardError):
            with_overrides(machine("npu"), {path: value})


@pytest.mark.parametrize("ending", [".json", ".json.gz", ".csv", ".onnx", ".py:f", ".onnx:n=1"])
@pytest.mark.parametrize("name", ["a\0b", "a" * 300, "a\ud800b"])
def test_a_workload_whose_name_no_file_can_have_is_refused(name: str, ending: str) -> None:
    with pytest.raises(TrainyardError):
        load(f"{name}{ending}")


@pytest.mark.parametrize("name", ["a\0b.safetensors", "a\0b.safetensors.xz", "a" * 300 + ".safetensors", "a\ud800.safetensors.xz"])
def test_masks_whose_name_no_file_can_have_are_refused(name: str) -> None:
    with pytest.raises(MaskError, match="cannot read masks"):
        Masks.open(name)


def _step(**changes: Any) -> str:
    return json.dumps({**json.loads(STEP.to_json()), **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": "\ud800"}, "half of a surrogate pair"),
        ({"batch": 10**400}, "batch must be at most"),
        ({"batch": float("inf")}, "Infinity is no number"),
        ({"bodies": 5}, "damaged step file"),
        ({"bodies": [None]}, r"bodies\[0\]: expected a list that begins with one of MatMul"),
        ({"bodies": [["MatMul", 1, 2]]}, r"bodies\[0\]: MatMul has 4 numbers"),
        ({"bodies": [["MatMul", {}, 2, 3, 1]]}, r"bodies\[0\]: MatMul: M must be"),
        ({"bodies": [["MatMul", 10**400, 2, 3, 1]]}, r"bodies\[0\]: MatMul: M must be at most"),
        ({"bodies": [[["MatMul"], 1, 2, 3, 1]]}, r"bodies\[0\]: expected"),
        ({"words": [["forward"]]}, "a name is no text"),
        ({"tensors": [[1]]}, "damaged step file"),
    ],
)
def test_a_step_with_a_wrong_value_is_refused_with_its_place(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        type(STEP).from_json(_step(**changes))


def test_a_batch_of_400_digits_is_too_large() -> None:
    for batch in (10**400, 10**5000, 2**54):
        with pytest.raises(TooLarge, match=r"at most 2\*\*53"):
            STEP.rebatch(batch)


def _header(**changes: Any) -> bytes:
    (length,) = struct.unpack("<Q", masks_file()[:8])
    header = json.loads(masks_file()[8 : 8 + length])
    tensors = json.loads(header["__metadata__"]["tensors"])
    for row in tensors.values():
        row.update({key: value for key, value in changes.items() if key in row})
    header["__metadata__"]["tensors"] = json.dumps(tensors)
    header["__metadata__"] |= {key: value for key, value in changes.items() if key in ("digest", "extra")}
    if changes.get("digest", "") is None:
        del header["__metadata__"]["digest"]
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + masks_file()[8 + length :]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"digest": None}, "has no digest"),
        ({"nonzero": float("inf")}, "Infinity is no number"),
        ({"nonzero": -1}, "is no count"),
        ({"nonzero": 10**9}, "elements are not zero"),
        ({"call": "a"}, "is no count"),
        ({"layer": 5}, "no text"),
        ({"shape": [2, 10**400]}, "is no count"),
        ({"samples": [1.5]}, "is no count"),
        ({"extra": 5}, "expected text"),
    ],
)
def test_masks_with_a_wrong_value_are_refused_with_their_file(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(_header(**changes))
    with pytest.raises(MaskError, match=says) as caught:
        Masks.open(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("cell", ["9" * 5000, "1e99", "²", "-1", "nan"])
def test_a_width_in_a_topology_that_is_none_is_named_by_line_and_column(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"Layer,M,N,K,\nfc,4,{cell},6,\n")
    with pytest.raises(BadInput, match="line 2, column 3"):
        read_topology(path)


@pytest.mark.parametrize("key", ["time_s", "traffic_bytes", "by_layer", "by_phase", "energy_j"])
@pytest.mark.parametrize("value", ["a", 10**400, [1], {"a": "b"}, {"a": {"time_s": 1}}, -(10**400)])
def test_a_result_with_a_wrong_value_is_refused_before_it_is_compared(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps({**RESULT, key: value}))
    with pytest.raises(BadInput, match=str(path)):
        read_results(path)


def test_names_of_outputs(tmp_path: Path) -> None:
    """300 characters are one line; 250 are a file, though its temporary name would be longer."""
    for refuses in (require_writable, lambda path: write_text(path, "x"), require_folder):
        for name in ("a" * 300, "a\0b", "a\ud800b"):
            with pytest.raises(BadInput, match="cannot write"):
                refuses(tmp_path / name)
    write_text(tmp_path / ("a" * 250), "whole")
    assert (tmp_path / ("a" * 250)).read_text() == "whole"
    with pytest.raises(ValueError, match="not a number"), whole_file(tmp_path / "b"):
        raise ValueError("not a number of the caller's")


def test_an_exception_of_a_library_becomes_ours_and_is_kept_as_the_cause() -> None:
    @reader("thing", source="text")
    def thing(text: str) -> None:
        raise struct.error("bad char in struct format")

    try:
        with pytest.raises(BadInput, match="thing abc: error: bad char in struct format") as caught:
            thing("abc")
        assert isinstance(caught.value.__cause__, struct.error)
    finally:
        del READERS[f"{thing.__module__}.{thing.__qualname__}"]


def test_reasons_are_a_users() -> None:
    assert reason(MemoryError()) == "it does not fit into memory"
    assert reason(UnicodeDecodeError("utf-8", b"a\xff", 1, 2, "invalid")) == "byte 1 is no UTF-8 text"
    assert reason(OverflowError("x")) == "a number is too large or too small to count with"
    assert reason(EOFError()) == "it ends too early"


def test_numbers_of_json_that_are_none_are_refused() -> None:
    for text in ("[NaN]", "[-Infinity]", "[" + "9" * 5000 + "]", '["\\ud83d"]', b"\xff", "[" * 100_000):
        with pytest.raises((BadInput, ValueError, RecursionError)):
            parse_json(text)
    assert parse_json('["\\ud83d\\ude00", 1.5]') == ["\U0001f600", 1.5]


# limits before parsing

DEEP = b"[" * 200_000
BLOCK = b"[]," * 350_000
ZEROS = lzma.compress(bytes(2**26), preset=0)
Reads = Callable[[Path], Any]
# fmt: off
BOMBS: dict[str, tuple[Reads, Callable[[], bytes], str]] = {
    "lists.json.gz":       (read_step,     lambda: gzip.compress(b"[") + gzip.compress(BLOCK, 9) * 254, "more than 10000000 lists"),
    "zeros.json.gz":       (read_step,     lambda: gzip.compress(bytes(2**24), 9) * 17, "more than 200 times the size"),
    "deep.json":           (read_step,     lambda: DEEP, "more than 64 lists"),
    "deep_objects.json":   (read_step,     lambda: b'{"a":' * 100_000, "more than 64 lists"),
    "closed.json":         (read_step,     lambda: b"[" * 100_000 + b"]" * 100_000, "more than 64 lists"),
    "digits.json":         (read_step,     lambda: b'{"version":' + b"9" * 100_000 + b"}", "more than 4300 digits"),
    "rows.csv":            (read_topology, lambda: b"Layer,M,N,K,\n" + b"a,1,1,1,\n" * 20_000, "more than 10000 lines"),
    "many_rows.csv":       (read_topology, lambda: b"a,1,1,1,\n" * 5_000_000, "more than 16 MiB of a SCALE-Sim topology"),
    "wide.csv":            (read_topology, lambda: b"Layer,M,N,K," + b"," * 100_000, "no layers"),
    "large.cfg":           (read_cfg,      lambda: b"[a]\n" + b"key = value\n" * 2_000_000, "more than 256 KiB of a machine file"),
    "keys.cfg":            (read_cfg,      lambda: b"[architecture_presets]\nArrayHeight = %(ArrayHeight)s\n", "whole number"),
    "zeros.safetensors.xz": (Masks.open,   lambda: ZEROS * 16, "no safetensors header"),
    "said.safetensors.xz": (Masks.open,    lambda: lzma.compress(masks_file()) + ZEROS * 16, "and it holds more"),
    "deep.safetensors":    (Masks.open,    lambda: struct.pack("<Q", len(DEEP)) + DEEP, "more than 64 lists"),
    "long.safetensors":    (Masks.open,    lambda: struct.pack("<Q", 2**62), "no safetensors header"),
    "deep.toml":           (load_toml,     lambda: b"\n".join([b"a = ", DEEP[:900], *[b"["] * 900]), "more than 64 lists"),
    "dotted.toml":         (Study.load,    lambda: b".".join([b"a"] * 50_000) + b" = 1", "more than 64 lists"),
    "quoted.toml":         (Study.load,    lambda: b"x = {" + b".".join([b'"!"'] * 50_000) + b" = 1}", "more than 64 lists"),
    "word.toml":           (Study.load,    lambda: b"a" * 1_000_000, "after a key"),
    "words.toml":          (Study.load,    lambda: b"a \t" * 300_000 + b".", "after a key"),
    "large.toml":          (Study.load,    lambda: b"# remark\n" * 200_000, "more than 1 MiB of a study file"),
    "line.toml":           (load_toml,     lambda: b"# " + b"a" * 2000, "more than 1000 characters of a line"),
    "deep.yaml":           (read_timeloop, lambda: DEEP[:60_000], "more than 64 lists"),
    "deep_blocks.yaml":    (read_timeloop, lambda: b"- " * 30_000, "nested too deep|not YAML"),
    "results.json":        (read_results,  lambda: b"[" + BLOCK * 30, "more than 10000000 lists"),
    "trace.et":            (read_trace,    lambda: b"\xff" * 100, "more than ten bytes"),
    "many.onnx":           (read_onnx,     lambda: b"\x3a\x80\x89\x7a" + b"\x0a\x00" * 1_000_000, "no op_type"),
}
# fmt: on


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_unpacks_nests_or_counts_without_end_is_refused_in_little_memory(tmp_path: Path, name: str) -> None:
    reads, content, says = BOMBS[name]
    path = tmp_path / name
    path.write_bytes(content())
    tracemalloc.start()
    try:
        with pytest.raises(TrainyardError, match=says) as caught:
            reads(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1500


def test_a_limit_is_changed_by_the_variable_that_its_message_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv"
    path.write_text("Layer,M,N,K,\n" + "a,1,1,1,\n" * 20)
    monkeypatch.setenv("TRAINYARD_LIMITS", "topology_rows=20")
    with pytest.raises(BadInput) as caught:
        read_topology(path)
    override = re.search(r'TRAINYARD_LIMITS="([^"]+)"', str(caught.value))
    assert override is not None
    monkeypatch.setenv("TRAINYARD_LIMITS", f"{override[1]}, values=5e7")
    assert len(read_topology(path).layers) == 20
    assert limit("values") == 50_000_000


@pytest.mark.parametrize("text", ["rows=5", "values", "values=-1", "values=1e99", "step_bytes=1 GHz", "=", "values=5 MB"])
def test_a_limit_that_cannot_be_meant_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_LIMITS", text)
    with pytest.raises(TrainyardError, match="TRAINYARD_LIMITS"):
        limit("values")


def test_limits_are_what_the_zoo_needs_many_times() -> None:
    packed = max((SOURCE / "workloads" / "zoo" / "steps").glob("*.json.gz"), key=lambda file: file.stat().st_size).read_bytes()
    largest = gzip.decompress(packed)
    assert 10 * len(largest) < LIMITS["step_bytes"].default
    assert 10 * (largest.count(b",") + largest.count(b"[")) < LIMITS["values"].default
    assert 10 * len(largest) < LIMITS["expansion"].default * len(packed)


def test_a_file_of_the_size_of_its_limit_is_read_and_a_byte_more_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_LIMITS", "result_bytes=10, depth=3, values=4")
    path = tmp_path / "r.json"
    path.write_text("[[[1]],12]")
    assert read_json(path, "result", "result_bytes") == [[[1]], 12]
    for text, says in (("[[[1]],123]", "more than 10 B"), ("[[[[1]]]]", "more than 3 lists"), ("[1,1,[],1]", "more than 4 lists")):
        path.write_text(text)
        with pytest.raises(BadInput, match=says):
            read_json(path, "result", "result_bytes")
    packed = tmp_path / "r.json.gz"
    packed.write_bytes(gzip.compress(b"[[[1]],12]"))
    assert read_json(packed, "result", "result_bytes") == [[[1]], 12]
    packed.write_bytes(gzip.compress(b"[[[1]],123]"))
    with pytest.raises(BadInput, match="more than 10 B"):
        read_json(packed, "result", "result_bytes")


ENDINGS: dict[str, Reads] = {
    ".json": read_step, ".json.gz": read_step, ".csv": read_topology, ".onnx": read_onnx, ".et": read_trace, ".yaml": read_timeloop,
    ".toml": load_toml, ".cfg": read_cfg, ".safetensors": Masks.open, ".safetensors.xz": Masks.open, ".study": Study.load,
}  # fmt: skip


@pytest.mark.parametrize("ending", ENDINGS)
def test_pipes_folders_and_links_to_devices_are_refused_and_never_opened(tmp_path: Path, ending: str) -> None:
    """Opened, a pipe without a writer waits without end, and /dev/zero has none."""
    names = {"pipe": "a pipe", "link": "a device", "folder": "a folder", "loop": "symbolic links"}
    os.mkfifo(tmp_path / f"pipe{ending}")
    (tmp_path / f"link{ending}").symlink_to("/dev/zero")
    (tmp_path / f"folder{ending}").mkdir()
    (tmp_path / f"loop{ending}").symlink_to(tmp_path / f"loop{ending}")
    for name, kind in names.items():
        with pytest.raises(TrainyardError, match=kind):
            ENDINGS[ending](tmp_path / f"{name}{ending}")


def test_a_file_that_becomes_a_pipe_before_it_is_opened_does_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, plain = tmp_path / "f.json", tmp_path / "plain"
    os.mkfifo(path)
    plain.write_text("x")
    true_stat = os.stat
    monkeypatch.setattr(os, "stat", lambda name, **named: true_stat(plain if Path(name) == path else name, **named))
    with pytest.raises(BadInput, match="a pipe"), regular_file(path, "step"):
        pass


def test_text_that_is_none_says_where(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"a = \xff")
    with pytest.raises(BadInput, match="byte 4 is no UTF-8 text"):
        read_text(tmp_path / "x.toml")


def test_readers_may_be_asked_from_several_threads() -> None:
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            for _ in range(20):
                machine("npu(dram=75 GB/s)")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
