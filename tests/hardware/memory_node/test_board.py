"""Memory-nodes: Table IV and what follows from it, the time of a copy against its requests one by one, and units on the way."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.formats.zero_compression import decode, encode
from trainyard.hardware.memory_node.board import MemoryNode, Unit
from trainyard.hardware.memory_node.dimms import MODULES

SQUEEZE = Unit(kind="compression", latency_s=20e-9, bytes_per_s=400e9, ratio=2.6)  # Sec. V-B: cDMA's mean
CIPHER = Unit(kind="encryption", latency_s=50e-9, bytes_per_s=100e9)


@pytest.mark.paper
@pytest.mark.parametrize(
    ("dimm", "watts", "gb_per_w"),
    [
        ("8 GB RDIMM", 29, 2.8),
        ("16 GB RDIMM", 66, 2.4),
        ("32 GB LRDIMM", 87, 3.7),
        ("64 GB LRDIMM", 102, 6.3),
        ("128 GB LRDIMM", 127, 10.1),
    ],
)
def test_modules_have_the_numbers_of_table_four(dimm, watts, gb_per_w):
    node = MemoryNode(dimm=dimm)
    assert node.power_w == pytest.approx(watts, rel=1e-9)
    assert round(node.gb_per_w, 1) == gb_per_w


@pytest.mark.paper
def test_bandwidth_and_capacity_equal_the_ranges_in_the_text():
    small, large = MemoryNode(dimm="8 GB RDIMM", speed="PC4-17000"), MemoryNode(dimm="128 GB LRDIMM", speed="PC4-25600")
    assert (small.memory_bytes_per_s, large.memory_bytes_per_s) == (pytest.approx(170e9), pytest.approx(256e9))  # Sec. III-A
    assert small.capacity_bytes == 80e9  # Sec. III-A
    assert round(large.capacity_bytes / 1e12, 1) == 1.3  # Sec. III-A prints 1.28 TB so
    assert 8 * small.power_w == pytest.approx(232)  # Sec. V-C
    assert 8 * large.power_w == pytest.approx(1016)  # Sec. V-C
    assert 8 * round(large.capacity_bytes / 1e12, 1) == pytest.approx(10.4)  # Sec. III-B multiplies the rounded number
    assert 8 * large.capacity_bytes == 10.24e12  # what the DIMMs have
    assert large.link_group_bytes_per_s * 2 == 150e9  # Sec. III-B: two neighbours of a device
    assert MemoryNode(speed="PC4-19200").memory_bytes_per_s == pytest.approx(192e9)  # DDR4-2400, Table IV's, is not Table II's 256


def transfer_request_by_request(node, size, rate):
    """Exact time by requests: one leaves when an earlier one of the window has ended, and its bytes follow those before."""
    requests = [node.dma_request_bytes] * (size // node.dma_request_bytes)
    requests += [size % node.dma_request_bytes] if size % node.dma_request_bytes else []
    passed = (node.protocol_latency_s, node.memory_latency_s, *(unit.latency_s for unit in node.units))
    through, latency, window = [], sum(map(Fraction, passed)), node.dma_outstanding
    for number, length in enumerate(requests):
        issued = through[number - window] if number >= window else Fraction(0)
        free = through[-1] if through else Fraction(0)
        through.append(max(issued + latency, free) + Fraction(length) / Fraction(rate))
    return Fraction(node.dma_setup_s) + through[-1]


nodes = st.builds(
    MemoryNode,
    links=st.just(6),
    groups=st.sampled_from([1, 2, 3, 6]),
    link_bytes_per_s=st.sampled_from([1e9, 25e9, 300e9]),
    speed=st.sampled_from(["PC4-17000", "PC4-25600"]),
    memory_latency_s=st.sampled_from([0.0, 100e-9, 3e-6]),
    protocol_latency_s=st.sampled_from([0.0, 500e-9]),
    dma_setup_s=st.sampled_from([0.0, 1e-6]),
    dma_request_bytes=st.sampled_from([1, 64, 4096, 65536]),
    dma_outstanding=st.integers(1, 9),
    units=st.sampled_from([(), (SQUEEZE,), (CIPHER,), (SQUEEZE, CIPHER), (replace(SQUEEZE, where="device"), CIPHER)]),
)


@pytest.mark.oracle
@given(node=nodes, requests=st.integers(0, 200), rest=st.integers(0, 65535))
def test_time_of_a_copy_is_that_of_its_requests(node, requests, rest):
    size = requests * node.dma_request_bytes + rest % node.dma_request_bytes
    assume(size)
    assert node.transfer_s(size) == pytest.approx(float(transfer_request_by_request(node, size, node.group_bytes_per_s)), rel=1e-12)


@given(node=nodes, size=st.integers(1, 10**7))
def test_better_hardware_never_takes_longer(node, size):
    time = node.transfer_s(size) * (1 + 1e-12)
    assert node.transfer_s(size - 1) <= time
    assert replace(node, dma_outstanding=node.dma_outstanding + 1).transfer_s(size) <= time
    assert replace(node, link_bytes_per_s=2 * node.link_bytes_per_s).transfer_s(size) <= time
    assert replace(node, dimms=11).transfer_s(size) <= time
    if any(unit.kind == "compression" for unit in node.units):
        assert node.transfer_s(size, ratio=5.2) <= time
        assert node.transfer_s(size, ratio=2.6) == node.transfer_s(size)
    assert node.transfer_s(size) >= size / min(node.rates().values()) * (1 - 1e-12)


@pytest.mark.probe
def test_two_requests_in_flight_hide_a_latency_of_one_request():
    # a request of 7500 bytes takes 100 ns at 75 GB/s, as long as the memory's latency: two fill the links, one does not
    node, size = MemoryNode(dma_request_bytes=7500, dma_outstanding=2), 75_000_000
    assert node.transfer_s(size) == pytest.approx(100e-9 + size / 75e9, rel=1e-12)
    assert replace(node, dma_outstanding=1).transfer_s(size) == pytest.approx(10_000 * 200e-9, rel=1e-12)
    slower = replace(node, memory_latency_s=101e-9)
    assert slower.transfer_s(size) > 101e-9 + size / 75e9 + 4000e-9  # 5000 pairs wait 1 ns each


@pytest.mark.probe
def test_one_byte_more_than_a_request_is_a_second_request():
    node = MemoryNode(dma_request_bytes=4096, dma_outstanding=1)
    one, two = node.transfer_s(4096), node.transfer_s(4097)
    assert two - one == pytest.approx(100e-9 + 1 / 75e9)
    assert node.transfer_s(0) == 0.0


def test_in_the_node_every_byte_crosses_the_links_at_the_device_fewer_do():
    inside, device = MemoryNode(units=(SQUEEZE,)), MemoryNode(units=(replace(SQUEEZE, where="device"),))
    assert (inside.link_bytes(2600), inside.stored_bytes(2600)) == (2600, 1000)
    assert (device.link_bytes(2600), device.stored_bytes(2600)) == (1000, 1000)
    assert (inside.stored_bytes(1), inside.stored_bytes(0)) == (1, 0)
    assert inside.rates()["links"] == 75e9
    assert device.rates()["links"] == pytest.approx(2.6 * 75e9)
    assert inside.rates()["memory"] == device.rates()["memory"] == pytest.approx(2.6 * 128e9)
    assert (inside.bound, device.bound) == ("links", "links")
    assert device.transfer_s(10**9) == pytest.approx(inside.transfer_s(10**9) / 2.6, rel=1e-4)


def test_compression_in_the_node_pays_where_the_dimms_are_the_narrowest():
    narrow = MemoryNode(link_bytes_per_s=100e9, speed="PC4-17000")
    assert (narrow.bound, narrow.group_bytes_per_s) == ("memory", 85e9)
    squeezed = replace(narrow, units=(SQUEEZE,))
    assert squeezed.group_bytes_per_s == pytest.approx(2.6 * 85e9)
    assert replace(squeezed, units=(replace(SQUEEZE, bytes_per_s=90e9),)).bound == "compression"


def test_a_cipher_behind_compression_sees_fewer_bytes():
    slow = replace(CIPHER, bytes_per_s=30e9)
    assert MemoryNode(units=(slow,)).group_bytes_per_s == 30e9
    both = MemoryNode(units=(SQUEEZE, slow))
    assert both.group_bytes_per_s == 75e9
    assert both.rates()["encryption"] == pytest.approx(78e9)
    assert both.request_latency_s == pytest.approx(100e-9 + 20e-9 + 50e-9)


@pytest.mark.oracle
@given(density=st.floats(0, 1), count=st.integers(1, 3000), seed=st.integers(0, 99))
def test_ratio_of_a_mask_is_that_of_its_tensor_compressed(density, count, seed):
    random = np.random.default_rng(seed)
    nonzero = random.random(count) < density
    values = np.where(nonzero, 1 + random.random(count), 0).astype(np.float32)
    stored = encode(values)
    unit = SQUEEZE.measured(nonzero, element_bytes=4)
    assert unit.ratio == values.nbytes / len(stored)
    assert MemoryNode(units=(unit,)).stored_bytes(values.nbytes) == len(stored)
    assert decode(stored).tobytes() == values.tobytes()


def test_a_group_has_an_equal_share_of_links_and_memory():
    for groups in (1, 2, 3, 6):
        node = MemoryNode(groups=groups)
        assert node.link_group_bytes_per_s * groups == 150e9
        assert node.memory_group_bytes_per_s * groups == pytest.approx(256e9)
        assert node.group_capacity_bytes * groups <= node.capacity_bytes
    assert MemoryNode(groups=1).bound == "links"
    assert MemoryNode(groups=1, speed="PC4-17000", link_bytes_per_s=30e9).bound == "memory"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"links": 6, "groups": 4}, "6 links cannot stand in 4 equal groups: write one of 1, 2, 3, 6"),
        ({"links": 2, "groups": 3}, "2 links cannot stand in 3 equal groups"),
        ({"groups": 0}, "groups must be a positive whole number"),
        ({"link_bytes_per_s": 0.0}, "link_bytes_per_s must be above 0"),
        ({"memory_latency_s": -1e-9}, "memory_latency_s must be at least 0"),
        ({"dma_request_bytes": 0}, "dma_request_bytes must be above 0"),
        ({"units": (SQUEEZE, SQUEEZE)}, "at most one of each kind"),
        ({"units": (CIPHER, SQUEEZE)}, "put compression in front of encryption"),
        ({"units": (SQUEEZE, replace(CIPHER, where="device"))}, "put the device's first"),
    ],
)
def test_invalid_fields_raise_with_the_reason(wrong, message):
    with pytest.raises(BadInput, match=message):
        MemoryNode(**wrong)


def test_invalid_names_and_ratios_raise():
    with pytest.raises(UnknownName, match="did you mean '128 GB LRDIMM'"):
        MemoryNode(dimm="128GB LRDIMM")
    with pytest.raises(UnknownName, match="PC4-25600"):
        MemoryNode(speed="PC4-25601")
    with pytest.raises(BadInput, match="at least 1"):
        replace(SQUEEZE, ratio=0.5)
    with pytest.raises(BadInput, match="keeps its size"):
        replace(CIPHER, ratio=2.0)
    with pytest.raises(UnknownName, match="compression"):
        Unit(kind="compressor", latency_s=0.0, bytes_per_s=1e9)
    with pytest.raises(UnknownName, match="node"):
        replace(SQUEEZE, where="host")
    with pytest.raises(BadInput, match="needs a compression unit"):
        MemoryNode().transfer_s(1, ratio=2.0)
    with pytest.raises(BadInput, match="whole number of bytes"):
        MemoryNode().transfer_s(-1)
    assert len(MODULES) == 5


def test_a_tensor_of_no_elements_is_not_compressed():
    assert SQUEEZE.measured(np.zeros(0, np.bool_), element_bytes=4).ratio == 1.0
