"""Torch's choice of the kernel of one `scaled_dot_product_attention`, as rules on shapes.

On CUDA the first kernel in torch's order that takes the call: flash (fp16 or bf16, no mask, head dimension up to 256), memory
efficient (fp16, bf16, fp32, any mask, as many heads of K as of Q), math for everything else; cuDNN comes last in the order. A GPU
of compute capability 8.0 or later is assumed. On the CPU flash or math. `torch.nn.attention.sdpa_kernel` and the flags
`torch.backends.cuda.enable_*_sdp` are honoured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

Device = Literal["cuda", "cpu"]
Form = Literal["flash", "efficient", "cudnn", "math"]

LOW_PRECISION = (torch.float16, torch.bfloat16)
WIDEST_FLASH_HEAD = 256
WIDEST_CUDNN_HEAD = 128
LOAD_BYTES = 16  # the memory-efficient kernel loads rows of a head in pieces of 16 bytes
PADDED_HEAD = 8  # flash pads the head dimension to a multiple of 8
ORDER = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION)


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """The arguments of one call. `lower_right`: the causal mask is aligned with the last query and the last key."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None = None
    dropout: float = 0.0
    causal: bool = False
    grouped: bool = False
    lower_right: bool = False

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel of a call; `refused` says why torch would stop on the device, where it would."""

    form: Form
    refused: str = ""


def choice_of(call: AttentionCall, device: Device) -> Choice:
    """The kernel that torch takes for a call on a device."""
    rules = RULES[device]
    allowed = [form for form in _order(device) if _enabled(form)]
    for form in allowed:
        if form == "math" or (form in rules and not any(rules[form](call))):
            return Choice(form)
    reasons = "; ".join(f"{form}: {next(rules[form](call))}" for form in allowed if form in rules)
    why = f"no kernel that sdpa_kernel allows takes this attention on {device} ({reasons or 'none is allowed'})"
    # The element type is often that of the script without its mixed precision: where it alone is in the way, the kernel is taken.
    for form in allowed:
        if form in rules and all(reason.startswith("takes no torch.") for reason in rules[form](call)):
            return Choice(form, why)
    return Choice("math", why)


def _order(device: Device) -> Iterator[Form]:
    numbers = torch._C._get_sdp_priority_order() if device == "cuda" else [int(backend.value) for backend in ORDER]
    names: dict[int, Form] = {
        SDPBackend.FLASH_ATTENTION.value: "flash",
        SDPBackend.EFFICIENT_ATTENTION.value: "efficient",
        SDPBackend.CUDNN_ATTENTION.value: "cudnn",
        SDPBackend.MATH.value: "math",
    }
    return (names[number] for number in numbers if number in names)


def _enabled(form: Form) -> bool:
    flags: dict[Form, Callable[[], bool]] = {
        "flash": torch.backends.cuda.flash_sdp_enabled,
        "efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
        "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
        "math": torch.backends.cuda.math_sdp_enabled,
    }
    return flags[form]()


def _dense(call: AttentionCall, *, grouped_heads: bool) -> Iterator[str]:
    """Why no fused kernel takes these sizes, whatever their type."""
    query, key, value = call.tensors
    if any(t.dim() != 4 for t in call.tensors):
        yield "takes four dimensions (batch, heads, tokens, head dimension)"
        return
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        yield "takes one batch size"
    heads, key_heads, value_heads = (t.shape[1] for t in call.tensors)
    if not heads == key_heads == value_heads:
        divides = key_heads == value_heads and key_heads > 0 and heads % key_heads == 0
        if not (call.grouped and grouped_heads and divides):
            yield "takes as many heads of key and value as of query"
    if not all(t.shape[2] for t in call.tensors):
        yield "takes no empty sequence"


def _last_strides(call: AttentionCall, *, single: bool, mask: bool) -> Iterator[str]:
    """`single`: a last dimension of one element may have any stride."""
    if any(t.stride(-1) != 1 and not (single and t.shape[-1] == 1) for t in call.tensors):
        yield "takes elements of a head that are next to each other"
    if mask and call.mask is not None and call.mask.dim() and call.mask.stride(-1) != 1:
        yield "takes a mask whose last dimension is dense"


def _types(call: AttentionCall, *types: torch.dtype) -> Iterator[str]:
    if call.query.dtype not in types or not call.query.dtype == call.key.dtype == call.value.dtype:
        yield f"takes no {call.query.dtype}"


def _cuda_flash(call: AttentionCall) -> Iterator[str]:
    yield from _dense(call, grouped_heads=True)
    if call.mask is not None:
        yield "takes no mask"
    widths = {t.shape[-1] for t in call.tensors}
    if len(widths) != 1 or not 0 < max(widths) <= WIDEST_FLASH_HEAD:
        yield f"takes one head dimension of at most {WIDEST_FLASH_HEAD}"
    if call.causal and not call.lower_right and call.query.shape[-2] != call.key.shape[-2]:
        yield "takes is_causal with as many keys as queries"
    yield from _last_strides(call, single=True, mask=False)
    yield from _types(call, *LOW_PRECISION)


def _cuda_efficient(call: AttentionCall) -> Iterator[str]:
    yield from _dense(call, grouped_heads=False)
    aligned = LOAD_BYTES // call.query.element_size()
    width, depth = call.query.shape[-1], call.value.shape[-1]
    if width != call.key.shape[-1] or not width or not depth or width % aligned or depth % aligned:
        yield f"takes head dimensions that are multiples of {aligned}"
    yield from _last_strides(call, single=False, mask=True)
    yield from _types(call, torch.float32, *LOW_PRECISION)


def _cuda_cudnn(call: AttentionCall) -> Iterator[str]:
    yield from _dense(call, grouped_heads=True)
    if any(t.shape[-1] % PADDED_HEAD or not 0 < t.shape[-1] <= WIDEST_CUDNN_HEAD for t in call.tensors):
        yield f"takes head dimensions that are multiples of {PADDED_HEAD}, at most {WIDEST_CUDNN_HEAD}"
    if call.mask is not None and call.mask.requires_grad:
        yield "takes no mask that needs a gradient"
    yield from _last_strides(call, single=False, mask=True)
    yield from _types(call, *LOW_PRECISION)


def _cpu_flash(call: AttentionCall) -> Iterator[str]:
    yield from _dense(call, grouped_heads=True)
    if call.dropout:
        yield "takes no dropout"
    if len({t.shape[-1] for t in call.tensors}) != 1:
        yield "takes one head dimension"
    if call.mask is not None and (call.mask.requires_grad or not _broadcasts(call)):
        yield "takes a mask without gradient that broadcasts to the scores"
    yield from _last_strides(call, single=False, mask=False)
    yield from _types(call, torch.float64, torch.float32, *LOW_PRECISION)


def _broadcasts(call: AttentionCall) -> bool:
    assert call.mask is not None
    scores = (*call.query.shape[:-1], call.key.shape[-2])
    if call.mask.dim() not in (2, 4):
        return False
    return all(size in (1, full) for size, full in zip(reversed(call.mask.shape), reversed(scores), strict=False))


Rule = Callable[[AttentionCall], Iterator[str]]
RULES: dict[Device, dict[Form, Rule]] = {
    "cuda": {"flash": _cuda_flash, "efficient": _cuda_efficient, "cudnn": _cuda_cudnn},
    "cpu": {"flash": _cpu_flash},
}
"""The reasons, none or several, why a kernel of a device does not take a call."""
