"""When the device waits for its host: calls issued one by one, a queue of bounded length, many steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainyard.devices.gpu.host import issue_s, waiting_times
from trainyard.devices.gpu.traffic import Kernel
from trainyard.ir import Phase
from trainyard.machines.presets.gpus import H200

GPU = replace(H200, call_s=10.0, node_s=7.0, launch_s=2.0, list_s=0.5, step_s=0.0, queue=100)


def kernel(seconds: float, launches: float = 1.0, calls: float = 1.0, listed: float = 0.0) -> Kernel:
    return Kernel(seconds, 0.0, launches, "compute", {}, calls=calls, listed=listed)


def test_a_call_takes_its_module_or_node_its_launches_and_its_list() -> None:
    called = kernel(1.0, launches=3.0, calls=2.0, listed=4.0)
    assert issue_s(GPU, called, Phase.FORWARD) == 2 * 10 + 3 * 2 + 4 * 0.5
    assert issue_s(GPU, called, Phase.GRAD_INPUT) == 2 * 7 + 3 * 2 + 4 * 0.5
    assert issue_s(GPU, called, Phase.UPDATE) == 2 * 7 + 3 * 2 + 4 * 0.5


def waits(gpu: object, *seconds: float) -> list[float]:
    return waiting_times(gpu, [kernel(one) for one in seconds], [Phase.FORWARD] * len(seconds))  # type: ignore[arg-type]


def test_short_kernels_wait_for_the_rest_of_their_issue_and_long_ones_for_nothing() -> None:
    """12 s a call: a kernel of 5 leaves the device idle for 7, one of 20 hides the issue of the next."""
    assert waits(GPU, 5, 5, 5) == pytest.approx([7, 7, 7])
    assert waits(GPU, 20, 20) == pytest.approx([0, 0])
    assert waits(replace(GPU, graphs=True), 5, 5, 5) == [0, 0, 0]


def test_a_step_begins_with_pythons_time() -> None:
    assert waits(replace(GPU, step_s=3.0), 5, 5) == pytest.approx([10, 7])


def test_a_host_that_is_ahead_waits_for_its_queue() -> None:
    """A long kernel, then short ones: all are issued behind it where the queue is long, one after the other where it has room for
    two."""
    assert waits(GPU, 100, 1, 1, 1)[1:] == pytest.approx([0, 0, 0])
    short = waits(replace(GPU, queue=2), 100, 1, 1, 1)
    assert short[1] == 0  # issued while the long one runs
    assert short[2] == pytest.approx(0)
    assert short[3] > 0
