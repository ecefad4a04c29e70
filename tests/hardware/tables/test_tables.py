"""Energy and area tables: sources on every row, published numbers kept, sensible between them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.tables import area, energy
from trainyard.hardware.tables import technology as nodes

TABLES = [
    nodes.NODES,
    energy.ADD,
    energy.MULTIPLY,
    [row for _, row in energy.CACHE_64_BITS],
    energy.RAM_64_BITS,
    energy.DRAM,
    area.ADDER,
    area.MULTIPLIER,
    area.SRAM_CELL,
]
PUBLIC = ("ISSCC", "ISCA", "IEDM", "ICCAD", "Stillmaker", "NIPS", "Micron", "CACTI")


@pytest.mark.parametrize("row", [row for table in TABLES for row in table], ids=str)
def test_every_row_names_its_source(row):
    assert any(word in row.source for word in PUBLIC) or row.source.startswith("assumed: ")
    assert len(row.source) > 12


# fmt: off
PUBLISHED = [
    (energy.multiply_joules("fp32", 45),          3.7),    # Horowitz 2014
    (energy.multiply_joules("int8", 45),          0.2),    # Horowitz 2014
    (energy.add_joules("fp16", 45),               0.4),    # Horowitz 2014
    (energy.multiply_joules("bf16", 7),           0.21),   # Jouppi 2021
    (energy.add_joules("fp32", 7),                0.38),   # Jouppi 2021
    (energy.cache_joules_per_byte(2**20, 45) * 8,           100.0),  # Horowitz 2014
    (energy.cache_joules_per_byte(2**13, 7) * 8,            7.5),    # Jouppi 2021
    (energy.ram_joules_per_byte("read", 2**17, 65) * 8,     30.0),   # CACTI 7
    (energy.ram_joules_per_byte("write", 2**17, 65) * 8,    21.7),   # CACTI 7
    (energy.ram_joules_per_byte("read", 512, 45) * 8,       0.64),   # CACTI 7
    (energy.dram_joules_per_byte("ddr4") * 8,     1300.0), # Jouppi 2021
]
# fmt: on


@pytest.mark.parametrize(("joules", "pico"), PUBLISHED)
def test_published_nodes_give_the_published_numbers(joules, pico):
    assert joules == pytest.approx(pico * 1e-12, rel=1e-6, abs=0.0)


def test_gate_energies_are_those_of_the_published_example():
    """Stillmaker and Baas, the example of Sec. 4.2.1 as corrected: 32 nm at 0.9 V is 0.4571, 65 nm at 1.3 V is 2.604."""
    by_size = {node.nm: node for node in nodes.NODES}
    assert by_size[32].energy == pytest.approx(0.4571, abs=1e-4)
    assert replace(by_size[65], supply_v=1.3).energy == pytest.approx(2.604, abs=1e-3)


@given(nm=st.floats(7, 90), larger=st.floats(1.01, 2))
def test_a_larger_node_never_costs_less(nm, larger):
    if nm * larger <= 90:
        for number in ("int8", "bf16", "fp32"):
            assert energy.mac_joules(number, nm) <= energy.mac_joules(number, nm * larger)
            assert area.mac_m2(number, nm) <= area.mac_m2(number, nm * larger)
        for size in (256, 2**13, 2**20, 2**25):
            assert energy.cache_joules_per_byte(size, nm) <= energy.cache_joules_per_byte(size, nm * larger) or size < 2**13
            for access in ("read", "write"):
                assert energy.ram_joules_per_byte(access, size, nm) <= energy.ram_joules_per_byte(access, size, nm * larger)
        assert area.sram_m2(2**20, nm) <= area.sram_m2(2**20, nm * larger)


@given(size=st.integers(2**8, 2**27), nm=st.sampled_from([7, 16, 45, 65, 90]))
def test_a_larger_memory_costs_more_per_byte(size, nm):
    assert energy.cache_joules_per_byte(size, nm) < energy.cache_joules_per_byte(size * 2, nm)
    for access in ("read", "write"):
        assert energy.ram_joules_per_byte(access, size, nm) < energy.ram_joules_per_byte(access, size * 2, nm)


@given(size=st.integers(512, 2**27), nm=st.floats(7, 90))
def test_a_ram_never_costs_more_than_a_cache_of_its_size(size, nm):
    for access in ("read", "write"):
        assert energy.ram_joules_per_byte(access, size, nm) <= energy.cache_joules_per_byte(size, nm)


@pytest.mark.parametrize("nm", [65, 90])
def test_memories_above_45_nm_do_not_scale_as_gates_do(nm):
    """65 nm: RAMs grow by 1.8 to 2.1, gates by 2.4."""
    for size in (2**13, 2**17, 2**20):
        for access in ("read", "write"):
            grown = energy.ram_joules_per_byte(access, size, nm) / energy.ram_joules_per_byte(access, size, 45)
            assert 1 < grown < nodes.gate_energy(nm)
        assert 1 < energy.cache_joules_per_byte(size, nm) / energy.cache_joules_per_byte(size, 45) < nodes.gate_energy(nm)


def test_wider_numbers_cost_more():
    costs = [energy.mac_joules(number, 16) for number in ("int8", "fp8", "bf16", "fp16", "fp32", "fp64")]
    assert costs == sorted(costs)


def test_a_megabyte_is_about_one_square_millimetre_in_16_nm():
    assert 0.5e-6 < area.sram_m2(2**20, 16) < 2e-6


def test_lpddr4_is_what_its_channel_draws_while_it_streams():
    """Read: 2.25 mA at 1.8 V and 425 mA at 1.1 V are 471.55 mW; write: 295.55 mW; both at 51.2 Gbit/s."""
    assert energy.dram_joules_per_byte("lpddr4") / 8 == pytest.approx((471.55e-3 + 295.55e-3) / 2 / 51.2e9, rel=1e-6, abs=0.0)
    assert energy.LPDDR4.pj_per_bit == pytest.approx(8.0, rel=0.1)  # what Accelergy's table says


def test_banks_of_128_kb_in_65_nm_are_near_what_a_memory_compiler_lays_out():
    """8 MiB: 58.6 mm2 in TensorDash's Sec. IV-C (CACTI), from Intel's cell and half of the macro around it here."""
    assert area.sram_m2(8 * 2**20, 65) == pytest.approx(58.6e-6, rel=0.35)


def test_unknown_names_and_nodes_are_refused():
    with pytest.raises(UnknownName, match="did you mean 'hbm2'"):
        energy.dram_joules_per_byte("hbm")
    with pytest.raises(UnknownName, match="multiplier"):
        energy.mac_joules("fp12", 16)
    with pytest.raises(BadInput, match="outside the tables"):
        energy.mac_joules("fp32", 3)
    with pytest.raises(BadInput, match="outside the tables"):
        area.sram_m2(1024, 180)
