"""What a whole training step can gain from reading dY once, before anything about a model is changed.

A pass that computes dX and dW together reads dY once instead of twice, which saves at most the time in which the memory delivers
dY, and never more than the shorter product takes. A step that is bound by arithmetic elsewhere, or by element-wise ops and
normalisation, gains little even where every layer does. Not counted is what one pass gains where the library's own kernels are
far from their bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainyard.errors import BadInput
from trainyard.ir import Convolution, Device, MatMul, Op, Phase, Step, Work
from trainyard.units import show


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGain:
    """Seconds of a layer's two gradient products, and at most so many of them saved."""

    layer: str
    pair_s: float
    saved_s: float


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
    def speedup(self) -> float:
        """How many times as fast reading dY once makes the whole step, at most."""
        return self.time_s / self.least_time_s

    def __str__(self) -> str:
        head = (
            f"{self.name}: {len(self.layers)} layers could read dY once; that makes a step of {show(self.time_s, 's')} at most "
            f"{self.speedup:.3f} times as fast"
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
    gains = []
    for first, second, gradient in _pairs(step):
        times = [_seconds(step, device, seconds, op) for op in (first, second)]
        saved_s = min(step.tensors[gradient].bytes / rate, *times)
        gains.append(LayerGain(layer=step.ops[first].layer, pair_s=sum(times), saved_s=saved_s))
    return Expectation(name=step.name, time_s=sum(seconds.values()), layers=tuple(gains))


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
