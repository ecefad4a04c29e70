"""The search against trying everything, its compiled loops against plain ones, and what must hold at every budget."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from statistics import mean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.overlay_placement import placed
from trainyard.errors import BadInput
from trainyard.kernels.mapping import overlay as kernel
from trainyard.mapping.overlay.policy import NEVER, Choice, Problem, Saved, completed, needs, simulate, used_bytes
from trainyard.mapping.overlay.search import DECISIONS, Ladder, _cheapest, _smallest, as_needed, enough, packed


def random_problem(seed: int, *, most: int = 6, unit: int = 1, odd: bool = True) -> Problem:
    """What is made early is needed late, mostly; `odd` adds weights over the end of the step and what cannot be sent."""
    rng = random.Random(seed)
    forward = rng.randint(2, 7)
    positions = forward + rng.randint(forward, 2 * forward)
    saved: list[Saved] = []
    for index in range(rng.randint(1, most)):
        made = rng.randint(0, forward - 1)
        first = min(positions - 1, max(forward, positions - 1 - made * (positions - forward) // forward - rng.randint(0, 2)))
        one = Saved(
            name=f"t{index}",
            bytes=rng.randint(1, 20) * unit + rng.randrange(unit),
            produced=made,
            last_forward=rng.randint(made, min(made + 2, forward - 1)),
            first_backward=first,
            last_backward=min(positions - 1, first + rng.randint(0, 1)),
        )
        again = rng.choice([None, None, 0.1, 0.3, 1.0, 2.0])
        if again is not None:
            earlier = [other for other in range(index) if saved[other].produced <= made and not saved[other].wraps]
            one = replace(one, recompute_s=again, sources=tuple(sorted(rng.sample(earlier, min(len(earlier), rng.randint(0, 2))))))
            if rng.random() < 0.2:
                one = replace(one, first_backward=NEVER, last_backward=NEVER)
        elif odd and rng.random() < 0.2:
            use = rng.randint(0, one.last_forward)
            how = rng.choice([None, None, *range(index)])
            one = replace(one, produced=one.last_forward + 1, first_backward=use, last_backward=use, clean_after=how)
        elif odd and rng.random() < 0.2:
            one = replace(one, sendable=False)
        elif odd and rng.random() < 0.2:
            one = replace(one, clean=True)
        saved.append(one)
    return Problem(
        durations_s=tuple(rng.choice([0.0, 0.2, 0.5, 1, 2]) for _ in range(positions)),
        other_bytes=tuple(rng.randint(0, 6) * unit for _ in range(positions)),
        saved=tuple(saved),
        out_bytes_per_s=rng.choice([2, 5, 10, 30]) * unit,
        in_bytes_per_s=rng.choice([2, 5, 10, 30]) * unit,
        latency_s=rng.choice([0, 0.05]),
        duplex=rng.random() < 0.7,
    )


def every_decision(problem: Problem) -> list[tuple[int, ...]]:
    table = packed(problem)[0]
    menus = [[decision for decision in range(3) if kernel.allowed(table, index, decision)] for index in range(len(table))]
    return list(product(*menus))


def budgets(problem: Problem) -> list[int]:
    ladder = Ladder(problem)
    return sorted({ladder.least + (ladder.most - ladder.least) * part // 20 for part in (0, 1, 2, 4, 7, 10, 14, 18, 20)})


@pytest.mark.oracle
@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 10**6), early=st.booleans())
def test_compiled_loops_and_plain_ones_agree(seed: int, early: bool) -> None:
    problem = random_problem(seed)
    arrays, decisions = packed(problem), every_decision(problem)
    room = np.full((kernel.ROWS, len(problem.durations_s) + len(problem.saved) + 2), 10**6)  # what an earlier call left there
    room[kernel.IN_ORDER] = 0
    rng, sizes = random.Random(seed), budgets(problem)
    for way in rng.sample(decisions, min(len(decisions), 12)):
        names = tuple(DECISIONS[decision] for decision in way)
        for budget in rng.sample(sizes, min(len(sizes), 2)):
            time_ps, over = kernel.price(*arrays, np.array(way), budget, early, kernel.NO_WAY, room)
            try:
                plain = placed(problem, names, budget, early=early)
            except BadInput:  # a source is still in use in forward
                assert over == kernel.NO_WAY
                continue
            if plain is None:
                assert over == max(used_bytes(problem, completed(problem, names))) - budget > 0
                continue
            assert over <= 0
            assert plain.peak_bytes <= budget
            assert simulate(problem, plain).time_ps == time_ps
            for mine, row in ((plain.leave_by, kernel.LEAVE_BY), (plain.fetch_at, kernel.FETCH_AT)):
                assert [at for at in mine if at is not None] == [room[row, i] for i, at in enumerate(mine) if at is not None]


def trying_everything(problem: Problem, budget: int) -> int:
    """The least picoseconds of all decisions, copies placed as the search places them."""
    arrays, room = packed(problem), np.zeros((kernel.ROWS, 40), np.int64)
    ways = (np.array(way) for way in every_decision(problem))
    return min(kernel.price(*arrays, way, budget, early, kernel.NO_WAY, room)[0] for way in ways for early in (True, False))


@pytest.mark.oracle
def test_the_search_comes_close_to_trying_everything() -> None:
    gaps = []
    for seed in range(24):
        problem = random_problem(seed, most=7, unit=(1, 1000)[seed % 2], odd=False)
        for budget in budgets(problem)[::2]:
            found, least = simulate(problem, as_needed(problem, budget)).time_ps, trying_everything(problem, budget)
            assert found >= least
            gaps.append(found / least - 1)
    assert mean(gaps) < 0.002
    assert sum(gap == 0 for gap in gaps) > 0.97 * len(gaps)


def all_placements(problem: Problem, budget: int) -> int:
    """The least picoseconds of all decisions with every pair of positions for every copy."""
    least = kernel.NO_WAY
    for way in every_decision(problem):
        start = completed(problem, [DECISIONS[decision] for decision in way])
        first = needs(problem, start.decisions).first
        menus = [
            [(None, None)] if fetch is None else
            [(leave, at) for at in range(one.last_forward + 1, first[index] + 1) for leave in range(one.last_forward + 1, at + 1)]
            for index, (one, fetch) in enumerate(zip(problem.saved, start.fetch_at, strict=True))
        ]  # fmt: skip
        for places in product(*menus):
            choice = replace(start, leave_by=tuple(leave for leave, _ in places), fetch_at=tuple(at for _, at in places))
            if max(used_bytes(problem, choice)) <= budget:
                least = min(least, simulate(problem, choice).time_ps)
    return least


def short_problem(seed: int) -> Problem:
    """Three tensors over six positions: small enough for every placement."""
    rng = random.Random(seed)
    saved = []
    for index in range(3):
        again = rng.choice([None, 0.3, 1.0])
        first = rng.randint(3, 5 - index)
        sources = (index - 1,) if index and again is not None else ()
        one = Saved(
            name=f"t{index}",
            bytes=rng.randint(1, 9),
            produced=index,
            last_forward=rng.randint(index, 2),
            first_backward=first,
            last_backward=max(first, 5 - index),
            recompute_s=again,
            sources=sources,
        )
        saved.append(one)
    return Problem(
        durations_s=tuple(rng.choice([0.5, 1, 2]) for _ in range(6)),
        other_bytes=tuple(rng.randint(0, 6) for _ in range(6)),
        saved=tuple(saved),
        out_bytes_per_s=rng.choice([2, 5, 10]),
        in_bytes_per_s=rng.choice([2, 5, 10]),
    )


@pytest.mark.oracle
def test_no_other_placement_is_much_faster() -> None:
    gaps = []
    for seed in range(25):
        problem = short_problem(seed)
        for budget in budgets(problem)[::3]:
            gaps.append(simulate(problem, as_needed(problem, budget)).time_ps / all_placements(problem, budget) - 1)
    assert min(gaps) >= 0
    assert mean(gaps) < 0.01
    assert max(gaps) < 0.1


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_larger_budget_never_gives_a_longer_time_and_all_are_held(seed: int) -> None:
    problem = random_problem(seed, most=9)
    ladder = Ladder(problem)
    sizes = range(ladder.least, ladder.most + 3)
    found = [ladder.climb(size) for size in sizes]
    assert all(choice.peak_bytes <= size for choice, size in zip(found, sizes, strict=True))
    times = [choice.time_s for choice in found]
    assert times == sorted(times, reverse=True)
    assert as_needed(problem, sizes[-1]) == Ladder(problem).climb(ladder.most)  # whatever was asked before
    for choice in found[::5]:
        again = simulate(problem, choice)
        assert (again.time_s, again.peak_bytes) == (choice.time_s, choice.peak_bytes)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_with_room_for_all_everything_is_kept(seed: int) -> None:
    problem = random_problem(seed)
    keep = simulate(problem, ["keep"] * len(problem.saved))
    found = as_needed(problem, keep.peak_bytes)
    assert found.time_s == keep.time_s
    assert not any(found.fetch_at)
    assert not any(found.recompute_at)


@pytest.mark.probe
@pytest.mark.parametrize("seed", range(12))
def test_one_byte_less_than_the_least_is_refused(seed: int) -> None:
    problem = random_problem(seed, odd=False)
    problem = replace(problem, labels=tuple(f"layer {position}" for position in range(len(problem.durations_s))))
    away = ["recompute" if one.first_backward == NEVER else "send" for one in problem.saved]
    used = used_bytes(problem, completed(problem, away))
    assert as_needed(problem, max(used)).peak_bytes == max(used)
    with pytest.raises(BadInput, match=rf"nothing fits {max(used) - 1} B: layer {used.index(max(used))} alone needs {max(used)}"):
        as_needed(problem, max(used) - 1)


def test_a_problem_without_saved_tensors() -> None:
    problem = Problem(durations_s=(1.0, 2.0), other_bytes=(5, 7), saved=(), out_bytes_per_s=1, in_bytes_per_s=1)
    assert as_needed(problem, 7) == Choice(decisions=(), leave_by=(), fetch_at=(), recompute_at=(), time_s=3.0, peak_bytes=7)
    with pytest.raises(BadInput, match="nothing fits 6 B: position 1"):
        as_needed(problem, 6)


def blocks(count: int, *, sendable: bool) -> Problem:
    """Blocks of four tensors, each made from the one before it; backward needs them in turn."""
    saved, width = [], 4
    end = 3 * width * count
    for index in range(width * count):
        first = end - 1 - 2 * index - 1
        sources = (index - 1,) if index % width else ()
        again = 1.0 if index % width else None
        one = Saved(name=f"t{index}", bytes=10, produced=index, last_forward=index, first_backward=first, last_backward=first + 1)
        saved.append(replace(one, recompute_s=again, sources=sources, sendable=sendable))
    link = {"out_bytes_per_s": 1, "in_bytes_per_s": 1}
    return Problem(durations_s=(1.0,) * end, other_bytes=(10,) * end, saved=tuple(saved), **link)


def test_checkpointing_is_found_where_nothing_can_be_sent() -> None:
    """The first tensor of each block stays, the others are made again from it as their block's turn comes."""
    problem = blocks(6, sendable=False)
    everything_kept = simulate(problem, ["keep"] * 24)
    checkpoints = simulate(problem, ["recompute" if one.sources else "keep" for one in problem.saved])
    assert checkpoints.peak_bytes < everything_kept.peak_bytes / 2
    found = as_needed(problem, checkpoints.peak_bytes)
    assert found.peak_bytes <= checkpoints.peak_bytes
    assert found.time_s <= checkpoints.time_s
    assert found.time_s > 72


