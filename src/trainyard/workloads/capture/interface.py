"""Calls of torch's Python functions that must behave differently while a step runs on shapes: devices, autocast, `.item()`.

Autocast does not act on the meta device, so the casts that torch would insert on a CPU or a GPU are inserted here, above autograd,
from the same two lists: products go to the lower precision, losses and sums back to fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode

from trainyard.errors import CaptureError
from trainyard.workloads.capture.execution import META

if TYPE_CHECKING:
    from trainyard.workloads.capture.recorder import Recorder

# fmt: off
LOWER_PRECISION: frozenset[str] = frozenset("""
    linear bilinear matmul __matmul__ __rmatmul__ mm bmm mv addmm addbmm baddbmm addmv einsum chain_matmul multi_dot
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc prelu
    scaled_dot_product_attention multi_head_attention_forward
    lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
""".split())

FULL_PRECISION: dict[str, frozenset[str]] = {
    "cpu": frozenset("""
        mse_loss l1_loss smooth_l1_loss huber_loss kl_div nll_loss cross_entropy binary_cross_entropy cosine_embedding_loss ctc_loss
        triplet_margin_loss margin_ranking_loss hinge_embedding_loss poisson_nll_loss soft_margin_loss multi_margin_loss
        grid_sample prod cdist pdist renorm avg_pool3d
    """.split()),
    "cuda": frozenset("""
        mse_loss l1_loss smooth_l1_loss huber_loss kl_div nll_loss cross_entropy binary_cross_entropy_with_logits
        cosine_embedding_loss triplet_margin_loss margin_ranking_loss hinge_embedding_loss poisson_nll_loss soft_margin_loss
        multi_margin_loss layer_norm group_norm norm softmax log_softmax sum prod cumsum cumprod logsumexp cosine_similarity
        cdist pdist renorm dist exp expm1 log log1p log2 log10 pow __pow__ reciprocal rsqrt softplus tan cosh sinh acos asin erfinv
    """.split()),
}
# fmt: on


class Unread(float):
    """What `.item()` of a tensor without values returns: it may be printed and added up, but a comparison with it is an error."""

    def _refuse(self, *_: Any) -> NoReturn:
        raise CaptureError(
            "the training step decides by a value it read with .item(), which shapes alone cannot answer: "
            "capture(..., real=True) runs the step on the example inputs instead"
        )

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __bool__ = __int__ = _refuse
    __hash__ = float.__hash__

    def __add__(self, other: object) -> Unread:
        return self

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __add__


class Interface(TorchFunctionMode):
    """Intercepts the user's calls of torch functions while a step is captured."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._real = recorder.executor.real
        self._cast_weights: dict[int, tuple[Tensor, Tensor]] = {}
        self._special: dict[str, Callable[..., Any]] = {
            "to": self._to, "cuda": self._cuda, "cpu": self._cpu, "pin_memory": self._pin_memory, "item": self._item,
        }  # fmt: skip

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "backward":
            seed = kwargs.get("gradient", args[1] if len(args) > 1 else None)
            if isinstance(seed, Tensor):
                self._recorder.mark_gradient(seed)
        if self._real:
            return func(*args, **kwargs)
        if name == "__get__":
            return func(*args, **kwargs)
        special = self._special.get(name)
        if special is not None:
            return special(func, args, kwargs)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": _on_meta_device(kwargs["device"])}
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            args, kwargs = self._autocast(name, args, kwargs)
        elif self._cast_weights:
            self._cast_weights.clear()
        return func(*args, **kwargs)

    def _to(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        moved = args[0]
        if not (self._recorder.loop or moved.is_meta or moved.is_floating_point()):
            # A mask that a model moves to its weights' device keeps its values: the model may read them later.
            args = tuple(a.dtype if isinstance(a, Tensor) else a for a in args[1:] if not isinstance(a, str | torch.device))
            kwargs = {key: value for key, value in kwargs.items() if key != "device"}
            return func(moved, *args, **kwargs) if "dtype" in kwargs or args else moved
        kwargs = {key: _on_meta_device(value) if key == "device" else value for key, value in kwargs.items()}
        return func(args[0], *[_on_meta_device(a) if isinstance(a, str | torch.device) else a for a in args[1:]], **kwargs)

    def _cuda(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0].to(META)

    def _cpu(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0] if args[0].is_meta else func(*args, **kwargs)

    def _pin_memory(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0]

    def _item(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Outside the model and the optimizer, the value of a loss is assumed to be logged only."""
        recorder = self._recorder
        logged = not (recorder.frames.inside or (recorder.updates and (recorder.updates.active or recorder.updates.priming)))
        if logged and not recorder.executor.has_values(args[0]):
            return Unread("nan")
        return func(*args, **kwargs)

    def _autocast(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        device = "cpu" if torch.is_autocast_enabled("cpu") else "cuda"
        if name in LOWER_PRECISION:
            dtype = torch.get_autocast_dtype(device)
        elif name in FULL_PRECISION[device]:
            dtype = torch.float32
        else:
            return args, kwargs
        return tuple(self._cast(a, dtype) for a in args), {key: self._cast(value, dtype) for key, value in kwargs.items()}

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, list | tuple):
            return type(value)([self._cast(v, dtype) for v in value])
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dtype in (dtype, torch.float64):
            return value
        if not (value.is_leaf and value.requires_grad):
            return value.to(dtype)
        if id(value) not in self._cast_weights:  # autocast, too, casts a weight once for each region
            self._cast_weights[id(value)] = (value, value.to(dtype))
        return self._cast_weights[id(value)][1]


@contextmanager
def causal_masks_unread() -> Iterator[None]:
    """Stops nn.Transformer from comparing a mask's values with the causal mask. The matrix products are the same either way."""
    detect = transformer._detect_is_causal_mask

    def hinted(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        return is_causal is True

    transformer._detect_is_causal_mask = hinted
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = detect


def _on_meta_device(device: Any) -> Any:
    """The meta device in place of any accelerator; the CPU, and strings that name a dtype, are returned as they are."""
    if isinstance(device, str):
        is_accelerator = device.split(":")[0] in ("cuda", "xpu", "mps", "hpu", "mtia", "xla", "npu")
        return META if is_accelerator else device
    if isinstance(device, int) and not isinstance(device, bool):
        return META
    return META if isinstance(device, torch.device) and device.type not in ("cpu", "meta") else device
