"""Fig. 3: where the time of a training step goes, predicted for an A100 and measured on an H200.

The paper prints the mean over networks and a batch of 256, but not the networks, the memory of the board or the element type. Here:
those of the nine whose step fits an A100 of 80 GB at batch 256 (recommenders at a batch of their own), of a network with two sizes
the larger one that fits; fp32 as torch trains by default since 1.12: convolutions in TF32, matrix products not.

A Step begins on the device. The batch is copied to it in the same stream before, pinned, over the host's link: inputs and targets
as the model takes them. Shares are of the sum of the five parts; time that the device waits for the host counts to the waiting op.

A measurement, where it exists, is `samples/igo/gpu.json`, under `breakdown`:
`[{"network": "res", "model": "resnet50", "batch": 256, "seconds": {"forward": ..., "backward": ..., "copy": ..., ...}}, ...]`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from statistics import fmean
from typing import TYPE_CHECKING, Any

from trainyard.devices.gpu.device import Gpu
from trainyard.ir import Assumption, Phase
from trainyard.ir.step import Role
from trainyard.machines.presets.gpus import A100, A100_80GB
from trainyard.papers.evidence import Search
from trainyard.papers.figures import chart, series_of
from trainyard.papers.igo.networks import ABBREVIATIONS, NETWORKS, RECOMMENDERS
from trainyard.papers.ledger import Experiments, Measured, claims, compare, stated_values
from trainyard.report.colours import PHASES
from trainyard.runs import run
from trainyard.workloads import zoo

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.papers.figures import Figures

BATCH = 256  # Sec. 3.1
BOARD = A100_80GB  # assumed: the A100 that holds most of the nine; which one is not printed
HOST_BATCH = 1
"""So few samples that the device waits for the host: the shares are those of the host's time."""
PARTS: Mapping[str, tuple[Phase, ...]] = {
    "forward": (Phase.FORWARD,),
    "backward": (Phase.GRAD_INPUT, Phase.GRAD_WEIGHT),
    "copy": (Phase.COPY,),
    "loss": (Phase.LOSS,),
    "update": (Phase.UPDATE,),
}
COLOURS = {name: PHASES[phases[0].value] for name, phases in PARTS.items()}
HOST_LINK = Assumption(
    name="host_link_bytes_per_s",
    value=25e9,
    meaning="what a copy from pinned memory reaches of the 31.5 GB/s of PCIe 4.0 x16; 10 GB/s from pageable memory",
    alternatives=(10e9, 31.5e9),
)

