"""A 2^k factorial in logarithms: what each idea adds alone, what any two or more add beyond that, and each one's fair share.

With f(S) the logarithm of the speedup of a machine with the ideas S over the one with none, the term of a set is what its members
add together beyond all that smaller sets of them add: d(S) = sum over T in S of (-1)^(|S| - |T|) f(T). Single ideas have what they
add alone; a pair's term is negative where one takes from the other what it would have gained (Amdahl), positive where one uncovers
it. All terms add up to f of all ideas, exactly. A term shared equally among its members gives the Shapley value of each
(L. S. Shapley: A value for n-person games. 1953), which also adds up to the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from trainyard.errors import BadInput

IDEAS = ("array", "order", "memory", "exchange")
Ideas = frozenset[str]


def subsets(ideas: Sequence[str]) -> Iterator[Ideas]:
    """All of them, small ones first.

    >>> [sorted(one) for one in subsets("ab")]
    [[], ['a'], ['b'], ['a', 'b']]
    """
    return (frozenset(some) for size in range(len(ideas) + 1) for some in combinations(ideas, size))


@dataclass(frozen=True, slots=True)
class Effects:
    """`terms` are natural logarithms of ratios, one for each set of ideas that is not empty."""

    ideas: tuple[str, ...]
    terms: Mapping[Ideas, float]

    @property
    def total(self) -> float:
        """Of all ideas together: the logarithm of their ratio."""
        return math.fsum(self.terms.values())

    @property
    def speedup(self) -> float:
        return math.exp(self.total)

    def alone(self, idea: str) -> float:
        """The ratio that one idea gives by itself."""
        return math.exp(self.terms[frozenset({idea})])

    def with_all(self, idea: str) -> float:
        """The ratio that it gives when all others are there."""
        return math.exp(math.fsum(term for some, term in self.terms.items() if idea in some))

    @property
    def interaction(self) -> float:
        """The ratio of all together over the product of each alone: below 1 where they get into each other's way."""
        return math.exp(math.fsum(term for some, term in self.terms.items() if len(some) > 1))

    @property
    def shapley(self) -> Mapping[str, float]:
        """Each idea's share of `total`, in logarithms.

        >>> found = decomposed({frozenset(): 8.0, frozenset("a"): 4.0, frozenset("b"): 8.0, frozenset("ab"): 2.0}, "ab")
        >>> found.shapley["a"] / math.log(2)
        1.5
        """
        return {idea: math.fsum(term / len(some) for some, term in self.terms.items() if idea in some) for idea in self.ideas}


def decomposed(costs: Mapping[Ideas, float], ideas: Sequence[str] = IDEAS) -> Effects:
    """From a cost (time, energy) of the machine with each set of ideas; lower is better.

    >>> found = decomposed({frozenset(): 8.0, frozenset("a"): 4.0, frozenset("b"): 8.0, frozenset("ab"): 2.0}, "ab")
    >>> round(found.alone("a"), 12), round(found.alone("b"), 12), round(found.interaction, 12), round(found.speedup, 12)
    (2.0, 1.0, 2.0, 4.0)
    """
    missing = [some for some in subsets(ideas) if some not in costs]
    if missing or any(not cost > 0 for cost in costs.values()):
        raise BadInput(
            f"a factorial needs a cost above 0 of every set of {', '.join(ideas)}: missing {[sorted(one) for one in missing]}"
        )
    gained = {some: math.log(costs[frozenset()] / costs[some]) for some in subsets(ideas)}
    terms: dict[Ideas, float] = {}
    for some in subsets(ideas):
        if some:
            terms[some] = gained[some] - math.fsum(term for inner, term in terms.items() if inner < some)
    return Effects(tuple(ideas), terms)
