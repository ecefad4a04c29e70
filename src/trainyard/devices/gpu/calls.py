"""The calls of eager torch on a GPU: ops of a Step, captured on a CPU, that a GPU runs as one composite call.

A *run* is a sequence of ops of one layer call in one direction. A run with the mark of a composite (the softmax of a
`scaled_dot_product_attention` whose kernel the step leaves open, the in-place gates of an LSTM) is one call on a GPU, with its own
kernels. A fused attention of the step is one call as well; one that the step has as separate products (`math`) is not.

A collective between devices is a call of its own, whose cost is the system's. It keeps its position, or moves before or behind a
call that surrounds it. A call that both produces the exchanged tensor and reads the result is split in two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from trainyard.caches import per_step
from trainyard.ir import Collective, Copy, ElementWise, Op, Phase, Step
from trainyard.ir.attention import OPEN_SOFTMAX, kernel_of

Kind = Literal["op", "fused", "epilogue", "attention", "dropout", "rms_norm", "recurrent", "cell"]

DROPOUT = ("bernoulli", "div", "mul")
RMS_NORM = ("pow", "mean", "add", "rsqrt", "mul")
GATES = ("sigmoid", "sigmoid_backward")
STEPS_OF_A_CELL = 4  # products of one step of a recurrent cell, at most: two forward, four backward


class Call(NamedTuple):
    """Ops of the step that torch runs as one call; `causal` and `dropout` are options of an attention."""

    ops: tuple[int, ...]
    kind: Kind = "op"
    causal: bool = False
    dropout: bool = False


LayerCall = tuple[str, int, bool]
"""Layer, number of its call, whether backward."""


def function(op: Op) -> str:
    return getattr(op.body, "function", "")


@per_step
def calls_of(step: Step, fusion: str) -> Sequence[Call]:
    """Calls that cover every op once, in an order that respects dependencies."""
    calls: list[Call] = []
    forward: dict[tuple[str, int], Call] = {}
    for layer_call, run in _runs(step):
        calls.extend(_with_exchanges(step, layer_call, run, forward))
    calls = _without_copies(step, calls)
    return tuple(_with_epilogues(step, calls) if fusion == "epilogue" else calls)


def is_exchange(op: Op) -> bool:
    """Whether an op is a collective between several ranks."""
    return isinstance(op.body, Collective) and op.body.ranks > 1


def _with_exchanges(step: Step, layer_call: LayerCall, run: Sequence[int], forward: dict[tuple[str, int], Call]) -> list[Call]:
    """The calls that the run would have without collectives, with the collectives inserted between them."""
    exchanges = [index for index in run if is_exchange(step.ops[index])]
    if not exchanges:
        return list(_composites(step, layer_call, run, forward))
    others = [index for index in run if not is_exchange(step.ops[index])]
    calls = list(_composites(step, layer_call, others, forward))
    call_of = {index: number for number, call in enumerate(calls) for index in call.ops}
    earliest = dict.fromkeys(exchanges, 0)
    latest = dict.fromkeys(exchanges, len(calls))
    for index in run:  # in program order: the bounds of earlier collectives are known
        for before in step.dependencies[index]:
            if index in earliest:
                after = call_of[before] + 1 if before in call_of else earliest.get(before, 0)
                earliest[index] = max(earliest[index], after)
            elif before in latest:
                latest[before] = min(latest[before], call_of[index])
    splitting = [index for index in exchanges if earliest[index] > latest[index]]
    if splitting:
        return [call for piece in _pieces(run, splitting) for call in _with_exchanges(step, layer_call, piece, forward)]
    slots: list[list[Call]] = [[] for _ in range(len(calls) + 1)]
    for index in exchanges:
        original = sum(call.ops[0] < index for call in calls)
        slots[min(max(original, earliest[index]), latest[index])].append(Call((index,)))
    return [*slots[0], *(item for call, behind in zip(calls, slots[1:], strict=True) for item in (call, *behind))]


def _pieces(run: Sequence[int], at: Collection[int]) -> Iterator[Sequence[int]]:
    """The run split at some ops, each of which is a piece of its own."""
    for _, piece in groupby(run, lambda index: index if index in at else -1):
        yield list(piece)


def _composites(step: Step, layer_call: LayerCall, run: Sequence[int], forward: dict[tuple[str, int], Call]) -> Iterator[Call]:
    """The calls of a run without collectives.

    `forward` has the composites of the forward pass. Gradients are one call where the forward pass was: a norm or a gate that a
    model writes out itself looks the same backward.
    """
    layer, call, backward = layer_call
    ops = [step.ops[index] for index in run]
    before = forward.get((layer, call))
    if any(op.fused is not None for op in ops):
        yield from _fused_ops(step, run)
    elif backward and _of_kind(before, "attention") and any(function(op) == "softmax_backward_data" for op in ops):
        assert before is not None
        yield from _attention(step, run, before)
    elif any(op.name == OPEN_SOFTMAX for op in ops):
        functions = {function(op) for op in ops}
        forward[layer, call] = Call((), "attention", "tril" in functions, "bernoulli" in functions)
        yield from _attention(step, run, forward[layer, call])
    elif _is_recurrent(ops) and (not backward or _of_kind(before, "recurrent")):
        forward[layer, call] = Call((), "recurrent")
        products = sum(op.is_product for op in ops)
        yield from [Call(tuple(run), "recurrent")] if products > STEPS_OF_A_CELL else _cells(step, run)
    elif _is_rms_norm(ops, backward) and (not backward or _of_kind(before, "rms_norm")):
        forward[layer, call] = Call((), "rms_norm")
        yield Call(tuple(run), "rms_norm")
    else:
        yield from _dropouts(step, run)


def _of_kind(call: Call | None, kind: Kind) -> bool:
    return call is not None and call.kind == kind


def _without_copies(step: Step, calls: Sequence[Call]) -> list[Call]:
    """The calls with copies behind an attention merged into it: a flash kernel writes any output layout."""
    attention_of: dict[int, int] = {}  # by base tensor
    merged: list[Call] = []
    for call in calls:
        op = step.ops[call.ops[0]]
        copied = call.kind == "op" and function(op) == "clone" and not _after_exchange(step, call.ops[0])
        source = attention_of.get(step.base(op.inputs[0])) if copied else None
        if source is not None:
            merged[source] = merged[source]._replace(ops=merged[source].ops + call.ops)
            continue
        if call.kind == "attention":
            attention_of.update((step.base(tensor), len(merged)) for index in call.ops for tensor in step.ops[index].outputs)
        merged.append(call)
    return merged


def _after_exchange(step: Step, index: int) -> bool:
    return any(is_exchange(step.ops[before]) for before in step.dependencies[index])


def _runs(step: Step) -> Iterator[tuple[LayerCall, list[int]]]:
    def key(index: int) -> tuple[str, int, Phase | bool]:
        op = step.ops[index]
        return op.layer, op.call, op.phase if op.phase in (Phase.UPDATE, Phase.COPY, Phase.LOSS) else op.phase.backward

    for (layer, call, direction), run in groupby(range(len(step.ops)), key):
        yield (layer, call, direction is True), list(run)


def _fused_ops(step: Step, run: Sequence[int]) -> Iterator[Call]:
    """A call for the ops of each number in `fused`, and for each other op."""
    for _, group in groupby(run, lambda index: (step.ops[index].fused, index if step.ops[index].fused is None else -1)):
        ops = tuple(group)
        kernel = kernel_of(step.ops[ops[0]])
        if kernel is not None and len(ops) > 1:
            yield Call(ops, "attention", kernel[1], any(function(step.ops[index]) == "dropout" for index in ops))
        else:
            yield Call(ops, "fused" if len(ops) > 1 else "op")


def _attention(step: Step, run: Sequence[int], kind: Call) -> Iterator[Call]:
    """One call with all ops of the run but concatenations, which belong to the projections of the layer."""
    inside = [index for index in run if function(step.ops[index]) not in ("cat", "stack")]
    yield kind._replace(ops=tuple(inside))
    yield from (Call((index,)) for index in run if index not in inside)


def _is_recurrent(ops: Sequence[Op]) -> bool:
    """Whether the gates are computed in place: nn.LSTM, nn.GRU and their cells do so, hand-written cells do not."""
    gates = [op for op in ops if function(op) in GATES]
    return bool(gates) and any(op.is_product for op in ops) and all(op.name in ("sigmoid_", "sigmoid_backward") for op in gates)


def _cells(step: Step, run: Sequence[int]) -> Iterator[Call]:
    """One step of a cell: a call for each product, and one for the gates with the sums that are the gradient of the bias."""
    sums = [index for index in run if function(step.ops[index]) == "sum"]
    included: set[int] = set()
    for pointwise, group in groupby(run, lambda index: isinstance(step.ops[index].body, ElementWise | Copy)):
        indices = tuple(group)
        if pointwise and len(indices) > 1 and any(function(step.ops[index]) in GATES for index in indices):
            own = tuple(index for index in sums if not set(indices).isdisjoint(step.dependencies[index]))
            included.update(own)
            yield Call(indices + own, "cell")
        else:
            yield from (Call((index,)) for index in indices if index not in included)


def _is_rms_norm(ops: Sequence[Op], backward: bool) -> bool:
    functions = [function(op) for op in ops]
    if any(op.is_product for op in ops):
        return False
    if backward:
        return functions.count("pow") == 2 and functions.count("sum") >= 1 and "div" in functions and len(ops) >= 12
    return tuple(functions[: len(RMS_NORM)]) == RMS_NORM and ops[2].name == "add_"


def _dropouts(step: Step, run: Sequence[int]) -> Iterator[Call]:
    position = 0
    while position < len(run):
        window = tuple(run[position : position + len(DROPOUT)])
        if tuple(function(step.ops[index]) for index in window) == DROPOUT:
            yield Call(window, "dropout")
            position += len(DROPOUT)
        else:
            yield Call((run[position],))
            position += 1


def _with_epilogues(step: Step, calls: Sequence[Call]) -> Iterator[Call]:
    """An element-wise op joins the call before it if that call has a product whose output it takes."""
    open_call: Call | None = None
    for call in calls:
        op = step.ops[call.ops[0]]
        if open_call is not None and is_exchange(op) and not set(open_call.ops).intersection(step.dependencies[call.ops[0]]):
            yield call
            continue
        if open_call is not None and call.kind == "op" and isinstance(op.body, ElementWise):
            produced = {step.base(tensor) for index in open_call.ops for tensor in step.ops[index].outputs}
            late = any(before > open_call.ops[0] and is_exchange(step.ops[before]) for before in step.dependencies[call.ops[0]])
            if produced & {step.base(tensor) for tensor in op.inputs} and not late:
                open_call = Call(open_call.ops + call.ops, "epilogue")
                continue
        if open_call is not None:
            yield open_call
        open_call = None
        if call.kind == "op" and op.is_product:
            open_call = call
        else:
            yield call
    if open_call is not None:
        yield open_call
