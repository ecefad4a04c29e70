"""ZeRO: data parallelism in which each of n devices keeps one n-th of what all of them would keep alike.

S. Rajbhandari, J. Rasley, O. Ruwase, Y. He: ZeRO: Memory Optimizations Toward Training Trillion Parameter Models. SC 2020.

- Stage 1: the optimizer's state. Gradients are reduce-scattered, each device updates its part, new parameters are all-gathered.
- Stage 2: and the gradients: after its reduce-scatter a device keeps its part alone.
- Stage 3: and the parameters: they are all-gathered before their use in the forward pass, freed, and gathered again for the
  backward pass; the update leaves each device its own part. Gathering runs `prefetch` uses ahead of the device.

With psi bytes of parameters a device sends 2 psi (n - 1)/n in stages 0 to 2 and 3 psi (n - 1)/n in stage 3 (Sec. 7; less what the
backward pass does not read, biases and tables of embeddings: that is not gathered again), and holds
P + G + K, P + G + K/n, P + (G + K)/n, (P + G + K)/n bytes of parameters, gradients and state (Fig. 1). Ours are the captured ones:
parameters and gradients by their element types, state as the optimizer's updates read it. Parts are flat, the last one padded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from trainyard.errors import BadInput, NotModelled
from trainyard.ir import Collective, Op, Phase, Role, Step, TensorSpec, Update
from trainyard.ir.ops import CollectiveKind
from trainyard.mapping.parallel import transform as parallel
from trainyard.mapping.parallel.data import ready_gradients

STAGES = (0, 1, 2, 3)


class ModelStates(NamedTuple):
    """Bytes of one device."""

    parameters: int
    gradients: int
    state: int

    @property
    def total(self) -> int:
        return sum(self)


def model_states(
    elements: int, devices: int, stage: int, *, parameter_bytes: int = 2, gradient_bytes: int = 2, state_bytes: int = 12
) -> ModelStates:
    """Fig. 1 of the paper; the defaults are its mixed-precision Adam (K = 12: fp32 parameters, momentum and variance).

    >>> [round(model_states(7_500_000_000, 64, stage).total / 1e9, 1) for stage in STAGES]  # Fig. 1: 120, 31.4, 16.6, 1.9 GB
    [120.0, 31.4, 16.6, 1.9]
    """
    part = -(-elements // devices)
    return ModelStates(
        (part if stage > 2 else elements) * parameter_bytes,
        (part if stage > 1 else elements) * gradient_bytes,
        (part if stage > 0 else elements) * state_bytes,
    )


def states_of(step: Step) -> ModelStates:
    """What a device's step keeps: resident parameters and state, and the gradients that its updates read."""
    own = [spec for spec in step.tensors if spec.view_of is None]
    parameters, state = (sum(spec.bytes for spec in own if spec.role is role) for role in (Role.PARAMETER, Role.STATE))
    read = {base for op in step.ops if isinstance(op.body, Update) for base in map(step.base, op.inputs)}
    gradients = sum(step.tensors[base].bytes for base in read if step.tensors[base].role is Role.PARAMETER_GRADIENT)
    return ModelStates(parameters, gradients, state)


def sharded(step: Step, devices: int, stage: int, *, bucket_bytes: int = 0, prefetch: int = 1) -> Step:
    """One device's step under ZeRO; `bucket_bytes=0` exchanges each tensor by itself.

    >>> import trainyard as ty
    >>> whole = ty.zoo.load("alexnet", batch=512)
    >>> parallel.exchanged(sharded(whole, 8, 2)) == {"all_gather": whole.parameters, "reduce_scatter": whole.parameters}
    True
    """
    if stage not in STAGES or isinstance(stage, bool):
        raise BadInput(f"zero: stage must be one of {', '.join(map(str, STAGES))}, got {stage!r}")
    if stage == 0 or devices == 1:
        return parallel.data(step, devices, bucket_bytes=bucket_bytes)
    if any(isinstance(op.body, Collective) for op in step.ops):
        raise BadInput(f"step {step.name!r} was captured with exchanges of its own: write zero=0")
    own_step = step.rebatch(parallel.share(step, devices))
    return _Sharding(own_step, devices, stage, bucket_bytes, prefetch).rewrite()


