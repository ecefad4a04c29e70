"""A model's layers before any machine: operations, shape of the output, parameters, multiply-accumulates and bytes by phase.

Bytes are those that each op reads and writes if nothing stays on chip: every input once, every output once. A machine moves fewer
where it fuses ops, and more where a tensor does not fit its scratchpad.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from trainyard.ir import Op, Phase, Role, Step
from trainyard.report.frames import pandas_module
from trainyard.report.summaries.grid import console_of, html_grid, print_grid
from trainyard.report.terminal import one_line
from trainyard.units import show

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

PHASES = ("forward", "backward", "update")
"""Columns of the table; forward has the loss, backward both gradients."""
OUTSIDE = "(outside any layer)"
HEADS = ("layer", "op", "output", "parameters", "MACs fwd", "MACs bwd", "bytes fwd", "bytes bwd", "bytes update")
LEAST_NEEDED = ("bytes update", "op", "bytes bwd", "bytes fwd", "MACs bwd", "parameters")
WIDEST_LABEL = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSummary:
    """One layer of a model, its recomputed ops counted with the backward pass that they are part of.

    `ops` are the names of its forward ops, the one whose result is `output` first.
    """

    layer: str
    ops: tuple[str, ...]
    output: tuple[int, ...]
    dtype: str
    parameters: int
    macs: Mapping[str, int]
    bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    """The layers of a step in program order, and what they sum to."""

    workload: str
    batch: int
    source: str
    layers: tuple[LayerSummary, ...]
    resident_bytes: int

    @property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.layers)

    @property
    def macs(self) -> dict[str, int]:
        return {phase: sum(layer.macs[phase] for layer in self.layers) for phase in PHASES}

    @property
    def bytes(self) -> dict[str, int]:
        return {phase: sum(layer.bytes[phase] for layer in self.layers) for phase in PHASES}

    def as_dict(self) -> dict[str, Any]:
        """The stable JSON object of `trainyard show MODEL --json`."""
        totals = {"parameters": self.parameters, "macs": self.macs, "bytes": self.bytes, "resident_bytes": self.resident_bytes}
        return {**asdict(self), **totals}

    def to_frame(self) -> pd.DataFrame:
        """One line for each layer."""
        return pandas_module().DataFrame([_flat(layer) for layer in self.layers])

    @property
    def title(self) -> str:
        together = sum(self.macs.values())
        return (
            f"{self.workload}, batch {self.batch}: {len(self.layers)} layers, {self.parameters:,} parameters, "
            f"{show(together, 'MAC')} a step, {show(self.resident_bytes, 'B')} resident"
        )

    def table(self, top: int | None = None, console: Console | None = None) -> None:
        """Prints the first `top` layers (all by default) and the total."""
        from rich.text import Text

        console = console_of(console)
        console.print(Text(one_line(self.title), "bold"))
        shown = self.layers if top is None else self.layers[:top]
        rows = [_cells(layer) for layer in shown]
        if len(shown) < len(self.layers):
            rows.append(_cells(_sum(f"{len(self.layers) - len(shown)} more layers", self.layers[len(shown) :])))
        rows.append(_cells(_sum("total", self.layers)))
        left_out = print_grid(console, HEADS, rows, texts=3, total=True, least_needed=LEAST_NEEDED)
        footer = "bytes are those of every op's inputs and outputs, once each, if nothing stays on chip"
        console.print(Text(footer + (f"; no room for {', '.join(left_out)}" if left_out else ""), "dim"))

    def _repr_html_(self) -> str:
        rows = [_cells(layer) for layer in (*self.layers, _sum("total", self.layers))]
        return f"<div><p><b>{escape(self.title)}</b></p>{html_grid(HEADS, rows)}</div>"


def summary_of(step: Step) -> ModelSummary:
    """The layers of a step; a parameter that several layers share belongs to the first that reads it."""
    by_layer: dict[str, list[Op]] = {}
    for op in step.ops:
        by_layer.setdefault(op.layer, []).append(op)
    owned = _parameters(step)
    layers = tuple(_layer(step, name, ops, owned.get(name, 0)) for name, ops in by_layer.items())
    return ModelSummary(workload=step.name, batch=step.batch, source=step.source, layers=layers, resident_bytes=step.resident_bytes)


def _parameters(step: Step) -> dict[str, int]:
    """Elements of the parameters that each layer is the first to read; those that no op reads stand outside any layer."""
    first: dict[int, str] = {}
    for op in step.ops:
        for tensor in (*op.inputs, *op.outputs):
            first.setdefault(step.base(tensor), op.layer)
    owned: dict[str, int] = {}
    for tensor, spec in enumerate(step.tensors):
        if spec.view_of is None and spec.role is Role.PARAMETER:
            layer = first.get(tensor, next(iter(step.layers)))
            owned[layer] = owned.get(layer, 0) + spec.elements
    return owned


def _layer(step: Step, name: str, ops: Iterable[Op], parameters: int) -> LayerSummary:
    macs, sizes = dict.fromkeys(PHASES, 0), dict.fromkeys(PHASES, 0)
    kinds: dict[str, None] = {}
    output: tuple[int, ...] = ()
    dtype, most, main = "", -1, ""
    for op in ops:
        phase = _phase(op)
        macs[phase] += op.macs
        sizes[phase] += sum(step.tensors[tensor].bytes for tensor in {*op.inputs, *op.outputs})
        if phase == "forward":
            kinds[op.name] = None
            for spec in (step.tensors[tensor] for tensor in op.outputs[:1]):
                if spec.elements >= most:  # the last of the largest: a layer's own result, not a statistic of it
                    output, dtype, most, main = spec.shape, spec.dtype, spec.elements, op.name
    return LayerSummary(
        layer=name or OUTSIDE,
        ops=tuple(sorted(kinds, key=lambda kind: kind != main)),
        output=output,
        dtype=dtype,
        parameters=parameters,
        macs=macs,
        bytes=sizes,
    )


def _phase(op: Op) -> str:
    if op.phase.backward or op.recompute:
        return "backward"
    return "forward" if op.phase in (Phase.FORWARD, Phase.LOSS) else "update"


def _sum(name: str, layers: Iterable[LayerSummary]) -> LayerSummary:
    layers = tuple(layers)
    macs, sizes = ({phase: sum(getattr(layer, of)[phase] for layer in layers) for phase in PHASES} for of in ("macs", "bytes"))
    parameters = sum(layer.parameters for layer in layers)
    return LayerSummary(layer=name, ops=(), output=(), dtype="", parameters=parameters, macs=macs, bytes=sizes)


def _cells(layer: LayerSummary) -> list[str]:
    counts = [layer.macs["forward"], layer.macs["backward"]]
    return [
        layer.layer if len(layer.layer) <= WIDEST_LABEL else f"…{layer.layer[1 - WIDEST_LABEL :]}",
        f"{layer.ops[0]} and {len(layer.ops) - 1} more" if len(layer.ops) > 1 else "".join(layer.ops),
        "x".join(map(str, layer.output)),
        f"{layer.parameters:,}" if layer.parameters else "-",
        *(show(count, "") if count else "-" for count in counts),
        *(show(layer.bytes[phase], "B") if layer.bytes[phase] else "-" for phase in PHASES),
    ]


def _flat(layer: LayerSummary) -> dict[str, Any]:
    return {
        "layer": layer.layer,
        "ops": ", ".join(layer.ops),
        "output": layer.output,
        "dtype": layer.dtype,
        "parameters": layer.parameters,
        **{f"{phase}_macs": layer.macs[phase] for phase in PHASES},
        **{f"{phase}_bytes": layer.bytes[phase] for phase in PHASES},
    }
