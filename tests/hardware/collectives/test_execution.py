"""Collectives on rings with real data: numpy's results, and on every arc the bytes that the timing says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles.collective_execution import Carrier, execute
from trainyard.errors import BadInput
from trainyard.hardware.collectives.on_graph import timing
from trainyard.hardware.topology.graph import Place, Topology, Wire
from trainyard.hardware.topology.rings import Ring, rings

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")


@st.composite
def nodes(draw, least=1):
    """Devices on one to three rings, both ways, over memory-nodes that several rings may pass."""
    count = draw(st.integers(least, 5))
    places = {f"d{rank}": "device" for rank in range(count)} | {f"m{number}": "memory" for number in range(3)}
    wires, actual = [], []
    for _ in range(draw(st.integers(1, 3)) if count > 1 else 0):
        walk = []
        for rank in draw(st.permutations(range(count))):
            walk += [f"d{rank}", *draw(st.sampled_from([(), ("m0",), ("m1",), ("m0", "m2"), ("m1", "m0", "m1")]))]
        arcs = [(len(wires) + hop, 0) for hop in range(len(walk))]
        ends = zip(walk, walk[1:] + walk[:1], strict=True)
        wires += [Wire(a=a, b=b, bytes_per_s=draw(st.sampled_from([1.0, 4.0])), latency_s=1.0) for a, b in ends]
        actual.append(Ring(walk=tuple(walk), arcs=tuple(arcs), devices=tuple(name for name in walk if name[0] == "d")))
        if draw(st.booleans()):
            actual.append(actual[-1].backwards)
    return Topology(places=tuple(Place(name=name, kind=kind) for name, kind in places.items()), wires=tuple(wires)), tuple(actual)


def numpy_result(kind, values, root):
    flat, count = [value.ravel() for value in values], len(values)
    total = np.sum(values, axis=0, dtype=values[0].dtype)
    part = -(-flat[0].size // count)
    match kind:
        case "all_reduce":
            return [total] * count
        case "all_gather":
            return [np.concatenate(flat)] * count
        case "reduce_scatter":
            return [total.ravel()[rank * part : (rank + 1) * part] for rank in range(count)]
        case "broadcast":
            return [values[root]] * count
    return [total if rank == root else value for rank, value in enumerate(values)]


@pytest.mark.oracle
@given(
    nodes(),
    st.sampled_from(KINDS),
    st.sampled_from(["int8", "int64", "float16", "float32", "float64", "complex64"]),
    st.sampled_from([(0,), (1,), (7,), (16,), (45,), (3, 5)]),
    st.integers(1, 40),
    st.sampled_from(["equal", "balanced"]),
    st.data(),
)
def test_results_equal_numpys_and_bytes_equal_the_timings(node, kind, dtype, shape, message, split, data):
    topology, loops = node
    count = len(topology.devices)
    root = data.draw(st.integers(0, count - 1))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    values = [(random.normal(size=shape) * 20).astype(dtype) for _ in range(count)]
    before = [value.copy() for value in values]
    actual = execute(kind, values, topology, loops, message_bytes=message, split=split, root=root)
    assert all((value == old).all() for value, old in zip(values, before, strict=True))
    exact = values[0].dtype.kind == "i" or kind in ("all_gather", "broadcast")
    for held, target in zip(actual.values, numpy_result(kind, values, root), strict=True):
        assert held.shape == target.shape
        assert held.dtype == target.dtype
        close = {} if exact else {"rtol": 20 * np.finfo(dtype).eps, "atol": 200 * np.finfo(dtype).eps}
        np.testing.assert_allclose(held, target, **(close or {"rtol": 0}))
    if kind in ("all_reduce", "all_gather", "broadcast"):
        assert len({held.tobytes() for held in actual.values}) == 1
    size, item = values[0].nbytes * (count if kind == "all_gather" else 1), values[0].itemsize
    timed = timing(kind, size, topology, loops, message_bytes=message, split=split, element_bytes=item, root=root)
    assert actual.carried == {arc: count for path, count in timed.flows for arc in path}


@pytest.mark.probe
def test_messages_queue_at_every_place_and_arrive_in_order():
    carrier = Carrier(message=8)
    data = np.arange(11, dtype=np.int32)
    assert (carrier.carry([(0, 0), (1, 1), (2, 0)], data) == data).all()
    assert carrier.carried == {(0, 0): 44, (1, 1): 44, (2, 0): 44}


def test_a_padded_part_crosses_the_wires_too():
    topology, loops = ring_of(4)
    actual = execute("all_reduce", [np.ones(5, np.float32)] * 4, topology, loops)
    assert set(actual.carried.values()) == {6 * 2 * 4}  # 2 (n - 1) rounds of 2 elements of 4 bytes


def ring_of(count):
    places = tuple(Place(name=f"d{rank}", kind="device") for rank in range(count))
    wires = tuple(Wire(a=f"d{rank}", b=f"d{(rank + 1) % count}", bytes_per_s=1.0) for rank in range(count))
    topology = Topology(places=places, wires=wires)
    return topology, rings(topology, directions="one")


def test_a_sum_is_computed_once_and_forwarded():
    """Sums that depend on their order come out the same everywhere."""
    topology, loops = ring_of(4)
    values = [np.array([big], np.float32) for big in (1e8, 1.0, -1e8, 1.0)]
    actual = execute("all_reduce", values, topology, loops)
    assert len({float(held[0]) for held in actual.values}) == 1


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([np.ones(3)] * 3, "expected 4 arrays"),
        ([np.ones(3)] * 3 + [np.ones(4)], "one shape"),
        ([np.ones(3, np.bool_)] * 4, "int8"),
    ],
)
def test_values_must_fit(values, says):
    with pytest.raises(BadInput, match=says):
        execute("all_reduce", values, *ring_of(4))
