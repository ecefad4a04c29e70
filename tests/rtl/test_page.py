"""The page of the hardware: every figure far from a paper's is explained by what was counted, with counts of the circuits."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("amaranth")

import rtl_explained
from amaranth.hdl import Fragment
from amaranth.lib.wiring import Component
from rtl_page import NEAR, page

from trainyard.papers import gates
from trainyard.papers.ledger import claims
from trainyard.rtl.arithmetic.formats import FP32
from trainyard.rtl.measurements.sigma import full_array
from trainyard.rtl.reduction.art import ArtTree
from trainyard.rtl.reduction.chain import ChainCells
from trainyard.rtl.reduction.fan import FanTree


def far_claims() -> list[str]:
    found = []
    for claim in claims():
        counted, paper = gates.figure(claim.id), claim.value[-1] if isinstance(claim.value, tuple) else claim.value
        if counted is not None and not isinstance(paper, str) and abs(counted.value / paper - 1) > NEAR:
            found.append(claim.id)
    return found


def test_every_figure_farther_than_a_quarter_is_explained_on_the_page() -> None:
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in page().splitlines() if line.startswith("| ")}
    for claim in far_claims():
        assert rtl_explained.explained(claim), claim
        assert rtl_explained.explained(claim) in rows[claim]


def test_the_explanation_of_energies_has_the_ledgers_overheads() -> None:
    text = rtl_explained.fan_below_art()
    for kind in ("fan", "art"):
        found = gates.figure(f"sigma.{kind}.power_overhead_over_linear_512")
        assert found is not None
        assert f"{kind.upper()} draws {found.value:.0f} %" in text or f"{kind.upper()} {found.value:.0f} %" in text


@pytest.mark.parametrize(("kind", "build"), [("fan", FanTree), ("art", ArtTree), ("chain", ChainCells)])
@pytest.mark.parametrize("lanes", [2, 8, 16])
def test_flip_flops_are_those_of_the_circuit(kind: str, build: Any, lanes: int) -> None:
    assert rtl_explained.flip_flops(kind, lanes) == registered_bits(build(lanes, FP32))


def registered_bits(component: Component) -> int:
    fragment: Any = Fragment.get(component, None)
    targets = {id(signal): len(signal) for statement in fragment.statements["sync"] for signal in statement._lhs_signals()}
    return sum(targets.values())


def test_the_measured_array_has_a_weight_in_every_cell() -> None:
    rows, columns = 4, 3
    table = full_array(rows, columns)
    assert [row["load"] for row in table[: rows + 1]] == [1] * rows + [0]
    for column in range(columns):  # its load comes as many cycles later
        loaded = [table[step + column][f"weight_{column}"] for step in range(rows)]
        assert sum(not weight << 1 & 0xFFFFFFFF for weight in loaded) <= 1, "more zeros than drawn ones"
    assert all(row["valid"] for row in table[rows + columns :])
