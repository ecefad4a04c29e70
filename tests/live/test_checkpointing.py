"""A checkpointed call gives the gradients of the plain one, bit for bit, as torch's own checkpoint does, and frees what it held."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint as checkpoint_of_torch

from trainyard.live.paging.regions.checkpointing import checkpoint, is_saved, selective

Wrapped = Callable[[Callable[..., Any]], Callable[..., Any]]
WAYS: dict[str, Wrapped] = {
    "ours": lambda call: partial(checkpoint, call),
    "torch": lambda call: partial(checkpoint_of_torch, call, use_reentrant=False),
    "selective": lambda call: partial(selective, call),
    "nested": lambda call: partial(checkpoint, partial(checkpoint, call)),
    "torch's inside": lambda call: partial(checkpoint, partial(checkpoint_of_torch, call, use_reentrant=False)),
}


class Layer(nn.Module):
    """Dropout, a function that saves its output, a view, and a linear layer at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(6, 12), nn.Linear(12, 6), nn.LayerNorm(6)

    def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
        hidden = F.dropout(torch.tanh(self.up(self.norm(x))) * scale, 0.3)
        return x + self.down(hidden.view(-1, 12)).view_as(x)


def gradients(wrap: Wrapped, *, autocast: bool = False, twice: bool = False) -> list[Tensor]:
    torch.manual_seed(0)
    layers = [Layer() for _ in range(3)]
    calls = [wrap(layer) for layer in layers]
    x = torch.randn(4, 2, 6, requires_grad=True)
    scale = torch.rand(12, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16) if autocast else nullcontext():
        result = x
        for call in calls:
            result = call(result, scale=scale)
    loss = result.float().square().sum()
    if twice:
        loss.backward(retain_graph=True)
    loss.backward()
    found = [x, scale, *(parameter for layer in layers for parameter in layer.parameters())]
    return [tensor.grad for tensor in found if tensor.grad is not None] + [torch.rand(2)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", [{}, {"autocast": True}, {"twice": True}], ids=str)
def test_gradients_and_the_random_state_afterwards_are_those_of_the_plain_call(way: str, options: dict[str, bool]) -> None:
    expected = gradients(lambda call: call, **options)
    assert len(expected) == 21
    assert all(torch.equal(*pair) for pair in zip(gradients(WAYS[way], **options), expected, strict=True))


@pytest.mark.parametrize("way", ["ours", "torch"])
def test_second_derivatives_are_those_of_the_plain_call(way: str) -> None:
    def twice(wrap: Wrapped) -> Tensor:
        x = torch.linspace(-1, 1, 5, requires_grad=True)
        (first,) = torch.autograd.grad(wrap(lambda y: torch.tanh(y * y).sum())(x), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    assert torch.equal(twice(WAYS[way]), twice(lambda call: call))


def test_the_second_call_ends_where_the_last_saved_tensor_is_known() -> None:
    reached: list[str] = []

    def call(x: Tensor) -> Tensor:
        reached.append("begin")
        result = x.exp()
        reached.append("end")
        return result + 1

    checkpoint(call, torch.ones(3, requires_grad=True)).sum().backward()
    assert reached == ["begin", "end", "begin"]


@contextmanager
def without_collector() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("way", ["ours", "selective"])
def test_intermediate_tensors_are_freed_by_forward_and_by_backward_without_a_collector(way: str) -> None:
    held: list[weakref.ref[Any]] = []

    def call(x: Tensor) -> Tensor:
        hidden = torch.tanh(x @ x)
        held.append(weakref.ref(hidden))
        return (hidden.exp() @ x).sigmoid() * 2

    with without_collector():
        loss = WAYS[way](call)(torch.ones(3, 3, requires_grad=True)).sum()
        assert held[0]() is None
        loss.backward()
        assert held[1]() is None
        assert not [one for one in gc.get_objects() if type(one).__name__ in ("_Frame", "_Product")]


def test_a_selective_checkpoint_calls_products_once() -> None:
    counts: list[int] = []

    class Counted(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
            counts[-1] += function is torch.ops.aten.addmm.default
            return function(*arguments, **(keywords or {}))

    for wrap in (lambda call: call, WAYS["ours"], WAYS["selective"]):
        counts.append(0)
        with Counted():
            gradients(wrap)
    assert counts == [6, 9, 6]  # the last product of a block is not repeated by a checkpoint either


IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu_": lambda x: x.relu_(),
    "silu_": lambda x: F.silu(x, inplace=True),
    "mul_": lambda x: x.mul_(2.0),
    "a view": lambda x: x.view(-1).add_(1.0).view_as(x),
    "sigmoid_": lambda x: x.sigmoid_(),
}


@pytest.mark.parametrize("way", ["ours", "selective", "torch"])
@pytest.mark.parametrize("change", IN_PLACE)
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 4, 4)], ids=["matrices", "stacks of them, which torch.matmul reshapes"])
def test_blocks_that_work_in_place_have_the_gradients_of_the_plain_call(
    way: str, change: str, twice: bool, shape: tuple[int, ...]
) -> None:
    """A product's result is changed inside of the block, and once more what the block returns, by its reader."""

    def call(x: Tensor) -> Tensor:
        return F.dropout(IN_PLACE[change](x @ x) @ x, 0.5).exp() @ x

    def gradient(wrap: Wrapped) -> Tensor:
        torch.manual_seed(0)
        x = (0.5 * torch.randn(shape)).requires_grad_()
        loss = IN_PLACE[change](wrap(call)(x)).square().sum()
        if twice:
            loss.backward(retain_graph=True)
        loss.backward()
        assert x.grad is not None
        return x.grad

    assert torch.equal(gradient(WAYS[way]), gradient(lambda call: call))


