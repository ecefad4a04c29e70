"""How the sum of a dot product that crosses Flex-DPEs is put together, and what that adds to a fold's last reduction.

SIGMA (HPCA 2020, Sec. IV-B) makes one Flex-DPU of several Flex-DPEs and does not say where their partial sums meet: an assumption.

| across   | where partial sums meet                                | cycles after a fold's last products                    |
|----------|--------------------------------------------------------|--------------------------------------------------------|
| `tree`   | an adder tree over all Flex-DPEs, on the way out       | ceil(log2(dpes * multipliers)), whatever crosses       |
| `chain`  | each Flex-DPE hands its sum to its neighbour           | log2(multipliers) + Flex-DPEs of the longest - 1       |
| `buffer` | the output buffer adds what comes, `bandwidth` a cycle | log2(multipliers) + ceil(waiting partials / bandwidth) |

Folds meet in the output buffer under every choice: the sum of an earlier fold is there when the next one comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from trainyard.errors import UnknownName

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Across = Literal["tree", "chain", "buffer"]


def across_cycles(across: str, multipliers: int, dpes: int, spanned: int, partials: int, bandwidth: int) -> int:
    """Add latency of one fold (Table II: the last reduction before the next stationary values may be loaded).

    `spanned`: Flex-DPEs of the dot product that spans most of them. `partials`: partial sums beyond the first of their dot product
    that wait for the output buffer once the last vector has left the adders (see `waiting`).

    >>> [across_cycles(choice, 128, 128, spanned=3, partials=127, bandwidth=64) for choice in ("tree", "chain", "buffer")]
    [14, 9, 9]
    """
    if across not in get_args(Across):
        raise UnknownName("way across Flex-DPEs", str(across), get_args(Across), where="Sigma")
    inside = (multipliers - 1).bit_length()  # FAN: one cycle for each level
    if across == "tree":
        return (dpes * multipliers - 1).bit_length()
    if across == "chain":
        return inside + max(spanned, 1) - 1
    return inside + -(-partials // bandwidth)


def waiting(partials: int, vectors: int, bandwidth: int) -> int:
    """Partial sums that wait for the output buffer when the last of `vectors` brings its own: it takes `bandwidth` a cycle.

    >>> waiting(partials=5, vectors=100, bandwidth=8), waiting(partials=9, vectors=100, bandwidth=8)
    (5, 108)
    """
    return partials + max(vectors - 1, 0) * max(partials - bandwidth, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A pass (stationary values that one run of the streaming vectors meets): the fold its last value lies in, and what crosses."""

    fold: int
    spanned: int
    partials: int


def crossings(counts: npt.NDArray[np.int64], multipliers: int, dpes: int) -> tuple[Crossing, ...]:
    """Every pass over stationary' values, of which `counts` [chunks of K, rows] are given; `wide` streaming has one chunk.

    Values lie one after another, chunk by chunk and row by row, in multiplier (number mod all multipliers). A pass is cut where a
    chunk ends and after as many values as there are multipliers.

    >>> import numpy as np
    >>> crossings(np.array([[2, 3, 1, 2]]), multipliers=4, dpes=2)  # the second row lies in both Flex-DPEs
    (Crossing(fold=0, spanned=2, partials=1),)
    """
    import numpy as np

    pool = multipliers * dpes
    ends = np.cumsum(counts.sum(axis=1))
    starts = np.concatenate([np.arange(begin, end, pool) for begin, end in zip([0, *ends[:-1]], ends, strict=True)])
    if not len(starts):
        return ()
    rows = np.concatenate([[0], np.cumsum(counts.ravel())[:-1]])
    pieces = np.union1d(rows[counts.ravel() > 0], starts)  # where another dot product begins, or this one in another pass
    after = np.append(pieces[1:], ends[-1])
    spanned = (after - 1) // multipliers - pieces // multipliers + 1
    first = np.searchsorted(pieces, starts)
    most, crossed = np.maximum.reduceat(spanned, first), np.add.reduceat(spanned - 1, first)
    fold = (np.append(starts[1:], ends[-1]) - 1) // pool
    return tuple(
        Crossing(fold=int(one), spanned=int(two), partials=int(three))
        for one, two, three in zip(fold, most, crossed, strict=True)
    )  # fmt: skip


def add_cycles(
    across: str, passes: tuple[Crossing, ...], *, multipliers: int, dpes: int, bandwidth: int, vectors: int, drain: str = "fold"
) -> int:
    """Add latency of all folds: the adders run empty once in each fold (after its slowest pass), or (`drain`) after every pass."""
    slowest: dict[int, int] = {}
    for number, found in enumerate(passes):
        partials = waiting(found.partials, vectors, bandwidth)
        cycles = across_cycles(across, multipliers, dpes, found.spanned, partials, bandwidth)
        key = found.fold if drain == "fold" else number
        slowest[key] = max(slowest.get(key, 0), cycles)
    return sum(slowest.values())
