"""A workload by the text a user types: a zoo model, a Step file, a SCALE-Sim topology, an ONNX model, or `file.py:function`."""

from __future__ import annotations

import importlib.util
import inspect
import linecache
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from textwrap import shorten
from typing import Any

from trainyard.errors import BadInput, TrainyardError, UnknownName
from trainyard.ir import Step
from trainyard.reading import read_json, reader, reason

RETURNS = "a Step, a Recipe, a Trainer, or (model, inputs, targets, loss, optimizer)"
FILES = (".json", ".json.gz", ".csv", ".onnx", "file.py:function")
RECIPE_BATCH = 8
"""Default batch of a Recipe, which has none of its own."""
PARTS = ("model", "inputs", "targets", "loss", "optimizer")


def load(text: str, batch: int | None = None, world: int | None = None) -> Step:
    """The Step that `text` names, at `batch` if one is given; a script for many ranks is run as the first of `world`."""
    from trainyard.workloads import zoo
    from trainyard.workloads.zoo.catalogue import ENTRIES

    if world is None and text in ENTRIES:
        return zoo.load(text, batch)
    path, _, function = text.rpartition(":")
    if path.endswith(".py"):
        from trainyard.workloads.capture import world as ranks

        with ranks(world):
            return _sized(_from_python(Path(path), function, batch, world), batch)
    if world is not None:
        raise BadInput(f"{text}: world={world} is for a script that makes its own exchanges, file.py:function")
    if text.endswith(".py"):
        raise BadInput(f"{text}: which function? write {text}:function")
    if os.path.isdir(text):
        raise BadInput(f"{text} is a folder: name a file in it{_examples(Path(text))}")
    if text.endswith((".json", ".json.gz")):
        return _sized(read_step(text), batch)
    if text.endswith(".csv"):
        from trainyard.workloads.formats import read_topology

        return read_topology(text, batch=1 if batch is None else batch)
    if text.endswith(".onnx") or path.endswith(".onnx"):
        from trainyard.workloads.formats.onnx.model import open_sizes, read_onnx

        if text.endswith(".onnx"):
            return read_onnx(text, batch=batch)
        return read_onnx(path, batch=batch, sizes=open_sizes(function))
    if Path(text).suffix or "/" in text:
        raise BadInput(f"{text} is neither a zoo model nor a file this reads: {', '.join(FILES)}")
    return zoo.load(text, batch=batch)


def _examples(folder: Path) -> str:
    """The first files of a folder that could be meant, as a user would write them; else what is read at all."""
    meant = sorted(path for path in folder.iterdir() if path.name.endswith((*FILES[:-1], ".py")))[:3]
    names = [f"{path}:function" if path.suffix == ".py" else str(path) for path in meant]
    return f", such as {', '.join(names)}" if names else f" ({', '.join(FILES)})"


def _sized(step: Step, batch: int | None) -> Step:
    return step if batch is None else step.rebatch(batch)


@reader("step file")
def read_step(path: str | os.PathLike[str]) -> Step:
    """The step of a file that `trainyard export --to step` has written (.json, .json.gz)."""
    from trainyard.ir.serial import from_document

    return from_document(read_json(path, "step", "step_bytes"))


