"""The section of docs/overlay_models.md on gradients of hundreds of models, from what `overlay_coverage.py` found."""

from __future__ import annotations

from collections import Counter

from overlay_coverage import Record, summary

from overlay_cases.comparison import Row, wrapped


def gradients(runs: Row) -> list[str]:
    """What `overlay_coverage.py` found, by library."""
    records = {name: [Record(**record) for record in run] for name, run in runs.items()}
    counts = {name: Counter(record.outcome for record in run) for name, run in records.items()}
    by_tensors, by_replays = counts["tensors"], counts["replayed"]
    with_calls = [record.replayed for record in records["replayed"] if record.replayed]
    calls = f"{sum(with_calls):,}"
    return [
        "## Gradients on models of others",
        "",
        *wrapped(
            "`benchmarks/overlay_coverage.py` trains the models of [Coverage](coverage.md), at small sizes on a CPU, under the "
            "overlay by blocks: every pass in which it measures a variant, and those that follow the plan, with the same weights "
            "and random numbers. A gradient that differs in rounding alone is of a decoder that is called with a cache of keys "
            "and values: its checkpointed blocks run without one, as with `use_cache=False`, and sums round as they do there."
        ),
        *summary(records["blocks"]),
        "",
        *wrapped(
            f"With `replay=True` the same models run with their blocks replayed, by a twin of CUDA graphs that overwrites memory "
            f"as early as a graph might: {by_replays['equal']} of {decided(by_replays)} have the bits of plain training, "
            f"{by_replays['rounding']} differ in rounding as without; {calls} calls of {len(with_calls)} models were replayed. The "
            "first such sweep found two errors, mended since: gradients of tensors that later layers use too (feature pyramids) "
            "were summed in another order, and models in a checkpoint of their own ended in an error."
        ),
        *wrapped(
            f"With `unit='tensors'` {by_tensors['equal']} of {decided(by_tensors)} have the bits of plain training. Models that do "
            "not repeat their own gradients are not counted (Reformer)."
        ),
        *wrapped(
            "The first of the sweeps without replays found three errors, mended since: *selective* had wrong gradients where the "
            "result of a stacked product is changed in place (BigBird, LayoutLMv3, Nystromformer, MViTv2), a checkpointed block "
            "that keeps a state of its own ended in an error (RecurrentGemma), and so did modules compiled in place under "
            "`unit='tensors'`."
        ),
    ]


def decided(counts: Counter[str]) -> int:
    return sum(counts[outcome] for outcome in ("equal", "rounding", "differs", "fails"))
