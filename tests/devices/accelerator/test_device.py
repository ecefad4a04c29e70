"""The accelerator: construction, traffic by tensor, fusion, streams, energy."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.arrays import Sigma, Spatial, Systolic
from trainyard.devices import Accelerator
from trainyard.errors import BadInput, NotModelled, UnknownName
from trainyard.hardware.tables import energy
from trainyard.hardware.tables.energy import ram_joules_per_byte
from trainyard.ir import (
    Collective,
    Convolution,
    Copy,
    Device,
    ElementWise,
    Gather,
    MatMul,
    Op,
    Phase,
    Reduction,
    Role,
    Step,
    TensorSpec,
    Update,
    Work,
    assumptions_of,
)
from trainyard.mapping.tiling import Problem, search

ARRAY = Systolic(rows=16, columns=16)
BIG = Accelerator(array=ARRAY, scratchpad="1 GiB", dram="16 GB/s", clock="1 GHz", dram_latency=0)
CONV = Convolution(batch=2, in_channels=3, out_channels=8, size=(9, 9), kernel=(3, 3), stride=(2, 2), padding=(1, 1))


def made(ops, tensors):
    return Step(name="made", batch=2, ops=tuple(ops), tensors=tuple(tensors))


def costs(device, step, masks=None):
    return [device.cost(step, work, masks) for work in device.works(step)]


def convolution_step():
    """conv, relu, and the backward pass of both; the ReLU's output and its mask are kept."""
    x, w, y = TensorSpec((2, 3, 9, 9)), TensorSpec((8, 3, 3, 3), role=Role.PARAMETER), TensorSpec((2, 8, 5, 5))
    g = TensorSpec((2, 8, 5, 5), role=Role.GRADIENT)
    dw, dx = TensorSpec((8, 3, 3, 3), role=Role.PARAMETER_GRADIENT), TensorSpec((2, 3, 9, 9), role=Role.GRADIENT)
    state = TensorSpec((8, 3, 3, 3), role=Role.STATE)
    tensors = [x, w, y, y, g, g, dw, dx, state]
    n = y.elements
    ops = [
        Op(body=CONV, layer="conv", inputs=(0, 1), outputs=(2,), letters=("A", "W")),
        Op(body=ElementWise("relu", n), layer="relu", inputs=(2,), outputs=(3,)),
        Op(body=ElementWise("threshold_backward", n), layer="relu", phase=Phase.GRAD_INPUT, inputs=(4, 3), outputs=(5,)),
        Op(
            body=CONV.as_product("grad_weight"),
            layer="conv",
            phase=Phase.GRAD_WEIGHT,
            inputs=(5, 0),
            outputs=(6,),
            letters=("G", "A"),
        ),
        Op(
            body=CONV.as_product("grad_input"),
            layer="conv",
            phase=Phase.GRAD_INPUT,
            inputs=(5, 1),
            outputs=(7,),
            letters=("G", "W"),
        ),
        Op(body=Update("sgd", w.elements, 4), layer="conv", phase=Phase.UPDATE, inputs=(1, 6, 8), outputs=(1, 8)),
    ]
    return made(ops, tensors)


# construction


def test_quantities_with_units_and_si_fields_mean_the_same():
    plain = Accelerator(
        array=ARRAY, scratchpad_bytes=2**23, dram_bytes_per_s=150e9, clock_hz=1.05e9, dram_latency_s=1e-7, dram_capacity_bytes=10**9
    )
    assert plain == Accelerator(
        array=ARRAY, scratchpad="8 MiB", dram="150 GB/s", clock="1.05 GHz", dram_latency="100 ns", dram_capacity="1 GB"
    )
    assert hash(plain) == hash(replace(plain))
    assert isinstance(plain, Device)
    assert pickle.loads(pickle.dumps(plain)) == plain


def test_a_field_is_replaced_by_its_si_name():
    faster = replace(BIG, dram_bytes_per_s=2e9, array=Spatial(), precision={"parameter": "bf16"})
    assert (faster.dram_bytes_per_s, faster.scratchpad_bytes, faster.array) == (2e9, 2**30, Spatial())
    assert hash(faster) == hash(replace(faster))


