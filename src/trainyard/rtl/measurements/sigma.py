"""SIGMA's networks at sizes of Figs. 6b and 9, a small Flex-DPE and controller, and cells of the systolic array beside it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import partial

from trainyard.rtl.arithmetic.formats import FP32
from trainyard.rtl.arithmetic.stimulus import finite_bits
from trainyard.rtl.benes import BenesDesign
from trainyard.rtl.catalogue import Inputs
from trainyard.rtl.controller import ControllerDesign
from trainyard.rtl.flex_dpe import FlexDpeDesign
from trainyard.rtl.measurements.case import Case, Stimulus, case_of
from trainyard.rtl.reduction.art import ArtDesign
from trainyard.rtl.reduction.chain import ChainCells
from trainyard.rtl.reduction.fan import FanDesign
from trainyard.rtl.reduction.network import grouping_inputs, random_grouping
from trainyard.rtl.systolic import SystolicDesign

SIZES = (16, 64, 128, 512)
"""Of Fig. 6b, which also has 32 and 256."""
VECTORS = 60
GROUPINGS = ("one", "mixed")
"""One dot product over all lanes, so that every adder adds; or dot products of random sizes."""
BENES_PORTS = (8, 16, 32, 64, 128)


def grouping(lanes: int, name: str) -> list[int]:
    """The dot product of each lane, -1 for an idle one."""
    if name == "one":
        return [0] * lanes
    chance = random.Random(lanes)
    drawn = random_grouping(lanes, chance)
    while len(set(drawn)) < 3:
        drawn = random_grouping(lanes, chance)
    return drawn


def products(lanes: int, seed: int = 1) -> Iterator[dict[str, int]]:
    """Numbers of moderate size, new ones in every cycle."""
    chance = random.Random(seed)
    for _ in range(VECTORS):
        yield {f"product_{lane}": finite_bits(FP32, chance) for lane in range(lanes)}


def streamed(lanes: int, name: str) -> list[Inputs]:
    """A fold: the grouping, then a vector in every cycle, then what is needed until the last sum has left."""
    first: Inputs = {"configure": 1, **grouping_inputs(grouping(lanes, name))}
    return [first, *({**vector, "valid": 1} for vector in products(lanes))]


def chained(lanes: int, name: str) -> list[Inputs]:
    """The same for the cells of a chain, whose products come staggered from elsewhere: each lane gets a new one in every cycle."""
    groups = grouping(lanes, name)
    goes_on = sum((groups[lane] == groups[lane - 1] >= 0) << lane for lane in range(1, lanes))
    return [{**vector, "goes_on": goes_on} for vector in products(lanes)]


def reduction_cases() -> Iterator[Case]:
    for lanes in SIZES:
        for design in (FanDesign(lanes=lanes), ArtDesign(lanes=lanes)):
            loads: Mapping[str, Stimulus] = {name: partial(streamed, lanes, name) for name in GROUPINGS}
            yield Case(
                key=f"{design.name}/{lanes}", about=design.word, build=design.build, expected=design.expected, loads=loads,
                keep=("tree", "routing"), parameters={"design": design.name, **design.parameters},
            )  # fmt: skip
        yield Case(
            key=f"chain/{lanes}",
            about="the cells of a linear chain: an adder, a multiplexer and a register for each lane",
            build=partial(ChainCells, lanes, FP32),
            loads={name: partial(chained, lanes, name) for name in GROUPINGS},
            parameters={"lanes": lanes, "number": "fp32"},
        )


def one_route(design: BenesDesign) -> list[Inputs]:
    """New values in every cycle on the routes of one vector, as they are streamed past stationary ones."""
    chance, width = random.Random(3), design.width
    route = next(row for row in design.stimulus(8, seed=5) if row.get("start"))
    return [{**route, **{f"value_{port}": chance.getrandbits(width) for port in range(design.ports)}} for _ in range(VECTORS)]


def benes_cases() -> Iterator[Case]:
    for ports in BENES_PORTS:
        design = BenesDesign(ports=ports)
        yield case_of(design, f"benes/{ports}", cycles=100, busy=partial(one_route, design))


def full_flex_dpe(multipliers: int) -> list[Inputs]:
    """A vector in every cycle, straight down, through one dot product over all lanes; the first is kept as stationary values."""
    chance, everything = random.Random(4), (1 << multipliers) - 1
    rows: list[Inputs] = []
    for cycle in range(VECTORS):
        values = {f"value_{lane}": finite_bits(FP32, chance) for lane in range(multipliers)}
        fold = {"configure": 1, **grouping_inputs([0] * multipliers)} if cycle == 0 else {}
        rows.append({**values, **fold, "enable": everything, "start": 1, "load": int(cycle == 0), "valid": int(cycle > 0)})
    return rows


def full_array(rows: int, columns: int) -> list[Inputs]:
    """A weight for every cell, which column c loads c cycles late, then an input for every row in every cycle.

    Many inputs, so that the cycles in which weights are loaded hardly count.
    """
    chance, table = random.Random(5), list[Inputs]()
    for cycle in range(rows + columns + 8 * VECTORS):
        loading = cycle < rows + columns
        weights = {f"weight_{column}": finite_bits(FP32, chance) if loading else 0 for column in range(columns)}
        inputs = {f"input_{row}": 0 if loading else finite_bits(FP32, chance) for row in range(rows)}
        table.append({**weights, **inputs, "load": int(cycle < rows), "valid": 0 if loading else (1 << rows) - 1})
    return table


CASES = (
    *reduction_cases(),
    *benes_cases(),
    case_of(FlexDpeDesign(multipliers=16), "flex-dpe/16", cycles=150, keep=("benes", "fan"), busy=partial(full_flex_dpe, 16)),
    case_of(SystolicDesign(rows=4, columns=4), "systolic/4x4", cycles=150, busy=partial(full_array, 4, 4)),
    case_of(ControllerDesign(rows=8, depth=16, multipliers=8, dpes=2), "controller/16", cycles=150),
    case_of(ControllerDesign(rows=8, depth=16, multipliers=8, dpes=4), "controller/32", cycles=150),
)
