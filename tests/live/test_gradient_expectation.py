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


def test_fusing_what_makes_and_sums_dy_saves_three_more_transfers_of_it() -> None:
    """ReLU's backward writes dY, which the pair then reads; the bias gradient reads it once more."""
    rows, width = 1 << 16, 256
    machine = ty.machine("h200")

    def gain(bias: bool, activation: bool) -> float:
        between = [nn.ReLU()] if activation else []
        layers = [nn.Linear(16, width), nn.Linear(width, width, bias=bias), *between, nn.Linear(width, 16)]
        model = nn.Sequential(*layers).to(torch.bfloat16)
        step = ty.capture(model, torch.zeros(rows, 16, dtype=torch.bfloat16), loss=lambda y: y.float().square().mean())
        layer = next(layer for layer in expected(step, machine).layers if layer.layer == "1")
        return (layer.fused_saved_s - layer.saved_s) / (rows * width * 2 / machine.dram_bytes_per_s)

    assert gain(bias=False, activation=False) == 0.0
    assert gain(bias=True, activation=False) == pytest.approx(1.0)
    assert gain(bias=False, activation=True) == pytest.approx(2.0)
    assert gain(bias=True, activation=True) == pytest.approx(3.0)
