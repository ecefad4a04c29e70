"""Training loops of frameworks: what transformers' Trainer and Lightning do in one optimizer step, as a training step to capture.

No framework is imported. An object is recognised by the classes that it is built from: a `Trainer` of transformers (also one of a
library that extends it), a `LightningModule`, a `Trainer` of Lightning, and optimizers that are wrappers (accelerate, Lightning).
What they do between two updates becomes a program, at any batch size, with notes of what was assumed.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainyard.errors import BadInput, CaptureError
from trainyard.ir import Role
from trainyard.workloads.capture.programs import LoopStep, leaves, resized
from trainyard.workloads.capture.recorder import Recorder
from trainyard.workloads.capture.session import restored_random_state
from trainyard.workloads.capture.swap import restored_objects

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
WRAPPERS = ("AcceleratedOptimizer", "LightningOptimizer", "_FabricOptimizer")


class FrameworkStep(LoopStep):
    """One optimizer step of a framework: a function of micro batches, which are resized to the batch size."""

    def __init__(
        self, step: Callable[[Sequence[Any]], None], model: nn.Module, micro_batches: Sequence[Any], notes: tuple[str, ...] = ()
    ) -> None:
        sizes = [_samples(micro_batch) for micro_batch in micro_batches]

        def train_step(batch: int) -> None:
            step(micro_batches)

        super().__init__(train_step, {"": model}, batch=sizes[0], name=type(model).__name__)
        self.notes = notes
        if len(micro_batches) > 1:
            count = f"gradients of {len(micro_batches)} micro batches are accumulated for one update"
            self.notes = (*notes, f"{count}; the batch size is that of one micro batch")
        self._step, self._micro_batches, self._sizes = step, micro_batches, sizes

    def run(self, recorder: Recorder, batch: int, *, update: bool) -> None:
        recorder.frames.adapt = lambda args: self._adapt(recorder, args)
        values = None if recorder.executor.real else recorder.executor.evaluator.values
        with recorder.unrecorded():
            pairs = zip(self._micro_batches, self._sizes, strict=True)
            micro_batches = [resized(micro_batch, size, batch, values) for micro_batch, size in pairs]
        for path, tensor in leaves(micro_batches, "input"):
            if not recorder.tensor_table.contains(tensor):
                recorder.tensor_table.enter(tensor, Role.INPUT, path)
        self._step(micro_batches)


def unwrapped(optimizer: Any) -> Any:
    """The torch optimizer inside those that accelerate and Lightning wrap around it."""
    while type(optimizer).__name__ in WRAPPERS and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def is_framework_object(candidate: Any, loss: Any = None) -> bool:
    """Whether the object has a training loop of its own; a LightningModule that is given a loss is captured as any other model."""
    return (
        _is_transformers_trainer(candidate)
        or _is_lightning_trainer(candidate)
        or (_is_lightning_module(candidate) and loss is None)
    )


@contextmanager
def framework_step(candidate: Any, inputs: Any, model: Any, optimizer: Any, device: str) -> Iterator[FrameworkStep]:
    """The training step of a framework's object, which is as it was when the block ends; `device` is where it is to be trained."""
    with restored_random_state():
        if _is_transformers_trainer(candidate):
            with _trainer_step(candidate, inputs, optimizer, device) as program:
                yield program
        elif _is_lightning_trainer(candidate):
            module = model if model is not None else getattr(candidate, "lightning_module", None)
            if not _is_lightning_module(module):
                raise BadInput("capture of a Lightning Trainer needs its module: capture(trainer, batch, model=module)")
            with _lightning_step(module, candidate, inputs, optimizer, device) as program:
                yield program
        else:
            with _lightning_step(candidate, None, inputs, optimizer, device) as program:
                yield program


def _inherits(candidate: Any, name: str, packages: Sequence[str]) -> bool:
    return any(base.__name__ == name and base.__module__.split(".")[0] in packages for base in type(candidate).__mro__)


def _is_transformers_trainer(candidate: Any) -> bool:
    return _inherits(candidate, "Trainer", ("transformers",))


def _is_lightning_trainer(candidate: Any) -> bool:
    return _inherits(candidate, "Trainer", ("lightning", "pytorch_lightning"))


def _is_lightning_module(candidate: Any) -> bool:
    return _inherits(candidate, "LightningModule", ("lightning", "pytorch_lightning"))


# ---- transformers


