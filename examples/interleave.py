"""A small network of 1x1 convolutions and a LoRA layer, trained with torch's own backward pass and with dY read once: same losses.

On a GPU the time of a training step is printed too, for a network whose early layers are bound by memory. The images are made up:
the class is which of eight coarse pictures lies under the noise.
"""

import copy
import time

import torch
from torch import Tensor, nn

import trainyard as ty

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
WIDTH, SIDE, BATCH, STEPS = (64, 56, 256, 20) if GPU else (16, 16, 16, 20)


class Lora(nn.Module):
    """A frozen layer and its low-rank correction; B has a large dY and a small weight, which is where reading dY once pays."""

    def __init__(self, base: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A, self.lora_B = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.lora_B(self.lora_A(x))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH), nn.ReLU(),
        nn.Conv2d(WIDTH, WIDTH, 1), nn.BatchNorm2d(WIDTH), nn.ReLU(),
        nn.Conv2d(WIDTH, 2 * WIDTH, 1), nn.BatchNorm2d(2 * WIDTH), nn.ReLU(),
        nn.Conv2d(2 * WIDTH, WIDTH, 1), nn.BatchNorm2d(WIDTH), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), Lora(nn.Linear(16 * WIDTH, 128)), nn.ReLU(), nn.Linear(128, 8),
    ).to(DEVICE, memory_format=torch.channels_last)  # fmt: skip


def images(step: int) -> tuple[Tensor, Tensor]:
    pictures = nn.functional.interpolate(torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(7)), (SIDE, SIDE))
    generator = torch.Generator().manual_seed(step)
    labels = torch.randint(8, (BATCH,), generator=generator)
    noise = torch.randn(BATCH, 3, SIDE, SIDE, generator=generator)
    return (pictures[labels] + noise).to(DEVICE, memory_format=torch.channels_last), labels.to(DEVICE)


def train(model: nn.Module) -> tuple[list[float], float]:
    """The losses, and the seconds of a step after the first three."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    losses, seconds = [], []
    for step in range(STEPS):
        inputs, labels = images(step)
        began = now()
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=GPU):
            loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        seconds.append(now() - began)
        losses.append(loss.item())
    return losses, sorted(seconds[3:])[len(seconds[3:]) // 2]


def now() -> float:
    if GPU:
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    plain = network()
    interleaved = ty.live.interleave(copy.deepcopy(plain))
    (losses, seconds), (same_losses, fewer_seconds) = train(plain), train(interleaved)
    print(ty.live.gradient.report(interleaved), end="\n\n")
    print("step  torch's own  dY read once")
    for step in range(0, STEPS, STEPS // 5):
        print(f"{step:4}  {losses[step]:11.4f}  {same_losses[step]:12.4f}")
    if GPU:
        print(f"\na step: {seconds * 1e3:.2f} ms -> {fewer_seconds * 1e3:.2f} ms, {seconds / fewer_seconds:.2f} x")


if __name__ == "__main__":
    main()
