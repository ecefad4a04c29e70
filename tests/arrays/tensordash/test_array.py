"""TensorDash as an array: what it costs from masks and densities, one-sided and two-sided, sampled and whole."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.arrays import Spatial, Systolic, TensorCore, TensorDash
from trainyard.arrays.tensordash import groups
from trainyard.arrays.tensordash.array import _group_scheduling
from trainyard.caches import ENTRY_BYTES, BoundedCache
from trainyard.errors import BadInput, MaskError, UnknownName
from trainyard.ir import DENSE, Convolution, Density, MaskView, MatMul
from trainyard.kernels.arrays.dealing import makespan


@dataclass(frozen=True)
class Bits:
    tensors: dict[str, np.ndarray]
    digest: str = field(default="", compare=False)

    def __post_init__(self):
        object.__setattr__(self, "digest", str(hash(tuple((k, v.tobytes()) for k, v in self.tensors.items()))))

    def bits(self, key):
        return self.tensors[key[2]]


def matrices(m, n, k, zeros_a, zeros_b, seed=0):
    random = np.random.default_rng(seed)
    source = Bits({"A": random.random((m, k)) >= zeros_a, "B": random.random((n, k)) >= zeros_b})
    return source, MaskView(source, ("layer", 0, "A")), MaskView(source, ("layer", 0, "B"), transposed=True)


def streams(bits, lanes):
    """[rows, steps, lanes] of a matrix whose rows are streams."""
    rows, deep = bits.shape
    steps = -(-deep // lanes)
    return np.pad(bits, ((0, 0), (0, steps * lanes - deep))).reshape(rows, steps, lanes)


def by_hand(array, bits, wide):
    """Each group scheduled by itself, its blocks dealt out."""
    rows = streams(bits, array.lanes)
    rows = np.pad(rows, ((0, -len(rows) % array.rows), (0, 0), (0, 0)))
    cycles = [array.schedule(group) for group in rows.reshape(-1, array.rows, *rows.shape[1:])]
    return makespan(np.array(cycles), -(-wide // array.columns), array.tiles)


sizes = st.integers(1, 21)
shares = st.sampled_from([0.0, 0.3, 0.6, 0.9, 1.0])


@settings(max_examples=60)
@given(
    m=sizes,
    n=sizes,
    k=st.integers(1, 40),
    zeros_a=shares,
    zeros_b=shares,
    tiles=st.integers(1, 4),
    sync=st.sampled_from(["lockstep", "output", "block"]),
)
def test_the_scheduled_side_is_the_sparser_one_and_its_groups_are_dealt_out(m, n, k, zeros_a, zeros_b, tiles, sync):
    array = TensorDash(tiles=tiles, sync=sync, bypass=0.0)
    source, a, b = matrices(m, n, k, zeros_a, zeros_b)
    first, second = source.tensors["A"], source.tensors["B"]
    cost, dense = array.cost(MatMul(m, n, k), a=a, b=b), array.baseline.cost(MatMul(m, n, k))
    if first.all() and second.all():
        assert cost == dense
    elif first.mean() <= second.mean():
        assert cost.cycles == by_hand(array, first, n)
        assert cost.events["mac"] == first.sum() * n
    else:
        assert cost.cycles == by_hand(array, second, m)
        assert cost.events["mac"] == second.sum() * m
    assert -(-dense.cycles // array.depth) <= cost.cycles <= dense.cycles


@settings(max_examples=30)
@given(m=sizes, n=sizes, k=st.integers(1, 40), zeros_a=shares, zeros_b=shares)
def test_two_sides_issue_exactly_the_pairs_of_non_zeros(m, n, k, zeros_a, zeros_b):
    array = TensorDash(tiles=2, sides="two", bypass=0.0)
    source, a, b = matrices(m, n, k, zeros_a, zeros_b)
    first, second = source.tensors["A"], source.tensors["B"]
    cost, op = array.cost(MatMul(m, n, k), a=a, b=b), MatMul(m, n, k)
    if not first.all() and not second.all():
        assert cost.events["mac"] == (first.astype(int) @ second.T.astype(int)).sum()
        left, right = streams(first, 4), streams(second, 4)
        left, right = (np.pad(side, ((0, -len(side) % 4), (0, 0), (0, 0))) for side in (left, right))
        element = TensorDash(rows=16)
        cycles = [
            element.schedule((left[i : i + 4, None] & right[None, j : j + 4]).reshape(16, *left.shape[1:]))
            for i in range(0, len(left), 4)
            for j in range(0, len(right), 4)
        ]
        assert cost.cycles == makespan(np.array(cycles), 1, 2)
    assert cost.cycles <= array.baseline.cost(op).cycles


def test_rows_may_be_made_to_carry_either_operand():
    _source, a, b = matrices(32, 32, 256, 0.9, 0.2)
    op = MatMul(32, 32, 256)
    cycles = {side: TensorDash(scheduled=side, tiles=1).cost(op, a=a, b=b).cycles for side in ("a", "b", "sparser")}
    assert cycles["a"] == cycles["sparser"] < cycles["b"] < TensorCore(tiles=1).cost(op).cycles


def test_the_added_parts_are_gated_by_the_zeros_of_the_scheduled_operand():
    op = MatMul(32, 32, 256)
    _source, a, b = matrices(32, 32, 256, 0.9, 0.0)
    for other in (b, DENSE):
        gated = TensorDash(scheduled="b", tiles=1).cost(op, a=a, b=other)
        assert gated == TensorCore(tiles=1).cost(op)
        assert "scheduler_cycle" not in gated.events
    running = TensorDash(scheduled="a", tiles=1).cost(op, a=a, b=b)
    assert running.events["scheduler_cycle"] == running.cycles * 4


def test_a_tall_tile_never_loses_to_its_baseline_in_another_orientation():
    """7 rows of a 8 x 1 tile: the baseline lays b on the rows; TensorDash falls back to that where skipping does not pay."""
    _source, a, b = matrices(1, 64, 16, 0.1, 0.0)
    array = TensorDash(rows=8, columns=1, tiles=1, bypass=0.0, scheduled="a")
    assert array.cost(MatMul(1, 64, 16), a=a, b=b).cycles == array.baseline.cost(MatMul(1, 64, 16)).cycles


def test_a_nearly_dense_operand_bypasses_the_added_parts():
    _source, a, _ = matrices(64, 64, 64, 0.005, 0.0, seed=3)
    op = MatMul(64, 64, 64)
    gated, running = (TensorDash(bypass=share).cost(op, a=a) for share in (0.05, 0.0))
    assert "scheduler_cycle" not in gated.events
    assert gated.cycles == TensorCore().cost(op).cycles
    assert running.events["scheduler_cycle"] == running.cycles * 1024
    assert running.events["staging_slot"] == running.cycles * 256 * 8 * 16


@pytest.mark.parametrize("cluster", ["none", "channel", "row"])
@pytest.mark.parametrize("nonzero", [0.1, 0.4, 0.8])
def test_a_density_costs_what_masks_of_that_density_do(nonzero, cluster):
    """The analytic and the exact fidelity agree within a few per cent."""
    array, random = TensorDash(tiles=4), np.random.default_rng(1)
    shape = {"none": (256, 576), "channel": (1, 576), "row": (256, 1)}[cluster]
    drawn = [Bits({"A": np.broadcast_to(random.random(shape) < nonzero, (256, 576)).copy()}) for _ in range(8)]
    exact = np.mean([array.cost(MatMul(256, 64, 576), a=MaskView(bits, ("layer", 0, "A"))).cycles for bits in drawn])
    analytic = array.cost(MatMul(256, 64, 576), a=Density(nonzero, cluster))
    if cluster == "row":  # a group of rows is empty or not: few draws say little, and the interval says so
        assert abs(analytic.cycles - exact) <= 1.5 * analytic.uncertainty + 0.02 * exact
        assert analytic.uncertainty < 0.3 * exact
    else:
        assert analytic.cycles == pytest.approx(exact, rel=0.04)
    if cluster == "none":
        assert abs(analytic.cycles - exact) < 3 * analytic.uncertainty + 0.02 * exact


def test_two_densities_on_two_sides():
    op = MatMul(256, 256, 1024)
    one, two = (TensorDash(sides=sides).cost(op, a=Density(0.5), b=Density(0.5)) for sides in ("one", "two"))
    assert two.cycles < one.cycles
    assert two.events["mac"] == op.macs / 4
    _, a, _ = matrices(8, 8, 8, 0.5, 0.5)
    with pytest.raises(BadInput, match="two-sided"):
        TensorDash(sides="two").cost(MatMul(8, 8, 8), a=a, b=Density(0.5))


@pytest.mark.parametrize(("b", "issued"), [(None, 0.5 * 3 * 2 * 8 * 4), (Density(0.25), 0.5 * 0.25 * 3 * (2 * 5) * 8 * 4)])
def test_groups_of_a_density_issue_its_share_of_all_places(b, issued):
    """Three groups of two rows, or of two rows by five columns, over eight steps of four lanes."""
    scheduling = _group_scheduling(TensorDash(rows=2, lanes=4, depth=2))
    found = groups.density_cycles(Density(0.5), b, 8, 3, scheduling, 5)
    assert found.issued == pytest.approx(issued)
    assert len(found.cycles) == 3
    assert 4 <= found.cycles.min() <= found.cycles.max() <= 8  # two steps at most in a cycle


def test_sampling_states_an_interval_that_holds_the_truth():
    array = TensorDash(tiles=4)
    hits = []
    for seed in range(40):
        _source, a, _ = matrices(4096, 8, 128, 0.6, 0.0, seed=seed)
        op = MatMul(4096, 8, 128)
        whole = array.cost(op, a=a)
        part = replace(array, sample=128, seed=seed).cost(op, a=a)
        assert whole.uncertainty == 0 < part.uncertainty < 0.03 * part.cycles
        hits.append(abs(part.cycles - whole.cycles) <= part.uncertainty + 10)  # +10: the last round of blocks
    assert sum(hits) >= 34


def test_the_interval_holds_for_few_runs_of_an_image():
    """Lines of an image repeat: runs at equal distances fall into step with them, and the spread of a few says little."""
    body = Convolution(batch=8, in_channels=16, out_channels=64, size=(24, 24), kernel=(3, 3), padding=(1, 1))
    op, array, hits = MatMul(8 * 24 * 24, 64, 144), TensorDash(tiles=1), []
    for tensor in range(5):
        source = Bits({"A": np.random.default_rng(tensor).random((8, 16, 24, 24)) < 0.4})
        view = MaskView(source, ("layer", 0, "A"), body)
        whole = array.cost(op, a=view).cycles
        parts = [replace(array, sample=320, seed=seed).cost(op, a=view) for seed in range(40 * tensor, 40 * tensor + 40)]
        hits.extend(abs(part.cycles - whole) <= part.uncertainty for part in parts)
    assert np.mean(hits) > 0.9  # 95 % are meant


def test_two_sided_blocks_are_sampled_with_an_interval_that_holds():
    array, op, hits = TensorDash(tiles=1, sides="two"), MatMul(256, 16, 64), []
    for seed in range(40):
        _source, a, b = matrices(256, 16, 64, 0.5, 0.5, seed=seed)
        part = replace(array, sample=16, seed=seed).cost(op, a=a, b=b)
        hits.append(abs(part.cycles - array.cost(op, a=a, b=b).cycles) <= part.uncertainty)
    assert np.mean(hits) >= 0.85  # four row groups: two or three would hold 70 % by the normal distribution


def test_samples_that_repeat_are_scheduled_once_and_count_all():
    """One recorded sample of a batch of six stands for all of them."""
    body = Convolution(batch=6, in_channels=8, out_channels=8, size=(5, 5), kernel=(3, 3), padding=(1, 1))
    random = np.random.default_rng(5)
    one = {"A": random.random((1, 8, 5, 5)) < 0.4, "G": random.random((1, 8, 5, 5)) < 0.4}
    every = {letter: np.repeat(bits, 6, axis=0) for letter, bits in one.items()}
    array = TensorDash(tiles=2)
    for product, letter, op, side in (("forward", "A", MatMul(150, 8, 72), "a"), ("grad_weight", "G", MatMul(72, 8, 150), "b")):
        found = [
            array.cost(op, **{side: MaskView(Bits(bits), ("layer", 0, letter), body.as_product(product), place=letter)}).cycles
            for bits in (one, every)
        ]
        assert found[0] == found[1]


def test_views_that_were_scheduled_are_not_scheduled_again(monkeypatch):
    """A chip that differs in what its schedulers do not see asks for the same groups; one that differs in them does not."""
    groups.clear_cache()
    seen = []
    view_cycles = groups._view_cycles
    monkeypatch.setattr(groups, "_view_cycles", lambda *place: seen.append(place) or view_cycles(*place))
    _, a, _ = matrices(64, 8, 64, 0.6, 0.0, seed=8)
    op, array = MatMul(64, 8, 64), TensorDash(tiles=2)
    same = [replace(array, **changes).cost(op, a=a).cycles for changes in ({}, {"multicast": False}, {"bypass": 0.05})]
    assert len(set(same)) == len(seen) == 1
    again = matrices(64, 8, 64, 0.6, 0.0, seed=8)[1]  # other objects, the same bits
    assert array.cost(op, a=again).cycles == same[0]
    assert len(seen) == 1
    other = replace(array, sync="block").cost(op, a=a).cycles
    assert other > same[0]
    assert len(seen) == 2


def test_cached_groups_of_views_count_their_arrays_and_the_oldest_leaves_first():
    def make(size):
        return lambda: groups.GroupCycles(cycles=np.zeros(size, dtype=np.int64), issued=0.0)

    cache = BoundedCache(max_bytes=6 * (8 * 400 + ENTRY_BYTES))
    for name in "abcdef":
        cache.get(name, make(400))
    assert cache.get("a", make(1)).cycles.size == 400  # now the most recent, so `b` is the oldest
    cache.get("g", make(400))
    assert cache.get("a", make(1)).cycles.size == 400
    assert cache.get("b", make(1)).cycles.size == 1


def test_around_other_dot_product_units():
    array = TensorDash.around(Spatial(elements=16, macs_per_element=125), depth=3)
    assert (array.lanes, array.rows, array.columns, array.tiles) == (125, 1, 1, 16)
    assert TensorDash.around(TensorCore(lanes=16, tiles=64), depth=3).lanes == 16
    _source, a, _ = matrices(32, 16, 1000, 0.7, 0.0)
    op = MatMul(32, 16, 1000)
    spatial = Spatial(elements=16, macs_per_element=125).cost(op).cycles
    assert spatial / 3 <= array.cost(op, a=a).cycles < spatial / 1.5
    with pytest.raises(BadInput, match="dot-product"):
        TensorDash.around(Systolic(rows=4, columns=4))


def test_dense_operands_cost_what_the_baseline_does():
    op = MatMul(100, 90, 80)
    assert TensorDash().cost(op) == TensorCore().cost(op)
    assert TensorDash().cost(op, a=DENSE, b=Density(1.0)) == TensorCore().cost(op)


@pytest.mark.parametrize("shape", [(3, 8, 4), (4, 8, 3), (4, 8), (4, 0, 4)])
def test_masks_of_the_wrong_shape_are_refused(shape):
    with pytest.raises(MaskError, match=r"\[rows, steps, lanes\] = \[4, steps, 4\]"):
        TensorDash().schedule(np.ones(shape, dtype=bool))


def test_numbers_count_as_their_non_zeros():
    values = np.random.default_rng(0).integers(0, 3, (4, 20, 4))
    assert TensorDash().schedule(values) == TensorDash().schedule(values != 0) == TensorDash().schedule((values != 0).tolist())


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"sync": "never"}, UnknownName, "sync"),
        ({"sides": "three"}, UnknownName, "sides"),
        ({"scheduled": "c"}, UnknownName, "scheduled"),
        ({"levels": "few"}, UnknownName, "levels"),
        ({"options": [(1, 0)]}, BadInput, r"\(0, 0\)"),
        ({"options": [(0, 0), (4, 0)]}, BadInput, "4"),
        ({"options": [(0, 0), (1, 0), (1, 0)]}, BadInput, "twice"),
        ({"levels": ((0, 1), (2, 3))}, BadInput, "level"),
        ({"levels": [0, 1, 2, 3]}, BadInput, "level 0 is 0: it must be a list of lanes"),
        ({"levels": None}, BadInput, "levels are a list of lists of lanes"),
        ({"levels": [["a"], ["b"], ["c"], ["d"]]}, BadInput, "level 0 names lane 'a'"),
        ({"bypass": 2}, BadInput, "bypass"),
        ({"seed": -1}, BadInput, "seed"),
        ({"seed": "one"}, BadInput, "seed"),
        ({"multicast": "no"}, BadInput, "multicast must be true or false"),
        ({"banks": 0}, BadInput, "banks"),
        ({"lanes": 0}, BadInput, "lanes"),
    ],
)
def test_bad_fields_are_refused(changes, error, says):
    with pytest.raises(error, match=says):
        TensorDash(**changes)


def test_a_run_takes_zeros_by_name_and_refuses_what_are_none():
    import trainyard as ty

    step = ty.zoo.load("linear", batch=8)
    found = ty.run(step, on="tensordash", masks="sparsity(A=0.9)")
    assert found.array_cycles <= ty.run(step, on="tensorcore", masks="sparsity(A=0.9)").array_cycles
    with pytest.raises(MaskError, match="cannot read masks"):
        ty.run(step, on="tensordash", masks="nowhere.safetensors")
    with pytest.raises(BadInput, match="masks must be"):
        ty.run(step, on="npu", masks=5)


@pytest.mark.parametrize("sides", ["one", "two"])
def test_every_multiplier_has_a_mux_that_is_busy_when_it_is(sides):
    b = Density(0.5) if sides == "two" else DENSE
    events = TensorDash(tiles=4, sides=sides).cost(MatMul(64, 64, 64), a=Density(0.5), b=b).events
    assert events["mux_slot"] == events["core_slot"] > 0
