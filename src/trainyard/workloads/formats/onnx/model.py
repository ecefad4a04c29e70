"""ONNX models: the forward pass is in the file, the training step is derived from it.

Initialisers are parameters, except running statistics, integers and single numbers. An open first dimension of the inputs is
the batch: the graph is traced at three batch sizes, which gives every dimension its slope. The file is parsed here
(`formats/protobuf.py`), no package is needed; only shapes are read, weights are skipped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

from trainyard.errors import BadInput, NotModelled, TrainyardError, quoted
from trainyard.ir import Op, Phase, Reduction, Role, Step, TensorSpec
from trainyard.ir.ops import dimensions
from trainyard.reading import reader
from trainyard.workloads.formats.backward import with_backward
from trainyard.workloads.formats.onnx.constants import constant_result, from_tensor
from trainyard.workloads.formats.onnx.graph import LARGEST, Graph, Node, Tensor, read_graph
from trainyard.workloads.formats.onnx.patterns import with_fused_patterns
from trainyard.workloads.formats.onnx.rules import RULES
from trainyard.workloads.formats.onnx.trace import FLOATS, Call, Trace, Value, contiguous

Loss = Literal["cross_entropy", "mse"]
WEIGHTED = frozenset("Conv ConvTranspose Gemm MatMul PRelu BatchNormalization LayerNormalization GroupNormalization".split())
"""Ops whose initialisers are parameters even where they are one number; elsewhere one number is a constant."""


@reader("ONNX model")
def read_onnx(
    path: str | os.PathLike[str],
    *,
    batch: int | None = None,
    backward: bool = True,
    loss: Loss | None = "cross_entropy",
    optimizer: str | None = "sgd",
    sizes: Mapping[str, int] | None = None,
    frozen: Sequence[str] = (),
) -> Step:
    """The training step of an ONNX model; `backward=False` keeps the forward pass alone.

    `loss` is computed on the first output of real numbers; without one, gradients of all outputs are given. `sizes` fills other
    open dimensions by name (a sequence length). `frozen` names initialisers that are not trained, with * for any letters.
    """
    graph = with_fused_patterns(read_graph(path))
    try:
        return _step(graph, Path(path), batch, backward, loss, optimizer, dict(sizes or {}), frozen)
    except NotModelled as error:
        raise NotModelled(f"{path}: {error}") from None
    except TrainyardError as error:
        raise BadInput(f"{path}: {error}") from None


def _step(graph: Graph, path: Path, batch: int | None, backward: bool, loss: Loss | None, optimizer: str | None,
          sizes: dict[str, int], frozen: Sequence[str]) -> Step:  # fmt: skip
    if not graph.inputs:
        raise BadInput("the graph has no inputs")
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise BadInput(f"batch must be a positive whole number, got {quoted(batch)}")
    first = next((i for i in graph.inputs if i.shape), graph.inputs[0])
    lead = first.shape[0] if first.shape else 1
    is_open = isinstance(lead, str)
    first_batch = (1 if is_open else int(lead)) if batch is None else batch
    if not is_open and first_batch != lead:
        raise BadInput(f"the model has a fixed batch of {lead}, {batch} was asked for: export it with an open first dimension")
    symbol = str(lead) if is_open else ""

    def at(size: int) -> Step:
        dimensions = {**sizes, symbol: size} if is_open else sizes
        trace, _ = traced(graph, dimensions, is_open, size, backward, loss if backward else None, frozen)
        return _without_unused(Step(path.stem, size, tuple(trace.ops), tuple(trace.tensors), f"ONNX model {path.name}", is_open))

    forward = at(first_batch)
    if is_open:
        try:
            forward = _with_slopes(forward, [at(first_batch + 1), at(first_batch + 3)])
        except TrainyardError:  # a shape with the batch written into it
            forward = replace(forward, rebatchable=False)
    if not forward.ops:
        raise BadInput("the graph computes nothing")
    return with_backward(forward, optimizer=optimizer) if backward else forward


def traced(graph: Graph, sizes: Mapping[str, int], is_open: bool, batch: int, training: bool, loss: Loss | None,
            frozen: Sequence[str]) -> tuple[Trace, dict[str, Value]]:  # fmt: skip
    """The forward pass, and the value of each name of the graph."""
    trace = Trace(training)
    values: dict[str, Value] = {"": None}  # type: ignore[dict-item]  # an input that is left out
    weights = {name for node in graph.nodes if node.op in WEIGHTED for name in node.inputs}
    not_trained = {"BatchNormalization": 3, "Resize": 1, "Upsample": 1}  # from which input on: running statistics, scales
    statistics = {name for node in graph.nodes if node.op in not_trained for name in node.inputs[not_trained[node.op] :]}
    for tensor in graph.initialisers.values():
        fixed = tensor.name in statistics or any(fnmatch(tensor.name, pattern) for pattern in frozen)
        values[tensor.name] = _initialiser(trace, tensor, fixed, tensor.name in weights)
    for source in graph.inputs:
        shape = tuple(_size(source.name, i, d, sizes, is_open, batch) for i, d in enumerate(source.shape))
        values[source.name] = trace.new(shape, source.dtype, Role.INPUT, source.name)
    for node in graph.nodes:
        missing = [name for name in node.inputs if name not in values]
        if missing:
            raise BadInput(f"{node.where} reads {missing[0]!r}, which no node before it writes")
        trace.layer = _layer(node, graph.initialisers)
        results = _results(Call(node, trace, [values[name] for name in node.inputs], graph.opset))
        values.update((name, value) for name, value in zip(node.outputs, results, strict=False) if name)
    outputs = [value for name in graph.outputs if (value := values.get(name)) is not None]
    if loss is not None:
        _emit_loss(trace, loss, [v for v in outputs if v.dtype in FLOATS and v.tensor is not None and v.elements])
    return trace, values


def _results(call: Call) -> list[Value]:
    node = call.node
    try:
        constants = None if node.domain else constant_result(call)
        if constants is not None:
            return constants
        rule = RULES.get(node.op) if not node.domain else None
        if rule is None:
            shapes = ", ".join(str(list(v.shape)) for v in call.present)
            of = f" of {node.domain}" if node.domain else ""
            raise NotModelled(f"this op{of} is not read; its inputs are {shapes or 'none'}: export it as ops that are")
        return rule(call)
    except NotModelled as error:
        raise NotModelled(f"{node.where}: {error}") from None
    except TrainyardError as error:
        raise BadInput(f"{node.where}: {error}") from None
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise BadInput(f"{node.where} is damaged: {type(error).__name__}: {error}") from None


def _initialiser(trace: Trace, tensor: Tensor, fixed: bool, is_weight: bool) -> Value:
    value = from_tensor(tensor)
    if tensor.dtype not in FLOATS or (value.numbers is not None and value.elements <= 1 and not is_weight):
        return value
    role = Role.BUFFER if fixed else Role.PARAMETER
    number = trace.tensor(tensor.shape, tensor.dtype, role, tensor.name)
    return Value(tensor.shape, tensor.dtype, number, contiguous(tensor.shape), value.numbers if fixed else None)


def _size(name: str, position: int, size: int | str, sizes: Mapping[str, int], is_open: bool, batch: int) -> int:
    if isinstance(size, int):
        return size
    if not size and position == 0 and is_open:
        return batch
    number = sizes.get(size)
    if number is None:
        raise BadInput(
            f"input {name!r} has an open dimension {size or position!r}: give it a size, sizes={{{size or 'name'!r}: 128}}, "
            f"or on the command line model.onnx:{size or 'name'}=128"
        )
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= LARGEST:
        raise BadInput(f"dimension {size!r} must be a positive whole number, got {number!r}")
    return number


def _layer(node: Node, initialisers: Mapping[str, Tensor]) -> str:
    """A node's layer path, from its parameters' names (`layer1.conv1.weight`), else from its own name (`/layer1/conv1/Conv`).

    >>> _layer(Node("Relu", "/layer1/layer1.0/relu/Relu", ("x",), ("y",)), {})
    'layer1.0.relu'
    """
    for name in node.inputs:
        if name in initialisers and "." in name and "::" not in name:
            return name.rpartition(".")[0]
    path = ""
    for part in node.name.strip("/").split("/")[:-1]:
        path = part if not path or part.startswith(f"{path}.") else f"{path}.{part}"
    return path


def _emit_loss(trace: Trace, loss: Loss, outputs: Sequence[Value]) -> None:
    """The loss of the first output, as PyTorch computes it."""
    if not outputs:
        raise BadInput("no output of real numbers to compute a loss of: read it with backward=False")
    out = outputs[0]
    trace.layer, trace.phase = "loss", Phase.LOSS
    result, elements = trace.new((), out.dtype), out.elements
    if loss == "mse":
        target = trace.new(out.shape, out.dtype, Role.TARGET, "target")
        trace.emit(Reduction("mse_loss", elements, 1), "mse_loss", (out, target), (result,))
        return
    if loss != "cross_entropy":
        raise BadInput(f"loss {loss!r}: write cross_entropy, mse or None")
    classes = 1 if len(out.shape) == 4 else len(out.shape) - 1  # images keep their classes in the second dimension
    target = trace.new([n for i, n in enumerate(out.shape) if i != classes], "int64", Role.TARGET, "target")
    shares, weight = trace.new(out.shape, out.dtype), trace.new((), out.dtype)
    trace.emit(Reduction("log_softmax", elements, elements, 3), "_log_softmax", (out,), (shares,))
    trace.emit(Reduction("nll_loss_forward", elements, 1), "nll_loss_forward", (shares, target), (result, weight))


def _without_unused(step: Step) -> Step:
    """The step without tensors that no op reads or writes: parts of a concatenated parameter, tensors used for their shape only."""
    used = sorted({base for op in step.ops for t in (*op.inputs, *op.outputs) for base in (t, step.base(t))})
    new = {old: number for number, old in enumerate(used)}
    tensors = tuple(
        replace(step.tensors[old], view_of=None if step.tensors[old].view_of is None else new[step.base(old)]) for old in used
    )
    ops = tuple(replace(op, inputs=tuple(new[t] for t in op.inputs), outputs=tuple(new[t] for t in op.outputs)) for op in step.ops)
    return replace(step, ops=ops, tensors=tensors)


def _with_slopes(step: Step, others: Sequence[Step]) -> Step:
    """The step with the growth of every dimension over the batch; as it is, where the graph changes with the batch."""
    slopes: list[tuple[list[tuple[int, ...]], list[tuple[int, ...]]]] = []
    for other in others:
        change = other.batch - step.batch
        if _structure(step) != _structure(other):
            return replace(step, rebatchable=False)
        tensors = [_slope(a.shape, b.shape, change) for a, b in zip(step.tensors, other.tensors, strict=True)]
        ops = [_slope(dimensions(a.body), dimensions(b.body), change) for a, b in zip(step.ops, other.ops, strict=True)]
        if any(slope is None for slope in (*tensors, *ops)):
            return replace(step, rebatchable=False)
        slopes.append(([s for s in tensors if s is not None], [s for s in ops if s is not None]))
    (tensors_now, ops_now), *rest = slopes
    if any(pair != (tensors_now, ops_now) for pair in rest) or any(sum(map(bool, s)) > 1 for s in tensors_now):
        return replace(step, rebatchable=False)
    specs: list[TensorSpec] = [replace(t, slope=s) for t, s in zip(step.tensors, tensors_now, strict=True)]
    grown: list[Op] = [replace(op, slope=s) for op, s in zip(step.ops, ops_now, strict=True)]
    return replace(step, ops=tuple(grown), tensors=tuple(specs))


def _slope(sizes: tuple[int, ...], other_sizes: tuple[int, ...], change: int) -> tuple[int, ...] | None:
    if len(sizes) != len(other_sizes) or any((b - a) % change or b < a for a, b in zip(sizes, other_sizes, strict=True)):
        return None
    return tuple((b - a) // change for a, b in zip(sizes, other_sizes, strict=True))


def _structure(step: Step) -> tuple[object, ...]:
    """Everything of a step that must be equal at all batch sizes."""
    tensors = tuple((len(t.shape), t.dtype, t.role, t.name, t.view_of) for t in step.tensors)
    return tensors, tuple((type(op.body), op.name, op.layer, op.phase, op.inputs, op.outputs, op.letters) for op in step.ops)


def open_sizes(text: str) -> dict[str, int]:
    """
    >>> open_sizes("sequence=128,images=2")
    {'sequence': 128, 'images': 2}
    """
    sizes = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        if not name.strip() or not re.fullmatch(r"\d{1,12}", number.strip()):
            raise BadInput(f"{part!r}: write name=number, such as sequence=128")
        sizes[name.strip()] = int(number)
    return sizes
