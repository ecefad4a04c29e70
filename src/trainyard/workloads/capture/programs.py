"""What is to be captured: a model with its loss and optimizer, or a user's own training step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn.utils.rnn import PackedSequence
from torch.optim import Optimizer

from trainyard.errors import BadInput, CaptureError
from trainyard.ir import Role
from trainyard.workloads.capture.closures import held_values
from trainyard.workloads.capture.recorder import Recorder
from trainyard.workloads.capture.swap import exchange
from trainyard.workloads.capture.values import META, Values, is_small

Example = Callable[[int, Values | None], tuple[Any, Any]]
"""Makes inputs and targets for a batch size: real ones, or shapes whose values, where they are kept, go into the given Values."""

BATCH_NAMES = ("batch", "batch_size", "n")


class Program(Protocol):
    """One training step that can be run at a batch size."""

    @property
    def roots(self) -> Mapping[str, nn.Module]: ...

    @property
    def name(self) -> str: ...

    @property
    def batch(self) -> int | None: ...

    @property
    def fixed(self) -> str:
        """Why the batch size cannot be changed; empty if it can."""
        ...

    @property
    def stateful_objects(self) -> Sequence[Any]:
        """Objects other than model and optimizer that keep state between steps: schedules and gradient scalers."""
        ...

    @property
    def other_modules(self) -> Sequence[nn.Module]:
        """Modules that the step uses in addition to the model: a criterion, a teacher, a running average of the weights."""
        ...

    @property
    def functions(self) -> Sequence[Callable[..., Any]]:
        """The user's functions that the step runs."""
        ...

    def run(self, recorder: Recorder, batch: int, *, update: bool) -> None: ...


class ModelStep:
    """Forward, loss, backward and update of a model."""

    def __init__(
        self,
        model: nn.Module,
        example: Example,
        *,
        batch: int,
        name: str,
        loss: Callable[..., Tensor] | None,
        optimizers: Sequence[Optimizer],
    ) -> None:
        self.roots, self.name, self.batch, self.fixed, self.stateful_objects = {"": model}, name, batch, "", ()
        self._model, self._example, self._loss, self._optimizers = model, example, loss, optimizers
        self.other_modules, self.functions = _other_modules(loss), () if loss is None else (loss,)
        _check_optimizers(model, optimizers)

    def run(self, recorder: Recorder, batch: int, *, update: bool) -> None:
        with recorder.unrecorded():
            inputs, targets = self._example(batch, None if recorder.executor.real else recorder.executor.evaluator.values)
        for role, label, tree in ((Role.INPUT, "input", inputs), (Role.TARGET, "target", targets)):
            for path, tensor in leaves(tree, label):
                if not recorder.tensor_table.contains(tensor):
                    recorder.tensor_table.enter(tensor, role, path)
        self._objective(_called(self._model, inputs), targets).backward()
        if update:
            for optimizer in self._optimizers:
                optimizer.step()

    def _objective(self, output: Any, targets: Any) -> Tensor:
        if self._loss is not None:
            value = self._loss(output) if targets is None else self._loss(output, targets)
        else:
            value = _own_loss(output)
        if not isinstance(value, Tensor) or value.numel() != 1:
            returned = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise CaptureError(
                f"a training step needs one number to minimise, but {'loss=' if self._loss else 'the model'} returned {returned}: "
                "give loss=, a function of the output and the targets that returns a scalar"
            )
        if not value.requires_grad:
            raise CaptureError("the loss depends on no parameter that requires a gradient: there is nothing to train")
        return value


