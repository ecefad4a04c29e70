"""Training a real model under a budget of device memory: saved tensors are kept, sent to a second memory, or made again.

`overlay` opens it; `pages` holds the hooks, `ways` what is done in a pass, `planning` what ties it to
`trainyard.mapping.overlay.policy`, the policy of the simulated node. Nothing here is imported before `trainyard.live.overlay` is
used.
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
    on the CPU, that of the activations that the overlay holds. A budget that nothing fits is refused after two watched passes, with
    the least that does. The first passes are slow: they are watched; one that took more than the budget after all makes its plan
    tighter. `store` is "pinned" (page-locked host memory), "host" (ordinary) or "disk" (a nameless file in `directory`). Storages
    under `smallest` stay (1 MiB on a GPU, 4 KiB on a CPU). `pages.report()` says what became of each layer's tensors, with the
    predicted and the measured time and memory. The same pages may be opened again: their plans stay.

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
        places = ", ".join(sorted(map(str, devices))) or "no parameters"
        raise BadInput(f"an overlay needs a model on one device, CPU or CUDA, got {places}")
    device = next(iter(devices))
    least = SMALLEST_BYTES[device.type] if smallest is None else int(parse(smallest, "B", "smallest"))
    place = None if directory is None else Path(directory)
    return Pages(
        model, budget=size, open_store=partial(open_store, store, device, place), device=device, smallest=least, policy=policy
    )
