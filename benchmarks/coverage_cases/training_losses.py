"""Training steps by what is minimised and how gradients are taken: two models, second derivatives, masks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from coverage_cases.case import Training
from coverage_cases.training_loops import CLASSES, FEATURES, classifier, samples


def tied_weights() -> Training:
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.body, self.out = (
                nn.Embedding(50, 32),
                nn.GRU(32, 32, batch_first=True),
                nn.Linear(32, 50, bias=False),
            )
            self.out.weight = self.embedding.weight

        def forward(self, ids: Any) -> Any:
            return self.out(self.body(self.embedding(ids))[0])

    model = Net()
    ids = torch.randint(0, 50, (4, 12))

    def loss(output: Any, ids: Any) -> Any:
        return F.cross_entropy(output[:, :-1].reshape(-1, 50), ids[:, 1:].reshape(-1))

    return Training(model, ids, ids.clone(), loss, torch.optim.AdamW(model.parameters()))


def distillation() -> Training:
    import torch
    import torch.nn.functional as F

    student, teacher = classifier(16), classifier(128).eval()
    optimizer = torch.optim.AdamW(student.parameters())
    x, y = samples()

    def step() -> None:
        optimizer.zero_grad()
        with torch.no_grad():
            goal = F.softmax(teacher(x) / 2.0, dim=-1)
        out = student(x)
        loss = 0.5 * F.cross_entropy(out, y) + 2.0 * F.kl_div(F.log_softmax(out / 2.0, dim=-1), goal, reduction="batchmean")
        loss.backward()
        optimizer.step()

    return Training(student, step=step)


def adversarial(*, penalty: bool) -> Training:
    """A GAN with two optimizers; with a penalty on the norm of the critic's gradient (WGAN-GP)."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, FEATURES), nn.Tanh())
    critic = nn.Sequential(nn.Linear(FEATURES, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    first = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    second = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    real, _ = samples()

    def step() -> tuple[float, float]:
        fake = generator(torch.randn(real.size(0), 16))
        second.zero_grad()
        if penalty:
            share = torch.rand(real.size(0), 1)
            between = (share * real + (1 - share) * fake.detach()).requires_grad_(True)
            score = critic(between)
            (slope,) = torch.autograd.grad(score, between, torch.ones_like(score), create_graph=True, retain_graph=True)
            gap = ((slope.view(slope.size(0), -1).norm(2, dim=1) - 1) ** 2).mean()
            critic_loss = critic(fake.detach()).mean() - critic(real).mean() + 10.0 * gap
        else:
            ones, zeros = torch.ones(real.size(0), 1), torch.zeros(real.size(0), 1)
            critic_loss = F.binary_cross_entropy_with_logits(critic(real), ones)
            critic_loss = critic_loss + F.binary_cross_entropy_with_logits(critic(fake.detach()), zeros)
        critic_loss.backward()
        second.step()
        first.zero_grad()
        generator_loss = -critic(fake).mean()
        generator_loss.backward()
        first.step()
        return critic_loss.item(), generator_loss.item()

    return Training(nn.ModuleDict({"generator": generator, "critic": critic}), step=step)


def contrastive_queue() -> Training:
    """Momentum contrast: a key encoder that follows by averaging, and a queue of negatives in a buffer."""
    import copy

    import torch
    import torch.nn.functional as F
    from torch import nn

    class Momentum(nn.Module):
        queue: torch.Tensor
        position: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.query = classifier()
            self.key = copy.deepcopy(self.query).requires_grad_(False)
            self.register_buffer("queue", F.normalize(torch.randn(CLASSES, 64), dim=0))
            self.register_buffer("position", torch.zeros(1, dtype=torch.long))

        @torch.no_grad()
        def follow(self) -> None:
            for p, k in zip(self.query.parameters(), self.key.parameters(), strict=True):
                k.data = k.data * 0.999 + p.data * 0.001

        @torch.no_grad()
        def enqueue(self, keys: Any) -> None:
            position = int(self.position)
            self.queue[:, position : position + keys.shape[0]] = keys.T
            self.position[0] = (position + keys.shape[0]) % self.queue.shape[1]

        def forward(self, first: Any, second: Any) -> tuple[Any, Any]:
            q = F.normalize(self.query(first), dim=1)
            with torch.no_grad():
                self.follow()
                k = F.normalize(self.key(second), dim=1)
            positive = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
            negative = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
            logits = torch.cat([positive, negative], dim=1) / 0.07
            self.enqueue(k)
            return logits, torch.zeros(logits.shape[0], dtype=torch.long)

    torch.manual_seed(0)
    model = Momentum()
    optimizer = torch.optim.SGD(model.query.parameters(), lr=0.03, momentum=0.9)
    x, _ = samples()

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(*model(x + 0.1 * torch.randn_like(x), x)).backward()
        optimizer.step()

    return Training(model, step=step)


def contrastive_pairs() -> Training:
    """Two encoders with a learnt temperature, whose similarity matrix must be diagonal (CLIP)."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = classifier(), classifier(32)
            self.scale = nn.Parameter(torch.tensor(2.6592))

        def forward(self, a: Any, b: Any) -> Any:
            a, b = F.normalize(self.left(a), dim=-1), F.normalize(self.right(b), dim=-1)
            return self.scale.exp().clamp(max=100) * a @ b.t()

    model = Pair()
    optimizer = torch.optim.AdamW(model.parameters())
    x, _ = samples()

    def step() -> None:
        optimizer.zero_grad()
        logits = model(x, x.flip(1))
        goal = torch.arange(len(logits), device=logits.device)
        ((F.cross_entropy(logits, goal) + F.cross_entropy(logits.t(), goal)) / 2).backward()
        optimizer.step()

    return Training(model, step=step)


def hard_triplets() -> Training:
    """The hardest positive and negative of a batch, chosen by distance."""
    import torch
    import torch.nn.functional as F

    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = samples(8)

    def step() -> None:
        optimizer.zero_grad()
        out = F.normalize(model(x))
        distance = torch.cdist(out, out)
        same = y.unsqueeze(0) == y.unsqueeze(1)
        far = distance.masked_fill(~same, float("-inf")).max(dim=1).values
        near = distance.masked_fill(same, float("inf")).min(dim=1).values
        F.relu(far - near + 0.3).mean().backward()
        optimizer.step()

    return Training(model, step=step)


def masked_loss(way: str) -> Training:
    """Tokens without a label: chosen by index, ignored by the criterion, or weighted with a mask."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 32), nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), nn.Linear(32, 50))
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 50, (4, 12))
    labels = torch.where(torch.rand(4, 12) < 0.3, ids, -100)

    def step() -> None:
        optimizer.zero_grad()
        logits = model(ids)
        if way == "index":
            loss = F.cross_entropy(logits[labels != -100], labels[labels != -100])
        elif way == "masked_select":
            errors = F.cross_entropy(logits.transpose(1, 2), labels.clamp(min=0), reduction="none")
            loss = torch.masked_select(errors, labels != -100).mean()
        elif way == "ignore_index":
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        elif way == "nonzero":
            chosen = (labels.flatten() != -100).nonzero(as_tuple=True)[0]
            loss = F.cross_entropy(logits.flatten(0, 1)[chosen], labels.flatten()[chosen])
        else:
            mask = (labels != -100).float()
            errors = F.cross_entropy(logits.transpose(1, 2), labels.clamp(min=0), reduction="none")
            loss = (errors * mask).sum() / mask.sum().clamp(min=1)
        loss.backward()
        optimizer.step()

    return Training(model, step=step)


def functional(kind: str) -> Training:
    """torch.func: gradients as a function, per-sample gradients, a Jacobian, an inner loop of meta-learning."""
    import torch
    import torch.nn.functional as F
    from torch.func import functional_call, grad, grad_and_value, vmap

    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = samples()

    def loss_of(parameters: Any, x: Any, y: Any) -> Any:
        return F.cross_entropy(functional_call(model, parameters, (x,)), y)

    def one_sample(parameters: Any, x: Any, y: Any) -> Any:
        return loss_of(parameters, x.unsqueeze(0), y.unsqueeze(0))

    def step() -> None:
        optimizer.zero_grad()
        parameters = dict(model.named_parameters())
        if kind == "functional_call":
            loss_of(parameters, x, y).backward()
        elif kind == "grad":
            gradients, _ = grad_and_value(loss_of)({name: p.detach() for name, p in parameters.items()}, x, y)
            for name, p in parameters.items():
                p.grad = gradients[name]
        elif kind == "per-sample gradients":
            rows = vmap(grad(one_sample), in_dims=(None, 0, 0), randomness="different")(
                {k: p.detach() for k, p in parameters.items()}, x, y
            )
            for name, p in parameters.items():
                p.grad = rows[name].mean(0)
        else:
            inner = loss_of(parameters, x, y)
            slopes = torch.autograd.grad(inner, list(parameters.values()), create_graph=True)
            adapted = {name: p - 0.01 * g for (name, p), g in zip(parameters.items(), slopes, strict=True)}
            loss_of(adapted, x.flip(0), y.flip(0)).backward()
        optimizer.step()

    return Training(model, step=step)


LOSSES: dict[str, Callable[[], Training]] = {
    "tied weights": tied_weights,
    "distillation": distillation,
    "adversarial, two optimizers": partial(adversarial, penalty=False),
    "adversarial, gradient penalty": partial(adversarial, penalty=True),
    "contrastive with a queue": contrastive_queue,
    "contrastive pairs": contrastive_pairs,
    "hard triplets": hard_triplets,
    **{
        f"masked loss: {way}": partial(masked_loss, way) for way in ("index", "masked_select", "nonzero", "ignore_index", "weights")
    },
    **{
        f"torch.func: {kind}": partial(functional, kind)
        for kind in ("functional_call", "grad", "per-sample gradients", "meta-learning")
    },
}
