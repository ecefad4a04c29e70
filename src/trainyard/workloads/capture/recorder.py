"""The dispatch mode that sees every torch op of a training step and records it as ops over numbered tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.errors import BadInput, CaptureError
from trainyard.ir import Body, Convolution, ElementWise, Layout, Letter, MatMul, Phase, Role, Routing, Update
from trainyard.workloads.capture.execution import Executor, dense_parts, tensors_in
from trainyard.workloads.capture.frames import Frame, Frames
from trainyard.workloads.capture.layouts import layout_of
from trainyard.workloads.capture.letters import ProductLetters
from trainyard.workloads.capture.locations import current_location
from trainyard.workloads.capture.ops.handlers import Rule, rule_of
from trainyard.workloads.capture.ops.linalg import MATRIX_WORK
from trainyard.workloads.capture.ops.products import PRODUCTS
from trainyard.workloads.capture.ops.registry import Call, HandlerResult, OnChip, Piece
from trainyard.workloads.capture.questions import Questions
from trainyard.workloads.capture.tensor_table import NO_OWNER, Kind, TensorTable
from trainyard.workloads.capture.updates import Updates

ACCUMULATION = 2**63  # AccumulateGrad nodes carry the largest sequence number, whatever its width


@dataclass(slots=True)
class RawOp:
    """An Op in the making. `phase_is_final` is False where `settle_phases` still decides it."""

    body: Body
    name: str
    frame: Frame
    phase: Phase
    phase_is_final: bool
    recompute: bool
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    letters: tuple[Letter, ...]
    fused: int | None
    routing: Routing | None = None
    host_waits: bool = False
    layout: Layout = Layout.SAME


@dataclass(slots=True)
class Position:
    """The layer and the pass (forward, recomputation, backward) in which a dispatched op runs.

    Grad mode inside backward means that functions are recomputed, or that the backward is itself differentiated: then both
    `backward` and `recompute` are set, and whether an operand is a gradient decides.
    """

    frame: Frame
    backward: bool = False
    recompute: bool = False
    sequence: int = -1
    accumulates: bool = False


class Recorder(TorchDispatchMode):
    """Records one training step of a model whose parameters are `parameters`, by path.

    In a `loop`, tensors of the host are the batch, and moving them to the device is part of the step.
    """

    def __init__(
        self, frames: Frames, parameters: Mapping[str, Tensor], executor: Executor, *, loop: bool,
        stated: Mapping[str, Any] | None = None, sizes: str = "",
    ) -> None:  # fmt: skip
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in torch
        self.frames, self.executor = frames, executor
        self.questions = Questions(executor, stated or {}, lambda: self._position().frame.path, sizes)
        executor.evaluator.where = self._where
        executor.selection = self._selected
        executor.on_trial = self._note_trial
        self.tensor_table = TensorTable(Role.INPUT if loop else Role.BUFFER)
        self.loop = loop
        self.ops: list[RawOp] = []
        self.paused = False
        self.error: CaptureError | None = None
        self.failed_in = ""
        self.parameters = list(parameters.values())
        self.parameter_names = list(parameters)
        self.parameter_index = {id(p): index for index, p in enumerate(self.parameters)}
        self.updates: Updates | None = None
        self._owners = [Frame(name.rpartition(".")[0]) for name in parameters]
        self._common = Frame("update")
        self._rules: dict[Any, Rule] = {}
        self._bodies: dict[Body, Body] = {}
        self._letters = ProductLetters(frames, self.tensor_table)
        self._fused = 0
        self._graph = -1
        self._last_frame = frames.root
        self._last_outside: tuple[str, Tensor] | None = None
        self._backward_ran = False
        self._host_reads = False
        for index, (name, parameter) in enumerate(parameters.items()):
            self.tensor_table.enter(getattr(parameter, "_local_tensor", parameter), Role.PARAMETER, name, "weight", index)

    @contextmanager
    def recording(self, prepare: Any) -> Iterator[None]:
        self.updates = Updates(self, prepare)
        with ExitStack() as stack:
            stack.enter_context(self.frames.watching())
            stack.enter_context(self.updates.watching())
            stack.enter_context(self)
            yield
        if self._host_reads and self.ops:
            self.ops[0].host_waits = True  # of the next step

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Ops of this block run but are not recorded."""
        self.paused, before = True, self.paused
        try:
            yield
        finally:
            self.paused = before

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if types:
            foreign = _foreign(types)
            if foreign == "fake":
                return func(*args, **kwargs)
            if foreign:
                return NotImplemented
        with DisableTorchFunction():  # the questions that recording asks of tensors are not the program's
            return self._dispatched(func, args, kwargs)

    def _dispatched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rule = self._rules.get(func)
        if rule is None:
            rule = self._rules[func] = rule_of(func)
        if rule.may_copy:
            with self:
                return func.decompose(*args, **kwargs)
        if rule.not_recorded:
            result = func(*args, **kwargs)
            if rule.waits and self.tensor_table.contains(args[0]):
                self.tensor_table.alias(result, args[0])
            if not self.executor.real and isinstance(result, Tensor) and result.layout is not torch.strided:
                self.error = self.error or self._sparse_tensor(rule)
                raise self.error
            return result
        try:
            tensors = [t for a in args for t in tensors_in(a)]
            if kwargs:
                tensors += [t for a in kwargs.values() for t in tensors_in(a)]
            if rule.reads_values and not self.executor.real:
                result = self._answer(rule, func, args, kwargs, tensors)
            else:
                result = self.executor.run(rule, func, args, kwargs, tensors)
            if not self.paused and rule.name not in ("_local_scalar_dense", "equal"):
                self._record_op(rule, args, kwargs, tensors, result)
        except CaptureError as error:
            self.error = self.error or error
            raise
        except Exception:
            self.failed_in = self.failed_in or f"{self._where()}, {rule.overload}"
            raise
        return result

    def host_reads(self, tensor: Tensor) -> None:
        """The program reads a value of the device: the host waits before it issues the next op."""
        self._host_reads |= tensor.is_meta and not self.paused

    def _selected(self, mask: Tensor) -> list[Tensor] | None:
        self.host_reads(mask)
        return self.questions.selection(mask)

    def _answer(self, rule: Rule, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> Any:
        """The result of an op that reads values while the step runs on shapes."""
        optimizing = self.updates is not None and (self.updates.active or self.updates.priming)
        if rule.name == "_local_scalar_dense" and optimizing and not self.executor.has_values(args[0]):
            return 1.0  # a step counter or a rate of the optimizer: any number gives the same shapes
        for tensor in tensors:
            self.host_reads(tensor)
        if rule.name == "_local_scalar_dense":
            return self.questions.scalar(args[0], rule.overload)
        if rule.name == "equal":
            return self.questions.is_equal(args[0], args[1])
        return self.questions.sized(rule, func, args, kwargs, tensors)

    def _note_trial(self, overload: str) -> None:
        text = f"{self._where()} runs {overload}, which has no rule for shapes: its result has the shape that it has for zeros"
        self.questions.notes[text] = None

    def _where(self) -> str:
        frame = self._position().frame
        return f"layer '{frame.path}'" if frame.path else "the model"

    def _position(self) -> Position:
        graph = torch._C._current_graph_task_id()
        if graph == -1:
            if self._graph != -1:
                self._graph = -1
                self.mark_parameter_gradients()
            return Position(self.frames.current)
        if graph != self._graph:
            self._begin_backward(graph)
        if self.frames.recomputing(graph):
            return Position(self.frames.current, recompute=True)
        node = torch._C._current_autograd_node()
        frame = self._last_frame = self._frame_of(node)
        sequence = -1 if node is None else int(node._sequence_nr())
        return Position(frame, True, torch.is_grad_enabled(), sequence, sequence >= ACCUMULATION)

    def _frame_of(self, node: Any) -> Frame:
        if node is None:
            return self._last_frame
        sequence = int(node._sequence_nr())
        if sequence < ACCUMULATION:
            return self.frames.of_node(sequence)
        index = self.parameter_index.get(id(getattr(node, "variable", None)))
        return self._last_frame if index is None else self._owners[index]

    def _begin_backward(self, graph: int) -> None:
        """The seed of a gradient is made right before backward starts."""
        self._graph = graph
        self._backward_ran = True
        if self._last_outside is not None and self._last_outside[0] == "ones_like":
            self.mark_gradient(self._last_outside[1])
        self._last_outside = None

    def mark_gradient(self, tensor: Tensor) -> None:
        origin = self.tensor_table.origin(tensor)
        origin.kind = "gradient"
        if self.tensor_table.tensors[origin.base].role is Role.ACTIVATION:
            self.tensor_table.tensors[origin.base].role = Role.GRADIENT

    def mark_parameter_gradients(self) -> None:
        for index, parameter in enumerate(self.parameters):
            gradient = parameter.grad
            if gradient is None:
                continue
            gradient = dense_parts([getattr(gradient, "_local_tensor", gradient)])[0]
            origin = self.tensor_table.origin(gradient)
            base = self.tensor_table.tensors[origin.base]
            if base.role is not Role.PARAMETER_GRADIENT:
                base.role, base.name = Role.PARAMETER_GRADIENT, self.parameter_names[index]
                origin.kind, origin.owner = "gradient", index
            elif origin.owner != index:
                origin.owner = NO_OWNER  # a bucket, or what a reduce-scatter left: gradients of several

    def _record_op(self, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor], result: Any) -> None:
        outputs = tensors_in(result)
        position = self._position()
        if any(t.layout is not torch.strided for t in (*outputs, *tensors)):
            if not self.executor.real:
                raise self._sparse_tensor(rule)
            rows_of = tensors if rule.name in ("add_", "sub_", "sparse_mask") else ()
            outputs, tensors = dense_parts(outputs, rows_of), dense_parts(tensors, rows_of)
        if rule.allocates:
            for tensor in outputs:
                self.tensor_table.allocate(tensor)
            return
        host = not self.executor.real and not any(t.is_meta for t in (*tensors, *outputs))
        if host and (not self.frames.inside or all(t.numel() <= 1 for t in outputs)):
            return
        written = dense_parts([t for key in rule.written for t in tensors_in(_argument(args, kwargs, key))])
        inputs = [t for t in tensors if not any(t is w for w in written)] if rule.overwrites else tensors
        results = outputs or written
        call = Call(rule.name, args, kwargs, inputs, results, dense_parts(tensors_in(args[:1])) if rule.shaped_like else [])
        if not position.backward and self._graph == -1:
            self._last_outside = (rule.name, results[0]) if results else None
        if self.updates is not None and self.updates.active and self._record_update(rule, call):
            return
        if not rule.collective and not self._makes_an_op(rule, tensors, written, results):
            return
        if rule.name == "_to_copy" and outputs and not self.executor.real and tensors[0].is_meta and not outputs[0].is_meta:
            self.tensor_table.alias(outputs[0], tensors[0])  # values that the program reads on the host
            if not kwargs.get("non_blocking"):
                self.host_reads(tensors[0])
            return
        host_copy = self._is_host_copy(rule, tensors, outputs)
        moved = host_copy or (rule.name == "_to_copy" and kwargs.get("device") is not None and not self.executor.real)
        if moved and not self.loop and outputs[0].dtype == tensors[-1].dtype:
            self.tensor_table.alias(outputs[0], tensors[-1])
            return
        self._append(rule, call, position, host_copy=host_copy and self.loop)

    def _sparse_tensor(self, rule: Rule) -> CaptureError:
        return CaptureError(
            f"{self._where()} makes a sparse gradient or another sparse tensor ({rule.overload}), whose size depends on values: "
            "build it with sparse=False, or capture(..., real=True) runs the step on the example inputs instead"
        )

    def _record_update(self, rule: Rule, call: Call) -> bool:
        """Drops the optimizer's scalars, leaves its matrix work to be recorded, and adds the rest to the parameter's Update."""
        assert self.updates is not None
        args, inputs, outputs = call.args, call.inputs, call.outputs
        owned = [self.updates.owner(t) != NO_OWNER for t in (*inputs, *outputs)]
        if not any(owned) and all(t.numel() <= 1 for t in (*inputs, *outputs)):
            return True
        if rule.collective or rule.name in PRODUCTS or rule.name in MATRIX_WORK:
            self.updates.adopt(inputs)
            return False
        lists: list[Sequence[Tensor]] = [
            value for value in args if isinstance(value, list | tuple) and value and isinstance(value[0], Tensor)
        ]
        if lists and rule.name.startswith(("_foreach_", "_fused_")):
            written = [args[key] for key in rule.written if isinstance(key, int) and key < len(args)]
            return self.updates.record_lists(rule.name, lists, written or [outputs])
        return self.updates.record(inputs, outputs, unread=call.unread)

    def _makes_an_op(self, rule: Rule, tensors: list[Tensor], written: list[Tensor], results: list[Tensor]) -> bool:
        """False where nothing is computed: empty results, single constants, results that are their own input."""
        if not any(t.numel() for t in results):
            return False
        if not tensors and all(t.numel() <= 1 for t in results):
            return False
        if rule.name == "ones_like" and results[0].numel() <= 1:
            self.tensor_table.allocate(results[0])
            return False
        return bool(written) or not all(any(r is t for t in tensors) for r in results)

    def _is_host_copy(self, rule: Rule, tensors: list[Tensor], outputs: list[Tensor]) -> bool:
        if rule.name not in ("_to_copy", "copy_") or not outputs:
            return False
        if self.executor.real:
            return any(t.device != outputs[0].device for t in tensors)
        return outputs[0].is_meta and any(t.dim() and not t.is_meta for t in tensors)

    def _append(self, rule: Rule, call: Call, position: Position, *, host_copy: bool) -> None:
        pieces = self._pieces(rule, call)
        number, first = None, len(self.ops)
        if any(piece.fused for piece in pieces):
            number, self._fused = self._fused, self._fused + 1
        for piece in pieces:
            inputs = call.inputs if piece.inputs is None else dense_parts(piece.inputs)
            outputs = call.outputs if piece.outputs is None else dense_parts(piece.outputs)
            kinds: list[Kind] = ["activation" if isinstance(t, OnChip) else self.tensor_table.origin(t).kind for t in inputs]
            gradient = "gradient" in kinds or (piece.fused and position.backward)
            if position.backward and position.recompute:
                position = replace(position, backward=gradient, recompute=not gradient)
            letters, phase, phase_is_final = self._letters_and_phase(piece, inputs, kinds, position)
            if host_copy:
                phase, phase_is_final = Phase.COPY, True
            kind, role = _kind_of_result(piece, inputs, kinds, gradient, phase)
            owner = self._common_owner(inputs) if phase is Phase.UPDATE else NO_OWNER
            for tensor in outputs if rule.renews else ():
                self.tensor_table.renew(tensor)
            frame = position.frame if phase is not Phase.UPDATE else self._owners[owner] if owner != NO_OWNER else self._common
            self.ops.append(
                RawOp(
                    body=self._bodies.setdefault(piece.body, piece.body), name=piece.name or rule.name, frame=frame, phase=phase,
                    phase_is_final=phase_is_final, recompute=position.recompute, letters=letters,
                    fused=number if piece.fused else None, routing=piece.routing,
                    inputs=tuple([self.tensor_table.read(t) for t in inputs if call.reads(t)]),
                    outputs=tuple([self.tensor_table.write(t, role, kind, owner) for t in outputs]),
                    host_waits=self._host_reads and len(self.ops) == first,
                    layout=Layout.SAME if piece.fused else layout_of(piece.body, inputs, outputs),
                )
            )  # fmt: skip
        self._host_reads = False

    def _pieces(self, rule: Rule, call: Call) -> list[Piece]:
        if rule.handler is None:
            return [self._unknown_op(rule, call)]
        try:
            return _as_pieces(rule.handler(call))
        except BadInput as error:
            raise CaptureError(f"{self._where()}: {rule.overload}: {error}") from error

    def _unknown_op(self, rule: Rule, call: Call) -> Piece:
        """An op that capture does not know costs the bytes that it reads and writes; one that may be a product is an error."""
        advice = (
            f'teach it with trainyard.workloads.capture.register("{rule.overload}", handler), where handler(call) returns its body'
        )
        shapes = ", ".join(str(tuple(t.shape)) for t in call.inputs)
        if not (self.executor.real or rule.overload.startswith("aten.") or _keeps_shape(call)):
            location = current_location()
            line = f" ({location})" if location is not None else ""
            raise CaptureError(
                f"{self._where()}{line} runs {rule.overload} on {shapes or 'no tensors'}, which capture does not know: {advice}; "
                "with capture(..., real=True) it costs the bytes that it reads and writes"
            )
        note = f"{self._where()} runs {rule.overload}, which capture does not know: it costs the bytes that it reads and writes"
        self.questions.notes[f"{note}; {advice}"] = None
        return Piece(ElementWise(rule.name, max(1, *(t.numel() for t in call.outputs))))

    def _common_owner(self, tensors: Sequence[Any]) -> int:
        """The one parameter that all of these belong to, if there is one."""
        owners = {self.tensor_table.origin(t).owner for t in tensors if not isinstance(t, OnChip)}
        return owners.pop() if len(owners) == 1 else NO_OWNER

    def append_update(self, body: Update, owner: int, read: list[Tensor], written: list[Tensor]) -> None:
        """One parameter's Update."""
        self.ops.append(
            RawOp(
                body=self._bodies.setdefault(body, body), name=body.optimizer.lower(), frame=self._owners[owner],
                phase=Phase.UPDATE, phase_is_final=True, recompute=False, letters=(), fused=None,
                inputs=tuple([self.tensor_table.read(t) for t in read]),
                outputs=tuple([self.tensor_table.write(t, Role.STATE, "buffer") for t in written]), host_waits=self._host_reads,
            )
        )  # fmt: skip
        self._host_reads = False

    def _letters_and_phase(
        self, piece: Piece, inputs: Sequence[Any], kinds: Sequence[Kind], position: Position
    ) -> tuple[tuple[Letter, ...], Phase, bool]:
        product = isinstance(piece.body, MatMul | Convolution)
        if position.backward:
            if position.accumulates:
                return (), Phase.GRAD_WEIGHT, True
            if not product or piece.fused:
                return ("", "") if product else (), piece.phase or Phase.GRAD_INPUT, piece.phase is not None
            return *self._letters.backward(inputs, kinds, position.sequence), True
        letters: tuple[Letter, ...] = ()
        if product:
            letters = ("", "") if piece.fused else self._letters.forward(inputs, kinds)
        return letters, self._forward_phase(inputs, kinds), True

    def _forward_phase(self, inputs: Sequence[Any], kinds: Sequence[Kind]) -> Phase:
        if self._graph != -1 or self.frames.inside:
            return Phase.FORWARD
        if self.updates is not None and self.updates.active:
            return Phase.UPDATE
        penalty = torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in inputs)
        if ("gradient" in kinds and not penalty) or (self._backward_ran and "weight" in kinds and not torch.is_grad_enabled()):
            return Phase.UPDATE
        return Phase.LOSS if self.frames.entered else Phase.FORWARD


