"""Passes of a plan whose blocks are recorded: one pass is a rehearsal, the next is recorded, all others are replayed.

Graphs share one pool of memory. In the recorded pass a graph takes what is free then: memory of tensors that nobody held any more.
So the graphs of a pass are *events* with an order, F1 F2 ... B2 B1. A replay is safe if it comes after the events that it came
after when it was recorded, some of which may be left out for good, and if all tensors that were gone by then are gone now. Both are
checked before each replay. A pass is not replayed at all while the graph of an earlier one waits for its backward, or somebody
holds one of its tensors; gradients of parameters and results of the model move to other memory before that, where a program did not
drop them, and copies are handed out of what cannot be moved. What is not replayed is called; a backward whose forward was replayed
calls its block once more.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from trainyard.live.paging.regions.call_state import without_empty_caches
from trainyard.live.paging.regions.finding import Region
from trainyard.live.paging.regions.replay.arguments import NotPlain, Structure, take_apart
from trainyard.live.paging.regions.replay.calls import Call, Input, RecordedCall, Token
from trainyard.live.paging.regions.replay.obstacles import Rehearsal, rehearse
from trainyard.live.paging.regions.replay.parts import CAST, Leaf, used_later
from trainyard.live.paging.regions.replay.places import Place, copy_content, empty_twin
from trainyard.live.paging.regions.replay.random_numbers import CallRandom
from trainyard.live.paging.regions.replay.recorders import Recorder, recorder_for
from trainyard.live.paging.signature import tensors_of

Mode = Literal["rehearse", "record", "replay", "off"]
ATTEMPTS = 3
"""How often a pass is recorded that does not go through. One that shows that a block cannot be recorded does not count."""
DISTURBED = 8
"""Passes in a row that cannot be replayed, or not to their end, after which recordings are given up."""


class _Shared(NamedTuple):
    """An argument of several calls, and the one input that it was copied to."""

    argument: weakref.ref[Tensor]
    version: int
    input: Tensor


class RecordedPasses:
    """All recorded calls of one plan. `around` wraps the calls of its blocks, and `begin` is called before each pass."""

    def __init__(
        self,
        device: torch.device,
        rehearsals: dict[tuple[str, str], Rehearsal],
        open_recorder: Callable[[torch.device], Recorder] = recorder_for,
        obstacle_of: Callable[[str], str | None] = lambda region: None,
    ) -> None:
        """`obstacle_of` says why a region cannot be replayed, before it is rehearsed."""
        self.device, self.rehearsals, self.open_recorder, self.obstacle_of = device, rehearsals, open_recorder, obstacle_of
        self.on_gpu = device.type == "cuda"
        self.mode: Mode = "rehearse"
        self.counts: Counter[str] = Counter()
        """Calls of blocks: rehearsed, recorded, replayed, called."""
        self.why_off = ""
        self._reason_to_end = ""
        self._kinds: dict[tuple[str, str], tuple[Any, ...]] = {}
        """By region and variant: what kind of region it is."""
        self._attempts = self._disturbed = 0
        self._is_learning = False
        """Whether it was found before this pass that copies of something are to be handed out."""
        self.was_repeated = False
        """Whether a call was made once more in backward since the last pass began."""
        self._tokens: weakref.WeakSet[Token] = weakref.WeakSet()
        self._number = 0
        self._is_plain = True
        self._stream: Any = None
        self._in_several_parts: dict[tuple[str, str], list[Leaf]] = {}
        """Of calls that were rehearsed in this pass, by region and variant."""
        self._recorder: Recorder | None = None
        self._forget()

    def _forget(self) -> None:
        """Nothing is recorded."""
        if self._recorder is not None:
            self._recorder.close()
        self._recorder = None
        self._calls: dict[str, list[RecordedCall]] = {}
        self._events = 0
        self._watched: list[Place] = []
        """Results that were handed out when the pass was recorded, and were not gone at the last event."""
        self._deaths: list[Place] = []
        """Results in the order in which they were gone."""
        self._shared: dict[int, _Shared] = {}
        self._is_spoiled = self._is_broken = False
        """Whether a call could not be recorded; and whether the recorder itself failed, so that later errors might be its own."""
        self._rewind()

    def _rewind(self) -> None:
        self._position, self._dead = -1, 0
        self._to_come: list[tuple[int, int, weakref.ref[Token]]] = []
        """A heap of the backward events of calls whose forward was replayed, with a number that makes each different."""
        self._turns: Counter[str] = Counter()
        self._filled: dict[int, tuple[weakref.ref[Tensor] | None, int]] = {}
        """By address of an input: the tensor whose content it has, and its version; None: the input is that tensor."""

    @property
    def recorder(self) -> Recorder:
        assert self._recorder is not None
        return self._recorder

    @property
    def hidden_bytes(self) -> int:
        """Memory of recordings that the allocator's counters do not show."""
        return 0 if self._recorder is None or self.mode != "replay" else self._recorder.hidden_bytes

    @property
    def peak_bytes(self) -> int:
        """Peak of all memory while a pass was recorded."""
        return 0 if self._recorder is None else self._recorder.total_peak_bytes

    @property
    def is_replayed(self) -> bool:
        """Whether the last pass was replayed, as far as it could be."""
        return self.mode == "replay" and not self._is_plain

    @property
    def recorded_calls(self) -> int:
        return len(self._all_calls) if self.mode == "replay" else 0

    @property
    def _all_calls(self) -> list[RecordedCall]:
        return [call for calls in self._calls.values() for call in calls]

    @property
    def _is_off(self) -> bool:
        return self.mode == "off"

    # -- passes

    def begin(self) -> None:
        """Before a pass."""
        if self._is_off or not torch.is_grad_enabled():
            return
        if self._reason_to_end:
            self._give_up(self._reason_to_end)
            return
        for call in self._all_calls:
            call.move_parameter_gradients()
        is_held = self._vacate()
        if self.mode == "record" and self._recorder is not None:
            self._end_recording()
        elif is_held and self._disturbed and not self._is_learning and self._attempts < ATTEMPTS:
            self.release()  # to be recorded once more, with copies of what is held
        if self.mode == "rehearse" and self._kinds and self._kinds.keys() <= self.rehearsals.keys():
            self.mode = "record"
        self._is_plain = self._is_off or (is_held and bool(self._calls)) or self._is_disturbed()
        self._disturbed = self._disturbed + 1 if self._is_plain or self.was_repeated else 0
        self.was_repeated = False
        if self._disturbed == DISTURBED:
            self._give_up("earlier passes are still in use when another one begins")
        if self._is_plain:
            return
        self._number += 1
        self._in_several_parts.clear()
        self._stream = torch.cuda.current_stream(self.device) if self.on_gpu else None
        self._rewind()
        if self.mode == "record":
            self._recorder = self.open_recorder(self.device)

    def _vacate(self) -> bool:
        """Gives what a program holds memory of its own; where that cannot be done, returns true, and learns to hand out copies."""
        self._is_learning = False
        if self._tokens or not _has_holders(self._calls):
            return False
        for name, calls in self._calls.items():
            copied = frozenset[int]().union(*(call.vacate_places() for call in calls))
            for key in (key for key in self._kinds if key[0] == name):
                if not copied <= self.rehearsals[key].copied:
                    self.rehearsals[key] = replace(self.rehearsals[key], copied=copied | self.rehearsals[key].copied)
                    self._is_learning = True
        return _has_holders(self._calls)

    def _is_disturbed(self) -> bool:
        """Whether a backward is still to come, or something else than autograd looks at what is computed."""
        if self._tokens:
            return True
        watched = torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()
        if watched or _has_hooks_for_saved_tensors():
            return True
        on_another = self.on_gpu and self._stream is not None and self._stream != torch.cuda.current_stream(self.device)
        return on_another or torch._C._functorch.peek_interpreter_stack() is not None

    def _end_recording(self) -> None:
        """Keeps what was recorded if backward came to all of it; at the last attempt, what it came to."""
        calls = self._all_calls
        for call in calls:
            call.end_recording()
        self._shared.clear()
        if self._is_spoiled:  # the next one leaves a block out
            self._forget()
            return
        self._attempts += 1
        missing = [call for call in calls if call.backward is None]
        if self._tokens or (missing and self._attempts < ATTEMPTS) or len(missing) == len(calls):
            self._forget()
            if self._attempts >= ATTEMPTS or not calls:
                self._give_up("no pass could be recorded" if calls else "no block can be recorded")
            return
        self._calls = {name: [call for call in calls if call.backward is not None] for name, calls in self._calls.items()}
        self._note_deaths()
        self.recorder.finish()
        self.mode = "replay"

    def give_up_after_pass(self, why: str) -> None:
        """Nothing is replayed from the next pass on."""
        self._reason_to_end = why

    def _give_up(self, why: str) -> None:
        self.release()
        self.mode, self.why_off, self._is_plain = "off", why, True

    def release(self) -> None:
        """Gives the memory of recordings back; gradients of parameters that are there move."""
        for call in self._all_calls:
            call.end_recording()
            call.move_parameter_gradients()
            call.vacate_places()
        _HELD[:] = [one for one in (*_HELD, self._calls) if any(place.is_borrowed for place in _places(one))]
        self._forget()
        self.mode, self._is_plain = "rehearse", True

    def forward_ended(self, result: Any) -> None:
        """After the model's forward, with what it returns."""
        if self._in_several_parts and torch.is_grad_enabled():
            tensors = tensors_of(result)
            for key, leaves in self._in_several_parts.items():
                in_parts = used_later(leaves, tensors)
                obstacle = "uses weights that autocast has cast more than once" if CAST in in_parts else None
                self.rehearsals[key] = replace(self.rehearsals[key], obstacle=obstacle, in_parts=in_parts)
            self._in_several_parts.clear()

    # -- calls of blocks

    def around(self, region: Region, variant: str, call: Call, *, compiles: bool = False) -> Call:
        """The call of a block, replayed where that is possible. `compiles`: it is of compiled code."""
        self._kinds[region.name, variant] = region.kind

        def run(*arguments: Any, **keywords: Any) -> Any:
            if self._is_plain or not torch.is_grad_enabled() or torch._C._current_autograd_node() is not None:
                return call(*arguments, **keywords)
            if _has_hooks_for_saved_tensors():
                self.rehearsals.setdefault((region.name, variant), Rehearsal("is called inside a checkpoint of the program's own"))
                return call(*arguments, **keywords)
            key = region.name, variant
            return self._run(region, key, call, compiles, *without_empty_caches(region.module, arguments, keywords))

        return run

    def _run(
        self, region: Region, key: tuple[str, str], call: Call, compiles: bool, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        if key not in self.rehearsals and (obstacle := self.obstacle_of(region.name)):
            self.rehearsals[key] = Rehearsal(obstacle)
        if key not in self.rehearsals:
            self.counts["rehearsed"] += 1
            ordinary = partial(call, *arguments, **keywords)
            result, self.rehearsals[key], in_several_parts = rehearse(
                region.module, ordinary, (arguments, keywords), self.device, compiles=compiles
            )
            if in_several_parts:
                self._in_several_parts[key] = in_several_parts
            return result
        recorded = None
        with suppress(NotPlain):
            structure, tensors = take_apart((arguments, keywords))
            if self.mode == "replay":
                recorded = self._next(region.name, structure, tensors)
            elif self.is_recording and self.rehearsals[key].obstacle is None:
                recorded = self._record(region, key, call, structure, tensors)
        if recorded is None:
            self.counts["called"] += 1
            return call(*arguments, **keywords)
        self.counts["replayed" if self.mode == "replay" else "recorded"] += 1
        return recorded.run(tensors)

    def _next(self, name: str, structure: Structure, tensors: Sequence[Tensor]) -> RecordedCall | None:
        """The recorded call that is to be replayed now, if it can be."""
        turn = self._turns[name]
        self._turns[name] += 1
        calls = self._calls.get(name, [])
        if turn >= len(calls):
            return None
        call = calls[turn]
        can_run = call.accepts(structure, tensors) and all(map(self._can_fill, call.inputs, tensors))
        return call if can_run and self.advance(call.forward_event) else None

    def _record(
        self, region: Region, key: tuple[str, str], call: Call, structure: Structure, tensors: Sequence[Tensor]
    ) -> RecordedCall | None:
        draws = self.rehearsals[key].draws_random_numbers
        random = CallRandom(self.device) if draws else None
        recorded = RecordedCall(self, region.module, call, structure, random, self.rehearsals[key])
        recorded.forward_event = self.next_event()
        try:
            recorded.record_forward(tensors)
        except Exception as error:  # whatever it is, an ordinary call will say it again if it is not about recording
            self._leave_out(key, "cannot be recorded", error)
            return None
        self._calls.setdefault(region.name, []).append(recorded)
        return recorded

    # -- what recorded calls ask for

    @property
    def is_recording(self) -> bool:
        """Whether calls are recorded now."""
        return self.mode == "record" and not self._is_broken

    def new_token(self, backward_event: int) -> Token:
        token = Token(self._number)
        self._tokens.add(token)
        if backward_event >= 0:
            heappush(self._to_come, (backward_event, id(token), weakref.ref(token)))
        return token

    def end(self, token: Token) -> None:
        """Backward has come to a call."""
        self._tokens.discard(token)
        token.number = -1

    def has_inputs_of(self, token: Token, backward_event: int) -> bool:
        """Whether the inputs of a call are still where they were in forward."""
        return token.number == self._number and (backward_event < 0 or self._position < backward_event)

    def next_event(self) -> int:
        """The number of the next event of the recorded pass."""
        self._note_deaths()
        self._events += 1
        return self._events - 1

    def _note_deaths(self) -> None:
        for place in self._watched:
            if not place.is_held:
                place.event_of_death = self._events
                self._deaths.append(place)
        self._watched = [place for place in self._watched if place.is_held]

    def hand_out(self, places: Sequence[Place]) -> None:
        self._watched.extend(places)

    def _is_awaited_before(self, event: int) -> bool:
        """Whether a backward is still to come that was before this event: what it needs might be overwritten."""
        while self._to_come:
            backward_event, _, reference = self._to_come[0]
            token = reference()
            if token is not None and token.number == self._number:
                return backward_event < event
            heappop(self._to_come)
        return False

    def advance(self, event: int) -> bool:
        """Whether a recorded event may be replayed now."""
        if event <= self._position or self._is_plain or self._is_awaited_before(event):
            return False
        while self._dead < len(self._deaths) and self._deaths[self._dead].event_of_death <= event:
            place = self._deaths[self._dead]
            if place.is_held:
                self._is_plain = True
                return False
            self._dead += 1
        self._position = event
        return True

    def input_for(self, tensor: Tensor) -> tuple[Tensor, Place | None]:
        """While something is recorded: a recorded result itself, with its place; for any other tensor, memory to copy it to."""
        source = next((place for place in self._watched if place.is_under(tensor)), None)
        if source is not None:
            return tensor.detach(), source
        shared = self._shared.get(id(tensor))
        if shared is not None and shared.argument() is tensor and shared.version == tensor._version:
            return shared.input, None
        fresh = empty_twin(tensor)
        self.recorder.own(fresh, tensor)
        self._shared[id(tensor)] = _Shared(weakref.ref(tensor), tensor._version, fresh)
        return fresh, None

    def _can_fill(self, one: Input, tensor: Tensor) -> bool:
        """Whether an input can have the content of a tensor without taking it from others, who hold it or were given the same."""
        filled = self._filled.get(one.place.address)
        if one.place.is_at(tensor):
            return filled is None or filled[0] is None
        if filled is not None:
            return filled[0] is not None and filled[0]() is tensor and filled[1] == tensor._version
        return one.can_be_filled_with(tensor)

    def fill(self, one: Input, tensor: Tensor) -> None:
        place = one.place
        if place.is_at(tensor):
            self._filled[place.address] = None, 0
        elif place.address not in self._filled:
            copy_content(place.alias(), tensor)
            self._filled[place.address] = weakref.ref(tensor), tensor._version

    def spoil(self, call: RecordedCall, error: Exception) -> None:
        """The backward of a call could not be recorded."""
        for key in [key for key in self._kinds if call in self._calls.get(key[0], [])]:
            self._leave_out(key, "its backward cannot be recorded", error)

    def _leave_out(self, key: tuple[str, str], what: str, error: Exception) -> None:
        """From the next attempt on. Where the recorder failed, so are regions of the same kind: each that fails costs a pass."""
        self._is_spoiled = True
        self._is_broken = self._is_broken or not isinstance(error, NotPlain)
        for other, kind in self._kinds.items():
            is_like_it = self._is_broken and kind == self._kinds[key] and other[1] == key[1]
            if (other == key or is_like_it) and self.rehearsals[other].obstacle is None:
                self.rehearsals[other] = replace(self.rehearsals[other], obstacle=f"{what}: {error!s:.200}")


def _has_hooks_for_saved_tensors() -> bool:
    """Whether a program watches what autograd saves, as a checkpoint does: a replay saves nothing."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def _places(recorded: dict[str, list[RecordedCall]]) -> Iterator[Place]:
    """Of the tensors that are handed out."""
    return (place for calls in recorded.values() for call in calls for place in call.places)


def _has_holders(recorded: dict[str, list[RecordedCall]]) -> bool:
    """Whether somebody holds a tensor that was handed out."""
    return any(place.is_held for place in _places(recorded))


_HELD: list[dict[str, list[RecordedCall]]] = []
"""Recordings that were given back while somebody still held tensors in memory that is theirs."""
