"""SCNN executed with real numbers: every step, every product in its bank's queue. Slow; tests compare `Scnn.cost` with it.

After each step the multipliers wait until no bank has more products than its queue takes; every bank adds one product in a cycle.
Inputs are loaded before the first group. A group ends when all banks of all elements are empty.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trainyard.arrays.execution import Execution
from trainyard.arrays.rivals.weights_and_inputs import load

if TYPE_CHECKING:
    from trainyard.arrays.rivals.scnn import Scnn

Matrix = npt.NDArray[np.float64]


def execute(array: Scnn, weights: Matrix, inputs: Matrix) -> Execution:
    """Computes [outputs, positions] from `weights` [outputs, channels] and `inputs` [positions, channels]."""
    out = np.zeros((len(weights), len(inputs)))
    loaded, cycles = load(inputs, array.bandwidth, array.loading)
    for cut in array.rounds(*out.shape):
        for top in range(0, len(weights), cut.group):
            rows = slice(top, min(top + cut.group, len(weights)))
            ends = []
            for part in array.parts(weights.shape[1]):
                channels = slice(*part)
                for first in range(*cut.positions, cut.positions_each):
                    columns = slice(first, min(first + cut.positions_each, cut.positions[1]))
                    sums, end = element(array, weights[rows, channels], loaded[columns, channels])
                    out[rows, columns] += sums
                    ends.append(end)
                if array.broadcast:
                    ends.append(sum(-(-int(np.count_nonzero(column)) // array.wide) for column in weights[rows, channels].T))
            blocks = -(-(rows.stop - top) // array.wide) * -(-cut.positions_each // array.high)
            cycles += max(ends) + blocks * array.passing
    return Execution(product=out, cycles=cycles)


def element(array: Scnn, weights: Matrix, inputs: Matrix) -> tuple[Matrix, int]:
    """One processing element and one group of outputs: its sums, and the cycle in which the last bank is empty."""
    sums, now = np.zeros((len(weights), len(inputs))), 0
    banks: list[deque[tuple[int, int, float]]] = [deque() for _ in range(array.banks)]

    def add() -> None:
        for bank in banks:
            if bank:
                output, position, value = bank.popleft()
                sums[output, position] += value

    for channel in range(weights.shape[1]):
        outputs, positions = np.flatnonzero(weights[:, channel]), np.flatnonzero(inputs[:, channel])
        for first in range(0, len(positions), array.high):
            for start in range(0, len(outputs), array.wide):
                for position in positions[first : first + array.high]:
                    for output in outputs[start : start + array.wide]:
                        value = float(weights[output, channel] * inputs[position, channel])
                        banks[(array.high * output + position) % array.banks].append((int(output), int(position), value))
                add()
                now += 1
                while max(map(len, banks)) > array.queue:
                    add()
                    now += 1
    while any(banks):
        add()
        now += 1
    return sums, now
