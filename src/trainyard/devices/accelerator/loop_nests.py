"""The loop nest of each Work of a step, from the choices that its cost was counted for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace

from trainyard.devices.accelerator.choices import ChainChoice, Choice, PairChoice, TileChoice
from trainyard.devices.accelerator.counting import bound_of
from trainyard.ir import Array, DeviceCost, MatMul, Op, Step, Work
from trainyard.ir.folds import AXES, Folds, Pooled
from trainyard.ir.protocols import HasClosedForm, HasLowerBounds, HasTileGuides
from trainyard.kernels.mapping.tile_search import MOST_CELLS
from trainyard.mapping.demand import OnChip, ProductDemand, Slices
from trainyard.mapping.gradient_order.bound import Bound, least_bytes
from trainyard.mapping.gradient_order.scratchpad import Pair
from trainyard.mapping.gradient_order.search import EFFORT
from trainyard.mapping.gradient_order.tile_streams import FUSED_LOOPS, Partition
from trainyard.mapping.levels.array import LeveledArray
from trainyard.mapping.tiling import EVALUATIONS, ORDERS, Supply, needed_bytes
from trainyard.results.loop_nests import ARRAY, DRAM, SCRATCHPAD, Kind, Loop, LoopNest, Moved

KEPT = {"n": 0, "m": 1, "k": 2}
"""The innermost loop -> the operand (A, B, sums) whose tile stays over it: the one without that axis."""
TURNED = {"m": "m", "n": "k", "k": "n"}
NO_SIZES = ("seed", "sample")
STREAMS = {"sequential": "mkn", "no_second_dy": "mkn", **{order: dx for order, (dx, _) in FUSED_LOOPS.items()}}
"""Loops of a gradient order over the tiles of the forward product, outer to inner; of two streams those of dX."""


def nests_of(
    step: Step, work: Work, cost: DeviceCost, on_chip: OnChip | Slices | None = None, effort: int = 0
) -> Iterator[LoopNest]:
    """The nests of one Work: one for each product, one for products that are done together, or one without loops.

    `effort` is the limit that the search was given, 0 for none.
    """
    for nest in _nests(step, work, cost, effort):
        yield replace(nest, slices=on_chip.cut, block=on_chip.layers) if isinstance(on_chip, Slices) else nest


def _nests(step: Step, work: Work, cost: DeviceCost, effort: int) -> Iterator[LoopNest]:
    ops = [step.ops[index] for index in work.ops]
    products = [op for op in ops if op.is_product]
    choices: Sequence[Choice] = cost.chosen
    if not choices:
        kind: Kind = "fused kernel" if products else "stream"
        note = f"{len(products)} products and {len(ops) - len(products)} other ops, nothing between them leaves the chip"
        yield LoopNest(
            layer=ops[0].layer, phase=ops[0].phase.value, op=ops[0].name, kind=kind, bound=cost.bound, cycles=cost.cycles,
            dram_bytes=sum(cost.bytes.values()), compute_cycles=cost.compute_cycles, note=note if products else "",
        )  # fmt: skip
        return
    whole = cost if len(choices) == 1 else None
    for choice in choices:
        number = 1 if isinstance(choice, TileChoice) else len(choice.demands) if isinstance(choice, PairChoice) else len(products)
        mine, products = products[:number], products[number:]
        nest = _nest(mine, choice, whole)
        yield nest if nest.proven else replace(nest, why_unproven=why_unproven(choice, effort))


def _nest(ops: Sequence[Op], choice: Choice, whole: DeviceCost | None) -> LoopNest:
    match choice:
        case TileChoice():
            return _product(ops[0], choice, whole)
        case PairChoice():
            return _pair(ops, choice, whole)
        case ChainChoice():
            return _chain(ops, choice, whole)


def why_unproven(choice: Choice, effort: int) -> str:
    """What kept a search from ruling out all other mappings: a limit on its work, or an array that tells too little."""
    limit = f"effort={effort} ended the search"
    if not isinstance(choice, TileChoice):
        return limit if effort else f"the search ended at its built-in limit of {int(EFFORT):,} tile operations (see effort)"
    array = choice.array
    name = type(array.array if isinstance(array, LeveledArray) else array).__name__
    if isinstance(array, HasClosedForm) and array.folds:
        return limit if effort else f"the search ended at its built-in limit of {MOST_CELLS:,} cells (see effort)"
    if isinstance(array, HasTileGuides) and array.guides:
        return (
            f"{name} has approximate closed forms only, from which a descent looks for better tiles: it cannot rule out the others"
        )
    asked = f"effort={effort}" if effort else f"the built-in limit of {EVALUATIONS}"
    if isinstance(array, HasLowerBounds):
        return f"{name} is asked for its cycles tile by tile, and {asked} tiles were too few to rule out the others"
    return f"nothing bounds the cycles of {name} but its multipliers: {asked} tiles were asked for, and others may be faster"


def array_text(array: object) -> str:
    """An array in a few words: its type, and the sizes that it was given."""
    if isinstance(array, LeveledArray):
        return array_text(array.array)
    if not is_dataclass(array) or isinstance(array, type):
        return f"array {type(array).__name__}"
    plain = {f.name: getattr(array, f.name) for f in fields(array) if f.init}
    if {"rows", "columns", "dataflow"} <= plain.keys():
        return f"array {type(array).__name__} {plain['dataflow']} {plain['rows']} x {plain['columns']}"
    sizes = ", ".join(f"{name} {value}" for name, value in plain.items() if type(value) is int and name not in NO_SIZES)
    return f"array {type(array).__name__}{f' ({sizes})' if sizes else ''}"


def inner_loops(array: Array, tile: tuple[int, int, int]) -> tuple[Loop, ...]:
    """What an array with a closed form does with a tile: fold after fold, in parallel along two axes while the third streams.

    Memory levels in front of it cut the tile first.
    """
    if isinstance(array, LeveledArray):
        return _level_loops(array, tile)
    forms: Sequence[Folds | Pooled] = array.folds if isinstance(array, HasClosedForm) else ()
    form = min(forms, key=lambda one: one.cycles(*tile), default=None)
    if not isinstance(form, Folds):
        return ()  # no fixed shape: any elements of the stationary operand are computed at once
    sizes = dict(zip(AXES, tile, strict=True))
    mapped = [axis for axis in AXES if axis != form.stream]
    across = {axis: min(getattr(form, axis), sizes[axis]) for axis in AXES}
    return (
        *(Loop(level=SCRATCHPAD, axis=axis, extent=sizes[axis], tile=across[axis]) for axis in (*mapped, form.stream)),
        *(Loop(level=ARRAY, axis=axis, extent=across[axis], tile=1, spatial=True) for axis in AXES if across[axis] > 1),
    )


def _level_loops(array: LeveledArray, tile: tuple[int, int, int]) -> tuple[Loop, ...]:
    """Loops over the tiles of each level, and those of the array inside of the last one."""
    loops: list[Loop] = []
    memory, size = SCRATCHPAD, tile
    for level, choice in array.choices(*tile):
        for axis in ORDERS[choice.order]:
            place = AXES.index(axis)
            loops.append(Loop(level=memory, axis=axis, extent=size[place], tile=choice.tile[place]))
        memory, size = level.name, choice.tile
    inside = inner_loops(array.array, size)
    return (*loops, *(replace(loop, level=memory) if loop.level == SCRATCHPAD else loop for loop in inside))


def _held(array: Array, tile: tuple[int, int, int], labels: Sequence[str]) -> str:
    """Which tensors each level holds; empty without levels."""
    if not isinstance(array, LeveledArray):
        return ""
    facts = []
    for level, choice in array.choices(*tile):
        names = [label for label, held in zip(labels, choice.held, strict=True) if held]
        facts.append(
            f"{level.name} holds {', '.join(names)} in tiles {' x '.join(map(str, choice.tile))}"
            if names
            else f"all goes past {level.name}"
        )
    return "; ".join(facts)


def _bypassed(array: Array, tile: tuple[int, int, int]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Levels that operands go past."""
    if not isinstance(array, LeveledArray):
        return ()
    past = {
        level.name: tuple(name for name, held in zip(("a", "b", "out"), choice.held, strict=True) if not held)
        for level, choice in array.choices(*tile)
    }
    return tuple((name, operands) for name, operands in past.items() if operands)


