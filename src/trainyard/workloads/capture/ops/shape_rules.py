"""Shapes of the results of ops that torch cannot run on the meta device, or runs there for some element types alone.

`_grouped_mm` accepts bf16 alone there, and CTC has no kernel. A rule gets the arguments of a call and returns its result on meta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trainyard.errors import CaptureError

ShapeRule = Callable[[Sequence[Any], Mapping[str, Any]], Any]


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], position: int, name: str) -> Any:
    return args[position] if len(args) > position else kwargs.get(name)


def _packed(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Padded sequences without their padding, and how many of them are as long as each step; lengths are values of the host."""
    padded, lengths = args[:2]
    if lengths.is_meta:
        raise CaptureError("sequences are packed by lengths whose values are not known: give them with the example inputs")
    counts = [int(length) for length in lengths]
    if any(length < 1 for length in counts):
        raise RuntimeError("Length of all samples has to be greater than 0")
    steps = torch.tensor([sum(length > step for length in counts) for step in range(max(counts))])
    return torch.empty((sum(counts), *padded.shape[2:]), dtype=padded.dtype, device="meta"), steps


def grouped_shape(a: Sequence[int], b: Sequence[int], groups: int) -> tuple[int, ...]:
    """The result of a grouped product: rows, columns or the reduction of a 2-d operand belong to `groups` groups in turn.

    >>> grouped_shape((48, 16), (8, 16, 32), 8), grouped_shape((32, 48), (48, 16), 8), grouped_shape((8, 16, 24), (24, 48), 8)
    ((48, 32), (8, 32, 16), (16, 48))
    """
    if len(a) == len(b):
        return (groups, a[-2], b[-1])
    return (a[-2], b[-1])


def _grouped(offsets: int, out_dtype: int, default: torch.dtype | None = None) -> ShapeRule:
    """`offsets` and `out_dtype` are the positions of these arguments; without `default` the result has the type of the first."""

    def rule(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
        a, b = args[:2]
        offs = _argument(args, kwargs, offsets, "offs")
        if a.dim() not in (2, 3) or b.dim() not in (2, 3) or a.shape[-1] != b.shape[-2]:
            raise CaptureError(f"a grouped product of {tuple(a.shape)} and {tuple(b.shape)}: their inner dimensions differ")
        if (offs is None) != (a.dim() == 3 and b.dim() == 3):
            raise CaptureError("a grouped product takes offs= if, and only if, an operand has two dimensions")
        groups = a.shape[0] if offs is None else offs.shape[0]
        dtype = _argument(args, kwargs, out_dtype, "out_dtype") or default or a.dtype
        return torch.empty(grouped_shape(a.shape, b.shape, groups), dtype=dtype, device="meta")

    return rule


def _longest(lengths: Any, targets: Tensor) -> int:
    """The longest target: by the lengths where they have values, else the width of padded targets or the mean of joined ones."""
    if not isinstance(lengths, Tensor):
        return max(lengths, default=0)
    if not lengths.is_meta:
        return int(lengths.max()) if lengths.numel() else 0
    return targets.shape[1] if targets.dim() == 2 else math.ceil(targets.shape[0] / max(1, lengths.numel()))


def _ctc_loss(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """The negative log-likelihood of each sample, and alpha of each frame over the target with blanks between its labels."""
    log_probs, targets, _, target_lengths = args[:4]
    frames, batch = log_probs.shape[:2]
    states = 2 * _longest(target_lengths, targets) + 1
    alpha = torch.empty((batch, frames, states), dtype=log_probs.dtype, device="meta")
    return torch.empty((batch,), dtype=log_probs.dtype, device="meta"), alpha


def _ctc_loss_backward(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    log_probs = args[1]
    return torch.empty(log_probs.shape, dtype=log_probs.dtype, device="meta")


# fmt: off
SHAPE_RULES: dict[str, ShapeRule] = {
    "_grouped_mm":           _grouped(offsets=2, out_dtype=4),
    "_scaled_grouped_mm":    _grouped(offsets=4, out_dtype=7, default=torch.bfloat16),
    "_scaled_grouped_mm_v2": _grouped(offsets=8, out_dtype=10, default=torch.bfloat16),
    "_ctc_loss":             _ctc_loss,
    "_ctc_loss_backward":    _ctc_loss_backward,
    "_pack_padded_sequence": _packed,
}
# fmt: on


CONVOLUTIONS = ("convolution", "convolution_backward")


def in_memory_format(name: str, args: Sequence[Any], result: Any) -> Any:
    """The result of a convolution as cuDNN and oneDNN return it: maps are channels-last if the input or the filter is.

    The shape rules of torch return contiguous tensors; all other ops follow the strides of their inputs by themselves.
    """
    maps, filters = args[:2] if name == "convolution" else args[1:3]
    if maps.dim() != 4 or not (is_channels_last(maps) or is_channels_last(filters)):
        return result
    if name == "convolution":
        return torch.empty_like(result, memory_format=torch.channels_last)
    return tuple(
        torch.empty_like(gradient, memory_format=torch.channels_last) if gradient is not None and gradient.dim() == 4 else gradient
        for gradient in result
    )


def is_channels_last(tensor: Tensor) -> bool:
    """Whether the channels of maps are neighbours in memory; not where both orders are the same (one channel, one position)."""
    if tensor.dim() not in (4, 5) or tensor.is_contiguous():
        return False
    return tensor.is_contiguous(memory_format=torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d)
