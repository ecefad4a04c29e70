"""Recording masks from a real training run: hooks on every layer that multiplies, for the training steps asked for.

A is looked at before the layer runs, because an in-place ReLU behind it overwrites what was saved. G is looked at by a hook on
the layer's output, put there before anything in place can happen to it.
"""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trainyard._version import VERSION
from trainyard.errors import BadInput, MaskError
from trainyard.workloads.masks import Masks, MaskWriter

if TYPE_CHECKING:
    import os

    from torch import Tensor, nn


def record_masks(
    train_step: Callable[..., Any],
    model: nn.Module,
    steps: Sequence[int] = (0,),
    *,
    path: str | os.PathLike[str] = "masks.safetensors",
    layers: Sequence[str] | None = None,
    samples: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Masks:
    """Runs `train_step` up to the last of `steps` and records the exact zero masks of A, W, G of each layer at those.

    `train_step()` does one optimizer step of `model`; it is passed the step's number if it takes an argument. `layers` limits
    recording to some layer paths; `samples` keeps that many samples of each batch, drawn with `seed`. Memory stays bounded by the
    mask of the largest tensor, one byte an element.
    """
    wanted = _wanted(steps)
    chosen = _layers(model, layers)
    about = {"trainyard": VERSION, "model": type(model).__name__, "seed": str(seed), "samples": str(samples)}
    writer = MaskWriter(path, about)
    takes_number = bool(inspect.signature(train_step).parameters)
    try:
        for number in _counted(range(wanted[-1] + 1), progress):
            if number in wanted:
                with _Recorder(writer, number, samples, seed).attached(chosen):
                    train_step(number) if takes_number else train_step()
            else:
                train_step(number) if takes_number else train_step()
        return writer.close()
    except BaseException:
        writer.discard()
        raise


def _wanted(steps: Sequence[int]) -> list[int]:
    if not steps or any(isinstance(s, bool) or not isinstance(s, int) or s < 0 for s in steps):
        raise BadInput(f"steps must be whole numbers of at least 0, got {list(steps)!r}")
    return sorted(set(steps))


def _layers(model: nn.Module, layers: Sequence[str] | None) -> dict[str, nn.Module]:
    """Leaf modules that own weights to multiply with."""
    from torch import nn

    from trainyard.errors import UnknownName

    owners = {
        path: module
        for path, module in model.named_modules()
        if next(module.children(), None) is None and any(p.dim() > 1 for p in module.parameters(recurse=False))
        if not isinstance(module, nn.Embedding | nn.EmbeddingBag)
    }
    if not owners:
        raise MaskError(f"{type(model).__name__} has no layer with a weight matrix: there is nothing to record")
    if layers is None:
        return owners
    chosen: dict[str, nn.Module] = {}
    for wanted in layers:
        below = {path: m for path, m in owners.items() if path == wanted or path.startswith(f"{wanted}.")}
        if not below:
            raise UnknownName("layer", wanted, owners)
        chosen.update(below)
    return chosen


class _Recorder:
    """The hooks of one recorded training step."""

    def __init__(self, writer: MaskWriter, step: int, samples: int | None, seed: int) -> None:
        self._writer, self._step, self._samples, self._seed = writer, step, samples, seed
        self._calls: dict[str, int] = {}

    @contextmanager
    def attached(self, layers: dict[str, nn.Module]) -> Iterator[None]:
        handles = []
        for path, module in layers.items():
            handles.append(module.register_forward_pre_hook(lambda module, inputs, path=path: self._before(path, module, inputs)))
            handles.append(module.register_forward_hook(lambda _module, _inputs, output, path=path: self._after(path, output)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _before(self, path: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        call = self._calls.get(path, 0)
        if tensor := _first_tensor(inputs):
            self._add(path, call, "A", tensor[0])
        if call == 0:
            matrices = [(name, p) for name, p in module.named_parameters(recurse=False) if p.dim() > 1]
            for index, (name, parameter) in enumerate(matrices):
                self._add(path, 0, "W" if index == 0 else f"W.{name}", parameter, sampled=False)

    def _after(self, path: str, output: Any) -> None:
        call = self._calls.get(path, 0)
        self._calls[path] = call + 1
        if (tensor := _first_tensor(output)) and tensor[0].requires_grad:
            tensor[0].register_hook(lambda gradient: self._add(path, call, "G", gradient))

    def _add(self, path: str, call: int, letter: str, tensor: Tensor, *, sampled: bool = True) -> None:
        kept: list[int] | None = None
        values = tensor.detach()
        if sampled and self._samples is not None and values.dim() > 0 and values.shape[0] > self._samples:
            kept = sorted(random.Random(self._seed).sample(range(values.shape[0]), self._samples))
            values = values[kept]
        self._writer.add(self._step, (path, call, letter), (values != 0).cpu().numpy(), kept)


def _first_tensor(value: Any) -> tuple[Tensor] | None:
    """The first floating tensor of a module's inputs or outputs (an LSTM hands over a tuple)."""
    import torch

    if isinstance(value, torch.Tensor):
        return (value,) if value.is_floating_point() else None
    if isinstance(value, tuple | list):
        return next((found for item in value if (found := _first_tensor(item))), None)
    return None


def _counted(numbers: range, progress: bool | None) -> Iterator[int]:
    if progress is None:
        progress = sys.stderr.isatty()
    if not progress:
        yield from numbers
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(numbers, description="recording masks", console=Console(stderr=True))
