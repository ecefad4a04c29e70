"""Training a real model within a budget of device memory: saved tensors are kept, sent to a second memory, or recomputed.

In reading order:

- `overlay` (below): opens `RegionPages` (whole blocks of the model are moved) or `Pages` (single tensors are)
- regions/: blocks that are kept, checkpointed or compiled, at no cost where they are kept
- pages: the hooks of autograd, and the sequence of passes (forward and backward)
- signature: what the model is called with; compiled_code: functions that the program compiled
- modes: what happens to saved tensors in one pass: record it, follow a plan, or send everything
- trace: the ops, storages and saved tensors of a recorded pass; operators: which ops may be repeated
- planning: from a trace to the problem of `trainyard.mapping.overlay.policy`, and from its choice to a plan
- blocks: one storage on the device, in the store, or recomputed; stores: pinned memory, host memory, a file
- optimizer: an optimizer's state in a second memory, updates in backward
- measures: clock, memory meter and link bandwidth; report: the plan by layer

Nothing here is imported before `trainyard.live.overlay` is used.
"""

from __future__ import annotations

from functools import partial
from os import PathLike
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import nn
from torch.optim import Optimizer

from trainyard.errors import BadInput, UnknownName
from trainyard.live.paging.optimizer import PagedOptimizer, paged_optimizer
from trainyard.live.paging.pages import Pages
from trainyard.live.paging.planning import Policy
from trainyard.live.paging.regions.finding import regions_of
from trainyard.live.paging.regions.optimizer_state import state_bytes
from trainyard.live.paging.regions.pages import RegionPages
from trainyard.live.paging.regions.variants import COMPILERS, CompilerName
from trainyard.live.paging.report import LayerBytes, Report
from trainyard.live.paging.stores import StoreName, open_store
from trainyard.mapping.overlay.search import as_needed
from trainyard.units import parse

__all__ = ["LayerBytes", "PagedOptimizer", "Pages", "RegionPages", "Report", "overlay", "paged_optimizer"]

Unit = Literal["auto", "blocks", "tensors"]
UNITS: tuple[Unit, ...] = get_args(Unit)
SMALLEST_BYTES = {"cuda": 1 << 20, "cpu": 1 << 12}


def overlay(
    model: nn.Module,
    budget: str | float,
    store: StoreName = "pinned",
    *,
    smallest: str | float | None = None,
    directory: str | PathLike[str] | None = None,
    policy: Policy = as_needed,
    unit: Unit = "auto",
    compile: bool | CompilerName = False,
    replay: bool | None = None,
    optimizer: Optimizer | None = None,
) -> Pages | RegionPages:
    """`with overlay(model, budget="4 GB") as pages:` trains the model, as it is, within so much device memory.

    `budget` is the peak of `torch.cuda.max_memory_allocated` inside the block, parameters, gradients and optimizer state included;
    on the CPU, that of the activations that the overlay holds. `unit` is what is decided about: "blocks" of the model (the members
    of its stacks of layers, which are kept or checkpointed, and cost nothing where they are kept) or single "tensors" (kept, sent
    or recomputed; every saved tensor passes a hook). "auto" takes blocks on a GPU, if the model has stacks of layers, and tensors
    otherwise. `pages.report()` has the decisions by layer, with the predicted and the measured time and memory. The same pages may
    be opened again: their plans stay.

    Blocks: the first passes measure every variant of a block, then the fastest choice within the budget runs. A budget below the
    least possible is refused at the end of the first backward, with the least possible one; `optimizer` adds the state that its
    first step will make. `compile=True` lets `torch.compile` make further variants, which are faster and save less, and compares
    the plan with the whole model compiled; they round differently from eager training, whereas everything else gives its gradients
    bit for bit. `compile="inductor_cpp"` has their calls written in C++, which needs a C++ compiler and minutes more: for models
    whose kernels are so short that the host sets the pace. `replay` allows calls of blocks to be recorded as CUDA graphs, where
    that is faster, so that the host issues one call for hundreds of kernels; None: on a GPU. Recordings take memory that
    `torch.cuda.max_memory_allocated` does not show and `pages.peak_bytes` does: it counts towards the budget.

    Tensors: the first passes are slow, since they are recorded; one that takes more than the budget after all makes its plan
    tighter. A budget below the least possible is refused at the end of the first backward. `store` is "pinned" (page-locked host
    memory), "host" (ordinary) or "disk" (a nameless file in `directory`). Storages under `smallest` stay (1 MiB on a GPU, 4 KiB on
    a CPU).

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    >>> with overlay(model, budget="200 kB") as pages:
    ...     for _ in range(3):
    ...         model(torch.ones(256, 64)).sum().backward()
    >>> pages.plan.choice.peak_bytes <= 200_000, pages.peak_bytes <= 200_000
    (True, True)
    """
    _check_names(unit, compile)
    size = int(parse(budget, "B", "budget"))
    if size <= 0:
        raise BadInput(f"budget must be some bytes, got {budget!r}: write it like '4 GB'")
    device = _device_of(model)
    regions = regions_of(model) if unit == "blocks" or (unit == "auto" and device.type == "cuda") else []
    if unit == "blocks" and not regions:
        raise BadInput(f"{type(model).__name__} has no stack of like blocks: write unit='tensors'")
    for_tensors = directory is not None or smallest is not None or store != "pinned"
    if unit == "blocks" and for_tensors:
        raise BadInput(
            "store=, directory= and smallest= are for unit='tensors': blocks are kept or recomputed, and nothing is sent"
        )
    if compile and not regions:
        raise BadInput(f"compile= is for unit='blocks', and {type(model).__name__} has no blocks here: write unit='tensors'")
    if replay and (not regions or for_tensors):
        raise BadInput("replay= is for unit='blocks': single tensors are never replayed")
    if regions and not for_tensors:
        return RegionPages(
            model,
            regions,
            budget=size,
            device=device,
            policy=policy,
            compiler="inductor" if compile is True else compile or None,
            replay=device.type == "cuda" if replay is None else replay,
            reserved=0 if optimizer is None else state_bytes(optimizer),
        )
    smallest_bytes = SMALLEST_BYTES[device.type] if smallest is None else int(parse(smallest, "B", "smallest"))
    opened = partial(open_store, store, device, None if directory is None else Path(directory))
    return Pages(model, budget=size, open_store=opened, device=device, smallest=smallest_bytes, policy=policy)


def _device_of(model: nn.Module) -> torch.device:
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if len(devices) != 1 or next(iter(devices)).type not in ("cuda", "cpu"):
        device_names = ", ".join(sorted(map(str, devices))) or "no parameters"
        raise BadInput(f"an overlay needs a model on one device, CPU or CUDA, got {device_names}")
    return next(iter(devices))


def _check_names(unit: str, compile: bool | str) -> None:
    for kind, given, known in (("unit", unit, UNITS), ("compiler", compile, (False, True, *COMPILERS))):
        if given not in known:
            raise UnknownName(kind, str(given), [str(name) for name in known])
