"""A training step of one's own: two models, two losses, clipped gradients."""

import torch
from torch import nn

import trainyard as ty

encoder = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 32))
decoder = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 784))
optimizer = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters()], lr=1e-3)


def train_step(batch: int = 64) -> None:
    """What the loop does once. An argument is the batch size: with it, the Step can be rebatched."""
    images = torch.randn(batch, 784)
    code = encoder(images)
    loss = nn.functional.mse_loss(decoder(code), images) + 1e-3 * code.abs().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
    optimizer.step()


step = ty.capture(train_step, model={"encoder": encoder, "decoder": decoder}, name="autoencoder")
result = ty.run(step, on="npu")
result.table(by="layer")
print(result.explain("decoder.2"))
ty.compare(step.rebatch(1024), on="npu, npu(dram=75 GB/s), tpu").table()
