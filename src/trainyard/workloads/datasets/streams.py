"""A random generator for each sample, without torch: sample i of a seed does not depend on which other samples are drawn.

Philox is counter-based: its counter is set to (sample, purpose). J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw:
Parallel Random Numbers: As Easy as 1, 2, 3. SC 2011.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np


def streams(seed: int, purpose: int, samples: Iterable[int]) -> Iterator[np.random.Generator]:
    """One generator, set to the start of each sample's stream in turn.

    >>> [round(float(generator.random()), 3) for generator in streams(1, 2, (7, 8, 7))]
    [0.588, 0.495, 0.588]
    """
    bits = np.random.Philox(key=seed)
    generator, start = np.random.Generator(bits), bits.state
    for sample in samples:
        start["state"]["counter"][:] = (0, 0, purpose, int(sample))
        bits.state = start
        yield generator
