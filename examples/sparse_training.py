"""Speedup over time: a small CNN trained at a tenth of its weights, and what skipping zeros is worth at three moments of the run.

The images are made up: a bright stripe at one of eight angles, under noise.
"""

import math
import tempfile
from pathlib import Path

import torch
from torch import nn

import trainyard as ty
from trainyard.live.sparsity import SparseMomentum

BATCH, BATCHES, EPOCHS = 32, 16, 7
RECORDED = (0, 3, 6)  # epochs; the masks are those of their first batch

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.BatchNorm2d(32), nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1, stride=2), nn.BatchNorm2d(64), nn.ReLU(),
    nn.Flatten(), nn.Linear(64 * 8 * 8, 8),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
recipe = SparseMomentum(model, optimizer, density=0.1, epochs=EPOCHS)


def stripes(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(8, (samples,))
    angle = labels.view(-1, 1, 1, 1) * math.pi / 8
    y, x = torch.meshgrid(torch.arange(32.0) - 15.5, torch.arange(32.0) - 15.5, indexing="ij")
    stripe = (x * angle.cos() + y * angle.sin()).abs() < 1
    return stripe + 1.5 * torch.randn(samples, 1, 32, 32), labels


def train_step(number: int) -> None:
    """One optimizer step; the recipe follows it, and moves weights after each epoch."""
    images, labels = stripes(BATCH)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    recipe.step()
    if (number + 1) % BATCHES == 0:
        recipe.end_epoch()
        print(f"after epoch {recipe.epochs}: loss {loss.item():.3f}, weights present {recipe.density:.1%}")


def main() -> None:
    images, labels = stripes(BATCH)
    step = ty.capture(model, images, labels, loss=nn.functional.cross_entropy, optimizer=optimizer, name="stripes")
    with tempfile.TemporaryDirectory() as folder:
        moments = [epoch * BATCHES for epoch in RECORDED]
        masks = ty.record_masks(train_step, model, steps=moments, path=Path(folder) / "stripes.safetensors")
        print("cycles in which the array multiplies, and the time of the whole step:")
        for epoch, moment in zip(RECORDED, moments, strict=True):
            print(f"  after {epoch} epochs: {told(step, masks.at(moment))}")
        print("The array is faster; the step hardly is, because on this chip it waits for DRAM. With 40 times the bandwidth:")
        print(f"  after {epoch} epochs: {told(step, masks.at(moment), dram='1 TB/s')}")


def told(step: ty.Step, masks: ty.Masks, **changes: str) -> str:
    """The chip without TensorDash, and with it."""
    dense, sparse = (ty.run(step, on=machine, masks=masks, **changes) for machine in ("tensorcore", "tensordash"))
    return (
        f"array {dense.array_cycles:,} -> {sparse.array_cycles:,} cycles ({dense.array_cycles / sparse.array_cycles:.2f} x), "
        f"step {dense.time_s * 1e6:.0f} -> {sparse.time_s * 1e6:.0f} us ({dense.time_s / sparse.time_s:.2f} x)"
    )


if __name__ == "__main__":
    main()
