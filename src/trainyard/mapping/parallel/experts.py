"""Expert parallelism: the experts of a mixture are spread over devices, and rows of tokens travel to their experts and back.

N. Shazeer et al.: Outrageously Large Neural Networks. ICLR 2017, Sec. 3.1; D. Lepikhin et al.: GShard. ICLR 2021.

Every device has its samples and, of everything but the experts, all weights, as under data parallelism. `ranks` neighbouring
devices share the experts: each has E / ranks of them. A tensor of rows is `local`, on the device of its tokens, or `expert`, on the
devices of the experts that its tokens chose. Grouped products (`ir.routing`, or those of a loop: `expert_loops`) work on expert
rows, and so does an op between them that reads nothing but expert rows, weights and constants; everything else works on local rows.
Where an op reads rows in the other layout, an all-to-all between the ranks brings them, once for each contents: forward tokens are
dispatched and results combined, backward gradients of results are dispatched and gradients of tokens combined. Rows that a device
has received stay there for the weights' gradients.

A device of n gets n times the rows for E / n experts: its multiply-accumulates are those of data parallelism, with fewer and larger
products. Gradients of experts are summed over their replicas (devices / ranks), all others over all devices.

The balanced routing gives every device equal rows. One device of the ranks, the busiest, has `imbalance` times as many, equally
more for each of its experts, and the others share the rest. All wait for it: it is the one whose time is simulated, and an exchange
lasts as long as its rows take. With a `capacity_factor` c a device accepts c times the mean and rows beyond that are dropped,
neither sent nor multiplied; without one no token is dropped. What is counted (MACs, energy, bytes) is the mean of all devices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from trainyard.checks import require_positive
from trainyard.errors import BadInput
from trainyard.ir import (
    Body,
    Collective,
    Copy,
    ElementWise,
    Gather,
    MatMul,
    Op,
    Reduction,
    Role,
    Routing,
    Step,
    TensorSpec,
    Update,
    assumed,
)
from trainyard.ir.routing import CUT, divided, joined
from trainyard.mapping.parallel import transform as parallel
from trainyard.mapping.parallel.data import Reduce, reduce_gradients
from trainyard.mapping.parallel.expert_loops import regrouped

Rows = Literal["local", "expert"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertParallel:
    """How a node spreads experts: over `ranks` devices (as many as share them evenly, where none is given).

    The other devices hold replicas of them.
    """

    ranks: int | None = None
    # fmt: off
    imbalance: float = assumed(1.0, "rows of the busiest device's experts over the mean", 1.25, 1.5, 2.0)
    capacity_factor: float | None = assumed(
        None, "a device takes so many times the mean of rows and drops the others; none: nothing is dropped", 1.0, 1.25, 2.0)
    # fmt: on

    def __post_init__(self) -> None:
        if self.ranks is not None:
            require_positive("ExpertParallel", ranks=self.ranks)
        for name, value, least in (("imbalance", self.imbalance, 1.0), ("capacity_factor", self.capacity_factor, 0.0)):
            if value is None and name == "capacity_factor":
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not number or value < least or value == 0:  # type: ignore[operator]  # a number
                raise BadInput(f"ExpertParallel: {name} must be {'at least 1' if least else 'above 0'}, got {value!r}")

    @property
    def load(self) -> float:
        """Rows that the busiest device multiplies, over the mean.

        >>> ExpertParallel(imbalance=1.5).load, ExpertParallel(imbalance=1.5, capacity_factor=1.25).load
        (1.5, 1.25)
        """
        return self.imbalance if self.capacity_factor is None else min(self.imbalance, self.capacity_factor)

    def mean_load(self, ranks: int) -> float:
        """Rows that a device multiplies in the mean of `ranks`, over those that were routed: less what the busiest drops.

        >>> ExpertParallel(imbalance=1.5).mean_load(8), ExpertParallel(imbalance=1.5, capacity_factor=1.0).mean_load(8)
        (1.0, 0.9375)
        """
        return self.load if self.load < 1 else 1 - (self.imbalance - self.load) / ranks


BALANCED_ON_ALL = ExpertParallel()


def rows_at(load: float, rows: int, groups: int) -> int:
    """About `load` times as many rows, equally more or fewer for each of `groups` experts.

    >>> rows_at(1.5, rows=30, groups=4), rows_at(1.0, rows=30, groups=4), rows_at(0.5, rows=30, groups=4)
    (46, 30, 18)
    """
    return max(1, rows + groups * math.ceil((load - 1) * rows / groups))


def spread(
    step: Step,
    devices: int,
    plan: ExpertParallel = BALANCED_ON_ALL,
    *,
    bucket_bytes: int = 0,
    reduce: Reduce = "once",
    device: Literal["busiest", "mean"] = "busiest",
) -> Step:
    """One device's step with its share of the batch and of the experts, and an all-to-all wherever rows change devices.

    >>> import trainyard as ty
    >>> spread(ty.zoo.load("alexnet", batch=512), devices=8)
    Traceback (most recent call last):
    trainyard.errors.BadInput: step 'alexnet' has no grouped products, so that nothing says what its experts are: write \
