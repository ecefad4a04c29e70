"""From the Works of a step to what they ask for.

Equal demands cost the same on one device, so a step's layers are costed once for each distinct one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainyard.caches import ByIdentity, per_step
from trainyard.errors import NotModelled
from trainyard.ir import (
    DTYPE_BYTES,
    Collective,
    Convolution,
    Copy,
    ElementWise,
    Gather,
    MatMul,
    Op,
    Phase,
    ProductBody,
    Reduction,
    Step,
    Update,
    Work,
)
from trainyard.mapping.constraints import UNCONSTRAINED
from trainyard.mapping.demand import (
    NOTHING_KEPT,
    AccessLog,
    ChainDemand,
    Demand,
    FusedDemand,
    KeptDemand,
    Move,
    NoDemand,
    OnChip,
    PairDemand,
    PlainDemand,
    Policy,
    ProductDemand,
    SlicedDemand,
    Slices,
    StreamDemand,
    TensorBytes,
    TogetherDemand,
)
from trainyard.mapping.gradient_order.works import is_chain, join_works, joinable_links, split_layers
from trainyard.mapping.halo import Halo, halo_of
from trainyard.mapping.lowering import Lowered, lower, operand_order
from trainyard.mapping.precision import Precision
from trainyard.mapping.tiling import Problem
from trainyard.mapping.works import Fusion, group, readers, same_output_gradient, separate_products
from trainyard.masks.dma import Densities

if TYPE_CHECKING:
    from trainyard.mapping.bands import Band

BY_LETTER = {"A": "X", "W": "W", "G": "dY"}
RESULT = {Phase.GRAD_INPUT: "dX", Phase.GRAD_WEIGHT: "dW"}
BY_ROLE = {"parameter": "W", "gradient": "dY", "parameter_gradient": "dW"}
RAW: Densities = {}
"""Nothing is known of zeros, or nothing made of them."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The demands of a whole step: distinct ones, and which one each Work has."""

    demands: tuple[Demand, ...]
    number: Mapping[tuple[int, ...], int]


def profile(step: Step, policy: Policy, zeros: Densities = RAW, by_work: bool = False) -> Profile:
    """Every Work's demand; collectives are left to a system and have none. `zeros` is what a compressing DMA engine knows of.

    With `by_work` every Work with a product has a demand of its own, even where it equals another's: their zeros may differ.
    """
    return _profile(step, policy, ByIdentity(zeros or RAW), by_work)


@per_step
def _profile(step: Step, policy: Policy, zeros: ByIdentity[Densities], by_work: bool) -> Profile:
    distinct: dict[Demand, int] = {}
    demands: list[Demand] = []
    number: dict[tuple[int, ...], int] = {}
    for work in works(step, policy):
        if isinstance(step.ops[work.ops[0]].body, Collective):
            continue
        asked = demand(step, work, policy, zeros.value)
        own = by_work and any(step.ops[index].is_product for index in work.ops)
        number[work.ops] = len(demands) if own else distinct.setdefault(asked, len(demands))
        if number[work.ops] == len(demands):
            demands.append(asked)
    return Profile(tuple(demands), number)


def works(step: Step, policy: Policy) -> tuple[Work, ...]:
    """Where only products count, nothing is fused onto them."""
    fusion: Fusion = policy.fusion if policy.scope == "all" else "none"
    grouped = group(step, fusion, policy.together, policy.grad_input if policy.paired else None)
    if not policy.across:
        return grouped
    return join_works(
        step, grouped, (members for link, members in joinable_links(step, grouped).items() if link.head in policy.across)
    )


def demand(step: Step, work: Work, policy: Policy, zeros: Densities = RAW) -> Demand:
    """What a Work asks for, less what the policy's residency keeps on chip."""
    on_chip = policy.residency and policy.residency.by_work.get(work.ops)
    if not on_chip:
        return plain_demand(step, work, policy, zeros)
    if isinstance(on_chip, Slices):
        parts = ((times, _kept(on_chip.step, work, policy, zeros, part, band)) for times, part, band in on_chip.parts)
        return SlicedDemand(parts=tuple(parts))
    return _kept(step, work, policy, zeros, on_chip)


