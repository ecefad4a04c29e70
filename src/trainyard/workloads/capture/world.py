"""A process group of many ranks in one process, for as long as a capture lasts.

torch's fake process group answers every exchange at once and moves nothing: a script that is written for many ranks runs as the
first of them. What a launcher (torchrun) would have said, the environment says; a script's own `init_process_group` finds that all
is there already.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trainyard.errors import BadInput


@contextmanager
def world(size: int | None) -> Iterator[None]:
    """This process is rank 0 of `size`; a group that the block itself makes is taken down with it. None: as many as it makes."""
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise BadInput(f"world: the number of ranks must be a positive whole number, got {size!r}")
    before = _there()
    if size is None or before:
        if size not in (None, before):
            raise BadInput(f"world={size}, but the process group has {before} ranks already: leave world out")
        try:
            yield
        finally:
            if not before and _there():
                sys.modules["torch.distributed"].destroy_process_group()
        return
    import torch.distributed as dist

    if not dist.is_available():
        raise BadInput("this torch was built without torch.distributed: install one with it")
    dist.init_process_group("fake", rank=0, world_size=size)
    try:
        with _launched(size), _in_place_of_its_own(dist, size):
            yield
    finally:
        dist.destroy_process_group()


def _there() -> int:
    """Ranks of the process group that there is; none as long as nobody has loaded torch."""
    dist = sys.modules.get("torch.distributed")
    return dist.get_world_size() if dist is not None and dist.is_available() and dist.is_initialized() else 0


@contextmanager
def _launched(size: int) -> Iterator[None]:
    """What torchrun tells the processes that it starts."""
    said = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    kept = {name: os.environ.get(name) for name in said}
    os.environ.update(said)
    try:
        yield
    finally:
        for name, value in kept.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _in_place_of_its_own(dist: Any, size: int) -> Iterator[None]:
    """A script that makes its process group, of whatever backend, and takes it down, has this one."""

    def make(*args: Any, **options: Any) -> None:
        asked = options.get("world_size", -1)
        if asked not in (-1, None, size):
            raise BadInput(f"the script asks for a process group of {asked} ranks, world={size} was given: give world={asked}")

    def take_down(group: Any = None) -> None:
        pass

    homes = (dist, dist.distributed_c10d)
    kept = [(home, name, getattr(home, name)) for home in homes for name in ("init_process_group", "destroy_process_group")]
    for home in homes:
        home.init_process_group, home.destroy_process_group = make, take_down
    try:
        yield
    finally:
        for home, name, value in kept:
            setattr(home, name, value)
