"""All states of a small system of processes, breadth first: invariants, deadlock, starvation, and how often one is passed over.

A system is a first state and `moves(state)`, all (move, next state) that may come next; a move is (process, what it does, ...).
Every order in which processes can move is explored. What is found comes with a shortest way to it.

*Starvation* is a fair cycle in which a process waits all the way round: fair, because every other process either moves in it or at
some state of it cannot move (weak fairness). A strongly connected component holds such a cycle exactly if all of it, walked round,
is one, so that components are enough to look at (R. Tarjan: Depth-First Search and Linear Graph Algorithms. 1972).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Generic, TypeVar

from trainyard.errors import BadInput

S = TypeVar("S", bound=Hashable)
Move = tuple[Any, ...]
Moves = Callable[[S], Iterable[tuple[Move, S]]]


@dataclass(frozen=True, slots=True)
class Finding(Generic[S]):
    """What was found, the moves that lead there from the start, and the state; with a `cycle`, the moves that then repeat."""

    what: str
    moves: tuple[Move, ...]
    state: S
    cycle: tuple[Move, ...] = ()

    def __str__(self) -> str:
        def shown(moves: Sequence[Move]) -> str:
            return ", ".join(" ".join(map(str, move)) for move in moves)

        again = f"; then for ever: {shown(self.cycle)}" if self.cycle else ""
        return f"{self.what} after {len(self.moves)} moves: {shown(self.moves)}{again}; state {self.state}"


@dataclass(slots=True)
class Explored(Generic[S]):
    """States in the order in which they were reached, the moves between them, and the first thing that is wrong."""

    states: list[S] = field(default_factory=list)
    edges: list[list[tuple[Move, int]]] = field(default_factory=list)
    came_by: list[tuple[int, Move]] = field(default_factory=list)
    finding: Finding[S] | None = None

    @property
    def transitions(self) -> int:
        return sum(map(len, self.edges))

    def way_to(self, state: int) -> tuple[Move, ...]:
        way = []
        while state:
            state, move = self.came_by[state]
            way.append(move)
        return tuple(reversed(way))

    def found(self, what: str, state: int, cycle: tuple[Move, ...] = ()) -> Finding[S]:
        return Finding(what, self.way_to(state), self.states[state], cycle)

    def starvation(self, waits: Callable[[S], bool], what: str = "starvation") -> Finding[S] | None:
        """A fair cycle through states in which `waits` is true, if there is one."""
        for component in self._components(waits):
            inside = set(component)
            within = [(at, move, to) for at in component for move, to in self.edges[at] if to in inside]
            if within and (passed := self._fair(component, within)) is not None:
                first = min(component)
                return self.found(what, first, self._walk(first, inside, passed))
        return None

    def _fair(self, component: Sequence[int], within: Sequence[tuple[int, Move, int]]) -> list[tuple[int, Move, int]] | None:
        """Moves whose round is fair: of every process one, or one out of a state where it has none; None if there is none such."""
        movers = {at: {move[0] for move, _ in self.edges[at]} for at in component}
        witnesses = {move[0]: (at, move, to) for at, move, to in within}
        for process in sorted(set().union(*movers.values()) - set(witnesses), key=repr):
            idle = next((edge for edge in within if process not in movers[edge[0]]), None)
            if idle is None:
                return None
            witnesses[process] = idle
        return list(witnesses.values())

    def _walk(self, first: int, inside: set[int], passing: Iterable[tuple[int, Move, int]]) -> tuple[Move, ...]:
        """From a state of a component through these moves and back."""
        at, walked = first, []
        for start, move, to in passing:
            walked += [*self._shortest(at, start, inside), move]
            at = to
        return (*walked, *self._shortest(at, first, inside))

    def _shortest(self, start: int, goal: int, inside: set[int]) -> list[Move]:
        came: dict[int, tuple[int, Move]] = {}
        queue = deque([start])
        while queue and goal != start and goal not in came:
            at = queue.popleft()
            for move, to in self.edges[at]:
                if to in inside and to not in came and to != start:
                    came[to] = at, move
                    queue.append(to)
        way: list[Move] = []
        while goal != start:
            goal, move = came[goal]
            way.append(move)
        return way[::-1]

    def most_passed_over(
        self, waits: Callable[[S], bool], passes: Callable[[Move], bool], since: Callable[[Move], bool] = lambda _: True
    ) -> int | None:
        """The most moves that `passes` counts while `waits` stays true, over all ways; None: there is no bound.

        Counted from a move on that `since` is true of and `waits` with it.
        """
        component_of: dict[int, int] = {}
        most: list[float] = []
        for number, component in enumerate(self._components(waits)):  # those that others lead to come first
            component_of.update(dict.fromkeys(component, number))
            longest = 0.0
            for move, to in (edge for at in component for edge in self.edges[at] if edge[1] in component_of):
                inside = component_of[to] == number
                longest = max(longest, (inf if passes(move) else 0) if inside else passes(move) + most[component_of[to]])
            most.append(longest)
        counted = (component_of[to] for edges in self.edges for move, to in edges if to in component_of and since(move))
        longest = max((most[number] for number in counted), default=0)
        return None if longest == inf else int(longest)

    def stuck(self, goal: Callable[[S], bool], among: Callable[[S], bool] = lambda _: True) -> Finding[S] | None:
        """The first state (of those that count) from which no way leads to the goal."""
        before: list[list[int]] = [[] for _ in self.states]
        for at, edges in enumerate(self.edges):
            for _, to in edges:
                before[to].append(at)
        queue = [at for at, state in enumerate(self.states) if goal(state)]
        reaches = set(queue)
        while queue:
            fresh = [at for at in before[queue.pop()] if at not in reaches]
            reaches.update(fresh)
            queue.extend(set(fresh))
        lost = next((at for at, state in enumerate(self.states) if at not in reaches and among(state)), None)
        return None if lost is None else self.found("no way leads to the goal", lost)

    def _components(self, among: Callable[[S], bool]) -> Iterator[list[int]]:
        """Strongly connected components of a part of the graph, by Tarjan's algorithm without recursion."""
        counted = [among(state) for state in self.states]
        order: dict[int, int] = {}
        low: dict[int, int] = {}
        stack: list[int] = []
        done: set[int] = set()
        for root in range(len(self.states)):
            if not counted[root] or root in order:
                continue
            order[root] = low[root] = len(order)
            stack.append(root)
            path = [(root, iter(self.edges[root]))]
            while path:
                at, edges = path[-1]
                for _, to in edges:
                    if not counted[to] or to in done:
                        continue
                    if to in order:
                        low[at] = min(low[at], order[to])
                    else:
                        order[to] = low[to] = len(order)
                        stack.append(to)
                        path.append((to, iter(self.edges[to])))
                        break
                else:
                    path.pop()
                    if path:
                        low[path[-1][0]] = min(low[path[-1][0]], low[at])
                    if low[at] == order[at]:
                        component = [stack.pop()]
                        while component[-1] != at:
                            component.append(stack.pop())
                        done.update(component)
                        yield component


