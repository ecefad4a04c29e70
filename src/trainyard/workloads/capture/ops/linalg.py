"""Factorisations, solvers and decompositions of matrices, by their number of arithmetic operations.

The counts are the leading terms for one matrix of m rows and n columns, with k right-hand sides: those of LAPACK's routines
(J. Dongarra et al.: LAPACK Working Note 41, appendix C), and for the symmetric, the general and the singular value decomposition
those of the QR algorithm (G. Golub, C. Van Loan: Matrix Computations, 4th ed., sections 8.3, 7.5 and 8.6). On a device they are
many small dependent steps, not one matrix product, so they are recorded as element-wise work on their results.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from trainyard.ir import ElementWise, MatMul
from trainyard.workloads.capture.ops.registry import Call, Handler, HandlerResult, Piece

TAYLOR_PRODUCTS = 5  # products of torch's Taylor polynomial of degree 18; how often the result is squared depends on the values


def _sizes(matrix: Tensor) -> tuple[int, int]:
    return int(matrix.shape[-2]), int(matrix.shape[-1])


def _batch(tensor: Tensor) -> int:
    return math.prod(tensor.shape[:-2])


def _columns(matrix: Tensor, solved: Tensor) -> int:
    """Right-hand sides of one matrix, on its left or right; a vector for each matrix is one."""
    if solved.dim() < 2 or solved.shape == matrix.shape[:-1]:
        return 1
    return max(1, math.prod(_sizes(solved)) // max(1, _sizes(matrix)[0]))


def lu_operations(rows: int, columns: int) -> float:
    """
    >>> lu_operations(3, 3) == 2 / 3 * 3**3
    True
    """
    short, long = sorted((rows, columns))
    return short * short * (long - short / 3)


def qr_operations(rows: int, columns: int) -> float:
    """
    >>> qr_operations(3, 3) == 4 / 3 * 3**3
    True
    """
    short, long = sorted((rows, columns))
    return 2 * short * short * (long - short / 3)


def reflector_operations(rows: int, columns: int, reflectors: int) -> float:
    """Forming the first columns of a product of Householder reflectors."""
    return 4 * rows * columns * reflectors - 2 * (rows + columns) * reflectors**2 + 4 / 3 * reflectors**3


def svd_operations(rows: int, columns: int, vectors: bool) -> float:
    short, long = sorted((rows, columns))
    return 14 * long * short**2 + 8 * short**3 if vectors else 4 * long * short**2 - 4 / 3 * short**3


def _matrix(call: Call) -> Tensor:
    matrix: Tensor = call.args[0]
    return matrix


def _square(count: Callable[[int], float]) -> Handler:
    """Work on one square matrix, the first argument."""
    return _work(lambda call: count(_sizes(_matrix(call))[1]))


def _work(count: Callable[[Call], float]) -> Handler:
    """`count` operations for each matrix of the batch."""

    def handler(call: Call) -> HandlerResult:
        elements = max(t.numel() for t in call.outputs)
        batch = max(1, max(_batch(t) for t in call.inputs if t.dim() > 1))
        operations = max(1, round(count(call) * batch / elements))
        return ElementWise(call.name.strip("_").removesuffix("_ex").removeprefix("linalg_"), elements, operations)

    return handler


def _solve(matrix: int, solved: int, per_column: float, factorisation: float = 0) -> Handler:
    """n^2 operations for each right-hand side and triangle, and n^3 for a factorisation, times the factors."""

    def count(call: Call) -> float:
        size = _sizes(call.args[matrix])[1]
        return factorisation * size**3 + per_column * size**2 * _columns(call.args[matrix], call.args[solved])

    return _work(count)


def _qr(call: Call) -> float:
    rows, columns = _sizes(_matrix(call))
    formed = 0 if call.argument(1, "mode", "reduced") == "r" else call.outputs[0].shape[-1]
    reflectors = min(rows, columns)
    return qr_operations(rows, columns) + (reflector_operations(rows, formed, reflectors) if formed else 0)


def _svd(call: Call) -> float:
    return svd_operations(*_sizes(_matrix(call)), vectors=bool(call.argument(2, "compute_uv", True)))


def _eigh(call: Call) -> float:
    vectors = call.argument(2, "compute_v", True)
    return (9 if vectors else 4 / 3) * _sizes(_matrix(call))[1] ** 3


def _pseudo_inverse(call: Call) -> float:
    rows, columns = _sizes(_matrix(call))
    return svd_operations(rows, columns, vectors=True) + 2 * rows * columns * min(rows, columns)


def _least_squares(call: Call) -> float:
    rows, columns = _sizes(_matrix(call))
    return qr_operations(rows, columns) + 4 * rows * columns * _columns(call.args[0], call.args[1])


def _exponential(call: Call) -> HandlerResult:
    matrix = _matrix(call)
    size = _sizes(matrix)[1]
    return Piece(MatMul(size, size, size, count=TAYLOR_PRODUCTS * max(1, _batch(matrix))), inputs=(matrix, matrix), fused=True)


# fmt: off
MATRIX_WORK: dict[str, Handler] = {
    "cholesky":                   _square(lambda n: n**3 / 3),
    "linalg_cholesky_ex":         _square(lambda n: n**3 / 3),
    "cholesky_inverse":           _square(lambda n: 2 / 3 * n**3),
    "cholesky_solve":             _solve(1, 0, per_column=2),
    "_cholesky_solve_helper":     _solve(1, 0, per_column=2),
    "linalg_ldl_factor_ex":       _square(lambda n: n**3 / 3),
    "linalg_ldl_solve":           _solve(0, 2, per_column=2),
    "linalg_inv_ex":              _square(lambda n: 2 * n**3),
    "linalg_lu":                  _work(lambda call: lu_operations(*_sizes(_matrix(call)))),
    "linalg_lu_factor_ex":        _work(lambda call: lu_operations(*_sizes(_matrix(call)))),
    "linalg_lu_solve":            _solve(0, 2, per_column=2),
    "_linalg_det":                _square(lambda n: lu_operations(n, n)),
    "_linalg_slogdet":            _square(lambda n: lu_operations(n, n)),
    "_linalg_solve_ex":           _solve(0, 1, per_column=2, factorisation=2 / 3),
    "linalg_solve_triangular":    _solve(0, 1, per_column=1),
    "triangular_solve":           _solve(1, 0, per_column=1),
    "geqrf":                      _work(lambda call: qr_operations(*_sizes(_matrix(call)))),
    "linalg_qr":                  _work(_qr),
    "linalg_householder_product": _work(lambda call: reflector_operations(*_sizes(_matrix(call)), call.args[1].shape[-1])),
    "ormqr":                      _work(lambda call: 4 * math.prod(_sizes(call.args[2])) * call.args[1].shape[-1]),
    "linalg_lstsq":               _work(_least_squares),
    "linalg_pinv":                _work(_pseudo_inverse),
    "_linalg_eigh":               _work(_eigh),
    "_linalg_eigvals":            _square(lambda n: 10 * n**3),
    "linalg_eig":                 _square(lambda n: 25 * n**3),
    "_linalg_svd":                _work(_svd),
    "linalg_matrix_exp":          _exponential,
}
# fmt: on
