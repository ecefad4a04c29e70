"""A pipeline on a node: who sends what when, what devices hold, and what must not change the sums."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from tests.systems.node.networks import chain

import trainyard as ty
from trainyard import engine
from trainyard.arrays import Systolic
from trainyard.devices import Accelerator
from trainyard.errors import BadInput, NotModelled
from trainyard.hardware.topology.graph import Place, Topology, Wire
from trainyard.ir import ElementWise, MatMul, Op, Phase, Reduction, Role, Step, TensorSpec, Update
from trainyard.ir.plan import Plan
from trainyard.mapping.algorithms import ModelAveraging
from trainyard.mapping.pipeline.schedule import Pipeline, in_flight, turns
from trainyard.systems.node.pipeline import PipelinePlanner
from trainyard.systems.node.sends import Sends, lanes, shares
from trainyard.systems.node.systems import Wired

DEVICE = Accelerator(array=Systolic(rows=8, columns=8), scratchpad="64 KiB", dram="8 GB/s", clock="1 GHz")
EQUAL = chain((32,) * 9, 32)


def row(devices, rate=1e9, latency=0.0, wires=1):
    """Devices in a ring."""
    places = tuple(Place(name=f"D{number}", kind="device") for number in range(devices))
    ends = [(f"D{number}", f"D{(number + 1) % devices}") for number in range(devices)] if devices > 1 else []
    made = tuple(Wire(a=a, b=b, bytes_per_s=rate, latency_s=latency) for a, b in ends for _ in range(wires))
    return Topology(places=places, wires=made)


def node(devices, rate=1e9, latency=0.0, device=DEVICE, **pipeline):
    return Wired(
        device=device, graph=row(devices, rate, latency), parallel="pipeline", overlay="off", pipeline=Pipeline(**pipeline)
    )


def planned(machine, step):
    planner = PipelinePlanner(
        machine, step.rebatch(step.batch // machine.pipeline.microbatches), None, machine.pipeline.stages or machine.devices
    )
    return planner, engine.run(planner.plan())


def test_one_stage_does_the_microbatches_one_after_another():
    found = ty.run(EQUAL, node(1, microbatches=4))
    micro = EQUAL.rebatch(8)
    passes = ty.run(micro.only(*(phase for phase in Phase if phase is not Phase.UPDATE)), DEVICE)
    updates = ty.run(EQUAL.only(Phase.UPDATE), DEVICE)
    assert found.time_s == pytest.approx(4 * passes.time_s + updates.time_s, rel=1e-12)
    assert found.energy_j == pytest.approx(4 * passes.energy_j + updates.energy_j, rel=1e-9)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_every_work_is_done_once_for_each_microbatch_on_the_device_of_its_layer(schedule):
    machine = node(4, microbatches=8, schedule=schedule)
    planner, timeline = planned(machine, EQUAL)
    counted = Counter(timeline.tags.tolist())
    for number, tag in enumerate(planner.tags):
        assert counted[tag] == (1 if planner.stages.done[number] == "once" else 8)
        where = {int(stream) for stream, one in zip(timeline.streams, timeline.tags, strict=True) if one == tag}
        assert where == {planner.stages.chunk[number] % 4}
    result = ty.run(EQUAL, machine)
    assert sum(result.columns.macs) == EQUAL.macs
    layers = defaultdict(set)
    for number, work in enumerate(planner.works):
        layers[EQUAL.ops[work.ops[0]].layer].add(planner.stages.chunk[number])
    assert all(len(chunks) == 1 for layer, chunks in layers.items() if layer.startswith("l"))


@pytest.mark.probe
def test_the_next_stage_starts_when_the_last_byte_has_arrived():
    machine = node(2, rate=1e9, latency=3e-6, microbatches=4)
    planner, timeline = planned(machine, EQUAL)
    size = sum(planner.held.tensors[base].bytes for base in planner.stages.forward[0])
    assert size == 8 * 32 * 4  # one map of 8 samples; both ways round the ring of two lie between the devices
    last = planner.tasks[0, planner.stages.of(0, "forward")[-1]]
    first = planner.tasks[0, planner.stages.of(1, "forward")[0]]
    ways = len(lanes(machine.topology, "D0", "D1"))
    expected = timeline.ends_ps[last] + 3_000_000 + size // ways * 1000
    assert timeline.starts_ps[first] == expected


def replayed_peaks(planner, timeline):
    """Bytes on each device by walking over all copies of all tensors, from the step alone."""
    step, stages, count = planner.held, planner.stages, planner.pipeline.microbatches
    events = defaultdict(list)
    for base, spec in enumerate(step.tensors):
        if spec.view_of is not None or spec.role.resident:
            continue
        users = defaultdict(list)
        for number, work in enumerate(stages.works):
            touched = {step.base(t) for op in work.ops for t in (*step.ops[op].inputs, *step.ops[op].outputs)}
            if base in touched:
                users[stages.chunk[number]].append(number)
        if not users:
            continue
        maker = min(n for numbers in users.values() for n in numbers)
        if spec.role is Role.PARAMETER_GRADIENT:
            (chunk,) = users
            tasks = [planner.tasks[m, n] for n in users[chunk] for m in range(count) if (m, n) in planner.tasks]
            events[chunk % planner.count].append((tasks, spec.bytes))
            continue
        for m in range(count):
            for chunk, numbers in users.items():
                tasks = [planner.tasks[m, n] for n in numbers]
                home = stages.chunk[maker]
                if chunk > home:
                    tasks += planner.arrived[False, m, chunk - 1]
                if chunk < home:
                    tasks += planner.arrived[True, m, chunk]
                if any(other > chunk for other in users):
                    tasks += [planner.arrived[False, m, chunk][1]] if home <= chunk else []
                if any(other < chunk for other in users) and home >= chunk:
                    tasks += [planner.arrived[True, m, chunk - 1][1]]
                events[chunk % planner.count].append((tasks, spec.bytes))
    peaks = []
    for rank in range(planner.count):
        held = sum(
            spec.bytes * (count if spec.role is Role.INPUT else 1)
            for base, spec in enumerate(step.tensors)
            if spec.view_of is None and spec.role.resident and rank in planner.users[base]
        )
        spans = [(min(timeline.starts_ps[t]), max(timeline.ends_ps[t]), size) for t, size in events[rank]]
        peaks.append(held + max(sum(s for a, b, s in spans if a <= start < b) for start, _, _ in spans))
    return peaks


@pytest.mark.oracle
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_peak_memory_is_what_a_walk_over_all_copies_finds(schedule):
    planner, timeline = planned(node(4, microbatches=8, schedule=schedule), EQUAL)
    assert [timeline.peak(rank) for rank in range(4)] == replayed_peaks(planner, timeline)


def test_a_stage_holds_the_maps_of_as_many_microbatches_as_are_on_their_way():
    """GPipe's peak grows by one microbatch's maps with every microbatch, 1F1B's does not."""
    for rank in range(4):
        peaks = {}
        for schedule in ("gpipe", "1f1b"):
            for count in (8, 9, 12):
                planner, timeline = planned(node(4, microbatches=count, schedule=schedule), EQUAL.rebatch(4 * count))
                inputs = planner.held.tensors[0].bytes * count if rank == 0 else 0
                peaks[schedule, count] = timeline.peak(rank) - inputs
        saved = peaks["gpipe", 9] - peaks["gpipe", 8]
        assert saved > 0
        assert peaks["gpipe", 12] - peaks["gpipe", 8] == 4 * saved
        assert peaks["1f1b", 8] == peaks["1f1b", 9] == peaks["1f1b", 12]
        held = in_flight(turns(Pipeline(microbatches=8), 4)[rank])
        assert held == 4 - rank
        assert abs(peaks["gpipe", 8] - peaks["1f1b", 8] - (8 - held) * saved) <= saved


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_faster_wires_never_cost_time(schedule):
    times = [ty.run(EQUAL, node(4, rate=rate, microbatches=8, schedule=schedule)).time_s for rate in (1e8, 1e9, 1e10, 1e13)]
    assert times == sorted(times, reverse=True)


