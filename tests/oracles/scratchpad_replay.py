"""Twin of `mapping.between_layers`: the Works of a step one after the other, with lists of what is on chip and what in DRAM.

A tensor has versions: every write makes a new one. The replay knows which memory holds the present version of each tensor, refuses
a Work that reads one from a memory without it, and counts bytes by itself from the tensors of the ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainyard.ir import Step, Work
from trainyard.mapping.demand import NOTHING_KEPT, AccessLog, NoDemand, OnChip, Policy, Slices, TensorBytes
from trainyard.mapping.profile import plain_demand


@dataclass
class Replay:
    """What the Works of a step do with its tensors; `reads` and `writes` are DRAM bytes if everything is moved once."""

    step: Step
    policy: Policy
    scratchpad_bytes: int
    reads: int = 0
    writes: int = 0
    on_chip: set[int] = field(default_factory=set)
    in_dram: set[int] = field(default_factory=set)
    """Bases whose present version is there."""

    def size(self, base: int) -> int:
        return TensorBytes(self.step, self.policy, {}).bytes(base)

    def run(self, works: Sequence[Work], states: Mapping[tuple[int, ...], OnChip | Slices], blocks: Sequence[range] = ()) -> None:
        """`blocks` are the Works that run slice by slice, each with a `Slices` among the states."""
        logs = [self._log(work) for work in works]
        self.in_dram = {self.step.base(t) for t in range(len(self.step.tensors))}  # inputs, and nothing yet of all others
        fresh = {base for base in self.in_dram if not self.step.tensors[base].role.resident}
        inside = {position: block for block in blocks for position in block}
        for position, (work, log) in enumerate(zip(works, logs, strict=True)):
            if position in inside:
                if position == inside[position][0]:
                    self._block([works[other] for other in inside[position]], [logs[other] for other in inside[position]], states)
                    fresh -= {base for other in inside[position] for base, direction in logs[other] if direction == "write"}
                continue
            state = states.get(work.ops, NOTHING_KEPT)
            assert not isinstance(state, Slices)
            stays = self._stays(position, logs, works, states)
            held = self.on_chip | stays | {base for base in state.loaded | state.results if self._whole(base, log)}
            assert sum(map(self.size, held)) == state.occupied_bytes <= self.scratchpad_bytes, (position, held, state)
            for base, direction in log:
                if direction != "read":
                    continue
                if base in state.read:
                    assert base in self.on_chip, f"work {position} reads tensor {base} on chip, where it is not"
                else:
                    assert base in self.in_dram, f"work {position} reads tensor {base} from DRAM, which does not have it"
                    self.reads += log[base, direction]
                    if base in state.loaded:
                        assert log[base, direction] >= self.size(base)
            for base, direction in log:
                if direction != "write":
                    continue
                whole = log[base, direction] >= self.size(base)
                empty = base in fresh and not whole
                if base not in state.unwritten:
                    self.writes += log[base, direction]
                    self.in_dram |= {base} if whole or empty else set()
                else:
                    self.in_dram.discard(base)
                assert base in state.results or base not in stays, f"an old version of tensor {base} stays behind work {position}"
                if base in stays and not (whole or empty or base in self.on_chip):
                    raise AssertionError(f"work {position} writes a part of tensor {base}, the rest is not on chip")
                fresh.discard(base)
            assert state.loaded <= held
            assert state.results <= held
            self.on_chip = stays
        self._end(logs)

    def _block(self, works: Sequence[Work], logs: Sequence[AccessLog], states: Mapping[tuple[int, ...], OnChip | Slices]) -> None:
        """Slice after slice. A tensor of samples has a copy for each slice; nothing of the block is on chip before or after it."""
        own = {base for log in logs for base, _ in log}
        assert not own & self.on_chip
        outer = sum(map(self.size, self.on_chip))
        cuts = [states[work.ops] for work in works]
        assert all(isinstance(cut, Slices) for cut in cuts)
        turns = [[state for times, state, _ in cut.parts for _ in range(times)] for cut in cuts]  # type: ignore[union-attr]
        count = len(turns[0])
        small: Step = cuts[0].step  # type: ignore[union-attr]
        assert {len(turn) for turn in turns} == {count}
        assert small.batch * count == self.step.batch
        slices = Replay(small, self.policy, self.scratchpad_bytes)
        cut = {base for base in own if small.tensors[base].shape != self.step.tensors[base].shape}
        in_dram = {(base, turn if base in cut else 0) for base in own & self.in_dram for turn in range(count)}
        on_chip: set[tuple[int, int]] = set()
        for turn in range(count):
            for work, states_of_work in zip(works, turns, strict=True):
                state, log = states_of_work[turn], slices._log(work)
                for base, direction in log:
                    key = base, turn if base in cut else 0
                    if direction == "read" and base in state.read:
                        assert key in on_chip, f"slice {turn} of tensor {base} is not on chip"
                    elif direction == "read":
                        assert key in in_dram, f"slice {turn} of tensor {base} is not in DRAM"
                        self.reads += log[base, direction]
                        on_chip |= {key} if base in state.loaded else set()
                for base, direction in log:
                    key = base, turn if base in cut else 0
                    if direction != "write":
                        continue
                    if base in state.added:
                        assert key in in_dram
                        self.reads += log[base, direction]
                    elif base not in cut and turn:
                        assert key in on_chip, f"the sum {base} of earlier slices is neither on chip nor read"
                    (on_chip.add if base in state.results else on_chip.discard)(key)
                    (in_dram.discard if base in state.unwritten else in_dram.add)(key)
                    self.writes += 0 if base in state.unwritten else log[base, direction]
                mine = {key for key in on_chip if key[0] not in cut or any(key[0] == base for base, _ in log)}
                assert outer + sum(slices.size(base) for base, _ in mine) <= state.occupied_bytes <= self.scratchpad_bytes
            on_chip -= {(base, turn) for base in cut}
        self.in_dram -= own
        self.in_dram |= {base for base in own if all((base, turn if base in cut else 0) in in_dram for turn in range(count))}

    def _log(self, work: Work) -> AccessLog:
        log: AccessLog = {}
        demand = plain_demand(self.step, work, self.policy, log=log)
        assert not isinstance(demand, NoDemand)
        return log

    def _stays(
        self, position: int, logs: Sequence[AccessLog], works: Sequence[Work], states: Mapping[tuple[int, ...], OnChip | Slices]
    ) -> set[int]:
        """Tensors on chip behind a Work: those that the next Work at them finds there."""
        now = states.get(works[position].ops, NOTHING_KEPT)
        assert not isinstance(now, Slices)
        touched = {base for base, _ in logs[position]}
        stays = self.on_chip - touched
        for base in touched:
            for later in range(position + 1, len(works)):
                if not any(other == base for other, _ in logs[later]):
                    continue
                then = states.get(works[later].ops, NOTHING_KEPT)
                if isinstance(then, Slices):
                    break
                adds_a_part = (base, "read") not in logs[later] and logs[later][base, "write"] < self.size(base)
                if base in then.read or (adds_a_part and base in now.results and base in then.results):
                    stays.add(base)
                break
        return stays

    def _whole(self, base: int, log: AccessLog) -> bool:
        return max(log.get((base, "read"), 0), log.get((base, "write"), 0)) >= self.size(base)

    def _end(self, logs: Sequence[AccessLog]) -> None:
        """What lasts, and what nobody reads, is in DRAM."""
        written = {base for log in logs for base, direction in log if direction == "write"}
        for base in written:
            last = max(position for position, log in enumerate(logs) if any(other == base for other, _ in log))
            if self.step.tensors[base].role.resident or (base, "write") in logs[last]:
                assert base in self.in_dram, f"tensor {base} is not in DRAM after the step"


def compulsory_bytes(step: Step, works: Sequence[Work], policy: Policy) -> int:
    """DRAM bytes of a step on a machine that forgets nothing: what exists before is read once, what remains is written once.

    Only for steps that read and write whole tensors.
    """
    replay = Replay(step, policy, 0)
    logs = [replay._log(work) for work in works]
    first = {base: direction for log in reversed(logs) for base, direction in sorted(log, key=lambda key: key[1], reverse=True)}
    last: dict[int, set[str]] = {}
    for log in logs:
        for base in {base for base, _ in log}:
            last[base] = {direction for other, direction in log if other == base}
    written = {base for log in logs for base, direction in log if direction == "write"}
    reads = sum(replay.size(base) for base, direction in first.items() if direction == "read")
    remains = {base for base in written if step.tensors[base].role.resident or "write" in last[base]}
    return reads + sum(map(replay.size, remains))
