"""What is known of a model called with tensors of certain shapes and types: surveys that are to come, their results, the plan.

First the memory and the times of every variant are measured, then, where calls may be replayed, times of replayed calls. Before
that, two passes show whether blocks compute the same again (`replay.fingerprints`). All are passes whose gradients are right. The
surveys of replays are left out where there is no room for them, or nothing to replay.
"""

from __future__ import annotations

from typing import Any, Literal

from trainyard.live.paging.regions.contest import Contest
from trainyard.live.paging.regions.planning import RegionPlan, Trial, held_bytes, plan_of, to_time, typical
from trainyard.live.paging.regions.replay.fingerprints import WATCHED, Fingerprints
from trainyard.live.paging.regions.replay.obstacles import Rehearsal
from trainyard.live.paging.regions.survey import Survey
from trainyard.live.paging.regions.variants import CHECKPOINT, Variant

Task = Literal["watch", "memory", "time", "replay"]
TIMES = 2
"""Survey passes that time a variant; a compiled one has another before them."""
REPLAY_ROOM = 0.97
"""Recordings take memory of their own: they are tried if a pass with all blocks checkpointed takes this share of the budget."""
ATTEMPTS = 6
"""Passes in which the recordings of one variant must have come to a replay."""


class Progress:
    """The surveys of one signature so far, and what was made of them."""

    def __init__(self, ways: tuple[Variant, ...], *, with_replays: bool) -> None:
        # The very first pass makes handles, kernels and, at its end, the optimizer's state: its memory is measured once more.
        self.agenda: list[tuple[Variant, Task]] = [(ways[0], "memory")]
        self.agenda += [(ways[0], "watch")] * WATCHED if with_replays else []
        self.agenda.extend((way, "memory") for way in ways)
        for number in range(TIMES + 1):  # in turns: a host that is busy for a while slows all variants down
            # The first timed pass of a compiled variant is the first in which most regions run it.
            self.agenda.extend((way, "time") for way in ways if number < TIMES or way.compiles)
        if with_replays:
            self.agenda.extend((way, "replay") for way in ways)
        self.trials = {way.name: Trial(compiles=way.compiles) for way in ways}
        self.surveys: list[tuple[str, Task, Survey]] = []
        """Their events are read after the last pass: a device that the host has waited for starts idle, and seems slower."""
        self.kinds: dict[str, tuple[Any, ...]] = {}
        self.replayed_trials: dict[str, Trial] = {}
        self.fingerprints = Fingerprints()
        self.rehearsals: dict[tuple[str, str], Rehearsal] = {}
        """By region and variant."""
        self.replay_bytes = 0
        """What recordings take beyond the memory of the same calls without."""
        self.had_no_room = False
        """Whether replays were left out because of the budget."""
        self.plan: RegionPlan | None = None
        self.contest = Contest()
        self._attempts = 0

    def to_survey(self, variant: Variant, task: Task, budget: int) -> frozenset[str]:
        """The regions that run in a variant while it is measured: as many as the budget allows, when their size is known."""
        base, trial = self.trials[CHECKPOINT.name].memory, self.trials[variant.name]
        if variant is CHECKPOINT or base is None:
            return frozenset(self.kinds)
        if task == "memory":
            trial.sampled = frozenset(typical(self.kinds).values())
            return trial.sampled
        room_bytes = int(REPLAY_ROOM * budget if task == "replay" else budget) - base.peak_bytes
        if task == "replay":
            if variant.name not in self.replayed_trials:
                chosen = to_time(held_bytes(base, trial, self.kinds), self.kinds, room_bytes)
                self.replayed_trials[variant.name] = Trial(trial.memory, [], trial.sampled, chosen, trial.compiles)
            return self.replayed_trials[variant.name].regions
        if not trial.regions:
            trial.regions = to_time(held_bytes(base, trial, self.kinds), self.kinds, room_bytes)
        return trial.regions

    def is_over(self, survey: Survey, *, was_replayed: bool) -> None:
        """A pass is over; a variant that is to be replayed is only measured when it was, and has further passes until then."""
        variant, task = self.agenda[0]
        if task == "replay" and not was_replayed and self._attempts < ATTEMPTS:
            self._attempts += 1
            return
        self._attempts = 0
        self.agenda.pop(0)
        if task == "watch":
            return
        if task == "memory":
            trial = self.trials[variant.name]
            if trial.memory is None or len(survey.found.regions) >= len(trial.memory.regions):
                trial.memory = survey.found
        else:
            self.surveys.append((variant.name, task, survey))

    def leave_out_replays(self, budget: int, *, is_useless: bool = False) -> None:
        """Before they begin, if there is no room for recordings; later on, if there is nothing to replay."""
        base = self.trials[CHECKPOINT.name].memory
        begins = bool(self.agenda) and self.agenda[0] == (CHECKPOINT, "replay") and not self._attempts
        self.had_no_room |= begins and base is not None and base.peak_bytes > REPLAY_ROOM * budget
        if self.had_no_room or is_useless:
            self.agenda = [(way, task) for way, task in self.agenda if task != "replay"]
            self.surveys = [(name, task, survey) for name, task, survey in self.surveys if task != "replay" or not is_useless]

    def learn(self) -> RegionPlan:
        """The plan, with one for its variants that need no compiler and one for replayed calls, where there are such."""
        for name, task, survey in self.surveys:
            if task == "replay":
                trial = self.trials[name]
                empty = Trial(trial.memory, [], trial.sampled, frozenset(self.kinds), trial.compiles)
                self.replayed_trials.setdefault(name, empty).times.append(survey.measures())
            else:
                self.trials[name].times.append(survey.measures())
        plan = self.plan = plan_of(self.trials, self.kinds)
        if any(trial.compiles for trial in self.trials.values()):
            plan.eager = plan_of({name: trial for name, trial in self.trials.items() if not trial.compiles}, self.kinds)
        replayed = {name: self.replayed_trials[name] for name in self.trials if name in self.replayed_trials}
        replayed = {name: trial for name, trial in replayed.items() if trial.times}
        if CHECKPOINT.name in replayed:
            plan.replayed = plan_of(replayed, self.kinds)
        self.surveys.clear()
        self.trials.clear()
        self.replayed_trials.clear()
        return plan
