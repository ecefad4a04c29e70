"""Processing elements and tiles that multiply: the right numbers, in the right order, in the scheduler's cycles."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.arrays.tensordash import patterns
from trainyard.arrays.tensordash.array import TensorDash
from trainyard.arrays.tensordash.element import StagingBuffer, adder_tree, bfloat16, execute, operand, processing_element, tile
from trainyard.arrays.tensordash.scheduler import SYNCS, Scheduler, pack
from trainyard.errors import BadInput, UnknownName
from trainyard.ir import MaskView, MatMul


def half(value):
    return struct.unpack("<e", struct.pack("<e", value))[0]


def brain(value):
    """The nearest of the two bfloat16 around a float32, the even one of a tie, by exact fractions."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    below, above = bits & 0xFFFF0000, (bits & 0xFFFF0000) + 0x10000
    floats = [struct.unpack("<f", struct.pack("<I", end))[0] for end in (below, above)]
    if math.isinf(floats[1]):
        floats[1] = math.copysign(2.0**128, value)
    low, high = (abs(Fraction(end) - Fraction(value)) for end in floats)
    nearest = below if low < high or (low == high and not below >> 16 & 1) else above
    return struct.unpack("<f", struct.pack("<I", nearest))[0]


def tree(products):
    while len(products) > 1:
        pairs = [products[i] + products[i + 1] for i in range(0, len(products) - 1, 2)]
        products = pairs + ([products[-1]] if len(products) % 2 else [])
    return products[0]


def in_order(a, b, number, trace, scheduler, row=0):
    """One dot product, added up in the order of a trace: operands by `struct`, products exactly, then one FP32 sum at a time."""
    rounded = {"fp16": half, "bf16": lambda value: brain(float(value)), "fixed": int}[number]
    kind = {"fp16": np.float32, "bf16": np.float32, "fixed": np.int64}[number]
    total = kind(0)
    for cycle in range(trace.cycles):
        products = []
        for lane, chosen in enumerate(trace.select[cycle, row]):
            step, offset = scheduler.options[chosen] if chosen >= 0 else (0, 0)
            place = trace.position[cycle, row] + step, (lane + offset) % scheduler.lanes
            products.append(kind(rounded(a[place]) * rounded(b[place])) if chosen >= 0 else kind(0))
        total = total + tree(products)
    return total


def values(random, shape, number, zeros):
    dense = random.random(shape) >= zeros
    if number == "fixed":
        return (random.integers(-128, 128, shape) * dense).astype(np.int8)
    return (random.standard_normal(shape) * 10.0 ** random.integers(-3, 4, shape) * dense).astype(np.float32)


@st.composite
def tile_job(draw):
    lanes, depth = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    options = patterns.default_options(lanes, depth)
    scheduler = Scheduler(
        lanes=lanes, depth=depth, options=options, levels=patterns.levels(options, lanes) if draw(st.booleans()) else ()
    )
    number = draw(st.sampled_from(["fp16", "bf16", "fixed"]))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    steps = draw(st.integers(0, 12))
    a = values(random, (draw(st.integers(1, 3)), steps, lanes), number, draw(st.floats(0, 1)))
    b = values(random, (draw(st.integers(1, 3)), steps, lanes), number, draw(st.floats(0, 1)))
    how = {
        "skips": draw(st.sampled_from(["none", "b", "both"])),
        "sync": draw(st.sampled_from(SYNCS)),
        "banks": draw(st.integers(1, depth)),
    }
    return a, b, scheduler, number, how


def effectual(a, b, number, skips):
    """Bits [schedulers, steps, lanes] that the schedulers of a tile see."""
    left, right = operand(a, number) != 0, operand(b, number) != 0
    if skips == "none":
        return np.ones_like(right)
    return right if skips == "b" else (right[:, None] & left[None]).reshape(len(b) * len(a), *right.shape[1:])


