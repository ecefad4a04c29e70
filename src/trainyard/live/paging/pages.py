"""Training under a budget of device memory: two hooks of autograd and a watcher of ops around whatever runs inside the with-block.

A *pass* is a forward and its backward. It begins with the first tensor that autograd saves after a backward. The first warms the
device up; the first of a kind is watched: all that is saved goes out at once, ops and link are timed, memory is read. Then the
overlay policy of the simulated node chooses, and every later pass of that kind follows the choice. The first of them are metered
and timed once more, and the choice is made again from that. A pass that turns out another is noticed at the first saved tensor
that differs; from there all is sent, and the next one is watched. Handles know by themselves how to come back, so gradients are
right whatever a plan expected. Nothing of the model is changed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.errors import BadInput
from trainyard.live.paging.blocks import Handle, Kept
from trainyard.live.paging.measures import Link, clock_of, measure_link
from trainyard.live.paging.modes import Diverged, Following, Sending, Surroundings, Watching, Way
from trainyard.live.paging.operators import plain
from trainyard.live.paging.planning import Plan, Policy, problem_of
from trainyard.live.paging.stores import Store
from trainyard.units import show

if TYPE_CHECKING:
    from trainyard.live.paging.report import Report

METERED, TIMED = 1, (2, 3, 4)
"""Passes that follow a plan in which memory is read once more, and ops are timed under the load they bring."""
TIGHTENED = 4
"""So many times a plan whose pass took more memory than the budget is made again, for as much less as it said too little."""
KINDS = 64
"""Plans that are remembered; the one not used for longest goes first."""


class Pages:
    """What `trainyard.live.overlay` gives: see there."""

    def __init__(
        self, model: nn.Module, *, budget: int, open_store: Callable[[], Store], device: torch.device, smallest: int, policy: Policy
    ) -> None:
        self.model, self.budget, self.device, self.policy = model, budget, device, policy
        self.smallest = smallest
        self._open_store = open_store
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self._stack: ExitStack | None = None
        self.forward = False
        self._way: Way | None = None
        self._watch_next = False
        self._start: Any = None
        self._spans: deque[tuple[Any, Any]] = deque(maxlen=20)
        self.link: Link | None = None
        self.plan: Plan | None = None
        self.passes: Counter[str] = Counter()
        self.peak_bytes = 0

    # -- the with-block

    def __enter__(self) -> Pages:
        if self._stack is not None:
            raise BadInput("this overlay is already in use: make another one")
        with ExitStack() as stack:
            self._around = Surroundings(self.device, self._open_store(), self.smallest)
            stack.callback(self._around.store.close)
            self._clock = clock_of(self.device)
            if self.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self.device)
            stack.callback(self._close)
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack))
            stack.enter_context(_Ops(self))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._stack is not None
        self._stack.close()
        self._stack = None

    def _close(self) -> None:
        self._note_peak()
        self._way, self.forward = None, False

    # -- hooks

    def _pack(self, tensor: Tensor) -> Handle | Kept:
        if torch._C._current_autograd_node() is not None or not plain(tensor) or tensor.device != self.device:
            return Kept(tensor)
        with torch._C._DisableTorchDispatch():
            storage = tensor.untyped_storage()
            if storage._cdata in self._around.layers or not storage.nbytes():
                return Kept(tensor)
            if not self.forward:
                self._begin(tensor)
            assert self._way is not None
            try:
                return self._way.pack(tensor)
            except Diverged:
                self._divert(tensor)
            return self._way.pack(tensor)

    def _unpack(self, handle: Handle | Kept) -> Tensor:
        node = torch._C._current_autograd_node()
        with torch._C._DisableTorchDispatch():
            if node is None or self._way is None:
                return handle.tensor()
            if self.forward:
                self.forward = False
                self._way.turn()
                torch.autograd.Variable._execution_engine.queue_callback(self._end)
            return self._way.ask(handle, node)

    def op(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if self._way is None or not torch.is_grad_enabled() or torch._C._current_autograd_node() is not None:
            return function(*arguments, **keywords)
        return self._way.op(function, arguments, keywords)

    # -- passes

    def _begin(self, tensor: Tensor) -> None:
        self._conclude()
        self._around.layers = _layers(self.model)
        self._start = self._clock.moment()
        self.forward = True
        found = None if self._watch_next else self._fitting(tensor)
        self._watch_next = False
        if found is None:
            self._way = Watching(self._around)
        else:
            found.followed += 1
            self._way = Following(self._around, found, metered=found.followed == METERED, timed=found.followed in TIMED)

    def _end(self) -> None:
        if self._way is None or self.forward:
            return
        self._way.end()
        if isinstance(self._way, Following):
            self._spans.append((self._start, self._clock.moment()))

    def _conclude(self) -> None:
        """Learns from the pass that ended."""
        way, self._way = self._way, None
        if isinstance(way, Watching):
            self.passes["watched"] += 1
            self.peak_bytes = max(self.peak_bytes, way.meter.overall)
            if way.ended:
                self._learn(way)
        elif isinstance(way, Following):
            self.passes["followed"] += 1
            self._note_peak()
            self.peak_bytes = max(self.peak_bytes, way.meter.overall if way.meter else 0)
            if way.ended and way.saves == len(way.plan.trace.saves):
                self._check(way)
            else:
                self._watch_next = way.ended
        elif way is not None:
            self.passes["sent"] += 1
            self._watch_next = True
        self._around.held.peak = self._around.held.now

    def _learn(self, way: Watching) -> None:
        trace = way.recorder.finish()
        kind = trace.signature
        if self.passes["watched"] == 1 or not trace.saves:
            return  # the first pass of all makes handles, kernels and buffers
        if self.link is None:
            self.link = measure_link(self._around.store, self.device)
        durations = way.laps.durations(trace.positions)
        problem, managed, closures = problem_of(trace, durations, way.meter.peaks, self.link, self.smallest)
        plan = Plan(trace, problem, managed, closures, self.link, strict=self.device.type == "cpu")
        plan.choose(self.policy, self.budget)
        self.plan = plan
        self._plans.pop(kind, None)
        if len(self._plans) == KINDS:
            del self._plans[next(iter(self._plans))]
        self._plans[kind] = plan
        self._spans.clear()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def _note_peak(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self._peak())

    def _peak(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return self._around.held.peak

    def _check(self, way: Following) -> None:
        """Chosen anew after ops were timed once more, or where the pass took more memory than the budget."""
        self.plan = plan = way.plan
        peak = max(self._peak(), way.meter.overall if way.meter else 0)
        again = peak > self.budget and plan.tightened < TIGHTENED
        plan.tightened += again
        if way.meter is not None and way.meter.peaks:
            plan.remeter(way.meter.peaks)
            again = True
        if way.laps is not None:
            plan.timed.append(
                way.laps
            )  # read after the last: a device that was waited for starts idle, and ops seem to take longer
            if len(plan.timed) == len(TIMED):
                plan.retime()
                again = True
        if again:
            self._choose_again(plan, peak)

    def _choose_again(self, plan: Plan, peak: int) -> None:
        said, metered = plan.choice.peak_bytes, plan.followed == METERED
        try:
            plan.choose(self.policy, self.budget if metered else min(plan.budget, self.budget - max(peak - said, 0)))
        except BadInput as error:
            if peak > self.budget:
                took, given = show(peak, "B"), show(self.budget, "B")
                raise BadInput(
                    f"the budget of {given} cannot be kept: a pass took {took}, and nothing is known to take less: {error}"
                ) from None
        self._spans.clear()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def _fitting(self, tensor: Tensor, saves: int = 0) -> Plan | None:
        """The plan used last whose save of that number is this tensor."""
        for kind in reversed(self._plans):
            plan = self._plans[kind]
            if saves < len(plan.trace.saves):
                save = plan.trace.saves[saves]
                if save.size == tensor.size() and save.dtype == tensor.dtype:
                    self._plans[kind] = self._plans.pop(kind)
                    return plan
        return None

    def _divert(self, tensor: Tensor) -> None:
        """The pass is another than expected: one that is known begins here, or the rest is sent."""
        way = self._way
        assert isinstance(way, Following)
        found = self._fitting(tensor)
        if found is not None and found is not way.plan:
            self._way = Following(self._around, found)
        else:
            self._way = Sending(self._around)

    def report(self) -> Report:
        """The plan by layer, with what it predicts beside what was measured."""
        from trainyard.live.paging.report import report

        return report(self)

    @property
    def step_s(self) -> list[float]:
        """Measured times of the last passes that followed the present plan, first op to end of backward."""
        self._clock.finish()
        return [self._clock.seconds(start, end) for start, end in self._spans]


class _Ops(TorchDispatchMode):
    """Shows every op to the pages."""

    def __init__(self, pages: Pages) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pages = pages

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the guard costs as much as the rest

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.pages.forward:
            return self.pages.op(func, args, kwargs or {})
        return func(*args, **kwargs) if kwargs else func(*args)


def _layers(model: nn.Module) -> dict[int, str]:
    """Which layer a parameter's or buffer's storage belongs to."""
    found: dict[int, str] = {}
    for group in (model.named_parameters(), model.named_buffers()):
        for name, tensor in group:
            if plain(tensor):
                found.setdefault(tensor.untyped_storage()._cdata, name.rpartition(".")[0] or name)
    return found