class _Sharding:
    def __init__(self, step: Step, devices: int, stage: int, bucket_bytes: int, prefetch: int) -> None:
        self.step, self.devices, self.stage, self.bucket_bytes, self.prefetch = step, devices, stage, bucket_bytes, prefetch
        self.tensors = list(step.tensors)
        self.ops: list[Op] = []
        self.shard: dict[int, int] = {}  # of a gradient
        self.updated = {step.base(op.inputs[0]) for op in step.ops if isinstance(op.body, Update) and len(op.inputs) > 1}

    def rewrite(self) -> Step:
        ready = ready_gradients(self.step)
        gathers = self._gathers() if self.stage == 3 else {}
        clones: dict[tuple[bool, int], int] = {}
        bucket: list[tuple[int, Op]] = []
        renewed: list[tuple[int, Op]] = []
        for index, op in enumerate(self.step.ops):
            for unit in gathers.get(index, ()):
                self._gather(unit, clones)
            if not isinstance(op.body, Update):
                self._refuse(op, bucket)
                self.ops.append(self._on_gathered(op, clones))
            else:
                bucket = self._scatter(bucket)
                self._update(op, renewed)
            for base in ready.get(index, ()):
                if bucket and self.tensors[bucket[0][0]].dtype != self.tensors[base].dtype:
                    bucket = self._scatter(bucket)
                bucket.append((base, op))
                if self._bytes(bucket) >= self.bucket_bytes:
                    bucket = self._scatter(bucket)
        self._scatter(bucket)
        self._renew(renewed)
        return replace(self.step, ops=tuple(self.ops), tensors=tuple(self.tensors))

    def _new(self, spec: TensorSpec) -> int:
        self.tensors.append(spec)
        return len(self.tensors) - 1

    def _part(self, tensor: int) -> tuple[int]:
        return (-(-self.step.tensors[tensor].elements // self.devices),)

    def _bytes(self, bucket: list[tuple[int, Op]]) -> int:
        return sum(self.step.tensors[base].bytes for base, _ in bucket)

    def _exchange(
        self, kind: CollectiveKind, whole: list[int], inputs: list[int], outputs: list[int], op: Op, phase: Phase
    ) -> None:
        body = Collective(kind, sum(self.step.tensors[base].elements for base in whole), self.devices)
        names = {"name": kind, "layer": op.layer, "call": op.call}
        self.ops.append(Op(body=body, phase=phase, inputs=tuple(inputs), outputs=tuple(outputs), **names))  # type: ignore[arg-type]

    # -- gradients and updates --

    def _scatter(self, bucket: list[tuple[int, Op]]) -> list[tuple[int, Op]]:
        """In stage 1 a device's part of the sum lies in the gradient's own memory; later the rest of it is freed."""
        if bucket:
            bases = [base for base, _ in bucket]
            for base in bases:
                spec = self.step.tensors[base]
                self.shard[base] = self._new(
                    replace(spec, shape=self._part(base), slope=(), view_of=base if self.stage == 1 else None)
                )
            self._exchange("reduce_scatter", bases, bases, [self.shard[b] for b in bases], bucket[-1][1], Phase.GRAD_WEIGHT)
        return []

    def _refuse(self, op: Op, bucket: list[tuple[int, Op]]) -> None:
        """Sent or waiting in a bucket: nobody has all of the sum."""
        for base in map(self.step.base, op.inputs):
            if base in self.shard or any(base == waiting for waiting, _ in bucket):
                raise NotModelled(
                    f"zero: {op.name or 'an op'} ({op.layer}) reads the whole gradient {self.step.tensors[base].name!r}, of which "
                    "a device has its part alone: write zero=0"
                )

    def _update(self, op: Op, renewed: list[tuple[int, Op]]) -> None:
        """On a device's part of everything that is as large as the parameter."""
        parameter = self.step.base(op.inputs[0])
        elements, part = self.step.tensors[parameter].elements, self._part(parameter)

        def own_part(tensor: int) -> int:
            base = self.step.base(tensor)
            spec = self.step.tensors[base]
            if base in self.shard:
                return self.shard[base]
            if spec.elements != elements:  # a count of steps, a rate
                return tensor
            if spec.role is Role.STATE or self.stage == 3:
                self.tensors[base] = replace(self.tensors[base], shape=part)
                if tensor != base:
                    self.tensors[tensor] = replace(self.tensors[tensor], shape=part)
                return tensor
            return self._new(replace(spec, shape=part, view_of=base))

        assert isinstance(op.body, Update)
        body = replace(op.body, elements=-(-op.body.elements // self.devices))
        inputs, outputs = tuple(map(own_part, op.inputs)), tuple(map(own_part, op.outputs))
        self.ops.append(replace(op, body=body, inputs=inputs, outputs=outputs, slope=()))
        if self.stage < 3:
            renewed.append((parameter, self.ops[-1]))

    def _renew(self, renewed: list[tuple[int, Op]]) -> None:
        """Everyone's new parameters for everyone."""
        bucket: list[tuple[int, Op]] = []
        for place, parameter_and_op in enumerate(renewed):
            bucket.append(parameter_and_op)
            if self._bytes(bucket) >= self.bucket_bytes or place == len(renewed) - 1:
                bases = [base for base, _ in bucket]
                whole = [self._new(replace(self.step.tensors[base], view_of=base)) for base in bases]
                parts = [next(t for t in op.outputs if self._base(t) == base) for base, op in bucket]
                self._exchange("all_gather", bases, parts, whole, bucket[-1][1], Phase.UPDATE)
                bucket = []

    def _base(self, tensor: int) -> int:
        view = self.tensors[tensor].view_of
        return tensor if view is None else self._base(view)

    # -- parameters --

    def _gathers(self) -> dict[int, list[tuple[bool, list[int], int, Op]]]:
        """Before which op what is gathered: (backward, parameters, the op that must be over, an op that reads them).

        A gather starts when the device begins what the unit `prefetch` places before it is for; the first ones at once.
        """
        units: list[tuple[bool, list[int], int]] = []  # for the op that reads them first
        seen: set[tuple[bool, int]] = set()
        for index, op in enumerate(self.step.ops):
            back = op.phase.backward or op.recompute
            wanted = [
                base
                for base in dict.fromkeys(map(self.step.base, op.inputs))
                if base in self.updated and (back, base) not in seen and not isinstance(op.body, Update)
            ]
            seen.update((back, base) for base in wanted)
            for base in wanted:
                last = units[-1] if units else None
                small = last is not None and sum(self.step.tensors[b].bytes for b in last[1]) < self.bucket_bytes
                if last is not None and small and last[0] == back:
                    last[1].append(base)
                else:
                    units.append((back, [base], index))
        gathers: dict[int, list[tuple[bool, list[int], int, Op]]] = {}
        firsts = sorted({first for _, _, first in units})
        for back, bases, first in units:
            place = max(0, firsts.index(first) - self.prefetch)
            begin = firsts[place]
            gathers.setdefault(begin, []).append((back, bases, begin - 1, self.step.ops[first]))
        return gathers

    def _gather(self, unit: tuple[bool, list[int], int, Op], clones: dict[tuple[bool, int], int]) -> None:
        back, bases, before, op = unit
        wait: list[int] = []
        if before >= 0:  # a tensor of no bytes says that the op before has been done
            place = max(i for i, done in enumerate(self.ops) if not isinstance(done.body, Collective))
            wait = [self._new(TensorSpec((0,), role=Role.PARAMETER_GRADIENT, name="done"))]
            self.ops[place] = replace(self.ops[place], outputs=(*self.ops[place].outputs, *wait))
        for base in bases:
            spec = self.step.tensors[base]
            clones[back, base] = self._new(replace(spec, role=Role.ACTIVATION))
        gathered = [clones[back, base] for base in bases]
        self._exchange("all_gather", bases, [*bases, *wait], gathered, op, op.phase)
        for base in bases:
            self.tensors[base] = replace(self.tensors[base], shape=self._part(base))

    def _on_gathered(self, op: Op, clones: dict[tuple[bool, int], int]) -> Op:
        """The op with gathered parameters, seen as it saw its own."""
        back = op.phase.backward or op.recompute
        if not any((back, self.step.base(tensor)) in clones for tensor in op.inputs):
            return op
        return replace(op, inputs=tuple(self._clone(tensor, back, clones) for tensor in op.inputs))

    def _clone(self, tensor: int, back: bool, clones: dict[tuple[bool, int], int]) -> int:
        if (back, tensor) in clones or (back, self.step.base(tensor)) not in clones:
            return clones.get((back, tensor), tensor)
        spec = self.step.tensors[tensor]
        assert spec.view_of is not None
        under = self._clone(spec.view_of, back, clones)
        clones[back, tensor] = self._new(replace(spec, role=Role.ACTIVATION, view_of=under))
        return clones[back, tensor]
