"""A UNet of the usual kind for latent diffusion, in plain torch: the shapes of Stable Diffusion 1.5's.

diffusers is not installed on the machine of the measurements, so this one network of `networks` is written here: residual
blocks with the time's embedding, transformers with self and cross attention and a gated linear unit, and skip connections.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Attention of `x` over itself or over a text."""

    def __init__(self, width: int, heads: int, text: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key, self.value = (nn.Linear(text or width, width, bias=False) for _ in range(2))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, text: Tensor | None = None) -> Tensor:
        source = x if text is None else text
        split = [
            layer(of).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, of in ((self.query, x), (self.key, source), (self.value, source))
        ]
        result: Tensor = self.out(F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2))
        return result


class TransformerBlock(nn.Module):
    """Self attention, cross attention and a gated linear unit over the pixels of an image."""

    def __init__(self, width: int, heads: int, text: int, groups: int) -> None:
        super().__init__()
        self.norm, self.inward, self.outward = nn.GroupNorm(groups, width), nn.Linear(width, width), nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.cross = Attention(width, heads), Attention(width, heads, text)
        self.gate, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        x = self.inward(self.norm(image).flatten(2).transpose(1, 2))
        x = x + self.own(self.norms[0](x))
        x = x + self.cross(self.norms[1](x), text)
        value, gate = self.gate(self.norms[2](x)).chunk(2, dim=-1)
        x = x + self.down(value * F.gelu(gate))
        return image + self.outward(x).transpose(1, 2).reshape(image.shape)


class ResidualBlock(nn.Module):
    """Two convolutions with group norms; the time's embedding is added between them."""

    def __init__(self, width: int, out: int, times: int, groups: int) -> None:
        super().__init__()
        self.norm, self.first = nn.GroupNorm(groups, width), nn.Conv2d(width, out, 3, padding=1)
        self.time = nn.Linear(times, out)
        self.other_norm, self.second = nn.GroupNorm(groups, out), nn.Conv2d(out, out, 3, padding=1)
        self.skip = nn.Identity() if width == out else nn.Conv2d(width, out, 1)

    def forward(self, image: Tensor, time: Tensor) -> Tensor:
        hidden = self.first(F.silu(self.norm(image))) + self.time(F.silu(time))[:, :, None, None]
        result: Tensor = self.skip(image) + self.second(F.silu(self.other_norm(hidden)))
        return result


class Level(nn.Module):
    """Blocks at one resolution, and what leads to the next one."""

    def __init__(self, blocks: Sequence[nn.Module], attentions: Sequence[nn.Module], resample: nn.Module | None) -> None:
        super().__init__()
        self.blocks, self.attentions = nn.ModuleList(blocks), nn.ModuleList(attentions)
        self.resample = resample


class UNet(nn.Module):
    """The guess of the noise in a latent image at some time, given a text."""

    def __init__(self, widths: Sequence[int] = (320, 640, 1280, 1280), text: int = 768, heads: int = 8, groups: int = 32) -> None:
        super().__init__()
        times, deepest = 4 * widths[0], len(widths) - 1

        def residual(width: int, out: int) -> ResidualBlock:
            return ResidualBlock(width, out, times, groups)

        def attentions(level: int, count: int) -> list[TransformerBlock]:
            return [TransformerBlock(widths[level], heads, text, groups) for _ in range(count if level < deepest else 0)]

        self.time = nn.Sequential(nn.Linear(widths[0], times), nn.SiLU(), nn.Linear(times, times))
        self.inward = nn.Conv2d(4, widths[0], 3, padding=1)
        self.downs, self.ups = nn.ModuleList(), nn.ModuleList()
        skips, width = [widths[0]], widths[0]
        for level, out in enumerate(widths):
            resample = nn.Conv2d(out, out, 3, stride=2, padding=1) if level < deepest else None
            self.downs.append(Level([residual(width, out), residual(out, out)], attentions(level, 2), resample))
            skips += [out, out, *([out] if level < deepest else [])]
            width = out
        self.middle = nn.ModuleList([residual(width, width), TransformerBlock(width, heads, text, groups), residual(width, width)])
        for level, out in reversed(list(enumerate(widths))):
            blocks = []
            for _ in range(3):
                blocks.append(residual(width + skips.pop(), out))
                width = out
            self.ups.append(Level(blocks, attentions(level, 3), nn.Conv2d(out, out, 3, padding=1) if level else None))
        self.norm, self.outward = nn.GroupNorm(groups, widths[0]), nn.Conv2d(widths[0], 4, 3, padding=1)

    def forward(self, image: Tensor, times: Tensor, text: Tensor) -> Tensor:
        half = self.inward.out_channels // 2
        frequencies = torch.exp(torch.arange(half, device=image.device) * (-math.log(10_000) / half))
        angles = times[:, None] * frequencies
        time = self.time(torch.cat([angles.cos(), angles.sin()], dim=-1).to(image.dtype))
        x = self.inward(image)
        skips = [x]
        for level in self.downs:
            for number, block in enumerate(level.blocks):
                x = block(x, time)
                x = level.attentions[number](x, text) if len(level.attentions) else x
                skips.append(x)
            if level.resample is not None:
                x = level.resample(x)
                skips.append(x)
        first, attention, second = self.middle
        x = second(attention(first(x, time), text), time)
        for level in self.ups:
            for number, block in enumerate(level.blocks):
                x = block(torch.cat([x, skips.pop()], dim=1), time)
                x = level.attentions[number](x, text) if len(level.attentions) else x
            if level.resample is not None:
                x = level.resample(F.interpolate(x, scale_factor=2.0))
        result: Tensor = self.outward(F.silu(self.norm(x)))
        return result