def test_an_input_that_was_changed_in_place_is_an_error() -> None:
    x = torch.ones(3, requires_grad=True) * 2
    result = checkpoint(torch.exp, x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_a_call_that_computes_something_else_the_second_time_is_an_error() -> None:
    sizes = iter((3, 2))

    def call(x: Tensor) -> Tensor:
        return x[: next(sizes)].exp().sum()

    result = checkpoint(call, torch.ones(3, requires_grad=True))
    with pytest.raises(RuntimeError, match="it must compute the same for the same inputs"):
        result.backward()


def test_without_gradients_the_call_runs_once_and_saves_nothing() -> None:
    with torch.no_grad():
        assert checkpoint(torch.exp, torch.zeros(1, requires_grad=True)).grad_fn is None


@pytest.mark.parametrize("name", ["flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu"])
def test_attention_with_dropout_is_computed_again_so_that_later_dropouts_draw_the_same_numbers(name: str) -> None:
    operator = getattr(torch.ops.aten, f"_scaled_dot_product_{name}").default
    names = [argument.name for argument in operator._schema.arguments]
    place = names.index("dropout_p")
    for share in (0.0, 0.1):
        given = [*range(place), share]
        assert is_saved(operator, given, {}) is (share == 0.0)
        assert is_saved(operator, given[:place], {"dropout_p": share}) is (share == 0.0)
    assert is_saved(operator, [0, 1, 2], {})
    assert is_saved(torch.ops.aten.mm.default, [0, 1], {})
    assert not is_saved(torch.ops.aten.add.Tensor, [0, 1], {})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("way", WAYS)
def test_attention_and_layers_with_dropout_on_a_gpu(way: str) -> None:
    def gradients(wrap: Wrapped) -> list[Tensor]:
        torch.manual_seed(0)
        layers = [nn.TransformerEncoderLayer(64, 4, 128, dropout=0.2, batch_first=True).cuda() for _ in range(3)]
        x = torch.randn(4, 32, 64, device="cuda")
        for layer in layers:
            x = wrap(layer)(x)
        (x * torch.randn_like(x)).sum().backward()
        return [parameter.grad for layer in layers for parameter in layer.parameters() if parameter.grad is not None]

    expected, actual = gradients(lambda call: call), gradients(WAYS[way])
    assert len(actual) == len(expected)
    assert all(map(torch.allclose, actual, expected))
