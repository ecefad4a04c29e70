"""Compiled: joules of a tiling on chip, from what closed forms (`ir.folds`) say of the scratchpad's ports, and lower bounds.

The plain twin is an array's own `tile_events` times an energy table. `prices` are joules of a byte between DRAM and scratchpad, of
a byte read from the scratchpad and written to it, of a byte through a local scratchpad, and of a busy cycle of the array.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from trainyard.kernels.mapping.tile_cycles import IDEAL, form_cycles, stored_elements
from trainyard.kernels.mapping.tiles import Ints, Real
from trainyard.kernels.uncounted import uncounted

MOVED, READ, WRITE, LOCAL, CYCLE = range(5)
PRICES = 5
"""Columns of `prices`, which all joules are proportional to."""
SUM_BYTES = 4.0
"""Bytes of a sum at the ports of scratchpads."""


@njit(cache=True, error_model="numpy", inline="always")
def _times(extent: int, width: int) -> int:
    """How often an element is read that serves `width` elements of a dimension at once; 0: all of them."""
    return (extent + width - 1) // width if width > 0 else 1


@uncounted
def _pooled_joules(m: int, n: int, k: int, form: Ints, a_bytes: float, b_bytes: float, prices: Real) -> float:
    """Of a fabric without a fixed shape: the stationary operand is read once, a vector once for each pass that it belongs to."""
    chunk, pool, share = form[2], form[7], form[9]
    across, vectors = (n, m) if form[3] == 0 else (m, n)
    stationary = stored_elements(across, k, share)
    if form[10] == 1:  # the elements keep vectors and sums
        streamed, spilled = float(vectors) * k, 0.0
    elif chunk > 0:
        in_chunk = np.ceil(stored_elements(across, chunk, share) / pool)
        in_tail = np.ceil(stored_elements(across, k % chunk, share) / pool)
        passes = k // chunk * in_chunk + in_tail
        streamed = vectors * (float(k - k % chunk) * in_chunk + (k % chunk) * in_tail)
        spilled = vectors * max(0.0, passes - 1.0) * across
    else:
        folds = np.ceil(stationary / pool)
        rest = stationary - (folds - 1.0) * pool
        streamed = float(vectors) * k * ((folds - 1.0) * min(1.0, pool / k) + min(1.0, rest / k))
        spilled = vectors * max(0.0, folds - 1.0)
    stays, moves = (b_bytes, a_bytes) if form[3] == 0 else (a_bytes, b_bytes)
    reads, writes = stationary * stays + streamed * moves + spilled * SUM_BYTES, (float(m) * n + spilled) * SUM_BYTES
    return float(prices[READ] * reads + prices[WRITE] * writes)


@uncounted
def _form_joules(m: int, n: int, k: int, form: Ints, a_bytes: float, b_bytes: float, prices: Real) -> float:
    """Joules at the ports while one tile is computed as a form says."""
    if form[7] > 0:
        return _pooled_joules(m, n, k, form, a_bytes, b_bytes, prices)
    left, right, sums = float(m) * k * a_bytes, float(k) * n * b_bytes, float(m) * n * SUM_BYTES
    if form[7] == IDEAL:
        return float(prices[READ] * (left + right) + prices[WRITE] * sums)
    times_a, times_b, times_sums = _times(n, form[10]), _times(m, form[11]), _times(k, form[12])
    joules = 0.0
    if prices[LOCAL] > 0.0:
        joules = prices[LOCAL] * (left * times_a + right * times_b + sums)
    units = form[13]
    if units > 0:  # a grid of units whose rows share reads of A, and whose columns share reads of B
        across = min(times_a, max(int(np.sqrt(units)), units // times_b))
        down = min(times_b, max(1, units // across))
        times_a, times_b = _times(times_a, across), _times(times_b, down)
    reads = left * times_a + right * times_b + sums * (times_sums - 1)
    return float(joules + prices[READ] * reads + prices[WRITE] * sums * times_sums)


@uncounted
def array_joules(tile: Ints, dims: Ints, rates: Real, forms: Ints, prices: Real, compute: float) -> float:
    """Joules of all tiles of a product on chip: its ports, and `compute` busy cycles; each tile takes the fastest form."""
    total = 0.0
    for em in range(2):
        for en in range(2):
            for ek in range(2):
                weight = float(1 if em else tile[0, 1] - 1) * (1 if en else tile[1, 1] - 1) * (1 if ek else tile[2, 1] - 1)
                if weight == 0.0:
                    continue
                m, n, k = tile[0, 2 * em], tile[1, 2 * en], tile[2, 2 * ek]
                fastest, cycles = 0, 0
                for index in range(forms.shape[0] if forms.shape[0] > 1 else 0):
                    own = form_cycles(m, n, k, forms[index])
                    if index == 0 or own < cycles:
                        fastest, cycles = index, own
                total += weight * _form_joules(m, n, k, forms[fastest], rates[6], rates[7], prices)
    begun = float(dims[0]) * dims[1] * (tile[2, 1] - 1)  # sums that an earlier tile has begun are read first
    return float((total + prices[READ] * begun * SUM_BYTES) * dims[3] + prices[CYCLE] * compute)


@njit(cache=True, error_model="numpy", inline="always")
def _least_times(extent: int, width: int, tiles: float) -> float:
    return float(max(np.ceil(extent / width), tiles)) if width > 0 else tiles


@uncounted
def least_joules(
    lm: float, ln: float, lk: float, cm: float, cn: float, ck: float, dims: Ints, rates: Real, forms: Ints, prices: Real,
    compute: float,
) -> float:  # fmt: skip
    """A lower bound of `array_joules`, of tiles with at least these sizes and at least so many along each axis."""
    m, n, k = float(dims[0]), float(dims[1]), float(dims[2])
    left, right, sums = m * k * rates[6], k * n * rates[7], m * n * SUM_BYTES
    best = np.inf
    for index in range(forms.shape[0]):
        form, joules = forms[index], 0.0
        if form[7] > 0:
            share = form[9] / 1048576.0
            again = max(1.0, (n if form[3] == 0 else m) * min(1.0, lk / form[7]) * share if form[2] == 0 and form[10] == 0 else 1.0)
            if form[3] == 0:
                ports = right * share * cm + left * max(cn, again)
            else:
                ports = left * share * cn + right * max(cm, again)
            joules = prices[READ] * (ports + sums * (ck - 1.0)) + prices[WRITE] * sums * ck
        elif form[7] == IDEAL:
            joules = prices[READ] * (left * cn + right * cm + sums * (ck - 1.0)) + prices[WRITE] * sums * ck
        else:
            times_a, times_b = _least_times(dims[1], form[10], cn), _least_times(dims[0], form[11], cm)
            if prices[LOCAL] > 0.0:
                joules = prices[LOCAL] * (left * times_a + right * times_b + sums * ck)
            units = form[13]
            if units > 0:
                square = np.floor(np.sqrt(units))
                across = max(square, np.floor(units / np.ceil(lm / max(form[11], 1))))
                down = units / max(1.0, min(np.ceil(ln / max(form[10], 1)), square))
                times_a, times_b = max(np.ceil(times_a / across), cn), max(np.ceil(times_b / down), cm)
            times_sums = _least_times(dims[2], form[12], ck)
            joules += prices[READ] * (left * times_a + right * times_b + sums * (times_sums - 1.0))
            joules += prices[WRITE] * sums * times_sums
        best = min(best, joules)
    return float(best * dims[3] + prices[CYCLE] * compute)
