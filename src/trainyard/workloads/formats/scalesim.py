"""SCALE-Sim topologies: a CSV of layers, forward only, one sample; convolutions or matrix products.

SCALE-Sim rounds a strided convolution's output up, ceil((H - R + s) / s), PyTorch down. Reading keeps SCALE-Sim's output: the
input is taken as (outputs - 1) * s + R, at most s - 1 larger than printed, where both agree; `rounding="torch"` keeps the printed
input instead. Rows named with DP are depth-wise, one product per channel, as SCALE-Sim expands them.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from trainyard.errors import BadInput, UnknownName, quoted
from trainyard.files import write_text
from trainyard.ir import Convolution, MatMul, Op, Phase, ProductBody, Role, Step, TensorSpec
from trainyard.ir.ops import dimensions
from trainyard.reading import read_text, reader, require_within
from trainyard.workloads.formats.backward import with_backward

Rounding = Literal["scalesim", "torch"]
CONVOLUTION = ("ifmap height", "ifmap width", "filter height", "filter width", "channels", "num filter", "stride", "stride width")
PRODUCT = ("M", "N", "K", "batch")
GEMM_HEADER = "Layer,M,N,K,"
CONVOLUTION_HEADER = "Layer name,IFMAP Height,IFMAP Width,Filter Height,Filter Width,Channels,Num Filter,Strides,"
DEPTHWISE = "DP"
GEMM_PHASES = ("all", "grad_input", "grad_weight")
DIGITS = 12  # of one dimension; more is a slip, and would not fit the counters of cycles


@dataclass(frozen=True, slots=True)
class Layer:
    """One row: its name, its line in the file, its numbers by column, and the N:M sparsity of its weights."""

    name: str
    line: int
    sizes: Mapping[str, int]
    sparsity: tuple[int, int] | None = None

    @property
    def is_product(self) -> bool:
        return "M" in self.sizes


@reader("topology")
def read_topology(
    path: str | os.PathLike[str],
    *,
    batch: int = 1,
    backward: bool = True,
    optimizer: str | None = "sgd",
    rounding: Rounding = "scalesim",
    dtype: str = "fp32",
) -> Step:
    """The training step of a topology; `backward=False` keeps the forward pass alone, `optimizer=None` leaves out the update."""
    bodies: list[tuple[str, ProductBody]] = []
    for layer in read_layers(path):
        try:
            bodies.append((layer.name, _body(layer, rounding)))
        except BadInput as error:
            raise BadInput(f"{path}, line {layer.line} ({layer.name}): {error}") from None
    forward = chain(Path(path).stem, bodies, dtype=dtype, source=f"SCALE-Sim topology {Path(path).name}").rebatch(batch)
    return with_backward(forward, optimizer=optimizer) if backward else forward


@reader("topology")
def read_sparsity(path: str | os.PathLike[str]) -> dict[str, tuple[int, int]]:
    """The N:M ratios of a topology's sparsity column, by layer; a Step has no zeros of its own."""
    return {layer.name: layer.sparsity for layer in read_layers(path) if layer.sparsity is not None}


def read_layers(path: str | os.PathLike[str]) -> list[Layer]:
    text = read_text(path, "topology", "topology_bytes").removeprefix("\ufeff")
    require_within("topology_rows", text.count("\n"), f"topology {path}")
    rows = [(number, _cells(line)) for number, line in enumerate(text.splitlines(), start=1)]
    rows = [(number, cells) for number, cells in rows if any(cells) and not cells[0].startswith("#")]
    if not rows:
        raise BadInput(f"topology {path} is empty")
    columns = _columns(rows[0][1])
    if columns is not None:
        rows = rows[1:]
    else:
        columns = CONVOLUTION if _count_numbers(rows[0][1]) >= len(CONVOLUTION) - 1 else PRODUCT
    if not rows:
        raise BadInput(f"topology {path} has a header and no layers")
    name_counts: dict[str, int] = {}
    return [_layer(path, number, cells, columns, name_counts) for number, cells in rows]


