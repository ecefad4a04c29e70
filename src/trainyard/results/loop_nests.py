"""The loop nest of a Work: tile sizes and loop order at each memory, what moves how often, and the least that could move.

A nest reads from the outside: loops over the tiles that come from DRAM, loops over what the array takes of such a tile (its folds),
and what the array does in parallel. A machine with more memories has a group of loops for each of them. Ops without a tile search
(element-wise streams, fused kernels) have no loops; their bytes are there all the same.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from trainyard.errors import BadInput, UnknownName
from trainyard.units import show

Kind = Literal["product", "gradient pair", "gradient chain", "fused kernel", "stream"]
DRAM, SCRATCHPAD, ARRAY = "dram", "scratchpad", "array"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A loop over `extent` in pieces of `tile`, the last one perhaps smaller.

    `level` is the memory whose data is cut; the pieces of a `spatial` loop are computed at the same time.
    """

    level: str
    axis: str
    extent: int
    tile: int
    spatial: bool = False

    @property
    def steps(self) -> int:
        return -(-self.extent // self.tile)

    def __str__(self) -> str:
        step = f" step {self.tile}" if self.tile > 1 else ""
        return f"{'parallel ' if self.spatial else ''}for {self.axis} in 0..{self.extent}{step}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A tensor between DRAM and scratchpad: `bytes` over the pins, spilled sums included; `once_bytes` if it moved once."""

    tensor: str
    bytes: int
    once_bytes: int

    @property
    def passes(self) -> float:
        return self.bytes / self.once_bytes if self.once_bytes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopNest:
    """One Work of a device.

    `product` names its tensors (`Y = X W`) and `dims` are M, N, K and the number of equal products, `element_bytes` those of an
    element of A, B and the result; `tile` is the tile in the scratchpad, `keeps` the tensor whose tile stays over the innermost
    loop, `kept` the operands (a, b, out) of which all tiles inside the loop that they lack stay. `least_bytes` is a lower bound on
    the DRAM traffic of
    any mapping onto this scratchpad. `proven` is false where the search ended before it could rule out all others, and
    `why_unproven` says what ended it.
    """

    layer: str
    phase: str
    op: str
    kind: Kind
    bound: str
    cycles: int
    dram_bytes: int
    product: str = ""
    dims: tuple[int, int, int, int] | None = None
    order: str = ""
    tile: tuple[int, int, int] | None = None
    element_bytes: tuple[int, int, int] | None = None
    loops: tuple[Loop, ...] = ()
    array: str = ""
    keeps: str = ""
    kept: tuple[str, ...] = ()
    bypassed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Memories inside the scratchpad that do not hold all operands, and those (a, b, out) that go past them."""
    moved: tuple[Moved, ...] = ()
    compute_cycles: int = 0
    room_bytes: float = 0.0
    """Scratchpad bytes of the tiles of one step, of `room_limit_bytes`."""
    room_limit_bytes: float = 0.0
    compulsory_bytes: int = 0
    least_bytes: int = 0
    proven: bool = True
    why_unproven: str = ""
    note: str = ""
    slices: str = ""
    """How the Work is cut where a block of layers runs slice by slice, for which the tile is."""
    block: str = ""
    """The first and the last layer of that block."""

    @property
    def over_least(self) -> float | None:
        """DRAM traffic over its lower bound; None where no bound is known."""
        return self.dram_bytes / self.least_bytes if self.least_bytes else None

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "moved": [{**asdict(one), "passes": one.passes} for one in self.moved],
            "loops": [{**asdict(loop), "steps": loop.steps} for loop in self.loops],
            "over_least": self.over_least,
        }

    def __str__(self) -> str:
        return "\n".join(lines(self))


def lines(nest: LoopNest) -> list[str]:
    """A nest as architects write it: loops indented, what stays and what moves below."""
    title = " ".join(word for word in (nest.layer or nest.op, nest.phase) if word)
    if not nest.loops:
        facts = [f"{show(nest.dram_bytes, 'B')} of DRAM traffic", f"{nest.cycles:,} cycles, bound by {nest.bound}"]
        facts += [f"with {nest.block} in {nest.slices}"] if nest.slices else []
        return [f"{title}: {nest.kind}{f' ({nest.note})' if nest.note else ''}, {', '.join(facts)}"]
    drawn = [f"{title}: {nest.product}", *_loops(nest)]
    facts = [f"  order {nest.order}"]
    if nest.tile is not None:
        facts.append(
            f"tile {' x '.join(map(str, nest.tile))} takes {show(nest.room_bytes, 'B')} of {show(nest.room_limit_bytes, 'B')}"
        )
    if nest.keeps:
        facts.append(f"{nest.keeps} stays over the innermost loop")
    if nest.kept:
        names = dict(zip(("a", "b", "out"), (moved.tensor for moved in nest.moved), strict=False))
        facts.append(f"all tiles of {' and '.join(names.get(one, one) for one in nest.kept)} inside are kept")
    drawn.append("; ".join(facts))
    passes = ", ".join(
        f"{one.tensor} {one.passes:.3g} x {show(one.once_bytes, 'B')}" if one.once_bytes else f"{one.tensor} is on chip"
        for one in nest.moved
    )
    over = "" if nest.over_least is None else f", {nest.over_least:.3f} x the lower bound"
    drawn.append(f"  moves {passes and f'{passes}: '}{show(nest.dram_bytes, 'B')}{over}")
    drawn.append(f"  {nest.cycles:,} cycles, the array works {nest.compute_cycles:,} of them; bound by {nest.bound}")
    if nest.note:
        drawn.append(f"  {nest.note}")
    if nest.slices:
        drawn.append(f"  runs with {nest.block} in {nest.slices}: loops of the longest slice, bytes and cycles of all")
    if not nest.proven:
        drawn.append(f"  not proven to be the best{f': {nest.why_unproven}' if nest.why_unproven else ''}")
    return drawn


def unproven_text(nests: Sequence[LoopNest]) -> str:
    """How many of some nests are not proven to be the best, and why; empty where all are."""
    reasons = Counter(nest.why_unproven for nest in nests if not nest.proven)
    if not reasons:
        return ""
    number = reasons.total()
    if len(reasons) == 1:
        (why,) = reasons
        return f"{number} of them {'are' if number > 1 else 'is'} not proven to be the best{f': {why}' if why else ''}"
    listed = ", ".join(f"{count} because {why or 'the search ended early'}" for why, count in reasons.items())
    return f"{number} of them are not proven to be the best: {listed}"


def _loops(nest: LoopNest) -> list[str]:
    """Loops of several steps, one below the other, with the memory whose data they cut; parallel ones are one line."""
    rows = [(str(loop), f"{loop.level}: {loop.steps} steps") for loop in nest.loops if loop.steps > 1 and not loop.spatial]
    across = ", ".join(f"{loop.axis} in 0..{loop.extent}" for loop in nest.loops if loop.spatial)
    rows.append((f"parallel for {across}" if across else "compute the tile", nest.array))
    indented = [("  " * (depth + 1) + text, remark) for depth, (text, remark) in enumerate(rows)]
    width = max(len(text) for text, _ in indented)
    return [f"{text:<{width}}  # {remark}" for text, remark in indented]


def matching(pattern: str, layer: str, phase: str) -> bool:
    """Whether a pattern (`layer4.*`, `*conv1:grad_weight`) names a layer, or a part of the model that the layer is in.

    >>> matching("layer4", "layer4.0.conv1", "forward"), matching("*.conv1:forward", "layer4.0.conv1", "grad_weight")
    (True, False)
    """
    name, _, wanted = pattern.partition(":")
    phases = phase.split(" + ")
    if wanted and not any(fnmatchcase(one, wanted) for one in phases):
        return False
    return name in ("", layer) or fnmatchcase(layer, name) or layer.startswith(f"{name}.")


def chosen(nests: Iterable[LoopNest], pattern: str = "") -> tuple[LoopNest, ...]:
    """The nests of the layers (and phases) that a pattern names; all of them without one."""
    every = tuple(nests)
    if not pattern:
        return every
    found = tuple(nest for nest in every if matching(pattern, nest.layer or nest.op, nest.phase))
    if not found:
        raise no_match(pattern, ((nest.layer or nest.op, nest.phase) for nest in every))
    return found


def no_match(pattern: str, works: Iterable[tuple[str, str]]) -> BadInput | UnknownName:
    """The error of a pattern that names none of these layers and phases: the nearest names, or the phases that a layer has."""
    pairs = [(layer, one) for layer, phase in works for one in phase.split(" + ")]
    name, colon, phase = pattern.partition(":")
    phases = {one for layer, one in pairs if matching(name, layer, "")}
    if colon and phases:
        return UnknownName("phase", phase, phases, where=f"mapping of {name!r}" if name else "mapping")
    layers = list(dict.fromkeys(layer for layer, _ in pairs if layer))
    return BadInput(f"mapping: no layer matches {name!r}: {_near(name, layers)}")


def _near(pattern: str, layers: Sequence[str]) -> str:
    """Names near a pattern: its plain text compared with whole names, and with as many parts of their beginnings and endings."""
    plain = pattern.replace("*", "").replace("?", "").strip(".")
    depth = plain.count(".") + 1
    parts = {".".join(layer.split(".")[:depth]): layer for layer in reversed(layers)}
    parts |= {".".join(layer.split(".")[-depth:]): layer for layer in reversed(layers)} | {layer: layer for layer in layers}
    near = list(dict.fromkeys(parts[one] for one in difflib.get_close_matches(plain, parts, n=3, cutoff=0.6)))
    return f"near it are {', '.join(near)}" if near else f"the layers are {_listed(layers, 8)}"


def drawing(nests: Sequence[LoopNest], pattern: str = "") -> str:
    """The nests that a pattern names as text; without a pattern, streams are counted in one line, and equal nests drawn once."""
    selected = chosen(nests, pattern)
    if not selected:
        raise BadInput("no loop nests: this machine has no tile search (they belong to accelerators: an array behind a scratchpad)")
    products = [nest for nest in selected if nest.loops or pattern]
    blocks: dict[str, list[str]] = {}
    for nest in products:
        title, *rest = lines(nest)
        name, _, product = title.partition(": ")
        blocks.setdefault("\n".join([product, *rest]), []).append(name)
    texts = []
    for text, names in blocks.items():
        more = f" (and {len(names) - 1} equal: {_listed(names[1:])})" if len(names) > 1 else ""
        texts.append(f"{names[0]}{more}: {text}")
    others = [nest for nest in selected if not (nest.loops or pattern)]
    for kind in dict.fromkeys(nest.kind for nest in others):
        moved = sum(nest.dram_bytes for nest in others if nest.kind == kind)
        number = sum(nest.kind == kind for nest in others)
        texts.append(f"{number} {kind}{'s' if number > 1 else ''} without tiles: {show(moved, 'B')} of DRAM traffic")
    return "\n\n".join(texts)


def _listed(names: Sequence[str], most: int = 4) -> str:
    return ", ".join([*names[:most], *(["..."] if len(names) > most else [])])
