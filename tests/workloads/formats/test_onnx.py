"""ONNX in: op for op what capture sees of the same model, shapes as ONNX's own inference has them."""

from __future__ import annotations

import io
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import trainyard as ty
from trainyard.errors import BadInput, NotModelled, TrainyardError
from trainyard.ir import Convolution, MatMul, Op, Phase, Role, Step
from trainyard.workloads import named
from trainyard.workloads.formats.onnx.graph import parse_graph, read_graph
from trainyard.workloads.formats.onnx.model import read_onnx, traced
from trainyard.workloads.formats.onnx.patterns import with_fused_patterns

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")
helper = onnx.helper
FLOAT, INT64 = 1, 7


class Residual(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, 2, 1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.grouped = torch.nn.Conv2d(8, 8, 3, 1, 2, dilation=2, groups=2, bias=False)
        self.up = torch.nn.ConvTranspose2d(8, 6, 4, 2, 1)
        self.head = torch.nn.Linear(6, 10)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm(self.first(x)))
        x = torch.nn.functional.max_pool2d(torch.sigmoid(self.grouped(x)) + x, 3, 2, 1)
        x = torch.cat([self.up(x), self.up(x)], 1)[:, :6]
        return self.head(torch.flatten(torch.nn.functional.adaptive_avg_pool2d(x, 1), 1))


