"""Every multiplexer of every generator with its inputs swapped, every delay one register short: the equality check catches each.

A generator calls `Mux` or `delayed` some number of times while it builds a circuit; one mutant is one call that is wrong.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trainyard.rtl.catalogue import Inputs, Outputs, design_of
from trainyard.rtl.equality import amaranth_outputs, compare

CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "arithmetic.adder": ("adder", {"number": "e3m2-flush"}, 500),
    "arithmetic.multiplier": ("multiplier", {"number": "e3m2"}, 500),
    "arithmetic.operands": ("adder", {"number": "e3m2-flush"}, 500),
    "arithmetic.pipeline": ("adder", {"number": "e3m2"}, 300),
    "reduction.fan": ("fan", {"lanes": 8, "number": "e3m2"}, 150),
    "reduction.art": ("art", {"lanes": 8, "number": "e3m2"}, 150),
    "reduction.chain": ("chain", {"lanes": 4, "number": "e3m2"}, 150),
    "benes": ("benes", {"ports": 4, "width": 4, "latency": 3}, 100),
    "controller": ("controller", {"rows": 3, "depth": 4, "multipliers": 2, "dpes": 1}, 300),
    "flex_dpe": ("flex-dpe", {"multipliers": 2, "number": "bf16"}, 150),
    "systolic": ("systolic", {"rows": 2, "columns": 2, "number": "bf16", "pipelined": True}, 80),
}
EQUIVALENT: dict[tuple[str, str], set[int]] = {
    # parts that cannot occur: to the left of the first lane, to the right of the last one, above the root; and whether lanes are
    # missing on the side where the other child of the same parent holds them
    ("reduction.art", "Mux"): {1, 2, 6, 20, 22, 23, 26, 27, 29, 30, 34, 36, 37, 40, 41, *range(43, 49), 84, 90, 91},
    ("controller", "Mux"): {0, 4},  # 0 if the value of k = 0 goes here, 0 if not
}
"""Mutants that no input can tell from the original, with the reason above each; all others must be caught."""
DELAYED_ARGUMENTS = 4


class Mutant:
    """Replaces one call of a function by a wrong one; without a number it only counts the calls."""

    def __init__(self, original: Callable[..., Any], wrong: Callable[..., Any], number: int | None) -> None:
        self.original, self.wrong, self.number, self.calls = original, wrong, number, 0

    def __call__(self, *arguments: Any) -> Any:
        if len(arguments) == DELAYED_ARGUMENTS and arguments[2] == 0:  # no register to leave out
            return self.original(*arguments)
        self.calls += 1
        return (self.wrong if self.calls - 1 == self.number else self.original)(*arguments)


def wrong_call(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    if kind == "Mux":
        return lambda condition, yes, no: original(condition, no, yes)
    return lambda m, signal, cycles, name: original(m, signal, cycles - 1, name)


def tables(name: str, parameters: dict[str, Any], cycles: int) -> tuple[list[Inputs], list[Outputs]]:
    design = design_of(name, parameters)
    stimulus = design.stimulus(cycles, 5)
    return stimulus, design.expected(stimulus)


def survivors(module: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Numbers of the calls whose mutant no cycle shows."""
    name, parameters, cycles = CASES[module]
    stimulus, expected = tables(name, parameters, cycles)
    place = importlib.import_module(f"trainyard.rtl.{module}")
    original = getattr(place, kind)
    count = Mutant(original, original, None)
    monkeypatch.setattr(place, kind, count)
    assert compare(amaranth_outputs(design_of(name, parameters).build(), stimulus), expected).equal
    for number in range(count.calls):
        monkeypatch.setattr(place, kind, Mutant(original, wrong_call(kind, original), number))
        if compare(amaranth_outputs(design_of(name, parameters).build(), stimulus), expected).equal:
            yield number


@pytest.mark.slow
@pytest.mark.parametrize("module", CASES)
def test_a_multiplexer_with_swapped_inputs_is_caught(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(survivors(module, "Mux", monkeypatch)) <= EQUIVALENT.get((module, "Mux"), set())


@pytest.mark.slow
@pytest.mark.parametrize("module", ["reduction.fan", "reduction.art", "reduction.chain", "benes", "flex_dpe"])
def test_a_delay_that_is_one_register_short_is_caught(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not list(survivors(module, "delayed", monkeypatch))
