"""Padding: token rows that exist only to fill a batch. Without loss on them and without attention to them, their gradient is zero
in every layer, so the padded share of the batch is zero rows of every G.

    batch = pad(sequences)                                       # to the longest; length=128 for a fixed length
    hidden = encoder(embed(batch.tokens), src_key_padding_mask=batch.absent)
    loss = batch.mean(cross_entropy(head(hidden).transpose(1, 2), batch.fill(targets), reduction="none"))

For a model that cannot be told which tokens to ignore, `gradient_of_real_tokens` stops the gradient of padding at one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainyard.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Padded:
    """Sequences in one tensor [batch, length, ...]; `real` [batch, length] is True where a token is one."""

    tokens: Tensor
    real: Tensor

    @property
    def absent(self) -> Tensor:
        """True at padding, as for torch's `key_padding_mask`."""
        return ~self.real

    @property
    def attention_mask(self) -> Tensor:
        """1 at tokens and 0 at padding, as for Hugging Face's models."""
        return self.real.long()

    @property
    def padded_share(self) -> float:
        """Share of token rows that are padding."""
        return 1 - int(self.real.sum()) / self.real.numel()

    def mean(self, losses: Tensor) -> Tensor:
        """Mean of one loss per token over the real ones."""
        if losses.shape != self.real.shape:
            raise BadInput(f"losses of shape {tuple(losses.shape)} do not fit tokens of shape {tuple(self.real.shape)}")
        return torch.where(self.real, losses, 0).sum() / self.real.sum()

    def fill(self, targets: Sequence[Tensor], value: float = 0) -> Tensor:
        """Targets of the same sequences, padded alike; -100 is what torch's cross entropy ignores by itself."""
        if [len(target) for target in targets] != self.real.sum(1).tolist():
            raise BadInput("targets must have as many entries as their sequences have tokens")
        return pad(targets, length=self.real.shape[1], value=value).tokens.to(self.real.device)

    def to(self, device: torch.device | str) -> Padded:
        return Padded(tokens=self.tokens.to(device), real=self.real.to(device))


def pad(sequences: Sequence[Tensor], *, length: int | None = None, value: float = 0) -> Padded:
    """Sequences of token numbers [tokens] or of vectors [tokens, features], filled up to the longest or to `length`.

    >>> batch = pad([torch.tensor([5, 6, 7]), torch.tensor([8])])
    >>> batch.tokens.tolist(), round(batch.padded_share, 3)
    ([[5, 6, 7], [8, 0, 0]], 0.333)
    """
    if not sequences or any(not isinstance(s, Tensor) or s.dim() < 1 or not len(s) for s in sequences):
        raise BadInput("pad needs at least one sequence, each a tensor of at least one token")
    if len({(s.shape[1:], s.dtype, s.device) for s in sequences}) > 1:
        raise BadInput("sequences must agree in everything but their length: features, element type, device")
    longest = max(len(s) for s in sequences)
    size = longest if length is None else length
    if size < longest:
        raise BadInput(f"a sequence of {longest} tokens does not fit length={length}: cut it first")
    first = sequences[0]
    tokens = first.new_full((len(sequences), size, *first.shape[1:]), value)
    real = torch.zeros(len(sequences), size, dtype=torch.bool, device=first.device)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = sequence
        real[row, : len(sequence)] = True
    return Padded(tokens=tokens, real=real)


def gradient_of_real_tokens(hidden: Tensor, real: Tensor) -> Tensor:
    """`hidden` [batch, length, ...] as it is; its gradient at padding is zero from here on back."""
    if hidden.shape[:2] != real.shape:
        raise BadInput(f"hidden of shape {tuple(hidden.shape)} does not fit tokens of shape {tuple(real.shape)}")
    shape = (*real.shape, *[1] * (hidden.dim() - 2))
    if hidden.requires_grad:
        hidden = hidden.view_as(hidden)  # a hook of its own: `hidden` may be used elsewhere too
        hidden.register_hook(lambda gradient: torch.where(real.view(shape), gradient, 0))
    return hidden
