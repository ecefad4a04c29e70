"""One step in detail against the device's own cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dpu_detail import detail, linear

from trainyard.devices.dpu.presets import MAC_DPU, UPMEM
from trainyard.errors import BadInput
from trainyard.workloads import zoo


@pytest.mark.oracle
@pytest.mark.parametrize("number", ["fixed32", "fp32"])
@pytest.mark.parametrize("tasklets", [1, 8, 11, 16, 24])
@pytest.mark.parametrize("features", [256, 1000, 4096])
def test_the_two_fidelities_agree(number: str, tasklets: int, features: int) -> None:
    found = detail(replace(UPMEM, number=number, tasklets=tasklets), features=features)
    assert abs(found.disagreement) < 0.15
    assert found.dma_busy_cycles < found.cycles


def test_the_anchor_agrees_closely() -> None:
    """4096 features, batch 8, 16 tasklets: PIM-Opt's step."""
    found = detail(UPMEM)
    assert abs(found.disagreement) < 0.03
    assert found.instructions / found.cycles > 0.98  # the pipeline is full


def test_a_faster_engine_changes_both_alike() -> None:
    slow = replace(UPMEM, dma_cycles_per_byte=16.0)
    found = detail(slow)
    assert found.cycles > 1.5 * detail(UPMEM).cycles
    assert abs(found.disagreement) < 0.15


def test_the_step_with_other_features_is_the_same_step() -> None:
    small, whole = linear(100, 8), zoo.load("linear", batch=8)
    assert linear(4096, 8) is whole or linear(4096, 8) == whole
    assert small.macs * 4096 == whole.macs * 100
    with pytest.raises(BadInput, match="cannot be told"):
        linear(100, 4096)
    with pytest.raises(BadInput, match="mac_lanes=0"):
        detail(MAC_DPU)
