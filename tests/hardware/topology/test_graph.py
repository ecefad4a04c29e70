"""A node as a graph: what may be written, what is refused by name, and which memories back a device."""

from __future__ import annotations

import itertools
import json
import math
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.topology.graph import Place, Topology, Wire

TOML = """
name = "two"
places = [
    {name = "D0", kind = "device"},
    {name = "D1", kind = "device"},
    {name = "M0", kind = "memory", memory_bytes_per_s = "256 GB/s", capacity_bytes = "1.28 TB", latency_s = "100 ns"},
    {name = "S0", kind = "socket", memory_bytes_per_s = 80e9, serves = ["D1"]},
]
wires = [
    {a = "D0", b = "M0", bytes_per_s = "25 GB/s", latency_s = "500 ns", count = 3},
    {a = "D1", b = "M0", bytes_per_s = "25 GB/s"},
    {a = "D1", b = "S0", bytes_per_s = "12 GB/s"},
]
"""


def device(*names):
    return tuple(Place(name=name, kind="device") for name in names)


def wire(a, b, rate=1e9):
    return Wire(a=a, b=b, bytes_per_s=rate)


def test_a_toml_table_with_units_is_a_topology():
    node = Topology.from_table(tomllib.loads(TOML))
    assert node.name == "two"
    assert node.devices == ("D0", "D1")
    assert node.place("M0") == Place(
        name="M0", kind="memory", memory_bytes_per_s=256e9, capacity_bytes=1_280_000_000_000, latency_s=100e-9
    )
    assert node.place("S0").serves == ("D1",)
    assert node.wires[:3] == (Wire(a="D0", b="M0", bytes_per_s=25e9, latency_s=500e-9),) * 3
    assert node.wires_at("D1") == (3, 4)
    assert node.wires_at("M0") == (0, 1, 2, 3)
    assert Topology.from_table(node.to_table()) == node


rates = st.floats(1e-3, 1e15)
names = st.text(min_size=1, max_size=3)


@st.composite
def topologies(draw):
    labels = draw(st.lists(names, min_size=1, max_size=6, unique=True))
    kinds = ["device", *(draw(st.sampled_from(["device", "memory", "socket", "switch"])) for _ in labels[1:])]
    devices = [label for label, kind in zip(labels, kinds, strict=True) if kind == "device"]
    places = []
    for label, kind in zip(labels, kinds, strict=True):
        store = kind in ("memory", "socket")
        places.append(
            Place(
                name=label,
                kind=kind,
                memory_bytes_per_s=draw(st.none() | rates) if store else None,
                capacity_bytes=draw(st.none() | st.integers(1, 10**13)) if store else None,
                latency_s=draw(st.floats(0, 1)),
                serves=tuple(draw(st.lists(st.sampled_from(devices), unique=True))) if store else (),
            )
        )
    pairs = list(itertools.permutations(labels, 2))
    wires = draw(st.lists(st.builds(Wire, a=st.just(""), b=st.just("-"), bytes_per_s=rates, latency_s=st.floats(0, 1)), max_size=6))
    ends = [draw(st.sampled_from(pairs)) for _ in wires] if pairs else []
    built = [
        Wire(a=a, b=b, bytes_per_s=kind.bytes_per_s, latency_s=kind.latency_s) for (a, b), kind in zip(ends, wires, strict=False)
    ]
    repeated = [one for one in built for _ in range(draw(st.integers(1, 3)))]
    return Topology(places=tuple(places), wires=tuple(repeated), name=draw(st.text(max_size=3)))


@given(topologies())
def test_tables_round_trip_through_plain_text(node):
    assert Topology.from_table(json.loads(json.dumps(node.to_table()))) == node


