"""Why the FLOPs of a capture differ from those that torch counts, case by case."""

from __future__ import annotations

REASONS: dict[tuple[str, str], str] = {
    ("training", "optimizer: LBFGS with closure"): "LBFGS evaluates its closure until it has converged, which values decide",
    ("training", "parametrized: spectral norm"): "torch counts no products of a matrix and a vector: the power iteration",
}
