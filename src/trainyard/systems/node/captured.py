"""Steps captured on a process group, run with their own exchanges over the wires of a system.

Each device executes the step of the captured rank (SPMD), rank r on device r; only ops that read an exchange wait for it, and
exchanges run one after the other in the order in which the script issues them. A group of some ranks uses the wires between its
devices, at the same time as the other groups of its kind (`hardware.collectives.groups`).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from trainyard.errors import BadInput, NotModelled
from trainyard.hardware.collectives.fabric import NOTHING
from trainyard.hardware.collectives.groups import group_timing, siblings
from trainyard.hardware.collectives.hierarchical import hierarchical
from trainyard.hardware.collectives.on_graph import Timing
from trainyard.hardware.collectives.ring import Exchange, exchange
from trainyard.ir import Collective, Step
from trainyard.mapping.parallel.captured import ahead
from trainyard.systems.node.systems import Node
from trainyard.systems.scale_out.cluster import Cluster
from trainyard.systems.scale_out.plane import Plane

if TYPE_CHECKING:
    from trainyard.ir.booking import Booking
    from trainyard.systems.scale_out.replicas import Replicas

SPMD = "each device does what rank 0 of the {} captured ranks does (SPMD), with the script's own exchanges"
ALREADY = "step {!r} was captured with the exchanges of its own parallelism"


def is_captured(step: Step) -> bool:
    """Whether the step is already that of one rank, with its exchanges among its ops."""
    return step.world_size > 1


def one_rank(step: Step, system: Node | Replicas) -> Step:
    """The captured step, checked against the system, as the step of each of its devices."""
    if step.world_size != system.devices:
        raise BadInput(
            f"step {step.name!r} was captured on {step.world_size} ranks, {type(system).__name__} has {system.devices} devices: "
            f"write devices={step.world_size}, as in mcdla-b(devices={step.world_size}), or capture it on {system.devices} ranks"
        )
    policies = (
        ("parallel", system.parallel, "data"),
        ("zero", system.zero if isinstance(system, Node) else 0, 0),
        ("algorithm", type(system.algorithm).__name__, "Synchronous"),
    )
    for name, value, default in policies:
        if value != default:
            raise BadInput(f"{ALREADY.format(step.name)}: leave {name}={value} out, or capture the model without them")
    return ahead(step)


def enter_samples(booking: Booking, step: Step) -> None:
    """Books the samples of all ranks, and a note that the step was captured on a process group."""
    booking.samples = step.batch * (step.replicas if step.world > 1 else step.world_size)
    booking.notes.append(SPMD.format(step.world_size))


def group_collective(node: Node, body: Collective, size_bytes: int) -> Timing:
    """The timing of an exchange of the step, in all groups of its kind at the same time."""
    if body.kind in ("send", "receive"):
        raise NotModelled(
            f"{body.kind} between two ranks is not modelled: a pipeline is not one program for all ranks; capture the model "
            "without it and write parallel='pipeline'"
        )
    members = body.members
    if len(members) == 1:
        return NOTHING
    if len(members) == node.devices and body.kind != "all_to_all":
        return node.collective(body.kind, size_bytes)
    key = ("members", body.kind, size_bytes, members)
    return node._cache.get(key, lambda: _group_collective(node, body.kind, size_bytes, members))


def _group_collective(node: Node, kind: str, size_bytes: int, members: tuple[int, ...]) -> Timing:
    if isinstance(node, Plane):
        return node.switched_collectives.between(kind, size_bytes, siblings(members, node.devices))
    if isinstance(node, Cluster) and node.nodes > 1:
        return _across_nodes(node, kind, size_bytes, members)
    inside = node.inside if isinstance(node, Cluster) else node
    return group_timing(
        kind,
        size_bytes,
        inside.topology,
        inside.rings,
        members,
        algorithm=inside.collectives,
        message_bytes=inside.message_bytes,
        split=inside.split,
        directions=inside.directions,
    )


def _across_nodes(cluster: Cluster, kind: str, size_bytes: int, members: tuple[int, ...]) -> Timing:
    """A group of the same devices of several nodes: inside each node, across, inside again; other groups share the cards."""
    node_size = cluster.devices_per_node
    nodes, local = sorted({rank // node_size for rank in members}), sorted({rank % node_size for rank in members})
    if set(members) != {node * node_size + rank for node in nodes for rank in local}:
        raise NotModelled(
            f"a group of ranks {','.join(map(str, members))} is not the same devices of each of its nodes "
            f"(of {node_size} devices): choose a mesh whose inner axis divides a node"
        )
    siblings(members, cluster.devices)
    groups_per_node = node_size // len(local)

    def inside(part: str, size: int) -> Timing:
        return group_collective(cluster.inside, Collective(part, size, len(local), ",".join(map(str, local))), size)  # type: ignore[arg-type]

    def across(part: str, size: int) -> Timing:
        return cluster.between(part, size, len(nodes), groups_per_node) if len(nodes) > 1 else NOTHING

    return cluster.combined(hierarchical(kind, size_bytes, devices=len(local), inside=inside, across=across), len(nodes))


def ring_exchange(body: Collective, size_bytes: int, devices: int) -> tuple[Exchange, int]:
    """On one ring of links: the load of each link by an exchange in all groups, and the links its rounds traverse in sequence.

    The devices of a group follow one another along the ring, so that each group uses every link once.

    >>> ring_exchange(Collective("all_gather", 8, ranks=4, group="0,1,2,3"), 8, devices=8)  # 3 rounds: of the steps 1, 1, 1 and 5
    (Exchange(rounds=3, chunk=4, links=8, idle=0), 7)
    """
    members = body.members
    sent = exchange(body.kind, size_bytes, len(members))
    groups = len(siblings(members, devices))
    steps = [(there - here) % devices or devices for here, there in zip(members, (*members[1:], members[0]), strict=True)]
    ends = list(accumulate(steps * (2 + sent.rounds // len(steps)), initial=0))
    hops = max(ends[start + sent.rounds] - ends[start] for start in range(len(steps)))
    links = devices if sent.links == len(members) else devices - steps[-1]
    return replace(sent, chunk=groups * sent.chunk, links=links), hops
