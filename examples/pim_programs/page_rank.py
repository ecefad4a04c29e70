"""PageRank on DPUs, a bulk-synchronous program.

    rank(v) = (1 - d) / n + d (sum over edges u -> v of rank(u) / degree(u) + dangling / n)

where `dangling` is the rank of all vertices without edges (S. Brin, L. Page: The Anatomy of a Large-Scale Hypertextual Web Search
Engine. 1998). An iteration is one superstep:

1. *collect*: a DPU adds up what arrived, makes its new ranks, and its part of the dangling rank and of the change.
2. *spread*: it divides its ranks by their degrees and adds them up along its edges, one slot for each vertex reached. Slots of
   other DPUs' vertices travel as pairs (vertex, value). Both parts are summed over all DPUs meanwhile: the next collect needs the
   one, stopping the other. What is spread after the last iteration is in vain.

A host on the way adds up all slots itself and gives every DPU one value for each of its vertices (`host="adds"`, as programs for
UPMEM do), or hands on the pairs (`host="sorts"`).

`number="fixed64"` holds ranks in 60 bits of fraction: the same bits on any number of DPUs, under any partition, and an addition
costs a DPU without floating point a fiftieth of fp64's. Either equals power iteration in fp64 to 1e-10.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

from pim_programs.carriers import Sending, price, summed
from pim_programs.graph import Graph
from pim_programs.partition import Hop, Layout, PartitionRule, owners
from pim_programs.runs import Run, require_mram
from pim_programs.supersteps import Cost, Stream, Superstep, instructions
from trainyard.checks import require_positive, require_quantity
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.dpu.instructions import LOAD, LOOP, STORE
from trainyard.systems.pim.device_interface import as_dpu
from trainyard.systems.pim.systems import DpuToDpu

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trainyard.devices.dpu.device import Dpu
    from trainyard.systems.pim.machine import Pim

    Ranks = npt.NDArray[Any]
    Whole = npt.NDArray[np.int64]

Number = Literal["fixed64", "fp64"]
HostWork = Literal["adds", "sorts"]
VALUE_BYTES, INDEX_BYTES = 8, 4
PAIR_BYTES = INDEX_BYTES + VALUE_BYTES
SUMS = 2  # the dangling rank, the change


class Vertices:
    """The ranks of all DPUs' vertices, and what DPUs do with them."""

    def __init__(self, layout: Layout, damping: float, number: Number) -> None:
        import numpy as np

        from pim_programs.kernels import page_rank as kernel

        self.layout, self.kernel, self.fixed = layout, kernel, number == "fixed64"
        self.count = layout.order.size
        self.hanging = layout.degrees == 0
        self.damping: Any = round(damping * kernel.ONE) if self.fixed else damping
        start: Any = kernel.ONE // self.count if self.fixed else 1.0 / self.count
        self.ranks: Ranks = np.full(self.count, start)
        self.dangling = int(self.hanging.sum()) * kernel.ONE // self.count

    def spread(self) -> Ranks:
        """The outboxes of all DPUs."""
        import numpy as np

        if self.fixed:
            shares: Ranks = self.kernel.fixed_shares(self.ranks, self.layout.degrees)
        else:
            shares = self.ranks / np.maximum(self.layout.degrees, 1)
        return np.asarray(self.kernel.combined(shares, self.layout.edge_source, self.layout.slot_first))

    def collect(self, outbox: Ranks) -> Whole:
        """New ranks from what arrived; of each DPU its dangling rank and its change, in fixed point."""
        import numpy as np

        arrived = outbox
        for hop in self.layout.hops:
            arrived = self.kernel.collected(arrived[hop.arrival], hop.first)
        one = self.kernel.ONE
        if self.fixed:
            dangling = self.kernel.fixed_product(self.dangling, self.damping)
            ranks = self.kernel.fixed_ranks(arrived, self.damping, (one - self.damping + dangling) // self.count)
        else:
            base = (1.0 - self.damping + self.damping * (self.dangling / one)) / self.count
            ranks = base + self.damping * arrived
        told = np.stack([np.where(self.hanging, ranks, 0), np.abs(ranks - self.ranks)], axis=1)
        self.ranks = ranks
        sums = np.add.reduceat(np.concatenate([told, np.zeros_like(told[:1])]), self.layout.first[:-1])
        sums[self.layout.parts == 0] = 0  # reduceat gives the next row where a part is empty
        return sums if self.fixed else np.rint(sums * one).astype(np.int64)

    def values(self) -> npt.NDArray[np.float64]:
        """Ranks in the graph's own order."""
        import numpy as np

        out = np.empty(self.count)
        out[self.layout.order] = self.ranks / self.kernel.ONE if self.fixed else self.ranks
        return out


def page_rank(
    graph: Graph,
    on: Pim,
    *,
    partition: PartitionRule = "balanced",
    damping: float = 0.85,
    tolerance: float = 1e-12,
    most_iterations: int = 1000,
    number: Number = "fixed64",
    combining: int | None = None,
    sending: Sending = "staggered",
    host: HostWork = "adds",
) -> Run:
    """PageRank of a graph on the DPUs of a machine: the ranks, and what they cost.

    Stops when the ranks change by less than `tolerance`, summed over all vertices; `values` are in the graph's order and sum to 1.
    So many DPUs combine what they send to others (`programs.partition.Layout`): by default a cluster where DPUs talk to each other,
    and each DPU for itself through the host, where a second hop would be a second journey.

    >>> ring = Graph.from_edges([(0, 1), (1, 2), (2, 3), (3, 0)])
    >>> page_rank(ring, DpuToDpu(dpus=2)).values.tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    require_quantity("page_rank", tolerance=tolerance, damping=damping)
    require_positive("page_rank", most_iterations=most_iterations)
    if damping >= 1:
        raise BadInput(f"page_rank: damping must lie between 0 and 1, got {damping!r}")
    if number not in get_args(Number):
        raise UnknownName("number format", str(number), get_args(Number), where="page_rank")
    if host not in get_args(HostWork):
        raise UnknownName("work of the host", str(host), get_args(HostWork), where="page_rank")
    if combining is None:
        combining = on.dpus_per_cluster if isinstance(on, DpuToDpu) else 1
    adds = host == "adds" and not isinstance(on, DpuToDpu) and on.dpus > 1
    if adds and combining > 1:
        raise BadInput(f"page_rank: combining={combining} where the host adds up all: give combining=1, or host='sorts'")
    layout = Layout.of(graph, owners(graph, on.dpus, partition), on.dpus, combining)
    require_mram("page_rank", part_bytes(layout, adds), on, f"give more DPUs, or another partition than {partition!r}")
    first, each = (
        sum((price(one, on, sending) for one in some), Cost()) for some in supersteps(layout, as_dpu(on.dpu), number, adds)
    )
    vertices = Vertices(layout, damping, number)
    change, iterations = math.inf, 0
    while change >= tolerance and iterations < most_iterations:
        vertices.dangling, moved = summed(vertices.collect(vertices.spread()), on)
        change = moved / vertices.kernel.ONE
        iterations += 1
    return Run(
        workload=f"PageRank of {graph.name}",
        machine=on,
        values=vertices.values(),
        iterations=iterations,
        converged=change < tolerance,
        cost=first + each * iterations,
        work=graph.edges * iterations,
        unit="edge",
    )


def part_bytes(layout: Layout, host_adds: bool = False) -> Whole:
    """MRAM of each DPU: old and new ranks, degrees, edges, where slots begin, and the outbox and inbox of each hop."""
    vertex, slot = 2 * VALUE_BYTES + INDEX_BYTES, INDEX_BYTES + PAIR_BYTES
    inbox = sum(hop.held for hop in layout.hops) * PAIR_BYTES if not host_adds else layout.parts * VALUE_BYTES
    boxes = inbox + sum(hop.made for hop in layout.hops[:-1]) * PAIR_BYTES
    return layout.parts * vertex + layout.edges * INDEX_BYTES + layout.made * slot + boxes


def supersteps(
    layout: Layout, dpu: Dpu, number: Number, host_adds: bool = False
) -> tuple[Sequence[Superstep], Sequence[Superstep]]:
    """Those before the first iteration, which only spread, and those of an iteration.

    Edges and pairs are streams; what they point at (shares, sums) lies in WRAM, or, if too large, in MRAM. A loop takes its loads
    and stores, its arithmetic, and three instructions for index, address and branch. In fixed point, damping is four products.
    """
    import numpy as np

    held = "int64" if number == "fixed64" else number
    add, multiply, divide = (instructions(held, operation) for operation in ("add", "multiply", "divide"))
    damped = 4 * multiply + 3 * add if number == "fixed64" else multiply
    parts, edges, made = layout.parts, layout.edges, layout.made
    received = layout.hops[-1].held if not host_adds else np.zeros_like(parts)
    run = float(dpu.block_bytes(4))
    far = (parts * VALUE_BYTES > dpu.shared_bytes // 2).astype(np.int64)  # assumed: half of WRAM is for what is met at random
    spread = (
        Stream(direction="read", size_bytes=parts * (VALUE_BYTES + INDEX_BYTES), run_bytes=run),
        Stream(direction="read", size_bytes=(edges + made) * INDEX_BYTES, run_bytes=run),
        Stream(direction="read", size_bytes=edges * far * VALUE_BYTES, run_bytes=VALUE_BYTES),
        Stream(direction="write", size_bytes=made * PAIR_BYTES + parts * far * VALUE_BYTES, run_bytes=run),
    )
    collect = (
        *_added_up(received, parts, dpu),
        Stream(direction="read", size_bytes=parts * VALUE_BYTES * (2 if host_adds else 1), run_bytes=run),
        Stream(direction="write", size_bytes=parts * VALUE_BYTES, run_bytes=run),
    )
    pair = 3 * LOAD + add + STORE + LOOP
    spreading = parts * (2 * LOAD + divide + STORE + LOOP) + edges * (2 * LOAD + add + LOOP) + made * (LOAD + STORE + LOOP)
    collecting = received * pair + parts * (2 * LOAD + damped + 4 * add + STORE + LOOP)
    items = np.maximum(parts, made)
    start = _said(layout.hops[0], "spread", spreading, items, spread)
    if host_adds:
        start = replace(start, to_host=made * PAIR_BYTES, from_host=parts * VALUE_BYTES)
    relays = []
    for before, hop in pairwise(layout.hops):
        streams = (
            *_added_up(before.held, before.made, dpu),
            Stream(direction="write", size_bytes=before.made * PAIR_BYTES, run_bytes=run),
        )
        work = before.held * pair + before.made * (LOAD + STORE + LOOP)
        relays.append(_said(hop, "relay", work, np.maximum(before.held, before.made), streams))
    whole = replace(
        start, name="iteration", instructions=collecting + spreading, items=np.maximum(items, received), streams=(*collect, *spread)
    )
    *rest, last = [whole, *relays]
    return [start, *relays], [*rest, replace(last, sums=SUMS)]


def _said(hop: Hop, name: str, work: Whole, items: Whole, streams: Sequence[Stream]) -> Superstep:
    return Superstep(
        name=name,
        instructions=work,
        items=items,
        streams=streams,
        sources=hop.sources,
        destinations=hop.destinations,
        sizes_bytes=hop.values * PAIR_BYTES,
    )


def _added_up(pairs: Whole, sums: Whole, dpu: Dpu) -> tuple[Stream, Stream, Stream]:
    """Pairs stream in; their sums are in WRAM, or each is fetched and put back."""
    import numpy as np

    far = pairs * VALUE_BYTES * (sums * VALUE_BYTES > dpu.shared_bytes // 2).astype(np.int64)
    return (
        Stream(direction="read", size_bytes=pairs * PAIR_BYTES, run_bytes=float(dpu.block_bytes(4))),
        Stream(direction="read", size_bytes=far, run_bytes=VALUE_BYTES),
        Stream(direction="write", size_bytes=far, run_bytes=VALUE_BYTES),
    )
