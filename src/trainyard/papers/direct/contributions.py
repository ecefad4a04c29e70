"""Fig. 3: the contributions of AGAUs, DSC and the locality-aware algorithm (LAA), each and in every combination.

The eight machines, all of 2048 of the same DPUs:

| parts      | machine                                                                                                             |
|------------|---------------------------------------------------------------------------------------------------------------------|
| none       | PIM-Opt: all DPUs' models to the host and back, after every step                                                    |
| AGAU       | a rank's models are summed by its AGAU; the sums, spread over a rank's DPUs, go through the host rank-parallel      |
| DSC        | no host: models go over the crossbars; DPUs sum them in software, each its part (reduce-scatter, all-gather)        |
| LAA        | PIM-Opt that exchanges every tau + 1 steps                                                                          |
| AGAU, DSC  | DIRECT with an exchange of all in every step                                                                        |
| AGAU, LAA  | AGAUs reduce a cluster's gradients in every step; clusters exchange through the host every tau + 1                  |
| DSC, LAA   | as DSC, every tau + 1 steps: without an AGAU a DPU's neighbours do not share its steps                              |
| all        | DIRECT                                                                                                              |

What is unnatural: the paper's crossbars belong to none of the three, here they come with either AGAU (inside a rank) or DSC; sums
without an AGAU are shared by all DPUs; the LAA without AGAUs has DPUs where Algorithm 1 has clusters. `transfers` is of the two
machines without AGAU and DSC.

Speedups multiply, so a part's share is of the logarithm. `shapley` is the mean gain of a part over all orders in which the three
can be added, `in_order` its gain when they are added in the paper's order, `removed` the slowdown of DIRECT without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from itertools import combinations, permutations
from statistics import fmean

from trainyard.hardware.dpu.host_link import Transfers
from trainyard.machines.presets.direct import DIRECT, PIM_OPT
from trainyard.mapping.algorithms import ModelAveraging
from trainyard.papers.direct.measuring import WORKLOADS, Job, Workload, on, prefetch, slashed, step_cost
from trainyard.papers.ledger import Experiments, Measured
from trainyard.systems.pim.machine import Pim
from trainyard.systems.pim.systems import HostMediated

PARTS = ("AGAU", "DSC", "LAA")
TRANSFERS: tuple[Transfers, ...] = ("ranks_in_turn", "rank_parallel", "serial")
Parts = frozenset[str]
Shares = Mapping[str, float]


def subsets() -> list[Parts]:
    return [frozenset(chosen) for size in range(4) for chosen in combinations(PARTS, size)]


def built(parts: Parts, workload: Workload, transfers: Transfers = TRANSFERS[0]) -> Pim:
    """The machine with these parts."""
    period = DIRECT.algorithm.local_steps if "LAA" in parts else 1
    if not parts & {"AGAU", "DSC"}:
        return on(PIM_OPT, workload, transfers=transfers, algorithm=ModelAveraging(period))
    return on(
        DIRECT,
        workload,
        agau=DIRECT.agau if "AGAU" in parts else None,
        dsc=DIRECT.dsc if "DSC" in parts else None,
        algorithm=DIRECT.algorithm if parts >= {"AGAU", "LAA"} else ModelAveraging(period),
    )


@cache
def times(workload: Workload, transfers: Transfers = TRANSFERS[0]) -> Mapping[Parts, float]:
    """Seconds of an optimizer step."""
    machines = {parts: built(parts, workload, transfers) for parts in subsets()}
    prefetch(Job(one, workload, one.dpus) for one in sorted(machines.values(), key=lambda one: isinstance(one, HostMediated)))
    return {parts: step_cost(one, workload, one.dpus).time_s for parts, one in machines.items()}


def gained(seconds: Mapping[Parts, float], before: Parts, part: str) -> float:
    """Logarithm of the speedup by adding a part to others."""
    return math.log(seconds[before] / seconds[before | {part}])


def shapley(seconds: Mapping[Parts, float]) -> Shares:
    """Shares in per cent.

    >>> alike = {parts: 8.0 / 2 ** len(parts) for parts in subsets()}
    >>> [round(share, 1) for share in shapley(alike).values()]
    [33.3, 33.3, 33.3]
    """
    orders = list(permutations(PARTS))
    gains = {part: fmean(gained(seconds, frozenset(order[: order.index(part)]), part) for order in orders) for part in PARTS}
    return shares(gains)


def in_order(seconds: Mapping[Parts, float]) -> Shares:
    return shares({part: gained(seconds, frozenset(PARTS[:number]), part) for number, part in enumerate(PARTS)})


def removed(seconds: Mapping[Parts, float]) -> Shares:
    """Time of a step without one part over DIRECT's."""
    every = frozenset(PARTS)
    return {part: seconds[every - {part}] / seconds[every] for part in PARTS}


def few_exchanges() -> str:
    """A sentence on the machine with the LAA alone against DIRECT."""
    alone, direct = ([1e3 * times(one)[frozenset(parts)] for one in WORKLOADS] for parts in (("LAA",), PARTS))
    names = " / ".join(one.name for one in WORKLOADS)
    return (
        f"LAA alone, PIM-Opt that averages every {DIRECT.algorithm.local_steps} steps, takes "
        f"{' / '.join(f'{value:.4g}' for value in alone)} ms a step ({names}) against DIRECT's "
        f"{' / '.join(f'{value:.4g}' for value in direct)}."
    )


def shares(gains: Shares) -> Shares:
    total = sum(gains.values())
    return {part: 100 * gain / total for part, gain in gains.items()}


def mean(kind: Callable[[Mapping[Parts, float]], Shares], transfers: Transfers) -> list[float]:
    """Of both workloads."""
    return [fmean(kind(times(one, transfers))[part] for one in WORKLOADS) for part in PARTS]


def named(parts: Parts) -> str:
    return ", ".join(part for part in PARTS if part in parts) or "none"


def _contribution() -> Measured:
    from trainyard.papers.direct.readings import search_contributions

    by_workload = "; ".join(
        f"{one.name}, {transfers.replace('_', '-')}: Shapley {slashed([*shapley(times(one, transfers)).values()], 0)}, in order "
        f"{slashed([*in_order(times(one, transfers)).values()], 0)}"
        for transfers in TRANSFERS
        for one in WORKLOADS
    )
    return Measured(
        mean(shapley, TRANSFERS[0]),
        verdict="open",
        evidence=search_contributions(),
        note="Shapley shares of the logarithm of the speedup, mean of both workloads; host rank after rank.",
        details=f"{by_workload}. Time without {' / '.join(PARTS)} over DIRECT's: "
        + "; ".join(f"{one.name} {slashed([*removed(times(one)).values()], 3)}" for one in WORKLOADS)
        + f". {few_exchanges()}",
    )


EXPERIMENTS: Experiments = {"direct.contribution": _contribution}