class Perceptron(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.drop = torch.nn.Linear(12, 20), torch.nn.Linear(20, 7), torch.nn.Dropout(0.1)

    def forward(self, x: Any) -> Any:
        return self.b(self.drop(torch.nn.functional.gelu(self.a(x))))


class Block(torch.nn.Module):
    def __init__(self, width: int = 16, heads: int = 4, words: int = 50) -> None:
        super().__init__()
        self.heads, self.table, self.norm = heads, torch.nn.Embedding(words, width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.head = torch.nn.Linear(width, words)

    def forward(self, words: Any) -> Any:
        x = self.table(words)
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm(x)).split(width, -1)
        )
        mixed = torch.softmax(q @ k.transpose(-2, -1) / 2.0, -1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return self.head(x + self.down(torch.nn.functional.gelu(self.up(x)))).mean(1)


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru, self.head = torch.nn.LSTM(6, 8, batch_first=True), torch.nn.GRU(8, 4), torch.nn.Linear(4, 5)

    def forward(self, x: Any) -> Any:
        hidden, _ = self.lstm(x)
        hidden, _ = self.gru(hidden.transpose(0, 1))
        return self.head(hidden[-1])


MODELS: dict[str, tuple[Any, Any, int, float]] = {  # model, inputs for a batch, classes, how close the other traffic comes
    "residual": (Residual, lambda n: torch.randn(n, 3, 16, 16), 10, 0.02),
    "perceptron": (Perceptron, lambda n: torch.randn(n, 12), 7, 0.0),
    "block": (Block, lambda n: torch.randint(0, 50, (n, 9)), 50, 0.04),
    "recurrent": (Recurrent, lambda n: torch.randn(n, 4, 6), 5, 0.12),
}


def exported(folder: Path, name: str, opset: int = 17) -> tuple[Path, Any]:
    build, inputs, _, _ = MODELS[name]
    torch.manual_seed(0)
    model, content = build(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (inputs(3),), content, dynamo=False, training=torch.onnx.TrainingMode.TRAINING, input_names=["x"],
            dynamic_axes={"x": {0: "batch"}}, opset_version=opset, do_constant_folding=False,
        )  # fmt: skip
    path = folder / f"{name}.onnx"
    path.write_bytes(content.getvalue())
    return path, model


def products(step: Step) -> Counter[Any]:
    """Shapes of all products by phase; a product and its transpose are one."""
    return Counter((op.phase, *_shape(op)) for op in step.ops if op.is_product)


def _shape(op: Op) -> tuple[Any, ...]:
    body = op.body
    return (body.count, body.K, *sorted((body.M, body.N))) if isinstance(body, MatMul) else (body,)


def traffic(step: Step) -> dict[Phase, int]:
    actual: Counter[Phase] = Counter()
    for op in step.ops:
        if not op.is_product and getattr(op.body, "elements", 2) > 1:
            actual[op.phase] += sum(step.tensors[t].bytes for t in (*op.inputs, *op.outputs))
    return dict(actual)


@pytest.mark.oracle
@pytest.mark.parametrize("name", MODELS)
def test_a_derived_step_is_the_captured_one(tmp_path: Path, name: str) -> None:
    path, model = exported(tmp_path, name)
    _, inputs, classes, close = MODELS[name]
    captured = ty.capture(
        model, inputs(3), torch.randint(0, classes, (3,)), loss=torch.nn.CrossEntropyLoss(),
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
    )  # fmt: skip
    step = read_onnx(path, batch=3)
    assert products(step) == products(captured)
    for phase in Phase:
        assert sum(op.macs for op in step.ops if op.phase is phase) == sum(op.macs for op in captured.ops if op.phase is phase)
    assert step.parameters == captured.parameters
    ours, theirs = traffic(step), traffic(captured)
    assert ours[Phase.UPDATE] == theirs[Phase.UPDATE]
    assert ours[Phase.LOSS] == theirs[Phase.LOSS]
    for phase in (Phase.FORWARD, Phase.GRAD_INPUT, Phase.GRAD_WEIGHT):
        assert ours[phase] == pytest.approx(theirs[phase], rel=close, abs=0)
    assert step.rebatch(7) == read_onnx(path, batch=7)
    forward = read_onnx(path, batch=3, backward=False)
    assert {op.phase for op in forward.ops} == {Phase.FORWARD}
    assert forward.macs == sum(op.macs for op in step.ops if op.phase is Phase.FORWARD)


def test_layers_letters_and_the_gelu_of_older_opsets(tmp_path: Path) -> None:
    old, new = (read_onnx(exported(tmp_path, "perceptron", opset)[0], batch=2) for opset in (17, 20))
    assert [(op.name, op.body) for op in old.ops] == [(op.name, op.body) for op in new.ops]
    assert {op.layer for op in old.ops if op.is_product} == {"a", "b"}
    letters = {(op.phase, op.layer): op.letters for op in old.ops if op.is_product}
    assert letters == {
        (Phase.FORWARD, "a"): ("A", "W"), (Phase.FORWARD, "b"): ("A", "W"), (Phase.GRAD_INPUT, "b"): ("G", "W"),
        (Phase.GRAD_WEIGHT, "a"): ("G", "A"), (Phase.GRAD_WEIGHT, "b"): ("G", "A"),
    }  # fmt: skip


def test_a_step_from_onnx_runs_on_a_machine(tmp_path: Path) -> None:
    path, _ = exported(tmp_path, "residual")
    result = ty.run(named.load(str(path), 2), on="npu(order=interleaved)")
    assert result.time_s > 0
    assert {"first", "grouped", "up", "head"} <= set(result.by_layer)


def info(name: str, shape: Any, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name: str, values: Any, kind: int = INT64) -> Any:
    values = values if isinstance(values, list) else [values]
    return helper.make_tensor(name, kind, [len(values)], values)


def weight(name: str, *shape: int) -> Any:
    return helper.make_tensor(name, FLOAT, shape, bytes(4 * int(torch.tensor(shape).prod())), raw=True)


def model(nodes: Any, inputs: Any, initialisers: Any = (), outputs: Any = ("y",), opset: int = 18) -> bytes:
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_empty_tensor_value_info(o) for o in outputs], list(initialisers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]).SerializeToString()


