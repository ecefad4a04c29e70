"""Writes the section of docs/gpu.md on interleaved gradients, and the papers' sample, from what `gradient_gpu` measured."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "gpu.md"
SAMPLE = ROOT / "src" / "trainyard" / "papers" / "samples" / "igo" / "gpu.json"
TITLE = "## Interleaved gradients on a GPU"
STEPS = ("interleaving", "rearrangement", "partitioning", "ours")
Row = Mapping[str, Any]


def write(file: Path) -> None:
    data = json.loads(file.read_text(encoding="utf-8"))
    before, _, old = PAGE.read_text(encoding="utf-8").partition(f"\n{TITLE}\n")
    _, mark, after = old.partition("\n## ")  # the sections of other benchmarks stay
    PAGE.write_text(f"{before.rstrip()}\n\n{section(data)}{mark}{after}", encoding="utf-8")
    SAMPLE.parent.mkdir(parents=True, exist_ok=True)
    SAMPLE.write_text(json.dumps(sample(data), indent=1) + "\n", encoding="utf-8")


def clocks(data: Row) -> str:
    """SM and memory clocks at which the device may run, as its driver tells."""
    block = data["nvidia_smi"].split("Max Clocks")[-1]
    values = {name: re.search(rf"{name}\s*: (\d+) MHz", block) for name in ("SM", "Memory")}
    return ", ".join(f"{name} {match.group(1)} MHz" for name, match in values.items() if match)


def sample(data: Row) -> dict[str, Any]:
    """What the experiments read: the nine networks by step, and where a training step's time goes."""
    about = {
        name: data[name] for name in ("device", "torch", "cuda", "triton", "copy_bytes_per_s", "bf16_flop_per_s", "fp32_flop_per_s")
    }
    tables = {name: _rounded(data.get(name, [])) for name in ("networks", "networks_bf16", "breakdown")}
    return {**about, "clocks": clocks(data), "batch": 4, **tables}


def _rounded(rows: Iterable[Row]) -> list[dict[str, Any]]:
    return [{**row, "seconds": {name: float(f"{value:.4g}") for name, value in row["seconds"].items()}} for row in rows]


def required(data: Row) -> list[Row]:
    """Layers bound by traffic in one pass, by more than 1.25x, with operands that the L2 does not hold."""
    return [
        row for row in data["shapes"] if row["bound"] > 1.25 and row["traffic_bound"] and row["operand_bytes"] > data["l2_bytes"]
    ]


def geometric_mean(values: Iterable[float]) -> float:
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))


def section(data: Row) -> str:
    parts = (_introduction(data), _table(data), _networks(data), _whole_steps(), _repeat())
    return "\n\n".join([TITLE, *("\n".join(part) for part in parts)]) + "\n"


