"""Vision models of transformers, and those of images and text: rows of coverage_cases.transformers."""

from __future__ import annotations

from functools import partial
from typing import Any

from coverage_cases.transformers import Row

BATCH, CLASSES, SIDE, VOCABULARY, TOKENS = 2, 3, 32, 120, 16


def image(config: Any, *, side: int = SIDE, labels: str = "sample", frames: int = 0) -> dict[str, Any]:
    """Images (or clips) with a class for each, a class for each pixel, or a depth for each pixel."""
    import torch

    batch: dict[str, Any] = {"pixel_values": torch.randn(BATCH, *([frames] if frames else []), 3, side, side)}
    if labels == "sample":
        batch["labels"] = torch.randint(0, 2, (BATCH,))
    elif labels == "pixels":
        batch["labels"] = torch.randint(0, 2, (BATCH, side, side))
    elif labels == "boxes":
        batch["labels"] = [boxes(count) for count in (1, 2)]
    return batch


def boxes(count: int) -> dict[str, Any]:
    """What DETR and its relatives take for an image: classes, and boxes as centre and size relative to the image."""
    import torch

    return {"class_labels": torch.randint(0, CLASSES, (count,)), "boxes": 0.2 + 0.4 * torch.rand(count, 4)}


def hidden_patches(config: Any, *, patches: int, frames: int = 0) -> dict[str, Any]:
    """A clip of which half of the patches is hidden, the same number in each sample."""
    import torch

    mask = torch.zeros(BATCH, patches, dtype=torch.bool)
    mask[:, ::2] = True
    return {**image(config, labels="", frames=frames), "bool_masked_pos": mask}


def segments(config: Any) -> dict[str, Any]:
    """Mask2Former and MaskFormer: for each image a list of classes and a mask for each of them."""
    import torch

    return {
        **image(config, labels="", side=64),
        "mask_labels": [(torch.rand(count, 64, 64) > 0.5).float() for count in (2, 3)],
        "class_labels": [torch.randint(0, CLASSES, (count,)) for count in (2, 3)],
    }


def caption(config: Any, *, side: int = SIDE, **extra: Any) -> dict[str, Any]:
    """Pairs of an image and its text."""
    import torch

    ids = torch.randint(5, VOCABULARY - 1, (BATCH, TOKENS))
    ids[:, -1] = VOCABULARY - 1  # the end of text, from which CLIP takes its vector
    mask = torch.ones(BATCH, TOKENS, dtype=torch.long)
    return {"input_ids": ids, "attention_mask": mask, "pixel_values": torch.randn(BATCH, 3, side, side), **extra}


def captioned(config: Any, *, side: int = SIDE) -> dict[str, Any]:
    batch = caption(config, side=side)
    return {**batch, "labels": batch["input_ids"].clone()}


def dialogue(config: Any, *, patches: int, token: int, side: int = SIDE, **extra: Any) -> dict[str, Any]:
    """Text in which some ids stand for the patches of an image; the labels leave them out."""
    import torch

    ids = torch.randint(5, 90, (BATCH, TOKENS + patches))
    ids[:, 2 : 2 + patches] = token
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(BATCH, 3, side, side),
        "labels": torch.where(ids == token, -100, ids),
        **extra,
    }


def qwen_dialogue(config: Any, *, token: int, patch_values: int, kinds: bool = False) -> dict[str, Any]:
    """Qwen's images are rows of patches of all samples, with the size of each image in patches."""
    import torch

    grid, merged = torch.tensor([[1, 4, 4]] * BATCH), 4
    batch = dialogue(config, patches=merged, token=token)
    batch["input_ids"][:, 1] = token - 1  # the start of the image
    batch["pixel_values"] = torch.randn(BATCH * 16, patch_values)
    if kinds:
        batch["mm_token_type_ids"] = (batch["input_ids"] == token).long()
    return {**batch, "image_grid_thw": grid}


def prompted_masks(config: Any) -> dict[str, Any]:
    """SAM: an image and a point on the object."""
    import torch

    return {"pixel_values": torch.randn(BATCH, 3, SIDE, SIDE), "input_points": torch.rand(BATCH, 1, 1, 2) * SIDE,
            "input_labels": torch.ones(BATCH, 1, 1, dtype=torch.long), "multimask_output": False}  # fmt: skip


