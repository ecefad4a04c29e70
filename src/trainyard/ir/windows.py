"""The windows of a convolution as tables of positions, one spatial axis at a time.

Forward, a window at an output position reads the input at stride * output + dilation * tap - padding. Backward, an input position
is read by the outputs for which that equation has an integer solution; the positions between them are zeros (dilation by stride).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainyard.ir import Convolution


def forward_table(body: Convolution, axis: int) -> npt.NDArray[np.int64]:
    """[output position, kernel position] -> input position along one axis, -1 in the padding.

    >>> body = Convolution(batch=1, in_channels=1, out_channels=1, size=(4,), kernel=(3,), padding=(1,), stride=(2,))
    >>> forward_table(body, 0).tolist()
    [[-1, 0, 1], [1, 2, 3]]
    """
    out, kernel = np.arange(body.out_size[axis]), np.arange(body.kernel[axis])
    position = out[:, None] * body.stride[axis] + kernel * body.dilation[axis] - body.padding[axis]
    return np.where((position >= 0) & (position < body.size[axis]), position, -1)


def backward_table(body: Convolution, axis: int) -> npt.NDArray[np.int64]:
    """[input position, kernel position] -> output position along one axis, -1 for an inserted zero.

    >>> body = Convolution(batch=1, in_channels=1, out_channels=1, size=(4,), kernel=(3,), padding=(1,), stride=(2,))
    >>> backward_table(body, 0).tolist()
    [[-1, 0, -1], [1, -1, 0], [-1, 1, -1], [-1, -1, 1]]
    """
    back = np.arange(body.size[axis])[:, None] + body.padding[axis] - np.arange(body.kernel[axis]) * body.dilation[axis]
    out, rest = np.divmod(back, body.stride[axis])
    return np.where((rest == 0) & (out >= 0) & (out < body.out_size[axis]), out, -1)
