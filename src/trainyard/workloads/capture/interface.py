"""Calls of torch's Python functions that must behave differently while a step runs on shapes: devices, `.item()`."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from trainyard.workloads.capture.execution import tensors_in
from trainyard.workloads.capture.values import HOST, META, is_small, undispatched

if TYPE_CHECKING:
    from trainyard.workloads.capture.questions import Questions
    from trainyard.workloads.capture.recorder import Recorder

# fmt: off
ACCELERATED = torch.accelerator.is_available()

TENSOR_TYPES: dict[str, torch.dtype] = {
    "FloatTensor": torch.float32, "DoubleTensor": torch.float64, "HalfTensor": torch.float16, "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64, "IntTensor": torch.int32, "ShortTensor": torch.int16, "CharTensor": torch.int8,
    "ByteTensor": torch.uint8, "BoolTensor": torch.bool,
}
# fmt: on


class Unread(float):
    """What `.item()` of a float without values returns: it prints as nan and may be added up; a comparison with it is a question.

    To C it is a finite number, so that `math.isfinite` is content.
    """

    questions: Questions

    def __format__(self, spec: str) -> str:
        return format(math.nan, spec)

    def __repr__(self) -> str:
        return "nan"

    __str__ = __repr__

    def _compare(self, *_: Any) -> bool:
        return self.questions.comparison()

    def _refuse(self, *_: Any) -> NoReturn:
        raise self.questions.needs("a value that it read with .item() and makes a whole number of it")

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __bool__ = _compare
    __int__ = __index__ = __round__ = __floor__ = __ceil__ = __trunc__ = _refuse
    __hash__ = float.__hash__

    def __add__(self, other: object) -> Unread:
        return self

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __add__
    __neg__ = __abs__ = __pos__ = __pow__ = __rpow__ = __add__  # type: ignore[assignment]


def _unread(questions: Questions) -> Unread:
    number = Unread(1.0)
    number.questions = questions
    return number


class Interface(TorchFunctionMode):
    """Intercepts the user's calls of torch functions while a step is captured."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._real = recorder.executor.real
        self._special: dict[str, Callable[..., Any]] = {
            "to": self._to, "cuda": self._cuda, "cpu": self._cpu, "pin_memory": self._pin_memory, "item": self._item,
            "__float__": self._float, "numpy": self._numpy, "__array__": self._array, "tolist": self._tolist,
            "tensor": self._constant, "as_tensor": self._constant, "asarray": self._constant, "new_tensor": self._new_constant,
            "_pack_padded_sequence": self._pack_padded_sequence, "type": self._type,
            "__getitem__": self._indexed, "__setitem__": self._indexed,
        }  # fmt: skip

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "backward":
            seed = kwargs.get("gradient", args[1] if len(args) > 1 else None)
            if isinstance(seed, Tensor):
                self._recorder.mark_gradient(seed)
        if self._real:
            return func(*args, **kwargs) if ACCELERATED else _on_host(func, name, args, kwargs)
        if name == "__get__":
            return func(*args, **kwargs)
        special = self._special.get(name)
        if special is not None:
            return special(func, args, kwargs)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": _on_meta_device(kwargs["device"])}
        return func(*args, **kwargs)

    def _to(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not isinstance(args[0], Tensor):
            return func(*args, **kwargs)
        kwargs = {key: _on_meta_device(value) if key == "device" else value for key, value in kwargs.items()}
        return func(args[0], *[_on_meta_device(a) if isinstance(a, str | torch.device | int) else a for a in args[1:]], **kwargs)

    def _cuda(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0].to(META)

    def _cpu(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0].to("cpu")

    def _type(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`x.type(torch.cuda.FloatTensor)` names a device as well: the dtype alone counts."""
        if len(args) < 2 or isinstance(args[1], torch.dtype):
            return func(*args, **kwargs)
        kind = args[1] if isinstance(args[1], str) else f"{args[1].__module__}.{args[1].__name__}"
        dtype = TENSOR_TYPES.get(kind.rpartition(".")[2])
        return func(*args, **kwargs) if dtype is None else func(args[0], dtype)

    def _pin_memory(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0]

    def _item(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The value of a float is assumed to be logged only, until the program compares it."""
        recorder = self._recorder
        optimizing = recorder.updates is not None and (recorder.updates.active or recorder.updates.priming)
        if optimizing or recorder.executor.has_values(args[0]) or args[0].numel() != 1 or not args[0].is_floating_point():
            return func(*args, **kwargs)
        recorder.host_reads(args[0])
        return _unread(recorder.questions)

    def _float(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Outside the model a float is logged."""
        recorder = self._recorder
        if recorder.frames.inside or recorder.executor.has_values(args[0]) or args[0].numel() != 1:
            return func(*args, **kwargs)
        recorder.host_reads(args[0])
        recorder.questions.notes["the training step makes a number of a tensor without values: 1.0 stands for it"] = None
        return 1.0

    def _numpy(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._recorder.host_reads(args[0])
        with undispatched():
            return self._recorder.questions.array(args[0].detach()).numpy()

    def _array(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        array = self._numpy(func, args, kwargs)
        dtype = kwargs.get("dtype", args[1] if len(args) > 1 else None)
        return array if dtype is None else array.astype(dtype, copy=False)

    def _tolist(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0].detach()
        self._recorder.host_reads(tensor)
        if self._recorder.executor.has_values(tensor) or not tensor.is_floating_point():
            with undispatched():
                return self._recorder.questions.array(tensor).tolist()
        return _nested(tuple(tensor.shape), lambda: _unread(self._recorder.questions))

    def _constant(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`torch.tensor(numbers, device=...)`: the numbers are kept, wherever the tensor is."""
        device = _on_meta_device(kwargs.get("device"))
        among = tensors_in(args[0]) if args and isinstance(args[0], list | tuple) else []
        if any(t.is_meta for t in among):
            dtype = kwargs.get("dtype") or reduce(torch.promote_types, (t.dtype for t in among))
            args, kwargs, device = (self._numbers(args[0]), *args[1:]), {**kwargs, "dtype": dtype}, device or META
        if isinstance(args[0] if args else kwargs.get("data"), Tensor) or device is None or torch.device(device).type != "meta":
            return func(*args, **{**kwargs, **({"device": device} if "device" in kwargs else {})})
        made = func(*args, **{**kwargs, "device": META})
        with undispatched():
            value = func(*args, **{**kwargs, "device": HOST}).detach()
        if is_small(value) and all(map(self._recorder.executor.has_values, among)):
            self._recorder.executor.evaluator.values.put(made, value)
        return made

    def _numbers(self, data: Any) -> Any:
        """Nested lists with the numbers of the tensors among them; 0 where they are not known."""
        if isinstance(data, Tensor):
            value = self._recorder.executor.value(data.detach())
            with undispatched():
                return (torch.zeros(data.shape, dtype=data.dtype) if value is None else value).tolist()
        return [self._numbers(item) for item in data] if isinstance(data, list | tuple) else data

    def _new_constant(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`x.new_tensor(numbers)` is `torch.tensor` with the device and dtype of `x`."""
        like, numbers = args[0], args[1] if len(args) > 1 else kwargs["data"]
        if isinstance(numbers, Tensor) or not like.is_meta:
            return func(*args, **kwargs)
        device = _on_meta_device(kwargs.get("device") or like.device)
        made = self._constant(torch.tensor, (numbers,), {"dtype": kwargs.get("dtype") or like.dtype, "device": device})
        return made.requires_grad_(bool(kwargs.get("requires_grad")))

    def _indexed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Lists of numbers among the indices are constants: `x[:, [-1, 0]]`."""
        tensor, index = args[:2]
        parts = index if isinstance(index, tuple) else (index,)
        if isinstance(tensor, Tensor) and tensor.is_meta and any(isinstance(part, list | range) for part in parts):
            made = tuple(self._positions(part) if isinstance(part, list | range) else part for part in parts)
            args = (tensor, made if isinstance(index, tuple) else made[0], *args[2:])
        return func(*args, **kwargs)

    def _positions(self, numbers: Any) -> Any:
        """A list of whole numbers or truth values as a tensor with values; lists of tensors stay as they are."""
        flat = list(numbers)
        if not flat or any(isinstance(number, Tensor | slice) or number is None or number is ... for number in flat):
            return numbers
        return self._constant(torch.tensor, (flat,), {"device": META})

    def _pack_padded_sequence(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The lengths steer the recurrence and are asked for on the host."""
        lengths = args[1]
        if isinstance(lengths, Tensor) and lengths.is_meta:
            with undispatched():
                args = (args[0], self._recorder.questions.array(lengths).clone(), *args[2:])
        return func(*args, **kwargs)


@contextmanager
def modes_inside_backward(*modes: TorchFunctionMode) -> Iterator[None]:
    """Lets modes see what backward calls, where a checkpoint runs layers again: a mode is off inside the call that it handles."""
    run, thread = torch.autograd._engine_run_backward, threading.get_ident()  # type: ignore[attr-defined]  # missing from the stubs

    def run_with_modes(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            if threading.get_ident() == thread and not torch._C._len_torch_function_stack():
                for mode in modes:
                    stack.enter_context(mode)
            return run(*args, **kwargs)

    torch.autograd._engine_run_backward = run_with_modes  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.autograd._engine_run_backward = run  # type: ignore[attr-defined]


@contextmanager
def causal_masks_unread(value_of: Callable[[Tensor], Tensor | None]) -> Iterator[None]:
    """nn.Transformer compares a mask with the causal mask: where its values are not known, it is taken for another one."""
    detect = transformer._detect_is_causal_mask

    def hinted(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        value = None if mask is None or is_causal is not None else value_of(mask) if mask.is_meta else mask
        if value is None:
            return is_causal is True
        with _disable_current_modes():
            return bool(detect(value, None, size))

    transformer._detect_is_causal_mask = hinted
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = detect


def _nested(shape: tuple[int, ...], leaf: Callable[[], Any]) -> Any:
    return [_nested(shape[1:], leaf) for _ in range(shape[0])] if shape else leaf()


def _on_host(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call with values on a computer without the accelerator that it names: it runs on the host."""
    if name in ("cuda", "pin_memory") and args and isinstance(args[0], Tensor):
        return args[0]
    if "device" in kwargs and _on_meta_device(kwargs["device"]) is META:
        kwargs = {**kwargs, "device": HOST}
    if name == "to" and args and isinstance(args[0], Tensor):
        rest = (HOST if isinstance(a, str | torch.device | int) and _on_meta_device(a) is META else a for a in args[1:])
        args = (args[0], *rest)
    return func(*args, **kwargs)


def _on_meta_device(device: Any) -> Any:
    """The meta device in place of any accelerator; the CPU, and strings that name a dtype, are returned as they are."""
    if isinstance(device, str):
        is_accelerator = device.split(":")[0] in ("cuda", "xpu", "mps", "hpu", "mtia", "xla", "npu")
        return META if is_accelerator else device
    if isinstance(device, int) and not isinstance(device, bool):
        return META
    return META if isinstance(device, torch.device) and device.type not in ("cpu", "meta") else device