class _Entered(torch.autograd.Function):
    """Stands, without values, for a tensor that the host computed. What it was computed from gets zeros as its gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, shape: Tensor) -> Tensor:
        ctx.like = tensor.new_zeros(()).expand(tensor.shape)
        return shape

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.like.clone(), None


class LoopStep:
    """A user's function that does forward, backward and update itself."""

    def __init__(self, train_step: Callable[..., Any], roots: Mapping[str, nn.Module], *, batch: int | None, name: str) -> None:
        self.roots, self.name = roots, name
        self._train_step, self.functions = train_step, (train_step,)
        self._keyword, default = _batch_parameter(train_step)
        self.batch = batch if batch is not None else default
        self.fixed = "" if self._keyword is not None else "the training step takes no batch size"
        if self._keyword is not None and self.batch is None:
            raise BadInput(f"the training step takes a batch size ({self._keyword}): give batch=")
        self.stateful_objects, self.other_modules = _stateful_objects(train_step), _other_modules(train_step)
        self._inputs: dict[Any, Tensor] = {}
        self._entered: list[Tensor] = []
        self._exchanged: list[tuple[Tensor, Tensor]] = []
        self._count = 0

    def run(self, recorder: Recorder, batch: int, *, update: bool) -> None:
        self._inputs.clear()
        self._count = 0
        recorder.frames.adapt = lambda args: self._adapt(recorder, args)
        try:
            if self._keyword is None:
                self._train_step()
            elif self._keyword in inspect.signature(self._train_step).parameters:
                self._train_step(**{self._keyword: batch})
            else:
                self._train_step(batch)
        finally:
            self._entered.clear()
            while self._exchanged:
                exchange(*self._exchanged.pop())

    def _adapt(self, recorder: Recorder, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Host tensors of floats that reach the model are replaced by their shapes; the first tensor gives the batch size."""
        for _, tensor in leaves(args, ""):
            if self.batch is None and tensor.dim():
                self.batch = tensor.shape[0]
        if recorder.executor.real:
            return args
        adapted: tuple[Any, ...] = mapped(args, lambda tensor: self._on_meta(recorder, tensor))
        return adapted

    def _on_meta(self, recorder: Recorder, tensor: Tensor) -> Tensor:
        if tensor.is_meta or not tensor.dim() or not tensor.is_floating_point() or is_functorch_wrapped_tensor(tensor):
            return tensor
        key = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.requires_grad)
        if key not in self._inputs:
            self._entered.append(tensor.detach())  # while it lives, no other tensor has its place in memory
            shape = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)
            if tensor.requires_grad and tensor.is_leaf:  # the step will ask it for its gradient
                exchange(tensor, shape.requires_grad_())
                self._exchanged.append((tensor, shape))
                shape = tensor
            elif tensor.requires_grad:
                shape = _Entered.apply(tensor, shape)  # type: ignore[no-untyped-call]
            self._inputs[key] = shape
            recorder.tensor_table.enter(self._inputs[key], Role.INPUT, f"input.{self._count}")
            self._count += 1
        return self._inputs[key]


def _stateful_objects(train_step: Callable[..., Any]) -> list[Any]:
    """Learning rate schedules and gradient scalers among the names that a training step uses."""
    kinds = (torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
    return [value for value in held_values(train_step) if isinstance(value, kinds)]


def _other_modules(function: Any) -> list[nn.Module]:
    """The modules among the names that a function uses, or the module that it is."""
    return [value for value in (function, *held_values(function)) if isinstance(value, nn.Module)]


def _check_optimizers(model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    model_parameters = {id(p) for p in model.parameters()}
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise BadInput(f"optimizer= must be a torch optimizer over the model's parameters, got {type(optimizer).__name__}")
        if not any(id(p) in model_parameters for group in optimizer.param_groups for p in group["params"]):
            raise BadInput(f"{type(optimizer).__name__} holds no parameter of this model: build it from model.parameters()")


def _called(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    is_argument_list = isinstance(inputs, tuple | list) and not hasattr(inputs, "_fields")
    return model(*inputs) if is_argument_list else model(inputs)


def _own_loss(output: Any) -> Any:
    """A model that computes its own loss returns it, or an object that holds it."""
    if isinstance(output, Tensor):
        return output
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return output if loss is None else loss


def _batch_parameter(train_step: Callable[..., Any]) -> tuple[str | None, int | None]:
    """The parameter that takes the batch size, and its default."""
    try:
        parameters = inspect.signature(train_step).parameters
    except (TypeError, ValueError):
        return None, None
    required = [
        p.name for p in parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]  # fmt: skip
    if len(required) > 1:
        raise BadInput(f"a training step takes no argument, or the batch size; this one takes {', '.join(required)}")
    if required:
        return required[0], None
    named = [p for p in parameters.values() if p.name in BATCH_NAMES]
    if named and isinstance(named[0].default, int):
        return named[0].name, named[0].default
    return None, None


def leaves(tree: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of nested tuples, lists and mappings, each with its path."""
    if isinstance(tree, Tensor):
        yield path, tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, PackedSequence):
        yield path, tree.data
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from leaves(value, f"{path}.{index}" if len(tree) > 1 else path)


