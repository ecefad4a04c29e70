"""Loop nests as values: drawing, patterns of layers, errors that name what is near."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainyard.errors import BadInput, UnknownName
from trainyard.results.loop_nests import Loop, LoopNest, Moved, chosen, drawing, matching, unproven_text

NEST = LoopNest(
    layer="layer4.0.conv1",
    phase="forward",
    op="convolution",
    kind="product",
    bound="dram",
    cycles=5000,
    dram_bytes=3000,
    product="Y(56 x 64) = X(56 x 32) W(32 x 64)",
    dims=(56, 64, 32, 1),
    order="mnk",
    tile=(23, 64, 32),
    loops=(
        Loop(level="dram", axis="m", extent=56, tile=23),
        Loop(level="dram", axis="n", extent=64, tile=64),
        Loop(level="scratchpad", axis="m", extent=23, tile=1),
        Loop(level="array", axis="n", extent=64, tile=1, spatial=True),
        Loop(level="array", axis="k", extent=32, tile=1, spatial=True),
    ),
    array="array Systolic ws 64 x 64",
    keeps="W",
    moved=(Moved(tensor="X", bytes=1000, once_bytes=500),),
    least_bytes=2000,
    room_bytes=100.0,
    room_limit_bytes=200.0,
)
STREAM = LoopNest(layer="layer4.0.relu", phase="forward", op="relu", kind="stream", bound="dram", cycles=10, dram_bytes=64)


def test_a_nest_is_drawn_as_indented_loops() -> None:
    assert str(NEST).splitlines() == [
        "layer4.0.conv1 forward: Y(56 x 64) = X(56 x 32) W(32 x 64)",
        "  for m in 0..56 step 23                   # dram: 3 steps",
        "    for m in 0..23                         # scratchpad: 23 steps",
        "      parallel for n in 0..64, k in 0..32  # array Systolic ws 64 x 64",
        "  order mnk; tile 23 x 64 x 32 takes 100 B of 200 B; W stays over the innermost loop",
        "  moves X 2 x 500 B: 3 kB, 1.500 x the lower bound",
        "  5,000 cycles, the array works 0 of them; bound by dram",
    ]


def test_equal_nests_are_drawn_once_and_streams_counted() -> None:
    text = drawing([NEST, replace(NEST, layer="layer4.1.conv1"), STREAM])
    assert text.startswith("layer4.0.conv1 forward (and 1 equal: layer4.1.conv1 forward): Y(56 x 64)")
    assert text.endswith("1 stream without tiles: 64 B of DRAM traffic")
    assert "relu forward: stream" in drawing([NEST, STREAM], "*.relu")


def test_a_nest_that_was_not_proven_says_so() -> None:
    text = str(replace(NEST, proven=False, why_unproven="effort=1 ended the search"))
    assert text.endswith("not proven to be the best: effort=1 ended the search")


def test_reasons_of_several_unproven_nests_are_counted() -> None:
    ended, asked = (
        replace(NEST, proven=False, why_unproven=why) for why in ("effort=1 ended the search", "the array tells little")
    )
    assert unproven_text([NEST, NEST]) == ""
    assert unproven_text([ended, NEST]) == "1 of them is not proven to be the best: effort=1 ended the search"
    assert unproven_text([ended, ended, asked]) == (
        "3 of them are not proven to be the best: 2 because effort=1 ended the search, 1 because the array tells little"
    )
    assert "effort" not in str(NEST)


def test_the_dictionary_has_steps_passes_and_the_distance_from_the_bound() -> None:
    document = NEST.as_dict()
    assert [loop["steps"] for loop in document["loops"]] == [3, 1, 23, 64, 32]
    assert document["moved"] == [{"tensor": "X", "bytes": 1000, "once_bytes": 500, "passes": 2.0}]
    assert document["over_least"] == 1.5
    assert STREAM.as_dict()["over_least"] is None


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("layer4.0.conv1", True),
        ("layer4", True),
        ("layer4.0", True),
        ("layer", False),
        ("layer4.*", True),
        ("*conv1", True),
        ("*.conv?", True),
        ("layer[34].*", True),
        ("layer4.*:forward", True),
        ("layer4.*:grad_*", False),
        (":forward", True),
        ("LAYER4", False),
    ],
)
def test_patterns(pattern: str, found: bool) -> None:
    assert matching(pattern, "layer4.0.conv1", "forward") is found


def test_one_phase_of_a_pair_is_enough() -> None:
    assert matching("a:grad_weight", "a", "grad_input + grad_weight")
    assert not matching("a:forward", "a", "grad_input + grad_weight")


def test_a_pattern_without_a_layer_offers_near_names() -> None:
    with pytest.raises(BadInput, match=r"no layer matches 'layer4\.\*\.cov1': near it are layer4\.0\.conv1"):
        chosen([NEST, STREAM], "layer4.*.cov1")
    with pytest.raises(BadInput, match=r"no layer matches 'xyz': the layers are layer4\.0\.conv1, layer4\.0\.relu"):
        chosen([NEST, STREAM], "xyz")
    with pytest.raises(UnknownName, match=r"unknown phase 'forwards' in mapping of 'layer4'.*did you mean 'forward'"):
        chosen([NEST], "layer4:forwards")
    with pytest.raises(BadInput, match="no loop nests"):
        drawing([])
