"""A model's summary sums to the step: parameters, MACs and bytes are those of its ops, whatever the model."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

import trainyard as ty
from trainyard import cli
from trainyard.machines import names as machine_names
from trainyard.machines.registry import part_names
from trainyard.workloads.zoo import names as model_names

MODELS = ("resnet18", "bert-tiny", "lstm-1", "dlrm")


@pytest.mark.parametrize("model", MODELS)
def test_layers_sum_to_the_step(model: str) -> None:
    step, summary = ty.zoo.load(model), ty.summary(model)
    assert summary.parameters == step.parameters
    assert sum(summary.macs.values()) == step.macs
    assert sum(summary.bytes.values()) == sum(
        sum(step.tensors[tensor].bytes for tensor in {*op.inputs, *op.outputs}) for op in step.ops
    )
    assert [layer.layer for layer in summary.layers] == [name or "(outside any layer)" for name in step.layers]


def test_a_known_network_has_the_textbook_s_numbers() -> None:
    """ResNet-18 on 224 x 224 pixels: 11.69 M parameters, 1.8 G multiply-accumulates of an image."""
    summary = ty.summary("resnet18", batch=2)
    assert summary.parameters == 11_689_512
    assert summary.macs["forward"] / 2 == pytest.approx(1.81e9, rel=0.01)
    first = summary.layers[0]
    assert (first.layer, first.ops, first.output, first.parameters) == ("conv1", ("convolution",), (2, 64, 112, 112), 64 * 3 * 49)
    assert summary.layers[1].ops[0] == "native_batch_norm"
    assert first.macs["forward"] == 2 * 64 * 112 * 112 * 3 * 49


def test_a_frame_and_a_notebook_have_a_line_for_each_layer() -> None:
    summary = ty.summary("alexnet")
    frame = summary.to_frame()
    assert frame["parameters"].sum() == summary.parameters
    assert frame["backward_macs"].sum() == summary.macs["backward"]
    assert summary._repr_html_().count("<tr>") == len(summary.layers) + 2


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_narrow_terminal_leaves_columns_out_and_says_so(width: int) -> None:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115  # nothing is written
    ty.summary("alexnet").table(top=3, console=console)
    text = console.export_text()
    assert "18 more layers" in text
    assert ("no room for" in text) == (width < 200)
    assert max(map(len, text.splitlines())) <= width


def test_the_command_prints_the_same_and_json_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "alexnet", "--batch", "4", "--top", "2"]) == 0
    assert "alexnet, batch 4: 21 layers" in capsys.readouterr().out
    assert cli.main(["show", "alexnet", "--json", "-"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert table == json.loads(json.dumps(ty.summary("alexnet").as_dict()))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["npu", "--batch", "4"], "--batch is of a workload"),
        (["alexnet", "--svg", "x.svg"], "--svg draws a node"),
        (["alexnt"], "did you mean 'alexnet'"),
        (["nothing.json"], "nothing.json"),
    ],
)
def test_what_cannot_be_meant_is_said(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert cli.main(["show", *words]) == 2
    assert said in capsys.readouterr().err


def test_no_model_has_the_name_of_a_machine_or_a_part() -> None:
    assert not {*machine_names(), *part_names()} & set(model_names())
