"""Chooses, of what `train_samples.py train` wrote, what is shipped: the last epoch whole, all epochs of some layers, densities.

The last epoch's masks are checked against the shipped Step. What is left out is said in the file's metadata; the densities of
everything are in `densities.json`. Each paper has a folder of its own. Where a folder has the `gpu.json` of
`scripts/measure_products.py`, it goes along with SIGMA's.
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
from trainyard.masks.recorded import Masks, MaskWriter
from trainyard.papers.tensordash.models import laid, shapes_of
from trainyard.workloads import zoo
from trainyard.workloads.capture import capture_recipe

SAMPLES = Path(__file__).parents[1] / "src" / "trainyard" / "papers" / "samples"
LIMIT_BYTES = {"tensordash": 6_000_000, "sigma": 2_500_000}
DIGITS = 5  # of a measured time

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
    "resnet50-pruned":          ("layer1.1", "layer2.1", "layer3.1", "layer4.1.conv1"),
    "transformer-324m-pruned":  ("layers.11.self_attention.q", "layers.11.ffn.0"),
    "gnmt-pruned":              ("encoder.rnn_layers.2", "decoder.attention"),
}
# Layers that are kept at all, where not all are.
LAYERS: dict[str, tuple[str, ...]] = {
    "resnet50-reparameterised": ("layer1.1", "layer2.1", "layer3.1", "layer3.4", "layer4.1", "fc"),
    "resnet50-pruned":          ("layer1.1", "layer2.1", "layer3.1", "layer4.1", "fc"),
    "transformer-324m-pruned":  ("layers.0", "layers.11", "layers.22", "softmax"),
}
# fmt: on


def paper_of(training: Training) -> str:
    """SIGMA's runs are those that gradual pruning prunes."""
    return "sigma" if training.sparsity == "gradual pruning" else "tensordash"


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
    (SAMPLES / "tensordash" / "mask-rcnn.step.json.gz").write_bytes(packed)
    return step


def text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def write(
    masks: Masks, steps: Iterable[int], selected: Callable[[TensorKey], bool], target: Path, facts: dict[str, str], fits: Step
) -> None:
    """Masks of some steps and layers, each in the shape that the Step's operand has."""
    shapes = shapes_of(fits)
    writer = MaskWriter(target, facts)
    for step in steps:
        at = masks.at(step)
        for key, spec in at.specs.items():
            if selected(key) and spec.elements:
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
    specs = masks.at(last).specs
    left_out = sorted({"/".join(map(str, key)) for key in specs if not kept(training, key) or not specs[key].elements})
    left_out += [layer for layer in unrecorded(training, masks, result) if layer not in left_out]
    facts["dense"] = "a W without a mask has no zeros, except those named in left_out"
    facts["left_out"] = text(left_out)
    target = SAMPLES / paper_of(training) / f"{training.name}.safetensors.xz"
    step = step_of(training)
    write(masks, [last], lambda key: kept(training, key), target, facts, step)
    Masks.open(target).check(step)
    print(f"{target.name:45} {target.stat().st_size / 1e3:8.1f} kB  fits its step")
    if chosen := OVER_TIME.get(training.name):
        target = SAMPLES / paper_of(training) / f"{training.name}-epochs.safetensors.xz"
        facts["layers"] = text(chosen)
        write(masks, steps, lambda key: key[0] in chosen and not key[2].startswith("W"), target, facts, step)
        layers = {key[0] for specs in Masks.open(target).recorded.values() for key in specs}
        assert layers == set(chosen), set(chosen) - layers
        print(f"{target.name:45} {target.stat().st_size / 1e3:8.1f} kB  {len(steps)} epochs")


def unrecorded(training: Training, masks: Masks, result: dict[str, Any]) -> list[str]:
    """Weights with zeros that training left out of its own file already: those that `Training.weights` does not name."""
    there = {"/".join(map(str, key)) for key in masks.at(masks.steps[-1]).specs}
    pruned = (
        f"{layer}/{letter}"
        for layer, letters in result["densities"].items()
        for letter, values in letters.items()
        if letter.startswith("W") and values[-1] < 1.0
    )
    return sorted(set(pruned) - there) if training.weights else []


def rounded(value: Any) -> Any:
    """Measured times with the digits that mean something."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def pack(folders: list[Path]) -> None:
    results: dict[str, Any] = {}
    folder_of: dict[str, Path] = {}
    for paper in LIMIT_BYTES:
        (SAMPLES / paper).mkdir(parents=True, exist_ok=True)
    for folder in folders:  # a later folder's run stands for an earlier one's
        if (measured := folder / "gpu.json").is_file():
            text_of = json.dumps(rounded(json.loads(measured.read_text())), separators=(",", ":"))
            (SAMPLES / "sigma" / "gpu.json").write_text(text_of + "\n")
        if (results_file := folder / "results.json").is_file():
            for name, result in json.loads(results_file.read_text()).items():
                if "error" not in result:
                    results[name], folder_of[name] = result, folder
    for paper in LIMIT_BYTES:
        chosen = [training for training in TRAININGS if training.name in results and paper_of(training) == paper]
        for training in chosen:
            pack_one(training, folder_of[training.name], results[training.name])
        if chosen:
            ordered = {training.name: results[training.name] for training in chosen}
            (SAMPLES / paper / "densities.json").write_text(json.dumps(ordered, separators=(",", ":")) + "\n")
        total = sum(file.stat().st_size for file in (SAMPLES / paper).iterdir())
        print(f"{paper}: {total / 1e6:.2f} MB in all")
        assert total <= LIMIT_BYTES[paper], "too large to ship: keep fewer layers"
    samples_page.write()
    print(f"wrote {samples_page.PAGE}")
