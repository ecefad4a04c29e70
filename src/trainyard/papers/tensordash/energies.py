"""Figs. 10 and 11: energy of the compute logic and of the whole chip, predicted from events.

Compute logic is Table IV's rows, cores, transposers, schedulers, muxes and staging buffers, for as long as the array is busy.
Memories are our table of on-chip RAMs at the size of a bank (AM, BM, CM) and of a tile's scratchpad, DRAM our LPDDR4 row. Their
traffic is that of the tiles of the chip at the paper's batch (`chip`), and the same with and without TensorDash: every value is
fetched once, zero or not, and both compress off-chip. All energies are those of one sample.

The array is busy for as long as its whole products take. So that fully connected layers fill its rows, the few samples of which
zeros were kept are repeated to 8, sentences of SNLI to 64.

The paper prints none of its memory energies. Its 1.8x, 1.5x, 1.76x, 1.48x, 3.67x and 2.1x together leave the core 72 to 76 % of the
baseline's energy; the note of `energy.chip` has the share here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from statistics import fmean

from trainyard.arrays import TensorCore, TensorDash
from trainyard.devices import Accelerator
from trainyard.papers.ledger import Experiments, Measured
from trainyard.papers.tensordash.chip import BATCH, ChipWork, at_batch, device, on_chip
from trainyard.papers.tensordash.models import GCN, NAMES, Subject, recorded
from trainyard.papers.tensordash.performance import STAND_IN, listed, sentence
from trainyard.papers.tensordash.printed import printed
from trainyard.papers.tensordash.products import Product, Source, alone, speedup
from trainyard.papers.tensordash.sweeps import PAPER

# fmt: off
PARTS: Mapping[str, tuple[str, ...]] = {  # as Fig. 11 has them
    "DRAM": ("dram",),
    "core": ("core", "mac", "transposer", "scheduler", "mux", "staging", "vector"),
    "SRAM": ("scratchpad", "local"),
}
IMPLIED_CORE_SHARE = (0.72, 0.76)  # derived: of the baseline's energy, from all that the paper prints of efficiencies
AT_ONCE = 8                        # assumed: samples that fill the rows of the array; more changes little
SENTENCES_AT_ONCE = 64             # Sec. IV: the smallest batch; SNLI's layers have few or no positions
# fmt: on


@cache
def at_once(subject: Subject) -> Subject:
    """The same zeros, repeated to a batch of at least `AT_ONCE` samples."""
    times = -(-(SENTENCES_AT_ONCE if subject.name == "SNLI" else AT_ONCE) // subject.step.batch)
    return replace(subject, step=subject.step.rebatch(times * subject.step.batch))


def by_part(energy: Mapping[str, float]) -> dict[str, float]:
    """Joules as Fig. 11 sums them; a component that is in none of its parts would be an error."""
    part_of = {component: part for part, components in PARTS.items() for component in components}
    joules = dict.fromkeys(PARTS, 0.0)
    for component, value in energy.items():
        joules[part_of[component]] += value
    return joules


def total(products: Iterable[Product | ChipWork], device: Accelerator) -> dict[str, float]:
    """Joules of products by part. What is scheduled, and what moves, is the same in any format of 16 bits."""
    energy: dict[str, float] = {}
    for product in products:
        events = {name.replace("mac_fp16", f"mac_{device.number}"): count for name, count in product.events.items()}
        for component, value in device.energy(events).items():
            energy[component] = energy.get(component, 0.0) + product.weight * value
    return by_part(energy)


@cache
def joules(subject: Subject, array: TensorDash | TensorCore, number: str = "fp16") -> Mapping[str, float]:
    """DRAM, core and SRAM of all products of one sample: the core by the array's events, memories by the chip's."""
    plain = array.baseline if isinstance(array, TensorDash) else array
    busy, many = at_once(subject), at_batch(subject)
    memories = total(on_chip(subject, plain), device(plain, number))
    core = total(alone(busy, array), device(array, number))["core"] / busy.step.batch
    return {part: value / many.step.batch for part, value in memories.items()} | {"core": core}


def core_efficiency(subject: Subject, array: TensorDash, number: str = "fp16") -> float:
    return joules(subject, array.baseline, number)["core"] / joules(subject, array, number)["core"]


def chip_efficiency(subject: Subject, array: TensorDash, number: str = "fp16") -> float:
    return sum(joules(subject, array.baseline, number).values()) / sum(joules(subject, array, number).values())


def core_share(subject: Subject, array: TensorDash, number: str = "fp16") -> float:
    """Of the baseline's energy."""
    parts = joules(subject, array.baseline, number)
    return parts["core"] / sum(parts.values())


def mean_of(what: str, source: Source, array: TensorDash, number: str = "fp16") -> float:
    """The mean over models of one of the three above."""
    function = {"core": core_efficiency, "chip": chip_efficiency, "share": core_share}[what]
    return fmean(function(source(name), array, number) for name in NAMES)


def core() -> Measured:
    by_model = {name: core_efficiency(recorded(name), PAPER) for name in NAMES}
    return Measured(
        fmean(by_model.values()),
        note=f"{STAND_IN}, mean over eight models.",
        verdict="substitute",
        printed=mean_of("core", printed, PAPER),
        details=f"{listed(by_model)}.",
    )


def whole_chip() -> Measured:
    by_model = {name: chip_efficiency(recorded(name), PAPER) for name in NAMES}
    ours, theirs = mean_of("share", recorded, PAPER), mean_of("share", printed, PAPER)
    low, high = IMPLIED_CORE_SHARE
    return Measured(
        fmean(by_model.values()),
        note=f"{STAND_IN}, the core is {100 * ours:.0f} % of the baseline's energy; the paper's figures imply {100 * low:.0f} to "
        f"{100 * high:.0f} %.",
        verdict="substitute",
        printed=mean_of("chip", printed, PAPER),
        details=f"With printed zeros the core is {100 * theirs:.0f} %. Memories move what a batch of {BATCH} moves. "
        f"{listed(by_model)}.",
    )


def bfloat16(what: str) -> Measured:
    return Measured(
        mean_of(what, recorded, PAPER, "bf16"),
        note=f"{STAND_IN} and the schedule of FP16; cores take the energy of bf16 multiply-accumulates in our tables.",
        verdict="substitute",
        printed=mean_of(what, printed, PAPER, "bf16"),
    )


def dense_model_speedup() -> Measured:
    subject = recorded(GCN.name)
    return Measured(
        speedup(subject, PAPER),
        note=f"{STAND_IN}: those of dropout (a tenth of A) and of padding.",
        verdict="substitute",
        details=sentence(subject.about),
    )


def dense_model_energy() -> Measured:
    subject = recorded(GCN.name)
    with_bypass, without = (chip_efficiency(subject, replace(PAPER, bypass=share)) for share in (PAPER.bypass, 0.0))
    return Measured(
        with_bypass,
        note=f"{STAND_IN} and added parts gated where fewer than {100 * PAPER.bypass:g} % are zero; {without:.4f} without gating.",
        verdict="substitute",
        details=sentence(subject.about),
    )


EXPERIMENTS: Experiments = {
    "tensordash.energy.core": core,
    "tensordash.energy.chip": whole_chip,
    "tensordash.bfloat16.core_energy": partial(bfloat16, "core"),
    "tensordash.bfloat16.chip_energy": partial(bfloat16, "chip"),
    "tensordash.dense_model.speedup": dense_model_speedup,
    "tensordash.dense_model.energy": dense_model_energy,
}