def explore(
    start: S,
    moves: Moves[S],
    *,
    invariants: Mapping[str, Callable[[S], bool]] | None = None,
    finished: Callable[[S], bool] = lambda _: False,
    most_states: int = 2_000_000,
) -> Explored[S]:
    """All states, or those up to the first that breaks an invariant or has no move and is not finished.

    >>> def pour(state):                                   # two jugs of 3 and 5: can there be 4 in the larger one?
    ...     small, large = state
    ...     yield ("fill", "small"), (3, large)
    ...     yield ("fill", "large"), (small, 5)
    ...     yield ("empty", "small"), (0, large)
    ...     yield ("empty", "large"), (small, 0)
    ...     yield ("pour", "small"), (max(0, small + large - 5), min(5, small + large))
    ...     yield ("pour", "large"), (min(3, small + large), max(0, small + large - 3))
    >>> explored = explore((0, 0), pour, invariants={"4 litres": lambda state: state[1] != 4})
    >>> explored.finding.what, len(explored.finding.moves), len(explore((0, 0), pour).states)
    ('4 litres', 6, 16)
    """
    found = Explored[S]()
    number = {start: 0}
    found.states.append(start)
    found.came_by.append((0, ()))
    for at, state in enumerate(found.states):  # grows while it is walked: breadth first
        for what, holds in (invariants or {}).items():
            if not holds(state):
                found.finding = found.found(what, at)
                return found
        found.edges.append([])
        for move, following in moves(state):
            if following not in number:
                number[following] = len(found.states)
                found.states.append(following)
                found.came_by.append((at, move))
            found.edges[at].append((move, number[following]))
        if not found.edges[at] and not finished(state):
            found.finding = found.found("deadlock", at)
            return found
        if len(found.states) > most_states:
            raise BadInput(f"more than {most_states} states: explore a smaller system, or write a larger most_states")
    return found
