"""A DPU: a small multithreaded processor next to a DRAM bank, without multipliers, or with a MAC array fed from the bank.

UPMEM's is the only commercial one; it is described in J. Gomez-Luna et al., IEEE Access 10, 2022 (PrIM) and in F. Devaux, Hot Chips
2019. Tasklets share one pipeline (`hardware.dpu.pipeline`), arithmetic is software (`hardware.dpu.instructions`), and all data
pass through WRAM by transfers of at most 2048 bytes (`devices.dpu.costs`). `scripts/dpu_detail.py` compares one step with the
pipeline simulated instruction by instruction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from trainyard.caches import ByIdentity
from trainyard.construction import NonNegative, NonNegativeInt, Positive, part
from trainyard.devices.dpu.costs import LEAST_TRANSFER_BYTES, costs
from trainyard.devices.dpu.memory import MemoryUse, step_memory
from trainyard.errors import BadInput
from trainyard.hardware.dpu.instructions import ARITHMETIC, Arithmetic, arithmetic
from trainyard.hardware.dpu.pipeline import Pipeline
from trainyard.hardware.tables import energy
from trainyard.hardware.tables.energy import ram_joules_per_byte
from trainyard.hardware.tables.technology import require_node
from trainyard.ir import Body, Collective, DeviceCost, Masks, Step, Work, assumed
from trainyard.mapping.demand import Demand, Policy
from trainyard.mapping.precision import Precision
from trainyard.mapping.profile import demand, works
from trainyard.results.result import Peaks

Number = Literal["fp32", "fixed32", "bf16", "fp16"]
OWNER = "Dpu"
# fmt: off
ELEMENT: Mapping[str, tuple[int, str]] = {"fp32": (4, "fp32"), "fixed32": (4, "int32"), "bf16": (2, "bf16"), "fp16": (2, "fp16")}
"""Bytes of a number in WRAM, and its row of the energy table."""
HALVES = ("input", "activation", "gradient")  # roles in a 16-bit format; weights, their gradients and state stay fp32
INSTRUCTION = energy.Component(
    event="instruction", component="instruction", joules=70e-12, nm=45,
    source="assumed: as quoted from Horowitz, ISSCC 2014: 70 pJ for an instruction of a simple core; the slides were not at hand")
# fmt: on


@part
class Dpu:
    """One DPU. Quantities may also be given with their unit: `clock="350 MHz"`, `mram="64 MiB"`, `wram="64 KiB"`.

    `number` is what it computes in: fp32 or 32-bit fixed point in software, or, with `mac_lanes` MACs a cycle beside the pipeline,
    also bf16 and fp16. Lanes have a sequencer of their own; tasklets start them row by row.

    >>> dpu = Dpu(clock="350 MHz", mram="64 MiB", number="fixed32")
    >>> round(dpu.peaks.macs_per_s / 1e6, 1), round(dpu.peaks.dram_bytes_per_s / 1e6)
    (9.7, 651)
    """

    # fmt: off
    name: str                     = "dpu"
    clock_hz: float               = 350e6
    tasklets: int                 = assumed(16, "tasklets that a program starts; 11 fill the pipeline", 11, 24, choice=True)
    most_tasklets: int            = 24
    interval: int                 = 11
    wram_bytes: int               = 64 * 1024
    iram_bytes: int               = 24 * 1024
    mram_bytes: int               = 64 * 2**20
    dma_read_cycles: NonNegative        = 77
    dma_write_cycles: NonNegative       = 61
    dma_cycles_per_byte: Positive    = 0.5
    longest_transfer_bytes: int   = 2048
    number: Literal["fp32", "fixed32", "bf16", "fp16"] = "fp32"
    mac_lanes: NonNegativeInt                = 0
    wram_bytes_per_cycle: Positive   = 8
    stack_bytes: NonNegativeInt              = assumed(1024, "WRAM that each tasklet's stack takes", 512, 2048)
    barrier_instructions: NonNegativeInt     = assumed(20, "instructions of a tasklet at the barrier that ends an op", 10, 60)
    fusion: Literal["epilogue", "none"] = assumed("epilogue", "element-wise ops go with the product in front of them", "none")
    technology_nm: float          = assumed(28, "technology node, for energy; UPMEM's is a DRAM process of the 20 nm class", 45,
                                            only="energy_j")
    mram_j_per_byte: NonNegative        = 31.4e-12
    static_w: NonNegative               = 0.1
    # fmt: on

    if TYPE_CHECKING:  # `part` makes it: every field, and quantities also under their names without units

        def __init__(self, **fields: Any) -> None: ...

    def __post_init__(self) -> None:
        require_node(self.technology_nm)
        if not self.mac_lanes and self.number not in ARITHMETIC:
            raise BadInput(f"{OWNER}: number={self.number!r} needs a MAC array: give mac_lanes=16, or number='fp32' or 'fixed32'")
        if self.tasklets > self.most_tasklets:
            raise BadInput(f"{OWNER}: tasklets={self.tasklets}, the hardware has {self.most_tasklets}")
        if self.block_bytes(3) < LEAST_TRANSFER_BYTES:
            raise BadInput(
                f"{OWNER}: {self.wram_bytes} bytes of WRAM hold no blocks beside {self.tasklets} stacks of {self.stack_bytes}: "
                "give fewer tasklets or more wram"
            )

    @property
    def dram_capacity_bytes(self) -> int:
        return self.mram_bytes

    @property
    def arithmetic(self) -> Arithmetic:
        """Instructions of operations in software."""
        return arithmetic(self.number if self.number in ARITHMETIC else "fp32")

    @property
    def pipeline(self) -> Pipeline:
        """The parameters of the simulated pipeline."""
        return Pipeline(
            interval=self.interval,
            read_fixed=round(self.dma_read_cycles),
            write_fixed=round(self.dma_write_cycles),
            cycles_per_byte=self.dma_cycles_per_byte,
            longest_transfer=self.longest_transfer_bytes,
        )

    @property
    def occupancy(self) -> float:
        """Instructions per cycle.

        >>> [round(Dpu(tasklets=tasklets).occupancy, 2) for tasklets in (1, 8, 11, 24)]
        [0.09, 0.73, 1.0, 1.0]
        """
        return min(self.tasklets, self.interval) / self.interval

    @property
    def macs_per_s(self) -> float:
        return self.clock_hz * (self.mac_lanes or self.occupancy / self.arithmetic.mac)

    @property
    def peaks(self) -> Peaks:
        longest = self.longest_transfer_bytes
        return Peaks(
            macs_per_s=self.macs_per_s,
            dram_bytes_per_s=longest / self.transfers(longest, math.inf, "read")[0] * self.clock_hz,
            technology=f"{self.technology_nm:g} nm",
        )

    @property
    def element_bytes(self) -> int:
        return ELEMENT[self.number][0]

    @property
    def precision(self) -> str | Precision | None:
        """Element types in MRAM: 32 bits, or with a 16-bit format activations and their gradients in that."""
        if self.element_bytes == 4:
            return None if self.number == "fp32" else ELEMENT[self.number][1]
        return Precision(dict.fromkeys(HALVES, self.number))

    @property
    def shared_bytes(self) -> int:
        """WRAM without the stacks of the tasklets."""
        return self.wram_bytes - self.tasklets * self.stack_bytes

    @property
    def masks_note(self) -> str:
        return "a DPU computes zeros like any other number: masks change nothing"

    def block_bytes(self, streams: int) -> int:
        """The longest block, in one transfer, if every tasklet buffers one of each stream."""
        buffer = self.shared_bytes // self.tasklets // max(1, streams)
        return min(buffer, self.longest_transfer_bytes) // LEAST_TRANSFER_BYTES * LEAST_TRANSFER_BYTES

    def transfers(self, size: float, run_bytes: float, direction: str) -> tuple[float, float]:
        """Cycles of the DMA engine for `size` bytes in runs, and the number of transfers: a long run takes several.

        >>> Dpu().transfers(4096, 4096, "read"), Dpu().transfers(64, 8, "write")
        ((2202.0, 2.0), (520.0, 8.0))
        """
        if not size:
            return 0.0, 0.0
        run = min(size, max(LEAST_TRANSFER_BYTES, run_bytes))
        pieces = math.ceil(run / self.longest_transfer_bytes) * size / run
        fixed = self.dma_read_cycles if direction == "read" else self.dma_write_cycles
        return pieces * fixed + size * self.dma_cycles_per_byte, pieces

    def works(self, step: Step) -> Sequence[Work]:
        return works(step, self.policy)

    @property
    def policy(self) -> Policy:
        return Policy(precision=self.precision, fusion=self.fusion)

    def cost(self, step: Step, work: Work, masks: Masks | None = None) -> DeviceCost:
        return _schedule(self, ByIdentity(step)).get(work.ops) or costs(self, [_demand(self.policy, step, work)])[0]

    @property
    def joules(self) -> Mapping[str, float]:
        """Joules of each event; `second` is static power."""
        nm = self.technology_nm
        # fmt: off
        return {
            "instruction":     INSTRUCTION.at(nm, "fp32"),
            "mac":             energy.mac_joules(ELEMENT[self.number][1], nm),
            "mram_read_byte":  self.mram_j_per_byte,
            "mram_write_byte": self.mram_j_per_byte,
            "wram_read_byte":  ram_joules_per_byte("read", self.wram_bytes, nm),
            "wram_write_byte": ram_joules_per_byte("write", self.wram_bytes, nm),
            "second":          self.static_w,
        }
        # fmt: on

    @property
    def full_load_w(self) -> float:
        """Watts with continuous transfers and all lanes busy, or an instruction in every cycle, every third a WRAM access."""
        joules, bandwidth = self.joules, self.peaks.dram_bytes_per_s
        issued = self.clock_hz * joules["instruction"] * (self.occupancy if not self.mac_lanes else 0.0)
        port = self.clock_hz * (self.wram_bytes_per_cycle if self.mac_lanes else 4 / 3)
        moved = port * joules["wram_read_byte"] + bandwidth * (joules["wram_write_byte"] + joules["mram_read_byte"])
        return issued + self.mac_lanes * self.clock_hz * joules["mac"] + moved + self.static_w

    def energy(self, events: Mapping[str, float]) -> Mapping[str, float]:
        """Joules by component."""
        energies = {event: events.get(event, 0.0) * joules for event, joules in self.joules.items()}
        return {
            "instruction": energies["instruction"],
            "mac": energies["mac"],
            "dram": energies["mram_read_byte"] + energies["mram_write_byte"],
            "scratchpad": energies["wram_read_byte"] + energies["wram_write_byte"],
            "static": energies["second"],
        }

    def memory_use(self, step: Step, data_bytes: int = 0) -> MemoryUse:
        """Bytes of MRAM for a step and a data set."""
        return step_memory(step, self.precision, data_bytes)

    def fits(self, step: Step, data_bytes: int = 0) -> bool:
        return self.memory_use(step, data_bytes).bytes <= self.mram_bytes

    def require_room(self, step: Step, data_bytes: int = 0) -> None:
        """Refuses a step that does not fit, with remedies."""
        self.memory_use(step, data_bytes).require(self.mram_bytes, self.name)


def _demand(policy: Policy, step: Step, work: Work) -> tuple[Demand, tuple[Body, ...]]:
    return demand(step, work, policy), tuple(step.ops[index].body for index in work.ops)


@lru_cache(maxsize=64)
def _schedule(dpu: Dpu, same: ByIdentity[Step]) -> Mapping[tuple[int, ...], DeviceCost]:
    """The cost of all Works of a step but collectives (which `costs` refuses); equal Works are costed once."""
    policy = dpu.policy
    demands: dict[tuple[Demand, tuple[Body, ...]], int] = {}
    number_of: dict[tuple[int, ...], int] = {}
    for work in dpu.works(same.value):
        if any(isinstance(same.value.ops[index].body, Collective) for index in work.ops):
            continue
        number_of[work.ops] = demands.setdefault(_demand(policy, same.value, work), len(demands))
    distinct = costs(dpu, list(demands))
    return {ops: distinct[number] for ops, number in number_of.items()}
