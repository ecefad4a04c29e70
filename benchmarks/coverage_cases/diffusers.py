"""Models of diffusers, tiny and with random weights, each with the loss of its training script.

`MODELS` are single models: the mean squared error between the predicted and the true noise (or velocity), or the reconstruction
loss of an autoencoder. `diffusion_scripts` has whole training steps of the library's scripts: scheduler, random timesteps, frozen
text encoder and autoencoder.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from coverage_cases.case import Case, Training
from coverage_cases.diffusion_scripts import SCRIPTS

BLOCKS = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8}
CROSS = {
    **BLOCKS, "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"), "cross_attention_dim": 16, "attention_head_dim": 4,
}  # fmt: skip
UNET = {**CROSS, "sample_size": 16, "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D")}
HEADS = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2}
VIDEO = {"block_out_channels": (32, 32), "layers_per_block": 1, "cross_attention_dim": 16}


def _noise(*shape: int) -> Any:
    import torch

    return torch.randn(*shape)


def _steps(count: int = 2) -> Any:
    import torch

    return torch.randint(0, 1000, (count,))


# fmt: off
Inputs = Callable[[], dict[str, Any]]
MODELS: dict[str, tuple[str, dict[str, Any], Inputs]] = {
    "unet": ("UNet2DModel",
        {**BLOCKS, "sample_size": 16, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D",
         "UpBlock2D"), "attention_head_dim": 4},
        lambda: {"sample": _noise(2, 3, 16, 16), "timestep": _steps()}),
    "unet with class labels": ("UNet2DModel",
        {**BLOCKS, "sample_size": 16, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D",
         "UpBlock2D"), "attention_head_dim": 4, "num_class_embeds": 10},
        lambda: {"sample": _noise(2, 3, 16, 16), "timestep": _steps(), "class_labels": _steps() % 10}),
    "unet without attention, scale and shift": ("UNet2DModel",
        {**BLOCKS, "sample_size": 16, "down_block_types": ("ResnetDownsampleBlock2D", "DownBlock2D"),
         "up_block_types": ("UpBlock2D",
         "ResnetUpsampleBlock2D"), "add_attention": False, "resnet_time_scale_shift": "scale_shift"},
        lambda: {"sample": _noise(2, 3, 16, 16), "timestep": _steps()}),
    "conditional unet": ("UNet2DConditionModel", UNET,
        lambda: {"sample": _noise(2, 4, 16, 16), "timestep": _steps(), "encoder_hidden_states": _noise(2, 8, 16)}),
    "conditional unet, masked text": ("UNet2DConditionModel", UNET,
        lambda: {"sample": _noise(2, 4, 16, 16), "timestep": _steps(), "encoder_hidden_states": _noise(2, 8, 16),
                 "encoder_attention_mask": _steps(16).reshape(2, 8) > 300}),
    "conditional unet of SDXL": ("UNet2DConditionModel",
        {**UNET, "addition_embed_type": "text_time", "addition_time_embed_dim": 8, "projection_class_embeddings_input_dim": 80,
         "transformer_layers_per_block": (1, 2), "use_linear_projection": True},
        lambda: {"sample": _noise(2, 4, 16, 16), "timestep": _steps(), "encoder_hidden_states": _noise(2, 8, 16),
                 "added_cond_kwargs": {"text_embeds": _noise(2, 32), "time_ids": _noise(2, 6)}}),
    "conditional unet, simple cross attention": ("UNet2DConditionModel",
        {**UNET, "down_block_types": ("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
         "up_block_types": ("SimpleCrossAttnUpBlock2D",
         "ResnetUpsampleBlock2D"), "mid_block_type": "UNetMidBlock2DSimpleCrossAttn"},
        lambda: {"sample": _noise(2, 4, 16, 16), "timestep": _steps(), "encoder_hidden_states": _noise(2, 8, 16)}),
    "unet over one dimension": ("UNet1DModel", {"sample_size": 64, "extra_in_channels": 64},
        lambda: {"sample": _noise(2, 2, 64), "timestep": _steps()}),
    "unet of a planner": ("UNet1DModel",
        {"sample_size": 64, "in_channels": 14, "out_channels": 14, "time_embedding_type": "positional",
         "use_timestep_embedding": True,
         "flip_sin_to_cos": False, "freq_shift": 1.0, "out_block_type": "OutConv1DBlock", "mid_block_type": "MidResTemporalBlock1D",
         "down_block_types": ("DownResnetBlock1D", "DownResnetBlock1D"), "up_block_types": ("UpResnetBlock1D",), "act_fn": "swish",
         "block_out_channels": (32, 64)},
        lambda: {"sample": _noise(2, 14, 16), "timestep": _steps()}),
    "video unet": ("UNet3DConditionModel",
        {**VIDEO, "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"), "up_block_types": ("UpBlock3D",
         "CrossAttnUpBlock3D"), "attention_head_dim": 8},
        lambda: {"sample": _noise(2, 4, 3, 16, 16), "timestep": _steps(), "encoder_hidden_states": _noise(2, 8, 16)}),
    "motion unet": ("UNetMotionModel",
        {**VIDEO, "down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"), "up_block_types": ("UpBlockMotion",
         "CrossAttnUpBlockMotion"), "num_attention_heads": 2, "motion_num_attention_heads": 2},
        lambda: {"sample": _noise(2, 4, 3, 16, 16), "timestep": _steps(), "encoder_hidden_states": _noise(6, 8, 16)}),
    "spatio-temporal unet": ("UNetSpatioTemporalConditionModel",
        {**VIDEO, "sample_size": 16, "down_block_types": ("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
         "num_attention_heads": 2,
         "up_block_types": ("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"), "addition_time_embed_dim": 8,
         "projection_class_embeddings_input_dim": 24},
        lambda: {"sample": _noise(2, 2, 8, 16, 16), "timestep": _steps(), "encoder_hidden_states": _noise(2, 1, 16),
                 "added_time_ids": _noise(2, 3)}),
    "dit": ("DiTTransformer2DModel", {**HEADS, "sample_size": 8, "in_channels": 4, "num_embeds_ada_norm": 100},
        lambda: {"hidden_states": _noise(2, 4, 8, 8), "timestep": _steps() % 100, "class_labels": _steps() % 100}),
    "transformer over patches": ("Transformer2DModel",
        {**HEADS, "sample_size": 8, "in_channels": 16, "norm_num_groups": 8, "cross_attention_dim": 16},
        lambda: {"hidden_states": _noise(2, 16, 8, 8), "encoder_hidden_states": _noise(2, 8, 16)}),
    "pixart": ("PixArtTransformer2DModel",
        {**HEADS, "sample_size": 8, "out_channels": 4, "cross_attention_dim": 32, "caption_channels": 16,
         "use_additional_conditions": False},
        lambda: {"hidden_states": _noise(2, 4, 8, 8), "timestep": _steps(), "encoder_hidden_states": _noise(2, 8, 16),
                 "added_cond_kwargs": {"resolution": None, "aspect_ratio": None}}),
    "sd3": ("SD3Transformer2DModel",
        {**HEADS, "sample_size": 8, "in_channels": 4, "out_channels": 4, "joint_attention_dim": 16, "caption_projection_dim": 32,
         "pooled_projection_dim": 16, "pos_embed_max_size": 8},
        lambda: {"hidden_states": _noise(2, 4, 8, 8), "timestep": _steps(), "encoder_hidden_states": _noise(2, 8, 16),
                 "pooled_projections": _noise(2, 16)}),
    "sd3.5": ("SD3Transformer2DModel",
        {**HEADS, "sample_size": 8, "in_channels": 4, "out_channels": 4, "joint_attention_dim": 16, "caption_projection_dim": 32,
         "pooled_projection_dim": 16, "pos_embed_max_size": 8, "dual_attention_layers": (0,), "qk_norm": "rms_norm"},
        lambda: {"hidden_states": _noise(2, 4, 8, 8), "timestep": _steps(), "encoder_hidden_states": _noise(2, 8, 16),
                 "pooled_projections": _noise(2, 16)}),
    "flux": ("FluxTransformer2DModel",
        {**HEADS, "in_channels": 16, "num_single_layers": 2, "joint_attention_dim": 16, "pooled_projection_dim": 16,
         "guidance_embeds": True, "axes_dims_rope": (4, 4, 8)},
        lambda: {"hidden_states": _noise(2, 16, 16), "timestep": _steps() / 1000, "encoder_hidden_states": _noise(2, 8, 16),
                 "pooled_projections": _noise(2, 16), "img_ids": _noise(16, 3), "txt_ids": _noise(8, 3), "guidance": _noise(2)}),
    "flux 2": ("Flux2Transformer2DModel",
        {**HEADS, "in_channels": 16, "num_single_layers": 2, "joint_attention_dim": 16, "timestep_guidance_channels": 16,
         "axes_dims_rope": (4, 4, 4, 4)},
        lambda: {"hidden_states": _noise(2, 16, 16), "timestep": _steps() / 1000, "encoder_hidden_states": _noise(2, 8, 16),
                 "img_ids": _noise(16, 4), "txt_ids": _noise(8, 4), "guidance": _noise(2)}),
    "sana": ("SanaTransformer2DModel",
        {**HEADS, "in_channels": 4, "out_channels": 4, "num_cross_attention_heads": 2, "cross_attention_head_dim": 16,
         "cross_attention_dim": 32, "caption_channels": 16, "sample_size": 8},
        lambda: {"hidden_states": _noise(2, 4, 8, 8), "timestep": _steps(), "encoder_hidden_states": _noise(2, 8, 16)}),
    "auraflow": ("AuraFlowTransformer2DModel",
        {"sample_size": 8, "in_channels": 4, "out_channels": 4, "num_mmdit_layers": 1, "num_single_dit_layers": 1,
         "num_attention_heads": 2,
         "attention_head_dim": 16, "joint_attention_dim": 16, "caption_projection_dim": 32, "pos_embed_max_size": 64},
        lambda: {"hidden_states": _noise(2, 4, 8, 8), "timestep": _steps() / 1000, "encoder_hidden_states": _noise(2, 8, 16)}),
    "lumina 2": ("Lumina2Transformer2DModel",
        {"sample_size": 8, "in_channels": 4, "hidden_size": 24, "num_layers": 2, "num_refiner_layers": 1, "num_attention_heads": 2,
         "num_kv_heads": 1, "multiple_of": 8, "axes_dim_rope": (4, 4, 4), "axes_lens": (16, 16, 16), "cap_feat_dim": 16},
        lambda: {"hidden_states": _noise(2, 4, 8, 8), "timestep": _steps() / 1000, "encoder_hidden_states": _noise(2, 8, 16),
                 "encoder_attention_mask": _steps(16).reshape(2, 8) >= 0}),
    "cogview 4": ("CogView4Transformer2DModel",
        {**HEADS, "in_channels": 4, "out_channels": 4, "text_embed_dim": 16, "time_embed_dim": 16, "condition_dim": 8,
         "pos_embed_max_size": 8, "sample_size": 8, "rope_axes_dim": (8, 8)},
        lambda: {"hidden_states": _noise(2, 4, 8, 8), "timestep": _steps(), "encoder_hidden_states": _noise(2, 8, 16),
                 "original_size": _noise(2, 2), "target_size": _noise(2, 2), "crop_coords": _noise(2, 2)}),
    "cogvideox": ("CogVideoXTransformer3DModel",
        {**HEADS, "in_channels": 4, "out_channels": 4, "time_embed_dim": 8, "text_embed_dim": 16, "sample_width": 8,
         "sample_height": 8, "sample_frames": 9, "max_text_seq_length": 8},
        lambda: {"hidden_states": _noise(2, 3, 4, 8, 8), "timestep": _steps(), "encoder_hidden_states": _noise(2, 8, 16)}),
    "wan": ("WanTransformer3DModel",
        {**HEADS, "in_channels": 4, "out_channels": 4, "text_dim": 16, "freq_dim": 16, "ffn_dim": 32, "rope_max_seq_len": 32},
        lambda: {"hidden_states": _noise(2, 4, 3, 8, 8), "timestep": _steps(), "encoder_hidden_states": _noise(2, 8, 16)}),
    "ltx video": ("LTXVideoTransformer3DModel",
        {**HEADS, "in_channels": 8, "out_channels": 8, "cross_attention_dim": 32, "caption_channels": 16},
        lambda: {"hidden_states": _noise(2, 32, 8), "timestep": _steps(), "encoder_hidden_states": _noise(2, 8, 16),
                 "encoder_attention_mask": _steps(16).reshape(2, 8) >= 0, "num_frames": 2, "height": 4, "width": 4}),
    "hunyuan video": ("HunyuanVideoTransformer3DModel",
        {**HEADS, "in_channels": 4, "out_channels": 4, "num_layers": 1, "num_single_layers": 1, "num_refiner_layers": 1,
         "text_embed_dim": 16, "pooled_projection_dim": 8, "rope_axes_dim": (4, 4, 8)},
        lambda: {"hidden_states": _noise(2, 4, 3, 8, 8), "timestep": _steps(), "encoder_hidden_states": _noise(2, 8, 16),
                 "encoder_attention_mask": _steps(16).reshape(2, 8) >= 0, "pooled_projections": _noise(2, 8),
                                           "guidance": _noise(2)}),
    "mochi": ("MochiTransformer3DModel",
        {**HEADS, "pooled_projection_dim": 16, "in_channels": 4, "text_embed_dim": 16, "time_embed_dim": 4,
         "max_sequence_length": 8},
        lambda: {"hidden_states": _noise(2, 4, 2, 8, 8), "timestep": _steps(), "encoder_hidden_states": _noise(2, 8, 16),
                 "encoder_attention_mask": _steps(16).reshape(2, 8) >= 0}),
    "latte": ("LatteTransformer3DModel",
        {**HEADS, "in_channels": 4, "out_channels": 4, "sample_size": 8, "patch_size": 2, "cross_attention_dim": 32,
         "norm_type": "ada_norm_single", "caption_channels": 16, "norm_elementwise_affine": False, "video_length": 2},
        lambda: {"hidden_states": _noise(2, 4, 2, 8, 8), "timestep": _steps(), "encoder_hidden_states": _noise(2, 8, 16)}),
    "qwen image": ("QwenImageTransformer2DModel",
        {**HEADS, "in_channels": 16, "out_channels": 4, "joint_attention_dim": 16, "axes_dims_rope": (4, 4, 8)},
        lambda: {"hidden_states": _noise(2, 16, 16), "timestep": _steps() / 1000, "encoder_hidden_states": _noise(2, 8, 16),
                 "encoder_hidden_states_mask": _steps(16).reshape(2, 8) >= 0, "img_shapes": [(1, 4, 4)] * 2}),
    "prior": ("PriorTransformer",
        {**HEADS, "embedding_dim": 16, "num_embeddings": 8, "additional_embeddings": 4},
        lambda: {"hidden_states": _noise(2, 16), "timestep": _steps(), "proj_embedding": _noise(2, 16),
                 "encoder_hidden_states": _noise(2, 8, 16)}),
    "autoencoder": ("AutoencoderKL",
        {**BLOCKS, "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2},
        lambda: {"sample": _noise(2, 3, 16, 16)}),
    "autoencoder, sampled posterior": ("AutoencoderKL",
        {**BLOCKS, "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2},
        lambda: {"sample": _noise(2, 3, 16, 16), "sample_posterior": True}),
    "vector quantised autoencoder": ("VQModel",
        {**BLOCKS, "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2,
         "num_vq_embeddings": 32},
        lambda: {"sample": _noise(2, 3, 16, 16)}),
    "tiny autoencoder": ("AutoencoderTiny",
        {"encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8), "num_encoder_blocks": (1, 1),
         "num_decoder_blocks": (1, 1)},
        lambda: {"sample": _noise(2, 3, 16, 16)}),
    "deep compression autoencoder": ("AutoencoderDC",
        {"latent_channels": 4, "attention_head_dim": 4, "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
         "decoder_block_types": ("ResBlock",
         "EfficientViTBlock"), "encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8),
         "encoder_layers_per_block": (1, 1),
         "decoder_layers_per_block": (1, 1), "encoder_qkv_multiscales": ((), (5,)), "decoder_qkv_multiscales": ((), (5,))},
        lambda: {"sample": _noise(2, 3, 16, 16)}),
    "audio autoencoder": ("AutoencoderOobleck",
        {"encoder_hidden_size": 8, "downsampling_ratios": [2, 4], "channel_multiples": [1, 2], "decoder_channels": 8,
         "decoder_input_channels": 4},
        lambda: {"sample": _noise(2, 2, 64)}),
    "video autoencoder": ("AutoencoderKLWan",
        {"base_dim": 8, "z_dim": 4, "dim_mult": [1, 1], "num_res_blocks": 1, "temperal_downsample": [False],
         "latents_mean": [0.0] * 4, "latents_std": [1.0] * 4},
        lambda: {"sample": _noise(1, 3, 1, 16, 16)}),
}
# fmt: on


def build(class_name: str, changes: dict[str, Any], inputs: Inputs) -> Training:
    """The model, its inputs and the mean squared error to a target of the output's shape."""
    import diffusers
    import torch

    torch.manual_seed(0)
    model = getattr(diffusers, class_name)(**changes).train()
    example = inputs()
    with torch.no_grad():
        target = torch.randn_like(_prediction(model(**example)))

    def loss(output: Any, target: Any) -> Any:
        return torch.nn.functional.mse_loss(_prediction(output).float(), target.float())

    return Training(model, example, target, loss, torch.optim.AdamW(model.parameters(), lr=1e-4))


def _prediction(output: Any) -> Any:
    """The predicted tensor: the first field of the model's output."""
    return output[0]


def cases() -> list[Case]:
    models = [Case("diffusers", name, partial(build, *row)) for name, row in MODELS.items()]
    return models + [Case("diffusers", f"script: {name}", script) for name, script in SCRIPTS.items()]
