"""Where FSDP2's gathers of forward can start: behind the copy-out before them, unless something in between is in the way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainyard.ir import Collective, Copy, ElementWise, MatMul, Op, Phase, Role, Step, TensorSpec
from trainyard.mapping.parallel.captured import COPY_IN, COPY_OUT, ahead

KINDS = {"cast": "c", COPY_IN: "i", "gather": "g", COPY_OUT: "o", "mm": "x", "add": "a"}


def layers(count: int, cast: bool = False) -> Step:
    """(Cast,) copy in, gather, copy out, compute: layer after layer. Tensor 0 is the input."""
    tensors, ops, x = [TensorSpec((8, 8), role=Role.INPUT)], list[Op](), 0
    for layer in range(count):
        shard, narrow, sent, gathered, weight, y = range(len(tensors), len(tensors) + 6)
        tensors += [TensorSpec((8,), role=Role.PARAMETER), TensorSpec((8,), "bf16"), TensorSpec((8,)), TensorSpec((64,))]
        tensors += [TensorSpec((8, 8)), TensorSpec((8, 8))]
        if cast:
            ops.append(Op(body=Copy("to", 8), name="cast", layer=f"{layer}", inputs=(shard,), outputs=(narrow,)))
        ops += [
            Op(body=Copy("in", 8), name=COPY_IN, layer=f"{layer}", inputs=(narrow if cast else shard,), outputs=(sent,)),
            Op(body=Collective("all_gather", 64, 8), name="gather", layer=f"{layer}", inputs=(sent,), outputs=(gathered,)),
            Op(body=Copy("out", 64), name=COPY_OUT, layer=f"{layer}", inputs=(gathered,), outputs=(weight,)),
            Op(body=MatMul(8, 8, 8), name="mm", layer=f"{layer}", inputs=(x, weight), outputs=(y,)),
        ]
        x = y
    return Step("gathered", 8, tuple(ops), tuple(tensors), world=8, replicas=8)


def order(step: Step) -> str:
    return " ".join(KINDS[op.name] + op.layer for op in step.ops)


def test_a_gather_starts_behind_the_copy_out_of_the_gather_before_it() -> None:
    assert order(ahead(layers(3))) == "i0 g0 o0 i1 g1 x0 o1 i2 g2 x1 o2 x2"


def test_casts_of_parameters_move_with_their_gather() -> None:
    assert order(ahead(layers(2, cast=True))) == "c0 i0 g0 o0 c1 i1 g1 x0 o1 x1"


def test_one_layer_and_gathers_of_backward_or_of_recomputation_stay() -> None:
    assert ahead(alone := layers(1)) is alone
    for change in ({"phase": Phase.GRAD_INPUT}, {"recompute": True}):
        step = layers(2)
        later = replace(step, ops=tuple(replace(op, **change) for op in step.ops))
        assert ahead(later) is later


# fmt: off
IN_THE_WAY = {
    "writes what is gathered":          ((6,), (7,)),     # the shard of the second layer
    "writes the buffer that is sent":   ((6,), (9,)),
    "reads the buffer that is sent":    ((9,), (11,)),
    "reads what was gathered before":   ((10,), (11,)),
}
# fmt: on


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_a_gather_stays_behind_an_op_that_works_on_what_it_moves(what: str) -> None:
    step = layers(2)
    inputs, outputs = IN_THE_WAY[what]
    step = replace(
        step, ops=(*step.ops[:4], Op(body=ElementWise("add", 8), name="add", inputs=inputs, outputs=outputs), *step.ops[4:])
    )
    assert ahead(step) is step


def test_a_gather_passes_an_op_that_reads_the_shard_as_well() -> None:
    step = layers(2)
    norm = Op(body=ElementWise("add", 8), name="add", inputs=(6, 7), outputs=(11,))
    assert order(ahead(replace(step, ops=(*step.ops[:4], norm, *step.ops[4:])))) == "i0 g0 o0 i1 g1 x0 a o1 x1"


@pytest.mark.parametrize("missing", [0, 4])
def test_an_exchange_without_a_copy_in_is_no_gather_of_parameters(missing: int) -> None:
    step = layers(2)
    other = replace(step, ops=tuple(replace(op, name="cast") if n == missing else op for n, op in enumerate(step.ops)))
    assert order(ahead(other)) == ("c0 g0 o0 i1 g1 x0 o1 x1" if missing == 0 else order(other))


def test_a_copy_in_of_what_the_step_computes_waits_for_it() -> None:
    step = layers(2)
    ops = [replace(op, inputs=(6,)) if n == 4 else op for n, op in enumerate(step.ops)]  # the first layer's result
    late = replace(step, ops=tuple(ops))
    assert ahead(late) is late


def test_an_op_between_copy_in_and_gather_keeps_them_where_they_are() -> None:
    step = layers(2)
    between = Op(body=ElementWise("add", 8), name="add", inputs=(6, 7), outputs=(11,))
    parted = replace(step, ops=(*step.ops[:5], between, *step.ops[5:]))
    assert ahead(parted) is parted
