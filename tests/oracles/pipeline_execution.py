"""A pipeline really computed: every device does its turns in its order, with arrays, and has what it made or was sent, no more.

Each chunk's memory of a microbatch is its own; a pass that reads what did not cross the cut finds nothing there. Gradients add up
over microbatches where they are made. The parameters at the end are those of one device and the whole batch. For readers and
tests: it computes the ops that `parallel_execution` knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from oracles.parallel_execution import Execution
from trainyard.errors import BadInput
from trainyard.ir import Role, Step
from trainyard.mapping.pipeline.schedule import Pipeline, Turn, issued, turns
from trainyard.mapping.pipeline.stages import Stages

Array = npt.NDArray[Any]


class PipelineExecution:
    """`memory[chunk, microbatch]` by tensor; `sums` by (chunk, tensor). `step` is that of one microbatch."""

    def __init__(self, step: Step, stages: Stages, pipeline: Pipeline, devices: int, rate: Any = 1) -> None:
        self.step, self.stages, self.pipeline, self.devices, self.rate = step, stages, pipeline, devices, rate
        self.memory: dict[tuple[int, int], dict[int, Array]] = {}
        self.sums: dict[tuple[int, int], Array] = {}
        self.parameters: dict[tuple[int, int], Array] = {}
        self.crossed = 0

    def run(self, values: Mapping[int, Array]) -> PipelineExecution:
        """`values` of the whole batch: inputs and targets are cut along their first axis, one piece for each microbatch."""
        count = self.pipeline.microbatches
        for chunk in range(self.stages.chunks):
            for microbatch in range(count):
                self.memory[chunk, microbatch] = {
                    tensor: np.split(value, count)[microbatch]
                    for tensor, value in values.items()
                    if self.step.tensors[tensor].role is not Role.PARAMETER
                }
            for tensor, value in values.items():
                if self.step.tensors[tensor].role is Role.PARAMETER:
                    self.parameters[chunk, tensor] = value.copy()
        for _, turn in issued(turns(self.pipeline, self.devices), self.stages.chunks):
            self._turn(turn)
        for number, done in enumerate(self.stages.done):
            if done == "once":
                self._once(number)
        return self

    def _execution(self, chunk: int, memory: dict[int, Array]) -> Execution:
        own = {tensor: value for (where, tensor), value in self.parameters.items() if where == chunk}
        return Execution(whole=self.step, step=self.step, devices=1, rate=self.rate, memory=[{**memory, **own}])

    def _turn(self, turn: Turn) -> None:
        memory = self.memory[turn.chunk, turn.microbatch]
        device = self._execution(turn.chunk, memory)
        for number in self.stages.of(turn.chunk, "backward" if turn.backward else "forward"):
            for op in self.stages.works[number].ops:
                device._op(self.step.ops[op], self.step.ops[op])
        memory.update({t: v for t, v in device.memory[0].items() if (turn.chunk, t) not in self.parameters})
        for base in self.stages.accumulated & memory.keys() if turn.backward else ():
            gradient = memory.pop(base)
            self.sums[turn.chunk, base] = self.sums[turn.chunk, base] + gradient if (turn.chunk, base) in self.sums else gradient
        cut = turn.chunk - 1 if turn.backward else turn.chunk
        if 0 <= cut < self.stages.chunks - 1:
            moved = (self.stages.backward if turn.backward else self.stages.forward)[cut]
            target = self.memory[turn.chunk + (-1 if turn.backward else 1), turn.microbatch]
            for base in moved:
                if base not in memory:
                    raise BadInput(f"pipeline: tensor {base} should leave chunk {turn.chunk} and is not there")
                target[base] = memory[base]
                self.crossed += memory[base].size

    def _once(self, number: int) -> None:
        """After the last microbatch: sums of other chunks are sent for, new parameters go to all."""
        chunk = self.stages.chunk[number]
        sums = {tensor: value for (_, tensor), value in self.sums.items()}
        device = self._execution(chunk, sums)
        for op in self.stages.works[number].ops:
            device._op(self.step.ops[op], self.step.ops[op])
            for base in map(self.step.base, self.step.ops[op].outputs):
                if self.step.tensors[base].role is Role.PARAMETER:
                    for where in range(self.stages.chunks):
                        self.parameters[where, base] = device.memory[0][base]
                else:
                    self.sums[chunk, base] = device.memory[0][base]
