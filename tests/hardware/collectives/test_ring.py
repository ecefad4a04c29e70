"""The plain ring in rounds and elements: what `Replicas` counts is what the timing of a graph counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.hardware.collectives.on_graph import timing
from trainyard.hardware.collectives.ring import KINDS, exchange
from trainyard.hardware.topology.graph import Place, Topology, Wire
from trainyard.hardware.topology.rings import rings


@pytest.mark.oracle
@given(st.sampled_from(KINDS), st.integers(2, 9), st.integers(1, 5000), st.integers(1, 64))
def test_rounds_of_chunks_are_those_of_a_graph_that_is_one_ring(kind, ranks, size, message):
    places = tuple(Place(name=f"d{rank}", kind="device") for rank in range(ranks))
    wires = tuple(Wire(a=f"d{rank}", b=f"d{(rank + 1) % ranks}", bytes_per_s=2.0, latency_s=3.0) for rank in range(ranks))
    node = Topology(places=places, wires=wires)
    actual = timing(kind, size, node, rings(node, directions="one")[:1], message_bytes=message)
    counted = exchange(kind, size, ranks)
    assert [(len(path), count) for path, count in actual.flows] == [(counted.links, counted.elements)]
    hops = counted.links if kind == "broadcast" else counted.rounds  # a later chunk leaves while the first is under way
    assert actual.time_s == hops * 3.0 + counted.rounds * counted.chunk / 2.0
