"""The machine's own numbers: copies, products, launches, single calls. Written as `machine.json`, after each group."""

from __future__ import annotations

import gc
import json
import platform
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gpu_kernels
import torch
from torch import Tensor

MEBI = 2**20

# fmt: off
PRODUCTS: tuple[tuple[int, int, int], ...] = (
    (8192, 8192, 8192), (4096, 4096, 4096), (2048, 2048, 2048), (1024, 1024, 1024), (512, 512, 512), (256, 256, 256),
    (8192, 768, 768), (8192, 3072, 768), (8192, 768, 3072), (8192, 50257, 768), (768, 768, 8192), (3072, 768, 8192),
    (1024, 768, 768), (1024, 3072, 768), (1024, 768, 3072), (256, 4096, 9216), (256, 4096, 4096), (4096, 9216, 256),
    (64, 4096, 25088), (8192, 2304, 768), (2112, 2048, 4096), (2048, 2304, 4096), (4224, 2048, 1024), (128, 128, 65536),
    (64, 576, 200704), (200704, 64, 576),
)
BATCHED: tuple[tuple[int, int, int, int], ...] = (
    (768, 128, 128, 64), (768, 128, 64, 128), (96, 1024, 1024, 64), (96, 1024, 64, 1024), (256, 256, 256, 64),
)
# fmt: on
COPY_BYTES = tuple(2**exponent for exponent in range(14, 33, 2))


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def device_seconds(work: Callable[[], Any], repeats: int = 20) -> float:
    """Time of one call when calls follow each other on the device: they are queued while it is held up."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(20_000_000)
    start.record()
    for _ in range(repeats):
        work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e-3 / repeats


def host_seconds(work: Callable[[], Any], repeats: int) -> float:
    """Time of one call on the host, when the device has almost nothing to do."""
    for _ in range(min(repeats, 20)):
        work()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(repeats):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / repeats


def streams() -> Iterator[dict[str, Any]]:
    """Copy, addition, reduction over sizes, with one pair of buffers (L2 may hold it) and with many (it may not)."""
    for size in COPY_BYTES:
        for buffers in (1, max(1, min(512, (1024 * MEBI) // size))):
            sources = [torch.ones(size // 4, device="cuda") for _ in range(buffers)]
            targets = [torch.empty_like(source) for source in sources]
            turn = iter_forever(list(zip(sources, targets, strict=True)))

            def copy(turn: Iterator[tuple[Tensor, Tensor]] = turn) -> None:
                source, target = next(turn)
                target.copy_(source)

            def add(turn: Iterator[tuple[Tensor, Tensor]] = turn) -> None:
                source, target = next(turn)
                torch.add(source, 1.0, out=target)

            def total(turn: Iterator[tuple[Tensor, Tensor]] = turn) -> None:
                next(turn)[0].sum()

            repeats = 200 if size <= 64 * MEBI else 20
            for name, work, moved in (("copy", copy, 2), ("add", add, 2), ("sum", total, 1)):
                seconds = device_seconds(work, repeats)
                yield {"work": name, "bytes": size, "buffers": buffers, "seconds": seconds, "bytes_per_s": moved * size / seconds}
            del sources, targets, turn
            if buffers == 1 and size >= 1024 * MEBI:
                break


def iter_forever(items: list[Any]) -> Iterator[Any]:
    while True:
        yield from items


def matrix(rows: int, columns: int, transposed: bool, dtype: torch.dtype) -> Tensor:
    if transposed:
        return torch.randn(columns, rows, device="cuda", dtype=dtype).t()
    return torch.randn(rows, columns, device="cuda", dtype=dtype)


def products() -> Iterator[dict[str, Any]]:
    for kind in ("bf16", "tf32", "fp32"):
        torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
        dtype = torch.bfloat16 if kind == "bf16" else torch.float32
        for m, n, k in PRODUCTS:
            for layout in ("nn", "nt", "tn"):
                a, b = matrix(m, k, layout[0] == "t", dtype), matrix(k, n, layout[1] == "t", dtype)
                seconds = device_seconds(partial(torch.mm, a, b), 10)
                yield product_row(kind, layout, 1, m, n, k, seconds)
        for count, m, n, k in BATCHED:
            a, b = torch.randn(count, m, k, device="cuda", dtype=dtype), torch.randn(count, k, n, device="cuda", dtype=dtype)
            yield product_row(kind, "nn", count, m, n, k, device_seconds(partial(torch.bmm, a, b), 10))
    torch.backends.cuda.matmul.allow_tf32 = False


def product_row(kind: str, layout: str, count: int, m: int, n: int, k: int, seconds: float) -> dict[str, Any]:
    rate = count * m * n * k / seconds
    return {"type": kind, "layout": layout, "M": m, "N": n, "K": k, "count": count, "seconds": seconds, "macs_per_s": rate}


def launches() -> Iterator[dict[str, Any]]:
    """Seconds per launch: on the device when the queue is full, on the host when nothing else limits."""
    tiny = torch.zeros(1, device="cuda")
    yield {"work": "device, tiny kernel, queued", "seconds": device_seconds(lambda: tiny.add_(1.0), 800)}
    captured = torch.cuda.CUDAGraph()
    tiny.add_(1.0)
    with torch.cuda.graph(captured):
        for _ in range(1000):
            tiny.add_(1.0)
    yield {"work": "device, tiny kernel, graph", "seconds": device_seconds(captured.replay, 5) / 1000}
    yield {"work": "host, in-place add", "seconds": host_seconds(lambda: tiny.add_(1.0), 5000)}
    leaf = torch.ones(1, device="cuda", requires_grad=True)

    def chain() -> None:
        value = leaf
        for _ in range(500):
            value = value * 1.5
        value.backward()

    yield {"work": "host, autograd multiply, forward and backward, per kernel", "seconds": host_seconds(chain, 10) / 1000}
    square = torch.zeros(64, 64, device="cuda")
    result = torch.empty_like(square)
    yield {"work": "host, product of 64, in place", "seconds": host_seconds(lambda: torch.mm(square, square, out=result), 5000)}
    yield {"work": "host, smallest training step", "seconds": host_seconds(smallest_step(), 500)}
    layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8, device="cuda") for _ in range(100)))
    sample = torch.ones(8, 8, device="cuda")
    yield {"work": "host, Linear forward, per layer", "seconds": host_seconds(lambda: layers(sample), 10) / 100}
    step_s = host_seconds(lambda: layers(sample).sum().backward(), 10) / 100
    yield {"work": "host, Linear forward and backward, per layer", "seconds": step_s}
    for foreach in (True, False):
        for kind, make in (("SGD", partial(torch.optim.SGD, momentum=0.9)), ("Adam", torch.optim.Adam)):
            optimizer = make(layers.parameters(), lr=1e-3, foreach=foreach)
            seconds = host_seconds(optimizer.step, 10) / 200
            yield {"work": f"host, {kind} step, foreach={foreach}, per parameter", "seconds": seconds}


def processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def smallest_step() -> Callable[[], None]:
    """One Linear and SGD: five calls, the rest is what a step costs outside its calls."""
    model = torch.nn.Linear(8, 8, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=True)
    sample = torch.ones(8, 8, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(sample).sum().backward()
        optimizer.step()

    return step


def machine_facts() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    facts = {name: getattr(properties, name) for name in dir(properties) if not name.startswith("_")}
    facts = {name: value for name, value in facts.items() if isinstance(value, int | float | str)}
    command = ["nvidia-smi", "-q", "-d", "CLOCK,POWER"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
    except OSError as error:
        answer = str(error)
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    versions |= {"python": platform.python_version(), "processor": processor_name(), "threads": str(torch.get_num_threads())}
    return {**versions, **facts, "nvidia_smi": answer}


def machine(folder: Path) -> None:
    """The machine's own numbers, saved after each group."""
    document: dict[str, Any] = {}
    for name, work in (
        ("facts", lambda: [machine_facts()]),
        ("launches", launches),
        ("streams", streams),
        ("products", products),
        ("calls", gpu_kernels.host_calls),
        ("kernels", gpu_kernels.kernels),
        ("facts_after_load", lambda: [machine_facts()]),
    ):
        begun = time.perf_counter()
        document[name] = []
        try:
            for row in work():
                document[name].append(row)
        except Exception:
            document[f"{name}_error"] = traceback.format_exc()
            say(f"{name} failed: {document[f'{name}_error'].splitlines()[-1]}")
        (folder / "machine.json").write_text(json.dumps(document, indent=1, default=str))
        free()
        say(f"machine: {name}: {len(document[name])} rows in {time.perf_counter() - begun:.1f} s")


def free() -> None:
    gc.collect()
    torch.cuda.empty_cache()
