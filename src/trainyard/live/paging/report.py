"""A table of a plan's decisions by layer, with predicted and measured time and memory."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainyard.units import show

if TYPE_CHECKING:
    from trainyard.live.paging.pages import Pages
    from trainyard.live.paging.regions.pages import RegionPages


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """Bytes of one layer's saved tensors, by decision."""

    layer: str
    kept_bytes: int
    sent_bytes: int
    recomputed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`measured_s` is the median of the last passes; a peak is of the device's memory on CUDA, of held activations on the CPU."""

    rows: tuple[LayerBytes, ...]
    predicted_s: float | None
    measured_s: float | None
    predicted_bytes: int | None
    measured_bytes: int
    budget_bytes: int
    passes: dict[str, int]
    whole_share: float | None = None
    """Where the model runs compiled as a whole: the share of its activations that is saved. The rows are then not in use."""
    replayed_calls: int = 0
    """Calls that are replayed as CUDA graphs in each pass: of blocks, or one of the whole model."""
    replay_obstacles: dict[str, str] = field(default_factory=dict)
    """Why other calls cannot be replayed, by block."""

    def __str__(self) -> str:
        lines = [f"{'layer':40} {'kept':>10} {'sent':>10} {'made again':>10}"]
        for row in self.rows:
            cells = (show(size, "B") if size else "" for size in (row.kept_bytes, row.sent_bytes, row.recomputed_bytes))
            lines.append(f"{row.layer[:40]:40} " + " ".join(f"{cell:>10}" for cell in cells))
        if self.predicted_s is None or self.predicted_bytes is None:
            return "\n".join([*lines, "no plan yet: the first passes are watched"])
        measured = "not yet" if self.measured_s is None else show(self.measured_s, "s")
        lines.append(f"step: predicted {show(self.predicted_s, 's')}, measured {measured}")
        peaks = [show(size, "B") for size in (self.predicted_bytes, self.measured_bytes, self.budget_bytes)]
        lines.append(f"peak: predicted {peaks[0]}, measured {peaks[1]}, budget {peaks[2]}")
        if self.whole_share is not None:
            lines.append(f"the model runs compiled as a whole, with {self.whole_share} of its activations saved: that is faster")
        if self.replayed_calls:
            calls = "1 call is" if self.replayed_calls == 1 else f"{self.replayed_calls} calls are"
            lines.append(f"{calls} replayed in each pass: the host issues one graph for all of its kernels")
        for obstacle, count in Counter(self.replay_obstacles.values()).items():
            blocks = "1 block is" if count == 1 else f"{count} blocks are"
            lines.append(f"{blocks} not replayed: {obstacle}")
        return "\n".join(lines)


def report(pages: Pages | RegionPages) -> Report:
    plan = pages.plan
    rows: dict[str, dict[str, int]] = {}
    if plan is not None:
        for saved, decision in zip(plan.problem.saved, plan.choice.decisions, strict=True):
            sizes = rows.setdefault(saved.name, {"keep": 0, "send": 0, "recompute": 0})
            sizes[decision] += saved.bytes
    times = pages.step_s
    return Report(
        rows=tuple(
            LayerBytes(layer=layer, kept_bytes=sizes["keep"], sent_bytes=sizes["send"], recomputed_bytes=sizes["recompute"])
            for layer, sizes in rows.items()
        ),
        predicted_s=plan.choice.time_s if plan else None,
        measured_s=statistics.median(times) if times else None,
        predicted_bytes=plan.choice.peak_bytes if plan else None,
        measured_bytes=pages.peak_bytes,
        budget_bytes=pages.budget,
        passes=dict(pages.passes),
        whole_share=pages.whole_share,
        replayed_calls=pages.replayed_calls,
        replay_obstacles=pages.replay_obstacles,
    )