def recomputable(sizes: tuple[int, ...], seconds: tuple[float | None, ...]) -> Problem:
    """Tensors made one after the other, that backward reads in reverse."""
    end = 2 * len(sizes)
    saved = [
        Saved(
            name=f"t{index}", bytes=size, produced=index, last_forward=index, first_backward=end - 1 - index,
            last_backward=end - 1 - index, recompute_s=again,
        )
        for index, (size, again) in enumerate(zip(sizes, seconds, strict=True))
    ]  # fmt: skip
    return Problem(durations_s=(1.0,) * end, other_bytes=(0,) * end, saved=tuple(saved), out_bytes_per_s=1, in_bytes_per_s=1)


def test_starts_recompute_every_eighth_of_the_bytes_and_send_the_rest_in_three_orders() -> None:
    """Eight equal tensors, the last made the cheapest: none, one, ... all of them are recomputed, from the last on."""
    problem = recomputable((4,) * 8, tuple(8.0 - index for index in range(8)))
    starts = Ladder(problem)._starts
    shares = [[index for index, decision in enumerate(base) if DECISIONS[decision] == "recompute"] for base, _ in starts[::3]]
    assert shares == [list(range(8 - count, 8)) for count in range(9)]
    assert [sends.tolist() for _, sends in starts[:3]] == [list(range(8)), list(range(8)), [0, 4, 2, 6, 1, 5, 3, 7]]
    assert [sends.tolist() for _, sends in starts[3:6]] == [list(range(7)), list(range(7)), [0, 4, 2, 6, 1, 5, 3]]


