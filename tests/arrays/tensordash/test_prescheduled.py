"""Pre-scheduled storage: what comes back, what it takes to the bit, and that damage is seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles.prescheduled import Scheduled, encode, from_bytes, load, store
from trainyard.arrays.tensordash import patterns
from trainyard.arrays.tensordash.footprints import FORMS, stored_bits
from trainyard.arrays.tensordash.scheduler import Scheduler
from trainyard.errors import BadInput, UnknownName

TYPES = ("int8", "uint16", "float16", "float32", "float64", "int64", "complex64")


@st.composite
def schedulers(draw: st.DrawFn) -> Scheduler:
    lanes, depth = draw(st.integers(1, 9)), draw(st.integers(1, 6))
    places = st.tuples(st.integers(0, depth - 1), st.integers(-lanes, lanes))
    more = draw(st.lists(places, max_size=9, unique=True))
    options = ((0, 0), *(option for option in more if option != (0, 0)))
    grouped = draw(st.booleans())
    return Scheduler(lanes=lanes, depth=depth, options=options, levels=patterns.levels(options, lanes) if grouped else ())


@st.composite
def cases(draw: st.DrawFn, most_rows: int = 4) -> tuple[Scheduler, np.ndarray]:
    scheduler = draw(schedulers())
    rows, steps = draw(st.integers(1, most_rows)), draw(st.integers(1, 30))
    kind = np.dtype(draw(st.sampled_from(TYPES)))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = rows * steps * scheduler.lanes
    values = np.frombuffer(random.bytes(size * kind.itemsize), kind).copy()  # any bits: NaN, infinity, negative zero
    values[random.random(size) < draw(st.sampled_from([0.0, 0.3, 0.6, 0.9, 1.0]))] = 0
    return scheduler, values.reshape(rows, steps, scheduler.lanes)


def same(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()


def read_back(stored: Scheduled, form: str) -> Scheduled:
    return from_bytes(stored.to_bytes(form), shape=stored.shape, dtype=stored.values.dtype, scheduler=stored.scheduler, form=form)


@given(case=cases())
def test_a_row_group_comes_back_bit_for_bit(case):
    scheduler, values = case
    stored = encode(values, scheduler)
    assert same(stored.decode(), values)
    for form in FORMS:
        assert same(read_back(stored, form).decode(), values)


@given(case=cases(most_rows=1), form=st.sampled_from(FORMS))
def test_one_stream_takes_the_cycles_of_the_one_sided_scheduler_and_keeps_its_shape(case, form):
    scheduler, values = case
    stored = encode(values[0], scheduler)
    bits = values.view(np.uint8).reshape(*values.shape, -1).any(axis=-1)
    assert stored.cycles == scheduler.plain(bits)
    assert same(read_back(stored, form).decode(), values[0])


@given(case=cases(), form=st.sampled_from(FORMS))
def test_the_formula_is_the_length_of_what_is_packed(case, form):
    scheduler, values = case
    stored = encode(values, scheduler)
    assert len(stored.to_bytes(form)) == -(-stored.bits(form) // 8)


@given(case=cases())
def test_each_value_is_stored_once_and_nothing_else(case):
    scheduler, values = case
    stored = encode(values, scheduler)
    step, lane = stored.places()
    seen = np.zeros(values.shape, int)
    for cycle, row, own in np.argwhere(stored.select >= 0):
        seen[row, step[cycle, row, own], lane[cycle, row, own]] += 1
        assert stored.position[cycle] <= step[cycle, row, own] < stored.position[cycle] + scheduler.depth
    assert (seen == values.view(np.uint8).reshape(*values.shape, -1).any(axis=-1)).all()
    assert (stored.values[stored.select < 0] == 0).all()


@pytest.mark.oracle
@given(case=cases(), form=st.sampled_from(FORMS))
def test_the_packed_bits_are_those_of_a_plain_writer(case, form):
    scheduler, values = case
    stored = encode(values, scheduler)
    text = ""  # a string of bits, the lowest first
    for cycle in range(stored.cycles):
        text += plain_bits(int(stored.advance[cycle]) - 1, scheduler.depth)
        lanes = [
            (int(stored.select[c, r, lane]), stored.values[c, r, lane])
            for c, r, lane in np.ndindex(stored.select.shape)
            if c == cycle
        ]
        if form == "gapless":
            text += "".join("1" if ms >= 0 else "0" for ms, _ in lanes)
        for ms, value in lanes:
            if ms >= 0 or form == "padded":
                text += plain_bits(max(ms, 0), len(scheduler.options))
                text += "".join(plain_bits(octet, 256) for octet in value.tobytes())
    assert len(text) == stored.bits(form)
    padded = text + "0" * (-len(text) % 8)
    octets = bytes(int(padded[at : at + 8][::-1], 2) for at in range(0, len(padded), 8))
    assert octets == stored.to_bytes(form)


def plain_bits(number: int, choices: int) -> str:
    width = len(bin(choices - 1)) - 2 if choices > 1 else 0
    return format(number, f"0{width}b")[::-1] if width else ""


@pytest.mark.parametrize(("lanes", "depth", "ms", "as_"), [(4, 4, 3, 2), (4, 2, 2, 1), (16, 3, 3, 2), (4, 1, 0, 0)])
def test_rows_of_the_papers_elements_take_what_its_signals_say(lanes, depth, ms, as_):
    scheduler = Scheduler(lanes=lanes, depth=depth)
    dense = encode(np.ones((10, lanes), np.float16), scheduler)
    assert dense.bits("padded") == 10 * (as_ + lanes * (ms + 16))
    assert dense.bits("gapless") == 10 * (as_ + lanes + lanes * (ms + 16))


@given(case=cases(), ports=st.integers(1, 7))
def test_expansion_reads_a_row_a_cycle_unless_dense_rows_pile_up(case, ports):
    scheduler, values = case
    stored = encode(values, scheduler)
    assert stored.expansion_cycles() == stored.cycles
    assert stored.expansion_cycles(1) == stored.steps
    left, cycles = [min(stored.steps, end) for end in np.cumsum(stored.advance)], 0
    written = 0
    for end in left:  # plain: write up to `ports` rows a cycle until this stored row's are out
        while written < end:
            written, cycles = min(written + ports, end), cycles + 1
    assert stored.expansion_cycles(ports) == cycles


@given(case=cases(most_rows=3), groups=st.integers(1, 4), form=st.sampled_from(FORMS))
def test_a_tensor_of_groups_comes_back_and_starts_are_counted(case, groups, form):
    scheduler, values = case
    many = np.stack([np.roll(values, number, axis=1) for number in range(groups)])
    data = store(many, scheduler, form)
    assert same(load(data, shape=many.shape, dtype=many.dtype, scheduler=scheduler, form=form), many)
    assert len(data) == sum(4 - (-encode(group, scheduler).bits(form) // 8) for group in many)


def test_a_negative_zero_is_a_value():
    values = np.array([[0.0, -0.0, 1.0, 0.0]], np.float32)
    stored = encode(values, Scheduler())
    assert stored.nonzeros == 2
    assert np.signbit(stored.decode()).tolist() == [[False, True, False, False]]


def test_idle_lanes_cost_a_value_padded_and_a_bit_gapless():
    one = np.zeros((4, 4), np.float16)
    one[0, 0] = 1
    stored = encode(one, Scheduler())
    assert (stored.bits("padded"), stored.bits("gapless")) == (2 + 4 * 19, 2 + 4 + 19)
    counts = np.array([1, 1]), np.array([1, 0])
    assert stored_bits(*counts, scheduler=Scheduler(), value_bits=16, form="gapless").tolist() == [25, 6]


@pytest.mark.parametrize("form", FORMS)
def test_damage_is_seen(form):
    scheduler = Scheduler(options=((0, 0), (1, 0), (1, 1), (2, 0), (3, 0)))  # 3 bits of MS for 5 options
    stored = encode(np.arange(1, 41, dtype=np.int16).reshape(10, 4), scheduler)
    data = stored.to_bytes(form)
    said = {"shape": (10, 4), "dtype": np.int16, "scheduler": scheduler, "form": form}
    assert same(from_bytes(data, **said).decode(), stored.decode())
    for wrong in (data[:-1], data + b"\0", b""):
        with pytest.raises(BadInput, match="pre-scheduled storage"):
            from_bytes(wrong, **said)
    first_select = 2 + (4 if form == "gapless" else 0)
    with pytest.raises(BadInput, match="an MS beyond 5 options"):
        from_bytes(with_bits(data, 7 << first_select), **said)
    with pytest.raises(BadInput, match="two values at one place"):  # lane 0 says (+1, 0), which the next row holds too
        from_bytes(with_bits(data, 1 << first_select), **said)


def with_bits(data: bytes, bits: int) -> bytes:
    return (int.from_bytes(data, "little") | bits).to_bytes(len(data), "little")


def test_a_value_past_the_end_is_damage():
    scheduler = Scheduler()
    data = with_bits(encode(np.ones((1, 4), np.int16), scheduler).to_bytes("padded"), 1 << 2)  # MS 1 of lane 0: step +1, of one
    with pytest.raises(BadInput, match="past the 1 steps"):
        from_bytes(data, shape=(1, 4), dtype=np.int16, scheduler=scheduler, form="padded")


def test_what_is_no_stream_is_refused():
    with pytest.raises(BadInput, match=r"give \[steps, 4\]"):
        encode(np.ones((3, 5)), Scheduler())
    with pytest.raises(BadInput, match="are no stream"):
        encode(np.ones((0, 4)), Scheduler())
    with pytest.raises(BadInput, match="have no bits of their own"):
        encode(np.array([["a", "b", "c", None]], dtype=object), Scheduler())
    with pytest.raises(UnknownName, match="did you mean 'gapless'"):
        encode(np.ones((2, 4)), Scheduler()).to_bytes("gaples")
    with pytest.raises(BadInput, match="do not even hold 3 starts"):
        load(b"\0" * 8, shape=(3, 2, 4), dtype=np.int8, scheduler=Scheduler())
    with pytest.raises(BadInput, match="meet one of shape"):
        encode(np.ones((2, 4)), Scheduler()).meet(np.ones((3, 4)))
