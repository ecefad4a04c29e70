"""Writes docs/overlay_models.md and its figure from what `fronts` measured."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from overlay_cases.comparison import Row, comparison, is_same_code, label, ratio, slower_rows, wrapped
from overlay_cases.gradients import gradients
from overlay_cases.replays import MACHINE, error_of, guess_of, replayed

ROOT = Path(__file__).parents[2]
PAGE, FIGURE = ROOT / "docs" / "overlay_models.md", ROOT / "docs" / "overlay-models.svg"
DATA = ROOT / "benchmarks" / "data" / "overlay_models_h200.json"
GRADIENTS = ROOT / "benchmarks" / "data" / "overlay_coverage.json"
TOLERANCE = 1.01
MOST_BLOCKED = 0.25
"""Share of its time that a host may wait for a full queue, so that its own speed can be told: at most 0.1 in six networks, 0.37 and
0.67 in the Llamas."""
GIB = 2**30
NAMES = {
    "vit-l": "ViT-L/16 (transformers), 128 images",
    "llama-1b": "Llama of 1.1 B (transformers), 8 x 2048 tokens",
    "convnext-b": "ConvNeXt-B (torchvision), 128 images",
    "swin-b": "Swin-B (torchvision), 128 images",
    "qwen-1.5b": "Qwen2 of 1.5 B (transformers), 4 x 2048 tokens",
    "whisper-medium": "Whisper medium (transformers), 16 x 30 s",
    "unet": "UNet with the shapes of Stable Diffusion 1.5 (plain torch), 16 latents",
    "llama-7b": "Llama of 6.7 B (transformers), 4 x 2048 tokens",
}
PLAIN = {"name": "plain", "ms": 0.0}
COLOURS = {"theirs": "#D55E00", "eager": "#0072B2", "compiled": "#009E73"}


def predict(network: Row) -> dict[str, Any]:
    """What `ty.plan_memory` says of a network on an H200: GiB and ms of every number of checkpointed blocks.

    Once with the preset's host, and once with one that is slower by the factor that the host's time for plain steps shows.
    """
    from coverage_cases.torchvision_ops import provide

    provide()  # transformers imports torchvision where it is installed
    import trainyard as ty
    from overlay_cases.networks import NETWORKS

    built = NETWORKS[network["name"]]("meta").with_optimizer()
    step = ty.capture(built.model, built.inputs, built.target, loss=built.criterion, optimizer=built.optimizer)
    gpu = ty.machine(MACHINE)
    factor = host_factor(gpu, step, plain_host_ms(network))
    plans = {"simulated": gpu, "simulated_with_its_host": with_host(gpu, factor)}
    rows = {
        key: [
            {"gib": row.peak_bytes / GIB, "ms": 1e3 * row.time_s, "blocks": len(row.checkpointed)}
            for row in ty.plan_memory(step, on).rows
        ]
        for key, on in plans.items()
    }
    return {"host_factor": factor, **rows}


def with_host(gpu: Any, factor: float) -> Any:
    """A GPU whose host takes so many times as long for everything."""
    times = {name: factor * getattr(gpu, name) for name in ("call_s", "node_s", "launch_s", "list_s", "step_s")}
    return replace(gpu, **times)


def host_factor(gpu: Any, step: Any, host_ms: float) -> float:
    """By how much a measured host is slower than the preset's; 1 where it waits for its queue too often to tell."""
    simulated = gpu.host_time(step)
    if simulated.blocked_s > MOST_BLOCKED * simulated.issue_s:
        return 1.0
    low, high = 0.2, 5.0
    for _ in range(20):
        middle = (low + high) / 2
        is_slower = 1e3 * with_host(gpu, middle).host_time(step).issue_s > host_ms
        low, high = (low, middle) if is_slower else (middle, high)
    return low


def plain_host_ms(network: Row) -> float:
    """The host's time for a step in which nothing moves: the median of plain training's and the overlay's."""
    plain = [row["host_ms"] for row in network["alternatives"] if row["name"] == "plain"]
    kept = [row["host_ms"] for row in network["overlay"] if not row["compile"] and set(row.get("variants", ())) == {"keep"}]
    return statistics.median(plain + kept)


