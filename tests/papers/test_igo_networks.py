"""IGO's networks and their layers, what the paper states of them, and the breakdown of a training step on a GPU."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from trainyard.errors import BadInput, UnknownName
from trainyard.ir import Convolution, MatMul, Op, Phase, Step
from trainyard.machines.presets.gpus import A100, A100_80GB
from trainyard.machines.presets.igo import NPU, NPU_SMALL
from trainyard.machines.presets.sigma import TPU
from trainyard.mapping.lowering import lower
from trainyard.papers import ledger
from trainyard.papers.igo import breakdown, context, networks
from trainyard.runs import run
from trainyard.workloads import zoo
from trainyard.workloads.zoo.catalogue import ENTRIES

CLAIMS = {claim.id: claim for claim in ledger.claims()}
EVERY = [(abbreviation, npu) for npu in networks.BATCH for abbreviation in networks.ABBREVIATIONS]


def test_abbreviations_are_those_of_table_4() -> None:
    assert networks.ABBREVIATIONS == ("rcnn", "goo", "ncf", "res", "dlrm", "mob", "yolo", "bert", "T5")
    assert {name for sizes in networks.NETWORKS.values() for name in sizes.values()} <= set(ENTRIES)
    differ = [abbreviation for abbreviation, sizes in networks.NETWORKS.items() if sizes["small"] != sizes["large"]]
    assert differ == ["yolo", "bert", "T5"]


@pytest.mark.parametrize(("abbreviation", "npu"), EVERY)
def test_steps_have_the_batch_of_their_npu(abbreviation: str, npu: networks.Npu) -> None:
    found = networks.step(abbreviation, npu)
    unit = networks.RECOMMENDER_BATCH.value if abbreviation in networks.RECOMMENDERS else 1
    assert found.batch == {"small": 4, "large": 8}[npu] * unit
    assert networks.step(abbreviation, npu, found.batch // unit, networks.RECOMMENDER_BATCH.value) is found
    assert networks.layers_of(abbreviation, npu) is networks.layers_of(abbreviation, npu=npu, batch=None)
    assert networks.step(abbreviation, npu, 32).batch == 32 * unit
    assert networks.step(abbreviation, npu, 8, 1).batch == 8


def test_the_recommenders_train_with_the_batch_of_the_zoo_on_the_large_npu() -> None:
    for abbreviation in networks.RECOMMENDERS:
        assert networks.step(abbreviation).batch == ENTRIES[networks.model(abbreviation)].batch
    found = networks.layers_of("dlrm", "large", None, 1)
    twice, once = 2 * sum(one.op.M * one.op.N for one in found), sum(one.op.K * (one.op.M + one.op.N) for one in found)
    assert twice / (twice + once) == pytest.approx(0.02, abs=0.005), "as the assumption says of a batch of 8"


@pytest.mark.oracle
@pytest.mark.parametrize(("abbreviation", "npu"), EVERY)
def test_gradients_of_a_layer_are_those_of_its_forward_product(abbreviation: str, npu: networks.Npu) -> None:
    """Found anew from the step: dX(M,K) sums over N, dW(K,N) over M."""
    step, found = networks.step(abbreviation, npu), networks.layers_of(abbreviation, npu)
    ops = {(op.layer, op.call, op.phase): op for op in step.ops if op.is_product and any(op.letters)}
    for layer in found:
        m, n, k, count = layer.op.M, layer.op.N, layer.op.K, layer.op.count
        gradients = ((Phase.GRAD_INPUT, {m, k}, n, layer.has_dx), (Phase.GRAD_WEIGHT, {k, n}, m, layer.has_dw))
        for phase, sides, summed, expected in gradients:
            op = ops.pop((layer.path, layer.call, phase), None)
            assert (op is not None) == expected
            if op is not None:
                product = lower(op.body).product  # type: ignore[arg-type]
                assert ({product.M, product.N}, product.K, product.count) == (sides, summed, count), layer.name
                assert op.macs == layer.op.macs
        assert ops.pop((layer.path, layer.call, Phase.FORWARD)) is layer.source
    assert not ops, "products with weights that no layer has"
    assert [layer.number for layer in found] == list(range(1, len(found) + 1))


def test_which_layers_have_no_input_gradient() -> None:
    without = {name: [layer.name for layer in networks.layers_of(name) if not layer.has_dx] for name in networks.ABBREVIATIONS}
    for name in ("goo", "res", "dlrm", "mob", "yolo"):
        assert without[name] == [f"{name}_1"]
    assert without["ncf"] == without["bert"] == without["T5"] == []
    frozen = [layer for layer in networks.layers_of("rcnn") if not layer.has_dw]
    assert len(frozen) == 24
    assert {layer.path.split(".")[2] for layer in frozen} == set("0123456")
    assert without["rcnn"] == [f"rcnn_{number}" for number in range(1, 26)], "the frozen ones, and the first that trains"


def test_layers_of_fig_13() -> None:
    third = networks.layers_of("goo")[2]
    assert (third.name, third.path, third.paired) == ("goo_3", "conv3.conv", True)
    assert third.op == MatMul(8 * 56 * 56, 192, 9 * 64)
    assert isinstance(third.body, Convolution)


def test_depthwise_convolutions_are_many_small_products() -> None:
    wide = [layer for layer in networks.layers_of("mob") if layer.op.count > 1]
    assert len(wide) == 13
    for layer in wide:
        assert isinstance(layer.body, Convolution)
        assert (layer.op.N, layer.op.K, layer.op.count) == (1, 9, layer.body.groups)


def test_distinct_layers_stand_for_equal_ones() -> None:
    for name in networks.ABBREVIATIONS:
        every = networks.layers_of(name)
        once = networks.distinct(every)
        assert sum(layer.repeats for layer in once) == len(every)
        assert sum(layer.repeats * layer.op.macs for layer in once) == sum(layer.op.macs for layer in every)
        assert len({(layer.body, layer.has_dx, layer.has_dw) for layer in every}) == len(once)
        assert networks.distinct(once) == once
    assert [layer.repeats for layer in networks.distinct(networks.layers_of("bert"))] == [96, 24, 24, 1, 1, 1, 1]


def test_what_cannot_be_meant() -> None:
    with pytest.raises(UnknownName, match="did you mean 'goo'"):
        networks.model("goog")
    with pytest.raises(UnknownName, match="unknown NPU"):
        networks.model("goo", "middle")  # type: ignore[arg-type]
    twice = Step("twice", 1, (Op(body=MatMul(2, 2, 2), layer="cell", letters=("A", "W")),) * 2, ())
    with pytest.raises(BadInput, match="'cell' multiplies 2 times in call 0"):
        networks.layers(twice)


@pytest.mark.paper
@pytest.mark.parametrize("name", [*context.EXPERIMENTS, *breakdown.EXPERIMENTS])
def test_every_experiment_answers_its_claim(name: str) -> None:
    row = ledger.judge(CLAIMS[name], {**context.EXPERIMENTS, **breakdown.EXPERIMENTS}[name]())
    ours = row.ours if isinstance(row.ours, tuple) else (row.ours,)
    assert all(value is not None and 0 <= value < math.inf for value in ours)
    assert row.note
    assert not row.failed


@pytest.mark.paper
def test_no_claim_of_the_context_is_left_out() -> None:
    wanted = {claim.id for claim in ledger.select("igo") if claim.use == "context"}
    assert wanted - {"igo.square_threshold"} == set(context.EXPERIMENTS)


def test_parameters_are_counted_in_the_step() -> None:
    assert context.EXPERIMENTS["igo.params.res"]().value == zoo.load("resnet50").parameters == 25_557_032
    assert context.EXPERIMENTS["igo.params.bert_tiny"]().value == ENTRIES["tinybert-4"].parameters
    found = context.EXPERIMENTS["igo.params.goo"]()
    assert "13,378,280" in found.note + found.details


def test_training_work_is_three_products_less_those_left_out() -> None:
    each = {name: context.training_work(name) for name in networks.ABBREVIATIONS}
    assert each["ncf"] == each["bert"] == each["T5"] == 3
    first = networks.layers_of("res")[0].op.macs
    forward = sum(layer.op.macs for layer in networks.layers_of("res"))
    assert each["res"] == pytest.approx(3 - first / forward)
    assert all(1 < work <= 3 for work in each.values())


def test_the_presets_are_the_papers_table() -> None:
    small, large = (context.EXPERIMENTS[f"igo.npu.{size}"]().value for size in ("small", "large"))
    assert small == CLAIMS["igo.npu.small"].value
    assert large == CLAIMS["igo.npu.large"].value
    assert NPU_SMALL.clock_hz < NPU.clock_hz
    assert context.EXPERIMENTS["igo.mxu_bandwidth"]().value == CLAIMS["igo.mxu_bandwidth"].value
    assert TPU.dram_bytes_per_s == 350e9


@pytest.mark.paper
def test_the_breakdown_is_of_what_fits_the_board() -> None:
    rows = breakdown.fitting()
    assert [row.network for row in rows] == ["goo", "ncf", "res", "mob", "yolo", "bert"]
    assert {row.batch for row in rows if row.network not in networks.RECOMMENDERS} == {256}
    assert breakdown.chosen(0) == ()
    assert {network for network, _, _ in breakdown.chosen(10**15)} == set(networks.ABBREVIATIONS)
    assert ("T5", "t5-large", 256) in breakdown.chosen(10**15)
    found = breakdown._breakdown()
    assert sum(found.value) == pytest.approx(100)  # type: ignore[arg-type]
    for row in rows:
        assert sum(row.shares.values()) == pytest.approx(100)
        assert row.model in found.note + found.details
    assert "rcnn, dlrm, T5 do not fit" in found.note + found.details


@pytest.mark.paper
def test_a_step_takes_what_its_phases_take_and_the_copy_besides() -> None:
    row = breakdown.predicted("res", "resnet50", 256)
    result = run("resnet50", A100_80GB, batch=256)
    assert sum(row.seconds.values()) - row.seconds["copy"] == pytest.approx(result.time_s)
    assert row.seconds["copy"] == pytest.approx(256 * (3 * 224 * 224 * 4 + 8) / 25e9)
    assert row.with_link(12.5e9).seconds["copy"] == pytest.approx(2 * row.seconds["copy"])
    assert breakdown.predicted("res", "resnet50", 256, A100).seconds["forward"] > row.seconds["forward"], "less bandwidth"


@pytest.mark.paper
def test_a_measurement_stands_beside_the_prediction_where_there_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(breakdown.resources, "files", lambda _: tmp_path)
    assert breakdown.measured() == ("", ())
    assert "Measured" not in breakdown._breakdown().details
    file = tmp_path / "samples" / "igo" / "gpu.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"device": "H200"}))
    assert breakdown.measured() == ("H200", ())
    seconds = {"forward": 1.0, "backward": 2.0, "copy": 0.5, "loss": 0.25, "update": 0.25}
    rows = [{"network": "res", "model": "resnet50", "batch": 256, "seconds": seconds}]
    file.write_text(json.dumps({"device": "H200", "breakdown": rows}))
    assert "Measured on H200, res (resnet50): 25.0 / 50.0 / 12.5 / 6.2 / 6.2" in breakdown._breakdown().details
    figure = breakdown.figure_3()
    places = {"A100, predicted": 7, "H200, measured": 2, "A100, paper": 1}  # networks and their mean
    for trace in figure.data:
        assert {where: list(trace.x[0]).count(where) for where in places} == places


@pytest.mark.paper
def test_the_breakdown_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A board with slow tensor cores spends less of its time on the update."""
    before = breakdown.mean(breakdown.fitting())
    slow = breakdown.mean(breakdown.fitting(replace(A100_80GB, tensor_fraction=0.05, vector_fraction=0.05)))
    assert slow["update"] < before["update"]
    assert slow["copy"] < before["copy"]