def test_replicas_share_the_batch_and_sum_their_gradients():
    found = ty.run(EQUAL, node(8, stages=4, microbatches=4))
    assert found.samples == 32
    assert sum(found.columns.macs) == EQUAL.macs
    reduced = {key: count for key, count in found.traffic_bytes.items() if "link" in str(key)}
    assert reduced
    rows = [number for number, name in enumerate(found.rows.op) if name == "all_reduce"]
    moved = sum(int(found.columns.traffic["link", "all_reduce", "write"][number]) for number in rows)
    parameters = sum(spec.bytes for spec in EQUAL.tensors if spec.role is Role.PARAMETER and spec.view_of is None)
    hops = 4  # D0 to D4 in a ring of eight
    assert moved == 2 * (2 - 1) * parameters // 2 * 2 * hops  # both of a pair send half of it twice


def shared(batch):
    """Three layers, of which the first and the last have one weight; a skip connection over the middle one."""

    def grown(*shape, role=Role.ACTIVATION):
        return TensorSpec(shape, role=role, slope=(1, 0))

    w = 16
    P, G, V = Role.PARAMETER, Role.GRADIENT, Role.PARAMETER_GRADIENT
    tensors = [
        grown(batch, w, role=Role.INPUT), TensorSpec((w, w), role=P, name="a.weight"), TensorSpec((w, w), role=P, name="b.weight"),
        grown(batch, w), grown(batch, w), grown(batch, w), grown(batch, w), grown(batch, w, role=G),  # 3 a, 4 b, 5 sum, 6 c, 7 loss
        TensorSpec((w, w), role=V, name="c"), grown(batch, w, role=G), TensorSpec((w, w), role=V, name="b.weight"),
        grown(batch, w, role=G), grown(batch, w, role=G), TensorSpec((w, w), role=V, name="a"),
        TensorSpec((w, w), role=V, name="a.weight"),
        TensorSpec((w, w), role=P, name="a.weight", view_of=1), TensorSpec((w, w), role=P, name="b.weight", view_of=2),
    ]  # fmt: skip
    F, X, W = Phase.FORWARD, Phase.GRAD_INPUT, Phase.GRAD_WEIGHT
    product, weight = MatMul(batch, w, w), MatMul(w, w, batch)
    table = [
        (product, "a", F, (0, 1), 3), (product, "b", F, (3, 2), 4), (ElementWise("add", batch * w), "s", F, (4, 3), 5),
        (product, "c", F, (5, 1), 6), (ElementWise("loss", batch * w), "loss", Phase.LOSS, (6,), 7),
        (weight, "c", W, (5, 7), 8), (product, "c", X, (7, 1), 9), (weight, "b", W, (3, 9), 10), (product, "b", X, (9, 2), 11),
        (ElementWise("add", batch * w), "a", X, (11, 9), 12), (weight, "a", W, (0, 12), 13),
        (ElementWise("add", w * w), "a", W, (13, 8), 14), (Update("SGD", w * w), "a", Phase.UPDATE, (1, 14), 15),
        (Update("SGD", w * w), "b", Phase.UPDATE, (2, 10), 16),
    ]  # fmt: skip
    slopes = {MatMul: {True: (1, 0, 0, 0), False: (0, 0, 1, 0)}}
    ops = []
    for body, layer, phase, inputs, output in table:
        slope = slopes[MatMul][body == product] if isinstance(body, MatMul) else ()
        if isinstance(body, ElementWise) and body.elements == batch * w:
            slope = (w, 0)
        ops.append(Op(body=body, name=layer, layer=layer, phase=phase, inputs=inputs, outputs=(output,), slope=slope))
    return Step("shared", batch, tuple(ops), tuple(tensors))


