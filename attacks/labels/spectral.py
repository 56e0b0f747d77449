"""Normalised cut of the record-id graph by the singular vectors of its leaf incidence."""

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.labels.clustering import k_means
from fedtrees.attacks.labels.twins import Twins
from fedtrees.core.compilation import kernel

#: Share of the mean degree that is added to every degree. Without it, a few rows that share leaves
#: only with one another are a perfect cut, and hide all other clusters (Amini et al. 2013; Qin and
#: Rohe 2013).
REGULARISATION = 0.3


def embedding(twins: Twins, count: int) -> NDArray[np.float64]:
    """Return the first eigenvectors of the normalised adjacency matrix, scaled to unit rows.

    Parameters
    ----------
    twins : Twins
        The record-id graph with S groups of rows.
    count : int
        Number of eigenvectors.

    Returns
    -------
    float64 array, shape (S, count)
        Rows of length 1, or 0 for a group in no leaf. Columns are 0 if the matrix has a lower rank.

    Notes
    -----
    With the incidence ``B[s, leaf] = sqrt(eta_t)``, weights W and degrees D, the matrix
    ``M = W^1/2 D^-1/2 B`` fulfils ``M M' = W^1/2 D^-1/2 A D^-1/2 W^1/2`` (Shi and Malik 2000; Ng,
    Jordan and Weiss 2001). Its left singular vectors follow from the eigenvectors of M'M, which has
    one row per leaf.
    """
    J = len(twins.tree)
    per_leaf = twins.eta[twins.tree]
    seen, degree = twins.leaf >= 0, twins.degree
    if not degree.any():
        return np.zeros((len(twins.leaf), count))
    mean = degree @ twins.weight / twins.weight.sum()
    part = np.where(degree > 0, 1.0 / (degree + REGULARISATION * mean), 0.0)
    gram = _gram(twins.leaf, twins.weight * part, np.sqrt(per_leaf), J)
    values, vectors = np.linalg.eigh(gram)
    # `eigh` sorts in ascending order. Eigenvectors of eigenvalue 0 are arbitrary: set them to 0.
    vectors = vectors[:, ::-1][:, :count] * (values[::-1][:count] > 1e-10)
    ends = np.vstack([vectors * np.sqrt(per_leaf)[:, None], np.zeros((1, vectors.shape[1]))])
    U = np.sqrt(part)[:, None] * ends[np.where(seen, twins.leaf, J)].sum(axis=1)
    U = U / np.sqrt(np.maximum(values[::-1][:count], 1e-10))
    U = np.pad(U, ((0, 0), (0, count - U.shape[1])))
    length = np.linalg.norm(U, axis=1, keepdims=True)
    return np.asarray(U / np.where(length > 0, length, 1.0))


def spectral(twins: Twins, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Cluster the groups by their normalised eigenvectors. Return a cluster number per group."""
    return k_means(embedding(twins, count), count, rng, twins.weight)


@kernel
def _gram(leaf, weight, scale, J):  # type: ignore[no-untyped-def]
    out = np.zeros((J, J))
    for s in range(leaf.shape[0]):
        for t in range(leaf.shape[1]):
            a = leaf[s, t]
            if a < 0:
                continue
            for u in range(leaf.shape[1]):
                b = leaf[s, u]
                if b >= 0:
                    out[a, b] += weight[s] * scale[a] * scale[b]
    return out
