"""Collectives on a node given as a graph: how long they take, and what every wire carries.

    timing("all_reduce", 8_000_000, topology, rings(topology))

By ring (P. Patarasuk, X. Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations. JPDC 2009) the data is divided
among all directed rings, which work side by side; `ring_timing` has the law of one ring. Where switches join the devices there are
also "halving_doubling", "pairwise" (`switched`) and "tree" (`double_tree`); "auto" is the fastest of all that the graph allows. The
same with real data is `collective_execution.execute`.

`size_bytes` is the whole tensor: the result of an all-gather, what goes into a reduce-scatter, what each device sends in an
all-to-all. Each of n devices owns one part in n of it, padded to whole elements; every ring takes a share of each part (`split`):
"equal" shares, so that the longest ring ends last, as in MC-DLA; or "balanced", so that all end as nearly together as whole
elements allow, which is never slower. Adding two messages costs no time here; memory-nodes and switches forward at the speed of
their wires.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from trainyard.checks import require_flag, require_positive
from trainyard.errors import BadInput, NotModelled, UnknownName
from trainyard.hardware.collectives import double_tree, switched
from trainyard.hardware.collectives.fabric import NOTHING, OWNER, Fabric, Timing, fabric_of
from trainyard.hardware.collectives.ring_timing import LAPS, STREAMS, arc_rounds

if TYPE_CHECKING:
    from trainyard.hardware.topology.graph import Topology
    from trainyard.hardware.topology.rings import Ring

Split = Literal["equal", "balanced"]
KINDS = (*LAPS, *STREAMS, "all_to_all")
ALGORITHMS = ("ring", *switched.ALGORITHMS, "auto")
__all__ = ["ALGORITHMS", "KINDS", "Split", "Timing", "timing"]


def timing(
    kind: str,
    size_bytes: int,
    topology: Topology,
    rings: Sequence[Ring] = (),
    *,
    algorithm: str = "ring",
    message_bytes: int = 4096,  # 4 KB messages in Fig. 9, MC-DLA
    split: Split = "equal",
    pipelined: bool = False,
    element_bytes: int = 1,
    root: int = 0,
) -> Timing:
    """The timing of a collective between all devices of a topology. Parts are padded to whole elements of `element_bytes`.

    `root` is the number of a device, for broadcast and reduce; `split` and `pipelined` apply to rings alone. Pass the tuple that
    `rings` returned: fabrics are cached by its identity.
    """
    fabric = fabric_of(topology, rings)
    return _timing(fabric, kind, size_bytes, algorithm, message_bytes, split, pipelined, element_bytes, root)


@lru_cache(maxsize=16384)
def _timing(
    fabric: Fabric,
    kind: str,
    size_bytes: int,
    algorithm: str,
    message_bytes: int,
    split: Split,
    pipelined: bool,
    element_bytes: int,
    root: int,
) -> Timing:
    check(fabric, kind, algorithm, split, root, message_bytes=message_bytes, element_bytes=element_bytes)
    require_flag(OWNER, pipelined=pipelined)
    if isinstance(size_bytes, bool) or not isinstance(size_bytes, int) or size_bytes < 0:
        raise BadInput(f"{OWNER}: size_bytes must be a whole number of at least 0, got {size_bytes!r}")
    if not size_bytes or len(fabric.devices) == 1:
        return NOTHING
    part = part_bytes(size_bytes, len(fabric.devices), element_bytes)
    if algorithm != "auto":
        return by_algorithm(algorithm, fabric, kind, part, message_bytes, split, pipelined, element_bytes, root)
    return fastest(fabric, kind, part, message_bytes, split, pipelined, element_bytes, root)[1]


def check(fabric: Fabric, kind: str, algorithm: str, split: str, root: int, **sizes: object) -> None:
    for what, value, choices in (
        ("collective", kind, KINDS),
        ("algorithm", algorithm, ALGORITHMS),
        ("split", split, ("equal", "balanced")),
    ):
        if value not in choices:
            raise UnknownName(what, str(value), choices)
    require_positive(OWNER, **sizes)
    if root not in range(len(fabric.devices)):
        raise BadInput(f"{OWNER}: root {root!r} is no device: there are {len(fabric.devices)}, numbered from 0")


def part_bytes(size_bytes: int, devices: int, element_bytes: int) -> int:
    """Bytes of one device's part of the tensor, padded.

    >>> part_bytes(100, devices=8, element_bytes=4)
    16
    """
    elements = -(-size_bytes // element_bytes)
    return -(-elements // devices) * element_bytes


def by_algorithm(
    algorithm: str, fabric: Fabric, kind: str, part: int, message: int, split: Split, pipelined: bool, element: int, root: int
) -> Timing:
    if algorithm == "ring":
        return by_ring(fabric, kind, part, message, split, pipelined, element, root)
    switched.require_modelled(kind, algorithm)
    if algorithm == "tree":
        return double_tree.by_tree(fabric, kind, part, message, element, root)
    return switched.in_steps(fabric, kind, algorithm, part, message, element, root)


def fastest(
    fabric: Fabric, kind: str, part: int, message: int, split: Split, pipelined: bool, element: int, root: int
) -> tuple[str, Timing]:
    """The fastest algorithm of those that the graph allows, and its timing."""
    timings, refused = [], []
    candidates = [name for name, kinds in switched.ALGORITHMS.items() if kind in kinds and fabric.switched]
    for algorithm in ("ring", *candidates):
        try:
            timings.append((algorithm, by_algorithm(algorithm, fabric, kind, part, message, split, pipelined, element, root)))
        except (BadInput, NotModelled) as error:
            refused.append(f"{algorithm}: {error}")
    if not timings:
        raise BadInput(
            f"{OWNER}: no algorithm does {kind} on {fabric.topology.label} ({'; '.join(refused)}; no switches between all devices)"
        )
    return min(timings, key=lambda pair: pair[1].time_s)


def by_ring(fabric: Fabric, kind: str, part: int, message: int, split: Split, pipelined: bool, element: int, root: int) -> Timing:
    """The timing with all rings at once, each with its share of every part."""
    chunks, time_s = ring_chunks(fabric, kind, part, message, split, pipelined, element, root)
    rounds = arc_rounds(kind, len(fabric.devices))
    flows, moving_s = [], 0.0
    for lane, chunk in zip(fabric.lanes, chunks, strict=True):
        if chunk:
            path, slowest = lane.path(kind, root)
            flows.append((path, rounds * chunk))
            moving_s = max(moving_s, rounds * chunk / slowest)
    return Timing.of(time_s, tuple(flows), moving_s)


def ring_chunks(
    fabric: Fabric, kind: str, part: int, message: int, split: Split, pipelined: bool, element: int, root: int
) -> tuple[list[int], float]:
    """Each ring's share of a part in bytes, and the time of the slowest ring."""
    if kind == "all_to_all":
        raise NotModelled("all_to_all on rings is not modelled: every device would talk to every other; give a node with switches")
    if not fabric.lanes:
        raise BadInput(f"{OWNER}: algorithm='ring' needs at least one ring through all devices of {fabric.topology.label}")
    times: dict[tuple[object, int], float] = {}

    def seconds(number: int, chunk: int) -> float:
        lane = fabric.lanes[number]
        key = (lane.form(kind, root), chunk)  # rings are often alike
        if key not in times:
            times[key] = lane.time_s(kind, chunk, message, pipelined=pipelined, root=root)
        return times[key]

    chunks = shares(part, len(fabric.lanes), seconds, split, element)
    return chunks, max(seconds(number, chunk) for number, chunk in enumerate(chunks))


