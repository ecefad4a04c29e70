"""Training algorithms on nodes: a round is its steps one after another, limits meet what is known, refusals say why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.systems.node.networks import CHAIN, DESIGNS, SLOW, chain

import trainyard as ty
from trainyard import engine
from trainyard.errors import BadInput, NotModelled
from trainyard.ir import Collective
from trainyard.ir.plan import Plan, TaskClass
from trainyard.machines.presets.mcdla import DEVICE
from trainyard.mapping.algorithms import ADMM, DecentralizedSgd, Direct, ElasticAveraging, GradientAveraging, ModelAveraging
from trainyard.mapping.parallel.averaging import average_models
from trainyard.results.result import Result
from trainyard.systems import DeviceCentric, Replicas
from trainyard.systems.node.chain import chained
from trainyard.systems.node.systems import Node
from trainyard.systems.scale_out.cluster import Cluster
from trainyard.systems.scale_out.plane import Plane, Switched

NODE = DESIGNS["b"]


def run(node: Any, **changes: Any) -> Result:
    return ty.run(CHAIN, on=replace(node, **changes))


def sent(result: Result) -> int:
    """Bytes of exchanges in all simulated steps."""
    return sum(
        int(count.sum()) for (level, what, _), count in result.columns.traffic.items() if level == "link" and "reduce" in what
    )


@pytest.mark.parametrize("name", list(DESIGNS))
def test_gradients_averaged_every_step_are_a_synchronous_step(name: str) -> None:
    every, synchronous = run(DESIGNS[name], algorithm=GradientAveraging(1)), run(DESIGNS[name])
    assert every.time_s == synchronous.time_s
    assert every.energy_j == pytest.approx(synchronous.energy_j)
    assert every.traffic_bytes == synchronous.traffic_bytes
    assert (every.steps, every.samples) == (synchronous.steps, synchronous.samples)


@pytest.mark.parametrize("name", list(DESIGNS))
def test_models_averaged_every_step_send_the_bytes_of_gradients(name: str) -> None:
    every, synchronous = run(DESIGNS[name], algorithm=ModelAveraging(1)), run(DESIGNS[name])
    assert sent(every) == sent(synchronous) > 0
    assert every.macs == synchronous.macs


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["b", "dc", "o", "hc"]),
    st.sampled_from([ModelAveraging, GradientAveraging, ADMM]),
    st.integers(1, 12),
    st.lists(st.integers(1, 6).map(lambda n: 16 * n), min_size=2, max_size=4).map(tuple),
)
def test_a_round_is_local_steps_and_one_that_exchanges(name: str, kind: Any, period: int, widths: tuple[int, ...]) -> None:
    """The oracle: each of the two steps by itself; a round is so many of the one and one of the other, to the picosecond."""
    step, node = chain(widths, 32), DESIGNS[name]
    found = ty.run(step, on=replace(node, algorithm=kind(period)))
    last = ty.run(step, on=replace(node, algorithm=kind(1)))
    local = ty.run(step, on=replace(node, algorithm=kind(2))).time_ps - last.time_ps
    assert found.steps == period
    assert found.time_ps == (period - 1) * local + last.time_ps
    assert found.samples == step.batch * period
    assert sent(found) == sent(last)
    assert found.macs == last.macs
    assert found.samples_per_s >= last.samples_per_s * (1 - 1e-9)


@pytest.mark.parametrize("algorithm", [ModelAveraging(500), GradientAveraging(500), Direct(499)])
def test_with_a_long_period_a_step_takes_the_time_of_a_local_step(algorithm: Any) -> None:
    rare = run(NODE, algorithm=algorithm)
    nothing = ty.run(CHAIN.rebatch(CHAIN.batch // 8), on=replace(NODE, devices=1))
    assert rare.time_s == pytest.approx(nothing.time_s, rel=0.02)
    assert rare.time_s >= nothing.time_s * (1 - 1e-9)
    assert rare.energy_j == pytest.approx(8 * nothing.energy_j, rel=0.01)


def test_rarer_exchanges_never_cost_time() -> None:
    times = [run(NODE, algorithm=Direct(tau)).time_s for tau in (0, 1, 3, 7, 31, 127)]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_folded_and_unfolded_rounds_give_equal_results() -> None:
    for node in (NODE, replace(NODE, contention=True)):
        folded, all_of_them = (run(node, algorithm=ModelAveraging(3), fold=fold) for fold in (True, False))
        assert folded.time_s == pytest.approx(all_of_them.time_s, rel=1e-5)
        assert folded.energy_j == pytest.approx(all_of_them.energy_j)
        assert folded.traffic_bytes == all_of_them.traffic_bytes
    one, several = run(NODE), run(NODE, algorithm=ModelAveraging(3))
    assert one.peak_memory_bytes == several.peak_memory_bytes


def test_tau_in_seconds_counts_the_steps_that_fit() -> None:
    step_s = run(NODE, algorithm=Direct(2000)).time_s  # the local step, nearly
    probe = ty.run(CHAIN.rebatch(CHAIN.batch // 8), on=replace(NODE, devices=1)).time_s
    assert step_s == pytest.approx(probe, rel=0.01)
    for times, steps in ((0.5, 1), (3 - 1e-6, 3), (3 + 1e-6, 4)):  # the step that finds it too old is the last
        assert run(NODE, algorithm=Direct(times * probe, unit="s")).steps == steps


def test_a_cluster_of_devices_reduces_in_every_step_and_all_exchange_at_the_end() -> None:
    """A cube mesh has rings inside its halves: four links of each of four devices, 1.5 times their gradients a step."""
    node = replace(DESIGNS["dc"], overlay="off", algorithm=Direct(3))
    alone, by_four, all_one = (run(node, cluster_size=size) for size in (1, 4, 8))
    size = sum(tensor.bytes for tensor in CHAIN.tensors if tensor.role == "parameter" and tensor.view_of is None)
    assert sent(alone) == pytest.approx(14 * size, rel=0.01)
    assert sent(by_four) == pytest.approx(4 * 2 * 6 * size + 14 * size, rel=0.01)
    assert (alone.steps, by_four.steps, all_one.steps) == (4, 4, 1)
    assert all_one.time_s == run(node, algorithm=GradientAveraging(1)).time_s
    with pytest.raises(BadInput, match="do not divide into clusters of 3"):
        run(node, cluster_size=3)
    with pytest.raises(BadInput, match=r"no ring of their own.*cluster_size=1"):
        run(NODE, algorithm=Direct(3), cluster_size=4)


@pytest.mark.parametrize("name", ["dc", "hc"])
def test_pairs_of_devices_exchange_over_links_and_not_through_the_host(name: str) -> None:
    """A PCIe switch, cut off its socket, is no switch of a cluster's; the slowest pairs have one wire each."""
    node = DESIGNS[name]
    found, graph = node.cluster_collective("all_reduce", 8_000_000, 2), node.topology
    assert found.flows
    for path, _ in found.flows:
        for wire, _ in path:
            assert {graph.wires[wire].a, graph.wires[wire].b} <= set(graph.devices)
    assert found.time_s >= 8_000_000 / node.link_bytes_per_s
    with pytest.raises(BadInput, match="does not join through switches"):
        replace(node, collectives="tree").cluster_collective("all_reduce", 8_000_000, 2)


