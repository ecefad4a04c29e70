"""Halos of convolutions on an accelerator: counted without a line buffer, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest

import trainyard as ty
from oracles.halos import elements_of_tiles
from trainyard.arrays import Systolic
from trainyard.devices import Accelerator
from trainyard.ir import Convolution, MatMul, Op, Step

DEVICE = Accelerator(array=Systolic(rows=4, columns=4), scratchpad="64 KiB", dram="8 GB/s", precision="fp32", dram_latency_s=0.0)
BODY = Convolution(batch=2, in_channels=4, out_channels=8, size=(8, 8), kernel=(3, 3), padding=(1, 1))


def step(body):
    return Step(name="one", batch=1, ops=(Op(body=body, name="one"),), tensors=())


def dram_bytes(device, body):
    return ty.run(step(body), on=device).traffic_bytes["dram"]


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16])
def test_a_tile_of_whole_rows_reads_the_rows_under_its_windows(rows):
    device = replace(DEVICE, tiling=(8 * rows, 8, 36))
    without = replace(device, line_buffer=False)
    more = 4 * 4 * (sum(elements_of_tiles(BODY, 8 * rows)) - elements_of_tiles(BODY, 128)[0])  # four channels, four bytes
    assert dram_bytes(without, BODY) - dram_bytes(device, BODY) == more
    assert (more == 0) == (rows >= 8)


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16])
def test_dw_reads_the_rows_of_each_part_of_its_reduction(rows):
    body = BODY.as_product("grad_weight")
    device = replace(DEVICE, tiling=(36, 8, 8 * rows))
    more = 4 * 4 * (sum(elements_of_tiles(BODY, 8 * rows)) - elements_of_tiles(BODY, 128)[0])
    assert dram_bytes(replace(device, line_buffer=False), body) - dram_bytes(device, body) == more


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16])
def test_sums_that_two_tiles_add_to_are_written_and_read_once_more(rows):
    body = BODY.as_product("grad_input")
    device = replace(DEVICE, tiling=(8 * rows, 36, 8))
    again = 4 * (sum(elements_of_tiles(BODY, 8 * rows)) - elements_of_tiles(BODY, 128)[0])
    more = dram_bytes(replace(device, line_buffer=False), body) - dram_bytes(device, body)
    assert more == pytest.approx(2 * 4 * again, abs=2)


@pytest.mark.parametrize("product", ["forward", "grad_weight", "grad_input"])
@pytest.mark.parametrize("grad_input", ["col2im", "dilated"])
def test_without_a_line_buffer_the_searched_time_is_never_shorter(product, grad_input):
    device = replace(DEVICE, scratchpad_bytes=2048, grad_input=grad_input)
    times = [ty.run(step(BODY.as_product(product)), on=replace(device, line_buffer=buffer)).time_s for buffer in (True, False)]
    assert times[0] <= 1.01 * times[1]


@pytest.mark.parametrize(
    ("device", "body"),
    [
        (replace(DEVICE, im2col="materialised"), BODY),
        (DEVICE, replace(BODY, kernel=(1, 1), padding=(0, 0))),
        (DEVICE, replace(BODY, kernel=(2, 2), stride=(2, 2), padding=(0, 0))),
        (DEVICE, MatMul(8, 8, 8)),
    ],
)
def test_it_changes_nothing_where_nothing_overlaps_and_says_so(device, body):
    device = replace(device, tiling=(8, 4, 4))
    assert "line_buffer" in device.unused_assumptions(step(body))
    assert dram_bytes(device, body) == dram_bytes(replace(device, line_buffer=False), body)


def test_it_is_an_assumption_with_its_worth():
    assert "line_buffer" not in DEVICE.unused_assumptions(step(BODY))
    effects = ty.whatif(step(BODY), replace(DEVICE, scratchpad_bytes=2048), kinds=("assumption",), paired=0)
    worth = next(effect for effect in effects if effect.name == "line_buffer")
    assert worth.after >= worth.before
