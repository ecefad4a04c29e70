"""transformers: encoders, encoder-decoders, vision, audio, several modalities and time series, with configurations of two layers.

A row is a case: the model's class, what its configuration changes, and the function that makes a batch as its documentation does.
Every model returns its own loss, because the batch has labels. The rows are in transformers_text, transformers_vision and
transformers_audio.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from coverage_cases.case import Case, Training


class Row(NamedTuple):
    """A model's class, the changes to its configuration (a function where it has parts), and its batch."""

    model: str
    config: dict[str, Any] | Callable[[], Any]
    batch: Callable[..., dict[str, Any]]
    loss: Callable[[Any], Any] | None = None


def cases() -> list[Case]:
    from coverage_cases import transformers_audio, transformers_text, transformers_vision

    rows = {**transformers_text.ROWS, **transformers_vision.ROWS, **transformers_audio.ROWS}
    return [Case("transformers", name, partial(build, row)) for name, row in rows.items()]


def build(row: Row) -> Training:
    """A step as the documentation's own loop or Trainer runs it: the model's loss, AdamW."""
    import torch
    import transformers

    kind = getattr(transformers, row.model)
    config = row.config() if callable(row.config) else kind.config_class(**row.config)
    model = kind(config).train()
    batch = row.batch(model.config)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-5)
    return Training(model, batch, loss=row.loss, optimizer=optimizer)