@pytest.mark.parametrize(
    "node",
    [
        Cluster(device=DEVICE, devices=32, nic_bytes_per_s=1e9),
        Plane(device=DEVICE, devices=32, oversubscription=4.0),
        Switched(device=DEVICE, cluster_size=4),
    ],
    ids=["cluster", "plane", "switched"],
)
def test_on_larger_systems_a_cluster_is_a_node_and_stays_inside_it(node: Node) -> None:
    step = ty.zoo.load("alexnet", batch=16 * node.devices)
    direct = replace(node, algorithm=Direct(31))
    inside, synchronous, rare = ty.run(step, on=direct), ty.run(step, on=node), ty.run(step, on=direct, algorithm=Direct(127))
    assert direct.devices_per_cluster in (4, 8)
    assert inside.time_s < synchronous.time_s * 1.001
    assert rare.time_s < inside.time_s
    whole, part = (
        one("all_reduce", 10**8).time_s
        for one in (node.collective, lambda k, s: node.cluster_collective(k, s, direct.devices_per_cluster))
    )
    assert 0 < part <= whole


def test_replicas_run_algorithms_with_local_steps() -> None:
    system = Replicas(device=SLOW["device"], devices=4, link="1 MB/s", bucket_bytes=1)
    synchronous, every = ty.run(CHAIN, on=system), ty.run(CHAIN, on=system, algorithm=GradientAveraging(1))
    assert every.time_s == pytest.approx(synchronous.time_s, rel=1e-6)
    times = [ty.run(CHAIN, on=system, algorithm=ModelAveraging(period)).time_s for period in (1, 2, 8)]
    assert times == sorted(times, reverse=True)
    assert ty.run(CHAIN, on=system, algorithm=ModelAveraging(8)).steps == 8
    with pytest.raises(BadInput, match="algorithm must be one of"):
        Replicas(device=SLOW["device"], devices=4, link="1 MB/s", algorithm="ring")  # type: ignore[arg-type]


