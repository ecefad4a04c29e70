"""The command line. Every error of a user is one line on stderr and exit code 2; `--json -` prints nothing but JSON on stdout.

`options` has what several commands share, `request` turns it into steps, masks, machines and results, `faults` says what is wrong.
The commands: `running` (run, compare, explain), `differences` (diff), `memory`, `whatif`, `sweep`, `serve`, `reproduce`, `record`,
`export`, `rtl`, `names` (list, show), `warming` (warm-up). Heavy imports stay inside the commands, so that `trainyard --help`
answers at once. A new command is a function here, registered at the end of this file.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Annotated, Any

import typer

from trainyard._version import VERSION
from trainyard.cli import differences, export, faults, memory, names, record, reproduce, rtl, running, serve, sweep, warming, whatif
from trainyard.cli.faults import INTERRUPTED
from trainyard.report import terminal

app = typer.Typer(
    help="Run one training step of your PyTorch model on an accelerator that does not exist yet.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


COLLECT_AFTER = 50_000
"""New objects after which the garbage collector looks for cycles: what is loaded makes many, and all of them stay."""


@contextmanager
def _rare_collections() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@cache
def _parser() -> Any:
    """All commands with their options as they are parsed, made once: their annotations are read for it."""
    return typer.main.get_command(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """The program: its exit code is 0, 1 (an experiment failed, or a bug), 2 (the user can mend it) or 130 (interrupted)."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    debug = "--debug" in words
    terminal.replace_unknown_signs()
    try:
        with _rare_collections():
            parser = app if debug else _parser()  # typer itself shortens the traceback
            code = parser([word for word in words if word != "--debug"], prog_name="trainyard", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # typer has caught it
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except (BrokenPipeError, SystemExit) as end:
        if isinstance(end, BrokenPipeError) or isinstance(end.__context__, BrokenPipeError):  # typer and rich end with the latter
            terminal.close_stdout()
            return 0  # `trainyard list | head`: what was read is enough
        return _fail(f"a function of yours ended the program with exit({end.code})", 2)
    except Exception as error:
        if debug:
            raise
        return _fail(*faults.reason(error, words))


def _fail(message: str, code: int) -> int:
    terminal.say(f"trainyard: {' '.join(message.split())}")
    return code


def _version(show: bool) -> None:
    if show:
        terminal.write(f"trainyard {VERSION}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    pass


for _command in (
    running.run, running.compare, differences.diff, running.explain, memory.memory,
    whatif.whatif, sweep.sweep, serve.serve, reproduce.reproduce,
    record.record, export.export, names.show,
):  # fmt: skip
    app.command()(_command)
app.command(name="rtl", context_settings=rtl.SETTINGS)(rtl.rtl)
app.command(name="list")(names.list_names)
app.command(name="warm-up")(warming.warm_up)
