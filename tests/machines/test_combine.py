"""Any array in any accelerator with any order in any system, in three ways of writing; or an error that says why not."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.systems.node.networks import chain

import trainyard as ty
from pim_programs import page_rank, rmat
from trainyard import machines
from trainyard.devices.accelerator.ordered import ORDER_NAMES as ORDERS
from trainyard.errors import BadInput, NotModelled, TrainyardError
from trainyard.machines import describe, from_table, machine, preset
from trainyard.machines.files import load_toml, save_toml
from trainyard.machines.registry import MACHINES, PARTS, kind_of, load
from trainyard.results.result import Result
from trainyard.systems.pim.device_interface import memory_use
from trainyard.systems.pim.systems import DpuToDpu

STEP, GRAPH = chain((64, 96, 32), 64), rmat(6, 100, seed=1)
ARRAYS = tuple(name for name, row in PARTS.items() if kind_of(load(row.path)) == "array")
WRITTEN = {"systolic": "systolic(rows=32,columns=32)", "spatial": "spatial(elements=64,macs_per_element=16)"}
"""Those without a size of their own."""
ACCELERATORS = tuple(name for name in MACHINES if type(preset(name)).__name__ == "Accelerator")
# fmt: off
NODES = ("dc-dla", "hc-dla", "mcdla-s", "mcdla-l", "mcdla-b", "dc-dla-oracle", "mcdla-16", "mcdla-planes(devices=16)",
         "mcdla-infiniband(devices=16)", "mcdla-ethernet(devices=16)")
SYSTEMS = (
    "single(device={})", "a100-cluster(device={},devices=4)", "pim-opt(dpus=64,dpu={})", "direct(dpus=64,dpu={})",
    *(f"{name.rstrip(')') + (',' if '(' in name else '(')}device={{}},overlay=off)" for name in NODES),
)
# fmt: on


def inner(system: Any) -> Any:
    return getattr(system, "device", None) or system.dpu


def devices_of(system: Any) -> int:
    return int(getattr(system, "dpus", 0) or getattr(system, "devices", 1))


def busy(result: Result) -> float:
    """Seconds of one device's ops in one step, whoever owned the time."""
    return result.group("kind")[("compute",)].busy_s


def test_there_is_something_of_everything() -> None:
    assert len(ARRAYS) >= 11
    assert {"npu", "npu-small", "spatial", "tpu", "tensorcore"} <= set(ACCELERATORS)
    assert {"sequential", "interleaved", "dx_major", "dw_major", "cost", "paper"} <= set(ORDERS)


@pytest.mark.parametrize("array", ARRAYS)
def test_every_array_in_every_accelerator_keeps_the_accelerators_own(array: str) -> None:
    for name in ACCELERATORS:
        plain, found = preset(name), machine(f"{name}(array={WRITTEN.get(array, array)})")
        assert found == replace(plain, array=found.array)
        assert found.peaks.macs_per_s == found.array.peak_macs_per_cycle * plain.clock_hz * plain.cores
        assert type(found.array) is load(PARTS[array].path)
        result = ty.run(STEP, on=found)
        assert result.array_cycles is not None
        assert result.array_cycles * found.peak_macs_per_cycle >= result.macs


@pytest.mark.parametrize(("array", "order"), list(product(ARRAYS, ORDERS)))
def test_every_array_runs_every_order(array: str, order: str) -> None:
    found = ty.run(STEP, on=f"npu-small(array={array},order={order},reuse=lru)")
    assert found.macs == STEP.macs
    plain = ty.run(STEP, on=f"npu-small(array={array},reuse=lru)")
    if order == "cost":
        assert found.time_s <= plain.time_s * (1 + 1e-9)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize(("array", "order"), [(array, ORDERS[number % len(ORDERS)]) for number, array in enumerate(ARRAYS)])
def test_every_system_uses_the_device_that_it_is_given(system: str, array: str, order: str) -> None:
    """Its compute is the accelerator's alone with one device's samples; its peaks are so many times the device's."""
    device = f"npu-small(array={array},order={order})"
    built = machine(system.format(device))
    assert inner(built) == machine(device)
    several = devices_of(built)
    if not system.startswith("single"):
        assert built.peaks.macs_per_s == pytest.approx(several * inner(built).peaks.macs_per_s)
        assert built.peaks.dram_bytes_per_s == pytest.approx(several * inner(built).peaks.dram_bytes_per_s)
    each = STEP.batch if hasattr(built, "dpus") else STEP.batch // several
    whole, alone = ty.run(STEP, on=built), ty.run(STEP.rebatch(each), on=machine(device))
    assert busy(whole) == pytest.approx(busy(alone), rel=1e-6)
    assert whole.time_s >= alone.time_s * (1 - 1e-9)
    assert whole.macs == several * alone.macs


@pytest.mark.parametrize("system", [name for name in SYSTEMS if "single" not in name])
def test_zeros_reach_the_array_in_every_system(system: str) -> None:
    built = machine(system.format("npu-small(array=tensordash,dram=1 TB/s)"))
    masks = ty.generated_masks(STEP, {"A": 0.9, "G": 0.9})
    assert busy(ty.run(STEP, on=built, masks=masks)) < busy(ty.run(STEP, on=built))


