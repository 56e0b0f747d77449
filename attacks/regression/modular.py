"""Solve integer systems of equations exactly, modulo many primes (Chinese remainder theorem)."""

from typing import Any

import numpy as np
from gmpy2 import invert, next_prime
from numpy.typing import NDArray

Integers = NDArray[Any]

#: Products of two residues, and sums of a thousand of them, fit int64.
FIRST_PRIME = 1 << 25
#: Number of bits by which the modulus exceeds the bound on a solution. A wrong solution is below
#: the bound by chance once in 2^64 runs.
MARGIN = 64


def solved(A: Integers, B: Integers, bits: int) -> Integers | None:
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
        reduced, pivots = _reduced((augmented % prime).astype(np.int64), A.shape[1], prime)
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


def _reduced(
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
