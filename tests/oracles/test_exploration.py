"""The explorer itself: shortest ways, deadlocks, fair cycles, and a brute-force twin on random graphs."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles.exploration import explore
from trainyard.errors import BadInput

# a graph is, for each node, its moves: (process, target)
graphs = st.integers(1, 7).flatmap(
    lambda nodes: st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, nodes - 1)), max_size=3, unique=True), min_size=nodes, max_size=nodes
    )
)


def moves_of(graph):
    return lambda node: [((process, f"to {target}"), target) for process, target in graph[node]]


def reachable(graph, start, among):
    """Nodes on ways of one move or more."""
    actual, queue = set(), [start]
    while queue:
        for _, target in graph[queue.pop()]:
            if target in among and target not in actual:
                actual.add(target)
                queue.append(target)
    return actual


@pytest.mark.unit
def test_the_shortest_way_is_told() -> None:
    def moves(state):
        yield ("walker", "double"), state * 2 % 1000
        yield ("walker", "add"), state + 1

    explored = explore(1, lambda state: moves(state) if state < 500 else [], invariants={"ten": lambda state: state != 10})
    assert explored.finding is not None
    assert explored.finding.what == "ten"
    assert len(explored.finding.moves) == 4  # 2, 4, 5, 10
    assert "ten after 4 moves: walker" in str(explored.finding)


@pytest.mark.unit
def test_a_state_without_moves_is_a_deadlock_unless_it_is_the_end() -> None:
    graph = [[(0, 1)], [(0, 2)], []]
    finding = explore(0, moves_of(graph)).finding
    assert finding is not None
    assert (finding.what, finding.state) == ("deadlock", 2)
    assert explore(0, moves_of(graph), finished=lambda node: node == 2).finding is None


@pytest.mark.probe
def test_a_limit_of_states_is_kept() -> None:
    graph = [[(0, 1)], [(0, 2)], [(0, 0)]]
    assert len(explore(0, moves_of(graph), most_states=3).states) == 3
    with pytest.raises(BadInput, match="more than 2 states"):
        explore(0, moves_of(graph), most_states=2)


@pytest.mark.unit
def test_an_unfair_cycle_is_no_starvation() -> None:
    """In 0 -> 0 process 1 could always move to 1, where nobody waits: a fair run does not stay."""
    graph = [[(0, 0), (1, 1)], [(0, 1)]]
    explored = explore(0, moves_of(graph))
    assert explored.starvation(lambda node: node == 0) is None
    fair = explore(0, moves_of([[(0, 0), (0, 1)], [(0, 1)]])).starvation(lambda node: node == 0)
    assert fair is not None
    assert fair.cycle == ((0, "to 0"),)


@pytest.mark.unit
def test_a_process_that_cannot_move_somewhere_in_the_cycle_does_not_make_it_unfair() -> None:
    graph = [[(0, 1), (1, 2)], [(0, 0)], [(0, 2)]]  # process 1 is blocked in node 1
    actual = explore(0, moves_of(graph)).starvation(lambda node: node < 2)
    assert actual is not None
    assert set(actual.cycle) == {(0, "to 1"), (0, "to 0")}


@pytest.mark.oracle
@given(graph=graphs, waiting=st.sets(st.integers(0, 6)))
def test_starvation_is_what_brute_force_finds(graph, waiting) -> None:
    """Twin: for each node all that it reaches and that reach it, and whether walking round all of these is fair."""
    explored = explore(0, moves_of(graph), finished=lambda _: True)
    among = {node for node in waiting if node in explored.states}
    starved = False
    for node in among:
        mutual = {other for other in reachable(graph, node, among) if node in reachable(graph, other, among)}
        if not mutual:
            continue
        enabled = [{process for process, _ in graph[at]} for at in mutual]
        moving = {process for at in mutual for process, to in graph[at] if to in mutual}
        starved |= set.intersection(*enabled) <= moving
    actual = explored.starvation(lambda node: node in among)
    assert (actual is not None) == starved
    if actual is not None:
        at = actual.state
        walked, movers = [at], set()
        for process, text in actual.cycle:
            target = int(text.split()[1])
            assert (process, target) in graph[at]
            at = target
            walked.append(at)
            movers.add(process)
        assert walked[0] == walked[-1]
        assert set(walked) <= among
        assert set.intersection(*({process for process, _ in graph[node]} for node in walked)) <= movers


@pytest.mark.oracle
@given(graph=graphs, waiting=st.sets(st.integers(0, 6)))
def test_passing_over_is_what_the_longest_walk_counts(graph, waiting) -> None:
    """Twin: the most moves of process 0 in walks of 1, 2, 3, ... moves; more than there are nodes means a cycle of them."""
    explored = explore(0, moves_of(graph), finished=lambda _: True)
    among = {node for node in waiting if node in explored.states}
    most, longest = dict.fromkeys(among, 0), 0
    for _ in range((len(graph) + 1) ** 2):
        most = {at: max([0, *(most[to] + (process == 0) for process, to in graph[at] if to in among)]) for at in among}
        longest = max((most[to] for at in explored.states for _, to in graph[at] if to in among), default=0)
    actual = explored.most_passed_over(lambda node: node in among, lambda move: move[0] == 0)
    assert actual == (longest if longest < len(graph) else None)


@pytest.mark.oracle
@given(graph=graphs, goal=st.integers(0, 6))
def test_stuck_is_where_the_goal_cannot_be_reached(graph, goal) -> None:
    explored = explore(0, moves_of(graph), finished=lambda _: True)
    lost = [node for node in explored.states if node != goal and goal not in reachable(graph, node, set(range(7)))]
    actual = explored.stuck(lambda node: node == goal)
    assert (actual.state if actual else None) == (lost[0] if lost else None)


@pytest.mark.unit
def test_a_lock_made_of_two_flags_is_a_deadlock() -> None:
    """A classic that must be found: raise your flag, then wait until the other's is down."""

    def moves(state):
        flags, places = state
        for me, other in ((0, 1), (1, 0)):
            if places[me] == "out":
                yield (me, "raises"), (_set(flags, me, True), _set(places, me, "tries"))
            elif places[me] == "tries" and not flags[other]:
                yield (me, "enters"), (flags, _set(places, me, "in"))
            elif places[me] == "in":
                yield (me, "leaves"), (_set(flags, me, False), _set(places, me, "out"))

    finding = explore(((False, False), ("out", "out")), moves).finding
    assert finding is not None
    assert finding.what == "deadlock"
    assert finding.moves == ((0, "raises"), (1, "raises"))


def _set(values, place, value):
    return tuple(value if number == place else old for number, old in enumerate(values))


@pytest.mark.unit
def test_all_states_of_independent_counters_are_counted() -> None:
    def moves(state):
        for number, value in enumerate(state):
            if value < 3:
                yield (number, "counts"), _set(state, number, value + 1)

    explored = explore((0, 0, 0), moves, finished=lambda state: state == (3, 3, 3))
    assert sorted(explored.states) == sorted(product(range(4), repeat=3))
    assert explored.transitions == 3 * 3 * 16
    assert explored.finding is None