parallel='data', or capture a mixture with grouped_mm (transformers: experts_implementation='grouped_mm') or modules experts.0, \
experts.1
    """
    ranks = ranks_of(step, devices, plan)
    if ranks == 1:
        return parallel.data(step, devices, bucket_bytes=bucket_bytes, reduce=reduce)
    step = regrouped(step)
    if plan.imbalance > ranks:
        raise BadInput(
            f"experts: imbalance={plan.imbalance:g}, but one of {ranks} devices has at most {ranks} times the mean of rows"
        )
    own_step = step.rebatch(parallel.share(step, devices))
    spreader = _Spreader(own_step, ranks, plan.load if device == "busiest" else plan.mean_load(ranks))
    own_step = spreader.rewrite()
    return _reduced(own_step, devices, ranks, spreader.expert_gradients(), bucket_bytes, reduce)


def ranks_of(step: Step, devices: int, plan: ExpertParallel) -> int:
    """The devices that share a step's experts."""
    if devices == 1 or plan.ranks == 1:
        return 1
    if any(isinstance(op.body, Collective) for op in step.ops):
        raise BadInput(f"step {step.name!r} was captured with exchanges of its own: leave parallel='expert' out")
    counts = sorted({op.routing.groups for op in regrouped(step).ops if op.routing is not None})
    if not counts:
        raise BadInput(
            f"step {step.name!r} has no grouped products, so that nothing says what its experts are: write parallel='data', or "
            "capture a mixture with grouped_mm (transformers: experts_implementation='grouped_mm') or modules experts.0, experts.1"
        )
    even, experts = math.gcd(devices, *counts), " and ".join(map(str, counts))
    ranks = even if plan.ranks is None else plan.ranks
    if devices % ranks:
        raise BadInput(f"experts: {ranks} ranks do not divide {devices} devices: give a divisor of {devices}")
    if any(count % ranks for count in counts):
        raise BadInput(
            f"experts: {experts} experts do not divide over {ranks} devices: give experts.ranks={math.gcd(ranks, *counts)}"
        )
    if ranks == 1:
        raise BadInput(f"experts: {experts} experts do not divide over {devices} devices: give another number of devices")
    return ranks


