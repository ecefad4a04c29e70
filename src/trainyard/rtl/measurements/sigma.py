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


def benes_cases() -> Iterator[Case]:
    for ports in BENES_PORTS:
        yield case_of(BenesDesign(ports=ports), f"benes/{ports}", cycles=100)
    yield case_of(BenesDesign(ports=64, textbook=True), "benes-textbook/64", cycles=100)


CASES = (
    *reduction_cases(),
    *benes_cases(),
    case_of(FlexDpeDesign(multipliers=16), "flex-dpe/16", cycles=150, keep=("benes", "fan")),
    case_of(SystolicDesign(rows=4, columns=4), "systolic/4x4", cycles=150),
    case_of(ControllerDesign(rows=8, depth=16, multipliers=8, dpes=2), "controller/16", cycles=150),
    case_of(ControllerDesign(rows=8, depth=16, multipliers=8, dpes=4), "controller/32", cycles=150),
)
