"""What a command says: messages and progress on stderr, so that stdout holds results alone; small tables and lists."""

from __future__ import annotations

import codecs
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING, Any, Protocol

from trainyard.units import show, unit_of_field

if TYPE_CHECKING:
    from rich.table import Table

    from trainyard.runs import Worth

WIDTHS = {"ratio": 5, "verdict": 12, "before": 7, "after": 7, "change": 7}
"""Columns that are never broken over lines."""
MOMENT_S = 1.0
"""What is done sooner needs no bar."""
NUMBERS = ("paper", "ours", "ratio", "before", "after", "change")


# fmt: off
PLAIN_SIGNS = {"µ": "u", "…": "~", "≤": "<=", "≥": ">=", "×": "x", "–": "-"}
# fmt: on


def speak_plainly() -> None:
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
    """Nobody reads any more, or nothing can be written: what is left in the buffer goes nowhere."""
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


class StepTo(Protocol):
    """Moves a bar: how many of how many are done, and what comes now."""

    def __call__(self, done: int, total: int, label: str) -> None: ...


@contextmanager
def progress(what: str = "") -> Iterator[StepTo]:
    """A bar with an estimate on a terminal's stderr, of what takes longer than a moment; silence elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done, total, label: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.completed:.0f}/{task.total:.0f} {task.description}"), BarColumn(), TimeElapsedColumn())
    bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=1)
    starter = Timer(MOMENT_S, bar.start)
    starter.daemon = True
    starter.start()
    try:
        yield lambda done, total, label: bar.update(task, completed=done, total=total, description=f"{what} {label}".strip())
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


def tell_worths(worths: Sequence[Worth], title: str, metric: str, json_path: str | None) -> None:
    """As JSON where a file is named, and as a table unless stdout is for JSON alone."""
    if json_path is not None:
        write_json([worth_as_dict(worth) for worth in worths], json_path)
    if json_path != "-":
        show_worths(worths, title, metric)


def show_worths(worths: Sequence[Worth], title: str, metric: str) -> None:
    """What each alternative of each assumption does to the metric, the most valuable first."""
    from rich.console import Console
    from rich.text import Text

    from trainyard.report.lines import value_text

    console = Console()
    console.print(Text(f"{title}: what each assumption is worth in {metric}", "bold"))
    if not worths:
        console.print("no open assumptions")
        return
    unit = unit_of_field(metric) or ""
    table = table_of("assumption", "value", "alternative", "before", "after", "change")
    for worth in worths:
        after, change = ("not modelled", "") if worth.error else (show(worth.after, unit), f"{100 * worth.change:+.1f} %")
        value, alternative = (value_text(worth.name, given) for given in (worth.value, worth.alternative))
        texts = (worth.name, value, alternative, show(worth.before, unit), after, change)
        table.add_row(*map(Text, texts))
    console.print(table)
    notes = {worth.name: worth.meaning for worth in worths} | {worth.name: worth.error for worth in worths if worth.error}
    for name, note in notes.items():
        console.print(Text(f"  {name}: ").append(note, "dim"), soft_wrap=True)


def worth_as_dict(worth: Worth) -> dict[str, Any]:
    return {
        "name": worth.name,
        "meaning": worth.meaning,
        "value": worth.value,
        "alternative": worth.alternative,
        "before": worth.before,
        "after": worth.after,
        "change": worth.change,
        "error": worth.error,
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
