"""SIGMA's controller and one Flex-DPE as circuits: the simulator's tables, products and cycles."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from trainyard.arrays.sigma.array import Sigma
from trainyard.arrays.sigma.execution import execute
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.reduction.adder_trees import Fan
from trainyard.rtl import controller, flex_dpe
from trainyard.rtl.arithmetic.formats import FP32, format_of, to_float
from trainyard.rtl.catalogue import Inputs, design_of
from trainyard.rtl.equality import amaranth_outputs, check_equality, compare
from trainyard.rtl.reduction.network import grouping_of
from trainyard.rtl.tensordash.recorded import recorded_blocks
from trainyard.rtl.verilator import compiled_outputs, missing_tools

compiled = pytest.mark.skipif(bool(missing_tools()), reason="needs verilator, g++ and make")
SMALL_CONTROLLER = {"rows": 3, "depth": 4, "multipliers": 2, "dpes": 2}


@pytest.mark.parametrize("parameters", [SMALL_CONTROLLER, {"rows": 5, "depth": 7, "multipliers": 4, "dpes": 1}], ids=str)
def test_random_bitmaps_give_the_simulators_tables(parameters: dict[str, int]) -> None:
    comparison = check_equality(design_of("controller", parameters), 150, seed=1)
    assert comparison.equal, comparison.difference


def test_the_tables_of_a_small_product_are_those_of_the_papers_rules() -> None:
    """By hand: A = [[1, 1, 1], [0, 1, 0]] and columns 101 and 001 (k = 0 first): k = 1 meets nothing, two values are useful."""
    design = design_of("controller", {"rows": 2, "depth": 3, "multipliers": 2, "dpes": 1})
    lines: list[Inputs] = [{"command": controller.CLEAR}]
    lines += [{"command": controller.GATHER, "bits": bits} for bits in (0b101, 0b100)]
    lines += [{"command": controller.FOLD}, *({"command": controller.PLACE, "bits": bits} for bits in (0b111, 0b010))]
    lines += [{"command": controller.STREAM, "bits": bits} for bits in (0b101, 0b100)]
    outputs = amaranth_outputs(design.build(), [*lines, {}])
    first, second = outputs[-2:]
    assert (first["regor"], first["useful"], first["occupied"]) == (0b101, 2, 0b11)
    assert [first[f"k_{slot}"] for slot in range(2)] == [0, 2]
    assert (first["listening"], first["source_0"], first["source_1"]) == (0b11, 0, 1)
    assert (second["listening"], second["source_1"], second["distance_1"]) == (0b10, 0, 0b11)  # 0 - 1
    assert (first["output_bits"], second["output_bits"]) == (0b01, 0b01)


@pytest.mark.slow
@compiled
@pytest.mark.parametrize(
    "parameters",
    [{"rows": 8, "depth": 16, "multipliers": 8, "dpes": 2}, {"rows": 4, "depth": 32, "multipliers": 16, "dpes": 1}],
    ids=str,
)
def test_ten_thousand_lines_give_the_simulators_tables(parameters: dict[str, int]) -> None:
    comparison = check_equality(design_of("controller", parameters), 10_000, seed=1, runner=compiled_outputs)
    assert comparison.equal, comparison.difference
    assert comparison.cycles == 10_000


@pytest.mark.parametrize(("multipliers", "number", "cycles"), [(2, "fp32", 60), (4, "bf16", 80)])
def test_random_sparse_products_stream_as_in_the_simulator(multipliers: int, number: str, cycles: int) -> None:
    comparison = check_equality(design_of("flex-dpe", {"multipliers": multipliers, "number": number}), cycles, seed=2)
    assert comparison.equal, comparison.difference


@pytest.mark.slow
@compiled
@pytest.mark.parametrize("parameters", [{"multipliers": 8}, {"multipliers": 16, "number": "bf16"}], ids=str)
def test_ten_thousand_cycles_of_a_flex_dpe_equal_the_simulator(parameters: dict[str, Any]) -> None:
    comparison = check_equality(design_of("flex-dpe", parameters), 10_000, seed=1, runner=compiled_outputs)
    assert comparison.equal, comparison.difference
    assert comparison.cycles == 10_000


def recorded_bitmaps(depth: int, rows: int, columns: int) -> Iterator[tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]]:
    """Zeros of a shipped training run: pieces of two operands, [rows, depth] and [depth, columns]."""
    stationary = recorded_blocks("SQZNet", lanes=depth, rows=rows, most_steps=1, seed=1)
    streaming = recorded_blocks("SQZNet", lanes=depth, rows=columns, most_steps=1, seed=2)
    for a, b in zip(stationary, streaming, strict=False):
        yield a[:, 0], b[:, 0].T


@pytest.mark.slow
@compiled
def test_ten_thousand_lines_of_recorded_bitmaps_give_the_simulators_tables() -> None:
    sizes = controller.Sizes(rows=8, depth=16, multipliers=8, dpes=2)
    design = design_of("controller", {"rows": 8, "depth": 16, "multipliers": 8, "dpes": 2})
    lines: list[Inputs] = []
    for a, b in recorded_bitmaps(16, 8, 8):
        words = [[sum(int(bit) << k for k, bit in enumerate(line)) for line in bitmap] for bitmap in (a, b.T)]
        lines += controller.product_commands(sizes, *words)
        if len(lines) >= 10_000:
            break
    comparison = compare(compiled_outputs(design.build(), lines), design.expected(lines))
    assert comparison.equal, comparison.difference


@pytest.mark.slow
@compiled
def test_ten_thousand_cycles_with_recorded_zeros_equal_the_simulator() -> None:
    design, kind = design_of("flex-dpe", {"multipliers": 8, "number": "bf16"}), format_of("bf16")
    draw, cycles = np.random.default_rng(0), list[Inputs]()
    for masks in recorded_bitmaps(16, 6, 12):
        a, b = (np.where(mask, draw.integers(1, 256, mask.shape) / 32, 0).astype(np.float32) for mask in masks)
        cycles += flex_dpe.product_cycles(8, kind, a, b).cycles
        if len(cycles) >= 10_000:
            break
    comparison = compare(compiled_outputs(design.build(), cycles), design.expected(cycles))
    assert comparison.equal, comparison.difference


def product_of_circuit(multipliers: int, number: str, a: Any, b: Any) -> tuple[npt.NDArray[np.float32], int]:
    """The matrix that the circuit computes, and the cycles until its last sum; partial sums of passes are added in FP32."""
    work = flex_dpe.product_cycles(multipliers, format_of(number), a, b)
    design = design_of("flex-dpe", {"multipliers": multipliers, "number": number})
    outputs = amaranth_outputs(design.build(), [*work.cycles, {}, {}, {}])
    product, last = np.zeros((a.shape[0], b.shape[1]), np.float32), 0
    levels = Fan(lanes=multipliers).adder_levels().tolist()
    for cycle, row in enumerate(outputs):
        for adder in range(multipliers - 1):
            for name, lane in (("sum", adder), ("bypass", adder + 1)):
                if not row[f"finished_{name}"] >> adder & 1:
                    continue
                entered = cycle - levels[adder] - 1 - flex_dpe.BEFORE_FAN
                first, names = next(each for each in reversed(work.rows) if each[0] <= entered)
                grouping = grouping_of(work.cycles[first + 1], multipliers)
                product[names[grouping[lane]], entered - first] += np.float32(to_float(FP32, row[f"{name}_{adder}"]))
                last = cycle
    return product, last


@pytest.mark.parametrize("seed", [0, 2])
def test_a_product_is_the_simulators_bit_for_bit_and_ends_one_cycle_after_it(seed: int) -> None:
    """Table II counts no cycle for the multiplication; a last sum that needs fewer levels than all leaves earlier."""
    chance = random.Random(seed)
    a, b = (flex_dpe.random_matrix(FP32, shape, chance) for shape in ((4, 5), (5, 6)))
    simulated = execute(Sigma(dpes=1, multipliers=4, bandwidth=4), a, b, "a")
    product, last = product_of_circuit(4, "fp32", a, b)
    assert product.tobytes() == simulated.product.tobytes()
    assert simulated.folds >= 1 + (seed == 0)
    assert simulated.cycles - Fan(lanes=4).levels < last - 1 <= simulated.cycles


def test_a_product_of_full_rows_takes_the_cycles_of_table_ii_and_one_for_the_multiplication() -> None:
    """Every dot product takes all multipliers, so its sum leaves at the root."""
    a, b = np.arange(1, 13, dtype=np.float32).reshape(3, 4), np.ones((4, 5), np.float32)
    simulated = execute(Sigma(dpes=1, multipliers=4, bandwidth=4), a, b, "a")
    product, last = product_of_circuit(4, "fp32", a, b)
    assert product.tobytes() == simulated.product.tobytes()
    assert last == simulated.cycles + 1


def controller_is_caught() -> bool:
    return not check_equality(design_of("controller", SMALL_CONTROLLER), 150, seed=3).equal


def test_counters_that_count_one_bit_less_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = controller.counters
    monkeypatch.setattr(controller, "counters", lambda m, name, bits: counters(m, name, bits & ~2))
    assert controller_is_caught()


def test_accumulation_ids_that_never_change_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller.ControllerCircuit, "_accumulation_ids", lambda self, m: None)
    assert controller_is_caught()


def flex_dpe_is_caught() -> bool:
    return not check_equality(design_of("flex-dpe", {"multipliers": 2, "number": "bf16"}), 80, seed=3).equal


@pytest.mark.parametrize(("name", "given", "says"), [
    ("controller", {"multipliers": 3}, "controller: multipliers must be a power of two of at least 2, got 3: write 2 or 4"),
    ("controller", {"depth": 0}, "controller: depth must be a positive whole number, got 0"),
    ("flex-dpe", {"multipliers": 100}, "flex-dpe: multipliers must be a power of two of at least 2, got 100: write 64 or 128"),
])  # fmt: skip
def test_parameters_that_cannot_be_built_are_refused(name: str, given: dict[str, int], says: str) -> None:
    with pytest.raises(BadInput) as caught:
        design_of(name, dict(given))
    assert str(caught.value) == says


def test_operands_of_a_format_that_fp32_cannot_hold_are_refused() -> None:
    with pytest.raises(UnknownName, match="unknown number 'e9m2' in flex-dpe"):
        design_of("flex-dpe", {"number": "e9m2"})
