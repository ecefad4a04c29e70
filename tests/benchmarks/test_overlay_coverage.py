"""Models of others on which the overlay had wrong gradients or failed, and how the sweep over all of them tells."""

from __future__ import annotations

import pytest
from coverage_cases.case import Training, cases_of
from coverage_cases.examination import seed
from coverage_cases.torchvision_ops import provide
from overlay_coverage import Record, difference, summary, train

FOUND = {
    "bigbird-sparse": "transformers",  # stacked products whose results are changed in place
    "layoutlmv3-tokens": "transformers",
    "recurrent_gemma: mask": "decoders",  # a recurrent state in an attribute
}
DRAWS_ON_THE_HOST = "bigbird-sparse"  # a block that no graph can replay


def built(family: str, name: str) -> Training:
    provide()
    pytest.importorskip("transformers")
    seed()
    training = next(case for case in cases_of(family) if case.name == name).build()
    training.optimizer = None
    return training


@pytest.mark.slow  # what was wrong has quick tests in tests/live/test_checkpointing.py and test_call_state.py
@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("name", FOUND)
def test_models_on_which_checkpoints_were_wrong_have_the_gradients_of_plain_training(name: str, replay: bool) -> None:
    record = Record(family=FOUND[name], name=name)
    train(record, built(FOUND[name], name), "blocks", None, replay)
    assert (record.outcome, record.error) == ("equal", "")
    assert record.blocks > 1
    assert bool(record.replayed) is (replay and name != DRAWS_ON_THE_HOST), record.obstacles


def test_wrong_gradients_and_failures_are_named() -> None:
    import torch

    one, other = [torch.ones(4), None], [torch.tensor([1.0, 1.0, 1.0, 2.0]), None]
    assert difference(one, one) == 0.0
    assert difference(one, other) == pytest.approx(0.5)
    assert difference(one, [None, None]) == float("inf")
    records = [
        Record(family="timm", name="fine"),
        Record(family="timm", name="wrong", outcome="differs", difference=0.5),
        Record(family="decoders", name="broken", outcome="fails", error="RuntimeError('no')"),
        Record(family="geometric", name="plain", outcome="no blocks"),
    ]
    lines = summary(records)
    assert "| timm | 1 | 0 | 1 | 0 |" in lines
    assert "| all | 1 | 0 | 1 | 1 |" in lines
    assert "- timm, wrong: differs (5.0e-01)" in lines
    assert "- decoders, broken: fails (RuntimeError('no'))" in lines
    assert not any("geometric" in line for line in lines)
