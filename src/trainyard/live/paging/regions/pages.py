"""The with-block of the overlay by regions: the first passes are surveyed, all later ones run the variants of the plan.

A pass begins when the model is called with gradients enabled. Shapes and types of the tensors it is called with are its
*signature*; each signature has its own plan, and one that is new is surveyed first. In a survey pass all regions are checkpointed,
except that one region of each kind at a time runs in the variant that is measured. It is an ordinary training step all the same:
its gradients are right.

Afterwards a region that is kept has its own call back, and the only Python that remains is one hook on the model's call. Where
compiling is allowed, a few passes more compare the plan with the model compiled as a whole (`whole`, `contest`).
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from trainyard.errors import BadInput
from trainyard.live.paging.measures import clock_of
from trainyard.live.paging.planning import Policy
from trainyard.live.paging.regions.contest import SHARES, Contest, Rival, Score
from trainyard.live.paging.regions.finding import Region
from trainyard.live.paging.regions.planning import RegionPlan, Trial, held_bytes, plan_of, to_time, typical
from trainyard.live.paging.regions.survey import Survey, What
from trainyard.live.paging.regions.variants import CHECKPOINT, RECOMPILATIONS, CompilerName, Entry, Variant, variants
from trainyard.live.paging.regions.whole import WholeModel, can_be_compiled
from trainyard.live.paging.signature import Signature, signature_of, tensors_of
from trainyard.mapping.overlay.search import enough
from trainyard.units import parse, show

if TYPE_CHECKING:
    from trainyard.live.paging.report import Report

TIMES = 2
"""Survey passes that time a variant; a compiled one has another before them."""
TIMED = 20
"""Passes of a plan whose time is measured."""
CHECKED = (3, 32)
"""The peak memory of a plan's first passes is compared with the budget, and then of one pass in so many."""
TIGHTENED = 4
"""How often a plan is chosen again because its passes took more memory than predicted."""
SIGNATURES = 64
"""Plans in the cache; the least recently used is dropped first."""


class _Progress:
    """The surveys of one signature so far."""

    def __init__(self, ways: tuple[Variant, ...]) -> None:
        # The very first pass makes handles, kernels and, at its end, the optimizer's state: its memory is measured once more.
        self.agenda: list[tuple[Variant, What]] = [(way, "memory") for way in (ways[0], *ways)]
        for number in range(TIMES + 1):  # in turns: a host that is busy for a while slows all variants down
            # The first timed pass of a compiled variant is the first in which most regions run it.
            self.agenda.extend((way, "time") for way in ways if number < TIMES or way.compiles)
        self.trials = {way.name: Trial(compiles=way.compiles) for way in ways}
        self.surveys: list[tuple[str, Survey]] = []
        """Their events are read after the last pass: a device that the host has waited for starts idle, and seems slower."""
        self.kinds: dict[str, tuple[Any, ...]] = {}
        self.plan: RegionPlan | None = None
        self.contest = Contest()