def test_defaults_of_the_constructor_are_those_of_the_fields():
    signature = inspect.signature(Accelerator.__init__).parameters
    quantities = {"clock_hz", "dram_latency_s", "dram_capacity_bytes", "scratchpad_bytes", "dram_bytes_per_s", "array"}
    for field in fields(Accelerator):
        if field.init and field.name not in quantities:
            assert signature[field.name].default == field.default, field.name
    bare = Accelerator(array=ARRAY, scratchpad="1 MiB", dram="1 GB/s")
    for field in fields(Accelerator):
        if field.init and field.name not in ("array", "scratchpad_bytes", "dram_bytes_per_s"):
            assert getattr(bare, field.name) == field.default, field.name


# fmt: off
BAD = [
    ({"scratchpad": None},                        "needs scratchpad"),
    ({"dram": None},                              "needs dram"),
    ({"scratchpad_bytes": 5},                     "give scratchpad or scratchpad_bytes, not both"),
    ({"clock": "1 GHz", "clock_hz": 1e9},         "not both"),
    ({"clock": 0},                                "above 0"),
    ({"clock": -1e9},                             "above 0"),
    ({"clock": float("nan")},                     "not a finite number"),
    ({"dram": float("inf")},                      "not a finite number"),
    ({"dram": "150 GB"},                          "not a quantity in B/s"),
    ({"scratchpad": "-8 MiB"},                    "above 0"),
    ({"scratchpad": 10.5},                        "whole number of bytes"),
    ({"dram_latency": -1},                        "at least 0"),
    ({"tiling": (1, 2)},                          "three sizes"),
    ({"tiling": (1, 2, 0)},                       r"tiling\[k\] must be a positive"),
    ({"tiling": "greedy"},                        "'search' or three sizes"),
    ({"array": Systolic},                         "array must be an array such as"),
    ({"vector_lanes": 0},                         "vector_lanes must be a positive"),
    ({"technology_nm": 3},                        "outside the tables"),
]
# fmt: on


@pytest.mark.parametrize(("given", "said"), BAD)
def test_bad_values_are_refused_in_one_line(given, said):
    with pytest.raises(BadInput, match=said) as caught:
        Accelerator(**{"array": ARRAY, "scratchpad": "8 MiB", "dram": "150 GB/s", **given})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["fusion", "scope", "im2col", "grad_input", "dram_kind", "order", "precision"])
def test_unknown_choices_offer_the_known_ones(name):
    with pytest.raises(UnknownName, match="known: "):
        replace(BIG, **{name: "nothing"})


def test_open_choices_are_assumptions():
    names = {assumption.name for assumption in assumptions_of(BIG)}
    assert {"fusion", "scope", "im2col", "line_buffer", "grad_input", "vector_lanes", "accumulator_bytes"} <= names


def test_assumptions_without_an_effect_on_a_step_are_named():
    products = made([Op(body=MatMul(8, 8, 8), inputs=(0, 1), outputs=(2,))], [TensorSpec((8, 8))] * 3)
    unused = {"im2col", "line_buffer", "grad_input", "accumulator_bytes"}
    assert BIG.unused_assumptions(products) == unused
    assert replace(BIG, scope="products").unused_assumptions(products) == unused | {"fusion", "vector_lanes"}
    assert replace(BIG, precision="bf16").unused_assumptions(products) == unused - {"accumulator_bytes"}
    assert replace(BIG, accumulator_bytes=8).unused_assumptions(products) == unused - {"accumulator_bytes"}
    assert replace(BIG, reuse="slices").unused_assumptions(products) == unused - {"line_buffer"}
    step = convolution_step()
    assert BIG.unused_assumptions(step) == {"accumulator_bytes"}
    assert replace(BIG, im2col="materialised").unused_assumptions(step) == {"accumulator_bytes", "line_buffer"}


@pytest.mark.parametrize(("latency", "cycles"), [("100 ns", 100), ("100.5 ns", 101), ("0 s", 0)])
def test_half_of_the_scratchpad_and_dram_in_cycles_of_the_clock_supply_the_tiles(latency, cycles):
    device = Accelerator(array=ARRAY, scratchpad_bytes=1000, dram="3 GB/s", clock="1 GHz", dram_latency=latency)
    assert (device.supply.resident_bytes, device.supply.bytes_per_cycle, device.supply.latency_cycles) == (500, 3.0, cycles)