def test_a_skip_is_handed_on_and_shared_weights_are_summed_once():
    step = shared(12)
    planner, _ = planned(node(3, microbatches=3), step)
    chunk = {
        step.ops[work.ops[0]].layer: planner.stages.chunk[n]
        for n, work in enumerate(planner.works)
        if planner.stages.done[n] == "forward"
    }
    assert (chunk["a"], chunk["c"]) == (0, 2)
    assert all(3 in cut or 5 in cut for cut in planner.stages.forward)  # the skip, or the sum it went into
    once = [n for n, done in enumerate(planner.stages.done) if done == "once"]
    assert len(once) == 3  # two updates and the sum of the shared weight's gradients
    names = Counter(planner.built.booking.op)
    assert names["sum shared gradients"] == 1
    assert names["share parameters"] == 1
    (sent,) = (i for i, name in enumerate(planner.built.booking.op) if name == "sum shared gradients")
    assert planner.built.booking.traffic[sent]["link", "sum shared gradients", "write"] == 16 * 16 * 4


def test_pipelines_that_do_not_divide_or_are_not_modelled_are_refused():
    with pytest.raises(BadInput, match="do not divide into pipelines of 3"):
        ty.run(EQUAL, node(4, stages=3))
    with pytest.raises(BadInput, match="choose a multiple of 7"):
        ty.run(EQUAL, node(4, microbatches=7))
    with pytest.raises(NotModelled, match="once a batch"):
        ty.run(EQUAL, replace(node(4), algorithm=ModelAveraging(period=2)))
    with pytest.raises(BadInput, match=r"zero=2 .* write parallel='data'"):
        ty.run(EQUAL, replace(node(4), zero=2))


