"""Training steps of models that draw numbers, run over sequences, or change their weights or gradients on the way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from coverage_cases.case import Training
from coverage_cases.training_loops import CLASSES, FEATURES, classifier, samples


def packed_sequences() -> Training:
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.out = nn.LSTM(FEATURES, 32, num_layers=2, bidirectional=True, batch_first=True), nn.Linear(64, CLASSES)

        def forward(self, x: Any, lengths: Any) -> Any:
            packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
            out, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
            return self.out(out.mean(dim=1))

    torch.manual_seed(0)
    model = Net()
    inputs = (torch.randn(4, 10, FEATURES), torch.tensor([10, 7, 9, 3]))
    return Training(model, inputs, torch.randint(0, CLASSES, (4,)), F.cross_entropy, torch.optim.AdamW(model.parameters()))


def stochastic_depth() -> Training:
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))

        def forward(self, x: Any) -> Any:
            keep = x.new_empty((x.shape[0], 1)).bernoulli_(0.8)
            return x + self.body(x) * keep.div_(0.8)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 64), *[Dropped() for _ in range(3)], nn.Linear(64, CLASSES))
    return Training(model, *samples(), F.cross_entropy, torch.optim.AdamW(model.parameters()))


def layers_skipped_at_random() -> Training:
    """LayerDrop: a layer runs or not by a random number that is read."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.layers, self.out = (
                nn.Linear(FEATURES, 64),
                nn.ModuleList(nn.Linear(64, 64) for _ in range(4)),
                nn.Linear(64, CLASSES),
            )

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            for layer in self.layers:
                if self.training and torch.rand([]) < 0.1:
                    continue
                x = x + torch.relu(layer(x))
            return self.out(x)

    torch.manual_seed(0)
    model = Net()
    return Training(model, *samples(), F.cross_entropy, torch.optim.AdamW(model.parameters()))


def random_sizes(way: str) -> Training:
    """Images of a size that is drawn at every step."""
    import random

    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, y = torch.randn(4, 3, 32, 32), torch.randint(0, CLASSES, (4,))

    def step() -> None:
        size = random.choice([16, 24, 32]) if way == "python" else 8 * int(torch.randint(2, 5, (1,)).item())
        optimizer.zero_grad()
        F.cross_entropy(model(F.interpolate(images, size=(size, size), mode="bilinear")), y).backward()
        optimizer.step()

    return Training(model, step=step)


def mixup(way: str) -> Training:
    import random

    import torch
    import torch.nn.functional as F

    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = samples()

    def step() -> None:
        share = torch.distributions.Beta(0.4, 0.4).sample().item() if way == "distribution" else random.betavariate(0.4, 0.4)
        order = torch.randperm(x.size(0))
        optimizer.zero_grad()
        out = model(share * x + (1 - share) * x[order])
        (share * F.cross_entropy(out, y) + (1 - share) * F.cross_entropy(out, y[order])).backward()
        optimizer.step()

    return Training(model, step=step)


def policy_gradient() -> Training:
    """Actions sampled from a categorical distribution, advantages, clipped ratios (PPO)."""
    import torch
    from torch import nn
    from torch.distributions import Categorical

    torch.manual_seed(0)
    actor, critic = classifier(), nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=3e-4)
    states, rewards = torch.randn(16, FEATURES), torch.rand(16)

    def step() -> None:
        with torch.no_grad():
            before = Categorical(logits=actor(states))
            actions = before.sample()
            old = before.log_prob(actions)
            advantage = rewards - critic(states).squeeze(-1)
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        now = Categorical(logits=actor(states))
        ratio = (now.log_prob(actions) - old).exp()
        policy = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        value = (critic(states).squeeze(-1) - rewards).pow(2).mean()
        optimizer.zero_grad()
        (policy + 0.5 * value - 0.01 * now.entropy().mean()).backward()
        torch.nn.utils.clip_grad_norm_(actor.parameters(), 0.5)
        optimizer.step()

    return Training(nn.ModuleDict({"actor": actor, "critic": critic}), step=step)


def variational() -> Training:
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.distributions import Normal, kl_divergence

    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.Linear(FEATURES, 16), nn.Linear(8, FEATURES)

        def forward(self, x: Any) -> Any:
            mean, spread = self.encoder(x).chunk(2, dim=-1)
            posterior = Normal(mean, F.softplus(spread) + 1e-4)
            divergence = kl_divergence(posterior, Normal(torch.zeros_like(mean), torch.ones_like(mean))).sum(-1)
            return F.mse_loss(self.decoder(posterior.rsample()), x, reduction="none").sum(-1).mean() + divergence.mean()

    torch.manual_seed(0)
    model = Autoencoder()
    return Training(model, samples()[0], optimizer=torch.optim.Adam(model.parameters()))


