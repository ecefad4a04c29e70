"""Where the paper's printed figures exclude each other or physics: arithmetic over printed figures, nothing is simulated.

A printed figure stands for all values that round to it: half a unit of its last digit that is not 0 to either side, so that 1240
may be 1235 to 1245. A claim is excluded only if it is excluded for every value inside.

Power. Joules over seconds of Table II are watts of a whole machine. They are compared with the energy of MAC circuits and with the
measured power of a DPU.

Speedup. 2.8 and 2.9 are the ratios of Table II's times. DIRECT and PIM-Opt have the same DPUs, which take the same time alone, so
that the times have to be in the inverse ratio of the efficiencies; they are not.

Staleness. The paper does not say what its milliseconds are. Read as age: a parameter is as old as the last exchange of all. PIM-Opt
exchanges after every batch: its parameters are one period old, a DPU's own step t over its efficiency, t / 0.31. DIRECT's are no
younger than t / 0.93 at the same batch, so that age falls by at most 1 - 0.31 / 0.93, by at most 1 - 0.31 if DIRECT's exchanges
were free, and the printed cuts are excluded. Read as latency E of an exchange: with one in every k steps efficiency is
1 / (1 + E / (k t)), and the printed figures agree if DIRECT exchanges every 7 or 8 steps (`steps_per_exchange`). Which of the two
is meant is not said, so that nothing is contradicted.

Weights. The overall efficiency of Table II should follow from its computation and communication rows. It is not their product, and
not an arithmetic mean with one weight for all six columns; it is a harmonic mean (`harmonic_weights`): an ideal step of w
computation and 1 - w communication, each slowed down by its own efficiency. One unit alone has nothing to communicate, though.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import cache, partial
from typing import NamedTuple

from trainyard.devices.dpu.presets import UPMEM
from trainyard.hardware.tables.energy import mac_joules
from trainyard.ir import Role
from trainyard.machines.presets.gpus import A100
from trainyard.papers import ledger
from trainyard.workloads import zoo

# fmt: off
WORKLOADS          = ("linear", "resnet18")
COLUMNS            = ("PIM-Opt", "DIRECT", "GPU")  # Table II
UNITS              = 2048                          # Table II
IMAGENET           = 1_281_167                     # pictures of ILSVRC 2012's training set
RESNET18_TOP1      = 69.76                         # torchvision, ResNet18_Weights.IMAGENET1K_V1, one crop
RESNET18_TEN_CROPS = 72.12                         # He et al., CVPR 2016, Table 2: 27.88 % error with ten crops
RESNET50_TOP1      = 76.13                         # torchvision, ResNet50_Weights.IMAGENET1K_V1, one crop
DPU_W              = 383 / 2556                    # PrIM: measured, of a system with 2556 DPUs
A100_BOARD_W       = 400.0                         # NVIDIA A100 data sheet: SXM4
NODE_NM            = 28.0                          # Sec. VI-A
# fmt: on


class Range(NamedTuple):
    """All values that a printed figure, or arithmetic on some, may stand for."""

    low: float
    high: float

    def over(self, other: Range) -> Range:
        """A ratio of positive ones.

        >>> Range(2.0, 3.0).over(Range(1.0, 2.0))
        Range(low=1.0, high=3.0)
        """
        return Range(self.low / other.high, self.high / other.low)

    def meets(self, other: Range) -> bool:
        """More than at an edge: 0.925 is printed as 0.92 or as 0.93, never as both."""
        return self.low < other.high and other.low < self.high

    @property
    def less(self) -> Range:
        """1 minus it."""
        return Range(1 - self.high, 1 - self.low)

    def text(self, digits: int = 2, times: float = 1.0) -> str:
        return f"{times * self.low:.{digits}f} to {times * self.high:.{digits}f}"


def rounded(value: float) -> Range:
    """
    >>> rounded(0.31), rounded(245.0), rounded(1240.0)
    (Range(low=0.305, high=0.315), Range(low=244.5, high=245.5), Range(low=1235.0, high=1245.0))
    """
    exact = Decimal(repr(value)).normalize()
    half = Decimal(5).scaleb(int(exact.as_tuple().exponent) - 1)
    return Range(float(exact - half), float(exact + half))


stated = partial(ledger.stated_values, "direct")
"""The values that the paper prints for a claim."""


def ranges(claim: str) -> tuple[Range, ...]:
    return tuple(map(rounded, stated(claim)))


# ---- energy
def powers(workload: str) -> tuple[Range, ...]:
    """Watts of PIM-Opt, DIRECT and GPU.

    >>> [one.text() for one in powers("linear")]
    ['3.63 to 3.65', '3.56 to 3.57', '4.44 to 4.91']
    """
    pairs = zip(ranges(f"energy.{workload}"), ranges(f"time.{workload}"), strict=True)
    return tuple(energy.over(time) for energy, time in pairs)


@cache
def image_macs() -> float:
    """MACs of one training step of ResNet-18 for one picture."""
    step = zoo.load("resnet18")
    return step.macs / step.batch


def least_epoch_j() -> tuple[float, float]:
    """Joules of an ImageNet epoch of ResNet-18: bf16 multiplications and sums alone at 28 nm, and of an A100 that never waits."""
    macs = image_macs() * IMAGENET
    gpu = A100_BOARD_W / (A100.half_macs * A100.sms * A100.clock_hz)
    return macs * mac_joules("bf16", NODE_NM), macs * gpu


def apart(one: Range, other: Range) -> float:
    """The largest share by which two figures may differ.

    >>> apart(Range(2.0, 3.0), Range(2.0, 2.5))
    0.5
    """
    return max(one.over(other).high, other.over(one).high) - 1


def proof_of_energy(workload: str) -> str:
    host, direct, _ = powers(workload)
    return (
        f"Joules over seconds are {host.text()} W for PIM-Opt and {direct.text()} W for DIRECT, but 2048 DPUs draw "
        f"{UNITS * DPU_W:.0f} W (PrIM)."
    )


def proof_of_cut() -> str:
    """The cuts are ratios of joules whose watts are excluded."""
    cuts = []
    for column, other in ((0, "PIM-Opt"), (2, "the GPU")):
        found = [joules[1].over(joules[column]).less for joules in (ranges(f"energy.{workload}") for workload in WORKLOADS)]
        assert all(one.meets(rounded(stated("energy_cut")[column // 2] / 100)) for one in found)
        cuts.append(f"{stated('energy_cut')[column // 2]:g} % over {other}")
    watts = [one for workload in WORKLOADS for one in powers(workload)[:2]]
    most = max(one.high for one in watts)
    assert most < UNITS * DPU_W
    return (
        f"{' and '.join(cuts)} are the ratios of Table II's joules, which over its seconds are at most {most:.1f} W for "
        f"{UNITS} DPUs that draw {UNITS * DPU_W:.0f} W (PrIM)."
    )


def details_of_energy(workload: str) -> str:
    host, direct, gpu = powers(workload)
    text = (
        f"A DPU draws {1e3 * DPU_W:.0f} mW (PrIM), 2048 of them {UNITS * DPU_W / host.high:.0f} times the printed power. The GPU's "
        f"joules over seconds are {gpu.text()} W, while one A100 board is made for {A100_BOARD_W:.0f} W. PIM-Opt and DIRECT draw "
        f"the same within {100 * apart(host, direct):.1f} %."
    )
    if workload == "resnet18":
        pim, a100 = least_epoch_j()
        text += (
            f" The {image_macs() * IMAGENET:.3g} MACs of an epoch take {pim / 1e3:.1f} kJ in bf16 multipliers and adders at "
            f"{NODE_NM:g} nm alone, and {a100 / 1e3:.1f} kJ of an A100 at its peak rate; printed are "
            f"{' / '.join(f'{value / 1e3:g}' for value in stated('energy.resnet18'))} kJ."
        )
    return text


# ---- time
def needed_macs_per_s(column: int) -> Range:
    """MACs per second of each DPU if 2048 take the printed time for an epoch of ResNet-18 with the printed efficiency."""
    time, efficiency = ranges("time.resnet18")[column], ranges("efficiency.resnet18")[column]
    macs = image_macs() * IMAGENET / UNITS
    return Range(macs / time.high / efficiency.high, macs / time.low / efficiency.low)


def proof_of_rate() -> str:
    needed, fixed = needed_macs_per_s(0), replace(UPMEM, number="fixed32").macs_per_s
    return (
        f"The printed time needs {needed.text(times=1e-9)} GMAC/s of each of PIM-Opt's DPUs, and a UPMEM DPU does "
        f"{fixed / 1e6:.1f} M in 32-bit fixed point, {needed.low / fixed:.0f} times less."
    )


def details_of_rate() -> str:
    step = zoo.load("resnet18")
    model_bytes = 2 * sum(one.bytes for one in step.tensors if one.role is Role.PARAMETER and one.view_of is None)
    soft = replace(UPMEM, number="fp32").macs_per_s
    host, direct = (needed_macs_per_s(column) for column in range(2))
    return (
        f"PIM-Opt's machine is UPMEM's. {UNITS} DPUs train ResNet-18 on {IMAGENET:,} pictures ({image_macs() / 1e9:.2f} GMAC a "
        f"picture, forward and backward) in {stated('time.resnet18')[0]:g} s at an efficiency of "
        f"{stated('efficiency.resnet18')[0]:g}; DIRECT's do {direct.text(times=1e-9)} GMAC/s each. In fp32 a UPMEM DPU does "
        f"{soft / 1e6:.1f} M, {host.low / soft:.0f} times less. Weights and gradients are {model_bytes / 1e6:.1f} MB, its MRAM "
        f"{UPMEM.mram_bytes / 1e6:.1f}."
    )


def gpu_images_per_s() -> Range:
    """Of the GPU column, all GPUs together."""
    time = ranges("time.resnet18")[2]
    return Range(IMAGENET / time.high, IMAGENET / time.low)


# ---- speedup and efficiency
def efficiency_ratios() -> tuple[Range, Range]:
    """The speedup over PIM-Opt that the efficiencies imply: linear, ResNet-18.

    >>> [one.text() for one in efficiency_ratios()]
    ['2.94 to 3.07', '3.18 to 3.33']
    """
    linear, network = (ranges(f"efficiency.{workload}") for workload in WORKLOADS)
    return linear[1].over(linear[0]), network[1].over(network[0])


def time_ratios() -> tuple[Range, ...]:
    """PIM-Opt's printed time over DIRECT's: linear, ResNet-18.

    >>> [one.text() for one in time_ratios()]
    ['2.79 to 2.81', '2.88 to 2.91']
    """
    return tuple(host.over(direct) for host, direct, _ in (ranges(f"time.{workload}") for workload in WORKLOADS))


def speedup_conflict() -> str:
    parts = []
    for number, workload in enumerate(WORKLOADS):
        must, is_ = efficiency_ratios()[number], time_ratios()[number]
        assert not must.meets(is_)
        parts.append(f"{workload} {is_.text()} by times, {must.text()} by efficiencies")
    return (
        "The printed speedups are the ratios of Table II's times. The same DPUs on the same samples would also have the ratio of "
        f"its overall efficiencies, but have not: {'; '.join(parts)}."
    )


def columns() -> list[tuple[str, Range, Range, Range]]:
    """Each of Table II's six: computation, communication, overall."""
    return [
        (
            f"{name}, {workload}",
            ranges(f"efficiency.{workload}.computation")[number],
            ranges(f"efficiency.{workload}.communication")[number],
            ranges(f"efficiency.{workload}")[number],
        )
        for workload in WORKLOADS
        for number, name in enumerate(COLUMNS)
    ]


