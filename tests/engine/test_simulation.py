"""Agents: who is served first, what they may hold, and what is said when they get stuck."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.engine import Acquire, Compute, Deadlock, Get, Join, Put, Release, Simulation, Transfer, Wait
from trainyard.errors import BadInput
from trainyard.ir import TaskClass


def test_simultaneous_requests_are_served_in_order_of_spawning():
    simulation, served = Simulation(), []
    door = simulation.semaphore("door")

    def agent(number):
        yield Wait(10)
        yield Acquire(door)
        served.append((number, simulation.now_ps))
        yield Wait(5)
        yield Release(door)

    for number in range(4):
        simulation.spawn(agent(number))
    simulation.run()
    assert served == [(0, 10), (1, 15), (2, 20), (3, 25)]


def test_requests_are_served_first_come_first_served():
    simulation, served = Simulation(), []
    door = simulation.semaphore("door")

    def agent(number, comes_ps):
        yield Wait(comes_ps)
        yield Acquire(door)
        served.append(number)
        yield Wait(100)
        yield Release(door)

    for number, comes_ps in enumerate([3, 2, 1]):
        simulation.spawn(agent(number, comes_ps))
    simulation.run()
    assert served == [2, 1, 0]


@given(st.integers(1, 4), st.lists(st.integers(0, 20), min_size=1, max_size=10))
def test_a_semaphore_never_exceeds_its_count(count, lengths):
    simulation, inside, most = Simulation(), 0, 0
    room = simulation.semaphore("room", count)

    def agent(length):
        nonlocal inside, most
        yield Acquire(room)
        inside += 1
        most = max(most, inside)
        yield Wait(length)
        inside -= 1
        yield Release(room)

    for length in lengths:
        simulation.spawn(agent(length))
    simulation.run()
    assert most == min(count, len(lengths))


def test_agents_spawn_others_and_join_them_for_their_value():
    simulation = Simulation()
    device = simulation.stream("device")

    def child(ps):
        yield Compute(device, ps, tag=ps)
        return ps * 2

    def parent():
        yield Wait(5)
        children = [simulation.spawn(child(ps)) for ps in (10, 20)]
        total = 0
        for each in children:
            total += yield Join(each)
        yield Wait(1)
        return total + (yield Join(children[0]))

    agent = simulation.spawn(parent())
    timeline = simulation.run()
    assert (timeline.starts_ps.tolist(), timeline.ends_ps.tolist(), timeline.tags.tolist()) == ([5, 15], [15, 35], [10, 20])
    assert agent.value == 80
    assert simulation.now_ps == 36


def test_an_acquired_stream_is_exclusive():
    simulation = Simulation()
    device = simulation.stream("device")

    def greedy():
        yield Acquire(device)
        yield Compute(device, 10, tag=0)
        yield Wait(7)
        yield Compute(device, 10, tag=1)
        yield Release(device)

    def modest():
        yield Compute(device, 5, tag=2)

    simulation.spawn(greedy())
    simulation.spawn(modest())
    timeline = simulation.run()
    assert timeline.tags.tolist() == [0, 1, 2]
    assert timeline.starts_ps.tolist() == [0, 17, 27]


def test_transfers_share_links_and_carry_their_class():
    simulation = Simulation()
    bus, copier = simulation.link("bus", 1e12, 10e-12), simulation.stream("copy engine")

    def agent(size):
        yield Transfer([bus], size, stream=copier if size == 50 else None, kind=TaskClass.SYNCHRONISATION)

    for size in (300, 100, 0):
        simulation.spawn(agent(size))
    timeline = simulation.run()
    assert timeline.ends_ps.tolist() == [410, 210, 10]
    assert timeline.class_exposed()["synchronisation"] == 410


def test_agents_decide_on_staleness_at_run_time():
    """Workers of unlike speed; none may be more than `tau` rounds ahead of the slowest."""
    simulation, rounds, tau = Simulation(), [0, 0, 0], 2
    devices = [simulation.stream(f"device {number}") for number in range(3)]
    tokens = [simulation.channel(f"tokens {number}") for number in range(3)]
    most_ahead = 0

    def worker(number):
        nonlocal most_ahead
        for done in range(1, 9):
            while done - min(rounds) > tau:
                yield Get(tokens[number])
            yield Compute(devices[number], 10 * (number + 1), tag=number)
            rounds[number] = done
            most_ahead = max(most_ahead, max(rounds) - min(rounds))
            for other in range(3):
                if other != number:
                    yield Put(tokens[other])

    for number in range(3):
        simulation.spawn(worker(number), name=f"worker {number}")
    timeline = simulation.run()
    assert most_ahead == tau
    assert timeline.end_ps == 8 * 30  # the slowest is never held up


def test_items_leave_a_channel_in_the_order_in_which_they_came():
    simulation, seen = Simulation(), []
    mail = simulation.channel("mail")

    def writer():
        for item in range(3):
            yield Put(mail, item)
            yield Wait(10)

    def reader():
        yield Wait(15)
        for _ in range(3):
            item = yield Get(mail)
            seen.append((item, simulation.now_ps))

    simulation.spawn(writer())
    simulation.spawn(reader())
    simulation.run()
    assert seen == [(0, 15), (1, 15), (2, 20)]


def test_a_deadlock_names_the_waiting_agents_and_their_resources():
    simulation = Simulation()
    left, right, mail = simulation.semaphore("left"), simulation.stream("right"), simulation.channel("mail")

    def agent(first, second):
        yield Acquire(first)
        yield Wait(10)
        yield Acquire(second)

    def reader():
        yield Get(mail)

    simulation.spawn(agent(left, right), name="Ada")
    simulation.spawn(agent(right, left), name="Bob")
    simulation.spawn(reader(), name="Cy")
    message = r"deadlock at 10 ps.*Ada \(for stream 'right'\), Bob \(for semaphore 'left'\), Cy \(for an item of channel 'mail'\)"
    with pytest.raises(Deadlock, match=message):
        simulation.run()


def test_an_agent_that_waits_for_itself_is_a_deadlock():
    simulation, agents = Simulation(), []

    def agent():
        yield Join(agents[0])

    agents.append(simulation.spawn(agent(), name="Ada"))
    with pytest.raises(Deadlock, match=r"Ada \(for agent 'Ada' to end\)"):
        simulation.run()


# fmt: off
MISUSES = [
    (lambda s, d, m: [Release(d)],                        "releases stream 'device', which it does not hold"),
    (lambda s, d, m: [Acquire(m), Release(m), Release(m)], "releases semaphore 'door', which it does not hold"),
    (lambda s, d, m: [Acquire(m)],                        "still holds semaphore 'door'"),
    (lambda s, d, m: [Wait(-1)],                          "Wait must be at least 0"),
    (lambda s, d, m: [Wait(0.5)],                         "Wait must be a whole number"),
    (lambda s, d, m: [Wait(2**62 - 1), Wait(1)],          "53 days"),
    (lambda s, d, m: [Compute(d, -1)],                    "Compute must be at least 0"),
    (lambda s, d, m: [Compute(m, 1)],                     "semaphore 'door' is not a stream"),
    (lambda s, d, m: [Transfer([7], 1)],                  "link 7 is not known"),
    (lambda s, d, m: [3],                                 "yielded 3: yield Wait"),
]
# fmt: on


@pytest.mark.parametrize(("script", "message"), MISUSES)
def test_misuse_raises_with_the_agents_name(script, message):
    simulation = Simulation()
    commands = script(simulation, simulation.stream("device"), simulation.semaphore("door"))
    simulation.spawn((command for command in commands), name="Ada")
    with pytest.raises(BadInput, match=message) as caught:
        simulation.run()
    assert "Ada" in str(caught.value) or any("Ada" in note for note in getattr(caught.value, "__notes__", []))


def test_an_agents_error_notes_agent_and_time():
    simulation = Simulation()

    def agent():
        yield Wait(10)
        raise ZeroDivisionError("oops")

    simulation.spawn(agent(), name="Ada")
    with pytest.raises(ZeroDivisionError, match="oops") as caught:
        simulation.run()
    assert caught.value.__notes__ == ["in agent 'Ada' at 10 ps"]


def test_a_simulation_takes_generators_and_runs_once():
    simulation = Simulation()
    with pytest.raises(BadInput, match="spawn takes a generator"):
        simulation.spawn(test_a_simulation_takes_generators_and_runs_once)
    assert len(simulation.run()) == 0
    with pytest.raises(BadInput, match="runs once"):
        simulation.run()


def test_waiting_zero_time_lets_other_agents_of_the_instant_go_first():
    """Waiting for no time lets the others of this instant go first."""
    simulation, turns = Simulation(), []

    def agent(name):
        for _ in range(3):
            turns.append(name)
            yield Wait(0)

    simulation.spawn(agent("a"))
    simulation.spawn(agent("b"))
    simulation.run()
    assert "".join(turns) == "ababab"


def test_agents_due_at_the_same_instant_resume_in_order_of_spawning_whichever_began_to_wait_first():
    simulation, turns = Simulation(), []

    def agent(name, waits):
        for ps in waits:
            yield Wait(ps)
        turns.append((name, simulation.now_ps))

    simulation.spawn(agent("a", [4, 6]))  # begins its last wait after b has begun its only one
    simulation.spawn(agent("b", [10]))
    simulation.run()
    assert turns == [("a", 10), ("b", 10)]


def test_a_transfer_without_a_stream_has_stream_minus_one_in_the_timeline():
    simulation = Simulation()
    bus, copier = simulation.link("bus", 1e12), simulation.stream("copier")

    def agent(stream):
        yield Transfer([bus], 100, stream=stream)

    simulation.spawn(agent(None))
    simulation.spawn(agent(copier))
    assert simulation.run().streams.tolist() == [-1, 0]


def test_an_agent_that_was_queued_for_a_stream_waits_for_its_transfer_once_it_has_the_stream():
    simulation, seen = Simulation(), []
    bus, copier = simulation.link("bus", 1e12), simulation.stream("copier")

    def agent():
        yield Transfer([bus], 100, stream=copier)

    def observer(other):
        for _ in range(2):
            yield Wait(60)
            seen.append(other.waiting_for)

    simulation.spawn(agent())
    second = simulation.spawn(agent())
    simulation.spawn(observer(second))
    simulation.run()
    assert seen[0] is copier
    assert isinstance(seen[1], Transfer)


def test_a_task_depends_on_the_tasks_of_the_agent_that_released_its_semaphore():
    simulation = Simulation()
    door, devices = simulation.semaphore("door"), [simulation.stream("left"), simulation.stream("right")]

    def agent(device):
        yield Acquire(door)
        yield Compute(device, 10)
        yield Release(door)

    for device in devices:
        simulation.spawn(agent(device))
    timeline = simulation.run()
    assert timeline.starts_ps.tolist() == [0, 10]
    assert timeline.critical_path() == (0, 1)


def test_a_semaphore_of_no_units_raises():
    with pytest.raises(BadInput, match="semaphore 'door': count must be at least 1"):
        Simulation().semaphore("door", 0)