def test_peaks_are_those_of_all_cores_in_the_format_of_the_multipliers():
    macs = ARRAY.peak_macs_per_cycle
    device = replace(BIG, clock_hz=2e9, precision="fp8", rates={"fp8": 4}, technology_nm=7)
    assert (device.peaks.macs_per_s, device.peaks.technology) == (4 * 2e9 * macs, "7 nm")
    assert replace(BIG, clock_hz=2e9, cores=3, reuse="lru").peaks.macs_per_s == 3 * 2e9 * macs
    assert [replace(BIG, precision=p).number for p in (None, "bf16", {"activation": "fp16"}, {"parameter": "fp8"})] == [
        "fp32", "bf16", "fp16", "fp32",
    ]  # fmt: skip


def test_a_machine_that_makes_no_use_of_masks_says_so():
    assert "the Systolic array computes zeros like any other number" in BIG.masks_note
    assert replace(BIG, dma="bitmap").masks_note == ""
    assert replace(BIG, array=Sigma(dpes=4, multipliers=4, bandwidth=4)).masks_note == ""


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"across": "relu", "order": "cost", "reuse": "layers"}, "takes tiles from one layer into the next"),
        ({"cores": 2}, "2 cores share a scratchpad that keeps tiles"),
        ({"partition": "m"}, "give an order such as"),
        ({"across": "relu"}, "give an order such as order='cost' as well"),
        ({"rates": {"bf16": 2}, "reuse": "lru"}, "dX and dW reduce along different dimensions"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields, said):
    with pytest.raises(BadInput, match=said):
        replace(BIG, **fields)


# products


def test_the_three_products_of_a_layer_move_their_own_tensors():
    step = convolution_step()
    found = costs(replace(BIG, fusion="none"), step)
    assert found[0].bytes == {("X", "read"): 2 * 3 * 81 * 4, ("W", "read"): 216 * 4, ("Y", "write"): 400 * 4}
    assert found[3].bytes == {("X", "read"): 2 * 3 * 81 * 4, ("dY", "read"): 400 * 4, ("dW", "write"): 216 * 4}
    assert found[4].bytes == {("dY", "read"): 400 * 4, ("W", "read"): 216 * 4, ("dX", "write"): 486 * 4}
    assert [cost.events["mac"] for cost in (found[0], found[3], found[4])] == [CONV.macs] * 3


def test_materialised_columns_and_dilated_gradients_move_more():
    step = convolution_step()
    columns = 2 * 25 * 27 * 4
    found = costs(replace(BIG, fusion="none", im2col="materialised"), step)
    assert found[0].bytes["X", "read"] == columns
    assert found[4].bytes["dX", "write"] == columns
    dilated = costs(replace(BIG, fusion="none", grad_input="dilated"), step)[4]
    assert dilated.events["mac"] == 2 * 81 * 3 * 8 * 9 > CONV.macs


def test_a_product_costs_what_its_tiles_cost_without_the_closing_cycle():
    op = MatMul(70, 50, 90)
    step = made([Op(body=op, inputs=(0, 1), outputs=(2,))], [TensorSpec((70, 90)), TensorSpec((90, 50)), TensorSpec((70, 50))])
    device = replace(BIG, scratchpad_bytes=40_000, dram_latency_s=3e-8)
    (tiled,) = search([Problem.dense(op, 4)], ARRAY, device.supply)
    (cost,) = costs(device, step)
    assert (cost.cycles, cost.compute_cycles, sum(cost.bytes.values())) == (tiled.cycles, tiled.compute_cycles, tiled.dram_bytes)
    whole = costs(replace(BIG, dram_bytes_per_s=1e15), step)[0]
    assert whole.compute_cycles == ARRAY.cost(op).cycles + 1


def test_an_unlabelled_product_of_bare_dimensions_still_costs():
    (cost,) = costs(BIG, made([Op(body=MatMul(8, 8, 8))], []))
    assert cost.bytes == {("X", "read"): 256, ("W", "read"): 256, ("Y", "write"): 256}


def test_a_fixed_tile_is_never_faster_than_the_search():
    step = convolution_step()
    device = replace(BIG, scratchpad_bytes=20_000)
    best = sum(cost.cycles for cost in costs(device, step))
    for tile in [(16, 16, 16), (32, 16, 16), (64, 8, 16)]:
        assert sum(cost.cycles for cost in costs(replace(device, tiling=tile), step)) >= best