def _kept(step: Step, work: Work, policy: Policy, zeros: Densities, on_chip: OnChip, band: Band | None = None) -> KeptDemand:
    inner = plain_demand(step, work, policy, zeros, on_chip, band=band)
    return KeptDemand(inner=inner, occupied_bytes=on_chip.occupied_bytes)


def plain_demand(
    step: Step,
    work: Work,
    policy: Policy,
    zeros: Densities = RAW,
    on_chip: OnChip = NOTHING_KEPT,
    log: AccessLog | None = None,
    band: Band | None = None,
) -> PlainDemand:
    """`log` is filled with the bytes of each tensor that crosses between DRAM and scratchpad once; `band` are the rows of images
    that a Work of convolutions takes, all without one."""
    ops = [step.ops[index] for index in work.ops]
    if work.grouping == "concurrent" and step.ops[work.ops[0]].is_product:
        return TogetherDemand(products=_products(step, work, policy, zeros, on_chip, log))
    if work.grouping == "gradient_pair" and is_chain(step, work):
        return _chain(step, work, policy, zeros)
    if work.grouping == "gradient_pair" and step.ops[work.ops[0]].is_product:
        dx, dw = _products(step, work, policy, zeros, on_chip, log)
        return PairDemand(dx=dx, dw=dw)
    if work.grouping not in ("single", "chain"):
        raise NotModelled(f"{work.grouping} of {', '.join(op.name for op in ops)}: this device does works one by one")
    for op in ops:
        if isinstance(op.body, Collective) and op.body.ranks > 1:
            raise NotModelled(
                f"op {op.name!r} does {op.body.kind} between {op.body.ranks} ranks, a single device has no links: "
                "run the step on a system of several devices"
            )
    if all(isinstance(op.body, Collective) for op in ops):
        return NoDemand(ops=len(ops), why="alone")
    if policy.scope == "products" and not any(op.is_product for op in ops):
        return NoDemand(ops=len(ops), why="scope")
    plain = not zeros and on_chip == NOTHING_KEPT and log is None and band is None
    streams = _known_streams(step, policy.precision) if plain and ops[0].fused is None and not ops[0].is_product else {}
    if (known := streams.get(work.ops[0])) is not None:
        return known
    sizes_of = TensorBytes(step, policy, zeros, on_chip, log, band=band)
    if ops[0].fused is not None:
        return _kernel(sizes_of, work, ops)
    if ops[0].is_product:
        return _product(sizes_of, work, ops)
    streams[work.ops[0]] = stream = _stream(sizes_of, work.ops[0])
    return stream


@per_step
def _known_streams(step: Step, precision: str | Precision | None) -> dict[int, StreamDemand]:
    """Streams of a step by their ops, as far as they were asked for: of all policies with one precision, where nothing is kept on
    chip or compressed."""
    return {}


def _products(
    step: Step, work: Work, policy: Policy, zeros: Densities, on_chip: OnChip, log: AccessLog | None
) -> tuple[ProductDemand, ...]:
    """What each product of a Work would ask for alone: what two of them share (dY) is in both, unless the first one keeps it."""
    demands: list[PlainDemand] = []
    for part in separate_products(step, work):
        demands.append(plain_demand(step, part, policy, zeros, on_chip, log))
        on_chip = on_chip.behind({step.base(t) for index in part.ops for t in step.ops[index].inputs})
    products = tuple(demand_ for demand_ in demands if isinstance(demand_, ProductDemand))
    heads = [step.ops[part.ops[0]] for part in separate_products(step, work)]
    paired = work.grouping != "gradient_pair" or (
        len(heads) == 2 and same_output_gradient(step, heads[0], heads[1], policy.grad_input)
    )
    if len(products) < len(demands) or not paired:
        names = ", ".join(step.ops[index].name for index in work.ops)
        raise NotModelled(f"{work.grouping} of {names}: only products are done together, and dX with its own dW")
    return products


