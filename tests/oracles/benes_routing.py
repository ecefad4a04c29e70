"""Routing of Benes networks that runs do not use: the walk-through's naive rule, and a complete search on the textbook network."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainyard.errors import NotModelled
from trainyard.hardware.benes.network import Benes, Flags, Settings, TextbookBenes, checked_sources

STEPS = 1_000_000
"""Steps of the complete search that proves a map blocked, about 0.1 s; decides 16 ports, but few random maps from 32 on."""


def naive_settings(network: Benes, sources: npt.ArrayLike) -> Settings:
    """Step vi of the walk-through (Sec. IV-E): source index minus destination index, its bits taken as diagonals.

    Read as: bit b of |source - destination| sends the element along the diagonal of stride 2**b on the way to the middle level,
    and straight down from there. The element lands at source XOR |source - destination|. Pairs are written in the order of the
    outputs; a later one overwrites the bits of an earlier one where they meet.
    """
    expected = checked_sources("Benes", network.ports, sources)
    landing = np.where(expected >= 0, expected ^ np.abs(expected - np.arange(network.ports)), -1)
    return network._set(expected, landing, np.arange(len(expected)), len(expected), np.maximum(landing, 0))


def naive_routes(network: Benes, sources: npt.ArrayLike) -> Flags:
    """Vectors that `naive_settings` delivers: no subtraction borrows (source XOR destination is the difference), and no two
    sources meet on a link.

    >>> naive_routes(Benes(ports=4), [[0, 1, 2, 3], [0, 0, 0, 0], [1, 2, 3, 3]])  # 2 to 1 borrows: it lands on 3
    array([ True,  True, False])
    """
    expected = checked_sources("Benes", network.ports, sources)
    names = np.broadcast_to(np.arange(1, network.ports + 1, dtype=np.float32), expected.shape)
    delivered = network.deliver(naive_settings(network, expected), names)
    return np.asarray((delivered == expected + 1).all(axis=1))


def routable(network: TextbookBenes, sources: npt.ArrayLike) -> Flags:
    """Exactly the vectors that some setting of the switches delivers in one pass: found, or excluded by a complete search."""
    from trainyard.kernels.networks.benes import route

    expected = checked_sources("TextbookBenes", network.ports, sources)
    answers = route(expected, network._outer, 20, STEPS, np.empty_like(expected))
    if (answers < 0).any():
        vector = int(np.flatnonzero(answers < 0)[0])
        raise NotModelled(
            f"TextbookBenes: vector {vector} of {network.ports} ports stays undecided after {STEPS} steps of search; "
            "ask blocks() for what the router finds, or take fewer ports"
        )
    return np.asarray(answers == 1)
