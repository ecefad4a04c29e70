"""Mappings for Timeloop: a product, a minimal architecture and the loops that a device chose, in one file for `timeloop-model`.

A convolution is written as the product that it is lowered to, M, N, K (and B for equal products); its operand is the unfolded
matrix, so that a scratchpad of convolutions read without unfolding is drawn as large as their unfolded tiles. Factors multiply to
the dimension; where a tile does not divide it, a factor has the remainder of its last turn behind a comma (`M=3,2`), Timeloop's
form for imperfect factors: the last index of a dimension is written in the mixed radix of its factors, and each remainder is its
digit plus one. Only the last tile may be smaller: inside a tile, where the array takes parts that do not divide it, the largest
divisor of the tile stands in. Permutations run from the innermost loop to the outermost. An operand of which the scratchpad keeps
all tiles inside some loop has a memory of its own here, around that loop, and goes past the one of the tiles.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from trainyard.devices import Accelerator
from trainyard.errors import BadInput, NotModelled
from trainyard.files import write_text
from trainyard.ir import MatMul, Op, Step
from trainyard.results.loop_nests import DRAM, SCRATCHPAD, Loop, LoopNest, chosen
from trainyard.workloads.formats.timeloop import problem

REGISTER, MAC = "register", "mac"
TARGETS = {DRAM: "DRAM"}
AXIS = {"m": "M", "n": "N", "k": "K", "batch": "B"}
OPERANDS = ("a", "b", "out")
LACKS = {"m": 1, "n": 0, "k": 2}
"""An axis -> the data space (A, B, sums) without it: the one that stays in the registers while that axis is streamed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """The loops of one memory: dimension -> (factor, what the last turn has of it), from inner to outer; all at once or in turn."""

    target: str
    factors: Mapping[str, tuple[int, int]]
    order: str
    spatial: bool = False


def write_mappings(
    step: Step, device: Accelerator, folder: str | os.PathLike[str], *, layer: str | None = None, phase: str | None = None
) -> tuple[list[Path], list[str]]:
    """`000_conv1_forward.yaml`, ... for each product that is mapped alone; returns the files, and what is left out."""
    pattern = f"{layer or ''}{f':{phase}' if phase else ''}"
    nests = [nest for nest in chosen(device.loop_nests(step), pattern) if nest.kind != "stream"]
    products = [nest for nest in nests if nest.kind == "product"]
    others = [nest for nest in nests if nest.kind != "product"]
    left = (
        [f"{len(others)} works of several products are left out, Timeloop maps one at a time: {_names(others)}"] if others else []
    )
    if not products:
        raise BadInput(f"no product to write{f': {left[0]}' if left else ''} (order='sequential' does dX and dW one by one)")
    texts = [specification(nest, device) for nest in products]
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot make the folder {target}: {error.strerror or error}") from None
    written = []
    for number, (nest, text) in enumerate(zip(products, texts, strict=True)):
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", f"{nest.layer or nest.op}_{nest.phase}")
        written.append(target / f"{number:03d}_{name}.yaml")
        write_text(written[-1], text)
    return written, left


def _names(nests: Sequence[LoopNest]) -> str:
    names = list(dict.fromkeys(f"{nest.layer or nest.op} ({nest.kind})" for nest in nests))
    return ", ".join([*names[:3], *(["..."] if len(names) > 3 else [])])


