"""Capture: one training step of a PyTorch model, as a Step.

A torch dispatch mode sees every op of forward, loss, backward and update while the model runs on the meta device: shapes without
values. In reading order:

- session: one capture from beginning to end; programs: what is run (a model with its loss and optimizer, or a user's function);
  frameworks: the loops of transformers and Lightning
- swap: replaces the user's tensors by stand-ins and restores them; closures: restores what the user's function holds; execution:
  runs ops on shapes; values: the values that are known beside the shapes; questions: answers for a program that reads values;
  locations: lines of the user's code; interface: devices; autocast: mixed precision
- recorder: writes each dispatched op down; frames: which layer it belongs to; tensor_table: which tensor is which; layouts: whether
  its tensors lie alike in memory; letters: which operand of a product is the weight, the activation or the gradient; updates: the
  optimizer's ops; phases: grad_input or grad_weight; distributed, world: process groups, DDP and FSDP2
- attention: the kernel of each scaled-dot-product attention, by torch's rules
- ops: what each torch op is, its handlers and shape rules
- merge: two captures at different batch sizes become one Step whose dimensions depend on the batch
- operands: the same recorder on a real training run, for `record_masks`

torch is imported only when something is captured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from trainyard.checks import suggests_keywords
from trainyard.errors import BadInput
from trainyard.ir import Step
from trainyard.lazy import require_torch
from trainyard.workloads.capture.ops.registry import Call, Piece, register
from trainyard.workloads.capture.world import world

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from trainyard.workloads.capture.programs import Example
    from trainyard.workloads.capture.values import Values
    from trainyard.workloads.zoo.recipe import Recipe

__all__ = ["Call", "Piece", "capture", "capture_recipe", "register", "world"]


@suggests_keywords
def capture(
    step: Any,
    inputs: Any = None,
    targets: Any = None,
    *,
    model: nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module] | None = None,
    loss: Callable[..., Tensor] | None = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    batch: int | None = None,
    name: str | None = None,
    real: bool = False,
    values: Mapping[str, Any] | None = None,
    world_size: int | None = None,
    attention: Literal["sdpa", "math"] = "sdpa",
    device: Literal["cuda", "cpu"] = "cuda",
) -> Step:
    """One training step of a model as a Step; the model and its optimizer are left as they were.

    `capture(model, inputs, targets, loss=..., optimizer=...)` runs `model(*inputs)` (a dictionary is passed by keyword),
    `loss(output, targets)`, backward and the optimizer's step; without an optimizer the step ends with the gradients, and a model
    that returns its own loss needs no `loss`. `batch` is the first dimension of the tensors that hold samples; if no tensor has it,
    the example is resized to it.

    `capture(train_step, model=model)` runs a training step of your own. If it takes an argument, that is the batch size, and the
    Step can be rebatched. `model` may be several.

    `capture(trainer)` takes the step of a Trainer of transformers or Lightning (`model=` its module), and `capture(module, batch)`
    that of a LightningModule: their data, precision, gradient accumulation, clipping and optimizer.

    A step that exchanges tensors between ranks (`torch.distributed`) is captured on a process group: that of the caller, or one of
    `world_size` ranks that lasts as long as the capture. It is the step of the first rank, with that rank's batch.

    `device` is the device on which the step is to be trained, on paper: `F.scaled_dot_product_attention` is recorded as the kernel
    that torch would take there (flash, memory efficient, or separate products), or always as separate products with
    `attention="math"`. `step.attention` says which.

    Only shapes are computed, and the values of constants, of small inputs and of what follows from them alone. A model that decides
    by other values is an error that names the line: `values={"model.py:120": True}` states the answer for that line (or for a
    layer, by its path), and `real=True` runs the step on the example inputs. What was assumed is in the Step's `notes`.
    """
    require_torch("capturing a model")
    import torch

    from trainyard.workloads.capture.attention.dispatch import AttentionDispatch, checked_options
    from trainyard.workloads.capture.frameworks import framework_step, is_framework_object, optimizers_of
    from trainyard.workloads.capture.programs import LoopStep, ModelStep
    from trainyard.workloads.capture.session import captured

    kernels = AttentionDispatch(*checked_options(attention, device))
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise BadInput(f"batch must be a positive whole number, got {batch!r}")
    if values is not None and not isinstance(values, Mapping):
        raise BadInput(f"values must map lines or layers to answers, as in values={{'model.py:120': True}}, got {values!r}")
    if world_size is not None:
        with world(world_size):
            return capture(
                step, inputs, targets, model=model, loss=loss, optimizer=optimizer, batch=batch, name=name, real=real,
                values=values, attention=attention, device=device,
            )  # fmt: skip
    step = getattr(step, "_orig_mod", step)  # a compiled model runs as what it was compiled from
    if is_framework_object(step, loss):
        with framework_step(step, inputs, model, optimizer, device) as loop:
            loop.name, loop.batch = name or loop.name, batch or loop.batch
            captured_step = captured(loop, real=real, stated=values, attention=kernels)
        return dataclasses.replace(captured_step, notes=(*captured_step.notes, *loop.notes))
    if isinstance(step, torch.nn.Module) and inputs is not None:
        example, size = _example(inputs, targets, batch)
        chosen = name or type(step).__name__
        program = ModelStep(step, example, batch=size, name=chosen, loss=loss, optimizers=optimizers_of(optimizer))
        return captured(program, real=real, stated=values, attention=kernels)
    if isinstance(step, torch.nn.Module) or not callable(step):
        raise BadInput("capture needs a model with inputs, or a training step with model=: capture(model, inputs, loss=...)")
    if model is None:
        raise BadInput("capture of a training step needs the model that it trains: capture(train_step, model=model)")
    roots = _roots(model)
    label = name or "+".join(type(root).__name__ for root in roots.values())
    return captured(LoopStep(step, roots, batch=batch, name=label), real=real, stated=values, attention=kernels)


def capture_recipe(recipe: Recipe, name: str, batch: int) -> Step:
    """The training step of a zoo recipe, built and run without a single value."""
    import torch

    from trainyard.workloads.capture.attention.dispatch import AttentionDispatch
    from trainyard.workloads.capture.programs import ModelStep
    from trainyard.workloads.capture.session import captured

    attention = AttentionDispatch("sdpa", "cuda") if recipe.attention == "sdpa" else None
    with torch.device("meta"):
        model = recipe.model()

    def example(size: int, values: Values | None) -> tuple[Any, Any]:
        with torch.device("meta"):
            return tuple(recipe.inputs(size)), tuple(recipe.targets(size))

    def loss(output: Any, targets: Any) -> Tensor:
        return recipe.loss(output, *targets)

    optimizer = recipe.optimizer(model.parameters())
    program = ModelStep(model, example, batch=batch, name=name, loss=loss, optimizers=[optimizer])
    return captured(program, real=False, attention=attention)


def _example(inputs: Any, targets: Any, batch: int | None) -> tuple[Example, int]:
    """A function that makes inputs and targets for a batch size, and the batch size of the first capture."""
    from trainyard.workloads.capture.programs import resized

    firsts = _sample_counts((inputs, targets))
    if not firsts:
        raise BadInput("inputs holds no tensor with a batch dimension: give the tensors that the model is called with")
    example_batch = batch if batch in firsts else firsts[0]
    if example_batch < 1:
        raise BadInput("the example inputs hold no sample (their first dimension is 0): give at least one")

    def example(size: int, values: Values | None) -> tuple[Any, Any]:
        return resized(inputs, example_batch, size, values), resized(targets, example_batch, size, values)

    return example, example_batch if batch is None else batch


def _sample_counts(tree: Any) -> list[int]:
    """The first dimension of every tensor, and the length of every list of samples."""
    from trainyard.workloads.capture.programs import is_sample_list, leaves

    if is_sample_list(tree):
        return [len(tree)]
    if isinstance(tree, Mapping):
        return [count for value in tree.values() for count in _sample_counts(value)]
    if type(tree) in (list, tuple):
        return [count for value in tree for count in _sample_counts(value)]
    return [tensor.shape[0] for _, tensor in leaves(tree, "") if tensor.dim()]


def _roots(model: nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    if isinstance(model, Mapping):
        return dict(model)
    if isinstance(model, list | tuple):
        return {str(index): module for index, module in enumerate(model)}
    return {"": model}  # type: ignore[dict-item]  # neither a mapping nor a sequence
