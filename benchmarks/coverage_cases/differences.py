"""Why the FLOPs of a capture differ from those that torch counts, case by case."""

from __future__ import annotations

_EMPTY_EXPERTS = "some experts compute nothing; how many tokens go to them is taken as even, which values decide"
REASONS: dict[tuple[str, str], str] = {
    ("training", "optimizer: LBFGS with closure"): "LBFGS evaluates its closure until it has converged, which values decide",
    ("training", "parametrized: spectral norm"): "torch counts no products of a matrix and a vector: the power iteration",
    ("training", "tensor parallel"): "torch counts products of divided weights with the shapes of all ranks, a Step is one rank's",
    ("transformers", "m2m100"): "some layers are skipped at random (layer drop); shapes run them all",
    ("experts", "longcat_flash: float32, eager"): _EMPTY_EXPERTS,
    ("experts", "longcat_flash: bfloat16, eager"): _EMPTY_EXPERTS,
}