node = helper.make_node
CASES: dict[str, tuple[Any, Any, Any, int]] = {
    "same_upper": (
        [node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER", strides=[2, 2])],
        [info("x", [2, 3, 11, 10])],
        [weight("w", 4, 3, 3, 3)],
        18,
    ),
    "same_lower_1d": (
        [node("Conv", ["x", "w"], ["y"], auto_pad="SAME_LOWER", strides=[3])],
        [info("x", [2, 3, 11])],
        [weight("w", 4, 3, 2)],
        18,
    ),
    "3d": (
        [node("Conv", ["x", "w", "b"], ["y"], pads=[1, 0, 1, 1, 2, 1], dilations=[1, 2, 1])],
        [info("x", [1, 2, 7, 8, 9])],
        [weight("w", 4, 2, 3, 3, 2), weight("b", 4)],
        18,
    ),
    "transposed": (
        [node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 3], pads=[1, 0, 0, 1], output_padding=[1, 2], group=2)],
        [info("x", [2, 4, 5, 6])],
        [weight("w", 4, 3, 3, 4)],
        18,
    ),
    "pool": (
        [node("MaxPool", ["x"], ["y"], kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], ceil_mode=1)],
        [info("x", [2, 3, 10, 9])],
        [],
        18,
    ),
    "average": (
        [node("AveragePool", ["x"], ["y"], kernel_shape=[3], auto_pad="SAME_UPPER", strides=[2])],
        [info("x", [2, 3, 10])],
        [],
        18,
    ),
    "broadcast": ([node("MatMul", ["x", "z"], ["y"])], [info("x", [5, 1, 2, 3]), info("z", [4, 3, 6])], [], 18),
    "vectors": ([node("MatMul", ["x", "z"], ["y"])], [info("x", [3]), info("z", [4, 3, 6])], [], 18),
    "matrix_vector": ([node("MatMul", ["x", "z"], ["y"])], [info("x", [5, 4, 3]), info("z", [3])], [], 18),
    "gemm": (
        [node("Gemm", ["x", "w", "b"], ["y"], transA=1, transB=1)],
        [info("x", [3, 5])],
        [weight("w", 4, 3), weight("b", 4)],
        18,
    ),
    "einsum": (
        [node("Einsum", ["x", "z"], ["y"], equation="bhqd,bkhd->bqhk")],
        [info("x", [2, 3, 4, 5]), info("z", [2, 6, 3, 5])],
        [],
        18,
    ),
    "shapes": (
        [
            node("Shape", ["x"], ["s"]),
            node("Slice", ["s", "a", "b"], ["t"]),
            node("Concat", ["t", "m"], ["u"], axis=0),
            node("Reshape", ["x", "u"], ["y"]),
        ],
        [info("x", [2, 3, 4])],
        [constant("a", 0), constant("b", 1), constant("m", -1)],
        18,
    ),
    "split": (
        [node("Split", ["x"], ["p", "q", "r"], axis=1, num_outputs=3), node("Add", ["p", "q"], ["y"])],
        [info("x", [2, 9])],
        [],
        18,
    ),
    "slice": (
        [node("Slice", ["x", "a", "b", "c", "d"], ["y"])],
        [info("x", [5, 8])],
        [constant("a", [-1, 1]), constant("b", [-9, 7]), constant("c", [0, 1]), constant("d", [-2, 3])],
        18,
    ),
    "gather": ([node("Gather", ["w", "x"], ["y"], axis=1)], [info("x", [2, 3], INT64)], [weight("w", 4, 10, 5)], 18),
    "gather_nd": ([node("GatherND", ["x", "z"], ["y"], batch_dims=1)], [info("x", [2, 3, 4]), info("z", [2, 5, 1], INT64)], [], 18),
    "expand": ([node("Expand", ["x", "s"], ["y"])], [info("x", [3, 1])], [constant("s", [2, 1, 4])], 18),
    "tile": ([node("Tile", ["x", "s"], ["y"])], [info("x", [3, 2])], [constant("s", [2, 3])], 18),
    "pad": ([node("Pad", ["x", "s"], ["y"])], [info("x", [3, 2])], [constant("s", [1, 0, 0, 2])], 18),
    "reduce": ([node("ReduceMean", ["x", "s"], ["y"], keepdims=0)], [info("x", [3, 4, 5])], [constant("s", [-1, 0])], 18),
    "reduce_old": ([node("ReduceSum", ["x"], ["y"], axes=[1])], [info("x", [3, 4, 5])], [], 11),
    "argmax": ([node("ArgMax", ["x"], ["y"], axis=1, keepdims=0)], [info("x", [3, 4, 5])], [], 18),
    "topk": ([node("TopK", ["x", "k"], ["y", "i"])], [info("x", [3, 4])], [constant("k", 2)], 18),
    "resize": (
        [node("Resize", ["x", "", "s"], ["y"], mode="linear")],
        [info("x", [1, 2, 4, 5])],
        [constant("s", [1.0, 1.0, 2.0, 1.5], FLOAT)],
        18,
    ),
    "resize_to": ([node("Resize", ["x", "", "", "s"], ["y"])], [info("x", [1, 2, 4, 5])], [constant("s", [1, 2, 7, 6])], 18),
    "depth": ([node("DepthToSpace", ["x"], ["y"], blocksize=2)], [info("x", [1, 8, 4, 5])], [], 18),
    "norms": (
        [node("LayerNormalization", ["x", "w", "b"], ["a"], axis=1), node("InstanceNormalization", ["a", "s", "t"], ["y"])],
        [info("x", [2, 3, 4])],
        [weight("w", 3, 4), weight("b", 3, 4), weight("s", 3), weight("t", 3)],
        18,
    ),
    "where": (
        [node("Greater", ["x", "z"], ["c"]), node("Where", ["c", "x", "z"], ["y"])],
        [info("x", [3, 1]), info("z", [4])],
        [],
        18,
    ),
    "squeeze": (
        [node("Unsqueeze", ["x", "a"], ["u"]), node("Squeeze", ["u", "b"], ["y"])],
        [info("x", [3, 1, 2])],
        [constant("a", [0, 4]), constant("b", [2])],
        18,
    ),
    "flatten": ([node("Flatten", ["x"], ["y"], axis=-1)], [info("x", [3, 4, 2])], [], 18),
    "lstm": (
        [node("LSTM", ["x", "w", "r", "b"], ["y", "h", "c"], hidden_size=4, direction="bidirectional")],
        [info("x", [5, 2, 3])],
        [weight("w", 2, 16, 3), weight("r", 2, 16, 4), weight("b", 2, 32)],
        18,
    ),
    "rnn": (
        [node("RNN", ["x", "w", "r"], ["y", "h"], hidden_size=4, layout=1)],
        [info("x", [2, 5, 3])],
        [weight("w", 1, 4, 3), weight("r", 1, 4, 4)],
        18,
    ),
    "attention": (
        [node("Attention", ["x", "k", "v"], ["y"], q_num_heads=4, kv_num_heads=2)],
        [info("x", [2, 5, 16]), info("k", [2, 7, 8]), info("v", [2, 7, 8])],
        [],
        23,
    ),
    "clip": (
        [node("Clip", ["x", "l", "h"], ["a"]), node("Cast", ["a"], ["y"], to=10)],
        [info("x", [3])],
        [helper.make_tensor("l", FLOAT, [], [0.0]), helper.make_tensor("h", FLOAT, [], [6.0])],
        18,
    ),
    "many": (
        [node("Sum", ["x", "x", "x"], ["a"]), node("Max", ["a", "x"], ["b"]), node("Identity", ["b"], ["y"])],
        [info("x", [3])],
        [],
        18,
    ),
}


