"""Gaps between accesses: where a tensor may stay, what it saves, how much room it takes; by hand."""

from __future__ import annotations

import pytest

from trainyard.ir import Collective, Copy, ElementWise, MatMul, Op, Reduction, Role, Step, TensorSpec, Work
from trainyard.mapping.between_layers.accesses import ALONE, Access, Gap, Tensor, gaps_of, may_begin, tensors_of, unwritten
from trainyard.mapping.between_layers.residency import Ledger, by_tensor, stays
from trainyard.mapping.between_layers.search import Cost, _Search, choose, total
from trainyard.mapping.demand import OnChip, Policy


def read(work: int, size: int = 64, **fields: bool) -> Access:
    return Access(work=work, read_bytes=size, whole_read=size == 64, **fields)


def write(work: int, size: int = 64, **fields: bool) -> Access:
    return Access(work=work, write_bytes=size, whole_write=size == 64, **fields)


def update(work: int) -> Access:
    return Access(work=work, read_bytes=64, write_bytes=64, whole_read=True, whole_write=True)


def tensor(*accesses: Access, lasts: bool = False, base: int = 7) -> Tensor:
    return Tensor(base=base, bytes=64, accesses=accesses, lasts=lasts)


def test_works_read_and_write_tensors_in_whole_in_part_or_outside_of_the_scratchpad() -> None:
    """A copy of half of x, a product with weights, a sum of several passes, an exchange."""
    tensors = [
        TensorSpec((4, 8)), TensorSpec((2, 8), view_of=0), TensorSpec((2, 8)), TensorSpec((8, 4), role=Role.PARAMETER),
        TensorSpec((4, 4)), TensorSpec((4,)),
    ]  # fmt: skip
    ops = [
        Op(body=Copy("clone", 16), inputs=(1,), outputs=(2,)),
        Op(body=MatMul(4, 4, 8), layer="fc", inputs=(0, 3), outputs=(4,), letters=("A", "W")),
        Op(body=Reduction("softmax", 16, 16, 2), inputs=(4,), outputs=(4,)),
        Op(body=Collective("all_reduce", 16, 2), inputs=(4,), outputs=(4,)),
    ]
    step = Step(name="four", batch=4, ops=tuple(ops), tensors=tuple(tensors))
    found = {one.base: one for one in tensors_of(step, [Work(ops=(n,)) for n in range(4)], Policy())}
    assert (found[0].bytes, found[0].lasts, found[3].lasts) == (128, False, True)
    assert found[0].accesses == (
        Access(work=0, read_bytes=64),
        Access(work=1, read_bytes=128, whole_read=True, in_tiles=True),
    )
    assert found[2].accesses == (Access(work=0, write_bytes=64, whole_write=True),)
    both = {"read_bytes": 64, "write_bytes": 64, "whole_read": True, "whole_write": True}
    assert found[4].accesses == (
        Access(work=1, write_bytes=64, whole_write=True, in_tiles=True),
        Access(work=2, in_tiles=True, **both),  # type: ignore[arg-type]
        Access(work=3, in_dram=True, in_tiles=True, whole_read=False, whole_write=False),
    )


def test_a_gap_lies_between_accesses_that_need_no_dram_unless_the_tensor_is_written_over_unseen() -> None:
    one = tensor(write(0), read(2), read(5, in_dram=True), read(6), write(8), update(9), read(10, in_tiles=True))
    assert gaps_of([tensor(write(0)), one]) == (
        Gap(1, 0, 0, 2),
        Gap(1, 4, 8, 9),
        Gap(1, 5, 9, 10),
        Gap(1, 6 + ALONE, 10, 10),
    )
    assert gaps_of([tensor(read(0), write(3, 32))]) == (Gap(0, 0, 0, 3),)
    assert gaps_of([tensor(read(0, in_tiles=True, in_dram=True))]) == ()


