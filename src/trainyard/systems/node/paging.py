"""Paged tensors in a node's plan: copies out and back as tasks concurrent with compute, and all memory of a step.

`mapping.overlay.policy` decides which tensors leave, by when, from when they are fetched, and which are recomputed; here each copy
is divided among the device's backing memories by the placement (`hardware.memory_node.address_space`) and handed to the wires.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainyard.caches import per_step
from trainyard.errors import BadInput
from trainyard.hardware.formats.zero_compression import compressed_bytes
from trainyard.hardware.memory_node.address_space import split
from trainyard.hardware.tables import energy
from trainyard.ir import DTYPE_BYTES, Device, DeviceCost, Step, Work
from trainyard.ir.plan import picoseconds
from trainyard.mapping.overlay.policy import (
    NEVER,
    Choice,
    Problem,
    completed,
    decided_bytes,
    needs,
    orders,
    used_bytes,
)
from trainyard.mapping.overlay.problem import Moved, PagedStep, page_step
from trainyard.mapping.overlay.search import as_needed
from trainyard.mapping.overlay.stress import offload_all
from trainyard.masks.dma import densities
from trainyard.systems.node.wires import LINK_JOULES_PER_BYTE
from trainyard.systems.single import MEMORY
from trainyard.systems.work_rows import capacity_of, in_device_precision
from trainyard.units import show

if TYPE_CHECKING:
    from trainyard.systems.node.plan import Planner
    from trainyard.systems.node.systems import Node

BACKING = {"memory": "remote memory", "socket": "host memory", "device": "remote memory", "switch": "remote memory"}
"""The name of a backing memory in results, by the kind of place."""


class Paging:
    """The copies of one plan, position by position: call `before` and `after` each Work, and `close` at the end."""

    def __init__(self, planner: Planner, paged_step: PagedStep, choice: Choice, crossing: Sequence[int]) -> None:
        self.planner, self.paged_step, self.choice = planner, paged_step, choice
        self.problem: Problem = paged_step.problem
        plan = planner.built
        copies = range(planner.simulated)
        moving = any(decision == "send" for decision in choice.decisions)
        self.out_streams = [plan.stream(f"copy out {i}") for i in copies] if moving else []
        self.in_streams = [plan.stream(f"copy in {i}") for i in copies] if moving else []
        self.needed = needs(self.problem, choice.decisions, choice.recompute_at)
        out_order, self.in_order, recompute_order = orders(self.problem, choice)
        self.leaving, self.due, self.recomputed_at, self.users = (dict[int, list[int]]() for _ in range(4))
        for index in out_order:
            self.leaving.setdefault(self.problem.saved[index].last_forward, []).append(index)
            self.due.setdefault(choice.leave_by[index] or 0, []).append(index)
        for index in recompute_order:
            self.recomputed_at.setdefault(choice.recompute_at[index] or 0, []).append(index)
        for index in self.in_order:
            self.users.setdefault(self.needed.first[index], []).append(index)
        self.arriving = 0
        self.gates: dict[int, list[int]] = {}
        self.fetched_at = {choice.fetch_at[index] for index in self.in_order}
        self.out: list[dict[int, int]] = [{} for _ in copies]
        self.back: list[dict[int, int]] = [{} for _ in copies]
        self.recomputed: list[dict[int, tuple[int, int]]] = [{} for _ in copies]
        self.stores = planner.wires.stores[planner.wires.devices[0]]
        self.level = BACKING[self.stores[0].kind] if moving else ""
        self.joules = energy.dram_joules_per_byte("ddr4")  # memory-nodes and hosts are built of DDR4 DIMMs (Table IV)
        self.crossing = crossing
        self.placed: dict[tuple[int, int], tuple[int, ...]] = {}

    def before(self, position: int) -> None:
        """Adds the gate of a position, the fetches that may start with it, and recomputations right before it."""
        due = self.due.get(position, ())
        if due or position in self.fetched_at:
            self.gates[position] = [
                self.planner.built.task(stream, 0, after=sorted(self.out[copy][index] for index in due))
                for copy, stream in enumerate(self.planner.streams)
            ]
        while self.arriving < len(self.in_order):
            index = self.in_order[self.arriving]
            if (self.choice.fetch_at[index] or 0) > position:
                break
            self._copy(index, back=True)
            self.arriving += 1
        for index in self.recomputed_at.get(position, ()):
            self._recompute(index)

    def awaited(self, position: int, copy: int) -> list[int]:
        """Fetches and recomputations that the Work of a position waits for."""
        recomputed = [self.recomputed[copy][index][1] for index in self.recomputed_at.get(position, ())]
        return recomputed + [self.back[copy][index] for index in self.users.get(position, ())]

    def after(self, position: int) -> None:
        for index in self.leaving.get(position, ()):
            self._copy(index, back=False)

    def _sizes(self, index: int, device: str) -> tuple[int, ...]:
        """Bytes of a copy on the wires, by backing memory."""
        node, key = self.planner.node, (self.crossing[index], len(self.planner.wires.stores[device]))
        if key not in self.placed:
            self.placed[key] = split(key[0], node.placement, key[1], node.page_bytes)
        return self.placed[key]

    def _copy(self, index: int, *, back: bool) -> None:
        planner, tensor = self.planner, self.problem.saved[index]
        for copy, device in enumerate(planner.wires.devices):
            sizes, stores = self._sizes(index, device), planner.wires.stores[device]
            moved = sum(sizes) * planner.counted
            crossed = sum(size * len(store.lanes[0]) for size, store in zip(sizes, stores, strict=True)) * planner.counted
            row = planner.built.booking.row(
                "fetch" if back else "page out",
                layer=self.paged_step.layers[index],
                phase="copy",
                resource=f"copy {'in' if back else 'out'} {copy}",
                kind="copy",
                bound="link",
                energy={"link": crossed * LINK_JOULES_PER_BYTE, self.level: moved * self.joules},
                traffic={(self.level, tensor.name, "read" if back else "write"): moved},
            )
            stream = (self.in_streams if back else self.out_streams)[copy]
            if back:
                waits = [self.gates[self.choice.fetch_at[index] or 0][copy]]
                waits += [self.out[copy][index]] if index in self.out[copy] else []
            else:
                waits = [self._task(tensor.last_forward, copy)]
            task = planner.wires.copy(
                device, sizes, back=back, stream=stream, after=sorted(waits), tag=planner.built.booking.entry([row])
            )
            (self.back if back else self.out)[copy][index] = task

    def _first(self, position: int, copy: int) -> int:
        op = self.planner.works[position].ops[0]
        return self.planner.begun.get(op, self.planner.tasks[copy][op])

    def _task(self, position: int, copy: int) -> int:
        return self.planner.tasks[copy][self.planner.works[position].ops[0]]

    def _recompute(self, index: int) -> None:
        planner = self.planner
        for copy, stream in enumerate(planner.streams):
            waits = sorted({self.back[copy][source] for source in self.problem.saved[index].sources if source in self.back[copy]})
            tasks = []
            for op in self.paged_step.chains[index]:
                work = Work(ops=(op,))
                cost = planner.cost(work)
                duration = picoseconds(cost.cycles, planner.node.device.clock_hz)
                tasks.append(planner.built.task(stream, duration, after=waits, tag=planner.book_work(work, cost, copy)))
            self.recomputed[copy][index] = tasks[0], tasks[-1]

    def close(self) -> None:
        """Books the memory of every tensor: device memory from its first to its last use, except while it is paged out."""
        planner, plan = self.planner, self.planner.built
        capacity = _capacity_bytes(planner.node)
        paged = set(self.paged_step.tensors)
        wrapped = sum(
            tensor.bytes
            for tensor, what in zip(self.problem.saved, self.choice.decisions, strict=True)
            if tensor.wraps and what == "send"
        )
        for copy, tasks in enumerate(planner.tasks):
            numbered = f" {copy}" if planner.simulated > 1 else ""
            pool = plan.pool(f"{MEMORY}{numbered}", capacity, resident_bytes=planner.held.resident_bytes - wrapped)
            there = [(users, size) for users, size, base in self.paged_step.transients if base not in paged and users[0] in tasks]
            plan.allocate(
                [planner.begun.get(users[0], tasks[users[0]]) for users, _ in there],
                [max(tasks.get(user, 0) for user in users) for users, _ in there],
                pool,
                [size for _, size in there],
            )
            if self.problem.saved:
                self._book_saved(copy, pool)
            if self.out_streams:
                self._book_backing(copy, f"{self.level}{numbered}")

    def _book_saved(self, copy: int, pool: int) -> None:
        plan = self.planner.built
        stays: list[tuple[int, int, int]] = []  # first task, last task, bytes
        for index, (tensor, decision) in enumerate(zip(self.problem.saved, self.choice.decisions, strict=True)):
            if decision == "send" and index in self.back[copy]:
                gone = self.out[copy].get(index, self._task(tensor.last_forward, copy))
                here = self.back[copy][index]
                if self.paged_step.resident[index]:  # its memory is booked as resident
                    plan.give(gone, pool, tensor.bytes)
                    plan.take(here, pool, tensor.bytes)
                    continue
                stays.append((self._first(tensor.produced, copy), gone, tensor.bytes))
                stays.append((here, self._task(self.needed.last[index], copy), tensor.bytes))
            elif not self.paged_step.resident[index]:
                first, last = self._first(tensor.produced, copy), self._task(tensor.last_forward, copy)
                if decision == "recompute" and index in self.recomputed[copy]:
                    stays.append((self.recomputed[copy][index][0], self._task(self.needed.last[index], copy), tensor.bytes))
                elif self.needed.last[index] != NEVER:
                    last = max(last, self._task(self.needed.last[index], copy))
                stays.append((first, last, tensor.bytes))
        if stays:
            first_tasks, last_tasks, sizes = zip(*stays, strict=True)
            plan.allocate(first_tasks, last_tasks, pool, sizes)

    def _book_backing(self, copy: int, name: str) -> None:
        """Books the backing memory, from the start of a copy out to the end of the copy back."""
        planner = self.planner
        stores = planner.wires.stores[planner.wires.devices[copy]]
        sizes = [store.capacity_bytes for store in stores]
        capacity = None if None in sizes else sum(size or 0 for size in sizes)
        saved = self.problem.saved  # weights and state that wait there for the next step are resident
        waiting = sum(saved[index].bytes for index in self.back[copy] if saved[index].wraps)
        pool = planner.built.pool(name, capacity, resident_bytes=waiting)
        stays = [
            (out, self.back[copy][index], saved[index].bytes) for index, out in self.out[copy].items() if not saved[index].wraps
        ]
        if stays:
            first, last, taken = zip(*stays, strict=True)
            planner.built.allocate(first, last, pool, taken)


def paging(planner: Planner, costs: Sequence[DeviceCost | None]) -> Paging:
    """The copies of a plan, by the node's overlay policy."""
    node, clock = planner.node, planner.node.device.clock_hz
    durations = [
        cost.cycles / clock if cost is not None else planner.sent(work).time_s if planner.blocks(work) else 0.0
        for work, cost in zip(planner.works, costs, strict=True)
    ]
    stores = planner.wires.stores[planner.wires.devices[0]]
    bare = [device for device, own in planner.wires.stores.items() if not own]
    if node.overlay != "off" and bare:
        raise BadInput(f"{node.topology.name or 'this node'}: {bare[0]} has no memory to page into: write overlay='off'")
    rates = [store.bytes_per_s for store in stores] or [1.0]
    ratio = node.crossing_ratio * (1.0 if node.compression == "masks" else node.compression)
    rate = (sum(rates) if node.placement == "bw_aware" else rates[0]) * ratio
    if node.overlay == "as_needed":
        again = planner.recompute_s if node.recompute == "cheap" else None
        paged_step = page_step(
            planner.held, planner.works, durations, again, out_bytes_per_s=rate, in_bytes_per_s=rate,
            latency_s=stores[0].latency_s, moved=node.moved,
        )  # fmt: skip
        choice = _within(paged_step.problem, node)
        unpaged_bytes = _unpaged_bytes(paged_step)
    else:
        cheap = node.recompute == "cheap"
        paged_step, choice, unpaged_bytes = _fixed_choice(
            planner.step, node.device, node.overlay, node.moved, node.depth if cheap else 0, node.window
        )
    if "send" in choice.decisions or "recompute" in choice.decisions:
        planner.built.booking.notes.append(_note(paged_step, choice, unpaged_bytes))
    return Paging(planner, paged_step, choice, _crossing(planner, paged_step))


