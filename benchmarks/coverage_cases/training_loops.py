"""Training loops over a small classifier: guards, precision, devices, averages, schedules, optimizers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from coverage_cases.case import Training

FEATURES, CLASSES, BATCH = 32, 8, 4


def classifier(width: int = 64, *, dropout: float = 0.0) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(FEATURES, width), nn.GELU(), nn.Dropout(dropout), nn.Linear(width, width), nn.GELU(), nn.Linear(width, CLASSES)
    )


def samples(count: int = BATCH) -> tuple[Any, Any]:
    import torch

    return torch.randn(count, FEATURES), torch.randint(0, CLASSES, (count,))


def plain() -> Training:
    import torch
    import torch.nn.functional as F

    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = samples()

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return Training(model, step=step)


def with_batch_size() -> Training:
    import torch
    import torch.nn.functional as F

    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch_size: int) -> None:
        x, y = samples(batch_size)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return Training(model, step=step, keywords={"batch": BATCH})


def data_loader() -> Training:
    import torch
    import torch.nn.functional as F
    from torch.utils.data import DataLoader, TensorDataset

    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    loader = DataLoader(TensorDataset(*samples(16)), batch_size=BATCH, shuffle=True)

    def step() -> None:
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            break

    return Training(model, step=step)


def one_epoch() -> Training:
    """Every batch of a small data set, with the running accuracy of the usual training function."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    model = classifier(dropout=0.1)
    optimizer, criterion = torch.optim.Adam(model.parameters()), torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    loader = DataLoader(TensorDataset(*samples(8)), batch_size=BATCH)

    def step() -> tuple[float, float]:
        model.train()
        running, correct, total = 0.0, 0, 0
        for x, y in loader:
            optimizer.zero_grad(set_to_none=True)
            out = model(x)
            loss = criterion(out, y)
            loss.backward()
            optimizer.step()
            running += loss.item() * x.size(0)
            correct += (out.argmax(dim=1) == y).sum().item()
            total += y.size(0)
        return running / total, 100.0 * correct / total

    return Training(model, step=step)


def accumulation() -> Training:
    import torch
    import torch.nn.functional as F

    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    batches = [samples() for _ in range(4)]

    def step() -> None:
        optimizer.zero_grad()
        for x, y in batches:
            (F.cross_entropy(model(x), y) / len(batches)).backward()
        optimizer.step()

    return Training(model, step=step)


def clipped(kind: str) -> Training:
    import torch
    import torch.nn.functional as F

    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = samples()

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if kind == "norm":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        elif kind == "value":
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
        elif kind == "norm that must be finite":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        else:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if norm.item() > 100.0:
                optimizer.zero_grad()
        optimizer.step()

    return Training(model, step=step)


def guarded(guard: str) -> Training:
    import torch
    import torch.nn.functional as F

    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = samples()
    best = [float("inf")]

    def broken(loss: Any) -> bool:
        if guard == "isnan":
            return bool(torch.isnan(loss))
        if guard == "isfinite":
            return not torch.isfinite(loss).all()
        if guard == "math.isfinite":
            return not math.isfinite(loss.item())
        if guard == "isinf or isnan":
            return bool(torch.isinf(loss).any() or torch.isnan(loss).any())
        if guard == "comparison with itself":
            return bool(loss != loss)
        return False

    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if broken(loss):
            raise FloatingPointError("the loss is not a number")
        loss.backward()
        if guard == "gradients" and not all(torch.isfinite(p.grad).all() for p in model.parameters()):
            return
        optimizer.step()
        if guard == "best loss" and loss.item() < best[0]:
            best[0] = loss.item()

    return Training(model, step=step)


def mixed_precision(device: str, dtype: str, *, scaled: bool = False) -> Training:
    import torch
    import torch.nn.functional as F

    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler(device) if scaled else None
    x, y = samples()

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=getattr(torch, dtype)):
            loss = F.cross_entropy(model(x), y)
        if scaler is None:
            loss.backward()
            optimizer.step()
            return
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return Training(model, step=step)


def whole_model_in(dtype: str) -> Training:
    import torch
    import torch.nn.functional as F

    model = classifier().to(getattr(torch, dtype))
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = samples()

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x.to(getattr(torch, dtype))).float(), y).backward()
        optimizer.step()

    return Training(model, step=step)


