"""Sends each `scaled_dot_product_attention` of a captured step to the torch op of the kernel that the device would take.

The ops of the fused kernels have shapes and gradients on every device, so that both directions are recorded as they are dispatched.
What torch does around a kernel is done here as well: flash pads odd head dimensions, a mask of booleans becomes numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import CausalBias, CausalVariant
from torch.overrides import TorchFunctionMode

from trainyard.errors import BadInput
from trainyard.ir.attention import MATH_SOFTMAX, OPEN_SOFTMAX, attention_sentence
from trainyard.workloads.capture.attention.choice import PADDED_HEAD, AttentionCall, Choice, Device, choice_of

if TYPE_CHECKING:
    from trainyard.ir import Step
    from trainyard.workloads.capture.recorder import RawOp

Attention = Literal["sdpa", "math"]
"""How a call is recorded: as the kernel of torch's choice, or always as separate products."""

SDPA = F.scaled_dot_product_attention
NO_DERIVATIVE = ("is not implemented", "does not support it because it has not been implemented")
"""Torch's words where an op has no second or no forward derivative."""
MASK_ALIGNMENT = 16  # elements: the memory-efficient kernel reads rows of a mask that are padded to this


def checked_options(attention: str, device: str) -> tuple[Attention, Device]:
    """The options of a capture, or an error that names what may be given."""
    if attention not in ("sdpa", "math"):
        raise BadInput(f"attention must be 'sdpa' (torch's choice on the device) or 'math' (separate products), got {attention!r}")
    kind = device.split(":")[0] if isinstance(device, str) else device
    if kind not in ("cuda", "cpu"):
        raise BadInput(f"device must be 'cuda' or 'cpu', the device on which the step is to be trained, got {device!r}")
    return cast(Attention, attention), cast(Device, kind)


