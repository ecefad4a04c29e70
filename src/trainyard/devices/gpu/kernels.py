"""The kernels that eager torch launches for one op: how many, how often they read and write its tensors, their instructions.

Counts come from torch's sources, kernel names in its profiler and micro-benchmarks of single calls; this module has no times.
"""

from __future__ import annotations

from typing import NamedTuple

from trainyard.ir import Update


class Kernels(NamedTuple):
    """`launches` kernels; `reads` and `writes` are how often inputs and outputs are moved.

    `heavy` counts passes over the elements that are bound by instructions, not bytes: transcendental functions, random numbers,
    sums without vector loads.
    """

    launches: float = 1.0
    reads: float = 1.0
    writes: float = 1.0
    heavy: float = 0.0


class UpdateKernels(NamedTuple):
    """One unfused optimizer step of torch: kernels, and elements moved for each parameter element."""

    kernels: int
    moved: int


# fmt: off
# Counted from the sequence of tensor ops in torch.optim's single- and multi-tensor functions; moved = reads + writes of each op.
UPDATES: dict[tuple[str, int], UpdateKernels] = {  # (optimizer, state tensors)
    ("sgd",      0): UpdateKernels(1,  3),         # p.add_(g)
    ("sgd",      1): UpdateKernels(3,  8),         # buf.mul_, buf.add_(g), p.add_(buf)
    ("adam",     2): UpdateKernels(7, 18),         # lerp_, mul_, addcmul_, sqrt, div, add, addcdiv_
    ("adamw",    2): UpdateKernels(8, 20),         # p.mul_ before Adam's
    ("adagrad",  1): UpdateKernels(4, 11),         # addcmul_, sqrt, add, addcdiv_
    ("rmsprop",  1): UpdateKernels(5, 13),         # mul_, addcmul_, sqrt, add, addcdiv_
}
# Heavy passes of a fused update, which square roots and divisions bound, not bytes. measured: AdamW of 0.77 B parameters (5.0 ms)
# and of 6.7 B (45.7 ms) in bf16 on an H200, 150 G elements a second
FUSED_UPDATES: dict[str, float] = {"adam": 3.7, "adamw": 3.7}
TENSORS_PER_LAUNCH = 36         # multi_tensor_apply takes 110, 64, 48, 36 tensors a launch for lists of depth 1 to 4
ELEMENTS_PER_LAUNCH = 320 * 65536  # multi_tensor_apply: 320 blocks of 65,536 elements a launch

STREAMS: dict[str, Kernels] = {                                  # element-wise ops, copies and reductions not named here: Kernels()
    "gelu":                             Kernels(heavy=1.0),
    "gelu_backward":                    Kernels(heavy=1.0),
    "pow":                              Kernels(heavy=1.0),
    "softmax":                          Kernels(heavy=1.0),
    "log_softmax":                      Kernels(heavy=1.0),
    "softmax_backward_data":            Kernels(2, 2.0, 2.0),    # output x gradient is a kernel of its own
    "nll_loss_backward":                Kernels(2, 0.0),         # zeros, then one element of each row
    "slice_backward":                   Kernels(2, 1.0),         # zeros, then a copy
    "select_backward":                  Kernels(2, 1.0),
    "constant_pad_nd":                  Kernels(2, 1.0, 2.0),
    "upsample_nearest2d_backward":      Kernels(2, 1.0),
    "group_norm":                       Kernels(3, 2.0, heavy=3.0),   # moments, scale and shift of each channel, the map itself
    "group_norm_backward":              Kernels(6, 2.0, heavy=5.5),   # sums of each channel, their products, the map, gain and bias
    "binary_cross_entropy_with_logits": Kernels(6, 3.0, 3.0),    # clamp, exp, log and so on, each a kernel
    "mse_loss":                         Kernels(3, 1.0),
    "smooth_l1_loss":                   Kernels(3, 1.0),
}
WINDOWS: dict[str, int] = {  # pooling: one thread for each element of the result; kernels
    "max_pool2d": 1, "max_pool2d_with_indices_backward": 2, "avg_pool2d": 1, "avg_pool2d_backward": 1,
    "avg_pool3d": 1, "avg_pool3d_backward": 2,
}
# Shapes of torch's and cuDNN's kernels; where the source is not public, the number that fits micro-benchmarks.
TAP = 0.5                  # of a heavy element: one tap of a pooling window
LONG_ROW = 1024            # a softmax of up to so many elements a row is done by one warp, in registers (PersistentSoftmax)
NORM_ROWS_PER_SM = 12      # rows that a multiprocessor normalises at a time, one block each
COLUMN_ROWS = 2304         # rows that the blocks of a column sum walk at a time, before they add up twice: in and across blocks
GAIN_ROWS = 384            # the same for the gradients of a layer norm's gain and bias, whose kernel does not split its columns
GAIN_SPLIT = (65536, 16)   # ... except above so many rows of at most so many columns for each multiprocessor: partial sums
GAIN_SPLIT_TRIPS = 16      # block starts in a row of the two sums over the partial sums
CHANNELS_LAST_NORM = (2.7, 2.5)  # heavy passes over a channels-last map of batch norm, forward and backward, spread over all lanes
SORTED_ABOVE = 3072        # embedding_dense_backward sorts its indices above this count
SORT = Kernels(22, 1.0, 2.0)   # fill, eight radix passes with their memsets, segments, additions
SORT_TRIPS = 32            # block starts in a row, one after the other, of those radix passes
# fmt: on


def update_kernels(body: Update, states: int) -> UpdateKernels | None:
    """The unfused kernels of an optimizer; None for an unlisted one, which counts as fused."""
    return UPDATES.get((body.optimizer.lower(), states))
