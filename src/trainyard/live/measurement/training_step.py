"""One training step that can run over and over on a device: a user's module, copied, or a zoo recipe, built there."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor, nn

from trainyard.errors import BadInput
from trainyard.ir.step import Phase

if TYPE_CHECKING:
    from trainyard.workloads.zoo.recipe import Recipe

Precision = Literal["fp32", "tf32", "bf16", "fp16", "bf16-mixed", "fp16-mixed"]
Loss = Callable[..., Tensor]
Inputs = Tensor | Sequence[Tensor] | Mapping[str, Tensor] | None
Targets = Inputs
Optimizer = torch.optim.Optimizer | Callable[..., torch.optim.Optimizer]


class Watcher(Protocol):
    """Callbacks of a step: the phase that runs, and the loss when its graph is complete."""

    def phase(self, phase: Phase, *, backward: bool = False) -> AbstractContextManager[None]: ...

    def index_graph(self, loss: Tensor) -> None: ...


@dataclass(slots=True)
class TrainingStep:
    """Everything one optimizer step needs, on its device."""

    model: nn.Module
    inputs: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]
    loss: Loss
    optimizer: torch.optim.Optimizer
    device: torch.device
    names: tuple[str, ...] = ()
    autocast: torch.dtype | None = None

    @property
    def batch(self) -> int:
        return int(self.inputs[0].shape[0]) if self.inputs[0].dim() else 1

    def cast(self, precision: Precision | None) -> None:
        types = {"bf16": torch.bfloat16, "fp16": torch.float16}
        if precision in types:
            self.model.to(types[precision])
            self.inputs, self.targets = (
                tuple(t.to(types[precision]) if t.is_floating_point() else t for t in group)
                for group in (self.inputs, self.targets)
            )
        elif precision is not None and precision.endswith("-mixed"):
            self.autocast = types[precision.removesuffix("-mixed")]

    def set_optimizer(self, *, foreach: bool | None, capturable: bool) -> None:
        for group in self.optimizer.param_groups:
            if foreach is not None and "foreach" in group:
                group["foreach"] = foreach
            if capturable and "capturable" in group:
                group["capturable"] = True

    def __call__(self, watcher: Watcher | None = None) -> None:
        phase: Callable[..., AbstractContextManager[None]] = watcher.phase if watcher else _no_phase
        self.optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            with phase(Phase.FORWARD):
                named = dict(zip(self.names, self.inputs, strict=False))
                output = self.model(**named) if named else self.model(*self.inputs)
            with phase(Phase.LOSS):
                value = self.loss(output, *self.targets)
        if watcher:
            watcher.index_graph(value)
        with phase(Phase.GRAD_INPUT, backward=True):
            value.backward()
        with phase(Phase.UPDATE):
            self.optimizer.step()

    def _autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.autocast is None else torch.autocast(self.device.type, dtype=self.autocast)


def narrow_type(precision: Precision | None) -> torch.dtype | None:
    """The 16-bit type of a precision, if it has one."""
    types = {"bf16": torch.bfloat16, "fp16": torch.float16}
    return types.get((precision or "").removesuffix("-mixed"))


def _no_phase(phase: Phase, *, backward: bool = False) -> AbstractContextManager[None]:
    return nullcontext()


def torch_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadInput(f"device {name!r} is not one that torch knows (write 'cuda', 'cuda:1' or 'cpu')") from None
    if device.type not in ("cuda", "cpu"):
        raise BadInput(f"measuring works on 'cuda' and 'cpu', not on {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadInput("no CUDA GPU is visible to torch: measure with device='cpu', or on a machine with a GPU")
    return device


def own_step(
    model: nn.Module, inputs: Inputs, targets: Targets, loss: Loss | None, optimizer: Optimizer | None, device: torch.device
) -> TrainingStep:
    """A user's module, called as `capture` calls it: `loss(model(*inputs), targets)`; a dictionary of inputs goes by keyword."""
    if inputs is None or optimizer is None:
        raise BadInput("measuring a module needs inputs and optimizer= (and targets and loss=, unless it returns its own loss)")
    if isinstance(optimizer, torch.optim.Optimizer):
        copied, copied_optimizer = copy.deepcopy((model, optimizer))  # together: the copy updates the copied parameters
        copied.to(device)
        for state in copied_optimizer.state.values():
            state.update({key: value.to(device) for key, value in state.items() if isinstance(value, Tensor) and value.dim()})
    else:
        copied = copy.deepcopy(model).to(device)
        copied_optimizer = optimizer(copied.parameters())
    copied.train()
    names = tuple(inputs) if isinstance(inputs, Mapping) else ()
    return TrainingStep(
        copied, _moved(inputs, device), _moved(targets, device), _objective(targets, loss), copied_optimizer, device, names
    )


def _objective(targets: Targets, loss: Loss | None) -> Loss:
    """The loss of an output and of targets that were taken apart to be moved."""

    def objective(output: Any, *moved: Tensor) -> Tensor:
        if loss is None:
            value = output
        elif targets is None:
            value = loss(output)
        elif isinstance(targets, Mapping):
            value = loss(output, dict(zip(targets, moved, strict=True)))
        else:
            value = loss(output, moved[0] if isinstance(targets, Tensor) else moved)
        if not isinstance(value, Tensor) or value.dim():
            raise BadInput(f"the loss must be one number, got {_form(value)}: give loss= a function that returns a scalar tensor")
        return value

    return objective


def _form(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _moved(tensors: Inputs, device: torch.device) -> tuple[Tensor, ...]:
    if tensors is None:
        return ()
    group = (tensors,) if isinstance(tensors, Tensor) else tuple(tensors.values() if isinstance(tensors, Mapping) else tensors)
    return tuple(tensor.detach().to(device) for tensor in group)


def recipe_step(recipe: Recipe, batch: int | None, device: torch.device) -> TrainingStep:
    if batch is None:
        raise BadInput("measuring a recipe needs batch=")
    with torch.device(device):
        torch.manual_seed(0)
        model = recipe.model()
        return TrainingStep(
            model, recipe.inputs(batch), recipe.targets(batch), recipe.loss, recipe.optimizer(model.parameters()), device
        )


@contextmanager
def float32_products(precision: Precision | None) -> Iterator[None]:
    """Switches TF32 for products and convolutions alike, and back."""
    if precision not in ("fp32", "tf32"):
        yield
        return
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (products.allow_tf32, convolutions.allow_tf32)
    products.allow_tf32 = convolutions.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before
