"""The search of `hardware.topology.rings`: the most closed walks through all devices that share no link, shortest first.

Places are numbers, the devices first. Parallel wires are one *channel* with as many tokens as wires; a walk takes a token of every
channel it passes. Between two devices a walk may pass any other places. It never needs to pass one of them twice on that segment
(the loop could be cut out, which frees tokens and hops), so only such walks are searched. Bounds of the search:

- Every device gives up two tokens to a walk, so K walks need 2 K wires at each device (directed: K arcs in, K out).
- A walk that enters a set of places without devices leaves it again: an even number of the wires into it is of use.
- If the devices fall into c > 1 clusters when only segments of at most t hops are allowed, a walk has at least c segments of more
  than t hops. So a walk takes at least the sum of these c over t = 0, 1, 2, ... hops.
- A walk enters and leaves a device by different tokens: half of the device's two shortest segments counts for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

Tokens = tuple[int, ...]
"""How many tokens each channel has left."""


class OutOfSteps(Exception):
    """The search did not end within its steps."""


@dataclass(frozen=True, slots=True)
class Walk:
    """`places` in order (the first is not repeated), the `channels` between them, and what is left after it."""

    places: tuple[int, ...]
    channels: tuple[int, ...]
    left: Tokens

    @property
    def hops(self) -> int:
        return len(self.places)


Walks = tuple[Walk, ...]


class Search:
    """Walks in a graph of devices and other places. `ends` are the places of each channel; a directed one leads to the second."""

    def __init__(
        self, devices: int, places: int, ends: list[tuple[int, int]], tokens: Tokens, *, directed: bool, steps: int
    ) -> None:
        self.devices, self.places, self.ends, self.tokens, self.directed, self.steps = (
            devices,
            places,
            ends,
            tokens,
            directed,
            steps,
        )
        self.neighbours: list[list[tuple[int, int]]] = [[] for _ in range(places)]
        for channel, (a, b) in enumerate(ends):
            self.neighbours[a].append((b, channel))
            if not directed:
                self.neighbours[b].append((a, channel))
        for row in self.neighbours:
            row.sort()
        self.onward = [[(there, channel) for there, channel in row if there >= devices] for row in self.neighbours]
        self.direct = {(here, there): channel for here, row in enumerate(self.neighbours) for there, channel in row}
        self.cache: dict[tuple[Tokens, int], tuple[Walks | None, Tokens | None]] = {}

    # ---- bounds
    def most(self) -> int:
        """An upper bound on the number of walks."""
        wires, into, between = self._wires()
        if self.directed:
            return min(wires)
        count = min(wires) // 2
        while count and 2 * count * self.devices > between + sum(
            sum(min(w, 2 * count) for w in row.values()) // 2 * 2 for row in into
        ):
            count -= 1
        return count

    def _wires(self) -> tuple[list[int], list[dict[int, int]], int]:
        """Tokens out of each device; of each device into each connected set of other places; ends of wires between devices."""
        group = list(range(self.places))
        for a, b in self.ends:
            if min(a, b) >= self.devices:
                group[_root(group, a)] = _root(group, b)
        wires, between, into = [0] * self.devices, 0, dict[int, dict[int, int]]()
        for (a, b), count in zip(self.ends, self.tokens, strict=True):
            for device, other in ((a, b),) if self.directed else ((a, b), (b, a)):
                if device < self.devices:
                    wires[device] += count
                    if other < self.devices:
                        between += count
                    else:
                        row = into.setdefault(_root(group, other), {})
                        row[device] = row.get(device, 0) + count
        return wires, list(into.values()), between

    def least_hops(self, tokens: Tokens) -> int | None:
        """The clusters' bound for one walk; None if the devices are not connected.

        Clusters by segments of at most t hops are those of a shortest spanning tree, from the regions nearest to each device
        (K. Mehlhorn: A faster approximation algorithm for the Steiner problem in graphs. IPL 1988).
        """
        owner, distance = self._regions(tokens)
        bridges: list[tuple[int, int, int]] = []
        for (a, b), count in zip(self.ends, tokens, strict=True):
            if count and owner[a] >= 0 and owner[b] >= 0 and owner[a] != owner[b]:
                bridges.append((distance[a] + 1 + distance[b], owner[a], owner[b]))
        cluster = list(range(self.devices))
        clusters, hops, reached = self.devices, 0, 0
        for length, a, b in sorted(bridges):
            if clusters == 1:
                break
            if _root(cluster, a) != _root(cluster, b):
                hops += clusters * (length - reached)
                reached = length
                cluster[_root(cluster, a)] = _root(cluster, b)
                clusters -= 1
        return hops if clusters == 1 else None

    def _regions(self, tokens: Tokens) -> tuple[list[int], list[int]]:
        """The device nearest to each place (-1: none), and its hops, along channels with tokens in either direction."""
        owner = [*range(self.devices), *[-1] * (self.places - self.devices)]
        distance = [0] * self.places
        adjacent: list[list[int]] = [[] for _ in range(self.places)]
        for (a, b), count in zip(self.ends, tokens, strict=True):
            if count:
                adjacent[a].append(b)
                adjacent[b].append(a)
        waiting = deque(range(self.devices))
        while waiting:
            here = waiting.popleft()
            for there in adjacent[here]:
                if owner[there] < 0:
                    owner[there], distance[there] = owner[here], distance[here] + 1
                    waiting.append(there)
        return owner, distance

    # ---- in order
    def in_order(self, count: int) -> Walks:
        """Up to `count` walks through the devices in their own order, each segment as short as the tokens left allow."""
        left, walks = list(self.tokens), list[Walk]()
        for _ in range(count):
            places, channels = list[int](), list[int]()
            for device in range(self.devices):
                segment = self._segment(device, (device + 1) % self.devices, left)
                if segment is None:
                    return tuple(walks)
                for channel, there in segment:
                    left[channel] -= 1
                    channels.append(channel)
                    places.append(there)
            walks.append(Walk((places[-1], *places[:-1]), tuple(channels), tuple(left)))
        return tuple(walks)

    def _segment(self, start: int, goal: int, left: list[int]) -> list[tuple[int, int]] | None:
        """A shortest segment through other places, as (channel, place); a channel of one token is not passed twice."""
        came: dict[int, tuple[int, int]] = {}
        queue = deque([start])
        while queue:
            here = queue.popleft()
            last = self.direct.get((here, goal))
            if last is not None and left[last]:
                segment = [(last, goal)]
                while here != start:
                    before, channel = came[here]
                    segment.append((channel, here))
                    here = before
                return segment[::-1]
            for there, channel in self.onward[here]:
                if left[channel] and there not in came:
                    came[there] = (here, channel)
                    queue.append(there)
        return None

    # ---- exact
    def best(self, tokens: Tokens, count: int, beat: Tokens | None = None) -> Walks | None:
        """`count` walks whose hops, shortest first, come first in lexicographic order and before `beat`; None if there are none."""
        if not count:
            return ()
        cached = self.cache.get((tokens, count))
        if cached is not None and (cached[0] is not None or cached[1] is None or (beat is not None and beat <= cached[1])):
            walks = cached[0]
            return walks if walks is None or beat is None or _hops(walks) < beat else None
        walks = self._best(tokens, count, beat)
        self.cache[tokens, count] = (walks, beat)
        return walks

    def _best(self, tokens: Tokens, count: int, beat: Tokens | None) -> Walks | None:
        least = self.least_hops(tokens)
        if least is None:
            return None
        for hops in range(least, min(sum(tokens) - (count - 1) * least, self.devices * (self.places - self.devices + 1)) + 1):
            if beat is not None and (hops,) * count >= beat:
                return None
            best_walks: Walks | None = None
            limit = beat[1:] if beat is not None and beat[0] == hops else None
            tried: set[Tokens] = set()
            for walk in self.walks(tokens, hops):
                if walk.left not in tried:
                    tried.add(walk.left)
                    rest = self.best(walk.left, count - 1, limit)
                    if rest is not None:
                        best_walks, limit = (walk, *rest), _hops(rest)
                        if limit == (hops,) * (count - 1):
                            break
            if best_walks is not None:
                return best_walks
        return None

    def walks(self, tokens: Tokens, hops: int) -> Iterator[Walk]:
        """All closed walks of so many hops, depth first, nearest number first; each from device 0."""
        bound = _Bound(self, tokens)
        left, path, taken = list(tokens), [0], list[int]()
        visited = [False] * self.places
        visited[0] = True
        need = bound.need  # of the devices not yet visited, in half hops
        unvisited, home = self.devices - 1, 0
        rows: list[Iterator[tuple[int, int]]] = [iter(self.neighbours[0])]
        segments: list[int] = [0]  # for each place on the path: where in it the device lies that was passed last
        while rows:
            room = 2 * (hops - len(taken) - 1)
            for there, channel in rows[-1]:
                if not left[channel] or room < 0:
                    continue
                if there == 0:
                    if not unvisited and not room:
                        left[channel] -= 1
                        if self.directed or self.devices < 3 or self._first(path) < path[segments[-1]]:
                            yield Walk(tuple(path), (*taken, channel), tuple(left))
                        left[channel] += 1
                    continue
                if visited[there]:
                    continue
                if not taken:
                    home = bound.leave(0, channel)
                if there < self.devices:
                    if room < need - bound.both[there] + bound.leave(there, channel) + home:
                        continue
                elif not unvisited:
                    if room < 2 * bound.out[there]:
                        continue
                elif room < 2 * bound.out[there] + need - bound.largest + home:
                    continue
                self.steps -= 1
                if self.steps < 0:
                    raise OutOfSteps
                left[channel] -= 1
                taken.append(channel)
                path.append(there)
                visited[there] = True
                if there < self.devices:
                    need -= bound.both[there]
                    unvisited -= 1
                    for place in path[segments[-1] + 1 : -1]:
                        visited[place] = False  # may be passed again on another way
                    segments.append(len(path) - 1)
                else:
                    segments.append(segments[-1])
                rows.append(iter(self.neighbours[there]))
                break
            else:
                rows.pop()
                place = path.pop()
                segments.pop()
                visited[place] = False
                if taken:
                    left[taken.pop()] += 1
                    if place < self.devices:
                        need += bound.both[place]
                        unvisited += 1
                        for passed in path[segments[-1] + 1 :]:
                            visited[passed] = True

    def _first(self, path: list[int]) -> int:
        return next(place for place in path[1:] if place < self.devices)


class _Bound:
    """A lower bound on the rest of a walk, in half hops, from the tokens left when it starts."""

    def __init__(self, search: Search, tokens: Tokens) -> None:
        """`both[d]`: the two shortest segments of different tokens at device d; `out[place]`: hops to the nearest device."""
        near: list[list[tuple[int, int]]] = [[] for _ in range(search.places)]  # the two nearest devices of each place, with hops
        adjacent: list[list[tuple[int, int]]] = [[] for _ in range(search.places)]
        for channel, ((a, b), count) in enumerate(zip(search.ends, tokens, strict=True)):
            if count:
                adjacent[a].append((b, channel))
                adjacent[b].append((a, channel))
        waiting = deque((device, device, 0) for device in range(search.devices))
        while waiting:
            here, device, hops = waiting.popleft()
            for there, _ in adjacent[here]:
                if there >= search.devices and len(near[there]) < 2 and all(device != other for other, _ in near[there]):
                    near[there].append((device, hops + 1))
                    waiting.append((there, device, hops + 1))
        self.out = [row[0][1] if row else search.places for row in near]
        self.both, self.segments = [0] * search.devices, list[dict[int, int]]()
        for device in range(search.devices):
            segments: dict[int, int] = {}
            lengths: list[int] = []
            for there, channel in adjacent[device]:
                length = 1 if there < search.devices else 1 + min((h for d, h in near[there] if d != device), default=search.places)
                segments[channel] = length
                lengths += [length] * (2 if search.directed else tokens[channel])
            lengths.sort()
            self.both[device] = sum(lengths[:2]) if len(lengths) > 1 else 2 * search.places
            self.segments.append({channel: self._other(lengths, length, search.directed) for channel, length in segments.items()})
        self.need = sum(self.both[1:])
        self.largest = max(
            both - min(segments.values(), default=0) for both, segments in zip(self.both, self.segments, strict=True)
        )

    @staticmethod
    def _other(lengths: list[int], length: int, directed: bool) -> int:
        """The shortest segment by another token than one of this length."""
        if directed:
            return lengths[0]
        return lengths[1] if length == lengths[0] and len(lengths) > 1 else lengths[0]

    def leave(self, device: int, channel: int) -> int:
        return self.segments[device][channel]


def _root(parents: list[int], item: int) -> int:
    """The root of an item in a union-find forest, with path halving."""
    while parents[item] != item:
        parents[item] = parents[parents[item]]
        item = parents[item]
    return item


def _hops(walks: Walks) -> Tokens:
    return tuple(walk.hops for walk in walks)
