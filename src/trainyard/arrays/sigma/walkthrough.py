"""SIGMA at work on two small matrices, as text: bitmaps, stationary', counters, SRC-DEST tables, switches, adders, outputs, cycles.

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
Whole = npt.NDArray[np.int64]
VERTICAL = 0
"""The output of a switch that leads straight down; 1 is the diagonal one."""
MOST_VECTORS = 2
"""Vectors whose switches are told one by one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Example:
    """A fabric, MK (stationary) and KN (streaming)."""

    array: Sigma
    a: Reals
    b: Reals


EXAMPLE = Example(
    array=Sigma(dpes=2, multipliers=4, bandwidth=4),  # Fig. 5: N_mult 4, 2 Flex-DPEs, an input of 4 elements
    a=np.array([[1, 0, 2, 3], [4, 5, 0, 6], [0, 7, 8, 0], [0, 9, 0, 2]], np.float32),
    b=np.array([[1, 0, 2], [3, 4, 0], [0, 0, 0], [7, 5, 6]], np.float32),
)
"""The counts are those of Fig. 5 (N_stat is 8); the figure's matrices are a picture that the text does not give: these are ours."""


def example(seed: int, *, rows: int = 6, depth: int = 8, vectors: int = 4, nonzero: float = 0.5) -> Example:
    """Another one, random, on two Flex-DPEs of 8 multipliers; one k has no streaming value."""
    require_positive("walk-through", rows=rows, depth=depth, vectors=vectors)
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(1, 10, shape) * (rng.random(shape) < nonzero) for shape in ((rows, depth), (depth, vectors)))
    b[rng.integers(depth)] = 0
    return Example(array=Sigma(dpes=2, multipliers=8, bandwidth=8), a=a.astype(np.float32), b=b.astype(np.float32))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unit:
    """A Flex-DPE in a pass: what it holds, what each vector does in it."""

    which: Pass
    flex_dpe: FlexDpe
    values: Reals
    sources: Whole
    settings: Settings
    inputs: Reals
    products: Reals
    reduction: Reduction


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Story:
    """All steps of one product."""

    example: Example
    controller: Controller
    gathered: Gathered
    regor: npt.NDArray[np.bool_]
    held: Bitmap
    allocation: Allocation
    placement: Placement
    units: tuple[Unit, ...]
    done: SigmaExecution


def story(given: Example) -> Story:
    """Step by step through the controller, the switches and the adders, as `execute` goes."""
    controller, fabric = Controller.of(given.array), Fabric(given.array)
    gathered = controller.gather(Bitmap.of(given.a), Bitmap.of(given.b))
    regor = controller.row_or(gathered.streaming)
    held = controller.prune(gathered.stationary, regor)
    placement = controller.place(held)
    vectors = Vectors.of(np.ascontiguousarray(given.b.T), controller.chunk)
    values, units = given.a[placement.row, placement.k], []
    for which in placement.passes:
        for one in controller.flex_dpes(placement, which):
            sources, inputs, _ = ports(one, which, vectors)
            mine = np.where(one.value != IDLE, values[one.value], np.float32(0))
            products, settings = fabric.products(mine, sources, inputs)
            units.append(
                Unit(
                    which=which, flex_dpe=one, values=mine, sources=sources, inputs=inputs, settings=settings, products=products,
                    reduction=fabric.fan.reduce(products, one.vec_ids),
                )
            )  # fmt: skip
    return Story(
        example=given, controller=controller, gathered=gathered, regor=regor, held=held, allocation=controller.allocate(held),
        placement=placement, units=tuple(units), done=execute(given.array, given.a, given.b, "a"),
    )  # fmt: skip


def walkthrough(given: Example = EXAMPLE, *, most: int = MOST_VECTORS) -> str:
    """The whole story; switches are told for the first `most` vectors."""
    told = story(given)
    steps = (_gather(told), _prune(told), _allocate(told), _load(told), _count(told), _route(told, most), _reduce(told))
    return "\n\n".join("\n".join(line.rstrip() for line in step) for step in ([_heading(told)], *steps))


