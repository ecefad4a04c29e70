"""Recording masks from a real training run: the operands of every product with a weight, at chosen training steps.

An operand is read right after its product, because a later in-place ReLU may overwrite it. A layer that
multiplies several times in one call has no A, W or G of its own. A recurrent layer is recorded as a whole instead: `A.input` and
`A.output` (what its steps read), `G.output`, and each matrix by name (`W.weight_hh_l0`).
"""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainyard._version import VERSION
from trainyard.checks import suggests_keywords
from trainyard.errors import BadInput, MaskError
from trainyard.ir import TensorKey
from trainyard.masks.recorded import Masks, MaskWriter

if TYPE_CHECKING:
    import os

    from torch import Tensor, nn


@suggests_keywords
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
    recording to some layer paths; `samples` keeps that many samples of each batch, drawn with `seed`; the batch is the first
    dimension of the model's first input. Memory stays bounded by the mask of the largest tensor, one byte an element.
    """
    from trainyard.workloads.capture.operands import OperandWatch

    recorded = _checked_steps(steps)
    chosen = _layers(model, layers)
    about = {"trainyard": VERSION, "model": type(model).__name__, "seed": str(seed), "samples": str(samples)}
    writer = MaskWriter(path, about)
    takes_number = bool(inspect.signature(train_step).parameters)
    try:
        for number in _with_progress(range(recorded[-1] + 1), progress):
            if number in recorded:
                sampler = _Sampler(writer, number, chosen, samples, seed)
                watch = OperandWatch(model, sampler.add, sampler.forget)
                with watch.watching(), _batch_size_noted(model, sampler), _recurrent_layers(model, sampler, watch.unrecorded):
                    train_step(number) if takes_number else train_step()
            else:
                train_step(number) if takes_number else train_step()
        if writer.empty:
            raise MaskError(
                f"no layer of {type(model).__name__} left a mask: either the training step does not run the model, or each of its "
                "layers multiplies several times in one call"
            )
        return writer.close()
    except BaseException:
        writer.discard()
        raise


def _checked_steps(steps: Sequence[int]) -> list[int]:
    if not steps or any(isinstance(s, bool) or not isinstance(s, int) or s < 0 for s in steps):
        raise BadInput(f"steps must be whole numbers of at least 0, got {list(steps)!r}")
    return sorted(set(steps))


def _layers(model: nn.Module, layers: Sequence[str] | None) -> frozenset[str] | None:
    """Paths of the requested layers and of the layers inside them; None for all layers."""
    from trainyard.errors import UnknownName

    owners = [path for path, module in model.named_modules() if any(p.dim() > 1 for p in module.parameters(recurse=False))]
    if not owners:
        raise MaskError(f"{type(model).__name__} has no layer with a weight matrix: there is nothing to record")
    if layers is None:
        return None
    paths = [path for path, _ in model.named_modules()]
    chosen: set[str] = set()
    for name in layers:
        if not any(path == name or path.startswith(f"{name}.") for path in owners):
            raise UnknownName("layer", name, owners)
        chosen.update(path for path in paths if path == name or path.startswith(f"{name}."))
    return frozenset(chosen)


@dataclass(slots=True)
class _Sampler:
    """Writes the masks of one recorded training step. `batch` is the first dimension of the model's first input.

    A tensor may have several rows per sample (words, regions): all rows of a kept sample are kept.
    """

    writer: MaskWriter
    step: int
    layers: frozenset[str] | None
    samples: int | None
    seed: int
    batch: int = 0

    def add(self, key: TensorKey, tensor: Tensor) -> None:
        values = tensor.detach()
        if not self.batch and key[2].startswith("A") and values.dim() > 0:  # the step calls parts of the model
            self.batch = values.shape[0]
        if self.layers is not None and key[0] not in self.layers:
            return
        kept_samples: list[int] | None = None
        if not key[2].startswith("W") and self.samples is not None and values.dim() > 0:
            rows_per_sample = max(1, values.shape[0] // self.batch) if self.batch and values.shape[0] % self.batch == 0 else 1
            if values.shape[0] // rows_per_sample > self.samples:
                kept_samples = sorted(random.Random(self.seed).sample(range(values.shape[0] // rows_per_sample), self.samples))
                values = values[[sample * rows_per_sample + row for sample in kept_samples for row in range(rows_per_sample)]]
        self.writer.add(self.step, key, (values != 0).cpu().numpy(), kept_samples)

    def forget(self, key: TensorKey) -> None:
        self.writer.forget(self.step, key)


@contextmanager
def _batch_size_noted(model: nn.Module, sampler: _Sampler) -> Iterator[None]:
    """Sets the sampler's batch size from the model's first call."""
    from torch import Tensor

    def before(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        sizes = [value.shape[0] for value in (*inputs, *named.values()) if isinstance(value, Tensor) and value.dim() > 0]
        sampler.batch = sampler.batch or next(iter(sizes), 0)

    handle = model.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _recurrent_layers(
    model: nn.Module, sampler: _Sampler, unrecorded: Callable[[], AbstractContextManager[None]]
) -> Iterator[None]:
    """Hooks on recurrent layers: sequences in and out, the gradient of the sequence out, the matrices."""
    from torch import nn

    calls: dict[str, int] = {}

    def after(path: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        call = calls.get(path, 0)
        calls[path] = call + 1
        sequence = output[0]
        with unrecorded():
            for letter, tensor in (("A.input", inputs[0]), ("A.output", sequence)):
                sampler.add((path, call, letter), getattr(tensor, "data", tensor))
            for name, matrix in module.named_parameters(recurse=False):
                if call == 0 and matrix.dim() > 1:
                    sampler.add((path, 0, f"W.{name}"), matrix)

        def gradient(values: Tensor | None) -> None:
            if values is None:  # a fused layer whose last state alone is used
                return
            with unrecorded():
                sampler.add((path, call, "G.output"), values)

        if getattr(sequence, "requires_grad", False):
            sequence.register_hook(gradient)

    handles = [
        module.register_forward_hook(lambda module, inputs, output, path=path: after(path, module, inputs, output))
        for path, module in model.named_modules()
        if isinstance(module, nn.RNNBase)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _with_progress(numbers: range, progress: bool | None) -> Iterator[int]:
    if progress is None:
        progress = sys.stderr.isatty()
    if not progress:
        yield from numbers
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(numbers, description="recording masks", console=Console(stderr=True), transient=True)
