"""Every reader of a user's input, with input that it accepts: what `test_fuzz_readers.py` damages, and what it makes up.

A new reader is one line of `TABLE`; `test_reading.py` fails where one is missing.
"""

from __future__ import annotations

import gzip
import json
import lzma
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from trainyard.errors import TrainyardError
from trainyard.ir import Convolution, MatMul, ProductBody, Step
from trainyard.machines import machine, with_overrides
from trainyard.machines.build import from_table
from trainyard.machines.files import load_toml, read_table
from trainyard.machines.grammar import parse, parse_value, split
from trainyard.machines.scalesim import read_cfg
from trainyard.masks import generated
from trainyard.masks.recorded import Masks, MaskWriter
from trainyard.papers.ledger import read_claims
from trainyard.report.summaries.differences import difference_of, read_results
from trainyard.workloads.formats.backward import with_backward
from trainyard.workloads.formats.chakra import Node, NodeType, plan_of, read_trace, write_trace
from trainyard.workloads.formats.onnx.graph import read_graph
from trainyard.workloads.formats.onnx.model import read_onnx
from trainyard.workloads.formats.scalesim import chain, read_sparsity, read_topology
from trainyard.workloads.formats.timeloop import problem, read_timeloop
from trainyard.workloads.named import read_step

LAYERS: list[tuple[str, ProductBody]] = [
    ("conv", Convolution(batch=1, in_channels=2, out_channels=3, size=(5, 5), kernel=(3, 3))),
    ("fc", MatMul(1, 4, 27)),
]
STEP = with_backward(chain("net", LAYERS).rebatch(2))
TOPOLOGY = (
    b"Layer name,IFMAP Height,IFMAP Width,Filter Height,Filter Width,Channels,Num Filter,Strides,Sparsity\nc1,8,8,3,3,2,4,1,2:4\n"
)
GEMMS = b"Layer,M,N,K,\nfc,4,5,6,\n"
CFG = b"""[general]
run_name = x
[architecture_presets]
ArrayHeight = 8
ArrayWidth = 8
IfmapSramSzkB = 6
FilterSramSzkB = 6
OfmapSramSzkB = 2
Dataflow = ws
Bandwidth = 10
[run_presets]
InterfaceBandwidth = USER
"""
TOML = b"""type = "accelerator"
scratchpad = "1 MiB"
dram = "10 GB/s"
clock = "1 GHz"
[array]
type = "systolic"
rows = 8
columns = 8
"""
STUDY = b"""name = "small"
workloads = ["alexnet"]
machine = "npu"
metrics = ["by_phase.forward"]
objectives = { time_s = "min" }
[axes]
"array.rows" = [32, 64]
dram = { from = "50 GB/s", to = "800 GB/s", steps = 3, scale = "log" }
"""
CLAIMS = b'[[claim]]\nid = "igo.x"\nwhere = "Fig. 1"\nvalue = 1.5\nunit = "x"\nuse = "context"\n'
RESULT = {
    "workload": "net", "machine": "npu", "batch": 2, "time_s": 0.5, "samples_per_s": 4.0, "cycles": 10, "energy_j": 1.0,
    "traffic_bytes": {"dram": 10}, "peak_memory_bytes": {"device memory": 5},
    "by_layer": {"conv": {"time_s": 0.5, "energy_j": 1.0, "traffic_bytes": {"dram": 10}}},
    "by_phase": {"forward": {"time_s": 0.5, "energy_j": 1.0, "traffic_bytes": {"dram": 10}}},
    "config": {"type": "accelerator", "array": {"rows": 8}}, "version": "1",
}  # fmt: skip
MACHINE_WORDS = """npu tpu mcdla-b array device order scratchpad rows columns dram clock = = = ( ( ) ) , , . -1 0 1e400 nan 8MiB
 interleaved systolic(rows= true [ ] ' " tiling (1,2,3) 9999999999999999999999999 1e99999999 a.toml base \0 \x1b \ud800""".split(
    " "
)
MASK_WORDS = "sparsity ( ) A= G= W= , 0.5 -1 nan 2:4 seed= 1e999 cluster=channel samples= transposable= true ' \0 \ud800".split(" ")
JSON_WORDS = '{ } [ ] , : "name" "batch" "words" "bodies" "tensors" "ops" 1 -1 1e999 NaN Infinity null true "\\ud800" "a"'.split(
    " "
)
TOML_WORDS = """type = "accelerator" \n base "npu" array [array] [[claim]] { } [ ] , . "1 GiB" 1e400 nan inf 0x10
 1979-05-27 name workloads axes machine '''""".split(" ")
