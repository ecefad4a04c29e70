"""Chooses, of what `train_samples.py train` wrote, what is shipped: the last epoch whole, all epochs of some layers, densities.

The last epoch's masks are checked against the shipped Step. What is left out is said in the file's metadata; the densities of
everything are in `densities.json`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import samples_page
from train_samples import FOREGROUND, PICTURE, REGIONS, TRAININGS, Training, recipe

from trainyard.ir import Step, TensorKey
from trainyard.papers.tensordash.models import laid, shapes_of
from trainyard.workloads import zoo
from trainyard.workloads.capture import capture_recipe
from trainyard.workloads.masks import Masks, MaskWriter

SAMPLES = Path(__file__).parents[1] / "src" / "trainyard" / "papers" / "samples" / "tensordash"
LIMIT_BYTES = 6_000_000

# fmt: off
# Layers whose masks are kept at every epoch: one or two of each depth of the network.
OVER_TIME: dict[str, tuple[str, ...]] = {
    "vgg16":                    ("features.17", "features.24", "features.28", "classifier.3"),
    "squeezenet":               ("features.3.expand3x3", "features.8.expand3x3", "features.12.expand3x3"),
    "resnet50-sparse-momentum": ("layer2.1.conv2", "layer3.1.conv2", "layer3.3.conv1", "layer4.1.conv1", "layer4.1.conv2"),
    "bert-base":                ("bert.encoder.layer.5.attention.output.dense", "bert.encoder.layer.5.intermediate.dense"),
    "show-and-tell":            ("encoder.inception3b.branch2.1.conv", "encoder.inception4c.branch2.1.conv",
                                 "encoder.inception5a.branch2.1.conv"),
    "mask-rcnn":                ("backbone.body.layer3.1.conv2", "backbone.body.layer4.1.conv2", "roi_heads.box_head.fc7"),
    "snli":                     ("out.0", "out.3", "out.6", "premise.projection", "hypothesis.projection"),
    "ncf":                      ("mlp.0", "mlp.1", "mlp.2", "final"),
}
# Of a pruned network: layers whose W is kept; every other W is in `densities.json` alone.
WEIGHTS: dict[str, tuple[str, ...]] = {
    "resnet50-sparse-momentum": ("layer1", "layer2", "layer3.0", "layer3.1", "layer4.0.conv2"),
    "resnet50-reparameterised": ("layer1.1", "layer2.1", "layer3.1", "layer4.1.conv1", "layer4.1.conv3"),
}
# Layers that are kept at all, where not all are.
LAYERS: dict[str, tuple[str, ...]] = {
    "resnet50-reparameterised": ("layer1.1", "layer2.1", "layer3.1", "layer3.4", "layer4.1", "fc"),
}
# fmt: on


def reached(masks: Masks, step: int) -> float:
    """Share of the layers that a gradient reached at a recorded step."""
    gradients = [spec.nonzero > 0 for key, spec in masks.at(step).specs.items() if key[2] == "G"]
    return sum(gradients) / len(gradients)


def alive(masks: Masks) -> tuple[int, ...]:
    """The recorded steps at which gradients reach the layers they reached at first: a dead network is no training."""
    first = reached(masks, masks.steps[0])
    return tuple(step for step in masks.steps if reached(masks, step) > 0.9 * first)


def step_of(training: Training) -> Step:
    """The Step that a final file's masks belong to, at the batch of the samples kept."""
    if training.model != "mask-rcnn":
        return zoo.load(training.model, batch=training.kept)
    step = capture_recipe(recipe(training), f"mask-rcnn-{PICTURE}", 1)
    packed = gzip.compress(step.to_json().encode(), compresslevel=9, mtime=0)
    (SAMPLES / "mask-rcnn.step.json.gz").write_bytes(packed)
    return step


def text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def write(
    masks: Masks, steps: Iterable[int], wanted: Callable[[TensorKey], bool], target: Path, facts: dict[str, str], fits: Step
) -> None:
    """Masks of some steps and layers, each in the shape that the Step's operand has."""
    shapes = shapes_of(fits)
    writer = MaskWriter(target, facts)
    for step in steps:
        at = masks.at(step)
        for key, spec in at.specs.items():
            if wanted(key):
                bits = at.bits(key)
                writer.add(step, key, laid(bits, shapes[key], key) if key in shapes else bits, spec.samples)
    writer.close()


def below(layer: str, chosen: Iterable[str]) -> bool:
    return any(layer == path or layer.startswith(f"{path}.") for path in chosen)


def kept(training: Training, key: TensorKey) -> bool:
    if training.name in LAYERS and not below(key[0], LAYERS[training.name]):
        return False
    return not key[2].startswith("W") or below(key[0], WEIGHTS.get(training.name, ()))


def pack_one(training: Training, folder: Path, result: dict[str, Any]) -> None:
    masks = Masks.open(folder / f"{training.name}.safetensors.xz")
    steps = alive(masks)
    last = steps[-1]
    facts = {key: text(value) for key, value in result.items() if key != "densities"}
    if training.model == "mask-rcnn":
        facts["shapes"] = f"{PICTURE} x {PICTURE} pictures, {REGIONS} regions, {FOREGROUND} of them for masks"
    facts["taken"] = f"training step {last}, epoch {masks.steps.index(last) + 1} of {len(masks.steps)}"
    if steps != masks.steps:
        facts["taken"] += "; recorded steps at which no gradient reached most layers are left out"
    left_out = sorted({"/".join(map(str, key)) for key in masks.at(last).specs if not kept(training, key)})
    facts["dense"] = "a W without a mask has no zeros, except those named in left_out"
    facts["left_out"] = text(left_out)
    target = SAMPLES / f"{training.name}.safetensors.xz"
    step = step_of(training)
    write(masks, [last], lambda key: kept(training, key), target, facts, step)
    Masks.open(target).check(step)
    print(f"{target.name:45} {target.stat().st_size / 1e3:8.1f} kB  fits its step")
    if chosen := OVER_TIME.get(training.name):
        target = SAMPLES / f"{training.name}-epochs.safetensors.xz"
        facts["layers"] = text(chosen)
        write(masks, steps, lambda key: key[0] in chosen and not key[2].startswith("W"), target, facts, step)
        found = {key[0] for specs in Masks.open(target).recorded.values() for key in specs}
        assert found == set(chosen), set(chosen) - found
        print(f"{target.name:45} {target.stat().st_size / 1e3:8.1f} kB  {len(steps)} epochs")


def pack(folders: list[Path]) -> None:
    SAMPLES.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    places: dict[str, Path] = {}
    for folder in folders:  # a later folder's run stands for an earlier one's
        for name, result in json.loads((folder / "results.json").read_text()).items():
            if "error" not in result:
                results[name], places[name] = result, folder
    for training in TRAININGS:
        if training.name in results:
            pack_one(training, places[training.name], results[training.name])
    ordered = {training.name: results[training.name] for training in TRAININGS if training.name in results}
    (SAMPLES / "densities.json").write_text(json.dumps(ordered, separators=(",", ":")) + "\n")
    total = sum(file.stat().st_size for file in SAMPLES.iterdir())
    samples_page.write()
    print(f"{total / 1e6:.2f} MB in all; wrote {samples_page.PAGE}")
    assert total <= LIMIT_BYTES, "too large to ship: keep fewer layers"
