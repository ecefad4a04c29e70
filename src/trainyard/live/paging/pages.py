"""Training within a budget of device memory: autograd's two saved-tensor hooks and a dispatch mode around the with-block.

A *pass* is a forward and its backward. It begins with the first tensor that autograd saves after a backward. The first pass warms
the device up; the first of a kind is recorded: every saved tensor is sent out at once, ops and link are timed, memory is measured.
Then the overlay policy of the simulated node chooses a plan, and every later pass of that kind follows it. The first of these are
measured once more, and the plan is chosen again from that. A pass that differs from its plan is noticed at the first saved tensor
that differs; from there on everything is sent, and the next pass is recorded. A handle can always restore its tensor, so gradients
are right whatever the plan expected. Nothing of the model is changed.

Where a plan keeps everything, hooks and mode are taken off after its measured passes, so that later ones are plain training; a hook
on the model's call puts them back for a call with other shapes.
"""

from __future__ import annotations

import warnings
from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from trainyard.errors import BadInput
from trainyard.live.paging.blocks import Handle, SavedTensor
from trainyard.live.paging.compiled_code import uncompiled
from trainyard.live.paging.measures import Link, clock_of, measure_link
from trainyard.live.paging.modes import Diverged, Following, PassMode, Sending, SharedState, Watching
from trainyard.live.paging.operators import is_movable
from trainyard.live.paging.planning import Plan, Policy, problem_of
from trainyard.live.paging.signature import Signature, signature_of
from trainyard.live.paging.stores import Store
from trainyard.mapping.overlay.search import ladder
from trainyard.units import show

if TYPE_CHECKING:
    from trainyard.live.paging.report import Report

METERED, TIMED = 1, (2, 3, 4)
"""Numbers of the passes, among those that follow a plan, in which memory is measured and in which ops are timed."""
TIGHTENED = 4
"""How often a plan is chosen again for a smaller budget because its pass took more memory than predicted."""
SOME_LINK = Link(out_bytes_per_s=1e9, in_bytes_per_s=1e9, latency_s=0.0)
"""The least memory does not depend on the link, which is measured after the second pass."""
KINDS = 64
"""Plans in the cache; the least recently used is dropped first."""


