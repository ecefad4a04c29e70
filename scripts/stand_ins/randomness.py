"""Random numbers by sample number: a hash of (seed, stream, sample, place), so that any sample can be made alone and on any device.

The mixing function is the finaliser of SplitMix64. G. L. Steele, D. Lea, C. H. Flood: Fast Splittable Pseudorandom Number
Generators. OOPSLA 2014, Fig. 13 (constants of variant 13 of D. Stafford).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

WORD = 1 << 64


def _signed(constant: int) -> int:
    """The 64-bit pattern as torch's int64."""
    return constant - WORD if constant >= WORD // 2 else constant


GOLDEN = _signed(0x9E3779B97F4A7C15)  # Steele et al., Sec. 3: the odd integer nearest 2**64 / golden ratio
SAMPLE = _signed(0xD1342543DE82EF95)  # another odd multiplier, so that sample and place do not mirror each other
FIRST = _signed(0xBF58476D1CE4E5B9)
SECOND = _signed(0x94D049BB133111EB)


def _shifted(words: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's own drags the sign along."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def hashed(words: Tensor) -> Tensor:
    """Mixes int64 words; products wrap around."""
    words = (words ^ _shifted(words, 30)) * FIRST
    words = (words ^ _shifted(words, 27)) * SECOND
    return words ^ _shifted(words, 31)


def uniform(seed: int, stream: int, samples: Tensor, count: int) -> Tensor:
    """[sample, place] in [0, 1), 24 bits each."""
    index = torch.arange(count, device=samples.device, dtype=torch.int64)
    key = hashed(torch.tensor(_signed((seed * 1_000_003 + stream) % WORD), device=samples.device))
    words = samples.to(torch.int64)[:, None] * SAMPLE + index * GOLDEN + key
    return _shifted(hashed(words), 40).float() / (1 << 24)


def normal(seed: int, stream: int, samples: Tensor, count: int) -> Tensor:
    """Standard normal values, by G. E. P. Box and M. E. Muller's transform (1958)."""
    radius, angle = uniform(seed, stream, samples, 2 * count).chunk(2, dim=1)
    return torch.sqrt(-2 * torch.log1p(-radius)) * torch.cos(2 * math.pi * angle)


def integers(values: Tensor, choices: int) -> Tensor:
    """Uniform values as whole numbers below `choices`."""
    return (values * choices).long().clamp(max=choices - 1)


def zipf(values: Tensor, choices: int) -> Tensor:
    """Uniform values as ranks 0, 1, ... whose frequency falls as 1 / (rank + 1): G. K. Zipf's law of words."""
    return torch.expm1(values * math.log(choices + 1)).long().clamp(max=choices - 1)


def lengths(values: Tensor, mean: float, spread: float, shortest: int, longest: int) -> Tensor:
    """Log-normal lengths of sentences from standard normal values, cut to what fits."""
    variance = math.log(1 + (spread / mean) ** 2)
    drawn = torch.exp(math.log(mean) - variance / 2 + math.sqrt(variance) * values)
    return drawn.round().long().clamp(shortest, longest)


def numbered(indices: np.ndarray | Tensor, device: str | torch.device | None) -> Tensor:
    """Sample numbers as a tensor; an array is copied, since torch wants one it could write to."""
    return torch.as_tensor(indices if isinstance(indices, Tensor) else np.array(indices), dtype=torch.int64, device=device)
