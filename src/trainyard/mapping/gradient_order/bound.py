"""The least that dX and dW of a layer can move between DRAM and a scratchpad: no order, tile, partition or policy gets below.

**Compulsory.** X, W, dY are read at least once, dX, dW written at least once.

**Capacity.** Write an execution as its 2 M N K multiplications, one after another (a tile operation is many of them with nothing
moved in between). Each needs its two operands and its sum in the scratchpad, of which there are S elements.

1. *Entries.* Let E count every time an element comes into the scratchpad: operands read, sums created, sums read again. All but the
   creations are traffic; and to each creation belongs the one write of the finished result. So traffic >= E. (Partial sums of
   several cores: what enters is a place of the result. It is created when its first partial sum is, and a partial sum created while
   no other of its place is there follows a spill, which pays for it.)
2. *Segments.* Cut the multiplications into h runs of G = 2 M N K / h each. If a run needs at least Z(G) different elements, then
   all but the at most S that were there when it began come in during it, and in the first run all do:
   **E >= h Z(G) - (h - 1) S for every whole h.** One run (h = 1) gives the compulsory bytes again.
3. *What a run needs.* Let y, w, d, x, g be the elements of dY, W, dX, X, dW that it uses, p its multiplications for dX, q those for
   dW. Loomis and Whitney (1949): p <= sqrt(y w d), q <= sqrt(x y g). No element serves more often than the layer is long in the
   third direction: p <= y K, w M, d N and q <= y K, g M, x N; and y <= M N, w, g <= K N, d, x <= M K. For a given y the least
   w + d is a convex function of p, and the least g + x is the same function of q: p = q = G/2 is best. What is left, the least of
   y + 2 w + 2 d with y w d >= (G/2)^2 within these limits, has a closed form: all three terms level, except where a limit holds.

Far from the limits Z = 3 G^(2/3); the best run has Z = 3 S, and E >= 4 M N K / sqrt(S) + S, against 2 M N K / sqrt(S) + S of one
product (the leading term is that of T. M. Smith, B. Lowery, J. Langou, R. A. van de Geijn: A Tight I/O Lower Bound for Matrix
Multiplication, 2019, where C is an operand too).

**When a fused order can win.** It follows that for matrices large against sqrt(S) fusing is worth nothing to first order: two
products, each with a sqrt(S) x sqrt(S) block of sums held still, already move 4 M N K / sqrt(S) + M K + K N. Holding dY still
instead (an m x n block of it, read once) moves 3/m + 3/n elements for each pair of multiplications, where both held sums together
move 4/sqrt(S). What fusing can save is the second reading of dY, M N, and only in the limits (`regime`):

* dY stays (M N fits): held in place it is read once, also by all of dX first and all of dW later.
* weights stay (2 K N fits) or inputs stay (2 M K fits): one pass over the rows (columns) reads and writes all once. Apart, each
  product reads dY: fused wins M N of 2 M N + 2 K N + 2 M K.
* half stays (K N or M K fits, twice it does not): apart, each product is at its own least. Fused, k in b = ceil(2 K N / S) blocks
  reads dY b times, no less than apart; n in b blocks reads dY once and X b times, and dX leaves and comes back b - 1 times:
  3 (b - 1) M K instead of M N, a gain only where N > 3 (b - 1) K. The same with M for N.
* nothing stays: b blocks against 2 ceil(K N / S) readings apart, better by one at most, and the first-order law above.

The same argument for one of the two products, with all of the other but dY moving once, is sometimes better: the best of the three
counts. The hypothetical order `no_second_dy` does not read all that it uses and is outside.

Bytes: an element counts as many bytes as one coming in moves at least, S as many as `capacity_bytes` can hold of what would come
in. Where dX and X, or W and dW, differ in bytes, the smaller counts for both in the capacity term (the bound stays true).
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
from trainyard.mapping.gradient_order.scratchpad import Pair, Traffic

Regime = Literal["dY stays", "weights stay", "inputs stay", "half stays", "nothing stays"]
ROUNDING = 1e-9
"""Taken off the closed form, whose roots are floating-point numbers."""
GROWTH = 1.02
"""Step from one number of runs to the next that is tried, above 50: the best is flat, and any gives a true bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Bytes that nothing gets below. `segments` is the number of runs whose argument gives the capacity term."""

    compulsory: int
    capacity: int
    segments: int

    @property
    def total(self) -> int:
        """The larger: the capacity term already counts first readings."""
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
    """The same for one product (M,K) x (K,N), whichever.

    >>> round(least_bytes_alone(MatMul(4096, 4096, 4096), 2 * 1024 * 1024, 2).total / (2 * 4096**3 / 1024 * 2), 3)
    1.008
    """
    dense = Pair.dense(MatMul(op.M, op.K, op.N, op.count), element_bytes)
    y, w, _, d, _ = dense.moved
    alone = Pair(op=dense.op, moved=(y, w, 0, d, 0), held=(y, w, 0, d, 0), sums=(d, 0), alone=True)
    return least_bytes(alone, capacity_bytes)


def distance(traffic: Traffic | int, bound: Bound) -> float:
    """How many times the least bytes were moved.

    >>> distance(150, Bound(compulsory=100, capacity=120, segments=3))
    1.25
    """
    moved = traffic if isinstance(traffic, int) else traffic.total_bytes
    return moved / bound.total


def regime(layer: Pair | MatMul, capacity_bytes: float, element_bytes: int | None = None) -> Regime:
    """What of a layer can stay in the scratchpad while the rest streams by element for element, which says what fusing can win.

    >>> [regime(MatMul(*sizes), 5000, 1) for sizes in [(64, 64, 900), (9000, 40, 50), (9000, 60, 60), (900, 900, 900)]]
    ['dY stays', 'weights stay', 'half stays', 'nothing stays']
    """
    pair = _pair(layer, element_bytes)
    m, n, k = pair.op.M, pair.op.N, pair.op.K
    y, w, x, d, g = pair.rates[:, 0].tolist()
    # with dY: a row of W, or a column of dX, and one element of the other; then the same of dW and X
    beside_y = max(min(n * w + d, m * d + w), min(n * g + x, m * x + g))
    # with W and dW: a row of dY and an element of dX, then of X; or a row of X and dX. With X and dX: the same for a column
    beside_weights, beside_inputs = min(n * y + max(x, d), k * (x + d) + y), min(m * y + max(w, g), k * (w + g) + y)
    if m * n * y + beside_y <= capacity_bytes:
        return "dY stays"
    if k * n * (w + g) + beside_weights <= capacity_bytes:
        return "weights stay"
    if m * k * (x + d) + beside_inputs <= capacity_bytes:
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
    """The best of: both products at once; one of them, with the rest of the other once."""
    op = pair.op
    held, moved, sums = pair.rates.T.tolist()
    y, w, x = moved[:3]
    d, g = min(moved[3], sums[3]), min(moved[4], sums[4])
    macs = op.M * op.N * op.K
    counted = [(0, y), (1, w), (3, d)] if pair.alone else [(0, y), (1, w), (2, x), (3, d), (4, g)]
    # bytes that would have to come in, of what the scratchpad can hold
    stays = capacity * max(value / held[place] if held[place] else math.inf for place, value in counted)
    limits = (op.M * op.N, op.K * op.N, op.M * op.K)
    whole = sum(pair.moved[place] for place, _ in counted)
    beside = whole / op.count  # of the other product, all but dY moves once
    found = [_runs((y, w, d), limits, macs, stays, beside - limits[0] * y - limits[1] * w - limits[2] * moved[3])]
    if not pair.alone:
        found.append(_runs((y, g, x), limits, macs, stays, beside - limits[0] * y - limits[1] * moved[4] - limits[2] * x))
        # p = q: twice the smaller of W and dW, twice the smaller of X and dX
        found.append(_runs((y, 2 * min(w, g), 2 * min(x, d)), limits, macs, stays))
    least, segments = max(found)
    return Bound(compulsory=whole, capacity=math.floor(least * op.count * (1 - ROUNDING)), segments=segments)


def _runs(weights: Sequence[float], limits: Sequence[int], macs: int, stays: float, beside: float = 0.0) -> tuple[float, int]:
    """The largest h Z - (h - 1) S over numbers of runs h, plus `beside`, and that h; `macs` are those of one product."""
    best = (0.0, 1)
    for runs in _numbers():
        macs_of_run = macs // runs
        if macs_of_run == 0:
            break
        touched = _touched(weights, limits, macs, macs_of_run)
        best = max(best, (runs * touched - (runs - 1) * stays if runs > 1 else touched, runs))
        if touched <= stays:
            break
    return best[0] + beside, best[1]


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
