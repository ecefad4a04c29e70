"""Loops over the gates of a mapped netlist, compiled: their order, their values cycle by cycle, and when their outputs settle.

Gates have up to four inputs; net 0 is the constant 0, net 1 the constant 1, and an input that a gate does not have is net 0. The
truth table of a kind is a number whose bit i is the output where input k has bit k of i. Plain Python: `oracles.gate_netlist`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
PINS = 4
RISE, FALL = 0, 1


@njit(cache=True)
def topological_order(inputs: Ints, outputs: Ints, nets: int) -> Longs:
    """Gates so that each stands behind those that drive it; shorter than the list of gates where some are in a loop."""
    gates = len(outputs)
    driver = np.full(nets, -1, np.int64)
    for gate in range(gates):
        driver[outputs[gate]] = gate
    waits = np.zeros(gates, np.int64)
    starts = np.zeros(gates + 1, np.int64)
    for gate in range(gates):
        for pin in range(PINS):
            before = driver[inputs[gate, pin]]
            if before >= 0:
                waits[gate] += 1
                starts[before + 1] += 1
    for gate in range(gates):
        starts[gate + 1] += starts[gate]
    fanout = np.empty(starts[gates], np.int64)
    filled = starts.copy()
    for gate in range(gates):
        for pin in range(PINS):
            before = driver[inputs[gate, pin]]
            if before >= 0:
                fanout[filled[before]] = gate
                filled[before] += 1
    order = np.empty(gates, np.int64)
    placed = 0
    for gate in range(gates):
        if waits[gate] == 0:
            order[placed] = gate
            placed += 1
    at = 0
    while at < placed:
        gate = order[at]
        at += 1
        for place in range(starts[gate], starts[gate + 1]):
            after = fanout[place]
            waits[after] -= 1
            if waits[after] == 0:
                order[placed] = after
                placed += 1
    return order[:placed]


@njit(cache=True)
def _settle(kinds: Ints, inputs: Ints, outputs: Ints, truth: Longs, values: Bits, toggles: Longs, counted: int) -> None:
    for gate in range(len(outputs)):
        row = (
            values[inputs[gate, 0]]
            | values[inputs[gate, 1]] << 1
            | values[inputs[gate, 2]] << 2
            | values[inputs[gate, 3]] << 3
        )  # fmt: skip
        value = np.uint8(truth[kinds[gate]] >> row & 1)
        net = outputs[gate]
        if value != values[net]:
            toggles[net] += counted
            values[net] = value


@njit(cache=True)
def simulate(
    kinds: Ints, inputs: Ints, outputs: Ints, truth: Longs, data: Ints, state: Ints, init: Bits, input_nets: Ints,
    output_nets: Ints, stimulus: Bits, nets: int,
) -> tuple[Longs, Bits]:  # fmt: skip
    """Gates in topological order and flip-flops (`data` to `state` at each clock edge) over the cycles of `stimulus`.

    Returns how often each net changed after the first cycle had settled, and the output nets in every cycle before its edge.
    """
    cycles = len(stimulus)
    values = np.zeros(nets, np.uint8)
    values[1] = 1
    toggles = np.zeros(nets, np.int64)
    results = np.zeros((cycles, len(output_nets)), np.uint8)
    next_state = np.zeros(len(state), np.uint8)
    for place in range(len(state)):
        values[state[place]] = init[place]
    for cycle in range(cycles):
        counted = 1 if cycle else 0
        for place in range(len(input_nets)):
            net = input_nets[place]
            if values[net] != stimulus[cycle, place]:
                toggles[net] += counted
                values[net] = stimulus[cycle, place]
        _settle(kinds, inputs, outputs, truth, values, toggles, counted)
        for place in range(len(output_nets)):
            results[cycle, place] = values[output_nets[place]]
        for place in range(len(state)):
            next_state[place] = values[data[place]]
        if cycle + 1 < cycles:
            for place in range(len(state)):
                net = state[place]
                if values[net] != next_state[place]:
                    toggles[net] += 1
                    values[net] = next_state[place]
    return toggles, results


@njit(cache=True)
def _interpolated(rows: Floats, columns: Floats, table: Floats, row: float, column: float) -> float:
    """Bilinear, the outer cells prolonged; a table of one row does not depend on `row`."""
    i, j = 0, 0
    while i + 2 < len(rows) and row > rows[i + 1]:
        i += 1
    while j + 2 < len(columns) and column > columns[j + 1]:
        j += 1
    down = (row - rows[i]) / (rows[i + 1] - rows[i])
    right = (column - columns[j]) / (columns[j + 1] - columns[j])
    first = table[i, j] + (table[i, j + 1] - table[i, j]) * right
    second = table[i + 1, j] + (table[i + 1, j + 1] - table[i + 1, j]) * right
    return float(first + (second - first) * down)


@njit(cache=True)
def settle_times(
    kinds: Ints, inputs: Ints, outputs: Ints, widths: Ints, sense: Ints, loads: Floats, slews: Floats, delay: Floats,
    transition: Floats, load: Floats, arrival: Floats, slew: Floats, cause: Longs,
) -> None:  # fmt: skip
    """Latest arrival and the transition time of every gate's output, rising and falling, in `arrival` and `slew`.

    `cause[net, edge]` becomes 8 * gate + 2 * pin + the edge of the input that decides it. Tables are by kind and pin; those of a
    rising output come first.
    """
    for gate in range(len(outputs)):
        kind, out = kinds[gate], outputs[gate]
        for edge in range(2):
            latest = -1.0
            for pin in range(widths[kind]):
                net = inputs[gate, pin]
                for before in range(2):
                    if (sense[kind, pin] == 1 and before != edge) or (sense[kind, pin] == -1 and before == edge):
                        continue
                    if arrival[net, before] < 0:  # a constant
                        continue
                    step = _interpolated(loads[kind, pin], slews[kind, pin], delay[kind, pin, edge], load[out], slew[net, before])
                    if arrival[net, before] + step > latest:
                        latest = arrival[net, before] + step
                        cause[out, edge] = 8 * gate + 2 * pin + before
                        slew[out, edge] = _interpolated(
                            loads[kind, pin], slews[kind, pin], transition[kind, pin, edge], load[out], slew[net, before]
                        )
            arrival[out, edge] = latest
