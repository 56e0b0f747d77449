"""Exact and multiprecision linear algebra.

Integer systems of equations are solved modulo many primes (Chinese remainder theorem). Systems of
real numbers are solved with any precision by mpfr of gmpy2, or in float64 for comparison.
"""

from __future__ import annotations

import math
from typing import Any

import gmpy2
import numpy as np
from gmpy2 import invert, next_prime
from numpy.typing import NDArray

Integers = NDArray[Any]

#: Products of two residues, and sums of a thousand of them, fit int64.
FIRST_PRIME = 1 << 25
#: Number of bits by which the modulus exceeds the bound on a solution. A wrong solution is below
#: the bound by chance once in 2^64 runs.
MARGIN = 64


def solve_integers(A: Integers, B: Integers, bits: int) -> Integers | None:
    """Return the integer X with ``A X = B``, object array, shape (m, k).

    Conditioning is not a limit, because A only needs rank m. For example, ``A = [[2]]`` and ``B =
    [[6]]`` give ``[[3]]``, while ``B = [[5]]`` gives None.

    Parameters
    ----------
    A : object array, shape (r, m)
        Integer matrix.
    B : object array, shape (r, k)
        Right-hand sides.
    bits : int
        Largest number of bits of an entry of X.

    Returns
    -------
    object array or None
        None if A has a smaller rank, or if there is no such solution.
    """
    rows: NDArray[np.intp] | None = None
    total, modulus, prime = None, 1, FIRST_PRIME
    while modulus.bit_length() <= bits + MARGIN:
        prime = int(next_prime(prime))
        augmented = np.concatenate([A, B], axis=1) if rows is None else np.hstack([A, B])[rows]
        reduced, pivots = _reduce_rows((augmented % prime).astype(np.int64), A.shape[1], prime)
        if pivots is None:
            if rows is None:
                return None
            continue  # this prime divides the determinant
        if rows is None:
            if reduced[A.shape[1] :, A.shape[1] :].any():
                return None
            rows = pivots
        part = reduced[: A.shape[1], A.shape[1] :].astype(object)
        if total is None:
            total, modulus = part, prime
            continue
        # Garner's incremental Chinese remainder step
        step = (part - total) * int(invert(modulus, prime)) % prime
        total, modulus = total + modulus * step, modulus * prime
    assert total is not None
    # residues represent negative numbers as well
    signed = np.where(total > modulus // 2, total - modulus, total)
    return None if any(int(v).bit_length() > bits for v in signed.ravel()) else signed


def rank(A: Integers) -> int:
    """Return the rank of an integer matrix modulo one prime, a lower bound on its rank."""
    prime = int(next_prime(FIRST_PRIME))
    return len(_echelon((A % prime).astype(np.int64), A.shape[1], prime)[1])


def _reduce_rows(
    M: NDArray[np.int64], m: int, prime: int
) -> tuple[NDArray[np.int64], NDArray[np.intp] | None]:
    M, pivots = _echelon(M, m, prime)
    return M, (np.array(pivots, dtype=np.intp) if len(pivots) == m else None)


def _echelon(M: NDArray[np.int64], m: int, prime: int) -> tuple[NDArray[np.int64], list[int]]:
    """Reduce the first m columns to unit vectors, and return the original rows of the pivots."""
    place, pivots, top = np.arange(len(M)), list[int](), 0
    for column in range(m):
        nonzero = np.flatnonzero(M[top:, column])
        # the column is dependent modulo this prime
        if not len(nonzero):
            continue
        k = top + int(nonzero[0])
        M[[top, k]], place[[top, k]] = M[[k, top]], place[[k, top]]
        M[top] = M[top] * int(invert(int(M[top, column]), prime)) % prime
        factors = M[:, column].copy()
        factors[top] = 0
        touched = np.flatnonzero(factors)
        M[touched, column:] = (
            M[touched, column:] - factors[touched, None] * M[top, column:]
        ) % prime
        pivots.append(int(place[top]))
        top += 1
    return M, pivots


Reals = NDArray[Any]  # float64, or mpfr in an array of objects


def root(x: Any) -> Any:
    """Return the square root, 0 for negative numbers."""
    if not x > 0:
        return x * 0
    return math.sqrt(x) if isinstance(x, float) else gmpy2.sqrt(x)


def norm(v: Reals) -> Any:
    """Return the length of a vector."""
    return root(v @ v) if len(v) else 0.0


def factor(D: Reals, E: Reals, Z: Reals, rank: int) -> Reals:
    """Return L, shape (m, r), with ``C = L L'``, for C = X X' of known rank that maps D to E.

    The equations of Li et al. (2022, Eq. 3) need m rounds. Here ``C = Q S Q'``, with an orthonormal
    basis Q of the columns of X, which are those of Z. If scores are exact, Q is exact. S has only
    the size of the rank, so that as few rounds suffice. With more rounds, the solution is that of
    least squares.

    Parameters
    ----------
    D, E : array, shape (m, k)
        Vectors and their images.
    Z : array, shape (m, j)
        Linear combinations of the columns of X.
    rank : int
        Rank of C. The result has fewer columns if fewer directions are seen.
    """
    Q = basis_of(Z, rank)
    if not Q.shape[1] or D.shape[1] < Q.shape[1]:
        return Q[:, :0]
    S = least_squares((Q.T @ D).T, (Q.T @ E).T)
    return Q @ cholesky((S + S.T) / 2)


def basis_of(Z: Reals, rank: int) -> Reals:
    """Return an orthonormal basis of the columns, (m, r), with r at most `rank`.

    At each step the column with the longest remainder is added (pivoted Gram-Schmidt).
    """
    Z, basis = Z.copy(), list[Reals]()
    for _ in range(min(rank, *Z.shape)):
        sizes = [column @ column for column in Z.T]
        # the longest remainder has the smallest relative rounding error
        k = max(range(len(sizes)), key=lambda i: sizes[i])
        if not sizes[k] > 0:
            break
        q = Z[:, k] / root(sizes[k])
        for _ in range(2):  # twice, to remove rounding errors
            for other in basis:
                q = q - (q @ other) * other
            q = q / norm(q)
        basis.append(q)
        # multiplication keeps the number type of the array
        Z[:, k] = Z[:, k] * 0
        Z = Z - q[:, None] * (q @ Z)
    return np.stack(basis, axis=1) if basis else Z[:, :0]


def cholesky(S: Reals) -> Reals:
    """Return G, shape (n, r), with ``S = G G'`` for the positive part of S.

    Noise can make small directions negative. These are left out, so that r < n.
    """
    S, columns = S.copy(), list[Reals]()
    for _ in range(len(S)):
        k = max(range(len(S)), key=lambda i: S[i, i])
        if not S[k, k] > 0:
            break
        g = S[k] / root(S[k, k])
        columns.append(g)
        S = S - g[:, None] * g
        # remove rounding errors in the eliminated row
        S[k] = S[k] * 0
        S[:, k] = S[:, k] * 0
    return np.stack(columns, axis=1) if columns else S[:, :0]


def least_squares(A: Reals, b: Reals) -> Reals:
    """Return the x that minimises ``|A x - b|``, by Gram-Schmidt. A has full column rank.

    If b is a matrix, its columns are solved for separately.
    """
    A, b, n = A.copy(), b.copy(), A.shape[1]
    R = np.zeros((n, n), dtype=A.dtype)
    y = np.zeros((n, *b.shape[1:]), dtype=A.dtype)
    for k in range(n):
        R[k, k] = norm(A[:, k])
        if R[k, k] == 0:
            continue
        q = A[:, k] / R[k, k]
        if k + 1 < n:
            R[k, k + 1 :] = q @ A[:, k + 1 :]
            A[:, k + 1 :] = A[:, k + 1 :] - q[:, None] * R[k, k + 1 :]
        y[k] = q @ b
        b = b - np.multiply.outer(q, y[k])
    x = np.zeros_like(y)
    for k in reversed(range(n)):
        rest = y[k] - (R[k, k + 1 :] @ x[k + 1 :] if k + 1 < n else 0)
        x[k] = rest / R[k, k] if R[k, k] != 0 else rest * 0
    return x


def shortest(A: Reals, b: Reals, tiny: Any) -> tuple[Reals, Reals]:
    """Return the shortest x with ``A x = b``, and an orthonormal basis of the rows, (q, n).

    Parameters
    ----------
    A : array, shape (k, n)
        Equations.
    b : array, shape (k,)
        Right-hand sides.
    tiny : number
        Rows that are combinations of earlier ones up to this relative length are left out.
    """
    n = A.shape[1]
    basis: list[Reals] = []
    x = np.zeros(n, dtype=A.dtype)
    for row, value in zip(A, b, strict=True):
        apart = row
        for _ in range(2):  # twice, to remove rounding errors
            for q in basis:
                apart = apart - (apart @ q) * q
        size = norm(apart)
        if not size > tiny * norm(row) or len(basis) == n:
            continue
        q = apart / size
        x = x + ((value - row @ x) / size) * q
        basis.append(q)
    return x, (np.stack(basis) if basis else np.zeros((0, n), dtype=A.dtype))


def orthogonal_vector(basis: Reals, n: int) -> Reals:
    """Return a unit vector orthogonal to the rows of an orthonormal basis, shape (n,)."""
    best = None
    for k in range(n):
        v = np.zeros(n, dtype=basis.dtype)
        v = v + 0 * basis.sum() if basis.size else v
        v[k] = v[k] + 1
        for _ in range(2):
            for q in basis:
                v = v - (v @ q) * q
        if best is None or norm(v) > norm(best):
            best = v
        if norm(best) > 1 / (2 * math.sqrt(n)):
            break
    assert best is not None
    return best / norm(best)
