"""The nine networks on a machine: cycles of a step, and of each layer with weights its cycles and bytes.

Every Work of the step is costed by the machine itself (`Accelerator.cost`): `trainyard run MODEL --on MACHINE` gives the same time.
Results are cached: experiments share them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Any, NamedTuple

from trainyard.devices import Accelerator
from trainyard.errors import BadInput
from trainyard.ir import DTYPE_BYTES, MatMul, Phase, Step
from trainyard.mapping.gradient_order.bound import least_bytes
from trainyard.mapping.gradient_order.scratchpad import Pair, tile_cycles
from trainyard.papers.igo.baselines import Case, Tile
from trainyard.papers.igo.networks import ABBREVIATIONS, Layer, distinct, layers_of, samples
from trainyard.papers.igo.networks import step as network_step
from trainyard.papers.processes import workers

Key = tuple[str, int]
"""A layer by path and call."""
OPERANDS, GRADIENTS = ("X", "W", "dY"), ("dX", "dW")
FUSED = ("interleaved", "dx_major", "dw_major")


class LayerCost(NamedTuple):
    """Cycles of a layer's forward product and of its gradients, and the bytes of both.

    `compute` are the cycles of the array in the gradients, `moved` their bytes by tensor and direction.
    """

    forward: int
    backward: int
    compute: int
    forward_bytes: int
    moved: Mapping[tuple[str, str], int]

    @property
    def cycles(self) -> int:
        return self.forward + self.backward

    @property
    def backward_bytes(self) -> int:
        return sum(self.moved.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """A step on a machine; products without weights (attention) count only in `cycles`."""

    cycles: int
    clock_hz: float
    layers: Mapping[Key, LayerCost]

    @property
    def seconds(self) -> float:
        return self.cycles / self.clock_hz

    @property
    def moved(self) -> Counter[tuple[str, str]]:
        """Bytes of all layers' gradients."""
        total: Counter[tuple[str, str]] = Counter()
        for layer in self.layers.values():
            total.update(layer.moved)
        return total

    @property
    def backward_share(self) -> float:
        return sum(layer.backward for layer in self.layers.values()) / self.cycles


def cost_of(step: Step, machine: Accelerator, layers: Iterable[Layer]) -> StepCost:
    """The cost of one step; `layers` are those with weights."""
    wanted = {(layer.path, layer.call) for layer in layers}
    cycles = 0
    forward: dict[Key, tuple[int, int]] = {}
    backward: Counter[Key] = Counter()
    compute: Counter[Key] = Counter()
    moved: dict[Key, Counter[tuple[str, str]]] = {key: Counter() for key in wanted}
    for work in machine.works(step):
        head = step.ops[work.ops[0]]
        cost = machine.cost(step, work)
        cycles += cost.cycles
        key = (head.layer, head.call)
        if not head.is_product or key not in wanted:
            continue
        if head.phase is Phase.FORWARD:
            forward[key] = (cost.cycles, sum(cost.bytes.values()))
        else:
            backward[key] += cost.cycles
            compute[key] += cost.compute_cycles
            moved[key].update(cost.bytes)
    costs = {key: LayerCost(forward[key][0], backward[key], compute[key], forward[key][1], moved[key]) for key in forward}
    return StepCost(cycles=cycles, clock_hz=machine.clock_hz, layers=costs)


class Job(NamedTuple):
    """The arguments of one run."""

    case: Case
    network: str
    tile: Tile
    order: str
    partition: str
    across: str


def job(
    case: Case, network: str, tile: Tile = "tall", *, order: str = "sequential", partition: str = "none", across: str = "none"
) -> Job:
    return Job(case, network, tile, order, partition, across)


def step_cost(case: Case, network: str, tile: Tile = "tall", **order: Any) -> StepCost:
    """One of the nine networks, run once; `order` as `Case.machine` takes it."""
    request = job(case, network, tile, **order)
    return _cache().get(request) or _cache().setdefault(request, run(request))


def run(request: Job) -> StepCost:
    case, network = request.case, request.network
    training_step = network_step(network, case.npu, batch(case), case.recommender_batch)
    machine = case.machine(request.tile, order=request.order, partition=request.partition, across=request.across)
    return cost_of(training_step, machine, layers_of(network, case.npu, batch(case), case.recommender_batch))


@cache
def _cache() -> dict[Job, StepCost]:
    return {}


def prefetch(case: Case, tile: Tile, *orders: Mapping[str, Any]) -> None:
    """Runs all nine networks on several cores at once and caches them for `step_cost`, which otherwise runs one by one."""
    requests = [job(case, network, tile, **order) for network in ABBREVIATIONS for order in orders]
    missing = [request for request in dict.fromkeys(requests) if request not in _cache()]
    pool = workers() if len(missing) >= len(ABBREVIATIONS) else None
    if pool is None:
        return
    try:
        for request, cost in zip(missing, pool.map(run, missing), strict=True):
            _cache()[request] = cost
    except BrokenProcessPool:  # a process was killed: each run is then made on demand
        return


