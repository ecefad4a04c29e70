"""ZeRO: what devices hold and send is the paper's, and what they compute together is what one device computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mapping.parallel.test_execution import given_values, network

import trainyard as ty
from oracles.zero_execution import start
from oracles.zero_execution import updated as new_values
from trainyard.errors import BadInput, NotModelled, UnknownName
from trainyard.ir import Collective, ElementWise, Op, Phase, Reduction, Role, TensorSpec, Update
from trainyard.mapping.parallel import transform as parallel
from trainyard.mapping.parallel.zero import STAGES, model_states, sharded, states_of

STATES = {"SGD": 0, "momentum": 1, "Adam": 2}


def trained(batch, widths, optimizer):
    """A network whose updates have the optimizer's state."""
    step = network(batch, widths)
    tensors, ops = list(step.tensors), []
    for op in step.ops:
        if isinstance(op.body, Update):
            shape = tensors[op.inputs[0]].shape
            inputs, outputs = list(op.inputs), list(op.outputs)
            for _ in range(STATES[optimizer]):
                tensors.append(TensorSpec(shape, role=Role.STATE))
                inputs.append(len(tensors) - 1)
                tensors.append(TensorSpec(shape, role=Role.STATE, view_of=len(tensors) - 1))
                outputs.append(len(tensors) - 1)
            body = replace(op.body, optimizer="Adam" if optimizer == "Adam" else "SGD")
            op = replace(op, body=body, inputs=tuple(inputs), outputs=tuple(outputs))
        ops.append(op)
    return replace(step, ops=tuple(ops), tensors=tuple(tensors))


def resident(step):
    return [t for t, spec in enumerate(step.tensors) if spec.role in (Role.PARAMETER, Role.STATE) and spec.view_of is None]


@given(
    st.sampled_from(STAGES), st.sampled_from(sorted(STATES)), st.integers(2, 4), st.sampled_from([0, 200, 9999]), st.integers(0, 5)
)
@settings(max_examples=40, deadline=None)
def test_devices_with_parts_compute_what_one_device_computes(stage, optimizer, devices, bucket, seed):
    whole = trained(2 * devices, (15, 14, 17, 13), optimizer)
    values = given_values(whole, seed, "real")
    values |= {t: np.zeros(whole.tensors[t].shape) for t in resident(whole) if whole.tensors[t].role is Role.STATE}
    one = start(whole, whole, 1, values, rate=0.01)
    many = start(whole, sharded(whole, devices, stage, bucket_bytes=bucket), devices, values, rate=0.01)
    for number in range(3):
        drawn = given_values(whole, 100 + seed + number, "real")
        inputs = {t: v for t, v in drawn.items() if whole.tensors[t].role in (Role.INPUT, Role.TARGET)}
        one.step_once(inputs)
        many.step_once(inputs)
    for tensor in resident(whole):
        assert np.allclose(many.whole_of(tensor), one.whole_of(tensor), rtol=1e-8, atol=1e-10)


@pytest.mark.oracle
def test_the_optimizers_are_torchs():
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(0)
    for name, optimizer in {
        "sgd": lambda p: torch.optim.SGD([p], lr=0.1, momentum=0.9), "adam": lambda p: torch.optim.Adam([p], lr=0.1),
    }.items():  # fmt: skip
        mine, state = draw.standard_normal(7), [np.zeros(7)] * (1 if name == "sgd" else 2)
        other = torch.nn.Parameter(torch.tensor(mine.copy()))
        theirs = optimizer(other)
        for count in range(1, 5):
            gradient = draw.standard_normal(7)
            other.grad = torch.tensor(gradient)
            theirs.step()
            mine, *state = new_values(name, 0.1, count, mine, gradient, state)
            assert np.allclose(mine, other.detach().numpy(), rtol=1e-12)


