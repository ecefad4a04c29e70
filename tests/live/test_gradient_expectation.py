"""What reading dY once can give to a whole step: counted by hand for one layer, small for whole networks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import trainyard as ty
from trainyard.errors import BadInput
from trainyard.live.gradient import expected


def test_a_layer_saves_the_time_of_one_read_of_its_gradient() -> None:
    rows, inputs, outputs = 1 << 16, 64, 256
    model = nn.Sequential(nn.Linear(16, inputs), nn.Linear(inputs, outputs)).to(torch.bfloat16)
    step = ty.capture(model, torch.zeros(rows, 16, dtype=torch.bfloat16), loss=lambda y: y.float().square().mean())
    machine = ty.machine("h200")
    gain = expected(step, machine)
    assert [layer.layer for layer in gain.layers] == ["1"]  # the first layer has no dX
    assert gain.layers[0].saved_s == pytest.approx(rows * outputs * 2 / machine.dram_bytes_per_s)
    assert gain.time_s == pytest.approx(ty.run(step, "h200").time_s)
    assert gain.speedup == pytest.approx(gain.time_s / (gain.time_s - gain.layers[0].saved_s))
    assert "1 layers could read dY once" in str(gain)


def test_convolutions_with_windows_or_groups_are_not_counted() -> None:
    gain = expected(ty.zoo.load("resnet50", batch=32), ty.machine("h200"))
    assert not any(layer.layer.endswith("conv2") for layer in gain.layers)
    assert all(0 < layer.saved_s <= layer.pair_s / 2 for layer in gain.layers)


def test_a_device_without_a_stated_bandwidth_is_refused() -> None:
    with pytest.raises(BadInput, match="states no bandwidth"):
        expected(ty.zoo.load("alexnet"), ty.machine("pim-opt"))  # type: ignore[arg-type]
