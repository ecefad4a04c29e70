"""Compiled: compute cycles of tiles from closed forms (`ir.folds`): exact for a tile, and lower bounds for ranges of sizes.

A form is a row of `ir.folds.Folds` or `Pooled`. A third kind stands for an array of which nothing is known but its multipliers
(`IDEAL`): a tile takes ceil(m n k / multipliers) cycles, which is a bound for every array.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from trainyard.kernels.uncounted import inlined, uncounted

Ints = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]

SMALLER = 1.0 - 1e-12
"""Factor that keeps a count of tiles from being rounded up."""
MOST_CYCLES = 2**53
"""The most cycles that are counted: sums stay exact as floats, and far below 2**63."""
IDEAL = -1
"""In the column of `Pooled.pool`: an ideal array with as many multipliers as the column after it says."""


@njit(cache=True, error_model="numpy", inline="always")
def stored_elements(across: float, k: float, share: int) -> float:
    """Elements of the stationary operand that are stored; `share` is in units of 1 / 2**20 (`SHARE_ONE`)."""
    return float((int(across) * int(k) * share + (1 << 20) - 1) >> 20)


@uncounted
def _pooled(m: int, n: int, k: int, form: Ints) -> int:
    """`Pooled.cycles`."""
    chunk, drain, pool, load, share = form[2], form[4], form[7], form[8], form[9]
    across, vectors = (n, m) if form[3] == 0 else (m, n)
    stationary = int(stored_elements(across, k, share))
    folds = (stationary + pool - 1) // pool
    passes = folds
    if chunk > 0:
        passes = k // chunk * ((int(stored_elements(across, chunk, share)) + pool - 1) // pool)
        passes += (int(stored_elements(across, k % chunk, share)) + pool - 1) // pool
    return int((stationary + load - 1) // load + passes * vectors + drain * (passes if form[5] == 1 else folds))


@njit(cache=True, error_model="numpy", inline="always")
def _folded(along_m: int, along_n: int, along_k: int, form: Ints) -> int:
    """`Folds.cycles` of a tile of so many folds along each axis."""
    if form[3] == 0:
        folds, steps = along_n * along_k, along_m
    elif form[3] == 1:
        folds, steps = along_m * along_k, along_n
    else:
        folds, steps = along_m * along_n, along_k
    if form[6] > 1:
        folds = (folds + form[6] - 1) // form[6]
    interval = form[4] + steps if form[5] < 0 else max(steps, form[5])
    return int((folds - 1) * interval + form[4] + steps)


@uncounted
def form_cycles(m: int, n: int, k: int, form: Ints) -> int:
    """Cycles of a tile by one form."""
    if form[7] > 0:
        return int(_pooled(m, n, k, form))
    if form[7] == IDEAL:
        return int(np.ceil(float(m) * n * k / form[8]))
    return _folded((m + form[0] - 1) // form[0], (n + form[1] - 1) // form[1], (k + form[2] - 1) // form[2], form)


@uncounted
def cycles_of(m: int, n: int, k: int, forms: Ints) -> int:
    """The least of all forms."""
    best = -1
    for index in range(forms.shape[0]):
        cycles = form_cycles(m, n, k, forms[index])
        best = cycles if best < 0 or cycles < best else best
    return int(best)


@njit(cache=True, error_model="numpy", inline="always")
def _folds_along(size: int, side: int) -> int:
    return (size + side - 1) // side


@inlined
def kinds_of(tile: Ints, forms: Ints, kinds: Ints) -> float:
    """Cycles of the (at most) 8 kinds of tile, and of one product in all, as a real number: it can leave 64 bits."""
    total, single = 0.0, forms.shape[0] == 1 and forms[0, 7] == 0
    full_m, full_n, full_k, last_m, last_n, last_k = 0, 0, 0, 0, 0, 0
    if single:  # folds along an axis are counted once
        full_m, last_m = _folds_along(tile[0, 0], forms[0, 0]), _folds_along(tile[0, 2], forms[0, 0])
        full_n, last_n = _folds_along(tile[1, 0], forms[0, 1]), _folds_along(tile[1, 2], forms[0, 1])
        full_k, last_k = _folds_along(tile[2, 0], forms[0, 2]), _folds_along(tile[2, 2], forms[0, 2])
    for em in range(2):
        for en in range(2):
            for ek in range(2):
                weight = float(1 if em else tile[0, 1] - 1) * (1 if en else tile[1, 1] - 1) * (1 if ek else tile[2, 1] - 1)
                if weight == 0.0:
                    kinds[em, en, ek] = 0
                    continue
                if single:
                    m, n, k = last_m if em else full_m, last_n if en else full_n, last_k if ek else full_k
                    kinds[em, en, ek] = _folded(m, n, k, forms[0])
                else:
                    kinds[em, en, ek] = cycles_of(tile[0, 2 * em], tile[1, 2 * en], tile[2, 2 * ek], forms)
                total += weight * kinds[em, en, ek]
    return total


@njit(cache=True, error_model="numpy", inline="always")
def least_edge(extent: float, low: float, high: float, count: float) -> float:
    """The least size of the last of at least `count` tiles between two sizes."""
    if np.ceil(extent / low) > count:
        return 1.0
    return float(max(1.0, extent - (count - 1.0) * np.floor(high)))


@njit(cache=True, error_model="numpy", inline="always")
def _over(extent: float, tiles: float, low: float, edge: float, side: float, exact: bool) -> float:
    """The fewest folds of a dimension in at least so many tiles of at least `low` elements, but for the last one with `edge`."""
    if not exact:
        return extent / side
    return float(max(np.ceil(extent / side), (tiles - 1.0) * np.ceil(low / side) + np.ceil(edge / side)))


@uncounted
def least_busy(
    dims: Ints, low_m: float, low_n: float, low_k: float, high_m: float, high_n: float, high_k: float, tiles: float, forms: Ints
) -> float:  # fmt: skip
    """A lower bound on the compute cycles of one product that is cut into tiles between these sizes, at least so many of them.

    With one form, tiles and folds are whole. With several, each tile takes its best form, the last ones perhaps another than full
    ones: then no form may count for more than the elements of a tile are worth in it at least.
    """
    best, exact = np.inf, forms.shape[0] == 1
    m, n, k = float(dims[0]), float(dims[1]), float(dims[2])
    tiles_m, tiles_n, tiles_k = m / high_m * SMALLER, n / high_n * SMALLER, k / high_k * SMALLER
    if exact:
        tiles_m, tiles_n, tiles_k = np.ceil(tiles_m), np.ceil(tiles_n), np.ceil(tiles_k)
    for index in range(forms.shape[0]):
        form = forms[index]
        if form[7] > 0:
            across, vectors = (n, m) if form[3] == 0 else (m, n)
            stationary, streamed = (tiles_n * tiles_k, tiles_m) if form[3] == 0 else (tiles_m * tiles_k, tiles_n)
            stored = across * k * form[9] / 1048576.0
            folds = max(stored / form[7], stationary)
            cycles = streamed * max(stored / form[8], stationary) + folds * vectors + form[4] * max(folds * streamed, tiles)
        elif form[7] == IDEAL:
            cycles = max(m * n * k / form[8], tiles_m * tiles_n * tiles_k, tiles)
        else:
            along_m = _over(m, tiles_m, low_m, least_edge(m, low_m, high_m, tiles_m), form[0], exact)
            along_n = _over(n, tiles_n, low_n, least_edge(n, low_n, high_n, tiles_n), form[1], exact)
            along_k = _over(k, tiles_k, low_k, least_edge(k, low_k, high_k, tiles_k), form[2], exact)
            if form[3] == 0:
                folds, streamed, steps, apart = along_n * along_k, tiles_m, along_m, tiles_n * tiles_k
            elif form[3] == 1:
                folds, streamed, steps, apart = along_m * along_k, tiles_n, along_n, tiles_m * tiles_k
            else:
                folds, streamed, steps, apart = along_m * along_n, tiles_k, along_k, tiles_m * tiles_n
            folds, alone = max(folds / form[6], apart), streamed * form[4] + steps
            if form[5] < 0:
                cycles = folds * alone
            else:
                interval = max(steps, streamed * form[5])
                cycles = (folds - apart) * interval + apart * alone if interval <= alone else folds * alone
            cycles = max(cycles, tiles * form[4] + folds * steps)
        best = min(best, cycles)
    return best