@contextmanager
def _trainer_step(trainer: Any, inputs: Any, optimizer: Any, device: str) -> Iterator[FrameworkStep]:
    """Micro batches through `training_step`, clipped gradients, the optimizer; as `Trainer.train` does between two updates."""
    arguments, accelerator, model = trainer.args, trainer.accelerator, trainer.model
    with restored_objects([trainer, accelerator]):
        count = arguments.gradient_accumulation_steps
        batches, items = _trainer_batches(trainer, inputs, count)
        trainer.current_gradient_accumulation_steps = len(batches)
        if optimizer is None and trainer.optimizer is None:
            trainer.create_optimizer()
        chosen = unwrapped(optimizer if optimizer is not None else trainer.optimizer)
        precision = PRECISIONS.get(str(accelerator.mixed_precision))
        contexts = trainer.compute_loss_context_manager

        def in_precision() -> ExitStack:
            stack = ExitStack()
            stack.enter_context(contexts())
            if precision is not None:
                stack.enter_context(torch.autocast(device, precision))
            return stack

        trainer.compute_loss_context_manager = in_precision
        takes_items = "num_items_in_batch" in inspect.signature(trainer.training_step).parameters
        keywords = {"num_items_in_batch": items} if takes_items else {}

        def step(micro_batches: Sequence[Any]) -> None:
            if arguments.gradient_checkpointing:
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=arguments.gradient_checkpointing_kwargs)
            for micro_batch in micro_batches:
                trainer.training_step(model, micro_batch, **keywords)
            if arguments.max_grad_norm is not None and arguments.max_grad_norm > 0:
                nn.utils.clip_grad_norm_(model.parameters(), arguments.max_grad_norm)
            chosen.step()

        yield FrameworkStep(step, model, batches, _precision_notes(precision, device))


def _trainer_batches(trainer: Any, inputs: Any, count: int) -> tuple[list[Any], Any]:
    """The first micro batches of the training data, or the given one as often, and the items in all of them (None: not counted)."""
    if inputs is None and trainer.train_dataset is None:
        raise BadInput("this Trainer has no train_dataset: give inputs=, one batch as its data collator makes it")
    source = iter(trainer.get_train_dataloader()) if inputs is None else itertools.repeat(inputs)
    collect = getattr(trainer, "get_batch_samples", None)
    if collect is None:
        batches, items = list(itertools.islice(source, count)), None
    else:
        takes_device = len(inspect.signature(collect).parameters) > 2
        batches, items = collect(source, count, *([trainer.args.device] if takes_device else []))
    if not batches:
        raise BadInput("the Trainer's train_dataset makes no batch: give inputs=, one batch as its data collator makes it")
    return batches, items


# ---- Lightning


@contextmanager
def _lightning_step(module: Any, trainer: Any, inputs: Any, optimizer: Any, device: str) -> Iterator[FrameworkStep]:
    """`training_step`, backward, clipped gradients and the optimizers of a LightningModule, with the settings of its Trainer."""
    plugin: Any = getattr(trainer, "precision_plugin", None)
    if type(plugin).__name__ in ("HalfPrecision", "DoublePrecision"):
        raise BadInput(f"precision='{plugin.precision}' is the type of the weights: convert the module, module.to(dtype)")
    with restored_objects([module]):
        if trainer is not None:
            module.trainer = trainer
        batch = inputs if inputs is not None else _lightning_batch(module)
        optimizers = _lightning_optimizers(module) if optimizer is None else _flat_optimizers(optimizer)
        _detach_from_trainer(module, optimizers)
        dtype = PRECISIONS.get(str(getattr(plugin, "precision", "")))

        def in_precision() -> AbstractContextManager[Any]:
            if dtype is not None:
                return torch.autocast(device, dtype)
            return nullcontext() if plugin is None else plugin.train_step_context()

        if module.automatic_optimization:
            count = getattr(trainer, "accumulate_grad_batches", 1) or 1
            step = _automatic_step(module, trainer, optimizers, in_precision)
        else:
            count, step = 1, _manual_step(module, in_precision)
        yield FrameworkStep(step, module, [batch] * count, _precision_notes(dtype, device))


Context = Callable[[], AbstractContextManager[Any]]


def _automatic_step(
    module: Any, trainer: Any, optimizers: Sequence[Optimizer], in_precision: Context
) -> Callable[[Sequence[Any]], None]:
    if len(optimizers) > 1:
        raise BadInput(f"{len(optimizers)} optimizers need manual optimization: set automatic_optimization = False in the module")

    def step(micro_batches: Sequence[Any]) -> None:
        for index, micro_batch in enumerate(micro_batches):
            with in_precision():
                loss = _lightning_loss(_called_with(module.training_step, micro_batch, index, 0))
            module.backward(loss / len(micro_batches) if len(micro_batches) > 1 else loss)
        for optimizer in optimizers:
            module.on_before_optimizer_step(optimizer)
            _clip(optimizer, getattr(trainer, "gradient_clip_val", None), getattr(trainer, "gradient_clip_algorithm", None))
            optimizer.step()

    return step


