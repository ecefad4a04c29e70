"""What eager torch does on a GPU as one call: a Step is captured in smaller ops where a CPU has no such kernel.

A *run* is a row of ops of one call of one layer, in one direction. A run that holds the mark of a composite (the softmax that only
`scaled_dot_product_attention` uses, the in-place gates of an LSTM) is one call on a GPU, with kernels of its own.

An exchange between devices is a call by itself, which the GPU leaves to its system: it stands where it stood, or before or behind
a call that would go on around it. Where a call both makes what is exchanged and reads the result, it is two calls.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from trainyard.caches import per_step
from trainyard.ir import Collective, Copy, ElementWise, Op, Phase, Step

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


Place = tuple[str, int, bool]
"""Layer, call of it, whether backward."""


def function(op: Op) -> str:
    return getattr(op.body, "function", "")


@per_step
def calls_of(step: Step, fusion: str) -> Sequence[Call]:
    """Every op once, in an order that respects dependencies."""
    found: list[Call] = []
    attentions: dict[tuple[str, int], Call] = {}
    for place, run in _runs(step):
        found.extend(_around_exchanges(step, place, run, attentions))
    found = _without_copies(step, found)
    return tuple(_with_epilogues(step, found) if fusion == "epilogue" else found)


def is_exchange(op: Op) -> bool:
    """Whether an op is between devices; among one rank there is nothing to exchange."""
    return isinstance(op.body, Collective) and op.body.ranks > 1


def _around_exchanges(step: Step, place: Place, run: Sequence[int], attentions: dict[tuple[str, int], Call]) -> list[Call]:
    """The calls of a run as if it had no exchanges, with those put in between."""
    exchanges = [index for index in run if is_exchange(step.ops[index])]
    if not exchanges:
        return list(_composites(step, place, run, attentions))
    others = [index for index in run if not is_exchange(step.ops[index])]
    calls = list(_composites(step, place, others, attentions))
    home = {index: number for number, call in enumerate(calls) for index in call.ops}
    earliest = dict.fromkeys(exchanges, 0)
    latest = dict.fromkeys(exchanges, len(calls))
    for index in run:  # in program order, so that what an exchange waits for has its place already
        for before in step.dependencies[index]:
            if index in earliest:
                known = home[before] + 1 if before in home else earliest.get(before, 0)
                earliest[index] = max(earliest[index], known)
            elif before in latest:
                latest[before] = min(latest[before], home[index])
    torn = [index for index in exchanges if earliest[index] > latest[index]]
    if torn:
        return [call for piece in _torn(run, torn) for call in _around_exchanges(step, place, piece, attentions)]
    slots: list[list[Call]] = [[] for _ in range(len(calls) + 1)]
    for index in exchanges:
        stood = sum(call.ops[0] < index for call in calls)
        slots[min(max(stood, earliest[index]), latest[index])].append(Call((index,)))
    return [*slots[0], *(one for call, behind in zip(calls, slots[1:], strict=True) for one in (call, *behind))]


def _torn(run: Sequence[int], at: Collection[int]) -> Iterator[Sequence[int]]:
    """A run in pieces, some of its ops by themselves between them."""
    for _, piece in groupby(run, lambda index: index if index in at else -1):
        yield list(piece)


def _composites(step: Step, place: Place, run: Sequence[int], attentions: dict[tuple[str, int], Call]) -> Iterator[Call]:
    """Calls of a run without exchanges; `attentions` remembers what the forward pass was, for the backward pass."""
    layer, call, backward = place
    ops = [step.ops[index] for index in run]
    if any(op.fused is not None for op in ops):
        yield from _marked(step, run)
    elif backward and (layer, call) in attentions and any(function(op) == "softmax_backward_data" for op in ops):
        yield from _attention(step, run, attentions[layer, call])
    elif any(op.name == "_safe_softmax" for op in ops):
        functions = {function(op) for op in ops}
        attentions[layer, call] = Call((), "attention", "tril" in functions, "bernoulli" in functions)
        yield from _attention(step, run, attentions[layer, call])
    elif _is_recurrent(ops):
        products = sum(op.is_product for op in ops)
        yield from [Call(tuple(run), "recurrent")] if products > STEPS_OF_A_CELL else _cells(step, run)
    elif _is_rms_norm(ops, backward):
        yield Call(tuple(run), "rms_norm")
    else:
        yield from _dropouts(step, run)


def _without_copies(step: Step, calls: Sequence[Call]) -> list[Call]:
    """A flash kernel writes its results in the layout that is asked for: the copies behind an attention are part of it."""
    home: dict[int, int] = {}
    found: list[Call] = []
    for call in calls:
        op = step.ops[call.ops[0]]
        copied = call.kind == "op" and function(op) == "clone" and not _after_exchange(step, call.ops[0])
        source = home.get(step.base(op.inputs[0])) if copied else None
        if source is not None:
            found[source] = found[source]._replace(ops=found[source].ops + call.ops)
            continue
        if call.kind == "attention":
            home.update((step.base(tensor), len(found)) for index in call.ops for tensor in step.ops[index].outputs)
        found.append(call)
    return found


def _after_exchange(step: Step, index: int) -> bool:
    return any(is_exchange(step.ops[before]) for before in step.dependencies[index])


def _runs(step: Step) -> Iterator[tuple[Place, list[int]]]:
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
    sums = [index for index in run if function(step.ops[index]) == "sum"]
    kept: set[int] = set()
    for pointwise, group in groupby(run, lambda index: isinstance(step.ops[index].body, ElementWise | Copy)):
        indices = tuple(group)
        if pointwise and len(indices) > 1 and any(function(step.ops[index]) in GATES for index in indices):
            own = tuple(index for index in sums if not set(indices).isdisjoint(step.dependencies[index]))
            kept.update(own)
            yield Call(indices + own, "cell")
        else:
            yield from (Call((index,)) for index in indices if index not in kept)


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
            made = {step.base(tensor) for index in open_call.ops for tensor in step.ops[index].outputs}
            late = any(before > open_call.ops[0] and is_exchange(step.ops[before]) for before in step.dependencies[call.ops[0]])
            if made & {step.base(tensor) for tensor in op.inputs} and not late:
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
