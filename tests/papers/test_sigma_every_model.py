"""Every model of the zoo on SIGMA: all products are there, and what zeros and shapes are worth adds up."""

from __future__ import annotations

import pytest
from paper_pages.sigma import every_zoo_model

from trainyard.ir import Phase
from trainyard.papers.sigma import every_model
from trainyard.papers.sigma.training import PRODUCTS
from trainyard.workloads import zoo


@pytest.mark.unit
@pytest.mark.parametrize("model", ["alexnet", "bert-tiny", "ncf", "linear", "gru"])
def test_all_products_of_a_step_are_counted(model: str) -> None:
    step, found = zoo.load(model), every_model.summary(model)
    products = [op for op in step.ops if op.is_product and op.phase in PRODUCTS]
    assert len(found.products) == len(products)
    assert found.cycles == sum(found.of(phase).cycles for phase in PRODUCTS)
    assert found.speedup >= found.dense_speedup, "zeros never cost time"
    assert 0 < found.efficiency <= 1
    assert 0 < found.utilisation <= 1


@pytest.mark.unit
def test_pruned_weights_help_forward_and_dx_more_than_dw() -> None:
    found = every_model.summary("alexnet")
    assert found.of(Phase.FORWARD).speedup > found.of(Phase.GRAD_WEIGHT).speedup
    assert found.of(Phase.FORWARD).stays["W"] > 0.5


@pytest.mark.unit
def test_every_model_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "names", lambda: ("linear", "ncf"))
    lines = every_zoo_model().splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["linear", "ncf"]
    assert "| linear | 8 | " in lines[2]
    drawn = every_model.figure()
    assert {len(trace.x) for trace in drawn.data} <= {1, 2}
