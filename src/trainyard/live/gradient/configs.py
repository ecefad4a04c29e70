"""How the fused pass is cut into programs: tile of M, slices of N and K, stages, warps; and which cuts are worth a trial."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

SHARED_BYTES = 232448  # of one program: sm_90, CUDA C++ Programming Guide, Technical Specifications


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How a pass is cut: tile of M, slices of N and K that one program owns, and how its results come together."""

    block_m: int
    slice_n: int
    slice_k: int
    warps: int = 8
    stages: int = 3
    programs_per_multiprocessor: int = 1
    descriptors: bool = False  # bulk tensor copies; needs unit inner strides and 16-byte rows
    barrier: bool = True  # partial sums are added behind a barrier of all programs, else by a second launch
    transposed: bool = False  # both products transposed: groups of four warps multiply 64 rows at a time, of K instead of M
    precision: Literal["ieee", "tf32x3"] = "ieee"  # of fp32: in lanes, or on tensor cores as three products of split operands
    atomic_dw: bool = False  # programs add to one dW as they come, else each leaves its own, added in order
    atomic_dx: bool = False  # slices of N add to dX as they come, else each has a layer of its own, added in order

    def shared_bytes(self, element_bytes: int) -> int:
        """Shared memory for the stages, W and one tile of dX: what decides whether it can be launched."""
        tile = self.block_m * (self.slice_n + self.slice_k) * self.stages
        return element_bytes * (tile + self.slice_n * self.slice_k + self.block_m * self.slice_k)


def candidates(outputs: int, inputs: int, element_bytes: int, *, deterministic: bool, describable: bool) -> list[Config]:
    """Configurations worth a trial for a weight of outputs x inputs, the most promising first.

    >>> first = candidates(256, 64, 2, deterministic=True, describable=True)[0]
    >>> first.block_m, first.slice_n, first.slice_k
    (64, 256, 64)
    """
    configs = _wide_types(outputs, inputs) if element_bytes == 4 else _narrow_types(outputs, inputs)
    if deterministic:
        configs = [replace(config, atomic_dx=False, atomic_dw=False) for config in configs]
    if not describable:
        configs = [replace(config, descriptors=False) for config in configs]
    return list(dict.fromkeys(config for config in configs if config.shared_bytes(element_bytes) <= SHARED_BYTES))


def _wide_types(outputs: int, inputs: int) -> list[Config]:
    """fp32: three products of split operands on tensor cores, or tiles small enough for the lanes."""
    split_k, split_n = min(_power_of_two(inputs), 64), min(_power_of_two(outputs), 64)
    slice_k, slice_n = min(split_k, 32), min(split_n, 32)
    return [
        Config(block_m=64, slice_n=split_n, slice_k=split_k, warps=8, stages=2, precision="tf32x3"),
        Config(block_m=32, slice_n=slice_n, slice_k=slice_k, warps=4, stages=2, programs_per_multiprocessor=2),
    ]


# fmt: off
# fp16 and bf16, measured on an H200: deepest slice of K, widest slice of N, then tile of M, stages, warps, programs for each
# multiprocessor, bulk copies, transposed. A row is tried where its slices are not much wider than the weight.
NARROW = (
    # K,   N,   M, stages, warps, each,  bulk,  transposed
    ( 16, 512,  64,     3,     8,    1,  True,  False),  # LoRA's B of rank 8 and 16
    ( 16, 256,  64,     4,     8,    1,  False, False),
    ( 16, 256, 128,     3,     8,    1,  True,  False),
    ( 32,  64, 128,     4,     8,    1,  False, False),  # early pointwise convolutions
    ( 32, 256,  64,     4,     8,    1,  False, False),
    ( 32, 256,  64,     5,     8,    1,  True,  False),
    ( 64,  64, 128,     3,     8,    1,  False, False),
    ( 64,  64, 128,     4,     4,    1,  False, False),
    ( 64, 128,  64,     4,     8,    1,  False, False),
    ( 64, 128, 128,     3,     8,    1,  False, False),
    ( 64, 128,  64,     3,     4,    2,  True,  False),
    ( 64, 256,  64,     4,     8,    1,  False, False),
    ( 64, 256,  64,     3,     8,    1,  False, True),
    ( 64, 256,  32,     3,     4,    2,  True,  True),   # LoRA's B of rank 32 and 64
    ( 64, 512,  32,     4,     8,    1,  False, True),
    (128, 128,  64,     3,     8,    1,  False, False),
    (128, 256,  64,     3,     8,    1,  True,  False),
)
# fmt: on


def _narrow_types(outputs: int, inputs: int) -> list[Config]:
    """The rows of the table whose slices fit this weight best: as few slices of N as can be, then of K."""
    deep, wide = _power_of_two(inputs), _power_of_two(outputs)

    def cost(row: tuple[Any, ...]) -> tuple[int, int, int]:
        slice_k, slice_n = row[:2]
        summed = -(-outputs // slice_n) * max(inputs, 16) * 2 if slice_n < outputs else 0  # bytes of dX that slices of N add up
        reloads = (-(-inputs // slice_k) - 1) * outputs  # dY through the L2 once more for each further slice of K
        idle = max(0, slice_k - deep) + max(0, slice_n - wide)
        return summed + reloads + idle, idle, NARROW.index(row)

    return [
        Config(
            block_m=block_m, slice_n=min(slice_n, wide), slice_k=slice_k, warps=warps, stages=stages,
            programs_per_multiprocessor=per_multiprocessor, descriptors=bulk, transposed=transposed,
            atomic_dw=True, atomic_dx=slice_n < outputs,
        )
        for slice_k, slice_n, block_m, stages, warps, per_multiprocessor, bulk, transposed in sorted(NARROW, key=cost)
    ]  # fmt: skip


def _power_of_two(size: int) -> int:
    """The next power of two, at least the 16 that a matrix instruction takes."""
    return max(16, 1 << (size - 1).bit_length())
