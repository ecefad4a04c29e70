"""Eight networks built from the configurations of others with random weights, for `overlay_gpu.py --models`.

Each is a model on the GPU in bf16 with an optimizer, and a function that does one training step. Nothing is downloaded. Seven
are of transformers and torchvision; the UNet is `unet`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One network, what it is called with, and its loss: the model's own, or `criterion(result, target)`."""

    name: str
    model: Any
    inputs: dict[str, Any] | tuple[Any, ...]
    blocks: tuple[Any, ...]
    """The repeated blocks, in order: what Hugging Face's gradient checkpointing wraps."""
    target: Any = None
    criterion: Callable[[Any, Any], Any] | None = None
    optimizer: Any = None

    def with_optimizer(self) -> Network:
        """With AdamW, at a learning rate of zero: it does all its work, and gradients can be compared between steps."""
        import torch

        return replace(self, optimizer=torch.optim.AdamW(self.model.parameters(), lr=0.0, weight_decay=0.0, fused=True))

    def loss(self) -> Any:
        result = self.model(**self.inputs) if isinstance(self.inputs, dict) else self.model(*self.inputs)
        return result.loss if self.criterion is None else self.criterion(result, self.target)

    def step(self) -> None:
        self.model.zero_grad(set_to_none=True)
        self.loss().backward()
        if self.optimizer is not None:
            self.optimizer.step()


def class_error(result: Any, target: Any) -> Any:
    """Cross entropy in float32, of logits or of a result that has them."""
    from torch.nn import functional as F

    return F.cross_entropy(getattr(result, "logits", result).float(), target)


def noise_error(result: Any, target: Any) -> Any:
    """Mean square error of a diffusion model's guess."""
    from torch.nn import functional as F

    return F.mse_loss(result.float(), target.float())


SMALL_DECODER = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}


def causal(config: Any, batch: int, length: int, device: str) -> Network:
    """A decoder-only language model of transformers; its loss is inside its forward."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    tokens = torch.randint(config.vocab_size, (batch, length), device=device)
    model.config.use_cache = False
    inputs = {"input_ids": tokens, "labels": tokens}
    return Network(name=config.model_type, model=model.train(), inputs=inputs, blocks=tuple(model.model.layers))


def llama(device: str, *, small: bool = False, large: bool = False) -> Network:
    """1.1 B parameters as TinyLlama's configuration, 8 sequences of 2048; `large`: 6.7 B as Llama-2's, 4 sequences."""
    from transformers import LlamaConfig

    if small:
        return causal(LlamaConfig(**SMALL_DECODER), 2, 32, device)
    if large:
        return causal(LlamaConfig(vocab_size=32000), 4, 2048, device)
    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=22,
        num_attention_heads=32,
        num_key_value_heads=4,
        vocab_size=32000,
    )
    return causal(config, 8, 2048, device)


def lora_llama(device: str, *, small: bool = False) -> Network:
    """The same with adapters of rank 16 by peft at all linear layers of its blocks; the rest is frozen."""
    import peft

    network = llama(device, small=small)
    adapters = peft.LoraConfig(r=16, target_modules="all-linear")
    return replace(network, name="lora-llama-1b", model=peft.get_peft_model(network.model, adapters))


def qwen(device: str, *, small: bool = False) -> Network:
    """1.5 B parameters as Qwen2's configuration, 4 sequences of 2048, a vocabulary of 152 k."""
    from transformers import Qwen2Config

    if small:
        return causal(Qwen2Config(**SMALL_DECODER), 2, 32, device)
    config = Qwen2Config(
        hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2,
        vocab_size=151936, tie_word_embeddings=True,
    )  # fmt: skip
    return causal(config, 4, 2048, device)


