"""Any network for `overlay_gpu.py --models --only SPEC`, one of these:

- the name of one of the eight: `llama-1b`
- a function in a file: `my.py:build`. `build(device)` returns a `Network`, or a model in training mode on the device, what it is
  called with (a dictionary, a tuple or a tensor) and, unless the model's result has a `loss`, a function from result to loss
- a model type of transformers with fields of its configuration: `transformers:mistral?hidden_size=2048&batch=4&length=4096`
- a classifier of torchvision or timm: `torchvision:efficientnet_v2_m?batch=128`, `timm:beit_large_patch16_224?batch=64`

Weights are random and in bf16, nothing is downloaded. The blocks that selective checkpointing wraps are those of the overlay.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from overlay_cases.networks import NETWORKS, Network, class_error


def network_of(spec: str, device: str) -> Network:
    """The network of a name, a file and function, or a configuration."""
    if device != "cuda":
        from coverage_cases.torchvision_ops import provide

        provide()  # transformers imports torchvision where it is installed
    if spec in NETWORKS:
        return NETWORKS[spec](device)
    source, _, rest = spec.partition(":")
    if source.endswith(".py"):
        return from_file(Path(source), rest, device)
    name, _, query = rest.partition("?")
    options = {key: _value(text) for key, text in parse_qsl(query)}
    loaders = {"transformers": of_transformers, "torchvision": of_torchvision, "timm": of_timm}
    if source not in loaders or not name:
        raise SystemExit(
            f"{spec!r} is none of {', '.join(NETWORKS)}, nor FILE.py:FUNCTION, nor {'|'.join(loaders)}:NAME?FIELD=VALUE"
        )
    return loaders[source](name, options, device)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _blocks(model: Any) -> tuple[Any, ...]:
    from trainyard.live.paging.regions.finding import regions_of

    return tuple(region.module for region in regions_of(model))


def from_file(path: Path, function: str, device: str) -> Network:
    located = importlib.util.spec_from_file_location(path.stem, path)
    if located is None or located.loader is None or not path.is_file():
        raise SystemExit(f"{path} cannot be read as a Python file")
    module = importlib.util.module_from_spec(located)
    located.loader.exec_module(module)
    built = getattr(module, function)(device)
    if isinstance(built, Network):
        return built
    model, inputs, *loss = built
    criterion: Callable[[Any, Any], Any] | None = (lambda result, target: loss[0](result)) if loss else None
    if not isinstance(inputs, dict | tuple):
        inputs = (inputs,)
    return Network(name=path.stem, model=model, inputs=inputs, blocks=_blocks(model), criterion=criterion)


def of_transformers(kind: str, options: dict[str, Any], device: str) -> Network:
    """A causal or sequence-to-sequence language model, or an image classifier, by `AutoConfig.for_model`."""
    import torch
    import transformers

    batch, length = options.pop("batch", 4), options.pop("length", 1024)
    config = transformers.AutoConfig.for_model(kind, **options)
    images = type(config) in transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING
    causal = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0
    maker = "ImageClassification" if images else "CausalLM" if causal else "Seq2SeqLM"
    with torch.device(device):
        model = getattr(transformers, f"AutoModelFor{maker}").from_config(config, dtype=torch.bfloat16).train()
    model.config.use_cache = False
    if images:
        pixels = torch.randn(batch, config.num_channels, config.image_size, config.image_size, device=device, dtype=torch.bfloat16)
        labels = torch.randint(config.num_labels, (batch,), device=device)
        return Network(
            name=kind, model=model, inputs={"pixel_values": pixels}, blocks=_blocks(model), target=labels, criterion=class_error
        )
    tokens = torch.randint(config.get_text_config().vocab_size, (batch, length), device=device)
    return Network(name=kind, model=model, inputs={"input_ids": tokens, "labels": tokens}, blocks=_blocks(model))


def of_torchvision(kind: str, options: dict[str, Any], device: str) -> Network:
    import torchvision

    return _classifier(getattr(torchvision.models, kind), kind, options, device)


def of_timm(kind: str, options: dict[str, Any], device: str) -> Network:
    import timm

    return _classifier(lambda **fields: timm.create_model(kind, **fields), kind, options, device)


def _classifier(make: Callable[..., Any], kind: str, options: dict[str, Any], device: str) -> Network:
    import torch

    batch, side = options.pop("batch", 64), options.pop("side", 224)
    with torch.device(device):
        model = make(**options).to(torch.bfloat16).train()
    images = torch.randn(batch, 3, side, side, device=device, dtype=torch.bfloat16)
    labels = torch.randint(1000, (batch,), device=device)
    return Network(name=kind, model=model, inputs=(images,), blocks=_blocks(model), target=labels, criterion=class_error)
