from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import BadInput, UnknownName
from trainyard.ir import Convolution, MatMul, Op, Phase, Role, Step
from trainyard.workloads.formats import read_sparsity, read_topology, write_topology
from trainyard.workloads.formats.scalesim import chain

CONVOLUTIONS = """Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter, Strides,
Conv1, 224, 224, 7, 7, 3, 64, 2,

Conv2 ,  58, 58,  3, 3,  64,   128, 1 ,
Depth_DP, 30, 30, 3, 3, 128, 1, 1, # dw
FC6, 1, 1, 1, 1, 1024, 1000, 1
"""


def read(tmp_path: Path, text: str, **options: Any) -> Step:
    file = tmp_path / "net.csv"
    file.write_text(text)
    return read_topology(file, **options)


def forward(step: Step) -> list[Op]:
    return [op for op in step.ops if op.phase is Phase.FORWARD]


def test_a_topology_as_found_in_the_wild(tmp_path: Path) -> None:
    first, second, depthwise, dense = (op.body for op in forward(read(tmp_path, CONVOLUTIONS)))
    assert isinstance(first, Convolution)
    assert first.out_size == (110, 110)  # ceil((224 - 7 + 2) / 2); PyTorch would give 109
    assert (first.size, first.in_channels, first.out_channels) == ((225, 225), 3, 64)
    assert second == Convolution(batch=1, in_channels=64, out_channels=128, size=(58, 58), kernel=(3, 3))
    assert depthwise == Convolution(batch=1, in_channels=128, out_channels=128, size=(30, 30), kernel=(3, 3), groups=128)
    assert dense == Convolution(batch=1, in_channels=1024, out_channels=1000, size=(1, 1), kernel=(1, 1))


def test_rounding_torch_keeps_the_printed_input(tmp_path: Path) -> None:
    body = forward(read(tmp_path, CONVOLUTIONS, rounding="torch"))[0].body
    assert isinstance(body, Convolution)
    assert (body.size, body.out_size) == ((224, 224), (109, 109))


@given(st.integers(1, 300), st.integers(1, 11), st.integers(1, 5))
def test_outputs_are_scalesims(extent: int, kernel: int, stride: int) -> None:
    from trainyard.workloads.formats.scalesim import _stretched

    if kernel > extent:
        return
    stretched = _stretched(extent, kernel, stride)
    body = Convolution(batch=1, in_channels=1, out_channels=1, size=(stretched,), kernel=(kernel,), stride=(stride,))
    assert body.out_size == (math.ceil((extent - kernel + stride) / stride),)
    assert extent <= stretched < extent + stride


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Layer,M,N,K\n1,256,128,2048\n", MatMul(256, 128, 2048)),
        ("Layer, M, K, N,\nfc, 256, 2048, 128,\n", MatMul(256, 128, 2048)),
        ("Layer,M,N,K,\nqk,49,49,64,16,\n", MatMul(49, 49, 64, 16)),
        ("fc,256,128,2048,\n", MatMul(256, 128, 2048)),
        ("\ufeffLayer,M,N,K,Sparsity,\r\nfc,8,4,2,2:4,\r\n", MatMul(8, 4, 2)),
    ],
)
def test_gemm_rows_become_matrix_products(tmp_path: Path, text: str, expected: MatMul) -> None:
    text = text.replace("K,\nqk", "K,Batch,\nqk")
    assert [op.body for op in forward(read(tmp_path, text))] == [expected]


@pytest.mark.parametrize(
    ("header", "row", "stride"),
    [
        ("Strides,", "2,", (2, 2)),
        ("Stride height,Stride width,", "2,3,", (2, 3)),
        ("Strides,", "2,3,", (2, 3)),  # an unnamed column beside the stride
        ("Strides,Sparsity,", "2,2:4,", (2, 2)),
        ("Strides,Sparsity,", "2,1,", (2, 2)),
        ("Strides,", "2,,,", (2, 2)),
    ],
)
def test_strides_in_one_or_two_columns(tmp_path: Path, header: str, row: str, stride: tuple[int, int]) -> None:
    names = "Layer name,IFMAP Height,IFMAP Width,Filter Height,Filter Width,Channels,Num Filter,"
    (op,) = forward(read(tmp_path, f"{names}{header}\nc,20,21,3,3,4,5,{row}\n"))
    assert isinstance(op.body, Convolution)
    assert op.body.stride == stride