def mask_loss(output: Any) -> Any:
    import torch

    masks = output.pred_masks
    return torch.nn.functional.binary_cross_entropy_with_logits(masks, torch.ones_like(masks))


def detection_queries(config: Any) -> dict[str, Any]:
    """OWL-ViT: two texts are sought in each image."""
    import torch

    ids = torch.randint(5, VOCABULARY - 1, (2 * BATCH, TOKENS))
    ids[:, -1] = VOCABULARY - 1
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": torch.randn(BATCH, 3, SIDE, SIDE)}


def detection_loss(output: Any) -> Any:
    import torch

    logits = output.logits
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.zeros_like(logits)) + output.pred_boxes.abs().mean()


def depth_loss(output: Any) -> Any:
    return (output.predicted_depth - 1).abs().mean()


def feature_loss(output: Any) -> Any:
    return output.last_hidden_state.pow(2).mean()


def restoration_loss(output: Any) -> Any:
    return output.reconstruction.abs().mean()


def question_about_image(config: Any) -> dict[str, Any]:
    """ViLT: a question about an image and a score for each answer."""
    import torch

    return {**caption(config), "labels": torch.rand(BATCH, CLASSES)}


# fmt: off
HIDDEN = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
VIT = {**HIDDEN, "image_size": SIDE, "patch_size": 8, "num_labels": CLASSES}
SWIN = {"image_size": SIDE, "patch_size": 2, "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 2], "window_size": 4,
        "num_labels": CLASSES}
STAGES = {"hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 1, 1], "num_labels": CLASSES}
PYRAMID = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 32, 64], "num_attention_heads": [1, 2, 4, 8]}
TEXT = {**HIDDEN, "vocab_size": VOCABULARY, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": VOCABULARY - 1,
        "pad_token_id": 1}
VISION = {**HIDDEN, "image_size": SIDE, "patch_size": 8}
DETR = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_queries": 6, "num_labels": CLASSES}
LLAMA = {**HIDDEN, "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 128, "pad_token_id": 0}
# fmt: on


def small_resnet() -> Any:
    from transformers import ResNetConfig

    return ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 1, 1], layer_type="basic", out_features=["stage4"]
    )


def with_backbone(kind: str, **options: Any) -> Any:
    """A configuration of the DETR family with a small ResNet."""
    import transformers

    backbone = small_resnet()
    backbone.out_features = options.pop("stages", ["stage4"])
    return getattr(transformers, kind)(
        **{**DETR, "use_timm_backbone": False, "backbone_config": backbone, "backbone": None, **options}
    )


def deformable_detr() -> Any:
    return with_backbone(
        "DeformableDetrConfig", stages=["stage2", "stage3", "stage4"], num_feature_levels=3, encoder_n_points=2, decoder_n_points=2
    )


def real_time_detr() -> Any:
    from transformers import RTDetrConfig, RTDetrResNetConfig

    backbone = RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    return RTDetrConfig(
        backbone_config=backbone, backbone=None, encoder_hidden_dim=32, encoder_in_channels=[16, 32, 64], encoder_ffn_dim=64,
        encoder_attention_heads=2, d_model=32, num_queries=10, decoder_in_channels=[32, 32, 32], decoder_ffn_dim=64,
        decoder_layers=2, decoder_attention_heads=2, num_denoising=4, num_labels=CLASSES, anchor_image_size=None,
    )  # fmt: skip


def mask2former() -> Any:
    from transformers import Mask2FormerConfig, SwinConfig

    backbone = SwinConfig(
        image_size=64, patch_size=4, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2], window_size=4,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    return Mask2FormerConfig(
        backbone_config=backbone, hidden_dim=32, mask_feature_size=32, feature_size=32, num_queries=6, num_labels=CLASSES,
        encoder_layers=1, decoder_layers=2, num_attention_heads=4, dim_feedforward=32, encoder_feedforward_dim=32,
        train_num_points=64,
    )  # fmt: skip


