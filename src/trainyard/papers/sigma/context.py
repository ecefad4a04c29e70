"""Parameters that the paper states and our machines, masks and models have: context, used and not met."""

from __future__ import annotations

from functools import partial
from statistics import median

from trainyard.machines.presets.sigma import SIGMA, TPU
from trainyard.papers.ledger import Experiments, Measured
from trainyard.papers.sigma.rivals import ARRAYS
from trainyard.papers.sigma.suite import NARROW, SPARSE_CASES, held_still, mask

NO_ZEROS = (0.0, 0.0)


def _multipliers() -> Measured:
    found = {array.peak_macs_per_cycle for array in (SIGMA.array, TPU.array, *ARRAYS.values())}
    assert len(found) == 1
    return Measured(found.pop(), note=f"SIGMA, TPU and {len(ARRAYS)} rivals alike")


def _bandwidth() -> Measured:
    found = held_still(NARROW, NO_ZEROS, "a")
    return Measured(
        found.mapped_elements / found.loading, note="elements held over cycles of loading, 1024-16-500000 with MK stationary"
    )


def _zeros(weights: bool) -> list[float]:
    """Shares of zeros that the masks of the suite came out with."""
    chosen = [
        mask(op, side, zeros)
        for op, pair in SPARSE_CASES
        for side, zeros in (("a", pair[0]), ("b", pair[1]))
        if (zeros == max(pair)) == weights and op.M * op.N > 1e5  # one of 2048 x 1 elements says little
    ]  # fmt: skip
    return [100 * (1 - one.density) for one in chosen]


def _weights() -> Measured:
    found = _zeros(True)
    return Measured(sum(found) / len(found), note=f"masks of the suite, from {min(found):.2f} to {max(found):.2f} %")


def _inputs() -> Measured:
    found = _zeros(False)
    return Measured((min(found), max(found)), note="masks of the suite, drawn at 10, 30 and 50 %")


def _walkthrough() -> Measured:
    from trainyard.arrays.sigma.walkthrough import EXAMPLE, trace_product

    trace = trace_product(EXAMPLE)
    fits = EXAMPLE.array.multipliers, trace.allocation.useful, trace.allocation.flex_dpes, EXAMPLE.array.bandwidth
    return Measured(fits, note="trainyard explain sigma; the figure's matrices are a picture, ours have its counts")


def _parameters(model: str) -> Measured:
    from trainyard.workloads.zoo.catalogue import ENTRIES

    return Measured(ENTRIES[model].parameters, note=f"{model} of the zoo; {ENTRIES[model].note}")


def _pruned(model: str) -> Measured:
    """Zeros of its weight matrices at the end of our run of gradual pruning."""
    from trainyard.papers.sigma.training import run_of

    run = run_of(model)
    found = [
        100 * (1 - values[-1]) for letters in run["densities"].values() for name, values in letters.items() if name.startswith("W")
    ]  # fmt: skip
    pruned = [zeros for zeros in found if zeros > 1]
    return Measured(
        median(pruned),
        note=f"{run['sparsity']}, {run['data']}; median of {len(pruned)} matrices, {min(pruned):.1f} to {max(pruned):.1f} %, "
        f"{len(found) - len(pruned)} left whole",
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
