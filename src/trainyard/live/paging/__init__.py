"""Training a real model within a budget of device memory: saved tensors are kept, sent to a second memory, or recomputed.

In reading order:

- `overlay` (below): opens a `Pages` object
- pages: the hooks of autograd, and the sequence of passes (forward and backward)
- modes: what happens to saved tensors in one pass: record it, follow a plan, or send everything
- trace: the ops, storages and saved tensors of a recorded pass; operators: which ops may be repeated
- planning: from a trace to the problem of `trainyard.mapping.overlay.policy`, and from its choice to a plan
- blocks: one storage on the device, in the store, or recomputed; stores: pinned memory, host memory, a file
- measures: clock, memory meter and link bandwidth; report: the plan by layer

Nothing here is imported before `trainyard.live.overlay` is used.
"""

from __future__ import annotations

from functools import partial
from os import PathLike
from pathlib import Path

from torch import nn

from trainyard.errors import BadInput
from trainyard.live.paging.pages import Pages
from trainyard.live.paging.planning import Policy
from trainyard.live.paging.report import LayerBytes, Report
from trainyard.live.paging.stores import StoreName, open_store
from trainyard.mapping.overlay.search import as_needed
from trainyard.units import parse

__all__ = ["LayerBytes", "Pages", "Report", "overlay"]

SMALLEST_BYTES = {"cuda": 1 << 20, "cpu": 1 << 12}


def overlay(
    model: nn.Module,
    budget: str | float,
    store: StoreName = "pinned",
    *,
    smallest: str | float | None = None,
    directory: str | PathLike[str] | None = None,
    policy: Policy = as_needed,
) -> Pages:
    """`with overlay(model, budget="4 GB") as pages:` trains the model, as it is, within so much device memory.

    `budget` is the peak of `torch.cuda.max_memory_allocated` inside the block, parameters, gradients and optimizer state included;
    on the CPU, that of the activations that the overlay holds. A budget that no plan fits is refused after two recorded passes,
    with the smallest that does. The first passes are slow, since they are recorded; one that takes more than the budget after all
    makes its plan tighter. `store` is "pinned" (page-locked host memory), "host" (ordinary) or "disk" (a nameless file in
    `directory`). Storages under `smallest` stay (1 MiB on a GPU, 4 KiB on a CPU). `pages.report()` has the decisions by layer, with
    the predicted and the measured time and memory. The same pages may be opened again: their plans stay.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    >>> with overlay(model, budget="200 kB") as pages:
    ...     for _ in range(3):
    ...         model(torch.ones(256, 64)).sum().backward()
    >>> pages.plan.choice.peak_bytes <= 200_000, pages.peak_bytes <= 200_000
    (True, True)
    """
    size = int(parse(budget, "B", "budget"))
    if size <= 0:
        raise BadInput(f"budget must be some bytes, got {budget!r}: write it like '4 GB'")
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if len(devices) != 1 or next(iter(devices)).type not in ("cuda", "cpu"):
        device_names = ", ".join(sorted(map(str, devices))) or "no parameters"
        raise BadInput(f"an overlay needs a model on one device, CPU or CUDA, got {device_names}")
    device = next(iter(devices))
    smallest_bytes = SMALLEST_BYTES[device.type] if smallest is None else int(parse(smallest, "B", "smallest"))
    folder = None if directory is None else Path(directory)
    return Pages(
        model,
        budget=size,
        open_store=partial(open_store, store, device, folder),
        device=device,
        smallest=smallest_bytes,
        policy=policy,
    )
