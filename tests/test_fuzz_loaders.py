"""Whatever a file holds, a loader answers with a value or with an error a user understands, soon and in little memory.

Valid files are damaged by edits (bytes changed, cut, repeated, swapped for others that mean something), texts by their own
alphabet. `make test-all` runs the same with more examples.
"""

from __future__ import annotations

import gzip
import lzma
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.errors import TrainyardError
from trainyard.ir import Convolution, MatMul, Step
from trainyard.machines import machine
from trainyard.machines.files import load_toml
from trainyard.machines.scalesim import read_cfg
from trainyard.masks.named import load as load_masks
from trainyard.masks.recorded import Masks, MaskWriter
from trainyard.workloads.formats import read_topology
from trainyard.workloads.formats.backward import with_backward
from trainyard.workloads.formats.chakra import Node, NodeType, plan_of, read_trace, write_trace
from trainyard.workloads.formats.onnx.model import read_onnx
from trainyard.workloads.formats.scalesim import chain
from trainyard.workloads.formats.timeloop import problem, read_timeloop
from trainyard.workloads.named import load

SECONDS = 5.0
"""Of one answer, on a slow machine."""


def answered(ask: Callable[[], Any]) -> Any:
    """The value, or None where a user's error was raised; anything else is a fault of ours."""
    began = time.monotonic()
    try:
        found = ask()
    except TrainyardError:
        found = None
    assert time.monotonic() - began < SECONDS
    return found


def small_step() -> Step:
    layers = [("conv", Convolution(batch=1, in_channels=2, out_channels=3, size=(5, 5), kernel=(3, 3))), ("fc", MatMul(1, 4, 27))]
    return with_backward(chain("net", layers).rebatch(2))


STEP = small_step()
INTERESTING = [
    b"\x00",
    b"\xff" * 8,
    b"\x7f",
    b"\x80",
    b"-1",
    b"0",
    b"1e999",
    b"NaN",
    b"null",
    b"[]",
    b"{}",
    b'""',
    b"99999999999999999999",
]


@st.composite
def edits(draw: Any, valid: bytes) -> bytes:
    """The content with a few of its bytes changed."""
    content = bytearray(valid)
    for _ in range(draw(st.integers(1, 6))):
        size = len(content)
        at = draw(st.integers(0, max(0, size - 1)))
        match draw(st.integers(0, 5)):
            case 0 if size:
                content[at] = draw(st.integers(0, 255))
            case 1:
                content[at:at] = draw(st.sampled_from(INTERESTING))
            case 2:
                del content[at : at + draw(st.integers(1, 16))]
            case 3:
                other = draw(st.integers(0, max(0, size - 1)))
                content[at:at] = content[other : other + draw(st.integers(1, 32))]
            case 4:
                del content[at:]
            case _ if size:
                content[at] ^= 1 << draw(st.integers(0, 7))
            case _:
                content += b"\x00"
    return bytes(content)


def exercise(step: Step | None) -> None:
    """A step that was read can be asked everything."""
    if step is not None:
        for ask in (
            lambda: step.macs,
            lambda: step.digest,
            lambda: step.dependencies,
            lambda: step.rebatch(3),
            lambda: step.transients,
        ):
            answered(ask)


@given(edits(STEP.to_json().encode()))
def test_step_files(content: bytes) -> None:
    exercise(answered(lambda: Step.from_json(content)))


