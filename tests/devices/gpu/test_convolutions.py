"""Convolutions of a GPU as matrix products: extents, bytes, padding of channels, transpositions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trainyard.devices.gpu.convolutions import _algorithms, _by_image, _padded, _transpositions, matrices
from trainyard.ir import Convolution

BODY = Convolution(batch=2, in_channels=6, out_channels=10, size=(8, 6), kernel=(3, 3), stride=(2, 2), padding=(1, 1))
X, W, Y = 2 * 6 * 48, 10 * 6 * 9, 2 * 10 * 12  # results of 4 x 3


@pytest.mark.parametrize(
    ("product", "extents", "sizes"),
    [
        ("forward", (24, 10, 54), (X, W, Y)),
        ("grad_weight", (54, 10, 24), (X, Y, W)),
        ("grad_input", (96, 6, 22), (Y, W, X)),  # 90 taps of results; a quarter of the positions of the input meet each: 22.5
    ],
)
def test_a_convolution_is_a_product_over_channels_last_maps(
    product: Any, extents: tuple[int, int, int], sizes: tuple[int, ...]
) -> None:
    found = matrices(BODY.as_product(product), 2)
    assert (found.M, found.N, found.K, found.batch, found.element_bytes) == (*extents, 1, 2)
    assert (found.a_bytes, found.b_bytes, found.out_bytes) == tuple(2 * size for size in sizes)


def test_groups_are_products_of_their_own() -> None:
    found = matrices(replace(BODY, groups=2), 4)
    assert (found.M, found.N, found.K, found.batch) == (24, 5, 27, 2)


@pytest.mark.parametrize(
    ("product", "width", "extents", "row"),
    [
        ("forward", 2, (24, 10, 72), 2),  # six channels of two bytes are padded to eight
        ("grad_weight", 2, (72, 10, 24), 2),
        ("grad_input", 2, (96, 8, 22), 2),
        ("forward", 4, (24, 10, 72), 1),
        ("forward", 1, (24, 10, 144), 4),
    ],
)
def test_input_channels_are_padded_to_vectors_of_sixteen_bytes(
    product: Any, width: int, extents: tuple[int, int, int], row: int
) -> None:
    found = _padded(BODY.as_product(product), width)
    assert (found.M, found.N, found.K, found.row) == (*extents, row)
    aligned = replace(BODY, in_channels=8)
    assert _padded(aligned, 2) == matrices(aligned, 2)


@pytest.mark.parametrize(
    ("product", "extents", "sizes"),
    [
        ("forward", (10, 48, 6), (10 * 6, 2 * 6 * 48, 2 * 10 * 48)),
        ("grad_input", (6, 48, 10), (10 * 6, 2 * 10 * 48, 2 * 6 * 48)),
        ("grad_weight", (10, 6, 48), (2 * 10 * 48, 2 * 6 * 48, 2 * 2 * 2 * 10 * 6)),  # out and in again, of four bytes for two
    ],
)
def test_a_pointwise_convolution_is_a_product_for_each_image(
    product: Any, extents: tuple[int, int, int], sizes: tuple[int, ...]
) -> None:
    body = replace(BODY, kernel=(1, 1), stride=(1, 1), padding=(0, 0)).as_product(product)
    found = _by_image(body, 2)
    assert (found.M, found.N, found.K, found.batch) == (*extents, 2)
    assert (found.a_bytes, found.b_bytes, found.out_bytes) == tuple(2 * size for size in sizes)
    assert found.row == 0  # rows of 48 numbers are aligned
    assert _by_image(replace(body, size=(7, 6)), 2).row == 2


def test_maps_are_transposed_in_tiles_of_32_channels_and_filters_where_they_have_taps() -> None:
    assert _transpositions(BODY) == (X + Y + W, 2 * 48 * 32 + 2 * 12 * 32 + W, 3)
    pointwise = replace(BODY, kernel=(1, 1), padding=(0, 0), in_channels=64)
    assert _transpositions(pointwise) == (2 * 64 * 48 + Y, 2 * 64 * 48 + 2 * 12 * 32, 2)


@pytest.mark.parametrize(
    ("body", "kind", "native", "copies"),
    [
        (BODY, "fp32", False, [0]),  # vector lanes, no copies
        (BODY, "half", True, [0]),
        (BODY, "half", False, [3]),
        (replace(BODY, in_channels=3), "half", False, [3, 0]),  # 27 taps: the vector lanes may be faster
        (replace(BODY, kernel=(1, 1), stride=(1, 1), padding=(0, 0), in_channels=64), "half", False, [0, 2]),  # by image
        (replace(BODY, kernel=(1, 1), padding=(0, 0), in_channels=64), "half", False, [2]),  # a stride leaves positions out
        (replace(BODY, kernel=(1, 1), stride=(1, 1), padding=(0, 0), in_channels=64, groups=2), "half", False, [2, 0]),
    ],
)
def test_algorithms_that_apply_and_their_copies(body: Convolution, kind: Any, native: bool, copies: list[int]) -> None:
    assert [algorithm.copies for algorithm in _algorithms(body, kind, 2, native=native)] == copies


@pytest.mark.parametrize(
    ("product", "strided"), [("forward", (False, False)), ("grad_input", (False, True)), ("grad_weight", (True, True))]
)
def test_tf32_cores_read_strided_operands_of_gradients(product: Any, strided: tuple[bool, bool]) -> None:
    for kind, wanted in (("tf32", strided), ("half", (False, False))):
        (algorithm,) = _algorithms(BODY.as_product(product), kind, 4, native=True)  # type: ignore[arg-type]
        assert (algorithm.matrices.a_strided, algorithm.matrices.b_strided) == wanted
