"""When the device waits for its host: calls issued one by one, a queue of bounded length, many steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainyard.devices.gpu import host
from trainyard.devices.gpu.host import hooks_s, host_time, issue_s
from trainyard.devices.gpu.traffic import Kernel
from trainyard.ir import ElementWise, Op, Phase, Step, TensorSpec, Work
from trainyard.ir.protocols import IssuedWork
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
    kernels = [kernel(one) for one in seconds]
    return host.waits(gpu, kernels, [issue_s(gpu, one, Phase.FORWARD) for one in kernels])  # type: ignore[arg-type]


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


def test_to_read_a_value_the_host_waits_until_the_device_is_idle() -> None:
    """A kernel of 100 and three of 1: behind a read before the third, the host issues the rest while nothing runs."""
    kernels = [kernel(one) for one in (100, 1, 1, 1)]
    issues = [12.0] * 4
    assert host.waits(GPU, kernels, issues, [False] * 4)[1:] == pytest.approx([0, 0, 0])
    assert host.waits(GPU, kernels, issues, [False, False, True, False])[1:] == pytest.approx([0, 12, 11])
    assert host.waits(GPU, kernels, issues, [True, False, False, False])[0] == pytest.approx(12)


def test_the_hosts_time_of_a_step_holds_the_wait_for_a_value() -> None:
    kernels = {(number,): kernel(100.0) for number in range(3)}
    step = forward_step(3)
    waiting = replace(step, ops=(step.ops[0], replace(step.ops[1], host_waits=True), step.ops[2]))
    assert host_time(GPU, waiting, kernels) == (112.0 + 24.0, 0.0)


def forward_step(calls: int) -> Step:
    ops = [Op(body=ElementWise("sigmoid", 8), name=str(number), layer="a", inputs=(0,), outputs=(1,)) for number in range(calls)]
    return Step(name="calls", batch=1, tensors=(TensorSpec((8,)), TensorSpec((8,))), ops=tuple(ops))


def test_the_host_issues_a_step_without_waiting_until_its_queue_is_full() -> None:
    """Calls of 12 s and kernels of 100: the fourth launch needs the first kernel done (112), the fifth the second (212)."""
    kernels = {(number,): kernel(100.0) for number in range(5)}
    step = forward_step(5)
    assert host_time(GPU, step, kernels) == (60.0, 0.0)
    assert host_time(replace(GPU, queue=3), step, kernels) == (pytest.approx(212.0), pytest.approx(112 - 48 + 212 - 124))


def test_hooks_on_saved_tensors_cost_shares_of_a_forward_call() -> None:
    assert hooks_s(GPU, 10, 0) == pytest.approx(10 * 10 * host.PACKED_CALLS)
    assert hooks_s(GPU, 0, 10) == pytest.approx(10 * 10 * host.UNPACKED_CALLS)


def test_a_work_that_is_issued_twice_costs_the_device_and_the_host_twice_and_hooks_the_host_alone() -> None:
    step = forward_step(2)
    first, second = (IssuedWork(Work(ops=(number,))) for number in range(2))
    kernel_s = sum(H200.cost(step, each.work).cycles for each in (first, second)) / H200.clock_hz  # with waits
    assert H200.issued_s(step, [first, second]) == pytest.approx(kernel_s, rel=1e-3)
    call_s = H200.call_s + H200.launch_s
    again = H200.issued_s(step, [first, second, second])
    assert again - H200.issued_s(step, [first, second]) == pytest.approx(call_s)  # bound by the host
    hooked = H200.issued_s(step, [first._replace(packed=3.0), second, second._replace(unpacked=2.0)])
    assert hooked - again == pytest.approx(H200.call_s * (3 * host.PACKED_CALLS + 2 * host.UNPACKED_CALLS))
    fast = replace(H200, graphs=True)
    assert fast.issued_s(step, [first._replace(packed=3.0), second]) == pytest.approx(fast.issued_s(step, [first, second]))