def _introduction(data: Row) -> list[str]:
    rows = required(data)
    shares = [row["share_of_copy"] for row in rows]
    copies = [row["copy_s"] / row["pass_s"] for row in rows]
    chosen = [row for row in data["shapes"] if row["way"] == "fused"]
    slower = [row for row in data["shapes"] if row["ours_s"] > 1.02 * row["pair_s"]]
    weak = [row for row in rows if row["share_of_copy"] < 0.7]
    gains = [row["pair_s"] / row["ours_s"] for row in chosen]
    passed = [row["pair_s"] / row["pass_s"] for row in data["shapes"] if row["way"] == "pair" and row["pass_s"]]
    gaining = [gain for gain in passed if gain > 1.03]
    return [
        "`trainyard.live.gradient` computes dX and dW in one pass over dY where that is faster than the library's two products",
        "(`kernels`, `choice`). bf16, device time of calls that follow each other on operands of their own, median of 5 rounds.",
        "*Bound* is what traffic and arithmetic allow: the pair's bytes and FLOP, each product by itself, against those of one",
        "pass; bytes by the measured copy, FLOP by the measured product. *Share* is the least number of bytes over the measured",
        "copy bandwidth, over the time of one pass; *of a copy*, the time of a copy of as many bytes. *Ours* is what the rule",
        "takes, in device time again. The rule counts the host's time too: where calls are shorter than the host needs to issue",
        "them, it keeps the pair. Choosing takes place once for a shape, at its first call, and is not in these times.",
        "",
        f"Device: {data['device']} ({clocks(data)}), copy {data['copy_bytes_per_s'] / 1e12:.2f} TB/s, product in bf16",
        f"{data['bf16_flop_per_s'] / 1e12:.0f} TFLOP/s, in fp32 {data['fp32_flop_per_s'] / 1e12:.0f}; torch {data['torch']}, "
        f"CUDA {data['cuda']}, triton {data['triton']}, Python {data['python']}.",
        "",
        f"- One pass is taken for {len(chosen)} of {len(data['shapes'])} layers, {geometric_mean(gains):.2f}x faster in the "
        f"geometric mean, up to {max(gains):.2f}x. Slower than the pair by more than 2 %: {len(slower)}.",
        f"- The pair is kept on {len(gaining)} layers on which the device alone would be faster with one pass, "
        f"up to {max(gaining, default=1.0):.2f}x.",
        f"- The aim was 80 % of the copy bandwidth in the geometric mean and 70 % on every layer that is bound by traffic, by more "
        f"than 1.25x, with operands beyond the L2. {_aim(shares)}: {len(rows)} layers, "
        f"{100 * geometric_mean(shares):.0f} % in the mean ({100 * min(shares):.0f} to {100 * max(shares):.0f} %), "
        f"{len(weak)} below 70 %. Of copies as long it is {100 * geometric_mean(copies):.0f} %.",
        "- What is below 70 %. Wide weights of rank 32 and more: slices of N must add up dX, and narrow products read a",
        "  tile from shared memory so often that, by count, it is busy about as long as the DRAM. 128 to 512: its dW fits no",
        f"  program's registers, and its arithmetic takes {_balance(data):.0f} % of the time of its traffic. Passes under 50 us:",
        "  starting, and adding up the programs' dW, take about 10 us for a weight of 64 x 256.",
    ]


def _aim(shares: list[float]) -> str:
    return "It is reached" if geometric_mean(shares) >= 0.8 and min(shares) >= 0.7 else "It is missed"


def _balance(data: Row) -> float:
    """The time of the arithmetic of 128 to 512 over that of its traffic, in %."""
    row = next(row for row in data["shapes"] if (row["K"], row["N"]) == (128, 512))
    return 100 * (4 * row["M"] * row["K"] * row["N"] / data["bf16_flop_per_s"]) / (row["bytes"] / data["copy_bytes_per_s"])


def _table(data: Row) -> list[str]:
    lines = [
        "| layer | M | K | N | least MB | pair us | one pass us | share | of a copy | speedup | bound | taken | ours |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|---:|",
    ]
    for row in data["shapes"]:
        pass_cells = "| | | "
        if row["pass_s"]:
            shares = f"{100 * row['share_of_copy']:.0f}% | {100 * row['copy_s'] / row['pass_s']:.0f}%"
            pass_cells = f"{1e6 * row['pass_s']:.1f} | {shares} | {row['pair_s'] / row['pass_s']:.2f}x"
        path = "one pass" if row["way"] == "fused" else "pair"
        ours = f"{row['pair_s'] / row['ours_s']:.2f}x"
        lines.append(
            f"| {row['family']}: {row['layer']} | {row['M']} | {row['K']} | {row['N']} | {row['bytes'] / 1e6:.0f} "
            f"| {1e6 * row['pair_s']:.1f} | {pass_cells} | {row['bound']:.2f}x | {path} | {ours} |"
        )
    return lines


