"""What a command says: messages and progress on stderr, so that stdout holds results alone; small tables and lists."""

from __future__ import annotations

import codecs
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING, Any

from trainyard.progress import ProgressCallback, listening, no_progress

if TYPE_CHECKING:
    from rich.table import Table

    from trainyard.sensitivity import ChangeEffect, Pair, SensitivityResult

WIDTHS = {"ratio": 5, "verdict": 12, "before": 7, "after": 7, "worth": 7, "together": 8, "interaction": 11}
"""Columns that are never broken over lines."""
MOMENT_S = 1.0
"""What is done sooner needs no bar."""
NUMBERS = ("paper", "ours", "ratio", "before", "after", "worth", "together", "interaction")
TOP = 25
"""Rows of a table of effects."""


# fmt: off
PLAIN_SIGNS = {"µ": "u", "…": "~", "≤": "<=", "≥": ">=", "×": "x", "–": "-"}
# fmt: on


def replace_unknown_signs() -> None:
    """A terminal that does not know a sign gets a plain one in its place, instead of an error."""

    def plain(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        return "".join(PLAIN_SIGNS.get(sign, "?") for sign in error.object[error.start : error.end]), error.end

    codecs.register_error("trainyard", plain)
    for stream in (sys.stdout, sys.stderr):
        if callable(change := getattr(stream, "reconfigure", None)):
            change(errors="trainyard")


def close_stdout() -> None:
    """Discards what is left in the buffer after the reader has closed the pipe, or nothing can be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_json(value: Any, path: str) -> None:
    text = json.dumps(value, indent=2, default=str, allow_nan=False)
    if path == "-":
        print(text)
        return
    from trainyard.files import write_text

    write_text(path, text + "\n")
    say(f"wrote {path}")


def say(message: str) -> None:
    print(message, file=sys.stderr)


@contextmanager
def progress(what: str = "", *, at_once: bool = False) -> Iterator[ProgressCallback]:
    """A bar with an estimate on a terminal's stderr, of what takes longer than a moment; silence elsewhere.

    It names the loops that are being compiled, which takes most of the time of a first run (`trainyard warm-up`), and how far a
    search of mappings has come.
    """
    if not sys.stderr.isatty():
        yield no_progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.completed:.0f}/{task.total:.0f} {task.description}"), BarColumn(), TimeElapsedColumn())
    bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=1)
    starter = Timer(0.0 if at_once else MOMENT_S, bar.start)
    starter.daemon = True
    starter.start()
    described = what

    def show(done: int, total: int, message: str = "", /) -> None:
        nonlocal described
        described = f"{what} {message}".strip()
        bar.update(task, completed=done, total=total, description=described)

    def compiling(loop: str) -> None:
        bar.update(task, description=f"{described} (compiling {loop}, once)".strip())

    def searching(done: int, total: int, message: str = "", /) -> None:
        bar.update(task, description=f"{described} (search of {message}: {done} of {total})".strip())

    from trainyard.kernels.compilation import observed

    try:
        with observed(compiling), listening(searching):
            yield show
    finally:
        starter.cancel()
        starter.join()
        if bar.live.is_started:
            bar.stop()


@contextmanager
def status(message: str) -> Iterator[None]:
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(message):
        yield


def table_of(*columns: str) -> Table:
    """A plain table: numbers to the right, long names and values folded."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), header_style="bold")
    for column in columns:
        table.add_column(
            column,
            justify="right" if column in NUMBERS else "left",
            overflow="fold",
            min_width=WIDTHS.get(column),
            no_wrap=column in WIDTHS,
        )
    return table


def show_sensitivity(sensitivity: SensitivityResult, top: int = TOP) -> None:
    """What each change does to the metric, the most valuable first; what moves nothing is counted; then what pairs do together."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    console.print(Text(f"{sensitivity.title}: what each assumption and parameter is worth in {sensitivity.metric}", "bold"))
    moving = [effect for effect in sensitivity if effect.size and not effect.error]
    if not moving:
        console.print("nothing that was changed moves it" if sensitivity else "no open assumptions")
    if moving:
        _effects_table(moving[:top], sensitivity.metric)
    counts = (
        (len(moving) - top, "more move it less"),
        (sum(not effect.size and not effect.error for effect in sensitivity), "move nothing"),
        (sum(bool(effect.error) for effect in sensitivity), "cannot be made on this machine"),
    )
    if any(count > 0 for count, _ in counts):
        console.print(Text("  " + ", ".join(f"{count} {what}" for count, what in counts if count > 0), "dim"))
    meanings = {effect.name: effect.meaning for effect in moving[:top] if effect.kind == "assumption"}
    for name, meaning in meanings.items():
        console.print(Text(f"  {name}: ").append(meaning, "dim"), soft_wrap=True)
    if sensitivity.pairs:
        console.print(Text("two at a time: interaction is what both do beyond what each does alone", "bold"))
        _pairs_table(sensitivity.pairs[:top])


def _effects_table(effects: Sequence[ChangeEffect], metric: str) -> None:
    from rich.console import Console
    from rich.text import Text

    from trainyard.report.lines import value_text
    from trainyard.report.tornado import number_text

    table = table_of("change", "value", "alternative", "before", "after", "worth")
    for effect in effects:
        value, alternative = (value_text(effect.name, shown) for shown in (effect.value, effect.alternative))
        before, after = number_text(effect.before, metric), number_text(effect.after, metric)
        texts = (effect.name, value, alternative, before, after, f"{100 * effect.change:+.1f} %")
        table.add_row(*map(Text, texts))
    Console().print(table)


def _pairs_table(pairs: Sequence[Pair]) -> None:
    from rich.console import Console
    from rich.text import Text

    from trainyard.report.lines import changed_text

    table = table_of("first", "second", "alone", "together", "interaction")
    for pair in pairs:
        alone = f"{100 * pair.first.change:+.1f} %, {100 * pair.second.change:+.1f} %"
        together = ("not possible", "") if pair.error else (f"{100 * pair.change:+.1f} %", f"{100 * pair.interaction:+.1f} %")
        table.add_row(*map(Text, (changed_text(pair.first), changed_text(pair.second), alone, *together)))
    Console().print(table)


def sensitivity_as_dict(sensitivity: SensitivityResult) -> dict[str, Any]:
    return {
        "title": sensitivity.title,
        "metric": sensitivity.metric,
        "worths": [effect_as_dict(effect) for effect in sensitivity],
        "pairs": [
            {
                "first": {"name": pair.first.name, "alternative": pair.first.alternative},
                "second": {"name": pair.second.name, "alternative": pair.second.alternative},
                "after": pair.after,
                "change": pair.change,
                "interaction": pair.interaction,
                "error": pair.error,
            }
            for pair in sensitivity.pairs
        ],
    }


def effect_as_dict(effect: ChangeEffect) -> dict[str, Any]:
    return {
        "name": effect.name,
        "kind": effect.kind,
        "meaning": effect.meaning,
        "value": effect.value,
        "alternative": effect.alternative,
        "before": effect.before,
        "after": effect.after,
        "change": effect.change,
        "error": effect.error,
    }


def show_names(kinds: Mapping[str, Mapping[str, str]]) -> None:
    """Names by kind with one line about each."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for kind, names in kinds.items():
        console.print(Text(kind, "bold"))
        width = max(map(len, names), default=0)
        for name, about in names.items():
            line = Text(f"  {name:<{width}}  ").append(about, "dim")
            if console.is_terminal:  # one line a name; a file gets the whole of it
                line.truncate(console.width, overflow="ellipsis")
            console.print(line, soft_wrap=True)
