"""One step of the linear model on a DPU in detail, beside what `Dpu.cost` says of the same step.

The detailed side is a program written for tasklets (`dpu_linear_step`) on a pipeline simulated instruction by instruction;
the other side is the captured step, op by op. Two fidelities, one meaning: a test bounds their disagreement.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dpu_linear_step import LinearStep

from trainyard.devices.dpu.device import Dpu
from trainyard.errors import BadInput
from trainyard.ir import Step
from trainyard.ir.ops import dimensions, with_dimensions

FEATURES = 4096
"""Of the shipped step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """Cycles of one step, simulated and modelled; `disagreement` is (modelled - simulated) / simulated."""

    cycles: int
    modelled_cycles: int
    instructions: int
    dma_busy_cycles: int

    @property
    def disagreement(self) -> float:
        return (self.modelled_cycles - self.cycles) / self.cycles


def linear(features: int, batch: int) -> Step:
    """The shipped step of logistic regression with another number of features."""
    from trainyard.workloads import zoo

    step = zoo.load("linear", batch=batch)
    if features == FEATURES:
        return step
    if batch == FEATURES:
        raise BadInput(f"a batch of {batch} cannot be told from the step's {FEATURES} features: give another batch")

    def other(numbers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(features if number == FEATURES else number for number in numbers)

    return replace(
        step,
        ops=tuple(replace(op, body=with_dimensions(op.body, other(dimensions(op.body))), slope=()) for op in step.ops),
        tensors=tuple(replace(spec, shape=other(spec.shape), slope=()) for spec in step.tensors),
        rebatchable=False,
    )


def detail(dpu: Dpu, features: int = FEATURES, batch: int = 8) -> Detail:
    """One step of `batch` rows of `features` numbers."""
    if dpu.mac_lanes or dpu.number not in ("fp32", "fixed32"):
        raise BadInput("detail is of a DPU that multiplies in software: give one with mac_lanes=0")
    program = LinearStep(
        features=features,
        batch=batch,
        tasklets=dpu.tasklets,
        number=dpu.number,
        wram_bytes=dpu.wram_bytes,
        stack_bytes=dpu.stack_bytes,
        longest_transfer=dpu.longest_transfer_bytes,
        barrier_instructions=dpu.barrier_instructions,
    ).program()
    ran = dpu.pipeline.simulate(program)
    step = linear(features, batch)
    modelled = sum(dpu.cost(step, work).cycles for work in dpu.works(step))
    return Detail(cycles=ran.cycles, modelled_cycles=modelled, instructions=ran.instructions, dma_busy_cycles=ran.dma_busy)