@given(topologies(), topologies())
def test_equal_topologies_hash_alike(one, other):
    again = Topology(places=one.places, wires=one.wires, name=one.name)
    assert again == one
    assert hash(again) == hash(one)
    assert (one == other) == (one.to_table() == other.to_table())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: wire("D0", "D1", 0), r"wire D0 - D1: bytes_per_s must be above 0, got 0"),
        (lambda: wire("D0", "D1", -1.0), r"wire D0 - D1: bytes_per_s must be above 0, got -1.0"),
        (lambda: wire("D0", "D1", math.nan), r"wire D0 - D1: bytes_per_s must be a finite number above 0, got nan"),
        (lambda: wire("D0", "D1", math.inf), r"wire D0 - D1: bytes_per_s must be a finite number"),
        (lambda: wire("D0", "D0"), r"wire D0 - D0: a wire joins two different places"),
        (lambda: Wire(a="D0", b="D1", bytes_per_s=1, latency_s=-1e-9), r"wire D0 - D1: latency_s must be at least 0"),
        (lambda: Place(name="", kind="device"), r"a place needs a name, got ''"),
        (lambda: Place(name="M0", kind="memory", memory_bytes_per_s=0), r"place 'M0': memory_bytes_per_s must be above 0"),
        (lambda: Place(name="M0", kind="memory", capacity_bytes=0), r"place 'M0': capacity_bytes must be a positive whole number"),
        (lambda: Place(name="M0", kind="memory", latency_s=-1), r"place 'M0': latency_s must be at least 0"),
        (lambda: Place(name="D0", kind="device", capacity_bytes=5), r"place 'D0': a device is no store"),
        (lambda: Topology(places=device("D0", "D1", "D0"), wires=()), r"the topology: two places are named 'D0'"),
        (lambda: Topology(places=(Place(name="M0", kind="memory"),), wires=(), name="n"), r"topology 'n' has no device"),
    ],
)
def test_invalid_places_and_wires_raise_with_their_name(build, message):
    with pytest.raises(BadInput, match=message):
        build()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Topology(places=device("D0", "D1"), wires=(wire("D0", "D2"),)), r"unknown place 'D2' in wire 0 \(D0 - D2\)"),
        (lambda: Place(name="M0", kind="ram"), r"unknown kind of place 'ram' in place 'M0'"),
        (
            lambda: Topology(places=(*device("D0"), Place(name="M0", kind="memory", serves=("D1",))), wires=()),
            r"unknown device 'D1' in what 'M0' serves: did you mean 'D0'",
        ),
        (lambda: Topology(places=device("D0"), wires=()).place("D1"), r"unknown place 'D1' in the topology"),
        (lambda: Topology(places=device("D0"), wires=()).wires_at("D1"), r"unknown place 'D1'"),
        (lambda: Topology.from_table({"places": [], "wire": []}), r"unknown key 'wire' in topology: did you mean 'wires'"),
        (lambda: Topology.from_table({"places": [{"name": "D0", "type": "device"}]}), r"unknown key 'type' in places\[0\]"),
        (
            lambda: Topology.from_table({"wires": [{"a": "D0", "b": "D1", "bytes_per_s": 1e9, "speed": 2}]}),
            r"unknown key 'speed' in wires\[0\].* \(known: a, b, bytes_per_s, count, latency_s\)",
        ),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(build, message):
    with pytest.raises(UnknownName, match=message):
        build()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"a": "D0", "b": "D1"}, r"wires\[0\]: 'bytes_per_s' is missing"),
        ({"a": "D0", "b": "D1", "bytes_per_s": "25 GB"}, r"wires\[0\].bytes_per_s: '25 GB' is not a quantity in B/s"),
        ({"a": "D0", "b": "D1", "bytes_per_s": "0 GB/s"}, r"wire D0 - D1: bytes_per_s must be above 0"),
        ({"a": "D0", "b": "D1", "bytes_per_s": "1 GB/s", "count": 0}, r"wires\[0\]: count must be a positive whole number"),
        (["D0", "D1"], r"wires\[0\]: expected a table"),
    ],
)
def test_rows_of_a_table_are_checked(row, message):
    with pytest.raises(BadInput, match=message):
        Topology.from_table({"places": [{"name": "D0", "kind": "device"}, {"name": "D1", "kind": "device"}], "wires": [row]})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"places": "D0"}, r"places must be a list of tables"),
        ({"places": [{"kind": "device"}]}, r"places\[0\]: 'name' is missing"),
        (
            {"places": [{"name": "M0", "kind": "memory", "capacity_bytes": 0.5}]},
            r"capacity_bytes: 0.5 is not a whole number of bytes",
        ),
        ({"places": [{"name": "M0", "kind": "memory", "serves": "D0"}]}, r"places\[0\].serves: expected a list of devices"),
    ],
)
def test_tables_are_checked(table, message):
    with pytest.raises(BadInput, match=message):
        Topology.from_table(table)


# ---- backing memories
def test_two_clients_of_a_memory_node_own_half_each():
    memory = Place(name="M0", kind="memory", memory_bytes_per_s=256e9, capacity_bytes=101, latency_s=1e-7)
    node = Topology(places=(*device("D0", "D1"), memory), wires=(wire("M0", "D0"), wire("D0", "M0"), wire("D1", "M0")))
    (store,) = node.stores("D0")
    assert store.place == "M0"
    assert store.lanes == (((0, 1),), ((1, 0),))
    assert (store.sharers, store.bytes_per_s, store.capacity_bytes, store.latency_s) == (2, 128e9, 50, 1e-7)
    assert node.stores("D1")[0].lanes == (((2, 0),),)


def test_lanes_through_a_switch_share_its_uplink():
    places = (*device("D0", "D1"), Place(name="P0", kind="switch"), Place(name="S0", kind="socket"))
    node = Topology(places=places, wires=(wire("D0", "P0"), wire("D0", "P0"), wire("D1", "P0"), wire("P0", "S0")))
    assert node.stores("D0")[0].lanes == (((0, 0), (3, 0)), ((1, 0), (3, 0)))
    assert node.stores("D1")[0].lanes == (((2, 0), (3, 0)),)
    assert node.stores("D1")[0].sharers == 2
    assert node.stores("D1")[0].bytes_per_s is None