def _cells(line: str) -> list[str]:
    """A row's cells; spreadsheets also separate them by tabs or semicolons, and quote them."""
    separator = next((mark for mark in ",;\t" if mark in line), ",")
    return [cell.strip().strip('"').strip() for cell in line.split(separator)]


def _count_numbers(cells: Sequence[str]) -> int:
    return sum(bool(re.fullmatch(r"\d+", cell)) for cell in cells[1:])


def _columns(header: Sequence[str]) -> tuple[str, ...] | None:
    """What each column after the name means, from the header; None if the first row is already a layer."""
    if len(header) > 1 and re.fullmatch(r"[+-]?\d+(\.\d*)?", header[1]):
        return None
    words = [re.sub(r"[^a-z]", "", cell.lower()) for cell in header[1:]]
    if {"m", "n", "k"} <= set(words):
        names = {"m": "M", "n": "N", "k": "K", "batch": "batch", "sparsity": "sparsity", "sparsityratio": "sparsity"}
        return tuple(names.get(word, "") for word in words)
    if any(word.startswith(("ifmap", "filter", "input")) for word in words):
        strides = [i for i, word in enumerate(words) if word.startswith("stride")]
        named = dict(enumerate(CONVOLUTION[:6]))
        named.update(dict(zip(strides or [6], ("stride", "stride width"), strict=False)))
        named.update({i: "sparsity" for i, word in enumerate(words) if word.startswith("spars")})
        return tuple(named.get(i, "") for i in range(len(words)))
    return PRODUCT if len([w for w in words if w]) < 6 else CONVOLUTION


def _layer(path: object, line: int, cells: Sequence[str], columns: Sequence[str], name_counts: dict[str, int]) -> Layer:
    sizes: dict[str, int] = {}
    sparsity: tuple[int, int] | None = None
    for number, cell in enumerate(cells[1:], start=2):
        column = columns[number - 2] if number - 2 < len(columns) else ""
        if not cell or cell.startswith("#"):
            continue
        where = f"{path}, line {line}, column {number} ({column or 'unnamed'})"
        if ":" in cell or column == "sparsity":
            sparsity = _ratio(cell, where)
        elif column:
            sizes[column] = _size(cell, where)
        elif re.fullmatch(r"\d+", cell) and "stride" in sizes and "stride width" not in sizes:
            sizes["stride width"] = _size(cell, where)
    needed = PRODUCT[:3] if "M" in columns else CONVOLUTION[:7]
    for column in needed:
        if column not in sizes:
            raise BadInput(f"{path}, line {line}: no {column} (expected: name, {', '.join(needed)})")
    name = cells[0] or f"layer{line}"
    name_counts[name] = name_counts.get(name, 0) + 1
    return Layer(name if name_counts[name] == 1 else f"{name}_{name_counts[name]}", line, sizes, sparsity)


def _size(cell: str, where: str) -> int:
    digits = cell.partition(".")[0].lstrip("0")
    if not re.fullmatch(r"\d+(\.0*)?", cell) or not digits:
        raise BadInput(f"{where}: expected a positive whole number, got {quoted(cell)}")
    if len(digits) > DIGITS:
        raise BadInput(f"{where}: expected at most {DIGITS} digits, got {len(digits)}")
    return int(digits)


def _ratio(cell: str, where: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,6})\s*:\s*([0-9]{1,6})", cell) or re.fullmatch(r"(1)()", cell)
    nonzero, block = (int(match.group(1)), int(match.group(2) or 1)) if match else (0, 0)
    if not 1 <= nonzero <= block:
        raise BadInput(f"{where}: expected a ratio such as 2:4, got {quoted(cell)}")
    return nonzero, block


