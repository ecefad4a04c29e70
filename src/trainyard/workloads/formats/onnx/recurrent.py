"""LSTM, GRU and RNN of ONNX, unrolled over time as PyTorch runs them: two products and the gates for each step and direction.

ONNX keeps the weights of a direction stacked: W[directions, gates * hidden, inputs], R[directions, gates * hidden, hidden] and both
biases concatenated, B[directions, 2 * gates * hidden].
"""

from __future__ import annotations

from typing import NamedTuple

from trainyard.errors import BadInput, NotModelled
from trainyard.workloads.formats.onnx.trace import OPS, Call, Trace, Value

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


class Cell(NamedTuple):
    """One direction's weights, transposed as the products read them, and its biases."""

    inputs: Value
    hidden: Value
    input_bias: Value | None
    hidden_bias: Value | None


def recurrent(call: Call) -> list[Value]:
    kind, trace = call.node.op, call.trace
    x, w, r, bias = call.input(0), call.input(1), call.input(2), call.optional_input(3)
    size, gates = call.integer("hidden_size", r.shape[-1] if r.shape else 0), GATES[kind]
    directions = 2 if call.string("direction", "forward") == "bidirectional" else 1
    if len(x.shape) != 3 or w.shape != (directions, gates * size, x.shape[-1]) or r.shape != (directions, gates * size, size):
        raise BadInput(
            f"input {list(x.shape)}, weights {list(w.shape)} and {list(r.shape)} for {directions} x {gates} gates of {size}"
        )
    if (lengths := call.optional_input(4)) is not None and lengths.numbers is None:
        raise NotModelled("sequence lengths that depend on data: pad all sequences to one length")
    if call.optional_input(7) is not None or call.integer("input_forget", 0):
        raise NotModelled("peepholes, or input and forget gate in one")
    batched = bool(call.integer("layout", 0))
    steps, batch = (x.shape[1], x.shape[0]) if batched else (x.shape[0], x.shape[1])
    if not steps * batch or steps * directions * 16 > OPS:
        raise NotModelled(f"{steps} steps of {batch} sequences")
    rows, last, cells = [], [], []
    for _ in range(directions):
        cell = _cell(trace, w, r, bias)
        h = c = _state(call, 5, (batch, size), batched)
        if kind == "LSTM":
            c = _state(call, 6, (batch, size), batched)
        states = []
        for _ in range(steps):
            h, c = _stepped(trace, kind, trace.dropped(x, 1 if batched else 0), h, c, cell)
            states.append(h)
        rows.append(states)
        last.append(h)
        cells.append(c)
    return [_stacked(trace, rows, batched), _states(trace, last, batched), _states(trace, cells, batched)]


def _cell(trace: Trace, w: Value, r: Value, bias: Value | None) -> Cell:
    weights = [trace.permuted(trace.dropped(value, 0), (1, 0)) for value in (w, r)]
    biases: list[Value | None] = [None, None]
    if bias is not None:
        biases_of_direction = trace.dropped(bias, 0)
        half = biases_of_direction.shape[0] // 2
        if biases_of_direction.shape != (2 * weights[0].shape[1],):
            raise BadInput(f"biases {list(bias.shape)} for {weights[0].shape[1]} gates")
        biases = [trace.narrowed(biases_of_direction, 0, half) for _ in range(2)]
    return Cell(weights[0], weights[1], *biases)


def _state(call: Call, position: int, shape: tuple[int, int], batched: bool) -> Value:
    """The initial state: an input, or zeros."""
    initial = call.optional_input(position)
    if initial is not None and initial.tensor is not None:
        state = call.trace.dropped(initial, 1 if batched else 0)
        if state.shape != shape:
            raise BadInput(f"a first state {list(initial.shape)} for {list(shape)}")
        return state
    return call.trace.copy("fill", (), shape, call.input(0).dtype, "zeros")


def _stepped(trace: Trace, kind: str, x: Value, h: Value, c: Value, cell: Cell) -> tuple[Value, Value]:
    from_hidden = trace.product(h, cell.hidden, cell.hidden_bias)
    from_input = trace.product(x, cell.inputs, cell.input_bias)
    size = h.shape[1]
    if kind == "RNN":
        return trace.pointwise("tanh", (trace.pointwise("add", (from_hidden, from_input)),), 4), c
    if kind == "LSTM":
        gates = trace.pointwise("add", (from_hidden, from_input))
        i, f, g, o = (trace.pointwise(name, (trace.narrowed(gates, 1, size),), operations) for name, operations in _LSTM)
        c = trace.pointwise("add", (trace.pointwise("mul", (f, c)), trace.pointwise("mul", (i, g))))
        return trace.pointwise("mul", (o, trace.pointwise("tanh", (c,), 4))), c
    hidden = [trace.narrowed(from_hidden, 1, size) for _ in range(3)]
    inputs = [trace.narrowed(from_input, 1, size) for _ in range(3)]
    reset, update = (
        trace.pointwise("sigmoid", (trace.pointwise("add", pair),), 6) for pair in zip(hidden[:2], inputs[:2], strict=True)
    )
    new = trace.pointwise("tanh", (trace.pointwise("add", (inputs[2], trace.pointwise("mul", (reset, hidden[2])))),), 4)
    change = trace.pointwise("mul", (update, trace.pointwise("sub", (h, new))))
    return trace.pointwise("add", (new, change)), c


_LSTM = (("sigmoid", 6), ("sigmoid", 6), ("tanh", 4), ("sigmoid", 6))


def _stacked(trace: Trace, rows: list[list[Value]], batched: bool) -> Value:
    """Y[steps, directions, batch, hidden], or [batch, steps, directions, hidden]."""
    batch, size = rows[0][0].shape
    steps, directions = len(rows[0]), len(rows)
    shape = (batch, steps, directions, size) if batched else (steps, directions, batch, size)
    return trace.copy("stack", [h for states in rows for h in states], shape, rows[0][0].dtype)


def _states(trace: Trace, states: list[Value], batched: bool) -> Value:
    batch, size = states[0].shape
    if len(states) == 1:
        return trace.reshape(states[0], (batch, 1, size) if batched else (1, batch, size))
    return trace.copy("stack", states, (batch, 2, size) if batched else (2, batch, size), states[0].dtype)
