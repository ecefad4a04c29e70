"""SIGMA on two small matrices, as text: bitmaps, stationary', counters, SRC-DEST tables, switches, adders, outputs, cycles.

E. Qin et al.: SIGMA: A Sparse and Irregular GEMM Accelerator with Flexible Interconnects for DNN Training. HPCA 2020. Sec. IV-E:
the steps i to vii of Fig. 5. `report.walkthroughs.sigma.figure` draws the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.arrays.sigma.array import Sigma
from trainyard.arrays.sigma.controller import IDLE, Allocation, Controller, FlexDpe, Gathered, Pass, Placement
from trainyard.arrays.sigma.execution import Fabric, SigmaExecution, Vectors, execute, ports
from trainyard.checks import require_positive
from trainyard.hardware.benes.network import Settings
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.hardware.reduction.adder_trees import ADD, BYPASS, Reduction

Reals = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
VERTICAL = 0
"""The output of a switch that leads straight down; 1 is the diagonal one."""
MOST_VECTORS = 2
"""Vectors whose switches are printed one by one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Example:
    """An array, the stationary matrix MK and the streaming matrix KN."""

    array: Sigma
    a: Reals
    b: Reals


EXAMPLE = Example(
    array=Sigma(dpes=2, multipliers=4, bandwidth=4),  # Fig. 5: N_mult 4, 2 Flex-DPEs, an input of 4 elements
    a=np.array([[1, 0, 2, 3], [4, 5, 0, 6], [0, 7, 8, 0], [0, 9, 0, 2]], np.float32),
    b=np.array([[1, 0, 2], [3, 4, 0], [0, 0, 0], [7, 5, 6]], np.float32),
)
"""The counts are those of Fig. 5 (N_stat is 8); the values are our own, as the paper only draws its matrices."""


def example(seed: int, *, rows: int = 6, depth: int = 8, vectors: int = 4, nonzero: float = 0.5) -> Example:
    """A random example on two Flex-DPEs of 8 multipliers; one k has no streaming value."""
    require_positive("walk-through", rows=rows, depth=depth, vectors=vectors)
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(1, 10, shape) * (rng.random(shape) < nonzero) for shape in ((rows, depth), (depth, vectors)))
    b[rng.integers(depth)] = 0
    return Example(array=Sigma(dpes=2, multipliers=8, bandwidth=8), a=a.astype(np.float32), b=b.astype(np.float32))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unit:
    """A Flex-DPE in one pass: its stationary values, and for each vector the switch settings, products and sums."""

    which: Pass
    flex_dpe: FlexDpe
    values: Reals
    sources: Integers
    settings: Settings
    inputs: Reals
    products: Reals
    reduction: Reduction


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """All steps of one product."""

    example: Example
    controller: Controller
    gathered: Gathered
    regor: npt.NDArray[np.bool_]
    pruned: Bitmap
    allocation: Allocation
    placement: Placement
    units: tuple[Unit, ...]
    execution: SigmaExecution


def trace_product(case: Example) -> Trace:
    """Every step of a product through the controller, the switches and the adders, as in `execute`."""
    controller, fabric = Controller.of(case.array), Fabric(case.array)
    gathered = controller.gather(Bitmap.of(case.a), Bitmap.of(case.b))
    regor = controller.row_or(gathered.streaming)
    pruned = controller.prune(gathered.stationary, regor)
    placement = controller.place(pruned)
    vectors = Vectors.of(np.ascontiguousarray(case.b.T), controller.chunk)
    values, units = case.a[placement.row, placement.k], []
    for pass_ in placement.passes:
        for flex_dpe in controller.flex_dpes(placement, pass_):
            sources, inputs, _ = ports(flex_dpe, pass_, vectors)
            values_held = np.where(flex_dpe.value != IDLE, values[flex_dpe.value], np.float32(0))
            products, settings = fabric.products(values_held, sources, inputs)
            units.append(
                Unit(
                    which=pass_, flex_dpe=flex_dpe, values=values_held, sources=sources, inputs=inputs,
                    settings=settings, products=products,
                    reduction=fabric.fan.reduce(products, flex_dpe.vec_ids),
                )
            )  # fmt: skip
    return Trace(
        example=case, controller=controller, gathered=gathered, regor=regor, pruned=pruned, allocation=controller.allocate(pruned),
        placement=placement, units=tuple(units), execution=execute(case.array, case.a, case.b, "a"),
    )  # fmt: skip