def _networks(data: Row) -> list[str]:
    lines = [
        "### The paper's steps (Fig. 17)",
        "",
        "Backward pass of the nine networks at batch 4: dX and dW of every layer with weights, lowered to matrix products. The",
        "steps are Triton programs of one tile size (`gradient_variants.py`): fp32 in lanes, as the paper's kernel, and bf16 on",
        "tensor cores.",
        "*Own* reference: the better of two such kernels and of one that does dX, then dW, for each layer (the paper's).",
        "*Library*: the better of the cuBLAS pair and that one kernel. Reductions in % of the reference; a layer with one",
        "gradient counts alike. *Partitioning* is the faster of two axes, or none, as measured for each layer. *Ours* is against",
        f"the library too.{_kept(data)}",
    ]
    for name, title in (("networks", "fp32"), ("networks_bf16", "bf16")):
        rows = data.get(name, [])
        if not rows:
            continue
        lines += [
            "",
            f"| {title} | cuBLAS us | own us | interleaving | + rearrangement | + partitioning | against the library | ours |",
            "|---|---:|---:|---:|---:|---:|---|---:|",
        ]
        cells = {row["network"]: (_reductions(row, "own_reference"), _reductions(row, "reference")) for row in rows}
        for row in rows:
            own, library = cells[row["network"]]
            against = ", ".join(f"{value:.1f}" for value in library[:3])
            lines.append(
                f"| {row['network']} | {1e6 * row['seconds']['cublas']:.0f} | {1e6 * row['seconds']['own_reference']:.0f} "
                f"| {own[0]:.1f} | {own[1]:.1f} | {own[2]:.1f} | {against} | {library[3]:.1f} |"
            )
        means = [[sum(cell[side][step] for cell in cells.values()) / len(cells) for step in range(4)] for side in (0, 1)]
        lines.append(
            f"| *mean* | | | {means[0][0]:.1f} | {means[0][1]:.1f} | {means[0][2]:.1f} "
            f"| {', '.join(f'{value:.1f}' for value in means[1][:3])} | {means[1][3]:.1f} |"
        )
    return lines


def _kept(data: Row) -> str:
    """What the rule does with such small layers."""
    rows = [*data.get("networks", []), *data.get("networks_bf16", [])]
    if any(row["seconds"]["ours"] != row["seconds"]["cublas"] for row in rows):
        return ""
    return " At this batch the rule keeps the cuBLAS pair in every layer: what it loses is where one kernel beats cuBLAS."


def _reductions(row: Row, reference: str) -> list[float]:
    seconds = row["seconds"]
    return [100 * (1 - seconds[step] / seconds[reference]) for step in STEPS]


def _whole_steps() -> list[str]:
    """What `gradient.expected` says of whole steps of others' networks, before anything is changed."""
    from coverage_cases.torchvision_ops import provide

    provide()  # transformers imports torchvision where it is installed
    from overlay_cases import networks as overlay_models

    import trainyard as ty

    lines = [
        "A whole step gains much less than its layers: `interleave(model, inputs=batch, on=machine)` prints, before it",
        "changes anything, how much there is in reading dY once, where a layer saves no more than the time in which the memory",
        "delivers dY.",
        "Simulated on `h200`, bf16, batches of 128 (Llama: 8 x 2048 tokens):",
        "",
        "| network | layers | step ms | at most times as fast by reading dY once | and with its neighbours fused |",
        "|---|---:|---:|---:|---:|",
    ]
    names = ("mobilenet_v2", "efficientnet_b0", "resnet50", "convnext_tiny", "swin_t")
    networks = [overlay_models.vision(name, "", 128, "meta") for name in names]
    for network in (*networks, overlay_models.lora_llama("meta")):
        step = ty.capture(network.model, network.inputs, network.target, loss=network.criterion)
        gain = ty.live.gradient.expected(step, ty.machine("h200"))
        bounds = f"{gain.speedup:.3f} | {gain.fused_speedup:.3f}"
        lines.append(f"| {network.name} | {len(gain.layers)} | {1e3 * gain.time_s:.1f} | {bounds} |")
    return [
        *lines,
        "",
        "The last column is for a pass that also makes dY (the backward of an activation, a residual sum or a normalisation) and",
        "sums it (the bias gradient): it saves the transfers of dY that these take. Neither makes a whole step 1.08 times as fast:",
        "most of its time is in products that are bound by arithmetic, in other element-wise ops and in the reductions of",
        "normalisation. So no such kernels were written. Given a batch and a device, `interleave` leaves a model as it is where",
        "reading dY once gives less than 2 %; `force=True` changes it all the same. Whole steps measured on an H200 against eager",
        "training: LoRA-Llama 1.003, ConvNeXt-T 1.009, MobileNet-v2 1.012, EfficientNet-B0 0.993, ResNet-50 1.009, Swin-T 1.014.",
    ]


def _repeat() -> list[str]:
    return [
        "### How to repeat the gradients",
        "",
        "```",
        "python benchmarks/gradient_gpu.py --layers                   # anywhere: the nine networks' layers",
        "python benchmarks/gradient_gpu.py --measure --out FILE       # on the GPU: torch and triton, about five minutes",
        "python benchmarks/gradient_gpu.py --page FILE                # anywhere: this section",
        "```",
    ]