def _outer(op: MatMul, tile: tuple[int, int, int], order: str, beside: int = 1) -> tuple[Loop, ...]:
    extents, sizes = dict(zip(AXES, (op.M, op.N, op.K), strict=True)), dict(zip(AXES, tile, strict=True))
    batch = (Loop(level=DRAM, axis="batch", extent=op.count, tile=beside),) if op.count > 1 else ()
    return (*batch, *(Loop(level=DRAM, axis=axis, extent=extents[axis], tile=sizes[axis]) for axis in order))  # type: ignore[index]


def _clipped(op: MatMul, tile: Sequence[int]) -> tuple[int, int, int]:
    return min(op.M, tile[0]), min(op.N, tile[1]), min(op.K, tile[2])


def _named(demand: ProductDemand) -> str:
    """The product with its sizes: `Y(32 x 1000) = X(32 x 2048) W(2048 x 1000)`."""
    op, (a, b, out) = demand.problem.op, demand.labels
    times = f"{op.count} x " if op.count > 1 else ""
    return f"{times}{out}({op.M} x {op.N}) = {a}({op.M} x {op.K}) {b}({op.K} x {op.N})"


def _packed(*demands: ProductDemand) -> str:
    packed = max(demand.packed for demand in demands)
    return f"k counts groups of {packed} numbers that a multiplier takes at once" if packed > 1 else ""


