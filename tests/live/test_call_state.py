"""A checkpointed block finds arguments that remember as they were at its first call: gradients are those of the plain call."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from trainyard.live.paging.regions.call_state import copied
from trainyard.live.paging.regions.checkpointing import checkpoint, selective

pytestmark = pytest.mark.usefixtures("small_heap")

WAYS: dict[str, Callable[..., Any]] = {"checkpoint": checkpoint, "selective": selective}


MEMORIES: dict[str, Callable[[], Any]] = {
    "list": list,
    "dict": dict,
    "object": lambda: SimpleNamespace(inner=SimpleNamespace(seen=[])),
}


NORMS = [nn.BatchNorm1d(6), nn.BatchNorm1d(6, momentum=None), nn.InstanceNorm1d(6, track_running_stats=True)]


class Pair(NamedTuple):
    first: list[int]
    second: Tensor


def remembering(x: Tensor, memory: Any) -> Tensor:
    """Adds up all that was ever seen, and remembers this call."""
    match memory:
        case list():
            memory.append(x.sin())
            seen = memory
        case dict():
            memory["seen"] = [*memory.get("seen", []), x.sin()]
            seen = memory["seen"]
        case _:
            memory.inner.seen = [*memory.inner.seen, x.sin()]
            seen = memory.inner.seen
    return torch.cat([one * one for one in seen]).exp() @ torch.ones(len(seen) * len(x))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", MEMORIES.values(), ids=MEMORIES)
@pytest.mark.parametrize("twice", [False, True])
def test_what_a_block_remembers_is_remembered_once(way: str, make: Callable[[], Any], twice: bool) -> None:
    def trained(call: Callable[..., Tensor]) -> tuple[Tensor, Any]:
        x, memory = torch.linspace(0, 1, 5, requires_grad=True), make()
        loss = call(x, memory) + call(x * 2, memory)
        if twice:
            loss.backward(retain_graph=True)
        loss.backward()
        assert x.grad is not None
        return x.grad, memory

    (plain, once), (gradient, again) = trained(remembering), trained(partial(WAYS[way], remembering))
    assert torch.equal(gradient, plain)
    assert str(again) == str(once)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("training", [True, False])
def test_a_batch_is_counted_once_into_running_statistics(norm: nn.Module, way: str, training: bool) -> None:
    found: list[list[Tensor]] = []
    for call in (None, WAYS[way]):
        torch.manual_seed(0)
        block = nn.Sequential(nn.Linear(4, 4), copy.deepcopy(norm), nn.Tanh(), nn.Linear(4, 4)).train(training)
        for _ in range(3):
            x = torch.randn(5, 6, 4)
            (block(x) if call is None else call(block.forward, x)).square().sum().backward()
        gradients = [parameter.grad for parameter in block.parameters() if parameter.grad is not None]
        found.append([*gradients, *block.buffers()])
    assert len(found[0]) >= 7
    assert all(map(torch.equal, *found))


def test_tensors_modules_and_numbers_are_shared_and_the_rest_is_copied() -> None:
    layer, weight = nn.Linear(2, 2), torch.ones(3)
    pair = Pair([1, 2], weight)
    before = copied((pair, {"layer": layer, "names": {"a"}}, 3, "text", None, torch.float32))
    pair.first.append(3)
    assert isinstance(before[0], Pair)
    assert before[0].first == [1, 2]
    assert before[0].second is weight
    assert before[1]["layer"] is layer
    assert before[2:] == (3, "text", None, torch.float32)


def test_an_object_that_refers_to_itself_is_copied_once() -> None:
    knot: dict[str, Any] = {"value": [1]}
    knot["self"] = knot
    twin = copied(knot)
    knot["value"].append(2)
    assert twin["self"] is twin
    assert twin["value"] == [1]


def test_what_cannot_be_copied_is_shared() -> None:
    opened = (number for number in range(3))
    assert copied([opened])[0] is opened


TINY = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
MODELS = {
    "Llama": {"num_key_value_heads": 2},
    "Gemma2": {"num_key_value_heads": 2, "head_dim": 8},
    "Falcon": {},
    "Mixtral": {"num_key_value_heads": 2, "num_local_experts": 2},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("prefix", [0, 3])
@pytest.mark.parametrize("name", MODELS)
def test_decoder_layers_with_a_cache_of_keys_and_values(name: str, prefix: int, way: str) -> None:
    """The cache is empty, as in training, or has a prefix, as in prefix tuning. transformers makes one unless told otherwise."""
    from coverage_cases.torchvision_ops import provide

    provide()  # transformers imports torchvision where it is installed
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(**TINY, **MODELS[name])
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    ids = torch.randint(0, 64, (2, prefix + 7))
    plain = gradients(model, ids, prefix)
    for block in next(module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == 2):
        block.forward = partial(WAYS[way], block.forward)
    assert len(plain) > 10
    assert all(map(torch.equal, gradients(model, ids, prefix), plain))


def gradients(model: nn.Module, ids: Tensor, prefix: int) -> list[Tensor]:
    model.zero_grad()
    options: dict[str, Any] = {}
    if prefix:
        with torch.no_grad():
            options["past_key_values"] = model(input_ids=ids[:, :prefix]).past_key_values
    model(input_ids=ids[:, prefix:], labels=ids[:, prefix:], **options).loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


class Recurrent(nn.Module):
    """Keeps a state from step to step, in an attribute that is not there before the first or in a buffer that is written."""

    def __init__(self, *, kind: str) -> None:
        super().__init__()
        self.kind, self.linear, self.inner = kind, nn.Linear(4, 4), nn.Module()
        self.inner.state = None
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.linear(x))
        match self.kind:
            case "replaced":
                y = y if self.inner.state is None else y * (1 + self.inner.state)
                self.inner.state = y.detach().mean(0)
            case "made":
                y = y * getattr(self, "last", 1.0)
                self.last = y.detach().mean(0) + 1
            case "through the graph":  # within a step; a step begins anew
                y = y if self.inner.state is None else y * self.inner.state
                self.inner.state = y.exp() if self.inner.state is None else None
            case "in place":
                self.mean.mul_(0.9).add_(y.detach().mean(0))
                y = y * self.mean.exp()
            case "in place and replaced":
                self.mean.add_(1.0)
                y = y * self.mean.clone()
                self.mean = self.mean + y.detach().mean(0)
            case "in place or replaced":  # one after the other
                self.calls = getattr(self, "calls", 0) + 1
                y = y * (1 + self.mean)
                if self.calls % 2:
                    self.mean.add_(y.detach().mean(0))
                else:
                    self.mean = y.detach().mean(0)
            case "counter":
                y = y * float(getattr(self, "calls", 0) % 3)
                self.calls = getattr(self, "calls", 0) + 1
        return y.exp().sin()


def state_of(module: nn.Module) -> list[Any]:
    return [module.inner.state, getattr(module, "last", None), getattr(module, "calls", None), *module.buffers()]  # type: ignore[union-attr]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "kind",
    [
        "replaced",
        "made",
        "through the graph",
        "in place",
        "in place and replaced",
        "in place or replaced",
        "counter",
        "spectral norm",
    ],
)
@pytest.mark.parametrize("twice", [False, True])
def test_a_module_that_keeps_a_state_of_its_own_trains_as_in_plain_calls(way: str, kind: str, twice: bool) -> None:
    def trained(wrap: Callable[[Callable[..., Tensor]], Callable[..., Tensor]]) -> list[Any]:
        torch.manual_seed(0)
        module = Recurrent(kind=kind)
        if kind == "spectral norm":
            nn.utils.parametrizations.spectral_norm(module.linear)
        call, gradients = wrap(module.forward), []
        for _ in range(5):
            module.zero_grad()
            loss = (call(torch.randn(3, 4)) + call(torch.randn(3, 4))).square().sum()
            if twice:
                loss.backward(retain_graph=True)
            loss.backward()
            gradients += [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]
        return gradients + state_of(module)

    plain, ours = trained(lambda call: call), trained(lambda call: partial(WAYS[way], call))
    assert len(plain) == len(ours)
    for one, other in zip(plain, ours, strict=True):
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other


@pytest.mark.parametrize("way", WAYS)
def test_the_last_step_is_not_held_by_a_block_that_keeps_its_result(way: str) -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.result = nn.Linear(4, 4), None

        def forward(self, x: Tensor) -> Tensor:
            self.result = self.linear(x).exp()
            return self.result.sin()

    module = Keeping()
    results: list[weakref.ref[Any]] = []
    for _ in range(4):
        loss = WAYS[way](module.forward, torch.randn(3, 4)).sum()
        results.append(weakref.ref(module.result))  # type: ignore[arg-type]
        gc.collect()
        assert [result() is None for result in results] == [True] * (len(results) - 1) + [False]
        loss.backward()
