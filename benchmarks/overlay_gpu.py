"""Training under a memory budget on a real GPU: time and peak memory against plain training, `save_on_cpu` and checkpointing.

python benchmarks/overlay_gpu.py --check                        on a machine with a CUDA GPU: gradients bit for bit, every store
python benchmarks/overlay_gpu.py --measure --out FILE.json      there: about four minutes
python benchmarks/overlay_gpu.py --page FILE.json               anywhere: the section of docs/gpu.md or docs/overlay_models.md
python benchmarks/overlay_gpu.py --models --out FILE.json       there: networks of others; an existing FILE.json is gone on with
python benchmarks/overlay_gpu.py --models --only SPEC --out FILE.json     any other network: see overlay_cases/others.py
python benchmarks/overlay_gpu.py --table FILE.json              anywhere: the overlay beside each alternative, for any networks
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # fixed workspaces: products give the same bits again

BLOCKS, WIDTH, HEADS, TOKENS, LENGTH = 12, 2048, 16, 16384, 2048
GIB = 2**30
STEPS, WARM, ROUNDS = 6, 2, 3


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def build(blocks: int, width: int, heads: int, dropout: float = 0.0) -> Any:
    """Transformer blocks as they are usually written; `model.around` may put each block into a checkpoint."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch, length, _ = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
            x = x + F.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)), dropout)
            return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), dropout)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(blocks))
            self.around: Callable[[int, Any, Any], Any] = lambda number, block, x: block(x)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for number, block in enumerate(self.blocks):
                x = self.around(number, block, x)
            return x

    return Model()


def checkpointing(every: int, saved: tuple[str, ...] = ()) -> Callable[[int, Any, Any], Any]:
    """Checkpoints all blocks but every `every`-th (0: all); `saved` names ops whose results are saved all the same (selective)."""
    import torch
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        name = op._schema.name.partition("::")[2]
        return CheckpointPolicy.MUST_SAVE if name in saved else CheckpointPolicy.PREFER_RECOMPUTE

    options: dict[str, Any] = {"use_reentrant": False}
    if saved:
        options["context_fn"] = partial(create_selective_checkpoint_contexts, policy)

    def around(number: int, block: Any, x: torch.Tensor) -> Any:
        return block(x) if every and number % every == 0 else checkpoint(block, x, **options)

    return around


PRODUCTS = ("mm", "addmm", "_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention")
ALTERNATIVES: dict[str, tuple[Any, bool]] = {  # name: (checkpointing, save_on_cpu)
    "plain": (None, False),
    "save_on_cpu": (None, True),
    "full checkpointing": ((0, ()), False),
    "checkpointing 2 of 3 blocks": ((3, ()), False),
    "checkpointing 1 of 2 blocks": ((2, ()), False),
    "selective: products and attention saved": ((0, PRODUCTS), False),
    "selective: attention saved": ((0, PRODUCTS[2:]), False),
    "selective: products saved": ((0, PRODUCTS[:2]), False),
}


