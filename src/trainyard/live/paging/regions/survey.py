"""Time and memory of every region in one pass of forward and backward, measured where regions begin and end.

A pass is a sequence of *segments*: what stands before a region, the region's forward, and, from the last region's end, the head and
the loss; in backward, a region's segment begins when the gradient of its output is complete and ends where the next one begins.
A survey measures times or memory, since reading the allocator's counters would slow the host down. On a GPU, times are of CUDA
events between the segments and memory is the allocator's. On the CPU, memory is the bytes of the storages that autograd saves
inside a region.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from trainyard.live.paging.measures import clock_of
from trainyard.live.paging.regions.finding import Region
from trainyard.live.paging.regions.variants import Call
from trainyard.live.paging.signature import tensors_of

What = Literal["memory", "time"]


class Segment(NamedTuple):
    """A stretch of the pass: before, in the forward of, or in the backward of the region call with that number."""

    part: Literal["outside", "forward", "backward"]
    call: int


@dataclass(slots=True)
class Measures:
    """What one pass took. Calls of regions are numbered in the order of forward."""

    regions: list[str] = field(default_factory=list)
    """The region of each call."""
    inputs: list[tuple[Any, ...]] = field(default_factory=list)
    """Shapes and types of the tensors that each call was given."""
    order: list[int] = field(default_factory=list)
    """Calls in the order in which backward came to them."""
    seconds: dict[Segment, float] = field(default_factory=dict)
    host_seconds: dict[Segment, float] = field(default_factory=dict)
    """Of the host, to issue the work of each segment: a variant that keeps the host busy for longer cannot run faster than that."""
    peaks: dict[Segment, int] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)
    """Bytes by which the device's memory grew from the beginning of a call to that of the next (the last: of backward)."""

    @property
    def peak_bytes(self) -> int:
        return max(self.peaks.values(), default=0)

    def calls_of(self, region: str) -> list[int]:
        """Calls of a region that backward came to."""
        return [call for call, name in enumerate(self.regions) if name == region and call in self.order]


class Survey:
    """Measures one pass; `around` wraps the call of a region, and `ended` is called when backward is over."""

    def __init__(self, device: torch.device, what: What, ended: Callable[[Survey], None]) -> None:
        self.device, self.what, self.ended = device, what, ended
        self.found = Measures()
        self.inside = self.is_over = False
        self.is_differentiable = False
        """Whether the gradients of the pass have gradients of their own."""
        self.clock = clock_of(device)
        self.marks: list[tuple[Any, float, Segment | None]] = []
        self.started = 0
        self.segment: Segment | None = None
        self._begin(Segment("outside", 0))

    def around(self, region: Region, call: Call) -> Call:
        """The call, measured; a call inside backward or inside another region is left alone."""

        def measured(*arguments: Any, **keywords: Any) -> Any:
            outside = self.inside or self.is_over or self.found.order
            if outside or not torch.is_grad_enabled() or torch._C._current_autograd_node() is not None:
                return call(*arguments, **keywords)
            return self._call(region, partial(call, *arguments, **keywords), tensors_of((arguments, keywords)))

        return measured

    def _call(self, region: Region, call: Callable[[], Any], inputs: list[Tensor]) -> Any:
        number = len(self.found.regions)
        self.found.regions.append(region.name)
        self.found.inputs.append(tuple((tuple(tensor.shape), tensor.dtype) for tensor in inputs))
        self._begin(Segment("forward", number))
        self.inside = True
        saved = _SavedBytes() if self.device.type == "cpu" and self.what == "memory" else None
        try:
            with saved or nullcontext():
                result = call()
        finally:
            self.inside = False
        if saved is not None:
            self.found.held[number] = saved.total
        self._begin(Segment("outside", number + 1))
        output = next((tensor for tensor in tensors_of(result) if tensor.requires_grad), None)
        if output is not None:
            output.register_hook(partial(self._backward, number))
        return result

    def _backward(self, number: int, gradient: Tensor) -> None:
        if self.is_over or number in self.found.order:
            return
        self.is_differentiable |= torch.is_grad_enabled()
        if not self.found.order:
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
        self._begin(Segment("backward", number))
        self.found.order.append(number)

    def _end(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._begin(None)
            self.ended(self)

    def _begin(self, segment: Segment | None) -> None:
        if self.what == "time":
            self.marks.append((self.clock.moment(), time.perf_counter(), segment))
        elif self.device.type == "cuda":
            self._read_memory(segment)
        self.segment = segment

    def _read_memory(self, segment: Segment | None) -> None:
        index = self.device.index
        counters = torch._C._cuda_memoryStats(index)["allocated_bytes"]["all"]
        torch._C._cuda_resetPeakMemoryStats(index)
        if self.segment is not None:
            self.found.peaks[self.segment] = max(counters["peak"], self.found.peaks.get(self.segment, 0))
        if segment is not None and not self.found.order and segment.part != "outside":
            # The output of one region is often the input of the next: here it is no longer held by the model's own code.
            number = len(self.found.regions) - 1 - (segment.part == "forward")
            if number >= 0:
                self.found.held[number] = counters["current"] - self.started
            self.started = counters["current"]

    def measures(self) -> Measures:
        """Read when the pass is over: waits for the device."""
        if self.marks:
            self.clock.finish()
            for (start, issued, segment), (end, all_issued, _) in pairwise(self.marks):
                if segment is not None:
                    self.found.seconds[segment] = self.found.seconds.get(segment, 0.0) + self.clock.seconds(start, end)
                    self.found.host_seconds[segment] = self.found.host_seconds.get(segment, 0.0) + all_issued - issued
            self.marks = []
        return self.found


class _SavedBytes(saved_tensors_hooks):
    """Counts the bytes of the storages that autograd saves inside the block, each once; parameters are not counted."""

    def __init__(self) -> None:
        self.total = 0
        self.seen: dict[int, Tensor] = {}
        super().__init__(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: Tensor) -> Tensor:
        tensor = tensor.detach()
        if tensor.layout is torch.strided and not isinstance(tensor, torch.nn.Parameter) and not tensor.is_nested:
            storage = tensor.untyped_storage()
            if storage._cdata not in self.seen:
                self.seen[storage._cdata] = tensor
                self.total += storage.nbytes()
        return tensor

    def __exit__(self, *details: object) -> None:
        self.seen.clear()
        super().__exit__(*details)