@given(
    speed=st.floats(1e8, 1e12),
    more=st.floats(1, 20),
    room=st.integers(5_000, 10**6),
    larger=st.integers(0, 10**6),
    array=st.sampled_from([ARRAY, Spatial(elements=16, macs_per_element=8)]),
)
def test_more_bandwidth_more_scratchpad_and_less_latency_never_cost_time(speed, more, room, larger, array):
    step = convolution_step()
    device = replace(BIG, array=array, dram_bytes_per_s=speed, scratchpad_bytes=room, dram_latency_s=1e-7)
    better = [
        replace(device, dram_bytes_per_s=speed * more),
        replace(device, scratchpad_bytes=room + larger),
        replace(device, dram_latency_s=1e-8),
        replace(device, vector_lanes=4096),
    ]
    before = [cost.cycles for cost in costs(device, step)]
    for other in better:
        # of tilings within 1 % of the least time the one with the least traffic is taken
        assert all(new <= old * 1.01 for new, old in zip((cost.cycles for cost in costs(other, step)), before, strict=True))


# chains


def test_an_epilogue_keeps_what_only_it_reads_on_chip():
    step = convolution_step()
    works = BIG.works(step)
    assert [work.ops for work in works] == [(0, 1), (2,), (3,), (4,), (5,)]
    fused = BIG.cost(step, works[0])
    assert fused.bytes == {("X", "read"): 2 * 3 * 81 * 4, ("W", "read"): 216 * 4, ("activation", "write"): 400 * 4}
    assert fused.events["vector_op"] == 400
    apart = costs(replace(BIG, fusion="none"), step)
    assert fused.cycles <= apart[0].cycles + apart[1].cycles
    assert sum(fused.bytes.values()) == sum(sum(cost.bytes.values()) for cost in apart[:2]) - 2 * 400 * 4


def test_an_intermediate_that_others_read_is_written_too():
    step = convolution_step()
    reader = Op(body=Copy("clone", 400), inputs=(2,), outputs=(9,))
    longer = made((*step.ops, reader), (*step.tensors, TensorSpec((2, 8, 5, 5))))
    fused = BIG.cost(longer, BIG.works(longer)[0])
    assert (fused.bytes["Y", "write"], fused.bytes["activation", "write"]) == (1600, 1600)


def test_bias_and_residual_are_read_with_the_sums():
    square, row = TensorSpec((8, 8)), TensorSpec((8,), role=Role.PARAMETER)
    ops = [
        Op(body=MatMul(8, 8, 8), inputs=(0, 1, 2), outputs=(3,), letters=("A", "W")),
        Op(body=ElementWise("add", 64), inputs=(3, 4), outputs=(5,)),
    ]
    (cost,) = costs(BIG, made(ops, [square, square, row, square, square, square]))
    assert cost.bytes["parameter", "read"] == 8 * 4
    assert cost.bytes["activation", "read"] == cost.bytes["activation", "write"] == 64 * 4


@given(lanes=st.sampled_from([1, 16, 1024]), speed=st.floats(1e7, 1e12), fusion=st.sampled_from(["epilogue", "none"]))
def test_shares_sum_to_exactly_one(lanes, speed, fusion):
    step = convolution_step()
    device = replace(BIG, vector_lanes=lanes, dram_bytes_per_s=speed, fusion=fusion)
    for work, cost in zip(device.works(step), costs(device, step), strict=True):
        assert len(cost.share) == len(work.ops)
        assert sum(cost.share) == 1.0
        assert all(share >= 0 for share in cost.share)
        assert cost.cycles >= cost.compute_cycles
        assert cost.compute_cycles > 0 or cost.bound == "dram"


def attention(length, fused=1):
    """softmax(Q K^T) V of 4 heads in one kernel; the scores stay on chip."""
    heads, wide = TensorSpec((4, length, 8)), TensorSpec((4, length, length))
    ops = [
        Op(body=MatMul(length, length, 8, 4), inputs=(0, 1), outputs=(3,), fused=fused),
        Op(body=Reduction("softmax", 4 * length**2, 4 * length**2, 3), inputs=(3,), outputs=(4,), fused=fused),
        Op(body=MatMul(length, 8, length, 4), inputs=(4, 2), outputs=(5,), fused=fused),
    ]
    return made(ops, [heads, heads, heads, wide, wide, heads])


