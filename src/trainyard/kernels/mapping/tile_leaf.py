"""Compiled: exact evaluation of one tile in all loop orders, with all choices of what is kept, at several bandwidths."""

from __future__ import annotations

from numba import njit

from trainyard.kernels.mapping.tile_bounds import (
    BELOW,
    HALO,
    KEPT_MIDDLE,
    moved_bytes,
    needed_bytes,
    passes_of,
    spans_of,
    value_of,
    without,
)
from trainyard.kernels.mapping.tile_cycles import MOST_CYCLES, kinds_of
from trainyard.kernels.mapping.tile_energy import MOVED, array_joules
from trainyard.kernels.mapping.tile_front import offer, standing
from trainyard.kernels.mapping.tiles import ORDERS, Ints, Real, cut_sizes, cycles_of_steps, step_kinds, transfer
from trainyard.kernels.uncounted import inlined, uncounted

ABOVE = 1.0 + 1e-9
"""Factor that keeps an estimate from refusing in spite of rounding."""
SLACK = 1.005
"""A cell that cannot beat the best by this factor is not split further: half of the default tolerance (`slack_of`)."""


@njit(cache=True, error_model="numpy", inline="always")
def slack_of(tolerance: float) -> float:
    """The factor that a proof may leave: half of the tolerance; the other half is for tilings with less traffic."""
    return min(SLACK, 1.0 + 0.5 * tolerance)


@njit(cache=True, error_model="numpy", inline="always")
def keep_bits(order: Ints, kept: int) -> int:
    bits = 0
    if kept >= 1:
        bits |= 1 << without(order[1])
    if kept == 2:
        bits |= 1 << without(order[0])
    return bits


@inlined
def _write_ends(tile: Ints, spans: Real, rates: Real, speeds: Real, latency: int, kinds: Ints, ends: Real) -> None:
    """By bandwidth the cycles of the first fill and the last drain, and those of the last tile in which the DRAM has nothing to do:
    while it is computed, only sums of the one before leave; then the cycles of a byte."""
    m, n, k = tile[0, 0], tile[1, 0], tile[2, 0]
    out = max(spans[2, 0] * rates[2], m * rates[3]) * n
    for at in range(speeds.shape[0]):
        ends[at, 0] = transfer(spans[0, 0] * spans[1, 0] * rates[0] + float(k * n) * rates[1], speeds[at], latency)
        ends[at, 0] += transfer(spans[2, 1] * tile[1, 2] * rates[2], speeds[at], latency)
        ends[at, 1] = max(0.0, float(kinds[1, 1, 1] - transfer(out, speeds[at], latency)))
        ends[at, 2] = BELOW / speeds[at]


@njit(cache=True, error_model="numpy", inline="always")
def _demand(
    tile: Ints, order: int, kept: int, dims: Ints, rates: Real, totals: Real, once: float, again_a: float, held: Real
) -> tuple[float, float, float]:  # fmt: skip
    """Bytes of the scratchpad that a tile needs (without halos of kept tensors), bytes that it moves, and its bursts at least.

    `once` are the bytes of moving all tensors once, `again_a` those of moving A once more, `held` the bytes of a tile of each.
    """
    x, y, z = ORDERS[order, 0], ORDERS[order, 1], ORDERS[order, 2]
    outer, middle, inner = tile[x, 1], tile[y, 1], tile[z, 1]
    again, last = without(y), without(x)
    needed = held[0] + held[1] + held[2]
    if kept:
        needed += held[again] * (float(dims[z]) / float(tile[z, 0]) - 1.0)
    if kept == 2:
        whole = float(dims[y]) * dims[z] * (rates[4] if last == 0 else (rates[5] if last == 1 else rates[3]))
        needed += whole - held[last]
    moved = once
    if kept == 0 and inner > 1:
        moved += (middle - 1) * (again_a if again == 0 else totals[3 + again])
    if kept < 2 and (inner > 1 or middle > 1):
        moved += (outer - 1) * (again_a if last == 0 else totals[3 + last])
    loads = float(outer * middle * inner)
    if kept == 2:
        loads = float(max(tile[0, 1], tile[1, 1]) * tile[2, 1])
        loads = max(loads, float(tile[0, 1] * tile[1, 1])) if totals[2] > 0.0 else loads
    elif kept == 1 and order >= 4 and totals[2] == 0.0:
        loads -= float((inner - 1) * middle)
    return needed, moved, loads


@inlined
def _stalls(tile: Ints, inner: int, count: int, rates: Real, speed: float, latency: int, kinds: Ints) -> float:
    """A lower bound on the stall cycles of the inner loop: between two full tiles, the loads of the second one."""
    if tile[0, 1] == 1 or tile[1, 1] == 1 or tile[2, 1] == 1:
        return 0.0
    m, n, k = float(tile[0, 0]), float(tile[1, 0]), float(tile[2, 0])
    load = (0.0 if inner == 1 else m * k * rates[0]) + (0.0 if inner == 0 else k * n * rates[1])
    waits = float(transfer(load, speed, latency) - kinds[0, 0, 0])
    if waits <= 0.0:
        return 0.0
    many = float(count)
    for axis in range(3):
        full = tile[axis, 1] if tile[axis, 2] == tile[axis, 0] else tile[axis, 1] - 1
        many *= max(0, full - 1 if axis == inner else full)
    return many * waits