def _bound(compute_cycles: int, dram_bytes: int, supply: Supply) -> str:
    return bound_of(compute=compute_cycles, dram=math.ceil(dram_bytes / supply.bytes_per_cycle))


def _least(demand: ProductDemand, room: float) -> Bound:
    """The bound of a product; where tensors stay on chip beside the tiles, that everything else moves once."""
    problem = demand.problem
    once = problem.a_bytes + problem.b_bytes + problem.out_bytes
    stays = demand.loaded_bytes != (None, None) or not (problem.a_bytes and problem.b_bytes and problem.sum_bytes)
    return Bound(compulsory=once, capacity=0, segments=1) if stays or room <= 0 else least_bytes(Pair.single(problem), room)


def _product(op: Op, choice: TileChoice, whole: DeviceCost | None) -> LoopNest:
    demand, tiled, problem = choice.demand, choice.tiled, choice.demand.problem
    tiling, product, (a, b, out) = tiled.tiling, problem.op, demand.labels
    tile = _clipped(product, (tiling.m, tiling.n, tiling.k))
    outer = _outer(product, tile, tiling.order, choice.beside)
    sums = tiled.out_moved + tiled.spill_write + tiled.spill_read
    moved = zip((a, b, out), (tiled.a_read, tiled.b_read, sums), (problem.a_bytes, problem.b_bytes, problem.out_bytes), strict=True)
    least = _least(demand, choice.supply.resident_bytes)
    stays = next((loop.axis for loop in reversed(outer) if loop.steps > 1 and loop.axis != "batch"), None)
    return LoopNest(
        layer=op.layer,
        phase=op.phase.value,
        op=op.name,
        kind="product",
        bound=whole.bound if whole else _bound(tiled.compute_cycles, tiled.dram_bytes, choice.supply),
        cycles=whole.cycles if whole else tiled.cycles,
        dram_bytes=sum(whole.bytes.values()) if whole else tiled.dram_bytes,
        product=_named(demand),
        dims=(product.M, product.N, product.K, product.count),
        element_bytes=demand.element_bytes,
        order=tiling.order,
        tile=tile,
        loops=(*outer, *inner_loops(choice.array, tile)),
        array=array_text(choice.array),
        keeps=(a, b, out)[KEPT[stays]] if stays else "",
        kept=tiling.keep,
        bypassed=_bypassed(choice.array, tile),
        moved=tuple(Moved(tensor=label, bytes=size, once_bytes=once) for label, size, once in moved),
        compute_cycles=tiled.compute_cycles,
        room_bytes=needed_bytes(problem, tiling) * choice.beside,
        room_limit_bytes=choice.supply.resident_bytes,
        compulsory_bytes=least.compulsory,
        least_bytes=least.total,
        proven=tiled.proven,
        note="; ".join(note for note in (_held(choice.array, tile, demand.labels), _packed(demand)) if note),
    )


def _partition(partition: Partition | None, *, alone: bool) -> str:
    if partition is None:
        return ""
    axis = TURNED[partition.axis] if alone else partition.axis
    return f"{axis} is cut into {partition.parts} parts, {'one for each core' if partition.cores else 'one after the other'}"


