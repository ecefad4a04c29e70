"""The gradients of linear layers with dY read once (interleaved gradient order, IGO), for training on a real GPU.

In reading order:

- interleave: `interleave(model)`, all that most users need, `report` and `restore`
- expectation: what a whole step can gain at most, before anything is changed
- function: `linear`, `convolution` and `gradients`, the functions beneath it
- operator: dX, dW and db as one operator that torch.compile and double backward understand
- choice: one pass over dY or the library's pair of products, by measurement; timing: how calls are timed
- reference: the same pass in plain PyTorch
- kernels, configs, programs: the Triton kernel's launch, its tile configurations, its code

Triton is an extra: without it everything here works, and computes gradients as torch does. A new kind of layer is a reason in
`interleave`, a path in `function` and a test against torch's own gradients.

    import trainyard as ty
    model = ty.live.interleave(model)
"""

from trainyard.live.gradient.expectation import Expectation, LayerGain, expected
from trainyard.live.gradient.function import KERNELS, Gradients, convolution, gradients, linear
from trainyard.live.gradient.interleave import Interleaved, Layer, Report, interleave, report, restore

__all__ = [
    "KERNELS",
    "Expectation",
    "Gradients",
    "Interleaved",
    "Layer",
    "LayerGain",
    "Report",
    "convolution",
    "expected",
    "gradients",
    "interleave",
    "linear",
    "report",
    "restore",
]
