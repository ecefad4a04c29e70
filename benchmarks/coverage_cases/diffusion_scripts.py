"""Training steps as the scripts of diffusers write them: scheduler, random timesteps, frozen encoders, loss weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coverage_cases.case import Training

UNET: dict[str, Any] = {
    "sample_size": 16, "block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8, "cross_attention_dim": 16,
    "attention_head_dim": 4, "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"), "up_block_types": ("CrossAttnUpBlock2D",
                          "UpBlock2D"),
}  # fmt: skip


def _unconditional_unet() -> Any:
    from diffusers import UNet2DModel

    return UNet2DModel(
        sample_size=16, block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=8, attention_head_dim=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip


def _text_encoder() -> Any:
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(
        vocab_size=100, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=8,
        bos_token_id=0, eos_token_id=2, pad_token_id=1,
    )  # fmt: skip
    return CLIPTextModel(config)


def _autoencoder() -> Any:
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4, down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip


def unconditional() -> Training:
    """DDPM on images: noise prediction with clipped gradients and a cosine schedule."""
    import torch
    import torch.nn.functional as F
    from diffusers import DDPMScheduler
    from diffusers.optimization import get_scheduler

    torch.manual_seed(0)
    model = _unconditional_unet()
    scheduler = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    rates = get_scheduler("cosine", optimizer, num_warmup_steps=2, num_training_steps=100)

    def step(batch_size: int = 2) -> None:
        images = torch.randn(batch_size, 3, 16, 16)
        noise = torch.randn(images.shape)
        timesteps = torch.randint(0, scheduler.config.num_train_timesteps, (batch_size,), dtype=torch.int64)
        noisy = scheduler.add_noise(images, noise, timesteps)
        loss = F.mse_loss(model(noisy, timesteps, return_dict=False)[0], noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rates.step()
        optimizer.zero_grad()

    return Training(model, step=step)


def text_to_image(*, prediction: str = "epsilon", snr_gamma: float | None = None, checkpointing: bool = False) -> Training:
    """Latent diffusion: frozen autoencoder and text encoder, a trained UNet."""
    import torch
    import torch.nn.functional as F
    from diffusers import DDPMScheduler, UNet2DConditionModel
    from diffusers.training_utils import compute_snr

    torch.manual_seed(0)
    unet, autoencoder, encoder = UNet2DConditionModel(**UNET), _autoencoder(), _text_encoder()
    autoencoder.requires_grad_(False)
    encoder.requires_grad_(False)
    if checkpointing:
        unet.enable_gradient_checkpointing()
    unet.train()
    scheduler = DDPMScheduler(num_train_timesteps=1000, prediction_type=prediction)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
    pixels, ids = torch.randn(2, 3, 32, 32), torch.randint(3, 100, (2, 8))

    def step() -> None:
        latents = autoencoder.encode(pixels).latent_dist.sample() * autoencoder.config.scaling_factor
        noise = torch.randn_like(latents)
        timesteps = torch.randint(0, scheduler.config.num_train_timesteps, (latents.shape[0],), device=latents.device).long()
        noisy = scheduler.add_noise(latents.float(), noise.float(), timesteps)
        hidden = encoder(ids, return_dict=False)[0]
        target = noise if scheduler.config.prediction_type == "epsilon" else scheduler.get_velocity(latents, noise, timesteps)
        predicted = unet(noisy, timesteps, hidden, return_dict=False)[0]
        if snr_gamma is None:
            loss = F.mse_loss(predicted.float(), target.float(), reduction="mean")
        else:
            snr = compute_snr(scheduler, timesteps)
            weights = torch.stack([snr, snr_gamma * torch.ones_like(timesteps)], dim=1).min(dim=1)[0] / snr
            loss = F.mse_loss(predicted.float(), target.float(), reduction="none")
            loss = (loss.mean(dim=list(range(1, len(loss.shape)))) * weights).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return Training(torch.nn.ModuleDict({"unet": unet, "autoencoder": autoencoder, "text_encoder": encoder}), step=step)


def text_to_image_lora() -> Training:
    """Low-rank adapters in the attention of a frozen UNet."""
    import torch
    import torch.nn.functional as F
    from diffusers import DDPMScheduler, UNet2DConditionModel
    from peft import LoraConfig

    torch.manual_seed(0)
    unet = UNet2DConditionModel(**UNET)
    unet.requires_grad_(False)
    unet.add_adapter(
        LoraConfig(r=4, lora_alpha=4, init_lora_weights="gaussian", target_modules=["to_k", "to_q", "to_v", "to_out.0"])
    )
    trained = [p for p in unet.parameters() if p.requires_grad]
    scheduler = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    latents, hidden = torch.randn(2, 4, 16, 16), torch.randn(2, 8, 16)

    def step() -> None:
        noise = torch.randn_like(latents)
        timesteps = torch.randint(0, scheduler.config.num_train_timesteps, (latents.shape[0],)).long()
        predicted = unet(scheduler.add_noise(latents, noise, timesteps), timesteps, hidden).sample
        F.mse_loss(predicted, noise).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return Training(unet, step=step)


def control_net() -> Training:
    """A trained ControlNet beside a frozen UNet."""
    import torch
    import torch.nn.functional as F
    from diffusers import ControlNetModel, DDPMScheduler, UNet2DConditionModel

    torch.manual_seed(0)
    unet = UNet2DConditionModel(**UNET)
    control = ControlNetModel.from_unet(unet, conditioning_channels=3)
    unet.requires_grad_(False)
    control.train()
    scheduler = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(control.parameters(), lr=1e-4)
    latents, image, hidden = torch.randn(2, 4, 16, 16), torch.randn(2, 3, 128, 128), torch.randn(2, 8, 16)

    def step() -> None:
        noise = torch.randn_like(latents)
        timesteps = torch.randint(0, scheduler.config.num_train_timesteps, (latents.shape[0],)).long()
        noisy = scheduler.add_noise(latents, noise, timesteps)
        down, middle = control(noisy, timesteps, encoder_hidden_states=hidden, controlnet_cond=image, return_dict=False)
        predicted = unet(
            noisy, timesteps, encoder_hidden_states=hidden, down_block_additional_residuals=down,
            mid_block_additional_residual=middle,
        ).sample  # fmt: skip
        F.mse_loss(predicted, noise).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Training(torch.nn.ModuleDict({"control": control, "unet": unet}), step=step)


def dreambooth() -> Training:
    """The loss of the instance images and that of the class images, from one batch; the text encoder is trained too."""
    import itertools

    import torch
    import torch.nn.functional as F
    from diffusers import DDPMScheduler, UNet2DConditionModel

    torch.manual_seed(0)
    unet, encoder = UNet2DConditionModel(**UNET), _text_encoder()
    scheduler = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(itertools.chain(unet.parameters(), encoder.parameters()), lr=1e-5)
    latents, ids = torch.randn(4, 4, 16, 16), torch.randint(3, 100, (4, 8))

    def step() -> None:
        noise = torch.randn_like(latents)
        timesteps = torch.randint(0, scheduler.config.num_train_timesteps, (latents.shape[0],)).long()
        predicted = unet(scheduler.add_noise(latents, noise, timesteps), timesteps, encoder(ids)[0]).sample
        predicted, prior = torch.chunk(predicted, 2, dim=0)
        target, prior_target = torch.chunk(noise, 2, dim=0)
        loss = F.mse_loss(predicted, target) + 1.0 * F.mse_loss(prior, prior_target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Training(torch.nn.ModuleDict({"unet": unet, "text_encoder": encoder}), step=step)


def average_of_weights() -> Training:
    """Unconditional training that keeps an exponential moving average of the weights."""
    import torch
    import torch.nn.functional as F
    from diffusers import DDPMScheduler
    from diffusers.training_utils import EMAModel

    torch.manual_seed(0)
    model = _unconditional_unet()
    average = EMAModel(model.parameters(), decay=0.9999, use_ema_warmup=True)
    scheduler = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(batch_size: int = 2) -> None:
        images = torch.randn(batch_size, 3, 16, 16)
        noise = torch.randn_like(images)
        timesteps = torch.randint(0, 1000, (batch_size,))
        F.mse_loss(model(scheduler.add_noise(images, noise, timesteps), timesteps).sample, noise).backward()
        optimizer.step()
        average.step(model.parameters())
        optimizer.zero_grad()

    return Training(model, step=step)


def rectified_flow() -> Training:
    """SD3: timesteps drawn from a logit-normal distribution, sigmas looked up in the schedule, weighted velocity loss."""
    import copy

    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel
    from diffusers.training_utils import compute_density_for_timestep_sampling, compute_loss_weighting_for_sd3

    torch.manual_seed(0)
    model = SD3Transformer2DModel(
        sample_size=8, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=16,
        caption_projection_dim=32, pooled_projection_dim=16, pos_embed_max_size=8,
    )  # fmt: skip
    scheduler = copy.deepcopy(FlowMatchEulerDiscreteScheduler())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    latents, prompt, pooled = torch.randn(2, 4, 8, 8), torch.randn(2, 8, 16), torch.randn(2, 16)

    def sigmas_of(timesteps: Any, dimensions: int) -> Any:
        indices = [(scheduler.timesteps == t).nonzero().item() for t in timesteps]
        sigma = scheduler.sigmas[indices].flatten()
        while len(sigma.shape) < dimensions:
            sigma = sigma.unsqueeze(-1)
        return sigma

    def step() -> None:
        noise = torch.randn_like(latents)
        density = compute_density_for_timestep_sampling(
            weighting_scheme="logit_normal", batch_size=latents.shape[0], logit_mean=0.0, logit_std=1.0, mode_scale=1.29
        )
        timesteps = scheduler.timesteps[(density * scheduler.config.num_train_timesteps).long()].to(device=latents.device)
        sigmas = sigmas_of(timesteps, latents.ndim)
        noisy = (1.0 - sigmas) * latents + sigmas * noise
        predicted = model(
            hidden_states=noisy, timestep=timesteps, encoder_hidden_states=prompt, pooled_projections=pooled, return_dict=False
        )[0]
        weighting = compute_loss_weighting_for_sd3(weighting_scheme="logit_normal", sigmas=sigmas)
        error = weighting.float() * (predicted.float() - (noise - latents).float()) ** 2
        error.reshape(error.shape[0], -1).mean(1).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return Training(model, step=step)


def accelerated() -> Training:
    """The unconditional script with accelerate: accumulation, mixed precision, clipped gradients when they are synchronised."""
    import torch
    import torch.nn.functional as F
    from diffusers import DDPMScheduler

    from coverage_cases.training_frameworks import accelerator_with

    torch.manual_seed(0)
    accelerator = accelerator_with(mixed_precision="bf16", gradient_accumulation_steps=1)
    scheduler = DDPMScheduler(num_train_timesteps=1000)
    model = _unconditional_unet()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-4))

    def step(batch_size: int = 2) -> None:
        images = torch.randn(batch_size, 3, 16, 16)
        noise = torch.randn_like(images)
        timesteps = torch.randint(0, 1000, (batch_size,))
        with accelerator.accumulate(model):
            loss = F.mse_loss(model(scheduler.add_noise(images, noise, timesteps), timesteps).sample.float(), noise.float())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return Training(model, step=step)


SCRIPTS: dict[str, Callable[[], Training]] = {
    "unconditional": unconditional,
    "text to image": text_to_image,
    "text to image, velocity": lambda: text_to_image(prediction="v_prediction"),
    "text to image, weighted by signal to noise": lambda: text_to_image(snr_gamma=5.0),
    "text to image, gradient checkpointing": lambda: text_to_image(checkpointing=True),
    "text to image, low-rank adapters": text_to_image_lora,
    "control net": control_net,
    "dreambooth": dreambooth,
    "moving average of the weights": average_of_weights,
    "rectified flow": rectified_flow,
    "accelerate": accelerated,
}
