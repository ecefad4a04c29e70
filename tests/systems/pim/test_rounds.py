"""Rounds: agents decide on the engine's clock, and the plan they leave behind runs to the same picosecond."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trainyard as ty
from trainyard import engine
from trainyard.engine import Acquire, Release, Simulation, Wait
from trainyard.engine.commands import Script
from trainyard.ir import DeviceCost, Work
from trainyard.ir.plan import Plan
from trainyard.mapping.algorithms import Direct, ModelAveraging
from trainyard.results.booking import book_timeline
from trainyard.systems.pim.rounds import LITERAL_ROUNDS, Rounds, TimedEvent, WorkerGroup

STEP = ty.zoo.load("linear", batch=2)


class Turnstile:
    """One token, first come first served: so many ps to get it, so many to give it back."""

    def __init__(self, simulation: Simulation, take_ps: int, give_ps: int) -> None:
        self.token = simulation.semaphore("token")
        self.take_ps, self.give_ps = take_ps, give_ps
        self.holders: list[int] = []
        self.most = 0

    def acquire(self, cluster: int, priority: int = 0) -> Script:
        yield Acquire(self.token)
        self.holders.append(cluster)
        self.most = max(self.most, len(self.holders))
        yield Wait(self.take_ps)

    def release(self, cluster: int) -> Script:
        yield Wait(self.give_ps)
        self.holders.remove(cluster)
        yield Release(self.token)


def group(number: int, ps: Sequence[int], template: int = 0, workers: int = 3) -> WorkerGroup:
    costs = [DeviceCost(cycles=p, compute_cycles=p, bytes={("w", "read"): 7}, share=(1.0,), events={}) for p in ps]
    works = [Work(ops=(op,)) for op in range(len(ps))]
    return WorkerGroup(
        name=f"cluster {number}", workers=workers, works=works, costs=costs, durations_ps=list(ps),
        energies=[{"mac": 2.0}] * len(ps), template=template,
    )  # fmt: skip


def event(name: str, ps: int) -> TimedEvent:
    return TimedEvent(name=name, ps=ps, resource=name, energy={"link": 5.0}, traffic={("crossbar", name, "write"): 11})


def rounds(
    steps_ps: Sequence[int], local: Sequence[int], algorithm: object, *, take: int = 4, give: int = 1, tokens: bool = True
) -> Rounds:
    groups = [group(n, [ps - 1, 1], template=ps) for n, ps in enumerate(steps_ps)]
    return Rounds(
        STEP, groups, algorithm=algorithm, local_steps=local, reduce=event("reduce", 3), exchange=event("exchange", 50),  # type: ignore[arg-type]
        token=event("token", 0), token_source=(lambda simulation: Turnstile(simulation, take, give)) if tokens else None,
    )  # fmt: skip


def ended(made: Rounds) -> tuple[Plan, int]:
    plan = made.plan()
    assert made.token_source is None or (made.token_source.most == 1 and not made.token_source.holders)  # type: ignore[attr-defined]
    return plan, made.simulation.now_ps


def test_one_round_of_equal_groups_is_steps_then_tokens_in_turn_then_one_exchange() -> None:
    plan, end = ended(rounds([10, 10, 10], [4, 4, 4], Direct(3)))
    assert end == 4 * (10 + 3) + 3 * (4 + 1) + 50
    assert engine.run(plan).end_ps == end
    assert plan.booking.steps == 4
    assert plan.booking.samples == 2 * 3 * 3 * 4


def test_a_token_is_booked_from_its_release_by_the_holder_before_not_from_the_request() -> None:
    made = rounds([10, 10, 10], [4, 4, 4], Direct(3))
    plan, _ = ended(made)
    timeline = engine.run(plan)
    durations = timeline.busy_ps[timeline.tags == made.tags["token"]]
    assert sorted(durations.tolist()) == [1, 1, 1, 4, 4, 4]  # three handovers of 4 ps, three returns of 1 ps


def test_without_tokens_all_enter_at_once() -> None:
    plan, end = ended(rounds([10, 10], [1, 1], ModelAveraging(1), tokens=False))
    assert end == 10 + 3 + 50
    assert engine.run(plan).end_ps == end


def test_a_slow_group_makes_the_others_wait_and_its_token_comes_last() -> None:
    plan, end = ended(rounds([10, 100], [2, 2], Direct(1)))
    assert end == 2 * 103 + 5 + 50
    timeline = engine.run(plan)
    assert timeline.end_ps == end


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.integers(2, 40), min_size=1, max_size=5),
    tau=st.integers(0, 4),
    take=st.integers(0, 9),
    give=st.integers(0, 5),
    update=st.sampled_from(["averaging", "literal"]),
    recheck=st.booleans(),
    unit=st.sampled_from(["steps", "s"]),
)
def test_running_the_plan_gives_the_start_times_of_the_simulation(
    steps: list[int], tau: int, take: int, give: int, update: str, recheck: bool, unit: str
) -> None:
    limit = tau if unit == "steps" else tau * 20e-12
    algorithm = Direct(limit, unit=unit, update=update, recheck=recheck)  # type: ignore[arg-type]
    local = [tau + 1 if unit == "steps" else int(limit // ((ps + 3) * 1e-12)) + 1 for ps in steps]
    made = rounds(steps, local, algorithm, take=take, give=give)
    plan, end = ended(made)
    timeline = engine.run(plan)
    assert timeline.end_ps == end
    rows, columns = book_timeline(timeline, plan.booking)
    assert columns.time_ps.sum() == end
    if update == "averaging":
        assert made.steps_done == local
    else:  # nobody stops before the last has done its rounds
        assert all(done >= LITERAL_ROUNDS * count for done, count in zip(made.steps_done, local, strict=True))
    # every event's energy and bytes as often as it happened, every op as often as a worker did it
    energy = sum(cell for column in columns.energy.values() for cell in column)
    did = sum(3 * done * 2 * 2.0 for done in made.steps_done) + 5.0 * sum(made.event_counts.values())
    assert energy == pytest.approx(did)
    assert made.event_counts["reduce"] == sum(made.steps_done)
    if update == "averaging":
        assert made.event_counts["exchange"] == 1
        assert made.event_counts["token"] == len(steps)
    assert len(rows.op) == len(plan.booking.op) + 1


def test_literal_without_a_second_look_exchanges_once_for_every_cluster_that_asked() -> None:
    blind = rounds([10, 10, 10], [4, 4, 4], Direct(3, update="literal"))
    looking = rounds([10, 10, 10], [4, 4, 4], Direct(3, update="literal", recheck=True))
    _, slow = ended(blind)
    _, fast = ended(looking)
    assert blind.event_counts["exchange"] > looking.event_counts["exchange"]
    assert slow > fast


@pytest.mark.probe
def test_staleness_of_exactly_tau_goes_on_and_one_more_exchanges() -> None:
    at = rounds([10], [4], Direct(3, update="literal"))
    ended(at)
    assert at.event_counts["exchange"] == LITERAL_ROUNDS  # after steps 4, 8, 12, 16
    early = rounds([10], [4], Direct(4, update="literal"))  # 16 steps: staleness passes 4 after steps 5, 10, 15
    ended(early)
    assert early.event_counts["exchange"] == 3
