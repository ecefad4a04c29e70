"""Exchanges between DPUs through the host: gather all models, average them, send the mean back.

DIRECT (P. Kulkarni), Eq. 1, for N DPUs and messages of M bytes:

    T = 2 N (L + M / B) + Q_cont + O_sync

`transfers="serial"` is that, term by term: a transfer to or from one DPU at a time, as its single bandwidth says; in and out differ
in speed, and Eq. 1's B is their harmonic mean. `transfers="ranks_in_turn"` reads B as the bandwidth that is available: that of a
rank of 64 DPUs, whose transfers share one call, on one memory channel; still 2 N messages, rank after rank, and no broadcast.
`transfers="rank_parallel"` is what UPMEM's library does: ranks of different memory channels side by side, the mean as a broadcast;
PIM-Opt measures these.

Q_cont is derived: DPUs are done at different times (`arrivals_s`) and wait for a host that serves `threads` of them (or `channels`
ranks) at a time, first come, first served. Time counts from the first arrival, and Q_cont is what the gather takes longer than had
all come at once: one server ends at max over k of (a_k + (n - k) S) for sorted arrivals a_0, a_1, ... of service time S. The host's
own sum, which Eq. 1 has no term for, is a separate term `sum_s`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from trainyard.checks import require_flag, require_positive, require_quantity
from trainyard.construction import Positive, part
from trainyard.errors import BadInput, UnknownName
from trainyard.hardware.tables.energy import dram_joules_per_byte
from trainyard.hardware.tables.technology import between
from trainyard.ir import assumed

Transfers = Literal["serial", "ranks_in_turn", "rank_parallel"]
PICOSECONDS_PER_SECOND = 1e12
Times = Callable[["_Job", Sequence[float], str], tuple[float, list[float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostExchange:
    """Seconds of one exchange by term, the bytes over the DPUs' buses, and events for `HostLink.joules`."""

    time_s: float
    gather_s: float
    scatter_s: float
    queue_s: float
    sync_s: float
    sum_s: float
    bytes: int
    events: Mapping[str, float]
    wait_s: float = 0.0
    """Mean time of a DPU (or rank) from being done to being served."""


