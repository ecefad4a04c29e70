"""The models of Table I as Steps, with the zeros of a real training step of each, recorded on stand-in data and shipped here.

| in the paper | here                                                                                                     |
|--------------|----------------------------------------------------------------------------------------------------------|
| BERT         | `bert-base`                                                                                              |
| SNLI         | `snli`                                                                                                   |
| Dtctron2     | `mask-rcnn` of small pictures: Detectron2 is the code base, a ResNet-50 with FPN, RPN and two heads its model |
| SQZNet       | `squeezenet`                                                                                             |
| VGG16        | `vgg16`                                                                                                  |
| RsNt50_S     | `resnet50` under sparse momentum to 90 %                                                                 |
| img2txt      | `show-and-tell`                                                                                          |
| NCF          | `ncf`                                                                                                    |
| GCN          | `gcn`, not among the means (Sec. IV-D)                                                                   |

The three operations count for layers whose gradients can be recorded: fully connected and convolutional ones. Gates of an LSTM are
left out. In SNLI they are 94 % of all MACs, and the values that the paper prints can only be reached without them (`printed`).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from trainyard.errors import MaskError, UnknownName
from trainyard.ir import Op, Phase, Step, TensorKey
from trainyard.ir.step import letter_of, operand_shape
from trainyard.masks.recorded import Masks, MaskSpec
from trainyard.workloads import zoo

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trainyard.ir import MaskSource

Operation = Literal["A*W", "W*G", "A*G"]
OPERATIONS: Mapping[Phase, Operation] = {Phase.FORWARD: "A*W", Phase.GRAD_INPUT: "W*G", Phase.GRAD_WEIGHT: "A*G"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model by the paper's abbreviation, as a zoo model, and the name of its recorded sample."""

    name: str
    zoo: str
    sample: str


# fmt: off
MODELS: tuple[Model, ...] = (
    Model(name="BERT",     zoo="bert-base",     sample="bert-base"),
    Model(name="SNLI",     zoo="snli",          sample="snli"),
    Model(name="Dtctron2", zoo="mask-rcnn",     sample="mask-rcnn"),
    Model(name="SQZNet",   zoo="squeezenet",    sample="squeezenet"),
    Model(name="VGG16",    zoo="vgg16",         sample="vgg16"),
    Model(name="RsNt50_S", zoo="resnet50",      sample="resnet50-sparse-momentum"),
    Model(name="img2txt",  zoo="show-and-tell", sample="show-and-tell"),
    Model(name="NCF",      zoo="ncf",           sample="ncf"),
)
GCN = Model(name="GCN", zoo="gcn", sample="gcn")
LEFT_OUT: Mapping[str, frozenset[tuple[str, Operation]]] = {
    "NCF": frozenset({("mlp.0", "W*G")}),  # Sec. IV-A: not performed for the first layer
}
# fmt: on
RECURRENT = re.compile(r"\.weight_(ih|hh)_l\d+(_reverse)?$")
NAMES = tuple(model.name for model in MODELS)


def model(name: str) -> Model:
    for known in (*MODELS, GCN):
        if known.name == name:
            return known
    raise UnknownName("model", name, [*NAMES, GCN.name], "TensorDash, Table I")


