"""Random numbers of a recorded call, for a second call in backward that must draw the same ones.

A generator of CUDA is a seed and an offset. A graph adds, in each replay, the offset that the generator has then. A checkpointed
block is called again inside of the graph of its backward, with numbers of its forward. So the second call is recorded with a state
of its own, and before each replay that state is set to where the generator was before forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local

import torch


class CallRandom:
    """Where the device's generator was before the last replay of a call's forward."""

    def __init__(self, device: torch.device) -> None:
        self.generator = torch.cuda.default_generators[device.index or 0] if device.type == "cuda" else torch.default_generator
        self.on_gpu = device.type == "cuda"
        self.state = self.generator.clone_state() if self.on_gpu else None
        """The state that the second call is recorded with."""
        self._seed, self._offset = 0, 0
        self._host_state: torch.Tensor | None = None

    def note(self) -> None:
        """Before a replay of forward."""
        if self.on_gpu:
            self._seed, self._offset = self.generator.initial_seed(), self.generator.get_offset()
        else:
            self._host_state = self.generator.get_state()

    def prepare(self) -> None:
        """Before a replay of backward."""
        if self.state is not None:
            self.state.manual_seed(self._seed)
            self.state.set_offset(self._offset)

    @contextmanager
    def as_recorded(self) -> Iterator[None]:
        """While backward is recorded: the second call draws from `state`."""
        if self.state is None:
            with self.as_noted():
                yield
            return
        present = self.generator.graphsafe_get_state()
        self.generator.graphsafe_set_state(self.state)
        try:
            yield
        finally:
            self.generator.graphsafe_set_state(present)

    @contextmanager
    def as_noted(self) -> Iterator[None]:
        """While nothing is recorded: a second call draws the numbers of the last replay."""
        present = self.generator.get_state()
        if self._host_state is not None:
            self.generator.set_state(self._host_state)
        else:
            self.generator.manual_seed(self._seed)
            self.generator.set_offset(self._offset)
        try:
            yield
        finally:
            self.generator.set_state(present)


class _Recording(local):
    """Of this thread: the numbers of the call that is being recorded as a graph."""

    random: CallRandom | None = None
    is_active = False


_RECORDING = _Recording()


@contextmanager
def recording(random: CallRandom | None) -> Iterator[None]:
    """While a call's forward is recorded as a graph; None: it draws no random numbers."""
    _RECORDING.random, _RECORDING.is_active = random, True
    try:
        yield
    finally:
        _RECORDING.random, _RECORDING.is_active = None, False


def is_recording() -> bool:
    return _RECORDING.is_active


def recorded_random() -> CallRandom | None:
    return _RECORDING.random
