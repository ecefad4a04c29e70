"""Formats: the exact way back, sizes against real encodings, expectations against both, front ends lane by lane."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.formats.bitmaps import Bitmap
from trainyard.hardware.formats.matrices import (
    BITMAP,
    COO,
    CSC,
    CSR,
    FORMATS,
    NONE,
    RLC2,
    RLC4,
    Format,
    RunLength,
    decode,
    format_named,
    front_end,
    index_bits,
    smaller_between,
)

EACH = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)


@st.composite
def matrices(draw: st.DrawFn) -> np.ndarray:
    """Any bits at all (NaN, negative zeros), then zeros put over a share of them."""
    dtype, shape = np.dtype(draw(st.sampled_from(["f2", "f4", "i1", "u8", ">f8"]))), draw(st.tuples(*[st.integers(0, 40)] * 2))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    octets = random.integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8)
    octets[random.random(shape) < draw(st.sampled_from([0.0, 0.3, 0.8, 0.97, 1.0]))] = 0
    return octets.reshape(-1).view(dtype).reshape(shape)


def nonzero_by_bits(matrix: np.ndarray) -> np.ndarray:
    return np.array([any(element.tobytes()) for element in matrix.reshape(-1)], bool).reshape(matrix.shape)


@EACH
@pytest.mark.oracle
@given(matrix=matrices())
def test_encoding_round_trips_and_has_the_predicted_size(form: Format, matrix: np.ndarray) -> None:
    encoded = form.encode(matrix)
    back = decode(encoded)
    assert (back.dtype, back.shape, back.tobytes()) == (matrix.dtype, matrix.shape, matrix.tobytes())
    bitmap = Bitmap.of(nonzero_by_bits(matrix))
    foretold = form.footprint_bits(bitmap, matrix.itemsize * 8)
    assert foretold.metadata == encoded.metadata_bits
    assert foretold.total == encoded.bits
    assert len(encoded.metadata) == -(-encoded.metadata_bits // 8)
    assert front_end(encoded) == bitmap


def plain_bits(form: Format, kept: np.ndarray) -> int:
    """The twin: metadata of a matrix, counted entry by entry in Python."""
    (rows, columns), count = kept.shape, int(kept.sum())
    width = {CSR: index_bits(columns), CSC: index_bits(rows), COO: index_bits(rows) + index_bits(columns)}
    if form in (CSR, CSC):
        lines = rows if form is CSR else columns
        pointer = next(bits for bits in range(64) if 2**bits >= count + 1)
        return count * width[form] + (lines + 1) * pointer
    if form is COO:
        return count * width[form]
    if isinstance(form, RunLength):
        bits, run = 0, 0
        pending = 0
        for element in kept.reshape(-1):
            if element:
                bits, run, pending = bits + pending + form.run_bits, 0, 0
            elif run == 2**form.run_bits - 1:  # the field is full: this zero is stored, if anything follows
                pending, run = pending + form.run_bits, 0
            else:
                run += 1
        return bits
    return kept.size if form is BITMAP else 0


@EACH
@pytest.mark.oracle
@given(matrix=matrices())
def test_metadata_is_what_counting_entry_by_entry_gives(form: Format, matrix: np.ndarray) -> None:
    kept = nonzero_by_bits(matrix)
    assert form.footprint_bits(Bitmap.of(kept), 16).metadata == plain_bits(form, kept)


@pytest.mark.probe
@pytest.mark.parametrize("form", [RLC2, RLC4])
def test_a_run_that_fills_its_field_needs_no_padding_and_one_zero_more_does(form: RunLength) -> None:
    longest = 2**form.run_bits - 1

    def padding(zeros: int) -> int:
        row = np.zeros((1, zeros + 1), np.uint8)
        row[0, -1] = 7
        assert form.encode(row).values.size == 1 + form.padding_of(Bitmap.of(row))
        return form.padding_of(Bitmap.of(row))

    assert [padding(zeros) for zeros in (longest, longest + 1, 2 * longest + 1, 2 * longest + 2)] == [0, 1, 1, 2]
    runs_on = np.zeros((2, 60), np.uint8)  # a run goes on in the next row
    runs_on[0, 0] = runs_on[1, 1] = 1
    assert form.padding_of(Bitmap.of(runs_on)) == 60 // (longest + 1)
    assert form.padding_of(Bitmap.of(np.zeros((9, 99)))) == 0


# ---- expectations


@EACH
@pytest.mark.parametrize("density", [0.01, 0.2, 0.5, 0.9])
def test_expectations_and_counts_agree(form: Format, density: float) -> None:
    rows, columns = 700, 900
    expected = form.expected_bits(rows, columns, density, 16)
    actual = form.footprint_bits(Bitmap.random(rows, columns, nonzero=density, seed=17), 16)
    spread = 5 * np.sqrt((1 - density) / (density * rows * columns))  # five standard deviations of the number of non-zeros
    assert actual.metadata == pytest.approx(expected.metadata, rel=spread)
    assert actual.total == pytest.approx(expected.total, rel=spread)
    assert actual.padding == pytest.approx(expected.padding, rel=10 * spread, abs=16 * 200)


@pytest.mark.oracle
@pytest.mark.parametrize("form", [RLC2, replace(RLC2, run_bits=1)])
def test_expected_padding_is_the_mean_over_all_matrices(form: RunLength) -> None:
    """All 2^11 matrices of 1 x 11, weighted by their probability."""
    density, elements = 0.3, 11
    mean = 0.0
    for number in range(2**elements):
        row = np.array([[number >> place & 1 for place in range(elements)]], bool)
        mean += form.padding_of(Bitmap.of(row)) * density ** row.sum() * (1 - density) ** (elements - row.sum())
    assert form.expected_padding(elements, density) == pytest.approx(mean, rel=1e-12)


@EACH
def test_empty_and_full_matrices_are_expected_exactly(form: Format) -> None:
    for density in (0.0, 1.0):
        actual = form.footprint_bits(Bitmap.random(40, 70, nonzero=density, seed=0), 16)
        assert form.expected_bits(40, 70, density, 16) == actual


# ---- what the paper says of them (Fig. 7: M = 1632, K = 36548)


@pytest.mark.paper
def test_a_bitmap_is_one_bit_an_element_at_every_sparsity() -> None:
    for density in (0.1, 0.5, 0.9):
        assert BITMAP.footprint_bits(Bitmap.random(163, 3654, nonzero=density, seed=1), 16).metadata == 163 * 3654


@pytest.mark.paper
def test_indices_cost_more_than_bits_until_few_are_left() -> None:
    assert all(smaller_between(BITMAP, form, 1632, 36548, 16)[0][0] == 0.0 for form in (CSR, CSC, COO, RLC4, RLC2))
    for form in (CSR, CSC, COO):
        assert smaller_between(form, BITMAP, 1632, 36548, 16)[0][0] > 0.9


@pytest.mark.paper
@pytest.mark.parametrize("form", [RLC2, RLC4])
def test_real_bits_cross_where_expectations_do(form: RunLength) -> None:
    """Run fields of all entries against one bit an element, a little to either side of the crossing."""
    ((start, end),) = smaller_between(form, BITMAP, 1632, 36548, 16)
    assert end == 0.999
    below, above = (
        form.footprint_bits(Bitmap.random(1632, 3655, nonzero=1 - sparsity, seed=3), 16).metadata / (1632 * 3655)
        for sparsity in (start - 0.01, start + 0.01)
    )
    assert below > 1 > above


@pytest.mark.paper
def test_stored_zeros_undo_run_lengths_at_high_sparsity() -> None:
    """Where padding counts with its values, a field of two bits never wins over the bitmap, one of four only in between."""
    assert smaller_between(RLC2, BITMAP, 1632, 36548, 16, "runs_and_padding") == ()
    ((start, end),) = smaller_between(RLC4, BITMAP, 1632, 36548, 16, "runs_and_padding")
    assert 0.75 < start < end < 0.999


# ---- front ends


def lanes(form: Format, matrix: np.ndarray, width: int) -> tuple[np.ndarray, int]:
    """The twin of a front end: `width` lanes take one thing each in a cycle; bits found, cycles taken."""
    encoded, (rows, columns) = form.encode(matrix), matrix.shape
    actual, cycles = np.zeros(matrix.size, bool), 0
    metadata = np.unpackbits(np.frombuffer(encoded.metadata, np.uint8), bitorder="little").tolist()
    if form is NONE:
        things: list[list[int]] = [[place] if value else [] for place, value in enumerate(matrix.reshape(-1))]
    elif form is BITMAP:
        bits = metadata[: matrix.size]
        things = [[at + bit for bit, one in enumerate(bits[at : at + 16]) if one] for at in range(0, len(bits), 16)]
    elif isinstance(form, RunLength):
        runs = [
            sum(metadata[at + bit] << bit for bit in range(form.run_bits)) for at in range(0, encoded.metadata_bits, form.run_bits)
        ]
        things, carried, stages = [], 0, (width - 1).bit_length()
        for at in range(0, len(runs), width):
            sums = [run + 1 for run in runs[at : at + width]]
            for stage in range(stages):  # each lane adds what the lane 2^stage before it has
                sums = [own + (sums[lane - 2**stage] if lane >= 2**stage else 0) for lane, own in enumerate(sums)]
            things += [[carried + one - 1] if encoded.values[at + lane] else [] for lane, one in enumerate(sums)]
            carried += sums[-1]
        cycles = stages if runs else 0
    elif form is COO:
        high, low, count = index_bits(rows), index_bits(columns), encoded.values.size
        numbers = [sum(metadata[at + bit] << bit for bit in range(high)) for at in range(0, count * high, high or 1)] or [0] * count
        inside = metadata[count * high :]
        along = [sum(inside[at * low + bit] << bit for bit in range(low)) for at in range(count)]
        things = [[row * columns + column] for row, column in zip(numbers, along, strict=True)]
    else:
        lines, length = (rows, columns) if form is CSR else (columns, rows)
        high, low, count = encoded.values.size.bit_length(), index_bits(length), encoded.values.size
        pointers = [sum(metadata[at * high + bit] << bit for bit in range(high)) for at in range(lines + 1)]
        things = [[] for _ in pointers]
        for entry in range(count):
            line = max(place for place in range(lines) if pointers[place] <= entry)
            at = (lines + 1) * high + entry * low
            place = sum(metadata[at + bit] << bit for bit in range(low))
            things.append([line * columns + place if form is CSR else place * columns + line])
    for at in range(0, len(things), width):
        cycles += 1
        for thing in things[at : at + width]:
            actual[thing] = True
    return actual.reshape(matrix.shape), cycles


@EACH
@pytest.mark.oracle
@given(data=st.data(), width=st.integers(1, 9))
def test_a_front_end_takes_the_cycles_that_its_lanes_take(form: Format, data: st.DataObject, width: int) -> None:
    matrix = nonzero_by_bits(data.draw(matrices()))
    bits, cycles = lanes(form, matrix.astype(np.uint8), width)
    assert np.array_equal(bits, matrix)
    assert form.front_end_cycles(Bitmap.of(matrix), width) == cycles


@pytest.mark.probe
@EACH
def test_wider_front_ends_are_never_slower_and_bitmaps_are_fastest_unless_few_are_left(form: Format) -> None:
    half = Bitmap.random(100, 300, nonzero=0.5, seed=0)
    steps = [
        form.front_end_cycles(half, width) - (index_bits(width) if isinstance(form, RunLength) else 0) for width in (1, 8, 128)
    ]
    assert steps == sorted(steps, reverse=True)
    assert BITMAP.front_end_cycles(half, 128) <= form.front_end_cycles(half, 128)


# ---- what is refused


def test_non_matrices_and_damaged_encodings_raise() -> None:
    with pytest.raises(UnknownName, match="did you mean 'csr'"):
        format_named("csrr")
    with pytest.raises(BadInput, match="a matrix of numbers"):
        CSR.encode(np.ones(4))
    with pytest.raises(BadInput, match="width must be a positive"):
        CSR.front_end_cycles(Bitmap.of(np.ones((2, 2))), 0)
    with pytest.raises(BadInput, match="density is a share"):
        CSR.expected_bits(2, 2, 1.5, 16)
    with pytest.raises(BadInput, match="element_bits must be a positive"):
        CSR.footprint_bits(Bitmap.of(np.ones((2, 2))), 0)


@EACH
def test_an_encoding_that_does_not_fit_its_shape_is_refused(form: Format) -> None:
    encoded = form.encode(np.eye(5, 6, dtype=np.float32))
    with pytest.raises(BadInput, match="are not a matrix of"):
        form.decode(replace(encoded, values=encoded.values[:-1]))
    other = BITMAP if form is COO else COO
    with pytest.raises(BadInput, match="are not a matrix of"):
        other.decode(encoded)


def test_damaged_pointers_and_runs_are_refused() -> None:
    encoded = CSR.encode(np.eye(4, dtype=np.uint8))
    with pytest.raises(BadInput, match="are not a matrix of"):
        CSR.decode(replace(encoded, metadata=bytes(255 - octet for octet in encoded.metadata)))
    encoded = RLC4.encode(np.eye(4, dtype=np.uint8))
    with pytest.raises(BadInput, match="are not a matrix of"):
        RLC4.decode(replace(encoded, metadata=b"\xff" * len(encoded.metadata)))