# fmt: off
BEGINS = [
    # accesses                        lasts   number      kept           complete on chip there
    ([read(0), read(1)],              False,  0,          (),            True),
    ([read(0, 32), read(1)],          False,  0,          (),            False),
    ([write(0), read(1)],             True,   0,          (),            True),
    ([write(0, 32), read(1)],         False,  0,          (),            True),     # new: what there is of it was kept
    ([write(0, 32), read(1)],         True,   0,          (),            False),    # the rest is in DRAM
    ([write(0), write(1, 32), read(2)], False, 1,         (),            False),
    ([write(0), write(1, 32), read(2)], False, 1,         (0,),          True),
    ([read(0, 32)],                   False,  ALONE,      (),            False),
    ([read(0)],                       False,  ALONE,      (),            True),
    ([write(0, 32)],                  False,  ALONE,      (),            False),
]
UNWRITTEN = [
    # accesses                                      lasts   number  kept        DRAM never needs what it writes
    ([write(0), read(1)],                           False,  0,      (0,),       True),
    ([write(0), read(1)],                           False,  0,      (),         False),
    ([write(0), read(1)],                           True,   0,      (0,),       False),   # the step leaves it behind
    ([write(0)],                                    False,  0,      (),         False),
    ([write(0), read(1), read(2)],                  False,  0,      (0,),       False),
    ([write(0), read(1), read(2)],                  False,  0,      (0, 1),     True),
    ([write(0), read(1), write(2), read(3)],        True,   0,      (0,),       True),    # written over without a look
    ([write(0), update(1), read(2)],                True,   0,      (0,),       True),    # and with one
    ([write(0), write(1, 32), read(2)],             False,  0,      (0,),       False),   # in part only
    ([write(0), read(1, in_dram=True)],             False,  0,      (0,),       False),
    ([write(0, in_dram=True), read(1)],             False,  0,      (0,),       False),
    ([read(0), read(1)],                            False,  0,      (0,),       False),
]
STAYS = [
    ((),                         []),
    ((0,),                       [(0, 2)]),
    ((0, 1),                     [(0, 5)]),
    ((0, 2),                     [(0, 2), (5, 9)]),
    ((1, 2),                     [(2, 9)]),
    ((1 + ALONE,),               [(2, 2)]),
    ((1, 1 + ALONE),             [(2, 5)]),
    ((0, 1 + ALONE),             [(0, 2)]),
    ((0, 2 + ALONE),             [(0, 2), (5, 5)]),
]
# fmt: on


@pytest.mark.parametrize(("accesses", "lasts", "number", "kept", "complete"), BEGINS)
def test_a_stay_begins_where_the_tensor_is_complete(
    accesses: list[Access], lasts: bool, number: int, kept: tuple[int, ...], complete: bool
) -> None:
    assert may_begin(tensor(*accesses, lasts=lasts), number, frozenset(kept)) is complete


@pytest.mark.parametrize(("accesses", "lasts", "number", "kept", "free"), UNWRITTEN)
def test_a_write_is_saved_where_all_readers_find_it_on_chip(
    accesses: list[Access], lasts: bool, number: int, kept: tuple[int, ...], free: bool
) -> None:
    assert unwritten(tensor(*accesses, lasts=lasts), number, frozenset(kept)) is free


@pytest.mark.parametrize(("gaps", "expected"), STAYS)
def test_gaps_in_a_row_are_one_stay(gaps: tuple[int, ...], expected: list[tuple[int, int]]) -> None:
    one = tensor(write(0), read(2), read(5), read(9))
    assert sorted(stays(one, frozenset(gaps))) == expected


def test_a_ledger_says_what_each_work_finds_and_how_much_room_is_taken() -> None:
    first, second = tensor(write(0), read(1), read(3), base=7), tensor(read(1), read(2), lasts=True, base=9)
    ledger = Ledger((first, second), 4)
    assert ledger.states() == {}
    assert ledger.change(0, frozenset({0, 1}))
    assert ledger.change(1, frozenset({0}))
    assert ledger.occupied.tolist() == [64, 128, 128, 64]
    assert ledger.states() == {
        0: OnChip(results=frozenset({7}), unwritten=frozenset({7}), occupied_bytes=64),
        1: OnChip(read=frozenset({7}), loaded=frozenset({9}), occupied_bytes=128),
        2: OnChip(read=frozenset({9}), occupied_bytes=128),
        3: OnChip(read=frozenset({7}), occupied_bytes=64),
    }
    assert ledger.change(0, frozenset({1}))
    assert ledger.occupied.tolist() == [0, 128, 128, 64]
    assert ledger.state(1) == OnChip(loaded=frozenset({7, 9}), occupied_bytes=128)
    assert ledger.change(0, frozenset({1 + ALONE}))
    assert ledger.occupied.tolist() == [0, 128, 64, 0]
    assert ledger.state(1) == OnChip(loaded=frozenset({7, 9}), occupied_bytes=128)


