"""Interleaved gradients on a real GPU: one pass over dY against the library's pair, and the paper's steps (Fig. 17).

python benchmarks/gradient_gpu.py --layers                      anywhere: the nine networks' layers into benchmarks/data
python benchmarks/gradient_gpu.py --measure --out FILE.json     on a machine with a CUDA GPU, torch and triton: about five minutes
python benchmarks/gradient_gpu.py --page FILE.json              anywhere: the section of docs/gpu.md and the papers' sample
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
LAYERS = DATA / "gradient_gpu_layers.json"
BATCH = 4  # Sec. 6.6: that of the small NPU
BREAKDOWN = (("res", "resnet50"), ("goo", "googlenet"), ("mob", "mobilenet"), ("bert", "tinybert-4"), ("yolo", "yolov2-tiny"))

# fmt: off
# family, layer, M, K, N. ResNet-50: its 1x1 convolutions at batches 32, 64, 256; places 56^2, 28^2, 14^2, 7^2.
RESNET = [
    ("resnet50", f"{k} to {n}, {side}x{side}, batch {batch}", batch * side * side, k, n)
    for batch in (32, 64, 256)
    for side, k, n in ((56, 64, 64), (56, 64, 256), (56, 256, 64), (28, 128, 512), (28, 512, 128), (14, 256, 1024), (7, 512, 2048))
]
MOBILENET = [
    ("mobilenet", f"{k} to {n}, {side}x{side}, batch 128", 128 * side * side, k, n)
    for side, k, n in (
        (112, 32, 64), (56, 64, 128), (56, 128, 128), (28, 128, 256), (28, 256, 256), (14, 256, 512), (14, 512, 512),
        (7, 512, 1024),
    )
]
LORA = [
    ("lora", f"{side} of rank {rank}, width {width}, {tokens} tokens", tokens, *((rank, width) if side == "B" else (width, rank)))
    for rank in (8, 16, 32, 64, 128)
    for width, tokens in ((4096, 16384), (4096, 65536), (11008, 16384))
    for side in ("B", "A")
    if side == "B" or tokens == 16384
]
EXPERTS = [
    ("experts", f"{k} to {n}, {tokens} tokens", tokens, k, n)
    for tokens in (512, 2048)
    for k, n in ((256, 512), (512, 256), (512, 1024))
]
BERT = [
    ("bert", f"{name}, {k} to {n}, 32 x 512 tokens", 16384, k, n)
    for name, width in (("base", 768), ("large", 1024))
    for k, n in ((width, width), (width, 4 * width), (4 * width, width))
]
NARROW = [
    ("narrow", f"{k} to {n}, {m} rows", m, k, n)
    for m, k, n in ((262144, 16, 256), (262144, 32, 256), (131072, 64, 256), (1048576, 32, 128))
]
# fmt: on
SHAPES = [*RESNET, *MOBILENET, *LORA, *EXPERTS, *BERT, *NARROW]


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def device_seconds(works: Sequence[Callable[[], Any]], repeats: int = 5) -> float:
    """Median over `repeats` of one call's time, calls in turns over `works` (operands of their own: the L2 keeps none)."""
    import torch

    for work in works[:2]:
        work()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    works[0]()
    host = time.perf_counter() - begun
    torch.cuda.synchronize()
    calls = max(6, len(works))
    spans: list[float] = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(int(2e9 * 1.5 * host * calls) + 50_000)  # holds the device up until the host has issued all calls
        start.record()
        for call in range(calls):
            works[call % len(works)]()
        end.record()
        end.synchronize()
        spans.append(start.elapsed_time(end) * 1e-3 / calls)
    return statistics.median(spans)


def operands(m: int, k: int, n: int, dtype: Any, sets: int) -> list[tuple[Any, ...]]:
    import torch

    return [tuple(torch.randn(*shape, device="cuda", dtype=dtype) for shape in ((m, n), (m, k), (n, k))) for _ in range(sets)]


def sets_for(bytes_each: int, l2_bytes: int) -> int:
    return max(1, min(8, math.ceil(3 * l2_bytes / bytes_each)))


def library_pair(dy: Any, x: Any, weight: Any) -> Any:
    import torch

    return torch.mm(dy, weight), torch.mm(dy.t(), x)


def facts() -> dict[str, Any]:
    """The device, its clocks and versions, and its two ceilings: a large copy and a large product."""
    import torch
    import triton
    from gpu_machine import machine_facts

    about = machine_facts()
    source, square = torch.randn(2**29, device="cuda"), torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    copy_s, product_s = device_seconds([lambda: target.copy_(source)]), device_seconds([lambda: square @ square])
    single = torch.randn(8192, 8192, device="cuda")
    single_s = device_seconds([lambda: single @ single])
    return {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda,
        "triton": triton.__version__, "python": about["python"], "nvidia_smi": about["nvidia_smi"],
        "multiprocessors": about["multi_processor_count"], "l2_bytes": about["L2_cache_size"],
        "copy_bytes_per_s": 8 * 2**29 / copy_s, "bf16_flop_per_s": 2 * 8192**3 / product_s,
        "fp32_flop_per_s": 2 * 8192**3 / single_s,
    }  # fmt: skip


