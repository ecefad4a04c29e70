"""Which rule writes down which ONNX node. Names of ops are PyTorch's, so that machines treat a step alike wherever it came from.

Arithmetic operations for each result count a transcendental function as four, as captured steps do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trainyard.errors import BadInput
from trainyard.ir import Copy
from trainyard.workloads.formats.onnx import layers, layout, products
from trainyard.workloads.formats.onnx.graph import DTYPES
from trainyard.workloads.formats.onnx.recurrent import recurrent
from trainyard.workloads.formats.onnx.trace import Call, Value

Rule = Callable[[Call], list[Value]]

# fmt: off
POINTWISE: Mapping[str, tuple[str, int]] = {  # ONNX: PyTorch's name, operations for each result
    "Relu": ("relu", 1), "LeakyRelu": ("leaky_relu", 1), "PRelu": ("prelu_kernel", 1), "Elu": ("elu", 5), "Selu": ("elu", 5),
    "Celu": ("elu", 5), "Sigmoid": ("sigmoid", 6), "HardSigmoid": ("hardsigmoid", 3), "HardSwish": ("hardswish", 3),
    "Tanh": ("tanh", 4), "Gelu": ("gelu", 8), "Silu": ("silu", 7), "Swish": ("silu", 7), "Mish": ("mish", 10),
    "Softplus": ("softplus", 8), "Softsign": ("softsign", 2), "ThresholdedRelu": ("threshold", 1), "Clip": ("clamp", 1),
    "Erf": ("erf", 4), "Exp": ("exp", 4), "Log": ("log", 4), "Sqrt": ("sqrt", 4), "Reciprocal": ("reciprocal", 1),
    "Neg": ("neg", 1),
    "Abs": ("abs", 1), "Sign": ("sign", 1), "Floor": ("floor", 1), "Ceil": ("ceil", 1), "Round": ("round", 1), "Sin": ("sin", 4),
    "Cos": ("cos", 4), "Tan": ("tan", 4), "Sinh": ("sinh", 4), "Cosh": ("cosh", 4), "Atan": ("atan", 4), "Asin": ("asin", 4),
    "Acos": ("acos", 4), "Add": ("add", 1), "Sub": ("sub", 1), "Mul": ("mul", 1), "Div": ("div", 1), "Pow": ("pow", 4),
    "Mod": ("remainder", 1), "Max": ("maximum", 1), "Min": ("minimum", 1), "BitShift": ("bitwise_left_shift", 1),
    "BitwiseAnd": ("bitwise_and", 1), "BitwiseOr": ("bitwise_or", 1), "BitwiseXor": ("bitwise_xor", 1),
    "BitwiseNot": ("bitwise_not", 1),
}
QUESTIONS: Mapping[str, str] = {
    "Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge", "And": "logical_and",
    "Or": "logical_or", "Xor": "logical_xor", "Not": "logical_not", "IsNaN": "isnan", "IsInf": "isinf",
}
# fmt: on


def _pointwise(call: Call) -> list[Value]:
    """One result for each element; with more than two operands, one after the other."""
    function, operations = POINTWISE[call.node.op]
    values = call.present
    if not values:
        raise BadInput("no operands")
    if function == "clamp":
        values = values[:1]
    found = call.trace.pointwise(function, values[:2], operations, _dtype(values[:2]))
    for more in values[2:]:
        found = call.trace.pointwise(function, (found, more), operations)
    return [found]


def _dtype(values: list[Value]) -> str:
    return next((v.dtype for v in values if not v.scalar), values[0].dtype)


def _question(call: Call) -> list[Value]:
    if not call.present:
        raise BadInput("no operands")
    return [call.trace.pointwise(QUESTIONS[call.node.op], call.present[:2], dtype="bool")]


def _chosen(call: Call) -> list[Value]:
    values = [call.given(i) for i in range(3)]
    return [call.trace.pointwise("where", values, dtype=_dtype(values[1:]))]


def _added(call: Call) -> list[Value]:
    """Sum and Mean of several tensors, one after the other."""
    values = call.present
    if not values:
        raise BadInput("no operands")
    found = values[0]
    for more in values[1:]:
        found = call.trace.pointwise("add", (found, more))
    return [call.trace.pointwise("div", (found,)) if call.node.op == "Mean" else found]


def _cast(call: Call) -> list[Value]:
    value = call.given(0)
    if call.node.op == "CastLike":
        dtype = call.given(1).dtype
    elif (dtype := DTYPES.get(call.whole("to", 1), "")) == "":
        raise BadInput(f"it casts to ONNX type {call.whole('to', 1)}, which is not known")
    if dtype == value.dtype:
        return [value]
    out = call.trace.new(value.shape, dtype)
    if out.elements:
        call.trace.emit(Copy("cast", out.elements), "_to_copy", (value,), (out,))
    return [out]


# fmt: off
RULES: Mapping[str, Rule] = {
    **dict.fromkeys(POINTWISE, _pointwise), **dict.fromkeys(QUESTIONS, _question),
    **dict.fromkeys(("Sum", "Mean"), _added), **dict.fromkeys(("Cast", "CastLike"), _cast),
    "Where":                 _chosen,
    "Conv":                  products.convolution,
    "ConvTranspose":         products.transposed_convolution,
    "Gemm":                  products.gemm,
    "MatMul":                products.matmul,
    "Einsum":                products.einsum,
    "Attention":             products.attention,
    "LSTM":                  recurrent,
    "GRU":                   recurrent,
    "RNN":                   recurrent,
    "MaxPool":               layers.pool,
    "AveragePool":           layers.pool,
    "GlobalAveragePool":     layers.global_pool,
    "GlobalMaxPool":         layers.global_pool,
    "BatchNormalization":    layers.batch_norm,
    "LayerNormalization":    layers.layer_norm,
    "RMSNormalization":      layers.rms_norm,
    "GroupNormalization":    layers.group_norm,
    "InstanceNormalization": layers.group_norm,
    "Softmax":               layers.softmax,
    "LogSoftmax":            layers.softmax,
    "ReduceMean":            layers.reduced("mean"),
    "ReduceSum":             layers.reduced("sum"),
    "ReduceMax":             layers.reduced("amax"),
    "ReduceMin":             layers.reduced("amin"),
    "ReduceProd":            layers.reduced("prod"),
    "ReduceL1":              layers.reduced("linalg_vector_norm"),
    "ReduceL2":              layers.reduced("linalg_vector_norm"),
    "ReduceLogSumExp":       layers.reduced("logsumexp", 2),
    "ReduceSumSquare":       layers.reduced("sum"),
    "ArgMax":                layers.searched("argmax"),
    "ArgMin":                layers.searched("argmin"),
    "TopK":                  layers.top,
    "CumSum":                layers.summed_along,
    "Dropout":               layers.dropout,
    "Resize":                layers.resize,
    "Upsample":              layers.resize,
    "Reshape":               layout.reshape,
    "Flatten":               layout.flatten,
    "Squeeze":               layout.squeeze,
    "Unsqueeze":             layout.unsqueeze,
    "Transpose":             layout.transpose,
    "Concat":                layout.concat,
    "Split":                 layout.split,
    "Slice":                 layout.cut,
    "Gather":                layout.gather,
    "GatherElements":        layout.gather_elements,
    "GatherND":              layout.gather_tuples,
    "ScatterND":             layout.scattered,
    "ScatterElements":       layout.scattered,
    "Expand":                layout.expand,
    "Tile":                  layout.tile,
    "Pad":                   layout.pad,
    "DepthToSpace":          layout.shuffled,
    "SpaceToDepth":          layout.shuffled,
    "ConstantOfShape":       layout.filled,
    "Range":                 layout.counted,
    "Identity":              layout.identity,
}
# fmt: on
