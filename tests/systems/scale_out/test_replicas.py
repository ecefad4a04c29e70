"""Replicas: the ring sums what it should, folding changes nothing, updates wait for their gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainyard as ty
from oracles.ring_execution import execute
from trainyard.devices import Accelerator
from trainyard.errors import BadInput, NotModelled, UnknownName
from trainyard.hardware.collectives.ring import exchange
from trainyard.ir import Collective, Op, Phase, Step
from trainyard.systems import Replicas


@given(st.integers(1, 7), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_all_reduce_leaves_the_sum_everywhere_and_carries_what_it_says(ranks: int, size: int, seed: int) -> None:
    values = list(np.random.default_rng(seed).integers(-9, 9, (ranks, size)).astype(np.float64))
    found, carried = execute("all_reduce", values)
    for own in found:
        assert np.array_equal(own, np.sum(values, axis=0))
    assert carried == exchange("all_reduce", size, ranks).elements


@given(st.integers(1, 7), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_reduce_scatter_and_all_gather_are_the_halves(ranks: int, chunk: int, seed: int) -> None:
    values = list(np.random.default_rng(seed).integers(-9, 9, (ranks, ranks * chunk)).astype(np.float64))
    total = np.sum(values, axis=0).reshape(ranks, chunk)
    scattered, carried = execute("reduce_scatter", values)
    for rank, own in enumerate(scattered):
        assert np.array_equal(own, total[(rank + 1) % ranks])
    assert carried == exchange("reduce_scatter", ranks * chunk, ranks).elements
    gathered, carried = execute("all_gather", list(total))
    assert all(np.array_equal(own, total.ravel()) for own in gathered)
    assert carried == exchange("all_gather", ranks * chunk, ranks).elements


@pytest.mark.parametrize("devices", [1, 2, 3, 4])
@pytest.mark.parametrize("bucket_bytes", [1, 1500, 10**9])
def test_folded_and_unfolded_replicas_give_equal_results(device: Accelerator, step: Step, devices: int, bucket_bytes: int) -> None:
    system = Replicas(device=device, devices=devices, link="1 GB/s", link_latency="2 us", bucket_bytes=bucket_bytes)
    folded, unfolded = ty.run(step, on=system), ty.run(step, on=replace(system, fold=False))
    assert folded.time_ps == unfolded.time_ps
    assert folded.macs == unfolded.macs == step.macs
    assert folded.energy_j == pytest.approx(unfolded.energy_j)
    assert folded.traffic_bytes == unfolded.traffic_bytes
    for axis in ("layer", "phase", "kind"):
        one, many = folded.group(axis), unfolded.group(axis)
        assert {key: cost.time_s for key, cost in one.items()} == pytest.approx({key: cost.time_s for key, cost in many.items()})
    assert max(folded.peak_memory_bytes.values()) == max(unfolded.peak_memory_bytes.values())


def test_one_replica_is_the_device_alone(device: Accelerator, step: Step) -> None:
    alone, one = ty.run(step, on=device), ty.run(step, on=Replicas(device=device, devices=1, link="1 GB/s"))
    assert one.time_ps == alone.time_ps
    assert one.energy_j == pytest.approx(alone.energy_j)
    assert one.peak_memory_bytes == alone.peak_memory_bytes


def test_an_exposed_all_reduce_takes_its_closed_form(device: Accelerator, step: Step) -> None:
    """With one bucket nothing hides the exchange: 2 (n-1) rounds of latency and chunk."""
    system = Replicas(device=device, devices=4, link="1 GB/s", link_latency="3 us", bucket_bytes=10**9)
    result = ty.run(step, on=system)
    gradients = 2 * 16 * 16 * 4
    expected = 6 * (3e-6 + gradients / 4 / 1e9)
    assert result.by_class["synchronisation"].time_s == pytest.approx(expected, rel=1e-9)
    assert result.traffic_bytes["link"] == 4 * 6 * gradients // 4


def test_small_buckets_hide_behind_backward(device: Accelerator, step: Step) -> None:
    whole = Replicas(device=device, devices=4, link="1 GB/s", link_latency="1 us", bucket_bytes=10**9)
    early = ty.run(step, on=replace(whole, bucket_bytes=1))
    assert early.by_class["synchronisation"].busy_s > early.by_class["synchronisation"].time_s
    assert early.time_ps < ty.run(step, on=whole).time_ps


def test_no_update_starts_before_its_gradient_has_arrived(device: Accelerator, step: Step) -> None:
    result = ty.run(step, on=Replicas(device=device, devices=2, link="1 MB/s", bucket_bytes=1))
    timeline = result.timeline
    assert timeline is not None
    names = [result.rows.op[result.entries[tag][0]] for tag in timeline.tags.tolist()]
    arrivals = [end for name, end in zip(names, timeline.ends_ps.tolist(), strict=True) if name == "all_reduce"]
    updates = [start for name, start in zip(names, timeline.starts_ps.tolist(), strict=True) if name == "sgd"]
    # a link this slow makes every update wait: the second reduced bucket (a) is the last to arrive
    assert min(updates) >= sorted(arrivals)[1]
    assert max(updates) >= max(arrivals)


def test_collectives_of_a_captured_step_are_planned_as_they_are(device: Accelerator, step: Step) -> None:
    reduce = Op(
        body=Collective("all_reduce", 16 * 16, 2), name="all_reduce", layer="b", phase=Phase.GRAD_WEIGHT, inputs=(7,), outputs=(7,)
    )
    own = replace(step, ops=(*step.ops[:5], reduce, *step.ops[5:]))
    result = ty.run(own, on=Replicas(device=device, devices=2, link="1 GB/s"))
    assert result.traffic_bytes["link"] == 2 * 2 * (16 * 16 * 4 // 2)
    with pytest.raises(NotModelled):
        ty.run(own, on=device)


def test_wrong_batches_counts_links_and_parallelism_are_refused(device: Accelerator, step: Step) -> None:
    system = Replicas(device=device, devices=5, link="1 GB/s")
    with pytest.raises(BadInput, match="batch of 24 does not divide over 5 devices"):
        ty.run(step, on=system)
    with pytest.raises(BadInput, match="devices must be a positive whole number"):
        Replicas(device=device, devices=0, link="1 GB/s")
    with pytest.raises(BadInput, match="needs link"):
        Replicas(device=device, devices=2)
    with pytest.raises(BadInput, match="is one device"):
        ty.run(step, on=device, parallel="data")
    with pytest.raises(UnknownName, match="unknown value 'model' in parallel"):
        ty.run(step, on=Replicas(device=device, devices=2, link="1 GB/s"), parallel="model")
    with pytest.raises(UnknownName, match="unknown parallel 'model' in Replicas"):
        Replicas(device=device, devices=2, link="1 GB/s", parallel="model")
    with pytest.raises(NotModelled, match="all_to_all"):
        exchange("all_to_all", 4, 2)


@given(st.integers(1, 7), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_a_broadcast_leaves_the_root_s_values_everywhere(ranks: int, size: int, seed: int) -> None:
    values = list(np.random.default_rng(seed).integers(-9, 9, (ranks, size)).astype(np.float64))
    found, carried = execute("broadcast", values)
    assert all(np.array_equal(own, values[0]) for own in found)
    sent = exchange("broadcast", size, ranks)
    assert carried == sent.elements
    assert sent.links == (ranks if ranks == 1 else ranks - 1)


def captured(step: Step, kind: str, ranks: int) -> Step:
    """As a rank sees it: an exchange of b's gradient between `ranks`."""
    exchanged = Op(
        body=Collective(kind, 16 * 16, ranks), name=kind, layer="b", phase=Phase.GRAD_WEIGHT, inputs=(7,), outputs=(7,)  # type: ignore[arg-type]
    )  # fmt: skip
    return replace(step, ops=(*step.ops[:5], exchanged, *step.ops[5:]))


