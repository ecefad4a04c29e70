"""Training loops of frameworks, as their objects are given to capture: transformers, Lightning, accelerate, peft."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trainyard.errors import BadInput, CaptureError
from trainyard.ir import Phase, Role, Step, Update
from trainyard.workloads.capture import capture
from trainyard.workloads.capture.frameworks import unwrapped
from trainyard.workloads.named import load

LAYERS = 2


@pytest.fixture(scope="module", autouse=True)
def _torchvision() -> None:
    """transformers and Lightning import torchvision where it is installed."""
    from coverage_cases.torchvision_ops import provide

    provide()


@pytest.fixture
def transformers() -> Any:
    return pytest.importorskip("transformers")


@pytest.fixture
def lightning() -> Any:
    return pytest.importorskip("lightning")


def llama(transformers: Any) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2
    )
    model: nn.Module = transformers.LlamaForCausalLM(config)
    return model


def tokens(rows: int = 2) -> dict[str, torch.Tensor]:
    ids = torch.arange(rows * 8).reshape(rows, 8) % 64
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


@pytest.fixture
def trainer(transformers: Any, tmp_path: Path) -> Callable[..., Any]:
    from accelerate.state import AcceleratorState

    def build(dataset: Any = None, **arguments: Any) -> Any:
        AcceleratorState._reset_state(reset_partial_state=True)
        options = {"per_device_train_batch_size": 2, "use_cpu": True, "report_to": [], **arguments}
        rows = [{name: tensor[0] for name, tensor in tokens(1).items()} for _ in range(16)] if dataset is None else dataset
        return transformers.Trainer(
            llama(transformers), transformers.TrainingArguments(str(tmp_path), **options), train_dataset=rows or None,
            data_collator=transformers.default_data_collator,
        )  # fmt: skip

    return build


def attributes(*owners: Any) -> list[dict[str, Any]]:
    return [dict(vars(owner)) for owner in owners]


def updated(step: Step) -> list[str]:
    """The parameters that the optimizer writes, each as often as it is written."""
    updates = [op for op in step.only(Phase.UPDATE) if isinstance(op.body, Update)]
    return sorted(step.tensors[t].name for op in updates for t in op.inputs if step.tensors[t].role is Role.PARAMETER)


# ---- transformers


def test_a_trainer_is_captured_as_its_model_with_its_optimizer(trainer: Callable[..., Any]) -> None:
    loop = trainer()
    step = capture(loop)
    plain = capture(loop.model, tokens(), optimizer=torch.optim.AdamW(loop.model.parameters()))
    assert (step.name, step.batch, step.macs, step.parameters) == ("LlamaForCausalLM", 2, plain.macs, plain.parameters)
    assert updated(step) == updated(plain)
    assert step.rebatchable, step.source
    assert not step.notes or "micro batches" not in " ".join(step.notes)


def test_a_trainer_is_left_as_it_was(trainer: Callable[..., Any]) -> None:
    loop = trainer(gradient_checkpointing=True, gradient_accumulation_steps=2)
    before, flags = attributes(loop, loop.accelerator), [module.training for module in loop.model.modules()]
    loaders = list(loop.accelerator._dataloaders)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    capture(loop)
    for owner, saved in zip((loop, loop.accelerator), before, strict=True):
        assert vars(owner).keys() == saved.keys()
        assert all(vars(owner)[name] is value for name, value in saved.items())
    assert loop.optimizer is None
    assert loop.accelerator._dataloaders == loaders
    assert [module.training for module in loop.model.modules()] == flags
    assert not loop.model.is_gradient_checkpointing
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]  # noqa: NPY002


def test_gradient_accumulation_multiplies_the_products_and_updates_once(trainer: Callable[..., Any]) -> None:
    one, four = capture(trainer()), capture(trainer(gradient_accumulation_steps=4))
    assert four.macs == 4 * one.macs
    assert updated(four) == updated(one)
    assert len(updated(one)) == len(list(trainer().model.parameters()))
    assert any("4 micro batches" in note for note in four.notes)


def test_the_batch_of_a_trainer_can_be_chosen(trainer: Callable[..., Any]) -> None:
    assert capture(trainer(), batch=6).macs == capture(trainer()).rebatch(6).macs == 3 * capture(trainer()).macs


def test_inputs_take_the_place_of_the_training_data(trainer: Callable[..., Any]) -> None:
    empty = trainer(dataset=())
    assert capture(empty, tokens(4)).batch == 4
    with pytest.raises(BadInput, match="no train_dataset: give inputs="):
        capture(empty)


def test_bf16_of_a_trainer_is_in_the_products(trainer: Callable[..., Any]) -> None:
    step = capture(trainer(bf16=True))
    types = {step.tensors[op.inputs[0]].dtype for op in step.only(Phase.FORWARD) if op.is_product and op.layer.endswith("proj")}
    assert types == {"bf16"}
    assert any("autocast to bfloat16 on cuda" in note for note in step.notes)


def test_gradient_checkpointing_of_a_trainer_runs_the_layers_again(trainer: Callable[..., Any]) -> None:
    plain, again = capture(trainer()), capture(trainer(gradient_checkpointing=True))
    layers = [op for op in plain.only(Phase.FORWARD) if ".layers." in op.layer]
    needed = sum(op.macs for op in layers if not op.layer.endswith("down_proj"))  # the last product of a layer is not needed again
    assert again.macs == plain.macs + needed


def test_a_trainer_with_an_overridden_loss_is_captured_with_it(transformers: Any, tmp_path: Path) -> None:
    class Doubled(transformers.Trainer):  # type: ignore[misc, name-defined]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
            first = model(**inputs).loss
            return first + model(**inputs).loss

    arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    model = llama(transformers)
    assert capture(Doubled(model, arguments), tokens()).macs == 2 * capture(model, tokens()).macs


# ---- Lightning


def module(lightning: Any, *, manual: bool = False, output: str = "loss", configured: str = "optimizer") -> Any:
    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
            self.automatic_optimization = not manual

        def training_step(self, batch: Any) -> Any:
            x, y = batch
            loss = F.cross_entropy(self.net(x), y)
            self.log("loss", loss, prog_bar=True)
            if manual:
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                self.clip_gradients(optimizer, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
                optimizer.step()
                return None
            return {"loss": loss} if output == "dictionary" else None if output == "nothing" else loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters())
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
            if configured == "steps of the trainer":
                return torch.optim.AdamW(self.parameters(), lr=1.0 / self.trainer.max_steps)
            if configured == "dictionary":
                return {"optimizer": optimizer, "lr_scheduler": schedule}
            return ([optimizer], [schedule]) if configured == "lists" else optimizer

    torch.manual_seed(0)
    return Module()


PAIR = (torch.zeros(4, 8), torch.zeros(4, dtype=torch.long))
MACS = 4 * (8 * 16 + 2 * 16 * 4) + 4 * (8 * 16 + 16 * 4)  # forward and weights of both layers, inputs of the second


@pytest.mark.parametrize("configured", ["optimizer", "dictionary", "lists"])
@pytest.mark.parametrize("output", ["loss", "dictionary"])
def test_a_lightning_module_is_captured_from_a_batch(lightning: Any, output: str, configured: str) -> None:
    subject = module(lightning, output=output, configured=configured)
    before = dict(vars(subject))
    step = capture(subject, PAIR)
    assert (step.macs, step.batch, step.rebatchable) == (MACS, 4, True)
    assert len(updated(step)) == 4
    assert vars(subject).keys() == before.keys()


def test_manual_optimization_runs_the_modules_own_update(lightning: Any) -> None:
    subject = module(lightning, manual=True)
    step = capture(subject, PAIR)
    assert step.macs == MACS
    assert updated(step) == ["net.0.bias", "net.0.weight", "net.2.bias", "net.2.weight"]
    assert "optimizers" not in vars(subject)


def test_a_lightning_trainer_adds_accumulation_clipping_and_precision(lightning: Any) -> None:
    subject = module(lightning)
    options = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    loop = lightning.Trainer(accumulate_grad_batches=3, gradient_clip_val=1.0, precision="bf16-mixed", **options)
    step = capture(loop, PAIR, model=subject)
    assert step.macs == 3 * MACS
    assert {step.tensors[op.inputs[0]].dtype for op in step.only(Phase.FORWARD) if op.is_product} == {"bf16"}
    assert len(step) > len(
        capture(lightning.Trainer(accumulate_grad_batches=3, precision="bf16-mixed", **options), PAIR, model=subject)
    )
    assert subject._trainer is None
    with pytest.raises(BadInput, match="needs its module"):
        capture(loop, PAIR)
    with pytest.raises(BadInput, match=r"precision='bf16-true' .* module.to\(dtype\)"):
        capture(lightning.Trainer(precision="bf16-true", **options), PAIR, model=subject)


def test_a_trainer_answers_what_the_optimizer_asks(lightning: Any) -> None:
    subject = module(lightning, configured="steps of the trainer")
    with pytest.raises(CaptureError, match=r"configure_optimizers of Module failed .*capture\(trainer, batch, model=module\)"):
        capture(subject, PAIR)
    loop = lightning.Trainer(max_steps=10, accelerator="cpu", logger=False, enable_checkpointing=False)
    assert capture(loop, PAIR, model=subject).macs == MACS
    assert capture(subject, PAIR, optimizer=torch.optim.SGD(subject.parameters(), lr=0.1)).macs == MACS


def test_errors_of_a_lightning_module_say_what_to_give(lightning: Any) -> None:
    with pytest.raises(CaptureError, match="training_step returned NoneType: return the loss"):
        capture(module(lightning, output="nothing"), PAIR)
    with pytest.raises(BadInput, match=r"makes no training batch .*capture\(module, batch\)"):
        capture(module(lightning))


def test_a_lightning_module_with_a_loss_is_a_model_as_any_other(lightning: Any) -> None:
    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(8, 4)

        def forward(self, x: Any) -> Any:
            return self.net(x)

    assert capture(Model(), *PAIR, loss=F.cross_entropy).macs == 2 * 4 * 8 * 4


def test_toggled_optimizers_train_their_own_parameters_alone(lightning: Any) -> None:
    class Adversarial(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.generator, self.critic = nn.Linear(8, 8), nn.Linear(8, 1)
            self.automatic_optimization = False

        def training_step(self, batch: Any, index: int) -> None:
            first, second = self.optimizers()
            self.toggle_optimizer(first)
            self.manual_backward(self.critic(self.generator(batch)).mean())
            first.step()
            self.untoggle_optimizer(first)
            self.toggle_optimizer(second)
            self.manual_backward(self.critic(self.generator(batch).detach()).mean())
            second.step()
            self.untoggle_optimizer(second)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.generator.parameters(), 0.1), torch.optim.SGD(self.critic.parameters(), 0.1)

    subject = Adversarial()
    step = capture(subject, torch.zeros(4, 8))
    gradients = [op.layer for op in step.only(Phase.GRAD_WEIGHT) if op.is_product]
    assert sorted(gradients) == ["critic", "generator"], "the critic's weights take no gradient from the generator's loss"
    assert all(p.requires_grad for p in subject.parameters())


# ---- accelerate


def test_the_optimizer_of_accelerate_is_unwrapped() -> None:
    accelerate = pytest.importorskip("accelerate")
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    plain = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    inner = torch.optim.AdamW(plain.parameters())
    model, optimizer = accelerator.prepare(plain, inner)
    assert unwrapped(optimizer) is inner
    assert unwrapped(inner) is inner
    step = capture(model, *PAIR, loss=F.cross_entropy, optimizer=optimizer)
    assert step.macs == MACS
    assert len(updated(step)) == 4
    assert {step.tensors[op.inputs[0]].dtype for op in step.only(Phase.FORWARD) if op.is_product} == {"bf16"}
    assert not inner.state


# ---- peft


def test_frozen_weights_of_a_low_rank_adaptation_make_no_weight_gradient(transformers: Any) -> None:
    peft = pytest.importorskip("peft")
    rank, width, rows = 4, 32, 2 * 8
    full = capture(llama(transformers), tokens())
    adapted = peft.get_peft_model(llama(transformers), peft.LoraConfig(r=rank, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    trained = [p for p in adapted.parameters() if p.requires_grad]
    step = capture(adapted, tokens(), optimizer=torch.optim.AdamW(trained))
    weights = [op for op in step.only(Phase.GRAD_WEIGHT) if op.is_product]
    assert {op.layer.split(".")[-2] for op in weights} == {"lora_A", "lora_B"}
    assert sum(op.macs for op in weights) == LAYERS * rows * (width * rank + rank * width)
    adapters = sum(op.macs for op in step.only(Phase.FORWARD) if "lora_" in op.layer)
    assert adapters == LAYERS * rows * 2 * width * rank
    forward = sum(op.macs for op in step.only(Phase.FORWARD)) - adapters
    assert forward == sum(op.macs for op in full.only(Phase.FORWARD))
    assert len(updated(step)) == 2 * LAYERS


# ---- files


def test_a_function_of_a_file_may_return_a_trainer(
    trainer: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "trainer_of_this_test", trainer(), raising=False)
    file = tmp_path / "finetune.py"
    file.write_text("import torch\n\n\ndef build():\n    return torch.trainer_of_this_test\n")
    step = load(f"{file}:build", batch=4)
    assert (step.name, step.batch) == ("finetune", 4)
