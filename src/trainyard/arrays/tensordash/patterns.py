"""Promotion patterns: which values of the staging buffer a lane's multiplexer can read, in the order of its priority encoder.

M. Mahmoud et al.: TensorDash: Exploiting Sparsity to Accelerate Deep Neural Network Training. MICRO 2020.
Sec. III-A, Fig. 3c, 5, 6.

An option (s, o) of lane i is the value of lane i + o (the lanes are a ring) that is due s steps ahead: (0, 0) is the dense
schedule, (s, 0) lookahead, (s, o) lookaside. Two lanes that can read the same value must not choose at once: lanes whose
options cannot conflict share a level of the scheduler, and a level sees what the levels before it took. The paper prints the 2-deep
and the 4-deep pattern; the others are our choice, as their rows say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from trainyard.checks import require_positive
from trainyard.errors import BadInput

Option = tuple[int, int]
"""(steps ahead, lane offset)."""
Options = tuple[Option, ...]
Levels = tuple[tuple[int, ...], ...]

NARROW_LANES = 15
"""assumed: the paper calls units of 4 narrow and of 16 wide; what is below 16 gets the multiplexers of the narrow one."""
EXACT_LANES = 16
"""Up to here the fewest levels are searched for; the paper's widest unit has 16 lanes. Beyond, lanes are placed first fit."""

# fmt: off
DENSE: Options = ((0, 0),)
"""1 deep: nothing to promote."""

TWO_DEEP: Options = (
    (0, 0),           # Fig. 3c: the dense schedule
    (1, 0),           # Fig. 3c: lookahead
    (1, -1), (1, 1),  # Fig. 3c: lookaside; the order of the two is not printed
)

FOUR_DEEP: Options = (
    (0, 0),                  # Sec. III-A, Fig. 5: the dense schedule first
    (1, 0), (2, 0), (3, 0),  # Sec. III-A: lookahead, the nearest step first
    (1, 1), (1, -1),         # Sec. III-A: lookaside
    (2, 2), (3, 3),          # Sec. III-A: lookaside
)

THREE_DEEP: Options = (
    (0, 0),          # Sec. IV-D: 3 deep has four promotions; which ones is not printed
    (1, 0),          # assumed: best of all lists in this order (lookahead, then lookaside, nearest first) on random zeros, 40 to
    (1, 1), (2, 2),  # 90 %, 4 lanes: 1.4 % over (1, 0), (2, 0), (1, 1); lookasides spread over the steps, as Sec. IV-D advises
)

FIVE_DEEP: Options = (
    (0, 0),                   # Sec. IV-D: 5 deep keeps eight; which ones is not printed
    (1, 0), (2, 0),           # assumed: best of 4,081 lists in this order on random zeros, 40 to 90 %, 4 lanes (7 % over Fig. 5);
    (1, 1), (2, 2),           # its offsets written so that it is among the best on 16 lanes too
    (3, 1), (3, -2), (4, 3),  # assumed: the same
)

THREE_DEEP_WIDE: Options = (
    (0, 0),                   # Sec. IV-D: 16 lanes, 3 deep: eight promotions that schedule in 6 levels; which ones is not printed
    (1, 0), (2, 0),           # assumed: both lookaheads
    (1, 1), (1, -1), (1, -3), # assumed: three lanes in a level are 5 apart at least, so offsets of a step span 4 at most: -3 to 1
    (2, 2), (2, -2),          # assumed: and -2 to 2; lists of this kind differ by 1 % on random zeros
)
# fmt: on


def default_options(lanes: int, depth: int) -> Options:
    """The pattern of a unit: the paper's where it prints one, else the chosen table; beyond 5 deep, Fig. 5 continued.

    Fig. 5 continued: the dense value, every lookahead, then the lookasides (1, 1), (1, -1), (2, 2), (3, 3), (4, 4) and so on;
    twice as many inputs as steps, as there.

    >>> default_options(lanes=4, depth=2)
    ((0, 0), (1, 0), (1, -1), (1, 1))
    >>> len(default_options(lanes=16, depth=3)), len(default_options(lanes=4, depth=6))
    (8, 12)
    """
    require_positive("promotion pattern", lanes=lanes, depth=depth)
    if depth == 3:
        return THREE_DEEP if lanes <= NARROW_LANES else THREE_DEEP_WIDE
    if depth <= 5:
        return {1: DENSE, 2: TWO_DEEP, 4: FOUR_DEEP, 5: FIVE_DEEP}[depth]
    ahead = tuple((step, 0) for step in range(depth))
    aside = tuple((step, step) for step in range(2, depth))
    return (*ahead, (1, 1), (1, -1), *aside)