def test_a_step_with_its_own_collectives_is_that_of_one_rank(device: Accelerator, step: Step) -> None:
    """DDP and FSDP are captured with a rank's own batch and shards: nothing is divided again."""
    own = captured(step, "all_reduce", 3)
    system = Replicas(device=device, devices=3, link="1 GB/s")
    result = ty.run(own, on=system)
    alone = ty.run(step, on=device)
    assert result.by_class["compute"].time_s == pytest.approx(alone.time_s)
    assert result.macs == 3 * step.macs
    assert result.samples == 3 * step.batch
    assert ty.run(step, on=system).samples == step.batch
    with pytest.raises(BadInput, match=r"on 3 ranks, Replicas has 2 devices: write devices=3"):
        ty.run(own, on=replace(system, devices=2))


def test_a_broadcast_takes_the_time_of_its_rounds(device: Accelerator, step: Step) -> None:
    own = captured(step, "broadcast", 4)
    result = ty.run(own, on=Replicas(device=device, devices=4, link="1 GB/s", link_latency="3 us"))
    assert result.by_class["synchronisation"].busy_s == pytest.approx(6 * (3e-6 + 16 * 16 * 4 / 4 / 1e9), rel=1e-6)
    assert result.traffic_bytes["link"] == 3 * 16 * 16 * 4


def test_gradients_are_exchanged_in_the_precision_of_the_device(device: Accelerator, step: Step) -> None:
    whole = Replicas(device=device, devices=4, link="1 GB/s")
    half = replace(whole, device=replace(device, precision="bf16"))
    assert ty.run(step, on=half).traffic_bytes["link"] * 2 == ty.run(step, on=whole).traffic_bytes["link"]