def maskformer() -> Any:
    from transformers import DetrConfig, MaskFormerConfig, SwinConfig

    backbone = SwinConfig(
        image_size=64, patch_size=4, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2], window_size=4,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    return MaskFormerConfig(
        backbone_config=backbone,
        decoder_config=DetrConfig(**DETR).to_dict(),
        fpn_feature_size=32,
        mask_feature_size=32,
        num_labels=CLASSES,
    )


def upernet() -> Any:
    from transformers import ConvNextConfig, UperNetConfig

    backbone = ConvNextConfig(
        hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 1, 1], out_features=["stage1", "stage2", "stage3", "stage4"]
    )
    return UperNetConfig(
        backbone_config=backbone,
        hidden_size=32,
        num_labels=CLASSES,
        auxiliary_in_channels=32,
        auxiliary_channels=16,
        pool_scales=[1, 2],
    )


def depth_anything() -> Any:
    from transformers import DepthAnythingConfig, Dinov2Config

    backbone = Dinov2Config(**{**VIT, "num_hidden_layers": 4}, out_indices=[1, 2, 3, 4], reshape_hidden_states=False)
    return DepthAnythingConfig(
        backbone_config=backbone, patch_size=8, reassemble_hidden_size=32, neck_hidden_sizes=[8, 16, 32, 32], fusion_hidden_size=16,
        head_hidden_size=8,
    )  # fmt: skip


def of_parts(kind: str, *, text: dict[str, Any] | None = None, vision: dict[str, Any] | None = None, **options: Any) -> Any:
    """A configuration with one part for text and one for images."""
    import transformers

    parts = {**({"text_config": text} if text else {}), **({"vision_config": vision} if vision else {})}
    return getattr(transformers, kind)(**parts, **options)


def llava() -> Any:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig

    return LlavaConfig(
        vision_config=CLIPVisionConfig(**VISION), text_config=LlamaConfig(**LLAMA), image_token_index=100, image_seq_length=16,
        vision_feature_select_strategy="default", vision_feature_layer=-1,
    )  # fmt: skip


def paligemma() -> Any:
    from transformers import GemmaConfig, PaliGemmaConfig, SiglipVisionConfig

    return PaliGemmaConfig(
        vision_config=SiglipVisionConfig(**VISION, projection_dim=32).to_dict(),
        text_config=GemmaConfig(**LLAMA, head_dim=8).to_dict(), image_token_index=100, projection_dim=32,
    )  # fmt: skip


def qwen_vl(kind: str, vision: dict[str, Any], rope: dict[str, Any]) -> Any:
    import transformers

    text = {**LLAMA, "rope_scaling": rope, "rope_parameters": {"rope_theta": 10000.0, **rope}, "head_dim": 8}
    ids = {"image_token_id": 100, "video_token_id": 101, "vision_start_token_id": 99, "vision_end_token_id": 98}
    return getattr(transformers, kind)(text_config=text, vision_config=vision, **ids)


def sam() -> Any:
    return of_parts(
        "SamConfig",
        vision={**VISION, "output_channels": 16, "window_size": 2, "num_pos_feats": 8, "mlp_dim": 64, "global_attn_indexes": [1]},
        prompt_encoder_config={
            "hidden_size": 16, "image_size": SIDE, "patch_size": 8, "image_embedding_size": 4, "mask_input_channels": 4,
        },
        mask_decoder_config={
            "hidden_size": 16, "mlp_dim": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "iou_head_hidden_dim": 16,
        },
    )  # fmt: skip


def git_config() -> Any:
    from transformers import GitConfig

    return GitConfig(vision_config=VISION, **TEXT)


def image_to_text() -> Any:
    from transformers import BertConfig, VisionEncoderDecoderConfig, ViTConfig

    decoder = BertConfig(**TEXT, is_decoder=True, add_cross_attention=True)
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(ViTConfig(**VIT), decoder)
    config.decoder_start_token_id, config.pad_token_id = 0, 1
    return config


def image_labels(config: Any) -> dict[str, Any]:
    import torch

    return {"pixel_values": torch.randn(BATCH, 3, SIDE, SIDE), "labels": torch.randint(5, VOCABULARY, (BATCH, 9))}