def _manual_step(module: Any, in_precision: Context) -> Callable[[Sequence[Any]], None]:
    def step(micro_batches: Sequence[Any]) -> None:
        for index, micro_batch in enumerate(micro_batches):
            with in_precision():
                _called_with(module.training_step, micro_batch, index, 0)

    return step


def _lightning_batch(module: Any) -> Any:
    """The first batch of the module's own training data."""
    try:
        return next(iter(module.train_dataloader()))
    except Exception as error:
        reason = type(error).__name__
        raise BadInput(f"the module makes no training batch ({reason}): give one, capture(module, batch)") from error


def _lightning_optimizers(module: Any) -> list[Optimizer]:
    try:
        return _flat_optimizers(module.configure_optimizers())
    except BadInput:
        raise
    except Exception as error:
        raise CaptureError(
            f"configure_optimizers of {type(module).__name__} failed ({type(error).__name__}: {error}): "
            "give optimizer=, or the Trainer: capture(trainer, batch, model=module)"
        ) from error


def _flat_optimizers(configured: Any) -> list[Optimizer]:
    """The optimizers of what `configure_optimizers` may return: one, several, with schedules, or dictionaries of both."""
    configured = unwrapped(configured)
    if isinstance(configured, Optimizer):
        return [configured]
    if isinstance(configured, Mapping):
        return _flat_optimizers(configured.get("optimizer"))
    if isinstance(configured, list | tuple):
        return [optimizer for item in configured for optimizer in _flat_optimizers(item)]
    return []


def _detach_from_trainer(module: Any, optimizers: Sequence[Optimizer]) -> None:
    """Methods of a LightningModule that ask a running Trainer get answers of their own; logging is left out."""
    chosen = optimizers[0] if len(optimizers) == 1 else list(optimizers)
    module.__dict__.update(
        log=_nothing,
        log_dict=_nothing,
        optimizers=lambda use_pl_optimizer=True: chosen,
        lr_schedulers=_nothing,
        manual_backward=lambda loss, *args, **keywords: loss.backward(*args, **keywords),
        clip_gradients=lambda optimizer, gradient_clip_val=None, gradient_clip_algorithm=None: _clip(
            optimizer, gradient_clip_val, gradient_clip_algorithm
        ),
        toggle_optimizer=lambda optimizer: _require_gradients(optimizers, optimizer),
        untoggle_optimizer=lambda optimizer: _require_gradients(optimizers, None),
    )


def _nothing(*args: Any, **keywords: Any) -> None:
    pass


def _require_gradients(optimizers: Sequence[Optimizer], active: Optimizer | None) -> None:
    """Only the parameters of the active optimizer take gradients; None: those of all."""
    own = {id(p) for group in (active.param_groups if active is not None else []) for p in group["params"]}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.requires_grad_(active is None or id(parameter) in own)


def _clip(optimizer: Any, value: Any, algorithm: Any) -> None:
    if not value:
        return
    parameters = [p for group in unwrapped(optimizer).param_groups for p in group["params"]]
    if algorithm is not None and str(getattr(algorithm, "value", algorithm)) == "value":
        nn.utils.clip_grad_value_(parameters, value)
    else:
        nn.utils.clip_grad_norm_(parameters, value)


def _lightning_loss(output: Any) -> Tensor:
    loss = output.get("loss") if isinstance(output, Mapping) else output
    if not isinstance(loss, Tensor):
        raise CaptureError(f"training_step returned {type(output).__name__}: return the loss, or a dictionary with 'loss'")
    return loss


def _called_with(function: Callable[..., Any], *arguments: Any) -> Any:
    """The function with as many of the arguments as it takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return function(*arguments)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return function(*arguments[: len(positional)])


# ---- shared


def _precision_notes(dtype: torch.dtype | None, device: str) -> tuple[str, ...]:
    return (
        ()
        if dtype is None
        else (f"mixed precision of the training loop: autocast to {str(dtype).removeprefix('torch.')} on {device}",)
    )


def _samples(batch: Any) -> int:
    """The samples of a batch: the first dimension of its first tensor."""
    for _, tensor in leaves(batch, ""):
        if tensor.dim():
            return tensor.shape[0]
    raise BadInput("the batch holds no tensor with a batch dimension: give inputs=, one batch as the training loop takes it")


def optimizers_of(optimizer: Any) -> list[Any]:
    """The argument `optimizer=` of capture: none, one or several, each without its wrapper."""
    if optimizer is None:
        return []
    several: Iterable[Any] = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
    return [unwrapped(one) for one in several]