class AttentionDispatch(TorchFunctionMode):
    """Replaces calls of `scaled_dot_product_attention` while a step is captured.

    `refusals` collects why torch would refuse a call on the device.
    """

    def __init__(self, attention: Attention, device: Device) -> None:
        super().__init__()
        self.attention, self.device = attention, device
        self.refusals: dict[str, None] = {}

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name.startswith("scaled_dot_product_attention"):
            return self.call(*args, **kwargs)
        if name == "multi_head_attention_forward":
            with _replaced(self.call):
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    def call(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """`F.scaled_dot_product_attention` with the kernel of the device."""
        if isinstance(attn_mask, CausalBias):
            return self._causal_bias(query, key, value, attn_mask, dropout_p, scale, enable_gqa)
        if torch.amp.is_autocast_available(query.device.type) and torch.is_autocast_enabled(query.device.type):
            query, key, value, attn_mask = _autocast(query.device.type, query, key, value, attn_mask)
        arguments = AttentionCall(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
        if self.attention == "sdpa" and _is_plain(arguments):
            choice = self._choice(arguments)
            if choice.form != "math":
                return self._fused(choice, arguments, scale)
        with sdpa_kernel(SDPBackend.MATH) if _is_plain(arguments) else nullcontext():
            return SDPA(
                query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
            )  # fmt: skip

    def name_math(self, ops: Iterable[RawOp]) -> None:
        """Names the softmax of torch's unfused path, so that a Step says which form it has."""
        for op in ops:
            if op.name == OPEN_SOFTMAX:
                op.name = MATH_SOFTMAX

    def notes(self, step: Step) -> tuple[str, ...]:
        """What a Step says of its attention."""
        sentence = attention_sentence(step.attention)
        by_torch = self.attention == "sdpa" and not set(step.attention.values()) <= {"eager", "flex"}
        chosen = f"{sentence} (torch's choice on {self.device})" if by_torch else sentence
        return (*([chosen] if sentence else []), *self.refusals)

    def unfused_after(self, error: Exception) -> AttentionDispatch | None:
        """Separate products for a step that failed because no fused kernel has derivatives of its derivatives; None for others."""
        text = str(error.__cause__ or error)
        if self.attention == "math" or "_attention" not in text or not any(words in text for words in NO_DERIVATIVE):
            return None
        unfused = AttentionDispatch("math", self.device)
        unfused.refusals["gradients of gradients: no fused attention kernel has them, so that torch needs sdpa_kernel(MATH)"] = None
        return unfused

    def _choice(self, call: AttentionCall) -> Choice:
        choice = choice_of(call, self.device)
        if choice.refused:
            self.refusals[choice.refused] = None
        return choice

    def _fused(self, choice: Choice, call: AttentionCall, scale: float | None) -> Tensor:
        query, key, value = call.tensors
        ops = torch.ops.aten
        mask = None if call.mask is None else _as_numbers(call.mask, query)
        if choice.form == "flash" and self.device == "cpu":
            output = ops._scaled_dot_product_flash_attention_for_cpu(
                query, key, value, call.dropout, call.causal, attn_mask=mask, scale=scale
            )[0]
        elif choice.form == "flash":
            width = query.shape[-1]
            padded = [_padded(t, PADDED_HEAD) for t in call.tensors]
            factor = scale if scale is not None else width**-0.5
            output = ops._scaled_dot_product_flash_attention(*padded, call.dropout, call.causal, False, scale=factor)[0]
            output = output[..., :width] if output.shape[-1] != width else output
        else:
            if mask is not None:
                scores = (*query.shape[:-1], key.shape[-2])
                mask = _aligned(mask).expand(scores) if choice.form == "efficient" else mask.expand(scores)
            op = (
                ops._scaled_dot_product_efficient_attention
                if choice.form == "efficient"
                else ops._scaled_dot_product_cudnn_attention
            )
            output = op(query, key, value, mask, _saves(call), call.dropout, call.causal, scale=scale)[0]
        return cast(Tensor, output)

    def _causal_bias(
        self, query: Tensor, key: Tensor, value: Tensor, bias: CausalBias, dropout: float, scale: float | None, grouped: bool
    ) -> Tensor:
        """A causal mask that is an object: its last row ends at the last key (`causal_lower_right`) or at the diagonal."""
        if bias.variant is CausalVariant.UPPER_LEFT or bias.seq_len_q == bias.seq_len_kv:
            return self.call(query, key, value, None, dropout, True, scale, grouped)
        call = AttentionCall(query, key, value, None, dropout, True, grouped, lower_right=True)
        if self.attention == "sdpa" and _is_plain(call):
            choice = self._choice(call)
            if choice.form == "efficient":
                tokens_first = (t.transpose(1, 2) for t in call.tensors)
                variant, none = int(bias.variant), None
                output = torch.ops.aten._efficient_attention_forward(
                    *tokens_first, none, none, none, none, none, dropout, variant, _saves(call), scale=scale
                )[0]
                return cast(Tensor, output.transpose(1, 2))
            if choice.form != "math":
                return self._fused(choice, call, scale)
        mask = bias._materialize(query.device)
        return self.call(query, key, value, mask, dropout, False, scale, grouped)


def _saves(call: AttentionCall) -> bool:
    """Whether backward will need what a kernel saves for it."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in call.tensors)


def _is_plain(call: AttentionCall) -> bool:
    """Whether torch's rules for dense tensors apply, and the call is valid: torch itself refuses what is not."""
    query, key, value = call.tensors
    dense = not any(t.is_nested or t.is_sparse for t in call.tensors)
    return dense and query.dtype == key.dtype == value.dtype and query.device.type == key.device.type == value.device.type


def _autocast(device: str, *tensors: Tensor | None) -> Iterator[Any]:
    """The operands as autocast hands them to a kernel."""
    dtype = torch.get_autocast_dtype(device)
    for tensor in tensors:
        casts = tensor is not None and tensor.is_floating_point() and tensor.dtype is not torch.float64
        yield tensor.to(dtype) if tensor is not None and casts else tensor


def _padded(tensor: Tensor, multiple: int) -> Tensor:
    """The last dimension padded with zeros to a multiple."""
    missing = -tensor.shape[-1] % multiple
    return F.pad(tensor, (0, missing)) if missing else tensor


def _as_numbers(mask: Tensor, query: Tensor) -> Tensor:
    """A mask of booleans as numbers to add: 0 where a key takes part, else minus infinity."""
    if mask.dtype is not torch.bool:
        return mask
    return torch.where(mask, torch.zeros((), dtype=query.dtype, device=mask.device), -torch.inf)


def _aligned(mask: Tensor) -> Tensor:
    """A mask in rows of an aligned length, as a view of the columns that count."""
    columns = mask.shape[-1]
    return mask if columns == 1 else _padded(mask, MASK_ALIGNMENT)[..., :columns]


@contextmanager
def _replaced(call: Callable[..., Tensor]) -> Iterator[None]:
    """nn.MultiheadAttention calls the function by its name in torch.nn.functional, out of sight of a mode; other threads' stay."""
    before, thread = F.scaled_dot_product_attention, threading.get_ident()

    def replaced(*args: Any, **kwargs: Any) -> Tensor:
        return call(*args, **kwargs) if threading.get_ident() == thread else before(*args, **kwargs)

    F.scaled_dot_product_attention = replaced
    try:
        yield
    finally:
        F.scaled_dot_product_attention = before