@pytest.mark.oracle
@given(tile_job())
def test_outputs_are_bit_for_bit_those_of_sums_in_the_trace_s_order(job):
    a, b, scheduler, number, how = job
    ran = tile(a, b, scheduler, number, **how)
    trace = scheduler.trace(effectual(a, b, number, how["skips"]), how["sync"], how["banks"])
    for row in range(len(b)):
        for column in range(len(a)):
            mine = row * len(a) + column if how["skips"] == "both" else row
            expected = in_order(a[column], b[row], number, trace, scheduler, mine)
            assert ran.product[row, column].tobytes() == expected.astype(ran.product.dtype).tobytes()


@pytest.mark.oracle
@given(tile_job())
def test_a_tile_takes_the_scheduler_s_cycles_and_makes_its_moves(job):
    a, b, scheduler, number, how = job
    bits = effectual(a, b, number, how["skips"])
    ran = tile(a, b, scheduler, number, **how)
    assert [ran.cycles] == scheduler.cycles(pack(bits), bits.shape[1], len(bits), how["sync"], how["banks"]).tolist()
    trace = scheduler.trace(bits, how["sync"], how["banks"])
    if ran.cycles:
        (mine,) = ran.traces
        for name in ("position", "advance", "select"):
            assert (getattr(mine, name) == getattr(trace, name)).all()
    assert ran.issued == bits.sum()


@given(tile_job())
def test_whole_numbers_are_exact_and_real_ones_within_the_bound_of_a_reordered_sum(job):
    a, b, scheduler, number, how = job
    out = tile(a, b, scheduler, number, **how).product
    left, right = operand(a, number).astype(np.float64), operand(b, number).astype(np.float64)
    for row in range(len(b)):
        for column in range(len(a)):
            products = (left[column] * right[row]).ravel()  # exact in 53 bits
            exact, many = math.fsum(products), products.size + 1
            if number == "fixed":
                assert out[row, column] == int(exact)
            else:
                unit = 2.0**-24
                assert (
                    abs(float(out[row, column]) - exact)
                    <= many * unit / (1 - many * unit) * np.abs(products).sum() + 2.0**-149 * many
                )


@pytest.mark.parametrize("number", ["fp16", "bf16", "fixed"])
@pytest.mark.parametrize("skips", ["none", "b", "both"])
@pytest.mark.parametrize("sync", SYNCS)
def test_sums_that_are_exact_do_not_depend_on_the_schedule(number, skips, sync):
    random = np.random.default_rng(3)
    a, b = (random.integers(-8, 9, (4, 16, 4)) * (random.random((4, 16, 4)) < 0.5) for _ in range(2))
    kind = np.int8 if number == "fixed" else np.float32
    out = tile(a.astype(kind), b.astype(kind), Scheduler(), number, skips=skips, sync=sync).product
    assert (out == np.einsum("csl,rsl->rc", a, b)).all()


def test_fixed_point_wraps_around_as_its_accumulator_does():
    most = np.full((1, 2, 4), -(2**15), np.int16)
    assert tile(most, most, Scheduler(), "fixed").product.dtype == np.int64
    eight = np.full((1, 4, 4), -128, np.int8)
    ran = tile(eight, eight, Scheduler(), "fixed")
    assert ran.product.dtype == np.int32
    assert ran.product[0, 0] == np.dot(eight.ravel().astype(np.int32), eight.ravel().astype(np.int32)) == 16 * 2**14


@given(st.integers(0, 0xFFFF), st.sampled_from([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF]))
def test_bfloat16_rounds_to_the_nearest_even(upper, lower):
    (value,) = struct.unpack("<f", struct.pack("<I", upper << 16 | lower))
    if math.isnan(value) or math.isinf(value):
        assert np.array_equal(bfloat16(value), np.float32(value), equal_nan=True)
    else:
        assert bfloat16(value).tobytes() == np.float32(brain(value)).tobytes()


def test_bfloat16_keeps_nan_and_the_sign_of_zero():
    found = bfloat16([np.nan, -0.0, -1e-45])
    assert np.isnan(found[0])
    assert np.signbit(found[1:]).all()
    nan = np.array([0x7F800001, 0xFFFFFFFF], dtype=np.uint32).view(np.float32)  # would round to infinity, and past the end
    assert np.isnan(bfloat16(nan)).all()


