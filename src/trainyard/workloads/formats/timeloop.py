"""Timeloop problems (specification 0.4): one YAML file for each product of a step.

A convolution's three products are one loop nest over N, M, C, P, Q, R, S (and G for groups), the output and the two inputs change
places; a matrix product is M, N, K (and B for a batch of them). The product of an instance's dimensions is the op's MACs. Timeloop
knows no padding: the input that windows see is (P - 1) * stride + (R - 1) * dilation + 1 long, padding included, and that is how a
problem is read back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainyard.errors import BadInput, MissingExtra, UnknownName, quoted
from trainyard.files import write_text
from trainyard.ir import Convolution, MatMul, Op, ProductBody, Step
from trainyard.ir.ops import ProductOf
from trainyard.reading import Brackets, read_text, reader, reason

OUTPUTS, KERNEL = ("P", "Q", "Z"), ("R", "S", "T")
"""Names of output and kernel dimensions; Timeloop's own for images, Z and T where there is a third."""
STRIDES, DILATIONS = ("Wstride", "Hstride", "Dstride"), ("Wdilation", "Hdilation", "Ddilation")
WRITTEN: Mapping[ProductOf, str] = {"forward": "Outputs", "grad_input": "Inputs", "grad_weight": "Weights"}


def write_timeloop(step: Step, folder: str | os.PathLike[str], *, layer: str | None = None, phase: str | None = None) -> list[Path]:
    """`000_conv1_forward.yaml`, ... for each product of a step, or of one layer and phase; returns them."""
    if layer is not None and layer not in step.layers:
        raise UnknownName("layer", layer, step.layers, f"step {step.name!r}")
    chosen = [
        (number, op)
        for number, op in enumerate(step.ops)
        if op.is_product and layer in (None, op.layer) and phase in (None, op.phase.value)
    ]
    if not chosen:
        selection = ", ".join(f"{kind} {name!r}" for kind, name in (("layer", layer), ("phase", phase)) if name is not None)
        raise BadInput(f"step {step.name!r} has no product{selection and f' of {selection}'}")
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot make the folder {target}: {error.strerror or error}") from None
    written = []
    for number, op in chosen:
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", op.layer or op.name or "product")
        path = target / f"{number:03d}_{name}_{op.phase}.yaml"
        write_text(path, problem(op))
        written.append(path)
    return written


def problem(op: Op) -> str:
    """The problem of one product."""
    body = op.body
    if not isinstance(body, MatMul | Convolution):
        raise BadInput(f"op {op.name!r} is no product")
    spaces, instance, coefficients = _convolution(body) if isinstance(body, Convolution) else _product(body)
    name = "CNN_Layer" if isinstance(body, Convolution) else "GEMM"
    dimensions = [d for d in instance if d not in coefficients]
    lines = ["problem:", "  version: 0.4", "  shape:", f"    name: {name}", f"    dimensions: [{', '.join(dimensions)}]"]
    if coefficients:
        lines.append("    coefficients:")
        lines += [f"    - {{name: {c}, default: 1}}" for c in coefficients]
    lines.append("    data_spaces:")
    for space, (projection, written) in spaces.items():
        lines += [f"    - name: {space}", "      projection:", *(f"      - {axis}" for axis in projection)]
        if written:
            lines.append("      read_write: true")
    lines.append("  instance:")
    lines += [f"    {d}: {size}" for d, size in instance.items()]
    return "\n".join(lines) + "\n"


Spaces = dict[str, tuple[list[str], bool]]


def _product(body: MatMul) -> tuple[Spaces, dict[str, int], tuple[str, ...]]:
    batch = ["[ [B] ]"] if body.count > 1 else []
    spaces: Spaces = {
        "A": ([*batch, "[ [M] ]", "[ [K] ]"], False),
        "B": ([*batch, "[ [K] ]", "[ [N] ]"], False),
        "Z": ([*batch, "[ [M] ]", "[ [N] ]"], True),
    }
    if batch:
        spaces = {"A": spaces["A"], "W": spaces["B"], "Z": spaces["Z"]}  # B is the batch then
    sizes = {"B": body.count} if batch else {}
    return spaces, {**sizes, "M": body.M, "N": body.N, "K": body.K}, ()


