"""From surveys to the overlay's problem, and from its choice to a variant for each region.

For each region the variants that are worth having form a chain: the least memory first, then more memory and less time, each step
with fewer seconds gained per byte than the one before (the lower convex hull). A step of the chain is a `Saved` of the problem: to
keep it costs its bytes from the region's forward to its backward, to recompute it costs its seconds in backward. A choice that
keeps some steps of a region runs it in the highest variant that takes no more bytes.

The memory inside a region is that of a checkpointed one in the problem. Where another variant was measured to take more, in its
forward or its backward, that counts as well: a choice with which the peak is above the budget is made again for a smaller one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from trainyard.errors import BadInput
from trainyard.live.paging.planning import NOTHING_CHOSEN, Policy
from trainyard.live.paging.regions.survey import Measures, Segment
from trainyard.live.paging.regions.variants import KEEP
from trainyard.mapping.overlay.policy import Choice, Decision, Problem, Saved, used_bytes, with_cost
from trainyard.mapping.overlay.search import enough
from trainyard.units import show

LINK_BYTES_PER_S = 1e12
"""Regions are not sent, so the problem's link is never used."""
LEAST_RECOMPUTATION = 1.01
"""A variant that computes something again takes this factor of plain training's time at least."""
CHOICES = 5
"""How often a choice is made for one budget, each time for less of it, because of what blocks take while they run."""


@dataclass(frozen=True, slots=True, order=True)
class Cost:
    """What one region takes in one variant: bytes held between forward and backward, and seconds of both."""

    held_bytes: int
    seconds: float
    variant: str


def worth_having(costs: Sequence[Cost]) -> tuple[Cost, ...]:
    """The lower convex hull of time over memory, from the least memory to the least time.

    >>> costs = [Cost(0, 4.0, "checkpoint"), Cost(8, 1.0, "keep"), Cost(4, 3.9, "half"), Cost(9, 2.0, "slow")]
    >>> [cost.variant for cost in worth_having(costs)]
    ['checkpoint', 'keep']
    """
    hull: list[Cost] = []
    for cost in sorted(costs):
        if hull and cost.seconds >= hull[-1].seconds:
            continue
        while hull and hull[-1].held_bytes == cost.held_bytes:
            hull.pop()
        while len(hull) > 1 and _gain(hull[-2], hull[-1]) <= _gain(hull[-2], cost):
            hull.pop()
        hull.append(cost)
    return tuple(hull)


def _gain(less: Cost, more: Cost) -> float:
    """Seconds per byte that the larger of two variants is faster."""
    return (less.seconds - more.seconds) / (more.held_bytes - less.held_bytes)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a region's chain, as a `Saved` of the problem."""

    region: str
    bytes: int


class Transient(NamedTuple):
    """Bytes that a variant takes while its region runs, beyond those of a checkpointed region and what it holds between."""

    forward: int
    backward: int


