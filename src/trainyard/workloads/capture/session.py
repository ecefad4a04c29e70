"""One capture from beginning to end: replace the tensors, run at two batch sizes, restore the tensors, merge into one Step."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from textwrap import shorten
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainyard.errors import BadInput, CaptureError
from trainyard.ir import Collective, Role, Step
from trainyard.ir.routing import BALANCED
from trainyard.workloads.capture.attention.dispatch import AttentionDispatch
from trainyard.workloads.capture.attention.flex import flex_attention_on_shapes
from trainyard.workloads.capture.autocast import emulated_cuda
from trainyard.workloads.capture.closures import restored_closures
from trainyard.workloads.capture.distributed import fill_buckets, is_sharded, rebuild_reducers, replicas, settle_layers
from trainyard.workloads.capture.execution import Executor
from trainyard.workloads.capture.frames import Frames
from trainyard.workloads.capture.interface import Interface, causal_masks_unread, modes_inside_backward
from trainyard.workloads.capture.locations import failed_location
from trainyard.workloads.capture.merge import NotAffine, Recording, merged
from trainyard.workloads.capture.phases import settle_phases
from trainyard.workloads.capture.programs import LoopStep, Program
from trainyard.workloads.capture.questions import NeedsExample
from trainyard.workloads.capture.recorder import Recorder
from trainyard.workloads.capture.swap import SavedOptimizers, StandIns, restored_objects, restored_stateful_objects, swapped_tensors
from trainyard.workloads.capture.values import is_small

MOST_REAL_BYTES = 2 << 30  # of parameters and buffers of a model that runs for real where its sizes depend on data


def captured(
    program: Program, *, real: bool, stated: Mapping[str, Any] | None = None, attention: AttentionDispatch | None = None
) -> Step:
    """The program's training step; everything the program works on is as before when this returns or raises.

    `stated` are the user's answers to what the program reads, by line or layer. Without `attention` the kernel of a
    scaled-dot-product attention is left open.
    """
    session = _Session(program, real=real, stated=stated or {}, attention=attention)
    try:
        return _step_of(session, program)
    except NeedsExample as error:
        reason = f"{error}: the step ran on the example inputs"
    except CaptureError as error:
        unfused = None if attention is None else attention.unfused_after(error)
        if unfused is None:
            raise
        return captured(program, real=real, stated=stated, attention=unfused)
    if session.can_run_for_real():
        with suppress(CaptureError):
            return _step_of(_Session(program, real=True, stated=stated or {}, attention=attention, sizes=reason), program)
    return _step_of(_Session(program, real=False, stated=stated or {}, attention=attention, sizes="all"), program)


def _step_of(session: _Session, program: Program) -> Step:
    with session.prepared():
        first = session.recorded(program.batch or 0, update=True)
        batch = first.batch = program.batch or 1
        if program.fixed or session.fixed:
            return session.step(first, (), program.fixed or session.fixed)
        try:
            # From 1 to 2 samples even a square looks affine, so a third size is captured.
            other_batches = (2, 3) if batch == 1 else (batch + 1,)
            return session.step(first, [session.recorded(size, update=session.loops) for size in other_batches])
        except (CaptureError, NotAffine) as error:
            reason = str(error)
        if session.real and batch > 1:  # a pass with values is slow, and only a single sample takes short cuts often
            return session.step(first, (), reason)
        # One batch size may take short cuts (a single sample has nothing to broadcast, a square matrix looks like its transpose):
        # then its step follows from those of the next two.
        try:
            pair = session.recorded(batch + 1, update=True), session.recorded(batch + 2, update=session.loops)
            return session.step(pair[0], pair[1:]).rebatch(batch)
        except (CaptureError, NotAffine):
            return session.step(first, (), reason)


class _Session:
    """`sizes` says where sizes that depend on data come from: "" asks for the example, "all" takes the largest, else a note."""

    def __init__(
        self, program: Program, *, real: bool, stated: Mapping[str, Any], attention: AttentionDispatch | None, sizes: str = ""
    ) -> None:
        self._sizes = sizes
        self.fixed = "its sizes depend on the data" if real and sizes else ""
        self._program, self._stated, self._attention = program, stated, attention
        self._swapped: list[tuple[Tensor, Tensor]] = []
        self._modules = named_modules(program.roots)
        self.real = real or is_sharded(self._modules)
        self._parameters = named_tensors(self._modules, "parameters")
        self._buffers = named_tensors(self._modules, "buffers")
        self._parted = any(hasattr(tensor, "_local_tensor") for tensor in self._parameters.values())
        others = named_modules({f"other.{index}": module for index, module in enumerate(program.other_modules)})
        self._other_modules = {module: path for module, path in others.items() if module not in self._modules}
        self._executor = Executor(real=self.real)
        self._stand_ins = StandIns(real=self.real)
        self._optimizers = SavedOptimizers(self._stand_ins)
        self._autocast_notes: list[str] = []
        for name, tensor in self._parameters.items():
            if nn.parameter.is_lazy(tensor):
                raise CaptureError(f"parameter '{name}' has no shape yet: run the model once before capturing it")

    @property
    def loops(self) -> bool:
        """Whether a user's function is captured: it must run with its updates at every batch size."""
        return isinstance(self._program, LoopStep)

    def step(self, first: Recording, others: Sequence[Recording], why_fixed: str = "") -> Step:
        ops, tensors = merged(first, others)
        passes = " and ".join(str(r.batch) for r in (first, *others))
        source = f"captured with torch {torch.__version__} {'with values' if self.real else 'on meta'} at batch {passes}"
        if why_fixed:
            source += f"; not rebatchable: {why_fixed}"
        world = dist.get_world_size() if any(isinstance(op.body, Collective) for op in ops) else 1
        replica_count = replicas(list(self._modules), list(self._parameters.values()), ops) if world > 1 else 1
        routed = [BALANCED] if any(op.routing for op in ops) else []
        notes = (*([self._sizes] if self.fixed else []), *first.notes, *self._autocast_notes, *routed)
        step = Step(self._program.name, first.batch, ops, tensors, source, not why_fixed, world, replica_count, notes)
        return step if self._attention is None else replace(step, notes=(*step.notes, *self._attention.notes(step)))

    @contextmanager
    def prepared(self) -> Iterator[None]:
        with ExitStack() as stack:
            self._reset_random_state = stack.enter_context(restored_random_state())
            # The cache of autocast refers weakly to parameters, which must not change hands under it.
            torch.clear_autocast_cache()
            stack.enter_context(restored_closures(self._program.functions))
            stack.enter_context(restored_objects([*self._modules, *self._other_modules]))
            stack.enter_context(restored_stateful_objects(self._program.stateful_objects))
            self._autocast_notes = stack.enter_context(emulated_cuda()).notes
            stack.callback(self._optimizers.restore)
            tensors = {**self._other_tensors(), **self._buffers, **self._parameters}
            self._swapped = stack.enter_context(swapped_tensors(tensors, self._stand_ins))
            stack.callback(torch.clear_autocast_cache)
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(_without_onednn() if self.real else causal_masks_unread(self._executor.value))
            if not self.real:
                stack.enter_context(flex_attention_on_shapes())
            stack.enter_context(without_compilation())
            yield

    def _other_tensors(self) -> dict[str, Tensor]:
        """Tensors of modules other than the model, which a step may write as well."""
        own_tensors = {id(tensor) for tensor in (*self._parameters.values(), *self._buffers.values())}
        tensors = {**named_tensors(self._other_modules, "parameters"), **named_tensors(self._other_modules, "buffers")}
        return {name: t for name, t in tensors.items() if id(t) not in own_tensors and not nn.parameter.is_lazy(t)}

    def recorded(self, batch: int, *, update: bool) -> Recording:
        """One pass of the program at a batch size."""
        with restored_closures(self._program.functions), restored_objects(self._modules):
            if rebuild_reducers(self._modules) or self._parted:
                self._run(batch, update=False, rehearsal=True)
            recorder = self._run(batch, update=update)
        if not recorder.ops:
            raise CaptureError("the training step ran no op on the model's tensors: does it use the model that was given?")
        tensors = recorder.tensor_table.with_view_roles()
        settle_phases(recorder.ops, tensors)
        if self._attention is not None:
            self._attention.name_math(recorder.ops)
        if is_sharded(self._modules):
            settle_layers(recorder.ops, tensors)
        unused = [f"values: '{key}' answers no question of this step" for key in self._stated if key not in recorder.questions.used]
        return Recording(batch, recorder.ops, tensors, complete=update, notes=[*recorder.questions.notes, *unused])

    def _run(self, batch: int, *, update: bool, rehearsal: bool = False) -> Recorder:
        self._reset_random_state()
        self._enter_values()
        recorder = Recorder(
            Frames(self._modules), self._parameters, self._executor, loop=self.loops, stated=self._stated, sizes=self._sizes
        )
        for name, buffer in self._buffers.items():
            if not recorder.tensor_table.contains(buffer):
                recorder.tensor_table.enter(buffer, Role.BUFFER, name, "buffer")
        for parameter in self._parameters.values():
            parameter.grad = None
        torch.clear_autocast_cache()
        modes = [*([] if self._attention is None else [self._attention]), Interface(recorder)]
        with ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode)
            stack.enter_context(modes_inside_backward(*modes))
            stack.enter_context(recorder.recording(self._optimizers.prepare))
            try:
                self._program.run(recorder, batch, update=update)
                recorder.mark_parameter_gradients()
                if rehearsal:
                    with recorder.unrecorded():
                        fill_buckets(self._modules)
            except Exception as error:
                raise _capture_error(error, recorder) from error
        return recorder

    def can_run_for_real(self) -> bool:
        """Whether the model has values, and few enough to run it on this computer."""
        tensors = [*self._parameters.values(), *self._buffers.values()]
        return all(t.device.type == "cpu" for t in tensors) and sum(t.numel() * t.itemsize for t in tensors) <= MOST_REAL_BYTES

    def _enter_values(self) -> None:
        """Buffers and single numbers start every pass with the values that they have."""
        values = self._executor.evaluator.values
        values.clear()
        if self.real:
            return
        for tensor, original in self._swapped:
            is_kept = original.numel() <= 1 if isinstance(original, nn.Parameter) else is_small(original)
            if is_kept and not original.is_meta:
                values.put(tensor, original.detach().cpu(), shared=True)


