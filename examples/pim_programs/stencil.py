"""A stencil on DPUs: the heat equation on a grid cut into blocks, with an exchange of borders between neighbours.

5 points: c + alpha (n + s + w + e - 4 c). 9 points: weights 2 and 1, -12 in the middle, over 4 (Y. Oono, S. Puri: Phys. Rev. Lett.
58, 836, 1987), which is as exact in binary as the other. A halo of k cells is temporal blocking: one exchange for k steps, fewer
and larger messages, for some cells that are computed twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pim_programs.carriers import Sending, price
from pim_programs.grid import CELL_BYTES, Blocks, Borders, Cut, Points, require_grid, step_sizes
from pim_programs.runs import Run, require_mram
from pim_programs.supersteps import Cost, Stream, Superstep, instructions
from trainyard.hardware.dpu.instructions import LOAD, LOOP, STORE
from trainyard.systems.pim.device_interface import as_dpu

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pim_programs.grid import Cells
    from trainyard.devices.dpu.device import Dpu
    from trainyard.systems.pim.machine import Pim

    Whole = npt.NDArray[np.int64]


def heat(
    grid: Cells,
    steps: int,
    on: Pim,
    *,
    points: Points = 5,
    alpha: float = 0.125,
    borders: Borders = "fixed",
    halo: int = 1,
    sending: Sending = "staggered",
) -> Run:
    """`steps` of the heat equation on a grid of float32 or int32: the grid afterwards, and what it cost.

    `alpha` is diffusivity x time step / cell size squared; `halo` is also how many steps follow one exchange.

    >>> import numpy as np
    >>> from trainyard.systems.pim.systems import DpuToDpu
    >>> grid = np.zeros((4, 4), np.int32)
    >>> grid[1, 1] = 64
    >>> heat(grid, 1, DpuToDpu(dpus=4), borders="periodic").values.tolist()
    [[0, 8, 0, 0], [8, 32, 8, 0], [0, 8, 0, 0], [0, 0, 0, 0]]
    """
    require_grid(grid, points, alpha, borders, steps)
    cut = Cut.of(*grid.shape, dpus=on.dpus, borders=borders, points=points, halo=halo)
    require_mram("heat", part_bytes(cut), on, "give more DPUs or a smaller halo")
    blocks, cost, priced = Blocks(grid, cut, alpha), Cost(), dict[int, Cost]()
    for size in step_sizes(steps, halo):
        if size not in priced:
            priced[size] = price(superstep(cut, size, str(grid.dtype), as_dpu(on.dpu)), on, sending)
        blocks.exchange()
        blocks.advance(size)
        cost += priced[size]
    return Run(
        workload=f"heat equation, {points} points, {grid.shape[0]} x {grid.shape[1]} {grid.dtype}, halo {halo}",
        machine=on,
        values=blocks.gathered(),
        iterations=steps,
        cost=cost,
        work=int(cut.computed(0).sum()) * steps,
        unit="point",
    )


def part_bytes(cut: Cut) -> Whole:
    """MRAM of each DPU: the block with its halo twice, and what it sends and gets."""
    import numpy as np

    sides = np.array([cut.block(dpu) for dpu in range(cut.dpus)], np.int64)
    held = (sides[:, 1] - sides[:, 0] + 2 * cut.halo) * (sides[:, 3] - sides[:, 2] + 2 * cut.halo)
    sources, destinations, cells = columns(cut)
    boxes = np.bincount(sources, cells, cut.dpus) + np.bincount(destinations, cells, cut.dpus)
    return CELL_BYTES * (2 * held + boxes.astype(np.int64))


def columns(cut: Cut) -> tuple[Whole, Whole, Whole]:
    """Sources, destinations and cells of all messages."""
    import numpy as np

    rows = np.array([message[:3] for message in cut.messages()], np.int64).reshape(-1, 3)
    return rows[:, 0], rows[:, 1], rows[:, 2]


def cell_instructions(points: Points, dtype: str, dpu: Dpu) -> int:
    """Of one cell: three new loads (the others are in registers from the cell before), sums as the kernel makes them, a store.

    With a MAC array, fp32 sums and products are one instruction each (assumed: its adder and multiplier serve the tasklets too).
    """
    sums, products = (7, 1) if points == 5 else (14, 1)
    software = dtype == "float32" and not dpu.mac_lanes
    add, multiply = (instructions("fp32", operation) if software else 1 for operation in ("add", "multiply"))
    return 3 * LOAD + sums * add + products * multiply + STORE + LOOP


def superstep(cut: Cut, steps: int, dtype: str, dpu: Dpu) -> Superstep:
    """An exchange and the steps after it.

    Tasklets have bands of rows. Three rows of a band and one of results are in WRAM, in pieces where a row is too long; a band
    reads the row before and after it, a piece of a row the cell before and after it. What comes from the sides and corners is
    packed and unpacked in runs of `halo` cells.
    """
    import numpy as np

    n, longest = cut.dpus, dpu.block_bytes(4)
    cells, read, bands = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    for step in range(1, steps + 1):
        regions = np.array([cut.region(dpu_number, steps - step) for dpu_number in range(n)], np.int64)
        rows, width = np.maximum(regions[:, 1] - regions[:, 0], 0), np.maximum(regions[:, 3] - regions[:, 2], 0)
        pieces = -(-width * CELL_BYTES // longest)
        cells += rows * width
        read += np.where(rows * width > 0, (rows + 2 * np.minimum(rows, dpu.tasklets)) * (width + 2 * pieces), 0)
        bands = np.maximum(bands, rows * pieces)
    sources, destinations, sent = columns(cut)
    across = np.array([side[1] != 0 for *_, side in cut.messages()], bool)
    packed = np.bincount(sources, sent, n) + np.bincount(destinations, sent, n)
    short = {way: np.bincount(end[across], sent[across], n) for way, end in (("read", sources), ("write", destinations))}
    width = float(min(longest, CELL_BYTES * -(-cut.width // cut.columns)))
    long = packed.astype(np.int64) * CELL_BYTES
    each = {way: short[way].astype(np.int64) * CELL_BYTES for way in short}
    return Superstep(
        name=f"{steps} steps",
        instructions=cells * cell_instructions(cut.points, dtype, dpu) + packed.astype(np.int64) * (LOAD + STORE + LOOP),
        items=bands,
        streams=(
            Stream(direction="read", size_bytes=read * CELL_BYTES, run_bytes=width),
            Stream(direction="write", size_bytes=cells * CELL_BYTES, run_bytes=width),
            Stream(direction="read", size_bytes=long - each["read"], run_bytes=width),
            Stream(direction="write", size_bytes=long - each["write"], run_bytes=width),
            Stream(direction="read", size_bytes=each["read"], run_bytes=cut.halo * CELL_BYTES),
            Stream(direction="write", size_bytes=each["write"], run_bytes=cut.halo * CELL_BYTES),
        ),
        sources=sources,
        destinations=destinations,
        sizes_bytes=sent * CELL_BYTES,
    )
