"""`record`: the zeros of a real training run."""

from __future__ import annotations

from typing import Annotated

import typer

from trainyard.cli.options import writable
from trainyard.errors import BadInput, TrainyardError
from trainyard.report.terminal import write


def record(
    function: Annotated[str, typer.Argument(help="file.py:function that returns (train_step, model).", show_default=False)],
    output: Annotated[str, typer.Option("--output", "-o", callback=writable, help="File of masks to write.")] = "masks.safetensors",
    steps: Annotated[str | None, typer.Option(help="Training steps to record: 0,100,200 or 0:1000:100; 0 by default.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Record one random step of each of this many epochs.")] = None,
    steps_per_epoch: Annotated[int | None, typer.Option(min=1, help="Training steps of an epoch, with --epochs.")] = None,
    layers: Annotated[list[str] | None, typer.Option("--layer", help="Record these layers only. May repeat.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Keep this many samples of each batch.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the choice of samples and of steps.")] = 0,
) -> None:
    """Record the zeros of a real training run.

    The exact masks of activations, weights and gradients, for `run --masks`.
    """
    from trainyard.workloads.epochs import recorded_steps
    from trainyard.workloads.named import called, in_user_code, user_line
    from trainyard.workloads.recording import record_masks

    numbers = recorded_steps(steps, epochs, steps_per_epoch, seed)
    returned = called(function)
    if not (isinstance(returned, tuple | list) and len(returned) == 2 and callable(returned[0])):
        raise BadInput(f"{function} must return (train_step, model), got {_shown(returned)}: train_step() does one training step")
    train_step, model = returned
    try:
        masks = record_masks(train_step, model, numbers, path=output, layers=layers, samples=samples, seed=seed)
    except TrainyardError:
        raise
    except Exception as error:
        file = function.rpartition(":")[0]
        if user_line(error, file) is None:  # not in the training step, so a fault of ours
            raise
        raise BadInput(f"the training step of {function} raised {in_user_code(error, file)}") from error
    write(f"wrote {output}: {len(masks.specs)} masks at each of steps {', '.join(map(str, masks.steps))}")


def _shown(returned: object) -> str:
    """What a function returned, by its type; of a tuple, by those of its members."""
    members = [type(member).__name__ for member in returned] if isinstance(returned, tuple | list) else []
    return f"({', '.join(members)})" if members else type(returned).__name__