def _heading(told: Story) -> str:
    array, (rows, depth), vectors = told.example.array, told.example.a.shape, told.example.b.shape[1]
    return (
        f"{array.dpes} Flex-DPEs of {array.multipliers} multipliers behind an input of {array.bandwidth} elements per cycle.\n"
        f"MK ({rows} x {depth}) is stationary, KN ({depth} x {vectors}) streams: {vectors} vectors."
    )


def _gather(told: Story) -> list[str]:
    met = told.gathered
    return ["i) Two matrices and their bitmaps", *_beside(
        _matrix("MK", told.example.a), _bits("bitmap", met.stationary),
        _matrix("KN", told.example.b), _bits("bitmap", met.streaming),
    )]  # fmt: skip


def _prune(told: Story) -> list[str]:
    regor = _block("REGOR", [[str(int(bit))] for bit in told.regor])
    gone = told.gathered.stationary.nonzeros - told.held.nonzeros
    values = "value meets" if gone == 1 else "values meet"
    return [
        "ii) Row-wise OR of the streaming bitmap; AND of its bit k with column k of the stationary bitmap",
        *_beside(regor, _bits("stationary'", told.held)),
        f"    {gone} stationary {values} nothing and will not be loaded",
    ]


def _allocate(told: Story) -> list[str]:
    found, array = told.allocation, told.example.array
    folds = "1 fold" if found.folds == 1 else f"{found.folds} folds"
    needed = "Flex-DPE" if found.flex_dpes == 1 else "Flex-DPEs"
    return [
        f"iii) N_stat = {found.useful}, N_mult = {array.multipliers}: {found.flex_dpes} {needed}, "
        f"on {array.dpes} of them {folds}"
    ]  # fmt: skip


def _load(told: Story) -> list[str]:
    """One line for each Flex-DPE; a value by its place in MK."""
    lines = [f"iv) Stationary values to the multipliers, {told.example.array.bandwidth} a cycle: {_cycles(told.done.loading)}"]
    for number, unit in enumerate(told.units):
        held = [
            f"{value:g} ({row},{k})" if row != IDLE else "-"
            for value, row, k in zip(unit.values, unit.flex_dpe.row, unit.flex_dpe.k, strict=True)
        ]
        wide = max(map(len, held))
        lines.append(f"    {_name(told, number)}  " + "  ".join(f"{text:<{wide}}" for text in held))
    return lines


def _count(told: Story) -> list[str]:
    unit, met = told.controller, told.gathered
    counters = _beside(
        _numbers("stationary' counters", unit.stationary_counters(told.held)),
        _numbers("streaming counters", unit.streaming_counters(met.streaming)),
        _bits("outputs", unit.output_bitmap(met)),
    )
    lines = ["v) Counters, the first output bitmap, and SRC > DEST for each vector", *counters]
    tables = [[_name(told, number), *_tables(told, one)] for number, one in enumerate(told.units)]
    names = ["", *(f"vector {vector}" for vector in range(met.streaming.columns))]
    for first in range(0, len(tables), 2):
        lines += ["", *_beside(names, *tables[first : first + 2])]
    return lines


def _tables(told: Story, unit: Unit) -> Iterator[str]:
    for table in told.controller.tables(unit.flex_dpe, told.gathered.streaming):
        yield "  ".join(f"{source}>{destination}" for source, destination in table.pairs) or "nothing"


class Link(NamedTuple):
    """A wire of the Benes network that carries something: from a switch of `level` to one of the next, for these multipliers."""

    level: int
    begin: int
    end: int
    lanes: tuple[int, ...]


