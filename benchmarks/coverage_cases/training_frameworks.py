"""Training steps of frameworks: transformers' Trainer, accelerate, Lightning, peft."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

from coverage_cases.case import Training
from coverage_cases.training_loops import classifier, samples


def language_model(**changes: Any) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64, pad_token_id=0, **changes,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def tokens(count: int = 2) -> dict[str, Any]:
    import torch

    ids = torch.randint(3, 128, (count, 16))
    mask = torch.ones_like(ids)
    mask[-1, 12:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def trainer(**arguments: Any) -> Any:
    """A Trainer over sixteen sequences."""
    from accelerate.state import AcceleratorState
    from transformers import Trainer, TrainingArguments, default_data_collator

    AcceleratorState._reset_state(reset_partial_state=True)
    model = language_model()
    rows = [{name: tensor[0] for name, tensor in tokens(1).items()} for _ in range(16)]
    options = {"per_device_train_batch_size": 2, "use_cpu": True, "report_to": [], "max_steps": 10, **arguments}
    made = Trainer(
        model=model, args=TrainingArguments(tempfile.gettempdir(), **options), train_dataset=rows,
        data_collator=default_data_collator
    )  # fmt: skip
    made.create_optimizer_and_scheduler(10)
    made.current_gradient_accumulation_steps = made.args.gradient_accumulation_steps  # as its training loop sets it
    return made


def trainer_step(**arguments: Any) -> Training:
    """What the Trainer does for one optimizer step: micro batches, clipped gradients, optimizer, schedule."""
    made = trainer(**arguments)
    batches = iter(made.get_train_dataloader())
    inputs = [next(batches) for _ in range(made.args.gradient_accumulation_steps)]

    def step() -> None:
        made.model.train()
        for batch in inputs:
            made.training_step(made.model, dict(batch), num_items_in_batch=None)
        made.accelerator.clip_grad_norm_(made.model.parameters(), made.args.max_grad_norm)
        made.optimizer.step()
        made.lr_scheduler.step()
        made.model.zero_grad()

    return Training(made.model, step=step)


def own_loop() -> Training:
    """A loop over a transformers model, as its course writes it."""
    import torch
    from transformers import get_scheduler

    model = language_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    rates = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=0, num_training_steps=10)
    batch = tokens()
    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")

    def step() -> None:
        model.train()
        inputs = {k: v.to(device) for k, v in batch.items()}
        outputs = model(**inputs)
        outputs.loss.backward()
        optimizer.step()
        rates.step()
        optimizer.zero_grad()

    return Training(model, step=step)


def shifted_loss() -> Training:
    """The logits of a model without labels, shifted by hand."""
    import torch
    import torch.nn.functional as F

    model = language_model()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = tokens()

    def step() -> float:
        logits = model(batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False).logits
        labels = batch["labels"][:, 1:].contiguous()
        loss = F.cross_entropy(logits[:, :-1].contiguous().view(-1, 128), labels.view(-1), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return torch.exp(loss.detach()).item()

    return Training(model, step=step)


def preference() -> Training:
    """Direct preference optimisation: a policy and its frozen reference, log-probabilities of chosen and rejected answers."""
    import copy

    import torch
    import torch.nn.functional as F

    policy = language_model()
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters())
    batch = tokens(4)

    def log_probability(model: Any) -> Any:
        logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
        labels = batch["labels"][:, 1:]
        mask = labels != -100
        picked = torch.gather(logits.log_softmax(-1), 2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
        return (picked * mask).sum(-1)

    def step() -> None:
        with torch.no_grad():
            fixed = log_probability(reference)
        moved = log_probability(policy) - fixed
        loss = -F.logsigmoid(0.1 * (moved[:2] - moved[2:])).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(torch.nn.ModuleDict({"policy": policy, "reference": reference}), step=step)


def packed_documents() -> Training:
    """Two documents in one row: positions start again, and the mask keeps them apart."""
    import torch

    model = language_model()
    ids = torch.randint(3, 128, (1, 16))
    inputs = {
        "input_ids": ids,
        "labels": ids.clone(),
        "position_ids": torch.cat([torch.arange(10), torch.arange(6)])[None],
        "use_cache": False,
    }
    return Training(model, inputs, optimizer=torch.optim.AdamW(model.parameters()))


def checkpointed(**keywords: Any) -> Training:
    import torch

    model = language_model()
    model.gradient_checkpointing_enable(**keywords)
    model.train()
    return Training(model, {**tokens(), "use_cache": False}, optimizer=torch.optim.AdamW(model.parameters()))


def compiled() -> Training:
    import torch

    model = language_model()
    return Training(torch.compile(model), tokens(), optimizer=torch.optim.AdamW(model.parameters()))


def accelerator_with(**keywords: Any) -> Any:
    """An Accelerator whose settings are not those of an earlier one: the library keeps one state for the whole process."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    return Accelerator(cpu=True, **keywords)