def _note(paged_step: PagedStep, choice: Choice, unpaged_bytes: int) -> str:
    """Sizes in binary units, as the peaks of memory in a report."""
    sizes = {decision: decided_bytes(paged_step.problem, choice, decision) for decision in ("keep", "send", "recompute")}
    away, again, kept = (show(sizes[decision], "B", binary=True) for decision in ("send", "recompute", "keep"))
    after, unpaged = (show(size, "B", binary=True) for size in (max(used_bytes(paged_step.problem, choice)), unpaged_bytes))
    return (
        f"paging, per device: {away} sent and fetched, {again} made again, {kept} kept; device memory holds at most {after} "
        f"whatever the timing (its peak memory is what this run held), without paging {unpaged}"
    )


@per_step
def _fixed_choice(
    step: Step, device: Device, overlay: str, moved: Moved, depth: int, window: int | None
) -> tuple[PagedStep, Choice, int]:
    """The choice with overlay `all` or `off`: it does not depend on times or links, so that designs share it."""
    works, held = device.works(step), in_device_precision(step, device)
    off, nothing = overlay == "off", [0.0] * len(works)
    cheap = (lambda ops: 0.0) if depth and not off else None
    paged_step = page_step(held, works, nothing, cheap, out_bytes_per_s=1.0, in_bytes_per_s=1.0, moved="maps" if off else moved)
    if off:
        return paged_step, completed(paged_step.problem, ["keep"] * len(paged_step.problem.saved)), 0
    saved = paged_step.problem.saved  # a tensor that the very next Work needs would return before it had left
    stay = [index for index, tensor in enumerate(saved) if tensor.first_backward == tensor.last_forward + 1 and not tensor.wraps]
    return (
        paged_step,
        offload_all(paged_step.problem, window=window, depth=depth or None, keep=stay),
        _unpaged_bytes(paged_step),
    )


