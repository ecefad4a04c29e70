"""A mask source of shares alone: arrays compute expected counts from it, where bits would take too long or were not recorded.

For every operand it has the share of non-zeros, and whether zeros fill whole rows (padded words, positions of an image) or fall at
random. A zero row of the tensor is a row of the operand in the product that gives dX. In the product that gives dW, which reduces
over rows, it is one k of the reduction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NoReturn

from trainyard.errors import BadInput, MaskError
from trainyard.ir import Density, Phase, Step, TensorKey

Cluster = Literal["none", "row"]


@dataclass(frozen=True, eq=False)
class Densities:
    """`shares` of non-zeros by (layer, call, letter); `rows` names the letters whose zeros are whole rows.

    >>> densities = Densities("mine", {("fc", 0, "G"): 0.25}, rows=frozenset("G"))
    >>> densities.operand(("fc", 0, "G"), Phase.GRAD_INPUT), densities.operand(("fc", 0, "G"), Phase.GRAD_WEIGHT).cluster
    (Density(nonzero=0.25, cluster='row'), 'channel')
    """

    name: str
    shares: Mapping[TensorKey, float]
    rows: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        for key, share in self.shares.items():
            if not 0.0 <= share <= 1.0:
                raise BadInput(f"densities {self.name!r}: {'/'.join(map(str, key))} has share {share!r}, not one between 0 and 1")

    @property
    def specs(self) -> Mapping[TensorKey, float]:
        """The operands whose share is known."""
        return self.shares

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(repr((sorted(self.shares.items()), sorted(self.rows))).encode()).hexdigest()

    def density(self, key: TensorKey) -> float:
        return self.shares[self._first(key)]

    def operand(self, key: TensorKey, phase: Phase) -> Density:
        """The density of any tile of an operand in a product of this phase."""
        if key[2][0] not in self.rows:
            return Density(self.density(key))
        return Density(self.density(key), "channel" if phase is Phase.GRAD_WEIGHT else "row")

    def bits(self, key: TensorKey) -> NoReturn:
        raise MaskError(f"densities {self.name!r} say how many zeros there are, not where: record masks, or generate some")

    def check(self, step: Step) -> None:
        """Raises where the densities and the step have no layer in common."""
        layers = {layer for layer, _, _ in self.shares}
        if layers and not layers & {op.layer for op in step.ops}:
            raise MaskError(
                f"densities {self.name!r} know no layer of step {step.name!r}: first are {', '.join(sorted(layers)[:3])}"
            )

    def _first(self, key: TensorKey) -> TensorKey:
        """The key under which a share is stored: all calls of a layer have one weight, stored under the first call."""
        layer, call, letter = key
        calls = range(call, -1, -1) if letter == "W" else (call,)
        return next((layer, earlier, letter) for earlier in calls if (layer, earlier, letter) in self.shares)
