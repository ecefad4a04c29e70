"""The arbiter of the DSC, which chooses the cluster that gets a free token next.

DIRECT, Sec. III-B: updates that conflict are resolved by priority; the scheme itself is not printed. Three orders:

| order       | who is next                                                       | a request is passed over by at most      |
|-------------|-------------------------------------------------------------------|------------------------------------------|
| round_robin | the first waiting cluster from the one behind the last winner on  | N - 1 grants                             |
| first_come  | who has waited longest                                            | N - 1 grants                             |
| priority    | the highest rank, among equals who has waited longest             | N - 2 + max(1, A (P - 1 - p)) grants     |

for N clusters with one request each, priorities p of 0 to P - 1, and A grants that a level of priority is worth. *Ageing*: a rank
starts at A p, each grant to another cluster raises it by one, and it saturates at the top, A (P - 1).

Why no request waits longer. Let D = A (P - 1 - p), the grants after which a request stands at the top. A later request never goes
before one at the top: it has at most the same rank, and is younger. So after D grants only older requests can, each once: at most
N - 1 of them if D = 0; if D > 0 at most N - 2, since the winner of grant D is not waiting. Both are reached (the tests find the
cases by exhaustion). Without ageing two clusters of a higher priority keep a third one out for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from trainyard.checks import require_positive
from trainyard.errors import BadInput, UnknownName

Order = Literal["round_robin", "priority", "first_come"]


class Request(NamedTuple):
    """A waiting cluster, and its current rank."""

    cluster: int
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arbiter:
    """Waiting requests are in order of arrival; `turn` is the cluster that round robin tries first.

    >>> arbiter = Arbiter(order="priority", levels=4, ageing=1)
    >>> waiting = (Request(5, arbiter.rank(0)), Request(2, arbiter.rank(3)))
    >>> arbiter.choose(waiting).cluster, arbiter.most_passed_over(clusters=8, priority=0)
    (2, 9)
    """

    order: Order = "round_robin"
    levels: int = 4
    ageing: int | None = 1

    def __post_init__(self) -> None:
        if self.order not in get_args(Order):
            raise UnknownName("token order", str(self.order), get_args(Order), where="Arbiter")
        require_positive("Arbiter", levels=self.levels)
        if self.ageing is not None:
            require_positive("Arbiter", ageing=self.ageing)

    @property
    def top(self) -> int:
        return (self.levels - 1) * (self.ageing or 1)

    def rank(self, priority: int) -> int:
        """The initial rank of a request of this priority; the other orders have no ranks."""
        if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority < self.levels:
            raise BadInput(f"Arbiter: priority must be a whole number of 0 to {self.levels - 1}, got {priority!r}")
        return priority * (self.ageing or 1) if self.order == "priority" else 0

    def choose(self, waiting: tuple[Request, ...], turn: int = 0) -> Request:
        """The next winner among one or more requests."""
        if self.order == "first_come":
            return waiting[0]
        if self.order == "priority":
            return max(waiting, key=lambda request: request.rank)  # the first of equals, which is the oldest
        return min(waiting, key=lambda request: (request.cluster < turn, request.cluster))

    def aged(self, waiting: tuple[Request, ...]) -> tuple[Request, ...]:
        """The ranks of requests that a grant has passed over."""
        if self.order != "priority" or self.ageing is None:
            return waiting
        return tuple(Request(cluster, min(rank + 1, self.top)) for cluster, rank in waiting)

    def most_passed_over(self, clusters: int, priority: int = 0) -> int | None:
        """The most grants to others before a request's own; None: no bound, it can starve."""
        require_positive("Arbiter", clusters=clusters)
        if self.order != "priority" or clusters == 1:
            return clusters - 1
        if self.ageing is None:
            return None if priority < self.levels - 1 else clusters - 1
        return clusters - 2 + max(1, self.top - self.rank(priority))