def blip2() -> Any:
    from transformers import Blip2Config, Blip2QFormerConfig, Blip2VisionConfig, OPTConfig

    text = OPTConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, ffn_dim=64, num_attention_heads=4,
                     max_position_embeddings=64, word_embed_proj_dim=32)  # fmt: skip
    former = Blip2QFormerConfig(**{**HIDDEN, "vocab_size": VOCABULARY}, encoder_hidden_size=32, cross_attention_frequency=1)
    return Blip2Config(
        vision_config=Blip2VisionConfig(**VISION).to_dict(), qformer_config=former.to_dict(), text_config=text.to_dict(),
        num_query_tokens=4, image_token_index=100, image_token_id=100,
    )  # fmt: skip


# fmt: off
classified, pixels, located = image, partial(image, labels="pixels"), partial(image, labels="boxes", side=64)
QWEN2_VISION = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 8, "spatial_merge_size": 2,
                "temporal_patch_size": 2, "mlp_ratio": 2}
QWEN25_VISION = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "out_hidden_size": 32, "num_heads": 4, "patch_size": 8,
                 "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 32, "fullatt_block_indexes": [1]}
QWEN3_VISION = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "out_hidden_size": 32, "num_heads": 4, "patch_size": 8,
                "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
MROPE = {"rope_type": "default", "mrope_section": [1, 1, 2]}

