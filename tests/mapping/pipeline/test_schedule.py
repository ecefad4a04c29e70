"""Pipelines: the schedules' laws, the best cut against brute force, and real gradients from a pipeline in plan order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mapping.parallel.test_execution import given_values, network, parameters

from oracles.parallel_execution import execute
from oracles.pipeline_execution import PipelineExecution
from trainyard import engine
from trainyard.errors import BadInput, UnknownName
from trainyard.ir import Collective, Op, Work
from trainyard.ir.plan import Plan
from trainyard.mapping.pipeline.schedule import Pipeline, balanced, in_flight, issued, turns
from trainyard.mapping.pipeline.stages import stages_of

SCHEDULES = ("gpipe", "1f1b", "interleaved")


def made(schedule, stages, rounds, chunks=2):
    return Pipeline(schedule=schedule, microbatches=stages * rounds, chunks=chunks)


def played(pipeline, stages, forward, backward):
    """End of a pipeline of equal chunks with free sends, on the engine."""
    plan, chunks = Plan(), stages * pipeline.chunks_each
    streams = [plan.stream(f"device {rank}") for rank in range(stages)]
    done = {}
    for device, turn in issued(turns(pipeline, stages), chunks):
        before = [turn._replace(chunk=turn.chunk - 1)] if not turn.backward else [turn._replace(chunk=turn.chunk + 1)]
        before += [turn._replace(backward=False)] if turn.backward else []
        after = sorted(done[one] for one in before if one in done)
        done[turn] = plan.task(streams[device], backward if turn.backward else forward, after=after)
    return engine.run(plan).end_ps


@given(st.sampled_from(SCHEDULES), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=120, deadline=None)
def test_a_pipeline_of_equal_stages_takes_the_time_of_its_law(schedule, stages, rounds, chunks, forward, backward):
    pipeline = made(schedule, stages, rounds, chunks)
    each, count = pipeline.chunks_each, pipeline.microbatches
    ideal = count * each * (forward + backward)
    found = played(pipeline, stages, forward, backward)
    assert found == ideal + (stages - 1) * (forward + backward)
    assert (found - ideal) / found == pytest.approx(pipeline.bubble(stages))
    assert (found - ideal) / ideal == pytest.approx((stages - 1) / (each * count))


@given(st.sampled_from(SCHEDULES), st.integers(1, 6), st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=80, deadline=None)
def test_every_microbatch_passes_every_chunk_once_each_way_and_in_order(schedule, stages, rounds, chunks):
    pipeline = made(schedule, stages, rounds, chunks)
    orders = turns(pipeline, stages)
    total = stages * pipeline.chunks_each
    for rank, order in enumerate(orders):
        own = [chunk for chunk in range(total) if chunk % stages == rank]
        want = [(back, m, chunk) for back in (False, True) for m in range(pipeline.microbatches) for chunk in own]
        assert sorted(order) == sorted(want)
    seen = {}
    for place, (device, turn) in enumerate(issued(orders, total)):
        assert device == turn.chunk % stages
        seen[turn] = place
    for turn, place in seen.items():
        if turn.backward:
            assert seen[turn._replace(backward=False)] < place
            assert turn.chunk == total - 1 or seen[turn._replace(chunk=turn.chunk + 1)] < place
        else:
            assert turn.chunk == 0 or seen[turn._replace(chunk=turn.chunk - 1)] < place


@given(st.integers(1, 8), st.integers(1, 12))
def test_a_stage_holds_as_many_microbatches_as_its_schedule_says(stages, count):
    for rank in range(stages):
        assert in_flight(turns(Pipeline(schedule="gpipe", microbatches=count), stages)[rank]) == count
        assert in_flight(turns(Pipeline(schedule="1f1b", microbatches=count), stages)[rank]) == min(count, stages - rank)


@pytest.mark.oracle
@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.data())
def test_the_costliest_stage_is_as_cheap_as_any_cut_makes_it(costs, data):
    parts = data.draw(st.integers(1, len(costs)))
    begins = balanced(costs, parts)
    assert len(begins) == parts
    assert begins[0] == 0
    assert all(a < b for a, b in itertools.pairwise(begins))

    def worst(cuts):
        return max(sum(costs[a:b]) for a, b in itertools.pairwise((*cuts, len(costs))))

    assert worst(begins) == min(worst((0, *cuts)) for cuts in itertools.combinations(range(1, len(costs)), parts - 1))


def alone(step):
    return [Work(ops=(number,)) for number in range(len(step.ops))]


@given(
    st.sampled_from(SCHEDULES), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2), st.sampled_from(["whole", "real"]),
    st.integers(0, 9),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_a_pipeline_computes_the_update_of_the_whole_batch(schedule, stages, rounds, chunks, kind, seed):
    pipeline = made(schedule, stages, rounds, chunks)
    samples = 2
    whole = network(pipeline.microbatches * samples, (15, 14, 17, 16, 14, 15, 13))
    values = given_values(whole, seed, kind)
    micro = whole.rebatch(samples)
    cut = stages_of(micro, alone(micro), [max(1, op.macs) for op in micro.ops], stages * pipeline.chunks_each)
    rate = 1 if kind == "whole" else 0.1
    one = execute(whole, whole, 1, values, rate=rate)
    found = PipelineExecution(micro, cut, pipeline, stages, rate).run(values)
    for tensor in parameters(whole):
        for chunk in range(cut.chunks):
            if kind == "whole":
                assert np.array_equal(found.parameters[chunk, tensor], one.memory[0][tensor])
            else:
                assert np.allclose(found.parameters[chunk, tensor], one.memory[0][tensor], rtol=1e-9, atol=1e-12)


def test_what_is_not_sent_is_not_there():
    from dataclasses import replace

    pipeline = Pipeline(microbatches=2)
    whole = network(4, (9, 8, 7, 6))
    micro = whole.rebatch(2)
    cut = stages_of(micro, alone(micro), [max(1, op.macs) for op in micro.ops], 2)
    assert cut.forward[0]
    assert cut.backward[0]
    values = given_values(whole, 0, "whole")
    with pytest.raises(BadInput, match="before it is there"):
        PipelineExecution(micro, replace(cut, forward=((),)), pipeline, 2).run(values)
    with pytest.raises(BadInput, match="before it is there"):
        PipelineExecution(micro, replace(cut, backward=((),)), pipeline, 2).run(values)


def test_errors_say_what_to_write_instead():
    with pytest.raises(UnknownName, match="did you mean '1f1b'"):
        Pipeline(schedule="1f1")
    with pytest.raises(BadInput, match="no multiple of 4"):
        turns(Pipeline(schedule="interleaved", microbatches=6), 4)
    micro = network(2, (5, 4))
    with pytest.raises(BadInput, match="cannot make 9 stages"):
        stages_of(micro, alone(micro), [1] * len(micro.ops), 9)
    from dataclasses import replace

    exchanged = replace(micro, ops=(*micro.ops, Op(body=Collective("all_reduce", 4, 2))))
    with pytest.raises(BadInput, match="exchanges of its own"):
        stages_of(exchanged, alone(exchanged), [1] * len(exchanged.ops), 1)
