"""The layer and the phase of every aten op of a real training step, determined while it runs.

Layers in forward come from module hooks; in backward from the running autograd node, through the sequence number of its forward op.
Phases in backward follow the operands: gradient x parameter is grad_input; other ops of a node that feeds a parameter are
grad_weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from trainyard.ir.step import Phase

LOSS_LAYER = "loss"
Shares = tuple[tuple[str, float], ...]
Timer = Callable[[int], AbstractContextManager[Any]]

# fmt: off
_SHORT = {
    torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int64: "int64",
    torch.int32: "int32", torch.int16: "int16", torch.int8: "int8", torch.uint8: "uint8", torch.bool: "bool",
}
# fmt: on


@dataclass(frozen=True, slots=True)
class DispatchedOp:
    """One aten op that ran: `layers` share its time (several only where one kernel updates many parameters)."""

    name: str
    layers: Shares
    phase: Phase
    recompute: bool
    operands: tuple[str, ...]
    results: tuple[str, ...]
    macs: int


class Attribution(TorchDispatchMode):
    """Numbers the ops of one training step and runs each inside `timer(number)`.

    Drive it by entering `phase(...)` around forward, loss, backward and update, and by calling `index_graph` before backward.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, timer: Timer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the base class is untyped
        self.ops: list[DispatchedOp] = []
        self._timer = timer
        self._optimizer = optimizer
        self._names = _parameter_names(model)
        self._layer_of_parameter = {parameter: name.rpartition(".")[0] for parameter, name in self._names.items()}
        self._phase = Phase.FORWARD
        self._backward = False
        self._stack: list[str] = [""]
        self._latest: Shares = (("", 1.0),)
        # Layer of an autograd node, and whether it was made from parameters alone: by sequence number while forward runs, by node
        # from then on, since a recomputation in backward's own thread counts its nodes anew.
        self._forward_nodes: dict[int, tuple[str, bool]] = {}
        self._recomputed_nodes: dict[int, tuple[str, bool]] = {}
        self._nodes: dict[Any, tuple[str, bool]] = {}
        # Storages that hold parameters or what is computed from parameters alone (a cast, a transpose); kept alive, so that no
        # other tensor takes the address.
        self._derived: dict[int, Any] = {_key(parameter): parameter.untyped_storage() for parameter in self._names}
        self._owner: dict[int, str] = {}

    @contextmanager
    def phase(self, phase: Phase, *, backward: bool = False) -> Iterator[None]:
        self._phase, self._backward = phase, backward
        if phase is Phase.UPDATE:
            self._index_update()
        self._stack.append(LOSS_LAYER if phase is Phase.LOSS else "")
        try:
            yield
        finally:
            self._stack.pop()

    @contextmanager
    def modules(self, model: nn.Module) -> Iterator[None]:
        """Follows which module is running, in forward and in recomputation."""
        handles = []
        for path, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(lambda *_, path=path: self._stack.append(path)))
            handles.append(module.register_forward_hook(lambda *_: self._leave(), always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _leave(self) -> None:
        self._stack.pop()

    def index_graph(self, loss: Tensor) -> None:
        """Names the layer of every autograd node now, while sequence numbers are still unambiguous."""
        waiting = [loss.grad_fn]
        while waiting:
            node: Any = waiting.pop()
            if node is None or node in self._nodes:
                continue
            self._nodes[node] = self._origin(node, self._forward_nodes)
            waiting.extend(following for following, _ in node.next_functions)

    def _origin(self, node: Any, nodes: dict[int, tuple[str, bool]]) -> tuple[str, bool]:
        variable = getattr(node, "variable", None)
        if variable is not None and variable in self._layer_of_parameter:
            return self._layer_of_parameter[variable], True
        return nodes.get(node._sequence_nr(), (self._latest[0][0], False))

    def _of_node(self, node: Any) -> tuple[str, bool]:
        return self._nodes.get(node) or self._origin(node, self._recomputed_nodes)

    def _index_update(self) -> None:
        """Parameters, their gradients and the optimizer's state: whose update an op works on."""
        for parameter, layer in self._layer_of_parameter.items():
            state = self._optimizer.state.get(parameter, {})
            for tensor in (parameter, parameter.grad, *state.values()):
                if isinstance(tensor, Tensor):
                    self._owner[_key(tensor)] = layer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _computes(func):
            result = func(*args, **kwargs)
            self._follow(args, kwargs, result)
            return result
        if func is torch.ops.aten.convolution_backward.default and args[10][0] and args[10][1]:
            return self._convolution_backward(func, args, kwargs)
        return self._run(func, args, kwargs, None)

    def _convolution_backward(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
        """One op that computes two products: run as two, so that their kernels can be distinguished."""
        head, (_, _, bias) = args[:10], args[10]
        grad_input, _, _ = self._run(func, (*head, [True, False, False]), kwargs, Phase.GRAD_INPUT)
        _, grad_weight, grad_bias = self._run(func, (*head, [False, True, bias]), kwargs, Phase.GRAD_WEIGHT)
        return grad_input, grad_weight, grad_bias

    def _run(self, func: Any, args: Any, kwargs: Any, phase: Phase | None) -> Any:
        layers, derived_phase, recompute = self._layers_and_phase(args, kwargs)
        with self._timer(len(self.ops)):
            result = func(*args, **kwargs)
        self._follow(args, kwargs, result)
        self._latest = layers
        self.ops.append(
            DispatchedOp(
                name=func._schema.name.removeprefix("aten::"),
                layers=layers,
                phase=phase or derived_phase,
                recompute=recompute,
                operands=tuple(map(_describe, _tensors((args, kwargs)))),
                results=tuple(map(_describe, _tensors(result))),
                macs=_macs(func, args, kwargs, result),
            )
        )
        return result

    def _layers_and_phase(self, args: Any, kwargs: Any) -> tuple[Shares, Phase, bool]:
        if self._phase is Phase.UPDATE:
            return self._updated(args), Phase.UPDATE, False
        if not self._backward:
            return ((self._stack[-1], 1.0),), self._phase, False
        node: Any = torch._C._current_autograd_node()
        if node is None:  # two gradients of one tensor being added, or the seed of the loss
            return self._latest, Phase.GRAD_INPUT, False
        if torch.is_grad_enabled():  # only a checkpointed forward runs with gradients inside backward
            return ((self._stack[-1], 1.0),), Phase.FORWARD, True
        return ((self._of_node(node)[0], 1.0),), self._backward_phase(node, args, kwargs), False

    def _backward_phase(self, node: Any, args: Any, kwargs: Any) -> Phase:
        if self._of_node(node)[1]:
            return Phase.GRAD_WEIGHT
        to_parameter = [self._of_node(following)[1] for following, _ in node.next_functions if following is not None]
        if not any(to_parameter):
            return Phase.GRAD_INPUT
        if all(to_parameter):
            return Phase.GRAD_WEIGHT
        uses_parameter = any(_key(tensor) in self._derived for tensor in _tensors((args, kwargs)))
        return Phase.GRAD_INPUT if uses_parameter else Phase.GRAD_WEIGHT

    def _updated(self, args: Any) -> Shares:
        targets = [tensor for tensor in _first_tensors(args) if _key(tensor) in self._owner]
        if not targets:
            targets_anywhere = [tensor for tensor in _tensors(args) if _key(tensor) in self._owner]
            targets = targets_anywhere[:1]
        total = sum(tensor.numel() for tensor in targets)
        if not total:
            return self._latest
        shares: dict[str, float] = {}
        for tensor in targets:
            layer = self._owner[_key(tensor)]
            shares[layer] = shares.get(layer, 0.0) + tensor.numel() / total
        return tuple(shares.items())

    def _follow(self, args: Any, kwargs: Any, result: Any) -> None:
        """Passes ownership on: to results of an update, and to results computed from parameters alone."""
        if self._phase is Phase.UPDATE:
            sources, results = _first_tensors(args), list(_tensors(result))
            if len(sources) == len(results):
                for source, tensor in zip(sources, results, strict=True):
                    if (owner := self._owner.get(_key(source))) is not None:
                        self._owner[_key(tensor)] = owner
            return
        if self._backward and not torch.is_grad_enabled():
            return
        sequence = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]  # no stub: the number of the node just made
        inputs = list(_tensors((args, kwargs)))
        derived = bool(inputs) and all(_key(tensor) in self._derived for tensor in inputs)
        if derived:
            for tensor in _tensors(result):
                self._derived[_key(tensor)] = tensor.untyped_storage()
        nodes = self._recomputed_nodes if self._backward else self._forward_nodes
        nodes.setdefault(sequence, (self._stack[-1], derived))  # the op that made the node comes first


def _parameter_names(model: nn.Module) -> dict[nn.Parameter, str]:
    return {parameter: name for name, parameter in model.named_parameters()}  # a shared parameter keeps its first name


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _first_tensors(args: Sequence[Any]) -> list[Tensor]:
    """The first tensor, or the first list of tensors (an op over many parameters), of an op's arguments."""
    for value in args:
        tensors = list(_tensors(value))
        if tensors:
            return tensors
    return []


def _computes(func: Any) -> bool:
    """Views and bare allocations start no kernel."""
    schema = func._schema
    if schema.name.startswith("profiler::"):
        return False
    if schema.name.startswith("aten::") and any(word in schema.name for word in ("empty", "detach", "lift_fresh", "_unsafe_view")):
        return False
    return not any(out.alias_info is not None and not out.alias_info.is_write for out in schema.returns)


def _describe(tensor: Tensor) -> str:
    return f"{_SHORT.get(tensor.dtype, str(tensor.dtype))}[{','.join(map(str, tensor.shape))}]"


def _macs(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    aten = torch.ops.aten
    if func is aten.convolution.default:  # own count: the registry takes the gradient of a grouped weight for a dense one
        return _convolution_macs(args[0] if args[6] else result, args[1])
    if func is aten.convolution_backward.default:
        return _convolution_macs(args[1] if args[7] else args[0], args[2]) * sum(map(bool, args[10][:2]))
    if func is aten._cudnn_rnn.default:
        return _recurrent_macs(args[0], args[1])
    if func is aten._cudnn_rnn_backward.default:
        return 2 * _recurrent_macs(args[0], args[1])
    if func._schema.name.startswith("aten::_scaled_dot_product_"):  # own count: the registry of older torch takes equal heads only
        return _attention_macs(args, backward=func._schema.name.endswith("_backward"))
    count = flop_registry.get(func.overloadpacket)
    if count is None:
        return 0
    return int(count(*args, **kwargs, out_val=result)) // 2


def _convolution_macs(spread: Tensor, weight: Tensor) -> int:
    """Elements of the side that the kernel is applied to, times the weights per element."""
    return int(spread.numel()) * math.prod(weight.shape[1:])


def _attention_macs(args: Sequence[Any], *, backward: bool) -> int:
    """Two products over all scores, with keys and values shared by groups of heads or not; five with gradients."""
    query, key, value = args[1:4] if backward else args[:3]
    scores: int = math.prod(query.shape[:-1]) * key.shape[-2]
    widths: int = 3 * query.shape[-1] + 2 * value.shape[-1] if backward else query.shape[-1] + value.shape[-1]
    return scores * widths


def _recurrent_macs(sequence: Tensor, weights: Sequence[Tensor]) -> int:
    """Every weight matrix once per position of the sequence."""
    return math.prod(sequence.shape[:2]) * sum(weight.numel() for weight in weights if weight.dim() == 2)
