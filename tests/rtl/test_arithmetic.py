"""Adders and multipliers: the numeric twin against numpy, ml_dtypes and torch; the circuits against the twin."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from trainyard.errors import BadInput, MissingExtra, UnknownName
from trainyard.rtl import catalogue
from trainyard.rtl.arithmetic import adder, operands
from trainyard.rtl.arithmetic.formats import BF16, FP16, FP32, FloatFormat, add, format_of, is_nan, multiply, to_bits, to_float
from trainyard.rtl.arithmetic.stimulus import random_bits
from trainyard.rtl.catalogue import design_of
from trainyard.rtl.equality import amaranth_outputs, check_equality, compare
from trainyard.rtl.verilator import compiled_outputs, missing_tools

NUMPY: dict[FloatFormat, tuple[Any, Any]] = {
    FP32: (np.uint32, np.float32),
    FP16: (np.uint16, np.float16),
    BF16: (np.uint16, ml_dtypes.bfloat16),
}
NAMES = {FP32: "fp32", FP16: "fp16", BF16: "bf16"}


def numpy_result(kind: FloatFormat, operation: Callable[[Any, Any], Any], a: list[int], b: list[int]) -> list[int]:
    unsigned, real = NUMPY[kind]
    with np.errstate(all="ignore"):
        result = operation(np.array(a, unsigned).view(real), np.array(b, unsigned).view(real)).astype(real)
    bits = [int(each) for each in result.view(unsigned)]
    return [kind.nan if is_nan(kind, each) else each for each in bits]


@pytest.mark.parametrize("kind", NUMPY, ids=NAMES.get)
def test_random_sums_and_products_of_the_twin_equal_numpy_bit_for_bit(kind: FloatFormat) -> None:
    chance = random.Random(5)
    a = [random_bits(kind, chance) for _ in range(3_000)]
    b = [random_bits(kind, chance, near=each) for each in a]
    assert [add(kind, x, y) for x, y in zip(a, b, strict=True)] == numpy_result(kind, np.add, a, b)
    assert [multiply(kind, x, y) for x, y in zip(a, b, strict=True)] == numpy_result(kind, np.multiply, a, b)


@pytest.mark.slow
def test_all_sums_and_products_of_a_format_of_8_bits_equal_ml_dtypes() -> None:
    kind, real = format_of("e5m2"), ml_dtypes.float8_e5m2
    patterns = np.arange(256, dtype=np.uint8)
    left, right = (grid.ravel() for grid in np.meshgrid(patterns, patterns))
    for twin, operation in ((add, np.add), (multiply, np.multiply)):
        with np.errstate(all="ignore"):
            exact = operation(left.view(real).astype(np.float64), right.view(real).astype(np.float64)).astype(real).view(np.uint8)
        ours = [twin(kind, int(x), int(y)) for x, y in zip(left, right, strict=True)]
        theirs = [kind.nan if is_nan(kind, int(each)) else int(each) for each in exact]
        assert ours == theirs


def test_bfloat16_products_in_fp32_equal_numpy() -> None:
    chance = random.Random(6)
    a, b = ([random_bits(BF16, chance) for _ in range(3_000)] for _ in range(2))
    widened = [[bits << 16 for bits in side] for side in (a, b)]  # bfloat16 is the upper half of FP32
    assert [multiply(BF16, x, y, FP32) for x, y in zip(a, b, strict=True)] == numpy_result(FP32, np.multiply, *widened)


def test_floats_survive_the_way_to_bits_and_back() -> None:
    for bits in range(0, 1 << 16, 7):
        if not is_nan(FP16, bits):
            assert to_bits(FP16, to_float(FP16, bits)) == bits
    assert to_bits(FP32, 1e-46) == 0
    assert to_bits(FP32, -1e39) == 0xFF800000


@pytest.mark.parametrize(("number", "patterns"), [
    ("e2m1", 16), ("e2m1-flush", 16), *(pytest.param(number, 32, marks=pytest.mark.slow) for number in ("e2m2", "e3m1")),
])  # fmt: skip
@pytest.mark.parametrize("name", ["adder", "multiplier"])
def test_every_pair_of_a_small_format_equals_the_twin(name: str, number: str, patterns: int) -> None:
    design = design_of(name, {"number": number})
    stimulus = [{"a": a, "b": b} for a in range(patterns) for b in range(patterns)]
    assert compare(amaranth_outputs(design.build(), stimulus), design.expected(stimulus)).equal


@pytest.mark.parametrize(("number", "stages"), [("fp32", 0), ("fp16", 3), ("bf16", 0), ("fp32-flush", 3)])
@pytest.mark.parametrize("name", ["adder", "multiplier"])
def test_random_pairs_equal_the_twin_after_as_many_cycles_as_stages(name: str, number: str, stages: int) -> None:
    assert check_equality(design_of(name, {"number": number, "stages": stages}), 60, seed=stages).equal


def test_bfloat16_operands_with_an_fp32_product_equal_the_twin() -> None:
    assert check_equality(design_of("multiplier", {"number": "bf16", "result": "fp32", "stages": 1}), 150).equal


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_tools()), reason="needs verilator, g++ and make")
@pytest.mark.parametrize("parameters", [
    {"number": "fp32"}, {"number": "fp16", "stages": 2}, {"number": "bf16", "stages": 3}, {"number": "fp32-flush", "stages": 1},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("name", ["adder", "multiplier"])
def test_twenty_thousand_cycles_equal_the_twin(name: str, parameters: dict[str, Any]) -> None:
    comparison = check_equality(design_of(name, parameters), 20_000, seed=1, runner=compiled_outputs)
    assert comparison.equal, comparison.difference
    assert comparison.cycles == 20_000


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_tools()), reason="needs verilator, g++ and make")
@pytest.mark.parametrize("name", ["adder", "multiplier"])
def test_every_pair_of_an_8_bit_format_equals_the_twin(name: str) -> None:
    design = design_of(name, {"number": "e4m3"})
    stimulus = [{"a": a, "b": b} for a in range(256) for b in range(256)]
    assert compare(compiled_outputs(design.build(), stimulus), design.expected(stimulus)).equal


def test_an_adder_without_its_sticky_bit_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adder, "BELOW", 2)
    assert not check_equality(design_of("adder", {"number": "e3m2"}), 400).equal


def test_an_adder_that_takes_the_operands_unswapped_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = operands.Finite.chosen
    monkeypatch.setattr(operands.Finite, "chosen", lambda self, m, name, other, swap: chosen(self, m, name, other, swap & 0))
    assert not check_equality(design_of("adder", {"number": "e4m3"}), 200).equal


@pytest.mark.parametrize(("name", "given", "says"), [
    ("adder", {"number": "fp33"}, "unknown number format 'fp33'"),
    ("adder", {"stages": "many"}, "stages must be a whole number, got 'many'"),
    ("adder", {"number": "e8m0"}, "fraction_bits must be a positive whole number, got 0"),
    ("multiplier", {"number": "e1m3"}, "exponent_bits must be at least 2"),
])  # fmt: skip
def test_bad_parameters_are_refused_in_one_line(name: str, given: dict[str, str], says: str) -> None:
    with pytest.raises(BadInput, match=says) as caught:
        design_of(name, dict(given))
    assert "\n" not in str(caught.value)


def test_unknown_designs_and_parameters_are_answered_with_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match="did you mean 'adder'"):
        design_of("ader")
    with pytest.raises(UnknownName, match="did you mean 'stages'"):
        design_of("adder", {"stage": 1})


def test_a_missing_amaranth_says_which_extra_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amaranth", None)
    with pytest.raises(MissingExtra, match=r"pip install 'trainyard\[rtl\]'"):
        catalogue.designs()