class Places(NamedTuple):
    """Positions of a region's calls in the problem."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]


@dataclass(slots=True)
class RegionPlan:
    """The measured costs of all regions, the problem they make, and a variant for each region."""

    chains: dict[str, tuple[Cost, ...]]
    problem: Problem
    steps: tuple[Step, ...]
    places: dict[str, Places] = field(default_factory=dict)
    transients: dict[tuple[str, str], Transient] = field(default_factory=dict)
    """By region and variant."""
    floor_bytes: int = 0
    """Peak of a pass with all regions checkpointed, without their inputs."""
    choice: Choice = NOTHING_CHOSEN
    variants: dict[str, str] = field(default_factory=dict)
    budget: int = 0
    followed: int = 0
    tightened: int = 0
    warned: int = 0
    """The budget for which it was said that this plan takes more."""
    eager: RegionPlan | None = None
    """The plan without compiled variants, where there are some."""
    replayed: RegionPlan | None = None
    """The plan whose blocks are replayed, where that was measured."""

    def choose(self, policy: Policy, budget: int) -> None:
        room = budget
        for _ in range(CHOICES):
            try:
                choice = policy(self.problem, room)
            except BadInput as error:
                if room == budget:
                    raise BadInput(f"{error}: give a larger budget or a smaller batch") from None
                break
            self._take(choice, budget)
            if self.choice.peak_bytes <= budget:
                return
            room -= self.choice.peak_bytes - budget
        self.choose_least()
        least, self.budget = self.choice.peak_bytes, budget
        if least > budget:
            size = show(budget, "B", digits=4)
            raise BadInput(f"nothing fits {size}: a pass takes {enough(least)} at least: give a larger budget or a smaller batch")

    def choose_least(self) -> None:
        """Every region in its variant of the least memory."""
        self._take(with_cost(self.problem, ["recompute"] * len(self.steps)), 0)
        self.budget = self.choice.peak_bytes

    def _take(self, choice: Choice, budget: int) -> None:
        kept: dict[str, int] = dict.fromkeys(self.chains, 0)
        for step, decision in zip(self.steps, choice.decisions, strict=True):
            kept[step.region] += step.bytes if decision == "keep" else 0
        levels = {region: _level(chain, kept[region]) for region, chain in self.chains.items()}
        self.variants = {region: chain[levels[region]].variant for region, chain in self.chains.items()}
        seen: dict[str, int] = dict.fromkeys(self.chains, 0)
        decisions: list[Decision] = []
        for step in self.steps:  # a region's steps stand in the order of its chain
            seen[step.region] += 1
            decisions.append("keep" if seen[step.region] <= levels[step.region] else "recompute")
        taken = with_cost(self.problem, decisions)
        self.choice, self.budget = replace(taken, peak_bytes=max(taken.peak_bytes, self._transient_peak(taken))), budget

    def _transient_peak(self, choice: Choice) -> int:
        """The peak inside of regions whose variant takes more than a checkpoint while it runs."""
        chosen = {region: self.transients.get((region, variant)) for region, variant in self.variants.items()}
        used = used_bytes(self.problem, choice) if any(chosen.values()) else ()
        peaks = [0]
        for region, transient in chosen.items():
            if transient is not None:
                places = self.places[region]
                peaks += [used[position] + transient.forward for position in places.forward]
                peaks += [used[position] + transient.backward for position in places.backward]
        return max(peaks)


def _level(chain: Sequence[Cost], kept_bytes: int) -> int:
    return max(level for level, cost in enumerate(chain) if cost.held_bytes - chain[0].held_bytes <= kept_bytes)


@dataclass(slots=True)
class Trial:
    """One variant, measured: memory in a pass where the `sampled` regions ran in it, times in passes where `regions` did.

    All other regions were checkpointed in the same passes. A pass need not call every region: layers may be dropped at random. The
    pass in which memory is measured compiles a variant that `compiles`, which takes memory of its own.
    """

    memory: Measures | None = None
    times: list[Measures] = field(default_factory=list)
    sampled: frozenset[str] = frozenset()
    regions: frozenset[str] = frozenset()
    compiles: bool = False


Kinds = Mapping[str, tuple[object, ...]]


def members_of(kinds: Kinds) -> dict[tuple[object, ...], list[str]]:
    """The regions of each kind."""
    members: dict[tuple[object, ...], list[str]] = {}
    for region, kind in kinds.items():
        members.setdefault(kind, []).append(region)
    return members


def typical(kinds: Kinds) -> dict[tuple[object, ...], str]:
    """One region of each kind, from the middle: the input of the first is often held by the model itself."""
    return {kind: same[len(same) // 2] for kind, same in members_of(kinds).items()}


def held_bytes(base: Measures, trial: Trial, kinds: Kinds) -> dict[str, int]:
    """Bytes that each region holds beyond those of a checkpoint, from the region of its kind that was measured."""
    by_kind: dict[tuple[object, ...], int] = {}
    for region in trial.sampled:
        passes = [(measures, measures.calls_of(region)) for measures in (base, trial.memory) if measures is not None]
        if all(calls for _, calls in passes):
            before, after = (sum(measures.held.get(call, 0) for call in calls) for measures, calls in passes)
            by_kind[kinds[region]] = max(after - before, 0)
    return {region: by_kind[kind] for region, kind in kinds.items() if kind in by_kind}


def transients_of(base: Measures, trial: Trial, kinds: Kinds) -> dict[str, Transient]:
    """What regions take in a variant while they run, from the region of their kind that was measured, where it ran once."""
    memory, held = trial.memory, held_bytes(base, trial, kinds)
    if memory is None or trial.compiles or memory.regions != base.regions or memory.order != base.order:
        return {}
    turn = {call: place for place, call in enumerate(base.order)}
    sampled = {call: held[region] for region in trial.sampled if region in held for call in base.calls_of(region)}
    by_kind: dict[tuple[object, ...], Transient] = {}
    for region in trial.sampled:
        calls = base.calls_of(region)
        if len(calls) == 1 and region in held:
            before = sum(size for call, size in sampled.items() if call < calls[0])
            later = sum(size for call, size in sampled.items() if turn[call] > turn[calls[0]])
            more = [memory.peaks.get(segment, 0) - base.peaks.get(segment, 0) for segment in _segments(calls)]
            by_kind[kinds[region]] = Transient(max(more[0] - before, 0), max(more[1] - later, 0))
    return {region: by_kind[kind] for region, kind in kinds.items() if kind in by_kind and any(by_kind[kind])}


def to_time(held: Mapping[str, int], kinds: Kinds, room_bytes: int) -> frozenset[str]:
    """As many regions as there is room for, one of each kind at least: a mean over many is worth more than one sample."""
    chosen = {region for region in typical(kinds).values() if region in held}
    room_bytes -= sum(held[region] for region in chosen)
    for region in reversed(list(held)):
        if region not in chosen and held[region] <= room_bytes:
            chosen.add(region)
            room_bytes -= held[region]
    return frozenset(chosen)


def mean_seconds(times: Sequence[Measures], regions: Sequence[str]) -> float | None:
    """Forward and backward of a region: the mean over some of one kind, of each the least of some passes; None: none was called.

    In one pass a host that is too slow lives on the lead it had before. In many it does not: so the mean is taken of the device's
    times and of the host's, and the larger one counts.
    """
    totals: list[tuple[float, float]] = []
    for region in regions:
        passes = [(measures, _segments(calls)) for measures in times if (calls := measures.calls_of(region))]
        if passes:
            device_s = min(sum(measures.seconds.get(segment, 0.0) for segment in segments) for measures, segments in passes)
            host_s = min(sum(measures.host_seconds.get(segment, 0.0) for segment in segments) for measures, segments in passes)
            totals.append((device_s, host_s))
    return max(map(fmean, zip(*totals, strict=True))) if totals else None


def _segments(calls: Sequence[int]) -> list[Segment]:
    return [Segment(part, call) for call in calls for part in ("forward", "backward")]


def plain_is_fastest(seconds: Mapping[str, float | None], eager: Collection[str]) -> dict[str, float | None]:
    """Times in which `keep` takes the least of the variants without a compiler.

    The others do all that it does, and more. Where one seems faster, a busy host has slowed `keep` down: such a survey let a ViT
    that fits as it is run a third slower than plain training.

    >>> measured = {"checkpoint": 8.0, "keep": 7.0, "selective": 5.0, "compiled 1.0": 4.0}
    >>> plain_is_fastest(measured, ["checkpoint", "keep", "selective"])
    {'checkpoint': 8.0, 'keep': 5.0, 'selective': 5.05, 'compiled 1.0': 4.0}
    """
    known = [took for name in eager if (took := seconds.get(name)) is not None]
    if seconds.get(KEEP.name) is None:
        return dict(seconds)
    least, recomputing = min(known), set(eager) - {KEEP.name}
    times = dict(seconds)
    for name in recomputing:
        if (took := times.get(name)) is not None:
            times[name] = max(took, LEAST_RECOMPUTATION * least)
    return times | {KEEP.name: least}


def costs_of(trials: Mapping[str, Trial], kinds: Kinds) -> dict[str, list[Cost]]:
    """What each region takes in every variant; the first trial is the checkpoint's, in which all regions ran."""
    base_name, base = next(iter(trials.items()))
    assert base.memory is not None
    held = {name: held_bytes(base.memory, trial, kinds) for name, trial in trials.items() if name != base_name}
    costs: dict[str, list[Cost]] = {}
    for same in members_of(kinds).values():
        called = [region for region in same if base.memory.calls_of(region)]
        seconds = {base_name: mean_seconds(base.times, same)}
        seconds |= {name: mean_seconds(trials[name].times, [one for one in same if one in trials[name].regions]) for name in held}
        if seconds[base_name] is None:
            continue
        seconds = plain_is_fastest(seconds, {name for name, trial in trials.items() if not trial.compiles})
        for region in called:
            sizes = {base_name: 0, **{name: sizes[region] for name, sizes in held.items() if region in sizes}}
            costs[region] = [Cost(size, took, name) for name, size in sizes.items() if (took := seconds[name]) is not None]
    return costs


