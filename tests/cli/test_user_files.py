"""Workloads as `file.py:function`: what a user's file may return, and what is said when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard import cli
from trainyard.errors import BadInput, UnknownName
from trainyard.ir import Phase
from trainyard.workloads import named

MODEL = """
import torch
from torch import nn
from sibling import WIDTH

model = lambda: nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 4))
loss = nn.functional.cross_entropy

def build(batch=6):
    made = model()
    return made, torch.randn(batch, WIDTH), torch.randint(4, (batch,)), loss, torch.optim.SGD(made.parameters(), lr=0.1)

def as_dict():
    made, inputs, targets, criterion, optimizer = build()
    return {"model": made, "inputs": inputs, "targets": targets, "loss": criterion, "optimizer": optimizer}

def as_step():
    from trainyard.workloads.formats.scalesim import chain
    from trainyard.ir import MatMul
    return chain("mine", [("fc", MatMul(4, 4, 4))])

def recipe():
    from trainyard.workloads.zoo.recipe import Recipe
    return Recipe(model=model, inputs=lambda n: (torch.randn(n, WIDTH),), targets=lambda n: (torch.randint(4, (n,)),),
                  loss=loss, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))

def alone():
    return model()

def number():
    return 4

def needy(size):
    return None

def failing():
    raise OSError("no data\\nhere")

def odd():
    return {"modell": 1}

def swapped():
    return torch.randn(2), model()

constant = 4
"""


TRAIN = """
from torch import nn, ones
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
    def forward(self, x):
        return self.inner(x).reshape(7)
def train():
    model = Net()
    return lambda: model(ones(2, 4)).sum().backward(), model
def no_step():
    return Net(), 1, 2
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "sibling.py").write_text("WIDTH = 16\n")
    (tmp_path / "mine.py").write_text(MODEL)
    return str(tmp_path / "mine.py")


MACS = 16 * 32 + 32 * 4


@pytest.mark.parametrize("function", ["build", "as_dict", "recipe"])
def test_models_are_captured(file: str, function: str) -> None:
    step = named.load(f"{file}:{function}", batch=5)
    assert step.batch == 5
    assert step.only(Phase.FORWARD).macs == 5 * MACS
    assert step.macs == 5 * (3 * MACS - 16 * 32)


def test_a_functions_own_batch(file: str) -> None:
    assert named.load(f"{file}:build").batch == 6


def test_a_step_is_taken_as_it_is(file: str) -> None:
    assert named.load(f"{file}:as_step").name == "mine"
    assert named.load(f"{file}:as_step", batch=3).macs == 3 * 64


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("alone", "returned a model without inputs"),
        ("number", "returned int; expected a Step, a Recipe, a Trainer, or"),
        ("needy", "needs size: give it a default"),
        ("failing", "raised OSError: no data (mine.py:37: `raise OSError("),
        ("odd", "returned a dict with keys modell"),
        ("swapped", "expected an nn.Module first, got Tensor"),
        ("constant", "is not a function but int"),
    ],
)
def test_wrong_returns(file: str, function: str, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        named.load(f"{file}:{function}")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_names(file: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean 'build'"):
        named.load(f"{file}:biuld")
    (tmp_path / "broken.py").write_text("def build(:\n")
    with pytest.raises(
        BadInput, match=r"broken\.py cannot be imported: SyntaxError: invalid syntax \(broken\.py:1: `def build\(:`\)"
    ):
        named.load(f"{tmp_path / 'broken.py'}:build")
    with pytest.raises(BadInput, match="no file"):
        named.load("nowhere.py:build")


def test_the_import_path_is_left_as_it_was(file: str) -> None:
    import sys

    before = list(sys.path)
    named.load(f"{file}:as_step")
    assert sys.path == before


def test_a_training_step_that_fails_is_named_by_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    assert cli.main(["record", f"{tmp_path}/train.py:train", "-o", str(tmp_path / "masks.safetensors")]) == 2
    assert "raised RuntimeError" in (said := capsys.readouterr().err)
    assert "(train.py:8: `return self.inner(x).reshape(7)`)" in said
    assert cli.main(["record", f"{tmp_path}/train.py:no_step", "-o", str(tmp_path / "masks.safetensors")]) == 2
    assert "must return (train_step, model), got (Net, int, int)" in capsys.readouterr().err


def test_a_mistake_in_a_machine_file_is_named_by_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "key.toml").write_text('base = "npu"\ndrm = "5 GB/s"\n')
    (tmp_path / "value.toml").write_text('base = "npu"\n[array]\ntype = "systolic"\nrows = "many"\n')
    for file, says in (("key.toml", "key.toml, line 2: did you mean 'dram'?"), ("value.toml", "value.toml, line 4: array.rows:")):
        assert cli.main(["run", "linear", "--on", str(tmp_path / file)]) == 2
        assert says in capsys.readouterr().err