@pytest.mark.parametrize("machine", ["mcdla-b", "dc-dla", "hc-dla"])
def test_a_named_node_runs_a_pipeline_by_its_text(machine):
    found = ty.run("alexnet", f"{machine}(parallel=pipeline,pipeline.stages=4,pipeline.microbatches=4)", batch=64)
    assert any("4 microbatches of 8 through 4 stages, 2 replicas" in note for note in found.notes)
    assert np.isclose(found.time_s, sum(found.columns.time_ps) * 1e-12)


@pytest.mark.parametrize("directions", ["both", "one"])
def test_replicas_of_one_stage_are_data_parallelism(directions):
    """The same sums on the same wires, both ways round or one; only how a ring starts differs."""
    said = f"mcdla-b(devices=4,overlay=off,directions={directions}"
    data = ty.run("alexnet", f"{said})", batch=64)
    found = ty.run("alexnet", f"{said},parallel=pipeline,pipeline.stages=1,pipeline.microbatches=1)", batch=64)
    assert found.time_s == pytest.approx(data.time_s, rel=0.005)
    assert found.energy_j == pytest.approx(data.energy_j, rel=1e-6)
    assert found.traffic_bytes["link"] == pytest.approx(data.traffic_bytes["link"], rel=1e-6)
    assert max(found.peak_memory_bytes.values()) == data.peak_memory_bytes["device memory"]


def test_a_pipeline_goes_through_all_nodes_of_a_cluster():
    found = ty.run("alexnet", "mcdla-ethernet(devices=16,parallel=pipeline,pipeline.stages=8,pipeline.microbatches=4)", batch=64)
    assert any("through 8 stages, 2 replicas" in note for note in found.notes)
    assert found.traffic_bytes["link"] > 0


def graph(kinds, *wires):
    places = tuple(Place(name=name, kind=kind) for name, kind in kinds.items())
    return Topology(places=places, wires=tuple(Wire(a=a, b=b, bytes_per_s=rate) for a, b, rate in wires))


def passed(topology, source, target):
    """The places between, lane by lane."""
    found = []
    for lane in lanes(topology, source, target):
        ends = [{topology.wires[wire].a, topology.wires[wire].b} for wire, _ in lane]
        found.append(sorted(set().union(*ends) - {source, target}))
    return found