def weights(mean: Callable[[float], float]) -> tuple[Range, ...]:
    """The weight of the computation row in each column, if 'overall' is a mean of `mean`'s kind: w f(a) + (1 - w) f(b) = f(c)."""
    possible = []
    for _, a, b, c in columns():
        corners = [
            (mean(overall) - mean(moved)) / (mean(computed) - mean(moved))
            for overall in c
            for computed in a
            for moved in b
            if computed > moved
        ]
        possible.append(Range(max(0.0, min(corners)), min(1.0, max(corners))))
    return tuple(possible)


def common(ranges: Sequence[Range]) -> Range | None:
    """The values inside all ranges.

    >>> common([Range(0.1, 0.4), Range(0.3, 0.6)]), common([Range(0.1, 0.2), Range(0.3, 0.6)])
    (Range(low=0.3, high=0.4), None)
    """
    low, high = max(one.low for one in ranges), min(one.high for one in ranges)
    return Range(low, high) if low <= high else None


def arithmetic_weights() -> tuple[Range, ...]:
    return weights(lambda value: value)


def harmonic_weights() -> tuple[Range, ...]:
    return weights(lambda value: 1 / value)


def products() -> list[tuple[str, Range, Range]]:
    """Columns whose overall efficiency is not the product of its two rows."""
    excluded = []
    for name, a, b, c in columns():
        product = Range(a.low * b.low, a.high * b.high)
        if not product.meets(c):
            excluded.append((name, product, c))
    return excluded


