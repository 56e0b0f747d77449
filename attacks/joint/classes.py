"""What a row looks like before any statistics: latent classes, integrated out.

Rows of a label fall into K classes with a Dirichlet prior on their shares; in a class, features
are independent, each with a Dirichlet prior of total weight a0 around the own rows' marginal of
the label. Shares and distributions are integrated out, which leaves counts (a collapsed
mixture: Neal 2000, Algorithm 3 for finitely many classes). Own rows take part as data whose
cells are known and whose class is not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.prior import Prior
from fedtrees.core.compilation import inner_kernel, kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

CLASS_WEIGHT = 1.0  # Dirichlet weight of each class share


class Classes(NamedTuple):
    """Rows counted per component; a component is a class of a label. Counts change in place.

    Kernels take it as it is.
    """

    # float64 (L, d, w): prior counts per label, feature and cell: a0 times the label's marginal
    base: Floats
    weight: float  # a0
    count: Ints  # int32 (L * K, d, w): rows per component, feature and cell
    present: Ints  # int32 (L * K, d): rows per component whose feature is not missing
    size: Ints  # int32 (L * K,): rows per component

    @staticmethod
    def of(prior: Prior, n_classes: int, weight: float) -> Classes:
        """Return empty counts around the prior's marginals."""
        base = weight * np.diff(prior.cumulative / prior.cumulative[:, :, -1:], axis=2)
        labels, d, w = base.shape
        return Classes(
            base,
            weight,
            np.zeros((labels * n_classes, d, w), dtype=np.int32),
            np.zeros((labels * n_classes, d), dtype=np.int32),
            np.zeros(labels * n_classes, dtype=np.int32),
        )

    def add(self, cells: Ints, component: Ints) -> None:
        """Count rows (int32, shape (n, d), -1 where missing) in their components."""
        for i in range(len(component)):
            count_row(self, cells, i, component[i], 1)


@kernel
def count_row(classes, cell, i, component, sign):  # type: ignore[no-untyped-def]
    """Add row ``i`` of ``cell`` to a component, or with sign -1 remove it; -1 is a missing cell."""
    classes.size[component] += sign
    for f in range(cell.shape[1]):
        c = cell[i, f]
        if c >= 0:
            classes.count[component, f, c] += sign
            classes.present[component, f] += sign


@kernel
def draw_class(classes, cell, i, label, scratch, u):  # type: ignore[no-untyped-def]
    """Return a component for row ``i``, which is in none, by its probability given the rest.

    ``scratch`` is float64, shape (K,); ``u`` uniform in [0, 1).
    """
    base, count, present = classes.base, classes.count, classes.present
    K = scratch.shape[0]
    total = 0.0
    for k in range(K):
        q = label * K + k
        w = classes.size[q] + CLASS_WEIGHT
        for f in range(cell.shape[1]):
            c = cell[i, f]
            if c >= 0:
                w *= (count[q, f, c] + base[label, f, c]) / (present[q, f] + classes.weight)
        total += w
        scratch[k] = total
    if not total > 1e-250:  # too many features for a product of probabilities
        total = _cumulate_logs(classes, cell, i, label, scratch)
    k = 0
    while k < K - 1 and scratch[k] <= u * total:
        k += 1
    return label * K + k


@inner_kernel
def _cumulate_logs(classes, cell, i, label, out):  # type: ignore[no-untyped-def]
    """Fill ``out`` with cumulative class weights relative to the greatest; return their sum."""
    base, count, present = classes.base, classes.count, classes.present
    K = out.shape[0]
    top = -np.inf
    for k in range(K):
        q = label * K + k
        out[k] = np.log(classes.size[q] + CLASS_WEIGHT)
        for f in range(cell.shape[1]):
            c = cell[i, f]
            if c >= 0:
                out[k] += np.log(count[q, f, c] + base[label, f, c])
                out[k] -= np.log(present[q, f] + classes.weight)
        top = max(top, out[k])
    total = 0.0
    for k in range(K):
        total += np.exp(out[k] - top)
        out[k] = total
    return total


@inner_kernel
def log_weight(classes, cell, i, label, scratch):  # type: ignore[no-untyped-def]
    """Return the log weight of a label for row ``i``, which is in no component.

    That is of the label, its share having a uniform prior, and of the row's cells given it.
    ``scratch`` is float64, shape (K,).
    """
    K, n, top = scratch.shape[0], 0, -np.inf
    for k in range(K):
        q = label * K + k
        n += classes.size[q]
        w = np.log(classes.size[q] + CLASS_WEIGHT)
        for f in range(cell.shape[1]):
            c = cell[i, f]
            if c >= 0:
                w += np.log(
                    (classes.count[q, f, c] + classes.base[label, f, c])
                    / (classes.present[q, f] + classes.weight)
                )
        scratch[k] = w
        top = max(top, w)
    total = 0.0
    for k in range(K):
        total += np.exp(scratch[k] - top)
    return top + np.log(total) + np.log((n + 1.0) / (n + K * CLASS_WEIGHT))


@inner_kernel
def draw_cell(classes, component, label, f, own, u):  # type: ignore[no-untyped-def]
    """Return a cell of feature ``f`` drawn given all other rows of the component.

    ``own`` is the row's present cell, which is counted and must not count itself.
    """
    base, count = classes.base, classes.count
    left = u * (classes.present[component, f] - 1 + classes.weight)
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


@inner_kernel
def swap_gain(classes, f, ca, cb, qa, qb, la, lb):  # type: ignore[no-untyped-def]
    """Return the factor by which exchanging two rows' cells of a feature changes the prior.

    ``ca``, ``qa`` and ``la`` are cell, component and label of one row, ``cb``, ``qb`` and ``lb``
    of the other.
    """
    if ca == cb or qa == qb:
        return 1.0
    base, count = classes.base, classes.count
    gain = (count[qa, f, cb] + base[la, f, cb]) / (count[qa, f, ca] - 1.0 + base[la, f, ca])
    gain *= (count[qb, f, ca] + base[lb, f, ca]) / (count[qb, f, cb] - 1.0 + base[lb, f, cb])
    return gain
