"""Prior of the rows: a collapsed mixture of latent classes.

The rows of a label belong to K latent classes with a Dirichlet prior on their shares. Within a
class, features are independent, each with a Dirichlet prior of total weight a0 around the marginal
of the label in the local data. Shares and distributions are integrated out, so that the state
consists of counts (Neal 2000, Algorithm 3 for a finite number of classes). Local rows are data with
known cells and unknown class.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.reconstruction.prior import Prior
from fedtrees.core.compilation import inner_kernel, kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

CLASS_WEIGHT = 1.0  # Dirichlet weight of each class share


class Classes(NamedTuple):
    """Counts of rows per component of the mixture. A component is a latent class of a label.

    A named tuple of arrays, because compiled kernels accept it as an argument. The counts change in
    place.

    Attributes
    ----------
    base : float64 array, shape (L, d, w)
        Prior counts per label, feature and cell: a0 times the marginal of the label.
    weight : float
        a0.
    count : int32 array, shape (L * K, d, w)
        Rows per component, feature and cell.
    present : int32 array, shape (L * K, d)
        Rows per component whose feature is not missing.
    size : int32 array, shape (L * K,)
        Rows per component.
    """

    base: Floats
    weight: float
    count: Ints
    present: Ints
    size: Ints

    @staticmethod
    def of(prior: Prior, n_classes: int, weight: float) -> Classes:
        """Return empty counts with the marginals of the prior.

        Parameters
        ----------
        prior : Prior
            Masses of the cells per label and feature.
        n_classes : int
            Number of latent classes per label, K.
        weight : float
            Total weight of the prior counts of a feature, a0, in rows.
        """
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
    """Add row ``i`` of ``cell`` to a component, or remove it if ``sign`` is -1, in place."""
    classes.size[component] += sign
    for f in range(cell.shape[1]):
        c = cell[i, f]
        if c >= 0:
            classes.count[component, f, c] += sign
            classes.present[component, f] += sign


@kernel
def draw_class(classes, cell, i, label, scratch, u):  # type: ignore[no-untyped-def]
    """Draw a component for a row that is in none, given all other rows.

    Parameters
    ----------
    classes : Classes
    cell : int32 array, shape (m, d)
        Cells of all rows.
    i, label : int
        The row and its label.
    scratch : float64 array, shape (K,)
        Memory for intermediate results.
    u : float
        Uniform random number in [0, 1).
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
    if not total > 1e-250:  # the product over many features underflows: use logarithms
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
    """Return the log of P(label) P(cells | label) for a row that is in no component.

    The share of the label has a uniform prior. Parameters are those of `draw_class`.
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
def draw_cell(classes, component, label, f, current_cell, u):  # type: ignore[no-untyped-def]
    """Draw a cell of a feature for a row, given all other rows of its component.

    ``current_cell`` is the current cell of the row. The counts include it, so that it is
    subtracted. ``u`` is a uniform random number in [0, 1).
    """
    base, count = classes.base, classes.count
    left = u * (classes.present[component, f] - 1 + classes.weight)
    last = 0
    for c in range(base.shape[2]):
        mass = count[component, f, c] + base[label, f, c]
        if c == current_cell:
            mass -= 1.0
        if mass > 0.0:
            left -= mass
            last = c
            if left < 0.0:
                break
    return last


@inner_kernel
def swap_gain(classes, f, ca, cb, qa, qb, la, lb):  # type: ignore[no-untyped-def]
    """Return the factor by which the prior changes if two rows exchange their cells of a feature.

    ``ca`` and ``cb`` are their current cells, ``qa`` and ``qb`` their components, ``la`` and ``lb``
    their labels.
    """
    if ca == cb or qa == qb:
        return 1.0
    base, count = classes.base, classes.count
    gain = (count[qa, f, cb] + base[la, f, cb]) / (count[qa, f, ca] - 1.0 + base[la, f, ca])
    gain *= (count[qb, f, ca] + base[lb, f, ca]) / (count[qb, f, cb] - 1.0 + base[lb, f, cb])
    return gain
