"""The cost of a Work on a DPU: instructions of tasklets or MACs of lanes, overlapped with transfers between MRAM and WRAM.

A product is cut into the WRAM tiles with the fewest transfer cycles (`mapping.tiling`; the other half of WRAM is being filled). The
tasklets divide a tile by its results, or, if results are few, by the depth of the sums, which they add up afterwards. Everything
else is a stream in blocks, an equal run for each tasklet. The time is the largest of three, plus the first tile's transfer and a
barrier:

    pipeline   instructions of the busiest tasklet * max(interval, active tasklets)
    lanes      MACs of a MAC array, and their operands through the port of WRAM
    tasklets   each computes, then waits for its transfer in the queue of the DMA engine, repeatedly (`queueing_cycles`)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainyard.devices.accelerator.counting import Traffic, bound_of, shares, sizes
from trainyard.devices.dpu.functions import operations, software
from trainyard.errors import NotModelled
from trainyard.hardware.dpu.instructions import LOAD, LOOP, STORE
from trainyard.ir import DENSE, ArrayCost, Body, DeviceCost, MatMul, Operand, Product
from trainyard.ir.folds import Folds
from trainyard.mapping.demand import Demand, FusedDemand, Move, NoDemand, ProductDemand, StreamDemand
from trainyard.mapping.tiling import Supply, Tiled, search

if TYPE_CHECKING:
    from trainyard.devices.dpu.device import Dpu

WORD_BYTES = 4
LEAST_TRANSFER_BYTES = 8  # UPMEM SDK: transfers are multiples of 8 bytes
ADDRESS = 5  # assumed: instructions for the addresses and length of a transfer, and the transfer itself
RESULT = LOAD + STORE + LOOP  # a sum is loaded from WRAM and stored for each tile of its depth
FREE_ARITHMETIC = (Folds(m=2**30, n=2**30, k=2**30, stream="k"),)
"""Closed form of arithmetic that takes almost no time, so that the search minimises transfers alone."""


@dataclass(frozen=True, slots=True)
class _UnshapedArray:
    """An array for the tile search that prefers no shape of tiles."""

    peak_macs_per_cycle: int = 1

    def granule(self) -> tuple[int, int, int]:
        return 8, 8, 16

    def cost(self, op: MatMul, *, a: Operand = DENSE, b: Operand = DENSE) -> ArrayCost:
        return ArrayCost(cycles=op.macs)

    def concurrent(self, products: Sequence[Product]) -> ArrayCost:
        return ArrayCost(cycles=sum(product.op.macs for product in products))


@dataclass(slots=True)
class WorkCost:
    """The sums from which the cost of a Work is computed: cycles of pipeline, lanes and DMA engine, instructions, MACs, bytes."""

    dpu: Dpu
    traffic: Traffic = field(default_factory=Traffic)
    instructions: float = 0.0
    macs: float = 0.0
    pipeline: float = 0.0
    busiest: float = 0.0
    active: int = 1
    lanes: float = 0.0
    loaded_bytes: float = 0.0
    stored_bytes: float = 0.0
    dma: float = 0.0
    first_fill: float = 0.0

    def run(self, instructions: float, units: int) -> None:
        """Adds instructions in `units` equal units, divided among the tasklets."""
        active = max(1, min(self.dpu.tasklets, units))
        self.issue(instructions, instructions / max(1, units) * -(-units // active), active)

    def issue(self, instructions: float, busiest: float, active: int) -> None:
        self.instructions += instructions
        self.busiest += busiest
        self.pipeline += busiest * max(self.dpu.interval, active)
        self.active = max(self.active, active)

    def moves(self, moves: Iterable[Move], run_bytes: float, first: float = 0.0) -> None:
        """Adds transfers in runs of `run_bytes`; the share `first` of the reads must end before computation starts."""
        for move in moves:
            self.traffic.add(move)
            for direction, size in _directions(move):
                cycles, transfers = self.dpu.transfers(size, run_bytes, direction)
                self.dma += cycles
                self.first_fill += cycles * first if direction == "read" else 0.0
                self.issue(transfers * ADDRESS, transfers * ADDRESS / self.dpu.tasklets, self.dpu.tasklets)

    def cost(self, weights: Sequence[float]) -> DeviceCost:
        dpu = self.dpu
        port = (self.loaded_bytes + self.stored_bytes + self.traffic.total) / dpu.wram_bytes_per_cycle if dpu.mac_lanes else 0.0
        waited = queueing_cycles(self.busiest * dpu.interval * self.active, max(0.0, self.dma - self.first_fill), self.active)
        parallel = max(self.pipeline, self.lanes, port, waited)
        barrier = dpu.barrier_instructions * max(dpu.interval, dpu.tasklets)
        cycles = math.ceil(self.first_fill + parallel + barrier)
        compute = math.ceil(max(self.pipeline, self.lanes))
        return DeviceCost(
            cycles=cycles,
            compute_cycles=compute,
            bytes=self.traffic.bytes,
            share=shares(weights),
            bound=bound_of(compute=compute, wram=math.ceil(port), dram=math.ceil(self.dma)),
            events={
                "instruction": self.instructions + dpu.barrier_instructions * dpu.tasklets,
                "mac": self.macs,
                "mram_read_byte": self.traffic.events["dram_read"],
                "mram_write_byte": self.traffic.events["dram_write"],
                "wram_read_byte": self.loaded_bytes + self.traffic.events["dram_write"],
                "wram_write_byte": self.stored_bytes + self.traffic.events["dram_read"],
                "second": cycles / dpu.clock_hz,
            },
        )


def queueing_cycles(thinking: float, served: float, customers: int) -> float:
    """Cycles of work of `thinking` cycles in parallel and `served` cycles at one server, divided among customers that queue there.

    The machine-repairman model by mean value analysis (M. Reiser, S. Lavenberg: J. ACM 27, 1980): one customer takes the sum, many
    take little more than the server.

    >>> [round(queueing_cycles(100.0, 20.0, customers), 1) for customers in (1, 4, 24)]
    [120.0, 33.2, 20.0]
    """
    waiting, rate = 0.0, 0.0
    for count in range(1, customers + 1):
        stay = served * (1.0 + waiting)
        if thinking + stay <= 0.0:
            return 0.0
        rate = count / (thinking + stay)
        waiting = rate * stay
    return 1.0 / rate


def _directions(move: Move) -> list[tuple[str, float]]:
    """Bytes by direction; a spill is written and read."""
    return [("read", move.size / 2), ("write", move.size / 2)] if move.direction == "spill" else [(move.direction, move.size)]


def costs(dpu: Dpu, demands: Sequence[tuple[Demand, tuple[Body, ...]]]) -> list[DeviceCost]:
    """The cost of each demand, with the bodies of its ops; one search finds the tiles of all products."""
    problems = [demand.problem for demand, _ in demands if isinstance(demand, ProductDemand)]
    tiled = iter(search(problems, _UnshapedArray(), supply(dpu), guides=FREE_ARITHMETIC))
    results: list[DeviceCost] = []
    for demand, bodies in demands:
        match demand:
            case ProductDemand():
                results.append(_product(dpu, demand, next(tiled), bodies))
            case StreamDemand():
                results.append(_stream(dpu, demand, bodies[0]))
            case FusedDemand():
                results.append(_fused(dpu, demand, bodies))
            case NoDemand():
                results.append(DeviceCost(cycles=0, compute_cycles=0, bytes={}, share=shares([0] * demand.ops), bound=demand.why))
            case _:
                raise NotModelled(f"{type(demand).__name__} on a DPU: it does its ops one by one")
    return results


def supply(dpu: Dpu) -> Supply:
    """Half of WRAM for the present tiles, and the DMA engine with its longest transfers."""
    return Supply(
        resident_bytes=dpu.shared_bytes / 2,
        bytes_per_cycle=dpu.longest_transfer_bytes / dpu.transfers(dpu.longest_transfer_bytes, math.inf, "read")[0],
        latency_cycles=math.ceil(dpu.dma_read_cycles),
    )


def _product(dpu: Dpu, demand: ProductDemand, tiled: Tiled, bodies: tuple[Body, ...]) -> DeviceCost:
    sums, problem, tiling = WorkCost(dpu), demand.problem, tiled.tiling
    op, rates = problem.op, problem.rates
    m, n, k = min(tiling.m, op.M), min(tiling.n, op.N), min(tiling.k, op.K)
    steps = -(-op.M // m) * -(-op.N // n) * -(-op.K // k) * op.count
    a, b, out = (Move(label, "read", 0, 0) for label in demand.labels)
    sums.moves([a._replace(size=tiled.a_read, held=tiled.a_read)], max(m, k) * rates[0], 1 / steps)
    sums.moves([b._replace(size=tiled.b_read, held=tiled.b_read)], max(n, k) * rates[1], 1 / steps)
    finished, spilled = max(m, n) * rates[2], tiled.spill_write + tiled.spill_read
    for moves in demand.drained:
        sums.moves(moves, finished)
    sums.moves([out._replace(direction="spill", size=spilled, held=spilled)], max(m, n) * rates[3])
    for (rows, high), (columns, wide), (depth, deep) in itertools.product(sizes(op.M, m), sizes(op.N, n), sizes(op.K, k)):
        _tile(sums, rows, columns, depth, high * wide * deep * op.count)
    sums.loaded_bytes += 2 * op.macs * dpu.element_bytes
    weights = [sums.pipeline + sums.lanes]
    for body in bodies[1:]:
        before = sums.pipeline + sums.lanes
        _arithmetic(sums, body)
        weights.append(sums.pipeline + sums.lanes - before)
    return sums.cost(weights)


def _tile(sums: WorkCost, m: int, n: int, k: int, times: int) -> None:
    """Adds `times` tiles of (m, k) x (k, n)."""
    dpu = sums.dpu
    if dpu.mac_lanes:
        sums.macs += times * m * n * k
        along = (-(-k // dpu.mac_lanes) * m * n, -(-n // dpu.mac_lanes) * m * k, -(-m // dpu.mac_lanes) * n * k)
        sums.lanes += times * min(along)  # lanes are mapped to the axis that leaves the fewest idle
        sums.run(times * m * ADDRESS, times * m)  # a tasklet starts each row of results
        return
    unit, results = dpu.arithmetic, m * n
    by_result = min(dpu.tasklets, results)
    whole_sums = -(-results // by_result) * (k * unit.mac + RESULT)
    by_depth = min(dpu.tasklets, k)
    added = by_depth * (LOAD + unit.add + LOOP)
    split_sums = results * (-(-k // by_depth) * unit.mac + RESULT) + -(-results // dpu.tasklets) * added
    instructions = times * results * (k * unit.mac + RESULT)
    if split_sums * max(dpu.interval, by_depth) < whole_sums * max(dpu.interval, by_result):
        sums.issue(instructions + times * results * ((by_depth - 1) * RESULT + added), times * split_sums, by_depth)
    else:
        sums.issue(instructions, times * whole_sums, by_result)


def _arithmetic(sums: WorkCost, body: Body, loaded: float = 0.0, stored: float = 0.0) -> None:
    """Adds an op without a product, on lanes or in software, with the bytes that it loads and stores."""
    dpu, elements = sums.dpu, max(1, getattr(body, "elements", 0))
    if dpu.mac_lanes:
        count = operations(body)
        sums.lanes += -(-count // dpu.mac_lanes)
        sums.macs += count
    else:
        words = (loaded + stored) / WORD_BYTES
        sums.run(software(body, dpu.arithmetic) + words * LOAD + elements * LOOP, elements)
    sums.loaded_bytes += loaded
    sums.stored_bytes += stored


def _stream(dpu: Dpu, demand: StreamDemand, body: Body) -> DeviceCost:
    sums, moves = WorkCost(dpu), list(demand.moves)
    if demand.again is not None and demand.row_bytes > dpu.shared_bytes / 2:
        moves.append(demand.again)
    total = sum(move.size for move in moves)
    block = dpu.block_bytes(len(moves))
    sums.moves(moves, min(block, max(LEAST_TRANSFER_BYTES, total / max(1, len(moves)))), min(1.0, block / max(1, total)))
    loaded, stored = (sum(move.held for move in moves if move.direction == way) for way in ("read", "write"))
    _arithmetic(sums, body, loaded, stored)
    return sums.cost([1.0])


def _fused(dpu: Dpu, demand: FusedDemand, bodies: tuple[Body, ...]) -> DeviceCost:
    """Ops of one kernel, whose intermediate tensors stay in WRAM, for one part of the batch after the other."""
    sums = WorkCost(dpu)
    parts = max(1, math.ceil(demand.item_bytes / (dpu.shared_bytes / 2)))
    again = [move._replace(size=move.size * (parts - 1), held=move.held * (parts - 1)) for move in demand.again]
    sums.moves([*demand.moves, *again], dpu.block_bytes(2))
    weights = []
    for op, body in zip(demand.products, bodies, strict=True):
        before = sums.pipeline + sums.lanes
        if op is None:
            _arithmetic(sums, body)
        else:
            _tile(sums, op.M, op.N, op.K, op.count)
            sums.loaded_bytes += 2 * op.macs * dpu.element_bytes
        weights.append(sums.pipeline + sums.lanes - before)
    return sums.cost(weights)
