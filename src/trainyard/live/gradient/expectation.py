"""What a whole training step can gain from reading dY once, before anything about a model is changed.

A pass that computes dX and dW together reads dY once instead of twice, which saves at most the time in which the memory delivers
dY, and never more than the shorter product takes. Fusing what stands around the pair into that pass saves further transfers of dY:
its write and read where an element-wise op or a normalisation makes it, one more read where a bias gradient is summed. A step that
is bound by arithmetic elsewhere, or by other element-wise ops and normalisation, gains little even where every layer does. Not
counted is what a pass gains where the library's own kernels are far from their bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainyard.errors import BadInput
from trainyard.ir import Convolution, Device, MatMul, Op, Phase, Reduction, Step, Work
from trainyard.units import show


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGain:
    """Seconds of a layer's two gradient products, and at most so many saved by one pass, and by one that fuses its neighbours."""

    layer: str
    pair_s: float
    saved_s: float
    fused_saved_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """Time of a step, and what its layers save at most; prints as a table of the layers that save the most."""

    name: str
    time_s: float
    layers: tuple[LayerGain, ...]

    @property
    def least_time_s(self) -> float:
        return self.time_s - sum(layer.saved_s for layer in self.layers)

    @property
    def fused_speedup(self) -> float:
        """The same with the ops fused that make dY or sum it, at most."""
        return self.time_s / (self.time_s - sum(layer.fused_saved_s for layer in self.layers))

    @property
    def speedup(self) -> float:
        """How many times as fast reading dY once makes the whole step, at most."""
        return self.time_s / self.least_time_s

    def __str__(self) -> str:
        head = (
            f"{self.name}: {len(self.layers)} layers could read dY once; that makes a step of {show(self.time_s, 's')} at most "
            f"{self.speedup:.3f} times as fast, {self.fused_speedup:.3f} with what makes and sums dY fused"
        )
        most = sorted(self.layers, key=lambda layer: -layer.saved_s)[:10]
        rows = [f"{layer.layer:40} {show(layer.pair_s, 's'):>10} saves at most {show(layer.saved_s, 's'):>10}" for layer in most]
        return "\n".join([head, *rows])


def expected(step: Step, device: Device) -> Expectation:
    """The most that `interleave` can give to a captured step on a device with one memory (`ty.machine("h200")`).

    >>> import trainyard as ty
    >>> gain = expected(ty.zoo.load("resnet50", batch=64), ty.machine("h200"))
    >>> len(gain.layers), 1.0 < gain.speedup < 1.1
    (37, True)
    """
    rate = getattr(device, "dram_bytes_per_s", None)
    if not rate:
        raise BadInput(f"{type(device).__name__} states no bandwidth of its memory: take a device such as ty.machine('h200')")
    seconds = {work.ops: device.cost(step, work, None).cycles / device.clock_hz for work in device.works(step)}
    neighbours = _neighbours(step)
    gains = []
    for first, second, gradient in _pairs(step):
        times = [_seconds(step, device, seconds, op) for op in (first, second)]
        transfer_s = step.tensors[gradient].bytes / rate
        saved_s = min(transfer_s, *times)
        around = sum(
            min(transfers * transfer_s, _seconds(step, device, seconds, op)) for op, transfers in neighbours.get(gradient, ())
        )
        gains.append(LayerGain(layer=step.ops[first].layer, pair_s=sum(times), saved_s=saved_s, fused_saved_s=saved_s + around))
    return Expectation(name=step.name, time_s=sum(seconds.values()), layers=tuple(gains))


def _neighbours(step: Step) -> dict[int, list[tuple[int, int]]]:
    """For each tensor of backward, the ops that make or sum it and are no products, with the transfers of it that fusing saves."""
    neighbours: dict[int, list[tuple[int, int]]] = {}
    for number, op in enumerate(step.ops):
        if not op.phase.backward or op.macs:
            continue
        for tensor in map(step.base, op.outputs):
            neighbours.setdefault(tensor, []).append((number, 2))
        if op.phase is Phase.GRAD_WEIGHT and isinstance(op.body, Reduction):
            for tensor in map(step.base, op.inputs):
                neighbours.setdefault(tensor, []).append((number, 1))
    return neighbours


def _pairs(step: Step) -> Iterator[tuple[int, int, int]]:
    """The two gradient products of each call of a layer, and dY, the tensor that both read."""
    waiting: dict[str, list[int]] = {}
    for number, op in enumerate(step.ops):
        if not _is_changed(op):
            continue
        reads = set(map(step.base, op.inputs))
        for other in waiting.setdefault(op.layer, []):
            shared = reads & set(map(step.base, step.ops[other].inputs))
            if step.ops[other].phase is not op.phase and shared:
                waiting[op.layer].remove(other)
                yield other, number, min(shared)
                break
        else:
            waiting[op.layer].append(number)


def _seconds(step: Step, device: Device, seconds: dict[tuple[int, ...], float], op: int) -> float:
    """Time of one op: of its own Work, or, where a device groups ops, by itself."""
    if (op,) in seconds:
        return seconds[(op,)]
    return device.cost(step, Work(ops=(op,)), None).cycles / device.clock_hz


def _is_changed(op: Op) -> bool:
    """Whether `interleave` changes the layer of a gradient product: linear, or a convolution of 1x1 in one group."""
    if op.phase not in (Phase.GRAD_INPUT, Phase.GRAD_WEIGHT) or not op.layer:
        return False
    body = op.body
    if isinstance(body, Convolution):
        return body.kernel == (1, 1) and body.groups == 1
    return isinstance(body, MatMul) and body.count == 1
