"""The bodies of ops: the kind of computation and its dimensions.

A body has no layer, tensors or hardware; equal bodies cost the same, so that identical layers are simulated once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal

from trainyard.checks import LARGEST_COUNT
from trainyard.errors import BadInput, TooLarge, quoted

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

ProductOf = Literal["forward", "grad_input", "grad_weight"]


def _positive(owner: str, **sizes: object) -> None:
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size <= 0:
            raise BadInput(f"{owner}: {name} must be a positive whole number, got {quoted(size)}")
        if size > LARGEST_COUNT:
            raise TooLarge(f"{owner}: {name} must be at most 2**53, got {quoted(size)}")


@dataclass(frozen=True, slots=True)
class MatMul:
    """(M,K) x (K,N) -> (M,N), `count` times with different operands (batched products, groups, heads).

    >>> MatMul(4, 2, 3).macs, MatMul(4, 2, 3, count=8).macs
    (24, 192)
    """

    M: int
    N: int
    K: int
    count: int = 1

    def __post_init__(self) -> None:
        _positive("MatMul", M=self.M, N=self.N, K=self.K, count=self.count)

    @property
    def macs(self) -> int:
        return self.M * self.N * self.K * self.count

    def transposed(self) -> MatMul:
        """The same product written as (N,K) x (K,M)."""
        return MatMul(self.N, self.M, self.K, self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """One of the three products of a convolution Y[batch,out,*out_size] = X[batch,in,*size] * W[out,in/groups,*kernel].

    `product` is forward (Y), grad_input (dX from dY and W) or grad_weight (dW from X and dY). The geometry is always that of the
    forward product. A transposed convolution is the grad_input of the convolution that it transposes.

    >>> Convolution(batch=1, in_channels=3, out_channels=64, size=(224, 224), kernel=(7, 7), stride=(2, 2), padding=(3, 3)).out_size
    (112, 112)
    """

    batch: int
    in_channels: int
    out_channels: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    product: ProductOf = "forward"

    def __post_init__(self) -> None:
        rank = len(self.size)
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1)):
            if not getattr(self, name):
                object.__setattr__(self, name, (default,) * rank)
        _positive(
            "Convolution",
            batch=self.batch,
            in_channels=self.in_channels,
            out_channels=self.out_channels,
            groups=self.groups,
        )
        for name in ("size", "kernel", "stride", "dilation"):
            values = getattr(self, name)
            if len(values) != rank:
                raise BadInput(f"Convolution: {name} has {len(values)} numbers for {rank} spatial dimensions")
            _positive("Convolution", **{f"{name}[{i}]": value for i, value in enumerate(values)})
        if len(self.padding) != rank or any(not isinstance(p, int) or not 0 <= p <= LARGEST_COUNT for p in self.padding):
            raise BadInput(f"Convolution: padding must be {rank} whole numbers of at least 0, got {quoted(self.padding)}")
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise BadInput(
                f"Convolution: groups={self.groups} divides neither side of {self.in_channels} -> {self.out_channels} channels"
            )
        if any(extent < 1 for extent in self.out_size):
            raise BadInput(f"Convolution: kernel {self.kernel} does not fit the input {self.size} (output {self.out_size})")

    @property
    def out_size(self) -> tuple[int, ...]:
        return tuple(
            (extent + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
            for extent, kernel, stride, pad, dilation in zip(
                self.size, self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        )

    @property
    def macs(self) -> int:
        """Equal for all three products; padded positions count, as is usual."""
        per_output = self.in_channels // self.groups * math.prod(self.kernel)
        return self.batch * self.out_channels * math.prod(self.out_size) * per_output

    @property
    def input_elements(self) -> int:
        return self.batch * self.in_channels * math.prod(self.size)

    @property
    def output_elements(self) -> int:
        return self.batch * self.out_channels * math.prod(self.out_size)

    @property
    def weight_elements(self) -> int:
        return self.out_channels * (self.in_channels // self.groups) * math.prod(self.kernel)

    def as_product(self, product: ProductOf) -> Convolution:
        return replace(self, product=product)


@dataclass(frozen=True, slots=True)
class ElementWise:
    """`operations` arithmetic operations on each of `elements` results."""

    function: str
    elements: int
    operations: int = 1

    def __post_init__(self) -> None:
        _positive(f"ElementWise {self.function}", elements=self.elements)


@dataclass(frozen=True, slots=True)
class Reduction:
    """`elements` inputs reduced to `results` (normalisation, softmax, pooling, loss, bias gradient); `passes` over the data."""

    function: str
    elements: int
    results: int
    passes: int = 1

    def __post_init__(self) -> None:
        _positive(f"Reduction {self.function}", elements=self.elements, results=self.results, passes=self.passes)


@dataclass(frozen=True, slots=True)
class Gather:
    """`rows` rows of `width` elements picked from a table of `table_rows` (embedding), or added into it (`scatter`)."""

    rows: int
    width: int
    table_rows: int
    scatter: bool = False

    def __post_init__(self) -> None:
        _positive("Gather", rows=self.rows, width=self.width, table_rows=self.table_rows)


@dataclass(frozen=True, slots=True)
class Copy:
    """`elements` moved without arithmetic: layout changes, concatenation, fills, host to device."""

    function: str
    elements: int

    def __post_init__(self) -> None:
        _positive(f"Copy {self.function}", elements=self.elements)


@dataclass(frozen=True, slots=True)
class Update:
    """One optimizer step of one parameter tensor; its reads and writes are the op's tensors."""

    optimizer: str
    elements: int
    operations: int = 1

    def __post_init__(self) -> None:
        _positive(f"Update {self.optimizer}", elements=self.elements)


CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "reduce", "send", "receive"]


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective between `ranks` workers; `elements` is the size of the complete (gathered or reduced) tensor.

    `group` is `world`, or the ranks that take part together with rank 0.

    >>> Collective("all_gather", 64, ranks=4).members, Collective("all_gather", 64, ranks=2, group="0,4").members
    ((0, 1, 2, 3), (0, 4))
    """

    kind: CollectiveKind
    elements: int
    ranks: int
    group: str = "world"

    def __post_init__(self) -> None:
        _positive(f"Collective {self.kind}", elements=self.elements, ranks=self.ranks)

    @property
    def members(self) -> tuple[int, ...]:
        if self.group == "world":
            return tuple(range(self.ranks))
        ranks = tuple(int(rank) for rank in self.group.split(",") if rank.isdecimal())
        if len(ranks) != self.ranks or ranks != tuple(sorted(set(ranks))):
            raise BadInput(
                f"Collective {self.kind}: group {self.group!r} does not name its {self.ranks} ranks in order (such as '0,2,4,6'): "
                "capture the step again"
            )
        return ranks


ProductBody = MatMul | Convolution
Body = MatMul | Convolution | ElementWise | Reduction | Gather | Copy | Update | Collective
BODIES: dict[str, type[Body]] = {
    kind.__name__: kind for kind in (MatMul, Convolution, ElementWise, Reduction, Gather, Copy, Update, Collective)
}


def dimensions(body: Body) -> tuple[int, ...]:
    """All integers of a body in field order: the numbers that may grow with the batch.

    >>> dimensions(MatMul(4, 2, 3))
    (4, 2, 3, 1)
    """
    numbers: list[int] = []
    for field in fields(body):
        value = getattr(body, field.name)
        if isinstance(value, tuple):
            numbers.extend(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            numbers.append(value)
    return tuple(numbers)


def with_dimensions(body: Body, numbers: tuple[int, ...]) -> Body:
    """The body with other dimensions; the inverse of `dimensions`."""
    rest = list(numbers)
    changed: dict[str, object] = {}
    for field in fields(body):
        value = getattr(body, field.name)
        if isinstance(value, tuple):
            changed[field.name] = tuple(rest[: len(value)])
            del rest[: len(value)]
        elif isinstance(value, int) and not isinstance(value, bool):
            changed[field.name] = rest.pop(0)
    if rest:
        raise BadInput(f"{type(body).__name__} has {len(dimensions(body))} dimensions, got {len(numbers)}")
    return replace(body, **changed)  # type: ignore[arg-type]  # the fields are those of `body` itself


# Where the windows of a convolution look, one axis at a time. Forward, a window at an output position reads the input at
# stride * output + dilation * tap - padding. Backward, an input position is read by those outputs for which that equation has an
# integer solution; between them stand the zeros of stride dilation.
def forward_table(body: Convolution, axis: int) -> npt.NDArray[np.int64]:
    """[output position, kernel position] -> input position along one axis, -1 in the padding.

    >>> body = Convolution(batch=1, in_channels=1, out_channels=1, size=(4,), kernel=(3,), padding=(1,), stride=(2,))
    >>> forward_table(body, 0).tolist()
    [[-1, 0, 1], [1, 2, 3]]
    """
    import numpy as np

    out, kernel = np.arange(body.out_size[axis]), np.arange(body.kernel[axis])
    position = out[:, None] * body.stride[axis] + kernel * body.dilation[axis] - body.padding[axis]
    return np.where((position >= 0) & (position < body.size[axis]), position, -1)


def backward_table(body: Convolution, axis: int) -> npt.NDArray[np.int64]:
    """[input position, kernel position] -> output position along one axis, -1 for an inserted zero.

    >>> body = Convolution(batch=1, in_channels=1, out_channels=1, size=(4,), kernel=(3,), padding=(1,), stride=(2,))
    >>> backward_table(body, 0).tolist()
    [[-1, 0, -1], [1, -1, 0], [-1, 1, -1], [-1, -1, 1]]
    """
    import numpy as np

    back = np.arange(body.size[axis])[:, None] + body.padding[axis] - np.arange(body.kernel[axis]) * body.dilation[axis]
    out, rest = np.divmod(back, body.stride[axis])
    return np.where((rest == 0) & (out >= 0) & (out < body.out_size[axis]), out, -1)
