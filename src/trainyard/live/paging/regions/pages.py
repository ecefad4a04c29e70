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
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trainyard.errors import BadInput
from trainyard.live.paging.planning import Policy
from trainyard.live.paging.regions.call_state import note_given_caches
from trainyard.live.paging.regions.contest import PLANS, REPLAYED, SHARES, WHOLE_REPLAYED, Rival, Score
from trainyard.live.paging.regions.finding import Region
from trainyard.live.paging.regions.pass_times import PassTimes
from trainyard.live.paging.regions.planning import RegionPlan
from trainyard.live.paging.regions.progress import REPLAY_ROOM, Progress, Task
from trainyard.live.paging.regions.replay.session import Replays
from trainyard.live.paging.regions.survey import Survey
from trainyard.live.paging.regions.variants import CHECKPOINT, RECOMPILATIONS, CompilerName, Entry, variants
from trainyard.live.paging.regions.whole import WholeModel, is_in_one_process
from trainyard.live.paging.signature import Signature, signature_of
from trainyard.mapping.overlay.search import enough
from trainyard.units import parse, show

if TYPE_CHECKING:
    from trainyard.live.paging.report import Report

CHECKED = (3, 32)
"""The peak memory of a plan's first passes is compared with the budget, and then of one pass in so many."""
TIGHTENED = 4
"""How often a plan is chosen again because its passes took more memory than predicted."""
SIGNATURES = 64
"""Plans in the cache; the least recently used is dropped first."""
PATIENCE = 32
"""Passes in a row with one signature after which calls are recorded anew, where passes of another one came between."""


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
        replay: bool = False,
        reserved: int = 0,
    ) -> None:
        self.model, self.regions, self.budget, self.device, self.policy = model, regions, budget, device, policy
        self.ways = variants(compiler)
        self.compiler = compiler if compiler is not None and is_in_one_process(model) else None
        self.reserved = reserved
        self.plan: RegionPlan | None = None
        self.passes: Counter[str] = Counter()
        self.peak_bytes = 0
        self._progress: dict[Signature, Progress] = {}
        self._current: Signature | None = None
        self._survey: Survey | None = None
        self._stack: ExitStack | None = None
        self._times = PassTimes(model, device)
        self._replays = Replays(model, device, is_allowed=replay and is_in_one_process(model))
        self._recorded_for: tuple[Progress, str] | None = None
        """Whose calls a survey of replays has recorded: in which variant."""
        self._patience = 0
        """Passes until calls are recorded; 0: they are, or are not to be."""
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
        self._times.stop()
        self._replays.close()
        self._current = self._survey = None

    # -- passes

    def _gate(self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Before every call of the model."""
        if not torch.is_grad_enabled() or torch._C._current_autograd_node() is not None or torch.compiler.is_compiling():
            return
        if next(self.model.parameters()).device != self.device:
            self._leave_alone()
            return
        note_given_caches(arguments, keywords)
        signature = signature_of(self.model, self.device, arguments, keywords)
        if self._ahead is not None:
            self._ahead(signature)
            return
        progress = self._progress.get(signature)
        if progress is None:
            self._drop_oldest()
            progress = self._progress[signature] = Progress(self.ways, with_replays=self._replays.is_allowed)
        if progress.plan is not None:
            self._follow(signature, progress, progress.plan)
        else:
            self._current = None
            self._prepare(progress)
        self._replays.begin()
        self._times.begin()

    def _leave_alone(self) -> None:
        """The model was moved to another device: it runs plainly until it is back."""
        if not self._is_elsewhere:
            warnings.warn(f"the model has left {self.device}, for which this overlay was made: it runs without one", stacklevel=2)
        self._is_elsewhere, self._current, self._survey = True, None, None
        self._times.stop()
        self._replays.close()
        for entry in self._entries.values():
            entry.restore()
        if self._whole is not None:
            self._whole.rest()

    def _drop_oldest(self) -> None:
        if len(self._progress) == SIGNATURES:
            del self._progress[next(iter(self._progress))]

    def _prepare(self, progress: Progress) -> None:
        """Installs the variants that the next survey pass measures."""
        self._note_peak()
        self._times.stop()
        variant, task = progress.agenda[0]
        survey = self._survey = Survey(
            self.device, "memory" if task in ("watch", "memory") else "time", partial(self._surveyed, progress, variant.name)
        )
        chosen = progress.to_survey(variant, task, self.budget)
        if task != "replay" or self._recorded_for != (progress, variant.name):
            self._replays.close()
            self._reset_peak()
            self._recorded_for = progress, variant.name
        passes = None
        if task == "replay":
            passes = self._replays.passes or self._replays.open(progress)
        self._watch_whole(progress, task)
        for region in self.regions:
            entry, way = self._entries[region.name], variant if region.name in chosen else CHECKPOINT
            call = entry.variant(way)
            if task == "watch":
                call = progress.fingerprints.around(region, call)
            if passes is not None:
                call = passes.around(region, way.name, call, compiles=way.compiles)
            entry.replace(survey.around(region, call))
        self.passes["surveyed"] += 1

    def _watch_whole(self, progress: Progress, task: Task) -> None:
        """Also what the model computes is watched, where it may be replayed as a whole; otherwise it runs its own code."""
        progress.fingerprints.begin()
        if self._whole is not None:
            self._whole.rest()
            if task == "watch":
                self._whole.active = progress.fingerprints.around(self._whole.region, self._whole.active)

    def _surveyed(self, progress: Progress, variant: str, survey: Survey) -> None:
        """Backward of a survey pass is over."""
        if survey is not self._survey:
            return
        self._survey = None
        self.peak_bytes = max(self.peak_bytes, survey.found.peak_bytes)
        is_first, is_replay = not progress.kinds, progress.agenda[0][1] == "replay"
        kinds = {region.name: region.kind for region in self.regions}
        for call, name in enumerate(survey.found.regions):
            if call in survey.found.order:
                progress.kinds.setdefault(name, (*kinds[name], survey.found.inputs[call]))
        if is_first and len(self._progress) == 1:
            self._refuse_if_too_small(survey.found.peak_bytes)
        base = progress.trials[CHECKPOINT.name].memory
        if survey.is_differentiable:  # such gradients would add up in another order
            self._replays.forbid()
        progress.is_over(survey, was_replayed=self._replays.is_replayed)
        if is_replay and variant == CHECKPOINT.name and base is not None:
            if self._replays.is_replayed and self.device.type == "cuda":
                progress.replay_bytes = max(self._note_peak() - base.peak_bytes, 0)
            elif (CHECKPOINT, "replay") not in progress.agenda and not self._replays.recorded_calls:
                progress.leave_out_replays(self.budget, is_useless=True)
        progress.leave_out_replays(self.budget, is_useless=not self._replays.is_allowed)
        if not progress.agenda:
            self._decide(progress, progress.learn())

    def _refuse_if_too_small(self, least: int) -> None:
        least += self.reserved
        if least > self.budget:
            budget = show(self.budget, "B", digits=4)
            with_state = f", {show(self.reserved, 'B')} of optimizer state included" if self.reserved else ""
            raise BadInput(
                f"nothing fits {budget}: with every block checkpointed a pass takes {enough(least)}{with_state}: "
                "give a larger budget or a smaller batch"
            )

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
        for signature, progress in [*self._progress.items()]:
            if progress.plan is not None and progress.had_no_room and self._has_room_for_replays(progress.plan):
                del self._progress[signature]
            elif progress.plan is not None:
                self._decide(progress, progress.plan)
        self._current = None

    def _has_room_for_replays(self, plan: RegionPlan) -> bool:
        return max(plan.problem.other_bytes) <= REPLAY_ROOM * self.budget

    def precompile(self, step: Callable[[], object]) -> None:
        """Compiles what passes like `step`, a forward and a backward, will need, and measures nothing.

        Called inside the with-block. `step` runs once with all blocks in each compiled variant, and once with the model compiled
        for each share of its activations, which may take as much memory as plain training.
        """
        if self._stack is None:
            raise BadInput("precompile is called inside the with-block of its overlay")
        self._current = self._survey = None
        self._replays.close()
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
    def is_replayed(self) -> bool:
        """Whether calls are replayed where they can be: of blocks, or of the whole model."""
        return self._rival in REPLAYED

    @property
    def whole_share(self) -> float | None:
        """The share of activations that the model saves where it runs compiled as a whole; None: by blocks."""
        if self._rival == WHOLE_REPLAYED and self._current is not None:
            return self._progress[self._current].contest.replayed_share
        return None if isinstance(self._rival, str) else self._rival

    @property
    def hidden_bytes(self) -> int:
        """Memory of recorded calls that `torch.cuda.max_memory_allocated` does not show; `peak_bytes` has it."""
        return self._replays.hidden_bytes

    @property
    def replayed_calls(self) -> int:
        """Calls of blocks that are replayed in each pass: one for the whole model."""
        return self._replays.recorded_calls

    @property
    def replay_obstacles(self) -> dict[str, str]:
        """Why calls are not replayed, by block ("" is the whole model)."""
        found = [rehearsal for progress in self._progress.values() for rehearsal in progress.rehearsals.items()]
        return {name: rehearsal.obstacle for (name, _), rehearsal in found if rehearsal.obstacle is not None}

    @property
    def rivals(self) -> dict[str, Score]:
        """Time and peak memory of the ways to run the model that the last plan was compared with."""
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
        return not progress.contest.queue and (was_checked or self._rival not in PLANS)

    def _decide(self, progress: Progress, plan: RegionPlan) -> None:
        """Plans for the budget, and which of them are to be compared with what."""
        replay_room = self.budget - progress.replay_bytes
        for one, room in ((plan, self.budget), (plan.eager, self.budget), (plan.replayed, replay_room)):
            if one is not None:
                one.tightened = one.followed = 0
                self._choose(one, room)
        compiled = {way.name for way in self.ways if way.compiles}
        progress.contest.begin(
            self.budget,
            with_eager=bool(compiled & set(plan.variants.values())),
            with_replayed=plan.replayed is not None and plan.replayed.choice.peak_bytes <= replay_room,
            with_whole=self.compiler is not None,
            replays_whole=self._replays.is_allowed,
        )
        if not progress.contest.queue:
            self._warn_if_above_budget(plan)

    def _follow(self, signature: Signature, progress: Progress, plan: RegionPlan) -> None:
        contest = progress.contest
        if signature != self._current:
            self._patience = 0 if self._current is None else PATIENCE
            self._install(signature, progress, plan)
        elif self._patience and not contest.queue:
            self._patience -= 1
            if not self._patience and contest.winner != self._rival:
                self._install(signature, progress, plan)
        elif contest.queue and plan.followed >= contest.passes:
            if not self._tighten(signature, progress, plan):
                times = self.step_s
                contest.score(min(times[contest.untimed :] or times[-1:], default=inf), self._note_peak())
                plan.followed = 0
                self._install(signature, progress, plan)
        elif plan.followed < CHECKED[0] or plan.followed % CHECKED[1] == 0:
            self._check(signature, progress, plan)
        plan.followed += 1
        self.passes["followed"] += 1

    def _install(self, signature: Signature, progress: Progress, plan: RegionPlan) -> None:
        """A plan by blocks, or the model compiled as a whole where that is measured or has won."""
        self._note_peak()
        self._replays.close()
        contest = progress.contest
        last = contest.winner_without_replay if self._patience else contest.winner
        rival = self._rival = contest.rival if contest.queue else last
        plans = {"blocks": plan, "eager": plan.eager or plan, "replayed": plan.replayed or plan}
        self._current, self.plan = signature, plans[rival] if rival in plans and isinstance(rival, str) else plan
        if rival in PLANS or self._whole is None:
            self._install_blocks(self.plan, progress)
            if not contest.queue:
                self._warn_if_above_budget(self.plan)
        else:
            self._install_whole(signature, progress, plan, contest.replayed_share if rival == WHOLE_REPLAYED else rival)
        self._reset_peak()
        self._times.restart()

    def _install_whole(self, signature: Signature, progress: Progress, plan: RegionPlan, share: Any) -> None:
        assert self._whole is not None
        for entry in self._entries.values():
            entry.restore()
        room = self._room(plan.floor_bytes)
        self._whole.install(share, signature, room, partial(self._refused, progress, plan, self.budget - room))
        if self._rival == WHOLE_REPLAYED:
            name = f"whole {share}"
            self._whole.active = self._replays.open(progress).around(self._whole.region, name, self._whole.active, compiles=True)

    def _install_blocks(self, plan: RegionPlan, progress: Progress) -> None:
        ways = {way.name: way for way in self.ways}
        if self._whole is not None:
            self._whole.rest()
        passes = self._replays.open(progress) if self._rival == "replayed" else None
        for region in self.regions:
            entry = self._entries[region.name]
            variant = ways[plan.variants[region.name]] if region.name in plan.variants else CHECKPOINT
            call = entry.variant(variant)
            entry.replace(call if passes is None else passes.around(region, variant.name, call, compiles=variant.compiles))

    def _room(self, floor_bytes: int) -> int:
        """What a forward may save at most: its end must fit the budget, and what backward adds (`floor_bytes`) the device."""
        if self.device.type != "cuda":
            return self.budget
        free_bytes, _ = torch.cuda.mem_get_info(self.device)
        device_bytes = free_bytes + torch.cuda.memory_reserved(self.device)
        return min(self.budget - torch.cuda.memory_allocated(self.device), device_bytes - floor_bytes)

    def _refused(self, progress: Progress, plan: RegionPlan, other_bytes: int, saved_bytes: float) -> None:
        """The compiler, or the room there is, does not allow the whole model: the pass goes on with the plan by blocks."""
        contest = progress.contest
        if contest.queue and contest.rival not in PLANS:
            contest.refuse(other_bytes + saved_bytes)
        else:
            contest.scores.pop(self._rival, None)
        plan.followed = 0
        self._install_blocks(plan, progress)
        self._current = None  # the next pass installs what is to come

    def _check(self, signature: Signature, progress: Progress, plan: RegionPlan) -> None:
        """A smaller plan where passes took more memory than they were given; none that is replayed, where that does not help."""
        contest = progress.contest
        is_tighter = self._tighten(signature, progress, plan)
        if not is_tighter and not contest.queue and self._rival in REPLAYED and self._note_peak() > self.budget:
            contest.withdraw(self._rival)
            self._install(signature, progress, plan)

    def _tighten(self, signature: Signature, progress: Progress, plan: RegionPlan) -> bool:
        """Chooses again, for a smaller budget, where the last passes took more memory than they were given; whether it did."""
        peak, chosen = self._note_peak(), self.plan
        if self._rival not in PLANS or chosen is None or peak <= self.budget or chosen.tightened >= TIGHTENED:
            return False
        chosen.tightened += 1
        plan.followed = 0
        self._choose(chosen, min(chosen.budget, self.budget - (peak - chosen.choice.peak_bytes)))
        self._install(signature, progress, plan)
        return True

    def _note_peak(self) -> int:
        """The peak of memory since the plan was installed; on the CPU, the predicted one."""
        if self.device.type == "cuda":
            peak = self._replays.peak_bytes(torch.cuda.max_memory_allocated(self.device))
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
        return self._times.seconds()
