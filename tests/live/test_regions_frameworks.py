"""The overlay by blocks where people train: Trainer, accelerate, Lightning, peft, compiled blocks, DDP and FSDP2.

Each trains plainly and under the overlay, and must end with the same parameters, bit for bit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing import get_context
from pathlib import Path
from socket import socket
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trainyard as ty
from trainyard.errors import BadInput
from trainyard.live.paging.regions.pages import RegionPages
from trainyard.mapping.overlay.policy import Choice, Problem, with_cost

LAYERS, SURVEYED, STEPS = 3, 10, 13
REPLAYED_STEPS = 48
"""In which blocks are surveyed, compared and replayed."""


def alternating(problem: Problem, budget: int) -> Choice:
    return with_cost(problem, ["keep" if number % 2 else "recompute" for number in range(len(problem.saved))])


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["called", "replayed"])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of training; so many that blocks are replayed where that is allowed, which is said to be the fastest then."""
    if request.param:
        monkeypatch.setattr(RegionPages, "step_s", property(lambda pages: [9.0, 1.0 if pages._rival == "replayed" else 2.0]))
    return REPLAYED_STEPS if request.param else STEPS


@contextmanager
def blocks(model: nn.Module, is_overlaid: bool, steps: int = STEPS) -> Iterator[RegionPages | None]:
    if not is_overlaid:
        yield None
        return
    is_replayed = steps == REPLAYED_STEPS
    with ty.live.overlay(model, "1 GB", unit="blocks", policy=alternating, replay=is_replayed) as pages:
        assert isinstance(pages, RegionPages)
        yield pages
        assert bool(pages.replayed_calls) is is_replayed


def same(train: Callable[[bool], nn.Module]) -> None:
    """Trains twice and compares all parameters."""
    parameters = []
    for is_overlaid in (False, True):
        torch.manual_seed(0)
        model = train(is_overlaid)
        parameters.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(map(torch.equal, *parameters))


@pytest.fixture(scope="module", autouse=True)
def _torchvision() -> None:
    """transformers and Lightning import torchvision where it is installed."""
    from coverage_cases.torchvision_ops import provide

    provide()


def llama() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2,
        attention_dropout=0.1,
    )  # fmt: skip
    model: nn.Module = transformers.LlamaForCausalLM(config)
    return model.train()


def tokens(rows: int) -> dict[str, Tensor]:
    ids = torch.arange(rows * 8).reshape(rows, 8) % 64
    return {"input_ids": ids, "labels": ids.clone()}


def test_transformers_trainer_with_gradient_accumulation(tmp_path: Path, steps: int) -> None:
    transformers = pytest.importorskip("transformers")

    def train(is_overlaid: bool) -> nn.Module:
        rows = [{name: column[0] for name, column in tokens(1).items()} for _ in range(4 * steps)]
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=2, num_train_epochs=1,
            report_to=[], save_strategy="no", logging_strategy="no", use_cpu=True, seed=0, disable_tqdm=True,
        )  # fmt: skip
        model = llama()
        with blocks(model, is_overlaid, steps) as pages:
            transformers.Trainer(model=model, args=arguments, train_dataset=rows).train()
        assert pages is None or pages.passes["followed"] > steps
        return model

    same(train)


def test_accelerate(steps: int) -> None:
    accelerate = pytest.importorskip("accelerate")

    def train(is_overlaid: bool) -> nn.Module:
        accelerator = accelerate.Accelerator(cpu=True)
        model = llama()
        optimizer = torch.optim.AdamW(model.parameters())
        prepared, optimizer = accelerator.prepare(model, optimizer)
        with blocks(prepared, is_overlaid, steps):
            for _ in range(steps):
                optimizer.zero_grad()
                accelerator.backward(prepared(**tokens(2)).loss)
                optimizer.step()
        return model

    same(train)


def test_lightning(tmp_path: Path, steps: int) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = llama()

        def training_step(self, batch: dict[str, Tensor], number: int) -> Tensor:
            loss: Tensor = self.model(**batch).loss
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    def train(is_overlaid: bool) -> nn.Module:
        module = Module()
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path,
        )  # fmt: skip
        with blocks(module.model, is_overlaid, steps):
            trainer.fit(module, torch.utils.data.DataLoader([tokens(2)] * steps, batch_size=None))
        return module

    same(train)


def test_lora_by_peft(steps: int) -> None:
    peft = pytest.importorskip("peft")

    def train(is_overlaid: bool) -> nn.Module:
        model = peft.get_peft_model(llama(), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1))
        optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
        with blocks(model, is_overlaid, steps) as pages:
            for _ in range(steps):
                optimizer.zero_grad()
                model(**tokens(2)).loss.backward()
                optimizer.step()
        assert pages is None or (pages.plan is not None and len(pages.plan.variants) == LAYERS)
        return model

    same(train)


def test_a_cache_of_the_models_own_that_was_left_empty_is_refused_in_a_later_call() -> None:
    """Two segments, of which the second attends to the first: not without the keys and values of the first."""
    model = llama()
    with blocks(model, True):
        for _ in range(2):
            result = model(**tokens(2))
            result.loss.backward()
            with pytest.raises(BadInput, match=r"left empty.*give the first call a cache of your own"):
                model(**tokens(2), past_key_values=result.past_key_values)
        with torch.no_grad():
            filled = model(**tokens(2)).past_key_values
        model(**tokens(2), past_key_values=filled).loss.backward()


