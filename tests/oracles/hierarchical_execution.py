"""Collectives between nodes with real data: inside every node, across nodes, inside again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.checks import require_positive
from trainyard.errors import BadInput
from trainyard.hardware.collectives.hierarchical import stages

Array = npt.NDArray[Any]
Mover = Callable[[str, Sequence[Array], int], Sequence[Array]]
"""(kind, arrays, root) -> arrays."""


def execute_hierarchical(
    kind: str, values: Sequence[Array], *, devices: int, inside: Mover, across: Mover, root: int = 0
) -> list[Array]:
    """The collective itself over flat arrays of all devices; `inside` and `across` are collectives of one level."""
    stages(kind)
    require_positive("hierarchical", devices=devices)
    if not values or len(values) % devices:
        raise BadInput(f"hierarchical: {len(values)} arrays do not make nodes of {devices} devices: give a multiple of {devices}")
    count, nodes = len(values), len(values) // devices
    size = values[0].size
    if kind == "all_to_all":
        return _all_to_all(values, nodes, devices, inside, across)
    held = [_arranged(kind, value, nodes, devices) for value in values]
    for where, part in stages(kind):
        if where == "inside":
            for first in range(0, count, devices):
                held[first : first + devices] = inside(part, held[first : first + devices], root % devices)
        else:
            for number in range(devices):
                held[number::devices] = across(part, held[number::devices], root // devices)
    if kind == "all_gather":  # it came by number in the node, then by node
        return [value.reshape(devices, nodes, size).swapaxes(0, 1).reshape(-1) for value in held]
    if kind == "reduce_scatter":
        part_size = -(-size // count)
        return [value[: max(0, size - rank * part_size)] for rank, value in enumerate(held)]
    return [value if kind == "reduce" and rank != root else value[:size] for rank, value in enumerate(held)]


def _all_to_all(values: Sequence[Array], nodes: int, devices: int, inside: Mover, across: Mover) -> list[Array]:
    """Blocks for all devices in their order; by number in the node first, then by node."""
    if values[0].size % len(values):
        raise BadInput(f"hierarchical: {values[0].size} elements do not divide among {len(values)} devices")
    held = [value.reshape(nodes, devices, -1).swapaxes(0, 1).reshape(-1) for value in values]
    for first in range(0, len(held), devices):
        held[first : first + devices] = inside("all_to_all", held[first : first + devices], 0)
    held = [value.reshape(devices, nodes, -1).swapaxes(0, 1).reshape(-1) for value in held]
    for number in range(devices):
        held[number::devices] = across("all_to_all", held[number::devices], 0)
    return held


def _arranged(kind: str, value: Array, nodes: int, devices: int) -> Array:
    """Padded so that every level divides it; for reduce-scatter sorted so that each device's part ends up with it."""
    if kind not in ("all_reduce", "reduce_scatter"):
        return value.ravel()
    count = nodes * devices
    padded = np.concatenate([value.ravel(), np.zeros(-value.size % count, value.dtype)])
    if kind == "all_reduce":
        return padded
    return padded.reshape(nodes, devices, -1).swapaxes(0, 1).reshape(-1)
