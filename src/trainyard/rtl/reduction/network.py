"""What the reduction networks share: ports, select registers, random groupings, and the simulator's sums cycle by cycle.

| port            | meaning                                                                                             |
|-----------------|-----------------------------------------------------------------------------------------------------|
| `configure`     | the grouping of this cycle holds from the next cycle on; the sums of the last one must have left      |
| `vec_id_<lane>` | the dot product that a lane belongs to; lanes of one follow each other                                |
| `busy`          | one bit for each lane: it belongs to a dot product                                                   |
| `valid`         | the products of this cycle count                                                                      |
| `product_<lane>`| the products                                                                                         |
| `sum_<adder>`   | output register of an adder (of a lane, in a chain)                                                   |
| `bypass_<adder>`| FAN: the second register of an adder that bypasses                                                   |
| `beside_<adder>`| ART: a finished sum that leaves beside the register                                                   |
| `finished_*`    | one bit for each adder: in this cycle its `sum`, `bypass` or `beside` is the sum of a dot product      |
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from amaranth.hdl import Module, Signal
from amaranth.lib.wiring import In, Out

from trainyard.hardware.reduction.adder_trees import PORTS, AdderTree
from trainyard.rtl.arithmetic.formats import FP32, FloatFormat, add, format_of, is_nan
from trainyard.rtl.arithmetic.stimulus import finite_bits, random_bits
from trainyard.rtl.catalogue import Design, Inputs, Outputs, parameter, require_power_of_two

OUTLETS = ("sum", "bypass", "beside")
"""Names of the outputs of an adder, by the simulator's number of its port."""


def grouping_ports(lanes: int) -> dict[str, Any]:
    return {"busy": In(lanes), **{f"vec_id_{lane}": In(vec_id_bits(lanes)) for lane in range(lanes)}}