@given(st.sampled_from(STAGES), st.integers(1, 4), st.sampled_from(list(STATES)))
@settings(max_examples=30, deadline=None)
def test_a_device_holds_the_papers_bytes(stage, parts, optimizer):
    devices = 2**parts
    whole = trained(2 * devices, (32, 16, 48, 16), optimizer)
    psi = whole.parameters
    found = states_of(sharded(whole, devices, stage))
    assert found == model_states(psi, devices, stage, parameter_bytes=4, gradient_bytes=4, state_bytes=4 * STATES[optimizer])


def test_figure_1_of_the_paper():
    """7.5 billion parameters on 64 devices: 120 GB, 31.4 GB, 16.6 GB, 1.9 GB."""
    found = [model_states(7_500_000_000, 64, stage).total / 1e9 for stage in STAGES]
    assert [round(size, 1) for size in found] == [120.0, 31.4, 16.6, 1.9]


@given(st.sampled_from(STAGES), st.integers(2, 8), st.sampled_from([0, 10**4]))
@settings(max_examples=30, deadline=None)
def test_a_device_sends_what_the_paper_says(stage, devices, bucket):
    whole = trained(2 * devices, (15, 14, 17, 13), "Adam")
    step = sharded(whole, devices, stage, bucket_bytes=bucket)
    sent = parallel.carried_bytes(step) / (devices - 1) * devices / 4
    again = {  # biases and the first layer's weights have no reader in the backward pass
        base for op in whole.ops if op.phase.backward for base in map(whole.base, op.inputs)
        if whole.tensors[base].role is Role.PARAMETER
    }  # fmt: skip
    extra = sum(whole.tensors[base].elements for base in again) if stage == 3 else 0
    assert sent == pytest.approx(whole.parameters * 2 + extra)
    if stage == 3:
        assert extra == 14 * 17 + 17 * 13


def test_a_gradient_is_freed_and_a_parameter_is_gathered_only_as_far_ahead_as_was_said():
    whole = trained(4, (32, 16, 48, 16), "Adam")
    peaks = {stage: peak(sharded(whole, 2, stage)) for stage in STAGES}
    assert peaks[0] > peaks[1] >= peaks[2] > peaks[3]
    ahead = [peak(sharded(whole, 2, 3, prefetch=count)) for count in (0, 1, 2)]
    assert ahead == sorted(ahead)
    for prefetch in (0, 1):
        step = sharded(whole, 2, 3, prefetch=prefetch)
        gathers = [n for n, op in enumerate(step.ops) if isinstance(op.body, Collective) and op.body.kind == "all_gather"]
        for number in gathers[4:]:
            assert step.dependencies[number], "waits for what the device does before"


def peak(step):
    """Bytes in program order, as one device would hold them."""
    found, now = [], step.resident_bytes
    spans = [(users[0], max(users), size) for users, size in step.transients]
    for place in range(len(step.ops)):
        found.append(now + sum(size for first, last, size in spans if first <= place <= last))
    return max(found)