@pytest.mark.parametrize("device", ["a100", "upmem", "mac-dpu"])
def test_other_devices_too(device: str) -> None:
    for system in SYSTEMS:
        if "device={}" in system and device != "a100":
            continue
        assert ty.run(STEP, on=system.format(device)).time_s > 0


def test_a_unit_at_a_dpus_place_has_its_own_memory_speed_and_energy() -> None:
    small = machine("direct(dpus=64,dpu=npu-small(dram_capacity=1 MB))")
    with pytest.raises(BadInput, match=r"accelerator at a DPU's place has 1 MB.*dpu.dram_capacity"):
        ty.run(ty.zoo.load("alexnet", batch=2), on=small)
    exact = memory_use(machine("npu-small"), STEP, 0).bytes
    for spare, fits in ((0, True), (-1, False)):  # to the byte
        tight = machine(f"pim-opt(dpus=64,dpu=npu-small(dram_capacity={exact + spare} B))")
        if fits:
            assert ty.run(STEP, on=tight).peak_memory_bytes["memory at a DPU's place"] == exact
        else:
            with pytest.raises(BadInput, match="at a DPU's place has"):
                ty.run(STEP, on=tight)
    assert isinstance(small, DpuToDpu)
    fast = machine("direct(dpus=64,dpu=npu-small,speeds=(2,2))")
    slow = machine("direct(dpus=64,dpu=npu-small)")
    assert fast.local_step(STEP)[0] == pytest.approx(ty.run(STEP, on="npu-small(clock=2 GHz)").time_s, rel=1e-6)
    bare = machine("direct(dpus=64,dpu=npu-small,agau=none)")  # the units add up what is sent, at their own rate
    assert ty.run(STEP, on=bare).time_s > ty.run(STEP, on=slow).time_s
    with pytest.raises(BadInput, match="programs are written in a DPU's instructions"):
        page_rank(GRAPH, slow)


def test_what_cannot_be_combined_is_refused_with_the_reason() -> None:
    for text, reason in (
        ("npu(array=tensordash,together=gradients)", "TensorDash cannot: leave it out"),
        ("npu(cores=2)", "write reuse='lru'"),
        ("tpu(array=sigma,together=gradients,order=interleaved)", "give one of them"),
        ("npu(array=a100)", "has no array to lend"),
        ("direct(dpu=systolic(rows=2,columns=2))", "expected a device, 'systolic' is an array"),
        ("mcdla-b(algorithm=tree)", "unknown algorithm 'tree'"),
        ("mcdla-b(device=synchronous)", "expected a device, 'synchronous' is a part"),
    ):
        with pytest.raises(TrainyardError) as refused:
            machine(text)
        assert reason in str(refused.value), text
    with pytest.raises(NotModelled, match="ElasticAveraging exchanges with centre"):
        ty.run(STEP, on="mcdla-b", algorithm="elastic-averaging")


# three ways of writing
orders, arrays, nodes = st.sampled_from(ORDERS), st.sampled_from(ARRAYS), st.sampled_from([n for n in NODES if "(" not in n])
numbers = st.integers(1, 400)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(ACCELERATORS), arrays, orders, nodes, numbers, numbers, st.sampled_from([None, 1, 8]))
def test_python_text_and_file_mean_the_same_machine(
    tmp_path_factory: pytest.TempPathFactory,
    accelerator: str,
    array: str,
    order: str,
    node: str,
    dram: int,
    links: int,
    period: int | None,
) -> None:
    array = WRITTEN.get(array, array)
    device = replace(
        preset(accelerator), array=machine(f"npu-small(array={array})").array, order=order, dram_bytes_per_s=dram * 1e9
    )
    if device.together != "none" and order != "sequential":
        return
    changes: dict[str, Any] = {} if period is None else {"algorithm": ty.algorithms.ModelAveraging(period)}
    python = replace(preset(node), device=device, link_bytes_per_s=links * 1e9, **changes)
    told = "" if period is None else f",algorithm=model-averaging(period={period})"
    text = machine(f"{node}(device={accelerator}(array={array},order={order},dram={dram} GB/s),link={links} GB/s{told})")
    assert text == python
    assert describe(text) == describe(python)
    path = tmp_path_factory.mktemp("machines") / "stacked.toml"
    save_toml(python, path)
    assert load_toml(path) == python == from_table(describe(python))
    told = "" if period is None else f'[algorithm]\ntype = "model-averaging"\nperiod = {period}\n'
    path.write_text(
        f'base = "{node}"\nlink = "{links} GB/s"\n{told}'
        f'[device]\nbase = "{accelerator}"\norder = "{order}"\ndram = "{dram} GB/s"\narray = "{array}"\n'
    )
    assert describe(load_toml(path)) == describe(python)


def test_the_example_is_the_machine_of_the_command_line() -> None:
    path = Path(__file__).parents[2] / "examples" / "stacked.toml"
    text = "mcdla-b(device=npu(array=tensordash,order=interleaved),algorithm=locality-aware(tau=31))"
    assert describe(machine(str(path))) == describe(machine(text))
    assert machines.title(machine(str(path)).device.array) == "tensordash"
