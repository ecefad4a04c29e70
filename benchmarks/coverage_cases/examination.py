"""One case examined: captured by default and with `real=True`, counted by torch, run on five machines, and left as it was."""

from __future__ import annotations

import inspect
import json
import random
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from textwrap import shorten
from typing import Any

from coverage_cases.case import Case, Training

MACHINES = ("npu", "tpu", "sigma", "h200", "mcdla-b")
NODE, DEVICES, ITS_DEVICE = "mcdla-b", 8, "spatial"
"""The node divides a batch over its devices: it runs eight times the batch, and one of its devices a Step that has one batch."""


@dataclass
class Record:
    """What is known about a case when it has been examined; empty where a stage was not reached."""

    family: str
    name: str
    broken: str = ""  # the case itself: it was not built, or its step does not run in torch
    default: bool = False
    default_error: str = ""
    real: bool | None = None  # None: not tried
    real_error: str = ""
    where: str = ""  # file:line of this repository or torch where the default capture failed
    rebatchable: bool = False
    why_fixed: str = ""
    ops: int = 0
    flops: int = 0  # twice the multiply-accumulates of the default capture, or of the real one
    flops_real: int = 0  # those of the capture with real=True
    counted: int | None = None  # by FlopCounterMode, the gradients of grouped weights corrected
    overcounted: int = 0  # what FlopCounterMode adds to them: it counts a grouped convolution's weight gradient as if ungrouped
    counter_error: str = ""
    parameters: int = 0
    model_parameters: int = 0
    machines: dict[str, str] = field(default_factory=dict)  # name -> error, empty if it ran
    changed: list[str] = field(default_factory=list)  # what a capture left different
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def examine(case: Case, *, real: bool = True, machines: tuple[str, ...] = MACHINES) -> Record:
    """The record of a case. Errors of the case and of the capture are text in it; nothing is raised."""
    record = Record(case.family, case.name)
    clock = _Clock(record.seconds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with clock("build"):
                seed()
                training = case.build()
        except Exception as error:
            record.broken = f"not built: {_one_line(error)}"
            return record
        parameters = training.model.parameters()  # of a sharded model, those of this rank
        record.model_parameters = sum(getattr(parameter, "_local_tensor", parameter).numel() for parameter in parameters)
        step = _captures(record, training, clock, real=real)
        if step is not None:
            _entered(record, step)
            with clock("machines"):
                for machine in machines if step.world_size == 1 else (NODE,):  # one device has no links for an exchange
                    record.machines[machine] = _run(step, machine)
        with clock("counter"):
            _counted(record, training)
    return record


def _captures(record: Record, training: Training, clock: _Clock, *, real: bool) -> Any:
    from coverage_cases.snapshot import differences, snapshot

    seed()
    before = snapshot(training)
    with clock("default"):
        step, record.default_error, record.where = _attempt(training, real=False)
    record.default = step is not None
    changed = list(differences(before, snapshot(training)))
    if real:
        seed()
        before = snapshot(training)
        with clock("real"):
            real_step, record.real_error, _ = _attempt(training, real=True)
        record.real = real_step is not None
        changed += [f"real: {path}" for path in differences(before, snapshot(training))]
        if real_step is not None:
            record.flops_real = 2 * real_step.macs
        step = step or real_step
    record.changed = changed[:8]
    return step


def _attempt(training: Training, *, real: bool) -> tuple[Any, str, str]:
    """The Step, or the error in one line and where it was raised."""
    import trainyard

    keywords = {**training.keywords, "world_size": training.world_size, "real": real}
    try:
        if training.step is not None:
            return trainyard.capture(training.step, model=training.model, **keywords), "", ""
        return (
            trainyard.capture(
                training.model, training.inputs, training.targets, loss=training.loss, optimizer=training.optimizer, **keywords
            ), "", "",
        )  # fmt: skip
    except Exception as error:
        return None, _one_line(error), _where(error)


def _where(error: BaseException) -> str:
    """The innermost line of this package, and the innermost line of any, of the first cause."""
    seen: list[BaseException] = []
    while error not in seen:
        seen.append(error)
        error = error.__cause__ or error.__context__ or error
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/trainyard/" in frame.filename]
    chosen = [frames[-1], *([ours[-1]] if ours and ours[-1] is not frames[-1] else [])] if frames else []
    return " < ".join(f"{'/'.join(frame.filename.split('/')[-2:])}:{frame.lineno}" for frame in chosen)


def _entered(record: Record, step: Any) -> None:
    record.rebatchable, record.ops, record.flops, record.parameters = step.rebatchable, len(step), 2 * step.macs, step.parameters
    record.why_fixed = step.source.partition("not rebatchable: ")[2]
    record.notes = list(getattr(step, "notes", ()))


def _run(step: Any, machine: str) -> str:
    import trainyard

    try:
        if machine == NODE and step.world_size == 1:
            machine, step = (NODE, step.rebatch(DEVICES * step.batch)) if step.rebatchable else (ITS_DEVICE, step)
        trainyard.run(step, machine)
    except Exception as error:
        return _one_line(error)
    return ""


def _counted(record: Record, training: Training) -> None:
    """The FLOPs of the same step, run in torch."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    mapping = counting_rules(record)
    seed()
    onednn = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # its recurrent layers are one op each, which the counter does not know
    try:
        counter = FlopCounterMode(display=False, custom_mapping=mapping)
        counter.mod_tracker = _WholeStep()  # type: ignore[assignment]  # no hooks, which some models do not bear
        with _world(training), _attention(training), counter:
            run_in_torch(training)
        record.counted = counter.get_total_flops()
    except Exception as error:
        record.counter_error = _one_line(error)
        try:
            seed()
            with _world(training):
                run_in_torch(training)
        except Exception as again:
            _not_run(record, f"does not train in torch on a CPU: {_one_line(again)}")
    finally:
        torch._C._set_mkldnn_enabled(onednn)


def counting_rules(record: Record) -> dict[Any, Any]:
    """Two formulas for torch's counter: grouped convolutions, which it counts wrong, and grouped products, which it leaves out."""
    import torch
    from torch.utils.flop_counter import conv_backward_flop

    def convolution_backward(*operands: Any, out_val: Any = None, **keywords: Any) -> int:
        *arguments, groups, mask = operands
        grad_input, grad_weight = (
            int(conv_backward_flop(*arguments, groups, wanted, out_val=out_val, **keywords))
            for wanted in ([mask[0], False, False], [False, mask[1], False])
        )
        record.overcounted += grad_weight - grad_weight // groups
        return grad_input + grad_weight // groups

    def grouped_product(left: Any, right: Any, *_: Any, **keywords: Any) -> int:
        """Groups divide the rows, the columns or the sum over (rows, sum) x (sum, columns), or are a dimension of both."""
        groups = left.shape[0] if left.dim() == right.dim() == 3 else 1
        return 2 * int(groups * left.shape[-2] * left.shape[-1] * right.shape[-1])

    rules = {torch.ops.aten.convolution_backward: convolution_backward}
    if hasattr(torch.ops.aten, "_grouped_mm"):
        rules[torch.ops.aten._grouped_mm] = grouped_product
    for rule in rules.values():
        rule._get_raw = True  # type: ignore[attr-defined]  # how the counter knows a formula of tensors from one of shapes
    return rules


def _not_run(record: Record, why: str) -> None:
    """A step that is captured on shapes needs no CPU that can run it, and cannot be asked for values."""
    if record.default:
        record.counter_error = why
        if not record.real:
            record.real, record.real_error = None, ""
    else:
        record.broken = why


class _WholeStep:
    """Stands in for the counter's knowledge of modules: every op belongs to the whole."""

    parents = ("Global",)

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def _attention(training: Training) -> AbstractContextManager[Any]:
    """Attention as the capture records it: by default the kernels that torch takes on a GPU."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from trainyard.workloads.capture.attention.outside import attention_of

    if training.keywords.get("attention") == "math":
        return sdpa_kernel(SDPBackend.MATH)
    return attention_of(training.keywords.get("device", "cuda"))


def _world(training: Training) -> AbstractContextManager[Any]:
    from trainyard.workloads.capture import world

    return nullcontext() if training.world_size is None else world(training.world_size)


def run_in_torch(training: Training) -> None:
    """One training step as its documentation runs it."""
    if training.step is not None:
        _call_step(training.step, training.keywords.get("batch"))
        return
    inputs, model = training.inputs, training.model
    if isinstance(inputs, Mapping):
        output = model(**inputs)
    elif isinstance(inputs, tuple | list):
        output = model(*inputs)
    else:
        output = model(inputs)
    if training.loss is None:
        value = output["loss"] if isinstance(output, Mapping) else getattr(output, "loss", output)
    else:
        value = training.loss(output) if training.targets is None else training.loss(output, training.targets)
    value.backward()
    if training.optimizer is not None:
        training.optimizer.step()


def _call_step(step: Callable[..., Any], batch: int | None) -> None:
    needs_one = any(parameter.default is parameter.empty for parameter in inspect.signature(step).parameters.values())
    if batch is None or not inspect.signature(step).parameters:
        step()
    else:
        step(batch) if needs_one else step()


def seed(number: int = 0) -> None:
    import numpy as np
    import torch

    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002  # what the libraries read


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return shorten(f"{type(error).__name__}: {text}", 400, placeholder=" ...")


class _Clock:
    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds

    def __call__(self, stage: str) -> _Clock:
        self._stage, self._start = stage, time.perf_counter()
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        self._seconds[self._stage] = round(time.perf_counter() - self._start, 3)
