"""The gradients of linear layers with dY read once (interleaved gradient order, IGO), for training on a real GPU.

`interleave(model)` is all that most people need; `linear`, `convolution` and `gradients` are the functions beneath it. `kernels`
and `programs` hold the Triton kernel, `choice` says where it pays, `reference` does the same in plain PyTorch. Triton is an extra:
without it everything here works, and computes gradients as torch does. A new kind of layer is a reason in `interleave`, a path in
`function` and a test against torch's own gradients.

    import trainyard as ty
    model = ty.live.interleave(model)
"""

from trainyard.live.gradient.function import KERNELS, Gradients, convolution, gradients, linear
from trainyard.live.gradient.interleave import Interleaved, Layer, Report, interleave, report, restore

__all__ = [
    "KERNELS",
    "Gradients",
    "Interleaved",
    "Layer",
    "Report",
    "convolution",
    "gradients",
    "interleave",
    "linear",
    "report",
    "restore",
]
