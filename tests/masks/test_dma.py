"""A DMA engine that compresses zeros: which tensors are known, what crosses the pins in which format, what lies on chip."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.arrays import Systolic
from trainyard.devices import Accelerator
from trainyard.errors import UnknownName
from trainyard.hardware.formats.matrices import format_named
from trainyard.hardware.formats.zero_compression import encode
from trainyard.ir import (
    DENSE,
    ArrayCost,
    Convolution,
    ElementWise,
    MatMul,
    Op,
    Phase,
    Role,
    Step,
    TensorSpec,
    Update,
    one_after_another,
)
from trainyard.masks.dma import StoredSize, densities, moved_bytes, stored_sizes

ARRAY = Systolic(rows=8, columns=8)
RAW = Accelerator(array=ARRAY, scratchpad="1 GiB", dram="4 GB/s", clock="1 GHz", dram_latency=0, fusion="none", precision="fp16")
ZERO = replace(RAW, dma="zero_compressed")
BATCH, WIDE = 24, 40


@dataclass(frozen=True)
class Recorded:
    """Masks with bits alone, as a generator of them may be."""

    tensors: dict = field(default_factory=dict)
    digest: str = "recorded"

    def bits(self, key):
        if key not in self.tensors:
            raise UnknownName("mask", str(key), map(str, self.tensors))
        return self.tensors[key] != 0


@dataclass(frozen=True)
class Counted(Recorded):
    """Masks that know how full they are without being unpacked."""

    @property
    def specs(self):
        return self.tensors

    def density(self, key):
        return float((self.tensors[key] != 0).mean())

    def bits(self, key):
        raise AssertionError("the density is counted already")


def two_layers(inplace=False):
    """Linear, ReLU, linear, and the backward pass of all three; the update of the first weight."""
    rows, weight = TensorSpec((BATCH, WIDE)), TensorSpec((WIDE, WIDE), role=Role.PARAMETER)
    gradient, change = replace(rows, role=Role.GRADIENT), replace(weight, role=Role.PARAMETER_GRADIENT)
    activation = replace(rows, view_of=3) if inplace else rows
    # 0 x, 1 w1, 2 w2, 3 y1, 4 relu(y1), 5 y2, 6 g2, 7 dX2, 8 g1, 9 dW2, 10 dW1, 11 the next w1
    later = replace(weight, view_of=1)
    tensors = (rows, weight, weight, rows, activation, rows, gradient, gradient, gradient, change, change, later)
    forward, back, wide, n = Phase.FORWARD, Phase.GRAD_INPUT, MatMul(BATCH, WIDE, WIDE), BATCH * WIDE
    turned = MatMul(WIDE, WIDE, BATCH)
    ops = (
        Op(body=wide, layer="one", phase=forward, inputs=(0, 1), outputs=(3,), letters=("A", "W")),
        Op(body=ElementWise("relu", n), layer="relu", phase=forward, inputs=(3,), outputs=(4,)),
        Op(body=wide, layer="two", phase=forward, inputs=(4, 2), outputs=(5,), letters=("A", "W")),
        Op(body=wide, layer="two", phase=back, inputs=(6, 2), outputs=(7,), letters=("G", "W")),
        Op(body=turned, layer="two", phase=Phase.GRAD_WEIGHT, inputs=(6, 4), outputs=(9,), letters=("G", "A")),
        Op(body=ElementWise("threshold_backward", n), layer="relu", phase=back, inputs=(7, 4), outputs=(8,)),
        Op(body=turned, layer="one", phase=Phase.GRAD_WEIGHT, inputs=(8, 0), outputs=(10,), letters=("G", "A")),
        Op(body=Update("sgd", WIDE * WIDE, 2), layer="one", phase=Phase.UPDATE, inputs=(1, 10), outputs=(11,)),
    )
    return Step(name="two layers", batch=BATCH, ops=ops, tensors=tensors)


def values(seed=0, kept=0.3):
    """Numbers of every tensor that a product of `two_layers` reads; ReLU and its backward pass share their zeros."""
    random = np.random.default_rng(seed)
    built = {name: random.standard_normal((BATCH, WIDE)).astype(np.float16) for name in ("x", "a", "g2", "g1")}
    built |= {name: random.standard_normal((WIDE, WIDE)).astype(np.float16) for name in ("w1", "w2")}
    built["a"][random.random((BATCH, WIDE)) >= kept] = 0
    built["g1"][built["a"] == 0] = 0
    built["w1"][random.random((WIDE, WIDE)) < 0.9] = 0
    return built


def masks_of(built, kind=Recorded):
    keys = {"x": ("one", 0, "A"), "w1": ("one", 0, "W"), "g1": ("one", 0, "G")}
    keys |= {"a": ("two", 0, "A"), "w2": ("two", 0, "W"), "g2": ("two", 0, "G")}
    return kind({keys[name]: tensor for name, tensor in built.items() if name in keys})


def costs(device, step, masks=None):
    return [device.cost(step, work, masks) for work in device.works(step)]


# which tensors are known


@pytest.mark.parametrize("kind", [Recorded, Counted])
def test_every_access_of_a_tensor_has_the_density_of_the_products_mask(kind):
    built = values()
    actual = densities(two_layers(), masks_of(built, kind))
    full = {name: float((tensor != 0).mean()) for name, tensor in built.items()}
    assert actual[0, 0, "read"] == full["x"]
    assert (
        actual[1, 4, "write"] == actual[2, 4, "read"] == actual[5, 4, "read"] == full["a"]
    )  # ReLU writes it, its backward reads it
    assert actual[5, 8, "write"] == actual[6, 8, "read"] == full["g1"]
    assert actual[0, 1, "read"] == actual[7, 1, "read"] == full["w1"]
    assert actual[7, 1, "write"] == full["w1"]  # the next step's weight
    unknown = {(0, 3, "write"), (1, 3, "read"), (3, 7, "write"), (5, 7, "read"), (4, 9, "write"), (7, 10, "read")}
    assert not unknown & set(actual)  # before the ReLU, its gradient, weight gradients: no mask tells of them


def test_an_overwritten_tensor_has_a_density_of_its_own():
    """An in-place ReLU: one memory, full before it, sparse after."""
    built = values()
    actual = densities(two_layers(inplace=True), masks_of(built))
    assert actual[1, 3, "write"] == actual[2, 3, "read"] == float((built["a"] != 0).mean())
    assert (0, 3, "write") not in actual
    assert (1, 3, "read") not in actual


def test_parts_of_a_memory_count_by_their_size():
    """Two halves read by layers of their own, 1/4 and 3/4 full; each written by itself."""
    whole, half = TensorSpec((8, 8)), TensorSpec((4, 8), view_of=0)
    ops = (
        Op(body=ElementWise("relu", 32), outputs=(1,)),
        Op(body=ElementWise("relu", 32), outputs=(2,)),
        Op(body=MatMul(4, 8, 8), layer="left", inputs=(1, 3), outputs=(4,), letters=("A", "W")),
        Op(body=MatMul(4, 8, 8), layer="right", inputs=(2, 3), outputs=(5,), letters=("A", "W")),
    )
    tensors = (whole, half, half, TensorSpec((8, 8), role=Role.PARAMETER), TensorSpec((4, 8)), TensorSpec((4, 8)))
    quarter = np.arange(32).reshape(4, 8) % 4 == 0
    actual = densities(
        Step(name="parts", batch=1, ops=ops, tensors=tensors), Recorded({("left", 0, "A"): quarter, ("right", 0, "A"): ~quarter})
    )
    assert actual == {(0, 0, "write"): 0.5, (1, 0, "write"): 0.5, (2, 0, "read"): 0.5, (3, 0, "read"): 0.5}


# what crosses


@pytest.mark.oracle
@given(seed=st.integers(0, 100), kept=st.sampled_from([0.0, 0.02, 0.3, 0.9, 1.0]))
def test_dram_bytes_equal_those_of_the_real_encoding(seed, kept):
    built = values(seed, kept)
    step, whole = two_layers(), 2 * BATCH * WIDE
    actual = costs(ZERO, step, masks_of(built))
    size = {name: len(encode(tensor)) for name, tensor in built.items()}
    assert actual[0].bytes == {("X", "read"): size["x"], ("W", "read"): size["w1"], ("Y", "write"): whole}
    assert actual[1].bytes == {("activation", "read"): whole, ("activation", "write"): size["a"]}
    assert actual[2].bytes == {("X", "read"): size["a"], ("W", "read"): size["w2"], ("Y", "write"): whole}
    assert actual[4].bytes == {("dY", "read"): size["g2"], ("X", "read"): size["a"], ("dW", "write"): 2 * WIDE * WIDE}
    assert actual[5].bytes == {
        ("gradient", "read"): whole, ("activation", "read"): size["a"], ("gradient", "write"): size["g1"],
    }  # fmt: skip
    assert actual[7].bytes["parameter", "read"] == actual[7].bytes["parameter", "write"] == size["w1"]


def test_scratchpad_sizes_stay_uncompressed():
    built = values()
    step = two_layers()
    packed, plain = costs(ZERO, step, masks_of(built)), costs(RAW, step, masks_of(built))
    for small, large in zip(packed, plain, strict=True):
        for event in ("scratchpad_read", "scratchpad_write"):
            assert small.events[event] == large.events[event]
        assert small.events["dram_read"] + small.events["dram_write"] == sum(small.bytes.values())
    assert packed[2].events["dram_read"] < plain[2].events["dram_read"]
    assert packed[1].events["dram_write"] < plain[1].events["dram_write"]


def test_every_read_of_an_operand_is_compressed_and_expanded():
    built = values()
    step, little = two_layers(), replace(ZERO, scratchpad_bytes=2000, tiling=(8, 8, 8))
    cost = costs(little, step, masks_of(built))[2]
    times, rest = divmod(cost.bytes["X", "read"], len(encode(built["a"])))
    assert rest == 0
    assert times > 1
    plain = costs(replace(little, dma="raw"), step)[2]
    own = ARRAY.cost(MatMul(BATCH, WIDE, WIDE)).events["scratchpad_write_out"] * 4
    held = times * built["a"].nbytes + cost.bytes["W", "read"] // len(encode(built["w2"])) * built["w2"].nbytes
    assert cost.events["scratchpad_write"] - own - cost.bytes.get(("Y", "spill"), 0) / 2 == held
    assert plain.cycles >= cost.cycles


def test_an_epilogue_writes_with_the_density_of_its_last_op():
    built = values()
    step, fused = two_layers(), replace(ZERO, fusion="epilogue")
    cost = costs(fused, step, masks_of(built))[0]
    x, w1, a = (len(encode(built[name])) for name in ("x", "w1", "a"))
    assert cost.bytes == {("X", "read"): x, ("W", "read"): w1, ("activation", "write"): a}


def test_costs_are_unchanged_without_masks_or_without_compression():
    built, step = values(), two_layers()
    assert costs(ZERO, step) == costs(RAW, step) == costs(RAW, step, masks_of(built))
    assert costs(ZERO, step, Recorded({})) == costs(RAW, step)
    dense = {name: np.ones_like(tensor) for name, tensor in built.items()}
    assert costs(ZERO, step, masks_of(dense)) == costs(RAW, step)  # what would grow stays as it is


def test_one_device_runs_several_masks_and_steps():
    step, other = two_layers(), two_layers(inplace=True)
    first, second = masks_of(values(1)), masks_of(values(2, kept=0.8))
    fresh = [costs(replace(ZERO), built, masks) for built in (step, other) for masks in (first, None, second)]
    assert [costs(ZERO, built, masks) for built in (step, other) for masks in (first, None, second)] == fresh
    assert pickle.loads(pickle.dumps(ZERO)) == ZERO


@settings(max_examples=30)
@given(seed=st.integers(0, 50), kept=st.floats(0, 1), less=st.floats(0, 1), room=st.sampled_from([1500, 4000, 2**20]))
def test_fewer_non_zeros_never_cost_time_or_bytes(seed, kept, less, room):
    step, device = two_layers(), replace(ZERO, scratchpad_bytes=room, dram_latency_s=5e-9)
    many = values(seed, kept)
    few = {name: tensor.copy() for name, tensor in many.items()}
    few["a"][np.random.default_rng(seed + 1).random((BATCH, WIDE)) >= less] = 0
    before, after = (costs(device, step, masks_of(built)) for built in (many, few))
    raw = costs(replace(device, dma="raw"), step)
    for full, empty, plain in zip(before, after, raw, strict=True):
        assert empty.cycles <= full.cycles <= plain.cycles
    assert all(sum(empty.bytes.values()) <= sum(full.bytes.values()) for empty, full in zip(after[:2], before[:2], strict=True))


def test_a_sparse_array_gains_from_compression_too():
    @dataclass(frozen=True)
    class Looking:
        """No closed form, so that each tile is asked for."""

        peak_macs_per_cycle: int = 64

        def granule(self):
            return (8, 8, 8)

        def cost(self, op, *, a=DENSE, b=DENSE):
            return ArrayCost(cycles=max(1, op.macs // 64), events={"mac": float(op.macs)})

        def concurrent(self, products):
            return one_after_another(self, products)

    built, step = values(), two_layers()
    looking = replace(ZERO, array=Looking())
    cost = costs(looking, step, masks_of(built))[2]
    assert cost.bytes["X", "read"] == len(encode(built["a"]))
    assert cost.cycles < costs(replace(looking, dma="raw"), step, masks_of(built))[2].cycles


@pytest.mark.probe
def test_a_tensor_is_rounded_to_whole_elements():
    assert moved_bytes(64, 2, 3 / 32) == 4 + 3 * 2
    assert moved_bytes(64, 2, 30 / 32) == 64
    assert moved_bytes(64, 2, 29 / 32) == 62


# formats


FORMATS = ("bitmap", "csr", "csc", "coo", "rlc4", "rlc2")


def stored_bytes(name, tensor):
    """The very encoding's, a byte at least, or the tensor's own where that is not larger."""
    return min(tensor.nbytes, max(1, -(-format_named(name).encode(tensor).bits // 8)))


@pytest.mark.oracle
@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=20)
@given(seed=st.integers(0, 100), kept=st.sampled_from([0.0, 0.02, 0.3, 0.9, 1.0]))
def test_dram_bytes_are_those_of_the_format_that_was_chosen(name, seed, kept):
    built, step, whole = values(seed, kept), two_layers(), 2 * BATCH * WIDE
    actual = costs(replace(RAW, dma=name), step, masks_of(built))
    size = {tensor: stored_bytes(name, built[tensor]) for tensor in built}
    assert actual[0].bytes == {("X", "read"): size["x"], ("W", "read"): size["w1"], ("Y", "write"): whole}
    assert actual[1].bytes == {("activation", "read"): whole, ("activation", "write"): size["a"]}
    assert actual[2].bytes == {("X", "read"): size["a"], ("W", "read"): size["w2"], ("Y", "write"): whole}
    assert actual[5].bytes["gradient", "write"] == size["g1"]
    assert actual[7].bytes["parameter", "read"] == actual[7].bytes["parameter", "write"] == size["w1"]
    for small, large in zip(actual, costs(RAW, step), strict=True):
        assert small.cycles <= large.cycles
        assert all(small.bytes[place] <= large.bytes[place] for place in large.bytes)
        assert small.events["scratchpad_read"] == large.events["scratchpad_read"]  # on chip everything has its whole size


@pytest.mark.parametrize("name", FORMATS)
def test_without_masks_or_without_zeros_a_format_changes_nothing(name):
    step, device = two_layers(), replace(RAW, dma=name)
    assert costs(device, step) == costs(RAW, step)
    assert costs(device, step, Recorded({})) == costs(RAW, step)
    dense = masks_of({name: np.ones_like(tensor) for name, tensor in values().items()})
    assert costs(device, step, dense) == costs(RAW, step)


def test_a_bitmap_takes_what_zero_compression_takes():
    step, masks = two_layers(), masks_of(values())
    assert costs(replace(RAW, dma="bitmap"), step, masks) == costs(ZERO, step, masks)


@pytest.mark.parametrize("name", FORMATS)
def test_tensors_of_convolutions_are_matrices_of_planes_and_of_filters(name):
    body = Convolution(batch=2, in_channels=3, out_channels=5, size=(6, 7), kernel=(3, 3))
    random = np.random.default_rng(0)
    images, filters = (random.random(shape) < 0.1 for shape in ((2, 3, 6, 7), (5, 3, 3, 3)))
    tensors = (TensorSpec((2, 3, 6, 7)), TensorSpec((5, 3, 3, 3), role=Role.PARAMETER), TensorSpec((2, 5, 4, 5)))
    op = Op(body=body, layer="conv", inputs=(0, 1), outputs=(2,), letters=("A", "W"))
    step = Step(name="one convolution", batch=2, ops=(op,), tensors=tensors)
    (cost,) = costs(replace(RAW, dma=name), step, Recorded({("conv", 0, "A"): images, ("conv", 0, "W"): filters}))
    planes, rows = images.reshape(6, 42).astype(np.float16), filters.reshape(5, 27).astype(np.float16)
    assert cost.bytes["X", "read"] == stored_bytes(name, planes)
    assert cost.bytes["W", "read"] == stored_bytes(name, rows)


def test_densities_alone_give_expected_run_lengths():
    @dataclass(frozen=True)
    class Shares:
        """As of operands that were counted together: no bits of their own."""

        digest: str = "shares"
        specs: tuple = (("two", 0, "A"),)

        def spec(self, key):
            return TensorSpec((BATCH, WIDE))

        def density(self, key):
            return 0.25

        def bits(self, key):
            raise UnknownName("mask", str(key), ())

    actual = stored_sizes(two_layers(), Shares(), "rlc2")[2, 4, "read"]
    expected = format_named("rlc2").expected_bits(BATCH, WIDE, 0.25, 1)
    assert actual == StoredSize(expected.metadata / (BATCH * WIDE), (expected.values + expected.padding) / (BATCH * WIDE))
    assert stored_sizes(two_layers(), Shares(), "csr")[2, 4, "read"] == StoredSize(0.25 * 6 + 25 * 8 / (BATCH * WIDE), 0.25)


@pytest.mark.probe
def test_a_tensor_stays_dense_where_the_format_takes_one_byte_more():
    assert moved_bytes(64, 2, StoredSize(31 / 32, 30 / 32)) == 64  # 31 bits and 60 bytes: all 64
    assert moved_bytes(64, 2, StoredSize(33 / 32, 29 / 32)) == 63
    assert moved_bytes(64, 2, StoredSize(17.0, 30 / 32)) == 64
    assert moved_bytes(64, 2, StoredSize(0.0, 0.0)) == 1
    assert moved_bytes(0, 2, StoredSize(0.0, 0.0)) == 0


def test_an_unknown_format_raises():
    with pytest.raises(UnknownName, match="unknown dma 'rlc3' in Accelerator: did you mean 'rlc"):
        replace(RAW, dma="rlc3")
