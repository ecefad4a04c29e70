"""Bounds that follow from the paper's printed figures alone, where these exclude each other.

Nothing is simulated here. A claim that a bound excludes is `contradicted`, with the bound as its proof.

Half of everything. HC-DLA has three of six links for the rings and 75 of 150 GB/s to its memory, the same devices, and rings of
half as many hops. Whatever (B) does, HC can do with each exchange and each copy taking at most twice as long: T_HC <= 2 T_B for
each network, so the mean speedup over DC-DLA is at least half of (B)'s, whatever mean it is. It rests on three links that give
half of the rings' bandwidth. Sec. II-C speaks of one or two rings: one ring of three links would be a third, and the bound
T_HC <= 3 T_B. But with a share l of DC-DLA's synchronisation that is hops and not bytes, a third makes it l + 3 (1 - l) times as
long: the printed +90 % means l = 0.55, and (B)'s rings, of twice as many hops, would take 1 + l = 1.55 times as long as DC-DLA's,
where Sec. III-B finds the hops negligible. With half, l is 0.1.

Convexity. With the order of work and copies fixed, a step's time is the longest of many paths, each a sum of compute, exchanges
and bytes times the cost of a byte, c: the largest of straight lines, convex in c. So T(c/2) <= (T(0) + T(c)) / 2, and T(0), copies
that cost nothing, is at most T_B, whose devices and policy are the same and whose rings are no faster: gain = T(c) / T(c/2) >=
2 / (1 + T_B / T(c)). Harmonic means keep it: 1 / gain is at most linear in T_B / T.

Star. Of the example whose copies use 92 % of the sockets (Sec. II-C), each device of HC-DLA moves V = 0.92 x 75 GB/s x T_HC, and
75 GB/s are three links. (S) has two. With everything paged, copies back begin when copies out have ended (see below), so that
T_S >= V / 50 GB/s = 1.5 x 0.92 T_HC. (B) has at least HC-DLA's bandwidth everywhere, and hops are negligible (Sec. III-B): T_HC >=
T_B. (S) therefore loses at least 1 - 1 / (1.5 x 0.92) of (B)'s performance in that example. It rests on 92 % as a mean over time,
as "average" says.

Scaling. With everything paged, the map that left last is needed first: copies back begin when copies out have ended, and a step is
at least as long as all its copies, T_1 >= V / b_1. With n devices each copies V / n at b_n, and no path is longer than the step
without copies and all copies together: T_n <= T_1 / s_n + V / (n b_n), where s_n is the printed scaling without paging. So
1 / speedup_n <= 1 / s_n + b_1 / (n b_n), and what is printed bounds b_n / b_1 from above. If each device keeps its samples instead,
V is of one device, T_n <= n T_1 / s_n + V / b_n, and for as many samples the bound is the same. Of s_n the paper says only that it
is close to n: `least_without` is the s_n from which on the bound excludes what is printed.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from trainyard.papers import ledger

GEN3_X16_BYTES_PER_S = 16 * 8e9 / 8 * 128 / 130  # PCI Express Base 3.0: 8 GT/s a lane, 128b/130b, no packet overhead taken off
HC_BYTES_PER_S = 75e9  # Sec. IV: three links of 25 GB/s
STAR_BYTES_PER_S = 50e9  # Sec. III-B: two links of 25 GB/s


stated = partial(ledger.stated, "mcdla")
"""The value that the paper prints for a claim."""


def harmonic(values: Iterable[float]) -> float:
    """
    >>> round(harmonic([3.5, 2.1]), 9)
    2.625
    """
    numbers = [*values]
    return len(numbers) / sum(1 / number for number in numbers)


def least_of_hc(speedup: float) -> float:
    """The least speedup of HC-DLA over DC-DLA, given that of MC-DLA(B).

    >>> least_of_hc(3.5), least_of_hc(2.1)
    (1.75, 1.05)
    """
    return speedup / 2


def least_gain(speedup: float) -> float:
    """The least gain of doubling PCIe's bandwidth, given a harmonic mean speedup of MC-DLA(B).

    >>> [round(least_gain(s), 3) for s in (3.5, 2.1, 2.625, 2.8)]
    [1.556, 1.355, 1.448, 1.474]
    """
    return 2 / (1 + 1 / speedup)


def implied_by_cut(cut: float, fast: float = HC_BYTES_PER_S) -> float:
    """PCIe bytes a second of one device, from the share of copy time that HC-DLA saves: 1 - b / 75 GB/s.

    >>> round(implied_by_cut(0.88) / 1e9, 9)
    9.0
    """
    return (1 - cut) * fast


def least_star_loss(used: float, star: float = STAR_BYTES_PER_S, fast: float = HC_BYTES_PER_S) -> float:
    """The share of (B)'s performance that (S) lacks at least where HC-DLA's copies use a share of its bandwidth over the step.

    >>> round(least_star_loss(0.92), 3), round(least_star_loss(0.92, star=75e9), 3)
    (0.275, 0.0)
    """
    return max(0.0, 1 - star / (used * fast))


def least_scaling(devices: int, each: float, alone: float = GEN3_X16_BYTES_PER_S, without: float | None = None) -> float:
    """The least speedup of n devices over one, both paging, where a device has `each` bytes a second of PCIe and one alone `alone`.

    >>> round(least_scaling(8, 9e9), 2), round(least_scaling(4, 9e9), 2)
    (2.91, 1.45)
    """
    return 1 / (1 / (without or devices) + alone / (devices * each))


def most_each(devices: int, speedup: float, alone: float = GEN3_X16_BYTES_PER_S) -> float:
    """The most PCIe bytes a second of one device that a printed scaling allows.

    >>> round(most_each(8, 2.7) / 1e9, 1)
    8.0
    """
    return alone / (devices / speedup - 1)


def least_without(devices: int, speedup: float, each: float, alone: float = GEN3_X16_BYTES_PER_S) -> float:
    """The scaling without paging above which `least_scaling` exceeds a speedup.

    >>> round(least_scaling(8, 8.625e9, without=least_without(8, 2.75, 8.625e9)), 9)
    2.75
    """
    return 1 / (1 / speedup - alone / (devices * each))


def hops_share(more: float, share: float) -> float:
    """How much of DC-DLA's synchronisation is hops, if it takes `more` as long again with a `share` of the bandwidth.

    >>> round(hops_share(0.9, 1 / 3), 9), round(hops_share(0.9, 1 / 2), 9)
    (0.55, 0.1)
    """
    return 1 - more / (1 / share - 1)


class Scaled(NamedTuple):
    """A printed scaling with its rounding.

    `most` is the PCIe bandwidth that it allows, `least` the scaling that the printed cut allows, `without` the scaling without
    paging from which the two exclude each other.
    """

    devices: int
    printed: float
    most: float
    least: float
    without: float


def scaled(devices: int) -> Scaled:
    printed = stated(f"scaling.dc.{devices}")
    each = implied_by_cut((stated("hc.virtualisation_latency_cut") + 0.5) / 100)  # as much as rounding allows
    return Scaled(
        devices,
        printed,
        most_each(devices, printed + 0.05),
        least_scaling(devices, each),
        least_without(devices, printed + 0.05, each),
    )


def proof_of_mean() -> str:
    data, model = stated("speedup.data"), stated("speedup.model")
    most = harmonic((data + 0.05, model + 0.05))
    return (
        f"{stated('speedup'):g} is the arithmetic mean of {data:g} and {model:g}, but all means are harmonic (Sec. V): "
        f"{harmonic((data, model)):.3f}, at most {most:.2f} with rounding."
    )


def proof_of_hc() -> str:
    data = stated("speedup.data")
    return (
        f"HC-DLA has half of (B)'s bandwidth, so T_HC <= 2 T_B: beside {data:g}x it is at least {least_of_hc(data):.2f}x faster "
        f"than DC-DLA, +{100 * (least_of_hc(data) - 1):.0f} %, not +{stated('hc.data'):g} %."
    )


def details_of_hc() -> str:
    data, model, more = stated("speedup.data"), stated("speedup.model"), stated("hc.sync_increase")
    third = hops_share(more / 100, 1 / 3)
    return (
        f"Model-parallel the bound is {model:g} / 2 = {least_of_hc(model):.2f}, which does not exclude +{stated('hc.model'):g} %. "
        f"Three links as one ring (Sec. II-C: one or two) would be a third, and the bound {data:g} / 3 = {data / 3:.2f}x; the "
        f"printed +{more:g} % of synchronisation excludes it: with a third, bytes take +200 %, so {100 * third:.0f} % of DC-DLA's "
        f"would be hops, and (B)'s rings of twice as many hops would take {1 + third:.2f} times as long, where Sec. III-B finds "
        f"hops negligible (with half: {100 * hops_share(more / 100, 1 / 2):.0f} % hops)."
    )


def proof_of_star() -> str:
    used = stated("hc.cpu_bandwidth")
    low = (used - 0.5) / 100  # as much as rounding allows
    return (
        f"Where HC-DLA's copies fill {used:g} % of {HC_BYTES_PER_S / 1e9:g} GB/s a device, (S) with {STAR_BYTES_PER_S / 1e9:g} "
        f"takes at least 1.5 x {low:.3f} = {HC_BYTES_PER_S / STAR_BYTES_PER_S * low:.2f} times as long as HC-DLA, which takes no "
        f"less than (B): a loss of at least {100 * least_star_loss(low):.0f} %, not {stated('star_loss.max'):g}."
    )


def proof_of_gen4() -> str:
    return (
        f"Beside a speedup of {stated('speedup'):g}x, doubling PCIe gains at least {100 * (least_gain(stated('speedup')) - 1):.1f} "
        f"%, since time is convex in the cost of a byte; printed is {stated('pcie4.dc_gain'):g} %."
    )


def details_of_gen4() -> str:
    speedups = [stated(name) for name in ("speedup.data", "speedup.model")]
    both = harmonic(speedups)
    gains = ", ".join(
        f"{value:g}x (Fig. 13{letter}): {100 * (least_gain(value) - 1):.1f} %" for letter, value in zip("ab", speedups, strict=True)
    )
    return (
        "At cost 0 DC-DLA is no slower than (B), so doubling PCIe gains at least 2 / (1 + 1 / s) - 1 beside a speedup s of (B): "
        f"{gains}, both ({both:.3f}) {100 * (least_gain(both) - 1):.1f} %."
    )


def proof_of_scaling(devices: int) -> str:
    scaling, cut = scaled(devices), stated("hc.virtualisation_latency_cut")
    return (
        f"The printed cut of {cut:g} % by HC's 75 GB/s means at least {implied_by_cut((cut + 0.5) / 100) / 1e9:.2f} GB/s of PCIe "
        f"for a device, but {scaling.printed:g}x on {devices} devices allows at most {scaling.most / 1e9:.2f}."
    )


def details_of_scaling(devices: int) -> str:
    scaling, cut = scaled(devices), stated("hc.virtualisation_latency_cut")
    return (
        f"The cut means {implied_by_cut(cut / 100) / 1e9:.1f} GB/s before rounding. One device alone has gen3 x16's "
        f"{GEN3_X16_BYTES_PER_S / 1e9:.2f} GB/s; a step that is all copies would allow "
        f"{scaling.printed * GEN3_X16_BYTES_PER_S / devices / 1e9:.1f}. With that cut {devices} devices reach at least "
        f"{scaling.least:.2f}x if they reach {devices} without paging; the paper prints close to {devices}, and from "
        f"{scaling.without:.2f} on cut and scaling exclude each other."
    )
