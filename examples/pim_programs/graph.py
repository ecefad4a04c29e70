"""Graphs for DPUs: read from an edge list, or generated.

Generated graphs: R-MAT (D. Chakrabarti, Y. Zhan, C. Faloutsos: R-MAT: A Recursive Model for Graph Mining. SDM 2004) with Graph500's
corner probabilities, a power law; and uniform, every pair as likely as any other.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.checks import require_positive
from trainyard.errors import BadInput

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Whole = npt.NDArray[np.int64]

GRAPH500 = (0.57, 0.19, 0.19, 0.05)  # Graph500 specification: A, B, C, D
COMMENTS = ("#", "%")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graph:
    """A directed graph: edge i goes from sources[i] to targets[i], both from 0 to vertices - 1. Parallel edges count each.

    >>> graph = Graph.from_edges([(0, 1), (0, 2), (2, 0)], vertices=3)
    >>> graph.edges, graph.out_degrees.tolist()
    (3, [2, 0, 1])
    """

    vertices: int
    sources: Whole
    targets: Whole
    labels: Whole | None = None
    """What each vertex is called in the file it was read from; None: its number."""
    name: str = "graph"

    def __post_init__(self) -> None:
        import numpy as np

        require_positive(self.name, vertices=self.vertices)
        ends = []
        for what, given in (("sources", self.sources), ("targets", self.targets)):
            end = np.ascontiguousarray(given)
            if end.ndim != 1 or (end.size and end.dtype.kind not in "iu"):
                raise BadInput(f"{self.name}: {what} must be a row of whole numbers, got {end.dtype} of shape {end.shape}")
            wrong = np.flatnonzero((end < 0) | (end >= self.vertices))
            if wrong.size:
                bad = int(wrong[0])
                raise BadInput(f"{self.name}: edge {bad} has {what}[{bad}]={end[bad]}: vertices go from 0 to {self.vertices - 1}")
            ends.append(end.astype(np.int64))
        if ends[0].size != ends[1].size:
            raise BadInput(f"{self.name}: {ends[0].size} sources but {ends[1].size} targets: an edge has one of each")
        object.__setattr__(self, "sources", ends[0])
        object.__setattr__(self, "targets", ends[1])

    @classmethod
    def from_edges(cls, edges: Iterable[tuple[int, int]], vertices: int | None = None, name: str = "graph") -> Graph:
        import numpy as np

        listed = list(edges)
        for place, edge in enumerate(listed):
            if len(edge) != 2 or any(isinstance(end, bool) or not isinstance(end, int | np.integer) for end in edge):
                raise BadInput(f"{name}: edge {place} is {edge!r}: write (source, target), two whole numbers")
        ends = np.array(listed, np.int64).reshape(-1, 2)
        count = int(ends.max()) + 1 if vertices is None and ends.size else vertices
        if count is None:
            raise BadInput(f"{name}: no edges and no number of vertices: give vertices=")
        return cls(vertices=count, sources=ends[:, 0], targets=ends[:, 1], name=name)

    @property
    def edges(self) -> int:
        return int(self.sources.size)

    @property
    def out_degrees(self) -> Whole:
        import numpy as np

        return np.bincount(self.sources, minlength=self.vertices).astype(np.int64)

    @property
    def in_degrees(self) -> Whole:
        import numpy as np

        return np.bincount(self.targets, minlength=self.vertices).astype(np.int64)


def read_edge_list(path: str | Path) -> Graph:
    """A text file, gzipped or not: two whole numbers a line, source and target; lines that start with # or % are comments.

    Numbers may have gaps: only those that occur are vertices, in rising order (`labels`).
    """
    import numpy as np

    path = Path(path)
    try:
        found = np.array(list(_read_lines(path)), np.int64).reshape(-1, 2)
    except (OSError, UnicodeDecodeError, EOFError) as reason:
        raise BadInput(f"{path}: cannot be read as an edge list: {reason}") from reason
    if not found.size:
        raise BadInput(f"{path}: no edges in it: a line holds two whole numbers, source and target")
    labels, places = np.unique(found, return_inverse=True)
    ends = places.reshape(-1, 2)
    return Graph(vertices=labels.size, sources=ends[:, 0], targets=ends[:, 1], labels=labels, name=path.name)


def _read_lines(path: Path) -> Iterator[tuple[int, int]]:
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith(COMMENTS):
                continue
            if len(words) != 2:
                more = "edges have no weights here" if len(words) == 3 else "write source and target"
                raise BadInput(f"{path}, line {number}: {len(words)} numbers where an edge has two: {more}")
            try:
                source, target = int(words[0]), int(words[1])
            except ValueError:
                raise BadInput(f"{path}, line {number}: {line.strip()!r} is not two whole numbers") from None
            if min(source, target) < 0 or max(source, target) >= 2**63:
                raise BadInput(f"{path}, line {number}: {line.strip()!r}: a vertex is numbered from 0 to 2^63 - 1")
            yield source, target


def rmat(scale: int, edges: int, *, seed: int = 0, corners: tuple[float, float, float, float] = GRAPH500) -> Graph:
    """2^scale vertices whose degrees follow a power law; shuffled, so that a vertex's number says nothing of its degree."""
    import numpy as np

    require_positive("rmat", scale=scale, edges=edges)
    if scale > 32:
        raise BadInput(f"rmat: scale must be at most 32, got {scale}")
    if len(corners) != 4 or min(corners) < 0 or abs(sum(corners) - 1) > 1e-9:
        raise BadInput(f"rmat: corners must be four probabilities that sum to 1, got {corners}")
    draw = np.random.default_rng(seed)
    ends = np.zeros((2, edges), np.int64)
    bounds = np.cumsum(corners)[:3]
    for _ in range(scale):
        corner = np.searchsorted(bounds, draw.random(edges), side="right")
        ends[0] = 2 * ends[0] + corner // 2
        ends[1] = 2 * ends[1] + corner % 2
    shuffled = draw.permutation(1 << scale)
    return Graph(vertices=1 << scale, sources=shuffled[ends[0]], targets=shuffled[ends[1]], name=f"rmat-{scale}")


def uniform(vertices: int, edges: int, *, seed: int = 0) -> Graph:
    """Both ends of every edge are drawn from all vertices alike."""
    import numpy as np

    require_positive("uniform", vertices=vertices, edges=edges)
    ends = np.random.default_rng(seed).integers(0, vertices, (2, edges))
    return Graph(vertices=vertices, sources=ends[0], targets=ends[1], name=f"uniform-{vertices}")