def shape_row(row: tuple[str, str, int, int, int], about: dict[str, Any]) -> dict[str, Any]:
    """One layer in bf16: the pair, one pass whether chosen or not, and what the rule chooses."""
    import torch

    from trainyard.live.gradient import choice, kernels

    family, layer, m, k, n = row
    dtype = torch.bfloat16
    moved = 2 * (m * n + 2 * m * k + 2 * n * k)
    sets = operands(m, k, n, dtype, sets_for(moved, about["l2_bytes"]))
    pair = [partial(library_pair, *each) for each in sets]
    one_pass = [partial(kernels.fused, *each, bias=False, deterministic=False) for each in sets]
    copy, flop = about["copy_bytes_per_s"], about["bf16_flop_per_s"]
    product = 2 * m * n * k / flop
    pair_floor = 2 * max((moved / 2 + m * n) / copy, product)
    pass_floor = max(moved / copy, 2 * product)
    first = device_seconds(pair)
    path = choice.choose(m, n, k, dtype=dtype, device="cuda")
    tried = choice.bound(m, n, k, dtype) >= choice.WORTH_A_TRIAL
    fused = device_seconds(one_pass) if tried else None
    ours, again = device_seconds(one_pass if path == "fused" else pair), device_seconds(pair)
    exact = [partial(kernels.fused, *each, bias=False, deterministic=True) for each in sets]
    buffers = [[torch.ones(moved // 2, device="cuda", dtype=torch.uint8) for _ in range(2)] for _ in sets]
    return {
        "family": family, "layer": layer, "M": m, "K": k, "N": n, "bytes": moved, "operand_bytes": 2 * (m * n + m * k + n * k),
        "pair_s": statistics.mean((first, again)), "pair_spread_s": [first, again], "pass_s": fused, "way": path, "ours_s": ours,
        "deterministic_s": device_seconds(exact) if path == "fused" else None,
        "pair_floor_s": pair_floor, "floor_s": pass_floor, "traffic_bound": moved / copy >= 2 * product,
        "copy_s": device_seconds([partial(target.copy_, source) for target, source in buffers]),
        "share_of_copy": moved / copy / fused if fused else None, "bound": pair_floor / pass_floor,
        "config": str(kernels.tuned_for(*sets[0])) if path == "fused" else "",
    }  # fmt: skip


def layer_seconds(m: int, n: int, k: int, dtype: Any, about: dict[str, Any]) -> dict[str, float]:
    """One layer of the nine networks, by every step of the paper. Partitioning takes the better axis, or none."""
    import gradient_variants as variants

    from trainyard.live.gradient import choice, kernels

    size = dtype.itemsize
    sets = operands(m, k, n, dtype, min(3, sets_for(size * (m * n + 2 * m * k + 2 * n * k), about["l2_bytes"])))

    def timed(step: Any, parts: int = 1) -> float:
        return device_seconds([partial(variants.run, step, *each, parts=parts) for each in sets], repeats=3)

    seconds = {"cublas": device_seconds([partial(library_pair, *each) for each in sets], repeats=3)}
    seconds |= {step: timed(step) for step in ("two_kernels", "sequential", "interleaving")}
    order = variants.algorithm_1(m, n, k)
    seconds["rearrangement"] = seconds["interleaving"] if order == "interleaving" else timed(order)
    tile = 32 if size == 4 else 64
    tiles_m, tiles_n, tiles_k = (math.ceil(extent / tile) for extent in (m, n, k))
    best = seconds["rearrangement"]
    for major, own, walk in (("dx_major", tiles_m, tiles_n), ("dw_major", tiles_n, tiles_m)):  # dY-sharing, weight-sharing
        parts = min(walk, math.ceil(2 * about["multiprocessors"] / (own * tiles_k)))
        if parts > 1:
            best = min(best, timed(major, parts))
    seconds["partitioning"] = best
    path = choice.choose(m, n, k, dtype=dtype, device="cuda")
    ours = partial(kernels.fused, bias=False, deterministic=False) if path == "fused" else library_pair
    seconds["ours"] = device_seconds([partial(ours, *each) for each in sets], repeats=3) if path == "fused" else seconds["cublas"]
    return seconds


def networks(dtype: Any, about: dict[str, Any], deadline: float) -> list[dict[str, Any]]:
    """Seconds of all layers' gradients by step; a layer with one gradient, or a grouped one, counts alike in all of them."""
    import torch

    measured: dict[tuple[int, ...], dict[str, float]] = {}
    rows: list[dict[str, Any]] = []
    for name, layers in json.loads(LAYERS.read_text()).items():
        total: dict[str, float] = {}
        for m, n, k, count, dx, dw, repeats in layers:
            if time.perf_counter() > deadline:
                say("out of time: networks left out")
                return rows
            key = (m, n, k, count, dx, dw)
            if key not in measured:
                if dx and dw and count == 1:
                    measured[key] = layer_seconds(m, n, k, dtype, about)
                else:
                    measured[key] = {"alike": alike_seconds(m, n, k, count, dx, dw, dtype)}
            layer_s = measured[key]
            steps = ("cublas", "two_kernels", "sequential", "interleaving", "rearrangement", "partitioning", "ours")
            times = {step: layer_s.get(step, layer_s.get("alike", 0.0)) for step in steps}
            times["reference"] = min(times["cublas"], times["sequential"])
            times["own_reference"] = min(times["two_kernels"], times["sequential"])
            for step, seconds in times.items():
                total[step] = total.get(step, 0.0) + repeats * seconds
        rows.append({"network": name, "layers": sum(layer[6] for layer in layers), "seconds": total})
        torch.cuda.empty_cache()
        say(f"{name} {dtype}: " + ", ".join(f"{step} {1e6 * seconds:.0f}" for step, seconds in total.items()) + " us")
    return rows


def alike_seconds(m: int, n: int, k: int, count: int, dx: bool, dw: bool, dtype: Any) -> float:
    import torch

    dy, x, w = (torch.randn(count, *shape, device="cuda", dtype=dtype) for shape in ((m, n), (m, k), (n, k)))
    works = [lambda: torch.bmm(dy, w)] * dx + [lambda: torch.bmm(dy.mT, x)] * dw
    return sum(device_seconds([work], repeats=3) for work in works)


class Events:
    """A watcher of a training step that marks where its phases begin and end on the device."""

    def __init__(self) -> None:
        self.marks: list[tuple[str, Any, Any]] = []

    @contextmanager
    def phase(self, phase: Any, *, backward: bool = False) -> Iterator[None]:
        import torch

        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        yield
        end.record()
        self.marks.append(("backward" if backward else str(phase), start, end))

    def index_graph(self, loss: Any) -> None:
        pass


def breakdown(network: str, model: str, batch: int = 256, steps: int = 5) -> dict[str, Any]:
    """Fig. 3: one training step in fp32 (convolutions in TF32), its batch copied from pinned memory before."""
    import torch

    from trainyard.live.measurement.training_step import recipe_step
    from trainyard.workloads import zoo

    step = recipe_step(zoo.build(model), batch, torch.device("cuda"))
    step.set_optimizer(foreach=True, capturable=False)
    tensors = (*step.inputs, *step.targets)
    pinned = [tensor.cpu().pin_memory() for tensor in tensors]
    found: dict[str, list[float]] = {}
    for turn in range(steps + 3):
        watch = Events()
        with watch.phase("copy"):
            for tensor, source in zip(tensors, pinned, strict=True):
                tensor.data.copy_(source, non_blocking=True)
        step(watch)
        torch.cuda.synchronize()
        if turn >= 3:
            for name, start, end in watch.marks:
                found.setdefault(name, []).append(start.elapsed_time(end) * 1e-3)
    seconds = {name: statistics.median(spans) for name, spans in found.items()}
    say(f"{model}: " + ", ".join(f"{name} {1e3 * value:.2f}" for name, value in seconds.items()) + " ms")
    return {"network": network, "model": model, "batch": batch, "seconds": seconds}


def compiled(task: tuple[str, int, int, str]) -> str:
    """Compiles what one shape may need, in a process of its own, into Triton's cache."""
    import gradient_variants as variants
    import torch
    import triton

    from trainyard.live.gradient import kernels
    from trainyard.live.gradient.configs import candidates

    what, k, n, name = task
    dtype = getattr(torch, name)
    dy, x, weight = operands(512, k, n, dtype, 1)[0]
    try:
        if what == "steps":
            for step in variants.STEPS:
                variants.run(step, dy, x, weight)
        else:
            for deterministic in (False, True):
                configs = candidates(n, k, dtype.itemsize, deterministic=deterministic, describable=k % 8 == 0 and n % 8 == 0)
                for config in configs[: kernels.TRIALS]:
                    with suppress(RuntimeError, triton.runtime.errors.OutOfResources):
                        kernels.fused(dy, x, weight, bias=False, deterministic=deterministic, config=config)
        torch.cuda.synchronize()
    except Exception:
        return f"{task}: {traceback.format_exc().splitlines()[-1]}"
    return ""


def measure(out: Path, seconds: float, processes: int, families: list[str]) -> None:
    import torch
    from gpu_machine import free

    from trainyard.live.gradient.choice import bound

    deadline = time.perf_counter() + seconds
    shapes = [row for row in SHAPES if not families or row[0] in families]
    tasks = {("pass", k, n, "bfloat16") for _, _, m, k, n in shapes if bound(m, n, k, torch.bfloat16) >= 1.1}
    layers = json.loads(LAYERS.read_text()) if not families else {}
    for m, n, k, count, dx, dw, _ in (layer for each in layers.values() for layer in each):
        if dx and dw and count == 1:
            for kind, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
                tasks.add(("steps", 64 if k % 16 == 0 else 72 if k % 8 == 0 else 69, 64 if n % 16 == 0 else 69, name))
                if bound(m, n, k, kind) > 1.1 and m * (n + 2 * k) * kind.itemsize > 2**24:
                    tasks.add(("pass", k, n, name))
    say(f"{len(tasks)} shapes to compile for")
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        failures = [failure for failure in pool.map(compiled, sorted(tasks), chunksize=1) if failure]
    say(f"compiled; {failures}")
    about = facts()
    result: dict[str, Any] = {**about, "failures": failures, "shapes": []}
    say(f"{about['device']}: copy {about['copy_bytes_per_s'] / 1e12:.2f} TB/s, bf16 {about['bf16_flop_per_s'] / 1e12:.0f} TFLOP/s")
    for row in shapes:
        if time.perf_counter() > deadline:
            say("out of time: shapes left out")
            break
        found = shape_row(row, about)
        result["shapes"].append(found)
        say(told(found))
        torch.cuda.empty_cache()
    out.write_text(json.dumps(result, indent=1))
    groups: list[tuple[str, Callable[[], Any]]] = [
        ("networks", lambda: networks(torch.float32, about, deadline)),
        ("networks_bf16", lambda: networks(torch.bfloat16, about, deadline)),
        ("breakdown", lambda: [breakdown(*each) for each in BREAKDOWN if time.perf_counter() < deadline + 40]),
    ]
    for name, work in groups if layers else []:
        try:
            result[name] = work()
        except Exception:
            result[f"{name}_error"] = traceback.format_exc()
            say(result[f"{name}_error"])
        free()
        out.write_text(json.dumps(result, indent=1))


def told(row: dict[str, Any]) -> str:
    text = f"{row['family']:10s} {row['layer']:42s} pair {1e6 * row['pair_s']:7.1f} us, bound {row['bound']:.2f}x"
    if row["pass_s"]:
        speedup = row["pair_s"] / row["pass_s"]
        text += f", pass {1e6 * row['pass_s']:7.1f} us = {speedup:.2f}x, {100 * row['share_of_copy']:3.0f} % of copy"
    return f"{text}, {row['way']:5s} {row['pair_s'] / row['ours_s']:.2f}x{'' if row['traffic_bound'] else ' (arithmetic)'}"


def write_layers() -> None:
    """M, N, K, count, dX wanted, dW wanted, how many: of every layer with weights of the nine networks."""
    from trainyard.papers.igo.networks import ABBREVIATIONS, layers_of

    table: dict[str, list[list[int]]] = {}
    for name in ABBREVIATIONS:
        counts: dict[tuple[int, ...], int] = {}
        for layer in layers_of(name, "small", BATCH):
            op = layer.op
            key = (op.M, op.N, op.K, op.count, int(layer.has_dx), int(layer.has_dw))
            counts[key] = counts.get(key, 0) + 1
        table[name] = [[*key, count] for key, count in counts.items()]
    LAYERS.write_text(json.dumps(table))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", action="store_true", help="write the networks' layers")
    parser.add_argument("--measure", action="store_true", help="measure on this machine's GPU")
    parser.add_argument("--out", type=Path, default=DATA / "gradient_gpu_h200.json", help="where the measurements go")
    parser.add_argument("--seconds", type=float, default=420.0, help="nothing is begun after this time")
    parser.add_argument("--processes", type=int, default=14, help="that compile")
    parser.add_argument("--families", default="", help="comma-separated: only these layers, no networks")
    parser.add_argument("--page", type=Path, metavar="FILE", help="measurements to write the page from")
    chosen = parser.parse_args()
    if chosen.layers:
        write_layers()
    if chosen.measure:
        measure(chosen.out, chosen.seconds, chosen.processes, [name for name in chosen.families.split(",") if name])
    if chosen.page:
        from gradient_page import write

        write(chosen.page)


if __name__ == "__main__":
    main()