def overall_row() -> str:
    """A sentence on how the overall row follows from the other two."""
    both = common(harmonic_weights())
    assert both is not None
    return (
        f"In Table II the overall efficiency is not the product of computation and communication in {len(products())} of 6 "
        f"columns, and no arithmetic mean with one weight for all; a harmonic mean with {both.text(2)} on computation gives all "
        "six."
        if common(arithmetic_weights()) is None
        else "In Table II the overall efficiency may be an arithmetic mean."
    )


def proof_of_abstract() -> str:
    direct, host = ranges("efficiency.abstract")
    for workload in WORKLOADS:
        table = ranges(f"efficiency.{workload}")
        assert not host.meets(table[0])
        assert not direct.meets(table[1])
    overall = {workload: stated(f"efficiency.{workload}") for workload in WORKLOADS}
    both = " and ".join(f"{own:g} against {other:g} ({workload})" for workload, (other, own, _) in overall.items())
    lowest = stated("efficiency.abstract")[1]
    return f"Table II's overall efficiency is {both}; {lowest:g} is its communication row of the linear model."


def proof_of_figure_2() -> str:
    figure, table = ranges("efficiency.resnet18.fig2"), ranges("efficiency.resnet18")
    assert not figure[0].meets(table[0])
    assert not figure[1].meets(table[1])
    return (
        f"Fig. 2 is of ResNet-18 at {UNITS} units, for which Table II has "
        f"{' / '.join(f'{one:g}' for one in stated('efficiency.resnet18'))}; {stated('efficiency.resnet18.fig2')[0]:g} is its "
        "figure of the linear model."
    )