REQUEST_WORDS = [*JSON_WORDS, '"workload"', '"machine"', '"resnet50"', '"npu"', '"settings"', '"paper"']


@dataclass(frozen=True, slots=True)
class Input:
    """How a reader is fed: the ending of its file (or none: it takes the text), whole inputs, and words of its language."""

    ask: Callable[[Any], Any]
    wholes: Callable[[], list[bytes]]
    ending: str = ""
    words: tuple[str, ...] = ()
    weight: int = 4
    """How often it is chosen: readers that take long are asked less often."""


def step_json() -> bytes:
    return STEP.to_json().encode()


@cache
def masks_file() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "m.safetensors"
        writer = MaskWriter(path, {"model": "net", "batch": "2"})
        zeros = np.random.default_rng(0)
        writer.add(0, ("conv", 0, "A"), zeros.random((2, 2, 5, 5)) > 0.5)
        writer.add(0, ("fc", 0, "A"), zeros.random((2, 27)) > 0.5, samples=[0, 1])
        writer.close()
        return path.read_bytes()


@cache
def trace_file() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.et"
        nodes = [Node(number=i, name=f"n{i}", type=NodeType.COMP, data_deps=tuple(range(i)), duration_micros=i) for i in range(4)]
        write_trace(path, nodes)
        return path.read_bytes()


@cache
def onnx_model() -> bytes:
    """A small graph by hand: no package needed."""
    from trainyard.workloads.formats.protobuf import write_bytes, write_number, write_packed

    def tensor(name: str, shape: list[int], raw: bytes, kind: int = 1) -> bytes:
        return write_packed(1, shape) + write_number(2, kind) + write_bytes(8, name) + write_bytes(9, raw)

    def integers(name: str, values: list[int]) -> bytes:
        return write_bytes(5, write_bytes(1, name) + write_packed(8, values) + write_number(20, 7))

    def node(op: str, inputs: str, outputs: str, *attributes: bytes) -> bytes:
        names = b"".join(write_bytes(1, i) for i in inputs.split()) + b"".join(write_bytes(2, o) for o in outputs.split())
        return write_bytes(1, names + write_bytes(4, op) + b"".join(attributes))

    sizes = [write_bytes(2, "n"), *(write_number(1, size) for size in (2, 6, 6))]
    shape = b"".join(write_bytes(1, size) for size in sizes)
    value = write_bytes(1, "x") + write_bytes(2, write_bytes(1, write_number(1, 1) + write_bytes(2, shape)))
    graph = (
        node("Conv", "x w", "c", integers("pads", [1, 1, 0, 0]), integers("strides", [2, 1]))
        + node("Relu", "c", "r")
        + node("MaxPool", "r", "p", integers("kernel_shape", [2, 2]))
        + node("Shape", "p", "s")
        + node("Gather", "s zero", "b")
        + node("Concat", "b rest", "t", write_bytes(5, write_bytes(1, "axis") + write_number(3, 0)))
        + node("Reshape", "p t", "f")
        + node("Transpose", "v", "vt", integers("perm", [1, 0]))
        + node("MatMul", "f vt", "m")
        + node("Add", "m bias", "y")
        + b"".join(
            write_bytes(5, content)
            for content in (
                tensor("w", [3, 2, 3, 3], bytes(216)), tensor("v", [5, 24], bytes(480)), tensor("bias", [5], bytes(20)),
                tensor("zero", [1], struct.pack("<q", 0), 7), tensor("rest", [1], struct.pack("<q", -1), 7),
            )
        )
        + write_bytes(11, value)
        + write_bytes(12, write_bytes(1, "y"))
    )  # fmt: skip
    return write_number(1, 8) + write_bytes(8, write_number(2, 17)) + write_bytes(7, graph)


def _exercised(step: Step) -> None:
    """A step that was read can be asked everything, or says what is wrong with it."""
    for name in ("macs", "digest", "dependencies", "transients"):
        with suppress(TrainyardError):
            getattr(step, name)
    with suppress(TrainyardError):
        step.rebatch(3)


def _masks(path: Any) -> None:
    masks = Masks.open(path)
    masks.check(STEP)
    for key in list(masks.specs)[:3]:
        masks.bits(key)
    assert masks.digest


