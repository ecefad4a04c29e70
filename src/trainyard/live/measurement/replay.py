"""A Step without its model, run op by op on a real device: products exactly, other ops by stand-ins that move the same bytes.

For steps that came from a file (SCALE-Sim, JSON) and have no code. Operands are random; ops of one shape share their buffers.
Times are the gaps between marks set behind every op, so they sum to the step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from trainyard.errors import NotModelled
from trainyard.ir import Collective, Convolution, Copy, ElementWise, Gather, MatMul, Op, Reduction, Step, Update
from trainyard.results.result import IDLE, PICOSECOND, Columns, Peaks, Result, Rows

Call = Callable[[], object]

# fmt: off
TORCH_TYPE = {
    "fp64": torch.float64, "fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
}
# fmt: on
STAND_IN = "matrix products and convolutions are run as they are; other ops by stand-ins that read and write as many elements"


def replay(step: Step, *, device: torch.device, peaks: Peaks, machine: str, repeats: int = 20, warmup: int = 5) -> Result:
    """The step's ops in program order on `device`, `repeats` times; the median time of each."""
    builder = _Builder(step, device)
    calls = [builder.call(op) for op in step.ops]
    spans = _timed(calls, device, repeats, warmup)
    times = np.array([*(round(statistics.median(column) / PICOSECOND) for column in zip(*spans, strict=True)), 0], np.int64)
    rows = measured_rows([(op.name, op.layer, op.phase.value) for op in step.ops], device.type)
    macs = np.array([*(op.macs for op in step.ops), 0], np.int64)
    return Result(
        workload=step.name,
        machine=machine,
        batch=step.batch,
        samples=step.batch,
        rows=rows,
        columns=Columns(times, times.copy(), macs, {}, {}),
        peaks=peaks,
        notes=(f"replayed op by op: median of {repeats} runs", STAND_IN),
        config={"measured": True, "replayed": True, "machine": machine, "torch": torch.__version__},
        seed=0,
    )


def measured_rows(labels: Sequence[tuple[str, str, str]], resource: str) -> Rows:
    """Rows of a Result from (op, layer, phase) of what ran on one resource, and a last row for its idle time."""
    names, layers, phases = zip(*labels, (IDLE, "", IDLE), strict=True)
    count = len(labels)
    return Rows(names, layers, phases, (*(resource,) * count, ""), (*("compute",) * count, IDLE), (*("",) * count, IDLE))


def _timed(calls: list[Call], device: torch.device, repeats: int, warmup: int) -> list[list[float]]:
    """Seconds between the marks behind each op, for each repeat."""
    for _ in range(max(1, warmup)):
        for call in calls:
            call()
    spans: list[list[float]] = []
    for _ in range(repeats):
        if device.type == "cpu":
            marks = [time.perf_counter()]
            for call in calls:
                call()
                marks.append(time.perf_counter())
            spans.append([after - before for before, after in pairwise(marks)])
            continue
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(calls) + 1)]
        torch.cuda.synchronize(device)
        events[0].record()
        for call, event in zip(calls, events[1:], strict=True):
            call()
            event.record()
        torch.cuda.synchronize(device)
        spans.append([before.elapsed_time(after) * 1e-3 for before, after in pairwise(events)])
    return spans


class _Builder:
    """Operands and calls, one of each distinct shape."""

    def __init__(self, step: Step, device: torch.device) -> None:
        self.step, self.device = step, device
        self.generator = torch.Generator(device=device).manual_seed(0)
        self.calls: dict[Hashable, Call] = {}
        self.buffers: dict[tuple[tuple[int, ...], torch.dtype], Tensor] = {}

    def call(self, op: Op) -> Call:
        reads = tuple(self.step.tensors[t].elements for t in op.inputs)
        writes = tuple(self.step.tensors[t].elements for t in op.outputs)
        kind = self._type(op)
        key = (op.body, reads, writes, kind)
        if key not in self.calls:
            self.calls[key] = self._new_call(op, reads, writes, kind)
        return self.calls[key]

    def _type(self, op: Op) -> torch.dtype:
        """The element type of the op's result; integers and booleans are moved as fp32's neighbours of their size."""
        written = [self.step.tensors[t].dtype for t in (*op.outputs, *op.inputs)]
        return next((TORCH_TYPE[name] for name in written if name in TORCH_TYPE), torch.float32)

    def _random(self, shape: tuple[int, ...], kind: torch.dtype, number: int = 0) -> Tensor:
        key = ((number, *shape), kind)
        if key not in self.buffers:
            self.buffers[key] = torch.randn(shape, device=self.device, generator=self.generator).to(kind)
        return self.buffers[key]

    def _new_call(self, op: Op, reads: tuple[int, ...], writes: tuple[int, ...], kind: torch.dtype) -> Call:
        match op.body:
            case MatMul(M=m, N=n, K=k, count=count):
                a, b = self._random((count, m, k), kind, 1), self._random((count, k, n), kind, 2)
                return (lambda: torch.bmm(a, b)) if count > 1 else (lambda: torch.mm(a[0], b[0]))
            case Convolution() as body:
                return self._convolution(body, kind)
            case Gather(rows=rows, width=width, table_rows=table_rows, scatter=scatter):
                table, picked = self._random((table_rows, width), kind, 1), self._random((rows, width), kind, 2)
                indices = torch.randint(table_rows, (rows,), device=self.device, generator=self.generator)
                return (lambda: table.index_add_(0, indices, picked)) if scatter else (lambda: table.index_select(0, indices))
            case ElementWise() | Reduction() | Copy() | Update():
                return self._stream(reads, writes, kind)
            case Collective(kind=name):
                raise NotModelled(f"op {op.name!r} of layer {op.layer!r} is a collective ({name}): one device cannot replay it")

    def _convolution(self, body: Convolution, kind: torch.dtype) -> Call:
        x = self._random((body.batch, body.in_channels, *body.size), kind, 1)
        w = self._random((body.out_channels, body.in_channels // body.groups, *body.kernel), kind, 2)
        geometry = (list(body.stride), list(body.padding), list(body.dilation), False, [0] * len(body.size), body.groups)
        if body.product == "forward":
            return lambda: torch.ops.aten.convolution(x, w, None, *geometry)
        y = self._random((body.batch, body.out_channels, *body.out_size), kind, 3)
        output_mask = [body.product == "grad_input", body.product == "grad_weight", False]
        return lambda: torch.ops.aten.convolution_backward(y, x, w, None, *geometry, output_mask)

    def _stream(self, reads: tuple[int, ...], writes: tuple[int, ...], kind: torch.dtype) -> Call:
        """Reads every input once and writes every output once."""
        sources = [self._random((size,), kind, number) for number, size in enumerate(reads) if size]
        targets = [torch.empty(size, device=self.device, dtype=kind) for size in writes if size]
        pairs = [(s, t) for s, t in zip(sources, targets, strict=False) if s.numel() == t.numel()]
        paired = {id(t) for pair in pairs for t in pair}
        alone = [s for s in sources if id(s) not in paired]
        rest = [t for t in targets if id(t) not in paired]

        def run() -> None:
            for source, target in pairs:
                target.copy_(source)
            for source in alone:
                source.sum()
            for target in rest:
                target.fill_(0)

        return run
