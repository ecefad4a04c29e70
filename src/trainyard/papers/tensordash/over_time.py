"""Fig. 9: speedup as training goes on, one random batch of each epoch.

The densities of A, G and W of every layer were recorded at each epoch: a whole model runs with zeros at random of these shares.
Of a few layers all masks were kept: they show the effect of where zeros really are. An epoch is a few hundred steps here;
epochs after a training broke down, so that no gradient reaches some layer, are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from statistics import fmean

from trainyard.masks.generated import GeneratedMasks, generated_masks
from trainyard.papers.ledger import Experiments, Measured
from trainyard.papers.tensordash.models import (
    LEFT_OUT,
    MODELS,
    Subject,
    about,
    epoch_of,
    facts,
    fitted,
    model,
    opened,
    recorded,
    samples,
    step_of,
    whole_of,
)
from trainyard.papers.tensordash.performance import STAND_IN, sentence
from trainyard.papers.tensordash.products import alone, cycles
from trainyard.papers.tensordash.sweeps import PAPER

PRUNED = "RsNt50_S"


def names() -> list[str]:
    """Models of which every epoch was kept."""
    return [one.name for one in MODELS if samples().joinpath(f"{one.sample}-epochs.safetensors.xz").is_file()]


@cache
def kept_layers(name: str) -> tuple[Subject, ...]:
    """The layers whose masks were kept, at every epoch."""
    sample = model(name).sample
    masks = opened(f"{sample}-epochs")
    step = step_of(name, masks)
    only = frozenset(json.loads(masks.metadata["layers"]))
    return tuple(
        Subject(
            name, step, fitted(step, masks.at(at), sample), about(sample), LEFT_OUT.get(name, frozenset()), only, whole_of(name)
        )
        for at in masks.steps
    )


@cache
def whole_model(name: str) -> tuple[Subject, ...]:
    """All layers at every epoch, zeros at random of the shares that were recorded."""
    sample, subject = model(name).sample, recorded(name)
    none = generated_masks(subject.step, {})
    subjects = []
    for at in opened(f"{sample}-epochs").steps:
        masks = _of_epoch(none, facts()[sample]["densities"], epoch_of(sample, at))
        subjects.append(Subject(name, subject.step, masks, about(sample), subject.left_out, whole=subject.whole))
    return tuple(subjects)


def _of_epoch(none: GeneratedMasks, densities: Mapping[str, Mapping[str, list[float]]], epoch: int) -> GeneratedMasks:
    shares: dict[str, dict[str, list[float]]] = {}
    for place, letters in densities.items():
        for letter, values in letters.items():
            if letter in ("A", "G", "W"):
                shares.setdefault(place.rpartition("/")[0], {}).setdefault(letter, []).append(1.0 - values[epoch])
    layers = {layer: {letter: fmean(values) for letter, values in letters.items()} for layer, letters in shares.items()}
    of_step = {key[0] for key in none.shapes}
    return replace(none, layers={layer: letters for layer, letters in layers.items() if layer in of_step})


@cache
def curve(name: str, *, whole: bool = True) -> Mapping[float, float]:
    """Per cent of training done -> speedup."""
    run = facts()[model(name).sample]
    total = run["epochs"] * run["steps_per_epoch"]
    subjects = whole_model(name) if whole else kept_layers(name)
    each = (cycles(alone(subject, PAPER.baseline)) / cycles(alone(subject, PAPER)) for subject in subjects)
    return {100 * at / total: value for at, value in zip(opened(f"{model(name).sample}-epochs").steps, each, strict=True)}


def pruned_stable() -> Measured:
    """The second half of training."""
    (whole, kept) = (list(curve(PRUNED, whole=whole).values()) for whole in (True, False))
    later = [values[len(values) // 2 :] for values in (whole, kept)]
    layers = ", ".join(sorted(kept_layers(PRUNED)[0].only or ()))
    return Measured(
        fmean(later[0]),
        note=f"{STAND_IN}, mean of the second half of {len(whole)} epochs, zeros at random of the recorded shares.",
        verdict="substitute",
        details=f"{sentence(about(model(PRUNED).sample))} By epoch {', '.join(f'{value:.2f}' for value in whole)}. Real masks of "
        f"{layers}: {fmean(later[1]):.2f}. W's zeros count in W*G.",
    )


EXPERIMENTS: Experiments = {"tensordash.resnet50_pruned.stable": pruned_stable}
