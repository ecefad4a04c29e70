"""An overlay that really runs: a small network in numpy under a choice, its bytes in a store, its memory counted.

Forward does the ops in order, backward the same in reverse: positions 0 to 2n - 1. Values that a choice sends are put into the
store as bytes and taken out again, those that it makes again are computed again by the same op, and nothing else is there: an op
whose operand is not in memory fails, and so does an allocation beyond the budget. Gradients are the same bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput
from trainyard.mapping.overlay.policy import NEVER, Choice, Problem, Saved, completed, needs, orders

Matrix = npt.NDArray[np.float32]
Kind = Literal["matmul", "relu", "normalise", "add"]


class Store(Protocol):
    """The second memory."""

    def put(self, name: str, content: bytes) -> None: ...

    def get(self, name: str) -> bytes: ...


class Memory:
    """Arrays by name, counted against a budget."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes, self.used_bytes, self.peak_bytes = budget_bytes, 0, 0
        self.arrays: dict[str, Matrix] = {}

    def take(self, name: str, array: Matrix) -> None:
        self.used_bytes += array.nbytes - (self.arrays[name].nbytes if name in self.arrays else 0)
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        if self.used_bytes > self.budget_bytes:
            raise BadInput(f"{name} needs {array.nbytes} bytes: {self.used_bytes} in use of a budget of {self.budget_bytes}")
        self.arrays[name] = array

    def drop(self, name: str) -> None:
        self.used_bytes -= self.arrays.pop(name).nbytes

    def __getitem__(self, name: str) -> Matrix:
        if name not in self.arrays:
            raise BadInput(f"{name} is not in memory")
        return self.arrays[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Value 0 is the input; op i makes value i + 1, of `widths[i + 1]` columns, from the values `reads[i]`.

    The loss is half the sum of squares of the last value. Weights, their gradients and the input are always there, not counted.
    """

    batch: int
    widths: tuple[int, ...]
    kinds: tuple[Kind, ...]
    reads: tuple[tuple[int, ...], ...]
    seed: int = 0

    def bytes_of(self, value: int) -> int:
        return 4 * self.batch * self.widths[value]

    def needed(self, op: int) -> tuple[int, ...]:
        """The values that backward of an op reads."""
        kind, end = self.kinds[op], len(self.kinds)
        values = (op + 1,) if kind == "relu" else () if kind == "add" else self.reads[op]
        return tuple(dict.fromkeys((*values, *((end,) if op == end - 1 else ()))))

    def problem(self, *, seconds: float = 1e-3, bytes_per_s: float = 1e6) -> Problem:
        """Every value but the input as a saved tensor that can be made again from what its op reads."""
        count = len(self.kinds)
        last = 2 * count - 1
        saved = []
        for value in range(1, count + 1):
            forward = [op for op in range(count) if value in self.reads[op]]
            backward = [last - op for op in range(count) if value in self.needed(op)]
            one = Saved(
                name=f"value {value}",
                bytes=self.bytes_of(value),
                produced=value - 1,
                last_forward=max([value - 1, *forward]),
                first_backward=min(backward, default=NEVER),
                last_backward=max(backward, default=NEVER),
                recompute_s=seconds,
                sources=tuple(sorted({source - 1 for source in self.reads[value - 1] if source})),
            )
            saved.append(one)
        held = [0] * (last + 1)
        for value in range(count + 1):  # its gradient, from the last op that reads it to the one that makes it
            begins = last - max([op for op in range(count) if value in self.reads[op]], default=count - 1)
            for position in range(begins, (last - (value - 1) if value else last) + 1):
                held[position] += self.bytes_of(value)
        return Problem(
            durations_s=(seconds,) * (last + 1),
            other_bytes=tuple(held),
            saved=tuple(saved),
            out_bytes_per_s=bytes_per_s,
            in_bytes_per_s=bytes_per_s,
        )

    def tensors(self) -> tuple[Matrix, dict[int, Matrix]]:
        """The input, and the weights by op."""
        rng = np.random.default_rng(self.seed)
        first = rng.standard_normal((self.batch, self.widths[0]), np.float32)
        shapes = {
            op: (self.widths[self.reads[op][0]], self.widths[op + 1]) for op, kind in enumerate(self.kinds) if kind == "matmul"
        }
        return first, {op: rng.standard_normal(shape, np.float32) for op, shape in shapes.items()}


def gradients(network: Network, choice: Choice, store: Store, memory: Memory) -> dict[str, Matrix]:
    """Gradients of the weights (by op) and of the input, computed as the choice says."""
    return _Run(network, choice, store, memory).gradients()


class _Run:
    def __init__(self, network: Network, choice: Choice, store: Store, memory: Memory) -> None:
        self.network, self.store, self.memory = network, store, memory
        self.problem = network.problem()
        self.choice = completed(self.problem, choice)
        self.needed = needs(self.problem, self.choice.decisions, self.choice.recompute_at)
        self.copies, self.fetches, self.remade = orders(self.problem, self.choice)
        self.input, self.weights = network.tensors()
        self.found: dict[str, Matrix] = {}

    def gradients(self) -> dict[str, Matrix]:
        count = len(self.network.kinds)
        for position in range(2 * count):
            self._begin(position)
            if position < count:
                self.memory.take(_name(position + 1), self._forward(position))
            else:
                self._backward(2 * count - 1 - position)
            self._end(position)
        return self.found

    def _begin(self, position: int) -> None:
        """What had to leave is gone, what may come comes, what is made again is made."""
        for index in self.copies:
            if self.choice.leave_by[index] == position <= (self.choice.fetch_at[index] or 0):
                self.memory.drop(_name(index + 1))
        for index in self.fetches:
            if self.choice.fetch_at[index] == position:
                self.memory.take(_name(index + 1), self._fetched(index + 1))
        for index in self.remade:
            if self.choice.recompute_at[index] == position:
                self.memory.take(_name(index + 1), self._forward(index))

    def _end(self, position: int) -> None:
        """What leaves is copied; what is used no more goes."""
        for index, one in enumerate(self.problem.saved):
            name, decision = _name(index + 1), self.choice.decisions[index]
            if position == one.last_forward:
                if self.choice.fetch_at[index] is not None:
                    self.store.put(name, self.memory[name].tobytes())
                elif self.needed.first[index] == NEVER or decision == "recompute":
                    self.memory.drop(name)
            if position == self.needed.last[index] != NEVER:
                self.memory.drop(name)

    def _fetched(self, value: int) -> Matrix:
        content = np.frombuffer(self.store.get(_name(value)), np.float32)
        return content.reshape(self.network.batch, self.network.widths[value])

    def _value(self, value: int) -> Matrix:
        return self.input if value == 0 else self.memory[_name(value)]

    def _forward(self, op: int) -> Matrix:
        one, *rest = (self._value(value) for value in self.network.reads[op])
        kind = self.network.kinds[op]
        if kind == "matmul":
            return one @ self.weights[op]
        if kind == "relu":
            return np.maximum(one, np.float32(0))
        return one + rest[0] if kind == "add" else _normalised(one)[0]

    def _backward(self, op: int) -> None:
        kind, reads, memory = self.network.kinds[op], self.network.reads[op], self.memory
        if op == len(self.network.kinds) - 1:
            memory.take(f"gradient {op + 1}", self._value(op + 1).copy())
        above = memory[f"gradient {op + 1}"]
        if kind == "matmul":
            self.found[f"weight {op}"] = self._value(reads[0]).T @ above
            below = above @ self.weights[op].T
        elif kind == "relu":
            below = above * (self._value(op + 1) > 0)
        elif kind == "normalise":
            result, scale = _normalised(self._value(reads[0]))
            below = scale * (above - above.mean(1, keepdims=True) - result * (above * result).mean(1, keepdims=True))
        else:
            below = above
        for value in reads:
            name = f"gradient {value}"
            memory.take(name, memory[name] + below if name in memory.arrays else below.copy())
        memory.drop(f"gradient {op + 1}")
        if op == 0:
            self.found["input"] = memory["gradient 0"]


def _normalised(rows: Matrix) -> tuple[Matrix, Matrix]:
    """Each row with mean 0 and deviation 1, and what it was divided by, inverted."""
    centred = rows - rows.mean(1, keepdims=True)
    scale = 1 / ((centred * centred).mean(1, keepdims=True) + 1e-5) ** 0.5
    return centred * scale, scale


def _name(value: int) -> str:
    return f"value {value}"
