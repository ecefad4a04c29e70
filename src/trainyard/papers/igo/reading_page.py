"""The page of the search over readings, written from its result alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trainyard.papers.igo.baselines import stated
from trainyard.papers.igo.readings import TileWalk, Timing

Stored = Mapping[str, Any]
COLUMNS = (
    "small.interleaving", "small.rearrangement", "small.all", "large.interleaving", "large.rearrangement", "large.all",
    "dy_share.all_traffic", "dy_share.reads", "potential.small", "potential.large", "bandwidth.quarter", "batch.32",
    "cores.2.partitioning_knn", "cores.4", "cores.8", "cores.8.mobilenet",
)  # fmt: skip


def described(reading: Stored) -> str:
    """A reading in words.

    >>> walk = {"tile": [16, 1, 4], "element_bytes": 2, "sum_bytes": 2, "im2col": "raw", "reuse": "window", "k_inner": False}
    >>> described({"walk": walk, "timing": {"pipelined": True, "hidden": "steps", "writes": True}})
    'tile 16x1x4, 2 bytes (sums 2), im2col raw, window, dXmajor m,k,n; folds pipelined, transfers hidden by steps, writes counted'
    """
    walk = TileWalk(**{**reading["walk"], "tile": tuple(reading["walk"]["tile"])})
    return f"{walk}; {Timing(**reading['timing'])}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _readings(readings: Sequence[Stored], claims: int) -> str:
    head = ("reading", f"reached of {claims}", *COLUMNS)
    printed = ("paper", "", *(f"{stated(claim):g}" for claim in COLUMNS))
    rows = [(described(one), one["reached"], *(f"{one['values'][claim]:.2f}" for claim in COLUMNS)) for one in readings]
    return table(head, [printed, *rows])


def _histogram(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{reached} claims: {times:,} readings" for reached, times in counts.items())


def _sections(result: Stored) -> Iterator[str]:
    searched, held_out = (result["claims"][part] for part in ("searched", "held_out"))
    every = len(searched) + len(held_out)
    yield "# Readings of IGO's evaluation, searched jointly"
    yield f"Written by `{result['written_by']}`. Do not edit: run it again."
    yield (
        f"{result['readings']:,} readings: {result['walks']:,} walks (tiles of 1 to 16 arrays along each axis as far as they leave "
        "room, elements of 2 or 4 bytes with sums of 2 or 4, im2col written out or read raw, least recent tiles leaving first or "
        "reuse inside a half of the scratchpad, dXmajor as m,k,n or m,n,k), each under "
        f"{result['timings']} timings (folds serial or pipelined; transfers hidden by steps, by steps without latency, or over a "
        "layer; writes counted or free). They were held against the "
        f"{len(searched)} claims of one core; the best then against {len(held_out)} claims that the search had not seen. A claim "
        "is reached within 15 %."
    )
    best, nearest, ours = result["best"][0], result["nearest_defensible"], result["ours"]
    yield (
        f"No reading reaches all. The best reaches {best['reached']} of {every}: {described(best)}. "
        + (
            f"The best of those that contradict no sentence and no bar of Fig. 5 reaches {nearest[0]['reached']}: "
            f"{described(nearest[0])}. "
            if nearest
            else "None of them is defensible by the rules below. "
        )
        + f"The ledger's own reading reaches {ours['reached']}."
    )
    yield (
        "Defensible means: writes take time (Sec. 4.3 counts intermediate results that leave the scratchpad), convolutions are "
        "written out by im2col (Sec. 6.1), and the baseline has Fig. 5's two mean shares of dY within 15 %. "
        f"{result['defensible']:,} readings are."
    )
    yield "## The best readings"
    yield _readings(result["best"], every)
    if nearest:
        yield "## The best defensible readings"
        yield _readings(nearest, every)
    yield "## The ledger's reading"
    yield _readings([ours], every)
    yield "## How many readings reach each claim"
    share = result["readings"]
    rows = [
        (claim, f"{stated(claim):g}", f"{times:,}", f"{100 * times / share:.1f} %") for claim, times in result["reached_by"].items()
    ]
    yield table(("claim", "paper", "readings", "share"), rows)
    yield "## Claims reached together"
    yield table(("claims", "readings"), [(name, f"{times:,}") for name, times in result["together"].items()])
    yield "## How many claims of one core a reading reaches"
    yield f"All readings: {_histogram(result['counts'])}."
    yield f"Defensible ones: {_histogram(result['counts_defensible']) or 'none'}."


def page(result: Stored) -> str:
    return "\n\n".join(_sections(result)) + "\n"
