"""Constraints on the mapping of products, by layer: fixed tile sizes, loop orders, operands that are moved once.

    {"layer4.*": {"tile": (64, 64, None), "order": "mnk"}, "*.conv1:grad_weight": {"keep": "out"}}

A pattern names layers as a shell names files (`*`, `?`, `[12]`), or a part of the model with all layers in it (`layer4`); behind a
colon it may name a phase. `keep` names operands (a, b, out) that cross the DRAM's pins once: the order of the loops, or room for
all of their tiles inside the loop that they lack, must see to it. Where several patterns name a product, each key is taken from the
last of them that has it. The search then looks among what is left. As text, for the command line:
`layer4.* tile=64x64x* order=mnk; *.conv1:grad_weight keep=out`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from trainyard.errors import BadInput, UnknownName
from trainyard.ir import Phase, Step
from trainyard.mapping.gradient_order.tile_streams import ORDERS as GRADIENT_ORDERS
from trainyard.mapping.precision import FrozenMapping
from trainyard.mapping.tiling import NO_TILE, ORDERS, TENSORS, Size, Tensor
from trainyard.results.loop_nests import matching, no_match
from trainyard.units import show

KEYS = ("tile", "order", "keep")
FREE = (None, 0, "none", "free", "*")
EXAMPLE = "{'layer4.*': {'tile': (64, 64, None), 'order': 'mnk'}}"


class Constraint(NamedTuple):
    """What is fixed for a product: tile sizes (0: free), loop orders (none named: all), operands to keep, orders of dX with dW."""

    tile: Size = NO_TILE
    orders: tuple[str, ...] = ()
    keep: tuple[Tensor, ...] = ()
    gradient_orders: tuple[str, ...] = ()


UNCONSTRAINED = Constraint()


@dataclass(frozen=True, slots=True)
class Rule:
    """The keys of one pattern; None where it says nothing."""

    pattern: str
    tile: Size | None = None
    orders: tuple[str, ...] | None = None
    keep: tuple[Tensor, ...] | None = None


class MappingConstraints(FrozenMapping[Mapping[str, Any]]):
    """Pattern -> keys, in the order given; hashable.

    >>> rules = MappingConstraints({"layer4.*": {"tile": (64, 64, None)}, "*.conv1:forward": {"keep": "a"}})
    >>> rules.of("layer4.0.conv1", "forward")
    Constraint(tile=(64, 64, 0), orders=(), keep=('a',), gradient_orders=())
    >>> rules.of("layer1.0.conv2", "forward") is UNCONSTRAINED
    True
    """

    __slots__ = ("rules",)

    rules: tuple[Rule, ...]

    def __init__(self, patterns: Mapping[str, Mapping[str, Any]]) -> None:
        self.rules = tuple(_rule(pattern, keys) for pattern, keys in patterns.items())
        self._pairs = tuple((rule.pattern, FrozenKeys(rule)) for rule in self.rules)

    @classmethod
    def from_text(cls, text: str) -> MappingConstraints:
        """
        >>> MappingConstraints.from_text("layer4.* tile=64x64x* order=mnk,nmk; conv1:forward keep=a")
        MappingConstraints({'layer4.*': {'tile': (64, 64, None), 'order': ('mnk', 'nmk')}, 'conv1:forward': {'keep': 'a'}})
        """
        patterns: dict[str, dict[str, Any]] = {}
        for part in filter(None, (part.strip() for part in text.split(";"))):
            pattern, *words = part.split()
            if pattern in patterns:
                raise BadInput(f"mapping: {pattern!r} is given twice")
            if "=" in pattern or not words:
                raise BadInput(f"mapping: {part!r}: write a pattern and its keys, as in 'layer4.* tile=64x64x* order=mnk'")
            patterns[pattern] = dict(_word(pattern, word) for word in words)
        return cls(patterns)

    def __eq__(self, other: object) -> bool:
        """The order of patterns counts: later ones win."""
        return self.rules == other.rules if isinstance(other, MappingConstraints) else super().__eq__(other)

    __hash__ = FrozenMapping.__hash__

    def of(self, layer: str, phase: str) -> Constraint:
        """What is fixed for the product of a layer in a phase."""
        return _constraint(self, layer, phase)

    def check(self, step: Step) -> None:
        """Refuses patterns that name no product of a step. A phase that the step does not have at all is none of its faults."""
        products = [(op.layer or op.name, op.phase.value) for op in step.ops if op.is_product]
        phases = {phase for _, phase in products}
        for rule in self.rules:
            name, _, phase = rule.pattern.partition(":")
            if any(matching(rule.pattern, *product) for product in products):
                continue
            if phase in tuple(Phase) and phase not in phases and any(matching(name, *product) for product in products):
                continue
            if any(matching(name, op.layer or op.name, "") for op in step.ops) and not phase:
                raise BadInput(f"mapping: {rule.pattern!r} names layers without a product: only products have tiles")
            raise no_match(rule.pattern, products)


class FrozenKeys(FrozenMapping[Any]):
    """The keys of one pattern, as they are written."""

    __slots__ = ()

    def __init__(self, rule: Rule) -> None:
        tile = None if rule.tile is None else tuple(size or None for size in rule.tile)
        order = rule.orders[0] if rule.orders and len(rule.orders) == 1 else rule.orders
        keep = rule.keep[0] if rule.keep and len(rule.keep) == 1 else rule.keep
        self._pairs = tuple((key, value) for key, value in zip(KEYS, (tile, order, keep), strict=True) if value is not None)

    def __repr__(self) -> str:
        return repr(dict(self._pairs))


NO_CONSTRAINTS = MappingConstraints({})


def checked_mapping(mapping: object) -> MappingConstraints:
    """Constraints from what a user gave: a table of patterns, or text."""
    if isinstance(mapping, MappingConstraints):
        return mapping
    if isinstance(mapping, str):
        return MappingConstraints.from_text(mapping)
    if not isinstance(mapping, Mapping):
        raise BadInput(f"mapping: expected constraints by layer, such as {EXAMPLE}, got {mapping!r}")
    return MappingConstraints(mapping)


@lru_cache(maxsize=65536)
def _constraint(constraints: MappingConstraints, layer: str, phase: str) -> Constraint:
    tile, orders, keep = Rule(""), Rule(""), Rule("")
    for rule in constraints.rules:
        if matching(rule.pattern, layer, phase):
            tile = tile if rule.tile is None else rule
            orders = orders if rule.orders is None else rule
            keep = keep if rule.keep is None else rule
    if tile.tile is None and orders.orders is None and keep.keep is None:
        return UNCONSTRAINED
    named = orders.orders or ()
    allowed, together = (tuple(name for name in named if (name in ORDERS) is loops) for loops in (True, False))
    return Constraint(tile.tile or NO_TILE, allowed, keep.keep or (), together)


def _spoken(names: Iterable[str] | None) -> str:
    return " or ".join(names or ())


def _word(pattern: str, word: str) -> tuple[str, Any]:
    key, equals, value = word.partition("=")
    if not equals or not value:
        raise BadInput(f"mapping of {pattern!r}: {word!r}: write key=value, as in tile=64x64x*")
    if key == "tile":
        return key, tuple(value.split("x"))
    return key, tuple(value.split(","))


def _rule(pattern: object, keys: object) -> Rule:
    if not isinstance(pattern, str) or not pattern.strip():
        raise BadInput(f"mapping: a pattern of layers is text such as 'layer4.*', got {pattern!r}")
    where = f"mapping of {pattern!r}"
    _, colon, phase = pattern.partition(":")
    if colon and not any(matching(f":{phase}", "", str(known)) for known in Phase):
        raise UnknownName("phase", phase, map(str, Phase), where=where)
    if not isinstance(keys, Mapping) or not keys:
        raise BadInput(f"{where}: expected some of {', '.join(KEYS)}, such as {EXAMPLE}, got {keys!r}")
    for key in keys:
        if key not in KEYS:
            raise UnknownName("key", str(key), KEYS, where=where)
    orders, keep = _orders(keys.get("order"), where), _keep(keys.get("keep"), where)
    return Rule(pattern, _tile(keys.get("tile"), where), orders, keep)


def _tile(tile: object, where: str) -> Size | None:
    if tile is None:
        return None
    if isinstance(tile, str) or not isinstance(tile, list | tuple) or len(tile) != 3:
        raise BadInput(f"{where}: tile is three sizes (m, n, k), None where the search is free, got {tile!r}")
    sizes = [0 if size in FREE and size is not False else _size(size, where) for size in tile]
    return sizes[0], sizes[1], sizes[2]


def _size(size: object, where: str) -> int:
    number = int(size) if isinstance(size, str) and size.isdecimal() else size
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 2**53:
        raise BadInput(f"{where}: a tile size is a positive whole number, or None where the search is free, got {size!r}")
    return number


def _keep(keep: object, where: str) -> tuple[Tensor, ...] | None:
    if keep is None:
        return None
    names = (keep,) if isinstance(keep, str) else keep
    if not isinstance(names, list | tuple) or not names:
        raise BadInput(f"{where}: keep is an operand ({', '.join(TENSORS)}), or several of them, got {keep!r}")
    for name in names:
        if name not in TENSORS:
            raise UnknownName("operand to keep", str(name), TENSORS, where=where)
    return tuple(tensor for tensor in TENSORS if tensor in names)


def _orders(order: object, where: str) -> tuple[str, ...] | None:
    if order is None:
        return None
    names = (order,) if isinstance(order, str) else order
    if not isinstance(names, list | tuple) or not names:
        raise BadInput(f"{where}: order is a loop order such as 'mnk' (outer to inner), or several of them, got {order!r}")
    known = (*ORDERS, *GRADIENT_ORDERS)
    for name in names:
        if name not in known:
            raise UnknownName("order", str(name), known, where=where)
    if len({name in ORDERS for name in names}) > 1:
        raise BadInput(
            f"{where}: {_spoken(names)}: loop orders are of one product, {_spoken(GRADIENT_ORDERS)} of dX with dW: give one kind"
        )
    return tuple(dict.fromkeys(names))


def require_room(what: str, tile: Size, extents: Size, needed: Callable[[Size], float], room: float) -> None:
    """Refuses a fixed tile that finds no room even if all free sizes are 1, and says what would fit."""
    fixed = tuple(min(size, extent) for size, extent in zip(tile, extents, strict=True))
    least = needed((fixed[0] or 1, fixed[1] or 1, fixed[2] or 1))
    if least <= room:
        return
    would = _fitting((fixed[0] or 1, fixed[1] or 1, fixed[2] or 1), tile, needed, room)
    text = "x".join(str(size or "*") for size in tile)
    at_least = "at least " if not all(tile) else ""
    offer = (
        f"{'x'.join(map(str, would))} would fit" if would else f"a scratchpad of {show(2 * needed((1, 1, 1)), 'B')} is the least"
    )
    size = f"{at_least}{show(least, 'B')}"
    raise BadInput(f"mapping: tile {text} of {what} needs {size}, half of the scratchpad holds {show(room, 'B')}: {offer}")


def _fitting(least: Size, tile: Size, needed: Callable[[Size], float], room: float) -> tuple[int | str, ...] | None:
    """The tile with one fixed size made smaller, as little as possible by elements; or with all of them halved until they fit."""
    best: tuple[int, tuple[int, int, int]] | None = None
    for axis in range(3):
        low, high = 0, least[axis]
        while tile[axis] and high - low > 1:
            middle = (low + high) // 2
            fits = needed((*least[:axis], middle, *least[axis + 1 :])) <= room  # type: ignore[arg-type]  # three sizes
            low, high = (middle, high) if fits else (low, middle)
        size = (*least[:axis], low, *least[axis + 1 :])
        if tile[axis] and low and (best is None or size[0] * size[1] * size[2] > best[0]):
            best = size[0] * size[1] * size[2], size  # type: ignore[assignment]  # three sizes
    found = best and best[1]
    halved = least
    while not found and max(halved) > 1:
        halved = (max(1, halved[0] // 2), max(1, halved[1] // 2), max(1, halved[2] // 2))
        found = halved if needed(halved) <= room else None
    return found and tuple(size if fixed else "*" for size, fixed in zip(found, tile, strict=True))
