"""The page of the search over readings, written from its result alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trainyard.papers.igo.baselines import stated
from trainyard.papers.igo.reading_claims import FIG_5, contradicted, reached
from trainyard.papers.igo.readings import TileWalk, Timing

Stored = Mapping[str, Any]
COLUMNS = ("small.interleaving", "small.rearrangement", "small.all", "large.interleaving", "large.rearrangement", "large.all")
"""Of the tables of several readings; one of them is there with all claims."""


def described(reading: Stored) -> str:
    """A reading in words.

    >>> walk = {"tile": [16, 1, 4], "element_bytes": 2, "sum_bytes": 2, "im2col": "raw", "reuse": "window", "k_inner": False}
    >>> described({"walk": walk, "timing": {"pipelined": True, "hidden": "steps", "writes": True}})
    'tile 16x1x4, 2 bytes (sums 2), im2col raw, window, dXmajor m,k,n; folds pipelined, transfers hidden by steps, writes counted'
    """
    walk = TileWalk(**{**reading["walk"], "tile": tuple(reading["walk"]["tile"])})
    return f"{walk}; {Timing(**reading['timing'])}"


def candidates(result: Stored) -> list[Stored]:
    """The readings that were held against all claims because they were best; one that is in both lists once."""
    return list({described(one): one for one in (*result["best"], *result["nearest_defensible"])}.values())


def objections(reading: Stored) -> str:
    """What of the paper a reading contradicts, in words; "" for a defensible one."""
    found = contradicted(reading["timing"]["writes"], reading["walk"]["im2col"], reading["values"])
    return f"it contradicts {' and '.join(found)}" if found else ""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _readings(readings: Sequence[Stored], claims: int) -> str:
    head = ("reading", f"reached of {claims}", *COLUMNS)
    printed = ("paper", "", *(f"{stated(claim):g}" for claim in COLUMNS))
    rows = [(described(one), one["reached"], *(_number(one, claim) for claim in COLUMNS)) for one in readings]
    return table(head, [printed, *rows])


def _number(reading: Stored, claim: str) -> str:
    """Bold where it reaches the paper's figure."""
    value = reading["values"][claim]
    return f"**{value:.2f}**" if reached(claim, value) else f"{value:.2f}"


def _claims(result: Stored) -> str:
    """Every claim under three readings, and how many readings reach it."""
    shown = {"best": result["best"][0], "best defensible": (result["nearest_defensible"] or [None])[0], "ledger's": result["ours"]}
    found = {name: one for name, one in shown.items() if one is not None}
    rows = []
    for part in ("searched", "held_out"):
        for claim in result["claims"][part]:
            times = result["reached_by"].get(claim)
            share = "" if times is None else f"{times:,} ({100 * times / result['readings']:.1f} %)"
            rows.append((claim, f"{stated(claim):g}", *(_number(one, claim) for one in found.values()), share))
    return table(("claim", "paper", *found, "readings that reach it"), rows)


def _histogram(counts: Mapping[str, int]) -> str:
    """
    >>> _histogram({"2": 7, "1": 1200})
    '2 claims by 7, 1 by 1,200'
    """
    listed = ", ".join(f"{reached} by {times:,}" for reached, times in counts.items())
    return listed.replace(" by ", " claims by ", 1)


def _searched(result: Stored) -> str:
    searched, held_out = (result["claims"][part] for part in ("searched", "held_out"))
    return (
        f"The paper does not print its tiles, its bytes of an element, its loops or its timing. {result['readings']:,} readings of "
        f"that were tried: {result['walks']:,} walks (tiles of 1 to 16 arrays along each axis as far as they leave room, elements "
        "of 2 or 4 bytes with sums of 2 or 4, im2col written out or read raw, least recent tiles leaving first or reuse inside a "
        f"half of the scratchpad, dXmajor as m,k,n or m,n,k), each under {result['timings']} timings (folds serial or pipelined; "
        "transfers hidden by steps, by steps without latency, or over a layer; writes counted or free). All were held against the "
        f"{len(searched)} claims of one core, the {len(candidates(result))} best of them (and the ledger's own reading) also "
        f"against {len(held_out)} claims that the search had not seen. A claim is reached within 15 %; a lower bound also above it."
    )


def _found(result: Stored) -> str:
    every = sum(map(len, result["claims"].values()))
    best, nearest, ours = result["best"][0], result["nearest_defensible"], result["ours"]
    text = f"The best reading reaches {best['reached']} of {every} claims: {described(best)}. "
    if objections(best):
        text += f"But {objections(best)}. "
    if best["reached"] < every:
        text = "No reading reaches all claims. " + text
    if nearest:
        text += (
            f"The best of those that contradict no sentence and no bar of Fig. 5 reaches {nearest[0]['reached']}: "
            f"{described(nearest[0])}. "
        )
    else:
        text += "None of them is defensible by the rules below. "
    return text + (
        f"The ledger's own reading, chosen before, reaches {ours['reached']}. It has not been exchanged for a better one: that "
        "would be a choice by results, and none has the whole. Rows of the ledger that miss the paper's figure and were searched "
        "here are `open`."
    )


def _sections(result: Stored) -> Iterator[str]:
    every = sum(map(len, result["claims"].values()))
    nearest = result["nearest_defensible"]
    shares = " and ".join(f"{result['ours']['values'][claim]:.1f}" for claim in FIG_5)
    printed = " and ".join(f"{stated(claim):g}" for claim in FIG_5)
    yield "# Readings of IGO's evaluation, searched jointly"
    yield f"Written by `{result['written_by']}`. Do not edit: run it again."
    yield _searched(result)
    yield _found(result)
    yield (
        "Defensible means: writes take time (Sec. 4.3 counts intermediate results that leave the scratchpad), convolutions are "
        "written out by im2col (Sec. 6.1), and the baseline has Fig. 5's two mean shares of dY within 15 %. "
        f"{result['defensible']:,} readings are. The ledger's own is {'' if result['ours']['defensible'] else 'not '}one of them: "
        f"its shares of dY are {shares} %, where the paper prints {printed}."
    )
    yield "## Claim by claim"
    yield (
        "Bold numbers are within 15 % of the paper's. The last column counts all readings, each claim by itself; the last "
        f"{len(result['claims']['held_out'])} claims were measured for the best readings alone."
    )
    yield _claims(result)
    yield "## Claims reached together"
    yield table(("claims", "readings"), [(name, f"{times:,}") for name, times in result["together"].items()])
    yield "## How many of the claims of one core a reading reaches"
    yield f"Of all readings: {_histogram(result['counts'])}."
    yield f"Of the defensible ones: {_histogram(result['counts_defensible']) or 'none'}."
    yield "## The best readings"
    yield _readings(result["best"], every)
    if nearest:
        yield "## The best defensible readings"
        yield _readings(nearest, every)
    yield "## The ledger's reading"
    yield _readings([result["ours"]], every)


def page(result: Stored) -> str:
    return "\n\n".join(_sections(result)) + "\n"
