"""Pieces of tensors and ops by hand, and the bytes by which layers choose their mode."""

from __future__ import annotations

from typing import Any

import pytest

from trainyard.errors import BadInput
from trainyard.ir import (
    Body,
    Collective,
    Convolution,
    Copy,
    ElementWise,
    Gather,
    MatMul,
    Op,
    Phase,
    Reduction,
    Role,
    Step,
    TensorSpec,
    Update,
)
from trainyard.mapping.parallel.layer_choice import _between, _Graph, _graph, _settled
from trainyard.mapping.parallel.shards import (
    BATCH,
    PARTIAL,
    WHOLE,
    Layout,
    cut_body,
    cut_product,
    cut_shape,
    features,
    input_features,
    output_axis,
    own_groups,
    scaled,
)
from trainyard.mapping.parallel.transform import carried_bytes

F, X, W = Phase.FORWARD, Phase.GRAD_INPUT, Phase.GRAD_WEIGHT


def test_which_layouts_are_cut_and_which_are_read_for_one_another() -> None:
    kinds = [Layout(kind) for kind in ("whole", "features", "heads", "pairs", "batch", "partial")]
    assert [layout.cut for layout in kinds] == [False, True, True, True, False, False]
    assert [layout.by_sample for layout in kinds] == [False, False, False, False, True, True]
    alike = {(one.kind, other.kind) for one in kinds for other in kinds if one.like(other) and one != other}
    assert alike == {("features", "heads"), ("heads", "features")}


# fmt: off
SHAPES = [
    # shape             layout                       piece
    ((8, 64, 7, 7),     features(64, 8),             (8, 8, 7, 7)),       # channels stand second in images
    ((8, 64),           features(64, 8),             (8, 8)),
    ((64, 8, 64),       features(64, 8),             (64, 8, 8)),         # of two axes of that length the last
    ((64, 8),           features(64, 8),             (8, 8)),             # where the features are
    ((8, 128),          features(64, 8),             (8, 16)),            # two values for each feature: the share of the last axis
    ((10, 9),           features(64, 8),             (2, 9)),             # 2 of 10 is nearer to an eighth than 2 of 9
    ((64, 3),           Layout("pairs", 8, 64),      (8, 3)),
    ((64, 64),          Layout("pairs", 8, 64),      (8, 64)),            # pairs stand first
    ((1, 1),            features(64, 8),             (1, 1)),
    ((),                features(64, 8),             ()),
    ((8, 64),           WHOLE,                       (8, 64)),
    ((8, 64),           BATCH,                       (8, 64)),
    ((8, 64),           PARTIAL,                     (8, 64)),
]
BODIES: list[tuple[Body, bool, Body]] = [
    # of tensors (8, 64) in, (8, 64) out, on an eighth of the features
    (ElementWise("add", 512, 3),        True,  ElementWise("add", 64, 3)),
    (ElementWise("add", 100),           True,  ElementWise("add", 13)),           # the size of no tensor: rounded up
    (Copy("cat", 512),                  True,  Copy("cat", 64)),
    (Update("sgd", 512),                True,  Update("sgd", 64)),
    (Reduction("sum", 512, 64, 2),      True,  Reduction("sum", 64, 8, 2)),
    (Reduction("sum", 512, 8),          False, Reduction("sum", 64, 8)),          # a sum over features has all its results
    (Gather(5, 60, 1000),               True,  Gather(5, 8, 1000)),
]
PRODUCTS: list[tuple[Body, Phase, tuple[str, ...], str, int, Body, int]] = [
    # body                     phase  letters      axis  of dX  share of 4 devices     part of the output features
    (MatMul(8, 10, 6),         F,     ("A", "W"),  "N",  8,     MatMul(8, 3, 6),       3),
    (MatMul(10, 8, 6),         F,     ("W", "A"),  "M",  10,    MatMul(3, 8, 6),       3),
    (MatMul(8, 6, 10),         X,     ("G", "W"),  "K",  6,     MatMul(8, 6, 3),       3),
    (MatMul(6, 8, 10),         X,     ("W", "G"),  "K",  6,     MatMul(6, 8, 3),       3),
    (MatMul(10, 6, 8),         W,     ("G", "A"),  "M",  6,     MatMul(3, 6, 8),       3),
    (MatMul(6, 10, 8),         W,     ("A", "G"),  "N",  6,     MatMul(6, 3, 8),       3),
]
# fmt: on


