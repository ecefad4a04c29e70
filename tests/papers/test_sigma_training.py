"""SIGMA's models in pruned training: the shipped samples, and their three products on both arrays."""

from __future__ import annotations

import json
import math
from importlib import resources
from pathlib import Path

import pytest
from paper_pages.sigma import by_model

from trainyard.errors import UnknownName
from trainyard.ir import DENSE, Density, Phase
from trainyard.masks.recorded import Masks
from trainyard.papers import ledger
from trainyard.papers.sigma import training
from trainyard.workloads import zoo

CLAIMS = {claim.id: claim for claim in ledger.claims()}
SAMPLES = Path(str(resources.files("trainyard.papers") / "samples" / "sigma"))
RUNS = json.loads((SAMPLES / "densities.json").read_text())


@pytest.mark.unit
def test_samples_are_small_and_say_what_they_are() -> None:
    assert sum(file.stat().st_size for file in SAMPLES.iterdir()) <= 2_500_000
    for name, run in RUNS.items():
        masks = Masks.open(SAMPLES / f"{name}.safetensors.xz")
        kept = next(len(spec.samples) for spec in masks.specs.values() if spec.samples)
        masks.check(zoo.load(run["model"], batch=kept))
        assert run["data"].startswith("stand-in: ")
        assert masks.metadata["data"] == run["data"]
        assert run["end"]["loss"] < 0.96 * run["start"]["loss"]
        assert {key[2][0] for key in masks.specs} == {"A", "G", "W"}
        for (layer, call, letter), spec in masks.specs.items():
            if letter.startswith("W"):  # the whole matrix: the share is exact
                assert spec.density == pytest.approx(run["densities"][f"{layer}/{call}"][letter][-1], abs=1e-4)
        left_out = json.loads(masks.metadata["left_out"])
        pruned = {
            f"{place}/{letter}"
            for place, letters in run["densities"].items()
            for letter, values in letters.items()
            if letter.startswith("W") and values[-1] < 1
        }
        assert pruned == {named for named in left_out if "/W" in named} | {
            "/".join(map(str, key)) for key in masks.specs if key[2].startswith("W")
        }


@pytest.mark.unit
def test_weights_are_pruned_to_what_the_paper_says() -> None:
    for model, claim in (("gnmt", "gnmt"), ("transformer-324m", "transformer"), ("resnet50", "resnet50")):
        wanted = CLAIMS[f"sigma.sparsity.{claim}_weights"].value
        for letters in training.run_of(model)["densities"].values():
            for name, values in letters.items():
                if name.startswith("W") and values[-1] < 1:
                    assert 100 * (1 - values[-1]) == pytest.approx(wanted, abs=0.1)
                    assert values == sorted(values, reverse=True), "pruned weights stay pruned"


@pytest.mark.unit
def test_operands_have_the_densities_of_their_own_tensors() -> None:
    recorded = training.Recorded.of("gnmt")
    sequences = training.sequences_of(recorded.step)
    said = training.run_of("gnmt")["densities"]
    seen: dict[tuple[str, Phase], set[object]] = {}
    for op in recorded.step.ops:
        if op.is_product:
            for side in (0, 1):
                operand = recorded.operand(op, side, sequences)
                if op.letters[side : side + 1] == ("A",):
                    seen.setdefault((op.layer, op.phase), set()).add(operand)
                elif op.letters[side : side + 1] == ("W",):
                    assert isinstance(operand, Density)
                    assert operand.nonzero == pytest.approx(0.1, abs=1e-3), "all of GNMT's matrices are pruned"
                elif not op.letters or not op.letters[side]:
                    assert operand is DENSE
    layer = said["encoder.rnn_layers.0/0"]
    both = {Density(layer["A.input"][-1]), Density(layer["A.output"][-1])}
    assert seen["encoder.rnn_layers.0", Phase.FORWARD] == seen["encoder.rnn_layers.0", Phase.GRAD_WEIGHT] == both


@pytest.mark.unit
@pytest.mark.parametrize("model", training.MODELS)
def test_training_products(model: str) -> None:
    whole = training.trained(model)
    assert sum(whole.of(phase).cycles for phase in training.PRODUCTS) == whole.cycles
    speedups = [whole.of(phase).speedup for phase in training.PRODUCTS]
    assert min(speedups) <= whole.speedup <= max(speedups)
    assert whole.speedup > whole.dense_speedup > 1, "zeros help, on top of shapes"
    assert whole.of(Phase.GRAD_WEIGHT).speedup == min(speedups), "pruned weights are no operand of their own gradient"
    assert 0 < whole.efficiency <= whole.utilisation <= 1
    for phase in training.PRODUCTS:
        assert sum(whole.of(phase).stays.values()) == pytest.approx(1)
        assert "W" not in whole.of(Phase.GRAD_WEIGHT).stays
    first = training.trained(model, 0)
    assert first.speedup < whole.speedup
    assert [product.tpu_cycles for product in first.products] == [product.tpu_cycles for product in whole.products]


@pytest.mark.oracle
@pytest.mark.parametrize("model", training.MODELS)
def test_densities_stand_for_the_shipped_masks(model: str) -> None:
    """Law 1: whole layers of real masks are within 6 % of independent zeros; what differs is padding and single samples."""
    for exact, expected in training.on_masks(model).values():
        assert exact > 0
        assert exact == pytest.approx(expected, rel=0.06)
    assert by_model().count("\n") == 2 + 4 * len(training.MODELS)


@pytest.mark.unit
@pytest.mark.parametrize("name", training.FIGURES)
def test_figures_say_that_they_are_beyond_the_paper(name: str) -> None:
    figure = training.FIGURES[name]()
    assert "Beyond: " in figure.layout.title.text
    assert all(math.isfinite(value) and value > 0 for trace in figure.data for value in trace.y)
    assert not any(ledger.names_figure(claim, name) for claim in ledger.select("sigma"))


@pytest.mark.unit
def test_a_model_that_was_not_pruned_is_said() -> None:
    with pytest.raises(UnknownName, match="resnet50"):
        training.run_of("resnet5")