def specification(nest: LoopNest, device: Accelerator) -> str:
    """Problem, architecture and mapping of one product."""
    directives = directives_of(nest)
    lines = [f"# {nest.layer or nest.op} {nest.phase}: {nest.product}", *(f"# {note}" for note in _remarks(nest, directives))]
    lines += problem(Op(body=_op(nest), name=nest.op)).splitlines()
    lines += ["", *_architecture(nest, device, directives), "", "mapping:"]
    for directive in directives:
        lines += [
            f"- target: {directive.target}",
            f"  type: {'spatial' if directive.spatial else 'temporal'}",
            f"  factors: {' '.join(_factor(name, *factor) for name, factor in directive.factors.items())}",
            f"  permutation: {directive.order}",
        ]
        if directive.spatial:
            lines.append(f"  split: {_split(directive)}")
    spaces = data_spaces(nest)
    stays = [spaces[LACKS[_streamed(nest)]]]
    held = {memory: [spaces[OPERANDS.index(name)] for name in past] for memory, past in nest.bypassed}
    for memory in levels_of(nest):
        if memory.startswith(f"{SCRATCHPAD}_"):
            own = memory.removeprefix(f"{SCRATCHPAD}_")
            held |= {memory: [space for space in spaces if space != own], SCRATCHPAD: [*held.get(SCRATCHPAD, ()), own]}
    for memory, past in {**held, REGISTER: [space for space in spaces if space not in stays]}.items():
        kept = ", ".join(space for space in spaces if space not in past)
        lines += [f"- target: {memory}", "  type: bypass", f"  keep: [{kept}]", f"  bypass: [{', '.join(past)}]"]
    return "\n".join(lines) + "\n"


def _op(nest: LoopNest) -> MatMul:
    assert nest.dims is not None
    return MatMul(*nest.dims)


def data_spaces(nest: LoopNest) -> tuple[str, str, str]:
    """Names of A, B and the result in the problem: B is the batch where there are several equal products."""
    return ("A", "W", "Z") if _op(nest).count > 1 else ("A", "B", "Z")


def _factor(name: str, factor: int, remainder: int) -> str:
    return f"{name}={factor}" if remainder == factor else f"{name}={factor},{remainder}"


def _streamed(nest: LoopNest) -> str:
    """The axis that the array streams: the innermost loop in time."""
    return next(loop.axis for loop in reversed(nest.loops) if not loop.spatial)


def levels_of(nest: LoopNest) -> dict[str, list[Loop]]:
    """The loops in time of each memory, from outside to inside; those of DRAM are divided where a kept operand comes on chip."""
    levels: dict[str, list[Loop]] = {TARGETS[DRAM]: []}
    around = {axis: f"{SCRATCHPAD}_{data_spaces(nest)[LACKS[axis]]}" for axis in LACKS if OPERANDS[LACKS[axis]] in nest.kept}
    place, outer = TARGETS[DRAM], [loop for loop in nest.loops if loop.level == DRAM]
    for number, loop in enumerate(nest.loops):
        if loop.spatial:
            continue
        if loop.level != DRAM:
            place = loop.level
        elif loop.axis in around and loop.steps > 1 and any(inside.steps > 1 for inside in outer[number + 1 :]):
            place = around[loop.axis]
        levels.setdefault(place, []).append(loop)
    return levels


def directives_of(nest: LoopNest) -> list[Directive]:
    """The loops of each memory, from outside to inside, then what the array does at once, then its registers (nothing in turn)."""
    if all(loop.level == DRAM for loop in nest.loops):
        raise NotModelled(f"{nest.array} has no loops of its own (only closed forms have): leave --on out for problems alone")
    dims, levels = _dimensions(nest), levels_of(nest)
    pieces: dict[str, list[int]] = {name: [size] for name, size in dims.items()}
    for loops in levels.values():
        tiles = {AXIS[loop.axis]: loop for loop in loops}
        for name, sizes in pieces.items():
            loop = tiles.get(name)
            exact = loop is None or loop.level == DRAM
            sizes.append(sizes[-1] if loop is None else loop.tile if exact else _divisor(sizes[-1], loop.tile))
    for sizes in pieces.values():  # what is left of a tile is computed at once: the array's own part of it
        sizes.append(1)
    digits = {name: _digits(sizes) for name, sizes in pieces.items()}
    directives = []
    for place, (memory, loops) in enumerate([*levels.items(), (next(reversed(levels)), [])]):
        names = [AXIS[loop.axis] for loop in reversed(loops)]
        directives.append(
            Directive(
                target=memory,
                factors={name: digits[name][place] for name in dims},
                order="".join([*names, *(name for name in dims if name not in names)]),
                spatial=place == len(levels),
            )
        )
    return [*directives, Directive(target=REGISTER, factors=dict.fromkeys(dims, (1, 1)), order="".join(dims))]