def _unpaged_bytes(paged_step: PagedStep) -> int:
    """The peak of device memory without paging."""
    return max(used_bytes(paged_step.problem, completed(paged_step.problem, ["keep"] * len(paged_step.problem.saved))))


def _capacity_bytes(node: Node) -> int | None:
    """The capacity of a device's memory: the node's field, or else that of the device."""
    return capacity_of(node.device) if node.capacity_bytes is None else node.capacity_bytes


def _capacity(node: Node) -> int:
    budget = _capacity_bytes(node)
    if budget is None:
        raise BadInput("overlay='as_needed' needs to know what fits: give capacity='16 GB', or a device with dram_capacity")
    return budget


def _within(problem: Problem, node: Node) -> Choice:
    budget_bytes = _capacity(node)
    try:
        return as_needed(problem, budget_bytes)
    except BadInput as error:
        more = "" if node.moved == "all" else ", or moved=all"
        raise BadInput(f"{error}: give a larger capacity, a smaller batch{more}") from None


def _crossing(planner: Planner, paged_step: PagedStep) -> list[int]:
    """Bytes of each saved tensor on the wires: uncompressed, by a stated ratio, or without the zeros that masks record."""
    ratio, saved = planner.node.compression, paged_step.problem.saved
    if ratio != "masks":
        return [math.ceil(tensor.bytes / (ratio * planner.node.crossing_ratio)) for tensor in saved]
    if planner.masks is None:
        raise BadInput("compression='masks' needs masks: record some, or write compression=2.6 for a ratio")
    density = {base: share for (_, base, _), share in densities(planner.step, planner.masks).items() if isinstance(share, float)}
    sizes = []
    for base, tensor in zip(paged_step.tensors, saved, strict=True):
        spec, share = planner.held.tensors[base], density.get(base)
        width = DTYPE_BYTES[spec.dtype]
        sizes.append(tensor.bytes if share is None else compressed_bytes(spec.elements, round(spec.elements * share), width))
    return sizes
