"""Parallel efficiency: Table II at 2048 units, Fig. 2 from 32 on, and where PIM-Opt's curve bends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from trainyard.ir import Role
from trainyard.machines.presets.direct import A100_CLUSTER, DIRECT
from trainyard.mapping.algorithms import Direct
from trainyard.papers.direct.measuring import (
    COUNTS,
    LINEAR,
    RESNET18,
    SYSTEMS,
    WORKLOADS,
    Job,
    StepCost,
    System,
    Workload,
    listed,
    machine,
    on,
    prefetch,
    slashed,
    step_cost,
    system,
)
from trainyard.papers.direct.printed import (
    UNITS,
    by_eq_1,
    half_units,
    overall_row,
    proof_of_abstract,
    proof_of_figure_2,
    stated,
)
from trainyard.papers.ledger import Experiments, Measured
from trainyard.systems.work_rows import in_device_precision

DRAWN: tuple[System, ...] = ("PIM-Opt", "PIM-Opt, Eq. 1", "DIRECT", "A100")


def curve(name: System, workload: Workload) -> dict[int, float]:
    """Efficiency by units."""
    return {units: point.efficiency for units, point in points(name, workload).items()}


def points(name: System, workload: Workload) -> dict[int, StepCost]:
    every()
    return {units: system(name, workload, units) for units in COUNTS}


def every() -> None:
    """All points of Fig. 2, the longest runs first."""
    order = sorted(DRAWN, key=lambda name: name != "DIRECT")
    prefetch(Job(machine(name, one), one, units) for one in reversed(WORKLOADS) for name in order for units in reversed(COUNTS))


class Literal(NamedTuple):
    """Algorithm 1 as printed, with one threshold."""

    tau: int

    @property
    def name(self) -> str:
        return f"DIRECT, Algorithm 1 as printed, tau = {self.tau}"


LITERALS = (Literal(31), Literal(7))


def literal_points(literal: Literal, workload: Workload) -> dict[int, StepCost]:
    """All points of Fig. 2 with Algorithm 1 as printed, crossbars in closed form."""
    plain = on(DIRECT, workload, algorithm=Direct(literal.tau, update="literal"), fidelity="analytic")
    return {units: step_cost(plain, workload, units) for units in COUNTS}


def literal_curve(literal: Literal, workload: Workload) -> dict[int, float]:
    return {units: point.efficiency for units, point in literal_points(literal, workload).items()}


def literal_share(literal: Literal, workload: Workload) -> dict[int, float]:
    """Per cent of a step that rounds and waits for the token take: neither the own step nor the AGAU's reduction."""
    points = literal_points(literal, workload)
    return {units: 100 * max(0.0, 1 - point.local_s / point.time_s) for units, point in points.items()}


def knee(curve: Mapping[int, float]) -> int:
    """The units at which efficiency bends down most: the drop to twice as many exceeds that from half as many by the most.

    A curve whose drops only become smaller bends before the first point, which is then returned.

    >>> knee({units: by_eq_1(units, half_units(0.31)) for units in COUNTS})
    256
    """
    counts = sorted(curve)
    bends = {
        middle: (curve[middle] - curve[after]) - (curve[before] - curve[middle])
        for before, middle, after in zip(counts, counts[1:], counts[2:], strict=False)
    }
    most = max(bends, key=lambda units: bends[units])
    return most if bends[most] > 0 else counts[0]


def at_full(workload: Workload, what: str = "efficiency") -> tuple[float, ...]:
    return tuple(getattr(system(name, workload), what) for name in SYSTEMS)


def by_trees(workload: Workload) -> float:
    """The A100s' efficiency if a double tree sums their gradients after the step, in one piece."""
    from trainyard.hardware.collectives.on_graph import timing
    from trainyard.hardware.topology.builders import switched

    plain, held = A100_CLUSTER, in_device_precision(workload.step, A100_CLUSTER.device)
    size = sum(one.bytes for one in held.tensors if one.role is Role.PARAMETER and one.view_of is None)
    wires = switched(
        devices=UNITS, links=1, planes=1, link_bytes_per_s=plain.link_bytes_per_s, link_latency_s=plain.link_latency_s / 2
    )  # to the switch and from it
    alone = system("A100", workload).alone_s
    return alone / (alone + timing("all_reduce", size, wires, algorithm="tree").delay_s)


def other_batches(workload: Workload) -> str:
    """Efficiency with other batches of the GPU: 32 a board (torchvision's reference), and a DPU's 8."""
    efficiencies = {
        batch: step_cost(machine("A100", workload), replace(workload, gpu_batch=batch)).efficiency
        for batch in (32, 8)
        if batch != workload.gpu_batch
    }
    return listed(efficiencies)


