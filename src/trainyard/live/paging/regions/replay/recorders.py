"""What records a function and replays it: a graph of CUDA, or on the CPU its operators (`operator_graph`).

Both promise the same: after `replay` the results are in the memory in which the recorded ones were. A graph is not run while it is
recorded, so the first values are there after the first replay.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

import torch
from torch import Tensor

from trainyard.live.paging.regions.replay.operator_graph import OperatorRecorder
from trainyard.live.paging.regions.replay.random_numbers import CallRandom

Function = Callable[[], Sequence[Tensor | None]]


class Recording(Protocol):
    """A recorded function. `results` are the tensors that it returned when it was recorded, and are dropped by whoever asked."""

    results: list[Tensor | None]

    def replay(self) -> None: ...


class Recorder(Protocol):
    """Records functions that share one pool of memory.

    After one that raised an error, nothing that was recorded may be used in another pass; and unless it raised `NotPlain`, nothing
    more may be recorded.
    """

    def record(self, function: Function, random: CallRandom | None = None) -> Recording:
        """`random` is drawn from in the function, beside the device's own generator."""
        ...

    def own(self, tensor: Tensor, source: Tensor) -> None:
        """A tensor that a recorded function allocated, to which `source` will be copied before the first replay."""
        ...

    @property
    def hidden_bytes(self) -> int:
        """Memory that replays use and the allocator's counters of allocated bytes do not show."""
        ...

    @property
    def total_peak_bytes(self) -> int:
        """Peak of all memory while functions were recorded."""
        ...

    def finish(self) -> None:
        """The last function was recorded."""
        ...

    def close(self) -> None:
        """Nothing is replayed any more. Tensors that recorded functions returned, and that are still used, keep their memory."""
        ...


class _Graph:
    def __init__(self, graph: torch.cuda.CUDAGraph, results: list[Tensor | None]) -> None:
        self.results, self.replay = results, graph.replay


class GraphRecorder:
    """CUDA graphs in one pool, recorded on a stream of their own."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._index = device, device.index or 0
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(device)
        self.peak_bytes = 0
        """Of the pool, while functions were recorded."""
        self.total_peak_bytes = 0
        """Of all memory, until the last function was recorded: recording resets the allocator's own counter."""
        self.hidden_bytes = 0
        self._failed: list[torch.cuda.CUDAGraph] = []
        """Graphs whose function raised an error. A pool that no graph refers to any more is gone."""
        self._unfinished = 0
        """Those of them that torch could not end. They do not give the pool back by themselves."""
        # Workspaces of products belong to a stream. Those of the recording stream are allocated in the pool, and given back to it.
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()  # the pool takes new memory from the device

    def record(self, function: Function, random: CallRandom | None = None) -> _Graph:
        graph = torch.cuda.CUDAGraph()
        if random is not None and random.state is not None:
            graph.register_generator_state(random.state)
        torch.cuda.synchronize(self.device)
        generator = torch.cuda.default_generators[self._index]
        seed, offset = generator.initial_seed(), generator.get_offset()
        pool_before, _ = self._pool_bytes()
        with _no_collection(), torch.cuda.stream(self.stream):
            allocated_before = torch.cuda.memory_allocated(self.device)
            self._note_peak()
            torch.cuda.reset_peak_memory_stats(self.device)
            try:
                # Other threads, as those that load data, may go on to use the device.
                graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
                results = [*function()]
                _end(graph)
            except BaseException:
                self._end_failed(graph)
                # The generator counts what graphs draw, and goes on to do so if one was not finished: a new state does not. Graphs
                # that were recorded before have the old state, and end with this pass.
                fresh = torch.Generator(self.device).manual_seed(seed)
                fresh.set_offset(offset)
                generator.graphsafe_set_state(fresh.graphsafe_get_state())
                raise
            # Before a recording torch writes the seed and an offset of zero for random numbers, on this stream. A replay writes its
            # own offset, on another one: on a device that is shared with other programs the zero might come after that.
            self.stream.synchronize()
            more_bytes = torch.cuda.max_memory_allocated(self.device) - allocated_before
        self.peak_bytes = max(self.peak_bytes, pool_before + more_bytes)
        return _Graph(graph, results)

    def _end_failed(self, graph: torch.cuda.CUDAGraph) -> None:
        """Ends a recording that raised an error. Where torch cannot, its allocator would go on to record to the pool."""
        self._failed.append(graph)
        try:
            _end(graph)
        except RuntimeError:
            with suppress(RuntimeError):  # it had not begun
                torch._C._cuda_endAllocateToPool(self._index, self.pool)
                self._unfinished += 1

    def own(self, tensor: Tensor, source: Tensor) -> None:
        """Its block in the pool is free for later graphs, as it was when they were recorded."""

    def finish(self) -> None:
        torch._C._cuda_clearCublasWorkspaces()
        allocated_bytes, _ = self._pool_bytes()
        self.hidden_bytes = max(self.peak_bytes - allocated_bytes, 0)
        self._note_peak()
        torch.cuda.reset_peak_memory_stats(self.device)  # what was allocated while functions were recorded is hidden from now on

    def close(self) -> None:
        """Tensors that were allocated for a graph stay longer than the graph, as all of the allocator's do."""
        torch._C._cuda_clearCublasWorkspaces()  # of a recording that was not finished: 66 MiB on an H200, for two threads
        with suppress(RuntimeError):  # a pool that cannot be released stays, and training goes on
            for _ in range(self._unfinished):
                torch._C._cuda_releasePool(self._index, self.pool)
        self._unfinished = 0

    @property
    def reserved_bytes(self) -> int:
        """What the pool has taken from the device."""
        return self._pool_bytes()[1]

    def _note_peak(self) -> None:
        self.total_peak_bytes = max(self.total_peak_bytes, torch.cuda.max_memory_allocated(self.device))

    def _pool_bytes(self) -> tuple[int, int]:
        """Allocated and reserved bytes of the pool."""
        allocated = reserved = 0
        for segment in torch.cuda.memory_snapshot():
            if tuple(segment.get("segment_pool_id", ())) == tuple(self.pool):
                allocated += segment["active_size"]
                reserved += segment["total_size"]
        return allocated, reserved


def _end(graph: torch.cuda.CUDAGraph) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The CUDA Graph is empty")  # of a block that only passes tensors on, or that failed
        graph.capture_end()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Objects of CUDA that Python's collector ends in the middle would spoil a recording."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def recorder_for(device: torch.device) -> Recorder:
    return GraphRecorder(device) if device.type == "cuda" else OperatorRecorder(device)
