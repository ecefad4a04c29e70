"""Fused attention as ops of a Step: products and softmax of one kernel, whose scores stay on the chip.

Forward computes two products, backward five: the scores once more from what was saved (Q, K and the logarithm of the sum of each
row), then the gradients of shares, V, Q and K. A causal kernel is counted with all scores, as torch's counter does; its ops are
named `causal_...`, and a device may skip the half that is masked. K and V with fewer heads than Q are read as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from trainyard.ir import Body, ElementWise, MatMul, Phase, Reduction
from trainyard.workloads.capture.ops.registry import Call, Handler, OnChip, Piece

Layout = Literal["heads first", "tokens first"]
"""(batch, heads, tokens, width), or (batch, tokens, heads, width) and packed rows (tokens, heads, width)."""

SOFTMAX_PASSES = 3  # maximum, sum of exponentials, division
DROPOUT_OPERATIONS = 6  # a random number, a comparison, a product
EXPONENTIAL_OPERATIONS = 5
SOFTMAX_BACKWARD_OPERATIONS = 4


class _Sizes(NamedTuple):
    """The extents of one attention; `products` matrices of scores, one for each head of each sample."""

    products: int
    tokens: int
    keys: int
    width: int
    depth: int

    @property
    def scores(self) -> int:
        return self.products * self.tokens * self.keys

    def on_chip(self, dtype: Any) -> OnChip:
        return OnChip((self.products, self.tokens, self.keys), dtype)


class _Arguments:
    """The arguments of a dispatched op by the names of its schema, which differ from op to op in order alone."""

    def __init__(self, call: Call) -> None:
        space, _, name = call.name.rpartition(".")
        arguments = getattr(getattr(torch.ops, space or "aten"), name).default._schema.arguments
        self._values: Mapping[str, Any] = {
            **{argument.name: argument.default_value for argument in arguments if argument.has_default_value()},
            **dict(zip((argument.name for argument in arguments), call.args, strict=False)),
            **call.kwargs,
        }

    def first(self, *names: str) -> Any:
        """The first of these arguments that is given."""
        return next((self._values[name] for name in names if self._values.get(name) is not None), None)

    def tensors(self, *names: str) -> tuple[Tensor, ...]:
        given = (self._values.get(name) for name in names)
        listed = (tensor for value in given for tensor in (value if isinstance(value, list | tuple) else (value,)))
        return tuple(tensor for tensor in listed if isinstance(tensor, Tensor) and tensor.numel())

    @property
    def bias(self) -> tuple[Tensor, ...]:
        return self.tensors("attn_bias", "attn_mask", "bias")

    @property
    def dropout(self) -> bool:
        return bool(self.first("dropout_p"))

    @property
    def causal(self) -> bool:
        return bool(self.first("is_causal", "custom_mask_type"))

    def sizes(self, layout: Layout) -> _Sizes:
        """Sequences packed into one row count as long as the longest."""
        query, key, value = (self.first(name) for name in ("query", "key", "value"))
        width, depth = query.shape[-1], value.shape[-1]
        if layout == "heads first":
            return _Sizes(query.shape[0] * query.shape[1], query.shape[2], key.shape[2], width, depth)
        starts = self.first("cum_seq_q", "cu_seqlens_q", "cu_seq_q")
        if starts is None:
            return _Sizes(query.shape[0] * query.shape[2], query.shape[1], key.shape[1], width, depth)
        tokens, keys = (int(self.first(*names)) for names in (("max_q", "max_seqlen_q"), ("max_k", "max_seqlen_k")))
        return _Sizes((starts.numel() - 1) * query.shape[-2], tokens, keys, width, depth)


def _forward(form: str, layout: Layout = "heads first") -> Handler:
    def handler(call: Call) -> list[Piece]:
        arguments = _Arguments(call)
        sizes, name = arguments.sizes(layout), _prefix(form, arguments.causal)
        query, key, value = (arguments.first(operand) for operand in ("query", "key", "value"))
        scores, shares, kept = (sizes.on_chip(query.dtype) for _ in range(3))
        pieces = [
            Piece(MatMul(sizes.tokens, sizes.keys, sizes.width, sizes.products), (query, key), (scores,), name=f"{name}.scores"),
            Piece(
                Reduction("softmax", sizes.scores, sizes.scores, SOFTMAX_PASSES), (scores, *arguments.bias), (shares,),
                name=f"{name}.softmax",
            ),
        ]  # fmt: skip
        if arguments.dropout:
            pieces.append(
                Piece(ElementWise("dropout", sizes.scores, DROPOUT_OPERATIONS), (shares,), (kept,), name=f"{name}.dropout")
            )
            shares = kept
        results = tuple(t for t in call.outputs[:2] if t.numel())  # the output, and the logarithm of the sum of each row
        pieces.append(
            Piece(MatMul(sizes.tokens, sizes.depth, sizes.keys, sizes.products), (shares, value), results, name=f"{name}.mix")
        )
        return [_fused(piece) for piece in pieces]

    return handler


def _backward(form: str, layout: Layout = "heads first") -> Handler:
    def handler(call: Call) -> list[Piece]:
        arguments = _Arguments(call)
        sizes, prefix = arguments.sizes(layout), _prefix(form, arguments.causal)
        gradient, query, key, value, output = (
            arguments.first(*names) for names in (("grad_out", "grad_out_"), ("query",), ("key",), ("value",), ("out",))
        )
        scores, shares, grad_shares, grad_scores = (sizes.on_chip(query.dtype) for _ in range(4))
        rows = OnChip((sizes.products, sizes.tokens), torch.float32)
        d_query, d_key, d_value, *d_bias = call.outputs
        count, tokens, keys, width, depth = sizes
        steps: list[tuple[str, Body, tuple[Any, ...], tuple[Any, ...]]] = [
            ("rows", Reduction("sum", max(1, gradient.numel()), count * tokens), (gradient, output), (rows,)),
            ("scores", MatMul(tokens, keys, width, count), (query, key), (scores,)),
            (
                "shares", ElementWise("exp", sizes.scores, EXPONENTIAL_OPERATIONS),
                (scores, *arguments.tensors("logsumexp", "softmax_logsumexp", "lse"), *arguments.bias), (shares,),
            ),
        ]  # fmt: skip
        kept = shares
        if arguments.dropout:
            kept = sizes.on_chip(query.dtype)
            steps.append(("dropout", ElementWise("dropout", sizes.scores, DROPOUT_OPERATIONS), (shares,), (kept,)))
        softmax = ElementWise("softmax_backward", sizes.scores, SOFTMAX_BACKWARD_OPERATIONS)
        steps.append(("grad_shares", MatMul(tokens, keys, depth, count), (gradient, value), (grad_shares,)))
        written = (grad_scores, *(t for t in d_bias if t.dim() and t.numel()))
        steps.append(("grad_softmax", softmax, (grad_shares, shares, rows), written))
        steps.append(("grad_value", MatMul(keys, depth, tokens, count), (kept, gradient), (d_value,)))
        steps.append(("grad_query", MatMul(tokens, width, keys, count), (grad_scores, key), (d_query,)))
        steps.append(("grad_key", MatMul(keys, width, tokens, count), (grad_scores, query), (d_key,)))
        return [
            _fused(Piece(body, inputs, outputs, phase=Phase.GRAD_INPUT, name=f"{prefix}.{name}"))
            for name, body, inputs, outputs in steps
        ]

    return handler


def _prefix(form: str, causal: bool) -> str:
    return f"{'causal_' if causal else ''}{form}_attention"


def _fused(piece: Piece) -> Piece:
    piece.fused = True
    return piece


# fmt: off
ATTENTION: dict[str, Handler] = {
    "_scaled_dot_product_flash_attention":                       _forward("flash"),
    "_scaled_dot_product_flash_attention_for_cpu":               _forward("flash"),
    "_scaled_dot_product_efficient_attention":                   _forward("efficient"),
    "_scaled_dot_product_cudnn_attention":                       _forward("cudnn"),
    "_scaled_dot_product_fused_attention_overrideable":          _forward("fused"),
    "_scaled_dot_product_flash_attention_backward":              _backward("flash"),
    "_scaled_dot_product_flash_attention_for_cpu_backward":      _backward("flash"),
    "_scaled_dot_product_efficient_attention_backward":          _backward("efficient"),
    "_scaled_dot_product_cudnn_attention_backward":              _backward("cudnn"),
    "_scaled_dot_product_fused_attention_overrideable_backward": _backward("fused"),
    "_flash_attention_forward":                                  _forward("flash", "tokens first"),
    "_flash_attention_backward":                                 _backward("flash", "tokens first"),
    "_efficient_attention_forward":                              _forward("efficient", "tokens first"),
    "_efficient_attention_backward":                             _backward("efficient", "tokens first"),
    "trainyard.flex_attention":                                  _forward("flex"),
    "trainyard.flex_attention_backward":                         _backward("flex"),
    "torch_attn._varlen_attn":                                   _forward("flash", "tokens first"),
    "torch_attn._varlen_attn_backward":                          _backward("flash", "tokens first"),
}
# fmt: on