def checked(options: Iterable[Sequence[int]], lanes: int, depth: int) -> Options:
    """A user's list as a pattern, or an error that names the invalid entry.

    Options that coincide only because the ring of lanes is short are accepted: the later one is never taken.

    >>> checked([[0, 0], [1, 1]], lanes=4, depth=2)
    ((0, 0), (1, 1))
    >>> checked([(0, 0), (2, 0)], lanes=4, depth=2)
    Traceback (most recent call last):
    trainyard.errors.BadInput: promotion option 1 is (2, 0): step 2 is not in a 2-deep staging buffer; steps are 0 to 1
    """
    require_positive("promotion pattern", lanes=lanes, depth=depth)
    if not isinstance(options, Iterable):
        raise BadInput(f"promotion options are a list of (step, lane offset) pairs such as [(0, 0), (1, 0)], got {options!r}")
    pattern: list[Option] = []
    for number, entry in enumerate(options):
        option = _pair(number, entry)
        if not 0 <= option[0] < depth:
            raise BadInput(
                f"promotion option {number} is {option}: step {option[0]} is not in a {depth}-deep staging buffer; "
                f"steps are 0 to {depth - 1}"
            )
        if option in pattern:
            raise BadInput(f"promotion option {number}, {option}, stands there twice: first as option {pattern.index(option)}")
        pattern.append(option)
    if not pattern:
        raise BadInput("no promotion options: the shortest list is [(0, 0)], the dense schedule")
    if pattern[0] != (0, 0):
        raise BadInput(
            f"the first promotion option is {pattern[0]}: it must be (0, 0), the dense schedule, "
            "or the current step would not always drain and zero skipping could be slower than none"
        )
    return tuple(pattern)


def _pair(number: int, entry: object) -> Option:
    """One (step, offset) of whole numbers, numpy's included."""
    import numpy as np

    if isinstance(entry, np.ndarray):
        entry = entry.tolist()
    if not isinstance(entry, Sequence) or isinstance(entry, str) or len(entry) != 2:
        raise BadInput(f"promotion option {number} is {entry!r}: it must be a pair (step, lane offset)")
    for part in entry:
        if isinstance(part, bool) or not isinstance(part, int | np.integer):
            raise BadInput(f"promotion option {number} is {entry!r}: step and lane offset must be whole numbers")
    return int(entry[0]), int(entry[1])


def conflict(options: Options, lanes: int) -> dict[tuple[int, int], tuple[int, int]]:
    """Pairs of lanes (lower, higher) that can pick the same value, each with one such value as (step, lane).

    >>> conflict(((0, 0), (1, 0), (1, 1)), lanes=4)[0, 1]
    (1, 1)
    >>> (0, 2) in conflict(((0, 0), (1, 0), (1, 1)), lanes=4)
    False
    """
    conflicts: dict[tuple[int, int], tuple[int, int]] = {}
    readers: dict[tuple[int, int], list[int]] = {}
    for lane in range(lanes):
        for value in dict.fromkeys((step, (lane + offset) % lanes) for step, offset in options):
            readers.setdefault(value, []).append(lane)
    for value in sorted(readers):
        for pair in combinations(readers[value], 2):
            conflicts.setdefault(pair, value)
    return conflicts