@given(edits(gzip.compress(STEP.to_json().encode(), mtime=0)))
def test_packed_step_files(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "s.json.gz"
    path.write_bytes(content)
    exercise(answered(lambda: load(str(path))))


CONVOLUTIONS = (
    b"Layer name,IFMAP Height,IFMAP Width,Filter Height,Filter Width,Channels,Num Filter,Strides,Sparsity\nc1,8,8,3,3,2,4,1,2:4\n"
)
GEMMS = b"Layer,M,N,K,\nfc,4,5,6,\n"


@given(st.one_of(edits(CONVOLUTIONS), edits(GEMMS)))
def test_topologies(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "t.csv"
    path.write_bytes(content)
    exercise(answered(lambda: read_topology(path)))


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


@given(edits(CFG))
def test_scalesim_configurations(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "m.cfg"
    path.write_bytes(content)
    answered(lambda: read_cfg(path))


TOML = b"""type = "accelerator"
scratchpad = "1 MiB"
dram = "10 GB/s"
clock = "1 GHz"
[array]
type = "systolic"
rows = 8
columns = 8
"""


@given(edits(TOML))
def test_machine_files(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "m.toml"
    path.write_bytes(content)
    answered(lambda: load_toml(path))


words = st.sampled_from(
    """npu tpu mcdla-b array device order scratchpad rows dram = ( ) , . -1 0 1e400 nan 8MiB interleaved systolic true [ ] ' "
    tiling (1,2,3) 999999999999999999999999999999""".split()
)


@given(st.one_of(st.lists(words, max_size=12).map("".join), st.text(max_size=30)))
def test_machine_texts(text: str) -> None:
    answered(lambda: machine(text))


@given(st.lists(st.sampled_from("sparsity ( ) A G W = , 0.5 -1 nan 2:4 seed 1e999 batch '".split()), max_size=12))
def test_mask_texts(parts: list[str]) -> None:
    answered(lambda: load_masks("sparsity" + "".join(parts), STEP))


@pytest.fixture(scope="module")
def masks_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("masks") / "m.safetensors"
    writer = MaskWriter(path, {"model": "net", "batch": "2"})
    random = np.random.default_rng(0)
    writer.add(0, ("conv", 0, "A"), random.random((2, 2, 5, 5)) > 0.5)
    writer.add(0, ("fc", 0, "A"), random.random((2, 27)) > 0.5, samples=[0, 1])
    writer.close()
    return path.read_bytes()


@settings(max_examples=60)
@given(data=st.data())
def test_mask_files(tmp_path_factory: pytest.TempPathFactory, masks_file: bytes, data: Any) -> None:
    packed = data.draw(st.booleans())
    content = data.draw(edits(lzma.compress(masks_file) if packed else masks_file))
    path = tmp_path_factory.mktemp("fuzz") / f"m.safetensors{'.xz' if packed else ''}"
    path.write_bytes(content)
    masks = answered(lambda: Masks.open(path))
    if masks is not None:
        answered(lambda: masks.check(STEP))
        for key in list(masks.specs)[:3]:
            answered(lambda key=key: masks.bits(key))


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
    return write_bytes(8, write_number(2, 17)) + write_bytes(7, graph)


ONNX = onnx_model()


def test_the_model_that_is_damaged_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(ONNX)
    assert read_onnx(path, batch=2).parameters == 54 + 120 + 5


def check_onnx(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    exercise(answered(lambda: read_onnx(path, batch=2)))


@settings(max_examples=150)
@given(edits(ONNX))
def test_onnx_models(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    check_onnx(tmp_path_factory.mktemp("fuzz") / "m.onnx", content)


@pytest.mark.slow
@settings(max_examples=20_000, derandomize=False)
@given(edits(ONNX))
def test_onnx_models_for_long(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    check_onnx(tmp_path_factory.getbasetemp() / "long.onnx", content)


@given(data=st.data())
def test_traces(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "t.0.et"
    write_trace(
        path, [Node(number=i, name=f"n{i}", type=NodeType.COMP, data_deps=tuple(range(i)), duration_micros=i) for i in range(4)]
    )
    path.write_bytes(data.draw(edits(path.read_bytes())))
    found = answered(lambda: read_trace(path))
    if found is not None:
        answered(lambda: plan_of(found[1]))


@given(edits(problem(STEP.ops[0]).encode()))
def test_problems(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    pytest.importorskip("yaml")
    path = tmp_path_factory.mktemp("fuzz") / "p.yaml"
    path.write_bytes(content)
    answered(lambda: read_timeloop(path))


def header(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


DEEP = b"[" * 200_000
BOMBS: dict[str, bytes] = {
    "deep.json": DEEP,
    "deep_objects.json": b'{"a":' * 100_000,
    "digits.json": b'{"format":"trainyard.step","version":' + b"9" * 100_000 + b"}",
    "bomb.json.gz": gzip.compress(bytes(2**28 + 1), compresslevel=1),
    "bomb.safetensors.xz": lzma.compress(bytes(2**26), preset=0),
    "deep.safetensors": header(DEEP),
    "long_header.safetensors": struct.pack("<Q", 2**62),
    "huge.csv": b"Layer,M,N,K,\n" + b"a,1,1,1,\n" * 20_000,
    "wide.csv": b"Layer,M,N,K," + b"," * 100_000,
    "deep.toml": b"a = " + DEEP,
    "dotted.toml": b".".join([b"a"] * 50_000) + b" = 1",
    "deep.yaml": DEEP,
    "laughs.yaml": b"a: &a [x]\n" + b"".join(b"%c: &%c [%s]\n" % (x + 1, x + 1, b",".join([b"*%c" % x] * 9)) for x in b"abcdefgh"),
    "deep.cfg": b"[general]\n" + b"a = %(a)s\n" + b"[architecture_presets]\nArrayHeight = %(ArrayHeight)s\n",
    "deep.onnx": b"\x3a\xf0\x01" * 80 + b"\x00" * 240,
    "many.onnx": b"\x3a" + b"\x80\x89\x7a" + b"\x0a\x00" * 1_000_000,
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(tmp_path: Path, name: str) -> None:
    """Small files that would unpack, nest or count without end."""
    path = tmp_path / name
    path.write_bytes(BOMBS[name])
    readers: dict[str, Callable[[], Any]] = {
        ".json": lambda: load(str(path)), ".gz": lambda: load(str(path)), ".xz": lambda: Masks.open(path),
        ".safetensors": lambda: Masks.open(path), ".csv": lambda: read_topology(path), ".toml": lambda: load_toml(path),
        ".yaml": lambda: read_timeloop(path), ".cfg": lambda: read_cfg(path), ".onnx": lambda: read_onnx(path),
    }  # fmt: skip
    tracemalloc.start()
    try:
        with pytest.raises(TrainyardError) as caught:
            readers[path.suffix]()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8e8
    assert len(str(caught.value)) < 1500
