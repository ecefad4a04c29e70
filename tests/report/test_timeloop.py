"""Timeloop mappings: read back as Timeloop reads them, factors make up the dimensions and DRAM traffic is that of the result."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trainyard as ty
from trainyard import cli
from trainyard.arrays import Systolic
from trainyard.devices import Accelerator
from trainyard.errors import BadInput, NotModelled
from trainyard.ir import MatMul, Op, Step
from trainyard.machines import machine
from trainyard.report.mapping.timeloop import specification, write_mappings

yaml = pytest.importorskip("yaml")
FACTOR = re.compile(r"([A-Za-z]+)\s*=*\s*([0-9]+)(?:,([0-9]+))?")
side = st.integers(1, 70)


def factors_of(directive: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Dimension -> factor, and what the last turn has of it."""
    return {name: (int(factor), int(last or factor)) for name, factor, last in FACTOR.findall(directive["factors"])}


def read(text: str) -> tuple[dict[str, int], list[dict[str, Any]], dict[str, Any]]:
    """Sizes of the problem, loop directives from outside to inside, the architecture; refused where factors miss a dimension.

    A dimension's size is (((r3 - 1) * f2 + r2 - 1) * f1 + r1 - 1) * f0 + r0, from the outermost factor to the innermost.
    """
    document = yaml.safe_load(text)
    instance = document["problem"]["instance"]
    loops = [directive for directive in document["mapping"] if directive["type"] in ("temporal", "spatial")]
    for name, size in instance.items():
        index = 0
        for directive in loops:
            factor, last = factors_of(directive)[name]
            assert 1 <= last <= factor
            index = index * factor + last - 1
        assert index + 1 == size, f"{name}: factors make {index + 1} of {size}"
        assert all(sorted(directive["permutation"]) == sorted(instance) for directive in loops)
    return instance, loops, document["architecture"]


def passes(text: str) -> dict[str, int]:
    """How often each operand comes from DRAM: loops above the first memory that holds it, without inner ones that it lacks."""
    document = yaml.safe_load(text)
    bypassed = {directive["target"]: directive["bypass"] for directive in document["mapping"] if directive["type"] == "bypass"}
    loops = [directive for directive in document["mapping"] if directive["type"] == "temporal"]
    times = {}
    for space in document["problem"]["shape"]["data_spaces"]:
        touches = {axis[0][0] for axis in space["projection"]}
        above: list[tuple[str, int]] = []
        for directive, inner in pairwise(loops):
            above += [(name, factors_of(directive)[name][0]) for name in reversed(directive["permutation"])]
            if space["name"] not in bypassed.get(inner["target"], ()):
                break
        last = max((place for place, (name, factor) in enumerate(above) if name in touches and factor > 1), default=-1)
        times[space["name"]] = math.prod(factor for name, factor in above[: last + 1] if name not in touches)
    return times


def device(dataflow: Any = "ws", **fields: Any) -> Accelerator:
    given = {"scratchpad_bytes": 4096, "dram_bytes_per_s": 4e9, "clock_hz": 1e9}
    return Accelerator(array=Systolic(rows=8, columns=4, dataflow=dataflow), **{**given, **fields})


def step_of(body: MatMul) -> Step:
    return Step(name="test", batch=1, ops=(Op(body=body, name="product"),), tensors=())