def test_the_dearest_to_recompute_for_its_bytes_is_sent_first_and_what_cannot_be_made_again_before_all() -> None:
    problem = recomputable((4, 1, 2, 8), (4.0, 3.0, None, 1.0))  # seconds a byte: 1, 3, never, 1/8
    _, by_cost, _ = (sends.tolist() for _, sends in Ladder(problem)._starts[:3])
    assert by_cost == [2, 1, 0, 3]


def test_the_decision_that_takes_the_least_memory() -> None:
    one = Saved(name="x", bytes=8, produced=0, last_forward=0, first_backward=3, last_backward=3)
    between = replace(one, first_backward=NEVER, last_backward=NEVER)
    for saved, decision in (
        (one, "send"),
        (replace(one, recompute_s=0.5), "send"),
        (replace(one, sendable=False), "keep"),
        (replace(one, sendable=False, recompute_s=0.5), "recompute"),
        (replace(between, recompute_s=0.5), "recompute"),
    ):
        assert DECISIONS[_smallest(saved)] == decision


def test_the_cheapest_to_recompute_counts_what_only_it_needs() -> None:
    """t1 is needed by t2 alone: t2 takes 1 + 4 seconds for its 8 bytes, more than t3's 4 for 8 and less than t0's 8."""
    problem = recomputable((8, 1, 8, 8), (8.0, 4.0, 1.0, 4.0))
    saved = list(problem.saved)
    saved[1] = replace(saved[1], first_backward=NEVER, last_backward=NEVER)
    saved[2] = replace(saved[2], sources=(1,))
    assert _cheapest(replace(problem, saved=tuple(saved))) == [3, 2, 0]
    empty = replace(saved[3], bytes=0)
    assert _cheapest(replace(problem, saved=(*saved[:3], empty))) == [2, 0, 3]


