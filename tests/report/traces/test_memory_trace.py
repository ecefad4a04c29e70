"""DRAM traces: byte for byte what costs count, in the order of the tiles, at addresses that do not overlap."""

from __future__ import annotations

import gzip
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trainyard as ty
from trainyard.errors import BadInput, NotModelled, UnknownName
from trainyard.ir import Convolution, MatMul
from trainyard.machines import machine
from trainyard.mapping.gradient_order.execution import execute
from trainyard.mapping.gradient_order.scratchpad import Pair
from trainyard.report.traces.memory_accesses import PAGE_BYTES, Matrix, Tracer, replayed
from trainyard.report.traces.memory_trace import write_memory_trace
from trainyard.workloads.formats.backward import with_backward
from trainyard.workloads.formats.scalesim import chain

IMAGES = Convolution(batch=1, in_channels=3, out_channels=8, size=(12, 12), kernel=(3, 3), stride=(2, 2), padding=(1, 1))


def network(batch: int = 4) -> ty.Step:
    layers = [("conv", IMAGES), ("fc1", MatMul(1, 40, 24)), ("fc2", MatMul(1, 24, 40))]
    return with_backward(chain("net", layers).rebatch(batch))


MACHINES = [
    "npu", "npu(scratchpad=2 KiB)", "npu(scratchpad=2 KiB,order=interleaved)", "npu(scratchpad=3 KiB,order=dx_major,reuse=lru)",
    "npu(scratchpad=2 KiB,order=cost)", "npu(im2col=materialised,fusion=none)",
    "npu(precision=fp16,accumulator_bytes=4,scratchpad=1 KiB)",
]  # fmt: skip


def device(name: str) -> Any:
    found = machine(name)
    return getattr(found, "device", found)


@pytest.mark.oracle
@pytest.mark.parametrize("name", MACHINES)
def test_bytes_are_those_of_the_result(tmp_path: Path, name: str) -> None:
    step, path = network(), tmp_path / "t.trace"
    traced = write_memory_trace(step, device(name), path)
    result = ty.run(step, on=name)
    assert traced.total_bytes == result.traffic_bytes["dram"]
    by_key: Counter[tuple[str, str]] = Counter()
    for (level, label, direction), count in result.traffic.items():
        if level == "dram":
            by_key[label, direction] += count
    assert traced.bytes == {key: count for key, count in by_key.items() if count}
    lines = path.read_text().splitlines()
    assert Counter(line[:2] for line in lines) == {"LD": traced.loads, "ST": traced.stores}
    assert all(int(line[3:], 16) % 64 == 0 for line in lines)
    assert 64 * len(lines) >= traced.total_bytes


def test_tensors_do_not_overlap() -> None:
    step = network()
    tracer = Tracer(step, device("npu(scratchpad=2 KiB)"))
    ends: dict[Any, int] = {}
    for work in tracer.device.works(step):
        for access in tracer.accesses(work):
            if len(access.ends):
                ends[access.region] = max(ends.get(access.region, 0), int(access.ends.max()))
    spans = sorted((tracer.address(region), tracer.address(region) + end) for region, end in ends.items())
    assert all(start % PAGE_BYTES == 0 for start, _ in spans)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def test_the_order_is_that_of_the_tiles(tmp_path: Path) -> None:
    """A product of 4 x 4 x 4 in tiles of 2 x 2 x 4, 16-byte lines: rows of A stay while columns of B go by."""
    step = chain("one", [("fc", MatMul(4, 4, 4))])
    small = machine(f"npu(scratchpad={2 * 4 * (2 * 4 + 4 * 2 + 2 * 2)} B,fusion=none)")
    small = ty.machines.with_overrides(small, {"tiling": (2, 2, 4)})
    small = getattr(small, "device", small)
    path = tmp_path / "t.trace"
    write_memory_trace(step, small, path, style="classic", line_bytes=8)
    tracer = Tracer(step, small)
    a, b, y = (tracer.address(tensor) for tensor in (0, 1, 2))
    found = [(line.split()[1], int(line.split()[0], 16)) for line in path.read_text().splitlines()]

    def rows(base: int, first: int, last: int) -> list[int]:
        return [base + 8 * i for i in range(2 * first, 2 * last)]

    def column(base: int, number: int) -> list[int]:
        return [base + 16 * row + 8 * number for row in range(4)]

    def block(row: int, number: int) -> list[int]:
        return [y + 16 * (2 * row + i) + 8 * number for i in range(2)]

    order = ty.run(step, on=small)
    assert order.traffic_bytes["dram"] == 4 * (16 + 2 * 16 + 16)
    by_rows = [
        *(("R", x) for x in (*rows(a, 0, 2), *column(b, 0))), *(("W", x) for x in block(0, 0)),
        *(("R", x) for x in column(b, 1)), *(("W", x) for x in block(0, 1)),
        *(("R", x) for x in (*rows(a, 2, 4), *column(b, 0))), *(("W", x) for x in block(1, 0)),
        *(("R", x) for x in column(b, 1)), *(("W", x) for x in block(1, 1)),
    ]  # fmt: skip
    by_columns = [
        *(("R", x) for x in (*rows(a, 0, 2), *column(b, 0))), *(("W", x) for x in block(0, 0)),
        *(("R", x) for x in rows(a, 2, 4)), *(("W", x) for x in block(1, 0)),
        *(("R", x) for x in (*rows(a, 0, 2), *column(b, 1))), *(("W", x) for x in block(0, 1)),
        *(("R", x) for x in rows(a, 2, 4)), *(("W", x) for x in block(1, 1)),
    ]  # fmt: skip
    assert found in (by_rows, by_columns)


