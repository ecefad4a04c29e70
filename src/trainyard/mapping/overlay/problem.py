"""A step's feature maps as an overlay problem: what backward needs, when, and from what it can be recomputed.

A tensor is saved when forward produces it and backward reads it; views share the memory of their base. It is cheap to recompute
when no product wrote it (element-wise ops, normalisation, pooling, copies; Kwon and Rhu, Sec. IV, footnote 4) and its inputs are
saved or resident, directly or through tensors that are themselves cheap: those are in the list too, though backward does not read
them. Random draws are not recomputed: a dropout mask is saved like any tensor, and its product recomputed from it.

Results of one op are recomputed together, so its larger results are one entry. Small side results (the statistics of a
normalisation) stay in memory: they come along, or are not worth a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from trainyard.errors import BadInput
from trainyard.ir import Collective, Copy, Op, Role, Step, Update, Work
from trainyard.mapping.overlay.policy import NEVER, Problem, Saved

Moved = Literal["maps", "weights", "state", "all"]
ROLES: Mapping[Moved, tuple[Role, ...]] = {
    "maps": (),
    "weights": (Role.PARAMETER,),
    "state": (Role.STATE,),
    "all": (Role.PARAMETER, Role.STATE),
}
RecomputeTime = Callable[[tuple[int, ...]], float]
"""Seconds in which the device recomputes these ops."""
RANDOM = frozenset({"bernoulli", "rand", "randn", "randint", "normal", "uniform", "dropout", "native_dropout", "multinomial"})
SMALLEST_MOVED = 65_536
"""Bytes of a weight or a state; assumed: below that a copy is mostly latency."""
LONG = 32
"""A weight is offloaded for at least 1/LONG of the step; assumed: recurrent weights are used more often than that."""
SIDE_RESULT = 64
"""A result smaller than its op's largest by this factor is a side result; assumed: mean and deviation of 64 or more elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedStep:
    """An overlay problem and the step's tensors behind it. All tuples but `transients` are indexed as `problem.saved`."""

    problem: Problem
    tensors: tuple[int, ...]
    """The tensor's number in the step; of several the largest."""
    tensor_groups: tuple[tuple[int, ...], ...]
    """All tensors of the entry."""
    layers: tuple[str, ...]
    chains: tuple[tuple[int, ...], ...]
    """The ops that recompute it, in order; none where it cannot be recomputed."""
    resident: tuple[bool, ...]
    """A stretch between two uses of a weight or a state."""
    transients: tuple[tuple[tuple[int, ...], int, int], ...]
    """(users, bytes, tensor) of all other tensors that the step produces."""

    @property
    def peaks(self) -> tuple[int, int]:
        """Peak bytes with everything kept, and with all offloaded or recomputed that can be."""
        from trainyard.mapping.overlay.search import ladder

        budgets = ladder(self.problem)
        return budgets.most, budgets.least