def test_sparsity_is_kept_aside(tmp_path: Path) -> None:
    file = tmp_path / "net.csv"
    file.write_text("Layer,M,N,K,Sparsity\na,8,4,2,2:4\nb,8,4,2,1:1\nc,8,4,2,\n")
    assert read_sparsity(file) == {"a": (2, 4), "b": (1, 1)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("Layer,M,N,K\n", "has a header and no layers"),
        ("Layer,M,N,K\na,8,4\n", "net.csv, line 2: no K"),
        ("Layer,M,N,K\na,8,x,4\n", "line 2, column 3 (N): expected a positive whole number, got 'x'"),
        ("Layer,M,N,K\na,8,0,4\n", "line 2, column 3 (N)"),
        ("Layer,M,N,K\na,8,nan,4\n", "line 2, column 3 (N)"),
        ("Layer,M,N,K\n\na,8,-1,4\n", "line 3, column 3 (N)"),
        ("Layer,M,N,K,Sparsity\na,8,1,4,5:4\n", "column 5 (sparsity): expected a ratio"),
        ("Layer name,IFMAP Height,IFMAP Width,Filter Height,Filter Width,Channels,Num Filter,Strides\nc,2,9,3,3,1,1,1\n",
         "line 2 (c): filter (3, 3) is larger than the input (2, 9)"),
    ],
)  # fmt: skip
def test_faults_name_line_and_column(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(tmp_path, text)
    assert says in str(caught.value)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot read topology"):
        read_topology(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="is not text"):
        read_topology(tmp_path / "binary.csv")


def test_layers_follow_each_other_and_train(tmp_path: Path) -> None:
    step = read(tmp_path, CONVOLUTIONS, batch=4)
    phases = [(op.layer, op.phase) for op in step.ops if op.is_product]
    assert ("Conv1", Phase.GRAD_INPUT) not in phases  # nobody needs the gradient of the input
    assert ("Conv1", Phase.GRAD_WEIGHT) in phases
    assert phases.count(("Conv2", Phase.GRAD_INPUT)) == phases.count(("Conv2", Phase.GRAD_WEIGHT)) == 1
    once = sum(op.macs for op in forward(step))
    assert step.macs == 3 * once - forward(step)[0].macs
    waits = step.dependencies
    for number in range(1, 4):
        assert waits[number] == (number - 1,)
    assert [op.body.elements for op in step.ops if op.phase is Phase.UPDATE] == [
        spec.elements for spec in step.tensors if spec.role is Role.PARAMETER
    ]  # type: ignore[union-attr]


def test_batch_multiplies_and_rebatches(tmp_path: Path) -> None:
    one, eight = read(tmp_path, CONVOLUTIONS), read(tmp_path, CONVOLUTIONS, batch=8)
    assert eight.macs == 8 * one.macs
    assert one.rebatch(8) == eight
    assert eight.rebatch(1) == one


def test_repeated_names_become_layers_of_their_own(tmp_path: Path) -> None:
    step = read(tmp_path, "Layer,M,N,K\nfc,8,4,2\nfc,8,4,4\n", backward=False)
    assert step.layers == ("fc", "fc_2")


sizes = st.integers(1, 40)
products = st.builds(MatMul, sizes, sizes, sizes)


@st.composite
def convolutions(draw: st.DrawFn) -> Convolution:
    kernel = (draw(st.integers(1, 5)), draw(st.integers(1, 5)))
    stride = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    out = (draw(st.integers(1, 9)), draw(st.integers(1, 9)))
    size = tuple((o - 1) * s + k for o, s, k in zip(out, stride, kernel, strict=True))
    groups = draw(st.sampled_from([1, 1, 6]))
    inner = 1 if groups > 1 else draw(st.integers(1, 8))
    return Convolution(
        batch=1, in_channels=inner * groups, out_channels=groups * draw(st.integers(1, 8)), size=size, kernel=kernel, stride=stride,
        groups=groups,
    )  # fmt: skip


@given(st.lists(st.one_of(products, convolutions()), min_size=1, max_size=5), st.integers(1, 3))
def test_a_written_topology_reads_back_equal(tmp_path_factory: pytest.TempPathFactory, bodies: list[Any], batch: int) -> None:
    file = tmp_path_factory.mktemp("topology") / "net.csv"
    step = chain("net", [(f"layer{i}", body) for i, body in enumerate(bodies)]).rebatch(batch)
    write_topology(step, file)
    back = read_topology(file, batch=batch, backward=False)
    assert [op.macs for op in back.ops] == [op.macs for op in step.ops]
    if all(isinstance(body, Convolution) for body in bodies) or all(isinstance(body, MatMul) for body in bodies):
        assert [op.body for op in back.ops] == [op.body for op in step.ops]
    write_topology(back, file.with_name("again.csv"))
    assert file.with_name("again.csv").read_text() == file.read_text()


def test_padding_groups_and_heads_are_written_out(tmp_path: Path) -> None:
    bodies = [
        (
            "padded",
            Convolution(batch=1, in_channels=3, out_channels=8, size=(9, 9), kernel=(3, 3), padding=(1, 1), stride=(2, 2)),
        ),
        ("DPgrouped", Convolution(batch=1, in_channels=8, out_channels=16, size=(16, 16), kernel=(1, 1), groups=4)),
        ("line", Convolution(batch=1, in_channels=4, out_channels=6, size=(20,), kernel=(5,))),
        ("heads", MatMul(16, 16, 8, count=3)),
    ]
    step = chain("net", bodies)
    write_topology(step, tmp_path / "net.csv")
    back = read_topology(tmp_path / "net.csv", backward=False)
    assert back.layers == ("padded", *(f"dpgrouped_{i}" for i in range(4)), "line", *(f"heads_{i}" for i in range(3)))
    assert back.macs == step.macs


def test_steps_without_products_or_with_a_fixed_batch_raise(tmp_path: Path) -> None:
    from dataclasses import replace

    from trainyard.ir import ElementWise

    step = chain("net", [("fc", MatMul(4, 4, 4))])
    with pytest.raises(BadInput, match="cannot be rebatched"):
        write_topology(replace(step, batch=4, rebatchable=False), tmp_path / "net.csv")
    with pytest.raises(BadInput, match="no matrix product"):
        write_topology(replace(step, ops=(Op(body=ElementWise("relu", 4)),)), tmp_path / "net.csv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("quote", ["", '"'])
def test_cells_separated_by_tabs_or_semicolons_and_quoted_are_read(tmp_path: Path, separator: str, quote: str) -> None:
    rows = [["Layer", "M", "N", "K"], ["fc", "8", "3", "4"]]
    text = "\r\n".join(separator.join(f"{quote}{cell}{quote}" for cell in row) for row in rows)
    (op,) = forward(read(tmp_path, f"\ufeff{text}"))
    assert (op.layer, op.body) == ("fc", MatMul(8, 3, 4))


def test_dimensions_of_too_many_digits_raise(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"line 2, column 2 \(M\): expected at most 12 digits, got 400"):
        read(tmp_path, f"Layer,M,N,K\na,{'9' * 400},2,4\n")


@pytest.mark.parametrize("phase", ["all", "grad_input", "grad_weight"])
def test_backward_products_are_gemms(tmp_path: Path, phase: str) -> None:
    step, file = read(tmp_path, CONVOLUTIONS, batch=4), tmp_path / "back.csv"
    write_topology(step, file, phase=phase)
    wanted = [op for op in step.ops if op.is_product and phase in ("all", op.phase.value)]
    actual = [op.body for op in forward(read_topology(file, backward=False))]
    assert sum(body.macs for body in actual if isinstance(body, MatMul)) == sum(op.macs for op in wanted)
    assert len(actual) == sum(op.body.groups for op in wanted if isinstance(op.body, Convolution))
    again = tmp_path / "again.csv"
    write_topology(read_topology(file, backward=False), again)
    assert [line.split(",")[1:4] for line in again.read_text().splitlines()] == [
        line.split(",")[1:4] for line in file.read_text().splitlines()
    ]


@pytest.mark.oracle
def test_gemms_are_those_of_the_lowering() -> None:
    from trainyard.mapping.lowering import lower
    from trainyard.workloads.formats.scalesim import gemm

    for product in ("forward", "grad_input", "grad_weight"):
        body = Convolution(
            batch=2, in_channels=6, out_channels=9, size=(7, 8), kernel=(3, 2), stride=(2, 1), padding=(1, 0), groups=3,
            product=product,  # type: ignore[arg-type]
        )  # fmt: skip
        assert gemm(body) == lower(body, "col2im").product


def test_unknown_phases_and_layers_raise(tmp_path: Path) -> None:
    step = read(tmp_path, CONVOLUTIONS)
    with pytest.raises(UnknownName, match="phase"):
        write_topology(step, tmp_path / "x.csv", phase="backwards")
    with pytest.raises(UnknownName, match="layer"):
        write_topology(step, tmp_path / "x.csv", layer="Conv9")
    with pytest.raises(BadInput, match="no product of phase 'grad_input'"):
        write_topology(step, tmp_path / "x.csv", phase="grad_input", layer="Conv1")
    write_topology(step, tmp_path / "x.csv", layer="Conv2")
    assert [op.body for op in forward(read_topology(tmp_path / "x.csv"))] == [
        op.body for op in forward(step) if op.layer == "Conv2"
    ]
