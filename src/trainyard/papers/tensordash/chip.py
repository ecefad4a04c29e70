"""The whole chip at the paper's batch: products cut into the tiles of its memories, waiting for LPDDR4 of either channel width.

The paper trains with 64 to 143 samples (Sec. IV); zeros were kept of one or two. Were these few the batch, their weights would be
read for each of them: VGG16 would move nine times the bytes a sample. So a batch of 64 runs here, with the recorded or printed
shares of zeros at random places. Both chips compress zeros off-chip. Tiles are those of the least traffic of compressed tensors
and, among them, of the least energy (of W*G and A*G in turn: the fastest).

Table III has four channels of LPDDR4-3200 and not their width. JEDEC's channels have 16 bits, which makes 25.6 GB/s; the authors'
simulator has 64 bits, 102.4 GB/s. Neither chip gains the printed 1.95x, which is that of the array: most products wait for DRAM.

Sec. III "would like to avoid having to spill the gradients off-chip". Those of a batch are many times the 24 MiB on chip, but a
part of G can stay for both of its products: W*G and A*G of a layer take turns, tile by tile, wherever that moves fewer bytes
(`order="cost"` of the preset). G is then read once, in convolutions as in fully connected layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

from trainyard.devices import Accelerator
from trainyard.ir import DeviceCost, Work
from trainyard.ir.assumptions import Assumption
from trainyard.machines.presets.tensordash import TENSORCORE
from trainyard.mapping.works import separate_products
from trainyard.masks.densities import Densities
from trainyard.papers.tensordash.models import NAMES, Subject, operation
from trainyard.papers.tensordash.products import Array, Source, targeting
from trainyard.papers.tensordash.sweeps import PAPER

BATCH = 64  # Sec. IV: from as low as 64 and up to 143 samples
CHANNELS = 4  # Table III
TRANSFERS_PER_S = 3200e6  # Table III: LPDDR4-3200
CHANNEL_BITS = Assumption(
    name="channel_bits",
    value=16,
    meaning="bits of a channel of LPDDR4: 16 in JEDEC's standard, 64 in the authors' simulator",
    alternatives=(64,),
    path="dram_bytes_per_s",
)


def bytes_per_s(channel_bits: int) -> float:
    """Of all channels.

    >>> bytes_per_s(16) / 1e9, bytes_per_s(64) / 1e9
    (25.6, 102.4)
    """
    return CHANNELS * TRANSFERS_PER_S * channel_bits / 8


@cache
def device(array: Array, number: str = "fp16", channel_bits: int = CHANNEL_BITS.value) -> Accelerator:
    """The paper's chip with another array or other channels; it runs products only, in tiles of the least traffic and energy."""
    bandwidth = bytes_per_s(channel_bits)
    return replace(TENSORCORE, array=array, scope="products", precision=number, dram_bytes_per_s=bandwidth, objective="traffic")


@cache
def at_batch(subject: Subject) -> Subject:
    """The same model with a batch of 64, or as it is if that is larger, and the same shares of zeros, to the nearest per cent."""
    layers = {subject.step.ops[number].layer for number in subject.products}
    listed = [key for key in subject.masks.specs if key[0] in layers]  # type: ignore[attr-defined]  # all kinds of masks list theirs
    shares = {key: round(subject.masks.density(key), 2) for key in listed}  # type: ignore[attr-defined]
    return replace(subject, step=subject.step.rebatch(max(BATCH, subject.step.batch)), masks=Densities(subject.name, shares))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipWork:
    """A product on the chip, or W*G and A*G of a layer in turn."""

    layer: str
    weight: float
    cost: DeviceCost

    @property
    def events(self) -> Mapping[str, float]:
        return self.cost.events


@cache
def on_chip(subject: Subject, array: Array, channel_bits: int = CHANNEL_BITS.value) -> tuple[ChipWork, ...]:
    """Every product of a model at the paper's batch on the paper's chip with that array."""
    many = at_batch(subject)
    works = []
    for work in counted_works(many, device(array, channel_bits=channel_bits)):
        op = many.step.ops[work.ops[0]]
        chip = device(targeting(array, operation(op)), channel_bits=channel_bits)
        (weight,) = {many.weights[number] for number in work.ops}
        works.append(ChipWork(layer=op.layer, weight=weight, cost=chip.cost(many.step, work, many.masks)))
    return tuple(works)


def counted_works(subject: Subject, chip: Accelerator) -> Iterator[Work]:
    """The Works of a chip that consist of products that count; of W*G and A*G in turn, one may be left out."""
    for work in chip.works(subject.step):
        parts = (work,) if subject.products.issuperset(work.ops) else separate_products(subject.step, work)
        yield from (part for part in parts if subject.products.issuperset(part.ops))


def moved_bytes(subject: Subject, channel_bits: int = CHANNEL_BITS.value) -> float:
    """Bytes that cross the DRAM's pins for each sample, without TensorDash."""
    works = on_chip(subject, PAPER.baseline, channel_bits)
    return sum(work.weight * sum(work.cost.bytes.values()) for work in works) / at_batch(subject).step.batch


def gain(subject: Subject, channel_bits: int = CHANNEL_BITS.value, *, waiting: bool = True) -> float:
    """Speedup of the chip, with waiting for DRAM or of the array alone as the chip's tiles cut it."""
    dense, skipping = (
        sum(
            work.weight * (work.cost.cycles if waiting else work.cost.compute_cycles)
            for work in on_chip(subject, array, channel_bits)
        )
        for array in (PAPER.baseline, PAPER)
    )
    return dense / skipping


@cache
def gains(source: Source, channel_bits: int = CHANNEL_BITS.value) -> Mapping[str, float]:
    """The speedup of the chip for every model."""
    return {name: gain(source(name), channel_bits) for name in NAMES}


def mean_gain(source: Source, channel_bits: int = CHANNEL_BITS.value) -> float:
    return fmean(gains(source, channel_bits).values())
