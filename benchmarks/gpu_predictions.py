"""Predicted against measured, per model, phase and layer: reads what `gpu_data` keeps, writes docs/gpu.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from gpu_data import DATA, Measured, load

from trainyard.devices.gpu.device import Gpu
from trainyard.ir import Step
from trainyard.machines.presets.gpus import H200
from trainyard.papers.provenance import provenance
from trainyard.workloads import zoo

PHASES = ("forward", "loss", "grad_input", "grad_weight", "update")
CALIBRATED = ("resnet50", "bert-base")  # whose host phases set call_s, node_s and list_s
Cells = Mapping[tuple[str, str], float]  # (layer, phase) -> seconds
INSIDE = (0.75, 1.25)
GRADIENTS = "## Interleaved gradients on a GPU\n"  # the section that gradient_gpu.py writes behind this page's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured training step beside its prediction; the cells are device time, without waiting for the host."""

    step: Measured
    predicted_s: float
    predicted: Cells

    @property
    def ratio(self) -> float:
        return self.predicted_s / self.step.seconds

    @property
    def kernels_ratio(self) -> float:
        return sum(self.predicted.values()) / sum(self.step.cells.values())

    @property
    def inside(self) -> bool:
        return INSIDE[0] <= self.ratio <= INSIDE[1]

    @property
    def layer_error(self) -> float:
        """What share of the device time is put on the wrong layer or missed."""
        measured, predicted = by_layer(self.step.cells), by_layer(self.predicted)
        wrong = sum(abs(predicted.get(layer, 0.0) - measured.get(layer, 0.0)) for layer in {*measured, *predicted})
        return wrong / sum(measured.values())


def machine_for(record: Mapping[str, Any]) -> Gpu | None:
    """The preset with the run's switches; autocast is not modelled."""
    precision, keywords = record["precision"], record["keywords"]
    if precision is not None and precision.endswith("-mixed"):
        return None
    optimizer = "foreach" if keywords.get("foreach", True) else "single"
    return replace(H200, precision=precision, graphs=bool(keywords.get("graph")), optimizer=optimizer)


def seconds(gpu: Gpu, step: Step) -> float:
    return sum(gpu.cost(step, work).cycles for work in gpu.works(step)) / gpu.clock_hz


def cells(gpu: Gpu, step: Step) -> Cells:
    """Kernel time alone, as a profiler sees it: no host, no pause between kernels."""
    kernels = replace(gpu, graphs=True, gap_s=0.0)
    seconds: dict[tuple[str, str], float] = {}
    for work in kernels.works(step):
        cost = kernels.cost(step, work)
        for index, share in zip(work.ops, cost.share, strict=True):
            op = step.ops[index]
            key = (op.layer, str(op.phase))
            seconds[key] = seconds.get(key, 0.0) + share * cost.cycles / kernels.clock_hz
    return seconds


def rows(measured: Sequence[Measured]) -> Iterator[Row]:
    for step in measured:
        gpu = machine_for(step._asdict())
        if gpu is not None:
            captured = zoo.load(step.model, batch=step.batch)
            yield Row(step=step, predicted_s=seconds(gpu, captured), predicted=cells(gpu, captured))


def by_phase(cells_: Cells) -> dict[str, float]:
    sums = dict.fromkeys(PHASES, 0.0)
    for (_, phase), spent in cells_.items():
        sums[phase] = sums.get(phase, 0.0) + spent
    return sums


def by_layer(cells_: Cells) -> dict[str, float]:
    sums: dict[str, float] = {}
    for (layer, _), spent in cells_.items():
        sums[layer] = sums.get(layer, 0.0) + spent
    return sums


def milliseconds(value: float) -> str:
    return f"{value * 1e3:.2f}"


