"""Memory levels of an accelerator: nothing changes without them, and with them time, bytes and energy follow each level."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

import trainyard as ty
from trainyard.arrays import Sigma, Spatial, Systolic, TensorDash
from trainyard.devices.accelerator.device import Accelerator
from trainyard.errors import BadInput, NotModelled, UnknownName
from trainyard.hardware.tables import area
from trainyard.hardware.tables.energy import ram_joules_per_byte
from trainyard.ir import DENSE, ArrayCost, ElementWise, MatMul, Op, Operand, Product, Role, Step, TensorSpec, one_after_another
from trainyard.machines.build import describe, from_table, with_overrides
from trainyard.machines.files import load_toml, save_toml
from trainyard.mapping.levels.level import Level

CHIP = Accelerator(array=Systolic(rows=16, columns=16), scratchpad="64 KiB", dram="20 GB/s", precision="fp16")
LOCAL = Level(name="local", size="8 KiB", width="64 B/cycle")


def layer(rows: int = 96, columns: int = 80, depth: int = 112) -> Step:
    """A product and a ReLU behind it."""
    tensors = (TensorSpec((rows, depth)), TensorSpec((depth, columns), role=Role.PARAMETER), *[TensorSpec((rows, columns))] * 2)
    ops = (
        Op(body=MatMul(rows, columns, depth), layer="linear", inputs=(0, 1), outputs=(2,), letters=("A", "W")),
        Op(body=ElementWise("relu", rows * columns), layer="relu", inputs=(2,), outputs=(3,)),
    )
    return Step(name="layer", batch=1, ops=ops, tensors=tensors)


STEP = layer()


@pytest.mark.parametrize("array", [Systolic(rows=16, columns=16), Spatial(elements=16, macs_per_element=4)])
def test_without_levels_every_key_of_the_result_is_that_of_the_single_scratchpad(array: Any) -> None:
    chip = replace(CHIP, array=array)
    expected = ty.run("bert-tiny", on=chip)
    result = ty.run("bert-tiny", on=replace(chip, levels=[]))
    assert result.as_dict() == expected.as_dict()
    assert result.to_json() == expected.to_json()


def test_a_level_that_holds_nothing_leaves_time_and_bytes_as_they_are() -> None:
    """The way through the levels counts as the plain one does, product by product."""
    step = ty.zoo.load("bert-tiny")
    nothing = replace(CHIP, levels=(Level(name="none", size="1 KiB", holds=()),), tiling=(64, 64, 64))
    fixed = replace(CHIP, tiling=(64, 64, 64))
    for one, other in zip(fixed.works(step), nothing.works(step), strict=True):
        left, right = fixed.cost(step, one), nothing.cost(step, other)
        assert (left.cycles, left.compute_cycles, left.bytes, left.bound) == (
            right.cycles, right.compute_cycles, right.bytes, right.bound,
        )  # fmt: skip
        events = {name: count for name, count in right.events.items() if count or name in left.events}
        assert events == {name: pytest.approx(count) for name, count in left.events.items()}


def test_traffic_energy_and_area_have_a_row_for_each_level() -> None:
    shared = replace(LOCAL, name="shared", size_bytes=32 * 1024, bypass="never")
    levels = (shared, replace(LOCAL, energy_per_byte_j=1e-12, banks=4, bypass="never"))
    chip = replace(CHIP, scratchpad_width_bytes_per_cycle=32.0, levels=levels, tiling=(64, 64, 64))
    result = ty.run(STEP, on=chip)
    assert {"dram", "scratchpad", "shared", "local"} <= set(result.traffic_bytes)
    read, written = (ram_joules_per_byte(access, 32 * 1024, chip.technology_nm) for access in ("read", "write"))
    counts = [
        sum(chip.cost(STEP, work).events.get(f"level:shared_{way}", 0) for work in chip.works(STEP)) for way in ("read", "write")
    ]
    assert sum(counts) == pytest.approx(result.traffic_bytes["shared"])
    assert result.energy_by_component["shared"] == pytest.approx(counts[0] * read + counts[1] * written)
    assert result.energy_by_component["local"] == pytest.approx(result.traffic_bytes["local"] * 1e-12)
    assert chip.area()["shared"] == area.sram_m2(32 * 1024, chip.technology_nm)
    assert "local" in chip.area()
    assert "local" in result.as_dict()["traffic_bytes"]


def test_a_local_level_takes_reads_off_the_scratchpad_and_pays_where_its_port_is_narrow() -> None:
    narrow = replace(CHIP, scratchpad_width_bytes_per_cycle=16.0)
    without, behind = ty.run(STEP, on=narrow), ty.run(STEP, on=replace(narrow, levels=(LOCAL,)))
    assert ty.run(STEP, on=CHIP).time_s < behind.time_s < without.time_s
    assert behind.traffic_bytes["scratchpad"] < without.traffic_bytes["scratchpad"]
    assert "scratchpad" in without.rows.bound  # what most layers wait for


@dataclass(frozen=True, kw_only=True)
class Dots:
    """An array without a closed form that counts no port."""

    lanes: int = 16

    @property
    def peak_macs_per_cycle(self) -> int:
        return self.lanes

    def granule(self) -> tuple[int, int, int]:
        return 1, 4, 4

    def cost(self, op: MatMul, *, a: Operand = DENSE, b: Operand = DENSE) -> ArrayCost:
        cycles = -(-op.macs // self.lanes)
        return ArrayCost(cycles=cycles, finish=(cycles,), events={"mac": op.macs})

    def concurrent(self, products: Any) -> ArrayCost:
        assert all(isinstance(product, Product) for product in products)
        return one_after_another(self, products)


def test_an_array_of_the_users_own_goes_behind_levels() -> None:
    level = replace(LOCAL, bypass="never")
    chip = replace(CHIP, array=Dots(), scratchpad_width_bytes_per_cycle=32.0, levels=(level,), tiling=(64, 64, 64))
    (work,) = chip.works(STEP)
    cost = chip.cost(STEP, work)
    assert cost.events["level:local_read"] > 0
    assert cost.compute_cycles >= replace(chip, levels=(), scratchpad_width_bytes_per_cycle=None).cost(STEP, work).compute_cycles


@pytest.mark.parametrize("array", [Sigma(dpes=4, multipliers=16), TensorDash(tiles=4), Systolic(rows=8, columns=8, dataflow="os")])
def test_dense_products_go_through_levels_on_any_array(array: Any) -> None:
    chip = replace(CHIP, array=array, tiling=(64, 64, 64))
    behind = replace(chip, scratchpad_width_bytes_per_cycle=16.0, levels=(replace(LOCAL, name="shared"),))
    (work,) = chip.works(STEP)
    alone, cost = chip.cost(STEP, work), behind.cost(STEP, work)
    assert cost.compute_cycles >= alone.compute_cycles * 0.99
    assert sum(count for name, count in cost.events.items() if name.startswith("mac")) == pytest.approx(
        sum(count for name, count in alone.events.items() if name.startswith("mac"))
    )


def test_tensors_kept_between_layers_go_with_levels() -> None:
    chip = replace(CHIP, scratchpad_width_bytes_per_cycle=32.0, levels=(LOCAL,), scratchpad_bytes=256 * 1024)
    plain, kept = ty.run(STEP, on=chip), ty.run(STEP, on=replace(chip, reuse="layers"))
    assert kept.traffic_bytes["dram"] <= plain.traffic_bytes["dram"]
    assert kept.traffic_bytes["local"] > 0


def test_the_loop_nest_has_the_loops_of_every_level_and_what_it_holds() -> None:
    level = replace(LOCAL, size_bytes=4096, bypass="never")
    chip = replace(CHIP, scratchpad_width_bytes_per_cycle=32.0, levels=(level,))
    nest = next(nest for nest in ty.run(STEP, on=chip).mapping if nest.loops)
    memories = list(dict.fromkeys(loop.level for loop in nest.loops))
    assert memories == ["dram", "scratchpad", "local", "array"]
    for axis, extent in zip("mnk", (96, 80, 112), strict=True):
        loops = [loop for loop in nest.loops if loop.axis == axis]
        assert loops[0].extent == extent
        assert [loop.extent for loop in loops[1:]] == [loop.tile for loop in loops[:-1]]
    assert "local holds" in nest.note
    assert "LeveledArray" not in str(nest)


def test_machine_texts_files_and_overrides_name_levels(tmp_path: Any) -> None:
    text = "npu(scratchpad_width=512 B/cycle,levels=(level(name=shared,size=1 MiB),level(name=local,size=64 KiB,holds=(a,b))))"
    chip = ty.machine(text)
    assert chip.levels == (Level(name="shared", size="1 MiB"), Level(name="local", size="64 KiB", holds=("a", "b")))
    assert chip.scratchpad_width_bytes_per_cycle == 512.0
    assert from_table(describe(chip)) == chip
    many = replace(chip, levels=tuple(replace(LOCAL, name=f"level{number}") for number in range(8)))
    save_toml(many, tmp_path / "many.toml")
    assert load_toml(tmp_path / "many.toml") == many
    assert with_overrides(chip, {"levels.local.size": "128 KiB"}).levels[1].size_bytes == 128 * 1024
    assert ty.machine("npu(levels=level(name=local,size=64 KiB))").levels == (Level(name="local", size="64 KiB"),)
    assert Accelerator(**{**describe_fields(chip), "levels": [{"name": "local", "size": "64 KiB"}]}).levels[0].name == "local"


def describe_fields(chip: Accelerator) -> dict[str, Any]:
    return {"array": chip.array, "scratchpad": chip.scratchpad_bytes, "dram_bytes_per_s": chip.dram_bytes_per_s}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"levels": (LOCAL, LOCAL)}, "two levels are called 'local'"),
        ({"levels": LOCAL}, "levels is a list such as"),
        ({"levels": ("local",)}, "write Level"),
        ({"levels": (LOCAL,), "order": "interleaved"}, "levels with order='interleaved' is not modelled"),
        ({"levels": (LOCAL,), "reuse": "lru"}, "levels with reuse='lru' is not modelled"),
        ({"scratchpad_width_bytes_per_cycle": 8.0, "reuse": "lru", "cores": 2}, "scratchpad_width with reuse='lru'"),
        ({"levels": (LOCAL,), "array": Sigma(dpes=4, multipliers=4), "together": "gradients"}, "levels with together="),
        ({"scratchpad_write_width_bytes_per_cycle": 8.0}, "give scratchpad_width"),
    ],
)
def test_what_contradicts_levels_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        replace(CHIP, **fields)


def test_a_level_checks_its_own_fields() -> None:
    with pytest.raises(UnknownName, match="unknown operand 'w' in Level local: holds"):
        Level(name="local", size=64, holds=("a", "w"))
    with pytest.raises(BadInput, match="names an operand twice"):
        Level(name="local", size=64, holds=("a", "a"))
    with pytest.raises(BadInput, match="means another part of a result"):
        Level(name="dram", size=64)
    with pytest.raises(BadInput, match="name must be a word"):
        Level(name="two words", size=64)
    with pytest.raises(BadInput, match="write_width is a second port"):
        Level(name="local", size=64, write_width=8)
    with pytest.raises(BadInput, match="'local' are buffers of TensorCore itself"):
        ty.machine("tensorcore(order=sequential,levels=(level(name=local,size=1 KiB)))")


def test_masks_on_an_array_that_looks_at_zeros_are_refused_with_levels() -> None:
    chip = ty.machine("tensordash(order=sequential,levels=(level(name=shared,size=64 KiB)))")
    with pytest.raises(NotModelled, match="looks at the zeros of each tile"):
        ty.run("bert-tiny", on=chip, masks="sparsity(A=0.5)")


def test_a_fused_kernel_behind_a_narrow_port_moves_elements_of_its_own_format() -> None:
    """8 x 8 x 8 through a port of a byte a cycle: operands in, sums out; half as many bytes of operands in bf16."""
    op = Op(body=MatMul(8, 8, 8), inputs=(0, 1), outputs=(2,), fused=1)
    step = Step(name="kernel", batch=1, ops=(op,), tensors=(TensorSpec((8, 8)),) * 3)
    cycles = {}
    for precision in ("fp32", "bf16", "fp8"):
        machine = Accelerator(
            array=Systolic(rows=8, columns=8), scratchpad="1 MiB", dram="1 TB/s", scratchpad_width_bytes_per_cycle=1.0,
            precision=precision,
        )  # fmt: skip
        (work,) = machine.works(step)
        cycles[precision] = machine.cost(step, work).compute_cycles
    assert cycles["fp32"] - cycles["bf16"] == 2 * (cycles["bf16"] - cycles["fp8"]) == 2 * 64 * 2