def own_diffusion() -> Training:
    """Denoising with a schedule of one's own, indexed by drawn timesteps."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES + 1, 64), nn.SiLU(), nn.Linear(64, FEATURES))
    optimizer = torch.optim.AdamW(model.parameters())
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), dim=0)

    def step(batch_size: int = 4) -> float:
        x, _ = samples(batch_size)
        t = torch.randint(0, 1000, (batch_size,))
        noise = torch.randn_like(x)
        share = kept[t].unsqueeze(-1)
        noisy = share.sqrt() * x + (1 - share).sqrt() * noise
        loss = F.mse_loss(model(torch.cat([noisy, t.unsqueeze(-1) / 1000], dim=-1)), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return Training(model, step=step)


def truncated_through_time() -> Training:
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.manual_seed(0)
    model = nn.ModuleDict({"lstm": nn.LSTM(FEATURES, 32, batch_first=True), "out": nn.Linear(32, CLASSES)})
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.randn(4, 12, FEATURES), torch.randint(0, CLASSES, (4, 12))

    def step() -> None:
        state = None
        for begin in range(0, 12, 4):
            out, state = model["lstm"](x[:, begin : begin + 4], state)
            state = tuple(s.detach() for s in state)
            optimizer.zero_grad()
            F.cross_entropy(model["out"](out).flatten(0, 1), y[:, begin : begin + 4].flatten()).backward()
            optimizer.step()

    return Training(model, step=step)


def two_tasks() -> Training:
    """Two losses over shared features: one backward pass each, the first of which keeps the graph."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.manual_seed(0)
    model = nn.ModuleDict({"body": nn.Linear(FEATURES, 32), "kind": nn.Linear(32, CLASSES), "size": nn.Linear(32, 1)})
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = samples()

    def step() -> None:
        optimizer.zero_grad()
        hidden = torch.relu(model["body"](x))
        F.cross_entropy(model["kind"](hidden), y).backward(retain_graph=True)
        (0.1 * F.smooth_l1_loss(model["size"](hidden).squeeze(-1), y.float())).backward()
        optimizer.step()

    return Training(model, step=step)


def frozen_body() -> Training:
    import torch
    import torch.nn.functional as F

    model = classifier()
    model.requires_grad_(False)
    model[-1].requires_grad_(True)
    return Training(model, *samples(), F.cross_entropy, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad]))


def parametrized(kind: str) -> Training:
    import torch.nn.functional as F
    from torch.nn.utils import parametrizations
    from torch.optim import SGD

    model = classifier()
    parametrize = {"weight norm": parametrizations.weight_norm, "spectral norm": parametrizations.spectral_norm}[kind]
    parametrize(model[3])
    return Training(model, *samples(), F.cross_entropy, SGD(model.parameters(), lr=0.1))


def straight_through() -> Training:
    """A binary layer whose gradient passes through the rounding: an autograd function of one's own."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Binary(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x.sign()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            (x,) = ctx.saved_tensors
            return gradient * (x.abs() <= 1)

    class Layer(nn.Linear):
        def forward(self, x: Any) -> Any:
            return F.linear(x, Binary.apply(self.weight), self.bias)

    torch.manual_seed(0)
    model = nn.Sequential(Layer(FEATURES, 64), nn.ReLU(), Layer(64, CLASSES))
    return Training(model, *samples(), F.cross_entropy, torch.optim.AdamW(model.parameters()))


def speech() -> Training:
    """Connectionist temporal classification over frames."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(FEATURES, 32, 3, padding=1), nn.ReLU(), nn.Conv1d(32, CLASSES, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(4, FEATURES, 20), torch.randint(1, CLASSES, (4, 6))
    frames, lengths = torch.full((4,), 20), torch.tensor([6, 4, 5, 3])

    def step() -> None:
        optimizer.zero_grad()
        scores = model(x).permute(2, 0, 1).log_softmax(-1)
        F.ctc_loss(scores, y, frames, lengths, zero_infinity=True).backward()
        optimizer.step()

    return Training(model, step=step)


def sparse_embedding() -> Training:
    """Embeddings with sparse gradients and the optimizer for them."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.manual_seed(0)
    model = nn.ModuleDict({"bag": nn.EmbeddingBag(100, 32, sparse=True), "out": nn.Linear(32, CLASSES)})
    optimizers = torch.optim.SparseAdam(model["bag"].parameters()), torch.optim.Adam(model["out"].parameters())
    ids, y = torch.randint(0, 100, (4, 6)), torch.randint(0, CLASSES, (4,))

    def step() -> None:
        model.zero_grad()
        F.cross_entropy(model["out"](model["bag"](ids)), y).backward()
        for optimizer in optimizers:
            optimizer.step()

    return Training(model, step=step)


def flexible_attention() -> Training:
    """flex_attention with a causal mask and a bias by distance."""
    import torch
    from torch import nn
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

        def forward(self, x: Any) -> Any:
            q, k, v = (t.unflatten(-1, (2, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
            mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, x.shape[1], x.shape[1], device="cpu")
            y = flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + 0.1 * (j - i), block_mask=mask)
            return self.out(y.transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    model = Net()
    x = torch.randn(2, 128, 32)
    return Training(model, x, x.clone(), nn.functional.mse_loss, torch.optim.AdamW(model.parameters()))


def channels_last() -> Training:
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES)
    )
    model = model.to(memory_format=torch.channels_last)
    images = torch.randn(4, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    return Training(model, images, torch.randint(0, CLASSES, (4,)), F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1))


MODELS: dict[str, Callable[[], Training]] = {
    "packed sequences": packed_sequences,
    "stochastic depth": stochastic_depth,
    "layers skipped at random": layers_skipped_at_random,
    **{f"random sizes: {way}": partial(random_sizes, way) for way in ("python", "torch")},
    **{f"mix-up: {way}": partial(mixup, way) for way in ("python", "distribution")},
    "policy gradient": policy_gradient,
    "variational autoencoder": variational,
    "diffusion of one's own": own_diffusion,
    "truncated backpropagation through time": truncated_through_time,
    "two tasks": two_tasks,
    "frozen body": frozen_body,
    **{f"parametrized: {kind}": partial(parametrized, kind) for kind in ("weight norm", "spectral norm")},
    "straight-through gradient": straight_through,
    "speech": speech,
    "sparse gradients": sparse_embedding,
    "flexible attention": flexible_attention,
    "channels last": channels_last,
}
