"""Shape rules against what torch computes on the host, and the captures that need them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trainyard as ty
from trainyard.errors import CaptureError
from trainyard.workloads.capture.ops.shape_rules import SHAPE_RULES


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("a", "b", "last_offset"),
    [((48, 16), (8, 16, 32), 48), ((32, 48), (48, 16), 48), ((8, 16, 24), (24, 48), 48), ((8, 16, 24), (8, 24, 40), None)],
    ids=["rows", "reduction", "columns", "batched"],
)
def test_a_grouped_product_has_the_shape_that_torch_gives_it_for_any_element_type(a, b, last_offset, dtype) -> None:
    offs = None if last_offset is None else torch.linspace(last_offset / 8, last_offset, 8).to(torch.int32)
    left, right = torch.randn(a, dtype=dtype), torch.randn(b, dtype=dtype)
    right = right.transpose(-1, -2).contiguous().transpose(-1, -2) if len(b) == 3 else right
    computed = torch.ops.aten._grouped_mm(left, right, offs)
    ruled = SHAPE_RULES["_grouped_mm"]((left.to("meta"), right.to("meta")), {"offs": offs})
    assert (ruled.shape, ruled.dtype) == (computed.shape, computed.dtype)


def test_a_grouped_product_of_matrices_that_do_not_fit_is_refused() -> None:
    meta = torch.empty(8, 16, device="meta")
    with pytest.raises(CaptureError, match="inner dimensions"):
        SHAPE_RULES["_grouped_mm"]((meta, torch.empty(2, 17, 4, device="meta"), torch.tensor([4, 8])), {})
    with pytest.raises(CaptureError, match="offs="):
        SHAPE_RULES["_grouped_mm"]((meta, torch.empty(2, 16, 4, device="meta")), {})


@pytest.mark.parametrize("lengths", ["tensor", "tuple"])
@pytest.mark.parametrize("joined", [False, True], ids=["padded targets", "joined targets"])
def test_ctc_has_the_shapes_that_torch_gives_it(lengths: str, joined: bool) -> None:
    probs = torch.randn(20, 3, 7).log_softmax(-1)
    frames, labels = torch.tensor([20, 20, 20]), torch.tensor([5, 4, 3])
    targets = torch.randint(1, 7, (12,)) if joined else torch.randint(1, 7, (3, 5))
    arguments = (frames, labels) if lengths == "tensor" else (tuple(frames.tolist()), tuple(labels.tolist()))
    likelihood, alpha = torch.ops.aten._ctc_loss(probs, targets, *arguments)
    ruled = SHAPE_RULES["_ctc_loss"]((probs.to("meta"), targets.to("meta"), *arguments), {})
    assert [t.shape for t in ruled] == [likelihood.shape, alpha.shape]
    back = torch.ops.aten._ctc_loss_backward(torch.ones(3), probs, targets, *arguments, likelihood, alpha, 0)
    assert SHAPE_RULES["_ctc_loss_backward"]((torch.ones(3), probs.to("meta")), {}).shape == back.shape


class Recogniser(nn.Module):
    """Frames to labels, with the connectionist loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 7)

    def forward(self, x, targets, lengths):  # type: ignore[no-untyped-def]
        scores = self.layer(x).log_softmax(-1).transpose(0, 1)
        frames = torch.full((x.shape[0],), x.shape[1], dtype=torch.long)
        return F.ctc_loss(scores, targets, frames, lengths)


def test_a_model_with_the_connectionist_loss_is_captured_by_shapes() -> None:
    inputs = (torch.randn(3, 20, 6), torch.randint(1, 7, (3, 5)), torch.tensor([5, 4, 3]))
    step = ty.capture(Recogniser(), inputs, loss=lambda loss: loss)
    assert step.macs == 2 * 3 * 20 * 6 * 7  # forward and the weight's gradient
    assert any("ctc_loss_backward" in op.name for op in step.ops)