def _chain(step: Step, work: Work, policy: Policy, zeros: Densities) -> ChainDemand:
    """What stays on chip: the upper dX as the lower layer reads it, and of the upper X what a mask on the way reads."""
    members, sizes_of = split_layers(step, work), TensorBytes(step, policy, zeros)
    upper, lower, *beside = (plain_demand(step, member, policy, zeros) for member in members)
    assert isinstance(upper, PairDemand)
    assert isinstance(lower, PairDemand | ProductDemand)
    dx, dw = separate_products(step, members[0])
    ops = [step.ops[index] for index in dx.ops]
    weights = step.ops[dw.ops[0]]
    stays = {step.base(ops[-1].outputs[0])}
    mask = {step.base(weights.inputs[weights.letters.index("A")])} & {step.base(t) for op in ops[1:] for t in op.inputs}
    result = sizes_of.move(dx.ops[0], ops[0].outputs[0], "write", sizes_of.bytes(ops[0].outputs[0]))._replace(label="dX")
    return ChainDemand(
        upper=upper,
        lower=lower,
        beside=tuple(one for one in beside if isinstance(one, StreamDemand | NoDemand)),
        between=_drained(sizes_of, dx, ops, result, stays | mask),
        left=tuple(
            _stream(sizes_of, member.ops[0], stays) if isinstance(one, StreamDemand) else StreamDemand(moves=())
            for member, one in zip(members[2:], beside, strict=True)
        ),
        masked=bool(mask),
    )


def _product(sizes_of: TensorBytes, work: Work, ops: list[Op]) -> ProductDemand:
    head, policy = ops[0], sizes_of.policy
    body = sizes_of.op(work.ops[0]).body
    assert isinstance(body, MatMul | Convolution)
    lowered = lower(body, policy.grad_input)
    first, second = _operands(sizes_of, head)
    result = head.outputs[0] if head.outputs else None
    sizes = tuple(DTYPE_BYTES[sizes_of.dtype(tensor)] for tensor in (first, second, result))
    packed = policy.rates.of(sizes_of.dtype(first), sizes_of.dtype(second))
    raw = policy.im2col == "raw"
    tensors = ((lowered.a, first), (lowered.b, second), (lowered.out, result))
    a, b, out = ((sizes_of.within(tensor, side.elements) if raw else side.matrix) for side, tensor in tensors)
    labels = _labels(sizes_of, head, lowered, (first, second))
    sums = out * sizes[2]
    a_bytes, a_sram, a_stays = sizes_of.operand(work.ops[0], first, a * sizes[0], not raw and a != lowered.a.elements)
    sizes_of = sizes_of.behind(first)
    b_bytes, b_sram, b_stays = sizes_of.operand(work.ops[0], second, b * sizes[1], not raw and b != lowered.b.elements)
    sizes_of = sizes_of.behind(second)
    leaves = Move(labels[2], "write", sizes_of.moved(work.ops[0], result, "write", sums), sums)
    if result is not None and not raw and out != lowered.out.elements:
        sizes_of.note(sizes_of.step.base(result), "elsewhere", sums)
    drained = _drained(sizes_of, work, ops, leaves)
    out_bytes = sum(move.size for moves in drained for move in moves)
    sum_bytes = min(out, lowered.out.matrix) * max(policy.accumulator_bytes, sizes[2])  # no sums where no window reaches
    constraint = policy.mapping.of(head.layer or head.name, head.phase.value) if policy.mapping else UNCONSTRAINED
    sum_bytes = 0 if _sums_stay(sizes_of, ops, sum_bytes) else sum_bytes
    return ProductDemand(
        problem=Problem(
            op=_packed(lowered.product, packed),
            a_bytes=a_bytes,
            b_bytes=b_bytes,
            a_sram_bytes=a_sram,
            b_sram_bytes=b_sram,
            out_bytes=out_bytes,
            sum_bytes=sum_bytes,
            halo=_halo(body, policy, packed, a_stays is not None, 2 * sum_bytes / out_bytes if out_bytes else 0.0),
            tile=constraint.tile,
            orders=constraint.orders,
            keep=constraint.keep,
            element_bytes=(sizes[0] * packed, sizes[1] * packed),
        ),
        labels=labels,
        element_bytes=(sizes[0] * packed, sizes[1] * packed, sizes[2]),
        drained=drained,
        number=max(sizes_of.dtype(first), sizes_of.dtype(second), key=DTYPE_BYTES.__getitem__),
        packed=packed,
        grad_input=policy.grad_input,
        vector_operations=sum(_operations(sizes_of.op(index)) for index in work.ops[1:]),
        loaded_bytes=(a_stays, b_stays),
        gradient_orders=constraint.gradient_orders,
    )