def levels(options: Options, lanes: int) -> Levels:
    """Lanes grouped into the fewest levels in which no two can pick the same value.

    Beyond 16 lanes each lane goes to the first level that it fits: few levels, perhaps not the fewest.

    >>> levels(FOUR_DEEP, lanes=4)  # Sec. III-A: one lane per level is necessary
    ((0,), (1,), (2,), (3,))
    >>> levels(THREE_DEEP_WIDE, lanes=16)  # Sec. IV-D: 6 levels
    ((0, 5, 10), (1, 6, 11), (2, 7, 12), (3, 8, 13), (4, 9, 14), (15,))
    """
    require_positive("promotion pattern", lanes=lanes)
    conflicts = [0] * lanes
    for first, second in conflict(options, lanes):
        conflicts[first] |= 1 << second
        conflicts[second] |= 1 << first
    if lanes > EXACT_LANES:
        return _grouped(_first_fit(conflicts))
    fewest = -(-lanes // _most_at_once(conflicts))
    while (level_of_lane := _levels_of_lanes(conflicts, fewest)) is None:
        fewest += 1
    return _grouped(level_of_lane)


def _grouped(level_of_lane: list[int]) -> Levels:
    return tuple(
        tuple(lane for lane, level in enumerate(level_of_lane) if level == wanted) for wanted in range(max(level_of_lane) + 1)
    )


def _first_fit(conflicts: list[int]) -> list[int]:
    """Each lane into the first level that it can share."""
    members: list[int] = []
    level_of_lane: list[int] = []
    for lane, against in enumerate(conflicts):
        level = next((number for number, inside in enumerate(members) if not inside & against), len(members))
        if level == len(members):
            members.append(0)
        members[level] |= 1 << lane
        level_of_lane.append(level)
    return level_of_lane


def _most_at_once(conflicts: list[int]) -> int:
    """The largest number of lanes that one level can hold: the largest independent set, by trying each lane in or out."""

    def most(open_lanes: int) -> int:
        if not open_lanes:
            return 0
        lane = open_lanes.bit_length() - 1
        without = open_lanes & ~(1 << lane)
        inside = 1 + most(without & ~conflicts[lane])
        return inside if not without & conflicts[lane] else max(inside, most(without))

    return most((1 << len(conflicts)) - 1)


def _levels_of_lanes(conflicts: list[int], most_levels: int) -> list[int] | None:
    """The level of each lane with at most `most_levels` levels, the first such assignment in lane order; None if there is none."""
    members, level_of_lane = [0] * most_levels, [0] * len(conflicts)

    def fits(lane: int, used: int) -> bool:
        if lane == len(conflicts):
            return True
        for level in range(min(used + 1, most_levels)):  # all empty levels are equivalent
            if not members[level] & conflicts[lane]:
                members[level] |= 1 << lane
                level_of_lane[lane] = level
                if fits(lane + 1, max(used, level + 1)):
                    return True
                members[level] ^= 1 << lane
        return False

    return level_of_lane if fits(0, 0) else None


def _levels(levels: object) -> Levels:
    """Levels of whole numbers, numpy's included."""
    import numpy as np

    if not isinstance(levels, Iterable) or isinstance(levels, str):
        raise BadInput(f"levels are a list of lists of lanes such as [[0], [1], [2], [3]], got {levels!r}")
    parsed = []
    for number, level in enumerate(levels):
        if not isinstance(level, Iterable) or isinstance(level, str):
            raise BadInput(f"level {number} is {level!r}: it must be a list of lanes such as [{number}]")
        lanes = tuple(level)
        for lane in lanes:
            if isinstance(lane, bool) or not isinstance(lane, int | np.integer):
                raise BadInput(f"level {number} names lane {lane!r}: lanes are whole numbers")
        parsed.append(tuple(int(lane) for lane in lanes))
    return tuple(parsed)


def require_legal(levels: Iterable[Iterable[int]], options: Options, lanes: int) -> Levels:
    """The levels, checked: each lane is in one of them, and no two lanes of a level can pick the same value.

    >>> require_legal([(0, 1), (2,), (3,)], FOUR_DEEP, lanes=4)
    Traceback (most recent call last):
    trainyard.errors.BadInput: lanes 0 and 1 share level 0 but can both pick step +1 of lane 0: put them in different levels
    """
    parsed = _levels(levels)
    seen: set[int] = set()
    for number, level in enumerate(parsed):
        for lane in level:
            if not 0 <= lane < lanes:
                raise BadInput(f"level {number} names lane {lane}: there are {lanes} lanes, 0 to {lanes - 1}")
            if lane in seen:
                raise BadInput(f"lane {lane} stands twice in the levels, again in level {number}: it chooses once a cycle")
            seen.add(lane)
    if len(seen) < lanes:
        missing = sorted(set(range(lanes)) - seen)
        raise BadInput(f"lane {missing[0]} stands in no level: each of the {lanes} lanes must choose once a cycle")
    conflicts_of_lanes = conflict(options, lanes)
    for number, level in enumerate(parsed):
        for first, second in combinations(sorted(level), 2):
            if (first, second) in conflicts_of_lanes:
                step, lane = conflicts_of_lanes[first, second]
                raise BadInput(
                    f"lanes {first} and {second} share level {number} but can both pick step +{step} of lane {lane}: "
                    "put them in different levels"
                )
    return parsed
