"""`interleave(model)`: the layers of a PyTorch model get a backward pass that reads dY once; nothing else about the model changes.

A linear layer's backward pass computes dX and dW, and both products read dY, the gradient of its output. Where a layer is bound by
memory, which is where dY is large and the weight small, reading it once instead of twice is most of what there is to gain: early
1x1 convolutions, LoRA's B, narrow MLPs, small experts. Where a layer is bound by arithmetic, or too small to matter, it keeps
torch's own backward pass: the first call of a shape times both, which takes a while, and the faster one stays. While a model is
compiled nothing can be timed, and a rule of thumb decides (`choice`).
On a CPU the same pass runs in plain PyTorch: to check a model with, not to speed it up.
A whole step gains much less than these layers (docs/gpu.md). How much at most is printed before anything is changed, given an
example batch and a device: `interleave(model, inputs=batch, on=ty.machine("h200"))`.

    model = ty.live.interleave(model)      # in place: parameters, names, hooks, optimizer state stay what and where they are
    print(ty.live.gradient.report(model))  # which layers, and why not the others
    ...                                    # train as before: autocast, torch.compile, checkpoints, DDP
    ty.live.restore(model)

A layer is changed by changing its class to one that differs in `forward` alone. Copies, pickles and state_dicts keep that.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from trainyard.errors import BadInput
from trainyard.ir import Device
from trainyard.live.gradient import kernels
from trainyard.live.gradient.expectation import expected
from trainyard.live.gradient.function import checked_kernel, convolution_by, convolution_path, linear_by, linear_path
from trainyard.live.paging.signature import tensors_of
from trainyard.workloads.capture import capture

Model = TypeVar("Model", bound=nn.Module)
_CHANGED = (nn.Linear, nn.Conv2d)
WORTH_CHANGING = 1.02
"""The bound of a whole step's speedup below which a model is left as it is: measured steps vary by a per cent."""
_LOOKED_FOR = "nn.Linear, and nn.Conv2d with a 1x1 kernel, groups=1 and no padding"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The arguments of `interleave`, stored by every layer that it changed."""

    kernel: str
    deterministic: bool | None


class Interleaved:
    """A layer whose backward pass reads dY once. Each class is made from the layer's own one, which `restore` puts back."""

    interleaved_from: type[nn.Module]
    interleave_setting: Setting
    interleave_path: str | None = None  # how the gradients of the last call are computed; compiled calls leave it as it is

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _empty_layer, (self.interleaved_from,), self.__getstate__()


class InterleavedLinear(Interleaved, nn.Linear):
    """nn.Linear; dX, dW and db come from one pass over dY."""

    interleaved_from = nn.Linear

    def forward(self, input: Tensor) -> Tensor:
        how = self.interleave_setting
        path = linear_path(input, self.weight, self.bias, kernel=how.kernel, deterministic=how.deterministic)
        if not torch.compiler.is_compiling():
            self.__dict__["interleave_path"] = path
        return linear_by(path, input, self.weight, self.bias, how.deterministic)


