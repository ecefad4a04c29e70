"""Every alternative beside the overlay that took turns with it, for any networks: a table, and what it says."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
AT_ITS_PEAK = 1.05
"""Of an alternative's peak, up to which a budget counts as that: it is 1.01 of the first measurement of it."""


def comparison(networks: Sequence[Row]) -> list[str]:
    """Every alternative beside the overlay that was measured in turns with it, as a table, and what it says; for any networks."""
    lines = [
        "| network | alternative | peak GiB | step ms | overlay GiB | ms | times as fast | compiled GiB | ms | times as fast |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    measured = [(network, row) for network in networks for row in network["alternatives"] if "ms" in row]
    for network, row in measured:
        beside = [one for one in network["overlay"] if one["beside"] == row["name"] and "ms" in one]
        cells = [ratio(row, next((one for one in beside[::-1] if one["compile"] is compile), None)) for compile in (False, True)]
        lines.append(f"| {label(network)} | {row['name']} | {row['gib']:.2f} | {row['ms']:.1f} | {' | '.join(cells)} |")
    slower = [text for network in networks for text in slower_rows(network, took_turns)]
    over = [
        f"{label(network)} at {row['budget_gib']:.2f} GiB ({row['gib']:.2f})"
        for network in networks
        for row in network["overlay"]
        if row.get("gib", 0.0) > row["budget_gib"]
    ]
    noise = [
        times_as_fast(row, other)
        for network, row in measured
        for other in network["overlay"]
        if other["beside"] == row["name"] and is_same_code(row, other)
    ]
    verdict = f"The better overlay is more than 2 % slower than {len(slower)} of {len(measured)} alternatives"
    texts = [
        f"{verdict}: {'; '.join(slower)}." if slower else f"{verdict}.",
        f"Peaks above their budgets: {'; '.join(over) or 'none'}.",
    ]
    if noise:
        texts.append(
            f"In {len(noise)} comparisons both sides run the same code: an overlay that moves nothing beside plain training, or "
            "the model compiled as a whole beside `torch.compile` with the same share. There the overlay is "
            f"{min(noise):.2f} to {max(noise):.2f} times as fast (median {statistics.median(noise):.2f}): that is the error of one "
            "row."
        )
    if any("error" in row for network in networks for row in network["overlay"]):
        texts.append(surely_slower(networks))
    return [*lines, "", *(line for text in texts for line in wrapped(text))]


def label(network: Row) -> str:
    """The network's name without the fields of its configuration."""
    return str(network["name"]).partition("?")[0]


def surely_slower(networks: Sequence[Row]) -> str:
    """How many of the alternatives that seem faster are faster by two standard errors."""
    rows = [
        (row, best)
        for network in networks
        for row in network["alternatives"]
        if (best := best_of(network, row, took_turns)) is not None and "error" in best
    ]
    slower = [(row, best) for row, best in rows if 1.02 * times_as_fast(row, best) < 1]
    sure = [pair for pair in slower if 1.02 * (times_as_fast(*pair) + 2 * pair[1]["error"]) < 1]
    errors = [best["error"] for _, best in rows]
    return (
        f"The standard error of a ratio is {100 * statistics.median(errors):.1f} % in the middle of these rows and "
        f"{100 * max(errors):.0f} % at most. More than 2 % slower by the middle value: {len(slower)}, of which "
        f"{sum(is_same_code(*pair) for pair in slower)} with the same code on both sides. Slower by two standard errors as well: "
        f"{len(sure) or 'none'}."
    )


Comparable = Callable[[Row, Row], bool]


def took_turns(row: Row, other: Row) -> bool:
    """Whether an overlay was measured beside an alternative, at its peak: the one with room to spare is another question."""
    return bool(other.get("beside") == row["name"] and other["budget_gib"] <= AT_ITS_PEAK * row["gib"])


def slower_rows(network: Row, is_comparable: Comparable) -> list[str]:
    """Alternatives that the better overlay is more than 2 % slower than."""
    rows = []
    for row in network["alternatives"]:
        best = best_of(network, row, is_comparable)
        if best is not None and 1.02 * times_as_fast(row, best) < 1:
            code = ", the same code" if is_same_code(row, best) else ""
            rows.append(f"{row['name']} of {label(network)} ({row['ms']:.1f} ms, the overlay {best['ms']:.1f}{code})")
    return rows


def best_of(network: Row, row: Row, is_comparable: Comparable) -> Row | None:
    """The fastest of the overlays that an alternative is compared with."""
    ours = [other for other in network["overlay"] if "ms" in row and "ms" in other and is_comparable(row, other)]
    return max(ours, key=lambda other: times_as_fast(row, other), default=None)


def is_same_code(alternative: Row, row: Row) -> bool:
    """Whether an overlay ran the very code of an alternative."""
    if "ms" not in row or "ms" not in alternative or row.get("unit") == "tensors":
        return False
    if alternative["name"] == "plain":
        return not row["compile"] and set(row["variants"]) == {"keep"}
    if row.get("compiler") == "inductor_cpp" or row.get("replayed"):
        return False
    return bool(row["compile"]) and alternative["name"] == f"torch.compile, budget {row['whole_share']}"


def ratio(alternative: Row, ours: Row | None) -> str:
    if ours is None:
        return "| | "
    replayed = " r" if ours.get("replayed") else ""
    return f"{ours['gib']:.2f} | {ours['ms']:.1f}{replayed} | {times_as_fast(alternative, ours):.2f}"


def times_as_fast(alternative: Row, ours: Row) -> float:
    """Of an overlay, by the rounds in which the two took turns where they did."""
    in_turns = ours.get("beside") == alternative["name"] and "times_as_fast" in ours
    return float(ours["times_as_fast"] if in_turns else alternative["ms"] / ours["ms"])


def wrapped(text: str) -> list[str]:
    return [*textwrap.wrap(text, 124, break_on_hyphens=False, break_long_words=False), ""]
