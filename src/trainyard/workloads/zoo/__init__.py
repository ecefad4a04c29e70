"""The zoo: published models, and their captured training Steps.

- catalogue: the table of all models, with their published parameter counts
- recipe: what a model's function returns; objective: losses and optimizers that several models share
- vision/, language/, recommendation/: one short file per model
- steps/: the captured Steps

`load` needs no torch; `build` does. A new model is one file, one row of the catalogue, and a run of `scripts/regenerate_zoo.py`.
"""

from __future__ import annotations

import gzip
from functools import lru_cache
from importlib import import_module, resources
from typing import TYPE_CHECKING

from trainyard.errors import BadInput, UnknownName
from trainyard.ir import Step
from trainyard.lazy import require_torch
from trainyard.workloads.zoo.catalogue import ENTRIES, Entry

if TYPE_CHECKING:
    from trainyard.workloads.zoo.recipe import Recipe

__all__ = ["build", "entry", "load", "names"]


def names() -> tuple[str, ...]:
    """Every model of the zoo."""
    return tuple(ENTRIES)


def entry(name: str) -> Entry:
    """The catalogue's row of a model; the first words of its name suffice where they begin no other.

    >>> entry("transformer").name
    'transformer-324m'
    """
    if name in ENTRIES:
        return ENTRIES[name]
    matches = [row for full_name, row in ENTRIES.items() if full_name.startswith(f"{name}-")]
    if len(matches) != 1:
        raise UnknownName("model", name, ENTRIES)
    return matches[0]


def load(name: str, batch: int | None = None) -> Step:
    """The shipped Step of a model, at its catalogue batch or at `batch`."""
    row = entry(name)
    step = _shipped(row.name)
    return step.rebatch(row.batch if batch is None else batch)


@lru_cache(maxsize=64)
def _shipped(name: str) -> Step:
    file = resources.files("trainyard.workloads.zoo") / "steps" / f"{name}.json.gz"
    try:
        packed = file.read_bytes()
    except FileNotFoundError:
        raise BadInput(f"the step of zoo model {name!r} is not in this package: run scripts/regenerate_zoo.py") from None
    return Step.from_json(gzip.decompress(packed))


def build(name: str) -> Recipe:
    """The model itself, with inputs, targets, loss and optimizer, on torch's default device."""
    row = entry(name)
    require_torch(f"building {name}")
    recipe: Recipe = getattr(import_module(f"trainyard.workloads.zoo.{row.module}"), row.function)()
    return recipe