# ---- staleness
def most_age_cut(workload: str) -> tuple[Range, Range]:
    """Per cent by which age can fall at most: with DIRECT's own efficiency, and were its exchanges free."""
    host, direct, _ = ranges(f"efficiency.{workload}")
    return host.over(direct).less, host.less


def age_cut(workload: str, column: int) -> Range:
    """The cut by Table II's milliseconds over PIM-Opt (0) or the GPU (2)."""
    milliseconds = ranges(f"staleness.{workload}")
    return milliseconds[1].over(milliseconds[column]).less


def steps_per_exchange(workload: str) -> Range:
    """Steps from one exchange of DIRECT to the next, if staleness is an exchange's latency and PIM-Opt exchanges in every step.

    An exchange of E seconds in every k steps of t leaves an efficiency of 1 / (1 + E / (k t)).

    >>> [steps_per_exchange(workload).text(1) for workload in WORKLOADS]
    ['7.2 to 8.9', '6.2 to 7.4']
    """
    host, direct, _ = ranges(f"efficiency.{workload}")
    before, after, _ = ranges(f"staleness.{workload}")
    lost = Range(*(1 / one - 1 for one in host[::-1])).over(Range(*(1 / one - 1 for one in direct[::-1])))
    return lost.over(before.over(after))


def staleness_readings() -> str:
    """Sentences on both readings of Table II's milliseconds."""
    gpu = [age_cut(workload, 2) for workload in WORKLOADS]
    ages = []
    for workload in WORKLOADS:
        own, free = most_age_cut(workload)
        ages.append(
            f"{workload} at most {100 * own.high:.1f} % ({100 * free.high:.1f} if exchanges were free), where Table II has "
            f"{age_cut(workload, 0).text(1, 100)}"
        )
    steps = " and ".join(f"{steps_per_exchange(workload).text(1)} ({workload})" for workload in WORKLOADS)
    return (
        "The paper does not say what its milliseconds are. As parameter age they contradict its efficiencies: PIM-Opt exchanges "
        f"after every batch, so that age falls by {'; '.join(ages)}. As latency of an exchange they agree with them if DIRECT "
        f"exchanges every {steps} steps. Over the GPU Table II gives {gpu[0].text(0, 100)} % (linear) and "
        f"{gpu[1].text(0, 100)} % (ResNet-18); the text's {stated('staleness_cut')[1]:g} names no workload."
    )


# ---- accuracy, area
def accuracy_conflict() -> str:
    printed = ranges("accuracy.resnet18")
    band = Range(min(one.low for one in printed), max(one.high for one in printed))
    inside = band.low <= RESNET50_TOP1 <= band.high
    return (
        f"Published ResNet-18 reaches {RESNET18_TOP1:g} % top-1 on ImageNet (torchvision; {RESNET18_TEN_CROPS:g} with ten crops, "
        f"He et al.), {band.low - RESNET18_TOP1:.1f} points below the printed {band.text()}; ResNet-50's {RESNET50_TOP1:g} is "
        f"{'inside' if inside else 'outside'}. PIM-Opt trains only linear models."
    )


def overhead_conflict(what: str, unit: str) -> str:
    host, direct = stated(what)
    assert rounded(host).low > 0
    return (
        f"PIM-Opt is software on DPUs as they are sold and adds no hardware, yet Table II gives it {host:g} {unit}. By Sec. VI-A "
        f"AGAUs and DSC add {direct:g} {unit}; Table II's difference is {direct - host:.2g}."
    )


# ---- shapes, calibrated
def half_units(efficiency: float, units: int = UNITS) -> float:
    """N_half of Eq. 1's shape 1 / (1 + N / N_half), from one printed efficiency.

    >>> round(half_units(0.31))
    920
    """
    return units / (1 / efficiency - 1)


def by_eq_1(units: int, half: float) -> float:
    return 1 / (1 + units / half)
