"""How the tensors of an op lie in memory is captured: kernels that read element by element are slower."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import trainyard as ty
from trainyard.ir import Layout, Step
from trainyard.ir.serial import from_json, to_json

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402

SAME, MIXED, TRANSPOSED = Layout


def forward_layouts(step: Step, name: str) -> list[Layout]:
    return [op.layout for op in step.ops if op.name == name and op.phase == "forward"]


class Rotary(nn.Module):
    """Heads are turned by their position, as in Llama: half of each is negated and swapped with the other half."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        query = self.query(x).view(2, 6, 4, 8).transpose(1, 2)
        angles = torch.ones(1, 1, 6, 8, device=x.device)
        turned = torch.cat((-query[..., 4:], query[..., :4]), dim=-1)
        return (query * angles + turned * angles).sum()


def test_rotary_embeddings_add_heads_that_lie_differently() -> None:
    step = ty.capture(Rotary(), torch.randn(2, 6, 32))
    assert forward_layouts(step, "mul") == [SAME, SAME]  # broadcast angles are another matter
    assert forward_layouts(step, "neg") == [MIXED]
    assert forward_layouts(step, "cat") == [MIXED]
    assert forward_layouts(step, "add") == [MIXED]


class Encoder(nn.Module):
    """The result of a convolution over time is transposed and stays so in the residual stream, as in Whisper."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(3, 8, 3, padding=1)
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, sound: Tensor) -> Tensor:
        stream = self.convolution(sound).permute(0, 2, 1)
        return (stream + self.linear(self.norm(stream))).sum()


def test_a_transposed_residual_stream_is_copied_by_norms_and_added_element_by_element() -> None:
    step = ty.capture(Encoder(), torch.randn(2, 3, 16))
    assert forward_layouts(step, "native_layer_norm") == [TRANSPOSED]
    assert forward_layouts(step, "add") == [TRANSPOSED]
    assert [op.layout for op in step.ops if op.name == "native_layer_norm_backward"] == [TRANSPOSED]


def test_plain_layers_lie_alike() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 1), nn.Flatten(0))
    step = ty.capture(model, torch.randn(16, 8), loss=lambda result: result.square().mean())
    assert {op.layout for op in step.ops} == {SAME}


def test_layouts_are_in_a_steps_file_and_do_not_change_with_the_batch() -> None:
    step = ty.capture(Encoder(), torch.randn(2, 3, 16))
    assert from_json(to_json(step)) == step
    assert [op.layout for op in step.rebatch(7).ops] == [op.layout for op in step.ops]
    alike = replace(step, ops=tuple(replace(op, layout=SAME) for op in step.ops))
    assert from_json(to_json(alike)) == alike


@pytest.mark.parametrize("flags", [-4, 12])
def test_flags_that_no_op_has_are_refused(flags: int) -> None:
    document = json.loads(to_json(ty.capture(Encoder(), torch.randn(2, 3, 16))))
    document["ops"][0][5] = flags
    with pytest.raises(ty.TrainyardError, match="is none of an op's flags"):
        from_json(json.dumps(document))


def test_a_gpu_takes_longer_where_tensors_lie_differently() -> None:
    step = ty.capture(Encoder(), torch.randn(512, 3, 512))
    alike = replace(step, ops=tuple(replace(op, layout=SAME) for op in step.ops))
    assert ty.run(step, on="h200(graphs=true)").time_s > ty.run(alike, on="h200(graphs=true)").time_s
    assert ty.run(step, on="npu").time_s == ty.run(alike, on="npu").time_s
