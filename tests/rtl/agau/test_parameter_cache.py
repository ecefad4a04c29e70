"""The parameter cache against the simulator's coherence protocol, with other caches and homes around it."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("amaranth")

from trainyard.errors import BadInput
from trainyard.rtl.agau.cache_traffic import ParameterCacheDesign
from trainyard.rtl.agau.parameter_cache import MESSAGE, OPERATION, OPERATIONS, RECEIVED, SENT
from trainyard.rtl.catalogue import Inputs, design_of
from trainyard.rtl.equality import amaranth_outputs, check_equality
from trainyard.rtl.verilator import compiled_outputs, missing_tools

SMALL = ParameterCacheDesign(cache_bytes=64, line_bytes=8, ways=2, number="int32", line_bits=6)
DIRECT_MAPPED = ParameterCacheDesign(cache_bytes=16, line_bytes=8, ways=1, number="int32", line_bits=6, writebacks=1)
LONG = 10_000


@pytest.mark.parametrize(
    ("design", "cycles"),
    [
        (SMALL, 250),
        (DIRECT_MAPPED, 200),
        pytest.param(
            ParameterCacheDesign(cache_bytes=32, line_bytes=8, ways=4, line_bits=5, writebacks=2), 200, marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
def test_operations_and_messages_have_the_simulators_answers(design: ParameterCacheDesign, cycles: int) -> None:
    comparison = check_equality(design, cycles, seed=1)
    assert comparison.equal, comparison.difference


def test_random_traffic_has_every_operation_and_every_message() -> None:
    stimulus = SMALL.stimulus(1500, 0)
    seen = Counter((row.get("command", 0), row.get("kind", 0)) for row in stimulus)
    assert all(seen[OPERATION, number] for number in range(len(OPERATIONS)))
    assert all(seen[MESSAGE, number] for number in range(len(RECEIVED)))
    outputs = SMALL.expected(stimulus)
    assert {SENT[row["send_kind"]] for row in outputs if row["send"]} == set(SENT)
    assert sum(row["retry"] for row in outputs) > 3
    assert sum(row["put"] for row in outputs) > 10


def store(line: int) -> Inputs:
    return {"command": OPERATION, "kind": OPERATIONS.index("store"), "line": line, "word": 0, "value": 7, "expected": 0}


def message(kind: str, line: int) -> Inputs:
    return {"command": MESSAGE, "kind": RECEIVED.index(kind), "line": line, "words": 0}


def test_an_operation_waits_while_the_write_back_buffer_is_full() -> None:
    sets = DIRECT_MAPPED.cache.sets
    first, second, third = 0, sets, 2 * sets  # all in one set of one way
    fetch = [store(first), message("Data", first), store(second), message("Data", second)]  # second replaces first
    stimulus = [*fetch, store(third), message("PutAck", first), store(third), {}]
    outputs = amaranth_outputs(DIRECT_MAPPED.build(), stimulus)
    assert [row["put"] for row in outputs] == [0, 0, 0, 1, 0, 0, 0, 1]
    assert [row["retry"] for row in outputs] == [0, 0, 0, 0, 0, 1, 0, 0]
    assert outputs[3]["put_words"] == 7


def test_a_cache_of_other_ways_is_caught() -> None:
    other = ParameterCacheDesign(cache_bytes=64, line_bytes=8, ways=1, number="int32", line_bits=6)
    assert not check_equality(SMALL, 200, component=other.build()).equal


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(bool(missing_tools()), reason="needs verilator and a C++ compiler")
@pytest.mark.parametrize("design", [ParameterCacheDesign(), SMALL], ids=str)
def test_ten_thousand_cycles_are_equal(design: ParameterCacheDesign) -> None:
    comparison = check_equality(design, LONG, seed=9, runner=compiled_outputs)
    assert comparison.equal, comparison.difference
    assert comparison.cycles == LONG


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("cache_bytes", 3 * 256, "powers of two"),
        ("line_bits", 4, "line_bits=4"),
        ("writebacks", 0, "writebacks"),
        ("ways", 0, "ways"),
    ],
)
def test_a_bad_size_is_refused(name: str, value: int, problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        design_of("agau-cache", {name: value})
