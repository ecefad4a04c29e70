from __future__ import annotations

import pytest

from trainyard.errors import BadInput, UnknownName
from trainyard.machines import names
from trainyard.papers.provenance import literals, literals_of, provenance, unsourced

SOURCE = """
BASE = Part(
    size = 4,      # Table 1
    name = "four",
    inner = Inner(first=1, second=2 * 8),  # Table 2
    limit = "8 MiB",  # assumed: nothing printed
)
SMALL = replace(BASE, size=2)  # Fig. 3
BARE = Part(
    size = 4,
    pair = (1, 2),  # Table 4
    other = -3,
    exact = True,
)
COMPUTED = Part(size = 4 * scale(3))
"""


@pytest.mark.parametrize("machine", names())
def test_every_number_of_every_preset_names_its_source(machine: str) -> None:
    assert unsourced(machine) == []
    assert any(literal.numeric for literal in literals(machine))


def test_sources_are_read_by_path() -> None:
    assert provenance("npu")["array.rows"].startswith("Table 3")
    assert provenance("spatial")["dram_latency_s"] == "Table II: 100 cycles"
    assert provenance("tpu")["clock_hz"].startswith("assumed: ")


def test_literals_of_a_source() -> None:
    found = {literal.path: literal for literal in literals_of(SOURCE, "BASE")}
    assert {path: literal.source for path, literal in found.items()} == {
        "size": "Table 1", "name": "", "inner.first": "Table 2", "inner.second": "Table 2", "limit": "assumed: nothing printed",
    }  # fmt: skip
    assert [path for path, literal in found.items() if literal.numeric] == ["size", "inner.first", "inner.second", "limit"]


def test_a_derived_preset_overrules_its_base() -> None:
    sources = {literal.path: literal.source for literal in literals_of(SOURCE, "SMALL")}
    assert sources["size"] == "Fig. 3"
    assert sources["inner.first"] == "Table 2"


def test_bare_numbers_are_found() -> None:
    bare = [literal.path for literal in literals_of(SOURCE, "BARE") if literal.numeric and not literal.source]
    assert bare == ["size", "other"]
    assert any(literal.numeric and not literal.source for literal in literals_of(SOURCE, "COMPUTED"))


def test_unknown_names() -> None:
    with pytest.raises(UnknownName, match="did you mean 'npu'"):
        provenance("npo")
    with pytest.raises(BadInput, match="no module-level value"):
        list(literals_of(SOURCE, "NOTHING"))
