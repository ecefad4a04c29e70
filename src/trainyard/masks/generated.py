"""Masks drawn at random for a Step: a share of each operand's elements is zero, anywhere or in whole channels or rows.

Every operand gets bits of its tensor's shape, drawn from the seed and its key alone, so that the same tensor has the same zeros
in all products that read it, in any order and in any process. A layer that multiplies several operands of one letter in one call
(an unrolled LSTM) has one mask per tensor (`A#43`).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal, NoReturn, get_args

import numpy as np
import numpy.typing as npt

from trainyard.caches import BoundedCache
from trainyard.checks import suggests_keywords
from trainyard.errors import BadInput, MaskError, UnknownName
from trainyard.hardware.formats.structured import drawn
from trainyard.ir import MatMul, Phase, Step, Structured, TensorKey
from trainyard.ir.step import is_transposed, letter_of, matrix_extent, operand_shape, tensor_letter
from trainyard.masks.recorded import MaskSpec
from trainyard.reading import reader, require_within

Cluster = Literal["none", "channel", "row"]
Sparsity = Mapping[str, float]
LETTERS = ("A", "G", "W")
Shapes = dict[TensorKey, tuple[int, ...]]
DRAWN_BYTES = 128 * 2**20
"""Bound on cached packed masks, at one bit an element: unpacking a mask takes far less time than drawing it."""
_drawn = BoundedCache(max_bytes=DRAWN_BYTES)


@dataclass(frozen=True)
class GeneratedMasks:
    """Masks of every operand of a step.

    `sparsity` is the share of zeros by letter; `layers` has other shares for layers that a pattern matches (the first that does).
    `cluster="channel"`: whole channels of a tensor are zero (of W, all that multiplies one input channel). `"row"`: whole token
    rows, positions of an image, filters of a weight. `shapes` lists the masks, `several` the elements of layers that have one mask
    per tensor.
    """

    name: str
    batch: int
    shapes: Mapping[TensorKey, tuple[int, ...]]
    several: Mapping[TensorKey, int]
    sparsity: Sparsity
    cluster: Cluster = "none"
    seed: int = 0
    layers: Mapping[str, Sparsity] = field(default_factory=dict)
    weights: Structured | None = None
    transposable: bool = False
    along: Mapping[TensorKey, int] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        layers = [(pattern, sorted(shares.items())) for pattern, shares in self.layers.items()]  # the first that matches counts
        content: tuple[Any, ...] = (sorted(self.sparsity.items()), self.cluster, self.seed, layers, sorted(self.shapes.items()))
        content += (self.weights, self.transposable, sorted(self.along.items())) if self.weights else ()
        return hashlib.sha256(repr(content).encode()).hexdigest()

    @cached_property
    def specs(self) -> Mapping[TensorKey, MaskSpec]:
        """The specs of every operand, and of all operands of a letter together where a layer has several."""
        shapes = {**{key: (elements,) for key, elements in self.several.items()}, **self.shapes}
        return {key: MaskSpec(shape, 0, round(self.density(key) * math.prod(shape))) for key, shape in shapes.items()}

    def spec(self, key: TensorKey) -> MaskSpec:
        return self.specs[key] if key in self.specs else self._missing(key)

    def density(self, key: TensorKey) -> float:
        """The requested share of non-zero elements; with whole channels or rows, the nearest share that is possible."""
        zeros = self._zeros(key[0], key[2][0])
        if self._structured(key):
            return self.weights.nonzero if self.weights is not None else 1.0
        if key in self.several:
            return 1.0 - zeros
        if key not in self.shapes:
            self._missing(key)
        units = _units(self.shapes[key], key[2], self.cluster)
        return 1.0 - (zeros if units is None else round(zeros * math.prod(units)) / math.prod(units))

    def bits(self, key: TensorKey) -> npt.NDArray[np.bool_]:
        """The mask of a tensor, drawn once for all sources of this digest and cached packed."""
        if key not in self.shapes:
            self._missing(key)
        packed, shape = _drawn.get((self.digest, key), lambda: np.packbits(self._draw(key))), self.shapes[key]
        return np.unpackbits(packed, count=math.prod(shape)).view(np.bool_).reshape(shape)

    def _draw(self, key: TensorKey) -> npt.NDArray[np.bool_]:
        shape = self.shapes[key]
        layer, call, name = key
        zeros = self._zeros(layer, name[0])
        if self.weights is not None and self._structured(key):
            return drawn(shape, self.along[key], self.weights, self._random(layer, 0, name), self._transposable(key))
        if not zeros:
            return np.ones(shape, dtype=np.bool_)
        units, random = _units(shape, name, self.cluster), self._random(layer, 0 if name[0] == "W" else call, name)
        if units is None:
            return random.random(shape, dtype=np.float32) >= zeros
        nonzero = np.ones(math.prod(units), dtype=np.bool_)
        nonzero[random.permutation(nonzero.size)[: round(zeros * nonzero.size)]] = False
        return np.broadcast_to(nonzero.reshape(units), shape).copy()

    def structure(self, key: TensorKey, phase: Phase) -> Structured | None:
        """The n:m structure of a weight along the reduction of a product of this phase."""
        layer, call, letter = key
        stored = next((candidate for earlier in range(call, -1, -1) if (candidate := (layer, earlier, letter)) in self.along), key)
        if not self._structured(stored) or phase is Phase.GRAD_WEIGHT or (phase.backward and not self._transposable(stored)):
            return None
        return self.weights

    def _structured(self, key: TensorKey) -> bool:
        """Whether a weight divides into groups of the structure; other weights stay dense."""
        return self.weights is not None and key in self.along and self.shapes[key][self.along[key]] % self.weights.of == 0

    def _transposable(self, key: TensorKey) -> bool:
        shape = self.shapes[key]
        return self.transposable and self.weights is not None and not (shape[0] % self.weights.of or shape[1] % self.weights.of)

    def check(self, step: Step) -> None:
        """Raises where these masks were generated for another step, with the layer that does not fit."""
        for key, shape in _shapes(step, None)[0].items():
            have = self.shapes.get(key)
            if have is None or have[1:] != shape[1:] or (have != shape and (key[2][0] == "W" or shape[0] % have[0])):
                raise MaskError(
                    f"masks generated for {self.name!r} at batch {self.batch} do not fit step {step.name!r} at batch {step.batch}: "
                    f"layer {key[0]!r}, {key[2]}, has shape {shape}, the mask {have}: generate them for this step"
                )

    def _missing(self, key: TensorKey) -> NoReturn:
        names = ("/".join(map(str, k)) for k in self.shapes)
        raise UnknownName("mask", "/".join(map(str, key)), names, f"masks generated for {self.name!r}")

    def _zeros(self, layer: str, letter: str) -> float:
        for pattern, shares in self.layers.items():
            if letter in shares and fnmatchcase(layer, pattern):
                return shares[letter]
        return self.sparsity.get(letter, 0.0)

    def _random(self, layer: str, call: int, name: str) -> np.random.Generator:
        digest = hashlib.sha256(f"{self.seed}/{layer}/{call}/{name}".encode()).digest()
        return np.random.default_rng(int.from_bytes(digest[:16], "big"))


@suggests_keywords
def generated_masks(
    step: Step,
    sparsity: Sparsity | None = None,
    *,
    cluster: Cluster = "none",
    seed: int = 0,
    layers: Mapping[str, Sparsity] | None = None,
    samples: int | None = None,
    weights: Structured | None = None,
    transposable: bool = False,
) -> GeneratedMasks:
    """Masks with a share of zeros for every operand of a step; `samples` of each batch are drawn and repeated.

    `weights=Structured(2, 4)` keeps two of every four neighbours of W along the reduction of its forward product (input features,
    input channels), and with `transposable` along the other axis too, as dX needs them, where that divides; a weight that does not
    divide at all stays dense.

    >>> from trainyard.ir import MatMul, Op, Step
    >>> step = Step(name="one", batch=4, ops=(Op(body=MatMul(4, 6, 8), layer="fc", letters=("A", "W")),), tensors=())
    >>> masks = generated_masks(step, {"A": 0.5}, cluster="row", layers={"f*": {"W": 0.9}})
    >>> masks.bits(("fc", 0, "A")).sum(), masks.bits(("fc", 0, "W")).shape, round(masks.density(("fc", 0, "W")), 3)
    (np.int64(16), (6, 8), 0.167)
    """
    sparsity = {"A": 0.6, "G": 0.5, "W": 0.0} if sparsity is None else dict(sparsity)
    layers = {pattern: dict(shares) for pattern, shares in (layers or {}).items()}
    for where, shares in (("", sparsity), *layers.items()):
        _check_shares(where, shares)
    if cluster not in get_args(Cluster):
        raise UnknownName("cluster", str(cluster), get_args(Cluster), where="generated masks")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise BadInput(f"generated masks: seed must be a whole number of at least 0, got {seed!r}")
    if samples is not None and (isinstance(samples, bool) or not isinstance(samples, int) or samples < 1 or step.batch % samples):
        raise BadInput(f"generated masks: samples must divide the step's batch {step.batch}, got {samples!r}")
    for pattern in layers:
        if not any(fnmatchcase(op.layer, pattern) for op in step.ops if op.is_product):
            raise UnknownName("layer", pattern, {op.layer for op in step.ops if op.is_product}, where=f"step {step.name!r}")
    if weights is not None and (sparsity.get("W") or any("W" in shares for shares in layers.values())):
        raise BadInput("generated masks: W has a structure, and a share of zeros besides: give one of them")
    shapes, several = _shapes(step, samples)
    along = {} if weights is None else _reductions(step, shapes)
    return GeneratedMasks(
        step.name, step.batch, shapes, several, sparsity, cluster, seed, layers, weights, transposable, along
    )  # fmt: skip


@reader("generated masks", source="text")
def parse(text: str, step: Step, seed: int | None = None) -> GeneratedMasks:
    """From the command line: `sparsity(A=0.6,G=0.5,cluster=channel,seed=1)`, `sparsity(W=2:4,transposable=true)`."""
    require_within("text_length", len(text), "generated masks")
    match = re.fullmatch(r"\s*sparsity\s*\((.*)\)\s*", text, re.DOTALL)
    example = "write for example sparsity(A=0.6,G=0.5,cluster=channel,seed=1)"
    if not match:
        raise BadInput(f"generated masks: cannot read {text!r}: {example}")
    shares: dict[str, float] = {}
    options: dict[str, Any] = {}
    readers: dict[str, Callable[[str], Any]] = {
        **dict.fromkeys(LETTERS, float), "cluster": str, "seed": int, "samples": int, "transposable": _flag,
    }  # fmt: skip
    for item in filter(None, (item.strip() for item in match[1].split(","))):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise BadInput(f"generated masks: {item!r} in {text!r} has no value: {example}")
        if name not in readers:
            raise UnknownName("operand or option", name, readers, where=text)
        if name in shares or name in options:
            raise BadInput(f"generated masks: {name} is given twice in {text!r}")
        if ":" in value:
            options["weights"] = _structure(name, value, text)
            continue
        try:
            (shares if name in LETTERS else options)[name] = readers[name](value)
        except ValueError:
            kind = "a share of zeros" if name in LETTERS else "a whole number"
            raise BadInput(f"generated masks: {name}={value!r} in {text!r} is not {kind}") from None
    if not shares and "weights" not in options:
        raise BadInput(f"generated masks: {text!r} says nothing of A, G or W: {example}")
    if seed is not None and options.setdefault("seed", seed) != seed:
        raise BadInput(f"generated masks: seed={seed}, but {text!r} has a seed of its own: give one of them")
    return generated_masks(step, shares, **options)


def _structure(name: str, value: str, text: str) -> Structured:
    match = re.fullmatch(r"([0-9]+):([0-9]+)", value)
    if name != "W" or not match:
        raise BadInput(f"generated masks: {name}={value} in {text!r}: structure is the weights' alone, written W=2:4")
    return Structured(int(match[1]), int(match[2]))


def _flag(value: str) -> bool:
    if value not in ("true", "false"):
        raise ValueError(value)
    return value == "true"


def _reductions(step: Step, shapes: Shapes) -> dict[TensorKey, int]:
    """For each weight the axis of its tensor that the forward product reduces over."""
    axes: dict[TensorKey, int] = {}
    for op in step.ops:
        for side in (0, 1) if op.is_product and op.phase is Phase.FORWARD else ():
            if letter_of(step, op, side) != "W":
                continue
            axis = 1  # of a convolution: input channels
            if isinstance(op.body, MatMul):
                axis = 1 - side if not is_transposed(step, op, side, "W", matrix_extent(op.body, side)) else side
            for name in ("W", tensor_letter(step, op, side)):  # a layer with several weights names each by its tensor
                axes[op.layer, op.call, name] = axis
    return {key: axis for key, axis in axes.items() if key in shapes}


def _check_shares(where: str, shares: Sparsity) -> None:
    place = f" of layers {where!r}" if where else ""
    for letter, share in shares.items():
        if letter not in LETTERS:
            raise UnknownName(f"operand{place}", str(letter), LETTERS, where="generated masks")
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise BadInput(f"generated masks: {letter}{place} is a share of zeros between 0 and 1, got {share!r}")


def _units(shape: tuple[int, ...], name: str, cluster: Cluster) -> tuple[int, ...] | None:
    """The shape of units that are zero together: channels are dimension 1 of images and matrices, all other dimensions are rows."""
    if cluster == "none" or len(shape) < 2:
        return None
    if cluster == "channel":
        return (1, shape[1], *[1] * (len(shape) - 2))
    return (shape[0], 1, *([1] * (len(shape) - 2) if name[0] == "W" else shape[2:]))


def _shapes(step: Step, samples: int | None) -> tuple[Shapes, dict[TensorKey, int]]:
    """Mask key -> shape, and elements per letter where several operands of one call share it and go by their own names."""
    operands: dict[TensorKey, dict[tuple[str, bool], dict[str, tuple[int, ...]]]] = {}
    for op in step.ops:
        for side in (0, 1) if op.is_product else ():
            if letter := letter_of(step, op, side):
                named = operands.setdefault((op.layer, op.call, letter), {}).setdefault((op.phase, op.recompute), {})
                named[tensor_letter(step, op, side)] = operand_shape(step, op, side)
    shapes_by_key: Shapes = {}
    several: dict[TensorKey, int] = {}
    for key, phases in operands.items():
        shapes = {shape for named in phases.values() for shape in named.values()}
        if len(shapes) == 1 and all(len(named) == 1 for named in phases.values()):
            shapes_by_key[key] = _sampled(next(iter(shapes)), key, step.batch, samples)
            continue
        named = {name: shape for named in phases.values() for name, shape in named.items() if name}
        shapes_by_key.update({(*key[:2], name): _sampled(shape, key, step.batch, samples) for name, shape in named.items()})
        several[key] = sum(map(math.prod, named.values()))
    return shapes_by_key, several


def _sampled(shape: tuple[int, ...], key: TensorKey, batch: int, samples: int | None) -> tuple[int, ...]:
    if samples is None or key[2] == "W" or shape[0] % batch:
        return shape
    return (shape[0] // batch * samples, *shape[1:])