def vit(device: str, *, small: bool = False) -> Network:
    """ViT-L/16 of transformers, 128 images."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, num_labels=1000
    )  # fmt: skip
    if small:
        config = ViTConfig(
            hidden_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=128,
            num_labels=10,
            image_size=32,
            patch_size=8,
        )
    batch = 4 if small else 128
    with torch.device(device):
        model = ViTForImageClassification(config).to(torch.bfloat16)
    images = torch.randn(batch, 3, config.image_size, config.image_size, device=device, dtype=torch.bfloat16)
    labels = torch.randint(config.num_labels, (batch,), device=device)
    layers = next(module for module in model.modules() if isinstance(module, torch.nn.ModuleList))
    return Network(
        name="vit-l",
        model=model.train(),
        inputs={"pixel_values": images},
        blocks=tuple(layers),
        target=labels,
        criterion=class_error,
    )


def vision(kind: str, block: str, batch: int, device: str, **options: Any) -> Network:
    """An image classifier of torchvision, by the name of its constructor."""
    import torch
    import torchvision

    with torch.device(device):
        model = getattr(torchvision.models, kind)(**options).to(torch.bfloat16)
    images = torch.randn(batch, 3, 224, 224, device=device, dtype=torch.bfloat16)
    labels = torch.randint(1000, (batch,), device=device)
    return Network(
        name=kind,
        model=model.train(),
        inputs={"x": images},
        blocks=tuple(module for module in model.modules() if type(module).__name__ == block),
        target=labels,
        criterion=class_error,
    )


def convnext(device: str) -> Network:
    """ConvNeXt-B of torchvision without stochastic depth, 128 images."""
    return vision("convnext_base", "CNBlock", 128, device, stochastic_depth_prob=0.0)


def swin(device: str) -> Network:
    """Swin-B of torchvision, 128 images."""
    return vision("swin_b", "SwinTransformerBlock", 128, device)


def whisper(device: str, *, small: bool = False) -> Network:
    """Whisper medium of transformers, 16 recordings of 30 s with 448 tokens each."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=1024, encoder_layers=24, decoder_layers=24, encoder_attention_heads=16, decoder_attention_heads=16,
        encoder_ffn_dim=4096, decoder_ffn_dim=4096, vocab_size=51865,
    )  # fmt: skip
    if small:
        config = WhisperConfig(
            d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=128, decoder_ffn_dim=128, vocab_size=256, max_source_positions=32, max_target_positions=16,
            pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        )  # fmt: skip
    batch = 2 if small else 16
    with torch.device(device):
        model = WhisperForConditionalGeneration(config).to(torch.bfloat16)
    model.config.use_cache = False
    sound = torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions, device=device, dtype=torch.bfloat16)
    tokens = torch.randint(config.vocab_size, (batch, config.max_target_positions), device=device)
    return Network(
        name="whisper-medium",
        model=model.train(),
        inputs={"input_features": sound, "labels": tokens},
        blocks=(*model.model.encoder.layers, *model.model.decoder.layers),
    )


def unet(device: str, *, small: bool = False) -> Network:
    """A UNet with the shapes of Stable Diffusion 1.5's, 16 latents of 64 x 64."""
    import torch

    from overlay_cases.unet import ResidualBlock, TransformerBlock, UNet

    batch, side, text = (2, 16, 32) if small else (16, 64, 768)
    with torch.device(device):
        model = UNet((32, 64), text, 4, 8) if small else UNet()
    make = {"device": device, "dtype": torch.bfloat16}
    latents, noise = torch.randn(batch, 4, side, side, **make), torch.randn(batch, 4, side, side, **make)
    return Network(
        name="unet",
        model=model.to(torch.bfloat16).train(),
        inputs={
            "image": latents,
            "times": torch.randint(1000, (batch,), device=device),
            "text": torch.randn(batch, 77, text, **make),
        },
        blocks=tuple(module for module in model.modules() if isinstance(module, ResidualBlock | TransformerBlock)),
        target=noise,
        criterion=noise_error,
    )


NETWORKS: dict[str, Callable[[str], Network]] = {
    "vit-l": vit,
    "llama-1b": llama,
    "convnext-b": convnext,
    "swin-b": swin,
    "qwen-1.5b": qwen,
    "whisper-medium": whisper,
    "unet": unet,
    "llama-7b": lambda device: llama(device, large=True),
}