def batch(case: Case) -> int:
    """Samples of all cores, as the paper counts them."""
    return (case.batch or samples("res", case.npu)) * case.cores


def layers(case: Case, network: str) -> tuple[Layer, ...]:
    """Distinct layers of a network."""
    return distinct(layers_of(network, case.npu, batch(case), case.recommender_batch))


Networks = Mapping[str, float]
"""A value for each network."""


def by_network(function: Callable[[str], float], networks: Iterable[str] = ABBREVIATIONS) -> Networks:
    return {network: function(network) for network in networks}


def mean(values: Networks) -> float:
    """The arithmetic mean: the paper does not say which it uses."""
    return fmean(values.values())


def reduction(before: float, after: float) -> float:
    """Per cent.

    >>> reduction(200, 150)
    25.0
    """
    return 100 * (1 - after / before)


def reductions(case: Case, tile: Tile = "tall", **order: Any) -> Networks:
    """Per cent by which a step gets shorter, against the sequential order with the same kind of tile."""
    prefetch(case, tile, {}, order)
    return by_network(
        lambda network: reduction(step_cost(case, network, tile).cycles, step_cost(case, network, tile, **order).cycles)
    )


def ideal_cycles(case: Case, network: str, tile: Tile = "tall") -> int:
    """The best of the three fused orders for each layer (Sec. 4.3)."""
    return _least([step_cost(case, network, tile, order=order) for order in FUSED])


def _least(runs: list[StepCost]) -> int:
    """Cycles with the fastest run of each layer; the rest of the step is the same in all."""
    first = runs[0]
    rest = first.cycles - sum(layer.backward for layer in first.layers.values())
    return rest + sum(min(run.layers[key].backward for run in runs) for key in first.layers)


def limits(case: Case) -> Networks:
    """The largest reduction that any order can reach with the tall tile on one core: the array's time and the least bytes.

    Each layer's gradients take at least their time in the array and the transfer of the least bytes
    (`mapping.gradient_order.bound`); a partition only adds edges to the tiles. The forward pass and layers without dX stay as they
    are.
    """
    return by_network(lambda network: reduction(step_cost(case, network).cycles, _least_cycles(case, network)))


def _least_cycles(case: Case, network: str) -> float:
    machine, sequential = case.machine(), step_cost(case, network)
    if case.cores > 1 or machine.im2col != "materialised":
        raise BadInput(f"limits of {case}: known for one core and matrices that are written out")
    saved = 0.0
    for layer in layers(case, network):
        if layer.paired:
            cost = sequential.layers[layer.path, layer.call]
            pair = Pair.dense(layer.op, DTYPE_BYTES[str(machine.precision)])
            least = least_bytes(pair, machine.supply.resident_bytes).total / machine.supply.bytes_per_cycle
            saved += layer.repeats * (cost.backward - max(cost.compute, least))
    return sequential.cycles - saved


def _whole_gradients(op: MatMul, machine: Accelerator) -> int:
    """Cycles of the array for dX and dW of one forward product, each as a whole; dW also transposed where that is faster."""
    weights = (MatMul(op.K, op.N, op.M), MatMul(op.N, op.K, op.M))
    return tile_cycles(machine.array, MatMul(op.M, op.K, op.N)) + min(tile_cycles(machine.array, one) for one in weights)


def least_cycles(case: Case, network: str) -> float:
    """Cycles of a step that no order, tile or partition of a layer's gradients gets below; the rest is the searched baseline's.

    The array needs at least the time of whole products, which tiles only add folds and fills to; the DRAM the transfer of the least
    bytes (`mapping.gradient_order.bound`). Gradients of two layers in one go are outside: what is between them need not move.
    """
    machine, sequential = case.machine("searched"), step_cost(case, network, "searched")
    if case.cores > 1 or machine.im2col != "materialised":
        raise BadInput(f"limits of {case}: known for one core and matrices that are written out")
    saved = 0.0
    for layer in layers(case, network):
        if layer.paired:
            pair = Pair.dense(layer.op, DTYPE_BYTES[str(machine.precision)])
            moving = least_bytes(pair, machine.supply.resident_bytes).total / machine.supply.bytes_per_cycle
            busy = layer.op.count * _whole_gradients(layer.op, machine)
            saved += layer.repeats * (sequential.layers[layer.path, layer.call].backward - max(busy, moving))
    return sequential.cycles - saved


def listed(values: Networks, digits: int = 1) -> str:
    return ", ".join(f"{network} {value:.{digits}f}" for network, value in values.items())


def faster(case: Case) -> Networks:
    """How many times shorter a step is with searched tiles, in the sequential order."""
    return by_network(lambda network: step_cost(case, network).cycles / step_cost(case, network, "searched").cycles)
