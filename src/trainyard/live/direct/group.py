"""The `torch.distributed` backend `direct`: gloo does every collective, and the simulated machine prices it.

torch lets a Python class be a ProcessGroup. C++ callers reach its allreduce, broadcast, allgather, reduce_scatter, barrier, send,
recv and the coalesced ones; DDP's reducer needs three of these: allgather and broadcast when it is built (the parameters' shapes
are compared, then rank 0's values sent to all), and one allreduce for each bucket of gradients, as a future. The functions of
`torch.distributed` look a method up in Python and so reach all of them. torch's C++ functional collectives on whole tensors reach
none; they stop with torch's error that no backend is registered, rather than run without a price.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from trainyard.checks import require_quantity
from trainyard.errors import BadInput
from trainyard.ir import Step
from trainyard.live.direct.collective_log import CollectiveLog, Report
from trainyard.live.direct.heartbeat import Call, Heartbeat, WorkerLost
from trainyard.live.direct.pricing import Machine, Price, machine
from trainyard.live.direct.work import DirectWork

REPORT_S = 30.0  # assumed: timeout for the reports of other ranks where failure_timeout_s is None
LEAVE_S = 2.0  # assumed: time enough for sockets of this machine to be closed

# fmt: off
# method of the group, kind, gloo's method, place of the argument that is priced, or -1 for none
METHODS = (
    ("allreduce",                       "all_reduce",     "allreduce",            0),
    ("allreduce_coalesced",             "all_reduce",     "allreduce_coalesced",  0),
    ("broadcast",                       "broadcast",      "broadcast",            0),
    ("reduce",                          "reduce",         "reduce",               0),
    ("allgather",                       "all_gather",     "allgather",            1),
    ("allgather_coalesced",             "all_gather",     "allgather_coalesced",  1),
    ("all_gather_single",               "all_gather",     "_allgather_base",      1),
    ("_allgather_base",                 "all_gather",     "_allgather_base",      1),  # its name before torch 2.13
    ("gather",                          "gather",         "gather",               1),
    ("scatter",                         "scatter",        "scatter",              0),
    ("reduce_scatter",                  "reduce_scatter", "reduce_scatter",       1),
    ("reduce_scatter_single",           "reduce_scatter", "_reduce_scatter_base", 1),
    ("_reduce_scatter_base",            "reduce_scatter", "_reduce_scatter_base", 1),
    ("alltoall",                        "all_to_all",     "alltoall",             1),
    ("all_to_all_single",               "all_to_all",     "alltoall_base",        1),
    ("alltoall_base",                   "all_to_all",     "alltoall_base",        1),
    ("send",                            "send",           "send",                 0),
    ("recv",                            "recv",           "recv",                 0),
    ("recv_anysource",                  "recv",           "recv_anysource",       0),
    ("barrier",                         "barrier",        "barrier",             -1),
)
# The same for lists of tensors, each pair a call of gloo's, priced as one.
LISTS = (
    ("all_gather_single_coalesced",     "all_gather",     "_allgather_base"),
    ("allgather_into_tensor_coalesced", "all_gather",     "_allgather_base"),
    ("reduce_scatter_single_coalesced", "reduce_scatter", "_reduce_scatter_base"),
    ("reduce_scatter_tensor_coalesced", "reduce_scatter", "_reduce_scatter_base"),
)
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`pg_options` of `init_process_group("direct")`; also what `register` takes as defaults.

    `machine` prices: "direct", "pim-opt", a system of `trainyard.systems.pim.systems` like `ty.machine("direct(dpus=256)")`, or an
    object with `price(kind, size_bytes, world_size)`. All survivors of a lost worker have their error within `failure_timeout_s`;
    None leaves that to gloo. `report` prints the merged report on rank 0 when the group is destroyed. `local` marks a group inside
    one cluster (`clusters` makes them), whose all_reduce is priced as the cluster's own.
    """

    machine: Machine | Any = "direct"
    failure_timeout_s: float | None = 30.0
    report: bool = False
    local: bool = False

    def __post_init__(self) -> None:
        if self.failure_timeout_s is not None:
            require_quantity("Options", failure_timeout_s=self.failure_timeout_s)