class RegionPages:
    """The context manager that `trainyard.live.overlay` returns where regions are moved as a whole: see there."""

    def __init__(
        self,
        model: nn.Module,
        regions: list[Region],
        *,
        budget: int,
        device: torch.device,
        policy: Policy,
        compiler: CompilerName | None = None,
        reserved: int = 0,
    ) -> None:
        self.model, self.regions, self.budget, self.device, self.policy = model, regions, budget, device, policy
        self.ways = variants(compiler)
        self.compiler = compiler if compiler is not None and can_be_compiled(model) else None
        self.reserved = reserved
        self.plan: RegionPlan | None = None
        self.passes: Counter[str] = Counter()
        self.peak_bytes = 0
        self._progress: dict[Signature, _Progress] = {}
        self._current: Signature | None = None
        self._survey: Survey | None = None
        self._stack: ExitStack | None = None
        self._clock = clock_of(device)
        self._spans: deque[tuple[Any, Any]] = deque(maxlen=TIMED)
        self._timing: RemovableHandle | None = None
        self._start: Any = None
        self._is_elsewhere = False
        self._whole: WholeModel | None = None
        self._rival: Rival = "blocks"
        self._ahead: Callable[[Signature], None] | None = None

    # -- the with-block

    def __enter__(self) -> RegionPages:
        if self._stack is not None:
            raise BadInput("this overlay is already in use: make another one")
        if any("overlaid" in region.module.__dict__ for region in self.regions):
            raise BadInput("this model is inside another overlay: end that one first")
        with ExitStack() as stack:
            self._entries = {region.name: Entry(region.module, region.kind) for region in self.regions}
            for region in self.regions:
                region.module.__dict__["overlaid"] = True
                stack.callback(region.module.__dict__.pop, "overlaid", None)
                stack.callback(self._entries[region.name].restore)
            hook = self.model.register_forward_pre_hook(self._gate, with_kwargs=True)
            stack.callback(hook.remove)
            if any(way.compiles for way in self.ways):
                stack.enter_context(torch._dynamo.config.patch(recompile_limit=RECOMPILATIONS))
            if self.compiler is not None:
                self._whole = self._whole or WholeModel(self.model, self.compiler)
                self._whole.open()
                stack.callback(self._whole.close)
            self._reset_peak()
            stack.callback(self._close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._stack is not None
        stack, self._stack = self._stack, None
        stack.close()

    def _close(self) -> None:
        self._note_peak()
        self._stop_timing()
        self._current = self._survey = None

    # -- passes

    def _gate(self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Before every call of the model."""
        if not torch.is_grad_enabled() or torch._C._current_autograd_node() is not None or torch.compiler.is_compiling():
            return
        if next(self.model.parameters()).device != self.device:
            self._leave_alone()
            return
        signature = signature_of(self.model, self.device, arguments, keywords)
        if self._ahead is not None:
            self._ahead(signature)
            return
        progress = self._progress.get(signature)
        if progress is None:
            self._drop_oldest()
            progress = self._progress[signature] = _Progress(self.ways)
        if progress.plan is not None:
            self._follow(signature, progress.plan, progress.contest)
        else:
            self._current = None
            self._prepare(progress)

    def _leave_alone(self) -> None:
        """The model was moved to another device: it runs plainly until it is back."""
        if not self._is_elsewhere:
            warnings.warn(f"the model has left {self.device}, for which this overlay was made: it runs without one", stacklevel=2)
        self._is_elsewhere, self._current, self._survey = True, None, None
        self._stop_timing()
        for entry in self._entries.values():
            entry.restore()
        if self._whole is not None:
            self._whole.rest()

    def _drop_oldest(self) -> None:
        if len(self._progress) == SIGNATURES:
            del self._progress[next(iter(self._progress))]

    def _prepare(self, progress: _Progress) -> None:
        """Installs the variants that the next survey pass measures."""
        self._note_peak()
        variant, what = progress.agenda[0]
        survey = self._survey = Survey(self.device, what, partial(self._surveyed, progress))
        chosen = self._to_survey(progress, variant, what)
        for region in self.regions:
            entry = self._entries[region.name]
            call = entry.variant(variant if region.name in chosen else CHECKPOINT)
            entry.replace(survey.around(region, call))
        self.passes["surveyed"] += 1

    def _to_survey(self, progress: _Progress, variant: Variant, what: What) -> frozenset[str]:
        """The regions that run in a variant while it is measured: as many as the budget allows, when their size is known."""
        if variant is CHECKPOINT:
            return frozenset(self._entries)
        base, trial = progress.trials[CHECKPOINT.name].memory, progress.trials[variant.name]
        if what == "memory" or base is None:
            trial.sampled = frozenset(typical(progress.kinds).values())
            return trial.sampled
        if not trial.regions:
            held = held_bytes(base, trial, progress.kinds)
            trial.regions = to_time(held, progress.kinds, self.budget - base.peak_bytes)
        return trial.regions

    def _surveyed(self, progress: _Progress, survey: Survey) -> None:
        """Backward of a survey pass is over."""
        if survey is not self._survey:
            return
        self._survey = None
        variant, what = progress.agenda.pop(0)
        self.peak_bytes = max(self.peak_bytes, survey.found.peak_bytes)
        is_first = not progress.kinds
        kinds = {region.name: region.kind for region in self.regions}
        for call, name in enumerate(survey.found.regions):
            if call in survey.found.order:
                progress.kinds.setdefault(name, (*kinds[name], survey.found.inputs[call]))
        if is_first and len(self._progress) == 1:
            self._refuse_if_too_small(survey.found.peak_bytes)
        if what == "memory":
            trial = progress.trials[variant.name]
            if trial.memory is None or len(survey.found.regions) >= len(trial.memory.regions):
                trial.memory = survey.found
        else:
            progress.surveys.append((variant.name, survey))
        if not progress.agenda:
            self._learn(progress)

    def _refuse_if_too_small(self, least: int) -> None:
        least += self.reserved
        if least > self.budget:
            budget = show(self.budget, "B", digits=4)
            with_state = f", {show(self.reserved, 'B')} of optimizer state included" if self.reserved else ""
            raise BadInput(
                f"nothing fits {budget}: with every block checkpointed a pass takes {enough(least)}{with_state}: "
                "give a larger budget or a smaller batch"
            )

    def _learn(self, progress: _Progress) -> None:
        for name, survey in progress.surveys:
            progress.trials[name].times.append(survey.measures())
        progress.plan = plan_of(progress.trials, progress.kinds)
        if any(way.compiles for way in self.ways):
            eager = {way.name: progress.trials[way.name] for way in self.ways if not way.compiles}
            progress.plan.eager = plan_of(eager, progress.kinds)
        self._decide(progress.contest, progress.plan)
        progress.surveys.clear()
        progress.trials.clear()

    def _choose(self, plan: RegionPlan, budget: int) -> None:
        """The policy's choice; where none fits, the least memory: training has begun and goes on."""
        try:
            plan.choose(self.policy, budget)
        except BadInput:
            plan.choose_least()
            plan.tightened = TIGHTENED

    def _warn_if_above_budget(self, plan: RegionPlan) -> None:
        """Once for each plan and budget, when it is the plan that stays."""
        if plan.choice.peak_bytes > self.budget != plan.warned:
            plan.warned = self.budget
            warnings.warn(
                f"the budget of {show(self.budget, 'B', digits=4)} is not kept: a pass takes {enough(plan.choice.peak_bytes)} "
                "with every block in the variant of the least memory, and so it runs",
                stacklevel=2,
            )

    def rebudget(self, budget: str | float) -> None:
        """Chooses all plans again for another budget, from the next pass on; what was measured stays."""
        self.budget = int(parse(budget, "B", "budget"))
        for progress in self._progress.values():
            if progress.plan is not None:
                self._decide(progress.contest, progress.plan)
        self._current = None

    def precompile(self, step: Callable[[], object]) -> None:
        """Compiles what passes like `step`, a forward and a backward, will need, and measures nothing.

        Called inside the with-block. `step` runs once with all blocks in each compiled variant, and once with the model compiled
        for each share of its activations, which may take as much memory as plain training.
        """
        if self._stack is None:
            raise BadInput("precompile is called inside the with-block of its overlay")
        self._current = self._survey = None
        try:
            for way in (way for way in self.ways if way.compiles):
                for entry in self._entries.values():
                    entry.replace(entry.variant(way))
                self._ahead = lambda signature: None
                step()
            for entry in self._entries.values():
                entry.restore()
            for share in SHARES if self._whole is not None else ():
                self._ahead = partial(self._precompile_whole, share)
                step()
        finally:
            self._ahead = None
            for entry in self._entries.values():
                entry.restore()
            if self._whole is not None:
                self._whole.rest()

    def _precompile_whole(self, share: float, signature: Signature) -> None:
        assert self._whole is not None
        self._whole.install(share, signature, sys.maxsize, lambda needs: None)

    def whole_model(self, share: float) -> Callable[..., Any]:
        """The model's forward compiled as a whole with this share of its activations saved, after `precompile`."""
        if self._whole is None or share not in self._whole.compiled:
            raise BadInput(f"the model was not compiled as a whole with {share} of its activations saved: call precompile first")
        return self._whole.compiled[share]

    def remeasure(self) -> None:
        """Surveys all blocks again from the next pass on, as after something else has used the device; compiled code stays."""
        self._progress.clear()
        self._current = self._survey = None

    @property
    def whole_share(self) -> float | None:
        """The share of activations that the model saves where it runs compiled as a whole; None: by blocks."""
        return None if isinstance(self._rival, str) else self._rival

    @property
    def rivals(self) -> dict[str, Score]:
        """Time and peak memory of the ways that the last plan was compared with: by blocks, without a compiler, as a whole."""
        if self._current is None:
            return {}
        scores = self._progress[self._current].contest.scores
        return {rival if isinstance(rival, str) else f"whole {rival}": score for rival, score in scores.items()}

    @property
    def is_settled(self) -> bool:
        """Whether the last pass followed a plan with which nothing is compared any more, and whose peak memory was looked at."""
        if self._current is None:
            return False
        progress = self._progress[self._current]
        was_checked = progress.plan is not None and progress.plan.followed >= CHECKED[0]
        return not progress.contest.queue and (was_checked or not isinstance(self._rival, str))

    def _decide(self, contest: Contest, plan: RegionPlan) -> None:
        """Plans for the budget, and which of them are to be compared with what."""
        for one in (plan, plan.eager):
            if one is not None:
                one.tightened = one.followed = 0
                self._choose(one, self.budget)
        compiled = {way.name for way in self.ways if way.compiles}
        if compiled & set(plan.variants.values()) or self.compiler is not None:
            contest.begin(self.budget, with_eager=bool(compiled & set(plan.variants.values())))
        if self.compiler is None:
            contest.queue = [rival for rival in contest.queue if isinstance(rival, str)]
        if not contest.queue:
            self._warn_if_above_budget(plan)

    def _follow(self, signature: Signature, plan: RegionPlan, contest: Contest) -> None:
        if signature != self._current:
            self._install(signature, plan, contest)
        elif contest.queue and plan.followed >= contest.passes:
            contest.score(min(self.step_s[1:], default=inf), self._note_peak())
            plan.followed = 0
            self._install(signature, plan, contest)
        elif isinstance(self._rival, str) and (plan.followed < CHECKED[0] or plan.followed % CHECKED[1] == 0):
            self._check(signature, plan, contest)
        plan.followed += 1
        self.passes["followed"] += 1
        if self._timing is not None:
            self._start = self._clock.moment()

    def _install(self, signature: Signature, plan: RegionPlan, contest: Contest) -> None:
        """The plan by blocks, or the model compiled as a whole where that is measured or has won."""
        self._note_peak()
        rival = contest.rival if contest.queue else contest.winner
        chosen = plan.eager if rival == "eager" and plan.eager is not None else plan
        if isinstance(rival, str) or self._whole is None:
            self._install_blocks(chosen)
            if not contest.queue:
                self._warn_if_above_budget(chosen)
        else:
            for entry in self._entries.values():
                entry.restore()
            room = self._room(plan.floor_bytes)
            self._whole.install(rival, signature, room, partial(self._refused, signature, plan, contest, self.budget - room))
        self._rival = rival
        self._current, self.plan = signature, chosen
        self._reset_peak()
        self._spans.clear()
        self._stop_timing()
        self._timing = self.model.register_forward_hook(self._after_forward)

    def _install_blocks(self, plan: RegionPlan) -> None:
        ways = {way.name: way for way in self.ways}
        if self._whole is not None:
            self._whole.rest()
        for name, entry in self._entries.items():
            variant = ways[plan.variants[name]] if name in plan.variants else CHECKPOINT
            entry.replace(entry.variant(variant))

    def _room(self, floor_bytes: int) -> int:
        """What a forward may save at most: its end must fit the budget, and what backward adds (`floor_bytes`) the device."""
        if self.device.type != "cuda":
            return self.budget
        free_bytes, _ = torch.cuda.mem_get_info(self.device)
        device_bytes = free_bytes + torch.cuda.memory_reserved(self.device)
        return min(self.budget - torch.cuda.memory_allocated(self.device), device_bytes - floor_bytes)

    def _refused(self, signature: Signature, plan: RegionPlan, contest: Contest, other_bytes: int, saved_bytes: float) -> None:
        """The compiler, or the room there is, does not allow the whole model: the pass goes on with the plan by blocks."""
        if contest.queue and not isinstance(contest.rival, str):
            contest.refuse(other_bytes + saved_bytes)
        else:
            contest.scores.pop(self._rival, None)
        plan.followed = 0
        self._install_blocks(plan)
        self._current = None  # the next pass installs what is to come

    def _after_forward(self, module: nn.Module, arguments: tuple[Any, ...], result: Any) -> None:
        """Times a pass of the plan, from the model's call to the end of backward, until `TIMED` of them are known."""
        output = next((tensor for tensor in tensors_of(result) if tensor.requires_grad), None)
        if output is None or torch._C._current_autograd_node() is not None:
            return
        start, is_first = self._start, [True]

        def backward_done() -> None:
            self._spans.append((start, self._clock.moment()))
            if len(self._spans) == TIMED:
                self._stop_timing()

        def backward_begins(gradient: Tensor) -> None:
            if is_first and is_first.pop():
                torch.autograd.Variable._execution_engine.queue_callback(backward_done)

        output.register_hook(backward_begins)

    def _stop_timing(self) -> None:
        if self._timing is not None:
            self._timing.remove()
            self._timing = None

    def _check(self, signature: Signature, plan: RegionPlan, contest: Contest) -> None:
        """Chooses again, for a smaller budget, where the last passes took more memory than they were given."""
        peak, chosen = self._note_peak(), self.plan
        if peak > self.budget and chosen is not None and chosen.tightened < TIGHTENED:
            chosen.tightened += 1
            plan.followed = 0
            self._choose(chosen, min(chosen.budget, self.budget - (peak - chosen.choice.peak_bytes)))
            self._install(signature, plan, contest)

    def _note_peak(self) -> int:
        """The peak of memory since the plan was installed; on the CPU, the predicted one."""
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device)
        else:
            peak = self.plan.choice.peak_bytes if self.plan is not None else 0
        self.peak_bytes = max(self.peak_bytes, peak)
        return peak

    def _reset_peak(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def report(self) -> Report:
        """The plan by region, with predicted and measured time and memory."""
        from trainyard.live.paging.report import report

        return report(self)

    @property
    def step_s(self) -> list[float]:
        """Measured times of the plan's first passes, from the model's call to the end of backward."""
        self._clock.finish()
        return [self._clock.seconds(start, end) for start, end in self._spans]


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of state that an optimizer of torch has not made yet, by the tensors that it holds for each parameter."""
    missing = 0
    for group in optimizer.param_groups:
        tensors = _state_tensors(optimizer, group)
        missing += sum(
            tensors * parameter.numel() * parameter.element_size()
            for parameter in group["params"]
            if parameter.requires_grad and isinstance(parameter, Tensor) and not optimizer.state.get(parameter)
        )
    return missing


def _state_tensors(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> int:
    name = type(optimizer).__name__
    if name in ("SGD", "RMSprop"):
        return (1 if group.get("momentum") else 0) + (name == "RMSprop") + bool(group.get("centered"))
    return {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adagrad": 1, "Adadelta": 2}.get(name, 0) + bool(
        group.get("amsgrad")
    )
