"""Predicted against measured for models of others: captures each case, predicts it, writes its section of docs/gpu.md."""

from __future__ import annotations

import statistics
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from gpu_predictions import INSIDE, by_layer, cells, milliseconds, seconds
from silicon_cases import Case, Example
from silicon_data import DATA, MeasuredStep, load

import trainyard as ty
from trainyard.ir import Step
from trainyard.machines.presets.gpus import H200

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
KERNELS = replace(H200, graphs=True, gap_s=1e-15)  # kernel time as a profiler sees it: no host, no pause between kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured training step beside its prediction."""

    measured: MeasuredStep
    predicted_s: float
    predicted: Mapping[tuple[str, str], float]
    peak_bytes: int

    @property
    def ratio(self) -> float:
        return self.predicted_s / self.measured.seconds

    @property
    def kernels_ratio(self) -> float:
        return sum(self.predicted.values()) / self.measured.kernels_s

    @property
    def memory_ratio(self) -> float:
        return self.peak_bytes / self.measured.peak_bytes

    @property
    def inside(self) -> bool:
        return INSIDE[0] <= self.ratio <= INSIDE[1]

    @property
    def layer_error(self) -> float:
        measured, predicted = by_layer(self.measured.cells), by_layer(self.predicted)
        wrong = sum(abs(predicted.get(layer, 0.0) - measured.get(layer, 0.0)) for layer in {*measured, *predicted})
        return wrong / sum(measured.values())


def captured(case: Case) -> Step:
    """The step of a case as its script would run: built on meta where the model allows it, cast or under autocast."""
    try:
        with torch.device("meta"):
            example = case.build(case.batch)
    except (NotImplementedError, RuntimeError):
        example = case.build(case.batch)
    precision = case.precision or ""
    if precision in TYPES:
        example.model.to(TYPES[precision])
        example = example._replace(inputs=_cast(example.inputs, TYPES[precision]), targets=_cast(example.targets, TYPES[precision]))
    optimizer = example.optimizer(example.model.parameters())
    if precision.endswith("-mixed"):
        return _under_autocast(case, example, optimizer, TYPES[precision.removesuffix("-mixed")])
    return ty.capture(
        example.model, example.inputs, example.targets, loss=example.loss, optimizer=optimizer, name=case.title, batch=case.batch
    )


def _under_autocast(case: Case, example: Example, optimizer: torch.optim.Optimizer, dtype: torch.dtype) -> Step:
    def train_step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=dtype):
            loss = _loss(example)
        loss.backward()
        optimizer.step()

    return ty.capture(train_step, model=example.model, name=case.title)


def _loss(example: Example) -> Any:
    output = example.model(**example.inputs) if isinstance(example.inputs, dict) else example.model(example.inputs)
    return example.loss(output) if example.targets is None else example.loss(output, example.targets)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, dict):
        return {name: _cast(item, dtype) for name, item in value.items()}
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def rows(cases: Sequence[Case], measured: Mapping[str, MeasuredStep], failed: Callable[[str, str], None]) -> Iterator[Row]:
    for case in cases:
        if case.title not in measured:
            continue
        try:
            step = captured(case)
            memory = max(ty.run(step, on=H200).peak_memory_bytes.values())
            yield Row(
                measured=measured[case.title], predicted_s=seconds(H200, step), predicted=cells(H200, step), peak_bytes=memory
            )
        except Exception as error:
            failed(case.title, f"{type(error).__name__}: {str(error).splitlines()[0]}")
            traceback.print_exc(limit=-3)


def predict(cases: Sequence[Case], path: Path = DATA) -> None:
    _, measured = load(path)
    failures: dict[str, str] = {}
    found = []
    for row in rows(cases, measured, failures.__setitem__):
        found.append(row)
        print(line(row), flush=True)
    for name, reason in failures.items():
        print(f"not captured: {name}: {reason}")
    if found:
        print(summary(found))


def line(row: Row) -> str:
    spread = f"{min(row.measured.step_s) * 1e3:.1f} to {max(row.measured.step_s) * 1e3:.1f}"
    ours, real = milliseconds(sum(row.predicted.values())), milliseconds(row.measured.kernels_s)
    step = f"{milliseconds(row.predicted_s)} | {milliseconds(row.measured.seconds)} | {spread} | {row.ratio:.2f}"
    kernels = f"{ours} | {real} | {row.kernels_ratio:.2f} | {row.layer_error:.0%}"
    return f"| {row.measured.title} | {row.measured.library} | {step} | {kernels} | {row.memory_ratio:.2f} |"


def summary(found: Sequence[Row]) -> str:
    error = statistics.median(abs(row.kernels_ratio - 1.0) for row in found)
    return (
        f"{sum(row.inside for row in found)} of {len(found)} training steps lie within 25 % of the measurement; the median error "
        f"of their kernel times is {error:.0%}."
    )
