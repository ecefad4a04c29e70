"""Training algorithms: after how many steps, what and between whom they exchange; which values they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from trainyard.errors import TrainyardError
from trainyard.mapping.algorithms import (
    ADMM,
    Algorithm,
    DecentralizedSgd,
    Direct,
    ElasticAveraging,
    GradientAveraging,
    ModelAveraging,
    Rates,
    Synchronous,
)

# fmt: off
TABLE = [
    (Synchronous(),                     1,  "gradients", "all"),
    (GradientAveraging(4),              4,  "gradients", "server"),
    (ModelAveraging(4),                 4,  "models",    "server"),
    (ModelAveraging(),                  1,  "models",    "server"),
    (ADMM(5, rho=0.1),                  5,  "models",    "server"),
    (ElasticAveraging(7),               7,  "models",    "centre"),
    (DecentralizedSgd(),                1,  "models",    "neighbours"),
    (Direct(tau=0),                     1,  "models",    "clusters"),
    (Direct(tau=31, update="literal"),  32, "gradients", "clusters"),
]
REFUSED = [
    (ModelAveraging,   {"period": 0},                        "period"),
    (ADMM,             {"period": 0},                        "period"),
    (ADMM,             {"rho": 0},                           "rho"),
    (ElasticAveraging, {"elasticity": 1.0},                  "elasticity is a share of the distance, below 1"),
    (ElasticAveraging, {"elasticity": 0},                    "elasticity"),
    (ElasticAveraging, {"period": 0},                        "period"),
    (Direct,           {"tau": 0.5},                         "whole number; unit='s' takes seconds"),
    (Direct,           {"tau": -1},                          "tau"),
    (Direct,           {"unit": "minutes"},                  "unit"),
    (Direct,           {"update": "mean"},                   "update"),
    (Direct,           {"order": "random"},                  "order"),
    (Direct,           {"recheck": 1},                       "recheck"),
    (Direct,           {"adaptive": "yes"},                  "adaptive"),
    (Direct,           {"compression_bits": 1},              r"2 \(a sign and a level\) to 16"),
    (Direct,           {"compression_bits": 17},             r"2 \(a sign and a level\) to 16"),
    (Direct,           {"compression_bits": 0},              "compression_bits"),
]
TAKEN = [
    (ElasticAveraging, {"elasticity": 0.999}),
    (Direct,           {"tau": 0.5, "unit": "s"}),
    (Direct,           {"compression_bits": 2}),
    (Direct,           {"compression_bits": 16}),
]
# fmt: on


@pytest.mark.parametrize(("algorithm", "steps", "what", "between"), TABLE)
def test_steps_contents_and_partners_of_an_exchange(algorithm: Algorithm, steps: int, what: str, between: str) -> None:
    assert (algorithm.local_steps, algorithm.exchanges, algorithm.between) == (steps, what, between)


@pytest.mark.parametrize(("algorithm", "fields", "message"), REFUSED)
def test_values_without_a_meaning_are_refused(algorithm: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainyardError, match=message):
        algorithm(**fields)


@pytest.mark.parametrize(("algorithm", "fields"), TAKEN)
def test_values_at_the_edge_are_taken(algorithm: Any, fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        assert getattr(algorithm(**fields), name) == value


def test_seconds_of_staleness_are_steps_of_each_group_by_its_own_speed() -> None:
    """The step that finds the age above tau is the last: of 1.25 s steps those that end after 1.25, 2.5, 3.75 and, above 4, 5 s."""
    rates = Rates(
        workers=6, cluster_size=2, step_s=(1.0, 1.75, 0.25), reduce_s=0.25, exchange_s=0.0, update_s=0.0, token_s=0.0,
        message_bytes=0, exchange_bytes=0, reduce_bytes=0,
    )  # fmt: skip
    assert rates.groups == 3
    assert rates.local_steps(Direct(tau=4.0, unit="s")) == (4, 3, 9)
    assert rates.local_steps(Direct(tau=4)) == (5, 5, 5)
    assert rates.local_steps(ModelAveraging(3)) == (3, 3, 3)
    with pytest.raises(TrainyardError, match=r"Rates\.local_steps"):
        _ = Direct(tau=4.0, unit="s").local_steps
