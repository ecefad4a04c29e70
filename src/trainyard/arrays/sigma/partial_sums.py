"""Where partial sums of a dot product that spans several Flex-DPEs are added, and the add latency of a fold.

SIGMA (HPCA 2020, Sec. IV-B) makes one Flex-DPU of several Flex-DPEs and does not say where their partial sums are added: an
assumption, `Sigma.across`.

| across   | where partial sums are added                           | cycles after a fold's last products                    |
|----------|--------------------------------------------------------|--------------------------------------------------------|
| `tree`   | an adder tree over all Flex-DPEs, on the way out       | ceil(log2(dpes * multipliers)), whatever spans them    |
| `chain`  | each Flex-DPE hands its sum to its neighbour           | log2(multipliers) + Flex-DPEs of the longest - 1       |
| `buffer` | the output buffer adds what comes, `bandwidth` a cycle | log2(multipliers) + ceil(waiting partials / bandwidth) |

Sums of several folds are added in the output buffer under every choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from trainyard.checks import require_choice

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Across = Literal["tree", "chain", "buffer"]


def add_latency(across: str, multipliers: int, dpes: int, spanned: int, partials: int, bandwidth: int) -> int:
    """Add latency of one fold (Table II: the last reduction before the next stationary values may be loaded).

    `spanned`: the most Flex-DPEs that one dot product spans. `partials`: partial sums beyond the first of their dot product that
    wait for the output buffer once the last vector has left the adders (see `waiting_partials`).

    >>> [add_latency(choice, 128, 128, spanned=3, partials=127, bandwidth=64) for choice in ("tree", "chain", "buffer")]
    [14, 9, 9]
    """
    require_choice("Sigma", across=(across, get_args(Across)))
    inside = (multipliers - 1).bit_length()  # FAN: one cycle for each level
    if across == "tree":
        return (dpes * multipliers - 1).bit_length()
    if across == "chain":
        return inside + max(spanned, 1) - 1
    return inside + -(-partials // bandwidth)


def waiting_partials(partials: int, vectors: int, bandwidth: int) -> int:
    """Partial sums in front of the output buffer when those of the last vector arrive; the buffer takes `bandwidth` a cycle.

    >>> waiting_partials(partials=5, vectors=100, bandwidth=8), waiting_partials(partials=9, vectors=100, bandwidth=8)
    (5, 108)
    """
    return partials + max(vectors - 1, 0) * max(partials - bandwidth, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A pass (values for which the vectors stream once): the fold of its last value, and its sums that span Flex-DPEs."""

    fold: int
    spanned: int
    partials: int


def crossings(counts: npt.NDArray[np.int64], multipliers: int, dpes: int) -> tuple[Crossing, ...]:
    """Every pass over the stationary' values, from their `counts` [chunks of K, rows]; `wide` streaming has one chunk.

    Values are placed chunk by chunk and row by row, value i in multiplier i mod (all multipliers). A pass ends where a chunk ends,
    and after as many values as there are multipliers.

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
    most_spanned, crossed_partials = np.maximum.reduceat(spanned, first), np.add.reduceat(spanned - 1, first)
    folds = (np.append(starts[1:], ends[-1]) - 1) // pool
    rows_of_passes = zip(folds.tolist(), most_spanned.tolist(), crossed_partials.tolist(), strict=True)
    return tuple(Crossing(fold=fold, spanned=spanned, partials=partials) for fold, spanned, partials in rows_of_passes)


def add_cycles(
    across: str, passes: tuple[Crossing, ...], *, multipliers: int, dpes: int, bandwidth: int, vectors: int, drain: str = "fold"
) -> int:
    """Add latency of all folds: the adders drain once a fold, after its slowest pass, or (`drain="pass"`) after every pass."""
    slowest: dict[int, int] = {}
    for number, crossing in enumerate(passes):
        partials = waiting_partials(crossing.partials, vectors, bandwidth)
        cycles = add_latency(across, multipliers, dpes, crossing.spanned, partials, bandwidth)
        key = crossing.fold if drain == "fold" else number
        slowest[key] = max(slowest.get(key, 0), cycles)
    return sum(slowest.values())