class InterleavedConv2d(Interleaved, nn.Conv2d):
    """nn.Conv2d with a 1x1 kernel; dX, dW and db come from one pass over dY."""

    interleaved_from = nn.Conv2d

    def forward(self, input: Tensor) -> Tensor:
        how, stride = self.interleave_setting, (self.stride[0], self.stride[1])
        path = convolution_path(input, self.weight, self.bias, stride=stride, kernel=how.kernel, deterministic=how.deterministic)
        if not torch.compiler.is_compiling():
            self.__dict__["interleave_path"] = path
        return convolution_by(path, input, self.weight, self.bias, stride, how.deterministic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One line of a report: `note` says how a changed layer's last gradients were computed, or why a layer is left alone."""

    name: str
    kind: str
    interleaved: bool
    note: str


@dataclass(frozen=True, slots=True)
class Report:
    """Which layers of a model read dY once, and why the others do not; prints as a table."""

    layers: tuple[Layer, ...]

    @property
    def interleaved(self) -> tuple[str, ...]:
        return tuple(layer.name for layer in self.layers if layer.interleaved)

    @property
    def left_alone(self) -> dict[str, str]:
        return {layer.name: layer.note for layer in self.layers if not layer.interleaved}

    def __str__(self) -> str:
        head = f"{len(self.interleaved)} of {len(self.layers)} layers interleaved"
        rows = [(layer.name, layer.kind, "interleaved" if layer.interleaved else "left alone", layer.note) for layer in self.layers]
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
        lines = [
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip() for row in rows
        ]
        return "\n".join([head, *lines])


def interleave(
    model: Model,
    *,
    kernel: str = "auto",
    deterministic: bool | None = None,
    inplace: bool = True,
    inputs: Any = None,
    on: Device | None = None,
    force: bool = False,
) -> Model:
    """The model, with every nn.Linear and 1x1 nn.Conv2d computing its gradients in one pass over dY wherever that is faster.

    Losses stay what they were: the forward pass is untouched, the gradients equal torch's up to the order of summation. Only the
    class of those layers changes: parameters are the same objects under the same names, isinstance says nn.Linear; optimizers,
    hooks, state_dicts, DDP and LoRA adapters built of nn.Linear carry on. Do it before torch.compile.

    kernel: `auto` takes, call by call, the Triton kernel where it was measured to win and torch's own backward pass elsewhere; on a
    CPU a reference pass in plain PyTorch, for checking. `fused`, `reference` or `pair` insist on one.
    deterministic: equal bits in every run; None follows torch.use_deterministic_algorithms.
    inplace: False changes a deep copy. `report(model)` tells what was changed, `restore(model)` undoes it.
    inputs, on: an example batch and a device (`ty.machine("h200")`); what a whole step gains on it at most is printed first, and if
    that is less than 2 %, the model is left as it is, unless `force`.

    >>> model = interleave(nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3)))
    >>> print(report(model))
    1 of 2 layers interleaved
    0  Conv2d 3 -> 8, 1x1  interleaved  not run yet
    2  Conv2d 8 -> 8, 3x3  left alone   its kernel is 3x3: dX and dW of a window share dY in another way
    """
    if not isinstance(model, nn.Module):
        raise BadInput(f"interleave takes an nn.Module, not {type(model).__name__}")
    setting = Setting(kernel=checked_kernel(kernel), deterministic=deterministic)
    if (inputs is None) != (on is None):
        raise BadInput("interleave says what to expect of an example batch on a device: give both inputs= and on=, or neither")
    model = model if inplace else copy.deepcopy(model)
    if on is not None:
        gain = expected(capture(model, inputs, loss=_any_loss, name=type(model).__name__), on)
        print(gain)
        if gain.speedup < WORTH_CHANGING and not force:
            print("that is too little: the model is left as it is (force=True changes it)")
            return model
    changed = 0
    for _, module, reason in _candidates(model):
        if reason is None:
            if not isinstance(module, Interleaved):
                module.__class__ = _interleaved(type(module))
            module.__dict__["interleave_setting"] = setting
            changed += 1
    if not changed:
        raise BadInput(f"nothing to interleave in {type(model).__name__}: looked for {_LOOKED_FOR}{_reasons(model)}")
    return model


def _any_loss(output: Any) -> Tensor:
    """The loss that a model computed itself, or some number that depends on all of its output."""
    own = getattr(output, "loss", None)
    floats = [own] if isinstance(own, Tensor) else [tensor for tensor in tensors_of(output) if tensor.is_floating_point()]
    return torch.stack([tensor.float().mean() for tensor in floats]).sum()


def restore(model: Model) -> Model:
    """Undoes `interleave`: every layer has its own class again, and no trace is left."""
    for name, module in model.named_modules():
        if isinstance(module, Interleaved):
            if "interleaved_from" not in type(module).__dict__:
                raise BadInput(
                    f"layer '{name}' became a {type(module).__name__} after interleave: undo that first "
                    "(torch.nn.utils.parametrize.remove_parametrizations)"
                )
            module.__class__ = module.interleaved_from  # type: ignore[assignment]
            for key in ("interleave_setting", "interleave_path"):
                module.__dict__.pop(key, None)
    return model


def report(model: nn.Module) -> Report:
    """Every layer that `interleave` changes, or that resembles one that it changes."""
    layers = []
    for name, module, reason in _candidates(model):
        interleaved = isinstance(module, Interleaved)
        if interleaved:
            note = _PATHS.get(getattr(module, "interleave_path", None) or "", "not run yet") + _without_kernel(module)
        else:
            note = reason or "interleave(model) would change it"
        layers.append(Layer(name=name or "(the model)", kind=_kind(module), interleaved=interleaved, note=note))
    return Report(tuple(layers))


def _without_kernel(module: nn.Module) -> str:
    """The reason why a layer on a GPU cannot use the kernel; empty if it can."""
    weight = module.weight
    if not isinstance(weight, Tensor) or weight.device.type != "cuda" or kernels.available(weight.device):
        return ""
    return "; the kernel needs triton (pip install 'trainyard[triton]') and a GPU of compute capability 8.0 or more"


_PATHS = {"fused": "dY read once", "reference": "dY read once, in plain PyTorch", "pair": "torch's own backward pass"}


def _candidates(model: nn.Module) -> Iterator[tuple[str, nn.Module, str | None]]:
    """Layers by name, each with the reason why it must be left alone, or None."""
    parents = {id(child): module for module in model.modules() for child in module.children()}
    for name, module in model.named_modules():
        parent = parents.get(id(module))
        if isinstance(module, _CHANGED) or (_named_alike(module) and not _named_alike(parent)):
            yield name, module, _reason(module, parent)


def _named_alike(module: nn.Module | None) -> bool:
    """Whether a module is another kind of linear or convolution layer (quantized, transposed), not a container of layers."""
    alike = "Linear" in type(module).__name__ or "Conv" in type(module).__name__
    return module is not None and alike and not any(isinstance(part, _CHANGED) for part in module.modules())


def _reason(module: nn.Module, parent: nn.Module | None) -> str | None:
    if not isinstance(module, _CHANGED):
        return "neither an nn.Linear nor an nn.Conv2d"
    if parametrize.is_parametrized(module):
        return "its weight is parametrized: computed from others before every pass"
    if not isinstance(module.__dict__["_parameters"].get("weight"), nn.Parameter):
        return "its weight is not a parameter of its own: computed by a hook, or packed"
    if nn.parameter.is_lazy(module.weight):
        return "its shape is not known yet: run one batch first"
    if not module.weight.is_floating_point():
        return f"its weight is quantized ({str(module.weight.dtype).removeprefix('torch.')})"
    if "forward" in module.__dict__:
        return "its forward was replaced on the instance"
    if isinstance(parent, nn.MultiheadAttention):
        return "nn.MultiheadAttention uses its weight without calling it"
    if isinstance(module, Interleaved):
        return None
    return _reason_of_linear(module) if isinstance(module, nn.Linear) else _reason_of_convolution(module)


def _reason_of_linear(module: nn.Linear) -> str | None:
    return None if type(module).forward is nn.Linear.forward else f"{type(module).__name__} has a forward of its own"


def _reason_of_convolution(module: nn.Conv2d) -> str | None:
    kind = type(module)
    if kind.forward is not nn.Conv2d.forward or kind._conv_forward is not nn.Conv2d._conv_forward:
        return f"{kind.__name__} has a forward of its own"
    if module.kernel_size != (1, 1):
        return f"its kernel is {'x'.join(map(str, module.kernel_size))}: dX and dW of a window share dY in another way"
    if module.groups != 1:
        return f"it has {module.groups} groups"
    if module.padding not in ((0, 0), "valid", "same"):
        return "it pads its input"
    return None


_CLASSES: dict[type[nn.Module], type[nn.Module]] = {}


def _interleaved(kind: type[nn.Module]) -> type[nn.Module]:
    """The class that differs from `kind` in forward alone; one for each, so that copies are of the same class."""
    if kind not in _CLASSES:
        _CLASSES[kind] = _make(kind)
    return _CLASSES[kind]


def _make(kind: type[nn.Module]) -> type[nn.Module]:
    base = InterleavedLinear if issubclass(kind, nn.Linear) else InterleavedConv2d
    if kind is base.interleaved_from:
        return base
    return type(
        f"Interleaved{kind.__name__}",
        (base, kind),
        {"interleaved_from": kind, "__module__": kind.__module__, "__doc__": base.__doc__},
    )


def _empty_layer(kind: type[nn.Module]) -> nn.Module:
    """An empty layer for copy and pickle to fill: classes made at run time cannot be found by name."""
    interleaved = _interleaved(kind)
    return interleaved.__new__(interleaved)


def _kind(module: nn.Module) -> str:
    kind = module.interleaved_from if isinstance(module, Interleaved) else type(module)
    if isinstance(module, nn.Linear):
        return f"{kind.__name__} {module.in_features} -> {module.out_features}"
    if isinstance(module, nn.Conv2d):
        return f"{kind.__name__} {module.in_channels} -> {module.out_channels}, {'x'.join(map(str, module.kernel_size))}"
    return kind.__name__


def _reasons(model: nn.Module) -> str:
    reasons = report(model).left_alone
    return "".join(f"; '{name}': {note}" for name, note in list(reasons.items())[:3])
