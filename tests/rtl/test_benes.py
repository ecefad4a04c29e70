"""The Benes network as a circuit: what the simulator delivers, one cycle later, for its own settings."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from trainyard.errors import BadInput
from trainyard.hardware.benes.network import Benes, TextbookBenes
from trainyard.rtl import benes
from trainyard.rtl.catalogue import design_of
from trainyard.rtl.equality import amaranth_outputs, check_equality
from trainyard.rtl.verilator import compiled_outputs, missing_tools

CASES = [
    {"ports": 2, "width": 3},
    {"ports": 4},
    {"ports": 8, "width": 5},
    {"ports": 8, "width": 8, "latency": 3},
    {"ports": 8, "width": 8, "textbook": True},
    {"ports": 4, "width": 8, "latency": 5},
]


@pytest.mark.parametrize("parameters", CASES, ids=str)
def test_random_multicasts_arrive_as_in_the_simulator(parameters: dict[str, Any]) -> None:
    comparison = check_equality(design_of("benes", parameters), 60, seed=2)
    assert comparison.equal, comparison.difference


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_tools()), reason="needs verilator, g++ and make")
@pytest.mark.parametrize("parameters", [
    {"ports": 16}, {"ports": 32, "width": 16, "latency": 2}, {"ports": 64, "width": 4}, {"ports": 16, "textbook": True},
], ids=str)  # fmt: skip
def test_ten_thousand_cycles_equal_the_simulator(parameters: dict[str, Any]) -> None:
    comparison = check_equality(design_of("benes", parameters), 10_000, seed=1, runner=compiled_outputs)
    assert comparison.equal, comparison.difference
    assert comparison.cycles == 10_000


def test_every_output_gets_the_value_of_its_source() -> None:
    """Without the simulator's `deliver`: the sources that were asked for."""
    chance = random.Random(4)
    sources = [benes.random_sources(8, chance) for _ in range(40)]
    settings = Benes(ports=8).route(np.array(sources))
    assert (settings.passes == 1).all()
    values = {f"value_{port}": 100 + port for port in range(8)}
    stimulus = [
        {
            **values,
            **benes.select_words(bits),
            "enable": sum(1 << port for port, source in enumerate(row) if source >= 0),
            "start": 1,
        }
        for row, bits in zip(sources, settings.bits, strict=True)
    ]
    outputs = amaranth_outputs(benes.BenesNetwork(8, 8), [*stimulus, {}])[1:]
    arrived = [[row[f"out_{port}"] for port in range(8)] for row in outputs]
    assert arrived == [[100 + source if source >= 0 else 0 for source in row] for row in sources]


def test_a_multicast_that_blocks_the_textbook_network_arrives_in_two_passes() -> None:
    sources = np.array([[0, 0, 0, 0, 1, 2, 1, 3]])
    settings = TextbookBenes(ports=8).route(sources)
    assert settings.passes.tolist() == [2]
    values = {f"value_{port}": 10 + port for port in range(8)}
    stimulus: list[dict[str, int]] = []
    for number in range(2):
        enable = sum(int(latches) << port for port, latches in enumerate(settings.enable[number]))
        stimulus.append({**values, **benes.select_words(settings.bits[number]), "enable": enable, "start": int(number == 0)})
    last = amaranth_outputs(benes.BenesNetwork(8, 8, textbook=True), [*stimulus, {}])[-1]
    assert [last[f"out_{port}"] for port in range(8)] == [10, 10, 10, 10, 11, 12, 11, 13]


def is_caught() -> bool:
    return not check_equality(design_of("benes", {"ports": 8, "width": 8, "latency": 2}), 40, seed=3).equal


def test_diagonals_that_lead_to_the_wrong_switch_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    stride = benes.stride
    monkeypatch.setattr(benes, "stride", lambda level, levels: 2 if level == 0 else stride(level, levels))
    assert is_caught()


@pytest.mark.parametrize(("given", "says"), [
    ({"ports": 6}, "benes: ports must be a power of two of at least 2, got 6: write 4 or 8"),
    ({"width": 0}, "benes: width must be a positive whole number, got 0"),
    ({"width": 33}, "benes: width must be at most 32 bits, got 33"),
    ({"ports": 2, "latency": 4}, "benes: latency must be at most the 3 levels of the network, got 4"),
    ({"textbook": "perhaps"}, "benes: textbook must be true or false, got 'perhaps'"),
])  # fmt: skip
def test_parameters_that_cannot_be_built_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput) as caught:
        design_of("benes", given)
    assert str(caught.value) == says
