"""A GPU in a step with collectives: they cost it nothing, and the calls around them stay the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

import trainyard as ty
from trainyard.devices.gpu.calls import Call, calls_of, is_exchange
from trainyard.errors import NotModelled
from trainyard.ir import Collective, ElementWise, MatMul, Op, Phase, Role, Step, TensorSpec, Work
from trainyard.machines.presets.gpus import H200
from trainyard.mapping.parallel import transform as parallel
from trainyard.workloads import zoo

DEVICES = 8
PARALLEL = {
    "data": lambda step: parallel.data(step, DEVICES),
    "every_call": lambda step: parallel.data(step, DEVICES, reduce="every_call"),
    "model": lambda step: parallel.model(step, DEVICES),
    "mixed": lambda step: parallel.mixed(step, DEVICES),
}


def one_device(model: str, how: str) -> Step:
    return PARALLEL[how](zoo.load(model, batch=16))


def own_calls(step: Step, fusion: str = "none") -> list[Call]:
    return [call for call in calls_of(step, fusion) if not is_exchange(step.ops[call.ops[0]])]


@pytest.mark.parametrize("fusion", ["none", "epilogue"])
@pytest.mark.parametrize(
    ("model", "how"), [*product(("resnet18", "bert-tiny", "lstm-1024"), PARALLEL), ("t5-small", "model"), ("snli", "model")]
)
def test_calls_have_every_op_once_and_after_its_dependencies(model: str, how: str, fusion: str) -> None:
    step = one_device(model, how)
    calls = calls_of(step, fusion)
    assert sorted(index for call in calls for index in call.ops) == list(range(len(step)))
    done: set[int] = set()
    for call in calls:
        inside = set(call.ops)
        assert len(inside) == 1 or not any(is_exchange(step.ops[index]) for index in inside)
        assert all(before in done or before in inside for index in call.ops for before in step.dependencies[index])
        done |= inside


@pytest.mark.parametrize("fusion", ["none", "epilogue"])
@pytest.mark.parametrize("model", ["resnet18", "bert-tiny", "lstm-1024"])
def test_collectives_of_gradients_change_no_cost(model: str, fusion: str) -> None:
    """Data parallelism only adds collectives: every call costs the same as in the step without them, host and L2 included."""
    gpu = replace(H200, fusion=fusion)
    plain, shared = zoo.load(model, batch=16).rebatch(16 // DEVICES), one_device(model, "data")
    assert len(shared) > len(plain)
    costs = [[gpu.cost(step, Work(ops=call.ops)) for call in own_calls(step, fusion)] for step in (plain, shared)]
    assert costs[0] == costs[1]
    works = gpu.works(shared)
    assert sum(isinstance(shared.ops[work.ops[0]].body, Collective) for work in works) == len(shared) - len(plain)


@pytest.mark.parametrize(
    ("model", "how", "gone", "added"),
    [
        ("bert-tiny", "model", {}, {}),  # heads divide: no exchange inside an attention
        ("lstm-1024", "data", {}, {}),  # gradients are summed behind cuDNN's call
        ("lstm-1024", "every_call", {"recurrent": 1}, {"cell": 25}),  # its gradients are exchanged step by step: no such call
        ("t5-small", "model", {"rms_norm": 60}, {}),  # a mean over features needs everybody's
    ],
)
def test_a_call_that_reads_its_own_collective_is_split(model: str, how: str, gone: dict[str, int], added: dict[str, int]) -> None:
    before, after = (
        Counter(call.kind for call in own_calls(zoo.load(model, batch=16))),
        Counter(call.kind for call in own_calls(one_device(model, how))),
    )
    del before["op"], after["op"]
    assert before - after == Counter(gone)
    assert after - before == Counter(added)


@pytest.mark.parametrize("how", PARALLEL)
@pytest.mark.parametrize("model", ["bert-tiny", "lstm-1024"])
def test_every_op_can_be_costed_alone(model: str, how: str) -> None:
    """A recomputed op may have been a part of a composite call."""
    step = one_device(model, how)
    for index, op in enumerate(step.ops):
        if not is_exchange(op):
            cost = H200.cost(step, Work(ops=(index,)))
            assert cost.cycles >= 1
            assert cost.share == (1.0,)


def test_a_collective_on_one_gpu_is_refused() -> None:
    step = one_device("resnet18", "data")
    exchange = next(index for index, op in enumerate(step.ops) if is_exchange(op))
    with pytest.raises(NotModelled, match="all_reduce between 8 ranks: one GPU has no links"):
        H200.cost(step, Work(ops=(exchange,)))
    with pytest.raises(NotModelled, match="one GPU has no links"):
        ty.run(step, on="h200")


def around(late: bool, reads: int) -> Step:
    """A product, an exchange, and an element-wise op on the product; `late` exchanges the product, `reads` is its other operand."""
    tensors = (
        TensorSpec((64, 64), role=Role.INPUT, name="x"),
        TensorSpec((64, 64), role=Role.PARAMETER, name="w"),
        TensorSpec((64, 64)),
        TensorSpec((64, 64)),  # what is exchanged
        TensorSpec((64, 64)),
    )
    ops = (
        Op(body=MatMul(64, 64, 64), name="mm", layer="a", phase=Phase.FORWARD, inputs=(0, 1), outputs=(2,)),
        Op(body=Collective("all_reduce", 4096, 2), name="all_reduce", layer="b", inputs=(2 if late else 0,), outputs=(3,)),
        Op(body=ElementWise("add", 4096), name="add", layer="c", inputs=(2, reads), outputs=(4,)),
    )
    return Step("around", 1, ops, tensors)


@pytest.mark.parametrize(
    ("late", "reads", "expected"),
    [
        (False, 0, [(1,), (0, 2)]),  # it has nothing to do with either
        (True, 0, [(0,), (1,), (2,)]),  # it sends what the product made: the product must be done
        (False, 3, [(1,), (0,), (2,)]),  # what it brings is added: the product does not wait for that
    ],
)
def test_an_epilogue_goes_past_an_exchange_that_is_none_of_its_business(late: bool, reads: int, expected: list[object]) -> None:
    assert [call.ops for call in calls_of(around(late, reads), "epilogue")] == expected