@pytest.mark.parametrize(("shape", "layout", "piece"), SHAPES)
def test_a_piece_is_cut_where_the_features_are(shape: tuple[int, ...], layout: Layout, piece: tuple[int, ...]) -> None:
    assert cut_shape(shape, layout) == piece


@pytest.mark.parametrize(("body", "kept", "share"), BODIES)
def test_an_op_between_products_works_on_its_piece(body: Body, kept: bool, share: Body) -> None:
    output = (64,) if isinstance(body, Reduction) and body.results == 64 else (8, 64)
    assert cut_body(body, features(64, 8), output, (8, 64), kept) == share


def test_at_least_one_element_is_left_and_a_product_is_not_cut_by_its_tensors() -> None:
    assert scaled(1, features(64, 8), (8, 64)) == 1
    assert scaled(512, features(64, 8), (3,), (8, 64)) == 64
    with pytest.raises(BadInput, match="MatMul is not cut"):
        cut_body(MatMul(4, 4, 4), features(64, 8), (4, 4), (4, 4), True)


@pytest.mark.parametrize(("body", "phase", "letters", "axis", "inputs", "share", "part"), PRODUCTS)
def test_a_product_of_a_layer_is_cut_in_its_output_features(
    body: Body, phase: Phase, letters: tuple[str, ...], axis: str, inputs: int, share: Body, part: int
) -> None:
    assert output_axis(body, phase, letters) == axis
    assert cut_product(body, phase, letters, 4) == (share, Layout("features", part, 10))
    if phase is X:
        assert input_features(body, phase, letters) == inputs


IMAGE = Convolution(batch=2, in_channels=12, out_channels=24, size=(6, 6), kernel=(3, 3))


def test_a_convolution_is_cut_in_output_channels_and_a_transposed_one_in_its_in_channels() -> None:
    for phase, product, letters in ((F, "forward", ("A", "W")), (X, "grad_input", ("G", "W")), (W, "grad_weight", ("G", "A"))):
        body: Any = IMAGE.as_product(product)  # type: ignore[arg-type]
        assert output_axis(body, phase, letters) == "out_channels"
        assert input_features(body, phase, letters) == 12
    for phase, product, letters in ((F, "grad_input", ("A", "W")), (X, "forward", ("G", "W")), (W, "grad_weight", ("A", "G"))):
        body = IMAGE.as_product(product)  # type: ignore[arg-type]
        assert output_axis(body, phase, letters) == "in_channels"
        assert input_features(body, phase, letters) == 24
    share, layout = cut_product(IMAGE, F, ("A", "W"), 5)
    assert (share.out_channels, layout) == (5, Layout("features", 5, 24))  # type: ignore[union-attr]


def test_groups_are_divided_over_devices_where_each_has_one_and_cut_where_not() -> None:
    grouped = Convolution(batch=2, in_channels=12, out_channels=24, size=(6, 6), kernel=(3, 3), groups=6)
    assert [own_groups(grouped, devices) for devices in (1, 6, 7)] == [False, True, False]
    assert not own_groups(MatMul(4, 4, 4), 2)
    share, layout = cut_product(grouped, F, ("A", "W"), 4)  # two of six groups
    assert isinstance(share, Convolution)
    assert (share.groups, share.in_channels, share.out_channels, layout) == (2, 4, 8, Layout("features", 8, 24))
    share, layout = cut_product(grouped, F, ("A", "W"), 8)  # four channels of each group: one
    assert isinstance(share, Convolution)
    assert (share.groups, share.in_channels, share.out_channels, layout) == (6, 12, 6, Layout("features", 6, 24))


