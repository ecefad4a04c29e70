"""What a command says: messages and progress on stderr, so that stdout holds results alone; small tables and lists.

A layer, a file, a machine or a study may be named by anyone. An escape sequence in a name could clear a screen, change a title or
type for the user; a sign that turns the direction of writing could hide what is written. All text that is printed goes through
`new_console`, `write` or `say`, which put a picture in the place of such characters: U+241B for escape, U+FFFD for one without.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from threading import Timer
from typing import TYPE_CHECKING, Any

from trainyard.progress import ProgressCallback, listening, no_progress

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.table import Table

    from trainyard.sensitivity import ChangeEffect, Pair, SensitivityResult

WIDTHS = {"ratio": 5, "verdict": 12, "before": 7, "after": 7, "worth": 7, "together": 8, "interaction": 11}
"""Columns that are never broken over lines."""
NARROWEST_COMMENT = 24
MOMENT_S = 0.3
"""What is done sooner needs no bar."""
NUMBERS = ("paper", "ours", "ratio", "before", "after", "worth", "together", "interaction")
TOP = 25
"""Rows of a table of effects."""


# fmt: off
PLAIN_SIGNS = {"µ": "u", "…": "~", "≤": "<=", "≥": ">=", "×": "x", "–": "-"}
# fmt: on


UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but the end of a line, those that turn the direction of writing, and halves of surrogate pairs."""
PICTURES, DELETED, UNKNOWN = 0x2400, "\u2421", "\ufffd"
END_OF_LINE = "\u2424"


def visible(text: str) -> str:
    """A text of several lines whose other control characters are pictures of themselves.

    >>> visible("conv\x1b[2J"), visible("caf\xe9 \u202etxt.exe"), visible("a\x7f\x9bb")
    ('conv␛[2J', 'café �txt.exe', 'a␡�b')
    """
    return UNSAFE.sub(lambda match: _picture(match.group()), text)


def one_line(name: str) -> str:
    """A name, whose ends of lines are pictures as well.

    >>> one_line("conv\\nenergy  0 J")
    'conv␤energy  0 J'
    """
    return visible(name).replace("\n", END_OF_LINE)


def _picture(sign: str) -> str:
    code = ord(sign)
    return chr(PICTURES + code) if code < 0x20 else DELETED if code == 0x7F else UNKNOWN