def _dimensions(nest: LoopNest) -> dict[str, int]:
    op = _op(nest)
    return {**({"B": op.count} if op.count > 1 else {}), "M": op.M, "N": op.N, "K": op.K}


def _divisor(size: int, most: int) -> int:
    """The largest divisor that is not above `most`.

    >>> _divisor(784, 128), _divisor(23, 128), _divisor(23, 8)
    (112, 23, 1)
    """
    return next(divisor for divisor in range(min(size, most), 0, -1) if size % divisor == 0)


def _digits(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Of nested pieces: how many there are of each in the one around it, and how many in the last one.

    >>> _digits([56, 23, 1])  # three tiles of 23, the last of 10
    [(3, 3), (23, 10)]
    """
    factors, last = [], sizes[0] - 1
    for whole, piece in pairwise(sizes):
        factors.append((-(-whole // piece), last // piece + 1))
        last %= piece
    return factors


def _split(directive: Directive) -> int:
    """How many dimensions of the permutation lie along X: the first one that is computed at once, and those before it."""
    wide = [place for place, name in enumerate(directive.order) if directive.factors[name][0] > 1]
    return wide[0] + 1 if wide else len(directive.order)


def _remarks(nest: LoopNest, directives: Sequence[Directive]) -> Iterator[str]:
    yield f"trainyard counts {nest.cycles} cycles and {nest.dram_bytes} bytes of DRAM traffic; loops {nest.order}, tile {nest.tile}"
    at_once = next(directive for directive in directives if directive.spatial)
    for loop in nest.loops:
        here = at_once.factors[AXIS[loop.axis]][0]
        if loop.spatial and here != loop.extent:
            yield f"{AXIS[loop.axis]}: the array takes {loop.extent} at once, here {here}, which divides the tile"
    if nest.note:
        yield nest.note


def _architecture(nest: LoopNest, device: Accelerator, directives: Sequence[Directive]) -> list[str]:
    """DRAM, the scratchpad in two halves, memories inside of it, and a register for each multiplier of the array."""
    spatial = next(directive for directive in directives if directive.spatial)
    sizes, split = [spatial.factors[name][0] for name in spatial.order], _split(spatial)
    columns, rows = math.prod(sizes[:split]), math.prod(sizes[split:])
    rows = max(rows, device.array.peak_macs_per_cycle // columns)
    word = (nest.element_bytes or (4,))[0]
    bits, (m, n, k) = 8 * word, nest.tile or (1, 1, 1)
    needed, holds = m * k + k * n + m * n, int(nest.room_limit_bytes) // word
    lines = ["architecture:", "  version: 0.4", "  subtree:", "  - name: system", "    attributes:"]
    lines += [
        f"      technology: {device.technology_nm:g}nm",
        f"      global_cycle_seconds: {1 / device.clock_hz:.6g}",
        "    local:",
    ]
    bandwidth = f"{device.supply.bytes_per_cycle / word:.6g}"
    lines += _memory(TARGETS[DRAM], "DRAM", {"width": bits, "datawidth": bits, "shared_bandwidth": bandwidth})
    inner = {level.name: level.size_bytes // word for level in device.levels}
    for memory in [name for name in levels_of(nest) if name != TARGETS[DRAM]]:
        depth = inner.get(memory, 2 * max(holds, needed))
        if memory == SCRATCHPAD and needed > holds:
            lines.append(f"    # the machine has {2 * holds} words: unfolded tiles take more than the images that they are made of")
        lines += _memory(memory, "SRAM", {"depth": depth, "width": bits, "datawidth": bits, "multiple_buffering": 2})
    mesh = {"meshX": columns, "meshY": rows}
    lines += _memory(f"{REGISTER}[1..{columns * rows}]", "regfile", {"depth": 1, "width": bits, "datawidth": bits, **mesh})
    return [*lines, *_memory(f"{MAC}[1..{columns * rows}]", "fpmac" if word > 1 else "intmac", {"datawidth": bits, **mesh})]


def _memory(name: str, kind: str, attributes: Mapping[str, object]) -> list[str]:
    return [
        f"    - name: {name}",
        f"      class: {kind}",
        "      attributes:",
        *(f"        {key}: {value}" for key, value in attributes.items()),
    ]
