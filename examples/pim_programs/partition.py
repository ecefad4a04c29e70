"""Graphs cut into parts that DPUs own, and the messages that follow from the cut.

A vertex and all edges that leave it belong to one DPU. What a DPU says to another goes along the cut edges, combined: one value for
each vertex of the other that any of its edges reach (combiners: G. Malewicz et al.: Pregel. SIGMOD 2010). The pattern of messages
is fixed by the partition, so that it is laid out once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from pim_programs.graph import Graph
from trainyard.checks import require_positive
from trainyard.errors import BadInput, UnknownName

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Whole = npt.NDArray[np.int64]

PartitionRule = Literal["block", "hashed", "balanced"]


def owners(graph: Graph, dpus: int, partition: PartitionRule = "balanced") -> Whole:
    """Which DPU owns each vertex.

    `block`: equal runs of consecutive numbers; `hashed`: by a hash of the number; `balanced`: vertices in order of falling degree,
    each to the DPU with the fewest edges so far.

    >>> owners(Graph.from_edges([(0, 1), (0, 2), (0, 3), (1, 0), (3, 0)], vertices=4), 2, "balanced").tolist()
    [0, 1, 0, 1]
    """
    import numpy as np

    require_positive("partition", dpus=dpus)
    if graph.vertices < dpus:
        raise BadInput(f"{graph.name}: {graph.vertices} vertices cannot be spread over {dpus} DPUs: give at most {graph.vertices}")
    numbers = np.arange(graph.vertices, dtype=np.int64)
    if partition == "block":
        return numbers * dpus // graph.vertices
    if partition == "hashed":
        return (_mixed(numbers.astype(np.uint64)) % np.uint64(dpus)).astype(np.int64)
    if partition == "balanced":
        from pim_programs.kernels.page_rank import dealt_by_load

        loads = graph.out_degrees + graph.in_degrees + 1
        return np.asarray(dealt_by_load(loads, np.argsort(-loads, kind="stable"), dpus))
    raise UnknownName("partition", str(partition), get_args(PartitionRule))


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A bijection of 64-bit words that leaves no pattern: the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014)."""
    import numpy as np

    with np.errstate(over="ignore"):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    mixed: npt.NDArray[np.uint64] = numbers ^ (numbers >> np.uint64(31))
    return mixed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hop:
    """Slots on their way: message i takes values[i] of them from DPU sources[i] to another, destinations[i].

    Who gets slots of the same vertex adds them up: those of new slot s are arrival[first[s]] to arrival[first[s + 1] - 1], in the
    order of their senders. `held` counts the slots that each DPU adds up, its own too, `made` those that it then has.
    """

    arrival: Whole
    first: Whole
    sources: Whole
    destinations: Whole
    values: Whole
    held: Whole
    made: Whole


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """A graph cut into parts, and every message between them.

    Vertices are renumbered so that DPU d owns first[d] to first[d + 1]. A *slot* is one (DPU, vertex that its edges reach), in that
    order: edges slot_first[s] to slot_first[s + 1] go into it. Slots go straight to the owner of their vertex; or in two hops:
    first to the member of their own group that has the owner's place in its group, which adds up what the whole group has for a
    vertex; then between members of the same place, as in an all-to-all over rows and columns.
    """

    dpus: int
    order: Whole
    """order[new number] = old number."""
    first: Whole
    degrees: Whole
    edge_source: Whole
    slot_first: Whole
    made: Whole
    """Slots that each DPU's edges go into."""
    hops: tuple[Hop, ...]

    @classmethod
    def of(cls, graph: Graph, owner: Whole, dpus: int, group: int = 1) -> Layout:
        """`group` DPUs combine what they send to others; 1: each for itself."""
        import numpy as np

        require_positive("partition", group=group)
        if dpus % group:
            raise BadInput(f"{graph.name}: groups of {group} do not divide {dpus} DPUs")
        n = graph.vertices
        order = np.argsort(owner, kind="stable")
        number = np.empty(n, np.int64)
        number[order] = np.arange(n)
        part = owner[order]
        source, target = number[graph.sources], number[graph.targets]
        key = part[source] * n + target  # below 2^63: dpus * vertices
        by_slot = np.lexsort((source, key))
        slot_first, slots = _runs(key[by_slot])
        holder, vertex = slots // n, slots % n
        made, hops = _counts(holder, dpus), list[Hop]()
        if 1 < group < dpus:
            relay = holder // group * group + part[vertex] % group
            arrival = np.lexsort((holder, vertex, relay))
            first, kept = _runs((relay * n + vertex)[arrival])
            hops.append(_hop(holder, relay, arrival, first, kept // n, dpus))
            holder, vertex = kept // n, kept % n
        arrival = np.lexsort((holder, vertex))
        hops.append(_hop(holder, part[vertex], arrival, _first(vertex[arrival], n), part, dpus))
        return cls(
            dpus=dpus,
            order=order,
            first=_first(part, dpus),
            degrees=graph.out_degrees[order],
            edge_source=source[by_slot],
            slot_first=slot_first,
            made=made,
            hops=tuple(hops),
        )

    @property
    def parts(self) -> Whole:
        """Vertices of each DPU."""
        import numpy as np

        return np.diff(self.first)

    @property
    def edges(self) -> Whole:
        """Of each DPU: those that leave its vertices."""
        import numpy as np

        own = np.add.reduceat(np.r_[self.degrees, 0], self.first[:-1])
        own[self.parts == 0] = 0  # reduceat gives the next element where a part is empty
        return own.astype(np.int64)


def _hop(holder: Whole, receiver: Whole, arrival: Whole, first: Whole, keeper: Whole, dpus: int) -> Hop:
    """Slots of DPUs `holder` go to `receiver`; `keeper` has what is made of them."""
    import numpy as np

    pair, values = np.unique(holder * dpus + receiver, return_counts=True)
    away = pair // dpus != pair % dpus
    return Hop(
        arrival=arrival,
        first=first,
        sources=pair[away] // dpus,
        destinations=pair[away] % dpus,
        values=values[away].astype(np.int64),
        held=_counts(receiver, dpus),
        made=_counts(keeper, dpus),
    )


def _counts(numbers: Whole, count: int) -> Whole:
    import numpy as np

    return np.bincount(numbers, minlength=count).astype(np.int64)


def _runs(keys: Whole) -> tuple[Whole, Whole]:
    """Where each run of equal keys begins in a sorted row, with the end; and the key of each."""
    import numpy as np

    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]]) if keys.size else np.empty(0, np.int64)
    return np.r_[starts, keys.size], keys[starts]


def _first(groups: Whole, count: int) -> Whole:
    """Where each group begins in a sorted row of group numbers, and the end."""
    import numpy as np

    return np.searchsorted(groups, np.arange(count + 1)).astype(np.int64)
