"""The operands of a real training step's products, under the very keys that a capture of the step gives them.

The same recorder decides both, so a mask is keyed by what was multiplied: a weight that a normalisation made, an input with its
padding, a layer that a checkpoint ran twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from trainyard.errors import CaptureError
from trainyard.ir import Convolution, ElementWise, Letter, Phase, Role, TensorKey
from trainyard.workloads.capture.execution import Executor, tensors_in
from trainyard.workloads.capture.frames import Frame, Frames
from trainyard.workloads.capture.interface import Interface
from trainyard.workloads.capture.ops.handlers import Rule
from trainyard.workloads.capture.ops.registry import Call, Piece
from trainyard.workloads.capture.recorder import Position, Recorder
from trainyard.workloads.capture.session import named_modules, named_tensors, without_compilation
from trainyard.workloads.capture.tensor_table import Kind


class OperandWatch(Recorder):
    """Shows every A, W and G once, right after the product that read it.

    A layer that multiplies several operands of one letter in one call (an LSTM) has no key for any of them: `show` is followed by
    `forget`. A weight is shown once more only if another tensor holds it since the layer's last call.
    """

    def __init__(self, model: nn.Module, show: Callable[[TensorKey, Tensor], None], forget: Callable[[TensorKey], None]) -> None:
        modules = named_modules({"": model})
        super().__init__(Frames(modules), named_tensors(modules, "parameters"), Executor(real=True), loop=True)
        for name, buffer in named_tensors(modules, "buffers").items():
            if not self.tensor_table.contains(buffer):
                self.tensor_table.enter(buffer, Role.BUFFER, name, "buffer")
        self._show, self._forget = show, forget
        self._shown: dict[TensorKey, tuple[int, int, int] | None] = {}
        self._weights: dict[str, tuple[int, int, int]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(without_compilation())
            stack.enter_context(Interface(self))
            stack.enter_context(self.recording(lambda optimizer: False))  # the run's own optimizer stays as it is
            yield

    def _record_op(self, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor], result: Any) -> None:
        if not any(t.is_sparse for t in (*tensors, *tensors_in(result))):
            super()._record_op(rule, args, kwargs, tensors, result)

    def _pieces(self, rule: Rule, call: Call) -> list[Piece]:
        """An op that capture does not know only passes on whether it is a gradient."""
        try:
            return super()._pieces(rule, call)
        except CaptureError:
            return [Piece(ElementWise(rule.name, max([1, *(t.numel() for t in call.outputs)])))]

    def _letters_and_phase(
        self, piece: Piece, inputs: Sequence[Any], kinds: Sequence[Kind], position: Position
    ) -> tuple[tuple[Letter, ...], Phase, bool]:
        letters, phase, phase_is_final = super()._letters_and_phase(piece, inputs, kinds, position)
        if not position.recompute:  # A and W are what the forward product read: a checkpoint's backward reads copies of them
            for tensor, letter in zip(inputs, letters, strict=False):
                if letter and (letter == "G") == position.backward:
                    self._see(position.frame, letter, tensor, as_read=isinstance(piece.body, Convolution))
        return letters, phase, phase_is_final

    def _see(self, frame: Frame, letter: Letter, tensor: Tensor, *, as_read: bool) -> None:
        """Shows an operand once per key. A convolution's operand is shown as it is read, a matrix as the tensor it is a view of."""
        self.frames.resolve()
        key = (frame.path, frame.call, letter)
        identity = (self.tensor_table.origin(tensor).base, int(tensor.storage_offset()), tensor.numel())
        if key in self._shown:
            if self._shown[key] not in (identity, None):
                self._shown[key] = None
                self._forget(key)
            return
        self._shown[key] = identity
        if letter == "W" and self._weights.get(frame.path) == identity:
            return
        if letter == "W":
            self._weights[frame.path] = identity
        self._show(key, tensor if as_read else self._untransposed(tensor, identity[0]))

    def _untransposed(self, tensor: Tensor, base: int) -> Tensor:
        """The tensor that a transposed view looks at, in that tensor's own shape where rows stay rows."""
        shape = self.tensor_table.tensors[base].shape
        if tensor.shape == shape:
            return tensor
        strides = tensor.stride()
        plain = tensor.permute(sorted(range(tensor.dim()), key=lambda dimension: -strides[dimension]))
        return plain.reshape(shape) if plain.numel() == math.prod(shape) and shape[-1:] == plain.shape[-1:] else plain