def test_a_change_that_cannot_be_leaves_everything_as_it_was() -> None:
    ledger = Ledger((tensor(read(0, 32), read(1), read(2)),), 3)
    assert ledger.change(0, frozenset({1}))
    assert not ledger.change(0, frozenset({0, 1}))
    assert (ledger.occupied.tolist(), ledger.kept) == ([0, 64, 64], {0: frozenset({1})})


def test_gaps_are_gathered_by_their_tensor() -> None:
    assert by_tensor([Gap(1, 0, 0, 2), Gap(0, 3, 1, 2), Gap(1, 2, 3, 4)]) == {1: (0, 2), 0: (3,)}


def test_an_element_wise_op_reads_its_operands_once() -> None:
    step = Step(
        name="one", batch=4, tensors=(TensorSpec((4,)), TensorSpec((4,))),
        ops=(Op(body=ElementWise("relu", 4), inputs=(0,), outputs=(1,)),),
    )  # fmt: skip
    assert [access.in_tiles for one in tensors_of(step, [Work(ops=(0,))], Policy()) for access in one.accesses] == [False, False]


class ByBytes:
    """Works cost a cycle for each byte that is not on chip, and have no room beyond a limit."""

    def __init__(self, tensors: tuple[Tensor, ...], room: int = 10**9) -> None:
        self.tensors, self.room = tensors, room

    def cost(self, work: int, state: OnChip) -> Cost | None:
        if state.occupied_bytes > self.room:
            return None
        moved = 0
        for one in self.tensors:
            for access in one.accesses:
                if access.work == work:
                    moved += access.read_bytes * (one.base not in state.read) + access.write_bytes * (
                        one.base not in state.unwritten
                    )
        return Cost(moved, moved)

    def same(self, work: int, state: OnChip) -> tuple[int, int]:
        return 0, self.room


MAPS = (tensor(write(0), read(1), base=0), tensor(write(1), read(2), base=1), tensor(write(2), read(3), base=2))


def test_gaps_that_fit_are_kept_and_the_bound_says_that_nothing_is_better() -> None:
    choice = choose(MAPS, 4, ByBytes(MAPS), 128)
    assert (choice.before, choice.after, choice.bound) == (Cost(384, 384), Cost(0, 0), Cost(0, 0))
    assert [(gap.tensor, gap.number) for gap in choice.kept] == [(0, 0), (1, 0), (2, 0)]
    assert (choice.proved, choice.ended) == (True, False)
    assert choice.states[1] == OnChip(
        read=frozenset({0}), results=frozenset({1}), unwritten=frozenset({1}), occupied_bytes=128
    )  # fmt: skip


def test_with_room_for_one_tensor_two_that_do_not_meet_are_kept() -> None:
    choice = choose(MAPS, 4, ByBytes(MAPS), 64)
    assert [gap.tensor for gap in choice.kept] == [0, 2]
    assert (choice.after, choice.proved) == (Cost(128, 128), True)
    assert choose(MAPS, 4, ByBytes(MAPS), 63).kept == ()


def test_an_effort_bounds_the_changes_that_are_tried_and_the_choice_says_so() -> None:
    """Three gaps are added; then each is tried without, in two rounds: nine changes."""
    for effort, kept, ended in ((1, 1, True), (2, 2, True), (3, 3, True), (8, 3, True), (9, 3, False), (0, 3, False)):
        choice = choose(MAPS, 4, ByBytes(MAPS), 128, effort)
        assert (len(choice.kept), choice.ended) == (kept, ended)


def test_a_work_whose_tiles_find_no_room_keeps_nothing() -> None:
    choice = choose(MAPS, 4, ByBytes(MAPS, room=64), 10**9)
    assert [gap.tensor for gap in choice.kept] == [0, 2]


@pytest.mark.probe
@pytest.mark.parametrize(("effort", "proved"), [(0, True), (7, True), (6, False)])
def test_all_subsets_of_three_gaps_take_seven_branches(effort: int, proved: bool) -> None:
    """Nothing decided; the first kept; with the second (no room), without it; with the third (the best), without it; no first."""
    search = _Search(MAPS, 4, ByBytes(MAPS), 64, effort)
    assert search.exhaust(gaps_of(MAPS)) is proved
    assert search.ended is not proved
    assert total(search.costs) == Cost(128, 128)