@pytest.mark.parametrize("replay", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("is_one_backward", [True, False])
def test_a_cache_that_the_program_gives_is_filled(is_one_backward: bool, replay: bool) -> None:
    """Two segments, of which the second attends to the first, and its gradients go there or end there."""
    transformers = pytest.importorskip("transformers")

    def train(is_overlaid: bool) -> nn.Module:
        model = llama()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        overlaid = (
            ty.live.overlay(model, "1 GB", unit="blocks", policy=alternating, replay=replay) if is_overlaid else nullcontext()
        )
        with overlaid:
            for _ in range(REPLAYED_STEPS // 2):
                optimizer.zero_grad()
                cache = transformers.DynamicCache()
                loss = model(**tokens(2), past_key_values=cache).loss
                if not is_one_backward:
                    loss.backward()
                    loss = torch.zeros(())
                    for layer in cache.layers:
                        layer.keys, layer.values = layer.keys.detach(), layer.values.detach()
                assert cache.get_seq_length() == 8
                (loss + model(**tokens(2), past_key_values=cache).loss).backward()
                optimizer.step()
        return model

    same(train)


def test_gradient_checkpointing_of_the_model_itself_goes_on_inside() -> None:
    def train(is_overlaid: bool) -> nn.Module:
        model: Any = llama()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with blocks(model, is_overlaid):
            for _ in range(STEPS):
                optimizer.zero_grad()
                model(**tokens(2)).loss.backward()
                optimizer.step()
        trained: nn.Module = model
        return trained

    same(train)


@torch.compile(backend="aot_eager", fullgraph=True)
def compiled_gelu(x: Tensor) -> Tensor:
    return 0.5 * nn.functional.gelu(x)


class WithCompiledFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + compiled_gelu(self.linear(x))


@pytest.mark.parametrize("options", [{"unit": "blocks"}, {"unit": "blocks", "replay": True}, {"unit": "tensors"}], ids=str)
def test_functions_inside_blocks_that_the_user_compiled_without_breaks(options: dict[str, Any]) -> None:
    model, x = nn.Sequential(*(WithCompiledFunction() for _ in range(3)), nn.Linear(8, 1)), torch.randn(4, 8)
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    with ty.live.overlay(model, "1 GB", **options) as pages:
        for _ in range(32 if "replay" in options else 13):
            model.zero_grad()
            model(x).square().sum().backward()
            for parameter, gradient in zip(model.parameters(), expected, strict=True):
                assert parameter.grad is not None
                torch.testing.assert_close(parameter.grad, gradient)
    assert pages.passes["followed"]
    assert torch.equal(model(x), model(x)), "compiled code runs again"


def test_blocks_that_the_user_compiled_keep_their_compiled_call() -> None:
    def train(is_overlaid: bool) -> nn.Module:
        model = nn.Sequential(*(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(3)))
        for layer in model:
            layer.compile(backend="aot_eager")
        calls = [layer._compiled_call_impl for layer in model]
        with blocks(model, is_overlaid):
            for step in range(STEPS):
                torch.manual_seed(step)
                model(torch.randn(2, 5, 8)).square().mean().backward()
        assert [layer._compiled_call_impl for layer in model] == calls
        for parameter in model.parameters():
            parameter.data = parameter.grad
        return model

    same(train)


# -- two processes


def residual(width: int = 8) -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.TransformerEncoderLayer(width, 2, 16, dropout=0.1, batch_first=True) for _ in range(LAYERS))
    return nn.Sequential(*layers, nn.Linear(width, 2))


def distributed(kind: str, is_overlaid: bool, rank: int) -> list[Tensor]:
    """Parameters after training in this process group."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    model = residual()
    if kind == "fsdp2":
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    parallel: nn.Module = DistributedDataParallel(model) if kind == "ddp" else model
    optimizer = torch.optim.SGD(parallel.parameters(), 0.1)
    torch.manual_seed(rank)
    with blocks(parallel, is_overlaid) as pages:
        for _ in range(STEPS):
            optimizer.zero_grad()
            parallel(torch.randn(2, 5, 8)).square().mean().backward()
            optimizer.step()
    assert pages is None or pages.passes["followed"] == STEPS - SURVEYED
    full = (parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter for parameter in model.parameters())
    return [parameter.detach().clone() for parameter in full]


def process(rank: int, port: str) -> None:
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    for kind in ("ddp", "fsdp2"):
        plain, overlaid = (distributed(kind, is_overlaid, rank) for is_overlaid in (False, True))
        assert all(map(torch.equal, plain, overlaid)), kind
    dist.destroy_process_group()


def test_ddp_and_fsdp2_between_two_processes() -> None:
    run = subprocess.run([sys.executable, __file__], stderr=subprocess.PIPE, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr


if __name__ == "__main__":  # the processes fork when torch is imported, which takes most of the time
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        free_port = str(free.getsockname()[1])
    ranks = [get_context("fork").Process(target=process, args=(rank, free_port)) for rank in range(2)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    sys.exit(max(abs(one.exitcode or 0) for one in ranks))
