"""PACT. J. Choi, Z. Wang, S. Venkataramani, P. I.-J. Chuang, V. Srinivasan, K. Gopalakrishnan: PACT: Parameterized Clipping
Activation for Quantized Neural Networks. arXiv:1805.06085, 2018.

In the place of a ReLU: y = clip(x, 0, alpha) (Eq. 1), then k bits, y_q = round(y (2^k - 1) / alpha) alpha / (2^k - 1) (Eq. 2). What
lies below half a step becomes zero, which ReLU would have kept. Rounding passes gradients straight through; x gets them where
0 < x < alpha, alpha where x >= alpha (Eq. 3). alpha starts large and is drawn down by an L2 penalty as strong as that of the
weights, so it belongs into the optimizer with weight decay: `pact_parameter_groups`.

The paper leaves the first and the last layer unquantised. The network's input is not touched here; to leave what the last layer
reads, name its activation in `keep`. Weights are not quantised: that makes no zeros worth the name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainyard.errors import BadInput, UnknownName

ALPHA = 10.0  # assumed: well above the outputs of a normalised layer; the paper starts with a large value
_LEAST_ALPHA = 1e-3  # assumed: a clip at zero would leave nothing to divide by


class _ClipAndRound(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, alpha: Tensor, levels: int) -> Tensor:
        clip = alpha.detach().clamp_min(_LEAST_ALPHA).to(values.dtype)
        ctx.save_for_backward((values > 0) & (values < clip), values >= clip)
        step = clip / levels
        return torch.minimum(values.clamp_min(0), clip).div(step).round().mul(step)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor, None]:
        inside, above = ctx.saved_tensors
        gradient: Tensor = gradients[0]
        wide = torch.promote_types(gradient.dtype, torch.float32)
        return gradient * inside, (gradient * above).sum(dtype=wide), None


class Pact(nn.Module):
    """A clipped, quantised ReLU with a learned clip.

    >>> [round(v, 2) for v in Pact(bits=2, alpha=3.0)(torch.tensor([-1.0, 0.4, 1.2, 9.0])).tolist()]
    [0.0, 0.0, 1.0, 3.0]
    """

    def __init__(self, bits: int = 4, alpha: float = ALPHA) -> None:
        super().__init__()
        if not 1 <= bits <= 16:
            raise BadInput(f"bits must lie between 1 and 16, got {bits!r}")
        if not alpha > 0:
            raise BadInput(f"alpha, the clip, must be above 0, got {alpha!r}")
        self.bits = bits
        self.alpha = nn.Parameter(torch.tensor(float(alpha)))

    def forward(self, values: Tensor) -> Tensor:
        output: Tensor = _ClipAndRound.apply(values, self.alpha, 2**self.bits - 1)  # type: ignore[no-untyped-call]
        return output

    def extra_repr(self) -> str:
        return f"bits={self.bits}"


def pact(model: nn.Module, bits: int = 4, *, alpha: float = ALPHA, keep: Sequence[str] = ()) -> int:
    """Replaces every ReLU module of `model` by a Pact, in place, and returns their number; those named in `keep` stay.

    A ReLU that is called at several places becomes one Pact with one clip. To be done before the optimizer is built.
    """
    relus = {path: module for path, module in model.named_modules() if isinstance(module, nn.ReLU)}
    for path in keep:
        if path not in relus:
            raise UnknownName("ReLU", path, relus, type(model).__name__)
    if "" in relus or not relus:
        raise BadInput(
            f"{type(model).__name__} holds no nn.ReLU module: calls of torch.relu inside forward() cannot be replaced; "
            "make them modules"
        )
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    new = {id(module): Pact(bits, alpha).to(device) for path, module in relus.items() if path not in keep}
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):  # not named_children: it skips a second name of the same module
            if id(child) in new:
                setattr(parent, name, new[id(child)])
    return len(new)


def pact_parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """For an optimizer: the clips, with their own L2 penalty, and all other parameters."""
    clips = list(_clips(model))
    if not clips:
        raise BadInput(f"{type(model).__name__} has no Pact activation: call pact(model) first")
    clip_ids = {id(clip) for clip in clips}
    others = [parameter for parameter in model.parameters() if id(parameter) not in clip_ids]
    return [{"params": others}, {"params": clips, "weight_decay": weight_decay}]


def _clips(model: nn.Module) -> Iterator[nn.Parameter]:
    return (module.alpha for module in model.modules() if isinstance(module, Pact))