def plan_of(trials: Mapping[str, Trial], kinds: Kinds) -> RegionPlan:
    """The problem of a model whose regions were measured in each variant."""
    checkpointed = next(iter(trials.values()))
    base = checkpointed.memory
    assert base is not None
    chains = {region: worth_having(costs) for region, costs in costs_of(trials, kinds).items()}
    segments = [Segment(part, call) for call in range(len(base.regions)) for part in ("outside", "forward")]
    segments += [Segment("outside", len(base.regions)), *(Segment("backward", call) for call in base.order)]
    place = {segment: position for position, segment in enumerate(segments)}
    durations = [min(times.seconds.get(segment, 0.0) for times in checkpointed.times) for segment in segments]
    other = [base.peaks.get(segment, 0) for segment in segments]
    saved: list[Saved] = []
    steps: list[Step] = []
    places: dict[str, Places] = {}
    for region, chain in chains.items():
        calls = base.calls_of(region)
        uses = [place[Segment("backward", call)] for call in calls]
        forwards = [place[Segment("forward", call)] for call in calls]
        places[region] = Places(tuple(forwards), tuple(uses))
        for position in (*uses, *forwards):
            durations[position] = 0.0
        durations[forwards[0]] = chain[-1].seconds
        for less, more in pairwise(chain):
            size = more.held_bytes - less.held_bytes
            steps.append(Step(region, size))
            saved.append(
                Saved(
                    name=region,
                    bytes=size,
                    # Saved from the end of forward on: inside it the survey's own peak counts, with the region's temporaries.
                    produced=min(forwards) + 1,
                    last_forward=max(forwards),
                    first_backward=min(uses),
                    last_backward=max(uses),
                    recompute_s=less.seconds - more.seconds,
                    sendable=False,
                )
            )
            for position in range(min(uses), max(uses) + 1):  # recomputed there in the survey too
                other[position] = max(other[position] - size, 0)
    problem = Problem(
        durations_s=tuple(durations), other_bytes=tuple(other), saved=tuple(saved), out_bytes_per_s=LINK_BYTES_PER_S,
        in_bytes_per_s=LINK_BYTES_PER_S, labels=tuple(_label(base, segment) for segment in segments),
    )  # fmt: skip
    transients = {
        (region, name): transient
        for name, trial in trials.items()
        for region, transient in transients_of(base, trial, kinds).items()
        if trial is not checkpointed
    }
    floor_bytes = max(base.peak_bytes - sum(base.held.values()), 0)
    return RegionPlan(chains, problem, tuple(steps), places, transients, floor_bytes)


def _label(measures: Measures, segment: Segment) -> str:
    if segment.part == "outside":
        return "before the first block" if not segment.call else f"after {measures.regions[segment.call - 1]}"
    return f"{measures.regions[segment.call]}: {segment.part}"