@dataclass(frozen=True, eq=False)
class Subject:
    """A step with its zeros; `products` are the ops that count, `about` says what was trained or generated.

    `left_out` are operations that do not count; `only` says which layers do, where not all. `whole` is the step whose MACs weigh
    the products, where that of the masks is a smaller one.
    """

    name: str
    step: Step
    masks: MaskSource
    about: str
    left_out: frozenset[tuple[str, Operation]] = frozenset()
    only: frozenset[str] | None = None
    whole: Step | None = None

    @cached_property
    def weights(self) -> Mapping[int, float]:
        """How much each product counts: its MACs for each sample in the whole model over those in the recorded one."""
        if self.whole is None:
            return dict.fromkeys(self.products, 1.0)
        macs = {(op.layer, op.call, op.phase): op.macs / self.whole.batch for op in self.whole.ops if op.is_product}
        ops = {number: self.step.ops[number] for number in self.products}
        return {number: macs[op.layer, op.call, op.phase] / (op.macs / self.step.batch) for number, op in ops.items()}

    @cached_property
    def products(self) -> frozenset[int]:
        """Forward products of layers with a mask of their input, backward ones with a mask of their gradient."""
        return frozenset(number for number, op in enumerate(self.step.ops) if self._counts(op))

    @cached_property
    def _recurrent(self) -> frozenset[str]:
        step = self.step
        return frozenset(op.layer for op in step.ops for t in op.inputs if RECURRENT.search(step.tensors[step.base(t)].name or ""))

    def _counts(self, op: Op) -> bool:
        listed: Mapping[TensorKey, MaskSpec] = self.masks.specs  # type: ignore[attr-defined]  # both kinds of masks list theirs
        needed = "A" if op.phase is Phase.FORWARD else "G"
        if not op.is_product or not op.letters or op.recompute or op.phase not in OPERATIONS or op.layer in self._recurrent:
            return False
        if self.only is not None and op.layer not in self.only:
            return False
        return (op.layer, op.call, needed) in listed and (op.layer, operation(op)) not in self.left_out


@dataclass(frozen=True, eq=False)
class Fitted:
    """Recorded masks in the shapes of a step's operands, and random ones of pruned weights of which the density alone was kept.

    A tensor is recorded as its memory lies: rows of regions or words may stand in one list or in several, channels may come last.
    Magnitude pruning leaves no pattern, so that zeros at random stand for those of a weight.
    """

    recorded: Masks
    shapes: Mapping[TensorKey, tuple[int, ...]]
    weights: Mapping[TensorKey, float]

    @cached_property
    def digest(self) -> str:
        content = f"{self.recorded.digest}/{sorted(self.weights.items())}/{sorted(self.shapes.items())}"
        return hashlib.sha256(content.encode()).hexdigest()

    @cached_property
    def specs(self) -> Mapping[TensorKey, MaskSpec]:
        drawn = {
            key: MaskSpec(self.shapes[key], 0, round(share * math.prod(self.shapes[key]))) for key, share in self.weights.items()
        }
        kept = {key: replace(spec, shape=self.shapes.get(key, spec.shape)) for key, spec in self.recorded.specs.items()}
        return {**kept, **drawn}

    def spec(self, key: TensorKey) -> MaskSpec:
        return self.specs[key] if key in self.specs else self.recorded.spec(key)

    def density(self, key: TensorKey) -> float:
        return self.weights[key] if key in self.weights else self.recorded.density(key)

    def bits(self, key: TensorKey) -> npt.NDArray[np.bool_]:
        if key not in self.weights:
            bits = self.recorded.bits(key)
            return laid(bits, self.shapes[key], key) if key in self.shapes else bits
        import numpy as np

        seed = int.from_bytes(hashlib.sha256("/".join(map(str, key)).encode()).digest()[:8], "big")
        return np.random.default_rng(seed).random(self.shapes[key], dtype=np.float32) < self.weights[key]


def laid(bits: npt.NDArray[np.bool_], shape: tuple[int, ...], key: TensorKey) -> npt.NDArray[np.bool_]:
    """Bits in another shape of as many elements: rows regrouped, or channels brought to their place behind the samples."""
    if bits.shape[-len(shape) + 1 :] == shape[1:]:
        return bits.reshape(shape)
    if len(shape) > 2 and bits.shape[-1] == shape[1]:
        import numpy as np

        return np.moveaxis(bits.reshape(shape[0], *shape[2:], shape[1]), -1, 1)
    raise MaskError(f"layer {key[0]!r}: the mask {key[2]} of shape {bits.shape} is no {shape} of the step")


def samples() -> Traversable:
    return resources.files("trainyard.papers").joinpath("samples", "tensordash")


@cache
def facts() -> Mapping[str, Any]:
    """The record of each training run: data, epochs, losses, and the densities of every layer at every epoch."""
    runs: Mapping[str, Any] = json.loads(samples().joinpath("densities.json").read_text(encoding="utf-8"))
    return runs


