"""Training algorithms on nodes: local steps of every device or cluster, and the exchange that ends a round.

| algorithm         | a local step                               | the last step of a round                                        |
|-------------------|--------------------------------------------|-----------------------------------------------------------------|
| GradientAveraging | nothing is exchanged                       | gradients of all, as they come: a synchronous step              |
| ModelAveraging    | nothing is exchanged                       | parameters of all, each as soon as it is updated                |
| ADMM              | nothing is exchanged                       | likewise; a model and its dual go round as their sum            |
| Direct            | gradients, inside each cluster of devices  | likewise; the DSC's tokens are a PIM machine's, here is none    |

There is no server in a node: the mean of all is an all-reduce over its rings. A round is one plan, its steps one after another
(`systems.node.chain`); nothing of a step waits for the end of the one before but all of it does. A local step of GradientAveraging
adds to a sum of gradients where others update: the cost of the update stands for that. The batch stays that of all devices
together, and what an optimizer's step learns from it is the algorithm's: compare `samples_per_s`, and see docs/direct.md for
accuracy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from trainyard.caches import per_step
from trainyard.errors import NotModelled
from trainyard.ir import Collective, Step
from trainyard.ir.plan import Plan
from trainyard.mapping.algorithms import Algorithm, Direct
from trainyard.mapping.parallel import transform as parallel
from trainyard.mapping.parallel.averaging import average_models
from trainyard.mapping.parallel.data import Reduce, reduce_gradients
from trainyard.systems.node.chain import chained
from trainyard.units import PICOSECONDS_PER_SECOND, show


class Exchanging(Protocol):
    """What a system says of its exchanges: a Node, or Replicas."""

    @property
    def algorithm(self) -> Algorithm: ...
    @property
    def devices(self) -> int: ...
    @property
    def devices_per_cluster(self) -> int: ...
    @property
    def parallel(self) -> str: ...
    @property
    def bucket_bytes(self) -> int: ...
    @property
    def reduce(self) -> Reduce: ...


def require_modelled(owner: str, algorithm: Algorithm, way: str) -> None:
    """Refuses what a node's links have no exchange for."""
    if algorithm.between in ("centre", "neighbours"):
        raise NotModelled(
            f"{owner}: {type(algorithm).__name__} exchanges with {algorithm.between} and is not modelled on links between devices: "
            "take model-averaging, gradient-averaging, admm or locality-aware, or a PIM machine (direct, pim-opt)"
        )
    if way != "data":
        raise NotModelled(f"{owner}: {type(algorithm).__name__} needs a model on every device: write parallel='data', not {way!r}")
    if isinstance(algorithm, Direct):
        for name, plain in (("update", "averaging"), ("compression_bits", None), ("adaptive", False)):
            if getattr(algorithm, name) != plain:
                raise NotModelled(
                    f"{owner}: locality-aware({name}={getattr(algorithm, name)}) is modelled on PIM machines only (direct)"
                )


def plan(node: Exchanging, step: Step, planned: Callable[[Step], Plan]) -> Plan:
    """One round; `planned` is the plan of one device's step with the exchanges that are among its ops."""
    algorithm, cluster = node.algorithm, node.devices_per_cluster
    require_modelled(type(node).__name__, algorithm, node.parallel)
    if any(isinstance(op.body, Collective) for op in step.ops):
        raise NotModelled(
            f"step {step.name!r} was captured with exchanges of its own: they say what goes round, algorithm={algorithm!r} cannot"
        )
    mine = _local(step, node.devices, cluster, node.bucket_bytes, node.reduce)
    if node.devices == cluster or not any(op.phase.backward for op in step.ops):  # nobody exchanges what a forward pass makes
        built = planned(mine)
        built.booking.samples = step.batch
        return built
    if algorithm.exchanges == "gradients":
        last = _synchronous(step, node.devices, node.bucket_bytes, node.reduce)
    else:
        last = _averaged(mine, node.devices, node.bucket_bytes)
    local = planned(mine)
    steps = local_steps(algorithm, local)
    built = chained([(local, steps - 1), (planned(last), 1)])
    built.booking.steps, built.booking.samples = steps, step.batch * steps
    built.booking.notes.append(_told(node, steps, cluster))
    return built


def local_steps(algorithm: Algorithm, local: Plan) -> int:
    """From one exchange to the next; with tau in seconds the step that finds the model older than that is the last."""
    if not (isinstance(algorithm, Direct) and algorithm.unit == "s"):
        return algorithm.local_steps
    from trainyard import engine

    return round(algorithm.tau * PICOSECONDS_PER_SECOND) // engine.run(local).end_ps + 1


def _told(node: Exchanging, steps: int, cluster: int) -> str:
    who = "devices" if cluster == 1 else f"clusters of {cluster} devices"
    return (
        f"{node.devices // cluster} {who} exchange {node.algorithm.exchanges} after {show(steps, '')} steps; "
        "accuracy is the algorithm's: compare samples/s"
    )


@per_step
def _local(step: Step, devices: int, cluster: int, bucket_bytes: int, reduce: Reduce) -> Step:
    """One device's samples, with the sum of its cluster's gradients in every step."""
    mine = step.rebatch(parallel.share(step, devices))
    if cluster == 1:
        return mine
    ops, tensors = reduce_gradients(mine, cluster, bucket_bytes=bucket_bytes, reduce=reduce)
    return replace(mine, ops=tuple(ops), tensors=tuple(tensors))


@per_step
def _synchronous(step: Step, devices: int, bucket_bytes: int, reduce: Reduce) -> Step:
    return parallel.data(step, devices, bucket_bytes=bucket_bytes, reduce=reduce)


@per_step
def _averaged(mine: Step, devices: int, bucket_bytes: int) -> Step:
    return average_models(mine, devices, bucket_bytes=bucket_bytes)
