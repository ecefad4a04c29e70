"""Layers whose gradients can be fused (`chain`), and the reason why where they cannot.

dX of a layer is followed to the layer below. The two can be fused tile by tile if all ops in between are element-wise on tensors
that exist already (a ReLU's mask, dropout, a scale, the gradient of another reader), if only the one layer below (and its bias)
reads the result, and if its rows are that layer's rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainyard.caches import per_step
from trainyard.ir import Convolution, Copy, ElementWise, Gather, MatMul, Op, Phase, Reduction, Step
from trainyard.mapping.lowering import lower as lowered
from trainyard.mapping.works import readers

# fmt: off
OBSTACLES = {
    "batch_norm_backward":   "BatchNorm's backward needs sums over the whole batch",
    "layer_norm_backward":   "LayerNorm's backward needs sums over whole rows",
    "softmax_backward_data": "softmax's backward needs sums over whole rows",
    "max_pool":              "max-pooling scatters it over windows",
    "avg_pool":              "average pooling spreads it over windows",
    "sum":                   "it is summed (a broadcast in the forward pass)",
    "upsample":              "upsampling's backward adds neighbours",
    "grid_sampler":          "sampling's backward scatters it",
}
# fmt: on
PUT_TOGETHER = "only a part of it goes on (X was put together from several tensors)"
FARTHEST = 16
"""Most ops between two neighbouring layers."""
MOST_REASONS = 3
"""Most reasons in `why`; one is enough to keep two layers apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The path of dX from layer `upper` to layer `lower` ("" if no layer with weights is below).

    Products are the layers' forward ones. `relu`: the upper layer's X masks dX; `epilogue` lists the ops in between. `lower_dx` is
    False where the lower layer is the network's first and has dW alone. `bytes` are those of dX: a link that fuses saves writing
    and reading them. `head` is the number of the product dX in the step.
    """

    upper: str
    lower: str
    fuses: bool
    why: str = ""
    epilogue: tuple[str, ...] = ()
    relu: bool = False
    lower_dx: bool = True
    upper_product: MatMul
    lower_product: MatMul | None = None
    bytes: int
    upper_call: int = 0
    lower_call: int = 0
    head: int = -1


@dataclass(slots=True)
class _Path:
    """The ops followed so far, and what they mean for a fusion."""

    head: int
    mask: int | None
    ops: list[int] = field(default_factory=list)
    epilogue: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    relu: bool = False


@per_step
def gradient_links(step: Step) -> tuple[Link, ...]:
    """A link for each product dX with weights, in program order.

    >>> from trainyard.workloads import zoo
    >>> [(link.upper, link.lower, link.why) for link in gradient_links(zoo.load("vgg16"))][:3]  # doctest: +NORMALIZE_WHITESPACE
    [('classifier.6', 'classifier.3', ''),
     ('classifier.3', 'classifier.0', ''),
     ('classifier.0', 'features.28', 'max-pooling scatters it over windows')]
    """
    weights = {_key(step, op): op for op in step.ops if op.phase is Phase.GRAD_WEIGHT and _weighted(op)}
    inputs = {_key(step, op): op for op in step.ops if op.phase is Phase.GRAD_INPUT and _weighted(op)}
    links = []
    for index, op in enumerate(step.ops):
        if op.phase is Phase.GRAD_INPUT and _weighted(op):
            links.append(_link(step, index, weights, inputs))
    return tuple(links)


def best_disjoint_links(links: Sequence[Link], saved: Sequence[int]) -> tuple[int, ...]:
    """Indices of the links that together save most without using a layer twice, in program order.

    A layer has at most one link below it, so links form paths.
    """
    below = {(link.upper, link.upper_call): number for number, link in enumerate(links)}
    after = [below.get((link.lower, link.lower_call), -1) for link in links]
    best: dict[int, tuple[int, tuple[int, ...]]] = {-1: (0, ())}
    for number in reversed(range(len(links))):  # in program order lower layers come later
        following = after[number]
        rest, numbers = best[after[following] if following >= 0 else -1]
        best[number] = max((saved[number] + rest, (number, *numbers)), best[following], key=lambda option: option[0])
    heads = set(range(len(links))) - set(after)
    return tuple(sorted(number for head in heads for number in best[head][1]))


def table(step: Step) -> str:
    """Every layer's dX as a table: the layer below, the ops in between, or why the layers cannot be fused."""
    rows = [("upper layer", "lower layer", "fuses", "on its way, or why not")]
    for link in gradient_links(step):
        text = link.why if not link.fuses else ", ".join(link.epilogue) or "nothing"
        rows.append((_named(link.upper, link.upper_call), _named(link.lower, link.lower_call), "yes" if link.fuses else "no", text))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join("  ".join((*(cell.ljust(size) for cell, size in zip(row, widths, strict=False)), row[3])) for row in rows)