def test_what_rounds_to_zero_is_skipped():
    tiny = np.full((1, 8, 4), 1e-9)
    assert tile(np.ones((1, 8, 4)), tiny, Scheduler(), "fp16").cycles == 2
    assert tile(np.ones((1, 8, 4)), tiny, Scheduler(), "bf16").cycles == 8


def test_one_sided_multiplies_zeros_of_the_other_side_and_two_sided_does_not():
    a, b = np.ones((1, 8, 4)), np.ones((1, 8, 4))
    a[0, ::2] = 0
    assert tile(a, b, Scheduler()).cycles == 8
    assert tile(a, b, Scheduler(), skips="both").cycles == 4
    assert tile(b, a, Scheduler()).cycles == 4


def test_a_skipped_zero_hides_the_nan_of_infinity_and_says_so():
    a, b = np.ones((1, 4, 4)), np.ones((1, 4, 4))
    a[0, 1, 2], b[0, 1, 2] = np.inf, 0
    ran, dense = tile(a, b, Scheduler()), tile(a, b, Scheduler(), skips="none")
    assert (ran.product, ran.hidden) == (15, 1)
    assert np.isnan(dense.product)
    assert dense.hidden == 0
    turned, both = tile(b, a, Scheduler()), tile(b, a, Scheduler(), skips="both")
    assert np.isnan(turned.product)  # infinity is not zero: the pair is multiplied
    assert turned.hidden == 0
    assert (both.product, both.hidden) == (15, 1)


def test_nan_and_infinity_are_effectual():
    b = np.zeros((1, 4, 4))
    b[0, 0, 0], b[0, 3, 1] = np.nan, np.inf
    ran = tile(np.ones((1, 4, 4)), b, Scheduler())
    assert np.isnan(ran.product)
    assert ran.issued == 2


def test_a_staging_buffer_holds_as_many_rows_as_it_is_deep():
    buffer = StagingBuffer(2)
    buffer.write(np.array([0.0, 1.0]))
    buffer.write(np.array([2.0, -0.0]))
    assert buffer.zero(1) == [False, True]
    with pytest.raises(AssertionError, match="full staging buffer"):
        buffer.write(np.array([1.0, 1.0]))
    buffer.drain(1)
    assert buffer.read(1, 0) == 2.0


@given(st.lists(st.integers(-100, 100), min_size=1, max_size=20))
def test_the_adder_tree_adds_neighbours_first(numbers):
    thirds = [np.float32(number) / np.float32(3) for number in numbers]
    assert adder_tree(np.array([thirds]))[0] == tree(thirds)


@given(
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 20),
    st.sampled_from(["sparser", "a", "b"]),
    st.sampled_from(["one", "two"]),
)
def test_matrices_multiply_whichever_side_is_scheduled(m, n, k, scheduled, sides):
    array = TensorDash(rows=2, columns=3, tiles=1, scheduled=scheduled, sides=sides)
    random = np.random.default_rng([m, n, k])
    a, b = random.integers(-9, 10, (m, k)), random.integers(-9, 10, (k, n)) * (random.random((k, n)) < 0.4)
    ran = execute(array, a.astype(np.float32), b.astype(np.float32))
    assert ran.product.dtype == np.float32
    assert (ran.product == a @ b).all()
    steps, across, along = -(-k // 4), -(-m // 2) * -(-n // 3), -(-m // 3) * -(-n // 2)
    assert ran.cycles <= min(across, along) * steps
    assert len(ran.traces) in (across, along)


@dataclass(frozen=True)
class Recorded:
    """Zeros of two tensors, as a recording would hold them."""

    tensors: dict[str, np.ndarray] = field(compare=False)
    digest: str

    def bits(self, key):
        return self.tensors[key[2]]


@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(1, 30),
    st.sampled_from(["sparser", "a", "b"]),
    st.sampled_from(["one", "two"]),
    st.sampled_from(SYNCS),
)
def test_multiplying_takes_the_cycles_that_the_array_s_cost_says(m, n, k, scheduled, sides, sync):
    array = TensorDash(rows=2, columns=3, tiles=1, scheduled=scheduled, sides=sides, sync=sync)
    random = np.random.default_rng([m, n, k])
    a, b = (random.random((m, k)) < 0.5).astype(np.float32), (random.random((n, k)) < 0.4).astype(np.float32)
    source = Recorded({"A": a != 0, "B": b != 0}, digest=f"{m} {n} {k}")
    left, right = MaskView(source, ("layer", 0, "A")), MaskView(source, ("layer", 0, "B"), transposed=True)
    assert execute(array, a, b.T).cycles == array.cost(MatMul(m, n, k), a=left, b=right).cycles


