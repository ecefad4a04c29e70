"""Fig. 9: how large a Flex-DPE should be, by the energy of all workloads and by performance per area.

Both are judged by one mean, the geometric one over all workloads, as everywhere else in SIGMA's ledger. What the figure leaves open
is searched (`search`): the mean, step ii, and the width of the bus.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from statistics import geometric_mean
from typing import TYPE_CHECKING, Literal, NamedTuple

from trainyard.arrays import Sigma
from trainyard.arrays.sigma.components import CLOCK_HZ
from trainyard.papers.evidence import Search
from trainyard.papers.figures import Series, chart, paper
from trainyard.papers.ledger import Experiments, Measured, claims, compare
from trainyard.papers.sigma.chip import DENSE, PES, SPARSE, area_mm2, cost, parts_of, power_w, speedup
from trainyard.papers.sigma.suite import stated
from trainyard.report.colours import PHASES, SPARE

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from trainyard.papers.figures import Figures

SIZES = (16, 32, 64, 128, 256, 512)  # Fig. 9
Bus = Literal["wide", "128"]
Mean = Literal["geometric", "sum"]
BUS = "bus as wide as a Flex-DPE (Sec. IV-E, step iv; Sec. V: 128 was chosen to match the TPU's words per cycle)"


class Reading(NamedTuple):
    """What Fig. 9 leaves open; the first value of each is judged."""

    mean: Mean = "geometric"
    step_ii: bool = False
    bus: Bus = "wide"

    def __str__(self) -> str:
        bus = "a bus as wide as a Flex-DPE" if self.bus == "wide" else "a bus of 128 words"
        mean = "geometric mean" if self.mean == "geometric" else "sum of all workloads"
        return f"{mean}, {'with' if self.step_ii else 'without'} step ii, {bus}"


READINGS = tuple(
    Reading(mean, step_ii, bus) for mean in ("geometric", "sum") for step_ii in (False, True) for bus in ("wide", "128")
)  # fmt: skip
CLAIMS = ("sigma.dpe.most_energy_efficient", "sigma.dpe.most_area_efficient", "sigma.sparse.speedup_over_tpu.fig12b")


def sized(multipliers: int, bus: Bus) -> Sigma:
    """16384 PEs in Flex-DPEs of that size; a bus as `wide` as one of them, or always of `128` words."""
    return Sigma(dpes=PES // multipliers, multipliers=multipliers, bandwidth=multipliers if bus == "wide" else 128)


@cache
def energies(reading: Reading) -> Mapping[int, float]:
    """Joules of all dense and sparse cases by size of a Flex-DPE: their geometric mean, or added up."""
    by_size = {}
    for size in SIZES:
        array = sized(size, reading.bus)
        watts = power_w(parts_of(array))
        joules = [watts * cost(array, case, step_ii=reading.step_ii).cycles / CLOCK_HZ for case in (*DENSE, *SPARSE)]
        by_size[size] = sum(joules) if reading.mean == "sum" else geometric_mean(joules)
    return by_size


@cache
def performances(bus: Bus, step_ii: bool = False) -> Mapping[int, float]:
    """Speedup over the TPU (geometric mean of all dense and sparse cases) for each square millimetre, by size."""
    by_size = {}
    for size in SIZES:
        array = sized(size, bus)
        over_tpu = geometric_mean(speedup(case, array, step_ii=step_ii) for case in (*DENSE, *SPARSE))
        by_size[size] = over_tpu / area_mm2(parts_of(array))
    return by_size


def least(values: Mapping[int, float]) -> int:
    return min(values, key=values.__getitem__)


def most(values: Mapping[int, float]) -> int:
    return max(values, key=values.__getitem__)


@cache
def search() -> Search:
    """The readings against both sizes and the sparse speedup, which step ii changes too."""
    known = {claim.id: claim for claim in claims()}
    results, fitting = {}, {}
    for reading in READINGS:
        over_tpu = geometric_mean(speedup(case, step_ii=reading.step_ii) for case in SPARSE)
        figures = least(energies(reading)), most(performances(reading.bus, reading.step_ii)), over_tpu
        results[reading] = dict(zip(CLAIMS, map(float, figures), strict=True))
        fitting[reading] = sum(compare(known[name], value) != "off" for name, value in results[reading].items())
    nearest, best = Reading(), max(fitting.values())
    others = [reading for reading in READINGS if fitting[reading] == best and reading != nearest]
    return Search(
        varied="mean, step ii, width of the bus",
        readings=len(READINGS),
        best=best,
        best_reading="; ".join(f"also {reading}" for reading in others),
        nearest=f"{nearest}, the reading of Fig. 12b",
        numbers=results[nearest],
    )


def _listed(values: Mapping[int, float]) -> str:
    """Relative to a Flex-DPE of 128."""
    return ", ".join(f"{size}: {value / values[128]:.3f}" for size, value in values.items())


def _smallest_energy() -> Measured:
    judged, pruned, added = (energies(one) for one in (Reading(), Reading(step_ii=True), Reading(mean="sum")))
    flat = [size for size, value in judged.items() if value <= 1.03 * min(judged.values())]
    return Measured(
        least(judged),
        verdict="open",
        evidence=search(),
        note=f"{', '.join(map(str, flat))} lie within 3 % of each other: relative to 128, {_listed(judged)}.",
        details=f"By the geometric mean of all workloads, as for area, with a {BUS}. With step ii {least(pruned)} is best "
        f"({_listed(pruned)}). The caption says aggregated energy, which may mean a sum; the sum is mostly the largest GEMM, which "
        f"hardly loads, and {least(added)} is best ({_listed(added)}). Large Flex-DPEs shorten loading, small ones have shorter "
        "networks.",
    )


def _best_performance() -> Measured:
    wide, narrow = performances("wide"), performances("128")
    return Measured(
        most(wide),
        note="With a bus as wide as a Flex-DPE, loading falls faster than the Benes network grows.",
        details=f"With a {BUS}, relative to 128: {_listed(wide)}. With 128 words for every size {most(narrow)} is best "
        f"({_listed(narrow)}).",
    )


def figure_9() -> go.Figure:
    lines = {
        "energy, bus as wide as a Flex-DPE": (energies(Reading()), PHASES["forward"]),
        "energy, with step ii": (energies(Reading(step_ii=True)), PHASES["update"]),
        "energy, added up": (energies(Reading(mean="sum")), SPARE[4]),
        "performance/area, bus as wide as a Flex-DPE": (performances("wide"), PHASES["grad_input"]),
        "performance/area, bus of 128 words": (performances("128"), SPARE[1]),
    }
    lines_drawn = [
        Series(name=name, colour=colour, kind="line", values={_place(size): values[size] / values[128] for size in SIZES})
        for name, (values, colour) in lines.items()
    ]
    energy, area = (_place(round(stated(f"dpe.most_{what}_efficient"))) for what in ("energy", "area"))
    theirs = {energy: lines_drawn[0].values[energy], area: lines_drawn[3].values[area]}
    return chart(
        [*lines_drawn, paper(theirs, "the paper's best sizes, on our lines")],
        "Fig. 9: Flex-DPEs of which size",
        "16384 PEs; energy of all workloads (geometric mean) and performance per area, relative to 128 Flex-DPEs of 128.",
        x="Flex-DPEs x multipliers", y="relative to 128 x 128", unity=True,
    )  # fmt: skip


def _place(size: int) -> str:
    return f"{PES // size} x {size}"


EXPERIMENTS: Experiments = {
    "sigma.dpe.most_energy_efficient": _smallest_energy,
    "sigma.dpe.most_area_efficient": _best_performance,
}
FIGURES: Figures = {"Fig. 9": figure_9}