@cache
def opened(file: str) -> Masks:
    with resources.as_file(samples().joinpath(f"{file}.safetensors.xz")) as path:
        return Masks.open(Path(path))


@cache
def own_step(name: str) -> Step | None:
    """The Step that a sample brought along because its shapes are smaller than the zoo's."""
    file = samples().joinpath(f"{model(name).sample}.step.json.gz")
    return Step.from_json(gzip.decompress(file.read_bytes())) if file.is_file() else None


def step_of(name: str, masks: Masks) -> Step:
    """At the batch of the samples that were kept, all of the batch where it does not say."""
    counts = {len(spec.samples) for spec in masks.specs.values() if spec.samples is not None}
    if len(counts) > 1:
        raise MaskError(f"{masks.path}: masks of {sorted(counts)} samples do not belong together")
    step, count = own_step(name), counts.pop() if counts else 0
    if step is not None:
        return step.rebatch(count or step.batch)
    return zoo.load(model(name).zoo, batch=count or int(masks.metadata["batch"]))


@cache
def recorded(name: str) -> Subject:
    """A model at the last epoch of its training."""
    masks = opened(model(name).sample)
    masks = masks.at(masks.steps[-1])
    step = step_of(name, masks)
    masks.check(step)
    zeros = fitted(step, masks, model(name).sample)
    return Subject(name, step, zeros, about(model(name).sample), LEFT_OUT.get(name, frozenset()), whole=whole_of(name))


def whole_of(name: str) -> Step | None:
    """The zoo's Step, where the sample is of smaller pictures."""
    return None if own_step(name) is None else zoo.load(model(name).zoo, batch=1)


def fitted(step: Step, masks: Masks, sample: str) -> Fitted:
    """Masks in the shapes of a step of as many samples; weights that were left out of the file from their density at that time."""
    wanted = shapes_of(step)
    densities, epoch = facts()[sample]["densities"], epoch_of(sample, masks.step)
    pruned = {
        key: densities[f"{key[0]}/{key[1]}"]["W"][epoch]
        for key in wanted
        if key[2] == "W" and key not in masks.specs and "W" in densities.get(f"{key[0]}/{key[1]}", ())
    }
    weights = {key: share for key, share in pruned.items() if share < 1.0}
    return Fitted(masks, {key: shape for key, shape in wanted.items() if key in masks.specs or key in weights}, weights)


def epoch_of(sample: str, training_step: int) -> int:
    """The number of the epoch in which a step was recorded."""
    return list(facts()[sample]["recorded_steps"]).index(training_step)


def shapes_of(step: Step) -> dict[TensorKey, tuple[int, ...]]:
    """Of each operand of a layer that multiplies once a call."""
    shapes: dict[TensorKey, tuple[int, ...]] = {}
    for op in step.ops:
        for side in (0, 1) if op.is_product else ():
            if letter := letter_of(step, op, side):
                shapes[op.layer, op.call, letter] = operand_shape(step, op, side)
    return shapes


def zeros(subject: Subject, letter: str, *patterns: str) -> dict[str, float]:
    """Per cent of zeros of each layer's operand, the mean over its calls."""
    masks = subject.masks
    assert isinstance(masks, Fitted)
    percent: dict[str, list[float]] = {}
    for layer, call, name in masks.specs:
        if name == letter and any(fnmatchcase(layer, pattern) for pattern in patterns or ("*",)):
            percent.setdefault(layer, []).append(100 * (1 - masks.density((layer, call, name))))
    return {layer: fmean(values) for layer, values in percent.items()}


def about(sample: str) -> str:
    """The training run that stands in for the paper's, in a few words."""
    run = facts()[sample]
    pruned = f", {run['sparsity']}" if run.get("sparsity") else ""
    return f"{run['model']} trained {run['epochs']} epochs of {run['steps_per_epoch']} steps on {run['data']}{pruned}"


def operation(op: Op) -> Operation:
    return OPERATIONS[op.phase]
