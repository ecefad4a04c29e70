"""A process group of many ranks in one process, for as long as a capture lasts.

torch's fake process group completes every collective at once and moves nothing: a script that is written for many ranks runs as the
first of them. The environment has the variables that torchrun sets; the script's own `init_process_group` does nothing.
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
    """This process is rank 0 of `size`; None: of a group that the block itself makes, which is destroyed with it."""
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise BadInput(f"world: the number of ranks must be a positive whole number, got {size!r}")
    before = _group_size()
    if size is None or before:
        if size not in (None, before):
            raise BadInput(f"world={size}, but the process group has {before} ranks already: leave world out")
        try:
            yield
        finally:
            if not before and _group_size():
                sys.modules["torch.distributed"].destroy_process_group()
        return
    import torch.distributed as dist

    if not dist.is_available():
        raise BadInput("this torch was built without torch.distributed: install one with it")
    dist.init_process_group("fake", rank=0, world_size=size)
    try:
        with _torchrun_environment(size), _process_group_functions_replaced(dist, size):
            yield
    finally:
        dist.destroy_process_group()


def _group_size() -> int:
    """Ranks of the present process group; 0 without one, or if torch is not loaded."""
    dist = sys.modules.get("torch.distributed")
    return dist.get_world_size() if dist is not None and dist.is_available() and dist.is_initialized() else 0


@contextmanager
def _torchrun_environment(size: int) -> Iterator[None]:
    """The environment variables that torchrun sets."""
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    saved = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _process_group_functions_replaced(dist: Any, size: int) -> Iterator[None]:
    """The script's own calls that make or destroy a process group, of whatever backend, do nothing."""

    def make(*args: Any, **options: Any) -> None:
        ranks = options.get("world_size", -1)
        if ranks not in (-1, None, size):
            raise BadInput(f"the script asks for a process group of {ranks} ranks, world={size} was given: give world={ranks}")

    def take_down(group: Any = None) -> None:
        pass

    namespaces = (dist, dist.distributed_c10d)
    saved = [
        (namespace, name, getattr(namespace, name))
        for namespace in namespaces
        for name in ("init_process_group", "destroy_process_group")
    ]
    for namespace in namespaces:
        namespace.init_process_group, namespace.destroy_process_group = make, take_down
    try:
        yield
    finally:
        for namespace, name, value in saved:
            setattr(namespace, name, value)