def accelerated(**keywords: Any) -> Training:
    import torch
    import torch.nn.functional as F
    from torch.utils.data import DataLoader, TensorDataset

    accelerator = accelerator_with(**keywords)
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 0.99**done)
    loader = DataLoader(TensorDataset(*samples(16)), batch_size=4)
    model, optimizer, loader, rates = accelerator.prepare(model, optimizer, loader, rates)

    def step() -> None:
        model.train()
        for index, (x, y) in enumerate(loader):
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                rates.step()
                optimizer.zero_grad()
            if index + 1 == accelerator.gradient_accumulation_steps:
                break

    return Training(model, step=step)


def accelerated_language_model() -> Training:
    import torch

    accelerator = accelerator_with(mixed_precision="bf16")
    model = language_model()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    batch = tokens()

    def step() -> None:
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()

    return Training(model, step=step)


def lightning(kind: str) -> Training:
    """A LightningModule, whose training step is called as its Trainer calls it."""
    import lightning
    import torch
    import torch.nn.functional as F

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body = classifier()
            self.automatic_optimization = kind != "manual optimization"

        def training_step(self, batch: Any, index: int) -> Any:
            x, y = batch
            loss = F.cross_entropy(self.body(x), y)
            self.log("train_loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
            if kind != "schedule":
                return optimizer
            return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}

    module = Module()
    configured = module.configure_optimizers()
    optimizer = configured["optimizer"] if isinstance(configured, dict) else configured
    batch = samples()
    module.log = lambda *_, **__: None  # type: ignore[method-assign]  # logging needs a Trainer

    def step() -> None:
        optimizer.zero_grad()
        module.training_step(batch, 0).backward()
        optimizer.step()

    return Training(module, step=step)


def fabric() -> Training:
    import torch
    import torch.nn.functional as F
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    model = classifier()
    wrapped, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))
    x, y = samples()

    def step() -> None:
        optimizer.zero_grad()
        fabric.backward(F.cross_entropy(wrapped(x), y))
        fabric.clip_gradients(wrapped, optimizer, max_norm=1.0)
        optimizer.step()

    return Training(wrapped, step=step)


def adapted(kind: str) -> Training:
    """A frozen language model with adapters of peft."""
    import peft
    import torch

    model = language_model()
    task = peft.TaskType.CAUSAL_LM
    configurations: dict[str, Callable[[], Any]] = {
        "LoRA": lambda: peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type=task),
        "LoRA in every layer": lambda: peft.LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.1, task_type=task),
        "DoRA": lambda: peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], use_dora=True, task_type=task),
        "LoRA, gradient checkpointing": lambda: peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type=task),
        "IA3": lambda: peft.IA3Config(
            target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"], task_type=task
        ),
        "prompt": lambda: peft.PromptTuningConfig(num_virtual_tokens=4, task_type=task),
        "prefix": lambda: peft.PrefixTuningConfig(num_virtual_tokens=4, task_type=task),
    }
    if kind.endswith("checkpointing"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    model = peft.get_peft_model(model, configurations[kind]())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    return Training(model, tokens(), optimizer=optimizer)


def vision_adapted() -> Training:
    """Low-rank adapters in a plain module of one's own."""
    import peft
    import torch
    import torch.nn.functional as F

    model = peft.get_peft_model(classifier(), peft.LoraConfig(r=4, target_modules=["0", "3"], modules_to_save=["5"]))
    return Training(model, *samples(), F.cross_entropy, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad]))


FRAMEWORKS: dict[str, Callable[[], Training]] = {
    "Trainer": trainer_step,
    "Trainer, gradient accumulation": partial(trainer_step, gradient_accumulation_steps=4),
    "Trainer, bf16": partial(trainer_step, bf16=True),
    "Trainer, gradient checkpointing": partial(trainer_step, gradient_checkpointing=True),
    "Trainer, Adafactor": partial(trainer_step, optim="adafactor"),
    "Trainer, label smoothing": partial(trainer_step, label_smoothing_factor=0.1),
    "transformers, own loop": own_loop,
    "transformers, shifted loss": shifted_loss,
    "transformers, preference optimisation": preference,
    "transformers, packed documents": packed_documents,
    "transformers, gradient checkpointing": checkpointed,
    "transformers, reentrant checkpointing": partial(checkpointed, gradient_checkpointing_kwargs={"use_reentrant": True}),
    "transformers, compiled": compiled,
    "accelerate": accelerated,
    "accelerate, accumulation": partial(accelerated, gradient_accumulation_steps=2),
    "accelerate, bf16": partial(accelerated, mixed_precision="bf16"),
    "accelerate, language model": accelerated_language_model,
    **{f"Lightning, {kind}": partial(lightning, kind) for kind in ("module", "schedule", "manual optimization")},
    "Lightning, Fabric": fabric,
    **{
        f"peft: {kind}": partial(adapted, kind)
        for kind in ("LoRA", "LoRA in every layer", "DoRA", "LoRA, gradient checkpointing", "IA3", "prompt", "prefix")
    },
    "peft: LoRA in a plain module": vision_adapted,
}