class Session:
    """What all groups of a process share: the log of collectives, the heartbeat, a connection to the Store."""

    def __init__(self, options: Options, store: Store, rank: int, size: int) -> None:
        self.options, self.rank, self.size = options, rank, size
        self.processes_per_cluster = 1
        self.store = PrefixStore("direct", store)
        self.log = CollectiveLog(machine(options.machine), rank)
        self.heartbeat: Heartbeat | None = None
        self._merged = 0
        atexit.register(self._exit)

    def watch(self) -> None:
        if self.options.failure_timeout_s is not None and self.size > 1:
            connection = self.store.clone()  # type: ignore[attr-defined]  # every Store has it; torch's stubs do not
            self.heartbeat = Heartbeat(connection, self.rank, self.size, self.options.failure_timeout_s)

    @property
    def clusters(self) -> int:
        return max(1, self.size // self.processes_per_cluster)

    def report(self) -> Report:
        return self.log.report(self.clusters)

    def charge_reduction(self, size_bytes: int) -> None:
        """Logs a reduction inside every cluster, for which no process communicates."""
        self.log.add(
            "local_all_reduce", size_bytes, 0.0, self.log.price("local_all_reduce", size_bytes, self.clusters), 1 / self.size
        )

    def charge_step(self, step: Step) -> None:
        """Logs a local training step of this rank's cluster on the simulated machine."""
        self.log.add("compute", 0, 0.0, self.log.price_step(step), 1 / self.processes_per_cluster)

    def merged(self) -> Report | None:
        """All ranks' reports as one, on rank 0; all ranks must call it. It goes over the Store, so it is not itself priced."""
        self._merged += 1
        keys = [f"report/{self._merged}/{rank}" for rank in range(self.size)]
        self.store.set(keys[self.rank], json.dumps(self.report().to_dict()))
        if self.rank:
            return None
        try:
            self.store.wait(keys, timedelta(seconds=self.options.failure_timeout_s or REPORT_S))
        except RuntimeError:
            missing = [rank for rank, key in enumerate(keys) if not self.store.check([key])]
            raise WorkerLost(f"no report came from ranks {missing}") from None
        return Report.merge(Report.from_dict(json.loads(self.store.get(key))) for key in keys)

    def _print(self) -> None:
        """Prints the merged report on rank 0; after a loss, each rank prints its own."""
        try:
            report = self.report() if self.heartbeat and self.heartbeat.lost else self.merged()
        except WorkerLost as error:
            print(error)
            report = self.report()
        if report:
            print(report, flush=True)

    def close(self) -> None:
        if self.options.report:
            self._print()
        if self.leave():
            atexit.unregister(self._exit)

    def leave(self) -> bool:
        """Announces the departure. After a loss, waits a moment for gloo's threads; returns whether all have ended."""
        if self.heartbeat is None:
            return True
        self.heartbeat.stop()
        until = time.monotonic() + LEAVE_S
        while self.heartbeat.lost and not self.heartbeat.drop_connections():
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    def _exit(self) -> None:
        """At interpreter exit: a gloo thread that still waits for a stopped process would call into Python later, and abort."""
        if not self.leave():
            print(
                f"rank {self.rank}: gloo still waits for a lost worker; this process ends without it", file=sys.stderr, flush=True
            )
            sys.stdout.flush()
            os._exit(1)


class DirectGroup(dist.ProcessGroup):
    """gloo's collectives, each logged with its real time and its price."""

    def __init__(self, gloo: dist.ProcessGroupGloo, session: Session, ranks: Iterable[int], *, local: bool, first: bool) -> None:
        super().__init__(gloo.rank(), gloo.size())  # type: ignore[call-arg]  # the one of torch's two that can be subclassed
        self.session, self.local, self.first = session, local, first
        self._gloo: dist.ProcessGroupGloo | None = gloo
        self._ranks = frozenset(ranks)
        self._under_way = 0
        self._kept = False
        self._lock = threading.Lock()
        if session.heartbeat:
            session.heartbeat.on_lost.append(self._drop_connection)

    def _start(self, kind: str, priced: object, begin: Callable[[Any], list[dist.Work]]) -> DirectWork:
        size = size_of(priced)
        if self.local and kind == "all_reduce":
            kind = "local_all_reduce"
        call = Call(kind=kind, size_bytes=size, ranks=self._ranks)
        heartbeat = self.session.heartbeat
        if heartbeat:
            heartbeat.check(call)
        price, share = self._price(kind, size)
        with self._lock:
            gloo = self._gloo
            if gloo is None:
                raise BadInput(f"{call}: this process group is destroyed")
            self._under_way += 1
        work = DirectWork(call, heartbeat, lambda real_s: self.session.log.add(kind, size, real_s, price, share))
        try:
            inner = begin(gloo)
        except BaseException:
            self._released()
            raise
        with self._lock:
            self._under_way += len(inner) - 1
        work.follow(inner, self._released)
        return work

    def _price(self, kind: str, size: int) -> tuple[Price, float]:
        """The price, and this rank's share of its joules. A send's joules are the sender's; the receiver's clock runs too."""
        session, processes = self.session, self.size()
        if kind in ("send", "recv"):
            return session.log.price("send", size, max(2, session.clusters)), float(kind == "send")
        if kind == "local_all_reduce":
            return session.log.price(kind, size, session.clusters), 1 / session.size
        clusters = processes if self.local else max(1, processes // session.processes_per_cluster)
        return session.log.price(kind, size, clusters), 1 / processes

    def _released(self) -> None:
        with self._lock:
            self._under_way -= 1

    def _drop_connection(self) -> bool:
        """A worker is lost: close gloo's sockets, which ends what others wait for; True when that is done.

        gloo's destructor waits for its threads, and one that reads from a stopped process never returns; so while a call is under
        way gloo is kept alive beyond Python's end, and the process can exit.
        """
        with self._lock:
            gloo = self._gloo
            if gloo is None:
                return True
            if self._under_way:
                if not self._kept:
                    ctypes.pythonapi.Py_IncRef(ctypes.py_object(gloo))
                    self._kept = True
                return False
            if self._kept:
                ctypes.pythonapi.Py_DecRef(ctypes.py_object(gloo))
            self._gloo = None
        return True

    def shutdown(self) -> None:
        if self.first:
            self.session.close()
        with self._lock:
            if not self._under_way:
                self._gloo = None

    def getBackendName(self) -> str:
        return "direct"

    name = _get_backend_name = getBackendName

    @property
    def _device_types(self) -> list[torch.device]:
        """None while torch makes the group: torch 2.15 would attach its flight recorder, which knows groups of C++ alone."""
        return [torch.device("cpu")] if self in dist.distributed_c10d._world.pg_map else []

    def _get_backend(self, device: torch.device) -> Any:
        return self._gloo


def size_of(tensors: object) -> int:
    """Bytes of a tensor, or of lists of them."""
    if isinstance(tensors, torch.Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(map(size_of, tensors)) if isinstance(tensors, list | tuple) else 0


def _method(kind: str, gloo_method: str, priced_argument: int) -> Callable[..., DirectWork]:
    def method(self: DirectGroup, *arguments: Any, **options: Any) -> DirectWork:
        priced = arguments[priced_argument] if priced_argument >= 0 else None
        return self._start(kind, priced, lambda gloo: [getattr(gloo, gloo_method)(*arguments, **options)])

    return method


def _list_method(kind: str, gloo_method: str) -> Callable[..., DirectWork]:
    def method(self: DirectGroup, outputs: list[torch.Tensor], inputs: list[torch.Tensor], *options: Any) -> DirectWork:
        pairs = list(zip(outputs, inputs, strict=True))
        return self._start(kind, inputs, lambda gloo: [getattr(gloo, gloo_method)(*pair, *options) for pair in pairs])

    return method


for _name, _kind, _gloo_method, _place in METHODS:
    setattr(DirectGroup, _name, _method(_kind, _gloo_method, _place))
for _name, _kind, _gloo_method in LISTS:
    setattr(DirectGroup, _name, _list_method(_kind, _gloo_method))


def register(options: Options | None = None) -> None:
    """Make `direct` a backend of `torch.distributed`, with these options where `init_process_group` is given none."""
    defaults = options or Options()

    def create(torch_options: Any, options_of_call: Options | None) -> DirectGroup:
        chosen = options_of_call or defaults
        store, rank, size = torch_options.store, torch_options.group_rank, torch_options.group_size
        world = dist.group.WORLD
        ranks = list(torch_options.global_ranks_in_group) or range(size)
        first = not isinstance(world, DirectGroup)
        if isinstance(world, DirectGroup):
            session = world.session
        else:
            session = Session(chosen, store, rank, size)
            ranks = range(size)
        gloo = dist.ProcessGroupGloo(store, rank, size, timeout=torch_options.timeout)
        if session.heartbeat is None:
            session.watch()
        return DirectGroup(gloo, session, ranks, local=options_of_call is not None and options_of_call.local, first=first)

    dist.Backend.register_backend("direct", create, extended_api=True, devices=["cpu"])


def session() -> Session:
    """The session of the default group."""
    world = dist.group.WORLD
    if not isinstance(world, DirectGroup):
        raise BadInput("the default process group is not `direct`: begin with torch.distributed.init_process_group('direct')")
    return world.session


def report(*, merged: bool = False) -> Report | None:
    """This rank's collectives so far; `merged`, called by all ranks: those of all, on rank 0, and None on the others."""
    return session().merged() if merged else session().report()


def charge_step(step: Step) -> None:
    """Note that this rank's cluster did one local training step, at the price of `step` (from `ty.capture`) on the machine."""
    session().charge_step(step)
