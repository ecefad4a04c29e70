"""The shipped masks: whole, small, named as stand-ins, and of the shapes of the Steps that they are run with."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from trainyard.ir import Step
from trainyard.masks.recorded import Masks
from trainyard.workloads import zoo

SAMPLES = Path(str(resources.files("trainyard.papers") / "samples" / "tensordash"))
ABOUT = json.loads((SAMPLES / "densities.json").read_text())
FINAL = sorted(file.name for file in SAMPLES.glob("*.safetensors.xz") if "-epochs" not in file.name)
OVER_TIME = sorted(file.name for file in SAMPLES.glob("*-epochs.safetensors.xz"))


def step_of(name: str, batch: int) -> Step:
    if name == "mask-rcnn":
        return Step.from_json(gzip.decompress((SAMPLES / "mask-rcnn.step.json.gz").read_bytes()))
    return zoo.load(ABOUT[name]["model"], batch=batch)


def test_shipped_samples_are_complete_and_below_6_mb() -> None:
    assert sum(file.stat().st_size for file in SAMPLES.iterdir()) <= 6_000_000
    assert {name.removesuffix(".safetensors.xz") for name in FINAL} == set(ABOUT)
    assert set(ABOUT) >= {
        "vgg16",
        "squeezenet",
        "resnet50-sparse-momentum",
        "bert-base",
        "snli",
        "ncf",
        "show-and-tell",
        "mask-rcnn",
        "gcn",
    }


@pytest.mark.parametrize("file", FINAL)
def test_a_sample_fits_its_step_and_says_what_it_is(file: str) -> None:
    name, masks = file.removesuffix(".safetensors.xz"), Masks.open(SAMPLES / file)
    sample_counts = {len(spec.samples or ()) for key, spec in masks.specs.items() if not key[2].startswith("W")}
    assert len(sample_counts) == 1
    masks.check(step_of(name, sample_counts.pop()))
    said = masks.metadata
    assert said["data"].startswith("stand-in: ")
    assert said["model"] == ABOUT[name]["model"]
    for key in ("epochs", "batch", "optimizer", "sparsity", "start", "end", "seed", "device", "taken", "left_out"):
        assert key in said
    letters = {key[2][0] for key in masks.specs}
    assert letters == ({"A", "G", "W"} if said["sparsity"] != "null" else {"A", "G"})


@pytest.mark.parametrize("file", OVER_TIME)
def test_a_run_over_time_has_the_same_layers_at_every_epoch(file: str) -> None:
    masks = Masks.open(SAMPLES / file)
    assert len(masks.steps) >= 3
    assert len({frozenset(specs) for specs in masks.recorded.values()}) == 1
    final = Masks.open(SAMPLES / file.replace("-epochs", ""))
    last = masks.at(masks.steps[-1])
    assert final.steps == masks.steps[-1:]
    for key in last.specs:
        assert np.array_equal(last.bits(key), final.bits(key))


def test_densities_are_those_of_the_masks() -> None:
    masks = Masks.open(SAMPLES / "ncf.safetensors.xz")  # the one whose whole batch is kept
    for (layer, call, letter), spec in masks.specs.items():
        assert ABOUT["ncf"]["densities"][f"{layer}/{call}"][letter][-1] == pytest.approx(spec.density, abs=1e-4)


@pytest.mark.parametrize("name", sorted(ABOUT))
def test_every_run_has_learned(name: str) -> None:
    run = ABOUT[name]
    assert run["end"]["loss"] < 0.96 * run["start"]["loss"]
    assert run["curve"][-1] < run["curve"][0]
    assert len(run["curve"]) == run["epochs"] == len(run["recorded_steps"])


@pytest.mark.slow
def test_the_program_that_makes_them_runs(tmp_path: Path) -> None:
    program = Path(__file__).parents[2] / "scripts" / "train_samples.py"
    command = [sys.executable, program, "train", tmp_path, "--smoke", "--only", "ncf,snli", "--device", "cpu"]
    subprocess.run(command, check=True, timeout=250)
    assert set(json.loads((tmp_path / "results.json").read_text())) == {"ncf", "snli"}
    masks = Masks.open(tmp_path / "ncf.safetensors.xz")
    assert len(masks.steps) == 2
    masks.check(zoo.load("ncf", batch=4))