@cache
def _console_class() -> type[Console]:
    from rich.console import Console
    from rich.segment import Segment

    class VisibleConsole(Console):
        """A console whose text has been through `visible`; colours and movements are its own."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                if segment.control is None and UNSAFE.search(segment.text):
                    yield Segment(visible(segment.text), segment.style)
                else:
                    yield segment

    return VisibleConsole


def new_console(**options: Any) -> Console:
    """What commands print tables and bars on: stdout, or stderr with `stderr=True`."""
    return _console_class()(**options)


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
    text = json.dumps(value, indent=2, default=str, allow_nan=False).replace("\x7f", "\\u007f")
    if path == "-":
        print(text)
        return
    from trainyard.files import write_text

    write_text(path, text + "\n")
    say(f"wrote {path}")


def say(message: str) -> None:
    """One line on stderr; a terminal gets it broken between words."""
    message = visible(message)
    if sys.stderr.isatty():
        width = os.get_terminal_size(sys.stderr.fileno()).columns
        message = textwrap.fill(message, width or 80, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
    print(message, file=sys.stderr)


def write(text: str) -> None:
    """Text on stdout as it is, but for control characters."""
    print(visible(text), flush=True)


def write_text_lines(text: str) -> None:
    """Text on stdout; lines that a terminal is too narrow for go on between words, two signs deeper than they begin."""
    text = visible(text)
    if sys.stdout.isatty():
        width = os.get_terminal_size(sys.stdout.fileno()).columns or 80
        text = "\n".join(part for line in text.split("\n") for part in folded_line(line, width))
    print(text)


def folded_line(line: str, width: int) -> list[str]:
    """A line in parts of at most `width` signs, unless a word has more.

    >>> folded_line("  three of its tasks are of this layer", 24)
    ['  three of its tasks are', '    of this layer']
    """
    if len(line) <= width:
        return [line]
    deeper = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, width, subsequent_indent=deeper, break_on_hyphens=False, break_long_words=False)


def with_folded_comments(text: str) -> str:
    """A TOML file whose comments go on in further lines of a terminal, below each other; unchanged elsewhere.

    It is the same file: a line that begins with a # is a comment.
    """
    if not sys.stdout.isatty():
        return text
    width = os.get_terminal_size(sys.stdout.fileno()).columns or 80
    return "".join(f"{part}\n" for line in text.splitlines() for part in folded_comment(line, width))


def write_settings(text: str) -> None:
    """Lines of a TOML file on stdout, their comments folded."""
    write(with_folded_comments(text).removesuffix("\n"))


def folded_comment(line: str, width: int) -> list[str]:
    """The lines of a setting and its comment, none wider than `width` where words allow it.

    >>> folded_comment("rows = 128    # Table 3 of the paper and its text", 40)
    ['rows = 128    # Table 3 of the paper and', '              # its text']
    """
    setting, mark, comment = line.partition("  # ")
    indent = len(setting) + 2
    if line.startswith("# "):
        return textwrap.wrap(line, width, subsequent_indent="# ", break_on_hyphens=False)
    if not mark or len(line) <= width:
        return [line]
    if width - indent < NARROWEST_COMMENT:  # below the setting
        return [setting.rstrip(), *textwrap.wrap(comment, width, initial_indent="  # ", subsequent_indent="  # ")]
    further = f"{'':{indent}}# "
    first, *others = textwrap.wrap(comment, width, initial_indent=further, subsequent_indent=further, break_on_hyphens=False)
    return [f"{setting}{first[len(setting) :]}", *others]


@contextmanager
def progress(what: str = "", *, at_once: bool = False) -> Iterator[ProgressCallback]:
    """A bar with an estimate on a terminal's stderr, of what takes longer than a moment; silence elsewhere.

    It names the loops that are being compiled, which takes most of the time of a first run (`trainyard warm-up`), and how far a
    loop inside has come, such as a search of mappings.
    """
    if not sys.stderr.isatty():
        yield no_progress
        return
    from trainyard.kernels.compilation import observed

    bar = Bar(what)
    starter = Timer(0.0 if at_once else MOMENT_S, bar.start)
    starter.daemon = True
    starter.start()
    try:
        with observed(bar.compile_begins, bar.compile_ends), listening(bar.inside):
            yield bar.show
    finally:
        starter.cancel()
        starter.join()
        bar.stop()


@contextmanager
def status(message: str) -> Iterator[None]:
    """A bar for work that cannot be counted from outside."""
    with progress(message):
        yield


class Bar:
    """One line: what is under way, a bar, the time so far and the time left. It moves to and fro while nothing is known."""

    def __init__(self, what: str) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.table import Column

        self._what, self._described, self._done, self._total = what, what, 0, 0
        self._compiling: list[str] = []
        self._compiled = 0
        text = TextColumn("{task.description}", markup=False, table_column=Column(ratio=3, no_wrap=True, overflow="ellipsis"))
        times = [kind(table_column=Column(width=7, no_wrap=True)) for kind in (TimeElapsedColumn, TimeRemainingColumn)]
        track = BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=8))
        self._progress = Progress(text, track, *times, console=new_console(stderr=True), transient=True, expand=True)
        self._task = self._progress.add_task(what, total=None)

    def start(self) -> None:
        self._progress.start()

    def stop(self) -> None:
        if self._progress.live.is_started:
            self._progress.stop()

    def show(self, done: int, total: int, message: str = "", /) -> None:
        """So many of so many are done."""
        count = f"{done}/{total}" if total > 1 else ""
        self._described = " ".join(filter(None, (count, self._what, message)))
        self._done, self._total = done, total
        self._update(done, total if total > 1 else None, self._described)

    def inside(self, done: int, total: int, message: str = "", /) -> None:
        """How far the piece of work that is under way has come; a total of 0 is unknown."""
        if total:
            self._update(self._done + done / total, max(self._total, 1), f"{self._described} ({message}: {done} of {total})")
        else:
            self._update(self._done, self._total if self._total > 1 else None, f"{self._described} ({done:,} {message})")

    def compile_begins(self, loop: str) -> None:
        self._compiling.append(loop)
        self._compiled += 1
        self._name_loop()

    def compile_ends(self, loop: str) -> None:
        if loop in self._compiling:
            self._compiling.remove(loop)
        self._name_loop()

    def _name_loop(self) -> None:
        known = f" (first run: compiling loop {self._compiled}, {self._compiling[-1]})" if self._compiling else ""
        self._progress.update(self._task, description=f"{self._described}{known}".strip())

    def _update(self, done: float, total: int | None, description: str) -> None:
        self._progress.tasks[0].total = total  # `update` takes None for no change
        self._progress.update(self._task, completed=done, description=description.strip())


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
    from rich.text import Text

    console = new_console()
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
    from rich.text import Text

    from trainyard.report.lines import value_text
    from trainyard.report.tornado import number_text

    table = table_of("change", "value", "alternative", "before", "after", "worth")
    for effect in effects:
        value, alternative = (value_text(effect.name, shown) for shown in (effect.value, effect.alternative))
        before, after = number_text(effect.before, metric), number_text(effect.after, metric)
        texts = (effect.name, value, alternative, before, after, f"{100 * effect.change:+.1f} %")
        table.add_row(*map(Text, texts))
    new_console().print(table)


def _pairs_table(pairs: Sequence[Pair]) -> None:
    from rich.text import Text

    from trainyard.report.lines import changed_text

    table = table_of("first", "second", "alone", "together", "interaction")
    for pair in pairs:
        alone = f"{100 * pair.first.change:+.1f} %, {100 * pair.second.change:+.1f} %"
        together = ("not possible", "") if pair.error else (f"{100 * pair.change:+.1f} %", f"{100 * pair.interaction:+.1f} %")
        table.add_row(*map(Text, (changed_text(pair.first), changed_text(pair.second), alone, *together)))
    new_console().print(table)


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
    from rich.text import Text

    console = new_console()
    for kind, names in kinds.items():
        console.print(Text(kind, "bold"))
        width = max(map(len, names), default=0)
        for name, about in names.items():
            line = Text(f"  {name:<{width}}  ").append(about, "dim")
            if console.is_terminal:  # one line a name; a file gets the whole of it
                line.truncate(console.width, overflow="ellipsis")
            console.print(line, soft_wrap=True)