def _convolution(body: Convolution) -> tuple[Spaces, dict[str, int], tuple[str, ...]]:
    rank = len(body.size)
    if rank > 3:
        raise BadInput(f"a convolution over {rank} spatial dimensions has no names in Timeloop")
    group = ["[ [G] ]"] if body.groups > 1 else []
    outputs, kernel, strides, dilations = (names[:rank] for names in (OUTPUTS, KERNEL, STRIDES, DILATIONS))
    windows = [f"[ [{r}, {d}], [{p}, {s}] ]" for r, d, p, s in zip(kernel, dilations, outputs, strides, strict=True)]
    written = WRITTEN[body.product]
    spaces: Spaces = {
        "Weights": ([*group, "[ [C] ]", "[ [M] ]", *(f"[ [{r}] ]" for r in kernel)], written == "Weights"),
        "Inputs": (["[ [N] ]", *group, "[ [C] ]", *windows], written == "Inputs"),
        "Outputs": (["[ [N] ]", *group, "[ [M] ]", *(f"[ [{p}] ]" for p in outputs)], written == "Outputs"),
    }
    sizes = {"N": body.batch, "M": body.out_channels // body.groups, "C": body.in_channels // body.groups}
    if group:
        sizes = {"G": body.groups, **sizes}
    sizes |= dict(zip(outputs, body.out_size, strict=True)) | dict(zip(kernel, body.kernel, strict=True))
    sizes |= dict(zip(strides, body.stride, strict=True)) | dict(zip(dilations, body.dilation, strict=True))
    return spaces, sizes, (*strides, *dilations)


@reader("Timeloop problem")
def read_timeloop(path: str | os.PathLike[str]) -> ProductBody:
    """The product of a problem that this file writes, padding as input."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise MissingExtra("pyyaml", "timeloop", "reading a Timeloop problem") from None
    text = read_text(path, "Timeloop problem", "problem_bytes")
    Brackets(str(path)).count(text.encode())
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadInput(f"{path} is not YAML: {reason(error)}") from None
    try:
        content = document["problem"]
        return _body(content["instance"], content["shape"])
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise BadInput(f"{path} is no Timeloop problem of a layer: {reason(error)}") from None


def _body(instance: Mapping[str, Any], shape: Mapping[str, Any]) -> ProductBody:
    if {"M", "N", "K"} <= instance.keys():
        return MatMul(*_sizes(instance, ("M", "N", "K")), *_sizes(instance, ("B",), 1))
    outputs = [p for p in OUTPUTS if p in instance]
    rank = len(outputs)
    if not rank:
        raise BadInput(f"neither M, N, K nor N, M, C, P, R among the dimensions {', '.join(map(str, instance))}")
    (groups,) = _sizes(instance, ("G",), 1)
    batch, wide, deep = _sizes(instance, ("N", "M", "C"))
    out, kernel = _sizes(instance, OUTPUTS[:rank]), _sizes(instance, KERNEL[:rank])
    stride, dilation = _sizes(instance, STRIDES[:rank], 1), _sizes(instance, DILATIONS[:rank], 1)
    size = tuple((p - 1) * s + (r - 1) * d + 1 for p, s, r, d in zip(out, stride, kernel, dilation, strict=True))
    written = [space["name"] for space in _listed(shape.get("data_spaces") or shape.get("data-spaces"))
               if space.get("read_write", space.get("read-write"))]  # fmt: skip
    products: list[ProductOf] = [product for product, name in WRITTEN.items() if name in written]
    if len(products) > 1:
        raise BadInput(f"{len(products)} data spaces are written: one is the result")
    return Convolution(
        batch=batch, in_channels=deep * groups, out_channels=wide * groups, size=size, kernel=kernel, stride=stride,
        dilation=dilation, groups=groups, product=products[0] if products else "forward",
    )  # fmt: skip


def _listed(spaces: Any) -> Iterable[Mapping[str, Any]]:
    return [space for space in spaces if isinstance(space, Mapping)] if isinstance(spaces, Sequence) else []


def _sizes(instance: Mapping[str, Any], names: Sequence[str], default: int | None = None) -> tuple[int, ...]:
    sizes = []
    for name in names:
        size = instance.get(name, default)
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size < 2**40:
            raise BadInput(f"dimension {name} must be a positive whole number, got {quoted(size)}")
        sizes.append(size)
    return tuple(sizes)