def walkthrough(case: Example = EXAMPLE, *, most: int = MOST_VECTORS) -> str:
    """All steps as text; switches are printed for the first `most` vectors."""
    trace = trace_product(case)
    steps = (_gather(trace), _prune(trace), _allocate(trace), _load(trace), _count(trace), _route(trace, most), _reduce(trace))
    return "\n\n".join("\n".join(line.rstrip() for line in step) for step in ([_heading(trace)], *steps))


def _heading(trace: Trace) -> str:
    array, (rows, depth), vectors = trace.example.array, trace.example.a.shape, trace.example.b.shape[1]
    return (
        f"{array.dpes} Flex-DPEs of {array.multipliers} multipliers behind an input of {array.bandwidth} elements per cycle.\n"
        f"MK ({rows} x {depth}) is stationary, KN ({depth} x {vectors}) streams: {vectors} vectors."
    )


def _gather(trace: Trace) -> list[str]:
    gathered = trace.gathered
    return ["i) Two matrices and their bitmaps", *_side_by_side(
        _matrix("MK", trace.example.a), _bits("bitmap", gathered.stationary),
        _matrix("KN", trace.example.b), _bits("bitmap", gathered.streaming),
    )]  # fmt: skip


def _prune(trace: Trace) -> list[str]:
    regor = _block("REGOR", [[str(int(bit))] for bit in trace.regor])
    gone = trace.gathered.stationary.nonzeros - trace.pruned.nonzeros
    values = "value meets" if gone == 1 else "values meet"
    return [
        "ii) Row-wise OR of the streaming bitmap; AND of its bit k with column k of the stationary bitmap",
        *_side_by_side(regor, _bits("stationary'", trace.pruned)),
        f"    {gone} stationary {values} nothing and will not be loaded",
    ]


def _allocate(trace: Trace) -> list[str]:
    allocation, array = trace.allocation, trace.example.array
    folds = "1 fold" if allocation.folds == 1 else f"{allocation.folds} folds"
    needed = "Flex-DPE" if allocation.flex_dpes == 1 else "Flex-DPEs"
    return [
        f"iii) N_stat = {allocation.useful}, N_mult = {array.multipliers}: {allocation.flex_dpes} {needed}, "
        f"on {array.dpes} of them {folds}"
    ]  # fmt: skip


def _load(trace: Trace) -> list[str]:
    """One line for each Flex-DPE; each value with its row and column in MK."""
    bandwidth, cycles = trace.example.array.bandwidth, _cycles(trace.execution.loading)
    lines = [f"iv) Stationary values to the multipliers, {bandwidth} a cycle: {cycles}"]
    for number, unit in enumerate(trace.units):
        values = [
            f"{value:g} ({row},{k})" if row != IDLE else "-"
            for value, row, k in zip(unit.values, unit.flex_dpe.row, unit.flex_dpe.k, strict=True)
        ]
        wide = max(map(len, values))
        lines.append(f"    {_name(trace, number)}  " + "  ".join(f"{text:<{wide}}" for text in values))
    return lines


def _count(trace: Trace) -> list[str]:
    unit, gathered = trace.controller, trace.gathered
    counters = _side_by_side(
        _numbers("stationary' counters", unit.stationary_counters(trace.pruned)),
        _numbers("streaming counters", unit.streaming_counters(gathered.streaming)),
        _bits("outputs", unit.output_bitmap(gathered)),
    )
    lines = ["v) Counters, the first output bitmap, and SRC > DEST for each vector", *counters]
    tables = [[_name(trace, number), *_tables(trace, flex_dpe)] for number, flex_dpe in enumerate(trace.units)]
    names = ["", *(f"vector {vector}" for vector in range(gathered.streaming.columns))]
    for first in range(0, len(tables), 2):
        lines += ["", *_side_by_side(names, *tables[first : first + 2])]
    return lines


