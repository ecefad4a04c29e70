"""The commands that an agent may yield, and the resources, channels and agents that they refer to."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainyard.ir.plan import Flow, TaskClass


@dataclass(slots=True, eq=False)
class Resource:
    """A stream (`capacity` 1) or a semaphore; requests are served first come, first served."""

    name: str
    capacity: int = 1
    number: int = -1
    holders: dict[Agent, int] = field(default_factory=dict)
    queue: deque[tuple[Agent, Command]] = field(default_factory=deque)
    behind: dict[int, None] = field(default_factory=dict)  # the tasks of the agent that released it last

    def __repr__(self) -> str:
        return f"{'stream' if self.number >= 0 else 'semaphore'} {self.name!r}"


@dataclass(slots=True, eq=False)
class Channel:
    """An unbounded mailbox; items leave it in the order in which they came."""

    name: str
    items: deque[tuple[Any, dict[int, None]]] = field(default_factory=deque)
    readers: deque[Agent] = field(default_factory=deque)

    def __repr__(self) -> str:
        return f"channel {self.name!r}"


@dataclass(frozen=True, slots=True)
class Wait:
    """Waits for some time; this is no task of the timeline."""

    ps: int


@dataclass(frozen=True, slots=True)
class Compute:
    """Occupies a stream; a task of the timeline."""

    stream: Resource
    ps: int
    kind: TaskClass = TaskClass.COMPUTE
    tag: int = -1


@dataclass(frozen=True, slots=True)
class Transfer:
    """Flows [(path, bytes), ...] that start together, or one path and its `size` in bytes; a task of the timeline.

    `Transfer([ring], 4096)` is `Transfer([([ring], 4096)])`.
    """

    flows: Iterable[Flow] | Sequence[int]
    size: int | None = None
    stream: Resource | None = None
    kind: TaskClass = TaskClass.COPY
    tag: int = -1


@dataclass(frozen=True, slots=True)
class Acquire:
    """Waits for one unit of a resource and takes it."""

    resource: Resource


@dataclass(frozen=True, slots=True)
class Release:
    """Releases one unit of a resource."""

    resource: Resource


@dataclass(frozen=True, slots=True)
class Join:
    """Waits until an agent has ended; the value is that agent's result."""

    agent: Agent


@dataclass(frozen=True, slots=True)
class Put:
    """Puts an item into a channel."""

    channel: Channel
    item: Any = None


@dataclass(frozen=True, slots=True)
class Get:
    """Waits for an item of a channel; the value is the item."""

    channel: Channel


Command = Wait | Compute | Transfer | Acquire | Release | Join | Put | Get
Script = Generator[Command, Any, Any]


@dataclass(slots=True, eq=False)
class Agent:
    """A running generator; `value` is its result. `spawn` creates it, `Join` waits for it."""

    number: int
    name: str
    script: Script
    ended: bool = False
    value: Any = None
    waiting_for: Command | Resource | None = None
    held: int = 0  # units of resources
    joiners: list[Agent] = field(default_factory=list)
    behind: dict[int, None] = field(default_factory=dict)  # tasks that its next task comes after

    def __repr__(self) -> str:
        return f"agent {self.name!r}"
