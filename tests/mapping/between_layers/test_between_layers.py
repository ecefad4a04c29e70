"""Tensors that stay on chip between Works: the search against all subsets, the residency against a replay."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles.scratchpad_replay import Replay, compulsory_bytes

import trainyard as ty
from trainyard.devices.accelerator.between import WorkCosts, kept_between
from trainyard.devices.accelerator.sliced import sliced_between
from trainyard.ir import ElementWise, MatMul, Op, Phase, Reduction, Step, TensorSpec, Update
from trainyard.ir.step import Role
from trainyard.mapping.between_layers.accesses import gaps_of, tensors_of
from trainyard.mapping.between_layers.residency import NONE, Ledger
from trainyard.mapping.between_layers.search import choose, total
from trainyard.mapping.between_layers.slices import Blocks, Cuttable
from trainyard.progress import listening

ROWS, WIDTH = 24, 16
TOLERANCE = 1.01  # of the tile search, in which it takes the least traffic
MAP, SQUARE = ROWS * WIDTH * 4, WIDTH * WIDTH * 4


def program(choices: list[tuple[int, int, int]]) -> Step:
    """A step of products, sums, in-place ops and updates of parameters over maps (ROWS, WIDTH) and squares (WIDTH, WIDTH)."""
    tensors = [TensorSpec((ROWS, WIDTH), role=Role.INPUT), TensorSpec((WIDTH, WIDTH), role=Role.PARAMETER)]
    maps, squares, ops = [0], [1], list[Op]()

    def new(shape: tuple[int, ...], **about: object) -> int:
        tensors.append(TensorSpec(shape, **about))  # type: ignore[arg-type]
        return len(tensors) - 1

    for kind, first, second in choices:
        x, y, w = maps[first % len(maps)], maps[second % len(maps)], squares[second % len(squares)]
        if kind == 0:  # a layer, with a parameter of its own in every other case
            w = new((WIDTH, WIDTH), role=Role.PARAMETER) if second % 2 else w
            squares.append(w)
            maps.append(new((ROWS, WIDTH)))
            ops.append(Op(body=MatMul(ROWS, WIDTH, WIDTH), name="layer", inputs=(x, w), outputs=(maps[-1],)))
        elif kind == 1:  # the gradient of a parameter
            squares.append(new((WIDTH, WIDTH), role=Role.PARAMETER_GRADIENT))
            body = MatMul(WIDTH, WIDTH, ROWS)
            ops.append(Op(body=body, name="dW", phase=Phase.GRAD_WEIGHT, inputs=(x, y), outputs=(squares[-1],)))
        elif kind == 2:
            maps.append(new((ROWS, WIDTH)))
            ops.append(Op(body=ElementWise("add", ROWS * WIDTH), name="add", inputs=(x, y), outputs=(maps[-1],)))
        elif kind == 3:  # in place: a new version of the same memory
            maps.append(new((ROWS, WIDTH), view_of=x))
            ops.append(Op(body=ElementWise("relu_", ROWS * WIDTH), name="relu_", inputs=(x,), outputs=(maps[-1],)))
        else:
            squares.append(new((WIDTH, WIDTH), role=tensors[w].role, view_of=w))
            body = Update("sgd", WIDTH * WIDTH)
            ops.append(Op(body=body, name="sgd", phase=Phase.UPDATE, inputs=(w, squares[0]), outputs=(squares[-1],)))
    return Step(name="random", batch=ROWS, ops=tuple(ops), tensors=tuple(tensors))


def batched(step: Step) -> Step:
    """The same with slopes: maps have one row for each sample."""
    tensors = tuple(replace(spec, slope=(1, 0) if spec.shape[0] == ROWS else ()) for spec in step.tensors)
    slopes = {"layer": (1, 0, 0, 0), "dW": (0, 0, 1, 0), "add": (WIDTH, 0), "relu_": (WIDTH, 0), "sgd": ()}
    return replace(step, tensors=tensors, ops=tuple(replace(op, slope=slopes[op.name]) for op in step.ops))


PROGRAMS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=9).map(program)


def accelerator(scratchpad_bytes: int, **fields: object) -> ty.Accelerator:
    array = ty.arrays.Systolic(rows=8, columns=8)
    return ty.Accelerator(array=array, scratchpad_bytes=scratchpad_bytes, dram_bytes_per_s=4e9, clock_hz=1e9, **fields)


@settings(max_examples=6, deadline=None)
@given(step=PROGRAMS, room=st.integers(3000, 40_000), order=st.sampled_from(["sequential", "interleaved"]))
def test_a_replay_finds_every_tensor_where_the_residency_says(step: Step, room: int, order: str) -> None:
    device = accelerator(room, order=order)
    policy, choice = kept_between(step, device.policy, device._costing, room)
    works, states = device.works(step), policy.residency.by_work if policy.residency else {}
    replay = Replay(step, device.policy, room)
    replay.run(works, states)
    assert choice.after <= choice.before
    assert choice.bound.cycles <= choice.after.cycles * TOLERANCE
    assert choice.after.bytes >= replay.reads + replay.writes


@settings(max_examples=6, deadline=None)
@given(step=PROGRAMS, room=st.integers(3000, 60_000), order=st.sampled_from(["sequential", "interleaved", "cost"]))
def test_reuse_between_layers_is_never_slower_and_moves_the_compulsory_bytes_at_least(step: Step, room: int, order: str) -> None:
    off, on = (ty.run(step, accelerator(room, order=order, reuse=reuse)) for reuse in ("step", "layers"))
    device = accelerator(room, order=order)
    least = compulsory_bytes(step, device.works(step), device.policy)
    assert (on.cycles, on.traffic_bytes["dram"]) <= (off.cycles, off.traffic_bytes["dram"])
    assert on.traffic_bytes["dram"] >= least
    assert on.macs == off.macs


@settings(max_examples=6, deadline=None)
@given(step=PROGRAMS, order=st.sampled_from(["sequential", "interleaved", "cost"]))
def test_a_scratchpad_without_end_moves_exactly_the_compulsory_bytes(step: Step, order: str) -> None:
    device = accelerator(1 << 30, order=order, reuse="layers")
    assert ty.run(step, device).traffic_bytes["dram"] == compulsory_bytes(step, device.works(step), device.policy)


@settings(max_examples=10, deadline=None)
@given(
    choices=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=3),
    room=st.integers(3000, 12_000),
)
def test_the_search_finds_the_best_of_all_subsets(choices: list[tuple[int, int, int]], room: int) -> None:
    step, device = program(choices), accelerator(room)
    works = device.works(step)
    tensors = tensors_of(step, works, device.policy)
    gaps, costs = gaps_of(tensors), WorkCosts(step, works, device.policy, device._costing)
    if len(gaps) > 9:
        return
    best = (math.inf, math.inf)
    for kept in itertools.product((False, True), repeat=len(gaps)):
        ledger = Ledger(tensors, len(works))
        chosen: dict[int, frozenset[int]] = {}
        for gap, keeps in zip(gaps, kept, strict=True):
            if keeps:
                chosen[gap.tensor] = chosen.get(gap.tensor, NONE) | {gap.number}
        if not all(ledger.change(tensor, numbers) for tensor, numbers in chosen.items()) or ledger.occupied.max() > room:
            continue
        each = [costs.cost(work, ledger.state(work)) for work in range(len(works))]
        if None not in each:
            best = min(best, tuple(total(each)))  # type: ignore[arg-type]
    choice = choose(tensors, len(works), costs, room)
    assert best[0] <= choice.after.cycles <= best[0] * TOLERANCE
    assert choice.proved


@settings(max_examples=6, deadline=None)
@given(step=PROGRAMS.map(batched), room=st.integers(1500, 8000))
def test_a_replay_of_slices_finds_every_tensor_and_slices_are_never_slower_than_layers(step: Step, room: int) -> None:
    device = accelerator(room)
    works = device.works(step)
    _, choice = kept_between(step, device.policy, device._costing, room)
    sliced = sliced_between(step, device.policy, device._costing, room, choice)
    if sliced is not None:
        policy, blocks = sliced
        replay = Replay(step, device.policy, room)
        replay.run(works, policy.residency.by_work, [range(block.first, block.last + 1) for block in blocks])  # type: ignore[union-attr]
        assert replay.reads + replay.writes >= compulsory_bytes(step, works, device.policy)
    layers, slices = (ty.run(step, accelerator(room, reuse=reuse)) for reuse in ("layers", "slices"))
    assert (slices.cycles, slices.traffic_bytes["dram"]) <= (layers.cycles, layers.traffic_bytes["dram"])
    assert slices.macs == layers.macs


def test_slices_of_a_batch_keep_on_chip_what_does_not_fit_as_a_whole() -> None:
    """Two layers whose map between them is three times the scratchpad: slice by slice it is neither written nor read."""
    tensors = (
        TensorSpec((96, 16), slope=(1, 0), role=Role.INPUT), TensorSpec((16, 64), role=Role.PARAMETER),
        TensorSpec((96, 64), slope=(1, 0)), TensorSpec((64, 16), role=Role.PARAMETER), TensorSpec((96, 16), slope=(1, 0)),
    )  # fmt: skip
    ops = (
        Op(body=MatMul(96, 64, 16), name="up", inputs=(0, 1), outputs=(2,), slope=(1, 0, 0, 0)),
        Op(body=MatMul(96, 16, 64), name="down", inputs=(2, 3), outputs=(4,), slope=(1, 0, 0, 0)),
    )
    step, room = Step(name="bottleneck", batch=96, ops=ops, tensors=tensors), 16 * 1024
    off, layers, slices = (ty.run(step, accelerator(room, reuse=reuse)) for reuse in ("off", "layers", "slices"))
    between, others = 96 * 64 * 4, (2 * 96 * 16 + 2 * 16 * 64) * 4
    assert off.traffic_bytes["dram"] >= layers.traffic_bytes["dram"] >= 2 * between + others
    assert slices.traffic_bytes["dram"] == others
    assert slices.cycles < layers.cycles


def test_a_sum_over_the_batch_is_read_behind_the_last_slice_only() -> None:
    step = batched(program([(0, 0, 1), (1, 1, 1), (4, 0, 1)]))
    works = accelerator(4096).works(step)
    blocks = Blocks(step, works, tensors_of(step, works, accelerator(4096).policy))
    assert blocks.can == [True, True, False]  # an update needs the whole gradient
    assert blocks.uses(0, 1) is not None


def test_batch_normalisation_ends_a_block() -> None:
    step = ty.zoo.load("resnet50", batch=2)
    cuttable = Cuttable(step)
    norms = [op for op in step.ops if isinstance(op.body, Reduction) and "batch_norm" in op.body.function]
    assert norms
    assert not any(cuttable._op(op) for op in norms)


def test_a_chain_of_two_layers_keeps_the_map_between_them_and_writes_it_not() -> None:
    step = program([(0, 0, 1), (0, 1, 3)])
    off, on = (ty.run(step, accelerator(64 * 1024, reuse=reuse)) for reuse in ("off", "on"))
    assert off.traffic_bytes["dram"] == 4 * MAP + 2 * SQUARE
    assert on.traffic_bytes["dram"] == 2 * MAP + 2 * SQUARE
    assert on.time_s < off.time_s


def test_one_byte_too_little_and_the_map_goes_through_dram() -> None:
    """Two streams need no tiles: the map between them needs its own bytes alone."""
    step = program([(2, 0, 0), (2, 1, 1)])
    least = compulsory_bytes(step, accelerator(MAP).works(step), accelerator(MAP).policy)
    exact, short = (ty.run(step, accelerator(size, reuse="layers", fusion="none")) for size in (MAP, MAP - 1))
    assert (exact.traffic_bytes["dram"], short.traffic_bytes["dram"]) == (least, least + 2 * MAP)


@pytest.mark.parametrize(
    ("word", "meaning"), [("on", "layers"), (True, "layers"), ("off", "step"), (False, "step"), ("none", "step")]
)
def test_words_for_reuse(word: str | bool, meaning: str) -> None:
    assert accelerator(4096, reuse=word).reuse == meaning


def test_two_ways_between_layers_are_refused_together() -> None:
    with pytest.raises(ty.errors.BadInput, match="across='relu' takes tiles from one layer into the next"):
        accelerator(4096, reuse="layers", across="relu", order="cost")
    with pytest.raises(ty.errors.BadInput, match="reuse='lru' or 'farthest'"):
        accelerator(4096, reuse="layers", cores=2)


def test_effort_bounds_what_is_tried_between_layers_and_the_result_says_so() -> None:
    step = batched(program([(0, 0, 1), (0, 1, 3), (2, 1, 2), (0, 2, 1)]))
    free, bounded = (ty.run(step, accelerator(6000, reuse="slices", effort=effort)) for effort in (100_000, 1))
    assert [note for note in bounded.notes if "what stays on chip between layers" in note]
    assert not [note for note in free.notes if "effort" in note]
    assert free.cycles <= bounded.cycles <= ty.run(step, accelerator(6000, effort=1)).cycles


def test_a_search_counts_what_it_looks_through() -> None:
    step, heard = program([(0, 0, 1), (0, 1, 3)]), list[tuple[int, int, str]]()
    with listening(lambda done, total, message="", /: heard.append((done, total, message))):
        ty.run(step, accelerator(6000, reuse="slices"))
    assert {message for _, _, message in heard} == {"search of tensors that stay on chip", "search of blocks of layers"}
    assert all(0 <= done < total for done, total, _ in heard)