def network_ports(lanes: int, width: int, outlets: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """All ports of a network; `outlets` names the adders that have an output of each kind."""
    ports = {"configure": In(1), **grouping_ports(lanes), "valid": In(1)}
    ports |= {f"product_{lane}": In(width) for lane in range(lanes)}
    for kind, adders in outlets.items():
        ports[f"finished_{kind}"] = Out(max(adders) + 1)
        ports |= {f"{kind}_{adder}": Out(width) for adder in adders}
    return ports


def vec_id_bits(lanes: int) -> int:
    """Enough to name as many dot products as there are lanes."""
    return max(1, (lanes - 1).bit_length())


class Lanes:
    """Comparators between the vecIDs of two lanes, each built once."""

    def __init__(self, m: Module, component: Any, lanes: int) -> None:
        self._m, self._component, self._lanes = m, component, lanes
        self._equal: dict[tuple[int, int], Any] = {}

    def same(self, lane: int, other: int) -> Any:
        """Whether two lanes belong to one dot product; no lane lies outside."""
        low, high = sorted((lane, other))
        if low < 0 or high >= self._lanes:
            return 0
        if (low, high) not in self._equal:
            equal = Signal(name=f"same_{low}_{high}")
            ids = [getattr(self._component, f"vec_id_{each}") for each in (low, high)]
            busy = self._component.busy
            self._m.d.comb += equal.eq(busy[low] & busy[high] & (ids[0] == ids[1]))
            self._equal[low, high] = equal
        return self._equal[low, high]


def delayed(m: Module, signal: Any, cycles: int, name: str) -> Any:
    """The signal of so many cycles ago."""
    for cycle in range(cycles):
        later = Signal(signal.shape(), name=f"{name}_{cycle + 1}")
        m.d.sync += later.eq(signal)
        signal = later
    return signal


def random_grouping(lanes: int, chance: random.Random) -> list[int]:
    """A vecID for each lane, -1 where it is idle: runs of random sizes under random ids."""
    ids = chance.sample(range(lanes), lanes)
    groups: list[int] = []
    longest = chance.choice((1, 3, max(2, lanes // 2), lanes))
    while len(groups) < lanes:
        size = chance.randint(1, longest)
        groups += [-1 if chance.random() < 0.15 else ids.pop()] * size
    return groups[:lanes]


def random_folds(tree: AdderTree, kind: FloatFormat, cycles: int, seed: int) -> list[Inputs]:
    """Folds of a few vectors each, one after another as the simulator counts them: `fold_cycles` behind the last vector."""
    chance = random.Random(seed)
    rows: list[Inputs] = []
    lanes = tree.lanes
    while len(rows) < cycles:
        rows.append({"configure": 1, **grouping_inputs(random_grouping(lanes, chance))})
        for _ in range(chance.choice((1, 2, 5, 20))):
            present = chance.random() < 0.8
            products = {f"product_{lane}": _product(kind, chance) for lane in range(lanes)}
            rows.append({**products, "valid": int(present)})
        rows += [{}] * (tree.fold_cycles(lanes) - 1)
    return rows[:cycles]


def _product(kind: FloatFormat, chance: random.Random) -> int:
    """Mostly moderate numbers; one NaN only, for a lane that is bypassed keeps its own."""
    if chance.random() < 0.9:
        return finite_bits(kind, chance)
    bits = random_bits(kind, chance)
    if is_nan(kind, bits):
        return kind.nan
    subnormal = (bits >> kind.fraction_bits) & kind.greatest_exponent == 0
    return 0 if subnormal and not kind.subnormals else bits


def grouping_inputs(vec_ids: Sequence[int]) -> dict[str, int]:
    ports = {f"vec_id_{lane}": max(vec_id, 0) for lane, vec_id in enumerate(vec_ids)}
    return {**ports, "busy": sum((vec_id >= 0) << lane for lane, vec_id in enumerate(vec_ids))}


def grouping_of(row: Inputs, lanes: int) -> list[int]:
    return [row.get(f"vec_id_{lane}", 0) if row.get("busy", 0) >> lane & 1 else -1 for lane in range(lanes)]


def expected_sums(
    tree: AdderTree, kind: FloatFormat, stimulus: Sequence[Inputs], outlets: Mapping[str, Sequence[int]]
) -> list[Outputs]:
    """Every sum in the cycle and at the adder where the simulator says that it leaves; no other bit of `finished` is set."""
    lanes = tree.lanes
    table: list[dict[str, int]] = [{f"finished_{name}": 0 for name in outlets} for _ in stimulus]
    grouping, vectors = [-1] * lanes, list[tuple[int, list[int]]]()
    for cycle, row in enumerate([*stimulus, {"configure": 1}]):
        if row.get("valid", 0):
            vectors.append((cycle, [row.get(f"product_{lane}", 0) for lane in range(lanes)]))
        if row.get("configure", 0):
            sums_leave(tree, kind, grouping, vectors, table)
            grouping, vectors = grouping_of(row, lanes), []
    return list(table)


def sums_leave(
    tree: AdderTree, kind: FloatFormat, grouping: list[int], vectors: list[tuple[int, list[int]]], table: list[dict[str, int]]
) -> None:
    """Writes the sums of one fold into the table of outputs; a vector is (cycle in which its products are there, products)."""
    if not vectors:
        return
    schedule = tree.schedule(np.array(grouping, dtype=np.int64))
    sums = fold_sums(tree, kind, grouping, [products for _, products in vectors])
    for group, (slot, finish) in enumerate(zip(schedule.outlets.tolist(), schedule.finish.tolist(), strict=True)):
        adder, port = divmod(slot - tree.lanes, PORTS)
        for (begin, _), row in zip(vectors, sums, strict=True):
            if begin + finish < len(table):
                table[begin + finish][f"finished_{OUTLETS[port]}"] |= 1 << adder
                table[begin + finish][f"{OUTLETS[port]}_{adder}"] = row[group]


def fold_sums(tree: AdderTree, kind: FloatFormat, grouping: Sequence[int], vectors: list[list[int]]) -> list[list[int]]:
    """The bit patterns of all sums: the simulator's own FP32, or its order of additions with the twin of another format."""
    vec_ids = np.array(grouping, dtype=np.int64)
    if kind == FP32:
        values = np.array(vectors, dtype=np.uint32).view(np.float32)
        with np.errstate(all="ignore"):
            bits = tree.reduce(values, vec_ids).sums.view(np.uint32).tolist()
        return [[FP32.nan if is_nan(FP32, each) else each for each in row] for row in bits]
    schedule = tree.schedule(vec_ids)
    sums = []
    for products in vectors:
        slots = dict(enumerate(products))
        for target, sources in zip(schedule.targets.tolist(), schedule.sources.tolist(), strict=True):
            operands = [slots[slot] for slot in sources if slot >= 0]
            total = operands[0]
            for operand in operands[1:]:
                total = add(kind, total, operand)
            slots[target] = total
        sums.append([slots[slot] for slot in schedule.outlets.tolist()])
    return sums


def minus_zero(kind: FloatFormat) -> int:
    """What leaves every other number as it is when added to it (+0 would turn -0 into +0)."""
    return 1 << (kind.width - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkDesign(Design):
    """A network beside the simulator's: a subclass names its part (`tree`) and its `outlets`, and builds the circuit."""

    lanes: int = parameter(8, "products that enter in a cycle; a power of two")
    number: str = parameter(
        "fp32", "number format: fp32, fp16, bf16 or e<exponent bits>m<fraction bits>, -flush without subnormals"
    )

    def __post_init__(self) -> None:
        require_power_of_two(self.name, lanes=self.lanes)
        format_of(self.number)

    @property
    def tree(self) -> AdderTree:
        """The part of `hardware.reduction.adder_trees` that says which sum leaves where and when."""
        raise NotImplementedError

    @property
    def outlets(self) -> Mapping[str, Sequence[int]]:
        """The adders that have an output of each kind, as in `network_ports`."""
        raise NotImplementedError

    def stimulus(self, cycles: int, seed: int) -> list[Inputs]:
        return random_folds(self.tree, format_of(self.number), cycles, seed)

    def expected(self, stimulus: Sequence[Inputs]) -> list[Outputs]:
        return expected_sums(self.tree, format_of(self.number), stimulus, self.outlets)