@pytest.mark.oracle
@pytest.mark.parametrize("name", CASES)
def test_shapes_are_those_of_onnx(name: str) -> None:
    """ONNX's own shape inference is the oracle, for every name it knows."""
    nodes, inputs, initialisers, opset = CASES[name]
    content = model(nodes, inputs, initialisers, opset=opset)
    inferred = onnx.shape_inference.infer_shapes(onnx.load_from_string(content), strict_mode=True, data_prop=True)
    _, values = traced(parse_graph(memoryview(content)), {}, False, 1, True, None, ())
    known = {v.name: v.type.tensor_type for v in (*inferred.graph.value_info, *inferred.graph.output)}
    checked = 0
    for given, kind in known.items():
        dims = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
        if given in values and kind.HasField("shape") and None not in dims:
            assert list(values[given].shape) == dims, given
            checked += 1
    assert checked


@pytest.mark.oracle
def test_the_reader_sees_what_onnx_sees(tmp_path: Path) -> None:
    """Nodes, attributes, shapes: read by hand and by the package."""
    path, _ = exported(tmp_path, "recurrent")
    ours, theirs = read_graph(path), onnx.load(str(path)).graph
    assert [(n.op, n.name, n.inputs, n.outputs) for n in ours.nodes] == [
        (n.op_type, n.name, tuple(n.input), tuple(n.output)) for n in theirs.node
    ]
    for mine, other in zip(ours.nodes, theirs.node, strict=True):
        for attribute in other.attribute:
            value = helper.get_attribute_value(attribute)
            if isinstance(value, bytes):
                assert mine.attributes[attribute.name] == value.decode()
            elif isinstance(value, list):
                assert list(mine.attributes[attribute.name]) == [v.decode() if isinstance(v, bytes) else v for v in value]
            elif isinstance(value, int | float):
                assert mine.attributes[attribute.name] == value
            else:
                assert mine.attributes[attribute.name].shape == tuple(value.dims)
                assert list(mine.attributes[attribute.name].values) == onnx.numpy_helper.to_array(value).reshape(-1).tolist()
    assert {n: t.shape for n, t in ours.initialisers.items()} == {t.name: tuple(t.dims) for t in theirs.initializer}
    assert ours.inputs[0].shape == ("batch", 4, 6)


