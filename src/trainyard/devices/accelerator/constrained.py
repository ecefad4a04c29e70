"""Whether the constraints of a mapping can hold on a device: every pattern names a product, every fixed tile finds room."""

from __future__ import annotations

from trainyard.devices.accelerator.ordered import pair_of
from trainyard.errors import BadInput
from trainyard.ir import Collective, Step, Work
from trainyard.mapping.constraints import require_room
from trainyard.mapping.demand import Demand, PairDemand, Policy, ProductDemand, TogetherDemand
from trainyard.mapping.gradient_order.tile_streams import FUSED_ORDERS
from trainyard.mapping.profile import demand, works
from trainyard.mapping.tiling import LACKS, NO_TILE, ORDERS, TENSORS, Problem, Size, Supply, Tensor, Tiling, needed_bytes


def require_mapping(step: Step, policy: Policy, supply: Supply, *, reuse: str) -> None:
    """Refuses constraints that no search could meet; the error names the layer and what would hold.

    Where tiles stay over several steps (`reuse`), the loops of a product are m, n, k. Layers are looked at one by one, before any
    of them go on into each other (`across`).
    """
    policy.mapping.check(step)
    if not policy.paired:
        for rule in policy.mapping.rules:
            named = [order for order in rule.orders or () if order not in ORDERS]
            if named:
                raise BadInput(
                    f"mapping of {rule.pattern!r}: {' or '.join(named)} is an order of dX with dW, this machine does them one "
                    "after the other: give it an order such as order='cost', or a loop order such as mnk here"
                )
    checked: set[Demand] = set()
    for work in works(step, policy):
        if isinstance(step.ops[work.ops[0]].body, Collective) or not any(step.ops[index].is_product for index in work.ops):
            continue
        asked = demand(step, work, policy)
        if asked not in checked:
            checked.add(asked)
            _require(_name(step, work), asked, supply, reuse)


def _name(step: Step, work: Work) -> str:
    op = step.ops[work.ops[0]]
    return f"{op.layer or op.name} {op.phase.value}"


def _require(name: str, asked: Demand, supply: Supply, reuse: str) -> None:
    match asked:
        case ProductDemand():
            _require_product(name, asked, supply, reuse)
        case TogetherDemand():
            for product in asked.products:
                _require_product(name, product, supply, reuse)
        case PairDemand():
            _require_pair(name, asked, supply)


def _require_product(name: str, asked: ProductDemand, supply: Supply, reuse: str) -> None:
    problem = asked.problem
    if reuse != "step" and problem.orders and "mnk" not in problem.orders:
        raise BadInput(
            f"mapping: order {' or '.join(problem.orders)} of {name}: where tiles stay (reuse={reuse!r}) the loops of a "
            "product are mnk: leave the order out, or write reuse='step'"
        )
    if reuse != "step" and problem.keep:
        raise BadInput(
            f"mapping: keep {' and '.join(problem.keep)} of {name}: reuse={reuse!r} keeps the tiles that were used last, or are "
            "used next, whatever they are of: leave it out, or write reuse='step'"
        )
    extents = problem.op.M, problem.op.N, problem.op.K
    if problem.tile != NO_TILE or problem.keep:
        what = f"{name} with {' and '.join(problem.keep)} kept" if problem.keep else name
        require_room(what, problem.tile, extents, lambda tile: _tile_bytes(problem, tile), supply.resident_bytes)


def _require_pair(name: str, asked: PairDemand, supply: Supply) -> None:
    """dX and dW have one tile, in the m, n, k of the forward product."""
    pair, tile = pair_of(asked.dx, asked.dw), pair_tile(name, asked)
    if tile != NO_TILE:
        require_room(name, tile, (pair.op.M, pair.op.N, pair.op.K), pair.needed, supply.resident_bytes)


def pair_tile(name: str, asked: PairDemand) -> Size:
    """The fixed sizes of dX and dW done together; both must have the same."""
    dx, dw, layer = asked.dx.problem, asked.dw.problem, name.partition(" ")[0]
    if (dx.tile, dx.orders, asked.dx.gradient_orders) != (dw.tile, dw.orders, asked.dw.gradient_orders):
        raise BadInput(f"mapping: dX and dW of {layer} are done together: give both the same tile and order, without a phase")
    if dx.keep or dw.keep:
        raise BadInput(
            f"mapping: keep of {layer}: dX and dW are done together, their order decides what stays: name the phase forward"
        )
    if dx.orders:
        raise BadInput(
            f"mapping: order {' or '.join(dx.orders)} of {layer} is of one product, dX and dW are done together: "
            f"give {', '.join(FUSED_ORDERS)} or sequential, or name the phase forward"
        )
    return dx.tile


def _tile_bytes(problem: Problem, tile: Size) -> float:
    """Scratchpad bytes of one tile of A, of B and of sums, and of what is kept, in the order that takes least."""
    return min(
        needed_bytes(problem, Tiling(m=tile[0], n=tile[1], k=tile[2], order=order, keep=_kept(problem, order)))
        for order in problem.orders or ORDERS
    )


def _kept(problem: Problem, order: str) -> tuple[Tensor, ...]:
    """What has to be kept in an order: the tensor without the innermost loop stays by itself, the one without the outer loop only
    with that without the middle one."""
    lacking = [next(tensor for tensor in TENSORS if LACKS[tensor] == axis) for axis in order]
    if lacking[0] in problem.keep:
        return lacking[0], lacking[1]
    return (lacking[1],) if lacking[1] in problem.keep else ()