def _reduced(step: Step, devices: int, ranks: int, of_experts: set[int], bucket_bytes: int, reduce: Reduce) -> Step:
    """The step with sums of gradients: of experts over their replicas, of all others over all devices."""
    others = {number for number, spec in enumerate(step.tensors) if spec.role is Role.PARAMETER_GRADIENT} - of_experts
    groups = [(others, devices, "world")]
    if devices > ranks:
        groups.append((of_experts, devices // ranks, ",".join(map(str, range(0, devices, ranks)))))
    for only, count, group in groups:
        ops, tensors = reduce_gradients(step, count, bucket_bytes=bucket_bytes, reduce=reduce, only=only, group=group)
        step = replace(step, ops=tuple(ops), tensors=tuple(tensors))
    return step


class _Exchanged(NamedTuple):
    """Contents of a memory in the other layout: what was exchanged, in which version, to where."""

    tensor: int
    version: int
    rows: Rows


class _Spreader:
    """Rewrites a step op by op. Tensors keep their numbers; those that exchanges make come behind."""

    def __init__(self, step: Step, ranks: int, load: float) -> None:
        self.step, self.ranks, self.load = step, ranks, load
        ops, tensors = joined(step.ops, step.tensors)
        self.whole = replace(step, ops=ops, tensors=tensors)
        self.group = ",".join(map(str, range(ranks)))
        self.ops: list[Op] = []
        self.tensors = list(tensors)
        self.base = [self.whole.base(number) for number in range(len(tensors))]
        self.pieces = self._pieces()  # weights, gradients and state of experts: their experts
        self.rows_of: dict[int, int] = {}  # memories of expert rows: their rows on the device of the tokens
        self.layout: dict[int, Rows] = {}
        self.home: dict[int, int] = {}  # where a memory's contents are, after an op of the other layout wrote them
        self.version: dict[int, int] = {}
        self.exchanged: dict[_Exchanged, int] = {}
        self.views: dict[tuple[int, int], int] = {}
        self.allocated: dict[int, Rows] = {}  # the layout that a memory was first written in
        self.experts = {op.routing.rows: op.routing.groups // ranks for op in ops if op.routing is not None}
        self.filled: dict[int, int] = {}  # memories of constants that nothing has read yet: the op that fills them

    def rewrite(self) -> Step:
        for op in self.whole.ops:
            rows = self._expert_rows(op)
            if isinstance(op.body, Copy) and op.body.function == "fill":
                self._fill(op)
            elif rows:
                self._on_experts(op, rows)
            else:
                self._on_tokens(op)
        for number, base in enumerate(self.base):
            self.tensors[number] = self._resized(self.whole.tensors[number], base, self.allocated.get(base, "local"))
        ops, tensors = divided(self.ops, self.tensors)
        return replace(self.step, ops=ops, tensors=tensors, rebatchable=False)

    def expert_gradients(self) -> set[int]:
        """Memories of gradients of the experts' weights."""
        return {base for base in self.pieces if self.whole.tensors[base].role is Role.PARAMETER_GRADIENT}

    # -- which tensors belong to experts --

    def _pieces(self) -> dict[int, int]:
        """Memories with one matrix for each expert: operands of grouped products, and what element-wise ops do with them."""
        pieces: dict[int, int] = {}
        names: dict[str, int] = {}
        for op in self.whole.ops:
            if op.routing is None:
                continue
            for side, tensor in ((0, op.inputs[0]), (1, op.inputs[1]), (2, op.outputs[0])):
                if not CUT[op.routing.axis][side][1]:
                    pieces[self.base[tensor]] = op.routing.groups
            for tensor in op.inputs[2:]:  # biases
                if self.whole.tensors[tensor].shape[:1] == (op.routing.groups,):
                    pieces[self.base[tensor]] = op.routing.groups
        layers = {op.layer: op.routing for op in self.whole.ops if op.routing is not None}
        for op in self.whole.ops:
            table = self._bias_table(op, layers)
            if table is not None:
                pieces[table] = layers[op.layer].groups
        pieces |= self._norm_weights({routing.rows: routing.groups for routing in layers.values()})
        before = -1
        while before < len(pieces):
            before = len(pieces)
            for op in self.whole.ops:
                self._spread_to_neighbours(op, pieces)
            names |= {
                self.whole.tensors[base].name: groups
                for base, groups in pieces.items()
                if self.whole.tensors[base].name and self.whole.tensors[base].role in (Role.PARAMETER, Role.PARAMETER_GRADIENT)
            }
            for base in set(self.base):
                spec = self.whole.tensors[base]
                if spec.role in (Role.PARAMETER, Role.PARAMETER_GRADIENT) and spec.name in names:
                    pieces.setdefault(base, names[spec.name])
        return pieces

    def _bias_table(self, op: Op, layers: dict[str, Routing]) -> int | None:
        """The parameter with one row for each expert from which an op picks the row of each token's expert."""
        routing = layers.get(op.layer)
        if routing is None or not isinstance(op.body, Gather) or op.body.scatter or op.body.rows != routing.rows or not op.inputs:
            return None
        table = self.base[op.inputs[0]]
        spec = self.whole.tensors[table]
        return table if spec.role is Role.PARAMETER and spec.shape[:1] == (routing.groups,) else None

    def _norm_weights(self, groups: dict[int, int]) -> dict[int, int]:
        """Parameters with one row for each expert by which a normalisation scales expert rows, as those of a loop are stacked."""
        found: dict[int, int] = {}
        for op in self.whole.ops:
            rows = self.whole.tensors[op.inputs[0]].shape[:1] if isinstance(op.body, Reduction) and op.inputs else ()
            experts = next((groups[extent] for extent in rows if extent in groups), 0)
            for tensor in op.inputs[1:] if experts else ():
                spec = self.whole.tensors[self.base[tensor]]
                if spec.role is Role.PARAMETER and len(spec.shape) > 1 and spec.shape[0] == experts:
                    found[self.base[tensor]] = experts
        return found

    def _spread_to_neighbours(self, op: Op, pieces: dict[int, int]) -> None:
        """An element-wise op on memories of experts works on nothing else of that shape."""
        if not isinstance(op.body, ElementWise | Copy | Update) and not (isinstance(op.body, Gather) and op.body.scatter):
            return
        touched = [self.base[tensor] for tensor in (*op.inputs, *op.outputs)]
        sizes = {(pieces[base], self.whole.tensors[base].elements) for base in touched if base in pieces}
        for base in touched if sizes else ():
            spec = self.whole.tensors[base]
            for groups, elements in sizes:
                if base not in pieces and spec.elements == elements and spec.shape[:1] == (groups,):
                    pieces[base] = groups

    # -- where an op works --

    def _expert_rows(self, op: Op) -> int:
        """Rows (on the device of the tokens) of an op that works on expert rows; 0 for one that works on local rows."""
        if op.routing is not None:
            return op.routing.rows
        if op.is_product:
            return 0
        if isinstance(op.body, Gather) and self._table(op, op.body) in self.pieces:
            return op.body.rows
        if self._sums_rows(op):
            return next((extent for extent in self.whole.tensors[op.inputs[0]].shape if extent in self.experts), 0)
        rows = 0
        for tensor in op.inputs:
            base = self.base[tensor]
            if base in self.filled:
                continue
            if self.layout.get(base) == "expert":
                rows = rows or self.rows_of[base]
            elif self.whole.tensors[tensor].slope and base not in self.pieces:
                return 0
        return rows

    def _sums_rows(self, op: Op) -> bool:
        """Whether an op sums rows into gradients of the experts' biases, which are where the experts are."""
        if not isinstance(op.body, Reduction) or not op.inputs or not op.outputs or self.base[op.inputs[0]] in self.pieces:
            return False
        return all(self.base[tensor] in self.pieces for tensor in op.outputs)

    def _table(self, op: Op, body: Gather) -> int:
        """The memory that rows are picked from or added into."""
        tensors = op.outputs if body.scatter else op.inputs
        return self.base[tensors[0]] if tensors else -1

    def _on_experts(self, op: Op, rows: int) -> None:
        busiest = self._rows(rows)
        inputs = tuple(self._read(t, "expert", op, rows) if self._has_rows(op, t) else t for t in op.inputs)
        outputs = tuple(self._write(t, "expert", rows) for t in op.outputs)
        if op.routing is not None:
            routing = replace(op.routing, rows=busiest, groups=op.routing.groups // self.ranks, slope=0)
            assert isinstance(op.body, MatMul)
            product = replace(op.body, **{routing.axis: busiest})
            self.ops.append(replace(op, body=product, inputs=inputs, outputs=outputs, routing=routing, slope=()))
            return
        body = op.body
        if isinstance(body, Gather):
            part = self.ranks if self._table(op, body) in self.pieces else 1
            body = replace(body, rows=math.ceil(body.rows * busiest / rows), table_rows=max(1, body.table_rows // part))
        else:
            body = _scaled(body, busiest / rows)
        if isinstance(body, Reduction) and self._sums_rows(op):
            body = replace(body, results=max(1, body.results // self.ranks))
        self.ops.append(replace(op, body=body, inputs=inputs, outputs=outputs, slope=()))

    def _has_rows(self, op: Op, tensor: int) -> bool:
        """Whether an op on expert rows reads this tensor by rows."""
        base = self.base[tensor]
        if base in self.pieces:
            return False
        if isinstance(op.body, Gather) and self._table(op, op.body) in self.pieces:
            return not self.whole.tensors[tensor].dtype.startswith("int")  # the numbers of experts came with their rows
        return op.routing is not None or self.layout.get(base) == "expert" or base in self.filled or self._sums_rows(op)

    def _fill(self, op: Op) -> None:
        """Constants are made where they are read first; the tensor whose type they take is not read."""
        for base in map(self.base.__getitem__, op.outputs):
            self.version[base] = self.version.get(base, 0) + 1
            if base not in self.pieces and base not in self.layout and base not in self.allocated:
                self.filled[base] = len(self.ops)
        own = tuple(self._within(t, self.home.get(self.base[t], self.base[t]), "local") for t in op.outputs)
        self.ops.append(replace(op, body=self._of_pieces(op), outputs=own, slope=()))

    def _settle(self, base: int, rows: Rows, count: int) -> None:
        """The first reader of constants says where they are made."""
        if base not in self.filled:
            return
        place = self.filled.pop(base)
        self.allocated[base] = self.layout[base] = rows
        if rows == "expert":
            self.rows_of[base] = count
            self.ops[place] = replace(self.ops[place], body=_scaled(self.ops[place].body, self._rows(count) / count))

    def _on_tokens(self, op: Op) -> None:
        """An op on local rows, or on the weights of experts."""
        inputs = tuple(self._read(t, "local", op, 0) for t in op.inputs)
        outputs = tuple(self._write(t, "local", 0) for t in op.outputs)
        body = self._of_pieces(op)
        slope = op.slope if body == op.body else ()
        self.ops.append(replace(op, body=body, inputs=inputs, outputs=outputs, slope=slope))

    def _of_pieces(self, op: Op) -> Body:
        """The body of an op on a device's experts of their weights; unchanged where it has none."""
        measured = op.inputs if isinstance(op.body, Reduction) or not op.outputs else op.outputs
        before = sum(self.whole.tensors[t].elements for t in measured)
        after = sum(self._piece(self.whole.tensors[t], self.base[t]).elements for t in measured)
        return op.body if after == before else _scaled(op.body, after / before)

    # -- tensors --

    def _read(self, tensor: int, rows: Rows, op: Op, count: int) -> int:
        """The number under which an op finds a tensor in its layout, after the all-to-all that this takes."""
        base = self.base[tensor]
        self._settle(base, rows, count)
        if self.layout.get(base, "local") == rows or (rows == "local" and base not in self.layout):
            return self._within(tensor, self.home.get(base, base), rows)
        count = count or self.rows_of[base]
        self.rows_of.setdefault(base, count)
        own, memory = self.whole.tensors[tensor], self.whole.tensors[base]
        what = base if own.elements >= memory.elements or own.shape[-1:] == memory.shape[-1:] else tensor  # rows come together
        key = _Exchanged(what, self.version.get(base, 0), rows)
        if key not in self.exchanged:
            other: Rows = "expert" if rows == "local" else "local"
            source = self._within(what, self.home.get(base, base), other)
            result = self._new(replace(self._resized(self.whole.tensors[what], base, rows), view_of=None, slope=()))
            size = self._resized(self.whole.tensors[what], base, "expert").elements
            body = Collective("all_to_all", size, self.ranks, self.group)
            where = {"layer": op.layer, "call": op.call, "phase": op.phase, "recompute": op.recompute}
            self.ops.append(Op(body=body, name="all_to_all", inputs=(source,), outputs=(result,), **where))  # type: ignore[arg-type]
            self.exchanged[key] = result
        return self._seen(tensor, what, self.exchanged[key], rows)

    def _write(self, tensor: int, rows: Rows, count: int) -> int:
        """The number under which an op leaves a result. What an op of the other layout overwrites gets memory of its own."""
        base = self.base[tensor]
        self._settle(base, rows, count)
        version = self.version.get(base, 0)
        self.version[base] = version + 1
        if base in self.pieces:
            return tensor
        if rows == "expert" and base not in self.rows_of:
            self.rows_of[base] = count
        known = base in self.layout or base in self.allocated
        if not known:
            self.allocated[base] = rows
        elif self.layout.get(base, "local") != rows:
            copy = self.exchanged.get(_Exchanged(base, version, rows))
            spec = self.whole.tensors[base]
            self.home[base] = copy if copy is not None else self._new(replace(self._resized(spec, base, rows), slope=()))
        self.layout[base] = rows
        return self._within(tensor, self.home.get(base, base), rows)

    def _within(self, tensor: int, home: int, rows: Rows) -> int:
        """A tensor as part of the memory that its contents are in."""
        if home == self.base[tensor]:
            return tensor
        return self._seen(tensor, self.base[tensor], home, rows)

    def _seen(self, tensor: int, what: int, memory: int, rows: Rows) -> int:
        """The memory itself if the tensor is all of it, in its shape; else a view of the tensor's shape."""
        if tensor == what or self.whole.tensors[tensor].shape == self.whole.tensors[what].shape:
            return memory
        if (tensor, memory) not in self.views:
            spec = self._resized(self.whole.tensors[tensor], self.base[tensor], rows)
            self.views[tensor, memory] = self._new(replace(spec, view_of=memory, slope=()))
        return self.views[tensor, memory]

    def _new(self, spec: TensorSpec) -> int:
        self.tensors.append(spec)
        return len(self.tensors) - 1

    def _rows(self, rows: int) -> int:
        """Expert rows of this device, by the rows of its tokens."""
        return rows_at(self.load, rows, self.experts.get(rows, 1))

    def _resized(self, spec: TensorSpec, base: int, rows: Rows) -> TensorSpec:
        """What a device has of a tensor."""
        if base in self.pieces:
            return self._piece(spec, base)
        count = self.rows_of.get(base, 0)
        busiest = self._rows(count) if count else 0
        if rows == "local" or busiest == count or not spec.shape:
            return spec
        place = spec.shape.index(count) if count in spec.shape else 0
        extent = busiest if count in spec.shape else -(-spec.shape[0] * busiest // count)
        return replace(spec, shape=(*spec.shape[:place], extent, *spec.shape[place + 1 :]), slope=())

    def _piece(self, spec: TensorSpec, base: int) -> TensorSpec:
        """A device's experts of a tensor."""
        groups = self.pieces.get(base)
        if groups is None or not spec.shape:
            return spec
        place = spec.shape.index(groups) if groups in spec.shape else 0
        extent = -(-spec.shape[place] // self.ranks)
        return replace(spec, shape=(*spec.shape[:place], extent, *spec.shape[place + 1 :]))


def _scaled(body: Body, ratio: float) -> Body:
    """A body with so many times the elements."""

    def times(count: int) -> int:
        return max(1, round(count * ratio))

    if isinstance(body, Reduction):
        results = times(body.results) if body.results == body.elements else body.results
        return replace(body, elements=times(body.elements), results=results)
    if isinstance(body, ElementWise | Copy | Update):
        return replace(body, elements=times(body.elements))
    return replace(body, table_rows=times(body.table_rows)) if isinstance(body, Gather) else body