def write(file: Path) -> None:
    data = json.loads(file.read_text(encoding="utf-8"))
    for network in data["networks"]:
        network |= predict(network)
    DATA.write_text(json.dumps(data) + "\n", encoding="utf-8")
    FIGURE.write_text(figure(data["networks"]), encoding="utf-8")
    PAGE.write_text(text(data), encoding="utf-8")


def text(data: Row) -> str:
    parts = (introduction(data), replayed(data), further(data), results(data), lessons(data), repeat())
    return "\n".join(line for part in parts for line in part) + "\n"


def introduction(data: Row) -> list[str]:
    return [
        "# Models of others within a memory budget",
        "",
        *wrapped(
            f"`with ty.live.overlay(model, budget=...)` on an {data['device']} (torch {data['torch']}), on networks built from "
            "the configurations of others with random weights, in bf16. Seven are of transformers and torchvision; the UNet is "
            "plain torch with the shapes of Stable Diffusion 1.5's. A step is forward, backward and AdamW, whose state (in bf16) "
            "and the gradients are part of the memory. Times are medians of device time, memory is the peak of "
            "`torch.cuda.max_memory_allocated`. An alternative's peak plus 1 % is the budget of the overlay beside it."
        ),
        *wrapped(
            "The overlay decides about the blocks of a model (`unit='blocks'`, the default on a GPU where a model has stacks of "
            "layers). Its first training steps measure time and memory of every variant of a block; then the policy of the "
            "simulated memory-centric node chooses one variant for each block. Without a compiler the variants are *keep*, "
            "*checkpoint* and *selective* (the results of products are saved as well), and gradients are bit for bit those of "
            "plain training wherever that repeats its own bits. With `compile=True` there are also blocks compiled by "
            "`torch.compile` with 1.0, 0.5, 0.2 or none of their activations saved, which round differently, and the plan is "
            "compared with the model compiled as a whole."
        ),
    ]


def best(rows: Sequence[Row], alternative: Row, compile: bool) -> Row | None:
    """The fastest overlay within an alternative's peak."""
    within = [row for row in rows if "ms" in row and row["compile"] is compile and row["gib"] <= TOLERANCE * alternative["gib"]]
    return min(within, key=lambda row: row["ms"], default=None)