def _difference(path: Any) -> None:
    (first, *_) = read_results(path)
    changed = difference_of(first, RESULT)
    changed.as_dict()
    changed._repr_html_()


def _table(text: str) -> Any:
    """A table of a machine as a program may make one: any JSON value."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return from_table(table) if isinstance(table, dict) else None


def _changes(text: str) -> Any:
    path, _, value = text.partition("=")
    return with_overrides(machine("npu"), {path: value})


def _request(text: bytes) -> Any:
    from trainyard.web import requests

    return requests.read(text)


def _settings(text: str) -> Any:
    from trainyard.web import requests

    return requests.settings_of(text.split("&"))


def _upload(path: Any) -> Any:
    from trainyard.web.recognition import recognised

    return recognised(str(path), f"{path}.kept", Path(path).name, 2**26)


def _study(path: Any) -> Any:
    from trainyard.sweep.study import Study

    return Study.load(path)


def _store(path: Any) -> Any:
    from trainyard.sweep.store import Store

    folder = Path(path).parent / "store"
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_bytes(Path(path).read_bytes())
    return len(Store(folder))


def _manifest() -> bytes:
    from trainyard.sweep.store import FORMAT, UNSEALED_VERSION

    return json.dumps({"format": FORMAT, "version": UNSEALED_VERSION, "study": {}}).encode()


def _texts(*texts: str) -> Callable[[], list[bytes]]:
    return lambda: [text.encode() for text in texts]


MACHINES = ("npu(dram=75 GB/s)", "mcdla-b(device=npu(array=tensordash,order=interleaved))", "npu(array=systolic(rows=8,columns=8))")
TABLES = (
    '{"type": "accelerator", "array": {"type": "systolic", "rows": 8, "columns": 8}, "dram": "1 GB/s", "clock_hz": 1e9, '
    '"scratchpad": "1 MiB"}',
    '{"base": "npu", "dram": "1 GB/s"}',
)
Ask = Callable[[Any], Any]


def _text(ask: Ask, vocabulary: Sequence[str], *texts: str, weight: int = 8) -> Input:
    return Input(ask, _texts(*texts), "", tuple(vocabulary), weight)


def _file(ask: Ask, ending: str, *wholes: Callable[[], bytes], vocabulary: Sequence[str] = (), weight: int = 4) -> Input:
    return Input(ask, lambda: [whole() for whole in wholes], ending, tuple(vocabulary), weight)


def _steps(reads: Ask) -> Ask:
    return lambda source: _exercised(reads(source))


def _trace(path: Any) -> None:
    _, nodes = read_trace(path)
    with suppress(TrainyardError):  # a plan knows no file
        plan_of(nodes)


def _made_masks(text: str) -> Any:
    return generated.parse(text, STEP)


UPLOADS = (step_json, lambda: CFG, lambda: TOML, lambda: GEMMS, masks_file, onnx_model)
FORMATS, SUMMARIES = "workloads.formats", "report.summaries.differences"
# fmt: off
TABLE: Mapping[str, Input] = {
    "machines.build.machine":            _text(machine, MACHINE_WORDS, *MACHINES),
    "machines.build.with_overrides":     _text(_changes, MACHINE_WORDS, "array.rows=64", "dram=75 GB/s"),
    "machines.build.from_table":         _text(_table, (), *TABLES),
    "machines.grammar.parse":            _text(parse, MACHINE_WORDS, *MACHINES),
    "machines.grammar.parse_value":      _text(parse_value, MACHINE_WORDS, "(1,2,3)"),
    "machines.grammar.split":            _text(split, MACHINE_WORDS, "tpu,npu(dram=1 GB/s)"),
    "machines.files.load_toml":          _file(load_toml, ".toml", lambda: TOML, vocabulary=TOML_WORDS, weight=8),
    "machines.files.read_table":         _file(read_table, ".toml", lambda: TOML, vocabulary=TOML_WORDS),
    "machines.scalesim.read_cfg":        _file(read_cfg, ".cfg", lambda: CFG),
    "ir.serial.from_json":               _text(_steps(Step.from_json), JSON_WORDS, STEP.to_json()),
    "workloads.named.read_step":         _file(_steps(read_step), ".json", step_json, vocabulary=JSON_WORDS),
    "workloads.named.read_step (.gz)":   _file(_steps(read_step), ".json.gz", lambda: gzip.compress(step_json())),
    f"{FORMATS}.scalesim.read_topology": _file(_steps(read_topology), ".csv", lambda: TOPOLOGY, lambda: GEMMS),
    f"{FORMATS}.scalesim.read_sparsity": _file(read_sparsity, ".csv", lambda: TOPOLOGY),
    f"{FORMATS}.timeloop.read_timeloop": _file(read_timeloop, ".yaml", lambda: problem(STEP.ops[0]).encode(), weight=1),
    f"{FORMATS}.chakra.read_trace":      _file(_trace, ".et", trace_file),
    f"{FORMATS}.onnx.graph.read_graph":  _file(read_graph, ".onnx", onnx_model),
    f"{FORMATS}.onnx.model.read_onnx":   _file(_steps(lambda path: read_onnx(path, batch=2)), ".onnx", onnx_model, weight=2),
    "masks.recorded.Masks.open":         _file(_masks, ".safetensors", masks_file),
    "masks.recorded.Masks.open (.xz)":   _file(_masks, ".safetensors.xz", lambda: lzma.compress(masks_file()), weight=1),
    "masks.generated.parse":             _text(_made_masks, MASK_WORDS, "sparsity(A=0.6,W=2:4,seed=1)"),
    f"{SUMMARIES}.read_results":         _file(_difference, ".json", lambda: json.dumps(RESULT).encode(), vocabulary=JSON_WORDS),
    f"{SUMMARIES}.difference_of":        _file(_difference, ".json", lambda: json.dumps([RESULT]).encode()),
    "papers.ledger.read_claims":         _text(read_claims, TOML_WORDS, CLAIMS.decode()),
    "sweep.study.Study.load":            _file(_study, ".toml", lambda: STUDY, vocabulary=TOML_WORDS, weight=1),
    "sweep.study.Study.from_table":      _file(_study, ".toml", lambda: STUDY, weight=1),
    "sweep.store._manifest":             _file(_store, ".json", _manifest, vocabulary=JSON_WORDS),
    "web.requests.read":                 _text(_request, REQUEST_WORDS, '{"workload": "resnet50", "machine": "npu", "batch": 2}'),
    "web.requests.settings_of":          _text(_settings, MACHINE_WORDS, "array=tensordash&dram=75 GB/s", weight=2),
    "web.recognition.recognised":        _file(_upload, ".upload", *UPLOADS, weight=2),
}
# fmt: on
TAKES_BYTES = ("ir.serial.from_json", "web.requests.read")
NOT_FUZZED = {
    "live.direct.checkpoint.load": "reads a folder of torch.save files; its own test damages the file that names the latest",
}
INTERESTING = (
    b"\x00", b"\xff" * 8, b"\x7f", b"\x80", b"\x1b[31m", b"-1", b"0", b"1e999", b"1e99999999999", b"9" * 4400, b"9" * 20,
    b"NaN", b"Infinity", b"null", b"[]", b"{}", b'""', b"[" * 2000, b'"\\ud800"', "\u202e".encode(), b"\xed\xa0\x80", b"\r\n",
    b"true", b"1.5", b"(", b"'",
)  # fmt: skip


def damaged(whole: bytes, chance: random.Random) -> bytes:
    """The content with a few of its bytes changed: swapped, cut, repeated, or replaced by what means something to a parser."""
    content = bytearray(whole)
    for _ in range(chance.randint(1, 5)):
        size = len(content)
        at = chance.randrange(size) if size else 0
        match chance.randrange(7):
            case 0 if size:
                content[at] = chance.randrange(256)
            case 1:
                content[at:at] = chance.choice(INTERESTING)
            case 2:
                del content[at : at + chance.randint(1, 16)]
            case 3:
                other = chance.randrange(size) if size else 0
                content[at:at] = content[other : other + chance.randint(1, 32)]
            case 4:
                del content[at:]
            case 5:
                content[at : at + chance.randint(1, 4)] = chance.choice(INTERESTING)
            case _ if size:
                content[at] ^= 1 << chance.randrange(8)
            case _:
                content += b"\x00"
    return bytes(content)


def made_up(vocabulary: tuple[str, ...], chance: random.Random) -> bytes:
    """Words of a reader's language in any order, sometimes one of them very often."""
    text = "".join(chance.choices(vocabulary, k=chance.randint(0, 14)))
    if chance.random() < 0.05:
        text += chance.choice(vocabulary) * 3000
    return text.encode(errors="surrogatepass")