@part
class HostLink:
    """UPMEM's host: its measured transfers to DPUs, and its sum of the data.

    J. Gomez-Luna et al.: Benchmarking a New Paradigm: An Experimental Analysis of a Real Processing-in-Memory Architecture, 2021.

    >>> link = HostLink()
    >>> round(link.exchange(2048, 16384).time_s, 2), round(link.exchange(2048, 16384, transfers="rank_parallel").time_s, 5)
    (0.41, 0.0027)
    """

    # fmt: off
    rank_dpus: int = 64                                     # Gomez-Luna 2021, Sec. 2.1: 8 chips of 8 DPUs
    dpu_in_bytes_per_s: float = 0.33e9                      # Gomez-Luna 2021, Sec. 3.4: CPU to one DPU
    dpu_out_bytes_per_s: float = 0.12e9                     # Gomez-Luna 2021, Sec. 3.4: one DPU to CPU
    rank_in_bytes_per_s: float = 6.68e9                     # Gomez-Luna 2021, Sec. 3.4: 64 DPUs in parallel
    rank_out_bytes_per_s: float = 4.74e9                    # Gomez-Luna 2021, Sec. 3.4: 64 DPUs in parallel
    rank_broadcast_bytes_per_s: float = 16.88e9             # Gomez-Luna 2021, Sec. 3.4: one buffer to 64 DPUs
    latency_s: float = assumed(
        6e-6, "L, of one transfer call: the bandwidth of one DPU grows with the message up to about 2 KB, which take 6 us in all",
        1e-6, 20e-6)
    sync_s: float = assumed(
        20e-6, "launch of a rank and polling until it is done, ranks one after the other: about three calls", 5e-6, 100e-6)
    threads: int = assumed(1, "serial: DPUs that the host serves at a time; Eq. 1 has one", 8)
    channels: int = assumed(
        8, "rank_parallel: ranks that transfer at a time, one on each memory channel: 16 DIMMs, two on a channel", 1, 4, 32)
    memory_bytes_per_s: float = assumed(
        38.4e9, "host's main memory, which gathered data, scattered data and the sum go through: one channel of DDR4-2400 on each "
        "of two sockets, as in the server with 2556 DPUs", 19.2e9, 230.4e9)
    host_w: Positive = assumed(
        170.0, "processors while they transfer and sum: two Xeon Silver 4215 of 85 W (TDP)", 85.0, 300.0, only="energy_j")
    # fmt: on

    def __post_init__(self) -> None:
        for rank, direction in (("out", "out"), ("in", "in"), ("broadcast", "in")):
            most = self.rank_dpus * getattr(self, f"dpu_{direction}_bytes_per_s")
            if getattr(self, f"rank_{rank}_bytes_per_s") > most:
                raise BadInput(
                    f"HostLink: rank_{rank}_bytes_per_s is more than {self.rank_dpus} DPUs alone have: give at most {most:g}"
                )

    @property
    def serial_bytes_per_s(self) -> float:
        """Eq. 1's B: the harmonic mean of the two measured rates."""
        return 2 / (1 / self.dpu_in_bytes_per_s + 1 / self.dpu_out_bytes_per_s)

    def half_dpus(self, compute_s: float, size_bytes: int) -> float:
        """N_half: as many DPUs as make Eq. 1's 2 N (L + M / B) equal to `compute_s`. Efficiency is then 1 / (1 + N / N_half)."""
        return compute_s / (2 * (self.latency_s + size_bytes / self.serial_bytes_per_s))

    def ranks(self, dpus: int) -> tuple[int, ...]:
        """DPUs of each rank; ranks are filled one by one."""
        require_positive("HostLink", dpus=dpus)
        full, rest = divmod(dpus, self.rank_dpus)
        return (self.rank_dpus,) * full + ((rest,) if rest else ())

    def exchange(
        self,
        dpus: int,
        size_bytes: int,
        *,
        transfers: Transfers = "serial",
        broadcast: bool = True,
        arrivals_s: Sequence[float] | None = None,
    ) -> HostExchange:
        """All DPUs send their messages to the host, which sends the mean back. `broadcast` applies to rank-parallel transfers."""
        return _Job(self, dpus, size_bytes, transfers, broadcast, arrivals_s).exchange_by(_served)

    def average(self, models: NDArray[Any]) -> NDArray[Any]:
        """The words of all DPUs after an exchange of [dpus, words]: each row is the mean. Sums are in fp64, of integers exact.

        A mean of fixed-point words is rounded to the nearest, halves to the even one.

        >>> HostLink().average(np.array([[1, 2], [2, 4], [3, 3]], np.int32))
        array([[2, 3],
               [2, 3],
               [2, 3]], dtype=int32)
        """
        if not isinstance(models, np.ndarray) or models.ndim != 2 or not models.size or models.dtype not in (np.float32, np.int32):
            received = f"{models.dtype}{models.shape}" if isinstance(models, np.ndarray) else type(models).__name__
            raise BadInput(f"HostLink.average takes float32 or int32 words [dpus, words], got {received}")
        fixed = models.dtype == np.int32
        total = np.zeros(models.shape[1], np.int64 if fixed else np.float64)
        for model in models:  # gathered one after the other, so that the host holds one sum
            total += model
        mean = np.rint(total / len(models)) if fixed else total / len(models)
        return np.broadcast_to(mean.astype(models.dtype), models.shape)

    @property
    def joules(self) -> dict[str, float]:
        """Joules of a byte over a DPU's bus, of one over the host's memory bus, and of a second of the host."""
        byte = dram_joules_per_byte("ddr4")
        return {"host_link_byte": byte, "host_memory_byte": byte, "host_s": self.host_w}