def test_messages_avoid_the_host_and_devices_as_long_as_they_can():
    kinds = {"D0": "device", "D1": "device", "D2": "device", "M": "memory", "X": "switch", "S": "socket"}
    host = [("D0", "X", 1e9), ("D1", "X", 1e9), ("D2", "X", 1e9), ("X", "S", 1e9)]
    memory = [("D0", "M", 1e9), ("M", "D1", 1e9)]
    device = [("D0", "D2", 1e9), ("D2", "D1", 1e9)]
    assert passed(graph(kinds, *memory, *device, *host), "D0", "D1") == [["M"]]
    assert passed(graph({k: v for k, v in kinds.items() if k != "M"}, *device, *host), "D0", "D1") == [["D2"]]
    assert passed(graph({k: v for k, v in kinds.items() if k != "M"}, *host), "D0", "D1") == [["X"]]


@pytest.mark.probe
def test_a_lane_takes_as_much_as_its_slowest_wire_carries():
    """Two lanes of 1 and 3 GB/s end together; what is handed on costs a whole message, or all of a smaller one."""
    kinds = {"D0": "device", "D1": "device", "A": "switch", "B": "switch"}
    two = graph(kinds, ("D0", "A", 1e9), ("A", "D1", 5e9), ("D0", "B", 9e9), ("B", "D1", 3e9))
    assert shares(two, "D0", "D1") == (0.25, 0.75)
    for size, rounds, handed_on_s in ((4_000_000, 1, 4096 / 3e9), (4_000_000, 3, 3 * 4096 / 3e9), (400, 1, 300 / 3e9)):
        plan = Plan()
        sends = Sends(Wired(device=DEVICE, graph=two), plan)
        stream, tag = plan.stream("wires"), sends.row("sent", "", "forward", 0)
        _, last = sends.send([("D0", "D1")], size, stream=stream, after=[], tag=tag, rounds=rounds)
        assert sends.carried([("D0", "D1")], size) == 2 * size
        assert engine.run(plan).ends_ps[last] == pytest.approx((handed_on_s + size / 4e9) * 1e12, abs=2)


def clipped(step):
    """The step with its gradients made smaller together, in place, before its updates."""
    first = next(number for number, op in enumerate(step.ops) if isinstance(op.body, Update))
    tensors, norms, products, updates = list(step.tensors), [], [], []

    def new(spec):
        tensors.append(spec)
        return len(tensors) - 1

    def done(body, inputs, output):
        return Op(body=body, name="clip", layer="clip", phase=Phase.UPDATE, inputs=tuple(inputs), outputs=(output,))

    one = TensorSpec((1,), role=Role.GRADIENT)
    factor = new(one)
    for op in step.ops[first:]:
        gradient = op.inputs[1]
        elements = step.tensors[gradient].elements
        norms.append(done(Reduction("norm", elements, 1), (gradient,), new(one)))
        less = new(replace(step.tensors[gradient], view_of=step.base(gradient)))
        products.append(done(ElementWise("mul", elements), (gradient, factor), less))
        updates.append(replace(op, inputs=(op.inputs[0], less, *op.inputs[2:])))
    all_of_them = done(ElementWise("sum", len(norms)), [op.outputs[0] for op in norms], factor)
    return replace(step, ops=(*step.ops[:first], *norms, all_of_them, *products, *updates), tensors=tuple(tensors))


def test_stages_of_clipped_gradients_exchange_norms_alone():
    """Between stages go the norms and what they add up to, 4 bytes each; every stage updates its own parameters."""
    planner, _ = planned(node(4, microbatches=4), clipped(EQUAL))
    sent = Counter()
    for traffic in planner.built.booking.traffic:
        sent.update({name: count for (level, name, _), count in traffic.items() if level == "link"})
    layers, stages = 8, 4
    way = {0: 0, 1: 1, 2: 2, 3: 1}  # hops to the first of four devices in a ring
    norms = sum(way[stage] * layers // stages for stage in range(stages))
    assert sent["sum shared gradients"] == 4 * (norms + sum(way.values()))
    assert "share parameters" not in sent
    homes = {planner.device(planner.stages.chunk[n]) for n, done in enumerate(planner.stages.done) if done == "once"}
    assert homes == set(range(stages))