def _keeps_shape(call: Call) -> bool:
    """Whether each result has the shape of an operand, or is one number: then the op is hardly a product."""
    shapes = {t.shape for t in call.inputs}
    return all(t.shape in shapes or t.numel() <= 1 for t in call.outputs)


def _as_pieces(answer: HandlerResult) -> list[Piece]:
    if isinstance(answer, Piece):
        return [answer]
    if isinstance(answer, Body):
        return [Piece(answer)]
    return [item if isinstance(item, Piece) else Piece(item) for item in answer]


def _kind_of_result(piece: Piece, inputs: Sequence[Any], kinds: Sequence[Kind], gradient: bool, phase: Phase) -> tuple[Kind, Role]:
    """A tensor made of weights, constants and single numbers is a weight; one that descends from a gradient is a gradient."""
    if gradient and phase not in (Phase.FORWARD, Phase.LOSS):
        return "gradient", Role.GRADIENT
    product = isinstance(piece.body, MatMul | Convolution)
    constant = (kind in ("weight", "buffer") or math.prod(t.shape) == 1 for t, kind in zip(inputs, kinds, strict=True))
    if "weight" in kinds and not product and all(constant):
        return "weight", Role.ACTIVATION
    return "activation", Role.ACTIVATION


def _argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], key: int | str) -> Any:
    if isinstance(key, str):
        return kwargs.get(key)
    return args[key] if key < len(args) else None


def _foreign(types: Sequence[type]) -> str:
    """The name of a tensor subclass, which must decompose itself first; "fake" for FakeTensor, whose ops are not the program's."""
    for kind in types:
        if kind in (Tensor, nn.Parameter, nn.Buffer):
            continue
        if kind.__name__ == "FakeTensor":
            return "fake"
        if getattr(kind, "__torch_dispatch__", None) is not torch._C._disabled_torch_dispatch_impl:
            return kind.__name__
    return ""
