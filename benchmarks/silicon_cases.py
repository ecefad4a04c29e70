"""Training steps of models that others wrote: torchvision, timm, transformers, diffusers, each as its library trains it.

A case builds its model and one batch on the current default device (`torch.device("cuda")` to measure, CPU to capture). Weights are
random, configurations small enough that forty of them are measured in minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Example(NamedTuple):
    """A model, one batch, and the loss of its output."""

    model: nn.Module
    inputs: Any
    targets: Any
    loss: Callable[..., Tensor]
    optimizer: Callable[..., torch.optim.Optimizer]


@dataclass(frozen=True, slots=True)
class Case:
    """One training step. `precision` is that of `ty.measure`: None is torch's default (fp32, convolutions in TF32)."""

    model: str
    library: str
    batch: int
    precision: str | None
    build: Callable[[int], Example]
    held_out: bool = False  # measured after the model of the GPU had been fitted to the other cases

    @property
    def title(self) -> str:
        return f"{self.model}, batch {self.batch}, {self.precision or 'fp32'}"


SGD = partial(torch.optim.SGD, lr=1e-4, momentum=0.9)
ADAMW = partial(torch.optim.AdamW, lr=1e-6)


def _cross_entropy(output: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(output.float(), targets)


def _auxiliary_cross_entropy(output: Any, targets: Tensor) -> Tensor:
    return _cross_entropy(output.logits, targets) + 0.4 * _cross_entropy(output.aux_logits, targets)


def _own_loss(output: Any) -> Tensor:
    loss: Tensor = output.loss
    return loss


def _sample_error(output: Any, targets: Tensor) -> Tensor:
    return F.mse_loss(output.sample.float(), targets.float())


def images(
    batch: int, make: Callable[[], nn.Module], size: int = 224, *, optimizer: Any = SGD, loss: Any = _cross_entropy,
    channels_last: bool = False,
) -> Example:  # fmt: skip
    model, inputs = make(), torch.randn(batch, 3, size, size)
    if channels_last:
        model, inputs = model.to(memory_format=torch.channels_last), inputs.to(memory_format=torch.channels_last)
    return Example(model, inputs, torch.randint(0, 1000, (batch,)), loss, optimizer)


def torchvision_images(batch: int, name: str, size: int = 224, **options: Any) -> Example:
    import torchvision

    extra = {"init_weights": False} if name == "inception_v3" else {}
    return images(batch, partial(torchvision.models.get_model, name, weights=None, **extra), size, **options)


def timm_images(batch: int, name: str, size: int = 224, **options: Any) -> Example:
    import timm

    return images(batch, partial(timm.create_model, name, pretrained=False), size, **options)


def language_model(batch: int, length: int, architecture: str, **config: Any) -> Example:
    """A causal or masked language model of transformers, trained without a cache."""
    import transformers

    configuration = getattr(transformers, f"{architecture[0]}Config")(**config)
    if hasattr(configuration, "use_cache"):
        configuration.use_cache = False
    model = getattr(transformers, architecture[0] + architecture[1])(configuration)
    tokens = torch.randint(0, configuration.vocab_size, (batch, length))
    return Example(model, {"input_ids": tokens, "labels": tokens}, None, _own_loss, ADAMW)


def whisper(batch: int) -> Example:
    import transformers

    config = transformers.WhisperConfig(
        d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12, decoder_attention_heads=12,
        encoder_ffn_dim=3072, decoder_ffn_dim=3072, use_cache=False,
    )  # fmt: skip
    inputs = {"input_features": torch.randn(batch, 80, 3000), "labels": torch.randint(0, config.vocab_size, (batch, 128))}
    return Example(transformers.WhisperForConditionalGeneration(config), inputs, None, _own_loss, ADAMW)


def diffusion(batch: int, kind: str) -> Example:
    """The noise predictor of a diffusion model: a UNet on text, a UNet on images, a transformer on classes."""
    import diffusers

    steps = torch.randint(0, 1000, (batch,))
    if kind == "autoencoder":
        blocks = {"down_block_types": ("DownEncoderBlock2D",) * 3, "up_block_types": ("UpDecoderBlock2D",) * 3}
        model = diffusers.AutoencoderKL(block_out_channels=(128, 256, 512), layers_per_block=2, **blocks)
        sample = torch.randn(batch, 3, 256, 256)
        return Example(model, {"sample": sample}, torch.randn_like(sample), _sample_error, ADAMW)
    if kind == "text":
        model = diffusers.UNet2DConditionModel(
            sample_size=64, block_out_channels=(160, 320, 640, 640), cross_attention_dim=768, attention_head_dim=8
        )
        sample = torch.randn(batch, 4, 64, 64)
        inputs = {"sample": sample, "timestep": steps, "encoder_hidden_states": torch.randn(batch, 77, 768)}
    elif kind == "image":
        blocks = ("DownBlock2D", "AttnDownBlock2D", "DownBlock2D", "DownBlock2D")
        model = diffusers.UNet2DModel(
            sample_size=32, block_out_channels=(128, 256, 256, 256), layers_per_block=2, down_block_types=blocks,
            up_block_types=("UpBlock2D", "UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
        )  # fmt: skip
        sample = torch.randn(batch, 3, 32, 32)
        inputs = {"sample": sample, "timestep": steps}
    else:
        model = diffusers.DiTTransformer2DModel(num_attention_heads=12, attention_head_dim=64, num_layers=12, sample_size=32)
        sample = torch.randn(batch, 4, 32, 32)
        inputs = {"hidden_states": sample, "timestep": steps, "class_labels": torch.randint(0, 1000, (batch,))}
        return Example(model, inputs, torch.randn_like(sample), _sample_error, ADAMW)
    return Example(model, inputs, torch.randn_like(sample), _sample_error, ADAMW)


# fmt: off
LLAMA:   Mapping[str, Any] = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16, "num_attention_heads": 16,
                              "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 2048}
QWEN:    Mapping[str, Any] = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
                              "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True}
MIXTRAL: Mapping[str, Any] = {"hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16,
                              "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000}
EXPERTS: Mapping[str, Any] = {"hidden_size": 1024, "intermediate_size": 2048, "moe_intermediate_size": 512, "num_hidden_layers": 8,
                              "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64, "num_experts": 32,
                              "num_experts_per_tok": 4, "vocab_size": 32000}
LLAMA_2048: Mapping[str, Any] = {**LLAMA, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 8}
PYTHIA:  Mapping[str, Any] = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
GEMMA:   Mapping[str, Any] = {"hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 4, "num_attention_heads": 8,
                              "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 64000}
OLMOE:   Mapping[str, Any] = {"hidden_size": 768, "intermediate_size": 384, "num_hidden_layers": 8, "num_attention_heads": 12,
                              "num_key_value_heads": 12, "num_experts": 64, "num_experts_per_tok": 8, "vocab_size": 32000}
T5:      Mapping[str, Any] = {"decoder_start_token_id": 0}
CAUSAL = "ForCausalLM"


def _vision(model: str, batch: int, precision: str | None, size: int = 224, title: str = "", **options: Any) -> Case:
    return Case(title or model, "torchvision", batch, precision, partial(torchvision_images, name=model, size=size, **options))


def _timm(model: str, batch: int, precision: str | None, **options: Any) -> Case:
    return Case(f"timm {model}", "timm", batch, precision, partial(timm_images, name=model, **options))


def _language(title: str, batch: int, precision: str | None, length: int, *architecture: str, **config: Any) -> Case:
    build = partial(language_model, length=length, architecture=architecture, **config)
    return Case(title, "transformers", batch, precision, build)


CASES: tuple[Case, ...] = (
    _vision("convnext_base",      64, "bf16",       optimizer=ADAMW), _vision("convnext_base",   64, None, optimizer=ADAMW),
    _vision("convnext_tiny",     128, "bf16-mixed", optimizer=ADAMW), _vision("convnext_tiny",  128, "fp16", optimizer=ADAMW),
    _language("llama",             8, "bf16",       1024, "Llama", CAUSAL, **LLAMA),
    _language("llama",             8, "bf16-mixed", 1024, "Llama", CAUSAL, **LLAMA),
    _language("mixtral",           8, "bf16",       1024, "Mixtral", CAUSAL, **MIXTRAL),
    _language("qwen3-moe",         8, "bf16",       1024, "Qwen3Moe", CAUSAL, **EXPERTS),
    Case("unet, text to image", "diffusers", 16, "bf16", partial(diffusion, kind="text")),
    Case("unet, images",        "diffusers", 64, None,   partial(diffusion, kind="image")),
    Case("whisper-small",       "transformers", 8, "bf16", whisper),
    _vision("resnet50",           64, "bf16-mixed"), _vision("vit_b_16", 64, "bf16-mixed", optimizer=ADAMW),
    _language("bert-base",        64, "bf16-mixed", 128, "Bert", "ForMaskedLM"),
    _vision("vit_l_16",           32, "bf16", optimizer=ADAMW),  _vision("swin_t",          64, "bf16", optimizer=ADAMW),
    _vision("swin_t",             64, None, optimizer=ADAMW),    _vision("efficientnet_b0", 64, None),
    _vision("efficientnet_b0",    64, "bf16"),                   _vision("densenet121",     64, None),
    _vision("resnext50_32x4d",    64, None),                     _vision("resnext50_32x4d", 64, "bf16"),
    _vision("regnet_y_8gf",       32, None),                     _vision("shufflenet_v2_x1_0", 128, None),
    _vision("inception_v3",       64, None, 299, loss=_auxiliary_cross_entropy),
    _vision("maxvit_t",           32, "bf16", optimizer=ADAMW),  _vision("mobilenet_v3_large", 128, "bf16"),
    _vision("resnet50",           64, "bf16", title="resnet50, channels last", channels_last=True),
    _vision("resnet50",           64, "bf16-mixed", title="resnet50, channels last", channels_last=True),
    _vision("convnext_tiny",     128, "bf16", title="convnext_tiny, channels last", optimizer=ADAMW, channels_last=True),
    _language("gpt2",              8, "bf16",       1024, "GPT2", "LMHeadModel"),
    _language("bert-base",        64, "bf16",       128, "Bert", "ForMaskedLM"),
    _language("qwen2-0.5b",        4, "bf16",       1024, "Qwen2", CAUSAL, **QWEN),
    _language("llama",             8, None,         512, "Llama", CAUSAL, **LLAMA),
    _language("t5-small",         32, "bf16",       512, "T5", "ForConditionalGeneration", **T5),
    Case("dit-b/2",             "diffusers", 32, "bf16-mixed", partial(diffusion, kind="transformer")),
    Case("unet, text to image", "diffusers", 8, "bf16-mixed", partial(diffusion, kind="text")),
    _timm("convnextv2_tiny",      64, "bf16", optimizer=ADAMW),  _timm("mixer_b16_224",     64, "bf16", optimizer=ADAMW),
    _timm("seresnet50",           64, "bf16-mixed"),             _timm("deit3_small_patch16_224", 128, "bf16", optimizer=ADAMW),
)
HELD_OUT: tuple[Case, ...] = tuple(replace(case, held_out=True) for case in (
    _vision("wide_resnet50_2",    64, "bf16-mixed"),             _vision("efficientnet_v2_s", 64, "bf16-mixed", channels_last=True),
    _vision("swin_v2_t",          64, "bf16-mixed", 256, optimizer=ADAMW),  _vision("mnasnet1_0", 128, None),
    _vision("regnet_x_3_2gf",     64, "bf16"),                   _vision("vgg16_bn",        64, "bf16-mixed"),
    _timm("convmixer_768_32",     32, "bf16", optimizer=ADAMW),  _timm("poolformer_s12",    64, "bf16", optimizer=ADAMW),
    _timm("resnetv2_50",          64, "bf16-mixed"),             _timm("coatnet_0_rw_224",  64, "bf16-mixed", optimizer=ADAMW),
    _language("roberta-base",     32, "bf16-mixed", 256, "Roberta", "ForMaskedLM"),
    _language("opt-125m",          8, "bf16", 1024, "OPT", CAUSAL),
    _language("pythia-160m",       8, "bf16-mixed", 1024, "GPTNeoX", CAUSAL, **PYTHIA),
    _language("gemma-2b, 4 layers", 4, "bf16", 1024, "Gemma", CAUSAL, **GEMMA),
    _language("olmoe, small",      8, "bf16", 1024, "Olmoe", CAUSAL, **OLMOE),
    _language("llama, 8 layers of 2048", 4, "bf16", 2048, "Llama", CAUSAL, **LLAMA_2048),
    Case("autoencoder of a diffusion model", "diffusers", 4, "bf16", partial(diffusion, kind="autoencoder"))))
# fmt: on