def _overall(workload: Workload) -> Measured:
    direct = system("DIRECT", workload)
    shares = {name: 100 * seconds / direct.time_s for name, seconds in direct.acts_s.items()}
    serial = system("PIM-Opt, Eq. 1", workload).efficiency
    return Measured(
        at_full(workload),
        note=f"Seconds of a unit alone over those of an optimizer step of {UNITS}, each unit with its batch.",
        details=f"PIM-Opt transfers rank-parallel; one DPU after the other, as in Eq. 1, {serial:.3f}. Of DIRECT's step: "
        f"{listed(shares, 3)} %. A100: ring over 200 Gb/s each, batch {workload.gpu_batch}; other batches: "
        f"{other_batches(workload)}"
        + (f"; a double tree instead of the ring {by_trees(workload):.2f}." if workload is LINEAR else "."),
    )


def _computation(workload: Workload) -> Measured:
    return Measured(
        at_full(workload, "computation"),
        note="Seconds of computing alone over those among 2048 (POP): 1, since a unit keeps its batch and nothing slows it down.",
        details=overall_row(),
    )


def _communication(workload: Workload) -> Measured:
    return Measured(
        at_full(workload, "communication"),
        note="Computing over all of the step (POP): overall over computation.",
        details=overall_row(),
    )


def _at_32() -> Measured:
    curve_points = points("DIRECT", RESNET18)
    first, last = curve_points[32], curve_points[UNITS]
    return Measured(
        first.efficiency,
        note=f"One cluster, whose AGAU takes {1e3 * first.acts_s['reduce']:.0f} of {1e3 * first.time_s:.0f} ms.",
        details=f"A loss of {100 * (1 - first.efficiency):.1f} % where the paper has "
        f"{100 * (1 - stated('efficiency.resnet18.at_32')[0]):.0f}. From 32 to {UNITS} DPUs it falls by "
        f"{100 * (first.efficiency - last.efficiency):.2f} points, of which tokens are "
        f"{100 * last.acts_s['token'] / last.time_s:.5f}; linear model {system('DIRECT', LINEAR, 32).efficiency:.3f}.",
    )


def _figure_2() -> Measured:
    return Measured(
        at_full(RESNET18),
        verdict="contradicted",
        proof=proof_of_figure_2(),
        details=f"Ours from 32 to {UNITS} units: "
        + "; ".join(f"{name} {slashed([*curve(name, RESNET18).values()], 3)}" for name in DRAWN)
        + "; "
        + "; ".join(f"{one.name} {slashed([*literal_curve(one, RESNET18).values()], 3)}" for one in LITERALS)
        + ".",
    )


def _abstract() -> Measured:
    both = [system(name, one).efficiency for one in WORKLOADS for name in ("DIRECT", "PIM-Opt")]
    return Measured(
        [system("DIRECT", RESNET18).efficiency, system("PIM-Opt", RESNET18).efficiency],
        verdict="contradicted",
        proof=proof_of_abstract(),
        details=f"Ours is of ResNet-18; of the linear model it is {both[0]:.2f} against {both[1]:.2f}.",
    )


def _knee() -> Measured:
    half = half_units(stated("efficiency.resnet18.fig2")[0])
    predicted = {units: by_eq_1(units, half) for units in COUNTS}
    others = {f"{name}, {one.name}": knee(curve(name, one)) for one in WORKLOADS for name in DRAWN[:2]}
    return Measured(
        knee(curve("PIM-Opt", RESNET18)),
        note="The strongest bend over doublings of ResNet-18; up to 512 DPUs every rank has a channel of its own.",
        details=f"All bends: {listed(others, 0)}. Calibrated on 0.31 at 2048, Eq. 1's shape 1 / (1 + N / {half:.0f}) bends most at "
        f"{knee(predicted)}: {listed(predicted)}.",
    )


# fmt: off
EXPERIMENTS: Experiments = {
    "direct.efficiency.linear":                 partial(_overall, LINEAR),
    "direct.efficiency.resnet18":               partial(_overall, RESNET18),
    "direct.efficiency.linear.computation":     partial(_computation, LINEAR),
    "direct.efficiency.linear.communication":   partial(_communication, LINEAR),
    "direct.efficiency.resnet18.computation":   partial(_computation, RESNET18),
    "direct.efficiency.resnet18.communication": partial(_communication, RESNET18),
    "direct.efficiency.resnet18.at_32":         _at_32,
    "direct.efficiency.resnet18.fig2":          _figure_2,
    "direct.efficiency.abstract":               _abstract,
    "direct.efficiency.pim_opt_knee":           _knee,
}
# fmt: on