def results(data: Row) -> list[str]:
    lines: list[str] = [
        "## Each network without a compiler, beside the simulator",
        "",
        *wrapped(
            "Measured earlier, one way after the other, over 8 steps (3 for the network of 6.7 B); every alternative of a network "
            "in the same process unless it has a star. The second table of a network has what "
            f"`ty.plan_memory(step, on='{MACHINE}')` says of the same budgets, from the captured shapes alone and without a GPU: "
            "blocks kept or checkpointed. Hosts differ between machines of one kind, so the last columns are for a host that is "
            "slower than the preset's by the factor that the measured host time of plain steps shows. In the Llamas' the host "
            "waits for a full queue of kernels most of the time; there the factor is 1."
        ),
        "![Step time over peak memory](overlay-models.svg)",
        "",
    ]
    for network in data["networks"]:
        lines += [
            f"### {NAMES[network['name']]}",
            "",
            "| alternative | peak GiB | step ms | overlay GiB | ms | times as fast | overlay, compiled GiB | ms | times as fast |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        ]
        for row in network["alternatives"]:
            if "ms" not in row:
                lines.append(f"| {row['name']} | | {row['refused']} | | | | | | |")
                continue
            cells = [ratio(row, best(network["overlay"], row, compile)) for compile in (False, True)]
            note = " *" if row.get("run") else ""
            lines.append(f"| {row['name']}{note} | {row['gib']:.2f} | {row['ms']:.1f} | {' | '.join(cells)} |")
        lines += ["", *wrapped(remarks(network)), *simulated(network), *paged(network)]
    if any(row.get("run") for network in data["networks"] for row in network["alternatives"]):
        lines += wrapped("\\* Measured in another run of the same script, on a board of the same kind.")
    return lines


def simulated(network: Row) -> list[str]:
    """The simulator's answers beside the eager overlay's measurements."""
    lines = [
        "| budget GiB | checkpointed blocks | GiB | ms | simulated: blocks | GiB | ms | error of time | "
        f"host x {network['host_factor']:.2f}: ms | error |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in eager_rows(network):
        guess, with_host = (guess_of(network[key], row) for key in SIMULATED)
        cells = (
            f"{guess['blocks']} | {guess['gib']:.2f} | {guess['ms']:.1f} | {error_of(guess, row):+.0f} % | "
            f"{with_host['ms']:.1f} | {error_of(with_host, row):+.0f} %"
            if guess and with_host
            else f"does not fit: {network['simulated'][0]['gib']:.2f} GiB is the least | | | | | "
        )
        count = row["variants"].get("checkpoint", 0)
        lines.append(f"| {row['budget_gib']:.2f} | {count} | {row['gib']:.2f} | {row['ms']:.1f} | {cells} |")
    return [*lines, ""]


SIMULATED = ("simulated", "simulated_with_its_host")


def eager_rows(network: Row) -> list[Row]:
    """Measured rows of the overlay by blocks without a compiler, but for the first budget, which is beyond the plain peak."""
    return [row for row in network["overlay"][1:] if not row["compile"] and "variants" in row and "ms" in row]


def paged(network: Row) -> list[str]:
    """Training with the optimizer's state in host memory, where it was measured."""
    row = network.get("paged")
    if row is None:
        return []
    return wrapped(
        f"With `ty.live.paged_optimizer(AdamW(...), in_backward=True)` around it the same network trains on a budget of "
        f"{row['budget_gib']:.0f} GiB, which its parameters and gradients alone exceed: {row['ms']:.0f} ms a step, a peak of "
        f"{row['gib']:.2f} GiB from the first step on, {row['state_gib']:.1f} GiB of state in page-locked host memory, and a loss "
        f"on one batch that falls from {row['first_loss']:.1f} to {row['last_loss']:.1f} while it is measured."
    )


def remarks(network: Row) -> str:
    rows = [row for row in network["overlay"] if "ms" in row]
    plain = next(row for row in network["alternatives"] if row["name"] == "plain")
    roomy = max((row for row in rows if not row["compile"]), key=lambda row: row["budget_gib"])
    errors = [abs(row["predicted_ms"] / row["ms"] - 1) for row in rows]
    over = [row for row in rows if row["gib"] > row["budget_gib"]]
    bits = [row["equal_bits"] for row in rows if row["equal_bits"] is not None]
    equal = (
        f"Gradients are bit for bit those of plain training in {sum(bits)} of {len(bits)} eager rows."
        if bits
        else "Plain training does not repeat its own bits here."
    )
    overhead = 100 * (roomy["ms"] / plain["ms"] - 1)
    return (
        f"With {roomy['budget_gib'] / plain['gib']:.1f} times the plain peak, where nothing needs to move, a step takes "
        f"{roomy['ms']:.1f} ms: {abs(overhead):.1f} % {'more' if overhead > 0 else 'less'} than plain training. The survey's "
        f"predictions of time are off by {100 * max(errors):.0f} % at most. {len(over)} of {len(rows)} peaks are above their "
        f"budgets. {equal}"
    )


def far_off(data: Row, key: str) -> tuple[list[str], int]:
    """Eager rows whose simulated time is more than 15 % off or that the simulator cannot fit, and the number of all rows."""
    far, count = [], 0
    for network in data["networks"]:
        for row in eager_rows(network):
            count += 1
            guess = guess_of(network[key], row)
            if guess is None or abs(error_of(guess, row)) > 15:
                shown = "does not fit" if guess is None else f"{error_of(guess, row):+.0f} %"
                far.append(f"{network['name']} at {row['budget_gib']:.1f} GiB ({shown})")
    return far, count


def further(data: Row) -> list[str]:
    """All alternatives in turns with the overlay: the eight networks, and those that it had not met before."""
    networks = data["further"]
    return [
        "## All alternatives, before calls were replayed",
        "",
        *wrapped(
            "Measured in turns: an alternative, the overlay at its peak, two steps each, until the ratio of their times is known "
            "to half a percent or six seconds are over (twelve for the network of 6.7 B). *Times as fast* is the median of the "
            "rounds' ratios. The first four networks are of a run in which everything was compiled before the first "
            "step was measured; the machine had nothing else to do, and its host was slow and uneven all the same. The others are "
            "of the two runs before. At `save_on_cpu`'s peak it is the overlay by `unit='tensors'`."
        ),
        *comparison(networks),
        *wrapped(
            "The one that is surely slower is a wrong choice between ways to run a compiled model: a share of 0.2 instead of 0.5. "
            "The least of each way's times decided, and that is of a moment in which the host was quick. Ways are now compared by "
            "the mean of the rounds in which all of them ran. With hosts that a simulation makes uneven, choices that cost more "
            "than 2 % fall from 263 to 131 of 2,400 (`tests/live/test_regions_contest.py`)."
        ),
        *wrapped(calls_in_cpp(data)),
        *wrapped(
            "The simulator was not changed after these runs. Beside the fastest plain step of each network, which the host "
            f"disturbs least, its times are: {'; '.join(beside_fastest(data))}."
        ),
        "## Networks that the overlay had not met",
        "",
        *wrapped(
            "Six more, chosen before anything was run on them, by `overlay_gpu.py --models --only SPEC` without a compiler, on a "
            "machine with a quiet host. torch's selective checkpointing fails on two of them. Where it failed on T5, its memory "
            "(5.5 GiB) was not given back, so that budgets from before were too small afterwards: that explains both T5's slower "
            "row and its peak. Alternatives that may fail now run first."
        ),
        *comparison(data["unseen"]),
        *gradients(json.loads(GRADIENTS.read_text(encoding="utf-8"))),
    ]


def calls_in_cpp(data: Row) -> str:
    python, cpp = data["calls"]
    return (
        "Where the host sets the pace, so do its other programs. `torch.compile` can write "
        "the calls of a graph in C++ (`cpp_wrapper`): for a step of ConvNeXt-T with 32 images the host then took "
        f"{cpp['host_ms']:.1f} instead of {python['host_ms']:.1f} ms, the step {cpp['step_ms']:.1f} instead of "
        f"{python['step_ms']:.1f}, its peak was the same, and compiling took {cpp['first_s']:.0f} instead of "
        f"{python['first_s']:.0f} s (`overlay_cases/cpp_calls.py`, beside compilers on other cores). With "
        '`compile="inductor_cpp"` the overlay does so; no network above was measured with it.'
    )


def beside_fastest(data: Row) -> list[str]:
    """The simulator's plain step of each network beside the fastest one that was measured in turns."""
    plain = {network["name"]: row["ms"] for network in data["networks"] for row in network["simulated"] if not row["blocks"]}
    texts = []
    for network in (*data["replayed"], *data["further"]):
        if not any(row["name"] == "plain" for row in network["alternatives"]):
            continue
        rows = [row for row in network["alternatives"] if row["name"] == "plain"]
        rows += [row for row in network["overlay"] if is_same_code(PLAIN, row)]
        least = min(row["least_ms"] for row in rows)
        texts.append(
            f"{label(network)} {plain[network['name']]:.0f} beside {least:.0f} ms ({plain[network['name']] / least - 1:+.0%})"
        )
    return texts


def lessons(data: Row) -> list[str]:
    (far, count), (far_with_host, _) = (far_off(data, key) for key in SIMULATED)
    slower = [
        text
        for network in data["networks"]
        for text in slower_rows(network, lambda row, other: other["gib"] <= TOLERANCE * row["gib"])
    ]
    verdict = (
        f"It is more than 2 % slower than: {'; '.join(slower)}." if slower else "It is never more than 2 % slower than one of them."
    )
    return [
        "## What it says",
        "",
        *wrapped(
            "In the tables of single networks the better of the two overlays is compared with every alternative at its peak. "
            f"{verdict}"
        ),
        *wrapped(
            "Host time is what differs most between runs and machines of one kind. Checkpointed networks wait for the host: "
            "torch's took 94 to 144 ms on ConvNeXt in six measurements, 137 to 188 on ViT in eight. The overlay's checkpoint runs "
            "the same kernels with less Python around them, which is why it is often faster. In one of three runs with AdamW it "
            "was slower on ConvNeXt, 98.9 ms against 94.1. A plan that mixes compiled and checkpointed blocks can wait for the "
            "host as well: ConvNeXt's at 2.68 GiB was slower than the eager one. Since then the eager plan is compared with it in "
            "the first steps, and is taken on the busy machine. A kept block is plain training, so the differences between plain "
            "steps and an overlay that moves nothing are those between two measurements of the same code, one after the other; the "
            "script now takes turns. ViT and ConvNeXt were measured last. The rows "
            "of the other networks are from before host time counted in the plan, those of "
            "the Llama of 1.1 B also from before *selective* was a variant."
        ),
        *wrapped(
            "Blocks are not sent to the host's memory. A checkpointed block of the Llama of 6.7 B takes 4.5 to 6 ms more than one "
            "that keeps 1.36 GiB: recomputation makes more than 240 GB/s, and the link to the host moves 55. Single tensors are "
            "sent by `unit='tensors'`, see [Against GPUs](gpu.md), and the optimizer's state by `ty.live.paged_optimizer`."
        ),
        *wrapped(
            f"The simulator's times are more than 15 % off in {len(far)} of {count} rows: {'; '.join(far) or 'none'}. With the "
            f"host of each measurement it is {len(far_with_host)}: {'; '.join(far_with_host) or 'none'}. A checkpointed block "
            "costs the host its calls once more and hooks on every tensor that autograd saves. The "
            "share of a hook was measured on a CPU after these errors had been seen. Queues are as deep as assumed: in the steps "
            "that fill them, 920 to 1110 launches are left when the host is done (1024)."
        ),
        *wrapped(
            "Traces of plain steps of Whisper, the Llama of 6.7 B and the UNet showed what was missing when 5 of these rows were "
            "off (2 with their hosts, Whisper by up to -25 %, the Llamas by -6 to -15 %), and each is now part of a captured step "
            "or of the GPU. All were chosen after seeing the errors above; the 58 steps of [another page](gpu_models.md), measured "
            "before, are the test: the median error of their kernel times fell from 9 to 7 %. "
            "(1) transformers looks at a mask before the first decoder layer (`if (...).all()`), so the host waits there until the "
            "device is idle: 72 of Whisper's 330 ms are idle time behind that read, since the decoder's kernels are short. "
            "(2) Tensors that lie differently in memory are read element by element: rotary embeddings add a transposed view to a "
            "new tensor (134 us instead of 46), and Whisper's encoder keeps the layout of a permuted convolution, which every "
            "layer norm copies first. (3) A cast from bf16 to fp32 takes twice as long as the other way. (4) A fused AdamW is "
            "bound by its square roots, not by bytes: 150 G parameters a second, half of what was assumed. Still simulated too "
            "fast are "
            "products with broadcast operands (2.5 to 3 ps for an element, 1.8 simulated)."
        ),
    ]


def repeat() -> list[str]:
    return [
        "## How to use it",
        "",
        "```python",
        'print(ty.plan_memory(ty.capture(model, inputs), on="h200"))  # anywhere: the least budget, the time of each',
        "",
        'with ty.live.overlay(model, budget="24 GB", compile=True) as pages:  # on the GPU',
        "    for batch in loader:  # as before: Trainer, accelerate, DDP, FSDP2; the first steps measure, until pages.is_settled",
        "        ...",
        "print(pages.report())",
        "",
        "with ty.live.paged_optimizer(optimizer):  # AdamW's state in host memory; in_backward=True frees gradients too",
        "    ...",
        "```",
        "",
        "## How to repeat it",
        "",
        "```",
        "python benchmarks/overlay_gpu.py --models --out FILE.json           # on the GPU, in turns; goes on where FILE.json ends",
        "python benchmarks/overlay_gpu.py --models --only my.py:build --out FILE.json    # any other: a function in a file,",
        "python benchmarks/overlay_gpu.py --models --only 'transformers:mistral?hidden_size=2048&batch=4' --out FILE.json",
        "python benchmarks/overlay_gpu.py --models --only 'torchvision:efficientnet_v2_m?batch=128' --out FILE.json",
        "python benchmarks/overlay_gpu.py --table FILE.json                  # anywhere: the overlay beside each alternative",
        "python benchmarks/overlay_gpu.py --page FILE.json                   # anywhere: this page and its figure",
        "```",
    ]


def figure(networks: Sequence[Row]) -> str:
    """One panel for each network: alternatives as diamonds, the two overlays as lines."""
    width, height, columns = 430, 300, 2
    rows = -(-len(networks) // columns)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width * columns} {height * rows + 20}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{width * columns}" height="{height * rows + 20}" fill="white"/>',
    ]
    for number, network in enumerate(networks):
        parts += [f'<g transform="translate({width * (number % columns)} {height * (number // columns)})">']
        parts += [*panel(network, width, height), "</g>"]
    for place, (text, colour) in enumerate((("overlay", "eager"), ("overlay, compiled", "compiled"), ("alternatives", "theirs"))):
        parts.append(f'<text x="{60 + 160 * place}" y="{height * rows + 12}" fill="{COLOURS[colour]}">{text}</text>')
    return "\n".join([*parts, "</svg>", ""])


def panel(network: Row, width: int, height: int) -> list[str]:
    left, right, top, low = 48, width - 12, 30, height - 40
    shown = [row for row in network["alternatives"] if "ms" in row and row["name"] != "save_on_cpu"]
    ours = [row for row in network["overlay"] if "ms" in row]
    most = 1.05 * max(row["gib"] for row in (*shown, *ours))
    floor, ceiling = 0.9 * min(row["ms"] for row in (*shown, *ours)), 1.05 * max(row["ms"] for row in (*shown, *ours))

    def point(row: Row) -> tuple[float, float]:
        return left + (right - left) * row["gib"] / most, low - (low - top) * (row["ms"] - floor) / (ceiling - floor)

    parts = [f'<text x="{left}" y="16" font-weight="bold">{NAMES[network["name"]]}</text>']
    for step in range(5):
        ms, gib = floor + (ceiling - floor) * step / 4, most * step / 4
        y = low - (low - top) * step / 4
        parts.append(f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 5}" y="{y + 4:.1f}" text-anchor="end">{ms:.0f}</text>')
        parts.append(f'<text x="{left + (right - left) * step / 4:.1f}" y="{low + 14}" text-anchor="middle">{gib:.0f}</text>')
    parts.append(f'<text x="{(left + right) / 2}" y="{low + 28}" text-anchor="middle">peak memory, GiB (step time in ms)</text>')
    for compile, colour in ((False, "eager"), (True, "compiled")):
        points = [point(row) for row in sorted(ours, key=lambda row: row["gib"]) if row["compile"] is compile]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline fill="none" stroke="{COLOURS[colour]}" stroke-width="2" points="{line}"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{COLOURS[colour]}"/>' for x, y in points]
    for row in shown:
        x, y = point(row)
        parts.append(f'<path d="M{x:.1f} {y - 5:.1f} l5 5 l-5 5 l-5 -5 z" fill="{COLOURS["theirs"]}"/>')
        anchor, shift = ("end", -8) if x > (left + right) / 2 else ("start", 8)
        label = row["name"].replace("torch.compile, budget", "compile")
        parts.append(f'<text x="{x + shift:.1f}" y="{y - 5:.1f}" text-anchor="{anchor}" fill="{COLOURS["theirs"]}">{label}</text>')
    return parts
