"""Masks of one device's share: its bits are slices of the whole's, and the shares of all devices add up to the whole."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import trainyard as ty
from trainyard.arrays.sigma.array import Sigma
from trainyard.arrays.tensordash.array import TensorDash
from trainyard.devices import Accelerator
from trainyard.devices.accelerator.masked_tiles import viewer
from trainyard.errors import BadInput, UnknownName
from trainyard.ir import DENSE, Collective, Masks, MatMul, Op, Step, TensorKey, Work
from trainyard.ir.step import letter_of
from trainyard.mapping.parallel import transform as parallel
from trainyard.masks.dma import densities
from trainyard.masks.lookup import mask_of
from trainyard.masks.shards import Cut, Shards, notes_of, shards
from trainyard.masks.views import matrix, shape_of, unpacked
from trainyard.systems import DeviceCentric, Replicas
from trainyard.systems.node.plan import one_device
from trainyard.workloads.capture import capture
from trainyard.workloads.recording import record_masks

BATCH, DEVICES, TIMES = 8, 4, 5
MINE = BATCH // DEVICES
Bits = npt.NDArray[np.bool_]
Mode = Literal["data", "model", "mixed"]
MODES: tuple[Mode, ...] = ("data", "model", "mixed")
ARRAYS = (
    TensorDash(tiles=2, sides="two"),
    TensorDash(tiles=2, scheduled="a", bypass=0.0),  # by the sparser operand, tiles of other sizes may choose another
    Sigma(dpes=2, multipliers=8),
)


class Images(nn.Module):
    """Convolutions, one with a group for every device and one with fewer, one transposed, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.own = nn.Conv2d(8, 8, 3, padding=1, groups=4)
        self.few = nn.Conv2d(8, 16, 3, groups=2)
        self.turned = nn.ConvTranspose2d(16, 8, 2)
        self.last = nn.Linear(8 * 9, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.first, self.own, self.few, self.turned):
            x = layer(x).relu()
        return self.last(x.flatten(1))


class Sequences(nn.Module):
    """An LSTM and a linear layer over all its steps, in which time may come before samples."""

    def __init__(self, time_first: bool) -> None:
        super().__init__()
        self.time_first = time_first
        self.rnn, self.head = nn.LSTM(6, 8, batch_first=not time_first), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.transpose(0, 1).contiguous() if self.time_first else x
        return self.head(self.rnn(x)[0].relu())


