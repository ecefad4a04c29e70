"""Ops outside of neural networks' daily bread: linear algebra with its operations, and torch's own database of functions."""

from __future__ import annotations

import sys
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from trainyard import capture
from trainyard.errors import CaptureError
from trainyard.ir import ElementWise, MatMul, Step
from trainyard.workloads.capture.ops.linalg import lu_operations, qr_operations, reflector_operations, svd_operations

N, K = 24, 6


class Applied(nn.Module):
    """A function of a positive definite matrix that depends on a weight."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(N))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        matrix = self.weight + self.weight.T + x
        leaves = [leaf for leaf in tree_leaves(self.function(matrix)) if isinstance(leaf, Tensor) and leaf.requires_grad]
        return sum((leaf.real.sum() for leaf in leaves), torch.zeros(())) + self.weight.sum()


def step_of(function: Callable[[Tensor], Any], *, real: bool) -> Step:
    # One matrix in all, whatever the batch: operations of a factorisation are not affine in the size of its matrix.
    return capture(Applied(function), torch.eye(N)[None], loss=lambda y: y, real=real)


def right(columns: int) -> Tensor:
    return torch.ones(N, columns)


# fmt: off
FORWARD: dict[str, tuple[Callable[[Tensor], Any], str, float]] = {
    # a function, the op that it runs, and the arithmetic operations of that op
    "cholesky":       (torch.linalg.cholesky,                                "linalg_cholesky_ex",      N**3 / 3),
    "with cholesky":  (lambda a: torch.cholesky_solve(right(K), a[0].tril()), "cholesky_solve",          2 * N**2 * K),
    "inverse":        (torch.linalg.inv,                                     "linalg_inv_ex",           2 * N**3),
    "solve":          (lambda a: torch.linalg.solve(a, right(K)),            "_linalg_solve_ex",   2 / 3 * N**3 + 2 * N**2 * K),
    "triangular":     (lambda a: torch.linalg.solve_triangular(a, right(K), upper=False), "linalg_solve_triangular", N**2 * K),
    "lu":             (torch.linalg.lu_factor,                               "linalg_lu_factor_ex",     2 / 3 * N**3),
    "determinant":    (torch.linalg.slogdet,                                 "_linalg_slogdet",         2 / 3 * N**3),
    "qr":             (torch.linalg.qr,                                      "linalg_qr",               8 / 3 * N**3),
    "eigh":           (torch.linalg.eigh,                                    "_linalg_eigh",            9 * N**3),
    "eigvalsh":       (torch.linalg.eigvalsh,                                "_linalg_eigh",            9 * N**3),
    "svd":            (lambda a: torch.linalg.svd(a, full_matrices=False),   "_linalg_svd",             22 * N**3),
}
# fmt: on


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("name", FORWARD)
def test_matrix_work_costs_its_operations(name: str, real: bool) -> None:
    function, op, operations = FORWARD[name]
    step = step_of(function, real=real)
    body = next(o.body for o in step if o.name == op)
    assert isinstance(body, ElementWise)
    assert body.elements * body.operations == pytest.approx(operations, rel=0.05)  # whole operations for each result
    assert not [note for note in step.notes if "does not know" in note]


def test_counts_of_rectangular_matrices() -> None:
    assert lu_operations(N, 2 * N) == lu_operations(2 * N, N) == pytest.approx(5 / 3 * N**3)
    assert qr_operations(2 * N, N) == pytest.approx(10 / 3 * N**3)
    assert reflector_operations(N, N, N) == pytest.approx(4 / 3 * N**3)
    assert svd_operations(2 * N, N, vectors=False) == pytest.approx((8 - 4 / 3) * N**3)


def test_a_matrix_exponential_is_five_products() -> None:
    step = step_of(torch.linalg.matrix_exp, real=False)
    product = next(op.body for op in step if op.name == "linalg_matrix_exp")
    assert product == MatMul(N, N, N, count=5)


# fmt: off
SEARCHES: dict[str, Callable[[Tensor], Any]] = {
    "is in":        lambda a: torch.isin(a.round(), torch.ones(3)) * a,
    "search":       lambda a: torch.searchsorted(torch.linspace(0, 1, 9), a.detach().contiguous()) * a,
    "buckets":      lambda a: torch.bucketize(a.detach(), torch.linspace(0, 1, 9)) * a,
    "histogram":    lambda a: torch.histc(a.detach(), 8).sum() * a,
    "top":          lambda a: a.topk(3).values,
    "k-th":         lambda a: a.kthvalue(3).values,
    "distance":     lambda a: torch.cdist(a, a + 1),
    "quantile":     lambda a: a.quantile(0.3, -1),
    "sample":       lambda a: F.grid_sample(a.expand(1, 2, 4, N, N), a.expand(1, 1, 2, N, N)[..., :3], align_corners=False),
    "pool":         lambda a: F.fractional_max_pool3d(a.expand(1, 2, 8, N, N), 2, output_ratio=0.5),
    "fill diagonal": lambda a: a[0].clone().fill_diagonal_(0.0),
    "put":          lambda a: a[0].put(torch.tensor([1, 3]), torch.ones(2)),
    "fold":         lambda a: F.fold(F.unfold(a.expand(1, 2, N, N), 3), N, 3),
    "fourier":      lambda a: torch.fft.rfft2(a).abs(),
    "windows":      lambda a: torch.stft(a[0], 8, window=torch.hann_window(8, device=a.device), return_complex=True).abs(),
    "special":      lambda a: torch.special.i0e(a) + torch.special.erfcx(a) + torch.special.log_ndtr(a),
}
# fmt: on


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_samples_and_windows_have_rows(name: str) -> None:
    for real in (False, True):
        step = step_of(SEARCHES[name], real=real)
        assert not [note for note in step.notes if "does not know" in note]


def test_a_product_with_nothing_to_sum_fills_its_result() -> None:
    step = step_of(lambda a: a[0][:, :0] @ a[0][:0], real=False)
    assert not [op for op in step if op.is_product]
    assert [op.name for op in step if op.name == "mm"] == ["mm"]


def every_function() -> Iterator[tuple[str, Callable[[Tensor], Any]]]:
    """Two samples of each function in torch's own database, with the first operand made to depend on a weight."""
    sys.modules.setdefault("expecttest", types.ModuleType("expecttest"))
    if not hasattr(sys.modules["expecttest"], "TestCase"):
        sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]
    from torch.testing._internal.common_methods_invocations import op_db

    def on(value: Any, weight: Tensor) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(on(item, weight) for item in value)
        return value * weight if isinstance(value, Tensor) and value.is_floating_point() else value

    for info in op_db:
        samples = info.sample_inputs("cpu", torch.float32)
        for index in range(2):
            try:
                sample = next(samples)
                function = lambda a, info=info, s=sample: info(on(s.input, a.sum() / a.sum().detach()), *s.args, **s.kwargs)  # noqa: E731
                Applied(function)(torch.eye(N)[None]).backward()
            except Exception:  # no such sample, or not on this computer: nothing to capture
                continue
            yield f"{info.name} {info.variant_test_name} {index}", function


@pytest.mark.slow
def test_nothing_in_torchs_database_is_fatal_with_values() -> None:
    failures: dict[str, str] = {}
    count = 0
    for name, function in every_function():
        count += 1
        try:
            step_of(function, real=True)
        except CaptureError as error:
            failures[name] = str(error)
    assert count > 1000
    assert len(failures) <= 0.01 * count, failures
