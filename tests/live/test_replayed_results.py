"""What replayed blocks hand out, to a loop that keeps it, to hooks inside and to other blocks, and how long its memory lasts."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from replayed_training import WIDTH, Stack, Trainer, compare, ending, replayed, stack
from trainyard.live.paging.regions.replay import passes as passes_module
from trainyard.live.paging.regions.replay.obstacles import rehearse
from trainyard.live.paging.signature import tensors_of

pytestmark = pytest.mark.usefixtures("small_heap")


def test_gradients_that_a_loop_keeps_are_not_overwritten(device: torch.device, variant: str) -> None:
    def loop(trainer: Trainer) -> None:
        kept: list[list[Tensor | None]] = []
        for _ in range(6):
            trainer.step()
            kept.append([parameter.grad for parameter in trainer.model.parameters()])
        trainer.collected += [gradient for gradients in kept for gradient in gradients if gradient is not None]

    assert compare(loop, device, variant).counts["replayed"] == 4 * 2  # the third pass teaches, the fourth is recorded once more


def test_gradients_that_a_loop_holds_while_more_is_added_to_them(device: torch.device, variant: str) -> None:
    """As a buffer of all gradients does: what `parameter.grad` is, it stays, until somebody sets it to None."""

    def loop(trainer: Trainer) -> None:
        kept: list[Tensor] = []
        for number in range(10):
            if number % 5 == 0:
                trainer.optimizer.zero_grad()
            elif number % 5 == 3:
                trainer.optimizer.zero_grad(set_to_none=False)
            trainer.loss().backward()
            kept += [parameter.grad for parameter in trainer.model.parameters() if parameter.grad is not None]
            trainer.collected += [gradient.clone() for gradient in kept]
            trainer.optimizer.step()

    compare(loop, device, variant)


def test_hidden_states_that_a_loop_keeps_are_not_overwritten(device: torch.device, variant: str) -> None:
    def loop(trainer: Trainer) -> None:
        kept: list[Tensor] = []
        model = trainer.model
        assert isinstance(model, Stack)
        model.watch = lambda turn, hidden: kept.append(hidden.detach()) if turn == 1 else None
        trainer.steps(6)
        trainer.collected += kept

    assert compare(loop, device, variant).counts["replayed"] == 4 * 2


def test_hidden_states_that_are_kept_in_one_pass_only(device: torch.device, variant: str) -> None:
    """When the pass was recorded, their memory was used again."""

    def loop(trainer: Trainer) -> None:
        kept: list[Tensor] = []
        model = trainer.model
        assert isinstance(model, Stack)
        trainer.steps(4)
        model.watch = lambda turn, hidden: kept.append(hidden.detach())
        trainer.step()
        model.watch = lambda turn, hidden: None
        trainer.collected += kept
        trainer.steps(2)
        trainer.collected += kept
        kept.clear()
        trainer.collected = [tensor.clone() for tensor in trainer.collected]
        trainer.steps(2)

    assert compare(loop, device, variant).counts["replayed"] >= 4 * 4


def test_gradients_of_hidden_states_that_are_kept(device: torch.device, variant: str) -> None:
    def loop(trainer: Trainer) -> None:
        kept: list[Tensor] = []
        model = trainer.model
        assert isinstance(model, Stack)
        trainer.steps(3)
        model.watch = lambda turn, hidden: hidden.register_hook(kept.append)
        trainer.steps(2)
        model.watch = lambda turn, hidden: None
        trainer.steps(2)
        trainer.collected += kept

    compare(loop, device, variant)


HELD: dict[str, Callable[[Tensor, list[Any]], Any]] = {
    "by name": lambda result, held: result,
    "in a dictionary": lambda result, held: {"logits": result, "loss": result.mean()},
    "all of them": lambda result, held: [*held, result],
    "detached": lambda result, held: result.detach(),
    "a view": lambda result, held: result[:, -1],
    "all views": lambda result, held: [*held, result.detach()[0]],
    "as numbers": lambda result, held: result.argmax(-1),
}


@pytest.mark.parametrize("name", HELD)
def test_results_that_a_loop_holds_while_the_next_pass_runs(name: str, device: torch.device, variant: str) -> None:
    """A loop at the level of a script holds what it has named.

    At most one pass is not replayed, the first that is in the way, or two, where what was recorded is held for good.
    """

    def loop(trainer: Trainer) -> None:
        held: Any = []
        seen: list[Any] = []
        for _ in range(12):
            trainer.optimizer.zero_grad()
            result = trainer.model(trainer.batch())
            loss = result.float().square().mean()
            loss.backward()
            trainer.collected += [one.detach().clone() for one in tensors_of((held, result))]
            held = HELD[name](result, held)
            seen.append(loss.detach())
            trainer.collect()
            trainer.optimizer.step()
            if name != "by name":
                del result
        trainer.collected += [one.detach().clone() for one in tensors_of((held, seen))]

    passes = compare(loop, device, variant, ending, shape=(3, 4, 8))
    lost = {"detached": 1, "a view": 1, "all views": 2}.get(name, 0)
    assert passes.counts["replayed"] == 2 * (10 - lost)
    assert not passes_module._HELD


def test_a_result_that_is_one_number_is_handed_out_as_a_copy(device: torch.device) -> None:
    """So that whoever keeps all losses, detached, does not keep memory of recordings."""

    def loop(trainer: Trainer) -> None:
        model = trainer.model
        assert isinstance(model, Stack)
        for layer in model.layers:  # the second result, a mean
            layer.register_forward_hook(lambda module, arguments, results: trainer.collected.append(results[1][...]))
        trainer.steps(6)

    passes = compare(loop, device, "keep")
    assert passes.counts["replayed"] == 4 * 4


def test_a_result_that_is_held_does_not_keep_the_memory_of_recordings(device: torch.device) -> None:
    trainer = Trainer(ending(device), device, (3, 4, 8))
    with replayed(trainer.model, device) as passes:
        for _ in range(4):
            result = trainer.model(trainer.batch())
            result.square().mean().backward()
        assert passes.counts["replayed"] == 2 * 2
        expected = result.detach().clone()
    assert not passes_module._HELD
    assert torch.equal(result, expected)


def test_results_that_are_kept_with_their_graph_do_not_keep_recordings(device: torch.device) -> None:
    trainer, kept = Trainer(ending(device), device, (3, 4, 8)), []
    with replayed(trainer.model, device) as passes:
        for _ in range(6):
            result = trainer.model(trainer.batch())
            result.square().mean().backward()
            kept.append(result)
        recorded = [weakref.ref(call) for call in passes._all_calls]
        assert len(recorded) == 2
    assert all(reference() is None for reference in recorded)
    with pytest.raises(RuntimeError, match=r"a second time|went backward already"):
        kept[-1].sum().backward()


def test_a_gradient_that_is_kept_is_not_overwritten_by_the_one_that_is_passed_on(device: torch.device, variant: str) -> None:
    """A hook that was not there when the pass was recorded keeps what it gets and returns something else."""

    def loop(trainer: Trainer) -> None:
        kept: list[Tensor] = []
        model = trainer.model
        assert isinstance(model, Stack)

        def double(gradient: Tensor) -> Tensor:
            kept.append(gradient)
            return 2 * gradient

        trainer.steps(4)
        model.watch = lambda turn, hidden: hidden.register_hook(double)
        trainer.steps(4)
        model.watch = lambda turn, hidden: None
        trainer.steps(2)
        trainer.collected += kept

    compare(loop, device, variant)


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> tuple[Tensor, Tensor, None]:
        logits = self.mix(x)
        return logits, logits.softmax(-1), None


class Routed(nn.Module):
    """A layer of a few experts, whose router is given what the layer was given."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.norm = Router(), nn.LayerNorm(WIDTH)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        _, shares, _ = self.router(x, mask=mask)
        y = self.norm(x) * mask
        return x + sum(share * expert(y) for share, expert in zip(shares.split(1, -1), self.experts, strict=True))