class Bench:
    """One model, one input, and the step that everything is measured with: forward, backward, gradients dropped before."""

    def __init__(self, device: str, blocks: int, width: int, heads: int, tokens: int, length: int) -> None:
        import torch

        self.torch, self.device = torch, torch.device(device)
        torch.manual_seed(0)
        dtype = torch.bfloat16
        self.model = build(blocks, width, heads).to(self.device, dtype)
        self.plain_around = self.model.around
        self.x = torch.randn(tokens // length, length, width, device=self.device, dtype=dtype)
        self.target = torch.randn_like(self.x)
        self.issue_s = 0.0

    def step(self) -> None:
        self.model.zero_grad(set_to_none=True)
        loss = self.torch.nn.functional.mse_loss(self.model(self.x), self.target)
        loss.backward()

    def timed(self, steps: int, warm: int) -> tuple[list[float], int]:
        """Device seconds of each step, and the peak of allocated memory in them."""
        torch = self.torch
        cuda = self.device.type == "cuda"
        for _ in range(warm):
            self.step()
        if not cuda:
            begun = time.perf_counter()
            for _ in range(steps):
                self.step()
            return [(time.perf_counter() - begun) / steps] * steps, 0
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        marks[0].record()
        begun = time.perf_counter()
        for number in range(steps):
            self.step()
            marks[number + 1].record()
        self.issue_s = (time.perf_counter() - begun) / steps  # what the host needs, unless the device holds it up
        torch.cuda.synchronize()
        times = [start.elapsed_time(end) * 1e-3 for start, end in pairwise(marks)]
        return times, torch.cuda.max_memory_allocated()

    def alternative(self, name: str) -> AbstractContextManager[Any]:
        checkpoint, on_cpu = ALTERNATIVES[name]
        self.model.around = checkpointing(*checkpoint) if checkpoint else self.plain_around
        return self.torch.autograd.graph.save_on_cpu(pin_memory=self.device.type == "cuda") if on_cpu else nullcontext()

    def plain(self) -> None:
        self.model.around = self.plain_around


def board() -> str:
    """Clock, power and temperature right after a run."""
    import subprocess

    query = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw,temperature.gpu", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()


def problem_data(problem: Any) -> dict[str, Any]:
    return asdict(problem)


def measure(out: Path, device: str, small: bool, seconds: float) -> None:
    import torch

    import trainyard as ty

    deadline = time.perf_counter() + seconds
    if hasattr(torch._C, "_host_emptyCache"):
        torch._C._host_emptyCache = None  # locking pages anew for each budget is not what is measured
    bench = Bench(device, *((2, 64, 2, 256, 64) if small else (BLOCKS, WIDTH, HEADS, TOKENS, LENGTH)))
    document: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__, "cuda": torch.version.cuda,
        "blocks": BLOCKS, "width": WIDTH, "tokens": TOKENS, "length": LENGTH, "alternatives": [], "overlay": [],
    }  # fmt: skip

    def store() -> None:
        out.write_text(json.dumps(document), encoding="utf-8")

    rows: dict[str, dict[str, Any]] = {}
    for name in ALTERNATIVES:
        with bench.alternative(name):
            times, peak = bench.timed(3, 3)
        rows[name] = {"name": name, "seconds": times, "peak_bytes": peak, "times": []}
        torch.cuda.empty_cache()
        say(f"{name}: {1e3 * statistics.median(times):.1f} ms, {peak / GIB:.2f} GiB")
    document["alternatives"] = list(rows.values())
    store()
    bench.plain()
    plain_peak, checkpointed_peak = rows["plain"]["peak_bytes"], rows["full checkpointing"]["peak_bytes"]
    budgets = {f"even {step}": int(checkpointed_peak + (plain_peak - checkpointed_peak) * step / 8) for step in range(9)}
    budgets |= {
        f"peak of {name}": row["peak_bytes"] for name, row in rows.items() if "checkpointing" in name or "selective" in name
    }
    budgets |= {"near the least": int(1.03 * rows["save_on_cpu"]["peak_bytes"])}
    pages: dict[str, Any] = {}
    for label, budget in sorted(budgets.items(), key=lambda item: -item[1]):
        if time.perf_counter() > deadline:
            say("out of time: budgets left out")
            break
        begun = time.perf_counter()
        try:
            page = ty.live.overlay(
                bench.model, budget=max(budget, 1 << 20) if not small else "1 GB", smallest=0 if small else None, unit="tensors"
            )
            with page:
                times, peak = bench.timed(3, 12)
        except ty.TrainyardError as error:
            say(f"overlay {label} {budget / GIB:.2f} GiB: {error}")
            continue
        pages[label] = page
        choice = page.plan.choice
        row = {
            "label": label, "budget_bytes": budget, "seconds": times, "peak_bytes": peak, "times": [],
            "predicted_s": choice.time_s, "predicted_bytes": choice.peak_bytes, "link": asdict(page.plan.link),
            "passes": dict(page.passes), "tightened": page.plan.tightened, "prepared_s": time.perf_counter() - begun,
            "bytes": {name: sum(saved.bytes for saved, decision in zip(page.plan.problem.saved, choice.decisions, strict=True)
                                if decision == name) for name in ("keep", "send", "recompute")},
        }  # fmt: skip
        document["overlay"].append(row)
        sizes = ", ".join(f"{name} {size / GIB:.2f}" for name, size in row["bytes"].items())
        say(
            f"overlay {label}: budget {budget / GIB:.2f}, {1e3 * statistics.median(times):.1f} ms "
            f"(predicted {1e3 * choice.time_s:.1f}), {peak / GIB:.2f} GiB (predicted {choice.peak_bytes / GIB:.2f}), "
            f"tightened {page.plan.tightened}, {sizes}"
        )
        if "problem" not in document:
            document["problem"] = problem_data(page.plan.problem)
        store()
        torch.cuda.empty_cache()
    document["problem_last"] = problem_data(next(reversed(pages.values())).plan.problem)
    interleaved(bench, rows, document["overlay"], pages, deadline)
    store()


