"""Which layers share the batch and which share their features: the cheapest exchange (A. Krizhevsky 2014).

Under data parallelism a layer exchanges the gradients of its weights, under model parallelism what it reads and the gradient of
that. So convolutions, with few weights and large maps, take `data` and fully connected layers `model`, unless the batch is so large
that it is the other way round. Weighed is what a link of a ring carries: a gather or a scatter once, an all-reduce twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainyard.errors import UnknownName
from trainyard.ir import Gather, MatMul, Op, Phase, Role, Step
from trainyard.mapping.parallel.data import Reduce
from trainyard.mapping.parallel.model import Mode, letters_of, shared_tables
from trainyard.mapping.parallel.relayout import Stored, Summed

MODES: tuple[Mode, ...] = ("data", "model")


def named(step: Step, choice: Mapping[str, Mode]) -> dict[str, Mode]:
    """Each layer's mode by its own name or the nearest above it; layers that are not named take `data`."""
    for layer, mode in choice.items():
        if mode not in MODES:
            raise UnknownName(f"mode of layer {layer!r}", mode, MODES, "parallel.mixed")
        if not step.of(layer):
            raise UnknownName("layer", layer, step.layers, "parallel.mixed")
    modes: dict[str, Mode] = {}
    for layer in {op.layer for op in step.ops if weights_of(step, op) is not None}:
        above = layer
        while above and above not in choice:
            above = above.rpartition(".")[0]
        modes[layer] = choice.get(above, "data")
    return modes


def weights_of(step: Step, op: Op) -> int | None:
    """The parameter that a product multiplies by, or an embedding looks up."""
    if op.is_product:
        letters = letters_of(step, op)
        return step.base(op.inputs[letters.index("W")]) if "W" in letters else None
    if isinstance(op.body, Gather) and not op.body.scatter and op.inputs:
        table = step.base(op.inputs[0])
        return table if step.tensors[table].role is Role.PARAMETER else None
    return None


def cheapest(step: Step, *, reduce: Reduce, exchange: Summed, stored: Stored) -> list[dict[str, Mode]]:
    """Likely choices of each layer's mode, such that no single layer would better change its own.

    Layers that share weights are one. Of the ends that several starts lead to (all alike, or fully connected layers apart), the
    best is taken; once more with `model` charged double, for what the estimate does not see (statistics, attention).
    """
    graph = _graph(step, reduce)
    starts: list[dict[str, Mode]] = [dict.fromkeys(graph.data, mode) for mode in MODES]
    starts.append({layer: "model" if layer in graph.connected else "data" for layer in graph.data})
    choices: list[dict[str, Mode]] = []
    for margin in (1, 2):
        pairs = _between(exchange, stored, margin)
        _, best = min((_settled(graph, pairs, dict(start)) for start in starts), key=lambda end: end[0])
        modes = {layer: best[first_layer] for layer, first_layer in graph.one.items()}
        choices += [modes] if modes not in choices else []
    return choices


Pairs = Mapping[tuple[Mode, Mode], int]


def _between(exchange: Summed, stored: Stored, margin: int) -> Pairs:
    """How often a link carries X and dX between a layer and the next: X is gathered unless both share the batch."""
    gathers = 2 if stored == "shard" else 1
    return {
        ("data", "data"): 0,
        ("data", "model"): margin * (gathers + 1),  # dX reduce-scattered into samples
        ("model", "data"): margin * (gathers + 1),  # dX gathered from samples
        ("model", "model"): margin * (gathers + (2 if exchange == "all_reduce" else 1)),
    }


def _settled(graph: _Graph, pairs: Pairs, modes: dict[str, Mode]) -> tuple[int, dict[str, Mode]]:
    """Layer after layer takes its cheaper mode, until none changes."""

    def cost(layer: str, mode: Mode, *, above: bool = True) -> int:
        own = graph.data[layer] if mode == "data" else graph.model.get(layer, 0)
        for other, size, below in graph.edges.get(layer, ()):
            there = mode if other == layer else modes[other]
            own += size * pairs[(there, mode) if below else (mode, there)] if below or above else 0
        return own

    for _ in range(len(modes) + 1):
        before = dict(modes)
        for layer in modes:
            modes[layer] = "data" if cost(layer, "data") <= cost(layer, "model") else "model"
        if modes == before:
            break
    return sum(cost(layer, mode, above=False) for layer, mode in modes.items()), modes  # what two layers share counts once


@dataclass(slots=True)
class _Graph:
    """Layers with weights: bytes that each exchanges by itself under either mode, and bytes of what one reads of another."""

    data: dict[str, int] = field(default_factory=dict)
    model: dict[str, int] = field(default_factory=dict)
    edges: dict[str, list[tuple[str, int, bool]]] = field(default_factory=dict)  # (other, bytes, whether the other is below)
    one: dict[str, str] = field(default_factory=dict)  # layer -> the first that has its weights
    connected: set[str] = field(default_factory=set)  # by matrix products


def _graph(step: Step, reduce: Reduce) -> _Graph:
    graph = _Graph()
    base = [step.base(t) for t in range(len(step.tensors))]
    first: dict[int, str] = {}
    origin: dict[int, str] = {}  # memory -> the layer whose product it comes from
    seen: set[tuple[str, int]] = set()
    shared = shared_tables(step)
    for op in step.ops:
        if op.phase.backward or op.phase is Phase.UPDATE:
            continue
        weights = weights_of(step, op)
        if weights is None:
            above = [(step.tensors[t].elements, base[t]) for t in op.inputs if base[t] in origin]
            if above:
                origin.update({base[t]: origin[max(above)[1]] for t in op.outputs})
            continue
        layer = graph.one.setdefault(op.layer, first.setdefault(weights, op.layer))
        if (layer, weights) not in seen or reduce == "every_call":
            graph.data[layer] = graph.data.get(layer, 0) + 2 * step.tensors[weights].bytes
        seen.add((layer, weights))
        if isinstance(op.body, MatMul):
            graph.connected.add(layer)
        if op.layer in shared:  # rows looked up are all-reduced, so whole for whoever reads them; their gradients are gathered
            graph.model[layer] = graph.model.get(layer, 0) + 3 * step.tensors[op.outputs[0]].bytes
            continue
        if op.is_product:
            read = base[op.inputs[letters_of(step, op).index("A")]]
            below = origin.get(read)
            if below is not None and (layer, read) not in seen:
                graph.edges.setdefault(layer, []).append((below, step.tensors[read].bytes, True))
                if below != layer:
                    graph.edges.setdefault(below, []).append((layer, step.tensors[read].bytes, False))
            seen.add((layer, read))
        origin.update({base[t]: layer for t in op.outputs})
    return graph
