"""Timeloop problems: MACs are the product of the dimensions, what is written is read, pyyaml sees a problem."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadInput
from trainyard.ir import Convolution, MatMul, Op, ProductBody
from trainyard.workloads import zoo
from trainyard.workloads.formats.timeloop import problem, read_timeloop, write_timeloop

yaml = pytest.importorskip("yaml")


def unpadded(body: ProductBody) -> ProductBody:
    """A product as a problem holds it: padding has become input, and input that no window sees is gone."""
    if isinstance(body, MatMul):
        return body
    shape = zip(body.out_size, body.stride, body.kernel, body.dilation, strict=True)
    return Convolution(
        batch=body.batch, in_channels=body.in_channels, out_channels=body.out_channels, kernel=body.kernel, stride=body.stride,
        size=tuple((p - 1) * s + (r - 1) * d + 1 for p, s, r, d in shape), dilation=body.dilation, groups=body.groups,
        product=body.product,
    )  # fmt: skip


few = st.integers(1, 5)


@st.composite
def convolutions(draw: Any) -> Convolution:
    rank, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))

    def numbers(least: int, most: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(least, most), min_size=rank, max_size=rank)))

    kernel, dilation = numbers(1, 3), numbers(1, 3)
    size = tuple(e + (k - 1) * d for e, k, d in zip(numbers(1, 6), kernel, dilation, strict=True))
    return Convolution(
        batch=draw(few), in_channels=draw(few) * groups, out_channels=draw(few) * groups, size=size, kernel=kernel,
        stride=numbers(1, 3), padding=numbers(0, 2), dilation=dilation, groups=groups,
        product=draw(st.sampled_from(["forward", "grad_input", "grad_weight"])),
    )  # fmt: skip


@pytest.mark.oracle
@given(st.one_of(convolutions(), st.builds(MatMul, few, few, few, few)))
def test_a_written_problem_reads_back_equal(tmp_path_factory: pytest.TempPathFactory, body: Any) -> None:
    text = problem(Op(body=body))
    document = yaml.safe_load(text)["problem"]
    shape, instance = document["shape"], document["instance"]
    assert math.prod(instance[d] for d in shape["dimensions"]) == body.macs
    assert document["version"] == 0.4
    assert sum(bool(space.get("read_write")) for space in shape["data_spaces"]) == 1
    named = {c["name"] for c in shape.get("coefficients", [])}
    assert set(instance) == set(shape["dimensions"]) | named
    for space in shape["data_spaces"]:  # sums of products of dimensions and coefficients
        for axis in space["projection"]:
            for term in axis:
                assert term[0] in shape["dimensions"]
                assert set(term[1:]) <= named
    path = tmp_path_factory.mktemp("timeloop") / "p.yaml"
    path.write_text(text)
    actual = read_timeloop(path)
    assert actual == unpadded(body)
    assert problem(Op(body=actual)) == text
    assert actual.macs == body.macs


@pytest.mark.oracle
@given(convolutions())
def test_spaces_touch_the_elements_of_the_tensors(body: Convolution) -> None:
    """Walks the loop nest by the file alone: the points of each space are the elements of its tensor."""
    if body.macs > 3000:
        return
    document = yaml.safe_load(problem(Op(body=body)))["problem"]
    shape, instance = document["shape"], document["instance"]
    import itertools

    touched: dict[str, set[tuple[int, ...]]] = {space["name"]: set() for space in shape["data_spaces"]}
    for point in itertools.product(*(range(instance[d]) for d in shape["dimensions"])):
        at = {**instance, **dict(zip(shape["dimensions"], point, strict=True))}
        for space in shape["data_spaces"]:
            axes = (sum(math.prod(at[name] for name in term) for term in axis) for axis in space["projection"])
            touched[space["name"]].add(tuple(axes))
    plain = unpadded(body)
    assert isinstance(plain, Convolution)
    assert len(touched["Weights"]) == plain.weight_elements
    assert len(touched["Outputs"]) == plain.output_elements
    assert len(touched["Inputs"]) <= plain.input_elements  # strides may step over some


def test_a_network_in_a_folder(tmp_path: Path) -> None:
    step = zoo.load("alexnet", batch=2)
    files = write_timeloop(step, tmp_path / "all")
    products = [op for op in step.ops if op.is_product]
    assert len(files) == len(products)
    assert sum(read_timeloop(file).macs for file in files) == step.macs
    one = write_timeloop(step, tmp_path / "one", layer="features.0", phase="forward")
    assert [file.name for file in one] == ["000_features.0_forward.yaml"]
    with pytest.raises(BadInput, match=r"no product of layer 'features\.1'"):
        write_timeloop(step, tmp_path, layer="features.1")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot make the folder"):
        write_timeloop(step, tmp_path / "file")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no Timeloop problem"),
        ("- 1", "no Timeloop problem"),
        ("problem: {instance: {M: 0, N: 1, K: 1}, shape: {}}", "M must be a positive whole number, got 0"),
        ("problem: {instance: {M: 1.5, N: 1, K: 1}, shape: {}}", "M must be a positive whole number"),
        ("problem: {instance: {X: 1}, shape: {}}", "neither M, N, K nor"),
        ("a: [", "is not YAML"),
        ("[" * 3000, "more than 64 lists in lists"),
        ("!!python/object/apply:os.system ['true']", "is not YAML"),
        ("x" * (2**16 + 1), "more than"),
    ],
)
def test_damaged_problems_raise(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(BadInput, match=says):
        read_timeloop(path)