def interleaved(bench: Bench, rows: dict[str, Any], overlays: list[dict[str, Any]], pages: dict[str, Any], deadline: float) -> None:
    """Rounds over everything, so that a warmer chip slows all alike."""
    for _ in range(ROUNDS):
        if time.perf_counter() > deadline:
            break
        for name, row in rows.items():
            with bench.alternative(name):
                times, peak = bench.timed(STEPS if name != "save_on_cpu" else 2, WARM)
            row["times"] += times
            row["issue_s"], row["board"] = bench.issue_s, board()
            row["peak_bytes"] = max(row["peak_bytes"], peak)
            bench.torch.cuda.empty_cache()
        bench.plain()
        for row in overlays:
            with pages[row["label"]]:
                times, peak = bench.timed(STEPS, WARM)
            row["times"] += times
            row["issue_s"], row["board"] = bench.issue_s, board()
            row["peak_bytes"] = peak
            row["predicted_s"], row["predicted_bytes"] = (
                pages[row["label"]].plan.choice.time_s,
                pages[row["label"]].plan.choice.peak_bytes,
            )
            bench.torch.cuda.empty_cache()
    for row in (*rows.values(), *overlays):
        say(
            f"{row.get('name') or row['label']}: {1e3 * statistics.median(row['times']):.1f} ms "
            f"({1e3 * min(row['times']):.1f} to {1e3 * max(row['times']):.1f}), predicted {1e3 * row.get('predicted_s', 0):.1f}, "
            f"issue {1e3 * row['issue_s']:.1f}, {row['peak_bytes'] / GIB:.2f} GiB, {row['board']}"
        )


