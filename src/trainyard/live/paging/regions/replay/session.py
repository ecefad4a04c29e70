"""What a with-block replays at a time: nothing, the blocks of a plan, or a whole model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from trainyard.live.paging.regions.replay.passes import RecordedPasses

if TYPE_CHECKING:
    from trainyard.live.paging.regions.progress import Progress


class Replays:
    """At most one set of recordings is open, since each has memory of its own."""

    def __init__(self, model: nn.Module, device: torch.device, *, is_allowed: bool) -> None:
        self.model, self.device, self.is_allowed = model, device, is_allowed
        self.passes: RecordedPasses | None = None
        self._hook: RemovableHandle | None = None

    def open(self, progress: Progress) -> RecordedPasses:
        """Recordings for what is installed now."""
        self.close()
        passes = self.passes = RecordedPasses(self.device, progress.rehearsals, obstacle_of=progress.fingerprints.obstacle)
        self._hook = self.model.register_forward_hook(lambda model, arguments, result: passes.forward_ended(result))
        return passes

    def forbid(self) -> None:
        """Nothing is recorded from now on."""
        self.is_allowed = False
        self.close()

    def close(self) -> None:
        """Gives all memory of recordings back."""
        if self.passes is not None and self._hook is not None:
            self._hook.remove()
            self.passes.release()
            self.passes = self._hook = None
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def begin(self) -> None:
        """Before a pass."""
        if self.passes is not None:
            self.passes.begin()

    @property
    def hidden_bytes(self) -> int:
        """Memory of recordings that the allocator's counters do not show."""
        return 0 if self.passes is None else self.passes.hidden_bytes

    @property
    def is_replayed(self) -> bool:
        """Whether the last pass was replayed, as far as it could be."""
        return self.passes is not None and self.passes.is_replayed

    @property
    def recorded_calls(self) -> int:
        return 0 if self.passes is None else self.passes.recorded_calls

    def peak_bytes(self, allocated_bytes: int) -> int:
        """The peak of all memory, from that of what the allocator counts."""
        recorded = 0 if self.passes is None else self.passes.peak_bytes
        return max(allocated_bytes + self.hidden_bytes, recorded)
