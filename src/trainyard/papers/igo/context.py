"""The paper's parameters beside those of our machines and models: context, not judged."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import fmean

from trainyard.arrays import Systolic
from trainyard.devices import Accelerator
from trainyard.machines.presets.igo import NPU, NPU_SMALL
from trainyard.machines.presets.sigma import TPU
from trainyard.papers.igo.networks import ABBREVIATIONS, BATCH, Npu, layers_of
from trainyard.papers.ledger import Experiments, Measured
from trainyard.workloads import zoo
from trainyard.workloads.zoo.catalogue import ENTRIES

NPUS: Mapping[Npu, Accelerator] = {"small": NPU_SMALL, "large": NPU}
TPUS = {"TPUv2": (700e9, 2), "TPUv4": (1200e9, 8)}  # Sec. 6.4: bytes a second, arrays of 128 x 128


def _parameters(model: str, *others: str) -> Measured:
    """Counted in the step; `others` are models of the zoo that the printed figure could be of."""
    near = " ".join(f"{other} has {zoo.load(other).parameters:,} parameters." for other in others)
    about = f"{ENTRIES[model].note[0].upper()}{ENTRIES[model].note[1:]}. " if ENTRIES[model].note else ""
    return Measured(zoo.load(model).parameters, note=f"Parameters of the step of {model}.", details=f"{about}{near}".strip())


def _npu(size: Npu) -> Measured:
    npu = NPUS[size]
    assert isinstance(npu.array, Systolic)
    return Measured(
        (
            npu.array.rows,
            npu.array.columns,
            npu.dram_bytes_per_s / 1e9,
            npu.clock_hz / 1e9,
            npu.scratchpad_bytes / 2**20,
            BATCH[size],
        ),
        note=f"Machine {'npu' if size == 'large' else 'npu-small'}, MB counted as MiB.",
        details=f"The dataflow is not printed; ours is {npu.array.dataflow}.",
    )


def _array_bandwidth() -> Measured:
    ours = " and ".join(f"{machine.dram_bytes_per_s / 1e9:g}" for machine in (TPU, NPU))
    return Measured(
        tuple(bandwidth / arrays / 1e9 for bandwidth, arrays in TPUS.values()),
        note=f"700 GB/s over 2 arrays and 1200 over 8, as in the text; the machines tpu and npu have {ours}.",
    )


def training_work(abbreviation: str, npu: Npu = "large") -> float:
    """MACs of forward, dX and dW over those of forward, of the layers with weights.

    >>> training_work("bert")
    3.0
    """
    layers = layers_of(abbreviation, npu)
    return sum(layer.op.macs * (1 + layer.has_dx + layer.has_dw) for layer in layers) / sum(layer.op.macs for layer in layers)


def _training_work() -> Measured:
    ratios = {name: training_work(name) for name in ABBREVIATIONS}
    listed = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    return Measured(
        fmean(ratios.values()),
        note="Three is the most, not the least: the first layer has no dX, and the frozen blocks of rcnn have no gradient.",
        details=f"{listed}.",
    )


# fmt: off
EXPERIMENTS: Experiments = {
    "igo.training_work":         _training_work,
    "igo.npu.small":             partial(_npu, "small"),
    "igo.npu.large":             partial(_npu, "large"),
    "igo.mxu_bandwidth":         _array_bandwidth,
    "igo.params.rcnn":           partial(_parameters, "faster-rcnn-mobilenet", "faster-rcnn"),
    "igo.params.goo":            partial(_parameters, "googlenet", "googlenet-aux", "alexnet"),
    "igo.params.ncf":            partial(_parameters, "ncf-3b"),
    "igo.params.res":            partial(_parameters, "resnet50"),
    "igo.params.dlrm":           partial(_parameters, "dlrm"),
    "igo.params.mob":            partial(_parameters, "mobilenet", "googlenet-aux"),
    "igo.params.yolo_v5":        partial(_parameters, "yolov5l"),
    "igo.params.yolo_v2_tiny":   partial(_parameters, "yolov2-tiny"),
    "igo.params.bert_large":     partial(_parameters, "bert-large"),
    "igo.params.bert_tiny":      partial(_parameters, "tinybert-4", "bert-tiny"),
    "igo.params.t5_large":       partial(_parameters, "t5-large"),
    "igo.params.t5_small":       partial(_parameters, "t5-small"),
}
# fmt: on
