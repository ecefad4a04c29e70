"""timm: sixty architectures for image classification, the smallest variants, at the smallest images they take."""

from __future__ import annotations

from functools import partial
from typing import Any

from coverage_cases.case import Case, Training

# fmt: off
MODELS: dict[str, dict[str, Any]] = {
    # convolutions
    "resnet18":                    {},
    "resnet26d":                   {},
    "resnext26ts":                 {},
    "resnetv2_18":                 {},
    "resnest14d":                  {},
    "skresnet18":                  {},
    "ecaresnet26t":                {},
    "densenet121":                 {},
    "dla34":                       {},
    "vovnet39a":                   {},
    "cspresnet50":                 {},
    "dpn48b":                      {},
    "inception_v3":                {"size": 96},
    "xception41":                  {},
    "hrnet_w18_small":             {},
    "regnetx_002":                 {},
    "regnety_002":                 {},
    "nf_regnet_b0":                {},
    "repvgg_a0":                   {},
    "convnext_atto":               {},
    "convnextv2_atto":             {},
    "inception_next_atto":         {},
    "fasternet_t0":                {},
    "starnet_s1":                  {},
    # mobile
    "efficientnet_b0":             {},
    "tf_efficientnetv2_b0":        {},
    "mobilenetv2_050":             {},
    "mobilenetv3_small_050":       {},
    "mobilenetv4_conv_small_050":  {},
    "mnasnet_small":               {},
    "ghostnet_050":                {},
    "lcnet_050":                   {},
    "mixnet_s":                    {},
    "rexnet_100":                  {},
    "repghostnet_050":             {},
    # attention, and mixtures with convolutions
    "vit_tiny_patch16_224":        {"img_size": 64},
    "deit_tiny_distilled_patch16_224": {"img_size": 64},
    "beit_base_patch16_224":       {"img_size": 32, "depth": 2},
    "eva02_tiny_patch14_224":      {"img_size": 56, "depth": 3},
    "cait_xxs24_224":              {"img_size": 64, "depth": 4},
    "swin_tiny_patch4_window7_224": {"img_size": 56, "window_size": 7, "depths": (1, 1, 2, 1)},
    "swinv2_tiny_window8_256":     {"img_size": 64, "window_size": 2, "depths": (1, 1, 2, 1)},
    "pvt_v2_b0":                   {},
    "twins_svt_small":             {"size": 224, "depths": (1, 1, 1, 1)},
    "crossvit_tiny_240":           {"size": 240, "depth": ((1, 1, 0), (1, 1, 0), (1, 1, 0))},
    "coat_lite_tiny":              {"img_size": 64},
    "convit_tiny":                 {"size": 224, "depth": 3, "local_up_to_layer": 2},
    "levit_128s":                  {"size": 224},
    "mobilevit_xxs":               {"size": 64},
    "mobilevitv2_050":             {"size": 64},
    "edgenext_xx_small":           {"size": 64},
    "efficientvit_b0":             {},
    "fastvit_t8":                  {"size": 64},
    "poolformer_s12":              {"size": 64},
    "maxvit_pico_rw_256":          {"img_size": 64},
    "xcit_nano_12_p16_224":        {"size": 64},
    "volo_d1_224":                 {"img_size": 64},
    "visformer_tiny":              {"img_size": 64},
    "nest_tiny":                   {"img_size": 32},
    "sequencer2d_s":               {"img_size": 56, "layers": (1, 1, 1, 1)},
    "tiny_vit_5m_224":             {"size": 224},
    "hiera_tiny_224":              {"img_size": 64},
    "davit_tiny":                  {"size": 64, "depths": (1, 1, 1, 1)},
    "focalnet_tiny_srf":           {"size": 64},
    "gcvit_xxtiny":                {"size": 224},
    "mvitv2_tiny":                 {"img_size": 64},
    "repvit_m0_9":                 {"size": 64},
    # MLPs
    "mixer_s32_224":               {"img_size": 64},
    "gmlp_ti16_224":               {"img_size": 64},
    "resmlp_12_224":               {"img_size": 64},
}
# fmt: on
CLASSES = 10


def cases() -> list[Case]:
    return [Case("timm", name, partial(build, name, **options)) for name, options in MODELS.items()]


def build(name: str, *, size: int | None = None, **options: Any) -> Training:
    """A step of timm's training script: softmax cross-entropy and its AdamW, images in float32."""
    import timm
    import torch
    from timm.loss import LabelSmoothingCrossEntropy
    from timm.optim import create_optimizer_v2

    model = timm.create_model(name, num_classes=CLASSES, **options).train()
    side = size or options.get("img_size", 64)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    return Training(
        model,
        (torch.randn(2, 3, side, side),),
        torch.randint(0, CLASSES, (2,)),
        loss=LabelSmoothingCrossEntropy(0.1),
        optimizer=optimizer,
    )