def _sums_stay(sizes_of: TensorBytes, ops: list[Op], sum_bytes: int) -> bool:
    """Whether unfinished sums fit where the result is kept: then they need no room as tiles, and are never spilled."""
    kept = sizes_of.on_chip.results
    return bool(kept) and any(
        sizes_of.step.base(t) in kept and sizes_of.bytes(t) >= sum_bytes for op in ops for t in op.outputs[:1]
    )  # fmt: skip


def _halo(body: ProductBody, policy: Policy, packed: int, a_stays: bool, weight: float) -> Halo | None:
    """What tiles of a convolution share where no line buffer keeps it. A sum to which two tiles add is written unfinished and read
    again: `weight` is that in units of its finished bytes."""
    if policy.line_buffer or policy.im2col != "raw" or not isinstance(body, Convolution):
        return None
    halo = halo_of(body, policy.grad_input, packed)
    if halo is None or (a_stays and halo.operand == "a"):
        return None
    return replace(halo, weight=weight) if halo.operand == "out" else halo


def _packed(product: MatMul, rate: int) -> MatMul:
    """With so many neighbours of the reduction in one place."""
    return product if rate == 1 else replace(product, K=-(-product.K // rate))


def _operands(sizes_of: TensorBytes, op: Op) -> tuple[int | None, int | None]:
    """The tensors behind A and B of the lowered product."""
    inputs = (*op.inputs[:2], None, None)
    first, second = operand_order(sizes_of.step, op)
    return inputs[first], inputs[second]


def _labels(sizes_of: TensorBytes, op: Op, lowered: Lowered, operands: tuple[int | None, int | None]) -> tuple[str, str, str]:
    """X, W, dY by the letters of a layer; by their roles where a product belongs to none (attention)."""
    if not op.inputs:
        return lowered.a.label, lowered.b.label, lowered.out.label
    letters = dict(zip(op.inputs, op.letters, strict=False))

    def label(tensor: int | None, other: str) -> str:
        if tensor is None:
            return other
        return BY_LETTER.get(letters.get(tensor, "")) or BY_ROLE.get(sizes_of.role(tensor), "X")

    return label(operands[0], lowered.a.label), label(operands[1], lowered.b.label), RESULT.get(op.phase, "Y")


def _drained(
    sizes_of: TensorBytes, work: Work, ops: list[Op], result: Move, stays: Collection[int] = ()
) -> tuple[tuple[Move, ...], ...]:
    """What moves with the finished sums, for each op of the chain; what only the chain itself reads, and `stays`, is on chip."""
    step, inside = sizes_of.step, set(work.ops)
    per_op: list[tuple[Move, ...]] = []
    produced: set[int] = set()
    for position, (index, op) in enumerate(zip(work.ops, ops, strict=True)):
        reads = op.inputs if position else op.inputs[2:]  # a product's further inputs are added to it
        outside = tuple(t for t in reads if step.base(t) not in produced and step.base(t) not in stays)
        moves = list(sizes_of.moves(index, outside, "read").values())
        sizes_of = sizes_of.behind(*outside)
        last = position == len(ops) - 1
        outputs = {step.base(t): t for t in op.outputs}
        for base, tensor in outputs.items():
            if base in stays:
                continue
            if last or (position and base not in map(step.base, op.outputs[:1])) or _needed_outside(step, base, index, inside):
                written = sizes_of.move(index, base, "write", sizes_of.bytes(tensor))
                if position or not written.on_chip:  # the array itself puts sums into the scratchpad
                    moves.append(written if position else result)
                if base in sizes_of.on_chip.added:
                    moves.append(written._replace(direction="read"))
        if not op.outputs and position == 0:
            moves.append(result)
        produced.update(outputs)
        per_op.append(tuple(moves))
    return tuple(per_op)


def _needed_outside(step: Step, base: int, index: int, inside: set[int]) -> bool:
    """Whether an op outside the chain reads this version of a tensor: before the chain writes over it, or ever."""
    until = min((other for other in inside if other > index and base in map(step.base, step.ops[other].outputs)), default=None)
    users = readers(step).get(base, ())
    return any(reader > index and reader not in inside and (until is None or reader < until) for reader in users)


def _operations(op: Op) -> int:
    body = op.body
    match body:
        case ElementWise() | Update():
            return body.elements * body.operations
        case Reduction():
            return body.elements * body.passes
        case Gather():
            return body.rows * body.width if body.scatter else 0
        case _:
            return 0


def _gathered(sizes_of: TensorBytes, index: int, body: Gather) -> tuple[Move, ...]:
    """Only the rows that are named cross, not the table, and as they are; a scatter reads them, adds, and writes them back."""
    op = sizes_of.step.ops[index]
    source = sizes_of.dtype(op.inputs[0]) if op.inputs else sizes_of.dtype(None)
    rows = body.rows * body.width * DTYPE_BYTES[source]
    table = sizes_of.role(op.outputs[0] if body.scatter else op.inputs[0]) if op.inputs and op.outputs else "activation"
    picked = "gradient" if body.scatter and not op.inputs else (sizes_of.role(op.inputs[0]) if body.scatter else "activation")
    others = tuple(sizes_of.moves(index, op.inputs[1:], "read").values())
    first, result = (tensors[0] if tensors else None for tensors in (op.inputs, op.outputs))
    if body.scatter:
        return (
            sizes_of.rows(index, first, picked, "read", rows),
            sizes_of.rows(index, result, table, "read", rows),
            sizes_of.rows(index, result, table, "write", rows),
            *others,
        )
    written = sizes_of.role(op.outputs[0]) if op.outputs else "activation"
    return (sizes_of.rows(index, first, table, "read", rows), sizes_of.rows(index, result, written, "write", rows), *others)


def _stream(sizes_of: TensorBytes, index: int, stays: Collection[int] = ()) -> StreamDemand:
    """`stays` is on chip already."""
    op = sizes_of.op(index)
    body = op.body
    operations = _operations(op)
    if isinstance(body, Gather):
        return StreamDemand(moves=_gathered(sizes_of, index, body), vector_operations=operations)
    reads = [move for base, move in sizes_of.moves(index, op.inputs, "read").items() if base not in stays]
    sums = tuple(t for t in op.outputs if sizes_of.step.base(t) in sizes_of.on_chip.added)
    reads += sizes_of.moves(index, sums, "read").values()
    writes = list(sizes_of.moves(index, op.outputs, "write").values())
    if not reads and not writes:  # a step without tensors: the body's own sizes
        assert isinstance(body, ElementWise | Reduction | Copy | Update)
        size = DTYPE_BYTES[sizes_of.dtype(None)]
        left = body.results if isinstance(body, Reduction) else body.elements
        reads = [Move("activation", "read", body.elements * size, body.elements * size)]
        writes = [Move("activation", "write", left * size, left * size)]
    again, row = None, 0
    if isinstance(body, Reduction) and body.passes > 1 and reads and not _largest_stays(sizes_of, op):
        largest, more = max(reads, key=lambda move: move.held), body.passes - 1
        again, row = largest._replace(size=largest.size * more, held=largest.held * more), largest.held // _rows(sizes_of, op, body)
    return StreamDemand(moves=(*reads, *writes), vector_operations=operations, again=again, row_bytes=row)


def _largest_stays(sizes_of: TensorBytes, op: Op) -> bool:
    """Whether what a reduction reads several times is kept on chip as a whole."""
    return bool(op.inputs) and sizes_of.stays(max(op.inputs, key=sizes_of.bytes))


def _rows(sizes_of: TensorBytes, op: Op, body: Reduction) -> int:
    """How many parts of the data are reduced apart, so that each can stay on chip between passes; 1 where it is not known."""
    shape = sizes_of.step.tensors[op.inputs[0]].shape if op.inputs else ()
    if len(shape) < 2:
        return 1
    if any(word in body.function for word in ("softmax", "layer_norm", "rms_norm")):
        return max(1, sizes_of.step.tensors[op.inputs[0]].elements // max(1, shape[-1]))
    return max(1, shape[1]) if "batch_norm" in body.function else 1


def _kernel(sizes_of: TensorBytes, work: Work, ops: list[Op]) -> FusedDemand:
    """Outside tensors go through once; what products share between their rows (their second operand) may come again."""
    step, inside = sizes_of.step, set(work.ops)
    produced = {step.base(t) for op in ops for t in op.outputs}
    outside: dict[int, int] = {}  # tensors and their first readers
    repeated: dict[int, int] = {}
    moves: list[Move] = []
    for index, op in zip(work.ops, ops, strict=True):
        if isinstance(op.body, Gather):
            moves.extend(move for move in _gathered(sizes_of.reads_only(), index, op.body) if move.direction == "read")
            continue
        for tensor in op.inputs:
            if step.base(tensor) not in produced:
                outside.setdefault(tensor, index)
        if op.is_product and op.inputs[1:2] and step.base(op.inputs[1]) not in produced and not sizes_of.stays(op.inputs[1]):
            repeated.setdefault(op.inputs[1], index)
    written = {
        step.base(t): sizes_of.move(index, step.base(t), "write", sizes_of.bytes(t))
        for index, op in zip(work.ops, ops, strict=True)
        for t in op.outputs
        if _needed_outside(step, step.base(t), index, inside) or not readers(step).get(step.base(t))
    }
    moves.extend((*_read_once(sizes_of, outside), *written.values()))
    products = tuple(lower(op.body).product if isinstance(op.body, MatMul | Convolution) else None for op in ops)
    items = max((product.count for product in products if product is not None), default=1)
    scores = [op for op in ops if op.is_product]
    number = sizes_of.dtype(scores[0].inputs[0] if scores and scores[0].inputs else None)
    packed = sizes_of.policy.rates.of(number)
    return FusedDemand(
        products=tuple(None if product is None else _packed(product, packed) for product in products),
        packed=packed,
        moves=tuple(moves),
        again=_read_once(replace(sizes_of, log=None), repeated),
        item_bytes=sum(move.held for move in moves if not move.on_chip) // items,
        vector_operations=tuple(_operations(op) if sizes_of.policy.scope == "all" else 0 for op in ops),
        number=number,
    )


def _read_once(sizes_of: TensorBytes, first_readers: Mapping[int, int]) -> tuple[Move, ...]:
    """One move for each memory that a kernel reads: its views (Q, K and V of one projection) are different parts of it."""
    views: dict[int, list[int]] = {}
    for tensor in first_readers:
        views.setdefault(sizes_of.step.base(tensor), []).append(tensor)
    return tuple(
        move for tensors in views.values() for move in sizes_of.moves(first_readers[tensors[0]], tuple(tensors), "read").values()
    )
