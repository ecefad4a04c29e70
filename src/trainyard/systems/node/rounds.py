"""Training algorithms on nodes: local steps of every device or cluster, and the exchange that ends a round.

| algorithm         | a local step                               | the last step of a round                                        |
|-------------------|--------------------------------------------|-----------------------------------------------------------------|
| GradientAveraging | no exchange                                | all-reduce of gradients: a synchronous step                     |
| ModelAveraging    | no exchange                                | all-reduce of parameters, each as soon as it is updated         |
| ADMM              | no exchange                                | the same, of the sum of a model and its dual                    |
| Direct            | gradients, inside each cluster of devices  | as ModelAveraging; there are no tokens outside PIM machines     |

A node has no server: the mean of all devices is an all-reduce over its rings. A round is one plan, its steps one after another
(`systems.node.chain`): every task of a step waits for the end of the step before. A local step of GradientAveraging accumulates
gradients where the others update; it is charged the cost of the update. The batch is that of all devices together. Algorithms
converge differently: compare `samples_per_s`, and see docs/direct.md for accuracy.
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
    """What a plan of rounds needs from a system: a Node, or Replicas."""

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


def require_modelled(owner: str, algorithm: Algorithm, parallel: str) -> None:
    """Refuses algorithms whose exchanges are not modelled on links between devices."""
    if algorithm.between in ("centre", "neighbours"):
        raise NotModelled(
            f"{owner}: {type(algorithm).__name__} exchanges with {algorithm.between} and is not modelled on links between devices: "
            "take model-averaging, gradient-averaging, admm or locality-aware, or a PIM machine (direct, pim-opt)"
        )
    if parallel != "data":
        raise NotModelled(
            f"{owner}: {type(algorithm).__name__} needs a model on every device: write parallel='data', not {parallel!r}"
        )
    if isinstance(algorithm, Direct):
        for name, default in (("update", "averaging"), ("compression_bits", None), ("adaptive", False)):
            if getattr(algorithm, name) != default:
                raise NotModelled(
                    f"{owner}: locality-aware({name}={getattr(algorithm, name)}) is modelled on PIM machines only (direct)"
                )


def plan(node: Exchanging, step: Step, planned: Callable[[Step], Plan]) -> Plan:
    """The plan of one round; `planned` plans one device's step with the exchanges among its ops."""
    algorithm, cluster = node.algorithm, node.devices_per_cluster
    require_modelled(type(node).__name__, algorithm, node.parallel)
    if any(isinstance(op.body, Collective) for op in step.ops):
        raise NotModelled(
            f"step {step.name!r} was captured with exchanges of its own: they say what goes round, algorithm={algorithm!r} cannot"
        )
    local_step = _local_step(step, node.devices, cluster, node.bucket_bytes, node.reduce)
    if node.devices == cluster or not any(op.phase.backward for op in step.ops):  # a forward pass alone has nothing to exchange
        built = planned(local_step)
        built.booking.samples = step.batch
        return built
    if algorithm.exchanges == "gradients":
        last = synchronous_step(step, node.devices, node.bucket_bytes, node.reduce)
    else:
        last = _averaged(local_step, node.devices, node.bucket_bytes)
    local = planned(local_step)
    steps = local_steps(algorithm, local)
    built = chained([(local, steps - 1), (planned(last), 1)])
    built.booking.steps, built.booking.samples = steps, step.batch * steps
    built.booking.notes.append(_note(node, steps, cluster))
    return built


def local_steps(algorithm: Algorithm, local: Plan) -> int:
    """Local steps from one exchange to the next; with tau in seconds, the first step after tau is the last."""
    if not (isinstance(algorithm, Direct) and algorithm.unit == "s"):
        return algorithm.local_steps
    from trainyard import engine

    return round(algorithm.tau * PICOSECONDS_PER_SECOND) // engine.run(local).end_ps + 1


def _note(node: Exchanging, steps: int, cluster: int) -> str:
    workers = "devices" if cluster == 1 else f"clusters of {cluster} devices"
    return (
        f"{node.devices // cluster} {workers} exchange {node.algorithm.exchanges} after {show(steps, '')} steps; "
        "accuracy is the algorithm's: compare samples/s"
    )


@per_step
def _local_step(step: Step, devices: int, cluster: int, bucket_bytes: int, reduce: Reduce) -> Step:
    """The step of one device's samples, with an all-reduce of gradients inside its cluster."""
    local_step = step.rebatch(parallel.share(step, devices))
    if cluster == 1:
        return local_step
    ops, tensors = reduce_gradients(local_step, cluster, bucket_bytes=bucket_bytes, reduce=reduce)
    return replace(local_step, ops=tuple(ops), tensors=tuple(tensors))


@per_step
def synchronous_step(step: Step, devices: int, bucket_bytes: int, reduce: Reduce) -> Step:
    return parallel.data(step, devices, bucket_bytes=bucket_bytes, reduce=reduce)


@per_step
def _averaged(local_step: Step, devices: int, bucket_bytes: int) -> Step:
    return average_models(local_step, devices, bucket_bytes=bucket_bytes)
