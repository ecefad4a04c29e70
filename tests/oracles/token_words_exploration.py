"""Every interleaving of processes that take tokens by shared words, one atomic operation at a time, with processes that die.

The scripts of `token_words.TokenProtocol` themselves are run: a process in the middle of one is the answers that it has had so far,
and is brought back to that place by giving them again. Between any two operations others may act, the clock may tick, and a
process may die. Processes poll as long as they wait, and end after `rounds` tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from oracles.exploration import Explored, Finding, Move, explore
from trainyard.hardware.dsc.token_words import CompareSwap, FetchAdd, Read, Script, TokenProtocol


class Process(NamedTuple):
    """`call` is the script it is in, begun at `called`; `lease_end` is until when it may believe that it holds a token."""

    status: Literal["outside", "waits", "holds", "ended", "dead"]
    rounds: int
    ticket: int = -1
    lease_end: int = 0
    call: str = ""
    called: int = 0
    answers: tuple[Any, ...] = ()


class Shared(NamedTuple):
    """The two words, the processes, the clock; `wronged`: a token was taken back from somebody whose lease still ran."""

    tickets: int
    board: int
    processes: tuple[Process, ...]
    now: int
    deaths: int
    wronged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """So many processes, of which up to `deaths` die; the clock runs from 1 to `last`.

    >>> crowd = Crowd(processes=2, deaths=1, last=5)
    >>> explored = crowd.explore()
    >>> explored.finding, crowd.stuck(explored)
    (None, None)
    """

    processes: int = 2
    rounds: int = 1
    deaths: int = 0
    last: int = 1
    protocol: TokenProtocol = field(default=TokenProtocol(expiry=1))

    def start(self) -> Shared:
        return Shared(0, 0, (Process("outside", self.rounds),) * self.processes, 1, self.deaths)

    def moves(self, state: Shared) -> Iterator[tuple[Move, Shared]]:
        if state.now < self.last:
            yield ("clock", "ticks"), state._replace(now=state.now + 1)
        for number, process in enumerate(state.processes):
            if process.status in ("ended", "dead"):
                continue
            if state.deaths:
                yield (number, "dies"), _with(state._replace(deaths=state.deaths - 1), number, Process("dead", 0))
            calls = {"outside": "draw", "waits": "claim", "holds": "release"}
            begun = process if process.call else process._replace(call=calls[process.status], called=state.now)
            yield self._advance(state, number, begun)

    def _script(self, number: int, process: Process) -> Script:
        if process.call == "draw":
            return self.protocol.draw()
        if process.call == "claim":
            return self.protocol.claim(process.ticket, number, process.called)
        return self.protocol.release(process.ticket)

    def _advance(self, state: Shared, number: int, process: Process) -> tuple[Move, Shared]:
        """The next operation of its script, and what it then knows."""
        script = self._script(number, process)
        operation = next(script)
        for answer in process.answers:
            operation = script.send(answer)
        answer, state = _perform(state, operation)
        move = (number, process.call, type(operation).__name__)
        try:
            script.send(answer)
        except StopIteration as stop:
            return (*move, stop.value), self._returned(state, number, process, stop.value)
        return move, _with(state, number, process._replace(answers=(*process.answers, answer)))

    def _returned(self, state: Shared, number: int, process: Process, value: Any) -> Shared:
        rested = process._replace(call="", called=0, answers=())
        if process.call == "draw":
            return _with(state, number, rested._replace(status="waits", ticket=value))
        if process.call == "claim":
            if value:
                return _with(state, number, rested._replace(status="holds", lease_end=process.called + self.protocol.expiry))
            return _with(state, number, Process("outside", process.rounds) if value is None else rested)
        wronged = state.wronged or (not value and state.now <= process.lease_end)
        left = process.rounds - 1
        return _with(state._replace(wronged=wronged), number, Process("outside" if left else "ended", left))

    def explore(self) -> Explored[Shared]:
        invariants = {
            "a token is held twice": self._tokens_are_few,
            "a lease that ran was taken back": lambda state: not state.wronged,
        }
        return explore(self.start(), self.moves, invariants=invariants, finished=_all_ended)

    def _tokens_are_few(self, state: Shared) -> bool:
        return sum(each.status == "holds" and state.now <= each.lease_end for each in state.processes) <= self.protocol.tokens

    def stuck(self, explored: Explored[Shared]) -> Finding[Shared] | None:
        """A state from which those alive cannot all end, although the clock has time for every death's expiry."""
        latest = self.last - self.deaths * (self.protocol.expiry + 1)
        return explored.stuck(_all_ended, among=lambda state: state.now <= latest)


def _all_ended(state: Shared) -> bool:
    return all(process.status in ("ended", "dead") for process in state.processes)


def _with(state: Shared, number: int, process: Process) -> Shared:
    return state._replace(processes=(*state.processes[:number], process, *state.processes[number + 1 :]))


def _perform(state: Shared, operation: FetchAdd | CompareSwap | Read) -> tuple[int | bool, Shared]:
    """On the words: only tickets are added to, only the board is swapped and read."""
    if isinstance(operation, FetchAdd):
        return state.tickets, state._replace(tickets=state.tickets + operation.n)
    if isinstance(operation, Read):
        return state.board, state
    if state.board != operation.expected:
        return False, state
    return True, state._replace(board=operation.new)
