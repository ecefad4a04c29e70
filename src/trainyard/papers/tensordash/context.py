"""The paper's parameters beside ours: sizes of the chip in the presets, and recorded shares of zeros."""

from __future__ import annotations

from functools import partial
from statistics import fmean

from trainyard.arrays.tensordash.components import CORE, MUX, SCHEDULER, STAGING, TRANSPOSER
from trainyard.machines.presets.tensordash import TENSORDASH
from trainyard.papers.ledger import Experiments, Measured
from trainyard.papers.tensordash import overheads
from trainyard.papers.tensordash.models import GCN, MODELS, Fitted, facts, recorded, zeros
from trainyard.papers.tensordash.performance import sentence
from trainyard.papers.tensordash.sweeps import PAPER

FRONT = ("backbone.fpn.layer_blocks.*", "rpn.head.conv")
PARTS = (CORE, TRANSPOSER, SCHEDULER, MUX, STAGING)


def mean_zeros(name: str, letter: str) -> Measured:
    by_layer = zeros(recorded(name), letter)
    details = sentence(recorded(name).about)
    return Measured(fmean(by_layer.values()), note=f"Mean over {len(by_layer)} layers, trained on stand-in data.", details=details)


def front_gradients() -> Measured:
    by_layer = zeros(recorded("Dtctron2"), "G", *FRONT)
    return Measured((min(by_layer.values()), max(by_layer.values())), note=f"The least and the most of {', '.join(by_layer)}.")


def sentence_activations() -> Measured:
    by_layer = zeros(recorded("SNLI"), "A")
    others = [value for layer, value in by_layer.items() if layer.startswith("out.") and layer != "out.0"]
    named = [by_layer[layer] for layer in ("premise.projection", "hypothesis.projection", "out.0")]
    return Measured((*named, fmean(others)), note=sentence(recorded("SNLI").about))


def pruned_weights() -> Measured:
    """Zeros over all elements of pruned layers."""
    masks = recorded("RsNt50_S").masks
    assert isinstance(masks, Fitted)
    specs = [spec for (_, _, letter), spec in masks.specs.items() if letter == "W"]
    return Measured(
        100 * (1 - sum(spec.nonzero for spec in specs) / sum(spec.elements for spec in specs)),
        note="Sparse momentum, at the last epoch.",
    )


def totals() -> Measured:
    sums = [
        sum(value for part, value in overheads.areas(which).items() if part in overheads.COMPUTE)
        for which in (PAPER, PAPER.baseline)
    ]
    return Measured(tuple(sums), note="Sums of the rows.")


def scratchpads() -> Measured:
    return Measured(tuple(overheads.areas(which)["local"] for which in (PAPER.baseline, PAPER)))


def batches() -> Measured:
    sizes = [facts()[model.sample]["batch"] for model in MODELS]
    return Measured((min(sizes), max(sizes)), note="Batches in training; masks are stored for fewer samples.")


# fmt: off
EXPERIMENTS: Experiments = {
    "tensordash.area.rows":              lambda: Measured(tuple(part.mm2 for part in PARTS)),
    "tensordash.power.rows":             lambda: Measured(tuple(part.milliwatts for part in PARTS)),
    "tensordash.area.totals":            totals,
    "tensordash.area.sram":              lambda: Measured(overheads.areas(PAPER)["memories"] / 3),
    "tensordash.area.scratchpads":       scratchpads,
    "tensordash.scratchpads":            lambda: Measured(PAPER.scratchpads_bytes / 1024),
    "tensordash.dram":                   lambda: Measured((TENSORDASH.dram_capacity_bytes or 0) / 1e9),
    "tensordash.peak":                   lambda: Measured(2 * TENSORDASH.peaks.macs_per_s / 1e12),
    "tensordash.trace_batch":            batches,
    "tensordash.pruning_target":         pruned_weights,
    "tensordash.sparsity.detectron2.G":  front_gradients,
    "tensordash.sparsity.bert.G":        partial(mean_zeros, "BERT", "G"),
    "tensordash.sparsity.snli.G":        partial(mean_zeros, "SNLI", "G"),
    "tensordash.sparsity.snli.A":        sentence_activations,
    "tensordash.sparsity.ncf.G":         partial(mean_zeros, "NCF", "G"),
    "tensordash.sparsity.gcn":           partial(mean_zeros, GCN.name, "A"),
}
# fmt: on
