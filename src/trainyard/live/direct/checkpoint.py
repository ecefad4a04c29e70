"""Checkpoints of a run whose ranks differ: between two exchanges every cluster has a model of its own.

Each rank writes its own file; rank 0 then names the step in `latest.json`, which is replaced atomically, so that a run that dies
while it saves resumes from the checkpoint before. Files hold only tensors, numbers and text and are read with `weights_only`:
nothing in them is executed.

A resumed run ends with the very bits of one that was not interrupted if its data come by step number (or from `sampler`), it draws
random numbers only from torch's CPU generator, which is saved along, and sums are added in the same order. Averaging keeps to one
order. DDP arranges its buckets anew after its first step, and sums of three or more processes may then round otherwise; with
`cluster_hook` and one or two processes in a cluster nothing of that kind is added up.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from trainyard.errors import BadInput
from trainyard.reading import read_json, reader

LATEST = "latest.json"


class Stateful(Protocol):
    """A module, an optimizer, an averager, a sampler."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Any, /) -> Any: ...


def save(path: str | PathLike[str], *, step: int, sampler: Mapping[str, Any] | None = None, **parts: Stateful) -> None:
    """Save `parts` (model=, optimizer=, averager=, ...) after `step` steps in the folder `path`; all ranks call it.

    `sampler` is whatever plain numbers, text and tensors say where the data go on. Two checkpoints are kept.
    """
    rank, size = _place()
    folder = Path(path) / f"step-{step:08d}"
    folder.mkdir(parents=True, exist_ok=True)
    states = {name: part.state_dict() for name, part in parts.items()}
    content = {"step": step, "size": size, "sampler": dict(sampler or {}), "random": torch.get_rng_state(), "parts": states}
    _replace(folder / f"rank-{rank}.pt", lambda file: torch.save(content, file))
    if size > 1:
        dist.barrier()
    if rank == 0:
        text = json.dumps({"step": step, "size": size, "parts": sorted(parts)})
        _replace(Path(path) / LATEST, lambda file: file.write_text(text))
        for old in sorted(Path(path).glob("step-*"))[:-2]:
            shutil.rmtree(old)


@reader("checkpoint")
def load(path: str | PathLike[str], **parts: Stateful) -> tuple[int, dict[str, Any]]:
    """Put the latest checkpoint of `path` into `parts`; its step and the sampler's state. All ranks call it."""
    rank, size = _place()
    latest = Path(path) / LATEST
    if not latest.is_file():
        raise BadInput(f"{path} holds no complete checkpoint: {LATEST} is missing")
    named = read_json(latest, "checkpoint", "machine_bytes")
    if named["size"] != size:
        raise BadInput(f"{path} was saved by {named['size']} processes, this run has {size}: start as many")
    if set(named["parts"]) != set(parts):
        raise BadInput(
            f"{path} holds {', '.join(named['parts'])}; asked for {', '.join(sorted(parts)) or 'nothing'}: name the same"
        )
    content = torch.load(Path(path) / f"step-{named['step']:08d}" / f"rank-{rank}.pt", weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(content["parts"][name])
    torch.set_rng_state(content["random"])
    return content["step"], content["sampler"]


def _place() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def _replace(target: Path, write: Any) -> None:
    """Writes a file atomically."""
    draft = target.with_suffix(".draft")
    write(draft)
    with draft.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(draft, target)