def write(folder: Path, content: bytes) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(content)
    return path


def test_decomposed_layer_norm_and_silu_are_fused(tmp_path: Path) -> None:
    names = ["x", "m", "d", "s", "v", "e", "r", "q", "p", "n", "g", "y"]
    x, m, d, s, v, e, r, q, p, n, g, y = names
    nodes = [
        node("ReduceMean", [x], [m], axes=[-1]), node("Sub", [x, m], [d]), node("Pow", [d, "two"], [s]),
        node("ReduceMean", [s], [v], axes=[-1]), node("Add", [v, "eps"], [e]), node("Sqrt", [e], [r]), node("Div", [d, r], [q]),
        node("Mul", [q, "w"], [p]), node("Add", [p, "b"], [n]), node("Sigmoid", [n], [g]), node("Mul", [n, g], [y]),
    ]  # fmt: skip
    scalars = [helper.make_tensor(name, FLOAT, [], [value]) for name, value in (("two", 2.0), ("eps", 1e-5))]
    content = model(nodes, [info("x", [4, 8])], [*scalars, weight("w", 8), weight("b", 8)], opset=13)
    assert [one.op for one in with_fused_patterns(parse_graph(memoryview(content))).nodes] == ["LayerNormalization", "Silu"]
    shared = [*nodes, node("Add", [q, y], ["z"])]  # somebody else reads the normalised values: it stays taken apart
    content = model(shared, [info("x", [4, 8])], [*scalars, weight("w", 8), weight("b", 8)], outputs=("z",), opset=13)
    assert "LayerNormalization" not in [one.op for one in with_fused_patterns(parse_graph(memoryview(content))).nodes]
    step = read_onnx(write(tmp_path, content), loss=None)
    assert step.parameters == 16


def test_parameters_buffers_and_frozen_ones(tmp_path: Path) -> None:
    names = ("scale", "shift", "mean", "var")
    nodes = [node("BatchNormalization", ["x", *names], ["a"]), node("Mul", ["a", "half"], ["b"]), node("Add", ["b", "mask"], ["y"])]
    parts = [*(weight(n, 3) for n in names), weight("mask", 3, 5), constant("half", 0.5, FLOAT)]
    path = write(tmp_path, model(nodes, [info("x", ["n", 3, 5])], parts))
    step = read_onnx(path, frozen=["ma*"])
    roles = {t.name: t.role for t in step.tensors if t.view_of is None and t.name in (*names, "mask")}
    assert roles == {
        "scale": Role.PARAMETER, "shift": Role.PARAMETER, "mean": Role.BUFFER, "var": Role.BUFFER, "mask": Role.BUFFER,
    }  # fmt: skip
    assert step.parameters == 6
    assert read_onnx(path).parameters == 21
    assert [op.name for op in step.ops if op.phase is Phase.UPDATE] == ["scale.update", "shift.update"]
    assert step.batch == 1
    assert step.rebatch(4).batch == 4