def shares(part: int, rings: int, seconds: Callable[[int, int], float], split: Split, element: int) -> list[int]:
    """Bytes of every part for each ring; `seconds(ring, bytes)` is the ring's time, which never falls with more bytes.

    >>> shares(10, 2, lambda ring, chunk: (1 + 3 * ring) * chunk, "equal", 1)
    [5, 5]
    >>> shares(10, 2, lambda ring, chunk: (1 + 3 * ring) * chunk, "balanced", 1)
    [8, 2]
    """
    equal, remainder = divmod(part // element, rings)
    chunks = [(equal + (number < remainder)) * element for number in range(rings)]
    if split == "equal" or rings == 1:
        return chunks
    times = [seconds(number, chunk) for number, chunk in enumerate(chunks)]
    step = max(1, equal // 8)
    while step and max(times) > min(times):  # from the slowest ring to the one that would end first, while that helps
        moved = step * element
        last = max(range(rings), key=times.__getitem__)
        time, first = min((seconds(number, chunks[number] + moved), number) for number in range(rings) if number != last)
        if chunks[last] < moved or time >= times[last]:
            step //= 2
            continue
        chunks[last], chunks[first] = chunks[last] - moved, chunks[first] + moved
        times[last], times[first] = seconds(last, chunks[last]), time
    return chunks