def _capture_error(error: Exception, recorder: Recorder) -> CaptureError:
    if recorder.error is not None:
        return recorder.error
    if isinstance(error, CaptureError):
        return error
    text = shorten((str(error).strip() or type(error).__name__).splitlines()[0], 200, placeholder=" ...")
    location = failed_location(error)
    where = f" in {recorder.failed_in}" if recorder.failed_in else ""
    line = f" ({location})" if location is not None else ""
    advice = ""
    if not recorder.executor.real and ("meta" in str(error) or isinstance(error, NotImplementedError)):
        advice = ": it needs values; capture(..., real=True) runs the step on the example inputs instead"
    return CaptureError(f"the training step failed{where}{line}: {type(error).__name__}: {text}{advice}")


def named_modules(roots: Mapping[str, nn.Module]) -> dict[nn.Module, str]:
    names: dict[nn.Module, str] = {}
    for prefix, root in roots.items():
        if not isinstance(root, nn.Module):
            raise BadInput(f"model= must be an nn.Module, or several of them, got {type(root).__name__}")
        for path, module in root.named_modules(prefix=prefix):
            names.setdefault(module, path)
    return names


def named_tensors(modules: Mapping[nn.Module, str], kind: str) -> dict[str, Tensor]:
    """Parameters or buffers by path, shared ones once."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for module, path in modules.items():
        named: Any = module.named_parameters(recurse=False) if kind == "parameters" else module.named_buffers(recurse=False)
        for name, tensor in named:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                tensors[f"{path}.{name}" if path else name] = tensor
    return tensors


@contextmanager
def restored_random_state() -> Iterator[Callable[[], None]]:
    """Yields a function that sets every generator of random numbers back to its state from before, as the end of the block does."""
    state, of_python = torch.get_rng_state(), random.getstate()
    of_numpy = np.random.get_state()  # noqa: NPY002  # the user's, not ours
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def reset() -> None:
        torch.set_rng_state(state)
        np.random.set_state(of_numpy)  # noqa: NPY002
        random.setstate(of_python)
        if devices:
            torch.cuda.set_rng_state_all(devices)

    try:
        yield reset
    finally:
        reset()


def without_compilation() -> AbstractContextManager[Any]:
    """Compiled models run op by op."""
    compiled = "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance")
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


@contextmanager
def _without_onednn() -> Iterator[None]:
    """oneDNN's recurrent layers are one op each; without it they unroll as on every other device."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)