def _body(layer: Layer, rounding: Rounding) -> ProductBody:
    sizes = layer.sizes
    if layer.is_product:
        return MatMul(sizes["M"], sizes["N"], sizes["K"], sizes.get("batch", 1))
    printed = (sizes["ifmap height"], sizes["ifmap width"])
    kernel = (sizes["filter height"], sizes["filter width"])
    stride = (sizes["stride"], sizes.get("stride width", sizes["stride"]))
    if any(k > extent for k, extent in zip(kernel, printed, strict=True)):
        raise BadInput(f"filter {kernel} is larger than the input {printed}")
    size = printed
    if rounding == "scalesim":
        size = (_stretched(printed[0], kernel[0], stride[0]), _stretched(printed[1], kernel[1], stride[1]))
    groups = sizes["channels"] if DEPTHWISE in layer.name else 1
    return Convolution(
        batch=1, in_channels=sizes["channels"], out_channels=sizes["num filter"] * groups, size=size, kernel=kernel, stride=stride,
        groups=groups,
    )  # fmt: skip


def _stretched(extent: int, kernel: int, stride: int) -> int:
    """The least input whose output, rounded down, is what SCALE-Sim rounds up to.

    >>> _stretched(224, 7, 2), _stretched(112, 3, 1)
    (225, 112)
    """
    return -(-(extent - kernel) // stride) * stride + kernel


def chain(name: str, layers: Sequence[tuple[str, ProductBody]], *, dtype: str = "fp32", source: str = "") -> Step:
    """A forward Step of one sample: each layer reads the previous layer's result (padded or pooled by ops that are not listed)."""
    tensors: list[TensorSpec] = []
    ops: list[Op] = []
    before: int | None = None
    for layer, body in layers:
        shapes, growing = _shapes(body)
        reads, weight, writes = range(len(tensors), len(tensors) + 3)
        roles = (Role.INPUT if before is None else Role.ACTIVATION, Role.PARAMETER, Role.ACTIVATION)
        for position, (shape, role) in enumerate(zip(shapes, roles, strict=True)):
            slope = tuple(shape[i] if i == growing and role is not Role.PARAMETER else 0 for i in range(len(shape)))
            label = f"{layer}.{('input', 'weight', 'output')[position]}"
            tensors.append(TensorSpec(shape, dtype, role, label, before if position == 0 else None, slope))
        slope = tuple(size if i == 0 else 0 for i, size in enumerate(dimensions(body)))
        ops.append(
            Op(body=body, name=layer, layer=layer, inputs=(reads, weight), outputs=(writes,), letters=("A", "W"), slope=slope)
        )
        before = writes
    return Step(name, 1, tuple(ops), tuple(tensors), source)


def _shapes(body: ProductBody) -> tuple[tuple[tuple[int, ...], ...], int]:
    """Shapes of input, weight and output, and which of their dimensions grows with the batch."""
    if isinstance(body, Convolution):
        weight = (body.out_channels, body.in_channels // body.groups, *body.kernel)
        return ((1, body.in_channels, *body.size), weight, (1, body.out_channels, *body.out_size)), 0
    many = (body.count,) if body.count > 1 else ()
    return ((*many, body.M, body.K), (*many, body.K, body.N), (*many, body.M, body.N)), len(many)


def write_topology(step: Step, path: str | os.PathLike[str], *, phase: str = "forward", layer: str | None = None) -> None:
    """The products of a step's forward pass, one sample of them: SCALE-Sim has no batch.

    Matrix products alone make a GEMM file; beside convolutions a product is a row of the convolution file with the same cycles.
    Padding becomes input, groups become rows, dilation keeps the outputs and loses the gaps. SCALE-Sim has no backward pass either:
    `phase` "grad_input", "grad_weight" or "all" writes the products of the step, with its batch, as the GEMMs that they are.
    """
    if phase not in (*GEMM_PHASES, "forward"):
        raise UnknownName("phase", phase, (*GEMM_PHASES, "forward"))
    if layer is not None:
        if layer not in step.layers:
            raise UnknownName("layer", layer, step.layers)
        step = replace(step, ops=tuple(op for op in step.ops if op.layer == layer))
    if phase != "forward":
        _write_products(step, path, phase)
        return
    if step.batch != 1 and not step.rebatchable:
        raise BadInput(f"step {step.name!r} has batch {step.batch} and cannot be rebatched: a topology holds one sample")
    single = step.rebatch(1)
    products = [op for op in single.ops if op.phase is Phase.FORWARD and op.is_product and not op.recompute]
    if not products:
        raise BadInput(f"step {step.name!r} has no matrix product or convolution in its forward pass")
    flat = all(isinstance(op.body, MatMul) for op in products)
    header = GEMM_HEADER if flat else CONVOLUTION_HEADER
    if not flat and any(len(set(op.body.stride)) > 1 for op in products if isinstance(op.body, Convolution)):
        header = header.replace("Strides", "Stride Height,Stride Width")
    lines = [header]
    for op in products:
        name = (op.layer or op.name or "layer").replace(",", "_").strip()
        assert isinstance(op.body, MatMul | Convolution)
        rows = list(_rows(op.body, flat))
        depthwise = isinstance(op.body, Convolution) and op.body.groups == op.body.in_channels > 1
        for number, row in enumerate(rows):
            numbers = row if flat or "Stride Width" in header else row[:-1]
            lines.append(f"{_label(name, number if len(rows) > 1 else None, depthwise)},{','.join(map(str, numbers))},")
    write_text(path, "\n".join(lines) + "\n")


def _write_products(step: Step, path: str | os.PathLike[str], phase: str) -> None:
    """Every product of some phases as a row of a GEMM file; one that is repeated (groups, heads) as several."""
    lines = [GEMM_HEADER]
    for op in step.ops:
        if isinstance(op.body, MatMul | Convolution) and phase in ("all", op.phase.value):
            product = gemm(op.body)
            name = f"{op.layer or op.name or 'layer'}_{op.phase}".replace(",", "_").strip()
            for number in range(product.count):
                lines.append(f"{_label(name, number if product.count > 1 else None, False)},{product.M},{product.N},{product.K},")
    if len(lines) == 1:
        raise BadInput(f"step {step.name!r} has no product of phase {phase!r}")
    write_text(path, "\n".join(lines) + "\n")


def gemm(body: ProductBody) -> MatMul:
    """The matrix product of a convolution's unfolded windows (im2col), one per group.

    >>> gemm(Convolution(batch=2, in_channels=3, out_channels=8, size=(6, 6), kernel=(3, 3), product="grad_weight"))
    MatMul(M=27, N=8, K=32, count=1)
    """
    if isinstance(body, MatMul):
        return body
    rows, out = body.batch * math.prod(body.out_size), body.out_channels // body.groups
    window = body.in_channels // body.groups * math.prod(body.kernel)
    sides = {"forward": (rows, out, window), "grad_input": (rows, window, out), "grad_weight": (window, out, rows)}
    return MatMul(*sides[body.product], body.groups)


def _label(name: str, number: int | None, depthwise: bool) -> str:
    """A name that SCALE-Sim reads as depth-wise if, and only if, it is."""
    if depthwise:
        return name if DEPTHWISE in name else f"{name}_{DEPTHWISE}"
    plain = name.replace(DEPTHWISE, DEPTHWISE.lower())
    return plain if number is None else f"{plain}_{number}"


def _rows(body: ProductBody, flat: bool) -> Iterator[tuple[int, ...]]:
    if isinstance(body, MatMul):
        row = (body.M, body.N, body.K) if flat else (body.M, body.K, 1, body.K, 1, body.N, 1, 1)
        for _ in range(body.count):
            yield row
        return
    inner, outer = body.in_channels // body.groups, body.out_channels // body.groups
    if len(body.size) != 2:
        window = inner * math.prod(body.kernel)
        for _ in range(body.groups):
            yield (math.prod(body.out_size), window, 1, window, 1, outer, 1, 1)
        return
    size = tuple((out - 1) * s + k for out, s, k in zip(body.out_size, body.stride, body.kernel, strict=True))
    if inner == 1 and body.groups > 1:
        yield (*size, *body.kernel, body.groups, outer, *body.stride)
        return
    for _ in range(body.groups):
        yield (*size, *body.kernel, inner, outer, *body.stride)
