"""The paper's parameters beside those of our machines, masks and models: context, not judged."""

from __future__ import annotations

from functools import partial
from statistics import median

from trainyard.machines.presets.sigma import SIGMA, TPU
from trainyard.papers.ledger import Experiments, Measured
from trainyard.papers.sigma.rivals import ARRAYS
from trainyard.papers.sigma.suite import NARROW, SPARSE_CASES, mask, stationary_cost

NO_ZEROS = (0.0, 0.0)


def _multipliers() -> Measured:
    (multipliers,) = {array.peak_macs_per_cycle for array in (SIGMA.array, TPU.array, *ARRAYS.values())}
    return Measured(multipliers, note=f"SIGMA, the TPU and {len(ARRAYS)} rivals have as many.")


def _bandwidth() -> Measured:
    cost = stationary_cost(NARROW, NO_ZEROS, "a")
    return Measured(cost.mapped_elements / cost.loading, note="Elements over cycles of loading, 1024-16-500000, MK stationary.")


def _zeros(weights: bool) -> list[float]:
    """Shares of zeros of the drawn masks of the suite, in per cent."""
    chosen = [
        mask(op, side, zeros)
        for op, pair in SPARSE_CASES
        for side, zeros in (("a", pair[0]), ("b", pair[1]))
        if (zeros == max(pair)) == weights and op.M * op.N > 1e5  # one of 2048 x 1 elements says little
    ]  # fmt: skip
    return [100 * (1 - bitmap.density) for bitmap in chosen]


def _weights() -> Measured:
    percent = _zeros(True)
    return Measured(sum(percent) / len(percent), note=f"Masks of the suite, from {min(percent):.2f} to {max(percent):.2f} %.")


def _inputs() -> Measured:
    percent = _zeros(False)
    return Measured((min(percent), max(percent)), note="Masks of the suite, drawn at 10, 30 and 50 %.")


def _walkthrough() -> Measured:
    from trainyard.arrays.sigma.walkthrough import EXAMPLE, trace_product

    trace = trace_product(EXAMPLE)
    counts = EXAMPLE.array.multipliers, trace.allocation.useful, trace.allocation.flex_dpes, EXAMPLE.array.bandwidth
    return Measured(counts, note="`trainyard explain sigma`: the matrices are ours and have the counts of the figure.")


def _parameters(model: str) -> Measured:
    from trainyard.workloads.zoo.catalogue import ENTRIES

    return Measured(ENTRIES[model].parameters, note=f"{model} of the zoo: {ENTRIES[model].note}.")


def _pruned(model: str) -> Measured:
    """Zeros of its weight matrices at the end of our run of gradual pruning."""
    from trainyard.papers.sigma.training import run_of

    run = run_of(model)
    percent = [
        100 * (1 - values[-1]) for letters in run["densities"].values() for name, values in letters.items() if name.startswith("W")
    ]  # fmt: skip
    pruned = [zeros for zeros in percent if zeros > 1]
    return Measured(
        median(pruned),
        note=f"Median of {len(pruned)} matrices after {run['sparsity']}; {len(percent) - len(pruned)} are not pruned.",
        details=f"From {min(pruned):.1f} to {max(pruned):.1f} %. Trained on a {run['data']}.",
    )


# fmt: off
EXPERIMENTS: Experiments = {
    "sigma.pes":                          _multipliers,
    "sigma.input_bandwidth":              _bandwidth,
    "sigma.sparsity.weights":             _weights,
    "sigma.sparsity.inputs":              _inputs,
    "sigma.walkthrough":                  _walkthrough,
    "sigma.sparsity.gnmt_weights":        partial(_pruned, "gnmt"),
    "sigma.sparsity.transformer_weights": partial(_pruned, "transformer-324m"),
    "sigma.sparsity.resnet50_weights":    partial(_pruned, "resnet50"),
    "sigma.params.gnmt":                  partial(_parameters, "gnmt"),
    "sigma.params.transformer":           partial(_parameters, "transformer-324m"),
}
# fmt: on
