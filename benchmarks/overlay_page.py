"""Writes the section of docs/gpu.md on paged activations, and its figure, from what `overlay_gpu` measured."""

from __future__ import annotations

import json
import statistics
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from trainyard.ir import Step
from trainyard.mapping.overlay.policy import Problem, Saved
from trainyard.mapping.overlay.search import as_needed

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "gpu.md"
FIGURE = ROOT / "docs" / "overlay-gpu.svg"
DATA = ROOT / "benchmarks" / "data" / "overlay_gpu_h200.json"
TITLE = "## Paged activations on a GPU"
GIB = 2**30
OURS, THEIRS, PREDICTED = "#0072B2", "#D55E00", "#009E73"
Row = Mapping[str, Any]


def write(file: Path) -> None:
    data = json.loads(file.read_text(encoding="utf-8"))
    data.pop("problem_last", None)
    DATA.write_text(json.dumps(data) + "\n", encoding="utf-8")
    before = PAGE.read_text(encoding="utf-8").split(f"\n{TITLE}\n")[0].rstrip()
    PAGE.write_text(f"{before}\n\n{section(data)}\n", encoding="utf-8")
    FIGURE.write_text(figure(data), encoding="utf-8")


def milliseconds(row: Row) -> float:
    return 1e3 * statistics.median(row["times"] or row["seconds"])


def peak(row: Row) -> float:
    return float(row["peak_bytes"]) / GIB


def problem_of(data: Row) -> Problem:
    problem = data["problem"]
    saved = tuple(Saved(**{**row, "sources": tuple(row["sources"])}) for row in problem["saved"])
    lists = {name: tuple(problem[name]) for name in ("durations_s", "other_bytes", "labels")}
    return Problem(**{**problem, **lists, "saved": saved})


def from_one_timing(data: Row, budgets: Sequence[float]) -> list[float | None]:
    """Milliseconds that the policy predicts for budgets in GiB, from the op times of the largest one alone."""
    problem = problem_of(data)
    times: list[float | None] = []
    for budget in budgets:
        try:
            times.append(1e3 * as_needed(problem, int(budget * GIB)).time_s)
        except ValueError:
            times.append(None)
    return times


def section(data: Row) -> str:
    ours = sorted(data["overlay"], key=lambda row: -row["budget_bytes"])
    return "\n".join(
        [
            TITLE,
            "",
            *introduction(data),
            "",
            *against(data, ours),
            "",
            *curve(data, ours),
            "",
            *remarks(data, ours),
            "",
            *repeat(),
        ]
    )


def introduction(data: Row) -> list[str]:
    rates = sorted(row["link"]["out_bytes_per_s"] / 1e9 for row in data["overlay"])
    text = (
        f"`with ty.live.overlay(model, budget=..., unit='tensors')` on an {data['device']} (torch {data['torch']}, "
        f"CUDA {data['cuda']}): "
        f"{data['blocks']} transformer blocks of width {data['width']}, {data['tokens']} tokens in sequences of "
        f"{data['length']}, bf16; a step is forward and backward, gradients dropped before it. Times are medians of device time "
        "over rounds in which everything takes its turn (the board is at its power limit: a warm chip is up to a tenth slower); "
        "memory is the peak of `torch.cuda.max_memory_allocated`. Each run measures the link: "
        f"{rates[0]:.0f} to {rates[-1]:.0f} GB/s out. Gradients are bit for bit those of plain training (`--check`: a transformer, "
        "a convolutional and a recurrent network, three stores, all kept, all sent, all made again)."
    )
    return [*wrapped(text), "", "![Step time over peak memory](overlay-gpu.svg)"]


def wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 124, break_on_hyphens=False, break_long_words=False)


