"""Factorisations, solves and eigenvalues of dense matrices.

B: batch.  m, n: rows and columns, of an (m, m) matrix n = m.  p: min(m, n).  q: max(m, n).
k: right-hand sides.

Leading terms from Golub & Van Loan, Matrix Computations, 4th edition (GVL); a kernel on a GPU may
do more. Eigenvalues and singular values are found by iteration: GVL's counts are estimates, and so
are these. Complex matrices take four times as many.
"""

from collections.abc import Callable
from functools import partial

from torchtally.trace import Call, TensorSpec
from torchtally.work.arithmetic import multiply_add_flops
from torchtally.work.cost import Cost
from torchtally.work.rule import Kind, one_pass, rule

Count = Callable[[int, int], int]
"""FLOPs of one matrix from p and q."""


def lu(p: int, q: int) -> int:
    """GVL 3.2.6: p^2 * (q - p/3), 2 n^3 / 3 of a square one."""
    return p * p * q - p**3 // 3


def householder(p: int, q: int) -> int:
    """GVL 5.2.2: 2 p^2 * (q - p/3)."""
    return 2 * lu(p, q)


def symmetric_eigenvalues(p: int, q: int) -> int:
    """GVL 8.3.5: 4 n^3 / 3."""
    return 4 * p**3 // 3


def symmetric_eigenvectors(p: int, q: int) -> int:
    """GVL 8.3.5: 9 n^3."""
    return 9 * p**3


def singular_values(p: int, q: int) -> int:
    """GVL figure 8.6.1: 4 q p^2 - 4 p^3 / 3."""
    return 4 * q * p * p - 4 * p**3 // 3


def thin_svd(p: int, q: int) -> int:
    """GVL figure 8.6.1, Golub-Reinsch, thin U: 14 q p^2 + 8 p^3."""
    return 14 * q * p * p + 8 * p**3


def full_svd(p: int, q: int) -> int:
    """GVL figure 8.6.1, Golub-Reinsch, full U: 4 q^2 p + 8 q p^2 + 9 p^3."""
    return 4 * q * q * p + 8 * q * p * p + 9 * p**3


def matrices_flops(spec: TensorSpec, count: Count) -> int:
    p, q = sorted(spec.shape[-2:])
    B = spec.elements // (p * q) if p else 0
    return B * count(p, q) * multiply_add_flops(spec) // 2


def factorization(count: Count, call: Call) -> Cost:
    return one_pass(call, flops=matrices_flops(call.inputs[0], count))


COUNTS: dict[str, Count] = {
    # GVL 4.2.5: n^3 / 3
    "linalg_cholesky_ex linalg_cholesky cholesky": lambda p, q: p**3 // 3,
    "linalg_ldl_factor_ex linalg_ldl_factor": lambda p, q: p**3 // 3,
    "linalg_lu_factor_ex linalg_lu_factor linalg_lu _lu_with_info _linalg_det linalg_det det": lu,
    "_linalg_slogdet linalg_slogdet slogdet logdet": lu,
    # LU, and n right-hand sides of which n^3 / 3 multiply-adds meet zeros (GVL 3.4)
    "linalg_inv_ex linalg_inv inverse": lambda p, q: 2 * p**3,
    "cholesky_inverse": lambda p, q: 2 * p**3 // 3,  # LAPACK Working Note 41, potri
    "geqrf linalg_householder_product orgqr": householder,
    # factor, and form the p columns of Q by as many FLOPs again (GVL 5.2.2, 5.1.6)
    "linalg_qr qr": lambda p, q: 2 * householder(p, q),
    "linalg_eigh": symmetric_eigenvectors,
    "linalg_eigvalsh": symmetric_eigenvalues,
    "linalg_eig": lambda p, q: 25 * p**3,  # GVL 7.5.6
    "linalg_eigvals _linalg_eigvals": lambda p, q: 10 * p**3,  # GVL 7.5.6
    "linalg_svdvals": singular_values,
}
"""Operators, and how many FLOPs a matrix takes."""

for names, count in COUNTS.items():
    rule(names, kind=Kind.LINEAR_ALGEBRA)(partial(factorization, count))


@rule("_linalg_eigh", kind=Kind.LINEAR_ALGEBRA)
def eigh(call: Call) -> Cost:
    only_values = call.literal("compute_v", True) is False
    return factorization(symmetric_eigenvalues if only_values else symmetric_eigenvectors, call)


@rule("_linalg_svd linalg_svd svd", kind=Kind.LINEAR_ALGEBRA)
def svd(call: Call) -> Cost:
    """Full matrices by default in `linalg_svd` alone."""
    if call.literal("compute_uv", True) is False:
        return factorization(singular_values, call)
    is_full = call.literal("full_matrices", call.name == "aten.linalg_svd") is True
    return factorization(full_svd if is_full else thin_svd, call)


def right_sides_flops(right: TensorSpec, n: int, per_term: int) -> int:
    """`per_term` * n^2 * k for each matrix: `per_term` * n for each element of its right side."""
    return per_term * n * right.elements * multiply_add_flops(right) // 2


@rule("_linalg_solve_ex linalg_solve_ex linalg_solve", kind=Kind.LINEAR_ALGEBRA)
def solve(call: Call) -> Cost:
    """LU and two triangular solves: 2 n^3 / 3 + 2 n^2 k (GVL 3.2)."""
    A, right = call.tensor("A"), call.tensor("B")
    solving = right_sides_flops(right, A.shape[-1], 2)
    return one_pass(call, flops=matrices_flops(A, lu) + solving)


@rule("linalg_solve_triangular triangular_solve", kind=Kind.LINEAR_ALGEBRA)
def solve_triangular(call: Call) -> Cost:
    """n^2 k: half the matrix, a multiply and an add each (GVL 3.1)."""
    matrix, right = call.tensor("self"), call.tensors("B")
    if not right:  # triangular_solve(self, A): the right-hand side comes first
        matrix, right = call.tensor("A"), call.tensors("self")
    return one_pass(call, flops=right_sides_flops(right[0], matrix.shape[-1], 1))


@rule(
    "linalg_lu_solve linalg_ldl_solve lu_solve cholesky_solve _cholesky_solve_helper",
    kind=Kind.LINEAR_ALGEBRA,
)
def solve_factored(call: Call) -> Cost:
    """Two triangular solves: 2 n^2 k."""
    right = call.tensors("B") or call.tensors("self")
    factors = [spec for spec in call.inputs if spec.argument not in ("B", "self")]
    n = factors[0].shape[-1]
    return one_pass(call, flops=right_sides_flops(right[0], n, 2))


@rule("linalg_lstsq", kind=Kind.LINEAR_ALGEBRA)
def least_squares(call: Call) -> Cost:
    """Householder QR, applied to the right side and solved: 4 m p k + p^2 k (GVL 5.3.2)."""
    A, right = call.tensor("self"), call.tensor("b")
    p = min(A.shape[-2:])
    solving = 4 * p * right.elements + p * p * (right.elements // max(1, A.shape[-2]))
    return one_pass(call, flops=matrices_flops(A, householder) + solving)


@rule("ormqr", kind=Kind.LINEAR_ALGEBRA)
def multiply_by_q(call: Call) -> Cost:
    """Each of p reflections takes 4 FLOPs for every element it meets (GVL 5.1.4)."""
    p = call.tensor("input2").shape[-1]
    return one_pass(call, flops=4 * p * call.tensor("input3").elements)
