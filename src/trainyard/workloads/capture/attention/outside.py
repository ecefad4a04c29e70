"""The device's attention kernels outside a capture, so that torch's own counter sees what a capture records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.workloads.capture.attention.choice import Device
from trainyard.workloads.capture.attention.dispatch import AttentionDispatch
from trainyard.workloads.capture.attention.values import on_cpu
from trainyard.workloads.capture.interface import modes_inside_backward


class _KernelsOnCpu(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return on_cpu(func.__name__.partition(".")[0], func, args, kwargs or {})


@contextmanager
def attention_of(device: Device) -> Iterator[None]:
    """A region in which `F.scaled_dot_product_attention` takes the kernel of the device, on meta and on the CPU.

    `with attention_of("cuda"), FlopCounterMode() as counter:` counts the products that a capture has.
    """
    dispatch = AttentionDispatch("sdpa", device)
    with _KernelsOnCpu(), dispatch, modes_inside_backward(dispatch):  # type: ignore[no-untyped-call]  # untyped in torch
        yield