def _pair(ops: Sequence[Op], choice: PairChoice, whole: DeviceCost | None) -> LoopNest:
    """dX and dW together, in the m, n, k of the forward product; or one product through a scratchpad that keeps tiles."""
    pair, ordered, alone = choice.pair, choice.ordered, choice.pair.alone
    op, (m, n, k), partition = pair.op, _clipped(pair.op, ordered.tile), ordered.partition
    room = pair.needed((m, n, k), partition.parts if partition and partition.cores else 1)
    names, labels = ("dY", "W", "X", "dX", "dW"), choice.demands[0].labels
    if alone:  # `Pair.single` sums over n
        op, (m, n, k), names = choice.demands[0].problem.op, (m, k, n), (*labels[:2], "", labels[2], "")
    moved = []
    for tensor, name, once in zip(("dY", "W", "X", "dX", "dW"), names, pair.moved, strict=True):
        size = once if tensor in ("dX", "dW") else 0  # finished results leave once
        size += sum(count for (of, way), count in ordered.traffic.bytes.items() if of == tensor and way != "write")
        if once:
            moved.append(Moved(tensor=name, bytes=size, once_bytes=once))
    order = "mnk" if alone else STREAMS[ordered.order]
    least = least_bytes(pair, choice.supply.resident_bytes)
    mnk = "m, n, k of the forward product" + (f", k in channels of {pair.windows} weights" if pair.windows > 1 else "")
    notes = ("" if alone else mnk, _partition(partition, alone=alone), _packed(*choice.demands))
    return LoopNest(
        layer=ops[0].layer,
        phase=" + ".join(op.phase.value for op in ops),
        op=ops[0].name,
        kind="product" if alone else "gradient pair",
        bound=whole.bound if whole else _bound(ordered.compute_cycles, ordered.traffic.total_bytes, choice.supply),
        cycles=whole.cycles if whole else ordered.cycles,
        dram_bytes=sum(whole.bytes.values()) if whole else ordered.traffic.total_bytes,
        product="; ".join(map(_named, choice.demands)),
        dims=(op.M, op.N, op.K, op.count),
        element_bytes=choice.demands[0].element_bytes,
        order=order if alone else ordered.order,
        tile=(m, n, k),
        loops=(*_outer(op, (m, n, k), order), *(inner_loops(choice.array, (m, n, k)) if alone else ())),
        array=array_text(choice.array),
        moved=tuple(moved),
        compute_cycles=ordered.compute_cycles,
        room_bytes=room,
        room_limit_bytes=choice.supply.resident_bytes,
        compulsory_bytes=least.compulsory,
        least_bytes=least.total,
        note="; ".join(note for note in notes if note),
        proven=ordered.proven,
    )


def _chain(ops: Sequence[Op], choice: ChainChoice, whole: DeviceCost | None) -> LoopNest:
    """Two layers in one go; the loops are those of the upper one, and the lower layer's tile is in the note."""
    chain, cost = choice.chain, choice.cost
    tile = _clipped(chain.upper.op, cost.tile_upper)
    lower = " x ".join(map(str, _clipped(chain.lower.op, cost.tile_lower)))
    products = [choice.demand.upper.dx, choice.demand.upper.dw]
    layers = list(dict.fromkeys(op.layer for op in ops))
    return LoopNest(
        layer=ops[0].layer,
        phase=" + ".join(dict.fromkeys(op.phase.value for op in ops)),
        op=ops[0].name,
        kind="gradient chain",
        bound=whole.bound if whole else _bound(cost.compute_cycles, cost.traffic.total_bytes, choice.supply),
        cycles=whole.cycles if whole else cost.cycles,
        dram_bytes=sum(whole.bytes.values()) if whole else cost.traffic.total_bytes,
        product="; ".join(map(_named, products)),
        dims=(chain.upper.op.M, chain.upper.op.N, chain.upper.op.K, chain.upper.op.count),
        order=f"chain by {cost.join}",
        tile=tile,
        loops=_outer(chain.upper.op, tile, "mkn"),
        array=array_text(choice.array),
        compute_cycles=cost.compute_cycles,
        room_bytes=chain.needed(tile, cost.tile_lower),
        room_limit_bytes=choice.supply.resident_bytes,
        compulsory_bytes=chain.compulsory_bytes,
        note=f"dX goes on into {', '.join(layers[1:]) or 'the layer below'} on chip, there in tiles {lower}",
    )