class Pages:
    """The context manager that `trainyard.live.overlay` returns: see there."""

    def __init__(
        self, model: nn.Module, *, budget: int, open_store: Callable[[], Store], device: torch.device, smallest: int, policy: Policy
    ) -> None:
        self.model, self.budget, self.device, self.policy = model, budget, device, policy
        self.smallest = smallest
        self._open_store = open_store
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self._stack: ExitStack | None = None
        self.forward = False
        self._mode: PassMode | None = None
        self._hooks: ExitStack | None = None
        self._signature: Signature | None = None
        self._plain: set[Signature] = set()
        """Signatures of passes in which everything is kept."""
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
            self._shared = SharedState(self.device, self._open_store(), self.smallest)
            stack.callback(self._shared.store.close)
            self._clock = clock_of(self.device)
            if self.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self.device)
            stack.callback(self._close)
            self._set_compiled_code_aside(stack)
            stack.callback(self._take_off)
            self._put_on()
            stack.callback(self.model.register_forward_pre_hook(self._gate, with_kwargs=True).remove)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._stack is not None
        self._stack.close()
        self._stack = None

    def _set_compiled_code_aside(self, stack: ExitStack) -> None:
        """Modules that were compiled in place run their own code: torch does not compile below a mode that sees single ops."""
        compiled = [module for module in self.model.modules() if "_compiled_call_impl" in module.__dict__]
        for module in compiled:
            code = module.__dict__.pop("_compiled_call_impl")
            stack.callback(module.__dict__.__setitem__, "_compiled_call_impl", code)
        if compiled:
            warnings.warn(
                f"modules that were compiled in place ({len(compiled)}) run uncompiled inside an overlay by tensors: "
                "write unit='blocks' to keep them compiled",
                stacklevel=4,
            )

    def _close(self) -> None:
        self._note_peak()
        self._mode, self.forward = None, False

    # -- hooks

    def _put_on(self) -> None:
        with ExitStack() as hooks:
            hooks.enter_context(uncompiled())
            hooks.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack))
            self._ops = hooks.enter_context(_Ops(self))
            self._hooks = hooks.pop_all()

    def _take_off(self) -> None:
        if self._hooks is not None:
            self._hooks.close()
            self._hooks = None

    def _are_uppermost(self) -> bool:
        """Whether nobody has put on hooks or a mode after ours."""
        hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
        return hooks is not None and hooks[0] == self._pack and _get_current_dispatch_mode() is self._ops

    def _gate(self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Before every call of the model."""
        if not torch.is_grad_enabled() or torch._C._current_autograd_node() is not None or torch.compiler.is_compiling():
            return
        self._signature = signature_of(self.model, self.device, arguments, keywords)
        if self._hooks is not None:  # taken off here and not at the end of backward, which may run in another thread
            if self._signature in self._plain and self._are_uppermost():
                self._conclude()
                self._take_off()
        elif self._signature not in self._plain:
            hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
            if hooks is None and _get_current_dispatch_mode() is None:
                self._put_on()

    def _pack(self, tensor: Tensor) -> Handle | SavedTensor:
        if torch._C._current_autograd_node() is not None or not is_movable(tensor) or tensor.device != self.device:
            return SavedTensor(tensor)
        with torch._C._DisableTorchDispatch():
            storage = tensor.untyped_storage()
            if storage._cdata in self._shared.layers or not storage.nbytes():
                return SavedTensor(tensor)
            if not self.forward:
                self._begin(tensor)
            assert self._mode is not None
            try:
                return self._mode.pack(tensor)
            except Diverged:
                self._divert(tensor)
            return self._mode.pack(tensor)

    def _unpack(self, handle: Handle | SavedTensor) -> Tensor:
        node = torch._C._current_autograd_node()
        with torch._C._DisableTorchDispatch():
            if node is None or self._mode is None:
                return handle.tensor()
            if self.forward:
                self.forward = False
                self._mode.forward_done()
                torch.autograd.Variable._execution_engine.queue_callback(self._end)
            return self._mode.unpack(handle, node)

    def op(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if self._mode is None or not torch.is_grad_enabled() or torch._C._current_autograd_node() is not None:
            return function(*arguments, **keywords)
        return self._mode.op(function, arguments, keywords)

    # -- passes

    def _begin(self, tensor: Tensor) -> None:
        self._conclude()
        self._shared.layers = _layers(self.model)
        self._start = self._clock.moment()
        self.forward = True
        plan = None if self._watch_next else self._fitting(tensor)
        self._watch_next = False
        if plan is None:
            self._mode = Watching(self._shared)
        else:
            plan.followed += 1
            self._mode = Following(self._shared, plan, metered=plan.followed == METERED, timed=plan.followed in TIMED)

    def _end(self) -> None:
        if self._mode is None or self.forward:
            return
        self._mode.backward_done()
        if isinstance(self._mode, Watching) and not self.passes["watched"]:
            self._refuse_if_too_small(self._mode)
        if isinstance(self._mode, Following):
            self._spans.append((self._start, self._clock.moment()))
            plan = self._mode.plan
            is_known = plan.followed > max(TIMED) and self._mode.saves == len(plan.trace.saves) and not plan.agenda
            if is_known and self._signature is not None and not plan.steps:
                self._plain.add(self._signature)

    def _refuse_if_too_small(self, mode: Watching) -> None:
        """At the end of the first backward, before the optimizer's first step, a budget below the least possible is refused.

        Not where cuDNN tries its algorithms: their memory is measured in the first pass alone.
        """
        trace = mode.recorder.trace
        if trace.saves and not torch.backends.cudnn.benchmark:
            durations = mode.laps.durations(trace.positions)
            problem, _, _ = problem_of(trace, durations, mode.meter.peaks, SOME_LINK, self.smallest)
            if ladder(problem).least > self.budget:
                try:
                    ladder(problem).climb(self.budget)
                except BadInput as error:
                    raise BadInput(f"{error}: give a larger budget or a smaller batch") from None

    def _conclude(self) -> None:
        """Uses the measurements of the pass that ended."""
        mode, self._mode = self._mode, None
        if isinstance(mode, Watching):
            self.passes["watched"] += 1
            self.peak_bytes = max(self.peak_bytes, mode.meter.overall)
            if mode.ended:
                self._learn(mode)
        elif isinstance(mode, Following):
            self.passes["followed"] += 1
            self._note_peak()
            self.peak_bytes = max(self.peak_bytes, mode.meter.overall if mode.meter else 0)
            if mode.ended and mode.saves == len(mode.plan.trace.saves):
                self._check(mode)
            else:
                self._watch_next = mode.ended
        elif mode is not None:
            self.passes["sent"] += 1
            self._watch_next = True
        self._shared.resident.peak = self._shared.resident.now

    def _learn(self, mode: Watching) -> None:
        trace = mode.recorder.finish()
        kind = trace.signature
        if self.passes["watched"] == 1 or not trace.saves:
            return  # the first pass of all makes handles, kernels and buffers
        if self.link is None:
            self.link = measure_link(self._shared.store, self.device)
        durations = mode.laps.durations(trace.positions)
        problem, managed, closures = problem_of(trace, durations, mode.meter.peaks, self.link, self.smallest)
        plan = Plan(trace, problem, managed, closures, self.link, strict=self.device.type == "cpu")
        try:
            plan.choose(self.policy, self.budget)
        except BadInput as error:  # the first pass fitted: training has begun and goes on
            least = ladder(problem).least
            if least <= self.budget:
                raise
            warnings.warn(f"the budget of {show(self.budget, 'B')} is not kept: {error}; the least memory is used", stacklevel=2)
            plan.choose(self.policy, least)
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
        return self._shared.resident.peak

    def _check(self, mode: Following) -> None:
        """Chooses the plan again after new measurements, or where the pass took more memory than the budget."""
        self.plan = plan = mode.plan
        peak = max(self._peak(), mode.meter.overall if mode.meter else 0)
        choose_again = peak > self.budget and plan.tightened < TIGHTENED
        plan.tightened += choose_again
        if mode.meter is not None and mode.meter.peaks:
            plan.remeter(mode.meter.peaks)
            choose_again = True
        if mode.laps is not None:
            # Read after the last pass: a device that the host has waited for starts idle, and its ops seem to take longer.
            plan.timed.append(mode.laps)
            if len(plan.timed) == len(TIMED):
                plan.retime()
                choose_again = True
        if choose_again:
            self._choose_again(plan, peak)

    def _choose_again(self, plan: Plan, peak: int) -> None:
        predicted, metered = plan.choice.peak_bytes, plan.followed == METERED
        try:
            plan.choose(self.policy, self.budget if metered else min(plan.budget, self.budget - max(peak - predicted, 0)))
        except BadInput as error:
            if peak > self.budget:  # training has begun and goes on
                took, allowed = show(peak, "B"), show(self.budget, "B")
                warnings.warn(
                    f"the budget of {allowed} is not kept: a pass took {took}, and nothing is known to take less: {error}",
                    stacklevel=2,
                )
                plan.tightened = TIGHTENED
        self._spans.clear()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def _fitting(self, tensor: Tensor, saves: int = 0) -> Plan | None:
        """The most recently used plan whose saved tensor number `saves` has this shape and type."""
        for kind in reversed(self._plans):
            plan = self._plans[kind]
            if saves < len(plan.trace.saves):
                save = plan.trace.saves[saves]
                if save.size == tensor.size() and save.dtype == tensor.dtype:
                    self._plans[kind] = self._plans.pop(kind)
                    return plan
        return None

    def _divert(self, tensor: Tensor) -> None:
        """The pass differs from its plan: another plan that fits is followed, or the rest is sent."""
        mode = self._mode
        assert isinstance(mode, Following)
        plan = self._fitting(tensor)
        if plan is not None and plan is not mode.plan:
            self._mode = Following(self._shared, plan)
        else:
            self._mode = Sending(self._shared)

    @property
    def whole_share(self) -> float | None:
        """None: single tensors are moved, and the model is not compiled."""
        return None

    @property
    def replayed_calls(self) -> int:
        """0: nothing is recorded where saved tensors pass hooks."""
        return 0

    @property
    def replay_obstacles(self) -> dict[str, str]:
        return {}

    def report(self) -> Report:
        """The plan by layer, with predicted and measured time and memory."""
        from trainyard.live.paging.report import report

        return report(self)

    @property
    def step_s(self) -> list[float]:
        """Measured times of the last passes that followed the present plan, first op to end of backward."""
        self._clock.finish()
        return [self._clock.seconds(start, end) for start, end in self._spans]


class _Ops(TorchDispatchMode):
    """Passes every op of forward to `Pages.op`."""

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
    layers: dict[int, str] = {}
    for group in (model.named_parameters(), model.named_buffers()):
        for name, tensor in group:
            if is_movable(tensor):
                layers.setdefault(tensor.untyped_storage()._cdata, name.rpartition(".")[0] or name)
    return layers
