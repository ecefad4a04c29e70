"""Blocks of a step, kept or checkpointed as a whole: which tensors are theirs, and what each costs."""

from __future__ import annotations

import pytest

from trainyard.ir import ElementWise, MatMul, Op, Phase, Role, Step, TensorSpec, Work
from trainyard.mapping.overlay.by_blocks import Block, block_choices, block_names, blocks_of
from trainyard.mapping.overlay.policy import Problem
from trainyard.mapping.overlay.problem import page_step

WIDTH = 16


def test_the_deepest_numbered_part_whose_layers_come_again_is_a_block() -> None:
    layers = ["stem", "stage.0.1.a", "stage.0.1.b", "stage.0.2.a", "stage.0.2.b", "stage.1.1.a", "stage.1.1.b", "head.0", "head.1"]
    inner = {layer: layer.rpartition(".")[0] for layer in layers if layer.startswith("stage")}
    assert block_names(layers) == inner


def test_a_first_block_without_a_layer_of_the_others_is_a_block_beside_them() -> None:
    layers = ["h.0.a", "h.0.b", "h.1.a", "h.1.b", "h.1.norm", "h.2.a", "h.2.b", "h.2.norm", "g.0.c", "g.0.d"]
    assert block_names(layers) == {layer: layer[:3] for layer in layers if layer.startswith("h")}


def test_a_single_layer_that_comes_again_is_no_block() -> None:
    assert block_names(["up.0.a", "up.1.a", "up.2.a"]) == {}
    assert block_names(["up.0.a", "up.0.b"]) == {}


def network(blocks: int) -> Step:
    """Blocks of two products, forward and back; each saves its inner tensor of 1 KiB and reads the block's of 512 bytes.

    Work 2 b and 2 b + 1 are block b's forward; its backward are two Works as well, the last block first.
    """
    small, large = TensorSpec((8, WIDTH)), TensorSpec((8, 2 * WIDTH))
    weight = TensorSpec((WIDTH, 2 * WIDTH), role=Role.PARAMETER)
    tensors, ops, x = [TensorSpec((8, WIDTH), role=Role.INPUT)], list[Op](), 0
    own: list[tuple[int, int, int, int, int]] = []
    for block in range(blocks):
        up, inner, down, result = range(len(tensors), len(tensors) + 4)
        tensors += [weight, large, weight, small]
        ops += [
            Op(body=MatMul(8, 2 * WIDTH, WIDTH), layer=f"h.{block}.up", inputs=(x, up), outputs=(inner,), letters=("A", "W")),
            Op(
                body=MatMul(8, WIDTH, 2 * WIDTH),
                layer=f"h.{block}.down",
                inputs=(inner, down),
                outputs=(result,),
                letters=("A", "W"),
            ),
        ]
        own.append((x, up, inner, down, result))
        x = result
    gradient = len(tensors)
    tensors.append(TensorSpec((8, WIDTH), role=Role.GRADIENT))
    ops.append(Op(body=ElementWise("neg", 8 * WIDTH), layer="loss", phase=Phase.LOSS, inputs=(x,), outputs=(gradient,)))
    for block in reversed(range(blocks)):
        _, up, inner, down, _ = own[block]
        above, below = range(len(tensors), len(tensors) + 2)
        tensors += [TensorSpec((8, 2 * WIDTH), role=Role.GRADIENT), TensorSpec((8, WIDTH), role=Role.GRADIENT)]
        back = Phase.GRAD_INPUT
        ops += [
            Op(
                body=MatMul(8, 2 * WIDTH, WIDTH),
                layer=f"h.{block}.down",
                phase=back,
                inputs=(gradient, down, inner),
                outputs=(above,),
            ),
            Op(body=MatMul(8, WIDTH, 2 * WIDTH), layer=f"h.{block}.up", phase=back, inputs=(above, up), outputs=(below,)),
        ]
        gradient = below
    return Step(name="blocks", batch=8, ops=tuple(ops), tensors=tuple(tensors))


def blocks(count: int) -> tuple[Problem, list[Block]]:
    step = network(count)
    works = [Work(ops=(number,)) for number in range(len(step.ops))]
    seconds = [1.0 + number for number in range(len(works))]
    paged = page_step(step, works, seconds, out_bytes_per_s=1e9, in_bytes_per_s=1e9)
    return paged.problem, blocks_of(step, works, paged)


def test_a_block_saves_its_inner_tensor_and_holds_its_input_where_it_is_checkpointed() -> None:
    """Forward of block b takes 2 b + 1 and 2 b + 2 seconds; the first one's input is the batch, which stays in any case."""
    _, found = blocks(3)
    assert [block.name for block in found] == ["h.0", "h.1", "h.2"]
    assert [block.bytes for block in found] == [8 * 2 * WIDTH * 4] * 3
    assert [block.forward_s for block in found] == [3.0, 7.0, 11.0]
    assert [block.input_bytes for block in found] == [0, 8 * WIDTH * 4, 8 * WIDTH * 4]
    assert [(block.forward_end, block.backward) for block in found] == [(1, 11), (3, 9), (5, 7)]


def test_each_checkpointed_block_frees_its_bytes_for_the_time_of_its_forward() -> None:
    """The cheapest first. A device then recomputes one block at a time, and holds the inputs of those that wait."""
    problem, found = blocks(3)
    choices = block_choices(problem, found)
    assert [choice.checkpointed for choice in choices] == [(), ("h.0",), ("h.0", "h.1"), ("h.0", "h.1", "h.2")]
    kept = choices[0].choice.time_s
    assert [choice.choice.time_s - kept for choice in choices] == pytest.approx([0.0, 3.0, 10.0, 21.0])
    assert [choice.recomputed_bytes for choice in choices] == [0, 1024, 2048, 3072]
    assert choices[3].choice.peak_bytes < choices[0].choice.peak_bytes
    assert set(choices[0].choice.decisions) == {"keep"}
    whole = choices[3].choice
    assert [whole.recompute_at[block.saved[0]] for block in found] == [11, 9, 7]


def test_of_blocks_that_free_as_much_for_a_second_the_earlier_is_checkpointed_first() -> None:
    problem, found = blocks(2)
    alike = [Block(**{name: getattr(block, name) for name in Block.__slots__} | {"forward_s": 2.0}) for block in found]
    assert [choice.checkpointed for choice in block_choices(problem, alike)] == [(), ("h.0",), ("h.0", "h.1")]


def test_a_block_without_bytes_comes_last_of_its_seconds() -> None:
    problem, found = blocks(2)
    empty = [
        Block(**{name: getattr(block, name) for name in Block.__slots__} | {"bytes": size})
        for block, size in zip(found, (0, 2048), strict=True)
    ]
    assert block_choices(problem, empty)[1].checkpointed == ("h.1",)