def test_refusals_say_what_to_write():
    whole = trained(4, (15, 14, 13), "Adam")
    with pytest.raises(BadInput, match="one of 0, 1, 2, 3"):
        sharded(whole, 2, 4)
    with pytest.raises(UnknownName, match="zero"):
        ty.run("alexnet", "dc-dla(zero=5)", batch=64)
    with pytest.raises(BadInput, match="write parallel='data'"):
        ty.run("alexnet", "dc-dla(zero=1,parallel=model)", batch=64)
    gradient = next(op.inputs[1] for op in whole.ops if isinstance(op.body, Update))
    norm = Op(body=Reduction("norm", 10, 1), name="norm", phase=Phase.UPDATE, inputs=(gradient,), outputs=())
    first = next(n for n, op in enumerate(whole.ops) if isinstance(op.body, Update))
    clipped = replace(whole, ops=(*whole.ops[:first], norm, *whole.ops[first:]))
    with pytest.raises(NotModelled, match="reads the whole gradient"):
        sharded(clipped, 2, 1)
    with pytest.raises(NotModelled, match="reads the whole gradient"):  # which waits in a bucket
        sharded(clipped, 2, 1, bucket_bytes=10**9)
    smaller = Op(body=ElementWise("mul", 10), name="mul_", phase=Phase.UPDATE, inputs=(gradient,), outputs=(gradient,))
    in_place = replace(clipped, ops=(*whole.ops[:first], norm, smaller, *whole.ops[first:]))
    with pytest.raises(NotModelled, match="reads the whole gradient"):  # which is complete before it is clipped
        sharded(in_place, 2, 1)
    summed = parallel.data(in_place, 2).ops
    (place,) = (n for n, op in enumerate(summed) if isinstance(op.body, Collective) and gradient in op.inputs)
    assert place < next(n for n, op in enumerate(summed) if op.name == "norm")
    with pytest.raises(NotModelled, match="write algorithm=synchronous"):
        ty.run("alexnet", "dc-dla(zero=1,algorithm=model-averaging)", batch=64)


def test_on_a_node_less_memory_and_the_same_arithmetic():
    found = {stage: ty.run("alexnet", f"dc-dla(overlay=off,zero={stage})", batch=64) for stage in STAGES}
    peaks = [found[stage].peak_memory_bytes["device memory"] for stage in STAGES]
    assert peaks[0] > peaks[1] >= peaks[2] > peaks[3]
    assert len({int(sum(one.columns.macs)) for one in found.values()}) == 1
    slow = [ty.run("alexnet", f"dc-dla(overlay=off,zero=3,link={rate} GB/s)", batch=64).time_s for rate in (5, 25, 100)]
    assert slow == sorted(slow, reverse=True)


def test_gathered_parameters_are_not_paged():
    """What is gathered ahead for backward is no feature map: the same maps leave the device whatever is gathered when."""
    found = [ty.run("alexnet", f"mcdla-b({said})", batch=64) for said in ("zero=0", "zero=3,prefetch=0", "zero=3,prefetch=2")]
    assert len({one.peak_memory_bytes["remote memory"] for one in found}) == 1
    assert len({one.traffic_bytes["remote memory"] for one in found}) == 1


@pytest.mark.probe
@pytest.mark.parametrize(("stage", "fits"), [(2, 461_000_000), (3, 295_000_000)])
def test_a_capacity_is_held(stage, fits):
    """Gradients leave when their parts have been sent, not before: the device waits for it."""
    said = f"mcdla-b(zero={stage},overlay=as_needed,capacity="
    assert ty.run("alexnet", f"{said}{fits} B)", batch=64).peak_memory_bytes["device memory"] <= fits
    with pytest.raises(BadInput, match="nothing fits"):
        ty.run("alexnet", f"{said}{fits - 1_000_000} B)", batch=64)


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_gathers_run_so_many_uses_ahead(ahead):
    """Between a gather and its use lie the uses of so many gathers before it (less at the start)."""
    one = sharded(trained(4, (15, 14, 13, 12), "SGD"), 2, 3, prefetch=ahead)
    gathers = [n for n, op in enumerate(one.ops) if isinstance(op.body, Collective) and op.body.kind == "all_gather"]
    use = {
        gather: next(n for n, op in enumerate(one.ops) if one.ops[gather].outputs[0] in map(one.base, op.inputs))
        for gather in gathers
    }
    uses = sorted(set(use.values()))
    for gather in gathers:
        assert sum(gather < other < use[gather] for other in uses) == min(ahead, uses.index(use[gather]))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_device_updates_its_part_alone(stage):
    whole = trained(4, (15, 14, 13), "Adam")
    elements = [[op.body.elements for op in step.ops if isinstance(op.body, Update)] for step in (whole, sharded(whole, 4, stage))]
    assert elements[1] == [-(-count // 4) for count in elements[0]]
