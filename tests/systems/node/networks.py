"""Networks and nodes for tests of systems: a chain of linear layers, and one small node of each design."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

from trainyard.arrays import Systolic
from trainyard.devices import Accelerator
from trainyard.ir import ElementWise, MatMul, Op, Phase, Role, Step, TensorSpec, Update
from trainyard.results.result import Result
from trainyard.systems import DeviceCentric, HostCentric, MemoryCentric
from trainyard.systems.node.systems import Node

DEVICE = Accelerator(array=Systolic(rows=8, columns=8), scratchpad="64 KiB", dram="1 GB/s", clock="100 MHz")
# a slow device on slow links, so that compute, exchanges and copies take about as long
SLOW: dict[str, Any] = {"device": DEVICE, "link_bytes_per_s": 20e6, "link_latency_s": 1e-6, "page_bytes": 256, "message_bytes": 256}


def chain(widths: tuple[int, ...], batch: int) -> Step:
    """A training step of linear layers, each followed by a ReLU: forward, dX and dW of every layer, updates."""
    tensors: list[TensorSpec] = [TensorSpec((batch, widths[0]), role=Role.INPUT, name="x", slope=(1, 0))]
    ops: list[Op] = []

    def tensor(*shape: int, role: Role = Role.ACTIVATION, name: str = "", view_of: int | None = None) -> int:
        slope = (1, *(0 for _ in shape[1:])) if role in (Role.ACTIVATION, Role.GRADIENT) else ()
        tensors.append(TensorSpec(shape, role=role, name=name, view_of=view_of, slope=slope))
        return len(tensors) - 1

    def op(
        body: Any, layer: str, phase: Phase, inputs: tuple[int, ...], outputs: tuple[int, ...], letters: Any, slope: Any
    ) -> None:
        ops.append(
            Op(body=body, name=layer, layer=layer, phase=phase, inputs=inputs, outputs=outputs, letters=letters, slope=slope)
        )

    weights = [tensor(k, n, role=Role.PARAMETER, name=f"l{i}.weight") for i, (k, n) in enumerate(pairwise(widths))]
    here, inputs = 0, []
    for i, (k, n) in enumerate(pairwise(widths)):
        inputs.append(here)
        output, rectified = tensor(batch, n), tensor(batch, n)
        op(MatMul(batch, n, k), f"l{i}", Phase.FORWARD, (here, weights[i]), (output,), ("A", "W"), (1, 0, 0, 0))
        op(ElementWise("relu", batch * n), f"r{i}", Phase.FORWARD, (output,), (rectified,), (), (n, 0))
        here = rectified
    gradient = tensor(batch, widths[-1], role=Role.GRADIENT)
    op(ElementWise("loss", batch * widths[-1]), "loss", Phase.LOSS, (here,), (gradient,), (), (widths[-1], 0))
    summed = []
    for i, (k, n) in reversed(list(enumerate(pairwise(widths)))):
        own = tensor(k, n, role=Role.PARAMETER_GRADIENT, name=f"l{i}.weight")
        op(MatMul(k, n, batch), f"l{i}", Phase.GRAD_WEIGHT, (inputs[i], gradient), (own,), ("A", "G"), (0, 0, 1, 0))
        summed.append((i, k, n, own))
        if i:
            back = tensor(batch, k, role=Role.GRADIENT)
            op(MatMul(batch, k, n), f"l{i}", Phase.GRAD_INPUT, (gradient, weights[i]), (back,), ("G", "W"), (1, 0, 0, 0))
            masked = tensor(batch, k, role=Role.GRADIENT)
            op(ElementWise("relu_backward", batch * k), f"r{i - 1}", Phase.GRAD_INPUT, (back, inputs[i]), (masked,), (), (k, 0))
            gradient = masked
    for i, k, n, own in summed:
        later = tensor(k, n, role=Role.PARAMETER, name=f"l{i}.weight", view_of=weights[i])
        op(Update("SGD", k * n), f"l{i}", Phase.UPDATE, (weights[i], own), (later,), (), ())
    return Step("chain", batch, tuple(ops), tuple(tensors))


CHAIN = chain((64, 128, 128, 96), 64)
DESIGNS: dict[str, Node] = {
    "dc": DeviceCentric(**SLOW, pcie_bytes_per_s=4e6, socket_bytes_per_s=1e9),
    "hc": HostCentric(**SLOW, socket_bytes_per_s=1e9),
    "s": MemoryCentric(**SLOW, shape="folded"),
    "star": MemoryCentric(**SLOW, shape="star"),
    "l": MemoryCentric(**SLOW, placement="local"),
    "b": MemoryCentric(**SLOW),
    "o": DeviceCentric(**SLOW, overlay="off"),
}
DEEP = chain((64, *(128,) * 10, 96), 4096)


def changed(design: Node, **changes: Any) -> Node:
    return replace(design, **changes)


def moved(result: Result) -> tuple[int, int]:
    """Bytes to and from the second memory."""
    found = {"write": 0, "read": 0}
    for (level, _, direction), count in result.traffic.items():
        if level in ("remote memory", "host memory"):
            found[direction] += count
    return found["write"], found["read"]
