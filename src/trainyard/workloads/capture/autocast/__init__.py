"""Mixed precision while a step is captured, with or without a GPU.

- policies: which element type an op computes in; kernels: the casts; regions: `torch.autocast` and questions about its state
- scaler: `GradScaler`; cuda_calls: calls of `torch.cuda` that have no effect on a step; replacing: attributes of torch that are
  exchanged meanwhile
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trainyard.workloads.capture.autocast.cuda_calls import calls_without_effect
from trainyard.workloads.capture.autocast.regions import Autocast
from trainyard.workloads.capture.autocast.replacing import replaced
from trainyard.workloads.capture.autocast.scaler import Scalers

__all__ = ["emulated_cuda"]


@contextmanager
def emulated_cuda() -> Iterator[Autocast]:
    """While the block runs, mixed precision acts as it does on a GPU; torch and the user's objects are as before afterwards."""
    autocast = Autocast()
    scalers = Scalers(autocast)
    try:
        with replaced([*calls_without_effect(), *autocast.attributes(), *scalers.attributes()]):
            autocast.begin()
            yield autocast
    finally:
        scalers.restore()
        autocast.restore()