class Experts(nn.Module):
    """Hooks collect what the routers compute, for a part of the loss, as in models of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers, self.last = nn.Linear(4, WIDTH), nn.ModuleList(Routed() for _ in range(3)), nn.Linear(WIDTH, 2)
        self.collected: list[Tensor] | None = None
        self.means: list[Tensor] = []
        for layer in self.layers:
            layer.router.register_forward_hook(self.collect)
            layer.norm.register_forward_hook(self.note)
            layer.router.register_forward_hook(self.compare, with_kwargs=True)

    def collect(self, module: nn.Module, arguments: tuple[Tensor, ...], result: tuple[Tensor, ...]) -> None:
        assert self.collected is not None
        self.collected.append(result[0])

    def note(self, module: nn.Module, arguments: tuple[Tensor, ...], result: Tensor) -> None:
        self.means.append(result.detach().abs().mean())

    def compare(self, module: nn.Module, arguments: tuple[Tensor, ...], keywords: dict[str, Tensor], result: Any) -> None:
        assert result[2] is None
        self.means.append((arguments[0].detach() * keywords["mask"]).mean())

    def forward(self, x: Tensor) -> Tensor:
        self.collected, mask = [], torch.full((WIDTH,), 0.5, device=x.device)
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x, mask)
        balance = sum(logits.logsumexp(-1).square().mean() for logits in self.collected)
        return self.last(x) + balance


def experts(device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    return Experts().to(device)


class Biased(nn.Module):
    """Returns the bias that it was given, as layers of T5 do, and a tensor of its own."""

    def __init__(self, *, owns: bool) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.bias: nn.Module | None = nn.Linear(WIDTH, WIDTH) if owns else None
        self.register_buffer("scale", torch.full((WIDTH,), 0.5))
        self.frozen = nn.Parameter(torch.full((WIDTH,), 2.0), requires_grad=False)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> dict[str, Any]:
        if bias is None:
            assert self.bias is not None
            bias = self.bias(x.mean(0))
        hidden = torch.tanh(self.up(self.norm(x)) + bias) * self.scale
        return {"hidden": x + hidden, "bias": bias, "of its own": (self.scale, self.up.bias, self.frozen), "more": bias}


class WithBias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.last = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 2)
        self.layers = nn.ModuleList(Biased(owns=not number) for number in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x, bias = self.embed(x), None
        for layer in self.layers:
            result = layer(x, bias)
            assert bias is None or result["bias"] is bias
            assert result["of its own"][0] is layer.scale
            assert result["of its own"][1] is layer.up.bias
            assert result["of its own"][2] is layer.frozen
            x, bias = result["hidden"] + result["of its own"][1] * result["of its own"][0], result["more"]
        return self.last(x) + bias.mean()


def test_blocks_that_return_what_they_were_given(device: torch.device, variant: str) -> None:
    def make(device: torch.device) -> nn.Module:
        torch.manual_seed(0)
        return WithBias().to(device)

    assert compare(lambda trainer: trainer.steps(6), device, variant, make).counts["replayed"] == 4 * 4


@pytest.mark.parametrize("accumulates", [False, True])
def test_hooks_that_look_at_what_modules_inside_return(accumulates: bool, device: torch.device, variant: str) -> None:
    """They see what they see in plain training, in the same order, and gradients go back through what they collect.

    A checkpoint calls them once more in backward, as that of torch does; a replayed one does not.
    """
    means: list[list[float]] = []  # in plain training, and with replays

    def loop(trainer: Trainer) -> None:
        for _ in range(5):
            trainer.optimizer.zero_grad()
            for _ in range(3 if accumulates else 1):
                trainer.loss().backward()
                trainer.collect()
            trainer.optimizer.step()
        assert isinstance(trainer.model, Experts)
        means.append([float(mean) for mean in trainer.model.means])

    passes = compare(loop, device, variant, experts)
    assert passes.counts["replayed"] == 3 * (13 if accumulates else 3)
    assert means[0] == means[1] if variant == "keep" else set(means[0]) == set(means[1])


def test_hooks_are_not_called_again_when_backward_calls_a_block_once_more(device: torch.device) -> None:
    def loop(trainer: Trainer) -> None:
        model = trainer.model
        assert isinstance(model, Experts)
        for layer in model.layers:
            layer.router.register_forward_hook(lambda *_: calls.append(0))
        trainer.steps(4)
        for _ in range(4):
            calls.clear()
            trainer.optimizer.zero_grad()
            loss = trainer.loss()
            loss.backward(retain_graph=True)
            trainer.collect()
            loss.backward()
            trainer.collect()
            del loss
            assert len(calls) == 3

    calls: list[int] = []
    passes = compare(loop, device, "keep", experts)
    assert passes.counts["replayed"] == 3 * (2 + 4)
    assert passes.was_repeated


def test_a_hook_beside_others_that_comes_later_is_noticed(device: torch.device, variant: str) -> None:
    def loop(trainer: Trainer) -> None:
        model = trainer.model
        assert isinstance(model, Experts)
        trainer.steps(4)
        hook = model.layers[1].norm.register_forward_hook(lambda module, arguments, result: 2 * result)
        trainer.steps(2)
        hook.remove()
        trainer.steps(2)

    assert compare(loop, device, variant, experts).counts["replayed"] == 3 * 4 + 2 * 2


def test_a_hook_that_returns_something_later_on_is_refused(device: torch.device) -> None:
    trainer, factor = Trainer(experts(device), device), list[float]()
    assert isinstance(trainer.model, Experts)
    trainer.model.layers[1].norm.register_forward_hook(lambda module, arguments, result: factor[0] * result if factor else None)
    with replayed(trainer.model, device):
        trainer.steps(4)
        factor.append(2.0)
        with pytest.raises(RuntimeError, match="write replay=False to train with such a hook"):
            trainer.step()
        factor.clear()
        trainer.steps(2)


def test_compiled_blocks_with_hooks_inside_are_called(device: torch.device) -> None:
    block = Routed().to(device)
    block.router.register_forward_hook(lambda *_: None)
    arguments = torch.randn(3, WIDTH, device=device), torch.ones(WIDTH, device=device)
    _, found, _ = rehearse(block, lambda: block(*arguments), (arguments, {}), device, compiles=True)
    assert found.obstacle == "is compiled with hooks on modules inside"
    _, found, _ = rehearse(block, lambda: block(*arguments), (arguments, {}), device)
    assert found.obstacle is None


def test_gradients_outlive_the_recordings(device: torch.device, variant: str) -> None:
    trainer = Trainer(stack(device), device)
    with replayed(trainer.model, device, variant):
        trainer.steps(4)
        expected = [parameter.grad.clone() for parameter in trainer.model.parameters() if parameter.grad is not None]
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    other = [torch.full((1000,), 3.0, device=device) for _ in range(100)]
    actual = [parameter.grad for parameter in trainer.model.parameters() if parameter.grad is not None]
    assert all(map(torch.equal, actual, expected))
    assert len(other) == 100


def test_memory_of_hidden_states_that_outlive_the_recordings_stays(device: torch.device) -> None:
    trainer, kept = Trainer(stack(device), device), []
    assert isinstance(trainer.model, Stack)
    trainer.model.watch = lambda turn, hidden: kept.append(hidden.detach())
    with replayed(trainer.model, device):
        trainer.steps(2)
        kept.clear()
        trainer.step()
        expected = [tensor.clone() for tensor in kept]
    gc.collect()
    assert all(map(torch.equal, kept, expected))
    assert len(passes_module._HELD) >= 1
    kept.clear()
    with replayed(trainer.model, device):
        trainer.steps(1)
    assert not passes_module._HELD


def test_expanded_arguments_and_views_of_results(device: torch.device, variant: str) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
            return tuple((x + self.mix(x) * mask).chunk(2, -1))

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            mask = (x.mean(-1, keepdim=True) > 0).to(x.dtype).expand(-1, -1, WIDTH)
            for block in self.blocks:
                left, right = block(x, mask)
                x = torch.cat([right, left], -1).transpose(0, 1).contiguous().transpose(0, 1)
            return x

    def make(device: torch.device) -> nn.Module:
        torch.manual_seed(0)
        return Halves().to(device)

    passes = compare(lambda trainer: trainer.steps(6), device, variant, make, shape=(3, 4, WIDTH))
    assert passes.counts["replayed"] == 3 * 4
