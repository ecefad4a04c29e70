"""The overlay's clock is the engine's, its memory by position holds whatever the timing, and its stress mode sends what it says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trainyard import engine
from trainyard.errors import BadInput
from trainyard.ir.plan import Plan
from trainyard.mapping.overlay.policy import (
    NEVER,
    Choice,
    Problem,
    Saved,
    completed,
    decided_bytes,
    needs,
    orders,
    present,
    simulate,
)
from trainyard.mapping.overlay.stress import offload_all


@st.composite
def problems(draw: st.DrawFn, most: int = 6) -> Problem:
    """Nested saved tensors, chains of remaking, weights between two uses, some over the end of the step."""
    forward = draw(st.integers(1, 5))
    positions = forward + draw(st.integers(2, 6))
    seconds = st.integers(0, 12).map(lambda n: n / 4)
    saved: list[Saved] = []
    held = [draw(st.integers(0, 5)) for _ in range(positions)]
    for index in range(draw(st.integers(0, most))):
        made = draw(st.integers(0, forward - 1))
        last_forward = draw(st.integers(made, forward - 1))
        first = draw(st.integers(forward, positions - 1))
        one = Saved(
            name=f"t{index}",
            bytes=draw(st.integers(0, 9)),
            produced=made,
            last_forward=last_forward,
            first_backward=first,
            last_backward=draw(st.integers(first, positions - 1)),
        )
        kind = draw(st.sampled_from(["plain", "again", "again", "never", "clean", "wraps"]))
        if kind in ("again", "never"):
            earlier = [other for other in range(index) if not saved[other].wraps]
            sources = draw(st.sets(st.sampled_from(earlier), max_size=2)) if earlier else set()
            one = replace(one, recompute_s=draw(seconds), sources=tuple(sorted(sources)))
        if kind == "never":
            one = replace(one, first_backward=NEVER, last_backward=NEVER)
        if kind == "clean":
            one = replace(one, clean=True)
        if kind == "wraps":  # from its first use to its last one it is among the rest
            use = draw(st.integers(0, last_forward))
            how = {"clean": draw(st.booleans()), "clean_after": draw(st.sampled_from([None, *range(index)]))}
            one = replace(one, produced=last_forward + 1, first_backward=use, last_backward=use, **how)
            for position in range(use + 1, last_forward + 1):
                held[position] += one.bytes
        saved.append(one)
    return Problem(
        durations_s=tuple(draw(seconds) for _ in range(positions)),
        other_bytes=tuple(held),
        saved=tuple(saved),
        out_bytes_per_s=draw(st.sampled_from([1, 3, 40])),
        in_bytes_per_s=draw(st.sampled_from([1, 7, 40])),
        latency_s=draw(st.sampled_from([0.0, 0.3])),
        duplex=draw(st.booleans()),
    )


@st.composite
def choices(draw: st.DrawFn, problem: Problem) -> Choice:
    decisions = tuple(
        draw(st.sampled_from(["keep", "send", "recompute"] if one.recompute_s is not None else ["keep", "send"]))
        for one in problem.saved
    )
    start = completed(problem, decisions)
    first = needs(problem, decisions).first
    leave_by, fetch_at = list(start.leave_by), list(start.fetch_at)
    for index, fetch in enumerate(start.fetch_at):
        if fetch is not None:
            one = problem.saved[index]
            latest, earliest = (len(problem.durations_s), 0) if one.wraps else (first[index], one.last_forward + 1)
            leave_by[index] = draw(st.integers(one.last_forward + 1, latest))
            fetch_at[index] = draw(st.integers(earliest, first[index]))
    return completed(problem, replace(start, leave_by=tuple(leave_by), fetch_at=tuple(fetch_at)))


def as_plan(problem: Problem, choice: Choice) -> tuple[Plan, dict[tuple[str, int], int]]:
    """The same rules as tasks of the engine: gates are tasks of no length on the compute stream, copies flows on links."""
    plan = Plan()
    compute, out = plan.stream("compute"), plan.stream("out")
    back = plan.stream("in") if problem.duplex else out
    away = plan.link("out", problem.out_bytes_per_s, problem.latency_s)
    home = plan.link("in", problem.in_bytes_per_s, problem.latency_s)
    out_order, waiting, recompute_order = orders(problem, choice)
    first, task = needs(problem, choice.decisions).first, {}
    for position, duration in enumerate(problem.durations_s):
        due = [task["out", index] for index in out_order if choice.leave_by[index] == position]
        task["gate", position] = plan.task(compute, 0, after=due)
        while waiting and choice.fetch_at[waiting[0]] <= position:
            index = waiting.pop(0)
            after = [task["gate", choice.fetch_at[index]]] + ([task["out", index]] if ("out", index) in task else [])
            task["in", index] = plan.transfer([([home], problem.saved[index].bytes)], after=after, stream=back)
        for index in (index for index in recompute_order if choice.recompute_at[index] == position):
            after = [task["in", source] for source in problem.saved[index].sources if ("in", source) in task]
            task["again", index] = plan.task(compute, round(problem.saved[index].recompute_s * 10**12), after=after)
        after = [
            task["in", i] for i, one in enumerate(problem.saved) if one.first_backward == first[i] == position and ("in", i) in task
        ]
        task["work", position] = plan.task(compute, round(duration * 10**12), after=after)
        for index in (index for index in out_order if problem.saved[index].last_forward == position):
            flows = [([away], problem.saved[index].bytes)]
            task["out", index] = plan.transfer(flows, after=[task["work", position]], stream=out)
    return plan, task


@pytest.mark.oracle
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_engine_gives_the_same_schedule(data: st.DataObject) -> None:
    problem = data.draw(problems())
    choice = data.draw(choices(problem))
    plan, task = as_plan(problem, choice)
    ours, timeline = simulate(problem, choice), engine.run(plan)
    assert ours.time_ps == timeline.end_ps
    for (what, index), number in task.items():
        span = {"gate": ours.gates_ps, "work": ours.starts_ps, "out": ours.out_ps, "in": ours.in_ps, "again": ours.recompute_ps}[
            what
        ][index]
        assert (span if isinstance(span, int) else span[0]) == timeline.starts_ps[number], (what, index)
        if what in ("out", "in", "again"):
            assert span[1] == timeline.ends_ps[number]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_peak_by_position_holds_whatever_the_timing(data: st.DataObject) -> None:
    problem = data.draw(problems())
    choice = data.draw(choices(problem))
    found = simulate(problem, choice)
    assert found.peak_over_time_bytes <= found.peak_bytes
    slow = replace(
        problem,
        durations_s=tuple(data.draw(st.integers(0, 9)) / 3 for _ in problem.durations_s),
        out_bytes_per_s=data.draw(st.sampled_from([0.5, 2, 90])),
        in_bytes_per_s=data.draw(st.sampled_from([0.5, 2, 90])),
    )
    assume(slow != problem)
    assert simulate(slow, choice).peak_over_time_bytes <= found.peak_bytes
    assert simulate(slow, choice).used_bytes == found.used_bytes


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_faster_link_never_costs_time(data: st.DataObject) -> None:
    problem = data.draw(problems())
    choice = data.draw(choices(problem))
    fast = replace(problem, out_bytes_per_s=2 * problem.out_bytes_per_s, in_bytes_per_s=3 * problem.in_bytes_per_s, latency_s=0.0)
    assert simulate(fast, choice).time_ps <= simulate(problem, choice).time_ps
    assert simulate(problem, choice).time_ps >= sum(round(d * 10**12) for d in problem.durations_s)


@given(st.data())
def test_memory_counts_where_users_are(data: st.DataObject) -> None:
    problem = data.draw(problems())
    choice = data.draw(choices(problem))
    stretches: dict[int, set[int]] = {}
    for index, first, last in present(problem, choice):
        assert not stretches.get(index, set()) & set(range(first, last + 1)), "counted twice"
        stretches.setdefault(index, set()).update(range(first, last + 1))
    for index, one in enumerate(problem.saved):
        assert set(range(one.produced, one.last_forward + 1)) <= stretches[index]
        if one.first_backward != NEVER:
            assert set(range(one.first_backward, one.last_backward + 1)) <= stretches[index]
    for index, at in enumerate(choice.recompute_at):
        if at is not None:
            assert all(at in stretches[source] for source in problem.saved[index].sources)


def line(**kwargs: object) -> Problem:
    """Two tensors over six positions of a second each; the link moves a byte a second."""
    values = {
        "durations_s": (1.0,) * 6,
        "other_bytes": (0,) * 6,
        "saved": (
            Saved(name="a", bytes=2, produced=0, last_forward=0, first_backward=5, last_backward=5),
            Saved(name="b", bytes=2, produced=1, last_forward=1, first_backward=4, last_backward=4),
        ),
        "out_bytes_per_s": 1,
        "in_bytes_per_s": 1,
        "labels": ("f0", "f1", "f2", "b2", "b1", "b0"),
    }
    return Problem(**{**values, **kwargs})


@pytest.mark.probe
def test_a_position_waits_for_what_must_have_left_and_not_a_picosecond_more() -> None:
    problem = line()
    for leave, start in ((1, 3.0), (2, 3.0), (3, 3.0), (4, 4.0), (5, 5.0)):  # the copy of 2 s starts when f0 ends, at 1
        choice = Choice(decisions=("send", "keep"), leave_by=(leave, None), fetch_at=(5, None), recompute_at=(None, None))
        found = simulate(problem, choice)
        assert found.out_ps[0] == (10**12, 3 * 10**12)
        assert found.gates_ps[leave] == start * 10**12, leave


@pytest.mark.probe
def test_a_use_waits_for_its_fetch() -> None:
    problem = line(in_bytes_per_s=2, out_bytes_per_s=100)
    late = Choice(decisions=("send", "keep"), leave_by=(1, None), fetch_at=(5, None), recompute_at=(None, None))
    assert simulate(problem, late).time_s == pytest.approx(7.02)
    assert simulate(problem, replace(late, fetch_at=(4, None))).time_s == pytest.approx(6.02)  # 0.02: f1 waits for the copy out
    assert simulate(problem, replace(late, fetch_at=(4, None))).used_bytes == (2, 2, 2, 2, 4, 2)


def test_a_chain_is_made_again_from_its_first_source() -> None:
    """The inner one is never needed by itself: it comes and goes with the outer one."""
    saved = (
        Saved(name="x", bytes=1, produced=0, last_forward=0, first_backward=5, last_backward=5),
        Saved(
            name="inner", bytes=4, produced=1, last_forward=1, first_backward=-1, last_backward=-1, recompute_s=1.0, sources=(0,)
        ),
        Saved(name="outer", bytes=8, produced=1, last_forward=2, first_backward=4, last_backward=4, recompute_s=2.0, sources=(1,)),
    )
    problem = line(saved=saved)
    found = simulate(problem, ("keep", "recompute", "recompute"))
    assert found.recompute_order == (1, 2)
    assert found.recompute_ps[1:] == ((4 * 10**12, 5 * 10**12), (5 * 10**12, 7 * 10**12))
    assert found.used_bytes == (1, 13, 9, 1, 13, 1)
    assert found.time_s == 9.0
    dropped = simulate(problem, ("keep", "recompute", "keep"))
    assert dropped.used_bytes == (1, 13, 9, 9, 9, 1)
    assert dropped.time_s == 6.0


def test_a_weight_over_the_end_of_the_step_comes_first_and_leaves_last() -> None:
    state = Saved(name="momentum", bytes=3, produced=6, last_forward=5, first_backward=2, last_backward=2)
    found = simulate(line(saved=(state,)), ["send"])
    assert found.used_bytes == (0, 0, 3, 0, 0, 0)
    assert simulate(line(saved=(state,)), ["keep"]).used_bytes == (3, 3, 3, 0, 0, 0)  # from 3 to 5 it is in other_bytes
    assert found.time_s == 12.0  # 3 s for the fetch, 6 s of work, 3 s to leave
    early = Choice(decisions=("send",), leave_by=(6,), fetch_at=(0,), recompute_at=(None,))
    assert simulate(line(saved=(state,)), early).time_s == 10.0


def test_the_stress_mode_sends_all_but_what_is_cheap() -> None:
    cheap = Saved(
        name="relu", bytes=2, produced=2, last_forward=2, first_backward=3, last_backward=3, recompute_s=0.1, sources=(1,)
    )
    problem = line(saved=(*line().saved, cheap), in_bytes_per_s=2, out_bytes_per_s=2)
    assert offload_all(problem).decisions == ("send", "send", "recompute")
    assert offload_all(problem, recompute="none").decisions == ("send", "send", "send")
    assert offload_all(problem, keep=[0]).decisions == ("keep", "send", "recompute")
    assert offload_all(problem, window=1).fetch_at == (3, 2, None)  # b comes first: relu is made from it at 3; a when b is used
    assert offload_all(problem).fetch_at == (1, 2, None)
    one, all_at_once = offload_all(problem, window=1), offload_all(problem)
    assert all_at_once.time_s <= one.time_s
    assert offload_all(problem, behind=1).leave_by == (1, 3, None)
    with pytest.raises(BadInput, match="at least 1"):
        offload_all(problem, window=0)


def test_along_a_path_every_other_map_is_made_again() -> None:
    """What is made again from what is made again would all come back at once; what only stands between does not count."""
    first, *_ = line().saved
    path = [replace(first, bytes=1, recompute_s=0.1, sources=(index - 1,) if index else ()) for index in range(4)]
    path[1] = replace(path[1], first_backward=NEVER, last_backward=NEVER)
    problem = line(saved=tuple(path))
    assert offload_all(problem).decisions == ("recompute", "recompute", "send", "recompute")
    assert offload_all(problem, depth=2).decisions == ("recompute", "recompute", "recompute", "send")
    assert offload_all(problem, depth=None).decisions == ("recompute",) * 4


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_wider_window_never_costs_time(data: st.DataObject) -> None:
    problem = data.draw(problems())
    assume(problem.duplex)
    times = [offload_all(problem, window=window).time_s for window in (1, 2, 4, None)]
    assert times == sorted(times, reverse=True)
    assert offload_all(problem, behind=1).time_s >= offload_all(problem).time_s


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"produced": 3}, "made at 3, last used forward at 0"),
        ({"first_backward": 9, "last_backward": 9}, "needed from 9 to 9"),
        ({"sources": (0,)}, "must come before it"),
        ({"recompute_s": -1.0}, "recompute_s must be at least 0"),
        ({"first_backward": -1}, "last_backward must be -1 too"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        line(saved=(replace(line().saved[0], **change),))


def test_bad_choices_are_refused() -> None:
    problem, nothing = line(), (None, None)
    with pytest.raises(BadInput, match="cannot be made again"):
        simulate(problem, ("keep", "recompute"))
    with pytest.raises(BadInput, match="leaves by 0"):
        simulate(problem, Choice(decisions=("send", "keep"), leave_by=(0, None), fetch_at=nothing, recompute_at=nothing))
    with pytest.raises(BadInput, match="unknown decision 'drop'"):
        simulate(problem, ("keep", "drop"))  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="2 saved tensors, the choice 1"):
        simulate(problem, ("keep",))
    with pytest.raises(BadInput, match="bandwidth both ways"):
        line(out_bytes_per_s=0)
    with pytest.raises(BadInput, match="cannot be sent"):
        simulate(line(saved=(replace(problem.saved[0], sendable=False),)), ["send"])


ONE = Saved(name="x", bytes=8, produced=1, last_forward=2, first_backward=4, last_backward=5)
WEIGHT = Saved(name="w", bytes=8, produced=3, last_forward=2, first_backward=1, last_backward=2)
"""Between its last use in this step and its first one in the next."""


def six(*saved: Saved, **fields: object) -> Problem:
    usual = {"durations_s": (1.0,) * 6, "other_bytes": (2,) * 6, "out_bytes_per_s": 4, "in_bytes_per_s": 8}
    return Problem(saved=saved, **(usual | fields))  # type: ignore[arg-type]


# fmt: off
EDGES = [
    # as far as it may go, one step too far, what is said
    (ONE,    {"produced": 3},                    {"produced": 4},                      "made at 4, last used"),
    (ONE,    {"produced": 0},                    {"produced": -1},                     "made at -1"),
    (ONE,    {"bytes": 0},                       {"bytes": -1},                        "-1 bytes"),
    (ONE,    {"first_backward": 3},              {"first_backward": 2, "produced": 2}, "needed from 2 to 5"),
    (ONE,    {"first_backward": 5},              {"first_backward": 6},                "needed from 6 to 5"),
    (ONE,    {"last_backward": 4},               {"last_backward": 3},                 "needed from 4 to 3"),
    (ONE,    {"last_backward": 5},               {"last_backward": 6},                 "needed from 4 to 6"),
    (ONE,    {"recompute_s": 0.0},               {"recompute_s": -0.5},                "recompute_s must be at least 0"),
    (ONE,    {"clean_after": 0},                 {"clean_after": 1},                   "clean_after 1 is no number"),
    (ONE,    {"clean_after": 0},                 {"clean_after": -1},                  "clean_after -1 is no number"),
    (ONE,    {"sources": ()},                    {"sources": (-1,)},                   "must come before it"),
    (WEIGHT, {"first_backward": 0},              {"last_backward": 3},                 "made right after its last use"),
    (WEIGHT, {"last_forward": 5, "produced": 6}, {"last_forward": 6, "produced": 7},   "last used forward at 6 of 6"),
    (WEIGHT, {"last_backward": 1},               {"last_backward": 0},                 "made right after its last use"),
    (WEIGHT, {},                                 {"produced": 2},                      "made right after its last use"),
    (WEIGHT, {},                                 {"recompute_s": 1.0},                 "what outlives the step"),
]
PROBLEMS = [
    ({"durations_s": (), "other_bytes": ()},                  "got 0, 0 and 0"),
    ({"other_bytes": (2,) * 5},                               "got 6, 5 and 0"),
    ({"labels": ("a",)},                                      "got 6, 6 and 1"),
    ({"in_bytes_per_s": 0},                                   "bandwidth both ways"),
    ({"latency_s": -1e-9},                                    "bandwidth both ways"),
    ({"durations_s": (1.0,) * 5 + (-1.0,)},                   "negative duration"),
    ({"other_bytes": (2,) * 5 + (-1,)},                       "negative held bytes"),
]
# fmt: on


@pytest.mark.probe
@pytest.mark.parametrize(("saved", "last", "beyond", "message"), EDGES)
def test_a_tensor_may_go_as_far_as_the_step_does(
    saved: Saved, last: dict[str, object], beyond: dict[str, object], message: str
) -> None:
    assert six(replace(saved, **last)).saved[0].name == saved.name  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=message):
        six(replace(saved, **beyond))  # type: ignore[arg-type]


@pytest.mark.parametrize(("change", "message"), PROBLEMS)
def test_a_step_without_a_length_or_a_link_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        six(ONE, **change)


def test_sources_come_earlier_in_the_list_and_stay_within_the_step() -> None:
    made = replace(ONE, recompute_s=1.0, sources=(0,))
    assert six(ONE, made).saved[1].sources == (0,)
    with pytest.raises(BadInput, match="must come before it"):
        six(ONE, replace(made, sources=(1,)))
    with pytest.raises(BadInput, match="stay within the step"):
        six(WEIGHT, made)


def test_a_copy_takes_its_latency_and_whole_picoseconds_rounded_up() -> None:
    problem = six(ONE, latency_s=2e-12)
    assert problem.copy_ps(8, 4) == 2 + 2 * 10**12
    assert problem.copy_ps(1, 3.4) == 2 + 333_333_333_334  # three whole bytes a second
    assert problem.copy_ps(1, 0.2) == 2 + 10**12  # at least one
    assert problem.copy_ps(0, 4) == 2


def test_positions_have_names_of_their_own_or_numbers() -> None:
    assert six(ONE).label(3) == "position 3"
    assert six(ONE, labels=tuple("abcdef")).label(3) == "d"


def test_what_is_made_again_is_so_between_its_last_use_forward_and_its_first_backward() -> None:
    problem = six(replace(ONE, recompute_s=1.0))
    for at, fits in ((2, False), (3, True), (4, True), (5, False)):
        choice = Choice(decisions=("recompute",), leave_by=(None,), fetch_at=(None,), recompute_at=(at,))
        if fits:
            assert completed(problem, choice).recompute_at == (at,)
        else:
            with pytest.raises(BadInput, match=f"is made again at {at}: that must lie after 2 and not behind its first use at 4"):
                completed(problem, choice)


def test_a_source_that_is_still_in_use_forward_cannot_make_another() -> None:
    late = replace(ONE, produced=1, last_forward=3, first_backward=5)
    early = Saved(name="y", bytes=1, produced=1, last_forward=1, first_backward=3, last_backward=3, recompute_s=1.0, sources=(0,))
    with pytest.raises(BadInput, match="before its source 0 was last used"):
        simulate(six(late, early), ("keep", "recompute"))
    assert simulate(six(replace(late, last_forward=2), early), ("keep", "recompute")).time_s == 7.0


@pytest.mark.probe
def test_copies_leave_and_return_within_their_stretch() -> None:
    """Of a map between its two uses; of a weight over the end of the step."""
    for saved, leaves, fetches in ((ONE, range(3, 5), range(3, 5)), (WEIGHT, range(3, 7), range(2))):
        for leave in range(-1, 8):
            for fetch in range(-1, 8):
                choice = Choice(decisions=("send",), leave_by=(leave,), fetch_at=(fetch,), recompute_at=(None,))
                if leave in leaves and fetch in fetches:
                    filled = completed(six(saved), choice)
                    assert (filled.leave_by, filled.fetch_at) == ((leave,), (fetch,))
                else:
                    with pytest.raises(BadInput, match=f"leaves by {leave} and is fetched at {fetch}"):
                        completed(six(saved), choice)


def test_memory_of_a_stretch_over_the_end_of_the_step_counts_at_both_ends() -> None:
    sent = Choice(decisions=("send",), leave_by=(5,), fetch_at=(1,), recompute_at=(None,))
    assert simulate(six(WEIGHT), ["keep"]).used_bytes == (10, 10, 10, 10, 10, 10)
    assert simulate(six(WEIGHT), sent).used_bytes == (2, 10, 10, 10, 10, 2)


def test_what_was_decided_for_so_many_bytes() -> None:
    problem = six(ONE, replace(ONE, bytes=3), replace(ONE, bytes=5))
    choice = completed(problem, ("send", "keep", "send"))
    assert (decided_bytes(problem, choice), decided_bytes(problem, choice, "keep")) == (13, 3)
    assert decided_bytes(problem, choice, "recompute") == 0


def three(**fields: object) -> Problem:
    """Maps made one after the other that backward reads in reverse; the second can be made from the first, the third from it."""
    again = {"recompute_s": 0.25}
    saved = [
        Saved(name=f"t{n}", bytes=8, produced=n, last_forward=n, first_backward=8 - n, last_backward=8 - n, **(again if n else {}))  # type: ignore[arg-type]
        for n in range(3)
    ]
    saved[1], saved[2] = replace(saved[1], sources=(0,)), replace(saved[2], sources=(1,))
    link = {"out_bytes_per_s": 8, "in_bytes_per_s": 8}
    return Problem(durations_s=(1.0,) * 9, other_bytes=(0,) * 9, saved=tuple(saved), **(link | fields))  # type: ignore[arg-type]


# fmt: off
STRESS = [
    # options                                decisions                              leave by            fetched at
    ({},                                     ("send", "recompute", "send"),         (7, None, 6),       (1, None, 3)),
    ({"depth": 2},                           ("send", "recompute", "recompute"),    (6, None, None),    (1, None, None)),
    ({"depth": None},                        ("send", "recompute", "recompute"),    (6, None, None),    (1, None, None)),
    ({"recompute": "none"},                  ("send", "send", "send"),              (8, 7, 6),          (1, 2, 3)),
    ({"recompute": "none", "behind": 1},     ("send", "send", "send"),              (1, 2, 6),          (1, 2, 3)),
    ({"recompute": "none", "behind": 2},     ("send", "send", "send"),              (2, 7, 6),          (1, 2, 3)),
    ({"recompute": "none", "window": 1},     ("send", "send", "send"),              (8, 7, 6),          (7, 6, 3)),
    ({"recompute": "none", "window": 2},     ("send", "send", "send"),              (8, 7, 6),          (6, 2, 3)),
    ({"recompute": "none", "keep": [1]},     ("send", "keep", "send"),              (8, None, 6),       (1, None, 3)),
    ({"keep": [1]},                          ("send", "keep", "recompute"),         (8, None, None),    (1, None, None)),
]
# fmt: on


@pytest.mark.parametrize(("options", "decisions", "leave_by", "fetch_at"), STRESS)
def test_all_leaves_as_late_and_comes_back_as_early_as_the_windows_let_it(options, decisions, leave_by, fetch_at) -> None:  # type: ignore[no-untyped-def]
    choice = offload_all(three(), **options)
    assert (choice.decisions, choice.leave_by, choice.fetch_at) == (decisions, leave_by, fetch_at)


@pytest.mark.parametrize("limit", ["window", "behind", "depth"])
def test_a_window_holds_at_least_one_tensor(limit: str) -> None:
    with pytest.raises(BadInput, match="count tensors: at least 1 or None"):
        offload_all(three(), **{limit: 0})  # type: ignore[arg-type]
    assert offload_all(three(), **{limit: 1}).time_s > 0  # type: ignore[arg-type]


def test_the_peak_of_one_timing_is_that_of_the_instants_in_which_things_are_in_memory() -> None:
    """Eight bytes from position 1 on beside what else is there; sent, they are gone from the end of the copy to its return."""
    others = (9, 1, 1, 7, 1, 1)
    assert simulate(six(other_bytes=others), []).peak_over_time_bytes == 9
    assert simulate(six(ONE, other_bytes=others), ["keep"]).peak_over_time_bytes == 7 + 8
    assert simulate(six(ONE, other_bytes=others), ["send"]).peak_over_time_bytes == 9
    late = Choice(decisions=("send",), leave_by=(4,), fetch_at=(4,), recompute_at=(None,))
    assert simulate(six(ONE, other_bytes=others), late).peak_over_time_bytes == 7 + 8, "the copy takes two seconds"
    quick = six(ONE, other_bytes=(9, 1, 1, 1, 1, 1), out_bytes_per_s=10**6, in_bytes_per_s=10**6)
    assert simulate(quick, ["send"]).peak_over_time_bytes == 1 + 8