def chosen_device(way: str) -> Training:
    """A script that picks its device, and moves what it makes there."""
    import torch
    import torch.nn.functional as F

    device = torch.device("cuda" if torch.cuda.is_available() or way.startswith("cuda") else "cpu")
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = samples()

    def step() -> None:
        optimizer.zero_grad()
        if way == "cuda by name":
            inputs, labels = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
        elif way == "cuda by method":
            inputs, labels = x.pin_memory().cuda(non_blocking=True), y.cuda()
        else:
            inputs, labels = x.to(device), y.to(device)
        noise = torch.randn(inputs.shape, device=device)
        weight = torch.ones(CLASSES, device=labels.device)
        F.cross_entropy(model(inputs + 0.1 * noise), labels, weight=weight).backward()
        optimizer.step()
        if device.type == "cuda" and torch.cuda.is_available():
            torch.cuda.synchronize()

    return Training(model, step=step)


def averaged(kind: str) -> Training:
    import copy

    import torch
    import torch.nn.functional as F
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    averages = {
        "swa": lambda: AveragedModel(model),
        "ema": lambda: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999), use_buffers=True),
        "by hand": lambda: copy.deepcopy(model).requires_grad_(False),
    }
    average = averages[kind]()
    x, y = samples()

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if kind != "by hand":
            average.update_parameters(model)
            return
        with torch.no_grad():
            for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
                mean.mul_(0.999).add_(parameter, alpha=0.001)

    return Training(model, step=step)


def compiled(kind: str) -> Training:
    import torch
    import torch.nn.functional as F

    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = samples()
    if kind == "model and inputs":
        return Training(torch.compile(model), x, y, F.cross_entropy, optimizer)
    if kind == "in place":
        model.compile()
        return Training(model, x, y, F.cross_entropy, optimizer)
    run = torch.compile(model)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(run(x), y).backward()
        optimizer.step()

    return Training(model, step=step)


def checkpointed(kind: str) -> Training:
    import torch
    import torch.nn.functional as F
    from torch.utils import checkpoint

    model = classifier(dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = samples()

    def forward() -> Any:
        if kind == "sequential":
            return checkpoint.checkpoint_sequential(model, 2, x, use_reentrant=False)
        if kind == "selective":
            saved = partial(
                checkpoint.create_selective_checkpoint_contexts, [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
            )
            return checkpoint.checkpoint(model, x, use_reentrant=False, context_fn=saved)
        inputs = x.clone().requires_grad_()
        return checkpoint.checkpoint(model, inputs, use_reentrant=kind == "reentrant")

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(forward(), y).backward()
        optimizer.step()

    return Training(model, step=step)


def offloaded() -> Training:
    """Saved activations that are kept on the host."""
    import torch
    import torch.nn.functional as F

    model = classifier()
    x, y = samples()

    def step() -> None:
        model.zero_grad()
        with torch.autograd.graph.save_on_cpu() if torch.cuda.is_available() else contextlib.nullcontext():
            F.cross_entropy(model(x), y).backward()

    return Training(model, step=step)


LOOPS: dict[str, Callable[[], Training]] = {
    "plain loop": plain,
    "loop that takes a batch size": with_batch_size,
    "loop over a data loader": data_loader,
    "one epoch with accuracy": one_epoch,
    "gradient accumulation": accumulation,
    **{f"clipped {kind}": partial(clipped, kind) for kind in ("norm", "value", "norm that must be finite", "norm that is read")},
    **{
        f"guard: {guard}": partial(guarded, guard)
        for guard in ("isnan", "isfinite", "math.isfinite", "isinf or isnan", "comparison with itself", "gradients", "best loss")
    },
    "autocast cpu bf16": partial(mixed_precision, "cpu", "bfloat16"),
    "autocast cuda bf16": partial(mixed_precision, "cuda", "bfloat16"),
    "autocast cuda fp16, gradient scaler": partial(mixed_precision, "cuda", "float16", scaled=True),
    "autocast cpu bf16, gradient scaler": partial(mixed_precision, "cpu", "bfloat16", scaled=True),
    "whole model in bf16": partial(whole_model_in, "bfloat16"),
    "device by availability": partial(chosen_device, "available"),
    "device cuda by name": partial(chosen_device, "cuda by name"),
    "device cuda by method": partial(chosen_device, "cuda by method"),
    **{f"averaged weights: {kind}": partial(averaged, kind) for kind in ("swa", "ema", "by hand")},
    **{f"compiled: {kind}": partial(compiled, kind) for kind in ("model and inputs", "in place", "in a loop")},
    **{f"checkpointing: {kind}": partial(checkpointed, kind) for kind in ("reentrant", "not reentrant", "sequential", "selective")},
    "saved activations on the host": offloaded,
}
