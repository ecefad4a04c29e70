"""What eager torch does on a GPU as one call: a Step is captured in smaller ops where a CPU has no such kernel.

A *run* is a row of ops of one call of one layer, in one direction. A run that holds the mark of a composite (the softmax that only
`scaled_dot_product_attention` uses, the in-place gates of an LSTM) is one call on a GPU, with kernels of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from trainyard.ir import Copy, ElementWise, Op, Phase, Step
from trainyard.mapping.works import per_step

Kind = Literal["op", "fused", "epilogue", "attention", "dropout", "rms_norm", "recurrent", "cell"]

DROPOUT = ("bernoulli", "div", "mul")
RMS_NORM = ("pow", "mean", "add", "rsqrt", "mul")
GATES = ("sigmoid", "sigmoid_backward")
STEPS_OF_A_CELL = 4  # products of one step of a recurrent cell, at most: two forward, four backward


class Call(NamedTuple):
    """Ops of the step that torch runs together; `causal` and `drops` say what an attention does besides its products."""

    ops: tuple[int, ...]
    kind: Kind = "op"
    causal: bool = False
    drops: bool = False


def function(op: Op) -> str:
    return getattr(op.body, "function", "")


@per_step
def calls_of(step: Step, fusion: str) -> Sequence[Call]:
    """Every op once, in an order that respects dependencies."""
    found: list[Call] = []
    attentions: dict[tuple[str, int], Call] = {}
    for (layer, call, backward), run in _runs(step):
        ops = [step.ops[index] for index in run]
        if any(op.fused is not None for op in ops):
            found.extend(_marked(step, run))
        elif backward and (layer, call) in attentions and any(function(op) == "softmax_backward_data" for op in ops):
            found.extend(_attention(step, run, attentions[layer, call]))
        elif any(op.name == "_safe_softmax" for op in ops):
            functions = {function(op) for op in ops}
            attentions[layer, call] = Call((), "attention", "tril" in functions, "bernoulli" in functions)
            found.extend(_attention(step, run, attentions[layer, call]))
        elif _is_recurrent(ops):
            products = sum(op.is_product for op in ops)
            found.extend([Call(tuple(run), "recurrent")] if products > STEPS_OF_A_CELL else _cells(step, run))
        elif _is_rms_norm(ops, backward):
            found.append(Call(tuple(run), "rms_norm"))
        else:
            found.extend(_dropouts(step, run))
    found = _without_copies(step, found)
    return tuple(_with_epilogues(step, found) if fusion == "epilogue" else found)


def _without_copies(step: Step, calls: Sequence[Call]) -> list[Call]:
    """A flash kernel writes its results in the layout that is asked for: the copies behind an attention are part of it."""
    home: dict[int, int] = {}
    found: list[Call] = []
    for call in calls:
        op = step.ops[call.ops[0]]
        source = home.get(step.base(op.inputs[0])) if call.kind == "op" and function(op) == "clone" else None
        if source is not None:
            found[source] = found[source]._replace(ops=found[source].ops + call.ops)
            continue
        if call.kind == "attention":
            home.update((step.base(tensor), len(found)) for index in call.ops for tensor in step.ops[index].outputs)
        found.append(call)
    return found


def _runs(step: Step) -> Iterator[tuple[tuple[str, int, bool], list[int]]]:
    def key(index: int) -> tuple[str, int, Phase | bool]:
        op = step.ops[index]
        return op.layer, op.call, op.phase if op.phase in (Phase.UPDATE, Phase.COPY, Phase.LOSS) else op.phase.backward

    for (layer, call, direction), run in groupby(range(len(step.ops)), key):
        yield (layer, call, direction is True), list(run)


def _marked(step: Step, run: Sequence[int]) -> Iterator[Call]:
    """Ops that share a number in `fused` go together; the others stand alone."""
    for _, group in groupby(run, lambda index: (step.ops[index].fused, index if step.ops[index].fused is None else -1)):
        ops = tuple(group)
        yield Call(ops, "fused" if len(ops) > 1 else "op")


def _attention(step: Step, run: Sequence[int], kind: Call) -> Iterator[Call]:
    """All of the run but concatenations, which are what the layer does with its projections."""
    inside = [index for index in run if function(step.ops[index]) not in ("cat", "stack")]
    yield kind._replace(ops=tuple(inside))
    yield from (Call((index,)) for index in run if index not in inside)


def _is_recurrent(ops: Sequence[Op]) -> bool:
    """The gates of nn.LSTM, nn.GRU and their cells are worked out in place; nobody writes a hand-made cell so."""
    gates = [op for op in ops if function(op) in GATES]
    return bool(gates) and any(op.is_product for op in ops) and all(op.name in ("sigmoid_", "sigmoid_backward") for op in gates)


def _cells(step: Step, run: Sequence[int]) -> Iterator[Call]:
    """A single step of a cell: its products apart, the gates in one kernel, and with them the sums that are the bias's gradient."""
    sums = tuple(index for index in run if function(step.ops[index]) == "sum")
    for pointwise, group in groupby(run, lambda index: isinstance(step.ops[index].body, ElementWise | Copy)):
        indices = tuple(group)
        if pointwise and len(indices) > 1 and any(function(step.ops[index]) in GATES for index in indices):
            yield Call(indices + sums, "cell")
        else:
            yield from (Call((index,)) for index in indices if index not in sums)


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
        if open_call is not None and call.kind == "op" and isinstance(op.body, ElementWise):
            made = {step.base(tensor) for index in open_call.ops for tensor in step.ops[index].outputs}
            if made & {step.base(tensor) for tensor in op.inputs}:
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