def links(unit: Unit, vector: int) -> tuple[Link, ...]:
    """Followed from every listening multiplier up through the switches' select bits, to the port that it hears."""
    found: dict[tuple[int, int, int], list[int]] = {}
    for turn in np.flatnonzero(unit.settings.row == vector):
        select = unit.settings.bits[turn]
        for lane in np.flatnonzero(unit.settings.enable[turn]).tolist():
            switch, output = lane, VERTICAL
            for level in range(len(select) - 1, 0, -1):
                came = int(select[level, switch]) >> output & 1
                above = switch ^ stride(level - 1, len(select)) if came else switch
                found.setdefault((level - 1, above, switch), []).append(lane)
                switch, output = above, came
    return tuple(Link(*place, tuple(lanes)) for place, lanes in sorted(found.items()))


def stride(level: int, levels: int) -> int:
    """How far the diagonal of a level goes: 1, 2, 4, ... up to the middle, and back.

    >>> [stride(level, 7) for level in range(6)]
    [1, 2, 4, 4, 2, 1]
    """
    return 1 << min(level, levels - 2 - level)


def _route(told: Story, most: int) -> list[str]:
    """Two marks for each switch: what its vertical and its diagonal output take."""
    benes, vectors = Fabric(told.example.array).benes, told.example.b.shape[1]
    lines = [
        f"vi) Routing bits of the Benes networks, {benes.levels} levels of {benes.ports} switches. Outputs of a switch, vertical",
        "    and diagonal, take its vertical (|) or its diagonal (/) input; . carries nothing",
    ]
    for vector in range(min(most, vectors)):
        names = [f"vector {vector}", "ports", *(f"level {level}" for level in range(benes.levels)), "hears"]
        panels = [[_name(told, number), *_panel(unit, vector)] for number, unit in enumerate(told.units)]
        for first in range(0, len(panels), 2):
            lines += ["", *_beside(names, *panels[first : first + 2])]
    if most < vectors:
        left = f"Vector {most} is" if vectors - most == 1 else f"Vectors {most} to {vectors - 1} are"
        lines += ["", f"    {left} routed likewise"]
    return lines


def _panel(unit: Unit, vector: int) -> Iterator[str]:
    """The values at the ports, every level of switches, and the port that each multiplier hears."""
    found = links(unit, vector)
    sources, inputs, select = unit.sources[vector].tolist(), unit.inputs[vector], unit.settings.bits[unit.settings.row == vector][0]
    carries = {(link.level, link.begin, link.begin != link.end) for link in found}
    carries |= {(len(select) - 1, lane, False) for lane, source in enumerate(sources) if source >= 0}
    yield " ".join(f"{inputs[port]:<2g}" if port in sources else ". " for port in range(len(sources)))
    for level, row in enumerate(select.tolist()):
        yield " ".join(
            "".join(("/" if bits >> output & 1 else "|") if (level, switch, bool(output)) in carries else "." for output in (0, 1))
            for switch, bits in enumerate(row)
        )
    yield " ".join(f"{source:<2}" if source >= 0 else ". " for source in sources)


def _reduce(told: Story) -> list[str]:
    lines = ["vii) Multiply, and add by row in FAN: adder i between lanes i and i + 1 adds (+), bypasses (|) or rests (.)"]
    for number, unit in enumerate(told.units):
        lines += ["", *_beside([_name(told, number)], _adders(told, unit)), *_beside(*_sums(told, unit))]
    lines += ["", *_crossing(told)]
    done, array = told.done, told.example.array
    slots = done.streaming * array.peak_macs_per_cycle
    return [
        *lines,
        "",
        *_beside(_matrix("outputs", done.product)),
        f"    loading {done.loading} + streaming {done.streaming} + add {done.add} = {_cycles(done.cycles)}; "
        f"{done.multiplications} of {slots} multiplier slots multiply two non-zeros",
    ]