def test_a_fused_kernel_moves_only_what_comes_from_outside():
    step = attention(64)
    (cost,) = costs(BIG, step)
    assert sum(cost.bytes.values()) == 4 * (4 * 64 * 8) * 4
    assert cost.events["mac"] == step.macs
    assert cost.compute_cycles == 4 * (ARRAY.tile_cycles(64, 64, 8) + ARRAY.tile_cycles(64, 8, 64))
    apart = costs(BIG, attention(64, fused=None))
    assert sum(sum(c.bytes.values()) for c in apart) > sum(cost.bytes.values())
    small = costs(replace(BIG, scratchpad_bytes=4096), step)[0]
    assert sum(small.bytes.values()) > sum(cost.bytes.values())


def test_q_k_and_v_of_one_projection_are_three_parts_of_its_result():
    step = attention(64)
    part = TensorSpec((4, 64, 8), view_of=0)
    ops = [replace(op, inputs=tuple(t + 1 for t in op.inputs), outputs=tuple(t + 1 for t in op.outputs)) for op in step.ops]
    packed = made(ops, [TensorSpec((3, 4, 64, 8)), part, part, part, *step.tensors[3:]])
    for device in (BIG, replace(BIG, scratchpad_bytes=4096)):
        assert sum(costs(device, packed)[0].bytes.values()) == sum(costs(device, step)[0].bytes.values())


# everything else


def test_streams_take_the_time_of_their_bytes_or_of_their_arithmetic():
    tensors = [TensorSpec((1000,)), TensorSpec((1000,))]
    step = made([Op(body=ElementWise("exp", 1000, 4), inputs=(0,), outputs=(1,))], tensors)
    (cost,) = costs(BIG, step)  # 16 bytes per cycle
    assert (cost.cycles, cost.bound) == (500, "dram")
    (cost,) = costs(replace(BIG, vector_lanes=2), step)
    assert (cost.cycles, cost.bound, cost.compute_cycles) == (2000, "vector", 2000)
    (cost,) = costs(replace(BIG, dram_latency_s=1e-7), step)
    assert cost.cycles == 600


def test_a_broadcast_view_reads_only_what_it_repeats():
    tensors = [TensorSpec((1, 10)), TensorSpec((100, 10), view_of=0), TensorSpec((100, 10))]
    (cost,) = costs(BIG, made([Op(body=ElementWise("copy", 1000), inputs=(1,), outputs=(2,))], tensors))
    assert cost.bytes == {("activation", "read"): 40, ("activation", "write"): 4000}


def test_a_gather_touches_rows_not_the_table():
    tensors = [TensorSpec((10**6, 16), role=Role.PARAMETER), TensorSpec((5,), "int64", Role.INPUT), TensorSpec((5, 16))]
    (cost,) = costs(BIG, made([Op(body=Gather(5, 16, 10**6), inputs=(0, 1), outputs=(2,))], tensors))
    assert cost.bytes == {("parameter", "read"): 320, ("activation", "write"): 320, ("input", "read"): 40}
    gradient = TensorSpec((10**6, 16), role=Role.PARAMETER_GRADIENT)
    scatter = Op(body=Gather(5, 16, 10**6, scatter=True), inputs=(2, 1), outputs=(3,))
    (cost,) = costs(BIG, made([scatter], [*tensors, gradient]))
    assert cost.bytes["parameter_gradient", "read"] == cost.bytes["parameter_gradient", "write"] == 320


def test_a_normalisation_reads_again_only_what_does_not_fit():
    tensors = [TensorSpec((8, 4, 1000)), TensorSpec((8, 4, 1000))]
    step = made([Op(body=Reduction("batch_norm", 32000, 32000, 2), inputs=(0,), outputs=(1,))], tensors)
    (fits,) = costs(BIG, step)
    (spilled,) = costs(replace(BIG, scratchpad_bytes=32_000), step)  # a channel of 8000 elements: 32,000 bytes
    assert fits.bytes["activation", "read"] == 128_000
    assert spilled.bytes["activation", "read"] == 256_000


