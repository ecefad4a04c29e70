"""Table 4: the nine networks as each NPU runs them, and their layers with weights.

YOLO, BERT and T5 come in two sizes, the smaller one for the small NPU (Sec. 6.1). Two of the paper's names may mean more than one
network: only the Faster R-CNN on a MobileNetV3 has 19 M parameters, only the BERT that is known as TinyBERT-4 has 14 M. GoogLeNet
and MobileNet are as published: no network of those names has the 62 M and 13 M that are printed.

A layer is a product of activations and weights in the forward pass, as the matrix product Y(M,N) = X(M,K) W(K,N) that it is lowered
to; products of attention have no weights and do not count as layers. Layers are numbered from 1 in the order of the forward pass,
as on the axis of Fig. 13: `goo_3` is the third. A layer that does not train has neither gradient (the first blocks of `rcnn`), the
first that trains has no dX (in `ncf`, `bert` and `T5`, which begin with an embedding that trains, every layer has one). Depthwise
convolutions are many small products.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from trainyard.errors import BadInput, UnknownName
from trainyard.ir import Assumption, MatMul, Op, Phase, ProductBody, Step
from trainyard.mapping.lowering import lower
from trainyard.workloads import zoo

Npu = Literal["small", "large"]

# fmt: off
NETWORKS: Mapping[str, Mapping[Npu, str]] = {  # Table 4: abbreviations and sizes
    "rcnn": {"small": "faster-rcnn-mobilenet", "large": "faster-rcnn-mobilenet"},
    "goo":  {"small": "googlenet",             "large": "googlenet"},
    "ncf":  {"small": "ncf-3b",                "large": "ncf-3b"},
    "res":  {"small": "resnet50",              "large": "resnet50"},
    "dlrm": {"small": "dlrm",                  "large": "dlrm"},
    "mob":  {"small": "mobilenet",             "large": "mobilenet"},
    "yolo": {"small": "yolov2-tiny",           "large": "yolov5l"},
    "bert": {"small": "tinybert-4",            "large": "bert-large"},
    "T5":   {"small": "t5-small",              "large": "t5-large"},
}
BATCH: Mapping[Npu, int] = {"small": 4, "large": 8}  # Sec. 6.1, of one core
# fmt: on
ABBREVIATIONS = tuple(NETWORKS)
RECOMMENDERS = ("ncf", "dlrm")
LETTERS = {Phase.FORWARD: {"A", "W"}, Phase.GRAD_INPUT: {"G", "W"}, Phase.GRAD_WEIGHT: {"A", "G"}}
"""Operands of the three products of a layer: activations, weights, gradients of the output."""

RECOMMENDER_BATCH = Assumption(
    name="recommender_batch",
    value=256,
    meaning="samples that a recommender takes for one of the batch: 2048 for the 8 of the large NPU, as SIGMA's NCF and MLPerf's "
    "DLRM train. With 8 samples dY is 2 % of what dlrm must read, where Fig. 5 has 68 %",
    alternatives=(1, 64, 1024),
    settles="igo.dy_share.reads.dlrm",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer with weights; it stands for `repeats` equal layers, itself included."""

    network: str
    number: int
    path: str
    call: int
    op: MatMul
    source: Op
    has_dx: bool
    has_dw: bool
    repeats: int = 1

    @property
    def name(self) -> str:
        """As on the axis of Fig. 13."""
        return f"{self.network}_{self.number}"

    @property
    def paired(self) -> bool:
        """Both gradients are computed: dY can be read once for the two."""
        return self.has_dx and self.has_dw

    @property
    def body(self) -> ProductBody:
        """The forward product before lowering."""
        assert isinstance(self.source.body, ProductBody)
        return self.source.body


def model(abbreviation: str, npu: Npu = "large") -> str:
    """The zoo's name.

    >>> model("bert", "small")
    'tinybert-4'
    """
    if abbreviation not in NETWORKS:
        raise UnknownName("network", abbreviation, NETWORKS, "IGO, Table 4")
    if npu not in BATCH:
        raise UnknownName("NPU", npu, BATCH, "IGO, Table 3")
    return NETWORKS[abbreviation][npu]


@cache
def _loaded(name: str, batch: int) -> Step:
    return zoo.load(name, batch=batch)


def samples(
    abbreviation: str, npu: Npu = "large", batch: int | None = None, recommender_batch: int = RECOMMENDER_BATCH.value
) -> int:
    """Samples of a step at a batch of the paper's; a recommender's grow with it.

    >>> samples("res"), samples("dlrm"), samples("dlrm", batch=32)
    (8, 2048, 8192)
    """
    wanted = BATCH[npu] if batch is None else batch
    return wanted * recommender_batch if abbreviation in RECOMMENDERS else wanted


def step(abbreviation: str, npu: Npu = "large", batch: int | None = None, recommender_batch: int = RECOMMENDER_BATCH.value) -> Step:
    """The training step at the NPU's batch, or at another one (Fig. 16; several cores). The same object each time."""
    return _loaded(model(abbreviation, npu), samples(abbreviation, npu, batch, recommender_batch))


def layers(step: Step, network: str = "") -> tuple[Layer, ...]:
    """Every layer with weights in the order of the forward pass.

    >>> [f"{layer.name} {layer.path}" for layer in layers(zoo.load("googlenet"), "goo")][2]
    'goo_3 conv3.conv'
    """
    products = [op for op in step.ops if op.is_product and not op.recompute and set(op.letters[:2]) == LETTERS.get(op.phase)]
    counts = Counter((op.layer, op.call, op.phase) for op in products)
    for (path, call, _), count in counts.items():
        if count > 1:
            raise BadInput(
                f"step {step.name!r}: layer {path!r} multiplies {count} times in call {call}: its gradients cannot be distinguished"
            )
    forward = [op for op in products if op.phase is Phase.FORWARD]
    return tuple(
        Layer(
            network=network or step.name,
            number=number,
            path=op.layer,
            call=op.call,
            op=lower(op.body).product,
            source=op,
            has_dx=(op.layer, op.call, Phase.GRAD_INPUT) in counts,
            has_dw=(op.layer, op.call, Phase.GRAD_WEIGHT) in counts,
        )
        for number, op in enumerate(forward, start=1)
    )


@cache
def _layers(abbreviation: str, name: str, batch: int) -> tuple[Layer, ...]:
    return layers(_loaded(name, batch), abbreviation)


def layers_of(
    abbreviation: str, npu: Npu = "large", batch: int | None = None, recommender_batch: int = RECOMMENDER_BATCH.value
) -> tuple[Layer, ...]:
    """The layers of one of the nine, by its abbreviation."""
    return _layers(abbreviation, model(abbreviation, npu), samples(abbreviation, npu, batch, recommender_batch))


def distinct(layers: Iterable[Layer]) -> tuple[Layer, ...]:
    """Equal layers of a network once, the first of them standing for all."""
    first: dict[tuple[str, ProductBody, bool, bool], Layer] = {}
    for layer in layers:
        key = (layer.network, layer.body, layer.has_dx, layer.has_dw)
        before = first.get(key)
        first[key] = layer if before is None else replace(before, repeats=before.repeats + layer.repeats)
    return tuple(first.values())
