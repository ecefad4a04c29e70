"""The DRAM accesses of a step on an accelerator, line by line, for DRAM simulators: Ramulator 2's load/store traces, Ramulator's.

The order is that of the mapping from which the costs are counted: a product visits its tiles in loop order (`mapping.walk`), dX and
dW of a layer theirs in IGO's (`mapping.gradient_order.tile_streams`, the law of `mapping.gradient_order.execution`), and what has
no product streams through. What each Work moves is compared with its cost byte by byte; a Work whose bytes another model counts is
refused.

A line is touched once for each tile that has bytes in it, so lines hold at least the
bytes that are counted, and more where rows of a tile end inside a line.
"""

from __future__ import annotations

import gzip
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Literal

import numpy as np

from trainyard.devices import Accelerator
from trainyard.errors import BadInput, NotModelled, UnknownName
from trainyard.files import whole_file
from trainyard.ir import Collective, Step, Work
from trainyard.report.traces.memory_accesses import Access, Key, Tracer, Whole

Style = Literal["load_store", "classic"]
STYLES: Mapping[Style, tuple[str, str]] = {"load_store": ("LD 0x{:x}\n", "ST 0x{:x}\n"), "classic": ("0x{:x} R\n", "0x{:x} W\n")}
LINE_BYTES = 64
MOST_LINES = 20_000_000
"""Lines of a trace, half a gigabyte of text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """What a trace holds: lines of loads and stores, and the bytes that the model counts."""

    loads: int
    stores: int
    bytes: Mapping[Key, int]
    line_bytes: int = LINE_BYTES

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes.values())


def write_memory_trace(
    step: Step,
    device: Accelerator,
    path: str | os.PathLike[str],
    *,
    layer: str | None = None,
    phase: str | None = None,
    style: Style = "load_store",
    line_bytes: int = LINE_BYTES,
    most_lines: int = MOST_LINES,
) -> Traced:
    """The accesses of a step, or of the Works of one layer and phase; a `path` that ends in .gz is packed."""
    if style not in STYLES:
        raise UnknownName("style", style, STYLES)
    if line_bytes < 1 or line_bytes & (line_bytes - 1):
        raise BadInput(f"line_bytes must be a power of two, got {line_bytes}")
    works = _chosen(step, device, layer, phase)
    least = sum(sum(device.cost(step, work).bytes.values()) for work in works) // line_bytes
    if least > most_lines:
        raise BadInput(
            f"the trace would have at least {least:,} lines, the limit is {most_lines:,}: choose one layer or phase, "
            "a smaller batch, or allow more (most_lines, --lines)"
        )
    tracer = Tracer(step, device)
    with whole_file(path) as part, ExitStack() as stack:
        target: IO[bytes] = stack.enter_context(part.open("wb"))
        if os.fspath(path).endswith(".gz"):
            target = stack.enter_context(gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=target, mtime=0))  # type: ignore[arg-type]
        return _written(tracer, works, target, style, line_bytes, most_lines)


def _chosen(step: Step, device: Accelerator, layer: str | None, phase: str | None) -> list[Work]:
    if layer is not None and layer not in step.layers:
        raise UnknownName("layer", layer, step.layers)
    if phase is not None and phase not in {op.phase.value for op in step.ops}:
        raise UnknownName("phase", phase, {op.phase.value for op in step.ops})
    numbers = []
    for work in device.works(step):
        op = step.ops[work.ops[0]]
        if layer in (None, op.layer) and phase in (None, op.phase.value) and not isinstance(op.body, Collective):
            numbers.append(work)
    if not numbers:
        raise BadInput(f"no work begins with layer {layer!r}, phase {phase!r}: its ops go with others (fusion='none' parts them)")
    return numbers


def _written(tracer: Tracer, works: Sequence[Work], target: IO[bytes], style: Style, line_bytes: int, most: int) -> Traced:
    count, total, lines = Counter[Key](), [0, 0], STYLES[style]
    for work in works:
        moved = Counter[Key]()
        for access in tracer.accesses(work):
            moved[access.key] += int((access.ends - access.starts).sum())
            addresses = _lines(access, tracer.address(access.region), line_bytes)
            total[access.store] += len(addresses)
            if sum(total) > 2 * most:
                raise BadInput(f"the trace has more than {2 * most:,} lines: choose one layer or phase, or a smaller batch")
            target.write("".join(map(lines[access.store].format, addresses.tolist())).encode())
        costed = {key: size for key, size in tracer.device.cost(tracer.step, work).bytes.items() if size}
        if dict(moved) != costed:
            names = ", ".join(tracer.step.ops[op].name for op in work.ops)
            raise NotModelled(f"{names}: the cost counts {costed} bytes, its tiles move {dict(moved)}: another model counted them")
        count.update(moved)
    return Traced(loads=total[0], stores=total[1], bytes=dict(count), line_bytes=line_bytes)


def _lines(access: Access, base: int, line_bytes: int) -> Whole:
    """Addresses of the lines that segments touch, each once, rising."""
    used = access.ends > access.starts
    first, last = access.starts[used] // line_bytes, (access.ends[used] - 1) // line_bytes
    if not len(first):
        return np.zeros(0, np.int64)
    lengths = last - first + 1
    offsets = np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    addresses: Whole = np.unique(np.repeat(first, lengths) + offsets)
    return base + addresses * line_bytes