def _tables(trace: Trace, unit: Unit) -> Iterator[str]:
    for table in trace.controller.tables(unit.flex_dpe, trace.gathered.streaming):
        yield "  ".join(f"{source}>{destination}" for source, destination in table.pairs) or "nothing"


class Link(NamedTuple):
    """A wire of the Benes network in use: from a switch of `level` to one of the next level, for these multipliers."""

    level: int
    begin: int
    end: int
    lanes: tuple[int, ...]


def links(unit: Unit, vector: int) -> tuple[Link, ...]:
    """The wires in use: from every multiplier with an input up through the switches' select bits to its port."""
    lanes_of_link: dict[tuple[int, int, int], list[int]] = {}
    for pass_ in np.flatnonzero(unit.settings.row == vector):
        select = unit.settings.bits[pass_]
        for lane in np.flatnonzero(unit.settings.enable[pass_]).tolist():
            switch, output = lane, VERTICAL
            for level in range(len(select) - 1, 0, -1):
                came = int(select[level, switch]) >> output & 1
                above = switch ^ stride(level - 1, len(select)) if came else switch
                lanes_of_link.setdefault((level - 1, above, switch), []).append(lane)
                switch, output = above, came
    return tuple(Link(*place, tuple(lanes)) for place, lanes in sorted(lanes_of_link.items()))


def stride(level: int, levels: int) -> int:
    """The length of a level's diagonals: 1, 2, 4, ... up to the middle level, then back.

    >>> [stride(level, 7) for level in range(6)]
    [1, 2, 4, 4, 2, 1]
    """
    return 1 << min(level, levels - 2 - level)


def _route(trace: Trace, most: int) -> list[str]:
    """Two marks for each switch: the inputs of its vertical and its diagonal output."""
    benes, vectors = Fabric(trace.example.array).benes, trace.example.b.shape[1]
    lines = [
        f"vi) Routing bits of the Benes networks, {benes.levels} levels of {benes.ports} switches. Outputs of a switch, vertical",
        "    and diagonal, take its vertical (|) or its diagonal (/) input; . carries nothing",
    ]
    for vector in range(min(most, vectors)):
        names = [f"vector {vector}", "ports", *(f"level {level}" for level in range(benes.levels)), "hears"]
        panels = [[_name(trace, number), *_panel(unit, vector)] for number, unit in enumerate(trace.units)]
        for first in range(0, len(panels), 2):
            lines += ["", *_side_by_side(names, *panels[first : first + 2])]
    if most < vectors:
        left = f"Vector {most} is" if vectors - most == 1 else f"Vectors {most} to {vectors - 1} are"
        lines += ["", f"    {left} routed likewise"]
    return lines


def _panel(unit: Unit, vector: int) -> Iterator[str]:
    """The values at the ports, every level of switches, and the port of each multiplier."""
    carried = links(unit, vector)
    sources, inputs, select = unit.sources[vector].tolist(), unit.inputs[vector], unit.settings.bits[unit.settings.row == vector][0]
    carries = {(link.level, link.begin, link.begin != link.end) for link in carried}
    carries |= {(len(select) - 1, lane, False) for lane, source in enumerate(sources) if source >= 0}
    yield " ".join(f"{inputs[port]:<2g}" if port in sources else ". " for port in range(len(sources)))
    for level, row in enumerate(select.tolist()):
        yield " ".join(
            "".join(("/" if bits >> output & 1 else "|") if (level, switch, bool(output)) in carries else "." for output in (0, 1))
            for switch, bits in enumerate(row)
        )
    yield " ".join(f"{source:<2}" if source >= 0 else ". " for source in sources)


def _reduce(trace: Trace) -> list[str]:
    lines = ["vii) Multiply, and add by row in FAN: adder i between lanes i and i + 1 adds (+), bypasses (|) or rests (.)"]
    for number, unit in enumerate(trace.units):
        lines += ["", *_side_by_side([_name(trace, number)], _adders(trace, unit)), *_side_by_side(*_sums(trace, unit))]
    lines += ["", *_crossing(trace)]
    execution, array = trace.execution, trace.example.array
    slots = execution.streaming * array.peak_macs_per_cycle
    return [
        *lines,
        "",
        *_side_by_side(_matrix("outputs", execution.product)),
        f"    loading {execution.loading} + streaming {execution.streaming} + add {execution.add} = {_cycles(execution.cycles)}; "
        f"{execution.multiplications} of {slots} multiplier slots multiply two non-zeros",
    ]