def page_step(
    step: Step,
    works: Sequence[Work],
    durations_s: Sequence[float],
    recompute_s: RecomputeTime | None = None,
    *,
    out_bytes_per_s: float,
    in_bytes_per_s: float,
    latency_s: float = 0.0,
    duplex: bool = True,
    moved: Moved = "maps",
    products: bool = False,
) -> PagedStep:
    """The overlay's view of a step whose positions are `works`.

    `recompute_s` gives the time of recomputation (None: nothing is recomputed); with `products` matrix products are recomputed,
    too. `moved` says whether weights and optimizer state are offloaded between their uses as feature maps are.
    """
    if moved not in ROLES:
        raise BadInput(f"moved must be one of {', '.join(ROLES)}, got {moved!r}")
    if len(works) != len(durations_s):
        raise BadInput(f"an overlay problem needs a duration for each work: {len(works)} works, {len(durations_s)} durations")
    reader = _Reader(step, works, moved)
    entries = reader.entries(recompute_s, products)
    other_bytes = [step.resident_bytes] * len(works)
    stretches: list[_Entry] = []
    for base in reader.moved:
        stretches += reader.stretches(base, len(entries) + len(stretches), other_bytes)
    taken = {base for entry in entries for base in entry.bases}
    transients = tuple((users, step.tensors[base].bytes, base) for base, users in reader.users.items() if base not in taken)
    for users, size, _ in transients:
        at = [reader.position[op] for op in users]
        for position in range(min(at), max(at) + 1):
            other_bytes[position] += size
    all_entries = [*entries, *stretches]
    return PagedStep(
        problem=Problem(
            durations_s=tuple(durations_s),
            other_bytes=tuple(other_bytes),
            saved=tuple(entry.saved for entry in all_entries),
            out_bytes_per_s=out_bytes_per_s,
            in_bytes_per_s=in_bytes_per_s,
            latency_s=latency_s,
            duplex=duplex,
            labels=tuple(_label(step.ops[work.ops[0]]) for work in works),
        ),
        tensors=tuple(max(entry.bases, key=lambda base: step.tensors[base].bytes) for entry in all_entries),
        tensor_groups=tuple(entry.bases for entry in all_entries),
        layers=tuple(entry.layer for entry in all_entries),
        chains=tuple(entry.chain if entry.saved.recompute_s is not None else () for entry in all_entries),
        resident=tuple(number >= len(entries) for number in range(len(all_entries))),
        transients=transients,
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    bases: tuple[int, ...]
    saved: Saved
    layer: str
    chain: tuple[int, ...] = ()


class _Reader:
    """Who writes and reads what, in forward and backward."""

    def __init__(self, step: Step, works: Sequence[Work], moved: Moved) -> None:
        self.step = step
        self.position = {op: position for position, work in enumerate(works) for op in work.ops}
        self.gathered = _gathered(step)
        backward = [
            position
            for position, work in enumerate(works)
            if any(
                step.ops[op].phase.backward and self.gathered.isdisjoint(map(step.base, step.ops[op].outputs)) for op in work.ops
            )
        ]
        self.end = len(works)
        self.turn = min(backward, default=self.end)
        self.writers: dict[int, list[int]] = {}
        self.readers: dict[int, list[int]] = {}
        for index, op in enumerate(step.ops):
            for base in dict.fromkeys(map(step.base, op.inputs)):
                self.readers.setdefault(base, []).append(index)
            for base in dict.fromkeys(map(step.base, op.outputs)):
                self.writers.setdefault(base, []).append(index)
        self.users = {base: users for base in self.writers if (users := self._users(base))}
        tensors = enumerate(step.tensors)
        self.moved = [
            base for base, spec in tensors if spec.view_of is None and spec.role in ROLES[moved] and spec.bytes >= SMALLEST_MOVED
        ]

    def _users(self, base: int) -> tuple[int, ...]:
        """As in `Step.transients`: the ops that write or read a tensor, its producer first; none inside one kernel."""
        if self.step.tensors[base].role.resident:
            return ()
        first = self.writers[base][0]
        users = tuple(sorted({*self.writers[base], *(op for op in self.readers.get(base, ()) if op > first)}))
        kernels = {self.step.ops[op].fused for op in users}
        return () if len(kernels) == 1 and None not in kernels and len(users) > 1 else users

    def _forward(self, base: int) -> tuple[int, ...]:
        """The ops that write a tensor before backward begins."""
        return tuple(op for op in self.writers[base] if self.position[op] < self.turn)

    def entries(self, recompute_s: RecomputeTime | None, products: bool) -> list[_Entry]:
        """Saved tensors and those between them and their sources, in the order in which they are complete."""
        produced = sorted((base for base in self.users if self.position[self.users[base][0]] < self.turn), key=self._complete)
        saved = {base for base in produced if self._needed(base) and not self._is_side_result(base) and base not in self.gathered}
        stays = {base for base in produced if self._needed(base)} - saved
        sources: dict[int, list[int]] = {}  # of tensors that can be recomputed
        for base in produced if recompute_s else ():
            inputs = self._sources(base, products, saved, stays, sources)
            if inputs is not None:
                sources[base] = inputs
        between: set[int] = set()
        for base in reversed(produced):
            if base in sources and (base in saved or base in between):
                between.update(source for source in sources[base] if source not in saved)
        groups: dict[tuple[tuple[int, ...], bool], list[int]] = {}
        for base in produced:
            if base in saved or base in between:
                groups.setdefault((self._forward(base), base in saved), []).append(base)
        number = {base: place for place, group in enumerate(groups.values()) for base in group}
        return [self._entry(tuple(group), writers, sources, number, recompute_s) for (writers, _), group in groups.items()]

    def _complete(self, base: int) -> tuple[int, int]:
        return self._forward(base)[-1], base

    def _needed(self, base: int) -> bool:
        return self.step.tensors[base].bytes > 0 and any(self.position[op] >= self.turn for op in self.users[base])

    def _is_side_result(self, base: int) -> bool:
        results = map(self.step.base, self.step.ops[self.writers[base][0]].outputs)
        return self.step.tensors[base].bytes * SIDE_RESULT <= max(self.step.tensors[other].bytes for other in results)

    def _sources(
        self, base: int, products: bool, saved: set[int], stays: set[int], recomputable: dict[int, list[int]]
    ) -> list[int] | None:
        """The non-resident tensors from which a tensor is recomputed; None where it cannot be."""
        needed: dict[int, None] = {}
        for index in self._forward(base):
            op = self.step.ops[index]
            if not _repeatable(op, products):
                return None
            for other in map(self.step.base, op.inputs):
                if other == base or (self.step.tensors[other].role.resident and other not in self.moved):
                    continue
                if other not in self.users or self._forward(other)[-1:] >= (index,):  # unknown, or overwritten since
                    return None
                if other not in stays:
                    needed[other] = None
        return list(needed) if all(other in saved or other in recomputable for other in needed) else None

    def _entry(
        self,
        bases: tuple[int, ...],
        writers: tuple[int, ...],
        sources: dict[int, list[int]],
        number: dict[int, int],
        recompute_s: RecomputeTime | None,
    ) -> _Entry:
        op = self.step.ops[writers[0]]
        at = sorted({self.position[user] for base in bases for user in self.users[base]})
        later = [position for position in at if position >= self.turn]
        recomputable = recompute_s is not None and all(base in sources for base in bases)
        saved = Saved(
            name=self.step.tensors[bases[0]].name or op.layer or op.name,
            bytes=sum(self.step.tensors[base].bytes for base in bases),
            produced=at[0],
            last_forward=max(position for position in at if position < self.turn),
            first_backward=later[0] if later else NEVER,
            last_backward=later[-1] if later else NEVER,
            recompute_s=recompute_s(writers) if recomputable and recompute_s else None,
            sources=tuple(sorted({number[source] for base in bases for source in sources[base]})) if recomputable else (),
        )
        return _Entry(bases, saved, op.layer, writers)

    def stretches(self, base: int, number: int, other_bytes: list[int]) -> list[_Entry]:
        """The long stretches between the uses of a resident tensor, the one that wraps around the end of the step first.

        `number` is the index of that one. They are taken out of `other_bytes`.
        """
        size, name = self.step.tensors[base].bytes, self.step.tensors[base].name
        uses = sorted({self.position[op] for op in (*self.readers.get(base, ()), *self.writers.get(base, ()))})
        if not uses:
            return []
        changed = min((self.position[op] for op in self.writers.get(base, ())), default=self.end)
        pairs = [(uses[-1], uses[0])] + [(before, after) for before, after in pairwise(uses) if (after - before) * LONG >= self.end]
        entries = []
        for before, after in pairs:
            wraps = before >= after
            saved = Saved(
                name=name,
                bytes=size,
                produced=before + 1,
                last_forward=before,
                first_backward=after,
                last_backward=after,
                clean=changed == self.end,
                clean_after=None if wraps or changed <= before else number,
            )
            entries.append(_Entry((base,), saved, name.rpartition(".")[0]))
            away = (*range(before + 1, self.end), *range(after + 1)) if wraps else range(before + 1, after + 1)
            for position in away:
                other_bytes[position] -= size
        return entries


def _gathered(step: Step) -> set[int]:
    """Parameters gathered from all devices' parts (ZeRO, FSDP2), and copies of them.

    What is gathered ahead for backward, or kept for it, is no feature map, and backward does not begin where it is gathered.
    """
    parts = {base for base, spec in enumerate(step.tensors) if spec.role is Role.PARAMETER}
    gathered: set[int] = set()
    for op in step.ops:
        read = {base for base in map(step.base, op.inputs) if step.tensors[base].elements}
        left = {base for base in map(step.base, op.outputs) if not step.tensors[base].role.resident}
        if (isinstance(op.body, Collective) and read & parts) or (isinstance(op.body, Copy) and read & gathered):
            gathered |= left
        elif isinstance(op.body, Copy) and read and read <= parts:
            parts |= left
    return gathered


def _repeatable(op: Op, products: bool) -> bool:
    if isinstance(op.body, Collective | Update) or getattr(op.body, "function", "") in RANDOM:
        return False
    return products or not (op.is_product or op.fused is not None)


def _label(op: Op) -> str:
    return f"{op.layer or op.name} ({op.phase})"
