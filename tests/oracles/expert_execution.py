"""A mixture of experts on several ranks with real numbers: rows are sent to the ranks of their experts and back, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Choice = npt.NDArray[np.int64]


@dataclass
class Ranks:
    """What every rank has after one step, and the elements that left each rank in each exchange."""

    outputs: list[Array]
    input_gradients: list[Array]
    up_gradients: list[Array]
    down_gradients: list[Array]
    left: list[list[int]] = field(default_factory=list)


def balanced(tokens: int, experts: int, top: int) -> Choice:
    """Token r chooses experts (r * top + j) mod experts."""
    return (np.arange(tokens * top) % experts).reshape(tokens, top)


def dense(tokens: Array, choice: Choice, up: Array, down: Array, gradient: Array) -> tuple[Array, Array, Array, Array]:
    """Outputs and gradients of tokens, up and down on one device: sum over chosen experts of relu(x U) D."""
    outputs, back = np.zeros_like(tokens), np.zeros_like(tokens)
    up_back, down_back = np.zeros_like(up), np.zeros_like(down)
    for token, chosen in enumerate(choice):
        for expert in chosen:
            before = tokens[token] @ up[expert]
            hidden = np.maximum(before, 0)
            outputs[token] += hidden @ down[expert]
            down_back[expert] += np.outer(hidden, gradient[token])
            before_back = (gradient[token] @ down[expert].T) * (before > 0)
            up_back[expert] += np.outer(tokens[token], before_back)
            back[token] += before_back @ up[expert].T
    return outputs, back, up_back, down_back


class Exchange:
    """Moves rows between ranks and counts the elements that leave each."""

    def __init__(self, ranks: int) -> None:
        self.left: list[list[int]] = []
        self.ranks = ranks

    def __call__(self, sent: Sequence[Sequence[tuple[int, tuple[int, ...], Array]]]) -> list[dict[tuple[int, ...], Array]]:
        """`sent[rank]` are (target, name of the row, row); what every rank received, by name."""
        received: list[dict[tuple[int, ...], Array]] = [{} for _ in range(self.ranks)]
        leaving = [0] * self.ranks
        for rank, rows in enumerate(sent):
            for target, name, row in rows:
                received[target][name] = row
                leaving[rank] += row.size * (target != rank)
        self.left.append(leaving)
        return received


def execute(tokens: Sequence[Array], choices: Sequence[Choice], up: Array, down: Array, gradients: Sequence[Array]) -> Ranks:
    """One step with the experts spread over as many ranks as there are arrays of tokens."""
    ranks, experts = len(tokens), len(up)
    own = experts // ranks
    exchange = Exchange(ranks)

    def dispatch(rows: Sequence[Array]) -> list[dict[tuple[int, ...], Array]]:
        """Every (rank, token, place) row to the rank of its expert."""
        sent: list[list[tuple[int, tuple[int, ...], Array]]] = [[] for _ in range(ranks)]
        for rank, choice in enumerate(choices):
            for (token, place), expert in np.ndenumerate(choice):
                sent[rank].append((int(expert) // own, (rank, token, place), rows[rank][token]))
        return exchange(sent)

    def combine(results: list[dict[tuple[int, ...], Array]]) -> list[Array]:
        """Every row back to its token, where the rows of a token are summed."""
        back = exchange([[(name[0], name, row) for name, row in held.items()] for held in results])
        sums = [np.zeros_like(own_tokens) for own_tokens in tokens]
        for rank, rows in enumerate(back):
            for (_, token, _), row in rows.items():
                sums[rank][token] += row
        return sums

    arrived = dispatch(tokens)
    before = [{name: row @ up[choices[name[0]][name[1], name[2]]] for name, row in held.items()} for held in arrived]
    results = [
        {name: np.maximum(row, 0) @ down[choices[name[0]][name[1], name[2]]] for name, row in held.items()} for held in before
    ]
    outputs = combine(results)
    gradient_rows = dispatch(gradients)
    up_back = [np.zeros((own, *up.shape[1:])) for _ in range(ranks)]
    down_back = [np.zeros((own, *down.shape[1:])) for _ in range(ranks)]
    row_back: list[dict[tuple[int, ...], Array]] = [{} for _ in range(ranks)]
    for rank in range(ranks):
        for name, row in gradient_rows[rank].items():
            expert = int(choices[name[0]][name[1], name[2]])
            hidden = np.maximum(before[rank][name], 0)
            down_back[rank][expert % own] += np.outer(hidden, row)
            inner = (row @ down[expert].T) * (before[rank][name] > 0)
            up_back[rank][expert % own] += np.outer(arrived[rank][name], inner)
            row_back[rank][name] = inner @ up[expert].T
    return Ranks(outputs, combine(row_back), up_back, down_back, exchange.left)
