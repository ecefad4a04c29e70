"""Random products and machines, from a seed; plain numbers, so that any version of trainyard can be asked about them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

Case = dict[str, Any]
ROOMS = ((1, 2), (2, 4), (4, 16), (16, 64))
"""Classes of room: how many triples of the array's own tiles the resident half of the scratchpad holds."""
DATAFLOWS = ("ws", "os", "is")


def granule(array: Case) -> tuple[int, int, int]:
    """One array high, wide and deep; the streamed dimension takes the longer side."""
    rows, columns, side = array["rows"], array["columns"], max(array["rows"], array["columns"])
    return {"ws": (side, columns, rows), "is": (columns, side, rows), "os": (rows, columns, side)}[array["dataflow"]]


def _log(source: random.Random, low: float, high: float) -> float:
    return math.exp(source.uniform(math.log(low), math.log(high)))


def _array(source: random.Random) -> Case:
    return {
        "rows": source.choice((16, 32, 64, 128)),
        "columns": source.choice((16, 32, 64, 128)),
        "dataflow": source.choice(DATAFLOWS),
    }


def _any_array(source: random.Random) -> Case:
    rows, columns = (int(_log(source, 3, 200)) for _ in range(2))
    return {"rows": rows, "columns": columns, "dataflow": source.choice(DATAFLOWS)}


def _room(array: Case, element_bytes: int, triples: float) -> float:
    m, n, k = granule(array)
    return triples * ((m * k + k * n) * element_bytes + 4 * m * n)


def by_room(each: int, seed: int = 19) -> list[Case]:
    """Products in each class of room, on a DRAM of 4 bytes a cycle: bound by their traffic."""
    source, drawn = random.Random(seed), []
    for low, high in ROOMS:
        for _ in range(each):
            array, element_bytes = _array(source), source.choice((1, 2, 4))
            drawn.append({
                "dims": [int(_log(source, 64, 2048)) for _ in range(3)], "element_bytes": element_bytes, "array": array,
                "room": _room(array, element_bytes, _log(source, low, high)), "speed": 4.0, "latency": 0,
                "class": f"{low}-{high}",
            })  # fmt: skip
    return drawn


def products(many: int, seed: int = 20, array_of: Callable[[random.Random], Case] = _array) -> list[Case]:
    """Products of any shape on machines of any size: rooms below one array tile, and DRAM from slow to fast."""
    source, drawn = random.Random(seed), []
    while len(drawn) < many:
        array, element_bytes = array_of(source), source.choice((1, 2, 4))
        drawn.append({
            "dims": [int(_log(source, 1, 1200)) for _ in range(3)], "element_bytes": element_bytes, "array": array,
            "room": max(64.0, _room(array, element_bytes, _log(source, 0.05, 64))), "speed": round(_log(source, 1, 256), 2),
            "latency": source.choice((0, 100)),
        })  # fmt: skip
    return drawn


def any_arrays(many: int, seed: int = 24) -> list[Case]:
    """The same on arrays whose sides are no round numbers."""
    return products(many, seed, _any_array)


def small(many: int, seed: int = 23) -> list[Case]:
    """Products so small that every size of a tile can be tried."""
    source, drawn = random.Random(seed), []
    for _ in range(many):
        array = {"rows": source.randint(1, 8), "columns": source.randint(1, 8), "dataflow": source.choice(DATAFLOWS)}
        drawn.append({
            "dims": [source.randint(1, 32) for _ in range(3)], "element_bytes": source.choice((1, 2, 4)), "array": array,
            "room": max(12.0, _room(array, 4, _log(source, 0.2, 16))), "speed": round(_log(source, 0.5, 32), 2),
            "latency": source.choice((0, 5)),
        })  # fmt: skip
    return drawn