def _named(layer: str, call: int) -> str:
    return f"{layer} ({call})" if call else layer or "-"


def _weighted(op: Op) -> bool:
    return op.is_product and "G" in op.letters and ("W" in op.letters or "A" in op.letters)


def _key(step: Step, op: Op) -> tuple[str, int, int]:
    return op.layer, op.call, step.base(op.inputs[op.letters.index("G")])


def _link(step: Step, head: int, weights: dict[tuple[str, int, int], Op], inputs: dict[tuple[str, int, int], Op]) -> Link:
    op = step.ops[head]
    partner = weights.get(_key(step, op))
    mask = step.base(partner.inputs[partner.letters.index("A")]) if partner is not None and "A" in partner.letters else None
    path = _Path(head=head, mask=mask, reasons=_rows_moved(op))
    below = _follow(step, path)
    upper_product, lower_product, lower_dx = _forward(op), None, True
    if partner is None:
        path.reasons.append("the upper layer's weights are frozen: it has no dW")
    if below is not None:
        key = _key(step, below)
        lower_product, lower_dx = _forward(below), key in inputs
        if key not in weights:
            path.reasons.append("the lower layer's weights are frozen: it has no dW")
        if below.layer == op.layer:
            path.reasons.append("the same layer at another time: its W and dW are not two tensors")
        same = (upper_product.M, upper_product.K, upper_product.count) == (lower_product.M, lower_product.N, lower_product.count)
        if not same and not path.reasons:
            path.reasons.append("rows of the one are not rows of the other (a reshape)")
    elif not path.reasons:
        path.reasons.append("no layer with weights is below")
    why = "; ".join(list(dict.fromkeys(path.reasons))[:MOST_REASONS])
    return Link(
        upper=op.layer, lower=below.layer if below is not None else "", fuses=not why, why=why,
        epilogue=tuple(path.epilogue), relu=path.relu, lower_dx=lower_dx, upper_product=upper_product,
        lower_product=lower_product, bytes=step.tensors[op.outputs[0]].bytes,
        upper_call=op.call, lower_call=below.call if below is not None else 0, head=head,
    )  # fmt: skip


def _forward(op: Op) -> MatMul:
    """The forward product of a gradient."""
    body = op.body
    if isinstance(body, Convolution):
        return lowered(body.as_product("forward")).product
    assert isinstance(body, MatMul)
    if op.phase is Phase.GRAD_INPUT:  # dY (M,N) x W (N,K), or transposed
        return MatMul(body.M, body.K, body.N, body.count) if op.letters[0] == "G" else MatMul(body.N, body.K, body.M, body.count)
    # dY^T (N,M) x X (M,K), or X^T (K,M) x dY (M,N)
    return MatMul(body.K, body.M, body.N, body.count) if op.letters[0] == "G" else MatMul(body.K, body.N, body.M, body.count)


def _rows_moved(op: Op) -> list[str]:
    """Reasons why a tile of the product is not a tile of dX, such as the col2im of a convolution."""
    body = op.body
    if not isinstance(body, Convolution):
        return []
    if body.product != "grad_input":
        return ["a transposed convolution gathers windows"]
    kernel = "x".join(map(str, body.kernel))
    if body.groups > 1:
        return [f"a {kernel} convolution in {body.groups} groups is many small products"]
    if any(size > 1 for size in body.kernel):
        return [f"a {kernel} convolution's dX overlaps between tiles (col2im)"]
    if any(step > 1 for step in body.stride) or any(body.padding):
        return [f"a {kernel} convolution of stride {max(body.stride)} leaves rows of dX without a tile"]
    return []


