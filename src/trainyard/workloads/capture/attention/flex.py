"""torch's flex_attention on shapes: one fused kernel, whatever function changes its scores.

torch compiles it for a GPU and has no kernel for the meta device. Here the call ends in an op of our own that has shapes and
gradients. All scores are counted, also those of blocks that a block mask leaves out; what a function does to a score is not.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

MODULE = "torch.nn.attention.flex_attention"


@torch.library.custom_op("trainyard::flex_attention", mutates_args=())
def flex_attention(query: Tensor, key: Tensor, value: Tensor, bias: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Output, logarithm of the sum of each row, largest score of each row; `bias` is what the functions of the score read."""
    raise NotImplementedError("flex_attention is captured on shapes; torch itself has no backward pass for it on the CPU")


@flex_attention.register_fake
def _shapes(query: Tensor, key: Tensor, value: Tensor, bias: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, tokens = query.shape[:3]
    output = query.new_empty(batch, tokens, heads, value.shape[-1]).transpose(1, 2)
    logsumexp, largest = (query.new_empty(batch, heads, tokens, dtype=torch.float32) for _ in range(2))
    return output, logsumexp, largest


@torch.library.custom_op("trainyard::flex_attention_backward", mutates_args=())
def flex_attention_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, bias: list[Tensor]
) -> list[Tensor]:
    """Gradients of query, key and value, then those of the tensors in `bias` that need one."""
    raise NotImplementedError("flex_attention is captured on shapes; torch itself has no backward pass for it on the CPU")


@flex_attention_backward.register_fake
def _backward_shapes(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, bias: list[Tensor]
) -> list[Tensor]:
    return [torch.empty_like(tensor) for tensor in (query, key, value, *(t for t in bias if t.requires_grad))]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    query, key, value, bias = inputs
    ctx.needed = [tensor.requires_grad for tensor in bias]
    ctx.save_for_backward(query, key, value, output[0], output[1], *bias)


def _backward(ctx: Any, grad_out: Tensor, *_: Any) -> tuple[Any, ...]:
    query, key, value, out, logsumexp, *bias = ctx.saved_tensors
    d_query, d_key, d_value, *rest = torch.ops.trainyard.flex_attention_backward(grad_out, query, key, value, out, logsumexp, bias)
    gradients = iter(rest)
    return d_query, d_key, d_value, [next(gradients) if needed else None for needed in ctx.needed]


flex_attention.register_autograd(_backward, setup_context=_save)


@contextmanager
def flex_attention_on_shapes() -> Iterator[None]:
    """Ends torch's flex_attention in the op above while a step runs on shapes; nothing where the module is not in use."""
    module: Any = sys.modules.get(MODULE)
    if module is None:
        yield
        return
    changed: dict[str, Any] = {
        "_validate_device": _no_check,
        "flex_attention_hop": _recorded,
        "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True,  # calls it as it is instead of compiling it
    }
    before = {name: getattr(module, name) for name in changed if hasattr(module, name)}
    for name in before:
        setattr(module, name, changed[name])
    mask = module.BlockMask
    mask.kv_num_blocks = property(_blocks_on_shapes, lambda self, blocks: self.__dict__.update(kv_num_blocks=blocks))
    try:
        yield
    finally:
        del mask.kv_num_blocks
        for name, value in before.items():
            setattr(module, name, value)


def _blocks_on_shapes(mask: Any) -> Tensor:
    """A mask of the host is taken along with shapes: torch compares its device with that of the queries."""
    blocks: Tensor = mask.__dict__["kv_num_blocks"]
    return blocks if blocks.is_meta else torch.empty_like(blocks, device="meta")


def _no_check(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Every device will do."""


def _recorded(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Callable[..., Any], block_mask: tuple[Any, ...], *_: Any, **__: Any
) -> Any:
    mask_mod = block_mask[-1]
    blocks = [part for part in block_mask if isinstance(part, Tensor)]
    read = [tensor for function in (score_mod, mask_mod) for tensor in _tensors_of(function)]
    return torch.ops.trainyard.flex_attention(query, key, value, [*blocks, *read])


def _tensors_of(function: Any) -> list[Tensor]:
    """The tensors that a function of a score reads: those of its closure, of its module or of its bound arguments."""
    if isinstance(function, partial):
        bound = [*function.args, *function.keywords.values()]
        return [*(value for value in bound if isinstance(value, Tensor)), *_tensors_of(function.func)]
    if not inspect.isfunction(function):
        return []
    used = inspect.getclosurevars(function)
    found: list[Tensor] = []
    for value in (*used.nonlocals.values(), *used.globals.values()):
        if isinstance(value, Tensor):
            found.append(value)
        elif inspect.isfunction(value) and value is not function and value.__module__ == function.__module__:
            found.extend(_tensors_of(value))
    return list({id(tensor): tensor for tensor in found}.values())
