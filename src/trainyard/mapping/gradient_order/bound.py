"""A lower bound on the traffic of dX and dW of a layer between DRAM and scratchpad, for every order, tile, partition and policy.

**Compulsory.** X, W, dY are read at least once, dX, dW written at least once.

**Capacity.** Write an execution as its 2 M N K multiplications, one after another (a tile operation is many of them with nothing
moved in between). Each needs its two operands and its sum in the scratchpad, of which there are S elements.

1. *Entries.* Let E count every time an element enters the scratchpad: operands read, sums created, sums read back. All but the
   creations are traffic; and to each creation belongs the one write of the finished result. So traffic >= E. (Partial sums of
   several cores: what enters is an element of the result. It is created with its first partial sum, and a partial sum created
   while no other of its element is resident follows a spill, which accounts for it.)
2. *Segments.* Cut the multiplications into h runs of G = 2 M N K / h each. If a run needs at least Z(G) different elements, then
   all but the at most S that were resident when it began enter during it, and in the first run all do:
   **E >= h Z(G) - (h - 1) S for every whole h.** One run (h = 1) gives the compulsory bytes again.
3. *What a run needs.* Let y, w, d, x, g be the elements of dY, W, dX, X, dW that it uses, p its multiplications for dX, q those for
   dW. Loomis and Whitney (1949): p <= sqrt(y w d), q <= sqrt(x y g). No element serves more often than the layer is long in the
   third direction: p <= y K, w M, d N and q <= y K, g M, x N; and y <= M N, w, g <= K N, d, x <= M K. For a given y the least
   w + d is a convex function of p, and the least g + x is the same function of q: p = q = G/2 is best. What is left, the least of
   y + 2 w + 2 d with y w d >= (G/2)^2 within these limits, has a closed form: all three terms level, except where a limit holds.

Far from the limits Z = 3 G^(2/3); the best run has Z = 3 S, and E >= 4 M N K / sqrt(S) + S, against 2 M N K / sqrt(S) + S of one
product (the leading term is that of T. M. Smith, B. Lowery, J. Langou, R. A. van de Geijn: A Tight I/O Lower Bound for Matrix
Multiplication, 2019, where C is an operand too).

**When a fused order can win.** It follows that for matrices large against sqrt(S) fusing gains nothing to first order: two
products, each with a stationary sqrt(S) x sqrt(S) block of sums, already move 4 M N K / sqrt(S) + M K + K N. A stationary m x n
block of dY (read once) moves 3/m + 3/n elements for each pair of multiplications, where the two stationary blocks of sums move
4/sqrt(S). What fusing can save is the second reading of dY, M N, and only in the limits (`regime`):

* dY stays (M N fits): resident, it is read once, also by all of dX first and all of dW later.
* weights stay (2 K N fits) or inputs stay (2 M K fits): one pass over the rows (columns) reads and writes all once. Apart, each
  product reads dY: fused wins M N of 2 M N + 2 K N + 2 M K.
* half stays (K N or M K fits, twice it does not): apart, each product is at its own least. Fused, k in b = ceil(2 K N / S) blocks
  reads dY b times, no less than apart; n in b blocks reads dY once and X b times, and dX leaves and comes back b - 1 times:
  3 (b - 1) M K instead of M N, a gain only where N > 3 (b - 1) K. The same with M for N.
* nothing stays: b blocks against 2 ceil(K N / S) readings apart, better by one at most, and the first-order law above.

The same argument for one of the two products, with all of the other but dY moving once, is sometimes better: the largest of the
three bounds counts. The hypothetical order `no_second_dy` does not read all that it uses and is outside.

Bytes: an element counts as many bytes as its entry moves at least, S as many as `capacity_bytes` can hold of elements that enter.
Where dX and X, or W and dW, differ in bytes, the smaller counts for both in the capacity term (the bound stays valid).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from trainyard.checks import require_positive
from trainyard.errors import BadInput
from trainyard.ir import MatMul
from trainyard.mapping.gradient_order.scratchpad import Pair

Regime = Literal["dY stays", "weights stay", "inputs stay", "half stays", "nothing stays"]
ROUNDING = 1e-9
"""Taken off the closed form, whose roots are floating-point numbers."""
GROWTH = 1.02
"""Step from one number of runs to the next that is tried, above 50: the best is flat, and any gives a true bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Lower bounds in bytes. `segments` is the number of runs whose argument gives the capacity term."""

    compulsory: int
    capacity: int
    segments: int

    @property
    def total(self) -> int:
        """The larger of both: the capacity term already counts first readings."""
        return max(self.compulsory, self.capacity)


def least_bytes(layer: Pair | MatMul, capacity_bytes: float, element_bytes: int | None = None) -> Bound:
    """The least bytes of both gradients of a forward product (of dX alone where the pair says `alone`).

    >>> round(least_bytes(MatMul(4096, 4096, 4096), 2 * 1024 * 1024, 2).total / (4 * 4096**3 / 1024 * 2), 3)  # 4 M N K / sqrt(S)
    1.004
    >>> least_bytes(MatMul(4096, 64, 64), 2 * 1024 * 1024, 2).total  # all moves once
    1589248
    """
    pair = _pair(layer, element_bytes)
    if isinstance(capacity_bytes, bool) or not capacity_bytes > 0:
        raise BadInput(f"capacity_bytes must be positive, got {capacity_bytes!r}")
    return _least(pair, float(capacity_bytes))


def least_bytes_alone(op: MatMul, capacity_bytes: float, element_bytes: int) -> Bound:
    """The least bytes of one product (M,K) x (K,N).

    >>> round(least_bytes_alone(MatMul(4096, 4096, 4096), 2 * 1024 * 1024, 2).total / (2 * 4096**3 / 1024 * 2), 3)
    1.008
    """
    dense = Pair.dense(MatMul(op.M, op.K, op.N, op.count), element_bytes)
    y, w, _, d, _ = dense.moved
    alone = Pair(op=dense.op, moved=(y, w, 0, d, 0), resident=(y, w, 0, d, 0), sums=(d, 0), alone=True)
    return least_bytes(alone, capacity_bytes)


def regime(layer: Pair | MatMul, capacity_bytes: float, element_bytes: int | None = None) -> Regime:
    """Which tensors of a layer can stay in the scratchpad while the rest streams, which says what fusing can gain.

    >>> [regime(MatMul(*sizes), 5000, 1) for sizes in [(64, 64, 900), (9000, 40, 50), (9000, 60, 60), (900, 900, 900)]]
    ['dY stays', 'weights stay', 'half stays', 'nothing stays']
    """
    pair = _pair(layer, element_bytes)
    m, n, k = pair.op.M, pair.op.N, pair.op.K
    y, w, x, d, g = pair.rates[:, 0].tolist()
    # with dY: a row of W, or a column of dX, and one element of the other; then the same of dW and X
    room_with_dy = max(min(n * w + d, m * d + w), min(n * g + x, m * x + g))
    # with W and dW: a row of dY and an element of dX, then of X; or a row of X and dX. With X and dX: the same for a column
    room_with_weights, room_with_inputs = min(n * y + max(x, d), k * (x + d) + y), min(m * y + max(w, g), k * (w + g) + y)
    if m * n * y + room_with_dy <= capacity_bytes:
        return "dY stays"
    if k * n * (w + g) + room_with_weights <= capacity_bytes:
        return "weights stay"
    if m * k * (x + d) + room_with_inputs <= capacity_bytes:
        return "inputs stay"
    # apart: W with a row, or dX with a column; dW with a row, or X with a column
    first = min(k * n * w + min(n * y + d, k * d + y), m * k * d + min(m * y + w, k * w + y))
    second = min(k * n * g + min(n * y + x, k * x + y), m * k * x + min(m * y + g, k * g + y))
    return "half stays" if max(first, second) <= capacity_bytes else "nothing stays"


def _pair(layer: Pair | MatMul, element_bytes: int | None) -> Pair:
    if isinstance(layer, Pair):
        return layer
    if element_bytes is None:
        raise BadInput(f"least_bytes of {layer} needs element_bytes; a Pair brings its own bytes")
    require_positive("least_bytes", element_bytes=element_bytes)
    return Pair.dense(layer, element_bytes)


@lru_cache(maxsize=65536)
def _least(pair: Pair, capacity: float) -> Bound:
    """The largest of the bounds for both products at once, and for either of them with the rest of the other once."""
    op = pair.op
    resident, moved, sums = pair.rates.T.tolist()
    y, w, x = moved[:3]
    d, g = min(moved[3], sums[3]), min(moved[4], sums[4])
    macs = op.M * op.N * op.K
    tensors = [(0, y), (1, w), (3, d)] if pair.alone else [(0, y), (1, w), (2, x), (3, d), (4, g)]
    # bytes that would have to come in, of what the scratchpad can hold
    room = capacity * max(value / resident[tensor] if resident[tensor] else math.inf for tensor, value in tensors)
    limits = (op.M * op.N, op.K * op.N, op.M * op.K)
    compulsory = sum(pair.moved[tensor] for tensor, _ in tensors)
    other_bytes = compulsory / op.count  # of the other product, all but dY moves once
    bounds = [_runs((y, w, d), limits, macs, room, other_bytes - limits[0] * y - limits[1] * w - limits[2] * moved[3])]
    if not pair.alone:
        bounds.append(_runs((y, g, x), limits, macs, room, other_bytes - limits[0] * y - limits[1] * moved[4] - limits[2] * x))
        # p = q: twice the smaller of W and dW, twice the smaller of X and dX
        bounds.append(_runs((y, 2 * min(w, g), 2 * min(x, d)), limits, macs, room))
    least, segments = max(bounds)
    return Bound(compulsory=compulsory, capacity=math.floor(least * op.count * (1 - ROUNDING)), segments=segments)


def _runs(
    weights: Sequence[float], limits: Sequence[int], macs: int, capacity: float, other_bytes: float = 0.0
) -> tuple[float, int]:
    """The largest h Z - (h - 1) S over numbers of runs h, plus `other_bytes`, and that h; `macs` are of one product."""
    best = (0.0, 1)
    for runs in _numbers():
        macs_of_run = macs // runs
        if macs_of_run == 0:
            break
        touched = _touched(weights, limits, macs, macs_of_run)
        best = max(best, (runs * touched - (runs - 1) * capacity if runs > 1 else touched, runs))
        if touched <= capacity:
            break
    return best[0] + other_bytes, best[1]


def _numbers() -> Iterator[int]:
    runs = 1
    while True:
        yield runs
        runs = max(runs + 1, int(runs * GROWTH))


def _touched(weights: Sequence[float], limits: Sequence[int], macs: int, macs_of_run: int) -> float:
    """The least weighted sum of three numbers of elements whose product is at least the square of a run's multiplications.

    An element of a tensor with e elements serves macs / e multiplications at most, so a run needs its share of each. The three
    terms of the least sum are equal where their limits allow: the level at which their product is large enough.
    """
    share = macs_of_run / macs
    boxes = [(weight * limit * share, weight * limit) for weight, limit in zip(weights, limits, strict=True)]
    if not all(weights):
        return sum(low for low, _ in boxes)
    target = math.prod(weights) * macs_of_run**2
    below = min(low for low, _ in boxes)
    for corner in sorted({corner for box in boxes for corner in box}):
        if math.prod(min(max(corner, low), high) for low, high in boxes) >= target:
            free = [box for box in boxes if box[0] <= below and box[1] >= corner]
            fixed = math.prod(low if low > below else high for low, high in boxes if (low, high) not in free)
            level = (target / fixed) ** (1 / len(free)) if free else corner
            return sum(min(max(level, low), high) for low, high in boxes)
        below = corner
    return sum(high for _, high in boxes)
