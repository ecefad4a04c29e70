"""What the paper prints, and where its own figures exclude each other: bounds that are arithmetic over printed figures alone.

None of it is a run. A row that a bound excludes is `contradicted` and carries the bound; what comes out here stands beside it.

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

Scaling. With everything paged, the map that left last is needed first: copies back begin when copies out have ended, and a step is
at least as long as all its copies, T_1 >= V / b_1. With n devices each copies V / n at b_n, and no path is longer than the step
without copies and all copies together: T_n <= T_1 / s_n + V / (n b_n), where s_n is the printed scaling without paging. So
1 / speedup_n <= 1 / s_n + b_1 / (n b_n), and what is printed bounds b_n / b_1 from above. Of s_n the paper says only that it is
close to n: `least_without` is the s_n from which on the bound excludes what is printed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from trainyard.papers.ledger import claims

GEN3_X16_BYTES_PER_S = 16 * 8e9 / 8 * 128 / 130  # PCI Express Base 3.0: 8 GT/s a lane, 128b/130b, no packet overhead taken off
HC_BYTES_PER_S = 75e9  # Sec. IV: three links of 25 GB/s


def said(claim: str) -> float:
    """A figure that the paper prints."""
    value = next(one for one in claims() if one.id == f"mcdla.{claim}").value
    assert isinstance(value, float)
    return value


def harmonic(values: Iterable[float]) -> float:
    """
    >>> round(harmonic([3.5, 2.1]), 9)
    2.625
    """
    found = [*values]
    return len(found) / sum(1 / value for value in found)


def least_of_hc(speedup: float) -> float:
    """What HC-DLA must reach over DC-DLA beside a speedup of MC-DLA(B).

    >>> least_of_hc(3.5), least_of_hc(2.1)
    (1.75, 1.05)
    """
    return speedup / 2


def least_gain(speedup: float) -> float:
    """What doubling PCIe's bandwidth must gain beside a harmonic mean speedup of MC-DLA(B).

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
    """A printed scaling with its rounding: what it allows of PCIe, what the printed cut allows of it, and from which scaling
    without paging on the two exclude each other."""

    devices: int
    printed: float
    most: float
    least: float
    without: float


def scaled(devices: int) -> Scaled:
    printed = said(f"scaling.dc.{devices}")
    each = implied_by_cut((said("hc.virtualisation_latency_cut") + 0.5) / 100)  # as much as rounding allows
    return Scaled(
        devices,
        printed,
        most_each(devices, printed + 0.05),
        least_scaling(devices, each),
        least_without(devices, printed + 0.05, each),
    )


def proof_of_mean() -> str:
    data, model = said("speedup.data"), said("speedup.model")
    most = harmonic((data + 0.05, model + 0.05))
    return (
        f"{said('speedup'):g} is the arithmetic mean of {data:g} and {model:g}; their harmonic mean is "
        f"{harmonic((data, model)):.3f}, at most {most:.2f} with rounding, and Sec. V says that all means are harmonic"
    )


def proof_of_hc() -> str:
    data, model, more = said("speedup.data"), said("speedup.model"), said("hc.sync_increase")
    third = hops_share(more / 100, 1 / 3)
    return (
        f"HC-DLA has half of (B)'s bandwidth in rings and to memory and the same devices, so T_HC <= 2 T_B: beside {data:g}x it is "
        f"at least {least_of_hc(data):.2f}x faster than DC-DLA, +{100 * (least_of_hc(data) - 1):.0f} %, not +{said('hc.data'):g} % "
        f"(model-parallel: {model:g} / 2 = {least_of_hc(model):.2f}, which does not exclude +{said('hc.model'):g} %). Three links "
        f"as one ring (Sec. II-C: one or two) would be a third, and the bound {data:g} / 3 = {data / 3:.2f}x; the printed "
        f"+{more:g} % of synchronisation excludes it: with a third, bytes take +200 %, so {100 * third:.0f} % of DC-DLA's would "
        f"be hops, and (B)'s rings of twice as many hops would take {1 + third:.2f} times as long, where Sec. III-B finds hops "
        f"negligible (with half: {100 * hops_share(more / 100, 1 / 2):.0f} % hops)"
    )


def proof_of_gen4() -> str:
    each = {name: said(name) for name in ("speedup.data", "speedup.model")}
    both = harmonic(each.values())
    gains = ", ".join(f"{value:g}x (Fig. 13{letter}): {100 * (least_gain(value) - 1):.1f} %"
                      for letter, value in zip("ab", each.values(), strict=True))  # fmt: skip
    return (
        "time is convex in PCIe's cost per byte and at cost 0 no longer than (B)'s, so doubling it gains at least "
        f"2 / (1 + 1 / s) - 1 beside a speedup s of (B): {gains}, both ({both:.3f}) {100 * (least_gain(both) - 1):.1f} %, with the "
        "printed "
        f"{said('speedup'):g}x {100 * (least_gain(said('speedup')) - 1):.1f} %; printed {said('pcie4.dc_gain'):g} %"
    )


def proof_of_scaling(devices: int) -> str:
    one, cut = scaled(devices), said("hc.virtualisation_latency_cut")
    return (
        f"a cut of {cut:g} % by HC's 75 GB/s means {implied_by_cut(cut / 100) / 1e9:.1f} GB/s of PCIe for a device, at least "
        f"{implied_by_cut((cut + 0.5) / 100) / 1e9:.2f} with rounding; {one.printed:g}x on {devices} devices allows at most "
        f"{one.most / 1e9:.2f} (one alone has gen3 x16's {GEN3_X16_BYTES_PER_S / 1e9:.2f}; a step that is all copies: "
        f"{one.printed * GEN3_X16_BYTES_PER_S / devices / 1e9:.1f}). With that cut {devices} devices reach at least "
        f"{one.least:.2f}x if they reach {devices} without paging; printed is close to {devices}, and from {one.without:.2f} on "
        "cut and scaling exclude each other"
    )
