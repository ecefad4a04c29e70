"""The command line around masks: generated zeros, a chosen training step, one random batch of each epoch, compressed files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.masks.recorded import Masks
from trainyard.workloads.epochs import random_batches

Run = Callable[..., tuple[int, str, str]]

MINE = """
import torch
from torch import nn

def parts():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))

def build():
    return parts(), torch.randn(4, 8), torch.randint(3, (4,)), nn.functional.cross_entropy

def train():
    model = parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def step(number):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(number)
        x, y = torch.randn(4, 8, generator=generator), torch.randint(3, (4,), generator=generator)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step, model
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    return str(tmp_path / "mine.py")


def test_one_random_batch_of_each_epoch(trainyard: Run, mine: str, tmp_path: Path) -> None:
    target = tmp_path / "run.safetensors.xz"
    code, out, err = trainyard(
        "record", f"{mine}:train", "-o", str(target), "--epochs", "3", "--steps-per-epoch", "5", "--seed", "4"
    )
    assert code == 0, err
    numbers = random_batches(3, 5, seed=4)
    assert f"at each of steps {', '.join(map(str, numbers))}" in out
    assert Masks.open(target).steps == tuple(numbers)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--epochs", "3"), "--epochs and --steps-per-epoch go together"),
        (("--steps-per-epoch", "3"), "--epochs and --steps-per-epoch go together"),
        (("--steps", "0,1", "--epochs", "3", "--steps-per-epoch", "5"), "give one or the other"),
        (("--steps", "0", "--steps-per-epoch", "5"), "give one or the other"),
    ],
)
def test_epochs_given_wrongly(trainyard: Run, mine: str, words: tuple[str, ...], said: str) -> None:
    code, _, err = trainyard("record", f"{mine}:train", *words)
    assert code == 2
    assert said in err


def test_a_training_step_is_chosen(trainyard: Run, mine: str, tmp_path: Path) -> None:
    target = tmp_path / "run.safetensors"
    assert trainyard("record", f"{mine}:train", "-o", str(target), "--steps", "0,7")[0] == 0
    masks = Masks.open(target)
    assert masks.at(0).density(("2", 0, "A")) != masks.at(7).density(("2", 0, "A"))
    words = ("run", f"{mine}:build", "--on", "npu", "--masks", str(target), "--no-range", "--json", "-")
    assert trainyard(*words, "--at", "7")[0] == 0
    code, _, err = trainyard(*words, "--at", "3")
    assert code == 2
    assert "no masks of training step 3 (recorded: 0, 7)" in err


def test_zeros_are_made_up_for_the_step(trainyard: Run, mine: str) -> None:
    words = ("run", f"{mine}:build", "--on", "tensordash", "--no-range", "--json", "-")
    code, out, err = trainyard(*words, "--masks", "sparsity(A=0.9,G=0.9,seed=1)")
    assert code == 0, err
    sparse = json.loads(out)
    code, out, err = trainyard(*words)
    assert code == 0, err
    assert sparse["cycles"] <= json.loads(out)["cycles"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--at", "3"), "--masks run.safetensors"),
        (("--at", "3", "--masks", "sparsity(A=0.5)"), "--masks run.safetensors"),
        (("--masks", "sparsity(A=1.5)"), "1.5"),
        (("--masks", "sparsety(A=0.5)"), "sparsity("),
        (("--masks", "none.safetensors"), "none.safetensors"),
    ],
)
def test_masks_given_wrongly(trainyard: Run, mine: str, words: tuple[str, ...], said: str) -> None:
    code, _, err = trainyard("run", f"{mine}:build", "--on", "npu", *words)
    assert code == 2
    assert said in err


def test_a_papers_mechanism_is_reported_and_drawn(trainyard: Run, tmp_path: Path) -> None:
    code, out, _ = trainyard("explain", "tensordash", "--html", str(tmp_path / "walk.html"))
    assert code == 0
    assert "4 cycles dense, 2 scheduled, 2.00x" in out
    assert "plotly" in (tmp_path / "walk.html").read_text()
    assert "4 lanes, 4 deep" in trainyard("explain", "tensordash", "7")[1]
    assert "a seed such as 7" in trainyard("explain", "tensordash", "first")[2]
    assert "no walk-through yet" in trainyard("explain", "mcdla")[2]
    assert (
        "--html draws a paper's walk-through"
        in trainyard("explain", "linear", "--on", "npu", "--html", str(tmp_path / "x.html"))[2]
    )


def test_inference_is_the_forward_pass_alone(trainyard: Run) -> None:
    words = ("run", "linear", "--on", "tensordash", "--no-range", "--json", "-")
    whole, forward = (json.loads(trainyard(*words, *more)[1]) for more in ((), ("--inference",)))
    assert set(forward["by_phase"]) - {"idle"} == {"forward"} < set(whole["by_phase"])
    assert forward["time_s"] < whole["time_s"]