def test_precision_changes_numbers_but_not_indices():
    step = convolution_step()
    half = costs(replace(BIG, precision="bf16"), step)
    full = costs(BIG, step)
    assert [sum(c.bytes.values()) * 2 for c in half] == [sum(c.bytes.values()) for c in full]
    weights = costs(replace(BIG, precision={"parameter": "fp8"}), step)[0]
    assert weights.bytes["W", "read"] == 216
    assert weights.bytes["X", "read"] == full[0].bytes["X", "read"]
    tensors = [TensorSpec((10, 16), role=Role.PARAMETER), TensorSpec((5,), "int64", Role.INPUT), TensorSpec((5, 16))]
    gather = made([Op(body=Gather(5, 16, 10), inputs=(0, 1), outputs=(2,))], tensors)
    (cost,) = costs(replace(BIG, precision="bf16"), gather)
    assert (cost.bytes["parameter", "read"], cost.bytes["input", "read"]) == (160, 40)


def test_only_products_count_where_the_scope_says_so():
    step = convolution_step()
    device = replace(BIG, scope="products")
    found = costs(device, step)
    assert [cost.cycles > 0 for cost in found] == [True, False, False, True, True, False]
    assert {cost.bound for cost in found if not cost.cycles} == {"scope"}


def test_a_collective_needs_a_system():
    step = made([Op(body=Collective("all_reduce", 100, 8), name="all_reduce", inputs=(0,), outputs=(0,))], [TensorSpec((100,))])
    with pytest.raises(NotModelled, match="between 8 ranks"):
        costs(BIG, step)
    alone = made([Op(body=Collective("all_reduce", 100, 1), inputs=(0,), outputs=(0,))], [TensorSpec((100,))])
    assert costs(BIG, alone)[0].cycles == 0


def test_a_pair_of_gradients_is_one_of_products():
    step = convolution_step()
    assert BIG.cost(step, Work(ops=(4, 3), grouping="gradient_pair")).bytes["dY", "read"] == 400 * 4
    for ops in ((2, 4), (3, 4), (4, 0)):
        with pytest.raises(NotModelled, match="gradient_pair"):
            BIG.cost(step, Work(ops=ops, grouping="gradient_pair"))


def test_a_work_of_another_grouping_policy_is_costed_on_demand():
    step = convolution_step()
    assert BIG.cost(step, Work(ops=(0,))).cycles == costs(replace(BIG, fusion="none"), step)[0].cycles


# energy and area


def test_energy_is_events_times_the_table():
    (cost,) = costs(BIG, made([Op(body=MatMul(32, 32, 32))], []))
    joules = BIG.energy(cost.events)
    assert joules["mac"] == pytest.approx(32**3 * energy.mac_joules("fp32", 16), rel=1e-6, abs=0.0)
    assert joules["dram"] == pytest.approx(3 * 32 * 32 * 4 * energy.dram_joules_per_byte("hbm2"), rel=1e-6, abs=0.0)
    ports = [cost.events[f"scratchpad_{way}"] * ram_joules_per_byte(way, 2**30, 16) for way in ("read", "write")]
    assert joules["scratchpad"] == pytest.approx(sum(ports), rel=1e-6, abs=0.0)
    assert BIG.energy({"mac": 10.0})["mac"] == pytest.approx(10 * energy.mac_joules("fp32", 16), rel=1e-6, abs=0.0)
    assert BIG.energy({"vector_op": 2.0})["vector"] == pytest.approx(2 * energy.add_joules("fp32", 16), rel=1e-6, abs=0.0)


def test_scratchpad_ports_carry_dram_traffic_and_the_arrays_own():
    (cost,) = costs(BIG, made([Op(body=MatMul(32, 32, 32))], []))
    own = ARRAY.cost(MatMul(32, 32, 32)).events
    reads = (own["scratchpad_read_a"] + own["scratchpad_read_b"] + own["scratchpad_read_out"]) * 4
    assert cost.events["scratchpad_read"] == reads + cost.events["dram_write"]
    assert cost.events["scratchpad_write"] == own["scratchpad_write_out"] * 4 + cost.events["dram_read"]


def test_narrow_numbers_cost_less_energy_and_area():
    step = convolution_step()
    narrow = replace(BIG, precision="bf16")
    assert narrow.energy(costs(narrow, step)[0].events)["mac"] < BIG.energy(costs(BIG, step)[0].events)["mac"]
    assert narrow.area()["mac"] < BIG.area()["mac"]
    assert narrow.area()["scratchpad"] == BIG.area()["scratchpad"]