@pytest.mark.oracle
@settings(max_examples=30)
@given(
    st.tuples(*[st.integers(1, 7)] * 3), st.tuples(*[st.integers(1, 4)] * 3), st.integers(0, 60),
    st.sampled_from(["sequential", "interleaved", "dx_major", "dw_major"]),
)  # fmt: skip
def test_tiles_move_as_the_execution_moves_them(sides: Any, tile: Any, spare: int, order: Any) -> None:
    """Against the model that moves real numbers: the same tiles, in the same order."""
    m, n, k = sides
    op, pair = MatMul(m, n, k), Pair.dense(MatMul(m, n, k), 4)
    room = pair.needed(tile) + 4 * spare
    ran = execute(
        np.ones((m, k), np.float32), np.ones((k, n), np.float32), np.ones((m, n), np.float32), tile=tile, capacity_bytes=int(room),
        element_bytes=4, order=order,
    )  # fmt: skip
    expected = [(moved.tile.tensor, moved.direction, moved.bytes) for step in ran.steps for moved in _in_order(step)]
    shapes = {"dY": (m, n), "W": (k, n), "X": (m, k), "dX": (m, k), "dW": (k, n)}
    places = {name: Matrix((0, name), (name, "spill"), 4 * r * c, r, c) for name, (r, c) in shapes.items()}
    drained = {name: [(places[name]._replace(key=(name, "write")), True)] for name in ("dX", "dW")}
    from trainyard.mapping.gradient_order.scratchpad import OrderCost, Traffic

    way = OrderCost(order=order, tile=tile, partition=None, traffic=Traffic(bytes={}), cycles=0, compute_cycles=0)
    assert op.macs
    found = []
    for access in replayed(pair, way, 0, places, drained, room):
        name = access.key[0]
        direction = "read" if name in ("dY", "W", "X") else access.key[1]
        found.append((name, direction, int((access.ends - access.starts).sum())))
    assert Counter(found) == Counter(expected)
    assert [f for f in found if f[1] != "spill"] == [e for e in expected if e[1] != "spill"]


def _in_order(step: Any) -> list[Any]:
    return [*step.loaded, *step.spilled, *step.finished]


def test_layers_phases_and_packed_files(tmp_path: Path) -> None:
    step, npu = network(), device("npu")
    whole = write_memory_trace(step, npu, tmp_path / "all.trace")
    parts = [write_memory_trace(step, npu, tmp_path / f"{layer}.trace", layer=layer) for layer in ("conv", "fc1", "fc2")]
    assert sum(part.total_bytes for part in parts) == whole.total_bytes
    packed = write_memory_trace(step, npu, tmp_path / "fc2.trace.gz", layer="fc2", phase="forward", style="classic")
    text = gzip.decompress((tmp_path / "fc2.trace.gz").read_bytes()).decode()
    assert text.count(" R\n") == packed.loads
    assert text.count(" W\n") == packed.stores
    again = tmp_path / "again.trace.gz"
    write_memory_trace(step, npu, again, layer="fc2", phase="forward", style="classic")
    assert again.read_bytes() == (tmp_path / "fc2.trace.gz").read_bytes()


def test_what_is_refused(tmp_path: Path) -> None:
    step, npu, path = network(), device("npu"), tmp_path / "t.trace"
    with pytest.raises(BadInput, match=r"at least [\d,]+ lines, the limit is 10: choose one layer"):
        write_memory_trace(step, npu, path, most_lines=10)
    with pytest.raises(UnknownName, match="did you mean 'fc2'"):
        write_memory_trace(step, npu, path, layer="fc")
    with pytest.raises(UnknownName, match="style"):
        write_memory_trace(step, npu, path, style="dramsim")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="power of two"):
        write_memory_trace(step, npu, path, line_bytes=48)
    with pytest.raises(NotModelled, match="several cores"):
        write_memory_trace(step, device("npu(cores=2,reuse=lru)"), path)
    assert not path.exists()
