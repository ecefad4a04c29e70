"""Layer paths: which module is running, and which one made the autograd node that is running backward.

Every autograd node has a sequence number, taken from a counter when its forward op ran. Noting the counter whenever the running
module changes is enough to find the layer of any node later.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd import _get_sequence_nr  # type: ignore[attr-defined]  # public in the profiler's docs, missing from the stubs
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


@dataclass(slots=True, eq=False)
class Frame:
    """One call of one layer. The call index of a recomputed one is known at the end."""

    path: str
    call: int = 0


@dataclass(slots=True)
class _Start:
    counter: int
    grad: bool


class Frames:
    """Follows the modules of a model while it runs forward, recomputes and runs backward."""

    def __init__(self, names: Mapping[nn.Module, str]) -> None:
        self._names = {id(module): path for module, path in names.items()}
        inner = {id(child) for module in names for child in module.children()}
        self._roots = [module for module in names if id(module) not in inner]
        self._stack: list[Frame] = []
        self._starts: dict[str, list[_Start]] = {}
        self._counters: list[int] = []
        self._logged: list[Frame] = []
        self._depths: dict[int, int] = {}
        self._recomputed: dict[tuple[int, int, bool], list[Frame]] = {}
        self.entered = False
        self.loss = Frame("loss")
        self.root = Frame("")
        self.adapt: Any = None  # turns the arguments of a call from outside into what the capture runs on
        self._called: nn.Module | None = None  # from outside
        self._log()

    @property
    def inside(self) -> bool:
        """Whether the model runs; a criterion is a module, too, but not the model's."""
        return bool(self._stack) and self._stack[-1] is not self.loss and self._stack[-1] is not self.root

    @property
    def current(self) -> Frame:
        """The running layer; outside of any, the loss once the model has run."""
        if self._stack:
            return self._stack[-1]
        return self.loss if self.entered else self.root

    def of_node(self, sequence: int) -> Frame:
        """The layer whose forward made the autograd node with this number."""
        return self._logged[bisect_right(self._counters, sequence) - 1]

    def recomputing(self, graph: int) -> bool:
        """Inside backward, modules run only because a checkpoint recomputes them."""
        return len(self._stack) > self._depths.setdefault(graph, len(self._stack))

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = register_module_forward_pre_hook(self._enter)  # type: ignore[arg-type]  # may return arguments
        after = register_module_forward_hook(self._leave, always_call=True)
        named = [root.register_forward_pre_hook(self._enter_by_name, with_kwargs=True) for root in self._roots]
        try:
            yield
        finally:
            for hook in (before, after, *named):
                hook.remove()
            self.resolve()

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        path = self._names.get(id(module))
        graph = torch._C._current_graph_task_id()
        outermost = not self.inside
        if graph != -1:
            self._depths.setdefault(graph, len(self._stack))
        if path is None:
            frame = self.current
        elif graph != -1:
            frame = Frame(path)
            self._recomputed.setdefault(self._trigger(graph), []).append(frame)
        else:
            starts = self._starts.setdefault(path, [])
            frame = Frame(path, len(starts))
            starts.append(_Start(_get_sequence_nr(), torch.is_grad_enabled()))
            self.entered = True
        self._stack.append(frame)
        self._log()
        self._called = module if outermost and path is not None else None
        adapted: tuple[Any, ...] | None = self.adapt(args) if self._called is not None and self.adapt else None
        return adapted

    def _enter_by_name(
        self, module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """What `_enter` does for arguments by name, which hooks of all modules do not get: `model(**batch)`."""
        if self._called is not module or not keywords or not self.adapt:
            return None
        return args, self.adapt((keywords,))[0]

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self._stack:
            self._stack.pop()
        self._log()

    def _log(self) -> None:
        counter = _get_sequence_nr()
        if self._counters and self._counters[-1] == counter:
            self._logged[-1] = self.current
        else:
            self._counters.append(counter)
            self._logged.append(self.current)

    @staticmethod
    def _trigger(graph: int) -> tuple[int, int, bool]:
        """The autograd node that started the recomputation; a reentrant checkpoint is one node for its whole segment."""
        node: Any = torch._C._current_autograd_node()
        if node is None:
            return graph, 0, False
        return graph, int(node._sequence_nr()), node.name().startswith("CheckpointFunction")

    def resolve(self) -> None:
        """Sets the call numbers of recomputed layers: a segment recomputes the last calls before the node that started it."""
        for (_, sequence, reentrant), frames in self._recomputed.items():
            paths: dict[str, list[Frame]] = {}
            for frame in frames:
                paths.setdefault(frame.path, []).append(frame)
            for path, recomputed in paths.items():
                starts = self._starts.get(path, [])
                before = sum(s.counter <= sequence or (reentrant and s.counter == sequence + 1 and not s.grad) for s in starts)
                for index, frame in enumerate(recomputed):
                    frame.call = max(0, min(before, len(starts)) - len(recomputed) + index)