def convolutions(many: int, seed: int = 21) -> list[Case]:
    """The three products of convolutions, read without unfolding."""
    source, drawn = random.Random(seed), []
    for _ in range(many):
        kernel, side = source.choice((1, 3, 3, 5, 7)), source.choice((7, 14, 28, 56))
        array, element_bytes = _array(source), source.choice((1, 2, 4))
        body = {
            "batch": source.choice((1, 4, 8)), "in_channels": int(_log(source, 3, 512)), "out_channels": int(_log(source, 16, 512)),
            "size": (side, side), "kernel": (kernel, kernel), "stride": (source.choice((1, 1, 2)),) * 2,
            "padding": (kernel // 2,) * 2,
        }  # fmt: skip
        for product in ("forward", "grad_input", "grad_weight"):
            drawn.append({
                "convolution": {**body, "product": product}, "element_bytes": element_bytes, "array": array,
                "room": _room(array, element_bytes, _log(source, 1, 64)), "speed": round(_log(source, 4, 64), 2), "latency": 100,
            })  # fmt: skip
    return drawn


NAMED: Case = {
    "dims": [1279, 308, 416], "element_bytes": 2, "array": {"rows": 64, "columns": 64, "dataflow": "ws"}, "room": 161631.0,
    "speed": 4.0, "latency": 0,
}  # fmt: skip
STEPS = (
    ("resnet50", "npu"),
    ("resnet50", "npu(scratchpad=1 MiB)"),
    ("bert-large", "npu(scratchpad=1 MiB,dram=50 GB/s)"),
    ("vgg16", "npu(scratchpad=1 MiB)"),
)
"""Training steps: model and machine."""


def pairs(many: int, seed: int = 22) -> list[Case]:
    """A product with a machine, and with one that contains it: more rows or columns, room or bandwidth."""
    source, drawn = random.Random(seed), []
    for _ in range(many):
        array = {"rows": int(_log(source, 4, 256)), "columns": int(_log(source, 4, 256)), "dataflow": source.choice(DATAFLOWS)}
        machine = {"array": array, "scratchpad": int(_log(source, 2**13, 2**22)), "dram": _log(source, 1e9, 5e11)}
        grown = source.choice(("rows", "columns", "scratchpad", "dram"))
        factor = source.choice((1 + 1 / 64, 1.5, 2.0, 8.0))
        larger = {**machine, "array": dict(array)}
        if grown in array:
            larger["array"][grown] = math.ceil(array[grown] * factor)
        else:
            larger[grown] = math.ceil(machine[grown] * factor)
        drawn.append({"dims": [int(_log(source, 1, 2048)) for _ in range(3)], "machines": [machine, larger], "grown": grown})
    return drawn


def larger_arrays() -> list[Case]:
    """The training step of a Linear layer from 2048 to 1000, batch 32, on a scratchpad of 64 KiB, by rows of the array."""
    products = ([32, 1000, 2048], [32, 2048, 1000], [2048, 1000, 32])
    return [
        {"dims": dims, "machines": [
            {"array": {"rows": rows, "columns": 64, "dataflow": "ws"}, "scratchpad": 2**16, "dram": 150e9} for rows in ROWS
        ]}
        for dims in products
    ]  # fmt: skip


ROWS = (64, 65, 128, 256, 512)
RESNET18 = tuple(
    {
        "name": name, "batch": 1, "in_channels": inputs, "out_channels": outputs, "size": (side, side), "kernel": (kernel, kernel),
        "stride": (stride, stride), "padding": (kernel // 2, kernel // 2),
    }
    for name, inputs, outputs, side, kernel, stride in (
        ("conv1", 3, 64, 224, 7, 2),
        ("layer1", 64, 64, 56, 3, 1),
        ("layer2.0.conv1", 64, 128, 56, 3, 2),
        ("layer2.0.downsample", 64, 128, 56, 1, 2),
        ("layer2", 128, 128, 28, 3, 1),
        ("layer3.0.conv1", 128, 256, 28, 3, 2),
        ("layer3.0.downsample", 128, 256, 28, 1, 2),
        ("layer3", 256, 256, 14, 3, 1),
        ("layer4.0.conv1", 256, 512, 14, 3, 2),
        ("layer4.0.downsample", 256, 512, 14, 1, 2),
        ("layer4", 512, 512, 7, 3, 1),
    )
)  # fmt: skip
"""The distinct convolutions of ResNet-18, one image."""
ZIGZAG_ROOM, ZIGZAG_SIDE = 2**16, 32
"""The room of resident tiles, which is all of ZigZag's SRAM, and the side of the array."""


def beside_zigzag() -> list[Case]:
    """Forward products in int8, sums of 4 bytes, on a DRAM so slow that traffic is time."""
    array = {"rows": ZIGZAG_SIDE, "columns": ZIGZAG_SIDE, "dataflow": "ws"}
    return [
        {"convolution": {**{key: value for key, value in body.items() if key != "name"}, "product": "forward"},
         "element_bytes": 1, "array": array,
         "room": float(ZIGZAG_ROOM), "speed": 1.0, "latency": 0}
        for body in RESNET18
    ]  # fmt: skip