def model_of(name: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(5)
    if name == "images":
        return Images(), torch.randn(BATCH, 4, 7, 7).relu()
    return Sequences(time_first=name == "time"), torch.randn(BATCH, TIMES, 6).relu()


def loss(output: torch.Tensor) -> torch.Tensor:
    return output.relu().square().sum()


@pytest.fixture(scope="module")
def steps() -> dict[str, Step]:
    return {name: capture(model, (x,), loss=loss) for name in ("images", "time", "batch") for model, x in (model_of(name),)}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(model, samples) -> masks of a real training step."""
    actual: dict[tuple[str, int | None], Masks] = {}

    def of(name: str, samples: int | None = None) -> Masks:
        if (name, samples) not in actual:
            model, x = model_of(name)
            path = Path(tmp_path_factory.mktemp("masks")) / "run.safetensors"
            actual[name, samples] = record_masks(lambda: loss(model(x)).backward(), model, path=path, samples=samples)
        return actual[name, samples]

    return of


def step_of_one_device(step: Step, mode: Mode, devices: int = DEVICES) -> Step:
    if mode == "data":
        return parallel.data(step, devices)
    if mode == "model":
        return parallel.model(step, devices)
    last = "last" if "last" in step.layers else "head"
    choice = {layer: "model" if layer.startswith(last) else "data" for layer in step.layers}
    return parallel.mixed(step, devices, choice={layer: choice[layer] for layer in choice if layer})  # type: ignore[arg-type]


def pairs_of(whole: Step, part: Step) -> Iterator[tuple[Op, Op]]:
    """Products of both; these small steps keep them all, in order."""
    both = [[op for op in step.ops if op.is_product] for step in (whole, part)]
    return zip(*both, strict=True)


def operand_bits(step: Step, op: Op, side: int, masks: Masks) -> Bits | None:
    actual = mask_of(step, op, side, letter_of(step, op, side), masks)
    return None if actual is None else unpacked(*actual)


def slice_by_hand(op: Op, letter: str, bits: Bits, by_sample: bool, time_first: bool, device: int) -> Bits:
    """A device's slice of a tensor, layer by layer, as one would write it by hand."""
    samples = slice(device * MINE, (device + 1) * MINE)
    if by_sample and letter != "W":
        if op.layer == "head":
            grid = bits.reshape(TIMES, BATCH, -1)[:, samples] if time_first else bits.reshape(BATCH, TIMES, -1)[samples]
            return grid.reshape(TIMES * MINE, -1)
        return bits[samples]
    if by_sample:
        return bits
    if op.layer == "few" and letter != "A":  # two groups: each device has a quarter of each
        axis = 0 if letter == "W" else 1
        return np.take(bits, [2 * device, 2 * device + 1, 8 + 2 * device, 9 + 2 * device], axis)
    if letter == "A" and op.layer != "own":
        return bits
    axis = {"W": 1 if op.layer == "turned" else 0}.get(letter, 1)
    each = bits.shape[axis] // DEVICES
    return np.take(bits, range(device * each, (device + 1) * each), axis)


@pytest.mark.parametrize("kind", ["generated", "recorded"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["images", "time", "batch"])
def test_a_shards_bits_are_slices_of_the_whole_mask(
    steps: dict[str, Step], recorded: Any, name: str, mode: Mode, kind: str
) -> None:
    step = steps[name]
    masks = recorded(name) if kind == "recorded" else ty.generated_masks(step, {"A": 0.5, "G": 0.4, "W": 0.3})
    part = step_of_one_device(step, mode)
    compared = 0
    for device in range(DEVICES):
        mine = shards(masks, step, part, device=device)
        assert notes_of(mine) == ()
        for whole, op in pairs_of(step, part):
            by_sample = mode == "data" or (mode == "mixed" and op.layer not in ("last", "head"))
            for side in (0, 1):
                letter, bits = letter_of(part, op, side), operand_bits(step, whole, side, masks)
                actual = operand_bits(part, op, side, mine)
                assert (bits is None) == (actual is None)
                if bits is not None and actual is not None:
                    flat = bits.reshape(-1, bits.shape[-1]) if bits.ndim == 3 else bits
                    target = slice_by_hand(op, letter, flat, by_sample, name == "time", device)
                    assert actual.size == target.size
                    assert np.array_equal(actual.reshape(target.shape), target), (op.layer, op.phase, letter, device)
                    compared += 1
    assert compared >= DEVICES * 20


@pytest.mark.parametrize("array", ARRAYS, ids=("two-sided", "one-sided", "sigma"))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["images", "time"])
def test_effectual_macs_of_all_devices_sum_to_the_whole(steps: dict[str, Step], name: str, mode: Mode, array: Any) -> None:
    step, part = steps[name], step_of_one_device(steps[name], mode)
    masks = ty.generated_masks(step, {"A": 0.5, "G": 0.4, "W": 0.3})
    device = Accelerator(array=array, scratchpad="8 KiB", dram="1 TB/s", fusion="none")

    def effectual(of: Step, operand_bits: Masks) -> list[float]:
        return [device.cost(of, Work(ops=(index,)), operand_bits).events["mac"] for index, op in enumerate(of.ops) if op.is_product]

    whole = effectual(step, masks)
    shares = np.sum([effectual(part, shards(masks, step, part, device=number)) for number in range(DEVICES)], axis=0)
    assert list(shares) == whole
    assert sum(whole) < step.macs  # zeros were skipped


@pytest.mark.parametrize("samples", [1, 2, 4])
def test_shards_repeat_recorded_samples_like_the_whole(steps: dict[str, Step], recorded: Any, samples: int) -> None:
    step, masks = steps["images"], recorded("images", samples)
    part = parallel.data(step, DEVICES)
    for device in range(DEVICES):
        mine = shards(masks, step, part, device=device)
        for whole, op in pairs_of(step, part):
            if op.layer != "last" or op.phase != "forward":
                continue
            assert isinstance(op.body, MatMul)
            have = matrix(viewer(step, whole, "col2im", masks, 0)(0, (device * MINE, (device + 1) * MINE), (0, op.body.K)))  # type: ignore[arg-type]
            actual = matrix(viewer(part, op, "col2im", mine, 0)(0, (0, MINE), (0, op.body.K)))  # type: ignore[arg-type]
            assert np.array_equal(actual, have)
        first = next(key for key in mine.specs if key[0] == "first" and key[2].startswith("A"))  # type: ignore[attr-defined]
        rows = [(device * MINE + row) % samples for row in range(MINE)]
        assert np.array_equal(np.resize(mine.bits(first), (MINE, 4, 7, 7)), masks.bits(("first", 0, "A"))[rows])
        assert len(mine.bits(first)) == min(samples, MINE)


grids = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=4)


