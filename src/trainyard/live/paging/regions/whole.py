"""The model compiled as a whole, as a rival of the plan with compiled blocks.

A compiler that sees the whole model fuses across the borders of blocks, and its host calls one function instead of many. Compiled
blocks between others, in turn, can cost the host more than a survey of them shows. So after the plan has been followed for a few
passes, which are timed, the plan without compiled blocks is, and then the model compiled with the largest share of its activations
saved that fits (`contest`). The fastest way that fits the budget stays: `compile=True` is not slower than without it, nor
than `torch.compile` alone. The compiler says what it would save before anything runs: a share is not tried if that does not fit
beside what the device holds before forward, or if its backward could exceed what the device has. One that takes more than the
budget all the same is not taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainyard.live.paging.regions.finding import Region, kind_of
from trainyard.live.paging.regions.variants import CompilerName, Entry, backend_of, own_code
from trainyard.live.paging.signature import Signature


def is_in_one_process(model: nn.Module) -> bool:
    """Models that are spread over processes are compiled by blocks alone, and not replayed."""
    plain = all(type(parameter) is nn.Parameter for parameter in model.parameters())
    return plain and not isinstance(model, DistributedDataParallel)


class _TooLarge(Exception):
    """The bytes that the graphs so far save, and one more would, do not fit."""

    def __init__(self, needs: int) -> None:
        super().__init__(f"{needs} bytes")
        self.needs = needs


class WholeModel:
    """The model's own call, and the compiled ones that run instead of it, from `open` to `close`.

    A model's call is looked up before its hooks run, and one of these decides what runs. So the call is replaced once, by one
    that looks for the decision when it is made. Compiled code stays when the model is closed and opened again.
    """

    def __init__(self, model: nn.Module, compiler: CompilerName) -> None:
        self.entry, self.compiler = Entry(model, kind_of(model)), compiler
        self.region = Region("", model, self.entry.kind)
        self.compiled: dict[float, Callable[..., Any]] = {}
        self.room_bytes = 0
        self.saved_bytes: dict[tuple[float, Signature], int] = {}
        """What the compiled forward graphs of each share and signature save or return."""
        self._compiling: tuple[float, Signature] = (0.0, ())
        self.active: Callable[..., Any] = self.entry.call

    def open(self) -> None:
        self.rest()
        self.entry.replace(lambda *arguments, **keywords: self.active(*arguments, **keywords))

    def install(self, share: float, signature: Signature, room_bytes: int, refused: Callable[[float], None]) -> None:
        """From the next call on, also if its hooks are running. `refused` is told how many bytes were too many, and then the
        model's own code runs."""
        self.room_bytes, self._compiling = room_bytes, (share, signature)
        if share not in self.compiled:
            key = (share, self.compiler, "whole", *self.entry.kind)
            backend = backend_of(share, self.compiler, self._admit)
            self.compiled[share] = torch.compile(own_code(self.entry.call, key), backend=backend, dynamic=False)
        compiled, own = self.compiled[share], self.entry.call

        def run(*arguments: Any, **keywords: Any) -> Any:
            needs = float(self.saved_bytes.get((share, signature), 0))
            if needs <= room_bytes:
                try:
                    return compiled(*arguments, **keywords)
                except (torch._dynamo.exc.TorchDynamoException, torch.OutOfMemoryError) as error:
                    cause = getattr(error, "inner_exception", None)
                    needs = float(cause.needs) if isinstance(cause, _TooLarge) else float("inf")
            refused(needs)
            return own(*arguments, **keywords)

        self.active = run

    def rest(self) -> None:
        """The model's own code runs again."""
        self.active = self.entry.call

    def close(self) -> None:
        self.entry.restore()

    def _admit(self, saved_bytes: int) -> None:
        total = self.saved_bytes.get(self._compiling, 0) + saved_bytes  # a model may be compiled in several graphs
        if total > self.room_bytes:
            raise _TooLarge(total)
        self.saved_bytes[self._compiling] = total
