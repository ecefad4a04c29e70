"""A memory level: its room, its energy, its names."""

from __future__ import annotations

from typing import Any

import pytest

from trainyard.errors import TrainyardError
from trainyard.hardware.tables.energy import ram_joules_per_byte
from trainyard.mapping.levels.level import Level, checked_levels


def test_tiles_have_half_of_a_double_buffered_level_and_all_of_another() -> None:
    assert Level(name="local", size_bytes=64).room_bytes == 32
    assert Level(name="local", size_bytes=64, double_buffered=False).room_bytes == 64


def test_operands_are_in_the_order_of_a_product_however_they_were_named() -> None:
    assert Level(name="local", size_bytes=64, holds=("out", "a")).holds == ("a", "out")
    assert Level(name="local", size_bytes=64, holds="b").holds == ("b",)


def test_a_byte_costs_what_a_ram_of_one_bank_takes_unless_its_energy_is_given() -> None:
    banked = Level(name="local", size_bytes=256 * 1024, banks=2)
    assert banked.joules_per_byte("read", 65) == ram_joules_per_byte("read", 128 * 1024, 65)
    assert banked.joules_per_byte("write", 65) == ram_joules_per_byte("write", 128 * 1024, 65)
    assert Level(name="local", size_bytes=256 * 1024, energy_per_byte_j=3e-12).joules_per_byte("read", 65) == 3e-12


# fmt: off
REFUSED = [
    ({"name": "1st"},                                "a word such as 'local'"),
    ({"name": ""},                                   "a word such as 'local'"),
    ({"name": 3},                                    "a word such as 'local'"),
    ({"name": "dram"},                               "means another part of a result"),
    ({"name": "local", "holds": ("a", "c")},         "c"),
    ({"name": "local", "holds": ("a", "a")},         "names an operand twice"),
    ({"name": "local", "write_width_bytes_per_cycle": 4.0}, "give the width of the first as well"),
]
# fmt: on


@pytest.mark.parametrize(("fields", "message"), REFUSED)
def test_levels_that_cannot_be_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainyardError, match=message):
        Level(size_bytes=64, **fields)


def test_a_second_port_stands_beside_a_first_one() -> None:
    level = Level(name="local", size_bytes=64, width_bytes_per_cycle=8.0, write_width_bytes_per_cycle=4.0)
    assert (level.width_bytes_per_cycle, level.write_width_bytes_per_cycle) == (8.0, 4.0)


def test_levels_come_as_a_list_of_levels_or_of_their_fields_with_names_of_their_own() -> None:
    local = Level(name="local", size_bytes=64)
    assert checked_levels([local, {"name": "near", "size_bytes": 32}], "chip") == (local, Level(name="near", size_bytes=32))
    assert checked_levels((), "chip") == ()
    for wrong, message in ((local, "is a list"), ("local", "is a list"), ([7], "levels has 7"), ([local, local], "called 'local'")):
        with pytest.raises(TrainyardError, match=message):
            checked_levels(wrong, "chip")