def test_lanes_spread_over_parallel_uplinks():
    places = (*device("D0"), Place(name="X", kind="switch"), Place(name="M", kind="memory"))
    node = Topology(places=places, wires=(*(wire("D0", "X"),) * 4, wire("X", "M"), wire("M", "X")))
    assert [lane[1] for lane in node.stores("D0")[0].lanes] == [(4, 0), (5, 1), (4, 0), (5, 1)]


def test_memory_comes_before_sockets_and_devices_are_not_passed():
    places = (*device("D0", "D1"), Place(name="X", kind="switch"), Place(name="M", kind="memory"), Place(name="S", kind="socket"))
    wires = [wire("D0", "S"), wire("D0", "X"), wire("X", "M")]
    assert [store.place for store in Topology(places=places, wires=tuple(wires)).stores("D0")] == ["M"]
    behind = Topology(places=places, wires=(wire("D0", "S"), wire("D0", "D1"), wire("D1", "M")))
    assert [store.place for store in behind.stores("D0")] == ["S"]
    assert Topology(places=places, wires=(wire("D0", "D1"), wire("D1", "M"))).stores("D0") == ()
    assert Topology(places=places, wires=()).stores("D0") == ()


def test_only_the_nearest_and_only_shortest_lanes():
    places = (*device("D0", "D1"), Place(name="X", kind="switch"), Place(name="M0", kind="memory"), Place(name="M1", kind="memory"))
    near = Topology(places=places, wires=(wire("D0", "X"), wire("X", "M0"), wire("D0", "M1"), wire("X", "M1")))
    assert [(store.place, store.lanes) for store in near.stores("D0")] == [("M1", (((2, 0),),))]
    by_device = Topology(places=places[:4], wires=(wire("D0", "D1"), wire("D1", "M0"), wire("D0", "X"), wire("X", "M0")))
    assert [store.lanes for store in by_device.stores("D0")] == [(((2, 0), (3, 0)),)]


def test_one_place_with_serves_replaces_the_nearest_rule():
    places = (*device("D0", "D1"), Place(name="M0", kind="memory", serves=("D1",)), Place(name="M1", kind="memory"))
    node = Topology(places=places, wires=(wire("D0", "M1"), wire("M1", "M0"), wire("D1", "M1"), wire("D0", "M0")))
    assert node.stores("D0") == ()
    assert [(store.place, store.lanes, store.sharers) for store in node.stores("D1")] == [("M0", (((2, 0), (1, 0)),), 1)]
    with pytest.raises(BadInput, match="'M1' is a memory, no device"):
        node.stores("M1")
    lonely = Topology(places=places, wires=(wire("D0", "M0"), wire("D0", "D1")))
    with pytest.raises(BadInput, match="'M0' serves 'D1', but every way there passes another device"):
        lonely.stores("D1")


def simple_paths(node, here, goal, through, passed):
    """Every simple path of arcs, plainly."""
    if here == goal:
        yield ()
        return
    if here != passed[0] and node.place(here).kind not in through:
        return
    for number, link in enumerate(node.wires):
        for direction, (a, b) in enumerate(((link.a, link.b), (link.b, link.a))):
            if a == here and b not in passed:
                for rest in simple_paths(node, b, goal, through, (*passed, b)):
                    yield ((number, direction), *rest)


@pytest.mark.oracle
@given(topologies())
def test_stores_are_the_nearest_of_all_paths(node):
    pattern = any(place.serves for place in node.places)
    target = {}
    for name in node.devices:
        if pattern:
            target[name] = [place.name for place in node.places if name in place.serves]
            continue
        for kind in ("memory", "socket"):
            paths = {p.name: list(simple_paths(node, name, p.name, ("switch",), (name,))) for p in node.places if p.kind == kind}
            least = min((len(path) for actual in paths.values() for path in actual), default=0)
            target[name] = [place for place, actual in paths.items() if any(len(path) == least for path in actual)]
            if target[name]:
                break
    for name, places in target.items():
        paths = {place: list(simple_paths(node, name, place, ("switch", "memory", "socket"), (name,))) for place in places}
        if not all(all(any(simple_paths(node, d, p, ("switch", "memory", "socket"), (d,))) for p in target[d]) for d in target):
            continue  # refused: a store that cannot be reached
        stores = node.stores(name)
        assert sorted(store.place for store in stores) == sorted(places)
        for store in stores:
            least = min(map(len, paths[store.place]))
            shortest = {path for path in paths[store.place] if len(path) == least}
            assert set(store.lanes) <= shortest
            assert sorted(lane[0] for lane in store.lanes) == sorted({path[0] for path in shortest})
            assert store.sharers == sum(store.place in others for others in target.values())
