"""SIGMA as an array: any shape and any sparsity of one operand fills the multipliers.

E. Qin, A. Samajdar, H. Kwon, V. Nadella, S. Srinivasan, D. Das, B. Kaul, T. Krishna: SIGMA: A Sparse and Irregular GEMM Accelerator
with Flexible Interconnects for DNN Training. HPCA 2020.

One operand is *stationary*: its non-zeros that meet any non-zero of the other (stationary') lie in the multipliers, as many as
there are at a time (a fold). The other operand streams: one vector (a column of B beside a stationary A, a row of A beside a
stationary B) reaches all of them at once, and every dot product is summed in the tree. With P multipliers, nnz' elements to hold
and S vectors

    folds     = ceil(nnz' / P)
    loading   = ceil(nnz' / bandwidth)           not hidden behind anything (Table II)
    streaming = folds * S                        `wide`: all of a vector in one cycle, the paper's evaluation (Sec. VI-A)
              = S * sum of ceil(nnz'_c / P)      `limited`: chunks c of `bandwidth` elements, one in a cycle
    add       = folds * ceil(log2 P)             the last sums, before the next fold is loaded

Zeros of the streaming operand are not distributed, but their vector takes its cycle all the same. Without local reuse (`none`) only
pairs of two non-zeros are sent, both elements of every pair, over the same bandwidth. Several products at once lie on Flex-DPUs of
their own (`flex_dpu.py`); where dot products cross Flex-DPEs is an assumption (`across.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from trainyard.checks import require_positive
from trainyard.errors import BadInput, UnknownName
from trainyard.ir import DENSE, ArrayCost, MatMul, Product, assumed, one_after_another
from trainyard.ir.folds import Pooled

if TYPE_CHECKING:
    import numpy.typing as npt

    from trainyard.arrays.sigma.execution import SigmaExecution
    from trainyard.arrays.sigma.flex_dpu import Demand, Held, Together
    from trainyard.hardware.tables.area import ComponentArea
    from trainyard.hardware.tables.energy import Component
    from trainyard.masks.contraction import Contraction, Mask

Side = Literal["a", "b"]
Stationary = Literal["a", "b", "none"]
Dataflow = Literal["a", "b", "none", "best"]
CHOICES = {
    "stationary": ("best", "a", "b", "none"),
    "streaming": ("wide", "limited"),
    "drain": ("fold", "pass"),
    "across": ("tree", "chain", "buffer"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SigmaCost(ArrayCost):
    """The metrics of Table II. `multipliers` is all that the fabric has; `useful` counts products of two non-zeros.

    `places` are multipliers offered over all folds, `slots` multipliers over all cycles of streaming. Of several products side by
    side both add up over their Flex-DPUs, and cycles are told apart as the product sees them that ends last in its round.
    """

    stationary: Stationary
    loading: int
    streaming: int
    add: int
    folds: int
    held: int
    useful: int
    places: int
    slots: int
    multipliers: int

    @property
    def utilisation(self) -> float:
        """Share of the multipliers that hold a non-zero, over all folds; without local reuse, that get a pair of two non-zeros."""
        return _share(self.held, self.places)

    @property
    def compute_efficiency(self) -> float:
        """Cycles that the useful products would take on all multipliers, over the cycles of streaming."""
        return _share(self.useful, self.slots)

    @property
    def overall_efficiency(self) -> float:
        """The same over all cycles."""
        return _share(self.useful, self.cycles * self.multipliers)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sigma:
    """`dpes` Flex-DPEs of `multipliers` each behind an input of `bandwidth` elements per cycle.

    `stationary` is which operand stays where a product does not say: a, b, none of them, or the better of a and b. Fewer non-zeros
    never take longer with `across="tree"`; in a `chain` or a `buffer` they may, as other rows then cross Flex-DPEs. Twice the
    bandwidth never does; a little more may under `limited` streaming, which cuts K elsewhere.

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
        require_positive("Sigma", dpes=self.dpes, multipliers=self.multipliers, bandwidth=self.bandwidth)
        if self.multipliers & (self.multipliers - 1):
            below = 1 << (self.multipliers.bit_length() - 1)
            raise BadInput(
                f"Sigma: a Flex-DPE has a power of two of multipliers (its networks are built by halving), got {self.multipliers}: "
                f"write {below} or {2 * below}"
            )
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise UnknownName(name, str(getattr(self, name)), known, where="Sigma")

    @property
    def peak_macs_per_cycle(self) -> int:
        return self.dpes * self.multipliers

    @property
    def add_cycles(self) -> int:
        """Levels of the adder tree over all multipliers: those of FAN in a Flex-DPE, and across Flex-DPEs."""
        return (self.peak_macs_per_cycle - 1).bit_length()

    @property
    def folds(self) -> tuple[Pooled, ...]:
        """The dense schedules, which tiles are searched with; none where the last sums depend on what lies where."""
        return _forms(self) if self.across == "tree" else ()

    @property
    def guides(self) -> tuple[Pooled, ...]:
        """Those of a tree come near enough to choose tiles by."""
        return _forms(self)

    def guided(self, a: float, b: float) -> tuple[Pooled, ...]:
        """Schedules of operands with such shares of non-zeros, to choose tiles by."""
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

    def tile_cycles(self, m: int, n: int, k: int) -> int:
        return self.cost(MatMul(m, n, k)).cycles

    def divided(self, shares: Sequence[int]) -> tuple[Sigma, ...]:
        """Disjoint Flex-DPUs: Flex-DPEs as `shares` says, the input bandwidth in proportion."""
        if not shares or min(shares) < 1 or sum(shares) > self.dpes:
            raise BadInput(f"Sigma: {self.dpes} Flex-DPEs cannot be divided into {tuple(shares)}")
        return tuple(replace(self, dpes=share, bandwidth=max(1, self.bandwidth * share // self.dpes)) for share in shares)

    def execute(self, a: npt.NDArray[Any], b: npt.NDArray[Any], stationary: Dataflow | None = None) -> SigmaExecution:
        """Multiply two matrices through switches, multipliers and adders."""
        from trainyard.arrays.sigma.execution import execute

        if self.multipliers < 2:
            raise BadInput("Sigma.execute: a Flex-DPE of one multiplier has no networks to go through: give it two or more")
        return execute(self, a, b, self.stationary if stationary is None else stationary)

    def concurrent(self, products: Sequence[Product]) -> ArrayCost:
        """On Flex-DPUs side by side, in rounds, or one after another: whatever is fastest."""
        from trainyard.masks.contraction import counts

        apart = one_after_another(self, products)
        if len(products) < 2 or self.stationary == "none" or self.across != "tree":
            return apart
        mets = [counts(product.op, product.a, product.b) for product in products]
        demands, owner = [], []
        for index, (product, met) in enumerate(zip(products, mets, strict=True)):
            demands += [self._demand(product.op, met)] * product.op.count
            owner += [index] * product.op.count
        found = self._together(tuple(demands))
        if found.cycles >= apart.cycles:
            return apart
        finish, events = [0] * len(products), dict[str, float]()
        for index, side, end, group in zip(owner, found.choice, found.finish, found.groups, strict=True):
            finish[index] = max(finish[index], end)
            part = self._of(len(group))._stationary(replace(products[index].op, count=1), mets[index], side)
            for name, count in part.events.items():
                events[name] = events.get(name, 0.0) + count
        return ArrayCost(cycles=found.cycles, finish=tuple(finish), events=events)

    def cost(
        self,
        op: MatMul,
        *,
        a: Mask = DENSE,
        b: Mask = DENSE,
        stationary: Dataflow | None = None,
    ) -> SigmaCost:
        """Masks are views of recorded zeros, matrices of any type (non-zero is not zero), or packed
        (`hardware.formats.bitmaps`)."""
        from trainyard.masks.contraction import counts

        if not isinstance(op, MatMul):
            raise BadInput(f"Sigma.cost takes a product such as MatMul(128, 2048, 4096), got {op!r}")
        chosen = self.stationary if stationary is None else stationary
        if chosen not in get_args(Dataflow):
            raise UnknownName("stationary", str(chosen), get_args(Dataflow), where="Sigma.cost")
        met = counts(op, a, b)
        if chosen == "none":
            return self._without_reuse(op, met)
        sides: tuple[Side, ...] = ("a", "b") if chosen == "best" else (chosen,)
        found = [self._with_crossings(self._stationary(op, met, side), op, a, b) for side in sides]
        if op.count > 1:
            found.append(self._side_by_side(op, met, sides, a, b))
        return min(found, key=lambda cost: cost.cycles)

    def _stationary(self, op: MatMul, met: Contraction, side: Side) -> SigmaCost:
        vectors, across = (op.N, op.M) if side == "a" else (op.M, op.N)
        held, useful = met.stationary(side), met.useful
        folds = -(-held // self.peak_macs_per_cycle)
        passes, sent = self._passes(met, side, held, folds, across)
        return self._cost(
            op,
            stationary=side,
            loading=-(-held // self.bandwidth),
            streaming=passes * vectors,
            add=self.add_cycles * (passes if self.streaming == "limited" and self.drain == "pass" else folds),
            folds=folds,
            held=held,
            useful=useful,
            events=self._events(op, side, held, useful, passes, sent),
        )

    def _with_crossings(self, cost: SigmaCost, op: MatMul, a: Mask, b: Mask) -> SigmaCost:
        """The last sums by what lies where; a tree asks nothing."""
        if self.across == "tree":
            return cost
        add = op.count * self._add(op, a, b, "a" if cost.stationary == "a" else "b", self.dpes)
        cycles = cost.loading + cost.streaming + add
        return replace(cost, add=add, cycles=cycles, finish=(cycles,))

    def _add(self, op: MatMul, a: Mask, b: Mask, side: Side, dpes: int) -> int:
        """Last sums of one product that has so many Flex-DPEs, where they meet in a chain or in the buffer (`across.py`)."""
        from trainyard.arrays.sigma.across import add_cycles, crossings
        from trainyard.masks.contraction import stationary_rows

        rows = stationary_rows(op, a, b, side, self.bandwidth if self.streaming == "limited" else op.K)
        return add_cycles(
            self.across, crossings(rows, self.multipliers, dpes), multipliers=self.multipliers, dpes=dpes,
            bandwidth=self.bandwidth, vectors=op.N if side == "a" else op.M,
            drain=self.drain if self.streaming == "limited" else "fold",
        )  # fmt: skip

    def _demand(self, op: MatMul, met: Contraction, sides: tuple[Side, ...] | None = None) -> Demand:
        """One product for `flex_dpu.together`, with each operand that may stay."""
        from trainyard.arrays.sigma.flex_dpu import Held

        own: dict[str, tuple[Side, ...]] = {"a": ("a",), "b": ("b",)}
        chunked = self.streaming == "limited"
        return {
            side: Held(
                nonzeros=met.stationary(side),
                vectors=op.N if side == "a" else op.M,
                depth=op.K,
                chunks=tuple(met.stationary_by_chunk(side, self.bandwidth).tolist()) if chunked else (),
            )
            for side in sides or own.get(self.stationary, ("a", "b"))
        }

    def _of(self, dpes: int) -> Sigma:
        """A Flex-DPU of so many Flex-DPEs behind the whole input, with a tree across."""
        return replace(self, dpes=dpes, across="tree")

    def _together(self, demands: tuple[Demand, ...]) -> Together:
        from trainyard.arrays.sigma.flex_dpu import together

        return together(
            demands, dpes=self.dpes, multipliers=self.multipliers, bandwidth=self.bandwidth,
            streaming=self.streaming, drain=self.drain,
        )  # fmt: skip

    def _side_by_side(self, op: MatMul, met: Contraction, sides: tuple[Side, ...], a: Mask, b: Mask) -> SigmaCost:
        """All `count` products, as many at a time as is fastest with a tree across; other ways across change their last sums."""
        one = replace(op, count=1)
        demand = self._demand(one, met, sides)
        found = _equal_products(self, tuple(demand.items()), op.count)
        which = [(side, len(group)) for side, group in zip(found.choice, found.groups, strict=True)]
        parts = {kind: self._of(kind[1])._stationary(one, met, kind[0]) for kind in set(which)}
        adds = {kind: part.add if self.across == "tree" else self._add(one, a, b, *kind) for kind, part in parts.items()}
        loading = streaming = add = began = 0
        for products in found.rounds:
            before = {index: found.finish[index] - began - parts[which[index]].add for index in products}  # until its last sums
            last = max(products, key=lambda index: before[index] + adds[which[index]])
            streamed = parts[which[last]].streaming
            if self.streaming == "limited":  # slowed by its neighbours, once all are loaded
                streamed = before[last] - -(-sum(parts[which[index]].held for index in products) // self.bandwidth)
            loading, streaming, add = loading + before[last] - streamed, streaming + streamed, add + adds[which[last]]
            began = max(found.finish[index] for index in products)
        each = [parts[kind] for kind in which]
        events = dict[str, float]()
        for kind, part in parts.items():
            for name, count in part.events.items():
                events[name] = events.get(name, 0.0) + count * which.count(kind)
        cycles = loading + streaming + add
        return SigmaCost(
            cycles=cycles,
            finish=(cycles,),
            events=events,
            stationary=found.choice[0],
            loading=loading,
            streaming=streaming,
            add=add,
            folds=sum(part.folds for part in each),
            held=sum(part.held for part in each),
            useful=met.useful * op.count,
            places=sum(part.places for part in each),
            slots=sum(part.slots for part in each),
            multipliers=self.peak_macs_per_cycle,
        )

    def _passes(self, met: Contraction, side: Literal["a", "b"], held: int, folds: int, across: int) -> tuple[int, float]:
        """How often the streaming vectors go through, and how many of their elements that is, counted for one vector's width.

        Elements lie row by row. A fold that holds less than a whole row needs only its part of a vector.
        """
        other: Literal["a", "b"] = "b" if side == "a" else "a"
        if self.streaming == "wide":
            row, pool = held / across, self.peak_macs_per_cycle  # elements of a row, on average
            rest = held - (folds - 1) * pool
            seen = (folds - 1) * min(1.0, pool / row) + min(1.0, rest / row) if held else 0.0
            return folds, met.stationary(other) * seen
        chunks = -(-met.stationary_by_chunk(side, self.bandwidth) // self.peak_macs_per_cycle)
        return int(chunks.sum()), float((met.stationary_by_chunk(other, self.bandwidth) * chunks).sum())

    def _without_reuse(self, op: MatMul, met: Contraction) -> SigmaCost:
        useful = met.useful
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
            held=useful,
            useful=useful,
            events=events,
        )

    def _events(self, op: MatMul, side: Literal["a", "b"], held: int, useful: int, passes: int, sent: float) -> dict[str, float]:
        """Elements at the scratchpad's ports, and what crosses the fabric.

        Sums of a row that goes on in the next pass are written and read again; along chunks of K that is every row.
        """
        vectors, across = (op.N, op.M) if side == "a" else (op.M, op.N)
        again = vectors * max(0, passes - 1) * (across if self.streaming == "limited" else 1)
        return {
            f"scratchpad_read_{side}": float(held),
            f"scratchpad_read_{'b' if side == 'a' else 'a'}": sent,
            "scratchpad_read_out": float(again),
            "scratchpad_write_out": float(op.M * op.N + again),
            "stationary_load": float(held),
            "broadcast": held + sent,
            "distribution": float(held + useful),
        }

    def _cost(self, op: MatMul, *, events: dict[str, float], loading: int, streaming: int, add: int, **rest: Any) -> SigmaCost:
        """All `count` products one after another."""
        times = op.count
        useful, held, folds = rest["useful"] * times, rest["held"] * times, rest["folds"] * times
        cycles = (loading + streaming + add) * times
        counted = {
            "mac": float(useful),
            "multiplication": float(useful),
            "addition": float(useful),
            "multiplier_slot": float(streaming * times * self.peak_macs_per_cycle),
            **{name: count * times for name, count in ({"scratchpad_write_out": float(op.M * op.N)} | events).items()},
        }
        return SigmaCost(
            cycles=cycles,
            finish=(cycles,),
            events=counted,
            stationary=rest["stationary"],
            loading=loading * times,
            streaming=streaming * times,
            add=add * times,
            folds=folds,
            held=held,
            useful=useful,
            places=folds * self.peak_macs_per_cycle,
            slots=streaming * times * self.peak_macs_per_cycle,
            multipliers=self.peak_macs_per_cycle,
        )


@lru_cache(maxsize=4096)
def _equal_products(array: Sigma, demand: tuple[tuple[Side, Held], ...], count: int) -> Together:
    return array._together((dict(demand),) * count)


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
