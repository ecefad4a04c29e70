"""The rule of each ONNX node type. Ops get PyTorch's names, so that machines treat a step alike wherever it came from.

Arithmetic operations for each result count a transcendental function as four, as captured steps do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trainyard.errors import BadInput
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
COMPARISONS: Mapping[str, str] = {
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
    result = call.trace.pointwise(function, values[:2], operations, _dtype(values[:2]))
    for value in values[2:]:
        result = call.trace.pointwise(function, (result, value), operations)
    return [result]


def _dtype(values: list[Value]) -> str:
    return next((v.dtype for v in values if not v.scalar), values[0].dtype)


def _comparison(call: Call) -> list[Value]:
    if not call.present:
        raise BadInput("no operands")
    return [call.trace.pointwise(COMPARISONS[call.node.op], call.present[:2], dtype="bool")]


def _where(call: Call) -> list[Value]:
    values = [call.input(i) for i in range(3)]
    return [call.trace.pointwise("where", values, dtype=_dtype(values[1:]))]


def _sum_or_mean(call: Call) -> list[Value]:
    """Sum and Mean of several tensors, one after the other."""
    values = call.present
    if not values:
        raise BadInput("no operands")
    total = values[0]
    for value in values[1:]:
        total = call.trace.pointwise("add", (total, value))
    return [call.trace.pointwise("div", (total,)) if call.node.op == "Mean" else total]


def _cast(call: Call) -> list[Value]:
    value = call.input(0)
    if call.node.op == "CastLike":
        dtype = call.input(1).dtype
    elif (dtype := DTYPES.get(call.integer("to", 1), "")) == "":
        raise BadInput(f"it casts to ONNX type {call.integer('to', 1)}, which is not known")
    if dtype == value.dtype:
        return [value]
    return [call.trace.copy("cast", (value,), value.shape, dtype, "_to_copy")]


# fmt: off
RULES: Mapping[str, Rule] = {
    **dict.fromkeys(POINTWISE, _pointwise), **dict.fromkeys(COMPARISONS, _comparison),
    **dict.fromkeys(("Sum", "Mean"), _sum_or_mean), **dict.fromkeys(("Cast", "CastLike"), _cast),
    "Where":                 _where,
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
    "ReduceMean":            layers.reduction("mean"),
    "ReduceSum":             layers.reduction("sum"),
    "ReduceMax":             layers.reduction("amax"),
    "ReduceMin":             layers.reduction("amin"),
    "ReduceProd":            layers.reduction("prod"),
    "ReduceL1":              layers.reduction("linalg_vector_norm"),
    "ReduceL2":              layers.reduction("linalg_vector_norm"),
    "ReduceLogSumExp":       layers.reduction("logsumexp", 2),
    "ReduceSumSquare":       layers.reduction("sum"),
    "ArgMax":                layers.arg_extreme("argmax"),
    "ArgMin":                layers.arg_extreme("argmin"),
    "TopK":                  layers.topk,
    "CumSum":                layers.cumsum,
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
    "Slice":                 layout.slice_view,
    "Gather":                layout.gather,
    "GatherElements":        layout.gather_elements,
    "GatherND":              layout.gather_nd,
    "ScatterND":             layout.scatter,
    "ScatterElements":       layout.scatter,
    "Expand":                layout.expand,
    "Tile":                  layout.tile,
    "Pad":                   layout.pad,
    "DepthToSpace":          layout.pixel_shuffle,
    "SpaceToDepth":          layout.pixel_shuffle,
    "ConstantOfShape":       layout.constant_of_shape,
    "Range":                 layout.arange,
    "Identity":              layout.identity,
}
# fmt: on
