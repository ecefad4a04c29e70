"""What is said of an error: one line that says what to write instead, and the exit code."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from trainyard.errors import TooLarge, TrainyardError
from trainyard.report import terminal

INTERRUPTED = 130
# fmt: off
EXAMPLES = {
    "run":     "trainyard run resnet50 --on npu",
    "compare": "trainyard compare resnet50 --on tpu,npu,h200",
    "diff":    "trainyard diff before.json after.json",
    "explain": "trainyard explain resnet50 --on npu",
    "memory":  "trainyard memory resnet50 --on h200",
    "whatif":  "trainyard whatif resnet50 --on npu",
    "sweep":   "trainyard sweep examples/npu_pareto.toml",
    "record":  "trainyard record my.py:train -o run.safetensors",
    "export":  "trainyard export resnet50 --to step -o resnet50.json",
    "rtl":     "trainyard rtl fan --lanes 32 -o fan.v",
    "show":    "trainyard show npu",
}
"""A whole line for each command that cannot be called by its name alone."""
WHAT_THERE_IS = {
    "on":       "trainyard list machines",
    "name":     "trainyard list",
    "workload": "trainyard list models",
}
"""The command that lists what an option or argument takes."""
# fmt: on


def reason(error: Exception, words: Sequence[str] = ()) -> tuple[str, int]:
    """What to say of an error of the command `words`, and the exit code."""
    if isinstance(error, OverflowError):
        error = TooLarge(f"a size of the workload or the machine is too large to count with ({error})")
    if isinstance(error, TooLarge) and (batch := _batch(words)):
        return f"--batch {batch} is too large: {error}", 2
    if isinstance(error, TrainyardError):
        cause = error.__cause__
        without_torch = isinstance(cause, ModuleNotFoundError) and cause.name == "torch"
        return f"{error}: pip install 'trainyard[torch]'" if without_torch else str(error), 2
    if isinstance(error, typer.Abort):
        return "interrupted", INTERRUPTED
    if callable(usage := getattr(error, "format_message", None)):
        return _usage(error, usage()), 2
    if isinstance(error, OSError) and error.filename is None:  # files have been named by whoever opened them
        terminal.close_stdout()
        return f"cannot write to stdout: {error.strerror or error}", 2
    return f"{type(error).__name__}: {error} (a fault of trainyard; --debug shows where)", 1


def _usage(error: Exception, message: str) -> str:
    """What the parser of options says, with a whole command as an example where something is missing."""
    parameter, context = getattr(error, "param", None), getattr(error, "ctx", None)
    if not message:
        return "what to do? see trainyard --help"
    if parameter is None or not message.startswith("Missing"):
        return message
    example = EXAMPLES.get(str(getattr(context, "info_name", "")), "")
    listed = WHAT_THERE_IS.get(str(parameter.name), "")
    hints = [f"for example: {example}" if example else "", f"{listed} has the names" if listed else ""]
    return "; ".join([message.removesuffix("."), *filter(None, hints)])


def _batch(words: Sequence[str]) -> str:
    """The batch that a command asks for, as it was written.

    >>> _batch(["run", "resnet50", "--batch", "64"]), _batch(["run", "--batch=8"]), _batch(["run", "resnet50"])
    ('64', '8', '')
    """
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "--batch" or word.startswith("--batch="):
            return following if word == "--batch" else word.removeprefix("--batch=")
    return ""
