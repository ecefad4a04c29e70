"""The paper's parameters beside what stands here: sizes of the chip as the presets have them, and shares of zeros as recorded."""

from __future__ import annotations

from functools import partial
from statistics import fmean

from trainyard.arrays.tensordash.components import CORE, MUX, SCHEDULER, STAGING, TRANSPOSER
from trainyard.machines.presets.tensordash import TENSORDASH
from trainyard.papers.ledger import Experiments, Measured
from trainyard.papers.tensordash import overheads
from trainyard.papers.tensordash.models import GCN, MODELS, Fitted, facts, recorded, zeros
from trainyard.papers.tensordash.sweeps import PAPER

FRONT = ("backbone.fpn.layer_blocks.*", "rpn.head.conv")
PARTS = (CORE, TRANSPOSER, SCHEDULER, MUX, STAGING)


def mean_zeros(name: str, letter: str) -> Measured:
    found = zeros(recorded(name), letter)
    return Measured(fmean(found.values()), note=f"mean over {len(found)} layers; {recorded(name).about}")


def front_gradients() -> Measured:
    found = zeros(recorded("Dtctron2"), "G", *FRONT)
    return Measured((min(found.values()), max(found.values())), note=f"least and most of {', '.join(found)}")


def sentence_activations() -> Measured:
    found = zeros(recorded("SNLI"), "A")
    others = [value for layer, value in found.items() if layer.startswith("out.") and layer != "out.0"]
    return Measured(
        (found["premise.projection"], found["hypothesis.projection"], found["out.0"], fmean(others)), note=recorded("SNLI").about
    )


def pruned_weights() -> Measured:
    """Of all elements of pruned layers."""
    masks = recorded("RsNt50_S").masks
    assert isinstance(masks, Fitted)
    specs = [spec for (_, _, letter), spec in masks.specs.items() if letter == "W"]
    return Measured(
        100 * (1 - sum(spec.nonzero for spec in specs) / sum(spec.elements for spec in specs)), note="sparse momentum, last epoch"
    )


def totals() -> Measured:
    sums = [
        sum(value for part, value in overheads.areas(which).items() if part in overheads.COMPUTE)
        for which in (PAPER, PAPER.baseline)
    ]
    return Measured(tuple(sums), note="sums of the rows")


def scratchpads() -> Measured:
    return Measured(tuple(overheads.areas(which)["local"] for which in (PAPER.baseline, PAPER)))


def batches() -> Measured:
    found = [facts()[model.sample]["batch"] for model in MODELS]
    return Measured((min(found), max(found)), note="trained with; masks of fewer samples are kept")


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
