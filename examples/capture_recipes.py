"""Training steps of frameworks, each as a function for the command line.

    trainyard run examples/capture_recipes.py:trainer          --on h200
    trainyard run examples/capture_recipes.py:low_rank         --on h200
    trainyard run examples/capture_recipes.py:lightning_module --on npu
    trainyard run examples/capture_recipes.py:accelerated      --on npu
    trainyard run examples/capture_recipes.py:diffusion        --on tpu

What each of them does is explained in docs/capture_recipes.md. The libraries are in the extra `coverage`.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import trainyard as ty


def llama(layers: int = 4) -> Any:
    """A small causal language model with the layers of a large one."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=8192,
    )
    return LlamaForCausalLM(config)


def trainer(batch: int = 4) -> Any:
    """A Trainer of transformers: four micro batches in bf16, then one update. The function returns it as it is."""
    from transformers import Trainer, TrainingArguments

    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 8192, (4 * batch, 256))]
    arguments = TrainingArguments(
        tempfile.gettempdir(),
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=4,
        bf16=True,
        use_cpu=True,
        report_to=[],
    )
    return Trainer(llama(), arguments, train_dataset=rows)


def low_rank(batch: int = 4) -> Any:
    """LoRA: a frozen model with trained adapters. Model, inputs, targets, loss and optimizer are returned."""
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(llama(), LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    ids = torch.randint(0, 8192, (batch, 256))
    return (
        model,
        {"input_ids": ids, "labels": ids},
        None,
        None,
        torch.optim.AdamW([p for p in model.parameters() if p.requires_grad]),
    )


def lightning_module(batch: int = 64) -> Any:
    """A LightningModule and one of its batches."""
    import lightning

    class Classifier(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))

        def training_step(self, batch: Any, index: int) -> Any:
            x, y = batch
            return F.cross_entropy(self.net(x), y)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    return Classifier(), (torch.randn(batch, 784), torch.randint(0, 10, (batch,)))


def accelerated(batch: int = 64) -> ty.Step:
    """A loop of accelerate; the function captures it itself and returns the Step."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))
    model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters()))

    def train_step(batch: int) -> None:
        x, y = torch.randn(batch, 784), torch.randint(0, 10, (batch,))
        with accelerator.accumulate(model):
            accelerator.backward(F.cross_entropy(model(x), y))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return ty.capture(train_step, model=model, batch=batch, name="accelerated")


def diffusion(batch: int = 8) -> ty.Step:
    """Noise prediction with a scheduler's noise at random timesteps."""
    from diffusers import DDPMScheduler, UNet2DModel

    unet = UNet2DModel(
        sample_size=32, layers_per_block=2, block_out_channels=(64, 128), down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    scheduler, optimizer = DDPMScheduler(num_train_timesteps=1000), torch.optim.AdamW(unet.parameters())

    def train_step(batch: int) -> None:
        images, noise = torch.randn(2, batch, 3, 32, 32)
        timesteps = torch.randint(0, 1000, (batch,))
        F.mse_loss(unet(scheduler.add_noise(images, noise, timesteps), timesteps).sample, noise).backward()
        optimizer.step()

    return ty.capture(train_step, model=unet, batch=batch, name="diffusion")