ROWS: dict[str, Row] = {
    "vit":               Row("ViTForImageClassification", VIT, classified),
    "deit":              Row("DeiTForImageClassification", VIT, classified),
    "vit-msn":           Row("ViTMSNForImageClassification", VIT, classified),
    "dinov2":            Row("Dinov2ForImageClassification", VIT, classified),
    "ijepa":             Row("IJepaForImageClassification", VIT, classified),
    "vit-mae":           Row("ViTMAEForPreTraining", {**VIT, "decoder_hidden_size": 32, "decoder_num_hidden_layers": 1,
                             "decoder_num_attention_heads": 4, "decoder_intermediate_size": 64}, partial(image, labels="")),
    "vit-simmim":        Row("ViTForMaskedImageModeling", {**VIT, "encoder_stride": 8}, partial(hidden_patches, patches=16)),
    "beit":              Row("BeitForImageClassification", {**VIT, "use_relative_position_bias": True}, classified),
    "beit-pretraining":  Row("BeitForMaskedImageModeling", {**VIT, "vocab_size": 50, "use_mask_token": True},
                             lambda config: {**hidden_patches(config, patches=16), "labels": _codes()}),
    "data2vec-vision":   Row("Data2VecVisionForImageClassification", VIT, classified),
    "swin":              Row("SwinForImageClassification", SWIN, classified),
    "swinv2":            Row("Swinv2ForImageClassification", SWIN, classified),
    "swin2sr":           Row("Swin2SRForImageSuperResolution", {"image_size": 16, "patch_size": 1, "embed_dim": 16,
                             "depths": [1, 1], "num_heads": [2, 2], "window_size": 8}, partial(image, labels="", side=16),
                             restoration_loss),
    "convnext":          Row("ConvNextForImageClassification", STAGES, classified),
    "convnextv2":        Row("ConvNextV2ForImageClassification", STAGES, classified),
    "resnet":            Row("ResNetForImageClassification", {"embedding_size": 8, **STAGES}, classified),
    "regnet":            Row("RegNetForImageClassification", {"embedding_size": 8, "groups_width": 4, **STAGES}, classified),
    "bit":               Row("BitForImageClassification", {"embedding_size": 8, "num_groups": 2, **STAGES}, classified),
    "efficientnet":      Row("EfficientNetForImageClassification", {"image_size": SIDE, "width_coefficient": 0.25,
                             "depth_coefficient": 0.5, "hidden_dim": 320, "num_labels": CLASSES}, classified),
    "mobilenet-v2":      Row("MobileNetV2ForImageClassification", {"depth_multiplier": 0.35, "num_labels": CLASSES}, classified),
    "mobilevit":         Row("MobileViTForImageClassification", {"image_size": SIDE, "hidden_sizes": [16, 20, 24],
                             "neck_hidden_sizes": [8, 8, 16, 16, 20, 24, 32], "num_labels": CLASSES}, classified),
    "levit":             Row("LevitForImageClassification", {"image_size": 64, "hidden_sizes": [16, 32, 48], "depths": [1, 1, 1],
                             "num_attention_heads": [2, 2, 2], "key_dim": [8, 8, 8], "num_labels": CLASSES},
                             partial(image, side=64)),
    "pvt":               Row("PvtForImageClassification", {"image_size": SIDE, "hidden_sizes": [8, 16, 32, 64],
                             "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 4, 8], "num_labels": CLASSES}, classified),
    "poolformer":        Row("PoolFormerForImageClassification", STAGES, classified),
    "focalnet":          Row("FocalNetForImageClassification", {"image_size": SIDE, "embed_dim": 8, "depths": [1, 1],
                             "hidden_sizes": [8, 16], "focal_levels": [2, 2], "focal_windows": [3, 3], "num_labels": CLASSES},
                             classified),
    "hiera":             Row("HieraForImageClassification", {"image_size": [64, 64], "embed_dim": 8, "depths": [1, 1, 1, 1],
                             "num_heads": [1, 1, 2, 2], "num_labels": CLASSES}, partial(image, side=64)),
    "perceiver-image":   Row("PerceiverForImageClassificationLearned", {"d_model": 512, "num_latents": 8, "d_latents": 32,
                             "num_blocks": 1, "num_self_attends_per_block": 1, "num_self_attention_heads": 4,
                             "num_cross_attention_heads": 1, "image_size": SIDE, "num_labels": CLASSES},
                             lambda config: {"inputs": (batch := image(config)).pop("pixel_values"), **batch}),
    "segformer-pixels":  Row("SegformerForSemanticSegmentation", {**PYRAMID, "decoder_hidden_size": 32, "num_labels": CLASSES},
                             partial(image, labels="pixels", side=64)),
    "segformer-class":   Row("SegformerForImageClassification", {**PYRAMID, "num_labels": CLASSES}, classified),
    "dpt-pixels":        Row("DPTForSemanticSegmentation", {**VIT, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3],
                             "neck_hidden_sizes": [8, 16, 32, 32], "fusion_hidden_size": 16, "is_hybrid": False}, pixels),
    "dpt-depth":         Row("DPTForDepthEstimation", {**VIT, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3],
                             "neck_hidden_sizes": [8, 16, 32, 32], "fusion_hidden_size": 16, "is_hybrid": False},
                             partial(image, labels=""), depth_loss),
    "depth-anything":    Row("DepthAnythingForDepthEstimation", depth_anything, partial(image, labels=""), depth_loss),
    "glpn":              Row("GLPNForDepthEstimation", {**PYRAMID, "decoder_hidden_size": 16},
                             partial(image, labels="pixels", side=64)),
    "upernet":           Row("UperNetForSemanticSegmentation", upernet, partial(image, labels="pixels", side=64)),
    "mobilevit-pixels":  Row("MobileViTForSemanticSegmentation", {"image_size": 64, "hidden_sizes": [16, 20, 24],
                             "neck_hidden_sizes": [8, 8, 16, 16, 20, 24, 32], "num_labels": CLASSES},
                             partial(image, labels="pixels", side=64)),
    # detection and segments
    "detr":              Row("DetrForObjectDetection", partial(with_backbone, "DetrConfig"), located),
    "conditional-detr":  Row("ConditionalDetrForObjectDetection", partial(with_backbone, "ConditionalDetrConfig"), located),
    "deformable-detr":   Row("DeformableDetrForObjectDetection", deformable_detr, located),
    "table-transformer": Row("TableTransformerForObjectDetection", partial(with_backbone, "TableTransformerConfig"), located),
    "rt-detr":           Row("RTDetrForObjectDetection", real_time_detr, located),
    "yolos":             Row("YolosForObjectDetection", {**VIT, "image_size": [64, 64], "num_detection_tokens": 6}, located),
    "mask2former":       Row("Mask2FormerForUniversalSegmentation", mask2former, segments),
    "maskformer":        Row("MaskFormerForInstanceSegmentation", maskformer, segments),
    "owlvit":            Row("OwlViTForObjectDetection", partial(of_parts, "OwlViTConfig", projection_dim=32, vision=VISION,
                             text={**TEXT, "max_position_embeddings": 16}), detection_queries, detection_loss),
    "sam":               Row("SamModel", sam, prompted_masks, mask_loss),
    # video
    "videomae-pretraining": Row("VideoMAEForPreTraining", {**VIT, "num_frames": 4, "decoder_hidden_size": 32,
                             "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 4, "decoder_intermediate_size": 64},
                             partial(hidden_patches, patches=32, frames=4)),
    "videomae":          Row("VideoMAEForVideoClassification", {**VIT, "num_frames": 4}, partial(image, frames=4)),
    "timesformer":       Row("TimesformerForVideoClassification", {**VIT, "num_frames": 4}, partial(image, frames=4)),
    "vivit":             Row("VivitForVideoClassification", {**VIT, "num_frames": 4, "tubelet_size": [2, 8, 8]},
                             partial(image, frames=4)),
    # images and text
    "clip":              Row("CLIPModel", partial(of_parts, "CLIPConfig", text=TEXT, vision=VISION, projection_dim=32),
                             partial(caption, return_loss=True)),
    "siglip":            Row("SiglipModel", partial(of_parts, "SiglipConfig", text={**TEXT, "max_position_embeddings": 16},
                             vision=VISION), partial(caption, return_loss=True)),
    "chinese-clip":      Row("ChineseCLIPModel", partial(of_parts, "ChineseCLIPConfig", text=TEXT, vision=VISION,
                             projection_dim=32), partial(caption, return_loss=True)),
    "blip-caption":      Row("BlipForConditionalGeneration", partial(of_parts, "BlipConfig", text={**TEXT, "sep_token_id": 2,
                             "encoder_hidden_size": 32}, vision=VISION, projection_dim=32), captioned),
    "blip2":             Row("Blip2ForConditionalGeneration", blip2, partial(dialogue, patches=4, token=100)),
    "git":               Row("GitForCausalLM", git_config, captioned),
    "vilt":              Row("ViltForQuestionAnswering", {**TEXT, "image_size": SIDE, "patch_size": 8, "num_labels": CLASSES},
                             question_about_image),
    "llava":             Row("LlavaForConditionalGeneration", llava, partial(dialogue, patches=16, token=100)),
    "paligemma":         Row("PaliGemmaForConditionalGeneration", paligemma, lambda config: _typed(dialogue(config, patches=16,
                             token=100))),
    "qwen2-vl":          Row("Qwen2VLForConditionalGeneration", partial(qwen_vl, "Qwen2VLConfig", QWEN2_VISION, MROPE),
                             partial(qwen_dialogue, token=100, patch_values=3 * 2 * 8 * 8, kinds=True)),
    "qwen2.5-vl":        Row("Qwen2_5_VLForConditionalGeneration", partial(qwen_vl, "Qwen2_5_VLConfig", QWEN25_VISION, MROPE),
                             partial(qwen_dialogue, token=100, patch_values=3 * 2 * 8 * 8, kinds=True)),
    "qwen3-vl":          Row("Qwen3VLForConditionalGeneration", partial(qwen_vl, "Qwen3VLConfig", QWEN3_VISION, MROPE),
                             partial(qwen_dialogue, token=100, patch_values=3 * 2 * 8 * 8, kinds=True)),
    "image-to-text":     Row("VisionEncoderDecoderModel", image_to_text, image_labels),
}
# fmt: on


def _codes() -> Any:
    """BEiT's labels are the codes of the hidden patches, of all samples in one row."""
    import torch

    return torch.randint(0, 50, (BATCH * 8,))


def _typed(batch: dict[str, Any]) -> dict[str, Any]:
    """PaliGemma's prefix is image and prompt, which see each other; its suffix is generated."""
    import torch

    return {**batch, "token_type_ids": (torch.arange(batch["input_ids"].shape[1]) > 20).long().expand(BATCH, -1).contiguous()}