def _adders(told: Story, unit: Unit) -> list[str]:
    """Lanes and, between them, the adders of FAN."""
    fan = Fabric(told.example.array).fan
    mode, ids = fan.route(unit.flex_dpe.vec_ids).mode, unit.flex_dpe.vec_ids
    wide = max(2, *(len(str(number)) for number in ids))
    marks = [{ADD: "+", BYPASS: "|"}.get(int(one), ".") for one in mode]

    def line(name: str, cells: list[str], shift: int) -> str:
        return f"{name:<6}" + " " * shift + "".join(f"{cell:>{wide}}  " for cell in cells)

    return [
        line("lane", [str(lane) for lane in range(len(ids))], 0),
        line("vecID", ["-" if number == IDLE else str(number) for number in ids], 0),
        line("adder", marks, (wide + 2) // 2),
        line("level", [str(level) for level in fan.adder_levels()], (wide + 2) // 2),
    ]


def _sums(told: Story, unit: Unit) -> Iterator[list[str]]:
    """A column for each dot product: its sum of every vector."""
    vectors = range(len(unit.products))
    yield ["", *(f"vector {vector}" for vector in vectors)]
    for group, vec_id in enumerate(unit.reduction.ids.tolist()):
        turns, row = divmod(vec_id, told.placement.rows)
        name = f"row {row}{', 2nd part' if turns else ''} after {_cycles(int(unit.reduction.finish[group]))}"
        yield [name, *(f"{unit.reduction.sums[vector, group]:g}" for vector in vectors)]


def _crossing(told: Story) -> Iterator[str]:
    """Dot products whose parts lie in several Flex-DPEs or folds."""
    where: dict[int, list[int]] = {}
    for number, unit in enumerate(told.units):
        for vec_id in unit.reduction.ids.tolist():
            where.setdefault(vec_id % told.placement.rows, []).append(number)
    for row, numbers in where.items():
        if len(numbers) > 1:
            folds = {told.units[number].which.fold for number in numbers}
            meet = "the output buffer" if len(folds) == len(numbers) else _place(told.example.array.across)
            meet += " and the output buffer" if 1 < len(folds) < len(numbers) else ""
            yield f"    row {row} has parts in {'; '.join(_name(told, number) for number in numbers)}: they meet in {meet}"


def _place(across: str) -> str:
    return {"tree": "the tree over Flex-DPEs", "chain": "the chain of Flex-DPEs", "buffer": "the output buffer"}[across]


def _name(told: Story, number: int) -> str:
    """A Flex-DPE, with its fold where there are several."""
    unit = told.units[number]
    fold = f"fold {unit.which.fold}, " if told.allocation.folds > 1 else ""
    return f"{fold}Flex-DPE {unit.flex_dpe.number}"


def _cycles(count: int) -> str:
    return "1 cycle" if count == 1 else f"{count} cycles"


def _matrix(name: str, matrix: Reals) -> list[str]:
    return _block(name, [[f"{value:g}" if value else "." for value in row] for row in matrix.tolist()])


def _bits(name: str, bitmap: Bitmap) -> list[str]:
    return _block(name, [[str(int(bit)) for bit in row] for row in bitmap.bits().tolist()])


def _numbers(name: str, matrix: Whole) -> list[str]:
    return _block(name, [["." if number == IDLE else str(number) for number in row] for row in matrix.tolist()])


def _block(name: str, cells: list[list[str]]) -> list[str]:
    wide = max(len(cell) for row in cells for cell in row)
    return [name, *(" ".join(f"{cell:>{wide}}" for cell in row) for row in cells)]


def _beside(*blocks: list[str]) -> list[str]:
    """Blocks from left to right, tops aligned."""
    rows = max(map(len, blocks))
    lines = ["   "] * rows
    for block in blocks:
        wide = max(map(len, block))
        padded = block + [""] * (rows - len(block))
        lines = [f"{line} {text:<{wide}}   " for line, text in zip(lines, padded, strict=True)]
    return lines
