"""A training step: ops over tensors in program order, without torch and without hardware.

Every dimension is stored with its slope over the batch, d(n) = d + slope * (n - batch), so that `rebatch` needs no torch.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, lru_cache

from trainyard.caches import per_step
from trainyard.checks import LARGEST_COUNT
from trainyard.errors import BadInput, TooLarge, quoted
from trainyard.ir.operands import Letter
from trainyard.ir.ops import Body, Collective, Convolution, MatMul, dimensions, with_dimensions
from trainyard.ir.routing import Routing, divided, joined

# fmt: off
DTYPE_BYTES: Mapping[str, int] = {
    "fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1, "complex32": 4, "complex64": 8, "complex128": 16,
}
# fmt: on


class Phase(StrEnum):
    """The part of the training step that an op belongs to."""

    FORWARD = "forward"
    LOSS = "loss"
    GRAD_INPUT = "grad_input"
    GRAD_WEIGHT = "grad_weight"
    UPDATE = "update"
    COPY = "copy"

    @property
    def backward(self) -> bool:
        return self in (Phase.GRAD_INPUT, Phase.GRAD_WEIGHT)


class Role(StrEnum):
    """The role of a tensor in the training step; a machine may set its precision by role."""

    INPUT = "input"
    TARGET = "target"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    PARAMETER_GRADIENT = "parameter_gradient"
    STATE = "state"

    @property
    def resident(self) -> bool:
        """Whether the tensor is in memory before the step begins and after it has ended."""
        return self not in TRANSIENT_ROLES


class Layout(StrEnum):
    """How the large operands and the result of an op lie in memory: in the same order, in different orders with the same innermost
    dimension, or with different innermost dimensions."""

    SAME = "same"
    MIXED = "mixed"
    TRANSPOSED = "transposed"


TRANSIENT_ROLES = frozenset({Role.ACTIVATION, Role.GRADIENT, Role.PARAMETER_GRADIENT})


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One version of a tensor. `view_of` is the tensor whose memory it shares: it is a slice, a transpose or a later version.

    `channels_last`: a batch of maps (N, C, ...) whose channels are neighbours in memory, as torch's memory format of that name.
    """

    shape: tuple[int, ...]
    dtype: str = "fp32"
    role: Role = Role.ACTIVATION
    name: str = ""
    view_of: int | None = None
    slope: tuple[int, ...] = ()
    channels_last: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise BadInput(f"tensor {self.name!r}: unknown element type {self.dtype!r} (known: {', '.join(DTYPE_BYTES)})")
        if any(isinstance(d, bool) or not isinstance(d, int) or d < 0 for d in self.shape):
            raise BadInput(f"tensor {self.name!r}: shape {quoted(self.shape)} must hold whole numbers of at least 0")
        if max(self.shape, default=0) > LARGEST_COUNT:
            raise TooLarge(f"tensor {self.name!r}: a dimension of shape {quoted(self.shape)} is more than 2**53")
        if self.slope and len(self.slope) != len(self.shape):
            raise BadInput(f"tensor {self.name!r}: slope {self.slope!r} does not fit shape {self.shape!r}")
        if self.slope and not any(self.slope):
            object.__setattr__(self, "slope", ())

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One op of a step.

    `inputs` and `outputs` are tensor numbers. The first two inputs of a product are its operands a (M,K) and b (K,N); `letters`
    are their roles in the layer (A, W, G). Ops of one kernel that keeps intermediate results on chip (flash attention) share a
    number in `fused`. `routing` says that the op is a part of a grouped product: how its rows are divided over experts.
    `host_waits`: before this op, the program reads a value from the device (`if mask.all():`, `loss.item()`), so the host issues it
    only when all earlier ops are done; of the first op of a step, those of the step before. `layout` is known of element-wise ops,
    copies and norms by rows that were captured.
    """

    body: Body
    name: str = ""
    layer: str = ""
    call: int = 0
    phase: Phase = Phase.FORWARD
    recompute: bool = False
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    letters: tuple[Letter, ...] = ()
    fused: int | None = None
    slope: tuple[int, ...] = ()
    routing: Routing | None = None
    host_waits: bool = False
    layout: Layout = Layout.SAME

    def __post_init__(self) -> None:
        if self.slope and len(self.slope) != len(dimensions(self.body)):
            raise BadInput(f"op {self.name!r}: slope {self.slope!r} does not fit {self.body!r}")
        if self.slope and not any(self.slope):
            object.__setattr__(self, "slope", ())

    @property
    def macs(self) -> int:
        return self.body.macs if isinstance(self.body, MatMul | Convolution) else 0

    @property
    def is_product(self) -> bool:
        return isinstance(self.body, MatMul | Convolution)

    def rebatch(self, change: int) -> Op:
        if not self.slope:
            if self.routing is not None and self.routing.slope and change:
                raise BadInput(
                    f"op {self.name!r} of layer {self.layer!r}: its {self.routing.rows} rows do not divide evenly over "
                    f"{self.routing.groups} groups: rebatch the whole step"
                )
            return self
        routing = self.routing and replace(self.routing, rows=self.routing.rows + self.routing.slope * change)
        return replace(self, body=_grown(self.body, self.slope, change), routing=routing)

    def split(self, axis: str, parts: int) -> tuple[Op, ...]:
        """Model parallelism: the op cut along a dimension of its body into `parts` nearly equal pieces.

        >>> [piece.body.N for piece in Op(body=MatMul(4, 10, 3)).split("N", 4)]
        [3, 3, 2, 2]
        """
        size = getattr(self.body, axis, None)
        if not isinstance(size, int):
            raise BadInput(f"{type(self.body).__name__} has no dimension {axis!r} to split")
        if not 1 <= parts <= size:
            raise BadInput(f"cannot split {axis}={size} into {parts} parts")
        sizes = [size // parts + (i < size % parts) for i in range(parts)]
        if isinstance(self.body, Convolution):
            return tuple(replace(self, body=_split_convolution(self.body, axis, s), slope=()) for s in sizes)
        return tuple(replace(self, body=replace(self.body, **{axis: s}), slope=()) for s in sizes)  # type: ignore[arg-type]


@lru_cache(maxsize=1024)
def _grown(body: Body, slope: tuple[int, ...], change: int) -> Body:
    """A body at another batch size; layers repeat, so that most are found once for a step."""
    return with_dimensions(body, tuple(d + s * change for d, s in zip(dimensions(body), slope, strict=True)))


def _split_convolution(body: Convolution, axis: str, size: int) -> Convolution:
    if axis not in ("batch", "in_channels", "out_channels") or (axis != "batch" and body.groups > 1):
        raise BadInput(f"a convolution with groups={body.groups} cannot be split along {axis!r}")
    return replace(body, **{axis: size})  # type: ignore[arg-type]  # one of three int fields


@dataclass(frozen=True)
class Step:
    """The computation of one optimizer step.

    Data dependencies follow from tensors: an op waits for the producers of its inputs (through `view_of`).

    A step captured on a process group of `world` ranks is the step of rank 0, with the collectives of the script; `replicas` of
    these ranks train on different samples, `batch` each.

    `notes` say what was assumed when the step was made; every result of the step repeats them.
    """

    name: str
    batch: int
    ops: tuple[Op, ...]
    tensors: tuple[TensorSpec, ...]
    source: str = ""
    rebatchable: bool = True
    world: int = 1
    replicas: int = 1
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.batch, bool) or not isinstance(self.batch, int) or self.batch < 1:
            raise BadInput(f"step {self.name!r}: batch must be a positive whole number, got {quoted(self.batch)}")
        if self.batch > LARGEST_COUNT:
            raise TooLarge(f"step {self.name!r}: batch must be at most 2**53, got {quoted(self.batch)}")
        if {type(self.world), type(self.replicas)} != {int} or not 1 <= self.replicas <= self.world:
            raise BadInput(
                f"step {self.name!r}: {self.replicas!r} replicas among {self.world!r} ranks: give 1 <= replicas <= world"
            )
        count = len(self.tensors)
        for index, spec in enumerate(self.tensors):
            if spec.view_of is not None and not 0 <= spec.view_of < index:
                raise BadInput(f"step {self.name!r}: tensor {index} views tensor {spec.view_of}, which does not precede it")
        for index, op in enumerate(self.ops):
            if any(not 0 <= t < count for t in (*op.inputs, *op.outputs)):
                raise BadInput(f"step {self.name!r}: op {index} ({op.name}) names a tensor outside 0..{count - 1}")

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops)

    def __len__(self) -> int:
        return len(self.ops)

    def __repr__(self) -> str:
        return f"Step({self.name!r}, batch={self.batch}, {len(self.ops)} ops, {self.macs:.3e} MACs)"

    @cached_property
    def macs(self) -> int:
        """Multiply-accumulates of all matrix products and convolutions."""
        return sum(op.macs for op in self.ops)

    @cached_property
    def parameters(self) -> int:
        """Elements of all trainable and frozen parameters."""
        return sum(spec.elements for spec in self.tensors if spec.view_of is None and spec.role is Role.PARAMETER)

    @cached_property
    def exchanges(self) -> tuple[int, ...]:
        """Numbers of the ops that are collectives between several ranks."""
        return tuple(number for number, op in enumerate(self.ops) if isinstance(op.body, Collective) and op.body.ranks > 1)

    @cached_property
    def world_size(self) -> int:
        """Ranks that take part in its collectives; 1 if it has none."""
        ranks = (op.body.ranks for op in map(self.ops.__getitem__, self.exchanges) if isinstance(op.body, Collective))
        return max(self.world, *ranks) if self.exchanges else 1

    @cached_property
    def bases(self) -> tuple[int, ...]:
        """For each tensor the one that owns its memory: itself where it is no view."""
        bases: list[int] = []
        for tensor, spec in enumerate(self.tensors):
            bases.append(tensor if spec.view_of is None else bases[spec.view_of])  # a view follows what it is of
        return tuple(bases)

    def base(self, tensor: int) -> int:
        """The tensor that owns the memory of a view."""
        return self.bases[tensor]

    @cached_property
    def dependencies(self) -> tuple[tuple[int, ...], ...]:
        """For each op, the earlier ops it waits for: producers of what it reads, or of other parts of a tensor that it writes."""
        producer: dict[int, int] = {}
        waits: list[tuple[int, ...]] = []
        owner = self.bases.__getitem__
        for index, op in enumerate(self.ops):
            written = [(tensor, owner(tensor)) for tensor in op.outputs]
            completed = [
                base
                for tensor, base in written
                if tensor != base and self.tensors[tensor].elements < self.tensors[base].elements
            ]  # fmt: skip
            before = {producer[base] for base in (*map(owner, op.inputs), *completed) if base in producer}
            waits.append(tuple(sorted(before)))
            producer.update((base, index) for _, base in written)
        return tuple(waits)

    @cached_property
    def dependents(self) -> tuple[tuple[int, ...], ...]:
        """For each op, the later ops that wait for it."""
        after: list[list[int]] = [[] for _ in self.ops]
        for index, before in enumerate(self.dependencies):
            for earlier in before:
                after[earlier].append(index)
        return tuple(map(tuple, after))

    @cached_property
    def attention(self) -> dict[str, str]:
        """The form of each layer's attention: `flash`, `efficient`, `math`, `eager` (written out), as `ir.attention` says."""
        from trainyard.ir.attention import attention_forms

        return attention_forms(self)

    def lifetimes(self, task_of_op: Mapping[int, int]) -> tuple[list[int], list[int], list[int]]:
        """Of every tensor that is not resident: the task that produces it, the task of its last user, its bytes."""
        first, last, sizes = [], [], []
        for users, size in self.transients:
            if size and users[0] in task_of_op:
                first.append(task_of_op[users[0]])
                last.append(max(task_of_op.get(user, 0) for user in users))
                sizes.append(size)
        return first, last, sizes

    @cached_property
    def transients(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """For each tensor that is allocated within the step: the ops that write or read it, the producer first, and its bytes."""
        users: dict[int, dict[int, None]] = {}
        owner = self.bases.__getitem__
        for index, op in enumerate(self.ops):
            for base in map(owner, op.outputs):
                if not self.tensors[base].role.resident:
                    users.setdefault(base, {})[index] = None
            for base in map(owner, op.inputs):
                if base in users:
                    users[base][index] = None
        return tuple((tuple(ops), self.tensors[base].bytes) for base, ops in users.items() if not self._inside_a_kernel(ops))

    def _inside_a_kernel(self, ops: Iterable[int]) -> bool:
        """Whether all users of a tensor are one fused kernel, so that it never leaves the chip."""
        kernels = {self.ops[index].fused for index in ops}
        return len(kernels) == 1 and None not in kernels and len(tuple(ops)) > 1

    @cached_property
    def resident_bytes(self) -> int:
        """Parameters, optimizer state, buffers and the batch. A new version of a tensor is a view of the old one."""
        return sum(spec.bytes for spec in self.tensors if spec.view_of is None and spec.role.resident)

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """Layer paths in the order of their first op."""
        return tuple(dict.fromkeys(op.layer for op in self.ops))

    @cached_property
    def digest(self) -> str:
        """Content hash of what is computed. `source`, where it came from, does not count: a rebatched step and a fresh capture at
        that batch have one digest."""
        from trainyard.ir.serial import to_json

        return hashlib.sha256(to_json(replace(self, source="")).encode()).hexdigest()

    def of(self, layer: str) -> tuple[Op, ...]:
        """The ops of a layer and of the layers below it."""
        return tuple(op for op in self.ops if op.layer == layer or op.layer.startswith(f"{layer}."))

    def only(self, *phases: Phase) -> Step:
        """The step with the ops of these phases only (inference is `only(Phase.FORWARD)`)."""
        return replace(self, ops=tuple(op for op in self.ops if op.phase in phases))

    def rebatch(self, batch: int) -> Step:
        """The step with another batch size; needs no torch."""
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise BadInput(f"batch must be a positive whole number, got {quoted(batch)}")
        if batch > LARGEST_COUNT:
            raise TooLarge(f"batch must be at most 2**53, got {quoted(batch)}")
        if batch == self.batch:
            return self
        if not self.rebatchable:
            raise BadInput(
                f"step {self.name!r} was captured at one batch size only ({self.batch}) and cannot be rebatched: "
                f"capture it with batch={batch}"
            )
        return _rebatched(self, batch)

    def to_json(self) -> str:
        from trainyard.ir.serial import to_json

        return to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Step:
        from trainyard.ir.serial import from_json

        return from_json(text)


@per_step
def _rebatched(step: Step, batch: int) -> Step:
    """The same object for the same step and batch, so that what is known of it is found again."""
    change = batch - step.batch
    ops, tensors = joined(step.ops, step.tensors)
    tensors = tuple(
        replace(t, shape=tuple(d + s * change for d, s in zip(t.shape, t.slope, strict=True))) if t.slope else t for t in tensors
    )
    ops, tensors = divided([op.rebatch(change) for op in ops], tensors)
    return replace(step, batch=batch, tensors=tensors, ops=ops)


# ---- which tensor stands where in a product
# A mask lies under (layer, call, letter). A layer that multiplies several operands of one letter in one call (an unrolled LSTM) has
# none under that key; where masks know such an operand by itself, it is named by its tensor in the step: `A#43`.
CONVOLUTION_LETTERS: dict[str, tuple[Letter, Letter]] = {"forward": ("A", "W"), "grad_input": ("G", "W"), "grad_weight": ("A", "G")}
"""Letters of the operands a and b of each product of a convolution."""


def operand_order(step: Step, op: Op) -> tuple[int, int]:
    """The positions, among an op's inputs, of operands a and b of the lowered product.

    A captured weight gradient reads (dY, X), its product is X times dY. The sizes decide, or the letters where sizes are equal.
    """
    body = op.body
    if not isinstance(body, Convolution) or body.product != "grad_weight":
        return 0, 1
    if len(op.inputs) > 1 and body.input_elements != body.output_elements:
        first, second = (step.tensors[t].elements for t in op.inputs[:2])
        return (1, 0) if first != body.input_elements and second == body.input_elements else (0, 1)
    return (1, 0) if op.letters[:2] == ("G", "A") else (0, 1)


def letter_of(step: Step, op: Op, side: int) -> Letter:
    """The letter of operand a (side 0) or b (1) of the lowered product; by geometry for a convolution without letters."""
    if isinstance(op.body, Convolution) and not op.letters:
        return CONVOLUTION_LETTERS[op.body.product][side]
    position = operand_order(step, op)[side]
    return op.letters[position] if len(op.letters) > position else ""


def tensor_of(step: Step, op: Op, side: int) -> int | None:
    """The tensor of an operand, or its base tensor if it is a view of all elements (transposed, reshaped); None if unknown."""
    position = operand_order(step, op)[side]
    if len(op.inputs) <= position:
        return None
    tensor = op.inputs[position]
    base = step.base(tensor)
    return base if step.tensors[base].elements == step.tensors[tensor].elements else tensor


def tensor_letter(step: Step, op: Op, side: int) -> str:
    """The letter of the mask of this operand's own tensor (`A#43`); '' where the step does not name its tensors."""
    tensor = tensor_of(step, op, side)
    return "" if tensor is None else f"{letter_of(step, op, side)}#{tensor}"


def matrix_extent(body: MatMul, side: int) -> tuple[int, int]:
    """Rows and columns of one operand of a matrix product."""
    return (body.M, body.K) if side == 0 else (body.K, body.N)


def is_transposed(step: Step, op: Op, side: int, letter: str, extent: tuple[int, int]) -> bool:
    """Whether an operand of a matrix product, `extent` rows and columns, is the transpose of its tensor (rows by last dimension).

    The rows of A and G are samples: M or N of the product, or K where a weight gradient sums over them. The shape of the parameter
    decides for W.
    """
    if letter != "W":
        return (side == 0) == (op.phase is Phase.GRAD_WEIGHT)
    shape = step.tensors[step.base(op.inputs[side])].shape if len(op.inputs) > side else ()
    for matrix in (shape[-2:], (*shape[:1], math.prod(shape[1:]))):  # one weight for each product, or a flattened weight
        if matrix[0:1] != matrix[1:2] and matrix in (extent, extent[::-1]):
            return matrix != extent
    return (side == 1) != op.phase.backward  # nn.Linear stores W as (out, in)


def operand_shape(step: Step, op: Op, side: int) -> tuple[int, ...]:
    """The shape of an operand's tensor: NC... or OI... for a convolution, (rows, features) for a matrix product."""
    body = op.body
    if isinstance(body, Convolution):
        letter = CONVOLUTION_LETTERS[body.product][side]
        if letter == "W":
            return (body.out_channels, body.in_channels // body.groups, *body.kernel)
        return (body.batch, body.in_channels, *body.size) if letter == "A" else (body.batch, body.out_channels, *body.out_size)
    assert isinstance(body, MatMul)
    extent = matrix_extent(body, side)
    rows, columns = extent[::-1] if is_transposed(step, op, side, letter_of(step, op, side), extent) else extent
    if body.count > 1 and len(op.inputs) > side and step.tensors[op.inputs[side]].elements == rows * columns:
        return rows, columns  # one matrix for all products
    return body.count * rows, columns
