"""What is trained: a CNN, a transformer and a recommender, with the zeros of real training runs of theirs.

Batches are of eight devices together. Shares of zeros are those recorded at the last epoch of training on stand-in data
(docs/samples.md; `papers/samples/tensordash/densities.json`), of every layer; nothing is pruned. BERT's zeros of G are padded
words: whole rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from trainyard.errors import UnknownName
from trainyard.ir import Step
from trainyard.masks.densities import Densities
from trainyard.papers.tensordash.models import facts
from trainyard.workloads import zoo

LAST = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A zoo model at a batch, and the run whose zeros it has."""

    name: str
    family: str
    batch: int
    run: str
    rows: frozenset[str] = frozenset()

    def step(self) -> Step:
        return zoo.load(self.name, batch=self.batch)

    def zeros(self) -> Densities:
        return densities(self.run, self.rows)


# fmt: off
NETWORKS: Mapping[str, Network] = {one.name: one for one in (
    Network(name="resnet50",  family="CNN",         batch=512,   run="resnet50"),                         # MC-DLA, Sec. IV
    Network(name="bert-base", family="transformer", batch=512,   run="bert-base", rows=frozenset({"G"})), # as above
    Network(name="ncf",       family="recommender", batch=65536, run="ncf"),                              # assumed: 8192 a device
)}
# fmt: on


def network(name: str) -> Network:
    if name not in NETWORKS:
        raise UnknownName("network of the study", name, NETWORKS)
    return NETWORKS[name]


@cache
def densities(run: str, rows: frozenset[str] = frozenset()) -> Densities:
    """Shares of non-zeros of a recorded run, by layer, call and letter."""
    found = {}
    for place, letters in facts()[run]["densities"].items():
        layer, _, call = place.rpartition("/")
        found.update({(layer, int(call), letter): values[LAST] for letter, values in letters.items()})
    return Densities(f"recorded run {run}", found, rows)