def check(device: str) -> None:
    """Gradients of a few steps, bit for bit, with every store and several budgets."""
    import torch
    from torch import nn

    import trainyard as ty
    from trainyard.mapping.overlay.policy import with_cost

    torch.use_deterministic_algorithms(True, warn_only=True)
    place = torch.device(device)

    def convolutional() -> Any:
        body = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.Dropout(0.3),
            nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
        )  # fmt: skip
        return body, (32, 3, 64, 64), torch.float32

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.LSTM(128, 256, num_layers=2, dropout=0.1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.cells(x)[0]

    def policy(kind: str) -> Any:
        def choose(problem: Any, budget: int) -> Any:
            return with_cost(
                problem, [kind if kind != "recompute" or one.recompute_s is not None else "send" for one in problem.saved]
            )

        return choose

    cases = {
        "transformer": lambda: (build(3, 512, 8, dropout=0.1), (4, 512, 512), torch.bfloat16),
        "convolutional": convolutional,
        "recurrent": lambda: (Recurrent(), (64, 32, 128), torch.float32),
    }

    def train(make: Any, **overlay: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model, shape, dtype = make()
        model.to(place, dtype)
        optimizer, results = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), []
        context = ty.live.overlay(model, smallest="16 KiB", unit="tensors", **overlay) if overlay else nullcontext()
        with context as pages:
            for _ in range(7):
                optimizer.zero_grad()
                model(torch.randn(*shape, device=place, dtype=dtype)).float().square().mean().backward()
                results += [parameter.grad.clone() for parameter in model.parameters()]
                optimizer.step()
        if pages is not None:
            assert pages.passes["followed"] >= 2, pages.passes
            counts = [pages.plan.choice.decisions.count(what) for what in ("keep", "send", "recompute")]
            say(f"   kept, sent, made again: {counts}, peak {pages.peak_bytes / 1e6:.1f} MB")
        return [*results, *(buffer.clone() for buffer in model.buffers())]

    for name, make in cases.items():
        expected = train(make)
        repeatable = all(torch.equal(*pair) for pair in zip(expected, train(make), strict=True))
        for store in ("pinned", "host", "disk"):
            for kind in ("keep", "send", "recompute"):
                try:
                    found = train(make, budget="100 GB", store=store, policy=policy(kind))
                    equal = all(torch.equal(*pair) for pair in zip(expected, found, strict=True))
                except Exception as error:
                    import traceback

                    traceback.print_exc()
                    equal = repr(error)
                say(f"{name}, {store}, {kind}: {equal} (plain twice: {repeatable})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--table", type=Path, help="prints what --models measured")
    parser.add_argument("--out", type=Path, default=Path("overlay_gpu.json"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a model of two narrow blocks, to try the script")
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--models", action="store_true")
    parser.add_argument("--only", nargs="+", default=[], help="networks for --models (overlay_cases/others.py); eight by default")
    parser.add_argument("--compiled", nargs="*", default=[], help="those of them that are compiled; all by default")
    parser.add_argument("--compiled-first", nargs="*", default=["unet", "swin-b"], help="those that take the longest to compile")
    parser.add_argument("--shares", type=float, nargs="*", default=[1.0, 0.5, 0.2], help="of activations that compiled models save")
    parser.add_argument("--save-on-cpu", nargs="+", default=["vit-l", "llama-1b", "convnext-b"], help="run with save_on_cpu, too")
    parser.add_argument("--compiler", choices=("inductor", "inductor_cpp"), default="inductor", help="of the overlay in --models")
    parser.add_argument(
        "--quiet", type=float, default=900, help="seconds that --models waits for all compilers to end before it measures"
    )
    parser.add_argument("--worker", help="the order of one process of --models")
    arguments = parser.parse_args()
    if arguments.check:
        check(arguments.device)
    if arguments.page:
        import overlay_page
        from overlay_cases import page

        of_models = "networks" in json.loads(arguments.page.read_text(encoding="utf-8"))
        (page if of_models else overlay_page).write(arguments.page)
    if arguments.worker:
        from overlay_cases.workers import run_worker

        run_worker(arguments.worker)
    if arguments.models:
        from overlay_cases.networks import NETWORKS
        from overlay_cases.workers import Request
        from overlay_cases.workers import measure as measure_models

        request = Request(
            specs=tuple(arguments.only or NETWORKS),
            shares=tuple(arguments.shares),
            compiled=tuple(arguments.compiled),
            compiled_first=tuple(arguments.compiled_first),
            to_cpu=tuple(arguments.save_on_cpu),
            device=arguments.device,
            compiler=arguments.compiler,
            seconds=arguments.seconds,
            quiet_s=arguments.quiet,
        )
        measure_models(arguments.out, request)
        arguments.table = arguments.out
    if arguments.table:
        from overlay_cases.comparison import comparison

        print("\n".join(comparison(json.loads(arguments.table.read_text(encoding="utf-8"))["networks"])))
    if arguments.measure:
        measure(arguments.out, arguments.device, arguments.small, arguments.seconds)


if __name__ == "__main__":
    main()