def test_the_dense_schedule_runs_where_it_has_fewer_blocks_to_do():
    array = TensorDash(rows=2, columns=3, tiles=1, scheduled="a")
    a, b = np.eye(10, 4, dtype=np.float32), np.ones((4, 2), np.float32)
    ran = execute(array, a, b)  # one step: nothing to skip, five blocks of two rows, or four of three
    assert ran.cycles == len(ran.traces) == 4
    assert (ran.product == a @ b).all()


def test_with_hardly_any_zeros_the_dense_schedule_runs():
    random = np.random.default_rng(0)
    a, b = random.integers(1, 9, (4, 32)).astype(np.float32), random.integers(1, 9, (32, 4)).astype(np.float32)
    a[0, 0] = 0  # one of 128
    ran = execute(TensorDash(tiles=1, bypass=0.01), a, b)
    assert (ran.cycles, ran.issued) == (8, 4 * 32)
    gated = execute(TensorDash(tiles=1, bypass=0.0), a, b)
    assert gated.issued == 4 * 32 - 1
    assert (gated.product == ran.product).all()


def test_an_element_is_a_tile_of_one():
    random = np.random.default_rng(7)
    a, b = values(random, (9, 4), "fp16", 0.5), values(random, (9, 4), "fp16", 0.5)
    alone, one = processing_element(a, b, Scheduler(), skips="both"), tile(a[None], b[None], Scheduler(), skips="both")
    assert alone.product == one.product[0, 0]
    assert alone.cycles == one.cycles


@pytest.mark.parametrize(
    ("a", "b", "number", "how", "message"),
    [
        (np.ones((1, 2, 4)), np.ones((1, 3, 4)), "fp16", {}, "do not meet on 4 lanes"),
        (np.ones((1, 2, 3)), np.ones((1, 2, 3)), "fp16", {}, "do not meet on 4 lanes"),
        (np.ones((1, 2, 4)), np.ones((1, 2, 4)), "fixed", {}, "scale and round them first"),
        (np.full((1, 2, 4), 40000), np.ones((1, 2, 4), int), "fixed", {}, "got 40000 to 40000"),
        (np.ones((1, 2, 4)), np.ones((1, 2, 4)), "fp61", {}, "unknown number format 'fp61'.*did you mean 'fp16'"),
        (np.ones((1, 2, 4), complex), np.ones((1, 2, 4)), "fp16", {}, "takes real numbers"),
        (np.ones((1, 2, 4)), np.ones((1, 2, 4)), "fp16", {"skips": "a"}, "unknown skips 'a'"),
        (np.ones((1, 2, 4)), np.ones((1, 2, 4)), "fp16", {"sync": "step"}, "unknown sync 'step'"),
        (np.ones((1, 2, 4)), np.ones((1, 2, 4)), "fp16", {"banks": 0}, "banks must be a positive"),
    ],
)
def test_what_cannot_be_multiplied_is_refused(a, b, number, how, message):
    with pytest.raises((BadInput, UnknownName), match=message):
        tile(a, b, Scheduler(), number, **how)


def test_matrices_that_do_not_meet_are_refused():
    with pytest.raises(BadInput, match="do not multiply"):
        execute(TensorDash(), np.ones((2, 3)), np.ones((4, 2)))