@dataclass(slots=True)
class _Job:
    """One exchange: groups of DPUs that are served together, and the service time of each."""

    link: HostLink
    dpus: int
    size_bytes: int
    transfers: Transfers
    broadcast: bool
    arrivals_s: Sequence[float] | None

    def __post_init__(self) -> None:
        require_positive("HostLink", dpus=self.dpus)
        require_quantity("HostLink", zero=True, size_bytes=self.size_bytes)
        require_flag("HostLink", broadcast=self.broadcast)
        if self.transfers not in get_args(Transfers):
            raise UnknownName("transfers", str(self.transfers), get_args(Transfers), where="HostLink")
        self.broadcast = self.broadcast and self.transfers == "rank_parallel"
        if self.arrivals_s is not None and len(self.arrivals_s) != self.dpus:
            raise BadInput(f"HostLink: {len(self.arrivals_s)} arrivals_s for {self.dpus} DPUs: give one for each")
        if self.arrivals_s is not None:
            require_quantity("HostLink", zero=True, **{f"arrivals_s[{dpu}]": at for dpu, at in enumerate(self.arrivals_s)})

    @property
    def groups(self) -> tuple[int, ...]:
        return (1,) * self.dpus if self.transfers == "serial" else self.link.ranks(self.dpus)

    @property
    def servers(self) -> int:
        return {"serial": self.link.threads, "ranks_in_turn": 1, "rank_parallel": self.link.channels}[self.transfers]

    @property
    def arrivals(self) -> list[float]:
        """Arrival of each group after the first DPU's: a rank arrives with its last DPU."""
        if self.arrivals_s is None:
            return [0.0] * len(self.groups)
        first, times = min(self.arrivals_s), iter(self.arrivals_s)
        latest = [max(next(times) for _ in range(group)) for group in self.groups]
        return [at - first for at in latest]

    def bytes_per_s(self, direction: str, group: int) -> float:
        """The rate of a group of DPUs: measured for one and for a full rank, interpolated on logarithmic axes."""
        link = self.link
        one_dpu = link.dpu_out_bytes_per_s if direction == "gather" else link.dpu_in_bytes_per_s
        if self.transfers == "serial" or link.rank_dpus == 1:
            return one_dpu
        rank_in = link.rank_broadcast_bytes_per_s if self.broadcast else link.rank_in_bytes_per_s
        return between([(1, one_dpu), (link.rank_dpus, link.rank_out_bytes_per_s if direction == "gather" else rank_in)], group)

    def through_memory(self, direction: str) -> bool:
        """Whether a transfer passes the host's memory: the one buffer of a broadcast stays in the cache."""
        return direction == "gather" or not self.broadcast

    def service_s(self, direction: str) -> list[float]:
        """L + M / B of each group."""
        transfer_s = {group: group * self.size_bytes / self.bytes_per_s(direction, group) for group in set(self.groups)}
        return [self.link.latency_s + transfer_s[group] for group in self.groups]

    def exchange_by(self, times: Times) -> HostExchange:
        at_once = [0.0] * len(self.groups)
        gather_s, waits = times(self, at_once, "gather")
        scatter_s, _ = times(self, at_once, "scatter")
        gathered_s, waits = times(self, self.arrivals, "gather") if any(self.arrivals) else (gather_s, waits)
        queue_s = gathered_s - gather_s
        link = self.link
        moved = 2 * self.dpus * self.size_bytes
        summed = (self.dpus + 1) * self.size_bytes  # each model is read, the mean is written
        sync_s, sum_s = len(link.ranks(self.dpus)) * link.sync_s, summed / link.memory_bytes_per_s
        time_s = gather_s + scatter_s + queue_s + sync_s + sum_s
        sent = self.dpus * self.size_bytes if self.through_memory("scatter") else self.size_bytes
        memory = self.dpus * self.size_bytes + summed + sent
        events = {"host_link_byte": float(moved), "host_memory_byte": float(memory), "host_s": time_s}
        return HostExchange(
            time_s=time_s, gather_s=gather_s, scatter_s=scatter_s, queue_s=queue_s, sync_s=sync_s, sum_s=sum_s,
            bytes=moved, events=events, wait_s=sum(waits) / len(waits),
        )  # fmt: skip


def _served(job: _Job, arrivals: Sequence[float], direction: str) -> tuple[float, list[float]]:
    """The time by threads or channels, or by the host's memory, whichever is longer; and the waits."""
    last, waits = _serve(arrivals, job.service_s(direction), job.servers)
    if job.through_memory(direction):
        through = [group * job.size_bytes / job.link.memory_bytes_per_s for group in job.groups]
        last = max(last, job.link.latency_s + _serve(arrivals, through, 1)[0])
    return last, waits


def _serve(arrivals: Sequence[float], service: Sequence[float], servers: int) -> tuple[float, list[float]]:
    """First come, first served: the end of the last service, and the wait of each.

    >>> _serve([0.0, 1.0, 9.0], [4.0, 4.0, 4.0], 1)  # the second waits for the first, the third does not wait
    (13.0, [0.0, 3.0, 0.0])
    """
    free = [0.0] * min(servers, len(arrivals))
    waits, last = [0.0] * len(arrivals), 0.0
    for group in sorted(range(len(arrivals)), key=lambda group: arrivals[group]):
        start = max(arrivals[group], heapq.heappop(free))
        waits[group] = start - arrivals[group]
        last = max(last, start + service[group])
        heapq.heappush(free, start + service[group])
    return last, waits