def against(data: Row, ours: Sequence[Row]) -> list[str]:
    lines = [
        "| alternative | peak GiB | step ms | overlay with that budget: peak GiB | step ms | |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for row in data["alternatives"]:
        same = [overlay_row for overlay_row in ours if overlay_row["budget_bytes"] <= row["peak_bytes"] * 1.0005]
        if row["name"] == "save_on_cpu":
            same = ours[-1:]  # the smallest budget; its own peak is the least that there is
        best = min(same, key=milliseconds) if same else None
        cells = f"{peak(best):.2f} | {milliseconds(best):.1f} | {verdict(row, best)}" if best else "| | "
        lines.append(f"| {row['name']} | {peak(row):.2f} | {milliseconds(row):.1f} | {cells} |")
    return lines


def verdict(row: Row, best: Row) -> str:
    ratio = milliseconds(row) / milliseconds(best)
    return f"{ratio:.2f}x faster" if ratio >= 1.005 else f"{1 / ratio:.2f}x slower" if ratio < 0.995 else "equal"


def curve(data: Row, ours: Sequence[Row]) -> list[str]:
    lines = [
        "| budget GiB | kept | sent | made again | peak GiB | step ms | predicted ms | error | from one timing ms | error |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    single = from_one_timing(data, [row["budget_bytes"] / GIB for row in ours])
    for row, other in zip(ours, single, strict=True):
        time, predicted = milliseconds(row), 1e3 * row["predicted_s"]
        sizes = " | ".join(f"{row['bytes'][what] / GIB:.2f}" for what in ("keep", "send", "recompute"))
        alone = f"{other:.1f} | {100 * (other / time - 1):+.1f} %" if other else "| "
        lines.append(
            f"| {row['budget_bytes'] / GIB:.2f} | {sizes} | {peak(row):.2f} | {time:.1f} | {predicted:.1f} "
            f"| {100 * (predicted / time - 1):+.1f} % | {alone} |"
        )
    return lines


def remarks(data: Row, ours: Sequence[Row]) -> list[str]:
    errors = [abs(row["predicted_s"] * 1e3 / milliseconds(row) - 1) for row in ours]
    over = [row for row in ours if row["peak_bytes"] > row["budget_bytes"]]
    slower = [
        row["name"]
        for row in data["alternatives"]
        if row["name"] != "save_on_cpu"
        and (same := [one for one in ours if one["budget_bytes"] <= row["peak_bytes"] * 1.0005])
        and milliseconds(min(same, key=milliseconds)) > 1.005 * milliseconds(row)
    ]
    offloaded = next(row for row in data["alternatives"] if row["name"] == "save_on_cpu")
    kept = "All peaks are within their budgets." if not over else f"{len(over)} of {len(ours)} peaks are above their budgets."
    front = (
        "At every alternative's peak memory the overlay is as fast or faster."
        if not slower
        else f"It is slower than {', '.join(slower)} at their peak memory."
    )
    text = (
        "*Predicted* is what `mapping.overlay.policy.simulate` says of the plan that ran, with the op times of its "
        "own first passes; "
        "*from one timing* is what the policy says of each budget from the op times of the largest one alone. Worst error of the "
        f"former: {100 * max(errors):.0f} %. {front} {kept} Against `save_on_cpu` it is "
        f"{milliseconds(offloaded) / milliseconds(ours[-1]):.1f} times as fast at {peak(ours[-1]):.2f} GiB. "
        f"{from_the_simulator(data)} {data.get('note', '')}"
    )
    return wrapped(text)


def from_the_simulator(data: Row) -> str:
    """What a captured step alone says of plain training: its attention is the kernel that the GPU takes."""
    import overlay_gpu
    import torch

    import trainyard as ty
    from trainyard.workloads.capture import capture

    with torch.device("meta"):
        model = overlay_gpu.build(data["blocks"], data["width"], overlay_gpu.HEADS).to(torch.bfloat16)
        x = torch.empty(data["tokens"] // data["length"], data["length"], data["width"], dtype=torch.bfloat16)
    forms = ("sdpa", "math")
    fused, apart = (capture(model, x, torch.empty_like(x), loss=torch.nn.functional.mse_loss, attention=form) for form in forms)  # type: ignore[arg-type]
    plain = next(row for row in data["alternatives"] if row["name"] == "plain")
    return (
        f"The simulator alone (the step captured with flash attention, on `h200`) says {held_gib(fused):.2f} GiB and "
        f"{1e3 * ty.run(fused, 'h200').time_s:.1f} ms for plain training, measured are {peak(plain):.2f} GiB and "
        f'{milliseconds(plain):.1f} ms; with scores that are written to memory (`attention="math"`) it would be '
        f"{held_gib(apart):.2f} GiB."
    )


def held_gib(step: Step) -> float:
    """The most memory that a step holds: what is resident, and every other tensor from its producer to its last reader."""
    change: Counter[int] = Counter()
    for users, size in step.transients:
        change[min(users)] += size
        change[max(users) + 1] -= size
    return (step.resident_bytes + max(accumulate(change[op] for op in range(len(step))))) / 2**30


def repeat() -> list[str]:
    return [
        "### How to repeat the paging",
        "",
        "```",
        "python benchmarks/overlay_gpu.py --check                     # on the GPU: gradients, one minute",
        "python benchmarks/overlay_gpu.py --measure --out FILE        # on the GPU: torch and numba, about five minutes",
        "python benchmarks/overlay_gpu.py --page FILE                 # anywhere: this section and its figure",
        "```",
    ]


def figure(data: Row) -> str:
    """Time over peak memory as SVG: alternatives as diamonds, ours as a line, the prediction from one timing dashed."""
    width, height, left, low, top = 860, 420, 64, 366, 34
    ours = sorted(data["overlay"], key=lambda row: row["peak_bytes"])
    shown = [row for row in data["alternatives"] if row["name"] != "save_on_cpu"]
    most = 14.5
    floor, ceiling = 110.0, 170.0

    def x(gib: float) -> float:
        return left + (width - left - 20) * (gib - 3) / (most - 3)

    def y(ms: float) -> float:
        return low - (low - top) * (min(max(ms, floor), ceiling) - floor) / (ceiling - floor)

    def line(points: Sequence[tuple[float, float]], style: str) -> str:
        return f'<polyline fill="none" {style} points="{" ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)}"/>'

    grid = [3.3 + 0.1 * step for step in range(int((peak(ours[-1]) - 3.3) / 0.1) + 1)]
    single = [(gib, ms) for gib, ms in zip(grid, from_one_timing(data, grid), strict=True) if ms]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for ms in range(int(floor), int(ceiling) + 1, 10):
        parts.append(f'<line x1="{left}" x2="{width - 20}" y1="{y(ms)}" y2="{y(ms)}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y(ms) + 4}" text-anchor="end">{ms}</text>')
    for gib in range(3, 15):
        parts.append(f'<text x="{x(gib):.1f}" y="{low + 18}" text-anchor="middle">{gib}</text>')
    parts.append(f'<text x="{(left + width) / 2}" y="{low + 38}" text-anchor="middle">peak memory, GiB</text>')
    parts.append(f'<text x="8" y="{top - 16}">step, ms (save_on_cpu, off the scale, is in the table)</text>')
    parts.append(line(single, f'stroke="{PREDICTED}" stroke-width="2" stroke-dasharray="6 4"'))
    parts.append(line([(peak(row), milliseconds(row)) for row in ours], f'stroke="{OURS}" stroke-width="2"'))
    for row in ours:
        parts.append(f'<circle cx="{x(peak(row)):.1f}" cy="{y(milliseconds(row)):.1f}" r="4" fill="{OURS}"/>')
    for row in shown:
        a, b = x(peak(row)), y(milliseconds(row))
        parts.append(f'<path d="M{a:.1f} {b - 6:.1f} l6 6 l-6 6 l-6 -6 z" fill="{THEIRS}"/>')
        above = 14 if row["name"] == "full checkpointing" else -4  # its neighbour's label stands to its right
        turned = row["name"] in ("plain", "checkpointing 2 of 3 blocks")
        raised = above + 10 if row["name"] == "plain" else above
        where = f'x="{a - 10 if turned else a + 10:.1f}" y="{b - raised:.1f}" text-anchor="{"end" if turned else "start"}"'
        parts.append(f'<text {where} fill="{THEIRS}">{row["name"]}</text>')
    for place, (text, colour) in enumerate((("overlay, measured", OURS), ("overlay, predicted from one timing", PREDICTED))):
        parts.append(f'<text x="{width - 250}" y="{top + 16 * place}" fill="{colour}">{text}</text>')
    return "\n".join([*parts, "</svg>", ""])
