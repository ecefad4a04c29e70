"""Supersteps: a DPU against its pipeline instruction by instruction, carriers against their parts and by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pim_programs.carriers import HEADER_BYTES, _host_transfer, price, staggered, summed
from pim_programs.graph import uniform
from pim_programs.page_rank import page_rank
from pim_programs.runs import side_by_side
from pim_programs.supersteps import Cost, Stream, Superstep, dpu_cycles, instructions
from trainyard.devices.dpu.presets import UPMEM
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.dpu.host_link import HostLink
from trainyard.hardware.dpu.instructions import instructions_of
from trainyard.hardware.dpu.pipeline import Segment
from trainyard.systems.pim.systems import DpuToDpu, HostMediated


def superstep(
    dpus: int,
    messages: list[tuple[int, int, int]] = (),
    work: int = 0,
    streams: tuple[Stream, ...] = (),
    items: int = 16,
    sums: int = 0,
) -> Superstep:
    sources, destinations, sizes = np.array(messages, np.int64).reshape(-1, 3).T
    return Superstep(
        name="test",
        instructions=np.full(dpus, work),
        items=np.full(dpus, items),
        streams=streams,
        sources=sources,
        destinations=destinations,
        sizes_bytes=sizes,
        sums=sums,
    )


def stream(direction: str, size: int, run: float, dpus: int = 1) -> Stream:
    return Stream(direction=direction, size_bytes=np.full(dpus, size), run_bytes=run)  # type: ignore[arg-type]


def test_instructions_are_those_of_the_dpu_where_both_know_them() -> None:
    for number, operation in (("int32", "add"), ("int32", "multiply"), ("int32", "divide"), ("fp32", "add"), ("fp32", "multiply")):
        assert instructions(number, operation) == instructions_of(number, operation)
    with pytest.raises(UnknownName, match="int16 add"):
        instructions("int16", "add")


@pytest.mark.oracle
@pytest.mark.parametrize("tasklets", [1, 2, 4, 11, 16, 24])
@pytest.mark.parametrize("per_block", [20, 100, 400, 1000])
def test_a_dpu_is_near_its_pipeline_instruction_by_instruction(tasklets: int, per_block: int) -> None:
    """Every tasklet: read a block, compute, write it back. The bounds are met but for waiting, which enough tasklets hide."""
    blocks, size = 40, 512
    dpu = replace(UPMEM, tasklets=tasklets, barrier_instructions=0)
    program = [
        [Segment("run", 5 - 1), Segment("read", size), Segment("run", per_block), Segment("run", 5 - 1), Segment("write", size)]
        * blocks
    ]
    ran = dpu.pipeline.simulate(program * tasklets)
    whole = blocks * tasklets
    moved = (stream("read", size * whole, size), stream("write", size * whole, size))
    cycles, events = dpu_cycles(superstep(1, work=per_block * whole, streams=moved, items=tasklets), dpu, np.ones(1, bool))
    assert (0.96 if tasklets >= 11 else 0.87) * ran.cycles <= cycles[0] <= 1.03 * ran.cycles
    assert events["instruction"] == ran.instructions
    assert events["mram_read_byte"] == events["mram_write_byte"] == size * whole


def test_idle_tasklets_do_not_help() -> None:
    few, many = (dpu_cycles(superstep(1, work=110_000, items=items), UPMEM, np.ones(1, bool))[0][0] for items in (1, 16))
    barrier = UPMEM.barrier_instructions * UPMEM.tasklets
    assert (few - barrier, many - barrier) == (11 * 110_000, 110_000)


def test_one_message_takes_what_eq_2_says() -> None:
    machine = DpuToDpu(dpus=128)
    cost = price(superstep(128, [(3, 100, 5000)]), machine)
    assert cost.communication_s == machine.fabric.send(3, 100, 5000 + HEADER_BYTES).time_s
    assert (cost.message_bytes, cost.messages) == (5000, 1)
    assert cost.synchronisation_s == pytest.approx(machine.dsc.barrier_s(64, "local") + machine.dsc.barrier_s(2))
    assert cost.link_bytes["crossbar rank"] == 2 * 5008


def test_a_sum_of_all_is_a_reduction_in_clusters_and_between_them() -> None:
    machine = DpuToDpu(dpus=256)
    local, whole = (
        getattr(machine.fabric, kind)(2 * 6 * 4, 64, agau=machine.agau, **more)
        for kind, more in (("local", {}), ("all_reduce", {"members": True}))
    )
    assert price(superstep(256, sums=2), machine).synchronisation_s == local.time_s + whole.time_s
    software = replace(machine, agau=None)
    assert price(superstep(256, sums=2), software).synchronisation_s != local.time_s + whole.time_s
    adds = 4 * 63 + 3  # in each of four clusters, and between them
    more = price(superstep(256, sums=2), software).energy_j["instruction"] - price(superstep(256), software).energy_j["instruction"]
    assert more == pytest.approx(2 * adds * 8 * UPMEM.joules["instruction"])
    assert price(superstep(256), replace(machine, dsc=None)).synchronisation_s == machine.host.exchange(4, 0).time_s


@pytest.mark.oracle
@given(st.integers(1, 300), st.integers(1, 10_000), st.sampled_from(("serial", "rank_parallel")))
def test_equal_boxes_take_the_host_as_long_as_its_own_exchange(dpus: int, words: int, transfers: str) -> None:
    host = HostLink(threads=2)
    whole = host.exchange(dpus, 8 * words, transfers=transfers, broadcast=False)  # type: ignore[arg-type]
    boxes = np.full(dpus, 8 * words)
    assert _host_transfer(host, boxes, "gather", transfers)[0] == pytest.approx(whole.gather_s)
    assert _host_transfer(host, boxes, "scatter", transfers)[0] == pytest.approx(whole.scatter_s)


@pytest.mark.probe
def test_a_rank_transfers_as_much_from_all_as_from_its_fullest_dpu() -> None:
    host = HostLink()
    boxes = np.zeros(128, np.int64)
    boxes[5] = 1000
    alone = _host_transfer(host, boxes, "gather", "rank_parallel")
    assert alone == (pytest.approx(host.latency_s + 64 * 1000 / host.rank_out_bytes_per_s), 64 * 1000)
    boxes[:64] = 1000  # what the others of the rank may have costs nothing
    assert _host_transfer(host, boxes, "gather", "rank_parallel") == alone
    boxes[6] = 1001  # transfers are multiples of 8 bytes
    assert _host_transfer(host, boxes, "gather", "rank_parallel")[1] == 64 * 1008
    boxes[64] = 8
    assert _host_transfer(host, boxes, "gather", "rank_parallel")[1] == 64 * 1016


def test_through_the_host_everything_waits_for_all_ranks() -> None:
    machine = HostMediated(dpus=128)
    cost = price(superstep(128, [(0, 127, 800), (1, 127, 800)]), machine)
    host = machine.host
    assert cost.synchronisation_s == 2 * host.sync_s
    there, back = host.latency_s + 64 * 800 / host.rank_out_bytes_per_s, host.latency_s + 64 * 1600 / host.rank_in_bytes_per_s
    assert cost.communication_s == pytest.approx(there + back + 2 * 1600 / host.memory_bytes_per_s)
    assert cost.link_bytes == {"host link": 64 * 2400}
    assert cost.energy_j["host"] == pytest.approx(host.host_w * (cost.communication_s + cost.synchronisation_s))
    serial = price(superstep(128, [(0, 127, 800)]), replace(machine, transfers="serial"))
    assert serial.link_bytes == {"host link": 1600}


@pytest.mark.oracle
@given(st.lists(st.integers(0, 2**60), min_size=64, max_size=64), st.sampled_from((1, 4, 16, 64)))
def test_agaus_add_long_numbers_exactly(numbers: list[int], cluster: int) -> None:
    parts = np.array(numbers).reshape(32, 2) >> 5
    expected = tuple(int(total) for total in parts.sum(0))
    for machine in (DpuToDpu(dpus=32, cluster_size=min(cluster, 32)), HostMediated(dpus=32)):
        assert summed(parts, machine) == expected


def test_staggered_messages_begin_behind_the_sender() -> None:
    everybody = superstep(5, [(s, d, 8) for s in range(5) for d in range(5) if s != d])
    order = staggered(everybody)
    sent = everybody.destinations[order].reshape(5, 4)
    assert sent.tolist() == [[(s + 1 + i) % 5 for i in range(4)] for s in range(5)]
    assert all(len(set(column)) == 5 for column in sent.T)


def test_costs_add_and_multiply() -> None:
    one = Cost(compute_s=1.0, communication_s=2.0, synchronisation_s=3.0, mean_compute_s=0.5, message_bytes=7, energy_j={"a": 1.0})
    two = one + Cost(compute_s=1.0, mean_compute_s=0.5, energy_j={"b": 2.0}) * 2
    assert (two.seconds, two.imbalance, two.message_bytes) == (8.0, 2.0, 7)
    assert two.energy_j == {"a": 1.0, "b": 4.0}
    assert (one * 3).seconds == 18.0


def test_a_superstep_of_another_size_is_refused() -> None:
    with pytest.raises(BadInput, match="superstep 'test' is for 8 DPUs, the machine has 16"):
        price(superstep(8), HostMediated(dpus=16))


def test_energy_counts_the_wait_of_all_dpus() -> None:
    machine = DpuToDpu(dpus=64)
    cost = price(superstep(64, [(0, 1, 64_000)], work=1000), machine)
    assert cost.energy_j["static"] == pytest.approx(cost.seconds * (64 * UPMEM.static_w + machine.fabric_w))
    assert cost.energy_j["instruction"] > 0
    assert math.isfinite(sum(cost.energy_j.values()))


def test_tables_say_what_a_run_was() -> None:
    out = StringIO()
    console = Console(file=out, width=140)
    runs = [page_rank(uniform(512, 4000), machine) for machine in (HostMediated(dpus=128), DpuToDpu(dpus=128))]
    for run in runs:
        run.table(console)
    side_by_side(runs, console)
    text = out.getvalue()
    assert "PageRank of uniform-512 on 128 DPUs (DpuToDpu)" in text
    for word in ("compute", "communication", "synchronisation", "edges/s", "host link", "crossbar chip", "speedup", "1.00 x"):
        assert word in text
    with pytest.raises(BadInput, match="no runs"):
        side_by_side([])