def mapped(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nest with every tensor changed; named tuples and mappings keep their types."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        changed = {key: mapped(value, change) for key, value in tree.items()}
        return changed if type(tree) is dict else type(tree)(changed)  # type: ignore[call-arg]  # mappings build from mappings
    if isinstance(tree, PackedSequence):
        return PackedSequence(change(tree.data), *tree[1:])  # its other parts are lengths, which steer the recurrence
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(value, change) for value in tree))
    if isinstance(tree, list | tuple):
        return type(tree)(mapped(value, change) for value in tree)
    return tree


def resized(tree: Any, old: int, new: int, values: Values | None) -> Any:
    """Tensors whose first dimension is `old` get `new` samples, the last one repeated: real ones, or shapes with their values.

    Of large floats the shape alone is kept. A list of `old` samples (images, or a dictionary for each) gets `new` of them.
    """

    def change(tensor: Tensor) -> Tensor:
        grows = tensor.dim() > 0 and tensor.shape[0] == old and old != new
        size = torch.Size((new, *tensor.shape[1:])) if grows else tensor.shape
        is_kept = not tensor.is_meta and (values is None or is_small(tensor) or not tensor.is_floating_point())
        value = tensor.detach() if is_kept else None
        if value is not None and grows:
            value = value[:new] if new <= old else torch.cat([value, *[value[-1:]] * (new - old)])
        if values is None and value is not None:
            return (value if grows else value.clone()).requires_grad_(tensor.requires_grad)
        shape = torch.empty_strided(size, _strides(tensor, size), dtype=tensor.dtype, device=META)
        if values is not None and value is not None:
            values.put(shape, value.cpu(), shared=True)
        return shape.requires_grad_(tensor.requires_grad)

    def copied(tensor: Tensor) -> Tensor:
        return resized(tensor, -1, -1, values)  # type: ignore[no-any-return]

    def visit(branch: Any) -> Any:
        if isinstance(branch, Mapping):
            changed = {key: visit(value) for key, value in branch.items()}
            return changed if type(branch) is dict else type(branch)(changed)  # type: ignore[call-arg]  # as in mapped
        if is_sample_list(branch) and len(branch) == old:
            samples = branch[:new] if new <= old else [*branch, *[branch[-1]] * (new - old)]
            return [mapped(sample, copied) for sample in samples]
        if type(branch) in (list, tuple):
            return type(branch)(visit(item) for item in branch)
        return mapped(branch, change)

    return visit(tree)


def is_sample_list(tree: Any) -> bool:
    """Whether a list holds samples: dictionaries of tensors, or tensors that are not batches of the list's own length."""
    if type(tree) is not list or not tree:
        return False
    if all(isinstance(item, Mapping) and any(True for _ in leaves(item, "")) for item in tree):
        return True
    return all(isinstance(item, Tensor) and item.dim() > 1 and item.shape[0] != len(tree) for item in tree)


def _strides(tensor: Tensor, size: torch.Size) -> tuple[int, ...]:
    """Dense strides in the memory order of the tensor, so that channels_last stays."""
    if size == tensor.shape:
        return tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda d: (tensor.stride(d), -d))
    strides, step = [0] * tensor.dim(), 1
    for dimension in order:
        strides[dimension] = step
        step *= size[dimension]
    return tuple(strides)