def _follow(step: Step, path: _Path) -> Op | None:
    """The lower layer's first gradient op; ops in between are added to the path."""
    tensor = step.ops[path.head].outputs[0]
    for _ in range(FARTHEST):
        base, elements = step.base(tensor), step.tensors[tensor].elements
        last = path.ops[-1] if path.ops else path.head
        users = [index for index in readers(step).get(base, ()) if index > last and _carries(step.ops[index])]
        layers = {(op.layer, op.call): op for op in (step.ops[index] for index in users) if reads_gradient(step, op, base)}
        others = [index for index in users if not reads_gradient(step, step.ops[index], base)]
        overwriting = next((index for index in others if base in map(step.base, step.ops[index].outputs)), None)
        if overwriting is not None:  # later readers see another version
            others = [index for index in others if index <= overwriting]
        if len(layers) + len(others) > 1:
            path.reasons.append(_several(step, layers, others, elements))
        if layers:
            return next(iter(layers.values()))
        if not others:
            return None
        path.ops.append(others[0])
        _pass_op(step, path, step.ops[others[0]], others[0], elements)
        if not step.ops[others[0]].outputs:
            return None
        tensor = step.ops[others[0]].outputs[0]
    return None


def _several(step: Step, layers: dict[tuple[str, int], Op], others: Sequence[int], elements: int) -> str:
    if len(layers) > 1:
        return f"{len(layers)} layers read it"
    parts = [body.elements for body in (step.ops[index].body for index in others) if isinstance(body, ElementWise)]
    if len(parts) == len(others) and max(parts) < elements:
        return PUT_TOGETHER
    names = ", ".join(dict.fromkeys(step.ops[index].name for index in others))
    return f"more than one op reads it (a residual, a branch or a norm: {names})"


def _carries(op: Op) -> bool:
    """Whether an op passes the gradient on. A bias gradient does not: it sums rows of tiles as they are computed."""
    return op.phase.backward and not is_bias(op)


def is_bias(op: Op) -> bool:
    return isinstance(op.body, Reduction) and op.body.function == "sum" and op.phase is Phase.GRAD_WEIGHT


def reads_gradient(step: Step, op: Op, base: int) -> bool:
    """Whether a product of a layer with weights has this memory as dY."""
    return _weighted(op) and step.base(op.inputs[op.letters.index("G")]) == base


def _pass_op(step: Step, path: _Path, op: Op, index: int, elements: int) -> None:
    """Adds an op to the path: to the epilogue if it works tile by tile, else as a reason against the fusion."""
    body = op.body
    late = [before for before in step.dependencies[index] if before > path.head and before not in path.ops]
    if isinstance(body, ElementWise) and body.elements == elements and not late and op.fused is None:
        path.epilogue.append(_epilogue_step(step, path, op))
        return
    path.reasons.append(_reason(step, op, elements, late))


def _epilogue_step(step: Step, path: _Path, op: Op) -> str:
    name = op.name.strip("_")
    last = path.ops[-2] if len(path.ops) > 1 else path.head
    arriving = set(map(step.base, step.ops[last].outputs))
    other_inputs = [base for base in map(step.base, op.inputs) if base not in arriving]
    if name == "threshold_backward":
        path.relu = path.mask in other_inputs
        return "ReLU mask from X" if path.relu else "ReLU mask from its own output"
    if name == "add":
        return "adds the gradient of another reader"
    return f"{name} with {len(other_inputs)} tensor{'s' if len(other_inputs) > 1 else ''} of its own" if other_inputs else name


def _reason(step: Step, op: Op, elements: int, late: Sequence[int]) -> str:
    body, name = op.body, op.name.strip("_")
    if op.is_product:
        return "a product of activations stands between (attention, interaction of features)"
    if isinstance(body, Gather):
        return "rows are scattered (an embedding or an index below)"
    if isinstance(body, Copy):
        return f"a copy into another layout stands between ({name})"
    if isinstance(body, Reduction | ElementWise):
        obstacle = next((text for start, text in OBSTACLES.items() if body.function.startswith(start)), None)
        if obstacle:
            return obstacle
        if isinstance(body, ElementWise) and body.elements > elements:
            return f"it is spread over {math.ceil(body.elements / elements)} times as many elements (pooling)"
        if isinstance(body, ElementWise) and body.elements < elements:
            return PUT_TOGETHER
    if late:
        return f"{name} waits for the gradient of another reader ({step.ops[late[-1]].layer or step.ops[late[-1]].name})"
    return f"{name} needs more than a tile"