def test_open_and_fixed_dimensions(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    opened = write(tmp_path, model(nodes, [info("x", ["batch", "length", 4])], [weight("w", 4, 6)]))
    with pytest.raises(BadInput, match=r"open dimension 'length': give it a size, sizes=\{'length': 128\}.*model\.onnx:length=128"):
        read_onnx(opened)
    assert read_onnx(opened, batch=2, sizes={"length": 5}, backward=False).macs == 2 * 5 * 4 * 6
    assert named.load(f"{opened}:length=5", 2).macs == 2 * 2 * 5 * 4 * 6  # forward and dW: x needs no gradient
    with pytest.raises(BadInput, match="write name=number"):
        named.load(f"{opened}:length")
    fixed = write(tmp_path, model(nodes, [info("x", [3, 4])], [weight("w", 4, 6)]))
    assert read_onnx(fixed).batch == 3
    with pytest.raises(BadInput, match="fixed batch of 3, 4 was asked for"):
        read_onnx(fixed, batch=4)
    with pytest.raises(BadInput, match="cannot be rebatched"):
        read_onnx(fixed).rebatch(4)


def test_a_batch_written_into_a_shape_cannot_be_changed(tmp_path: Path) -> None:
    nodes = [node("Reshape", ["x", "s"], ["r"]), node("MatMul", ["r", "w"], ["y"])]
    path = write(tmp_path, model(nodes, [info("x", ["n", 4])], [constant("s", [2, 4]), weight("w", 4, 6)]))
    step = read_onnx(path, batch=2)
    assert not step.rebatchable
    with pytest.raises(BadInput, match="cannot be reshaped"):
        read_onnx(path, batch=3)


def test_unknown_ops_are_named(tmp_path: Path) -> None:
    strange = node("Frobnicate", ["x"], ["y"], name="/layer/Frobnicate")
    with pytest.raises(NotModelled, match=r"node '/layer/Frobnicate' \(Frobnicate\): this op is not read; its inputs are \[2, 3\]"):
        read_onnx(write(tmp_path, model([strange], [info("x", [2, 3])])))
    strange.domain = "com.example"
    with pytest.raises(NotModelled, match=r"this op of com\.example"):
        read_onnx(write(tmp_path, model([strange], [info("x", [2, 3])])))
    unknown = write(tmp_path, model([node("Reshape", ["x", "s"], ["y"])], [info("x", [2, 3]), info("s", [2], INT64)]))
    with pytest.raises(NotModelled, match="depends on data"):
        read_onnx(unknown)
    with pytest.raises(BadInput, match="reads 'nobody', which no node before it writes"):
        read_onnx(write(tmp_path, model([node("Relu", ["nobody"], ["y"])], [info("x", [2, 3])])))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"hello world, this is text", "is not an ONNX model"),
        (b"\x08\x07", "it holds no graph"),
        (b"\x3a\xff\xff\xff\xff\x0f", "cut short"),
        (b"\x08" + b"\xff" * 11, "more than ten bytes"),
    ],
)
def test_damaged_files_raise(tmp_path: Path, content: bytes, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        read_onnx(write(tmp_path, content))
    with pytest.raises(BadInput, match="cannot read"):
        read_onnx(tmp_path / "none.onnx")


def test_external_weights_are_not_opened(tmp_path: Path) -> None:
    outside = weight("w", 4, 6)
    outside.ClearField("raw_data")
    outside.data_location = 1
    outside.external_data.add(key="location", value="../../etc/passwd")
    path = write(tmp_path, model([node("MatMul", ["x", "w"], ["y"])], [info("x", [3, 4])], [outside]))
    assert read_onnx(path).parameters == 24


def test_weights_are_skipped(tmp_path: Path) -> None:
    """A sparse file of 8 GB is read at once: no byte of its weights is looked at."""
    import time

    from trainyard.workloads.formats.protobuf import write_bytes, write_number, write_packed, write_varint

    size = 2**33
    tensor = (
        write_packed(1, [2**15, 2**16])
        + write_number(2, FLOAT)
        + write_bytes(8, "w")
        + write_varint(9 << 3 | 2)
        + write_varint(size)
    )
    whole = onnx.load_from_string(model([node("MatMul", ["x", "w"], ["y"])], [info("x", [3, 2**15])]))
    graph = whole.graph.SerializeToString()
    head = write_varint(5 << 3 | 2) + write_varint(len(tensor) + size) + tensor
    opset = write_bytes(8, write_number(2, 18))
    path = tmp_path / "large.onnx"
    with path.open("wb") as stream:
        stream.write(opset + write_varint(7 << 3 | 2) + write_varint(len(graph) + len(head) + size) + graph + head)
        stream.truncate(stream.tell() + size)
    began = time.monotonic()
    assert read_onnx(path, backward=False).macs == 3 * 2**31
    assert time.monotonic() - began < 2.0


def test_sizes_beyond_the_counters_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, model([node("MatMul", ["x", "z"], ["y"])], [info("x", [2**40, 3]), info("z", [3, 2**40])]))
    with pytest.raises(TrainyardError, match="more than 2\\*\\*50 elements"):
        read_onnx(path)


def test_a_transposed_convolution_trains(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "q"], ["s"]), node("ConvTranspose", ["s", "w"], ["y"], strides=[2])]
    path = write(tmp_path, model(nodes, [info("x", ["n", 4, 5])], [weight("q", 5, 5), weight("w", 4, 3, 2)]))
    step = read_onnx(path, batch=2, loss="mse")
    actual = {(op.phase, op.body.product) for op in step.ops if isinstance(op.body, Convolution)}
    assert actual == {(Phase.FORWARD, "grad_input"), (Phase.GRAD_INPUT, "forward"), (Phase.GRAD_WEIGHT, "grad_weight")}
