"""Any device inside any node, and how a better one moves the bottleneck."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

import trainyard as ty
from trainyard import machines
from trainyard.devices.gpu.device import Gpu
from trainyard.ir import Step
from trainyard.results.result import Result
from trainyard.systems import Replicas
from trainyard.workloads import zoo

DESIGNS = ("dc-dla", "hc-dla", "mcdla-s", "mcdla-l", "mcdla-b", "dc-dla-oracle")
DEVICES = ("spatial", "tensorcore", "tensordash", "sigma", "npu", "npu-small", "h200")
MODES = ("data", "model", "mixed")


def shares(result: Result) -> dict[str, float]:
    return {str(kind[0]): cost.time_s / result.time_s for kind, cost in result.group("kind").items()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("device", DEVICES)
def test_every_device_works_in_every_design(step: Step, device: str, mode: str) -> None:
    """All MACs are done, the parts are the whole, peaks are those of eight, and no paging beats infinite memory."""
    found = {}
    for design in DESIGNS:
        node: Any = machines.machine(f"{design}(device={device})")
        result = found[design] = ty.run(step, on=node, parallel=mode)
        assert result.macs == step.macs
        assert sum(shares(result).values()) == pytest.approx(1.0)
        assert node.peaks.macs_per_s == pytest.approx(8 * node.device.peaks.macs_per_s)
        assert result.energy_j > 0
    assert found["dc-dla-oracle"].time_s <= found["dc-dla"].time_s


@pytest.mark.parametrize("device", ["tensordash", "sigma"])
@pytest.mark.parametrize("design", DESIGNS)
def test_zeros_are_worth_time_in_every_design(step: Step, design: str, device: str) -> None:
    node = f"{design}(device={device}(dram=100 TB/s))"
    for mode in MODES:
        dense, sparse = (ty.run(step, on=node, parallel=mode, masks=f"sparsity(A={zeros},G={zeros})") for zeros in (0, 0.9))
        assert sparse.group("kind")["compute",].busy_s < dense.group("kind")["compute",].busy_s


@pytest.mark.parametrize("mode", MODES)
def test_a_gpu_pages_and_exchanges(mode: str) -> None:
    step = zoo.load("alexnet", batch=512)
    node = "mcdla-b(device=h200)"
    kept = ty.run(step, on=node, parallel=mode, overlay="off")
    paged = ty.run(step, on=node, parallel=mode, overlay="all")
    peaks = [result.peak_memory_bytes["device memory"] for result in (kept, paged)]
    capacity = sum(peaks) // 2
    fitted = ty.run(step, on=node, parallel=mode, overlay="as_needed", capacity_bytes=capacity)
    for result in (kept, paged, fitted):
        assert result.macs == step.macs
        assert result.group("kind")["synchronisation",].busy_s > 0
    assert "remote memory" not in kept.traffic_bytes
    assert paged.traffic_bytes["remote memory"] > 0
    assert fitted.peak_memory_bytes["device memory"] <= capacity < peaks[0]
    assert kept.time_s <= fitted.time_s <= paged.time_s
    compute = [result.group("kind")["compute",].busy_s for result in (kept, paged)]
    assert compute[0] < compute[1]  # what is made again takes the GPU's time again
    assert any("made again" in note and " 0 B made again" not in note for note in paged.notes)


def test_a_gpu_alone_in_a_node_is_a_gpu(step: Step) -> None:
    """One device, nothing paged: nothing but the device's own time."""
    node: Any = machines.machine("dc-dla-oracle(device=h200,devices=1)")
    assert isinstance(node.device, Gpu)
    assert ty.run(step, on=node).time_ps == ty.run(step, on=node.device).time_ps
    replicas = Replicas(device=node.device, devices=1, link="450 GB/s")
    assert ty.run(step, on=replicas).time_ps == ty.run(step, on=node.device).time_ps
    assert ty.run(step, on=replace(replicas, devices=8)).macs == step.macs


@pytest.mark.parametrize("design", ["dc-dla", "mcdla-b"])
@pytest.mark.parametrize("mode", ["data", "model"])
def test_a_better_device_moves_the_bottleneck(design: str, mode: str) -> None:
    """Faster devices leave less of the time to compute, more to copies and exchanges, and never take longer."""
    names = [f"{design}(device={device})" for device in ("npu-small", "npu", "sigma", "spatial")]
    results = ty.compare("alexnet", on=names, batch=64, parallel=mode)
    for slower, faster in pairwise(results):
        assert faster.time_s < slower.time_s
        assert shares(faster)["compute"] < shares(slower)["compute"]
        waits = [shares(one).get("copy", 0.0) + shares(one)["synchronisation"] for one in (slower, faster)]
        assert waits[0] < waits[1]
    assert shares(results[0])["compute"] > 0.95  # a slow device hides all links behind itself
    assert shares(results[-1])["compute"] < 0.55


def test_skipped_zeros_move_the_bottleneck_too() -> None:
    """The same array, once it skips zeros."""
    step = zoo.load("alexnet", batch=16)
    masks = "sparsity(A=0.6,G=0.5,samples=2)"
    dense, skipping = (
        ty.run(step, on=f"dc-dla(device={device}(dram=900 GB/s))", masks=masks, parallel="model")
        for device in ("tensorcore", "tensordash")
    )
    assert skipping.time_s < dense.time_s
    assert shares(skipping)["compute"] < shares(dense)["compute"]