@uncounted
def evaluate_leaf(
    m: int, n: int, k: int, dims: Ints, rates: Real, totals: Real, halo: Real, forms: Ints, speeds: Real, space: float,
    latency: int, objective: int, joules: Real, prices: Real, band: float, tolerance: float, ways: int, fronts: Real,
    entries: Ints, stand: Real, floors: Real, smooth: Real, room: Ints, spans: Real, kinds: Ints, rows: Real, ends: Real,
) -> bool:  # fmt: skip
    """Evaluates one tile in all orders, with all choices of what is kept; returns whether any is as good as the best so far."""
    tile, passes, held, spent, better = room[0:3], room[3], ends[speeds.shape[0]], 0.0, False
    cut_sizes(tile, 0, dims[0], m)
    cut_sizes(tile, 1, dims[1], n)
    cut_sizes(tile, 2, dims[2], k)
    compute = kinds_of(tile, forms, kinds) * dims[3]
    if compute >= MOST_CYCLES:
        return False
    steps = float(tile[0, 1]) * tile[1, 1] * tile[2, 1] * dims[3] + 2.0
    spans_of(tile, halo, spans)
    burst = float(latency) if rates[0] > 0.0 and rates[1] > 0.0 else 0.0
    _write_ends(tile, spans, rates, speeds, latency, kinds, ends)
    held[0], held[1], held[2] = spans[0, 0] * spans[1, 0] * rates[4], float(k * n) * rates[5], float(m * n) * rates[3]
    passes[0], passes[1], passes[2] = 1, 1, 1
    once = moved_bytes(tile, spans, passes, totals, halo)
    passes[0] = 2
    again_a = moved_bytes(tile, spans, passes, totals, halo) - once  # with its halo
    on_chip = -1.0
    for kept in range(2, -1, -1):
        for order in range(6):
            if not ways >> (order + KEPT_MIDDLE * kept) & 1:
                continue
            z = ORDERS[order, 2]
            needed, moved, loads = _demand(tile, order, kept, dims, rates, totals, once, again_a, held)
            if needed > space * ABOVE:
                continue
            keep, many, bursts = -1, 0, burst * loads * dims[3]
            for at in range(speeds.shape[0]):
                best, traffic, energy = stand[at, 0], stand[at, 1], stand[at, 2]
                if entries[at]:
                    least = max(compute + ends[at, 0], moved * ends[at, 2] + bursts + ends[at, 1])
                    if objective == 0 and least > best * band:
                        continue
                    if kept == 0:
                        stalls = _stalls(tile, z, dims[3], rates, speeds[at], latency, kinds)
                        least = max(least, compute + ends[at, 0] + stalls)
                    least = value_of(objective, least, moved, joules)
                    if least > best * band:
                        continue
                    if least * slack_of(tolerance) >= best and moved >= traffic:
                        floors[at] = min(floors[at], least)
                        if moved > traffic * (1.0 + tolerance):
                            continue
                        if on_chip < 0.0:
                            on_chip = array_joules(tile, dims, rates, forms, prices, compute)
                        if on_chip + prices[MOVED] * moved >= energy:
                            continue
                if keep < 0:
                    keep = keep_bits(ORDERS[order], kept)
                    if (kept or halo[HALO] > 0.0) and needed_bytes(tile, spans, dims, ORDERS[order], keep, rates) > space:
                        break
                    passes_of(tile[:, 1], ORDERS[order], keep, passes)
                    moved = moved_bytes(tile, spans, passes, totals, halo)
                    many = step_kinds(tile, spans, ORDERS[order], keep, dims[3], rates, kinds, rows)
                cycles = cycles_of_steps(rows, many, speeds[at], latency)
                if cycles < MOST_CYCLES:
                    smooth[at] = min(smooth[at], cycles - steps)
                    value = value_of(objective, cycles, moved, joules)
                    if value > best * band:  # nothing to keep
                        continue
                    if on_chip < 0.0:
                        on_chip = array_joules(tile, dims, rates, forms, prices, compute)
                    spent = on_chip + prices[MOVED] * moved
                    entries[at] = offer(
                        fronts[at], entries[at], value, moved, spent, cycles, tile, order, keep, band, tolerance
                    )  # fmt: skip
                    stand[at, 0], stand[at, 1], stand[at, 2] = standing(fronts[at], entries[at], band, tolerance)
                    better = better or stand[at, 0] != best or stand[at, 1] != traffic or stand[at, 2] != energy
    return better