def test_algorithms_not_modelled_on_links_are_refused_with_the_reason() -> None:
    for algorithm in (ElasticAveraging(4), DecentralizedSgd()):
        with pytest.raises(NotModelled, match=r"not modelled on links between devices.*direct, pim-opt"):
            run(NODE, algorithm=algorithm)
    for unknown in ({"update": "literal"}, {"compression_bits": 4}, {"adaptive": True}):
        with pytest.raises(NotModelled, match="PIM machines only"):
            run(NODE, algorithm=Direct(3, **unknown))  # type: ignore[arg-type]
    with pytest.raises(NotModelled, match="write parallel='data'"):
        run(NODE, algorithm=ModelAveraging(4), parallel="model")
    with pytest.raises(BadInput, match="too many to simulate"):
        run(NODE, algorithm=ModelAveraging(10**7))
    with pytest.raises(BadInput, match="called collectives"):
        DeviceCentric(device=SLOW["device"], algorithm="tree")  # type: ignore[arg-type]
    bare = replace(CHAIN, ops=tuple(op for op in CHAIN.ops if op.phase != "update"))
    with pytest.raises(BadInput, match="capture it with an optimizer"):
        ty.run(bare, on=replace(NODE, algorithm=ModelAveraging(4)))


def test_a_forward_pass_exchanges_nothing() -> None:
    forward = replace(CHAIN, ops=tuple(op for op in CHAIN.ops if op.phase == "forward"))
    found = ty.run(forward, on=replace(NODE, algorithm=ModelAveraging(4)))
    assert found.steps == 1
    assert sent(found) == 0


@given(st.integers(0, 200_000))
def test_every_updated_parameter_is_exchanged_once_whatever_the_buckets(bucket_bytes: int) -> None:
    found = average_models(CHAIN, 8, bucket_bytes=bucket_bytes)
    exchanged = [tensor for op in found.ops if isinstance(op.body, Collective) for tensor in op.inputs]
    assert len(exchanged) == len(set(exchanged)) == 3
    assert sum(found.tensors[tensor].elements for tensor in exchanged) == CHAIN.parameters
    for number, op in enumerate(found.ops):
        if isinstance(op.body, Collective):  # not before its update
            assert all(any(tensor in before.outputs for before in found.ops[:number]) for tensor in op.inputs)


@settings(max_examples=30)
@given(st.data())
def test_chained_plans_take_the_sum_of_their_times(data: st.DataObject) -> None:
    """Random graphs of tasks and flows: streams are shared, nothing of a step starts before the one before has ended."""
    blocks = []
    for _ in range(data.draw(st.integers(1, 3))):
        plan = Plan()
        streams, link = [plan.stream(name) for name in ("a", "b")], plan.link("wire", 1e9)
        for number in range(data.draw(st.integers(1, 6))):
            after = data.draw(st.lists(st.integers(0, number - 1), unique=True, max_size=3)) if number else []
            tag = plan.booking.entry([plan.booking.row("op", layer="", phase="forward", resource="a", macs=1, energy={"mac": 0.5})])
            if data.draw(st.booleans()):
                plan.task(data.draw(st.sampled_from(streams)), data.draw(st.integers(0, 1000)), after=sorted(after), tag=tag)
            else:
                plan.transfer([([link], data.draw(st.integers(1, 1000)))], after=sorted(after), kind=TaskClass.COPY, tag=tag)
        blocks.append((plan, data.draw(st.integers(0, 3))))
    whole = chained(blocks)
    assert engine.run(whole).end_ps == sum(times * engine.run(plan).end_ps for plan, times in blocks)
    assert sum(whole.booking.macs) == sum(times * len(plan) for plan, times in blocks)
    assert sum(row["mac"] for row in whole.booking.energy) == sum(times * len(plan) * 0.5 for plan, times in blocks)
