"""What a row looks like before any statistics: latent classes, integrated out.

Rows of a label fall into K classes with a Dirichlet prior on their shares; in a class, features
are independent, each with a Dirichlet prior of total weight a0 around the own rows' marginal of
the label. Shares and distributions are integrated out, which leaves counts (a collapsed
mixture: Neal 2000, Algorithm 3 for finitely many classes). Own rows take part as data whose
cells are known and whose class is not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from fedtrees.attacks.evidence.prior import Prior
from fedtrees.trees.jit import kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

CLASS_WEIGHT = 1.0  # Dirichlet weight of each class share


@dataclass(frozen=True, eq=False)
class Classes:
    """Rows counted per component; a component is a class of a label. Counts change in place.

    Attributes
    ----------
    base : float64 array, shape (2, d, w)
        Prior counts per label, feature and cell: a0 times the label's marginal.
    weight : float
        a0.
    count : int32 array, shape (2 * K, d, w)
        Rows per component, feature and cell.
    present : int32 array, shape (2 * K, d)
        Rows per component whose feature is not missing.
    size : int32 array, shape (2 * K,)
        Rows per component.
    """

    base: Floats
    weight: float
    count: Ints
    present: Ints
    size: Ints

    @staticmethod
    def of(prior: Prior, n_classes: int, weight: float) -> Classes:
        """Return empty counts around the prior's marginals."""
        base = weight * np.diff(prior.cumulative / prior.cumulative[:, :, -1:], axis=2)
        _, d, w = base.shape
        return Classes(
            base,
            weight,
            np.zeros((2 * n_classes, d, w), dtype=np.int32),
            np.zeros((2 * n_classes, d), dtype=np.int32),
            np.zeros(2 * n_classes, dtype=np.int32),
        )

    def add(self, cells: Ints, component: Ints) -> None:
        """Count rows (int32, shape (n, d), -1 where missing) in their components."""
        for i in range(len(component)):
            count_row(cells[i], component[i], self.count, self.present, self.size, 1)

    def log_probability(self) -> float:
        """Return the log probability (nats) of classes and cells given labels."""
        K = len(self.size) // 2
        total = 0.0
        for c in (0, 1):
            rows = slice(c * K, (c + 1) * K)
            total -= gammaln(self.size[rows].sum() + CLASS_WEIGHT * K)
            total += gammaln(self.size[rows] + CLASS_WEIGHT).sum()
            total += (gammaln(self.weight) - gammaln(self.present[rows] + self.weight)).sum()
            base = np.where(self.base[c] > 0, self.base[c], 1.0)  # cells a feature has not
            total += (gammaln(self.count[rows] + base) - gammaln(base)).sum()
        constant = 2 * (gammaln(CLASS_WEIGHT * K) - K * gammaln(CLASS_WEIGHT))
        return float(total + constant)


@kernel
def count_row(cell, component, count, present, size, sign):  # type: ignore[no-untyped-def]
    """Add (or with sign -1 remove) a row; a missing cell (-1) is in no feature's counts."""
    size[component] += sign
    for f in range(cell.shape[0]):
        if cell[f] >= 0:
            count[component, f, cell[f]] += sign
            present[component, f] += sign


@kernel
def draw_class(cell, label, base, weight, count, present, size, out, u):  # type: ignore[no-untyped-def]
    """Return a component for a row that is not counted, drawn by its probability given the rest.

    ``out`` (float64, shape (K,)) is scratch.
    """
    K = out.shape[0]
    total = 0.0
    for k in range(K):
        q = label * K + k
        w = size[q] + CLASS_WEIGHT
        for f in range(cell.shape[0]):
            c = cell[f]
            if c >= 0:
                w *= (count[q, f, c] + base[label, f, c]) / (present[q, f] + weight)
        total += w
        out[k] = total
    if not total > 1e-250:  # too many features for a product of probabilities
        total = _cumulate_logs(cell, label, base, weight, count, present, size, out)
    k = 0
    while k < K - 1 and out[k] <= u * total:
        k += 1
    return label * K + k


@kernel
def _cumulate_logs(cell, label, base, weight, count, present, size, out):  # type: ignore[no-untyped-def]
    """Fill ``out`` with cumulative class weights relative to the greatest; return their sum."""
    K = out.shape[0]
    top = -np.inf
    for k in range(K):
        q = label * K + k
        out[k] = np.log(size[q] + CLASS_WEIGHT)
        for f in range(cell.shape[0]):
            c = cell[f]
            if c >= 0:
                out[k] += np.log(count[q, f, c] + base[label, f, c])
                out[k] -= np.log(present[q, f] + weight)
        top = max(top, out[k])
    total = 0.0
    for k in range(K):
        total += np.exp(out[k] - top)
        out[k] = total
    return total


@kernel
def draw_cell(component, label, f, own, base, weight, count, present, u):  # type: ignore[no-untyped-def]
    """Return a cell of a feature drawn given all other rows of the component.

    ``own`` is the row's present cell, which is counted and must not count itself.
    """
    left = u * (present[component, f] - 1 + weight)
    last = 0
    for c in range(base.shape[2]):
        mass = count[component, f, c] + base[label, f, c]
        if c == own:
            mass -= 1.0
        if mass > 0.0:
            left -= mass
            last = c
            if left < 0.0:
                break
    return last


@kernel
def swap_gain(f, ca, cb, qa, qb, la, lb, base, count):  # type: ignore[no-untyped-def]
    """Return the factor by which exchanging two rows' cells of a feature changes the prior."""
    if ca == cb or qa == qb:
        return 1.0
    gain = (count[qa, f, cb] + base[la, f, cb]) / (count[qa, f, ca] - 1.0 + base[la, f, ca])
    gain *= (count[qb, f, ca] + base[lb, f, ca]) / (count[qb, f, cb] - 1.0 + base[lb, f, cb])
    return gain
