"""SIGMA as an array: any shape and any sparsity of one operand fills the multipliers.

E. Qin, A. Samajdar, H. Kwon, V. Nadella, S. Srinivasan, D. Das, B. Kaul, T. Krishna: SIGMA: A Sparse and Irregular GEMM Accelerator
with Flexible Interconnects for DNN Training. HPCA 2020.

One operand is *stationary*: its non-zeros that any non-zero of the other multiplies (stationary') are loaded into the multipliers,
as many as there are at a time (a fold). The other operand streams: one vector (a column of B past a stationary A, a row of A past a
stationary B) reaches all multipliers at once, and every dot product is summed in the tree. With P multipliers, nnz' stationary
elements and S vectors

    folds     = ceil(nnz' / P)
    loading   = ceil(nnz' / bandwidth)           not hidden behind anything (Table II)
    streaming = folds * S                        `wide`: all of a vector in one cycle, the paper's evaluation (Sec. VI-A)
              = S * sum of ceil(nnz'_c / P)      `limited`: chunks c of `bandwidth` elements, one in a cycle
    add       = folds * ceil(log2 P)             the last sums, before the next fold is loaded

Zeros of the streaming operand are not distributed, but a vector takes its cycle whatever its zeros. Without local reuse (`none`)
only pairs of two non-zeros are sent, both elements of every pair, over the same bandwidth. Concurrent products run on Flex-DPUs of
their own (`flex_dpu.py`); where dot products that span Flex-DPEs are added up is an assumption (`partial_sums.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from trainyard.checks import require_choice
from trainyard.construction import part
from trainyard.errors import BadInput
from trainyard.ir import DENSE, ArrayCost, Dense, MatMul, Product, assumed, one_after_another
from trainyard.ir.folds import Pooled, Tiles

if TYPE_CHECKING:
    import numpy.typing as npt

    from trainyard.arrays.sigma.execution import SigmaExecution
    from trainyard.arrays.sigma.flex_dpu import ConcurrentSchedule, Demand, StationaryOperand
    from trainyard.hardware.tables.area import ComponentArea
    from trainyard.hardware.tables.energy import Component
    from trainyard.masks.contraction import Contraction, Mask

Side = Literal["a", "b"]
Stationary = Literal["a", "b", "none"]
Dataflow = Literal["a", "b", "none", "best"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SigmaCost(ArrayCost):
    """The metrics of Table II. `multipliers` is all that the array has; `useful` counts products of two non-zeros.

    `mapped_elements` are the stationary non-zeros (without local reuse, the pairs), `offered_multipliers` the multipliers over all
    folds, `streaming_slots` the multipliers over all cycles of streaming. Concurrent products add these up over their Flex-DPUs;
    their cycles are split into loading, streaming and add as for the product that ends last in each round.
    """

    stationary: Stationary
    loading: int
    streaming: int
    add: int
    folds: int
    mapped_elements: int
    useful: int
    offered_multipliers: int
    streaming_slots: int
    multipliers: int

    @property
    def utilisation(self) -> float:
        """Share of the multipliers that hold a non-zero, over all folds; without local reuse, that get a pair of two non-zeros."""
        return _share(self.mapped_elements, self.offered_multipliers)

    @property
    def compute_efficiency(self) -> float:
        """Cycles that the useful products would take on all multipliers, over the cycles of streaming."""
        return _share(self.useful, self.streaming_slots)

    @property
    def overall_efficiency(self) -> float:
        """The same over all cycles."""
        return _share(self.useful, self.cycles * self.multipliers)


def _share(part: int, total: int) -> float:
    return part / total if total else 0.0


@part
class Sigma:
    """`dpes` Flex-DPEs of `multipliers` each behind an input of `bandwidth` elements per cycle.

    `stationary` is the default operand that stays: a, b, none of them, or the better of a and b. Fewer non-zeros never take longer
    with `across="tree"`; in a `chain` or a `buffer` they may, as other rows then span Flex-DPEs. Twice the bandwidth never takes
    longer; a little more may under `limited` streaming, which then cuts K elsewhere.

    >>> cost = Sigma().cost(MatMul(128, 2048, 4096), stationary="a")  # 524288 elements: 32 folds of 2048 vectors
    >>> cost.loading, cost.streaming, cost.add, cost.cycles
    (4096, 65536, 448, 70080)
    """

    dpes: int = 128
    multipliers: int = 128
    bandwidth: int = 128
    stationary: Dataflow = "best"
    # fmt: off
    streaming: Literal["wide", "limited"] = assumed(
        "wide", "a vector reaches the multipliers in one cycle, or `bandwidth` elements at a time", "limited")
    drain: Literal["fold", "pass"] = assumed(
        "fold", "limited streaming: the tree drains before new elements are loaded, or after each chunk as well", "pass")
    across: Literal["tree", "chain", "buffer"] = assumed(
        "tree", "where sums that cross Flex-DPEs meet: a tree on the way out, neighbour by neighbour, the output buffer",
        "chain", "buffer")
    # fmt: on
    operand_aware: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.multipliers & (self.multipliers - 1):
            below = 1 << (self.multipliers.bit_length() - 1)
            raise BadInput(
                f"Sigma: a Flex-DPE has a power of two of multipliers (its networks are built by halving), got {self.multipliers}: "
                f"write {below} or {2 * below}"
            )

    @property
    def peak_macs_per_cycle(self) -> int:
        return self.dpes * self.multipliers

    @property
    def add_cycles(self) -> int:
        """Levels of the adder tree over all multipliers: those of FAN in a Flex-DPE, and across Flex-DPEs."""
        return (self.peak_macs_per_cycle - 1).bit_length()

    @property
    def folds(self) -> tuple[Pooled, ...]:
        """The closed forms of dense operands; none where the add latency depends on which rows span Flex-DPEs."""
        return _forms(self) if self.across == "tree" else ()

    @property
    def guides(self) -> tuple[Pooled, ...]:
        """The forms of a tree, which come near enough to choose tiles by under every `across`."""
        return _forms(self)

    def guided(self, a: float, b: float) -> tuple[Pooled, ...]:
        """Forms for operands of these densities, to choose tiles by."""
        return tuple(replace(form, share=a if form.stream == "n" else b) for form in _forms(self))

    @property
    def components(self) -> tuple[Component, ...]:
        from trainyard.arrays.sigma.components import sigma_components

        return sigma_components(dpes=self.dpes, multipliers=self.multipliers, bandwidth=self.bandwidth)

    @property
    def component_areas(self) -> tuple[ComponentArea, ...]:
        from trainyard.arrays.sigma.components import sigma_areas

        return sigma_areas(dpes=self.dpes, multipliers=self.multipliers, bandwidth=self.bandwidth)

    @property
    def unused_assumptions(self) -> frozenset[str]:
        """Assumptions that change nothing as the others stand."""
        return frozenset({"drain"}) if self.streaming == "wide" else frozenset()

    def granule(self) -> tuple[int, int, int]:
        side = math.isqrt(self.peak_macs_per_cycle)
        return side, side, side

    @property
    def stationary_sides(self) -> tuple[Side, ...]:
        """The operands that may be stationary; none where there is no local reuse."""
        sides: dict[str, tuple[Side, ...]] = {"a": ("a",), "b": ("b",), "best": ("a", "b")}
        return sides.get(self.stationary, ())

    def tile_cycles(self, m: int, n: int, k: int) -> int:
        return _dense_cost(self, MatMul(m, n, k), self.stationary).cycles

    def tile_events(self, tiles: Tiles) -> dict[str, Any]:
        """The events of many dense tiles at once, one product after the other; only where `folds` has closed forms."""
        from trainyard.arrays.sigma.dense_tiles import dense_tile_events

        return dense_tile_events(self, tiles)

    def divided(self, shares: Sequence[int]) -> tuple[Sigma, ...]:
        """Disjoint Flex-DPUs with these numbers of Flex-DPEs, the input bandwidth in proportion."""
        if not shares or min(shares) < 1 or sum(shares) > self.dpes:
            raise BadInput(f"Sigma: {self.dpes} Flex-DPEs cannot be divided into {tuple(shares)}")
        return tuple(replace(self, dpes=share, bandwidth=max(1, self.bandwidth * share // self.dpes)) for share in shares)

    def execute(self, a: npt.NDArray[Any], b: npt.NDArray[Any], stationary: Dataflow | None = None) -> SigmaExecution:
        """Multiplies two matrices through switches, multipliers and adders."""
        from trainyard.arrays.sigma.execution import execute

        if self.multipliers < 2:
            raise BadInput("Sigma.execute: a Flex-DPE of one multiplier has no networks to go through: give it two or more")
        return execute(self, a, b, self.stationary if stationary is None else stationary)

    def concurrent(self, products: Sequence[Product]) -> ArrayCost:
        """On concurrent Flex-DPUs, in rounds, or one product after another: whichever is fastest."""
        from trainyard.masks.contraction import counts

        sequential = one_after_another(self, products)
        if len(products) < 2 or self.stationary == "none" or self.across != "tree":
            return sequential
        contractions = [counts(product.op, product.a, product.b) for product in products]
        demands, owner = [], []
        for index, (product, contraction) in enumerate(zip(products, contractions, strict=True)):
            demands += [self._demand(product.op, contraction)] * product.op.count
            owner += [index] * product.op.count
        schedule = self._concurrent_schedule(tuple(demands))
        if schedule.cycles >= sequential.cycles:
            return sequential
        finish, events = [0] * len(products), dict[str, float]()
        for index, side, end, group in zip(owner, schedule.choice, schedule.finish, schedule.groups, strict=True):
            finish[index] = max(finish[index], end)
            part = self._flex_dpu(len(group))._stationary(replace(products[index].op, count=1), contractions[index], side)
            for name, count in part.events.items():
                events[name] = events.get(name, 0.0) + count
        return ArrayCost(cycles=schedule.cycles, finish=tuple(finish), events=events)

    def cost(
        self,
        op: MatMul,
        *,
        a: Mask = DENSE,
        b: Mask = DENSE,
        stationary: Dataflow | None = None,
    ) -> SigmaCost:
        """The metrics of Table II and the events of one product; with `count` equal products, of the fastest schedule for all.

        Masks are views of recorded zeros, matrices of any type, or packed (`hardware.formats.bitmaps`). `stationary` overrides the
        array's own.
        """
        if not isinstance(op, MatMul):
            raise BadInput(f"Sigma.cost takes a product such as MatMul(128, 2048, 4096), got {op!r}")
        chosen = self.stationary if stationary is None else stationary
        require_choice("Sigma.cost", stationary=(chosen, get_args(Dataflow)))
        if isinstance(a, Dense) and isinstance(b, Dense):
            cost = _dense_cost(self, op, chosen)
            return replace(cost, events=dict(cost.events))  # the caller may write into its own
        return self._cost_of(op, a, b, chosen)

    def _cost_of(self, op: MatMul, a: Mask, b: Mask, chosen: Dataflow) -> SigmaCost:
        from trainyard.masks.contraction import counts

        contraction = counts(op, a, b)
        if chosen == "none":
            return self._without_reuse(op, contraction)
        sides: tuple[Side, ...] = ("a", "b") if chosen == "best" else (chosen,)
        costs = [self._with_crossings(self._stationary(op, contraction, side), op, a, b) for side in sides]
        if op.count > 1:
            costs.append(self._side_by_side(op, contraction, sides, a, b))
        return min(costs, key=lambda cost: cost.cycles)

    def _stationary(self, op: MatMul, contraction: Contraction, side: Side) -> SigmaCost:
        vectors, across = (op.N, op.M) if side == "a" else (op.M, op.N)
        stationary, useful = contraction.stationary(side), contraction.useful
        folds = -(-stationary // self.peak_macs_per_cycle)
        passes, streamed = self._passes(contraction, side, stationary, folds, across)
        return self._cost(
            op,
            stationary=side,
            loading=-(-stationary // self.bandwidth),
            streaming=passes * vectors,
            add=self.add_cycles * (passes if self.streaming == "limited" and self.drain == "pass" else folds),
            folds=folds,
            mapped_elements=stationary,
            useful=useful,
            events=self._events(op, side, stationary, useful, passes, streamed),
        )

    def _with_crossings(self, cost: SigmaCost, op: MatMul, a: Mask, b: Mask) -> SigmaCost:
        """The cost with the add latency of the rows that span Flex-DPEs; a tree's does not depend on them."""
        if self.across == "tree":
            return cost
        add = op.count * self._add(op, a, b, "a" if cost.stationary == "a" else "b", self.dpes)
        cycles = cost.loading + cost.streaming + add
        return replace(cost, add=add, cycles=cycles, finish=(cycles,))

    def _add(self, op: MatMul, a: Mask, b: Mask, side: Side, dpes: int) -> int:
        """Add latency of one product on `dpes` Flex-DPEs whose partial sums are added in a chain or in the buffer."""
        from trainyard.kernels.arrays.partial_sums import add_cycles
        from trainyard.masks.contraction import stationary_rows

        is_limited = self.streaming == "limited"
        rows = stationary_rows(op, a, b, side, self.bandwidth if is_limited else op.K)
        return int(
            add_cycles(
                rows, self.multipliers, dpes, self.bandwidth, op.N if side == "a" else op.M, (self.multipliers - 1).bit_length(),
                self.across == "chain", is_limited and self.drain == "pass",
            )
        )  # fmt: skip

    def _demand(self, op: MatMul, contraction: Contraction, sides: tuple[Side, ...] | None = None) -> Demand:
        """One product for `schedule_concurrently`, with each operand that may be stationary."""
        from trainyard.arrays.sigma.flex_dpu import StationaryOperand

        chunked = self.streaming == "limited"
        return {
            side: StationaryOperand(
                nonzeros=contraction.stationary(side),
                vectors=op.N if side == "a" else op.M,
                depth=op.K,
                chunks=tuple(contraction.stationary_by_chunk(side, self.bandwidth).tolist()) if chunked else (),
            )
            for side in sides or self.stationary_sides
        }

    def _flex_dpu(self, dpes: int) -> Sigma:
        """A Flex-DPU of `dpes` Flex-DPEs behind the whole input, with an adder tree across them."""
        return replace(self, dpes=dpes, across="tree")

    def _concurrent_schedule(self, demands: tuple[Demand, ...]) -> ConcurrentSchedule:
        from trainyard.arrays.sigma.flex_dpu import schedule_concurrently

        return schedule_concurrently(
            demands, dpes=self.dpes, multipliers=self.multipliers, bandwidth=self.bandwidth,
            streaming=self.streaming, drain=self.drain,
        )  # fmt: skip

    def _side_by_side(self, op: MatMul, contraction: Contraction, sides: tuple[Side, ...], a: Mask, b: Mask) -> SigmaCost:
        """All `count` products, as many at a time as is fastest with an adder tree; `across` then sets the add latency."""
        single = replace(op, count=1)
        demand = self._demand(single, contraction, sides)
        schedule = _equal_products(self, tuple(demand.items()), op.count)
        kinds = [(side, len(group)) for side, group in zip(schedule.choice, schedule.groups, strict=True)]
        parts = {kind: self._flex_dpu(kind[1])._stationary(single, contraction, kind[0]) for kind in set(kinds)}
        adds = {kind: part.add if self.across == "tree" else self._add(single, a, b, *kind) for kind, part in parts.items()}
        loading = streaming = add = began = 0
        for products in schedule.rounds:
            # cycles of each product before its add latency
            before = {index: schedule.finish[index] - began - parts[kinds[index]].add for index in products}
            last = max(products, key=lambda index: before[index] + adds[kinds[index]])
            streamed = parts[kinds[last]].streaming
            if self.streaming == "limited":  # slowed by the others, once all are loaded
                streamed = before[last] - -(-sum(parts[kinds[index]].mapped_elements for index in products) // self.bandwidth)
            loading, streaming, add = loading + before[last] - streamed, streaming + streamed, add + adds[kinds[last]]
            began = max(schedule.finish[index] for index in products)
        product_parts = [parts[kind] for kind in kinds]
        events = dict[str, float]()
        for kind, cost in parts.items():
            for name, count in cost.events.items():
                events[name] = events.get(name, 0.0) + count * kinds.count(kind)
        cycles = loading + streaming + add
        return SigmaCost(
            cycles=cycles,
            finish=(cycles,),
            events=events,
            stationary=schedule.choice[0],
            loading=loading,
            streaming=streaming,
            add=add,
            folds=sum(part.folds for part in product_parts),
            mapped_elements=sum(part.mapped_elements for part in product_parts),
            useful=contraction.useful * op.count,
            offered_multipliers=sum(part.offered_multipliers for part in product_parts),
            streaming_slots=sum(part.streaming_slots for part in product_parts),
            multipliers=self.peak_macs_per_cycle,
        )

    def _passes(self, contraction: Contraction, side: Side, stationary: int, folds: int, across: int) -> tuple[int, float]:
        """How often the vectors are streamed, and how many of their elements (for vectors of one element each) that is.

        Stationary elements are placed row by row. A fold with less than a row needs only a part of each vector.
        """
        other: Side = "b" if side == "a" else "a"
        if self.streaming == "wide":
            row, pool = stationary / across, self.peak_macs_per_cycle  # elements of a row, on average
            rest = stationary - (folds - 1) * pool
            vector_share = (folds - 1) * min(1.0, pool / row) + min(1.0, rest / row) if stationary else 0.0
            return folds, contraction.stationary(other) * vector_share
        chunks = -(-contraction.stationary_by_chunk(side, self.bandwidth) // self.peak_macs_per_cycle)
        return int(chunks.sum()), float((contraction.stationary_by_chunk(other, self.bandwidth) * chunks).sum())

    def _without_reuse(self, op: MatMul, contraction: Contraction) -> SigmaCost:
        useful = contraction.useful
        waves = -(-useful // self.peak_macs_per_cycle)
        events = {
            "scratchpad_read_a": float(useful),
            "scratchpad_read_b": float(useful),
            "broadcast": 2.0 * useful,
            "distribution": 2.0 * useful,
        }
        return self._cost(
            op,
            stationary="none",
            loading=0,
            streaming=max(waves, -(-2 * useful // self.bandwidth)),
            add=self.add_cycles if useful else 0,
            folds=waves,
            mapped_elements=useful,
            useful=useful,
            events=events,
        )

    def _events(self, op: MatMul, side: Side, stationary: int, useful: int, passes: int, streamed: float) -> dict[str, float]:
        """Elements at the scratchpad's ports, and what crosses the fabric.

        Sums of a row that continues in the next pass are written and read back; along chunks of K that is every row.
        """
        vectors, across = (op.N, op.M) if side == "a" else (op.M, op.N)
        spilled_sums = vectors * max(0, passes - 1) * (across if self.streaming == "limited" else 1)
        return {
            "scratchpad_read_a": float(stationary) if side == "a" else streamed,
            "scratchpad_read_b": streamed if side == "a" else float(stationary),
            "scratchpad_read_out": float(spilled_sums),
            "scratchpad_write_out": float(op.M * op.N + spilled_sums),
            "stationary_load": float(stationary),
            "broadcast": stationary + streamed,
            "distribution": float(stationary + useful),
        }

    def _cost(self, op: MatMul, *, events: dict[str, float], loading: int, streaming: int, add: int, **rest: Any) -> SigmaCost:
        """The cost of all `count` products one after another, from that of one."""
        times = op.count
        folds, useful = rest["folds"] * times, rest["useful"] * times
        cycles = (loading + streaming + add) * times
        streaming_slots = streaming * times * self.peak_macs_per_cycle
        counted = {
            "mac": float(useful),
            "multiplication": float(useful),
            "addition": float(useful),
            "multiplier_slot": float(streaming_slots),
            **{name: count * times for name, count in ({"scratchpad_write_out": float(op.M * op.N)} | events).items()},
        }
        return SigmaCost(
            cycles=cycles, finish=(cycles,), events=counted, stationary=rest["stationary"],
            loading=loading * times, streaming=streaming * times, add=add * times,
            folds=folds, mapped_elements=rest["mapped_elements"] * times, useful=useful,
            offered_multipliers=folds * self.peak_macs_per_cycle, streaming_slots=streaming_slots,
            multipliers=self.peak_macs_per_cycle,
        )  # fmt: skip


@lru_cache(maxsize=4096)
def _equal_products(array: Sigma, demand: tuple[tuple[Side, StationaryOperand], ...], count: int) -> ConcurrentSchedule:
    return array._concurrent_schedule((dict(demand),) * count)


@lru_cache(maxsize=16384)
def _dense_cost(array: Sigma, op: MatMul, stationary: Dataflow) -> SigmaCost:
    return array._cost_of(op, DENSE, DENSE, stationary)


@lru_cache(maxsize=256)
def _forms(array: Sigma) -> tuple[Pooled, ...]:
    if array.stationary == "none":
        return ()
    streams: dict[str, tuple[Literal["m", "n"], ...]] = {"a": ("n",), "b": ("m",), "best": ("n", "m")}
    return tuple(
        Pooled(
            pool=array.peak_macs_per_cycle,
            load=array.bandwidth,
            stream=stream,
            drain=array.add_cycles,
            chunk=array.bandwidth if array.streaming == "limited" else None,
            drained=array.drain,
        )
        for stream in streams[array.stationary]
    )