@pytest.mark.oracle
@settings(max_examples=60)
@given(side, side, side, st.integers(1, 3), st.sampled_from(["ws", "os", "is"]), st.sampled_from([600, 4096, 65536]))
def test_a_written_mapping_reads_back_with_the_tiles_and_passes_of_the_device(
    m: int, n: int, k: int, count: int, dataflow: Any, scratchpad: int
) -> None:
    chip = device(dataflow, scratchpad_bytes=scratchpad)
    (nest,) = chip.loop_nests(step_of(MatMul(m, n, k, count)))
    text = specification(nest, chip)
    sizes, loops, architecture = read(text)
    assert sizes == {**({"B": count} if count > 1 else {}), "M": m, "N": n, "K": k}
    targets = [directive["target"] for directive in loops]
    assert [target for target in targets if "_" not in target] == ["DRAM", "scratchpad", "scratchpad", "register"]
    tile = [math.prod(factors_of(directive)[name][0] for directive in loops[targets.index("scratchpad") :]) for name in "MNK"]
    assert tuple(tile) == nest.tile
    times = passes(text)
    a, b, sums = nest.moved
    assert [times[name] for name in ("A", "W" if count > 1 else "B")] == [a.passes, b.passes]
    assert sums.bytes == sums.once_bytes * (1 + 2 * (times["Z"] - 1))
    parts = architecture["subtree"][0]["local"]
    instances = {part["name"].partition("[")[0]: part for part in parts}
    mesh = instances["register"]["attributes"]
    (spatial,) = (directive for directive in loops if directive["type"] == "spatial")
    at_once, order, split = factors_of(spatial), spatial["permutation"], spatial["split"]
    assert math.prod(at_once[name][0] for name in order[:split]) <= mesh["meshX"]
    assert math.prod(at_once[name][0] for name in order[split:]) <= mesh["meshY"]
    assert mesh["meshX"] * mesh["meshY"] <= 32
    words = tile[0] * tile[2] + tile[2] * tile[1] + tile[0] * tile[1]
    assert 2 * words <= instances["scratchpad"]["attributes"]["depth"]


def test_a_tile_that_does_not_divide_its_dimension_has_a_remainder() -> None:
    chip = device(scratchpad_bytes=3600, mapping={"product": {"tile": (23, 8, 8), "order": "nkm"}})
    (nest,) = chip.loop_nests(step_of(MatMul(56, 20, 8)))
    _, loops, _ = read(specification(nest, chip))
    assert loops[0]["factors"] == "M=3 N=3 K=1"
    assert loops[0]["permutation"] == "MKN"  # from inner to outer
    assert loops[1]["factors"] == "M=23,10 N=2,1 K=1"


def test_every_product_of_a_step_is_written(tmp_path: Path) -> None:
    step = ty.zoo.load("alexnet", batch=2)
    files, left = write_mappings(step, machine("npu"), tmp_path)
    assert len(files) == sum(op.is_product for op in step.ops)
    assert not left
    for file in files:
        read(file.read_text())


def test_memory_levels_are_targets_and_what_they_do_not_hold_goes_past(tmp_path: Path) -> None:
    chip = machine("npu(levels=(level(name=shared,size=256 KiB),level(name=local,size=16 KiB,holds=(a))))")
    files, _ = write_mappings(ty.zoo.load("linear"), chip, tmp_path)
    text = files[0].read_text()
    _, loops, _ = read(text)
    assert [directive["target"] for directive in loops] == ["DRAM", "scratchpad", "shared", "local", "local", "register"]
    bypass = {directive["target"]: directive for directive in yaml.safe_load(text)["mapping"] if directive["type"] == "bypass"}
    assert {"B", "Z"} <= set(bypass["local"]["bypass"])


def test_what_cannot_be_written_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = ty.zoo.load("bert-tiny")
    files, left = write_mappings(step, machine("npu(order=cost)"), tmp_path / "some")
    assert files
    assert "Timeloop maps one at a time" in left[0]
    with pytest.raises(NotModelled, match="no loops of its own"):
        write_mappings(step, machine("sigma"), tmp_path)
    with pytest.raises(BadInput, match="near it are"):
        write_mappings(step, machine("npu"), tmp_path, layer="*.qury")
    assert (
        cli.main(["export", "bert-tiny", "--to", "timeloop", "--on", "npu", "-o", str(tmp_path / "all"), "--layer", "*.query"]) == 0
    )
    assert "wrote 6 mappings" in capsys.readouterr().err
    assert cli.main(["export", "bert-tiny", "--to", "timeloop", "--on", "h200", "-o", str(tmp_path / "none")]) == 2
    assert "h200 is none" in capsys.readouterr().err
    assert cli.main(["export", "bert-tiny", "--to", "timeloop", "--set", "dram=1 GB/s", "-o", str(tmp_path / "none")]) == 2
    assert "add --on" in capsys.readouterr().err