# the choice of modes


def test_x_is_gathered_once_or_twice_and_dx_comes_back() -> None:
    assert _between("all_reduce", "shard", 1) == {
        ("data", "data"): 0, ("data", "model"): 3, ("model", "data"): 3, ("model", "model"): 4,
    }  # fmt: skip
    assert _between("reduce_scatter", "whole", 2) == {
        ("data", "data"): 0, ("data", "model"): 4, ("model", "data"): 4, ("model", "model"): 4,
    }  # fmt: skip


def layers() -> Step:
    """Two fully connected layers (8,4) and (4,6) of 2 samples with a ReLU between, and a table that a third one shares."""
    tensors = [
        TensorSpec((2, 8), role=Role.INPUT), TensorSpec((8, 4), role=Role.PARAMETER), TensorSpec((2, 4)), TensorSpec((2, 4)),
        TensorSpec((4, 6), role=Role.PARAMETER), TensorSpec((2, 6)), TensorSpec((2, 8)),
    ]  # fmt: skip
    ops = [
        Op(body=MatMul(2, 4, 8), layer="first", inputs=(0, 1), outputs=(2,), letters=("A", "W")),
        Op(body=ElementWise("relu", 8), layer="relu", inputs=(2,), outputs=(3,)),
        Op(body=MatMul(2, 6, 4), layer="second", inputs=(3, 4), outputs=(5,), letters=("A", "W")),
        Op(body=MatMul(2, 6, 4), layer="again", inputs=(3, 4), outputs=(5,), letters=("A", "W")),
    ]
    return Step(name="layers", batch=2, ops=tuple(ops), tensors=tuple(tensors))


def test_a_layer_weighs_its_gradients_twice_and_what_it_reads_of_another_once() -> None:
    """Weights of 128 and 96 bytes; the second layer, which another shares, reads 32 bytes of the first."""
    graph = _graph(layers(), "once")
    assert graph.data == {"first": 256, "second": 192}
    assert graph.edges == {"second": [("first", 32, True)], "first": [("second", 32, False)]}
    assert graph.one == {"first": "first", "second": "second", "again": "second"}
    assert graph.connected == {"first", "second"}
    assert _graph(layers(), "every_call").data == {"first": 256, "second": 384}


def test_layers_take_the_mode_that_carries_less_until_none_changes() -> None:
    graph = _Graph(data={"a": 100, "b": 10}, edges={"b": [("a", 20, True)], "a": [("b", 20, False)]})
    pairs = _between("all_reduce", "shard", 1)
    assert _settled(graph, pairs, {"a": "data", "b": "data"}) == (70, {"a": "model", "b": "data"})
    assert _settled(graph, pairs, {"a": "model", "b": "model"}) == (70, {"a": "model", "b": "data"})
    costly = _Graph(data={"a": 100, "b": 10}, model={"a": 200}, edges=graph.edges)
    assert _settled(costly, pairs, {"a": "model", "b": "model"}) == (110, {"a": "data", "b": "data"})


def test_a_ring_carries_an_all_reduce_twice_and_everything_else_once_less_one_share() -> None:
    tensors = (TensorSpec((100,)), TensorSpec((100,), "fp16"))
    kinds: list[tuple[Any, int, int, float]] = [
        ("all_reduce", 4, 0, 2 * 100 * 3 / 4 * 4),
        ("all_gather", 4, 1, 100 * 3 / 4 * 2),
        ("reduce_scatter", 2, 0, 100 * 1 / 2 * 4),
    ]
    for kind, ranks, tensor, size in kinds:
        op = Op(body=Collective(kind, 100, ranks), inputs=(tensor,), outputs=(tensor,))
        assert carried_bytes(Step(name="one", batch=1, ops=(op,), tensors=tensors)) == size
