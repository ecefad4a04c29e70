"""Constraints by layer: how they are written, which one counts, and what is said of those that cannot hold."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadInput, TrainyardError
from trainyard.mapping.constraints import NO_CONSTRAINTS, UNCONSTRAINED, MappingConstraints, checked_mapping, require_room
from trainyard.workloads import zoo

PATTERNS = {"layer4.*": {"tile": (64, 64, None), "order": "mnk"}, "*.conv1:grad_weight": {"keep": "out"}}


def test_text_tables_and_files_mean_the_same() -> None:
    table = MappingConstraints(PATTERNS)
    assert MappingConstraints.from_text("layer4.* tile=64x64x* order=mnk; *.conv1:grad_weight keep=out") == table
    assert (
        checked_mapping({"layer4.*": {"tile": [64, 64, "none"], "order": ["mnk"]}, "*.conv1:grad_weight": {"keep": "out"}}) == table
    )
    assert checked_mapping(table) is table
    assert dict(table) == PATTERNS
    assert pickle.loads(pickle.dumps(table)) == table
    assert hash(pickle.loads(pickle.dumps(table))) == hash(table)
    assert not NO_CONSTRAINTS


def test_each_key_is_taken_from_the_last_pattern_that_has_it() -> None:
    rules = MappingConstraints(
        {
            "*": {"tile": (8, None, None), "order": ("mnk", "nmk")},
            "layer4": {"tile": (None, 16, None)},
            "layer4.1.*": {"order": "kmn"},
        }
    )
    assert rules.of("layer1.0", "forward") == ((8, 0, 0), ("mnk", "nmk"), (), ())
    assert rules.of("layer4.0.conv1", "forward") == ((0, 16, 0), ("mnk", "nmk"), (), ())
    assert rules.of("layer4.1.conv1", "forward") == ((0, 16, 0), ("kmn",), (), ())
    turned = MappingConstraints(dict(reversed(list(rules.items()))))
    assert turned.of("layer4.1.conv1", "forward") == ((8, 0, 0), ("mnk", "nmk"), (), ())
    assert turned != rules  # the order of patterns counts


def test_operands_to_keep_are_one_or_several() -> None:
    assert MappingConstraints({"*": {"keep": "b"}}).of("x", "forward").keep == ("b",)
    assert MappingConstraints({"*": {"keep": ["out", "a"], "order": "mnk"}}).of("x", "forward") == (
        (0, 0, 0),
        ("mnk",),
        ("a", "out"),
        (),
    )
    assert MappingConstraints.from_text("* keep=out,a") == MappingConstraints({"*": {"keep": ("a", "out")}})


def test_a_phase_is_named_behind_a_colon() -> None:
    rules = MappingConstraints({"fc:grad_*": {"tile": (4, 4, 4)}})
    assert rules.of("fc", "grad_weight").tile == (4, 4, 4)
    assert rules.of("fc", "forward") is UNCONSTRAINED


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"a": {"tiles": (1, 1, 1)}}, "unknown key 'tiles' in mapping of 'a': did you mean 'tile'"),
        ({"a": {"tile": (1, 1)}}, "tile is three sizes"),
        ({"a": {"tile": "64"}}, "tile is three sizes"),
        ({"a": {"tile": (1, 1, -1)}}, "a tile size is a positive whole number"),
        ({"a": {"tile": (1, 1, 1.5)}}, "a tile size is a positive whole number"),
        ({"a": {"tile": (1, 1, True)}}, "a tile size is a positive whole number"),
        ({"a": {"tile": (1, 1, False)}}, "a tile size is a positive whole number"),
        ({"a": {"order": "mnm"}}, "unknown order 'mnm' in mapping of 'a': did you mean 'nmk'"),
        ({"a": {"order": ()}}, "order is a loop order such as 'mnk'"),
        ({"a": {"order": 3}}, "order is a loop order such as 'mnk'"),
        ({"a": {"order": ("mnk", "dx_major")}}, "give one kind"),
        ({"a": {"keep": "c"}}, "unknown operand to keep 'c' in mapping of 'a'"),
        ({"a": {"keep": ()}}, "keep is an operand (a, b, out), or several of them"),
        ({"a": {}}, "expected some of tile, order, keep"),
        ({"a": 64}, "expected some of tile, order, keep"),
        ({"a:forwad": {"keep": "a"}}, "unknown phase 'forwad' in mapping of 'a:forwad': did you mean 'forward'"),
        ({3: {"keep": "a"}}, "a pattern of layers is text"),
        (64, "expected constraints by layer"),
        ("a", "write a pattern and its keys"),
        ("tile=1x1x1", "write a pattern and its keys"),
        ("a tile", "write key=value"),
        ("a keep=a; a keep=b", "'a' is given twice"),
    ],
)
def test_what_cannot_be_meant_says_what_to_write(mapping: Any, message: str) -> None:
    with pytest.raises(TrainyardError) as refused:
        checked_mapping(mapping)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("layr4.*", "no layer matches 'layr4.*': near it are layer4"),
        ("*.conv9", "near it are"),
        ("layer4.0.bn1", "'layer4.0.bn1' names layers without a product"),
        ("layer4.0.bn1:forward", "no layer matches"),
    ],
)
def test_a_pattern_without_a_product_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(TrainyardError) as refused:
        MappingConstraints({pattern: {"keep": "a"}}).check(zoo.load("resnet50"))
    assert message in str(refused.value)


def test_a_phase_that_a_step_lacks_is_no_fault_of_the_pattern() -> None:
    from trainyard.ir import Phase

    rules = MappingConstraints({"layer4.*:grad_weight": {"keep": "a"}})
    rules.check(zoo.load("resnet50"))
    rules.check(zoo.load("resnet50").only(Phase.FORWARD))


sizes = st.tuples(*[st.integers(0, 40)] * 3).filter(any)
extents = st.tuples(*[st.integers(1, 30)] * 3)


@given(sizes, extents, st.integers(1, 2000))
def test_a_tile_is_refused_exactly_where_it_finds_no_room_and_the_offer_fits(tile: Any, extent: Any, room: int) -> None:
    def needed(size: Any) -> float:
        m, n, k = size
        return m * k + k * n + 2 * m * n

    least = tuple(min(size, most) or 1 for size, most in zip(tile, extent, strict=True))
    if needed(least) <= room:
        require_room("fc forward", tile, extent, needed, room)
        return
    with pytest.raises(BadInput) as refused:
        require_room("fc forward", tile, extent, needed, room)
    text = str(refused.value)
    assert "of fc forward needs" in text
    if room < needed((1, 1, 1)):
        assert "a scratchpad of 8 B is the least" in text
    else:
        offered = text.rpartition(": ")[2].removesuffix(" would fit").split("x")
        assert needed([1 if word == "*" else int(word) for word in offered]) <= room
        assert [word == "*" for word in offered] == [not size for size in tile]
