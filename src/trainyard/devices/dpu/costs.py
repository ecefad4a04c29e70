"""What a Work costs a DPU: instructions on tasklets or MACs on lanes, beside transfers between MRAM and WRAM.

A product is cut into tiles of WRAM that need the fewest transfer cycles (`mapping.tiling`; half of WRAM is being filled): MRAM is
read again for what does not stay. The tasklets share a tile by its results, or, where results are few, by the depth of the sums
and add up afterwards. Everything else is a stream in blocks, an equal run for each tasklet. Three limits hold at once, and the
largest is the time:

    pipeline   busiest tasklet's instructions * max(interval, tasklets at work)
    lanes      MACs of a MAC array, and their operands through WRAM's port
    tasklets   each computes, then waits for its transfer behind those of others, over and over (`queued`)

before which the first tile is read, and after which a barrier ends the op.
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
RESULT = LOAD + STORE + LOOP  # a sum comes from WRAM and goes back for each tile of its depth
AT_ONCE = (Folds(m=2**30, n=2**30, k=2**30, stream="k"),)
"""Arithmetic that takes next to no time: tiles are then chosen for the transfers alone."""


@dataclass(frozen=True, slots=True)
class _Any:
    """A fabric without a shape: tiles are looked at from a few rows and columns on."""

    peak_macs_per_cycle: int = 1

    def granule(self) -> tuple[int, int, int]:
        return 8, 8, 16

    def cost(self, op: MatMul, *, a: Operand = DENSE, b: Operand = DENSE) -> ArrayCost:
        return ArrayCost(cycles=op.macs)

    def concurrent(self, products: Sequence[Product]) -> ArrayCost:
        return ArrayCost(cycles=sum(product.op.macs for product in products))


@dataclass(slots=True)
class Bill:
    """What adds up to the cost of a Work."""

    dpu: Dpu
    traffic: Traffic = field(default_factory=Traffic)
    instructions: float = 0.0
    macs: float = 0.0
    pipeline: float = 0.0
    busiest: float = 0.0
    active: int = 1
    lanes: float = 0.0
    port_bytes: float = 0.0
    engine: float = 0.0
    first: float = 0.0

    def run(self, instructions: float, units: int) -> None:
        """Instructions in so many equal units, dealt out over the tasklets."""
        active = max(1, min(self.dpu.tasklets, units))
        self.busy(instructions, instructions / max(1, units) * -(-units // active), active)

    def busy(self, instructions: float, busiest: float, active: int) -> None:
        self.instructions += instructions
        self.busiest += busiest
        self.pipeline += busiest * max(self.dpu.interval, active)
        self.active = max(self.active, active)

    def moves(self, moves: Iterable[Move], run_bytes: float, first: float = 0.0) -> None:
        """Transfers of runs of so many bytes; `first` is the share of them that nothing can be done before."""
        for move in moves:
            self.traffic.add(move)
            for direction, size in _ways(move):
                cycles, transfers = self.dpu.transfers(size, run_bytes, direction)
                self.engine += cycles
                self.first += cycles * first if direction == "read" else 0.0
                self.busy(transfers * ADDRESS, transfers * ADDRESS / self.dpu.tasklets, self.dpu.tasklets)

    def cost(self, weights: Sequence[float]) -> DeviceCost:
        dpu = self.dpu
        port = (self.port_bytes + self.traffic.total) / dpu.wram_bytes_per_cycle if dpu.mac_lanes else 0.0
        waited = queued(self.busiest * dpu.interval * self.active, max(0.0, self.engine - self.first), self.active)
        parallel = max(self.pipeline, self.lanes, port, waited)
        barrier = dpu.barrier_instructions * max(dpu.interval, dpu.tasklets)
        cycles = math.ceil(self.first + parallel + barrier)
        compute = math.ceil(max(self.pipeline, self.lanes))
        return DeviceCost(
            cycles=cycles,
            compute_cycles=compute,
            bytes=self.traffic.bytes,
            share=shares(weights),
            bound=bound_of(compute=compute, wram=math.ceil(port), dram=math.ceil(self.engine)),
            events={
                "instruction": self.instructions + dpu.barrier_instructions * dpu.tasklets,
                "mac": self.macs,
                "mram_read_byte": self.traffic.events["dram_read"],
                "mram_write_byte": self.traffic.events["dram_write"],
                "wram_byte": self.port_bytes + self.traffic.total,
                "second": cycles / dpu.clock_hz,
            },
        )


def queued(thinking: float, served: float, customers: int) -> float:
    """Cycles for work that takes `thinking` on its own and `served` at one server, shared by customers that queue there.

    The machine-repairman model by mean value analysis (M. Reiser, S. Lavenberg: J. ACM 27, 1980): one customer takes the sum, many
    take little more than the server.

    >>> queued(100.0, 20.0, 1), round(queued(100.0, 20.0, 4), 1), round(queued(100.0, 20.0, 24), 1)
    (120.0, 33.2, 20.0)
    """
    waiting, rate = 0.0, 0.0
    for count in range(1, customers + 1):
        stay = served * (1.0 + waiting)
        if thinking + stay <= 0.0:
            return 0.0
        rate = count / (thinking + stay)
        waiting = rate * stay
    return 1.0 / rate


def _ways(move: Move) -> list[tuple[str, float]]:
    """A spill goes out and comes back."""
    return [("read", move.size / 2), ("write", move.size / 2)] if move.direction == "spill" else [(move.direction, move.size)]


def costs(dpu: Dpu, asked: Sequence[tuple[Demand, tuple[Body, ...]]]) -> list[DeviceCost]:
    """Each demand with the bodies of its ops; the tiles of all products are searched in one go."""
    problems = [demand.problem for demand, _ in asked if isinstance(demand, ProductDemand)]
    tiled = iter(search(problems, _Any(), supply(dpu), guides=AT_ONCE))
    found: list[DeviceCost] = []
    for demand, bodies in asked:
        match demand:
            case ProductDemand():
                found.append(_product(dpu, demand, next(tiled), bodies))
            case StreamDemand():
                found.append(_stream(dpu, demand, bodies[0]))
            case FusedDemand():
                found.append(_fused(dpu, demand, bodies))
            case NoDemand():
                found.append(DeviceCost(cycles=0, compute_cycles=0, bytes={}, share=shares([0] * demand.ops), bound=demand.why))
            case _:
                raise NotModelled(f"{type(demand).__name__} on a DPU: it does its ops one by one")
    return found


def supply(dpu: Dpu) -> Supply:
    """Half of WRAM for the tiles at work, the engine at its longest transfers."""
    return Supply(
        resident_bytes=dpu.shared_bytes / 2,
        bytes_per_cycle=dpu.longest_transfer_bytes / dpu.transfers(dpu.longest_transfer_bytes, math.inf, "read")[0],
        latency_cycles=math.ceil(dpu.dma_read_cycles),
    )


def _product(dpu: Dpu, demand: ProductDemand, tiled: Tiled, bodies: tuple[Body, ...]) -> DeviceCost:
    bill, problem, tiling = Bill(dpu), demand.problem, tiled.tiling
    op, rates = problem.op, problem.rates
    m, n, k = min(tiling.m, op.M), min(tiling.n, op.N), min(tiling.k, op.K)
    steps = -(-op.M // m) * -(-op.N // n) * -(-op.K // k) * op.count
    a, b, out = (Move(label, "read", 0, 0) for label in demand.labels)
    bill.moves([a._replace(size=tiled.a_read, held=tiled.a_read)], max(m, k) * rates[0], 1 / steps)
    bill.moves([b._replace(size=tiled.b_read, held=tiled.b_read)], max(n, k) * rates[1], 1 / steps)
    finished, spilled = max(m, n) * rates[2], tiled.spill_write + tiled.spill_read
    for moves in demand.drained:
        bill.moves(moves, finished)
    bill.moves([out._replace(direction="spill", size=spilled, held=spilled)], max(m, n) * rates[3])
    for (rows, high), (columns, wide), (depth, deep) in itertools.product(sizes(op.M, m), sizes(op.N, n), sizes(op.K, k)):
        _tile(bill, rows, columns, depth, high * wide * deep * op.count)
    bill.port_bytes += 2 * op.macs * dpu.element_bytes
    weights = [bill.pipeline + bill.lanes]
    for body in bodies[1:]:
        before = bill.pipeline + bill.lanes
        _arithmetic(bill, body)
        weights.append(bill.pipeline + bill.lanes - before)
    return bill.cost(weights)


def _tile(bill: Bill, m: int, n: int, k: int, times: int) -> None:
    """So many tiles of (m, k) x (k, n)."""
    dpu = bill.dpu
    if dpu.mac_lanes:
        bill.macs += times * m * n * k
        along = (-(-k // dpu.mac_lanes) * m * n, -(-n // dpu.mac_lanes) * m * k, -(-m // dpu.mac_lanes) * n * k)
        bill.lanes += times * min(along)  # lanes lie along the axis that leaves the fewest idle
        bill.run(times * m * ADDRESS, times * m)  # a row of results is started by a tasklet and goes on by itself
        return
    unit, results = dpu.arithmetic, m * n
    by_result = min(dpu.tasklets, results)
    apart = -(-results // by_result) * (k * unit.mac + RESULT)
    by_depth = min(dpu.tasklets, k)
    added = by_depth * (LOAD + unit.add + LOOP)
    split = results * (-(-k // by_depth) * unit.mac + RESULT) + -(-results // dpu.tasklets) * added
    instructions = times * results * (k * unit.mac + RESULT)
    if split * max(dpu.interval, by_depth) < apart * max(dpu.interval, by_result):
        bill.busy(instructions + times * results * ((by_depth - 1) * RESULT + added), times * split, by_depth)
    else:
        bill.busy(instructions, times * apart, by_result)


def _arithmetic(bill: Bill, body: Body, words: float = 0.0) -> None:
    """An op without a product, on lanes or in software; `words` are what it loads and stores."""
    dpu, elements = bill.dpu, max(1, getattr(body, "elements", 0))
    if dpu.mac_lanes:
        count = operations(body)
        bill.lanes += -(-count // dpu.mac_lanes)
        bill.macs += count
        bill.port_bytes += words * WORD_BYTES
    else:
        bill.run(software(body, dpu.arithmetic) + words * LOAD + elements * LOOP, elements)
        bill.port_bytes += words * WORD_BYTES


def _stream(dpu: Dpu, demand: StreamDemand, body: Body) -> DeviceCost:
    bill, moves = Bill(dpu), list(demand.moves)
    if demand.again is not None and demand.row_bytes > dpu.shared_bytes / 2:
        moves.append(demand.again)
    total = sum(move.size for move in moves)
    block = dpu.block_bytes(len(moves))
    bill.moves(moves, min(block, max(LEAST_TRANSFER_BYTES, total / max(1, len(moves)))), min(1.0, block / max(1, total)))
    _arithmetic(bill, body, sum(move.held for move in moves) / WORD_BYTES)
    return bill.cost([1.0])


def _fused(dpu: Dpu, demand: FusedDemand, bodies: tuple[Body, ...]) -> DeviceCost:
    """Ops whose inner tensors stay in WRAM, one part of the batch after the other."""
    bill = Bill(dpu)
    parts = max(1, math.ceil(demand.item_bytes / (dpu.shared_bytes / 2)))
    again = [move._replace(size=move.size * (parts - 1), held=move.held * (parts - 1)) for move in demand.again]
    bill.moves([*demand.moves, *again], dpu.block_bytes(2))
    weights = []
    for op, body in zip(demand.products, bodies, strict=True):
        before = bill.pipeline + bill.lanes
        if op is None:
            _arithmetic(bill, body)
        else:
            _tile(bill, op.M, op.N, op.K, op.count)
            bill.port_bytes += 2 * op.macs * dpu.element_bytes
        weights.append(bill.pipeline + bill.lanes - before)
    return bill.cost(weights)
