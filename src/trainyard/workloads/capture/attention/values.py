"""CUDA's fused attention ops with values on the CPU, so that a step captured with `real=True` dispatches the ops of the device.

One sample at a time, so that the scores of a batch need not fit in memory. Dropout draws from a seed that the op returns, as the
kernels' random state does, so that backward drops the same scores. With is_causal the last query sees the last key in flash and in
cuDNN, the first query the first key in the memory-efficient kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.bias import CausalVariant

SEEDS = 2**62
LOGSUMEXP_ROWS = 32  # the memory-efficient kernel saves rows of a multiple of 32


@dataclass(frozen=True, slots=True)
class _Sample:
    """One sample of an attention, in fp32 or wider: query, key and value by head, those of K and V repeated for their group."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    kept: Tensor | None
    causal: bool
    lower_right: bool
    scale: float

    @property
    def scores(self) -> Tensor:
        scores = self.query @ self.key.mT * self.scale
        if self.bias is not None:
            scores = scores + self.bias
        if self.causal:
            after = scores.shape[-1] - scores.shape[-2] if self.lower_right else 0
            scores = scores.masked_fill(torch.ones_like(scores[0], dtype=torch.bool).tril(after).logical_not(), -math.inf)
        return scores

    def forward(self) -> tuple[Tensor, Tensor]:
        """Output and logarithm of the sum of the exponentials; a row without keys gives 0."""
        scores = self.scores
        logsumexp = scores.logsumexp(-1)
        shares = (scores - logsumexp.unsqueeze(-1)).exp().nan_to_num(0.0)
        return (shares if self.kept is None else shares * self.kept) @ self.value, logsumexp

    def backward(self, gradient: Tensor, output: Tensor, logsumexp: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of query, key, value and bias."""
        shares = (self.scores - logsumexp.unsqueeze(-1)).exp().nan_to_num(0.0)
        grad_shares = gradient @ self.value.mT
        kept = shares if self.kept is None else shares * self.kept
        if self.kept is not None:
            grad_shares = grad_shares * self.kept
        grad_scores = shares * (grad_shares - (gradient * output).sum(-1, keepdim=True))
        return (
            grad_scores @ self.key * self.scale,
            grad_scores.mT @ self.query * self.scale,
            kept.mT @ gradient,
            grad_scores,
        )


@dataclass(frozen=True, slots=True)
class _Batch:
    """The operands of one op."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    dropout: float
    causal: bool
    lower_right: bool
    scale: float | None
    seed: int

    @property
    def repeats(self) -> int:
        """Heads of the query for each head of key and value."""
        return self.query.shape[1] // self.key.shape[1]

    def sample(self, index: int) -> _Sample:
        wide = torch.float64 if self.query.dtype is torch.float64 else torch.float32
        query, key, value = (t[index].to(wide) for t in (self.query, self.key, self.value))
        key, value = (t.repeat_interleave(self.repeats, 0) for t in (key, value))
        scale = self.scale if self.scale is not None else query.shape[-1] ** -0.5
        bias = None if self.bias is None else self.bias[index].to(wide)
        return _Sample(query, key, value, bias, self._kept(index, query, key), self.causal, self.lower_right, scale)

    def _kept(self, index: int, query: Tensor, key: Tensor) -> Tensor | None:
        if not self.dropout:
            return None
        generator = torch.Generator().manual_seed(self.seed + index)
        drawn = torch.rand(*query.shape[:2], key.shape[1], generator=generator, dtype=query.dtype)
        return (drawn >= self.dropout) / max(1.0 - self.dropout, 2.0**-20)

    def forward(self) -> tuple[Tensor, Tensor]:
        pairs = [self.sample(index).forward() for index in range(self.query.shape[0])]
        return torch.stack([pair[0] for pair in pairs]).to(self.query.dtype), torch.stack([pair[1] for pair in pairs]).float()

    def backward(self, gradient: Tensor, output: Tensor, logsumexp: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide = torch.float64 if self.query.dtype is torch.float64 else torch.float32
        tokens = self.query.shape[2]
        rows = [
            self.sample(index).backward(gradient[index].to(wide), output[index].to(wide), logsumexp[index, :, :tokens].to(wide))
            for index in range(self.query.shape[0])
        ]
        grad_query, grad_key, grad_value, grad_bias = (torch.stack(list(parts)) for parts in zip(*rows, strict=True))
        grouped = (self.key.shape[1], self.repeats)
        grad_key, grad_value = (t.unflatten(1, grouped).sum(2) for t in (grad_key, grad_value))
        dtype = self.query.dtype
        return grad_query.to(dtype), grad_key.to(dtype), grad_value.to(dtype), grad_bias.to(dtype)


Arguments = Mapping[str, Any]


def _batch(arguments: Arguments, seed: int, *, lower_right: bool = False) -> _Batch:
    return _Batch(
        arguments["query"], arguments["key"], arguments["value"], arguments.get("attn_bias"), arguments["dropout_p"],
        arguments["is_causal"], lower_right, arguments["scale"], seed,
    )  # fmt: skip


def _flash(arguments: Arguments) -> Any:
    seed = torch.randint(SEEDS, (2,))
    output, logsumexp = _batch(arguments, int(seed[0]), lower_right=True).forward()
    query, key = arguments["query"], arguments["key"]
    nothing = query.new_empty(0)
    return output, logsumexp, None, None, query.shape[2], key.shape[2], seed, torch.zeros((), dtype=torch.int64), nothing


def _flash_backward(arguments: Arguments) -> Any:
    batch = _batch(arguments, int(arguments["philox_seed"][0]), lower_right=True)
    return batch.backward(arguments["grad_out"], arguments["out"], arguments["logsumexp"])[:3]


def _efficient(arguments: Arguments) -> Any:
    seed = torch.randint(SEEDS, ())
    output, logsumexp = _batch(arguments, int(seed)).forward()
    missing = -logsumexp.shape[-1] % LOGSUMEXP_ROWS
    saved = torch.nn.functional.pad(logsumexp, (0, missing)) if arguments["compute_log_sumexp"] else logsumexp[..., :0]
    return output, saved, seed, torch.zeros((), dtype=torch.int64)


def _efficient_backward(arguments: Arguments) -> Any:
    batch = _batch(arguments, int(arguments["philox_seed"]))
    *gradients, grad_bias = batch.backward(arguments["grad_out_"], arguments["out"], arguments["logsumexp"])
    # The kernel writes the gradients of Q, K and V whether they are wanted or not (K of a layer with frozen weights is not).
    return *gradients, grad_bias if arguments["grad_input_mask"][3] and batch.bias is not None else None


def _tokens_first(arguments: Arguments, seed: int) -> _Batch:
    operands = {name: arguments[name].transpose(1, 2) for name in ("query", "key", "value")}
    causal = bool(arguments["custom_mask_type"])
    lower_right = arguments["custom_mask_type"] == int(CausalVariant.LOWER_RIGHT)
    return _batch({**arguments, **operands, "is_causal": causal}, seed, lower_right=lower_right)


def _efficient_forward(arguments: Arguments) -> Any:
    seed = torch.randint(SEEDS, ())
    output, logsumexp = _tokens_first(arguments, int(seed)).forward()
    tokens, keys = arguments["query"].shape[1], arguments["key"].shape[1]
    logsumexp = torch.nn.functional.pad(logsumexp, (0, -tokens % LOGSUMEXP_ROWS))
    return output.transpose(1, 2), logsumexp, seed, torch.zeros((), dtype=torch.int64), tokens, keys


def _efficient_forward_backward(arguments: Arguments) -> Any:
    batch = _tokens_first(arguments, int(arguments["philox_seed"]))
    gradient, output = (arguments[name].transpose(1, 2) for name in ("grad_out_", "out"))
    gradients = batch.backward(gradient, output, arguments["logsumexp"])
    return (*(t.transpose(1, 2) for t in gradients[:3]), gradient.new_empty(0))


def _cudnn(arguments: Arguments) -> Any:
    output, logsumexp, *rest, seed, offset, nothing = _flash(arguments)
    return output, logsumexp.unsqueeze(-1), *rest, seed[0], offset, nothing


def _cudnn_backward(arguments: Arguments) -> Any:
    batch = _batch(arguments, int(arguments["philox_seed"]))
    return batch.backward(arguments["grad_out"], arguments["out"], arguments["logsumexp"].squeeze(-1))[:3]


# fmt: off
OPS: dict[str, Callable[[Arguments], Any]] = {
    "_scaled_dot_product_flash_attention":              _flash,
    "_scaled_dot_product_flash_attention_backward":     _flash_backward,
    "_scaled_dot_product_efficient_attention":          _efficient,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_efficient_attention_forward":                     _efficient_forward,
    "_efficient_attention_backward":                    _efficient_forward_backward,
    "_scaled_dot_product_cudnn_attention":              _cudnn,
    "_scaled_dot_product_cudnn_attention_backward":     _cudnn_backward,
}
# fmt: on


def on_cpu(name: str, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The result of an op; of an op that torch has on CUDA alone, on CPU tensors, computed here."""
    op = OPS.get(name)
    if op is None or args[0].device.type != "cpu":
        return func(*args, **kwargs)
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False))
    defaults = {argument.name: argument.default_value for argument in func._schema.arguments if argument.has_default_value()}
    described = func(*(_shape_of(a) for a in args), **{key: _shape_of(value) for key, value in kwargs.items()})
    return tuple(map(_laid_out, op({**defaults, **given, **kwargs}), described))


def _shape_of(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _laid_out(result: Any, described: Any) -> Any:
    """A result in the memory layout of the kernel."""
    if not isinstance(result, Tensor) or result.shape != described.shape:
        return result
    return torch.empty_strided(described.shape, described.stride(), dtype=result.dtype).copy_(result)