def test_a_problem_as_arrays_has_whole_picoseconds_and_all_sources_in_a_row() -> None:
    """A map that is made again, a weight whose copy another one leaves, a clean one."""
    made = Saved(name="y", bytes=6, produced=1, last_forward=1, first_backward=4, last_backward=5, recompute_s=0.5, sources=(0,))
    first = Saved(name="x", bytes=4, produced=0, last_forward=1, first_backward=5, last_backward=5, sendable=False)
    weight = Saved(name="w", bytes=2, produced=3, last_forward=2, first_backward=0, last_backward=1, clean_after=3)
    other = Saved(name="v", bytes=8, produced=3, last_forward=2, first_backward=5, last_backward=5, clean=True)
    problem = Problem(
        durations_s=(1.0, 0.5, 0, 1e-12, 2, 3), other_bytes=(1, 2, 3, 4, 5, 6), saved=(first, made, weight, other),
        out_bytes_per_s=4, in_bytes_per_s=2, latency_s=1e-12, duplex=False,
    )  # fmt: skip
    second = 10**12
    rows, line, ends, sources, duplex = packed(problem)
    assert rows.tolist() == [
        [4, 0, 1, 5, 5, -1, second + 1, 2 * second + 1, 0, 0, 0],
        [6, 1, 1, 4, 5, second // 2, second * 3 // 2 + 1, 3 * second + 1, 0, 0, 1],
        [2, 3, 2, 0, 1, -1, second // 2 + 1, second + 1, 1, 5, 1],
        [8, 3, 2, 5, 5, -1, 2 * second + 1, 4 * second + 1, 0, 1, 1],
    ]
    assert line.tolist() == [[second, 1], [second // 2, 2], [0, 3], [1, 4], [2 * second, 5], [3 * second, 6]]
    assert (ends.tolist(), sources.tolist(), duplex) == ([0, 1, 1, 1], [0], False)


def test_a_size_that_is_printed_is_enough() -> None:
    assert [enough(size) for size in (0, 9999, 10_000, 10_001, 12_345_678)] == ["0 B", "9.999 kB", "10 kB", "10.01 kB", "12.35 MB"]


def test_rungs_are_closer_where_memory_is_scarce_and_reach_from_the_least_to_the_most() -> None:
    ladder = Ladder(recomputable((1000,) * 6, (1.0,) * 6))
    assert (ladder.rungs[0], ladder.rungs[-1]) == (ladder.least, ladder.most)
    steps = [after - before for before, after in zip(ladder.rungs, ladder.rungs[1:], strict=False)]
    assert sum(steps[: len(steps) // 2]) < sum(steps) / 3
    assert ladder.most == 6000
    assert ladder.compute_ps == 12 * 10**12