def overview(rows_: Sequence[Row]) -> list[str]:
    lines = [
        "| training step | predicted ms | measured | runs | ratio | kernels predicted | measured | ratio | layer error |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows_:
        ours, real = sum(row.predicted.values()), sum(row.step.cells.values())
        spread = f"{min(row.step.step_s) * 1e3:.1f} to {max(row.step.step_s) * 1e3:.1f}"
        lines.append(
            f"| {row.step.title} | {milliseconds(row.predicted_s)} | {milliseconds(row.step.seconds)} | {spread} | "
            f"{row.ratio:.2f} | {milliseconds(ours)} | {milliseconds(real)} | {row.kernels_ratio:.2f} | {row.layer_error:.0%} |"
        )
    return lines


def details(row: Row, top: int = 12) -> list[str]:
    lines = [f"### {row.step.title}", "", "| | predicted ms | measured ms | ratio |", "|---|---:|---:|---:|"]
    for name, group in (("phase", by_phase), ("layer", by_layer)):
        ours, real = group(row.predicted), group(row.step.cells)
        chosen = (
            [phase for phase in PHASES if real.get(phase)] if name == "phase" else sorted(real, key=lambda key: -real[key])[:top]
        )
        for key in chosen:
            label = f"*{key}*" if name == "phase" else key or "(no layer)"
            predicted, measured = ours.get(key, 0.0), real[key]
            lines.append(f"| {label} | {milliseconds(predicted)} | {milliseconds(measured)} | {predicted / measured:.2f} |")
    return [*lines, ""]


def parameters() -> list[str]:
    """Every number of the preset that is not a printed specification, with the source that stands on its line."""
    sources = provenance("h200")
    lines = ["| number | value | what it is | source |", "|---|---:|---|---|"]
    for field in fields(Gpu):
        source = sources.get(field.name, "")
        if source.startswith(("measured", "calibrated", "assumed")) and "meaning" in field.metadata:
            lines.append(f"| `{field.name}` | {getattr(H200, field.name):g} | {field.metadata['meaning']} | {source} |")
    return lines


INTRODUCTION = """# The GPU roofline against a real GPU

`trainyard.devices.gpu.device` predicts; `ty.measure` measures. Both give the same Result, so they stand side by side
here. No number belongs to a model or a layer. Those of the device were measured on micro-benchmarks: copies, products, single
calls. Three of the host were calibrated, on the host's time for the phases of {calibrated} in the second run. The mechanisms were
found by looking at the ops of these steps; the times of the steps, and of their layers, are the test.

*Measured* is the median over {runs} runs on machines of one kind: steps that fill the GPU agree within 1 %, but hosts differ, and a
small batch waits for its host. *Kernels* is device time alone, as the profiler sees it. *Layer error* is the device time put on
the wrong layer or missed, over the measured device time.

Device: {device[name]}, {device[multi_processor_count]} multiprocessors at {clock:.2f} GHz, memory at {memory:.1f} GHz, driver
{device[driver]}; torch {device[torch]}, CUDA {device[cuda]}, cuDNN {device[cudnn]}, Python {device[python]}.

{summary}
"""

LIMITS = """## What remains off

- *lstm-1024*: the kernels are right within a quarter, the host is not. cuDNN's recurrent call costs the host about twice what its
  launches do, and a model cast to bf16 gathers its weights again at every call.
- *yolov5l*, *gnmt*, *squeezenet* at batch 8: calls and kernels are counted right, but one price for a call is too much for a loss
  of 300 scalar ops or a thousand tiny nodes. A host's own spread is as large: the column *runs*.
- Convolutions of few channels or small batches (*googlenet*, *squeezenet*): cuDNN's choice is not the fastest of the ways modelled,
  and a short reduction does not fill the tensor cores. Their kernels come out at 0.6 to 0.85.
- Batch norm of 16-bit maps (*mobilenet*, *resnet34*): torch's own kernel is slower than cuDNN's by more than its passes.
- Autocast (`bf16-mixed`) is not predicted here: the zoo's steps are stored in fp32. Steps captured under autocast, and models of
  other libraries, are on [their own page](gpu_models.md).

## How to repeat

```
python benchmarks/gpu_roofline.py --measure FOLDER         # on the GPU: torch and numpy, about three minutes; once for each run
python benchmarks/gpu_roofline.py --pack FOLDER FOLDER     # anywhere: benchmarks/data/h200.json.gz, oldest run first
python benchmarks/gpu_roofline.py --predict                # anywhere: this page
```
"""


def summary(rows_: Sequence[Row]) -> str:
    models = {row.step.model for row in rows_}
    outside = {row.step.model for row in rows_ if not row.inside}
    kernels = sum(INSIDE[0] <= row.kernels_ratio <= INSIDE[1] for row in rows_)
    return (
        f"{sum(row.inside for row in rows_)} of {len(rows_)} training steps lie within 25 % of the measurement, and all steps of "
        f"{len(models - outside)} of {len(models)} models. Of the kernel times, {kernels} of {len(rows_)}."
    )


def page(document: Mapping[str, Any], rows_: Sequence[Row]) -> str:
    device = document["device"]
    introduction = INTRODUCTION.format(
        calibrated=" and ".join(CALIBRATED), runs=document["runs"], device=device, summary=summary(rows_),
        clock=device["clock_rate"] * 1e-6, memory=device["memory_clock_rate"] * 1e-6,
    )  # fmt: skip
    parts = [introduction, *overview(rows_), "", LIMITS, "## The numbers", "", *parameters(), ""]
    parts += ["## By phase and layer", "", "Device time of one step of each model; its twelve largest layers.", ""]
    firsts = {row.step.model: row for row in reversed(rows_)}
    for row in (row for row in rows_ if row is firsts[row.step.model]):
        parts += details(row)
    return "\n".join(parts)


def predict(path: Path = DATA, target: Path = Path("docs/gpu.md")) -> None:
    document, measured = load(path)
    predicted = list(rows(measured))
    print("\n".join(overview(predicted)), flush=True)
    print(summary(predicted))
    _, title, other = target.read_text(encoding="utf-8").partition(GRADIENTS) if target.exists() else ("", "", "")
    target.write_text(page(document, predicted) + (f"\n{title}{other}" if title else ""), encoding="utf-8")
