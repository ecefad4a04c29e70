"""The walk-through tells what the controller, the switches and the adders did: each number in it against the matrices."""

from __future__ import annotations

import re

import numpy as np
import pytest

from trainyard.arrays.sigma.controller import IDLE
from trainyard.arrays.sigma.walkthrough import EXAMPLE, example, links, trace_product, walkthrough
from trainyard.errors import BadInput

SEEDS = range(6)


@pytest.mark.parametrize("case", [EXAMPLE, *map(example, SEEDS)], ids=["paper", *map(str, SEEDS)])
def test_the_last_step_of_the_trace_is_the_product(case):
    trace = trace_product(case)
    assert np.array_equal(trace.execution.product, case.a @ case.b)
    summed = np.zeros_like(trace.execution.product)
    for unit in trace.units:
        for group, vec_id in enumerate(unit.reduction.ids):
            summed[vec_id % len(case.a)] += unit.reduction.sums[:, group]
    assert np.array_equal(summed, trace.execution.product)
    assert sum(int((unit.flex_dpe.value != IDLE).sum()) for unit in trace.units) == trace.allocation.useful


@pytest.mark.parametrize("case", [EXAMPLE, *map(example, SEEDS)], ids=["paper", *map(str, SEEDS)])
def test_links_lead_from_every_listening_multiplier_back_to_its_port(case):
    trace = trace_product(case)
    for unit in trace.units:
        for vector in range(case.b.shape[1]):
            found = links(unit, vector)
            last = max(level for level, _, _, _ in found) if found else 0
            for lane, source in enumerate(unit.sources[vector]):
                at = {lane} if source >= 0 else set()
                for level in range(last, -1, -1):
                    at = {begin for here, begin, end, lanes in found if here == level and end in at and lane in lanes}
                assert at == ({int(source)} if source >= 0 else set())


def test_every_step_is_printed():
    text = walkthrough()
    for step in ("i)", "ii)", "iii)", "iv)", "v)", "vi)", "vii)"):
        assert re.search(rf"^{re.escape(step)} ", text, re.MULTILINE), step
    assert "N_stat = 8, N_mult = 4: 2 Flex-DPEs, on 2 of them 1 fold" in text
    assert "2 stationary values meet nothing" in text
    assert "4 a cycle: 2 cycles" in text
    assert "row 1 has parts in Flex-DPE 0; Flex-DPE 1: they meet in the tree over Flex-DPEs" in text
    assert "loading 2 + streaming 3 + add 3 = 8 cycles; 19 of 24 multiplier slots multiply two non-zeros" in text
    product = (EXAMPLE.a @ EXAMPLE.b).astype(int)
    trace = text.rsplit("outputs\n", 1)[1].splitlines()
    assert [[int(cell.replace(".", "0")) for cell in line.split()] for line in trace[: len(product)]] == product.tolist()
    assert max(map(len, text.splitlines())) <= 132


def test_folds_are_printed_and_added_in_the_output_buffer():
    text = walkthrough(example(7))
    assert "on 2 of them 2 folds" in text
    assert re.search(r"row \d has parts in fold 0, Flex-DPE 1; fold 1, Flex-DPE 0: they meet in the output buffer", text)


def test_a_seed_gives_the_same_example_again_and_another_gives_another():
    assert np.array_equal(example(3).a, example(3).a)
    assert not np.array_equal(example(3).a, example(4).a)
    with pytest.raises(BadInput, match="rows must be a positive"):
        example(0, rows=0)
