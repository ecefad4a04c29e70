"""Training steps by optimizer and learning rate schedule."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from coverage_cases.case import Training
from coverage_cases.training_loops import classifier, samples


def scheduled(kind: str) -> Training:
    import torch
    import torch.nn.functional as F
    from torch.optim import lr_scheduler

    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rates: Any = {
        "cosine": lambda: lr_scheduler.CosineAnnealingLR(optimizer, 10),
        "one cycle": lambda: lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10),
        "warm-up": lambda: lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / 10)),
        "plateau": lambda: lr_scheduler.ReduceLROnPlateau(optimizer),
    }[kind]()
    x, y = samples()

    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        rates.step(*((loss.item(),) if kind == "plateau" else ()))

    return Training(model, step=step)


def optimized(make: Callable[[Any], Any]) -> Training:
    import torch

    model = classifier()
    return Training(model, *samples(), torch.nn.functional.cross_entropy, make(model))


def _torch_optimizer(name: str, **keywords: Any) -> Callable[[Any], Any]:
    def make(model: Any) -> Any:
        import torch

        return getattr(torch.optim, name)(model.parameters(), **keywords)

    return make


def _groups(model: Any) -> Any:
    import torch

    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}])


def _muon(model: Any) -> Any:
    import torch

    return torch.optim.Muon([p for p in model.parameters() if p.dim() == 2])


def _adafactor_of_transformers(model: Any) -> Any:
    from transformers.optimization import Adafactor

    return Adafactor(model.parameters(), lr=1e-3, relative_step=False)


def closure_optimizer() -> Training:
    import torch
    import torch.nn.functional as F

    model = classifier()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    x, y = samples()

    def step() -> None:
        def closure() -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)

    return Training(model, step=step)


def own_optimizer(kind: str) -> Training:
    """Updates that no library made: sign momentum, plain descent, an update inside backward, a second pass (SAM)."""
    import torch
    import torch.nn.functional as F

    model = classifier()
    x, y = samples()
    momentum = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    if kind == "in backward":
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

        def update(parameter: Any) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(update)
    base = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            if kind == "sign momentum":
                for name, p in model.named_parameters():
                    p.add_(torch.sign(momentum[name].mul(0.9).add_(p.grad, alpha=0.1)), alpha=-1e-3)
                    momentum[name].lerp_(p.grad, 0.01)
            elif kind == "plain descent":
                for p in model.parameters():
                    p -= 0.1 * p.grad
            elif kind == "sharpness aware":
                norm = torch.norm(torch.stack([p.grad.norm() for p in model.parameters()]))
                moved = [(p, p.grad * (0.05 / (norm + 1e-12))) for p in model.parameters()]
                for p, distance in moved:
                    p.add_(distance)
        if kind == "sharpness aware":
            model.zero_grad()
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for p, distance in moved:
                    p.sub_(distance)
            base.step()

    return Training(model, step=step)


OPTIMIZERS: dict[str, Callable[[], Training]] = {
    **{f"schedule: {kind}": partial(scheduled, kind) for kind in ("cosine", "one cycle", "warm-up", "plateau")},
    "optimizer: Adam, foreach": partial(optimized, _torch_optimizer("Adam", foreach=True)),
    "optimizer: AdamW, fused": partial(optimized, _torch_optimizer("AdamW", fused=True)),
    "optimizer: AdamW, one tensor at a time": partial(optimized, _torch_optimizer("AdamW", foreach=False)),
    "optimizer: AdamW, AMSGrad": partial(optimized, _torch_optimizer("AdamW", amsgrad=True)),
    "optimizer: parameter groups": partial(optimized, _groups),
    **{
        f"optimizer: {name}": partial(optimized, _torch_optimizer(name))
        for name in ("Adafactor", "Adadelta", "Adagrad", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
    },
    "optimizer: Muon": partial(optimized, _muon),
    "optimizer: Adafactor of transformers": partial(optimized, _adafactor_of_transformers),
    "optimizer: LBFGS with closure": closure_optimizer,
    **{
        f"own optimizer: {kind}": partial(own_optimizer, kind)
        for kind in ("sign momentum", "plain descent", "in backward", "sharpness aware")
    },
}