def function_of(text: str) -> Callable[..., Any]:
    """The function that `file.py:function` names; the file is run as a module of its own, its folder importable meanwhile."""
    path, _, name = text.rpartition(":")
    if not path.endswith(".py") or not name:
        raise BadInput(f"{text!r} is not of the form file.py:function")
    file = Path(path)
    if not os.path.isfile(file):
        raise BadInput(f"no file {file}")
    spec = importlib.util.spec_from_file_location(f"trainyard_user_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickling look their module up
    sys.path.insert(0, str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except TrainyardError:
        raise
    except Exception as error:
        raise BadInput(f"{file} cannot be imported: {in_user_code(error, file)}") from error
    finally:
        with suppress(ValueError):  # the file itself has taken it away
            sys.path.remove(str(file.resolve().parent))
    function = getattr(module, name, None)
    if function is None:
        raise UnknownName("function", name, [n for n, v in vars(module).items() if inspect.isfunction(v)], str(file))
    if not callable(function):
        raise BadInput(f"{file}: '{name}' is not a function but {type(function).__name__}")
    return function  # type: ignore[no-any-return]  # callable, checked above


def called(text: str, **offered: Any) -> Any:
    """Calls the function with those of the offered arguments that it has parameters for, and returns its result."""
    function = function_of(text)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise BadInput(f"{text} cannot be called: {reason(error)}; name a function that is written in Python") from None
    missing = [n for n, p in parameters.items() if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if unknown := [name for name in missing if offered.get(name) is None]:
        raise BadInput(
            f"{text} needs {', '.join(unknown)}: give it a default (it is called with {', '.join(offered) or 'nothing'})"
        )
    arguments = {name: value for name, value in offered.items() if name in parameters and value is not None}
    try:
        return function(**arguments)
    except TrainyardError:
        raise
    except Exception as error:
        raise BadInput(f"{text} raised {in_user_code(error, text.rpartition(':')[0])}") from error


def in_user_code(error: Exception, file: str | os.PathLike[str]) -> str:
    """An error of a user's program in one line: what it says, and the innermost line of the user's that it passed through."""
    message = error.msg if isinstance(error, SyntaxError) else next(iter(str(error).splitlines()), "")
    sentence = f"{type(error).__name__}: {message}".removesuffix(": ")
    if (line := user_line(error, file)) is None:
        return sentence
    source = linecache.getline(*line).strip()
    return f"{sentence} ({Path(line[0]).name}:{line[1]}{f': `{shorten(source, 100)}`' if source else ''})"


def user_line(error: Exception, file: str | os.PathLike[str]) -> tuple[str, int] | None:
    """The innermost line of a program in the file's folder that an error passed through: the file and the line's number."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return error.filename, error.lineno or 0
    folder = Path(file).resolve().parent
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename, folder)]
    return (frames[-1].filename, frames[-1].lineno or 0) if frames else None


def _is_users(file: str, folder: Path) -> bool:
    """Whether a line of a traceback is of a program in this folder, not of what is installed below it or made at run time."""
    return not file.startswith("<") and "site-packages" not in file and Path(file).resolve().is_relative_to(folder)


def _from_python(file: Path, function: str, batch: int | None, world: int | None) -> Step:
    text = f"{file}:{function}"
    returned = called(text, batch=batch, world=world)
    if isinstance(returned, Step):
        return returned
    name = function if function not in ("build", "main", "model") else file.stem
    if _is_recipe(returned):
        from trainyard.workloads.capture import capture_recipe

        return capture_recipe(returned, name, RECIPE_BATCH if batch is None else batch)
    if isinstance(returned, Mapping):
        unknown = [key for key in returned if key not in PARTS]
        if unknown or "model" not in returned:
            raise BadInput(f"{text} returned a dict with keys {', '.join(map(str, returned))}; expected {', '.join(PARTS)}")
        return _capture(dict(returned), name)
    if isinstance(returned, tuple | list) and 2 <= len(returned) <= len(PARTS):
        return _capture(dict(zip(PARTS, returned, strict=False)), name)
    if "torch" in sys.modules and _is_framework_object(returned):
        from trainyard.workloads.capture import capture

        return capture(returned, name=name, batch=batch)
    if _is_module(returned):
        raise BadInput(f"{text} returned a model without inputs: return (model, inputs, targets, loss, optimizer)")
    raise BadInput(f"{text} returned {type(returned).__name__}; expected {RETURNS}")


def _is_recipe(value: Any) -> bool:
    from trainyard.workloads.zoo.recipe import Recipe

    return isinstance(value, Recipe)


def _is_framework_object(value: Any) -> bool:
    from trainyard.workloads.capture.frameworks import is_framework_object

    return is_framework_object(value)


def _is_module(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _capture(parts: dict[str, Any], name: str) -> Step:
    from trainyard.workloads.capture import capture

    if not _is_module(parts["model"]):
        raise BadInput(f"expected an nn.Module first, got {type(parts['model']).__name__}: return {RETURNS}")
    model, inputs, targets = (parts.pop(key, None) for key in PARTS[:3])
    return capture(model, inputs, targets, name=name, **parts)
