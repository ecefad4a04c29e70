"""Models and training loops for the tests of replayed blocks, on any device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainyard.live.paging.regions.finding import regions_of
from trainyard.live.paging.regions.replay.passes import RecordedPasses
from trainyard.live.paging.regions.variants import CHECKPOINT, KEEP, SELECTIVE, Entry

VARIANTS = {variant.name: variant for variant in (KEEP, CHECKPOINT, SELECTIVE)}
WIDTH = 16


class Layer(nn.Module):
    """A residual layer with dropout. It takes tensors by position, by name and in a tuple, and returns two."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor, *, scale: Tensor, extra: tuple[Tensor, ...] = (), factor: float = 1.0) -> tuple[Tensor, Tensor]:
        hidden = F.gelu(self.up(self.norm(x))) * scale * factor
        for tensor in extra:
            hidden = hidden + tensor.mean()
        return x + self.dropout(self.down(hidden)), hidden.detach().mean()


class Stack(nn.Module):
    """Layers in a list, the last one called twice. All are given the same `scale` and a tensor with a gradient, from `side`."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.embed, self.side = nn.Linear(4, WIDTH), nn.Linear(4, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(depth))
        self.last = nn.Linear(WIDTH, 2)
        self.skipped: set[int] = set()
        self.order: list[int] = [*range(depth), depth - 1]
        self.factor = 1.0
        self.watch: Callable[[int, Tensor], Any] = lambda number, hidden: None

    def forward(self, x: Tensor) -> Tensor:
        side, scale = self.side(x), torch.full((4 * WIDTH,), 1.5, device=x.device)
        x = self.embed(x)
        for turn, number in enumerate(self.order):
            if turn not in self.skipped:
                x, _ = self.layers[number](x, scale=scale, extra=(side, x), factor=self.factor)
                self.watch(turn, x)
        return self.last(x)


class Convolutions(nn.Module):
    """Convolutions with running statistics and a change of layout between blocks."""

    def __init__(self) -> None:
        super().__init__()

        def block() -> nn.Module:
            return nn.ModuleDict({"body": nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())})

        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = block()

            def forward(self, x: Tensor) -> Tensor:
                return x + self.inner["body"](x)

        self.stem = nn.Conv2d(3, 8, 1)
        self.blocks = nn.Sequential(*(Block() for _ in range(3)))
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for number, one in enumerate(self.blocks):
            x = one(x)
            if number == 1:
                x = x.transpose(2, 3)
        return self.head(x.mean((2, 3)))


class Ending(nn.Module):
    """Its first block is given what it is given, and what its last block returns is its result."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def stack(device: torch.device, depth: int = 3) -> Stack:
    torch.manual_seed(0)
    return Stack(depth).to(device)


def convolutions(device: torch.device) -> Convolutions:
    torch.manual_seed(0)
    return Convolutions().to(device, memory_format=torch.channels_last)


def ending(device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    return Ending().to(device)


@contextmanager
def replayed(model: nn.Module, device: torch.device, variant: str = "keep", **options: Any) -> Iterator[RecordedPasses]:
    """The model's blocks in a variant, replayed."""
    passes = RecordedPasses(device, {}, **options)
    hooks = [
        model.register_forward_pre_hook(lambda *_: passes.begin()),
        model.register_forward_hook(lambda model, arguments, result: passes.forward_ended(result)),
    ]
    entries = [(region, Entry(region.module, region.kind)) for region in regions_of(model)]
    for region, entry in entries:
        entry.replace(passes.around(region, variant, entry.variant(VARIANTS[variant])))
    try:
        yield passes
    finally:
        for hook in hooks:
            hook.remove()
        for _, entry in entries:
            entry.restore()
        passes.release()


def obstacles(passes: RecordedPasses) -> set[str]:
    return {rehearsal.obstacle for rehearsal in passes.rehearsals.values() if rehearsal.obstacle is not None}


class Trainer:
    """Training with everything that a loop may do beside: what it collects is compared between plain and replayed runs."""

    def __init__(self, model: nn.Module, device: torch.device, shape: tuple[int, ...] = (5, 4)) -> None:
        self.model, self.device, self.shape = model, device, shape
        self.optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        self.collected: list[Tensor] = []
        torch.manual_seed(1)

    def batch(self, shape: tuple[int, ...] | None = None) -> Tensor:
        return torch.randn(*(shape or self.shape), device=self.device)

    def loss(self, x: Tensor | None = None) -> Tensor:
        return self.model(self.batch() if x is None else x).float().square().mean()

    def collect(self) -> None:
        self.collected += [parameter.grad.clone() for parameter in self.model.parameters() if parameter.grad is not None]

    def step(self, x: Tensor | None = None) -> None:
        self.optimizer.zero_grad()
        self.loss(x).backward()
        self.collect()
        self.optimizer.step()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def finish(self) -> list[Tensor]:
        state = [*self.model.parameters(), *self.model.buffers()]
        return [*self.collected, *(tensor.detach().clone() for tensor in state), self.batch()]


Loop = Callable[[Trainer], None]


def compare(
    loop: Loop,
    device: torch.device,
    variant: str,
    make: Callable[[torch.device], nn.Module] = stack,
    tolerance: float = 0.0,
    **options: Any,
) -> Any:
    """Runs a loop plainly and with replayed blocks, and returns the passes; everything that was collected must be equal."""
    trainer = Trainer(make(device), device, **options)
    loop(trainer)
    expected = trainer.finish()
    trainer = Trainer(make(device), device, **options)
    with replayed(trainer.model, device, variant) as passes:
        loop(trainer)
        actual = trainer.finish()
    assert len(actual) == len(expected)
    pairs = enumerate(zip(actual, expected, strict=True))
    others = [number for number, pair in pairs if not (torch.allclose(*pair, 0, tolerance) if tolerance else torch.equal(*pair))]
    assert not others, [(number, float((actual[number] - expected[number]).abs().max())) for number in others]
    return passes
