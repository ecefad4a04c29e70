"""DSC, the Distributed Synchronization Controller: time, energy and area of its tokens and barriers.

P. P. Kulkarni: DIRECT: Enabling Scalable Processing-In-Memory via DPU-to-DPU Communication, Sec. III-B. The paper prints what it
does, and that its overhead O_dsc in Eq. 2 is one to two orders of magnitude below synchronisation through a CPU; no latency, size
or clock. Fig. 1 draws AGAU-to-DSC communication as a path of its own: a control network separate from the crossbar.

With h the latency between a cluster and the DSC (one direction), a the arbiter's time, e the time that a cluster holds a token:

    token_s     = h + a + h + h                          request, grant, release of a free token
    handover_s  = h + a + h                              from one cluster's release to the next one's grant
    rounds_s(n) = h + (j + 1) a + q max(c, k a) + h + e + h,   n - 1 = q k + j, 0 <= j < k,   c = a + h + e + h

for n clusters that all request at once and k tokens: a token is free again after c, or after the k grants of one arbiter if they
take longer. With one token that is h + n c.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from trainyard.checks import require_positive, require_quantity
from trainyard.construction import NonNegative, NonNegativeInt, part
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.dsc.barriers import Barrier, tree_depth
from trainyard.hardware.dsc.controller import Rules
from trainyard.hardware.dsc.token_arbiter import Arbiter, Order
from trainyard.hardware.tables.area import sram_m2
from trainyard.hardware.tables.cells import (
    ADDER_UM2,
    FLIP_FLOP_UM2,
    LEAKAGE_W_PER_M2,
    MUX_UM2,
    TOGGLED,
    cells_joules,
    cells_m2,
    line_joules,
)
from trainyard.hardware.tables.energy import dram_joules_per_byte, ram_joules_per_byte
from trainyard.hardware.tables.technology import require_node
from trainyard.ir import assumed

Mode = Literal["local", "global"]
MODES: tuple[Mode, ...] = ("local", "global")

# fmt: off
BIT_UM2 = ADDER_UM2 / 32  # a bit of an adder, incrementer or comparator
LINE_M  = 5e-3            # assumed: the way on a chip, about its side
# fmt: on


@part
class Dsc:
    """Hardware of one DSC. Every number except the levels is assumed.

    >>> dsc = Dsc()
    >>> [f"{time * 1e9:.0f} ns" for time in (dsc.token_s, dsc.handover_s, dsc.barrier_s(32), dsc.rounds_s(32))]
    ['149 ns', '103 ns', '97 ns', '4800 ns']
    """

    # fmt: off
    tokens: int = assumed(1, "tokens in the machine; Algorithm 1 has one permission for a global update", 2, choice=True)
    clock_hz: float = assumed(350e6, "clock of the DSC and its network: as the DPUs'", 200e6, 1e9)
    levels: int = 4            # Table I: crossbar network levels; the control network has a node at each
    hop_cycles: int = assumed(
        4, "cycles of a message through a level, either way: two registers and 5 ns of line; 12 would make four of them "
        "as slow as the default crossbar's", 2, 12)
    arbiter_fan_in: int = assumed(4, "requests that a node of the arbiter compares in a cycle", 2, 8)
    enter_cycles: NonNegativeInt = assumed(
        16, "cycles that a cluster holds a token to enter a round: its table entry is written and its AGAU is armed", 0, 64)
    check_cycles: int = assumed(
        1, "cycles of StalenessCheck: a cluster's counter stands beside its AGAU; 36 if it had to ask the DSC", 36)
    barrier_fan_in: int = assumed(8, "inputs of a counter in the barriers' trees: 8 DPUs of a chip, 8 chips of a rank", 2, 64)
    barrier_cycles: int = assumed(1, "cycles of a counter", 2)
    entries: int = assumed(256, "clusters that the table has room for: 2048 DPUs in chips of 8", 32, 2048, choice=True)
    dpus: int = 2048           # Table I: up to 2048; local barriers have counters for all of them
    priority_levels: int = assumed(4, "priorities that a request may have", 2, 16)
    ageing: int = assumed(1, "grants to others that are worth a level of priority to who waits", 4)
    staleness_bits: int = assumed(16, "bits of a staleness counter", 32, only="energy_j")
    message_bits: int = assumed(32, "bits of a request, grant or release: kind, cluster, staleness, priority", 64, only="energy_j")
    entry_bits: int = assumed(128, "bits of a table entry: time of the last update, model's address, state", 64, only="energy_j")
    technology_nm: float = 28  # Sec. VI-A: 28 nm
    leakage: NonNegative = assumed(
        LEAKAGE_W_PER_M2, "leakage of 28 nm logic in W/m2: 20 mW for each square millimetre", 5e3, 1e5, only="energy_j")
    # fmt: on

    def __post_init__(self) -> None:
        for name in ("arbiter_fan_in", "barrier_fan_in"):
            if getattr(self, name) < 2:
                raise BadInput(f"Dsc: {name} must be at least 2, got 1")
        require_node(self.technology_nm)

    def for_clusters(self, clusters: int) -> Dsc:
        """This DSC with a table of one entry per cluster."""
        return replace(self, entries=clusters)

    def rules(self, clusters: int, order: Order = "round_robin") -> Rules:
        """The state machine of this hardware."""
        self._require_entries(clusters)
        return Rules(
            clusters=clusters, tokens=self.tokens, order=order, levels=self.priority_levels, ageing=self.ageing,
            fan_in=self.barrier_fan_in,
        )  # fmt: skip

    # time

    @property
    def hop_s(self) -> float:
        """Latency between a cluster and the DSC, in one direction."""
        return self.levels * self.hop_cycles / self.clock_hz

    @property
    def arbiter_cycles(self) -> int:
        return tree_depth(self.entries, self.arbiter_fan_in)

    @property
    def arbiter_s(self) -> float:
        return self.arbiter_cycles / self.clock_hz

    @property
    def enter_s(self) -> float:
        return self.enter_cycles / self.clock_hz

    @property
    def check_s(self) -> float:
        """StalenessCheck, once in every local step."""
        return self.check_cycles / self.clock_hz

    @property
    def token_s(self) -> float:
        """From the request of a free token until the DSC has it back, if the cluster releases it at once."""
        return 3 * self.hop_s + self.arbiter_s

    @property
    def handover_s(self) -> float:
        """From a release until the grant arrives at the next waiting cluster."""
        return 2 * self.hop_s + self.arbiter_s

    def rounds_s(self, clusters: int, enter_s: float | None = None) -> float:
        """All clusters request at once, each holds a token for `enter_s`: the time until the DSC has the last one back.

        >>> slow = Dsc(clock_hz=1e9, levels=1, hop_cycles=10, entries=4, enter_cycles=5)  # h = 10 ns, a = 1, e = 5
        >>> round(slow.rounds_s(1) * 1e9), round(slow.rounds_s(3) * 1e9), round(replace(slow, tokens=2).rounds_s(3) * 1e9)
        (36, 88, 62)
        """
        self._require_entries(clusters)
        hold_s = self.enter_s if enter_s is None else enter_s
        require_quantity("Dsc.rounds_s", zero=True, enter_s=hold_s)
        around, others = divmod(clusters - 1, self.tokens)
        period = max(self.arbiter_s + 2 * self.hop_s + hold_s, self.tokens * self.arbiter_s)
        return self.hop_s + (others + 1) * self.arbiter_s + around * period + 2 * self.hop_s + hold_s

    def barrier_s(self, participants: int, mode: Mode = "global") -> float:
        """From the last arrival until the release has reached all participants.

        Local: the DPUs of a cluster, a counter at each level on the path to its AGAU. Global: clusters, all counters in the DSC.
        """
        require_positive("Dsc.barrier_s", participants=participants)
        if mode not in MODES:
            raise UnknownName("barrier mode", str(mode), MODES)
        depth = tree_depth(participants, self.barrier_fan_in)
        if mode == "local":
            return depth * (2 * self.hop_cycles + self.barrier_cycles) / self.clock_hz
        self._require_entries(participants)
        return 2 * self.hop_s + depth * self.barrier_cycles / self.clock_hz

    def overhead_s(self, clusters: int) -> float:
        """O_dsc of Eq. 2: all clusters take the token in turn to enter a round, and the DSC announces that it is complete."""
        return self.rounds_s(clusters) + self.hop_s

    # energy and area

    @property
    def joules(self) -> Mapping[str, float]:
        """Joules of a message in one direction, a choice of the arbiter with its table entry, a staleness count, a barrier arrival.

        A message crosses one line on a chip; each further level is another package, at the energy of a DDR4 pin.
        """
        nm, registers = self.technology_nm, 2 * self.levels * self.message_bits
        line = line_joules(LINE_M)
        pins = (self.levels - 1) * dram_joules_per_byte("ddr4") / 8
        byte = ram_joules_per_byte("read", self.table_bytes, nm) + ram_joules_per_byte("write", self.table_bytes, nm)
        entry = self.entry_bits / 8 * byte  # read and written back
        nodes = tree_depth(self.entries, self.barrier_fan_in)
        return {
            "dsc_message": cells_joules(registers * FLIP_FLOP_UM2, nm) + self.message_bits * (TOGGLED * line + pins),
            "dsc_arbitration": cells_joules(self._arbiter_um2, nm) + entry,
            "dsc_staleness": cells_joules(self.staleness_bits * (FLIP_FLOP_UM2 + BIT_UM2), nm),
            "dsc_barrier_arrival": cells_joules(nodes * self._counter_um2, nm),
        }

    def token_events(self, acquisitions: float = 1) -> Mapping[str, float]:
        """Events of a request, a grant and a release."""
        return {"dsc_message": 3 * acquisitions, "dsc_arbitration": acquisitions}

    def barrier_events(self, participants: int) -> Mapping[str, float]:
        """Events of an arrival and a release for each participant."""
        return {"dsc_message": 2 * participants, "dsc_barrier_arrival": participants}

    def round_events(self, clusters: int, local_steps: int = 0) -> Mapping[str, float]:
        """Events of a round: all clusters take the token and receive its completion, after so many local steps each."""
        return {
            "dsc_message": 4 * clusters, "dsc_arbitration": clusters, "dsc_staleness": local_steps * clusters,
        }  # fmt: skip

    @property
    def table_bytes(self) -> float:
        return self.entries * self.entry_bits / 8

    @property
    def areas(self) -> Mapping[str, float]:
        """Square metres by component."""
        nm, ports = self.technology_nm, self.entries * 2 * self.message_bits
        counters = sum(sum(Barrier(participants, self.barrier_fan_in).widths) for participants in (self.dpus, self.entries))
        return {
            "dsc_table": sram_m2(self.table_bytes, nm),
            "dsc_staleness": cells_m2(self.entries * self.staleness_bits * (FLIP_FLOP_UM2 + BIT_UM2), nm),
            "dsc_arbiter": cells_m2(self._arbiter_um2, nm),
            "dsc_barrier": cells_m2(counters * self._counter_um2, nm),
            "dsc_ports": cells_m2(ports * FLIP_FLOP_UM2, nm),
        }

    @property
    def area_m2(self) -> float:
        return sum(self.areas.values())

    @property
    def static_w(self) -> float:
        """Leakage; the clocks of idle parts are gated."""
        return self.leakage * self.area_m2

    @property
    def busy_w(self) -> float:
        """Peak power: tokens are handed over without a pause, and all clusters count a step in every cycle."""
        joules, period_s = self.joules, self.handover_s
        tokens = self.tokens * (3 * joules["dsc_message"] + joules["dsc_arbitration"]) / period_s
        return self.static_w + tokens + self.entries * joules["dsc_staleness"] * self.clock_hz

    @property
    def _arbiter_um2(self) -> float:
        """A pending bit and a rank for each entry; a two-way comparator and the muxes of rank and number for each pair."""
        rank = max(1, Arbiter(order="priority", levels=self.priority_levels, ageing=self.ageing).top.bit_length())
        number = max(1, (self.entries - 1).bit_length())
        pairs = (self.entries - 1) * (rank * BIT_UM2 + (rank + number) * MUX_UM2)
        return self.entries * ((1 + rank) * FLIP_FLOP_UM2 + rank * BIT_UM2) + pairs

    @property
    def _counter_um2(self) -> float:
        return (self.barrier_fan_in.bit_length() + 1) * (FLIP_FLOP_UM2 + BIT_UM2)

    def _require_entries(self, clusters: int) -> None:
        require_positive("Dsc", clusters=clusters)
        if clusters > self.entries:
            raise BadInput(f"Dsc: {clusters} clusters do not fit a table of {self.entries} entries: write entries={clusters}")
