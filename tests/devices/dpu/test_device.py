"""The DPU device: its fields, its costs, and the steps that it refuses."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trainyard as ty
from trainyard.devices.dpu.costs import LOAD, LOOP, RESULT, WorkCost, _tile, queueing_cycles
from trainyard.devices.dpu.device import Dpu
from trainyard.devices.dpu.presets import MAC_DPU, UPMEM
from trainyard.errors import BadInput, NotModelled, UnknownName
from trainyard.hardware.dpu.instructions import STORE
from trainyard.hardware.dpu.pipeline import Segment
from trainyard.ir import Collective, Device, ElementWise, MatMul, Op, Step, TensorSpec, Work
from trainyard.workloads import zoo


def product(m: int, n: int, k: int) -> Step:
    op = Op(body=MatMul(m, n, k), name="mm", inputs=(0, 1), outputs=(2,))
    return Step("product", 1, (op,), (TensorSpec((m, k)), TensorSpec((k, n)), TensorSpec((m, n))))


def stream(elements: int, function: str) -> Step:
    op = Op(body=ElementWise(function, elements), name=function, inputs=(0, 1), outputs=(2,))
    return Step("stream", 1, (op,), (TensorSpec((elements,)),) * 3)


def cycles(dpu: Dpu, step: Step) -> int:
    return sum(dpu.cost(step, work).cycles for work in dpu.works(step))


def moved(dpu: Dpu, step: Step) -> int:
    return sum(sum(dpu.cost(step, work).bytes.values()) for work in dpu.works(step))


def test_quantities_may_be_given_with_their_unit() -> None:
    dpu = Dpu(clock="400 MHz", mram="128 MiB", wram="32 KiB")
    assert (dpu.clock_hz, dpu.mram_bytes, dpu.wram_bytes, dpu.dram_capacity_bytes) == (4e8, 2**27, 2**15, 2**27)
    assert replace(dpu, tasklets=8).mram_bytes == 2**27
    assert isinstance(dpu, Device)
    with pytest.raises(BadInput, match="give clock or clock_hz, not both"):
        Dpu(clock="400 MHz", clock_hz=3e8)
    with pytest.raises(BadInput, match="clock=350 has no unit: write clock='350 GHz'"):
        Dpu(clock=350)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"tasklets": 25}, BadInput, "the hardware has 24"),
        ({"tasklets": 0}, BadInput, "tasklets must be a positive whole number"),
        ({"number": "bf16"}, BadInput, "give mac_lanes=16, or number='fp32'"),
        ({"number": "fixed23"}, UnknownName, "did you mean 'fixed32'"),
        ({"wram_bytes": 16 * 1024}, BadInput, "give fewer tasklets or more wram"),
        ({"technology_nm": 3}, BadInput, "outside the tables"),
        ({"mac_lanes": -1}, BadInput, "mac_lanes must be a whole number of at least 0"),
    ],
)
def test_impossible_fields_are_refused(fields: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Dpu(**fields)  # type: ignore[arg-type]


@pytest.mark.paper
def test_bandwidth_and_mac_rate_are_the_published_ones() -> None:
    assert UPMEM.peaks.dram_bytes_per_s == pytest.approx(628e6, rel=0.05)
    assert replace(UPMEM, number="fp32").peaks.macs_per_s == pytest.approx(1.4e6, rel=0.01)
    shares = [replace(UPMEM, tasklets=tasklets).occupancy for tasklets in (1, 8, 11, 16, 24)]
    assert shares == pytest.approx([1 / 11, 8 / 11, 1, 1, 1])
    small, large = (size / UPMEM.transfers(size, size, "read")[0] for size in (8, 2048))
    assert small < 0.06 * large


@pytest.mark.paper
def test_power_at_full_load_is_the_published_one() -> None:
    """383 W for 2556 DPUs; static power is calibrated on it, the events alone are a quarter to a third."""
    published = 383 / 2556
    assert UPMEM.full_load_w == pytest.approx(published, rel=0.03)
    assert 0.2 < (UPMEM.full_load_w - UPMEM.static_w) / published < 0.4


@pytest.mark.parametrize(("dpu", "port_bytes"), [(UPMEM, 4 / 3), (MAC_DPU, MAC_DPU.wram_bytes_per_cycle)])
def test_power_at_full_load_is_cycles_of_lanes_or_instructions_the_port_of_wram_and_transfers(dpu: Dpu, port_bytes: float) -> None:
    """In every cycle: an instruction, every third one a word of WRAM, or all lanes and the whole port; transfers beside it."""
    joules = dpu.joules
    each_cycle = dpu.mac_lanes * joules["mac"] if dpu.mac_lanes else joules["instruction"]
    each_byte = joules["mram_read_byte"] + joules["wram_write_byte"]
    expected = dpu.clock_hz * (each_cycle + port_bytes * joules["wram_read_byte"]) + dpu.peaks.dram_bytes_per_s * each_byte
    assert dpu.full_load_w == pytest.approx(expected + dpu.static_w)


@pytest.mark.oracle
@settings(max_examples=200, deadline=None)
@given(
    m=st.integers(1, 9),
    n=st.integers(1, 9),
    k=st.integers(1, 40),
    tasklets=st.integers(1, 24),
    number=st.sampled_from(["fp32", "fixed32"]),
)
def test_a_tile_costs_the_instructions_of_its_busiest_tasklet(m: int, n: int, k: int, tasklets: int, number: str) -> None:
    """Divided by results, or by depth with a final addition: the instructions of each tasklet are counted one by one."""
    dpu = Dpu(tasklets=tasklets, number=number)  # type: ignore[arg-type]
    unit, sums = dpu.arithmetic, WorkCost(dpu)
    _tile(sums, m, n, k, 1)

    def time(work: list[int]) -> int:
        return max(work) * max(dpu.interval, sum(1 for count in work if count))

    results = [0] * tasklets
    for result in range(m * n):
        results[result % tasklets] += k * unit.mac + RESULT
    depth = [0] * tasklets
    for element in range(k):
        depth[element % tasklets] += m * n * unit.mac
    parts = sum(1 for count in depth if count)
    depth = [count + m * n * RESULT if count else 0 for count in depth]
    adding = [0] * tasklets
    for result in range(m * n):
        adding[result % tasklets] += parts * (LOAD + unit.add + LOOP)
    split = (max(depth) + max(adding)) * max(dpu.interval, parts)
    assert sums.pipeline == min(time(results), split)
    assert sums.instructions in (sum(results), sum(depth) + sum(adding))


@pytest.mark.oracle
@given(thinking=st.floats(1.0, 1e6), served=st.floats(1.0, 1e6), customers=st.integers(1, 24))
def test_queueing_cycles_equal_those_of_the_birth_death_chain(thinking: float, served: float, customers: int) -> None:
    """The birth-death chain of customers at the server, solved state by state: busy share over service time is the rate."""
    weights = [1.0]
    for waiting in range(customers):
        weights.append(weights[-1] * (customers - waiting) * served / thinking)
    busy = 1.0 - weights[0] / sum(weights)
    assert queueing_cycles(thinking, served, customers) == pytest.approx(served / busy, rel=1e-9)


@pytest.mark.oracle
@given(runs=st.integers(1, 50), run=st.integers(1, 700).map(lambda words: 8 * words), write=st.booleans())
def test_cycles_of_transfers_equal_the_sum_over_their_pieces(runs: int, run: int, write: bool) -> None:
    cycles, pieces = UPMEM.transfers(runs * run, run, "write" if write else "read")
    cut = [min(2048, run - at) for at in range(0, run, 2048)] * runs
    assert pieces == pytest.approx(len(cut))
    assert cycles == pytest.approx(sum((61 if write else 77) + size / 2 for size in cut))


@pytest.mark.oracle
@pytest.mark.parametrize("tasklets", [1, 4, 11, 16, 24])
@pytest.mark.parametrize("function", ["add", "mul"])
def test_a_stream_agrees_with_the_simulated_pipeline(tasklets: int, function: str) -> None:
    """Blocks in, arithmetic, blocks out; an addition keeps pipeline and DMA engine equally busy, the hardest case."""
    dpu, elements = replace(UPMEM, tasklets=tasklets), 32768
    unit, block = dpu.arithmetic, dpu.block_bytes(3) // 4
    per_element = 2 * LOAD + (unit.add if function == "add" else unit.multiply + unit.rescale) + STORE + LOOP
    rows: list[list[Segment]] = [[] for _ in range(tasklets)]
    for tasklet, row in enumerate(rows):
        first, last = (elements // 2 * number // tasklets * 2 for number in (tasklet, tasklet + 1))
        for low in range(first, last, block):
            count = min(block, last - low)
            address, read, write = Segment("run", 4), Segment("read", 4 * count), Segment("write", 4 * count)
            row += [address, read, address, read, Segment("run", count * per_element), address, write]
    simulated = dpu.pipeline.simulate(rows).cycles
    assert cycles(dpu, stream(elements, function)) == pytest.approx(simulated, rel=0.15)


@settings(max_examples=40, deadline=None)
@given(m=st.integers(1, 200), n=st.integers(1, 200), k=st.integers(1, 3000), wide=st.booleans())
def test_cycles_and_bytes_of_a_product_are_at_least_the_peak_rates_allow(m: int, n: int, k: int, wide: bool) -> None:
    dpu, step = (MAC_DPU if wide else UPMEM), product(m, n, k)
    cost = dpu.cost(step, dpu.works(step)[0])
    elements = m * k + k * n + m * n
    assert sum(cost.bytes.values()) >= (2 if wide else 4) * elements  # each is moved at least once
    assert cost.cycles >= m * n * k / (dpu.peaks.macs_per_s / dpu.clock_hz) * (1 - 1e-9)
    assert cost.cycles >= sum(cost.bytes.values()) * dpu.dma_cycles_per_byte
    assert sum(cost.share) == 1.0
    assert cost.events["mram_read_byte"] + cost.events["mram_write_byte"] == sum(cost.bytes.values())


def test_less_wram_moves_more_bytes() -> None:
    step = product(256, 256, 256)
    sizes = [moved(replace(UPMEM, wram_bytes=kilobytes * 1024), step) for kilobytes in (32, 64, 128, 2048)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 3 * 256 * 256 * 4  # all of it fits: once in, once out
    assert sizes[0] > 2 * sizes[-1]


def test_more_tasklets_are_faster_up_to_eleven() -> None:
    step = zoo.load("linear", batch=8)
    times = [cycles(replace(UPMEM, tasklets=tasklets), step) for tasklets in (1, 2, 4, 8, 11)]
    assert times == sorted(times, reverse=True)
    assert cycles(replace(UPMEM, tasklets=24), step) == pytest.approx(times[-1], rel=0.05)
    assert times[0] / times[-1] == pytest.approx(11, rel=0.03)


def test_fixed_point_is_seven_times_as_fast_as_software_floats() -> None:
    step = zoo.load("linear", batch=8)
    assert cycles(replace(UPMEM, number="fp32"), step) / cycles(UPMEM, step) == pytest.approx(249 / 36, rel=0.03)


def test_collectives_and_concurrent_works_are_refused() -> None:
    op = Op(body=Collective("all_reduce", 64, 4), name="all_reduce", inputs=(0,), outputs=(0,))
    step = Step("exchange", 1, (op,), (TensorSpec((64,)),))
    with pytest.raises(NotModelled, match="run the step on a system of several devices"):
        UPMEM.cost(step, Work(ops=(0,)))
    pair = zoo.load("linear", batch=8)
    with pytest.raises(NotModelled, match="one by one"):
        UPMEM.cost(pair, Work(ops=(1, 2), grouping="concurrent"))


@pytest.mark.parametrize("name", ["linear", "resnet18", "bert-base", "dlrm"])
def test_every_op_of_a_zoo_model_has_a_cost(name: str) -> None:
    """Products, convolutions, attention, normalisations, gathers, updates; software and lanes."""
    step = zoo.load(name)
    for dpu in (UPMEM, MAC_DPU):
        covered = [index for work in dpu.works(step) for index in work.ops]
        assert sorted(covered) == list(range(len(step.ops)))
        costs = [dpu.cost(step, work) for work in dpu.works(step)]
        assert all(cost.cycles > 0 and math.isfinite(sum(dpu.energy(cost.events).values())) for cost in costs)


def test_run_on_a_dpu_gives_time_energy_and_traffic() -> None:
    result = ty.run(zoo.load("linear", batch=8), on=UPMEM)
    assert result.time_s == pytest.approx(cycles(UPMEM, zoo.load("linear", batch=8)) / 350e6)
    assert set(result.energy_by_component) == {"instruction", "mac", "dram", "scratchpad", "static"}
    assert 0.1 < result.energy_j / result.time_s < 0.16  # watts: less than at full load, more than at rest
    assert result.traffic_bytes["dram"] == moved(UPMEM, zoo.load("linear", batch=8))


@pytest.mark.paper
def test_the_mac_array_sustains_the_rate_that_table_2_needs() -> None:
    """Table II needs about 8.8 GMAC/s of each DPU; software floats are 6000 times slower."""
    step = zoo.load("resnet18", batch=8)
    sustained = step.macs / (cycles(MAC_DPU, step) / MAC_DPU.clock_hz)
    assert 8.8e9 < sustained <= MAC_DPU.peaks.macs_per_s
    assert 8.8e9 / replace(UPMEM, number="fp32").peaks.macs_per_s > 6000


def test_a_narrower_port_or_bank_is_slower_and_becomes_the_bound() -> None:
    step = product(128, 128, 512)
    port, bank = replace(MAC_DPU, wram_bytes_per_cycle=32), replace(MAC_DPU, dma_cycles_per_byte=2.0)
    assert cycles(port, step) > 1.8 * cycles(MAC_DPU, step)
    assert cycles(bank, step) > cycles(MAC_DPU, step)
    assert port.cost(step, port.works(step)[0]).bound == "wram"
    assert bank.cost(step, bank.works(step)[0]).bound == "dram"
