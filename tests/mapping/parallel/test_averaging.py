"""Exchanges of models: one for each parameter, or for buckets of them in the order of their updates."""

from __future__ import annotations

import pytest

from trainyard.errors import BadInput
from trainyard.ir import Collective, Op, Phase, Role, Step, TensorSpec, Update
from trainyard.mapping.parallel.averaging import average_models

SIZES = (10, 20, 30, 40)


def updates(dtypes: tuple[str, ...] = ("fp32",) * 4) -> Step:
    """Four parameters, each updated by an op of its layer."""
    tensors = [TensorSpec((size,), dtype, role=Role.PARAMETER) for size, dtype in zip(SIZES, dtypes, strict=True)]
    ops = [
        Op(body=Update("sgd", size), layer=f"layer{number}", phase=Phase.UPDATE, inputs=(number,), outputs=(number,))
        for number, size in enumerate(SIZES)
    ]
    return Step(name="updates", batch=1, ops=tuple(ops), tensors=tuple(tensors))


def exchanges(step: Step) -> list[tuple[int, str, tuple[int, ...], int]]:
    """Position, layer, parameters and elements of every exchange."""
    return [
        (position, op.layer, op.inputs, op.body.elements)
        for position, op in enumerate(step.ops)
        if isinstance(op.body, Collective) and op.body.kind == "all_reduce" and op.body.ranks == 4 and op.phase is Phase.UPDATE
    ]


# fmt: off
BUCKETS = [
    (0,    [(1, "layer0", (0,), 10), (3, "layer1", (1,), 20), (5, "layer2", (2,), 30), (7, "layer3", (3,), 40)]),
    (120,  [(2, "layer1", (0, 1), 30), (4, "layer2", (2,), 30), (6, "layer3", (3,), 40)]),   # 120 bytes are enough
    (121,  [(3, "layer2", (0, 1, 2), 60), (5, "layer3", (3,), 40)]),                          # one byte more is not
    (2000, [(4, "layer3", (0, 1, 2, 3), 100)]),                                               # what is left goes last
]
# fmt: on


@pytest.mark.parametrize(("bucket_bytes", "expected"), BUCKETS)
def test_parameters_are_exchanged_when_their_bucket_is_full_and_the_last_ones_at_the_end(
    bucket_bytes: int, expected: list[tuple[int, str, tuple[int, ...], int]]
) -> None:
    assert exchanges(average_models(updates(), 4, bucket_bytes=bucket_bytes)) == expected


def test_an_exchange_writes_the_parameters_that_it_reads() -> None:
    averaged = average_models(updates(), 4, bucket_bytes=120)
    for op in averaged.ops:
        if isinstance(op.body, Collective):
            assert tuple(map(averaged.base, op.outputs)) == op.inputs
            assert [averaged.tensors[t].shape for t in op.outputs] == [averaged.tensors[t].shape for t in op.inputs]


def test_a_bucket_holds_elements_of_one_type() -> None:
    mixed = updates(("fp32", "fp32", "fp16", "fp16"))
    assert [parameters for _, _, parameters, _ in exchanges(average_models(mixed, 4, bucket_bytes=2000))] == [(0, 1), (2, 3)]


def test_a_step_without_updates_has_no_models_to_average() -> None:
    with pytest.raises(BadInput, match="updates no parameters"):
        average_models(Step(name="forward", batch=1, ops=(Op(body=Update("sgd", 4)),), tensors=()), 4)
