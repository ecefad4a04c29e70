"""Joules by component: rates of events, from tables and from an array's own rows, and the prices of the tile search."""

from __future__ import annotations

import numpy as np
import pytest

from trainyard.arrays import Systolic, TensorCore
from trainyard.devices import Accelerator
from trainyard.devices.accelerator.energy import EnergyRates, RateTable, energy_rates, events_per_cycle, format_of, tile_prices
from trainyard.errors import BadInput
from trainyard.hardware.tables import energy
from trainyard.hardware.tables.area import mac_m2, sram_m2
from trainyard.hardware.tables.cells import LEAKAGE_W_PER_M2, SRAM_LEAKAGE_W_PER_BIT
from trainyard.hardware.tables.energy import Component, ram_joules_per_byte
from trainyard.mapping.levels.level import Level

OWN = (
    Component(event="turn", component="network", joules=2e-12, nm=16, source="assumed: for this test"),
    Component(event="turn", component="register", joules=3e-12, nm=16, source="assumed: for this test"),
)


def test_macs_of_a_format_are_charged_by_it_and_the_rest_by_the_multipliers() -> None:
    table = {"mac": [("mac", 5.0)], "mac_bf16": [("mac", 2.0)], "turn": [("network", 3.0), ("register", 1.0)]}
    rates = EnergyRates(RateTable(16, True, table))
    assert rates.components == ("mac", "network", "register")
    assert rates.joules({"mac": 10.0, "mac_bf16": 6.0, "turn": 7.0}, None) == {
        "mac": 4 * 5.0 + 6 * 2.0,
        "network": 21.0,
        "register": 7.0,
    }
    assert rates.joules({"mac": 10.0, "unknown": 1.0}, None) == {"mac": 50.0, "network": 0.0, "register": 0.0}
    terms = rates.terms(("turn", "mac"))
    assert list(zip(terms.event.tolist(), terms.component.tolist(), terms.joules.tolist(), strict=True)) == [
        (0, 1, 3.0), (0, 2, 1.0), (1, 0, 5.0),
    ]  # fmt: skip
    assert rates.terms(("turn", "mac")) is terms


def test_the_format_of_events_is_known_where_there_is_one() -> None:
    assert format_of({"mac": 1.0, "mac_bf16": 1.0}) == "bf16"
    assert format_of({"mac": 1.0}) is None
    assert format_of({"mac_bf16": 1.0, "mac_fp32": 1.0}) is None


def test_rates_are_rows_of_the_tables_of_the_array_and_of_its_levels() -> None:
    rates = energy_rates(OWN, 1024.0, 65536.0, 16, "hbm2", "bf16", "bf16", (("near", 7.0, 8.0),)).by_event
    assert rates["mac"] == rates["mac_bf16"] == [("mac", energy.mac_joules("bf16", 16))]
    assert rates["mac_fp32"] == [("mac", energy.mac_joules("fp32", 16))]
    assert rates["scratchpad_read"] == [("scratchpad", ram_joules_per_byte("read", 65536, 16))]
    assert rates["scratchpad_write"] == [("scratchpad", ram_joules_per_byte("write", 65536, 16))]
    assert rates["local_read"] == [("local", ram_joules_per_byte("read", 1024, 16))]
    assert rates["local_write"] == [("local", ram_joules_per_byte("write", 1024, 16))]
    assert rates["dram_read"] == rates["dram_write"] == [("dram", energy.dram_joules_per_byte("hbm2"))]
    assert rates["vector_op"] == [("vector", energy.add_joules("fp32", 16))]
    assert dict(rates["turn"]) == pytest.approx({"network": 2e-12, "register": 3e-12}, rel=1e-6, abs=0.0)
    assert [rows for event, rows in rates.items() if "near" in event] == [[("near", 7.0)], [("near", 8.0)]]


def test_local_accesses_without_a_size_are_refused() -> None:
    rates = energy_rates((), None, 65536.0, 16, "hbm2", "fp32", "fp32")
    rates.require(("mac", "scratchpad_read"), Systolic(rows=4, columns=4))
    for event in ("local_read", "local_write"):
        with pytest.raises(BadInput, match=f"Systolic counts {event}: give it local_bytes"):
            rates.require((event,), Systolic(rows=4, columns=4))


def test_prices_of_the_search_are_joules_of_a_byte_and_of_a_busy_cycle() -> None:
    prices = tile_prices(OWN, 1024.0, 65536.0, "fp32", (("turn", 4.0), ("mac", 2.0)))
    local = ram_joules_per_byte("read", 1024, 16) + ram_joules_per_byte("write", 1024, 16)
    assert prices.dram == energy.dram_joules_per_byte("hbm2")
    assert (prices.read, prices.write) == tuple(ram_joules_per_byte(way, 65536, 16) for way in ("read", "write"))
    assert prices.local == pytest.approx(local, rel=1e-6, abs=0.0)
    assert prices.cycle == pytest.approx(4 * 5e-12 + 2 * energy.mac_joules("fp32", 16), rel=1e-6, abs=0.0)
    assert tile_prices((), None, 65536.0, "fp32", ()).local == 0.0


class Clocked:
    """Four MACs and a clock tick in each cycle; of a tile of one element, one MAC."""

    peak_macs_per_cycle = 4

    def granule(self) -> tuple[int, int, int]:
        return 2, 2, 3

    def cost(self, op: object, *, a: object = None, b: object = None) -> None: ...

    def concurrent(self, products: object) -> None: ...

    def tile_cycles(self, m: int, n: int, k: int) -> int:
        return k

    def tile_events(self, tiles: object) -> dict[str, np.ndarray]:
        return {"mac": tiles.M * tiles.N * tiles.K, "clock": 3 * tiles.K, "idle": 0 * tiles.K}  # type: ignore[attr-defined]


def test_events_of_every_busy_cycle_are_those_that_full_and_single_tiles_have_alike() -> None:
    assert events_per_cycle(Clocked()) == (("clock", 3.0),)
    assert events_per_cycle(object()) == ()


def test_area_and_leakage_are_those_of_multipliers_scratchpad_and_levels() -> None:
    device = Accelerator(
        array=Systolic(rows=4, columns=8), scratchpad_bytes=4096, dram="1 GB/s", technology_nm=16,
        levels=(Level(name="near", size_bytes=512),),
    )  # fmt: skip
    macs = 32 * mac_m2("fp32", 16)
    assert device.area() == pytest.approx(
        {"mac": macs, "scratchpad": sram_m2(4096, 16), "near": sram_m2(512, 16)}, rel=1e-6, abs=0.0
    )
    assert device.leakage_w == pytest.approx((4096 + 512) * 8 * SRAM_LEAKAGE_W_PER_BIT + macs * LEAKAGE_W_PER_M2, rel=1e-6, abs=0.0)
    cores = Accelerator(array=TensorCore(), scratchpad_bytes=4096, dram="1 GB/s", reuse="lru", cores=2)
    one = Accelerator(array=TensorCore(), scratchpad_bytes=4096, dram="1 GB/s")
    for name, size in one.area().items():
        assert cores.area()[name] == pytest.approx(size if name == "scratchpad" else 2 * size, rel=1e-6, abs=0.0)