@given(grids, st.integers(0, 3), st.integers(0, 5), st.integers(1, 12), st.randoms(use_true_random=False))
def test_a_cut_equals_a_loop_over_all_elements(
    axes: list[tuple[int, int]], rows: int, device: int, recorded: int, random: Any
) -> None:
    """Against a walk over every element of the piece; pieces need not divide, recorded rows need not divide the piece."""
    rows = min(rows, len(axes))
    part = tuple(mine for _, mine in axes)
    whole = tuple(mine * factor - random.randrange(mine) if factor > 1 else mine for factor, mine in axes)
    recorded = min(recorded, math.prod(whole[:rows]))
    across = whole[rows:]
    bits = np.array([random.random() < 0.5 for _ in range(recorded * math.prod(across))], dtype=bool).reshape(recorded, *across)
    cut = Cut.between(whole, part, rows, device)
    starts = [min(device * mine, size - mine) for size, mine in zip(whole, part, strict=True)]
    target = []
    for place in np.ndindex(*part):
        at = [start + offset for start, offset in zip(starts, place, strict=True)]
        row = 0
        for axis in range(rows):
            row = row * whole[axis] + at[axis]
        target.append(bits[(row % recorded, *at[rows:])])
    actual = cut.of(bits)
    assert cut.fits(bits.shape)
    height = math.prod(part[:rows])
    assert height % len(actual) == 0  # a view repeats it
    assert np.tile(actual.reshape(len(actual), -1), (height // len(actual), 1)).reshape(-1).tolist() == target


@pytest.mark.parametrize("mode", MODES)
def test_shard_densities_equal_their_bits_and_average_to_the_whole(steps: dict[str, Step], mode: Mode) -> None:
    step, part = steps["images"], step_of_one_device(steps["images"], mode)
    masks = ty.generated_masks(step, {"A": 0.5, "G": 0.4, "W": 0.3})
    mine = [shards(masks, step, part, device=device) for device in range(DEVICES)]
    for whole, op in pairs_of(step, part):
        for side in (0, 1):
            keys = [mask_of(part, op, side, letter_of(part, op, side), one) for one in mine]
            shares = [source.density(key) for source, key in filter(None, keys)]  # type: ignore[attr-defined]
            known = mask_of(step, whole, side, letter_of(step, whole, side), masks)
            assert known is not None
            assert np.mean(shares) == pytest.approx(unpacked(*known).mean(), abs=0.05)
    assert all(0 < share < 1 for share in densities(part, mine[0]).values() if isinstance(share, float))


def test_a_shard_knows_its_shape_without_bits_and_has_its_own_digest(steps: dict[str, Step]) -> None:
    step = steps["images"]
    masks = ty.generated_masks(step, {"A": 0.5})
    parts = [step_of_one_device(step, mode) for mode in MODES]
    actual = [shards(masks, step, part, device=device) for part in parts for device in (0, 1)]
    assert len({one.digest for one in (masks, *actual)}) == 7
    again = Shards(masks, step, parts[0])  # content, not identity
    assert again.digest == actual[0].digest
    assert shards(masks, step, parts[0]) is actual[0]
    assert shards(masks, step, step) is masks
    assert shards(None, step, parts[0]) is None
    for one in actual:
        for key in one.specs:  # type: ignore[attr-defined]
            assert shape_of(one, key) == one.bits(key).shape
    with pytest.raises(UnknownName, match="nowhere/0/A"):
        actual[0].bits(("nowhere", 0, "A"))
    with pytest.raises(BadInput, match="device is a number from 0 on"):
        shards(masks, step, parts[0], device=-1)


@dataclass(frozen=True)
class Odd:
    """A source that lists nothing, and whose mask of one layer is another tensor's."""

    digest: str = "odd"

    def bits(self, key: TensorKey) -> Bits:
        shapes = {("last", 0, "A"): (BATCH, 71), ("first", 0, "A"): (BATCH, 4, 7, 7)}
        if key not in shapes:
            raise UnknownName("mask", str(key), (), "odd masks")
        return np.ones(shapes[key], dtype=bool)


def test_masks_that_cannot_be_cut_are_dense_and_noted(steps: dict[str, Step]) -> None:
    step, part = steps["images"], step_of_one_device(steps["images"], "data")
    mine = shards(Odd(), step, part)
    assert notes_of(mine) == ()  # nobody has asked
    forward = [op for op in part.ops if op.is_product and op.phase == "forward"]
    known = {op.layer: viewer(part, op, "col2im", mine, 0)(0, (0, 1), (0, 1)) for op in forward}
    assert [layer for layer, view in known.items() if view is not DENSE] == ["first"]
    assert notes_of(mine) == ("masks of 1 layer cannot be divided among devices and count as dense there: last",)


@pytest.mark.parametrize("mode", MODES)
def test_a_node_skips_the_zeros_of_its_share(steps: dict[str, Step], mode: Mode) -> None:
    """Its compute is the first device's, Work by Work, with the zeros of its own share."""
    step = steps["images"]
    device = Accelerator(array=Sigma(dpes=2, multipliers=8), scratchpad="8 KiB", dram="1 TB/s")
    node = DeviceCentric(device=device, devices=DEVICES, links=4, parallel=mode, overlay="off")
    dense, masks = (ty.generated_masks(step, {"A": share, "G": share, "W": 0.0}) for share in (0.0, 0.7))
    actual = ty.run(step, on=node, masks=masks)
    part = one_device(node, step)
    mine = shards(masks, step, part)
    works = [work for work in device.works(part) if not isinstance(part.ops[work.ops[0]].body, Collective)]
    cycles = sum(device.cost(part, work, mine).cycles for work in works)
    assert actual.group("kind")["compute",].busy_s == pytest.approx(cycles / device.clock_hz)
    assert actual.time_s < ty.run(step, on=node, masks=dense).time_s
    assert not any("masks" in note for note in actual.notes)
    unfolded = ty.run(step, on=replace(node, fold=False), masks=masks)
    assert unfolded.time_s == pytest.approx(actual.time_s, rel=1e-6)


def test_replicas_get_their_shards(steps: dict[str, Step]) -> None:
    step = steps["batch"]
    device = Accelerator(array=TensorDash(tiles=2), scratchpad="8 KiB", dram="1 TB/s")
    system = Replicas(device=device, devices=DEVICES, link="50 GB/s")
    actual = ty.run(step, on=system, masks=ty.generated_masks(step, {"A": 0.7, "G": 0.7}))
    assert actual.time_s < ty.run(step, on=system).time_s