def _adders(trace: Trace, unit: Unit) -> list[str]:
    """Lanes and, between them, the adders of FAN."""
    fan = Fabric(trace.example.array).fan
    mode, ids = fan.route(unit.flex_dpe.vec_ids).mode, unit.flex_dpe.vec_ids
    wide = max(2, *(len(str(number)) for number in ids))
    marks = [{ADD: "+", BYPASS: "|"}.get(int(adder), ".") for adder in mode]

    def line(name: str, cells: list[str], shift: int) -> str:
        return f"{name:<6}" + " " * shift + "".join(f"{cell:>{wide}}  " for cell in cells)

    return [
        line("lane", [str(lane) for lane in range(len(ids))], 0),
        line("vecID", ["-" if number == IDLE else str(number) for number in ids], 0),
        line("adder", marks, (wide + 2) // 2),
        line("level", [str(level) for level in fan.adder_levels()], (wide + 2) // 2),
    ]


def _sums(trace: Trace, unit: Unit) -> Iterator[list[str]]:
    """A column for each dot product: its sum of every vector."""
    vectors = range(len(unit.products))
    yield ["", *(f"vector {vector}" for vector in vectors)]
    for group, vec_id in enumerate(unit.reduction.ids.tolist()):
        turns, row = divmod(vec_id, trace.placement.rows)
        name = f"row {row}{', 2nd part' if turns else ''} after {_cycles(int(unit.reduction.finish[group]))}"
        yield [name, *(f"{unit.reduction.sums[vector, group]:g}" for vector in vectors)]


def _crossing(trace: Trace) -> Iterator[str]:
    """Dot products with parts in several Flex-DPEs or folds."""
    where: dict[int, list[int]] = {}
    for number, unit in enumerate(trace.units):
        for vec_id in unit.reduction.ids.tolist():
            where.setdefault(vec_id % trace.placement.rows, []).append(number)
    for row, numbers in where.items():
        if len(numbers) > 1:
            folds = {trace.units[number].which.fold for number in numbers}
            meet = "the output buffer" if len(folds) == len(numbers) else _place(trace.example.array.across)
            meet += " and the output buffer" if 1 < len(folds) < len(numbers) else ""
            yield f"    row {row} has parts in {'; '.join(_name(trace, number) for number in numbers)}: they meet in {meet}"


def _place(across: str) -> str:
    return {"tree": "the tree over Flex-DPEs", "chain": "the chain of Flex-DPEs", "buffer": "the output buffer"}[across]


def _name(trace: Trace, number: int) -> str:
    """A Flex-DPE, with its fold where there are several."""
    unit = trace.units[number]
    fold = f"fold {unit.which.fold}, " if trace.allocation.folds > 1 else ""
    return f"{fold}Flex-DPE {unit.flex_dpe.number}"


def _cycles(count: int) -> str:
    return "1 cycle" if count == 1 else f"{count} cycles"


def _matrix(name: str, matrix: Reals) -> list[str]:
    return _block(name, [[f"{value:g}" if value else "." for value in row] for row in matrix.tolist()])


def _bits(name: str, bitmap: Bitmap) -> list[str]:
    return _block(name, [[str(int(bit)) for bit in row] for row in bitmap.bits().tolist()])


def _numbers(name: str, matrix: Integers) -> list[str]:
    return _block(name, [["." if number == IDLE else str(number) for number in row] for row in matrix.tolist()])


def _block(name: str, cells: list[list[str]]) -> list[str]:
    wide = max(len(cell) for row in cells for cell in row)
    return [name, *(" ".join(f"{cell:>{wide}}" for cell in row) for row in cells)]


def _side_by_side(*blocks: list[str]) -> list[str]:
    """Blocks from left to right, tops aligned."""
    rows = max(map(len, blocks))
    lines = ["   "] * rows
    for block in blocks:
        wide = max(map(len, block))
        padded = block + [""] * (rows - len(block))
        lines = [f"{line} {text:<{wide}}   " for line, text in zip(lines, padded, strict=True)]
    return lines