Shares = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Seconds of a step by part."""

    network: str
    model: str
    batch: int
    seconds: Mapping[str, float]

    @property
    def shares(self) -> Shares:
        """Per cent of the five together."""
        total = sum(self.seconds.values())
        return {name: 100 * self.seconds[name] / total for name in PARTS}

    def with_link(self, bytes_per_s: float) -> Breakdown:
        """The same with another link to the host."""
        return replace(self, seconds={**self.seconds, "copy": copied_bytes(self.model, self.batch) / bytes_per_s})


@cache
def _on(board: Gpu, model: str, batch: int) -> tuple[Mapping[str, float], int]:
    """Seconds by part on the board, and the memory that the step takes."""
    result = run(zoo.load(model, batch=batch), board)
    phases = result.by_phase
    spent = {name: sum(phases[phase].time_s for phase in some if phase in phases) for name, some in PARTS.items()}
    return spent, max(result.peak_memory_bytes.values())


@cache
def copied_bytes(model: str, batch: int) -> int:
    """Inputs and targets.

    >>> copied_bytes("resnet50", 2) == 2 * (3 * 224 * 224 * 4 + 8)
    True
    """
    tensors = zoo.load(model, batch=batch).tensors
    return sum(spec.bytes for spec in tensors if spec.view_of is None and spec.role in (Role.INPUT, Role.TARGET))


def predicted(network: str, model: str, batch: int, board: Gpu = BOARD) -> Breakdown:
    seconds, _ = _on(board, model, batch)
    return Breakdown(network=network, model=model, batch=batch, seconds=seconds).with_link(HOST_LINK.value)


@cache
def chosen(capacity_bytes: int) -> tuple[tuple[str, str, int], ...]:
    """Those of the nine whose step fits, with their model and batch, the larger size of two where it does."""
    fitting_models = {}
    for network in ABBREVIATIONS:
        for model in (NETWORKS[network]["small"], NETWORKS[network]["large"]):
            batch = zoo.entry(model).batch if network in RECOMMENDERS else BATCH
            if _on(BOARD, model, batch)[1] > capacity_bytes:
                break  # nor does the larger one fit
            fitting_models[network] = (network, model, batch)
    return tuple(fitting_models.values())


def fitting(board: Gpu = BOARD, batch: int | None = None) -> tuple[Breakdown, ...]:
    """Those that fit the board at batch 256; at another `batch` then, if one is given."""
    return tuple(
        predicted(network, model, samples if batch is None else batch, board)
        for network, model, samples in chosen(board.dram_capacity_bytes)
    )


def mean(rows: Iterable[Breakdown]) -> Shares:
    shares = [row.shares for row in rows]
    return {name: fmean(one[name] for one in shares) for name in PARTS}


def measured() -> tuple[str, tuple[Breakdown, ...]]:
    """The device, and the steps that were measured on it; none where the file or its part is missing."""
    file = resources.files("trainyard.papers").joinpath("samples", "igo", "gpu.json")
    if not file.is_file():
        return "", ()
    read: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    rows = (
        Breakdown(
            network=row["network"], model=row["model"], batch=row["batch"], seconds={name: row["seconds"][name] for name in PARTS}
        )
        for row in read.get("breakdown", ())
    )
    return read.get("device", "a GPU"), tuple(rows)


def _listed(shares: Shares, digits: int = 1) -> str:
    return " / ".join(f"{value:.{digits}f}" for value in shares.values())


def _named(rows: Sequence[Breakdown]) -> str:
    return ", ".join(f"{row.network} ({row.model}{'' if row.batch == BATCH else f' of {row.batch}'})" for row in rows)


def _search(readings: Mapping[str, tuple[float, ...]]) -> Search:
    """None has the loss at 2.6 %, or anything near it; the nearest is the one with the least distance in all five shares."""
    printed = stated_values("igo", "gpu_breakdown")
    distance = {name: sum(abs(x - y) for x, y in zip(shares, printed, strict=True)) for name, shares in readings.items()}
    nearest = min(readings, key=distance.__getitem__)
    claim = next(claim for claim in claims() if claim.id == "igo.gpu_breakdown")
    return Search(
        varied="networks, board, link to the host, batch",
        readings=len(readings),
        best=int(any(compare(claim, shares) != "off" for shares in readings.values())),
        nearest=nearest,
        numbers={"igo.gpu_breakdown": readings[nearest]},
    )


def _breakdown() -> Measured:
    rows = fitting()
    absent = [network for network in ABBREVIATIONS if network not in {row.network for row in rows}]
    others = {
        f"without the recommenders, {_named([r for r in rows if r.network in RECOMMENDERS])}": [
            row for row in rows if row.network not in RECOMMENDERS
        ],
        "the classifiers alone (90 epochs of 256 are what torch's ImageNet example trains)": [
            row for row in rows if row.network in ("goo", "res", "mob")
        ],
        f"on the board of 40 GB, of which {_named(fitting(A100))} fit": fitting(A100),
        "from pageable memory": [row.with_link(HOST_LINK.alternatives[0]) for row in rows],
        f"with a batch of {HOST_BATCH}, where the host's time is counted": fitting(batch=HOST_BATCH),
    }
    updates = max(row.shares["update"] for row in rows if row.network not in RECOMMENDERS)
    variants = "; ".join(f"{name}: {_listed(mean(some))}" for name, some in others.items())
    device, on_device = measured()
    measurement = f" Measured on {device}, {_named(on_device)}: {_listed(mean(on_device))}." if on_device else ""
    readings = {
        "the networks that fit a board of 80 GB": rows,
        **others,
        **({f"measured on {device}": on_device} if device else {}),
    }
    return Measured(
        tuple(mean(rows).values()),
        verdict="open",
        evidence=_search({name: tuple(mean(some).values()) for name, some in readings.items()}),
        note="Predicted for an A100 of 80 GB in fp32 (convolutions in TF32), mean of the networks that fit.",
        details=f"The networks: {_named(rows)}; {', '.join(absent)} do not fit (dlrm's parameters alone are "
        f"{4 * zoo.load('dlrm').parameters / 1e9:.0f} GB). The update is that of ncf's tables, whose gradients are dense, as "
        f"torch's are by default; the others' is {updates:.1f} % at most. Copies are inputs and targets at "
        f"{HOST_LINK.value / 1e9:g} GB/s, not overlapped. Variants: {variants}.{measurement}",
    )


def figure_3() -> go.Figure:
    device, on_device = measured()
    bars: dict[str, dict[tuple[str, str], float]] = {name: {} for name in PARTS}
    sets = {"A100, predicted": fitting(), **({f"{device}, measured": on_device} if on_device else {})}
    for where, rows in sets.items():
        for network, shares in [*((row.network, row.shares) for row in rows), ("mean", mean(rows))]:
            for name, share in shares.items():
                bars[name][where, network] = share
    printed = stated_values("igo", "gpu_breakdown")
    for name, share in zip(PARTS, printed, strict=True):
        bars[name]["A100, paper", "mean"] = share
    return chart(
        series_of(bars, COLOURS),
        "Fig. 3: where the time of a training step goes",
        f"Per cent of a step's time. Mean {_listed(mean(fitting()))}; paper {' / '.join(f'{value:g}' for value in printed)}.",
        y="% of time", stacked=True, digits=1, height=440,
    )  # fmt: skip


EXPERIMENTS: Experiments = {"igo.gpu_breakdown": _breakdown}
FIGURES: Figures = {"Fig. 3": figure_3}
